"""How long until something happens? Help in CPU seconds, the first answer on the organism, a GGUF file again.

python benchmarks/start.py .cache/smollm2.gguf

Bars, on two cores: help and usage errors 0.5 s of CPU, the first answer 5 s, the second load of SmolLM2 4 s.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

ANSWER = """
import keyhole
run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
print(run.channels((1, 6), -1, "Mary").n_recon())
"""
LOAD = """
import sys, time
from keyhole.models.load import load
wall, cpu = time.perf_counter(), time.process_time()
load(sys.argv[1])
print(time.perf_counter() - wall, time.process_time() - cpu)
"""
REQUESTS = (
    "--help",
    "--version",
    "trace --help",
    "contrast --help",
    "lab --help",
    "lab svf --help",
    "nonsense",
    "trace --nonsense",
    "verify",
    "heads",
)


def timed(arguments: Sequence[str]) -> tuple[float, float]:
    """Seconds of a Python process, and its CPU seconds (user and system)."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def loads(path: str) -> list[tuple[float, float]]:
    """Seconds and CPU seconds of `keyhole.load` in three processes that share an empty cache."""
    with tempfile.TemporaryDirectory() as folder:
        environment: Mapping[str, str] = {**os.environ, "KEYHOLE_CACHE": folder}
        command = [sys.executable, "-c", LOAD, path]
        told = [subprocess.run(command, check=True, capture_output=True, text=True, env=environment) for _ in range(3)]
    return [tuple(map(float, done.stdout.split())) for done in told]


def main() -> None:
    worst = 0.0
    for request in REQUESTS:
        cpu = statistics.median(timed(["-m", "keyhole", *request.split()])[1] for _ in range(5))
        worst = max(worst, cpu)
        print(f"keyhole {request:<18} {cpu:.2f} s of CPU (median of 5)")
    answer = statistics.median(timed(["-c", ANSWER])[0] for _ in range(5))
    print(f"most expensive of these {worst:.2f} s of CPU (bar: 0.5)")
    print(f"to the first answer on the organism {answer:.2f} s (median of 5; bar: 5)")
    again = 0.0
    if len(sys.argv) > 1:
        first, *rest = loads(sys.argv[1])
        again = min(wall for wall, _ in rest)
        print(f"{sys.argv[1]}, first load: {first[0]:.1f} s, {first[1]:.1f} s of CPU")
        for wall, cpu in rest:
            print(f"{sys.argv[1]}, again: {wall:.1f} s, {cpu:.1f} s of CPU (bar: 4)")
    raise SystemExit(0 if worst <= 0.5 and answer <= 5 and again <= 4 else 1)


if __name__ == "__main__":
    main()

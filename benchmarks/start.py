"""How long from starting Python to the first answer on the organism? The bar is 5 seconds on two cores.

python benchmarks/start.py
"""

import statistics
import subprocess
import sys
import time

CODE = """
import keyhole
run = keyhole.load().run("When Mary and John went to the store, John gave a drink to")
print(run.channels((1, 6), -1, "Mary").n_recon())
"""


def main() -> None:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    print(f"seconds to the first answer: median {statistics.median(times):.2f}, worst {max(times):.2f} (bar: 5)")
    raise SystemExit(0 if statistics.median(times) <= 5 else 1)


if __name__ == "__main__":
    main()

"""Does the test of claims tell true from false? Twelve true and twelve false claims, planted, over some seeds.

    python benchmarks/claims.py [--seeds 5] [--n 24]

Prints for each claim in how many seeds its verdict is right, and for a false one the tests that say so; then how often
each kind of verdict came. `keyhole.lab.claims` says what is planted, and why it is true or false.
"""

import argparse
import time
from collections import Counter, defaultdict

import keyhole
from keyhole.lab.claims import planted_claims


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--n", type=int, default=24)
    arguments = parser.parse_args()
    right, verdicts, failed = Counter[str](), Counter[tuple[bool, str]](), defaultdict[str, Counter[str]](Counter)
    holds: dict[str, tuple[str, bool]] = {}
    start = time.perf_counter()
    for seed in range(arguments.first, arguments.first + arguments.seeds):
        for planted in planted_claims(seed, n=arguments.n):
            result = keyhole.claim(planted.model, planted.claim)
            holds[planted.trap] = planted.model.name, planted.holds
            right[planted.trap] += result.passes == planted.holds
            verdicts[planted.holds, result.verdict] += 1
            failed[planted.trap].update(test.name for test in result.failed)
            if result.passes != planted.holds:
                print(f"seed {seed}, {planted.trap}\n{result}\n")
    print("| model | claim | it is | right | tests that it fails |\n|---|---|---|---|---|")
    for trap, (model, true) in holds.items():
        said = "; ".join(f"{name} ({times})" for name, times in failed[trap].most_common(3))
        more = f"; {len(failed[trap]) - 3} more" if len(failed[trap]) > 3 else ""
        print(f"| {model} | {trap} | {str(true).lower()} | {right[trap]}/{arguments.seeds} | {said or '-'}{more} |")
    for true in (True, False):
        print(f"{str(true).lower()} claims:", ", ".join(f"{v} {n}" for (t, v), n in verdicts.items() if t == true))
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()

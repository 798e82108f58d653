"""How exact is Keyhole on each family? The table of docs/models.md, measured.

    python benchmarks/families.py [.cache/smollm2.gguf]

Tiny random models with sharpened attention, 20 tokens (longer than their windows), float32; then the organism and,
if given, a model file, each on a real prompt and on random tokens, whichever is worse. Errors are relative to the
largest value of the head (scores) or token.
"""

import sys
from pathlib import Path

import transformers

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import keyhole
from keyhole.tracing.exactness import Check, check_run, random_ids
from tiny import VARIANTS, tiny

PROMPT = "When Mary and John went to the store, John gave a drink to"


def row(name: str, *checks: Check) -> str:
    worst = [max(getattr(check, kind) for check in checks) for kind in ("scores", "residuals", "logits")]
    return f"| {name} | {' | '.join(f'{error:.0e}' for error in worst)} |"


def main() -> None:
    transformers.utils.logging.disable_progress_bar()
    print("| model | scores from channels | residual streams from writers | logits from writers |")
    print("|---|---|---|---|")
    for variant in VARIANTS:
        try:
            model = keyhole.load((tiny(variant), None))
        except keyhole.KeyholeError as error:
            print(f"| {variant} | refused: {str(error).partition(': ')[2].partition('. Supported')[0]} | | |")
            continue
        print(row(variant, check_run(model.run(random_ids(model, 20)))))
    for name, source in [("the organism", None), *(("SmolLM2-135M-Instruct", path) for path in sys.argv[1:])]:
        model = keyhole.load(source)
        print(row(name, keyhole.check(model, PROMPT), keyhole.check(model)))


if __name__ == "__main__":
    main()

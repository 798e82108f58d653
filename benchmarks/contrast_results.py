"""Which heads use order, lexical and category features, and does attention follow them? The table of docs/contrast.md.

    python benchmarks/contrast_results.py [.cache/smollm2.gguf] [--prompts 400] [--tests 200] [--answers 24]

Without a model file, the organism: it reads nine boxes and two items of each category, a model file five boxes in the
instruct wording and five items. Everything is studied centred, the default, and uncentred, as in the paper.
"""

import argparse

import keyhole
from keyhole.brief import head_name
from keyhole.features.contrast.boxes import boxes_test, lexical_contrast, order_contrast
from keyhole.features.contrast.collect import collect
from keyhole.features.contrast.lists import lists_contrast, lists_test
from keyhole.features.contrast.report import normalised, ranks_of
from keyhole.features.contrast.studies import Selection, Study, StudySettings, study

COLUMNS = (
    "| model, task | head | feature | ranks | mean shift | gap | share of gap | p | moved | random | full | "
    "normalised | answer |"
)


def rows(name: str, result: Study, most: int = 4) -> list[str]:
    made = []
    answers = result.answers.heads if result.answers is not None else {}
    together = {effect.name: effect for effect in answers.get("all", next(iter(answers.values()), ()))}
    for head in result.selected[:most]:
        for effect in result.swaps[head][1:-1]:
            told = ["", "", "", "", ""]
            if effect.name in result.features:
                features = result.features[effect.name]
                score = next(s for s in result.ranking[effect.name] if s.head == head)
                shift = float(features.mean_shift[features.at(head)])
                ranks = "/".join(ranks_of(result, effect.name, head))
                told = [ranks, f"{shift:.2f}", f"{score.gap:.2f}", f"{score.share:.2f}", f"{score.p_corrected:.3f}"]
            cells = [name, head_name(head), effect.name, *told]
            cells += [f"{effect.shift:.3f}", f"{effect.random:.3f}", f"{effect.full:.3f}", normalised(effect)]
            made.append("| " + " | ".join([*cells, normalised(together[effect.name]) if together else "-"]) + " |")
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=int, default=400)
    parser.add_argument("--tests", type=int, default=200)
    parser.add_argument("--answers", type=int, default=24)
    arguments = parser.parse_args()
    n, tests = arguments.prompts, arguments.tests
    print(COLUMNS)
    print("|---" * 13 + "|")
    source = arguments.model
    model = keyhole.load(source)
    name = "organism" if source is None else "SmolLM2" if "smollm2" in source else source
    boxes = {"n_boxes": 9} if source is None else {"n_boxes": 5, "wording": "instruct"}
    items = {"per_category": 2 if source is None else 5}
    lists = {"category": lists_contrast(model, n, **items)}, lists_test(model, tests, **items)
    found = {"order": order_contrast(model, n, **boxes), "lexical": lexical_contrast(model, n, **boxes)}
    asked = {
        "lists": (*lists, Selection("ratio", 0.1, top=3)),
        "boxes": (found, boxes_test(model, tests, **boxes), Selection()),
    }
    for task, (fits, test, select) in asked.items():
        seen = {feature: collect(model, contrast) for feature, contrast in fits.items()}
        judge = collect(model, test)
        for centre in ("each", "none"):
            settings = StudySettings(select=select, centre=centre, answers=arguments.answers)
            result = study(model, seen, judge, settings=settings)
            how = "" if centre == "each" else ", uncentred"
            print("\n".join(rows(f"{name}, {task}{how}", result)), flush=True)


if __name__ == "__main__":
    main()

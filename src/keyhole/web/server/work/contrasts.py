"""Which heads tell a built-in contrast's keys apart? A study, with the places of queries and keys for pictures."""

from typing import Any, get_args

from keyhole.contrast import Selection, Study, StudySettings, report, study
from keyhole.contrast.recipes.built_in import BoxFeature, BuiltIn, built_in
from keyhole.errors import KeyholeError
from keyhole.figures.contrast.embedding import joint_pca
from keyhole.figures.contrast.study import coordinates
from keyhole.models.heads import head_name
from keyhole.models.organism import NAME as ORGANISM
from keyhole.web.server.bodies import Body
from keyhole.web.server.jobs import Told
from keyhole.web.server.kept import Kept

HEADS = 6  # whose queries and keys are placed
POINTS = 1000


def contrast(kept: Kept, body: Body, told: Told) -> dict[str, Any]:
    """The library's record of the study, and the first components of queries and keys of the selected heads."""
    model = kept.model(body.text("model", ORGANISM), told)
    what, feature = body.choice("what", get_args(BuiltIn)), body.choice("feature", get_args(BoxFeature), "both")
    sizes = (body.integer("prompts", 60, least=1, most=2000), body.integer("tests", 30, least=8, most=2000))
    answers, draws = body.integer("answers", 8, least=0, most=200), body.integer("draws", 10, least=1, most=100)
    permutations, seed = body.integer("permutations", 99, least=19, most=999), body.seed()
    boxes, wording = body.integer("boxes", 9, least=2, most=20), body.choice("wording", ("plain", "instruct"), "plain")
    chat = body.flag("chat", False)
    body.done()
    told.check()
    how: dict[str, Any] = {"wording": wording, "chat": chat} | ({"n_boxes": boxes} if what == "boxes" else {})
    fits, test = built_in(model, what, sizes, feature=feature, seed=seed, how=how)
    select = Selection("ratio", 0.1, top=3) if what == "lists" else Selection("accuracy", 0.3)
    settings = StudySettings(select, permutations=permutations, draws=draws, answers=answers, seed=seed)
    found = study(model, fits, test, settings=settings, stage=told.stage)
    told.check()
    return {**report.record(found), "summary": report.summary(found), "clouds": _clouds(found)}


def _clouds(found: Study) -> dict[str, Any]:
    """Queries and keys of each selected head in their joint principal components, with labels; some may have none."""
    clouds: dict[str, Any] = {}
    for head in found.selected[:HEADS]:
        for name, features in found.features.items():
            try:
                q, keys, labels = coordinates(found, name, head, max(3, features.rank(head, found.settings.rank)))
                pca = joint_pca(q, keys)
            except KeyholeError as error:
                clouds.setdefault(head_name(head), {})[name] = {"error": str(error)}
                continue
            own = {"shares": pca.shares, "queries": pca.queries[:POINTS], "keys": pca.keys[:POINTS]}
            clouds.setdefault(head_name(head), {})[name] = {**own, "labels": labels[:POINTS]}
    return clouds

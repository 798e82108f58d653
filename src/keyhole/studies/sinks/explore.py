"""Which few signals drive firings on the first token, and which heads share them?

explain   one firing of every head on the first token in every prompt: its dest and src signals in residual space
compare   control signals (means of heads whose signals are alike) across layers, beside other channels of the same
          heads and beside their firings on other tokens; again without mean and largest variance of the streams
remove    the few directions that control signals share most, in prompts that they were not found in
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from keyhole.circuits.records import SideName
from keyhole.errors import KeyholeError
from keyhole.intervene.cuts import metric_of
from keyhole.models.load import Source
from keyhole.models.model import Model
from keyhole.progress import Stage, quiet
from keyhole.qk.firings import check_tau
from keyhole.store.manifest import some_prompts
from keyhole.store.model import model_of
from keyhole.store.store import Store, open_store
from keyhole.studies.directions.alike import ALIKE, TAKEN, clusters, cosines, directions, likeness, shuffled, spread
from keyhole.studies.directions.heard import Heard, author_name
from keyhole.studies.sinks.firings import Listened, StoredQuestion, layers_of, listen
from keyhole.studies.sinks.record import NoSinksError, Others, SinkHead, Sinks, SinkSide, along, massive
from keyhole.studies.sinks.trials import Trial, removals
from keyhole.tracing.firing import Tau

CONTROLLED = 0.5  # mean cosine distance, below which a head's signals are alike
_LEAST = 4  # firings of a head, without which it is left out
_WRITERS = 3  # that are named
_HELD_OUT = 3  # one prompt in three
RANKS = (1, 4, 16)


@dataclass(frozen=True)
class SinkSettings:
    """What can be chosen about a study of sinks."""

    tau: Tau = "dynamic"
    draws: int = 99  # of shuffled heads and resampled prompts
    controls: int = 9  # other subspaces that are removed, of each kind
    seed: int = 0

    def __post_init__(self) -> None:
        if not callable(self.tau) and self.tau != "dynamic":
            check_tau(self.tau)

    def record(self) -> dict[str, Any]:
        """As a study keeps them."""
        plain: Any = "function" if callable(self.tau) else self.tau
        return {"tau": plain, "draws": self.draws, "controls": self.controls, "seed": self.seed}


def sinks(
    store: Store | Path | str,
    model: Model | Source | None = None,
    *,
    prompts: int = 24,
    tau: Tau = "dynamic",
    draws: int = 99,
    controls: int = 9,
    seed: int = 0,
    stage: Stage = quiet,
) -> Sinks:
    """Study firings on the first token in so many of a store's prompts, run anew; one in three is held out.

    `draws`: of shuffled heads and resampled prompts; `controls`: other subspaces that are removed, of each kind.
    """
    if prompts < 2 * _HELD_OUT:
        raise KeyholeError(
            f"{prompts} prompts are too few: one in {_HELD_OUT} is held out. Give {2 * _HELD_OUT} or more."
        )
    store = store if isinstance(store, Store) else open_store(store)
    own = model_of(store, model)
    asked = prompts_of(store, prompts)
    return study(own, asked, SinkSettings(tau, draws, controls, seed), stage=stage)


def prompts_of(store: Store, prompts: int) -> list[StoredQuestion]:
    """So many prompts with circuits, evenly over a store's templates."""
    chosen = some_prompts(store, prompts)
    if len(chosen) < 2 * _HELD_OUT:
        raise KeyholeError(f"{store.path} has {len(chosen)} circuits, and a study needs {2 * _HELD_OUT} or more.")
    circuits = dict(store.circuits({"prompt": chosen}))
    # in the order of templates, since one in three is held out
    return [StoredQuestion(i, circuits[i].token_ids, metric_of(circuits[i])) for i in chosen]


def study(
    model: Model, asked: Sequence[StoredQuestion], settings: SinkSettings | None = None, *, stage: Stage = quiet
) -> Sinks:
    """The same of any prompts of a model."""
    settings = settings or SinkSettings()
    tau, controls, seed = settings.tau, settings.controls, settings.seed
    layers_of(model)
    if len(asked) < _HELD_OUT:
        raise KeyholeError(f"{len(asked)} prompts are too few: one in {_HELD_OUT} is held out for removals.")
    test, fit = asked[_HELD_OUT - 1 :: _HELD_OUT], [one for i, one in enumerate(asked) if (i + 1) % _HELD_OUT]
    with stage("Explaining firings") as progress:
        heard = listen(model, fit, tau, seed=seed, progress=progress)
    if not heard.rest:
        raise NoSinksError(
            f"no head of {model.name} above its first layer fires on the first token in these prompts: there are no "
            "sinks to explain."
        )
    own = {side: _controlled(heard, side) for side in get_args(SideName)}
    with stage("Removing what they share") as progress:
        trial = Trial(model, test, heard.ambient, tau=tau, ranks=RANKS, controls=controls, seed=seed)
        done = removals(trial, own, progress)
    big = massive(model.run_many([list(one.token_ids) for one in test], bos=False))
    with stage("Comparing heads") as progress:
        sides = []
        for number, side in enumerate(get_args(SideName)):
            made = _side(heard, side, own[side], draws=settings.draws, seed=seed)
            sides.append(replace(made, removals=done.of[side], along=along(directions(own[side]), big)))
            progress(number + 1, 2)
    return Sinks(
        model=model.name,
        prompts=len(fit),
        held_out=len(test),
        share=heard.firings / heard.sites,
        before=done.before,
        answer=done.answer,
        layer=done.layer,
        sides=(sides[0], sides[1]),
        massive=big,
        settings=settings.record(),
    )


def _controlled(heard: Listened, side: SideName) -> list[Heard]:
    """Heads with enough firings whose signals are alike."""
    return [one for one in heard.rest if one.side == side and len(one) >= _LEAST and spread(one) < CONTROLLED]


def _side(heard: Listened, side: SideName, own: Sequence[Heard], *, draws: int, seed: int) -> SinkSide:
    vectors, heads = directions(own), [one.place for one in own]
    labels = dict(zip(heads, clusters(vectors).tolist(), strict=True)) if own else {}
    every = [one for one in heard.rest if one.side == side]
    told = tuple(_head(one, labels.get(one.place)) for one in every)
    empty = np.zeros((len(own), len(own)))
    if len({layer for layer, _ in heads}) < 2:
        return SinkSide(side, told, empty, empty, (), (), (), 0.0)
    found, others = [], []
    there = {one.place: one for one in heard.other if one.side == side and len(one) >= _LEAST}
    same = [there[head] for head in heads if head in there]
    ambient = heard.ambient
    for top in TAKEN:
        taken = ambient.taken(top)
        found.append(likeness(own, taken, top=top, draws=draws, seed=seed))
        others.append(_others(same, taken, top))
    control = shuffled(own, None, 1, torch.Generator().manual_seed(seed))[0].double()
    tables = ((vectors @ vectors.T).numpy(), (control @ control.T).numpy())
    return SinkSide(side, told, *tables, tuple(found), tuple(others), (), 0.0)


def _others(same: Sequence[Heard], taken: dict[int, Tensor], top: int | None) -> Others:
    heads = [one.place for one in same]
    if len({layer for layer, _ in heads}) < 2:
        return Others(top, len(same), float("nan"), float("nan"))
    found = cosines(directions(same, taken), heads)
    return Others(top, len(same), float((found > ALIKE).double().mean()), float(found.mean()))


def _head(heard: Heard, cluster: int | None) -> SinkHead:
    writers = tuple((author_name(author), share) for author, share in list(heard.authors.items())[:_WRITERS])
    channels = float(heard.chosen.sum(1).double().mean())
    far = spread(heard)
    return SinkHead(heard.layer, heard.head, len(heard), far, cluster is not None, cluster, channels, writers)

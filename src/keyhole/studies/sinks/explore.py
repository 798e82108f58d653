"""Which few signals drive firings on the first token, and which heads share them?

explain   one firing of every head on the first token in every prompt: its dest and src signals in residual space
compare   control signals (the mean signal of each head whose signals are alike) across layers. They are held against
          other channels of the same heads, and against firings of these heads on other tokens; and again without the
          mean and the largest variance of the streams
remove    the few directions that control signals share most, in prompts that were held out
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack, get_args

import numpy as np
import torch
from torch import Tensor

from keyhole.circuits.records import SideName
from keyhole.errors import KeyholeError
from keyhole.intervene.cuts import metric_of
from keyhole.models.load import Source
from keyhole.models.model import Model
from keyhole.progress import Stage, quiet
from keyhole.settings.fields import chosen
from keyhole.store.manifest import some_prompts
from keyhole.store.model import model_of
from keyhole.store.store import Store, open_store
from keyhole.studies.directions.alike import ALIKE, TAKEN, clusters, cosines, directions, likeness, shuffled, spread
from keyhole.studies.directions.heard import Heard, author_name
from keyhole.studies.settings import SinkOptions, SinkSettings
from keyhole.studies.sinks.firings import Listened, StoredQuestion, layers_of, listen
from keyhole.studies.sinks.record import NoSinksError, Others, SinkHead, Sinks, SinkSide, along, massive
from keyhole.studies.sinks.trials import Trial, removals

CONTROLLED = 0.5  # mean cosine distance below which a head's signals are alike
_LEAST = 4  # firings; heads with fewer are left out
_WRITERS = 3  # that are named for each head
_HELD_OUT = 3  # one prompt in three
RANKS = (1, 4, 16)


def sinks(
    store: Store | Path | str,
    model: Model | Source | None = None,
    *,
    settings: SinkSettings | None = None,
    stage: Stage = quiet,
    **options: Unpack[SinkOptions],
) -> Sinks:
    """Which few signals drive firings on the first token, and which heads share them?

    Some of the store's prompts are run again; one in three is held out, and removals are tried on these.

    Args:
        store: Of at least six circuits, or its folder.
        model: The model that made the store. Default: it is loaded from where it was.
        settings: How firings are studied: a `keyhole.studies.settings.SinkSettings`, whose fields are the choices
            below.
        stage: Opens a part of the work by its name, and gives what its progress is reported to.
        **options: Choices by name; with a record they change it:
            - `prompts`: How many of the store's prompts are run.
            - `tau`: The attention weight from which a head fires.
            - `draws`: How many draws of shuffled heads and of resampled prompts.
            - `controls`: How many other subspaces of each kind are removed as controls.
            - `seed`: Seed of everything that is drawn at random.

    Returns:
        The heads on both sides of their scores, how alike their signals are, and what removals do.

    >>> import keyhole, tempfile
    >>> model = keyhole.load()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     store = keyhole.bulk("ioi", model, n=6, out=f"{folder}/ioi.store")
    ...     result = keyhole.sinks(store, model, prompts=6, draws=19, controls=1)
    >>> [side.side for side in result.sides], result.held_out
    (['dest', 'src'], 2)
    """
    settings = chosen(settings, SinkSettings, options)
    store = store if isinstance(store, Store) else open_store(store)
    loaded = model_of(store, model)
    return study(loaded, prompts_of(store, settings.prompts), settings, stage=stage)


def prompts_of(store: Store, prompts: int) -> list[StoredQuestion]:
    """So many prompts with circuits, evenly over a store's templates."""
    chosen = some_prompts(store, prompts)
    if len(chosen) < 2 * _HELD_OUT:
        raise KeyholeError(f"{store.path} has {len(chosen)} circuits, and a study needs {2 * _HELD_OUT} or more.")
    circuits = dict(store.circuits({"prompt": chosen}))
    # in the order of templates, since one in three is held out
    return [StoredQuestion(i, circuits[i].token_ids, metric_of(circuits[i])) for i in chosen]


def study(
    model: Model, questions: Sequence[StoredQuestion], settings: SinkSettings | None = None, *, stage: Stage = quiet
) -> Sinks:
    """The same study, for prompts at hand.

    Args:
        model: Of at least two attention layers.
        questions: The prompts, each with the metric of its answer; one in three is held out.
        settings: How firings are studied.
        stage: Opens a part of the work by its name, and gives what its progress is reported to.

    Returns:
        As `sinks`.

    >>> import keyhole
    >>> from keyhole.intervene.removal import Metric
    >>> from keyhole.studies.sinks.firings import StoredQuestion
    >>> model = keyhole.load()
    >>> runs = model.run_many([f"{name} gave the book to" for name in ("Mary", "John", "Paul")])
    >>> questions = [StoredQuestion(i, run.token_ids, Metric(len(run) - 1, (0,))) for i, run in enumerate(runs)]
    >>> study(model, questions, SinkSettings(draws=19, controls=1)).prompts
    2
    """
    settings = settings or SinkSettings()
    tau, controls, seed = settings.tau, settings.controls, settings.seed
    layers_of(model)
    if len(questions) < _HELD_OUT:
        raise KeyholeError(f"{len(questions)} prompts are too few: one in {_HELD_OUT} is held out for removals.")
    test = questions[_HELD_OUT - 1 :: _HELD_OUT]
    fit = [question for i, question in enumerate(questions) if (i + 1) % _HELD_OUT]
    with stage("Explaining firings") as progress:
        heard = listen(model, fit, tau, seed=seed, progress=progress)
    if not heard.rest:
        raise NoSinksError(
            f"no head of {model.name} above its first layer fires on the first token in these prompts: there are no "
            "sinks to explain."
        )
    controlled = {side: _controlled(heard, side) for side in get_args(SideName)}
    with stage("Removing what they share") as progress:
        trial = Trial(model, test, heard.ambient, tau=tau, ranks=RANKS, controls=controls, seed=seed)
        done = removals(trial, controlled, progress)
    big = massive(model.run_many([list(question.token_ids) for question in test], bos=False))
    with stage("Comparing heads") as progress:
        sides = []
        for number, side in enumerate(get_args(SideName)):
            result = _side(heard, side, controlled[side], draws=settings.draws, seed=seed)
            sides.append(replace(result, removals=done.of[side], along=along(directions(controlled[side]), big)))
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
    of_side = (signals for signals in heard.rest if signals.side == side)
    return [signals for signals in of_side if len(signals) >= _LEAST and spread(signals) < CONTROLLED]


def _side(heard: Listened, side: SideName, controlled: Sequence[Heard], *, draws: int, seed: int) -> SinkSide:
    vectors, heads = directions(controlled), [signals.place for signals in controlled]
    labels = dict(zip(heads, clusters(vectors).tolist(), strict=True)) if controlled else {}
    sink_heads = tuple(_head(signals, labels.get(signals.place)) for signals in heard.rest if signals.side == side)
    empty = np.zeros((len(controlled), len(controlled)))
    if len({layer for layer, _ in heads}) < 2:
        return SinkSide(side, sink_heads, empty, empty, (), (), (), 0.0)
    likenesses, others = [], []
    elsewhere = {signals.place: signals for signals in heard.other if signals.side == side and len(signals) >= _LEAST}
    same = [elsewhere[head] for head in heads if head in elsewhere]
    ambient = heard.ambient
    for top in TAKEN:
        taken = ambient.taken(top)
        likenesses.append(likeness(controlled, taken, top=top, draws=draws, seed=seed))
        others.append(_others(same, taken, top))
    control = shuffled(controlled, None, 1, torch.Generator().manual_seed(seed))[0].double()
    tables = ((vectors @ vectors.T).numpy(), (control @ control.T).numpy())
    return SinkSide(side, sink_heads, *tables, tuple(likenesses), tuple(others), (), 0.0)


def _others(same: Sequence[Heard], taken: dict[int, Tensor], top: int | None) -> Others:
    heads = [signals.place for signals in same]
    if len({layer for layer, _ in heads}) < 2:
        return Others(top, len(same), float("nan"), float("nan"))
    values = cosines(directions(same, taken), heads)
    return Others(top, len(same), float((values > ALIKE).double().mean()), float(values.mean()))


def _head(heard: Heard, cluster: int | None) -> SinkHead:
    writers = tuple((author_name(author), share) for author, share in list(heard.authors.items())[:_WRITERS])
    channels = float(heard.chosen.sum(1).double().mean())
    far = spread(heard)
    return SinkHead(heard.layer, heard.head, len(heard), far, cluster is not None, cluster, channels, writers)

"""How much of a circuit stays when the question is asked a little differently? Jaccard of what two circuits have.

Each prompt's circuit is compared with the circuit of the same prompt after one change (`variations.py`), beside floors:
two prompts that share a label, two unrelated prompts, and, if another store is given, two tasks. What counts are heads,
edges, edges with their channels, all without tokens (or with the roles of these), and heads by their influence.
"""

import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keyhole.brief import model_label
from keyhole.errors import KeyholeError
from keyhole.models.numbers.stamps import require_same_weights
from keyhole.progress import Progress, silent
from keyhole.stable.again import Refused, retrace
from keyhole.stable.floors import Pairs, asked_of, floors
from keyhole.stable.stays import Asked, Stability, Stays, in_common
from keyhole.stable.variations import Variation, options_of, rounded, usual
from keyhole.store.chosen import some_prompts
from keyhole.store.model import model_of
from keyhole.tracing.trace import ManyOptions

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.store.store import Store

_FEWEST = 2


def stability(
    store: "Store",
    model: "Model | None" = None,
    *,
    prompts: int = 32,
    roles: bool = False,
    other: "Store | None" = None,
    variations: Sequence[Variation] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Stability:
    """How much of a store's circuits stays under changes of precision, tau, wording and names?

    With `roles`, terms are told apart by the roles of their tokens. `other`: a store of another task of the same model,
    for a floor. `variations` instead of the usual ones. `progress` is told prompts traced.
    """
    if store.manifest.method != "accpp":
        raise KeyholeError(
            f"{store.path} was traced with {store.manifest.method}, and prompts are traced again with accpp: give a "
            "store of accpp."
        )
    numbers = some_prompts(store, prompts)
    if len(numbers) < _FEWEST:
        raise KeyholeError(f"{store.path} has {len(numbers)} circuits: {_FEWEST} are needed to compare any.")
    asked = asked_of(store, numbers)
    model = model_of(store, model)
    if other is not None:
        require_same_weights(
            other.manifest.model["fingerprint"],
            store.manifest.model["fingerprint"],
            f"{other.path} is of another model than {store.path}: circuits of two models share no heads.",
        )
    rng, options = random.Random(seed), options_of(store)
    changes = (
        usual(model, [example for example, _ in asked.values()], seed=seed) if variations is None else list(variations)
    )
    told, total, rows, left_out = progress or silent, len(changes), [], dict[str, str]()
    for done, change in enumerate(changes):
        told(done * len(asked), total * len(asked))
        kept, refused = varied(model, list(asked.values()), change, options, bos=store.manifest.settings.get("bos"))
        if kept:
            rows.append(Stays(change.name, False, in_common(kept, roles=roles), refused))
        else:
            left_out[change.name] = max(refused, key=lambda why: refused[why])
    told(total * len(asked), total * len(asked))
    if not any(change.example for change in changes):
        left_out["another wording or name"] = "only Keyhole's own ioi prompts can be said again with other words"
    beside, missing = floors(store, asked, other, rng)
    rows += [Stays(name, True, in_common(pairs, roles=roles), {}) for name, pairs in beside.items()]
    name = str(store.manifest.task.get("name"))
    return Stability(model_label(model.name), name, len(asked), roles, tuple(rows), left_out | missing)


def varied(
    model: "Model", asked: Sequence[Asked], change: Variation, options: ManyOptions, *, bos: bool | None = None
) -> tuple[Pairs, dict[str, int]]:
    """Each circuit with that of the changed question; and how many there are not, by reason."""
    changed = [(one, one[0] if change.example is None else change.example(one[0])) for one in asked]
    fits = [(one, example) for one, example in changed if example is not None]
    refused = Counter({"it does not fit": len(changed) - len(fits)} if len(fits) < len(changed) else {})
    told = options if change.options is None else change.options(options)
    if change.dtype is not None:
        model = rounded(model, change.dtype, weights_only=change.weights_only)
    kept: Pairs = []
    found = retrace(model, [example for _, example in fits], told, bos=bos)
    for (one, example), circuit in zip(fits, found, strict=True):
        if isinstance(circuit, Refused):
            refused[circuit.reason] += 1
        else:
            kept.append((one, (example, circuit)))
    return kept, dict(refused)

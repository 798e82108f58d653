"""What has a circuit in common with another? Each as a set of heads, of edges, or of edges with their channels.

As in the papers, tokens are left out, and embeddings, biases and offsets do not count. Unlike there, the side of an
edge may tell two apart, and so may the roles of the tokens it stands at: both are asked for. A weighted set has the
influence that passes through each of its terms; an edge hands an equal share to each of its channels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from keyhole.brief import brief
from keyhole.circuits.circuit import Circuit
from keyhole.errors import KeyholeError, require_choice
from keyhole.family.columns import Block, Granularity, circuit_blocks, store_blocks
from keyhole.family.roles import role_codes, stored_prompts
from keyhole.family.terms import Met, Rows, Term
from keyhole.store.chosen import traced_prompts
from keyhole.store.reading import Where
from keyhole.tasks.example import Example

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from keyhole.store.store import Store


@dataclass(frozen=True, repr=False)
class Sets:
    """Circuits as sets: row i is the circuit of prompt `prompts[i]`, column j says how much it has of `terms[j]`."""

    granularity: Granularity
    prompts: Int[np.ndarray, "circuits"]
    terms: tuple[Term, ...]
    matrix: "csr_array"  # 1 where a circuit has a term; or the term's influence

    __repr__ = brief

    def __len__(self) -> int:
        return len(self.prompts)


def store_sets(
    store: "Store",
    granularity: Granularity,
    *,
    side: bool = True,
    role: bool = False,
    weighted: bool = False,
    where: Where = None,
    prompts: Sequence[int] | None = None,
) -> Sets:
    """The circuits of a store as sets: those that `where` (of the table `prompts`) asks for, or of these prompts."""
    require_choice("granularity", granularity, Granularity)
    asked = _asked(store, where, prompts)
    roles = role_codes(stored_prompts(store, asked)) if role else None
    return _sets(store_blocks(store, granularity, asked), granularity, Rows(asked, roles), side=side, weighted=weighted)


def circuit_sets(
    circuits: Sequence[Circuit],
    granularity: Granularity,
    *,
    side: bool = True,
    role: bool = False,
    weighted: bool = False,
    prompts: Sequence[int] | None = None,
    examples: Sequence[Example] | None = None,
) -> Sets:
    """The same of these circuits, numbered by `prompts` or from 0; roles are those of the `examples`."""
    require_choice("granularity", granularity, Granularity)
    numbers = np.array(range(len(circuits)) if prompts is None else prompts, np.int64)
    if len(numbers) != len(circuits) or len(set(numbers.tolist())) != len(circuits):
        raise KeyholeError(f"{len(circuits)} circuits need as many different numbers, not {len(numbers)}.")
    if role and (examples is None or len(examples) != len(circuits)):
        raise KeyholeError("roles of tokens are those of the circuits' examples: give one for each circuit.")
    tokens = [circuit.tokens for circuit in circuits]
    roles = role_codes(zip(examples, tokens, strict=True)) if role and examples is not None else None
    blocks = circuit_blocks(zip(numbers.tolist(), circuits, strict=True), granularity)
    return _sets(blocks, granularity, Rows(numbers, roles), side=side, weighted=weighted)


def _asked(store: "Store", where: Where, prompts: Sequence[int] | None) -> Int[np.ndarray, "circuits"]:
    traced = traced_prompts(store, where)
    if prompts is None:
        return traced
    asked = np.unique(np.array(prompts, np.int64))
    missing = np.setdiff1d(asked, traced)
    if len(missing):
        raise KeyholeError(f"prompt {missing[0]} has no circuit here, or is not among those that `where` asks for.")
    return asked


def _sets(blocks: Iterable[Block], granularity: Granularity, rows: Rows, *, side: bool, weighted: bool) -> Sets:
    from scipy.sparse import coo_array

    met = Met(side)
    found = [met.read(block, rows, weighted=weighted) for block in blocks]
    circuit, term, value = (np.concatenate([one[i] for one in found]) for i in range(3))
    terms, order = met.in_order(() if rows.roles is None else rows.roles.texts)
    matrix = coo_array((value, (circuit, order[term])), shape=(len(rows.prompts), len(terms))).tocsr()
    matrix.sum_duplicates()
    if not weighted:
        matrix.data[:] = 1
    matrix.eliminate_zeros()
    return Sets(granularity, rows.prompts, terms, matrix)

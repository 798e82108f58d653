"""How does a pass go on where it was stopped? Its state in one file, written now and then, and read strictly."""

import io
import json
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keyhole.errors import KeyholeError
from keyhole.files import write_at_once
from keyhole.models.model import Model
from keyhole.naming.gathering.draws import salt
from keyhole.naming.gathering.state import Amounts, State, told
from keyhole.naming.reading.corpus import Ids
from keyhole.naming.subject import Subject

NAME = "examples.npz"
_SCHEMA = 1


def about(model: Model, subjects: Sequence[Subject], amounts: Amounts, *, length: int, seed: int) -> dict[str, Any]:
    """What a pass is of; two that differ in anything here have nothing to do with one another."""
    directions = [(one.id, one.head, one.query.tolist(), one.key.tolist()) for one in subjects]
    offsets = [(one.query_offset, one.key_offset) for one in subjects]
    return {
        "schema": _SCHEMA,
        "model": f"{model.name} {model.fingerprint()[:16]}",
        "subjects": f"{len(subjects)} ({int(salt(directions, offsets)):016x})",
        **{name: getattr(amounts, name) for name in ("top", "per_decile", "random", "hard")},
        "length": length,
        "seed": seed,
    }


def save(state: State, what: dict[str, Any], folder: Path) -> None:
    """Write everything, at once."""
    state.let_go()
    arrays = {"positives": state.positives, "pairs": state.pairs}
    for name, table in state.tables.items():
        arrays |= {f"{name}.key": table.key, **{f"{name}.{column}": x for column, x in table.columns.items()}}
    chunks = sorted(state.texts)
    arrays["texts"] = np.array([i for chunk in chunks for i in state.texts[chunk]], np.int64)
    arrays["text_lengths"] = np.array([len(state.texts[chunk]) for chunk in chunks], np.int64)
    arrays["text_numbers"] = np.array(chunks, np.int64)
    arrays["pool"] = np.array(state.pool, np.int64).reshape(-1, 2)
    far = {"chunks": state.chunks, "tokens": state.tokens, "corpus": state.corpus}
    arrays["about"] = np.frombuffer(json.dumps({"what": what, "far": far}).encode(), np.uint8)
    out = io.BytesIO()
    np.savez(out, **arrays)  # type: ignore[arg-type]
    write_at_once(folder / NAME, out.getvalue())


def restore(state: State, what: dict[str, Any], folder: Path) -> bool:
    """Fill an empty state from a folder, if there is one; that of something else is refused, each difference named."""
    path = folder / NAME
    if not path.exists():
        return False
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        record = json.loads(arrays["about"].tobytes())
        there, far = record["what"], record["far"]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise KeyholeError(
            f"{path} is damaged and cannot be gone on with ({error}): delete it, or give another folder."
        ) from error
    differ = [
        f"{name} was {there.get(name)!r}, now {what.get(name)!r}" for name in what if there.get(name) != what[name]
    ]
    if differ:
        raise KeyholeError(f"{folder} has examples of something else: {'; '.join(differ)}. Give another folder.")
    _fill(state, arrays, path)
    state.chunks, state.tokens, state.corpus = int(far["chunks"]), int(far["tokens"]), str(far["corpus"])
    return True


def _fill(state: State, arrays: dict[str, np.ndarray], path: Path) -> None:
    empty = {"positives": state.positives, "pairs": state.pairs}
    for name, table in state.tables.items():
        empty |= {f"{name}.key": table.key, **{f"{name}.{column}": x for column, x in table.columns.items()}}
    for name, x in empty.items():
        if name not in arrays or arrays[name].shape != x.shape or arrays[name].dtype != x.dtype:
            raise KeyholeError(
                f"{path} is damaged: {name} is not as it was written. Delete it, or give another folder."
            )
        x[...] = arrays[name]
    ends = np.cumsum(arrays["text_lengths"])
    texts = np.split(arrays["texts"], ends[:-1]) if len(ends) else []
    state.texts = {int(n): tuple(ids.tolist()) for n, ids in zip(arrays["text_numbers"], texts, strict=True)}
    state.pool = [(int(key), int(chunk)) for key, chunk in arrays["pool"]]


def skipped(chunks: Iterator[Ids], state: State, folder: Path) -> Iterator[Ids]:
    """The chunks that were not read yet, once those that were turn out to be the same."""
    so_far = ""
    for number in range(state.chunks):
        ids = next(chunks, None)
        if ids is None:
            raise KeyholeError(
                f"{folder} has examples of another corpus: it had {state.chunks} chunks so far, this one has {number}. "
                "Give another folder."
            )
        so_far = told(so_far, [ids])
    if so_far != state.corpus:
        raise KeyholeError(
            f"{folder} has examples of another corpus: its first {state.chunks} chunks are not those of this one. Give "
            "another folder."
        )
    return chunks

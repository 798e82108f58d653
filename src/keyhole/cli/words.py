"""The command that tells which words a model knows."""

from dataclasses import asdict
from typing import Annotated

import typer

from keyhole import show
from keyhole.cli.options import JsonOption, ModelOption, RevisionOption, load_model


def words(
    pattern: Annotated[str | None, typer.Argument(help="Part of a word, or a pattern such as 'Mar*'.")] = None,
    model: ModelOption = None,
    top: Annotated[int, typer.Option(min=1, help="How many tokens to show.")] = 40,
    revision: RevisionOption = None,
    json: JsonOption = False,
) -> None:
    """Which words does a model know as one token?

    Without a pattern: the words that the built-in tasks are made of, by kind, and all others of a small vocabulary
    such as the organism's.

    Examples:

        keyhole words

        keyhole words box

        keyhole words 'Mar*' --model SmolLM2.gguf
    """
    from keyhole.models.tokens.vocabulary import tokens_like
    from keyhole.tasks.text.known_words import words_by_kind

    loaded = load_model(model, revision, "float32", None)
    if pattern is None:
        kinds = words_by_kind(loaded)
        if json:
            show.as_json({"model": loaded.name, "words": kinds})
        else:
            rows = [(kind, " ".join(known)) for kind, known in kinds.items()]
            show.table(("kind", "words"), rows, otherwise=80)
        return
    found = tokens_like(loaded, pattern)
    if json:
        show.as_json({"model": loaded.name, "tokens": [asdict(token) for token in found]})
        return
    show.table((">id", "token"), [(str(token.id), repr(token.text)) for token in found[:top]])
    show.plain(f"{min(top, len(found))} of {len(found)} tokens shown")

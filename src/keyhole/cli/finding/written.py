"""What --features means: a file of directions that `keyhole name` and `keyhole where` read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keyhole import show
from keyhole.cli.choices import Frame
from keyhole.files import require_file
from keyhole.models.heads import Head

if TYPE_CHECKING:
    from keyhole.models.model import Model
    from keyhole.naming.what import FeaturesFound

FeaturesOption = Annotated[
    Path | None, typer.Option(help="Write the features (.json), for `keyhole name` and `keyhole where`.")
]


def check_features(path: Path | None) -> None:
    """Refuse at once a place where nothing can be written."""
    if path is not None:
        require_file(path, (".json",))


def require_directions(model: Model, head: Head, frame: Frame) -> None:
    """Refuse a frame whose features turn with positions, before they are found."""
    from keyhole.naming.subjects.features import require_fixed

    require_fixed(model, head, frame, "a feature")


def write_features(model: Model, found: FeaturesFound, path: Path | None, *, quiet: bool) -> None:
    """After the answer, which a full disk must not cost."""
    if path is None:
        return
    from keyhole.naming.subjects.files import save_subjects
    from keyhole.naming.what import feature_subjects

    subjects = feature_subjects(model, found)
    if not subjects:
        show.note(f"no feature has a dimension, so that {path} was not written")
        return
    save_subjects(subjects, model, path)
    if not quiet:
        show.plain(f"wrote {path}")

"""What lies in a store's folder that should not? Drafts of writers that were stopped, and parts of other stores."""

from collections.abc import Iterator
from pathlib import Path

from keyhole.files import sync_folder
from keyhole.store.manifest import Manifest
from keyhole.store.parts import RECORDS, Damaged
from keyhole.store.schema import SIGNALS, TABLES, tables

ASIDE = "aside"
FOLDERS = (*TABLES, SIGNALS, RECORDS, ASIDE)


def prepare(root: Path, manifest: Manifest) -> None:
    """Make the folders, and remove drafts: who holds the lock may, for nobody else is writing then."""
    for name in (*tables(manifest), RECORDS):
        (root / name).mkdir(exist_ok=True)
        for draft in (root / name).glob(".*.part"):
            draft.unlink(missing_ok=True)
    sync_folder(root)


def strays(root: Path, manifest: Manifest) -> Iterator[Damaged]:
    """Files among the parts that are none of this store's, which a table tool would count."""
    names = {manifest.name(number) for number in range(manifest.parts)}
    for folder in FOLDERS[:-1]:
        for path in sorted((root / folder).glob("[!.]*")):
            if path.stem not in names:
                yield Damaged(None, path, f"is of another model, setting or prompts: it will be put into {ASIDE}/.")


def put_aside(root: Path, manifest: Manifest) -> None:
    """Move strays out of the way; nothing is removed that might be somebody's."""
    for stray in list(strays(root, manifest)):
        place = root / ASIDE / stray.path.parent.name
        place.mkdir(parents=True, exist_ok=True)
        stray.path.replace(place / stray.path.name)
        sync_folder(place)


def disk_size(root: Path) -> int:
    """Bytes of all that a store keeps."""
    return sum(path.stat().st_size for path in root.rglob("*") if path.is_file())

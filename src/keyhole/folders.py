"""Where are files written? A folder that is there or can be made, or a reason why not."""

from pathlib import Path

from keyhole.errors import KeyholeError


def require_folder(path: Path | str) -> Path:
    """The folder, made if need be; refused before long work rather than after it."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise KeyholeError(f"{folder} is a file, where a folder is needed: give another name.") from error
    except OSError as error:
        raise KeyholeError(f"cannot make the folder {folder}: {error.strerror}. Give another one.") from error
    return folder

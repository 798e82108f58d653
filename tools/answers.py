"""Writes what commands and snippets answer now into the guides: python tools/answers.py docs/tutorial.md ...

Lines `...` stay: what they left out stays left out. Lines after them that are no longer answered stay as they are, and
are named: mend these by hand. Look at the difference before you commit it.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from shown import answers, same_line, shown


def main(paths: list[str]) -> None:
    """Each page anew, in place."""
    for path in map(Path, paths):
        text = path.read_text(encoding="utf-8")
        things = shown(text)
        with tempfile.TemporaryDirectory() as folder:
            found = answers(things, Path(folder))
        for one, answered in reversed(list(zip(things, found, strict=True))):
            if one.answer is not None:
                start, end = one.span
                text = text[:start] + _with_gaps(one.answer, answered) + text[end:]
        path.write_text(text, encoding="utf-8")


def _with_gaps(said: str, answered: str) -> str:
    """The new answer, without what the old one left out."""
    if not any(line.strip() == "..." for line in said.splitlines()):
        return answered
    lines, kept, at = answered.splitlines(), list[str](), 0
    parts = [part.strip("\n").splitlines() for part in f"\n{said}\n".split("\n...\n")]
    for number, part in enumerate(parts):
        if number:
            kept.append("...")
            found = next((i for i in range(at, len(lines)) if part and same_line(part[0], lines[i])), None)
            if found is None and part:
                print(f"not answered: {part[0]}", file=sys.stderr)
                kept += part
                continue
            at = len(lines) if found is None else found
        kept += lines[at : at + len(part)]
        at += len(part)
    return "\n".join(kept) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:])

"""What does a written figure show? Marks behind every panel, and ink where the panel stands in the picture."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def marks(axis: Axes) -> int:
    """How many points, bars, areas and cells with finite values are drawn?"""
    points = [line.get_xydata() for line in axis.lines]
    points += [np.ma.filled(c.get_offsets().astype(float), np.nan) for c in axis.collections if len(c.get_offsets())]
    points += [path.vertices for c in axis.collections for path in c.get_paths() if len(path.vertices)]
    cells = [np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan) for image in axis.images]
    bars = [patch.get_path().vertices for patch in axis.patches]
    return sum(int(np.isfinite(one).all(-1).any()) for one in points + bars) + sum(np.isfinite(c).any() for c in cells)


def ink(picture: np.ndarray, axis: Axes) -> float:
    """The share of a panel's area that differs from its most frequent colour."""
    figure = axis.get_figure()
    assert figure is not None
    height, width = picture.shape[:2]
    box, scale = axis.get_window_extent(), width / figure.bbox.width
    rows = slice(max(0, height - int(box.y1 * scale)), height - int(box.y0 * scale))
    inside = (255 * picture[rows, int(box.x0 * scale) : int(box.x1 * scale), :3]).round().astype(int)
    codes = inside @ np.array([65536, 256, 1])
    values, counts = np.unique(codes, return_counts=True)
    return 1 - float(counts.max()) / codes.size if len(values) else 0.0


def check_drawn(figure: Figure, path: Path) -> None:
    """No panel of a written figure is empty, neither behind the picture nor in it."""
    data = path.read_bytes()
    assert data.startswith(MAGIC[path.suffix])
    panels = [axis for axis in figure.axes if axis.axison]
    assert panels and all(marks(axis) for axis in panels)
    if path.suffix == ".png":
        picture = imread(path)
        assert all(ink(picture, axis) > 0.001 for axis in panels)
    elif path.suffix == ".svg":
        shapes = [element for element in ElementTree.fromstring(data).iter() if element.tag.endswith("}path")]
        assert len(shapes) > 2 * len(panels)


@pytest.fixture
def saved(monkeypatch: pytest.MonkeyPatch) -> dict[Path, Figure]:
    """Every figure that is written during a test, by its path."""
    kept: dict[Path, Figure] = {}
    write = Figure.savefig

    def keep(figure: Figure, path: Path, **options: object) -> None:
        kept[Path(path)] = figure
        write(figure, path, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return kept

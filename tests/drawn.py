"""What does a written figure show? Marks behind every panel, and ink where the panel stands in the picture."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import imread

from keyhole.figures import style

MAGIC = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


def marks(axis: Axes) -> int:
    """How many lines, clouds, bars and images can be seen inside the panel?"""
    seen = [axis.transData.transform(line.get_xydata()) for line in axis.lines if line.get_visible()]
    for cloud in (c for c in axis.collections if c.get_visible()):
        offsets = np.ma.filled(np.ma.asarray(cloud.get_offsets(), dtype=float), np.nan)
        seen.append(cloud.get_offset_transform().transform(offsets))
        seen += [cloud.get_transform().transform(path.vertices) for path in cloud.get_paths()]
    seen += [patch.get_window_extent().get_points() for patch in axis.patches if patch.get_visible()]
    shown = sum(bool(_inside(axis, points).any()) for points in seen if len(points))
    cells = [np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan) for image in axis.images]
    return shown + sum(bool(np.isfinite(one).any()) for one in cells)


def _inside(axis: Axes, points: np.ndarray) -> np.ndarray:
    """Which of these points, in pixels, lie in the panel?"""
    (x0, y0), (x1, y1) = axis.bbox.get_points()
    x, y = points.T
    return np.isfinite(points).all(1) & (x0 - 1 <= x) & (x <= x1 + 1) & (y0 - 1 <= y) & (y <= y1 + 1)


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
    panels = [axis for axis in figure.axes if axis.axison or axis.has_data()]
    assert panels and all(marks(axis) or axis.name == "3d" for axis in panels)  # those are projected when drawn
    if path.suffix == ".png":
        picture = imread(path)
        assert all(ink(picture, axis) > 0.001 for axis in panels)
    elif path.suffix == ".svg":
        shapes = [element for element in ElementTree.fromstring(data).iter() if element.tag.endswith("}path")]
        assert len(shapes) > 2 * len(panels)


def keep_saved(monkeypatch: pytest.MonkeyPatch) -> dict[Path, Figure]:
    """Every figure that is written from now on, by its path."""
    kept: dict[Path, Figure] = {}
    drawn: list[Figure] = []
    draw, write = Figure.savefig, style.write_at_once

    def keep_figure(figure: Figure, *arguments: object, **options: object) -> None:
        drawn.append(figure)
        draw(figure, *arguments, **options)

    def keep_path(path: Path, content: bytes) -> None:
        if drawn:  # pages are written in the same way
            kept[path] = drawn.pop()
        write(path, content)

    monkeypatch.setattr(Figure, "savefig", keep_figure)
    monkeypatch.setattr(style, "write_at_once", keep_path)
    return kept

"""What all figures have in common: sizes, type and lines, and how they are written to files.

Every figure here is a function from plain arrays to a matplotlib `Figure` that belongs to nobody else (no pyplot, no
display); `save` writes it. Sizes are inches on paper: 6.75 is the width of a two-column page, 3.25 of one column.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from becl.runs.writing import whole

if TYPE_CHECKING:
    import matplotlib.figure

PAGE_WIDTH = 6.75
COLUMN_WIDTH = 3.25
PIXELS_PER_INCH = 200
SVG_PIXELS = 700_000  # Keeps the densest pictures near one megabyte.
VOID = "#e9e9e9"
MUTED = "#444444"  # Text of second rank.
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # Ships with matplotlib: the same picture on every machine.
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
}


def save(figure: "matplotlib.figure.Figure", path: str | Path) -> tuple[Path, Path]:
    """Writes `path`.png and `path`.svg; the same figure gives the same bytes.

    Trajectories are pixels inside the SVG, coarser than in the PNG where a figure is large.
    """
    import matplotlib

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    png, svg = (path.with_name(f"{path.name}.{suffix}") for suffix in ("png", "svg"))
    with whole(png, ".png", durable=False) as part:
        figure.savefig(part, dpi=PIXELS_PER_INCH, metadata={"Software": None})
    with matplotlib.rc_context({"svg.hashsalt": "becl"}):
        area = math.prod(figure.get_size_inches())
        dpi = min(PIXELS_PER_INCH, math.isqrt(int(SVG_PIXELS / area)))
        with whole(svg, ".svg", durable=False) as part:
            figure.savefig(part, dpi=dpi, metadata={"Date": None})
    return png, svg


def name_runs(figure: "matplotlib.figure.Figure", text: str) -> None:
    """Small, above everything: which runs and seeds a figure is of."""
    figure.suptitle(text, size=0.85 * STYLE["font.size"], color=MUTED)


def picture(path: Path) -> "matplotlib.figure.Figure":
    """An image file as a figure of the same number of pixels."""
    from matplotlib.figure import Figure
    from PIL import Image

    with Image.open(path) as image:
        pixels = np.asarray(image.convert("RGB"))
    figure = Figure(figsize=(pixels.shape[1] / PIXELS_PER_INCH, pixels.shape[0] / PIXELS_PER_INCH))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.imshow(pixels, aspect="auto", interpolation="none")
    return figure

"""Draws docs/figures/architecture.png and .svg from the imports in the code: `python docs/figures/architecture.py`.

An arrow leads from a room to a room that it imports from; a thicker one stands for more modules. Arrows that only
shorten a longer way (commands also import from runs) are left out. tests/test_architecture.py compares the arrows of
the figure with the code.
"""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import grimp
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from becl.views.figures.style import save

# Where each room stands; every arrow leads downwards, as import-linter checks (pyproject.toml).
PLACES = {
    "api": (0.0, 0.0),
    "commands": (0.0, -1.0),
    "sweeps": (-1.6, -2.0),
    "reports": (-1.6, -3.0),
    "views": (-1.6, -4.0),
    "export": (1.6, -3.0),
    "experiments": (0.0, -5.0),
    "runs": (0.0, -6.0),
    "measure": (0.0, -7.0),
    "learning": (0.0, -8.0),
    "objectives": (0.0, -9.0),
    "nn": (-1.6, -10.0),
    "envs": (1.6, -10.0),
}


def room_imports() -> Counter[tuple[str, str]]:
    """How many modules of a room import from another."""
    graph = grimp.build_graph("becl", exclude_type_checking_imports=True)
    found: Counter[tuple[str, str]] = Counter()
    for module in graph.modules:
        room = room_of(module)
        others = {room_of(other) for other in graph.find_modules_directly_imported_by(module)} - {room}
        found.update((room, other) for other in others if {room, other} <= PLACES.keys())
    return found


def room_of(module: str) -> str:
    return f"{module}.".split(".")[1]


def needed(edges: Counter[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Edges that do not follow from others: there is no longer way from the one room to the other."""
    after: dict[str, set[str]] = {}
    for room, other in edges:
        after.setdefault(room, set()).add(other)

    def reaches(room: str, goal: str) -> bool:
        return goal in after.get(room, ()) or any(reaches(other, goal) for other in after.get(room, ()))

    return {
        (room, goal): count
        for (room, goal), count in edges.items()
        if not any(reaches(other, goal) for other in after[room] - {goal})
    }


def draw(axes: Axes) -> None:
    box = {"boxstyle": "round,pad=0.45", "facecolor": "#E3F1F1", "edgecolor": "#0B6E6E"}
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 12, "bbox": box}
    boxes = {room: axes.text(x, y, f"{room}/", **style).get_bbox_patch() for room, (x, y) in PLACES.items()}
    for (room, other), count in sorted(needed(room_imports()).items()):
        look = {"arrowstyle": "-|>", "color": "0.45", "linewidth": 0.7 + 0.5 * math.log2(count)}
        ends = {"patchA": boxes[room], "patchB": boxes[other], "shrinkA": 2, "shrinkB": 2}
        arrow = axes.annotate("", PLACES[other], PLACES[room], arrowprops=look | ends).arrow_patch
        assert arrow is not None
        arrow.set_gid(f"{room}-uses-{other}")  # In the SVG, where a test reads it.
    axes.set(xlim=(-3, 3), ylim=(-10.5, 0.5))
    axes.axis("off")


def main(out: Path) -> None:
    figure = Figure(figsize=(5.5, 7.5), layout="constrained")
    draw(figure.subplots())
    for path in save(figure, out):
        print(path)


if __name__ == "__main__":
    main(Path(__file__).with_suffix(""))

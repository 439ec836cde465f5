"""The kinds of maze study: our comparisons with tuned settings, and the paper's figures as published.

Tuned settings are those of `becl.objectives.registry`, chosen by search. Published settings are those of the released
maze program, for every method of the paper's figures: entropy weight 0.025, learning rate 3e-4, four epochs of fitting,
and a learner whose advantages run across the ends of episodes, with independently drawn skills and leaking corners.
None of them was searched.
"""

from typing import Literal, NamedTuple

from becl.objectives.becl import BeCL
from becl.objectives.becl_released_maze import BeCLReleasedMaze
from becl.objectives.dads import DADS
from becl.objectives.registry import MazeStudy

Setting = Literal["tuned", "published"]

PUBLISHED: dict[str, MazeStudy] = {
    # Eq. 8 and 10 with κ = 0.5, the expectation over all positives, and no ramp, with the released program's learner.
    "becl-paper": MazeStudy(BeCL(temperature=0.5), as_released=True),
    # The formula behind the paper's pictures.
    "becl-released": MazeStudy(BeCLReleasedMaze(), as_released=True),
    "diayn": MazeStudy(as_released=True),
    "dads": MazeStudy(DADS(given="skill", stddev=0.5**0.5), as_released=True),
    "cic-released": MazeStudy(as_released=True),
}
"""Every method of the released maze study, as released, and BeCL as printed."""


class Kind(NamedTuple):
    """What a study compares."""

    methods: tuple[str, ...]
    setting: Setting = "tuned"
    maze: str = "square_a"
    varied: Literal["methods", "temperature", "skills"] = "methods"
    """What differs between the runs of one method."""
    mine: bool = False
    """Whether MINE is trained on the skills of every run."""
    also: tuple[float, ...] = ()
    """Further temperatures of BeCL."""
    twin: str = ""
    """For a figure, the same study with tuned settings."""


BECL = ("becl-paper", "becl-released")
TUNED = ("becl", "diayn", "dads", "cic")

KINDS: dict[str, Kind] = {
    "comparison": Kind(TUNED),
    "estimates": Kind(TUNED, mine=True),
    "temperature": Kind(("becl",), varied="temperature"),
    "skills": Kind(("becl", "diayn", "dads"), maze="square_tree", varied="skills"),
    "figure4": Kind(tuple(PUBLISHED), "published", twin="comparison"),
    "figure6": Kind(BECL, "published", varied="temperature", twin="temperature"),
    "figure7": Kind((*BECL, "diayn", "dads"), "published", "square_tree", "skills", twin="skills"),
    "figure8": Kind(tuple(PUBLISHED), "published", mine=True, also=(0.01,), twin="estimates"),
}
"""The studies by their names; the last four are the paper's figures."""

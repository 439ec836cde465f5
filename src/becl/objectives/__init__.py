"""All methods by name.

To add one: write its file next to these, then list it here. The command line and the tests of
`tests/test_objectives.py` read this registry.
"""

from dataclasses import dataclass

from becl.objectives.becl import BeCL
from becl.objectives.becl_released_maze import BeCLReleasedMaze
from becl.objectives.cic import CIC
from becl.objectives.dads import DADS
from becl.objectives.diayn import DIAYN
from becl.objectives.protocol import Batch, Metrics, Objective

__all__ = ["METHODS", "Batch", "Method", "Metrics", "Objective"]


@dataclass(frozen=True)
class Method:
    """A named objective, and what of it differs in the maze study."""

    objective: Objective
    summary: str
    maze_objective: Objective | None = None
    """The formula in the maze where the released programs differ between maze and URLB."""
    maze_entropy_weight: float = 0.025
    maze_fit_epochs: int = 4
    maze_learning_rate: float = 3e-4
    maze_as_released: bool = False
    """Advantages across episode ends, independent skills and leaking corners, as in the released maze code."""


METHODS: dict[str, Method] = {
    "becl": Method(
        BeCL(),
        "contrast between skills: Eq. 8 and 10, nearest positive",
        maze_objective=BeCL(temperature=0.2, ramp=0.35),
        maze_entropy_weight=0.07,
        maze_fit_epochs=1,
        maze_learning_rate=6e-4,
    ),
    "becl-paper": Method(
        BeCL(positive="mean"),
        "BeCL as printed: the expectation over all states of the skill's other trajectories",
        maze_objective=BeCL(positive="mean", temperature=0.12),
        maze_entropy_weight=0.09,
        maze_fit_epochs=1,
        maze_learning_rate=6e-4,
    ),
    "becl-released": Method(
        BeCL(positive="first", denominator="all"),
        "BeCL as released: its URLB formula, in the maze its maze formula",
        maze_objective=BeCLReleasedMaze(),
        maze_as_released=True,
    ),
    "diayn": Method(
        DIAYN(),
        "skills that a classifier can tell from a state",
        maze_entropy_weight=0.35,
        maze_learning_rate=4e-4,
    ),
    "dads": Method(
        DADS(),
        "skills whose next state is predictable; in the maze the study's q(s'|z)",
        maze_objective=DADS(given="skill", stddev=0.5**0.5),
        maze_entropy_weight=0.4,
        maze_learning_rate=2.5e-4,
    ),
    "dads-dynamics": Method(DADS(), "DADS proper, q(s'|s,z), also in the maze"),
    "cic": Method(
        CIC(),
        "spread of contrastively learned features",
        maze_entropy_weight=0.02,
        maze_learning_rate=5e-4,
    ),
    "cic-released": Method(
        CIC(train_encoder=False, compare_with="obs"),
        "CIC as in the released maze code: spread in random features",
        maze_as_released=True,
    ),
}

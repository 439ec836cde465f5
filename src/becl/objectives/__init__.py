"""All methods by name.

To add one: write its file next to these, then list it here; or, from a file outside the package, call `register`. The
command line, the documentation's table and the tests of `tests/test_objectives.py` read this registry.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from becl.objectives.aps import APS
from becl.objectives.apt import APT
from becl.objectives.becl import BeCL
from becl.objectives.becl_released import BeCLReleased
from becl.objectives.becl_released_maze import BeCLReleasedMaze
from becl.objectives.cic import CIC
from becl.objectives.dads import DADS
from becl.objectives.diayn import DIAYN
from becl.objectives.disagreement import Disagreement
from becl.objectives.extrinsic import Extrinsic
from becl.objectives.icm import ICM
from becl.objectives.proto import ProtoRL
from becl.objectives.protocol import Batch, Metrics, Objective
from becl.objectives.rnd import RND
from becl.objectives.smm import SMM

__all__ = ["METHODS", "Batch", "MazeStudy", "Method", "Metrics", "Objective", "register"]


@dataclass(frozen=True)
class MazeStudy:
    """What of a method is different, or tuned, in the maze study."""

    objective: Objective | None = None
    """The formula where the released programs differ between maze and URLB."""
    entropy_weight: float = 0.025
    fit_epochs: int = 4
    learning_rate: float = 3e-4
    as_released: bool = False
    """Advantages across episode ends, independent skills and leaking corners, as in the released maze code."""


@dataclass(frozen=True)
class Method:
    """A named objective, and how pretraining goes about it."""

    objective: Objective
    kind: Literal["competence", "knowledge", "data", "task"]
    """What it maximises: skills one can tell apart, what a model does not know, the spread of states, or a task."""
    summary: str
    """What it rewards."""
    skill_interval: int | None = 50
    """Steps after which a skill is drawn anew; None: only with a new episode."""
    fits_per_update: int = 1
    successor_features: bool = False
    """Whether the critic predicts as many features as the skill has numbers, which weighs them (APS)."""
    released_skill: bool = False
    """Whether transitions carry the skill of the step before, as in the released code."""
    balanced_batches: bool = False
    """Whether every batch has as many transitions of each skill."""
    finetune_skill: str = "none"
    """Which skill learns a task, as published: see `becl.experiments.finetuning.CHOICES`."""
    transfer: Literal["trunk", "critic", "critic-released"] = "trunk"
    """What a task inherits, as published: see `becl.experiments.finetuning.TRANSFERS`."""
    maze: MazeStudy | None = None
    """None: not part of the maze study, which is about discrete skills."""


METHODS: dict[str, Method] = {
    # What transfers to tasks best so far, measured on the quadruped: docs/transfer.md, results/transfer.
    "becl": Method(
        BeCLReleased(),
        "competence",
        "contrast between skills, by the released formula; in the maze Eq. 8 and 10 with the nearest positive",
        fits_per_update=3,
        released_skill=True,
        maze=MazeStudy(
            BeCL(positive="nearest", temperature=0.2, ramp=0.35), entropy_weight=0.07, fit_epochs=1, learning_rate=6e-4
        ),
        finetune_skill="random",
    ),
    "becl-paper": Method(
        BeCL(positive="pair", state="obs"),
        "competence",
        "BeCL as printed: Algorithm 1 to the letter; in the maze the expectation over all positives",
        balanced_batches=True,
        maze=MazeStudy(BeCL(temperature=0.12), entropy_weight=0.09, fit_epochs=1, learning_rate=6e-4),
        finetune_skill="random",
    ),
    "becl-released": Method(
        BeCLReleased(),
        "competence",
        "BeCL as released: its URLB formula, in the maze its maze formula",
        fits_per_update=3,
        released_skill=True,
        maze=MazeStudy(BeCLReleasedMaze(), as_released=True),
        finetune_skill="random",
    ),
    "ddpg": Method(Extrinsic(), "task", "the task's own reward: no pretraining objective"),
    "icm": Method(ICM(), "knowledge", "what a model of the dynamics predicts badly"),
    "disagreement": Method(Disagreement(), "knowledge", "where five models of the dynamics disagree"),
    "rnd": Method(RND(), "knowledge", "states on which a random network is not yet imitated"),
    "apt": Method(APT(), "data", "spread of states in features of the dynamics"),
    "proto": Method(
        ProtoRL(),
        "data",
        "spread of states in features with prototypes",
        transfer="critic-released",
    ),
    "smm": Method(
        SMM(),
        "competence",
        "states that are rare under a density model, for each skill",
        skill_interval=None,
        finetune_skill="resampled",
    ),
    "smm-paper": Method(
        SMM(skill_term="paper"),
        "competence",
        "SMM with the sign of the papers: skills that can be told apart",
        skill_interval=None,
        finetune_skill="resampled",
    ),
    "diayn": Method(
        DIAYN(),
        "competence",
        "skills that a classifier can tell from a state",
        maze=MazeStudy(entropy_weight=0.35, learning_rate=4e-4),
        finetune_skill="resampled",
    ),
    "aps": Method(
        APS(),
        "competence",
        "spread, and features that point where the skill points",
        skill_interval=5,
        successor_features=True,
        finetune_skill="regress",
    ),
    "cic": Method(
        CIC(),
        "data",
        "spread of contrastively learned features",
        maze=MazeStudy(entropy_weight=0.02, learning_rate=5e-4),
        finetune_skill="constant",
    ),
    "cic-released": Method(
        CIC(train_encoder=False, compare_with="obs"),
        "data",
        "CIC as in the released maze code: spread in random features",
        maze=MazeStudy(as_released=True),
        finetune_skill="constant",
    ),
    "dads": Method(
        DADS(),
        "competence",
        "skills whose next state is predictable; in the maze the study's q(s'|z)",
        maze=MazeStudy(DADS(given="skill", stddev=0.5**0.5), entropy_weight=0.4, learning_rate=2.5e-4),
        finetune_skill="resampled",
    ),
    "dads-dynamics": Method(
        DADS(),
        "competence",
        "DADS proper, q(s'|s,z), also in the maze",
        maze=MazeStudy(),
        finetune_skill="resampled",
    ),
}


def register(name: str, method: Method) -> None:
    """Adds a method from outside the package; what could not be trained or kept is refused with one line.

    Write this at the end of a file of your own and add `--plugin FILE` to any command: see docs/own-method.md.
    """
    from becl.commands.plugins import check_method, note_origin

    check_method(name, method)
    METHODS[name] = method
    note_origin(name, method)
    if method.maze is not None:
        from becl.experiments.maze_study import STUDIED

        STUDIED[name] = method.maze


def kinds_of(spec: Any) -> Iterator[type]:
    """The class of a spec, and those of the specs in it."""
    if dataclasses.is_dataclass(spec):
        yield type(spec)
        for field in dataclasses.fields(spec):
            yield from kinds_of(getattr(spec, field.name))

"""All methods by name.

To add one: write its file next to these, then list it here; or, from a file outside the package, call `register`. The
command line, the documentation's table and the tests of `tests/test_objectives.py` read this registry.
"""

import dataclasses
import json
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from becl.errors import UserError, unknown
from becl.objectives.amped import AnInfoNCE, amped
from becl.objectives.aps import APS
from becl.objectives.apt import APT
from becl.objectives.becl import BeCL
from becl.objectives.becl_released import BeCLReleased
from becl.objectives.becl_released_maze import BeCLReleasedMaze
from becl.objectives.cic import CIC
from becl.objectives.dads import DADS
from becl.objectives.diayn import DIAYN
from becl.objectives.disagreement import Disagreement
from becl.objectives.exdm import ExDM
from becl.objectives.extrinsic import Extrinsic
from becl.objectives.icm import ICM
from becl.objectives.moss import MOSS
from becl.objectives.proto import ProtoRL
from becl.objectives.protocol import Objective, chance_reward
from becl.objectives.rnd import RND
from becl.objectives.smm import SMM
from becl.objectives.temporal import CSD, CSF, LSD, METRA
from becl.objectives.total import Sum
from becl.plugins import ORIGINS, WORD, Origin
from becl.skills import Modes, NoSkill, OneHot, SkillSpace
from becl.specs import from_dict, is_specs, to_dict

FINETUNE_SKILLS = {
    "none": "the policy has no skill",
    "random": "one drawn once a seed, the same for all tasks (paper)",
    "resampled": "drawn again and again, as in pretraining (released DIAYN and SMM)",
    "fixed:K": "skill K",
    "each": "all of them, side by side (the paper's ablation)",
    "best-first": "the best of a sweep in the first 4,000 steps (paper of CIC)",
    "constant": "all numbers 0.5 (released CIC)",
    "regress": "regressed from rewards (APS)",
    "selector": "chosen at every step by networks trained beside the policy (AMPED)",
    "meta": "picked every 50 steps by a controller; the skills stay as they are",
}
"""Ways to choose the skill that learns a task."""


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
class FromImages:
    """What of a method is its own where it learns from images: see docs/pixels.md."""

    released: Literal["objective", "critic", "nobody"] = "objective"
    """Whose loss trains the encoder in the released code."""
    through: Literal["both", "obs"] = "both"
    """Which state of a transition carries the objective's gradient; `obs` where s' is what is predicted."""
    feature_dim: int = 50
    """Width of the learner's trunk."""


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
    """Which skill learns a task, as published: one of `FINETUNE_SKILLS`."""
    transfer: Literal["trunk", "critic", "critic-released"] = "trunk"
    """What a task inherits, as published: see `becl.experiments.finetuning.TRANSFERS`."""
    maze: MazeStudy | None = None
    """None: not part of the maze study, which is about discrete skills."""
    images: FromImages = FromImages()


PREDICTED = FromImages(through="obs")
"""For methods whose loss compares with what h(s') is, which would otherwise be made easy to predict."""


def directed(objective: Objective, summary: str, maze: MazeStudy | None = None) -> Method:
    """A method of temporal distances: one direction an episode, as published."""
    return Method(objective, "competence", summary, skill_interval=None, finetune_skill="random", maze=maze)


METHODS: dict[str, Method] = {
    # What transfers to tasks best so far, measured on the quadruped: docs/transfer.md, results/transfer.
    "becl": Method(
        BeCLReleased(),
        "competence",
        "contrast between skills, by the released formulas for robots and for mazes",
        fits_per_update=3,
        released_skill=True,
        maze=MazeStudy(BeCLReleasedMaze(ramp=0.12), entropy_weight=0.12),
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
    "ddpg": Method(
        Extrinsic(),
        "task",
        "the task's own reward: no pretraining objective",
        images=FromImages("critic"),
    ),
    "icm": Method(ICM(), "knowledge", "what a model of the dynamics predicts badly", images=PREDICTED),
    "disagreement": Method(
        Disagreement(),
        "knowledge",
        "where five models of the dynamics disagree",
        images=PREDICTED,
    ),
    "rnd": Method(RND(), "knowledge", "states on which a random network is not yet imitated"),
    "apt": Method(APT(), "data", "spread of states in features of the dynamics", images=PREDICTED),
    "proto": Method(
        ProtoRL(),
        "data",
        "spread of states in features with prototypes",
        transfer="critic-released",
        images=PREDICTED,
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
        images=FromImages("nobody", feature_dim=1024),
    ),
    "cic-released": Method(
        CIC(train_encoder=False, compare_with="obs"),
        "data",
        "CIC as in the released maze code: spread in random features",
        maze=MazeStudy(as_released=True),
        finetune_skill="constant",
        images=FromImages("nobody", feature_dim=1024),
    ),
    "moss": Method(
        MOSS(), "data", "spread in one half of an episode, the opposite in the other", finetune_skill="constant"
    ),
    "moss-sign": Method(MOSS(Modes(64, "sign")), "data", "MOSS with modes that are signs", finetune_skill="constant"),
    "exdm": Method(ExDM(), "knowledge", "states that a diffusion model cannot restore from noise"),
    "amped": Method(
        amped(reconciled=True),
        "competence",
        "contrast, with the spread of cic and the novelty of rnd; the critic reconciles both",
        finetune_skill="selector",
    ),
    "amped-sum": Method(amped(reconciled=False), "competence", "AMPED's rewards as one sum", finetune_skill="selector"),
    "amped-contrast": Method(
        AnInfoNCE(), "competence", "AMPED's contrast alone, by a learned distance", finetune_skill="selector"
    ),
    "metra": directed(
        METRA(), "the way covered in the skill's direction, where a step has length 1", MazeStudy(entropy_weight=0.1)
    ),
    "metra-discrete": directed(METRA(OneHot(16)), "METRA with as many directions as skills"),
    "lsd": directed(LSD(), "the way covered in features that are as smooth as the observation"),
    "lsd-discrete": directed(LSD(OneHot(16)), "LSD with as many directions as skills"),
    "csd": directed(CSD(), "the way covered where a step is as long as it is surprising"),
    "csd-discrete": directed(CSD(OneHot(16)), "CSD with as many directions as skills"),
    "csf": directed(CSF(), "the way covered in features whose steps tell the skill from others"),
    "csf-discrete": directed(CSF(OneHot(16)), "CSF with as many directions as skills"),
    "dads": Method(
        DADS(),
        "competence",
        "skills whose next state is predictable; in the maze the study's q(s'|z)",
        maze=MazeStudy(DADS(given="skill", stddev=0.5**0.5), entropy_weight=0.4, learning_rate=2.5e-4),
        finetune_skill="resampled",
        images=PREDICTED,
    ),
    "dads-dynamics": Method(
        DADS(),
        "competence",
        "DADS proper, q(s'|s,z), also in the maze",
        maze=MazeStudy(),
        finetune_skill="resampled",
        images=PREDICTED,
    ),
}

STUDIED: dict[str, MazeStudy] = {name: method.maze for name, method in METHODS.items() if method.maze}
"""Methods that take part in the maze study."""


def find_method(name: str) -> Method:
    """A method by its name, or the sum of several: `becl+rnd`."""
    if name in METHODS:
        return METHODS[name]
    names = name.split("+")
    if other := [one for one in names if one not in METHODS]:
        raise unknown("method" if len(names) == 1 else f"part of {name}:", other[0], METHODS)
    return sum_of(names)


def sum_of(names: Sequence[str]) -> Method:
    """The sum of methods, trained as the first of them that has skills."""
    methods = [METHODS[name] for name in names]
    fits = [method.fits_per_update for method in methods]
    lead = next((method for method in methods if method.objective.skills.dim), methods[0])
    objectives = [method.objective for method in methods]
    objective = Sum(*objectives, skills=lead.objective.skills, fits=fits, names=names)
    return dataclasses.replace(
        lead,
        objective=objective,
        summary=f"the sum of what {', '.join(names[:-1])} and {names[-1]} reward",
        fits_per_update=max(fits),
        # Regressing needs the features of one method alone.
        finetune_skill="random" if lead.finetune_skill == "regress" else lead.finetune_skill,
        maze=None,
        images=lead.images
        if len({method.images.through for method in methods}) == 1
        else dataclasses.replace(lead.images, through="both"),
    )


def name_of(objective: Objective) -> str:
    """The name of the method that an objective is, whatever its options; a sum's is made of those of its parts."""
    same = [name for name, method in METHODS.items() if method.objective == objective]
    if isinstance(objective, Sum) and not same:
        return "+".join(map(name_of, objective.parts))
    alike = [name for name, method in METHODS.items() if type(method.objective) is type(objective)]
    if not same + alike:
        raise UserError(f"{type(objective).__name__} is not registered: becl.register(NAME, becl.Method(...)) does")
    return (same + alike)[0]


def register(name: str, method: Method) -> None:
    """Adds a method from outside the package; one that could not be trained or kept is refused with one line.

    Write this at the end of a file of your own and add `--plugin FILE` to any command: see docs/own-method.md.
    """
    check_method(name, method)
    METHODS[name] = method
    if method.maze is not None:
        STUDIED[name] = method.maze
    kind = type(method.objective)
    maze = None if method.maze is None else type(method.maze.objective or method.objective).__name__
    ORIGINS[name] = Origin(WORD.get() or home_of(kind), kind.__module__, maze, lambda: remove(name))


def remove(name: str) -> None:
    """Takes a method out again."""
    METHODS.pop(name, None)
    STUDIED.pop(name, None)


def kinds_of(spec: Any) -> Iterator[type]:
    """The class of a spec, and those of the specs in it."""
    for inner in spec if is_specs(spec) else ():
        yield from kinds_of(inner)
    if dataclasses.is_dataclass(spec):
        yield type(spec)
        for field in dataclasses.fields(spec):
            yield from kinds_of(getattr(spec, field.name))


# --- What a method must be --------------------------------------------------------------------------------------------

RESERVED = {
    "Adam": "becl.nn.adam",
    "BestFirst": "becl.learning.choice",
    "CNN": "becl.nn.vision",
    "Controller": "becl.learning.controller",
    "Cube": "becl.skills",
    "DDPG": "becl.learning.ddpg",
    "Finetuning": "becl.experiments.finetuning",
    "Halves": "becl.learning.choice",
    "Held": "becl.learning.choice",
    "Maze": "becl.envs.maze",
    "Modes": "becl.skills",
    "Network": "becl.nn.networks",
    "NoSkill": "becl.skills",
    "OffPolicy": "becl.learning.offpolicy",
    "OnPolicy": "becl.learning.onpolicy",
    "OneHot": "becl.skills",
    "PPO": "becl.learning.ppo",
    "Pretraining": "becl.experiments.pretraining",
    "Prior": "becl.learning.choice",
    "Regress": "becl.learning.choice",
    "Replay": "becl.learning.replay",
    "Selector": "becl.learning.selector",
    "Sphere": "becl.skills",
    "Sum": "becl.objectives.total",
    "Vision": "becl.learning.seeing",
}
"""Classes of specs that are not objectives, and where they live: the folder of a run may name them."""


def check_method(name: str, method: Method) -> None:
    """Raises on what could not be named, kept or trained."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise UserError(f"method {name!r}: a name has small letters, digits and dashes")
    if not isinstance(method, Method):
        raise UserError(f"method {name!r}: expected Method(objective, kind, summary), not {type(method).__name__}")
    if name in METHODS and not is_rerun(type(METHODS[name].objective), type(method.objective)):
        owner = ORIGINS[name].word if name in ORIGINS else "becl itself"
        raise UserError(f"method {name!r}: the name is taken by {owner}; choose another")
    hints = get_type_hints(Method)
    for option in ("kind", "transfer"):
        if getattr(method, option) not in get_args(hints[option]):
            raise unknown(f"{option} of method {name!r}", str(getattr(method, option)), get_args(hints[option]))
    for objective in (method.objective, method.maze.objective if method.maze is not None else None):
        if objective is not None:
            check_objective(f"method {name!r}", objective)
    space = method.objective.skills
    choices = [word for word in FINETUNE_SKILLS if (word == "none") == isinstance(space, NoSkill)]
    if method.finetune_skill.partition(":")[0] not in {word.partition(":")[0] for word in choices}:
        if method.finetune_skill == "none":
            raise UserError(
                f"method {name!r} has skills: say which of them learns a task, Method(..., finetune_skill='random'); "
                f"allowed: {', '.join(choices)}"
            )
        raise unknown(f"finetune_skill of method {name!r}", method.finetune_skill, choices)


def check_objective(what: str, objective: Any) -> None:
    """Raises on an objective that is not a frozen dataclass of options with the methods of the protocol."""
    if isinstance(objective, type):
        raise UserError(f"{what}: expected an instance, {objective.__name__}(), not the class")
    kind = type(objective).__name__
    check_frozen(what, objective)
    if missing := [word for word in ("skills", "init", "fit", "reward") if not hasattr(objective, word)]:
        raise UserError(f"{what}: {kind} has no {missing[0]}; an objective has skills, init, fit and reward")
    assert isinstance(objective, Objective)
    space = objective.skills
    check_frozen(what, space)
    if not isinstance(space, SkillSpace):
        raise UserError(f"{what}: {type(space).__name__} is no skill space: it needs dim, sample and spread")
    if not isinstance(space, NoSkill) and "dim" not in {field.name for field in dataclasses.fields(space)}:  # type: ignore
        raise UserError(f"{what}: {type(space).__name__} needs an option dim, which --skills sets")
    check_chance(what, objective)
    for part in kinds_of(objective):
        if other := other_class(part):
            raise UserError(f"{what}: there is a class {part.__name__} already, in {other}; rename yours")
    check_json(what, objective)


def check_chance(what: str, objective: Any) -> None:
    """Raises on a chance level that is not a number."""
    try:
        level = chance_reward(objective, 1024)
        sound = level is None or math.isfinite(level)
    except Exception:  # Whatever somebody's function raises.
        sound = False
    if not sound:
        raise UserError(f"{what}: chance_reward(batch) must give a number, or None where there is none")


def check_frozen(what: str, spec: Any) -> None:
    kind = type(spec).__name__
    if not dataclasses.is_dataclass(spec) or not spec.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise UserError(f"{what}: {kind} must be a frozen dataclass: write @dataclass(frozen=True) above it")
    for field in dataclasses.fields(spec):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UserError(f"{what}: option {field.name} of {kind} needs a default")


def check_json(what: str, objective: Any) -> None:
    """Raises on options that a folder could not keep or jit could not compare."""
    classes = {part.__name__: part for part in kinds_of(objective)}
    kind, hints = type(objective).__name__, get_type_hints(type(objective))
    for field in dataclasses.fields(objective):
        value = getattr(objective, field.name)
        try:
            hash(value)
            sound = from_dict(json.loads(json.dumps(to_dict(value))), classes, hints[field.name]) == value
        except (TypeError, ValueError, UserError):
            sound = False
        if not sound or field.name == "spec":
            raise UserError(
                f"{what}: option {field.name} of {kind} cannot be kept: use numbers, text, true or false, tuples of "
                "these, or frozen dataclasses"
            )


def other_class(kind: type) -> str | None:
    """The module of another class of this name that a run's folder may mean; None where there is none."""
    name = kind.__name__
    if name in RESERVED:
        return None if kind.__module__ == RESERVED[name] else RESERVED[name]
    objectives = (one for m in METHODS.values() for one in (m.objective, m.maze and m.maze.objective) if one)
    for other in (part for one in objectives for part in kinds_of(one)):
        if other.__name__ == name and other is not kind and not is_rerun(other, kind):
            return other.__module__
    return None


def is_rerun(one: type, other: type) -> bool:
    """Whether a class is another whose file, or cell of a notebook, was run again."""
    same = one.__qualname__ == other.__qualname__ and (file_of(one) or one.__module__) == (
        file_of(other) or other.__module__
    )
    return same and one is not other


def file_of(kind: type) -> Path | None:
    """Where a class was written; None in a notebook."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file).resolve() if file else None


def home_of(kind: type) -> str:
    """The word that would load a class again: its file, seen from the working folder, or its module."""
    file = file_of(kind)
    if file is not None and file.is_relative_to(Path.cwd()):
        return str(file.relative_to(Path.cwd()))
    return file.name if file is not None and kind.__module__ == "__main__" else kind.__module__

"""Unsupervised skill discovery by behavior contrastive learning."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from becl.api import (
        Finetuned,
        Intrinsic,
        Run,
        control,
        evaluate,
        finetune,
        intrinsic,
        load,
        maze,
        pretrain,
        report,
        resume,
        sweep,
    )
    from becl.commands.cli import main
    from becl.errors import Failed, UserError
    from becl.experiments.evaluation import Evaluation
    from becl.experiments.finetuning import Finetuning
    from becl.experiments.pretraining import Pretraining
    from becl.export.policy import Skill
    from becl.learning.ddpg import DDPG
    from becl.learning.offpolicy import OffPolicy
    from becl.learning.replay import Replay
    from becl.nn.adam import Adam
    from becl.nn.networks import Network
    from becl.objectives import METHODS, Batch, MazeStudy, Method, Objective, Sum, register
    from becl.runs.callbacks import Callback, Wandb
    from becl.skills import Cube, Modes, NoSkill, OneHot, SkillSpace, Sphere

_HOME = {
    "api": (
        "Finetuned", "Intrinsic", "Run", "control", "evaluate", "finetune", "intrinsic", "load", "maze", "pretrain",
        "report", "resume", "sweep",
    ),
    "runs.callbacks": ("Callback", "Wandb"),
    "commands.cli": ("main",),
    "learning.ddpg": ("DDPG",),
    "errors": ("Failed", "UserError"),
    "experiments.evaluation": ("Evaluation",),
    "experiments.finetuning": ("Finetuning",),
    "nn.adam": ("Adam",),
    "nn.networks": ("Network",),
    "objectives": ("METHODS", "Batch", "MazeStudy", "Method", "Objective", "Sum", "register"),
    "learning.offpolicy": ("OffPolicy",),
    "export.policy": ("Skill",),
    "experiments.pretraining": ("Pretraining",),
    "learning.replay": ("Replay",),
    "skills": ("Cube", "Modes", "NoSkill", "OneHot", "SkillSpace", "Sphere"),
}  # fmt: skip
"""Where each name comes from. They are imported when asked for, so that `import becl` and `becl --help` are quick."""

__all__ = [
    "DDPG", "METHODS", "Adam", "Batch", "Callback", "Cube", "Evaluation", "Failed", "Finetuned", "Finetuning",
    "Intrinsic", "MazeStudy", "Method", "Modes", "Network", "NoSkill", "Objective", "OffPolicy", "OneHot",
    "Pretraining", "Replay", "Run", "Skill", "SkillSpace", "Sphere", "Sum", "UserError", "Wandb", "control", "evaluate",
    "finetune", "intrinsic", "load", "main", "maze", "pretrain", "register", "report", "resume", "sweep",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"becl.{home}"), name)
    raise AttributeError(f"module 'becl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""Unsupervised skill discovery by behavior contrastive learning."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from becl.api import Finetuned, Run, evaluate, finetune, load, maze, pretrain, report, resume, sweep
    from becl.callbacks import Callback, Wandb
    from becl.cli import main
    from becl.ddpg import DDPG
    from becl.errors import Failed, UserError
    from becl.evaluate_command import Evaluation
    from becl.finetuning import Finetuning
    from becl.networks import Adam, Network
    from becl.objectives import METHODS, Batch, MazeStudy, Method, Objective, register
    from becl.offpolicy import OffPolicy
    from becl.policy import Skill
    from becl.pretraining import Pretraining
    from becl.replay import Replay
    from becl.skills import Cube, NoSkill, OneHot, SkillSpace, Sphere

_HOME = {
    "api": ("Finetuned", "Run", "evaluate", "finetune", "load", "maze", "pretrain", "report", "resume", "sweep"),
    "callbacks": ("Callback", "Wandb"),
    "cli": ("main",),
    "ddpg": ("DDPG",),
    "errors": ("Failed", "UserError"),
    "evaluate_command": ("Evaluation",),
    "finetuning": ("Finetuning",),
    "networks": ("Adam", "Network"),
    "objectives": ("METHODS", "Batch", "MazeStudy", "Method", "Objective", "register"),
    "offpolicy": ("OffPolicy",),
    "policy": ("Skill",),
    "pretraining": ("Pretraining",),
    "replay": ("Replay",),
    "skills": ("Cube", "NoSkill", "OneHot", "SkillSpace", "Sphere"),
}
"""Where each name comes from. They are imported when asked for, so that `import becl` and `becl --help` are quick."""

__all__ = [
    "DDPG", "METHODS", "Adam", "Batch", "Callback", "Cube", "Evaluation", "Failed", "Finetuned", "Finetuning",
    "MazeStudy", "Method", "Network", "NoSkill", "Objective", "OffPolicy", "OneHot", "Pretraining", "Replay", "Run",
    "Skill", "SkillSpace", "Sphere", "UserError", "Wandb", "evaluate", "finetune", "load", "main", "maze", "pretrain",
    "register", "report", "resume", "sweep",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names in _HOME.items():
        if name in names:
            return getattr(importlib.import_module(f"becl.{home}"), name)
    raise AttributeError(f"module 'becl' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

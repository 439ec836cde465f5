"""The commands as functions: the same runs, folders and checks, from Python.

    run = becl.pretrain("walker", "becl", seeds=2, steps=100_000, out="runs/walker")
    walk = run.skill(3)                 # walk(obs) -> action, NumPy in and out
    tuned = becl.finetune(run, "walker_run", out="runs/walker-run")
    print(tuned.scores[-1])

A run lives in a folder; the same call again goes on where it stopped, and returns at once when it is finished. Mistakes
raise `becl.UserError`, runs that cannot go on `becl.Failed`, each with one line that says why; Ctrl-C raises
KeyboardInterrupt after a checkpoint.
"""

from becl import plugins
from becl.api.calls import control, evaluate, finetune, load, maze, pretrain, report, resume, sweep
from becl.api.rewards import Intrinsic, intrinsic
from becl.api.runs import Finetuned, Run

__all__ = [
    "Finetuned", "Intrinsic", "Run", "control", "evaluate", "finetune", "intrinsic", "load", "maze", "pretrain",
    "report", "resume", "sweep",
]  # fmt: skip

plugins.load_installed()

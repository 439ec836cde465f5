"""`becl resume`: a run goes on from its last checkpoint, bit for bit."""

from pathlib import Path
from typing import Any

from becl.commands.maze import check_workers, run_study
from becl.commands.pretrain import check_interval, loggers
from becl.experiments import finetuning, pretraining
from becl.experiments.maze_study import load_study
from becl.objectives import METHODS
from becl.options import ResumeOptions
from becl.plugins import without_plugins
from becl.runs.folder import read_config, same_settings


def run(options: ResumeOptions) -> int:
    check_workers(options.workers)
    if options.checkpoint_every is not None:
        check_interval(options.checkpoint_every)
    if without_plugins(read_config(options.run), METHODS).get("command") not in ("pretrain", "finetune"):
        study = load_study(options.run)
        same_settings(study.config(), options.run)
        return run_study(study, options.run, options.workers, demo=False)
    changed = {} if options.checkpoint_every is None else {"checkpoint_every": options.checkpoint_every}
    return go_on(options.run, changed | {"callbacks": loggers(options.wandb)})


def go_on(folder: Path, changed: dict[str, Any]) -> int:
    """Goes on with a pretraining or finetuning run; `changed` is what may be different from when it began."""
    if read_config(folder).get("command") == "pretrain":
        pretrained = pretraining.load_pretraining(folder)
        same_settings(pretrained.config(), folder)
        return pretraining.run_pretraining(pretrained, folder, pretraining.check_memory(pretrained), **changed)
    finetuned = finetuning.load_finetuning(folder)
    same_settings(finetuned.config(), folder)
    return finetuning.run_finetuning(finetuned, folder, finetuning.check_memory(finetuned), **changed)

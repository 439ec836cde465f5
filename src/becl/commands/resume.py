"""`becl resume`: a run goes on from its last checkpoint, bit for bit."""

from pathlib import Path
from typing import Any

from becl.commands.maze import run_study
from becl.commands.pretrain import loggers
from becl.experiments.finetuner import check_memory as check_finetuning_memory
from becl.experiments.finetuner import run_finetuning
from becl.experiments.finetuning import load_finetuning
from becl.experiments.maze_study import load_study
from becl.experiments.pretrainer import check_memory, run_pretraining
from becl.experiments.pretraining import load_pretraining
from becl.experiments.settings import check_least
from becl.objectives import METHODS
from becl.options import ResumeOptions
from becl.plugins import without_plugins
from becl.runs.folder import read_config, same_settings, trust_folder


def run(options: ResumeOptions) -> int:
    check_least("--workers", options.workers)
    check_least("--checkpoint-every", options.checkpoint_every)
    if options.trust:
        trust_folder(options.run)
    if without_plugins(read_config(options.run), METHODS).get("command") not in ("pretrain", "finetune"):
        study = load_study(options.run)
        same_settings(study.config(), options.run)
        return run_study(study, options.run, options.workers, demo=False)
    changed = {} if options.checkpoint_every is None else {"checkpoint_every": options.checkpoint_every}
    return go_on(options.run, changed | {"callbacks": loggers(options.wandb)})


def go_on(folder: Path, changed: dict[str, Any]) -> int:
    """Goes on with a pretraining or finetuning run; `changed` is what may be different from when it began."""
    if read_config(folder).get("command") == "pretrain":
        pretrained = load_pretraining(folder)
        same_settings(pretrained.config(), folder)
        return run_pretraining(pretrained, folder, check_memory(pretrained), **changed)
    finetuned = load_finetuning(folder)
    same_settings(finetuned.config(), folder)
    return run_finetuning(finetuned, folder, check_finetuning_memory(finetuned), **changed)

"""`becl pretrain`: skills without a reward."""

from collections.abc import Sequence
from pathlib import Path

from becl.experiments.going_on import check_not_over
from becl.experiments.pretrainer import check_memory, describe, run_pretraining
from becl.experiments.pretraining import Pretraining, make_pretraining
from becl.options import PretrainOptions
from becl.runs.callbacks import Callback, Wandb
from becl.runs.folder import folder_name, open_folder
from becl.trust import trust


def run(options: PretrainOptions) -> int:
    trust(options.env)
    pretraining = make_pretraining(options)
    if options.dry_run:
        for line in describe(pretraining):
            print(line, flush=True)
        return 0
    return train(pretraining, options, loggers(options.wandb))


def train(
    pretraining: Pretraining, options: PretrainOptions, callbacks: Sequence[Callback], raises: bool = False
) -> int:
    """Trains in the folder that the options name; gives the exit code, or `raises` where a run fails."""
    needs = check_memory(pretraining)
    out = folder_of(options)
    open_folder(pretraining.config(), out)
    check_not_over(pretraining, out)
    return run_pretraining(pretraining, out, needs, options.checkpoint_every, callbacks, raises)


def folder_of(options: PretrainOptions) -> Path:
    words = ("pretrain", options.env, options.method, *(("pixels",) if options.pixels else ()))
    words += ("pieg",) if options.encoder == "pieg" else ()
    return options.out or Path("runs") / folder_name(*words)


def loggers(wandb: str | None) -> list[Callback]:
    """What hears of a run besides its own files."""
    return [] if wandb is None else [Wandb(wandb)]

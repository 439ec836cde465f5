"""`becl finetune`: pretrained skills learn tasks, and are scored."""

from collections.abc import Sequence
from pathlib import Path

from becl.commands.pretrain import loggers
from becl.envs.external import is_external
from becl.experiments.encoder_weights import encoder_of
from becl.experiments.finetuner import check_memory, describe, run_finetuning
from becl.experiments.finetuning import Finetuning, make_finetuning
from becl.options import FinetuneOptions
from becl.runs.callbacks import Callback
from becl.runs.folder import folder_name, open_folder, trust_folder
from becl.trust import trust


def run(options: FinetuneOptions) -> int:
    agree(options)
    finetuning = make_finetuning(options)
    if options.dry_run:
        for line in describe(finetuning):
            print(line)
        return 0
    return train(finetuning, options, loggers(options.wandb))


def agree(options: FinetuneOptions) -> None:
    """Trusts the environments that are named as tasks, and with --trust those of the pretrained run."""
    trust(*options.task)
    if options.trust and options.run is not None:
        trust_folder(options.run)


def train(finetuning: Finetuning, options: FinetuneOptions, callbacks: Sequence[Callback], raises: bool = False) -> int:
    """Trains in the folder that the options name; gives the exit code, or `raises` where a run fails."""
    needs = check_memory(finetuning)
    out = folder_of(finetuning, options)
    open_folder(finetuning.config(), out)
    return run_finetuning(finetuning, out, needs, options.checkpoint_every, callbacks, raises)


def folder_of(finetuning: Finetuning, options: FinetuneOptions) -> Path:
    seen = finetuning.run.vision is not None and not is_external(finetuning.env)
    words = ("finetune", finetuning.env, finetuning.method, *(("pixels",) if seen else ()))
    words += ("pieg",) if encoder_of(finetuning.run) is not None else ()
    return options.out or Path("runs") / folder_name(*words)

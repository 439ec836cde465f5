"""`becl control`: a controller over the frozen skills of a run learns tasks, and is compared with other runs."""

from becl.commands.finetune import train
from becl.commands.pretrain import loggers
from becl.experiments.control import as_finetuning, make_control, show_beside
from becl.experiments.finetuner import describe
from becl.options import ControlOptions
from becl.runs.folder import trust_folder
from becl.trust import trust


def run(options: ControlOptions) -> int:
    agree(options)
    finetuning, same = make_control(options), as_finetuning(options)
    if options.dry_run:
        for line in describe(finetuning):
            print(line)
        return 0
    code = train(finetuning, same, loggers(options.wandb))
    if code == 0 and same.out is not None:
        show_beside(finetuning, same.out, options.beside)
    return code


def agree(options: ControlOptions) -> None:
    """Trusts the environments that are named as tasks, and with --trust those of the pretrained run."""
    trust(*options.task)
    if options.trust:
        trust_folder(options.run)

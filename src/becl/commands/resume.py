"""`becl resume`: a run goes on from its last checkpoint, bit for bit; a finished one with more steps or seeds."""

from pathlib import Path
from typing import Any

from becl.commands.maze import run_study
from becl.commands.pretrain import loggers
from becl.errors import UserError
from becl.experiments.finetuner import check_memory as check_finetuning_memory
from becl.experiments.finetuner import run_finetuning
from becl.experiments.finetuning import load_finetuning
from becl.experiments.going_on import MORE, check_not_over, note_steps, seeds_under_way, take_in, with_seeds, with_steps
from becl.experiments.maze_study import load_study
from becl.experiments.pretrainer import check_memory, run_pretraining
from becl.experiments.pretraining import Pretraining, load_pretraining
from becl.experiments.settings import check_least
from becl.experiments.verdicts import pretraining_lines
from becl.objectives import METHODS
from becl.options import ResumeOptions
from becl.plugins import without_plugins
from becl.runs.folder import open_folder, read_config, same_settings, trust_folder
from becl.seeds import seeds_named

OTHERS = {
    "finetune": "scores are compared after equal steps: begin another with becl finetune --out, and becl report joins "
    "what differs in seeds",
    "maze": "the command that began it, with more --seeds, adds these",
}
"""How what goes on with more steps or seeds in no other way does so, by command."""


def run(options: ResumeOptions) -> int:
    check_least("--workers", options.workers)
    check_least("--checkpoint-every", options.checkpoint_every)
    if options.trust:
        trust_folder(options.run)
    if without_plugins(read_config(options.run), METHODS).get("command") not in ("pretrain", "finetune"):
        study = load_study(options.run)
        same_settings(study.config(), options.run)
        only_pretraining(options, "maze")
        return run_study(study, options.run, options.workers, demo=False)
    changed = {} if options.checkpoint_every is None else {"checkpoint_every": options.checkpoint_every}
    return go_on(options, changed | {"callbacks": loggers(options.wandb)})


def go_on(options: ResumeOptions, changed: dict[str, Any]) -> int:
    """Goes on with a pretraining or finetuning run; `changed` is what may be different from when it began."""
    folder = options.run
    if read_config(folder).get("command") == "pretrain":
        pretrained = load_pretraining(folder)
        same_settings(pretrained.config(), folder)
        return go_on_pretraining(pretrained, options, changed)
    finetuned = load_finetuning(folder)
    same_settings(finetuned.config(), folder)
    only_pretraining(options, "finetune")
    return run_finetuning(finetuned, folder, check_finetuning_memory(finetuned), **changed)


def only_pretraining(options: ResumeOptions, command: str) -> None:
    """Refuses for other runs what goes on with a pretraining only."""
    asked = {"--steps": options.steps is not None, "--seeds": options.seeds is not None, "--force": options.force}
    if words := [word for word, given in asked.items() if given]:
        raise UserError(f"{words[0]}: {options.run} holds no pretraining run; {OTHERS[command]}")


def go_on_pretraining(before: Pretraining, options: ResumeOptions, changed: dict[str, Any]) -> int:
    folder, new = options.run, seeds_under_way(options.run)
    if options.steps is not None and options.seeds is not None:
        raise UserError("--steps, --seeds: one after the other, seeds first")
    if options.seeds is not None:
        asked = with_seeds(folder, before, options.seeds)
        if new is not None and new.seeds != asked.seeds:
            raise UserError(f"--seeds: {folder} is being given {seeds_named(new.seeds)}; becl resume {folder} first")
        return add_seeds(asked, folder, changed)
    if new is not None:
        if options.steps is not None:
            raise UserError(f"--steps: {folder} is being given {seeds_named(new.seeds)}; becl resume {folder} first")
        return add_seeds(new, folder, changed)
    check_not_over(before, folder, options.force)
    after = before if options.steps is None else with_steps(folder, before, options.steps)
    needs = check_memory(after)
    if after != before:
        note_steps(folder, after)
    return run_pretraining(after, folder, needs, **changed)


def add_seeds(new: Pretraining, folder: Path, changed: dict[str, Any]) -> int:
    """Trains seeds beside a finished run, and makes them part of it."""
    needs = check_memory(new)
    open_folder(new.config(), folder / MORE)
    code = run_pretraining(new, folder / MORE, needs, **changed, verdict=False)
    if code == 0:
        take_in(folder)
        print(f"{seeds_named(new.seeds)}: part of {folder}/ now")
        print(*pretraining_lines(load_pretraining(folder), folder), sep="\n")
    return code

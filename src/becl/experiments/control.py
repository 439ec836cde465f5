"""`becl control`: frozen skills put to use. A controller picks the skill that acts, and learns which to pick by a task.

The task is one of the run's own, or any environment whose observation begins with that of the pretrained one: policies
see this beginning, the controller all of it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from becl.envs.external import is_external
from becl.errors import UserError
from becl.experiments.environments import spec_of
from becl.experiments.finetuning import Finetuning, load_finetuning, make_finetuning, resolve_tasks
from becl.experiments.pretraining import Pretraining, load_pretraining
from becl.options import ControlOptions, FinetuneOptions
from becl.runs.callbacks import Row
from becl.runs.folder import folder_name
from becl.runs.log import readable
from becl.runs.tables import read_rows
from becl.skills import NoSkill
from becl.terminal import console, table

INTERVALS = {"decision": 50, "learned": 10}
"""Steps between decisions, by what stops a skill."""
SWITCH_COST = 0.05


def make_control(options: ControlOptions) -> Finetuning:
    """A controller's run from options; validated, nothing allocated yet."""
    pretraining = load_pretraining(options.run)
    if isinstance(pretraining.run.objective.skills, NoSkill):
        raise UserError(f"{options.run}: {pretraining.method} has no skills to pick from; becl finetune learns tasks")
    check_beside(options.beside)
    return make_finetuning(as_finetuning(options), resolve=tasks_of_control)


def as_finetuning(options: ControlOptions) -> FinetuneOptions:
    """The same as options of finetuning, whose loop it is."""
    learned = options.stop == "learned"
    if options.switch_cost is not None and not learned:
        raise UserError(f"--switch-cost {options.switch_cost:g}: only with --stop learned")
    if options.switch_cost is not None and not 0 < options.switch_cost < float("inf"):
        raise UserError(f"--switch-cost {options.switch_cost:g}: must be greater than 0 and finite")
    interval = INTERVALS[options.stop] if options.interval is None else options.interval
    if interval < 1:
        raise UserError(f"--interval {interval}: at least 1 is needed")
    own = [f"learner.interval={interval}"]
    if learned:
        own.append(f"learner.switch_cost={SWITCH_COST if options.switch_cost is None else options.switch_cost}")
    same = ("run", "task", "seeds", "snapshot", "steps", "eval_every", "eval_episodes", "final_episodes", "envs",
            "precision", "checkpoint_every", "wandb", "dry_run", "trust")  # fmt: skip
    given: dict[str, Any] = {name: getattr(options, name) for name in same}
    return FinetuneOptions(**given, out=out_of(options), skill="meta", set=(*own, *options.set))


def out_of(options: ControlOptions) -> Path:
    """The folder of the results."""
    if options.out is not None:
        return options.out
    pretraining = load_pretraining(options.run)
    tasks = tasks_of_control(options.task, pretraining)
    domain = tasks[0] if is_external(tasks[0]) else tasks[0].partition("_")[0]
    return Path("runs") / folder_name("control", domain, pretraining.method)


def tasks_of_control(tasks: Sequence[str], pretraining: Pretraining | None) -> tuple[str, ...]:
    """The run's own tasks, or another environment that its policies can act in."""
    assert pretraining is not None
    if len(tasks) != 1 or not is_external(tasks[0]) or tasks[0] == pretraining.env:
        return resolve_tasks(tasks, pretraining)
    spec, own = spec_of(tasks[0]), pretraining.run.env
    same = (spec.action_dim, spec.discrete) == (own.action_dim, own.discrete)
    if pretraining.run.vision is not None or not same or spec.obs_dim < own.obs_dim:
        raise UserError(
            f"--task {tasks[0]}: {spec.obs_dim} numbers and {spec.action_dim} actions; a task for skills of "
            f"{pretraining.env} needs {own.action_dim} actions, and its {own.obs_dim} numbers first"
        )
    return tuple(tasks)


# --- Beside other runs ------------------------------------------------------------------------------------------------


def check_beside(folders: Sequence[Path]) -> None:
    """Refuses folders that nothing can be compared with."""
    for folder in folders:
        load_finetuning(folder)
        if not final_rows(folder):
            raise UserError(f"--beside {folder}: it has no final scores yet (final.csv)")


def final_rows(folder: Path) -> list[Row]:
    path = folder / "final.csv"
    return read_rows(path) if path.exists() else []


def show_beside(finetuning: Finetuning, out: Path, beside: Sequence[Path]) -> None:
    """The final scores of the controller and of other runs on the same tasks; what to run where there are none."""
    lines = [[name, *cells] for name, cells in compared(finetuning.tasks, [out, *beside])]
    title = "final score: mean over seeds ± its standard error"
    console().print(table(title, ["run", *finetuning.tasks], lines))
    if not beside:
        print("to see other runs here, add --beside FOLDER … of becl finetune on the same tasks")


def compared(tasks: Sequence[str], folders: Sequence[Path]) -> list[tuple[str, list[str]]]:
    """Name and scores of each folder, a text for each task."""
    found = []
    for folder in folders:
        rows = final_rows(folder)
        cells = []
        for task in tasks:
            scores = np.array([float(row["return"]) for row in rows if row["task"] == task])
            error = f" ± {readable(float(scores.std(ddof=1) / len(scores) ** 0.5))}" if len(scores) > 1 else ""
            cells.append(f"{readable(float(scores.mean()))}{error}" if len(scores) else "")
        found.append((str(folder), cells))
    return found

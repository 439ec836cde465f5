"""The last lines that a finished run prints: whether anything was learned, and the next command to type."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from becl.envs.external import is_external
from becl.errors import UserError
from becl.experiments.encoder_weights import KEPT, encoder_of
from becl.experiments.finetuning import Finetuning
from becl.experiments.maze_study import load_study
from becl.experiments.pretraining import Pretraining, load_pretraining
from becl.measure.verdicts import Verdict, judge_returns, judge_reward
from becl.options import PretrainOptions
from becl.plugins import origins_of
from becl.runs.metrics import read_metrics
from becl.seeds import seeds_text

Row = Mapping[str, Any]


def pretraining_verdict(pretraining: Pretraining, columns: Mapping[str, Float[np.ndarray, "..."]]) -> Verdict:
    """The verdict on a pretraining run from the columns of its metrics."""
    skills = pretraining.run.objective.skills.dim > 0
    return judge_reward(pretraining.method, columns["step"], columns["reward"], pretraining.chance, skills)


def pretraining_lines(pretraining: Pretraining, out: Path) -> list[str]:
    """The verdict on a finished pretraining run, and what to do next."""
    try:
        verdict = pretraining_verdict(pretraining, read_metrics(out))
    except UserError:  # Somebody removed the table.
        return []
    return [verdict.sentence, next_step(pretraining, out, verdict.learned)]


def next_step(pretraining: Pretraining, out: Path, learned: bool | None) -> str:
    """Suggests the next command to type."""
    folder, longer = shlex.quote(str(out)) + others_code(pretraining), PretrainOptions.steps
    if learned is False and pretraining.steps < longer:
        return f"train longer (default: {longer:,} steps): becl resume {folder} --steps {longer}"
    if learned and not is_external(pretraining.env):
        return f"look at them: becl gallery {folder} · measure what they do: becl evaluate {folder}"
    return f"measure what the policy does: becl evaluate {folder}"


def others_code(pretraining: Pretraining) -> str:
    """The words that a command needs besides the folder of a run whose method or environment is from outside."""
    words = [f" --plugin {shlex.quote(word)}" for word in origins_of(pretraining.config()).values()]
    kind, _, name = pretraining.env.partition(":")
    outside = kind == "py" or (kind == "gym" and "/" in name)
    return "".join(dict.fromkeys(words)) + (" --trust" if outside else "")


def known_chance(folder: Path) -> float | None:
    """The chance level of a pretrained folder's reward; None if its method has none, or is not known here."""
    try:
        return load_pretraining(folder).chance
    except UserError:
        return None


def study_chances(folder: Path) -> dict[str, float | None]:
    """The chance levels of a maze study's runs, by label."""
    try:
        study = load_study(folder, seeds=())
    except UserError:
        return {}
    return {label: study.chance(label) for label in study.runs}


def finetuning_lines(finetuning: Finetuning, rows: Sequence[Row], out: Path) -> list[str]:
    """How each task's return changed from the first evaluation to the last, and what to compare it with."""
    lines = [verdict.sentence for verdict in task_verdicts(finetuning.tasks, rows)]
    if finetuning.snapshot is None:
        folder = shlex.quote(str(out))
        return [*lines, f"compare with pretrained skills: becl finetune RUN, then becl report FOLDER {folder}"]
    words = ["becl", "finetune", "--scratch", "--task", *finetuning.tasks, "--steps", str(finetuning.steps)]
    words += ["--seeds", seeds_text(finetuning.seeds)] + ([] if finetuning.run.vision is None else ["--pixels"])
    if encoder_of(finetuning.run) is not None:
        words += ["--encoder", "pieg", "--encoder-weights", str(out / KEPT)]
    return [*lines, f"compare with learning from scratch: {shlex.join(words)}"]


def task_verdicts(tasks: Sequence[str], rows: Sequence[Row]) -> list[Verdict]:
    """One verdict per task that was evaluated more than once, from the rows of scores.csv, whose lanes are in order."""
    verdicts = []
    for task in tasks:
        own = [row for row in rows if row["task"] == task]
        steps = sorted({int(row["step"]) for row in own})
        first, last = ([row for row in own if int(row["step"]) == step] for step in (steps[:1] + steps[-1:]) or (0, 0))
        if len(steps) > 1 and len(first) == len(last):
            before, after = (np.array([float(row["return"]) for row in ends]) for ends in (first, last))
            verdicts.append(judge_returns(task, before, after, float(last[0]["stderr"] or "nan")))
    return verdicts

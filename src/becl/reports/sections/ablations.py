"""Runs that differ in one option of pretraining only."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from becl.reports import figures
from becl.reports.comparisons import ablations, summarise
from becl.reports.configurations import Configuration
from becl.reports.names import pretty_task, sorted_tasks
from becl.reports.options import SKILLS, TEMPERATURE
from becl.reports.sections.section import Picture, Section


class Varied(NamedTuple):
    """An option that is worth a figure where runs differ in it alone."""

    option: str
    name: str
    title: str
    column: str
    axis: str
    logarithmic: bool


VARIED = (
    Varied(SKILLS, "skill-count", "Number of skills", "skills", "number of skills", False),
    Varied(TEMPERATURE, "temperature", "Temperature", "temperature", "temperature κ", True),
)


def ablation_section(configurations: Sequence[Configuration]) -> Section | None:
    pictures, data = [], {}
    caption = "All else equal: mean over seeds with its standard error, small dots are seeds."
    for varied in VARIED:
        lines: dict[str, dict[str, dict[float, Float[np.ndarray, " seeds"]]]] = {}
        for group in ablations(configurations, varied.option):
            for value, one in sorted(group.by_value.items()):
                for task in one.outcomes:
                    lines.setdefault(task, {}).setdefault(group.label, {})[value] = one.scores(task)
        if not lines:
            continue
        lines = {task: lines[task] for task in sorted_tasks(lines)}
        by_task = {pretty_task(task): by_label for task, by_label in lines.items()}
        figure = figures.ablation(by_task, varied.axis, varied.logarithmic)
        pictures.append(Picture(varied.name, varied.title, caption, figure))
        data[varied.name] = [
            {"label": label, "task": task, varied.column: value, **summarise(scores)._asdict()}
            for task, by_label in lines.items()
            for label, by_value in by_label.items()
            for value, scores in by_value.items()
        ]
    if not pictures:
        return None
    text = "Runs that differ in one option of pretraining only."
    return Section("ablations", "Ablations", [text], pictures=pictures, data=data)

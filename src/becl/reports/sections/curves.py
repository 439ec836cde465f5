"""Return while skills are finetuned."""

from collections.abc import Sequence

import numpy as np

from becl.reports import figures
from becl.reports.configurations import Configuration, all_tasks
from becl.reports.figures import Cloud
from becl.reports.folders import Curve
from becl.reports.names import pretty_task
from becl.reports.sections.section import Picture, Section
from becl.views.figures.colors import Styles


def curve_section(configurations: Sequence[Configuration], styles: Styles) -> Section:
    curves = {
        pretty_task(task): {one.label: curve_of(one, task) for one in configurations if task in one.outcomes}
        for task in all_tasks(configurations)
    }
    data = [
        {"label": one.label, "task": task, "seed": seed, "skill": "" if skill is None else skill,
         "step": int(step), "return": float(value)}
        for one in configurations
        for task, seeds in one.outcomes.items()
        for seed, outcome in seeds.items()
        for skill, curve in outcome.by_skill.items()
        for step, value in zip(curve.steps, curve.returns, strict=True)
    ]  # fmt: skip
    return Section(
        "curves",
        "Finetuning curves",
        ["Return of the deterministic policy while it is finetuned: mean over seeds, band: ± one standard error."],
        pictures=[Picture("curves", "Finetuning curves", "", figures.finetuning_curves(curves, styles))],
        data={"curves": data},
    )


def curve_of(one: Configuration, task: str) -> Cloud:
    """Returns at the steps that all seeds were evaluated at, mean over skills where each was finetuned."""
    return cloud_of([list(outcome.by_skill.values()) for outcome in one.outcomes[task].values()])


def cloud_of(curves: Sequence[Sequence[Curve]]) -> Cloud:
    """Curves of seeds, several of a seed where each skill was finetuned."""
    steps = sorted(set.intersection(*(set(curve.steps.tolist()) for group in curves for curve in group)))
    values = [
        np.mean([curve.returns[np.searchsorted(curve.steps, steps)] for curve in group], axis=0) for group in curves
    ]
    return Cloud(np.array(steps), np.array(values))

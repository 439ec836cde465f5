"""Does pretraining help? Every method beside runs that learned the same tasks from scratch."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from becl.measure import stats
from becl.measure.published import EXPERT
from becl.measure.stats import Interval
from becl.reports.configurations import Configuration, all_tasks
from becl.reports.names import domain_of, sorted_tasks
from becl.reports.sections.section import Section, cautions
from becl.reports.tables import Cell, Table, interval_cell, or_blank


class Gain(NamedTuple):
    """What pretraining wins over learning the same tasks from scratch, on one robot."""

    robot: str
    label: str
    tasks: tuple[str, ...]
    pretrained: float
    """Mean of returns over the expert's."""
    scratch: float
    difference: Interval

    @property
    def helps(self) -> bool | None:
        """Whether the interval of the difference lies above 0; None where there is no interval."""
        return self.difference.low > 0 if math.isfinite(self.difference.low) else None

    @property
    def verdict(self) -> str:
        change, low, high, _ = self.difference
        if self.helps is None:
            return f"no interval with so few runs; the difference is {change:+.2f}"
        bounds = f"the difference is {change:+.2f} [{low:+.2f}, {high:+.2f}]"
        if self.helps:
            return f"pretraining helps: {bounds}"
        return f"pretraining did {'harm' if high < 0 else 'not help'}: {bounds}"


def gains(configurations: Sequence[Configuration], resamples: int) -> list[Gain]:
    """Each pretrained configuration against the runs from scratch on the same robot, over the tasks both have."""
    baselines = [one for one in configurations if one.options.get("pretraining", "") is None]
    found = []
    for robot in dict.fromkeys(domain_of(task) for task in all_tasks(configurations) if task in EXPERT):
        for one in configurations:
            for baseline in baselines if one not in baselines else ():
                both = [task for task in sorted_tasks(one.outcomes) if task in baseline.outcomes and task in EXPERT]
                if tasks := tuple(task for task in both if domain_of(task) == robot):
                    scores, other = (
                        {task: which.scores(task) / EXPERT[task] for task in tasks} for which in (one, baseline)
                    )
                    label = one.label if len(baselines) == 1 else f"{one.label} against {baseline.label}"
                    difference = stats.improvement_interval(scores, other, resamples, statistic=stats.difference)
                    means = float(stats.mean(scores)), float(stats.mean(other))
                    found.append(Gain(robot, label, tasks, *means, difference))
    return found


def outcome(found: Sequence[Gain]) -> str:
    """The comparison that pretraining wins most in, and how many others it wins."""
    if not found:
        return ""
    best = max(found, key=lambda gain: (gain.helps is True, gain.helps is not None, gain.difference.value))
    scores = f"{best.pretrained:.2f} of the expert's return, {best.scratch:.2f} from scratch"
    change, low, high, _ = best.difference
    bounds = f" [{low:+.2f}, {high:+.2f}]" if best.helps is not None else ", and too few runs for an interval"
    where = f"{best.label} on {best.robot}: {scores}, a difference of {change:+.2f}{bounds}."
    if best.helps is None:
        return f"Whether pretraining helps cannot be said yet. {where}"
    if not best.helps:
        return f"Pretraining was not shown to help; it came closest with {where}"
    if best.difference.warning:
        return f"Pretraining may help; there are too few runs to be sure. Most with {where}"
    count = sum(bool(gain.helps) for gain in found)
    return f"Pretraining helps{f' in {count} of {len(found)} comparisons, most' if len(found) > 1 else ''} with {where}"


def help_section(configurations: Sequence[Configuration], resamples: int) -> Section | None:
    """The first question of a reader: is it better than no pretraining at all?"""
    pretrained = [one for one in configurations if one.options.get("pretraining", "") is not None]
    if not any(task in EXPERT for one in pretrained for task in one.outcomes):
        return None
    found = gains(configurations, resamples)
    compared = {(gain.robot, task) for gain in found for task in gain.tasks}
    notes = [f"{gain.robot}, {gain.label}: {gain.verdict}." for gain in found if not gain.helps]
    for robot in dict.fromkeys(domain_of(task) for task in all_tasks(pretrained) if task in EXPERT):
        if not any(robot == one for one, _ in compared):
            tasks = [task for task in all_tasks(pretrained) if domain_of(task) == robot]
            notes.append(
                f"{robot}: nothing to compare with. Add runs without pretraining: "
                f"becl finetune --scratch --task {' '.join(tasks)}"
            )
    notes += cautions({f"{gain.robot}, {gain.label}": [gain.difference] for gain in found if gain.helps is not None})
    head = [Cell(name) for name in ("robot", "method", "tasks", "mean", "from scratch", "difference", "verdict")]
    rows = [
        [
            Cell(gain.robot), Cell(gain.label), Cell(str(len(gain.tasks)), len(gain.tasks)),
            Cell(f"{gain.pretrained:.3f}", gain.pretrained), Cell(f"{gain.scratch:.3f}", gain.scratch),
            interval_cell(gain.difference), Cell(gain.verdict.partition(":")[0].partition(";")[0]),
        ]
        for gain in found
    ]  # fmt: skip
    data = [
        {
            "robot": gain.robot, "label": gain.label, "tasks": len(gain.tasks), "mean": gain.pretrained,
            "scratch": gain.scratch, "difference": gain.difference.value, "low": or_blank(gain.difference.low),
            "high": or_blank(gain.difference.high), "warning": gain.difference.warning,
        }
        for gain in found
    ]  # fmt: skip
    return Section(
        found=outcome(found),
        name="help",
        title="Does pretraining help?",
        text=[
            "Mean of returns over the expert's, beside runs that learned the same tasks from scratch, and the "
            f"difference with its 95 % interval ({resamples:,} resamples of runs within tasks). Pretraining helps "
            "where the whole interval lies above 0."
        ],
        notes=notes,
        tables=[Table("help", "Pretrained against from scratch", head, rows)] if rows else [],
        data={"help": data} if data else {},
    )

"""What the page of a report shows, section by section: text, tables, figures, and the rows of CSV files."""

import itertools
import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from becl.measure import published, stats
from becl.measure.published import EXPERT
from becl.measure.stats import Interval
from becl.reports import figures as report_figures
from becl.reports.figures import Beside, Cloud, Styles
from becl.reports.runs import (
    PROGRAMS,
    SKILLS,
    TEMPERATURE,
    USUAL,
    Comparison,
    Configuration,
    Final,
    Folder,
    Found,
    LeftOut,
    Pretraining,
    Summary,
    ZeroShot,
    ablations,
    all_tasks,
    by_task,
    command_of,
    comparisons,
    domain_of,
    importance,
    leaders,
    listed,
    pretty_method,
    pretty_task,
    short,
    skill_choices,
    sorted_tasks,
    summarise,
)
from becl.runs.metrics import run_labels
from becl.runs.progress import clock, counted
from becl.views import figures

Row = dict[str, Any]
Aggregates = Mapping[str, Mapping[str, Interval]]
"""By label and name of the aggregate."""


class Cell(NamedTuple):
    """What a table shows in one place, and what it is sorted by."""

    text: str
    value: float | str | None = None
    note: str = ""
    """Shown when pointed at."""
    bold: bool = False
    link: str = ""
    code: bool = False


class Table(NamedTuple):
    name: str
    caption: str
    head: list[Cell]
    rows: list[list[Cell]]
    folded: bool = False
    """Whether a click is needed to see it."""


class Picture(NamedTuple):
    name: str
    title: str
    caption: str
    figure: Figure


@dataclass
class Section:
    """A part of the page, and the files that belong to it."""

    name: str
    title: str
    text: list[str]
    notes: list[str] = field(default_factory=list)
    """Reasons for caution."""
    pictures: list[Picture] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    data: dict[str, list[Row]] = field(default_factory=dict)
    """CSV files by name."""
    hint: str = ""
    """What one can do with the page."""


def build(found: Found, resamples: int) -> list[Section]:
    """Every section for which there is something to say."""
    configurations = found.configurations
    styles = figures.method_styles([one.label for one in configurations])
    compared = comparisons(configurations)
    sections: list[Section | None] = []
    overall: Aggregates = {}
    if configurations:
        sections.append(help_section(configurations, fewer(resamples)))
        sections.append(task_section(configurations))
    if compared:
        main, *robots = compared
        overall = {label: stats.aggregates(scores, resamples) for label, scores in main.scores.items()}
        sections.append(aggregate_section(main, overall, robots, styles, resamples))
        sections.append(profile_section(main, styles, fewer(resamples)))
    if configurations:
        sections.append(curve_section(configurations, styles))
        sections.append(skill_section(configurations))
        sections.append(ablation_section(configurations))
    if found.pretrainings:
        labelled = pretraining_labels(found.pretrainings)
        sections.append(zero_shot_section(labelled))
        sections.append(gallery_section(labelled))
        sections.append(pretraining_section(labelled))
    if configurations:
        complete = bool(compared) and set(compared[0].tasks) == set(EXPERT)
        sections.append(published_section(configurations, overall if complete else {}))
    sections.append(origin_section(found))
    sections.append(left_out_section(found.left_out))
    return [section for section in sections if section is not None]


def fewer(resamples: int) -> int:
    """Resamples of what takes longer than an aggregate."""
    return max(1, resamples // 5)


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
    made = []
    for robot in dict.fromkeys(domain_of(task) for task in all_tasks(configurations) if task in EXPERT):
        for one in configurations:
            for baseline in baselines if one not in baselines else ():
                both = [task for task in sorted_tasks(one.outcomes) if task in baseline.outcomes and task in EXPERT]
                if tasks := tuple(task for task in both if domain_of(task) == robot):
                    scores, other = (
                        {task: which.scores(task) / EXPERT[task] for task in tasks} for which in (one, baseline)
                    )
                    label = one.label if len(baselines) == 1 else f"{one.label} against {baseline.label}"
                    found = stats.difference_interval(scores, other, resamples)
                    made.append(Gain(robot, label, tasks, float(stats.mean(scores)), float(stats.mean(other)), found))
    return made


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
    head = [Cell(name) for name in ("robot", "method", "tasks", "mean", "from scratch", "difference", "verdict")]
    rows = [
        [
            Cell(gain.robot), Cell(gain.label), Cell(str(len(gain.tasks)), len(gain.tasks)),
            Cell(f"{gain.pretrained:.3f}", gain.pretrained), Cell(f"{gain.scratch:.3f}", gain.scratch),
            _interval_cell(gain.difference), Cell(gain.verdict.partition(":")[0].partition(";")[0]),
        ]
        for gain in found
    ]  # fmt: skip
    data = [
        {
            "robot": gain.robot, "label": gain.label, "tasks": len(gain.tasks), "mean": gain.pretrained,
            "scratch": gain.scratch, "difference": gain.difference.value, "low": _or_blank(gain.difference.low),
            "high": _or_blank(gain.difference.high), "warning": gain.difference.warning,
        }
        for gain in found
    ]  # fmt: skip
    return Section(
        "help",
        "Does pretraining help?",
        [
            "Mean of returns over the expert's, beside runs that learned the same tasks from scratch, and the "
            f"difference with its 95 % interval ({resamples:,} resamples of runs within tasks). Pretraining helps "
            "where the whole interval lies above 0."
        ],
        notes=notes,
        tables=[Table("help", "Pretrained against from scratch", head, rows)] if rows else [],
        data={"help": data} if data else {},
    )


def task_section(configurations: Sequence[Configuration]) -> Section:
    summaries = by_task(configurations)
    head = [Cell("task"), *(Cell(one.label, note=counted(_usual_seeds(one), "seed")) for one in configurations)]
    rows = [
        [
            Cell(pretty_task(task), task, note=task),
            *(_score_cell(one, number, task, row) for number, one in enumerate(configurations)),
        ]
        for task, row in summaries.items()
    ]
    data = [
        {
            "task": task, "label": label, "mean": one.mean, "stderr": _or_blank(one.error),
            "seeds": one.seeds, "leader": int(label in leaders(row)),
        }
        for task, row in summaries.items()
        for label, one in row.items()
    ]  # fmt: skip
    return Section(
        "tasks",
        "Return on each task",
        [
            "Mean ± standard error over seeds of the undiscounted return of an episode at the end of finetuning, "
            "with the deterministic policy. The highest mean of a task is bold.",
            *evaluation_notes(configurations),
        ],
        hint="Point at a number for its seeds, follow it to the commands that made it, and sort by a column with its "
        "arrow.",
        tables=[Table("tasks", "Return after finetuning", head, rows)],
        data={"tasks": data, "scores": score_rows(configurations)},
    )


def evaluation_notes(configurations: Sequence[Configuration]) -> Iterator[str]:
    """How scores were measured, and how well: episodes, and the error that their number leaves."""
    every = [outcome for one in configurations for seeds in one.outcomes.values() for outcome in seeds.values()]
    counts = sorted({final.episodes for outcome in every for final in outcome.final.values()})
    if counts:
        errors = [outcome.error for outcome in every if math.isfinite(outcome.error)]
        away = [abs(outcome.score - outcome.curve_score) for outcome in every if outcome.final]
        yield (
            f"A run's score is its mean over {listed([f'{count:,}' for count in counts])} episodes after the last "
            "step, with the same starts for every method. "
            + (f"The error of such an evaluation alone is {np.mean(errors):.0f} on average. " if errors else "")
            + f"The last point of its curve, over fewer episodes, is {np.mean(away):.0f} away from it on average."
        )
    if older := sum(not outcome.final for outcome in every):
        which = "Every run's" if older == len(every) else f"Of {counted(older, 'run')} of {len(every):,} the"
        yield f"{which} score is the last point of the curve: these runs have no final evaluation (final.csv)."


def _usual_seeds(one: Configuration) -> int:
    counts = [len(seeds) for seeds in one.outcomes.values()]
    return max(counts, key=counts.count)


def _score_cell(one: Configuration, number: int, task: str, row: Mapping[str, Summary]) -> Cell:
    """Of the configuration of this number on the page."""
    if one.label not in row:
        return Cell("–")
    summary = row[one.label]
    text = _plus_minus(summary) + (f" (n={summary.seeds})" if summary.seeds != _usual_seeds(one) else "")
    each = ", ".join(
        f"{seed}: {outcome.score:.0f}" + (f" ± {outcome.error:.0f}" if math.isfinite(outcome.error) else "")
        for seed, outcome in one.outcomes[task].items()
    )
    note = f"{one.label}, {task}, seed: return ± error of the evaluation – {each}"
    return Cell(text, summary.mean, note, one.label in leaders(row), f"#runs-{number}")


def _plus_minus(summary: Summary) -> str:
    return f"{summary.mean:.0f}" + ("" if math.isnan(summary.error) else f" ± {summary.error:.0f}")


def _or_blank(number: int | float | None) -> int | float | str:
    """For a CSV: nothing where there is no number."""
    return "" if number is None or math.isnan(number) else number


def score_rows(configurations: Sequence[Configuration]) -> list[Row]:
    """A row a score, with the command that made it."""
    return [
        {
            "label": one.label, "method": one.method, "task": task, "seed": seed,
            "skill": curve.skill, "step": int(curve.steps[-1]), "return": outcome.score_of(skill),
            **_final_columns(outcome.final.get(skill)), "curve_return": float(curve.returns[-1]),
            "folder": outcome.folder, "command": outcome.command,
        }
        for one in configurations
        for task, seeds in one.outcomes.items()
        for seed, outcome in seeds.items()
        for skill, curve in outcome.by_skill.items()
    ]  # fmt: skip


def _final_columns(final: Final | None) -> Row:
    return {"episodes": final.episodes if final else "", "evaluation_stderr": _or_blank(final.error if final else None)}


def aggregate_section(
    main: Comparison, overall: Aggregates, robots: Sequence[Comparison], styles: Styles, resamples: int
) -> Section:
    """All aggregates over the shared tasks; of each robot only the interquartile mean."""
    leader = max(overall, key=lambda label: overall[label]["iqm"].value)
    by_scope = {main.name: overall} | {
        one.name: {label: {"iqm": stats.interval(s, stats.iqm, resamples)} for label, s in one.scores.items()}
        for one in robots
    }
    data = [
        {
            "tasks": one.name, "task_count": len(one.tasks), "label": label, "aggregate": name,
            "value": value.value, "low": value.low, "high": value.high, "warning": value.warning,
        }
        for one in (main, *robots)
        for label, values in by_scope[one.name].items()
        for name, value in values.items()
    ]  # fmt: skip
    figure = report_figures.aggregates(overall, report_figures.TITLES, styles)
    caption = f"Over {len(main.tasks)} tasks; black: the value, bar: its 95 % interval."
    pictures = [Picture("aggregates", "Aggregates", caption, figure)]
    if robots:
        pictures.append(robot_picture({one.name: by_scope[one.name] for one in robots}, styles))
    return Section(
        "aggregates",
        "Aggregates",
        [
            f"Scores are returns divided by the expert's, over {len(main.tasks)} tasks: {', '.join(main.tasks)}. "
            "IQM is the mean of the middle half of all runs, the optimality gap what runs lack of the expert on "
            "average (less is better), the median that of the tasks' means. In brackets 95 % intervals of a bootstrap "
            f"over runs, stratified by task ({resamples:,} resamples).",
            f"The last column is the probability that a run of {leader}, which leads by IQM, is better than one of the "
            f"row's on the same task, averaged over tasks ({fewer(resamples):,} resamples).",
        ],
        notes=_warnings(overall),
        pictures=pictures,
        tables=[aggregate_table(main, overall, leader, fewer(resamples))],
        data={"aggregates": data},
    )


def aggregate_table(main: Comparison, overall: Aggregates, leader: str, resamples: int) -> Table:
    titles = {name: title.rstrip(" ↑↓") for name, title in report_figures.TITLES.items()}
    best = {name: max(values[name].value for values in overall.values()) for name in titles}
    best["optimality_gap"] = min(values["optimality_gap"].value for values in overall.values())
    rows = []
    for label, values in overall.items():
        scores = main.scores[label]
        cells = [Cell(label), *(_interval_cell(values[name], values[name].value == best[name]) for name in titles)]
        if label == leader:
            cells.append(Cell("–"))
        else:
            cells.append(_interval_cell(stats.improvement_interval(main.scores[leader], scores, resamples)))
        count = sum(map(len, scores.values()))
        rows.append([*cells, Cell(str(count), count)])
    head = [Cell("method"), *map(Cell, titles.values()), Cell("P(leader is better)"), Cell("runs")]
    return Table("aggregates", "Aggregates with 95 % intervals", head, rows)


def robot_picture(robots: Mapping[str, Aggregates], styles: Styles) -> Picture:
    by_label = {
        label: {robot: rows[label]["iqm"] for robot, rows in robots.items() if label in rows} for label in styles
    }
    return Picture(
        "robots",
        "IQM of each robot",
        "Interquartile mean over the tasks of one robot, with its 95 % interval.",
        report_figures.aggregates(
            {label: values for label, values in by_label.items() if values},
            {robot: f"{robot}, IQM" for robot in robots},
            styles,
        ),
    )


def _interval_cell(interval: Interval, bold: bool = False) -> Cell:
    bounds = f" [{interval.low:.3f}, {interval.high:.3f}]" if math.isfinite(interval.low) else ""
    return Cell(f"{interval.value:.3f}{bounds}", interval.value, interval.warning, bold)


def _warnings(rows: Aggregates) -> list[str]:
    """Each warning once, with the methods it is about."""
    about: dict[str, list[str]] = {}
    for label, values in rows.items():
        for warning in dict.fromkeys(value.warning for value in values.values() if value.warning):
            about.setdefault(warning, []).append(label)
    return [
        f"{'All' if len(labels) == len(rows) else '; '.join(labels)}: {warning}" for warning, labels in about.items()
    ]


PROFILE_POINTS = 121


def profile_section(compared: Comparison, styles: Styles, resamples: int) -> Section:
    top = max(1.0, *(float(scores.max()) for tasks in compared.scores.values() for scores in tasks.values()))
    thresholds = np.linspace(0, math.ceil(10 * top) / 10, PROFILE_POINTS)
    curves = {label: stats.profile_band(scores, thresholds, resamples) for label, scores in compared.scores.items()}
    data = [
        {"label": label, "score": float(score), "part": float(part), "low": float(low), "high": float(high)}
        for label, curve in curves.items()
        for score, part, low, high in zip(curve.thresholds, curve.value, curve.low, curve.high, strict=True)
    ]
    caption = f"Over {len(compared.tasks)} tasks."
    return Section(
        "profiles",
        "Performance profiles",
        [
            "Which part of a method's runs has a score above τ, every task weighing the same. A curve above another "
            "everywhere is better whatever is asked for; the area under a curve is the mean score. Bands are 95 % "
            f"intervals at each τ ({resamples:,} resamples)."
        ],
        pictures=[Picture("profiles", "Performance profiles", caption, report_figures.profiles(curves, styles))],
        data={"profiles": data},
    )


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
        pictures=[Picture("curves", "Finetuning curves", "", report_figures.finetuning_curves(curves, styles))],
        data={"curves": data},
    )


def curve_of(one: Configuration, task: str) -> Cloud:
    """Returns at the steps that all seeds were evaluated at, mean over skills where each was finetuned."""
    curves = [list(outcome.by_skill.values()) for outcome in one.outcomes[task].values()]
    steps = sorted(set.intersection(*(set(curve.steps.tolist()) for group in curves for curve in group)))
    values = [
        np.mean([curve.returns[np.searchsorted(curve.steps, steps)] for curve in group], axis=0) for group in curves
    ]
    return Cloud(np.array(steps), np.array(values))


def skill_section(configurations: Sequence[Configuration]) -> Section | None:
    each = [one for one in configurations if one.options["skill"] == "each"]
    choices = skill_choices(configurations)
    if not each and not choices:
        return None
    pictures = [skill_picture(_name_of("skills", number, len(each)), one) for number, one in enumerate(each)]
    pictures += [choice_picture(_name_of("choices", i, len(choices)), group) for i, group in enumerate(choices)]
    data = [
        {"method": pretty_method(one.method), "choice": choice, "label": one.label, "task": task,
         **summarise(one.scores(task))._asdict()}
        for group in choices
        for choice, one in group.items()
        for task in one.outcomes
    ]  # fmt: skip
    return Section(
        "skills",
        "Choice of the skill",
        [
            "Where each skill was finetuned, a run counts in all tables as the mean over its skills, which is what a "
            "skill drawn at random gives; the best skill is known only afterwards and counts nowhere. Skills of "
            "different seeds have nothing to do with each other."
        ],
        pictures=pictures,
        data={"choices": data} if data else {},
    )


def _name_of(name: str, number: int, count: int) -> str:
    """Of a file that may be one of several."""
    return name if count == 1 else f"{name}-{number + 1}"


def skill_picture(name: str, one: Configuration) -> Picture:
    """Where every skill was finetuned."""
    returns = {
        pretty_task(task): {
            seed: {int(skill or 0): outcome.score_of(skill) for skill in outcome.by_skill}
            for seed, outcome in seeds.items()
        }
        for task, seeds in one.outcomes.items()
    }
    caption = f"{one.label}: a dot is a seed, a bar the mean over seeds, the dashed line the mean over skills."
    return Picture(name, "Return by skill", caption, report_figures.skill_bars(returns))


def choice_picture(name: str, group: Mapping[str, Configuration]) -> Picture:
    bars = {
        pretty_task(task): {choice: one.scores(task) for choice, one in group.items() if task in one.outcomes}
        for task in all_tasks(group.values())
    }
    method = pretty_method(next(iter(group.values())).method)
    caption = f"{method}: how the skill for a task is chosen; bars are means with standard errors, dots seeds."
    return Picture(name, "Choice of the skill", caption, report_figures.choice_bars(bars))


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
        shown = {pretty_task(task): by_label for task, by_label in lines.items()}
        figure = report_figures.ablation(shown, varied.axis, varied.logarithmic)
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


def pretraining_labels(pretrainings: Sequence[Pretraining]) -> dict[str, Pretraining]:
    configs = [one.config | {"method": pretty_method(one.config["method"])} for one in pretrainings]
    return dict(zip(run_labels([one.path for one in pretrainings], configs), pretrainings, strict=True))


def zero_shot_section(pretrainings: Mapping[str, Pretraining]) -> Section | None:
    last = {label: one.zero_shot[-1] for label, one in pretrainings.items() if one.zero_shot}
    if not last:
        return None
    every = [(label, measured) for label, one in pretrainings.items() for measured in one.zero_shot]
    data = [
        {"run": label, "snapshot": measured.snapshot, "seed": seed, "skill": skill, "task": task, "return": value}
        for label, measured in every
        for (seed, skill, task), value in measured.rows.items()
    ]
    head = [Cell(name) for name in ("run", "snapshot", "task", "mean over skills", "best skill", "seeds", "command")]
    rows = [row for label, measured in every for row in zero_shot_rows(label, measured)]
    return Section(
        "zero-shot",
        "Skills without training",
        [
            "Return of every pretrained skill on every task of its robot, with the deterministic policy. Skills of "
            "different seeds have nothing to do with each other, so each seed has a map of its own. In the table: mean "
            "± standard error over seeds; the best skill is chosen with hindsight."
        ],
        pictures=[
            zero_shot_picture(_name_of("zero-shot", number, len(last)), label, measured)
            for number, (label, measured) in enumerate(last.items())
        ],
        tables=[Table("zero-shot", "Zero-shot returns", head, rows, folded=True)],
        data={"zero-shot": data},
    )


def zero_shot_rows(label: str, measured: ZeroShot) -> Iterator[list[Cell]]:
    """A row a task."""
    maps, tasks = zero_shot_maps(measured)
    for index, task in enumerate(tasks):
        by_seed = np.array([values[index] for values in maps.values()])
        mean, best = summarise(by_seed.mean(1)), summarise(by_seed.max(1))
        yield [
            Cell(label), Cell(short(measured.snapshot), measured.snapshot), Cell(pretty_task(task), task),
            Cell(_plus_minus(mean), mean.mean), Cell(_plus_minus(best), best.mean),
            Cell(str(mean.seeds), mean.seeds), Cell(measured.command, code=True),
        ]  # fmt: skip


def zero_shot_picture(name: str, label: str, measured: ZeroShot) -> Picture:
    """A map a seed; as part of the expert's return where that is known."""
    maps, tasks = zero_shot_maps(measured)
    known = all(task in EXPERT for task in tasks)
    scale = np.array([EXPERT[task] if known else 1.0 for task in tasks])[:, None]
    figure = report_figures.zero_shot(
        {f"seed {seed}": values / scale for seed, values in maps.items()},
        [pretty_task(task) for task in tasks],
        "return / expert's" if known else "return",
        1.0 if known else None,
    )
    drawn = report_figures.MOST_MAPS
    some = f" The first {drawn} of {len(maps)} seeds." if len(maps) > drawn else ""
    caption = f"{label} after {short(measured.snapshot)} steps of pretraining, no finetuning.{some}"
    return Picture(name, "Zero-shot returns", caption, figure)


def zero_shot_maps(measured: ZeroShot) -> tuple[dict[int, Float[np.ndarray, "tasks skills"]], list[str]]:
    """Returns by seed, and the tasks."""
    tasks = sorted_tasks({task for _, _, task in measured.rows})
    skills = list(dict.fromkeys(skill for _, skill, _ in measured.rows))
    seeds = sorted({seed for seed, _, _ in measured.rows})
    maps = {
        seed: np.array([[measured.rows[seed, skill, task] for skill in skills] for task in tasks]) for seed in seeds
    }
    return maps, tasks


GALLERY = {
    "filmstrip": "Snapshots along one episode of each skill.",
    "trajectories": "Where skills go, a colour each.",
    "coverage": "The states that skills visit.",
    "features": "Contrastive features of states on the sphere, by skill.",
}
"""Pictures that `becl filmstrip` and `becl trajectories` leave in a run's folder."""


def gallery_section(pretrainings: Mapping[str, Pretraining]) -> Section | None:
    """What there is to look at: pictures inside the page, films and 3D pages as links."""
    pictures, notes, rows = [], [], []
    for number, (label, one) in enumerate(pretrainings.items()):
        folder = one.path / "gallery"
        for name, caption in GALLERY.items():
            path = folder / f"{name}.png"
            if not path.exists():
                continue
            try:
                figure = figures.picture(path)
            except OSError as error:
                notes.append(f"{path} cannot be read: {error}")
                continue
            pictures.append(Picture(f"gallery-{number}-{name}", f"{label}: {name}", caption, figure))
        for path in sorted([*folder.glob("*.html"), *folder.glob("*.mp4")]):
            rows.append([Cell(label), Cell(path.name, link=path.resolve().as_uri())])
    if not pictures and not notes and not rows:
        return None
    text = "What the skills of pretrained runs look like. Films and 3D pages are files beside the runs."
    table = Table("gallery", "Films and 3D pages", [Cell("run"), Cell("file")], rows, folded=len(rows) > 6)
    return Section("gallery", "Skills to look at", [text], notes, pictures, [table] if rows else [])


def pretraining_section(pretrainings: Mapping[str, Pretraining]) -> Section | None:
    by_env: dict[str, dict[str, Any]] = {}
    for label, one in pretrainings.items():
        if one.metrics is not None:
            by_env.setdefault(one.config["env"], {})[label] = one.metrics
    pictures = []
    for env, runs in by_env.items():
        name = re.sub(r"[^\w-]", "_", f"pretraining-{env}")
        figure = figures.pretraining_curves(runs)
        pictures.append(Picture(name, f"Pretraining on {env}", "Thin: seeds, bold: mean.", figure))
    table = measure_table(pretrainings)
    if not pictures and not table.rows:
        return None
    return Section(
        "pretraining",
        "Pretraining",
        ["Intrinsic rewards of different methods have nothing in common but their sign; states visited do."],
        pictures=pictures,
        tables=[table] if table.rows else [],
    )


def measure_table(pretrainings: Mapping[str, Pretraining]) -> Table:
    """What `becl evaluate` measured of the skills."""
    every = [
        (label, snapshot, measured)
        for label, one in pretrainings.items()
        for snapshot, measured in sorted(one.skills.items())
    ]
    columns = [name for name in dict.fromkeys(name for _, _, rows in every for name in rows[0]) if name != "seed"]
    rows = [
        [
            Cell(label), Cell(short(snapshot), snapshot), Cell(str(len(measured)), len(measured)),
            *(_measure_cell([row.get(name, "") for row in measured]) for name in columns),
        ]
        for label, snapshot, measured in every
    ]  # fmt: skip
    head = [Cell("run"), Cell("snapshot"), Cell("seeds"), *(Cell(name.replace("_", " ")) for name in columns)]
    caption = "What the skills do, mean ± standard error over seeds"
    return Table("skill-measures", caption, head, rows)


def _measure_cell(texts: Sequence[str]) -> Cell:
    try:
        values = np.array([float(text) for text in texts if text])
    except ValueError:
        return Cell(listed(list(dict.fromkeys(texts))))
    if not len(values):
        return Cell("–")
    mean, error, _ = summarise(values)
    shown = f"{mean:.0f}" if abs(mean) >= 1000 else f"{mean:.3g}"
    return Cell(shown + ("" if math.isnan(error) else f" ± {error:.2g}"), mean)


def published_section(configurations: Sequence[Configuration], overall: Aggregates) -> Section | None:
    """Ours and what others printed, side by side and nothing else: no statistic is made of published numbers."""
    comparable = [one for one in configurations if at_published_budget(one)]
    returns = [(one, task, theirs) for one in comparable for task, theirs in published_returns(one).items()]
    printed = {source for _, _, theirs in returns for source in theirs}
    sources = [one for one in published.sources() if one.name in printed]
    rows, data = [], []
    for one, task, theirs in returns:
        ours = summarise(one.scores(task))
        cells = [_published_cell(theirs.get(source.name)) for source in sources]
        rows.append([Cell(one.label), Cell(pretty_task(task), task), Cell(_plus_minus(ours), ours.mean), *cells])
        data += [
            {
                "label": one.label, "task": task,
                "our_mean": ours.mean, "our_stderr": _or_blank(ours.error), "our_seeds": ours.seeds,
                "published_by": row.source, "published_mean": row.value, "published_error": _or_blank(row.error),
                "published_seeds": _or_blank(row.seeds), "note": row.note,
            }
            for row in theirs.values()
        ]  # fmt: skip
    others = other_published(comparable, overall)
    used = {row["published_by"] for row in data} | {row.source for row, _ in others}
    if not used:
        return None
    tables = []
    if rows:
        head = [Cell("method"), Cell("task"), Cell("ours"), *(Cell(f"published: {one.label}") for one in sources)]
        tables.append(Table("published", "Returns, ours and published", head, rows, folded=True))
    if others:
        head = [Cell(name) for name in ("method", "what", "ours", "published", "by")]
        caption = "Sums and aggregates, ours and published"
        tables.append(Table("published-sums", caption, head, [cells for _, cells in others], folded=True))
    return Section(
        "published",
        "Beside published numbers",
        [
            "Published numbers are of other code and other versions of the simulator, and are means of runs that "
            "nobody can look at. They stand here to be compared with, and are in no other table, aggregate or figure "
            "of this page. All are after two million steps of pretraining and 100,000 of finetuning; runs with another "
            "budget are not shown beside them. The figure has one configuration a method, that nearest its defaults.",
            *(f"{one.label}: {one.citation}. {one.note}." for one in published.sources() if one.name in used),
        ],
        pictures=published_pictures(comparable, sources[0]) if sources else [],
        tables=tables,
        data={"published": data} if data else {},
    )


def at_published_budget(one: Configuration) -> bool:
    """Two million steps of pretraining or none, and 100,000 of finetuning."""
    return one.options["steps"] == USUAL["steps"] and one.options.get("snapshot") in (None, USUAL["snapshot"])


def published_method(method: str) -> str:
    """The name under which a method's numbers are published: variants of it are of the same family."""
    known = {row.method for row in published.rows()}
    return method if method in known else method.partition("-")[0]


def published_returns(one: Configuration) -> dict[str, dict[str, published.Row]]:
    """What others printed of the method on our tasks, by task and source."""
    found: dict[str, dict[str, published.Row]] = {task: {} for task in one.outcomes}
    for row in published.rows(method=published_method(one.method), measure="return"):
        if row.task in found:
            found[row.task][row.source] = row
    return {task: by_source for task, by_source in found.items() if by_source}


def _published_cell(row: published.Row | None) -> Cell:
    if row is None:
        return Cell("–")
    error = "" if row.error is None else f" ± {row.error:g}"
    note = "; ".join(part for part in (counted(row.seeds, "seed") if row.seeds else "", row.note) if part)
    return Cell(f"{row.value:g}{error}", row.value, note)


def published_pictures(comparable: Sequence[Configuration], source: published.Source) -> list[Picture]:
    """One picture, or none where the source has nothing of ours: of each method the first configuration it has."""
    besides: dict[str, Beside] = {}
    drawn = set()
    for one in comparable:
        theirs = {task: rows[source.name] for task, rows in published_returns(one).items() if source.name in rows}
        if theirs and one.method not in drawn:
            besides[one.label] = _beside(one, theirs)
            drawn.add(one.method)
    if not besides:
        return []
    caption = (
        f"Against the {source.label}: a dot a task, on the dashed line where both agree. "
        "Bars: our standard errors and the published ±."
    )
    figure = report_figures.beside_published(besides)
    return [Picture("published", "Our scores beside published ones", caption, figure)]


def _beside(one: Configuration, theirs: Mapping[str, published.Row]) -> Beside:
    ours = [summarise(one.scores(task)) for task in theirs]
    expert = np.array([EXPERT[task] for task in theirs])
    return Beside(
        np.array([summary.mean for summary in ours]) / expert,
        np.nan_to_num(np.array([summary.error for summary in ours])) / expert,
        np.array([row.value for row in theirs.values()]) / expert,
        np.array([row.error or 0.0 for row in theirs.values()]) / expert,
        tuple(domain_of(task) for task in theirs),
    )


def other_published(comparable: Sequence[Configuration], overall: Aggregates) -> list[tuple[published.Row, list[Cell]]]:
    """Published sums by robot and aggregates over all tasks, beside ours where we have all of the tasks."""
    made = []
    for one in comparable:
        for row in published.rows(method=published_method(one.method)):
            if row.measure == "return":
                continue
            mine = None
            if row.measure == "sum":
                what = f"sum of returns, {row.task}"
                tasks = [task for task in EXPERT if domain_of(task) == row.task]
                if all(task in one.outcomes for task in tasks):
                    mine = Cell(f"{sum(one.scores(task).mean() for task in tasks):.0f}")
            else:
                what = f"{row.measure.replace('_', ' ')}, all tasks"
                if one.label in overall:
                    mine = _interval_cell(overall[one.label][row.measure])
            if mine is not None:
                by = Cell(published.source(row.source).label)
                made.append((row, [Cell(one.label), Cell(what), mine, _published_cell(row), by]))
    return made


def origin_section(found: Found) -> Section:
    """For every configuration the folders and commands behind its numbers, and all of its options."""
    head = [Cell(name) for name in ("folder", "tasks", "seeds", "time", "device", "versions", "command")]
    tables = []
    for number, one in enumerate(found.configurations):
        caption = f"{one.label}: {counted(len(one.folders), 'folder')}"
        tables.append(Table(f"runs-{number}", caption, head, list(map(_folder_row, one.folders)), folded=True))
    if found.configurations:
        tables.append(option_table(found.configurations))
    if found.pretrainings:
        head = [Cell(name) for name in ("folder", "method", "environment", "seeds", "command")]
        rows = [
            [
                Cell(str(one.path), code=True), Cell(one.config["method"]), Cell(one.config["env"]),
                Cell(ranges(one.config["seeds"])), Cell(one.command, code=True),
            ]
            for one in found.pretrainings
        ]  # fmt: skip
        tables.append(Table("runs-pretraining", "Pretraining runs", head, rows, folded=True))
    return Section(
        "runs",
        "Where the numbers come from",
        [
            "The commands behind every number. A label is the method's name and whatever tells the configuration from "
            "others of the method; runs of the same configuration are merged over folders, different configurations "
            "never are. tables/scores.csv has the command of every single score."
        ],
        tables=tables,
    )


def _folder_row(folder: Folder) -> list[Cell]:
    result = folder.result
    seconds = result.get("seconds")
    timed = isinstance(seconds, int | float)
    return [
        Cell(str(folder.path), code=True),
        Cell(", ".join(sorted_tasks({task for task, _ in folder.outcomes}))),
        Cell(ranges({seed for _, seed in folder.outcomes})),
        Cell(clock(seconds), seconds) if timed else Cell(""),
        Cell(", ".join(str(result[name]) for name in ("device", "machine") if result.get(name))),
        Cell(", ".join(f"{name} {result[name]}" for name in PROGRAMS if result.get(name))),
        Cell(command_of(result), code=True),
    ]


def ranges(numbers: Collection[int]) -> str:
    """0–4, 7 for 0, 1, 2, 3, 4, 7."""
    parts = []
    for _, run in itertools.groupby(enumerate(sorted(numbers)), key=lambda item: item[1] - item[0]):
        values = [value for _, value in run]
        parts.append(str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}")
    return ", ".join(parts)


def option_table(configurations: Sequence[Configuration]) -> Table:
    """Every option in which configurations differ; of objectives only where those of one method do.

    Skills and temperature are the exception, which most objectives have. What a run without pretraining lacks with it
    is no difference.
    """
    methods = [one.method for one in configurations]
    rows = []
    for path in sorted({path for one in configurations for path in one.options}, key=importance):
        texts = [json.dumps(one.options[path]) if path in one.options else "" for one in configurations]
        having = [text for text, one in zip(texts, configurations, strict=True) if not without(one, path)]
        if ".objective." in path and not path.endswith((SKILLS, TEMPERATURE)):
            differ = len(set(zip(methods, texts, strict=True))) > len(set(methods))
        else:
            differ = len(set(having)) > 1
        if differ:
            rows.append([Cell(path, code=True), *map(Cell, texts)])
    head = [Cell("option"), *(Cell(one.label) for one in configurations)]
    return Table("options", "Options in which configurations differ", head, rows, folded=True)


def without(one: Configuration, path: str) -> bool:
    """Whether a configuration has nothing at all where an option belongs, such as no pretraining."""
    parts = path.split(".")
    above = (".".join(parts[:count]) for count in range(1, len(parts)))
    return any(place in one.options and one.options[place] is None for place in above)


def left_out_section(left_out: Sequence[LeftOut]) -> Section:
    if not left_out:
        return Section("left-out", "What was left out, and why", ["Nothing that was given was left out."])
    rows = [[Cell(one.what, code=True), Cell(one.why)] for one in left_out]
    return Section(
        "left-out",
        "What was left out, and why",
        [],
        tables=[Table("left-out", "Left out", [Cell("what"), Cell("why")], rows)],
        data={"left-out": [one._asdict() for one in left_out]},
    )

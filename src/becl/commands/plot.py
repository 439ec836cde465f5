"""`becl plot`: learning curves of pretrained or finetuned runs or of a maze study, and what they say in a sentence."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from becl.errors import UserError
from becl.experiments.scores import read_scores as read_rows
from becl.experiments.verdicts import known_chance, study_chances, task_verdicts
from becl.measure.verdicts import judge_reward
from becl.objectives import METHODS
from becl.options import PlotOptions
from becl.reports.figures import Cloud, finetuning_curves
from becl.reports.folders import check_config, read_scores
from becl.reports.names import pretty_task, sorted_tasks
from becl.reports.sections.curves import cloud_of
from becl.runs.folder import check_writable, kind_of, read_config
from becl.runs.metrics import read_metrics, read_run, read_study, run_labels
from becl.seeds import seeds_named
from becl.views.figures.colors import method_styles
from becl.views.figures.curves import learning_curves, pretraining_curves
from becl.views.figures.style import name_runs, save
from becl.views.maze_report import pretty

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawn(NamedTuple):
    figure: "Figure"
    names: list[str]
    """Which runs and seeds it is of."""
    lines: list[str]
    """What the numbers say."""


def run(options: PlotOptions) -> int:
    if not options.runs:
        raise UserError("no runs to plot: name folders of becl pretrain, becl finetune or becl maze")
    folders = [folder.resolve() for folder in options.runs]
    if repeated := [str(one) for one, path in zip(options.runs, folders, strict=True) if folders.count(path) > 1]:
        raise UserError(f"{repeated[0]} given more than once")
    drawn = drawing_of(options.runs)(options.runs)
    name_runs(drawn.figure, "\n".join(drawn.names))
    out = options.out or options.runs[0] / "curves.png"
    check_writable(out.parent)
    stem = out.with_suffix("") if out.suffix in (".png", ".svg") else out
    for path in save(drawn.figure, stem):
        print(path)
    for line in drawn.lines:
        print(line)
    return 0


def drawing_of(folders: Sequence[Path]) -> Callable[[Sequence[Path]], Drawn]:
    """How runs of one kind are drawn; several kinds have no axes in common."""
    kinds = [kind_of(read_config(folder)) for folder in folders]
    for folder, kind in zip(folders, kinds, strict=True):
        if kind not in DRAWINGS:
            raise UserError(f"{folder} holds no run that can be drawn: no pretraining, finetuning or maze study")
        if kind != kinds[0]:
            raise UserError(f"{folders[0]} is of becl {kinds[0]}, {folder} of becl {kind}: plot each kind by itself")
    return DRAWINGS[kinds[0]]


def pretrained(folders: Sequence[Path]) -> Drawn:
    configs = [read_run(folder, METHODS) for folder in folders]
    columns = dict(zip(run_labels(folders, configs), map(read_metrics, folders), strict=True))
    chances = dict(zip(columns, map(known_chance, folders), strict=True))
    names = [f"{folder} · {seeds_named(config['seeds'])}" for folder, config in zip(folders, configs, strict=True)]
    verdicts = [judge_reward(label, one["step"], one["reward"], chances[label]) for label, one in columns.items()]
    return Drawn(pretraining_curves(columns, chances), names, [verdict.sentence for verdict in verdicts])


def finetuned(folders: Sequence[Path]) -> Drawn:
    """Returns of the evaluations on the way, one panel per task."""
    tasks: dict[str, dict[str, Cloud]] = {}
    configs, names, lines = [read_config(folder) for folder in folders], [], []
    for folder, config in zip(folders, configs, strict=True):
        try:
            check_config(config, env=str, method=str, tasks=list, skill=str)
        except UserError as error:
            raise UserError(f"{folder}: {error}") from None
    labels = run_labels(folders, configs)
    for folder, config, label in zip(folders, configs, labels, strict=True):
        try:
            curves = read_scores(folder / "scores.csv", config)
        except UserError as error:
            raise UserError(f"{folder}: {error}") from None
        for task in config["tasks"]:
            if found := [list(curves[task, seed].values()) for seed in config["seeds"] if (task, seed) in curves]:
                tasks.setdefault(task, {})[label] = cloud_of(found)
        names.append(f"{folder} · {seeds_named(config['seeds'])}")
        lines += [f"{label}: {one.sentence}" for one in task_verdicts(config["tasks"], read_rows(folder))]
    if not tasks:
        raise UserError(f"{folders[0]} has no evaluations yet")
    figure = finetuning_curves({pretty_task(task): tasks[task] for task in sorted_tasks(tasks)}, method_styles(labels))
    return Drawn(figure, names, lines)


def studied(folders: Sequence[Path]) -> Drawn:
    """The reward and the policy's entropy of a maze study, a column a method."""
    if len(folders) > 1:
        raise UserError("one maze study at a time: its figure has a plot for each of its runs")
    known = study_chances(folders[0])
    curves = read_study(folders[0], list(read_config(folders[0])["runs"]))
    chances, lines = {}, []
    for label, one in curves.items():
        chances[pretty(label)] = known.get(label)
        verdict = judge_reward(pretty(label), one["cycle"], one["reward"], chances[pretty(label)], unit="cycles")
        lines.append(verdict.sentence)
    rewards = {pretty(label): one["reward"] for label, one in curves.items()}
    entropies = {pretty(label): one["policy_entropy"] for label, one in curves.items()}
    seeds = sorted({seed for one in curves.values() for seed in one["seed"]})
    figure = learning_curves(rewards, next(iter(curves.values()))["cycle"], entropies, chances)
    return Drawn(figure, [f"{folders[0]} · {seeds_named(seeds)}"], lines)


DRAWINGS: dict[str, Callable[[Sequence[Path]], Drawn]] = {
    "pretrain": pretrained,
    "finetune": finetuned,
    "maze": studied,
}

"""Returns on the walker's tasks: results/urlb, and what others published."""

import numpy as np

from becl.measure import published, stats
from becl.measure.published import EXPERT
from becl.reports.runs import collect
from benchmarks.numbers.files import RESULTS, markdown

TASKS = ("walker_flip", "walker_run", "walker_stand", "walker_walk")
RUNS = {
    "walker-ddpg": "DDPG from scratch, 8 seeds",
    "walker-becl": "BeCL, `random` (default), 2 seeds",
    "walker-becl-best-first": "BeCL, `best-first`",
    "walker-becl-warmup": "BeCL, `random`, `--set warmup=policy`",
    "walker-becl-critic": "BeCL, `random`, `--transfer critic`",
}
PUBLISHED = (
    ("becl-2023", "ddpg", "paper: DDPG"),
    ("becl-2023", "becl", "paper: BeCL"),
    ("becl-issue-4", "becl", "an independent rerun of BeCL"),
)


def final_scores(name: str) -> dict[str, np.ndarray]:
    """Final returns of a folder by task, one a seed."""
    (configuration,) = collect([RESULTS / "urlb" / name]).configurations
    return {task: configuration.scores(task) for task in TASKS}


def shown(found: np.ndarray) -> str:
    """Mean ± standard error."""
    return f"{found.mean():.0f} ± {found.std(ddof=1) / len(found) ** 0.5:.0f}"


def seeds(found: np.ndarray) -> str:
    return ", ".join(f"{one:.0f}" for one in found)


def published_returns(source: str, method: str) -> dict[str, published.Row]:
    rows = published.rows()
    return {row.task: row for row in rows if (row.source, row.method, row.measure) == (source, method, "return")}


def walker() -> str:
    """Every way of finetuning that was measured, and published numbers."""
    rows = []
    for name, label in RUNS.items():
        scores = final_scores(name)
        mean = stats.mean(stats.normalise(scores, EXPERT))
        rows.append([label, *(shown(scores[task]) for task in TASKS), f"{float(mean):.2f}"])
        if name == "walker-becl":
            rows.append(["its seeds", *(seeds(scores[task]) for task in TASKS), ""])
    for source, method, label in PUBLISHED:
        found = published_returns(source, method)
        cells = [f"{found[task].value:.0f}" + error(found[task]) for task in TASKS]
        mean = np.mean([found[task].value / EXPERT[task] for task in TASKS])
        rows.append([f"*{cell}*" for cell in (label, *cells, f"{mean:.2f}")])
    tasks = [task.removeprefix("walker_") for task in TASKS]
    return markdown(["", *tasks, "mean of return / expert's"], rows)


def error(row: published.Row) -> str:
    return "" if row.error is None else f" ± {row.error:.0f}"


def walker_in_short() -> str:
    """DDPG and BeCL beside the paper's."""
    rows = []
    for name, method, label in (
        ("walker-ddpg", "ddpg", "DDPG from scratch, 8 seeds (paper)"),
        ("walker-becl", "becl", "BeCL as printed, 2 seeds (paper)"),
    ):
        scores, paper = final_scores(name), published_returns("becl-2023", method)
        show = shown if len(scores[TASKS[0]]) > 2 else seeds
        rows.append([label, *(f"{show(scores[task])} ({paper[task].value:.0f})" for task in TASKS)])
    tasks = [task.removeprefix("walker_") for task in TASKS]
    return markdown(["walker, 100,000 steps on the task", *tasks], rows)


def walker_means(name: str) -> str:
    """Means in the order of the tasks, for a sentence."""
    return ", ".join(f"{found.mean():.0f}" for found in final_scores(name).values())


def walker_published(source: str, method: str) -> str:
    found = published_returns(source, method)
    return ", ".join(f"{found[task].value:.0f}" for task in TASKS)

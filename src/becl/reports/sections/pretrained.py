"""Pretrained skills before any finetuning: what they earn, what they look like, and how they were learned."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from becl.measure.published import EXPERT
from becl.measure.verdicts import judge_reward
from becl.reports import figures
from becl.reports.comparisons import summarise
from becl.reports.folders import PretrainingFolder, ZeroShot
from becl.reports.names import listed, pretty_method, pretty_task, short_number, sorted_tasks
from becl.reports.sections.section import Picture, Section, name_of
from becl.reports.tables import Cell, Table, plus_minus
from becl.runs.metrics import run_labels
from becl.seeds import seeds_named
from becl.views.figures.curves import pretraining_curves
from becl.views.figures.style import picture


def pretraining_labels(pretrainings: Sequence[PretrainingFolder]) -> dict[str, PretrainingFolder]:
    configs = [one.config | {"method": pretty_method(one.config["method"])} for one in pretrainings]
    return dict(zip(run_labels([one.path for one in pretrainings], configs), pretrainings, strict=True))


def zero_shot_section(pretrainings: Mapping[str, PretrainingFolder]) -> Section | None:
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
            zero_shot_picture(name_of("zero-shot", number, len(last)), label, measured)
            for number, (label, measured) in enumerate(last.items())
        ],
        tables=[Table("zero-shot", "Zero-shot returns", head, rows, folded=True)],
        data={"zero-shot": data},
    )


def zero_shot_rows(label: str, measured: ZeroShot) -> Iterator[list[Cell]]:
    """One row per task."""
    maps, tasks = zero_shot_maps(measured)
    for index, task in enumerate(tasks):
        by_seed = np.array([values[index] for values in maps.values()])
        mean, best = summarise(by_seed.mean(1)), summarise(by_seed.max(1))
        yield [
            Cell(label), Cell(short_number(measured.snapshot), measured.snapshot), Cell(pretty_task(task), task),
            Cell(plus_minus(mean), mean.mean), Cell(plus_minus(best), best.mean),
            Cell(str(mean.seeds), mean.seeds), Cell(measured.command, code=True),
        ]  # fmt: skip


def zero_shot_picture(name: str, label: str, measured: ZeroShot) -> Picture:
    """A map a seed; as part of the expert's return where that is known."""
    maps, tasks = zero_shot_maps(measured)
    known = all(task in EXPERT for task in tasks)
    scale = np.array([EXPERT[task] if known else 1.0 for task in tasks])[:, None]
    figure = figures.zero_shot(
        {f"seed {seed}": values / scale for seed, values in maps.items()},
        [pretty_task(task) for task in tasks],
        "return / expert's" if known else "return",
        1.0 if known else None,
    )
    drawn = figures.MOST_MAPS
    some = f" The first {drawn} of {len(maps)} seeds." if len(maps) > drawn else ""
    caption = f"{label} after {short_number(measured.snapshot)} steps of pretraining, no finetuning.{some}"
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


def gallery_section(pretrainings: Mapping[str, PretrainingFolder]) -> Section | None:
    """What there is to look at: pictures inside the page, films and 3D pages as links."""
    pictures, notes, rows = [], [], []
    for number, (label, one) in enumerate(pretrainings.items()):
        folder = one.path / "gallery"
        for name, caption in GALLERY.items():
            path = folder / f"{name}.png"
            if not path.exists():
                continue
            try:
                figure = picture(path)
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


def pretraining_section(pretrainings: Mapping[str, PretrainingFolder]) -> Section | None:
    by_env: dict[str, dict[str, Any]] = {}
    for label, one in pretrainings.items():
        if one.metrics is not None:
            by_env.setdefault(one.config["env"], {})[label] = one.metrics
    pictures = []
    for env, runs in by_env.items():
        name = re.sub(r"[^\w-]", "_", f"pretraining-{env}")
        figure = pretraining_curves(runs, {label: pretrainings[label].chance for label in runs})
        some = any(pretrainings[label].chance is not None for label in runs)
        dotted = " Dotted: the reward where nothing is learned." if some else ""
        shown = {label: pretrainings[label] for label in runs}
        names = [f"{label}: {one.path}, {seeds_named(one.config['seeds'])}" for label, one in shown.items()]
        caption = f"Thin: seeds, bold: mean.{dotted} {'; '.join(names)}."
        pictures.append(Picture(name, f"Pretraining on {env}", caption, figure))
    table = measure_table(pretrainings)
    if not pictures and not table.rows:
        return None
    said = verdicts(pretrainings)
    return Section(
        "pretraining",
        "Pretraining",
        ["Intrinsic rewards of different methods have nothing in common but their sign; states visited do.", *said],
        found=said[0] if said else "",
        pictures=pictures,
        tables=[table] if table.rows else [],
    )


def verdicts(pretrainings: Mapping[str, PretrainingFolder]) -> list[str]:
    """A sentence for each run whose reward has a chance level."""
    return [
        judge_reward(label, one.metrics["step"], one.metrics["reward"], one.chance).sentence + "."
        for label, one in pretrainings.items()
        if one.metrics is not None and one.chance is not None
    ]


def guessed(pretrainings: Mapping[str, PretrainingFolder]) -> str:
    """How often guessing is right, by the numbers of skills that were measured."""
    texts = {row.get("skills", "") for one in pretrainings.values() for rows in one.skills.values() for row in rows}
    counts = sorted(int(text) for text in texts if text.isdecimal() and int(text) > 1)
    levels = ", ".join(f"{1 / count:.2g} with {count} skills" for count in counts)
    return f". Guessing has an accuracy of {levels}" if levels else ""


def measure_table(pretrainings: Mapping[str, PretrainingFolder]) -> Table:
    """What `becl evaluate` measured of the skills."""
    every = [
        (label, snapshot, measured)
        for label, one in pretrainings.items()
        for snapshot, measured in sorted(one.skills.items())
    ]
    columns = [name for name in dict.fromkeys(name for _, _, rows in every for name in rows[0]) if name != "seed"]
    rows = [
        [
            Cell(label), Cell(short_number(snapshot), snapshot), Cell(str(len(measured)), len(measured)),
            *(_measure_cell([row.get(name, "") for row in measured]) for name in columns),
        ]
        for label, snapshot, measured in every
    ]  # fmt: skip
    head = [Cell("run"), Cell("snapshot"), Cell("seeds"), *(Cell(name.replace("_", " ")) for name in columns)]
    caption = "What the skills do, mean ± standard error over seeds" + guessed(pretrainings)
    return Table("skill-measures", caption, head, rows)


def _measure_cell(texts: Sequence[str]) -> Cell:
    try:
        values = np.array([float(text) for text in texts if text])
    except ValueError:
        return Cell(listed(list(dict.fromkeys(texts))))
    if not len(values):
        return Cell("–")
    found = summarise(values)
    return Cell(plus_minus(found), found.mean)

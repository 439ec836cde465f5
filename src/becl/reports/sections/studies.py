"""Maze studies: what their skills do, and how they were learned."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from becl.measure.headings import MAZE_HEADINGS
from becl.measure.verdicts import judge_reward, with_error
from becl.reports.folders import StudyFolder
from becl.reports.names import pretty_method
from becl.reports.sections.section import Picture, Section, name_of
from becl.reports.tables import Cell, Table
from becl.seeds import seeds_named
from becl.views.figures.curves import learning_curves
from becl.views.figures.style import name_runs, picture

DRAWN = ("demo", "comparison", "temperature", "skills", "every-seed")
"""Pictures of trajectories that `becl maze` leaves in a study's folder."""


def study_sections(studies: Sequence[StudyFolder]) -> list[Section]:
    return [study_section(name_of("maze", number, len(studies)), study) for number, study in enumerate(studies)]


def study_section(name: str, study: StudyFolder) -> Section:
    """A table of what was measured, the pictures of skills, and the learning curves."""
    columns = [column for column in MAZE_HEADINGS if any(column in row for row in study.summary.values())]
    rows = [
        [
            Cell(pretty_method(label)),
            Cell(seeds_named(row["seeds"])),
            *(_measure(row.get(column)) for column in columns),
        ]
        for label, row in study.summary.items()
    ]
    head = [Cell("run"), Cell("seeds"), *(Cell(MAZE_HEADINGS[column]) for column in columns)]
    table = Table(name, "Skills in the maze, mean ± standard deviation over seeds", head, rows)
    verdicts = [
        judge_reward(label, one["cycle"], one["reward"], chance, unit="cycles").sentence + "."
        for label, one in study.curves.items()
        if (chance := chance_of(study, label)) is not None
    ]
    text = "Far skills end in the far part of the maze. Rewards of different methods have different scales."
    pictures = [*drawn(name, study), curves(name, study)]
    return Section(name, f"Maze study: {study.kind}", [text, *verdicts], pictures=pictures, tables=[table],
                   found=" ".join(verdicts[:1]))  # fmt: skip


def drawn(name: str, study: StudyFolder) -> Iterator[Picture]:
    for kind in DRAWN:
        path = study.path / f"{kind}.png"
        if path.exists():
            caption = f"{study.path}: {kind.replace('-', ' ')}. One colour per skill, from the black dot."
            yield Picture(f"{name}-{kind}", f"Skills in the maze: {kind}", caption, picture(path))


def curves(name: str, study: StudyFolder) -> Picture:
    """Reward and entropy while a study was trained."""
    rewards = {label: one["reward"] for label, one in study.curves.items()}
    first = next(iter(study.curves.values()))
    entropies = {label: one["policy_entropy"] for label, one in study.curves.items() if "policy_entropy" in one}
    chances = {label: chance_of(study, label) for label in study.curves}
    complete = entropies if len(entropies) == len(rewards) else None
    figure = learning_curves(rewards, first["cycle"], complete, chances)
    seeds = sorted({seed for one in study.curves.values() for seed in one["seed"]})
    name_runs(figure, f"{study.path} · {seeds_named(seeds)}")
    return Picture(f"{name}-curves", "Learning curves of the maze study", "Thin: seeds, bold: mean.", figure)


def chance_of(study: StudyFolder, label: str) -> float | None:
    chance = study.summary[label].get("chance_reward")
    return chance if isinstance(chance, float) else None


def _measure(value: Any) -> Cell:
    if not isinstance(value, dict) or not isinstance(value.get("mean"), float):
        return Cell("–")
    mean, spread = value["mean"], value.get("std")
    return Cell(with_error(mean, spread if isinstance(spread, float) else math.nan), mean)

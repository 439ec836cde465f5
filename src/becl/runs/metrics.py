"""What a folder tells of its training: configuration and metrics.csv of a pretraining, curves of a maze study."""

import csv
import sys
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from becl.errors import UserError
from becl.plugins import ORIGINS, missing_plugin
from becl.runs.folder import read_pretraining
from becl.runs.inside import inside
from becl.runs.sums import read_checked_text


def read_run(folder: Path, known: Container[str] = ORIGINS) -> dict[str, Any]:
    """The configuration of a pretraining run. A method that is not known here is said, for its numbers can be drawn."""
    config = read_pretraining(folder)
    if not {"method", "env"} <= config.keys():
        raise UserError(f"{folder} holds no pretraining run")
    if line := missing_plugin(config, known):
        print(f"becl: {folder}: {line}", file=sys.stderr)
    return config


def read_metrics(folder: Path) -> dict[str, Any]:
    """The columns of metrics.csv: `step` [points], the others [seeds, points], NaN where nothing was measured."""
    path = folder / "metrics.csv"
    try:
        text = read_checked_text(path)
        whole = text[: text.rfind("\n") + 1]  # A run may be in the middle of a line.
        rows = {(int(row["step"]), int(row["seed"])): row for row in csv.DictReader(whole.splitlines(), restval="?")}
        names = next(iter(rows.values())).keys() - {"step", "seed"} if rows else set()
        seeds = sorted({seed for _, seed in rows})
        steps = [step for step in sorted({step for step, _ in rows}) if all((step, seed) in rows for seed in seeds)]
        columns = {
            name: np.array([[float(rows[step, seed][name] or "nan") for step in steps] for seed in seeds])
            for name in sorted(names)
        }
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{folder} has no metrics: {path.name}: {error.strerror}") from None
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path} is damaged") from None
    if not steps:
        raise UserError(f"{path} has no rows yet: the first comes after the random steps of the run")
    if "reward" not in columns:
        raise UserError(f"{path} is damaged: no column reward")
    return columns | {"step": np.array(steps, float)}


def read_study(folder: Path, labels: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Learning curves of a maze study's finished seeds, by label: `seed` and `cycle`, the others [seeds, points]."""
    studied = {}
    for label in labels:
        found = []
        for path in inside(folder, label).glob("seed-*.csv"):
            number = path.stem.removeprefix("seed-")
            if number.isdecimal() and path.with_suffix(".json").exists():  # Which is written last.
                found.append((int(number), path))
        if found:
            tables = [_read_seed(path) for _, path in sorted(found)]
            if any(not np.array_equal(one["cycle"], tables[0]["cycle"]) for one in tables):
                raise UserError(f"{folder / label} is damaged: its seeds have other cycles")
            names = [name for name in tables[0] if name != "cycle" and all(name in one for one in tables)]
            studied[label] = {name: np.stack([one[name] for one in tables]) for name in names}
            studied[label] |= {"seed": [seed for seed, _ in sorted(found)], "cycle": tables[0]["cycle"].astype(int)}
    if not studied:
        raise UserError(f"{folder} has no finished seed yet")
    return studied


def _read_seed(path: Path) -> dict[str, np.ndarray]:
    try:
        rows = list(csv.DictReader(read_checked_text(path).splitlines(), restval="?"))
        columns = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
    except UserError:
        raise
    except (OSError, IndexError, KeyError, TypeError, ValueError):
        raise UserError(f"{path} is damaged") from None
    if not {"cycle", "reward"} <= columns.keys():
        raise UserError(f"{path} is damaged: no columns cycle and reward")
    return columns


def run_labels(folders: Sequence[Path], configs: Sequence[dict[str, Any]]) -> list[str]:
    """Method, environment where they differ, and as much of the folder as it takes to tell runs apart."""
    several = len({config["env"] for config in configs}) > 1
    labels = [config["method"] + (f" {config['env']}" if several else "") for config in configs]
    for name in (lambda folder: folder.resolve().name, str):
        labelled = [
            f"{label} ({name(folder)})" if labels.count(label) > 1 else label
            for label, folder in zip(labels, folders, strict=True)
        ]
        if len({*labelled}) == len(labelled):
            return labelled
    return labelled

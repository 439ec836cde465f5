"""The results of the maze study's seeds: measured after training, written, read again, and summarized."""

import functools
import io
import json
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from becl.errors import UserError
from becl.experiments.maze_study import Study, seed_path
from becl.learning.onpolicy import OnPolicy
from becl.measure.estimators import mine, particle_entropy, smooth
from becl.measure.maze import maze_metrics
from becl.nn.adam import without_optimizers
from becl.runs.arrays import named_arrays
from becl.runs.folder import six_digits, to_csv
from becl.runs.sums import read_checked_text, write_checked, write_group

REPEATS = 5  # Metrics are averaged over this many independent sets of trajectories.
MEASURED = ("mutual_information", "coverage", "far", "seconds")
"""Some of the numbers that the result of every seed has."""
PATHS = 20  # Trajectories per skill in a set, as in the paper's figures.


def keep(
    study: Study,
    label: str,
    seed: int,
    state: Any,
    curve: Sequence[dict[str, Any]],
    timing: dict[str, float],
    out: Path,
) -> None:
    """Measures a trained seed and writes its files, the JSON last; `curve` has one row of metrics per chunk."""
    measured, arrays = measure(study.runs[label], state.learner, seed, study.mine_iterations)
    networks = {"learner": state.learner.networks, "objective": without_optimizers(state.objective)}
    weights = named_arrays(eqx.filter(networks, eqx.is_inexact_array))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    result = {
        "label": label,
        "seed": seed,
        "cycles": study.cycles,
        **measured,
        **timing,
        "device": str(jax.devices()[0].device_kind),
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
    files = {
        "csv": to_csv([six_digits(row, nan="nan") for row in curve]),
        "safetensors": safetensors.numpy.save(weights),
        "npz": buffer.getvalue(),
        "json": json.dumps(result, indent=1) + "\n",
    }
    write_group({seed_path(out, label, seed, suffix): data for suffix, data in files.items()})


def measure(
    run: OnPolicy, learner: Any, seed: int, mine_iterations: int
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Metrics of a trained policy, and the arrays from which figures are drawn."""
    plan = run.env.geometry
    # Evaluation never shares random numbers with training.
    key = jax.random.fold_in(jax.random.key(seed), 0xE7A1)
    start = jnp.asarray(plan.figure_start, jnp.float32)
    sets = [trajectories(run, learner, jax.random.fold_in(key, i), PATHS, start) for i in range(REPEATS)]
    repeats = [maze_metrics(paths, plan) for paths in sets]
    metrics = {name: float(np.mean([one[name] for one in repeats])) for name in repeats[0]}
    arrays = {"paths": sets[0]}

    # The paper's estimators look at whole trajectories from one start drawn at random.
    random_start = run.env.reset(jax.random.fold_in(key, REPEATS)).position
    few = trajectories(run, learner, jax.random.fold_in(key, REPEATS + 1), 10, random_start)
    metrics["particle_entropy"] = particle_entropy(trajectory_vectors(few))
    if mine_iterations:
        many = trajectories(run, learner, jax.random.fold_in(key, REPEATS + 2), 100, random_start)
        labels = np.repeat(np.arange(len(many)), many.shape[1])
        mine_key = jax.random.fold_in(key, REPEATS + 3)
        curve = mine(trajectory_vectors(many), labels, len(many), mine_key, iterations=mine_iterations)
        arrays["mine"] = np.asarray(curve, np.float32)
        metrics["mine"] = float(smooth(np.asarray(curve), min(100, mine_iterations))[-1])
    return metrics, arrays


def trajectories(run: OnPolicy, learner: Any, key: jax.Array, count: int, start: jax.Array) -> np.ndarray:
    """Plays `count` trajectories per skill from one start."""
    return np.asarray(path_program(run)(learner, key, count, start))


@functools.cache
def path_program(run: OnPolicy) -> Callable:
    """The compiled program that plays trajectories: compiled once per process, so that further seeds start at once."""
    return jax.jit(run.paths, static_argnums=2)


def trajectory_vectors(paths: np.ndarray) -> np.ndarray:
    """Each trajectory as its x-values followed by its y-values."""
    return np.swapaxes(paths, -1, -2).reshape(paths.shape[0] * paths.shape[1], -1)


def finished(study: Study, out: Path) -> dict[str, list[dict[str, Any]]]:
    """The results of every finished seed in the folder, by label; labels without any are left out."""

    def read(path: Path) -> dict[str, Any]:
        try:
            row = json.loads(read_checked_text(path))
            if path.name != f"seed-{row['seed']}.json" or row["label"] != path.parent.name:
                raise ValueError("of another seed")
            if row["cycles"] != study.cycles or not all(type(row[name]) is float for name in MEASURED):
                raise ValueError("of another study")
        except UserError as error:
            raise UserError(f"{error}; without {path}, this seed is trained again") from None
        except (KeyError, TypeError, ValueError, RecursionError):
            raise UserError(f"{path} is damaged; remove it to train this seed again") from None
        return row

    results = {
        label: sorted(map(read, (out / label).glob("seed-*.json")), key=lambda row: row["seed"]) for label in study.runs
    }
    return {label: rows for label, rows in results.items() if rows}


def summarize(results: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation over seeds of every number, by label."""
    skip = {"seed", "cycles", "seeds_together"}
    summary: dict[str, dict[str, Any]] = {}
    for label, rows in results.items():
        names = [n for n, v in rows[0].items() if isinstance(v, float) and n not in skip]
        values = {name: np.array([row[name] for row in rows if name in row]) for name in names}
        summary[label] = {"seeds": [row["seed"] for row in rows]} | {
            name: {"mean": float(v.mean()), "std": float(v.std(ddof=1)) if len(v) > 1 else None}
            for name, v in values.items()
        }
    return summary


def write_summary(study: Study, out: Path) -> dict[str, dict[str, Any]]:
    results = finished(study, out)
    summary = summarize(results)
    for label in summary:
        if (chance := study.chance(label)) is not None:
            summary[label]["chance_reward"] = chance
    if results:
        names = list(dict.fromkeys(name for rows in results.values() for row in rows for name in row))
        rows = [{name: row.get(name, "") for name in names} for rows in results.values() for row in rows]
        write_checked(out / "summary.csv", to_csv([six_digits(row, nan="nan") for row in rows]))
        write_checked(out / "summary.json", json.dumps(summary, indent=1) + "\n")
    return summary

"""Snapshots of pretraining: the networks of every seed after some steps, without optimisers and replay."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from becl.errors import Failed, UserError
from becl.experiments.pretraining import Pretraining
from becl.learning.offpolicy import OffPolicy, RunState
from becl.nn.adam import with_optimizers, without_optimizers
from becl.runs.arrays import load_arrays, save_arrays
from becl.runs.checkpoint import Checkpoints
from becl.runs.inside import inside
from becl.runs.writing import make_folder


def snapshot_path(out: Path, seed: int, step: int) -> Path:
    return inside(out, f"seed-{seed}", f"snapshot-{step}.safetensors")


def save_snapshots(pretraining: Pretraining, out: Path, state: RunState, step: int) -> None:
    """Saves the networks of every seed, on which policies and rewards depend; optimisers and replay are not kept."""
    bad: list[int] = []
    together = jax.device_get(without_optimizers({"learner": state.learner, "objective": state.objective}))
    for index, seed in enumerate(pretraining.seeds):
        networks = jax.tree.map(lambda leaf, index=index: leaf[index], together)
        if any(np.isnan(leaf).any() for leaf in jax.tree.leaves(networks)):
            bad.append(index)
            continue
        path = snapshot_path(out, seed, step)
        make_folder(path.parent)
        save_arrays(path, networks, words_about(pretraining, path))
    if bad:
        raise Failed(failure(pretraining, out, step, "a weight", bad))


def words_about(pretraining: Pretraining, path: Path) -> dict[str, str]:
    """What a snapshot says of itself, which goes with its path."""
    seed, step = path.parent.name.removeprefix("seed-"), path.stem.removeprefix("snapshot-")
    if step.isdecimal() and int(step) > pretraining.steps:
        raise UserError(f"{path}: the run has {pretraining.steps:,} steps only")
    return {"env": pretraining.env, "method": pretraining.method, "seed": seed, "step": step}


def load_snapshot(pretraining: Pretraining, path: Path) -> tuple[Any, Any]:
    """States of learner and objective from a snapshot, with fresh optimisers."""
    run, key = pretraining.run, jax.random.key(0)
    shapes = {
        "learner": jax.eval_shape(lambda: run.agent.init(key, run.env, run.objective.skills)),
        "objective": jax.eval_shape(lambda: run.objective.init(key, run.seen)),
    }
    loaded = load_arrays(path, without_optimizers(shapes), words_about(pretraining, path))
    learner, objective = (with_optimizers(loaded[name], shapes[name]) for name in shapes)
    return learner, objective


def learner_shapes(run: OffPolicy) -> Any:
    """Shapes of a learner's networks. Initialising networks only to replace them would take many seconds."""
    return without_optimizers(jax.eval_shape(lambda: run.agent.init(jax.random.key(0), run.env, run.objective.skills)))


def failure(pretraining: Pretraining, out: Path, step: int, what: str, seeds: Sequence[int]) -> str:
    """The message about seeds with NaNs: what is left of them, and what to try. `seeds` are indices, from 0."""
    names = [pretraining.seeds[i] for i in seeds]
    kept = Checkpoints(out / "checkpoint", {}).steps()
    found = (path for seed in names for path in inside(out, f"seed-{seed}").glob("snapshot-*.safetensors"))
    snapshots = sorted(found, key=lambda path: int(path.stem.partition("-")[2]))
    last = f"the last good snapshot is {snapshots[-1]}" if snapshots else "there is no snapshot yet"
    last += f", the last good checkpoint of step {kept[-1]:,}" if kept else ""
    said = f"seed {', '.join(map(str, names))}: {what} is not a number after {step:,} steps"
    return f"{said}; {last}; {smaller_steps(pretraining.run)}"


def smaller_steps(run: OffPolicy) -> str:
    """Advice for runs with NaNs: smaller steps."""
    learner: Any = run.learner
    rate = learner.optimizer.learning_rate
    return f"try --precision float32 or --set learner.optimizer.learning_rate={rate / 3:.1g}"

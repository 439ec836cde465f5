"""Folders as pretraining leaves them, made in a second: nothing is trained."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from becl.experiments.pretraining import make_pretraining, seed_keys
from becl.experiments.snapshots import save_snapshots
from becl.learning.programs import programs
from becl.objectives import METHODS
from becl.options import PretrainOptions
from becl.runs.folder import open_folder
from becl.skills import OneHot

SEEDS = (3, 5)
TINY = ["batch=16", "replay.capacity=400", "random_steps=20"]


def forget_sums(folder: Path) -> None:
    """Removes the checksums of a run, so that its files can be forged: it is read as those of earlier versions are."""
    for path in (*folder.rglob("SHA256SUMS"), *folder.rglob("*.sha256")):
        path.unlink()


def make_folder(
    out: Path,
    method: str = "becl",
    steps: tuple[int, ...] = (100,),
    env: str = "walker",
    *,
    hidden: int,
    moved: float,
) -> Path:
    """A run's folder with snapshots after these steps: fresh networks, each number moved by noise of this deviation."""
    skills = 4 if isinstance(METHODS[method].objective.skills, OneHot) else None
    made = make_pretraining(
        PretrainOptions(env, method, SEEDS, max(steps), skills=skills, envs=2, hidden=hidden, set=TINY)
    )
    open_folder(made.config(), out)
    state, _ = programs(made.run).init(seed_keys(made.seeds))
    rng = np.random.default_rng(0)

    def move(leaf: Any) -> np.ndarray:
        return (np.asarray(leaf) + moved * rng.normal(size=leaf.shape)).astype(leaf.dtype)

    for step in steps:
        learner, objective = jax.tree.map(move, (state.learner, state.objective))
        save_snapshots(made, out, state._replace(learner=learner, objective=objective), step)
    return out

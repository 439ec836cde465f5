"""Small runs to look at: never trained, so that they are made in a second."""

from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest

from becl.experiments.finetuning import make_finetuning
from becl.experiments.policies import save_policies
from becl.experiments.pretraining import make_pretraining, seed_keys
from becl.experiments.snapshots import save_snapshots
from becl.options import FinetuneOptions, PretrainOptions
from becl.runs.folder import open_folder


def make_run(
    folder: Path,
    env: str,
    method: str = "becl",
    skills: int | None = 4,
    snapshots: Sequence[int] = (100,),
    seeds: Sequence[int] = (0,),
) -> Path:
    planned = make_pretraining(
        PretrainOptions(env, method, tuple(seeds), 5000, skills=skills, envs=2, hidden=8, set=["batch=16"])
    )
    open_folder(planned.config(), folder)
    state, _ = jax.eval_shape(lambda keys: jax.vmap(planned.run.init)(keys), seed_keys(planned.seeds))
    rng = np.random.default_rng(0)

    def drawn(leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        return rng.standard_normal(leaf.shape).astype(leaf.dtype)

    learner, objective = (jax.tree.map(drawn, part) for part in (state.learner, state.objective))
    for step in snapshots:
        save_snapshots(planned, folder, state._replace(learner=learner, objective=objective), step)
    return folder


@pytest.fixture(scope="module")
def walker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "walker", "walker", snapshots=(100, 200), seeds=(0, 1))


@pytest.fixture(scope="module")
def square(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "square", "square_a")


@pytest.fixture(scope="module")
def skilless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "rnd", "square_a", "rnd", None)


@pytest.fixture(scope="module")
def tuned(walker: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tasks, each with a policy that differs from the others; never trained."""
    folder = tmp_path_factory.mktemp("runs") / "tuned"
    planned = make_finetuning(
        FinetuneOptions(walker, ("walker_stand", "walker_run"), steps=60, set=["random_steps=20"])
    )
    open_folder(planned.config(), folder)
    keys = seed_keys(range(len(planned.lanes)))
    save_policies(planned, folder, jax.lax.map(lambda key: planned.run.init(key)[0], keys))
    return folder

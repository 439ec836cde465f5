"""Policies that have learned tasks: saved at the end of finetuning, and loaded again."""

from pathlib import Path

import jax
import numpy as np
from jaxtyping import Float

from becl.errors import UserError
from becl.experiments.finetuning import Finetuning, lane_keys, load_finetuning
from becl.experiments.lanes import Lane
from becl.experiments.snapshots import learner_shapes
from becl.learning.choice import ChoosesByState
from becl.learning.ddpg import Actor
from becl.learning.offpolicy import RunState
from becl.learning.seeing import Seer
from becl.nn.adam import without_optimizers
from becl.runs.arrays import load_arrays, save_arrays
from becl.runs.inside import inside
from becl.runs.log import lane_name
from becl.runs.writing import make_folder


def save_policies(finetuning: Finetuning, out: Path, state: RunState) -> None:
    """Saves the final networks of every lane, with the skill they go with."""
    keys = lane_keys(finetuning)
    skills, choice = finetuning.run.objective.skills, finetuning.run.choice
    chosen = jax.vmap(lambda rule, key: choice.best(rule, key, skills))(state.skill, keys)
    rule = {"rule": without_optimizers(state.skill)} if isinstance(choice, ChoosesByState) else {}
    together = jax.device_get({"learner": without_optimizers(state.learner), "skill": chosen} | rule)
    for index, lane in enumerate(finetuning.lanes):
        path = policy_path(out, lane)
        make_folder(path.parent)
        save_arrays(path, jax.tree.map(lambda leaf, index=index: leaf[index], together), words_about(finetuning, lane))


def words_about(finetuning: Finetuning, lane: Lane) -> dict[str, str]:
    """What the file of a policy says of itself."""
    return {"method": finetuning.method, "step": str(finetuning.steps)} | {k: str(v) for k, v in lane.label.items()}


def policy_path(out: Path, lane: Lane) -> Path:
    return inside(out, lane_name(lane.label), "policy.safetensors")


def load_policies(out: Path, snapshot: int | None = None) -> Finetuning:
    """A finetuning run whose policies can be loaded; an earlier `snapshot` is refused, because it keeps none."""
    finetuning = load_finetuning(out)
    if finetuning.skill == "meta":
        raise UserError(f"{out} holds controllers that pick skills; take the skills of {finetuning.source}")
    if isinstance(finetuning.run.choice, ChoosesByState):
        raise UserError(
            f"{out} holds policies whose skill is chosen at every step (--skill {finetuning.skill}), which "
            "are no single policy"
        )
    if snapshot is not None:
        raise UserError(f"--snapshot {snapshot}: a finetuned run keeps its last policy only; leave it out")
    return finetuning


def load_policy(finetuning: Finetuning, out: Path, lane: Lane) -> tuple[Actor | Seer, Float[np.ndarray, " skill"]]:
    """The policy of a lane, and the skill that goes with it."""
    source = policy_path(out, lane)
    if not source.exists():
        raise UserError(f"{out} has no policy of {lane.task}, seed {lane.seed} yet: it is not finished")
    dim = finetuning.run.objective.skills.dim
    like = {"learner": learner_shapes(finetuning.run), "skill": jax.ShapeDtypeStruct((dim,), np.dtype(np.float32))}
    loaded = load_arrays(source, like, words_about(finetuning, lane))
    return loaded["learner"].actor, np.asarray(loaded["skill"])

"""What finetuning inherits from pretraining: networks, and the skill that learns the task."""

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from becl.experiments.finetuning import Finetuning, Transfer
from becl.experiments.lanes import Lane
from becl.experiments.snapshots import load_snapshot, snapshot_path
from becl.learning.choice import Held, Regress
from becl.learning.controller import Controller
from becl.learning.ddpg import DDPGState
from becl.learning.offpolicy import RunState
from becl.learning.seeing import SeeingState
from becl.objectives.aps import APSState

Learned = DDPGState | SeeingState


def take_over(transfer: Transfer, fresh: Any, pretrained: Any) -> Any:
    """A fresh learner with the networks that it inherits, always with the encoder; optimisers always start anew."""
    if transfer == "none":
        return fresh
    if isinstance(fresh, SeeingState):
        inner = take_over(transfer, fresh.inner, pretrained.inner)
        return fresh._replace(encoder=pretrained.encoder, inner=inner)
    if transfer == "trunk":
        critic = eqx.tree_at(lambda critic: critic.trunk, fresh.critic, pretrained.critic.trunk)
        return fresh._replace(actor=pretrained.actor, critic=critic)
    # A copy, because the loop donates the memory of both.
    target = jax.tree.map(jnp.copy, pretrained.critic) if transfer == "critic" else fresh.target
    return fresh._replace(actor=pretrained.actor, critic=pretrained.critic, target=target)


def load_learners(finetuning: Finetuning) -> tuple[Learned, Any]:
    """States of learner and objective at the snapshot, one per lane."""
    assert finetuning.pretraining is not None
    assert finetuning.snapshot is not None
    assert finetuning.source is not None
    loaded = {
        seed: load_snapshot(finetuning.pretraining, snapshot_path(Path(finetuning.source), seed, finetuning.snapshot))
        for seed in finetuning.seeds
    }
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(loaded[lane.seed] for lane in finetuning.lanes))


def held_skills(finetuning: Finetuning) -> Float[np.ndarray, "lanes skill"]:
    """The skill of each lane, for rules that hold one skill."""
    space = finetuning.run.objective.skills

    def of(lane: Lane) -> jax.Array:
        if lane.skill is not None:
            return jax.nn.one_hot(lane.skill, space.dim)
        if finetuning.skill.startswith("fixed:"):
            return jax.nn.one_hot(int(finetuning.skill.partition(":")[2]), space.dim)
        if finetuning.skill == "constant":
            return jnp.full(space.dim, 0.5)
        return space.sample(jax.random.key(lane.seed), 1)[0]

    return np.stack([np.asarray(of(lane)) for lane in finetuning.lanes])


def prepared(finetuning: Finetuning, state: RunState, pretrained: tuple[Learned, Any] | None) -> RunState:
    """The state of all lanes before the first step."""
    if pretrained is not None and not isinstance(finetuning.run.learner, Controller):
        state = state._replace(learner=take_over(finetuning.transfer, state.learner, pretrained[0]))
    if isinstance(finetuning.run.choice, Held):
        state = state._replace(skill=jnp.asarray(held_skills(finetuning)))
    if isinstance(finetuning.run.choice, Regress) and finetuning.run.choice.features == "pretrained":
        assert pretrained is not None
        assert isinstance(pretrained[1], APSState)
        state = state._replace(skill=state.skill._replace(features=pretrained[1].features))
    return state

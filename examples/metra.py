"""METRA: Scalable Unsupervised RL with Metric-Aware Abstraction (Park et al. 2024), a method in one file of one's own.

The package has it too, as `metra` (src/becl/objectives/temporal.py): this file shows that it could be yours.

Rewards the way covered in the skill's direction, measured in features φ in which a step is never longer than 1:

    max E[(φ(s') − φ(s))ᵀz]   so that   ‖φ(s') − φ(s)‖ ≤ 1 for states a step apart,      r = (φ(s') − φ(s))ᵀz

With a multiplier λ > 0 and a slack ε (Algorithm 1), φ is trained to raise, and λ to lower,

    E[(φ(s') − φ(s))ᵀz] + λ·E[min(ε, 1 − ‖φ(s') − φ(s)‖²)]

Distances in φ count steps, so that a skill pays only if it leads far away. The length is a sum over features, as
printed (the released code has their mean). Pairs from an n-step replay lie n steps apart, which then count as one.

    becl pretrain square_a --method own-metra --plugin examples/metra.py
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn import MLP, Adam, AdamState, Network
from becl.objectives import Batch, MazeStudy, Method, Metrics, register
from becl.skills import OneHot, Sphere


class OwnMETRAState(NamedTuple):
    features: MLP
    log_dual: Float[Array, ""]
    opt: AdamState


@dataclass(frozen=True)
class OwnMETRA:
    skills: Sphere | OneHot = Sphere(2)
    """Directions in as many dimensions as there are features."""
    network: Network = Network()
    optimizer: Adam = Adam()
    dual: float = 30.0
    """λ in the beginning."""
    slack: float = 1e-3
    """ε: how much shorter than 1 a step may be before λ falls."""

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> OwnMETRAState:
        features = self.network.init(key, env.obs_dim, self.skills.dim)
        log_dual = jnp.log(jnp.array(self.dual))
        return OwnMETRAState(features, log_dual, self.optimizer.init((features, log_dual)))

    def fit(self, state: OwnMETRAState, batch: Batch, key: PRNGKeyArray) -> tuple[OwnMETRAState, Metrics]:
        del key
        fixed = jax.lax.stop_gradient

        def loss_fn(learned: tuple[MLP, Array]):
            features, log_dual = learned
            move = features(batch.next_obs) - features(batch.obs)
            spare, dual = room(move, self.slack).mean(), jnp.exp(log_dual)
            loss = -(advance(move, self.directions(batch)).mean() + fixed(dual) * spare)
            return loss + dual * fixed(spare), {"loss": loss, "dual": dual, "length": jnp.square(move).sum(-1).mean()}

        learned = (state.features, state.log_dual)
        grads, metrics = jax.grad(loss_fn, has_aux=True)(learned)
        (features, log_dual), opt = self.optimizer.update(learned, grads, state.opt)
        return OwnMETRAState(features.observe(batch.next_obs), log_dual, opt), metrics

    def reward(
        self, state: OwnMETRAState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[OwnMETRAState, Float[Array, " batch"]]:
        del key
        move = state.features(batch.next_obs) - state.features(batch.obs)
        return state, advance(move, self.directions(batch))

    def directions(self, batch: Batch) -> Float[Array, "batch dim"]:
        return centred(batch.skill) if isinstance(self.skills, OneHot) else batch.skill


def advance(move: Float[Array, "batch dim"], direction: Float[Array, "batch dim"]) -> Float[Array, " batch"]:
    """(φ(s') − φ(s))ᵀz."""
    return jnp.sum(move * direction, -1)


def room(move: Float[Array, "batch dim"], slack: float) -> Float[Array, " batch"]:
    """min(ε, 1 − ‖φ(s') − φ(s)‖²): what a step has left of its length, negative where it is too long."""
    return jnp.minimum(slack, 1 - jnp.sum(jnp.square(move), -1))


def centred(skill: Float[Array, "batch dim"]) -> Float[Array, "batch dim"]:
    """One-hot skills as directions that add up to nothing, 1 along their own feature (the paper's discrete variant)."""
    count = skill.shape[-1]
    return (skill - 1 / count) * count / (count - 1)


register(
    "own-metra",
    Method(
        OwnMETRA(),
        "competence",
        "the way covered in the skill's direction, where a step has length 1 at most",
        skill_interval=None,
        finetune_skill="random",
        maze=MazeStudy(entropy_weight=0.1),
    ),
)
register(
    "own-metra-discrete",
    Method(
        OwnMETRA(OneHot(16)),
        "competence",
        "METRA with as many directions as skills",
        skill_interval=None,
        finetune_skill="random",
    ),
)

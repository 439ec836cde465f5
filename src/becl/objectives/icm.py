"""ICM: Intrinsic Curiosity Module (Pathak et al. 2017), as in URLB.

Rewards transitions that a model of the dynamics fails to predict. With a forward model f and an inverse model g,

    e = ‖s' − f(s, a)‖,      loss = e + ‖a − tanh g(s, s')‖,      r = log(1 + e)

These are norms, not squares. For states, both models see the raw observations, so the inverse model, whose purpose is
to shape an encoder, has no effect on the reward.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network, norm
from becl.objectives.protocol import Batch, Metrics
from becl.skills import NoSkill, SkillSpace


class Dynamics(NamedTuple):
    forward: MLP
    inverse: MLP


class ICMState(NamedTuple):
    dynamics: Dynamics
    opt: AdamState


@dataclass(frozen=True)
class ICM:
    skills: SkillSpace = NoSkill()
    """None: the policy has no skill."""
    network: Network = Network((1024,))
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> ICMState:
        dynamics = init_dynamics(self.network, key, env.obs_dim, env.action_dim)
        return ICMState(dynamics, self.optimizer.init(dynamics))

    def fit(self, state: ICMState, batch: Batch, key: PRNGKeyArray) -> tuple[ICMState, Metrics]:
        del key

        def loss_fn(dynamics: Dynamics):
            return dynamics_loss(dynamics, batch.obs, batch.action, batch.next_obs).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.dynamics)
        dynamics, opt = self.optimizer.update(state.dynamics, grads, state.opt)
        seen = Dynamics(
            dynamics.forward.observe(jnp.concatenate([batch.obs, batch.action], -1)),
            dynamics.inverse.observe(jnp.concatenate([batch.obs, batch.next_obs], -1)),
        )
        return ICMState(seen, opt), {"loss": loss}

    def reward(self, state: ICMState, batch: Batch, key: PRNGKeyArray) -> tuple[ICMState, Float[Array, " batch"]]:
        del key
        return state, jnp.log1p(prediction_error(state.dynamics.forward, batch.obs, batch.action, batch.next_obs))


def init_dynamics(network: Network, key: PRNGKeyArray, dim: int, action_dim: int) -> Dynamics:
    forward_key, inverse_key = jax.random.split(key)
    return Dynamics(
        network.init(forward_key, dim + action_dim, dim),
        network.init(inverse_key, 2 * dim, action_dim),
    )


def dynamics_loss(
    dynamics: Dynamics,
    obs: Float[Array, "batch dim"],
    action: Float[Array, "batch action"],
    next_obs: Float[Array, "batch dim"],
) -> Float[Array, " batch"]:
    """The sum of both models' errors."""
    forward = prediction_error(dynamics.forward, obs, action, next_obs)
    return forward + action_error(dynamics.inverse, obs, action, next_obs)


def prediction_error(
    forward: MLP,
    obs: Float[Array, "batch dim"],
    action: Float[Array, "batch action"],
    next_obs: Float[Array, "batch dim"],
) -> Float[Array, " batch"]:
    """‖s' − f(s, a)‖."""
    return norm(next_obs - forward(jnp.concatenate([obs, action], -1)))


def action_error(
    inverse: MLP,
    obs: Float[Array, "batch dim"],
    action: Float[Array, "batch action"],
    next_obs: Float[Array, "batch dim"],
) -> Float[Array, " batch"]:
    """‖a − tanh g(s, s')‖."""
    return norm(action - jnp.tanh(inverse(jnp.concatenate([obs, next_obs], -1))))

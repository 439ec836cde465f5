"""APT: Active Pre-Training (Liu and Abbeel 2021), as in URLB's `icm_apt`.

Rewards spread: a particle estimate of the states' entropy in features φ, learned with the dynamics models of ICM,

    loss = ‖φ(s') − f(φ(s), a)‖ + ‖a − tanh g(φ(s), φ(s'))‖
    r_i = log(1 + mean over the K nearest of ‖φ(s_i) − φ(s_j)‖)

Gradients also reach φ(s'). The reward is that of s, where the transition starts, and one of the K distances is the
zero distance of the state to itself.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import Network, Trunk, init_trunk
from becl.objectives.icm import Dynamics, dynamics_loss, init_dynamics
from becl.objectives.particles import particle_entropy
from becl.objectives.protocol import Batch, Metrics
from becl.skills import NoSkill, SkillSpace


class APTNetworks(NamedTuple):
    trunk: Trunk
    dynamics: Dynamics


class APTState(NamedTuple):
    networks: APTNetworks
    opt: AdamState


@dataclass(frozen=True)
class APT:
    skills: SkillSpace = NoSkill()
    """None: the policy has no skill."""
    neighbours: int = 12
    """K, including the state itself."""
    feature_dim: int = 512
    network: Network = Network((1024,))
    """Layers of the dynamics models; the features are one layer."""
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> APTState:
        trunk_key, dynamics_key = jax.random.split(key)
        inner = replace(self.network, normalize=False)  # The trunk's features are of unit scale.
        networks = APTNetworks(
            init_trunk(trunk_key, env.obs_dim, self.feature_dim),
            init_dynamics(inner, dynamics_key, self.feature_dim, env.action_dim),
        )
        return APTState(networks, self.optimizer.init(networks))

    def fit(self, state: APTState, batch: Batch, key: PRNGKeyArray) -> tuple[APTState, Metrics]:
        del key

        def loss_fn(networks: APTNetworks):
            trunk, dynamics = networks
            return dynamics_loss(dynamics, trunk(batch.obs), batch.action, trunk(batch.next_obs)).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.networks)
        networks, opt = self.optimizer.update(state.networks, grads, state.opt)
        return APTState(networks, opt), {"loss": loss}

    def reward(self, state: APTState, batch: Batch, key: PRNGKeyArray) -> tuple[APTState, Float[Array, " batch"]]:
        del key
        reward, _ = particle_entropy(state.networks.trunk(batch.obs), self.neighbours)
        return state, reward

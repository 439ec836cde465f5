"""DIAYN: Diversity Is All You Need (Eysenbach et al. 2019), the reverse form of I(S;Z).

Rewards states that reveal the skill. With a classifier q,

    r = log q(z | s') − log p(z),      loss = −log q(z | s')

The reward reaches its maximum log n as soon as skills can be told apart, however little they differ.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network
from becl.objectives.protocol import Batch, Metrics
from becl.skills import OneHot


class DIAYNState(NamedTuple):
    classifier: MLP
    opt: AdamState


@dataclass(frozen=True)
class DIAYN:
    skills: OneHot = OneHot(16)
    """Number of skills."""
    network: Network = Network()
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> DIAYNState:
        classifier = self.network.init(key, env.obs_dim, self.skills.dim)
        return DIAYNState(classifier, self.optimizer.init(classifier))

    def fit(self, state: DIAYNState, batch: Batch, key: PRNGKeyArray) -> tuple[DIAYNState, Metrics]:
        del key

        def loss_fn(classifier):
            return -skill_log_likelihood(classifier(batch.next_obs), batch.skill).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.classifier)
        classifier, opt = self.optimizer.update(state.classifier, grads, state.opt)
        return DIAYNState(classifier.observe(batch.next_obs), opt), {"loss": loss}

    def reward(self, state: DIAYNState, batch: Batch, key: PRNGKeyArray) -> tuple[DIAYNState, Float[Array, " batch"]]:
        del key
        logits = state.classifier(batch.next_obs)
        return state, skill_log_likelihood(logits, batch.skill) + jnp.log(self.skills.dim)

    def chance_reward(self, batch: int) -> float:
        """Where q(z|s') is p(z), whatever the state."""
        del batch
        return 0.0


def skill_log_likelihood(
    logits: Float[Array, "batch skills"], skill: Float[Array, "batch skills"]
) -> Float[Array, " batch"]:
    """log q(z|s) for one-hot skills."""
    return jnp.sum(jax.nn.log_softmax(logits) * skill, -1)

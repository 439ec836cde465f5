"""ProtoRL: reinforcement learning with prototypical representations (Yarats et al. 2021), as in URLB.

Clusters states around prototypes and rewards distance from where clusters have been. With unit vectors
u(s) = norm(pred(s)), v(s) = norm(proj(pred(s))), ū(s) = norm(pred̄(s)) and prototypes C,

    q = Sinkhorn(C ū(s') / τ),      loss = −Σ_c q_c log softmax_c(C v(s) / τ)
    r = distance from u(s') to the K-th nearest of the latest candidates

Whenever rewards are computed, each prototype nominates one state of the batch as a candidate, drawn from the softmax of
C u(s') over the batch. The queue starts with zeros, at distance 1 from every state; a state's own copy in it counts.

pred̄ is a running average of pred. It moves at the end of `fit`; in the released code it moves after critic and actor.
Nothing reads it in between, so the values are the same.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network, follow, unit
from becl.objectives.particles import nearest_distances
from becl.objectives.protocol import Batch, Metrics
from becl.skills import NoSkill, SkillSpace


class ProtoRLNetworks(NamedTuple):
    predictor: MLP
    projector: MLP
    prototypes: Float[Array, "prototypes dim"]  # Unit vectors, normalised after each step.


class ProtoRLState(NamedTuple):
    networks: ProtoRLNetworks
    target: MLP
    candidates: Float[Array, "queue dim"]  # Oldest first.
    opt: AdamState


@dataclass(frozen=True)
class ProtoRL:
    skills: SkillSpace = NoSkill()
    """None: the policy has no skill."""
    prototypes: int = 512
    temperature: float = 0.1
    """τ."""
    neighbours: int = 3
    """K."""
    queue: int = 2048
    """Number of candidates kept."""
    target_rate: float = 0.05
    """How far the target network moves per step."""
    feature_dim: int = 128
    network: Network = Network((512,))
    """The projector; the predictor is one layer."""
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> ProtoRLState:
        keys = jax.random.split(key, 3)
        networks = ProtoRLNetworks(
            replace(self.network, hidden=()).init(keys[0], env.obs_dim, self.feature_dim),
            replace(self.network, normalize=False).init(keys[1], self.feature_dim, self.feature_dim),
            unit(jax.nn.initializers.orthogonal()(keys[2], (self.prototypes, self.feature_dim))),
        )
        target = jax.tree.map(jnp.copy, networks.predictor)  # A state that may be donated must not hold an array twice.
        candidates = jnp.zeros((self.queue, self.feature_dim))
        return ProtoRLState(networks, target, candidates, self.optimizer.init(networks))

    def fit(self, state: ProtoRLState, batch: Batch, key: PRNGKeyArray) -> tuple[ProtoRLState, Metrics]:
        del key
        scores = unit(state.target(batch.next_obs)) @ state.networks.prototypes.T
        assignment = sinkhorn(scores / self.temperature)

        def loss_fn(networks: ProtoRLNetworks):
            projected = unit(networks.projector(networks.predictor(batch.obs)))
            return cross_entropy(assignment, projected @ networks.prototypes.T / self.temperature).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.networks)
        networks, opt = self.optimizer.update(state.networks, grads, state.opt)
        networks = ProtoRLNetworks(networks.predictor.observe(batch.obs), networks.projector, unit(networks.prototypes))
        target = follow(state.target, networks.predictor, self.target_rate)
        return state._replace(networks=networks, target=target, opt=opt), {"loss": loss}

    def reward(
        self, state: ProtoRLState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[ProtoRLState, Float[Array, " batch"]]:
        features = unit(state.networks.predictor(batch.next_obs))
        nominated = nominate(features, state.networks.prototypes, key)
        candidates = jnp.concatenate([state.candidates, nominated])[-self.queue :]
        return state._replace(candidates=candidates), nearest_distances(features, candidates, self.neighbours)[:, -1]


def sinkhorn(scores: Float[Array, "batch prototypes"], iterations: int = 3) -> Float[Array, "batch prototypes"]:
    """Soft assignments that give every prototype about an equal share of the batch; rows sum to 1.

    Scales columns and rows of exp(scores) to a constant sum in turn; the constant cancels in the last step.
    """
    for _ in range(iterations):
        scores = jax.nn.log_softmax(scores, 0)
        scores = jax.nn.log_softmax(scores, 1)
    return jnp.exp(scores)


def cross_entropy(
    assignment: Float[Array, "batch prototypes"], logits: Float[Array, "batch prototypes"]
) -> Float[Array, " batch"]:
    """−Σ_c q_c log p_c."""
    return -jnp.sum(assignment * jax.nn.log_softmax(logits), -1)


def nominate(
    features: Float[Array, "batch dim"], prototypes: Float[Array, "prototypes dim"], key: PRNGKeyArray
) -> Float[Array, "prototypes dim"]:
    """One row of the batch per prototype, drawn from the softmax of its scores without a temperature."""
    return features[jax.random.categorical(key, prototypes @ features.T)]

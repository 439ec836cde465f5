"""SMM: State Marginal Matching (Lee et al. 2019), as in URLB.

Rewards states that are rare under a density model of each skill, with a uniform target distribution. A variational
autoencoder of x = (s, z) with reconstruction x̂ stands in for the density, and d is a classifier of skills:

    r = ‖x − x̂‖² + log n − log d(z | s)
    loss = mean square of x − x̂ + β KL,      loss_d = −log d(z | s)

The last sign is the released one and favours states that hide the skill; the paper has + log d(z | s).

Rewards come from the networks as they were before the last fit: the released code reuses the forward pass it trained
with. Its noise is redrawn here, which does not change the distribution of rewards.
"""

from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network
from becl.objectives.diayn import skill_log_likelihood
from becl.objectives.protocol import Batch, Metrics
from becl.skills import OneHot


class VAE(NamedTuple):
    encoder: MLP
    mean: MLP
    log_variance: MLP
    decoder: MLP


class SMMNetworks(NamedTuple):
    density: VAE
    classifier: MLP


class SMMState(NamedTuple):
    networks: SMMNetworks
    before: SMMNetworks  # From before the last fit; rewards come from these.
    opt: tuple[AdamState, AdamState]


@dataclass(frozen=True)
class SMM:
    skills: OneHot = OneHot(4)
    """Number of skills."""
    skill_term: Literal["released", "paper"] = "released"
    """Sign of log d(z|s): released −, paper +."""
    kl_weight: float = 0.5
    """β."""
    code_dim: int = 128
    density: Network = Network((150, 150))
    """Layers of the encoder and of the decoder."""
    density_optimizer: Adam = Adam(1e-2)
    network: Network = Network()
    """The classifier."""
    optimizer: Adam = Adam(1e-3)
    """The classifier's."""

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> SMMState:
        density_key, classifier_key = jax.random.split(key)
        density = init_vae(self.density, density_key, env.obs_dim + self.skills.dim, self.code_dim)
        networks = SMMNetworks(density, self.network.init(classifier_key, env.obs_dim, self.skills.dim))
        opt = (self.density_optimizer.init(networks.density), self.optimizer.init(networks.classifier))
        before = jax.tree.map(jnp.copy, networks)  # A state that may be donated must not hold an array twice.
        return SMMState(networks, before, opt)

    def fit(self, state: SMMState, batch: Batch, key: PRNGKeyArray) -> tuple[SMMState, Metrics]:
        x = jnp.concatenate([batch.obs, batch.skill], -1)

        def density_loss(density: VAE):
            error, divergence = reconstruct(density, x, key)
            return (error / x.shape[-1] + self.kl_weight * divergence).mean()

        def classifier_loss(classifier: MLP):
            return -skill_log_likelihood(classifier(batch.obs), batch.skill).mean()

        loss, grads = jax.value_and_grad(density_loss)(state.networks.density)
        density, density_opt = self.density_optimizer.update(state.networks.density, grads, state.opt[0])
        skill_loss, grads = jax.value_and_grad(classifier_loss)(state.networks.classifier)
        classifier, opt = self.optimizer.update(state.networks.classifier, grads, state.opt[1])
        density = density._replace(encoder=density.encoder.observe(x))
        networks = SMMNetworks(density, classifier.observe(batch.obs))
        metrics = {"loss": loss + skill_loss, "density_loss": loss, "skill_loss": skill_loss}
        return SMMState(networks, state.networks, (density_opt, opt)), metrics

    def reward(self, state: SMMState, batch: Batch, key: PRNGKeyArray) -> tuple[SMMState, Float[Array, " batch"]]:
        error, _ = reconstruct(state.before.density, jnp.concatenate([batch.obs, batch.skill], -1), key)
        known = skill_log_likelihood(state.before.classifier(batch.obs), batch.skill)
        sign = {"released": -1.0, "paper": 1.0}[self.skill_term]
        return state, error + jnp.log(self.skills.dim) + sign * known


def init_vae(network: Network, key: PRNGKeyArray, dim: int, code_dim: int) -> VAE:
    keys = jax.random.split(key, 4)
    inner = replace(network, normalize=False)
    *hidden, width = network.hidden
    return VAE(
        replace(network, hidden=tuple(hidden)).init(keys[0], dim, width),
        replace(inner, hidden=()).init(keys[1], width, code_dim),
        replace(inner, hidden=()).init(keys[2], width, code_dim),
        inner.init(keys[3], code_dim, dim),
    )


def reconstruct(
    vae: VAE, x: Float[Array, "batch dim"], key: PRNGKeyArray
) -> tuple[Float[Array, " batch"], Float[Array, " batch"]]:
    """‖x − x̂‖² for one sample of the code, and KL(code | x ‖ standard normal)."""
    hidden = jax.nn.relu(vae.encoder(x))
    mean, log_variance = vae.mean(hidden), vae.log_variance(hidden)
    code = mean + jnp.exp(log_variance / 2) * jax.random.normal(key, mean.shape)
    divergence = 0.5 * (jnp.exp(log_variance) + jnp.square(mean) - 1 - log_variance).sum(-1)
    return jnp.square(x - vae.decoder(code)).sum(-1), divergence

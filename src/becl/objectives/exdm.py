"""ExDM's reward (Ying et al. 2026): how badly a diffusion model of the states seen so far restores a state from noise.

Rewards states unlike those seen before. With x the whitened state, times t between 0 and 1, noise ε, α = cos(πt/2) and
σ = sin(πt/2), a network ε_θ is fitted to

    loss = E_{t, ε} mean over dimensions of (ε_θ(α·x + σ·ε, t) − ε)²,      e = the same of a state,      r = e / S

S is the running standard deviation of e. The policy is the usual one: the paper's diffusion policy is for finetuning
only, where the plain one scores higher.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Moments, Network, add_moments, init_moments, whiten
from becl.objectives.particles import RunningScale, init_scale, update_scale
from becl.objectives.protocol import Batch, Metrics
from becl.skills import NoSkill, SkillSpace

WAVES = 8  # Frequencies of the time that the network sees, each twice the one before.


class ExDMState(NamedTuple):
    denoiser: MLP
    moments: Moments
    """Moments of states."""
    scale: RunningScale
    opt: AdamState


@dataclass(frozen=True)
class ExDM:
    skills: SkillSpace = NoSkill()
    """None: the policy has no skill."""
    samples: int = 4
    """Times and noises that a state is priced with, the same for the whole batch."""
    network: Network = Network((1024, 1024, 1024))
    """Layers of the denoiser."""
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> ExDMState:
        network = replace(self.network, normalize=False)  # States are whitened before noise is added.
        denoiser = network.init(key, env.obs_dim + 2 * WAVES, env.obs_dim)
        return ExDMState(denoiser, init_moments(env.obs_dim), init_scale(), self.optimizer.init(denoiser))

    def fit(self, state: ExDMState, batch: Batch, key: PRNGKeyArray) -> tuple[ExDMState, Metrics]:
        """One step on states, each with a time and noise of its own."""
        moments = add_moments(state.moments, batch.next_obs)
        x = whiten(moments, batch.next_obs)
        time_key, noise_key = jax.random.split(key)
        time = jax.random.uniform(time_key, (len(x), 1))
        noise = jax.random.normal(noise_key, x.shape)

        def loss_fn(denoiser: MLP):
            return denoising_error(denoiser, x, time, noise).mean()

        loss, grads = jax.value_and_grad(loss_fn)(state.denoiser)
        denoiser, opt = self.optimizer.update(state.denoiser, grads, state.opt)
        return state._replace(denoiser=denoiser, moments=moments, opt=opt), {"loss": loss}

    def reward(self, state: ExDMState, batch: Batch, key: PRNGKeyArray) -> tuple[ExDMState, Float[Array, " batch"]]:
        x = whiten(state.moments, batch.next_obs)
        error = self.error(state.denoiser, x, key)
        scale = update_scale(state.scale, error)
        return state._replace(scale=scale), error / (jnp.sqrt(scale.variance) + 1e-8)

    def error(self, denoiser: MLP, x: Float[Array, "batch obs"], key: PRNGKeyArray) -> Float[Array, " batch"]:
        """e of every state: over times that are spread evenly, and noises that all states share, so that what differs
        is the state."""
        time_key, noise_key = jax.random.split(key)
        times = (jnp.arange(self.samples) + jax.random.uniform(time_key)) / self.samples
        noises = jax.random.normal(noise_key, (self.samples, x.shape[1]))
        shape = (self.samples, *x.shape)
        errors = denoising_error(
            denoiser,
            jnp.broadcast_to(x, shape),
            jnp.broadcast_to(times[:, None, None], (*shape[:2], 1)),
            jnp.broadcast_to(noises[:, None], shape),
        )
        return errors.mean(0)


def denoising_error(
    denoiser: MLP, x: Float[Array, "*batch obs"], time: Float[Array, "*batch 1"], noise: Float[Array, "*batch obs"]
) -> Float[Array, "*batch"]:
    """Mean over dimensions of (ε_θ(α·x + σ·ε, t) − ε)²."""
    angle = time * jnp.pi / 2
    noisy = jnp.cos(angle) * x + jnp.sin(angle) * noise
    return jnp.square(denoiser(jnp.concatenate([noisy, waves(time)], -1)) - noise).mean(-1)


def waves(time: Float[Array, "*batch 1"]) -> Float[Array, "*batch waves"]:
    """Sines and cosines of a time, of frequencies from a quarter turn on."""
    angles = time * jnp.pi / 2 * 2.0 ** jnp.arange(WAVES)
    return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], -1)

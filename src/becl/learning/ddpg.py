"""DDPG as URLB runs it (Lillicrap et al. 2016; Yarats et al. 2021): the learner of all methods on robots.

With trunk features shared by both critics, clipped noise on target and policy actions, and skills appended to states,

    y = r + d · min(Q̄₁, Q̄₂)(s', ã'),                        ã' = π(s') + clipped noise
    critic loss = mean (Q₁(s, a) − y)² + mean (Q₂(s, a) − y)²
    actor loss  = − mean min(Q₁, Q₂)(s, π(s) + clipped noise)
    Q̄ ← 0.01 · Q + 0.99 · Q̄

Where an action is one of several choices (`EnvSpec.discrete`), it is a one-hot vector. The policy's numbers are what
each choice is worth to it, m = π(s) in [-1, 1]; with Gumbel noise g, a draw from softmax(m / σ) and its gradient are

    a = one-hot(argmax(m + σ · g)),                          ∇a = ∇ softmax(m / σ + g)

(the straight-through estimator of Jang et al. 2017), with σ = `stddev`. Evaluation takes the largest number.

Where an objective has two rewards, each has its y and its critic loss, whose gradients are reconciled (AMPED).

On features of images (`feature_dim`) the networks are URLB's for those: a narrow trunk of state and skill, which the
action joins behind it, and one more hidden layer in actor and critics.
"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.learning.diagnostics import dormant_share, effective_rank, gradient_size, saturation
from becl.learning.reconcile import reconciled
from becl.learning.replay import Transitions
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import (
    Linear,
    Moments,
    Trunk,
    add_moments,
    follow,
    init_moments,
    init_trunk,
    orthogonal_layer,
    whiten,
)
from becl.nn.precision import affine, inner_product, rounded, rounded_weights
from becl.objectives.protocol import Metrics
from becl.skills import SkillSpace
from becl.specs import added

EDGE = 1e-6  # Actions stay this far inside [-1, 1].


class Actor(eqx.Module):
    trunk: Trunk
    hidden: Linear
    out: Linear
    moments: Moments | None = None
    """Statistics of observations, if they are whitened."""
    deeper: Linear | None = None
    """A second hidden layer, if observations are features of images."""
    discrete: bool = eqx.field(static=True, default=False)
    """Whether an action is the choice with the largest number."""

    def __call__(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch action"]:
        """The mean action; of choices, a number each."""
        return self.mean(self.whitened(x))

    def mean(self, x: Float[Array, "*batch in"]) -> Float[Array, "*batch action"]:
        """The mean action for observations that are whitened already."""
        return jnp.tanh(self.layers(x)[-1])

    def layers(self, x: Float[Array, "*batch in"]) -> tuple[Array, Array, Array]:
        """The outputs of trunk and last hidden layer, and the action before its tanh."""
        features = self.trunk(x)
        units = self.hidden.hidden(features)
        if self.deeper is not None:
            units = self.deeper.hidden(units)
        return features, units, self.out(units)

    def whitened(self, x: Float[Array, "*batch any"]) -> Float[Array, "*batch any"]:
        """Inputs with whitened observations; what follows the observations stays as it is."""
        if self.moments is None:
            return x
        moments = jax.lax.stop_gradient(self.moments)
        seen = len(moments.total)
        return jnp.concatenate([whiten(moments, x[..., :seen]), x[..., seen:]], -1)

    def observe(self, obs: Float[Array, "*batch obs"]) -> "Actor":
        """The same policy with these observations in its statistics, if it keeps any."""
        if self.moments is None:
            return self
        return dataclasses.replace(self, moments=add_moments(self.moments, obs))


class Critic(eqx.Module):
    """Two heads on one trunk, side by side in the same arrays."""

    trunk: Trunk
    hidden: Linear
    """From the trunk to both heads: the second half of its outputs belongs to the second head."""
    weight: Float[Array, "2 hidden value"]
    bias: Float[Array, "2 value"]
    deeper: Linear | None = None
    """A second hidden layer of each head, where observations are features of images."""

    def layers(self, x: Float[Array, "batch in"]) -> tuple[Array, Array]:
        """The outputs of trunk and last hidden layer. Inputs beyond the trunk's own join its output."""
        seen = len(self.trunk.linear.weight)
        features = self.trunk(x[:, :seen])
        joined = features if seen == x.shape[1] else jnp.concatenate([features, x[:, seen:]], 1)
        units = self.hidden.hidden(joined)
        if self.deeper is not None:
            halves = jnp.swapaxes(units.reshape(len(x), 2, -1), 0, 1)
            halves = jax.vmap(lambda layer, half: layer.hidden(half))(self.deeper, halves)
            units = jnp.swapaxes(halves, 0, 1).reshape(len(x), -1)
        return features, units

    def __call__(self, x: Float[Array, "batch in"]) -> Float[Array, "2 batch value"]:
        _, features = self.layers(x)
        if self.weight.shape[-1] == 1:
            out = inner_product(features, self.weight.reshape(2, -1)) + self.bias.T
            return out.T[..., None]
        out = affine(features, jax.scipy.linalg.block_diag(*self.weight), self.bias.ravel(), exact=True)
        return jnp.swapaxes(out.reshape(len(x), 2, -1), 0, 1)


class DDPGState(NamedTuple):
    actor: Actor
    critic: Critic
    target: Critic
    actor_opt: AdamState
    critic_opt: AdamState
    rounded: tuple[Actor, Critic, Critic] | None = None
    """The networks with weights rounded as for matrix products; only between `begin` and `end`."""


@dataclass(frozen=True)
class DDPG:
    hidden: int = 1024
    """Width of every layer, but for the trunk with `feature_dim`."""
    stddev: float = 0.2
    """Standard deviation of the noise on actions; of choices, scale of their Gumbel noise."""
    noise_clip: float = 0.3
    """Clip of that noise in updates; acting does not clip it, and that of choices is never clipped."""
    target_rate: float = 0.01
    optimizer: Adam = Adam(1e-4)
    critic_dim: int = 1
    """1 for a value; n for n successor features, whose product with the skill is the value (APS)."""
    normalize: bool = added(False)
    """Whether to whiten observations with running statistics of all that was learned from."""
    action_gain: float = added(1.0)
    """Initial gain of the actor's last layer. URLB's 1 gives actions of moderate size. A larger gain gives actions
    nearer the ends of their range, which is what pretraining with a small reward leads to (docs/transfer.md)."""
    gives_way: float = added(0.8)
    """If an objective has two rewards: how often the first one's gradient gives way when they conflict (AMPED)."""
    feature_dim: int = added(0)
    """Width of the trunk if observations are features of images, with URLB's networks for them (docs/pixels.md); 0 if
    they are numbers."""

    def init(self, key: PRNGKeyArray, env: EnvSpec, skills: SkillSpace) -> DDPGState:
        actor_key, critic_key = jax.random.split(key)
        state_dim = env.obs_dim + skills.dim
        keys = jax.random.split(actor_key, 3)
        width = self.feature_dim or self.hidden
        actor = Actor(
            init_trunk(keys[0], state_dim, width),
            orthogonal_layer(keys[1], width, self.hidden),
            orthogonal_layer(keys[2], self.hidden, env.action_dim, self.action_gain),
            init_moments(env.obs_dim) if self.normalize else None,
            self.init_deeper(actor_key),
            env.discrete,
        )
        critic = self.init_critic(critic_key, state_dim, env.action_dim)
        return DDPGState(actor, critic, critic, self.optimizer.init(actor), self.optimizer.init(critic))

    def init_critic(self, key: PRNGKeyArray, state_dim: int, action_dim: int) -> Critic:
        trunk_key, *head_keys = jax.random.split(key, 5)
        inputs, width = state_dim + action_dim, self.hidden
        if self.feature_dim:
            inputs, width = state_dim, self.feature_dim + action_dim
        hidden = [orthogonal_layer(key, width, self.hidden) for key in head_keys[:2]]
        out = [orthogonal_layer(key, self.hidden, self.critic_dim) for key in head_keys[2:]]
        deeper = [self.init_deeper(key) for key in head_keys[:2]]
        return Critic(
            init_trunk(trunk_key, inputs, self.feature_dim or self.hidden),
            jax.tree.map(lambda *both: jnp.concatenate(both, -1), *hidden),
            jnp.stack([layer.weight for layer in out]),
            jnp.stack([layer.bias for layer in out]),
            jax.tree.map(lambda *both: jnp.stack(both), *deeper),
        )

    def init_deeper(self, key: PRNGKeyArray) -> Linear | None:
        """The second hidden layer, where there is one."""
        return orthogonal_layer(jax.random.fold_in(key, 1), self.hidden, self.hidden) if self.feature_dim else None

    def act(
        self,
        actor: Actor,
        obs: Float[Array, "envs obs"],
        skill: Float[Array, "envs skill"],
        key: PRNGKeyArray,
        random: Bool[Array, ""],
    ) -> Float[Array, "envs action"]:
        """Actions for collecting: noisy, or uniform while `random`."""
        noise_key, random_key = jax.random.split(key)
        mean = actor(jnp.concatenate([obs, skill], -1))
        if actor.discrete:
            worth = jnp.where(random, 0.0, mean)  # Choices that are worth the same are drawn uniformly.
            return choose(worth, self.stddev, noise_key)
        noisy = into_range(mean + self.stddev * jax.random.normal(noise_key, mean.shape))
        return jnp.where(random, jax.random.uniform(random_key, mean.shape, minval=-1.0), noisy)

    def best(
        self, actor: Actor, obs: Float[Array, "envs obs"], skill: Float[Array, "envs skill"]
    ) -> Float[Array, "envs action"]:
        """Actions for evaluation: without noise."""
        return actor(jnp.concatenate([obs, skill], -1))

    def view(self, state: DDPGState, obs: Float[Array, "*batch obs"]) -> Float[Array, "*batch obs"]:
        """Observations as the networks see them."""
        return state.actor.whitened(obs)

    def begin(self, state: DDPGState) -> DDPGState:
        """From now on, weights are rounded when they change, and not again each time they are used."""
        return state._replace(rounded=rounded_weights((state.actor, state.critic, state.target)))

    def end(self, state: DDPGState) -> DDPGState:
        return state._replace(rounded=None)

    def update(self, state: DDPGState, batch: Transitions, key: PRNGKeyArray) -> tuple[DDPGState, Metrics]:
        """Updates the critic, then the actor with the critic just updated, then the target."""
        target_key, actor_key = jax.random.split(key)
        old_actor, old_critic, old_target = rounded((state.actor, state.critic, state.target), state.rounded)
        here = state.actor.whitened(jnp.concatenate([batch.obs, batch.skill], -1))
        there = state.actor.whitened(jnp.concatenate([batch.next_obs, batch.skill], -1))

        next_value = values(old_target, there, self._noisy(old_actor, there, target_key), batch.skill).min(0)
        goal = (batch.reward.T + batch.discount * next_value).T
        grads, measured = self.critic_gradient(old_critic, here, batch, goal, key)
        critic, critic_opt = self.optimizer.update(state.critic, grads, state.critic_opt)
        new_critic = rounded(critic)

        def actor_loss(actor: Actor):
            return -values(new_critic, here, self._noisy(actor, here, actor_key), batch.skill).min(0).mean()

        policy_loss, grads = jax.value_and_grad(actor_loss)(old_actor)
        actor, actor_opt = self.optimizer.update(state.actor, grads, state.actor_opt)
        target = follow(state.target, critic, self.target_rate)
        after = DDPGState(actor.observe(batch.obs), critic, target, actor_opt, critic_opt)
        metrics = measured | {"actor_loss": policy_loss, "goal": goal.mean()}
        return after if state.rounded is None else self.begin(after), metrics

    def critic_gradient(
        self,
        critic: Critic,
        here: Float[Array, "batch s"],
        batch: Transitions,
        goal: Float[Array, "batch *targets"],
        key: PRNGKeyArray,
    ) -> tuple[Critic, Metrics]:
        """The gradient of the critic's loss; of two targets, both reconciled."""

        def critic_loss(critic: Critic):
            q = values(critic, here, batch.action, batch.skill)
            return jnp.square(q - goal).mean(1).sum(), q[0].mean()

        if goal.ndim == 1:
            (loss, q), grads = jax.value_and_grad(critic_loss, has_aux=True)(critic)
            return grads, {"critic_loss": loss, "q": q}
        q, backward = jax.vjp(lambda critic: values(critic, here, batch.action, batch.skill), critic)
        errors = [q - one for one in goal.T]
        (first,), (second,) = (backward(2 * error / len(here)) for error in errors)
        grads, conflict = reconciled(first, second, jax.random.fold_in(key, 2), self.gives_way)
        loss = jnp.square(jnp.stack(errors)).mean(-1).sum()
        return grads, {"critic_loss": loss, "q": q[0].mean(), "conflict": conflict}

    def diagnose(self, state: DDPGState, batch: Transitions) -> Metrics:
        """Whether the networks can still learn, judged on a batch of states: see `becl.learning.diagnostics`."""
        here = state.actor.whitened(jnp.concatenate([batch.obs, batch.skill], -1))
        features, units, before_tanh = state.actor.layers(here)
        critic_features, critic_units = state.critic.layers(jnp.concatenate([here, batch.action], -1))
        gradient, idle = gradient_size(self.optimizer, state.actor_opt)
        return {
            "saturation": saturation(jnp.tanh(before_tanh)),
            "before_tanh": before_tanh.std(),
            "actor_dormant": dormant_share(units),
            "actor_rank": effective_rank(features),
            "critic_dormant": dormant_share(critic_units),
            "critic_rank": effective_rank(critic_features),
            "actor_gradient": gradient,
            "actor_idle": idle,
        }

    def _noisy(self, actor: Actor, x: Float[Array, "batch in"], key: PRNGKeyArray) -> Float[Array, "batch action"]:
        mean = actor.mean(x)
        if actor.discrete:
            return choose(mean, self.stddev, key)
        noise = self.stddev * jax.random.normal(key, mean.shape)
        return into_range(mean + jnp.clip(noise, -self.noise_clip, self.noise_clip))


def into_range(action: Float[Array, "*batch action"]) -> Float[Array, "*batch action"]:
    """Actions clamped into range; the gradient ignores the clamp."""
    clamped = jnp.clip(action, -1 + EDGE, 1 - EDGE)
    return action + jax.lax.stop_gradient(clamped - action)


def choose(worth: Float[Array, "*batch n"], stddev: float, key: PRNGKeyArray) -> Float[Array, "*batch n"]:
    """One-hot choices from the softmax of what each is worth, with the gradient of that softmax."""
    scale = max(stddev, EDGE)
    drawn = worth / scale + jax.random.gumbel(key, worth.shape)
    choice = jax.nn.one_hot(jnp.argmax(drawn, -1), worth.shape[-1], dtype=worth.dtype)
    soft = jax.nn.softmax(drawn)
    return choice + (soft - jax.lax.stop_gradient(soft))


def values(
    critic: Critic, state: Float[Array, "batch s"], action: Float[Array, "batch a"], skill: Float[Array, "batch z"]
) -> Float[Array, "2 batch"]:
    """Both critics' values; with successor features, their product with the skill."""
    out = critic(jnp.concatenate([state, action], -1))
    return out[..., 0] if out.shape[-1] == 1 else jnp.sum(out * skill, -1)

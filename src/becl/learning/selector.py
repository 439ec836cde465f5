"""AMPED's selector (Cho et al. 2026): which skill acts is chosen at every step, by networks trained beside the policy.

With values Q(s, z) of all skills, a policy π(z|s) over them, r and d of the replay's transitions, in which z acted,

    y = r + γ · d · max_z' Q̄(s', z'),      value loss = mean (Q(s, z) − y)²,      Q̄ ← τ · Q + (1 − τ) · Q̄
    policy loss = − E_{z ~ π} [log π(z|s) · Q(s, z)] − 0.01 · H(π(·|s))

While collecting, a skill is drawn uniformly with a probability that falls from 1 to 0.01, and from π otherwise; the
most probable one is judged. Skills must be discrete.
"""

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

from becl.envs.spec import EnvSpec
from becl.learning.choice import Unmoved
from becl.learning.replay import ReplayState, Sampled, Transitions
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Network, Trunk, follow, init_trunk
from becl.skills import SkillSpace


class Head(eqx.Module):
    """Linear, LayerNorm, tanh, and an MLP behind it."""

    trunk: Trunk
    rest: MLP

    def __call__(self, obs: Float[Array, "*batch obs"]) -> Float[Array, "*batch skills"]:
        return self.rest(self.trunk(obs))


class SelectorState(NamedTuple):
    policy: Head
    """Logits of all skills."""
    values: Head
    target: Head
    policy_opt: AdamState
    values_opt: AdamState


@dataclass(frozen=True)
class Selector(Unmoved):
    after: int = 4000
    """Steps, all environments together, before it learns."""
    batch: int = 1024
    steps_per_update: int = 2
    gamma: float = 0.99
    """Discount of what follows, on top of that of the transitions, as released."""
    target_rate: float = 0.005
    entropy_weight: float = 0.01
    exploration: tuple[float, float] = (1.0, 0.01)
    """How often a skill is drawn uniformly, in the beginning and in the long run."""
    decay: float = 20_000.0
    """Steps, all environments together, in which the difference of these falls to 1/e."""
    clip: float = 10.0
    """Largest length of a gradient."""
    width: int = 256
    """Width of the hidden layers of all its networks."""
    optimizer: Adam = Adam(3e-4)

    def init(self, key: PRNGKeyArray, env: EnvSpec, skills: SkillSpace) -> SelectorState:
        policy_key, values_key = jax.random.split(key)
        policy, values = (self.head(k, env.obs_dim, skills.dim) for k in (policy_key, values_key))
        target = jax.tree.map(jnp.copy, values)  # The loop gives the memory of both away.
        return SelectorState(policy, values, target, self.optimizer.init(policy), self.optimizer.init(values))

    def head(self, key: PRNGKeyArray, obs_dim: int, skills: int) -> Head:
        trunk_key, rest_key = jax.random.split(key)
        rest = Network((self.width,)).init(rest_key, self.width, skills)
        return Head(init_trunk(trunk_key, obs_dim, self.width), rest)

    def draw(
        self, state: SelectorState, key: PRNGKeyArray, skills: SkillSpace, envs: int, number: Int[Array, ""]
    ) -> Float[Array, "envs skill"]:
        """Without states: uniformly."""
        del state, number
        return skills.sample(key, envs)

    def draw_by_state(
        self, state: SelectorState, key: PRNGKeyArray, obs: Float[Array, "envs obs"], number: Int[Array, ""]
    ) -> Float[Array, "envs skill"]:
        whether_key, random_key, policy_key = jax.random.split(key, 3)
        logits = state.policy(obs)
        envs, count = logits.shape
        first, last = self.exploration
        uniform = last + (first - last) * jnp.exp(-number * envs / self.decay)
        explores = jax.random.uniform(whether_key, (envs,)) < uniform
        other = jax.random.randint(random_key, (envs,), 0, count)
        chosen = jnp.where(explores, other, jax.random.categorical(policy_key, logits))
        return jax.nn.one_hot(chosen, count)

    def best(self, state: SelectorState, key: PRNGKeyArray, skills: SkillSpace) -> Float[Array, " skill"]:
        """Without states: any."""
        del state
        return skills.sample(key, 1)[0]

    def best_by_state(self, state: SelectorState, obs: Float[Array, "envs obs"]) -> Float[Array, "envs skill"]:
        logits = state.policy(obs)
        return jax.nn.one_hot(jnp.argmax(logits, -1), logits.shape[-1])

    def learn(
        self, state: SelectorState, key: PRNGKeyArray, replay: Sampled, kept: ReplayState, number: Int[Array, ""]
    ) -> SelectorState:
        envs = kept.steps.last.shape[1]

        def update(state: SelectorState, key: PRNGKeyArray) -> tuple[SelectorState, None]:
            return self.update(state, replay.sample(kept, key, self.batch)), None

        def learned(state: SelectorState) -> SelectorState:
            return jax.lax.scan(update, state, jax.random.split(key, max(1, envs // self.steps_per_update)))[0]

        return jax.lax.cond(number * envs >= self.after, learned, lambda state: state, state)

    def update(self, state: SelectorState, batch: Transitions) -> SelectorState:
        """One step of values, then of the policy with them, then of the target."""
        goal = batch.reward + self.gamma * batch.discount * state.target(batch.next_obs).max(-1)

        def value_loss(values: Head) -> Float[Array, ""]:
            return jnp.square(jnp.sum(batch.skill * values(batch.obs), -1) - goal).mean()

        grads = clipped(jax.grad(value_loss)(state.values), self.clip)
        values, values_opt = self.optimizer.update(state.values, grads, state.values_opt)
        worth = values(batch.obs)

        def policy_loss(policy: Head) -> Float[Array, ""]:
            return selection_loss(policy(batch.obs), worth, self.entropy_weight).mean()

        grads = clipped(jax.grad(policy_loss)(state.policy), self.clip)
        policy, policy_opt = self.optimizer.update(state.policy, grads, state.policy_opt)
        return SelectorState(policy, values, follow(state.target, values, self.target_rate), policy_opt, values_opt)


def selection_loss(
    logits: Float[Array, "batch skills"], values: Float[Array, "batch skills"], entropy_weight: float
) -> Float[Array, " batch"]:
    """− E_{z ~ π}[log π(z) · Q(z)] − weight · H(π), the mean over z written out instead of one draw."""
    log_policy = jax.nn.log_softmax(logits)
    drawn = jax.lax.stop_gradient(jnp.exp(log_policy))
    entropy = -jnp.sum(jnp.exp(log_policy) * log_policy, -1)
    return -jnp.sum(drawn * log_policy * values, -1) - entropy_weight * entropy


def clipped(grads: PyTree, most: float) -> PyTree:
    """A gradient of at most this length."""
    length = jnp.sqrt(sum((jnp.square(leaf).sum() for leaf in jax.tree.leaves(grads)), jnp.zeros(())))
    return jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, most / jnp.maximum(length, 1e-6)), grads)

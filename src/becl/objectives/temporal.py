"""Temporal distances: features in which a step has a bounded length, and skills that lead far away in them.

All reward the way covered in the skill's direction z, and differ in what keeps a step's length in bounds. With
Δ = φ(s') − φ(s),

    r = Δᵀz

    METRA (Park et al. 2024)    max E[Δᵀz] + λ·E[min(ε, 1 − ‖Δ‖²)], λ moved the other way: a step is as long as 1
    CSD (Park et al. 2023)      the same, with 1 replaced by how unusual the step is: it is longer where s' surprises
    LSD (Park et al. 2022)      max E[Δᵀz], φ as smooth as the identity: every layer divided by its largest stretch
    CSF (Zheng et al. 2025)     max E[Δᵀz − ξ·log Σ_j exp(Δᵀz_j)], z_j drawn anew: the step tells the skill from others

z is a point on the sphere, or a one-hot skill centred and scaled: (z − 1/n)·n/(n − 1). In METRA's features distances
count steps, so that a skill that points at a goal leads there: z = (φ(g) − φ(s)) / ‖φ(g) − φ(s)‖, again at every step.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.nn.adam import Adam, AdamState
from becl.nn.networks import MLP, Linear, Network, unit
from becl.objectives.protocol import Batch, Metrics
from becl.skills import OneHot, SkillSpace, Sphere, skill_index
from becl.specs import added

BEGINNING = 20  # Steps of LSD's power iteration before the first fit; each fit takes one more.
DEVIATIONS = 7.0  # Logarithms of CSD's deviations lie within ±7.


# --- What they share --------------------------------------------------------------------------------------------------


def steps(features: MLP, batch: Batch) -> Float[Array, "batch dim"]:
    """Δ = φ(s') − φ(s)."""
    return features(batch.next_obs) - features(batch.obs)


def advance(move: Float[Array, "batch dim"], direction: Float[Array, "batch dim"]) -> Float[Array, " batch"]:
    """Δᵀz."""
    return jnp.sum(move * direction, -1)


def directions(space: SkillSpace, skill: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
    """Skills as directions that add up to nothing: one-hot ones are centred, 1 along their own feature."""
    if not isinstance(space, OneHot):
        return skill
    return (skill - 1 / space.dim) * space.dim / (space.dim - 1)


def skill_along(space: SkillSpace, way: Float[Array, "*batch dim"]) -> Float[Array, "*batch dim"]:
    """The skill whose direction is most along a way in features."""
    return jax.nn.one_hot(skill_index(way), space.dim) if isinstance(space, OneHot) else unit(way)


# Methods of every spec here, whose `features_of` gives φ.


def reward_of_way(self: Any, state: Any, batch: Batch, key: PRNGKeyArray) -> tuple[Any, Float[Array, " batch"]]:
    """r = Δᵀz."""
    del key
    return state, advance(steps(self.features_of(state), batch), directions(self.skills, batch.skill))


def skill_to_goal(
    self: Any, state: Any, obs: Float[Array, "*batch obs"], goal: Float[Array, "*batch obs"]
) -> Float[Array, "*batch skill"]:
    """The skill along φ(g) − φ(s)."""
    features = self.features_of(state)
    return skill_along(self.skills, features(goal) - features(obs))


def none_by_chance(self: Any, batch: int) -> float:
    """Directions add up to nothing, and so do steps that do not know theirs."""
    del self, batch
    return 0.0


# --- METRA ------------------------------------------------------------------------------------------------------------


class METRAState(NamedTuple):
    features: MLP
    log_dual: Float[Array, ""]
    opt: AdamState


@dataclass(frozen=True)
class METRA:
    skills: Sphere | OneHot = Sphere(2)
    """Directions in as many dimensions as there are features."""
    network: Network = Network()
    optimizer: Adam = Adam()
    dual: float = 30.0
    """λ in the beginning."""
    slack: float = 1e-3
    """ε: how much shorter than 1 a step may be before λ falls."""
    length: Literal["sum", "mean"] = added("sum")
    """‖Δ‖² as a sum over features, as printed, or as their mean, as released."""

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> METRAState:
        features = self.network.init(key, env.obs_dim, self.skills.dim)
        log_dual = jnp.log(jnp.array(self.dual))
        return METRAState(features, log_dual, self.optimizer.init((features, log_dual)))

    def fit(self, state: METRAState, batch: Batch, key: PRNGKeyArray) -> tuple[METRAState, Metrics]:
        del key

        def loss_fn(learned: tuple[MLP, Array]) -> tuple[Array, Metrics]:
            features, log_dual = learned
            return bounded_loss(self, features, log_dual, batch, jnp.ones(()))

        learned = (state.features, state.log_dual)
        grads, metrics = jax.grad(loss_fn, has_aux=True)(learned)
        (features, log_dual), opt = self.optimizer.update(learned, grads, state.opt)
        return METRAState(features.observe(batch.next_obs), log_dual, opt), metrics

    def features_of(self, state: METRAState) -> MLP:
        return state.features

    reward = reward_of_way
    skill_towards = skill_to_goal
    chance_reward = none_by_chance


def bounded_loss(
    spec: "METRA | CSD", features: MLP, log_dual: Float[Array, ""], batch: Batch, bound: Float[Array, "*batch"]
) -> tuple[Float[Array, ""], Metrics]:
    """− Δᵀz − λ · min(ε, bound − ‖Δ‖²), which features lower, and λ = exp(log_dual) moved the other way."""
    fixed, dual, move = jax.lax.stop_gradient, jnp.exp(log_dual), steps(features, batch)
    squares = jnp.square(move)
    spare = jnp.minimum(spec.slack, bound - getattr(squares, spec.length)(-1)).mean()
    loss = -(advance(move, directions(spec.skills, batch.skill)).mean() + fixed(dual) * spare)
    return loss + dual * fixed(spare), {"loss": loss, "dual": dual, "length": squares.sum(-1).mean()}


# --- CSD --------------------------------------------------------------------------------------------------------------


class CSDNetworks(NamedTuple):
    features: MLP
    log_dual: Float[Array, ""]
    density: MLP
    """Mean and logarithm of the deviation of s' − s, given s."""


class CSDState(NamedTuple):
    networks: CSDNetworks
    opt: AdamState


@dataclass(frozen=True)
class CSD:
    skills: Sphere | OneHot = Sphere(2)
    """Directions in as many dimensions as there are features."""
    network: Network = Network()
    density: Network = Network()
    """Network of the model of steps."""
    optimizer: Adam = Adam()
    dual: float = 3000.0
    """λ in the beginning."""
    slack: float = 1e-6
    """ε."""
    length: Literal["sum", "mean"] = "mean"
    """‖Δ‖² as a sum over features or as their mean, as released; the bound is a mean over observations."""

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> CSDState:
        features_key, density_key = jax.random.split(key)
        features = self.network.init(features_key, env.obs_dim, self.skills.dim)
        density = self.density.init(density_key, env.obs_dim, 2 * env.obs_dim)
        networks = CSDNetworks(features, jnp.log(jnp.array(self.dual)), density)
        return CSDState(networks, self.optimizer.init(networks))

    def fit(self, state: CSDState, batch: Batch, key: PRNGKeyArray) -> tuple[CSDState, Metrics]:
        del key

        def loss_fn(networks: CSDNetworks) -> tuple[Array, Metrics]:
            mean, log_std = jnp.split(networks.density(batch.obs), 2, -1)
            log_std = jnp.clip(log_std, -DEVIATIONS, DEVIATIONS)
            gap = batch.next_obs - batch.obs - mean
            unlikely = jnp.sum(0.5 * jnp.square(gap / jnp.exp(log_std)) + log_std, -1).mean()
            bound = jax.lax.stop_gradient(controllability(gap, log_std))
            loss, metrics = bounded_loss(self, networks.features, networks.log_dual, batch, bound)
            about = {"loss": metrics["loss"] + unlikely, "bound": bound.mean(), "density_loss": unlikely}
            return loss + unlikely, metrics | about

        grads, metrics = jax.grad(loss_fn, has_aux=True)(state.networks)
        networks, opt = self.optimizer.update(state.networks, grads, state.opt)
        seen = networks.features.observe(batch.next_obs), networks.density.observe(batch.obs)
        return CSDState(networks._replace(features=seen[0], density=seen[1]), opt), metrics

    def features_of(self, state: CSDState) -> MLP:
        return state.networks.features

    reward = reward_of_way
    skill_towards = skill_to_goal
    chance_reward = none_by_chance


def controllability(gap: Float[Array, "batch obs"], log_std: Float[Array, "batch obs"]) -> Float[Array, " batch"]:
    """CSD's bound: the mean of (s' − s − μ)_k² · w_k, weights w_k = 1/σ_k² with geometric mean 1."""
    weight = jnp.exp(-2 * (log_std - log_std.mean(-1, keepdims=True)))
    return jnp.mean(jnp.square(gap) * weight, -1)


# --- LSD --------------------------------------------------------------------------------------------------------------


class LSDState(NamedTuple):
    features: MLP
    stretched: tuple[Array, ...]
    """About the direction that each layer stretches most."""
    opt: AdamState


@dataclass(frozen=True)
class LSD:
    skills: Sphere | OneHot = Sphere(2)
    """Directions in as many dimensions as there are features."""
    network: Network = Network()
    """Not whitened: inputs of another scale would be another smoothness."""
    optimizer: Adam = Adam()

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> LSDState:
        network_key, *keys = jax.random.split(key, len(self.network.hidden) + 2)
        features = replace(self.network, normalize=False).init(network_key, env.obs_dim, self.skills.dim)
        vectors = tuple(
            unit(jax.random.normal(key, (len(layer.weight),))) for key, layer in zip(keys, features.layers, strict=True)
        )
        for _ in range(BEGINNING):
            _, vectors = smooth(features, vectors)
        return LSDState(features, vectors, self.optimizer.init(features))

    def fit(self, state: LSDState, batch: Batch, key: PRNGKeyArray) -> tuple[LSDState, Metrics]:
        del key

        def loss_fn(features: MLP) -> tuple[Array, tuple[tuple[Array, ...], Array]]:
            smoothed, vectors = smooth(features, state.stretched)
            move = steps(smoothed, batch)
            loss = -advance(move, directions(self.skills, batch.skill)).mean()
            return loss, (vectors, jnp.square(move).sum(-1).mean())

        (loss, (vectors, length)), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.features)
        features, opt = self.optimizer.update(state.features, grads, state.opt)
        return LSDState(features, vectors, opt), {"loss": loss, "length": length}

    def features_of(self, state: LSDState) -> MLP:
        return smooth(state.features, state.stretched)[0]

    reward = reward_of_way
    skill_towards = skill_to_goal
    chance_reward = none_by_chance


def smooth(features: MLP, vectors: tuple[Array, ...]) -> tuple[MLP, tuple[Array, ...]]:
    """The network with every layer divided by its largest singular value (Miyato et al. 2018), and the directions
    after one more step of the power iteration that finds it. Gradients pass over the iteration."""
    layers, after = [], []
    for layer, vector in zip(features.layers, vectors, strict=True):
        weight = jax.lax.stop_gradient(layer.weight)
        out = unit(jnp.matmul(vector, weight, precision=jax.lax.Precision.HIGHEST))
        vector = unit(jnp.matmul(weight, out, precision=jax.lax.Precision.HIGHEST))
        value = jnp.einsum("i,io,o->", vector, layer.weight, out, precision=jax.lax.Precision.HIGHEST)
        layers.append(Linear(layer.weight / jnp.maximum(value, 1e-12), layer.bias))
        after.append(vector)
    return MLP(tuple(layers)), tuple(after)


# --- CSF --------------------------------------------------------------------------------------------------------------


class CSFState(NamedTuple):
    features: MLP
    opt: AdamState


@dataclass(frozen=True)
class CSF:
    skills: Sphere | OneHot = Sphere(4)
    """Directions in as many dimensions as there are features."""
    network: Network = Network()
    optimizer: Adam = Adam()
    penalty: float = 5.0
    """ξ: what the skills of others weigh."""
    draws: int = 256
    """How many of these there are."""

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> CSFState:
        features = self.network.init(key, env.obs_dim, self.skills.dim)
        return CSFState(features, self.optimizer.init(features))

    def fit(self, state: CSFState, batch: Batch, key: PRNGKeyArray) -> tuple[CSFState, Metrics]:
        own = directions(self.skills, batch.skill)
        others = directions(self.skills, self.skills.sample(key, self.draws))

        def loss_fn(features: MLP) -> tuple[Array, Array]:
            move = steps(features, batch)
            return contrastive_loss(move, own, others, self.penalty).mean(), jnp.square(move).sum(-1).mean()

        (loss, length), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.features)
        features, opt = self.optimizer.update(state.features, grads, state.opt)
        return CSFState(features.observe(batch.next_obs), opt), {"loss": loss, "length": length}

    def features_of(self, state: CSFState) -> MLP:
        return state.features

    reward = reward_of_way
    skill_towards = skill_to_goal
    chance_reward = none_by_chance


def contrastive_loss(
    move: Float[Array, "batch dim"],
    own: Float[Array, "batch dim"],
    others: Float[Array, "draws dim"],
    penalty: float,
) -> Float[Array, " batch"]:
    """− Δᵀz + ξ · log Σ_j exp(Δᵀz_j)."""
    return penalty * jax.nn.logsumexp(move @ others.T, -1) - advance(move, own)

"""Estimators of what skills say about states: data in, numbers out, nothing about any environment.

There are two families. Histograms and neighbours (`plug_in`, `knn_accuracy`) look at single states,
and are quick and repeatable. `particle_entropy` and `mine` look at whole trajectories as vectors,
and are what the paper's bars show (Appendix "Additional Implementation in Maze"). The particle
entropy grows with mere jitter: a uniform random policy beats every trained one. So it means little
without a measure of how well skills can be told apart.

All information is in nats.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray
from scipy.spatial import KDTree
from scipy.spatial.distance import cdist

BIN = 0.25  # Histogram bins, in cells of the maze; their edges fall on its walls.
LEARNING_RATE = 1e-3
WEIGHT_SCALE = 0.02  # Standard deviation of the statistic network's initial weights.
AVERAGING = 0.01  # Weight of a new batch in the running mean of exp T.


class Information(NamedTuple):
    """What a histogram says about states S and skills Z."""

    mutual_information: float  # I(S; Z)
    entropy: float  # H(S)
    accuracy: float  # How often the best guess of the skill from the state is right.


def plug_in(states: Float[np.ndarray, "n d"], skills: Int[np.ndarray, " n"], width: float = BIN) -> Information:
    """I(S; Z), H(S) and Bayes accuracy of the empirical distribution of (bin, skill).

    A state's bin is floor(state / width), so the origin is a corner of bins. I(S; Z) is biased upwards: with n
    independent samples in b bins, skills that do not matter still show (b - 1)(skills - 1) / 2n.
    """
    bins = np.floor(np.asarray(states, np.float64) / width).astype(np.int64)
    _, bin_index = np.unique(bins, axis=0, return_inverse=True)
    _, skill_index = np.unique(skills, return_inverse=True)
    joint = np.zeros((bin_index.max() + 1, skill_index.max() + 1))
    np.add.at(joint, (bin_index, skill_index), 1.0 / len(states))
    entropy = _entropy(joint.sum(1))
    information = entropy + _entropy(joint.sum(0)) - _entropy(joint.ravel())
    return Information(information, entropy, float(joint.max(1).sum()))


def _entropy(probability: Float[np.ndarray, " outcomes"]) -> float:
    positive = probability[probability > 0]
    return float(-(positive * np.log(positive)).sum())


def knn_accuracy(
    states: Float[np.ndarray, "n d"],
    skills: Int[np.ndarray, " n"],
    groups: Int[np.ndarray, " n"],
    k: int = 5,
) -> float:
    """How often the k nearest states of other groups (trajectories) vote for a state's own skill.

    Leaving out a state's own trajectory keeps its neighbours in time from voting. When several skills lead
    the vote, each gets an equal share, so that the order of skills does not matter. NaN if some state has
    fewer than k states outside its group.
    """
    if len(states) - np.unique_counts(groups).counts.max(initial=0) < k:
        return float("nan")
    _, skill = np.unique(skills, return_inverse=True)
    neighbours = _neighbours_of_others(states, groups, k)
    votes = np.zeros((len(states), skill.max() + 1), int)
    np.add.at(votes, (np.arange(len(states))[:, None], skill[neighbours]), 1)
    leads = votes == votes.max(1, keepdims=True)
    return float((leads[np.arange(len(states)), skill] / leads.sum(1)).mean())


def _neighbours_of_others(
    states: Float[np.ndarray, "n d"], groups: Int[np.ndarray, " n"], k: int
) -> Int[np.ndarray, "n k"]:
    """The k nearest states of other groups.

    Asks for more neighbours only for the states whose own group took too many of the first ones.
    """
    tree = KDTree(states)
    result = np.empty((len(states), k), int)
    pending = np.arange(len(states))
    asked = 2 * k
    while len(pending):
        asked = min(2 * asked, len(states))
        nearest = np.asarray(tree.query(states[pending], asked)[1])
        other = groups[nearest] != groups[pending][:, None]
        rank = other.cumsum(1)
        done = rank[:, -1] >= k
        result[pending[done]] = nearest[done][other[done] & (rank[done] <= k)].reshape(-1, k)
        pending = pending[~done]
    return result


def particle_entropy(samples: Float[np.ndarray, "n d"], k: int = 16, clip: float = 0.0005) -> float:
    """Mean of log(1 + mean distance to the k nearest), a stand-in for entropy (Liu & Abbeel 2021).

    As in the published numbers, the sample itself, at distance 0, is one of the k, and distances
    are reduced by `clip` and not rescaled.
    """
    nearest = np.partition(cdist(samples, samples), k - 1, axis=1)[:, :k]
    return float(np.log1p(np.maximum(nearest - clip, 0.0).mean(1)).mean())


def alignment_and_uniformity(features: Float[np.ndarray, "skills episodes states feature"]) -> tuple[float, float]:
    """Alignment and uniformity of unit features by skill (Wang and Isola 2020); for both, less is better.

    Alignment is the mean squared distance of two states of a skill in different episodes, NaN for single episodes.
    Uniformity is the logarithm of the mean of exp(−2 · squared distance) over all pairs.
    """
    skills, episodes, states, _ = features.shape
    within = []
    for one in features:
        distance = 2 - 2 * np.einsum("eif,gjf->egij", one, one)
        within.append(distance[~np.eye(episodes, dtype=bool)].mean() if episodes > 1 else float("nan"))
    flat = features.reshape(skills * episodes * states, -1)
    similarity = flat @ flat.T
    apart = np.exp(-2 * (2 - 2 * similarity[~np.eye(len(flat), dtype=bool)]))
    return float(np.mean(within)), float(np.log(apart.mean()))


class Layer(NamedTuple):
    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]


class _Training(NamedTuple):
    network: list[Layer]
    optimizer: optax.OptState
    average: Float[Array, ""]  # Running mean of exp T over the marginal.


def mine(
    samples: Float[Array | np.ndarray, "n d"],
    skills: Int[Array | np.ndarray, " n"],
    num_skills: int,
    key: PRNGKeyArray,
    iterations: int = 10_000,
    batch: int = 128,
    hidden: tuple[int, ...] = (256, 128),
) -> Float[Array, " iterations"]:
    """MINE's estimate of I(sample; skill) at every iteration, with one-hot skills."""
    one_hot = jax.nn.one_hot(skills, num_skills)
    return mine_curve(samples, one_hot, key, iterations, batch, hidden)


@functools.partial(jax.jit, static_argnames=("iterations", "batch", "hidden"))
def mine_curve(
    x: Float[Array | np.ndarray, "n a"],
    y: Float[Array | np.ndarray, "n b"],
    key: PRNGKeyArray,
    iterations: int = 10_000,
    batch: int = 128,
    hidden: tuple[int, ...] = (256, 128),
) -> Float[Array, " iterations"]:
    """A bound on I(x; y) while a statistic T(x, y) learns to tighten it (Belghazi et al. 2018).

    This is one run; vmap over keys, or over data and keys, for several. The values come from training
    batches: they fluctuate (see `smooth`) and, with few samples and many iterations, end above the truth.
    """
    optimizer = optax.adam(LEARNING_RATE)

    def step(state: _Training, key: PRNGKeyArray) -> tuple[_Training, Float[Array, ""]]:
        joint, marginal_x, marginal_y = _draw(key, len(x), batch)
        batch_x = x[jnp.concatenate([joint, marginal_x])]
        batch_y = y[jnp.concatenate([joint, marginal_y])]
        inputs = jnp.concatenate([batch_x, batch_y], axis=1)
        gradient, (value, average) = jax.grad(_negative_bound, has_aux=True)(state.network, inputs, state.average)
        updates, opt_state = optimizer.update(gradient, state.optimizer)
        network = eqx.apply_updates(state.network, updates)
        return _Training(network, opt_state, average), value

    init_key, key = jax.random.split(key)
    network = _init_network(init_key, (x.shape[1] + y.shape[1], *hidden, 1))
    state = _Training(network, optimizer.init(network), jnp.ones(()))
    return jax.lax.scan(step, state, jax.random.split(key, iterations))[1]


def _init_network(key: PRNGKeyArray, sizes: tuple[int, ...]) -> list[Layer]:
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        Layer(WEIGHT_SCALE * jax.random.normal(key, (inputs, outputs)), jnp.zeros(outputs))
        for key, inputs, outputs in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]


def _draw(key: PRNGKeyArray, total: int, batch: int) -> Int[Array, "3 batch"]:
    """Independent draws without replacement: for the joint, and for each side of the marginal.

    They are the places of the largest of `total` random numbers, which take a fifth of a permutation's time on a CPU.
    """
    indices = jax.lax.top_k(jax.random.uniform(key, (3, total)), batch)[1]
    # Without the barrier, XLA recomputes indices inside the gathers: 1.5 ms per iteration, not 1.1.
    return jax.lax.optimization_barrier(indices)


def _statistic(network: list[Layer], inputs: Float[Array, "batch d"]) -> Float[Array, " batch"]:
    hidden = inputs
    for layer in network[:-1]:
        hidden = jax.nn.elu(hidden @ layer.weight + layer.bias)
    return (hidden @ network[-1].weight + network[-1].bias)[:, 0]


def _negative_bound(
    network: list[Layer], inputs: Float[Array, "batch d"], average: Float[Array, ""]
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, ""]]]:
    """Returns minus the bound, mean T_joint - w log mean exp T_marginal; the bound; and the running mean of exp T.

    The first half of `inputs` is joint, the second marginal. w is this batch's mean of exp T over
    its running mean, held constant: the second term's gradient is then divided by the running mean,
    which removes most of the bias of small batches. As published, the reported value carries w too.
    """
    joint, marginal = jnp.split(_statistic(network, inputs), 2)
    mean_exp = jnp.exp(marginal).mean()
    average = (1 - AVERAGING) * average + AVERAGING * jax.lax.stop_gradient(mean_exp)
    weight = jax.lax.stop_gradient(mean_exp) / average
    value = joint.mean() - weight * jnp.log(mean_exp)
    return -value, (value, average)


def smooth(
    curve: Float[Array | np.ndarray, "*runs iterations"], window: int = 100
) -> Float[np.ndarray, "*runs smoothed"]:
    """Means of `window` consecutive values: entry i averages values i to i + window - 1."""
    curve = np.asarray(curve, np.float64)
    return np.lib.stride_tricks.sliding_window_view(curve, window, axis=-1).mean(-1)

"""The estimators against loops written from their definitions, closed forms and invariances."""

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.measure import estimators


def naive_plug_in(states, skills, width):
    """I(S; Z) = sum p(s, z) log(p(s, z) / p(s) p(z)), one dictionary entry an outcome."""
    bins = [tuple(math.floor(value / width) for value in state) for state in states]
    total = len(bins)
    joint = collections.Counter(zip(bins, skills.tolist(), strict=True))
    of_bin, of_skill = collections.Counter(bins), collections.Counter(skills.tolist())
    information = sum(
        count / total * math.log(count * total / (of_bin[state] * of_skill[skill]))
        for (state, skill), count in joint.items()
    )
    entropy = -sum(count / total * math.log(count / total) for count in of_bin.values())
    best = {state: max(joint[state, skill] for skill in of_skill) for state in of_bin}
    return information, entropy, sum(best.values()) / total


def naive_knn_accuracy(states, skills, groups, k):
    credit = 0.0
    for i in range(len(states)):
        others = [(math.dist(states[i], states[j]), skills[j]) for j in range(len(states)) if groups[j] != groups[i]]
        votes = collections.Counter(skill for _, skill in sorted(others)[:k])
        leaders = [skill for skill, count in votes.items() if count == max(votes.values())]
        credit += (skills[i] in leaders) / len(leaders)
    return credit / len(states)


def naive_particle_entropy(samples, k, clip):
    total = 0.0
    for sample in samples:
        distances = sorted(math.dist(sample, other) for other in samples)[:k]
        total += math.log(1 + sum(max(distance - clip, 0) for distance in distances) / k)
    return total / len(samples)


@pytest.fixture
def walks():
    """States of 12 short random walks of 4 skills, drifting apart: states, skills, groups."""
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(12), 25)
    skills = groups % 4
    drift = np.stack([np.cos(skills), np.sin(skills)], axis=1) * 0.1
    steps = (drift + rng.normal(0, 0.15, (300, 2))).reshape(12, 25, 2)
    return steps.cumsum(1).reshape(300, 2), skills, groups


@pytest.mark.parametrize("width", [0.25, 0.1, 1.0])
def test_plug_in_is_the_definition(walks, width):
    states, skills, _ = walks
    np.testing.assert_allclose(
        estimators.plug_in(states, skills, width), naive_plug_in(states, skills, width), rtol=1e-12
    )


def test_plug_in_of_skills_with_a_bin_each():
    states = np.repeat([[-0.1, 0.0], [0.0, 0.0], [0.24, 0.24], [0.25, 0.0], [0.0, -0.25]], 6, 0)
    # The second and third share a bin, so they count as one skill here.
    result = estimators.plug_in(states, np.repeat([7, 1, 1, 3, 4], 6))
    p = np.array([1, 2, 1, 1]) / 5
    np.testing.assert_allclose(result, [*[-float(p @ np.log(p))] * 2, 1.0], rtol=1e-12)


def test_plug_in_of_equally_likely_disjoint_skills_is_log_n():
    skills = np.tile(np.arange(8), 5)
    states = np.stack([skills, -skills], axis=1).astype(float)
    np.testing.assert_allclose(estimators.plug_in(states, skills), [np.log(8), np.log(8), 1.0], rtol=1e-12)


def test_plug_in_of_independent_skills_is_its_bias():
    rng = np.random.default_rng(1)
    states = rng.uniform(0, 1, (40_000, 2))
    result = estimators.plug_in(states, rng.integers(0, 10, 40_000))
    bias = 15 * 9 / (2 * 40_000)
    assert result.mutual_information == pytest.approx(bias, rel=0.5)
    assert result.entropy == pytest.approx(np.log(16), abs=1e-3)
    assert result.accuracy == pytest.approx(0.1, abs=0.015)


def test_plug_in_and_neighbours_do_not_see_names_or_order(walks):
    states, skills, groups = walks
    order = np.random.default_rng(2).permutation(len(states))
    renamed = np.array([30, 10, 0, 20])[skills]
    np.testing.assert_allclose(estimators.plug_in(states[order], renamed[order]), estimators.plug_in(states, skills))
    assert estimators.knn_accuracy(states[order], renamed[order], groups[order]) == pytest.approx(
        estimators.knn_accuracy(states, skills, groups)
    )


@pytest.mark.parametrize("k", [1, 4, 5])
def test_knn_accuracy_is_the_definition(walks, k):
    states, skills, groups = walks
    assert estimators.knn_accuracy(states, skills, groups, k) == pytest.approx(
        naive_knn_accuracy(states, skills, groups, k), rel=1e-12
    )


def test_knn_accuracy_never_asks_the_own_trajectory():
    # Every trajectory stays at a point of its own; the nearest others are of the other skill.
    groups = np.repeat(np.arange(4), 30)
    states = np.stack([np.array([0.0, 1.0, 10.0, 11.0])[groups], np.zeros(120)], axis=1)
    assert estimators.knn_accuracy(states, groups % 2, groups) == 0.0
    assert estimators.knn_accuracy(states, groups // 2, groups) == 1.0


def test_knn_accuracy_needs_enough_foreign_states():
    states, skills = np.arange(12.0).reshape(6, 2), np.array([0, 0, 0, 1, 1, 1])
    assert np.isnan(estimators.knn_accuracy(states, skills, skills, k=4))
    assert estimators.knn_accuracy(states, skills, skills, k=3) == 0.0


@pytest.mark.parametrize(("k", "clip"), [(16, 0.0005), (3, 0.2)])
def test_particle_entropy_is_the_definition(k, clip):
    samples = np.random.default_rng(3).normal(size=(40, 6))
    assert estimators.particle_entropy(samples, k, clip) == pytest.approx(
        naive_particle_entropy(samples, k, clip), rel=1e-12
    )


def test_particle_entropy_of_copies_is_zero_and_counts_the_sample_itself():
    assert estimators.particle_entropy(np.ones((20, 3))) == 0.0
    # 16 points on a line, 1 apart: an end point's 15 others are at 1 to 15.
    samples = np.arange(16.0)[:, None]
    mean = [np.abs(samples - i).sum() / 16 for i in range(16)]
    assert estimators.particle_entropy(samples, clip=0.0) == pytest.approx(np.log1p(mean).mean())


def gaussians(rho, dim, n=4000):
    rng = np.random.default_rng(4)
    x = rng.normal(size=(n, dim))
    y = rho * x + math.sqrt(1 - rho**2) * rng.normal(size=(n, dim))
    return x.astype(np.float32), y.astype(np.float32)


@pytest.mark.parametrize(("rho", "dim"), [(0.8, 2), (0.0, 2)])
def test_mine_finds_the_information_of_gaussians(rho, dim):
    x, y = gaussians(rho, dim)
    curve = estimators.mine_curve(x, y, jax.random.key(0), 3000, batch=256, hidden=(64, 64))
    truth = -dim / 2 * math.log(1 - rho**2)
    # A lower bound on finite data: 2.5 to 6 % low for the seeds looked at.
    assert estimators.smooth(curve, 500)[-1] == pytest.approx(truth, rel=0.1, abs=0.01)


def test_mine_finds_log_n_for_disjoint_skills_and_runs_can_be_vmapped():
    skills = np.arange(400) % 4
    rng = np.random.default_rng(5)
    samples = (2 * np.eye(4)[skills] + rng.normal(0, 0.1, (400, 4))).astype(np.float32)

    def run(key):
        return estimators.mine(samples, skills, 4, key, iterations=1500, hidden=(64, 32))

    keys = jax.random.split(jax.random.key(1), 2)
    curves = jax.vmap(run)(keys)
    assert curves.shape == (2, 1500)
    # Settles 3 to 4 % low: the reported value of a noisy batch is below the bound.
    np.testing.assert_allclose(estimators.smooth(curves, 500)[:, -1], math.log(4), rtol=0.07)
    assert not np.allclose(curves[0], curves[1])
    # Rounding differs between the batched and the single program and grows with the iterations.
    np.testing.assert_allclose(curves[0, :200], run(keys[0])[:200], atol=1e-3)


def naive_statistic(network, row):
    values = [float(value) for value in row]
    for depth, layer in enumerate(network):
        weight, bias = np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64)
        values = [bias[j] + sum(value * weight[i, j] for i, value in enumerate(values)) for j in range(len(bias))]
        if depth < len(network) - 1:
            values = [value if value > 0 else math.exp(value) - 1 for value in values]
    return values[0]


def small_network():
    network = estimators._init_network(jax.random.key(2), (5, 7, 6, 1))
    rng = np.random.default_rng(6)
    # Larger weights and biases than at the start, so that the exponential and the ELU matter.
    network = [
        estimators.Layer(20 * layer.weight, jnp.asarray(rng.normal(size=layer.bias.shape), jnp.float32))
        for layer in network
    ]
    return network, jnp.asarray(rng.normal(size=(16, 5)), jnp.float32)


def test_mine_value_and_running_mean_are_the_recipe():
    network, inputs = small_network()
    statistic = [naive_statistic(network, row) for row in np.asarray(inputs)]
    mean_exp = sum(math.exp(t) for t in statistic[8:]) / 8
    average = 0.99 * 1.7 + 0.01 * mean_exp
    expected = sum(statistic[:8]) / 8 - mean_exp / average * math.log(mean_exp)
    loss, (value, new_average) = estimators._negative_bound(network, inputs, jnp.array(1.7))
    assert float(value) == pytest.approx(expected, rel=1e-5)
    assert float(loss) == -float(value)
    assert float(new_average) == pytest.approx(average, rel=1e-5)


def test_mine_gradient_divides_by_the_running_mean():
    network, inputs = small_network()
    mean_exp = np.mean([math.exp(naive_statistic(network, row)) for row in np.asarray(inputs)[8:]])
    average = 0.99 * 1.7 + 0.01 * mean_exp

    def surrogate(network):
        statistic = [naive_statistic(network, row) for row in np.asarray(inputs)]
        return np.mean(statistic[:8]) - np.mean(np.exp(statistic[8:])) / average

    gradient = jax.grad(estimators._negative_bound, has_aux=True)(network, inputs, jnp.array(1.7))[0]
    for depth, i, j in [(0, 2, 3), (1, 5, 1), (2, 4, 0)]:
        change = []
        for sign in (1, -1):
            weight = np.array(network[depth].weight, np.float64)
            weight[i, j] += sign * 1e-5
            moved = [*network]
            moved[depth] = estimators.Layer(weight, network[depth].bias)  # pyright: ignore[reportArgumentType]
            change.append(surrogate(moved))
        expected = -(change[0] - change[1]) / 2e-5
        assert float(gradient[depth].weight[i, j]) == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_mine_draws_are_uniform_independent_and_without_replacement():
    draws = jax.vmap(lambda key: estimators._draw(key, 50, 20))(jax.random.split(jax.random.key(3), 4000))
    draws = np.asarray(draws)
    assert draws.shape == (4000, 3, 20)
    assert all(len(set(row)) == 20 for row in draws.reshape(-1, 20)[:500].tolist())
    chosen = np.zeros((4000, 3, 50))
    np.put_along_axis(chosen, draws, 1.0, axis=-1)
    # Five standard errors of a frequency of 0.4 over 4000 draws.
    np.testing.assert_allclose(chosen.mean(0), 0.4, atol=5 * math.sqrt(0.24 / 4000))
    # Places must not follow from size either: position 7 of two draws agrees once in 50.
    assert (draws[:, 1, 7] == draws[:, 2, 7]).mean() == pytest.approx(0.02, abs=0.011)
    assert (draws[:, 0, 7] == draws[:, 1, 7]).mean() == pytest.approx(0.02, abs=0.011)


def test_mine_starts_from_small_normal_weights_and_no_bias():
    network = estimators._init_network(jax.random.key(4), (112, 256, 128, 1))
    assert [layer.weight.shape for layer in network] == [(112, 256), (256, 128), (128, 1)]
    for layer in network[:2]:
        assert float(layer.weight.std()) == pytest.approx(0.02, rel=0.02)
    assert all(not layer.bias.any() for layer in network)


def test_smooth_is_a_moving_mean():
    curves = np.random.default_rng(7).normal(size=(2, 30))
    expected = [[curve[i : i + 4].mean() for i in range(27)] for curve in curves]
    np.testing.assert_allclose(estimators.smooth(curves, 4), expected)

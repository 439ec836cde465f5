"""The Beta policy against SciPy, GAE against a loop, Adam against its formula, PPO against a known optimum."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
import scipy.stats

from becl.envs.spec import EnvSpec
from becl.learning.beta import (
    BetaParams,
    beta_entropy,
    beta_log_prob,
    beta_params,
    beta_variate,
    digamma,
    gamma_noise,
    log_gamma,
)
from becl.learning.ppo import (
    PPO,
    Rollout,
    clipped_advantage,
    concatenated_advantage,
    generalized_advantage,
    policy_input,
)
from becl.nn.adam import Adam
from becl.nn.networks import Network, add_moments, init_moments, mean_and_std, whiten
from becl.skills import OneHot

ALPHA = np.array([1.05, 1.3, 2.0, 5.0, 40.0, 300.0])
BETA = np.array([1.05, 4.0, 1.1, 5.0, 3.0, 200.0])
PARAMS = BetaParams(jnp.array(ALPHA, jnp.float32)[:, None], jnp.array(BETA, jnp.float32)[:, None])


def test_special_functions_equal_scipy():
    x = np.concatenate([np.linspace(1.05, 5, 50), np.geomspace(5, 1000, 30)])
    np.testing.assert_allclose(log_gamma(jnp.array(x, jnp.float32)), scipy.special.gammaln(x), rtol=3e-6, atol=3e-6)
    np.testing.assert_allclose(digamma(jnp.array(x, jnp.float32)), scipy.special.digamma(x), rtol=3e-6, atol=3e-6)
    trigamma = jax.vmap(jax.grad(digamma))(jnp.array(x, jnp.float32))
    np.testing.assert_allclose(trigamma, scipy.special.polygamma(1, x), rtol=1e-4)


def test_beta_log_prob_and_entropy_equal_scipy():
    sample = np.array([0.5, 0.2, 0.9, 0.4, 0.95, 0.6])
    expected = scipy.stats.beta.logpdf(sample, ALPHA, BETA)
    np.testing.assert_allclose(beta_log_prob(PARAMS, jnp.array(sample)[:, None]), expected, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(beta_entropy(PARAMS), scipy.stats.beta.entropy(ALPHA, BETA), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("row", range(len(ALPHA)))
def test_beta_variates_follow_the_beta_distribution(row):
    count = 20_000
    params = BetaParams(*(jnp.full((count, 1), float(p[row])) for p in (ALPHA, BETA)))
    draws = np.asarray(beta_variate(params, gamma_noise(jax.random.key(row), 2, count, 1)))[:, 0]
    assert scipy.stats.kstest(draws, scipy.stats.beta(ALPHA[row], BETA[row]).cdf).pvalue > 1e-3


def test_advantage_equals_the_backward_loop_within_each_episode():
    rng = np.random.default_rng(0)
    reward, values = rng.normal(size=(50, 7)), rng.normal(size=(51, 7))
    expected = np.zeros_like(reward)
    running = np.zeros(7)
    for t in reversed(range(50)):
        running = reward[t] + 0.99 * values[t + 1] - values[t] + 0.99 * 0.98 * running
        expected[t] = running
    got = generalized_advantage(jnp.array(reward, jnp.float32), jnp.array(values, jnp.float32), 0.99, 0.98)
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_concatenated_advantage_equals_the_loop_over_all_transitions():
    rng = np.random.default_rng(0)
    reward, values = rng.normal(size=(5, 4)), rng.normal(size=(6, 4))
    flat_reward, flat_value = reward.T.ravel(), values[:-1].T.ravel()
    following = np.append(flat_value[1:], values[-1, -1])
    expected, running = np.zeros(20), 0.0
    for t in reversed(range(20)):
        running = flat_reward[t] + 0.99 * following[t] - flat_value[t] + 0.99 * 0.98 * running
        expected[t] = running
    got = concatenated_advantage(jnp.array(reward, jnp.float32), jnp.array(values, jnp.float32), 0.99, 0.98)
    np.testing.assert_allclose(got.T.ravel(), expected, atol=1e-4)


def test_clipped_advantage_stops_the_gradient_outside():
    slope = jax.vmap(jax.grad(lambda ratio, advantage: clipped_advantage(ratio, advantage, 0.2)), (0, 0))
    got = slope(jnp.array([1.5, 1.5, 0.5, 0.5, 1.0]), jnp.array([1.0, -1.0, 1.0, -1.0, 1.0]))
    np.testing.assert_allclose(got, [0.0, -1.0, 1.0, 0.0, 1.0])


def test_adams_epsilon_stands_beside_the_uncorrected_moment():
    """Ten steps by the formula lr·sqrt(1−b2^t)/(1−b1^t)·m/(sqrt(v)+eps), in float64."""
    rng = np.random.default_rng(0)
    grads = rng.normal(size=(10, 4)) * 1e-2
    x = m = v = np.zeros(4)
    params = jnp.zeros(4)
    adam = Adam(1e-3, 1e-3, corrected=False)
    state = adam.init(params)
    for t, g in enumerate(grads, 1):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        x = x - 1e-3 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + 1e-3)
        params, state = adam.update(params, jnp.array(g, jnp.float32), state)
    np.testing.assert_allclose(params, x, rtol=1e-4)


def test_corrected_adam_is_optax_adam():
    adam, reference = Adam(1e-3, 1e-8), optax.adam(1e-3)
    params = jnp.ones(3)
    grads = jnp.array([1.0, -2.0, 0.5])
    moved, _ = adam.update(params, grads, adam.init(params))
    updates, _ = reference.update(grads, reference.init(params), params)
    np.testing.assert_allclose(moved, np.asarray(optax.apply_updates(params, updates)), rtol=1e-6)


def test_moments_whiten_and_clip():
    rng = np.random.default_rng(0)
    data = rng.normal(3.0, 2.0, (5000, 2))
    moments = init_moments(2)
    for part in np.split(data, 10):
        moments = add_moments(moments, jnp.array(part, jnp.float32))
    mean, std = mean_and_std(moments)
    np.testing.assert_allclose(mean, data.mean(0), rtol=1e-3)
    np.testing.assert_allclose(std, data.std(0), rtol=1e-3)
    np.testing.assert_allclose(whiten(moments, jnp.array([[1e6, -1e6]])), [[5.0, -5.0]])


def test_ppo_finds_the_best_action_of_each_skill():
    """A bandit whose best action is +0.6 for one skill and −0.6 for the other."""
    env, skills, ppo = EnvSpec(1, 1, 1), OneHot(2), PPO(network=Network((32, 32), "uniform"), entropy_weight=1e-3)
    ppo = dataclasses.replace(ppo, optimizer=Adam(3e-3))
    state = ppo.init(jax.random.key(0), env, skills)
    target = jnp.array([0.6, -0.6])

    @jax.jit
    def cycle(state, key):
        keys = jax.random.split(key, 3)
        skill = skills.spread(keys[0], 250)
        obs = jnp.zeros((1, 250, 1))
        params = beta_params(state.networks.policy, policy_input(obs, skill))
        sample = beta_variate(params, gamma_noise(keys[1], 2, 1, 250, 1))
        reward = -jnp.square(2 * sample[..., 0] - 1 - skill @ target)
        return ppo.update(state, Rollout(obs, skill, sample, obs[0]), reward, keys[2])

    for number in range(60):
        state, _ = cycle(state, jax.random.key(number))
    inputs = policy_input(jnp.zeros((2, 1)), jnp.eye(2))
    mean = beta_params(state.networks.policy, inputs)
    action = 2 * mean.alpha / (mean.alpha + mean.beta) - 1
    np.testing.assert_allclose(action[:, 0], target, atol=0.12)


def test_value_at_a_time_limit_stands_for_what_would_follow():
    """With reward 1 for ever, V → 1/(1−γ), although episodes are cut after five steps."""
    env, skills = EnvSpec(1, 1, 5), OneHot(2)
    ppo = dataclasses.replace(PPO(discount=0.8, network=Network((16,), "uniform")), optimizer=Adam(1e-2))
    state = ppo.init(jax.random.key(0), env, skills)
    obs = jnp.zeros((5, 20, 1))
    skill = skills.spread(jax.random.key(1), 20)
    rollout = Rollout(obs, skill, jnp.full((5, 20, 1), 0.5), obs[0])
    update = jax.jit(ppo.update)
    for number in range(60):
        state, _ = update(state, rollout, jnp.ones((5, 20)), jax.random.key(number))
    _, metrics = update(state, rollout, jnp.ones((5, 20)), jax.random.key(60))
    np.testing.assert_allclose(metrics["value"], 5.0, rtol=0.05)

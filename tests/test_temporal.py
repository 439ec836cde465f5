"""Temporal distances: METRA, LSD, CSD and CSF against loops from their papers, and what each keeps in bounds."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl import testing
from becl.experiments.pretraining import make_pretraining
from becl.nn.adam import Adam
from becl.nn.networks import MLP, Linear
from becl.objectives import METHODS
from becl.objectives.protocol import LeadsToGoals
from becl.objectives.temporal import CSD, CSF, LSD, METRA, contrastive_loss, directions, skill_along, smooth
from becl.options import PretrainOptions
from becl.skills import OneHot, Sphere

FAMILY = (METRA(), LSD(), CSD(), CSF())


def started(objective: Any) -> tuple[Any, Any, Any]:
    """It with small networks, its first state, and a batch."""
    objective = testing.small(objective)
    return objective, objective.init(jax.random.key(0), testing.ENV), testing.batch_for(objective)


def codes_of(batch: Any, space: Any) -> np.ndarray:
    """Skills as directions, written out."""
    if isinstance(space, OneHot):
        return np.array([[1.0 if k == np.argmax(row) else -1 / 3 for k in range(4)] for row in batch.skill])
    return np.asarray(batch.skill, np.float64)


# --- METRA ------------------------------------------------------------------------------------------------------------


def naive_metra(state: Any, batch: Any, codes: np.ndarray, slack: float) -> tuple[np.ndarray, float]:
    """Rewards and the loss of φ by loops in float64, from the paper."""
    here, there = (np.asarray(state.features(x), np.float64) for x in (batch.obs, batch.next_obs))
    rewards, rooms = [], []
    for i in range(len(here)):
        move = [there[i][j] - here[i][j] for j in range(here.shape[1])]
        rewards.append(sum(step * code for step, code in zip(move, codes[i], strict=True)))
        rooms.append(min(slack, 1 - sum(step**2 for step in move)))
    dual = float(np.exp(state.log_dual))
    return np.array(rewards), -float(np.mean(rewards) + dual * np.mean(rooms))


@pytest.mark.parametrize("space", [Sphere(4), OneHot(4)])
@pytest.mark.parametrize("scale", [0.2, 3.0])
def test_metra_equals_the_paper_by_loops(space, scale):
    objective = testing.small(METRA(space, slack=0.05))
    batch = testing.batch_for(objective)
    batch = batch._replace(obs=scale * batch.obs, next_obs=scale * batch.next_obs)
    codes = np.asarray(batch.skill, np.float64)
    if isinstance(space, OneHot):
        codes = np.array([[1.0 if k == np.argmax(row) else -1 / 3 for k in range(4)] for row in codes])
    state = objective.init(jax.random.key(0), testing.ENV)
    expected = naive_metra(state, batch, codes, 0.05)
    _, reward = objective.reward(state, batch, jax.random.key(1))
    _, metrics = objective.fit(state, batch, jax.random.key(1))
    np.testing.assert_allclose(reward, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["loss"], expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("scale", "direction"), [(1e-3, -1), (10.0, 1)])
def test_the_multiplier_falls_where_steps_are_short_and_rises_where_they_are_long(scale, direction):
    """Adam's first step has the length of its rate, whatever the gradient."""
    objective = testing.small(METRA())
    batch = testing.batch_for(objective)
    batch = batch._replace(obs=scale * batch.obs, next_obs=scale * batch.next_obs)
    state = objective.init(jax.random.key(0), testing.ENV)
    after, _ = objective.fit(state, batch, jax.random.key(1))
    np.testing.assert_allclose(state.log_dual, np.log(30), rtol=1e-6)
    np.testing.assert_allclose(after.log_dual - state.log_dual, direction * 1e-4, rtol=0.01)


def test_a_step_in_features_has_length_one_after_fitting():
    """On a line of states a step apart, φ becomes the position along the skill's direction."""
    objective = testing.small(METRA(dual=1.0, optimizer=Adam(1e-2)))
    place = jnp.linspace(-1, 1, 120)
    batch = testing.batch_for(objective)
    obs = jnp.zeros((120, 3)).at[:, 0].set(place)
    sign = jnp.where(jnp.arange(120) % 2 == 0, 1.0, -1.0)
    skill = jnp.zeros((120, 4)).at[:, 0].set(sign)
    batch = batch._replace(obs=obs, next_obs=obs.at[:, 0].add(0.1 * sign), skill=skill)
    state = objective.init(jax.random.key(0), testing.ENV)
    keys = jax.random.split(jax.random.key(0), 600)
    state, metrics = jax.lax.scan(lambda state, key: objective.fit(state, batch, key), state, keys)
    _, reward = objective.reward(state, batch, jax.random.key(0))
    np.testing.assert_allclose(metrics["length"][-1], 1, atol=0.15)
    np.testing.assert_allclose(reward, 1, atol=0.35)


def test_the_released_length_is_a_mean():
    objective, state, batch = started(METRA(slack=10.0))
    released = dataclasses.replace(objective, length="mean")
    whole, part = (one.fit(state, batch, jax.random.key(1))[1] for one in (objective, released))
    move = np.asarray(state.features(batch.next_obs) - state.features(batch.obs), np.float64)
    difference = 30 * np.square(move).sum(1).mean() * (1 - 1 / 4)
    assert whole["loss"] - part["loss"] == pytest.approx(difference, rel=1e-4)


# --- CSD --------------------------------------------------------------------------------------------------------------


def naive_csd(state: Any, batch: Any, codes: np.ndarray, slack: float) -> tuple[float, float, float]:
    """The loss of φ, the mean bound, and the loss of the model of steps, by loops in float64."""
    net = state.networks
    here, there = (np.asarray(net.features(x), np.float64) for x in (batch.obs, batch.next_obs))
    out = np.asarray(net.density(batch.obs), np.float64)
    gains, rooms, bounds, unlikely = [], [], [], []
    for i in range(len(here)):
        mean, std = out[i, :3], np.exp(out[i, 3:])
        gap = np.asarray(batch.next_obs[i] - batch.obs[i], np.float64) - mean
        inverse = 1 / std
        weights = (inverse / np.prod(inverse) ** (1 / 3)) ** 2
        bounds.append(np.mean([gap[k] ** 2 * weights[k] for k in range(3)]))
        unlikely.append(sum(0.5 * (gap[k] / std[k]) ** 2 + np.log(std[k]) for k in range(3)))
        move = there[i] - here[i]
        gains.append(move @ codes[i])
        rooms.append(min(slack, bounds[-1] - np.mean(move**2)))
    return -float(np.mean(gains) + 3000 * np.mean(rooms)), float(np.mean(bounds)), float(np.mean(unlikely))


@pytest.mark.parametrize("space", [Sphere(4), OneHot(4)])
def test_csd_equals_the_paper_by_loops(space):
    objective, state, batch = started(CSD(space, slack=0.05))
    loss, bound, unlikely = naive_csd(state, batch, codes_of(batch, space), 0.05)
    _, metrics = objective.fit(state, batch, jax.random.key(1))
    np.testing.assert_allclose(metrics["loss"], loss + unlikely, rtol=1e-4)
    np.testing.assert_allclose(metrics["bound"], bound, rtol=1e-4)
    np.testing.assert_allclose(metrics["density_loss"], unlikely, rtol=1e-4)


def test_csds_bound_is_large_where_a_step_surprises():
    """The third number of a state moves seldom: where it does, a step may be longer."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(120, 3))
    step = rng.normal(size=(120, 3)) * [1.0, 1.0, 0.02]
    objective, state, batch = started(CSD(optimizer=Adam(3e-3)))
    batch = batch._replace(obs=jnp.asarray(obs, jnp.float32), next_obs=jnp.asarray(obs + step, jnp.float32))
    keys = jax.random.split(jax.random.key(0), 400)
    fit = jax.jit(lambda state: jax.lax.scan(lambda state, key: objective.fit(state, batch, key), state, keys))
    state, metrics = fit(state)
    assert metrics["density_loss"][-1] < metrics["density_loss"][0] - 1
    bounds = []
    for way in ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0)):
        moved = batch._replace(next_obs=batch.obs + jnp.array(way))
        bounds.append(float(objective.fit(state, moved, keys[0])[1]["bound"]))
    assert bounds[1] > 20 * bounds[0]


def test_the_model_of_steps_does_not_feel_the_features():
    """Its gradient is that of its likelihood alone."""
    objective, state, batch = started(CSD())
    other = dataclasses.replace(objective, dual=1e-3)
    pushed, left = (one.fit(state, batch, jax.random.key(1))[0].networks.density for one in (objective, other))
    jax.tree.map(np.testing.assert_array_equal, pushed, left)


# --- LSD --------------------------------------------------------------------------------------------------------------


def test_layers_are_divided_by_their_largest_singular_value():
    rng = np.random.default_rng(0)
    layers = [
        Linear(jnp.asarray(rng.normal(size=shape), jnp.float32), jnp.ones(shape[1])) for shape in ((5, 9), (9, 3))
    ]
    vectors = tuple(jnp.asarray(rng.normal(size=n), jnp.float32) for n in (5, 9))
    for _ in range(200):
        smoothed, vectors = smooth(MLP(tuple(layers)), vectors)
    for before, after in zip(layers, smoothed.layers, strict=True):  # type: ignore[reportPossiblyUnbound]
        largest = np.linalg.svd(np.asarray(before.weight, np.float64), compute_uv=False)[0]
        np.testing.assert_allclose(after.weight, before.weight / largest, rtol=1e-4)
        np.testing.assert_array_equal(after.bias, before.bias)


@pytest.mark.parametrize("space", [Sphere(4), OneHot(4)])
def test_lsd_equals_the_paper_by_loops(space):
    objective, state, batch = started(LSD(space))
    weights = [np.asarray(layer.weight, np.float64) for layer in state.features.layers]

    def features(x: np.ndarray) -> np.ndarray:
        for number, weight in enumerate(weights):
            x = x @ (weight / np.linalg.svd(weight, compute_uv=False)[0])
            x = np.maximum(x, 0) if number < len(weights) - 1 else x
        return x

    move = features(np.asarray(batch.next_obs, np.float64)) - features(np.asarray(batch.obs, np.float64))
    expected = np.array(
        [sum(a * b for a, b in zip(*pair, strict=True)) for pair in zip(move, codes_of(batch, space), strict=True)]
    )
    np.testing.assert_allclose(objective.reward(state, batch, jax.random.key(0))[1], expected, rtol=1e-3, atol=1e-5)
    _, metrics = objective.fit(state, batch, jax.random.key(0))
    np.testing.assert_allclose(metrics["loss"], -expected.mean(), rtol=1e-3, atol=1e-5)


def test_lsds_features_stay_as_smooth_as_the_observation():
    objective, state, batch = started(LSD(optimizer=Adam(3e-3)))
    state, _ = testing.run(objective, state, batch, jax.random.key(0))
    features, _ = smooth(state.features, state.stretched)
    points = jnp.asarray(np.random.default_rng(1).normal(size=(60, 3)), jnp.float32)
    here = np.asarray(features(points))
    gaps = np.linalg.norm(here[:, None] - here, axis=-1)
    ways = np.linalg.norm(np.asarray(points)[:, None] - np.asarray(points), axis=-1)
    assert (gaps <= 1.02 * ways + 1e-6).all()
    assert gaps.max() > 0.3 * ways.max()  # And are used.


# --- CSF --------------------------------------------------------------------------------------------------------------


def test_csf_equals_the_paper_by_loops():
    rng = np.random.default_rng(0)
    move, own, others = rng.normal(size=(9, 4)), rng.normal(size=(9, 4)), rng.normal(size=(20, 4))
    expected = [
        -sum(a * b for a, b in zip(move[i], own[i], strict=True)) + 5 * np.log(sum(np.exp(move[i] @ z) for z in others))
        for i in range(9)
    ]
    found = contrastive_loss(*(jnp.asarray(x, jnp.float32) for x in (move, own, others)), 5.0)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("space", [Sphere(4), OneHot(4)])
def test_csf_draws_the_skills_of_others_from_the_prior(space):
    objective, state, batch = started(CSF(space, draws=7))
    _, metrics = objective.fit(state, batch, jax.random.key(3))
    others = codes_of(batch._replace(skill=space.sample(jax.random.key(3), 7)), space)
    move = np.asarray(state.features(batch.next_obs) - state.features(batch.obs), np.float64)
    expected = 5 * np.log(np.exp(move @ others.T).sum(1)) - (move * codes_of(batch, space)).sum(1)
    np.testing.assert_allclose(metrics["loss"], expected.mean(), rtol=1e-4)


# --- All of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", FAMILY, ids=lambda one: type(one).__name__)
def test_a_skill_leads_along_the_features(objective):
    """The skill towards a goal is the direction of largest reward, were the goal the next state."""
    for space in (Sphere(4), OneHot(4)):
        changed, state, batch = started(dataclasses.replace(objective, skills=space))
        assert issubclass(type(changed), LeadsToGoals)
        towards = changed.skill_towards(state, batch.obs, batch.next_obs)
        chosen = changed.reward(state, batch._replace(skill=towards), jax.random.key(0))[1]
        tried = jnp.eye(4) if isinstance(space, OneHot) else space.sample(jax.random.key(1), 50)
        for skill in tried:
            same = jnp.broadcast_to(skill, batch.skill.shape)
            other = changed.reward(state, batch._replace(skill=same), jax.random.key(0))[1]
            assert (chosen >= other - 1e-5).all()
    away = changed.skill_towards(state, batch.obs[0], batch.obs[0])  # type: ignore[reportPossiblyUnbound]
    assert np.isfinite(away).all()


def test_directions_add_up_to_nothing():
    eye = directions(OneHot(5), jnp.eye(5))
    np.testing.assert_allclose(eye.sum(0), 0, atol=1e-6)
    np.testing.assert_allclose(jnp.diagonal(eye), 1)
    np.testing.assert_array_equal(skill_along(OneHot(3), jnp.array([0.1, -5.0, 0.3])), [0, 0, 1])
    np.testing.assert_allclose(skill_along(Sphere(2), jnp.array([3.0, 4.0])), [0.6, 0.8])


def test_skills_last_an_episode_and_any_of_the_family_may_have_discrete_ones():
    names = [name for name in METHODS if name.partition("-")[0] in ("metra", "lsd", "csd", "csf")]
    assert len(names) == 8
    for name in names:
        run = make_pretraining(PretrainOptions("walker", name, skills=3)).run
        assert run.skill_interval is None
        assert type(run.objective.skills) is (OneHot if name.endswith("-discrete") else Sphere)
        assert run.objective.skills.dim == 3

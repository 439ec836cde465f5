"""MOSS and ExDM: rewards by loops, the modes of skills and when they change, and a diffusion model that learns."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl import testing
from becl.envs.spec import EnvSpec
from becl.experiments.finetuning import resolve_choice
from becl.experiments.pretraining import load_pretraining, make_pretraining
from becl.export.find import parse_vector
from becl.learning.choice import Halves, Held
from becl.nn.adam import Adam
from becl.nn.networks import MLP, Linear, mean_and_std
from becl.objectives.cic import CIC
from becl.objectives.exdm import WAVES, ExDM, denoising_error, waves
from becl.objectives.moss import MOSS
from becl.objectives.particles import init_scale
from becl.options import PretrainOptions
from becl.runs.folder import open_folder
from becl.skills import Modes, SkillSpace

# --- The modes of skills ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [Modes(6), Modes(6, "sign"), Modes(5)])
def test_a_skill_knows_its_mode(space):
    checked: Any = space
    assert isinstance(checked, SkillSpace)
    modes = jnp.arange(40) % 2
    drawn = space.of_mode(jax.random.key(0), modes)
    np.testing.assert_array_equal(space.mode(drawn), modes)
    assert (
        (np.abs(drawn) > 0).sum(1) == (6 if space.by == "sign" else [3, 3] * 20 if space.dim == 6 else [2, 3] * 20)
    ).all()
    assert (np.abs(drawn) <= 1).all()
    assert (drawn >= 0).all() == (space.by == "half")
    np.testing.assert_array_equal(np.bincount(space.mode(space.spread(jax.random.key(1), 20))), [10, 10])
    assert 30 < int(space.mode(space.sample(jax.random.key(2), 100)).sum()) < 70


@pytest.mark.parametrize("length", [1000, 50, 7])
def test_the_mode_changes_in_the_middle_of_an_episode(length):
    space, rule = Modes(4), Halves()
    state = rule.init(jax.random.key(0), EnvSpec(2, 2, length), space)
    modes = [
        np.asarray(space.mode(rule.draw(state, jax.random.key(number), space, 3, jnp.array(number))))
        for number in (0, length // 2 - 1, length // 2, length // 2 * 2 - 1, length // 2 * 2)
    ]
    np.testing.assert_array_equal(modes, [[mode] * 3 for mode in (0, 0, 1, 1, 0)])
    assert rule.best(state, jax.random.key(0), space).shape == (4,)


@pytest.mark.parametrize(("env", "interval"), [("walker", 50), ("square_a", 25)])
def test_a_run_draws_skills_where_the_mode_changes(env, interval, tmp_path):
    made = make_pretraining(PretrainOptions(env, "moss", skills=6, hidden=8))
    assert (made.run.choice, made.run.skill_interval) == (Halves(), interval)
    assert made.run.objective.skills == Modes(6)
    open_folder(made.config(), tmp_path / "run")
    assert load_pretraining(tmp_path / "run") == made
    assert json.loads((Path(tmp_path) / "run" / "config.json").read_text())["run"]["choice"] == {"spec": "Halves"}
    assert resolve_choice("constant", "moss", made) == (Held(), None)


def test_a_skill_of_a_mode_can_be_typed():
    np.testing.assert_allclose(parse_vector("moss", Modes(3, "sign"), "-1,0,0.5"), [-1, 0, 0.5])
    with pytest.raises(ValueError, match=r"needs 3 numbers in \[-1, 1\]"):
        parse_vector("moss", Modes(3), "-2,0,0")


# --- MOSS -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [Modes(4), Modes(4, "sign")])
def test_moss_equals_its_formula_by_loops(space):
    objective = testing.small(MOSS(space, neighbours=5))
    batch, state = testing.batch_for(objective), objective.init(jax.random.key(0), testing.ENV)
    batch = batch._replace(skill=space.spread(jax.random.key(0), 120))
    network = state.networks.state
    here, there = (np.asarray(network(x), np.float64) for x in (batch.obs, batch.next_obs))
    near = np.array([sorted(np.linalg.norm(row - there, axis=1))[:5] for row in here])
    mean, variance = near.mean(), near.var(ddof=1)  # The first batch outweighs what was there before.
    expected = []
    for distances, skill in zip(near, np.asarray(batch.skill), strict=True):
        surprise = np.log(1 + np.mean([max((d - mean) / variance - 0.0005, 0) for d in distances]))
        other = skill.sum() < 0 if space.by == "sign" else skill[:2].sum() == 0
        expected.append(-surprise if other else surprise)
    assert {np.sign(reward) for reward in expected} >= {-1.0, 1.0}
    found = objective.reward(state, batch, jax.random.key(0))[1]
    np.testing.assert_allclose(found, expected, rtol=2e-2, atol=2e-3)


def test_moss_learns_its_features_as_cic_does():
    objective = testing.small(MOSS())
    same = testing.small(CIC(Modes(32)))
    assert same == objective.contrast
    batch, state = testing.batch_for(objective), objective.init(jax.random.key(0), testing.ENV)
    after, other = (one.fit(state, batch, jax.random.key(1))[0] for one in (objective, same))
    jax.tree.map(np.testing.assert_array_equal, after, other)


# --- ExDM -------------------------------------------------------------------------------------------------------------


def naive_denoiser(denoiser: Any, x: np.ndarray, time: float) -> np.ndarray:
    """The network in float64, with the waves of its time."""
    angles = [time * np.pi / 2 * 2**k for k in range(WAVES)]
    x = np.concatenate([x, np.sin(angles), np.cos(angles)])
    for number, layer in enumerate(denoiser.layers):
        x = x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)
        x = np.maximum(x, 0) if number < len(denoiser.layers) - 1 else x
    return x


def test_the_error_equals_the_formula_by_loops():
    rng = np.random.default_rng(0)
    objective = testing.small(ExDM())
    denoiser = objective.init(jax.random.key(0), testing.ENV).denoiser
    x, noise, times = rng.normal(size=(6, 3)), rng.normal(size=(6, 3)), rng.uniform(size=(6, 1))
    expected = []
    for i in range(6):
        t = times[i, 0]
        noisy = np.cos(np.pi * t / 2) * x[i] + np.sin(np.pi * t / 2) * noise[i]
        expected.append(np.mean((naive_denoiser(denoiser, noisy, t) - noise[i]) ** 2))
    arrays = (jnp.asarray(a, jnp.float32) for a in (x, times, noise))
    np.testing.assert_allclose(denoising_error(denoiser, *arrays), expected, rtol=1e-4)


def test_states_are_whitened_and_rewards_divided_by_their_deviation():
    objective = testing.small(ExDM(samples=3))
    batch = testing.make_batch()
    state, _ = objective.fit(objective.init(jax.random.key(0), testing.ENV), batch, jax.random.key(1))
    mean, std = mean_and_std(state.moments)
    np.testing.assert_allclose(mean, np.asarray(batch.next_obs).mean(0), atol=1e-3)
    after, reward = objective.reward(state, batch, jax.random.key(2))
    x = jnp.clip((batch.next_obs - mean) / std, -5, 5)
    time_key, noise_key = jax.random.split(jax.random.key(2))
    times = (np.arange(3) + float(jax.random.uniform(time_key))) / 3
    noises = np.asarray(jax.random.normal(noise_key, (3, 3)), np.float64)
    errors = np.zeros(120)
    for t, noise in zip(times, noises, strict=True):
        assert 0 <= t <= 1
        for i, row in enumerate(np.asarray(x, np.float64)):
            noisy = np.cos(np.pi * t / 2) * row + np.sin(np.pi * t / 2) * noise
            errors[i] += np.mean((naive_denoiser(state.denoiser, noisy, t) - noise) ** 2) / 3
    np.testing.assert_allclose(reward, errors / errors.std(ddof=1), rtol=1e-3)
    assert after.scale.number == pytest.approx(float(init_scale().number) + 120)


def test_what_was_seen_often_is_restored_better_than_what_was_not():
    objective = dataclasses.replace(testing.small(ExDM(samples=16)), optimizer=Adam(3e-3))
    batch = testing.make_batch(apart=0.0)
    rng = np.random.default_rng(3)
    along = rng.normal(size=120)  # States on a line.
    seen = batch._replace(next_obs=jnp.asarray(np.stack([along, along, -along], 1), jnp.float32))
    state = objective.init(jax.random.key(0), testing.ENV)
    keys = jax.random.split(jax.random.key(1), 800)
    fit = jax.jit(lambda state: jax.lax.scan(lambda state, key: objective.fit(state, seen, key), state, keys))
    state, metrics = fit(state)
    assert metrics["loss"][-50:].mean() < 0.8 * metrics["loss"][:50].mean()
    off = seen._replace(next_obs=seen.next_obs * jnp.array([1.0, -1.0, 1.0]))
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), seen, off)
    _, reward = objective.reward(state, both, jax.random.key(2))
    assert reward[120:].mean() > 1.2 * reward[:120].mean()


def test_a_network_that_knows_the_noise_earns_nothing():
    """Of states that are all at the origin, what is left is the noise itself, scaled."""
    x, noise = jnp.zeros((5, 3)), jax.random.normal(jax.random.key(0), (5, 3))
    time = jnp.full((5, 1), 0.5)
    layer = Linear(jnp.concatenate([jnp.eye(3) / np.sin(np.pi / 4), jnp.zeros((2 * WAVES, 3))]), jnp.zeros(3))
    np.testing.assert_allclose(denoising_error(MLP((layer,)), x, time, noise), 0, atol=1e-10)
    assert waves(time).shape == (5, 2 * WAVES)

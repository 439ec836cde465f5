"""Every method through the registry, and every formula against a loop written from its paper."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.envs.spec import EnvSpec
from becl.networks import Network
from becl.objectives import METHODS, Batch, MazeStudy
from becl.objectives import becl as becl_file
from becl.objectives.becl import BeCL, negative_mass
from becl.objectives.becl_released_maze import BeCLReleasedMaze
from becl.objectives.cic import CIC, transition_nce
from becl.objectives.dads import DADS
from becl.objectives.diayn import DIAYN
from becl.objectives.particles import init_scale, nearest_distances, particle_reward, update_scale
from becl.skills import OneHot

GOLDEN = json.loads((Path(__file__).parent / "golden" / "algo.json").read_text())
ENV = EnvSpec(obs_dim=3, action_dim=2, episode_length=10)
SMALL = Network((16, 16), "uniform")


def small(objective):
    """The method with tiny networks and four skills."""
    known = {field.name for field in dataclasses.fields(objective)}
    sizes = {"network": SMALL, "skills": OneHot(4), "feature_dim": 5, "episode_length": 10}
    return dataclasses.replace(objective, **{k: v for k, v in sizes.items() if k in known})


def every_objective():
    for name, method in METHODS.items():
        yield pytest.param(small(method.objective), id=name)
        if method.maze is not None and method.maze.objective is not None:
            yield pytest.param(small(method.maze.objective), id=f"{name}, maze")


def make_batch(seed=0, episodes=12, steps=10, skills=4, apart=0.0) -> Batch:
    """Episodes of noise; `apart` moves each skill's states to its own place."""
    rng = np.random.default_rng(seed)
    index = np.arange(episodes) % skills
    centre = rng.normal(size=(skills, ENV.obs_dim)) * apart
    states = rng.normal(size=(episodes, steps + 1, ENV.obs_dim)) * 0.5 + centre[index][:, None]
    flat = lambda x: jnp.asarray(x.reshape(episodes * steps, -1), jnp.float32)  # noqa: E731
    return Batch(
        obs=flat(states[:, :-1]),
        action=flat(rng.uniform(-1, 1, (episodes, steps, ENV.action_dim))),
        next_obs=flat(states[:, 1:]),
        skill=jnp.repeat(jax.nn.one_hot(index, skills), steps, axis=0),
        trajectory=jnp.repeat(jnp.arange(episodes), steps),
        progress=jnp.tile(jnp.arange(1, steps + 1) / steps, episodes),
        reward=jnp.zeros(episodes * steps),
    )


@pytest.mark.parametrize("objective", [*every_objective()])
class TestEveryObjective:
    def test_reward_is_finite_one_a_row_and_the_state_keeps_its_shape(self, objective):
        batch = make_batch()
        state = objective.init(jax.random.key(0), ENV)
        after_fit, metrics = objective.fit(state, batch, jax.random.key(1))
        after_reward, reward = objective.reward(after_fit, batch, jax.random.key(2))
        assert reward.shape == (120,)
        assert np.all(np.isfinite(reward))
        assert all(np.shape(value) == () and np.isfinite(value) for value in metrics.values())
        shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), s) for s in (state, after_fit, after_reward)]
        assert shapes[0] == shapes[1] == shapes[2]

    def test_jit_changes_nothing_and_the_same_key_gives_the_same_bits(self, objective):
        batch = make_batch()

        def both(key):
            state, _ = objective.fit(objective.init(key, ENV), batch, key)
            return objective.reward(state, batch, key)[1]

        compiled = jax.jit(both)
        np.testing.assert_array_equal(compiled(jax.random.key(3)), compiled(jax.random.key(3)))
        np.testing.assert_allclose(both(jax.random.key(3)), compiled(jax.random.key(3)), rtol=2e-3, atol=1e-4)

    def test_seeds_train_together_as_they_do_alone(self, objective):
        batch = make_batch()

        def both(key):
            state, _ = objective.fit(objective.init(key, ENV), batch, key)
            return objective.reward(state, batch, key)[1]

        keys = jax.random.split(jax.random.key(0), 3)
        together = jax.jit(jax.vmap(both))(keys)
        alone = jnp.stack([jax.jit(both)(key) for key in keys])
        np.testing.assert_allclose(together, alone, rtol=2e-3, atol=1e-4)

    def test_fitting_lowers_the_loss_on_separable_skills(self, objective):
        if isinstance(objective, CIC) and not objective.train_encoder:
            pytest.skip("this variant does not train its encoder")
        batch = make_batch(apart=3.0)
        state = objective.init(jax.random.key(0), ENV)
        step = jax.jit(objective.fit)
        state, first = step(state, batch, jax.random.key(1))
        for number in range(60):
            state, _ = step(state, batch, jax.random.key(number))
        _, last = step(state, batch, jax.random.key(60))
        assert last["loss"] < first["loss"]

    def test_order_of_the_batch_does_not_matter(self, objective):
        if isinstance(objective, BeCLReleasedMaze) or getattr(objective, "positive", "") in ("first", "random"):
            pytest.skip("this formula looks at the order of the batch")
        batch = make_batch()
        state = objective.init(jax.random.key(0), ENV)
        order = np.random.default_rng(0).permutation(len(batch.progress))
        shuffled = Batch(*(x[order] for x in batch))
        reward = objective.reward(state, batch, jax.random.key(1))[1]
        np.testing.assert_allclose(
            objective.reward(state, shuffled, jax.random.key(1))[1], reward[order], rtol=1e-3, atol=1e-5
        )


@pytest.mark.parametrize("name", ["becl", "becl-paper", "becl-released", "diayn", "dads"])
def test_competence_methods_reward_skills_that_can_be_told_apart(name):
    """After fitting, own-skill labels are worth more than labels passed on to the next skill."""
    objective = small((METHODS[name].maze or MazeStudy()).objective or METHODS[name].objective)
    batch = make_batch(apart=3.0)
    wrong = batch._replace(skill=jnp.roll(batch.skill, 1, axis=1))
    state = objective.init(jax.random.key(0), ENV)
    fit = jax.jit(objective.fit)
    for number in range(200):
        state, _ = fit(state, batch, jax.random.key(number))
    mixed = wrong._replace(skill=jnp.where(jnp.arange(120)[:, None] < 30, wrong.skill, batch.skill))
    right = objective.reward(state, batch, jax.random.key(0))[1][:30]
    mislabelled = objective.reward(state, mixed, jax.random.key(0))[1][:30]
    assert right.mean() > mislabelled.mean()


# --- BeCL -------------------------------------------------------------------------------------------------------------


def naive_becl(features, batch, temperature, positive, hardness=0.0, skills=4):
    """Eq. 8 and 10 by loops in float64; negatives count as 2(m−1)."""
    f = np.asarray(features, np.float64)
    f = f / np.linalg.norm(f, axis=1, keepdims=True)
    skill, trajectory = np.argmax(batch.skill, 1), np.asarray(batch.trajectory)
    losses, rewards = [], []
    for i in range(len(f)):
        candidates = [j for j in range(len(f)) if skill[j] == skill[i] and trajectory[j] != trajectory[i]]
        candidates = candidates or [j for j in range(len(f)) if skill[j] == skill[i] and j != i]
        if not candidates:
            losses.append(0.0)
            rewards.append(0.0)
            continue
        scores = {j: f[i] @ f[j] / temperature for j in candidates}
        if positive == "nearest":
            candidates = [max(scores, key=scores.__getitem__)]
        negatives = np.array([f[i] @ f[j] / temperature for j in range(len(f)) if skill[j] != skill[i]])
        weights = np.exp(hardness * (negatives - negatives.max()))
        weights = weights / weights.mean()
        mass = np.mean(weights * np.exp(negatives)) * 2 * (skills - 1)
        ratios = [1 / (1 + mass * np.exp(-scores[j])) for j in candidates]
        losses.append(np.mean([-np.log(r) for r in ratios]))
        rewards.append(np.mean(ratios))
    return np.array(losses), np.array(rewards)


@pytest.mark.parametrize("hardness", [0.0, 1.5])
@pytest.mark.parametrize("positive", ["nearest", "mean"])
@pytest.mark.parametrize("temperature", [0.5, 0.05, 0.01])
def test_becl_equals_the_paper_by_loops(positive, hardness, temperature):
    batch = make_batch(episodes=6, steps=4)  # Skills 2 and 3 have one trajectory each: the fallback is used.
    objective = BeCL(OneHot(4), temperature, positive=positive, hard_negatives=hardness)
    features = jax.random.normal(jax.random.key(0), (24, 5))
    unit = features / jnp.linalg.norm(features, axis=1, keepdims=True)
    loss, reward = objective.contrast(unit, unit, batch, jnp.arange(24), jax.random.key(0))
    expected = naive_becl(features, batch, temperature, positive, hardness)
    np.testing.assert_allclose(loss, expected[0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(reward, expected[1], rtol=2e-3, atol=1e-5)


def test_becl_released_equals_the_released_numbers():
    golden = GOLDEN["becl"]
    skills = jax.nn.one_hot(jnp.array(golden["skill_index"]), 3)
    count = len(skills)
    zeros = jnp.zeros((count, 1))
    batch = Batch(zeros, zeros, zeros, skills, jnp.arange(count), jnp.ones(count), jnp.zeros(count))
    objective = BeCL(OneHot(3), golden["temperature"], positive="first", denominator="all")

    def losses(features):
        unit = features / jnp.linalg.norm(features, axis=1, keepdims=True)
        return objective.contrast(unit, unit, batch, jnp.arange(count), jax.random.key(0))

    features = jnp.array(golden["features"])
    loss, reward = losses(features)
    np.testing.assert_allclose(loss, golden["loss"], rtol=1e-5)
    np.testing.assert_allclose(reward, golden["reward"], rtol=1e-5)
    grads = jax.grad(lambda x: losses(x)[0].mean())(features)
    np.testing.assert_allclose(grads, golden["grad_mean_loss_wrt_features"], atol=1e-6)


def test_becl_reward_is_bounded_even_at_low_temperature():
    batch = make_batch(apart=5.0)
    for temperature in (1.0, 0.1, 0.01, 0.001):
        objective = dataclasses.replace(small(BeCL()), temperature=temperature)
        state = objective.init(jax.random.key(0), ENV)
        reward = objective.reward(state, batch, jax.random.key(0))[1]
        assert np.all((reward >= 0) & (reward <= 1))

        def loss(networks, objective=objective):
            features = objective.features(networks, batch.next_obs)
            return objective.contrast(features, features, batch, jnp.arange(120), jax.random.key(0))[0].mean()

        grads = jax.grad(loss)((state.encoder, state.head))
        assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(grads))


def test_becl_scale_is_the_papers_whatever_the_batch():
    """Perfect clusters of 16 skills: the printed 1 positive against 30 negatives gives 0.22, collapse 1/31."""
    skills = 16
    simplex = jnp.eye(skills) - 1 / skills
    simplex = simplex / jnp.linalg.norm(simplex, axis=1, keepdims=True)
    for copies in (2, 8):
        skill = jnp.repeat(jnp.eye(skills), copies, axis=0)
        count = len(skill)
        zeros = jnp.zeros((count, 1))
        batch = Batch(zeros, zeros, zeros, skill, jnp.arange(count), jnp.ones(count), jnp.zeros(count))
        objective = BeCL(OneHot(skills))
        rows = jnp.arange(count)
        apart = jnp.repeat(simplex, copies, axis=0)
        same = jnp.ones((count, 4)) / 2
        perfect = objective.contrast(apart, apart, batch, rows, jax.random.key(0))[1]
        collapsed = objective.contrast(same, same, batch, rows, jax.random.key(0))[1]
        np.testing.assert_allclose(perfect, np.e**2 / (np.e**2 + 30 * np.exp(-2 / 15)), rtol=1e-5)
        np.testing.assert_allclose(collapsed, 1 / 31, rtol=1e-5)


def test_aligned_positive_is_of_the_same_time():
    batch = make_batch(episodes=8, steps=10)
    pairs = becl_file.relate(batch, jnp.arange(80))
    times = jnp.tile(batch.progress, (80, 1))
    chosen = becl_file.aligned(times, pairs, jax.random.key(0))
    np.testing.assert_allclose(chosen.scores[:, 0], batch.progress)
    np.testing.assert_array_equal(chosen.weights, 1.0)


def test_random_positives_are_uniform_over_candidates():
    batch = make_batch(episodes=12, steps=1)  # Three trajectories a skill, one state each.
    pairs = becl_file.relate(batch, jnp.arange(12))
    ids = jnp.tile(jnp.arange(12.0), (12, 1))
    draws = jax.vmap(lambda key: becl_file.random(ids, pairs, key).scores)(jax.random.split(jax.random.key(0), 500))
    drawn = np.asarray(draws[:, 0]).astype(int).ravel()
    counts = np.bincount(drawn, minlength=12)
    assert set(np.flatnonzero(counts)) == {4, 8}
    assert abs(counts[4] / counts.sum() - 0.5) < 0.04


def test_negatives_far_below_the_anchor_keep_their_gradient():
    """At temperature 0.01 the anchor's own score is 100; a negative at 10 must still be seen."""
    scores, negatives = jnp.array([[100.0, 10.0]]), jnp.array([[False, True]])
    for hardness in (0.0, 0.5):
        value, slope = jax.value_and_grad(lambda s, h=hardness: negative_mass(s, negatives, h)[0])(scores)
        np.testing.assert_allclose(value, 10.0, rtol=1e-5)
        np.testing.assert_allclose(slope, [[0.0, 1.0]], atol=1e-5)


def test_hard_negatives_raise_the_mass_and_zero_leaves_it():
    scores = jax.random.normal(jax.random.key(0), (5, 20))
    negatives = jnp.ones((5, 20), bool)
    plain = negative_mass(scores, negatives, 0.0)
    np.testing.assert_allclose(plain, jax.nn.logsumexp(scores, 1), rtol=1e-5)
    np.testing.assert_allclose(negative_mass(scores, negatives, 1e-6), plain, rtol=1e-4)
    assert np.all(negative_mass(scores, negatives, 1.0) > plain)


def test_ramp_multiplies_by_a_power_of_progress():
    batch = make_batch()
    plain, ramped = small(BeCL()), dataclasses.replace(small(BeCL()), ramp=0.5)
    state = plain.init(jax.random.key(0), ENV)
    base = plain.reward(state, batch, jax.random.key(0))[1]
    np.testing.assert_allclose(ramped.reward(state, batch, jax.random.key(0))[1], base * batch.progress**0.5, rtol=1e-5)


def test_released_maze_formula_by_loops():
    batch = make_batch(episodes=6, steps=10)
    objective = small(BeCLReleasedMaze())
    state = objective.init(jax.random.key(0), ENV)
    f = np.asarray(state.encoder(batch.next_obs), np.float64)
    f /= np.linalg.norm(f, axis=1, keepdims=True)
    skill = np.argmax(batch.skill, 1)
    expected = []
    for i in range(60):
        peak = max(f[i] @ f[j] for j in range(60) if j != i)
        negative = sum(np.exp((f[i] @ f[j] - peak) / 0.5) for j in range(60) if skill[j] != skill[i])
        last = f[10 * (i // 10) + 9]
        expected.append(np.exp(f[i] * last).sum() / (negative + 1e-6) + 1e-6)
    np.testing.assert_allclose(objective.reward(state, batch, jax.random.key(0))[1], expected, rtol=1e-4)


# --- The other methods ------------------------------------------------------------------------------------------------


def test_diayn_reward_is_log_posterior_over_prior():
    objective, batch = small(DIAYN()), make_batch()
    state = objective.init(jax.random.key(0), ENV)
    logits = np.asarray(state.classifier(batch.next_obs), np.float64)
    posterior = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = np.log(posterior[np.arange(120), np.argmax(batch.skill, 1)]) + np.log(4)
    np.testing.assert_allclose(objective.reward(state, batch, jax.random.key(0))[1], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("given", ["skill", "state and skill"])
def test_dads_reward_is_log_likelihood_over_the_mixture(given):
    objective, batch = small(DADS(given=given, stddev=0.7)), make_batch()
    state = objective.init(jax.random.key(0), ENV)
    expected = []
    for row in range(120):
        densities = []
        for number in range(4):
            skill = jnp.eye(4)[number]
            mean = objective.predict(state, batch.obs[row], skill)
            densities.append(np.exp(-np.sum(np.square(np.asarray(batch.next_obs[row] - mean, np.float64))) / 0.98))
        own = densities[int(np.argmax(batch.skill[row]))]
        expected.append(np.log(own / np.mean(densities)))
    np.testing.assert_allclose(objective.reward(state, batch, jax.random.key(0))[1], expected, rtol=1e-3, atol=1e-4)


def test_cic_loss_equals_the_released_numbers():
    golden = GOLDEN["cic_nce"]
    query, key = (np.array(golden[name]) for name in ("query", "key"))
    query, key = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (query, key))
    scores = jnp.asarray(query @ key.T / golden["temp"], jnp.float32)
    np.testing.assert_allclose(transition_nce(scores, golden["temp"], "constant"), golden["loss"], rtol=1e-4)


def test_cic_exact_self_term_is_the_sum_over_others():
    scores = jax.random.normal(jax.random.key(0), (6, 6))
    others = [sum(np.exp(float(scores[i, j])) for j in range(6) if j != i) for i in range(6)]
    np.testing.assert_allclose(
        transition_nce(scores, 0.5, "exact"), np.log(others) - np.diagonal(scores), rtol=1e-4, atol=1e-5
    )


def test_cic_reward_equals_the_released_numbers_over_two_calls():
    golden = GOLDEN["cic_apt"]
    scale = init_scale()
    for call, size in (("call1", 1), ("call2", 2)):
        features = size * jnp.array(golden["rep"])
        distances = nearest_distances(features, features, golden["knn_k"])
        scale = update_scale(scale, distances)
        np.testing.assert_allclose(particle_reward(distances / scale.variance, 0.0005), golden[call], rtol=1e-4)


def test_running_scale_equals_the_released_numbers_and_numpy():
    golden = GOLDEN["rms"]
    scale = init_scale()
    for name in ("1", "2"):
        scale = update_scale(scale, jnp.array(golden[f"x{name}"], jnp.float32))
        np.testing.assert_allclose([scale.mean, scale.variance], golden[f"after{name}"], rtol=1e-5)


def test_cic_with_random_features_still_whitens():
    """In a wide maze positions beyond the clip of the whitening must not look the same."""
    objective = dataclasses.replace(small(CIC(train_encoder=False)), network=dataclasses.replace(SMALL, normalize=True))
    batch = make_batch()
    wide = batch._replace(obs=10 + 5 * batch.obs, next_obs=10 + 5 * batch.next_obs)
    state = objective.init(jax.random.key(0), ENV)
    state, _ = objective.fit(state, wide, jax.random.key(1))
    features = state.networks.state(wide.next_obs)
    assert len(np.unique(np.asarray(features), axis=0)) == 120


def test_nearest_distances_by_loops():
    x, y = (jax.random.normal(jax.random.key(k), (30, 6)) for k in (0, 1))
    expected = [sorted(np.linalg.norm(a - b) for b in np.asarray(y))[:5] for a in np.asarray(x)]
    np.testing.assert_allclose(nearest_distances(x, y, 5), expected, rtol=1e-4)

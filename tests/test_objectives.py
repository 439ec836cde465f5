"""Every method through the registry, and every formula against a loop written from its paper."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.envs.spec import EnvSpec
from becl.errors import UserError
from becl.networks import Network, computing
from becl.objectives import METHODS, Batch, MazeStudy, Objective
from becl.objectives import becl as becl_file
from becl.objectives.becl import BeCL, negative_mass
from becl.objectives.becl_released_maze import BeCLReleasedMaze
from becl.objectives.cic import CIC, transition_nce
from becl.objectives.dads import DADS
from becl.objectives.diayn import DIAYN
from becl.objectives.extrinsic import Extrinsic
from becl.objectives.particles import init_scale, nearest_distances, particle_reward, update_scale
from becl.objectives.proto import ProtoRL
from becl.objectives.smm import SMM
from becl.pretraining import spec_classes
from becl.skills import OneHot
from becl.specs import from_dict, to_dict
from becl.study import make_run

GOLDEN = json.loads((Path(__file__).parent / "golden" / "algo.json").read_text())
ENV = EnvSpec(obs_dim=3, action_dim=2, episode_length=10)
SMALL = Network((16, 16), "uniform")


SIZES = {"feature_dim": 5, "code_dim": 5, "prototypes": 8, "queue": 40, "head": (16,), "episode_length": 10}


def small(objective):
    """The method with tiny networks and four skills, or as many dimensions of continuous ones."""
    values = {field.name: getattr(objective, field.name) for field in dataclasses.fields(objective)}
    sizes = {name: size for name, size in SIZES.items() if values.get(name) is not None}
    for name, value in values.items():
        if isinstance(value, Network):
            sizes[name] = dataclasses.replace(value, hidden=(16,) * len(value.hidden))
    if objective.skills.dim:
        sizes["skills"] = dataclasses.replace(objective.skills, dim=4)
    return dataclasses.replace(objective, **sizes)


def every_objective():
    """Every method as it pretrains, and as the maze study has it: other networks, and one-hot skills for all."""
    for name, method in METHODS.items():
        yield pytest.param(small(method.objective), id=name)
        if method.maze is not None:
            yield pytest.param(small(make_run(name, "square_a", 4).objective), id=f"{name}, maze")


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
        reward=jnp.asarray(rng.normal(size=episodes * steps), jnp.float32),
    )


def batch_for(objective, **kwargs) -> Batch:
    """The batch with skills of the method's own space: four of them, or none where it has none."""
    batch, space = make_batch(**kwargs), objective.skills
    four = jnp.eye(4) if isinstance(space, OneHot) else space.sample(jax.random.key(0), 4)
    return batch._replace(skill=four[jnp.argmax(batch.skill, 1)])


def degenerate(batch: Batch) -> dict[str, Batch]:
    """Batches that a run may meet and a formula may divide by zero on."""
    rows = jnp.arange(len(batch.progress))
    alike = Batch(*(jnp.broadcast_to(x[0], x.shape) for x in batch))
    one_skill = batch._replace(skill=alike.skill)
    return {
        "one skill": one_skill,
        "a skill seen once": batch._replace(skill=jnp.where(rows[:, None] == 0, batch.skill[0], batch.skill[10])),
        "one trajectory": one_skill._replace(trajectory=alike.trajectory, progress=(rows + 1) / len(rows)),
        "a trajectory a row": batch._replace(trajectory=rows),
        "one state": batch._replace(obs=alike.obs, next_obs=alike.obs),
        "one state, at the origin": batch._replace(obs=0 * batch.obs, next_obs=0 * batch.obs),
        "one state, far out": batch._replace(obs=100 + alike.obs, next_obs=100 + alike.obs),
        "one transition": alike,
    }


def start(objective, key):
    return objective.init(key, ENV)  # Not compiled as a whole: objectives share most of its pieces.


def step(objective, state, batch, key):
    fit_key, reward_key = jax.random.split(key)
    state, metrics = objective.fit(state, batch, fit_key)
    state, reward = objective.reward(state, batch, reward_key)
    return state, (reward, metrics)


@functools.partial(jax.jit, static_argnums=0)
def run(objective, state, batch, key):
    """Sixty steps of fit and reward, compiled once an objective for most of its tests."""
    return jax.lax.scan(lambda state, key: step(objective, state, batch, key), state, jax.random.split(key, 60))


def described(tree):
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


def assert_same_reward(objective, reward, expected):
    """Up to rounding. A state's distance to itself is a rounding error of the Gram matrix, up to 5e-4 of its norm."""
    atol = 2e-3 if hasattr(objective, "neighbours") else 1e-4
    np.testing.assert_allclose(reward, expected, rtol=2e-3, atol=atol)


@pytest.mark.parametrize("objective", [*every_objective()])
class TestEveryObjective:
    def test_reward_is_finite_one_a_row_and_the_state_keeps_its_shape(self, objective):
        assert isinstance(objective, Objective)
        state, batch = start(objective, jax.random.key(0)), batch_for(objective)
        after_fit, _ = jax.eval_shape(objective.fit, state, batch, jax.random.key(1))
        after_reward, _ = jax.eval_shape(objective.reward, state, batch, jax.random.key(1))
        after_run, (reward, metrics) = run(objective, state, batch, jax.random.key(1))
        assert described(state) == described(after_fit) == described(after_reward) == described(after_run)
        assert reward.shape == (60, 120)
        assert np.all(np.isfinite(reward))
        assert all(np.shape(value) == (60,) and np.all(np.isfinite(value)) for value in metrics.values())

    def test_jit_and_scan_change_nothing_and_the_same_key_gives_the_same_bits(self, objective):
        state, batch, key = start(objective, jax.random.key(3)), batch_for(objective), jax.random.key(4)
        _, (rewards, _) = run(objective, state, batch, key)
        np.testing.assert_array_equal(rewards, run(objective, state, batch, key)[1][0])
        for number in range(2):
            state, (reward, _) = step(objective, state, batch, jax.random.split(key, 60)[number])
            assert_same_reward(objective, rewards[number], reward)

    def test_seeds_train_together_as_they_do_alone(self, objective):
        batch, keys = batch_for(objective), jax.random.split(jax.random.key(0), 3)
        first = jax.vmap(lambda key: jax.random.split(key, 60)[0])(keys)
        states = jax.vmap(functools.partial(start, objective))(keys)
        _, (together, _) = jax.jit(jax.vmap(functools.partial(step, objective), (0, None, 0)))(states, batch, first)
        for key, reward in zip(keys, together, strict=True):
            _, (alone, _) = run(objective, start(objective, key), batch, key)
            assert_same_reward(objective, reward, alone[0])

    def test_fitting_lowers_the_loss_on_separable_skills(self, objective):
        if isinstance(objective, Extrinsic):
            pytest.skip("nothing is fitted")
        if isinstance(objective, CIC) and not objective.train_encoder:
            pytest.skip("this variant does not train its encoder")
        state, batch = start(objective, jax.random.key(0)), batch_for(objective, apart=3.0)
        _, (_, metrics) = run(objective, state, batch, jax.random.key(1))
        assert metrics["loss"][-1] < metrics["loss"][0]

    def test_order_of_the_batch_does_not_matter(self, objective):
        if isinstance(objective, BeCLReleasedMaze) or getattr(objective, "positive", "") in ("first", "random"):
            pytest.skip("this formula looks at the order of the batch")
        if isinstance(objective, SMM | ProtoRL):
            pytest.skip("this formula draws something for each row")
        state, batch = start(objective, jax.random.key(0)), batch_for(objective)
        order = np.random.default_rng(0).permutation(len(batch.progress))
        shuffled = Batch(*(x[order] for x in batch))
        price = jax.jit(objective.reward)
        reward = price(state, batch, jax.random.key(1))[1]
        np.testing.assert_allclose(price(state, shuffled, jax.random.key(1))[1], reward[order], rtol=1e-3, atol=1e-5)

    def test_degenerate_batches_leave_everything_finite(self, objective):
        state = start(objective, jax.random.key(0))
        for name, batch in degenerate(batch_for(objective)).items():
            after, (reward, metrics) = run(objective, state, batch, jax.random.key(1))
            broken = [x for x in jax.tree.leaves((after, reward, metrics)) if not np.all(np.isfinite(x))]
            assert not broken, name

    def test_whitening_networks_keep_their_structure(self, objective):
        networks = {f.name: getattr(objective, f.name) for f in dataclasses.fields(objective)}
        networks = {name: value for name, value in networks.items() if isinstance(value, Network)}
        whitening = {name: dataclasses.replace(value, normalize=True) for name, value in networks.items()}
        objective = dataclasses.replace(objective, **whitening)
        state = jax.eval_shape(functools.partial(objective.init, env=ENV), jax.random.key(0))
        after, _ = jax.eval_shape(functools.partial(step, objective), state, batch_for(objective), jax.random.key(0))
        assert described(after) == described(state)

    def test_no_array_stands_twice_in_a_state(self, objective):
        """Donating such a state would fail."""
        arrays = jax.make_jaxpr(functools.partial(objective.init, env=ENV))(jax.random.key(0)).jaxpr.outvars
        assert len({id(array) for array in arrays}) == len(arrays)

    def test_spec_survives_json(self, objective):
        classes = spec_classes() | {"BeCLReleasedMaze": BeCLReleasedMaze}
        assert from_dict(json.loads(json.dumps(to_dict(objective))), classes) == objective


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


def masked_scores():
    """Scores, masks and rows without any masked state, at sizes that temperatures of 1 and 0.01 make."""
    for scale in (1.0, 100.0):
        mask = np.random.default_rng(1).random((6, 9)) < 0.5
        mask[2] = False
        mask[4] = np.arange(9) == 3
        yield scale * jax.random.normal(jax.random.key(0), (6, 9)), jnp.asarray(mask)


def test_log_sum_exp_by_the_plain_formula():
    for scores, mask in masked_scores():
        weights = jnp.where(mask.any(1), jnp.arange(1.0, 7.0), 0.0)

        def plain(s, mask=mask, weights=weights):
            return jnp.sum(weights * jax.nn.logsumexp(jnp.where(mask, s, -1e30), 1))

        got = becl_file.log_sum_exp(scores, mask)
        expected = jax.nn.logsumexp(jnp.where(mask, scores, -jnp.inf), 1)
        np.testing.assert_allclose(got[mask.any(1)], expected[mask.any(1)], rtol=1e-5, atol=1e-5)
        assert np.all(got[~mask.any(1)] <= becl_file.NO_SCORE)
        slope = jax.grad(lambda s, m=mask, w=weights: jnp.sum(w * becl_file.log_sum_exp(s, m)))(scores)
        np.testing.assert_allclose(slope, jax.grad(plain)(scores), rtol=1e-4, atol=1e-5)
        everywhere = jax.grad(lambda s, m=mask: becl_file.log_sum_exp(s, m).sum())(scores)
        assert np.all(np.isfinite(everywhere))
        np.testing.assert_array_equal(everywhere[2], 0)


def test_largest_by_the_plain_formula():
    for scores, mask in masked_scores():
        expected = [max((float(s) for s, m in zip(*row, strict=True) if m), default=-np.inf)
                    for row in zip(scores, mask, strict=True)]  # fmt: skip
        np.testing.assert_array_equal(becl_file.largest(scores, mask), np.array(expected, np.float32))
        slope = jax.grad(lambda s, m=mask: becl_file.largest(s, m) @ jnp.arange(1.0, 7.0))(scores)
        plain = jax.grad(lambda s, m=mask: jnp.max(jnp.where(m, s, -1e30), 1) @ jnp.arange(1.0, 7.0))(scores)
        np.testing.assert_array_equal(slope, plain)
        np.testing.assert_array_equal(slope[2], 0)


def test_similarities_by_the_plain_formula():
    anchors, features, weights = (
        jax.random.normal(jax.random.key(k), s) for k, s in enumerate([(4, 5), (7, 5), (4, 7)])
    )
    np.testing.assert_allclose(becl_file.similarities(anchors, features), anchors @ features.T, rtol=1e-6)
    slopes = [
        jax.grad(lambda a, f, function=function: jnp.sum(weights * function(a, f)), (0, 1))(anchors, features)
        for function in (becl_file.similarities, lambda a, f: jnp.einsum("ad,bd->ab", a, f))
    ]
    jax.tree.map(lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6), *slopes)
    with computing("bf16"):
        coarse = jax.grad(lambda a: jnp.sum(weights * becl_file.similarities(a, features)))(anchors)
    assert coarse.dtype == jnp.float32
    np.testing.assert_allclose(coarse, slopes[1][0], atol=0.05)


def unit_features(count):
    features = jax.random.normal(jax.random.key(0), (count, 5))
    return features / jnp.linalg.norm(features, axis=1, keepdims=True)


def candidates_of(i, skill, trajectory):
    """Other states of the skill from other trajectories, else from the same."""
    same = [j for j in range(len(skill)) if skill[j] == skill[i] and j != i]
    return [j for j in same if trajectory[j] != trajectory[i]] or same


@pytest.mark.parametrize("positive", ["mean", "random"])
@pytest.mark.parametrize("temperature", [0.5, 0.05])
def test_released_denominator_with_other_positives_by_loops(positive, temperature):
    """e_p / (Σ_{j≠i} e_j + 1e-6) + 1e-6 with scores shifted by their largest; the last skill has a single state."""
    batch = make_batch(episodes=6, steps=4)
    skill, trajectory = np.array(jnp.argmax(batch.skill, 1)), np.asarray(batch.trajectory)
    skill[-1] = 4
    batch = batch._replace(skill=jax.nn.one_hot(skill, 5))
    unit, key = unit_features(24), jax.random.key(3)
    objective = BeCL(OneHot(5), temperature, positive=positive, denominator="all")
    loss, reward = objective.contrast(unit, unit, batch, jnp.arange(24), key)
    scores = np.asarray(unit, np.float64) @ np.asarray(unit, np.float64).T / temperature
    priorities = np.asarray(jax.random.uniform(key, (8, 24)))
    for i in range(24):
        candidates = candidates_of(i, skill, trajectory)
        if positive == "random" and candidates:
            candidates = [max(candidates, key=priority.__getitem__) for priority in priorities]
        others = [scores[i, j] for j in range(24) if j != i]
        total = sum(np.exp(s - max(others)) for s in others) + 1e-6
        ratios = [np.exp(scores[i, j] - max(others)) / total + 1e-6 for j in candidates]
        np.testing.assert_allclose(loss[i], -np.mean(np.log(ratios)) if ratios else 0.0, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(reward[i], np.mean(ratios) if ratios else 0.0, rtol=1e-3, atol=1e-6)
    assert loss[-1] == reward[-1] == 0


def test_released_denominator_with_the_mean_is_finite_at_low_temperature():
    """States at right angles: the anchor's own score is 1/κ above all others."""
    skill = jnp.eye(2)[jnp.array([0, 0, 1, 1])]
    zeros = jnp.zeros((4, 1))
    batch = Batch(zeros, zeros, zeros, skill, jnp.arange(4), jnp.ones(4), jnp.zeros(4))
    objective = BeCL(OneHot(2), 0.01, positive="mean", denominator="all")

    def losses(features):
        return objective.contrast(features, features, batch, jnp.arange(4), jax.random.key(0))

    loss, reward = losses(jnp.eye(4))
    np.testing.assert_allclose(loss, np.log(3), rtol=1e-4)
    np.testing.assert_allclose(reward, 1 / 3, rtol=1e-4)
    assert np.all(np.isfinite(jax.grad(lambda f: losses(f)[0].mean())(jnp.eye(4))))


@pytest.mark.parametrize("hardness", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("positive", ["nearest", "mean"])
def test_batch_denominator_with_hard_negatives_by_loops(hardness, positive):
    """Each other-skill state counts, with weights ∝ exp(β·score) of mean 1."""
    batch = make_batch(episodes=6, steps=4)
    skill, trajectory = np.array(jnp.argmax(batch.skill, 1)), np.asarray(batch.trajectory)
    unit = unit_features(24)
    objective = BeCL(OneHot(4), 0.2, positive=positive, denominator="batch", hard_negatives=hardness)
    loss, reward = objective.contrast(unit, unit, batch, jnp.arange(24), jax.random.key(0))
    scores = np.asarray(unit, np.float64) @ np.asarray(unit, np.float64).T / 0.2
    for i in range(24):
        candidates = [scores[i, j] for j in candidates_of(i, skill, trajectory)]
        candidates = [max(candidates)] if positive == "nearest" else candidates
        negatives = [scores[i, j] for j in range(24) if skill[j] != skill[i]]
        weights = [np.exp(hardness * s) for s in negatives]
        weights = [w * len(weights) / sum(weights) for w in weights]
        mass = sum(w * np.exp(s) for w, s in zip(weights, negatives, strict=True))
        ratios = [np.exp(p) / (np.exp(p) + mass) for p in candidates]
        np.testing.assert_allclose(loss[i], -np.mean(np.log(ratios)), rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(reward[i], np.mean(ratios), rtol=2e-3, atol=1e-6)


def test_hard_negatives_need_negatives():
    with pytest.raises(UserError, match="hard_negatives"):
        BeCL(denominator="all", hard_negatives=0.5)
    assert BeCL(denominator="batch", hard_negatives=0.5).hard_negatives == 0.5


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

"""Every method through the registry, and every formula against a loop written from its paper."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from distinct import RELATIVES, distinct

from becl import testing
from becl.errors import UserError
from becl.experiments.maze_study import make_run, make_study
from becl.experiments.pretraining import make_pretraining, spec_classes
from becl.nn.adam import Adam, AdamState, with_optimizers, without_optimizers
from becl.nn.networks import Moments, Network, Widths, hidden_widths, with_hidden
from becl.nn.precision import computing
from becl.objectives import METHODS, Batch, MazeStudy, Method, contrast, positives
from becl.objectives.amped import AnInfoNCE
from becl.objectives.becl import BeCL, contrastive_loss, intrinsic_reward
from becl.objectives.becl_released import BeCLReleased
from becl.objectives.becl_released_maze import BeCLReleasedMaze
from becl.objectives.cic import CIC, transition_nce
from becl.objectives.dads import DADS
from becl.objectives.diayn import DIAYN, skill_log_likelihood
from becl.objectives.encoder import encode
from becl.objectives.extrinsic import Extrinsic
from becl.objectives.particles import RunningScale, init_scale, nearest_distances, particle_reward, update_scale
from becl.objectives.proto import ProtoRL
from becl.objectives.protocol import chance_reward
from becl.objectives.registry import STUDIED
from becl.objectives.smm import SMM
from becl.objectives.total import named_parts
from becl.options import MazeOptions, PretrainOptions
from becl.skills import OneHot
from becl.specs import from_dict, to_dict
from becl.testing import ENV, make_batch, small

GOLDEN = json.loads((Path(__file__).parent / "golden" / "algo.json").read_text())
SMALL = Network((16, 16), "uniform")


def every_objective():
    """Every method as it pretrains, and as the maze study has it: other networks, and one-hot skills for all."""
    objectives = {name: small(method.objective) for name, method in METHODS.items()}
    for name, method in METHODS.items():
        if method.maze is not None:
            objectives[f"{name}, maze"] = small(make_run(name, "square_a", 4).objective)
    return [pytest.param(objectives[name], id=name) for name in distinct(objectives, objectives.__getitem__)]


def reason_to_skip(objective, check) -> str | None:
    if check is testing.fitting_lowers_the_loss:
        if isinstance(objective, Extrinsic):
            return "nothing is fitted"
        if isinstance(objective, CIC) and not objective.train_encoder:
            return "this variant does not train its encoder"
    if check is testing.order_of_the_batch_does_not_matter:
        kinds = [part for _, part in named_parts(objective)]
        if any(getattr(part, "positive", "") in ("first", "random", "pair") for part in kinds):
            return "this formula looks at the order of the batch"
        if any(isinstance(part, BeCLReleasedMaze | AnInfoNCE) for part in kinds):
            return "this formula looks at the order of the batch"
        if isinstance(objective, SMM | ProtoRL):
            return "this formula draws something for each row"
    if check is testing.huge_observations_leave_everything_finite and isinstance(objective, SMM):
        return "the autoencoder's variance is the exponential of a layer, as released"
    return None


NOT_COMPILED = ("becl", "diayn", "proto")
"""Of these the quick tests run every operation by itself; others they run alone, together and in a scan, compiled."""


def every_check() -> Iterator[Any]:
    for check in testing.checks:
        for objective in every_objective():
            slow = check is testing.jit_and_scan_change_nothing and objective.id not in NOT_COMPILED
            slow |= check is testing.seeds_train_together_as_they_do_alone and objective.id in RELATIVES
            name = f"{objective.id}-{check.__name__}"
            yield pytest.param(*objective.values, check, id=name, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize(("objective", "check"), [*every_check()])
def test_every_objective(objective, check):
    if reason := reason_to_skip(objective, check):
        pytest.skip(reason)
    check(objective)


@pytest.mark.parametrize("objective", every_objective())
def test_a_folder_can_name_every_objective(objective):
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


@pytest.mark.parametrize(
    ("method", "skills", "batch", "level"),
    [
        ("becl-paper", 16, 1024, 1 / 31),
        ("becl-paper", 4, 1024, 1 / 7),
        ("becl", 16, 1024, 1 / 1023 + 1e-6),
        ("becl-released", 16, 256, 1 / 255 + 1e-6),
        ("diayn", 16, 1024, 0.0),
        ("dads", 16, 1024, 0.0),
        ("becl-paper", 16, 1000, None),  # Some groups would lack a skill.
        *((name, None, 1024, None) for name in ("icm", "apt", "cic", "smm", "aps", "rnd", "proto", "ddpg")),
    ],
)
def test_chance_levels_are_the_shares_of_a_positive_that_is_like_any_other(method, skills, batch, level):
    objective: Any = METHODS[method].objective
    if skills is not None:
        objective = dataclasses.replace(objective, skills=OneHot(skills))
    assert chance_reward(objective, batch) == (None if level is None else pytest.approx(level, abs=1e-12))


@pytest.mark.parametrize("change", [{"positive": "nearest"}, {"ramp": 0.35}, {"hard_negatives": 1.0}])
def test_formulas_whose_share_depends_on_more_have_no_chance_level(change):
    assert chance_reward(BeCL(**change), 1024) is None


@pytest.mark.parametrize(
    ("objective", "least"),
    [(BeCL(), 0.9), (BeCL(positive="random"), 0.9), (BeCL(positive="pair"), 0.98), (BeCLReleased(), 0.98)],
)
def test_untrained_features_of_states_that_do_not_know_their_skill_earn_chance(objective, least):
    """Means over many batches: the positive is then one of many equals. Against the mean of many negatives it has a
    little less, because its share is concave in its likeness."""
    objective = dataclasses.replace(small(objective), network=Network((16, 16), "orthogonal"))
    state, price = objective.init(jax.random.key(0), ENV), jax.jit(objective.reward)
    rewards = [price(state, make_batch(number), jax.random.key(number))[1].mean() for number in range(60)]
    level = chance_reward(objective, 120)
    assert level is not None
    assert least < np.mean(rewards) / level < 1.02


# --- Rules that no field's name decides -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tower:
    deep: Network = Network((24, 12), normalize=True)


class ThirteenthState(NamedTuple):
    """Nothing here has a name that another method has."""

    parts: dict[str, Any]
    spread: RunningScale


@dataclass(frozen=True)
class Thirteenth:
    """DIAYN with a classifier in two halves, and rewards divided by their deviation."""

    skills: OneHot = OneHot(4)
    tower: Tower = Tower()
    tail: Widths | None = (20,)
    wings: Widths | None = None
    pace: Adam = Adam(1e-3)

    def init(self, key, env):
        lower_key, upper_key = jax.random.split(key)
        lower = self.tower.deep.init(lower_key, env.obs_dim, 8)
        upper = Network(self.tail or ()).init(upper_key, 8, self.skills.dim)
        movers = [self.pace.init(lower), {"second": self.pace.init(upper)}]
        return ThirteenthState({"lower": lower, "upper": upper, "movers": movers}, init_scale())

    def fit(self, state, batch, key):
        del key
        lower, upper, (one, other) = (state.parts[name] for name in ("lower", "upper", "movers"))

        def loss_fn(both):
            return -skill_log_likelihood(both[1](both[0](batch.next_obs)), batch.skill).mean()

        loss, (down, up) = jax.value_and_grad(loss_fn)((lower, upper))
        lower, one = self.pace.update(lower, down, one)
        upper, second = self.pace.update(upper, up, other["second"])
        parts = {"lower": lower.observe(batch.next_obs), "upper": upper, "movers": [one, {"second": second}]}
        return state._replace(parts=parts), {"loss": loss}

    def reward(self, state, batch, key):
        del key
        known = skill_log_likelihood(state.parts["upper"](state.parts["lower"](batch.next_obs)), batch.skill)
        spread = update_scale(state.spread, known)
        return state._replace(spread=spread), known / jnp.sqrt(spread.variance + 1e-6)


THIRTEENTH = pytest.param(Thirteenth(), id="thirteenth")


def leaves_by_type(tree, kind):
    """The parts of a tree that are of a type; an optimiser has none of another."""
    parts = jax.tree.leaves(tree, is_leaf=lambda part: isinstance(part, kind | AdamState))
    return [part for part in parts if isinstance(part, kind)]


@pytest.mark.parametrize("check", testing.checks, ids=lambda check: check.__name__)
def test_a_thirteenth_method_passes_what_the_others_do(check):
    check(Thirteenth())


@pytest.mark.parametrize("objective", [*every_objective(), THIRTEENTH])
def test_optimisers_are_found_by_their_type(objective):
    state = objective.init(jax.random.key(0), ENV)
    optimisers = leaves_by_type(state, AdamState)
    bare = without_optimizers(state)
    assert not leaves_by_type(bare, AdamState)
    assert len(jax.tree.leaves(bare)) == len(jax.tree.leaves(state)) - len(jax.tree.leaves(optimisers))
    for kind in (Moments, RunningScale):  # Running statistics are part of the state.
        jax.tree.map(np.testing.assert_array_equal, leaves_by_type(bare, kind), leaves_by_type(state, kind))
    shapes = jax.eval_shape(lambda: objective.init(jax.random.key(0), ENV))
    jax.tree.map(np.testing.assert_array_equal, with_optimizers(bare, shapes), state)  # They had not moved yet.


@pytest.mark.parametrize("objective", [*every_objective(), THIRTEENTH])
def test_widths_are_found_by_their_type(objective):
    changed = with_hidden(objective, 7)
    widths, before = dict(hidden_widths(changed)), dict(hidden_widths(objective))
    assert {name: len(own) for name, own in widths.items()} == {name: len(own) for name, own in before.items()}
    assert all(set(own) <= {7} for own in widths.values())
    arrays = [leaf for leaf in jax.tree.leaves(jax.eval_shape(lambda: changed.init(jax.random.key(0), ENV)))]
    hidden = sum(leaf.shape[-1:] == (7,) for leaf in arrays)
    assert hidden >= sum(map(len, widths.values()))  # Weights of each, at least.


def test_the_command_sets_the_widths_of_a_thirteenth_method(monkeypatch):
    monkeypatch.setitem(METHODS, "thirteenth", Method(Thirteenth(), "competence", "a toy", finetune_skill="random"))
    run = make_pretraining(PretrainOptions("square_a", "thirteenth", hidden=9)).run
    assert dict(hidden_widths(run.objective)) == {"tower.deep.hidden": (9, 9), "tail": (9,)}
    with pytest.raises(UserError, match=r"tower\.deep\.hidden 0: must be greater than 0"):
        make_pretraining(PretrainOptions("square_a", "thirteenth", set=("tower.deep.hidden=8,0",)))
    with pytest.raises(UserError, match="tail 0: must be greater than 0"):
        make_pretraining(PretrainOptions("square_a", "thirteenth", set=("tail=0",)))


@pytest.mark.parametrize("change", ["pace.learning_rate=0", "tower.deep.hidden=8,0", "tail=0"])
def test_a_maze_study_checks_the_options_of_a_thirteenth_method_by_their_type(change, monkeypatch):
    own = Method(Thirteenth(), "competence", "a toy", finetune_skill="random", maze=MazeStudy())
    for registry in (METHODS, STUDIED):
        monkeypatch.setitem(registry, "thirteenth", own if registry is METHODS else own.maze)
    make_study(MazeOptions(("thirteenth",)))
    with pytest.raises(UserError, match=f"^{change.partition('=')[0]} 0: must be greater than 0"):
        make_study(MazeOptions(("thirteenth",), set=(change,)))


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


@pytest.mark.parametrize("temperature", [0.5, 0.05])
def test_becl_in_pairs_equals_algorithm_1_by_loops(temperature):
    """Groups of two states of each skill: an anchor has one positive and 2(m−1) negatives, no more."""
    rng = np.random.default_rng(0)
    skill = rng.permuted(np.tile(np.arange(4), 6))  # Six states of each of four skills, in any order.
    skill = np.append(skill, 0)  # And one without a partner.
    rows = len(skill)
    features = rng.normal(size=(rows, 5))
    f = features / np.linalg.norm(features, axis=1, keepdims=True)
    groups: dict[int, list[int]] = {}
    for z in range(4):
        for place, i in enumerate(np.flatnonzero(skill == z)):
            groups.setdefault(place // 2, []).append(int(i))
    losses, rewards = np.zeros(rows), np.zeros(rows)
    for members in groups.values():
        for i in members:
            partner = [j for j in members if skill[j] == skill[i] and j != i]
            others = [j for j in members if skill[j] != skill[i]]
            if partner:
                assert len(others) == 6
                own = np.exp(f[i] @ f[partner[0]] / temperature)
                rewards[i] = own / (own + sum(np.exp(f[i] @ f[j] / temperature) for j in others))
                losses[i] = -np.log(rewards[i])
    zeros = jnp.zeros((rows, 1))
    batch = Batch(zeros, zeros, zeros, jnp.eye(4)[skill], jnp.arange(rows), jnp.ones(rows), jnp.zeros(rows))
    objective = BeCL(OneHot(4), temperature, positive="pair")
    unit = jnp.asarray(f, jnp.float32)
    loss, reward = objective.contrast(unit, unit, batch, jnp.arange(rows), jax.random.key(0))
    np.testing.assert_allclose(loss, losses, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(reward, rewards, rtol=1e-4, atol=1e-6)


def test_becl_released_equals_the_released_numbers():
    golden = GOLDEN["becl"]
    skills = jax.nn.one_hot(jnp.array(golden["skill_index"]), 3)
    count = len(skills)
    zeros = jnp.zeros((count, 1))
    batch = Batch(zeros, zeros, zeros, skills, jnp.arange(count), jnp.ones(count), jnp.zeros(count))
    objective = BeCLReleased(OneHot(3), golden["temperature"])

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

        def loss(networks, objective=objective, state=state):
            features = encode(state._replace(encoder=networks[0], head=networks[1]), batch.next_obs)
            return objective.contrast(features, features, batch, jnp.arange(120), jax.random.key(0))[0].mean()

        grads = jax.grad(loss)((state.encoder, state.head))
        assert all(np.all(np.isfinite(g)) for g in jax.tree.leaves(grads))


@pytest.mark.parametrize("objective", [BeCL(), BeCL(positive="nearest"), BeCLReleased()])
def test_becl_contrasts_both_ends_of_a_transition_as_one_long_state(objective):
    """Section 3.4: sub-trajectories in place of states."""
    batch, key = make_batch(), jax.random.key(0)
    joined = batch._replace(next_obs=jnp.concatenate([batch.obs, batch.next_obs], 1))
    both = dataclasses.replace(small(objective), state="both")
    wide = dataclasses.replace(both, state="next_obs")
    one, other = both.init(key, ENV), wide.init(key, ENV._replace(obs_dim=2 * ENV.obs_dim))
    for _ in range(2):
        one, other = both.fit(one, batch, key)[0], wide.fit(other, joined, key)[0]
        jax.tree.map(np.testing.assert_array_equal, one, other)
    np.testing.assert_array_equal(both.reward(one, batch, key)[1], wide.reward(other, joined, key)[1])


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
    pairs = positives.relate(batch, jnp.arange(80))
    times = jnp.tile(batch.progress, (80, 1))
    chosen = positives.aligned(times, pairs, jax.random.key(0))
    np.testing.assert_allclose(chosen.scores[:, 0], batch.progress)
    np.testing.assert_array_equal(chosen.weights, 1.0)


def test_distant_positive_is_of_the_same_trajectory_and_far_away():
    batch = make_batch(episodes=8, steps=10)
    pairs = positives.relate(batch, jnp.arange(80))
    ids = jnp.tile(jnp.arange(80.0), (80, 1))
    draws = jax.vmap(lambda key: positives.distant(ids, pairs, key).scores)(jax.random.split(jax.random.key(0), 200))
    drawn = np.asarray(draws[:, :, 0]).astype(int)
    trajectory, progress = np.asarray(batch.trajectory), np.asarray(batch.progress)
    for i in range(80):
        own = [j for j in range(80) if trajectory[j] == trajectory[i] and j != i]
        farthest = max(abs(progress[j] - progress[i]) for j in own)
        assert {*drawn[:, i]} == {j for j in own if 2 * abs(progress[j] - progress[i]) >= farthest}
    # A trajectory with one state: another one of the skill instead.
    alone = positives.relate(make_batch(episodes=12, steps=1), jnp.arange(12))
    chosen = positives.distant(jnp.tile(jnp.arange(12.0), (12, 1)), alone, jax.random.key(0))
    assert {int(chosen.scores[0, 0])} <= {4, 8}
    np.testing.assert_array_equal(chosen.weights, 1.0)


def test_random_positives_are_uniform_over_candidates():
    batch = make_batch(episodes=12, steps=1)  # Three trajectories a skill, one state each.
    pairs = positives.relate(batch, jnp.arange(12))
    ids = jnp.tile(jnp.arange(12.0), (12, 1))
    draws = jax.vmap(lambda key: positives.random(ids, pairs, key).scores)(jax.random.split(jax.random.key(0), 500))
    drawn = np.asarray(draws[:, 0]).astype(int).ravel()
    counts = np.bincount(drawn, minlength=12)
    assert set(np.flatnonzero(counts)) == {4, 8}
    assert abs(counts[4] / counts.sum() - 0.5) < 0.04


def test_negatives_far_below_the_anchor_keep_their_gradient():
    """At temperature 0.01 the anchor's own score is 100; a negative at 10 must still be seen."""
    scores, negatives = jnp.array([[100.0, 10.0]]), jnp.array([[False, True]])
    for hardness in (0.0, 0.5):
        value, slope = jax.value_and_grad(lambda s, h=hardness: contrast.negative_mass(s, negatives, h, 100.0)[0])(
            scores
        )
        np.testing.assert_allclose(value, 10.0, rtol=1e-5)
        np.testing.assert_allclose(slope, [[0.0, 1.0]], atol=1e-5)


def test_hard_negatives_raise_the_mass_and_zero_leaves_it():
    scores = jax.random.normal(jax.random.key(0), (5, 20))
    negatives = jnp.ones((5, 20), bool)
    plain = contrast.negative_mass(scores, negatives, 0.0, 5.0)
    np.testing.assert_allclose(plain, jax.nn.logsumexp(scores, 1), rtol=1e-5)
    np.testing.assert_allclose(contrast.negative_mass(scores, negatives, 1e-6, 5.0), plain, rtol=1e-4)
    assert np.all(contrast.negative_mass(scores, negatives, 1.0, 5.0) > plain)


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
        bound = float(jnp.abs(scores).max())
        weights = jnp.where(mask.any(1), jnp.arange(1.0, 7.0), 0.0)

        def plain(s, mask=mask, weights=weights):
            return jnp.sum(weights * jax.nn.logsumexp(jnp.where(mask, s, -1e30), 1))

        got = contrast.log_sum_exp(scores, mask, bound)
        expected = jax.nn.logsumexp(jnp.where(mask, scores, -jnp.inf), 1)
        np.testing.assert_allclose(got[mask.any(1)], expected[mask.any(1)], rtol=1e-5, atol=1e-5)
        assert np.all(got[~mask.any(1)] <= contrast.NO_SCORE)
        slope = jax.grad(lambda s, m=mask, w=weights, b=bound: jnp.sum(w * contrast.log_sum_exp(s, m, b)))(scores)
        np.testing.assert_allclose(slope, jax.grad(plain)(scores), rtol=1e-4, atol=1e-5)
        everywhere = jax.grad(lambda s, m=mask, b=bound: contrast.log_sum_exp(s, m, b).sum())(scores)
        assert np.all(np.isfinite(everywhere))
        np.testing.assert_array_equal(everywhere[2], 0)


def test_largest_by_the_plain_formula():
    for scores, mask in masked_scores():
        expected = [max((float(s) for s, m in zip(*row, strict=True) if m), default=-np.inf)
                    for row in zip(scores, mask, strict=True)]  # fmt: skip
        np.testing.assert_array_equal(contrast.largest(scores, mask), np.array(expected, np.float32))
        slope = jax.grad(lambda s, m=mask: contrast.largest(s, m) @ jnp.arange(1.0, 7.0))(scores)
        plain = jax.grad(lambda s, m=mask: jnp.max(jnp.where(m, s, -1e30), 1) @ jnp.arange(1.0, 7.0))(scores)
        np.testing.assert_array_equal(slope, plain)
        np.testing.assert_array_equal(slope[2], 0)


def test_equal_scores_share_the_slope_of_the_largest():
    """The slope along a step that raises all of them is that of one score, not their sum."""
    scores = jnp.array([[1.0, 3.0, 3.0, 3.0], [2.0, 2.0, 5.0, 5.0]])
    mask = jnp.array([[True, True, False, True], [True, True, False, False]])
    slope = jax.grad(lambda s: contrast.largest(s, mask) @ jnp.array([1.0, 10.0]))(scores)
    np.testing.assert_array_equal(slope, [[0, 0.5, 0, 0.5], [5, 5, 0, 0]])


def test_similarities_by_the_plain_formula():
    anchors, features, weights = (
        jax.random.normal(jax.random.key(k), s) for k, s in enumerate([(4, 5), (7, 5), (4, 7)])
    )
    np.testing.assert_allclose(contrast.similarities(anchors, features), anchors @ features.T, rtol=1e-6)
    slopes = [
        jax.grad(lambda a, f, function=function: jnp.sum(weights * function(a, f)), (0, 1))(anchors, features)
        for function in (contrast.similarities, lambda a, f: jnp.einsum("ad,bd->ab", a, f))
    ]
    jax.tree.map(lambda got, expected: np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6), *slopes)
    with computing("bf16"):
        coarse = jax.grad(lambda a: jnp.sum(weights * contrast.similarities(a, features)))(anchors)
    assert coarse.dtype == jnp.float32
    np.testing.assert_allclose(coarse, slopes[1][0], atol=0.05)


def unit_features(count):
    features = jax.random.normal(jax.random.key(0), (count, 5))
    return features / jnp.linalg.norm(features, axis=1, keepdims=True)


def candidates_of(i, skill, trajectory):
    """Other states of the skill from other trajectories, else from the same."""
    same = [j for j in range(len(skill)) if skill[j] == skill[i] and j != i]
    return [j for j in same if trajectory[j] != trajectory[i]] or same


def crowds():
    """Skills of six states: three trajectories each; or one trajectory, or one state, of some; or one skill only."""
    skill, trajectory = np.repeat(np.arange(4), 6), np.arange(24) // 2
    yield skill, trajectory
    yield skill, np.where(skill == 1, 99, trajectory)
    yield np.where(np.arange(24) == 5, 4, skill), np.where(skill == 1, -7, trajectory)
    yield np.zeros(24, int), trajectory
    yield np.zeros(24, int), np.zeros(24, int)


def batch_of(skill, trajectory):
    count = len(skill)
    zeros = jnp.zeros((count, 1))
    skills = jax.nn.one_hot(skill, 5)
    return Batch(zeros, zeros, zeros, skills, jnp.asarray(trajectory), jnp.ones(count), jnp.zeros(count))


def test_positives_come_from_other_trajectories_where_there_are_any():
    for skill, trajectory in crowds():
        rows = jnp.array([3, 5, 8, 20])
        across = positives.relate(batch_of(skill, trajectory), rows).across
        for row, found in zip(rows, across, strict=True):
            assert np.flatnonzero(found).tolist() == candidates_of(int(row), skill, trajectory)


def contrast_and_gradients(objective, unit, batch):
    weights = jax.random.normal(jax.random.key(1), (len(unit),))

    def loss_fn(anchors, features):
        loss, reward = objective.contrast(anchors, features, batch, jnp.arange(len(unit)), jax.random.key(0))
        return loss @ weights, (loss, reward)

    return jax.value_and_grad(loss_fn, (0, 1), has_aux=True)(unit, unit)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("denominator", ["paper", "batch"])
def test_equations_as_printed_and_by_logarithms_are_the_same(denominator, precision, monkeypatch):
    """Loss, reward and the loss's gradient, of which the printed form has its own, and the logarithms' is JAX's."""
    objective = BeCL(OneHot(5), denominator=denominator)

    for crowd in crowds():
        with computing(precision):
            assert contrast.exponentials_fit(objective.temperature)
            printed = contrast_and_gradients(objective, unit_features(24), batch_of(*crowd))
        with computing("float32"), monkeypatch.context() as patch:
            patch.setattr(contrast, "SAFE", 0.0)
            assert not contrast.exponentials_fit(objective.temperature)
            expected = contrast_and_gradients(objective, unit_features(24), batch_of(*crowd))
        near = 2e-6 if precision == "float32" else 0.02
        jax.tree.map(lambda a, b, near=near: np.testing.assert_allclose(a, b, rtol=near, atol=near), printed, expected)
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(printed))


@pytest.mark.parametrize("temperature", [0.5, 0.05, 0.03])
def test_equations_as_printed_keep_small_slopes(temperature, monkeypatch):
    """Skills far apart, so that little is left to learn: Adam makes much of little, if it is right."""
    skill, trajectory = next(crowds())
    corners = jnp.eye(5)[skill] + 0.05 * unit_features(24)
    unit = corners / jnp.linalg.norm(corners, axis=1, keepdims=True)
    objective = BeCL(OneHot(5), temperature)
    with computing("float32"):
        assert contrast.exponentials_fit(objective.temperature)
        printed = contrast_and_gradients(objective, unit, batch_of(skill, trajectory))
        monkeypatch.setattr(contrast, "SAFE", 0.0)
        expected = contrast_and_gradients(objective, unit, batch_of(skill, trajectory))
    for got, right in zip(jax.tree.leaves(printed), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-4 * np.abs(right).max())


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("temperature", [0.5, 0.05])
def test_the_released_formula_written_out_and_plain_are_the_same(temperature, precision, monkeypatch):
    """Loss, reward and the loss's gradient; the plain one's gradient is JAX's."""
    objective = BeCLReleased(OneHot(5), temperature)
    for crowd in crowds():
        with computing(precision):
            assert contrast.exponentials_fit(objective.temperature)
            written = contrast_and_gradients(objective, unit_features(24), batch_of(*crowd))
        with computing("float32"), monkeypatch.context() as patch:
            patch.setattr(contrast, "SAFE", 0.0)
            plain = contrast_and_gradients(objective, unit_features(24), batch_of(*crowd))
        (_, (loss, reward)), slopes = written
        (_, (plain_loss, plain_reward)), plain_slopes = plain
        near = 1e-5 if precision == "float32" else 0.02 * 0.5 / temperature
        np.testing.assert_allclose(loss, plain_loss, rtol=near, atol=near)
        np.testing.assert_allclose(reward, plain_reward, rtol=5 * near, atol=1e-6)
        size = max(np.abs(slope).max() for slope in plain_slopes)
        for slope, right in zip(slopes, plain_slopes, strict=True):
            np.testing.assert_allclose(slope, right, rtol=near, atol=near * size)


def test_the_released_positive_is_found_without_looking_at_all_pairs():
    for skill, trajectory in crowds():
        batch = batch_of(skill, trajectory)
        rows = jnp.arange(len(skill))
        ids = jnp.tile(jnp.arange(float(len(skill))), (len(skill), 1))
        expected = positives.first(ids, positives.relate(batch, rows), jax.random.key(0)).scores[:, 0]
        np.testing.assert_array_equal(positives.first_choice(batch.skill), expected)
        by_hand = []
        for i, z in enumerate(np.asarray(skill)):
            own = [j for j in range(len(skill)) if skill[j] == z and j != i]
            by_hand.append(own[0] if own else int(i == 0))
        np.testing.assert_array_equal(expected, by_hand)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("temperature", [0.5, 0.05, 0.01])
@pytest.mark.parametrize("positive", ["mean", "nearest", "aligned", "distant", "random", "pair"])
def test_what_runs_is_the_two_equations(positive, temperature, precision):
    """Loss, reward and the loss's gradient as JAX derives it from the scores of all pairs: no kernel is used."""
    objective = BeCL(OneHot(5), temperature, positive=positive)
    skill, trajectory = next(crowds())
    batch, unit, weights = batch_of(skill, trajectory), unit_features(24), jax.random.normal(jax.random.key(1), (24,))

    def as_printed(anchors, features):
        pairs = positives.relate(batch, jnp.arange(24))
        negative = pairs.negative & pairs.grouped if positive == "pair" else pairs.negative
        scores = jnp.einsum("af,bf->ab", anchors, features) / temperature
        others = jnp.where(negative, scores + jnp.log(objective.weight(pairs))[:, None], -jnp.inf)
        chosen = positives.POSITIVES[positive](scores, pairs, jax.random.key(0))
        mass = jax.nn.logsumexp(others, 1)[:, None]
        each = (contrastive_loss(chosen.scores, mass), intrinsic_reward(chosen.scores, mass))
        loss, reward = (jnp.sum(chosen.weights * one, 1) for one in each)
        return loss @ weights, (loss, reward)

    with computing(precision):
        (_, got), slopes = contrast_and_gradients(objective, unit, batch)
    with computing("float32"):
        (_, expected), right = jax.value_and_grad(as_printed, (0, 1), has_aux=True)(unit, unit)
    near = 1e-4 if precision == "float32" else 0.02 * max(1.0, 0.1 / temperature)
    for one, other in zip((*got, *slopes), (*expected, *right), strict=True):
        np.testing.assert_allclose(one, other, rtol=near, atol=near * np.abs(other).max())


def test_the_two_equations_in_exponentials():
    """Eq. 8 and 10 as they are printed, of one anchor with 30 negatives."""
    rng = np.random.default_rng(0)
    own, others = rng.normal(size=7), rng.normal(size=(7, 30))
    share = np.exp(own) / (np.exp(own) + np.exp(others).sum(1))
    mass = jnp.asarray(np.log(np.exp(others).sum(1)), jnp.float32)
    np.testing.assert_allclose(intrinsic_reward(jnp.asarray(own, jnp.float32), mass), share, rtol=1e-5)
    np.testing.assert_allclose(contrastive_loss(jnp.asarray(own, jnp.float32), mass), -np.log(share), rtol=1e-5)


@pytest.mark.parametrize("positive", ["mean", "random"])
@pytest.mark.parametrize("temperature", [0.5, 0.05])
def test_released_denominator_with_other_positives_by_loops(positive, temperature):
    """e_p / (Σ_{j≠i} e_j + 1e-6) + 1e-6 with scores shifted by their largest; the last skill has a single state."""
    batch = make_batch(episodes=6, steps=4)
    skill, trajectory = np.array(jnp.argmax(batch.skill, 1)), np.asarray(batch.trajectory)
    skill[-1] = 4
    batch = batch._replace(skill=jax.nn.one_hot(skill, 5))
    unit, key = unit_features(24), jax.random.key(3)
    objective = BeCLReleased(OneHot(5), temperature, positive=positive)
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
    objective = BeCLReleased(OneHot(2), 0.01, positive="mean")

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

"""AMPED: its contrast by loops, gradients that disagree made by hand, the critic with two targets, and the selector."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl import testing
from becl.commands.cli import main
from becl.errors import UserError
from becl.experiments.finetuning import load_finetuning, make_finetuning
from becl.experiments.pretraining import make_pretraining
from becl.learning.ddpg import DDPG, values
from becl.learning.reconcile import inner, reconciled
from becl.learning.replay import Transitions
from becl.learning.selector import Selector, clipped, selection_loss
from becl.objectives import METHODS, find_method, name_of
from becl.objectives.amped import AnInfoNCE, positive_share, squared_distances
from becl.objectives.protocol import chance_reward, priced
from becl.objectives.rnd import RND
from becl.objectives.total import Sum
from becl.options import FinetuneOptions, PretrainOptions
from becl.runs.folder import open_folder
from becl.skills import OneHot
from becl.testing import ENV, small

# --- The contrast -----------------------------------------------------------------------------------------------------


def naive_shares(features: np.ndarray, distance: np.ndarray, skill: np.ndarray, temperature: float) -> np.ndarray:
    """q of every state, by loops in float64."""
    f, whole = features.astype(np.float64), np.diag(distance) if distance.ndim == 1 else distance
    count = len(f)
    gap = [[(f[i] - f[j]) @ whole @ (f[i] - f[j]) / temperature for j in range(count)] for i in range(count)]
    shares = []
    for i in range(count):
        positive = [j for j in range(count) if j != i and skill[j] == skill[i]] or [j for j in range(count) if j != i]
        total = sum(np.exp(-gap[i][j]) for j in range(count) if j != i)
        shares.append(np.exp(-gap[i][positive[0]]) / (total + 1e-6) + 1e-6)
    return np.array(shares)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_the_contrast_equals_the_formula_by_loops(kind, scale):
    rng = np.random.default_rng(0)
    objective = dataclasses.replace(small(AnInfoNCE()), distance=kind, temperature=0.7)
    batch = testing.make_batch(episodes=9, steps=3)
    batch = batch._replace(next_obs=scale * batch.next_obs)
    state = objective.init(jax.random.key(0), ENV)
    shape = (5, 5) if kind == "full" else (5,)
    start = np.eye(5) if kind == "full" else np.ones(5)
    np.testing.assert_array_equal(state.networks.distance, start)
    distance = jnp.asarray(start + 0.1 * rng.normal(size=shape), jnp.float32)
    networks = state.networks._replace(distance=distance)
    features = np.asarray(networks.head(networks.encoder(batch.next_obs)))
    expected = naive_shares(features, np.asarray(distance, np.float64), np.argmax(batch.skill, 1), 0.7)
    state = state._replace(networks=networks)
    np.testing.assert_allclose(objective.reward(state, batch, jax.random.key(0))[1], expected, rtol=1e-3)
    _, metrics = objective.fit(state, batch, jax.random.key(0))
    np.testing.assert_allclose(metrics["loss"], -np.log(expected).mean(), rtol=1e-4)


def test_distances_of_neighbours_far_out_keep_their_digits():
    features = jnp.asarray(np.random.default_rng(0).normal(size=(20, 5)) + 30, jnp.float32)
    expected = np.square(np.asarray(features, np.float64)[:, None] - np.asarray(features, np.float64)).sum(-1)
    np.testing.assert_allclose(squared_distances(features, jnp.ones(5)), expected, atol=5e-3)


def test_a_negative_distance_is_no_overflow():
    share, slope = jax.value_and_grad(lambda gaps: positive_share(gaps, jnp.array([1, 0, 0])).sum())(
        jnp.array([[0.0, -1e6, 1.0], [-1e6, 0.0, 2.0], [1.0, 2.0, 0.0]])
    )
    assert np.isfinite(share)
    assert np.isfinite(slope).all()


def test_the_learned_distance_is_learned():
    objective = small(AnInfoNCE())
    batch, state = testing.make_batch(apart=2.0), objective.init(jax.random.key(0), ENV)
    after, _ = testing.run(objective, state, batch, jax.random.key(0))
    moved = np.asarray(after.networks.distance - state.networks.distance)
    assert (np.abs(moved - np.diag(np.diag(moved))) > 1e-4).any()  # Also beside the diagonal.


# --- The sum ----------------------------------------------------------------------------------------------------------


def test_the_weights_are_the_published_ones():
    whole: Any = METHODS["amped"].objective
    summed: Any = METHODS["amped-sum"].objective
    assert whole.weights == (1.0, 0.01, 10.0)
    assert whole.targets == (0, 1, 1)
    assert summed.weights == tuple(weight / 2 for weight in whole.weights)
    assert summed.targets == ()
    assert [type(part).__name__ for part in whole.parts] == ["AnInfoNCE", "CIC", "RND"]
    assert {part.skills.dim for part in whole.parts} == {16, 0}
    assert chance_reward(whole, 1024) is None
    assert (name_of(whole), name_of(summed)) == ("amped", "amped-sum")
    assert name_of(dataclasses.replace(whole, weights=(1, 1, 1))) == "amped-contrast+cic+rnd"


def test_rewards_of_each_target_are_added_up():
    objective = small(dataclasses.replace(find_method("amped").objective, weights=(2.0, 3.0, 0.5)))  # type: ignore[type-var]
    batch, key = testing.batch_for(objective), jax.random.key(1)
    state = objective.init(key, ENV)
    after, both = priced(objective, state, batch, key)
    summed, reward = objective.reward(state, batch, key)
    assert both.shape == (120, 2)
    np.testing.assert_allclose(both.sum(1), reward, rtol=1e-5)
    own, alone = objective.keys(key), objective.parts
    np.testing.assert_allclose(both[:, 0], 2 * alone[0].reward(state.parts[0], batch, own[0])[1], rtol=1e-5)
    jax.tree.map(np.testing.assert_array_equal, after, summed)


def test_any_sum_may_have_two_targets():
    run = make_pretraining(PretrainOptions("square_a", "becl+rnd", set=("targets=0,1",), hidden=8)).run
    assert run.objective.targets == (0, 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sum(AnInfoNCE(), RND(), targets=(0, 2)), "targets 0,2: 0 or 1 for each part"),
        (lambda: Sum(AnInfoNCE(), RND(), targets=(0, 0)), "each of them at least once"),
        (lambda: Sum(AnInfoNCE(), RND(), targets=(0,)), "targets=0: aninfonce+rnd has 2 parts"),
        (lambda: make_pretraining(PretrainOptions("square_a", "aps+rnd", set=("targets=0,1",))), "critics of values"),
        (lambda: make_pretraining(PretrainOptions("square_a", "becl+rnd", set=("targets=1",))), "2 numbers are needed"),
    ],
)
def test_targets_that_go_nowhere_are_refused(make, message):
    with pytest.raises(UserError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


# --- Gradients --------------------------------------------------------------------------------------------------------


def together(first, second, share: float) -> tuple[np.ndarray, float]:
    """As two leaves each, in the order of the numbers."""
    one, two = ({"one": jnp.asarray(g[:1]), "two": jnp.asarray(g[1:])} for g in (first, second))
    total, conflict = reconciled(one, two, jax.random.key(0), share)
    return np.concatenate([total["one"], total["two"]]), float(conflict)


@pytest.mark.parametrize(
    ("first", "second", "share", "total", "conflict"),
    [
        ([1.0, 0.0], [0.0, 1.0], 1.0, [1.0, 1.0], 0),  # At right angles: no conflict.
        ([1.0, 1.0], [1.0, 0.0], 1.0, [2.0, 1.0], 0),
        ([1.0, 0.0], [-1.0, 1.0], 1.0, [-0.5, 1.5], 1),  # The first loses its part along the second: (½, ½).
        ([1.0, 0.0], [-1.0, 1.0], 0.0, [1.0, 1.0], 1),  # The second loses its part along the first: (0, 1).
        ([2.0, 0.0], [-1.0, 0.0], 1.0, [-1.0, 0.0], 1),  # Opposite: nothing is left of the one that gives way.
        ([0.0, 0.0], [-1.0, 3.0], 1.0, [-1.0, 3.0], 0),
    ],
)
def test_gradients_made_by_hand(first, second, share, total, conflict):
    found = together(first, second, share)
    np.testing.assert_allclose(found[0], total, atol=1e-6)
    assert found[1] == conflict


def test_what_gave_way_is_at_right_angles_to_the_other():
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(2, 40))
    second -= 2 * first
    total, conflict = together(first, second, 1.0)
    assert conflict == 1
    assert abs((total - second) @ second) < 1e-4 * (second @ second)


def test_who_gives_way_is_drawn():
    keys = jax.random.split(jax.random.key(1), 2000)
    one, other = jnp.array([1.0, 0.0]), jnp.array([-1.0, 1.0])
    totals = jax.vmap(lambda key: reconciled(one, other, key, 0.8)[0])(keys)
    assert abs(np.mean(np.asarray(totals[:, 0]) < 0) - 0.8) < 0.03


def transitions(targets: int | None, rows: int = 12) -> Transitions:
    rng = np.random.default_rng(2)
    shape = (rows,) if targets is None else (rows, targets)
    numbers = [rng.normal(size=(rows, 3)), rng.uniform(-1, 1, (rows, 2)), rng.normal(size=shape), np.full(rows, 0.9)]
    obs, action, reward, discount = (jnp.asarray(one, jnp.float32) for one in numbers)
    next_obs, skill = jnp.asarray(rng.normal(size=(rows, 3)), jnp.float32), jnp.eye(4)[np.arange(rows) % 4]
    return Transitions(obs, action, reward, discount, next_obs, skill, jnp.arange(rows), jnp.ones(rows, jnp.int32))


def test_the_critic_learns_from_both_targets():
    """Against the gradients of two losses, each taken alone, put together by NumPy."""
    learner, batch = DDPG(hidden=16, gives_way=1.0), transitions(2)
    critic = learner.init(jax.random.key(0), ENV, OneHot(4)).critic
    here = jnp.concatenate([batch.obs, batch.skill], -1)
    goal = batch.reward * jnp.array([3.0, -3.0])
    found, metrics = learner.critic_gradient(critic, here, batch, goal, jax.random.key(0))

    def loss(critic, column):
        return jnp.square(values(critic, here, batch.action, batch.skill) - goal[:, column]).mean(1).sum()

    first, second = (jax.tree.map(np.asarray, jax.grad(loss)(critic, column)) for column in (0, 1))
    flat = [np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(g)]).astype(np.float64) for g in (first, second)]
    product = flat[0] @ flat[1]
    assert metrics["conflict"] == (product < 0)
    expected = flat[0] + flat[1] - min(product, 0) / (flat[1] @ flat[1]) * flat[1]
    leaves = np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(found)])
    np.testing.assert_allclose(leaves, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(metrics["critic_loss"], loss(critic, 0) + loss(critic, 1), rtol=1e-5)


def test_without_a_conflict_it_is_the_step_of_the_mean_reward():
    learner, both = DDPG(hidden=16), transitions(2)
    both = both._replace(reward=jnp.stack([both.reward[:, 0]] * 2, 1))
    state = learner.init(jax.random.key(0), ENV, OneHot(4))
    alone, _ = learner.update(state, both._replace(reward=both.reward.mean(1)), jax.random.key(1))
    after, metrics = jax.jit(learner.update)(state, both, jax.random.key(1))
    assert metrics["conflict"] == 0
    for one, other in zip(jax.tree.leaves(alone.critic), jax.tree.leaves(after.critic), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)
    assert inner(alone.critic_opt.mean, after.critic_opt.mean) > 0


# --- The selector -----------------------------------------------------------------------------------------------------


def test_the_selectors_losses_by_loops():
    rng = np.random.default_rng(0)
    logits, worth = rng.normal(size=(2, 7, 4))
    policy = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    expected = []
    for p, q in zip(policy, worth, strict=True):
        entropy = -sum(p[z] * np.log(p[z]) for z in range(4))
        expected.append(-sum(p[z] * np.log(p[z]) * q[z] for z in range(4)) - 0.01 * entropy)
    found = selection_loss(jnp.asarray(logits, jnp.float32), jnp.asarray(worth, jnp.float32), 0.01)
    np.testing.assert_allclose(found, expected, rtol=1e-4)
    # Its gradient is that of the mean value and the entropy, in the policy.
    slope = jax.grad(lambda x: selection_loss(x, jnp.asarray(worth, jnp.float32), 0.0).sum())(jnp.asarray(logits))
    np.testing.assert_allclose(slope, -policy * (worth - (policy * worth).sum(1, keepdims=True)), atol=1e-5)


def test_the_selectors_target_by_loops():
    selector = Selector(width=8, clip=1e9)
    batch = transitions(None)
    state = selector.init(jax.random.key(0), ENV, OneHot(4))
    target = jax.tree.map(lambda leaf: leaf + 0.1, state.values)
    state = state._replace(target=target)
    after = selector.update(state, batch)
    next_values, own = (np.asarray(net(obs)) for net, obs in ((target, batch.next_obs), (state.values, batch.obs)))
    gaps = [
        own[i, np.argmax(batch.skill[i])]
        - (float(batch.reward[i]) + 0.99 * float(batch.discount[i]) * next_values[i].max())
        for i in range(12)
    ]
    grads = jax.grad(lambda net: (jnp.sum(net(batch.obs) * batch.skill, 1) * jnp.asarray(gaps)).mean() * 2)(
        state.values
    )
    for mean, grad in zip(jax.tree.leaves(after.values_opt.mean), jax.tree.leaves(grads), strict=True):
        np.testing.assert_allclose(mean, 0.1 * grad, rtol=1e-3, atol=1e-5)
    for kept, old, new in zip(*(jax.tree.leaves(net) for net in (after.target, target, after.values)), strict=True):
        np.testing.assert_allclose(kept, 0.995 * old + 0.005 * new, rtol=1e-5, atol=1e-6)


def test_gradients_are_shortened_and_not_lengthened():
    grads = {"one": jnp.array([3.0]), "two": jnp.array([4.0])}
    np.testing.assert_allclose(jax.tree.leaves(clipped(grads, 1.0)), [[0.6], [0.8]], rtol=1e-6)
    np.testing.assert_allclose(jax.tree.leaves(clipped(grads, 10.0)), [[3.0], [4.0]])


def test_it_explores_at_first_and_hardly_later():
    selector = Selector(width=8)
    state = selector.init(jax.random.key(0), ENV, OneHot(4))
    last = state.policy.rest.layers[-1]
    sure = dataclasses.replace(last, bias=jnp.array([0.0, 0.0, 100.0, 0.0]))
    layers = (*state.policy.rest.layers[:-1], sure)
    policy = dataclasses.replace(state.policy, rest=dataclasses.replace(state.policy.rest, layers=layers))
    state, obs = state._replace(policy=policy), jnp.zeros((500, 3))

    def chosen(step: int) -> np.ndarray:
        number = jnp.array(step // 500)
        return np.asarray(selector.draw_by_state(state, jax.random.key(1), obs, number)).mean(0)

    np.testing.assert_allclose(chosen(0), 0.25, atol=0.06)
    early, late = chosen(20_000)[2], chosen(200_000)[2]
    assert early == pytest.approx(1 - 0.75 * (0.01 + 0.99 / np.e), abs=0.05)
    assert late > 0.97
    np.testing.assert_array_equal(selector.best_by_state(state, obs)[0], [0, 0, 1, 0])


def test_it_learns_which_skill_pays_where():
    """In half of all states the first skill earns 1, in the other half the second."""
    selector = Selector(width=16, gamma=0.0)
    rng = np.random.default_rng(0)
    side, skill = rng.choice([-1.0, 1.0], 256), rng.integers(2, size=256)
    obs = jnp.asarray(np.stack([side, *rng.normal(size=(2, 256))], 1), jnp.float32)
    reward = jnp.asarray((side > 0) == (skill == 0), jnp.float32)
    nothing = jnp.zeros(256, jnp.int32)
    batch = Transitions(obs, jnp.zeros((256, 2)), reward, jnp.zeros(256), obs, jnp.eye(2)[skill], nothing, nothing)
    state = selector.init(jax.random.key(0), ENV, OneHot(2))
    state, _ = jax.lax.scan(lambda state, _: (selector.update(state, batch), None), state, None, 600)
    best = np.argmax(selector.best_by_state(state, obs), 1)
    assert np.mean(best == (side < 0)) > 0.97


# --- A run ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_amped_pretrains_and_its_selector_learns_a_task(tmp_path, capsys):
    out, tuned = tmp_path / "run", tmp_path / "tuned"
    sizes = ["--hidden", "8", "--envs", "2", "--set", "batch=16", "random_steps=48", "replay.capacity=1000"]
    command = ["pretrain", "walker", "--method", "amped", "--skills", "4", "--steps", "64", "--log-every", "32"]
    assert main([*command, *sizes, "rnd.feature_dim=8", "--out", str(out)]) == 0
    header, *rows = (line.split(",") for line in (out / "metrics.csv").read_text().splitlines())
    assert 0 <= float(rows[-1][header.index("conflict")]) <= 1
    short = ["--task", "walker_run", "--steps", "64", "--eval-every", "64", "--eval-episodes", "1"]
    settings = ["choice.after=48", "choice.batch=16", "random_steps=48", "batch=16"]
    assert main(["finetune", str(out), *short, "--final-episodes", "1", "--set", *settings, "--out", str(tuned)]) == 0
    made = load_finetuning(tuned)
    assert (made.skill, made.run.choice) == ("selector", Selector(after=48, batch=16))
    assert (tuned / "scores.csv").read_text().splitlines()[1].split(",")[2] == ""  # No skill of its own.
    capsys.readouterr()
    assert main(["export", str(tuned), "--out", str(tmp_path / "skill.npz")]) == 2
    assert "chosen at every step" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "settings", "message"),
    [
        ("amped", ("choice.decay=0",), "choice.decay 0: must be greater than 0"),
        ("amped", ("choice.width=0",), "choice.width 0: must be greater than 0"),
        ("cic", (), "--skill selector: cic has continuous skills"),
    ],
)
def test_a_selector_that_cannot_be_is_refused(method, settings, message, tmp_path):
    open_folder(make_pretraining(PretrainOptions("walker", method)).config(), tmp_path / "run")
    path = tmp_path / "run" / "seed-0" / "snapshot-7.safetensors"
    path.parent.mkdir()
    path.touch()
    with pytest.raises(UserError, match=message):
        make_finetuning(FinetuneOptions(tmp_path / "run", ("walker_run",), skill="selector", set=settings))

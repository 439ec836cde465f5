"""Rules that choose skills, asked in the order of the loop: what they try, what they count, and what they settle on."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.envs.simulations import Step
from becl.envs.spec import EnvSpec
from becl.learning.choice import BestFirst, Held, Prior, Regress, SkillChoice, candidates
from becl.learning.ddpg import DDPG
from becl.learning.offpolicy import OffPolicy
from becl.learning.replay import Experience, Replay, ReplayState
from becl.learning.training import train
from becl.nn.networks import Network
from becl.objectives.extrinsic import Extrinsic
from becl.skills import Cube, OneHot, Sphere

SPEC = EnvSpec(obs_dim=3, action_dim=1, episode_length=10)
SPACES = [OneHot(5), Cube(4), Sphere(4)]
RULES = [Prior(), Held(), BestFirst(steps=40), Regress(network=Network((8,)))]


def seen(skill, reward) -> Experience:
    """A step of all environments of which only skills and rewards matter."""
    envs = len(skill)
    nothing = jnp.zeros(envs)
    obs = jnp.zeros((envs, SPEC.obs_dim))
    return Experience(obs, nothing[:, None], reward, nothing, obs, skill, nothing.astype(int), nothing > 0)


def play(rule: SkillChoice, space, envs: int, numbers: int, reward, seed: int = 0) -> tuple[np.ndarray, Any]:
    """Skills of every step, and the state in the end. As in the loop, skills are drawn before the last step is seen."""
    key = jax.random.key(seed)

    def one(carry, number):
        state, skill, before = carry
        drawn = rule.draw(state, jax.random.fold_in(key, number), space, envs, number)
        after = rule.watch(state, seen(skill, before))
        state = jax.tree.map(lambda new, old: jnp.where(number > 0, new, old), after, state)
        return (state, drawn, reward(number, drawn)), drawn

    start = rule.init(key, SPEC, space), jnp.zeros((envs, space.dim)), jnp.zeros(envs)
    (state, *_), skills = jax.jit(lambda start: jax.lax.scan(one, start, jnp.arange(numbers)))(start)
    return np.asarray(skills), state


# --- All of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_draws_skills_of_the_space(rule, space):
    assert isinstance(rule, SkillChoice)
    skills, state = play(rule, space, 3, 20, lambda number, skill: skill[:, 0])
    chosen = np.asarray(rule.best(state, jax.random.key(1), space))
    assert skills.shape == (20, 3, space.dim)
    for drawn in (*skills.reshape(-1, space.dim), chosen):
        if isinstance(space, OneHot):
            assert sorted(drawn) == [0, 0, 0, 0, 1]
        elif isinstance(space, Sphere):
            assert np.linalg.norm(drawn) == pytest.approx(1, abs=1e-5)
        else:
            assert ((drawn >= 0) & (drawn <= 1)).all()


def test_the_prior_draws_anew_and_a_held_skill_stays():
    drawn, _ = play(Prior(), Cube(4), 3, 20, lambda number, skill: skill[:, 0])
    assert len(np.unique(drawn.reshape(-1, 4), axis=0)) == 60
    held, state = play(Held(), Cube(4), 3, 20, lambda number, skill: skill[:, 0])
    assert len(np.unique(held.reshape(-1, 4), axis=0)) == 1
    np.testing.assert_array_equal(held[0, 0], Held().best(state, jax.random.key(9), Cube(4)))
    other, _ = play(Held(), Cube(4), 3, 1, lambda number, skill: skill[:, 0], seed=1)
    assert not np.allclose(held[0, 0], other[0, 0])


# --- The sweep --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("envs", [1, 4, 16, 32])
def test_a_sweep_gives_every_skill_the_same_number_of_steps(envs):
    skills, state = play(BestFirst(), OneHot(16), envs, 4000 // envs + 10, lambda number, skill: skill[:, 5])
    tried = skills[: 4000 // envs].reshape(-1, 16)
    np.testing.assert_array_equal(tried.sum(0), 250)
    np.testing.assert_array_equal(state.steps, 250)
    np.testing.assert_array_equal(state.total, 250 * np.eye(16)[5])
    # In as few pieces as there are turns: a skill is not taken away after a step.
    changes = (np.diff(skills[: 4000 // envs], axis=0) != 0).any(-1).sum()
    assert changes == 16 - min(envs, 16)


@pytest.mark.parametrize(("space", "envs"), [(Cube(8), 1), (Cube(8), 4), (Cube(8), 32), (Sphere(8), 4)])
def test_a_sweep_of_continuous_skills_leaves_none_out(space, envs):
    tried = np.asarray(candidates(jax.random.key(0), space))
    goal = tried[3]
    _, state = play(BestFirst(), space, envs, 4200 // envs, lambda number, skill: -((skill - goal) ** 2).sum(-1))
    assert state.steps.sum() == 4000
    # Where they do not share the environments equally, some have more.
    assert state.steps.min() >= 4000 / len(tried) / 2
    np.testing.assert_allclose(state.candidates, tried)
    np.testing.assert_allclose(BestFirst().best(state, jax.random.key(0), space), goal)
    expected = [-(((skill - goal) ** 2).sum()) for skill in tried]
    np.testing.assert_allclose(state.total / state.steps, expected, rtol=1e-3, atol=1e-5)


def test_candidates_are_all_skills_a_diagonal_or_draws():
    key = jax.random.key(0)
    np.testing.assert_array_equal(candidates(key, OneHot(6)), np.eye(6))
    diagonal = np.asarray(candidates(key, Cube(3)))
    np.testing.assert_allclose(diagonal, np.arange(11)[:, None] / 10 * np.ones(3), atol=1e-6)
    drawn = np.asarray(candidates(key, Sphere(3)))
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1, atol=1e-5)
    assert len(np.unique(drawn, axis=0)) == 16


@pytest.mark.parametrize(("best", "envs"), [(0, 1), (3, 5), (4, 10)])
def test_the_best_of_a_sweep_is_kept(best, envs):
    """Rewards are noisy, negative, and least negative for one; the others earn much once it is over."""
    noise = jax.random.normal(jax.random.key(7), (400, envs))

    def reward(number, skill):
        during = -3.0 + skill[:, best] + 0.1 * noise[number]
        return jnp.where(number * envs < 100, during, 50.0)

    skills, state = play(BestFirst(steps=100), OneHot(5), envs, 200 // envs, reward)
    assert (skills[100 // envs + 1 :].argmax(-1) == best).all()
    assert np.asarray(BestFirst().best(state, jax.random.key(0), OneHot(5))).argmax() == best


def test_the_last_step_of_a_sweep_counts_before_the_choice_is_made():
    """Skill 0 earns 1 each time; skill 1 nothing but 8 in the last step, which is more."""

    def reward(number, skill):
        return skill[:, 0] + jnp.where(number == 3, 8.0, 0.0) * skill[:, 1]

    skills, state = play(BestFirst(steps=16), OneHot(4), 4, 12, reward)
    np.testing.assert_allclose(state.total / state.steps, [1, 2, 0, 0])
    after = skills.argmax(-1)[4:]
    assert (after[1:] == 1).all()
    np.testing.assert_array_equal(after[0], [0, 1, 2, 3])  # The choice is not known yet.


def test_before_any_step_a_sweep_has_an_answer():
    state = BestFirst().init(jax.random.key(0), SPEC, OneHot(4))
    np.testing.assert_array_equal(BestFirst().best(state, jax.random.key(0), OneHot(4)), [1, 0, 0, 0])


# --- Regression -------------------------------------------------------------------------------------------------------


def filled(envs: int, replay: Replay, seed: int = 0) -> ReplayState:
    """A replay full of random steps."""
    rng = np.random.default_rng(seed)
    kept = replay.init(SPEC, Sphere(4), envs)
    obs, reward = (jnp.asarray(rng.uniform(size=x.shape), jnp.float32) for x in (kept.steps.obs, kept.steps.reward))
    return kept._replace(steps=kept.steps._replace(obs=obs, reward=reward), written=jnp.int32(len(reward)))


def naive_features(network, obs) -> np.ndarray:
    """Of two layers, on the unit sphere."""
    first, last = ((np.asarray(layer.weight, float), np.asarray(layer.bias)) for layer in network.layers)
    features = np.maximum(np.asarray(obs, float) @ first[0] + first[1], 0) @ last[0] + last[1]
    return features / np.linalg.norm(features, axis=1, keepdims=True)


@pytest.mark.parametrize("envs", [1, 2, 3, 4, 7, 32])
def test_a_skill_is_regressed_every_five_steps_of_the_run(envs):
    """Or as soon after as there are updates, however many environments there are."""
    rule = Regress(after=20, every=5, batch=8, network=Network((8,)))
    replay = Replay(capacity=40 * envs, nstep=1)
    kept, key = filled(envs, replay), jax.random.key(3)
    fresh = rule.init(jax.random.key(0), SPEC, Sphere(4))
    learn = jax.jit(lambda number: rule.learn(fresh, key, replay, kept, number).ready)
    stride = max(1, 2 // envs)
    found = [number * envs for number in range(0, 100, stride) if learn(jnp.int32(number))]
    asked = [number * envs for number in range(0, 100, stride)]
    expected = [now for before, now in itertools.pairwise(asked) if now > 20 and now // 5 > before // 5]
    assert found == expected


@pytest.mark.parametrize("by", ["released", "least squares"])
def test_a_skill_is_regressed_from_a_sample(by):
    rule = Regress(after=10, every=5, batch=64, by=by, network=Network((8,)))
    replay = Replay(capacity=40, nstep=1)
    kept, key = filled(2, replay), jax.random.key(3)
    fresh = rule.init(jax.random.key(0), SPEC, Sphere(4))
    learn = jax.jit(lambda state, number: rule.learn(state, key, replay, kept, number))
    # Two environments: after 10 steps is after number 5, and a multiple of five is reached or passed at 16 and 20.
    for number in (0, 3, 4, 5, 6, 7, 9, 12):
        state = learn(fresh, jnp.int32(number))
        np.testing.assert_array_equal(state.skill, fresh.skill)
        assert not state.ready
    for number in (8, 10, 15, 100):
        state = learn(fresh, jnp.int32(number))
        assert state.ready
        batch = replay.sample(kept, key, 64)
        features = naive_features(fresh.features, batch.obs)
        reward = np.asarray(batch.reward, float)
        if by == "released":
            expected = sum(r * f for r, f in zip(reward, features, strict=True))
        else:
            expected = np.linalg.solve(features.T @ features, features.T @ reward)
        np.testing.assert_allclose(state.skill, expected / np.linalg.norm(expected), atol=1e-4)


def test_before_the_regression_skills_are_drawn_and_then_one_is_for_all():
    rule = Regress(network=Network((8,)))
    state, key = rule.init(jax.random.key(0), SPEC, Sphere(4)), jax.random.key(1)
    drawn = rule.draw(state, key, Sphere(4), 6, jnp.int32(0))
    np.testing.assert_array_equal(drawn, Sphere(4).sample(key, 6))
    ready = state._replace(ready=jnp.array(True))
    after = rule.draw(ready, key, Sphere(4), 6, jnp.int32(0))
    np.testing.assert_array_equal(after, np.broadcast_to(np.asarray(state.skill), (6, 4)))


class Walk:
    """Observations are random; the reward is the first number of what is seen before the step, but never negative."""

    def __init__(self, num_envs: int):
        self.num_envs, self.spec = num_envs, SPEC
        self._rng = np.random.default_rng(0)

    def reset(self) -> np.ndarray:
        self.time, self._obs = 0, self._draw()
        return self._obs

    def _draw(self) -> np.ndarray:
        return self._rng.normal(size=(self.num_envs, SPEC.obs_dim)).astype(np.float32)

    def close(self) -> None: ...

    def get_state(self) -> None:
        """Nobody goes on from here."""

    def set_state(self, state: None) -> None: ...

    def step(self, action: np.ndarray) -> Step:
        self.time += 1
        reward = np.maximum(self._obs[:, 0], 0).astype(float)
        self._obs = self._draw()
        return Step(self._obs, reward, np.full(self.num_envs, self.time % 10 == 0), self._obs)


def test_in_the_loop_the_skill_is_that_of_all_rewards_so_far():
    rule = Regress(after=80, every=5, batch=4096, network=Network((8,)))
    run = OffPolicy(SPEC, Extrinsic(Sphere(4)), DDPG(hidden=8), Replay(capacity=400, nstep=1), envs=4, batch=8,
                    skill_interval=5, random_steps=40, choice=rule)  # fmt: skip
    chosen = {}
    stored = None
    for number, now in enumerate(train(run, Walk(4), jnp.stack([jax.random.key(0)]), 240)):
        rule_state, kept = jax.tree.map(lambda leaf: np.asarray(leaf[0]), (now.state.skill, now.state.replay))
        chosen[number], stored = rule_state.skill, kept.steps
        regressed = number > 20 and 4 * number // 5 > 4 * (number - 1) // 5  # After 80 steps, a number is four.
        assert rule_state.ready == (number >= 22)
        if regressed:
            obs, reward = kept.steps.obs[:number].reshape(-1, 3), kept.steps.reward[:number].reshape(-1)
            expected = reward @ naive_features(rule_state.features, obs)
            # A sample of 4096 with replacement, from at most 240 steps.
            assert rule_state.skill @ expected / np.linalg.norm(expected) > 0.99
    assert stored is not None
    for row in range(59):
        if row < 25:  # Drawn for each environment.
            assert len(np.unique(stored.skill[row], axis=0)) == 4
        elif row % 5 == 0:  # The last one before: a step's skill is drawn before its updates.
            np.testing.assert_allclose(stored.skill[row], np.broadcast_to(chosen[row - 1], (4, 4)), atol=1e-6)
        else:
            np.testing.assert_array_equal(stored.skill[row], stored.skill[row - 1])

"""The off-policy loop on environments whose every number is known."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from distinct import distinct_runs, marked

from becl.envs import make
from becl.envs.maze import Maze
from becl.envs.maze_batch import MazeBatch
from becl.envs.simulations import Step
from becl.envs.spec import EnvSpec
from becl.errors import UserError
from becl.experiments.pretraining import make_pretraining
from becl.learning.ddpg import DDPG, values
from becl.learning.offpolicy import OffPolicy, Outcome, Pricing
from becl.learning.programs import programs
from becl.learning.replay import Replay, Transitions
from becl.learning.training import train
from becl.nn.adam import Adam
from becl.nn.networks import Network
from becl.objectives import METHODS
from becl.objectives.becl import BeCL
from becl.objectives.diayn import DIAYN
from becl.objectives.extrinsic import Extrinsic
from becl.options import PretrainOptions
from becl.skills import NoSkill, OneHot

LENGTH = 10
SPEC = EnvSpec(obs_dim=2, action_dim=1, episode_length=LENGTH)
SMALL = DDPG(hidden=16)


class Counting:
    """Observations are (environment, steps since the beginning); reward is −(action − 0.5)²."""

    def __init__(self, num_envs: int):
        self.num_envs, self.spec = num_envs, SPEC
        self.actions: list[np.ndarray] = []

    def _observe(self) -> np.ndarray:
        return np.stack([np.arange(self.num_envs), np.full(self.num_envs, self.time)], 1).astype(np.float32) / 100

    def reset(self) -> np.ndarray:
        self.time = 0
        return self._observe()

    def close(self) -> None: ...

    def step(self, action: np.ndarray) -> Step:
        self.actions.append(action.copy())
        self.time += 1
        end = np.full(self.num_envs, self.time % LENGTH == 0)
        return Step(self._observe(), -np.square(action[:, 0] - 0.5).astype(float), end, self._observe())


def small(objective=None, envs=2, **options) -> OffPolicy:
    settings = {"batch": 16, "random_steps": 20, "skill_interval": 4, "replay": Replay(capacity=200), "learner": SMALL}
    return OffPolicy(SPEC, objective or DIAYN(OneHot(3), Network((8,))), envs=envs, **{**settings, **options})


def count(opt: Any) -> int:
    """Steps of an Adam optimiser of the first seed."""
    return round(float(np.log(opt.decay[0, 1]) / np.log(0.999)))


def keys(*seeds: int):
    return jnp.stack([jax.random.key(seed) for seed in seeds])


@pytest.mark.parametrize(("envs", "steps"), [(1, 60), (2, 60), (4, 60), (8, 64)])
def test_one_update_for_two_steps_after_the_random_ones(envs, steps):
    run = small(envs=envs)
    updates = 0
    for number in range(steps // envs):
        if run.learns_at(number * envs):
            updates += run.updates
    assert updates == sum(1 for step in range(steps) if step >= -(-20 // envs) * envs and step % 2 == 0)
    *_, last = train(run, Counting(envs), keys(0), steps)
    assert count(last.state.learner.actor_opt) == updates
    assert int(last.state.replay.written[0]) == steps // envs - 1  # The last step is stored with the next one.


def test_what_is_stored_is_what_happened():
    run, envs = small(envs=3, steps_per_update=3), Counting(6)
    *_, last = train(run, envs, keys(0, 1), 90)
    stored = jax.tree.map(np.asarray, last.state.replay.steps)
    for seed, row in itertools.product((0, 1), range(29)):
        np.testing.assert_allclose(stored.obs[seed, row, :, 1], row / 100, atol=1e-6)
        np.testing.assert_allclose(stored.next_obs[seed, row, :, 1], (row + 1) / 100, atol=1e-6)
        np.testing.assert_allclose(stored.obs[seed, row, :, 0] * 100, 3 * seed + np.arange(3), atol=1e-4)
        np.testing.assert_array_equal(stored.action[seed, row], envs.actions[row][3 * seed : 3 * seed + 3])
        np.testing.assert_allclose(stored.reward[seed, row], -((stored.action[seed, row, :, 0] - 0.5) ** 2), rtol=1e-5)
        np.testing.assert_array_equal(stored.last[seed, row], (row + 1) % LENGTH == 0)
        # A skill is drawn with every episode and after every fourth step of it.
        expected = row % LENGTH % 4
        np.testing.assert_array_equal(stored.since[seed, row], expected)
        if expected > 0:
            np.testing.assert_array_equal(stored.skill[seed, row], stored.skill[seed, row - 1])
    assert len(np.unique(stored.skill[:, :29].reshape(-1, 3), axis=0)) == 3


def test_actions_belong_to_the_skill_that_is_stored():
    """Without noise the action is the mean of the stored skill and observation, by the parameters before the step."""
    run, envs = small(learner=DDPG(hidden=16, stddev=0.0)), Counting(2)
    actors, stored = [], None
    for progress in train(run, envs, keys(0), 60):
        actors.append(jax.tree.map(lambda leaf: np.asarray(leaf[0]), progress.state.learner.actor))
        stored = jax.tree.map(lambda leaf: np.asarray(leaf[0]), progress.state.replay.steps)
    assert stored is not None
    for row in range(12, 29):
        actor = jax.tree.map(jnp.asarray, actors[row - 1])
        mean = actor(jnp.concatenate([stored.obs[row], stored.skill[row]], 1))
        np.testing.assert_allclose(stored.action[row], mean, atol=2e-6)


def test_random_actions_come_first():
    envs = Counting(2)
    list(train(small(learner=DDPG(hidden=16, stddev=0.0)), envs, keys(0), 40))
    actions = np.array(envs.actions)[..., 0]
    assert actions[:10].std() > 0.4  # Uniform in [-1, 1]: 0.58.
    assert np.median(np.abs(np.diff(actions[10:], axis=0))) < 0.05  # Jumps only where the skill changes.


def test_the_same_seed_twice_is_equal_to_the_bit_and_seeds_together_are_as_alone():
    def final(*seeds):
        *_, last = train(small(), Counting(2 * len(seeds)), keys(*seeds), 60)
        return jax.tree.map(np.asarray, (last.state.learner.actor, last.state.objective, last.metrics))

    once, again, together = final(3), final(3), final(5, 3)
    jax.tree.map(np.testing.assert_array_equal, once, again)
    # Environment numbers are part of the observation here, so only the first seed sees the same world.
    first = jax.tree.map(lambda leaf: leaf[:1], final(3, 5))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), first, once)
    assert not np.allclose(together[0].out.weight[0], once[0].out.weight[0])


def test_every_part_is_traced_once():
    run = small(batch=17)  # As no other test has it: programs are kept.
    list(train(run, Counting(4), keys(0, 1), 80))
    parts: Any = programs(run, 1)
    sizes = [part._cache_size() for part in (parts.act, parts.store, parts.store_and_learn)]
    assert sizes == [1, 1, 1]


@pytest.mark.parametrize("method", marked(distinct_runs(METHODS, "square_a")))
def test_an_update_keeps_every_type(method):
    """Also whether it is weak: an update would be compiled again for a state that differs in that."""
    settings = ("batch=16", "replay.capacity=2000")
    run = make_pretraining(PretrainOptions("square_a", method, (0,), hidden=8, set=settings, envs=2)).run

    def update(state, choice):
        nothing = np.zeros(run.envs, np.float32)
        obs = np.zeros((run.envs, run.env.obs_dim), np.float32)
        outcome = Outcome(obs, obs, nothing, nothing > 0, nothing > 0)
        replay, rule = run.store(state.replay, state.skill, choice, outcome)
        state = state._replace(replay=replay, skill=rule)
        return run.learn(state, jnp.int32(9))[0]

    before, choice = jax.eval_shape(run.init, jax.random.key(0))
    after = jax.eval_shape(update, before, choice)
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(before))
    same = jax.tree.map(lambda a, b: (a.shape, a.dtype, a.weak_type) == (b.shape, b.dtype, b.weak_type), before, after)
    assert all(jax.tree.leaves(same))


def test_several_fits_come_before_an_update():
    run = small(BeCL(OneHot(3), network=Network((8,)), head=None, feature_dim=4), fits_per_update=3)
    *_, last = train(run, Counting(2), keys(0), 40)
    learner = count(last.state.learner.critic_opt)
    assert count(last.state.objective.opt) == 3 * learner > 0
    assert last.metrics is not None
    assert all(np.isfinite(value).all() for value in last.metrics.values())


class Probe(Counting):
    """The same, but observations say where in the episode one is."""

    def _observe(self) -> np.ndarray:
        return np.full((self.num_envs, 2), self.time % LENGTH, np.float32) / LENGTH


def test_it_learns_a_task_whose_answer_is_known():
    gamma, stddev = 0.5, 0.2
    run = small(
        Extrinsic(NoSkill()),
        envs=4,
        batch=64,
        replay=Replay(capacity=4000, gamma=gamma, nstep=1),
        learner=DDPG(hidden=32, stddev=stddev, optimizer=Adam(1e-3)),
        random_steps=400,
    )
    *_, last = train(run, Probe(4), keys(0), 6000)
    actor, critic = jax.tree.map(lambda leaf: leaf[0], (last.state.learner.actor, last.state.learner.critic))
    obs = jnp.full((3, 2), 0.3)
    np.testing.assert_allclose(actor(obs)[:, 0], 0.5, atol=0.1)
    # −(a − ½)² now, and for ever after what the noise costs, which is clipped at 0.3.
    action = jnp.array([[0.5], [0.2], [0.8]])
    later = -(stddev**2) * 0.9 * gamma / (1 - gamma)
    expected = later - np.square(np.asarray(action[:, 0]) - 0.5)
    got = values(critic, obs, action, jnp.zeros((3, 0))).mean(0)
    np.testing.assert_allclose(got, expected, atol=0.05)


@pytest.mark.parametrize("make_envs", [lambda n, s: MazeBatch(Maze(), n, s), lambda n, s: make("walker", n, s)])
def test_mazes_and_robots_go_through_the_same_loop(make_envs):
    envs = make_envs(4, [0, 1])
    run = OffPolicy(envs.spec, DIAYN(OneHot(3), Network((8,))), SMALL, Replay(capacity=400), envs=2, batch=16,
                    random_steps=20)  # fmt: skip
    *_, last = train(run, envs, keys(0, 1), 60)
    assert last.metrics is not None
    assert last.metrics["reward"].shape == (2,)
    assert np.isfinite(last.metrics["reward"]).all()


def test_mazes_restart_and_share_seeds_like_robots():
    together, alone = MazeBatch(Maze(), 4, [7, 8]), MazeBatch(Maze(), 2, 8)
    a, b = together.reset(), alone.reset()
    np.testing.assert_array_equal(a[2:], b)
    action = np.random.default_rng(0).uniform(-1, 1, (101, 4, 2)).astype(np.float32)
    for time in range(101):
        one, other = together.step(action[time]), alone.step(action[time, 2:])
        np.testing.assert_array_equal(one.next_obs[2:], other.next_obs)
        assert one.truncated.all() == ((time + 1) % 50 == 0)
        assert np.array_equal(one.obs, one.next_obs) != one.truncated.all()


def test_settings_that_would_change_the_schedule_are_refused():
    with pytest.raises(UserError, match="envs 3"):
        small(envs=3)
    with pytest.raises(UserError, match="capacity 4"):
        small(envs=2, replay=Replay(capacity=4))


def test_nothing_is_learned_from_rows_not_yet_written():
    run = small(random_steps=0, envs=2)
    assert [run.learns_at(step) for step in (0, 2, 4, 6, 8)] == [False, False, False, True, True]


def test_metrics_are_those_of_the_updates_before_a_step():
    told = [progress.metrics is not None for progress in train(small(envs=1), Counting(1), keys(0), 26)]
    assert told == [step >= 20 and step % 2 == 0 for step in range(26)]


def priced(run: OffPolicy, number: int = 0):
    """What a batch is worth to the objective and to the learner, and the statistics after it."""
    state, _ = run.init(jax.random.key(0))
    fake = jax.random.normal(jax.random.key(number), (run.fits_per_update, run.batch, 2))
    skill = jax.nn.one_hot(jnp.arange(run.batch) % 3, 3)[None]
    numbers = jnp.zeros((1, run.batch))
    batches = Transitions(
        fake, fake[..., :1], numbers, numbers, fake, skill, jnp.arange(run.batch)[None], jnp.ones((1, run.batch), int)
    )
    return state, batches


def test_the_learner_sees_rewards_of_the_size_asked_for():
    plain, large = small(), small(reward_scale=7.5)
    state, batches = priced(plain)
    key = jax.random.key(1)
    before = Pricing(state.objective, state.scale)
    _, once, metrics = plain.price(state.learner, before, key, batches)
    _, scaled, more = large.price(state.learner, before, key, batches)
    np.testing.assert_array_equal(scaled.reward, 7.5 * once.reward)
    assert float(once.reward.mean()) == pytest.approx(float(metrics["reward"]))
    assert "learner_reward" not in metrics  # It would be the same number.
    # What is logged as the reward stays the objective's own: it can be compared with chance.
    assert float(more["reward"]) == pytest.approx(float(metrics["reward"]))
    assert float(more["learner_reward"]) == pytest.approx(7.5 * float(metrics["reward"]), rel=1e-5)


def test_normalised_rewards_are_divided_by_the_deviation_of_all_so_far():
    run = small(reward_normalise="std", reward_scale=2.0)
    state, _ = run.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    scale, seen = state.scale, []
    for size in (3.0, 50.0, 0.01):
        reward = rng.normal(1.0, size, 16).astype(np.float32)
        scale, resized = run.resize(scale, jnp.asarray(reward))
        seen.append(reward)
        # Unbiased within a batch, as in the released code: the deviations of batches and of their means, by loops.
        every = np.concatenate(seen).astype(np.float64)
        squares = sum(16 * one.astype(np.float64).var(ddof=1) + 16 * (one.mean() - every.mean()) ** 2 for one in seen)
        np.testing.assert_allclose(resized, 2.0 * reward / np.sqrt(squares / len(every)), rtol=1e-3)


def test_a_run_with_normalised_rewards_learns_and_one_without_has_no_statistics():
    *_, last = train(small(reward_normalise="std"), Counting(2), keys(0), 60)
    assert float(last.state.scale.number[0]) > 100
    assert last.metrics is not None
    assert float(last.metrics["learner_reward"][0]) != float(last.metrics["reward"][0])
    *_, plain = train(small(), Counting(2), keys(0), 60)
    assert plain.state.scale == ()


def test_a_run_can_be_diagnosed_at_any_step_and_does_not_notice():
    def final(diagnosed: bool):
        last = None
        for last in train(small(), Counting(4), keys(0, 1), 60):
            if diagnosed and last.metrics is not None:
                numbers = last.diagnose()
                assert all(value.shape == (2,) for value in numbers.values())
        assert last is not None
        return jax.tree.map(np.asarray, last.state.learner.actor)

    jax.tree.map(np.testing.assert_array_equal, final(True), final(False))

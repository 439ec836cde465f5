"""The controller over frozen skills: stretches against a plain loop, its target against NumPy, and a task for two."""

import csv
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.envs.simulations import Step
from becl.envs.spec import EnvSpec
from becl.errors import UserError
from becl.experiments.finetuner import finetune
from becl.experiments.finetuning import Finetuning
from becl.experiments.pretraining import Pretraining, seed_keys
from becl.experiments.snapshots import save_snapshots
from becl.learning.choice import Held
from becl.learning.controller import Controller, Stretches
from becl.learning.ddpg import DDPG, Actor
from becl.learning.offpolicy import OffPolicy
from becl.learning.programs import programs
from becl.learning.replay import Replay, Transitions
from becl.nn.adam import Adam
from becl.nn.networks import Network, follow
from becl.objectives.diayn import DIAYN
from becl.objectives.extrinsic import Extrinsic
from becl.runs.folder import open_folder
from becl.skills import NoSkill, OneHot

LENGTH = 20
SPEC = EnvSpec(obs_dim=2, action_dim=1, episode_length=LENGTH)


# --- Stretches --------------------------------------------------------------------------------------------------------


class Clock:
    """Observations are (environment, time of the episode); the reward is the action; episodes may end early."""

    def __init__(self, num_envs: int, ends: tuple[tuple[int, int], ...] = ()):
        """`ends` are pairs of an environment and a number of steps after which its episode breaks off."""
        self.num_envs, self.spec, self.ends = num_envs, SPEC, ends

    def _observe(self) -> np.ndarray:
        return np.stack([np.arange(self.num_envs), self.time], 1).astype(np.float32)

    def reset(self) -> np.ndarray:
        self.steps, self.time = 0, np.zeros(self.num_envs, int)
        return self._observe()

    def close(self) -> None:
        self.closed = True

    def get_state(self) -> tuple[np.ndarray, np.ndarray]:
        return np.array(self.steps), self.time.copy()

    def set_state(self, state: tuple[np.ndarray, np.ndarray]) -> None:
        self.steps, self.time = int(state[0]), state[1].copy()

    def step(self, action: np.ndarray) -> Step:
        self.steps += 1
        self.time += 1
        end = self.time >= LENGTH
        for env, at in self.ends:
            end[env] |= self.steps == at
        next_obs = self._observe()
        self.time[end] = 0
        return Step(self._observe(), action[:, 0].astype(float), end, next_obs)


class Telling(DDPG):
    """Actions say who acts: 100 · policy + 10 · skill + time / 100."""

    def best(self, actor: Any, obs, skill):
        return (100 * actor + 10 * jnp.argmax(skill, -1) + obs[:, 1] / 100)[:, None]


POLICIES = jnp.array([1.0, 2.0])


def stretched(ends=(), interval: int = 5) -> Stretches:
    return Stretches(Clock(4, ends), Telling(), POLICIES, np.eye(3), Controller(interval))


def one_hot(*numbers: int) -> np.ndarray:
    return np.eye(3, dtype=np.float32)[list(numbers)]


def test_a_stretch_is_a_skill_for_a_while():
    envs = stretched()
    assert envs.spec == EnvSpec(2, 3, 4)
    assert envs.num_envs == 4
    np.testing.assert_array_equal(envs.reset(), [[0, 0], [1, 0], [2, 0], [3, 0]])
    for number in range(9):
        skills = np.array([number % 3, 1, 2, 0])
        step = envs.step(one_hot(*skills))
        began = number % 4 * 5
        expected = np.zeros(4)
        for time in range(began, began + 5):
            for env in range(4):
                expected[env] += 100 * (1 + env // 2) + 10 * skills[env] + time / 100
        np.testing.assert_allclose(step.reward, expected, rtol=1e-6)
        np.testing.assert_array_equal(step.truncated, number % 4 == 3)
        np.testing.assert_array_equal(step.next_obs[:, 1], began + 5)
        np.testing.assert_array_equal(step.obs[:, 1], (began + 5) % LENGTH)
    envs.close()
    assert envs.envs.closed


def test_an_episode_that_breaks_off_ends_its_stretch():
    envs = stretched(ends=((1, 8), (3, 10)))
    envs.reset()
    first = envs.step(one_hot(0, 0, 0, 0))
    assert not first.truncated.any()
    step = envs.step(one_hot(0, 1, 2, 0))
    np.testing.assert_array_equal(step.truncated, [False, True, False, True])
    # Environment 1 took the steps at times 5, 6 and 7; what came after belongs to no stretch.
    expected = [500 + 0.35, 3 * 110 + 0.18, 5 * 220 + 0.35, 5 * 200 + 0.35]
    np.testing.assert_allclose(step.reward, expected, rtol=1e-6)
    np.testing.assert_array_equal(step.next_obs[:, 1], [10, 8, 10, 10])
    np.testing.assert_array_equal(step.obs[:, 1], [10, 2, 10, 0])
    # It goes on in the middle of an episode, whose end falls into a stretch again.
    for _ in range(3):
        step = envs.step(one_hot(0, 0, 0, 0))
        assert not step.truncated[1]
    np.testing.assert_array_equal(step.obs[:, 1], [5, 17, 5, 15])
    step = envs.step(one_hot(0, 0, 0, 0))
    np.testing.assert_array_equal(step.truncated, [False, True, False, True])
    np.testing.assert_allclose(step.reward[1], 300 + 0.54, rtol=1e-6)
    assert step.next_obs[1, 1] == LENGTH


def test_stretches_go_on_where_they_were():
    envs, other = stretched(ends=((1, 8),)), stretched(ends=((1, 8),))
    envs.reset()
    envs.step(one_hot(0, 1, 2, 0))
    other.set_state(envs.get_state())
    for skills in ((0, 1, 2, 0), (1, 1, 1, 1)):
        jax.tree.map(np.testing.assert_array_equal, envs.step(one_hot(*skills)), other.step(one_hot(*skills)))


def test_stretches_must_fill_an_episode():
    with pytest.raises(UserError, match="episodes of 20 steps cannot be cut into stretches of 7"):
        stretched(interval=7)


def test_what_acted_before_is_shown_where_changing_costs():
    envs = Stretches(Clock(4, ((1, 8),)), Telling(), POLICIES, np.eye(3), Controller(5, switch_cost=0.1))
    assert envs.spec == EnvSpec(2 + 3, 3, 4)
    np.testing.assert_array_equal(envs.reset()[:, 2:], np.zeros((4, 3)))
    step = envs.step(one_hot(0, 1, 2, 0))
    for obs in (step.obs, step.next_obs):
        np.testing.assert_array_equal(obs[:, 2:], one_hot(0, 1, 2, 0))
    step = envs.step(one_hot(1, 1, 1, 1))
    # The episode of environment 1 is over: what acts next is free, and what led to the end is known.
    np.testing.assert_array_equal(step.obs[:, 2:], one_hot(1, 1, 1, 1) * [[1], [0], [1], [1]])
    np.testing.assert_array_equal(step.next_obs[:, 2:], one_hot(1, 1, 1, 1))
    # Policies see none of it: their actions, and so rewards, are those of stretches without.
    other = stretched(ends=((1, 8),))
    other.reset()
    other.step(one_hot(0, 1, 2, 0))
    np.testing.assert_array_equal(step.reward, other.step(one_hot(1, 1, 1, 1)).reward)
    np.testing.assert_array_equal(envs.restart()[:, 2:], np.zeros((4, 3)))


class Saying(DDPG):
    """Actions say what is seen: the sum of the observation, and of the skill ten times."""

    def best(self, actor: Any, obs, skill):
        del actor
        return (obs.sum(-1) + 10 * skill.sum(-1))[..., None]


def test_policies_see_what_they_were_pretrained_with_and_skills_may_be_vectors():
    skills = np.array([[0.1, 0.2], [0.3, 0.5]])
    envs = Stretches(Clock(4), Saying(), POLICIES, skills, Controller(1), seen=1)
    envs.reset()
    step = envs.step(np.eye(2)[[0, 1, 1, 0]])
    np.testing.assert_allclose(step.reward, [3.0, 9.0, 10.0, 6.0], rtol=1e-6)  # Time is not seen.


# --- The controller ---------------------------------------------------------------------------------------------------


def naive_values(network, obs) -> list[float]:
    x = [float(number) for number in obs]
    for number, layer in enumerate(network.layers):
        weight, bias = np.asarray(layer.weight, float), np.asarray(layer.bias, float)
        x = [sum(x[i] * weight[i, j] for i in range(len(x))) + bias[j] for j in range(len(bias))]
        if number < len(network.layers) - 1:
            x = [max(number, 0.0) for number in x]
    return x


def test_the_target_is_that_of_double_q_learning():
    controller = Controller(interval=5, network=Network((8,)), target_rate=0.1)
    spec = EnvSpec(3, 4, 10)
    state = controller.init(jax.random.key(0), spec, NoSkill())
    state = state._replace(target=controller.network.init(jax.random.key(1), 3, 4))
    rng = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    chosen = rng.integers(4, size=16)
    batch = Transitions(
        obs=draw(16, 3),
        action=jnp.eye(4)[chosen],
        reward=draw(16),
        discount=jnp.asarray(rng.uniform(size=16), jnp.float32),
        next_obs=draw(16, 3),
        skill=jnp.zeros((16, 0)),
        trajectory=jnp.arange(16),
        since=jnp.ones(16, jnp.int32),
    )
    goals, values = [], []
    obs, next_obs, reward, discount = map(np.asarray, (batch.obs, batch.next_obs, batch.reward, batch.discount))
    for i in range(16):
        online, slow = (naive_values(network, next_obs[i]) for network in (state.actor, state.target))
        best = max(range(4), key=lambda z, online=online: online[z])
        goals.append(reward[i] / 5 + discount[i] * slow[best])
        values.append(naive_values(state.actor, obs[i])[chosen[i]])
    new, metrics = controller.update(state, batch, jax.random.key(2))
    assert float(metrics["goal"]) == pytest.approx(np.mean(goals), abs=1e-5)
    assert float(metrics["q"]) == pytest.approx(np.mean(values), abs=1e-5)
    assert float(metrics["critic_loss"]) == pytest.approx(np.mean((np.array(values) - goals) ** 2), abs=1e-5)

    # The goal is held still in the gradient, and the target follows what was learned.
    def loss(network):
        q = jnp.sum(network(batch.obs) * batch.action, -1)
        return jnp.mean((q - jnp.array(goals)) ** 2)

    expected, _ = controller.optimizer.update(state.actor, jax.grad(loss)(state.actor), state.opt)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), new.actor, expected)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), new.target, follow(state.target, expected, 0.1)
    )


@pytest.mark.parametrize(("epsilon", "random", "share"), [(0.0, False, 1.0), (0.4, False, 0.8), (0.0, True, 0.5)])
def test_skills_are_picked_by_value_and_now_and_then_at_random(epsilon, random, share):
    controller = Controller(epsilon=epsilon, network=Network((8,)))
    values = controller.init(jax.random.key(0), EnvSpec(3, 2, 10), NoSkill()).actor
    obs = jax.random.normal(jax.random.key(1), (4000, 3))
    nothing = jnp.zeros((4000, 0))
    picked = controller.act(values, obs, nothing, jax.random.key(2), jnp.array(random))
    np.testing.assert_array_equal(np.sort(picked, -1), np.tile([0.0, 1.0], (4000, 1)))
    best = controller.best(values, obs, nothing)
    np.testing.assert_array_equal(np.argmax(best, -1), np.argmax(values(obs), -1))
    # A random pick is the best one by chance once in two.
    assert (picked == best).all(-1).mean() == pytest.approx(share, abs=0.03)


def test_the_target_with_a_cost_of_changing_by_loops():
    cost, count = 0.3, 4
    controller = Controller(interval=5, network=Network((8,)), switch_cost=cost)
    spec = EnvSpec(3 + count, count, 10)
    state = controller.init(jax.random.key(0), spec, NoSkill())
    state = state._replace(target=controller.network.init(jax.random.key(1), 3, count))
    rng = np.random.default_rng(0)
    acted, chosen = rng.integers(count, size=(2, 16))
    shown = np.eye(count, dtype=np.float32)
    shown_before = shown[acted] * (np.arange(16) > 3)[:, None]  # The first rows begin an episode.
    obs, next_obs = rng.normal(size=(2, 16, 3)).astype(np.float32)
    reward, discount = rng.normal(size=16).astype(np.float32), rng.uniform(size=16).astype(np.float32)
    batch = Transitions(
        obs=jnp.concatenate([obs, shown_before], 1),
        action=jnp.asarray(shown[chosen]),
        reward=jnp.asarray(reward),
        discount=jnp.asarray(discount),
        next_obs=jnp.concatenate([next_obs, shown[chosen]], 1),
        skill=jnp.zeros((16, 0)),
        trajectory=jnp.arange(16),
        since=jnp.ones(16, jnp.int32),
    )
    goals, values, switched = [], [], 0
    for i in range(16):
        online, slow = (naive_values(network, next_obs[i]) for network in (state.actor, state.target))
        after = [online[z] - cost * (z != chosen[i]) for z in range(count)]
        best = max(range(count), key=lambda z, after=after: after[z])
        switched += best != chosen[i]
        goals.append(reward[i] / 5 + discount[i] * (slow[best] - cost * (best != chosen[i])))
        values.append(naive_values(state.actor, obs[i])[chosen[i]])
    _, metrics = controller.update(state, batch, jax.random.key(2))
    assert float(metrics["goal"]) == pytest.approx(np.mean(goals), abs=1e-5)
    assert float(metrics["q"]) == pytest.approx(np.mean(values), abs=1e-5)
    assert float(metrics["switches"]) == pytest.approx(switched / 16, abs=1e-6)
    assert 0 < switched < 16
    # What is picked is the best of the values less the cost, and of the values alone where an episode begins.
    picked = np.argmax(controller.best(state.actor, batch.obs, jnp.zeros((16, 0))), -1)
    for i in range(16):
        value = naive_values(state.actor, obs[i])
        held = [value[z] - cost * (z != acted[i]) * (i > 3) for z in range(count)]
        assert picked[i] == max(range(count), key=lambda z, held=held: held[z])


def test_the_more_changing_costs_the_longer_a_skill_acts():
    shares = []
    for cost in (1e-6, 0.2, 100.0):
        controller = Controller(network=Network((8,)), switch_cost=cost)
        values = controller.init(jax.random.key(0), EnvSpec(3 + 4, 4, 10), NoSkill()).actor
        before = jax.nn.one_hot(jax.random.randint(jax.random.key(2), (500,), 0, 4), 4)
        obs = jnp.concatenate([jax.random.normal(jax.random.key(1), (500, 3)), before], 1)
        shares.append(float((controller.best(values, obs, jnp.zeros((500, 0))) == before).all(-1).mean()))
    assert shares[0] < shares[1] < shares[2] == 1.0


# --- A task that needs two skills -------------------------------------------------------------------------------------


class Halves:
    """Pays 1 a step for positive actions in the first half of the episode and for negative ones in the second."""

    def __init__(self, task: str, num_envs: int, seeds):
        del task, seeds
        self.num_envs, self.spec = num_envs, SPEC

    def _observe(self) -> np.ndarray:
        return np.full((self.num_envs, 2), self.time / LENGTH - 0.5, np.float32)

    def reset(self) -> np.ndarray:
        self.time = 0
        return self._observe()

    def close(self) -> None: ...

    def get_state(self) -> np.ndarray:
        return np.array(self.time)

    def set_state(self, state: np.ndarray) -> None:
        self.time = int(state)

    def step(self, action: np.ndarray) -> Step:
        wanted = 1 if self.time < LENGTH // 2 else -1
        self.time += 1
        next_obs, end = self._observe(), self.time == LENGTH
        if end:
            self.time = 0
        return Step(self._observe(), (wanted * action[:, 0] > 0).astype(float), np.full(self.num_envs, end), next_obs)


def acting(actor: Actor, actions: np.ndarray) -> Actor:
    """An actor whose skill k acts `actions[k]`, whatever it sees: the trunk has a unit for each skill."""
    count, width = len(actions), len(actor.hidden.bias)
    numbers = np.arange(count)
    trunk = jnp.zeros(actor.trunk.linear.weight.shape).at[SPEC.obs_dim + numbers, numbers].set(10.0)
    # LayerNorm makes √(width − 1) of the unit that is on, and the others negative.
    out = jnp.zeros(actor.out.weight.shape).at[numbers].set(np.arctanh(actions) / np.tanh((width - 1) ** 0.5))
    where = lambda actor: (actor.trunk.linear.weight, actor.hidden.weight, actor.out.weight)  # noqa: E731
    return eqx.tree_at(where, actor, (trunk, jnp.eye(width), out))


@pytest.fixture(scope="module")
def halves(tmp_path_factory) -> tuple[Pretraining, Path]:
    """Two seeds whose skill 0 acts 0.7 and skill 1 −0.7; of the second seed the other way round."""
    out = tmp_path_factory.mktemp("runs") / "halves"
    run = OffPolicy(SPEC, DIAYN(OneHot(2), Network((8,))), DDPG(hidden=16), Replay(capacity=80), envs=4)
    planned = Pretraining("halves", "diayn", (0, 1), 100, run)
    open_folder(planned.config(), out)
    state, _ = programs(run).init(seed_keys(planned.seeds))
    actors = [jax.tree.map(lambda leaf, i=i: leaf[i], state.learner.actor) for i in range(2)]
    actions = np.array([[0.7], [-0.7]])
    changed = jax.tree.map(lambda *both: jnp.stack(both), acting(actors[0], actions), acting(actors[1], -actions))
    save_snapshots(planned, out, state._replace(learner=state.learner._replace(actor=changed)), 100)
    return planned, out


def last_scores(out: Path) -> list[dict[str, str]]:
    rows = list(csv.DictReader((out / "scores.csv").open()))
    return [row for row in rows if row["step"] == rows[-1]["step"]]


def finetuning(halves, skill: str, run: OffPolicy, steps: int) -> Finetuning:
    planned, source = halves
    return Finetuning("halves", "diayn", ("halves",), planned.seeds, steps, skill, "trunk", run, 100, planned,
                      str(source), eval_every=10_000, eval_episodes=1, final_episodes=1)  # fmt: skip


def test_a_controller_beats_every_single_skill_where_two_are_needed(halves, tmp_path):
    planned, _ = halves
    run = OffPolicy(SPEC, Extrinsic(OneHot(2)), planned.run.learner, Replay(capacity=80), envs=4, choice=Held())
    each = finetuning(halves, "each", run, 0)
    open_folder(each.config(), tmp_path / "each")
    assert finetune(each, tmp_path / "each", make=Halves)
    found = last_scores(tmp_path / "each")
    assert [(row["seed"], row["skill"]) for row in found] == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert [float(row["return"]) for row in found] == [LENGTH / 2] * 4
    controller = Controller(interval=5, network=Network((16,)), optimizer=Adam(3e-3))
    run = OffPolicy(EnvSpec(2, 2, 4), Extrinsic(), controller, Replay(capacity=400, nstep=1, gamma=0.5), envs=4,
                    batch=32, random_steps=40, steps_per_update=1)  # fmt: skip
    meta = finetuning(halves, "meta", run, 2000)
    open_folder(meta.config(), tmp_path / "meta")
    assert finetune(meta, tmp_path / "meta", make=Halves)
    found = last_scores(tmp_path / "meta")
    assert [row["step"] for row in found] == ["2000", "2000"]
    assert [row["skill"] for row in found] == ["", ""]
    assert [float(row["return"]) for row in found] == [LENGTH, LENGTH]


def test_a_learned_stop_finds_where_to_change(halves, tmp_path):
    """With a decision at every step, changing once an episode is all that pays."""
    controller = Controller(interval=1, network=Network((16,)), optimizer=Adam(3e-3), switch_cost=0.2, epsilon=0.2)
    run = OffPolicy(EnvSpec(2 + 2, 2, LENGTH), Extrinsic(), controller, Replay(capacity=2000, nstep=1, gamma=0.8),
                    envs=4, batch=32, random_steps=80, steps_per_update=1)  # fmt: skip
    learned = finetuning(halves, "meta", run, 2000)
    open_folder(learned.config(), tmp_path / "learned")
    assert finetune(learned, tmp_path / "learned", make=Halves)
    # The change may come a step late where the cost is not yet known to pay.
    assert min(float(row["return"]) for row in last_scores(tmp_path / "learned")) >= LENGTH - 1
    rows = list(csv.DictReader((tmp_path / "learned" / "metrics.csv").open()))
    assert 0 < float(rows[-1]["switches"]) < 0.3

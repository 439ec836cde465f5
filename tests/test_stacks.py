"""Images in the replay, each of which says which environment, episode and step it is of."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.envs.spec import EnvSpec, Images
from becl.learning.replay import Experience, Replay
from becl.learning.stacks import SHORT, Finals
from becl.skills import OneHot

ENV = EnvSpec(obs_dim=5, action_dim=1, episode_length=2)
LONG = ENV._replace(episode_length=SHORT)  # With room for few ends.
WIDTH, ROWS = 3, 60
CHANNELS = 3


class World:
    """Environments whose episodes end at random; a frame has the environment, the episode and the step in it."""

    def __init__(self, seed: int, stack: int, ends: float, finals: float = 0.3):
        self.random, self.stack, self.ends, self.finals = np.random.default_rng(seed), stack, ends, finals
        self.images = Images(2, 3, CHANNELS, stack)
        self.episode, self.step = np.zeros(WIDTH, int), np.zeros(WIDTH, int)
        self.seen = [self.frames(self.episode, np.zeros(WIDTH, int))] * stack
        self.told: list[Experience] = []

    def frames(self, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
        number = np.stack([np.arange(WIDTH), episode % 251, step], -1).astype(np.uint8)
        return np.broadcast_to(number[:, None, None], (WIDTH, *self.images.frame))

    def advance(self) -> Experience:
        """A step as it is told to the replay, with the observations that were really seen."""
        last = self.random.random(WIDTH) < self.ends
        obs, number = np.concatenate(self.seen, -1), 1000.0 * self.episode + self.step
        self.seen = [*self.seen[1:], self.frames(self.episode, self.step + 1)]
        next_obs = np.concatenate(self.seen, -1)
        over = last & (self.random.random(WIDTH) < self.finals)
        fields: dict[str, Any] = dict(
            obs=obs,
            action=number[:, None].astype(np.float32),
            reward=(number + 0.5).astype(np.float32),
            discount=1 - over.astype(np.float32),
            next_obs=next_obs,
            skill=np.eye(3, dtype=np.float32)[self.step % 3],
            since=np.zeros(WIDTH, np.int32),
            last=last,
        )
        self.episode, self.step = self.episode + last, np.where(last, 0, self.step + 1)
        first = self.frames(self.episode, self.step)
        self.seen = [np.where(last[:, None, None, None], first, frame) for frame in self.seen]
        self.told.append(Experience(**fields))
        return self.told[-1]


def filled(replay: Replay, world: World, steps: int, env: EnvSpec = ENV):
    state = replay.init(env, OneHot(3), WIDTH, world.images)
    add = jax.jit(replay.add)
    for _ in range(steps):
        state = add(state, jax.tree.map(jnp.asarray, world.advance()))
    return state


def windows(told: list[Experience], nstep: int, oldest: int) -> dict[tuple[int, int], int]:
    """All that may be sampled, by loops: (start, environment) to the last step. The newest step begins none yet."""
    found = {}
    for column in range(WIDTH):
        for start in range(oldest, len(told) - nstep):
            for end in range(start, start + nstep):
                if told[end].last[column]:
                    break
            if end == start + nstep - 1 or told[end].discount[column] == 0:  # type: ignore[reportPossiblyUnbound]
                found[start, column] = end  # type: ignore[reportPossiblyUnbound]
    return found


@pytest.mark.parametrize(("steps", "nstep", "stack", "ends"), [
    (5, 3, 3, 0.1), (40, 1, 3, 0.1), (60, 3, 3, 0.1), (61, 3, 2, 0.1), (173, 3, 3, 0.1), (173, 1, 4, 0.03),
    (150, 2, 1, 0.3), (130, 1, 3, 0.0),
])  # fmt: skip
def test_samples_are_what_was_seen_and_never_of_two_episodes(steps, nstep, stack, ends):
    replay, world = Replay(capacity=ROWS * WIDTH, nstep=nstep), World(steps, stack, ends)
    out = jax.jit(replay.sample, static_argnums=2)(filled(replay, world, steps), jax.random.key(0), 4000)
    assert out.obs.dtype == out.next_obs.dtype == jnp.uint8
    places = {
        (column, float(told.action[column, 0])): time for time, told in enumerate(world.told) for column in range(WIDTH)
    }
    column = np.asarray(out.obs)[:, 0, 0, 0].astype(int)
    start = [places[c, a] for c, a in zip(column.tolist(), np.asarray(out.action)[:, 0].tolist(), strict=True)]
    oldest = 0 if steps <= ROWS else steps - ROWS + stack - 1
    expected = windows(world.told, nstep, oldest)
    pairs = list(zip(start, column.tolist(), strict=True))
    assert set(pairs) == set(expected)
    for number, (time, own) in enumerate(pairs):
        np.testing.assert_array_equal(out.obs[number], world.told[time].obs[own])
        np.testing.assert_array_equal(out.next_obs[number], world.told[expected[time, own]].next_obs[own])
    for seen in (out.obs, out.next_obs):
        episodes = np.asarray(seen)[:, 0, 0, 1::CHANNELS]
        assert (episodes == episodes[:, :1]).all()


def test_each_frame_is_kept_once():
    replay, images = Replay(capacity=3000), Images(84, 84, 3, 3)
    steps = 3000 // WIDTH * WIDTH
    size = replay.bytes(LONG, OneHot(3), WIDTH, images)
    finals = (steps // WIDTH // SHORT + 2) * WIDTH
    assert 21_168 * (steps + finals) < size < 21_168 * (steps + finals) + 100 * steps
    state = replay.init(LONG, OneHot(3), WIDTH, images)
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state)) == size


def test_where_an_end_is_forgotten_the_frame_before_stands_in():
    """Episodes of about two steps, of which far more end than there is room for."""
    replay, world = Replay(capacity=ROWS * WIDTH, nstep=1), World(0, 2, ends=0.5)
    state = filled(replay, world, 60, LONG)
    assert isinstance(state.finals, Finals)
    kept = len(state.finals.frames)
    missing = 0
    for time, column in [(t, c) for t in range(59) for c in range(WIDTH)]:
        out = replay.cut(state, jnp.array([time]), jnp.array([column]))
        seen = world.told[time]
        later = sum(int(told.last[column]) for told in world.told[time:])
        if seen.last[column] and later > kept:
            missing += 1
            np.testing.assert_array_equal(out.next_obs[0, ..., CHANNELS:], seen.obs[column, ..., CHANNELS:])
        else:
            np.testing.assert_array_equal(out.next_obs[0], seen.next_obs[column])
    assert missing > 10


def test_one_episode_and_its_first_frame_again_and_again():
    """The first observation of an episode is its first frame as often as frames are stacked."""
    world = World(0, 3, 0.0)
    state = filled(Replay(capacity=ROWS * WIDTH, nstep=1), world, 10)
    out = Replay(capacity=ROWS * WIDTH, nstep=1).cut(state, jnp.array([0, 1, 2, 5]), jnp.zeros(4, int))
    np.testing.assert_array_equal(out.obs[:, 0, 0, 2::CHANNELS], [[0, 0, 0], [0, 0, 1], [0, 1, 2], [3, 4, 5]])
    np.testing.assert_array_equal(out.next_obs[:, 0, 0, 2::CHANNELS], [[0, 0, 1], [0, 1, 2], [1, 2, 3], [4, 5, 6]])

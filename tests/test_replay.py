"""The replay buffer with transitions that carry their own identity."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.envs.spec import EnvSpec
from becl.learning.replay import CANDIDATES, Experience, Replay, even_rows
from becl.skills import NoSkill, OneHot

ENV = EnvSpec(obs_dim=2, action_dim=1, episode_length=7)


def identified(time: int, envs: int, lengths) -> Experience:
    """Step `time` of environments whose observation is (environment, 1000·episode + step within it)."""
    lengths = np.asarray(lengths)
    episode, step = time // lengths, time % lengths
    number = 1000.0 * episode + step
    column = np.arange(envs, dtype=float)
    return Experience(
        obs=jnp.asarray(np.stack([column, number], 1), jnp.float32),
        action=jnp.asarray(number[:, None], jnp.float32),
        reward=jnp.asarray(number + 0.5, jnp.float32),
        discount=jnp.ones(envs),
        next_obs=jnp.asarray(np.stack([column, number + 1], 1), jnp.float32),
        skill=jnp.asarray(np.eye(3)[(number // 4).astype(int) % 3], jnp.float32),
        since=jnp.asarray(step % 4, jnp.int32),
        last=jnp.asarray(step == lengths - 1),
    )


def filled(replay: Replay, envs: int, steps: int, lengths):
    state = replay.init(ENV, OneHot(3), envs)
    add = jax.jit(replay.add)
    for time in range(steps):
        state = add(state, identified(time, envs, lengths))
    return state


@pytest.mark.parametrize("steps", [5, 19, 60, 61, 173])
@pytest.mark.parametrize(("envs", "lengths"), [(1, [20]), (3, [20, 17, 31])])
def test_every_transition_is_n_steps_of_one_episode_still_in_the_buffer(steps, envs, lengths):
    replay = Replay(capacity=60 * envs)
    out = jax.jit(replay.sample, static_argnums=2)(filled(replay, envs, steps, lengths), jax.random.key(steps), 4000)
    column, number = np.asarray(out.obs).T.astype(int)
    length = np.asarray(lengths)[column]
    step = number % 1000
    time = number // 1000 * length + step
    assert (step <= length - 3).all()  # Three steps fit into the episode.
    assert time.min() >= max(0, steps - 60)  # Nothing overwritten,
    assert time.max() <= steps - 3  # nothing unwritten.
    np.testing.assert_array_equal(out.next_obs[:, 0], column)
    np.testing.assert_array_equal(out.next_obs[:, 1], number + 3)
    np.testing.assert_array_equal(out.action[:, 0], number)
    expected = sum(0.99**i * (number + i + 0.5) for i in range(3))
    np.testing.assert_allclose(out.reward, expected, rtol=1e-6)
    np.testing.assert_allclose(out.discount, 0.99**3, rtol=1e-6)
    np.testing.assert_array_equal(np.argmax(out.skill, 1), number // 4 % 3)
    np.testing.assert_array_equal(out.since, step % 4 + 3)


def test_all_allowed_starts_come_equally_often():
    replay = Replay(capacity=40)
    out = replay.sample(filled(replay, 1, 100, [20]), jax.random.key(0), 60_000)
    numbers, counts = np.unique(np.asarray(out.obs[:, 1]), return_counts=True)
    allowed = [1000 * (t // 20) + t % 20 for t in range(60, 98) if t % 20 <= 17]
    np.testing.assert_array_equal(numbers, allowed)
    share = counts / counts.sum() * len(allowed)
    assert abs(share - 1).max() < 0.15


def test_trajectories_are_stretches_of_one_skill_in_one_environment():
    replay = Replay(capacity=120)
    out = replay.sample(filled(replay, 2, 60, [7, 7]), jax.random.key(0), 3000)
    column, number = np.asarray(out.obs).T.astype(int)
    stretch = {(c, n // 1000, n % 1000 // 4) for c, n in zip(column, number, strict=True)}
    pairs = set(zip(np.asarray(out.trajectory).tolist(), column.tolist(), (number // 1000).tolist(),
                    (number % 1000 // 4).tolist(), strict=True))  # fmt: skip
    assert len(pairs) == len(stretch) == len({trajectory for trajectory, *_ in pairs})


def test_a_window_that_must_end_early_ends_at_the_episodes_end():
    replay = Replay(capacity=60, nstep=3)
    state = filled(replay, 1, 30, [7])
    out = replay.cut(state, jnp.array([12, 13]), jnp.array([0, 0]))  # One and no step before the second episode's end.
    np.testing.assert_array_equal(out.next_obs[:, 1], [1007, 1007])
    np.testing.assert_allclose(out.reward, [1005.5 + 0.99 * 1006.5, 1006.5], rtol=1e-6)
    np.testing.assert_allclose(out.discount, [0.99**2, 0.99], rtol=1e-6)


def test_a_terminal_state_is_worth_nothing():
    replay = Replay(capacity=60)
    state = replay.init(ENV, NoSkill(), 1)
    for time in range(7):
        step = identified(time, 1, [7])._replace(skill=jnp.zeros((1, 0)))
        state = replay.add(state, step._replace(discount=1.0 - step.last))
    out = replay.cut(state, jnp.array([3, 4]), jnp.array([0, 0]))
    np.testing.assert_allclose(out.discount, [0.99**3, 0.0], rtol=1e-6)


# --- Ends for good and time limits, made by hand ----------------------------------------------------------------------

ROWS, WIDTH, STEPS = 60, 3, 97
GAMMA = 0.99


def told(seed: int, finals: float = 0.15, limits: float = 0.05) -> Any:
    """Steps of environments whose episodes end at random; observations say the environment, the episode and the time.

    Shapes are (STEPS, WIDTH, ...), in NumPy.
    """
    rng = np.random.default_rng(seed)
    final = rng.random((STEPS, WIDTH)) < finals
    last = final | (rng.random((STEPS, WIDTH)) < limits)
    time, column = np.indices((STEPS, WIDTH))
    episode = np.cumsum(last, 0) - last
    begin = np.array(
        [[max(t for t in range(time + 1) if t == 0 or last[t - 1, c]) for c in range(WIDTH)] for time in range(STEPS)]
    )
    since = (time - begin) % 4
    number = np.stack([column, episode, time], -1).astype(np.float32)
    fields: dict[str, Any] = dict(
        obs=number,
        action=number[..., 2:],
        reward=(time + 0.5).astype(np.float32),
        discount=1 - final.astype(np.float32),
        next_obs=number + np.array([0, 0, 1], np.float32),
        skill=np.eye(3, dtype=np.float32)[(time - since) % 3],
        since=since.astype(np.int32),
        last=last,
    )
    return Experience(**fields)


def windows(steps: Any, nstep: int) -> dict[tuple[int, int], tuple[float, float, int, int]]:
    """All that may be sampled, by loops: (start, environment) to reward, discount, last step and `since`.

    The newest n - 1 steps begin none yet, whatever they end with.
    """
    found = {}
    for column in range(WIDTH):
        for start in range(STEPS - ROWS, STEPS - nstep + 1):
            reward, discount, steps_in = 0.0, 1.0, 0
            for time in range(start, start + nstep):
                reward += discount * float(steps.reward[time, column])
                discount *= GAMMA * float(steps.discount[time, column])
                steps_in += 1
                if steps.last[time, column]:
                    break
            if steps_in == nstep or discount == 0:
                since = int(steps.since[start, column]) + steps_in
                found[start, column] = reward, discount, start + steps_in - 1, since
    return found


def kept(replay: Replay, steps: Any):
    state = replay.init(ENV._replace(obs_dim=3), OneHot(3), WIDTH)
    add = jax.jit(replay.add)
    for time in range(STEPS):
        state = add(state, jax.tree.map(lambda field, time=time: jnp.asarray(field[time]), steps))
    return state


@pytest.mark.parametrize("nstep", [1, 2, 3, 5])
@pytest.mark.parametrize("options", [{}, {"balanced": True}, {"released_skill": True}], ids=lambda o: "".join(o))
def test_all_windows_up_to_an_end_for_good_and_none_cut_by_a_limit(nstep, options):
    replay = Replay(capacity=ROWS * WIDTH, nstep=nstep, **options)
    steps = told(nstep)
    out = jax.jit(replay.sample, static_argnums=2)(kept(replay, steps), jax.random.key(0), 20_000)
    column, episode, start = np.asarray(out.obs).T.astype(int)
    expected = windows(steps, nstep)
    drawn = set(zip(start.tolist(), column.tolist(), strict=True))
    assert drawn == set(expected)
    reward, discount, end, since = np.array(
        [expected[place] for place in zip(start.tolist(), column.tolist(), strict=True)]
    ).T
    np.testing.assert_allclose(out.reward, reward, rtol=1e-5)
    np.testing.assert_allclose(out.discount, discount, rtol=1e-6)
    assert ((np.asarray(out.discount) == 0) == (discount == 0)).all()
    np.testing.assert_array_equal(out.next_obs, np.stack([column, episode, end + 1], 1))  # Never another episode's.
    np.testing.assert_array_equal(out.action[:, 0], start)
    np.testing.assert_array_equal(out.since, since)
    own = steps.since[start, column]
    np.testing.assert_array_equal(out.trajectory, (start - own) * WIDTH + column)
    before = np.maximum(start - 1, STEPS - ROWS)
    shifted = replay.released_skill & ~steps.last[before, column]
    np.testing.assert_array_equal(out.skill, steps.skill[np.where(shifted, before, start), column])
    assert 0.1 < (discount == 0).mean() < 0.9


def test_windows_that_end_for_good_come_as_often_as_others():
    replay = Replay(capacity=ROWS * WIDTH)
    steps = told(1)
    out = replay.sample(kept(replay, steps), jax.random.key(0), 60_000)
    column, _, start = np.asarray(out.obs).T.astype(int)
    expected = windows(steps, 3)
    _, counts = np.unique(start * WIDTH + column, return_counts=True)
    assert len(counts) == len(expected)
    assert abs(counts / counts.mean() - 1).max() < 0.25


@pytest.mark.parametrize("finals", [0.0, 0.15])
def test_the_first_draw_that_no_limit_cuts_is_taken(finals):
    """By loops; without ends for good, that is the first whose n steps lie within an episode."""
    replay = Replay(capacity=ROWS * WIDTH)
    steps = told(2, finals=finals, limits=0.1)
    start, column = replay.starts(kept(replay, steps), jax.random.key(7), 500)
    env_key, start_key = jax.random.split(jax.random.key(7))
    columns = np.asarray(jax.random.randint(env_key, (CANDIDATES, 500), 0, WIDTH))
    starts = STEPS - ROWS + np.asarray(jax.random.randint(start_key, (CANDIDATES, 500), 0, ROWS - 2))
    allowed = windows(steps, 3)
    if not finals:
        assert set(allowed) == {(t, c) for t in range(STEPS - ROWS, STEPS - 2) for c in range(WIDTH)
                                if not steps.last[t : t + 2, c].any()}  # fmt: skip
    for row in range(500):
        draws = zip(starts[:, row].tolist(), columns[:, row].tolist(), strict=True)
        assert (int(start[row]), int(column[row])) == next(draw for draw in draws if draw in allowed)


def test_the_released_pairing_takes_the_skill_of_the_step_before_but_never_another_episodes():
    state = filled(Replay(capacity=60), 1, 30, [7])
    out = Replay(capacity=60, released_skill=True).cut(state, jnp.array([11, 14]), jnp.array([0, 0]))
    # Step 4 of episode 1 began a new skill; step 0 of episode 2 has no step before it.
    np.testing.assert_array_equal(np.argmax(out.skill, 1), [1003 // 4 % 3, 2000 // 4 % 3])


def test_its_size_is_what_is_allocated():
    replay = Replay(capacity=1000)
    state = replay.init(ENV, OneHot(3), 4)
    assert replay.bytes(ENV, OneHot(3), 4) == sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def test_one_step_transitions():
    replay = Replay(capacity=60, nstep=1)
    out = replay.sample(filled(replay, 1, 30, [7]), jax.random.key(0), 2000)
    number = np.asarray(out.obs)[:, 1]
    assert len(np.unique(number)) == 30
    np.testing.assert_array_equal(out.next_obs[:, 1], number + 1)
    np.testing.assert_allclose(out.reward, number + 0.5, rtol=1e-6)
    np.testing.assert_allclose(out.discount, 0.99, rtol=1e-6)


def test_balanced_batches_have_as_many_of_each_skill_and_are_transitions_like_others():
    replay = Replay(capacity=180, balanced=True)
    out = replay.sample(filled(replay, 3, 60, [20, 17, 31]), jax.random.key(0), 300)
    column, number = np.asarray(out.obs).T.astype(int)
    skill = np.argmax(out.skill, 1)
    np.testing.assert_array_equal(skill, np.arange(300) % 3)  # So any part of it is balanced too.
    np.testing.assert_array_equal(skill, number // 4 % 3)
    np.testing.assert_array_equal(out.next_obs, np.stack([column, number + 3], 1))
    # All that there is of a skill may be drawn.
    allowed = {(c, n) for c, n in zip(column.tolist(), number.tolist(), strict=True)}
    assert len(allowed) > 90


@pytest.mark.parametrize("batch", [6, 7, 30])
def test_even_rows_by_loops(batch):
    skill = np.random.default_rng(batch).integers(0, 3, 40)
    rows = np.asarray(even_rows(jnp.asarray(skill), 3, batch))
    own = {z: [i for i in range(40) if skill[i] == z] for z in range(3)}
    np.testing.assert_array_equal(rows, [own[i % 3][i // 3 % len(own[i % 3])] for i in range(batch)])


def test_a_skill_that_was_never_drawn_has_others_stand_in():
    rows = np.asarray(even_rows(jnp.array([0, 2, 0, 2, 2]), 3, 6))
    skill = np.array([0, 2, 0, 2, 2])[rows]
    np.testing.assert_array_equal(skill[[0, 3]], 0)
    np.testing.assert_array_equal(skill[[2, 5]], 2)
    assert rows.min() >= 0
    assert rows.max() < 5

"""Robots that are seen: frames of the right moment, stacked within an episode, rewards of all repetitions."""

import numpy as np
import pytest

from becl import envs
from becl.envs.pictures import CameraEye, Pictures, in_numbers
from becl.envs.simulations import Simulations
from becl.envs.spec import Images

SIZE = 8
LENGTH = 6


class Marks:
    """Draws poses as pictures of one colour: the first digits of what the robot's joints add up to."""

    size = SIZE

    def __init__(self):
        self.closed = False

    def draw(self, qpos: np.ndarray) -> np.ndarray:
        number = np.abs(qpos @ np.arange(1, qpos.shape[1] + 1)) * 1000 % 16_777_216
        digits = np.stack([number // 65536, number // 256 % 256, number % 256], -1).astype(np.uint8)
        return np.broadcast_to(digits[:, None, None], (len(qpos), SIZE, SIZE, 3)).copy()

    def close(self) -> None:
        self.closed = True


def seen(num_envs: int = 3, stack: int = 3, repeat: int = 2, length: int = LENGTH, seed: int = 0) -> Pictures:
    inner = envs.make("walker", num_envs, seed, episode_length=length)
    return Pictures(inner, CameraEye([inner], Marks()), Images(SIZE, SIZE, 3, stack), repeat)


def actions(count: int, num_envs: int = 3, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (count, num_envs, 6)).astype(np.float32)


def watched(sims: Simulations) -> np.ndarray:
    return Marks().draw(np.array([sims.data(number).qpos for number in range(sims.num_envs)]))


def test_what_is_seen_is_what_simulations_without_a_camera_go_through():
    """By loops over simulations that take each action twice themselves, and over frames of their poses."""
    pictures, plain = seen(), envs.make("walker", 3, 0, episode_length=10**6)
    starts = envs.make("walker", 3, 0, episode_length=LENGTH)  # Only to begin the same episodes.
    obs = np.asarray(pictures.reset())
    plain.reset()
    starts.reset()
    history = [watched(plain)] * 3
    np.testing.assert_array_equal(obs, np.concatenate(history, -1))
    assert obs.dtype == np.uint8
    for number, action in enumerate(actions(9), 1):
        step = pictures.step(action)
        rewards = [plain.step(action) for _ in range(2)]
        history = [*history[1:], watched(plain)]
        np.testing.assert_array_equal(step.next_obs, np.concatenate(history, -1))
        np.testing.assert_allclose(step.reward, rewards[0].reward + rewards[1].reward, rtol=1e-12)
        told = in_numbers(pictures, step)
        np.testing.assert_array_equal(told.next_obs, rewards[1].next_obs)
        over = number % (LENGTH // 2) == 0
        assert (step.truncated == over).all()
        if over:
            starts.restart()
            plain.set_state(starts.get_state())
            history = [watched(plain)] * 3
        np.testing.assert_array_equal(step.obs, np.concatenate(history, -1))
        np.testing.assert_array_equal(told.obs, pictures.numbers)
    pictures.close()
    assert pictures.eye.frames.closed  # type: ignore[attr-defined]


def test_an_episode_may_end_between_repetitions():
    """What it led to is the end of its own episode, and the rest of the action earns nothing."""
    pictures, plain = seen(length=3), envs.make("walker", 3, 0, episode_length=3)
    pictures.reset()
    plain.reset()
    one, two = actions(2)
    pictures.step(one)
    for _ in range(2):
        plain.step(one)
    last = plain.step(two)
    step = pictures.step(two)
    assert step.truncated.all()
    np.testing.assert_array_equal(step.reward, last.reward)
    np.testing.assert_array_equal(np.asarray(step.next_obs)[..., -3:], Marks().draw(plain.led_to))
    np.testing.assert_array_equal(in_numbers(pictures, step).next_obs, last.next_obs)
    plain.step(two)  # The next episode has begun with the rest of the action.
    np.testing.assert_array_equal(step.obs, np.tile(watched(plain), 3))


def test_it_goes_on_from_its_state_bit_for_bit():
    one, other = seen(), seen(seed=5)
    one.reset()
    other.reset()
    for action in actions(4):
        one.step(action)
    other.set_state(one.get_state())
    for action in actions(5, seed=1):
        first, second = one.step(action), other.step(action)
        for mine, theirs in zip(first, second, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_where_mujoco_gives_up_the_last_good_pose_is_seen():
    inner = envs.make("walker", 2, 0, episode_length=LENGTH)
    pictures = Pictures(inner, CameraEye([inner], Marks()), Images(SIZE, SIZE, 3, 2), repeat=1)
    pictures.reset()
    step = pictures.step(actions(1, 2)[0])
    inner._batch.bind("qvel")[0] = np.nan
    with pytest.warns(UserWarning, match="diverged"):
        after = pictures.step(actions(1, 2, seed=1)[0])
    assert after.truncated.tolist() == [True, False]
    kept = np.asarray(step.obs)[0, ..., -3:]
    np.testing.assert_array_equal(np.asarray(after.next_obs)[0, ..., -3:], kept)
    assert (np.asarray(after.obs)[0] != np.tile(kept, 2)).any()


def test_rays_draw_what_the_simulations_do():
    from becl.envs.frames import make_frames

    inner = envs.make("walker", 2, 0)
    frames = make_frames(envs.DOMAINS["walker"], 16)
    pictures = Pictures(inner, CameraEye([inner], frames), Images(16, 16, 3, 2), repeat=2)
    first = np.asarray(pictures.reset())
    step = pictures.step(actions(1, 2)[0])
    assert first.shape == (2, 16, 16, 6)
    assert pictures.spec == (16 * 16 * 6, 6, 500, False)
    np.testing.assert_array_equal(np.asarray(step.obs)[..., :3], first[..., -3:])
    np.testing.assert_array_equal(np.asarray(step.obs)[..., 3:], frames.draw(np.asarray(inner.qpos)))
    assert (first[0] != first[1]).any()

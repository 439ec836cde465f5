"""Environments that draw themselves: what is kept of their pictures, and films, filmstrips and pages made of them."""

import importlib
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gallery_runs import make_run
from gymnasium.spaces import Box
from PIL import Image

from becl.commands.cli import main
from becl.envs.external import hand_over
from becl.errors import UserError
from becl.views.filmstrip import moment
from becl.views.gallery.scene import PictureStage, pace_of
from becl.views.poses import look_at, motion_of, record
from becl.views.recorded import LARGEST, draws_itself, packed
from becl.views.rendering import Pasted
from becl.views.video import frame_rate

GREEN = (0, 200, 0)


class Dial(gymnasium.Env):
    """A number that actions move, and a picture of it: a green column on white. Ends where it leaves [-1, 1]."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 20}  # type: ignore[misc]
    observation_space = Box(-2.0, 2.0, (1,), np.float32)
    action_space = Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.value = np.float32(self.np_random.uniform(-0.1, 0.1))
        return np.array([self.value]), {}

    def step(self, action):
        self.value += np.float32(0.25) * np.float32(action[0])
        return np.array([self.value]), 1.0, bool(abs(self.value) > 1), False, {}

    def render(self):
        return column_at(float(self.value))


def column_at(value: float) -> np.ndarray:
    pixels = np.full((30, 60, 3), 255, np.uint8)
    column = int(np.clip(30 + 25 * value, 0, 59))
    pixels[:, column] = GREEN
    return pixels


class Blind(Dial):
    """Has no pictures."""

    metadata: ClassVar = {"render_modes": []}


class Deaf(Dial):
    """Is not told that it should draw."""

    def __init__(self):
        super().__init__()


class Untimed(Dial):
    """Nobody knows how long its steps last."""

    metadata: ClassVar = {"render_modes": ["rgb_array"]}


class Broken(Dial):
    """Lacks a package."""

    def render(self):
        raise ImportError("pygame is not installed\nand more about it")


class Grey(Dial):
    """Draws no colours."""

    def render(self):
        return np.zeros((30, 60))


@pytest.fixture(scope="module")
def dial(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_run(tmp_path_factory.mktemp("runs") / "dial", hand_over(Dial), skills=3)


def right_or_left(x: Any) -> Any:
    """A policy: as far as the skill says."""
    return x[:, 1:2]


def played(env: gymnasium.Env, action: float, steps: int) -> list[np.ndarray]:
    """Pictures of an episode, one step after another."""
    env.reset(seed=int(np.random.default_rng([1_000_000, 0, 0, 0]).integers(2**31)))
    pictures: list[np.ndarray] = [env.render()]  # type: ignore[list-item]
    for _ in range(steps):
        *_, terminated, truncated, _ = env.step(np.array([action], np.float32))
        pictures.append(env.render())  # type: ignore[arg-type]
        if terminated or truncated:
            break
    return pictures


def test_pictures_are_those_of_every_step_and_the_last_is_held():
    skills = np.array([[1.0], [-0.1], [0.5]], np.float32)
    motion = record(right_or_left, hand_over(Dial), skills, [0, 1, 2], steps=9)
    expected = [played(Dial("rgb_array"), float(skill), 9) for (skill,) in skills]
    assert [len(pictures) for pictures in expected] == [5, 10, 9]  # It leaves [-1, 1] soon, never, and late.
    assert motion.frames == 10
    assert motion.pictures is not None
    for kept, own in zip(motion.pictures, expected, strict=True):
        for number, picture in enumerate(kept):
            np.testing.assert_array_equal(picture.pixels, own[min(number, len(own) - 1)])
    assert motion.timed
    assert motion.frame_seconds == pytest.approx(0.05)
    assert frame_rate(motion) == pytest.approx(20)


def test_steps_are_counted_where_time_is_not_known():
    motion = record(right_or_left, hand_over(Untimed), np.zeros((1, 1), np.float32), [0], steps=4)
    assert [moment(motion, number) for number in range(3)] == ["step 0", "step 1", "step 2"]
    assert frame_rate(motion) == 10
    assert pace_of(motion) == pytest.approx(0.1)


def test_large_pictures_are_made_smaller_and_small_ones_kept():
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (50, 70, 3), np.uint8)
    np.testing.assert_array_equal(packed(small).pixels, small)
    large = np.zeros((LARGEST, 3 * LARGEST, 3), np.uint8)
    large[:, : LARGEST * 3 // 2] = GREEN
    kept = packed(large).pixels
    assert kept.shape == (round(LARGEST / 3), LARGEST, 3)
    np.testing.assert_array_equal(kept[5, [5, -5]], [GREEN, (0, 0, 0)])


def test_pictures_are_pasted_into_squares_of_their_own_colour():
    painter = Pasted([[packed(column_at(0.0))]], 120)
    frame = painter.frame(0, 0)
    assert frame.shape == (120, 120, 3)
    assert (frame[:25] == 255).all()  # Above a picture that is half as high as wide.
    assert (frame[-25:] == 255).all()
    green = np.flatnonzero((frame[60] != 255).any(-1))
    assert 59 <= green.mean() <= 62


@pytest.mark.parametrize(("kind", "said"), [
    (Blind, "has no poses to draw, as mazes, robots and environments on MuJoCo have, and draws no pictures "
            "itself: render_mode='rgb_array' is not among"),
    (Deaf, "draws no pictures: what makes it has to take render_mode"),
    (Broken, "draws no pictures: ImportError: pygame is not installed"),
    (Grey, r"draws no pictures: render\(\) gave float64 of shape \(30, 60\)"),
])  # fmt: skip
def test_what_cannot_be_drawn_is_refused(kind, said):
    name = hand_over(kind)
    with pytest.raises(UserError, match=f"^{name} {said}") as refused:
        draws_itself(name)
    assert "\n" not in str(refused.value)


def test_a_function_that_asks_for_pictures_itself_needs_no_option():
    assert draws_itself(hand_over(lambda: Dial("rgb_array"), "drawing"))


def test_films_filmstrips_and_pages_show_them(dial, tmp_path, capsys):
    assert main(["video", str(dial), "--out", str(tmp_path), "--size", "64", "--steps", "6", "--no-gif"]) == 0
    assert "drawn by the environment itself" in capsys.readouterr().out
    film = importlib.import_module("imageio").get_reader(tmp_path / "skill-1.mp4")
    motion = motion_of(look_at(dial), 250, 6)
    painter = Pasted(motion.pictures, 64)  # type: ignore[arg-type]
    frames = [np.asarray(frame) for frame in film]
    assert len(frames) == motion.frames
    for number, frame in enumerate(frames):
        assert np.abs(frame.astype(int) - painter.frame(1, number)).mean() < 12  # Films are coded with losses.

    assert main(["filmstrip", str(dial), "--out", str(tmp_path / "strip.png"), "--size", "64", "--frames", "3"]) == 0
    assert Image.open(tmp_path / "strip.png").height > 3 * 64

    assert main(["gallery", str(dial), "--export", str(tmp_path / "page.html"), "--steps", "6"]) == 0
    assert (tmp_path / "page.html").stat().st_size > 100_000


class Handle:
    def __init__(self, **properties: Any):
        self.__dict__.update(properties)


class Wall:
    """Keeps what is hung on it."""

    def __init__(self):
        self.pictures: list[Any] = []
        self.labels: list[Any] = []

    def add_image(self, name: str, image: np.ndarray, width: float, height: float, **rest: Any) -> Handle:
        self.pictures.append(Handle(name=name, image=image, width=width, height=height, visible=True, **rest))
        return self.pictures[-1]

    def add_label(self, name: str, text: str, **rest: Any) -> Handle:
        self.labels.append(Handle(name=name, text=text, visible=True, **rest))
        return self.labels[-1]

    def add_line_segments(self, *rest: Any, **more: Any) -> None:
        pass


def test_a_page_shows_each_skills_picture_of_a_frame_and_sends_none_twice():
    values = np.array([[0.0, 0.5, 1.0], [0.0, -0.5, -0.5]])
    first, second = ([packed(column_at(value)) for value in row] for row in values)
    wall = Wall()
    stage = PictureStage(wall, [3, 7], [first, [*second[:2], second[1]]], ["skill 3", "skill 7"])
    stage.show(1)
    for handle, row in zip(wall.pictures, values, strict=True):
        np.testing.assert_array_equal(handle.image, column_at(row[1]))
    wall.pictures[1].image = None
    stage.show(2)
    np.testing.assert_array_equal(wall.pictures[0].image, column_at(1.0))
    assert wall.pictures[1].image is None  # The same as before.
    assert wall.pictures[0].height == 0.5
    stage.pick(1)
    assert [one.visible for one in wall.pictures + wall.labels] == [False, True, False, True]

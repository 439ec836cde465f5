"""Other people's environments whose observations are images: found, resized, and learned from like any others."""

import csv
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from golden.pieg import weights_of
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit
from PIL import Image as Pillow

from becl.commands.cli import main
from becl.envs.external import GymBatch, hand_over
from becl.envs.images import find_image, resized
from becl.envs.pictures import Pictures, ScreenEye, in_numbers
from becl.envs.spec import Images
from becl.errors import UserError
from becl.experiments.encoder_weights import Weights, save_weights
from becl.experiments.pretraining import load_pretraining, make_pretraining
from becl.nn.frozen import shapes_of
from becl.options import PretrainOptions

HEIGHT, WIDTH, LENGTH = 24, 20, 12


class Dot(gymnasium.Env):
    """A bright square that is pushed about; its picture says where it is and how many steps were taken."""

    observation_space: Any = spaces.Box(0, 255, (HEIGHT, WIDTH, 3), np.uint8)
    action_space: Any = spaces.Box(-1, 1, (2,))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.place, self.steps = self.np_random.uniform(0.2, 0.8, 2), 0
        return self.shown(), {}

    def step(self, action: Any) -> Any:
        self.place = np.clip(self.place + 0.1 * np.asarray(action), 0, 1)
        self.steps += 1
        return self.shown(), float(self.place[0]), bool(self.place[1] >= 1), False, {}

    def picture(self) -> np.ndarray:
        image = np.full((HEIGHT, WIDTH, 3), 10 * self.steps, np.uint8)
        row, column = (self.place * (HEIGHT - 5, WIDTH - 5)).astype(int)
        image[row : row + 5, column : column + 5] = (255, 200, 0)
        return image

    def shown(self) -> Any:
        return self.picture()


class Both(Dot):
    """The same in grey, channels first, beside numbers; it is pushed one of three ways."""

    action_space: Any = spaces.Discrete(3)

    observation_space = spaces.Dict(
        {"camera": spaces.Box(0, 255, (1, HEIGHT, WIDTH), np.uint8), "speed": spaces.Box(-1, 1, (2,))}
    )

    def step(self, action: Any) -> Any:
        return super().step(((1, 0), (-1, 0), (0, 1))[int(action)])

    def shown(self) -> Any:
        return {"camera": self.picture()[None, ..., 0], "speed": np.zeros(2, np.float32)}


def dot() -> Any:
    return TimeLimit(Dot(), LENGTH)


def both() -> Any:
    return TimeLimit(Both(), LENGTH)


NAME = "py:test_images:dot"
SEEN = ["vision.size=16", "vision.encoder.filters=4", "vision.encoder.layers=2", "batch=8", "replay.capacity=100"]
SEEN += ["random_steps=10"]


@pytest.fixture(autouse=True)
def _known(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    hand_over(dot, NAME)
    hand_over(both, "py:test_images:both")


# --- What is an image -------------------------------------------------------------------------------------------------


def box(shape: tuple[int, ...], kind: Any = np.uint8, low: float = 0, high: float = 255) -> spaces.Box:
    return spaces.Box(low, high, shape, kind)


@pytest.mark.parametrize("shape", [(20, 30), (20, 30, 1), (20, 30, 3), (20, 30, 4), (1, 20, 30), (3, 20, 30)])
def test_images_of_any_order_of_axes_become_colours(shape):
    found = find_image(spaces.Dict({"a": spaces.Tuple([box((2,)), box(shape)]), "b": box((3,), np.float32, -1, 1)}))
    assert found is not None
    assert (found.path, found.height, found.width, found.others) == (("a", 1), 20, 30, ("a.0", "b"))
    pixels = np.random.default_rng(0).integers(0, 256, (5, *shape), np.uint8)
    frames = found.of({"a": [None, pixels]})
    assert frames.shape == (5, 20, 30, 3)
    for number in range(5):
        one = pixels[number]
        plain = one[..., None] if one.ndim == 2 else one.transpose(1, 2, 0) if shape[0] < 4 else one
        for color in range(3):
            np.testing.assert_array_equal(frames[number, ..., color], plain[..., min(color, plain.shape[-1] - 1)])
        np.testing.assert_array_equal(found.of({"a": [None, one]}), frames[number])


@pytest.mark.parametrize(
    "space",
    [box((8,)), box((7, 7, 3)), box((20, 30), np.float32), box((20, 30, 3), np.float32, -9, 9), spaces.Discrete(3)],
)
def test_numbers_are_no_images(space):
    assert find_image(space) is None


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (box((20, 30, 3), np.float32, 0, 1), r"shape \(20, 30, 3\) and type float32: images are of bytes"),
        (box((20, 30, 7)), r"shape \(20, 30, 7\) and type uint8: images have 1, 3 or 4 channels"),
        (spaces.Dict({"l": box((20, 30, 3)), "r": box((20, 30, 3))}), r"has 2 images \(l, r\): one is supported"),
    ],
)
def test_what_is_almost_an_image_is_refused(space, said):
    with pytest.raises(UserError, match=said):
        find_image(space)


@pytest.mark.parametrize("size", [(16, 16), (48, 33), (24, 20)])
def test_resizing_is_that_of_pillow(size):
    frames = np.random.default_rng(0).integers(0, 256, (3, HEIGHT, WIDTH, 3), np.uint8)
    found = np.asarray(resized(frames, *size))
    assert found.dtype == np.uint8
    for frame, other in zip(found, frames, strict=True):
        expected = Pillow.fromarray(other).resize(size[::-1], Pillow.Resampling.BILINEAR)
        assert np.abs(frame.astype(int) - np.asarray(expected)).max() <= 1


# --- What is seen -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", [1, 2])
def test_frames_are_stacked_within_an_episode(repeat):
    """By a loop over environments that go through the same episodes on their own."""
    pictures = Pictures(GymBatch(dot, 2, 0, images=True), ScreenEye(16), Images(16, 16, 3, 3), repeat)
    plain = GymBatch(dot, 2, 0, images=True)
    now = plain.reset()
    history = [np.asarray(resized(now, 16, 16))] * 3
    np.testing.assert_array_equal(pictures.reset(), np.concatenate(history, -1))
    random, ends = np.random.default_rng(0), 0
    for _ in range(30 // repeat):
        action = random.uniform(-1, 1, (2, 2)).astype(np.float32)
        step = pictures.step(action)
        steps = [plain.step(action) for _ in range(repeat)]
        for n in range(2):
            over = [bool(one.truncated[n]) for one in steps]
            last = over.index(True) if any(over) else repeat - 1
            before = [frame[n] for frame in history[1:]]
            led_to = np.concatenate([*before, np.asarray(resized(steps[last].next_obs[n][None], 16, 16))[0]], -1)
            np.testing.assert_array_equal(step.next_obs[n], led_to)
            assert step.reward[n] == pytest.approx(sum(one.reward[n] for one in steps[: last + 1]))
            assert step.truncated[n] == any(over)
            ends += any(over)
        first = np.asarray(resized(steps[-1].obs, 16, 16))
        ended = step.truncated[:, None, None, None]
        history = [*(np.where(ended, first, frame) for frame in history[1:]), first]
        np.testing.assert_array_equal(step.obs, np.concatenate(history, -1))
        told = in_numbers(pictures, step)
        assert told.obs.shape == (2, 64)
        assert 0 <= told.obs.min() < told.obs.max() <= 1
    assert ends > 2
    assert not pictures.resumable


# --- Runs -------------------------------------------------------------------------------------------------------------


def command(env: str, out: Path, *settings: str) -> list[str]:
    words = ["pretrain", env, "--method", "diayn", "--skills", "3", "--steps", "60", "--envs", "2", "--hidden", "16"]
    return [*words, "--log-every", "30", "--set", *SEEN, *settings, "--out", str(out)]


def rows(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.open()))


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    hand_over(dot, NAME)
    out = tmp_path_factory.mktemp("dot") / "run"
    assert main(command(NAME, out)) == 0
    return out


def test_an_image_is_learned_from_without_being_asked_for(run, capsys):
    spec = load_pretraining(run)
    assert spec.run.vision is not None
    assert (spec.run.vision.repeat, spec.run.vision.size, spec.run.env.episode_length) == (1, 16, LENGTH)
    assert [row["step"] for row in rows(run / "metrics.csv")] == ["30", "60"]


def test_what_is_made_of_an_image_is_said(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("becl.experiments.pretrainer.time_loop", lambda planned: 100.0)
    assert main([*command("py:test_images:both", tmp_path / "run"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "images: 24×20 of py:test_images:both, resized to 16×16 (vision.size); not seen: speed\n" in said
    assert not (tmp_path / "run").exists()


def test_later_commands_see_too(run, tmp_path, capsys):
    out = tmp_path / "tuned"
    steps = ["--steps", "40", "--eval-every", "40", "--eval-episodes", "1", "--final-episodes", "2"]
    assert main(["finetune", str(run), *steps, "--set", "random_steps=10", "--out", str(out)]) == 0
    assert "images: 24×20" in capsys.readouterr().out
    assert len(rows(out / "final.csv")) == 1
    assert main(["evaluate", str(run), "--episodes", "2", "--out", str(tmp_path / "measured")]) == 0
    found = rows(tmp_path / "measured" / "zero-shot-60.csv")
    assert [row["skill"] for row in found] == ["0", "1", "2"]
    assert all(0 < float(row["return"]) < LENGTH for row in found)


def test_pieg_sees_other_peoples_images(tmp_path):
    """Also where what the frozen layers make of them is kept, and where actions are choices."""
    weights = tmp_path / "weights.safetensors"
    save_weights(Weights("efficientnet-lite0", weights_of(shapes_of("efficientnet-lite0"))), weights)
    words = [word for word in command("py:test_images:both", tmp_path / "run") if not word.startswith("vision.encoder")]
    words.insert(words.index("--out"), "vision.shift=0")
    words.insert(words.index("--out"), "vision.encoder.statistics=fixed")
    assert main([*words, "--encoder", "pieg", "--encoder-weights", str(weights)]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())["run"]
    assert config["vision"]["encoder"]["statistics"] == "fixed"
    assert config["env"] == [16, 3, LENGTH, True]


def test_a_run_that_is_resumed_begins_new_episodes(run, tmp_path, monkeypatch):
    from becl.runs import session as session_file

    class Stopped(Exception): ...

    def stop(self: Any, *args: Any, after: Any = session_file.Session._advance) -> None:
        after(self, *args)
        if self.step >= 40:
            raise Stopped

    out = tmp_path / "stopped"
    with monkeypatch.context() as patched:
        patched.setattr(session_file.Session, "_advance", stop)
        with pytest.raises(Stopped):
            main([*command(NAME, out), "--checkpoint-every", "30"])
    assert main(["resume", str(out), "--trust"]) == 0
    assert [row["step"] for row in rows(out / "metrics.csv")] == ["30", "60"]


def test_environments_of_numbers_stay_as_they_are():
    planned = make_pretraining(PretrainOptions("gym:Pendulum-v1", "diayn", steps=10_000))
    assert planned.run.vision is None
    assert planned.run.env == (3, 1, 200, False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gym:Pendulum-v1", "--pixels"], "--pixels: no observation of gym:Pendulum-v1 is an image"),
        ([NAME, "--set", "vision.size=10"], "vision.size 10: the encoder needs images of 15 pixels"),
        ([NAME, "--normalize-obs"], "--normalize-obs: only for observations of numbers"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["pretrain", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())

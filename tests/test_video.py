"""Films, filmstrips and trajectories: files that others can read, and input that is refused in one line."""

import contextlib
import os
from pathlib import Path

import imageio
import jax.numpy as jnp
import numpy as np
import pytest
from gallery_runs import make_run, skilless, square, tuned, walker  # noqa: F401
from PIL import Image

from becl.commands.cli import main
from becl.measure.estimators import alignment_and_uniformity
from becl.objectives.encoder import encode
from becl.runs.writing import whole
from becl.views.figures.skills import coverage_map, skill_paths
from becl.views.filmstrip import liveliest, strip
from becl.views.poses import Motion, look_at
from becl.views.trajectories import features_of
from becl.views.video import frame_rate, labelled, mp4, smaller, tiled, write_gif

SHORT = ["--steps", "8", "--renderer", "rays"]


def frames_of(path: Path) -> list[np.ndarray]:
    with contextlib.closing(imageio.get_reader(path)) as reader:
        return [np.asarray(frame) for frame in reader]  # type: ignore[arg-type]


class TestVideo:
    def test_films_every_skill_and_all_together(self, walker, tmp_path, capsys):  # noqa: F811
        words = ["video", str(walker), "--out", str(tmp_path / "films"), "--frames", "6", "--size", "32", *SHORT]
        assert main([*words, "--skills", "0", "2", "3"]) == 0
        names = {f"{name}.{kind}" for name in ("skill-0", "skill-2", "skill-3", "skills") for kind in ("mp4", "gif")}
        assert {path.name for path in (tmp_path / "films").iterdir()} == names
        film = frames_of(tmp_path / "films" / "skill-2.mp4")
        assert len(film) == 6
        assert film[0].shape == (32, 32, 3)
        assert film[0].std() > 5
        grid = frames_of(tmp_path / "films" / "skills.mp4")
        assert len(grid) == 6
        assert grid[0].shape == (64, 64, 3)
        assert grid[0][32:, 32:].min() > 240  # Three of four places are taken.
        assert Image.open(tmp_path / "films" / "skills.gif").size == (64, 64)
        assert "drawn by rays: as asked for" in capsys.readouterr().out

    def test_films_a_maze_on_its_floor_plan(self, square, tmp_path, capsys):  # noqa: F811
        words = ["video", str(square), "--out", str(tmp_path), "--frames", "4", "--size", "64", "--no-gif", *SHORT]
        assert main(words) == 0
        assert len(list(tmp_path.iterdir())) == 5
        assert len(frames_of(tmp_path / "skills.mp4")) == 4
        assert "floor plan" in capsys.readouterr().out

    def test_films_what_was_finetuned(self, tuned, tmp_path, capsys):  # noqa: F811
        words = ["video", str(tuned), "--out", str(tmp_path), "--frames", "4", "--size", "32", "--no-gif", *SHORT]
        assert main([*words, "--seed", "1"]) == 0
        names = {"walker_run-seed-1.mp4", "walker_stand-seed-1.mp4", "tasks.mp4"}
        assert {path.name for path in tmp_path.iterdir()} == names
        run, stand = (frames_of(tmp_path / f"walker_{task}-seed-1.mp4") for task in ("run", "stand"))
        assert len(run) == len(stand) == 4
        assert any(np.abs(a.astype(int) - b).max() > 30 for a, b in zip(run, stand, strict=True))  # Policies differ.
        assert frames_of(tmp_path / "tasks.mp4")[0].shape == (32, 64, 3)
        assert "becl on walker_run, seed 1, finetuned for 60 steps" in capsys.readouterr().out

    @pytest.mark.parametrize(("seconds", "rate"), [(0.1, 10), (0.001, 60), (5.0, 1)])
    def test_runs_as_fast_as_the_robot(self, seconds, rate):
        assert frame_rate(Motion([0], np.zeros((1, 2, 1)), seconds)) == pytest.approx(rate)

    def test_a_film_that_fails_leaves_nothing(self, tmp_path):
        def fail() -> None:
            with whole(tmp_path / "film.mp4") as part:
                part.write_text("half")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            fail()
        assert not list(tmp_path.iterdir())

    def test_a_gif_has_the_frames_and_colours_of_its_film(self, tmp_path):
        with mp4(tmp_path / "film.mp4", 5.0) as writer:
            for level in (40, 90, 140, 190):
                writer.append_data(np.full((32, 32, 3), level, np.uint8))
        gif = Image.open(write_gif(tmp_path / "film.mp4", 5.0, 100))
        assert gif.n_frames == 4  # type: ignore[attr-defined]
        shades = []
        for number in range(4):
            gif.seek(number)
            shades.append(int(np.asarray(gif.convert("L")).mean()))
        np.testing.assert_allclose(shades, (40, 90, 140, 190), atol=6)


class TestPictures:
    def test_are_tiled_row_by_row(self):
        pictures = [np.full((20, 20, 3), 10 * number, np.uint8) for number in range(5)]
        grid = tiled(pictures, list("01234"))
        assert grid.shape == (40, 60, 3)
        assert [int(grid[top + 15, left + 15, 0]) for top in (0, 20) for left in (0, 20, 40)] == [
            0, 10, 20, 30, 40, 255
        ]  # fmt: skip

    def test_get_numbers_in_their_corner_only(self):
        plain = np.full((100, 100, 3), 120, np.uint8)
        changed = (labelled(plain, "7") != plain).any(-1)
        assert changed[:20, :20].any()
        assert not changed[30:].any()

    def test_are_averaged(self):
        picture = np.kron(np.array([[0, 200], [100, 40]], np.uint8), np.ones((2, 2), np.uint8))[..., None]
        assert smaller(np.repeat(picture, 3, axis=2), 2)[..., 0].tolist() == [[0, 200], [100, 40]]
        checks = np.tile(np.array([[0, 100], [100, 0]], np.uint8), (2, 2))[..., None]
        assert smaller(np.repeat(checks, 3, axis=2), 2)[..., 0].tolist() == [[50, 50], [50, 50]]


LINE = 11
"""Height of a line that says which run and seed a strip is of."""


class TestFilmstrip:
    def test_has_a_row_a_skill(self, walker, tmp_path):  # noqa: F811
        out = tmp_path / "strip.png"
        words = ["filmstrip", str(walker), "--out", str(out), "--frames", "3", "--size", "48", "--skills", "1", "0"]
        assert main([*words, *SHORT]) == 0
        picture = Image.open(out)
        assert picture.format == "PNG"
        gap = 2
        assert picture.height == 2 * (48 + gap) + 2 * 9 + LINE
        assert picture.width > 3 * (48 + gap)

    def test_has_a_row_a_run(self, square, tmp_path, capsys):  # noqa: F811
        other = make_run(tmp_path / "diayn", "square_a", "diayn")
        out = tmp_path / "strip"
        assert main(["filmstrip", str(square), str(other), "--out", str(out), "--frames", "2", "--size", "40"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"{out}.png"
        assert Image.open(f"{out}.png").height == 2 * (40 + 2) + 2 * 9 + 2 * LINE

    def test_has_a_row_a_finetuned_task(self, tuned, walker, tmp_path):  # noqa: F811
        out = tmp_path / "strip.png"
        words = ["--out", str(out), "--frames", "2", "--size", "40", *SHORT]
        assert main(["filmstrip", str(tuned), *words]) == 0
        assert Image.open(out).height == 2 * (40 + 2) + 2 * 9 + LINE
        assert main(["filmstrip", str(walker), str(tuned), *words]) == 0
        assert Image.open(out).height == 3 * (40 + 2) + 2 * 9 + 2 * LINE

    def test_of_several_runs_shows_the_skill_that_moves_most(self):
        poses = np.zeros((3, 5, 2))
        poses[1] = np.arange(5)[:, None] % 2
        poses[2] = np.linspace(0, 1, 5)[:, None]
        assert liveliest(Motion([4, 5, 6], poses, 1.0)) == 1

    def test_keeps_the_pictures_as_they_are(self):
        rng = np.random.default_rng(0)
        rows = [[rng.integers(0, 255, (32, 32, 3), np.uint8) for _ in range(2)] for _ in range(2)]
        sheet = strip(["a", "b"], rows, ["0 s", "1 s"])
        for row, top in zip(rows, (0, 34), strict=True):
            for picture, left in zip(row, (sheet.shape[1] - 68, sheet.shape[1] - 34), strict=True):
                np.testing.assert_array_equal(sheet[top : top + 32, left : left + 32], picture)


class TestTrajectories:
    def test_of_becl_are_three_figures(self, square, tmp_path):  # noqa: F811
        assert main(["trajectories", str(square), "--out", str(tmp_path), "--episodes", "2"]) == 0
        names = {f"{name}.{kind}" for name in ("trajectories", "coverage", "features") for kind in ("png", "svg")}
        assert {path.name for path in tmp_path.iterdir()} == names
        assert all(min(Image.open(path).size) > 400 for path in tmp_path.glob("*.png"))

    def test_of_others_are_two(self, tmp_path):
        run = make_run(tmp_path / "run", "square_a", "diayn")
        assert main(["trajectories", str(run), "--episodes", "1", "--skills", "0", "3"]) == 0
        assert {path.stem for path in (run / "gallery").iterdir()} == {"trajectories", "coverage"}

    def test_features_are_those_of_the_objective(self, square):  # noqa: F811
        from becl.experiments.snapshots import load_snapshot
        from becl.measure.skills import rollout

        look = look_at(square)
        learner, objective = load_snapshot(look.pretraining, look.path)
        done = rollout(learner.actor, "square_a", look.vectors, 2)
        found = features_of(look, done, learner, objective)
        assert found is not None
        assert found.shape[:3] == (4, 2, 40)
        np.testing.assert_allclose(np.linalg.norm(found, axis=-1), 1, rtol=1e-5)
        last = encode(objective, jnp.asarray(done.obs[1, 0, -1]))
        np.testing.assert_allclose(found[1, 0, -1], last, atol=1e-5)

    def test_alignment_and_uniformity_are_those_of_naive_loops(self):
        rng = np.random.default_rng(0)
        features = rng.standard_normal((2, 3, 2, 4))
        features /= np.linalg.norm(features, axis=-1, keepdims=True)
        same, everything = [], []
        points = [(skill, episode, features[skill, episode, state]) for skill, episode, state in np.ndindex(2, 3, 2)]
        for i, (skill, episode, one) in enumerate(points):
            for j, (other_skill, other_episode, other) in enumerate(points):
                squared = np.sum((one - other) ** 2)
                if i != j:
                    everything.append(np.exp(-2 * squared))
                if skill == other_skill and episode != other_episode:
                    same.append(squared)
        expected = (np.mean(same), np.log(np.mean(everything)))
        np.testing.assert_allclose(alignment_and_uniformity(features), expected)

    @pytest.mark.parametrize("axes", [1, 2])
    def test_paths_begin_at_the_origin(self, axes):
        place = np.cumsum(np.random.default_rng(0).standard_normal((3, 2, 10, axes)), axis=2) + 5
        drawn = skill_paths(place, 0.5, [0, 4, 11], "a title").axes[0]
        lines = drawn.get_lines()
        assert len(lines) == 6 + 3 + (axes == 2)
        for line, path in zip(lines, [*place.reshape(6, 10, axes), *place.mean(1)], strict=False):
            x, y = (np.asarray(data) for data in line.get_data())
            np.testing.assert_allclose(y, path[:, -1] - path[0, -1])
            np.testing.assert_allclose(x, np.arange(10) * 0.5 if axes == 1 else path[:, 0] - path[0, 0])
        widths = [line.get_linewidth() for line in lines]
        assert min(widths[6:9]) > 2 * max(widths[:6])  # The mean of each skill is bold.

    def test_coverage_counts_states_and_skills(self):
        from becl.measure.coverage import Axis

        points = np.array([[[0.1, 0.1], [0.1, 0.2], [2.0, 0.9]], [[0.4, 0.4], [0.9, 0.9], [0.9, -3.0]]])
        figure = coverage_map(points, [Axis("x", 0, 1, 2), Axis("y", 0, 1, 2)], "a title")
        visits, skills = (np.ma.filled(one.collections[0].get_array(), 0.0) for one in figure.axes[:2])  # type: ignore
        np.testing.assert_allclose(visits.reshape(2, 2), [[3 / 6, 1 / 6], [0, 2 / 6]])
        np.testing.assert_allclose(skills.reshape(2, 2), [[2, 1], [0, 2]])


class TestReport:
    def test_shows_what_there_is_to_look_at(self, walker, tmp_path):  # noqa: F811
        folder = walker / "gallery"
        folder.mkdir()
        rng = np.random.default_rng(0)
        pixels = rng.integers(0, 255, (60, 90, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "filmstrip.png")
        (folder / "coverage.png").write_text("no picture")
        for name in ("page.html", "skills.mp4"):
            (folder / name).write_text("")
        assert main(["report", str(walker), "--out", str(tmp_path / "report")]) == 0
        page = (tmp_path / "report" / "index.html").read_text()
        for name in ("page.html", "skills.mp4"):
            assert f'href="{os.path.relpath(folder / name, tmp_path / "report")}"' in page
        assert "coverage.png cannot be read" in page
        kept = Image.open(tmp_path / "report" / "figures" / "gallery-0-filmstrip.png").convert("RGB")
        np.testing.assert_array_equal(np.asarray(kept), pixels)


BAD = [
    (["video", "{skilless}"], "rnd has no skills"),
    (["filmstrip", "{skilless}"], "rnd has no skills"),
    (["trajectories", "{skilless}"], "rnd has no skills"),
    (["video", "{walker}", "--skills", "9"], "--skills 9: the run has skills 0 to 3"),
    (["video", "{walker}", "--snapshot", "150"], "--snapshot 150: {walker} has 100, 200"),
    (["video", "{walker}", "--seed", "7"], "--seed 7: {walker} has 0, 1"),
    (["video", "{walker}", "--size", "33"], "--size 33: an even number"),
    (["video", "{walker}", "--frames", "1"], "--frames 1: at least 2"),
    (["filmstrip", "{walker}", "--out", "{walker}"], "{walker} is a folder"),
    (["filmstrip", "{walker}", "{square}", "{walker}", "--skills", "0", "1"], "2 for 3 runs"),
    (["filmstrip"], "runs"),
    (["trajectories", "{walker}", "--episodes", "0"], "--episodes 0: at least 1"),
    (["video", "{tuned}", "--skills", "1"], "--skills 1: each policy of {tuned} has learned with a skill of its own"),
    (["video", "{tuned}", "--snapshot", "60"], "--snapshot 60: a finetuned run keeps its last policy only"),
    (["filmstrip", "{tuned}", "--seed", "7"], "--seed 7: {tuned} has 0, 1"),
    (["gallery", "{tuned}"], "{tuned} holds no pretraining run"),
]


@pytest.mark.parametrize(("words", "said"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_bad_input_is_one_line(words, said, walker, square, skilless, tuned, tmp_path, monkeypatch, capsys):  # noqa: F811
    places = {"walker": walker, "square": square, "skilless": skilless, "tuned": tuned}
    monkeypatch.chdir(tmp_path)
    assert main([word.format(**places) for word in words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said.format(**places) in error
    assert not list(tmp_path.iterdir())

"""The gallery without a browser: what is shown where, what is written beside it, and what is refused."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gallery_runs import make_run, skilless, square, walker  # noqa: F401
from gymnasium.spaces import Box

from becl.commands.cli import main
from becl.envs import DOMAINS, maze
from becl.envs.external import hand_over
from becl.views.gallery import numbers as gallery_numbers
from becl.views.gallery import server as gallery_server
from becl.views.gallery.gate import open_gate
from becl.views.gallery.numbers import Numbers, kept, label, numbers_of, table
from becl.views.gallery.page import Page
from becl.views.gallery.scene import (
    MARGIN,
    MazeStage,
    RobotStage,
    angles_of,
    extent,
    layout_of,
    moves,
    stage_of,
)
from becl.views.gallery.shapes import parts_of
from becl.views.poses import Bodies, Motion, bodies_of, look_at, motion_of
from becl.views.seen import SeenMoments


class Handle:
    """A thing in a scene, its properties as they were last set."""

    def __init__(self, **properties: Any):
        self.__dict__.update(properties)


class Scene:
    """Stands in for viser's: remembers what is in it."""

    def __init__(self) -> None:
        self.things: dict[str, Any] = {}

    def add_batched_meshes_simple(self, name, vertices, faces, batched_wxyzs, batched_positions, **rest) -> Handle:
        self.things[name] = Handle(vertices=vertices, faces=faces, batched_wxyzs=batched_wxyzs,
                                   batched_positions=batched_positions, **rest)  # fmt: skip
        return self.things[name]

    def add_label(self, name, text, **rest) -> Handle:
        self.things[name] = Handle(text=text, visible=True, **rest)
        return self.things[name]

    def add_line_segments(self, name, points, color, **rest) -> Handle:
        self.things[name] = Handle(points=points, color=color, visible=True, **rest)
        return self.things[name]

    def add_image(self, name, image, width, height, **rest) -> Handle:
        self.things[name] = Handle(image=image, visible=True, **rest)
        return self.things[name]

    def add_box(self, name, **rest) -> Handle:
        self.things[name] = Handle(**rest)
        return self.things[name]

    def add_mesh_simple(self, name, vertices, faces, **rest) -> Handle:
        self.things[name] = Handle(vertices=vertices, faces=faces, **rest)
        return self.things[name]


def random_motion(name: str, skills: int = 5, frames: int = 4, stride: float = 0.0) -> Motion:
    """Joints anywhere; the root goes `stride` metres a frame along x."""
    model = DOMAINS[name].model()
    rng = np.random.default_rng(0)
    poses = np.tile(model.qpos0, (skills, frames, 1)) + 0.1 * rng.standard_normal((skills, frames, model.nq))
    if name == "walker":
        poses[:, :, 1] = stride * np.arange(frames)
    return Motion(list(range(skills)), poses, 0.1, model, DOMAINS[name].camera)


class TestRobotStage:
    @pytest.mark.parametrize("name", ["walker", "quadruped"])
    def test_bodies_stand_where_mujoco_has_them_less_the_layout(self, name):
        motion, scene = random_motion(name), Scene()
        stage = RobotStage(scene, motion, [f"skill {i}" for i in motion.names])
        stage.show(2)
        bodies = bodies_of(motion)
        for number, part in enumerate(parts_of(motion.model)):  # type: ignore[arg-type]
            mesh = scene.things[f"/part-{number}"]
            place = bodies.position[:, 2, part.body] - stage.layout.shift[:, 2] + stage.layout.origins
            np.testing.assert_allclose(mesh.batched_positions, place, atol=1e-5)
            np.testing.assert_allclose(mesh.batched_wxyzs, bodies.turn[:, 2, part.body], atol=1e-6)

    def test_skills_keep_out_of_each_others_squares(self):
        motion = random_motion("walker", skills=7)
        bodies, parts = bodies_of(motion), parts_of(motion.model)  # type: ignore[arg-type]
        layout = layout_of(bodies, parts, moves(motion))
        low, high = extent(bodies, parts, layout.shift)
        assert high[0] - low[0] <= layout.side
        assert high[1] - low[1] <= layout.depth
        apart = np.abs(layout.origins[:, None] - layout.origins[None]) + 1e-9
        assert ((apart[..., 0] >= layout.side) | (apart[..., 1] >= layout.depth) | np.eye(7, dtype=bool)).all()

    @pytest.mark.parametrize(("stride", "kept_in_place"), [(0.01, False), (3.0, True)])
    def test_robots_that_walk_away_are_kept_in_place(self, stride, kept_in_place):
        motion = random_motion("walker", stride=stride)
        layout = layout_of(bodies_of(motion), parts_of(motion.model), moves(motion))  # type: ignore[arg-type]
        way = np.ptp(layout.shift[:, :, 0], axis=1)
        np.testing.assert_allclose(way, 3 * stride if kept_in_place else 0.0, atol=1e-9)

    def test_an_arm_stays_where_it_is(self):
        assert moves(random_motion("walker"))
        assert moves(random_motion("quadruped"))
        assert not moves(random_motion("jaco", skills=1, frames=1))

    def test_one_skill_can_be_picked(self):
        motion, scene = random_motion("walker", skills=3), Scene()
        stage = RobotStage(scene, motion, ["a", "b", "c"])
        stage.pick(1)
        assert scene.things["/part-0"].batched_scales.tolist() == [0, 1, 0]
        assert not any(scene.things[f"/label-{i}"].visible for i in range(3))
        stage.pick(None)
        assert all(scene.things[f"/label-{i}"].visible for i in range(3))
        assert scene.things["/part-0"].batched_scales.tolist() == [1, 1, 1]

    def test_screens_show_what_was_seen_last(self):
        motion, scene = random_motion("walker", skills=2, frames=7), Scene()
        pictures = np.random.default_rng(0).integers(0, 256, (2, 3, 8, 8, 3), np.uint8)
        stage = stage_of(scene, motion, ["a", "b"], SeenMoments(pictures, np.array([0, 3, 6])))
        for frame, moment in enumerate([0, 0, 0, 1, 1, 1, 2]):
            stage.show(frame)
            for skill in range(2):
                np.testing.assert_array_equal(scene.things[f"/screen-{skill}"].image, pictures[skill, moment])
        stage.pick(1)
        assert [scene.things[f"/screen-{skill}"].visible for skill in range(2)] == [False, True]
        assert not scene.things["/label-1"].visible

    def test_all_squares_are_seen_whatever_the_windows_shape(self):
        stage = RobotStage(Scene(), random_motion("walker", skills=7), [""] * 7)
        aside, up = angles_of(stage.camera, stage.corners)
        # A camera that looks along y and down: its axes by hand.
        slope = np.arctan2(*(stage.camera.position - stage.camera.look_at)[[2, 1]])
        turned = stage.corners - stage.camera.position
        ahead = -(turned[:, 1] * np.cos(slope) + turned[:, 2] * np.sin(slope))
        above = np.abs(-turned[:, 1] * np.sin(slope) + turned[:, 2] * np.cos(slope))
        assert (ahead > 0).all()
        assert (np.abs(turned[:, 0]) / ahead).max() == pytest.approx(aside / MARGIN)
        assert (above / ahead).max() == pytest.approx(up / MARGIN)

    def test_labels_look_equally_large_in_every_row(self):
        scene = Scene()
        stage = RobotStage(scene, random_motion("walker", skills=9), [""] * 9)
        heights = [scene.things[f"/label-{i}"].font_scene_height for i in range(9)]
        away = np.linalg.norm(stage.layout.origins - stage.camera.position, axis=1)
        np.testing.assert_allclose(heights / away, heights[7] / away[7])
        assert heights[7] == min(heights)  # In the middle of the front row.
        assert heights[1] > 1.2 * heights[7]

    def test_extent_is_that_of_every_vertex(self):
        motion = random_motion("walker", skills=2, frames=3)
        bodies, parts = bodies_of(motion), parts_of(motion.model)  # type: ignore[arg-type]
        found = extent(bodies, parts, np.zeros((2, 3, 3)))
        low, high = naive_extent(bodies, parts)
        assert (found[0] <= low + 1e-9).all()
        assert (found[1] >= high - 1e-9).all()
        np.testing.assert_allclose(found, (low, high), atol=0.12)  # Boxes around parts are a little larger.


def naive_extent(bodies: Bodies, parts: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    from becl.views.gallery.shapes import rotation

    points = [
        vertex
        for part in parts
        for place in np.ndindex(*bodies.position.shape[:2])
        for vertex in part.vertices @ rotation(bodies.turn[place][part.body]).T + bodies.position[place][part.body]
    ]
    return np.min(points, axis=0), np.max(points, axis=0)


def test_skills_of_a_maze_are_on_its_floor_plan():
    plan = maze.geometry("square_a")
    poses = plan.cells[None, :6].astype(float) + np.zeros((2, 1, 1))
    scene = Scene()
    stage = MazeStage(scene, Motion([0, 1], poses, 1.0, plan=plan))
    stage.show(4)
    middle = np.array([(plan.bounds[0] + plan.bounds[1]) / 2, (plan.bounds[2] + plan.bounds[3]) / 2])
    np.testing.assert_allclose(scene.things["/balls"].batched_positions[:, :2] + middle, poses[:, 4], atol=1e-5)
    floor = scene.things["/floor"].vertices
    assert len(floor) == 4 * len(plan.cells)
    np.testing.assert_allclose(floor[:, :2].min(0) + middle, [plan.bounds[0], plan.bounds[2]], atol=1e-5)
    stage.pick(1)
    assert [scene.things[f"/way-{i}"].visible for i in range(2)] == [False, True]


class TestNumbers:
    def test_are_those_of_the_evaluation(self, walker, tmp_path):  # noqa: F811
        look = look_at(walker, skills=(1, 2))
        assert main(["evaluate", str(walker), "--episodes", "1", "--snapshot", "200", "--seeds", "1"]) == 0
        found = kept(look)
        assert found is not None
        rows = (walker / "evaluation" / "zero-shot-200.csv").read_text()
        for skill, one in zip((1, 2), found, strict=True):
            assert list(one.returns) == ["walker_stand", "walker_walk", "walker_run", "walker_flip"]
            for task, value in one.returns.items():
                assert re.search(rf"^0,{skill},{task},{value:.6g},", rows, re.MULTILINE)
        assert kept(look._replace(snapshot=100)) is None
        (walker / "evaluation" / "result-200.json").write_text("{")
        assert kept(look) is None

    def test_are_measured_otherwise(self, square):  # noqa: F811
        found = numbers_of(look_at(square))
        assert len(found) == 4
        assert all(one.distance is not None and one.distance > 0 and not one.returns for one in found)

    def test_are_written_in_few_words(self):
        numbers = Numbers(0.5312, 264, {"walker_stand": 190.56, "jaco_reach_top_left": 3.2})
        assert label(3, numbers, "m") == "skill 3 · 0.53 m · 264 bins\nstand 191 · top left 3"
        assert label(3, None, "m") == "skill 3"
        long = Numbers(1.0, 2, {f"jaco_reach_{place}": 250.0 for place in ("top_left", "top_right", "bottom_left")})
        assert label(1, long, "m") == "skill 1 · 1 m · 2 bins\ntop left 250\ntop right 250\nbottom left 250"
        assert label(0, Numbers(None, None, {"gym:Hopper-v5": 7.0}), "m") == "skill 0\nreturn 7"

    def test_make_a_table(self, square):  # noqa: F811
        look = look_at(square, skills=(2,))
        head, rows = table(look, [Numbers(1.0, None, {"walker_run": 2.0})], "m")
        assert head == ["skill", "distance (m)", "bins covered", "run"]
        assert rows == [["2", "1.00", "–", "2"]]


class TestExport:
    def test_is_one_file_with_everything_inside(self, walker, tmp_path, capsys):  # noqa: F811
        out = tmp_path / "new" / "page"
        words = ["gallery", str(walker), "--export", str(out), "--frames", "5", "--steps", "10", "--skills", "0", "3"]
        assert main(words) == 0
        page = Path(f"{out}.html").read_text()
        assert f"{out}.html" in capsys.readouterr().out
        assert "__VISER_EMBED_DATA__" in page
        assert "<title>becl on walker, seed 0, 200 steps" in page
        assert re.search(r"<tr><td>3</td><td>[\d.]+</td><td>\d+</td>(<td>\d+</td>){4}</tr>", page)
        assert not re.search(r"""(src|href)=["']https?:""", page)
        assert 0.5e6 < len(page) < 5e6
        assert "{darkMode:matchMedia('(prefers-color-scheme: dark)').matches}" in page
        assert re.search(r"\[aside, up\] = \[\d\.\d+, \d\.\d+\]", page)

    def test_of_a_maze(self, square, tmp_path):  # noqa: F811
        assert main(["gallery", str(square), "--export", str(tmp_path / "maze.html"), "--frames", "5"]) == 0
        assert "distance (cells)" in (tmp_path / "maze.html").read_text()


@pytest.fixture(scope="module")
def page(walker) -> Iterator[Page]:  # noqa: F811
    with gallery_server.server_at(open_gate(), "becl") as server:
        page = Page(server, look_at(walker), frames=6, steps=10)
        page._measuring.join()
        yield page
        page.stop()


@pytest.fixture(autouse=True, scope="module")
def _few_episodes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gallery_numbers, "EPISODES", 1)
        yield


class TestPage:
    """The live page with a real server and no visitor."""

    def test_listens_on_this_machine_only(self, page):
        port = page.server.get_port()
        assert page.server.get_host() == "127.0.0.1"
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        with pytest.raises(OSError):  # noqa: PT011
            socket.create_connection(("127.0.0.2", port), timeout=1)

    def test_moves_with_the_clock_at_its_speed(self, page):
        pace = page.motion.frame_seconds
        page.seek(0)
        page.advance(1.5 * pace)
        assert page.frame == 1
        page._speed.value = 2.0
        page.advance(1.0 * pace)
        assert page.frame == 3
        page.advance(1.5 * pace)
        assert page.frame == 0  # From the beginning again.
        page.pause(True)
        page.advance(10.0)
        assert page.frame == 0
        page.pause(False)

    def test_buttons_pick_skills(self, page):
        page._press("one")
        assert page.skill == 0
        page._press("previous")
        assert page.skill == 3
        page._press("next")
        assert page.skill == 0
        assert "| skill | 0 |" in page._about.content
        page._press("all")
        assert page.skill is None
        assert "| 3 |" in page._about.content

    def test_another_seed_and_snapshot_are_loaded(self, page):
        page.load(1, 100)
        assert (page.look.seed, page.look.snapshot) == (1, 100)
        expected = motion_of(look_at(page.look.folder, 1, 100), 6, 10)
        np.testing.assert_array_equal(page.motion.poses, expected.poses)
        assert "seed 1, 100 steps" in page._about.content
        assert page._time.max == expected.frames - 1

    def test_a_damaged_snapshot_is_told_and_changes_nothing(self, page):
        before = (page.look, page.motion)
        path = page.look.folder / "seed-1" / "snapshot-300.safetensors"
        path.write_text("damaged")
        page.load(1, 300)
        path.unlink()
        assert f"{path} is damaged" in page._about.content
        assert (page.look, page.motion) == before


BAD = [
    (["{skilless}"], "rnd has no skills to look at"),
    (["{walker}", "--skills", "4"], "--skills 4: the run has skills 0 to 3"),
    (["{walker}", "--snapshot", "7"], "--snapshot 7: {walker} has 100, 200"),
    (["{walker}", "--seed", "2"], "--seed 2: {walker} has 0, 1"),
    (["{walker}", "--port", "70000"], "--port 70000: ports are numbers"),
    (["{walker}", "--port", "{port}", "--no-open"], "--port {port}: Address already in use"),
    (["{walker}", "--export", "{walker}"], "{walker} is a folder"),
    (["{walker}", "--frames", "0"], "--frames 0: at least 2"),
    (["{walker}", "--steps", "0"], "--steps 0: at least 1"),
    (["nowhere"], "nowhere holds no run"),
]


@pytest.mark.parametrize(("words", "said"), BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_bad_input_is_one_line(words, said, walker, skilless, tmp_path, monkeypatch, capsys):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        places = {"walker": walker, "skilless": skilless, "port": taken.getsockname()[1]}
        assert main(["gallery", *(word.format(**places) for word in words)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said.format(**places) in error
    assert not list(tmp_path.iterdir())


class Unseen(gymnasium.Env):
    """Has neither poses nor pictures."""

    observation_space = action_space = Box(-1.0, 1.0, (1,))


def test_an_environment_that_cannot_be_shown_is_one_line(tmp_path, capsys):
    run = make_run(tmp_path / "run", hand_over(Unseen), skills=2)
    assert main(["gallery", str(run), "--export", str(tmp_path / "page.html")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Unseen has no poses to draw" in error
    assert not (tmp_path / "page.html").exists()

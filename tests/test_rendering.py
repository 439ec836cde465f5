"""Poses and pictures against MuJoCo's own numbers, closed forms, and OpenGL where there is one."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import mujoco
import numpy as np
import pytest
from gallery_runs import make_run, square, walker  # noqa: F401

from becl.envs import DOMAINS, maze
from becl.errors import UserError
from becl.measure.skills import rollout
from becl.views import rendering
from becl.views.gallery.shapes import parts_of, rotation, shape_of, visible_geoms
from becl.views.poses import Motion, bodies_of, look_at, motion_of, policy_of, record, take_pose, thinned
from becl.views.recorded import pose_of
from becl.views.rendering import FloorPlan, RayCaster, choose_renderer, draws, rays_of

FOVY = 40.0
SCENE = f"""
<mujoco><visual><global offwidth="96" offheight="96"/></visual><worldbody>
  <camera name="side" pos="0 -3 1" xyaxes="1 0 0 0 0 1" fovy="{FOVY}"/>
  <geom name="floor" type="plane" size="50 50 1" rgba="0 1 0 1"/>
  <body pos="0.2 0.5 1.1"><freejoint/><geom name="ball" type="sphere" size="0.4" rgba="1 0 0 1"/></body>
</worldbody></mujoco>"""
SHAPES = """
<mujoco><worldbody><body>
  <geom type="sphere" size=".3"/> <geom type="capsule" size=".1 .4"/> <geom type="ellipsoid" size=".1 .2 .3"/>
  <geom type="box" size=".1 .2 .3"/> <geom type="cylinder" size=".2 .3"/>
</body></worldbody></mujoco>"""


def still(xml: str, camera: str | int = "side") -> Motion:
    model = mujoco.MjModel.from_xml_string(xml)
    return Motion([0], pose_of(model, mujoco.MjData(model))[None, None], 1.0, model, camera)


def pinhole(size: int) -> np.ndarray:
    """Directions through pixels of a camera that looks along +y, from its field of view alone."""
    half = np.tan(np.radians(FOVY) / 2)
    rays = np.zeros((size, size, 3))
    for row in range(size):
        for column in range(size):
            x, z = (2 * (column + 0.5) / size - 1) * half, (1 - 2 * (row + 0.5) / size) * half
            rays[row, column] = np.array([x, 1.0, z]) / np.linalg.norm([x, 1.0, z])
    return rays.reshape(-1, 3)


class TestRays:
    def test_go_through_the_middle_of_pixels(self):
        motion = still(SCENE)
        caster = RayCaster(motion, 32)
        hits = caster.cast(0, 0)
        np.testing.assert_allclose(hits.origin, [0, -3, 1], atol=1e-6)
        np.testing.assert_allclose(hits.direction, pinhole(32), atol=1e-6)
        np.testing.assert_allclose(rays_of(caster._scene, 32)[1], hits.direction)

    def test_meet_the_ball_and_the_floor_where_geometry_says(self):
        hits = RayCaster(still(SCENE), 96).cast(0, 0)
        origin, centre, radius = np.array([0, -3, 1]), np.array([0.2, 0.5, 1.1]), 0.4
        for ray, geom, distance, normal in zip(pinhole(96), hits.geom, hits.distance, hits.normal, strict=True):
            towards = ray @ (centre - origin)
            inside = towards**2 - (centre - origin) @ (centre - origin) + radius**2
            if abs(inside) < 1e-4:
                continue  # At the very edge, either is right.
            if inside > 0:
                expected = towards - np.sqrt(inside)
                assert geom == 1
                np.testing.assert_allclose(normal, (origin + expected * ray - centre) / radius, atol=1e-5)
            elif ray[2] < -0.03:
                expected = -origin[2] / ray[2]
                assert geom == 0
                np.testing.assert_allclose(normal, [0, 0, 1], atol=1e-9)
            else:
                assert ray[2] > -0.03
                continue
            np.testing.assert_allclose(distance, expected, rtol=1e-5)

    def test_colour_what_they_meet(self):
        caster = RayCaster(still(SCENE), 96)
        picture, geoms = caster.frame(0, 0), seen_by(caster)
        assert picture.shape == (96, 96, 3)
        red, green, blue = picture[geoms == 1].astype(int).T
        assert (red > 0).all()
        assert not green.any()
        assert not blue.any()
        assert (picture[geoms == 0][:, 1] > 0).all()
        assert red.std() > 0  # A ball is not a disc.

    @pytest.mark.parametrize("name", DOMAINS)
    def test_show_every_robot(self, name):
        domain = DOMAINS[name]
        model = domain.model()
        caster = RayCaster(Motion([0], pose_of(model, mujoco.MjData(model))[None, None], 1.0, model, domain.camera), 64)
        geoms = seen_by(caster)
        moving = model.body_weldid[model.geom_bodyid[geoms[geoms >= 0]]] > 0
        assert 0.005 < moving.sum() / geoms.size < 0.8
        assert caster.frame(0, 0).std() > 5


def seen_by(caster):
    """The geom that each pixel shows, -1 where there is none."""
    return caster.cast(0, 0).geom.reshape(caster.size, caster.size)


SILHOUETTES = """
import sys, numpy as np
from becl.views.rendering import OpenGL, RayCaster
from becl.envs import DOMAINS
from becl.views.poses import Motion
from becl.views.recorded import pose_of
import mujoco
def seen_by_opengl(motion):
    painter = OpenGL(motion, 128)
    painter._renderer.enable_segmentation_rendering()
    numbers, kinds = np.moveaxis(painter.frame(0, 0), -1, 0)
    return np.where(kinds == int(mujoco.mjtObj.mjOBJ_GEOM), numbers, -1)
for name, domain in DOMAINS.items():
    model = domain.model()
    data = mujoco.MjData(model)
    data.qpos[:] = model.qpos0
    if name == "quadruped":
        data.qpos[2] = 0.6
    motion = Motion([0], pose_of(model, data)[None, None], 1.0, model, domain.camera)
    both = [seen_by_opengl(motion), RayCaster(motion, 128).cast(0, 0).geom.reshape(128, 128)]
    robot = [np.isin(geoms, np.flatnonzero(model.body_weldid[model.geom_bodyid] > 0)) for geoms in both]
    print(name, (robot[0] & robot[1]).sum() / (robot[0] | robot[1]).sum(), (both[0] == both[1]).mean())
"""


def test_rays_and_opengl_see_the_same():
    working = [name for name in ("egl", "osmesa") if draws(name) is None]
    if not working:
        pytest.skip("no OpenGL on this machine")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SILHOUETTES], capture_output=True, text=True,
                          env={**os.environ, "MUJOCO_GL": working[0]}, timeout=600)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    for line in done.stdout.splitlines():
        name, overlap, same = line.split()
        assert float(overlap) > 0.9, name
        assert float(same) > 0.97, name
    assert len(done.stdout.splitlines()) == 3


class TestShapes:
    """Triangles against closed forms, and their places against MuJoCo's."""

    @pytest.fixture
    def model(self) -> mujoco.MjModel:
        return mujoco.MjModel.from_xml_string(SHAPES)

    def test_have_the_size_of_their_geoms(self, model):
        sphere, capsule, ellipsoid, box, cylinder = (shape_of(model, geom)[0] for geom in range(5))  # type: ignore
        np.testing.assert_allclose(np.linalg.norm(sphere, axis=1), 0.3)
        axis = np.clip(capsule[:, 2], -0.4, 0.4)[:, None] * [0, 0, 1]
        np.testing.assert_allclose(np.linalg.norm(capsule - axis, axis=1), 0.1, rtol=1e-6)
        np.testing.assert_allclose(np.ptp(capsule, axis=0)[2], 1.0)
        np.testing.assert_allclose(np.linalg.norm(ellipsoid / [0.1, 0.2, 0.3], axis=1), 1)
        np.testing.assert_allclose(np.abs(box), np.broadcast_to([0.1, 0.2, 0.3], box.shape))
        rim = cylinder[np.linalg.norm(cylinder[:, :2], axis=1) > 0]
        np.testing.assert_allclose(np.linalg.norm(rim[:, :2], axis=1), 0.2)
        np.testing.assert_allclose(np.abs(cylinder[:, 2]), 0.3)

    def test_are_closed_and_face_outwards(self, model):
        volumes = [4 / 3 * np.pi * 0.3**3, np.pi * 0.1**2 * (0.8 + 4 / 3 * 0.1), 4 / 3 * np.pi * 0.006, 0.048,
                   np.pi * 0.04 * 0.6]  # fmt: skip
        for geom, volume in enumerate(volumes):
            vertices, faces, _ = shape_of(model, geom)  # type: ignore[misc]
            corners = np.asarray(vertices)[faces]
            enclosed = np.einsum("fi,fi->f", corners[:, 0], np.cross(corners[:, 1], corners[:, 2])).sum() / 6
            assert enclosed == pytest.approx(volume, rel=0.08)

    @pytest.mark.parametrize("name", DOMAINS)
    def test_are_where_mujoco_has_the_geoms(self, name):
        model = DOMAINS[name].model()
        data = mujoco.MjData(model)
        rng = np.random.default_rng(0)
        data.qpos[:] = data.qpos + 0.3 * rng.standard_normal(model.nq)
        mujoco.mj_normalizeQuat(model, data.qpos)
        pose = pose_of(model, data)
        mujoco.mj_forward(model, data)
        expected = []
        for geom in visible_geoms(model):
            shape = shape_of(model, geom)
            assert shape is not None or model.geom_type[geom] == 0, geom  # Planes are floors.
            if shape is not None:
                expected.append(shape[0] @ data.geom_xmat[geom].reshape(3, 3).T + data.geom_xpos[geom])
        bodies = bodies_of(Motion([0], pose[None, None], 1.0, model))
        found = [
            part.vertices @ rotation(bodies.turn[0, 0, part.body]).T + bodies.position[0, 0, part.body]
            for part in parts_of(model)
        ]
        found, expected = np.concatenate(found), np.concatenate(expected)
        assert found.shape == expected.shape
        order = [np.lexsort(np.round(points, 6).T) for points in (found, expected)]
        np.testing.assert_allclose(found[order[0]], expected[order[1]], atol=2e-6)


class TestPoses:
    def test_of_the_walker_are_those_that_are_evaluated(self, walker):  # noqa: F811
        look = look_at(walker, skills=(1, 3))
        motion = record(policy_of(look), "walker", look.vectors, look.names, steps=30)
        done = rollout(policy_of(look), "walker", look.vectors, episodes=1, episode_length=30)
        assert motion.poses.shape == (2, 31, 9)
        assert motion.frame_seconds == pytest.approx(0.025)
        np.testing.assert_array_equal(motion.poses[:, :, 1], done.place[:, 0, :, 0])
        # The observation's height is the torso's.
        np.testing.assert_allclose(bodies_of(motion).position[:, :, 1, 2], done.obs[:, 0, :, 14], rtol=1e-5)

    def test_of_a_maze_are_places(self, square):  # noqa: F811
        look = look_at(square)
        motion = motion_of(look, 1000)
        done = rollout(policy_of(look), "square_a", look.vectors, episodes=1)
        np.testing.assert_array_equal(motion.poses, done.place[:, 0])

    def test_are_thinned_evenly_with_both_ends(self):
        motion = Motion([0], np.arange(101.0)[None, :, None], 0.1)
        few = thinned(motion, 5)
        assert few.poses.ravel().tolist() == [0, 25, 50, 75, 100]
        assert few.frame_seconds == pytest.approx(2.5)
        assert thinned(motion, 1000).poses.shape == motion.poses.shape

    @pytest.mark.parametrize("env", ["gym:Hopper-v5", "dmc:cheetah_run", "gym:becl/walker_run-v0"])
    def test_of_anyones_mujoco_environment(self, env, tmp_path):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            look = look_at(make_run(tmp_path / "run", env, skills=2))
            motion = record(policy_of(look), env, look.vectors, look.names, steps=12)
        assert motion.model is not None
        assert motion.poses.shape[0] == 2
        assert 3 <= motion.frames <= 13
        assert motion.poses.shape[2] == motion.model.nq
        np.testing.assert_array_equal(motion.poses[0, 0], motion.poses[1, 0])  # The same start.
        assert not np.array_equal(motion.poses[0, 1], motion.poses[0, 0])
        expected = {"gym:Hopper-v5": 0.008, "dmc:cheetah_run": 0.01, "gym:becl/walker_run-v0": 0.025}[env]
        assert motion.frame_seconds == pytest.approx(expected)

    def test_a_pose_moves_cameras_too(self):
        domain = DOMAINS["walker"]
        model = domain.model()
        data, other = mujoco.MjData(model), mujoco.MjData(model)
        data.qpos[1] = 3.0
        mujoco.mj_forward(model, data)
        take_pose(model, other, pose_of(model, data))
        np.testing.assert_allclose(other.cam_xpos, data.cam_xpos)
        np.testing.assert_allclose(other.geom_xpos, data.geom_xpos)


class TestFloorPlan:
    def test_shows_the_way_so_far_in_the_skills_colour(self):
        plan = maze.geometry("square_a")
        way = np.linspace(plan.figure_start, plan.cells[plan.distance.argmax()], 20)
        painter = FloorPlan(Motion([3], way[None], 1.0, plan=plan), 200)
        color = (15, 90, 0)  # Of skill 3.
        counts = [(painter.frame(0, number) == color).all(-1).sum() for number in (0, 10, 19)]
        assert 0 < counts[0] < counts[1] < counts[2]

    def test_puts_places_where_the_plan_has_them(self):
        plan = maze.geometry("square_a")
        picture, points = rendering.drawn_plan(plan, plan.cells[None].astype(float), 300)
        for x, y in points[0].round().astype(int):
            assert picture[y, x].tolist() == [255, 255, 255]  # Cells are white in their middle.


class TestChoice:
    def test_rays_need_nothing(self):
        assert choose_renderer("rays").renderer == "rays"

    def test_without_opengl_rays_are_taken_and_said_why(self, monkeypatch):
        monkeypatch.setattr(rendering, "draws", lambda name: f"lib{name} is missing")
        monkeypatch.delitem(sys.modules, "mujoco")
        monkeypatch.setenv("MUJOCO_GL", "")
        choice = choose_renderer()
        assert choice.renderer == "rays"
        assert "no OpenGL" in choice.why
        assert "libegl is missing" in choice.why
        assert "libosmesa is missing" in choice.why

    def test_the_first_that_draws_is_taken(self, monkeypatch):
        monkeypatch.setattr(rendering, "draws", lambda name: None if name == "osmesa" else "no driver")
        monkeypatch.delitem(sys.modules, "mujoco")
        monkeypatch.setenv("MUJOCO_GL", "")
        assert choose_renderer().renderer == "osmesa"

    def test_one_that_draws_nothing_is_refused(self, monkeypatch):
        monkeypatch.setattr(rendering, "draws", lambda name: "no driver")
        with pytest.raises(UserError, match=r"--renderer osmesa draws nothing here .*use rays"):
            choose_renderer("osmesa")


def test_opengl_is_not_needed(walker, tmp_path):  # noqa: F811
    """The whole command in a process where every OpenGL library fails to load."""
    (tmp_path / "OpenGL").mkdir()
    (tmp_path / "OpenGL" / "__init__.py").write_text("raise ImportError('no OpenGL')")
    words = ["filmstrip", str(walker), "--out", str(tmp_path / "strip.png"), "--frames", "2", "--steps", "5",
             "--size", "32", "--skills", "0"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "MUJOCO_GL": "osmesa"}
    done = subprocess.run([sys.executable, "-m", "becl", *words], capture_output=True, text=True, env=environment,
                          timeout=600, cwd=Path(__file__).parent)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "drawn by rays: no OpenGL here (osmesa: " in done.stdout
    assert (tmp_path / "strip.png").exists()

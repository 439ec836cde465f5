"""The skills of a run side by side as a 3D scene of viser, and its frames.

A robot's bodies are meshes drawn once for all skills; only their positions and turns change from frame to frame. Skills
stand in a grid. Where one walks out of its square, all are kept in place, and the label tells how far they go. The
skills of a maze share one floor plan. Pictures that an environment draws of itself hang on a wall.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float

from becl.views.figures.colors import skill_colors
from becl.views.gallery.shapes import Part, joined, parts_of
from becl.views.poses import Bodies, Motion, bodies_of
from becl.views.recorded import PackedPicture
from becl.views.seen import SeenMoments

ROOM = 1.25  # A square's side beside what its skill needs.
ROW = 0.7  # A row's depth beside its width, at least: rows are seen from the front.
STRAY = 0.3  # How far skills may go, beside their own size, before all are kept in place.
SCREEN = 0.36  # Of what an agent sees, beside its square.
MOMENTS = 25  # Of an episode, that are shown of what it sees.
LETTER = 0.042  # Height of a label's letters beside its square.
STEP_PACE = 0.1  # Seconds a step is shown where time is not known.
HUNG, CAPTION, HUNG_PIXELS = 1.08, 0.2, 240  # Of a picture that is 1 wide: its room, that below it, and pixels.
UPRIGHT = (math.sqrt(0.5), -math.sqrt(0.5), 0.0, 0.0)  # Pictures lie on their backs, with their lower edge ahead.
DARK, LIGHT, PALE, EDGE = (60, 60, 66), (255, 255, 255), (226, 229, 234), (170, 174, 182)


class Viewpoint(NamedTuple):
    position: Float[np.ndarray, "3"]
    look_at: Float[np.ndarray, "3"]


@runtime_checkable
class Stage(Protocol):
    """What is on the page."""

    camera: Viewpoint
    corners: Float[np.ndarray, "corners 3"]
    """What the camera has to see."""

    def show(self, frame: int) -> None:
        """Moves everything to where it is in a frame."""
        ...

    def pick(self, skill: int | None) -> None:
        """Shows one skill, counted from 0, or all."""
        ...

    def view(self, skill: int) -> Viewpoint:
        """The camera for one skill."""
        ...

    def write(self, labels: list[str]) -> None: ...


def stage_of(scene: Any, motion: Motion, labels: list[str], seen: SeenMoments | None = None) -> Stage:
    """Puts a motion into an empty scene, and what was `seen` of a robot by an agent that learned from images."""
    if motion.pictures is not None:
        return PictureStage(scene, motion.names, motion.pictures, labels)
    if motion.plan is not None:
        return MazeStage(scene, motion)
    stage = RobotStage(scene, motion, labels)
    return stage if seen is None else ScreenStage(scene, stage, seen)


def set_camera(server: Any, camera: Viewpoint) -> None:
    """Where new visitors look from."""
    server.initial_camera.position = tuple(camera.position.tolist())
    server.initial_camera.look_at = tuple(camera.look_at.tolist())


MARGIN = 1.06  # Around what is seen.


def angles_of(camera: Viewpoint, corners: Float[np.ndarray, "corners 3"]) -> tuple[float, float]:
    """How far aside and how far up or down a camera has to see, as tangents."""
    forward = camera.look_at - camera.position
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    seen = corners - camera.position
    far = seen @ forward
    aside, up = (float(MARGIN * np.abs(seen @ axis / far).max()) for axis in (right, np.cross(right, forward)))
    return aside, up


def box_of(
    width: float, depth: float, height: float, middle: Sequence[float] = (0.0, 0.0, 0.0)
) -> Float[np.ndarray, "8 3"]:
    """The corners of a box, of which the middle of the floor is given."""
    signs = np.array([(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (0, 1)])
    return np.array(middle) + signs * (width / 2, depth / 2, height)


def pace_of(motion: Motion) -> float:
    """Seconds a frame is shown."""
    return motion.frame_seconds if motion.timed else STEP_PACE * motion.frame_seconds


def unit_of(motion: Motion) -> str:
    return "m" if motion.plan is None else "cells"


# --- Robots -----------------------------------------------------------------------------------------------------------


class SkillGrid(NamedTuple):
    """Where each skill stands."""

    origins: Float[np.ndarray, "skills 3"]
    """Added to all positions of a skill."""
    shift: Float[np.ndarray, "skills frames 3"]
    """Subtracted from them: the way of the robot where it is kept in place, else its start."""
    side: float
    depth: float
    height: float
    """Height of one square and of what stands in it."""


class RobotStage:
    def __init__(self, scene: Any, motion: Motion, labels: list[str]):
        assert motion.model is not None
        self.bodies = bodies_of(motion)
        self.parts = parts_of(motion.model)
        self.layout = layout_of(self.bodies, self.parts, moves(motion))
        self.camera = camera_of(self.layout)
        width, depth = sides_of(self.layout)
        self.corners = box_of(width, depth, self.layout.height)
        self._shown = np.ones(len(motion.names), np.float32)
        self._drawn = np.full((len(self.parts), len(motion.names), 7), np.nan, np.float32)
        self._scene = scene
        draw_floor(scene, self.layout)
        self._meshes = [
            scene.add_batched_meshes_simple(
                f"/part-{number}", part.vertices.astype(np.float32), part.faces.astype(np.uint32),
                *self._placed(part, 0)[::-1], batched_scales=self._shown, batched_colors=part.color,
                flat_shading=part.flat, lod="off",
            )
            for number, part in enumerate(self.parts)
        ]  # fmt: skip
        front = np.array([-0.48 * self.layout.side, -0.46 * self.layout.depth, 0.01])
        self._labels = [
            scene.add_label(f"/label-{number}", text, position=origin + front, anchor="bottom-left",
                            font_size_mode="scene", font_scene_height=LETTER * self.layout.side * far)
            for number, (text, origin, far) in enumerate(zip(labels, self.layout.origins, self._far(), strict=True))
        ]  # fmt: skip

    def _far(self) -> Float[np.ndarray, " skills"]:
        """How far from the camera each skill is, beside the nearest: letters that are larger by as much look alike."""
        away = np.linalg.norm(self.layout.origins - self.camera.position, axis=1)
        return away / away.min()

    def _placed(self, part: Part, frame: int) -> tuple[np.ndarray, np.ndarray]:
        place = self.bodies.position[:, frame, part.body] - self.layout.shift[:, frame] + self.layout.origins
        return place.astype(np.float32), self.bodies.turn[:, frame, part.body].astype(np.float32)

    def show(self, frame: int) -> None:
        for number, (part, mesh) in enumerate(zip(self.parts, self._meshes, strict=True)):
            place, turn = self._placed(part, frame)
            now = np.concatenate([place, turn], axis=1)
            if not np.array_equal(self._drawn[number], now):  # Some never move.
                mesh.batched_positions, mesh.batched_wxyzs = place, turn
                self._drawn[number] = now

    def pick(self, skill: int | None) -> None:
        self._shown = np.array([skill in (None, one) for one in range(len(self._shown))], np.float32)
        for mesh in self._meshes:
            mesh.batched_scales = self._shown
        for label in self._labels:  # They would stand before a single one, whose numbers are in the panel.
            label.visible = skill is None

    def view(self, skill: int) -> Viewpoint:
        look_at = self.layout.origins[skill] + (0, 0, 0.3 * self.layout.height)
        return Viewpoint(look_at + np.array([0, -1.5, 0.8]) * max(0.5 * self.layout.side, self.layout.height), look_at)

    def write(self, labels: list[str]) -> None:
        for label, text in zip(self._labels, labels, strict=True):
            label.text = text


def moves(motion: Motion) -> bool:
    """Whether the robot as a whole can go anywhere: its first body slides or is free."""
    import mujoco

    model = motion.model
    assert model is not None
    first = model.jnt_type[model.jnt_bodyid == 1]
    return bool(np.isin(first, [int(mujoco.mjtJoint.mjJNT_FREE), int(mujoco.mjtJoint.mjJNT_SLIDE)]).any())


def layout_of(bodies: Bodies, parts: list[Part], moving: bool) -> SkillGrid:
    """Squares that are large enough for every skill."""
    skills, frames = bodies.position.shape[:2]
    way = np.zeros((skills, frames, 3))
    if moving:
        way[..., :2] = bodies.position[:, :, 1, :2]
    start = np.repeat(way[:, :1], frames, axis=1)
    low, high = extent(bodies, parts, way)
    shift = way if np.abs(way - start).max() > STRAY * (high - low)[0] else start
    low, high = extent(bodies, parts, shift)
    width, depth, _ = ROOM * (high - low)
    depth = max(depth, ROW * width)
    columns = math.ceil(math.sqrt(skills))
    rows = math.ceil(skills / columns)
    across, back = np.arange(skills) % columns, np.arange(skills) // columns
    origins = np.zeros((skills, 3))
    origins[:, 0], origins[:, 1] = (across - (columns - 1) / 2) * width, ((rows - 1) / 2 - back) * depth
    middle = (low + high) / 2 * (1, 1, 0)
    return SkillGrid(origins, shift + middle, float(width), float(depth), float(high[2]))


def extent(
    bodies: Bodies, parts: list[Part], shift: Float[np.ndarray, "skills frames 3"], looks: int = 12
) -> tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]]:
    """Lowest and highest coordinates of all skills after a shift, in some frames."""
    from scipy.spatial.transform import Rotation

    chosen = np.linspace(0, shift.shape[1] - 1, looks).astype(int)
    low, high = np.full(3, np.inf), np.full(3, -np.inf)
    for part in parts:
        box = np.stack(np.meshgrid(*zip(part.vertices.min(0), part.vertices.max(0), strict=True)), -1).reshape(-1, 3)
        turn = Rotation.from_quat(bodies.turn[:, chosen, part.body].reshape(-1, 4), scalar_first=True).as_matrix()
        place = (bodies.position[:, chosen, part.body] - shift[:, chosen]).reshape(-1, 1, 3)
        corners = np.einsum("nij,vj->nvi", turn, box) + place
        low, high = np.minimum(low, corners.min((0, 1))), np.maximum(high, corners.max((0, 1)))
    return low, high


def camera_of(layout: SkillGrid) -> Viewpoint:
    """From the front and above, far enough to see all."""
    width, depth = sides_of(layout)
    far = 0.42 * width + 0.38 * depth + 0.45 * layout.height
    look_at = np.array([0, -0.05 * depth, 0.35 * layout.height])
    return Viewpoint(look_at + far * np.array([0, -0.66, 0.83]), look_at)


def sides_of(layout: SkillGrid) -> tuple[float, float]:
    """Width and depth of the floor."""
    return float(np.ptp(layout.origins[:, 0])) + layout.side, float(np.ptp(layout.origins[:, 1])) + layout.depth


def draw_floor(scene: Any, layout: SkillGrid) -> None:
    """One square per skill."""
    width, depth = sides_of(layout)
    scene.add_box("/floor", color=PALE, dimensions=(width, depth, 0.02), position=(0, 0, -0.012), cast_shadow=False)
    corners = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * (layout.side / 2, layout.depth / 2)
    lines = [
        [(*(origin[:2] + corners[i]), 0.0), (*(origin[:2] + corners[(i + 1) % 4]), 0.0)]
        for origin in layout.origins
        for i in range(4)
    ]
    scene.add_line_segments("/squares", np.array(lines, np.float32), EDGE, thickness=1.0,
                            thickness_units="screen")  # fmt: skip


class ScreenStage:
    """Robots, and behind each a screen with what its agent sees."""

    def __init__(self, scene: Any, robots: RobotStage, seen: SeenMoments):
        self._robots, self._seen, self.camera, self.corners = robots, seen, robots.camera, robots.corners
        layout, skills = robots.layout, range(len(seen.pictures))
        side = SCREEN * layout.side
        behind = np.array([(0.5 - SCREEN / 2) * layout.side, 0.47 * layout.depth, side / 2])
        self._shown = [seen.at(skill, 0) for skill in skills]
        self._screens = [
            scene.add_image(f"/screen-{skill}", self._shown[skill], side, side, format="jpeg", jpeg_quality=85,
                            wxyz=UPRIGHT, position=layout.origins[skill] + behind, cast_shadow=False,
                            receive_shadow=False)
            for skill in skills
        ]  # fmt: skip

    def show(self, frame: int) -> None:
        self._robots.show(frame)
        for skill, screen in enumerate(self._screens):
            picture = self._seen.at(skill, frame)
            if not np.array_equal(picture, self._shown[skill]):
                self._shown[skill] = screen.image = picture

    def pick(self, skill: int | None) -> None:
        self._robots.pick(skill)
        for number, screen in enumerate(self._screens):
            screen.visible = skill in (None, number)

    def view(self, skill: int) -> Viewpoint:
        return self._robots.view(skill)

    def write(self, labels: list[str]) -> None:
        self._robots.write(labels)


# --- Mazes ------------------------------------------------------------------------------------------------------------


class MazeStage:
    """All skills on one floor plan: the whole way of each, and a ball where it is."""

    def __init__(self, scene: Any, motion: Motion):
        plan = motion.plan
        assert plan is not None
        self.motion = motion
        palette = skill_colors(max(motion.names) + 1)
        self._colors = np.array(
            [[int(palette[name][i : i + 2], 16) for i in (1, 3, 5)] for name in motion.names], np.uint8
        )
        x_low, x_high, y_low, y_high = plan.bounds
        self._middle = np.array([(x_low + x_high) / 2, (y_low + y_high) / 2, 0.0])
        self._span = max(x_high - x_low, y_high - y_low)
        self.camera = Viewpoint(np.array([0, -0.3, 0.95]) * self._span, np.zeros(3))
        self.corners = box_of(x_high - x_low, y_high - y_low, 0.0)
        draw_plan(scene, plan, self._middle)
        self._ways = [
            scene.add_line_segments(f"/way-{number}", self._way(number), tuple(color.tolist()), thickness=2.0,
                                    thickness_units="screen")
            for number, color in enumerate(self._colors)
        ]  # fmt: skip
        ball = ball_of(0.012 * self._span)
        turns = np.tile(np.array([1, 0, 0, 0], np.float32), (len(motion.names), 1))
        self._balls = scene.add_batched_meshes_simple("/balls", *ball, turns, self._places(0), lod="off",
                                                      batched_colors=self._colors,
                                                      batched_scales=np.ones(len(turns), np.float32))  # fmt: skip
        self._labels = [
            scene.add_label(f"/label-{number}", str(name), position=self._places(-1)[number], anchor="bottom-left",
                            depth_test=False)
            for number, name in enumerate(motion.names)
        ]  # fmt: skip

    def _places(self, frame: int) -> Float[np.ndarray, "skills 3"]:
        flat = self.motion.poses[:, frame]
        raised = np.full((len(flat), 1), 0.012 * self._span)
        return (np.concatenate([flat, raised], axis=1) - self._middle).astype(np.float32)

    def _way(self, skill: int) -> Float[np.ndarray, "lines 2 3"]:
        flat = self.motion.poses[skill]
        points = np.concatenate([flat, np.full((len(flat), 1), 0.01)], axis=1) - self._middle
        return np.stack([points[:-1], points[1:]], axis=1).astype(np.float32)

    def show(self, frame: int) -> None:
        self._balls.batched_positions = self._places(frame)

    def pick(self, skill: int | None) -> None:
        visible = [skill in (None, one) for one in range(len(self._ways))]
        self._balls.batched_scales = np.array(visible, np.float32)
        for one, seen in enumerate(visible):
            self._ways[one].visible = self._labels[one].visible = seen

    def view(self, skill: int) -> Viewpoint:
        del skill
        return self.camera

    def write(self, labels: list[str]) -> None:
        """Only numbers stand here: skills end at the same places."""


def ball_of(radius: float) -> tuple[np.ndarray, np.ndarray]:
    import trimesh

    ball = trimesh.creation.icosphere(subdivisions=2, radius=radius)
    return np.asarray(ball.vertices, np.float32), np.asarray(ball.faces, np.uint32)


def draw_plan(scene: Any, plan: Any, middle: Float[np.ndarray, "3"]) -> None:
    """Cells as a floor, walls as bars."""
    corners = np.array([[-0.5, -0.5, 0], [0.5, -0.5, 0], [0.5, 0.5, 0], [-0.5, 0.5, 0]])
    square = np.array([[0, 1, 2], [0, 2, 3]])
    centres = np.concatenate([plan.cells, np.zeros((len(plan.cells), 1))], axis=1) - middle
    floor, faces = joined([(centre + corners, square) for centre in centres])
    scene.add_mesh_simple("/floor", floor.astype(np.float32), faces.astype(np.uint32), color=LIGHT, side="double",
                          cast_shadow=False)  # fmt: skip
    walls = np.concatenate([plan.walls, np.zeros((*plan.walls.shape[:2], 1))], axis=-1) - middle
    scene.add_line_segments("/walls", walls.astype(np.float32), DARK, thickness=4.0, thickness_units="screen")


# --- Pictures of others -----------------------------------------------------------------------------------------------


class PictureStage:
    """What an environment drew of itself, one picture per skill, on a wall."""

    def __init__(self, scene: Any, names: list[int], pictures: list[list[PackedPicture]], labels: list[str]):
        self._pictures = pictures
        self._shown = [skill[0] for skill in pictures]
        rows, columns = pictures[0][0].shape[:2]
        self._height = rows / columns  # Widths are 1.
        columns = math.ceil(math.sqrt(len(names) / self._height))
        rows = math.ceil(len(names) / columns)
        across, down = np.arange(len(names)) % columns, np.arange(len(names)) // columns
        self._middles = np.zeros((len(names), 3))
        self._middles[:, 0] = (across - (columns - 1) / 2) * HUNG
        self._middles[:, 2] = ((rows - 1) / 2 - down) * (self._height + CAPTION)
        width, height = columns * HUNG, rows * (self._height + CAPTION)
        self.camera = in_front_of(np.zeros(3), max(width, 1.2 * height))
        self.corners = box_of(width, 0.0, height, (0.0, 0.0, -height / 2 - CAPTION / 2))
        self._images = [
            scene.add_image(f"/picture-{number}", small(picture), 1.0, self._height, format="jpeg", jpeg_quality=85,
                            wxyz=UPRIGHT, position=self._middles[number], cast_shadow=False, receive_shadow=False)
            for number, picture in enumerate(self._shown)
        ]  # fmt: skip
        edges = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)]) * (0.5, self._height / 2)
        frame = np.insert(np.stack([edges[:-1], edges[1:]], axis=1), 1, -0.005, axis=-1)
        frames = np.concatenate([frame + middle for middle in self._middles]).astype(np.float32)
        scene.add_line_segments("/frames", frames, EDGE, thickness=1.0, thickness_units="screen")
        below = np.array([-0.5, -0.01, -self._height / 2 - 0.02])
        self._labels = [
            scene.add_label(f"/label-{number}", text, position=self._middles[number] + below, anchor="top-left",
                            font_size_mode="scene", font_scene_height=LETTER)
            for number, text in enumerate(labels)
        ]  # fmt: skip

    def show(self, frame: int) -> None:
        for number, (image, skill) in enumerate(zip(self._images, self._pictures, strict=True)):
            if skill[frame] is not self._shown[number]:  # After an episode's end the last one is held.
                self._shown[number] = skill[frame]
                image.image = small(skill[frame])

    def pick(self, skill: int | None) -> None:
        for number, handles in enumerate(zip(self._images, self._labels, strict=True)):
            for handle in handles:
                handle.visible = skill in (None, number)

    def view(self, skill: int) -> Viewpoint:
        return in_front_of(self._middles[skill], 1.2)

    def write(self, labels: list[str]) -> None:
        for label, text in zip(self._labels, labels, strict=True):
            label.text = text


def in_front_of(middle: Float[np.ndarray, "3"], width: float) -> Viewpoint:
    """Where so much of a wall fills the view."""
    return Viewpoint(middle + np.array([0, -0.9 * width, 0]), middle)


def small(picture: PackedPicture) -> np.ndarray:
    """As many pixels as a page needs that shows many."""
    from PIL import Image

    image = Image.fromarray(picture.pixels)
    image.thumbnail((HUNG_PIXELS, HUNG_PIXELS))
    return np.asarray(image)

"""Pictures of poses: by OpenGL where there is one, else by rays that MuJoCo casts, which needs nothing at all. Mazes
are floor plans, and environments without MuJoCo draw themselves.

Shadows and reflections are off: on a CPU they take ten times as long as all the rest.
"""

import atexit
import copy
import functools
import os
import sys
import time
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int, UInt8

from becl.envs.maze import Geometry
from becl.envs.registration import close_renderer
from becl.errors import UserError
from becl.processes import ended, final_line
from becl.views.figures.colors import skill_colors
from becl.views.figures.maze import draw_maze
from becl.views.figures.style import VOID
from becl.views.gl import drawing
from becl.views.poses import Motion, take_pose
from becl.views.recorded import PackedPicture

if TYPE_CHECKING:
    import mujoco


Frame = UInt8[np.ndarray, "h w 3"]
Renderer = Literal["auto", "egl", "osmesa", "rays"]
OPENGL = ("egl", "osmesa")
PATIENCE = 20.0  # Seconds for a back end to draw its first picture.

# Of the ray caster's pictures.
AMBIENT, ABOVE, AHEAD = 0.5, 0.25, 0.45  # Light from everywhere, from above and from the camera.
SKY = ((0.93, 0.95, 0.97), (0.55, 0.68, 0.83))  # At the horizon and above, where a model has no sky of its own.
FADE = 0.12  # Of a floor's pattern with distance, 1/m: far away it would flicker.
GROUPS = np.array([1, 1, 1, 0, 0, 0], np.uint8)  # Of geoms: those that MuJoCo shows by default.


@runtime_checkable
class Painter(Protocol):
    """Draws a skill's frame."""

    def frame(self, skill: int, number: int) -> Frame: ...

    def close(self) -> None: ...


class Choice(NamedTuple):
    """What draws, and what to say about it."""

    renderer: str
    why: str


# --- Which renderer ---------------------------------------------------------------------------------------------------


def choose_renderer(wanted: Renderer = "auto") -> Choice:
    """The first that draws of MUJOCO_GL, EGL and OSMesa, else rays. MuJoCo must not have been imported yet: it looks at
    MUJOCO_GL once."""
    if wanted == "rays":
        return settle("rays", "as asked for")
    given = os.environ.get("MUJOCO_GL", "").strip().lower()
    names = [wanted] if wanted != "auto" else list(dict.fromkeys([given, *OPENGL] if given in OPENGL else OPENGL))
    loaded = "mujoco" in sys.modules
    problems = {}
    for name in names:
        problem = f"MuJoCo was loaded with MUJOCO_GL={given!r}" if loaded and name != given else draws(name)
        if problem is None:
            return settle(name, "as asked for" if wanted != "auto" else "it draws here")
        problems[name] = problem
    reasons = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
    if wanted != "auto":
        raise UserError(f"--renderer {wanted} draws nothing here ({reasons}); leave it out, or use rays")
    return settle("rays", f"no OpenGL here ({reasons})")


def settle(name: str, why: str) -> Choice:
    if "mujoco" not in sys.modules:
        os.environ["MUJOCO_GL"] = "disable" if name == "rays" else name
    return Choice(name, why)


@functools.cache
def draws(name: str) -> str | None:
    """Why a back end draws nothing here. In a process of its own: where drivers are broken it may crash or hang."""
    with drawing(name) as process:
        began = time.perf_counter()
        code, _, error = ended(process, PATIENCE)
    if code == 0:
        return None
    return f"no picture in {time.perf_counter() - began:.0f} s" if code is None else final_line(error) or "it crashed"


def painter_of(motion: Motion, renderer: str, size: int) -> Painter:
    """What draws a motion in squares of `size` pixels."""
    if motion.plan is not None:
        return FloorPlan(motion, size)
    if motion.pictures is not None:
        return Pasted(motion.pictures, size)
    return RayCaster(motion, size) if renderer == "rays" else OpenGL(motion, size)


# --- OpenGL -----------------------------------------------------------------------------------------------------------


class OpenGL:
    """MuJoCo's own renderer."""

    def __init__(self, motion: Motion, size: int):
        import mujoco

        assert motion.model is not None
        self.motion, self.model = motion, copy.copy(motion.model)
        self.data = mujoco.MjData(self.model)
        visual = self.model.vis
        visual.global_.offwidth = visual.global_.offheight = size
        visual.quality.shadowsize, visual.quality.offsamples = 1, 0
        self._renderer = mujoco.Renderer(self.model, size, size)
        self.close = weakref.finalize(self, close_renderer, self._renderer)
        self.close.atexit = False  # Before EGL ends itself.
        atexit.register(self.close)
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._renderer.scene.flags[flag] = False

    def frame(self, skill: int, number: int) -> Frame:
        take_pose(self.model, self.data, self.motion.poses[skill, number])
        self._renderer.update_scene(self.data, self.motion.camera)
        return self._renderer.render()


# --- Rays -------------------------------------------------------------------------------------------------------------


class Hits(NamedTuple):
    """What the ray through each pixel meets first."""

    geom: Int[np.ndarray, " rays"]
    """-1: nothing."""
    distance: Float[np.ndarray, " rays"]
    normal: Float[np.ndarray, "rays 3"]
    direction: Float[np.ndarray, "rays 3"]
    origin: Float[np.ndarray, "3"]


class RayCaster:
    """One ray a pixel, shaded by its angle to the surface. Knows no transparency, and textures of floors only."""

    def __init__(self, motion: Motion, size: int):
        import mujoco

        assert motion.model is not None
        self.motion, self.size = motion, size
        self.model: mujoco.MjModel = motion.model
        self.data = mujoco.MjData(self.model)
        self._scene = mujoco.MjvScene(self.model, maxgeom=10_000)
        self._option, self._perturb, self._camera = mujoco.MjvOption(), mujoco.MjvPerturb(), camera_of(motion)
        self._colors, self._sky = geom_colors(self.model), np.array(sky_colors(self.model))
        planes = np.flatnonzero(self.model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE)
        self._textures = {geom: image for geom in planes.tolist() if (image := texture(self.model, geom)) is not None}

    def frame(self, skill: int, number: int) -> Frame:
        hits = self.cast(skill, number)
        return (255 * np.clip(self.shade(hits), 0, 1)).astype(np.uint8).reshape(self.size, self.size, 3)

    def close(self) -> None:
        """There is nothing to close."""

    def cast(self, skill: int, number: int) -> Hits:
        import mujoco

        take_pose(self.model, self.data, self.motion.poses[skill, number])
        everything = int(mujoco.mjtCatBit.mjCAT_ALL)
        mujoco.mjv_updateScene(
            self.model, self.data, self._option, self._perturb, self._camera, everything, self._scene
        )
        origin, direction = rays_of(self._scene, self.size)
        count = len(direction)
        geom, distance, normal = np.full(count, -1, np.int32), np.zeros(count), np.zeros((count, 3))
        mujoco.mj_multiRay(
            self.model, self.data, origin, direction.ravel(), GROUPS, True, -1, geom, distance, normal.ravel(), count,
            mujoco.mjMAXVAL,
        )  # fmt: skip
        return Hits(geom, distance, normal, direction, origin)

    def shade(self, hits: Hits) -> Float[np.ndarray, "rays 3"]:
        height = np.sqrt(np.clip(hits.direction[:, 2:], 0, 1))
        picture = self._sky[0] + (self._sky[1] - self._sky[0]) * height
        hit = hits.geom >= 0
        geom, normal, direction = hits.geom[hit], hits.normal[hit], hits.direction[hit]
        colors = self._colors[geom]
        for floor, image in self._textures.items():
            there = geom == floor
            far = hits.distance[hit][there]
            colors[there] *= self._pattern(floor, image, hits.origin + far[:, None] * direction[there], far)
        facing = np.abs(np.einsum("ij,ij->i", normal, direction))
        light = AMBIENT + ABOVE * np.clip(normal[:, 2], 0, 1) + AHEAD * facing
        picture[hit] = colors * light[:, None]
        return picture

    def _pattern(
        self,
        floor: int,
        image: Float[np.ndarray, "h w 3"],
        points: Float[np.ndarray, "rays 3"],
        distance: Float[np.ndarray, " rays"],
    ) -> Float[np.ndarray, "rays 3"]:
        """A floor's texture at some of its points, relative to its mean."""
        repeat = self.model.mat_texrepeat[self.model.geom_matid[floor]]
        rotation = self.data.geom_xmat[floor].reshape(3, 3)
        local = ((points - self.data.geom_xpos[floor]) @ rotation[:, :2]) * repeat / 2 + 0.5
        rows, columns = ((local[:, ::-1] % 1) * image.shape[:2]).astype(int).T
        relative = image[rows, columns] / np.maximum(image.mean((0, 1)), 1e-3)
        return 1 + (relative - 1) * np.exp(-FADE * distance)[:, None]


def camera_of(motion: Motion) -> "mujoco.MjvCamera":
    """The camera of a motion as the abstract scene wants it."""
    import mujoco

    camera, model = mujoco.MjvCamera(), motion.model
    assert model is not None
    number = motion.camera if isinstance(motion.camera, int) else model.camera(motion.camera).id
    if number < 0:
        mujoco.mjv_defaultFreeCamera(model, camera)
    else:
        camera.type, camera.fixedcamid = int(mujoco.mjtCamera.mjCAMERA_FIXED), number
    return camera


def rays_of(scene: "mujoco.MjvScene", size: int) -> tuple[Float[np.ndarray, "3"], Float[np.ndarray, "rays 3"]]:
    """Where the camera is, and unit vectors through the middle of every pixel, row by row from above."""
    import mujoco

    view = mujoco.mjv_averageCamera(scene.camera[0], scene.camera[1])
    forward, up = np.array(view.forward, float), np.array(view.up, float)
    right = np.cross(forward, up)
    middle = (np.arange(size) + 0.5) / size
    rise = view.frustum_top + (view.frustum_bottom - view.frustum_top) * middle
    half = view.frustum_width or (view.frustum_top - view.frustum_bottom) / 2  # A square picture.
    aside = view.frustum_center + half * (2 * middle - 1)
    vectors = forward * view.frustum_near + aside[None, :, None] * right + rise[:, None, None] * up
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.array(view.pos, float), vectors.reshape(-1, 3)


def sky_colors(model: "mujoco.MjModel") -> tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]]:
    """At the horizon, and above."""
    import mujoco

    boxes = np.flatnonzero(model.tex_type == mujoco.mjtTexture.mjTEXTURE_SKYBOX)
    if not len(boxes):
        return np.array(SKY[0]), np.array(SKY[1])
    # Six squares below each other: right, left, up, down, front, back; or one for all.
    pixels = texture_pixels(model, int(boxes[0]))
    side = pixels.shape[1]
    faces = pixels.reshape(-1, side, side, 3)
    above = faces[2] if len(faces) == 6 else faces[0]
    return faces[-1][side // 2].mean(0), above.mean((0, 1))


def texture(model: "mujoco.MjModel", geom: int) -> Float[np.ndarray, "h w 3"] | None:
    """A geom's flat texture, in [0, 1]."""
    import mujoco

    material = model.geom_matid[geom]
    if material < 0:
        return None
    number = model.mat_texid[material, mujoco.mjtTextureRole.mjTEXROLE_RGB]
    if number < 0 or model.tex_type[number] != mujoco.mjtTexture.mjTEXTURE_2D:
        return None
    return texture_pixels(model, int(number))


def texture_pixels(model: "mujoco.MjModel", number: int) -> Float[np.ndarray, "h w 3"]:
    height, width, channels = model.tex_height[number], model.tex_width[number], model.tex_nchannel[number]
    begin = model.tex_adr[number]
    pixels = model.tex_data[begin : begin + height * width * channels].reshape(height, width, channels)
    return np.repeat(pixels, 3, axis=2) / 255 if channels == 1 else pixels[..., :3] / 255


def geom_colors(model: "mujoco.MjModel") -> Float[np.ndarray, "geoms 3"]:
    """What each geom looks like from afar: its colour or its material's, times the mean of its texture."""
    import mujoco

    data, scene = mujoco.MjData(model), mujoco.MjvScene(model, maxgeom=10_000)
    mujoco.mj_forward(model, data)
    parts = (mujoco.MjvOption(), mujoco.MjvPerturb(), mujoco.MjvCamera())
    mujoco.mjv_updateScene(model, data, *parts, int(mujoco.mjtCatBit.mjCAT_ALL), scene)
    colors = np.full((model.ngeom, 3), 0.5)
    for geom in scene.geoms[: scene.ngeom]:  # Knows which of the two colours counts.
        if geom.objtype == mujoco.mjtObj.mjOBJ_GEOM:
            colors[geom.objid] = geom.rgba[:3]
    for geom in np.flatnonzero(model.geom_matid >= 0):
        number = model.mat_texid[model.geom_matid[geom], mujoco.mjtTextureRole.mjTEXROLE_RGB]
        if number >= 0:
            colors[geom] *= texture_pixels(model, int(number)).mean((0, 1))
    return colors


# --- Mazes ------------------------------------------------------------------------------------------------------------


class FloorPlan:
    """A maze from above: the way a skill has come, and where it is."""

    def __init__(self, motion: Motion, size: int):
        assert motion.plan is not None
        self.motion, self.size = motion, size
        self._empty, self._points = drawn_plan(motion.plan, motion.poses, size)
        palette = skill_colors(max(motion.names) + 1)
        self._colors = [palette[name] for name in motion.names]

    def frame(self, skill: int, number: int) -> Frame:
        from PIL import Image, ImageDraw

        picture = Image.fromarray(self._empty)
        pen = ImageDraw.Draw(picture)
        way = [tuple(point) for point in self._points[skill, : number + 1].tolist()]
        if len(way) > 1:
            pen.line(way, fill=self._colors[skill], width=max(1, self.size // 100), joint="curve")
        (x, y), radius = way[-1], self.size / 45
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=self._colors[skill], outline="white")
        return np.asarray(picture)

    def close(self) -> None:
        """There is nothing to close."""


def drawn_plan(
    plan: Geometry, places: Float[np.ndarray, "skills frames 2"], size: int
) -> tuple[Frame, Float[np.ndarray, "skills frames 2"]]:
    """A maze's floor plan as a square picture, and where on it places are, in pixels from above left."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size / 100, size / 100), dpi=100, facecolor=VOID)
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    draw_maze(axes, plan)
    axes.set_anchor("C")
    canvas.draw()
    points = axes.transData.transform(places.reshape(-1, 2)).reshape(places.shape)
    return np.asarray(canvas.buffer_rgba())[..., :3].copy(), np.stack([points[..., 0], size - points[..., 1]], axis=-1)


# --- Pictures of others -----------------------------------------------------------------------------------------------


class Pasted:
    """What environments drew of themselves, in the middle of squares that have the colour of its corner."""

    def __init__(self, pictures: Sequence[Sequence[PackedPicture]], size: int):
        self.pictures, self.size = pictures, size

    def frame(self, skill: int, number: int) -> Frame:
        from PIL import Image, ImageOps

        pixels = self.pictures[skill][number].pixels
        corner = tuple(pixels[0, 0].tolist())
        square = (self.size, self.size)
        return np.asarray(ImageOps.pad(Image.fromarray(pixels), square, Image.Resampling.LANCZOS, corner))

    def close(self) -> None:
        """There is nothing to close."""

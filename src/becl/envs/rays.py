"""Pictures of a robot drawn by rays in JAX: no OpenGL, on any device, jitted and vmapped over robots.

One ray a pixel meets planes, spheres, capsules, ellipsoids, cylinders and boxes in closed form; there are no meshes.
Colours follow OpenGL's fixed lighting as MuJoCo uses it. With normal n, unit vectors l to the light and h between light
and eye, a geom's colour c, specular s and shininess k, and ambient a, diffuse d and specular e of a light,

    light = min(1, c·a + spot · shadow · (c·d·max(n·l, 0) + s·e·max(n·h, 0)^(128k)))
    colour = texture · Σ light + reflectance · colour of the robot in the mirror

over the headlight, which shines along the camera's axis, and the model's lights. The sky is averaged all around, which
loses its stars.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt8

from becl.errors import UserError

if TYPE_CHECKING:
    import mujoco

FAR = 1e9  # A ray that meets nothing.
NEAR = 1e-3  # Rays from a surface begin this far from it, m.
SIDES = 256  # Entries of the sky's colours from below to above.
TILE = 64  # Pixels of a floor's texture, after averaging.
PLANE, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX = 0, 2, 3, 4, 5, 6  # MuJoCo's numbers.
DRAWN = {PLANE, SPHERE, CAPSULE, ELLIPSOID, CYLINDER, BOX}
GROUPS = (0, 1, 2)  # Of geoms: those that MuJoCo shows by default.


class Kinematics(NamedTuple):
    """Where everything is: what MuJoCo computes from a pose, of one robot."""

    geom_xpos: Float[Array, "geoms 3"]
    geom_xmat: Float[Array, "geoms 3 3"]
    cam_xpos: Float[Array, " 3"]
    cam_xmat: Float[Array, "3 3"]
    light_xpos: Float[Array, "lights 3"]
    light_xdir: Float[Array, "lights 3"]


class Lamp(NamedTuple):
    """A light's colours and its cone."""

    ambient: np.ndarray
    diffuse: np.ndarray
    specular: np.ndarray
    cutoff: float
    """Cosine of half the cone's angle; -1 shines everywhere."""
    exponent: float
    shadow: bool


class Scene(NamedTuple):
    """What a model looks like, whatever its pose."""

    kind: np.ndarray
    size: np.ndarray
    color: np.ndarray
    specular: np.ndarray
    shininess: np.ndarray
    number: np.ndarray
    """Number of each geom in the model."""
    mirror: np.ndarray
    """How much of what it mirrors a floor shows."""
    floor: int
    """The geom with a texture; -1 for none."""
    tiles: np.ndarray
    """Its texture, coarser from level to level."""
    scale: np.ndarray
    """From its places, m, to repetitions of the texture; the second axis points the other way."""
    start: np.ndarray
    """Where on the texture the floor's middle is."""
    sky: np.ndarray
    headlight: Lamp
    lamps: tuple[Lamp, ...]
    camera: int
    tangent: float
    """Tangent of half the camera's angle."""


@dataclass(frozen=True)
class Shading:
    """How a picture is drawn."""

    size: int = 84
    """Pixels of each side."""
    shadows: bool = True
    reflections: bool = True


# --- A model ----------------------------------------------------------------------------------------------------------


def scene_of(model: "mujoco.MjModel", camera: str | int) -> Scene:
    """What rays need to know of a model; refuses shapes that they cannot draw."""
    shown = np.flatnonzero(np.isin(model.geom_group, GROUPS) & (visible(model) > 0))
    if len(strange := [number for number in shown if model.geom_type[number] not in DRAWN]):
        import mujoco

        kind = mujoco.mjtGeom(int(model.geom_type[strange[0]])).name.removeprefix("mjGEOM_").lower()
        raise UserError(f"rays draw no shapes of kind {kind} ({model.geom(strange[0]).name}); MuJoCo's renderer does")
    material = model.geom_matid[shown]
    has = material >= 0
    floors = [place for place, number in enumerate(shown) if texture_of(model, int(number)) >= 0]
    number = model.camera(camera).id
    floor = floors[0] if floors else -1
    scale = texture_scale(model, int(shown[floor])) if floors else np.ones(2)
    return Scene(
        kind=model.geom_type[shown].astype(int),
        size=model.geom_size[shown],
        color=np.where(has[:, None], model.mat_rgba[material], model.geom_rgba[shown])[:, :3],
        specular=np.where(has, model.mat_specular[material], 0.5),
        shininess=np.where(has, model.mat_shininess[material], 0.5),
        number=shown,
        mirror=np.where(has & (model.geom_type[shown] == PLANE), model.mat_reflectance[material], 0.0),
        floor=floor,
        tiles=pyramid(pixels_of(model, texture_of(model, int(shown[floor])))) if floors else np.ones((1, 1, 1, 3)),
        scale=scale * (1, -1),
        start=scale * model.geom_size[shown[floor], :2],
        sky=sky_of(model),
        headlight=lamp(model.vis.headlight),
        lamps=tuple(lamp(model.light(n)) for n in range(model.nlight) if model.light_active[n]),
        camera=number,
        tangent=float(np.tan(np.radians(model.cam_fovy[number]) / 2)),
    )


def visible(model: "mujoco.MjModel") -> np.ndarray:
    """How opaque each geom is."""
    material = model.geom_matid
    return np.where(material >= 0, model.mat_rgba[material, 3], model.geom_rgba[:, 3])


def lamp(light: Any) -> Lamp:
    ambient, diffuse, specular = (
        np.array(getattr(light, name), float).reshape(3) for name in ("ambient", "diffuse", "specular")
    )
    if not hasattr(light, "cutoff"):
        return Lamp(ambient, diffuse, specular, cutoff=-1.0, exponent=0.0, shadow=False)
    cosine = float(np.cos(np.radians(light.cutoff[0])))
    return Lamp(ambient, diffuse, specular, cosine, float(light.exponent[0]), bool(light.castshadow[0]))


def texture_of(model: "mujoco.MjModel", geom: int) -> int:
    """The flat texture of a plane, -1 for none."""
    material = model.geom_matid[geom]
    if material < 0 or model.geom_type[geom] != PLANE:
        return -1
    number = model.mat_texid[material, 1]
    return int(number) if number >= 0 and model.tex_type[number] == 0 else -1


def texture_scale(model: "mujoco.MjModel", geom: int) -> Float[np.ndarray, " 2"]:
    """Repetitions of a plane's texture, 1/m."""
    material, size = model.geom_matid[geom], model.geom_size[geom, :2]
    repeat = model.mat_texrepeat[material] / 2
    return repeat if model.mat_texuniform[material] else repeat / np.where(size > 0, size, 1)


def pixels_of(model: "mujoco.MjModel", number: int) -> Float[np.ndarray, "h w 3"]:
    """A texture, in [0, 1]."""
    height, width, channels = (int(part[number]) for part in (model.tex_height, model.tex_width, model.tex_nchannel))
    begin = model.tex_adr[number]
    pixels = model.tex_data[begin : begin + height * width * channels].reshape(height, width, channels)
    return np.repeat(pixels, 3, axis=2) / 255 if channels == 1 else pixels[..., :3] / 255


def pyramid(image: Float[np.ndarray, "h w 3"]) -> Float[np.ndarray, "levels tile tile 3"]:
    """A texture averaged over ever larger squares, each level drawn as large as the first."""
    rows, columns = (np.arange(TILE) * length // TILE for length in image.shape[:2])
    first = np.add.reduceat(np.add.reduceat(image, rows, 0), columns, 1)
    first /= np.add.reduceat(np.ones(image.shape[0]), rows)[:, None, None]
    first /= np.add.reduceat(np.ones(image.shape[1]), columns)[None, :, None]
    levels = [first]
    side = 2
    while side <= TILE:
        parts = first.reshape(TILE // side, side, TILE // side, side, 3).mean((1, 3))
        levels.append(parts.repeat(side, 0).repeat(side, 1))
        side *= 2
    return np.stack(levels)


def sky_of(model: "mujoco.MjModel") -> Float[np.ndarray, "sides 3"]:
    """The sky's colours from straight below to straight above, averaged all around; see `elevation`."""
    boxes = np.flatnonzero(model.tex_type == 2)
    if not len(boxes):
        return np.zeros((SIDES, 3))
    pixels = pixels_of(model, int(boxes[0]))
    side = pixels.shape[1]
    faces = pixels.reshape(-1, side, side, 3)
    up, down, front = faces[[2, 3, 4]] if len(faces) == 6 else faces[[0, 0, 0]]
    wall = front.mean(1)[::-1]  # From below to above.
    center = (np.arange(side) + 0.5) / side * 2 - 1
    ring = np.maximum(np.abs(center)[:, None], np.abs(center))
    bins = np.minimum((ring * SIDES / 4).astype(int), SIDES // 4 - 1)
    count = np.maximum(np.bincount(bins.ravel(), minlength=SIDES // 4), 1)

    def rings(face: np.ndarray) -> np.ndarray:
        sums = [np.bincount(bins.ravel(), face[..., c].ravel(), SIDES // 4) for c in range(3)]
        return np.stack(sums, 1) / count[:, None]

    rows = np.add.reduceat(wall, np.arange(SIDES // 2) * side // (SIDES // 2), 0)
    rows /= np.add.reduceat(np.ones(side), np.arange(SIDES // 2) * side // (SIDES // 2))[:, None]
    return np.concatenate([rings(down), rows, rings(up)[::-1]])


# --- Rays and what they meet ------------------------------------------------------------------------------------------


class Hit(NamedTuple):
    """What each ray meets first."""

    geom: Int[Array, " rays"]
    """Place in the scene; -1: nothing."""
    distance: Float[Array, " rays"]


def cast(scene: Scene, now: Kinematics, origin: Float[Array, "#rays 3"], ray: Float[Array, "rays 3"],
         planes: bool = True) -> Hit:  # fmt: skip
    """The first geom on each ray, planes only if asked for."""
    distances, places = [], []
    for kind in sorted(set(scene.kind.tolist()) - (set() if planes else {PLANE})):
        these = np.flatnonzero(scene.kind == kind)
        turn, size = now.geom_xmat[these], jnp.asarray(scene.size[these], jnp.float32)
        start = into_axes(origin[:, None] - now.geom_xpos[these], turn)  # In the geom's own axes.
        along = into_axes(ray[:, None], turn)
        distances.append(SHAPES[kind](start, along, size))
        places.append(these)
    if not distances:
        return Hit(jnp.full(len(ray), -1), jnp.full(len(ray), FAR))
    together, order = jnp.concatenate(distances, 1), np.concatenate(places)
    nearest = together.argmin(1)
    distance = together.min(1)
    return Hit(jnp.where(distance < FAR, jnp.asarray(order)[nearest], -1), distance)


def into_axes(vector: Float[Array, "*#b 3"], turn: Float[Array, "*#b 3 3"]) -> Float[Array, "*b 3"]:
    """Rᵀ·v. No matrix product, which would be rounded on some devices and is slow for so small ones."""
    return (vector[..., :, None] * turn).sum(-2)


def out_of_axes(vector: Float[Array, "*#b 3"], turn: Float[Array, "*#b 3 3"]) -> Float[Array, "*b 3"]:
    """R·v."""
    return (turn * vector[..., None, :]).sum(-1)


def ahead(distance: Array, valid: Array) -> Array:
    """A distance where it is valid and in front."""
    return jnp.where(valid & (distance > 0), distance, FAR)


def to_plane(start: Array, along: Array, size: Array) -> Array:
    """From above only, as MuJoCo draws planes."""
    distance = -start[..., 2] / jnp.where(along[..., 2] < 0, along[..., 2], -1.0)
    place = start[..., :2] + distance[..., None] * along[..., :2]
    inside = ((jnp.abs(place) <= size[:, :2]) | (size[:, :2] <= 0)).all(-1)
    return ahead(distance, inside & (along[..., 2] < 0))


def to_ball(start: Array, along: Array, radius: Array) -> Array:
    """To the sphere around the origin; `along` need not be a unit vector."""
    a, b = jnp.square(along).sum(-1), (start * along).sum(-1)
    c = jnp.square(start).sum(-1) - jnp.square(radius)
    inside = jnp.square(b) - a * c
    return ahead((-b - jnp.sqrt(jnp.maximum(inside, 0))) / a, inside >= 0)


def to_tube(start: Array, along: Array, radius: Array, half: Array) -> Array:
    """To the side of an upright cylinder."""
    a = jnp.square(along[..., :2]).sum(-1)
    b = (start[..., :2] * along[..., :2]).sum(-1)
    c = jnp.square(start[..., :2]).sum(-1) - jnp.square(radius)
    inside = jnp.square(b) - a * c
    distance = (-b - jnp.sqrt(jnp.maximum(inside, 0))) / jnp.maximum(a, 1e-12)
    height = start[..., 2] + distance * along[..., 2]
    return ahead(distance, (inside >= 0) & (jnp.abs(height) <= half))


def to_sphere(start: Array, along: Array, size: Array) -> Array:
    return to_ball(start, along, size[:, 0])


def to_ellipsoid(start: Array, along: Array, size: Array) -> Array:
    return to_ball(start / size, along / size, jnp.ones(()))


def to_capsule(start: Array, along: Array, size: Array) -> Array:
    radius, half = size[:, 0], size[:, 1]
    end = jnp.stack([0 * half, 0 * half, half], -1)
    ends = jnp.minimum(to_ball(start - end, along, radius), to_ball(start + end, along, radius))
    return jnp.minimum(to_tube(start, along, radius, half), ends)


def to_cylinder(start: Array, along: Array, size: Array) -> Array:
    radius, half = size[:, 0], size[:, 1]
    steep = jnp.where(along[..., 2] == 0, 1e-12, along[..., 2])
    cap = (-jnp.sign(steep) * half - start[..., 2]) / steep
    place = start[..., :2] + cap[..., None] * along[..., :2]
    lid = ahead(cap, jnp.square(place).sum(-1) <= jnp.square(radius))
    return jnp.minimum(to_tube(start, along, radius, half), lid)


def to_box(start: Array, along: Array, size: Array) -> Array:
    steep = jnp.where(along == 0, 1e-12, along)
    one, other = (-size - start) / steep, (size - start) / steep
    enter, leave = jnp.minimum(one, other).max(-1), jnp.maximum(one, other).min(-1)
    return ahead(enter, enter <= leave)


SHAPES = {PLANE: to_plane, SPHERE: to_sphere, CAPSULE: to_capsule, ELLIPSOID: to_ellipsoid, CYLINDER: to_cylinder,
          BOX: to_box}  # fmt: skip


def normal_at(kind: Array, size: Float[Array, "rays 3"], place: Float[Array, "rays 3"]) -> Float[Array, "rays 3"]:
    """The direction away from a geom at a place on it, both in its own axes."""
    up = jnp.array([0.0, 0.0, 1.0])
    half = jnp.where(kind == CAPSULE, size[:, 1], 0.0)
    from_axis = place - jnp.clip(place[:, 2], -half, half)[:, None] * up  # Of a sphere, too.
    lid = jnp.abs(place[:, 2]) >= size[:, 1] * (1 - 1e-4)
    of_cylinder = jnp.where(lid[:, None], jnp.sign(place[:, 2:]) * up, place * jnp.array([1.0, 1.0, 0.0]))
    relative = jnp.abs(place) / jnp.maximum(size, 1e-9)
    of_box = jnp.sign(place) * (relative >= relative.max(1, keepdims=True))
    cases = [kind == PLANE, kind == ELLIPSOID, kind == CYLINDER, kind == BOX]
    found = [jnp.broadcast_to(up, place.shape), place / jnp.maximum(jnp.square(size), 1e-9), of_cylinder, of_box]
    return unit(jnp.select([case[:, None] for case in cases], found, from_axis))


def unit(x: Float[Array, "*b 3"]) -> Float[Array, "*b 3"]:
    return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(-1, keepdims=True), 1e-20))


# --- Light ------------------------------------------------------------------------------------------------------------


class Surface(NamedTuple):
    """Where rays have met something."""

    geom: Int[Array, " rays"]
    place: Float[Array, "rays 3"]
    normal: Float[Array, "rays 3"]
    local: Float[Array, "rays 3"]
    """The place in the geom's own axes."""


def surface_of(scene: Scene, now: Kinematics, hit: Hit, origin: Array, ray: Float[Array, "rays 3"]) -> Surface:
    geom = jnp.maximum(hit.geom, 0)
    place = origin + jnp.where(hit.geom >= 0, hit.distance, 1.0)[:, None] * ray
    turn = now.geom_xmat[geom]
    local = into_axes(place - now.geom_xpos[geom], turn)
    normal = normal_at(jnp.asarray(scene.kind)[geom], jnp.asarray(scene.size, jnp.float32)[geom], local)
    return Surface(geom, place, out_of_axes(normal, turn), local)


def lit(scene: Scene, now: Kinematics, shading: Shading, on: Surface, eye: Array) -> Float[Array, "rays 3"]:
    """The light that comes from surfaces to the eye."""
    color = jnp.asarray(scene.color, jnp.float32)[on.geom]
    gloss = jnp.asarray(scene.specular, jnp.float32)[on.geom][:, None]
    power = 128 * jnp.asarray(scene.shininess, jnp.float32)[on.geom][:, None]
    toward = unit(eye - on.place)

    def shine(lamp: Lamp, light: Float[Array, "rays 3"], amount: Float[Array, "rays 1"]) -> Float[Array, "rays 3"]:
        facing = jnp.maximum((on.normal * light).sum(-1, keepdims=True), 0)
        middle = jnp.maximum((on.normal * unit(light + toward)).sum(-1, keepdims=True), 1e-6)
        glint = jnp.where(facing > 0, gloss * middle**power, 0.0)
        found = color * lamp.ambient + amount * (color * lamp.diffuse * facing + lamp.specular * glint)
        return jnp.minimum(found, 1.0)

    backwards = jnp.broadcast_to(now.cam_xmat[:, 2], on.place.shape)
    total = shine(scene.headlight, backwards, jnp.ones((len(on.geom), 1)))
    for number, lamp in enumerate(scene.lamps):
        light = unit(now.light_xpos[number] - on.place)
        cone = -(light * now.light_xdir[number]).sum(-1, keepdims=True)
        amount = jnp.where(cone >= lamp.cutoff, jnp.maximum(cone, 1e-6) ** lamp.exponent, 0.0)
        if shading.shadows and lamp.shadow:
            reach = jnp.linalg.norm(now.light_xpos[number] - on.place, axis=-1)
            blocker = cast(scene, now, on.place + NEAR * on.normal, light, planes=False)
            amount *= (blocker.distance > reach)[:, None]
        total += shine(lamp, light, amount)
    return total


def textured(
    scene: Scene, on: Surface, distance: Float[Array, " rays"], ray: Float[Array, "rays 3"], pixel: float
) -> Float[Array, "rays 3"]:
    """The floor's texture where the floor was met, 1 elsewhere; averaged over about what a pixel covers."""
    if scene.floor < 0:
        return jnp.ones_like(on.place)
    slant = jnp.maximum(jnp.abs((ray * on.normal).sum(-1)), 1e-3)
    covered = distance * pixel / slant * (float(np.abs(scene.scale).max()) * TILE)
    last = len(scene.tiles) - 1
    level = jnp.clip(jnp.log2(jnp.maximum(covered, 1e-6)), 0, last)
    tile = (on.local[:, :2] * scene.scale + scene.start) % 1 * TILE
    column, row = (jnp.clip(part, 0, TILE - 1).astype(int) for part in tile.T)
    low = jnp.floor(level).astype(int)
    tiles = jnp.asarray(scene.tiles, jnp.float32)
    one, other = tiles[low, row, column], tiles[jnp.minimum(low + 1, last), row, column]
    found = one + (other - one) * (level - low)[:, None]
    return jnp.where((on.geom == scene.floor)[:, None], found, 1.0)


def elevation(ray: Float[Array, "rays 3"]) -> Float[Array, " rays"]:
    """Where on the sky's cube a direction points: -2 below, -1 to 1 on its walls, 2 above."""
    aside, up = jnp.abs(ray[:, :2]).max(-1), ray[:, 2]
    wall = up / jnp.maximum(aside, 1e-9)
    ends = jnp.sign(up) * (2 - aside / jnp.maximum(jnp.abs(up), 1e-9))
    return jnp.where(jnp.abs(wall) <= 1, wall, ends)


def skylight(scene: Scene, ray: Float[Array, "rays 3"]) -> Float[Array, "rays 3"]:
    place = (elevation(ray) + 2) / 4 * SIDES - 0.5
    sky = jnp.asarray(scene.sky, jnp.float32)
    return jnp.stack([jnp.interp(place, jnp.arange(SIDES), sky[:, part]) for part in range(3)], -1)


# --- Pictures ---------------------------------------------------------------------------------------------------------


def rays_of(scene: Scene, now: Kinematics, size: int) -> Float[Array, "rays 3"]:
    """Unit vectors through the middle of every pixel, row by row from above."""
    middle = ((np.arange(size) + 0.5) / size * 2 - 1) * scene.tangent
    x, y = np.meshgrid(middle, -middle)
    vectors = np.stack([x.ravel(), y.ravel(), -np.ones(size * size)], -1)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    return out_of_axes(jnp.asarray(vectors, jnp.float32), now.cam_xmat)


def picture(scene: Scene, now: Kinematics, shading: Shading) -> UInt8[Array, "size size 3"]:
    """What the camera sees."""
    ray, eye = rays_of(scene, now, shading.size), now.cam_xpos[None]
    hit = cast(scene, now, eye, ray)
    on = surface_of(scene, now, hit, eye, ray)
    pixel = 2 * scene.tangent / shading.size
    color = lit(scene, now, shading, on, eye) * textured(scene, on, hit.distance, ray, pixel)
    if shading.reflections and scene.mirror.any():
        share = jnp.asarray(scene.mirror, jnp.float32)[on.geom][:, None]
        color += share * mirrored(scene, now, shading, on, ray)
    color = jnp.where(hit.geom[:, None] >= 0, color, skylight(scene, ray))
    return (255 * jnp.clip(color, 0, 1) + 0.5).astype(jnp.uint8).reshape(shading.size, shading.size, 3)


def mirrored(
    scene: Scene, now: Kinematics, shading: Shading, on: Surface, ray: Float[Array, "rays 3"]
) -> Float[Array, "rays 3"]:
    """The robot, and nothing else, seen in a floor as in a mirror."""
    back = ray - 2 * (ray * on.normal).sum(-1, keepdims=True) * on.normal
    start = on.place + NEAR * on.normal
    hit = cast(scene, now, start, back, planes=False)
    seen = surface_of(scene, now, hit, start, back)
    return jnp.where(hit.geom[:, None] >= 0, lit(scene, now, replace(shading, shadows=False), seen, start), 0.0)

"""A MuJoCo model as triangles: what of each body has one colour is one mesh, in the body's own frame."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from becl.views.rendering import GROUPS, geom_colors

if TYPE_CHECKING:
    import mujoco

ROUND = 16  # Corners of a circle.
BRIGHT = 2.2  # The browser's light is brighter than MuJoCo's: colours are made darker by this power.


class Part(NamedTuple):
    """Geoms of one body that look alike, as one mesh in the body's frame."""

    body: int
    color: tuple[int, int, int]
    flat: bool
    """Whether faces meet in edges, as a box's do."""
    vertices: Float[np.ndarray, "v 3"]
    faces: Int[np.ndarray, "f 3"]


def parts_of(model: "mujoco.MjModel") -> list[Part]:
    """Everything that MuJoCo shows by default, except planes."""
    colors = (255 * geom_colors(model) ** BRIGHT).round().astype(int)
    found: dict[tuple[int, tuple[int, int, int], bool], list[Any]] = {}
    for geom in visible_geoms(model):
        shape = shape_of(model, geom)
        if shape is None:
            continue
        vertices, faces, flat = shape
        placed = vertices @ rotation(model.geom_quat[geom]).T + model.geom_pos[geom]
        key = (int(model.geom_bodyid[geom]), tuple(colors[geom].tolist()), flat)
        found.setdefault(key, []).append((placed, faces))
    return [Part(*key, *joined(shapes)) for key, shapes in found.items()]


def visible_geoms(model: "mujoco.MjModel") -> list[int]:
    """The geoms of groups that are shown by default, without transparent ones."""
    alpha = model.geom_rgba[:, 3].copy()
    painted = model.geom_matid >= 0
    alpha[painted] *= model.mat_rgba[model.geom_matid[painted], 3]
    return np.flatnonzero(GROUPS[model.geom_group].astype(bool) & (alpha > 0)).tolist()


def shape_of(model: "mujoco.MjModel", geom: int) -> tuple[np.ndarray, np.ndarray, bool] | None:
    """Vertices and faces of a geom in its own frame, and whether it has edges; None for what is no body's shape."""
    import mujoco
    import trimesh

    kinds, kind, size = mujoco.mjtGeom, mujoco.mjtGeom(int(model.geom_type[geom])), model.geom_size[geom]
    if kind == kinds.mjGEOM_MESH:
        return *mesh_of(model, int(model.geom_dataid[geom])), True
    if kind in (kinds.mjGEOM_SPHERE, kinds.mjGEOM_ELLIPSOID):
        ball = trimesh.creation.icosphere(subdivisions=2)
        return ball.vertices * (size if kind == kinds.mjGEOM_ELLIPSOID else size[0]), ball.faces, False
    if kind == kinds.mjGEOM_CAPSULE:
        solid: Any = trimesh.creation.capsule(height=2 * size[1], radius=size[0], count=[ROUND // 2, ROUND])
        return solid.vertices - (0, 0, solid.bounds.mean(0)[2]), solid.faces, False
    if kind == kinds.mjGEOM_BOX:
        solid = trimesh.creation.box(extents=2 * size)
        return solid.vertices, solid.faces, True
    if kind == kinds.mjGEOM_CYLINDER:
        solid = trimesh.creation.cylinder(radius=size[0], height=2 * size[1], sections=2 * ROUND)
        return solid.vertices, solid.faces, True
    return None


def mesh_of(model: "mujoco.MjModel", mesh: int) -> tuple[np.ndarray, np.ndarray]:
    first, count = model.mesh_vertadr[mesh], model.mesh_vertnum[mesh]
    begin, faces = model.mesh_faceadr[mesh], model.mesh_facenum[mesh]
    return model.mesh_vert[first : first + count].astype(float), model.mesh_face[begin : begin + faces].copy()


def rotation(quaternion: Float[np.ndarray, "4"]) -> Float[np.ndarray, "3 3"]:
    """The rotation matrix of a unit quaternion, w first."""
    from scipy.spatial.transform import Rotation

    return Rotation.from_quat(quaternion, scalar_first=True).as_matrix()


def joined(shapes: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Several meshes as one."""
    offsets = np.cumsum([0, *(len(vertices) for vertices, _ in shapes[:-1])])
    faces = [faces + offset for (_, faces), offset in zip(shapes, offsets, strict=True)]
    return np.concatenate([vertices for vertices, _ in shapes]), np.concatenate(faces).astype(int)

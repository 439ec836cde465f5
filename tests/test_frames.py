"""Pictures by rays, held to MuJoCo's own (tests/golden/frames.py made them) and to closed forms."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.envs import DOMAINS
from becl.envs.frames import Frames, MuJoCoFrames, RayFrames, make_frames
from becl.envs.rays import SHAPES, Shading, cast, normal_at, rays_of
from becl.envs.registration import opengl_problem
from becl.errors import UserError

GOLDEN = np.load(Path(__file__).parent / "golden" / "frames.npz")
ROBOTS = ("walker", "quadruped")


@pytest.fixture(scope="module", params=ROBOTS)
def drawn(request):
    """A robot's name, the rays that draw it, and what MuJoCo drew."""
    name = request.param
    golden = {kind: GOLDEN[f"{name}/{kind}"] for kind in ("qpos", "picture", "geom")}
    return name, RayFrames(DOMAINS[name], Shading(84)), golden


def test_rays_draw_what_mujoco_draws(drawn):
    _, frames, golden = drawn
    apart = np.abs(frames.draw(golden["qpos"]).astype(int) - golden["picture"])
    assert apart.mean((1, 2, 3)).max() < 4.5, "of 255, on average"
    assert (apart.max(-1) > 16).mean((1, 2)).max() < 0.05, "share of pixels"


def test_silhouettes_are_mujocos_within_a_pixel(drawn):
    _, frames, golden = drawn
    found = jax.jit(jax.vmap(lambda now: silhouette(frames.scene, now, 84)))(frames.kinematics(golden["qpos"]))
    assert (np.asarray(found) == golden["geom"]).mean() > 0.999, "the same geom nearly everywhere"
    for mine, theirs in zip(np.asarray(found) > 0, golden["geom"] > 0, strict=True):
        assert not (mine & ~grown(theirs)).any()
        assert not (theirs & ~grown(mine)).any()


def silhouette(scene, now, size):
    """The model's geom that each pixel shows, -1 where there is none."""
    hit = cast(scene, now, now.cam_xpos[None], rays_of(scene, now, size))
    found = jnp.where(hit.geom >= 0, jnp.asarray(scene.number)[jnp.maximum(hit.geom, 0)], -1)
    return found.reshape(size, size)


def grown(mask):
    """A mask and all pixels beside it."""
    padded = np.pad(mask, 1)
    height, width = mask.shape
    return np.any([padded[i : i + height, j : j + width] for i in range(3) for j in range(3)], 0)


def test_a_pose_looks_the_same_alone_and_among_others(drawn):
    _, frames, golden = drawn
    together = frames.draw(golden["qpos"])
    alone = frames.draw(golden["qpos"][2:3])[0]
    assert np.abs(alone.astype(int) - together[2]).max() <= 1, "other programs round otherwise"


@pytest.mark.parametrize("kind", sorted(SHAPES), ids=lambda kind: SHAPES[kind].__name__)
def test_rays_end_on_the_surface_and_normals_point_away(kind):
    """Places found are on the surface by its equation, nothing on the way is, and normals agree with its gradient."""
    size = jnp.array([[0.5, 0.3, 0.7]])
    random = np.random.default_rng(kind)
    start = random.normal(size=(500, 1, 3)).astype(np.float32)
    start *= 2.5 / np.linalg.norm(start, axis=-1, keepdims=True)
    goal = random.uniform(-0.6, 0.6, (500, 1, 3)).astype(np.float32)
    along = (goal - start) / np.linalg.norm(goal - start, axis=-1, keepdims=True)
    distance = np.asarray(SHAPES[kind](jnp.asarray(start), jnp.asarray(along), size))[:, 0]
    hit = distance < 1e8
    assert 0.05 < hit.mean() < 1
    place = (start + distance[:, None, None] * along)[hit, 0].astype(np.float64)
    depth = depth_below(kind, np.asarray(size[0], np.float64))
    assert np.abs(depth(place)).max() < 1e-5
    missed = ~hit if kind != 0 else np.zeros(len(hit), bool)  # A plane is seen from above only.
    for begin, way, end in (
        (start[hit, 0], along[hit, 0], distance[hit] - 1e-3),
        (start[missed, 0], along[missed, 0], 5),
    ):
        for share in np.linspace(0, 1, 50):
            assert (depth(begin + share * np.reshape(end, (-1, 1)) * way) > -1e-5).all()
    number = jnp.full(len(place), kind)
    normal = np.asarray(normal_at(number, jnp.tile(size, (len(place), 1)), jnp.asarray(place, jnp.float32)))
    slope = np.stack([(depth(place + 1e-5 * axis) - depth(place - 1e-5 * axis)) / 2e-5 for axis in np.eye(3)], -1)
    slope /= np.linalg.norm(slope, axis=-1, keepdims=True)
    assert np.median((normal * slope).sum(-1)) > 0.9999
    assert ((normal * slope).sum(-1) > 0.999).mean() > 0.97, "all but those on an edge"


def depth_below(kind, size):
    """A function that is 0 on a shape's surface and negative inside."""
    radius, half = size[:2]

    def capsule(x):
        return np.linalg.norm(x - np.clip(x[:, 2:], -half, half) * [0, 0, 1], axis=-1) - radius

    return {
        0: lambda x: np.where((np.abs(x[:, :2]) <= size[:2]).all(-1), x[:, 2], 1.0),
        2: lambda x: np.linalg.norm(x, axis=-1) - radius,
        3: capsule,
        4: lambda x: np.linalg.norm(x / size, axis=-1) - 1,
        5: lambda x: np.maximum(np.linalg.norm(x[:, :2], axis=-1) - radius, np.abs(x[:, 2]) - half),
        6: lambda x: (np.abs(x) - size).max(-1),
    }[kind]


def test_meshes_are_refused_with_what_draws_them():
    with pytest.raises(UserError, match=r"rays draw no shapes of kind mesh .*; MuJoCo's renderer does"):
        make_frames(DOMAINS["jaco"], 32)


def test_mujoco_draws_jaco_where_there_is_opengl():
    if problem := opengl_problem():
        pytest.skip(problem)
    frames = make_frames(DOMAINS["jaco"], 32, "mujoco")
    assert isinstance(frames, MuJoCoFrames)
    assert isinstance(frames, Frames)
    qpos = DOMAINS["jaco"].model().qpos0
    picture = frames.draw(np.stack([qpos, qpos + 0.5]))
    assert picture.shape == (2, 32, 32, 3)
    assert picture.std() > 10
    assert (picture[0] != picture[1]).any()
    frames.close()

"""PIE-G against the original networks in torch (golden numbers of random weights), and what is trained of it."""

import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden.pieg import BATCH, NETWORKS, SIZES, STACK, UNITS, images_of, layer_of, weights_of

from becl.envs import DOMAINS
from becl.envs.frames import make_frames
from becl.errors import UserError
from becl.learning.seeing import FrozenFrames, Vision, frozen_look
from becl.nn.frozen import admit, averages_of, check_weights, shapes_of, side_of
from becl.nn.networks import Linear
from becl.nn.pieg import PIEG, FusionNet

GOLDEN = np.load(Path(__file__).parent / "golden" / "pieg.npz")
LAST = {"resnet18": "layer2.1.bn2", "efficientnet-lite0": "_blocks.4._bn2"}
SMALL = "efficientnet-lite0"


def known(name: str) -> str:
    """The digest of random weights."""
    return admit(name, weights_of(shapes_of(name)))


def network(name: str, size: int, statistics: str = "moving") -> FusionNet:
    """With the layer that the golden numbers were made with, in our order of its inputs."""
    spec, side = PIEG(name, known(name), statistics, UNITS), side_of(size)  # type: ignore[arg-type]
    parts = 2 * (STACK - 1)
    weight = layer_of(parts * spec.channels * side**2).reshape(parts, spec.channels, side, side, UNITS)
    weight = weight.transpose(2, 3, 0, 1, 4).reshape(-1, UNITS)
    averages = averages_of(spec.weights) if statistics == "moving" else {}
    ones = jnp.ones(UNITS)
    return FusionNet(Linear(jnp.asarray(weight), jnp.zeros(UNITS)), ones, jnp.zeros(UNITS), averages, spec)


def by_frame(maps: np.ndarray, channels: int) -> np.ndarray:
    """[n, row, column, frame · channel] as torch has it, [n · frame, channel, row, column]."""
    n, rows, columns, _ = maps.shape
    return maps.reshape(n, rows, columns, -1, channels).transpose(0, 3, 4, 1, 2).reshape(-1, channels, rows, columns)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NETWORKS)
def test_features_are_those_of_the_original_network(name, size):
    """In eval() and in train(), with the averages that the latter leaves."""
    net = network(name, size)
    for mode in ("eval", "train"):
        place = f"{name}/{size}/{mode}/"
        maps, after = net.look(jnp.asarray(images_of(size)), mode == "train")
        assert maps.shape == (BATCH, side_of(size), side_of(size), STACK * net.spec.channels)
        if place + "maps" in GOLDEN:
            np.testing.assert_allclose(by_frame(np.asarray(maps), net.spec.channels), GOLDEN[place + "maps"], atol=5e-5)
        np.testing.assert_allclose(net.see(maps), GOLDEN[place + "features"], atol=5e-5)
        if mode == "eval":
            np.testing.assert_allclose(net(jnp.asarray(images_of(size))), net.see(maps), atol=1e-6)
            continue
        for part, running in (("mean", "running_mean"), ("var", "running_var")):
            expected = GOLDEN[f"{name}/{size}/trained/{running}"]
            np.testing.assert_allclose(after.averages[LAST[name]][part], expected, rtol=1e-4, atol=1e-6)


def test_frames_and_their_differences_are_fused():
    """By a loop over places and frames in float64, of four frames."""
    spec = PIEG(SMALL, known(SMALL), units=5)
    net = spec.init(jax.random.key(0), 16, 4)
    maps = np.random.default_rng(0).normal(size=(3, 2, 2, 4 * 40))
    weight, expected = np.asarray(net.layer.weight, float), np.zeros((3, 5))
    for n in range(3):
        inputs = []
        for row in range(2):
            for column in range(2):
                frames = [maps[n, row, column, 40 * i : 40 * (i + 1)] for i in range(4)]
                inputs += [*frames[1:], *(now - before for before, now in itertools.pairwise(frames))]
        out = np.concatenate(inputs) @ weight
        expected[n] = (out - out.mean()) / np.sqrt(out.var() + 1e-5)
    np.testing.assert_allclose(net.see(jnp.asarray(maps, jnp.float32)), expected, atol=1e-4)
    np.testing.assert_allclose(net.layer.weight.T @ net.layer.weight, np.eye(5), atol=1e-5)
    assert not net.layer.bias.any()


def test_only_the_layer_is_trained():
    """Averages move by what is seen, and not by Adam; weights of the frozen layers are no part of the network."""
    net = network(SMALL, 16)
    images = jnp.asarray(images_of(16))

    def loss(net: FusionNet) -> jax.Array:
        return jnp.square(net(images)[:, 0]).sum()

    grads = jax.grad(loss)(net)
    assert np.abs(grads.layer.weight).max() > 0
    vision = Vision(size=16, encoder=net.spec)
    moved, _ = vision.optimizer.update(net, grads, vision.optimizer.init(net))
    assert np.abs(moved.layer.weight - net.layer.weight).max() > 0
    for old, new in zip(jax.tree.leaves(net.averages), jax.tree.leaves(moved.averages), strict=True):
        np.testing.assert_array_equal(old, new)
    names = sorted(leaf.size for leaf in jax.tree.leaves(net.averages))
    assert len(names) == sum(name.endswith(("_mean", "_var")) for name in shapes_of(SMALL))


def test_several_seeds_share_one_convolution():
    """Their averages differ and their weights do not: nothing becomes a grouped convolution."""
    net = network("resnet18", 16)
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 0.1]), net.averages)
    images = jnp.asarray(np.stack([images_of(16), images_of(16, seed=2)]))
    program = jax.jit(jax.vmap(lambda averages, x: net.with_averages(averages).look(x, True)[0]))
    said = program.lower(several, images).as_text()
    assert "feature_group_count = 1" in said
    assert "feature_group_count = 2" not in said
    assert "batch_group_count = 2" not in said
    np.testing.assert_allclose(program(several, images)[0], net.look(images[0], True)[0], atol=1e-4)


def test_fixed_statistics_make_frames_of_their_own_whatever_is_beside_them():
    net = network(SMALL, 16, "fixed")
    images = jnp.asarray(images_of(16))
    maps, after = net.look(images, learning=True)
    alone, _ = net.look(images[:1, :, :, :3])
    np.testing.assert_allclose(maps[:1, ..., :40], alone, atol=1e-5)
    assert not jax.tree.leaves(after.averages)
    # ImageNet's mean and deviation are taken out.
    moving = network(SMALL, 16)
    scaled = (np.asarray(images, float) / 255 - np.tile([0.485, 0.456, 0.406], 3)) / np.tile([0.229, 0.224, 0.225], 3)
    as_if = np.clip((scaled + 0.5) * 255, -(2**20), 2**20)
    same, _ = moving.spec.maps(moving.averages, jnp.asarray(as_if, jnp.float32))
    np.testing.assert_allclose(maps, same, atol=1e-3)


def test_frames_are_kept_as_maps_where_nothing_changes_them():
    encoder = PIEG(SMALL, known(SMALL), "fixed", UNITS)
    vision = Vision(size=16, shift=0, encoder=encoder)
    assert vision.cached
    assert vision.images == (2, 2, 40, 3, "float16")
    assert Vision(size=16, shift=4, encoder=encoder).images.kind == "uint8"
    inner = make_frames(DOMAINS["walker"], 16)
    qpos = np.stack([inner.model.qpos0] * 3) + np.array([[0.0], [0.1], [0.2]])  # type: ignore[attr-defined]
    drawn = FrozenFrames(inner, frozen_look(encoder)).draw(qpos)
    assert drawn.dtype == jnp.float16
    images = np.concatenate(list(np.asarray(inner.draw(qpos))), -1)[None]  # A stack of three.
    net = encoder.init(jax.random.key(0), 16, 3)
    kept = jnp.concatenate(list(drawn), -1)[None]
    np.testing.assert_allclose(net(kept), net(jnp.asarray(images)), atol=5e-3)


def test_weights_are_checked():
    good = weights_of(shapes_of(SMALL))
    for change, said in (
        ({"_bn0.bias": None}, "_bn0.bias is missing"),
        ({"_bn0.bias": np.zeros(31, np.float32)}, r"_bn0.bias has shape \(31,\), not \(32,\)"),
        ({"_bn0.bias": np.full(32, np.nan, np.float32)}, "_bn0.bias has numbers that are not finite"),
        ({"_bn0.bias": np.zeros(32, int)}, "_bn0.bias has numbers that are not finite, or no fractions"),
        ({"_bn0.running_var": -np.ones(32, np.float32)}, "_bn0.running_var is negative"),
    ):
        bad = {name: array for name, array in (good | change).items() if array is not None}
        with pytest.raises(UserError, match=said):
            check_weights(SMALL, bad)
    with pytest.raises(UserError, match=r"unknown network 'resnet19'.*did you mean 'resnet18'"):
        check_weights("resnet19", good)
    with pytest.raises(UserError, match="were not read; give them by --encoder-weights"):
        averages_of("0" * 32)

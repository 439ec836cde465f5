"""The encoder and the random shift against loops in NumPy, and against XLA's own convolution."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.nn.vision import CNN, random_shift

SIZE = 21
CNN_SMALL = CNN(filters=5)


@pytest.fixture(scope="module")
def images():
    return jnp.asarray(np.random.default_rng(0).integers(0, 256, (4, SIZE, SIZE, 6), np.uint8))


@pytest.fixture(scope="module")
def network():
    net = CNN_SMALL.init(jax.random.key(0), SIZE, 2)
    noise = jax.random.normal(jax.random.key(1), (len(net.layers), CNN_SMALL.filters))
    layers = tuple(type(layer)(layer.weight, 0.1 * bias) for layer, bias in zip(net.layers, noise, strict=True))
    return type(net)(layers)


def naive(network, image):
    """The encoder in float64, one product at a time: weights of filter f at row i, column j, channel c."""
    x = image.astype(np.float64) / 255 - 0.5
    for number, layer in enumerate(network.layers):
        stride = 1 if number else 2
        weight = np.asarray(layer.weight, np.float64).reshape(3, 3, x.shape[-1], -1)
        side = (len(x) - 3) // stride + 1
        out = np.zeros((side, side, weight.shape[-1]))
        for row in range(side):
            for column in range(side):
                window = x[row * stride : row * stride + 3, column * stride : column * stride + 3]
                out[row, column] = np.einsum("ijc,ijcf->f", window, weight) + np.asarray(layer.bias)
        x = np.maximum(out, 0)
    return x.ravel()


def by_convolution(network, images):
    x = images / 255 - 0.5
    for number, layer in enumerate(network.layers):
        weight = layer.weight.reshape(3, 3, x.shape[-1], -1)
        stride = (1, 1) if number else (2, 2)
        x = jax.lax.conv_general_dilated(x, weight, stride, "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.nn.relu(x + layer.bias)
    return x.reshape(len(x), -1)


def test_features_are_those_of_a_loop(network, images):
    found = jax.jit(lambda x: network(x))(images)
    assert found.shape == (4, CNN_SMALL.features(SIZE))
    np.testing.assert_allclose(found, [naive(network, image) for image in np.asarray(images)], atol=1e-5)


def test_gradients_are_those_of_a_convolution(network, images):
    def slope(f):
        return jax.jit(jax.grad(lambda net: jnp.square(f(net, images)).sum()))(network)

    ours, theirs = slope(lambda net, x: net(x)), slope(by_convolution)
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4 * float(jnp.abs(other).max()))


def test_vmapped_over_weights_there_is_no_grouped_convolution(network, images):
    several = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), network)
    program = jax.jit(jax.vmap(lambda net: net(images)))
    assert "convolution" not in program.lower(several).as_text()
    np.testing.assert_allclose(program(several)[0], network(images), atol=1e-6)


def test_sizes_are_urlbs():
    cnn = CNN()
    assert cnn.features(84) == 39_200
    shapes = jax.eval_shape(lambda: cnn.init(jax.random.key(0), 84, 3))
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == 30_368
    assert cnn.side(cnn.smallest) == 1
    assert cnn.side(cnn.smallest - 1) < 1


def test_weights_start_orthogonal_with_the_gain_of_relu():
    for layer in CNN().init(jax.random.key(0), 84, 3).layers:
        np.testing.assert_allclose(layer.weight.T @ layer.weight, 2 * np.eye(32), atol=1e-4)
        assert not layer.bias.any()


def test_a_shift_is_a_crop_of_the_padded_image():
    images = np.random.default_rng(0).integers(0, 256, (300, 9, 7, 2), np.uint8)
    shifted = np.asarray(random_shift(jax.random.key(0), jnp.asarray(images), 2))
    assert shifted.dtype == np.uint8
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)), mode="edge")
    places = []
    for before, after in zip(padded, shifted, strict=True):
        fits = [(i, j) for i in range(5) for j in range(5) if (before[i : i + 9, j : j + 7] == after).all()]
        assert len(fits) == 1, "one place for all channels"
        places += fits
    counts = np.bincount([5 * i + j for i, j in places], minlength=25)
    assert counts.min() > 0, "every place comes up"
    assert counts.max() < 30


def test_no_shift_changes_nothing(images):
    np.testing.assert_array_equal(random_shift(jax.random.key(0), images, 0), images)

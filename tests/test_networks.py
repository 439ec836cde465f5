"""Layers whose gradients are written by hand against JAX's own, what bfloat16 costs, and the optimiser by loops."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.envs.spec import EnvSpec
from becl.learning.ddpg import DDPG
from becl.learning.replay import Transitions
from becl.nn.adam import Adam
from becl.nn.networks import Network, init_trunk
from becl.nn.precision import (
    THIN,
    affine,
    batch_sum,
    compute_dtype,
    computing,
    fastest,
    fine_product,
    inner_product,
    relu,
    rounded,
    rounded_weights,
    squash,
)
from becl.skills import OneHot

ENV = EnvSpec(obs_dim=3, action_dim=2, episode_length=10)


def normal(seed, *shape):
    return jax.random.normal(jax.random.key(seed), shape)


def gradients(function, *args):
    """Of a sum in which every output counts differently."""
    weights = normal(99, *jax.eval_shape(function, *args).shape)
    return jax.grad(lambda *a: jnp.sum(weights * function(*a)), tuple(range(len(args))))(*args)


def plain_squash(x, gain, shift):
    normalized = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return jnp.tanh(normalized * gain + shift)


def far(tree, expected):
    """Length of the difference in lengths of what is expected."""
    flat = lambda t: np.concatenate([np.ravel(leaf).astype(float) for leaf in jax.tree.leaves(t)])  # noqa: E731
    return np.linalg.norm(flat(tree) - flat(expected)) / np.linalg.norm(flat(expected))


def dtypes(tree):
    return {leaf.dtype for leaf in jax.tree.leaves(tree)}


def transitions():
    return Transitions(
        obs=normal(1, 64, 3),
        action=jnp.tanh(normal(2, 64, 2)),
        reward=1 + normal(3, 64),
        discount=jnp.full(64, 0.97),
        next_obs=normal(4, 64, 3),
        skill=OneHot(4).sample(jax.random.key(5), 64),
        trajectory=jnp.arange(64),
        since=jnp.ones(64, jnp.int32),
    )


# --- Gradients written by hand ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(6,), (2, 3)])
def test_squash_is_tanh_of_layer_norm(batch):
    args = 1 + normal(0, *batch, 32), 1 + 0.3 * normal(2, 32), 0.3 * normal(3, 32)
    with computing("float32"):
        np.testing.assert_allclose(squash(*args), plain_squash(*args), atol=2e-6)
        for got, expected in zip(gradients(squash, *args), gradients(plain_squash, *args), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("apart", [False, True])
def test_relu_is_the_larger_of_x_and_zero(apart):
    x = normal(0, 5, 7)
    np.testing.assert_array_equal(relu(x, apart), np.maximum(np.asarray(x), 0))
    np.testing.assert_array_equal(gradients(lambda x: relu(x, apart), x)[0], gradients(jax.nn.relu, x)[0])
    np.testing.assert_array_equal(jax.grad(lambda x: relu(x, apart).sum())(jnp.zeros(3)), 0)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("width", [5, THIN])
@pytest.mark.parametrize("batch", [(), (4,), (2, 3), (40,)])
def test_affine_is_a_matrix_product_and_a_bias(batch, width, exact):
    args = normal(0, *batch, width), normal(1, width, 6), normal(2, 6)
    near = 1e-6 if width == 5 else 2e-5  # Sums of more are larger.
    with computing("float32"):
        np.testing.assert_allclose(affine(*args, exact=exact), args[0] @ args[1] + args[2], rtol=1e-6, atol=near)
        got = gradients(lambda x, w, b: affine(x, w, b, exact), *args)
        expected = gradients(lambda x, w, b: x @ w + b, *args)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=near), got, expected)


def test_inner_products_of_both_halves():
    x, weight = normal(0, 24, 14), normal(1, 2, 7)
    plain = lambda x, w: jnp.einsum("bkh,kh->bk", x.reshape(24, 2, 7), w)  # noqa: E731
    np.testing.assert_allclose(inner_product(x, weight), plain(x, weight), rtol=1e-5, atol=1e-5)
    got, expected = gradients(inner_product, x, weight), gradients(plain, x, weight)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, expected)


def test_a_sum_over_the_batch_is_float32():
    """4,099 ones: bfloat16 would stop counting at 256, and has no such number."""
    x = jnp.ones((1, 4099, THIN), jnp.bfloat16)
    np.testing.assert_array_equal(jax.jit(batch_sum)(x), 4099)
    with computing("bf16"):
        slope = jax.grad(lambda b: affine(x, jnp.ones((THIN, 4)), b).astype(jnp.float32).sum())(jnp.zeros(4))
    np.testing.assert_array_equal(slope, 4099)


# --- Precision --------------------------------------------------------------------------------------------------------


def test_precision_ends_with_its_block():
    assert compute_dtype() == jnp.float32
    with computing("bf16"):
        assert compute_dtype() == jnp.bfloat16
        with computing("float32"):
            assert compute_dtype() == jnp.float32
        assert compute_dtype() == jnp.bfloat16
    with pytest.raises(KeyError), computing("bf16"):
        raise KeyError
    assert compute_dtype() == jnp.float32


@pytest.mark.parametrize(
    ("platform", "capability", "expected"),
    [
        ("gpu", "9.0", "bf16"),
        ("gpu", "8.0", "bf16"),
        ("gpu", "10.3", "bf16"),
        ("gpu", "7.5", "tf32"),
        ("tpu", None, "bf16"),
        ("cpu", None, "tf32"),
    ],
)
def test_the_default_suits_the_device(monkeypatch, platform, capability, expected):
    about = {} if capability is None else {"compute_capability": capability}
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(platform=platform, **about)])
    assert fastest() == expected
    with computing("auto"):
        assert compute_dtype() == (jnp.bfloat16 if expected == "bf16" else jnp.float32)


def test_bf16_is_inside_and_float32_outside():
    x = normal(0, 8, 12)
    network, trunk = Network((64, 64)).init(jax.random.key(1), 12, 5), init_trunk(jax.random.key(2), 12, 64)
    with computing("bf16"):
        assert network.layers[0].hidden(x).dtype == jnp.bfloat16
        assert trunk(x).dtype == jnp.bfloat16
        assert affine(x, normal(3, 12, 4), normal(4, 4)).dtype == jnp.bfloat16
        assert affine(x, normal(3, 12, 4), normal(4, 4), exact=True).dtype == jnp.float32
        assert network(x).dtype == jnp.float32
        assert dtypes(Network((64,)).init(jax.random.key(1), 12, 5)) == {jnp.dtype(jnp.float32)}


def test_inputs_keep_the_bits_of_tf32():
    """Observations 1e-3 apart at 2 are told apart in bf16 too, whose own numbers there are 1.6e-2 apart."""
    x = jnp.array([[2.0], [2.001], [70_000.0]])
    with computing("bf16"):
        got = fine_product(x, jnp.ones((1, 4)))
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got[:2, 0], [2.0, 2.001], rtol=2**-11)
    assert got[1, 0] > got[0, 0]
    np.testing.assert_array_equal(got[2], 65_504)  # The largest of float16, and not infinity.
    with computing("bf16"):  # A layer's numbers as well, which have another one just above the largest.
        assert np.all(np.isfinite(fine_product(jnp.full((3, 2), 1e6, jnp.bfloat16), jnp.array([[1.0], [-1.0]]))))
    with computing("float32"):
        np.testing.assert_array_equal(fine_product(x, jnp.ones((1, 4)))[:, 0], x[:, 0])


def test_copies_are_of_wide_weights_only():
    network = Network((THIN, THIN)).init(jax.random.key(0), 5, 3)
    with computing("float32"):
        assert jax.tree.leaves(rounded_weights(network)) == []
        jax.tree.map(np.testing.assert_array_equal, rounded(network), network)
    with computing("bf16"):
        copies = rounded_weights(network)
        assert [leaf.shape for leaf in jax.tree.leaves(copies)] == [(THIN, THIN), (THIN, 3)]
        assert dtypes(copies) == {jnp.dtype(jnp.bfloat16)}
        jax.tree.map(np.testing.assert_array_equal, rounded(network, copies), rounded(network))
        assert rounded(network).layers[0].weight.dtype == jnp.float32


def test_a_jitted_function_is_compiled_anew_for_another_precision():
    """Precision is a setting of JAX's: what was traced for one is not used for another."""
    network, x = Network((THIN, THIN)).init(jax.random.key(0), 5, 3), normal(0, 8, 5)
    jitted = jax.jit(lambda network: network(x))

    def computed(precision):
        with computing(precision):
            return jitted(network)

    fine, coarse = computed("float32"), computed("bf16")
    assert 0 < far(coarse, fine) < 0.02
    np.testing.assert_array_equal(computed("float32"), fine)
    assert compute_dtype() == jnp.float32


def test_an_update_among_others_is_the_same_update():
    learner = DDPG(hidden=THIN)
    state = learner.init(jax.random.key(0), ENV, OneHot(4))
    batch, key = transitions(), jax.random.key(6)

    def exactly(function):
        """Without the compiler's leave to keep more bits than asked for."""
        return jax.jit(function, compiler_options={"xla_allow_excess_precision": False})(state)

    def among_others(state):
        begun, metrics = learner.update(learner.begin(state), batch, key)
        assert dtypes(begun.rounded) == {jnp.dtype(jnp.bfloat16)}
        assert jax.tree.structure(begun) == jax.tree.structure(learner.begin(state))
        return learner.end(begun), metrics

    with computing("bf16"):
        alone = exactly(lambda s: learner.update(s, batch, key))
        jax.tree.map(np.testing.assert_array_equal, exactly(among_others), alone)


@pytest.mark.parametrize("kind", ["mlp", "trunk"])
def test_bf16_is_near_float32(kind):
    x = normal(0, 64, 12)
    if kind == "mlp":
        network = Network((128, 128)).init(jax.random.key(1), 12, 5)
    else:
        network = init_trunk(jax.random.key(1), 12, 128)

    def value_and_gradient(network):
        # Far from zero, so that the loss's own gradient is not what rounding makes of a small difference.
        return network(x), jax.grad(lambda n: jnp.square(n(x).astype(jnp.float32) - 3).mean())(network)

    with computing("float32"):
        value, grads = value_and_gradient(network)
    with computing("bf16"):
        coarse, coarse_grads = value_and_gradient(network)
    assert 0 < far(coarse, value) < 0.02
    assert 0 < far(coarse_grads, grads) < 0.02
    assert dtypes(coarse_grads) == {jnp.dtype(jnp.float32)}


def test_an_update_in_bf16_is_near_one_in_float32():
    learner = DDPG(hidden=128, optimizer=Adam(1e-3))
    state = learner.init(jax.random.key(0), ENV, OneHot(4))
    batch = transitions()

    def after(precision):
        with computing(precision):
            return jax.jit(lambda s: learner.update(s, batch, jax.random.key(6)))(state)

    (fine, metrics), (coarse, coarse_metrics) = after("float32"), after("bf16")
    assert dtypes(coarse) == dtypes(coarse_metrics) == {jnp.dtype(jnp.float32)}
    for name in ("actor", "critic", "target"):
        assert 0 < far(getattr(coarse, name), getattr(fine, name)) < 0.02
    # After one step the optimisers' means are a tenth of the gradients.
    assert far(coarse.critic_opt.mean, fine.critic_opt.mean) < 0.02
    assert far(coarse.actor_opt.mean, fine.actor_opt.mean) < 0.1  # Of a difference between critics: noisier.
    for name in ("critic_loss", "actor_loss", "goal"):
        np.testing.assert_allclose(coarse_metrics[name], metrics[name], rtol=0.02, atol=2e-3)


# --- Adam -------------------------------------------------------------------------------------------------------------


def test_adam_adds_coarse_gradients_up_in_float32():
    params, grads = {"x": jnp.ones(100)}, {"x": normal(0, 100).astype(jnp.bfloat16)}
    exact = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
    got, expected = (Adam().update(params, g, Adam().init(params)) for g in (grads, exact))
    jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.parametrize("corrected", [True, False])
def test_adam_by_loops(corrected):
    """Kingma and Ba, Algorithm 1; the maze study adds epsilon to the uncorrected root."""
    rate, eps = 0.01, 1e-3
    optimizer = Adam(rate, eps, corrected)
    grads = np.random.default_rng(0).normal(size=(50, 4)) * [10.0, 1.0, 0.1, 0.001]
    params = {"x": jnp.ones(4)}
    state = optimizer.init(params)
    x, m, v = np.ones(4), np.zeros(4), np.zeros(4)
    for t, g in enumerate(grads, 1):
        params, state = optimizer.update(params, {"x": jnp.asarray(g, jnp.float32)}, state)
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g**2
        if corrected:
            x = x - rate * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + eps)
        else:
            x = x - rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m / (np.sqrt(v) + eps)
        np.testing.assert_allclose(np.asarray(params["x"]) - 1, x - 1, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(state.mean["x"], m, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(state.square["x"], v, rtol=1e-4, atol=1e-10)
    np.testing.assert_allclose(state.decay, [0.9**50, 0.999**50], rtol=1e-5)

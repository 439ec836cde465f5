"""URLB's other methods: properties of all, and every formula against a float64 loop written from its description."""

import functools
import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.envs.spec import EnvSpec
from becl.nn.networks import Network, Trunk, follow, init_trunk, norm, standardize
from becl.objectives.aps import APS, regress_skill
from becl.objectives.apt import APT
from becl.objectives.disagreement import Disagreement
from becl.objectives.extrinsic import Extrinsic
from becl.objectives.icm import ICM
from becl.objectives.particles import init_scale, particle_entropy
from becl.objectives.proto import ProtoRL, nominate, sinkhorn
from becl.objectives.protocol import Batch, Objective
from becl.objectives.rnd import RND
from becl.objectives.smm import SMM, VAE
from becl.skills import Sphere

GOLDEN = json.loads((Path(__file__).parent / "golden" / "algo.json").read_text())
ENV = EnvSpec(obs_dim=3, action_dim=2, episode_length=10)
ROWS = 120
SMALL = Network((16,), "uniform")

OBJECTIVES: dict[str, Objective] = {
    "extrinsic": Extrinsic(),
    "icm": ICM(network=SMALL),
    "disagreement": Disagreement(network=SMALL),
    "rnd": RND(network=SMALL, feature_dim=16),
    "apt": APT(network=SMALL, feature_dim=16),
    "proto": ProtoRL(network=SMALL, feature_dim=16, prototypes=16, queue=40),
    "smm": SMM(network=SMALL, density=SMALL, code_dim=16),
    "aps": APS(network=SMALL, skills=Sphere(4)),
}


def make_batch(seed=0, spread=0.5, centre=0.0) -> Batch:
    """Noise, with four skills one after another."""
    rng = np.random.default_rng(seed)
    obs, next_obs = (jnp.asarray(centre + spread * rng.normal(size=(ROWS, 3)), jnp.float32) for _ in range(2))
    return Batch(
        obs=obs,
        action=jnp.asarray(rng.uniform(-1, 1, (ROWS, 2)), jnp.float32),
        next_obs=next_obs,
        skill=jnp.tile(jnp.eye(4), (ROWS // 4, 1)),
        trajectory=jnp.arange(ROWS) // 10,
        progress=(jnp.arange(ROWS) % 10 + 1) / 10,
        reward=jnp.linspace(-1.0, 1.0, ROWS),
    )


@functools.cache
def compiled_init(name: str):
    return jax.jit(lambda key: OBJECTIVES[name].init(key, ENV))


def started(name: str, seed: int = 0):
    """An objective's first state."""
    return compiled_init(name)(jax.random.key(seed))


def step(objective, state, batch, key):
    fit_key, reward_key = jax.random.split(key)
    state, metrics = objective.fit(state, batch, fit_key)
    state, reward = objective.reward(state, batch, reward_key)
    return state, (reward, metrics)


def weights(*sizes):
    """Parameters of an MLP."""
    return sum(i * o + o for i, o in itertools.pairwise(sizes))


@pytest.mark.parametrize(
    ("name", "trained", "fixed"),
    [
        ("extrinsic", 0, 0),
        ("icm", weights(5, 1024, 3) + weights(6, 1024, 2), 0),
        ("disagreement", 5 * weights(5, 1024, 3), 0),
        ("rnd", weights(3, 1024, 1024, 512), weights(3, 1024, 1024, 512) + 3),
        ("apt", weights(3, 512) + 2 * 512 + weights(514, 1024, 512) + weights(1024, 1024, 2), 0),
        ("proto", weights(3, 128) + weights(128, 512, 128) + 512 * 128, weights(3, 128) + 2048 * 128),
        ("aps", weights(3, 1024, 1024, 10), 3),
        (
            "smm",
            weights(7, 150, 150) + 2 * weights(150, 128) + weights(128, 150, 150, 7) + weights(3, 1024, 1024, 4),
            weights(7, 150, 150) + 2 * weights(150, 128) + weights(128, 150, 150, 7) + weights(3, 1024, 1024, 4),
        ),
    ],
)
def test_released_sizes(name, trained, fixed):
    """Adam keeps two numbers a trained one; `fixed` counts running statistics and networks that only follow."""
    objective = type(OBJECTIVES[name])()
    batch = make_batch()._replace(skill=jnp.zeros((ROWS, objective.skills.dim)))
    state = jax.eval_shape(lambda key: objective.init(key, ENV), jax.random.key(0))
    after, (reward, _) = jax.eval_shape(functools.partial(step, objective), state, batch, jax.random.key(0))
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, state)
    assert reward.shape == (ROWS,)
    leaves = jax.tree_util.tree_leaves_with_path(state)
    floats = sum(x.size for path, x in leaves if x.dtype == jnp.float32 and "decay" not in str(path[-1]))
    assert floats == 3 * trained + fixed


# --- In float64, from the description ---------------------------------------------------------------------------------


def rows(*arrays):
    return np.concatenate([np.asarray(x, np.float64) for x in arrays], 1)


def mlp64(network, x):
    """Linear layers with ReLU between them."""
    *hidden, last = [(np.asarray(layer.weight, np.float64), np.asarray(layer.bias)) for layer in network.layers]
    for weight, bias in hidden:
        x = np.maximum(x @ weight + bias, 0)
    return x @ last[0] + last[1]


def trunk64(trunk: Trunk, x):
    """Linear, LayerNorm without learned scale, tanh; a row at a time."""
    out = []
    for row in rows(x) @ np.asarray(trunk.linear.weight, np.float64) + np.asarray(trunk.linear.bias):
        out.append(np.tanh((row - row.mean()) / np.sqrt(np.mean((row - row.mean()) ** 2) + 1e-5)))
    return np.array(out)


def unit64(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def smallest(x, y, k):
    """Each row's k smallest distances to rows of y."""
    return np.array([sorted(np.sqrt(np.sum((a - b) ** 2)) for b in y)[:k] for a in x])


class RunningMoments:
    """Section 2.0: M = 0, S = 1, n = 1e-4, then batch by batch."""

    def __init__(self):
        self.mean, self.variance, self.number = 0.0, 1.0, 1e-4

    def update(self, x):
        x = np.ravel(x)
        n, b, delta = self.number, len(x), x.mean() - self.mean
        self.variance = (self.variance * n + x.var(ddof=1) * b + delta**2 * n * b / (n + b)) / (n + b)
        self.mean += delta * b / (n + b)
        self.number += b


def first_loss(objective, state, batch, key):
    return objective.fit(state, batch, key)[1]["loss"]


def priced(objective, state, batch, key):
    return objective.reward(state, batch, key)[1]


@pytest.fixture
def batch() -> Batch:
    return make_batch()


@pytest.fixture
def key():
    return jax.random.key(7)


def test_extrinsic_is_the_tasks_own_reward(batch, key):
    np.testing.assert_array_equal(priced(Extrinsic(), (), batch, key), batch.reward)
    assert Extrinsic().skills.dim == 0


def test_icm_by_hand(batch, key):
    objective, state = OBJECTIVES["icm"], started("icm")
    error = rows(batch.next_obs) - mlp64(state.dynamics.forward, rows(batch.obs, batch.action))
    error = np.sqrt((error**2).sum(1))
    action = np.tanh(mlp64(state.dynamics.inverse, rows(batch.obs, batch.next_obs)))
    wrong = np.sqrt(((rows(batch.action) - action) ** 2).sum(1))
    np.testing.assert_allclose(first_loss(objective, state, batch, key), error.mean() + wrong.mean(), rtol=1e-5)
    np.testing.assert_allclose(priced(objective, state, batch, key), np.log(1 + error), rtol=1e-4)


def test_disagreement_by_hand(batch, key):
    objective, state = OBJECTIVES["disagreement"], started("disagreement")
    models = [jax.tree.map(lambda x, m=m: x[m], state.models) for m in range(5)]
    predictions = [mlp64(model, rows(batch.obs, batch.action)) for model in models]
    losses = [np.sqrt(((rows(batch.next_obs) - p) ** 2).sum(1)).mean() for p in predictions]
    expected = []
    for row in range(ROWS):
        variances = []
        for dim in range(3):
            values = [p[row, dim] for p in predictions]
            variances.append(sum((v - sum(values) / 5) ** 2 for v in values) / 4)
        expected.append(sum(variances) / 3)
    np.testing.assert_allclose(first_loss(objective, state, batch, key), np.mean(losses), rtol=1e-5)
    np.testing.assert_allclose(priced(objective, state, batch, key), expected, rtol=1e-4)


def test_disagreeing_models_start_apart_and_uniform():
    assert Disagreement().network.start == "uniform"
    layer, bound = started("disagreement").models.layers[0], 5**-0.5
    assert layer.weight.shape == (5, 5, 16)
    for array in (layer.weight, layer.bias):
        assert np.all(np.abs(array) <= bound)
        np.testing.assert_allclose(np.std(array), bound / 3**0.5, rtol=0.15)
        assert not np.allclose(array[0], array[1])


def test_rnd_by_hand_over_two_batches(key):
    objective, state = OBJECTIVES["rnd"], started("rnd")
    running = RunningMoments()
    for number in range(2):
        batch = make_batch(number)
        batch = batch._replace(obs=batch.obs.at[0].set(50.0))  # Eleven standard deviations out: clipped at 5.
        x = rows(batch.obs)
        for dim in range(3):
            column = x[:, dim]
            x[:, dim] = (column - column.mean()) / np.sqrt(((column - column.mean()) ** 2).mean() + 1e-5)
        assert x.max() > 10
        x = np.clip(x, -5, 5)
        error = ((mlp64(state.target, x) - mlp64(state.predictor, x)) ** 2).mean(1)
        np.testing.assert_allclose(first_loss(objective, state, batch, key), error.mean(), rtol=1e-4)
        running.update(error)
        state, reward = objective.reward(state, batch, key)
        np.testing.assert_allclose(reward, error / (np.sqrt(running.variance) + 1e-8), rtol=1e-3)


def test_rnd_trains_the_predictor_alone(batch, key):
    objective, state = OBJECTIVES["rnd"], started("rnd")
    after, _ = objective.fit(state, batch, key)
    jax.tree.map(np.testing.assert_array_equal, after.target, state.target)
    assert not np.allclose(after.predictor.layers[0].weight, state.predictor.layers[0].weight)
    assert not np.allclose(state.target.layers[0].weight, state.predictor.layers[0].weight)


def test_apt_by_hand(batch, key):
    objective, state = OBJECTIVES["apt"], started("apt")
    here, there = (trunk64(state.networks.trunk, x) for x in (batch.obs, batch.next_obs))
    dynamics = state.networks.dynamics
    error = there - mlp64(dynamics.forward, rows(here, batch.action))
    wrong = rows(batch.action) - np.tanh(mlp64(dynamics.inverse, rows(here, there)))
    loss = np.sqrt((error**2).sum(1)).mean() + np.sqrt((wrong**2).sum(1)).mean()
    np.testing.assert_allclose(first_loss(objective, state, batch, key), loss, rtol=1e-5)
    expected = np.log(1 + smallest(here, here, 12).mean(1))
    np.testing.assert_allclose(priced(objective, state, batch, key), expected, rtol=1e-3)


def test_apt_gradients_reach_the_next_states_features(batch, key):
    """The trunk's step with the loss as described differs from one whose target is held."""
    objective, state = OBJECTIVES["apt"], started("apt")
    step = objective.fit(state, batch, key)[0].opt.mean.trunk.linear.weight / 0.1  # Adam's first moment: 0.1 gradient.
    direction = np.random.default_rng(0).normal(size=step.shape)

    def loss(amount):
        linear = state.networks.trunk.linear
        moved = state.networks.trunk
        moved = Trunk(
            type(linear)(linear.weight + amount * jnp.asarray(direction), linear.bias), moved.gain, moved.shift
        )
        here, there = (trunk64(moved, x) for x in (batch.obs, batch.next_obs))
        dynamics = state.networks.dynamics
        error = there - mlp64(dynamics.forward, rows(here, batch.action))
        wrong = rows(batch.action) - np.tanh(mlp64(dynamics.inverse, rows(here, there)))
        return np.sqrt((error**2).sum(1)).mean() + np.sqrt((wrong**2).sum(1)).mean()

    slope = (loss(1e-3) - loss(-1e-3)) / 2e-3
    np.testing.assert_allclose(np.sum(np.asarray(step) * direction), slope, rtol=1e-2)


@pytest.mark.parametrize(("name", "options"), [("apt", {}), ("aps", {"clip": 1e-4})])
def test_particle_entropy_equals_the_released_numbers(name, options):
    golden = GOLDEN["pbe"]
    scale = None if name == "apt" else init_scale()
    for call, size in ((f"{name}_call1", 1), (f"{name}_call2", 2)):
        reward, scale = particle_entropy(size * jnp.array(golden["rep"]), 3, scale, **options)
        np.testing.assert_allclose(reward, golden[call], rtol=1e-4)


def naive_sinkhorn(scores):
    x = np.exp(scores - scores.max()).T
    x = x / x.sum()
    for _ in range(3):
        for row in range(len(x)):
            x[row] /= x[row].sum() * len(x)
        for column in range(x.shape[1]):
            x[:, column] /= x[:, column].sum() * x.shape[1]
    return (x / x.sum(0)).T


def test_sinkhorn_equals_the_released_numbers_and_the_loop():
    golden = GOLDEN["sinkhorn"]
    scores = np.array(golden["scores"]) / golden["tau"]
    np.testing.assert_allclose(sinkhorn(jnp.asarray(scores, jnp.float32)), golden["q"], rtol=1e-4)
    scores = 5 * np.random.default_rng(0).normal(size=(30, 8))
    np.testing.assert_allclose(sinkhorn(jnp.asarray(scores, jnp.float32)), naive_sinkhorn(scores), rtol=1e-3, atol=1e-6)


def test_sinkhorn_balances_scores_that_would_underflow():
    q = sinkhorn(jnp.array([[0.0, -500.0], [0.0, -400.0]]), 50)
    np.testing.assert_allclose(q.sum(1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(q.sum(0), 1.0, atol=0.05)


def test_proto_by_hand(batch, key):
    objective, state = OBJECTIVES["proto"], started("proto")
    state = state._replace(target=jax.tree.map(lambda x: 0.7 * x + 0.1, state.target))  # No longer a copy.
    networks, prototypes = state.networks, rows(state.networks.prototypes)
    np.testing.assert_allclose(np.linalg.norm(prototypes, axis=1), 1, rtol=1e-5)
    online = unit64(mlp64(networks.projector, mlp64(networks.predictor, rows(batch.obs)))) @ prototypes.T / 0.1
    target = naive_sinkhorn(unit64(mlp64(state.target, rows(batch.next_obs))) @ prototypes.T / 0.1)
    log_p = online - np.log(np.exp(online).sum(1, keepdims=True))
    loss = -np.mean([sum(q * p for q, p in zip(*both, strict=True)) for both in zip(target, log_p, strict=True)])
    np.testing.assert_allclose(first_loss(objective, state, batch, key), loss, rtol=1e-4)

    after, _ = objective.fit(state, batch, key)
    np.testing.assert_allclose(np.linalg.norm(after.networks.prototypes, axis=1), 1, rtol=1e-5)
    moved = jax.tree.map(lambda old, new: 0.95 * old + 0.05 * new, state.target, after.networks.predictor)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), after.target, moved)


def test_proto_prices_against_the_last_candidates(key):
    objective, state = OBJECTIVES["proto"], started("proto")  # Sixteen prototypes, forty places.
    history = []
    for number in range(4):
        batch = make_batch(number)
        features = unit64(mlp64(state.networks.predictor, rows(batch.next_obs)))
        state, reward = objective.reward(state, batch, jax.random.fold_in(key, number))
        newest = np.asarray(state.candidates[-16:])
        assert all(np.any(np.all(np.abs(features - row) < 1e-5, 1)) for row in newest)
        history.append(newest)
        queue = np.concatenate([np.zeros((40, 16)), *history])[-40:]
        np.testing.assert_allclose(state.candidates, queue, rtol=1e-6)
        # The Gram form knows unit vectors that coincide to within a thousandth.
        np.testing.assert_allclose(reward, smallest(features, queue, 3)[:, 2], rtol=1e-3, atol=2e-3)


def test_proto_reward_does_not_read_the_target(batch, key):
    """Why it may move before critic and actor rather than after."""
    objective, state = OBJECTIVES["proto"], started("proto")
    other = state._replace(target=jax.tree.map(lambda x: x + 1, state.target))
    np.testing.assert_array_equal(priced(objective, state, batch, key), priced(objective, other, batch, key))


def test_candidates_are_drawn_from_the_softmax_over_the_batch():
    features, prototypes = jnp.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]), jnp.array([[1.0, 0.0], [0.0, -1.0]])
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = jax.vmap(lambda key: nominate(features, prototypes, key))(keys)
    for number, scores in enumerate(([1.0, -1.0, 0.0], [0.0, 0.0, -1.0])):
        share = [np.mean(np.all(drawn[:, number] == row, -1)) for row in features]
        np.testing.assert_allclose(share, np.exp(scores) / np.exp(scores).sum(), atol=0.03)


def vae64(vae: VAE, x, noise):
    """Squared error of the reconstruction and KL, a row each."""
    hidden = np.maximum(mlp64(vae.encoder, x), 0)
    mean, log_variance = mlp64(vae.mean, hidden), mlp64(vae.log_variance, hidden)
    error = x - mlp64(vae.decoder, mean + np.exp(0.5 * log_variance) * noise)
    return (error**2).sum(1), -0.5 * (1 + log_variance - mean**2 - np.exp(log_variance)).sum(1)


def smm_by_hand(state, batch, key):
    noise = np.asarray(jax.random.normal(key, (ROWS, 16)), np.float64)
    error, divergence = vae64(state.networks.density, rows(batch.obs, batch.skill), noise)
    logits = mlp64(state.networks.classifier, rows(batch.obs))
    log_d = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return error, divergence, log_d[np.arange(ROWS), np.argmax(batch.skill, 1)]


@pytest.mark.parametrize(("skill_term", "sign"), [("released", -1), ("paper", 1)])
def test_smm_by_hand(batch, key, skill_term, sign):
    objective, state = SMM(network=SMALL, density=SMALL, code_dim=16, skill_term=skill_term), started("smm")
    error, divergence, known = smm_by_hand(state, batch, key)
    _, metrics = objective.fit(state, batch, key)
    np.testing.assert_allclose(metrics["density_loss"], error.mean() / 7 + 0.5 * divergence.mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["skill_loss"], -known.mean(), rtol=1e-4)
    np.testing.assert_allclose(
        priced(objective, state, batch, key), error + np.log(4) + sign * known, rtol=1e-3, atol=1e-4
    )


def test_smm_prices_with_the_networks_before_the_fit(batch, key):
    objective, state = OBJECTIVES["smm"], started("smm")
    for number in range(2):
        error, _, known = smm_by_hand(state, batch, key)
        state, _ = objective.fit(state, batch, jax.random.fold_in(key, number))
        reward = priced(objective, state, batch, key)
        np.testing.assert_allclose(reward, error + np.log(4) - known, rtol=1e-3, atol=1e-4)
        fresh = state._replace(before=state.networks)
        assert not np.allclose(reward, priced(objective, fresh, batch, key), rtol=1e-3)


def test_aps_by_hand_over_two_batches(key):
    objective, state = OBJECTIVES["aps"], started("aps")
    running = RunningMoments()
    for number in range(2):
        batch = make_batch(number, spread=1.0 + number)
        batch = batch._replace(skill=Sphere(4).sample(jax.random.key(number), ROWS))
        features = mlp64(state.features, rows(batch.next_obs))
        along = np.array([w @ f / np.sqrt(f @ f) for w, f in zip(rows(batch.skill), features, strict=True)])
        np.testing.assert_allclose(first_loss(objective, state, batch, key), -along.mean(), rtol=1e-4, atol=1e-6)
        distances = smallest(features, features, 12)
        running.update(distances)
        entropy = np.log(1 + np.maximum(distances / running.mean - 1e-4, 0).mean(1))
        state, reward = objective.reward(state, batch, key)
        np.testing.assert_allclose(reward, entropy + along, rtol=1e-3, atol=1e-3)


def test_aps_as_released_has_ten_features():
    objective = APS()
    assert objective.skills.dim == 10
    state = jax.eval_shape(lambda key: objective.init(key, ENV), jax.random.key(0))
    assert state.features.layers[-1].bias.shape == (10,)


def test_skill_regression_equals_the_released_numbers():
    golden = GOLDEN["aps_regress"]
    phi, reward = (jnp.array(golden[name]) for name in ("phi", "reward"))
    for expected in ("task", "normalised_sum_r_phi"):
        np.testing.assert_allclose(regress_skill(phi, reward), golden[expected], rtol=1e-5)
    weights = np.sum([r * f for r, f in zip(golden["reward"], rows(phi), strict=True)], 0)
    np.testing.assert_allclose(regress_skill(3 * phi, reward), weights / np.sqrt(weights @ weights), rtol=1e-5)


def test_skill_regression_by_least_squares_finds_the_task():
    rng = np.random.default_rng(0)
    phi, task = unit64(rng.normal([3, 0, 0, 0, 0], size=(200, 5))), unit64(rng.normal(size=(1, 5)))[0]
    given = jnp.asarray(phi, jnp.float32), jnp.asarray(phi @ (2 * task), jnp.float32)
    np.testing.assert_allclose(jax.jit(regress_skill, static_argnums=2)(*given, "least squares"), task, atol=1e-4)
    assert np.abs(regress_skill(*given) - task).max() > 0.1
    for by in ("released", "least squares"):
        np.testing.assert_array_equal(regress_skill(given[0], jnp.zeros(200), by), 0.0)


# --- Shared pieces ----------------------------------------------------------------------------------------------------


def test_norm_has_no_gradient_at_zero():
    x = jnp.array([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(norm(x), [5.0, 0.0])
    np.testing.assert_allclose(jax.grad(lambda x: norm(x).sum())(x), [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)


def test_standardize_holds_far_from_the_origin():
    x = 1e4 + np.random.default_rng(0).integers(0, 4, (50, 3)).astype(np.float32)
    expected = (x - x.mean(0, dtype=np.float64)) / np.sqrt(x.var(0, dtype=np.float64) + 1e-5)
    np.testing.assert_allclose(standardize(jnp.asarray(x), 0), expected, atol=2e-3)
    assert np.all(np.isfinite(standardize(jnp.full((50, 3), 1e4), 0)))


def test_trunk_by_hand_with_its_gain_and_shift():
    trunk, x = init_trunk(jax.random.key(0), 3, 6), make_batch().obs
    np.testing.assert_allclose(trunk(x), trunk64(trunk, x), rtol=1e-4, atol=1e-5)
    bent = Trunk(trunk.linear, 2 * trunk.gain, trunk.shift + 1)
    np.testing.assert_allclose(bent(x), np.tanh(2 * np.arctanh(trunk64(trunk, x)) + 1), rtol=1e-3, atol=1e-4)


def test_a_target_follows_its_network():
    target, network = {"a": jnp.zeros(2)}, {"a": jnp.ones(2)}
    for steps in (1, 2):
        target = follow(target, network, 0.25)
        np.testing.assert_allclose(target["a"], 1 - 0.75**steps)

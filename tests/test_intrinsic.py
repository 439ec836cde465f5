"""The reward for other learners: the same numbers as in pretraining, from NumPy, and what it refuses."""

import pickle
from collections import OrderedDict

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

import becl
from becl.envs.spec import EnvSpec
from becl.nn.networks import Network
from becl.objectives import METHODS
from becl.objectives.icm import ICM
from becl.objectives.rnd import RND

ROWS = 32
NAMES = [name for name in METHODS if "-" not in name and name != "ddpg"] + ["becl-paper", "becl+rnd"]


class Room(gymnasium.Env):
    """Has named observations, and actions that are not in [-1, 1]."""

    observation_space = Dict({"place": Box(-9, 9, (2,)), "other": Box(-1, 1, (1,))})
    action_space = Box(np.array([2.0, -1.0]), np.array([4.0, 0.0]), dtype=np.float64)


def transitions(obs: int = 3, action: int = 2, rows: int = ROWS, seed: int = 0):
    random = np.random.default_rng(seed)
    return random.normal(size=(rows, obs)), random.uniform(-1, 1, (rows, action)), random.normal(size=(rows, obs))


@pytest.mark.parametrize("name", NAMES)
def test_every_method_but_the_tasks_own_rewards_and_learns(name):
    made = becl.intrinsic(name, Room(), hidden=8)
    batch = transitions()
    skill = (made.draw(ROWS),) if made.skills.dim else ()
    before = made.reward(*batch, *skill)
    metrics = made.fit((*batch, *skill))
    after = made.reward(*batch, *skill)
    assert before.shape == after.shape == (ROWS,)
    assert before.dtype == np.float32
    assert np.isfinite([before, after]).all()
    assert metrics
    assert np.isfinite(list(metrics.values())).all()


def test_it_is_the_objective_of_pretraining_to_the_bit():
    made = becl.intrinsic("icm", Room(), hidden=8, seed=3, actions="scaled")
    objective, spec = ICM(network=Network((8,))), EnvSpec(3, 2, 1000)
    state = jax.jit(objective.init, static_argnums=1)(jax.random.key(3), spec)
    for seed in range(3):
        obs, action, next_obs = (jnp.asarray(part, jnp.float32) for part in transitions(seed=seed))
        nothing = jnp.zeros((ROWS, 0)), jnp.arange(ROWS), jnp.ones(ROWS), jnp.zeros(ROWS)
        batch = becl.Batch(obs, action, next_obs, *nothing)
        state, _ = jax.jit(objective.fit)(state, batch, jax.random.key(0))  # ICM draws nothing.
        state, expected = jax.jit(objective.reward)(state, batch, jax.random.key(0))
        made.fit(transitions(seed=seed))
        np.testing.assert_array_equal(made.reward(*transitions(seed=seed)), expected)


def test_rnd_equals_the_formula_by_loops():
    made = becl.intrinsic(RND(feature_dim=5, network=Network((8,))), Room())
    rng = np.random.default_rng(0)
    obs = rng.normal(2.0, 3.0, (ROWS, 3)).astype(np.float32)

    def forward(network, x):
        for number, layer in enumerate(network.layers):
            weight, bias = np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64)
            x = [sum(x[i] * weight[i, j] for i in range(len(x))) + bias[j] for j in range(len(bias))]
            if number < len(network.layers) - 1:
                x = [max(one, 0.0) for one in x]
        return x

    wide = obs.astype(np.float64)
    white = np.clip((wide - wide.mean(0)) / np.sqrt(wide.var(0) + 1e-5), -5, 5)
    errors = []
    for row in white:
        pair = zip(forward(made._state.target, row), forward(made._state.predictor, row), strict=True)
        errors.append(np.mean([(one - other) ** 2 for one, other in pair]))
    before = made._state.scale
    reward = made.reward(obs, np.zeros((ROWS, 2)), obs)
    # The running statistics began with nothing but this batch.
    ratio = reward / np.array(errors)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
    assert float(before.variance) != float(made._state.scale.variance)


def test_what_was_seen_is_less_new():
    made = becl.intrinsic("rnd", Room(), hidden=32, set=["feature_dim=8", "optimizer.learning_rate=1e-2"])
    random = np.random.default_rng(0)
    nothing = np.zeros((2 * ROWS, 2))

    def both(seen_only: bool) -> np.ndarray:
        half = random.normal(-1.0, 0.2, (ROWS, 3))
        other = random.normal(-1.0 if seen_only else 1.0, 0.2, (ROWS, 3))
        return np.concatenate([half, other])

    whole = both(False)  # Whitening is by the batch, so that both kinds must be in it, one of them rarely fitted.
    for _ in range(200):
        obs = whole.copy()
        obs[ROWS + 2 :] = both(True)[ROWS + 2 :]
        made.fit((obs, nothing, obs))
    reward = made.reward(whole, nothing, whole)
    assert reward[ROWS:].mean() > reward[:ROWS].mean()


def test_actions_are_scaled_as_the_environment_says():
    own, scaled = (becl.intrinsic("icm", Room(), hidden=8, actions=kind) for kind in ("environment", "scaled"))
    obs, action, next_obs = transitions()
    raw = action * [1.0, 0.5] + [3.0, -0.5]
    np.testing.assert_allclose(own.reward(obs, raw, next_obs), scaled.reward(obs, action, next_obs), rtol=1e-5)
    beyond = np.where(np.arange(ROWS)[:, None] == 0, 9.0, raw)
    cut = np.where(np.arange(ROWS)[:, None] == 0, [4.0, 0.0], raw)
    np.testing.assert_array_equal(own.reward(obs, beyond, next_obs), own.reward(obs, cut, next_obs))


def test_observations_come_as_the_environment_has_them():
    # Gymnasium's order is that of the alphabet: other, place.
    made, flat = (becl.intrinsic("icm", Room(), hidden=8, objective_obs="place") for _ in range(2))
    obs, action, next_obs = transitions()
    named = [OrderedDict(other=one[:, :1], place=one[:, 1:]) for one in (obs, next_obs)]
    expected = flat.reward(obs, action, next_obs)
    np.testing.assert_array_equal(made.reward(named[0], action, named[1]), expected)
    obs[:, 0] += 1  # Not seen.
    np.testing.assert_array_equal(made.reward(obs, action, next_obs), expected)


def test_a_batch_may_be_named():
    batch = dict(zip(("obs", "action", "next_obs"), transitions(), strict=True))
    skill = np.eye(4, dtype=np.float32)[np.arange(ROWS) % 4]
    trajectory, progress = np.arange(ROWS) // 8, (np.arange(ROWS) % 8 + 1) / 8
    ways = [
        batch | {"skill": skill, "trajectory": trajectory, "progress": progress},
        becl.Batch(**batch, skill=skill, trajectory=trajectory, progress=progress, reward=np.zeros(ROWS)),  # type: ignore[arg-type]
    ]
    losses = []
    for way in ways:
        made = becl.intrinsic("becl-paper", Room(), skills=4, hidden=8, set=["positive=distant"])
        losses.append(made.fit(way))
        again = becl.intrinsic("becl-paper", Room(), skills=4, hidden=8, set=["positive=distant"])
        again.fit((*batch.values(), skill))
        own = made.reward(**batch, skill=skill, trajectory=trajectory, progress=progress)
        assert (own != again.reward(**batch, skill=skill)).any()  # It looks for the same stretch.
    assert losses[0] == losses[1]


def test_environments_of_all_kinds():
    size = {
        "walker": (24, 6), "square_a": (2, 2), "gym:Pendulum-v1": (3, 1), gymnasium.make_vec("Pendulum-v1", 2): (3, 1),
        (lambda: gymnasium.make("Pendulum-v1")): (3, 1),
    }  # fmt: skip
    for env, (obs, action) in size.items():
        made = becl.intrinsic("rnd", env, hidden=8)
        assert made.reward(*transitions(obs, action)).shape == (ROWS,)
    assert becl.intrinsic("apt", "walker", hidden=8, objective_obs="height").reward(*transitions(24, 6)).shape == (
        ROWS,
    )


def test_it_can_be_pickled_with_what_it_has_learned():
    made = becl.intrinsic("cic", Room(), hidden=8)
    skill = made.draw(ROWS)
    made.fit((*transitions(), skill))
    copy = pickle.loads(pickle.dumps(made))
    for _ in range(2):
        assert made.fit((*transitions(), skill)) == copy.fit((*transitions(), skill))
        np.testing.assert_array_equal(made.reward(*transitions(), skill), copy.reward(*transitions(), skill))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: becl.intrinsic("rdn", Room()), "unknown method 'rdn': did you mean 'rnd'?"),
        (lambda: becl.intrinsic("becl+rdn", Room()), "unknown part of becl+rdn: 'rdn': did you mean 'rnd'?"),
        (lambda: becl.intrinsic("ddpg+rnd", Room()), "ddpg rewards what the task does"),
        (lambda: becl.intrinsic("rnd", Room(), skills=4), "--skills 4: rnd has no skills"),
        (lambda: becl.intrinsic("rnd", Room(), set=["learner.hidden=8"]), "learner.hidden=8: only options of rnd"),
        (lambda: becl.intrinsic("rnd", Room(), set=["feature_dims=8"]), "did you mean 'feature_dim'?"),
        (lambda: becl.intrinsic("rnd", Room(), actions="raw"), "unknown range of actions 'raw'"),
        (lambda: becl.intrinsic("rnd", 3), "int is no environment"),
        (lambda: becl.intrinsic("rnd", "wlaker"), "did you mean 'walker'?"),
        (lambda: becl.intrinsic("rnd", Room(), objective_obs="plaice"), "did you mean 'place'?"),
    ],
)
def test_what_cannot_be_made_is_refused_with_one_line(make, message):
    with pytest.raises(becl.UserError) as error:
        make()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": np.zeros((ROWS, 4))}, "obs of shape (32, 4): rows of 3 numbers are needed"),
        ({"obs": np.zeros(3)}, "obs of shape (3,): rows of 3 numbers are needed"),
        ({"next_obs": np.zeros((8, 3))}, "next_obs of shape (8, 3), but obs has 32 rows"),
        ({"action": np.zeros((ROWS, 1))}, "action of shape (32, 1): rows of 2 numbers are needed"),
        ({"obs": np.full((ROWS, 3), np.nan)}, "obs: row 0 has numbers that are not finite"),
        ({"skill": None}, "diayn has skills: hand over those that acted, rows of 4 numbers"),
        ({"skill": np.zeros((ROWS, 5))}, "skill of shape (32, 5): rows of 4 numbers are needed"),
    ],
)
def test_wrong_batches_are_refused_with_one_line(change, message):
    made = becl.intrinsic("diayn", Room(), skills=4, hidden=8)
    batch = dict(zip(("obs", "action", "next_obs"), transitions(), strict=True)) | {"skill": made.draw(ROWS)} | change
    for call in (lambda: made.reward(**batch), lambda: made.fit(batch)):
        with pytest.raises(becl.UserError) as error:
            call()
        assert str(error.value).startswith(message)


def test_batches_that_say_nothing_are_refused():
    made = becl.intrinsic("apt", Room(), hidden=8)
    with pytest.raises(becl.UserError, match="a batch of 1: rewards compare transitions"):
        made.reward(*transitions(rows=1))
    with pytest.raises(becl.UserError, match="a batch of 4: fewer than the 12 neighbours"):
        made.reward(*transitions(rows=4))
    with pytest.raises(becl.UserError, match="rnd has no skills; leave it out"):
        becl.intrinsic("rnd", Room(), hidden=8).reward(*transitions(), np.zeros((ROWS, 2)))
    with pytest.raises(becl.UserError, match="a batch of 2 parts"):
        made.fit(transitions()[:2])
    with pytest.raises(becl.UserError, match="a batch without action"):
        made.fit({"obs": transitions()[0], "next_obs": transitions()[0]})
    with pytest.raises(becl.UserError, match="unknown part of a batch 'skil': did you mean 'skill'"):
        made.fit(dict(zip(("obs", "action", "next_obs"), transitions(), strict=True)) | {"skil": 1})

"""Numbers that tell whether networks can still learn, on networks and batches whose numbers are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.envs.spec import EnvSpec
from becl.learning.ddpg import DDPG
from becl.learning.diagnostics import dormant_share, effective_rank, gradient_size, saturation
from becl.learning.replay import Transitions
from becl.nn.adam import Adam
from becl.runs.troubles import Watch
from becl.skills import OneHot

ENV = EnvSpec(obs_dim=3, action_dim=2, episode_length=10)
BATCH = 64


def transitions(key: int = 0) -> Transitions:
    keys = jax.random.split(jax.random.key(key), 3)
    obs = jax.random.normal(keys[0], (BATCH, 3))
    skill = jax.nn.one_hot(jnp.arange(BATCH) % 4, 4)
    action = jax.random.uniform(keys[1], (BATCH, 2), minval=-1.0)
    nothing = jnp.zeros(BATCH)
    return Transitions(obs, action, nothing, nothing, obs, skill, jnp.arange(BATCH), jnp.ones(BATCH, int))


def test_saturation_counts_actions_at_either_end():
    actions = jnp.array([[0.999, -0.995], [0.98, 0.0], [-1.0, 0.5]])
    assert float(saturation(actions)) == pytest.approx(3 / 6)


def test_dormant_units_are_quiet_beside_their_layer():
    units = jnp.ones((10, 8)).at[:, 0].set(0.0).at[:, 1].set(0.01).at[:, 2].set(0.5)
    assert float(dormant_share(units)) == pytest.approx(2 / 8)
    assert float(dormant_share(jnp.zeros((10, 4)))) == 1.0


@pytest.mark.parametrize("directions", [1, 3, 7])
def test_effective_rank_of_equal_directions_is_their_number(directions):
    """Whatever the features' origin, size and rotation."""
    rng = np.random.default_rng(directions)
    base = np.kron(np.eye(directions), [[1.0], [-1.0]])  # Two states a direction, the mean of each is zero.
    rotation = np.linalg.qr(rng.normal(size=(12, 12)))[0][:directions]
    features = jnp.asarray(0.3 * base @ rotation + rng.normal(size=12), jnp.float32)
    assert float(effective_rank(features)) == pytest.approx(directions, rel=1e-4)


def test_effective_rank_is_that_of_the_covariances_eigenvalues():
    features = np.random.default_rng(0).normal(size=(50, 6)) * [5, 3, 1, 1, 0.1, 0]
    values = np.linalg.eigvalsh(np.cov(features.T))
    expected = values.sum() ** 2 / np.square(values).sum()
    assert float(effective_rank(jnp.asarray(features, jnp.float32))) == pytest.approx(expected, rel=1e-4)


def test_gradients_of_one_size_are_seen_as_that_size():
    """Also in the beginning, where Adam's running means have hardly moved."""
    optimizer = Adam(1e-4, eps=1e-3)
    params = {"large": jnp.zeros((3, 3)), "small": jnp.zeros(3)}
    state = optimizer.init(params)
    for _ in range(3):
        _, state = optimizer.update(params, {"large": jnp.full((3, 3), 0.02), "small": jnp.full(3, 1e-5)}, state)
    size, idle = gradient_size(optimizer, state)
    assert float(size) == pytest.approx(np.sqrt((9 * 0.02**2 + 3 * 1e-10) / 12), rel=1e-3)
    assert float(idle) == pytest.approx(3 / 12)


def test_a_policy_pushed_to_the_ends_of_its_range_is_seen():
    learner = DDPG(hidden=32)
    state = learner.init(jax.random.key(0), ENV, OneHot(4))
    before = learner.diagnose(state, transitions())
    out = state.actor.out
    pushed = state.actor.__class__(
        state.actor.trunk, state.actor.hidden, out.__class__(out.weight, out.bias + jnp.array([9.0, 0.0]))
    )
    after = learner.diagnose(state._replace(actor=pushed), transitions())
    assert float(before["saturation"]) < 0.2
    assert float(after["saturation"]) >= 0.5  # One of two numbers, whatever the state.
    assert float(after["before_tanh"]) > float(before["before_tanh"]) + 2
    # What is in front of the last layer did not change.
    for name in ("actor_dormant", "actor_rank", "critic_dormant", "critic_rank"):
        assert float(after[name]) == float(before[name])


def test_a_dead_layer_is_seen():
    learner = DDPG(hidden=32)
    state = learner.init(jax.random.key(0), ENV, OneHot(4))
    hidden = state.actor.hidden
    dead = hidden.__class__(hidden.weight, hidden.bias.at[:16].set(-100.0))
    numbers = learner.diagnose(
        state._replace(actor=state.actor.__class__(state.actor.trunk, dead, state.actor.out)), transitions()
    )
    assert float(numbers["actor_dormant"]) >= 0.5


def test_trouble_is_told_once_with_the_step_the_seeds_and_what_to_try():
    lines: list[str] = []
    watch = Watch(lines.append)
    good = {"saturation": 0.67, "actor_rank": 36.0, "actor_dormant": 0.06}  # Of a run that transfers well.
    watch.on_log(10_000, [{"seed": 0, **good}, {"seed": 1, **good}])
    assert lines == []
    watch.on_log(20_000, [{"seed": 0, **good}, {"seed": 1, **good, "saturation": 0.97}])
    watch.on_log(30_000, [{"seed": 0, **good, "saturation": 0.99}, {"seed": 1, **good, "saturation": 0.97}])
    (line,) = lines
    assert "seed 1 after 20,000 steps: 97% of actions" in line
    assert "--set reward_scale=" in line
    watch.on_log(40_000, [{"seed": 3, **good, "actor_rank": 1.0}, {"seed": 4, **good, "actor_rank": 1.05}])
    assert "seed 3, 4 after 40,000 steps" in lines[1]
    assert "collapsed" in lines[1]
    watch.on_log(50_000, [{"seed": 0}])  # Of a learner that says nothing of itself.
    assert len(lines) == 2


def test_what_a_warning_advises_works(tmp_path, capsys):
    from becl.commands.cli import main

    words = ["pretrain", "square_a", "--steps", "300", "--envs", "4", "--hidden", "8", "--normalize-obs",
             "--out", str(tmp_path / "run"), "--set", "random_steps=100", "batch=16", "replay.capacity=400",
             "reward_scale=10", "learner.optimizer.learning_rate=3e-5"]  # fmt: skip
    assert main(words) == 0
    assert "saturation" in (tmp_path / "run" / "metrics.csv").read_text().splitlines()[0]

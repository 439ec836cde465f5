"""What every method must do, as checks for the tests of one's own:

    import pytest
    from becl.testing import checks
    from metra import METRA

    @pytest.mark.parametrize("check", checks, ids=lambda check: check.__name__)
    def test_metra(check):
        check(METRA())

Each takes an objective, makes its networks small, and raises an AssertionError that says what is wrong. Two are matters
of the formula: leave `order_of_the_batch_does_not_matter` out if yours draws something for each row, and
`fitting_lowers_the_loss` if yours has nothing to fit. `check_objective` does all at once.
"""

import dataclasses
import functools
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from becl.envs.spec import EnvSpec
from becl.errors import UserError
from becl.nn.adam import with_optimizers, without_optimizers
from becl.nn.networks import Network, with_hidden
from becl.objectives import Batch, Metrics, Objective, Sum, kinds_of
from becl.objectives.protocol import chance_reward
from becl.objectives.registry import check_frozen, check_json
from becl.objectives.total import named_parts
from becl.runs.arrays import load_arrays, named_arrays, save_arrays
from becl.skills import OneHot
from becl.specs import from_dict, to_dict

ENV = EnvSpec(obs_dim=3, action_dim=2, episode_length=10)
STEPS = 60  # Of fit and reward, in most checks.
FITTED = 5 * STEPS  # Until nothing more is to be learned of states that are all alike.
CLOSE = 0.05  # Part of a chance level, or of 1 where that is 0.
SKILLS = 4
SIZES = {"feature_dim": 5, "code_dim": 5, "prototypes": 8, "queue": 40, "episode_length": 10}
"""Options that are made small where an objective has them."""


# --- Small objectives and batches -------------------------------------------------------------------------------------


def small(objective: Any) -> Any:
    """The objective with tiny networks and four skills, or as many dimensions of continuous ones."""
    values: dict[str, Any] = {field.name: getattr(objective, field.name) for field in dataclasses.fields(objective)}
    sizes: dict[str, Any] = {name: size for name, size in SIZES.items() if values.get(name) is not None}
    if isinstance(objective, Sum):
        sizes["parts"] = tuple(map(small, objective.parts))
    if objective.skills.dim:
        sizes["skills"] = dataclasses.replace(values["skills"], dim=SKILLS)
    return with_hidden(dataclasses.replace(objective, **sizes), 16)


def make_batch(seed: int = 0, episodes: int = 12, steps: int = 10, skills: int = SKILLS, apart: float = 0.0) -> Batch:
    """Episodes of noise with one-hot skills; `apart` moves each skill's states to its own place."""
    rng = np.random.default_rng(seed)
    index = np.arange(episodes) % skills
    centre = rng.normal(size=(skills, ENV.obs_dim)) * apart
    states = rng.normal(size=(episodes, steps + 1, ENV.obs_dim)) * 0.5 + centre[index][:, None]

    def flat(x: np.ndarray) -> jax.Array:
        return jnp.asarray(x.reshape(episodes * steps, -1), jnp.float32)

    return Batch(
        obs=flat(states[:, :-1]),
        action=flat(rng.uniform(-1, 1, (episodes, steps, ENV.action_dim))),
        next_obs=flat(states[:, 1:]),
        skill=jnp.repeat(jax.nn.one_hot(index, skills), steps, axis=0),
        trajectory=jnp.repeat(jnp.arange(episodes), steps),
        progress=jnp.tile(jnp.arange(1, steps + 1) / steps, episodes),
        reward=jnp.asarray(rng.normal(size=episodes * steps), jnp.float32),
    )


def batch_for(objective: Objective, **options: Any) -> Batch:
    """The batch with skills of the method's own space: four of them, or none where it has none."""
    batch, space = make_batch(**options), objective.skills
    four = jnp.eye(SKILLS) if isinstance(space, OneHot) else space.sample(jax.random.key(0), SKILLS)
    return batch._replace(skill=four[jnp.argmax(batch.skill, 1)])


def degenerate(batch: Batch) -> dict[str, Batch]:
    """Batches that a run may meet and a formula may divide by zero on."""
    rows = jnp.arange(len(batch.progress))
    alike = Batch(*(jnp.broadcast_to(x[0], x.shape) for x in batch))
    one_skill = batch._replace(skill=alike.skill)
    return {
        "one skill": one_skill,
        "a skill seen once": batch._replace(skill=jnp.where(rows[:, None] == 0, batch.skill[0], batch.skill[10])),
        "one trajectory": one_skill._replace(trajectory=alike.trajectory, progress=(rows + 1) / len(rows)),
        "a trajectory a row": batch._replace(trajectory=rows),
        "one state": batch._replace(obs=alike.obs, next_obs=alike.obs),
        "one state, at the origin": batch._replace(obs=0 * batch.obs, next_obs=0 * batch.obs),
        "one state, far out": batch._replace(obs=100 + alike.obs, next_obs=100 + alike.obs),
        "one transition": alike,
        "no actions": batch._replace(action=0 * batch.action),
    }


# --- Running them -----------------------------------------------------------------------------------------------------


def start(objective: Objective, key: Any) -> Any:
    return objective.init(key, ENV)  # Not compiled as a whole: objectives share most of its pieces.


def step(objective: Objective, state: Any, batch: Batch, key: Any) -> tuple[Any, tuple[Any, Metrics]]:
    fit_key, reward_key = jax.random.split(key)
    state, metrics = objective.fit(state, batch, fit_key)
    state, reward = objective.reward(state, batch, reward_key)
    return state, (reward, metrics)


@functools.partial(jax.jit, static_argnums=0)
def run(objective: Objective, state: Any, batch: Batch, key: Any) -> tuple[Any, tuple[Any, Metrics]]:
    """Steps of fit and reward, compiled once an objective for most of its checks."""
    return jax.lax.scan(lambda state, key: step(objective, state, batch, key), state, jax.random.split(key, STEPS))


def described(tree: Any) -> Any:
    return jax.tree.map(lambda x: (x.shape, x.dtype), tree)


def finite(tree: Any) -> bool:
    return all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(tree))


def assert_same_reward(objective: Objective, reward: Any, expected: Any) -> None:
    """Up to rounding. A state's distance to itself is a rounding error of the Gram matrix, up to 5e-4 of its norm."""
    atol = 2e-3 if any(hasattr(part, "neighbours") for _, part in named_parts(objective)) else 1e-4
    np.testing.assert_allclose(reward, expected, rtol=2e-3, atol=atol)


# --- The checks -------------------------------------------------------------------------------------------------------


def options_survive_json(objective: Any) -> None:
    """A frozen dataclass of options that a run's folder can keep."""
    try:
        check_frozen("objective", objective)
        check_frozen("objective", objective.skills)
        check_json("objective", objective)
    except UserError as error:
        raise AssertionError(str(error)) from None
    classes = {kind.__name__: kind for kind in kinds_of(objective)}
    assert from_dict(json.loads(json.dumps(to_dict(objective))), classes) == objective


def rewards_are_finite_and_one_a_row(objective: Any) -> None:
    objective = small(objective)
    assert isinstance(objective, Objective), "an objective has skills, init, fit and reward"
    state, batch = start(objective, jax.random.key(0)), batch_for(objective)
    _, (reward, metrics) = run(objective, state, batch, jax.random.key(1))
    rows = len(batch.progress)
    assert reward.shape == (STEPS, rows), f"reward has shape {reward.shape[1:]}, not ({rows},)"
    assert reward.dtype == jnp.float32, f"reward has type {reward.dtype}"
    assert finite(reward), "a reward is not finite"
    for name, value in metrics.items():
        assert np.shape(value) == (STEPS,), f"metric {name} is no scalar"
        assert finite(value), f"metric {name} is not finite"


def state_keeps_its_shape(objective: Any) -> None:
    """Through `fit`, through `reward`, and over many steps."""
    objective = small(objective)
    state, batch, key = start(objective, jax.random.key(0)), batch_for(objective), jax.random.key(1)
    after_fit, _ = jax.eval_shape(objective.fit, state, batch, key)
    after_reward, _ = jax.eval_shape(objective.reward, state, batch, key)
    after_run, _ = run(objective, state, batch, key)
    for name, after in (("fit", after_fit), ("reward", after_reward), ("a run", after_run)):
        assert described(after) == described(state), f"the state changes its shape or type in {name}"


def jit_and_scan_change_nothing(objective: Any) -> None:
    """And the same key gives the same bits."""
    objective = small(objective)
    state, batch, key = start(objective, jax.random.key(3)), batch_for(objective), jax.random.key(4)
    _, (rewards, _) = run(objective, state, batch, key)
    np.testing.assert_array_equal(rewards, run(objective, state, batch, key)[1][0])
    for number in range(2):
        state, (reward, _) = step(objective, state, batch, jax.random.split(key, STEPS)[number])
        assert_same_reward(objective, rewards[number], reward)


def seeds_train_together_as_they_do_alone(objective: Any) -> None:
    objective = small(objective)
    batch, keys = batch_for(objective), jax.random.split(jax.random.key(0), 3)
    first = jax.vmap(lambda key: jax.random.split(key, STEPS)[0])(keys)
    states = jax.vmap(functools.partial(start, objective))(keys)
    _, (together, _) = jax.jit(jax.vmap(functools.partial(step, objective), (0, None, 0)))(states, batch, first)
    for key, reward in zip(keys, together, strict=True):
        _, (alone, _) = run(objective, start(objective, key), batch, key)
        assert_same_reward(objective, reward, alone[0])


def fitting_lowers_the_loss(objective: Any) -> None:
    """On skills whose states lie apart; where there is no metric `loss`, fitting must at least change the state."""
    objective = small(objective)
    state, batch = start(objective, jax.random.key(0)), batch_for(objective, apart=3.0)
    after, (_, metrics) = run(objective, state, batch, jax.random.key(1))
    if "loss" in metrics:
        first, last = metrics["loss"][0], metrics["loss"][-1]
        assert last < first, f"the loss goes from {first:.4g} to {last:.4g} in {STEPS} steps"
    else:
        pairs = zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True)
        assert any(not np.array_equal(one, other) for one, other in pairs), "fitting changes nothing"
    assert finite(after), "something in the state is not finite"


def order_of_the_batch_does_not_matter(objective: Any) -> None:
    objective = small(objective)
    state, batch = start(objective, jax.random.key(0)), batch_for(objective)
    order = np.random.default_rng(0).permutation(len(batch.progress))
    shuffled = Batch(*(x[order] for x in batch))
    price = jax.jit(objective.reward)
    reward = price(state, batch, jax.random.key(1))[1]
    np.testing.assert_allclose(price(state, shuffled, jax.random.key(1))[1], reward[order], rtol=1e-3, atol=1e-5)


def degenerate_batches_leave_everything_finite(objective: Any) -> None:
    objective = small(objective)
    state = start(objective, jax.random.key(0))
    for name, batch in degenerate(batch_for(objective)).items():
        assert finite(run(objective, state, batch, jax.random.key(1))), f"not finite: {name}"


def huge_observations_leave_everything_finite(objective: Any) -> None:
    """Huge means about 10,000: squares and sums of them fit into float32, exponentials do not."""
    objective = small(objective)
    batch = batch_for(objective)
    huge = batch._replace(obs=1e4 * batch.obs, next_obs=1e4 * batch.next_obs)
    after = run(objective, start(objective, jax.random.key(0)), huge, jax.random.key(1))
    assert finite(after), "not finite"


def whitening_networks_keep_their_structure(objective: Any) -> None:
    """With `normalize` a network counts what it sees: `fit` must return `network.observe(...)`, or leave it alone."""
    objective = small(objective)
    networks = {field.name: getattr(objective, field.name) for field in dataclasses.fields(objective)}
    networks = {name: value for name, value in networks.items() if isinstance(value, Network)}
    whitening = {name: dataclasses.replace(value, normalize=True) for name, value in networks.items()}
    objective = dataclasses.replace(objective, **whitening)
    state = jax.eval_shape(functools.partial(objective.init, env=ENV), jax.random.key(0))
    after, _ = jax.eval_shape(functools.partial(step, objective), state, batch_for(objective), jax.random.key(0))
    assert described(after) == described(state), "the state changes its shape or type"


def no_array_stands_twice_in_a_state(objective: Any) -> None:
    """Donating such a state would fail; `jnp.copy` makes a second one."""
    arrays = jax.make_jaxpr(functools.partial(small(objective).init, env=ENV))(jax.random.key(0)).jaxpr.outvars
    assert len({id(array) for array in arrays}) == len(arrays), "the state has the same array in two places"


def snapshots_can_be_read_again(objective: Any) -> None:
    """A state is a NamedTuple of arrays; Adam's states in it begin anew, wherever they are."""
    objective = small(objective)
    state = start(objective, jax.random.key(0))
    assert hasattr(state, "_fields") or not jax.tree.leaves(state), "the state must be a NamedTuple"
    shapes = jax.eval_shape(lambda: objective.init(jax.random.key(0), ENV))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.safetensors"
        save_arrays(path, {"objective": without_optimizers(state), "step": np.zeros(1)}, {})
        loaded = load_arrays(path, {"objective": without_optimizers(shapes), "step": np.zeros(1)})["objective"]
    again = with_optimizers(loaded, shapes)
    assert described(again) == described(state), "the state comes back with other shapes"
    kept, before = named_arrays(without_optimizers(again)), named_arrays(without_optimizers(state))
    for name, array in before.items():
        np.testing.assert_array_equal(kept[name], array, err_msg=name)


def states_that_say_nothing_earn_the_chance_level(objective: Any) -> None:
    """Where the objective has `chance_reward`: once it is fitted to states that are all alike."""
    objective = small(objective)
    state, batch = start(objective, jax.random.key(0)), degenerate(batch_for(objective))["one state"]
    level = chance_reward(objective, len(batch.progress))
    if level is None:
        return
    for number in range(FITTED // STEPS):
        state, (reward, _) = run(objective, state, batch, jax.random.key(number))
    earned = float(reward[-1].mean())  # type: ignore[reportPossiblyUnbound]
    close = CLOSE * (abs(level) or 1)
    assert abs(earned - level) <= close, f"chance_reward is {level:.4g}, but such states earn {earned:.4g}"


checks: tuple[Callable[[Any], None], ...] = (
    options_survive_json,
    rewards_are_finite_and_one_a_row,
    state_keeps_its_shape,
    jit_and_scan_change_nothing,
    seeds_train_together_as_they_do_alone,
    fitting_lowers_the_loss,
    order_of_the_batch_does_not_matter,
    degenerate_batches_leave_everything_finite,
    huge_observations_leave_everything_finite,
    whitening_networks_keep_their_structure,
    no_array_stands_twice_in_a_state,
    snapshots_can_be_read_again,
    states_that_say_nothing_earn_the_chance_level,
)
"""For `pytest.mark.parametrize`."""


def check_objective(objective: Any) -> None:
    """All checks; the first that fails says which it is."""
    for check in checks:
        try:
            check(objective)
        except AssertionError as error:
            raise AssertionError(f"{check.__name__}: {str(error).strip()}") from error

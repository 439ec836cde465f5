"""What a method of somebody's own gives for a batch, looked at before a run begins. Nothing is computed but shapes."""

import traceback
from typing import Any

import jax

from becl.errors import UserError, brief
from becl.learning.offpolicy import OffPolicy
from becl.objectives.protocol import SeveralTargets


def check_outputs(method: str, run: OffPolicy) -> None:
    """Refuses a method whose functions fail on a batch of this run, or give what the loop cannot use."""
    key, objective = jax.random.key(0), run.objective
    state = traced(f"method {method!r}: init", lambda: run.init(key)[0])

    def drawn(state: Any, key: Any) -> Any:
        return run.to_batch(state.learner, run.replay.sample(state.replay, key, run.batch))

    batch = traced(f"method {method!r}: a batch", drawn, state, key)
    fitted, metrics = pair(method, "fit", traced(f"method {method!r}: fit", objective.fit, state.objective, batch, key))
    rewarded, reward = pair(
        method, "reward", traced(f"method {method!r}: reward", objective.reward, state.objective, batch, key)
    )
    several = isinstance(objective, SeveralTargets) and bool(objective.targets)
    if getattr(reward, "shape", None) != (run.batch,) and not several:
        raise UserError(
            f"method {method!r}: reward gives {shape_of(reward)} for a batch of {run.batch:,}; a number for each is "
            f"needed, an array of shape ({run.batch},)"
        )
    if not isinstance(metrics, dict):
        raise UserError(f"method {method!r}: fit gives {shape_of(metrics)} for metrics; a dictionary is needed")
    for name, value in metrics.items():
        if getattr(value, "shape", ()) != ():
            raise UserError(f"method {method!r}: metric {name!r} is {shape_of(value)}; a single number is needed")
    for name, after in (("fit", fitted), ("reward", rewarded)):
        if described(after) != described(state.objective):
            raise UserError(f"method {method!r}: {name} gives a state of another shape or type than init")


def traced(what: str, function: Any, *args: Any) -> Any:
    """The shapes that a function gives; what it raises is one line with the place."""
    try:
        return jax.eval_shape(function, *args)
    except UserError:
        raise
    except Exception as error:  # Whatever somebody's function raises.
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if "site-packages" not in frame.filename]
        place = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
        raise UserError(f"{what} fails: {brief(error)}{place}") from error


def pair(method: str, name: str, given: Any) -> tuple[Any, Any]:
    """What `fit` and `reward` give: the state, and metrics or rewards."""
    if not isinstance(given, tuple) or len(given) != 2:
        what = {"fit": "(state, metrics)", "reward": "(state, reward)"}[name]
        raise UserError(f"method {method!r}: {name} gives {shape_of(given)}; {what} is needed")
    return given


def shape_of(value: Any) -> str:
    shape = getattr(value, "shape", None)
    what = "None" if value is None else f"a {type(value).__name__}"
    return what if shape is None else f"an array of shape {shape}"


def described(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree)

"""Sums: several methods at once, each with its own networks, its own fit and its own running scale.

Rewards what all parts reward, weighted: with rewards r_k and weights w_k,

    r = Σ_k w_k · r_k

The skills are those of the parts that have any; all of these have the same. A part that needs fewer fits per update
than the others sees the last batches of an update. The first part starts as it would alone: a sum whose other weights
are 0 is that method, bit for bit, while the others only watch.

With `targets`, the rewards of parts with the same number are added up, and the critic learns from each sum apart: where
their gradients disagree, one gives way (`becl.learning.reconcile`, AMPED).
"""

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, get_type_hints

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.errors import UserError, unknown
from becl.objectives.protocol import Batch, Metrics, chance_reward, fit_in_turn
from becl.skills import NoSkill, SkillSpace
from becl.specs import added, is_of, override

OTHERS = 1_000_003  # Apart from the numbers that methods split and fold keys with.
OWN = ("weights", "fits", "targets")
"""The options of a sum itself that can be set."""


class SumState(NamedTuple):
    parts: tuple[Any, ...]
    earned: Float[Array, " parts"]
    """Mean reward of each part in the batch that was priced last, before its weight."""


@dataclass(frozen=True, init=False)
class Sum:
    """Sum(BeCL(), RND(), weights=(1, 10))."""

    skills: SkillSpace = NoSkill()
    """Skills of all parts that have any."""
    parts: tuple[Any, ...] = ()
    """Objectives."""
    weights: tuple[float, ...] = ()
    """Weights of the parts' rewards, in the same order; 0 for a part that only watches."""
    fits: tuple[int, ...] = ()
    """Batches that each part is fitted to before an update, the last of those that it has; empty: all of them."""
    names: tuple[str, ...] = ()
    """What the parts are called in settings, metrics and reports."""
    targets: tuple[int, ...] = added(())
    """Which target of the critic each part's reward belongs to, 0 or 1; empty: one target for all."""

    def __init__(
        self,
        *objectives: Any,
        skills: SkillSpace | None = None,
        parts: Sequence[Any] = (),
        weights: Sequence[int | float] | None = None,
        fits: Sequence[int] | None = None,
        names: Sequence[str] | None = None,
        targets: Sequence[int] = (),
    ):
        parts = (*objectives, *parts)
        for part in parts:
            if isinstance(part, type) or not hasattr(part, "skills"):
                raise UserError(f"Sum: {part!r} is no objective, such as becl.METHODS['rnd'].objective")
        names = tuple(type(part).__name__.lower() for part in parts) if names is None else tuple(names)
        weights = (1.0,) * len(parts) if weights is None else tuple(map(float, weights))
        fits = () if fits is None else tuple(fits)
        check_names(names)
        check_numbers(names, weights, fits, tuple(targets))
        space = common_skills(names, parts) if skills is None else skills
        values = (space, tuple(given(name, part, space) for name, part in zip(names, parts, strict=True)))
        for field, value in zip(dataclasses.fields(self), (*values, weights, fits, names, tuple(targets)), strict=True):
            object.__setattr__(self, field.name, value)

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> SumState:
        states = [part.init(own, env) for part, own in zip(self.parts, self.keys(key), strict=True)]
        return SumState(tuple(states), jnp.zeros(len(self.parts)))

    def fit(self, state: SumState, batch: Batch, key: PRNGKeyArray) -> tuple[SumState, Metrics]:
        return self.fit_in_turn(state, batch, key, 1)

    def fit_in_turn(self, state: SumState, batch: Batch, key: PRNGKeyArray, left: int) -> tuple[SumState, Metrics]:
        """Fits the parts whose turn it is where so many batches are left before the update, this one included."""
        states, metrics = [], {}
        for number, (name, own) in enumerate(zip(self.names, self.keys(key), strict=True)):
            part, fitted = state.parts[number], {}
            if not self.fits or left <= self.fits[number]:
                part, fitted = fit_in_turn(self.parts[number], part, batch, own, left)
            states.append(part)
            metrics |= {f"{name}_{metric}": value for metric, value in fitted.items()}
            metrics[f"{name}_reward"] = state.earned[number]
        return state._replace(parts=tuple(states)), metrics

    def reward(self, state: SumState, batch: Batch, key: PRNGKeyArray) -> tuple[SumState, Float[Array, " batch"]]:
        state, rewards = self.rewards(state, batch, key)
        return state, sum(rewards[1:], rewards[0])

    def reward_by_target(
        self, state: SumState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[SumState, Float[Array, "batch targets"]]:
        """What the parts of each target contribute together."""
        state, rewards = self.rewards(state, batch, key)
        by_part = list(zip(self.targets, rewards, strict=True))
        return state, jnp.stack([sum(r for own, r in by_part if own == one) for one in (0, 1)], -1)

    def rewards(
        self, state: SumState, batch: Batch, key: PRNGKeyArray
    ) -> tuple[SumState, list[Float[Array, " batch"]]]:
        """What each part contributes: its reward times its weight."""
        priced = [
            part.reward(own_state, batch, own)
            for part, own_state, own in zip(self.parts, state.parts, self.keys(key), strict=True)
        ]
        earned = jnp.stack([reward.mean() for _, reward in priced])
        rewards = [weight * reward for weight, (_, reward) in zip(self.weights, priced, strict=True)]
        return SumState(tuple(after for after, _ in priced), earned), rewards

    def keys(self, key: PRNGKeyArray) -> list[PRNGKeyArray]:
        """The key itself for the first part, which then does as it would alone."""
        others = jax.random.fold_in(key, OTHERS)
        return [key, *(jax.random.fold_in(others, number) for number in range(1, len(self.parts)))]

    def chance_reward(self, batch: int) -> float | None:
        """The weighted sum, where all parts that count have a level."""
        counted = [(weight, part) for weight, part in zip(self.weights, self.parts, strict=True) if weight]
        levels = [chance_reward(part, batch) for _, part in counted]
        if any(level is None for level in levels):
            return None
        return sum(weight * level for (weight, _), level in zip(counted, levels, strict=True) if level is not None)


# --- What goes together -----------------------------------------------------------------------------------------------


def check_names(names: Sequence[str]) -> None:
    if not names:
        raise UserError("a sum of no methods: name at least two, as in becl+rnd")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UserError(f"{'+'.join(names)}: {twice} is given twice; change its weight instead")


def check_numbers(
    names: Sequence[str], weights: Sequence[int | float], fits: Sequence[int], targets: Sequence[int]
) -> None:
    """Raises if there are not as many numbers as parts, and on numbers that nothing can be multiplied by."""
    whole, count = "+".join(names), len(names)
    for option, values in (("weights", weights), ("fits", fits), ("targets", targets)):
        if len(values) != count and (option == "weights" or values):
            said = ",".join(f"{value:g}" for value in values)
            raise UserError(f"{option}={said}: {whole} has {count} parts, so {count} numbers are needed")
    if other := [weight for weight in weights if not 0 <= weight < math.inf]:
        raise UserError(f"weights {other[0]:g}: must not be negative, and finite")
    if not any(weights):
        raise UserError(f"weights {','.join(f'{weight:g}' for weight in weights)}: one at least must be greater than 0")
    if other := [fit for fit in fits if fit < 1]:
        raise UserError(f"fits {other[0]}: must be greater than 0")
    if targets and {*targets} != {0, 1}:
        raise UserError(f"targets {','.join(map(str, targets))}: 0 or 1 for each part, and each of them at least once")


def common_skills(names: Sequence[str], parts: Sequence[Any]) -> SkillSpace:
    """The skills of the parts that have any; refuses two that differ."""
    having = [(name, part.skills) for name, part in zip(names, parts, strict=True) if part.skills.dim]
    for name, space in having[1:]:
        first, own = having[0]
        if space != own:
            raise UserError(
                f"{'+'.join(names)}: {first} has skills {space_text(own)} and {name} has {space_text(space)}; parts of "
                f"a sum share their skills, such as {own.dim} of {first}'s with --skills {own.dim}"
            )
    return having[0][1] if having else NoSkill()


def space_text(space: SkillSpace) -> str:
    return f"{type(space).__name__}({space.dim})"


def given(name: str, part: Any, space: SkillSpace) -> Any:
    """A part with the skills of the sum, where it has skills."""
    if part.skills == space or not part.skills.dim:
        return part
    hint = get_type_hints(type(part))["skills"]
    if not (hint is SkillSpace or is_of(space, hint)):
        takes = getattr(hint, "__name__", str(hint))
        raise UserError(f"{name} has skills of the kind {takes}, and cannot share {space_text(space)} in a sum")
    return dataclasses.replace(part, skills=space)


def named_parts(objective: Any) -> Iterator[tuple[str, Any]]:
    """The methods that an objective is made of, each with what its options begin with: `rnd.`, or nothing."""
    if not isinstance(objective, Sum):
        yield "", objective
        return
    for name, part in zip(objective.names, objective.parts, strict=True):
        yield from ((f"{name}.{prefix}", inner) for prefix, inner in named_parts(part))


def option_names(objective: Any) -> list[str]:
    """The options of an objective that can be set: of a sum its own, and those of its parts behind their names."""
    own = list(OWN) if isinstance(objective, Sum) else []
    fields = [f"{prefix}{field.name}" for prefix, part in named_parts(objective) for field in dataclasses.fields(part)]
    return own + [name for name in fields if name.rpartition(".")[2] != "skills"]


def with_option(objective: Any, path: str, value: Any, above: str = "") -> Any:
    """An objective with one option changed: `temperature`, or of a sum `becl.temperature`; `above` is for messages."""
    first, _, rest = path.partition(".")
    if not isinstance(objective, Sum):
        return override(objective, path, value, above)
    if first == "objective":
        return with_option(objective, rest, value, above)
    if first in objective.names and rest:
        parts = list(objective.parts)
        place = objective.names.index(first)
        parts[place] = with_option(parts[place], rest, value, f"{above}{first}.")
        return dataclasses.replace(objective, parts=tuple(parts))
    if first not in OWN:
        raise unknown(f"option of {'+'.join(objective.names)}", path, option_names(objective))
    return override(objective, path, value, above)


def fitted_loss(objective: Any, metrics: Metrics) -> Float[Array, ""]:
    """The loss that a fit went down, among the metrics that it returned; of a sum those of all parts that count."""
    if not isinstance(objective, Sum):
        return metrics.get("loss", jnp.zeros(()))
    total = jnp.zeros(())
    for weight, name, part in zip(objective.weights, objective.names, objective.parts, strict=True):
        own = {one.removeprefix(f"{name}_"): value for one, value in metrics.items() if one.startswith(f"{name}_")}
        total += fitted_loss(part, own) if weight else 0.0
    return total

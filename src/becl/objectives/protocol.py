"""What a method adds to the learner: a skill space, a representation, and a reward for a batch of transitions."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Array, Float, Int, PRNGKeyArray

from becl.envs.spec import EnvSpec
from becl.skills import SkillSpace

Metrics = dict[str, Array]


class Batch(NamedTuple):
    """Transitions with the skill that acted."""

    obs: Float[Array, "batch obs"]
    action: Float[Array, "batch action"]
    next_obs: Float[Array, "batch obs"]
    skill: Float[Array, "batch skill"]
    trajectory: Int[Array, " batch"]
    """Which stretch of one skill the transition comes from; equal numbers mean the same stretch."""
    progress: Float[Array, " batch"]
    """Where in that stretch `next_obs` lies, in (0, 1]."""
    reward: Float[Array, " batch"]
    """The task's own, for those who look at it; zero where there is no task."""


@runtime_checkable
class Objective(Protocol):
    """A frozen dataclass of hyper-parameters with pure methods over a state of arrays."""

    @property
    def skills(self) -> SkillSpace: ...

    def init(self, key: PRNGKeyArray, env: EnvSpec) -> Any:
        """The state before any data."""
        ...

    def fit(self, state: Any, batch: Batch, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        """One step of training the representation."""
        ...

    def reward(self, state: Any, batch: Batch, key: PRNGKeyArray) -> tuple[Any, Float[Array, " batch"]]:
        """Prices a batch; may update running statistics."""
        ...


@runtime_checkable
class KnowsChance(Protocol):
    """What an objective may add: which reward says that nothing was learned."""

    def chance_reward(self, batch: int) -> float | None:
        """The mean reward of a batch of this size where states say nothing about the skill; None where no number can
        be given."""
        ...


def chance_reward(objective: Any, batch: int) -> float | None:
    """The chance level of an objective's reward, where it has one."""
    return objective.chance_reward(batch) if isinstance(objective, KnowsChance) else None


@runtime_checkable
class TakesTurns(Protocol):
    """What an objective may add whose parts need different numbers of fits per update."""

    def fit_in_turn(self, state: Any, batch: Batch, key: PRNGKeyArray, left: int) -> tuple[Any, Metrics]:
        """One step of training what has its turn where `left` batches are left before the update, this one included."""
        ...


@runtime_checkable
class LeadsToGoals(Protocol):
    """What an objective may add in whose features distances count steps (METRA): the skill that leads to a goal."""

    def skill_towards(
        self, state: Any, obs: Float[Array, "*batch obs"], goal: Float[Array, "*batch obs"]
    ) -> Float[Array, "*batch skill"]:
        """To act with until the next step."""
        ...


@runtime_checkable
class SeveralTargets(Protocol):
    """What an objective may add whose rewards are to be learned from apart (AMPED)."""

    @property
    def targets(self) -> tuple[int, ...]:
        """Empty where there is one reward after all."""
        ...

    def reward_by_target(
        self, state: Any, batch: Batch, key: PRNGKeyArray
    ) -> tuple[Any, Float[Array, "batch targets"]]: ...


def priced(
    objective: Objective, state: Any, batch: Batch, key: PRNGKeyArray
) -> tuple[Any, Float[Array, "batch *targets"]]:
    """The reward of a batch; one for each target of the critic where there are several."""
    if isinstance(objective, SeveralTargets) and objective.targets:
        return objective.reward_by_target(state, batch, key)
    return objective.reward(state, batch, key)


def fit_in_turn(objective: Any, state: Any, batch: Batch, key: PRNGKeyArray, left: int) -> tuple[Any, Metrics]:
    """One step of training an objective, with so many batches left before the update."""
    if isinstance(objective, TakesTurns):
        return objective.fit_in_turn(state, batch, key, left)
    return objective.fit(state, batch, key)

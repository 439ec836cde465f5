"""What the off-policy loop needs of environments and of a learner."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from becl.envs.simulations import Step
from becl.envs.spec import EnvSpec
from becl.learning.replay import Transitions
from becl.objectives.protocol import Metrics
from becl.skills import SkillSpace


@runtime_checkable
class Environments(Protocol):
    """What the loop needs of environments: `becl.envs.make` and `becl.envs.maze_batch.MazeBatch` have it."""

    spec: EnvSpec
    num_envs: int

    def reset(self) -> np.ndarray: ...

    def step(self, action: np.ndarray) -> Step: ...

    def close(self) -> None: ...


@runtime_checkable
class Restorable(Environments, Protocol):
    """Environments that a run can be resumed with."""

    def get_state(self) -> Any:
        """A tree of arrays: all that decides how they go on."""
        ...

    def set_state(self, state: Any) -> None:
        """Puts them where they were."""
        ...


@runtime_checkable
class Learner(Protocol):
    """How a policy is learned: `ddpg.DDPG`, or over frozen skills `controller.Controller`."""

    def init(self, key: PRNGKeyArray, env: EnvSpec, skills: SkillSpace) -> Any:
        """A state whose field `actor` is what `act` and `best` take."""
        ...

    def act(
        self,
        actor: Any,
        obs: Float[Array, "envs obs"],
        skill: Float[Array, "envs skill"],
        key: PRNGKeyArray,
        random: Bool[Array, ""],
    ) -> Float[Array, "envs action"]:
        """Actions for collecting."""
        ...

    def best(
        self, actor: Any, obs: Float[Array, "envs obs"], skill: Float[Array, "envs skill"]
    ) -> Float[Array, "envs action"]:
        """Actions to be judged by."""
        ...

    def view(self, state: Any, obs: Float[Array, "*batch obs"]) -> Float[Array, "*batch obs"]:
        """Observations as networks, also those of an objective, should get them."""
        ...

    def begin(self, state: Any) -> Any:
        """The state as several updates in a row take and return it: with what each would otherwise compute anew."""
        ...

    def update(self, state: Any, batch: Transitions, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        """One step of learning from a batch; of a state that was begun, another such."""
        ...

    def end(self, state: Any) -> Any:
        """The state after updates in a row, as it is kept."""
        ...

    def diagnose(self, state: Any, batch: Transitions) -> Metrics:
        """Whether its networks can still learn; logged with every row."""
        ...

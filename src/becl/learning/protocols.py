"""What the off-policy loop needs from environments and from a learner."""

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
    """What the loop needs from environments, as `becl.envs.make` and `becl.envs.maze_batch.MazeBatch` have it."""

    spec: EnvSpec
    num_envs: int

    def reset(self) -> np.ndarray: ...

    def step(self, action: np.ndarray) -> Step: ...

    def close(self) -> None: ...


@runtime_checkable
class Restorable(Environments, Protocol):
    """Environments that a run can be resumed with."""

    def get_state(self) -> Any:
        """A tree of arrays with everything that decides how the environments continue."""
        ...

    def set_state(self, state: Any) -> None:
        """Puts the environments back into a state."""
        ...


@runtime_checkable
class Learner(Protocol):
    """How a policy is learned: `ddpg.DDPG`, or `controller.Controller` over frozen skills."""

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
        """Actions for evaluation."""
        ...

    def view(self, state: Any, obs: Float[Array, "*batch obs"]) -> Float[Array, "*batch obs"]:
        """Observations as networks, including those of an objective, should see them."""
        ...

    def begin(self, state: Any) -> Any:
        """The state prepared for several updates in a row, with what each update would otherwise compute anew."""
        ...

    def update(self, state: Any, batch: Transitions, key: PRNGKeyArray) -> tuple[Any, Metrics]:
        """One step of learning from a batch; a state prepared by `begin` stays prepared."""
        ...

    def end(self, state: Any) -> Any:
        """The state after several updates in a row, without what `begin` added."""
        ...

    def diagnose(self, state: Any, batch: Transitions) -> Metrics:
        """Whether its networks can still learn; logged with every row."""
        ...

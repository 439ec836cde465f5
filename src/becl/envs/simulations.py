"""Many simulations of one MuJoCo task, stepped together on native threads.

Every simulation goes through its episodes on its own: when one ends, the next begins within the same step. A start
state is a function of the run's seed, the simulation's number and the episode's, so it does not matter when, beside
which others, or on how many threads it is made: `Starts` makes the next ones in the background while the present
episodes run.
"""

import copy
import operator
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Shaped

from becl.cores import available_cores
from becl.envs.domain import Domain, check_mujoco
from becl.envs.spec import EnvSpec
from becl.errors import UserError

if TYPE_CHECKING:
    from mujoco.batch import Batch

MOST_STARTS = 64  # Made at once; more go one block after another.


class Step(NamedTuple):
    """The result of a step of all simulations. Images, [n, height, width, channels], may be arrays of JAX."""

    obs: Shaped[np.ndarray, "n *o"]
    """What the policy sees next; where an episode ended, the first observation of the new one."""
    reward: Float[np.ndarray, " n"]
    truncated: Bool[np.ndarray, " n"]
    """Where an episode ended: by its length, because the simulation diverged, or because the task is over."""
    next_obs: Shaped[np.ndarray, "n *o"]
    """What the action led to; differs from `obs` only where an episode ended."""
    terminated: Bool[np.ndarray, " n"] = np.zeros(0, bool)
    """Where the task itself ended the episode, so that nothing follows. Empty where tasks never do."""


class State(NamedTuple):
    """Everything that determines how simulations continue: plain arrays, one row per simulation."""

    physics: Float[np.ndarray, "n s"]
    obs: Float32[np.ndarray, "n o"]
    """Part of the state because force sensors show the last substep, which no state vector remembers."""
    key: Int[np.ndarray, "n 2"]
    """Seed and number of the simulation."""
    episode: Int[np.ndarray, " n"]
    step: Int[np.ndarray, " n"]
    """Control steps since the episode began."""


class Simulations:
    """`num_envs` simulations of one task; see `becl.envs.make`."""

    def __init__(
        self,
        domain: Domain,
        task: str,
        num_envs: int = 1,
        seed: int | Sequence[int] = 0,
        episode_length: int | None = None,
        threads: int | None = None,
    ):
        check_mujoco()
        from mujoco.batch import Batch

        threads = threads or len(available_cores())
        self.domain, self.task = domain, task
        self.num_envs = num_envs
        self.threads = min(threads, num_envs)
        self.spec = EnvSpec(domain.obs_dim, domain.action_dim, episode_length or domain.episode_length)
        self.divergences = np.zeros(num_envs, np.int64)
        """How often each simulation was restarted because MuJoCo gave up on it."""

        self.model = domain.model()
        # Persistent: the next step continues from the last one's kinematics instead of computing them again.
        self._batch = Batch(self.model, num_envs, self.threads, persistent=True)
        self._view = domain.view(self._batch)
        self._ctrl = self._batch.bind("ctrl")
        self.qpos: Float[np.ndarray, "n q"] = self._batch.bind("qpos")
        """Positions of all joints now; not to be written to."""
        self.led_to: Float[np.ndarray, "n q"] = self.qpos.copy()
        """Positions after the last step; before it where MuJoCo gave up."""
        # URLB scales its float32 actions in float32; the difference is small, but contacts amplify it.
        ranges = {kind: self.model.actuator_ctrlrange.astype(kind).T for kind in (np.float32, np.float64)}
        self._scales = {np.dtype(kind): (low, (high - low) / 2) for kind, (low, high) in ranges.items()}
        self._starts = Starts(domain, task, self.model, max(1, self.threads // 4))
        self._next_physics = np.zeros_like(self._batch.state)
        self._next_obs = np.zeros((num_envs, domain.obs_dim), np.float32)
        self._pending: list[tuple[np.ndarray, Future]] = []
        self._obs = np.zeros_like(self._next_obs)
        self._episode = np.zeros(num_envs, np.int64)
        self._step = np.zeros(num_envs, np.int64)
        self._closed = False
        self.seed(seed)

    def seed(self, seed: int | Sequence[int]) -> None:
        """Several seeds share the simulations equally; each part is what it would be alone."""
        seeds = shared_seeds(seed, self.num_envs)
        each = self.num_envs // len(seeds)
        self._key = np.stack([np.repeat(seeds, each), np.tile(np.arange(each), len(seeds))], axis=1)
        self._reset = False

    def reset(self) -> Float32[np.ndarray, "n o"]:
        """Begins the first episode of every simulation. A second call gives the same starts again."""
        self._check_open()
        everyone = np.arange(self.num_envs)
        self._episode[:] = -1
        self._prepare(everyone)
        self._reset = True
        self._begin(everyone)
        return self._obs.copy()

    def restart(self, ids: int | Sequence[int] | np.ndarray | None = None) -> Float32[np.ndarray, "n o"]:
        """Begins the next episode of all simulations, or of some, wherever they are in the current one."""
        self._check_ready("a restart")
        self._begin(self._which(ids))
        return self._obs.copy()

    def step(self, action: np.ndarray) -> Step:
        """One control step of every simulation with actions in [-1, 1]."""
        self._check_ready("a step")
        action = self._checked(action)
        low, half_range = self._scales[action.dtype]
        self._ctrl[:] = low + half_range * (action + 1)
        before = self.qpos.copy()
        failed = self._advance()
        with np.errstate(over="ignore", invalid="ignore"):  # Found below.
            obs = self.domain.observe(self._view)
            reward = self.domain.reward(self.task, self._view)
        if not (np.isfinite(obs).all() and np.isfinite(reward).all()):
            failed |= ~(np.isfinite(obs).all(1) & np.isfinite(reward))
        self._step += 1
        truncated = self._step >= self.spec.episode_length
        if failed.any():
            self._report(failed)
            obs[failed], reward[failed] = self._obs[failed], 0.0
            truncated |= failed
        self.led_to = np.where(failed[:, None], before, self.qpos)
        self._obs = obs.copy()
        if truncated.any():
            self._begin(np.flatnonzero(truncated))
        return Step(self._obs.copy(), reward, truncated, obs, np.zeros(self.num_envs, bool))

    def get_state(self, ids: int | Sequence[int] | np.ndarray | None = None) -> State:
        """A copy of the state of all simulations, or of some."""
        which = self._which(ids)
        self._check_ready("asking for its state")
        return State(*(array[which].copy() for array in self._live()))

    def set_state(self, state: State, ids: int | Sequence[int] | np.ndarray | None = None) -> None:
        """Restores the state of all simulations, or of some; what follows is equal bit for bit."""
        which = self._which(ids)
        for name, array, live in zip(State._fields, state, self._live(), strict=True):
            shape = (len(which), *live.shape[1:])
            if np.shape(array) != shape:
                raise UserError(f"state.{name} has shape {np.shape(array)}; these simulations need {shape}")
        if not self._reset:
            self.reset()
        for array, live in zip(state, self._live(), strict=True):
            live[which] = array
        self._prepare(which)

    def close(self) -> None:
        """Ends the background thread. Simulations cannot be stepped afterwards."""
        self._starts.close()
        self._pending.clear()
        self._reset, self._closed = False, True

    def data(self, number: int) -> Any:
        """MuJoCo's data of one simulation, to render or inspect it."""
        return self._batch.get_data(number)

    def _check_open(self) -> None:
        if self._closed:
            raise UserError("the environment is closed; make another")

    def _check_ready(self, what: str) -> None:
        self._check_open()
        if not self._reset:
            raise UserError(f"reset the environment before {what}")

    def _which(self, ids: int | Sequence[int] | np.ndarray | None) -> np.ndarray:
        if ids is None:
            return np.arange(self.num_envs)
        which = np.atleast_1d(np.asarray(ids))
        if not which.size:
            return np.zeros(0, int)
        if which.dtype == bool and which.shape == (self.num_envs,):
            return np.flatnonzero(which)
        if which.dtype.kind not in "iu" or which.ndim != 1 or not np.isin(which, range(self.num_envs)).all():
            raise UserError(f"ids {ids}: numbers of simulations from 0 to {self.num_envs - 1}")
        return which

    def _checked(self, action: np.ndarray) -> np.ndarray:
        action = np.asarray(action)
        shape = (self.num_envs, self.spec.action_dim)
        if action.shape != shape:
            raise UserError(f"action has shape {action.shape}; {self.num_envs} simulations need {shape}")
        if action.dtype.kind != "f":
            raise UserError(f"action has dtype {action.dtype}; floating point numbers in [-1, 1] are needed")
        if action.dtype not in self._scales:
            action = action.astype(np.float32)
        if not np.isfinite(action).all():
            number = int(np.flatnonzero(~np.isfinite(action).all(1))[0])
            raise UserError(f"action of simulation {number} at step {self._step[number]} is not finite: "
                            f"{np.array2string(action[number], precision=3, max_line_width=1000)}")  # fmt: skip
        return action

    def _advance(self) -> Bool[np.ndarray, " n"]:
        """The control step of dm_control; returns which simulations MuJoCo gave up on."""
        import mujoco
        from mujoco.batch import SimulationError

        failed = np.zeros(self.num_envs, bool)
        try:
            # Ends with positions and velocities of the new state; forces stay those of the last substep.
            self._batch.step(nstep=self.domain.substeps, stage=int(mujoco.mjtStage.mjSTAGE_VEL))
        except SimulationError as error:
            failed[error.ids] = True
        counts = self._batch.warning[:, mujoco.mjtWarning.mjWARN_BADQPOS : mujoco.mjtWarning.mjWARN_BADQACC + 1, 1]
        if counts.any():
            failed |= counts.any(1)
            counts[:] = 0
        return failed

    def _report(self, failed: Bool[np.ndarray, " n"]) -> None:
        before = int(self.divergences.sum())
        self.divergences += failed
        total = int(self.divergences.sum())
        if len(str(total)) > len(str(before)) or before == 0:
            number = int(np.flatnonzero(failed)[0])
            warnings.warn(f"simulation {number} diverged at step {self._step[number]} of its episode and was "
                          f"restarted; {total} so far (see .divergences)", stacklevel=3)  # fmt: skip

    def _live(self) -> State:
        """The arrays of all simulations, not copies."""
        return State(self._batch.state, self._obs, self._key, self._episode, self._step)

    def _begin(self, ids: np.ndarray) -> None:
        """Starts the next episode of some simulations and prepares the one after it in the background."""
        self._collect(ids)
        self._batch.state[ids] = self._next_physics[ids]
        self._obs[ids] = self._next_obs[ids]
        self._episode[ids] += 1
        self._step[ids] = 0
        self._prepare(ids)

    def _prepare(self, ids: np.ndarray) -> None:
        """Prepares the next starts of some simulations, discarding those for another seed or episode."""
        self._collect(ids)
        for block in np.split(ids, range(MOST_STARTS, len(ids), MOST_STARTS)) if len(ids) else ():
            keys = np.concatenate([self._key[block], self._episode[block, None] + 1], axis=1)
            self._pending.append((block, self._starts.request(keys)))

    def _collect(self, ids: np.ndarray) -> None:
        """Waits for the next starts of some simulations, and for those made in the same block."""
        for pending in [p for p in self._pending if np.isin(p[0], ids).any()]:
            block, future = pending
            self._next_physics[block], self._next_obs[block] = future.result()
            # Only now: a start that failed must fail again rather than be replaced by an old one.
            self._pending = [other for other in self._pending if other is not pending]


class Starts:
    """Makes start states in a background thread."""

    def __init__(self, domain: Domain, task: str, model: Any, threads: int):
        import mujoco

        self.domain, self.task, self.threads = domain, task, threads
        # No control has been given yet when the first observation is made.
        self.model = copy.copy(model)
        self.model.opt.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_ACTUATION)
        self._batch: Batch | None = None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="becl-starts")

    def request(self, keys: Int[np.ndarray, "n 3"]) -> Future:
        """Physics rows and observations of starts, each by seed, number of the simulation and episode."""
        return self._thread.submit(self.make, keys)

    def make(self, keys: Int[np.ndarray, "n 3"]) -> tuple[np.ndarray, np.ndarray]:
        batch, view = self._slots(len(keys))
        slots = np.arange(len(keys))
        batch.reset(slots, stage=0)
        self.domain.start(self.task, batch, slots, [random_of(*key.tolist()) for key in keys])
        batch.forward(slots)
        return batch.state[slots].copy(), self.domain.observe(view)[slots]

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _slots(self, count: int) -> tuple["Batch", Any]:
        from mujoco.batch import Batch

        if self._batch is None or self._batch.nsim < count:
            self._batch = Batch(self.model, count, min(self.threads, count))
            self._batch_view = self.domain.view(self._batch)
        return self._batch, self._batch_view


def random_of(seed: int, number: int, episode: int) -> np.random.Generator:
    """The random generator of one start."""
    # NumPy splits integers into words of 32 bits and does not mark where one ends.
    return np.random.default_rng([seed % 2**32, number, episode, seed >> 32])


def shared_seeds(seed: int | Sequence[int], num_envs: int) -> list[int]:
    """Checks seeds that share the simulations equally."""
    try:
        seeds = [operator.index(one) for one in (seed if isinstance(seed, Sequence | np.ndarray) else [seed])]
    except TypeError:
        raise UserError(f"seed {seed}: a whole number, or several, are needed") from None
    if not seeds or not all(0 <= one < 2**63 for one in seeds):
        raise UserError(f"seed {seed}: whole numbers from 0 to 2^63 - 1 are needed")
    if num_envs % len(seeds):
        raise UserError(f"num_envs {num_envs} cannot be shared by {len(seeds)} seeds: a multiple is needed")
    return seeds

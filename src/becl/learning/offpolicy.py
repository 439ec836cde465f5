"""The off-policy loop (URLB's schedule): act, learn from what is stored, simulate, store.

One seed's step is `act`, then `learn`; both are pure and are vmapped over seeds at the top. In between, the host
simulates: actions are computed from the parameters before the updates, so the simulation of a step and the device's
updates run side by side. With one environment this is the published order to the letter.
"""

import contextlib
import functools
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from becl.envs.simulations import Step
from becl.envs.spec import EnvSpec
from becl.errors import UserError
from becl.learning.choice import Prior, SkillChoice
from becl.learning.ddpg import DDPG
from becl.learning.replay import Experience, Replay, ReplayState, Transitions
from becl.nn.networks import Precision, computing
from becl.objectives.particles import init_scale, update_scale
from becl.objectives.protocol import Batch, Metrics, Objective
from becl.skills import SkillSpace
from becl.specs import added

Data = Array | np.ndarray


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

    def copies(self, state: Any) -> Any:
        """Of weights, rounded as products do, for the next `update`; None where it needs none."""
        ...

    def update(self, state: Any, batch: Transitions, key: PRNGKeyArray, copies: Any = None) -> tuple[Any, Metrics]: ...

    def diagnose(self, state: Any, batch: Transitions) -> Metrics:
        """Whether its networks can still learn; logged with every row."""
        ...


class RunState(NamedTuple):
    """All that one seed's learning depends on, but for its environments."""

    key: PRNGKeyArray
    learner: Any
    objective: Any
    replay: ReplayState
    skill: Any = ()
    """Of the rule that chooses skills."""
    scale: Any = ()
    """Running statistics of rewards, where they are normalised."""


class Choice(NamedTuple):
    """What every environment is doing: with which skill, since when, and the action."""

    skill: Float[Array, "envs skill"]
    since: Int[Array, " envs"]
    action: Float[Array, "envs action"]


class Pricing(NamedTuple):
    """What decides a transition's reward."""

    objective: Any
    scale: Any


class Outcome(NamedTuple):
    """What a step of the environments led to."""

    obs: Float[Data, "*seeds envs obs"]
    """Before the step."""
    next_obs: Float[Data, "*seeds envs obs"]
    reward: Float[Data, "*seeds envs"]
    last: Bool[Data, "*seeds envs"]
    terminated: Bool[Data, "*seeds envs"]
    """Where nothing follows."""


@dataclass(frozen=True)
class OffPolicy:
    """One run of DDPG with any objective."""

    env: EnvSpec
    objective: Objective
    learner: Learner = DDPG()
    replay: Replay = Replay()
    envs: int = 32
    """Environments a seed; 1 is the published schedule."""
    batch: int = 1024
    fits_per_update: int = 1
    """Batches the objective is fitted to before each update of the learner, which sees the last of them."""
    skill_interval: int | None = 50
    """Steps after which an environment's skill is drawn anew; None: only with a new episode."""
    random_steps: int = 4000
    """Steps with uniformly random actions, and without updates, at the beginning."""
    warmup: Literal["random", "policy"] = "random"
    """Who acts in these: nobody in particular, or the policy as it is (for one that was trained before)."""
    steps_per_update: int = 2
    update_repeats: int = 1
    """Updates where there would be one."""
    choice: SkillChoice = Prior()
    """Which skill acts."""
    objective_obs: tuple[int, ...] = ()
    """Numbers of an observation that the objective sees, such as a position; empty: all of them."""
    precision: Precision = "auto"
    """Of matrix products; see `becl.nn.networks.computing`."""
    reward_scale: float = added(1.0)
    """The objective's reward is multiplied by this before the learner sees it. It matters: Adam's steps do not shrink
    with the reward, so a small one leaves the policy less certain (docs/transfer.md)."""
    reward_normalise: Literal["none", "std"] = added("none")
    """`std` first divides rewards by their running standard deviation."""

    def __post_init__(self) -> None:
        if self.envs < 1 or self.steps_per_update < 1:
            raise UserError(f"envs {self.envs}, steps_per_update {self.steps_per_update}: at least 1 is needed")
        if self.envs % self.steps_per_update and self.steps_per_update % self.envs:
            raise UserError(
                f"envs {self.envs}: with an update every {self.steps_per_update} steps, a multiple or a divisor of "
                f"{self.steps_per_update} is needed"
            )
        if other := [number for number in self.objective_obs if not 0 <= number < self.env.obs_dim]:
            raise UserError(f"objective_obs {other[0]}: an observation has numbers 0 to {self.env.obs_dim - 1}")
        if self.replay.capacity // self.envs < self.replay.nstep:
            raise UserError(f"replay.capacity {self.replay.capacity}: too small for {self.envs} environments")

    @property
    def seen(self) -> EnvSpec:
        """The environment as the objective sees it."""
        return self.env._replace(obs_dim=len(self.objective_obs)) if self.objective_obs else self.env

    @property
    def updates(self) -> int:
        """Updates in a step of all environments that has any."""
        return max(1, self.envs // self.steps_per_update) * self.update_repeats

    def learns_at(self, step: int) -> bool:
        """Whether there are updates before the environments' step that begins at this many steps."""
        enough = step >= self.random_steps and step // self.envs >= self.replay.nstep
        return enough and step % self.steps_per_update == 0

    def init(self, key: PRNGKeyArray) -> tuple[RunState, Choice]:
        keys = jax.random.split(key, 4)
        skills = self.objective.skills
        state = RunState(
            keys[0],
            self.learner.init(keys[1], self.env, skills),
            self.objective.init(keys[2], self.seen),
            self.replay.init(self.env, skills, self.envs),
            self.choice.init(keys[3], self.env, skills),
            () if self.reward_normalise == "none" else init_scale(),
        )
        nothing = Choice(
            jnp.zeros((self.envs, skills.dim)),
            jnp.zeros(self.envs, jnp.int32),
            jnp.zeros((self.envs, self.env.action_dim)),
        )
        return jax.tree.map(strong, state), nothing

    def act(
        self,
        key: PRNGKeyArray,
        actor: Any,
        rule: Any,
        before: Choice,
        obs: Float[Array, "envs obs"],
        began: Bool[Array, " envs"],
        number: Int[Array, ""],
    ) -> Choice:
        """Skills and actions of the `number`-th step of all environments; `began` marks new episodes."""
        skill_key, action_key = jax.random.split(jax.random.fold_in(key, 2 * number))
        drawn = began if self.skill_interval is None else began | (number % self.skill_interval == 0)
        fresh = self.choice.draw(rule, skill_key, self.objective.skills, self.envs, number)
        skill = jnp.where(drawn[:, None], fresh, before.skill)
        since = jnp.where(drawn, 0, before.since + 1)
        random = (number * self.envs < self.random_steps) & (self.warmup == "random")
        return Choice(skill, since, self.learner.act(actor, obs, skill, action_key, random))

    def store(self, replay: ReplayState, rule: Any, choice: Choice, outcome: Outcome) -> tuple[ReplayState, Any]:
        """Keeps a step of all environments, and shows it to the rule that chooses skills."""
        step = Experience(
            obs=jnp.asarray(outcome.obs),
            action=choice.action,
            reward=jnp.asarray(outcome.reward),
            discount=1.0 - jnp.asarray(outcome.terminated),
            next_obs=jnp.asarray(outcome.next_obs),
            skill=choice.skill,
            since=choice.since,
            last=jnp.asarray(outcome.last),
        )
        return self.replay.add(replay, step), self.choice.watch(rule, step)

    def learn(self, state: RunState, number: Int[Array, ""]) -> tuple[RunState, Metrics]:
        """The updates before the `number`-th step of all environments; metrics are their means."""
        key = jax.random.fold_in(state.key, 2 * number + 1)
        sample_key, *keys, rule_key = jax.random.split(key, 2 + 2 * self.updates)
        # All batches of all updates are drawn at once: a few large gathers instead of many small ones.
        drawn = self.replay.sample(state.replay, sample_key, self.updates * self.fits_per_update * self.batch)
        shape = (self.updates, self.fits_per_update, self.batch)
        drawn = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), drawn)
        price_keys, learn_keys = jnp.stack(keys[: self.updates]), jnp.stack(keys[self.updates :])

        # What is rewarded does not depend on what is learned from it. So while the learner is at one update, the
        # objective may be at the next: side by side where the device can.
        def body(carry: tuple[Any, Any, Pricing, Transitions], step: tuple[PRNGKeyArray, PRNGKeyArray, Transitions]):
            learner, copies, pricing, priced = carry
            learn_key, price_key, batches = step
            pricing, following, fitted = self.price(state.learner, pricing, price_key, batches)
            learner, learned = self.learner.update(learner, priced, learn_key, copies)
            return (learner, self.learner.copies(learner), pricing, following), (fitted, learned)

        first, rest = (jax.tree.map(lambda x, part=part: x[part], (price_keys, drawn)) for part in (0, slice(1, None)))
        pricing, priced, fitted = self.price(state.learner, Pricing(state.objective, state.scale), *first)
        carry = (state.learner, self.learner.copies(state.learner), pricing, priced)
        carry, metrics = jax.lax.scan(body, carry, (learn_keys[:-1], *rest))
        learner, copies, pricing, priced = carry
        learner, learned = self.learner.update(learner, priced, learn_keys[-1], copies)
        metrics = jax.tree.map(lambda many, one: (many.sum(0) + one) / self.updates, metrics, (fitted, learned))
        rule = self.choice.learn(state.skill, rule_key, self.replay, state.replay, number)
        state = state._replace(learner=learner, objective=pricing.objective, skill=rule, scale=pricing.scale)
        return state, metrics[0] | metrics[1]

    def price(
        self, learner: Any, pricing: Pricing, key: PRNGKeyArray, batches: Transitions
    ) -> tuple[Pricing, Transitions, Metrics]:
        """Fits the representation to each of the batches and prices the last with it."""
        objective, scale = pricing
        *fit_keys, reward_key = jax.random.split(key, self.fits_per_update + 1)
        fitted, last = {}, batches
        for number, fit_key in enumerate(fit_keys):
            last = jax.tree.map(lambda x, number=number: x[number], batches)
            objective, fitted = self.objective.fit(objective, self.to_batch(learner, last), fit_key)
        objective, reward = self.objective.reward(objective, self.to_batch(learner, last), reward_key)
        metrics = {f"objective_{name}": value for name, value in fitted.items()}
        metrics |= {"reward": reward.mean(), "extrinsic": last.reward.mean()}
        scale, resized = self.resize(scale, reward)
        if self.reward_scale != 1 or self.reward_normalise != "none":
            metrics["learner_reward"] = resized.mean()
        return Pricing(objective, scale), last._replace(reward=resized), metrics

    def resize(self, scale: Any, reward: Float[Array, " batch"]) -> tuple[Any, Float[Array, " batch"]]:
        """Rewards of the size that the learner should see, and the statistics with these rewards in them."""
        if self.reward_normalise == "std":
            scale = update_scale(scale, reward)
            reward = reward / jnp.maximum(jnp.sqrt(scale.variance), 1e-8)  # All rewards may be equal.
        return scale, self.reward_scale * reward

    def diagnose(self, state: RunState, number: Int[Array, ""]) -> Metrics:
        """What the learner's networks look like on a batch of what is stored, before the `number`-th step."""
        key = jax.random.fold_in(jax.random.fold_in(state.key, number), 0)
        batch = self.replay.sample(state.replay, key, self.batch)
        return self.learner.diagnose(state.learner, batch)

    def to_batch(self, learner: Any, transitions: Transitions) -> Batch:
        """Transitions as the objective sees them."""
        interval = self.skill_interval or self.env.episode_length

        def seen(obs: Float[Array, "batch all"]) -> Float[Array, "batch seen"]:
            obs = self.learner.view(learner, obs)
            return obs[:, np.array(self.objective_obs)] if self.objective_obs else obs

        return Batch(
            obs=seen(transitions.obs),
            action=transitions.action,
            next_obs=seen(transitions.next_obs),
            skill=transitions.skill,
            trajectory=transitions.trajectory,
            progress=jnp.minimum(transitions.since / interval, 1.0),
            reward=transitions.reward,
        )


def strong(x: Array) -> Array:
    """The same number where it may still adapt its type to others': it would not after an update, which would be
    compiled again for it."""
    return jax.lax.convert_element_type(x, x.dtype) if getattr(x, "weak_type", False) else x


class Programs(NamedTuple):
    """A run's parts, jitted and vmapped over seeds."""

    init: Callable
    act: Callable
    store: Callable
    store_and_learn: Callable
    diagnose: Callable


@functools.cache
def programs(run: OffPolicy, devices: int = 1) -> Programs:
    """Seeds are shared equally by the first `devices` devices, and never talk to each other."""

    def act(*args) -> Choice:
        with computing(run.precision):
            return run.act(*args)

    def store_and_learn(state: RunState, choice: Choice, outcome: Outcome, number: Int[Array, ""]):
        with computing(run.precision):
            replay, rule = run.store(state.replay, state.skill, choice, outcome)
            return run.learn(state._replace(replay=replay, skill=rule), number)

    def diagnose(state: RunState, number: Int[Array, ""]) -> Metrics:
        with computing(run.precision):
            return run.diagnose(state, number)

    mesh = Mesh(np.array(jax.devices()[:devices]), ("seeds",)) if devices > 1 else None

    def init(keys: Key[Array, " seeds"]) -> tuple[RunState, Choice]:
        # Not vmapped: on a CPU with few cores, batches of QR decompositions wait for each other for ever.
        return jax.lax.map(run.init, keys)

    def shared(part: Callable, axes: tuple[int | None, ...], **options) -> Callable:
        if mesh is not None:
            specs = tuple(P() if axis is None else P("seeds") for axis in axes)
            part = jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=P("seeds"), check_vma=False)
        return jax.jit(part, compiler_options=compiler_options(), **options)

    def over_seeds(part: Callable, *axes: int | None, **options) -> Callable:
        return shared(jax.vmap(part, axes), axes, **options)

    return Programs(
        init=shared(init, (0,)),
        act=over_seeds(act, 0, 0, 0, 0, 0, 0, None),
        # The buffer is changed in place: without donation every step would copy it.
        store=over_seeds(run.store, 0, 0, 0, 0, donate_argnums=(0, 1)),
        store_and_learn=over_seeds(store_and_learn, 0, 0, 0, None, donate_argnums=0),
        diagnose=over_seeds(diagnose, 0, None),
    )


def usable_devices(seeds: int) -> int:
    """The most devices that seeds can be shared by equally."""
    return max(n for n in range(1, min(seeds, jax.device_count()) + 1) if seeds % n == 0)


# Kernels that do not wait for each other run side by side, which the small ones of a single seed gain a third from;
# and products that share a factor are not merged, which costs a copy of the others.
GPU_OPTIONS: dict[str, Any] = {
    "xla_gpu_command_buffer_scheduling_mode": "CONCURRENT",
    "xla_gpu_dot_merger_threshold_mb": 0,
}


def forget_programs() -> None:
    """Those of runs that have ended: each maps dozens of pieces into memory, of which Linux gives a process 65,530."""
    programs.cache_clear()
    jax.clear_caches()
    gc.collect()


@functools.cache
def compiler_options() -> dict[str, Any] | None:
    """XLA's options on a GPU; none where this version does not know them."""
    if jax.default_backend() != "gpu":
        return None
    try:
        jax.jit(lambda x: x, compiler_options=GPU_OPTIONS)(0)
    except jax.errors.JaxRuntimeError:
        return None
    return GPU_OPTIONS


class Loop(NamedTuple):
    """All that the rest of a run depends on between two steps, but for its environments."""

    number: int
    """Steps of all environments taken."""
    state: RunState
    choice: Choice
    obs: Float[np.ndarray, "seeds envs obs"]
    began: Bool[np.ndarray, "seeds envs"]
    pending: Outcome
    """Not yet stored."""


class Progress(NamedTuple):
    """Where a run stands after a step of all environments. Copy what is to be kept: the next step reuses its memory."""

    step: int
    """Steps taken a seed."""
    loop: Loop
    metrics: Metrics | None
    """Of the updates before this step, by seed; None where there were none. Still being computed when handed out."""
    outcome: Step
    diagnose: Callable[[], Metrics]
    """Whether the learner's networks can still learn, by seed; computed when it is asked for."""

    @property
    def state(self) -> RunState:
        return self.loop.state


class EnvironmentFailed(Exception):
    """An environment that raised; what it raised is the cause."""


@contextlib.contextmanager
def blamed(step: int) -> Iterator[None]:
    """Tells an environment's errors from all others."""
    try:
        yield
    except Exception as error:
        said = str(error).strip().splitlines()
        what = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
        raise EnvironmentFailed(f"an environment failed after {step:,} steps: {what}") from error


def check_outcome(step: Step) -> None:
    """Refuses numbers that are none before they spread to all weights."""
    for name, values in (("an observation", step.next_obs), ("an observation", step.obs), ("a reward", step.reward)):
        if not np.isfinite(values).all():
            place = np.argwhere(~np.isfinite(values))[0].tolist()
            which = f"number {place[1]} of {name}" if values.ndim > 1 else name
            raise ValueError(f"{which} is {values[tuple(place)]}")


class Diverged(FloatingPointError):
    """A policy whose actions are no numbers."""

    def __init__(self, step: int, seeds: np.ndarray):
        super().__init__(f"not a number after {step:,} steps")
        self.step, self.seeds = step, seeds


def train(
    run: OffPolicy,
    envs: Environments,
    keys: Key[Array, " seeds"],
    steps: int,
    prepare: Callable[[RunState], RunState] = lambda state: state,
    resume: Loop | None = None,
) -> Iterator[Progress]:
    """Trains seeds together, one key each, for `steps` steps a seed; yields after every step of all environments.

    `prepare` may change the state of all seeds before the first step. With `resume` the run goes on from there; the
    environments must be as they were then.
    """
    seeds = len(keys)
    if envs.num_envs != seeds * run.envs:
        raise ValueError(f"{envs.num_envs} environments for {seeds} seeds of {run.envs}")
    parts = programs(run, usable_devices(seeds))

    def by_seed(x: np.ndarray) -> np.ndarray:
        return x.reshape(seeds, run.envs, *x.shape[1:])

    pending: Outcome | None = None
    if resume is None:
        first = 0
        state, choice = parts.init(keys)
        state = prepare(state)
        obs = by_seed(envs.reset())
        began = np.ones((seeds, run.envs), bool)
    else:
        first, state, choice, obs, began, pending = resume
    for number in range(first, -(-steps // run.envs)):
        metrics = None
        before, choice = (
            choice,
            parts.act(state.key, state.learner.actor, state.skill, choice, obs, began, np.int32(number)),
        )
        if pending is not None:
            if run.learns_at(number * run.envs):
                state, metrics = parts.store_and_learn(state, before, pending, np.int32(number))
            else:
                replay, rule = parts.store(state.replay, state.skill, before, pending)
                state = state._replace(replay=replay, skill=rule)
        action = np.asarray(choice.action)
        if not np.isfinite(action).all():
            raise Diverged(number * run.envs, np.flatnonzero(~np.isfinite(action).all((1, 2))))
        with blamed(number * run.envs):
            step = envs.step(action.reshape(envs.num_envs, -1))
            check_outcome(step)
        reward = step.reward.astype(np.float32)
        over = step.terminated if step.terminated.size else np.zeros(envs.num_envs, bool)
        pending = Outcome(obs, by_seed(step.next_obs), by_seed(reward), by_seed(step.truncated), by_seed(over))
        obs, began = by_seed(step.obs), by_seed(step.truncated)
        loop = Loop(number + 1, state, choice, obs, began, pending)
        diagnose = functools.partial(parts.diagnose, state, np.int32(number))
        yield Progress((number + 1) * run.envs, loop, metrics, step, diagnose)

"""Environments of others behind the interface of the robots: Gymnasium (`gym:ID`), dm_control (`dmc:DOMAIN_TASK`) and
what a Python function makes (`py:package.module:function`).

Observations of any nesting are flattened into one vector; actions in [-1, 1] are scaled to the environment's range, and
of choices the one with the largest number is taken. All copies are stepped by Gymnasium's own vector environment.
"""

import copy
import difflib
import functools
import importlib
import inspect
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Float32, Shaped, UInt8

from becl.envs.dm_env import DmEnvironment
from becl.envs.images import Image, find_image
from becl.envs.simulations import Step, shared_seeds
from becl.envs.spec import EnvSpec
from becl.envs.watchdog import watched
from becl.errors import UserError, unknown
from becl.trust import check_trusted

HINT = "start in the folder of its file, or name that folder in PYTHONPATH"
LENGTH = 1000
"""Assumed length of an episode without a limit, because the loop needs a number."""


class GymBatch:
    """`num_envs` copies of a Gymnasium environment, each going through its own episodes.

    An episode that ends by itself (`terminated`) is told apart from one that was cut off. Nothing in Gymnasium lets an
    environment be put where it was, so a run that is resumed begins new episodes.
    """

    resumable = False

    def __init__(
        self,
        make: Callable[[], Any],
        num_envs: int = 1,
        seed: int | Sequence[int] = 0,
        images: bool = False,
        name: str = "an environment",
    ):
        """`make` gives a new environment, which messages call by its `name`. With `images`, observations are the image
        that each has in it."""
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        self.name, self.seeds = name, shared_seeds(seed, num_envs)
        self.num_envs = num_envs
        self._envs: Any = SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        self.space = self._envs.single_observation_space
        self.layout: Layout | ImageLayout = ImageLayout(self.space) if images else Layout(self.space)
        self._actions = actions_of(self._envs.single_action_space)
        discrete = isinstance(self._actions, Choices)
        self.spec = EnvSpec(self.layout.size, self._actions.size, length_of(make), discrete)
        self._begun = 0

    def reset(self) -> Shaped[np.ndarray, "n *o"]:
        """Begins the first episode of every copy."""
        self._begun = 0
        return self.restart()

    def restart(self) -> Shaped[np.ndarray, "n *o"]:
        """Begins new episodes, different ones in each call."""
        each = self.num_envs // len(self.seeds)
        numbers = [
            int(np.random.default_rng([seed % 2**32, seed >> 32, number, self._begun]).integers(2**31))
            for seed in self.seeds
            for number in range(each)
        ]
        self._begun += 1
        with watched(self.name, self.num_envs):
            obs, _ = self._envs.reset(seed=numbers)
        return self.layout.batch(obs, self.num_envs)

    def step(self, action: np.ndarray) -> Step:
        with watched(self.name, self.num_envs):
            raw, reward, terminated, truncated, info = self._envs.step(self.to_action(action))
        obs = self.layout.batch(raw, self.num_envs)
        next_obs, over = obs.copy(), terminated | truncated
        for number in np.flatnonzero(over):
            next_obs[number] = self.layout.one(info["final_obs"][number])
        return Step(obs, np.asarray(reward, np.float64), over, next_obs, terminated.copy())

    def places(self) -> Float[np.ndarray, "n axes"]:
        """Where each copy's body is, x and y, if it is a MuJoCo model; else no axes."""
        bodies = [place_of(env) for env in self._envs.envs]
        known = bodies and all(place is not None for place in bodies)
        return np.stack(bodies) if known else np.zeros((self.num_envs, 0))  # type: ignore[arg-type]

    def to_action(self, action: np.ndarray) -> np.ndarray | np.integer:
        """Turns one action, or a batch of them, into what the environment expects."""
        return self._actions.given(np.asarray(action))

    def get_state(self) -> np.ndarray:
        """How often all episodes were begun together: with it, a resumed run begins different ones."""
        return np.array(self._begun)

    def set_state(self, state: np.ndarray) -> None:
        self._begun = int(state)

    def close(self) -> None:
        self._envs.close()


def place_of(env: Any) -> Float[np.ndarray, " 2"] | None:
    """x and y of a MuJoCo model's first body, in metres; None without such a model."""
    inner = env.unwrapped
    data = getattr(getattr(inner, "physics", inner), "data", None)  # dm_control's, or Gymnasium's own.
    xpos = getattr(data, "xpos", None)
    return None if xpos is None or len(xpos) < 2 else np.array(xpos[1][:2], np.float64)


def length_of(make: Callable[[], Any]) -> int:
    """The maximum number of steps in an episode."""
    one = make()
    limit = one.spec.max_episode_steps if one.spec is not None else None
    inner = one
    while limit is None and inner is not inner.unwrapped:  # Limits that `gymnasium.make` did not set.
        limit = getattr(inner, "_max_episode_steps", None)
        inner = inner.env
    one.close()
    return limit or LENGTH


class Layout:
    """Flattens observations into vectors."""

    def __init__(self, space: Any):
        from gymnasium import spaces
        from gymnasium.spaces.utils import flatten_space

        self._space = space
        self._plain = isinstance(space, spaces.Box)
        leaves = dict(_leaves(space))
        for name, leaf in leaves.items():
            if not isinstance(leaf, spaces.Box | spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
                what = f" {name!r}" if name else ""
                raise UserError(
                    f"observation{what} is {type(leaf).__name__}: numbers (Box, also in a Dict) are supported"
                )
        self.size = _numbers(flatten_space(space))
        if not self.size:
            raise UserError("observations have no numbers: there is nothing to see")
        self.parts: dict[str, slice] = {}
        """The columns of each part of a Dict."""
        begin = 0
        for name, leaf in leaves.items():
            count = _numbers(flatten_space(leaf))
            self.parts[name] = slice(begin, begin + count)
            begin += count

    def one(self, obs: Any) -> Float32[np.ndarray, " o"]:
        from gymnasium.spaces.utils import flatten

        return np.asarray(flatten(self._space, obs), np.float32).reshape(-1)

    def batch(self, obs: Any, count: int) -> Float32[np.ndarray, "n o"]:
        if self._plain:
            return np.array(obs, np.float32).reshape(count, -1)
        from gymnasium.vector.utils import batch_space, iterate

        return np.stack([self.one(row) for row in iterate(batch_space(self._space, count), obs)])


class ImageLayout:
    """Takes the image out of observations."""

    def __init__(self, space: Any):
        found = find_image(space)
        if found is None:
            raise UserError("no part of the observation is an image")
        self.image = found
        self.size = found.height * found.width * 3
        self.parts: dict[str, slice] = {}

    def one(self, obs: Any) -> UInt8[np.ndarray, "h w 3"]:
        return self.image.of(obs)

    def batch(self, obs: Any, count: int) -> UInt8[np.ndarray, "n h w 3"]:
        return np.array(self.image.of(obs))


def _numbers(space: Any) -> int:
    return int(np.prod(space.shape))


def _leaves(space: Any, path: str = "") -> Any:
    """The spaces nested in a space, in the order in which they are flattened."""
    from gymnasium import spaces

    if isinstance(space, spaces.Dict):
        for name, inner in space.items():
            yield from _leaves(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(space, spaces.Tuple):
        for number, inner in enumerate(space):
            yield from _leaves(inner, f"{path}.{number}" if path else str(number))
    else:
        yield path, space


class Ranges(NamedTuple):
    """Actions that are numbers in ranges."""

    low: Float[np.ndarray, " a"]
    half: Float[np.ndarray, " a"]
    """Of a range."""
    shape: tuple[int, ...]
    dtype: Any

    @property
    def size(self) -> int:
        return self.low.size

    def given(self, action: Float[np.ndarray, "*batch a"]) -> np.ndarray | np.integer:
        """Scaled from [-1, 1]."""
        scaled = self.low + self.half * (np.clip(action, -1.0, 1.0).astype(np.float64) + 1)
        return scaled.reshape(*action.shape[:-1], *self.shape).astype(self.dtype)


class Choices(NamedTuple):
    """Actions that are whole numbers, one after another."""

    size: int
    first: int

    def given(self, action: Float[np.ndarray, "*batch a"]) -> np.ndarray | np.integer:
        """The choice with the largest number."""
        return self.first + np.argmax(action, axis=-1)


def actions_of(space: Any) -> Ranges | Choices:
    from gymnasium.spaces import Box, Discrete

    if isinstance(space, Discrete):
        return Choices(int(space.n), int(space.start))
    if not isinstance(space, Box):
        raise UserError(
            f"actions are {type(space).__name__}: numbers (Box) and a single choice (Discrete) are supported"
        )
    if not int(np.prod(space.shape)):
        raise UserError("actions have no numbers: there is nothing to learn")
    low, high = (np.asarray(bound, np.float64).reshape(-1) for bound in (space.low, space.high))
    if not (np.isfinite(low) & np.isfinite(high)).all():
        raise UserError(
            "actions have no bounds: wrap the environment in gymnasium.wrappers.RescaleAction or ClipAction"
        )
    return Ranges(low, (high - low) / 2, space.shape, space.dtype)


def import_from_here(name: str, module: str) -> Any:
    """Imports the module of an environment that is trusted: an installed one, otherwise one in the current folder."""
    check_trusted(name, module)
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    return importlib.import_module(module)


def gym_maker(name: str) -> Callable[..., Any]:
    """Makes the Gymnasium environment of an id; for an unknown `package/Name-v0`, imports the package first."""
    import gymnasium

    module, _, rest = name.partition("/")
    if name not in gymnasium.registry and rest:
        try:
            import_from_here(f"gym:{name}", module)
        except ImportError as error:
            raise UserError(f"gym:{name}: {module} cannot be imported: {error}; {HINT}") from None
        name = name if name in gymnasium.registry else rest
    if name not in gymnasium.registry:
        close = difflib.get_close_matches(name, gymnasium.registry, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise UserError(f"unknown Gymnasium environment {name!r}: {hint}gymnasium.pprint_registry() lists all")

    def make(**options: Any) -> Any:
        return gymnasium.make(name, **options)

    return make


def dmc_maker(name: str) -> Callable[..., Any]:
    """Makes a task of dm_control's suite, `cheetah_run`, as a Gymnasium environment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # About displays, which are not needed here.
        from dm_control import suite

    domain, task = next(
        ((domain, task) for domain, task in suite.ALL_TASKS if f"{domain}_{task}" == name), (None, None)
    )
    if domain is None or task is None:
        raise unknown("dm_control task", name, [f"{domain}_{task}" for domain, task in suite.ALL_TASKS])

    def make(**options: Any) -> Any:
        del options
        return DmEnvironment(lambda seed: suite.load(domain, task, {"random": seed}))

    return make


FACTORIES: dict[str, Callable[..., Any]] = {}
"""Environments that were passed as objects in this process, by name."""


def py_maker(name: str) -> Callable[..., Any]:
    """Finds a function in an importable module, `package.module:function`, or among those passed as objects."""
    if name in FACTORIES:
        return FACTORIES[name]
    module, colon, path = name.partition(":")
    if not colon or not path or "<" in path or module == "__main__":
        raise UserError(
            f"py:{name}: made in another Python process; pass it again, becl.load(folder, env=...), or name an "
            "importable function as py:package.module:function"
        )
    try:
        found: Any = import_from_here(f"py:{name}", module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise UserError(f"py:{name} cannot be imported: {error}; {HINT}") from None
    if not callable(found):
        raise UserError(f"py:{name} is {type(found).__name__}: a function or class without arguments is needed")
    return wrapped(found)


def hand_over(env: Any, name: str | None = None) -> str:
    """Registers an environment, or a function that makes one, and returns its name.

    Other processes find functions and classes of a module by this name, but nothing else. A single environment is
    copied, by its Gymnasium spec if it has one.
    """
    spec: Any = getattr(env, "spec", None)
    if name is None and not callable(env) and spec is not None and not spec.kwargs:
        return f"gym:{spec.id}"
    if name is None:
        kind = env if hasattr(env, "__qualname__") else type(env)
        name = f"{kind.__module__}:{kind.__qualname__}"
    name = name.removeprefix("py:")
    FACTORIES[name] = wrapped(env if callable(env) else copier(env))
    external_spec.cache_clear()  # The name may have stood for another one.
    external_image.cache_clear()
    return f"py:{name}"


def copier(env: Any) -> Callable[..., Any]:
    """Makes copies of an environment."""
    if not (hasattr(env, "reset") and hasattr(env, "step")):
        raise UserError(f"{type(env).__name__} is not an environment: pass a name, an environment or a function")
    if getattr(env, "spec", None) is not None:
        import gymnasium

        return lambda **options: gymnasium.make(env.spec, **options)
    return lambda: copy.deepcopy(env)


def wrapped(make: Callable[..., Any]) -> Callable[..., Any]:
    """Gymnasium environments as they are; dm_env environments behind the Gymnasium interface. Options that the function
    does not take are left out."""

    def make_gymnasium(**options: Any) -> Any:
        env = make(**taken(make, options))
        if not hasattr(env, "observation_spec"):
            return env
        return DmEnvironment(lambda seed: seeded(make(), seed))

    return make_gymnasium


def taken(make: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options that a function takes."""
    parameters = inspect.signature(make).parameters.values() if options else ()
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return options
    return {name: value for name, value in options.items() if name in {one.name for one in parameters}}


def seeded(env: Any, seed: int) -> Any:
    """Seeds the task, where dm_control keeps its random numbers."""
    random = getattr(getattr(env, "task", None), "random", None)
    if random is not None:
        random.seed(seed)
    return env


KINDS: dict[str, Callable[[str], Callable[..., Any]]] = {"gym": gym_maker, "dmc": dmc_maker, "py": py_maker}


def is_external(name: str) -> bool:
    """Whether a name means an environment from outside this package."""
    return name.partition(":")[0] in KINDS and ":" in name


def maker_of(name: str) -> Callable[..., Any]:
    """The function that makes one copy of `gym:ID`, `dmc:TASK` or `py:MODULE:FUNCTION`. Of Gymnasium's options, such as
    `render_mode`, it takes those that the environment has."""
    kind, _, rest = name.partition(":")
    return KINDS[kind](rest)


@functools.cache
def external_spec(name: str) -> EnvSpec:
    """What a method needs to know about an environment, found out by making one."""
    batch = make_external(name, 1, 0)
    batch.close()
    return batch.spec


def external_parts(name: str) -> dict[str, slice]:
    """Named parts of the observation: the keys of a Dict."""
    batch = make_external(name, 1, 0)
    batch.close()
    return {part: place for part, place in batch.layout.parts.items() if part}


@functools.cache
def external_image(name: str) -> Image | None:
    """The image in an environment's observations, where there is one; refuses what is almost one."""
    batch = make_external(name, 1, 0)
    batch.close()
    try:
        return find_image(batch.space)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None


def make_external(name: str, num_envs: int, seed: int | Sequence[int], images: bool = False) -> GymBatch:
    make = maker_of(name)
    try:
        return GymBatch(make, num_envs, seed, images, name)
    except UserError as error:
        raise UserError(f"{name}: {error}") from None
    except Exception as error:  # Environments may raise anything here: a missing package, a missing file.
        said = str(error).strip().splitlines()
        raise UserError(f"{name} cannot be made: {type(error).__name__}: {said[0] if said else ''}") from error

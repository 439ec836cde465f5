"""Environments by name: their specs, and copies of them shared by seeds."""

from collections.abc import Mapping, Sequence

import gymnasium

from becl import envs
from becl.envs import maze
from becl.envs.external import external_image, external_parts, external_spec, is_external, make_external
from becl.envs.frames import make_frames
from becl.envs.maze_batch import MazeBatch
from becl.envs.spec import EnvSpec
from becl.errors import UserError, unknown
from becl.learning.offpolicy import OffPolicy
from becl.learning.protocols import Restorable
from becl.learning.seeing import Vision, behind_camera

POSITIONS = ("position", "xy", "achieved_goal")
"""Names of parts of an observation that say where it is."""


def spec_of(env: str, vision: Vision | None = None) -> EnvSpec:
    """What networks get of an environment: its numbers or, of what is seen, an encoder's features."""
    if vision is not None:
        plain = spec_of(env)
        return plain._replace(obs_dim=vision.features, episode_length=-(-plain.episode_length // vision.repeat))
    if is_external(env):
        return external_spec(env)
    if env in maze.names():
        return maze.Maze(env).spec
    if env not in envs.DOMAINS and env not in envs.names():
        if "/" in env or env in gymnasium.registry:
            raise UserError(f"unknown environment {env!r}: Gymnasium's are named gym:ID; did you mean 'gym:{env}'?")
        raise unknown("environment", env, [*envs.DOMAINS, *envs.names(), *maze.names()])
    return envs.spec_of(env)


def check_recorded(env: str, run: OffPolicy) -> None:
    """Refuses a recorded environment that is another now. Those of others are only made where they are needed."""
    if min(run.env[:3]) < 1:
        raise UserError(f"run.env: {', '.join(map(str, run.env))}: must be greater than 0")
    if not is_external(env):
        check_sizes(env, run.env, spec_of(env, run.vision))


def check_here(env: str, run: OffPolicy) -> None:
    """Refuses a recorded environment of others that is another on this machine."""
    if is_external(env):
        check_sizes(env, run.env, spec_of(env, run.vision))


def check_sizes(env: str, recorded: EnvSpec, found: EnvSpec) -> None:
    """Refuses an environment whose sizes are not those that networks were made for."""
    for what, before, now in zip(("observations", "actions"), recorded, found, strict=False):
        if before != now:
            raise UserError(f"{env} has {what} of {now} numbers, and this run was made with {before}")


def parts_of(env: str) -> Mapping[str, slice]:
    """The named parts of an environment's observations."""
    if is_external(env):
        return external_parts(env)
    return {"x": slice(0, 1), "y": slice(1, 2)} if env in maze.names() else envs.DOMAINS[env.partition("_")[0]].parts


def choose_numbers(
    given: str | Sequence[int], parts: Mapping[str, slice], count: int, option: str = "--objective-obs"
) -> tuple[int, ...]:
    """Indices of an observation's numbers: given as they are, or as `0:2`, `0,3,7` or names of parts, with commas."""
    chosen: list[int] = []
    for word in given.split(",") if isinstance(given, str) else []:
        word = word.strip()
        low, colon, high = word.partition(":")
        if word in parts:
            chosen += range(parts[word].start, parts[word].stop)
        elif word.isdecimal():
            chosen.append(int(word))
        elif colon and all(not end or end.isdecimal() for end in (low, high)):
            chosen += range(int(low or 0), int(high or count))
        else:
            raise unknown("part of the observation", word, parts, [f"numbers 0 to {count - 1}", "ranges such as 0:2"])
    if not isinstance(given, str):
        chosen = list(given)
    if not chosen or min(chosen) < 0 or max(chosen) >= count:
        text = given if isinstance(given, str) else ",".join(map(str, given))
        raise UserError(f"{option} {text}: an observation has numbers 0 to {count - 1}")
    return tuple(dict.fromkeys(chosen))


def position_of(env: str, given: str | Sequence[int] | None) -> tuple[int, ...]:
    """Which numbers of an observation say where it is: those given, or of a part whose name says so; for environments
    from outside the package. None are named where a MuJoCo model knows."""
    if not is_external(env):
        if given is not None:
            raise UserError(f"--position: where {env} is, is known; leave it out")
        return ()
    parts = parts_of(env)
    if given is None:
        name = next((name for name in POSITIONS if name in parts), None)
        return () if name is None else tuple(range(parts[name].start, parts[name].stop))
    return choose_numbers(given, parts, spec_of(env).obs_dim, "--position")


def check_seen(env: str) -> None:
    """Raises on environments that have no images."""
    if env in maze.names():
        raise UserError(f"--pixels: {env} is a maze, of which there are no images; {', '.join(envs.DOMAINS)} have them")
    if is_external(env) and external_image(env) is None:
        raise UserError(f"--pixels: no observation of {env} is an image; {', '.join(envs.DOMAINS)} are drawn here")


def shows_images(env: str) -> bool:
    """Whether observations of somebody else's environment are images, which are seen without being asked for."""
    return is_external(env) and external_image(env) is not None


def seen_line(env: str, vision: Vision | None) -> str:
    """What is seen of somebody else's environment, and what is not; nothing of others."""
    image = external_image(env) if vision is not None and is_external(env) else None
    if image is None or vision is None:
        return ""
    line = f"images: {image.height}×{image.width} of {env}"
    if (image.height, image.width) != (vision.size, vision.size):
        line += f", resized to {vision.size}×{vision.size} (vision.size)"
    return line + (f"; not seen: {', '.join(image.others)}" if image.others else "")


def check_drawn(env: str, vision: Vision) -> None:
    """Raises on robots that cannot be drawn in the way asked for, or not on this machine."""
    if is_external(env):
        return
    make_frames(envs.DOMAINS[env.partition("_")[0]], vision.size, vision.drawing).close()


def make_envs(
    env: str, count: int, seeds: Sequence[int], vision: Vision | None = None, episode_length: int | None = None
) -> Restorable:
    """Makes `count` environments, shared equally by seeds. Episodes of mazes and robots may have a length that is not
    their own, unless they are seen."""
    if vision is not None:
        return behind_camera(make_unseen(env, count, seeds, vision), vision)
    return make_unseen(env, count, seeds, episode_length=episode_length)


def make_unseen(
    env: str, count: int, seeds: Sequence[int], vision: Vision | None = None, episode_length: int | None = None
) -> Restorable:
    """The same, without the camera that a vision would put in front of them."""
    if is_external(env):
        return make_external(env, count, list(seeds), images=vision is not None)
    if env in maze.names():
        plan = maze.Maze(env) if episode_length is None else maze.Maze(env, episode_length=episode_length)
        return MazeBatch(plan, count, list(seeds))
    return envs.make(env, count, list(seeds), episode_length=episode_length)


def changed_length(env: str, found: EnvSpec, vision: Vision | None = None) -> int | None:
    """The length of episodes where it is not the environment's own."""
    changeable = env in maze.names() or env in envs.DOMAINS or env in envs.names()
    if vision is not None or not changeable or found.episode_length == spec_of(env).episode_length:
        return None
    return found.episode_length

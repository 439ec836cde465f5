"""Environments: mazes in pure JAX (`maze`) and robots in MuJoCo (`make`)."""

from collections.abc import Sequence

import numpy as np

from becl.envs.domain import Domain
from becl.envs.jaco import Jaco
from becl.envs.quadruped import Quadruped
from becl.envs.simulations import Simulations, State, Step
from becl.envs.spec import EnvSpec
from becl.envs.walker import Walker
from becl.errors import UserError, unknown

__all__ = ["DOMAINS", "EnvSpec", "Simulations", "State", "Step", "make", "names", "spec_of"]

DOMAINS: dict[str, Domain] = {"walker": Walker(), "quadruped": Quadruped(), "jaco": Jaco()}


def names() -> list[str]:
    """Names of the twelve tasks."""
    return [f"{domain}_{task}" for domain, entry in DOMAINS.items() for task in entry.tasks]


def spec_of(name: str) -> EnvSpec:
    """What a method needs to know about a task or domain."""
    if name not in names() and name not in DOMAINS:
        raise unknown("environment", name, [*DOMAINS, *names()])
    domain = DOMAINS[name.partition("_")[0]]
    return EnvSpec(domain.obs_dim, domain.action_dim, domain.episode_length)


def make(
    name: str,
    num_envs: int = 1,
    seed: int | Sequence[int] = 0,
    *,
    episode_length: int | None = None,
    threads: int | None = None,
) -> Simulations:
    """`num_envs` simulations of a task (`walker_run`), or of a domain (`walker`) with URLB's reward for pretraining.

    `episode_length` is the domain's by default; `threads` all cores. Several seeds share the simulations equally.
    """
    spec_of(name)
    domain, _, task = name.partition("_")
    for option, value in (("num_envs", num_envs), ("episode_length", episode_length), ("threads", threads)):
        if value is not None and (not isinstance(value, int | np.integer) or value < 1):
            raise UserError(f"{option} {value}: a whole number, at least 1, is needed")
    entry = DOMAINS[domain]
    return Simulations(entry, task or entry.primal, num_envs, seed, episode_length, threads)


from becl.envs import registration  # noqa: E402

registration.register()

"""What a call of a skill costs: `skill(obs)` with NumPy, beside the same network in jitted JAX.

    python -m benchmarks.skill

Networks of the walker with random weights; the median of many calls, the first of which are not counted.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from becl.envs.spec import EnvSpec
from becl.export.policy import Skill, fold
from becl.learning.ddpg import DDPG
from becl.skills import OneHot

CALLS = 2000


def microseconds(call: Callable[[], object]) -> float:
    taken = []
    for _ in range(CALLS):
        began = time.perf_counter()
        call()
        taken.append(time.perf_counter() - began)
    return 1e6 * float(np.median(taken[CALLS // 10 :]))


def main() -> None:
    space, env = OneHot(16), EnvSpec(24, 6, 1000)
    print(f"{'width':>6} {'batch':>6} {'skill(obs) µs':>14} {'jitted JAX µs':>14}")
    for hidden in (256, 1024):
        actor = DDPG(hidden=hidden).init(jax.random.key(0), env, space).actor
        chosen = np.eye(16, dtype=np.float32)[3]
        about = {"skill_vector": chosen.tolist(), "skill": "3", "env": "walker", "task": ""}
        skill = Skill(fold(actor, chosen), about)
        for batch in (1, 64):
            obs = np.random.default_rng(0).normal(size=(batch, 24)).astype(np.float32)
            given = jnp.concatenate([obs, np.broadcast_to(chosen, (batch, 16))], 1)
            act = jax.jit(actor.__call__)
            one = obs[0] if batch == 1 else obs
            ours = microseconds(lambda skill=skill, one=one: skill(one))
            theirs = microseconds(lambda act=act, given=given: np.asarray(act(given)))
            print(f"{hidden:>6} {batch:>6} {ours:>14.0f} {theirs:>14.0f}", flush=True)


if __name__ == "__main__":
    main()

"""Writes the policy of one skill and checks the file: read again, it has to act like the run's own network."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from becl.errors import Failed, UserError
from becl.export.files import check_out, choose_format, load_policy, save
from becl.export.find import Policy, find_policy
from becl.export.policy import Act, fold
from becl.nn.precision import computing

TOLERANCE = 1e-5  # Between actions of the file and of the run's network.


def export_policy(
    run: Path,
    out: Path,
    skill: str | None = None,
    seed: int | None = None,
    snapshot: int | None = None,
    task: str | None = None,
    format: str | None = None,
    force: bool = False,
) -> tuple[Policy, float]:
    """Writes the policy that `find_policy` finds; returns it and by how much the file's actions differ from its own."""
    choose_format(out, format)
    check_out(out, force)
    policy = find_policy(run, skill, seed, snapshot, task)
    if out.resolve() == policy.source.resolve():
        raise UserError(f"--out {out}: that is the file the policy is read from")
    return policy, write_policy(policy, out)


def write_policy(policy: Policy, out: Path) -> float:
    """Writes a file in the format of its name; returns what `check_policy` finds, and leaves nothing where that is too
    much."""
    unfinished = out.with_name(f"{out.stem}.part{out.suffix.lower()}")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            save(unfinished, fold(policy.actor, policy.skill), policy.about)
            difference = check_policy(load_policy(unfinished), policy)
            if difference <= TOLERANCE:
                unfinished.replace(out)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from None
    if not difference <= TOLERANCE:
        raise Failed(
            f"actions of the written file differ by {difference:.2g} from the run's, more than {TOLERANCE:g}; nothing "
            "is left"
        )
    return difference


def check_policy(act: Act, policy: Policy) -> float:
    """The largest difference to the run's own network over some observations in [-1, 1]."""
    # Not farther out: there float32 alone makes two computations of the same actions differ by 1e-5.
    obs = np.random.default_rng(0).uniform(-1, 1, (300, policy.about["observation_dim"])).astype(np.float32)
    skill = np.broadcast_to(policy.skill, (len(obs), len(policy.skill)))
    with computing("float32"):
        actions = jax.jit(policy.actor.__call__)(jnp.concatenate([obs, skill], -1))
    found = act(obs)
    return float(np.abs(found - np.asarray(actions)).max()) if found.shape == actions.shape else math.inf

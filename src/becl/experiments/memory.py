"""The memory that a run needs, computed before it begins."""

import math
import os
from typing import NamedTuple

import jax
import numpy as np

from becl.errors import UserError
from becl.learning.offpolicy import OffPolicy
from becl.learning.programs import usable_devices
from becl.runs.provenance import device_name


class Memory(NamedTuple):
    """Bytes that a run needs on all its devices together."""

    replay: int
    networks: int
    """Networks with their optimisers' states."""
    batches: int
    """All batches of a step's updates, which are drawn at once."""

    @property
    def total(self) -> int:
        return sum(self)


def memory(run: OffPolicy, seeds: int) -> Memory:
    state, _ = jax.eval_shape(run.init, jax.random.key(0))
    learning = jax.tree.leaves((state.learner, state.objective))
    replay = run.replay.bytes(run.env, run.objective.skills, run.envs, run.images)
    transition = replay / (run.replay.capacity // run.envs * run.envs)
    updates = run.updates
    if run.images is not None:  # Of two whole stacks and their features, gathered for one update after another.
        numbers = math.prod(run.images.shape) * np.dtype(run.images.kind).itemsize
        transition, updates = 2 * (numbers + 4 * run.env.obs_dim), 1
    return Memory(
        seeds * replay,
        seeds * sum(leaf.size * leaf.dtype.itemsize for leaf in learning),
        int(seeds * updates * run.fits_per_update * run.batch * transition),
    )


def available_memory() -> int:
    """Bytes of memory of one device."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_memory(run: OffPolicy, seeds: int, name: str) -> str:
    """A line that says how much memory the seeds, or lanes, of a run need; refuses a run that cannot fit."""
    need, devices = memory(run, seeds), usable_devices(seeds)
    have = available_memory() * devices
    line = f"replay {size(need.replay)} ({seeds} × {run.replay.capacity:,} transitions{of_frames(run)}), networks "
    line += f"{size(need.networks)}, batches {size(need.batches)}; {size(have)} on {device_name()}"
    if need.total > have:
        fit = int(run.replay.capacity * (have - need.total + need.replay) / need.replay * 0.9)
        advice = f"--set replay.capacity={fit // 1000 * 1000} fits" if fit >= 10_000 else f"train fewer {name} together"
        raise UserError(f"not enough memory: {line}; {advice}")
    return line


def of_frames(run: OffPolicy) -> str:
    """What a transition takes that is an image, and how to have fewer."""
    if run.images is None:
        return ""
    bytes_each = math.prod(run.images.frame) * np.dtype(run.images.kind).itemsize
    tenth = f"; --set replay.capacity={run.replay.capacity // 10} takes a tenth"
    return f" of {bytes_each / 1e3:.1f} kB{tenth if run.replay.capacity >= 100_000 else ''}"


def size(number: int | float) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e8 else f"{number / 1e6:.1f} MB"

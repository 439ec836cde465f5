"""A run's steps as compiled programs: precision, seeds side by side, and devices are decided here and nowhere else."""

import functools
import gc
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Int, Key

from becl.learning.offpolicy import Activity, OffPolicy, Outcome, RunState
from becl.nn.precision import compiler_options, computing
from becl.objectives.protocol import Metrics


class RunPrograms(NamedTuple):
    """A run's parts, jitted and vmapped over seeds."""

    init: Callable
    act: Callable
    store: Callable
    store_and_learn: Callable
    diagnose: Callable


@functools.cache
def programs(run: OffPolicy, devices: int = 1) -> RunPrograms:
    """The compiled programs of a run. The first `devices` devices share seeds equally; seeds never communicate."""

    def act(*args) -> Activity:
        with computing(run.precision):
            return run.act(*args)

    def store_and_learn(state: RunState, choice: Activity, outcome: Outcome, number: Int[Array, ""]):
        with computing(run.precision):
            replay, rule = run.store(state.replay, state.skill, choice, outcome)
            return run.learn(state._replace(replay=replay, skill=rule), number)

    def diagnose(state: RunState, number: Int[Array, ""]) -> Metrics:
        with computing(run.precision):
            return run.diagnose(state, number)

    mesh = Mesh(np.array(jax.devices()[:devices]), ("seeds",)) if devices > 1 else None

    def init(keys: Key[Array, " seeds"]) -> tuple[RunState, Activity]:
        # Not vmapped: on a CPU with few cores, batches of QR decompositions wait for each other forever.
        return jax.lax.map(run.init, keys)

    def shared(part: Callable, axes: tuple[int | None, ...], **options) -> Callable:
        if mesh is not None:
            specs = tuple(P() if axis is None else P("seeds") for axis in axes)
            part = jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=P("seeds"), check_vma=False)
        return jax.jit(part, compiler_options=compiler_options(), **options)

    def over_seeds(part: Callable, *axes: int | None, **options) -> Callable:
        return shared(jax.vmap(part, axes), axes, **options)

    return RunPrograms(
        init=shared(init, (0,)),
        act=over_seeds(act, 0, 0, 0, 0, 0, 0, None),
        # The buffer is changed in place; without donation every step would copy it.
        store=over_seeds(run.store, 0, 0, 0, 0, donate_argnums=(0, 1)),
        store_and_learn=over_seeds(store_and_learn, 0, 0, 0, None, donate_argnums=0),
        diagnose=over_seeds(diagnose, 0, None),
    )


def usable_devices(seeds: int) -> int:
    """The largest number of devices that can share seeds equally."""
    return max(n for n in range(1, min(seeds, jax.device_count()) + 1) if seeds % n == 0)


def forget_programs() -> None:
    """Frees compiled programs. Each takes dozens of memory maps, of which Linux allows a process 65,530."""
    programs.cache_clear()
    jax.clear_caches()
    gc.collect()

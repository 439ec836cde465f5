"""What checkpoints of a full replay cost a run, at the default interval.

    python -m benchmarks.checkpoint                                 sizes of a laptop
    python -m benchmarks.checkpoint --full --precision bf16         URLB's sizes, one seed and eight, for a GPU

The column "checksums" is what they cost: the seconds in which SHA-256 is computed, and lists are written, for all
that an interval leaves on the disk (a checkpoint, a snapshot of every seed, ten rows of metrics), over the time of
the interval in the same run.

The replay is filled with noise, then stretches of the real loop with one checkpoint alternate with stretches without.
A checkpoint holds as many new rows of the replay as there are in an interval. Its cost is what a stretch takes longer
by, and the overhead that cost over the time of an interval.
"""

import argparse
import contextlib
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from becl.experiments.environments import make_envs
from becl.experiments.memory import size
from becl.experiments.pretrainer import CHECKPOINT_EVERY
from becl.experiments.pretraining import Pretraining, make_pretraining, seed_keys
from becl.experiments.snapshots import save_snapshots
from becl.learning.offpolicy import RunState
from becl.learning.training import train
from becl.measure.coverage import Coverage, grid_of
from becl.options import PretrainOptions
from becl.runs import checkpoint as checkpoint_file
from becl.runs import sums as sums_file
from becl.runs.log import Log
from becl.runs.provenance import device_name
from becl.runs.recording import Recorder

SMALL = ("batch=64", "replay.capacity=100000", "random_steps=1000")
PAIRS = 4


def fill(state: RunState) -> RunState:
    """A replay that has been written to the end."""
    replay, key = state.replay, jax.random.key(0)

    def noise(field: jax.Array) -> jax.Array:
        return field if field.dtype == bool else jax.random.normal(key, field.shape).astype(field.dtype)

    steps = jax.jit(lambda steps: jax.tree.map(noise, steps), donate_argnums=0)(replay.steps)
    written = jnp.full_like(replay.written, steps.last.shape[1])
    return state._replace(replay=replay._replace(steps=steps, written=written))


class Cost(NamedTuple):
    """Seconds, if nothing else is said."""

    interval: float
    """Of as many steps as there are between checkpoints, without any."""
    saving: float
    """What one of them adds."""
    standing: float
    """For how long the loop stands still of that."""
    whole: float
    """Until the first, with the whole replay, is on the disk."""
    disk: int
    """Bytes of it."""
    sums: float
    """In which checksums are computed and listed in an interval."""


@contextlib.contextmanager
def counting(spent: list[float]) -> Iterator[None]:
    """Adds the seconds that checksums take, in every thread."""

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*words: Any, **more: Any) -> Any:
            began = time.perf_counter()
            result = function(*words, **more)
            spent.append(time.perf_counter() - began)
            return result

        return counted

    before = checkpoint_file.digest, sums_file.digest, sums_file._update
    checkpoint_file.digest, sums_file.digest, sums_file._update = map(timed, before)
    try:
        yield
    finally:
        checkpoint_file.digest, sums_file.digest, sums_file._update = before


def measure(planned: Pretraining, stretch: float, folder: Path) -> Cost:
    """With stretches of about so many seconds."""
    run, keys = planned.run, seed_keys(planned.seeds)
    with contextlib.ExitStack() as stack:
        environments = make_envs(planned.env, run.envs * len(planned.seeds), planned.seeds)
        stack.enter_context(contextlib.closing(environments))
        coverage = Coverage(grid_of(planned.env), len(planned.seeds))
        log = Log(folder, [{"seed": seed} for seed in planned.seeds], run.envs, planned.log_every, coverage)
        stack.callback(log.close)
        recorder = Recorder(run, keys, environments, folder / "checkpoint", planned.config(), print)
        stack.callback(recorder.close)
        loop = train(run, environments, keys, 10**9, prepare=fill)

        def save() -> float:
            began = time.perf_counter()
            now = next(loop)
            recorder.save(now.step, now.loop, log, {}, {})
            return time.perf_counter() - began

        def steps(count: int) -> float:
            began, last = time.perf_counter(), None
            for now in itertools.islice(loop, count):
                log.add(now.metrics, now.outcome)
                last = now.metrics
            jax.block_until_ready(last)
            return time.perf_counter() - began

        steps(run.random_steps // run.envs + 10)  # Compiles.
        count = max(10, int(stretch / (steps(10) / 10)))
        began = time.perf_counter()
        save()
        recorder._settle()
        whole = time.perf_counter() - began
        disk = sum(path.stat().st_size for path in (folder / "checkpoint").iterdir())
        calm, busy, standing = [], [], []
        for _ in range(PAIRS):
            calm.append(steps(count))
            # As if the last one were an interval ago.
            recorder._rows -= CHECKPOINT_EVERY // run.envs
            standing.append(save())
            busy.append(standing[-1] + steps(count - 1))
            recorder._settle()
        spent: list[float] = []
        with counting(spent):
            recorder._rows -= CHECKPOINT_EVERY // run.envs
            save()
            recorder._settle()
            save_snapshots(planned, folder, next(loop).state, CHECKPOINT_EVERY)
            for _ in range(10):
                with log._growing.growing(b"0.123456," * 30 * len(planned.seeds)):
                    pass
    usual = statistics.median(calm)
    interval = usual / (count * run.envs) * CHECKPOINT_EVERY
    return Cost(interval, statistics.median(busy) - usual, statistics.median(standing), whole, disk, sum(spent))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="walker")
    parser.add_argument("--full", action="store_true", help="URLB's sizes instead of a laptop's")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--stretch", type=float, default=5.0, help="seconds of a stretch")
    args = parser.parse_args()
    sizes = {} if args.full else {"hidden": 64, "set": SMALL}
    print(f"{args.env} · {device_name()} · jax {jax.__version__} · {'URLB sizes' if args.full else 'small networks'}")
    columns = ("seeds", "an interval, s", "a checkpoint adds, s", "loop stands still, s", "overhead")
    columns += ("with the whole replay, s", "on disk", "checksums", "device memory")
    print("\n| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for count in args.seeds:
        planned = make_pretraining(
            PretrainOptions(args.env, "becl", tuple(range(count)), precision=args.precision, **sizes)
        )
        with tempfile.TemporaryDirectory() as folder:
            cost = measure(planned, args.stretch, Path(folder))
        peak = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
        cells = (
            count,
            f"{cost.interval:.1f}",
            f"{cost.saving:.2f}",
            f"{cost.standing:.2f}",
            f"{cost.saving / cost.interval:.1%}",
            f"{cost.whole:.1f}",
            size(cost.disk),
            f"{cost.sums / cost.interval:.2%}",
            size(peak) if peak else "",
        )
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()

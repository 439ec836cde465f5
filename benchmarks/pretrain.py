"""How fast methods pretrain: an update of the learner alone, and the whole loop with simulation.

    python -m benchmarks.pretrain                           all methods, sizes of a laptop
    python -m benchmarks.pretrain --full                    URLB's sizes, for a GPU
    python -m benchmarks.pretrain --full becl --env jaco --seeds 1 8 --precision bf16 tf32
    python -m benchmarks.pretrain --full becl --seeds 8 --kernels 40    where a GPU's time goes in an update
    python -m benchmarks.pretrain becl rnd becl+rnd --processor         what an update costs a machine that is busy
    python -m benchmarks.pretrain becl --encoder cnn pieg cached    from images; pieg needs `becl encoder-weights`

An update is one of the learner with the fits of the objective before it, amortised over those of one step of all
environments. Rates vary between machines; compare the ratios.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from becl.experiments.memory import memory, size
from becl.experiments.pretraining import Pretraining, make_pretraining, seed_keys
from becl.experiments.trial import time_loop, trial_of
from becl.learning.offpolicy import Outcome
from becl.learning.programs import programs, usable_devices
from becl.objectives import METHODS
from becl.options import PretrainOptions
from becl.runs.provenance import device_name

SMALL = ("replay.capacity=20000",)
SMALL_IMAGES = ("batch=32", "replay.capacity=20000", "vision.size=32")
ENCODERS = {
    "states": {},
    "cnn": {"pixels": True},
    "pieg": {"pixels": True, "encoder": "pieg"},
    "cached": {"pixels": True, "encoder": "pieg", "set": ("vision.encoder.statistics=fixed", "vision.shift=0")},
}
"""What is learned from: states, images, or features of images that are kept; options of each."""
REPEATS = 5


def time_update(
    planned: Pretraining, kernels: int = 0, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """Seconds of an update of all seeds together, and of compiling; prints so many of the kernels that take longest."""
    run = trial_of(planned.run)
    seeds = len(planned.seeds)
    parts = programs(run, usable_devices(seeds))
    state, choice = parts.init(seed_keys(planned.seeds))
    rng = np.random.default_rng(0)
    observations = rng.uniform(0, 255, (2, seeds, run.envs, *run.obs.shape)).astype(run.obs.dtype)
    nothing = np.zeros((seeds, run.envs), np.float32)
    outcome = Outcome(observations[0], observations[1], nothing, nothing > 0, nothing > 0)
    for _ in range(run.replay.nstep + 1):
        replay, rule = parts.store(state.replay, state.skill, choice, outcome)
        state = state._replace(replay=replay, skill=rule)

    def call(count: int) -> float:
        nonlocal state
        began = clock()
        for number in range(count):
            state, _ = parts.store_and_learn(state, choice, outcome, np.int32(number))
        jax.block_until_ready(state)
        return clock() - began

    compiling = call(1)
    once = call(1)
    count = max(1, min(50, int(0.5 / once)))
    if kernels:
        call(count)
        print_kernels(lambda: call(5), 5 * run.updates, kernels)
    return statistics.median(call(count) / count / run.updates for _ in range(REPEATS)), compiling - once


def print_kernels(work: Callable[[], object], updates: int, most: int) -> None:
    """Of a GPU: what each kernel takes of the time of an update of all seeds, and how often it runs."""
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            work()
        traces = [jax.profiler.ProfileData.from_file(str(path)) for path in Path(folder).rglob("*.xplane.pb")]
    kernels = [
        (event.name, event.start_ns, event.start_ns + event.duration_ns)
        for trace in traces
        for plane in trace.planes
        if "GPU" in plane.name
        for line in plane.lines
        if line.name.startswith("Stream")
        for event in line.events
    ]
    runs = Counter(name for name, _, _ in kernels)
    shares, alone = share_time(kernels)
    busy = sum(shares.values())
    count, whole = runs.total() / updates, busy / updates / 1e3
    print(f"{count:.0f} kernels an update, {whole:,.0f} µs, {alone / busy:.0%} of it one alone:")
    for name, spent in sorted(shares.items(), key=lambda share: -share[1])[:most]:
        print(f"{spent / updates / 1e3:8.1f} µs {runs[name] / updates:6.2f} × {name[:120]}")


def share_time(kernels: Iterable[tuple[str, float, float]]) -> tuple[dict[str, float], float]:
    """Time by name, shared equally where kernels (name, start, end) run side by side; and the time of one alone."""
    edges = sorted(edge for name, start, end in kernels for edge in ((start, 1, name), (end, -1, name)))
    shares: defaultdict[str, float] = defaultdict(float)
    running: Counter[str] = Counter()
    alone = 0.0
    for (since, change, name), (until, *_) in itertools.pairwise(edges):
        running[name] += change
        for other, count in running.items():
            shares[other] += (until - since) * count / max(running.total(), 1)
        alone += (until - since) * (running.total() == 1)
    return dict(shares), alone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", default=list(METHODS))
    parser.add_argument("--env", default="walker")
    parser.add_argument("--full", action="store_true", help="URLB's sizes instead of a laptop's")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--precision", nargs="+", default=["auto"])
    parser.add_argument("--envs", type=int, default=None)
    parser.add_argument(
        "--encoder", nargs="+", choices=ENCODERS, default=["states"], help="states, or what sees images"
    )
    parser.add_argument("--encoder-weights", type=Path, default=None)
    parser.add_argument("--kernels", type=int, default=0, metavar="N", help="print the N slowest kernels of an update")
    parser.add_argument("--hidden", type=int, default=64, help="width of a laptop's networks")
    parser.add_argument("--batch", type=int, default=128, help="of a laptop's sizes")
    parser.add_argument("--processor", action="store_true", help="processor time of an update, and nothing else")
    args = parser.parse_args()
    print(f"{args.env} · {device_name()} · jax {jax.__version__} · {'URLB sizes' if args.full else 'small networks'}")
    timed = "processor time, µs an update and seed" if args.processor else "µs an update and seed"
    heads = [
        "method",
        "precision",
        "seeds",
        timed,
        *([] if args.processor else ["environment steps/s"]),
        "compiling, s",
    ]
    heads += [] if args.encoder == ["states"] else ["memory"]
    print("\n| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|")
    clock = time.process_time if args.processor else time.perf_counter
    for method, sees, precision, count in itertools.product(args.methods, args.encoder, args.precision, args.seeds):
        planned = planned_run(args, method, sees, precision, count)
        update, compiling = time_update(planned, args.kernels, clock)
        rate = () if args.processor else (f"{time_loop(planned):,.0f}",)
        needs = () if args.encoder == ["states"] else (size(memory(planned.run, count).total),)
        name = method if sees == "states" else f"{method}-{sees}"
        cells = (name, precision, count, f"{update / count * 1e6:,.0f}", *rate, f"{compiling:.0f}", *needs)
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def planned_run(args: argparse.Namespace, method: str, sees: str, precision: Any, seeds: int) -> Pretraining:
    options: dict[str, Any] = dict(ENCODERS[sees])
    settings = () if args.full else (f"batch={args.batch}", *SMALL) if sees == "states" else SMALL_IMAGES
    options["set"] = (*settings, *options.get("set", ()))
    if "encoder" in options:
        options["encoder_weights"] = args.encoder_weights
    if not args.full:
        options["hidden"] = args.hidden
    return make_pretraining(
        PretrainOptions(args.env, method, tuple(range(seeds)), precision=precision, envs=args.envs, **options)
    )


if __name__ == "__main__":
    main()

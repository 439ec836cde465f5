"""Where a training cycle's time goes in the maze, on one core, and what a second process adds.

    make bench                         all methods
    python -m benchmarks.maze becl     some of them

Times are medians of one run on this machine; compare their ratios, not their size, with other machines'.
"""

import os
import subprocess
import sys
import time

from becl.cores import available_cores
from becl.experiments.workers import ONE_THREAD

CYCLES = 20  # A whole-cycle timing scans this many.
REPEATS = 7


def pin(core: int) -> None:
    os.environ.update({name: value for name, value in ONE_THREAD.items() if name not in os.environ})
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def milliseconds(function, *args) -> float:
    """Median time of a compiled call."""
    import jax

    compiled = jax.jit(function)
    jax.block_until_ready(compiled(*args))
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        times.append(time.perf_counter() - began)
    return 1e3 * sorted(times)[REPEATS // 2]


def profile(method: str) -> dict[str, float]:
    """Milliseconds of each part of a cycle."""
    import jax

    from becl.experiments.maze_study import make_run
    from becl.learning.onpolicy import to_batch

    run = make_run(method, "square_a", 10)
    state = jax.jit(run.init)(jax.random.key(0))
    key = jax.random.key(1)
    rollout = jax.jit(run.collect)(state.learner, key)
    batch = to_batch(rollout)
    _, reward = jax.jit(run.objective.reward)(state.objective, batch, key)
    reward = reward.reshape(run.episodes, -1).T
    parts = {
        "two collections": 2 * milliseconds(run.collect, state.learner, key),
        "fit": milliseconds(run.fit, state.objective, batch, key),
        "reward": milliseconds(run.objective.reward, state.objective, batch, key),
        "PPO update": milliseconds(run.learner.update, state.learner, rollout, reward, key),
    }
    parts["cycle"] = milliseconds(lambda s: run.run(s, CYCLES), state) / CYCLES
    return parts


def print_profile(methods: list[str]) -> None:
    print(f"{'ms a cycle':<16}" + "".join(f"{name:>17}" for name in ("two collections", "fit", "reward", "PPO update",
                                                                     "cycle", "2500 cycles (s)")))  # fmt: skip
    for method in methods:
        parts = profile(method)
        row = [f"{value:.1f} ({100 * value / parts['cycle']:.0f} %)" for value in parts.values()]
        print(f"{method:<16}" + "".join(f"{cell:>17}" for cell in [*row, f"{2.5 * parts['cycle']:.0f}"]), flush=True)


def throughput(processes: int, method: str = "diayn") -> float:
    """Cycles a second of some processes side by side, a core each."""
    command = [sys.executable, "-m", "benchmarks.maze", "--alone", method]
    team = [
        subprocess.Popen([*command, str(core)], stdout=subprocess.PIPE, text=True)
        for core in available_cores()[:processes]
    ]
    return sum(1e3 / float(process.communicate()[0]) for process in team)


def main(args: list[str]) -> None:
    if args[:1] == ["--alone"]:
        pin(int(args[2]))
        print(profile(args[1])["cycle"])
        return
    cores = available_cores()
    pin(cores[0])
    from becl.objectives import METHODS

    print_profile(args or list(METHODS))
    if len(cores) > 1:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, set(cores))
        one, two = throughput(1), throughput(2)
        print(f"two processes on two cores: {two / one:.2f} times the cycles of one")


if __name__ == "__main__":
    main(sys.argv[1:])

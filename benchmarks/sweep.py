"""Sweeps that are attacked, and what conducting one costs.

    python -m benchmarks.sweep chaos       a cluster of three nodes on this machine: workers killed, a node killed, the
                                           driver killed and begun again, the disk of a job made read-only for a while
    python -m benchmarks.sweep overhead    processor time of the driver, for each of 200 tiny jobs

After the attacks every run must have finished exactly once, and networks, metrics and scores must be equal to the bit
to those of a sweep that was left alone, but for what a clock or a path decides. Exit code 1 where they are not, and
where the driver takes more than 50 ms a job.

A disk is made read-only by mounting a job's folder over itself, or, where that is not allowed, by making it immutable
(chattr); both need root.
"""

import argparse
import contextlib
import os
import pty
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from becl.sweeps.jobs import job_folder, read_attempts, read_status
from becl.sweeps.plan import Job
from becl.sweeps.record import recorded_jobs
from benchmarks.chaos import contents, differences, last_checkpoint

SWEEP = """
[jobs]
retries = 5

[pretrain]
domains = ["walker"]
methods = ["becl", "rnd", "aps"]
seeds = 2
steps = 3000
envs = 2
hidden = 16
log_every = 150
checkpoint_every = 100
set = ["batch=16", "random_steps=40", "replay.capacity=1000"]

[finetune]
tasks = ["walker_run"]
steps = 3000
eval_every = 1000
eval_episodes = 1
final_episodes = 2
checkpoint_every = 100
set = ["batch=16", "random_steps=40", "replay.capacity=1000"]

[maze]
methods = ["becl", "diayn"]
seeds = 2
cycles = 2000
skills = 4
set = ["learner.network.hidden=16", "network.hidden=16", "episodes=10", "env.episode_length=20"]
"""
TINY = """
[jobs]
group = 1

[pretrain]
domains = ["square_a"]
methods = ["diayn"]
seeds = {count}
steps = 4
skills = 2
envs = 2
hidden = 4
set = ["batch=2", "random_steps=2", "replay.capacity=8"]
"""
LONGEST = 600.0  # Seconds that anything may take.
PAUSE = 2.0  # Seconds after an attack.
TARGET = 50.0  # Milliseconds of the driver a job.


def environment(folder: Path) -> dict[str, str]:
    """Of all processes: programs are compiled once, and Ray's stay on this machine."""
    from becl.experiments.workers import ONE_THREAD

    return {
        **os.environ,
        **ONE_THREAD,
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


# --- A cluster on this machine ----------------------------------------------------------------------------------------


class Nodes:
    """Three of them, a core each; nobody joins without the token."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}, shutdown_at_exit=True
        )
        self._others: list[Any] = [self._cluster.add_node(num_cpus=1) for _ in range(2)]

    @property
    def address(self) -> str:
        return self._cluster.address

    def of(self, pid: int) -> Any:
        """The node of a worker, if it is one that can be spared."""
        with contextlib.suppress(OSError):
            parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            return next((one for one in self._others if one.all_processes["raylet"][0].process.pid == parent), None)
        return None

    def kill(self, node: Any) -> None:
        """Without a word; another takes its place."""
        self._others.remove(node)
        self._cluster.remove_node(node, allow_graceful=False)
        self._others.append(self._cluster.add_node(num_cpus=1))

    def close(self) -> None:
        self._cluster.shutdown()


@contextlib.contextmanager
def nodes(values: dict[str, str]) -> Iterator[Nodes]:
    """Ray reads the environment when it is loaded, and hands it on to all of its processes."""
    os.environ.update(values)
    running = Nodes()
    try:
        yield running
    finally:
        running.close()


# --- A sweep ----------------------------------------------------------------------------------------------------------


class Conducted:
    """A sweep as its driver runs it, in a process of its own that can be killed and begun again."""

    def __init__(self, file: Path, out: Path, words: list[str], values: dict[str, str]):
        self.out, self.log = out, out.with_suffix(".log")
        self._words = [sys.executable, "-m", "becl", "sweep", str(file), "--out", str(out), *words]
        self._values = values
        self._seen: dict[Path, tuple[int, int]] = {}
        self.again: set[Path] = set()
        """Proofs that a run has finished which were written more than once."""
        self._over = threading.Event()
        self.begin()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def begin(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self._words, env=self._values, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def finish(self) -> int:
        try:
            return self.process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            self.kill()
            return 124
        finally:
            self._over.set()
            self._watcher.join()
            self._look()

    def _watch(self) -> None:
        while not self._over.wait(0.1):
            self._look()

    def _look(self) -> None:
        """Notes files that say of a run that it has finished when they first appear, and whether they stay."""
        for path in (proof for job in self.jobs() for proof in job.results(self.out)):
            with contextlib.suppress(OSError):
                stat = path.stat()
                if self._seen.setdefault(path, (stat.st_ino, stat.st_mtime_ns)) != (stat.st_ino, stat.st_mtime_ns):
                    self.again.add(path)

    def jobs(self) -> list[Job]:
        return recorded_jobs(self.out) if (self.out / "sweep.json").exists() else []

    def running(self) -> Iterator[tuple[Job, int]]:
        """Jobs that are past a checkpoint, and their processes."""
        for job in self.jobs():
            facts, alive = read_status(job_folder(self.out, job.name))
            if alive and not job.done(self.out) and last_checkpoint(self.run(job)) is not None:
                yield job, int(facts["pid"])

    def run(self, job: Job) -> Path:
        return self.out / (job.cell if job.stage == "maze" else job.name)

    def tries(self, job: Job) -> int:
        log = job_folder(self.out, job.name) / "log.txt"
        return sum(line.startswith("--- ") for line in log.read_text().splitlines()) if log.exists() else 0

    def tally(self, job: Job) -> "Tally":
        rows = read_attempts(job_folder(self.out, job.name))
        text = (job_folder(self.out, job.name) / "log.txt").read_text()
        codes = [row["code"] for row in rows]
        once = codes.count(0) == 1 and job.done(self.out) and not self.again & {*job.results(self.out)}
        failed = failures(job_folder(self.out, job.name))
        return Tally(self.tries(job), failed, text.count("becl: continues after"), once)


class Tally(NamedTuple):
    """How a job went."""

    tries: int
    failed: int
    resumed: int
    once: bool
    """Whether it finished exactly once."""


# --- Attacks ----------------------------------------------------------------------------------------------------------


class Attack(NamedTuple):
    """What is done to a job that is past a checkpoint."""

    name: str
    stage: str
    """Of jobs that it is for; all where it is empty."""
    strike: Callable[["Chaos", Job, int], bool]
    """Gets the job and its process; whether it could be done."""


class Chaos:
    """Attacks a sweep, each when there is a job for it, and as few as can be on the same."""

    def __init__(self, sweep: Conducted, cluster: Nodes):
        self.sweep, self.nodes = sweep, cluster
        self.done: list[str] = []
        self.waiting = list(ATTACKS)
        self._hit: set[str] = set()
        self._spoiled: set[str] = set()
        self._began = time.monotonic()
        self._healers: list[threading.Thread] = []

    def run(self) -> None:
        """Until all attacks are done, or the sweep is over."""
        while self.waiting and self.sweep.process.poll() is None:
            if self._strike():
                time.sleep(PAUSE)
            time.sleep(0.05)
        for healer in self._healers:
            healer.join()

    def _strike(self) -> bool:
        running = [one for one in self.sweep.running() if one[0].name not in self._spoiled]
        jobs = sorted(running, key=lambda one: one[0].name in self._hit)
        for attack in self.waiting:
            for job, pid in jobs:
                fresh = job.name not in self._hit or not attack.stage
                if fresh and attack.stage in ("", job.stage) and attack.strike(self, job, pid):
                    self._hit.add(job.name)
                    self.waiting.remove(attack)
                    self.done.append(attack.name)
                    return True
        return False

    def say(self, line: str) -> None:
        print(f"    {time.monotonic() - self._began:4.0f} s  {line}", flush=True)

    def kill_worker(self, job: Job, pid: int) -> bool:
        self.say(f"worker killed: {job.name}")
        os.kill(pid, signal.SIGKILL)
        return True

    def kill_node(self, job: Job, pid: int) -> bool:
        node = self.nodes.of(pid)
        if node is not None:
            self.say(f"node killed: {job.name}")
            self.nodes.kill(node)
        return node is not None

    def kill_driver(self, job: Job, pid: int) -> bool:
        del pid
        self.say(f"driver killed: {job.name}")
        self.sweep.kill()
        self.sweep.begin()
        return True

    def spoil_disk(self, job: Job, pid: int) -> bool:
        del pid
        self._spoiled.add(job.name)
        self._healers.append(threading.Thread(target=self._spoil, args=(job,)))
        self._healers[-1].start()
        return True

    def _spoil(self, job: Job) -> None:
        """Until the job has failed of it twice."""
        folder, deadline = job_folder(self.sweep.out, job.name), time.monotonic() + LONGEST
        with read_only(self.sweep.run(job)) as how:
            self.say(f"disk read-only: {job.name} ({how})")
            while failures(folder) < 2 and time.monotonic() < deadline:
                time.sleep(0.1)
        self.say(f"disk writable again: {job.name}")
        self._spoiled.discard(job.name)


ATTACKS = (
    Attack("disk read-only", "pretrain", Chaos.spoil_disk),
    Attack("worker killed", "pretrain", Chaos.kill_worker),
    Attack("worker killed", "maze", Chaos.kill_worker),
    Attack("node killed", "", Chaos.kill_node),
    Attack("worker killed", "finetune", Chaos.kill_worker),
    Attack("driver killed", "finetune", Chaos.kill_driver),
)


def failures(folder: Path) -> int:
    return sum(row["code"] > 0 for row in read_attempts(folder))


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[str]:
    """Also for root, whom permissions do not stop."""

    def tried(*words: str) -> bool:
        return subprocess.run(words, capture_output=True).returncode == 0

    place = str(folder)
    if tried("mount", "--bind", place, place) and tried("mount", "-o", "remount,bind,ro", place):
        how, undo = "mounted read-only", ("umount", "--lazy", place)
    elif tried("chattr", "-R", "+i", place):
        how, undo = "immutable", ("chattr", "-R", "-i", place)
    else:
        raise SystemExit(f"{folder} cannot be made read-only here: run as root")
    try:
        yield how
    finally:
        subprocess.run(undo, check=True)


# --- Chaos ------------------------------------------------------------------------------------------------------------


def results(out: Path) -> dict[str, Any]:
    """Of all runs."""
    return {f"{stage}/{name}": value for stage in STAGES for name, value in contents(out / stage).items()}


STAGES = ("pretrain", "finetune", "maze")


def chaos(folder: Path) -> int:
    file = folder / "sweep.toml"
    file.write_text(SWEEP)
    values = environment(folder) | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with nodes(values) as cluster:
        words = ["--ray-address", cluster.address]
        began = time.monotonic()
        calm = Conducted(file, folder / "calm", words, values)
        code = calm.finish()
        print(f"left alone: exit code {code}, {time.monotonic() - began:.0f} s", flush=True)
        if code != 0:
            print(calm.log.read_text())
            return 1
        began = time.monotonic()
        sweep = Conducted(file, folder / "attacked", words, values)
        attacks = Chaos(sweep, cluster)
        print("attacked:", flush=True)
        attacks.run()
        code = sweep.finish()
        print(f"exit code {code}, {time.monotonic() - began:.0f} s", flush=True)
    return judge(calm, sweep, attacks, code)


def judge(calm: Conducted, sweep: Conducted, attacks: Chaos, code: int) -> int:
    """Prints what was counted and what differs."""
    expected, got = results(calm.out), results(sweep.out)
    wrong = differences(expected, got, sweep.out.name)
    print("\n| job | runs | tries | failed | resumed | finished once | equal |")
    print("|---|---|---|---|---|---|---|")
    jobs, good = sweep.jobs(), 0
    for job in jobs:
        tally = sweep.tally(job)
        equal = not differences(part(expected, job), part(got, job), job.name)
        good += tally.once and equal
        words = ("yes" if tally.once else "NO", "yes" if equal else "NO")
        resumed = "" if job.stage == "maze" else tally.resumed  # A study does not say so.
        print(f"| {job.name} | {job.runs} | {tally.tries} | {tally.failed} | {resumed} | {' | '.join(words)} |")
    for line in wrong:
        print(line)
    for attack in attacks.waiting:
        print(f"there was no moment for: {attack.name} {attack.stage}")
    ok = code == 0 and good == len(jobs) and not wrong and not attacks.waiting
    said = sweep.log.read_text()
    print(next((line for line in reversed(said.splitlines()) if "jobs done" in line), "") if ok else said)
    runs, tries = sum(job.runs for job in jobs), sum(sweep.tries(job) for job in jobs)
    print(
        f"{len(attacks.done)} attacks on {len(jobs)} jobs of {runs} runs, {tries} tries; {len(expected)} arrays and "
        f"tables; {'every run finished once, all equal' if ok else 'DIFFERENT'}"
    )
    return 0 if ok else 1


def part(found: dict[str, Any], job: Job) -> dict[str, Any]:
    """What is one job's."""
    places = [proof.removesuffix("result.json").removesuffix("json") for proof in job.proofs]
    return {name: value for name, value in found.items() if any(name.startswith(place) for place in places)}


# --- Overhead ---------------------------------------------------------------------------------------------------------

DRIVER = """
import sys, time
from becl.commands.cli import main
code = main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    print(time.process_time(), file=file)
sys.exit(code)
"""


def driver_time(folder: Path, count: int) -> float:
    """Seconds of processor time that the driver of so many jobs takes, all of its threads, without its children.

    On a terminal, where it also keeps a table up to date.
    """
    file, told = folder / f"tiny-{count}.toml", folder / f"time-{count}"
    file.write_text(TINY.format(count=count))
    words = [sys.executable, "-c", DRIVER, str(told), "sweep", str(file), "--out", str(folder / f"tiny-{count}")]
    screen, terminal = pty.openpty()
    threading.Thread(target=drain, args=(screen,), daemon=True).start()
    values = environment(folder) | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    try:
        subprocess.run(words, env=values, stderr=terminal, check=True, timeout=LONGEST)
    finally:
        os.close(terminal)
    return float(told.read_text())


def drain(screen: int) -> None:
    """Reads what is shown, until the terminal is gone."""
    with contextlib.suppress(OSError):
        while os.read(screen, 65536):
            pass


def overhead(folder: Path, count: int) -> int:
    few = driver_time(folder, 1)
    began = time.monotonic()
    many = driver_time(folder, count)
    wall = time.monotonic() - began
    whole, each = 1000 * many / count, 1000 * (many - few) / (count - 1)
    print(
        f"{count} jobs in {wall:.0f} s: {many:.1f} s of the driver, {whole:.1f} ms a job (target {TARGET:.0f}), of "
        f"which {few:.1f} s to begin, and {each:.1f} ms for each further job"
    )
    return 0 if whole <= TARGET else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("chaos", "overhead"))
    parser.add_argument("--jobs", type=int, default=200, help="of `overhead`")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="becl-sweep-", ignore_cleanup_errors=True) as name:
        return chaos(Path(name)) if args.what == "chaos" else overhead(Path(name), args.jobs)


if __name__ == "__main__":
    sys.exit(main())

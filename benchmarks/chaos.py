"""Kills runs at random moments, goes on with them, and compares what they end with to runs that were never killed.

    python -m benchmarks.chaos                      50 kills (SIGKILL) over pretraining, finetuning, maze and sweep
    python -m benchmarks.chaos --kills 200 --seed 1

More than half of the kills wait until a checkpoint is being written. Networks, metrics and scores must be equal to the
bit, but for columns that a clock decides, and so must the curves that TensorBoard shows; and every file that is listed
with a checksum must have it. Exit code 1 where anything differs, a file is found damaged, or a run does not go on.
"""

import argparse
import contextlib
import csv
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

from tests.event_files import curves

SMALL = ("batch=16", "random_steps=40")
# What a clock decides.
TIMES = {"steps_per_second", "seconds", "first_chunk_seconds", "command"}
LONGEST = 300.0  # Seconds that one process may take.


@dataclass
class Scenario:
    """A run, and how it went."""

    name: str
    words: list[str]
    """The command without --out."""
    again: list[str]
    """Options that `becl resume` needs too."""
    needs: tuple[str, ...] = ("config.json",)
    """Files without which there is nothing to resume yet."""
    kills: int = 0
    writing: int = 0
    """Kills that left a file half written."""
    starting: int = 0
    """Kills before the first checkpoint."""
    finished: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


SWEEP = """
[pretrain]
domains = ["square_a"]
methods = ["diayn"]
seeds = 2
steps = 3000
skills = 4
envs = 2
hidden = 16
log_every = 150
checkpoint_every = 100
set = ["batch=16", "random_steps=40", "replay.capacity=2000"]

[maze]
methods = ["becl"]
seeds = 1
cycles = 500
skills = 4
set = ["learner.network.hidden=16", "network.hidden=16", "episodes=10", "env.episode_length=20"]
"""


def scenarios(source: Path) -> list[Scenario]:
    often = ["--checkpoint-every", "100"]
    maze = ["pretrain", "square_a", "--seeds", "2", "--steps", "6000", "--skills", "4", "--envs", "2", "--hidden", "16",
            "--log-every", "150", *often, "--set", *SMALL, "replay.capacity=2000"]  # fmt: skip
    walker = ["pretrain", "walker", "--method", "aps", "--steps", "3000", "--envs", "2", "--hidden", "16",
              "--log-every", "150", *often, "--set", *SMALL, "replay.capacity=1000"]  # fmt: skip
    tuned = ["finetune", str(source), "--task", "walker_run", "walker_stand", "--steps", "3000", "--eval-every", "1000",
             "--eval-episodes", "1", "--final-episodes", "2", *often, "--set", *SMALL,
             "replay.capacity=1000"]  # fmt: skip
    study = ["maze", "--methods", "becl", "diayn", "--cycles", "2000", "--skills", "4", "--workers", "2", "--set",
             "learner.network.hidden=16", "network.hidden=16", "episodes=10", "env.episode_length=20"]  # fmt: skip
    file = source.parent / "chaos.toml"
    file.write_text(SWEEP)
    return [
        Scenario("pretrain square_a", maze, often),
        Scenario("pretrain walker", walker, often),
        Scenario("finetune walker", tuned, often),
        Scenario("maze study", study, ["--workers", "2"], ("config.json", "seeds.json")),
        Scenario("sweep", ["sweep", str(file), "--no-ray"], [], ("no becl resume",)),
    ]


# --- Processes --------------------------------------------------------------------------------------------------------


def begin(words: list[str], environment: dict[str, str]) -> subprocess.Popen:
    """In a group of its own, so that nothing of it is left."""
    return subprocess.Popen(
        [sys.executable, "-m", "becl", *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip


def end(process: subprocess.Popen, everyone: bool) -> str:
    """Kills a process, with its workers or without, which must then end on their own; what it had said."""
    if everyone:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()
    return process.communicate()[1]


def half_written(out: Path, since: float) -> list[str]:
    """In folders of checkpoints, and by this process: those before it may have left some too."""
    found = []
    for folder, _, names in os.walk(out):  # Which passes over folders that are removed meanwhile.
        for name in names:
            with contextlib.suppress(OSError):  # It may get its name meanwhile.
                found += [name] if name.endswith(".part") and (Path(folder) / name).stat().st_mtime > since else []
    return found


def last_checkpoint(out: Path) -> int | None:
    found = out.rglob("step-*.json")
    return max((int(path.stem.partition("-")[2]) for path in found), default=None)


def live(
    scenario: Scenario, out: Path, dice: random.Random, environment: dict[str, str], kill: bool
) -> tuple[bool, str]:
    """One process's life: whether it finished, and a line about it."""
    ready = all((out / name).exists() for name in scenario.needs)
    resumed = ready and scenario.kills % 2 == 1
    words = ["resume", str(out), *scenario.again] if resumed else [*scenario.words, "--out", str(out)]
    launched = time.time()
    process = begin(words, environment)
    began, before = time.monotonic(), last_checkpoint(out)
    aimed = kill and dice.random() < 0.6
    # An aimed kill waits for one of the next checkpoints, any other for a moment after the start or the first of them.
    early = dice.random() < 0.15
    writes, wait = dice.randint(1, 12), dice.uniform(0.0, 4.0 if early else 1.5)
    seen, writing, since = 0, False, None
    while process.poll() is None and time.monotonic() - began < LONGEST:
        if not kill:
            time.sleep(0.02)
            continue
        parts = bool(half_written(out, launched))
        seen += parts and not writing
        writing = parts
        if aimed and seen >= writes:
            break
        if not aimed and since is None and (early or last_checkpoint(out) != before):
            since = time.monotonic()
        if not aimed and since is not None and time.monotonic() - since > wait:
            break
        time.sleep(0.0005)
    if process.poll() is not None:
        said = process.communicate()[1]
        if process.returncode != 0:
            scenario.wrong.append(f"exit code {process.returncode}: {said.strip()[-300:]}")
        check(scenario, said)
        return True, "finished"
    if not kill:
        scenario.wrong.append(f"not finished after {LONGEST:.0f} s: {end(process, True)[-300:]}")
        return True, "did not finish"
    check(scenario, end(process, dice.random() < 0.5))
    left = half_written(out, launched)
    scenario.kills += 1
    scenario.writing += bool(left)
    reached = last_checkpoint(out)
    starting = reached is None and before is None
    scenario.starting += starting
    rest = "before any checkpoint" if starting else "as it ended" if reached is None else "between checkpoints"
    moment = f"writing {left[0]}" if left else rest
    how = "resume" if resumed else "command"
    return False, f"begun by {how:7} killed after {time.monotonic() - began:4.1f} s, checkpoint {reached}, {moment}"


def check(scenario: Scenario, said: str) -> None:
    """A kill leaves no damage, and nothing that cannot be explained in a line."""
    for line in said.splitlines():
        if "damaged" in line or "Traceback" in line or "failed" in line or "could not be written" in line:
            scenario.wrong.append(line)


# --- What must be equal -----------------------------------------------------------------------------------------------


def contents(out: Path) -> dict[str, Any]:
    """Everything a run is for, without times."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in out.rglob("*") if "report" not in path.parts):
        name = str(path.relative_to(out))
        if path.name == "SHA256SUMS" or path.suffix == ".sha256":
            found[f"{name} that do not fit"] = unfit(path)
        if path.suffix == ".safetensors":
            found |= {f"{name} {key}": array for key, array in safetensors.numpy.load(path.read_bytes()).items()}
        elif path.suffix == ".npz":
            with np.load(path) as arrays:
                found |= {f"{name} {key}": array for key, array in arrays.items()}
        elif path.suffix == ".csv" and path.name != "summary.csv":
            with path.open() as file:
                rows = [{k: v for k, v in row.items() if k not in TIMES} for row in csv.DictReader(file)]
            found[name] = rows
        elif path.parent.name == "tensorboard":
            shown = [(step, {tag: x for tag, x in values.items() if tag not in TIMES}) for step, values in curves(path)]
            found[name] = repr(shown)  # In which NaN is NaN.
        elif re.fullmatch(r"(seed-\d+|result)\.json", path.name):
            found[name] = {k: v for k, v in json.loads(path.read_text()).items() if k not in TIMES}
        elif path.suffix in (".part", ".checkpoint") or path.name in ("checkpoint", "lock"):
            found[name] = "left behind"
    return found


def unfit(sums: Path) -> list[str]:
    """Files that do not have the checksum that is listed of them."""
    lines = [line.split("  ") for line in sums.read_text().splitlines()]
    return [name for digest, name in lines if hashlib.sha256((sums.parent / name).read_bytes()).hexdigest() != digest]


def differences(expected: dict[str, Any], got: dict[str, Any], where: str) -> list[str]:
    wrong = [f"{where}: {name} is {'missing' if name in expected else 'too many'}" for name in expected.keys() ^ got]
    for name in expected.keys() & got.keys():
        one, other = expected[name], got[name]
        same = np.array_equal(one, other) and one.dtype == other.dtype if isinstance(one, np.ndarray) else one == other
        if not same:
            wrong.append(f"{where}: {name} differs")
    return sorted(wrong)[:5]


# --- The whole --------------------------------------------------------------------------------------------------------


def whole(scenario: Scenario, out: Path, environment: dict[str, str]) -> dict[str, Any]:
    """A run that is left alone."""
    live(scenario, out, random.Random(0), environment, kill=False)
    return contents(out)


def torment(
    scenario: Scenario, folder: Path, kills: int, dice: random.Random, environment: dict[str, str], first: int
) -> None:
    """Kills a run, and where it finishes others like it, so often; all must end as one that was left alone."""
    began = time.monotonic()
    slug = scenario.name.replace(" ", "-")
    expected = whole(scenario, folder / f"{slug}-whole", environment)
    whole(scenario, folder / f"{slug}-again", environment)
    scenario.wrong += differences(expected, contents(folder / f"{slug}-again"), f"{slug}-again")
    equal = "no" if scenario.wrong else "yes"
    print(f"    {scenario.name}: {len(expected)} arrays and tables; equal in two whole runs: {equal}", flush=True)
    number = 0
    while scenario.kills < kills and not scenario.wrong:
        out, finished = folder / f"{slug}-{number}", False
        while not finished:
            more = scenario.kills < kills
            finished, line = live(scenario, out, dice, environment, more)
            place = f"{first + scenario.kills:3}" if line.startswith("begun") else "   "
            print(f"{place} {scenario.name}: {line}", flush=True)
        scenario.wrong += differences(expected, contents(out), out.name)
        scenario.finished += 1
        number += 1
    scenario.seconds = time.monotonic() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began, dice = time.monotonic(), random.Random(args.seed)
    with tempfile.TemporaryDirectory(prefix="becl-chaos-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        # Programs are compiled once and not in every process.
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
        }
        source = folder / "source"
        words = [
            "pretrain",
            "walker",
            "--steps",
            "60",
            "--skills",
            "4",
            "--envs",
            "2",
            "--hidden",
            "16",
            "--set",
            *SMALL,
        ]
        process = begin([*words, "replay.capacity=1000", "--out", str(source)], environment)
        said = process.communicate()[1]
        if process.returncode != 0:
            print(said, file=sys.stderr)
            return 1
        tormented = scenarios(source)
        for number, scenario in enumerate(tormented):
            share = args.kills // len(tormented) + (number < args.kills % len(tormented))
            torment(scenario, folder, share, dice, environment, sum(one.kills for one in tormented[:number]))
    print("\n| run | kills | while writing | before any checkpoint | finished | equal | s |")
    print("|---|---|---|---|---|---|---|")
    for one in tormented:
        cells = (one.name, one.kills, one.writing, one.starting, one.finished, "no" if one.wrong else "yes")
        print(f"| {' | '.join(map(str, cells))} | {one.seconds:.0f} |")
    for one in tormented:
        for line in one.wrong:
            print(f"{one.name}: {line}")
    kills, writing = (sum(getattr(one, name) for one in tormented) for name in ("kills", "writing"))
    bad = any(one.wrong for one in tormented)
    result = "DIFFERENT" if bad else "all equal"
    print(f"{kills} kills, {writing} while writing; {time.monotonic() - began:.0f} s; {result}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

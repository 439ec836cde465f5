"""Sweeps with little time, on several machines: what is started, what is collected, and that nothing is mixed up."""

import contextlib
import csv
import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from run_folders import forget_sums
from test_sweep import pretend, refused, write

from becl.commands.cli import main
from becl.errors import UserError
from becl.options.fields import parse_time
from becl.runs.progress import interrupts
from becl.signals import STOPPED
from becl.sweeps import limit as sweep_limit
from becl.sweeps import run as sweep_run
from becl.sweeps.device import Device
from becl.sweeps.jobs import Ended, Order, job_folder, note_attempt
from becl.sweeps.limit import AGAIN
from becl.sweeps.plan import Job

CPU = Device("cpu", 16 * 10**9, False)
GRID = """
[pretrain]
domains = ["walker"]
methods = ["becl"]
seeds = 2
steps = 60
hidden = 8
envs = 2
checkpoint_every = 20
set = ["batch=16", "random_steps=40", "replay.capacity=400"]
[finetune]
tasks = ["walker_run"]
steps = 60
eval_every = 60
eval_episodes = 1
final_episodes = 2
set = ["random_steps=40"]
[jobs]
group = 1
"""
JOBS = [f"{stage}/walker-becl-seeds-{seed}" for stage in ("pretrain", "finetune") for seed in (0, 1)]
Said = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Clock:
    """Time that passes only while jobs run."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(sweep_limit, "time", made)
    return made


class Timed:
    """Pretends to run jobs, two at a time, each as long as it is told to."""

    places = 2

    def __init__(self, clock: Clock, seconds: dict[str, float]):
        self.clock, self.seconds = clock, seconds
        self.started: list[str] = []
        self._waiting: list[tuple[float, Order]] = []

    def device(self) -> Device:
        return CPU

    def submit(self, order: Order) -> None:
        assert len(self._waiting) < self.places
        self.started.append(order.name)
        self._waiting.append((self.clock.now + self.seconds.get(order.name.partition("/")[0], 0.0), order))

    def wait(self, seconds: float) -> list[tuple[str, Ended]]:
        end, order = min(self._waiting, key=lambda one: one[0])
        self._waiting.remove((end, order))
        self.clock.now = end
        pretend(order.words)
        took = self.seconds.get(order.name.partition("/")[0], 0.0)
        job_folder(Path(order.out), order.name).mkdir(parents=True, exist_ok=True)
        note_attempt(job_folder(Path(order.out), order.name), time.time() - took, Ended(0))
        return [(order.name, Ended(0))]

    def stop(self) -> Iterator[tuple[str, Ended]]:
        return iter([(order.name, Ended(STOPPED)) for _, order in self._waiting])

    def close(self) -> None:
        pass


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Callable[..., Timed]:
    def install(**seconds: float) -> Timed:
        made = Timed(clock, seconds)
        monkeypatch.setattr(sweep_run, "executor_of", lambda command, jobs: contextlib.nullcontext(made))
        return made

    return install


@pytest.mark.parametrize(
    ("text", "seconds"), [("28m", 1680), ("1h30m", 5400), ("90s", 90), ("1.5h", 5400), ("1h2m3s", 3723), (" 2m ", 120)]
)
def test_times_are_read(text: str, seconds: float):
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "28", "m", "-3m", "0m", "3m1h", "28 minutes", "1.2.3m", "nan", "infh", "9e9h"])
def test_other_times_are_refused(text: str):
    with pytest.raises(UserError, match=r"--time-limit .*: expected a time greater than 0, such as 28m, 1h30m or 90s"):
        parse_time(text)


def test_only_jobs_that_will_finish_are_started(timed: Callable[..., Timed], clock: Clock, capsys: Said):
    """By the rates that are seen: of jobs with none the first two are started, and tell how long the others take."""
    executor = timed(pretrain=100, finetune=100)
    write(GRID.replace("seeds = 2", "seeds = 4"))
    # After 100 s two pretrainings are done. Each of the others takes 110 by their rate, and 100 are left.
    assert main(["sweep", "s.toml", "--time-limit", "222s"]) == AGAIN
    assert executor.started == [f"pretrain/walker-becl-seeds-{seed}" for seed in (0, 1)]
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == (
        "becl: the time limit of 3:42 ends here with 7 jobs left; next: finetune/walker-becl-seeds-0, which takes "
        "about 1:50; the same command continues"
    )
    # With as much time as they take by their rate, two more are done, and no third pair.
    clock.now = 5000.0
    executor = timed(pretrain=100, finetune=100)
    assert main(["sweep", "s.toml", "--time-limit", "223s"]) == AGAIN
    assert executor.started == [f"finetune/walker-becl-seeds-{seed}" for seed in (0, 1)]
    clock.now = 9000.0
    executor = timed(pretrain=100, finetune=100, report=1)
    assert main(["sweep", "s.toml", "--time-limit", "1h"]) == 0
    assert executor.started[-1] == "report"
    assert "0 failed" in capsys.readouterr().out


def test_a_pretraining_starts_where_there_is_time_for_what_learns_from_it(
    timed: Callable[..., Timed], clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    """One at a time: a pretraining takes 100 s, 110 by its rate, and its finetuning as long."""
    monkeypatch.setattr(Timed, "places", 1)
    rest = "[[pretrain]]\nname = 'other'\ndomains = ['walker']\nmethods = ['ddpg']\nhidden = 8\nenvs = 2\n"
    write(GRID.replace("[pretrain]", "[[pretrain]]").replace("[finetune]", rest + "[finetune]"))
    executor = timed(pretrain=100, finetune=100)
    # After the first pair and 200 s, 189 are left: enough for another pretraining, but not for its finetuning, too.
    assert main(["sweep", "s.toml", "--time-limit", "419s"]) == AGAIN
    assert executor.started == [JOBS[0], JOBS[2], "finetune/walker-ddpg-other"]
    clock.now = 5000.0
    executor = timed(pretrain=100, finetune=100)
    assert main(["sweep", "s.toml", "--time-limit", "300s"]) == 0
    assert executor.started == [JOBS[1], JOBS[3], "report"]


def test_a_limit_too_short_for_any_job_is_refused(timed: Callable[..., Timed], clock: Clock, capsys: Said):
    timed(pretrain=100, finetune=100)
    write(GRID)
    assert main(["sweep", "s.toml", "--time-limit", "30m", "--retries", "0"]) == 0
    (Path("runs/sweep-s") / JOBS[1] / "result.json").unlink()
    capsys.readouterr()
    said = refused(capsys, "s.toml", "--time-limit", "2m")
    assert said == (
        "becl: --time-limit 2:00: too short for any of the next jobs; the shortest, pretrain/walker-becl-seeds-1, "
        "takes about 1:50\n"
    )
    for words in (["--time-limit", "0s"], ["--time-limit", "soon"]):
        assert "expected a time greater than 0" in refused(capsys, "s.toml", *words)


def test_what_a_checkpoint_holds_is_not_counted_again(clock: Clock):
    def limit_of(steps: int) -> float | None:
        found = sweep_limit.TimeLimit(1000.0)
        job = Job("pretrain/a", "pretrain", (), seeds=(0, 1), runs=2, work=2000, method="m", env="e")
        found._out, found._device, found._known = Path("out"), "cpu", []
        found._seen = [sweep_limit.Rate("cpu", "pretrain", "m", "e", 2, 10.0, "x")]
        folder = Path("out/pretrain/a/checkpoint")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"step-{steps}.json").write_text("{}")
        return found.needs(job)

    assert limit_of(0) == pytest.approx(220)
    assert limit_of(600) == pytest.approx(220 * 0.4)


def test_when_the_time_is_over_what_runs_is_stopped_and_more_is_left(monkeypatch: pytest.MonkeyPatch, capsys: Said):
    """In this process, as by Ctrl-C."""
    ring = []
    timer = SimpleNamespace(start=lambda: None, cancel=lambda: None)
    monkeypatch.setattr(threading, "Timer", lambda seconds, stop: ring.append(stop) or timer)

    def work(order: Order) -> Ended:
        with interrupts() as pressed:
            threading.Thread(target=ring[-1]).start()  # JAX has timers, too.
            while not pressed():
                time.sleep(0.01)
        return Ended(STOPPED)

    monkeypatch.setattr(sweep_run, "run_job", work)
    assert main(["sweep", write(GRID), "--no-ray", "--time-limit", "10m"]) == AGAIN
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == (
        "becl: the time limit of 10:00 ends here with 5 jobs left; next: pretrain/walker-becl-seeds-0; "
        "the same command continues"
    )


# --- Collecting -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def uncut(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep that was never stopped."""
    folder = tmp_path_factory.mktemp("uncut")
    with contextlib.chdir(folder):
        assert main(["sweep", write(GRID), "--no-ray", "--out", "whole"]) == 0
    return folder / "whole"


def tables(folder: Path) -> dict[str, str]:
    """Of its report, without the folders that commands name."""
    paths = sorted((folder / "report" / "tables").glob("*.csv"))
    return {path.name: re.sub(r"\b(whole|one|two|collected)/", "FOLDER/", path.read_text()) for path in paths}


def test_cut_three_times_and_collected_from_two_folders_it_is_the_same_report(
    uncut: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
):
    def sweep(out: str, *names: str) -> None:
        """As if there were time for these jobs."""

        def choose(limit: sweep_limit.TimeLimit, ready: list[Job], places: int) -> list[Job]:
            return [job for job in ready if job.name in names][:places]

        monkeypatch.setattr(sweep_limit.TimeLimit, "choose", choose)
        assert main(["sweep", write(GRID), "--no-ray", "--time-limit", "9h", "--out", out]) == AGAIN
        capsys.readouterr()

    pretrain_0, pretrain_1, finetune_0, finetune_1 = JOBS
    sweep("one", pretrain_0)
    sweep("one", finetune_0)
    assert main(["sweep", "collect", "one", "collected"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"left out: {pretrain_1}: not finished",
        f"left out: {finetune_1}: not finished",
        "2 jobs with 2 runs collected in collected/",
    ]
    assert not list(Path("collected").rglob("*.safetensors"))
    # Another machine goes on from what was collected.
    shutil.copytree("collected", "two")
    sweep("two", pretrain_1)
    sweep("two", finetune_1)
    capsys.readouterr()
    assert main(["sweep", "collect", "two", "collected"]) == 0
    assert capsys.readouterr().out == "2 jobs with 2 runs collected in collected/, 2 were there already\n"
    assert main(["sweep", "s.toml", "--no-ray", "--out", "collected"]) == 0
    assert tables(uncut)
    for name, text in tables(uncut).items():
        assert tables(Path("collected"))[name] == text


@pytest.fixture
def copied(uncut: Path, capsys: Said) -> Path:
    """What was collected of it once."""
    shutil.copytree(uncut, "whole")
    assert main(["sweep", "collect", "whole", "target"]) == 0
    capsys.readouterr()
    return Path("target")


def test_a_pretraining_that_others_still_need_is_left_where_its_networks_are(uncut: Path, capsys: Said):
    shutil.copytree(uncut, "whole")
    Path("whole", JOBS[2], "result.json").unlink()
    assert main(["sweep", "collect", "whole", "target"]) == 0
    assert f"left out: {JOBS[0]}: {JOBS[2]} is not finished and needs its networks\n" in capsys.readouterr().out
    assert not Path("target", JOBS[0]).exists()


def change(path: Path, column: str) -> None:
    """Another number in the last row of a table, as if it had been written so."""
    forget_sums(path.parent)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    rows[-1][column] = "12.5"
    with path.open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def refused_collect(capsys: Said, *folders: str) -> str:
    return refused(capsys, "collect", *folders)


def test_the_same_run_with_other_numbers_is_refused(copied: Path, capsys: Said):
    change(Path("whole", JOBS[2], "metrics.csv"), "steps_per_second")  # Another machine takes another time.
    assert main(["sweep", "collect", "whole", str(copied)]) == 0
    capsys.readouterr()
    change(Path("whole", JOBS[2], "final.csv"), "return")
    said = refused_collect(capsys, "whole", str(copied))
    assert said == f"becl: {JOBS[2]} is in whole and in target, with different numbers (final.csv); keep one of them\n"


def test_another_sweep_is_refused(copied: Path, capsys: Said):
    record = Path("whole/sweep.json")
    forget_sums(Path("whole"))
    text = record.read_text()
    record.write_text(text.replace('"sweep": "s"', '"sweep": "t"'))
    assert refused_collect(capsys, "whole", "target").startswith(
        "becl: target holds another sweep than whole: s, not t"
    )
    record.write_text(text.replace('"8"', '"16"'))
    assert "pretrain/walker-becl has other options" in refused_collect(capsys, "whole", "target")
    jobs = json.loads(text)
    for job in jobs["jobs"]:
        job["name"] += "-again"
    record.write_text(json.dumps(jobs))
    for name in JOBS:
        Path("whole", name).rename(Path("whole", f"{name}-again"))
    record.write_text(record.read_text().replace("/result.json", "-again/result.json"))
    said = refused_collect(capsys, "whole", "target")
    assert said.startswith(f"becl: seed 0 is in two jobs, {JOBS[0]} in target and {JOBS[0]}-again in whole")


@pytest.mark.parametrize("name", ["scores.csv", "metrics.csv"])
def test_what_was_copied_in_part_is_refused(name: str, uncut: Path, capsys: Said):
    shutil.copytree(uncut, "whole")
    path = Path("whole", JOBS[2 if name == "scores.csv" else 0], name)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    assert f"{name} is damaged: its checksum is not the one in" in refused_collect(capsys, "whole", "target")
    forget_sums(path.parent)
    said = refused_collect(capsys, "whole", "target")
    assert "is finished, but its tables are incomplete" in said
    assert not Path("target").exists()


def test_folders_that_cannot_be_collected_are_refused(copied: Path, capsys: Said):
    assert "name two folders" in refused_collect(capsys, "whole")
    assert "both folders are whole" in refused_collect(capsys, "whole", "whole")
    assert "no sweep has begun there" in refused_collect(capsys, "nowhere", "target")
    Path("other").mkdir()
    Path("other/notes").write_text("mine")
    assert "is not the folder of a sweep, and not empty" in refused_collect(capsys, "whole", "other")
    assert "is not the folder of a sweep, and not empty" in refused_collect(capsys, "other", "target")
    Path("whole/sweep.json").write_text('{"jobs": [')
    assert "is damaged" in refused_collect(capsys, "whole", "target")

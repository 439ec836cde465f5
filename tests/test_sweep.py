"""Sweeps from the file to the last job: the grid, what is refused, groups, retries, and what goes on after a stop."""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import os
import random
import re
import shlex
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

import becl
from becl.commands import cli
from becl.commands.cli import main
from becl.commands.parse import parse_options
from becl.envs.walker import Walker
from becl.errors import UserError
from becl.experiments.finetuning import make_finetuning
from becl.experiments.maze_study import make_study
from becl.experiments.memory import memory
from becl.experiments.pretraining import make_pretraining
from becl.invocation import to_install
from becl.options import OPTIONS, FinetuneOptions, PretrainOptions
from becl.runs.lock import locked
from becl.runs.result import identity
from becl.runs.sums import write_checked
from becl.seeds import parse_seeds
from becl.signals import STOPPED
from becl.sweeps import cluster as sweep_ray
from becl.sweeps import jobs as sweep_jobs
from becl.sweeps import run as sweep_command
from becl.sweeps import status as sweep_status
from becl.sweeps.cost import disk_of
from becl.sweeps.device import Device
from becl.sweeps.file import parse, presets, read_sweep
from becl.sweeps.jobs import LOST, Ended, Order, owned, run_job
from becl.sweeps.plan import Job, Plan, cells_of, make_plan
from becl.sweeps.status import line_of

CPU = Device("cpu", 16 * 10**9, False)
TINY = 'hidden = 8\nenvs = 2\nset = ["batch=16", "random_steps=40", "replay.capacity=400"]\n'


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(text: str, name: str = "s.toml") -> str:
    Path(name).write_text(text)
    return name


def files() -> dict[str, bytes | None]:
    """All that is in the working directory."""
    return {str(path): path.read_bytes() if path.is_file() else None for path in Path().rglob("*")}


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line that a command ends with, which has written nothing."""
    before = files()
    assert main(["sweep", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("becl: ")
    assert said.err.count("\n") == 1, said.err
    assert files() == before
    return said.err


def planned(text: str, device: Device = CPU, group: int | None = None, recorded: list[Job] | None = None) -> Plan:
    found = parse("s.toml", text, "s")
    return make_plan(found, cells_of(found), device, group, recorded or [])


def trained(plan: Plan) -> list[Job]:
    return [job for job in plan.jobs if not job.last]


# --- The file ---------------------------------------------------------------------------------------------------------


def test_a_grid_is_the_product_of_its_lists():
    text = """
[pretrain]
domains = ["walker"]
skills = [4, 8, 16]
envs = 2
normalize_obs = [true, false]
[pretrain.set]
temperature = [0.5, 0.123456789]
replay.capacity = 5000
"""
    (block,) = parse("s", text).blocks
    variants = block.variants()
    by_hand = {
        (normal, skills, temperature)
        for normal, skills, temperature in itertools.product((True, False), (4, 8, 16), (0.5, 0.123456789))
    }
    assert len(variants) == 12
    assert {
        (one.options["normalize_obs"], one.options["skills"], one.options["set"]["temperature"]) for one in variants
    } == {*by_hand}
    assert all(one.options["envs"] == 2 and one.options["set"]["replay.capacity"] == 5000 for one in variants)
    assert "normalize_obs-true-temperature-0.5-skills-4" in {one.label for one in variants}
    assert len({one.label for one in variants}) == 12
    assert not any("envs" in one.label or "capacity" in one.label for one in variants)  # They do not vary.


def test_a_list_of_settings_is_no_axis_and_the_words_are_those_of_the_command():
    text = (
        '[pretrain]\ndomains = "walker"\nnormalize_obs = true\nlog_every = 500\nset = ["batch=16", "temperature=1"]\n'
    )
    (cell,) = cells_of(parse("s", text)).values()
    assert shlex.join(cell.words) == (
        "walker --method becl --log-every 500 --normalize-obs --set batch=16 temperature=1"
    )


def test_lines_may_change_places():
    lines = ["steps = 5000", "hidden = [8, 16]", "set.batch = [16, 32]", 'domains = ["walker"]', "set.random_steps = 9"]
    one, two = (planned("[pretrain]\n" + "\n".join(order)) for order in (lines, lines[::-1]))
    assert {job.name: job.words for job in one.jobs} == {job.name: job.words for job in two.jobs}


HEAD = '[pretrain]\ndomains = ["walker"]\n'
TWO = f'name = "two"\n\n[[pretrain]]\ndomains = ["walker"]\nhidden = 8\n\n[[pretrain]]\nname = "b"\n{HEAD[11:]}'
TUNED = f"{HEAD}[finetune]\n"
# The line that is wrong has a mark, except where a whole file is; then what the message says.
BAD = {
    "top key": ('name = "s"\nnmae = "t" #!\n' + HEAD, "'nmae': did you mean 'name'?"),
    "block": (f'name = "s"\n{HEAD}[pretrian] #!\nseeds = 1\n', "'pretrian': did you mean 'pretrain'?"),
    "key": (HEAD + "hiden = 8 #!\n", "'hiden': did you mean 'hidden'?"),
    "key in quotes": (HEAD + '"hid en" = 8 #!\n', "'hid en': did you mean 'hidden'?"),
    "key of second block": (TWO + "hiden = 8 #!\n", "'hiden': did you mean 'hidden'?"),
    "key after settings": (HEAD + 'set = [\n  "steps=3",\n]\nstep = 3 #!\n', "'step': did you mean 'steps'?"),
    "key of settings": (HEAD + "[pretrain.set]\nbatch = 9\nbacth = 9 #!\n", "'bacth': did you mean 'batch'?"),
    "deep key of settings": (HEAD + "[pretrain.set]\nreplay.capacty = 9 #!\n", "did you mean 'replay.capacity'?"),
    "settings of second block": (TWO + "[pretrain.set]\nbacth = 9 #!\n", "'bacth': did you mean 'batch'?"),
    "word of settings": (HEAD + 'set = [\n  "batch=16",\n  "bacth=16", #!\n]\n', "did you mean 'batch'?"),
    "settings that are none": (HEAD + "set = 5 #!\n", "expected a list"),
    "method": (HEAD + 'methods = ["becl", "dyain"] #!\n', "unknown method 'dyain': did you mean 'diayn'?"),
    "method of second block": (TWO + 'methods = [\n "becl",\n "dyain" #!\n]\n', "did you mean 'diayn'?"),
    "domain": ('[pretrain]\ndomains = ["wlaker"] #!\n', "'wlaker': did you mean 'walker'?"),
    "no domain": ("[pretrain] #!\nsteps = 5000\n", "empty grid: domains = [...] is missing"),
    "method of the maze": ('[maze]\nmethods = ["diyan"] #!\n', "did you mean 'diayn'?"),
    "study": (
        '[maze]\nseeds = 2\nstudy = "comparision" #!\n',
        "did you mean 'comparison'? allowed: comparison, estimates",
    ),
    "value": (HEAD + 'steps = "many" #!\n', "steps=many: expected a whole number"),
    "number": (HEAD + "seeds = 2\nsteps = 1.5 #!\n", "steps=1.5: expected a whole number"),
    "value of second block": (TWO + "steps = 5 #!\n", "must be more than the 4,000 random steps"),
    "value of settings": (HEAD + '[pretrain.set]\nbatch = "x" #!\n', "batch"),
    "switch": (HEAD + "normalize_obs = 3 #!\n", "expected true or false"),
    "dash": (HEAD + 'seeds = 2\nmethods = ["--help"] #!\n', "begins with a dash"),
    "name of a block": (HEAD + "name = 5 #!\n", "name: expected a word"),
    "name": ('name = "a/b" #!\n' + HEAD, "letters, digits"),
    "out": ("out = 5 #!\n" + HEAD, "expected the name of a folder"),
    "empty list": (HEAD + "steps = [] #!\n", "the list is empty"),
    "empty methods": (HEAD + "methods = [] #!\n", "the list is empty"),
    "empty seeds": (HEAD + "seeds = [] #!\n", "at least one seed is needed"),
    "empty settings": (HEAD + "[pretrain.set]\nbatch = [] #!\n", "the list is empty"),
    "repeated": (HEAD + "steps = [5000, 6000, 5000] #!\n", "more than once"),
    "repeated method": (HEAD + 'methods = ["becl", "becl"] #!\n', "becl given more than once"),
    "repeated seed": (HEAD + "seeds = [3, 4, 3] #!\n", "more than once"),
    "seeds": (HEAD + 'seeds = "three" #!\n', "expected a count (5), a range"),
    "table": (HEAD + "steps = {a = 5} #!\n", "cannot be the value of an option"),
    "task": (TUNED + 'tasks = ["walker_rnu"] #!\n', "'walker_rnu': did you mean 'walker_run'?"),
    "task of no domain": (TUNED + 'tasks = ["quadruped_run"] #!\n', "walker has none of quadruped_run; its own: walk"),
    "one task of no domain": (TUNED + 'tasks = ["walker_run", "jaco_reach_top_left"] #!\n', "jaco_reach_top_left"),
    "all tasks and one": (TUNED + 'tasks = ["all", "walker_run"] #!\n', "all, or tasks by name"),
    "skill": (TUNED + 'skill = "fixd:3" #!\n', "did you mean 'fixed:3'?"),
    "finetuned method": (TUNED + 'methods = ["diayn"] #!\n', "unknown pretrained method 'diayn': allowed: becl"),
    "finetuned domain": (TUNED + 'domains = ["walkr"] #!\n', "pretrained domain 'walkr': did you mean 'walker'?"),
    "nothing fits": (
        TWO.replace('"b"', '"b"\nmethods = "diayn"').replace('"walker"', '"jaco"', 1)
        + '[finetune] #!\nmethods = "diayn"\ndomains = "jaco"\ntasks = "jaco_reach_top_left"\n',
        "an empty grid: nothing that is pretrained has its methods",
    ),
    "maze without tasks": ('[pretrain]\ndomains = "square_a"\n[finetune] #!\n', "square_a is a maze"),
    "same name twice": (
        '[[pretrain]]\ndomains = "walker"\n[[pretrain]] #!\ndomains = "walker"\n',
        "two runs are both called pretrain/walker-becl",
    ),
    "jobs": ("jobs = 5 #!\n" + HEAD, "expected a block [jobs]"),
    "key of jobs": (HEAD + "[jobs]\ngruop = 3 #!\n", "'gruop': did you mean 'group'?"),
    "value of jobs": (HEAD + "[jobs]\ngroup = 3\nretries = -1 #!\n", "at least 0"),
    "gpus": (HEAD + "[jobs]\ngpus = nan #!\n", "gpus nan"),
    "toml": (HEAD + "steps = = 5 #!\n", "line 3"),
    "toml, twice": (HEAD + "steps = 5000\nsteps = 6000 #!\n", "line 4"),
    "toml, open": (HEAD + "steps = [5000\n", "not valid TOML"),
    "toml, deep": (HEAD + f"steps = {'[' * 3000}{']' * 3000}\n", "not valid TOML"),
    "nothing": ("", "an empty grid: it has neither [pretrain] nor [maze]"),
    "only finetuned": ("[finetune]\n", "an empty grid"),
    "only ddpg": (HEAD + 'methods = ["ddpg"]\n', "an empty grid: ddpg is not pretrained"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_in_the_file_is_one_line_with_its_place(case: str, capsys: pytest.CaptureFixture[str]):
    text, what = BAD[case]
    said = refused(capsys, write(text))
    assert what in said
    marked = [place for place, line in enumerate(text.splitlines(), 1) if line.endswith("#!")]
    if marked and not case.startswith("toml"):
        assert f"s.toml, line {marked[0]}: " in said


def test_a_mistake_on_the_command_line_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    write(HEAD)
    Path("folder.toml").mkdir()
    Path("bytes.toml").write_bytes(b"\xff\xfe\x00")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    for words, what in (
        (["smok"], "unknown sweep 'smok': did you mean 'smoke'?"),
        (["paper-mazes"], "did you mean 'paper-maze'?"),
        (["missing.toml"], "cannot read missing.toml: No such file"),
        (["folder.toml"], "cannot read folder.toml"),
        (["bytes.toml"], "bytes.toml is not a text file"),
        ([], "name one file, or a preset: paper-ablations, paper-figure10"),
        (["s.toml", "smoke"], "name one file"),
        (["status", "s.toml"], "runs/sweep-s: no sweep has begun there"),
        (["s.toml", "--group", "0"], "--group 0: expected a number of at least 1"),
        (["s.toml", "--retries", "-1"], "--retries -1"),
        (["s.toml", "--cpus", "0"], "--cpus 0"),
        (["s.toml", "--gpus", "nan"], "--gpus nan"),
        (["s.toml", "--gruop", "3"], "did you mean '--group'?"),
        (["s.toml", "--no-ray", "--ray-address", nobody], "exclude each other"),
        (["s.toml", "--ray-address", "head"], "expected HOST:PORT as `ray start` prints it, or auto"),
        (["s.toml", "--ray-address", nobody], f"--ray-address {nobody}: no cluster answers there"),
    ):
        monkeypatch.setattr(sweep_ray, "installed", lambda: True)
        assert what in refused(capsys, *words)
    monkeypatch.setattr(sweep_ray, "installed", lambda: False)
    assert f"Ray is not installed; {to_install('ray')}" in refused(capsys, "s.toml", "--ray-address", nobody)


# --- The plan ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("preset", "runs"),
    {
        "smoke": (3 * 2, 4 * 2, 2 * 2),
        "paper-urlb": (10 * 3 * 10, 11 * 12 * 10, 0),
        "paper-maze": (0, 0, (5 + 2 + 4 * 2 + 4 * 4) * 5),
        "paper-ablations": (3 + 5 * 3, 2 * 3 * 16 + 4 * 5 * 3, (4 * 2 + 4 * 4) * 5),
        "paper-figure10": (3 * 2, 0, 0),
        "paper-figure11": (3, 2 * 3 * 16, 0),
        "paper-figure12": (5 * 3, 4 * 5 * 3, 0),
        "transfer": (3 * 6, 2 * 3 * 4 * 6, 0),
        "transfer-causes": (3 * 2, 4 * 4 + 4 * 4 * 2, 0),
    }.items(),
)
def test_presets_have_the_runs_they_say(preset: str, runs: tuple[int, int, int]):
    papers = {f"paper-{name}" for name in ("urlb", "maze", "ablations", "figure10", "figure11", "figure12")}
    assert {*presets()} == papers | {"smoke", "transfer", "transfer-causes"}
    found = read_sweep(preset)
    plan = make_plan(found, cells_of(found), CPU, 1)
    count = Counter({"pretrain": 0, "finetune": 0, "maze": 0})
    for job in plan.jobs:
        count[job.stage] += job.runs
    assert tuple(count[stage] for stage in ("pretrain", "finetune", "maze")) == runs
    if preset == "paper-urlb":
        finetuned = [job for job in plan.jobs if job.stage == "finetune"]
        assert len({job.method for job in finetuned}) == 11
        assert len({task for job in finetuned for task in job.tasks}) == 12
        assert {seed for job in finetuned for seed in job.seeds} == {*range(10)}


TASKS = {
    "walker": ("walker_stand", "walker_walk", "walker_run", "walker_flip"),
    "jaco": ("jaco_reach_top_left", "jaco_reach_top_right", "jaco_reach_bottom_left", "jaco_reach_bottom_right"),
}


@dataclasses.dataclass
class Grid:
    """A file's lists, and what they stand for by a naive product."""

    domains: list[str]
    methods: list[str]
    seeds: list[int]
    tasks: list[str]
    widths: list[int]
    maze_seeds: list[int]

    @classmethod
    def draw(cls, rng: random.Random) -> "Grid":
        domains = rng.sample([*TASKS], rng.randint(1, 2))
        tasks = [task for domain in domains for task in rng.sample(TASKS[domain], rng.randint(1, 4))]
        methods = rng.sample(["becl", "diayn", "ddpg"], rng.randint(1, 2))
        widths = rng.sample([8, 16], 3 - len(domains) if len(methods) == 1 else 1)
        return cls(domains, methods, rng.sample(range(30), rng.randint(1, 6)), tasks, widths,
                   rng.sample(range(9), rng.randint(1, 3)))  # fmt: skip

    def grown(self, rng: random.Random) -> "Grid":
        tasks = [task for domain in self.domains for task in TASKS[domain] if task in self.tasks or rng.random() < 0.5]
        return dataclasses.replace(
            self, seeds=[*self.seeds, *range(40, 40 + rng.randint(0, 3))], tasks=tasks,
            methods=[*self.methods, "rnd"], maze_seeds=[*self.maze_seeds, 20],
        )  # fmt: skip

    @property
    def text(self) -> str:
        return (
            f"[pretrain]\ndomains = {self.domains}\nmethods = {self.methods}\nseeds = {self.seeds}\n"
            f"hidden = {self.widths}\nset = ['replay.capacity=5000', 'batch=16']\n"
            f"[finetune]\ntasks = {self.tasks}\nsteps = 5000\n"
            f"[maze]\nmethods = ['becl', 'diayn']\ncycles = 3\nseeds = {self.maze_seeds}\n"
        )

    @property
    def runs(self) -> Counter[tuple[Any, ...]]:
        """Every run there is to be, once."""
        all_of = itertools.product(self.domains, self.methods, self.widths, self.seeds)
        robots = [one for one in all_of if one[1] != "ddpg"]
        tuned = [
            (domain, method, width, seed, task)
            for domain, method, width, seed in itertools.product(self.domains, self.methods, self.widths, self.seeds)
            for task in self.tasks
            if task.startswith(domain)
        ]
        mazes = itertools.product(["becl", "diayn"], self.maze_seeds)
        return Counter([*robots, *tuned, *mazes])


def runs_of(plan: Plan, out: Path) -> Counter[tuple[Any, ...]]:
    """The runs that the commands of a plan stand for, by the commands' own parsers."""
    found: Counter[tuple[Any, ...]] = Counter()
    pretrained: dict[Path, PretrainOptions] = {}
    for job in plan.jobs:
        command: Any = parse_options(OPTIONS[job.words[0]], job.words[0], job.line(out)[1:])
        output: Path = command.out
        assert out in output.parents
        check_same(plan, job, command, out)
        if isinstance(command, PretrainOptions):
            pretrained[output] = command
            found.update((command.env, command.method, command.hidden, seed) for seed in command.seeds)
        elif isinstance(command, FinetuneOptions):
            assert command.scratch == (command.run is None)
            source = pretrained[command.run] if command.run else None
            seeds = command.seeds or ()
            assert source is None or {*seeds} <= {*source.seeds}
            method, width = (source.method, source.hidden) if source else ("ddpg", command.hidden)
            found.update((task.split("_")[0], method, width, seed, task) for task in command.task for seed in seeds)
        elif job.stage == "maze":
            assert command.train_only
            found.update(itertools.product(make_study(command).runs, command.seeds))
    return found


def check_same(plan: Plan, job: Job, typed: Any, out: Path) -> None:
    """The options that a job runs with are those of the words that people see."""
    options = plan.options(job, out)
    names = [field.name for field in dataclasses.fields(typed) if field.name != "set"]
    assert {name: getattr(options, name) for name in names} == {name: getattr(typed, name) for name in names}
    if isinstance(typed, PretrainOptions):
        assert make_pretraining(options) == make_pretraining(typed)
    elif isinstance(typed, FinetuneOptions):
        source = plan.cells[job.cell].source
        seeds = typed.seeds or ()
        before = None if source is None else dataclasses.replace(plan.cells[source].planned, seeds=seeds)
        assert make_finetuning(options, before) == make_finetuning(typed, before)
    elif job.stage == "maze":
        assert make_study(options) == make_study(typed)


@pytest.mark.parametrize("case", range(6))
def test_jobs_are_the_grid_however_it_is_grouped_and_whatever_is_added_later(case: str | int, tmp_path: Path):
    rng = random.Random(case)
    grid = Grid.draw(rng)
    group = rng.choice([None, None, 1, 2, 3, 7])
    device = Device("some", rng.choice([10**6, 10**7, 10**8, 10**11]), rng.random() < 0.5)
    plan = planned(grid.text, device, group)
    assert runs_of(plan, tmp_path / "out") == grid.runs
    assert_consistent(plan, device, group)
    # Another machine, and another group: nothing of what is planned changes.
    again = planned(grid.text, Device("other", 10**12, True), 5, trained(plan))
    assert again.jobs == plan.jobs
    more = grid.grown(rng)
    larger = planned(more.text, device, rng.choice([None, 1, 4]), trained(plan))
    assert {*trained(plan)} <= {*trained(larger)}
    assert runs_of(larger, tmp_path / "out") == more.runs
    assert_consistent(larger, device, 10**9)


@functools.cache
def each(run: Any) -> int:
    """Bytes of one run."""
    return memory(run, 1).total


def assert_consistent(plan: Plan, device: Device, group: int | None) -> None:
    names = [job.name for job in plan.jobs]
    assert len({*names}) == len(names)
    for place, job in enumerate(plan.jobs):
        assert {*job.needs} <= {*names[:place]}
        if job.stage in ("pretrain", "finetune"):
            runs = len(job.seeds) * max(len(job.tasks), 1)
            assert job.runs == runs
            assert (
                runs <= group if group else runs == 1 or runs * each(plan.cells[job.cell].planned.run) <= device.memory
            )
    report = plan.jobs[-1]
    assert {*report.needs} == {job.name for job in plan.jobs if job.stage in ("pretrain", "finetune")}


def test_what_learns_from_a_pretraining_follows_it():
    plan = planned("[pretrain]\ndomains = ['walker', 'jaco']\nmethods = ['rnd', 'ddpg']\nseeds = 1\n[finetune]\n")
    assert [job.name for job in plan.jobs] == [
        "pretrain/walker-rnd", "finetune/walker-rnd", "pretrain/jaco-rnd", "finetune/jaco-rnd",
        "finetune/walker-ddpg", "finetune/jaco-ddpg", "report",
    ]  # fmt: skip


def test_every_skill_side_by_side_counts_as_so_many_runs():
    text = TUNED.replace("\n[", "\nskills = 4\nseeds = 3\n[", 1) + 'skill = "each"\n'
    jobs = [job for job in planned(text, group=8).jobs if job.stage == "finetune"]
    assert sum(job.runs for job in jobs) == 3 * 4 * 4
    assert max(job.runs for job in jobs) == 8


def test_from_scratch_there_is_a_run_for_all_that_concerns_it_and_no_more():
    text = """
[pretrain]
domains = "walker"
methods = ["becl", "ddpg"]
steps = [5000, 6000]
[finetune]
tasks = "walker_run"
skill = ["random", "fixed:1"]
steps = [5000, 6000]
"""
    jobs = [job for job in planned(text).jobs if job.stage == "finetune"]
    scratch = [job for job in jobs if job.method == "ddpg"]
    assert len(jobs) - len(scratch) == 2 * 2 * 2  # Pretrained steps, skills, steps.
    assert sorted(job.words[job.words.index("--steps") + 1] for job in scratch) == ["5000", "6000"]
    assert all("--scratch" in job.words and "--skill" not in job.words and not job.needs for job in scratch)


def test_from_scratch_learns_as_the_others_do():
    text = """
[pretrain]
domains = "walker"
methods = ["rnd", "ddpg"]
steps = 5000
hidden = 8
envs = 4
precision = "float32"
normalize_obs = true
set = ["batch=32", "random_steps=200", "replay.gamma=0.9", "replay.capacity=3000", "learner.stddev=0.1"]
[finetune]
tasks = "walker_run"
steps = 5000
set = ["random_steps=100"]
"""
    cells = planned(text).cells
    pretrained, scratch = (cells[f"finetune/walker-{method}"].planned.run for method in ("rnd", "ddpg"))
    for name in ("batch", "envs", "precision", "random_steps", "replay", "learner", "steps_per_update"):
        assert getattr(pretrained, name) == getattr(scratch, name), name
    assert (scratch.batch, scratch.random_steps, scratch.replay.gamma) == (32, 100, 0.9)


def test_a_job_gets_no_name_that_another_has():
    """A block's name may look like the seeds, or the task, of another block's job."""
    text = """
[[pretrain]]
domains = "walker"
seeds = 2
[[pretrain]]
domains = "walker"
name = "seeds-0"
[[finetune]]
tasks = ["walker_run", "walker_stand"]
[[finetune]]
name = "run"
tasks = ["walker_run"]
"""
    names = [job.name for job in planned(text, group=1).jobs]
    assert len({*names}) == len(names) == 3 + 3 * 3 + 1


# --- Running jobs, without any training -------------------------------------------------------------------------------

GRID = f"""
[pretrain]
domains = ["walker"]
methods = ["becl", "diayn", "ddpg"]
seeds = 2
{TINY}
[finetune]
tasks = ["walker_run"]
[maze]
methods = ["becl", "diayn"]
seeds = 2
cycles = 1
[jobs]
group = 1
"""
BECL, TUNED_BECL = "pretrain/walker-becl-seeds-0", "finetune/walker-becl-seeds-0"
ALL = {f"pretrain/walker-{method}-seeds-{seed}" for method in ("becl", "diayn") for seed in (0, 1)}
ALL |= {f"finetune/walker-{method}-seeds-{seed}" for method in ("becl", "diayn", "ddpg") for seed in (0, 1)}
ALL |= {"maze/comparison-seeds-0", "maze/comparison-seeds-1", "figures/comparison", "report"}
OUT = Path("runs/sweep-s")


def until_option(words: list[str], option: str) -> list[str]:
    """The values of an option."""
    return list(itertools.takewhile(lambda word: not word.startswith("--"), words[words.index(option) + 1 :]))


def pretend(words: list[str]) -> None:
    """Leaves the files that a command leaves when it ends well."""
    out = Path(until_option(words, "--out")[0])
    if words[0] in ("pretrain", "finetune"):
        names = []
        out.mkdir(parents=True, exist_ok=True)
        write_checked(out / "config.json", '{"steps": 5}')
        result = {"steps": 5, "seconds": 1.0, "steps_per_second": 5.0} | identity(out)
        write_checked(out / "result.json", json.dumps(result))
    elif words[0] == "report":
        names = ["index.html"]
    elif "--train-only" in words:
        seeds = parse_seeds(until_option(words, "--seeds")[0])
        names = [f"{method}/seed-{seed}.json" for method in until_option(words, "--methods") for seed in seeds]
    else:
        names = ["summary.json"]
    for name in names:
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        write_checked(out / name, "{}")


class Fake:
    """Ends jobs in any order, as it is told to; those it was told nothing of end well."""

    places = 3

    def __init__(self, told: dict[str, list[Ended]], seed: int):
        self.told, self.rng = told, random.Random(seed)
        self.waiting: list[Order] = []
        self.started: list[Order] = []
        self.idle = 0
        self.before_end: Callable[[Order], None] = lambda order: None

    @property
    def names(self) -> list[str]:
        return [order.name for order in self.started]

    def device(self) -> Device:
        return CPU

    def submit(self, order: Order) -> None:
        if order.words[0] == "finetune" and "--scratch" not in order.words:
            assert (Path(order.words[1]) / "result.json").exists()
        if order.name == "report":
            assert not any(other.words[0] in ("pretrain", "finetune") for other in self.waiting)
        if order.name.startswith("figures"):
            assert not any(other.words[0] == "maze" for other in self.waiting)
        self.waiting.append(order)
        self.started.append(order)

    def wait(self, seconds: float) -> list[tuple[str, Ended]]:
        if not self.waiting:
            self.idle += 1
            assert self.idle < 100, "nothing can be started, and it does not end"
            return []
        order = self.waiting.pop(self.rng.randrange(min(len(self.waiting), self.places)))
        self.before_end(order)
        told = self.told.get(order.name)
        ended = told.pop(0) if told else Ended(0)
        if ended == Ended(0):
            pretend(order.words)
        elif ended.code == 1:
            log = Path(order.out) / "jobs" / order.name.replace("/", "-") / "log.txt"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(ended.why)
        return [(order.name, ended)]

    def stop(self) -> Iterator[tuple[str, Ended]]:
        return iter([(order.name, Ended(STOPPED)) for order in self.waiting])

    def close(self) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fake]:
    """Puts an executor in place that follows a script."""
    monkeypatch.setattr(sweep_command, "LONGEST_DELAY", 0.0)

    def install(told: dict[str, list[Ended]] | None = None, seed: int = 0) -> Fake:
        made = Fake(told or {}, seed)
        monkeypatch.setattr(sweep_command, "executor_of", lambda command, jobs: contextlib.nullcontext(made))
        return made

    return install


Install = Callable[..., Fake]
Said = pytest.CaptureFixture[str]


@pytest.mark.parametrize("seed", range(3))
def test_every_job_is_run_once_and_after_those_it_needs(seed: int, fake: Install, capsys: Said):
    executor = fake(seed=seed)
    assert main(["sweep", write(GRID)]) == 0
    assert Counter(executor.names) == Counter(ALL)
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines() == [
        "12 jobs, 14 runs · 0 done before · 3 at a time · runs/sweep-s/",
        "14 of 14 jobs done, 0 failed · runs/sweep-s/",
        "runs/sweep-s/maze/comparison",
        "runs/sweep-s/report/index.html",
    ]
    executor = fake()
    assert main(["sweep", "s.toml"]) == 0
    assert executor.names == []


def test_a_job_that_fails_is_tried_again_then_given_up_and_the_rest_goes_on(fake: Install, capsys: Said):
    executor = fake({BECL: [Ended(1, "no luck")] * 9, "finetune/walker-ddpg-seeds-0": [Ended(1, "once")]})
    assert main(["sweep", write(GRID), "--retries", "2"]) == 1
    assert Counter(executor.names) == Counter([*(ALL - {TUNED_BECL}), BECL, BECL, "finetune/walker-ddpg-seeds-0"])
    said = capsys.readouterr()
    log = OUT / "jobs" / BECL.replace("/", "-") / "log.txt"
    assert said.err.splitlines() == [
        f"becl: failed: {BECL}: no luck (see {log})",
        f"becl: failed: {TUNED_BECL}: not started: {BECL} failed",
    ]
    assert log.read_text() == "no luck"
    assert "12 of 14 jobs done, 2 failed, 3 further attempts" in said.out
    assert "report/index.html" in said.out
    assert (OUT / "maze/comparison/summary.json").exists()
    executor = fake()  # Whoever runs the command again gives them as many tries again.
    assert main(["sweep", "s.toml"]) == 0
    assert executor.names == [BECL, TUNED_BECL, "report"]


def test_retries_are_those_of_the_file_and_the_command_goes_before(fake: Install):
    write(GRID + "retries = 1\n")
    for words, tries in (([], 2), (["--retries", "0"], 1)):
        executor = fake({BECL: [Ended(1, "no luck")] * 9})
        assert main(["sweep", "s.toml", *words]) == 1
        assert executor.names.count(BECL) == tries


def test_what_says_it_went_well_without_a_result_has_failed(fake: Install, capsys: Said):
    executor = fake({BECL: [Ended(0, "but nothing is there")] * 9})
    assert main(["sweep", write(GRID), "--retries", "0"]) == 1
    assert executor.names.count(BECL) == 1
    assert f"{BECL}: but nothing is there" in capsys.readouterr().err


@pytest.mark.parametrize("retries", [0, 1])
def test_a_lost_process_that_got_on_uses_up_no_tries(retries: int, fake: Install, capsys: Said):
    folder = OUT / "jobs" / BECL.replace("/", "-")
    executor = fake({BECL: [Ended(LOST, "gone")] * 5})
    reached = iter([10, 20, 30, 40, 50, 50])

    def go(order: Order) -> None:
        if order.name == BECL:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "status.json").write_text(json.dumps({"done": next(reached)}))

    executor.before_end = go
    assert main(["sweep", write(GRID), "--retries", str(retries)]) == 0
    assert executor.names.count(BECL) == 6
    assert "14 of 14 jobs done, 0 failed, 5 further attempts, 5 processes lost" in capsys.readouterr().out
    rows = [json.loads(line) for line in (folder / "attempts.jsonl").read_text().splitlines()]
    assert [(row["code"], row["why"]) for row in rows] == [(LOST, "gone")] * 5


def test_a_process_that_is_lost_again_and_again_at_the_same_place_is_given_up(fake: Install, capsys: Said):
    executor = fake({BECL: [Ended(LOST, "gone")] * 9})
    assert main(["sweep", write(GRID), "--retries", "2"]) == 1
    assert executor.names.count(BECL) == 3
    assert f"{BECL}: gone" in capsys.readouterr().err


def test_a_sweep_that_is_stopped_goes_on_with_what_is_not_done(fake: Install, capsys: Said):
    first = fake({BECL: [Ended(STOPPED)]})
    assert main(["sweep", write(GRID)]) == 130
    said = capsys.readouterr().out
    assert said.endswith("becl: stopped; the same command continues\n")
    done = {path.parent for path in OUT.rglob("result.json")}
    assert OUT / BECL not in done
    assert "report" not in first.names
    second = fake()
    assert main(["sweep", "s.toml"]) == 0
    assert {*second.names} == ALL - {str(path.relative_to(OUT)) for path in done} - finished_mazes(first)
    assert len({*second.names}) == len(second.names)


def finished_mazes(executor: Fake) -> set[str]:
    waiting = {order.name for order in executor.waiting}
    return {name for name in executor.names if name.startswith("maze") and name not in waiting}


def test_figures_are_of_the_seeds_that_are_there(fake: Install, capsys: Said):
    """And the job that draws them trains none of those that failed."""
    executor = fake({"maze/comparison-seeds-1": [Ended(1, "no luck")] * 9})
    assert main(["sweep", write(GRID)]) == 1
    (figures,) = (order for order in executor.started if order.name == "figures/comparison")
    assert parse_seeds(until_option(figures.words, "--seeds")[0]) == (0,)
    assert figures.locks == ["runs/sweep-s/maze/comparison/lock"]
    capsys.readouterr()
    executor = fake({f"maze/comparison-seeds-{seed}": [Ended(1, "no luck")] * 9 for seed in (0, 1)})
    assert main(["sweep", "s.toml", "--out", "other"]) == 1
    assert "figures/comparison" not in executor.names
    assert "figures/comparison: there is nothing to show\n" in capsys.readouterr().err


def test_the_report_is_made_again_when_there_is_more_to_tell(fake: Install):
    fake()
    assert main(["sweep", write(GRID)]) == 0
    os.utime(OUT / "report/index.html", (1, 1))
    os.utime(OUT / "maze/comparison/summary.json", (1, 1))
    executor = fake()
    assert main(["sweep", "s.toml"]) == 0
    assert {*executor.names} == {"report", "figures/comparison"}
    # More seeds: they come first, and the page tells of them when the command ends.
    executor = fake()
    assert main(["sweep", write(GRID.replace("seeds = 2", "seeds = 3"))]) == 0
    assert {*executor.names} == {name[:-1] + "2" for name in ALL if name.endswith("0")} | {
        "figures/comparison",
        "report",
    }
    assert executor.names[-1] in ("report", "figures/comparison")


def test_the_status_says_who_works_and_what_failed(fake: Install, capsys: Said):
    fake({BECL: [Ended(1, "no luck")] * 9})
    write(GRID)
    assert main(["sweep", "s.toml", "--retries", "0"]) == 1
    folder = OUT / "jobs" / BECL.replace("/", "-")
    (folder / "attempts.jsonl").write_text('{"code": 1, "why": "no luck", "seconds": 3}\n{"torn')
    capsys.readouterr()
    assert main(["sweep", "status", "s.toml"]) == 0
    said = capsys.readouterr().out
    assert f"{BECL}: failed 1 times, last: no luck (see {folder / 'log.txt'})" in said
    assert "10 of 12 jobs done · 0 running · 2 waiting · 0 failed" in said
    facts = {"pid": 7, "host": "far", "done": 60, "total": 120, "unit": "steps", "rate": 30.0}
    (folder / "status.json").write_text(json.dumps(facts))
    assert main(["sweep", "status", "s.toml"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert lines["pretrain"] == ["pretrain", "1", "0", "3", "0", "4"]  # Running, waiting, done, failed, runs.
    assert lines["finetune"] == ["finetune", "0", "1", "5", "0", "6"]
    assert lines[BECL] == [BECL, "far/7", "50", "%", "30", "steps/s", "0:02"]
    os.utime(folder / "status.json", (0, 0))  # Its process is long gone.
    assert main(["sweep", "status", "s.toml"]) == 0
    assert "10 of 12 jobs done · 0 running · 2 waiting" in capsys.readouterr().out


def test_the_time_left_is_that_of_what_is_not_done(monkeypatch: pytest.MonkeyPatch):
    jobs = [Job(f"pretrain/{name}", "pretrain", (), proofs=(name,), work=100) for name in "abcd"]
    plan = Plan(tuple(jobs), {})
    for name, seconds in (("a", 30.0), ("b", 50.0)):
        folder = Path(f"out/jobs/pretrain-{name}")
        folder.mkdir(parents=True)
        (folder / "attempts.jsonl").write_text(json.dumps({"seconds": seconds}) + "\n")
    states = {"pretrain/a": "done", "pretrain/b": "done", "pretrain/c": "failed", "pretrain/d": "waiting"}
    # 200 steps took 80 seconds, 100 are left.
    assert line_of(plan, Path("out"), states) == ("2 of 4 jobs done · 0 running · 1 waiting · 1 failed · left 0:40")
    # What runs has done 30 of them; or all, and evaluates for 1,000 steps.
    for done, left in ((30, "0:28"), (700, "0:00")):
        monkeypatch.setattr(sweep_status, "read_status", lambda folder, done=done: ({"done": done}, True))
        said = line_of(plan, Path("out"), states | {"pretrain/d": "running"})
        assert said == f"2 of 4 jobs done · 1 running · 0 waiting · 1 failed · left {left}"


def test_the_table_is_on_the_terminal_while_a_job_prints_elsewhere(fake: Install, monkeypatch: pytest.MonkeyPatch):
    terminal, log = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", terminal)
    executor = fake()

    def work(order: Order) -> None:
        with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            print("from the job")
            begun, deadline = terminal.tell(), time.monotonic() + 600
            while terminal.tell() == begun and time.monotonic() < deadline:
                time.sleep(0.05)
        executor.before_end = lambda order: None

    executor.before_end = work
    assert main(["sweep", write(GRID)]) == 0
    assert log.getvalue() == "from the job\n"
    assert "0 of 14 jobs done" in re.sub(r"\x1b\[[\d;?]*\w", "", terminal.getvalue())


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_in_one_process_programs_are_forgotten_now_and_then(monkeypatch: pytest.MonkeyPatch):
    events = []
    monkeypatch.setattr(sweep_command, "run_job", lambda order: events.append("job") or Ended(0))
    monkeypatch.setattr(sweep_command, "forget_programs", lambda: events.append("forget"))
    here = sweep_command.Here()
    for _ in range(40):
        here.submit(order_of(["envs"]))
        assert here.wait(0.0) == [("stage/name", Ended(0))]
    assert Counter(events) == {"job": 40, "forget": 2}


# --- Its folder -------------------------------------------------------------------------------------------------------


def test_the_folder_of_another_sweep_is_refused(fake: Install, capsys: Said):
    text = GRID.replace('["walker_run"]', '["walker_run", "walker_stand"]').replace(
        "[finetune]", "[finetune]\nsteps = 5000"
    )
    fake()
    assert main(["sweep", write(text)]) == 0
    capsys.readouterr()
    for changed, what in (
        (text.replace("hidden = 8", "hidden = 16"), "pretrain/walker-becl had"),
        (text.replace("steps = 5000", "steps = 6000"), "finetune/walker-becl had"),
        (text.replace('"diayn", "ddpg"', '"ddpg"'), "pretrain/walker-diayn is not in this one"),
        (text.replace(', "walker_stand"', ""), "finetune/walker-becl had task walker_stand"),
        (text.replace("seeds = 2", "seeds = 1", 1), "pretrain/walker-becl had seed 1"),
        (text.replace("[maze]", "[maze]\nskills = 3"), "maze/comparison had"),
    ):
        assert changed != text
        write(changed)
        for words in (["s.toml"], ["s.toml", "--dry-run"]):
            said = refused(capsys, *words)
            assert said.startswith("becl: runs/sweep-s is the folder of another sweep: " + what), said
    write(text)
    (OUT / "report/index.html").unlink()  # Something is left to do.
    with locked(OUT):
        assert "runs/sweep-s is in use by process" in refused_while_locked(capsys)


def refused_while_locked(capsys: Said) -> str:
    assert main(["sweep", "s.toml"]) == 2
    return capsys.readouterr().err


def test_a_folder_that_is_no_sweeps_or_is_damaged_is_refused(fake: Install, capsys: Said):
    executor = fake()
    write(GRID)
    Path("notes").mkdir()
    Path("notes/diary.txt").write_text("dear")
    Path("file").write_text("x")
    for place in ("notes", "file"):
        assert f"{place} is not the folder of a sweep, and not empty" in refused(capsys, "s.toml", "--out", place)
        said = refused(capsys, "status", "s.toml", "--out", place)
        assert f"{place} is not the folder of a sweep, and not empty" in said
    Path("bad").mkdir()
    for text in (b"{", b"[]", b'{"jobs": 3}', b'{"jobs": [{"nonsense": 1}]}', b"\xff", b"[" * 100_000):
        Path("bad/sweep.json").write_bytes(text)
        assert "bad/sweep.json is damaged; choose another --out" in refused(capsys, "s.toml", "--out", "bad")
    assert executor.names == []
    # What a process leaves that was killed before anything began.
    Path("begun").mkdir()
    Path("begun/sweep.json.part").write_text("{")
    Path("begun/lock").write_text("")
    assert main(["sweep", "s.toml", "--out", "begun"]) == 0
    assert {*executor.names} == ALL


def test_a_folder_that_cannot_be_written_is_refused(capsys: Said):
    write(GRID)
    assert "cannot write in /proc/nowhere" in refused(capsys, "s.toml", "--out", "/proc/nowhere")


# --- One job ----------------------------------------------------------------------------------------------------------


def order_of(words: list[str], locks: Sequence[str] = (), execute: Any = cli.execute) -> Order:
    command, *rest = words
    options = parse_options(OPTIONS[command], command, rest)
    return Order("stage/name", command, options, words, execute, [], "out", os.getcwd(), list(locks), {})


JOB = Path("out/jobs/stage-name")


def attempts() -> list[tuple[int, str]]:
    return [(one["code"], one["why"]) for one in map(json.loads, (JOB / "attempts.jsonl").read_text().splitlines())]


def test_a_job_leaves_a_log_and_a_line_a_try(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    foreign = Path("run-lock")
    foreign.write_text('{"pid": 1, "host": "far away"}')
    assert run_job(order_of(["envs"], ["run-lock"])) == Ended(0)
    assert not foreign.exists()
    ended = run_job(order_of(["methods", "bcel"]))
    assert ended.code == 2
    assert ended.why.startswith("unknown method 'bcel': did you mean 'becl'?")

    def broken(command: str, options: Any, words: Sequence[str]) -> int:
        assert {"pid", "host", "began"} <= {*json.loads((JOB / "status.json").read_text())}
        raise RuntimeError("out of luck")

    monkeypatch.setattr(threading.Thread, "start", before_going_on(threading.Thread.start))
    assert run_job(order_of(["pretrain", "a b"], execute=broken)) == Ended(1, "RuntimeError: out of luck")
    assert attempts() == [(0, ""), (2, ended.why), (1, "RuntimeError: out of luck")]
    log = (JOB / "log.txt").read_text()
    first, second, third = log.removeprefix("--- ").split("\n--- ")
    assert "becl envs\n" in first
    assert "walker_run" in first
    assert "unknown method 'bcel'" in second
    assert "becl pretrain 'a b'\nTraceback (most recent call last):" in third
    assert {path.name for path in JOB.iterdir()} == {"log.txt", "attempts.jsonl"}
    assert capfd.readouterr() == ("", "")  # All of it went to the log.


def before_going_on(start: Callable[[threading.Thread], None]) -> Callable[[threading.Thread], None]:
    """A thread that beats has done so once when the next line runs."""

    def started(thread: threading.Thread) -> None:
        start(thread)
        if thread.name == "becl-lease":  # It is renewed, too, which is none of this.
            return
        deadline = time.monotonic() + 600
        while not (JOB / "status.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    return started


def test_a_job_without_a_place_to_write_fails_in_a_line():
    Path("out").write_text("a file")
    assert run_job(order_of(["envs"])) == Ended(1, "cannot write in out/jobs/stage-name: Not a directory")
    assert "all machines of a sweep must see its folder" in run_job(order_of(["envs"])._replace(home="/nowhere")).why


def test_a_job_waits_for_the_process_that_still_has_it():
    JOB.mkdir(parents=True)
    held, events = threading.Event(), []

    def other() -> None:
        with locked(JOB):
            held.set()
            time.sleep(0.5)
            events.append("other")

    thread = threading.Thread(target=other)
    thread.start()
    held.wait()
    with owned(JOB):
        events.append("own")
    thread.join()
    assert events == ["other", "own"]


def test_a_job_of_a_dead_machine_is_taken_over_and_that_of_a_live_one_is_not(monkeypatch: pytest.MonkeyPatch):
    JOB.mkdir(parents=True)
    lock = json.dumps({"pid": 1, "host": "far away"})
    (JOB / "lock").write_text(lock)
    monkeypatch.setattr(sweep_jobs, "SILENT", 0.3)
    monkeypatch.setattr(sweep_jobs, "PATIENCE", 1.0)
    beats = itertools.count()
    with monkeypatch.context() as alive:
        alive.setattr(sweep_jobs, "modified", lambda path: next(beats))
        with pytest.raises(UserError, match="in use by process 1 on far away"), owned(JOB):
            pass
    assert (JOB / "lock").read_text() == lock
    (JOB / "status.json").write_text("{}")  # The last that was heard of it.
    monkeypatch.setattr(sweep_jobs, "PATIENCE", 60.0)
    with owned(JOB):
        assert json.loads((JOB / "lock").read_text())["host"] == socket.gethostname()
    assert not (JOB / "lock").exists()


# --- What it will cost ------------------------------------------------------------------------------------------------


def test_a_dry_run_writes_nothing_and_its_hours_are_those_of_the_rates(capsys: Said):
    rates = json.loads((resources.files("becl") / "data" / "rates.json").read_text())
    (rate,) = (
        row
        for row in rates
        if (row["device"], row["method"], row["env"], row["stage"]) == ("NVIDIA H200", "becl", "walker", "pretrain")
        and row["together"] == 8
    )
    write('[pretrain]\ndomains = ["walker"]\nseeds = 8\nsteps = 90_000_000\n[jobs]\ngpus = 1\n')
    before = files()
    assert main(["sweep", "s.toml", "--dry-run"]) == 0
    assert files() == before
    said = capsys.readouterr().out
    hours = 8 * 90e6 / rate["steps_per_second"] / 3600
    assert f"time on one NVIDIA H200: {hours:,.1f} hours, by 1 measured rate\n" in said
    assert "pretrain: 8 runs in 1 job of up to 8 together, " in said
    assert f"on an A100: {8 * 18} GPU hours" in said
    assert (
        "becl pretrain walker --method becl --steps 90000000 --seeds 0:8 --out runs/sweep-s/pretrain/walker-becl"
        in said
    )


def test_what_a_dry_run_prints_can_be_typed(capsys: Said):
    write(HEAD)
    assert main(["sweep", "s.toml", "--dry-run", "--out", "a folder"]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("pretrain/"))
    assert shlex.split(line)[-1] == "a folder/pretrain/walker-becl"


# --- A sweep that trains ----------------------------------------------------------------------------------------------

REAL = f"""
[pretrain]
domains = ["walker"]
methods = ["diayn"]
seeds = 1
steps = 120
skills = 4
{TINY}
[finetune]
tasks = ["walker_stand"]
steps = 120
eval_every = 120
eval_episodes = 1
final_episodes = 2
set = ["random_steps=40"]
"""


def results(folder: Path) -> dict[str, Any]:
    """Networks and scores of all runs, those of a network as bytes by name."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".safetensors":
            arrays = safetensors.numpy.load(path.read_bytes())
            found[str(path.relative_to(folder))] = {name: array.tobytes() for name, array in arrays.items()}
        elif path.name == "scores.csv":
            found[str(path.relative_to(folder))] = path.read_text()
    return {name: value for name, value in found.items() if not name.startswith("report")}


def times() -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in OUT.rglob("*") if path.is_file()}


def test_a_sweep_trains_and_goes_on_and_equals_its_commands(monkeypatch: pytest.MonkeyPatch, capsys: Said):
    monkeypatch.setattr(Walker, "episode_length", 50)
    monkeypatch.setattr(sweep_ray, "installed", lambda: False)
    assert main(["sweep", write(REAL)]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("Ray is not installed: jobs run one after another in this process. pip install")
    assert said[-2:] == ["3 of 3 jobs done, 0 failed · runs/sweep-s/", "runs/sweep-s/report/index.html"]
    assert "becl pretrain walker" in (OUT / "jobs/pretrain-walker-diayn/log.txt").read_text()
    check_disk()
    first = times()
    assert becl.sweep("s.toml", ray=False, quiet=True) == OUT
    assert times() == first
    capsys.readouterr()
    # The commands that a dry run prints, typed one after another.
    assert main(["sweep", "s.toml", "--dry-run", "--out", "by-hand"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if " becl " in line]
    for line, command in zip(lines, ("pretrain", "finetune"), strict=False):
        words = shlex.split(line.partition(" becl ")[2])
        assert words[0] == command
        assert main(words) == 0
    by_hand = results(Path("by-hand"))
    assert {Path(name).name for name in by_hand} == {"snapshot-120.safetensors", "policy.safetensors", "scores.csv"}
    assert results(OUT) == by_hand
    # One seed more: all that is there stays, but for the page.
    capsys.readouterr()
    assert main(["sweep", write(REAL.replace("seeds = 1", "seeds = 2")), "--no-ray"]) == 0
    assert capsys.readouterr().out.startswith("4 jobs, 4 runs · 2 done before · 1 at a time · runs/sweep-s/\n")
    after = times()
    changed = {str(path.relative_to(OUT)) for path in first if after[path] != first[path]}
    assert {name for name in changed if not name.startswith("report/")} == {
        "SHA256SUMS", "sweep.json", "jobs/report/log.txt", "jobs/report/attempts.jsonl"
    }  # fmt: skip
    assert "report/index.html" in changed
    assert {name: value for name, value in results(OUT).items() if name in by_hand} == by_hand
    assert len(results(OUT)) == 2 * len(by_hand)
    assert main(["sweep", "status", "s.toml"]) == 0
    assert "4 of 4 jobs done · 0 running · 0 waiting · 0 failed · left 0:00" in capsys.readouterr().out


def check_disk() -> None:
    """What the plan counts on is what the files hold."""
    plan = planned(REAL)
    for job in trained(plan):
        (path,) = (OUT / job.name).rglob("*.safetensors")
        arrays = safetensors.numpy.load(path.read_bytes())
        networks = sum(array.nbytes for name, array in arrays.items() if name != "skill")
        assert disk_of(job, plan.cells[job.cell]) == networks
        assert networks < path.stat().st_size < networks + 10_000  # With the names of its arrays.

"""What a sweep has to do: jobs, each a becl command that anyone could type, made from a file's grid.

Runs that share a compiled program, because they differ only in seeds or tasks, are grouped into one job. Once planned,
a job stays as it is, on whatever machine the sweep continues: jobs are recorded in the sweep's folder.
"""

import dataclasses
import functools
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from becl import envs
from becl.envs import maze
from becl.envs.external import is_external
from becl.errors import UserError, unknown
from becl.experiments.finetuning import make_finetuning
from becl.experiments.maze_study import make_study
from becl.experiments.memory import memory
from becl.experiments.pretraining import EXAMPLE, make_pretraining
from becl.experiments.settings import settings_of
from becl.learning.offpolicy import OffPolicy
from becl.options import FinetuneOptions, MazeOptions, PretrainOptions, ReportOptions, fill
from becl.runs.folder import folder_name
from becl.runs.result import is_finished
from becl.seeds import seeds_text
from becl.sweeps.device import Device
from becl.sweeps.file import Block, Sweep, to_words
from becl.trust import is_trusted

Stage = Literal["pretrain", "finetune", "maze", "figures", "report"]
OUT = "{out}"  # Stands for the sweep's folder in the words of a command.
SHARE = 0.7  # The share of a device's memory that is planned for: programs need some too.
# Runs trained together on an accelerator and on a CPU. More were not faster on an accelerator (docs/pretraining.md); a
# CPU gains little but the compiling.
TOGETHER: dict[str, tuple[int, int]] = {"pretrain": (8, 4), "finetune": (32, 8), "maze": (16, 1)}


class GridCell(NamedTuple):
    """Runs that share a compiled program."""

    name: str
    stage: Stage
    env: str
    method: str
    options: Any
    """The options of the command, except seeds, tasks and folders."""
    words: tuple[str, ...]
    """The same options as one would type them."""
    seeds: tuple[int, ...]
    tasks: tuple[str, ...]
    planned: Any
    """The resolved run of the first seed; for a maze study, of all seeds."""
    source: str | None
    """Name of the cell that is finetuned."""


@dataclass(frozen=True)
class Job:
    """A becl command, and what it depends on."""

    name: str
    stage: Stage
    words: tuple[str, ...]
    cell: str = ""
    seeds: tuple[int, ...] = ()
    tasks: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """Names of the jobs that must come before."""
    proofs: tuple[str, ...] = ()
    """Files in the sweep's folder that exist when the job is done."""
    runs: int = 0
    work: int = 0
    """Environment steps of all runs together; in a maze study, cycles."""
    method: str = ""
    env: str = ""

    @property
    def last(self) -> bool:
        """Whether it runs when all that it needs has ended, well or not, and again when there is more."""
        return self.stage in ("figures", "report")

    @property
    def command(self) -> str:
        return self.words[0]

    def line(self, out: Path) -> list[str]:
        """The command as one would type it."""
        return [word.replace(OUT, str(out)) for word in self.words]

    def done(self, out: Path, before: Sequence["Job"] = ()) -> bool:
        """Whether its files exist and, for a job that comes last, are newer than what they were made from."""
        try:
            outputs = [(out / proof).stat().st_mtime_ns for proof in self.proofs]
            if not self.last:
                places = {(out / proof).parent for proof in self.proofs}
                return self.stage == "maze" or all(map(is_finished, places))
            inputs = [path.stat().st_mtime_ns for job in before for path in job.results(out) if path.exists()]
        except OSError:
            return False
        return min(outputs) >= max(inputs, default=0)

    def results(self, out: Path) -> list[Path]:
        return [out / proof for proof in self.proofs]


class Plan(NamedTuple):
    jobs: tuple[Job, ...]
    cells: dict[str, GridCell]

    def before(self, job: Job) -> list[Job]:
        return [other for other in self.jobs if other.name in job.needs]

    def after(self, job: Job) -> list[Job]:
        """The jobs that train from what this one leaves."""
        return [other for other in self.jobs if job.name in other.needs and not other.last]

    def options(self, job: Job, out: Path) -> Any:
        """The options of a job's command, which follow from its cell."""
        if job.stage == "report":
            places = sorted({out / other.stage for other in self.before(job)})
            return ReportOptions(tuple(places), out / "report")
        cell = self.cells[job.cell]
        given = dataclasses.replace(cell.options, seeds=job.seeds)
        if job.stage in ("maze", "figures"):
            return dataclasses.replace(given, train_only=job.stage == "maze", out=out / cell.name)
        if job.stage == "finetune":
            run = None if cell.source is None else out / job.needs[0]
            given = dataclasses.replace(given, run=run, task=job.tasks, trust=is_trusted(cell.env))
        return dataclasses.replace(given, out=out / job.name)


# --- From the file to cells -------------------------------------------------------------------------------------------


def cells_of(sweep: Sweep) -> dict[str, GridCell]:
    """The cells of the grid by name, each checked as its command would check it."""
    cells: dict[str, GridCell] = {}

    def add(cell: GridCell, block: Block) -> None:
        if cell.name in cells:
            raise block.wrong(f'two runs are both called {cell.name}: give a block a name = "..." of its own')
        cells[cell.name] = cell

    for block in sweep.of("pretrain"):
        for cell in pretrain_cells(block):
            add(cell, block)
    pretrained = [cell for cell in cells.values() if cell.stage == "pretrain"]
    for block in sweep.of("finetune"):
        found = list(finetune_cells(block, pretrained))
        if not found:
            raise block.wrong("an empty grid: nothing that is pretrained has its methods and domains")
        for cell in found:
            add(cell, block)
    for block in sweep.of("maze"):
        for cell in maze_cells(block):
            add(cell, block)
    return cells


def named(stage: Stage, *words: str) -> str:
    return f"{stage}/{folder_name(*(word for word in words if word))}"


def pretrain_cells(block: Block) -> Iterator[GridCell]:
    domains, methods, seeds = block.names("domains"), block.names("methods", ["becl"]), block.seeds
    if not domains:
        raise block.wrong("an empty grid: domains = [...] is missing")
    for domain in domains:
        for method in methods:
            for label, options in block.variants():
                words = (domain, "--method", method, *to_words(options))
                try:
                    given = fill(PretrainOptions, {"env": domain, "method": method, **options})
                    planned = make_pretraining(given)
                except UserError as error:
                    raise block.wrong(error) from None
                name = named("pretrain", domain, method, block.values.get("name", ""), label)
                yield GridCell(name, "pretrain", domain, method, given, words, seeds, (), planned, None)


FROM_NOTHING = "ddpg"
"""The method that is not pretrained, because it learns tasks from scratch."""
PRETRAINED_ONLY = ("snapshot", "skill", "transfer")
SCRATCH_TOO = ("hidden", "envs", "precision", "pixels", "encoder", "encoder_weights")


def finetune_cells(block: Block, pretrained: Iterable[GridCell]) -> Iterator[GridCell]:
    """Cells of every task of every pretraining cell that the block applies to."""
    sources = list(pretrained)
    methods, domains = block.names("methods"), block.names("domains")
    for kind, names, known in (
        ("method", methods, [cell.method for cell in sources]),
        ("domain", domains, [cell.env for cell in sources]),
    ):
        for name in names:
            if name not in known:
                raise block.wrong(unknown(f"pretrained {kind}", name, dict.fromkeys(known)), kind + "s")
    seen, used = set(), set()
    for source in sources:
        if (methods and source.method not in methods) or (domains and source.env not in domains):
            continue
        scratch = source.method == FROM_NOTHING
        tasks = tasks_of(block, source.env)
        used.update(tasks)
        if not tasks:
            continue
        for label, options in block.variants(PRETRAINED_ONLY if scratch else ()):
            if scratch:
                options = scratch_options(source.options, options)
            words = ["--scratch", *to_words(options)] if scratch else to_words(options)
            run = None if scratch else Path(OUT) / source.name
            name = named("finetune", source.name.partition("/")[2], block.values.get("name", ""), label)
            same = (source.env, source.seeds, *words)
            if scratch and same in seen:  # They differ only in pretraining, which does not matter here.
                continue
            seen.add(same)
            try:
                given = fill(FinetuneOptions, {"run": run, "scratch": scratch, "task": tasks, **options})
                planned = make_finetuning(given, None if scratch else source.planned)
            except UserError as error:
                raise block.wrong(str(error).replace(f"{OUT}/", "")) from None
            yield GridCell(name, "finetune", source.env, source.method, given, tuple(words), source.seeds, tasks,
                           planned, None if scratch else source.name)  # fmt: skip
    if used and (other := [task for task in block.names("tasks") if task not in {*used, "all"}]):
        raise block.wrong(f"tasks: {other[0]} belongs to none of the block's domains", "tasks")


def scratch_options(given: PretrainOptions, options: dict[str, Any]) -> dict[str, Any]:
    """Options of a run from scratch, with those of the pretraining block that finetuned runs inherit as well."""
    loop = {field.name for field in dataclasses.fields(OffPolicy)} - {"objective"}
    settings = {one.path: one.value for one in settings_of(given.set, EXAMPLE) if one.first in loop}
    settings.pop("replay.capacity", None)
    settings |= {"learner.normalize": True} if given.normalize_obs else {}
    settings |= {one.path: one.value for one in settings_of(options.get("set", ()), EXAMPLE)}
    own = {name: getattr(given, name) for name in SCRATCH_TOO if getattr(given, name) not in (None, False)}
    return own | options | ({"set": settings} if settings else {})


def tasks_of(block: Block, domain: str) -> tuple[str, ...]:
    """The tasks of the block that a domain has; `all` means all of the domain's."""
    tasks = block.names("tasks", ["all"])
    if "all" in tasks and len(tasks) > 1:
        raise block.wrong("tasks: expected all, or tasks by name, not both", "tasks")
    if is_external(domain):
        return (domain,) if tasks == ("all",) or domain in tasks else ()
    if domain in maze.names():
        raise block.wrong(f"{domain} is a maze: it has no tasks to finetune on")
    for task in tasks:
        if task != "all" and task not in envs.names() and not is_external(task):
            raise block.wrong(unknown("task", task, ["all", *envs.names()]), "tasks")
    own = [name for name in envs.names() if name.startswith(domain.partition("_")[0] + "_")]
    found = tuple(own) if tasks == ("all",) else tuple(task for task in tasks if task in own)
    if not found:
        raise block.wrong(f"tasks: {domain} has none of {', '.join(tasks)}; its own: {', '.join(own)}", "tasks")
    return found


def maze_cells(block: Block) -> Iterator[GridCell]:
    methods, seeds = block.names("methods"), block.seeds
    for label, options in block.variants():
        words = (*(("--methods", *methods) if methods else ()), *to_words(options))
        try:
            given = fill(MazeOptions, {"methods": methods, **options})
            study = make_study(given)
        except UserError as error:
            raise block.wrong(error) from None
        name = named("maze", options.get("study", "comparison"), block.values.get("name", ""), label)
        yield GridCell(name, "maze", "maze", study.kind, given, words, seeds, (), study, None)


# --- From cells to jobs -----------------------------------------------------------------------------------------------


def make_plan(
    sweep: Sweep, cells: dict[str, GridCell], device: Device, group: int | None, recorded: Sequence[Job] = ()
) -> Plan:
    """The plan: jobs that are recorded already, then jobs for the rest of the grid."""
    jobs: list[Job] = []
    names = {job.name for job in recorded}
    for cell in cells.values():
        most = together(cell, device, group)
        known = [job for job in recorded if job.cell == cell.name]
        jobs += known
        if cell.stage == "finetune" and cell.source is not None:
            for source in [job for job in jobs if job.cell == cell.source]:
                jobs += finetune_jobs(cell, source.seeds, source, known, most, names)
        elif cell.stage == "finetune":
            jobs += finetune_jobs(cell, cell.seeds, None, known, most, names)
        elif cell.method != FROM_NOTHING:
            seeds = [seed for seed in cell.seeds if not any(seed in job.seeds for job in known)]
            jobs += [seeds_job(cell, chunk, names) for chunk in chunks(seeds, most)]
    jobs = depth_first(jobs)
    jobs += [figures_job(cell, jobs) for cell in cells.values() if cell.stage == "maze"]
    trained = [job.name for job in jobs if job.stage in ("pretrain", "finetune")]
    if trained:
        places = sorted({f"{OUT}/{job.stage}" for job in jobs if job.name in trained})
        words = ("report", *places, "--out", f"{OUT}/report")
        jobs.append(Job("report", "report", words, needs=tuple(trained), proofs=("report/index.html",)))
    if not jobs:
        raise UserError(
            f"{sweep.lines.name}: an empty grid: {FROM_NOTHING} is not pretrained, and nothing is finetuned"
        )
    return Plan(tuple(jobs), cells)


def depth_first(jobs: Sequence[Job]) -> list[Job]:
    """The jobs in the order in which they start: each pretraining is followed by what learns from it.

    So the rows of a report are finished one after another.
    """
    places = {job.name: place for place, job in enumerate(jobs)}
    return sorted(jobs, key=lambda job: min(places[name] for name in (job.name, *job.needs) if name in places))


def check_recorded(cells: dict[str, GridCell], recorded: Sequence[Job], out: Path) -> None:
    """Raises if a sweep's grid no longer has the recorded jobs; it may have more."""

    def other(what: str) -> UserError:
        return UserError(f"{out} is the folder of another sweep: {what}; choose another --out")

    for job in recorded:
        if job.cell not in cells:
            raise other(f"{job.cell} is not in this one")
        cell, words = cells[job.cell], bare_words(job)
        if words != cell.words:
            raise other(f"{job.cell} had {shlex.join(words)} and now has {shlex.join(cell.words)}")
        for seed in job.seeds:
            if seed not in cell.seeds:
                raise other(f"{job.cell} had seed {seed}")
        for task in job.tasks:
            if task not in cell.tasks:
                raise other(f"{job.cell} had task {task}")


def bare_words(job: Job) -> tuple[str, ...]:
    """The words of a job's command that come from the file's options."""
    words = list(job.words[1:])
    for option in ("--out", "--seeds", "--task", "--train-only"):
        if option in words:
            first = words.index(option)
            last = first + 1
            while last < len(words) and not words[last].startswith("--"):
                last += 1
            del words[first:last]
    return tuple(word for word in words if not word.startswith(OUT))


def together(cell: GridCell, device: Device, group: int | None) -> int:
    """How many seeds and tasks of a cell one program trains: `group`, or as many as are fast and fit."""
    fast = group or TOGETHER[cell.stage][0 if device.accelerator else 1]
    if cell.stage == "maze":
        return fast
    lanes = cell.planned.run.objective.skills.dim if getattr(cell.planned, "skill", "") == "each" else 1
    run = cell.planned.sized if cell.stage == "pretrain" else cell.planned.run
    fit = fast if group else int(SHARE * device.memory / (run_memory(run) * lanes))
    return max(1, min(fast // lanes, fit))


@functools.cache
def run_memory(run: Any) -> int:
    return memory(run, 1).total


def chunks(items: Sequence[Any], most: int) -> list[tuple[Any, ...]]:
    """Splits items into as few groups as possible, as equal in size as possible."""
    count = -(-len(items) // most)
    return [tuple(items[len(items) * i // count : len(items) * (i + 1) // count]) for i in range(count)]


def seeds_name(seeds: Sequence[int]) -> str:
    return f"seeds-{seeds[0]}" + (f"-to-{seeds[-1]}" if len(seeds) > 1 else "")


def unused(name: str, names: set[str]) -> str:
    """A name that no other job has; it is added to `names`, so that no later job gets it."""
    while name in names:
        name += "-more"
    names.add(name)
    return name


def seeds_job(cell: GridCell, seeds: tuple[int, ...], names: set[str]) -> Job:
    """The job that trains some seeds of a pretraining cell or of a maze study."""
    whole = cell.stage == "pretrain" and len(seeds) == len(cell.seeds)
    name = unused(cell.name if whole else f"{cell.name}-{seeds_name(seeds)}", names)
    words = (cell.stage, *cell.words, "--seeds", seeds_text(seeds))
    if cell.stage == "maze":
        proofs = tuple(f"{cell.name}/{label}/seed-{seed}.json" for label in cell.planned.runs for seed in seeds)
        words = (*words, "--train-only", "--out", f"{OUT}/{cell.name}")
        runs = len(cell.planned.runs) * len(seeds)
        work = runs * cell.planned.cycles
    else:
        proofs = (f"{name}/result.json",)
        words = (*words, "--out", f"{OUT}/{name}")
        runs, work = len(seeds), len(seeds) * cell.planned.steps
    return Job(name, cell.stage, words, cell.name, seeds, (), (), proofs, runs, work, cell.method, cell.env)


def finetune_jobs(
    cell: GridCell,
    seeds: Sequence[int],
    source: Job | None,
    known: Sequence[Job],
    most: int,
    names: set[str],
) -> Iterator[Job]:
    """Jobs for the tasks and seeds of one pretraining job that no known job has; seeds that miss the same tasks share
    jobs."""
    missing = {
        seed: tuple(task for task in cell.tasks if not any(task in job.tasks and seed in job.seeds for job in known))
        for seed in seeds
    }
    for tasks in dict.fromkeys(filter(None, missing.values())):
        with_these = [seed for seed in seeds if missing[seed] == tasks]
        for some_tasks in chunks(tasks, most):
            for some in chunks(with_these, max(1, most // len(some_tasks))):
                name = cell.name if len(some) == len(cell.seeds) else f"{cell.name}-{seeds_name(some)}"
                if len(some_tasks) < len(cell.tasks):
                    name += "-" + "-".join(task.partition("_")[2] or task for task in some_tasks)
                yield finetune_job(cell, unused(name, names), some_tasks, some, source)


def finetune_job(cell: GridCell, name: str, tasks: tuple[str, ...], seeds: tuple[int, ...], source: Job | None) -> Job:
    folder = () if source is None else (f"{OUT}/{source.name}",)
    words = ("finetune", *folder, "--task", *tasks, *cell.words, "--seeds", seeds_text(seeds), "--out", f"{OUT}/{name}")
    skills = cell.planned.run.objective.skills.dim if cell.planned.skill == "each" else 1
    runs = len(tasks) * len(seeds) * skills
    needs = () if source is None else (source.name,)
    return Job(name, "finetune", words, cell.name, seeds, tasks, needs, (f"{name}/result.json",), runs,
               runs * cell.planned.steps, cell.method, cell.env)  # fmt: skip


def figures_job(cell: GridCell, jobs: Sequence[Job]) -> Job:
    """The job that makes the table and figures of a maze study, from the seeds that these jobs train."""
    own = [job for job in jobs if job.cell == cell.name]
    seeds = [seed for seed in cell.seeds if any(seed in job.seeds for job in own)]
    words = ("maze", *cell.words, "--seeds", seeds_text(seeds), "--out", f"{OUT}/{cell.name}")
    name, needs = cell.name.replace("maze/", "figures/", 1), tuple(job.name for job in own)
    return Job(name, "figures", words, cell.name, tuple(seeds), needs=needs, proofs=(f"{cell.name}/summary.json",))

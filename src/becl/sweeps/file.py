"""Sweep files: TOML that says which runs there are to be; every mistake in it is reported with its line.

A file has blocks `[pretrain]`, `[finetune]` and `[maze]`, several of a kind as `[[pretrain]]`. Their keys are options
of the command of that name; a list of values is an axis of the grid. docs/sweeps.md describes them.
"""

import dataclasses
import functools
import itertools
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from becl.errors import UserError, unknown
from becl.options import OPTIONS
from becl.seeds import parse_seeds, to_seeds
from becl.specs import to_text

STAGES = ("pretrain", "finetune", "maze")
TOP = ("name", "out", "jobs", *STAGES)
JOBS = {"group": 1, "cpus": 1, "gpus": 0, "retries": 0}  # Keys of [jobs], with the least value of each.
# Options that the plan sets, rather than the file.
PLANNED = {"env", "method", "methods", "seeds", "run", "task", "scratch", "out", "dry_run", "demo", "workers"}
PLANNED |= {"train_only", "wandb", "trust"}
OWN = {
    "pretrain": ("name", "domains", "methods", "seeds"),
    "finetune": ("name", "domains", "methods", "tasks"),
    "maze": ("name", "methods", "seeds"),
}


KEY = r"""(?:"[^"]*"|'[^']*'|[\w-]+)"""  # A key as TOML writes it: bare, or in quotes.


class Lines:
    """On which lines the keys and blocks of a file are."""

    def __init__(self, name: str, text: str):
        self.name, self._text = name, text.splitlines()
        self._keys: dict[tuple[str, int, str], int] = {}
        self._blocks: dict[tuple[str, int], tuple[int, int]] = {}
        section, number, inner = "", 0, ""
        counts: dict[str, int] = {}
        for place, line in enumerate(self._text, 1):
            if header := re.match(r"\s*\[(\[?)\s*([^\[\]]+?)\s*\]", line):
                root, _, inner = header[2].partition(".")
                if header[1] and not inner:
                    counts[root] = counts.get(root, -1) + 1
                section, number = root, counts.get(root, 0)
                first = self._blocks.get((section, number), (place, place))[0]
                self._blocks[section, number] = first, place
            elif key := re.match(rf"\s*({KEY}(?:\s*\.\s*{KEY})*)\s*=", line):
                word = ".".join(part.strip("\"'") for part in re.findall(KEY, key[1]))
                self._keys[section, number, f"{inner}.{word}" if inner else word] = place
            if (section, number) in self._blocks:
                self._blocks[section, number] = self._blocks[section, number][0], place

    def of(self, section: str, number: int = 0, key: str = "") -> int:
        """The line of a key, or of its block if the key is not found."""
        for (*where, word), place in self._keys.items():
            if where == [section, number] and key and (word == key or word.startswith(key + ".")):
                return place
        if not section:
            return self._blocks.get((key, 0), (1, 1))[0]
        return self._blocks[section, number][0] if (section, number) in self._blocks else self.of("", 0, section)

    def holding(self, section: str, number: int, word: str) -> int | None:
        """The line of a block that holds a word."""
        first, last = self._blocks.get((section, number), (1, len(self._text)))
        whole = re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])")
        return next((place for place in range(first, last + 1) if whole.search(self._text[place - 1])), None)

    def wrong(self, error: UserError | str, section: str = "", number: int = 0, key: str | None = None) -> UserError:
        """An error with the line it is about: that of the key, or else that of the word in the message."""
        text = str(error)
        place = self.of(section, number, key or "")
        if key is None:
            option = re.search(r"--([a-z][a-z-]*)", text)
            named = re.search(r"'([^']+)'", text) or re.match(r"([\w.-]+)(?:=|:| \S+:| is not )", text)
            words = (named[1], named[1].rpartition(".")[2]) if named else ()  # A dotted path may span tables.
            found = next(filter(None, (self.holding(section, number, word) for word in words)), None)
            place = found or (self.of(section, number, option[1].replace("-", "_")) if option else place)
        return UserError(f"{self.name}, line {place}: {text}")


class Variant(NamedTuple):
    """One cell of a block's grid, apart from methods, domains, tasks and seeds."""

    label: str
    """The values on those axes that have several; empty if none has."""
    options: dict[str, Any]


@dataclass(frozen=True)
class Block:
    kind: str
    number: int
    """Its place among the blocks of its kind."""
    values: dict[str, Any]
    lines: Lines

    def wrong(self, error: UserError | str, key: str | None = None) -> UserError:
        return self.lines.wrong(error, self.kind, self.number, key)

    def names(self, key: str, default: Sequence[str] = ()) -> tuple[str, ...]:
        """A value that is a name or a list of them."""
        value = self.values.get(key, list(default))
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise self.wrong(f"{key}: expected a name or a list of names, not {value!r}", key)
        if key in self.values and not listed:
            raise self.wrong(f"{key}: the list is empty, and so is the grid", key)
        if repeated := [one for one in listed if listed.count(one) > 1]:
            raise self.wrong(f"{key}: {repeated[0]} given more than once", key)
        return tuple(listed)

    @property
    def seeds(self) -> tuple[int, ...]:
        value = self.values.get("seeds", 1)
        try:
            seeds = parse_seeds(value) if isinstance(value, str) else to_seeds(value)
            if len({*seeds}) < len(seeds):
                raise UserError("seeds: a seed is given more than once")
            return seeds
        except UserError as error:
            raise self.wrong(error, "seeds") from None

    def variants(self, without: Sequence[str] = ()) -> list[Variant]:
        """The grid of all other options, leaving out those that do not matter."""
        axes = []
        for name, value in self._flat():
            if name in without:
                continue
            several = isinstance(value, list) and name != "set"
            if several and not value:
                raise self.wrong(f"{name}: the list is empty, and so is the grid", name)
            if several and len({repr(one) for one in value}) < len(value):
                raise self.wrong(f"{name}: a value is given more than once", name)
            axes.append([(name, one, several and len(value) > 1) for one in (value if several else [value])])
        return [self._variant(cell) for cell in itertools.product(*axes)]

    def _flat(self) -> Iterator[tuple[str, Any]]:
        """Options of the command, with a table under `set` split into paths. They are sorted, so that lines of the file
        may change places."""
        for name, value in sorted(self.values.items()):
            if name in OWN[self.kind]:
                continue
            if name == "set" and isinstance(value, dict):
                yield from ((f"set.{path}", one) for path, one in sorted(dotted(value), key=lambda item: item[0]))
            elif name == "set":
                yield name, self._settings(value)
            else:
                yield name, value

    def _settings(self, value: Any) -> list[str]:
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
            raise self.wrong(f'set: expected a list of "OPTION=VALUE", or a table, not {value!r}', "set")
        return listed

    def _variant(self, cell: Iterable[tuple[str, Any, bool]]) -> Variant:
        options: dict[str, Any] = {}
        label = []
        for name, value, varies in cell:
            if isinstance(value, dict | list) and name != "set":
                raise self.wrong(f"{name}: {value!r} cannot be the value of an option", name)
            if name in self._switches and not isinstance(value, bool):
                raise self.wrong(f"{name}: expected true or false, not {value!r}", name)
            if name.startswith("set."):
                options.setdefault("set", {})[name[4:]] = value
            else:
                options[name] = value
            if varies:
                label.append(f"{name.rpartition('.')[2]}-{to_text(value)}")
        return Variant("-".join(label), options)

    @functools.cached_property
    def _switches(self) -> set[str]:
        """Options that are on or off."""
        return {field.name for field in dataclasses.fields(OPTIONS[self.kind]) if isinstance(field.default, bool)}


def dotted(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from dotted(value, f"{before}{name}.")
        else:
            yield before + name, value


def to_words(options: Mapping[str, Any]) -> list[str]:
    """Options as one would type them on the command line."""
    words = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            if isinstance(value, dict):
                value = [f"{path}={to_text(one)}" for path, one in value.items()]
            words += [flag, *(value if isinstance(value, list) else [to_text(value)])]
    return words


@dataclass(frozen=True)
class Jobs:
    """How jobs are run; the command line takes precedence."""

    group: int | None = None
    """How many runs at most are trained together; by default what is fast and fits."""
    cpus: int | None = None
    """Cores per job."""
    gpus: float | None = None
    """GPUs per job."""
    retries: int = 2
    """How often a job is tried again when it fails."""


def job_number(name: str, value: Any) -> int | float:
    """A value of `Jobs`, checked."""
    kinds = (int, float) if name == "gpus" else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds) or not JOBS[name] <= value < float("inf"):
        raise UserError(f"{name} {value}: expected a number of at least {JOBS[name]}")
    return float(value) if name == "gpus" else value


@dataclass(frozen=True)
class Sweep:
    """A sweep file whose keys are checked, but not its values yet."""

    name: str
    out: Path
    jobs: Jobs
    blocks: tuple[Block, ...]
    lines: Lines

    def of(self, kind: str) -> list[Block]:
        return [block for block in self.blocks if block.kind == kind]


def presets() -> dict[str, Any]:
    """The sweeps that come with becl, by name."""
    folder = resources.files("becl") / "data" / "sweeps"
    return dict(sorted((file.name.removesuffix(".toml"), file) for file in folder.iterdir()))


def read_sweep(word: str) -> Sweep:
    """Reads a file, or a preset by its name."""
    path = Path(word)
    if path.suffix != ".toml" and not path.is_file():
        if word not in presets():
            raise unknown("sweep", word, presets(), ["a file that ends in .toml"])
        return parse(word, presets()[word].read_text(encoding="utf-8"))
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a text file") from None
    return parse(path.name, text, path.stem)


def parse(source: str, text: str, name: str | None = None) -> Sweep:
    lines = Lines(source, text)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{source}: not valid TOML: {error}") from None
    except (ValueError, RecursionError) as error:  # A number or a list beyond what Python reads.
        raise UserError(f"{source}: not valid TOML for a sweep: {error}") from None
    check_keys(table, TOP, "at the top", lines, "")
    name = table.get("name", name or source)
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
        raise lines.wrong(f"name {name!r}: only letters, digits, '.', '_' and '-' are allowed", key="name")
    if not isinstance(table.get("out", ""), str):
        raise lines.wrong("out: expected the name of a folder", key="out")
    blocks = []
    for kind in STAGES:
        found = table.get(kind, [])
        for number, values in enumerate(found if isinstance(found, list) else [found]):
            if not isinstance(values, dict):
                raise lines.wrong(f"{kind}: expected a block [{kind}]", key=kind)
            check_keys(values, allowed_keys(kind), f"in [{kind}]", lines, kind, number)
            blocks.append(checked(Block(kind, number, values, lines)))
    if not any(block.kind in ("pretrain", "maze") for block in blocks):
        raise UserError(f"{source}: an empty grid: it has neither [pretrain] nor [maze]")
    out = Path(table["out"]) if "out" in table else Path("runs") / f"sweep-{name}"
    return Sweep(name, out, read_jobs(table.get("jobs", {}), lines), tuple(blocks), lines)


def checked(block: Block) -> Block:
    """Raises on values that a command line would read as something else."""
    if not isinstance(block.values.get("name", ""), str):
        raise block.wrong("name: expected a word", "name")
    for key, value in dotted(block.values):
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, str) and one.startswith("-"):
                raise block.wrong(f"{key}: {one!r} begins with a dash, like an option", key)
    return block


def read_jobs(values: Any, lines: Lines) -> Jobs:
    if not isinstance(values, dict):
        raise lines.wrong("jobs: expected a block [jobs]", key="jobs")
    check_keys(values, [*JOBS], "in [jobs]", lines, "jobs")
    found: dict[str, Any] = {}
    for key, value in values.items():
        try:
            found[key] = job_number(key, value)
        except UserError as error:
            raise lines.wrong(error, "jobs", 0, key) from None
    return Jobs(**found)


def allowed_keys(kind: str) -> list[str]:
    own = [field.name for field in dataclasses.fields(OPTIONS[kind]) if field.name not in PLANNED]
    return [*OWN[kind], *own]


def check_keys(
    table: Mapping[str, Any], allowed: Sequence[str], where: str, lines: Lines, section: str, number: int = 0
) -> None:
    for key in table:
        if key not in allowed:
            raise lines.wrong(unknown(f"key {where}", key, allowed), section, number, key)

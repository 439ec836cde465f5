"""What the field of a command's options says besides its type: its group in the help, and what its value is.

The word parser, the help and the completion of shells all read `options_of`.
"""

import contextlib
import dataclasses
import functools
import math
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from becl.errors import UserError
from becl.seeds import parse_seeds, seeds_text


class Positional:
    """Marks what is given by its place, without the option's name."""


class Group(NamedTuple):
    """Marks the first of some options that the help shows together."""

    title: str


class Value(NamedTuple):
    """What stands for an option's value in the help, and how words become one where the type does not say it."""

    name: str
    read: Callable[[Any], Any] | None = None
    """Reads one word, or all of them where there may be several."""
    several: bool = False
    text: Callable[[Any], str] = str
    """A value as the help shows it."""


def optional(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda word: None if word == "None" else read(word)


def count_or_seeds(seeds: Sequence[int]) -> str:
    """Seeds as the help shows them: a count where they begin at 0."""
    return str(len(seeds)) if list(seeds) == list(range(len(seeds))) else seeds_text(seeds)


def parse_time(text: str) -> float:
    """Seconds in a text such as 28m, 1h30m or 90s."""
    if found := re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?", text.strip()):
        with contextlib.suppress(ValueError):
            hours, minutes, seconds = (float(part or 0) for part in found.groups())
            if 0 < (total := 3600 * hours + 60 * minutes + seconds) < math.inf:
                return total
    raise UserError(f"--time-limit {text!r}: expected a time greater than 0, such as 28m, 1h30m or 90s")


Steps = Annotated[int, Value("STEPS")]
Width = Annotated[int, Value("WIDTH")]
Pixels = Annotated[int, Value("PIXELS")]
Time = Annotated[float | None, Value("TIME", optional(parse_time))]
Run = Annotated[Path, Value("RUN")]
Folder = Annotated[Path, Value("FOLDER")]
File = Annotated[Path, Value("FILE")]
Method = Annotated[str, Value("METHOD")]
Project = Annotated[str, Value("PROJECT")]
Seed = Annotated[int, Value("SEED")]
Seeds = Annotated[tuple[int, ...], Value("SEEDS", parse_seeds, text=count_or_seeds)]
SomeSeeds = Annotated[tuple[int, ...] | None, Value("SEEDS", optional(parse_seeds))]
Parts = Annotated[str | tuple[int, ...] | None, Value("PARTS", optional(str))]
Settings = Annotated[Sequence[str] | Mapping[str, Any], Value("OPTION=VALUE", tuple, several=True)]
"""`PATH=VALUE` each, or a mapping from paths to values that have their types already."""

Trust = Annotated[bool, Group("Code from elsewhere")]


@dataclass(frozen=True)
class CommandOption:
    """A field of a command's options, as the command line has it."""

    name: str
    kind: Any
    """Its type, without marks."""
    default: Any
    value: Value
    positional: bool
    group: str

    @property
    def word(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def required(self) -> bool:
        return self.default is dataclasses.MISSING

    @property
    def switch(self) -> bool:
        return self.kind is bool

    @property
    def several(self) -> bool:
        """Whether it takes any number of words."""
        return self.value.several or (self.value.read is None and typing.get_origin(self.kind) is tuple)

    @property
    def choices(self) -> tuple[str, ...]:
        """The words that its type allows, if these are few."""
        literal = [one for one in (self.kind, *typing.get_args(self.kind)) if typing.get_origin(one) is Literal]
        return typing.get_args(literal[0]) if literal else ()


@functools.cache
def options_of(kind: type) -> dict[str, CommandOption]:
    """All options of a command by the names of their fields, in their order."""
    plain, marked = typing.get_type_hints(kind), typing.get_type_hints(kind, include_extras=True)
    found, group = {}, "Options"
    for field in dataclasses.fields(kind):
        said = marks(marked[field.name])
        group = next((mark.title for mark in said if isinstance(mark, Group)), group)
        value = next((mark for mark in said if isinstance(mark, Value)), None)
        found[field.name] = CommandOption(
            field.name,
            plain[field.name],
            field.default,
            value or Value(usual_name(field.name, plain[field.name])),
            Positional in said,
            group,
        )
    return found


def marks(hint: Any) -> list[Any]:
    """All that a type and its parts are marked with."""
    own = getattr(hint, "__metadata__", ())
    return [*own, *(mark for part in typing.get_args(hint) for mark in (() if part in own else marks(part)))]


def usual_name(name: str, kind: Any) -> str:
    """What a value is called where its type is not marked."""
    kinds = [one for one in typing.get_args(kind) or (kind,) if one not in (type(None), ...)]
    return {int: "N", float: "NUMBER"}.get(kinds[0], name.upper())

"""Checks and changes of options that all experiments share."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from becl.errors import UserError, brief
from becl.nn.adam import Adam
from becl.nn.networks import hidden_widths
from becl.objectives import Objective
from becl.objectives.total import Sum, named_parts, with_option
from becl.specs import override, to_text

Run = TypeVar("Run")


class Setting(NamedTuple):
    """An option that has no flag of its own, and its value, which is text or already has its type."""

    path: str
    value: Any

    def __str__(self) -> str:
        return f"{self.path}={to_text(self.value)}"

    @property
    def first(self) -> str:
        """The first name of the path."""
        return self.path.partition(".")[0]


Given = Mapping[str, Any] | Sequence[str | Setting]
"""Settings as they are given: a mapping from paths to values, or a sequence."""


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Says of a mistake in a configuration in which file it is."""
    try:
        yield
    except UserError as error:
        said = str(error).removeprefix("--")
        raise UserError(f"{path}: {said}" if said.startswith("unknown") else f"{path} is damaged: {said}") from None
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged: {brief(error)}") from None


def settings_of(given: Given, example: str) -> Iterator[Setting]:
    """Yields settings, each option once; `example` is shown if a text is not `PATH=VALUE`."""
    if isinstance(given, Mapping):
        for path, value in given.items():
            if not isinstance(path, str):
                raise UserError(f"set={{{path!r}: ...}}: expected the path of an option, such as 'temperature'")
            yield Setting(path, value)
        return
    seen: dict[str, Setting] = {}
    for setting in _read(given, example):
        if setting.path in seen:
            raise UserError(f"--set: {seen[setting.path]} and {setting}, but an option has one value")
        seen[setting.path] = setting
        yield setting


def _read(given: Sequence[str | Setting], example: str) -> Iterator[Setting]:
    for one in given:
        if isinstance(one, Setting):
            yield one
            continue
        path, equals, value = one.partition("=")
        if not equals:
            raise UserError(f"--set {one!r}: expected {example}")
        yield Setting(path, value)


def change(run: Run, setting: Setting) -> Run:
    """A run with one option changed: its own, or its objective's, whose path may leave out `objective.`."""
    before: Any = run.objective  # type: ignore[attr-defined]
    own = {field.name for field in dataclasses.fields(run)}  # type: ignore[arg-type]
    if setting.first in own and not (setting.first == "objective" and isinstance(before, Sum)):
        return override(run, *setting)
    return dataclasses.replace(run, objective=with_option(before, *setting))  # type: ignore[type-var]


POSITIVE = ("temperature", "stddev", "feature_dim", "neighbours", "draws", "samples")


def positive_options(objective: Objective) -> dict[str, int | float]:
    """The options of an objective that must be above 0: some by their names, learning rates and widths by type."""
    found: dict[str, int | float] = {}
    for prefix, part in named_parts(objective):
        found |= {prefix + name: getattr(part, name) for name in POSITIVE if hasattr(part, name)}
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if isinstance(value, Adam):
                found[f"{prefix}{field.name}.learning_rate"] = value.learning_rate
        found |= {prefix + name: min(widths, default=1) for name, widths in hidden_widths(part)}
    return found


def check_positive(values: Mapping[str, int | float]) -> None:
    """Raises on numbers, given by the names of their options, that are not above 0."""
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise UserError(f"{name} {value:g}: must be greater than 0 and finite")


def check_least(option: str, value: int | None, least: int = 1) -> None:
    """Raises on a count that is too small; None leaves it to its default."""
    if value is not None and value < least:
        raise UserError(f"{option} {value}: at least {least} is needed")


def check_once(option: str, values: Sequence[Any]) -> None:
    """Raises on values that are given more than once."""
    if repeated := sorted({value for value in values if list(values).count(value) > 1}):
        raise UserError(f"{option}: {', '.join(map(str, repeated))} given more than once")


def check_seeds(seeds: Sequence[int]) -> None:
    if not seeds:
        raise UserError("--seeds: at least one is needed")
    check_once("--seeds", seeds)

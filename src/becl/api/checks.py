"""What Python callers pass: names of options and what has no option's type, refused before anything is done."""

import functools
import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from becl.errors import UserError, unknown
from becl.runs.callbacks import Callback

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
METHODS = [name for name in vars(Callback) if name.startswith("on_")]
"""Of a callback."""


def checked(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A function of the API whose options are refused with one line where there is none of that name, and where
    `quiet` or `callbacks` are not what they should be."""
    signature = inspect.signature(function)
    name = function.__name__

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        for given in kwargs:
            if given not in signature.parameters:
                raise unknown(f"option of {name}", given, [one for one in signature.parameters if one != "self"])
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise UserError(f"{name}: {error}") from None
        if not isinstance(bound.get("quiet", False), bool):
            raise UserError(f"quiet={bound['quiet']}: expected True or False")
        check_callbacks(bound.get("callbacks", ()))
        if not isinstance(bound.get("task", ""), str | Sequence | None):
            raise UserError(f"task={bound['task']!r}: expected the name of a task")
        return function(*args, **kwargs)

    return call


def check_callbacks(callbacks: Any) -> None:
    """Refuses what is not a list of callbacks."""
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise UserError(f"callbacks: expected a list of becl.Callback objects, not {kind_of(callbacks)}")
    for one in callbacks:
        if isinstance(one, type) or not all(hasattr(one, method) for method in METHODS):
            raise UserError(f"callbacks: {kind_of(one)} is no becl.Callback object")


def kind_of(value: Any) -> str:
    """What a value is, in a message."""
    return f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__}"


def to_path(name: str, value: Any) -> Path:
    """A path that was given as text or as a path."""
    if not isinstance(value, str | os.PathLike) or isinstance(os.fspath(value), bytes):
        raise UserError(f"{name}={value!r}: expected a path")
    return Path(value)

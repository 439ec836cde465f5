"""Mistakes of the person at the keyboard: one line saying what is wrong and what is allowed."""

import difflib
import re
from collections.abc import Iterable

CONTROLS = re.compile("[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]")
"""Characters that tell a terminal what to do, or turn the direction of a line, but for tabs and ends of lines."""


def printable(text: str) -> str:
    """Text of anybody's without control characters: they are shown as escapes."""
    return CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class UserError(ValueError):
    """Shown as one line; the program ends with exit code 2."""

    def __str__(self) -> str:
        return printable(super().__str__())


def unknown(kind: str, name: str, allowed: Iterable[str], others: Iterable[str] = ()) -> UserError:
    """The error for a name that is not in a list, with the nearest one that is; `others` only say what may stand."""
    allowed = list(allowed)
    close = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UserError(f"unknown {kind} {name!r}: {hint}allowed: {', '.join([*allowed, *others])}")


def brief(error: BaseException) -> str:
    """An error of somebody else's in one line."""
    text = str(error).strip()
    return printable(f"{type(error).__name__}: {text.splitlines()[0] if text else 'no message'}")


class Failed(Exception):
    """A run that cannot go on: one line of what happened and what to try."""

    def __str__(self) -> str:
        return printable(super().__str__())

"""Mistakes of the person at the keyboard: one line saying what is wrong and what is allowed."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Shown as one line; the program ends with exit code 2."""


def unknown(kind: str, name: str, allowed: Iterable[str], others: Iterable[str] = ()) -> UserError:
    """The error for a name that is not in a list, with the nearest one that is; `others` only say what may stand."""
    allowed = list(allowed)
    close = difflib.get_close_matches(name, allowed, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UserError(f"unknown {kind} {name!r}: {hint}allowed: {', '.join([*allowed, *others])}")


def brief(error: BaseException) -> str:
    """An error of somebody else's in one line."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"


class Failed(Exception):
    """A run that cannot go on: one line of what happened and what to try."""

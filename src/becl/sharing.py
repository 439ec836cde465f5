"""What others may read of a command line and of paths: nothing that only this machine knows."""

import contextlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path

ELSEWHERE = "..."
"""What stands for folders that are nobody else's business."""


def shared_command(command: str | None) -> str | None:
    """A command line for others to read: as it was typed, but for what comes before absolute paths.

    It can be run again from the same folder, except for paths outside of it and of one's home.
    """
    with contextlib.suppress(ValueError):  # It was changed by hand.
        return None if command is None else " ".join(_quoted(command))
    return command


def _quoted(command: str) -> Iterator[str]:
    for word in shlex.split(command):
        option, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
        near = shared_path(value)
        if not near.startswith("~/") or near == value:
            yield shlex.quote(option + equals + near)
        else:  # A shell knows it at the beginning of a word, and without quotes.
            yield from ([option] if option else [])
            yield "~/" + shlex.quote(near[2:])


def shared_text(text: str, folders: Iterable[Path] = ()) -> str:
    """A text without the beginnings of paths that only this machine knows: those of the working folder, of home, and of
    some more folders."""
    begins = {f"{folder.absolute()}/": f"{ELSEWHERE}/" for folder in folders}
    begins |= {f"{os.path.expanduser('~')}/": "~/", f"{os.getcwd()}/": ""}
    for begin in sorted(begins, key=len, reverse=True):
        if len(begin) > 2:  # Not the root.
            text = re.sub(rf"(?<![\w.~/-]){re.escape(begin)}", begins[begin], text)
    return text


def shared_path(text: str) -> str:
    """A path without what only this machine knows: from the working folder, from home, or just its name."""
    if not os.path.isabs(text):
        return text
    if not (near := os.path.relpath(text)).startswith(os.pardir):
        return near
    home = os.path.expanduser("~")
    if len(home) > 1 and not (near := os.path.relpath(text, home)).startswith(os.pardir):
        return f"~/{near}"
    return f"{ELSEWHERE}/{Path(text).name}"

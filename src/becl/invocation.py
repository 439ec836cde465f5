"""How this program was called: its version and the command line."""

from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version

COMMAND: ContextVar[str | None] = ContextVar("command", default=None)
"""The command line under way; None when called from Python."""


def own_version() -> str | None:
    """None where becl is run from a source tree and not installed."""
    try:
        return version("becl")
    except PackageNotFoundError:
        return None

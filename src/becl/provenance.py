"""Where a result comes from: the command, the versions, the machine."""

import platform
from contextvars import ContextVar
from typing import Any

COMMAND: ContextVar[str | None] = ContextVar("command", default=None)
"""The command line under way; None when called from Python."""


def device_name() -> str:
    import jax

    devices = jax.device_count()
    kind = jax.devices()[0].device_kind
    return kind if devices == 1 else f"{devices} × {kind}"


def provenance() -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    import jax

    try:
        own = version("becl")
    except PackageNotFoundError:  # Run from a source tree.
        own = None
    return {
        "command": COMMAND.get(),
        "becl": own,
        "device": device_name(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }

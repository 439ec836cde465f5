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


def own_version() -> str | None:
    """None where becl is run from a source tree and not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("becl")
    except PackageNotFoundError:
        return None


def provenance() -> dict[str, Any]:
    import jax

    return {
        "command": COMMAND.get(),
        "becl": own_version(),
        "device": device_name(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }

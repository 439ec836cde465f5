"""Where a result comes from: the command, the versions, the machine."""

import platform
from typing import Any

import jax

from becl.invocation import COMMAND, own_version
from becl.sharing import shared_command


def device_name() -> str:
    devices = jax.device_count()
    kind = jax.devices()[0].device_kind
    return kind if devices == 1 else f"{devices} × {kind}"


def provenance() -> dict[str, Any]:
    return {
        "command": shared_command(COMMAND.get()),
        "becl": own_version(),
        "device": device_name(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }

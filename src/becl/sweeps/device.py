"""The device that the jobs of a sweep run on."""

from typing import NamedTuple

import jax

from becl.experiments.memory import available_memory


class Device(NamedTuple):
    """A device that jobs run on."""

    kind: str
    memory: int
    accelerator: bool


def device_here() -> Device:
    """The device that this process computes on."""
    one = jax.local_devices()[0]
    return Device(one.device_kind, available_memory(), one.platform != "cpu")

"""The cores this process may use."""

import os


def available_cores() -> list[int]:
    """Their numbers, in order; as many as the machine has where the system does not say which are ours."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))

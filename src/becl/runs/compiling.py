"""Time in which JAX compiles while a bar is shown: said, and left out of the rate and of the time left."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import jax.monitoring

from becl.runs.progress import Progress
from becl.runs.progress import progress as plain_progress

TRACED, LOWERED, COMPILED = (
    f"/jax/core/compile/{what}_duration" for what in ("jaxpr_trace", "jaxpr_to_mlir_module", "backend_compile")
)
"""What JAX tells its listeners when it is over, in this order for every program."""


@contextlib.contextmanager
def progress(total: int, unit: str) -> Iterator[Progress]:
    """Progress on standard error, of work that is done by programs of JAX."""
    with plain_progress(total, unit) as bar, watch_compiling(bar):
        yield bar


@contextlib.contextmanager
def watch_compiling(bar: Progress) -> Iterator[None]:
    """Tells a bar of what this thread compiles; others compile while the work goes on."""
    thread = threading.get_ident()

    def hear(event: str, duration_secs: float, **kwargs: Any) -> None:
        if threading.get_ident() != thread or event not in (TRACED, LOWERED, COMPILED):
            return
        bar.leave_out(duration_secs)
        if event == LOWERED:  # Compiling follows, which takes longest.
            bar.begin_compiling()
        elif event == COMPILED:
            bar.end_compiling()

    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        yield
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)

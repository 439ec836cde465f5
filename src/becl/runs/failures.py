"""What can go wrong outside a run's control, in one line with what to do about it."""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

import jax

from becl.errors import Failed
from becl.learning.training import EnvironmentFailed
from becl.runs.checkpoint import Checkpoints
from becl.runs.inside import remove_inside
from becl.runs.writing import write_text


@contextlib.contextmanager
def explained(out: Path) -> Iterator[None]:
    """Ends a run with advice instead of a page of trace: full disks, missing memory, environments that crash."""
    with contextlib.suppress(OSError):
        remove_inside(out, ["error.log"])  # Of an earlier try.
    try:
        yield
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise Failed(f"cannot write in {out}: {why}; {last_checkpoint(out)}") from None
    except MemoryError:
        raise Failed(f"out of memory on this machine; {LESS}; {last_checkpoint(out)}") from None
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error) and "out of memory" not in str(error).lower():
            raise
        raise Failed(f"out of memory on the device; {LESS}; {last_checkpoint(out)}") from None
    except EnvironmentFailed as error:
        with contextlib.suppress(OSError):
            write_text(out / "error.log", "".join(traceback.format_exception(error.__cause__)))
        raise Failed(f"{error} (see {out / 'error.log'}); {last_checkpoint(out)}") from error.__cause__


LESS = "train fewer seeds together, or --set a smaller replay.capacity or batch"


def last_checkpoint(out: Path) -> str:
    steps = Checkpoints(out / "checkpoint", {}).steps()
    return f"becl resume {out} continues after {steps[-1]:,} steps" if steps else "there is no checkpoint yet"

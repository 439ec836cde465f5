"""Programs that are run in a process of their own, because they may crash or hang."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator


@contextlib.contextmanager
def started(words: list[str], variables: dict[str, str]) -> Iterator[subprocess.Popen]:
    """A process that is gone afterwards, with all that it has started."""
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=os.environ | variables,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            kill(process)
            process.communicate()


def ended(process: subprocess.Popen, seconds: float) -> tuple[int | None, str, str]:
    """Exit code, what was printed, and errors; no code where the time was up."""
    try:
        out, error = process.communicate(timeout=max(seconds, 0.01))
        return process.returncode, out, error
    except subprocess.TimeoutExpired:
        kill(process)
        out, error = process.communicate()
        return None, out, error


def kill(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()


def exit_text(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    with contextlib.suppress(ValueError):
        return f"crashed ({signal.Signals(-code).name})"
    return f"crashed ({-code})"


def final_line(error: str) -> str:
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "without a word"

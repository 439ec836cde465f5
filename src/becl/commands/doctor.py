"""`becl doctor`: what of this machine works, and what to do about what does not.

The checks are in `machine`. What is known to crash or hang where drivers are broken (JAX on its devices, the
simulators, rendering) runs in a process of its own with a time limit. Elsewhere an exception becomes a line.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from becl.commands.machine import (
    DRIVERS,
    REPAIR,
    Line,
    check_cores,
    check_devices,
    check_disk,
    check_extras,
    check_memory,
    check_packages,
    check_python,
    check_rendering,
    check_simulators,
    look,
)
from becl.errors import UserError
from becl.options import DoctorOptions
from becl.processes import ended, exit_text, final_line, started
from becl.runs.writing import write_text


class Apart(NamedTuple):
    """A check in a process of its own."""

    name: str
    seconds: float
    """After which it is ended."""
    advice: str
    """Where it crashes or hangs."""


def run(options: DoctorOptions) -> int:
    folder = options.out or (Path("runs") if Path("runs").is_dir() else Path())
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder} is a file; name a folder")
    if options.json is not None:
        check_file(options.json)
    print("looking at this machine: about 10 seconds", flush=True)
    began = time.perf_counter()
    lines = examine(folder)
    seconds = time.perf_counter() - began
    show(lines, seconds)
    broken = [line for line in lines if line.status == "broken"]
    if options.json is not None:
        write_json(options.json, lines, seconds)
    print(f"{len(broken)} of {len(lines)} checks broken" if broken else "all that is needed works")
    print("to complete commands and names with the Tab key: becl completion --help")
    return 1 if broken else 0


def check_file(path: Path) -> None:
    if path.is_dir():
        raise UserError(f"--json {path} is a folder; name a file")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise UserError(f"--json {path}: no permission to write, or no such folder")


def examine(folder: Path) -> list[Line]:
    """All checks, one after another."""
    lines: list[Line] = []
    for name, check in CHECKS.items():
        lines += look(name, partial(look_apart, check) if isinstance(check, Apart) else check)
    lines += look("rendering", check_rendering)
    return lines + look("disk", partial(check_disk, folder))


# --- In a process of its own ------------------------------------------------------------------------------------------


def look_apart(check: Apart) -> list[Line]:
    """Lines that a check prints in another process; one more where it crashes or is too slow."""
    # Memory of a device is left to whoever uses it now.
    variables = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with started(child(check.name), variables) as process:
        code, out, error = ended(process, check.seconds)
    # A process that is ended may leave half a line.
    whole = out[: out.rfind("\n") + 1].splitlines()
    lines = [Line(**json.loads(text)) for text in whole if text.startswith('{"check"')]
    if code is None:
        lines.append(Line(check.name, "broken", f"no answer within {check.seconds:g} s", check.advice))
    elif code != 0:
        lines.append(Line(check.name, "broken", f"{exit_text(code)}: {final_line(error)}", check.advice))
    return lines


def child(name: str) -> list[str]:
    return [sys.executable, "-P", "-c", f"from becl.commands.doctor import tell; tell({name!r})"]


def tell(name: str) -> None:
    """The other side: prints lines as soon as they are there."""
    for line in IN_CHILD[name]():
        print(json.dumps(vars(line)), flush=True)


# --- What is shown ----------------------------------------------------------------------------------------------------

CHECKS: dict[str, Callable[[], list[Line]] | Apart] = {
    "python": check_python,
    "packages": check_packages,
    "extras": check_extras,
    "cores": check_cores,
    "memory": check_memory,
    "devices": Apart("devices", 60.0, DRIVERS),
    "simulators": Apart("simulators", 60.0, f"unset MUJOCO_GL; else {REPAIR} mujoco jax"),
}
IN_CHILD: dict[str, Callable[[], Iterator[Line]]] = {"devices": check_devices, "simulators": check_simulators}
"""What `tell` does in the process of a check that is `Apart`."""


def show(lines: list[Line], seconds: float) -> None:
    rows = [(line.check, line.status, line.found, line.advice) for line in lines]
    title = f"this machine, looked at in {seconds:.0f} s"
    try:
        from becl.terminal import console, table

        shown = table(title, ("check", "", "found", "what to do"), rows)
    except Exception:  # What the table needs may be what is broken.
        print(title, *(" · ".join(filter(None, row)) for row in rows), sep="\n")
        return
    console().print(shown)


def write_json(path: Path, lines: list[Line], seconds: float) -> None:
    ok = all(line.status != "broken" for line in lines)
    report = {"ok": ok, "seconds": round(seconds, 1), "checks": [vars(line) for line in lines]}
    try:
        write_text(path, json.dumps(report, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from None

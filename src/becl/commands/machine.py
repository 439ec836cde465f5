"""What works on this machine: one function a check, each gives lines of the table of `becl doctor`.

Nothing but `becl` itself is imported before its check, so that a broken package cannot keep the others from being
looked at.
"""

import contextlib
import importlib.util
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from becl.cores import available_cores
from becl.errors import UserError
from becl.invocation import checkout, own_version, to_install
from becl.processes import ended, exit_text, final_line
from becl.views.gl import drawing

Status = Literal["ok", "note", "broken"]
LIBRARIES = ("jaxlib", "numpy", "mujoco", "dm_control", "gymnasium", "jax", "equinox", "safetensors")
BACK_ENDS = {
    "egl": "apt install --no-install-recommends libegl1 libgl1",
    "osmesa": "apt install --no-install-recommends libosmesa6",
    "glfw": "pip install glfw, and a display",
}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WRITTEN = 64 * 2**20  # Bytes of the file that writing is timed with.
LITTLE = 2 * 10**9  # Bytes free, below which a run may not fit.
EXACT = 5e-5  # Products in float32 are better than this, relative to their usual size; those in TF32 are not.
REPAIR = f"pip install --force-reinstall {checkout() or '.'}"
DRIVERS = f"see whether JAX_PLATFORMS=cpu helps; if so, update the driver or {to_install('cuda')} again"


@dataclass(frozen=True)
class Line:
    """What a check found."""

    check: str
    status: Status
    """note: not needed, or works less well than it could. broken: needed."""
    found: str
    advice: str = ""
    """What to install or do."""
    data: dict[str, Any] = field(default_factory=dict)
    """The same as numbers, for --json."""


def look(name: str, check: Callable[[], list[Line]]) -> list[Line]:
    """Lines of a check; one that fails is a line too."""
    try:
        return check()
    except UserError as error:  # Says what to do.
        return [Line(name, "broken", str(error))]
    except Exception as error:
        return [Line(name, "broken", last_words(error), REPAIR)]


def last_words(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__


# --- Versions ---------------------------------------------------------------------------------------------------------


def check_python() -> list[Line]:
    own = own_version() or "not installed, run from its source"
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    data = {"python": platform.python_version(), "becl": own, "system": system}
    return [Line("python", "ok", f"Python {data['python']}, becl {own}, {system}", data=data)]


def check_packages() -> list[Line]:
    """All that becl asks for, in versions that it can use."""
    from importlib.metadata import PackageNotFoundError, version

    asked = requirements()
    found, lines = {}, []
    for name in dict.fromkeys([*LIBRARIES, *asked]):
        install = f"pip install '{asked.get(name, name)}'"
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            lines.append(Line("packages", "broken", f"{name} is not installed", install))
            continue
        if name in asked and not asked[name].specifier.contains(found[name], prereleases=True):
            needed = f"{name} {found[name]}; {asked[name].specifier} is needed"
            lines.append(Line("packages", "broken", needed, install))
    text = ", ".join(f"{name} {found[name]}" for name in sorted(found))
    return [Line("packages", "ok", text, data=found), *lines]


def requirements() -> dict[str, Any]:
    """What becl asks for by name; nothing where that cannot be known."""
    from importlib.metadata import PackageNotFoundError, requires

    try:
        from packaging.requirements import Requirement

        asked = [Requirement(text) for text in requires("becl") or []]
    except (ImportError, PackageNotFoundError):
        return {}
    return {
        one.name.replace("-", "_"): one for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})
    }


def check_extras() -> list[Line]:
    """What some commands can use and none needs."""
    lines = []
    uses = {
        "onnx": "to export policies as ONNX",
        "ray": "to run on several machines",
        "wandb": "to log to Weights & Biases",
    }
    for name, use in uses.items():
        if importlib.util.find_spec(name) is not None:
            lines.append(Line(name, "ok", version_of(name), data={"version": version_of(name)}))
        else:
            lines.append(Line(name, "note", f"not installed ({use})", to_install(name)))
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is not None:
        return [*lines, Line("chromium", "ok", browser, data={"path": browser})]
    absent = "not found (any browser opens reports; tests of pages use it)"
    return [*lines, Line("chromium", "note", absent, "apt install chromium")]


def version_of(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "present"


# --- Cores and memory -------------------------------------------------------------------------------------------------


def check_cores() -> list[Line]:
    usable, all_cores, quota = len(available_cores()), os.cpu_count() or 1, core_quota()
    data: dict[str, Any] = {"usable": usable, "cores": all_cores, "quota": quota}
    text = f"{usable} usable of {all_cores}"
    if set_threads := os.environ.get("OMP_NUM_THREADS"):
        text += f", OMP_NUM_THREADS={set_threads}"
        data["OMP_NUM_THREADS"] = set_threads
    if quota is not None and quota < usable:
        text += f", but time of only {quota:g}"
        return [Line("cores", "note", text, "raise the container's CPU limit, or pin to as many: taskset", data)]
    return [Line("cores", "ok", text, data=data)]


def core_quota(path: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """Cores' worth of time that a container may use."""
    with contextlib.suppress(OSError, ValueError):
        limit, period = path.read_text().split()
        return int(limit) / int(period)
    return None


def check_memory() -> list[Line]:
    """Checks the memory of the host."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = available_memory()
    limit = memory_limit()
    usable = min(value for value in (total, limit) if value is not None)
    data = {"total": total, "available": free, "limit": limit}
    text = f"{size(usable)}" + (f", {size(free)} available" if free is not None else "")
    text += f" (limit of the container; the machine has {size(total)})" if limit is not None and limit < total else ""
    if min(usable, free if free is not None else usable) < LITTLE:
        return [Line("memory", "note", text, "train with a smaller replay: --set replay.capacity=100000", data)]
    return [Line("memory", "ok", text, data=data)]


def available_memory(path: Path = Path("/proc/meminfo")) -> int | None:
    with contextlib.suppress(OSError, StopIteration, ValueError, IndexError):
        line = next(line for line in path.read_text().splitlines() if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return None


def memory_limit(path: Path = Path("/sys/fs/cgroup/memory.max")) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        return int(path.read_text())
    return None


def size(number: int | float) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e8 else f"{number / 1e6:.0f} MB"


# --- Devices and precisions (in a process of its own) -----------------------------------------------------------------


def check_devices() -> Iterator[Line]:
    """Each device that JAX sees adds up some numbers; then the speed of products on the first."""
    import jax

    try:
        devices = jax.devices()
    except Exception as error:
        wanted = os.environ.get("JAX_PLATFORMS")
        said = f"JAX finds no device (JAX_PLATFORMS={wanted})" if wanted else "JAX finds no device"
        yield Line("devices", "broken", f"{said}: {last_words(error)}", "unset JAX_PLATFORMS" if wanted else DRIVERS)
        return
    for device in devices:
        yield check_device(device)
    if devices[0].platform != "cpu":
        yield check_device(jax.devices("cpu")[0])  # Finetuned policies are evaluated there.
    elif Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi") is not None:
        yield Line("devices", "note", "there is an NVIDIA card, but JAX sees no GPU", to_install("cuda"))
    yield from check_precisions(devices[0])


def check_device(device: Any) -> Line:
    import jax
    import numpy as np

    name, kind = f"device {device.platform}:{device.id}", device.device_kind
    try:
        total = jax.jit(lambda x: (x @ x.T).sum())(jax.device_put(np.ones((64, 64), np.float32), device))
        stats = device.memory_stats() or {}
        if float(total) != 64**3:
            return Line(name, "broken", f"{kind} computes wrong sums", "another driver, or another device")
    except Exception as error:
        advice = f"another process may use up its memory; else {to_install('cuda')} again, or JAX_PLATFORMS=cpu"
        return Line(name, "broken", f"{kind}: {last_words(error)}", advice)
    data = {"platform": device.platform, "kind": kind, "memory": stats.get("bytes_limit")}
    text = f"{kind} computes"
    if "bytes_limit" in stats:
        text += f", {size(stats['bytes_limit'])} for JAX, {size(stats.get('bytes_in_use', 0))} in use"
    return Line(name, "ok", text, data=data)


def check_precisions(device: Any) -> Iterator[Line]:
    """Products as networks compute them: rounded as they should be, and how fast."""
    import numpy as np

    from becl.nn.precision import fastest

    allowed = {"float32": EXACT, "tf32": 5e-3, "bf16": 5e-2}
    width = 512 if device.platform == "cpu" else 4096
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(width, width)).astype(np.float32) for _ in range(2))
    true = x[:8].astype(np.float64) @ y.astype(np.float64)
    slow = 0.0
    for precision, bound in allowed.items():
        name = f"precision {precision}"
        try:
            product, rate = time_product(precision, x, y, device)
        except Exception as error:
            yield Line(name, "broken", last_words(error), f"train with another --precision than {precision}")
            continue
        off = float(np.abs(product[:8] - true).max() / true.std())
        slow = slow or rate
        data = {"gflops": round(rate, 1), "ratio": round(rate / slow, 2), "error": off}
        text = f"{rate:,.0f} GFLOP/s, {rate / slow:.1f} × float32, off by {off:.0e}"
        if not off <= bound:
            yield Line(name, "broken", text, f"wrong results: train with another --precision than {precision}", data)
            continue
        if precision == "tf32" and off <= EXACT:
            text += " (no TF32 here: it is float32)"
        if precision == fastest():
            text += ", the default here"
        slower = precision == "bf16" and rate < 0.8 * slow
        advice = "slower than float32 here: leave --precision as it is" if slower else ""
        yield Line(name, "note" if slower else "ok", text, advice, data)


def time_product(precision: Any, x: Any, y: Any, device: Any, seconds: float = 0.3) -> tuple[Any, float]:
    """A product and how many billion operations a second go into it."""
    import jax
    import numpy as np

    from becl.nn.precision import affine, computing

    with computing(precision):
        multiply = jax.jit(lambda x, y: affine(x, y, jax.numpy.zeros(y.shape[1])))
        x, y = jax.device_put((x, y), device)
        result = jax.block_until_ready(multiply(x, y))  # Compiles.
        times, until = [], time.perf_counter() + seconds
        while len(times) < 2 or time.perf_counter() < until:
            began = time.perf_counter()
            jax.block_until_ready([multiply(x, y) for _ in range(8)])
            times.append((time.perf_counter() - began) / 8)
    rate = 2 * len(x) ** 3 / min(times) / 1e9
    return np.asarray(result, np.float64), rate


# --- Simulators (in a process of its own) -----------------------------------------------------------------------------


def check_simulators() -> Iterator[Line]:
    """A robot and a maze make some steps."""
    from becl import envs
    from becl.envs.maze import Maze
    from becl.envs.maze_batch import MazeBatch

    makers: dict[str, Callable[[], Any]] = {
        "robot": lambda: envs.make("walker_run", 4),
        "maze": lambda: MazeBatch(Maze("square_a"), 4),
    }
    for name, make in makers.items():
        yield from look(name, lambda make=make, name=name: [take_steps(name, make())])


def take_steps(name: str, environments: Any, count: int = 50) -> Line:
    import numpy as np

    rng = np.random.default_rng(0)
    with contextlib.closing(environments):
        environments.reset()
        shape = (environments.num_envs, environments.spec.action_dim)
        environments.step(np.zeros(shape, np.float32))  # Compiles.
        began = time.perf_counter()
        for _ in range(count):
            step = environments.step(rng.uniform(-1, 1, shape).astype(np.float32))
            if not np.isfinite(step.next_obs).all():
                return Line(name, "broken", "observations are not finite", "pip install --force-reinstall mujoco jax")
    rate = count * environments.num_envs / (time.perf_counter() - began)
    return Line(
        name, "ok", f"{rate:,.0f} steps/s, {environments.num_envs} together", data={"steps_per_second": round(rate)}
    )


# --- Rendering --------------------------------------------------------------------------------------------------------


def check_rendering(seconds: float = 10.0) -> list[Line]:
    """A small picture by each back end, side by side, each in a process of its own."""
    lines: list[Line] = []
    with contextlib.ExitStack() as stack:
        processes = {name: stack.enter_context(drawing(name)) for name in BACK_ENDS}
        until = time.perf_counter() + seconds
        for name, process in processes.items():
            code, _, error = ended(process, until - time.perf_counter())
            if code == 0:
                lines.append(Line(f"rendering {name}", "ok", "draws a picture", data={"draws": True}))
                continue
            found = f"no picture within {seconds:g} s" if code is None else final_line(error)
            if code is not None and code < 0:
                found = exit_text(code)
            lines.append(Line(f"rendering {name}", "note", found, BACK_ENDS[name], {"draws": False}))
    return [*lines, choice_of(lines, os.environ.get("MUJOCO_GL", ""))]


def choice_of(lines: list[Line], chosen: str) -> Line:
    """What MUJOCO_GL is, and should be."""
    working = [line.check.partition(" ")[2] for line in lines if line.status == "ok"]
    data = {"MUJOCO_GL": chosen, "working": working}
    said = f"MUJOCO_GL={chosen}" if chosen else "MUJOCO_GL is not set"
    if not working:
        return Line("rendering", "note", f"{said}; no back end draws: films are made by casting rays, slowly",
                    "install one of the above", data)  # fmt: skip
    if chosen.lower() not in working:
        return Line("rendering", "note", f"{said}; {', '.join(working)} draws", f"export MUJOCO_GL={working[0]}", data)
    return Line("rendering", "ok", said, data=data)


# --- Disk -------------------------------------------------------------------------------------------------------------


def check_disk(folder: Path) -> list[Line]:
    """Free space, and how fast a file is written that nobody ever sees."""
    place = next(one for one in (folder, *folder.absolute().parents) if one.is_dir())
    free = shutil.disk_usage(place).free
    if free < 2 * WRITTEN:
        return [Line("disk", "broken", f"{folder}: {size(free)} free", "make room, or choose another --out")]
    block = os.urandom(2**20)
    began = time.perf_counter()
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            for _ in range(WRITTEN // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            rate = WRITTEN / (time.perf_counter() - began)
    except OSError as error:
        return [Line("disk", "broken", f"cannot write in {place}: {error.strerror}", "choose another --out")]
    data = {"folder": str(folder), "free": free, "bytes_per_second": round(rate)}
    text = f"{folder}: {size(free)} free, written at {rate / 1e6:,.0f} MB/s"
    if free < LITTLE:
        return [Line("disk", "note", text, "a long run may not fit: make room, or choose another --out", data)]
    return [Line("disk", "ok", text, data=data)]

"""Sweeps on Ray: what is killed or stopped goes on, nothing listens beyond this machine, and mistakes are one line."""

import contextlib
import csv
import importlib.util
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import safetensors.numpy

from becl.commands.cli import main
from becl.sweeps.jobs import read_attempts, read_status

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
    pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads /proc, which only Linux has"),
]

FILE = """
[pretrain]
domains = ["square_a"]
methods = ["diayn", "rnd"]
seeds = 2
steps = 6000
envs = 2
hidden = 8
log_every = 500
checkpoint_every = 100
set = ["batch=16", "random_steps=20", "replay.capacity=500"]
"""
JOBS = ("square_a-diayn", "square_a-rnd")
LONGEST = 600.0  # Seconds that anything may take, on a machine that has much else to do.


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a sweep's file."""
    folder = tmp_path_factory.mktemp("sweeps")
    (folder / "sweep.toml").write_text(FILE)
    return folder


def begin(place: Path, out: str, *words: str, **variables: str) -> subprocess.Popen[str]:
    """The driver of a sweep, in a process group of its own, as a shell would have it."""
    cached = {
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(place / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    return subprocess.Popen(
        [sys.executable, "-m", "becl", "sweep", "sweep.toml", "--out", out, *words],
        cwd=place, env=os.environ | cached | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def end(driver: subprocess.Popen[str]) -> tuple[int, str, str]:
    said, wrong = driver.communicate(timeout=LONGEST)
    return driver.returncode, said, wrong


@contextlib.contextmanager
def killed_at_last(driver: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """Ray's processes end soon after that of their driver."""
    try:
        yield driver
    finally:
        driver.kill()
        driver.communicate()


def until(true: Callable[[], Any], driver: subprocess.Popen[str]) -> None:
    """Waits for something, of a driver that is not to end before."""
    deadline = time.monotonic() + LONGEST
    while not true():
        if driver.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"it did not come to that: {end(driver) if driver.poll() is not None else 'too slow'}")
        time.sleep(0.01)


def training(out: Path, job: str) -> int | None:
    """The process of a job that has written a checkpoint."""
    facts, alive = read_status(out / "jobs" / f"pretrain-{job}")
    with contextlib.suppress(OSError):  # Old ones are removed meanwhile.
        if alive and any(path.stat().st_mtime > facts["began"] for path in checkpoints(out, job)):
            return int(facts["pid"])
    return None


def checkpoints(out: Path, job: str) -> list[Path]:
    return list((out / "pretrain" / job / "checkpoint").glob("step-*.json"))


def last_checkpoint(out: Path, job: str) -> int:
    return max(int(path.stem.partition("-")[2]) for path in checkpoints(out, job))


# --- What listens -----------------------------------------------------------------------------------------------------


class Listener(NamedTuple):
    program: str
    address: ipaddress.IPv4Address | ipaddress.IPv6Address

    @property
    def local(self) -> bool:
        mapped = getattr(self.address, "ipv4_mapped", None)
        return (mapped or self.address).is_loopback


def listeners(pids: set[int]) -> list[Listener]:
    """Addresses on which processes accept TCP connections."""
    sockets: dict[str, Any] = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        rows = Path(table).read_text().splitlines()[1:] if Path(table).exists() else []
        for row in map(str.split, rows):
            if row[3] == "0A":
                # Words of four bytes, each as the processor has it.
                words = bytes.fromhex(row[1].partition(":")[0])
                ordered = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                sockets[f"socket:[{row[9]}]"] = ipaddress.ip_address(ordered)
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            program = Path(f"/proc/{pid}/comm").read_text().strip()
            for handle in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if (link := os.readlink(handle)) in sockets:
                        found.append(Listener(program, sockets[link]))
    return found


def family(pid: int) -> set[int]:
    """A process and all that come from it."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def programs(pids: set[int]) -> list[str]:
    """Those that run."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            name, _, rest = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")
            found += [] if rest.split()[0] == "Z" else [name]
    return found


@pytest.fixture(scope="module")
def calm(place) -> tuple[Path, list[Listener]]:
    """A sweep that is left alone, and what listened while its jobs ran."""
    out = place / "calm"
    with killed_at_last(begin(place, "calm")) as driver:
        until(lambda: any(training(out, job) for job in JOBS), driver)
        heard = listeners(family(driver.pid))
        code, said, wrong = end(driver)
    assert code == 0, wrong
    assert "3 of 3 jobs done, 0 failed" in said
    assert wrong == "" or "jobs done ·" in wrong  # No warnings of Ray's or JAX's.
    return out, heard


def test_nothing_listens_beyond_this_machine(calm):
    _, heard = calm
    assert {"gcs_server", "raylet"} <= {one.program for one in heard}
    assert [one for one in heard if not one.local] == []


@pytest.mark.parametrize(("address", "local"), [("0.0.0.0", False), ("::", False), ("127.0.0.1", True)])
def test_listeners_are_found(address, local):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as one:
        try:
            one.bind((address, 0))
        except OSError:
            pytest.skip(f"no {address} here")
        one.listen()
        found = [other for other in listeners(family(os.getpid())) if str(other.address) == address]
        assert [other.local for other in found] == [local] * len(found)
        assert found


# --- What goes on -----------------------------------------------------------------------------------------------------


def results(out: Path, job: str) -> dict[str, Any]:
    """Networks to the bit, and metrics without what a clock decides."""
    folder = out / "pretrain" / job
    found: dict[str, Any] = {}
    for path in folder.glob("seed-*/snapshot-6000.safetensors"):
        arrays = safetensors.numpy.load(path.read_bytes())
        found |= {f"{path.parent.name} {name}": (str(one.dtype), one.tobytes()) for name, one in arrays.items()}
    assert len(found) > 20
    with (folder / "metrics.csv").open() as file:
        rows = [{k: v for k, v in row.items() if k != "steps_per_second"} for row in csv.DictReader(file)]
    return found | {"metrics": rows, "steps": json.loads((folder / "result.json").read_text())["steps"]}


def codes(out: Path, job: str) -> list[int]:
    return [row["code"] for row in read_attempts(out / "jobs" / f"pretrain-{job}")]


@pytest.mark.slow
def test_a_sweep_whose_processes_are_killed_ends_like_one_left_alone(calm, place):
    """A worker is killed, then the driver; then Ctrl-C is pressed, and the same command finishes."""
    out, first = place / "attacked", JOBS[0]
    with killed_at_last(begin(place, "attacked")) as driver:
        until(lambda: training(out, first), driver)
        victim = training(out, first)
        assert victim is not None
        os.kill(victim, signal.SIGKILL)
        until(lambda: (pid := training(out, first)) is not None and pid != victim, driver)
        assert codes(out, first) == [-1]
        killed, victim = family(driver.pid), training(out, first)
        assert victim is not None
        driver.kill()
        for pid in killed:  # Workers would train on for two seconds, and be done, unheard, where that is enough.
            if pid == victim or any(name.startswith("ray::pretrain") for name in programs({pid})):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    with killed_at_last(begin(place, "attacked")) as driver:
        until(lambda: (pid := training(out, first)) is not None and pid != victim, driver)
        os.killpg(driver.pid, signal.SIGINT)
        code, said, wrong = end(driver)
    assert code == 130, wrong
    assert "the same command continues" in said
    assert codes(out, first) == [-1, 130]
    reached = last_checkpoint(out, first)
    assert (out / "pretrain" / first / "seed-0" / f"snapshot-{reached}.safetensors").exists()  # As where a run stops.
    finished = {job: (out / "pretrain" / job / "result.json").exists() for job in JOBS}
    with killed_at_last(begin(place, "attacked")) as driver:
        code, said, wrong = end(driver)
    assert code == 0, wrong
    assert f"{sum(finished.values())} done before" in said
    logs = {job: (out / "jobs" / f"pretrain-{job}" / "log.txt").read_text() for job in JOBS}
    assert f"continues after {reached:,} steps" in logs[first]
    assert codes(out, first) == [-1, 130, 0]
    for job in JOBS:
        assert logs[job].count("metrics.csv and snapshots in") == 1
        assert results(out, job) == results(calm[0], job)
    assert {*programs(killed)} <= {"ray::DashboardA", "ray::RuntimeEnv"}  # Which take a minute to end, and only wait.


# --- Mistakes ---------------------------------------------------------------------------------------------------------


def closed_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("nonsense", "expected HOST:PORT"),
        ("ray://127.0.0.1:10001", "expected HOST:PORT"),
        ("127.0.0.1:", "expected HOST:PORT"),
        ("127.0.0.1:99999", "no cluster answers there"),
        ("127.0.0.1:closed", "no cluster answers there"),
    ],
)
def test_an_address_without_a_cluster_is_one_line(address, why, place, capsys):
    address, out = address.replace("closed", str(closed_port())), place / "nowhere"
    assert main(["sweep", str(place / "sweep.toml"), "--out", str(out), "--ray-address", address]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"becl: --ray-address {address}: ")
    assert why in line
    assert not out.exists()


CLUSTER = """
import ray, sys
ray.init(address="local", num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1", object_store_memory=10**8)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of one that has a token, and no GPU."""
    local = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], env=os.environ | TOKEN | local, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.communicate("", timeout=LONGEST)


@pytest.mark.parametrize(
    ("token", "words", "why"),
    [
        ("1" * 64, (), "its token is a different one; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as on the cluster"),
        ("0" * 64, ("--gpus", "3"), "no machine has 1 core and 3 GPUs for a job; the largest has 1 and 0"),
    ],
    ids=["token", "gpus"],
)
def test_a_cluster_that_cannot_be_used_is_one_line(token, words, why, cluster, place):
    driver = begin(place, "refused", "--ray-address", cluster, *words, **TOKEN | {"RAY_AUTH_TOKEN": token})
    code, said, wrong = end(driver)
    assert code == 2
    assert said == ""
    (line,) = wrong.splitlines()
    assert line.startswith("becl: ")
    assert why in line
    out = place / "refused"
    assert not out.exists()

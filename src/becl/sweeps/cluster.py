"""Runs jobs on Ray: on this machine, without listening to any other, or on a cluster."""

import contextlib
import dataclasses
import os
import socket
import time
import warnings
from collections.abc import Iterator
from typing import Any

from becl.cores import available_cores
from becl.errors import Failed, UserError, brief
from becl.experiments.workers import ONE_THREAD
from becl.invocation import to_install
from becl.runs.progress import counted, say
from becl.signals import STOPPED
from becl.sweeps.device import Device, device_here
from becl.sweeps.jobs import LOST, Ended, Order, run_job

INSTALL = to_install("ray")
REUSED = 16  # Jobs per worker process on a CPU: they share compiled programs, which use up its memory maps in time.
STOPPING = 120.0  # Seconds that jobs get for their last checkpoint.
ALONE: dict[str, Any] = {"include_dashboard": False, "_node_ip_address": "127.0.0.1", "object_store_memory": 10**8}


def installed() -> bool:
    from importlib.util import find_spec

    return find_spec("ray") is not None


def load_ray(address: str | None) -> Any:
    """Imports Ray, which reads its environment variables then: for a cluster of its own, or one at an address."""
    host = "127.0.0.1" if address is None else address.rpartition(":")[0].strip("[]")
    if host in ("localhost", "::1") or host.startswith("127."):
        # Despite its name, this keeps a cluster of one machine on the loopback address, and reachable there.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if address is not None:  # Otherwise Ray asks a cluster that refuses us for twenty seconds.
        os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "3")
    import ray

    loaded: Any = ray
    # Ray prints pages about every lost process and has no option against that; the sweep prints a line of its own.
    loaded._private.worker.print_to_stdstream = lambda *_, **__: None
    return loaded


def check_address(address: str) -> None:
    """Raises on an address that is malformed, or where nobody answers."""
    if not installed():
        raise UserError(f"--ray-address {address}: Ray is not installed; {INSTALL}")
    if address == "auto":
        return
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or "/" in host:
        raise UserError(f"--ray-address {address}: expected HOST:PORT as `ray start` prints it, or auto")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or "no answer"
        raise UserError(f"--ray-address {address}: no cluster answers there ({why})") from None


class OnRay:
    """Hands jobs to Ray, which places them where there is room."""

    def __init__(self, address: str | None, cpus: int | None, gpus: float | None):
        own = address is None
        if not own and os.environ.get("RAY_AUTH_MODE") != "token":
            say("RAY_AUTH_MODE is not token: anyone who can reach the cluster's port can run programs there as you")
        self._ray = ray = load_ray(address)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error", "configure_logging": True}
        try:
            if own:
                with forking():
                    ray.init(address="local", num_cpus=len(available_cores()), **ALONE, **quiet)
            else:
                with hushed():
                    ray.init(address=address, **quiet)
        except (ConnectionError, RuntimeError, TimeoutError, ray.exceptions.RayError) as error:
            if own:
                raise UserError(f"Ray does not start on this machine: {brief(error)}") from None
            raise UserError(f"--ray-address {address}: the cluster does not let us in: {refusal(error)}") from None
        self.nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        most = max(node.get("GPU", 0) for node in self.nodes)
        self.gpus = gpus if gpus is not None else min(most, 1)
        self.cpus = cpus if cpus is not None else 1
        if not any(node.get("GPU", 0) >= self.gpus and node.get("CPU", 0) >= self.cpus for node in self.nodes):
            cores = max(node.get("CPU", 0) for node in self.nodes)
            self.close()
            raise UserError(
                f"no machine has {counted(self.cpus, 'core')} and {self.gpus:g} GPUs for a job; the largest has "
                f"{cores:g} and {most:g}"
            )
        calls = 1 if self.gpus else REUSED
        self._run = ray.remote(max_retries=0, max_calls=calls, num_cpus=self.cpus, num_gpus=self.gpus)(run_job)
        self._jobs: dict[Any, str] = {}

    @property
    def places(self) -> int:
        """How many jobs fit at once."""
        return int(sum(self._room(node) for node in self.nodes))

    def _room(self, node: dict[str, float]) -> float:
        return min(node.get("CPU", 0) // self.cpus, node.get("GPU", 0) // self.gpus if self.gpus else float("inf"))

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a job's process: no more threads than it has cores, so that sums are the same everywhere."""
        if self.gpus:
            share = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{0.9 * self.gpus:.2f}"} if self.gpus < 1 else {}
            return share
        return dict(ONE_THREAD) if self.cpus == 1 else {"JAX_PLATFORMS": "cpu"}

    def device(self) -> Device:
        """The device that a job gets, asked on a machine of the cluster."""
        try:
            # In a process of its own, because this one loads JAX without a job's environment.
            ask = self._ray.remote(max_calls=1, num_cpus=self.cpus, num_gpus=self.gpus)(device_here)
            return Device(*self._ray.get(ask.remote()))
        except self._ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None) or error
            raise UserError(
                f"a Ray process cannot run becl, which every machine must have installed: {last_line(cause)}"
            ) from None

    def submit(self, order: Order) -> None:
        # Otherwise a maze study takes all cores of a machine.
        if order.command == "maze":
            options = dataclasses.replace(order.options, workers=self.cpus)
            order = order._replace(options=options, words=[*order.words, "--workers", str(self.cpus)])
        order = order._replace(environment=self.environment)
        with self._errors():
            self._jobs[self._run.options(name=order.name).remote(order)] = order.name

    def wait(self, seconds: float) -> list[tuple[str, Ended]]:
        """Waits for jobs to end, at most so long; gives those that have."""
        if not self._jobs:
            time.sleep(seconds)
            return []
        with self._errors():
            ready, _ = self._ray.wait(list(self._jobs), num_returns=len(self._jobs), timeout=0)
            if not ready:
                ready, _ = self._ray.wait(list(self._jobs), num_returns=1, timeout=seconds)
        return [(self._jobs.pop(one), self._outcome(one)) for one in ready]

    def _outcome(self, reference: Any) -> Ended:
        errors = self._ray.exceptions
        try:
            return Ended(*self._ray.get(reference))
        except (errors.TaskCancelledError, KeyboardInterrupt):
            return Ended(STOPPED)
        except errors.RayTaskError as error:
            return Ended(1, brief(error.cause) if error.cause else brief(error))
        except errors.RayError as error:
            return Ended(LOST, f"its process is gone ({brief(error)})")

    def stop(self) -> Iterator[tuple[str, Ended]]:
        """Makes all jobs write a checkpoint and end."""
        for reference in self._jobs:
            self._ray.cancel(reference)
        deadline = time.monotonic() + STOPPING
        while self._jobs and time.monotonic() < deadline:
            yield from self.wait(1.0)

    def close(self) -> None:
        self._ray.shutdown()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._ray.exceptions.RayError as error:
            raise Failed(f"the cluster is gone: {brief(error)}; the same command continues") from None


@contextlib.contextmanager
def forking() -> Iterator[None]:
    """Silences JAX's warning about forks: those here start another program at once, which is harmless."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        yield


@contextlib.contextmanager
def hushed() -> Iterator[None]:
    """Silences Ray's own lines about an attempt to connect, which say no more than its error."""
    before, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
        os.close(nowhere)


def refusal(error: BaseException) -> str:
    """Why a cluster cannot be joined, which Ray's error only hints at."""
    message = f"{error} {error.__cause__}"
    if "InvalidAuthToken" in message:
        return "its token is a different one; set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN as on the cluster"
    if "resolve node to connect" in message:
        return "none of its nodes is on this machine; make it one with `ray start --address`"
    return brief(error)


def last_line(error: BaseException) -> str:
    """The last line of a traceback, which names the error."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__

"""The doctor: every failure becomes a line with something to do, and none takes it down."""

import errno
import importlib.metadata
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from becl.commands import doctor, machine
from becl.commands.doctor import Apart
from becl.commands.machine import Line
from becl.commands.parse import parse_options
from becl.errors import UserError
from becl.invocation import to_install
from becl.options import DoctorOptions
from becl.views import gl


def run(*words: Any) -> int:
    """The command as it is typed."""
    return doctor.run(parse_options(DoctorOptions, "doctor", [str(word) for word in words]))


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.fixture
def quick(monkeypatch) -> dict[str, Any]:
    """No checks but those put in here, without pictures, and with a small file."""
    checks: dict[str, Any] = {}
    monkeypatch.setattr(doctor, "CHECKS", checks)
    monkeypatch.setattr(doctor, "check_rendering", list)
    monkeypatch.setattr(machine, "WRITTEN", 2**20)
    return checks


def fine() -> list[Line]:
    return [Line("fine", "ok", "as it should be", data={"number": 3})]


def absent() -> list[Line]:
    return [Line("extra", "note", "not installed", "pip install 'becl[extra]'")]


def bad() -> list[Line]:
    raise RuntimeError("the driver is upside down\nand more")


# --- The command ------------------------------------------------------------------------------------------------------


class TestCommand:
    def test_all_well(self, quick, tmp_path, capsys):
        quick |= {"fine": fine, "extra": absent}
        assert run("--out", tmp_path) == 0
        said = capsys.readouterr().out
        assert "as it should be" in said
        assert "pip install 'becl[extra]'" in said  # Brackets are no markup.
        assert "all that is needed works" in said

    def test_one_broken(self, quick, tmp_path, capsys):
        quick |= {"bad": bad, "fine": fine}
        assert run("--out", tmp_path) == 1
        said = capsys.readouterr().out
        assert "RuntimeError: the driver is upside down" in said
        assert "as it should be" in said  # Those behind it are looked at too.
        assert "1 of 3 checks broken" in said

    def test_json(self, quick, tmp_path):
        quick |= {"bad": bad, "fine": fine}
        assert run("--out", tmp_path, "--json", tmp_path / "doctor.json") == 1
        report = json.loads((tmp_path / "doctor.json").read_text())
        assert report["ok"] is False
        assert [line["check"] for line in report["checks"]] == ["bad", "fine", "disk"]
        assert report["checks"][0] == {
            "check": "bad",
            "status": "broken",
            "found": "RuntimeError: the driver is upside down",
            "advice": machine.REPAIR,
            "data": {},
        }
        assert report["checks"][1]["data"] == {"number": 3}
        assert report["checks"][2]["data"]["bytes_per_second"] > 0

    def test_without_what_the_table_needs(self, quick, tmp_path, monkeypatch, capsys):
        quick |= {"bad": bad, "extra": absent}
        monkeypatch.setitem(sys.modules, "becl.terminal", None)
        assert run("--out", tmp_path) == 1
        said = capsys.readouterr().out
        assert "bad · broken · RuntimeError: the driver is upside down" in said
        assert "extra · note · not installed · pip install 'becl[extra]'" in said

    def test_default_folder(self, quick, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        assert run("--json", "a.json") == 0
        (tmp_path / "runs").mkdir()
        assert run("--json", "b.json") == 0
        folders = [
            json.loads((tmp_path / name).read_text())["checks"][-1]["data"]["folder"] for name in ("a.json", "b.json")
        ]
        assert folders == [".", "runs"]

    def test_refuses(self, quick, tmp_path):
        (tmp_path / "file").write_text("")
        quick["bad"] = lambda: pytest.fail("nothing is to be done")
        for words, message in [
            (("--out", tmp_path / "file"), "is a file"),
            (("--json", tmp_path), "is a folder"),
            (("--json", tmp_path / "nowhere" / "a.json"), "no such folder"),
            (("--jsn", "a"), "--json"),
        ]:
            with pytest.raises(UserError, match=message) as error:
                run(*words)
            assert "\n" not in str(error.value)

    def test_a_user_error_is_its_own_advice(self):
        def check():
            raise UserError("unset it")

        assert machine.look("robot", check) == [Line("robot", "broken", "unset it")]

    def test_an_error_without_words(self):
        def check():
            raise AssertionError

        assert machine.look("x", check)[0].found == "AssertionError"


def test_imports_are_light():
    heavy = "{'jax', 'mujoco', 'matplotlib', 'dm_control'}"
    code = f"import sys, becl.commands.doctor, becl.options; print({heavy} & {{*sys.modules}})"
    assert subprocess.run(python(code), capture_output=True, text=True, check=True).stdout == "set()\n"


# --- Processes --------------------------------------------------------------------------------------------------------

GOOD = 'print(\'{"check": "one", "status": "ok", "found": "f", "advice": "", "data": {}}\', flush=True)\n'


def gone(number: int) -> bool:
    """Whether a process has ended, waited for or not; the system may take a moment to end it."""
    until = time.perf_counter() + 300
    while time.perf_counter() < until:
        try:
            if Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


class TestApart:
    def apart(self, monkeypatch, code: str, seconds: float = 20.0) -> list[Line]:
        monkeypatch.setattr(doctor, "child", lambda _: python(code))
        return doctor.look_apart(Apart("devices", seconds, "try another"))

    def test_lines_come_through(self, monkeypatch):
        assert self.apart(monkeypatch, "print('noise')\n" + GOOD) == [Line("one", "ok", "f")]

    def test_crash(self, monkeypatch):
        lines = self.apart(monkeypatch, GOOD + "import os; os.abort()")
        assert [line.check for line in lines] == ["one", "devices"]
        assert lines[1].found == "crashed (SIGABRT): without a word"
        assert (lines[1].status, lines[1].advice) == ("broken", "try another")

    def test_exception(self, monkeypatch):
        (line,) = self.apart(monkeypatch, "raise ImportError('no libcuda')")
        assert line.found == "ended with 1: ImportError: no libcuda"

    def test_half_a_line(self, monkeypatch):
        lines = self.apart(monkeypatch, GOOD + "print('{\"check\": \"tw', end='', flush=True); import os; os.abort()")
        assert [line.check for line in lines] == ["one", "devices"]

    def test_hang(self, monkeypatch, tmp_path):
        """It is cut off with all that it started, although that holds the pipes open."""
        code = f"""{GOOD}
import pathlib, subprocess, time
child = subprocess.Popen(["sleep", "600"])
pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
time.sleep(600)"""
        began = time.perf_counter()
        lines = self.apart(monkeypatch, code, seconds=2.0)
        assert time.perf_counter() - began < 300
        assert [line.found for line in lines] == ["f", "no answer within 2 s"]
        assert gone(int((tmp_path / "pid").read_text()))

    def test_an_interrupt_leaves_nothing(self):
        with pytest.raises(KeyboardInterrupt), doctor.started(python("import time; time.sleep(600)"), {}) as process:
            raise KeyboardInterrupt
        assert process.returncode is not None

    def test_no_process_at_all(self, quick, monkeypatch, tmp_path):
        monkeypatch.setattr(doctor, "child", lambda _: [str(tmp_path / "no-python")])
        quick["devices"] = Apart("devices", 1.0, "try another")
        line, _ = doctor.examine(tmp_path)
        assert line.status == "broken"
        assert "FileNotFoundError" in line.found

    def test_memory_is_not_reserved(self, monkeypatch):
        code = "import os; raise SystemExit(os.environ['XLA_PYTHON_CLIENT_PREALLOCATE'])"
        assert self.apart(monkeypatch, code)[0].found.endswith("false")

    def test_devices_here(self):
        check = doctor.CHECKS["devices"]
        assert isinstance(check, Apart)
        lines = {line.check: line for line in doctor.look_apart(check)}
        assert {"device cpu:0", "precision float32", "precision tf32", "precision bf16"} <= lines.keys()
        assert {line.status for line in lines.values()} <= {"ok", "note"}
        assert lines["precision float32"].data["ratio"] == 1.0
        assert [name for name, line in lines.items() if "the default here" in line.found] == ["precision tf32"]
        assert lines["precision float32"].data["error"] < 1e-5 < lines["precision bf16"].data["error"]

    def test_simulators_here(self):
        check = doctor.CHECKS["simulators"]
        assert isinstance(check, Apart)
        lines = doctor.look_apart(check)
        assert [(line.check, line.status) for line in lines] == [("robot", "ok"), ("maze", "ok")]
        assert all(line.data["steps_per_second"] > 0 for line in lines)


# --- Single checks ----------------------------------------------------------------------------------------------------


class TestPackages:
    def test_here(self):
        lines = machine.check_packages()
        assert {"jax", "jaxlib", "mujoco", "numpy", "gymnasium", "dm_control"} <= lines[0].data.keys()
        assert lines[0].data["numpy"] == np.__version__

    def test_missing_and_old(self, monkeypatch):
        known = importlib.metadata.version

        def version(name: str) -> str:
            if name == "mujoco":
                raise importlib.metadata.PackageNotFoundError(name)
            return "0.4.1" if name == "jax" else known(name)

        monkeypatch.setattr(importlib.metadata, "version", version)
        lines = machine.check_packages()[1:]
        assert {line.status for line in lines} == {"broken"}
        found = {line.found.split()[0]: line for line in lines}
        assert found["mujoco"].found == "mujoco is not installed"
        assert found["mujoco"].advice.startswith("pip install 'mujoco")
        assert found["jax"].found.startswith("jax 0.4.1; >=")

    def test_run_from_its_source(self, monkeypatch):
        def requires(name: str) -> list[str]:
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "requires", requires)
        (line,) = machine.check_packages()
        assert line.data.keys() == {*machine.LIBRARIES}

    def test_extras(self, monkeypatch):
        monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: None)
        monkeypatch.setattr(machine.shutil, "which", lambda name: None)
        lines = machine.check_extras()
        assert {line.status for line in lines} == {"note"}
        assert [line.advice for line in lines] == [*map(to_install, ("onnx", "ray", "wandb")), "apt install chromium"]
        monkeypatch.setattr(machine.importlib.util, "find_spec", lambda name: name)
        monkeypatch.setattr(machine.shutil, "which", lambda name: f"/bin/{name}")
        assert {line.status for line in machine.check_extras()} == {"ok"}


class TestHost:
    def test_quota(self, tmp_path, monkeypatch):
        (tmp_path / "cpu.max").write_text("50000 100000\n")
        assert machine.core_quota(tmp_path / "cpu.max") == 0.5
        (tmp_path / "cpu.max").write_text("max 100000\n")
        assert machine.core_quota(tmp_path / "cpu.max") is None
        assert machine.core_quota(tmp_path / "none") is None
        monkeypatch.setattr(machine, "core_quota", lambda: 0.5)
        (line,) = machine.check_cores()
        assert line.status == "note"
        assert "time of only 0.5" in line.found

    def test_memory(self, tmp_path, monkeypatch):
        (tmp_path / "info").write_text("MemTotal: 9 kB\nMemAvailable:    1000 kB\n")
        assert machine.available_memory(tmp_path / "info") == 1_024_000
        assert machine.available_memory(tmp_path / "none") is None
        (tmp_path / "max").write_text("max\n")
        assert machine.memory_limit(tmp_path / "max") is None
        (tmp_path / "max").write_text("1000000000\n")
        assert machine.memory_limit(tmp_path / "max") == 10**9
        monkeypatch.setattr(machine, "memory_limit", lambda: 10**9)
        (line,) = machine.check_memory()
        assert line.status == "note"
        assert line.found.startswith("1.0 GB")
        assert "replay.capacity" in line.advice

    def test_unknown_memory(self, monkeypatch):
        monkeypatch.setattr(machine, "memory_limit", lambda: None)
        monkeypatch.setattr(machine, "available_memory", lambda: None)
        (line,) = machine.check_memory()
        assert line.data["available"] is None


class FakeDevice:
    platform, id, device_kind = "gpu", 3, "Fake 9000"

    def memory_stats(self):
        raise MemoryError("out of memory")


class TestDevices:
    def test_one_that_fails(self):
        line = machine.check_device(FakeDevice())
        assert (line.check, line.status) == ("device gpu:3", "broken")
        assert line.found.startswith("Fake 9000: ")
        assert "JAX_PLATFORMS=cpu" in line.advice

    def test_none(self, monkeypatch):
        import jax

        def devices(*_: Any):
            raise RuntimeError("no backend")

        monkeypatch.setattr(jax, "devices", devices)
        monkeypatch.setenv("JAX_PLATFORMS", "tpu")
        (line,) = machine.check_devices()
        assert line.found == "JAX finds no device (JAX_PLATFORMS=tpu): RuntimeError: no backend"
        assert line.advice == "unset JAX_PLATFORMS"

    def precisions(self, monkeypatch, results: dict[str, Any]) -> dict[str, Line]:
        """Lines where products are off by so much, relative to their size, at such rates."""

        def time_product(precision, x, y, device):
            off, rate = results[precision]
            product = x.astype(np.float64) @ y.astype(np.float64)
            return product + off * product.std(), rate

        monkeypatch.setattr(machine, "time_product", time_product)
        cpu = type("Cpu", (), {"platform": "cpu"})()
        return {line.check.split()[1]: line for line in machine.check_precisions(cpu)}

    def test_precisions(self, monkeypatch):
        lines = self.precisions(monkeypatch, {"float32": (1e-6, 100), "tf32": (1e-3, 300), "bf16": (1e-2, 800)})
        assert {line.status for line in lines.values()} == {"ok"}
        assert [line.data["ratio"] for line in lines.values()] == [1, 3, 8]
        assert "8.0 × float32" in lines["bf16"].found
        assert "no TF32" not in lines["tf32"].found

    def test_a_wrong_product(self, monkeypatch):
        lines = self.precisions(monkeypatch, {"float32": (1e-3, 100), "tf32": (1e-6, 100), "bf16": (np.nan, 100)})
        assert [line.status for line in lines.values()] == ["broken", "ok", "broken"]
        assert "no TF32 here" in lines["tf32"].found
        assert "another --precision than float32" in lines["float32"].advice

    def test_slow(self, monkeypatch):
        lines = self.precisions(monkeypatch, {"float32": (1e-6, 100), "tf32": (1e-6, 100), "bf16": (1e-2, 10)})
        assert lines["bf16"].status == "note"
        assert "slower than float32" in lines["bf16"].advice

    def test_one_that_does_not_work(self, monkeypatch):
        results = {"float32": (1e-6, 100), "tf32": (1e-6, 100)}
        lines = self.precisions(monkeypatch, results)
        assert [line.status for line in lines.values()] == ["ok", "ok", "broken"]
        assert "KeyError" in lines["bf16"].found


class TestRendering:
    def test_here(self):
        lines = machine.check_rendering(60.0)
        assert [line.check for line in lines] == ["rendering egl", "rendering osmesa", "rendering glfw", "rendering"]
        assert all(line.advice for line in lines if line.status == "note")
        assert {line.status for line in lines} <= {"ok", "note"}

    def test_one_hangs_one_crashes(self, monkeypatch, tmp_path):
        picture = f"""
import os, pathlib, subprocess, time
kind = os.environ["MUJOCO_GL"]
if kind == "egl":
    child = subprocess.Popen(["sleep", "600"])
    pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
    time.sleep(600)
if kind == "osmesa":
    os.abort()
"""
        monkeypatch.setattr(gl, "PICTURE", picture)
        monkeypatch.delenv("MUJOCO_GL", raising=False)
        began = time.perf_counter()
        egl, osmesa, glfw, chosen = machine.check_rendering(2.0)
        assert time.perf_counter() - began < 300
        assert (egl.status, egl.found) == ("note", "no picture within 2 s")
        assert (osmesa.status, osmesa.found) == ("note", "crashed (SIGABRT)")
        assert glfw.status == "ok"
        assert "libegl1" in egl.advice
        assert "libosmesa6" in osmesa.advice
        assert (chosen.found, chosen.advice) == ("MUJOCO_GL is not set; glfw draws", "export MUJOCO_GL=glfw")
        assert gone(int((tmp_path / "pid").read_text()))

    def test_the_chosen_one(self, monkeypatch):
        lines = [Line("rendering egl", "ok", ""), Line("rendering osmesa", "note", "")]
        assert machine.choice_of(lines, "egl").status == "ok"
        assert machine.choice_of(lines, "EGL").status == "ok"
        assert machine.choice_of(lines, "osmesa").advice == "export MUJOCO_GL=egl"
        assert machine.choice_of(lines[1:], "").status == "note"


class TestDisk:
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch):
        monkeypatch.setattr(machine, "WRITTEN", 2**20)

    def test_leaves_nothing(self, tmp_path):
        (line,) = machine.check_disk(tmp_path / "runs" / "new")
        assert line.status in ("ok", "note")
        assert list(tmp_path.iterdir()) == []

    def space(self, monkeypatch, free: int) -> None:
        monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free})())

    def test_little_space(self, tmp_path, monkeypatch):
        self.space(monkeypatch, 10**9)
        (line,) = machine.check_disk(tmp_path)
        assert line.status == "note"
        assert "1.0 GB free" in line.found

    def test_no_space(self, tmp_path, monkeypatch):
        self.space(monkeypatch, 1000)
        monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: pytest.fail("nothing is to be written"))
        (line,) = machine.check_disk(tmp_path)
        assert (line.status, bool(line.advice)) == ("broken", True)

    def test_no_permission(self, tmp_path, monkeypatch):
        def refuse(**_: Any):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

        monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
        (line,) = machine.check_disk(tmp_path)
        assert line.status == "broken"
        assert line.found == f"cannot write in {tmp_path}: Permission denied"

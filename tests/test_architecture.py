"""The shape of the code: files and functions fit a screen or a few, names are unique, imports go down and are light."""

import ast
import re
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "becl"
MODULES = {str(path.relative_to(SOURCE)): path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
TREES = {name: ast.parse(text) for name, text in MODULES.items()}
LONGEST_MODULE = 500  # Lines.
LONGEST_FUNCTION = 60

LATE_IMPORTS = {
    # `becl --help` is printed without the options of all commands.
    ("commands/cli.py", "becl.commands.help"),
    ("commands/cli.py", "becl.commands.parse"),
    ("commands/cli.py", "becl.options"),
    # Reports load JAX only where a plug-in has registered methods.
    ("commands/report.py", "becl.experiments.defaults"),
    # What the doctor looks at may be broken, and must not keep it from looking at the rest.
    ("commands/doctor.py", "becl.terminal"),
    ("commands/machine.py", "becl"),
    ("commands/machine.py", "becl.envs.maze"),
    ("commands/machine.py", "becl.envs.maze_batch"),
    ("commands/machine.py", "becl.nn.precision"),
}
"""Imports of our own modules that may stand in a function, by file."""

LIGHT = (
    "becl", "becl.options", "becl.plugins", "becl.commands.cli", "becl.commands.parse", "becl.sweeps.jobs",
    "becl.runs.folder", "becl.reports.page",
)  # fmt: skip


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def own_imports(node: ast.AST) -> Iterator[str]:
    """Modules of becl that are imported anywhere within."""
    for one in ast.walk(node):
        if isinstance(one, ast.ImportFrom):
            assert one.level == 0, "relative imports are not used"
            names = [one.module or ""]
        else:
            names = [alias.name for alias in one.names] if isinstance(one, ast.Import) else []
        yield from (name for name in names if name.partition(".")[0] == "becl")


def test_modules_are_short():
    lines = {name: len(text.splitlines()) for name, text in MODULES.items()}
    assert {name: count for name, count in lines.items() if count > LONGEST_MODULE} == {}


def test_functions_are_short():
    lines = {
        f"{name}:{one.name}": (one.end_lineno or 0) - one.lineno + 1
        for name, tree in TREES.items()
        for one in functions(tree)
    }
    assert len(lines) > 1000
    assert {name: count for name, count in lines.items() if count > LONGEST_FUNCTION} == {}


def test_every_class_has_a_name_of_its_own():
    names = Counter(node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_our_modules_are_imported_at_the_top():
    late = {
        (name, module) for name, tree in TREES.items() for one in functions(tree) for module in own_imports(one)
    }  # fmt: skip
    assert late == LATE_IMPORTS


def test_rooms_use_only_the_rooms_below_them():
    check = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    done = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_figure_shows_every_room_and_who_uses_whom():
    """Drawn anew by `python docs/figures/architecture.py`."""
    drawing = runpy.run_path(str(ROOT / "docs" / "figures" / "architecture.py"))
    assert {path.parent.name for path in SOURCE.glob("*/__init__.py")} - {"options"} == {*drawing["PLACES"]}
    shown = re.findall(r'id="(\w+)-uses-(\w+)"', (ROOT / "docs" / "figures" / "architecture.svg").read_text())
    assert sorted(shown) == sorted(drawing["needed"](drawing["room_imports"]()))


def test_light_modules_load_neither_jax_nor_mujoco():
    code = f"""
import importlib, sys
for name in {LIGHT}:
    importlib.import_module(name)
    print(name, *({{"jax", "mujoco"}} & {{*sys.modules}}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [*LIGHT]

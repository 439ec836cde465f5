"""Runs the code blocks of a page of documentation, at sizes that take seconds.

A page is played in a folder of its own, block after block:

    ```python                   run; one namespace a page
    ```python title="arm.py"    written to that file, as is a block of any language with a title
    ```bash                     line by line: `becl` in this process, `python FILE`; NOT_RUN says what is left out
    ```text, or no language     not run; with title="prints" it is what the Python block before it printed
    ```toml, ```json            only parsed

Whatever trains is made small by the tables below, on the command line and from Python alike. The same small command is
run once and its folder copied to all pages that have it.
"""

import contextlib
import fcntl
import functools
import hashlib
import importlib
import importlib.util
import io
import json
import re
import runpy
import shlex
import shutil
import signal
import sys
import tomllib
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import safetensors.numpy

from becl.runs.folder import folder_name

ROOT = Path(__file__).parents[1]

# The most that an option may be. It is also given where a page leaves it out.
STEPS = 100
SIZES: dict[str, dict[str, int]] = {
    "pretrain": {"steps": STEPS, "hidden": 8, "envs": 4, "log_every": 50},
    "finetune": {"steps": STEPS, "hidden": 8, "envs": 4, "eval_every": STEPS, "eval_episodes": 1, "final_episodes": 2},
    "control": {"steps": 2 * STEPS, "envs": 4, "eval_every": STEPS, "eval_episodes": 1, "final_episodes": 2},
    "evaluate": {"episodes": 2},
    "reach": {"episodes": 2},
    "maze": {"cycles": 2, "workers": 1, "mine_iterations": 20},
    "resume": {"workers": 1},
    "report": {"resamples": 50},
    "gallery": {"steps": 20, "frames": 4},
    "video": {"steps": 20, "frames": 4, "size": 32},
    "filmstrip": {"steps": 20, "frames": 2, "size": 32},
    "trajectories": {"episodes": 2},
}
# Added to --set.
SETTINGS: dict[str, list[str]] = {
    "pretrain": ["batch=16", "random_steps=48", "replay.capacity=1000"],
    "finetune": ["batch=16", "random_steps=48", "replay.capacity=1000"],
    "control": ["batch=16", "random_steps=1", "replay.capacity=1000"],
    "maze": ["learner.network.hidden=16,16", "network.hidden=16,16", "episodes=20"],
}
# Sizes that no option has: steps of a robot's episode, and what the maze study and the checks of theory go through.
EPISODE = 100
LIMIT = 3600  # Seconds of a block.
INSIDE: dict[str, dict[str, Any]] = {
    "becl.experiments.maze_study": {"TEMPERATURES": (0.01,), "SKILL_COUNTS": (15,)},
    "becl.measure.theory.checks": {
        "train_score": {"steps": 5},
        "marginal_estimates": {"batches": 1},
        "uniform_excess": {"anchors": 50},
        "check_limit": {"skills": 3},
    },
}

# Commands that a test cannot run, with the reason. Where one names a file, a module or a target, that has to exist.
NOT_RUN = {
    "make": "sets up, or takes minutes: only that there is such a target",
    "python -m benchmarks": "times this machine for minutes: only that there is such a module",
    ". .venv/bin/activate": "is for a shell",
    "becl gallery": "serves until it is stopped; with --export it is run",
}

WEIGHTS = "resnet18-f37072fd.pth"
"""A file that people have; here its numbers are random."""
GOOD = {"doctor": (0, 1)}  # 1 where something on this machine is broken.
# Packages that nothing else needs: without them, blocks that import them are only compiled.
OPTIONAL = ("onnxruntime",)


class Block(NamedTuple):
    language: str
    title: str
    text: str
    line: int


FENCE = re.compile(r"^( *)```([^\n]*)\n(.*?)^\1```\s*$", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[Block]:
    """All fenced blocks, also those of lists."""
    found = []
    for match in FENCE.finditer(text):
        indent, info, code = match.groups()
        title = re.search(r'title="([^"]*)"', info)
        code = re.sub(rf"^{indent}", "", code, flags=re.MULTILINE)
        line = text[: match.start()].count("\n") + 2
        found.append(Block(info.partition(" ")[0], title[1] if title else "", code, line))
    return found


def lines(code: str) -> list[list[str]]:
    """The words of each command of a shell block."""
    whole = code.replace("\\\n", " ").splitlines()
    return [words for line in whole if (words := shlex.split(line, comments=True))]


# --- Making it small --------------------------------------------------------------------------------------------------


def shrink(command: str, options: dict[str, Any]) -> dict[str, Any]:
    """Options of a command, by name, at sizes of a test."""
    small = dict(options)
    for name, most in SIZES.get(command, {}).items():
        if command == "finetune" and name == "hidden" and "scratch" not in options:
            continue  # The networks are as wide as they were pretrained.
        small[name] = min(int(options.get(name, most)), most)
    if command == "resume" and "steps" in options:
        small["steps"] = 2 * STEPS
    if "snapshot" in options:
        small["snapshot"] = STEPS
    if command in ("pretrain", "maze") or "seeds" in options:
        small["seeds"] = few(options.get("seeds", 1), 1 if command == "maze" else 2)
    if command in SETTINGS:
        given = options.get("set", ())
        given = [f"{name}={value}" for name, value in given.items()] if isinstance(given, dict) else given
        narrow = [re.sub(r"(?<=hidden=)[\d,]+", "8,8", setting) for setting in given]
        narrow += SETTINGS[command] + (["vision.size=32"] if "pixels" in options else [])
        small["set"] = list({one.partition("=")[0]: one for one in narrow}.values())
    if command == "maze":
        small["methods"] = some(options.get("methods", ["becl-released" if is_figure(options) else "becl"]))
    return small


def is_figure(options: dict[str, Any]) -> bool:
    """Whether a maze study is one of the paper's, which has its own methods."""
    return str(options.get("study")).startswith("figure") or options.get("setting") == "published"


def some(methods: Any) -> list[str]:
    """Two of the methods; the others only have to exist."""
    from becl.objectives import METHODS

    names = [methods] if isinstance(methods, str) else list(methods)
    assert set(names[2:]) <= set(METHODS)
    return names[:2]


def few(seeds: Any, count: int) -> Any:
    """The same number of seeds for any number of them, so that pages share runs; a list stays."""
    low, colon, _ = str(seeds).partition(":")
    if colon:
        return f"{low}:{int(low) + count}"
    return count if str(seeds).isdecimal() else seeds


def parse(words: list[str]) -> tuple[list[str], dict[str, Any]]:
    """Words of a command line as what stands alone and options by name."""
    alone: list[str] = []
    options: dict[str, Any] = {}
    values = alone
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            values = options[name[2:].replace("-", "_")] = [value] if equals else []
        else:
            values.append(word)
    return alone, {name: value[0] if len(value) == 1 and name != "set" else value for name, value in options.items()}


def words_of(alone: list[str], options: dict[str, Any]) -> list[str]:
    """A command line, in an order that does not depend on the page's."""
    words = list(alone)
    for name, value in sorted(options.items()):
        words.append("--" + name.replace("_", "-"))
        words += [str(one) for one in value] if isinstance(value, list) else [str(value)]
    return words


def shrunk(function: Callable[..., Any], command: str) -> Callable[..., Any]:
    """A function of the package that trains, at sizes of a test."""

    @functools.wraps(function)
    def small(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **shrink(command, options))
        except ValueError as error:
            taken = re.match(r"(\S+) holds another configuration", str(error))
            if taken is None:
                raise
            shutil.rmtree(taken[1])  # Pages show several commands for the same folder.
            return function(*args, **shrink(command, options))

    return small


# --- One run for all pages --------------------------------------------------------------------------------------------


class Shared:
    """Folders that commands left, for the pages and processes that need the same."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, key: str, make: Callable[[Path], None]) -> Path:
        """The folder of a key, made by the first that asks."""
        place = self.folder / hashlib.sha256(key.encode()).hexdigest()[:16]
        with (self.folder / f"{place.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not place.exists():
                half = place.with_suffix(".half")
                half.mkdir()
                make(half)
                half.rename(place)
        return place


# --- Playing a page ---------------------------------------------------------------------------------------------------


class Player:
    """Plays blocks in the working directory."""

    def __init__(self, name: str, shared: Shared):
        self.name, self.shared = name, shared
        self.module = types.ModuleType("documented_page")
        self.commands: dict[str, str] = {}
        """Folders of runs, and the commands that made them."""
        self.printed, self.wrote = "", False

    def play(self, block: Block) -> None:
        """Within a limit, so that a command that waits for somebody fails instead of waiting."""

        def stop(signal_number: int, frame: Any) -> None:
            raise TimeoutError(f"{where}: still running after {LIMIT} seconds")

        where = f"{self.name}, line {block.line}"
        before = signal.signal(signal.SIGALRM, stop)
        signal.alarm(LIMIT)
        try:
            self._play(block, where)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    def _play(self, block: Block, where: str) -> None:
        if block.title and block.language != "text":
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text)
            self.wrote = True
        elif block.language in ("python", "py"):
            self.python(block)
        elif block.language == "bash":
            for words in lines(block.text):
                self.command(words, where)
        elif block.language == "text" and block.title == "prints":
            assert self.printed == block.text, where
        elif block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)
        else:
            assert block.language == "text" or not block.language, f"{where}: a block of {block.language}"
            assert not re.match(r"(becl|make|python|pip) ", block.text), f"{where}: commands in no block of bash"

    def python(self, block: Block) -> None:
        code = compile("\n" * (block.line - 1) + block.text, self.name, "exec")
        if any(f"import {name}\n" in block.text and not importlib.util.find_spec(name) for name in OPTIONAL):
            return
        with contextlib.redirect_stdout(io.StringIO()) as out, importable(Path.cwd()):
            exec(code, self.module.__dict__)
        self.printed = out.getvalue()

    def command(self, words: list[str], where: str) -> None:
        if words[0] == "PYTHONPATH=.":
            with importable(Path.cwd()):
                return self.command(words[1:], where)
        text = shlex.join(words)
        if words[:2] == ["becl", "sweep"]:
            self.sweep(words[2:], where)
        elif words[0] == "becl" and (words[1] != "gallery" or "--export" in words):
            assert self.becl(words[1:]) in GOOD.get(words[1], (0,)), f"{where}: {text}"
        elif words[0] == "python" and words[1:2] != ["-m"]:
            runpy.run_path(words[1], run_name="__main__")
        else:
            reason = [start for start in NOT_RUN if f"{text} ".startswith((f"{start} ", f"{start}."))]
            assert reason, f"{where}: {text}: neither run nor said why not"
            check_exists(words, where)

    @staticmethod
    def sweep(words: list[str], where: str) -> None:
        """Only plans; what a plan does, its own tests show."""
        if words[0] not in ("status", "collect"):
            assert call(["sweep", *words, *([] if "--dry-run" in words else ["--dry-run"])]) == 0, where

    def becl(self, words: list[str]) -> int:
        """Runs a command, or copies what it left when another page ran it."""
        alone, options = parse(words[1:])
        for place in [*alone, options.get("plugin", "")]:
            fetch(str(place))
        options = {name: value.removeprefix("/") if name == "out" else value for name, value in options.items()}
        if words[0] == "pretrain":
            options.setdefault("method", "becl")  # The same run, whether a page says so or not.
        args = [words[0], *words_of(alone, shrink(words[0], options))]
        if args == ["doctor"]:
            self.shared.get("doctor", lambda place: check(args))
            return 0
        out = output_of(words[0], alone, options)
        if out is None or "dry_run" in options:
            return call(args)
        key = self.key(words[0], alone, options)
        if self.commands.get(out) == key:
            return call(args)  # It goes on, or has finished.
        if out in self.commands:
            shutil.rmtree(out)  # Pages show several commands for the same folder.
        self.commands[out] = key
        shutil.copytree(self.shared.get(key, lambda place: self._make(args, out, place)), out)
        return 0

    def key(self, command: str, alone: list[str], options: dict[str, Any]) -> str:
        """What a run depends on: the command, wherever it leaves the run, and what it begins with."""
        small = shrink(command, {name: value for name, value in options.items() if name != "out"})
        before = (
            self.commands.get(alone[0], f"{self.name} {alone[0]}")
            if command in ("finetune", "control") and alone
            else ""
        )
        files = self.name if self.wrote else ""
        return " ".join([files, before, command, *words_of(alone, small)])

    @staticmethod
    def _make(args: list[str], out: str, place: Path) -> None:
        check(args)
        shutil.copytree(out, place, dirs_exist_ok=True)
        shutil.rmtree(out)


@contextlib.contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Modules of a folder, as Python finds those of the working directory and the `becl` command does not."""
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def call(args: list[str]) -> int:
    from becl.commands.cli import main

    return main(args)


def check(args: list[str]) -> None:
    assert call(args) in GOOD.get(args[0], (0,)), shlex.join(args)


def fetch(place: str) -> None:
    """A copy of what is kept in the repository, where a command names it."""
    top = Path(place).parts[:1]
    if top in (("results",), ("examples",)) and not Path(top[0]).exists():
        shutil.copytree(ROOT / top[0], top[0])
    if place == WEIGHTS:
        from golden.pieg import weights_of

        from becl.nn.frozen import shapes_of

        safetensors.numpy.save_file(weights_of(shapes_of("resnet18")), place)


def output_of(command: str, alone: list[str], options: dict[str, Any]) -> str | None:
    """The folder that a command leaves behind for others."""
    if command not in ("pretrain", "finetune", "control", "maze", "theory"):
        return None
    if "out" in options:
        return options["out"]
    if command == "theory":
        return "runs/theory"
    seen = (["pixels"] if "pixels" in options else []) + ([options["encoder"]] if "encoder" in options else [])
    if command == "pretrain":
        return f"runs/{folder_name('pretrain', alone[0], options.get('method', 'becl'), *seen)}"
    if command == "maze":
        return "demo" if "demo" in options else f"runs/maze-{options.get('study', 'comparison')}"
    if alone:
        config = json.loads(Path(alone[0], "config.json").read_text())
        if ":" in str(options.get("task")):
            config["env"] = options["task"]
        domain = config["env"] if ":" in config["env"] else config["env"].partition("_")[0]
        vision = config["run"].get("vision", {})
        seen = ["pixels"] if vision and ":" not in domain else []
        seen += ["pieg"] if vision.get("encoder", {}).get("spec") == "PIEG" else []
        return f"runs/{folder_name(command, domain, config['method'], *seen)}"
    task = options["task"] if isinstance(options["task"], str) else options["task"][0]
    return f"runs/{folder_name('finetune', task.partition('_')[0], 'ddpg', *seen)}"


def check_exists(words: list[str], where: str) -> None:
    """That what is named but not run is there."""
    if words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        for word in words[1:]:
            assert "=" in word or word in targets, f"{where}: no target {word}"
    elif words[:2] == ["python", "-m"]:
        assert importlib.util.find_spec(words[2]) is not None, f"{where}: no module {words[2]}"


# --- Around a page ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def stage(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder to play in, everything small, and nothing left behind in the process."""
    import gymnasium

    import becl
    from becl import plugins
    from becl.envs import DOMAINS
    from becl.experiments.maze_study import STUDIED
    from becl.learning.programs import forget_programs
    from becl.objectives import METHODS

    patch.chdir(folder)
    for domain in DOMAINS.values():
        patch.setattr(type(domain), "episode_length", EPISODE)
    for module, changes in INSIDE.items():
        home = importlib.import_module(module)
        for name, value in changes.items():
            old = getattr(home, name)
            patch.setattr(home, name, functools.partial(old, **value) if callable(old) else value)
    for name in ("pretrain", "finetune", "control", "evaluate", "maze"):
        patch.setattr(becl, name, shrunk(getattr(becl, name), name))
    registries: list[dict[str, Any]] = [METHODS, STUDIED, plugins.ORIGINS, plugins._LOADED, gymnasium.registry]  # type: ignore[list-item]
    before = [dict(registry) for registry in registries]
    modules = set(sys.modules)
    try:
        yield
    finally:
        for registry, kept in zip(registries, before, strict=True):
            registry.clear()
            registry.update(kept)
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
                del sys.modules[name]
        forget_programs()

"""Methods from outside the package: a file of one's own (`--plugin metra.py`), a module, or an installed package.

Importing a plug-in calls `becl.objectives.register`. A run's folder remembers the word its method came from and
nothing else of it: a folder never makes this program run code that its user did not name.
"""

import contextlib
import dataclasses
import importlib
import importlib.util
import json
import os
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from becl.errors import UserError, unknown

if TYPE_CHECKING:
    from becl.objectives import Method

GROUP = "becl.methods"
"""Entry points of installed packages whose modules register methods."""
VARIABLE = "BECL_PLUGINS"
"""Words as for --plugin, separated as in PATH."""
ORIGINS: dict[str, str] = {}
"""The word that each method of a plug-in came from."""

_WORD: ContextVar[str | None] = ContextVar("word", default=None)
"""The plug-in being loaded."""
_LOADED: dict[str, ModuleType] = {}
"""By full path or module name, in order."""
_SEARCHED: list[bool] = []
"""Not empty once installed packages were asked."""


# --- Loading ----------------------------------------------------------------------------------------------------------


def load(word: str, source: str = "") -> None:
    """Runs a plug-in, a file or a module, unless it has been; refuses one that fails or that registers nothing."""
    if not word:
        raise UserError("--plugin: name a file (metra.py) or a module")
    path = Path(word).expanduser()
    with _named(f"plug-in {word}{source}"), _registering(word) as before:
        if path.suffix == ".py" or os.sep in word:
            key, module = str(path.resolve()), _load_file(path)
        else:
            key, module = word, _load_module(word)
        if not _methods_of(module, before):
            raise UserError("registers no method; call becl.objectives.register in it")
    _LOADED[key] = module


def load_all(words: Iterable[str]) -> list[str]:
    """Runs plug-ins of the environment variable, then those named; gives all of their words."""
    standing = [word for word in os.environ.get(VARIABLE, "").split(os.pathsep) if word]
    for word in standing:
        load(word, f" ({VARIABLE})")
    for word in words:
        load(word)
    return list(dict.fromkeys([*standing, *words]))


def load_installed() -> None:
    """Plug-ins of installed packages, once; a broken one is left out with a line that names it."""
    from importlib.metadata import entry_points

    if _SEARCHED:
        return
    _SEARCHED.append(True)
    for point in entry_points(group=GROUP):
        package = point.dist.name if point.dist is not None else point.name
        try:
            with _named(f"package {package}"), _registering(point.module) as before:
                point.load()
                if not _methods_of(sys.modules[point.module], before):
                    raise UserError(f"{point.module} registers no method")
        except UserError as error:
            print(f"becl: {error}; its methods are left out", file=sys.stderr)


def loaded() -> list[str]:
    """Words that load the same plug-ins, in another process too."""
    return list(_LOADED)


def only_here(specs: Iterable[Any]) -> bool:
    """Whether a class was written in the script or notebook that is running, where no other process finds it."""
    return any(type(spec).__module__ == "__main__" for spec in specs)


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError("there is no such file" if not path.exists() else "is a folder, not a file")
    full = path.resolve()
    for module in list(sys.modules.values()):  # Also one that was imported by other means, such as a test.
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and Path(file).name == full.name and Path(file).resolve() == full:
            return module
    stem = "becl_plugin_" + re.sub(r"\W", "_", full.stem)
    name = next(name for name in (stem, *(f"{stem}_{i}" for i in range(2, 1000))) if name not in sys.modules)
    spec = importlib.util.spec_from_file_location(name, full)
    if spec is None or spec.loader is None:
        raise UserError("is not a file of Python (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Where pickle looks for its classes.
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _load_module(word: str) -> ModuleType:
    try:
        return importlib.import_module(word)
    except ModuleNotFoundError as error:
        if error.name is None or not (word == error.name or word.startswith(f"{error.name}.")):
            raise
        hint = f"; did you mean {word}.py?" if Path(f"{word}.py").is_file() else ""
        raise UserError(f"there is no such module{hint}") from None


@contextlib.contextmanager
def _registering(word: str) -> Iterator[set[str]]:
    """Methods registered inside come from this word; none stays if it fails. Gives the names there were before."""
    from becl.objectives import METHODS

    before, token = set(METHODS), _WORD.set(word)
    try:
        yield before
    except BaseException:
        for name in METHODS.keys() - before:
            forget(name)
        raise
    finally:
        _WORD.reset(token)


@contextlib.contextmanager
def _named(what: str) -> Iterator[None]:
    """Whatever goes wrong inside as one line that begins with what it was about."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{what}: {error}") from None
    except (Exception, SystemExit) as error:
        raise UserError(f"{what}: {_brief(error)}") from None


def _brief(error: BaseException) -> str:
    """An error of somebody's code in one line, with the place in it."""
    text = str(error).strip().splitlines()
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and Path(frame.filename) != Path(__file__)]
    line = error.lineno if isinstance(error, SyntaxError) else own[-1].lineno if own else None
    file = error.filename if isinstance(error, SyntaxError) else own[-1].filename if own else None
    place = f" ({Path(file).name}, line {line})" if file and line else ""
    says = error.msg if isinstance(error, SyntaxError) else text[0] if text else ""
    return f"{type(error).__name__}{': ' + says if says else ''}{place}"


def _methods_of(module: ModuleType, before: set[str]) -> list[str]:
    """Methods that a module has just registered, or had when it was imported earlier."""
    from becl.objectives import METHODS

    def own(name: str) -> bool:
        place = type(METHODS[name].objective).__module__
        return name in ORIGINS and (place == module.__name__ or place.startswith(f"{module.__name__}."))

    return [name for name in METHODS if name not in before or own(name)]


# --- Registering ------------------------------------------------------------------------------------------------------


def note_origin(name: str, method: "Method") -> None:
    """Remembers which word a method came from: that of the plug-in being loaded, or where its class was written."""
    kind = type(method.objective)
    place, file, here = kind.__module__, _file_of(kind), Path.cwd()
    if file is not None and file.is_relative_to(here):
        place = str(file.relative_to(here))
    elif file is not None and place == "__main__":
        place = file.name
    ORIGINS[name] = _WORD.get() or place


def forget(name: str) -> None:
    """Takes a method of a plug-in out again."""
    from becl.objectives import METHODS

    del METHODS[name]
    ORIGINS.pop(name, None)
    if study := sys.modules.get("becl.experiments.maze_study"):
        study.STUDIED.pop(name, None)


def check_method(name: str, method: "Method") -> None:
    """Refuses what could not be named, kept or trained."""
    from becl.experiments.finetuning import CHOICES
    from becl.objectives import METHODS, Method
    from becl.skills import NoSkill

    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise UserError(f"method {name!r}: a name has small letters, digits and dashes")
    if not isinstance(method, Method):
        raise UserError(f"method {name!r}: expected Method(objective, kind, summary), not {type(method).__name__}")
    if name in METHODS and not _rerun(type(METHODS[name].objective), type(method.objective)):
        raise UserError(f"method {name!r}: the name is taken by {ORIGINS.get(name, 'becl itself')}; choose another")
    hints = get_type_hints(Method)
    for option in ("kind", "transfer"):
        if getattr(method, option) not in get_args(hints[option]):
            raise unknown(f"{option} of method {name!r}", str(getattr(method, option)), get_args(hints[option]))
    for objective in (method.objective, method.maze.objective if method.maze is not None else None):
        if objective is not None:
            check_objective(f"method {name!r}", objective)
    space = method.objective.skills
    choices = [word for word in CHOICES if (word == "none") == isinstance(space, NoSkill)]
    if method.finetune_skill.partition(":")[0] not in {word.partition(":")[0] for word in choices}:
        raise unknown(f"finetune_skill of method {name!r}", method.finetune_skill, choices)


def check_objective(what: str, objective: Any) -> None:
    """Refuses an objective that is not a frozen dataclass of options with the methods of the protocol."""
    from becl.objectives import kinds_of
    from becl.objectives.protocol import Objective
    from becl.skills import NoSkill, SkillSpace

    if isinstance(objective, type):
        raise UserError(f"{what}: expected an instance, {objective.__name__}(), not the class")
    kind = type(objective).__name__
    check_frozen(what, objective)
    if missing := [word for word in ("skills", "init", "fit", "reward") if not hasattr(objective, word)]:
        raise UserError(f"{what}: {kind} has no {missing[0]}; an objective has skills, init, fit and reward")
    assert isinstance(objective, Objective)
    space = objective.skills
    check_frozen(what, space)
    if not isinstance(space, SkillSpace):
        raise UserError(f"{what}: {type(space).__name__} is no skill space: it needs dim, sample and spread")
    if not isinstance(space, NoSkill) and "dim" not in {field.name for field in dataclasses.fields(space)}:  # type: ignore
        raise UserError(f"{what}: {type(space).__name__} needs an option dim, which --skills sets")
    taken = taken_names()
    for part in kinds_of(objective):
        other = taken.get(part.__name__, part)
        if other is not part and not _rerun(other, part):
            raise UserError(f"{what}: there is a class {part.__name__} already, in {other.__module__}; rename yours")
    check_json(what, objective)


def check_frozen(what: str, spec: Any) -> None:
    kind = type(spec).__name__
    if not dataclasses.is_dataclass(spec) or not spec.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise UserError(f"{what}: {kind} must be a frozen dataclass: write @dataclass(frozen=True) above it")
    for field in dataclasses.fields(spec):
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise UserError(f"{what}: option {field.name} of {kind} needs a default")


def check_json(what: str, objective: Any) -> None:
    """Refuses options that a folder could not keep or jit could not compare."""
    from becl.objectives import kinds_of
    from becl.specs import from_dict, to_dict

    classes = {part.__name__: part for part in kinds_of(objective)}
    kind, hints = type(objective).__name__, get_type_hints(type(objective))
    for field in dataclasses.fields(objective):
        value = getattr(objective, field.name)
        try:
            hash(value)
            sound = from_dict(json.loads(json.dumps(to_dict(value))), classes, hints[field.name]) == value
        except (TypeError, ValueError, UserError):
            sound = False
        if not sound or field.name == "spec":
            raise UserError(
                f"{what}: option {field.name} of {kind} cannot be kept: use numbers, text, true or false, tuples of "
                "these, or frozen dataclasses"
            )


def taken_names() -> dict[str, type]:
    """Classes that the folder of a run may name."""
    from becl.envs.maze import Maze
    from becl.experiments.finetuning import Finetuning
    from becl.experiments.pretraining import spec_classes
    from becl.learning.choice import BestFirst, Held, Regress
    from becl.learning.controller import Controller
    from becl.learning.onpolicy import OnPolicy
    from becl.learning.ppo import PPO
    from becl.objectives import METHODS

    studied = [method.maze.objective for method in METHODS.values() if method.maze is not None]
    kinds = (Finetuning, Held, BestFirst, Regress, Controller, Maze, PPO, OnPolicy)
    return spec_classes() | {kind.__name__: kind for kind in (*kinds, *(type(one) for one in studied if one))}


def _rerun(one: type, other: type) -> bool:
    """Whether a class is another whose file, or cell of a notebook, was run again."""
    same = one.__qualname__ == other.__qualname__ and (_file_of(one) or one.__module__) == (
        _file_of(other) or other.__module__
    )
    return same and one is not other


def _file_of(kind: type) -> Path | None:
    """Where a class was written; None in a notebook."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return Path(file).resolve() if file else None


# --- Folders ----------------------------------------------------------------------------------------------------------


def origins_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Methods of plug-ins that a configuration uses, each with its word; empty for the package's own."""
    from becl.objectives import METHODS

    if not ORIGINS:
        return {}
    used = set(_named_specs(config))

    def uses(name: str) -> bool:
        method, maze = METHODS[name], METHODS[name].maze
        if "method" in config:
            return config["method"] == name
        return maze is not None and type(maze.objective or method.objective).__name__ in used

    return {name: word for name, word in ORIGINS.items() if uses(name)}


def _named_specs(data: Any) -> Iterator[str]:
    """Classes named in JSON values."""
    for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _named_specs(value)
    if isinstance(data, dict) and isinstance(data.get("spec"), str):
        yield data["spec"]


def missing_plugin(config: Mapping[str, Any]) -> str | None:
    """The line about a method of a folder that is not known here; None where all are."""
    from becl.objectives import METHODS

    words = config.get("plugins")
    for name, word in words.items() if isinstance(words, dict) else ():
        if name not in METHODS:
            came = f"it came from {word}: add --plugin {word}"
            if word == "__main__":
                came = "it was registered in a notebook: put it into a file and add --plugin FILE"
            return f"method {name!r} is not known here; {came}"
    return None


def without_plugins(config: Mapping[str, Any]) -> dict[str, Any]:
    """A folder's configuration less the words of plug-ins; refuses a method that is not known here."""
    if line := missing_plugin(config):
        raise UserError(line)
    return bare(config)


def bare(config: Any) -> Any:
    """JSON values less the words of plug-ins, which do not make a run another."""
    return {name: value for name, value in config.items() if name != "plugins"} if isinstance(config, dict) else config


# --- Words of a command -----------------------------------------------------------------------------------------------


def split_words(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments without --plugin, and the words given with it."""
    rest, words, given = [], [], iter(args)
    for arg in given:
        option, equals, value = arg.partition("=")
        if option != "--plugin":
            rest.append(arg)
        else:
            words.append(value if equals else next(given, ""))
            if not words[-1] or words[-1].startswith("--"):
                raise UserError("--plugin: name a file (metra.py) or a module")
    return rest, words

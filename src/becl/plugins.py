"""Methods from outside the package: a file of one's own (`--plugin metra.py`), a module, or an installed package.

Importing a plug-in calls `becl.objectives.register`. A run's folder remembers the word its method came from and nothing
else of the plug-in: a folder never makes this program run code that its user did not name. Imports nothing heavy, so
that reports can read folders without JAX.
"""

import contextlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from becl.errors import UserError

GROUP = "becl.methods"
"""Entry points of installed packages whose modules register methods."""
VARIABLE = "BECL_PLUGINS"
"""Words as for --plugin, separated as in PATH."""
WORD: ContextVar[str | None] = ContextVar("word", default=None)
"""The plug-in that is being loaded."""


class Origin(NamedTuple):
    """Where a method of a plug-in came from."""

    word: str
    """What loads the plug-in: as given with --plugin, or where its class was written."""
    module: str
    """Where the class of its objective lives."""
    maze_objective: str | None
    """Class of its objective in the maze study, where it takes part."""
    remove: Callable[[], None]
    """Takes it out of the registry again."""


ORIGINS: dict[str, Origin] = {}
"""Every method that was registered by a plug-in."""

_LOADED: dict[str, ModuleType] = {}
"""By full path or module name, in order."""
_SEARCHED: list[bool] = []
"""Not empty once installed packages were asked."""


def forget(name: str) -> None:
    """Takes a method of a plug-in out again."""
    ORIGINS.pop(name).remove()


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
    before, token = set(ORIGINS), WORD.set(word)
    try:
        yield before
    except BaseException:
        for name in ORIGINS.keys() - before:
            forget(name)
        raise
    finally:
        WORD.reset(token)


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
    own = [frame for frame in frames if "importlib" not in frame.filename and not _is_ours(frame.filename)]
    line = error.lineno if isinstance(error, SyntaxError) else own[-1].lineno if own else None
    file = error.filename if isinstance(error, SyntaxError) else own[-1].filename if own else None
    place = f" ({Path(file).name}, line {line})" if file and line else ""
    says = error.msg if isinstance(error, SyntaxError) else text[0] if text else ""
    return f"{type(error).__name__}{': ' + says if says else ''}{place}"


def _is_ours(file: str) -> bool:
    """Whether it is a file of this package, where a mistake of a plug-in does not lie."""
    return Path(file).is_relative_to(Path(__file__).parent)


def _methods_of(module: ModuleType, before: set[str]) -> list[str]:
    """Methods that a module has just registered, or had when it was imported earlier."""

    def own(name: str) -> bool:
        place = ORIGINS[name].module
        return place == module.__name__ or place.startswith(f"{module.__name__}.")

    return [name for name in ORIGINS if name not in before or own(name)]


# --- Folders ----------------------------------------------------------------------------------------------------------


def origins_of(config: Mapping[str, Any]) -> dict[str, str]:
    """The words of the plug-ins whose methods a configuration uses; empty for the package's own methods."""
    if not ORIGINS:
        return {}
    used = set(spec_names(config))

    def uses(name: str) -> bool:
        if "method" in config:
            return name in config["method"].split("+")
        return ORIGINS[name].maze_objective in used

    return {name: origin.word for name, origin in ORIGINS.items() if uses(name)}


def spec_names(data: Any) -> Iterator[str]:
    """Classes named in JSON values."""
    for value in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from spec_names(value)
    if isinstance(data, dict) and isinstance(data.get("spec"), str):
        yield data["spec"]


def missing_plugin(config: Mapping[str, Any], known: Container[str] = ORIGINS) -> str | None:
    """One line about a method of a folder that is not among the known ones; None where all are."""
    words = config.get("plugins")
    for name, word in words.items() if isinstance(words, dict) else ():
        if name not in known:
            came = f"it came from {word}: add --plugin {word}"
            if word == "__main__":
                came = "it was registered in a notebook: put it into a file and add --plugin FILE"
            return f"method {name!r} is not known here; {came}"
    return None


def without_plugins(config: Mapping[str, Any], known: Container[str]) -> dict[str, Any]:
    """A folder's configuration without the words of plug-ins; raises where one of its methods is not known."""
    if line := missing_plugin(config, known):
        raise UserError(line)
    return bare(config)


def bare(config: Any) -> Any:
    """JSON values without the words of plug-ins, which do not make a run a different one."""
    return {name: value for name, value in config.items() if name != "plugins"} if isinstance(config, dict) else config

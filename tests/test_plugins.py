"""Methods from outside the package: METRA as the example, what is refused, and folders that name a plug-in."""

import csv
import importlib
import importlib.metadata
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from becl import plugins, testing
from becl.commands.cli import main
from becl.envs.spec import EnvSpec
from becl.errors import UserError
from becl.experiments import workers as execute
from becl.experiments.finetuning import make_finetuning
from becl.experiments.maze_study import make_run, make_study
from becl.experiments.pretrainer import pretrain
from becl.experiments.pretraining import load_pretraining, make_pretraining, seed_keys
from becl.experiments.snapshots import save_snapshots
from becl.learning.programs import programs
from becl.nn.networks import Network
from becl.objectives import METHODS, MazeStudy, Method, register, registry
from becl.objectives.diayn import DIAYN
from becl.objectives.extrinsic import Extrinsic
from becl.objectives.registry import STUDIED
from becl.objectives.temporal import METRA
from becl.options import FinetuneOptions, MazeOptions, PretrainOptions
from becl.runs.folder import open_folder
from becl.runs.progress import Progress
from becl.sharing import shared_path
from becl.skills import OneHot, Sphere

ROOT = Path(__file__).parents[1]
FILE = ROOT / "examples" / "metra.py"
TINY = ["--hidden", "8", "--envs", "2", "--steps", "120", "--log-every", "20", "--set", "random_steps=40", "batch=8"]
PRETRAIN = ["pretrain", "square_a", "--method", "own-metra", *TINY, "slack=0.002"]


@pytest.fixture(autouse=True, scope="module")
def metra() -> Iterator[ModuleType]:
    """The module of the example, loaded as --plugin does; other test files must not see its methods."""
    plugins.load(str(FILE))
    module = sys.modules["becl_plugin_metra"]
    yield module
    for name in list(plugins.ORIGINS):
        plugins.forget(name)
    plugins._LOADED.clear()
    del sys.modules["becl_plugin_metra"]


@pytest.fixture(autouse=True)
def others_are_forgotten() -> Iterator[None]:
    """What a test registers or loads is gone after it."""
    methods, modules, loaded = set(METHODS), set(sys.modules), set(plugins._LOADED)
    yield
    for name in METHODS.keys() - methods:
        plugins.forget(name)
    for name in [name for name in sys.modules.keys() - modules if name.startswith(("becl_plugin_", "own_"))]:
        del sys.modules[name]
    for key in plugins._LOADED.keys() - loaded:
        del plugins._LOADED[key]
    plugins._SEARCHED[:] = [True]


@pytest.fixture
def stranger(monkeypatch) -> None:
    """A machine on which nobody has heard of METRA."""
    for name in ("own-metra", "own-metra-discrete"):
        monkeypatch.delitem(METHODS, name)
        monkeypatch.delitem(plugins.ORIGINS, name)


# --- METRA ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("space", [Sphere(4), OneHot(4)])
def test_the_example_is_the_packages_own_metra_to_the_bit(metra, space):
    """Whose formula tests/test_temporal.py compares with the paper's."""
    one, other = testing.small(metra.OwnMETRA(space, slack=0.05)), testing.small(METRA(space, slack=0.05))
    batch, key = testing.batch_for(one), jax.random.key(0)
    results = []
    for objective in (one, other):
        state = objective.init(key, testing.ENV)
        after, metrics = objective.fit(state, batch, key)
        results.append((jax.tree.leaves((state, after)), metrics, objective.reward(after, batch, key)[1]))
    jax.tree.map(np.testing.assert_array_equal, *results)


@pytest.mark.parametrize("check", testing.checks, ids=lambda check: check.__name__)
@pytest.mark.parametrize("method", ["own-metra", "own-metra-discrete"])
def test_metra_passes_every_check(check, method):
    check(METHODS[method].objective)


# --- The checks find faults -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Faulty(Extrinsic):
    """Rewards what it should not."""

    fault: str = ""

    def reward(self, state, batch, key):
        del key
        reward = {
            "shape": batch.reward[:, None],
            "type": batch.reward.astype(jnp.bfloat16),
            "infinite": batch.reward / 0,
            "order": batch.reward * jnp.arange(len(batch.reward)),
            "one state": batch.obs[:, 0] / jnp.std(batch.obs[:, 0]),
        }[self.fault]
        return state, reward


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("shape", "rewards_are_finite_and_one_a_row: reward has shape (120, 1)"),
        ("type", "rewards_are_finite_and_one_a_row: reward has type bfloat16"),
        ("infinite", "rewards_are_finite_and_one_a_row: a reward is not finite"),
        ("order", "fitting_lowers_the_loss: fitting changes nothing"),
    ],
)
def test_a_faulty_objective_fails_the_check_that_is_about_it(fault, found):
    with pytest.raises(AssertionError) as caught:
        testing.check_objective(Faulty(fault=fault))
    assert str(caught.value).startswith(found)


@pytest.mark.parametrize(
    ("fault", "check"),
    [
        ("order", testing.order_of_the_batch_does_not_matter),
        ("one state", testing.degenerate_batches_leave_everything_finite),
    ],
)
def test_checks_about_batches_find_faults(fault, check):
    with pytest.raises(AssertionError):
        check(Faulty(fault=fault))


# --- Registering ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Own(DIAYN):
    weight: float = 1.0


@dataclass(frozen=True)
class Ring:
    """A skill space of one's own: so many directions of a plane."""

    dim: int = 2
    count: int = 6

    def sample(self, key, count):
        angle = jax.random.randint(key, (count,), 0, self.count) * (2 * jnp.pi / self.count)
        return jnp.stack([jnp.cos(angle), jnp.sin(angle)] + [0 * angle] * (self.dim - 2), -1)

    spread = sample


@dataclass(frozen=True)
class OnRing:
    skills: Ring = Ring()

    def init(self, key, env):
        return Extrinsic().init(key, env)

    def fit(self, state, batch, key):
        return state, {}

    def reward(self, state, batch, key):
        return state, batch.skill[:, 0] * batch.next_obs[:, 0]


@dataclass
class Melting:
    skills: OneHot = OneHot(4)


@dataclass(frozen=True)
class Demanding:
    weight: float
    skills: OneHot = OneHot(4)


@dataclass(frozen=True)
class Idle:
    skills: OneHot = OneHot(4)

    def init(self, key, env): ...

    def fit(self, state, batch, key): ...


@dataclass(frozen=True)
class Listing(DIAYN):
    sizes: list = field(default_factory=lambda: [1, 2])


@dataclass(frozen=True)
class Spaceless(DIAYN):
    skills: Any = Network()


class Lucky(DIAYN):
    def chance_reward(self, batch: int) -> Any:
        return "half" if batch else None


def clashing(name: str) -> Any:
    return dataclass(frozen=True)(type(name, (DIAYN,), {"__module__": __name__}))()


def method(objective: Any, kind: Any = "competence", **options: Any) -> Method:
    made = object.__new__(Method)  # Past the types that are checked while tests run.
    for name, value in {**Method(DIAYN(), "competence", "").__dict__, "finetune_skill": "random", **options}.items():
        object.__setattr__(made, name, value)
    object.__setattr__(made, "objective", objective)
    object.__setattr__(made, "kind", kind)
    return made


REFUSED = {
    "taken": ("becl", method(Own()), "'becl': the name is taken by becl itself"),
    "taken by a plug-in": ("own-metra", method(Own()), "the name is taken by"),
    "capital": ("Own", method(Own()), "small letters, digits and dashes"),
    "underscore": ("own_method", method(Own()), "small letters, digits and dashes"),
    "dash first": ("-own", method(Own()), "small letters, digits and dashes"),
    "class": ("own", method(Own), "expected an instance, Own()"),
    "no dataclass": ("own", method(object()), "must be a frozen dataclass"),
    "not frozen": ("own", method(Melting()), "Melting must be a frozen dataclass"),
    "no default": ("own", method(Demanding(1.0)), "option weight of Demanding needs a default"),
    "no reward": ("own", method(Idle()), "Idle has no reward"),
    "no skill space": ("own", method(Spaceless()), "Network is no skill space"),
    "a list": ("own", method(Listing()), "option sizes of Listing cannot be kept"),
    "an array": ("own", method(Own(weight=np.ones(2))), "option weight of Own cannot be kept"),  # type: ignore
    "not a number": ("own", method(Own(weight=float("nan"))), "option weight of Own cannot be kept"),
    "kind": ("own", method(Own(), "competent"), "did you mean 'competence'?"),
    "transfer": ("own", method(Own(), transfer="trunks"), "did you mean 'trunk'?"),
    "no choice": (
        "own",
        method(Own(), finetune_skill="none"),
        "method 'own' has skills: say which of them learns a task",
    ),
    "no skills": ("own", method(Extrinsic()), "unknown finetune_skill of method 'own' 'random': allowed: none"),
    "chance": ("own", method(Lucky()), "chance_reward(batch) must give a number"),
    "maze": ("own", method(Own(), maze=MazeStudy(clashing("Adam"))), "a class Adam already, in becl.nn.adam"),
}


@pytest.mark.parametrize(("name", "made", "why"), REFUSED.values(), ids=list(REFUSED))
def test_clear_mistakes_are_refused_in_one_line(name, made, why):
    before = dict(METHODS)
    with pytest.raises(UserError) as caught:
        registry.check_method(name, made)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert before == METHODS


def test_no_class_that_a_folder_may_name_can_be_taken(tmp_path):
    """Names are collected from configurations, of every command, as they are written."""
    configs = [make_pretraining(PretrainOptions("walker", name)).config() for name in METHODS]
    configs += [make_study(MazeOptions(tuple(STUDIED), cycles=1)).config()]
    for skill in ("random", "best-first", "meta", "each"):
        configs.append(finetuning(tmp_path / skill, "diayn", skill))
    configs.append(finetuning(tmp_path / "aps", "aps", "regress"))
    names = {name for config in configs for name in plugins.spec_names(json.loads(json.dumps(config)))}
    assert {"OffPolicy", "Held", "BestFirst", "Regress", "Controller", "PPO", "Maze", "METRA", "OwnMETRA"} <= names
    for name in names | {"Pretraining", "Finetuning"}:
        with pytest.raises(UserError, match=f"a class {name} already"):
            registry.check_objective("own", clashing(name))


def finetuning(out: Path, method: str, skill: str) -> dict[str, Any]:
    """The configuration of a finetuning run of a folder without networks."""
    open_folder(make_pretraining(PretrainOptions("walker", method)).config(), out)
    path = out / "seed-0" / "snapshot-7.safetensors"
    path.parent.mkdir()
    path.touch()
    return make_finetuning(FinetuneOptions(out, ("walker_run",), skill=skill)).config()


def test_a_registered_method_is_known_everywhere(monkeypatch):
    monkeypatch.chdir(ROOT)
    register("own-method", replace(METHODS["diayn"], objective=Own()))
    assert make_pretraining(PretrainOptions("square_a", "own-method", set=["weight=2.5"])).run.objective.weight == 2.5  # type: ignore
    assert isinstance(make_run("own-method", "square_a", 5).objective, Own)
    assert plugins.ORIGINS["own-method"].word == "tests/test_plugins.py"
    plugins.forget("own-method")
    assert "own-method" not in METHODS
    assert "own-method" not in STUDIED


def test_a_cell_of_a_notebook_may_be_run_again():
    def cell(weight: float) -> None:
        body = {"__module__": "__main__", "__annotations__": {"weight": float}, "weight": weight}
        register("cell", method(dataclass(frozen=True)(type("Cell", (DIAYN,), body))()))

    cell(1.0)
    cell(2.0)
    assert METHODS["cell"].objective.weight == 2.0  # type: ignore[attr-defined]


def test_a_skill_space_of_ones_own_survives_a_folder(tmp_path):
    register("ring", method(OnRing()))
    made = make_pretraining(PretrainOptions("square_a", "ring", skills=3, hidden=8))
    assert made.run.objective.skills == Ring(3)
    open_folder(made.config(), tmp_path / "run")
    assert load_pretraining(tmp_path / "run") == made


# --- Plug-ins ---------------------------------------------------------------------------------------------------------


def write_plugin(path: Path, name: str = "own", body: str = "") -> Path:
    path.write_text(
        "from dataclasses import dataclass\n"
        "from becl.objectives import Method, register\n"
        "from becl.objectives.extrinsic import Extrinsic\n"
        f"{body}\n"
        "@dataclass(frozen=True)\n"
        f"class {name.title()}(Extrinsic):\n    scale: float = 1.0\n"
        f"register({name!r}, Method({name.title()}(), 'task', 'a reward of my own'))\n"
    )
    return path


BROKEN = {
    "missing": (None, "there is no such file"),
    "nothing": ("import json\n", "registers no method"),
    "name": ("x = 1\ny = nowhere\n", "NameError: name 'nowhere' is not defined (plugin.py, line 2)"),
    "syntax": ("x = (1,\n\ndef f(:\n", "SyntaxError: "),
    "exits": ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
    "silent": ("raise ValueError\n", "ValueError (plugin.py, line 1)"),
    "imports": ("import no_such_module_at_all\n", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
    "taken": (
        "from becl.objectives import METHODS, register\nregister('becl', METHODS['becl'])\n",
        "method 'becl': the name is taken by becl itself",
    ),
}


@pytest.mark.parametrize(("text", "why"), BROKEN.values(), ids=list(BROKEN))
def test_a_broken_plugin_is_one_line_exit_2_and_nothing_written(text, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "plugin.py").write_text(text)
    before = {path.name for path in tmp_path.iterdir()}
    assert main([*PRETRAIN, "--plugin", "plugin.py"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("becl: plug-in plugin.py: ")
    assert why in error
    assert error.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == before


FAULTY = """
from dataclasses import dataclass
import jax.numpy as jnp
import becl

@dataclass(frozen=True)
class Faulty:
    skills: becl.OneHot = becl.OneHot(4)
    def init(self, key, env):
        return {"seen": jnp.zeros(())}
    def fit(self, state, batch, key):
        return FIT
    def reward(self, state, batch, key):
        return REWARD

becl.register("faulty", becl.Method(Faulty(), "competence", "gives what the loop cannot use", finetune_skill="random"))
"""


@pytest.mark.parametrize(
    ("fit", "reward", "why"),
    [
        ("state, {}", "state, batch.reward[:, None]", "reward gives an array of shape (16, 1) for a batch of 16"),
        ("state, {}", "state, batch.reward.mean()", "reward gives an array of shape () for a batch of 16"),
        ("state, {}", "state, None", "reward gives None"),
        ("state, {}", "batch.reward", "(state, reward) is needed"),
        ("state, {}", "{'seen': jnp.zeros(3)}, batch.reward", "reward gives a state of another shape"),
        ("state", "state, batch.reward", "(state, metrics) is needed"),
        ("state, {'gap': batch.reward}", "state, batch.reward", "metric 'gap' is an array of shape (16,)"),
        ("state, {'gap': batch.obs @ jnp.zeros(7)}", "state, batch.reward", "line 12"),
    ],
)
def test_a_method_that_gives_what_the_loop_cannot_use_is_one_line(fit, reward, why, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "faulty.py"
    file.write_text(FAULTY.replace("FIT", fit).replace("REWARD", reward))
    words = ["pretrain", "square_a", "--method", "faulty", "--plugin", str(file), "--hidden", "8", "--set", "batch=16"]
    assert main(words) == 2
    error = capsys.readouterr().err
    assert "method 'faulty'" in error
    assert why in error
    assert error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_plugin_that_fails_half_way_leaves_nothing_behind(tmp_path):
    path = write_plugin(tmp_path / "half.py")
    path.write_text(path.read_text() + "raise RuntimeError('too late')\n")
    with pytest.raises(UserError, match="too late"):
        plugins.load(str(path))
    assert "own" not in METHODS
    assert "becl_plugin_half" not in sys.modules
    write_plugin(path)
    plugins.load(str(path))
    assert plugins.ORIGINS["own"].word == str(path)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--plugin"], "--plugin: name a file"),
        (["--plugin="], "--plugin: name a file"),
        (["--plugin", "--skills"], "--plugin: name a file"),
        (["--plugin", "no_such_module"], "plug-in no_such_module: there is no such module"),
        (["--plugin", "."], "plug-in .: "),
        (["--plugins", "metra.py"], "did you mean '--plugin'?"),
    ],
)
def test_words_that_name_no_plugin(words, why, capsys):
    assert main(["methods", *words]) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1


def test_a_module_without_its_suffix_is_guessed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_plugin(tmp_path / "own_file.py")
    assert main(["methods", "--plugin", "own_file"]) == 2
    assert "did you mean own_file.py?" in capsys.readouterr().err


def test_every_command_takes_plugins_in_any_place(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_plugin(tmp_path / "one.py", "one")
    write_plugin(tmp_path / "own_two.py", "two")
    write_plugin(tmp_path / "three.py", "three")
    monkeypatch.setenv("BECL_PLUGINS", "three.py")
    assert main(["--plugin", "one.py", "methods", "--plugin=own_two", "one", "two", "three"]) == 0
    assert "two (task): a reward of my own" in capsys.readouterr().out
    assert plugins.ORIGINS["one"].word == "one.py"
    assert plugins.ORIGINS["two"].word == "own_two"
    assert main(["envs", "--plugin", "one.py", "--plugin", "one.py"]) == 0
    monkeypatch.setenv("BECL_PLUGINS", "gone.py")
    assert main(["methods"]) == 2
    assert "plug-in gone.py (BECL_PLUGINS): there is no such file" in capsys.readouterr().err


def test_files_of_the_same_name_are_different_plugins(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        plugins.load(str(write_plugin(tmp_path / name / "own.py", name)))
    assert type(METHODS["one"].objective).__module__ == "becl_plugin_own"
    assert type(METHODS["two"].objective).__module__ == "becl_plugin_own_2"


def test_a_file_that_a_test_has_imported_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = write_plugin(tmp_path / "own_once.py")
    __import__("own_once")
    plugins.load(str(path))
    assert type(METHODS["own"].objective).__module__ == "own_once"


def test_a_file_that_was_loaded_may_be_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    plugins.load(str(write_plugin(tmp_path / "own_later.py")))
    module = importlib.import_module("own_later")
    assert type(METHODS["own"].objective) is module.Own
    with pytest.raises(UserError, match="the name is taken"):
        register("own", METHODS["own"])  # Not the file again, but the name.


def test_methods_lists_it_and_help_mentions_plugins(capsys):
    assert main(["methods", "--plugin", str(FILE)]) == 0
    assert "own-metra-discrete" in capsys.readouterr().out
    assert main(["methods", "own-metra", "--plugin", str(FILE)]) == 0
    shown = capsys.readouterr().out
    assert '"slack": 0.001' in shown
    assert "in the maze study" in shown
    assert main(["plot", "--help"]) == 0
    assert "--plugin PLUGIN" in capsys.readouterr().out


# --- Installed packages -----------------------------------------------------------------------------------------------


def installed(monkeypatch, *modules: str) -> None:
    points = [importlib.metadata.EntryPoint(f"name-of-{module}", module, plugins.GROUP) for module in modules]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points if group == plugins.GROUP else [])
    plugins._SEARCHED.clear()


def test_installed_packages_are_found_and_a_broken_one_breaks_no_other(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    write_plugin(tmp_path / "own_good.py", "good")
    write_plugin(tmp_path / "own_better.py", "better")
    write_plugin(tmp_path / "own_bad.py", "bad", "import no_such_module_at_all")
    (tmp_path / "own_empty.py").write_text("")
    installed(monkeypatch, "own_good", "own_bad", "own_empty", "own_missing", "own_better")
    assert main(["methods", "good", "better"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    for line, module in zip(lines, ("own_bad", "own_empty", "own_missing"), strict=True):
        assert line.startswith(f"becl: package name-of-{module}: ")
        assert line.endswith("; its methods are left out")
    assert plugins.ORIGINS["good"].word == "own_good"
    assert main(["methods", "good"]) == 0
    assert capsys.readouterr().err == ""


def test_installed_packages_are_left_alone_where_no_method_is_needed(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_bad.py").write_text("raise RuntimeError\n")
    installed(monkeypatch, "own_bad")
    assert main(["envs"]) == 0
    assert main(["--help"]) == 0
    assert capsys.readouterr().err == ""


def test_importing_becl_and_its_command_line_loads_no_plugin_and_no_jax():
    code = "import sys, becl, becl.commands.cli, becl.plugins, becl.runs.folder; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


# --- Folders ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory, metra) -> Path:
    """A finished run of METRA."""
    out = tmp_path_factory.mktemp("runs") / "metra"
    assert main([*PRETRAIN, "--skills", "3", "--out", str(out), "--plugin", str(FILE)]) == 0
    return out


def table(path: Path) -> list[dict[str, str]]:
    """Rows without the column that a clock decides."""
    rows = list(csv.DictReader(path.open()))
    return [{name: value for name, value in row.items() if name != "steps_per_second"} for row in rows]


def test_a_folder_keeps_options_and_the_word_of_the_plugin(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["plugins"] == {"own-metra": shared_path(str(FILE))}
    assert config["run"]["objective"]["slack"] == 0.002
    assert config["run"]["objective"]["skills"] == {"spec": "Sphere", "dim": 3}
    assert load_pretraining(folder).config() == {name: value for name, value in config.items() if name != "plugins"}
    assert f"--plugin={shared_path(str(FILE))}" in json.loads((folder / "result.json").read_text())["command"]


def test_folders_of_the_packages_own_methods_are_as_they_were(tmp_path):
    made = make_pretraining(PretrainOptions("square_a", "diayn"))
    open_folder(made.config(), tmp_path / "pretrain")
    assert json.loads((tmp_path / "pretrain" / "config.json").read_text()) == json.loads(json.dumps(made.config()))
    study = make_study(MazeOptions(("becl",), cycles=1))
    open_folder(study.config(), tmp_path / "study")
    assert "plugins" not in json.loads((tmp_path / "study" / "config.json").read_text())


def test_the_word_of_the_plugin_does_not_make_it_another_run(folder, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    again = [*PRETRAIN, "--skills", "3", "--out", str(folder), "--plugin", "examples/metra.py"]
    assert main(again) == 0
    assert "already finished" in capsys.readouterr().out
    assert main(["resume", str(folder), "--plugin", "examples/metra.py"]) == 0


def test_a_folder_of_an_unknown_method_is_another_configuration(folder, stranger, capsys):
    assert main(["pretrain", "square_a", "--method", "diayn", *TINY, "--out", str(folder)]) == 2
    assert "holds another configuration (method: own-metra, diayn now)" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[]", "7", '{"plugins": []}', "null"])
def test_a_damaged_configuration_is_one_line(text, tmp_path, capsys):
    (tmp_path / "config.json").write_text(text)
    assert main(["pretrain", "square_a", *TINY, "--out", str(tmp_path)]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert ("another configuration" if text.startswith("{") else "config.json is damaged") in line


class Stopping(Progress):
    """Presses Ctrl-C after so many steps."""

    def __init__(self, at: int):
        super().__init__(1000, "steps", lambda line: None, 1e9)
        self.at = at

    def advance(self, amount: int, seeds: int = 1) -> None:
        super().advance(amount, seeds)
        if self.done - amount < self.at <= self.done:
            signal.raise_signal(signal.SIGINT)


def test_a_run_that_was_stopped_goes_on_bit_by_bit(folder, tmp_path):
    made, out = load_pretraining(folder), tmp_path / "run"
    open_folder(made.config(), out)
    assert pretrain(made, out, Stopping(70)) is False
    assert main(["resume", str(out), "--plugin", str(FILE)]) == 0
    assert table(out / "metrics.csv") == table(folder / "metrics.csv")
    one, other = (safetensors.numpy.load_file(at / "seed-0" / "snapshot-120.safetensors") for at in (folder, out))
    assert one.keys() == other.keys()
    assert "objective.log_dual" in one
    for name, array in one.items():
        np.testing.assert_array_equal(array, other[name], err_msg=name)


def test_a_metra_run_is_evaluated_exported_and_drawn(folder, tmp_path, capsys):
    plugin = ["--plugin", str(FILE)]
    assert main(["evaluate", str(folder), "--episodes", "1", "--out", str(tmp_path / "evaluation"), *plugin]) == 0
    assert main(["export", str(folder), "--skill", "1,0,0", "--out", str(tmp_path / "one.npz"), *plugin]) == 0
    assert main(["plot", str(folder), "--out", str(tmp_path / "curves.png"), *plugin]) == 0
    assert "metra" in capsys.readouterr().out
    assert (tmp_path / "curves.png").exists()


def test_a_folder_of_an_unknown_method_names_its_plugin_and_runs_nothing(folder, stranger, tmp_path, capsys):
    trap = write_plugin(tmp_path / "trap.py", "trap", "open('sprung', 'w').close()")
    config = json.loads((folder / "config.json").read_text()) | {"plugins": {"own-metra": str(trap)}}
    out = tmp_path / "run"
    out.mkdir()
    (out / "config.json").write_text(json.dumps(config))
    commands = {
        "resume": [],
        "evaluate": [],
        "export": ["--skill", "0", "--out", str(tmp_path / "policy.npz")],
        "finetune": [],
    }
    for command, options in commands.items():
        assert main([command, str(out), *options]) == 2
        error = capsys.readouterr().err
        expected = f"becl: method 'own-metra' is not known here; it came from {trap}: add --plugin {trap}\n"
        assert error == expected, command
    assert not (tmp_path / "sprung").exists()
    assert not Path("sprung").exists()
    assert {path.name for path in out.iterdir()} == {"config.json"}


def test_curves_of_an_unknown_method_are_drawn_with_a_line_about_it(folder, stranger, tmp_path, capsys):
    assert main(["plot", str(folder), "--out", str(tmp_path / "curves.png")]) == 0
    shown = capsys.readouterr()
    word = shared_path(str(FILE))
    assert f"method 'own-metra' is not known here; it came from {word}: add --plugin {word}" in shown.err
    assert (tmp_path / "curves.png").exists()
    assert main(["report", str(folder), "--out", str(tmp_path / "report"), "--resamples", "10"]) == 0
    page = (tmp_path / "report" / "index.html").read_text()
    assert "is not known here; it came from" in page


@pytest.mark.parametrize("words", [{"own-metra": "__main__"}, ["own-metra"], "own-metra", 7])
def test_odd_words_in_a_folder_are_no_harm(folder, stranger, words, tmp_path, capsys):
    config = json.loads((folder / "config.json").read_text()) | {"plugins": words}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["resume", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert ("registered in a notebook" in error) == isinstance(words, dict)


# --- Finetuning and reports -------------------------------------------------------------------------------------------


def test_a_finetuned_method_of_ones_own_has_rows_in_the_report(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plugin = ["--plugin", str(FILE)]
    made = make_pretraining(
        PretrainOptions("gym:Pendulum-v1", "own-metra-discrete", steps=5000, skills=3, envs=2, hidden=8)
    )
    open_folder(made.config(), tmp_path / "pretrained")
    save_snapshots(made, tmp_path / "pretrained", programs(made.run).init(seed_keys(made.seeds))[0], 5000)
    tune = [
        "finetune",
        "pretrained",
        "--steps",
        "0",
        "--eval-episodes",
        "1",
        "--final-episodes",
        "1",
        "--skill",
        "fixed:1",
        "--out",
        "tuned",
    ]
    assert main([*tune, *plugin]) == 0
    config = json.loads((tmp_path / "tuned" / "config.json").read_text())
    assert config["plugins"] == {"own-metra-discrete": shared_path(str(FILE))}
    assert main(["resume", "tuned", *plugin]) == 0
    assert main(["report", "tuned", "--out", "report", "--resamples", "10", *plugin]) == 0
    rows = [row for path in (tmp_path / "report" / "tables").glob("*.csv") for row in csv.DictReader(path.open())]
    assert any("own-metra-discrete" in str(value) for row in rows for value in row.values())


# --- The maze study ---------------------------------------------------------------------------------------------------


def test_worker_processes_of_the_maze_study_know_plugins(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
    words = ["learner.network.hidden=8", "network.hidden=8", "episodes=8", "own-metra:dual=5"]
    study = ["maze", "--methods", "own-metra", "--cycles", "2", "--skills", "3", "--set", *words]
    out, plugin = tmp_path / "out", ["--plugin", str(FILE)]
    assert main([*study, "--workers", "2", "--out", str(out), *plugin]) == 0
    assert json.loads((out / "config.json").read_text())["plugins"] == {"own-metra": shared_path(str(FILE))}
    rows = list(csv.DictReader((out / "summary.csv").open()))
    assert [(row["label"], row["seed"]) for row in rows] == [("own-metra", "0")]
    assert main(["resume", str(out), *plugin]) == 0
    capsys.readouterr()
    monkeypatch.delitem(METHODS, "own-metra")
    assert main(["resume", str(out)]) == 2
    assert "method 'own-metra' is not known here" in capsys.readouterr().err


def test_what_a_notebook_defines_is_trained_in_its_own_process(tmp_path, monkeypatch):
    """Another process would not find it."""
    kind = dataclass(frozen=True)(type("Cell", (DIAYN,), {"__module__": "__main__"}))
    register("cell", replace(METHODS["diayn"], objective=kind()))
    trained = []
    monkeypatch.setattr(execute, "_execute_here", lambda study, groups, out, shown: trained.extend(groups) or [])
    study = make_study(MazeOptions(("cell",), seeds=(0, 1), cycles=1))
    assert execute.execute(study, tmp_path, workers=2) == []
    assert trained == [("cell", [0]), ("cell", [1])]


def test_a_spec_of_an_environment_is_all_that_init_needs(metra):
    state = metra.OwnMETRA(network=Network((8,))).init(jax.random.key(0), EnvSpec(5, 2, 10))
    assert [layer.weight.shape for layer in state.features.layers] == [(5, 8), (8, 2)]

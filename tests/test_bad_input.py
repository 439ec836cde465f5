"""Every option of every command with values that no run can use: exit code 2, one line, nothing written."""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import pytest
import safetensors.numpy

from becl.commands import filmstrip, finetune, gallery, maze, pretrain, report, theory, trajectories, video
from becl.commands.cli import HELP, main
from becl.errors import UserError
from becl.experiments import evaluation, finetuner, pretrainer, reach
from becl.experiments.maze_study import make_run
from becl.experiments.pretraining import make_pretraining, seed_keys
from becl.experiments.snapshots import save_snapshots
from becl.nn.frozen import shapes_of
from becl.objectives import METHODS
from becl.options import OPTIONS, PretrainOptions
from becl.options.fields import options_of
from becl.runs.folder import open_folder
from becl.specs import override
from becl.sweeps import run as sweeps

HUGE = "9" * 30
LONG = "x" * 300  # No file may have such a name.
NUMBERS = ["", "x", "1.5", "nan", "inf", "1e-3", "1e3x", "-1", "0", HUGE, "1\n2"]
FRACTIONS = ["", "x", "1,5", "nan", "inf", "-inf", "1e999", "-1", "0"]
WORDS = ["", "nonsense", "../walker", "becl becl", "x\ny", LONG]
SEEDS = ["", "x", "0", "-1", "1.5", "1:2:3", "5:3", ":", ",", "1,x", "0,0", "-1,", "1,-1", HUGE, f"0:{HUGE}",
         "4294967296,"]  # fmt: skip
SETTINGS = ["", "=", "x", "x=1", "batch", "batch=x", "=1", ".=1", "..x=1", "batch.x=1", "learner=1", "x\ny=1",
            "batch=1\n2", f"batch={HUGE}"]  # fmt: skip
INPUTS = ["{nowhere}", "{file}", "{empty}", "{file}/x", LONG, "x\ny"]
OUTPUTS = ["{file}", "{file}/x", "/proc/becl/x", LONG]

# What each text stands for: names of things, or where to write.
KINDS = {
    "seeds": SEEDS,
    "set": SETTINGS,
    "out": OUTPUTS,
    "run": INPUTS,
    "runs": INPUTS,
    "json": OUTPUTS,
    "export": OUTPUTS,
}
# What a command needs besides the option under test.
BESIDE = {
    "pretrain": {"env": ["square_a"]},
    "finetune": {"run": ["{run}"], "task": ["--task", "walker_run"]},
    "control": {"run": ["{run}"]},
    "encoder-weights": {"file": ["{weights}"]},
    "evaluate": {"run": ["{run}"]},
    "reach": {"run": ["{metra}"], "goal": ["--goal", "2,-1", "--no-trust"]},
    "gallery": {"run": ["{run}"]},
    "video": {"run": ["{run}"]},
    "filmstrip": {"runs": ["{run}"]},
    "trajectories": {"run": ["{run}"]},
    "report": {"runs": ["{run}"]},
    "resume": {"run": ["{run}"]},
    "export": {"run": ["{run}"], "out": ["--out", "{nowhere}/policy.npz"]},
    "plot": {"runs": ["{run}"]},
    "sweep": {"file": ["smoke"]},
}
# Values that are of use, or that tests of the command itself are about.
ALLOWED: dict[tuple[str, str], set[str]] = {
    ("maze", "methods"): {"--methods"},  # None named: those of the study.
    ("maze", "set"): {"--set"},
    ("maze", "reuse"): {"--reuse"},  # None named: none reused.
    ("pretrain", "set"): {"--set"},
    ("finetune", "set"): {"--set"},
    ("control", "beside"): {"--beside"},  # None named: none beside.
    ("control", "set"): {"--set"},
    **{(command, "steps"): {"0"} for command in ("finetune", "control")},  # Only evaluates.
    ("evaluate", "skills"): {"0", "--skills"},
    ("evaluate", "out"): {"/proc/becl/x"},  # Whoever may write anywhere learns of it when it is written.
    ("gallery", "export"): {"{file}"},  # Suffixes are added.
    ("filmstrip", "out"): {"{file}"},
    **{(command, "out"): {"/proc/becl/x"} for command in ("video", "trajectories", "reach")},
    **{(command, "skills"): {"0", "--skills"} for command in ("gallery", "video", "filmstrip", "trajectories")},
    ("sweep", "gpus"): {"0"},
    ("sweep", "retries"): {"0"},
    **{(command, "seed"): {"0"} for command in ("gallery", "video", "filmstrip", "trajectories")},
    ("plot", "out"): {"{file}"},  # Suffixes are added.
    ("envs", "out"): {"{file}"},
    ("doctor", "out"): {*OUTPUTS},  # What it finds about a disk is its answer.
    ("doctor", "json"): {*OUTPUTS},
}


def texts_of(command: str, name: str, hint: Any) -> list[str]:
    """Values that an option of this type and name cannot have."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return texts_of(command, name, next(arg for arg in args if arg is not type(None)))
    if name in KINDS:
        return KINDS[name]
    if origin is tuple:
        return texts_of(command, name, args[0])
    if origin is Literal:
        return ["", "nonsense", str(args[0]).upper(), "x\ny"]
    return {int: NUMBERS, float: FRACTIONS, str: WORDS, bool: ["maybe"], Path: INPUTS}[hint]


def cases() -> Iterator[tuple[str, str, list[str], str]]:
    """Command, option, words and the text that is wrong."""
    for command, options in OPTIONS.items():
        described = options_of(options)
        plain = typing.get_type_hints(options)
        for field in dataclasses.fields(options):
            positional = described[field.name].positional
            beside = [word for name, words in BESIDE.get(command, {}).items() if name != field.name for word in words]
            option = "--" + field.name.replace("_", "-")
            for text in texts_of(command, field.name, plain[field.name]):
                if text in ALLOWED.get((command, field.name), ()):
                    continue
                own = [text] if positional else [f"{option}={text}"]
                yield command, option, [*beside, *own], text
            fine = positional or plain[field.name] is bool or option in ALLOWED.get((command, field.name), ())
            if not fine:
                yield command, option, [*beside, option], option
        words = [word for words in BESIDE.get(command, {}).values() for word in words]
        yield command, "--nonsense", [*words, "--nonsense"], "--nonsense"
        yield command, "--nonsense", [*words, "--nonsense", "3"], "--nonsense"


CASES = list(cases())


class Began(Exception):
    """Work was begun: the value was taken for a good one."""


@pytest.fixture(autouse=True)
def _no_work(monkeypatch):
    """What takes time or writes after all is checked."""

    def begin(*args: Any, **options: Any) -> None:
        raise Began

    for module, name in (
        (maze, "run_study"),
        (pretrain, "run_pretraining"),
        (pretrainer, "run_pretraining"),
        (pretrainer, "estimated_rate"),
        (finetune, "run_finetuning"),
        (finetuner, "run_finetuning"),
        (evaluation, "evaluate"),
        (reach, "play"),
        (gallery, "serve"),
        (gallery, "write_page"),
        (video, "film"),
        (filmstrip, "rows_of"),
        (trajectories, "draw"),
        (report, "write_report"),
        (sweeps, "executor_of"),
        (theory, "findings"),
    ):
        assert inspect.isfunction(getattr(module, name))
        monkeypatch.setattr(module, name, begin)


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    """Pretrained runs, an empty folder, a file, and where there is nothing."""
    folder = tmp_path_factory.mktemp("places")
    for name, env, method in (("run", "walker", "becl"), ("metra", "square_a", "metra")):
        planned = make_pretraining(
            PretrainOptions(env, method, (0, 1), 5000, skills=4, envs=2, hidden=8, set=["batch=16"])
        )
        open_folder(planned.config(), folder / name)
        state, _ = jax.eval_shape(lambda keys, run=planned.run: jax.vmap(run.init)(keys), seed_keys(planned.seeds))
        zeros = lambda tree: jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), tree)  # noqa: E731
        state = state._replace(learner=zeros(state.learner), objective=zeros(state.objective))
        save_snapshots(planned, folder / name, state, 100)
    (folder / "run" / "metrics.csv").write_text("step,seed,reward\n40,0,0.5\n40,1,0.5\n")
    (folder / "empty").mkdir()
    (folder / "file").write_text("plain")
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes_of("resnet18").items()}
    safetensors.numpy.save_file(tensors, folder / "weights")
    return {name: str(folder / name) for name in ("run", "metra", "empty", "file", "weights", "nowhere")}


def refused(words: list[str], tmp_path: Path, capsys: Any) -> str:
    """What is said about words that must be refused."""
    try:
        code = main(words)
    except Began:
        pytest.fail("accepted")
    said = capsys.readouterr()
    assert code == 2, said.err
    assert said.err.startswith("becl: ")
    assert said.err.count("\n") == 1
    assert len(said.err) < 2000
    assert "Traceback" not in said.err
    assert not list(tmp_path.iterdir())
    return said.err


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]} {case[3][:20]!r}")
def test_a_bad_value_is_one_line_and_nothing_written(case, places, tmp_path, monkeypatch, capsys):
    command, option, words, text = case
    monkeypatch.chdir(tmp_path)
    before = sorted(str(path) for path in Path(places["run"]).parent.rglob("*"))
    words = [word.format(**places) if "{" in word else word for word in words]
    said = refused([command, *words], tmp_path, capsys)
    assert sorted(str(path) for path in Path(places["run"]).parent.rglob("*")) == before
    # The line is about this option, and not about another that came first.
    shown = text.format(**places) if "{" in text else text.split("\n")[0]
    assert shown[:10] in said or option in said or option.strip("-") in said or (option == "--set" and "option" in said)


def test_there_are_many():
    assert set(OPTIONS) == set(HELP) == {command for command, *_ in CASES}
    assert len(CASES) > 300


# --- Any other option -------------------------------------------------------------------------------------------------


def leaves(spec: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted paths of all options below, with their types."""
    hints = typing.get_type_hints(type(spec))
    for field in dataclasses.fields(spec):
        value, here = getattr(spec, field.name), path + field.name
        if dataclasses.is_dataclass(value):
            yield from leaves(value, here + ".")
        else:
            yield here, hints[field.name]


WRONG = {int: ["", "x", "1.5", "-1", "nan", HUGE], float: ["", "x", "nan", "inf", "-inf", "-1", "1,2"],
         bool: ["", "x", "1", "yes"], str: []}  # fmt: skip


def wrong_for(hint: Any) -> list[str]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return wrong_for(next(arg for arg in args if arg is not type(None)))
    if origin is Literal:
        return ["", "x", args[0].upper()]
    if origin is tuple:
        return [text for text in wrong_for(args[0]) if text != "1,2" and text]
    return WRONG[hint]


def settings() -> Iterator[tuple[str, str]]:
    seen = set()
    for method in METHODS:
        run = make_pretraining(PretrainOptions("square_a", method)).run
        for path, hint in leaves(run):
            if path.startswith(("env", "objective.skills", "precision", "envs", "choice", "vision")):
                continue
            if path in ("objective.parts", "objective.names"):  # Of a sum: parts have options of their own.
                continue
            key = (path, type(run.objective).__name__ if path.startswith("objective.") else "")
            if key in seen:
                continue
            seen.add(key)
            for text in wrong_for(hint):
                if not (path.endswith("clip") and text == "inf"):  # No clipping.
                    yield method, f"{path}={text}"


@pytest.mark.parametrize(("method", "setting"), settings(), ids=str)
def test_a_bad_setting_is_one_line_and_nothing_written(method, setting, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = refused(["pretrain", "square_a", "--method", method, "--set", setting], tmp_path, capsys)
    assert setting.partition("=")[0].split(".")[-1] in said


def vision_settings() -> Iterator[str]:
    run = make_pretraining(PretrainOptions("walker", "becl", pixels=True)).run
    for path, hint in leaves(run.vision, "vision."):
        yield from (f"{path}={text}" for text in wrong_for(hint))


@pytest.mark.parametrize("setting", vision_settings(), ids=str)
def test_a_bad_setting_of_what_is_seen_is_one_line_and_nothing_written(setting, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = refused(["pretrain", "walker", "--pixels", "--set", setting], tmp_path, capsys)
    assert setting.partition("=")[0].split(".")[-1] in said


def test_the_setting_offered_for_a_slip_is_one():
    run = make_pretraining(PretrainOptions("square_a", "becl")).run
    paths = [path for path, _ in leaves(run)]
    for path in paths:
        with pytest.raises(UserError) as caught:
            override(run, path[:-1] + "qq", "1")
        offered = re.search(r"did you mean '([^']+)'", str(caught.value))
        assert offered is None or any(f"{one}.".startswith(f"{offered[1]}.") for one in paths), str(caught.value)


def maze_settings() -> Iterator[tuple[str, str]]:
    for method in ("becl", "becl-paper"):  # The released formula, and the printed one, which has more options.
        for path, hint in leaves(make_run(method, "square_a", 10)):
            seen = method != "becl" and not path.startswith("objective.")
            if path not in ("env.name", "objective.skills.dim") and not seen:
                texts = [text for text in wrong_for(hint) if not (path.endswith("clip") and text == "inf")]
                yield from ((method, f"{path}={text}") for text in texts)


@pytest.mark.parametrize(("method", "setting"), maze_settings(), ids=str)
def test_a_bad_setting_of_a_study_is_one_line_and_nothing_written(method, setting, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = refused(["maze", "--methods", method, "--set", setting], tmp_path, capsys)
    assert setting.partition("=")[0].split(".")[-1] in said

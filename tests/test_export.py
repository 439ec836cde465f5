"""Exported policies act like the run's networks, in every format, and what cannot be exported is refused in a line."""

import errno
import functools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import pytest
import safetensors
import safetensors.numpy
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from run_folders import SEEDS, TINY, forget_sums, make_folder

from becl.commands.cli import main
from becl.commands.export import run
from becl.commands.parse import parse_options
from becl.errors import UserError
from becl.experiments.finetuning import lane_keys, make_finetuning
from becl.experiments.policies import save_policies
from becl.experiments.pretraining import load_pretraining, make_pretraining
from becl.experiments.snapshots import load_snapshot, snapshot_path
from becl.experiments.transfer import load_learners, prepared
from becl.export import files, write
from becl.export.files import FORMATS, load_policy
from becl.export.policy import numpy_policy
from becl.invocation import to_install
from becl.learning.ddpg import Actor
from becl.learning.programs import programs
from becl.measure.skills import skills_of
from becl.nn.networks import Linear, Trunk
from becl.nn.precision import computing
from becl.options import ExportOptions, FinetuneOptions, PretrainOptions
from becl.runs.arrays import named_arrays
from becl.runs.folder import open_folder

TASKS = ("walker_stand", "walker_run")
OBS = 24  # Of the walker.
# No number of the networks is 0 or 1.
pretrained = functools.partial(make_folder, hidden=32, moved=0.2)


def finetuned(source: Path | None, out: Path, skill: str | None, tasks: tuple[str, ...] = TASKS) -> Path:
    """A folder as finetuning leaves it, after no step."""
    planned = make_finetuning(
        FinetuneOptions(
            source,
            tasks,
            seeds=SEEDS,
            steps=0,
            scratch=source is None,
            skill=skill,
            hidden=32 if source is None else None,
        )
    )
    open_folder(planned.config(), out)
    state, _ = programs(planned.run).init(lane_keys(planned))
    learners = None if source is None else load_learners(planned)
    save_policies(planned, out, prepared(planned, state, learners))
    return out


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def becl(runs) -> Path:
    return pretrained(runs / "becl", steps=(60, 100))


@pytest.fixture(scope="module")
def cic(runs) -> Path:
    return pretrained(runs / "cic", "cic")


@pytest.fixture(scope="module")
def aps(runs) -> Path:
    return pretrained(runs / "aps", "aps")


@pytest.fixture(scope="module")
def random_skill(becl, runs) -> Path:
    return finetuned(becl, runs / "finetune-random", "random")


def export(*words: Any) -> int:
    """The command as it is typed."""
    return run(parse_options(ExportOptions, "export", [str(word) for word in words]))


def refused(*words: Any) -> str:
    with pytest.raises(UserError) as error:
        export(*words)
    assert "\n" not in str(error.value)
    return str(error.value)


def observations(dim: int = OBS) -> np.ndarray:
    return np.random.default_rng(7).normal(size=(50, dim)).astype(np.float32)


def network(actor: Actor, skill: Any, obs: np.ndarray) -> np.ndarray:
    """Actions of a run's own network."""
    skill = np.broadcast_to(np.asarray(skill, np.float32), (len(obs), len(skill)))
    with computing("float32"):
        return np.asarray(actor(jnp.concatenate([obs, skill], -1)))


@functools.cache
def snapshot_actor(run: Path, seed: int, step: int = 100) -> Actor:
    return load_snapshot(load_pretraining(run), snapshot_path(run, seed, step))[0].actor


def stored(path: Path) -> tuple[Actor, np.ndarray]:
    """Network and skill of a finetuned policy, from its arrays."""
    arrays = safetensors.numpy.load_file(path)

    def array(name: str) -> jax.Array:
        return jnp.asarray(arrays[f"learner.actor.{name}"])

    trunk, hidden, out = (Linear(array(f"{n}.weight"), array(f"{n}.bias")) for n in ("trunk.linear", "hidden", "out"))
    return Actor(Trunk(trunk, array("trunk.gain"), array("trunk.shift")), hidden, out), arrays["skill"]


def papers_policy(arrays: dict[str, np.ndarray], obs: np.ndarray) -> np.ndarray:
    """The policy network as described, in float64: linear, LayerNorm, tanh, linear, ReLU, linear, tanh."""
    wide = {name: np.asarray(array, np.float64) for name, array in arrays.items() if name != "about"}
    actions = []
    for row in obs.astype(np.float64):
        first = row @ wide["trunk.weight"] + wide["trunk.bias"]
        mean = sum(first) / len(first)
        variance = sum((unit - mean) ** 2 for unit in first) / len(first)
        normal = (first - mean) / (variance + 1e-5) ** 0.5
        second = np.tanh(normal * wide["norm.gain"] + wide["norm.shift"])
        third = second @ wide["hidden.weight"] + wide["hidden.bias"]
        third = np.where(third > 0, third, 0)
        actions.append(np.tanh(third @ wide["out.weight"] + wide["out.bias"]))
    return np.array(actions)


def npz(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


# --- Actions ----------------------------------------------------------------------------------------------------------


class TestPretrained:
    @pytest.mark.parametrize("skill", [0, 2, 3])
    @pytest.mark.parametrize(("seed", "step"), [(3, 100), (5, 60)])
    def test_acts_like_the_network(self, becl, tmp_path, skill, seed, step):
        out = tmp_path / "policy.npz"
        assert export(becl, "--skill", skill, "--seed", seed, "--snapshot", step, "--out", out) == 0
        expected = network(snapshot_actor(becl, seed, step), np.eye(4)[skill], observations())
        np.testing.assert_allclose(papers_policy(npz(out), observations()), expected, atol=1e-5)

    def test_skills_differ(self, becl, tmp_path):
        actions = []
        for skill in (0, 1):
            export(becl, "--skill", skill, "--out", tmp_path / f"{skill}.npz")
            actions.append(papers_policy(npz(tmp_path / f"{skill}.npz"), observations()))
        assert np.abs(actions[0] - actions[1]).max() > 0.01

    def test_first_seed_and_last_snapshot_are_the_defaults(self, becl, tmp_path):
        export(becl, "--skill", 1, "--out", tmp_path / "a.npz")
        export(becl, "--skill", 1, "--seed", 3, "--snapshot", 100, "--out", tmp_path / "b.npz")
        assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()

    def test_numbers_of_a_continuous_skill(self, cic, tmp_path):
        skill = np.random.default_rng(0).uniform(size=64).round(3)
        export(cic, "--skill", ",".join(map(str, skill)), "--out", tmp_path / "a.npz")
        expected = network(snapshot_actor(cic, 3), skill, observations())
        np.testing.assert_allclose(papers_policy(npz(tmp_path / "a.npz"), observations()), expected, atol=1e-5)

    def test_a_direction_is_brought_to_length_one(self, aps, tmp_path):
        skill = np.array([-3.0, *range(9)])
        export(aps, "--skill", ",".join(map(str, skill)), "--out", tmp_path / "a.npz")
        expected = network(snapshot_actor(aps, 3), skill / np.linalg.norm(skill), observations())
        np.testing.assert_allclose(papers_policy(npz(tmp_path / "a.npz"), observations()), expected, atol=1e-5)

    @pytest.mark.parametrize("draw", [0, 15])
    def test_a_draw_is_that_of_evaluate(self, cic, tmp_path, draw):
        export(cic, "--skill", draw, "--out", tmp_path / "a.npz")
        skill = skills_of(load_pretraining(cic).run.objective.skills)[draw]
        assert json.loads(str(npz(tmp_path / "a.npz")["about"]))["skill_vector"] == pytest.approx(skill.tolist())
        expected = network(snapshot_actor(cic, 3), skill, observations())
        np.testing.assert_allclose(papers_policy(npz(tmp_path / "a.npz"), observations()), expected, atol=1e-5)

    @pytest.mark.parametrize(("method", "env", "obs"), [("rnd", "walker", OBS), ("rnd", "square_a", 2)])
    def test_without_skills(self, tmp_path, method, env, obs):
        run = pretrained(tmp_path / "run", method, env=env)
        assert "no skills" in refused(run, "--skill", 0, "--out", tmp_path / "a.npz")
        assert export(run, "--out", tmp_path / "a.npz") == 0
        expected = network(snapshot_actor(run, 3), np.zeros(0), observations(obs))
        np.testing.assert_allclose(papers_policy(npz(tmp_path / "a.npz"), observations(obs)), expected, atol=1e-5)


class TestFinetuned:
    @pytest.mark.parametrize("task", TASKS)
    def test_comes_with_its_skill(self, random_skill, tmp_path, task):
        out = tmp_path / "a.npz"
        assert export(random_skill, "--task", task, "--seed", 5, "--out", out) == 0
        actor, skill = stored(random_skill / f"{task}-seed-5" / "policy.safetensors")
        np.testing.assert_allclose(
            papers_policy(npz(out), observations()), network(actor, skill, observations()), atol=1e-5
        )
        about = json.loads(str(npz(out)["about"]))
        assert about["task"] == task
        assert about["skill"] == str(skill.argmax())
        assert about["pretraining_steps"] == 100

    def test_takes_no_other(self, random_skill, tmp_path):
        assert "leave it out" in refused(random_skill, "--task", TASKS[0], "--skill", 1, "--out", tmp_path / "a.npz")

    def test_each_has_a_policy_a_skill(self, becl, tmp_path):
        run = finetuned(becl, tmp_path / "each", "each", TASKS[:1])
        assert "choose one; becl has 0 to 3" in refused(run, "--out", tmp_path / "a.npz")
        assert export(run, "--skill", 2, "--out", tmp_path / "a.npz") == 0
        actor, skill = stored(run / "walker_stand-seed-3-skill-2" / "policy.safetensors")
        assert skill.tolist() == [0, 0, 1, 0]
        expected = network(actor, skill, observations())
        np.testing.assert_allclose(papers_policy(npz(tmp_path / "a.npz"), observations()), expected, atol=1e-5)

    def test_resampled_takes_any(self, becl, tmp_path):
        run = finetuned(becl, tmp_path / "resampled", "resampled", TASKS[:1])
        actor, kept = stored(run / "walker_stand-seed-3" / "policy.safetensors")
        for words, skill in (((), kept), (("--skill", 3), np.eye(4)[3])):
            export(run, *words, "--out", tmp_path / "a.npz", "--force")
            expected = network(actor, skill, observations())
            np.testing.assert_allclose(papers_policy(npz(tmp_path / "a.npz"), observations()), expected, atol=1e-5)

    @pytest.mark.parametrize("skill", ["constant", "best-first"])
    def test_continuous(self, cic, tmp_path, skill):
        run = finetuned(cic, tmp_path / "run", skill, TASKS[:1])
        assert export(run, "--out", tmp_path / "a.npz") == 0
        actor, kept = stored(run / "walker_stand-seed-3" / "policy.safetensors")
        expected = network(actor, kept, observations())
        np.testing.assert_allclose(papers_policy(npz(tmp_path / "a.npz"), observations()), expected, atol=1e-5)

    def test_from_scratch(self, tmp_path):
        run = finetuned(None, tmp_path / "scratch", None, TASKS[:1])
        assert "has no skill" in refused(run, "--skill", 1, "--out", tmp_path / "a.npz")
        assert export(run, "--out", tmp_path / "a.npz") == 0
        assert json.loads(str(npz(tmp_path / "a.npz")["about"]))["pretraining_steps"] is None

    def test_a_controller_is_no_policy(self, becl, tmp_path):
        planned = make_finetuning(FinetuneOptions(becl, TASKS[:1], seeds=SEEDS, steps=0, skill="meta"))
        open_folder(planned.config(), tmp_path / "meta")
        message = refused(tmp_path / "meta", "--out", tmp_path / "a.npz")
        assert "controllers" in message
        assert str(becl) in message


# --- Files ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(becl, tmp_path_factory) -> dict[str, Path]:
    """Skill 2 of seed 3 in every format."""
    folder = tmp_path_factory.mktemp("written")
    files = {kind: folder / f"policy.{kind}" for kind in FORMATS}
    for kind, path in files.items():
        assert export(becl, "--skill", 2, "--format", kind, "--out", path) == 0
    assert sorted(folder.iterdir()) == sorted(files.values())
    return files


ABOUT = {"env": "walker", "task": "", "method": "becl", "seed": 3, "step": 100, "skill": "2",
         "skill_vector": [0, 0, 1, 0], "observation_dim": 24, "action_dim": 6}  # fmt: skip


def as_text(value: Any) -> str:
    return (
        value if isinstance(value, str) else json.dumps([float(v) for v in value] if value == [0, 0, 1, 0] else value)
    )


class TestFormats:
    def test_npz(self, written):
        arrays = npz(written["npz"])
        about = json.loads(str(arrays.pop("about")))
        assert {name: array.shape for name, array in arrays.items()} == {
            "trunk.weight": (24, 32), "trunk.bias": (32,), "norm.gain": (32,), "norm.shift": (32,),
            "hidden.weight": (32, 32), "hidden.bias": (32,), "out.weight": (32, 6), "out.bias": (6,),
        }  # fmt: skip
        assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
        assert ABOUT.items() <= about.items()
        assert about.keys() - ABOUT.keys() == {"becl", "action_range", "forward"}

    def test_safetensors_holds_the_same(self, written):
        arrays = npz(written["npz"])
        same = safetensors.numpy.load_file(written["safetensors"])
        assert same.keys() == arrays.keys() - {"about"}
        for name, array in same.items():
            np.testing.assert_array_equal(array, arrays[name])
        with safetensors.safe_open(written["safetensors"], "numpy") as file:
            about = file.metadata()
        assert {name: as_text(value) for name, value in ABOUT.items()}.items() <= about.items()

    @pytest.mark.parametrize("kind", ["npz", "safetensors"])
    def test_the_documented_loader(self, becl, written, kind):
        """The code in docs/export.md, run as it stands there."""
        page = (Path(__file__).parents[1] / "docs" / "export.md").read_text()
        (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        names: dict[str, Any] = {}
        exec(compile(code, "docs/export.md", "exec"), names)
        act = names["load_policy"](written[kind])
        expected = network(snapshot_actor(becl, 3), np.eye(4)[2], observations())
        np.testing.assert_allclose(act(observations()), expected, atol=1e-5)
        np.testing.assert_allclose(act(observations()[0]), expected[0], atol=1e-5)

    def test_onnx_is_the_policy(self, becl, written):
        found: Any = ReferenceEvaluator(str(written["onnx"])).run(None, {"observation": observations()})
        expected = network(snapshot_actor(becl, 3), np.eye(4)[2], observations())
        np.testing.assert_allclose(found[0], expected, atol=1e-5)

    @pytest.mark.parametrize("whitened", [False, True])
    def test_onnx_is_the_formula(self, tmp_path, whitened):
        """Also with observations whitened, some of them beyond where they are cut off."""
        rng = np.random.default_rng(1)
        shapes = {"trunk.weight": (3, 8), "hidden.weight": (8, 8), "out.weight": (8, 2), "out.bias": (2,)}
        shapes |= dict.fromkeys(("trunk.bias", "norm.gain", "norm.shift", "hidden.bias"), (8,))
        arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        obs = seen = (3 * rng.normal(size=(20, 3))).astype(np.float32)
        if whitened:
            mean, std = np.array([0.5, -1, 2], np.float32), np.array([0.1, 1, 4], np.float32)
            arrays |= {"obs.mean": mean, "obs.std": std}
            seen = np.clip((obs - mean) / std, -5, 5)
            assert {-5, 5} <= {*seen.flat}
        files.save(tmp_path / "a.onnx", arrays, {"becl": "1.0", "env": "walker"})
        actions = load_policy(tmp_path / "a.onnx")(obs)
        assert actions.dtype == np.float32
        np.testing.assert_allclose(actions, papers_policy(arrays, seen), atol=1e-5)
        np.testing.assert_allclose(actions, numpy_policy(arrays)(obs), atol=1e-5)

    def test_onnx_has_all_that_a_model_needs(self, written):
        model = onnx.load_model(written["onnx"])
        onnx.checker.check_model(model, full_check=True)
        assert model.ir_version == 8
        assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
        assert [place(value) for value in model.graph.input] == [("observation", 1, ["batch", 24])]
        assert [place(value) for value in model.graph.output] == [("action", 1, ["batch", 6])]
        about = {entry.key: entry.value for entry in model.metadata_props}
        assert {name: as_text(value) for name, value in ABOUT.items()}.items() <= about.items()
        tensors, arrays = tensors_of(model), npz(written["npz"])
        for name in arrays.keys() - {"about"}:
            np.testing.assert_array_equal(tensors[name], arrays[name])
        # Every input of a node is there before the node.
        known = {"observation", *tensors}
        for node in model.graph.node:
            assert {*node.input} <= known
            known |= {*node.output}

    def test_onnx_in_onnxruntime(self, becl, written):
        onnxruntime = pytest.importorskip("onnxruntime")
        session = onnxruntime.InferenceSession(written["onnx"], providers=["CPUExecutionProvider"])
        (actions,) = session.run(["action"], {"observation": observations()})
        expected = network(snapshot_actor(becl, 3), np.eye(4)[2], observations())
        np.testing.assert_allclose(actions, expected, atol=1e-5)

    def test_onnx_stays_in_range(self, written):
        """Also where tanh is rounded up: the last node cuts off."""
        model = onnx.load_model(written["onnx"])
        last, tensors = model.graph.node[-1], tensors_of(model)
        assert (last.op_type, [*last.output]) == ("Clip", ["action"])
        assert [tensors[name].tolist() for name in last.input[1:]] == [-1.0, 1.0]

    @pytest.mark.parametrize("kind", FORMATS)
    def test_read_again_it_acts_like_the_skill(self, becl, written, kind):
        """With the one forward pass that `skill(obs)` has too, or onnx's own."""
        arrays = write.fold(snapshot_actor(becl, 3), np.eye(4, dtype=np.float32)[2])
        expected = numpy_policy(arrays)(observations())
        actions = load_policy(written[kind])(observations())
        if kind == "onnx":
            np.testing.assert_allclose(actions, expected, atol=1e-5)
        else:
            np.testing.assert_array_equal(actions, expected)


def place(value: onnx.ValueInfoProto) -> tuple[str, int, list[Any]]:
    """Name, type and shape of what goes in or comes out."""
    tensor = value.type.tensor_type
    return value.name, tensor.elem_type, [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]


def tensors_of(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    assert {tensor.data_type for tensor in model.graph.initializer} == {onnx.TensorProto.FLOAT}
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


# --- What is refused --------------------------------------------------------------------------------------------------


class TestRefused:
    def test_no_run(self, becl, tmp_path):
        assert "holds no run" in refused(tmp_path / "nowhere", "--skill", 0, "--out", tmp_path / "a.npz")
        (tmp_path / "maze").mkdir()
        (tmp_path / "maze" / "config.json").write_text('{"command": "maze"}')
        assert "no run of becl pretrain" in refused(tmp_path / "maze", "--skill", 0, "--out", tmp_path / "a.npz")
        (tmp_path / "maze" / "config.json").write_text('{"command": ')
        assert "damaged" in refused(tmp_path / "maze", "--skill", 0, "--out", tmp_path / "a.npz")
        for kind in ("pretrain", "finetune"):
            (tmp_path / "maze" / "config.json").write_text(json.dumps({"command": kind, "env": "walker"}))
            assert "damaged" in refused(tmp_path / "maze", "--skill", 0, "--out", tmp_path / "a.npz")

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--skill", "4"], "--skill 4: choose one; becl has 0 to 3"),
            (["--skill", "-1"], "--skill -1: choose one; becl has 0 to 3"),
            (["--skill", "1,0,0,0"], "--skill 1,0,0,0: choose one; becl has 0 to 3"),
            (["--skill", "run"], "--skill run: choose one; becl has 0 to 3"),
            ([], "--skill: choose one; becl has 0 to 3"),
            (["--skill", "0", "--seed", "4"], "--seed 4: {run} has 3, 5"),
            (["--skill", "0", "--snapshot", "70"], "--snapshot 70: {run} has 60, 100"),
            (["--skill", "0", "--task", "walker_run"], "--task walker_run: {run} was pretrained without a task; "
                                                       "leave it out"),
        ],
    )  # fmt: skip
    def test_of_pretraining(self, becl, tmp_path, words, message):
        assert refused(becl, *words, "--out", tmp_path / "sub" / "a.npz") == message.format(run=becl)
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ([], "--task: choose one; {run} has walker_stand, walker_run"),
            (["--task", "walker_walk"], "unknown task of {run} 'walker_walk': did you mean 'walker_"),
            (["--task", "walker_run", "--seed", "4"], "--seed 4: {run} has 3, 5"),
            (
                ["--task", "walker_run", "--snapshot", "100"],
                "--snapshot 100: a finetuned run keeps its last policy only",
            ),
        ],
    )
    def test_of_finetuning(self, random_skill, tmp_path, words, message):
        assert refused(random_skill, *words, "--out", tmp_path / "a.npz").startswith(message.format(run=random_skill))
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("skill", [None, "16", "0.5", "0.5,0.5", ",".join(["0.5"] * 63 + ["1.5"]), "a,b",
                                       ",".join(["0.5"] * 63 + ["nan"])])  # fmt: skip
    def test_of_a_cube(self, cic, tmp_path, skill):
        words = [] if skill is None else ["--skill", skill]
        assert "cic needs 64 numbers in [0, 1]" in refused(cic, *words, "--out", tmp_path / "a.npz")

    def test_of_a_sphere(self, aps, tmp_path):
        message = refused(aps, "--skill", ",".join(["0"] * 10), "--out", tmp_path / "a.npz")
        assert "aps needs 10 numbers that are a direction" in message

    def test_not_finished(self, becl, tmp_path):
        planned = make_finetuning(FinetuneOptions(becl, TASKS[:1], seeds=SEEDS, steps=0, skill="random"))
        open_folder(planned.config(), tmp_path / "run")
        assert "not finished" in refused(tmp_path / "run", "--out", tmp_path / "a.npz")

    def test_no_snapshot(self, tmp_path):
        planned = make_pretraining(PretrainOptions("walker", "becl", SEEDS, 100, hidden=32, set=TINY))
        open_folder(planned.config(), tmp_path / "run")
        assert "no snapshot of seed 3 yet" in refused(tmp_path / "run", "--skill", 0, "--out", tmp_path / "a.npz")

    @pytest.mark.parametrize(
        ("name", "words", "message"),
        [
            ("a.npy", [], "has to end in .npz, .safetensors or .onnx"),
            ("a", [], "has to end in .npz, .safetensors or .onnx"),
            ("a.npz", ["--format", "onnx"], "a file of --format onnx ends in .onnx"),
            ("a.npz", ["--format", "pt"], "pt"),
            ("folder.npz", [], "is a folder"),
            ("there.npz", [], "exists; --force replaces it"),
            ("there.npz/a.npz", [], "is a file"),
            ("a" * 300 + ".npz", [], "name too long"),
        ],
    )
    def test_place(self, becl, tmp_path, name, words, message):
        (tmp_path / "folder.npz").mkdir()
        (tmp_path / "there.npz").write_text("mine")
        assert message in refused(becl, "--skill", 0, *words, "--out", tmp_path / name).replace("Name", "name")
        assert (tmp_path / "there.npz").read_text() == "mine"
        assert len([*tmp_path.rglob("*")]) == 2

    def test_no_permission(self, becl, tmp_path, monkeypatch):
        monkeypatch.setattr(os, "access", lambda *_: False)
        assert "no permission" in refused(becl, "--skill", 0, "--out", tmp_path / "a.npz")

    def test_full_disk(self, becl, tmp_path, monkeypatch):
        def full(path: Path, *_: Any) -> None:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(write, "save", full)
        assert "No space left on device" in refused(becl, "--skill", 0, "--out", tmp_path / "a.npz")
        assert list(tmp_path.iterdir()) == []

    def test_without_onnx(self, becl, tmp_path, monkeypatch):
        """One line that says what to type; the other formats go without."""
        monkeypatch.setitem(sys.modules, "onnx", None)
        out = tmp_path / "new" / "a.onnx"
        assert refused(becl, "--skill", 0, "--out", out) == f"--out {out}: onnx is not installed; {to_install('onnx')}"
        assert main(["export", str(becl), "--skill", "0", "--out", str(out)]) == 2
        assert list(tmp_path.iterdir()) == []
        assert export(becl, "--skill", 0, "--out", tmp_path / "a.npz") == 0

    def test_its_own_source(self, becl):
        source = snapshot_path(becl, 3, 100)
        before = source.read_bytes()
        assert "is read from" in refused(becl, "--skill", 0, "--out", source, "--force")
        assert source.read_bytes() == before


class TestDamaged:
    @pytest.fixture
    def run(self, becl, tmp_path) -> Path:
        return shutil.copytree(becl, tmp_path / "run")

    def change(self, run: Path, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
        forget_sums(run)
        path = snapshot_path(run, 3, 100)
        arrays = safetensors.numpy.load_file(path)
        change(arrays)
        safetensors.numpy.save_file(arrays, path)

    def test_cut_short(self, run, tmp_path):
        path = snapshot_path(run, 3, 100)
        path.write_bytes(path.read_bytes()[:-100])
        assert f"{path} is damaged" in refused(run, "--skill", 0, "--out", tmp_path / "a.npz")

    def test_an_array_is_missing(self, run, tmp_path):
        self.change(run, lambda arrays: arrays.pop("learner.actor.out.bias"))
        assert "learner.actor.out.bias is missing" in refused(run, "--skill", 0, "--out", tmp_path / "a.npz")

    def test_another_shape(self, run, tmp_path):
        self.change(run, lambda arrays: arrays.update({"learner.actor.out.bias": np.zeros(7, np.float32)}))
        assert "has shape (7,), not (6,)" in refused(run, "--skill", 0, "--out", tmp_path / "a.npz")

    def test_not_a_number(self, run, tmp_path):
        self.change(run, lambda arrays: arrays["learner.actor.hidden.weight"].__setitem__((0, 0), np.nan))
        message = refused(run, "--skill", 0, "--out", tmp_path / "a.npz")
        assert "actor.hidden.weight has numbers that are not finite" in message
        assert not (tmp_path / "a.npz").exists()

    def test_a_finetuned_policy(self, random_skill, tmp_path):
        run = shutil.copytree(random_skill, tmp_path / "run")
        path = run / "walker_stand-seed-3" / "policy.safetensors"
        path.write_bytes(b"nothing")
        assert f"{path} is damaged" in refused(run, "--task", "walker_stand", "--out", tmp_path / "a.npz")


class TestSelfCheck:
    @pytest.mark.parametrize("kind", FORMATS)
    def test_a_file_that_acts_otherwise_is_not_left(self, becl, tmp_path, monkeypatch, capsys, kind):
        out = tmp_path / f"a.{kind}"
        out.write_text("mine")
        fold = write.fold

        def wrong(actor, skill):
            arrays = fold(actor, skill)
            return arrays | {"out.bias": arrays["out.bias"] + np.float32(1e-3)}

        monkeypatch.setattr(write, "fold", wrong)
        assert export(becl, "--skill", 0, "--out", out, "--force") == 1
        assert "becl: failed: actions of the written file differ" in capsys.readouterr().err
        assert [path.name for path in tmp_path.iterdir()] == [out.name]
        assert out.read_text() == "mine"

    def test_says_what_was_written(self, becl, tmp_path, capsys):
        export(becl, "--skill", 2, "--seed", 5, "--out", tmp_path / "new" / "a.onnx")
        said = capsys.readouterr().out
        assert said.startswith(f"becl, walker, seed 5, 100 steps, skill 2 → {tmp_path}/new/a.onnx (0.0 MB)\n")
        assert re.search(r"observation \(24\) → action \(6\) in \[-1, 1\]; .* by at most \d(\.\d)?e-0[678]\n", said)


def test_all_weights_are_exported(becl):
    """Nothing of the network is left out: as many numbers as it has, less the rows of skills."""
    actor = snapshot_actor(becl, 3)
    arrays = write.fold(actor, np.eye(4, dtype=np.float32)[0])
    everything = sum(array.size for array in named_arrays(actor).values())
    assert sum(array.size for array in arrays.values()) == everything - 4 * 32

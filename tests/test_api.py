"""The package from Python: runs, skills as plain functions, callbacks, and anyone's environment handed over."""

import csv
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict

import becl
from becl.commands.cli import main
from becl.envs import external
from becl.experiments.snapshots import load_snapshot, snapshot_path
from becl.export.files import load_policy
from becl.export.policy import fold, numpy_policy
from becl.trust import trust

SETTINGS = ["batch=16", "random_steps=40", "replay.capacity=400"]
TINY: dict[str, Any] = {"hidden": 8, "envs": 2, "set": SETTINGS, "quiet": True}
PRETRAIN: dict[str, Any] = {"skills": 3, "steps": 120, "log_every": 60, "normalize_obs": True, **TINY}


class Slope(gymnasium.Env):
    """Slides where it is pushed and earns as much; ends for good beyond 3. Its state is the only number that counts."""

    observation_space = Dict({"place": Box(-9, 9, (1,)), "other": Box(-1, 1, (2,))})
    action_space = Box(np.array([2.0, -1.0]), np.array([4.0, 0.0]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0.0
        return self._seen(), {}

    def _seen(self):
        return {"place": np.array([self.place], np.float32), "other": np.zeros(2, np.float32)}

    def step(self, action):
        assert self.action_space.contains(action)
        self.place += float(action[0]) - 3
        return self._seen(), float(action[0]) - 3, self.place > 3, False, {}


def limited(length: int = 10) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Slope(), length)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> becl.Run:
    folder = tmp_path_factory.mktemp("api") / "run"
    return becl.pretrain(limited, "diayn", seeds=(4, 7), out=folder, **PRETRAIN)


@pytest.fixture(scope="module")
def tuned(run) -> becl.Finetuned:
    out = run.folder.parent / "tuned"
    return becl.finetune(
        run, steps=100, eval_every=50, eval_episodes=2, final_episodes=3, skill="fixed:1", out=out, quiet=True
    )


class TestRun:
    def test_is_what_was_asked_for(self, run):
        assert run.method == "diayn"
        assert run.env == f"py:{__name__}:limited"
        assert run.seeds == (4, 7)
        assert run.skills == becl.OneHot(3)
        assert run.snapshots == [120]
        assert run.finished
        assert run.spec.run.learner == becl.DDPG(hidden=8, normalize=True)
        assert repr(run) == f"Run(diayn on py:{__name__}:limited, seeds 4, 7, 120 steps, {str(run.folder)!r})"

    def test_metrics_are_those_of_the_file(self, run):
        with (run.folder / "metrics.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert [float(row["reward"]) for row in rows] == [row["reward"] for row in run.metrics]
        assert {(row["step"], row["seed"]) for row in run.metrics} == {(60, 4), (60, 7), (120, 4), (120, 7)}

    def test_loads(self, run, tuned):
        assert becl.load(run.folder) == run
        assert becl.load(str(tuned.folder)) == tuned

    def test_the_same_call_again_changes_nothing(self, run):
        before = (run.folder / "result.json").stat().st_mtime_ns
        again = becl.pretrain(
            limited,
            "diayn",
            skills=3,
            seeds=[4, 7],
            steps=120,
            log_every=60,
            normalize_obs=True,
            out=run.folder,
            **TINY,
        )
        assert again == run
        assert (run.folder / "result.json").stat().st_mtime_ns == before

    def test_mistakes_are_user_errors(self, run, tmp_path):
        with pytest.raises(becl.UserError, match="unknown method 'dayn': did you mean 'diayn'"):
            becl.pretrain("walker", "dayn", out=tmp_path / "x")
        with pytest.raises(becl.UserError, match="one of them"):
            becl.finetune(out=tmp_path / "x")
        with pytest.raises(becl.UserError, match="has 0 to 2"):
            run.skill(3)
        with pytest.raises(becl.UserError, match="did you mean 'gym:Pendulum-v1'"):
            becl.pretrain("Pendulum-v1", out=tmp_path / "x")
        with pytest.raises(becl.UserError, match="is not an environment"):
            becl.pretrain(3, out=tmp_path / "x")
        assert list(tmp_path.iterdir()) == []


class TestSkill:
    def test_is_the_network_in_the_environments_range(self, run):
        skill = run.skill(2, seed=7)
        actor = load_snapshot(run.spec, snapshot_path(run.folder, 7, 120))[0].actor
        obs = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
        given = jnp.concatenate([obs, jnp.broadcast_to(jax.nn.one_hot(2, 3), (5, 3))], 1)
        mean = np.asarray(actor(given))
        expected = np.stack([3 + mean[:, 0], -0.5 + 0.5 * mean[:, 1]], 1)
        np.testing.assert_allclose(skill(obs), expected, atol=1e-5)
        np.testing.assert_allclose(skill(obs[0]), expected[0], atol=1e-5)
        assert (skill.obs_dim, skill.action_dim) == (3, 2)
        np.testing.assert_array_equal(skill.vector, [0, 0, 1])

    def test_takes_the_environments_own_observations(self, run):
        env, skill = limited(), run.skill(0)
        obs, _ = env.reset(seed=0)
        np.testing.assert_array_equal(skill(obs), skill(np.concatenate([obs["other"], obs["place"]])))
        env.step(skill(obs))

    def test_skills_and_seeds_differ(self, run):
        obs = np.ones(3, np.float32)
        actions = [run.skill(k, seed=s)(obs) for s in run.seeds for k in range(3)]
        assert len({tuple(action) for action in actions}) == 6

    def test_repr(self, run):
        assert repr(run.skill(1)) == f"Skill 1 of diayn on py:{__name__}:limited, seed 4, 120 steps"

    @pytest.mark.parametrize("kind", ["npz", "safetensors", "onnx"])
    def test_exported_it_acts_the_same(self, run, tmp_path, kind):
        path = run.export(tmp_path / f"skill.{kind}", 1)
        act = load_policy(path)
        obs = np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32) * 3
        mean = act(obs)
        expected = np.stack([3 + mean[:, 0], -0.5 + 0.5 * mean[:, 1]], 1)
        np.testing.assert_allclose(run.skill(1)(obs), expected, atol=1e-5)

    def test_whitening_is_the_formula(self, run):
        actor = load_snapshot(run.spec, snapshot_path(run.folder, 4, 120))[0].actor
        arrays = fold(actor, np.array([0, 1, 0], np.float32))
        number, total, squares = (np.asarray(part, float) for part in actor.moments)
        mean = total / number
        std = np.sqrt(np.maximum(squares / number - mean**2, 0.01))
        np.testing.assert_allclose(arrays["obs.mean"], mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(arrays["obs.std"], std, rtol=1e-3)
        plain = {name: array for name, array in arrays.items() if not name.startswith("obs.")}
        obs = np.random.default_rng(2).normal(size=(4, 3)) * 30
        whitened = np.clip((obs - mean) / std, -5, 5)
        np.testing.assert_allclose(numpy_policy(arrays)(obs), numpy_policy(plain)(whitened), atol=1e-4)

    def test_a_wrong_observation_is_said_in_one_line(self, run):
        with pytest.raises(becl.UserError, match=r"shape \(5,\): 3 numbers are needed"):
            run.skill(0)(np.zeros(5))
        with pytest.raises(becl.UserError, match=r"not an observation of py:.*place"):
            run.skill(0)({"other": np.zeros(2)})


class TestFinetuned:
    def test_scores_and_policy(self, tuned):
        assert [(row["seed"], row["step"]) for row in tuned.scores] == [
            (seed, step) for step in (0, 50, 100) for seed in (4, 7)
        ]
        assert (tuned.folder / f"py-{__name__}-limited-seed-7" / "policy.safetensors").exists()
        policy, env = tuned.policy(seed=7), limited()
        obs, _ = env.reset(seed=0)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy(obs))
            total, over = total + float(reward), terminated or truncated
        # Every episode of this environment is the same.
        assert total == pytest.approx(tuned.scores[-1]["return"], rel=1e-4)

    def test_observations_are_whitened_as_they_were(self, run, tuned):
        before = load_snapshot(run.spec, snapshot_path(run.folder, 4, 120))[0].actor.moments
        arrays = tuned.policy(seed=4).arrays
        assert tuned.spec.run.learner.normalize
        # Twenty updates of 16 further observations.
        assert before.number > 0
        assert arrays["obs.mean"].shape == (3,)

    def test_from_scratch(self, tmp_path):
        options: dict[str, Any] = TINY | {"set": ["random_steps=20"]}
        done = becl.finetune(
            scratch=limited, steps=60, eval_every=60, eval_episodes=1, final_episodes=2, out=tmp_path / "run", **options
        )
        assert done.method == "ddpg"
        assert len(done.scores) == 2


class Lost(Slope):
    """Does not know where it is after a while."""

    def _seen(self):
        return super()._seen() | ({"place": np.array([np.nan], np.float32)} if self.place > 1 else {})


def test_numbers_that_are_none_are_the_environments_fault(tmp_path):
    with pytest.raises(
        becl.Failed, match=r"an environment failed after .*: number 2 of an observation is nan"
    ) as error:
        becl.pretrain(Lost, "rnd", steps=120, out=tmp_path / "run", **TINY)
    assert isinstance(error.value.__cause__, ValueError)
    assert "check_outcome" in (tmp_path / "run" / "error.log").read_text()


def test_evaluates_anyones_environment(run):
    found = becl.evaluate(run, episodes=3, quiet=True)
    assert len(found.zero_shot) == 6
    skill, env = run.skill(1, seed=4), limited()
    obs, _ = env.reset(seed=0)
    total, steps, over = 0.0, 0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(skill(obs))
        total, steps, over = total + float(reward), steps + 1, terminated or truncated
    row = next(row for row in found.zero_shot if (row["seed"], row["skill"]) == (4, 1))
    assert row["return"] == pytest.approx(total, rel=1e-4)
    assert row["stderr"] == pytest.approx(0, abs=1e-6)
    assert next(row for row in found.per_skill if (row["seed"], row["skill"]) == (4, 1))["length"] == steps
    assert (run.folder / "evaluation" / "zero-shot-120.csv").exists()


def test_reports_anyones_environment(tuned, tmp_path):
    page = becl.report(tuned.folder.parent, tmp_path / "report", quiet=True)
    assert f"py:{__name__}:limited" in page.read_text()


class Heard(becl.Callback):
    def __init__(self, stop_at: int | None = None):
        self.events, self.stop_at = [], stop_at

    def on_start(self, folder, config):
        self.events.append(("start", config["method"]))

    def on_log(self, step, rows):
        self.events.append(("log", step, [row["seed"] for row in rows]))
        return step == self.stop_at

    def on_score(self, step, rows):
        assert all(isinstance(row["return"], float) for row in rows)
        self.events.append(("score", step))

    def on_end(self, finished):
        self.events.append(("end", finished))


api: Any = becl  # Which says nothing of types: arguments are wrong on purpose below.
BAD_CALLS = {
    "callbacks alone": lambda run, out: api.pretrain("square_a", callbacks=becl.Callback(), out=out, **PRETRAIN),
    "callbacks a class": lambda run, out: api.pretrain("square_a", callbacks=[becl.Callback], out=out, **PRETRAIN),
    "callbacks a number": lambda run, out: api.pretrain("square_a", callbacks=[5], out=out, **PRETRAIN),
    "callbacks none": lambda run, out: api.finetune(run, callbacks=None, out=out),
    "quiet a word": lambda run, out: api.pretrain("square_a", out=out, **PRETRAIN | {"quiet": "no"}),
    "no such option": lambda run, out: api.pretrain("square_a", bath=3, out=out),
    "too many": lambda run, out: api.load(run, 3, 4, 5),
    "steps a fraction": lambda run, out: api.pretrain("walker", steps=1.5e3, out=out),
    "hidden a word": lambda run, out: api.pretrain("walker", hidden="wide", out=out),
    "a setting without a path": lambda run, out: api.pretrain("walker", set={5: 3}, out=out),
    "load a number": lambda run, out: api.load(5),
    "resume nothing": lambda run, out: api.resume(None),
    "resume a fraction": lambda run, out: api.resume(run.folder, steps=1.5),
    "reuse a number": lambda run, out: api.maze(["diayn"], reuse=5, out=out),
    "sweep to a number": lambda run, out: api.sweep("smoke", out=5),
    "a skill between two": lambda run, out: run.skill(1.5),
    "an observation of text": lambda run, out: run.skill(1)("hello"),
    "export to a number": lambda run, out: run.export(5, 1),
    "a method without a name": lambda run, out: api.register(5, becl.METHODS["becl"]),
    "a sum of numbers": lambda run, out: api.Sum(5),
    "a task that is a number": lambda run, out: api.finetune(run, 5, out=out),
    "scratch and a run": lambda run, out: api.finetune(run, scratch=True, out=out),
    "scratch of nothing": lambda run, out: api.finetune(scratch=True, out=out),
}


WITHOUT_CHECKS = """
import sys
from pathlib import Path
import becl
from test_api import BAD_CALLS, limited
run, out = becl.load(sys.argv[1], env=limited), Path(sys.argv[2])
for name, call in BAD_CALLS.items():
    try:
        call(run, out)
        print(f"{name}: nothing")
    except Exception as error:
        print(f"{name}: {type(error).__name__}, {str(error).count(chr(10))} {out.exists()}")
"""


def test_a_bad_call_is_a_user_error_and_nothing_written(run, tmp_path):
    # In a process of its own: the tests' checks of types would find the mistakes first.
    code = [sys.executable, "-c", WITHOUT_CHECKS, str(run.folder), str(tmp_path / "out")]
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(code, env=os.environ | {"PYTHONPATH": paths}, cwd=tmp_path, capture_output=True, text=True)
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert said == dict.fromkeys(BAD_CALLS, "UserError, 0 False"), done.stderr
    assert not list(tmp_path.iterdir())


def test_quiet_is_only_ours(tmp_path, capsys):
    class Loud(becl.Callback):
        def on_log(self, step, rows):
            print(f"heard at {step}")
            print("a warning", file=sys.stderr)
            return False

    becl.pretrain("square_a", "diayn", callbacks=[Loud()], out=tmp_path / "run", **PRETRAIN)
    said = capsys.readouterr()
    assert said.out == "heard at 60\nheard at 120\n"
    assert said.err == "a warning\n" * 2


def test_options_have_the_names_of_the_command_line(monkeypatch):
    asked = []

    def begin(options, *rest):
        asked.append(options)
        raise KeyboardInterrupt

    monkeypatch.setattr("becl.api.calls.finetuned", begin)
    one = "runs/one"
    for args, options in (((), {"scratch": True, "task": "walker_run"}), ((), {"scratch": "walker_run"}),
                          ((one,), {"tasks": ["walker_run"]}), ((one,), {"task": "walker_run"})):  # fmt: skip
        with pytest.raises(KeyboardInterrupt):
            becl.finetune(*args, **options)
    assert asked[0] == asked[1]
    assert asked[2] == asked[3]


class TestCallbacks:
    def test_hear_of_everything_in_order(self, tmp_path):
        heard = Heard()
        run = becl.pretrain(
            "square_a", "rnd", seeds=(1, 2), steps=120, log_every=60, out=tmp_path / "run", callbacks=[heard], **TINY
        )
        assert heard.events == [("start", "rnd"), ("log", 60, [1, 2]), ("log", 120, [1, 2]), ("end", True)]
        assert run.finished

    def test_can_stop_a_run_which_goes_on_later(self, tmp_path):
        heard, out = Heard(stop_at=60), tmp_path / "run"
        options: dict[str, Any] = {"seeds": (1, 2), "steps": 120, "log_every": 60, "out": out, **TINY}
        with pytest.raises(KeyboardInterrupt):
            becl.pretrain("square_a", "rnd", callbacks=[heard], **options)
        assert heard.events[-1] == ("end", False)
        assert [row["step"] for row in becl.load(out).metrics] == [60, 60]
        assert becl.resume(out, quiet=True).finished
        whole = becl.pretrain("square_a", "rnd", **options | {"out": tmp_path / "whole"})
        drop = lambda rows: [{k: v for k, v in row.items() if k != "steps_per_second"} for row in rows]  # noqa: E731
        assert json.dumps(drop(becl.load(out).metrics)) == json.dumps(drop(whole.metrics))

    def test_hear_of_scores(self, run, tmp_path):
        heard = Heard()
        becl.finetune(
            run,
            seeds=(4,),
            steps=60,
            eval_every=60,
            eval_episodes=1,
            final_episodes=2,
            out=tmp_path / "x",
            callbacks=[heard],
            quiet=True,
        )
        assert [event for event in heard.events if event[0] == "score"] == [("score", 0), ("score", 60)]
        assert heard.events[-1] == ("end", True)


class TestWandb:
    @pytest.fixture
    def calls(self, monkeypatch):
        """Stands in for their module."""
        calls = []

        class Theirs:
            def log(self, values):
                calls.append(("log", values))

            def finish(self, exit_code):
                calls.append(("finish", exit_code))

        def init(**options):
            calls.append(("init", options))
            return Theirs()

        monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
        return calls

    def test_is_told_rows_by_lane(self, calls, tmp_path):
        words = ["--seeds", "3,4", "--steps", "120", "--hidden", "8", "--envs", "2", "--log-every", "60"]
        words += ["--set", *SETTINGS, "--wandb", "mine", "--out", str(tmp_path / "run")]
        assert main(["pretrain", "square_a", "--method", "rnd", *words]) == 0
        names = [name for name, _ in calls]
        assert names == ["init", "log", "log", "finish"]
        assert calls[0][1]["project"] == "mine"
        assert calls[0][1]["config"]["method"] == "rnd"
        assert calls[1][1]["environment_step"] == 60
        rows = becl.load(tmp_path / "run").metrics
        assert calls[1][1]["seed-3/reward"] == pytest.approx(rows[0]["reward"], rel=1e-4)
        assert calls[2][1]["seed-4/reward"] == pytest.approx(rows[3]["reward"], rel=1e-4)
        assert calls[3] == ("finish", 0)

    def test_is_missed_in_one_line(self, monkeypatch, tmp_path, capsys):
        monkeypatch.setitem(sys.modules, "wandb", None)
        assert main(["pretrain", "square_a", "--wandb", "mine", "--out", str(tmp_path / "run")]) == 2
        assert "[wandb]'" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


class TestHandedOver:
    def test_functions_and_classes_are_found_again_by_name(self):
        assert external.hand_over(limited) == f"py:{__name__}:limited"
        assert external.hand_over(Slope) == f"py:{__name__}:Slope"
        external.FACTORIES.clear()
        trust(f"py:{__name__}:limited")
        assert external.make_external(f"py:{__name__}:limited", 1, 0).spec == becl.envs.EnvSpec(3, 2, 10)

    def test_gymnasiums_own_keep_their_name(self):
        assert external.hand_over(gymnasium.make("Pendulum-v1")) == "gym:Pendulum-v1"
        changed = gymnasium.make("Pendulum-v1", g=1.0)
        name = external.hand_over(changed)
        assert name.startswith("py:")
        batch = external.make_external(name, 2, 0)
        assert [env.unwrapped.g for env in batch._envs.envs] == [1.0, 1.0]

    def test_an_object_is_copied(self):
        one = Slope()
        one.reset()
        one.place = 2.0
        batch = external.make_external(external.hand_over(one), 2, 0)
        batch.reset()
        assert one.place == 2.0
        assert len({id(env) for env in batch._envs.envs}) == 2

    def test_dm_control_is_wrapped_and_seeded(self):
        from dm_control import suite

        def make():
            return suite.load("point_mass", "easy")

        for given in (make, make()):
            name = external.hand_over(given)
            first, again, other = (external.make_external(name, 1, seed).reset() for seed in (0, 0, 1))
            np.testing.assert_array_equal(first, again)
            assert not np.array_equal(first, other)

    def test_what_another_process_had_is_asked_for(self, tmp_path):
        here = lambda: limited(5)  # noqa: E731
        run = becl.pretrain(here, "rnd", steps=60, out=tmp_path / "run", **TINY)
        external.FACTORIES.clear()
        external.external_spec.cache_clear()
        with pytest.raises(becl.UserError, match="pass it again"):
            run.skill()
        again = becl.load(run.folder, env=here)
        assert isinstance(again, becl.Run)
        assert again.skill().obs_dim == 3
        trust("py:nowhere.at.all:make")
        with pytest.raises(becl.UserError, match="cannot be imported"):
            external.make_external("py:nowhere.at.all:make", 1, 0)

    def test_another_of_the_same_name_replaces_it(self):
        def make(length):
            def named():
                return limited(length)

            return named

        specs = [external.external_spec(external.hand_over(make(length))) for length in (3, 6)]
        assert [spec.episode_length for spec in specs] == [3, 6]


def test_every_name_is_there_and_import_is_quick():
    for name in becl.__all__:
        assert getattr(becl, name) is not None
    assert set(becl.__all__) == {name for names in becl._HOME.values() for name in names}
    with pytest.raises(AttributeError, match="no attribute 'pretrian'"):
        becl.pretrian  # noqa: B018
    code = "import sys, becl; print([name for name in ('jax', 'numpy', 'mujoco') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_specs_of_older_folders_still_fit(run):
    """An option that was added later is not in config.json where it has its default."""
    from becl.specs import to_dict

    assert "normalize" not in to_dict(becl.DDPG())
    assert to_dict(becl.envs.EnvSpec(3, 2, 10)) == [3, 2, 10]
    assert to_dict(becl.envs.EnvSpec(3, 2, 10, discrete=True)) == [3, 2, 10, True]
    assert to_dict(becl.DDPG(normalize=True))["normalize"] is True
    config = json.loads((run.folder / "config.json").read_text())
    assert config["run"]["learner"]["normalize"] is True


def test_a_study_from_a_script_without_a_guard(tmp_path):
    """Workers are new processes, which would run the script again."""
    script = tmp_path / "script.py"
    script.write_text("import becl\nprint(becl.maze(['diayn'], skills=2, cycles=1, quiet=True)[0]['label'])\n")
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "diayn\n", done.stderr

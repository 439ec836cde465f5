"""`becl control`: skills of any space, another environment, runs beside, and what it refuses."""

import json

import gymnasium
import numpy as np
import pytest

import becl
from becl.experiments.control import compared
from becl.runs.tables import read_rows

TINY = ["--envs", "2", "--eval-every", "200", "--eval-episodes", "1", "--final-episodes", "2",
        "--set", "batch=8", "random_steps=2", "replay.capacity=100"]  # fmt: skip


class Longer(gymnasium.ObservationWrapper):
    """A pendulum that shows one number more."""

    def __init__(self):
        super().__init__(gymnasium.make("Pendulum-v1"))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def observation(self, observation):
        return np.append(observation, np.float32(1))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    tiny = {"steps": 120, "hidden": 8, "envs": 2, "set": ["batch=12", "random_steps=40", "replay.capacity=400"]}
    for method in ("metra", "rnd"):
        becl.pretrain("gym:Pendulum-v1", method, out=folder / method, quiet=True, **tiny)
    if "becl-test/Longer-v0" not in gymnasium.registry:
        gymnasium.register("becl-test/Longer-v0", lambda: Longer(), max_episode_steps=200)  # type: ignore[arg-type]
    return folder


def test_directions_are_picked_too_and_other_runs_stand_beside(runs, tmp_path, capsys):
    scratch, own = tmp_path / "scratch", tmp_path / "own"
    words = ["finetune", "--scratch", "--task", "gym:Pendulum-v1", "--steps", "100", "--hidden", "8", *TINY[:2]]
    words += ["--eval-episodes", "1", "--final-episodes", "2", "--set", "batch=8", "random_steps=40"]
    assert becl.main([*words, "--out", str(scratch)]) == 0
    words = ["control", str(runs / "metra"), "--interval", "100", "--steps", "600", "--out", str(own), *TINY]
    assert becl.main([*words, "--beside", str(scratch)]) == 0
    shown = capsys.readouterr().out
    config = json.loads((own / "config.json").read_text())
    learner = config["run"]["learner"]
    assert (learner["spec"], learner["interval"]) == ("Controller", 100)
    assert "switch_cost" not in learner  # As in older folders.
    assert config["run"]["env"] == [3, 16, 2]  # Sixteen directions, two decisions an episode.
    rows = compared(("gym:Pendulum-v1",), [own, scratch])
    assert [name for name, _ in rows] == [str(own), str(scratch)]
    for folder, (_, (cell,)) in zip((own, scratch), rows, strict=True):
        assert float(cell) == pytest.approx(read_rows(folder / "final.csv")[0]["return"], rel=0.01)
        assert cell in shown
    assert becl.main(words) == 0  # It is finished.
    assert "--beside" in capsys.readouterr().out


def test_a_learned_stop_in_an_environment_that_shows_more(runs, tmp_path):
    out = tmp_path / "out"
    words = ["control", str(runs / "metra"), "--task", "gym:becl-test/Longer-v0", "--stop", "learned",
             "--switch-cost", "0.5", "--steps", "400", "--out", str(out), *TINY]  # fmt: skip
    assert becl.main(words) == 0
    config = json.loads((out / "config.json").read_text())
    assert config["env"] == "gym:becl-test/Longer-v0"
    assert config["pretraining"]["env"] == "gym:Pendulum-v1"
    assert (config["run"]["learner"]["interval"], config["run"]["learner"]["switch_cost"]) == (10, 0.5)
    assert config["run"]["env"] == [4 + 16, 16, 20]
    found = becl.load(out)
    assert isinstance(found, becl.Finetuned)
    assert {row["task"] for row in found.final} == {"gym:becl-test/Longer-v0"}
    assert 0 <= found.metrics[-1]["switches"] <= 1


def test_scores_are_means_over_seeds_and_their_errors(tmp_path):
    folder = tmp_path / "some"
    folder.mkdir()
    (folder / "final.csv").write_text("task,seed,return\na,0,1\na,1,3\nb,0,5\n")
    assert compared(("a", "b", "c"), [folder]) == [(str(folder), ["2.00 ± 1.00", "5.00", ""])]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{rnd}"], "rnd has no skills to pick from"),
        (["{metra}", "--switch-cost", "0.1"], "--switch-cost 0.1: only with --stop learned"),
        (["{metra}", "--stop", "learned", "--switch-cost", "-1"], "--switch-cost -1: must be greater than 0"),
        (["{metra}", "--stop", "learned", "--switch-cost", "inf"], "--switch-cost"),
        (["{metra}", "--stop", "learnd"], "'learned'"),
        (["{metra}", "--interval", "0"], "--interval 0: at least 1"),
        (["{metra}", "--interval", "30"], "episodes of 200 steps cannot be cut into stretches of 30"),
        (["{metra}", "--steps", "5020"], "--steps 5020: with a controller, must be a multiple of 50"),
        (["{metra}", "--task", "gym:MountainCarContinuous-v0"], "needs 1 actions, and its 3 numbers first"),
        (["{metra}", "--task", "gym:Pendulum-v9"], "did you mean 'Pendulum-v1'"),
        (["{metra}", "--task", "walker_run"], "has one task, its own reward"),
        (["{metra}", "--beside", "{metra}"], "holds no finetuning run"),
        (["{metra}/no"], "{metra}/no"),
    ],
)
def test_what_cannot_be_is_refused_with_one_line_and_nothing_written(words, message, runs, tmp_path, capsys):
    names = {name: str(runs / name) for name in ("metra", "rnd")}
    given = [word.format(**names) for word in words]
    assert becl.main(["control", *given, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message.format(**names) in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()

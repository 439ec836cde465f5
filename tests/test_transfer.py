"""Defaults are those that results were measured with."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from becl.experiments.maze_study import load_study, make_study
from becl.experiments.pretraining import make_pretraining
from becl.measure import stats
from becl.measure.published import EXPERT
from becl.objectives import METHODS
from becl.objectives.becl_released import BeCLReleased
from becl.options import MazeOptions, PretrainOptions
from becl.specs import upgraded
from benchmarks.numbers import transfer

RESULTS = Path(__file__).parent.parent / "results"
DEFAULT = "becl-released"
"""Where results/transfer has the runs of the default `becl`."""


def recorded(path: Path) -> dict[str, Any]:
    return upgraded(json.loads(path.read_text()))


@pytest.mark.parametrize("robot", sorted(path.name for path in (RESULTS / "transfer").iterdir()))
def test_the_default_on_robots_is_what_was_measured(robot):
    """Fails where `becl` changes without new runs in results/transfer and a new docs/transfer.md."""
    kept = recorded(RESULTS / "transfer" / robot / DEFAULT / "pretrain" / "config.json")
    today = json.loads(json.dumps(make_pretraining(PretrainOptions(robot, "becl")).config()))
    assert kept["run"] == today["run"]


def test_the_default_is_the_one_that_transfers_best_of_what_was_measured():
    means: dict[str, list[float]] = {}
    for robot in ("quadruped", "walker"):  # jaco is never chosen by.
        for variant in transfer.kept(robot):
            scores = stats.normalise(transfer.final_scores(robot, variant), EXPERT)
            means.setdefault(variant.name, []).append(float(stats.mean(scores)))
    robots = max(map(len, means.values()))
    complete = {name: np.mean(found) for name, found in means.items() if len(found) == robots}
    assert max(complete, key=complete.__getitem__) == DEFAULT


def test_the_paper_preset_is_algorithm_1_to_the_letter():
    run = make_pretraining(PretrainOptions("quadruped", "becl-paper")).run
    objective: Any = run.objective
    assert run.fits_per_update == 1
    assert run.replay.balanced
    assert (objective.state, objective.positive, objective.denominator) == ("obs", "pair", "paper")
    assert (objective.temperature, objective.skills.dim, objective.ramp) == (0.5, 16, 0.0)


def test_the_released_preset_is_the_released_program():
    run = make_pretraining(PretrainOptions("quadruped", "becl-released")).run
    objective: Any = run.objective
    assert run.fits_per_update == 3
    assert run.replay.released_skill
    assert isinstance(objective, BeCLReleased)
    assert (objective.state, objective.positive, objective.temperature) == ("next_obs", "first", 0.5)
    assert (run.reward_scale, run.reward_normalise) == (1.0, "none")


def test_every_methods_reward_has_its_released_size():
    for name in METHODS:
        run = make_pretraining(PretrainOptions("walker", name)).run
        assert (run.reward_scale, run.reward_normalise) == (1.0, "none"), name


def test_the_maze_is_trained_as_its_results_were(tmp_path):
    """What changes for robots must not change the maze unseen."""
    shutil.copy(RESULTS / "maze" / "comparison" / "config.json", tmp_path)
    (tmp_path / "seeds.json").write_text("[0]")
    kept = load_study(tmp_path)
    today = make_study(MazeOptions(tuple(kept.runs), maze="square_a", cycles=2500))
    assert kept.runs == today.runs

"""Sentences about what was learned: that they say it where it is so, and only there."""

import dataclasses
import math
import shlex
from typing import Any

import numpy as np
import pytest

from becl.commands.parse import parse_options
from becl.experiments.evaluation import Evaluation, Request, verdict_lines
from becl.experiments.finetuning import make_finetuning
from becl.experiments.pretraining import Pretraining, make_pretraining
from becl.experiments.verdicts import finetuning_lines, next_step, pretraining_lines, task_verdicts
from becl.measure.verdicts import Level, judge_accuracy, judge_returns, judge_reward, level, tenth
from becl.options import EvaluateOptions, FinetuneOptions, PretrainOptions, ResumeOptions

STEPS = np.arange(1, 101) * 1000.0


def noisy(mean: float, spread: float, seeds: int = 3, points: int = 100) -> np.ndarray:
    """Values whose mean over the last tenth is as asked for, to the digit."""
    values = np.random.default_rng(0).normal(0, spread, (seeds, points))
    last = values[:, -10:]
    values[:, -10:] = last - last.mean(1, keepdims=True)
    return values + mean


def test_level_takes_the_larger_error():
    values = np.array([[1.0, 3.0], [2.0, 4.0]])
    between, within = math.sqrt(0.5) / math.sqrt(2), math.sqrt(4 / 2 / 4)
    assert level(values) == pytest.approx((2.5, max(between, within)))
    far = np.array([[1.0, 1.0], [3.0, 3.0]])
    assert level(far) == pytest.approx((2.0, 1.0))  # The deviation of the seeds, sqrt(2), by sqrt(2).
    assert level(np.array([[1.0, math.nan, 3.0]])).mean == 2.0
    assert math.isnan(level(np.array([[5.0]])).error)
    assert math.isnan(level(np.array([[math.nan]])).mean)


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (0.03194, 0.00012, "0.03194 ± 0.00012"),
        (812.3, 14.0, "812 ± 14"),
        (2.0, math.nan, "2"),
        (1234.5, 0.0, "1234"),
        (-0.04, 3.0, "0.0 ± 3.0"),
    ],
)
def test_a_level_has_the_digits_that_its_error_allows(mean, error, text):
    assert Level(mean, error).text == text


@pytest.mark.parametrize(("points", "rows"), [(1, 1), (2, 2), (20, 3), (30, 3), (31, 4), (200, 20)])
def test_a_tenth_has_some_rows(points, rows):
    assert tenth(points) == rows


@pytest.mark.parametrize(
    ("mean", "spread", "chance", "learned", "said"),
    [
        (0.0319, 0.0002, 1 / 31, False, "not above chance (0.0323)"),
        (0.0324, 0.004, 1 / 31, False, "not above chance (0.0323)"),  # Above, within its error.
        (0.0340, 0.0001, 1 / 31, False, "hardly above chance (0.0323)"),  # Surely above, by 5 %.
        (0.197, 0.002, 1 / 31, True, "6.1 times chance (0.0323): skills can be told apart"),
        (0.3, 0.01, 0.0, True, "above chance (0): skills can be told apart"),
        (-0.2, 0.01, 0.0, False, "not above chance (0)"),
    ],
)
def test_a_reward_with_a_chance_level_is_judged_by_it(mean, spread, chance, learned, said):
    verdict = judge_reward("becl", STEPS, noisy(mean, spread), chance)
    assert verdict.learned is learned
    assert verdict.sentence.startswith(f"becl: the reward was {mean:.3g}"[:30])
    assert "in the last 10,000 steps" in verdict.sentence
    assert said in verdict.sentence


def test_early_rows_do_not_count():
    reward = noisy(0.03, 0.0001)
    reward[:, :80] = 5.0
    assert judge_reward("becl", STEPS, reward, 1 / 31).learned is False


def test_a_single_row_cannot_say():
    verdict = judge_reward("becl", np.array([400.0]), np.array([[0.9]]), 1 / 31)
    assert verdict.learned is None
    assert "a single row cannot say" in verdict.sentence


def test_without_a_chance_level_begin_and_end_stand_beside_each_other():
    reward = noisy(2.0, 0.01)
    reward[:, :10] = 1.0
    verdict = judge_reward("icm", STEPS, reward, None)
    assert verdict.learned is None
    assert "went from 1 in the first tenth of the log to 2.0000" in verdict.sentence
    assert "ended at 1" in judge_reward("icm", STEPS[:2], np.ones((1, 2)), None).sentence


def test_accuracy_is_judged_by_how_many_episodes_there_were():
    assert judge_accuracy(np.array([0.69, 0.71]), 16, 10).sentence == (
        "skills can be told apart: accuracy 0.700 ± 0.010, 11 times that of guessing (0.062)"
    )
    # Guessing 32 episodes: 0.25 with a deviation of 0.077.
    assert judge_accuracy(np.array([0.40]), 4, 8).learned is False
    assert judge_accuracy(np.array([0.40]), 4, 80).learned is True


def test_returns_are_compared_lane_by_lane():
    first, last = np.array([10.0, 200.0]), np.array([30.0, 222.0])
    assert judge_returns("run", first, last, math.nan).sentence == (
        "run: return 105 before training, 126 after it: it rose by 21.0 ± 1.0"
    )
    assert judge_returns("run", first, first[::-1], math.nan).learned is False
    assert judge_returns("run", first[:1], last[:1], 2.0).learned is True
    assert judge_returns("run", first[:1], last[:1], 20.0).learned is False
    assert judge_returns("run", first[:1], last[:1], math.nan).learned is None


def rows_of(*returns: tuple[str, int, int, float]) -> list[dict[str, str]]:
    return [
        {"task": task, "seed": str(seed), "skill": "", "step": str(step), "return": str(value), "stderr": ""}
        for task, seed, step, value in returns
    ]


def test_tasks_that_were_evaluated_once_have_no_verdict():
    rows = rows_of(("run", 0, 0, 1.0), ("run", 0, 50, 7.0), ("run", 0, 100, 5.0), ("walk", 0, 0, 1.0))
    (one,) = task_verdicts(["run", "walk", "flip"], rows)
    assert one.sentence.startswith("run: return 1.00 before training, 5.00 after it")


# --- What to type next ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short() -> Pretraining:
    return make_pretraining(PretrainOptions("walker", "becl-paper", (0, 1), 20_000, hidden=8, skills=4))


def options_of(line: str, kind: type) -> Any:
    """What the command in a line asks for, by the command line's own rules."""
    words = shlex.split(line[line.index("becl ") :])
    return parse_options(kind, words[1], words[2:])


def test_a_run_that_learned_nothing_is_told_how_to_train_longer(short, tmp_path):
    asked = options_of(next_step(short, tmp_path / "a run", False), ResumeOptions)
    assert (asked.run, asked.steps) == (tmp_path / "a run", 2_000_000)


def test_a_run_that_learned_or_was_long_is_looked_at(short, tmp_path):
    long = dataclasses.replace(short, steps=2_000_000)
    assert f"becl gallery {tmp_path}" in next_step(short, tmp_path, True)
    assert options_of(next_step(long, tmp_path, False), EvaluateOptions).run == tmp_path
    assert options_of(next_step(short, tmp_path, None), EvaluateOptions).run == tmp_path
    foreign = dataclasses.replace(short, env="gym:Pendulum-v1")
    assert "gallery" not in next_step(foreign, tmp_path, True)


def test_the_next_command_names_whose_code_it_runs(short, tmp_path, monkeypatch):
    foreign = dataclasses.replace(short, env="gym:arms/Arm-v0")
    asked = options_of(next_step(foreign, tmp_path, None), EvaluateOptions)
    assert (asked.run, asked.trust) == (tmp_path, True)
    assert "--trust" not in next_step(dataclasses.replace(short, env="gym:Pendulum-v1"), tmp_path, None)
    monkeypatch.setattr("becl.experiments.verdicts.origins_of", lambda config: {"own": "my methods.py"})
    assert next_step(short, tmp_path, None).endswith(f"becl evaluate {tmp_path} --plugin 'my methods.py'")


def test_the_last_lines_of_a_pretraining(short, tmp_path):
    rows = [f"{step},{seed},0.14" for step in range(1000, 20_001, 1000) for seed in (0, 1)]
    (tmp_path / "metrics.csv").write_text("\n".join(["step,seed,reward", *rows]) + "\n")
    sentence, following = pretraining_lines(short, tmp_path)
    assert "not above chance (0.143)" in sentence  # 1/7 with four skills.
    assert following.startswith("train longer")
    (tmp_path / "metrics.csv").unlink()
    assert pretraining_lines(short, tmp_path) == []


def test_a_finetuning_names_what_to_compare_it_with(short, tmp_path):
    tuned = make_finetuning(FinetuneOptions(run=tmp_path, task=("walker_run",), seeds=(0, 1)), short)
    rows = rows_of(("walker_run", 0, 0, 1.0), ("walker_run", 1, 0, 1.0))
    rows += rows_of(("walker_run", 0, 9, 5.0), ("walker_run", 1, 9, 5.5))
    sentence, following = finetuning_lines(tuned, rows, tmp_path)
    assert "walker_run: return 1.00 before training, 5.25 after it: it rose by" in sentence
    asked = options_of(following, FinetuneOptions)
    assert (asked.scratch, tuple(asked.task), asked.steps, tuple(asked.seeds)) == (
        True,
        ("walker_run",),
        100_000,
        (0, 1),
    )
    scratch = make_finetuning(FinetuneOptions(scratch=True, task=("walker_run",)))
    assert "becl finetune RUN" in finetuning_lines(scratch, rows, tmp_path)[-1]


def test_an_evaluation_that_cannot_say_says_so(short, tmp_path):
    measured = Evaluation([], [], [{"seed": 0, "knn_accuracy": 0.9}, {"seed": 1, "knn_accuracy": 0.8}])
    request = Request(short, tmp_path, 9, [0, 1], [], np.eye(4, dtype=np.float32), [0, 1, 2, 3], 10, tmp_path)
    sentence, following = verdict_lines(request, measured)
    assert sentence.startswith("skills can be told apart: accuracy 0.850 ± 0.050, 3.4 times that of guessing (0.25)")
    assert "gallery" in following
    assert verdict_lines(request._replace(episodes=1), measured) == [
        "one episode per skill cannot show whether skills can be told apart: --episodes 10"
    ]
    assert verdict_lines(request._replace(names=[""]), measured) == [f"next: becl finetune {tmp_path}"]

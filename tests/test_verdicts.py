"""Sentences about what was learned: that they say it where it is so, and only there."""

import math

import numpy as np
import pytest

from becl.experiments.verdicts import task_verdicts
from becl.measure.verdicts import Level, judge_accuracy, judge_returns, judge_reward, level, tenth

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
        (1234.5, 0.0, "1.23e+03"),
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

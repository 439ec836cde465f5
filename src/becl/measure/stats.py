"""Aggregates of scores over tasks and runs, and how certain they are.

The aggregates and the stratified bootstrap of Agarwal et al. (2021), "Deep Reinforcement Learning
at the Edge of the Statistical Precipice". A score is a return divided by the expert's. A method's
scores are a mapping from task to the scores of its runs, or an array [runs, tasks].

The number of runs may differ between tasks. Every task weighs the same: a run of a task with n runs
weighs 1 / (tasks * n). A resample draws runs with replacement within each task, so it is a new set
of weights, and every aggregate here is a function of weights.
"""

import functools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from becl.errors import UserError

CUT = 0.25  # Fraction of the runs that the interquartile mean leaves out at each end.
FEW_RUNS = 5  # Intervals of fewer runs per task come with a warning.
CHUNK = 250_000  # Weights in memory at a time: 2 MB per array, which a core's cache holds.
BAND_COLUMNS = 64  # Thresholds of a profile resampled at a time: 26 MB with 50,000 resamples.


class Sample(NamedTuple):
    """Runs of all tasks in one row, with their weights, which sum to 1 / tasks in every task."""

    tasks: tuple[str, ...]
    task: Int[np.ndarray, " runs"]  # Index of each run's task, in rising order.
    scores: Float[np.ndarray, " runs"]
    weights: Float[np.ndarray, "*resamples runs"]


class Interval(NamedTuple):
    """A value and the bounds of its interval. Without an interval the bounds are NaN."""

    value: float
    low: float
    high: float
    warning: str = ""  # Why not to trust the bounds; empty if nothing is known against them.


class Profile(NamedTuple):
    """Fraction of the runs above each threshold, with bounds that hold at each threshold alone."""

    thresholds: Float[np.ndarray, " thresholds"]
    value: Float[np.ndarray, " thresholds"]
    low: Float[np.ndarray, " thresholds"]
    high: Float[np.ndarray, " thresholds"]
    warning: str = ""


Scores = Mapping[str, ArrayLike] | np.ndarray
Values = np.floating | Float[np.ndarray, " resamples"]
Statistic = Callable[[Sample], Values]


def normalise(returns: Mapping[str, ArrayLike], expert: Mapping[str, float]) -> dict[str, Float[np.ndarray, " runs"]]:
    """Returns of each task divided by the expert's."""
    if missing := sorted(set(returns) - set(expert)):
        raise UserError(f"no expert score for {', '.join(missing)}: known: {', '.join(sorted(expert))}")
    if bad := [task for task in returns if not expert[task] > 0]:
        raise UserError(f"expert scores must be above 0: {bad[0]} has {expert[bad[0]]}")
    return {task: np.asarray(runs, np.float64) / expert[task] for task, runs in returns.items()}


def pool(scores: Scores | Sample) -> Sample:
    """Scores as one row of runs with weights. A sample is returned as it is.

    Tasks of a mapping and runs of a task are sorted, so that results do not depend on their order.
    """
    if isinstance(scores, Sample):
        return scores
    if isinstance(scores, Mapping):
        by_task = {name: np.asarray(scores[name], np.float64) for name in sorted(scores)}
    elif isinstance(scores, np.ndarray) and scores.ndim == 2:
        by_task = {f"task {column}": runs for column, runs in enumerate(np.asarray(scores, np.float64).T)}
    else:
        raise UserError("scores must be a mapping from task to runs, or an array of shape [runs, tasks]")
    if not by_task:
        raise UserError("no scores: there is no task")
    for name, runs in by_task.items():
        if runs.ndim != 1:
            raise UserError(f"scores of {name} must be one number per run: their shape is {runs.shape}")
        if not runs.size:
            raise UserError(f"no scores: {name} has no run")
        if not np.isfinite(runs).all():
            raise UserError(f"scores of {name} must be numbers: run {np.isfinite(runs).argmin()} is not")
    sizes = np.array([runs.size for runs in by_task.values()])
    return Sample(
        tasks=tuple(by_task),
        task=np.repeat(np.arange(len(sizes)), sizes),
        scores=np.concatenate([np.sort(runs) for runs in by_task.values()]),
        weights=np.repeat(1.0 / (len(sizes) * sizes), sizes),
    )


def mean(scores: Scores | Sample) -> Values:
    """Mean over tasks of the mean over runs."""
    sample = pool(scores)
    return sample.weights @ sample.scores


def median(scores: Scores | Sample) -> Values:
    """Median over tasks of the mean over runs."""
    return np.median(task_means(scores), axis=-1)


def task_means(scores: Scores | Sample) -> Float[np.ndarray, "*resamples tasks"]:
    """Mean over runs, for each of `pool(scores).tasks`."""
    sample = pool(scores)
    of_task = sample.task[:, None] == np.arange(len(sample.tasks))
    return len(sample.tasks) * (sample.weights @ (of_task * sample.scores[:, None]))


def iqm(scores: Scores | Sample) -> Values:
    """Interquartile mean: the mean of all runs without the top and the bottom quarter.

    With N runs in all, floor(N / 4) / N of the weight is left out at each end. With equally many runs
    on every task, these are the floor(N / 4) lowest and highest runs, as in `scipy.stats.trim_mean`.
    With unequal numbers, a run at the border may count in part.
    """
    sample = pool(scores)
    cut = int(CUT * len(sample.scores)) / len(sample.scores)
    order = np.argsort(sample.scores)
    weight_up_to = np.cumsum(sample.weights[..., order], axis=-1)
    kept = np.diff(np.clip(weight_up_to, cut, 1 - cut), prepend=cut, axis=-1)
    return kept @ sample.scores[order] / (1 - 2 * cut)


def optimality_gap(scores: Scores | Sample, target: float = 1.0) -> Values:
    """Mean over tasks and runs of max(target - score, 0), how far runs fall short; less is better."""
    if not target > 0:
        raise UserError(f"the target of the optimality gap must be above 0: got {target}")
    sample = pool(scores)
    return sample.weights @ np.maximum(target - sample.scores, 0.0)


def probability_of_improvement(scores: Scores | Sample, other: Scores | Sample) -> Values:
    """Mean over tasks of P(X > Y) + P(X = Y) / 2, with X a run of `scores` and Y one of `other`."""
    x, y = _same_tasks(scores, other)
    wins = (np.sign(x.scores[:, None] - y.scores) + 1) / 2 * (x.task[:, None] == y.task)
    return len(x.tasks) * ((x.weights @ wins) * y.weights).sum(-1)


def difference(scores: Scores | Sample, other: Scores | Sample) -> Values:
    """Mean of `scores` minus the mean of `other`, every task weighing the same."""
    x, y = _same_tasks(scores, other)
    return mean(x) - mean(y)


def profile(
    scores: Scores | Sample, thresholds: Float[np.ndarray, " thresholds"]
) -> Float[np.ndarray, "*resamples thresholds"]:
    """Mean over tasks of the fraction of runs whose score is above each threshold."""
    sample = pool(scores)
    return sample.weights @ (sample.scores[:, None] > thresholds).astype(np.float64)


AGGREGATES: dict[str, Statistic] = {"iqm": iqm, "optimality_gap": optimality_gap, "mean": mean, "median": median}


def aggregates(
    scores: Scores | Sample, resamples: int = 50_000, level: float = 0.95, seed: int = 0
) -> dict[str, Interval]:
    """The four aggregates of one method, each with the interval that `interval` gives, all from the same resamples."""
    found = _intervals(list(AGGREGATES.values()), (pool(scores),), resamples, level, seed)
    return dict(zip(AGGREGATES, found, strict=True))


def interval(
    scores: Scores | Sample,
    statistic: Statistic = iqm,
    resamples: int = 50_000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """A statistic with the percentile interval of its stratified bootstrap over runs.

    `statistic` maps a sample with weights [resamples, runs] to values [resamples].
    """
    return _intervals([statistic], (pool(scores),), resamples, level, seed)[0]


def improvement_interval(
    scores: Scores | Sample,
    other: Scores | Sample,
    resamples: int = 50_000,
    level: float = 0.95,
    seed: int = 0,
    statistic: Callable[[Sample, Sample], Values] = probability_of_improvement,
) -> Interval:
    """Probability of improvement, or `difference` of means, with its interval; runs of both methods are resampled."""
    return _intervals([statistic], _same_tasks(scores, other), resamples, level, seed)[0]


def profile_band(
    scores: Scores | Sample,
    thresholds: Float[np.ndarray, " thresholds"],
    resamples: int = 50_000,
    level: float = 0.95,
    seed: int = 0,
) -> Profile:
    """A performance profile with an interval at each threshold.

    It takes some thresholds at a time, all with the same resamples, so that memory does not grow with their number.
    """
    _check(resamples, level)
    sample = pool(scores)
    value = profile(sample, thresholds)
    few = _few_runs((sample,), level)
    if np.bincount(sample.task).min() < 2:
        return Profile(thresholds, value, np.full_like(value, np.nan), np.full_like(value, np.nan), few)
    bounds = []
    for start in range(0, len(thresholds), BAND_COLUMNS):
        part = functools.partial(profile, thresholds=thresholds[start : start + BAND_COLUMNS])
        bounds.append(_bounds(_bootstrap(part, (sample,), resamples, seed), level))
    low, high = np.concatenate(bounds, axis=1) if bounds else np.empty((2, 0))
    return Profile(thresholds, value, low, high, few)


def best_coverage(runs: int, tasks: int, level: float = 0.95) -> float:
    """How often, at best, the interval of a mean of symmetric runs holds the true mean.

    Resampling n runs shows (n - 1) / n of their variance. With many tasks, whose mean is normal,
    the interval therefore holds the truth with probability 2 Phi(z sqrt((n - 1) / n)) - 1, with z the
    normal quantile of the level. With one task it lies between the lowest and the highest run, and
    the truth is outside whenever all runs fall on the same side of it: 2 (1/2)^n of the time.
    """
    normal = statistics.NormalDist()
    many_tasks = 2 * normal.cdf(normal.inv_cdf((1 + level) / 2) * ((runs - 1) / runs) ** 0.5) - 1
    return min(many_tasks, 1 - 0.5 ** (runs - 1)) if tasks == 1 else many_tasks


def _intervals(
    functions: Sequence[Callable[..., Values]], samples: tuple[Sample, ...], resamples: int, level: float, seed: int
) -> list[Interval]:
    """Intervals of several statistics from the same resamples, whose drawing takes longer than most statistics."""
    _check(resamples, level)
    values = [float(function(*samples)) for function in functions]
    few = _few_runs(samples, level)
    if min(np.bincount(sample.task).min() for sample in samples) < 2:
        return [Interval(value, float("nan"), float("nan"), few) for value in values]

    def each(*drawn: Sample) -> Float[np.ndarray, "resamples functions"]:
        return np.stack([function(*drawn) for function in functions], axis=-1)

    intervals = []
    for value, (low, high) in zip(values, _bounds(_bootstrap(each, samples, resamples, seed), level).T, strict=True):
        same = "all resamples give the same value: the bounds say nothing" if high - low < 1e-12 else ""
        intervals.append(Interval(value, float(low), float(high), few or same))
    return intervals


def _bootstrap(
    statistic: Callable[..., Values | np.ndarray], samples: tuple[Sample, ...], resamples: int, seed: int
) -> Float[np.ndarray, "resamples *values"]:
    """The statistic of each resample, computed for a few thousand of them at a time."""
    rng = np.random.default_rng(seed)
    chunk = max(1, CHUNK // max(len(sample.scores) for sample in samples))
    sizes = [min(chunk, resamples - done) for done in range(0, resamples, chunk)]
    return np.concatenate([statistic(*(_resample(sample, rng, size) for sample in samples)) for size in sizes])


def _resample(sample: Sample, rng: np.random.Generator, number: int) -> Sample:
    """Draws as many runs from each task as it has; a run drawn twice weighs twice."""
    runs = len(sample.scores)
    of_task = np.bincount(sample.task)
    end = np.cumsum(of_task)
    drawn = np.concatenate(
        [rng.integers(end[task] - n, end[task], (number, n), np.int32) for task, n in enumerate(of_task)], axis=1
    )
    drawn += runs * np.arange(number, dtype=np.int32)[:, None]
    times_drawn = np.bincount(drawn.ravel(), minlength=number * runs).reshape(number, runs)
    return sample._replace(weights=times_drawn * sample.weights)


def _bounds(values: Float[np.ndarray, "resamples *values"], level: float) -> Float[np.ndarray, "2 *values"]:
    return np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)


def _same_tasks(scores: Scores | Sample, other: Scores | Sample) -> tuple[Sample, Sample]:
    x, y = pool(scores), pool(other)
    if x.tasks != y.tasks:
        odd = sorted(set(x.tasks) ^ set(y.tasks))
        raise UserError(f"both methods need scores on the same tasks: only one has {', '.join(odd)}")
    return x, y


def _check(resamples: int, level: float) -> None:
    if not 0 < level < 1:
        raise UserError(f"the level of an interval must be between 0 and 1: got {level}")
    if resamples < 1:
        raise UserError(f"an interval needs at least 1 resample: got {resamples}")


def _few_runs(samples: tuple[Sample, ...], level: float) -> str:
    """Why there is no interval, or why not to trust it; empty with enough runs on every task."""
    runs, task = min(
        (n, name) for sample in samples for n, name in zip(np.bincount(sample.task), sample.tasks, strict=True)
    )
    if runs >= FEW_RUNS:
        return ""
    if runs < 2:
        return f"no interval: {task} has 1 run, and a spread needs at least 2"
    best = best_coverage(int(runs), len(samples[0].tasks), level)
    claim = f"a {100 * level:g}% interval of {runs} runs per task holds the truth {best:.0%} of the time at best"
    return f"too few runs: {task} has {runs}, and {claim}"

"""Aggregates and intervals against hand-computed numbers, SciPy, plain loops, enumeration and closed forms."""

import functools
import itertools
import math

import numpy as np
import pytest
import scipy.stats

from becl.errors import UserError
from becl.measure import stats

UNEQUAL = {
    "walk": [0.1, 0.9, 0.4, 1.3, 0.4],
    "run": [0.2, 0.6],
    "stand": [0.8, 1.1, 0.95],
}


def naive_mean(by_task):
    return sum(sum(runs) / len(runs) for runs in by_task) / len(by_task)


def naive_median(by_task):
    means = sorted(sum(runs) / len(runs) for runs in by_task)
    middle = len(means) // 2
    return means[middle] if len(means) % 2 else (means[middle - 1] + means[middle]) / 2


def naive_iqm(by_task):
    """Copies every run until all tasks have as many, then trims copies."""
    total = sum(len(runs) for runs in by_task)
    common = math.lcm(*(len(runs) for runs in by_task)) * total
    copies = sorted(run for runs in by_task for run in runs for _ in range(common // len(runs)))
    left_out = len(copies) * (total // 4) // total
    kept = copies[left_out : len(copies) - left_out]
    return sum(kept) / len(kept)


def naive_gap(by_task, target=1.0):
    return naive_mean([[max(target - run, 0.0) for run in runs] for runs in by_task])


def naive_improvement(by_task, other):
    per_task = []
    for xs, ys in zip(by_task, other, strict=True):
        wins = sum(1.0 if x > y else 0.5 if x == y else 0.0 for x in xs for y in ys)
        per_task.append(wins / (len(xs) * len(ys)))
    return sum(per_task) / len(per_task)


NAIVE = {"iqm": naive_iqm, "optimality_gap": naive_gap, "mean": naive_mean, "median": naive_median}


@pytest.fixture
def matrix():
    return np.random.default_rng(0).normal(0.7, 0.3, (10, 12))


class TestAggregates:
    def test_hand_computed(self):
        scores = np.array([[0.0, 0.5, 2.0], [0.2, 0.7, 1.0], [0.4, 0.9, 0.0], [0.6, 1.1, 1.0]])
        assert stats.mean(scores) == pytest.approx((0.3 + 0.8 + 1.0) / 3)
        assert stats.median(scores) == pytest.approx(0.8)
        # Sorted: 0, 0, .2 | .4, .5, .6, .7, .9, 1 | 1, 1.1, 2
        assert stats.iqm(scores) == pytest.approx((0.4 + 0.5 + 0.6 + 0.7 + 0.9 + 1.0) / 6)
        assert stats.optimality_gap(scores) == pytest.approx((2.8 + 0.9 + 1.0) / 12)
        assert stats.optimality_gap(scores, target=0.5) == pytest.approx((0.5 + 0.3 + 0.1 + 0.5) / 12)

    @pytest.mark.parametrize("shape", [(10, 12), (3, 4), (7, 1), (1, 12), (3, 3), (1, 1), (2, 11)])
    def test_iqm_is_the_trimmed_mean_of_all_runs(self, shape):
        scores = np.random.default_rng(1).normal(size=shape)
        assert stats.iqm(scores) == pytest.approx(scipy.stats.trim_mean(scores.ravel(), 0.25), abs=1e-12)

    @pytest.mark.parametrize("name", stats.AGGREGATES)
    def test_loops(self, name, matrix):
        for scores, by_task in [(matrix, matrix.T.tolist()), (UNEQUAL, list(UNEQUAL.values()))]:
            assert stats.AGGREGATES[name](stats.pool(scores)) == pytest.approx(NAIVE[name](by_task))

    @pytest.mark.parametrize("name", stats.AGGREGATES)
    def test_copies_of_all_runs_of_one_task_change_nothing(self, name):
        """Tasks weigh the same, however many runs they have. 12 and 16 runs can both be cut in quarters."""
        runs = np.random.default_rng(2).normal(size=(4, 3))
        few = {"a": runs[:, 0], "b": runs[:, 1], "c": runs[:, 2]}
        many = few | {"b": np.tile(runs[:, 1], 2)}
        statistic = stats.AGGREGATES[name]
        assert statistic(stats.pool(many)) == pytest.approx(float(statistic(stats.pool(few))))

    def test_task_means(self):
        means = dict(zip(stats.pool(UNEQUAL).tasks, stats.task_means(UNEQUAL), strict=True))
        assert means == pytest.approx({task: np.mean(runs) for task, runs in UNEQUAL.items()})

    def test_normalised_by_the_expert(self):
        scores = stats.normalise({"walk": [50.0, 100.0], "run": [30.0]}, {"walk": 100.0, "run": 20.0, "stand": 1.0})
        assert {task: runs.tolist() for task, runs in scores.items()} == {"walk": [0.5, 1.0], "run": [1.5]}


class TestImprovement:
    def test_hand_computed(self):
        x = {"walk": [1.0, 2.0], "run": [5.0]}
        y = {"walk": [1.0, 0.0, 3.0], "run": [4.0, 6.0]}
        # walk: 1 beats 0 and ties 1, 2 beats 1 and 0; run: 5 beats 4.
        assert stats.probability_of_improvement(x, y) == pytest.approx((3.5 / 6 + 0.5) / 2)

    def test_is_mann_whitney(self, matrix):
        x, y = np.round(matrix, 1), np.round(matrix[:7] + 0.1, 1)
        u = [scipy.stats.mannwhitneyu(x[:, task], y[:, task]).statistic / 70 for task in range(12)]
        assert stats.probability_of_improvement(x, y) == pytest.approx(np.mean(u))

    def test_both_ways_sum_to_one(self, matrix):
        there = stats.probability_of_improvement(matrix, matrix[:6] - 0.1)
        back = stats.probability_of_improvement(matrix[:6] - 0.1, matrix)
        assert there + back == pytest.approx(1.0)


class TestProfile:
    def test_is_the_part_above(self):
        above = stats.profile(UNEQUAL, np.array([-1.0, 0.4, 0.9, 2.0]))
        assert above == pytest.approx([1.0, (2 / 5 + 1 / 2 + 1) / 3, (1 / 5 + 0 + 2 / 3) / 3, 0.0])

    def test_area_is_the_mean(self, matrix):
        """The integral of P(score > t) over t >= 0 is the mean of positive scores."""
        positive = np.abs(matrix)
        thresholds = np.linspace(0, 2, 20_001)
        area = np.trapezoid(stats.profile(positive, thresholds), thresholds)
        assert area == pytest.approx(float(stats.mean(positive)), abs=2e-4)

    def test_band_is_the_interval_at_each_threshold(self, matrix):
        thresholds = np.linspace(0, 1.5, 70)  # More than one block of them.
        band = stats.profile_band(matrix, thresholds, resamples=400, seed=3)
        for place in (0, 30, 69):
            one = functools.partial(_single, threshold=thresholds[place])
            expected = stats.interval(matrix, one, resamples=400, seed=3)
            assert (band.value[place], band.low[place], band.high[place]) == pytest.approx(expected[:3])


def _single(sample, threshold):
    return stats.profile(sample, np.array([threshold]))[..., 0]


class TestResamples:
    """What the bootstrap computes of its weights, against loops over the runs they stand for."""

    def drawn(self, sample, row):
        """The runs of one resample, spelled out, by task."""
        by_task = []
        for task in range(len(sample.tasks)):
            here = sample.task == task
            times = sample.weights[row, here] * len(sample.tasks) * here.sum()
            assert times == pytest.approx(np.round(times))
            by_task.append(np.repeat(sample.scores[here], np.round(times).astype(int)).tolist())
        return by_task

    @pytest.mark.parametrize(
        "scores", [UNEQUAL, np.random.default_rng(4).normal(size=(5, 4))], ids=["unequal", "equal"]
    )
    def test_statistics_of_resamples(self, scores):
        sample = stats.pool(scores)
        resampled = stats._resample(sample, np.random.default_rng(5), 50)
        other = stats._resample(sample, np.random.default_rng(6), 50)
        improvement = np.asarray(stats.probability_of_improvement(resampled, other))
        for row in range(50):
            runs = self.drawn(resampled, row)
            assert [len(task) for task in runs] == np.bincount(sample.task).tolist()
            for name, statistic in stats.AGGREGATES.items():
                assert np.asarray(statistic(resampled))[row] == pytest.approx(NAIVE[name](runs)), name
            assert improvement[row] == pytest.approx(naive_improvement(runs, self.drawn(other, row)))

    def test_every_run_is_drawn_as_often_as_any_other_of_its_task(self):
        sample = stats.pool(UNEQUAL)
        weights = stats._resample(sample, np.random.default_rng(7), 40_000).weights
        assert weights.mean(0) == pytest.approx(sample.weights, rel=0.03)
        # A run's count is binomial (n, 1/n): its variance is 1 - 1/n.
        n = np.bincount(sample.task)[sample.task]
        assert (weights / sample.weights).var(0) == pytest.approx(1 - 1 / n, rel=0.05)


class TestInterval:
    @pytest.mark.parametrize("name", stats.AGGREGATES)
    def test_all_resamples_enumerated(self, name):
        """Two tasks of three and four runs: 27 * 256 equally likely resamples, all of them."""
        scores = {"walk": [0.1, 0.5, 0.6], "run": [0.3, 0.35, 0.7, 1.2]}
        draws = [list(itertools.product(runs, repeat=len(runs))) for runs in scores.values()]
        exact = np.array([NAIVE[name]([list(a), list(b)]) for a, b in itertools.product(*draws)])
        found = stats.interval(scores, stats.AGGREGATES[name], resamples=40_000, level=0.8)
        # Between the exact quantiles a little inside and a little outside: values come in lumps.
        assert np.quantile(exact, 0.095) - 1e-9 <= found.low <= np.quantile(exact, 0.105) + 1e-9
        assert np.quantile(exact, 0.895) - 1e-9 <= found.high <= np.quantile(exact, 0.905) + 1e-9

    def test_of_a_mean_of_many_runs_is_the_normal_one(self):
        runs = np.random.default_rng(8).normal(2.0, 1.5, (400, 3))
        half = 1.96 * np.sqrt((runs.var(axis=0) / 400).sum()) / 3
        found = stats.interval(runs, stats.mean)
        assert found.value == pytest.approx(runs.mean())
        assert found.low == pytest.approx(runs.mean() - half, abs=0.03 * half)
        assert found.high == pytest.approx(runs.mean() + half, abs=0.03 * half)
        assert not found.warning

    def test_agrees_with_scipy(self):
        runs = np.random.default_rng(9).gamma(2.0, size=15)
        scipy_interval = scipy.stats.bootstrap(
            (runs,),
            lambda x, axis: scipy.stats.trim_mean(x, 0.25, axis=axis),
            n_resamples=20_000,
            method="percentile",
            rng=np.random.default_rng(0),
        ).confidence_interval
        found = stats.interval(runs[:, None], stats.iqm)
        assert (found.low, found.high) == pytest.approx(tuple(scipy_interval), abs=0.03)

    def test_stratified_not_pooled(self):
        """Tasks that differ, runs that do not: no resample can change the mean."""
        scores = np.tile([0.1, 0.5, 0.9], (6, 1))
        found = stats.interval(scores, stats.mean)
        assert (found.low, found.high) == pytest.approx((0.5, 0.5))
        assert "same value" in found.warning

    def test_same_seed_same_interval(self, matrix):
        assert stats.interval(matrix, resamples=5_000, seed=1) == stats.interval(matrix, resamples=5_000, seed=1)
        assert stats.interval(matrix, resamples=5_000, seed=1) != stats.interval(matrix, resamples=5_000, seed=2)
        assert stats.improvement_interval(matrix, matrix + 0.1) == stats.improvement_interval(matrix, matrix + 0.1)

    def test_order_of_runs_and_tasks_does_not_matter(self, matrix):
        rng = np.random.default_rng(10)
        scores = {str(task): matrix[:, task] for task in range(12)}
        shuffled = {task: rng.permutation(scores[task]) for task in rng.permutation(list(scores)).tolist()}
        assert stats.aggregates(scores, resamples=500) == stats.aggregates(shuffled, resamples=500)

    @pytest.mark.parametrize(
        "scores",
        [UNEQUAL, np.random.default_rng(13).normal(size=(10, 12)), np.tile([0.1, 0.5], (6, 1)), {"a": [0.2], "b": [1]}],
        ids=["unequal", "equal", "constant", "one run"],
    )
    def test_aggregates_are_the_intervals_of_their_statistics_to_the_last_bit(self, scores):
        found = stats.aggregates(scores, resamples=5_000, level=0.9, seed=4)  # More than one chunk of resamples.
        assert list(found) == list(stats.AGGREGATES)
        for name, statistic in stats.AGGREGATES.items():
            alone = stats.interval(scores, statistic, resamples=5_000, level=0.9, seed=4)
            np.testing.assert_array_equal(found[name][:3], alone[:3])
            assert found[name].warning == alone.warning

    def test_aggregates_draw_every_resample_once(self, matrix, monkeypatch):
        drawn = []
        draw = stats._resample
        monkeypatch.setattr(stats, "_resample", lambda sample, rng, n: drawn.append(n) or draw(sample, rng, n))
        stats.aggregates(matrix, resamples=5_000)
        assert sum(drawn) == 5_000

    def test_array_is_runs_by_tasks(self, matrix):
        named = {f"task {task:02}": matrix[:, task] for task in range(12)}
        assert stats.interval(matrix, resamples=500)[:3] == stats.interval(named, resamples=500)[:3]

    def test_improvement_resamples_both(self):
        rng = np.random.default_rng(11)
        x, y = rng.normal(size=(100, 1)), rng.normal(0.5, 1, (80, 1))
        found = stats.improvement_interval(x, y)
        # Hanley and McNeil (1982): variance of the area under a ROC curve.
        a = found.value
        q1, q2 = a / (2 - a), 2 * a**2 / (1 + a)
        variance = (a * (1 - a) + 99 * (q1 - a**2) + 79 * (q2 - a**2)) / (100 * 80)
        assert (found.high - found.low) / 2 == pytest.approx(1.96 * variance**0.5, rel=0.1)

    def test_scores_far_apart_are_warned_of(self, matrix):
        found = stats.improvement_interval(matrix + 10, matrix)
        assert found[:3] == pytest.approx((1, 1, 1))
        assert "same value" in found.warning

    def test_own_statistic(self, matrix):
        found = stats.interval(matrix, lambda sample: stats.task_means(sample).min(-1))
        assert found.value == pytest.approx(matrix.mean(0).min())
        assert found.low < found.value < found.high


class TestTooFewRuns:
    def test_one_run_has_no_interval(self):
        scores = {"walk": [0.1, 0.2, 0.3], "run": [0.5]}
        thresholds = np.array([0.0, 0.25])
        found = stats.interval(scores, stats.mean)
        band = stats.profile_band(scores, thresholds)
        versus = stats.improvement_interval({"walk": np.arange(9.0), "run": np.arange(9.0)}, scores)
        assert found.value == pytest.approx(0.35)
        assert band.value == pytest.approx(stats.profile(scores, thresholds))
        for low, high, warning in (found[1:], versus[1:], band[2:]):
            assert np.isnan(low).all()
            assert np.isnan(high).all()
            assert warning == "no interval: run has 1 run, and a spread needs at least 2"

    @pytest.mark.parametrize(("runs", "percent"), [(2, 83), (3, 89), (4, 91)])
    def test_few_runs_are_warned_of(self, runs, percent):
        found = stats.interval(np.random.default_rng(0).normal(size=(runs, 12)))
        assert found.low < found.value < found.high
        assert f"{runs} runs per task holds the truth {percent}% of the time at best" in found.warning

    def test_enough_runs_are_not(self):
        scores = np.random.default_rng(0).normal(size=(stats.FEW_RUNS, 12))
        assert not stats.interval(scores).warning
        assert not stats.profile_band(scores, np.array([0.0])).warning

    @pytest.mark.parametrize(("runs", "tasks"), [(2, 1), (3, 1), (4, 1), (2, 12), (3, 12), (4, 12), (10, 12)])
    def test_stated_coverage_is_what_simulation_finds(self, runs, tasks):
        """How often the 95% interval of a mean of standard normal runs holds 0."""
        rng = np.random.default_rng(12)
        held = 0
        for seed in range(600):
            found = stats.interval(rng.normal(size=(runs, tasks)), stats.mean, resamples=300, seed=seed)
            held += found.low <= 0 <= found.high
        stated = stats.best_coverage(runs, tasks)
        error = (stated * (1 - stated) / 600) ** 0.5
        assert held / 600 < stated + 3 * error
        # With 4 runs of one task the bound is not reached; elsewhere the formula is close.
        assert held / 600 > stated - (0.12 if (runs, tasks) == (4, 1) else 0.03 + 3 * error)

    def test_closed_form_of_one_task(self):
        assert [stats.best_coverage(n, 1) for n in (2, 3, 4)] == [0.5, 0.75, 0.875]


class TestMistakes:
    @pytest.mark.parametrize(
        ("scores", "message"),
        [
            ({}, "there is no task"),
            ({"walk": []}, "walk has no run"),
            ({"walk": [0.1, math.nan]}, "scores of walk must be numbers: run 1 is not"),
            ({"walk": [math.inf]}, "run 0 is not"),
            ({"walk": [[0.1, 0.2]]}, "one number per run"),
            (np.zeros((0, 3)), "task 0 has no run"),
            (np.zeros((3, 0)), "there is no task"),
            (np.zeros(3), r"array of shape \[runs, tasks\]"),
            (np.full((2, 2), math.nan), "must be numbers"),
        ],
    )
    @pytest.mark.parametrize("function", [stats.iqm, stats.interval, stats.aggregates])
    def test_scores(self, function, scores, message):
        with pytest.raises(UserError, match=message) as error:
            function(scores)
        assert "\n" not in str(error.value)

    @pytest.mark.parametrize("level", [0.0, 1.0, 95.0, -0.5, math.nan])
    def test_level(self, matrix, level):
        with pytest.raises(UserError, match="between 0 and 1"):
            stats.interval(matrix, level=level)
        with pytest.raises(UserError, match="between 0 and 1"):
            stats.profile_band(matrix, np.zeros(1), level=level)

    def test_resamples(self, matrix):
        with pytest.raises(UserError, match="at least 1 resample"):
            stats.interval(matrix, resamples=0)

    @pytest.mark.parametrize("target", [0.0, -1.0, math.nan])
    def test_target(self, matrix, target):
        with pytest.raises(UserError, match="above 0"):
            stats.optimality_gap(matrix, target=target)

    def test_tasks_of_two_methods(self):
        with pytest.raises(UserError, match="only one has run, stand"):
            stats.probability_of_improvement(UNEQUAL, {"walk": [0.1, 0.2]})
        with pytest.raises(UserError, match="only one has task 2"):
            stats.improvement_interval(np.zeros((3, 3)), np.zeros((3, 2)))

    def test_expert(self):
        with pytest.raises(UserError, match="no expert score for fly"):
            stats.normalise({"fly": [1.0]}, {"walk": 2.0})
        with pytest.raises(UserError, match="above 0: walk has 0"):
            stats.normalise({"walk": [1.0]}, {"walk": 0.0})

"""Published numbers: complete, named as the code names things, and consistent with what their sources say of them."""

import pytest

from becl import envs
from becl.errors import UserError
from becl.measure import published, stats
from becl.objectives import METHODS

PAPER = "becl-2023"
DOMAINS = ("walker", "quadruped", "jaco")

# Mean and mean of the middle six of the twelve task means, worked out beside the code from the paper's table.
AGGREGATES = {
    "ddpg": (0.490, 0.469),
    "icm": (0.422, 0.409),
    "disagreement": (0.549, 0.571),
    "rnd": (0.629, 0.585),
    "apt": (0.667, 0.700),
    "proto": (0.650, 0.655),
    "smm": (0.3775, 0.284),
    "diayn": (0.384, 0.367),
    "aps": (0.4415, 0.440),
    "cic": (0.744, 0.754),
    "becl": (0.752, 0.758),
}


def as_runs(means):
    return {task: [mean] for task, mean in means.items()}


def test_expert_scores_are_of_the_tasks_there_are():
    assert set(published.EXPERT) == {name for name in envs.names() if name.startswith(DOMAINS)}
    assert sum(published.EXPERT.values()) == 984 + 971 + 796 + 799 + 920 + 866 + 888 + 888 + 191 + 223 + 193 + 203


def test_the_paper_gives_every_task_of_every_method():
    table = published.table(PAPER)
    assert set(table) == set(AGGREGATES) == set(published.methods(PAPER))
    assert set(table) <= set(METHODS)
    for by_task in table.values():
        assert set(by_task) == set(published.EXPERT)
        assert all(row.error is not None and row.seeds == 10 for row in by_task.values())


@pytest.mark.parametrize(("method", "expected"), AGGREGATES.items())
def test_aggregates_of_the_table(method, expected):
    scores = as_runs(published.normalised(PAPER, method))
    assert (stats.mean(scores), stats.iqm(scores)) == pytest.approx(expected, abs=6e-4)
    assert stats.optimality_gap(scores) == pytest.approx(1 - expected[0], abs=6e-4)


@pytest.mark.parametrize("method", ["becl", "cic"])
def test_aggregates_the_paper_states_are_near_those_of_its_table(method):
    """Not equal: the paper's are over runs, the table's over means of runs."""
    scores = as_runs(published.normalised(PAPER, method))
    (iqm,) = published.rows(PAPER, method, measure="iqm")
    (gap,) = published.rows(PAPER, method, measure="optimality_gap")
    assert stats.iqm(scores) == pytest.approx(iqm.value, abs=0.006)
    assert stats.optimality_gap(scores) == pytest.approx(gap.value, abs=0.008)
    # Clipping runs at the expert's can only widen the gap.
    assert stats.optimality_gap(scores) <= gap.value


def test_sums_of_robots_in_the_paper():
    sums = {domain: 0.0 for domain in DOMAINS}
    for task, row in published.table(PAPER)["becl"].items():
        sums[task.split("_")[0]] += row.value
    assert sums == {"walker": 2833, "quadruped": 2880, "jaco": 538}


def test_reruns_fall_short_of_the_paper():
    rerun = as_runs(published.normalised("becl-issue-4", "becl"))
    assert stats.iqm(rerun) == pytest.approx(0.634, abs=6e-4)
    sums = {row.task: row.value for row in published.rows("amped-2025", "becl")}
    assert sums == {"walker": 2831, "quadruped": 2337, "jaco": 527}


def test_iqm_of_moss_is_as_noted_with_its_eleven_tasks():
    moss = published.normalised("moss-2022", "moss")
    assert len(moss) == 11
    assert stats.iqm(as_runs(moss)) == pytest.approx(0.81, abs=0.005)


def test_repeated_number_of_apt_is_marked():
    marked = [row for row in published.rows(PAPER, "apt") if row.note]
    assert [(row.task, row.value, row.error) for row in marked] == [
        ("quadruped_stand", 582.0, 67.0),
        ("quadruped_walk", 582.0, 67.0),
    ]


def test_every_row_is_of_a_known_source_task_and_measure():
    known = {source.name for source in published.sources()}
    assert {row.source for row in published.rows()} == known
    for row in published.rows():
        places = {"return": set(published.EXPERT), "sum": set(DOMAINS)}.get(row.measure, {"all"})
        assert row.task in places, row
        assert row.measure in ("return", "sum", "mean", "iqm", "optimality_gap"), row
        assert row.value > 0
    assert len({row[:4] for row in published.rows()}) == len(published.rows())
    assert all(source.label and source.citation for source in published.sources())


def test_means_alone_never_get_an_interval():
    found = stats.interval(as_runs(published.normalised(PAPER, "becl")))
    assert found.warning.startswith("no interval")


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match="did you mean 'becl-2023'"):
        published.table("becl-2022")
    with pytest.raises(UserError, match="unknown method of becl-issue-4 'cic': allowed: becl"):
        published.normalised("becl-issue-4", "cic")
    with pytest.raises(UserError, match="no returns by task"):
        published.normalised("amped-2025", "becl")

"""`becl report` on small folders made up here: numbers by hand, labels, merging, and what is left out and why."""

import base64
import csv
import html.parser
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student_t
from scipy.stats import ttest_ind

from becl.commands.report import run as report
from becl.envs import DOMAINS
from becl.errors import UserError
from becl.experiments import defaults
from becl.experiments.pretraining import make_pretraining
from becl.measure import published
from becl.measure.stats import Interval
from becl.objectives import METHODS
from becl.options import PretrainOptions, ReportOptions
from becl.plugins import ORIGINS
from becl.reports.comparisons import Summary, clearly_above, student_tails, summarise
from becl.reports.names import ROBOTS, pretty_method
from becl.reports.runs import collect
from becl.reports.schemes import INK, LIGHT_ENOUGH, PAPER, in_both_schemes, in_the_dark
from becl.reports.sections import gains, tasks
from becl.reports.sections.origins import option_table
from becl.reports.tables import plus_minus, ranges
from becl.views.figures.colors import TEN_COLORS, oklab

STEPS = 100
RESAMPLES = 200
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


def finetuning(method: str = "becl", env: str = "walker", **changes: Any) -> dict[str, Any]:
    """The configuration of a folder of `becl finetune`."""
    pretraining = json.loads(json.dumps(make_pretraining(PretrainOptions(env, method, seeds=(0, 1, 2))).config()))
    scratch = method == "ddpg"
    return {
        "command": "finetune",
        "env": env,
        "method": method,
        "tasks": [f"{env}_run"],
        "seeds": [0],
        "steps": STEPS,
        "snapshot": None if scratch else 2_000_000,
        "skill": "none" if scratch else "random",
        "transfer": "none" if scratch else "trunk",
        "eval_every": STEPS // 2,
        "eval_episodes": 10,
        "run": pretraining["run"],
        "pretraining": None if scratch else pretraining,
        "source": None if scratch else f"runs/pretrain-{env}-{method}",
    } | changes


def write(
    folder: Path,
    returns: dict[tuple[str, int], float],
    config: dict[str, Any] | None = None,
    *,
    result: dict[str, Any] | None = None,
) -> Path:
    """A finished folder with scores by task and seed; half of a score is reached half way."""
    tasks = list(dict.fromkeys(task for task, _ in returns))
    seeds = list(dict.fromkeys(seed for _, seed in returns))
    config = (config or finetuning()) | {"tasks": tasks, "seeds": seeds}
    rows = [
        f"{task},{seed},{3 * (step > 0)},{step},{value * step / STEPS},1.5"
        for (task, seed), value in returns.items()
        for step in (0, STEPS // 2, STEPS)
    ]
    return write_files(folder, config, rows, result)


def write_each(folder: Path, returns: dict[tuple[str, int, int], float], skills: int) -> Path:
    config = finetuning(skill="each")
    config["tasks"] = list(dict.fromkeys(task for task, _, _ in returns))
    config["seeds"] = list(dict.fromkeys(seed for _, seed, _ in returns))
    config["pretraining"]["run"]["objective"]["skills"]["dim"] = skills
    rows = [f"{task},{seed},{skill},{STEPS},{value},1" for (task, seed, skill), value in returns.items()]
    return write_files(folder, config, rows)


def write_files(folder: Path, config: dict[str, Any], rows: list[str], result: dict[str, Any] | None = None) -> Path:
    folder.mkdir(parents=True)
    made = {"steps": STEPS, "seconds": 3.0, "device": "cpu", "jax": "1.0", "python": "3.12", "becl": "9.9"}
    made |= {"command": f"becl finetune {folder.name}"} | (result or {})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "scores.csv").write_text("\n".join(["task,seed,skill,step,return,stderr", *rows]) + "\n")
    (folder / "result.json").write_text(json.dumps(made))
    return folder


def make(out: Path, *runs: Path) -> Path:
    assert report(ReportOptions(runs, out, RESAMPLES)) == 0
    return out


def read(out: Path, name: str) -> list[dict[str, str]]:
    with (out / "tables" / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def labels(*runs: Path) -> list[str]:
    return [one.label for one in collect(runs).configurations]


def reasons(*runs: Path) -> list[str]:
    return [one.why for one in collect(runs).left_out]


# --- Numbers ----------------------------------------------------------------------------------------------------------


def test_means_and_standard_errors_are_those_computed_by_hand(tmp_path: Path) -> None:
    write(tmp_path / "a", {("walker_run", 0): 100.0, ("walker_run", 1): 130.0, ("walker_run", 2): 160.0})
    write(tmp_path / "b", {("walker_run", 0): 200.0}, finetuning("diayn"))
    found = {row["label"]: row for row in read(make(tmp_path / "out", tmp_path / "a", tmp_path / "b"), "tasks")}
    # Deviations -30, 0, 30: variance 900, over three seeds 300.
    assert float(found["BeCL"]["mean"]) == pytest.approx(130.0)
    assert float(found["BeCL"]["stderr"]) == pytest.approx(math.sqrt(300))
    assert found["BeCL"]["seeds"] == "3"
    assert found["DIAYN"]["stderr"] == ""
    page = (tmp_path / "out" / "index.html").read_text()
    assert "130 ± 17" in page
    assert "<small>3 seeds</small>" in page
    assert "<small>1 seed</small>" in page


def p_value(one: Any, other: Any) -> float:
    """Of Welch's test."""
    done: Any = ttest_ind(one, other, equal_var=False)
    return done.pvalue


def test_the_highest_mean_of_a_task_is_bold_where_it_is_clearly_above_every_other(tmp_path: Path) -> None:
    """By Welch's t as SciPy has it. One seed, or a mean that could be the other's, leads nothing."""
    scores = {
        "becl": {"walker_run": [300, 310, 305], "walker_walk": [50, 90, 70], "walker_stand": [900]},
        "diayn": {"walker_run": [200, 230, 215], "walker_walk": [40, 95, 60], "walker_stand": [10]},
        "cic": {"walker_run": [20, 30, 40], "walker_flip": [1.0, 2.0]},
    }
    for method, by_task in scores.items():
        each = {(task, seed): value for task, values in by_task.items() for seed, value in enumerate(values)}
        write(tmp_path / method, each, finetuning(method))
    first, second = scores["becl"], scores["diayn"]
    clear = {t: p_value(first[t], second[t]) < 0.05 for t in ("walker_run", "walker_walk")}
    assert clear == {"walker_run": True, "walker_walk": False}
    out = make(tmp_path / "out", tmp_path)
    assert [(row["task"], row["label"]) for row in read(out, "tasks") if row["leader"] == "1"] == [
        ("walker_run", "BeCL")
    ]
    table = re.search(r'<table id="tasks".*?</table>', (out / "index.html").read_text(), re.DOTALL)
    assert table is not None
    assert re.findall(r'class="number best"[^>]*><a [^>]*>([^<]*)</a>', table[0]) == ["305 ± 3"]


@pytest.mark.parametrize(("t", "freedom"), [(0.5, 1.0), (12.7, 1.0), (2.4, 7.3), (3.1, 400.0)])
def test_tails_of_students_t_are_scipys(t: float, freedom: float) -> None:
    assert student_tails(t, freedom) == pytest.approx(2 * student_t.sf(t, freedom), abs=2e-4)


@pytest.mark.parametrize("spread", [1.0, 4.0, 8.0, 12.0])
def test_a_mean_is_clearly_above_another_where_welchs_test_says_so(spread: float) -> None:
    rng = np.random.default_rng(0)
    one, other = 10 + spread * rng.standard_normal(5), spread * rng.standard_normal(3)
    expected = p_value(one, other) < 0.05
    assert clearly_above(summarise(one), summarise(other)) == expected
    assert not clearly_above(summarise(other), summarise(one))


def test_numbers_have_the_digits_that_their_error_allows() -> None:
    written = [plus_minus(Summary(*numbers, 3)) for numbers in [
        (1220.0, 400.0), (16.0, 0.0), (-0.3, 2.0), (-0.04, 3.0), (0.98083, 0.00083), (1234567.0, math.nan),
    ]]  # fmt: skip
    assert written == ["1220 ± 400", "16", "0 ± 2", "0 ± 3", "0.9808 ± 0.0008", "1234567"]


def gain(label: str, value: float, low: float, high: float, warning: str = "") -> gains.Gain:
    return gains.Gain("walker", label, ("walker_run",), 0.5, 0.4, Interval(value, low, high, warning))


@pytest.mark.parametrize(("found", "said"), [
    ([], ""),
    ([gain("A", 0.1, 0.05, 0.15)],
     "Pretraining helps with A on walker: 0.50 of the expert's return, 0.40 from scratch, a difference of +0.10"),
    ([gain("A", 0.1, 0.05, 0.15), gain("B", 0.2, -0.1, 0.5)],
     "Pretraining helps in 1 of 2 comparisons, most with A on walker"),
    ([gain("A", 0.1, -0.05, 0.15), gain("B", -0.2, -0.3, -0.1)],
     "Pretraining was not shown to help; it came closest with A on walker"),
    ([gain("A", 0.1, 0.05, 0.15, "too few runs")], "Pretraining may help; there are too few runs to be sure. Most"),
    ([gain("A", 0.1, math.nan, math.nan)], "Whether pretraining helps cannot be said yet. A on walker: 0.50"),
])  # fmt: skip
def test_the_page_begins_with_whether_pretraining_helps(found: list[gains.Gain], said: str) -> None:
    assert gains.outcome(found).startswith(said)


@pytest.mark.parametrize(("scores", "said"), [
    ({"run": {"A": (5.0, 1.0)}}, "A earns 5 ± 1 on Run. There is nothing to compare it with."),
    ({"run": {"A": (5.0, 1.0), "B": (50.0, 1.0)}}, "B earns clearly most on Run: B 50 ± 1, A 5 ± 1."),
    ({"run": {"A": (5.0, 1.0), "B": (6.0, 1.0)}}, "Nothing earns clearly more than all others on Run: B 6 ± 1, A"),
    ({task: {"A": (50.0, 1.0), "B": (6.0, 1.0)} for task in ("run", "walk")}, "A earns clearly most on all 2 tasks."),
    ({"run": {"A": (5.0, 1.0), "B": (50.0, 1.0)}, "walk": {"A": (5.0, 1.0), "B": (6.0, 1.0)}},
     "On 1 of 2 tasks something earns clearly most: B on Run."),
    ({task: {"A": (5.0, 1.0), "B": (6.0, 1.0)} for task in ("run", "walk")}, "On none of 2 tasks does anything earn"),
])  # fmt: skip
def test_or_with_what_earns_most(scores: dict[str, dict[str, tuple[float, float]]], said: str) -> None:
    rows = {task: {label: Summary(*one, 5) for label, one in row.items()} for task, row in scores.items()}
    assert tasks.outcome(rows).startswith(said)


def test_the_outcome_is_the_first_sentence_of_page_and_markdown(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write(tmp_path / "a", {("walker_run", 0): 5.0})
    page = tmp_path / "report.md"
    report(ReportOptions((tmp_path / "a",), tmp_path / "out", 50, page))
    sentence = "BeCL earns 5 on Walker run. There is nothing to compare it with."
    assert f'</h1>\n<p class="outcome">{sentence}</p>' in (tmp_path / "out" / "index.html").read_text()
    assert page.read_text().splitlines()[2] == sentence
    assert capsys.readouterr().out.startswith(sentence)


def test_figures_have_colours_for_the_dark_that_keep_their_hue() -> None:
    svg = '<svg width="9"><path style="fill: #ffffff; stroke: #0f5a00"/><use xlink:href="#c31e69"/><path/></svg>'
    both = in_both_schemes(svg)
    assert '<path style="fill: var(--cffffff); stroke: var(--c0f5a00)"/><use xlink:href="#c31e69"/>' in both
    light, dark = re.findall(r"svg\{(.*?)\}", both)
    assert "--c000000:#000000;--c0f5a00:#0f5a00;--cffffff:#ffffff;" in light
    shown = dict(re.findall(r"--c(\w+):(#\w+)", dark))
    assert float(oklab([shown["000000"]])[0, 0]) == pytest.approx(INK, abs=0.01)
    assert float(oklab([shown["ffffff"]])[0, 0]) == pytest.approx(PAPER, abs=0.01)
    for color in TEN_COLORS:
        (before, a, b), (after, *ab) = oklab([color])[0], oklab([in_the_dark(color)])[0]
        assert after > max(before, LIGHT_ENOUGH) - 0.08  # What a screen cannot show is clipped.
        turned = math.atan2(b, a) - math.atan2(ab[1], ab[0])
        assert abs((turned + math.pi) % (2 * math.pi) - math.pi) < 0.5


def test_a_run_of_each_skill_counts_as_the_mean_of_its_skills(tmp_path: Path) -> None:
    scores = {("walker_run", seed, skill): 100.0 * seed + 10 * skill for seed in (0, 1) for skill in (0, 1, 2)}
    out = make(tmp_path / "out", write_each(tmp_path / "each", scores, 3))
    (row,) = read(out, "tasks")
    assert float(row["mean"]) == pytest.approx(60.0)  # Seeds give 10 and 110.
    assert float(row["stderr"]) == pytest.approx(50.0)
    assert {(r["seed"], r["skill"]): float(r["return"]) for r in read(out, "scores")}["1", "2"] == 120.0
    assert (out / "figures" / "skills.png").exists()


def test_aggregates_are_those_of_the_statistics_module(tmp_path: Path) -> None:
    from becl.measure import stats

    tasks = ["walker_run", "walker_walk"]
    values = {(task, seed): 100.0 * (seed + 1) + 50 * number for number, task in enumerate(tasks) for seed in range(5)}
    rows = read(make(tmp_path / "out", write(tmp_path / "a", values)), "aggregates")
    scores = {t: np.array([values[t, seed] for seed in range(5)]) / published.EXPERT[t] for t in tasks}
    expected = stats.aggregates(scores, RESAMPLES)
    assert {row["aggregate"] for row in rows} == set(expected)
    for row in rows:
        assert [float(row[name]) for name in ("value", "low", "high")] == pytest.approx(expected[row["aggregate"]][:3])


def add_finals(folder: Path, finals: dict[tuple[str, int], tuple[float, float]], episodes: int = 50) -> Path:
    rows = [f"{task},{seed},3,{STEPS},{value},{error},{episodes}" for (task, seed), (value, error) in finals.items()]
    (folder / "final.csv").write_text("\n".join(["task,seed,skill,step,return,stderr,episodes", *rows]) + "\n")
    return folder


def test_a_final_score_counts_instead_of_the_curves_last_point_and_both_are_kept(tmp_path: Path) -> None:
    write(tmp_path / "a", {("walker_run", 0): 100.0, ("walker_run", 1): 130.0})
    add_finals(tmp_path / "a", {("walker_run", 0): (90.0, 4.0), ("walker_run", 1): (110.0, 3.0)})
    write(tmp_path / "b", {("walker_run", 0): 50.0}, finetuning("diayn"))  # Of an earlier version.
    out = make(tmp_path / "out", tmp_path)
    means = {row["label"]: float(row["mean"]) for row in read(out, "tasks")}
    assert means == {"BeCL": 100.0, "DIAYN": 50.0}
    scores = {(row["method"], row["seed"]): row for row in read(out, "scores")}
    kept = [scores["becl", "1"][name] for name in ("return", "curve_return", "episodes", "evaluation_stderr")]
    assert kept == ["110.0", "130.0", "50", "3.0"]
    assert [scores["diayn", "0"][name] for name in ("return", "episodes")] == ["50.0", ""]
    page = (out / "index.html").read_text()
    assert "mean over 50 episodes" in page
    assert "is 4 on average" in page  # The error of an evaluation: 3.5.
    assert "is 15 away from it on average" in page  # Of 10 and 20.
    assert "Of 1 run of 3 the score is the last point of the curve" in page


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("walker_run,0,3,99,1,1,50", "step 99 of 100"),
        ("walker_run,0,3,100,1,1,many", "damaged in line 2"),
        ("walker_run,7,3,100,1,1,50", "no walker_run seed 7"),
        ("walker_run,0,3,100,nan,1,50", "return is nan"),
        ("walker_run,0,3,100,1,1,50\nwalker_run,0,3,100,1,1,50", "walker_run seed 0 again"),
    ],
)
def test_damaged_final_scores_are_left_out_by_name(tmp_path: Path, line: str, why: str) -> None:
    write(tmp_path / "a", {("walker_run", 0): 100.0})
    (tmp_path / "a" / "final.csv").write_text(f"task,seed,skill,step,return,stderr,episodes\n{line}\n")
    assert any(why in reason for reason in reasons(tmp_path / "a"))


def test_the_page_says_first_whether_pretraining_helps(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Return / expert's by hand: 796 and 971 are the expert's of run and walk, 888 of the quadruped's run."""
    better = {("walker_run", s): 796 * (0.6 + 0.01 * s) for s in range(5)}
    better |= {("walker_walk", s): 971 * (0.8 + 0.01 * s) for s in range(5)}
    worse = {("quadruped_run", s): 888 * (0.2 + 0.01 * s) for s in range(5)}
    write(tmp_path / "walker", better)
    write(tmp_path / "quadruped", worse, finetuning(env="quadruped"))
    scratch = {(task, s): value / 2 for (task, s), value in better.items()}
    write(tmp_path / "scratch", scratch, finetuning("ddpg"))
    beside = {(task, s): value + 100 * (s - 2) for (task, s), value in worse.items()}
    write(tmp_path / "scratch-quadruped", beside, finetuning("ddpg", "quadruped"))
    out = make(tmp_path / "out", tmp_path)
    found = {row["robot"]: row for row in read(out, "help")}
    assert float(found["walker"]["mean"]) == pytest.approx((0.62 + 0.82) / 2)
    assert float(found["walker"]["difference"]) == pytest.approx((0.62 + 0.82) / 4)
    assert float(found["walker"]["low"]) > 0
    assert float(found["quadruped"]["difference"]) == pytest.approx(0.0, abs=1e-9)
    assert float(found["quadruped"]["low"]) < 0 < float(found["quadruped"]["high"])
    said = capsys.readouterr().out.replace("\n", " ")
    assert "caution: quadruped, BeCL: pretraining did not help" in said
    assert "caution: walker" not in said
    page = (out / "index.html").read_text()
    assert page.index("Does pretraining help?") < page.index("Return on each task")
    assert "pretraining helps" in page


def test_the_page_says_that_few_runs_cannot_show_whether_pretraining_helps(tmp_path: Path, capsys) -> None:
    better = {("walker_run", s): 796 * (0.6 + 0.01 * s) for s in range(2)}
    write(tmp_path / "walker", better)
    write(tmp_path / "scratch", {unit: value / 2 for unit, value in better.items()}, finetuning("ddpg"))
    make(tmp_path / "out", tmp_path)
    assert "caution: All: too few runs: walker_run has 2" in capsys.readouterr().out.replace("\n", " ")


def test_a_report_without_a_baseline_asks_for_one(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    make(tmp_path / "out", write(tmp_path / "a", {("walker_run", 0): 100.0, ("walker_walk", 0): 50.0}))
    said = " ".join(capsys.readouterr().out.split())
    assert "walker: nothing to compare with" in said
    assert "becl finetune --scratch --task walker_walk walker_run" in said


def test_harm_is_called_harm(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    write(tmp_path / "a", {("walker_run", s): 100.0 + s for s in range(5)})
    write(tmp_path / "b", {("walker_run", s): 200.0 + s for s in range(5)}, finetuning("ddpg"))
    make(tmp_path / "out", tmp_path)
    assert "pretraining did harm" in capsys.readouterr().out.replace("\n", " ")


def test_tables_hold_every_evaluation_and_the_command_behind_it(tmp_path: Path) -> None:
    write(tmp_path / "a", {("walker_run", 0): 100.0, ("walker_run", 1): 0.1 + 0.2})
    out = make(tmp_path / "out", tmp_path / "a")
    scores = {int(row["seed"]): row for row in read(out, "scores")}
    assert float(scores[1]["return"]) == 0.1 + 0.2
    assert scores[0]["command"] == "becl finetune a"
    assert scores[0]["skill"] == "3"
    assert scores[0]["folder"] == ".../a"
    curves = {(int(row["seed"]), int(row["step"])): float(row["return"]) for row in read(out, "curves")}
    assert curves[0, STEPS // 2] == 50.0
    assert len(curves) == 6
    assert "becl finetune a" in (out / "index.html").read_text()


def test_published_numbers_are_shown_but_are_in_no_number_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = finetuning() | {"steps": 100_000}
    scores = [f"walker_run,{seed},,100000,{300.0 + seed},1" for seed in (0, 1)]
    write_files(tmp_path / "a", config | {"seeds": [0, 1]}, scores)
    before = make(tmp_path / "before", tmp_path / "a")
    assert [row["published_mean"] for row in read(before, "published") if row["published_by"] == "becl-2023"] == [
        "387.0"
    ]
    changed = tuple(row._replace(value=1e6) for row in published.rows())
    monkeypatch.setattr(published, "_load", lambda: changed)
    after = make(tmp_path / "after", tmp_path / "a")
    assert {row["published_mean"] for row in read(after, "published")} == {"1000000.0"}
    for name in ("tasks", "scores", "aggregates", "profiles", "curves"):
        assert read(before, name) == read(after, name), name


def test_runs_with_another_budget_do_not_stand_beside_published_numbers(tmp_path: Path) -> None:
    out = make(tmp_path / "out", write(tmp_path / "a", {("walker_run", 0): 1.0}))
    assert not (out / "tables" / "published.csv").exists()


# --- Configurations ---------------------------------------------------------------------------------------------------


def test_seeds_of_one_configuration_are_merged_over_folders_and_robots(tmp_path: Path) -> None:
    write(tmp_path / "a", {("walker_run", 0): 1.0}, finetuning(source="elsewhere", eval_every=7))
    write(tmp_path / "deep" / "er" / "b", {("walker_run", 1): 3.0})
    write(tmp_path / "c", {("jaco_reach_top_left", 0): 5.0}, finetuning(env="jaco"))
    (one,) = collect([tmp_path]).configurations
    assert list(one.outcomes) == ["walker_run", "jaco_reach_top_left"]
    assert one.scores("walker_run").tolist() == [1.0, 3.0]


def test_the_same_seed_twice_is_an_error_that_names_both_folders(tmp_path: Path) -> None:
    write(tmp_path / "a", {("walker_run", 0): 1.0})
    write(tmp_path / "b", {("walker_run", 0): 2.0})
    with pytest.raises(UserError, match=r"walker_run seed 0 .*/a and in .*/b") as error:
        make(tmp_path / "out", tmp_path)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_a_folder_named_twice_is_read_once(tmp_path: Path) -> None:
    write(tmp_path / "a", {("walker_run", 0): 1.0})
    (one,) = collect([tmp_path, tmp_path / "a", tmp_path / "." / "a"]).configurations
    assert one.scores("walker_run").tolist() == [1.0]


def test_labels_say_what_differs_from_the_methods_default_and_no_more(tmp_path: Path) -> None:
    warm = finetuning()
    warm["pretraining"]["run"]["objective"]["temperature"] = 0.25
    many = finetuning()
    many["pretraining"]["run"]["objective"]["skills"]["dim"] = 64
    many["run"]["objective"]["skills"]["dim"] = 64
    for name, config in {
        "plain": finetuning(),
        "warm": warm,
        "many": many,
        "best": finetuning(skill="best-first"),
        "critic": finetuning(transfer="critic", snapshot=500_000),
        "fixed": finetuning(skill="fixed:7"),
        "diayn": finetuning("diayn", skill="each-other"),
        "ddpg": finetuning("ddpg"),
    }.items():
        write(tmp_path / name, {("walker_run", 0): 1.0}, config)
    assert labels(tmp_path) == [
        "DDPG",
        "DIAYN",
        "BeCL",
        "BeCL, skill 7",
        "BeCL, κ = 0.25",
        "BeCL, 64 skills",
        "BeCL, best-first skill",
        "BeCL, transfer critic, snapshot 500k",
    ]


def test_what_follows_from_the_choice_of_the_skill_is_not_in_the_label(tmp_path: Path) -> None:
    sweeping = finetuning(skill="best-first")
    sweeping["run"] = sweeping["run"] | {"choice": {"spec": "BestFirst", "steps": 4000}}
    longer = finetuning(skill="best-first")
    longer["run"] = longer["run"] | {"choice": {"spec": "BestFirst", "steps": 9000}}
    write(tmp_path / "a", {("walker_run", 0): 1.0})
    write(tmp_path / "b", {("walker_run", 0): 2.0}, sweeping)
    assert labels(tmp_path) == ["BeCL", "BeCL, best-first skill"]
    write(tmp_path / "c", {("walker_run", 0): 2.0}, longer)
    assert labels(tmp_path) == [
        "BeCL",
        "BeCL, best-first skill, choice.steps 4k",
        "BeCL, best-first skill, choice.steps 9k",
    ]


def test_configurations_with_many_differences_keep_different_labels(tmp_path: Path) -> None:
    for number in range(3):
        config = finetuning(skill="each-way", unknown=number, other=number, more=number, most=number, last=number)
        write(tmp_path / str(number), {("walker_run", 0): float(number)}, config)
    found = labels(tmp_path)
    assert len(set(found)) == 3
    assert max(map(len, found)) < 80


def test_what_is_not_the_methods_default_reward_is_said_even_of_a_single_run(tmp_path: Path) -> None:
    config = finetuning()
    config["pretraining"]["run"]["objective"] |= {"positive": "mean", "temperature": 0.1}
    config["pretraining"]["run"]["batch"] = 64  # A size, which says nothing of the method.
    assert labels(write(tmp_path / "a", {("walker_run", 0): 1.0}, config)) == ['BeCL, κ = 0.1, positive = "mean"']


def test_an_option_that_others_left_out_tells_configurations_apart(tmp_path: Path) -> None:
    """Newer options are kept only where they are not the default."""
    config = finetuning()
    config["pretraining"]["run"]["reward_scale"] = 33.0
    write(tmp_path / "a", {("walker_run", 0): 1.0})
    write(tmp_path / "b", {("walker_run", 0): 2.0}, config)
    assert labels(tmp_path) == ["BeCL", "BeCL, reward_scale = 33.0"]


def test_from_scratch_and_pretrained_are_told_apart(tmp_path: Path) -> None:
    before = json.loads(json.dumps(make_pretraining(PretrainOptions("walker", "ddpg")).config()))
    pretrained = finetuning("ddpg") | {"pretraining": before, "snapshot": 2_000_000, "transfer": "trunk"}
    write(tmp_path / "a", {("walker_run", 0): 1.0}, finetuning("ddpg"))
    write(tmp_path / "b", {("walker_run", 0): 2.0}, pretrained)
    assert labels(tmp_path) == ["DDPG", "DDPG, from scratch"]


def test_methods_without_all_tasks_are_not_in_the_aggregates(tmp_path: Path) -> None:
    full = {("walker_run", 0): 1.0, ("walker_walk", 0): 1.0}
    write(tmp_path / "a", full)
    write(tmp_path / "b", full, finetuning("diayn"))
    write(tmp_path / "c", {("walker_run", 0): 1.0}, finetuning("cic"))
    out = make(tmp_path / "out", tmp_path)
    assert {row["label"] for row in read(out, "aggregates")} == {"DIAYN", "BeCL"}
    assert {row["what"]: row["why"] for row in read(out, "left-out")} == {
        "CIC": "not in the aggregates over 2 tasks: no runs on walker_walk"
    }


def test_each_robot_has_its_own_aggregate(tmp_path: Path) -> None:
    write(tmp_path / "a", {("walker_run", 0): 796.0})
    write(tmp_path / "b", {("jaco_reach_top_left", 0): 19.1}, finetuning(env="jaco"))
    rows = read(make(tmp_path / "out", tmp_path), "aggregates")
    found = {row["tasks"]: float(row["value"]) for row in rows if row["aggregate"] == "iqm"}
    assert found == pytest.approx({"all tasks": 0.55, "walker": 1.0, "jaco": 0.1})


def test_ablations_and_choices_are_found_among_other_runs(tmp_path: Path) -> None:
    for number, dim in enumerate((8, 16, 64)):
        config = finetuning()
        config["pretraining"]["run"]["objective"]["skills"]["dim"] = dim
        write(tmp_path / f"skills-{dim}", {("walker_run", 0): 10.0 * number, ("walker_run", 1): 0.0}, config)
    for temperature in (0.1, 0.5):
        config = finetuning("becl-paper")
        config["pretraining"]["run"]["objective"]["temperature"] = temperature
        write(tmp_path / f"temperature-{temperature}", {("walker_run", 0): temperature}, config)
    write(tmp_path / "best", {("walker_run", 0): 77.0}, finetuning(skill="best-first"))
    write(tmp_path / "other", {("walker_run", 0): 1.0}, finetuning("cic"))
    out = make(tmp_path / "out", tmp_path)
    counts = {float(row["skills"]): (row["label"], float(row["mean"])) for row in read(out, "skill-count")}
    assert counts == {8.0: ("BeCL", 0.0), 16.0: ("BeCL", 5.0), 64.0: ("BeCL", 10.0)}
    heats = {float(row["temperature"]): (row["label"], float(row["mean"])) for row in read(out, "temperature")}
    assert heats == {0.1: ("BeCL-paper", 0.1), 0.5: ("BeCL-paper", 0.5)}
    choices = {row["choice"]: float(row["mean"]) for row in read(out, "choices")}
    assert choices == {"random": 5.0, "best-first": 77.0}


def test_options_of_objectives_are_listed_where_they_tell_runs_of_one_method_apart(tmp_path: Path) -> None:
    for number, method in enumerate(("becl", "becl", "cic")):
        config = finetuning(method)
        config["pretraining"]["run"]["objective"] |= {"told": number % 2, "common": method}
        write(tmp_path / str(number), {("walker_run", 0): 1.0}, config)
    table = option_table(collect([tmp_path]).configurations)
    shown = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert shown["pretraining.run.objective.told"] == ["0", "0", "1"]
    assert "pretraining.run.objective.common" not in shown
    assert "method" in shown


# --- Pretraining ------------------------------------------------------------------------------------------------------


def write_pretraining(folder: Path, method: str = "becl") -> Path:
    (folder / "evaluation").mkdir(parents=True)
    config = make_pretraining(PretrainOptions("walker", method, seeds=(0, 1))).config()
    (folder / "config.json").write_text(json.dumps(config))
    metrics = [f"{step},{seed},{step / 10},{step},{step}" for step in (10, 20) for seed in (0, 1)]
    (folder / "metrics.csv").write_text("\n".join(["step,seed,reward,cells,extrinsic", *metrics]) + "\n")
    tasks = ("walker_run", "walker_walk")
    rows = [f"{seed},{skill},{task},{100 * skill + seed},1" for seed in (0, 1) for skill in (0, 1) for task in tasks]
    (folder / "evaluation" / "zero-shot-20.csv").write_text("\n".join(["seed,skill,task,return,stderr", *rows]) + "\n")
    (folder / "evaluation" / "skills-20.csv").write_text("seed,skills,entropy\n0,2,1.0\n1,2,3.0\n")
    (folder / "evaluation" / "result-20.json").write_text(json.dumps({"command": "becl evaluate there"}))
    return folder


def test_pretrained_skills_are_shown_without_any_finetuning(tmp_path: Path) -> None:
    out = make(tmp_path / "out", write_pretraining(tmp_path / "a"))
    rows = {(r["seed"], r["skill"], r["task"]): float(r["return"]) for r in read(out, "zero-shot")}
    assert len(rows) == 8
    assert rows["1", "1", "walker_walk"] == 101.0
    page = (out / "index.html").read_text()
    assert "becl evaluate there" in page
    assert "2 ± 1" in page  # Entropy 1 and 3.
    assert {path.stem for path in (out / "figures").glob("*.png")} == {"zero-shot", "pretraining-walker"}


def test_a_pretraining_is_judged_where_its_result_knows_a_chance_level(tmp_path: Path) -> None:
    folder = write_pretraining(tmp_path / "a", "becl-paper")
    said = "BeCL-paper: the reward was"
    assert said not in (make(tmp_path / "one", folder) / "index.html").read_text()  # Of an earlier version.
    (folder / "result.json").write_text(json.dumps({"command": "becl pretrain", "chance_reward": 1 / 31}))
    page = (make(tmp_path / "other", folder) / "index.html").read_text()
    assert said in page
    assert "Dotted: the reward where nothing is learned" in page
    assert "Guessing has an accuracy of 0.5 with 2 skills" in page
    assert ".../a, seeds 0, 1" in page


def write_study(folder: Path) -> Path:
    folder.mkdir()
    config = {"study": "comparison", "cycles": 50, "mine_iterations": 0, "runs": {"becl-paper": {}, "cic": {}}}
    (folder / "config.json").write_text(json.dumps(config))
    summary: dict[str, Any] = {"becl-paper": {"seeds": [3, 4], "accuracy": {"mean": 0.91, "std": 0.02}}}
    summary["becl-paper"]["chance_reward"] = 1 / 19
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "becl-paper").mkdir()
    for seed in (3, 4):
        rows = [f"{cycle},0.{seed},-1.5" for cycle in (25, 50)]
        (folder / "becl-paper" / f"seed-{seed}.csv").write_text(
            "\n".join(["cycle,reward,policy_entropy", *rows]) + "\n"
        )
        (folder / "becl-paper" / f"seed-{seed}.json").write_text("{}")
    return folder


def test_a_maze_study_is_a_section_of_its_own(tmp_path: Path) -> None:
    out = make(tmp_path / "out", write_study(tmp_path / "study"))
    page = (out / "index.html").read_text()
    assert "Maze study: comparison" in page
    assert "0.91 ± 0.02" in page
    assert "seeds 3, 4" in page
    assert "times chance (0.0526)" in page
    assert {path.stem for path in (out / "figures").glob("*.png")} == {"maze-curves"}


def test_a_damaged_maze_study_is_left_out(tmp_path: Path) -> None:
    pretrained = write_pretraining(tmp_path / "a")
    for number, text in enumerate(("{", "[]", "{}", '{"becl-paper": {"seeds": 3}}')):
        study = write_study(tmp_path / str(number))
        (study / "summary.json").write_text(text)
        found = collect([pretrained, study])
        assert not found.studies
        assert [one.what for one in found.left_out] == [str(study)]


def test_seeds_without_a_map_are_counted_in_the_caption(tmp_path: Path) -> None:
    folder = write_pretraining(tmp_path / "a")
    rows = [f"{seed},0,walker_run,1,1" for seed in range(10)]
    (folder / "evaluation" / "zero-shot-20.csv").write_text("\n".join(["seed,skill,task,return,stderr", *rows]) + "\n")
    page = (make(tmp_path / "out", folder) / "index.html").read_text()
    assert "The first 8 of 10 seeds." in page


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("evaluation/zero-shot-20.csv", "seed,skill,task,return,stderr\n0,0,jaco_reach_top_left,1,1\n", "in line 2"),
        ("evaluation/zero-shot-20.csv", "seed,skill,task,return,stderr\n0,0,walker_run,?,1\n", "in line 2"),
        ("evaluation/zero-shot-20.csv", "seed,skill,task,return,stderr\n", "no rows"),
        ("evaluation/zero-shot-20.csv", "seed,task\n", "no column skill"),
        (
            "evaluation/zero-shot-20.csv",
            "seed,skill,task,return,stderr\n0,0,walker_run,1,1\n1,1,walker_run,1,1\n",
            "every",
        ),
        ("evaluation/skills-20.csv", "entropy\n1\n", "no column seed"),
        ("evaluation/skills-20.csv", "seed,entropy\n", "no rows"),
        ("evaluation/skills-20.csv", "seed,entropy\n0,1,2\n", "a line has more values than there are columns"),
        ("metrics.csv", "step,seed,reward\n1,0,x\n", "damaged"),
    ],
)
def test_damage_of_an_evaluation_leaves_out_that_file_only(tmp_path: Path, file: str, text: str, why: str) -> None:
    (write_pretraining(tmp_path / "a") / file).write_text(text)
    found = collect([tmp_path])
    assert len(found.pretrainings) == 1
    (left_out,) = found.left_out
    assert left_out.what == str(tmp_path / "a" / file)
    assert why in left_out.why


# --- What is left out -------------------------------------------------------------------------------------------------

GOOD = "task,seed,skill,step,return,stderr\nwalker_run,0,,0,1,1\nwalker_run,0,,100,2,1\n"


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("config.json", "{", "config.json is damaged"),
        ("config.json", "[]", "config.json is damaged"),
        ("config.json", '{"command": "dance"}', "holds no pretraining or finetuning run and no maze study"),
        ("config.json", '{"command": "finetune"}', "config.json is damaged: env is None"),
        ("config.json", '{"command": "pretrain"}', "config.json is damaged: env is None"),
        ("config.json", b"\xff\xfe", "config.json is damaged"),
        ("config.json", json.dumps(finetuning(seeds=["a"])), "config.json is damaged: seeds is ['a']"),
        ("config.json", json.dumps(finetuning(tasks=[])), "config.json is damaged: tasks is []"),
        ("config.json", json.dumps(finetuning(snapshot="late")), "config.json is damaged: snapshot is 'late'"),
        ("result.json", "{", "result.json is damaged"),
        ("scores.csv", None, "scores.csv: No such file or directory"),
        ("scores.csv", b"\xff\xfe\xff", "scores.csv is damaged: not text"),
        ("scores.csv", "", "scores.csv is damaged: no column task"),
        ("scores.csv", GOOD + "x" * 200_000 + "\n", "scores.csv is damaged: field larger"),
        ("scores.csv", GOOD.replace("return", "score"), "scores.csv is damaged: no column return"),
        ("scores.csv", GOOD.replace("100,2", "100,two"), "scores.csv is damaged in line 3"),
        ("scores.csv", GOOD.replace("100,2,1", "100"), "scores.csv is damaged in line 3"),
        ("scores.csv", GOOD.replace("100,2,1", "100,2,1,7"), "a line has more values than there are columns"),
        ("scores.csv", GOOD.replace("100,2", "100,nan"), "scores.csv is damaged in line 3: return is nan"),
        (
            "scores.csv",
            GOOD.replace(",100,", ",0,"),
            "scores.csv is damaged in line 3: step 0 of walker_run seed 0 again",
        ),
        ("scores.csv", GOOD.replace("run,0,,100", "fly,0,,100"), "in line 3: the run has no walker_fly seed 0"),
        ("scores.csv", GOOD.replace("run,0,,100", "run,5,,100"), "in line 3: the run has no walker_run seed 5"),
        ("scores.csv", GOOD.replace(",100,", ",50,"), "walker_run seed 0: unfinished, step 50 of 100"),
        ("scores.csv", GOOD.rstrip("\n"), "walker_run seed 0: unfinished, step 0 of 100"),
        ("scores.csv", GOOD.splitlines()[0] + "\n", "walker_run seed 0: not begun"),
    ],
)
def test_every_kind_of_damage_has_its_reason(tmp_path: Path, file: str, text: str | bytes | None, why: str) -> None:
    folder = write(tmp_path / "bad", {("walker_run", 0): 2.0})
    if text is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(UserError, match="nothing to report") as error:
        make(tmp_path / "out", folder)
    assert why in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()
    write(tmp_path / "good", {("walker_run", 1): 3.0})
    found = collect([folder, tmp_path / "good"])
    assert [one.scores("walker_run").tolist() for one in found.configurations] == [[3.0]]
    (left_out,) = found.left_out
    assert left_out.what == str(folder)
    assert why in left_out.why


def test_the_page_says_what_was_left_out(tmp_path: Path) -> None:
    bad = write(tmp_path / "bad", {("walker_run", 0): 2.0})
    (bad / "scores.csv").unlink()
    out = make(tmp_path / "out", bad, write(tmp_path / "good", {("walker_run", 1): 3.0}))
    (row,) = read(out, "left-out")
    assert row == {"what": ".../bad", "why": "scores.csv: No such file or directory"}
    page = (out / "index.html").read_text()
    assert row["why"] in page
    assert html.escape(row["what"]) in page


def test_a_task_of_another_robot_is_damage_but_robots_may_be_mixed(tmp_path: Path) -> None:
    write(tmp_path / "bad", {("walker_run", 0): 1.0, ("jaco_reach_top_left", 0): 1.0})
    assert reasons(tmp_path) == ["config.json is damaged: task jaco_reach_top_left does not belong to walker"]
    write(tmp_path / "good", {("walker_run", 0): 1.0})
    write(tmp_path / "jaco", {("jaco_reach_top_left", 0): 1.0}, finetuning(env="jaco"))
    (one,) = collect([tmp_path]).configurations
    assert len(one.outcomes) == 2


def test_what_is_no_run_is_left_out_by_name(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    write(tmp_path / "a", {("walker_run", 0): 1.0})
    places = [tmp_path / "empty", tmp_path / "file", tmp_path / "missing"]
    found = collect([*places, tmp_path / "a"])
    assert [one.what for one in found.left_out] == [str(place) for place in places]
    assert [one.why for one in found.left_out] == [
        "no run in it (no config.json)",
        "a file, not a folder of a run",
        "does not exist",
    ]


def test_finished_seeds_of_an_unfinished_folder_count(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", {("walker_run", seed): 10.0 for seed in range(3)})
    lines = (folder / "scores.csv").read_text().splitlines()
    (folder / "scores.csv").write_text("\n".join(lines[:6]) + "\nwalker_run,1,3,1")  # Seed 1 lacks its end.
    (folder / "result.json").unlink()
    found = collect([folder])
    assert list(found.configurations[0].outcomes["walker_run"]) == [0]
    assert [one.why for one in found.left_out] == [
        "walker_run seed 1: unfinished, step 50 of 100",
        "walker_run seed 2: not begun",
    ]
    assert found.warnings == [f"{folder} has no result.json: not finished, command unknown"]


def test_a_run_that_was_only_evaluated_is_a_run(tmp_path: Path) -> None:
    write_files(tmp_path / "a", finetuning(steps=0), ["walker_run,0,,0,42,1"])
    (row,) = read(make(tmp_path / "out", tmp_path / "a"), "tasks")
    assert float(row["mean"]) == 42.0


def test_a_seed_with_some_of_its_skills_is_unfinished(tmp_path: Path) -> None:
    scores = {("walker_run", 0, 0): 1.0, ("walker_run", 0, 1): 1.0, ("walker_run", 1, 0): 1.0}
    write_each(tmp_path / "each", scores, 2)
    assert reasons(tmp_path) == ["walker_run seed 1: unfinished, 1 of 2 skills"]


def test_different_versions_are_a_warning(tmp_path: Path) -> None:
    write(tmp_path / "a", {("walker_run", 0): 1.0}, result={"becl": "0.1"})
    write(tmp_path / "b", {("walker_run", 1): 1.0}, result={"becl": "0.2", "command": None})
    out = make(tmp_path / "out", tmp_path)
    page = (out / "index.html").read_text()
    assert "runs were made by different versions of becl: 0.1, 0.2" in page
    assert {row["command"] for row in read(out, "scores")} == {"becl finetune a", "not recorded"}


def test_out_must_be_a_folder_one_can_write_in(tmp_path: Path) -> None:
    write(tmp_path / "a", {("walker_run", 0): 1.0})
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UserError, match=r"file is a file; choose another --out"):
        make(tmp_path / "file", tmp_path / "a")
    with pytest.raises(UserError, match="cannot write in"):
        make(tmp_path / "file" / "below", tmp_path / "a")
    assert (tmp_path / "file").read_text() == "kept"


def test_nothing_given_or_no_resamples_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no runs to report"):
        make(tmp_path / "out")
    with pytest.raises(UserError, match="--resamples 0: at least 1 is needed"):
        report(ReportOptions((tmp_path,), tmp_path / "out", 0))


def test_the_terminal_shows_numbers_and_what_was_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a", {("walker_run", 0): 123.0, ("walker_run", 1): 125.0})
    (tmp_path / "empty").mkdir()
    out = make(tmp_path / "out", tmp_path / "a", tmp_path / "empty")
    shown = capsys.readouterr().out
    assert "124 ± 1" in shown
    assert "no run in it" in shown
    assert shown.rstrip().endswith(str(out / "index.html"))


# --- The page ---------------------------------------------------------------------------------------------------------


class Page(html.parser.HTMLParser):
    """Fails where tags do not match; keeps what elements refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.images: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.references += [given[name] or "" for name in ("src", "href", "srcset", "data", "action") if name in given]
        self.ids += [given["id"] or ""] if "id" in given else []
        self.images += [given["src"] or ""] if tag == "img" else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a beginning"
        assert self.open.pop() == tag


def everything(where: Path) -> Path:
    """Folders that fill every section, with labels and words that HTML would misread."""
    for method, level in (("becl", 300.0), ("cic", 100.0), ("diayn", 200.0)):
        for seed in (0, 1):
            config = finetuning(method, strange='<b>&"')
            scores = {("walker_run", seed): level + seed, ("walker_walk", seed): level}
            write(where / f"{method}-{seed}", scores, config, result={"command": "becl <finetune> & 'more'"})
    write(where / "best", {("walker_run", 0): 7.0}, finetuning(skill="best-first", strange='<b>&"'))
    write_each(where / "each", {("walker_run", 0, skill): 1.0 + skill for skill in range(3)}, 3)
    write_pretraining(where / "pretraining")
    (where / "<i>broken").mkdir()
    (where / "<i>broken" / "config.json").write_text("{")
    return where


def test_the_page_is_well_formed_whole_and_needs_no_network(tmp_path: Path) -> None:
    out = make(tmp_path / "out", everything(tmp_path / "runs"))
    text = (out / "index.html").read_text()
    page = Page()
    page.feed(text)
    page.close()
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    for reference in page.references:
        assert reference.startswith(("data:", "#")), reference
        assert not reference.startswith("#") or reference[1:] in page.ids, reference
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|<iframe|<i>broken|<finetune>", text)
    assert "&lt;i&gt;broken" in text
    names = {path.stem for path in (out / "figures").glob("*.svg")}
    assert len(page.images) == len(names) >= 7
    for source in page.images:
        kind, _, data = source.partition(",")
        assert kind == "data:image/svg+xml;base64"
        assert b"<svg" in base64.b64decode(data)[:2000]
    assert names == {path.stem for path in (out / "figures").glob("*.png")}


def test_markdown_has_the_numbers_of_the_tables_and_figures_that_exist(tmp_path: Path) -> None:
    runs, page = everything(tmp_path / "runs"), tmp_path / "docs" / "results.md"
    report(ReportOptions((runs,), tmp_path / "out", 50, page))
    text = page.read_text()
    lines = text.splitlines()
    first = lines.index(next(line for line in lines if line.startswith("| task |")))
    table = [[word.strip(" *") for word in line.strip("|").split("|")] for line in lines[first:]]
    table = table[: next(number for number, row in enumerate(table) if len(row) < len(table[0]))]
    found = {
        (row[0], label): text
        for row in table[2:]
        for label, text in zip(table[0][1:], row[1:], strict=True)
        if text != "–"
    }
    expected = read(tmp_path / "out", "tasks")
    assert len(found) == len(expected) > 0
    means = sorted(float(row["mean"]) for row in expected)
    assert sorted(float(text.split()[0]) for text in found.values()) == pytest.approx(means, abs=0.5)
    figures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", text)
    assert figures
    assert all((page.parent / place).exists() for place in figures)
    assert "](#" not in text


def test_the_same_runs_give_the_same_tables_and_figures(tmp_path: Path) -> None:
    everything(tmp_path / "runs")
    one, other = (make(tmp_path / name, tmp_path / "runs") for name in ("one", "other"))
    for path in sorted([*one.glob("tables/*"), *one.glob("figures/*")]):
        assert path.read_bytes() == (other / path.relative_to(one)).read_bytes(), path.name


def test_importing_the_command_stays_quick() -> None:
    import subprocess
    import sys

    heavy = ("matplotlib", "jinja2", "jax", "rich.console")
    code = f"import sys, becl.reports.page; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_report_is_made_without_jax(tmp_path: Path) -> None:
    import subprocess
    import sys

    everything(tmp_path / "runs")
    code = f"""
import sys
from pathlib import Path
from becl.reports.contents import build
from becl.options import ReportOptions
from becl.reports.page import write_report
from becl.reports.runs import collect

runs, out = Path({str(tmp_path / "runs")!r}), Path({str(tmp_path / "out")!r})
out.mkdir()
found = collect([runs])
assert len(found.configurations) > 1 and found.pretrainings
write_report(found, build(found, 50), ReportOptions((runs,), out, 50, out / "report.md"))
assert (out / "index.html").exists() and (out / "report.md").exists()
assert "jax" not in sys.modules
assert "mujoco" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_robots_are_those_of_the_environments() -> None:
    assert set(ROBOTS) == set(DOMAINS)


# --- Defaults ---------------------------------------------------------------------------------------------------------


def test_kept_defaults_are_those_of_the_specs() -> None:
    own = {method: defaults.default_configuration(method) for method in METHODS if method not in ORIGINS}
    assert json.loads(defaults.PLACE.read_text()) == own, "make defaults writes them anew"


def test_a_run_with_defaults_has_its_methods_name_alone(tmp_path: Path) -> None:
    for method in METHODS.keys() - ORIGINS.keys():
        folder = write(tmp_path / method, {("walker_run", 0): 1.0}, finetuning(method))
        (label,) = labels(folder)
        assert label == pretty_method(method)


def test_defaults_of_plug_ins_are_handed_over(tmp_path: Path) -> None:
    name = "rarely-used-name"
    config = finetuning()
    config["method"] = config["pretraining"]["method"] = name
    write(tmp_path / "a", {("walker_run", 0): 1.0}, config)
    other = json.loads(json.dumps(config))
    other["pretraining"]["run"]["fits_per_update"] = other["run"]["fits_per_update"] = 7
    write(tmp_path / "b", {("walker_run", 1): 1.0}, other)
    default = {"skill": "random", "transfer": "trunk", "pretraining": config["pretraining"]}
    unknown = [one.label for one in collect([tmp_path]).configurations]
    assert unknown == [f"{name}, fits_per_update = 3", f"{name}, fits_per_update = 7"]
    known = [one.label for one in collect([tmp_path], {name: default}).configurations]
    assert known == [name, f"{name}, fits_per_update = 7"]
    (alone,) = collect([tmp_path / "b"], {name: default}).configurations
    assert alone.label == f"{name}, fits_per_update = 7"


def test_lists_of_seeds_are_short() -> None:
    assert ranges([0, 1, 2, 5, 7, 8]) == "0–2, 5, 7–8"
    assert ranges([]) == ""

"""Curves of pretraining runs from folders as `becl pretrain` leaves them."""

import json
from pathlib import Path

import numpy as np
import pytest

from becl.commands.cli import main
from becl.commands.plot import finetuned, pretrained, studied
from becl.experiments.maze_study import make_run
from becl.experiments.pretraining import make_pretraining
from becl.options import PretrainOptions
from becl.runs.metrics import read_metrics, run_labels
from becl.seeds import seeds_named
from becl.specs import to_dict
from becl.views.figures.curves import pretraining_curves

pytestmark = pytest.mark.filterwarnings("error")

POINTS = 40


def write_run(folder: Path, method="becl", env="walker", seeds=(0, 1, 2), scale=0.2, every=10_000, **columns) -> Path:
    """A run of `POINTS` rows a seed in which an episode ends in every third."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"command": "pretrain", "env": env, "method": method, "seeds": list(seeds), "steps": POINTS * every}
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(sum(map(ord, method)))
    names = ["step", "seed", "cells", *columns, "return", "extrinsic", "reward"]
    lines = [",".join(names)]
    for row in range(1, POINTS + 1):
        for seed in seeds:
            done = row / POINTS
            values = {
                "step": row * every,
                "seed": seed,
                "cells": int(900 * done**0.5 + 40 * seed),
                "return": f"{30 + 60 * done + 5 * rng.normal():.6g}" if row % 3 == 0 else "",
                "extrinsic": f"{0.03 + 0.06 * done + 0.005 * rng.normal():.6g}",
                "reward": f"{scale * (1 - np.exp(-4 * done)) + 0.05 * scale * rng.normal():.6g}",
            }
            values |= {name: f"{done * (0.9 + 0.05 * seed):.6g}" for name in columns}
            lines.append(",".join(str(values[name]) for name in names))
    (folder / "metrics.csv").write_text("\n".join(lines) + "\n")
    return folder


def draw(*folders: Path):
    configs = [json.loads((folder / "config.json").read_text()) for folder in folders]
    columns = [read_metrics(folder) for folder in folders]
    return pretraining_curves(dict(zip(run_labels(folders, configs), columns, strict=True)))


def titles(figure) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_command_writes_a_figure(tmp_path, capsys):
    runs = [write_run(tmp_path / "one"), write_run(tmp_path / "two", "diayn", seeds=(3,), scale=2.0)]
    assert main(["plot", *map(str, runs)]) == 0
    assert main(["plot", str(runs[1]), "--out", str(tmp_path / "figures" / "both.svg")]) == 0
    printed = capsys.readouterr().out.splitlines()
    files = [Path(line) for line in printed if ":" not in line]
    assert files[:2] == [runs[0] / "curves.png", runs[0] / "curves.svg"]
    assert files[2:] == [tmp_path / "figures" / "both.png", tmp_path / "figures" / "both.svg"]
    assert files[0].read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in files[1].read_bytes()
    verdicts = [line.partition(":")[0] for line in printed if ":" in line]
    assert verdicts == ["becl", "diayn", "diayn"]


def test_lines_are_the_seeds_and_their_mean(tmp_path):
    run = write_run(tmp_path / "run", seeds=(0, 1, 7))
    columns = read_metrics(run)
    assert columns["reward"].shape == (3, POINTS)
    figure = draw(run)
    for axes, name in zip(figure.axes, ("reward", "cells", "return"), strict=True):
        known = np.isfinite(columns[name]).all(0)
        drawn = [np.asarray(line.get_ydata()) for line in axes.lines]
        np.testing.assert_allclose(drawn[:3], columns[name][:, known])
        np.testing.assert_allclose(drawn[3], columns[name][:, known].mean(0))
        np.testing.assert_allclose(np.asarray(axes.lines[3].get_xdata()), columns["step"][known] / 1000)
    assert legend(figure) == ["becl, 3 seeds"]
    assert "thousands" in figure.axes[1].get_xlabel()


def test_a_single_seed_is_one_line_and_long_runs_are_in_millions(tmp_path):
    figure = draw(write_run(tmp_path / "run", seeds=(4,), every=50_000))
    assert [len(axes.lines) for axes in figure.axes] == [1, 1, 1]
    assert legend(figure) == ["becl, 1 seed"]
    assert figure.axes[0].get_xlim() == (0, 2)
    assert "millions" in figure.axes[1].get_xlabel()


def test_coverage_is_shown_where_all_runs_have_it(tmp_path):
    robot, maze = write_run(tmp_path / "robot"), write_run(tmp_path / "maze", env="square_a", coverage=True)
    assert titles(draw(maze))[1] == "coverage"
    assert titles(draw(maze, robot))[1] == "cells visited"


def test_without_a_finished_episode_the_reward_is_shown(tmp_path):
    run = write_run(tmp_path / "run")
    first_rows = (run / "metrics.csv").read_text().splitlines(keepends=True)[: 1 + 2 * 3]
    (run / "metrics.csv").write_text("".join(first_rows))
    assert titles(draw(run))[2] == "task's reward in a batch"


def test_labels_say_what_differs(tmp_path):
    def labels(*runs: tuple[str, str, str]) -> list[str]:
        folders = [tmp_path / folder for folder, _, _ in runs]
        return run_labels(folders, [{"method": method, "env": env} for _, method, env in runs])

    assert labels(("a", "becl", "walker"), ("b", "cic", "walker")) == ["becl", "cic"]
    assert labels(("a", "becl", "walker"), ("b", "becl", "jaco")) == ["becl walker", "becl jaco"]
    three = labels(("a", "becl", "walker"), ("b", "becl", "walker"), ("c", "cic", "walker"))
    assert three == ["becl (a)", "becl (b)", "cic"]
    same_name = labels(("a/run", "becl", "walker"), ("b/run", "becl", "walker"))
    assert same_name == [f"becl ({tmp_path}/a/run)", f"becl ({tmp_path}/b/run)"]


def test_rewards_of_different_orders_share_a_logarithmic_axis(tmp_path):
    becl, icm = write_run(tmp_path / "becl"), write_run(tmp_path / "icm", "icm", scale=20.0)
    assert draw(becl).axes[0].get_yscale() == "linear"
    assert draw(becl, icm).axes[0].get_yscale() in ("log", "symlog")


def test_a_run_that_is_being_written_is_read_up_to_its_last_whole_point(tmp_path):
    run = write_run(tmp_path / "run")
    text = (run / "metrics.csv").read_text()
    (run / "metrics.csv").write_text(text[:-5])
    assert read_metrics(run)["reward"].shape == (3, POINTS - 1)


def spoil(run: Path, name: str, text: str | None) -> None:
    if text is None:
        (run / name).unlink()
    else:
        (run / name).write_text(text)


HEADER = "step,seed,cells,return,extrinsic,reward\n"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("config.json", None, "holds no run"),
        ("config.json", "{", "damaged"),
        ("config.json", '{"command": "maze"}', "no run that can be drawn"),
        ("config.json", "[]", "no run that can be drawn"),
        ("metrics.csv", None, "has no metrics"),
        ("metrics.csv", "", "no rows yet"),
        ("metrics.csv", HEADER, "no rows yet"),
        ("metrics.csv", HEADER + "10000,0,12", "no rows yet"),
        ("metrics.csv", HEADER + "10000,0,12\n", "damaged"),
        ("metrics.csv", HEADER + "10000,0,12,,0.1,high\n", "damaged"),
        ("metrics.csv", "step,seed\n10000,0\n", "damaged"),
        ("metrics.csv", "a,b\n1,2\n", "damaged"),
    ],
)
def test_bad_input_is_one_line_exit_2_and_nothing_written(name, text, said, tmp_path, capsys):
    good, bad = write_run(tmp_path / "good"), write_run(tmp_path / "bad")
    spoil(bad, name, text)
    assert main(["plot", str(good), str(bad), "--out", str(tmp_path / "new" / "curves.png")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error
    assert str(bad) in error
    assert not (tmp_path / "new").exists()


def test_no_runs_missing_ones_and_repeated_ones_are_refused(tmp_path, capsys):
    run = write_run(tmp_path / "run")
    for args in ([], [str(tmp_path / "none")], [str(run), f"{run}/."]):
        assert main(["plot", *args]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not (run / "curves.png").exists()


# --- Chance, and other kinds of runs ----------------------------------------------------------------------------------


def write_real(folder: Path, method: str, reward: float, steps: int = 20_000) -> Path:
    """A run with a whole configuration whose reward stays where it is."""
    options = PretrainOptions("walker", method, (0, 1), steps)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(make_pretraining(options).config()))
    rows = [
        f"{step},{seed},{reward * (1 + 0.001 * (-1) ** (step // 1000 + seed)):.6g}"
        for step in range(5000, steps + 1, 1000)
        for seed in (0, 1)
    ]
    (folder / "metrics.csv").write_text("step,seed,reward\n" + "\n".join(rows) + "\n")
    return folder


def dotted(figure) -> list[float]:
    lines = [line for axes in figure.axes for line in axes.lines if line.get_linestyle() == ":"]
    return [float(np.asarray(line.get_ydata())[0]) for line in lines]


def test_a_run_that_learned_nothing_is_drawn_at_its_chance_level_and_says_so(tmp_path, capsys):
    run = write_real(tmp_path / "run", "becl-paper", 0.0319)
    drawn = pretrained([run])
    assert dotted(drawn.figure) == pytest.approx([1 / 31])
    assert "dotted: chance" in drawn.figure.axes[0].get_xlabel()
    assert main(["plot", str(run)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("becl-paper: the reward was 0.0319")
    assert "not above chance (0.0323)" in last


def test_a_method_without_a_chance_level_has_no_line(tmp_path):
    drawn = pretrained([write_real(tmp_path / "run", "icm", 0.7)])
    assert dotted(drawn.figure) == []
    assert "dotted" not in drawn.figure.axes[0].get_xlabel()
    assert "no chance level" in drawn.lines[0]


def write_finetuning(folder: Path, tasks=("walker_run", "walker_walk"), seeds=(3, 4), last=300.0) -> Path:
    folder.mkdir()
    config = {"command": "finetune", "env": "walker", "method": "becl", "tasks": list(tasks), "seeds": list(seeds)}
    (folder / "config.json").write_text(json.dumps(config | {"skill": "random", "steps": 200}))
    rows = [
        f"{task},{seed},2,{step},{20 + seed + last * step / 200:g},4"
        for step in (0, 100, 200)
        for task in tasks
        for seed in seeds
    ]
    (folder / "scores.csv").write_text("task,seed,skill,step,return,stderr\n" + "\n".join(rows) + "\n")
    return folder


def test_a_finetuned_run_is_drawn_by_its_evaluations(tmp_path, capsys):
    run = write_finetuning(tmp_path / "run")
    figure = finetuned([run]).figure
    assert titles(figure) == ["Walker walk", "Walker run"]
    np.testing.assert_allclose(np.asarray(figure.axes[0].lines[0].get_ydata()), [23.5, 173.5, 323.5])
    np.testing.assert_allclose(np.asarray(figure.axes[0].lines[0].get_xdata()), [0, 0.1, 0.2])
    assert main(["plot", str(run)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == [str(run / "curves.png"), str(run / "curves.svg")]
    assert printed[2] == "becl: walker_run: return 23.5 before training, 324 after it: it rose by 300"


def write_study(folder: Path, labels=("becl-paper", "cic"), seeds=(5, 6)) -> Path:
    folder.mkdir()
    runs = {label: to_dict(make_run(label, "square_a", 10)) for label in labels}
    config = {"study": "comparison", "cycles": 100, "mine_iterations": 0, "runs": runs}
    (folder / "config.json").write_text(json.dumps(config))
    for label in labels:
        (folder / label).mkdir()
        for seed in seeds:
            rows = [f"{cycle},{0.6 + 0.01 * seed},{-cycle / 100}" for cycle in (25, 50, 75, 100)]
            (folder / label / f"seed-{seed}.csv").write_text("cycle,reward,policy_entropy\n" + "\n".join(rows) + "\n")
            (folder / label / f"seed-{seed}.json").write_text("{}")
    return folder


def test_a_maze_study_is_drawn_by_its_rewards_and_entropies(tmp_path):
    study = write_study(tmp_path / "study")
    (study / "cic" / "seed-7.csv").write_text("cycle,rew")  # Not finished: its JSON comes last.
    drawn = studied([study])
    shown = [axes for axes in drawn.figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in shown] == ["BeCL-paper", "CIC", "", ""]
    np.testing.assert_allclose(np.asarray(shown[0].lines[0].get_ydata()), [0.65] * 4)
    np.testing.assert_allclose(np.asarray(shown[3].lines[0].get_ydata()), [-0.25, -0.5, -0.75, -1.0])
    assert dotted(drawn.figure) == pytest.approx([1 / 19])
    assert drawn.names == [f"{study} · seeds 5, 6"]
    assert main(["plot", str(study)]) == 0
    assert (study / "curves.png").exists()


def test_kinds_are_not_mixed_and_what_is_missing_is_said(tmp_path, capsys):
    run, tuned, study = (
        write_run(tmp_path / "run"),
        write_finetuning(tmp_path / "tuned"),
        write_study(tmp_path / "maze"),
    )
    empty = write_study(tmp_path / "empty", seeds=())
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "config.json").write_text((tuned / "config.json").read_text())
    for folders, said in (
        ((run, tuned), "plot each kind by itself"),
        ((study, empty), "one maze study at a time"),
        ((empty,), "no finished seed yet"),
        ((tmp_path / "none",), "scores.csv"),
    ):
        assert main(["plot", *map(str, folders)]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert said in error
        assert str(folders[-1]) in error or said.startswith("one")
    assert main(["evaluate", str(tuned)]) == 2
    assert f"becl plot {tuned}" in capsys.readouterr().err
    assert main(["evaluate", str(study)]) == 2
    assert "but a maze study" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("seeds", "text"),
    [
        ((3,), "seed 3"),
        ((0, 1), "seeds 0, 1"),
        ((0, 1, 2, 9), "seeds 0 to 2, 9"),
        ((4, 200, 201, 202), "seeds 4, 200 to 202"),
    ],
)
def test_seeds_are_named_in_a_few_letters(seeds, text):
    assert seeds_named(seeds) == text

"""The paper's maze figures with the released settings, and runs that serve several figures."""

import json
from pathlib import Path

import pytest

from becl.commands.cli import main
from becl.errors import UserError
from becl.experiments.maze_kinds import KINDS, PUBLISHED
from becl.experiments.maze_results import finished
from becl.experiments.maze_reuse import take_over
from becl.experiments.maze_study import Study, load_study, make_study, note_seeds, unfinished
from becl.objectives.becl import BeCL
from becl.objectives.becl_released_maze import BeCLReleasedMaze
from becl.options import MazeOptions
from becl.runs.folder import open_folder
from becl.specs import to_dict

RESULTS = Path(__file__).parents[1] / "results" / "maze"


def study(kind: str, **options) -> Study:
    return make_study(MazeOptions(study=kind, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("label", PUBLISHED)
def test_every_method_of_figure_4_has_the_released_numbers(label):
    """The released configuration files: facts that are not in our code."""
    run = study("figure4").runs[label]
    learner = run.learner
    assert (learner.entropy_weight, learner.optimizer.learning_rate, learner.optimizer.eps) == (0.025, 3e-4, 1e-3)
    assert (learner.discount, learner.gae_lambda, learner.clip, learner.epochs, learner.minibatches) == (
        (0.99, 0.98, 0.2, 4, 10)
    )
    assert (run.episodes, run.fit_epochs, run.fit_minibatches, run.balanced) == (50, 4, 10, False)
    assert (learner.concatenate, run.env.leak, run.env.name, run.env.episode_length) == (True, True, "square_a", 50)
    assert learner.network.hidden == (128, 128)
    assert not learner.network.normalize
    assert run.objective.skills.dim == 10


def test_becl_is_printed_and_released():
    runs = study("figure4").runs
    printed, released = runs["becl-paper"].objective, runs["becl-released"].objective
    assert isinstance(printed, BeCL)
    assert isinstance(released, BeCLReleasedMaze)
    assert (printed.temperature, printed.ramp, printed.positive, printed.denominator) == (0.5, 0.0, "mean", "paper")
    assert (released.temperature, released.ramp) == (0.5, 0.0)


def test_the_released_formula_is_the_run_already_measured():
    kept = json.loads((RESULTS / "comparison" / "config.json").read_text())
    assert to_dict(study("figure4").runs["becl-released"]) == kept["runs"]["becl-released"]


def test_settings_are_those_of_which_results_are_kept():
    """Today's of every method, and the former ones of `becl` by the words that the pages give."""
    kept = load_study(RESULTS / "comparison", seeds=()).runs
    assert study("estimates", methods=tuple(kept)).runs == kept
    words = "positive=nearest temperature=0.2 ramp=0.35 learner.entropy_weight=0.07"
    (former,) = study("estimates", methods=("becl-paper",), set=tuple(words.split())).runs.values()
    assert former == load_study(RESULTS / "becl-earlier" / "400-404", seeds=()).runs["becl"]
    for page in ("CHANGELOG.md", "docs/maze.md", "docs/methods/becl.md"):
        assert words in " ".join((RESULTS.parents[1] / page).read_text().split())


def test_figures_have_the_papers_axes():
    kappas = study("figure6", methods=("becl-released",)).runs.values()
    assert [getattr(run.objective, "temperature", None) for run in kappas] == [1.0, 0.5, 0.1, 0.01]
    tree = study("figure7")
    assert {run.env.name for run in tree.runs.values()} == {"square_tree"}
    assert [run.objective.skills.dim for label, run in tree.runs.items() if label.startswith("dads")] == [
        10,
        15,
        20,
        30,
    ]
    assert all(run.learner.network.normalize for run in tree.runs.values())
    bars = study("figure8")
    assert bars.mine_iterations == 10_000
    assert study("figure4").mine_iterations == 0
    assert list(bars.runs)[-2:] == ["becl-paper-temperature-0.01", "becl-released-temperature-0.01"]


def test_a_folder_says_whose_settings_it_has():
    assert study("figure6").config()["setting"] == "published"
    assert "setting" not in study("temperature").config()  # As in folders of earlier versions.
    assert study("comparison", setting="published").runs == study("figure4").runs


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--study", "figure4", "--methods", "cic"], "cic is not part of the published maze study"),
        (["--study", "figure4", "--setting", "tuned"], "use --study comparison"),
        (["--study", "figure6", "--temperature", "0.2"], "has its own, 1, 0.5, 0.1 and 0.01"),
        (["--study", "figure8", "--temperature", "0.2"], "0.01"),
        (["--study", "figure9"], "figure8"),
    ],
)
def test_what_no_figure_shows_is_refused(words, said, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["maze", *words, "--out", str(out)]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1
    assert not out.exists()


# --- Runs that serve several figures ----------------------------------------------------------------------------------


def filled(folder: Path, kind: Study, labels: tuple[str, ...]) -> Path:
    """A study's folder in which some runs are finished."""
    open_folder(kind.config(), folder)
    note_seeds(kind, folder)
    for label in labels:
        (folder / label).mkdir()
        for seed in kind.seeds:
            row = {"label": label, "seed": seed, "cycles": kind.cycles, "mutual_information": 1.5, "coverage": 0.5}
            row |= {"far": 2.0, "seconds": 3.0, "mine": 2.0}
            (folder / label / f"seed-{seed}.json").write_text(json.dumps(row))
            for suffix in ("csv", "npz", "safetensors"):
                (folder / label / f"seed-{seed}.{suffix}").write_text(f"{label} {seed} {suffix}")
    return folder


def test_equal_runs_are_taken_over_under_their_name_here(tmp_path):
    bars = filled(tmp_path / "bars", study("figure8", seeds=(0, 1), cycles=3), ("becl-released", "dads"))
    here, out = study("figure6", seeds=(1, 2), cycles=3), tmp_path / "out"
    open_folder(here.config(), out)
    assert take_over(here, out, (bars,)) == 1  # κ = 0.5, and the one seed that both have.
    assert (out / "becl-released-temperature-0.5" / "seed-1.csv").read_text() == "becl-released 1 csv"
    (row,) = finished(here, out)["becl-released-temperature-0.5"]
    assert row["seed"] == 1
    assert "mine" not in row
    assert len(unfinished(here, out)) == 15
    assert take_over(here, out, (bars,)) == 0


def test_half_a_seed_is_not_taken_over(tmp_path):
    bars = filled(tmp_path / "bars", study("figure8", cycles=3), ("dads",))
    (bars / "dads" / "seed-0.npz").unlink()
    here, out = study("figure4", cycles=3), tmp_path / "out"
    open_folder(here.config(), out)
    assert take_over(here, out, (bars,)) == 0


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("figure8", {"cycles": 4}, "its runs have 4 cycles, these have 3"),
        ("figure7", {"cycles": 3}, "none of its runs is one of these"),
    ],
)
def test_folders_of_no_use_are_refused(kind, options, said, tmp_path, capsys):
    folder, out = filled(tmp_path / "other", study(kind, **options), ()), tmp_path / "out"
    assert main(["maze", "--study", "figure4", "--cycles", "3", "--reuse", str(folder), "--out", str(out)]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert len(error.splitlines()) == 1
    assert not out.exists()


def test_a_study_without_mine_is_no_use_for_one_with_it(tmp_path):
    folder = filled(tmp_path / "four", study("figure4", cycles=3), ())
    with pytest.raises(UserError, match="no MINE with 10,000 iterations"):
        take_over(study("figure8", cycles=3), tmp_path / "out", (folder,))


def test_a_figures_folder_opens_again(tmp_path):
    folder = filled(tmp_path / "six", study("figure6", cycles=3, seeds=(4,)), ())
    assert load_study(folder) == study("figure6", cycles=3, seeds=(4,))
    assert set(KINDS) >= {"figure4", "figure6", "figure7", "figure8"}

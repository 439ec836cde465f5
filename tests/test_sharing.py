"""A folder that is handed on tells nothing of the machine it comes from, and does nothing to the one it comes to."""

import csv
import io
import json
import os
import shutil
from pathlib import Path

import pytest
from test_report import finetuning, write

from becl.commands.cli import main
from becl.errors import UserError
from becl.invocation import COMMAND
from becl.runs.events import next_name
from becl.runs.folder import open_folder, read_config, same_settings, to_csv
from becl.runs.provenance import provenance
from becl.sharing import shared_command, shared_path, shared_text


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """The home of somebody, who works in a project below it."""
    project = tmp_path / "home" / "alice" / "project"
    project.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(project.parent))
    monkeypatch.chdir(project)
    return project.parent


class TestCommands:
    def test_stay_as_they_were_typed(self):
        for command in ("becl pretrain walker --seeds 8", "becl report runs/ --out 'a b'", "becl resume ../runs/one",
                        "becl pretrain gym:Pendulum-v1 --set becl:positive=mean --plugin=metra.py"):  # fmt: skip
            assert shared_command(command) == command

    def test_lose_what_comes_before_a_path(self, home):
        here = home / "project"
        for typed, shown in {
            f"becl resume {here}/runs/one": "becl resume runs/one",
            f"becl report {here}": "becl report .",
            f"becl report {home}/other/runs --out={home}/page": "becl report ~/other/runs --out ~/page",
            f"becl report '{home}/my runs'": "becl report ~/'my runs'",
            "becl finetune /scratch/alice/run --plugin=/opt/x/metra.py": "becl finetune .../run --plugin=.../metra.py",
        }.items():
            assert shared_command(typed) == shown

    def test_that_were_changed_by_hand(self):
        assert shared_command(None) is None
        assert shared_command("becl 'unclosed") == "becl 'unclosed"

    def test_of_a_result(self, home):
        before = COMMAND.get()
        COMMAND.set(f"becl pretrain square_a --out {home}/project/runs/one")
        try:
            assert provenance()["command"] == "becl pretrain square_a --out runs/one"
        finally:
            COMMAND.set(before)

    def test_paths_and_texts(self, home):
        assert shared_path(str(home / "runs")) == "~/runs"
        assert shared_path("/scratch/alice/run") == ".../run"
        assert shared_text(f"{home}/project/a, {home}/b, /data/c/d, x{home}/e", [Path("/data/c")]) == (
            f"a, ~/b, .../d, x{home}/e"
        )


class TestSource:
    """Where a finetuning's pretraining lies."""

    CONFIG = {"command": "finetune", "steps": 3}  # noqa: RUF012

    def folders(self, place: Path) -> tuple[Path, Path]:
        (place / "pretrained").mkdir(parents=True)
        return place / "pretrained", place / "tuned"

    def test_is_told_from_the_folder_of_the_run(self, home):
        pretrained, tuned = self.folders(home / "project" / "runs")
        open_folder({**self.CONFIG, "source": str(pretrained)}, tuned)
        text = (tuned / "config.json").read_text()
        assert json.loads(text)["source"] == "../pretrained"
        assert "alice" not in text
        assert read_config(tuned)["source"] == os.path.realpath(pretrained)
        for spelled in (str(pretrained), "runs/pretrained"):
            open_folder({**self.CONFIG, "source": spelled}, tuned)
        with pytest.raises(UserError, match=r"another configuration \(source"):
            open_folder({**self.CONFIG, "source": "runs/other"}, tuned)
        same_settings(read_config(tuned), tuned)

    def test_moves_along(self, home, tmp_path):
        pretrained, tuned = self.folders(home / "project" / "runs")
        open_folder({**self.CONFIG, "source": str(pretrained)}, tuned)
        moved = Path(shutil.move(pretrained.parent, tmp_path / "elsewhere"))
        assert read_config(moved / "tuned")["source"] == os.path.realpath(moved / "pretrained")

    def test_behind_a_link_to_all_runs(self, home, tmp_path):
        pretrained, _ = self.folders(tmp_path / "disk")
        (home / "project" / "runs").symlink_to(tmp_path / "disk")
        open_folder({**self.CONFIG, "source": "runs/pretrained"}, Path("runs/tuned"))
        assert read_config(Path("runs/tuned"))["source"] == os.path.realpath(pretrained)

    @pytest.mark.parametrize("form", ["absolute", "from where one was"])
    def test_as_earlier_versions_wrote_it(self, home, form):
        pretrained, tuned = self.folders(home / "project" / "runs")
        tuned.mkdir()
        source = str(pretrained) if form == "absolute" else "runs/pretrained"
        (tuned / "config.json").write_text(json.dumps({**self.CONFIG, "source": source}))
        assert read_config(tuned)["source"] == os.path.realpath(pretrained)
        open_folder({**self.CONFIG, "source": "runs/pretrained"}, tuned)


def test_event_files_name_no_machine(tmp_path, monkeypatch):
    assert next_name(tmp_path).endswith(".becl")


class TestReports:
    @pytest.fixture
    def found(self, home) -> dict[str, str]:
        """The texts of a report on a run in somebody's home and one elsewhere, both given by absolute paths."""
        runs = home / "project" / "runs"
        write(runs / "one", {("walker_run", 0): 100.0}, result={"command": f"becl finetune {home}/project/x"})
        write(home.parent / "bob" / "two", {("walker_run", 1): 50.0}, result={"command": "becl finetune /data/bob/x"})
        (runs / "bad").mkdir()
        (runs / "bad" / "config.json").write_text("{")
        words = [str(runs), str(home.parent / "bob" / "two"), "--out", str(home / "page"), "--resamples", "10"]
        assert main(["report", *words, "--markdown", str(home / "page" / "report.md")]) == 0
        return {path.name: path.read_text() for path in (home / "page").rglob("*.*") if path.suffix != ".png"}

    def test_name_no_folder_above(self, found, home):
        for name, text in found.items():
            assert str(home.parent) not in text, name
            assert "alice" not in text, name
            assert "/data/bob" not in text, name
        assert "becl report runs .../two --out ~/page" in found["index.html"]
        assert "becl finetune x" in found["scores.csv"]
        assert "runs/bad" in found["left-out.csv"]


class TestTables:
    def test_no_cell_is_a_formula(self):
        cells = ["=1+1", "+A1", "-A1", "@SUM(A1)", "\t=1"]
        cells += ["becl", "a=b", "", None, "-0.5", "+3", "-inf", -2, 1.5]
        text = to_csv([{str(n): cell for n, cell in enumerate(cells)}], header=False)
        (row,) = csv.reader(io.StringIO(text, newline=""))
        assert row[:5] == [f"'{cell}" for cell in cells[:5]]
        assert row[5:] == ["becl", "a=b", "", "", "-0.5", "+3", "-inf", "-2", "1.5"]
        assert to_csv([{"=x": 1, "y": 2}]) == "'=x,y\n1,2\n"

    def test_with_control_characters_are_damaged(self, tmp_path, capsys):
        run = write(tmp_path / "one", {("walker_run", 0): 100.0})
        (run / "scores.csv").write_text((run / "scores.csv").read_text().replace("task", "\x1b[31mtask", 1))
        config = finetuning() | {"method": "\x1b]0;title\x07"}
        write(tmp_path / "two\x1b[31m", {("walker_run", 1): 100.0}, config)
        write(tmp_path / "good", {("walker_run", 2): 100.0})
        assert main(["report", str(tmp_path), "--out", str(tmp_path / "page"), "--resamples", "10"]) == 0
        said = capsys.readouterr()
        page = (tmp_path / "page" / "index.html").read_text()
        for text in (said.out, said.err, page, (tmp_path / "page" / "tables" / "left-out.csv").read_text()):
            assert not {"\x1b", "\x07"} & set(text)
        assert "scores.csv is damaged: it has control characters" in page
        assert "two\\x1b[31m" in page

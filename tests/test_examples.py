"""The examples run from the first cell to the last, with small numbers in place of theirs."""

import re
import runpy
from pathlib import Path

import matplotlib as mpl
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
SMALL = {
    "maze_skills": {"CYCLES": "2", "STEPS": "4_200", "hidden": "8"},
    "gymnasium_skills": {"ENV": '"Pendulum-v1"', "STEPS": "4_300", "TASK_STEPS": "4_200", "hidden": "8"},
}


@pytest.mark.pages
@pytest.mark.parametrize(("name", "sizes"), SMALL.items())
def test_runs(name, sizes, tmp_path, monkeypatch, capsys):
    text = (EXAMPLES / f"{name}.py").read_text()
    for word, value in sizes.items():
        text, count = re.subn(rf"\b{word} ?= ?[^\s,]+", f"{word}={value}", text)
        assert count, word
    text = re.sub(r"\benvs=8", "envs=8, set=['batch=16', 'replay.capacity=5000']", text)
    script = tmp_path / f"{name}.py"
    script.write_text(text)
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    runpy.run_path(str(script), run_name="__main__")
    told = capsys.readouterr().out
    if name == "maze_skills":
        assert re.search(r"becl: I\(S;Z\) [\d.]+ nats", told)
        assert (tmp_path / "runs/example-maze/skills.png").stat().st_size > 5000
    else:
        assert len(re.findall(r"^skill \d: return", told, re.MULTILINE)) == 8
        assert re.search(r"from scratch: 0: -\d+, 2,100: -\d+, 4,200: -\d+", told)
        assert (tmp_path / "runs/example-gymnasium/policy.onnx").exists()


def test_every_example_is_run():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SMALL, "metra"}  # Which tests/test_plugins.py runs.

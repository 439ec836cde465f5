"""What a session decides and says, whatever it trains."""

import json
from typing import Any

import pytest

from becl.errors import Failed
from becl.runs.checkpoint import Checkpoints
from becl.runs.result import identity
from becl.runs.session import Clock, checkpoint_due, run_command


def test_a_checkpoint_is_due_whenever_a_multiple_is_passed_but_not_at_the_end():
    due = [step for step in range(6, 103, 6) if checkpoint_due(step - 6, step, 20, 102)]
    assert due == [24, 42, 60, 84]
    assert [step for step in range(2, 10, 2) if checkpoint_due(step - 2, step, 1, 8)] == [2, 4, 6]
    assert not checkpoint_due(98, 100, 100, 100)


def test_a_clock_counts_what_was_spent_before():
    clock = Clock(100.0)
    first = clock.seconds
    assert 100.0 <= first <= clock.seconds


RESULT = {"steps": 7, "seconds": 1.5, "steps_per_second": 4.7}


def finishing(out, bar):
    (out / "config.json").write_text(json.dumps({"command": "pretrain", "steps": 7}))
    (out / "result.json").write_text(json.dumps(RESULT | identity(out)))
    return True


@pytest.mark.parametrize("raises", [False, True])
def test_a_command_says_how_a_run_ended(raises, tmp_path, capsys):
    shown = []

    def run(work) -> int:
        return run_command(tmp_path, "a run", 10, work, shown.append, raises)

    def failing(bar):
        raise Failed("no more numbers")

    assert run(lambda bar: False) == 130
    assert capsys.readouterr().out.splitlines() == [
        "a run",
        f"becl: stopped; the same command, or becl resume {tmp_path}, continues",
    ]
    if raises:
        with pytest.raises(Failed, match="no more numbers"):
            run(failing)
    else:
        assert run(failing) == 1
        assert capsys.readouterr().err == "becl: failed: no more numbers\n"
    assert shown == []
    assert run(lambda bar: finishing(tmp_path, bar)) == 0
    assert shown == [RESULT | identity(tmp_path)]


def never(_: object) -> Any:
    pytest.fail("called")


def test_a_finished_run_is_left_alone_but_for_its_checkpoints(tmp_path, capsys):
    Checkpoints(tmp_path / "checkpoint", {}).save(5, {}, {}, None, [])
    finishing(tmp_path, None)
    assert run_command(tmp_path, "a run", 10, never, never) == 0
    assert capsys.readouterr().out == f"already finished: {tmp_path}/\n"
    assert not (tmp_path / "checkpoint").exists()

"""Whatever is loaded is what was written: flipped bits, files of other runs and values of wrong types are one line.

Every kind of file that a command reads is damaged at random places, and read again by what reads it.
"""

import contextlib
import copy
import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from gallery_runs import make_run
from run_folders import TINY, forget_sums

from becl.commands.cli import main
from becl.errors import UserError
from becl.experiments.evaluation import Evaluation, resolve, write
from becl.experiments.finetuning import load_finetuning, make_finetuning
from becl.experiments.maze_results import finished
from becl.experiments.maze_study import load_study, make_study, note_seeds, seed_path
from becl.experiments.policies import load_policies, load_policy, save_policies
from becl.experiments.pretraining import load_pretraining, seed_keys
from becl.experiments.scores import read_scores
from becl.experiments.snapshots import load_snapshot, snapshot_path
from becl.options import EvaluateOptions, FinetuneOptions, MazeOptions
from becl.reports.folders import read_json, read_table, read_zero_shot
from becl.runs.checkpoint import Checkpoints
from becl.runs.folder import open_folder, read_config, to_csv
from becl.runs.metrics import read_metrics, read_study
from becl.runs.result import identity, read_result
from becl.runs.sums import (
    Growing,
    gathering_unlisted,
    read_checked,
    read_checked_text,
    read_sums,
    write_checked,
    write_group,
)
from becl.sweeps.record import recorded_jobs
from becl.views.maze_report import _arrays

RATES = {"seconds": 1.5, "steps_per_second": 9.0}
SCORES = [{"task": "walker_run", "seed": 0, "skill": 1, "step": step, "return": step / 7, "stderr": 0.5}
          for step in range(0, 60, 10)]  # fmt: skip


class Kind(NamedTuple):
    """Files of one kind, and what reads them."""

    paths: list[Path]
    read: Callable[[], Any]


@pytest.fixture(scope="module")
def kinds(tmp_path_factory) -> dict[str, Kind]:
    """A folder with every kind of file that is loaded, as the commands write them."""
    out = tmp_path_factory.mktemp("all")
    run, tuned, study = make_run(out / "run", "square_a", snapshots=(100,), seeds=(0, 1)), out / "tuned", out / "study"
    walker = make_run(out / "walker", "walker", snapshots=(100,))
    pretraining = load_pretraining(run)
    rows = [{"step": step, "seed": seed, "reward": step / 3} for step in range(10, 60, 10) for seed in (0, 1)]
    write_checked(run / "metrics.csv", to_csv(rows))
    write_checked(run / "result.json", json.dumps({"steps": 5000, **RATES, **identity(run)}))
    Checkpoints(run / "checkpoint", read_config(run)).save(
        40, {"x": np.arange(50.0)}, {"number": 3}, ("replay-0-40.safetensors", {"y": np.ones(30)}),
        ["replay-0-40.safetensors"],
    )  # fmt: skip
    request = resolve(EvaluateOptions(walker, episodes=1, skills=(0,)))
    zero_shot = [{"seed": 0, "skill": 0, "task": task, "return": 0.5, "stderr": 0.1} for task in request.tasks]
    moved = {"seed": 0, "speed": 1.0}
    write(request, Evaluation(zero_shot, [moved | {"skill": 0}], [moved]), 1.0, "becl evaluate")

    finetuning = make_finetuning(FinetuneOptions(walker, ("walker_run",), steps=60, set=["random_steps=20"]))
    open_folder(finetuning.config(), tuned)
    save_policies(finetuning, tuned, jax.lax.map(lambda key: finetuning.run.init(key)[0], seed_keys(range(1))))
    write_checked(tuned / "scores.csv", to_csv(SCORES))
    write_checked(tuned / "final.csv", to_csv([SCORES[-1] | {"episodes": 9}]))

    planned = make_study(MazeOptions(("diayn",), cycles=25))
    open_folder(planned.config(), study)
    note_seeds(planned, study)
    (study / "diayn").mkdir()
    measured = {"mutual_information": 1.0, "coverage": 0.5, "far": 2.0, "seconds": 1.0}
    files = {"csv": to_csv([{"cycle": 25, "reward": 0.3}]), "npz": npz(paths=np.arange(8.0)),
             "json": json.dumps({"label": "diayn", "seed": 0, "cycles": 25, **measured})}  # fmt: skip
    write_group({seed_path(study, "diayn", 0, suffix): data for suffix, data in files.items()})
    write_checked(study / "summary.json", json.dumps({"diayn": {"seeds": [0]}}))
    write_checked(out / "sweep.json", json.dumps({"sweep": "x", "jobs": []}))

    lane, row = finetuning.lanes[0], {"label": "diayn", "seed": 0}
    evaluated = walker / "evaluation" / "zero-shot-100.csv"
    return {
        "config of a pretraining": Kind([run / "config.json", run / "SHA256SUMS"], lambda: load_pretraining(run)),
        "config of a finetuning": Kind([tuned / "config.json"], lambda: load_finetuning(tuned)),
        "config of a study": Kind([study / "config.json", study / "seeds.json"], lambda: load_study(study)),
        "metrics": Kind([run / "metrics.csv", run / "SHA256SUMS"], lambda: read_metrics(run)),
        "result": Kind([run / "result.json"], lambda: read_result(run)),
        "snapshot": Kind(
            [snapshot_path(run, 0, 100), run / "seed-0" / "SHA256SUMS"],
            lambda: load_snapshot(pretraining, snapshot_path(run, 0, 100)),
        ),
        "checkpoint": Kind(
            list((run / "checkpoint").iterdir()),
            lambda: Checkpoints(run / "checkpoint", read_config(run)).load(10**9, refuse),
        ),
        "scores": Kind([tuned / "scores.csv"], lambda: read_scores(tuned)),
        "final scores": Kind([tuned / "final.csv"], lambda: read_scores(tuned, "final.csv")),
        "policy": Kind(
            list((tuned / "walker_run-seed-0").iterdir()), lambda: load_policy(load_policies(tuned), tuned, lane)
        ),
        "evaluation": Kind(list(evaluated.parent.glob("*-100.*")), lambda: whole_evaluation(evaluated)),
        "curve of a seed": Kind([study / "diayn" / "seed-0.csv"], lambda: read_study(study, ["diayn"])),
        "result of a seed": Kind([study / "diayn" / "seed-0.json"], lambda: finished(load_study(study), study)),
        "trajectories of a seed": Kind(
            [study / "diayn" / "seed-0.npz", study / "diayn" / "seed-0.sha256"], lambda: _arrays(study, row)
        ),
        "summary": Kind([study / "summary.json"], lambda: read_json(study / "summary.json")),
        "jobs of a sweep": Kind([out / "sweep.json"], lambda: recorded_jobs(out)),
    }


def npz(**arrays: np.ndarray) -> bytes:
    import io

    np.savez_compressed(buffer := io.BytesIO(), **arrays)  # type: ignore[arg-type]
    return buffer.getvalue()


def whole_evaluation(table: Path) -> Any:
    names = ("per-skill-100.csv", "skills-100.csv", "result-100.json")
    return read_zero_shot(table, 100, "walker"), [read_checked(table.with_name(name)) for name in names]


def refuse(line: str) -> None:
    raise UserError(line)


@contextlib.contextmanager
def flipped(path: Path, dice: random.Random) -> Iterator[None]:
    """A file with one bit changed, and then as it was."""
    data = path.read_bytes()
    place = dice.randrange(len(data))
    path.write_bytes(data[:place] + bytes([data[place] ^ 1 << dice.randrange(8)]) + data[place + 1 :])
    try:
        yield
    finally:
        path.write_bytes(data)


def outcome(read: Callable[[], Any], expected: Any) -> str:
    """What comes of reading a damaged file; an error that is no line ends the test."""
    with gathering_unlisted() as unlisted:
        try:
            found = read()
        except UserError as error:
            return "refused" if "\n" not in str(error) else "said in several lines"
    if not same(found, expected):
        return "loaded as something else"
    return "told" if unlisted else "as it was"


def same(one: Any, other: Any) -> bool:
    leaves = [jax.tree.leaves(tree) for tree in (one, other)]
    return len(leaves[0]) == len(leaves[1]) and all(
        np.array_equal(a, b, equal_nan=True) if isinstance(a, np.ndarray | jax.Array) else a == b or a != a
        for a, b in zip(*leaves, strict=True)
    )


def flip_all(kinds: dict[str, Kind], count: int) -> Counter[str]:
    dice, came = random.Random(7), Counter[str]()
    for number in range(count):
        kind = list(kinds.values())[number % len(kinds)]
        path = dice.choice(kind.paths)
        expected = kind.read()
        with flipped(path, dice):
            result = outcome(kind.read, expected)
        # In the list of checksums another file's line may be the damaged one.
        is_list = path.name == "SHA256SUMS" or path.suffix == ".sha256"
        assert result in ("refused", "told", "as it was") if is_list else result == "refused", (path, result)
        came[result] += 1
    return came


def test_flipped_bits_are_noticed(kinds):
    came = flip_all(kinds, 8 * len(kinds))
    assert came["refused"] > 100


@pytest.mark.slow
def test_a_thousand_flipped_bits_are_noticed(kinds):
    came = flip_all(kinds, 1000)
    print(came)
    assert sum(came.values()) == 1000


# --- Checksums --------------------------------------------------------------------------------------------------------


def test_another_seed_s_snapshot_is_refused(tmp_path):
    run = make_run(tmp_path / "run", "square_a", snapshots=(100, 200), seeds=(0, 1))
    made = load_pretraining(run)
    shutil.copy(snapshot_path(run, 1, 100), snapshot_path(run, 0, 100))
    with pytest.raises(UserError, match="is damaged: its checksum is not the one in SHA256SUMS"):
        load_snapshot(made, snapshot_path(run, 0, 100))
    shutil.rmtree(run / "seed-0")
    shutil.copytree(run / "seed-1", run / "seed-0")  # With its checksums.
    with pytest.raises(UserError, match="is of another run: seed 1, not 0"):
        load_snapshot(made, snapshot_path(run, 0, 100))
    shutil.copytree(run / "seed-1", run / "seed-0", dirs_exist_ok=True)
    forget_sums(run)
    shutil.move(snapshot_path(run, 1, 200), snapshot_path(run, 1, 100))
    with pytest.raises(UserError, match="step 200, not 100"):
        load_snapshot(made, snapshot_path(run, 1, 100))


@pytest.mark.parametrize("step", ["5001", "99999999999999999999", "\u00b2", "\u0663"])
def test_forged_steps_are_refused(step, tmp_path, capsys):
    run = make_run(tmp_path / "run", "square_a", snapshots=(100,))
    whole = snapshot_path(run, 0, 100)
    shutil.copy(whole, whole.with_name(f"snapshot-{step}.safetensors"))
    code = main(["export", str(run), "--skill", "1", "--out", str(tmp_path / "skill.npz")])
    error = capsys.readouterr().err
    if step.isascii():
        assert code == 2
        assert error.count("\n") == 1
        assert "the run has 5,000 steps only" in error
    else:
        assert code == 0  # Nobody's snapshot.


def test_files_of_earlier_versions_are_read_with_one_line(tmp_path, capsys):
    run = make_run(tmp_path / "run", "square_a", snapshots=(100,), seeds=(0, 1))
    words = ["export", str(run), "--skill", "1", "--out", str(tmp_path / "skill.npz")]
    assert main(words) == 0
    assert "checksum" not in capsys.readouterr().err
    forget_sums(run)
    assert main([*words, "--force"]) == 0
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith(f"becl: {run}: config.json has no checksum, as in earlier versions;")


def test_checksums_are_those_that_sha256sum_reads(kinds):
    import hashlib

    (run,) = {path.parent for path in kinds["metrics"].paths}
    for line in (run / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert hashlib.sha256((run / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("moment", ["before", "after"])
def test_whatever_is_there_is_listed_when_a_process_is_killed(moment, tmp_path, monkeypatch):
    """Between the list and the file, and between the file and the list."""
    from becl.runs import sums as sums_file

    path = tmp_path / "scores.csv"
    write_checked(path, "a\n1\n")
    write = sums_file.write_bytes

    class Killed(BaseException):
        pass

    def dying(place: Path, data: bytes, durable: bool = True) -> None:
        if place == path and moment == "after":
            write(place, data, durable)
        if place == path:
            monkeypatch.setattr(sums_file, "_update", lambda *_, **__: None)  # It does nothing any more.
            raise Killed
        write(place, data, durable)

    with monkeypatch.context() as patched:
        patched.setattr(sums_file, "write_bytes", dying)
        with pytest.raises(Killed):
            write_checked(path, "a\n1\n2\n")
    monkeypatch.undo()
    assert read_checked(path) == (b"a\n1\n" if moment == "before" else b"a\n1\n2\n")
    assert len(read_sums(tmp_path / "SHA256SUMS")["scores.csv"]) == 2
    write_checked(path, "a\n3\n")
    assert read_checked(path) == b"a\n3\n"
    assert len(read_sums(tmp_path / "SHA256SUMS")["scores.csv"]) == 1


def test_rows_that_were_cut_off_are_not_read(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"a,b\n1,2\n")
    growing = Growing(path, path.read_bytes())
    with growing.growing(b"3,4\n5,6\n"):
        path.write_bytes(b"a,b\n1,2\n3,4\n5,")  # As a kill leaves it.
        assert read_checked(path) == b"a,b\n1,2\n"
        path.write_bytes(b"a,b\n1,2\n3,4\n5,6\n")
        assert read_checked(path) == path.read_bytes()
    for text in (b"a,b\n1,2\n", b"a,b\n1,2\n3,4\n5,", b"a,b\n1,2\n3,4\n5,7\n", b""):
        path.write_bytes(text)
        with pytest.raises(UserError, match="is damaged"):
            read_checked(path)


def test_lines_may_end_as_on_other_systems(tmp_path):
    """A table that a spreadsheet wrote anew has no control characters."""
    path = tmp_path / "table.csv"
    path.write_bytes(b"a,b\r\n1,2\r\n")
    assert read_checked_text(path) == "a,b\n1,2\n"
    assert read_table(path, ["a"]) == [{"a": "1", "b": "2"}]


# --- Types ------------------------------------------------------------------------------------------------------------

WRONG = ["x", "", None, [], {}, [1], -1, 0, 1.5, True, 1e400, 10**30, {"spec": "OneHot"}, {"spec": []}, float("nan")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[Path, Callable[[Path], Any]]:
    out = tmp_path_factory.mktemp("types")
    walker = make_run(out / "walker", "walker", snapshots=(5000,))
    aps = make_run(out / "aps", "walker", "aps", snapshots=(5000,))
    open_folder(make_finetuning(FinetuneOptions(walker, ("walker_run",), steps=60, set=TINY)).config(), out / "tuned")
    study = make_study(MazeOptions(("becl", "dads"), cycles=2))
    open_folder(study.config(), out / "study")
    note_seeds(study, out / "study")
    forget_sums(out)
    return {walker: load_pretraining, aps: load_pretraining, out / "tuned": load_finetuning, out / "study": load_study}


def places(data: Any, path: tuple = ()) -> Iterator[tuple]:
    """Everywhere in JSON values."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))
    yield path


def put(data: Any, path: tuple, value: Any) -> Any:
    if not path:
        return value
    place = data = copy.deepcopy(data)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return data


def change_all(folders: dict[Path, Callable[[Path], Any]], every: int) -> int:
    """Puts values of all types everywhere; what is loaded is what the file says."""
    count = wordy = 0
    for folder, load in folders.items():
        path = folder / "config.json"
        text = path.read_text()
        for number, (place, wrong) in enumerate((p, w) for p in places(json.loads(text)) for w in WRONG):
            if number % every:
                continue
            changed = put(json.loads(text), place, wrong)
            path.write_text(json.dumps(changed))
            count += 1
            try:
                made = load(folder)
            except UserError as error:
                wordy += "\n" in str(error)
                continue
            told = json.loads(json.dumps(made.config()))
            assert all(key in told for key in changed), place
        path.write_text(text)
    assert wordy == 0
    return count


def test_values_of_wrong_types_are_one_line(folders):
    assert change_all(folders, 23) > 200


@pytest.mark.slow
def test_values_of_wrong_types_everywhere_are_one_line(folders):
    assert change_all(folders, 1) > 5000


@pytest.mark.parametrize(("place", "wrong", "said"), [
    (("run", "batch"), "many", "config.json is damaged: run.batch: expected a whole number, not 'many'"),
    (("run", "learner", "optimizer", "learning_rate"), [], "run.learner.optimizer.learning_rate: expected a number"),
    (("run", "objective", "network", "hidden", 1), 0.5, "run.objective.network.hidden[1]: expected a whole number"),
    (("run", "env"), [24, 6], "run.env: expected 3 values (obs_dim, action_dim, episode_length), not 2"),
    (("run", "env", 0), 23, "walker has observations of 24 numbers, and this run was made with 23"),
    (("run", "precision"), "bf17", "unknown value of run.precision 'bf17': did you mean 'bf16'?"),
    (("run", "learner"), {"spec": "OneHot", "dim": 3}, "run.learner: expected a Learner, not 'OneHot'"),
    (("run", "replay"), None, "run.replay: expected a Replay, not None"),
    (("seeds",), [], "config.json is damaged: seeds: at least one is needed"),
    (("seeds", 0), "0", "seeds[0]: expected a whole number, not '0'"),
    (("run", "batchh"), 3, "unknown option of OffPolicy 'run.batchh': did you mean 'run.batch'?"),
])  # fmt: skip
def test_the_place_is_named(place, wrong, said, folders):
    folder = next(iter(folders))
    text = (folder / "config.json").read_text()
    (folder / "config.json").write_text(json.dumps(put(json.loads(text), place, wrong)))
    try:
        with pytest.raises(UserError) as refused:
            load_pretraining(folder)
    finally:
        (folder / "config.json").write_text(text)
    assert said in str(refused.value)
    assert str(folder / "config.json") in str(refused.value)

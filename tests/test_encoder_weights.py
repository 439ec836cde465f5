"""Weights of frozen networks: made of files that people have, checked, and kept beside the runs that use them."""

import io
import json
import os
import pickle
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from golden.pieg import weights_of
from test_pixels import assert_same_networks, rows

from becl.commands.cli import main
from becl.errors import UserError
from becl.experiments import encoder_weights
from becl.experiments.encoder_weights import KEPT, PACKAGE, Weights, convert, read_weights, save_weights
from becl.experiments.pretraining import load_pretraining
from becl.experiments.snapshots import snapshot_path
from becl.invocation import to_install
from becl.nn.frozen import KNOWN, shapes_of
from becl.nn.pieg import PIEG
from becl.runs import session as session_file
from becl.runs.torch_files import read_tensors

GOLDEN = Path(__file__).parent / "golden"
LENGTH = 40  # Of the walker's episodes here.

pytestmark = pytest.mark.usefixtures("short_walker")


def random_weights(network: str) -> Weights:
    return Weights(network, weights_of(shapes_of(network)))


def lines(capsys) -> str:
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


# --- Files of torch ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "network"), [("resnet18", "resnet18"), ("lite0", "efficientnet-lite0")])
def test_every_tensor_of_torchs_files_is_found(name, network):
    """Each is one number all over: the place of its name among all, divided by 1024."""
    tensors = read_tensors((GOLDEN / f"{name}.pth").read_bytes(), name)
    for place, key in enumerate(sorted(tensors)):
        expected = 7 if key.endswith("num_batches_tracked") else place / 1024
        np.testing.assert_array_equal(tensors[key], expected, err_msg=key)
    weights = convert(GOLDEN / f"{name}.pth")
    assert weights.network == network
    assert {key: array.shape for key, array in weights.arrays.items()} == shapes_of(network)
    for key, array in weights.arrays.items():
        np.testing.assert_array_equal(array, tensors[key])


def test_tensors_that_are_views_are_read_in_their_own_order():
    tensors = read_tensors((GOLDEN / "mixed.pth").read_bytes(), "mixed")
    np.testing.assert_array_equal(tensors["turned"], np.arange(6.0).reshape(2, 3).T)
    np.testing.assert_array_equal(tensors["part"], np.arange(3.0, 7.0))
    assert tensors["half"].dtype == np.float16


class Call:
    """Pickled as the call of a function."""

    def __init__(self, function: Any, *args: Any):
        self.called = function, args

    def __reduce__(self) -> Any:
        return self.called


def archive(pickled: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as out:
        out.writestr("archive/data.pkl", pickled)
    return file.getvalue()


HARMFUL = {
    "a command": (Call(os.system, "touch {}"), "posix.system"),
    "text to run": (Call(eval, "open({!r}, 'w')"), "__builtin__.eval"),
    "any function": (Call(getattr, "", "join"), "__builtin__.getattr"),
    "a class of ours": (Call(Path, "x"), "pathlib"),
}


@pytest.mark.parametrize("name", HARMFUL)
@pytest.mark.parametrize("old", [False, True])
def test_nothing_that_a_file_names_is_run(name, old, tmp_path):
    call, named = HARMFUL[name]
    mark = tmp_path / "mark"
    call.called = call.called[0], tuple(one.format(str(mark)) if one else one for one in call.called[1])
    pickled = pickle.dumps({"conv1.weight": call}, 2)
    head = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({"little_endian": True}, 2)
    with pytest.raises(UserError, match=rf"x.pth is refused: it names {named}"):
        read_tensors(head + pickled if old else archive(pickled), "x.pth")
    assert not mark.exists()


@pytest.mark.parametrize("name", ["resnet18", "lite0"])
def test_damaged_files_end_in_a_line(name):
    data = (GOLDEN / f"{name}.pth").read_bytes()
    random = np.random.default_rng(0)
    for _ in range(60):
        bad = bytearray(data[: random.integers(1, len(data))] if random.random() < 0.3 else data)
        for place in random.integers(0, len(bad), 20):
            bad[place] = random.integers(256)
        try:
            read_tensors(bytes(bad), "x.pth")
        except UserError as error:
            assert "\n" not in str(error)  # noqa: PT017
    for bad in (b"", b"PK\x03\x04", b"hello", pickle.dumps([1, 2]), archive(pickle.dumps({}))):
        with pytest.raises(UserError, match=r"x.pth (is damaged|holds no tensors)"):
            read_tensors(bad, "x.pth")


# --- The command ------------------------------------------------------------------------------------------------------


def test_a_file_of_a_resnet_becomes_one_that_a_run_can_use(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    given = weights_of({**shapes_of("resnet18"), "layer3.0.conv1.weight": (4, 4, 3, 3), "fc.bias": (10,)})
    safetensors.numpy.save_file(given, tmp_path / "resnet18.safetensors")
    assert main(["encoder-weights", "resnet18.safetensors"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("resnet18, 684,992 numbers of resnet18.safetensors")
    assert "next: becl pretrain walker --pixels --encoder pieg\n" in said
    weights = read_weights(tmp_path / "runs" / "encoder.safetensors")
    assert weights.arrays.keys() == shapes_of("resnet18").keys()
    for name, array in weights.arrays.items():
        np.testing.assert_array_equal(array, given[name])
    assert main(["encoder-weights", "resnet18.safetensors"]) == 2
    assert "runs/encoder.safetensors exists; --force overwrites it" in lines(capsys)
    assert main(["encoder-weights", "resnet18.safetensors", "--force"]) == 0
    assert main(["encoder-weights", "runs/encoder.safetensors", "--out", "again"]) == 2
    assert "is ready as it is" in capsys.readouterr().err


def test_without_a_name_the_installed_package_is_taken_and_not_imported(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert PACKAGE not in sys.modules
    monkeypatch.setattr(encoder_weights, "PACKAGE", "a_package_of_weights")
    assert main(["encoder-weights"]) == 2
    error = lines(capsys)
    assert to_install("pieg") in error
    assert "becl encoder-weights resnet18-f37072fd.pth" in error
    package = tmp_path / "site" / "a_package_of_weights"
    (package / "models").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    shutil.copy(GOLDEN / "lite0.pth", package / "models" / "efficientnet-lite0.pth")
    monkeypatch.syspath_prepend(package.parent)
    assert main(["encoder-weights", "--out", "here.safetensors"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("efficientnet-lite0, 58,416 numbers of efficientnet-lite0.pth")
    assert "--encoder-weights here.safetensors" in said


OTHERS = {
    "a deeper resnet": ({"layer1.2.conv1.weight": (64, 64, 3, 3)}, "another network than resnet18: it has no layer1.2"),
    "a wider one": ({"layer1.0.conv1.weight": (64, 64, 1, 1)}, "layer1.0.conv1.weight has shape (64, 64, 1, 1), not"),
    "half of one": ({"layer2.1.bn2.bias": None}, "layer2.1.bn2.bias is missing"),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_are_refused(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    change, said = OTHERS[name]
    shapes = {key: shape for key, shape in (shapes_of("resnet18") | change).items() if shape is not None}
    safetensors.numpy.save_file(weights_of(shapes), tmp_path / "x.safetensors")
    assert main(["encoder-weights", "x.safetensors"]) == 2
    assert said in lines(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["x.safetensors"]


def test_what_is_asked_for_without_weights_says_what_to_type(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pieg = ["pretrain", "walker", "--pixels", "--encoder", "pieg"]
    assert main(pieg) == 2
    error = lines(capsys)
    assert "runs/encoder.safetensors is not there; make it by becl encoder-weights (" in error
    assert to_install("pieg") in error
    good = tmp_path / "good.safetensors"
    save_weights(random_weights("efficientnet-lite0"), good)
    data = good.read_bytes()
    flipped = bytearray(data)
    flipped[-3] ^= 1
    bad = {"flipped": bytes(flipped), "cut": data[:-8], "text": b"weights", "empty": b""}
    bad["bare"] = safetensors.numpy.save(random_weights("efficientnet-lite0").arrays)
    said = {"flipped": "is damaged: its numbers are not those", "cut": "is damaged", "bare": "is none of becl encoder"}
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
        assert main([*pieg, "--encoder-weights", name]) == 2
        assert said.get(name, "is none of becl encoder-weights") in lines(capsys)
    given = ["--encoder-weights", str(good)]
    assert main(["pretrain", "walker", "--pixels", *given]) == 2
    assert "for frozen layers; add --encoder pieg" in lines(capsys)
    for setting, why in (
        ("vision.stack=1", "vision.stack 1: pieg needs"),
        ("vision.encoder.units=0", "units 0: must be"),
        ("vision.encoder.network=resnet18", "use --encoder-weights"),
        ("vision.size=7", "images of 8 pixels"),
        ("vision.encoder.filters=8", "unknown option of PIEG 'vision.encoder.filters'"),
    ):
        assert main([*pieg, *given, "--set", setting]) == 2
        assert why in lines(capsys)
    assert not (tmp_path / "runs").exists()


# --- Runs -------------------------------------------------------------------------------------------------------------

COMMAND = ["pretrain", "walker", "--pixels", "--encoder", "pieg", "--method", "diayn", "--skills", "3"]
COMMAND += ["--steps", "80", "--envs", "1", "--hidden", "16", "--log-every", "40"]
TINY = ["vision.size=8", "batch=4", "replay.capacity=60", "random_steps=10"]
KINDS = {
    "moving": ("resnet18", []),
    "fixed": ("efficientnet-lite0", ["vision.encoder.statistics=fixed", "vision.shift=0"]),
}


def words(kind: str, weights: Path, out: Path) -> list[str]:
    return [*COMMAND, "--encoder-weights", str(weights), "--set", *TINY, *KINDS[kind][1], "--out", str(out)]


@pytest.fixture(scope="module", params=KINDS)
def run(request, tmp_path_factory) -> Path:
    """A finished run whose weights are nowhere but in its folder."""
    folder = tmp_path_factory.mktemp(request.param)
    weights = folder / "weights.safetensors"
    save_weights(random_weights(KINDS[request.param][0]), weights)
    assert main(words(request.param, weights, folder / "run")) == 0
    weights.unlink()
    KNOWN.clear()
    return folder / "run"


def kind_of(run: Path) -> str:
    encoder = load_pretraining(run).run.vision.encoder  # type: ignore[union-attr]
    assert isinstance(encoder, PIEG)
    assert encoder.units == 16
    return encoder.statistics


def test_averages_move_where_they_are_to_and_the_layer_learns(run):
    arrays = safetensors.numpy.load_file(snapshot_path(run, 0, 80))
    moved = [name for name in arrays if ".encoder.averages." in name]
    if kind_of(run) == "fixed":
        assert not moved
        return
    given = read_weights(run / KEPT).arrays
    for name in moved:
        layer, part = name.partition(".averages.")[2].rsplit(".", 1)
        assert (arrays[name] != given[f"{layer}.running_{part}"]).any(), name
    assert len(moved) == sum(name.endswith(("_mean", "_var")) for name in given)


def test_a_folder_is_all_that_later_commands_need(run, tmp_path, capsys):
    steps = ["--steps", "40", "--eval-every", "40", "--eval-episodes", "1", "--final-episodes", "1"]
    out = tmp_path / "tuned"
    finetune = ["finetune", str(run), "--task", "walker_run", *steps, "--set", "random_steps=10", "--out", str(out)]
    assert main(finetune) == 0
    assert read_weights(out / KEPT).digest == read_weights(run / KEPT).digest
    assert len(rows(out, "final.csv")) == 1
    KNOWN.clear()
    assert f"--pixels --encoder pieg --encoder-weights {out / KEPT}\n" in capsys.readouterr().out
    evaluate = ["evaluate", str(run), "--episodes", "1", "--skills", "1", "--task", "walker_run"]
    assert main([*evaluate, "--out", str(tmp_path / "evaluation")]) == 0


def test_a_run_that_was_stopped_goes_on_bit_for_bit(run, tmp_path, monkeypatch):
    class Stopped(Exception): ...

    def stop(self, *args, after=session_file.Session._advance):
        after(self, *args)
        if self.step >= 60:
            raise Stopped

    folder, weights, kind = tmp_path / "stopped", tmp_path / "weights.safetensors", kind_of(run)
    shutil.copy(run / KEPT, weights)
    with monkeypatch.context() as patched:
        patched.setattr(session_file.Session, "_advance", stop)
        with pytest.raises(Stopped):
            main([*words(kind, weights, folder), "--checkpoint-every", "50"])
    weights.unlink()
    KNOWN.clear()
    assert main(["resume", str(folder)]) == 0
    assert_same_networks(snapshot_path(run, 0, 80), snapshot_path(folder, 0, 80))


def test_a_folder_without_its_weights_or_with_others_is_refused(run, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    save_weights(Weights("resnet18", weights_of(shapes_of("resnet18"), seed=3)), folder / KEPT)
    assert main(["evaluate", str(folder)]) == 2
    assert "has other weights than this run's config.json names" in lines(capsys)
    (folder / KEPT).unlink()
    assert main(["evaluate", str(folder)]) == 2
    assert f"{KEPT} is missing, which has the weights" in lines(capsys)
    assert main(["finetune", str(run), "--encoder-weights", "x"]) == 2
    assert "--encoder-weights x: what is seen stays as it was pretrained" in lines(capsys)
    assert main(["finetune", str(run), "--set", "vision.encoder.units=3"]) == 2
    assert "what is seen stays as it was pretrained" in lines(capsys)


def test_what_is_kept_of_a_frame_is_said_before_it_begins(run, monkeypatch, capsys):
    from becl.experiments.memory import of_frames

    spec = load_pretraining(run).run
    said = "0.1 kB" if kind_of(run) == "fixed" else "0.2 kB"  # 40 maps of 16 bits; 8 × 8 pixels of three colours.
    assert said in of_frames(spec)
    config = json.loads((run / "config.json").read_text())["run"]["vision"]["encoder"]
    assert config["spec"] == "PIEG"
    assert len(config["weights"]) == 32

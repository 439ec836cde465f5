"""Folders of results: plain files, each written whole or not at all."""

import csv
import io
import json
import math
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from becl.errors import UserError, printable
from becl.plugins import bare, origins_of
from becl.runs.inside import check_inside, inside
from becl.runs.sums import SUMS, read_checked_text, write_checked
from becl.runs.writing import make_folder
from becl.seeds import seeds_named
from becl.sharing import shared_path
from becl.specs import difference, upgraded
from becl.trust import trust

UNBEGUN = ("config.json.part", SUMS, f"{SUMS}.part")
"""What is left of a run that was killed before it began."""


def open_folder(config: dict[str, Any], out: Path) -> None:
    """Makes the folder or checks that it holds this configuration; says what is wrong before anything is written."""
    config = json.loads(json.dumps(config))
    path = out / "config.json"
    try:
        if os.path.lexists(path):
            check_inside(out)
            found = upgraded(json.loads(read_checked_text(path)))
            if not isinstance(found, dict):
                raise UserError(f"{path} is damaged; remove it or choose another --out")
            if place := difference(located(bare(found), out), located(config)):
                instead = instead_of(found, config, out)
                raise UserError(f"{out} holds another configuration ({place} now); {instead}")
            if not os.access(out, os.W_OK):
                raise UserError(f"no permission to write in {out}")
            return
        if out.exists() and not out.is_dir():
            raise UserError(f"{out} is a file; choose another --out")
        if out.exists() and any(path.name not in UNBEGUN for path in out.iterdir()):
            raise UserError(f"{out} is not empty and holds no study; choose another --out")
        make_folder(out)
        origins = {name: shared_path(word) for name, word in origins_of(config).items()}
        config |= {"plugins": origins} if origins else {}
        write_checked(path, json.dumps(shareable(config, out), indent=1) + "\n")
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError):
        raise UserError(f"{path} is damaged; remove it or choose another --out") from None
    except OSError as error:
        raise UserError(f"cannot write in {out}: {error.strerror}") from None


def instead_of(found: Mapping[str, Any], config: Mapping[str, Any], out: Path) -> str:
    """What to do where a folder holds another configuration: one with more steps only can go on in it."""
    steps = found.get("steps"), config.get("steps")
    same = {name: value for name, value in found.items() if name not in ("steps", "log_every")}
    other = {name: value for name, value in config.items() if name not in ("steps", "log_every")}
    grows = isinstance(steps[0], int) and isinstance(steps[1], int) and steps[0] < steps[1]
    if grows and config.get("command") == "pretrain" and bare(same) == bare(other):
        return f"becl resume {out} --steps {steps[1]} goes on with it once it is finished"
    return "remove it or choose another --out"


def shareable(config: Any, out: Path) -> Any:
    """A configuration, as JSON, as it is written: `source`, another folder, is relative to the run's own."""
    try:
        return config | {"source": os.path.relpath(os.path.realpath(config["source"]), os.path.realpath(out))}
    except (KeyError, TypeError, ValueError):  # It has none, or is on another drive.
        return config


def located(config: Any, out: Path | None = None) -> Any:
    """A configuration, as JSON, whose `source` is where it is: however it was spelled.

    In the folder of a run, `out`, it is relative to that folder; earlier versions wrote what had been typed.
    """
    try:
        if out is not None and os.path.isdir(place := os.path.join(os.path.realpath(out), config["source"])):
            return config | {"source": os.path.realpath(place)}
        return config | {"source": os.path.realpath(config["source"])}
    except (KeyError, TypeError, ValueError):  # It has none, or is damaged.
        return config


def folder_name(*words: str) -> str:
    """Words joined to a name that every file system takes."""
    return "-".join(re.sub(r"[^\w.+-]+", "-", word) for word in words)


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a run or study, as JSON values."""
    path = folder / "config.json"
    try:
        config = upgraded(json.loads(read_checked_text(path)))
        check_inside(folder)
        check_printable(config, path)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{folder} holds no run: {path.name}: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{path} is damaged") from None
    return located(config, folder) if isinstance(config, dict) else {}


def check_printable(data: Any, path: Path) -> None:
    """Raises on JSON values with control characters in a text: names are printed, also on terminals."""
    if isinstance(data, str) and ("\n" in data or printable(data) != data):
        raise UserError(f"{path} is damaged: {data!r} has control characters")
    for one in [*data, *data.values()] if isinstance(data, dict) else data if isinstance(data, list) else ():
        check_printable(one, path)


def trust_folder(folder: Path) -> None:
    """Agrees that the code of the environments that a run's folder names is run: the person has said so."""
    config = read_config(folder)
    inner = config.get("pretraining")
    tasks = config.get("tasks")
    names = [config.get("env"), inner.get("env") if isinstance(inner, dict) else None]
    names += tasks if isinstance(tasks, list) else []
    trust(*(name for name in names if isinstance(name, str)))


def read_pretraining(folder: Path) -> dict[str, Any]:
    """The configuration of a pretraining run, as JSON values."""
    config = read_config(folder)
    if config.get("command") != "pretrain":
        raise UserError(f"{folder} holds no pretraining run{ELSEWHERE.get(kind_of(config), '').format(folder)}")
    return config


ELSEWHERE = {
    "finetune": " but a finetuned one: its scores are in final.csv, and becl plot {0} and becl report {0} draw them",
    "maze": " but a maze study: its numbers are in summary.csv, and becl plot {0} and becl report {0} draw them",
}
"""What is said of folders of another kind, and which commands are for them."""


def kind_of(config: Mapping[str, Any]) -> str:
    """The command that made a folder with this configuration; nothing where none did."""
    if "study" in config and "runs" in config:
        return "maze"
    command = config.get("command")
    return command if command in ("pretrain", "finetune") else ""


def kept_snapshots(folder: Path, seed: int) -> list[int]:
    """Steps after which the networks of a seed were kept."""
    found = (path.stem.partition("-")[2] for path in inside(folder, f"seed-{seed}").glob("snapshot-*.safetensors"))
    return sorted(int(steps) for steps in found if steps.isascii() and steps.isdigit())


def choose_snapshot(
    folder: Path, seeds: Sequence[int], wanted: int | None, planned: Sequence[int] | None = None
) -> int:
    """The snapshot that was asked for, or the last that all seeds have; `planned` are those of a run that is still to
    come, and its folder is not read."""
    kept = [kept_snapshots(folder, seed) if planned is None else list(planned) for seed in seeds]
    if empty := [seed for seed, steps in zip(seeds, kept, strict=True) if not steps]:
        asked = f" (asked for: {seeds_named(seeds)})" if len(seeds) > 1 else ""
        raise UserError(f"{folder} has no snapshot of seed {empty[0]} yet{asked}")
    common = sorted(set.intersection(*map(set, kept)))
    if not common:
        raise UserError(f"{folder} has no snapshot that all seeds share: choose one with --seeds")
    if wanted is None:
        return common[-1]
    if wanted not in common:
        raise UserError(f"--snapshot {wanted}: {folder} has {', '.join(map(str, common))}")
    return wanted


def same_settings(config: dict[str, Any], folder: Path) -> None:
    """Raises if this version would continue a run differently."""
    if place := difference(bare(read_config(folder)), json.loads(json.dumps(config))):
        raise UserError(f"{folder} was made by a version with other settings ({place} now)")
    if not os.access(folder, os.W_OK):
        raise UserError(f"no permission to write in {folder}")


def check_place(out: Path) -> None:
    """Whether a folder can be made and written in."""
    nearest = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not nearest.is_dir():
        raise UserError(f"cannot write in {out}: {nearest} is a file")
    if not os.access(nearest, os.W_OK):
        raise UserError(f"cannot write in {out}: no permission")


def check_writable(folder: Path) -> None:
    """Makes a folder, or says why it cannot be written to."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"cannot write in {folder}: {error.strerror}") from None


def six_digits(row: Mapping[str, Any], nan: str = "") -> dict[str, Any]:
    """A row of a table, its numbers as text of six digits."""

    def text(value: Any) -> Any:
        if not isinstance(value, float):
            return value
        return nan if math.isnan(value) else f"{value:.6g}"

    return {name: text(value) for name, value in row.items()}


def to_csv(rows: Sequence[dict[str, Any]], header: bool = True) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, fieldnames=list(rows[0]), lineterminator="\n")
    if header:
        writer.writer.writerow(map(no_formula, rows[0]))
    writer.writerows({name: no_formula(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue()


def no_formula(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula and runs: text that begins as one does is quoted."""
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t")):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value

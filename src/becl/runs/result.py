"""result.json, which says that a run is finished: believed only where it is whole and of the run in its folder."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from becl.errors import UserError
from becl.plugins import bare
from becl.runs.folder import kept_snapshots
from becl.runs.sums import read_checked_text

NUMBERS = ("steps", "seconds", "steps_per_second")


def identity(folder: Path) -> dict[str, str]:
    """What a result keeps of the configuration that it is of; nothing where the folder has none."""
    config = _config(folder)
    return {} if config is None else {"config": _digest(config)}


def read_result(folder: Path) -> dict[str, Any] | None:
    """What a finished run's folder says of it, None where the run is not finished; refuses what is another run's."""
    path = folder / "result.json"
    if not os.path.lexists(path):
        return None
    try:
        result = json.loads(read_checked_text(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UserError as error:
        raise UserError(f"{error}; nothing was changed") from None
    except (ValueError, RecursionError):
        result = None
    if _is_of_before(result, folder):
        return None
    if why := _objection(result, folder):
        raise UserError(f"{path} {why}; nothing was changed: remove it, and the run goes on from its last checkpoint")
    return result


def is_finished(folder: Path) -> bool:
    """Whether a run is: one whose result is damaged or another's is not."""
    try:
        return read_result(folder) is not None
    except UserError:
        return False


def _is_of_before(result: Any, folder: Path) -> bool:
    """Whether a result is of the shorter run that this folder's goes on from."""
    config = _config(folder)
    went_on = None if config is None else config.get("went_on")
    return isinstance(result, dict) and isinstance(went_on, list) and result.get("steps") in went_on


def _objection(result: Any, folder: Path) -> str | None:
    """Why a result does not say that this folder's run is finished."""
    whole = isinstance(result, dict) and all(type(result.get(name)) in (int, float) for name in NUMBERS)
    if not whole:
        return "is damaged"
    config = _config(folder)
    if config is None:
        return "is of no run: there is no config.json beside it that can be read"
    if result["steps"] != config.get("steps"):
        return f"is of another run: {result['steps']} steps, not {config.get('steps')}"
    if "config" in result:
        return None if result["config"] == _digest(config) else "is of another run: its configuration is another"
    # Earlier versions kept no digest; what they wrote before their result has to be there.
    return None if _has_networks(folder, config) else "is of another run: this one has not kept its last networks"


def _has_networks(folder: Path, config: Mapping[str, Any]) -> bool:
    """Whether the networks that a run keeps in the end are there."""
    seeds = config.get("seeds")
    if config.get("command") == "pretrain" and isinstance(seeds, list):
        return all(config.get("steps") in kept_snapshots(folder, seed) for seed in seeds)
    return any(folder.glob("*-seed-*/policy.safetensors"))


def _config(folder: Path) -> dict[str, Any] | None:
    """config.json as it was written: an upgrade by a later version must not change the digest."""
    try:
        config = json.loads(read_checked_text(folder / "config.json"))
    except UserError:
        raise
    except (OSError, ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None


def _digest(config: Mapping[str, Any]) -> str:
    """A digest of all but the words of plug-ins and the place of the pretraining, which may be moved."""
    kept = {name: value for name, value in bare(dict(config)).items() if name != "source"}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:32]

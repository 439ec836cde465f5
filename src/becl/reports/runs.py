"""What a report is about: every run found in the places given, merged into configurations that are compared.

Nothing here is drawn or written, and what cannot be read is left out by name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from becl.errors import UserError
from becl.plugins import missing_plugin
from becl.reports.comparisons import not_compared
from becl.reports.configurations import Configuration, merge
from becl.reports.folders import (
    FinetuningFolder,
    Json,
    LeftOut,
    PretrainingFolder,
    StudyFolder,
    find_folders,
    read_finetuning,
    read_json,
    read_pretraining,
    read_study_folder,
)
from becl.runs.folder import kind_of
from becl.runs.inside import check_inside
from becl.runs.sums import gathering_unlisted, tell_unlisted
from becl.specs import upgraded

NO_PLUGINS: Mapping[str, Json] = {}


class Found(NamedTuple):
    """All that was given, sorted."""

    configurations: list[Configuration]
    pretrainings: list[PretrainingFolder]
    left_out: list[LeftOut]
    warnings: list[str]
    studies: list[StudyFolder] = []  # noqa: RUF012


def collect(places: Sequence[Path], plugins: Mapping[str, Json] = NO_PLUGINS) -> Found:
    """Reads every run in the places; what is damaged, unfinished or not comparable is left out by name.

    `plugins` has the default configuration of each method that a plug-in registered, as `becl.experiments.defaults`
    makes it: labels tell what differs from it.
    """
    with gathering_unlisted() as unlisted:
        found = _collect(places, plugins)
    tell_unlisted(unlisted)
    return found


def _collect(places: Sequence[Path], plugins: Mapping[str, Json]) -> Found:
    paths, left_out = find_folders(places)
    folders: list[FinetuningFolder] = []
    pretrainings: list[PretrainingFolder] = []
    warnings: list[str] = []
    studies: list[StudyFolder] = []
    for path in paths:
        try:
            config = upgraded(read_json(path / "config.json"))
            check_inside(path)
            if config.get("plugins") and (line := missing_plugin(config)):
                warnings.append(f"{path}: {line}")
            if config.get("command") == "finetune":
                folder, missing = read_finetuning(path, config)
                if folder.outcomes:
                    folders.append(folder)
                if folder.outcomes and not folder.result:
                    warnings.append(f"{path} has no result.json: not finished, command unknown")
            elif config.get("command") == "pretrain":
                pretraining, missing = read_pretraining(path, config)
                pretrainings.append(pretraining)
            elif kind_of(config) == "maze":
                studies.append(read_study_folder(path, config))
                missing = []
            else:
                raise UserError("holds no pretraining or finetuning run and no maze study")
        except UserError as error:
            missing = [LeftOut(str(path), str(error))]
        left_out += missing
    configurations = merge(folders, plugins)
    left_out += not_compared(configurations)
    return Found(configurations, pretrainings, left_out, warnings + different_versions(folders), studies)


PROGRAMS = ("becl", "jax", "python")


def different_versions(folders: Sequence[FinetuningFolder]) -> list[str]:
    """A line for each program of which the runs had several versions."""
    lines = []
    for program in PROGRAMS:
        versions = sorted({str(folder.result[program]) for folder in folders if folder.result.get(program)})
        if len(versions) > 1:
            lines.append(f"runs were made by different versions of {program}: {', '.join(versions)}")
    return lines

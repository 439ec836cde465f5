"""The options of every command, once: filled in by the command line, by Python and by sweeps alike.

A docstring is a command's help with its examples, the text below a field is its option's help, and `Group` begins a
part of the list. Imports nothing heavy, so that help and mistakes are shown at once.
"""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from becl.errors import unknown
from becl.options.looking import (
    CompletionOptions,
    DoctorOptions,
    EnvsOptions,
    EvaluateOptions,
    ExportOptions,
    FilmstripOptions,
    GalleryOptions,
    MethodsOptions,
    PlotOptions,
    ReachOptions,
    ReportOptions,
    TheoryOptions,
    TrajectoriesOptions,
    VideoOptions,
)
from becl.options.training import (
    ControlOptions,
    EncoderWeightsOptions,
    FinetuneOptions,
    MazeOptions,
    PretrainOptions,
    ResumeOptions,
    SweepOptions,
)
from becl.options.training import Encoder as Encoder
from becl.options.training import Precision as Precision
from becl.specs import parse

Options = TypeVar("Options")

OPTIONS: dict[str, type] = {
    "maze": MazeOptions,
    "pretrain": PretrainOptions,
    "finetune": FinetuneOptions,
    "control": ControlOptions,
    "evaluate": EvaluateOptions,
    "reach": ReachOptions,
    "gallery": GalleryOptions,
    "video": VideoOptions,
    "filmstrip": FilmstripOptions,
    "trajectories": TrajectoriesOptions,
    "sweep": SweepOptions,
    "report": ReportOptions,
    "resume": ResumeOptions,
    "export": ExportOptions,
    "plot": PlotOptions,
    "encoder-weights": EncoderWeightsOptions,
    "envs": EnvsOptions,
    "methods": MethodsOptions,
    "theory": TheoryOptions,
    "doctor": DoctorOptions,
    "completion": CompletionOptions,
}
"""By the name of the command."""


def fill(kind: type[Options], values: Mapping[str, Any]) -> Options:
    """Options with these values, each checked against the type of its field."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise unknown("option", name, names)
    return kind(**{name: parse(name, value, hints[name]) for name, value in values.items()})

"""The options that every method has by default, which labels do not mention.

A method's spec cannot be asked without JAX, which a report never loads. So the package keeps the default configurations
of its own methods as data (`make defaults` writes them, a test compares them with the specs), and a command that has
loaded plug-ins hands over theirs.
"""

import functools
import importlib.resources
import json
from collections.abc import Mapping

from becl.reports.folders import Json
from becl.reports.options import USUAL, options_of


def default_options(method: str, plugins: Mapping[str, Json]) -> Json:
    """A method's defaults by path; of an unknown method only those of finetuning."""
    config = plugins.get(method) or own_defaults().get(method)
    return USUAL if config is None else options_of({"run": config["pretraining"]["run"]} | config) | USUAL


@functools.cache
def own_defaults() -> Mapping[str, Json]:
    """The default configuration of each of the package's methods."""
    return json.loads(importlib.resources.files("becl").joinpath("data", "defaults.json").read_text(encoding="utf-8"))

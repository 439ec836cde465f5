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
    config = default_configuration(method, plugins)
    return USUAL if config is None else options_of({"run": config["pretraining"]["run"]} | config) | USUAL


def default_configuration(method: str, plugins: Mapping[str, Json]) -> Json | None:
    """A method's, or that of a sum of methods: the configuration of the first with skills, with all their objectives
    and equal weights."""
    names = method.split("+")
    found = [plugins.get(name) or own_defaults().get(name) for name in names]
    parts = [config for config in found if config is not None]
    if len(parts) < len(found):
        return None
    if len(parts) == 1:
        return parts[0]
    lead = next((config for config in parts if objective_of(config)["skills"]["spec"] != "NoSkill"), parts[0])
    fits = [config["pretraining"]["run"]["fits_per_update"] for config in parts]
    total = {"spec": "Sum", "skills": objective_of(lead)["skills"], "names": names, "fits": fits}
    total |= {"parts": list(map(objective_of, parts)), "weights": [1.0] * len(names)}
    run = lead["pretraining"]["run"] | {"objective": total, "fits_per_update": max(fits)}
    return lead | {"pretraining": lead["pretraining"] | {"method": method, "run": run}}


def objective_of(config: Json) -> Json:
    return config["pretraining"]["run"]["objective"]


@functools.cache
def own_defaults() -> Mapping[str, Json]:
    """The default configuration of each of the package's methods."""
    return json.loads(importlib.resources.files("becl").joinpath("data", "defaults.json").read_text(encoding="utf-8"))

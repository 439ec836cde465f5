"""What each configuration is called: its method, and whatever tells it from others of the method."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from becl.reports.defaults import default_options
from becl.reports.folders import Json
from becl.reports.names import pretty_method, short_number
from becl.reports.options import importance

FOLLOWED = ("skill", "transfer", "pretraining")  # Options of finetuning's learner follow from these.
MOST_WORDS = 3  # Differences that a label spells out.


def labels_of(configurations: Sequence[tuple[str, Json]], plugins: Mapping[str, Json]) -> list[str]:
    """A name for each configuration: its method, and what tells it from others of the method.

    An option is mentioned if it varies between the method's configurations and is not the method's default. Where it
    changes what is rewarded, not being the default is enough: such a run is not what the method's name stands for.
    """
    labels = []
    for method, options in configurations:
        same_method = [other for name, other in configurations if name == method]
        usual = default_options(method, plugins)
        named = [
            path
            for path, value in options.items()
            if (_varies(path, options, same_method) and not (path in usual and usual[path] == value))
            or (_decides_rewards(path) and path in usual and usual[path] != value)
        ]
        phrases = dict.fromkeys(phrase(path, options[path]) for path in sorted(named, key=importance))
        words = [word for word in phrases if word]
        first = words[:MOST_WORDS] + (["…"] if len(words) > MOST_WORDS else [])
        labels.append(", ".join([pretty_method(method), *first]))
    return numbered(labels)


def _decides_rewards(path: str) -> bool:
    """Whether an option of pretraining is part of what the method rewards, rather than of sizes and rates."""
    option = path.removeprefix("pretraining.run.")
    if option == path:
        return False
    inner = option.removeprefix("objective.")
    sizes = ("network", "head", "optimizer", "feature_dim", "skills", "spec")
    changes = inner != option and not any(word.startswith(sizes) for word in inner.split(".")[:2])
    return option in ("fits_per_update", "replay.released_skill") or changes


def _varies(path: str, options: Json, same_method: Sequence[Json]) -> bool:
    """Whether other configurations of the method have the option too and with another value.

    Options of finetuning's learner follow from the choice of the skill and from what is transferred, so they count
    only between configurations that agree in both.
    """
    value = options[path]
    if path == "pretraining" and value is None:
        return any("pretraining" not in other for other in same_method)
    if path.endswith("critic_dim"):  # That follows from the skills.
        return False
    others = same_method
    if path.startswith("run."):
        others = [other for other in others if all(other.get(name) == options.get(name) for name in FOLLOWED)]
    return any((path in other and other[path] != value) or _left_out(path, other) for other in others)


def _left_out(path: str, options: Json) -> bool:
    """Whether a configuration lacks an option whose neighbours it has: a newer one, which is kept only where it is not
    the default."""
    above = path.rpartition(".")[0] + "."
    return path not in options and above != "." and any(other.startswith(above) for other in options)


def phrase(path: str, value: Any) -> str:
    """An option in a label's few words."""
    name = path.removeprefix("pretraining.").removeprefix("run.").removeprefix("objective.")
    if path == "pretraining":
        return "from scratch"
    if path == "snapshot":
        return f"snapshot {short_number(value)}" if value is not None else ""
    if path == "skill":
        return f"skill {value.removeprefix('fixed:')}" if value.startswith("fixed:") else f"{value} skill"
    if path == "transfer":
        return f"transfer {value}" if value != "none" else ""  # Said by other words: from scratch, or meta.
    if path.endswith("steps") and isinstance(value, int):
        return f"{name.replace('_', ' ')} {short_number(value)}"
    if name == "temperature":
        return f"κ = {value:g}" if isinstance(value, int | float) else f"κ = {value}"
    if name == "skills.dim":
        return f"{value} skills"
    return f"{name} = {json.dumps(value, ensure_ascii=False)}"


def numbered(labels: Sequence[str]) -> list[str]:
    """Labels that are all different: the second of the same name is (2)."""
    earlier = [labels[:i].count(label) for i, label in enumerate(labels)]
    return [f"{label} ({count + 1})" if count else label for label, count in zip(labels, earlier, strict=True)]

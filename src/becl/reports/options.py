"""The options of a run by dotted path, those that make it another configuration."""

from collections.abc import Iterator, Sequence
from typing import Any

from becl.reports.folders import Json
from becl.reports.names import domain_of, place_in

# What does not make a run another configuration: which tasks and seeds, where from, and how often it was looked at.
NOT_OPTIONS = (
    "command", "plugins", "env", "tasks", "seeds", "source", "eval_every", "final_episodes", "log_every", "run.env",
    "pretraining.command", "pretraining.env", "pretraining.seeds", "pretraining.log_every", "pretraining.run.env",
    "pretraining.went_on",
)  # fmt: skip
USUAL = {"snapshot": 2_000_000, "steps": 100_000, "eval_episodes": 10}  # URLB's, with which numbers are published.
SKILLS = "run.objective.skills.dim"
TEMPERATURE = "run.objective.temperature"
FIRST = (
    "pretraining", "skill", "transfer", "snapshot", "steps",
    f"pretraining.{SKILLS}", SKILLS, f"pretraining.{TEMPERATURE}", TEMPERATURE,
)  # fmt: skip


def options_of(config: Json) -> Json:
    """What makes a configuration, by dotted path."""
    options = without(dict(_flat(config)), NOT_OPTIONS)
    before = config.get("pretraining")
    if isinstance(before, dict):
        # A domain carries the reward of one task; pretraining on another task is something else.
        env = str(before.get("env", ""))
        options["pretraining.task"] = env.removeprefix(domain_of(env)).strip("_")
    return options


def _flat(data: Json, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if data.get("spec") == "Sum":
        data = by_name(data)
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def by_name(objective: Json) -> Json:
    """A sum of methods with its parts by their names, without the skills that they share."""
    parts = zip(objective["names"], objective["parts"], strict=True)
    own = {name: value for name, value in objective.items() if name not in ("names", "parts")}
    return own | {name: {key: value for key, value in part.items() if key != "skills"} for name, part in parts}


def without(options: Json, paths: Sequence[str]) -> Json:
    """Options that are neither at nor below one of the paths."""
    below = tuple(f"{path}." for path in paths)
    return {path: value for path, value in options.items() if path not in paths and not path.startswith(below)}


def importance(path: str) -> tuple[int, str]:
    """To sort options by."""
    return place_in(path, FIRST), path

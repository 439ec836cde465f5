"""Registry entries that are the same under two names, once."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from becl.experiments.pretraining import make_pretraining
from becl.options import PretrainOptions

RELATIVES = (
    "amped-sum", "amped-contrast", "metra-discrete", "lsd", "lsd-discrete", "csd-discrete", "csf", "csf-discrete",
    "moss-sign",
)  # fmt: skip
"""Methods that differ from another by a few lines: of these the quick tests do not train every one."""


def marked(names: Iterable[str]) -> list[Any]:
    """Parameters of a test, slow ones for relatives."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in RELATIVES else []) for name in names]


def distinct(names: Iterable[str], spec_of: Callable[[str], Any]) -> Iterator[str]:
    """The first name of each spec."""
    seen: set[Any] = set()
    for name in names:
        if (spec := spec_of(name)) not in seen:
            seen.add(spec)
            yield name


def distinct_runs(names: Iterable[str], env: str) -> list[str]:
    """Methods whose pretraining differs in anything: `becl-released` is `becl` on robots."""
    return [*distinct(names, lambda name: make_pretraining(PretrainOptions(env, name)).run)]

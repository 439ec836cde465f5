"""Warnings about policies that can hardly learn any more, from the numbers of `becl.learning.diagnostics`."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from becl.runs.callbacks import Callback, Row


class Trouble(NamedTuple):
    """A number beyond which a policy is not expected to learn, and what to say then."""

    column: str
    limit: float
    below: bool
    """Whether lower numbers are the bad ones."""
    says: str
    advice: str

    def found(self, row: Mapping[str, Any]) -> bool:
        value = row.get(self.column, math.nan)
        return value < self.limit if self.below else value > self.limit


# Far beyond what runs that transfer well have: 0.67, 36 directions and 6 % (docs/transfer.md).
TROUBLES = (
    Trouble(
        "saturation", 0.9, False,
        "{value:.0%} of actions are at the ends of their range, where tanh has hardly a gradient",
        "a larger reward keeps them smaller: --set reward_scale=10",
    ),
    Trouble(
        "actor_rank", 1.1, True,
        "the policy's features have collapsed: they vary in {value:.2f} directions",
        "try --normalize-obs or --set learner.optimizer.learning_rate=3e-5",
    ),
    Trouble(
        "actor_dormant", 0.9, False,
        "{value:.0%} of the policy's units are silent",
        "try --normalize-obs or --set learner.optimizer.learning_rate=3e-5",
    ),
)  # fmt: skip


class Watch(Callback):
    """Says of each trouble once, when it is first seen: after how many steps, of which seeds, and what to try."""

    def __init__(self, say: Callable[[str], None]):
        self._say, self._said = say, set[str]()

    def on_log(self, step: int, rows: Sequence[Row]) -> None:
        for trouble in TROUBLES:
            bad = [row for row in rows if trouble.found(row)]
            if bad and trouble.column not in self._said:
                self._said.add(trouble.column)
                seeds = ", ".join(str(row["seed"]) for row in bad)
                says = trouble.says.format(value=bad[0][trouble.column])
                self._say(f"warning: seed {seeds} after {step:,} steps: {says}; {trouble.advice}")

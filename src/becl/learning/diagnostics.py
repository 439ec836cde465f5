"""Numbers that tell whether a policy can still learn: saturated actions, dormant units, collapsed features.

They explain why a pretrained policy may learn a task more slowly than a fresh one. Each is a pure function of what the
networks compute on a batch of states; `DDPG.diagnose` puts them together, and a run logs them with every row.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from becl.nn.networks import Adam, AdamState
from becl.runs.callbacks import Callback, Row

SATURATED = 0.99  # An action beyond this, in either direction: tanh passes 2 % of its gradient there, or less.
DORMANT = 0.025  # A unit whose mean activity is this share of its layer's, or less (Sokar et al. 2023).


def saturation(action: Float[Array, "*batch action"]) -> Float[Array, ""]:
    """Fraction of actions at the ends of their range."""
    return jnp.mean(jnp.abs(action) > SATURATED)


def dormant_share(units: Float[Array, "batch units"]) -> Float[Array, ""]:
    """Fraction of a layer's units that are silent on the whole batch, beside the layer's mean."""
    activity = jnp.abs(units.astype(jnp.float32)).mean(0)
    return jnp.mean(activity <= DORMANT * activity.mean())


def effective_rank(features: Float[Array, "batch units"]) -> Float[Array, ""]:
    """Directions that features vary in: (Σλ)²/Σλ² over the eigenvalues λ of their covariance (participation ratio).

    It is 1 where all features move along one line and n where n directions have equal variance. No decomposition is
    needed: both sums are traces, of the covariance and of its square.
    """
    centred = features.astype(jnp.float32) - features.astype(jnp.float32).mean(0)
    gram = jnp.matmul(centred, centred.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.square(jnp.trace(gram)) / jnp.maximum(jnp.sum(jnp.square(gram)), 1e-30)


def gradient_size(optimizer: Adam, state: AdamState) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """The root mean square of recent gradients as Adam sees them, and the share of weights whose own is below its ε.

    Adam makes steps of one size whatever the gradient's, as long as the gradient is well above ε.
    """
    corrected = jax.tree.map(lambda square: square / jnp.maximum(1 - state.decay[1], 1e-12), state.square)
    number = sum(leaf.size for leaf in jax.tree.leaves(corrected))
    mean = _total(corrected) / number
    idle = _total(jax.tree.map(lambda square: jnp.sqrt(square) < optimizer.eps, corrected)) / number
    return jnp.sqrt(mean), idle


def _total(tree: PyTree) -> Float[Array, ""]:
    return sum((leaf.sum() for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))


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

"""The optimiser, and its state found by type: snapshots leave it out.

URLB steps with the usual Adam; the maze study with one whose epsilon is large and stands beside the uncorrected second
moment. Both matter for reproducing numbers.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree


class AdamState(NamedTuple):
    mean: PyTree
    square: PyTree
    decay: Float[Array, " 2"]
    """β₁ᵗ and β₂ᵗ after t steps."""


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba 2015): θ ← θ − η √(1−β₂ᵗ)/(1−β₁ᵗ) · m / (√v + ε̂)."""

    learning_rate: float = 1e-4
    eps: float = 1e-8
    corrected: bool = True
    """Whether ε is added to the bias-corrected √v, as usual: ε̂ = ε √(1−β₂ᵗ). The maze study has ε̂ = ε, so that its
    1e-3 acts like 0.03 at the first step and like 1e-3 only after thousands."""

    def init(self, params: PyTree) -> AdamState:
        return AdamState(jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params), jnp.ones(2))

    def update(self, params: PyTree, grads: PyTree, state: AdamState) -> tuple[PyTree, AdamState]:
        b1, b2 = 0.9, 0.999
        grads = jax.tree.map(lambda g, m: g.astype(m.dtype), grads, state.mean)
        # Multiplied up rather than raised to a power: what is this cheap, XLA computes wherever it is needed.
        decay = state.decay * jnp.array([b1, b2])
        mean = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, state.mean, grads)
        square = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * jnp.square(g), state.square, grads)
        root = jnp.sqrt(1 - decay[1])
        rate = self.learning_rate * root / (1 - decay[0])
        eps = self.eps * root if self.corrected else self.eps
        moved = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + eps), params, mean, square)
        return moved, AdamState(mean, square, decay)


def without_optimizers(tree: Any) -> Any:
    """A tree of arrays with None in place of every optimiser's state."""
    return jax.tree.map(lambda part: None if _is_state(part) else part, tree, is_leaf=_is_state)


def with_optimizers(tree: Any, shapes: Any) -> Any:
    """The tree that `without_optimizers` left, with optimisers that begin anew; shaped like another."""

    def begin(shape: Any, kept: Any) -> Any:
        return _begin(shape) if _is_state(shape) else kept

    return jax.tree.map(begin, shapes, tree, is_leaf=_is_state)


def _begin(shape: AdamState) -> AdamState:
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
    return zeros._replace(decay=jnp.ones_like(zeros.decay))


def _is_state(part: Any) -> bool:
    return isinstance(part, AdamState)

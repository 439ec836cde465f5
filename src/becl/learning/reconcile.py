"""Two gradients that disagree: one of them gives up its part against the other (PCGrad, Yu et al. 2020; AMPED, 2026).

With gradients g and h of two losses over the same weights, where g·h < 0,

    g ← g − (g·h / ‖h‖²) h    with probability p,    otherwise    h ← h − (g·h / ‖g‖²) g

The one that is changed is then at right angles to the other, and the step is along g + h.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

TINY = 1e-30  # Instead of the square of a gradient that is nothing, which is divided by.


def reconciled(first: PyTree, second: PyTree, key: PRNGKeyArray, share: float) -> tuple[PyTree, Float[Array, ""]]:
    """The sum of two gradients, and 1 where they disagreed; `share` is how often it is the first that gives way."""
    product, own, other = inner(first, second), inner(first, first), inner(second, second)
    conflict = product < 0
    yields = jax.random.uniform(key) < share
    # Of g + h, as multiples of g and h: what is taken from one is a multiple of the other.
    of_first = 1 - jnp.where(conflict & ~yields, product / jnp.maximum(own, TINY), 0.0)
    of_second = 1 - jnp.where(conflict & yields, product / jnp.maximum(other, TINY), 0.0)
    total = jax.tree.map(lambda g, h: of_first * g + of_second * h, first, second)
    return total, conflict.astype(jnp.float32)


def inner(one: PyTree, other: PyTree) -> Float[Array, ""]:
    """The inner product of two gradients."""
    products = jax.tree.map(lambda g, h: jnp.sum(g.astype(jnp.float32) * h.astype(jnp.float32)), one, other)
    return sum(jax.tree.leaves(products), jnp.zeros(()))

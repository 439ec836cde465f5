"""Numbers that tell whether a policy can still learn: saturated actions, dormant units, collapsed features.

They explain why a pretrained policy may learn a task more slowly than a fresh one. Each is a pure function of what the
networks compute on a batch of states; `DDPG.diagnose` puts them together, and a run logs them with every row
(`becl.runs.troubles` warns of bad ones).
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from becl.nn.adam import Adam, AdamState

SATURATED = 0.99  # An action beyond this, in either direction, is saturated: tanh passes at most 2 % of its gradient.
DORMANT = 0.025  # A unit whose mean activity is at most this share of its layer's is dormant (Sokar et al. 2023).


def saturation(action: Float[Array, "*batch action"]) -> Float[Array, ""]:
    """Fraction of actions at the ends of their range."""
    return jnp.mean(jnp.abs(action) > SATURATED)


def dormant_share(units: Float[Array, "batch units"]) -> Float[Array, ""]:
    """Fraction of a layer's units that are nearly silent on the whole batch, compared with the layer's mean."""
    activity = jnp.abs(units.astype(jnp.float32)).mean(0)
    return jnp.mean(activity <= DORMANT * activity.mean())


def effective_rank(features: Float[Array, "batch units"]) -> Float[Array, ""]:
    """Number of directions in which features vary: (Σλ)²/Σλ² over the eigenvalues λ of their covariance.

    This participation ratio is 1 if all features lie on one line and n if n directions have equal variance. No
    decomposition is needed: the sums are the traces of the covariance and of its square.
    """
    centred = features.astype(jnp.float32) - features.astype(jnp.float32).mean(0)
    gram = jnp.matmul(centred, centred.T, precision=jax.lax.Precision.HIGHEST)
    return jnp.square(jnp.trace(gram)) / jnp.maximum(jnp.sum(jnp.square(gram)), 1e-30)


def gradient_size(optimizer: Adam, state: AdamState) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Root mean square of recent gradients as Adam sees them, and the share of weights whose gradient is below its ε.

    Adam's steps have the same size whatever the gradient's, as long as the gradient is well above ε.
    """
    corrected = jax.tree.map(lambda square: square / jnp.maximum(1 - state.decay[1], 1e-12), state.square)
    number = sum(leaf.size for leaf in jax.tree.leaves(corrected))
    mean = _total(corrected) / number
    idle = _total(jax.tree.map(lambda square: jnp.sqrt(square) < optimizer.eps, corrected)) / number
    return jnp.sqrt(mean), idle


def _total(tree: PyTree) -> Float[Array, ""]:
    return sum((leaf.sum() for leaf in jax.tree.leaves(tree)), start=jnp.zeros(()))

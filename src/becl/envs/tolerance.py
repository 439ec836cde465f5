"""The reward shape shared by all tasks: 1 inside an interval, falling off outside."""

from typing import Literal

import numpy as np
from jaxtyping import Float

Vector = Float[np.ndarray, " n"]


def tolerance(
    x: Vector,
    lower: float,
    upper: float = np.inf,
    *,
    margin: float,
    value_at_margin: float = 0.1,
    shape: Literal["gaussian", "linear"] = "gaussian",
) -> Vector:
    """1 within [lower, upper], `value_at_margin` at a distance of `margin` from it.

    Gaussian: value_at_margin^(d²) with d the distance in margins. Linear: 1 − (1 − value_at_margin)·d, never below 0.
    """
    distance = np.maximum(np.maximum(lower - x, x - upper), 0.0) / margin
    if shape == "gaussian":
        return np.exp(np.log(value_at_margin) * distance**2)
    return np.maximum(1.0 - (1.0 - value_at_margin) * distance, 0.0)

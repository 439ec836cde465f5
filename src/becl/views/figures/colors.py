"""Colours and markers of skills and methods: the same in every figure, and told apart by colour-blind readers."""

import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

Styles = Mapping[str, tuple[str, str]]
"""Colour and marker by label."""

MARKERS = "osD^vP<X>p"
# The usual ten-colour cycles do not survive a red-green deficiency: in simulated deuteranopia the
# two closest colours of tab10 are 0.02 apart in OKLab, of Tol's muted scheme 0.05, of Petroff's
# cycle 0.08. These ten come from a search for the largest smallest distance over normal sight
# (divided by 1.6), deuteranopia, protanopia and tritanopia (divided by 0.8), among colours neither
# too dark beside black walls nor too pale for a thin line on white (lightness 0.38 to 0.82) and not
# grey, which is the void (chroma above 0.09). Smallest distances: 0.20, 0.13, 0.13 and 0.10.
TEN_COLORS: tuple[str, ...] = (
    "#0078b4",
    "#c31e69",
    "#e1c300",
    "#0f5a00",
    "#a587ff",
    "#ff8796",
    "#3cd2f0",
    "#690096",
    "#968700",
    "#000ff0",
)
# Each has its colour in every figure; those of the first ten are safe for colour-blind readers.
METHODS: tuple[str, ...] = (
    "becl", "diayn", "dads", "cic", "ddpg", "rnd", "icm", "apt", "smm", "aps",
    "metra", "disagreement", "proto", "amped", "moss", "exdm", "csd", "lsd", "csf", "becl-paper", "becl-released",
)  # fmt: skip
LMS_FROM_RGB = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)  # OKLab (Ottosson 2020), both matrices.
LAB_FROM_LMS = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)  # Linear RGB as seen without green cones (Machado et al. 2009, severity 1).


def oklab(colors: Sequence[str], deuteranopia: bool = False) -> Float[np.ndarray, "colors 3"]:
    """Colours as (lightness, green-red, blue-yellow): equal distances look about equally large."""
    from matplotlib.colors import to_rgb

    encoded = np.array([to_rgb(color) for color in colors])
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    if deuteranopia:
        linear = np.clip(linear @ DEUTERANOPIA.T, 0, 1)
    return np.cbrt(linear @ LMS_FROM_RGB.T) @ LAB_FROM_LMS.T


def skill_colors(n: int) -> list[str]:
    """A colour for each of `n` skills; the first ten are safe for colour-blind readers.

    Each later one is as far as possible from all before it (Glasbey et al. 2007), so a skill keeps
    its colour when there are more. Thirty can be told apart; a hundred differ, but not at a glance.
    """
    return list(TEN_COLORS[:n]) if n <= len(TEN_COLORS) else list(_extended_colors(n))


@functools.cache
def _extended_colors(n: int) -> tuple[str, ...]:
    levels = range(0, 256, 17)
    candidates = [f"#{r:02x}{g:02x}{b:02x}" for r in levels for g in levels for b in levels]
    seen = oklab(candidates)
    usable = (seen[:, 0] > 0.3) & (seen[:, 0] < 0.84) & (np.hypot(seen[:, 1], seen[:, 2]) > 0.06)
    candidates = [color for color, keep in zip(candidates, usable, strict=True) if keep]
    # Half the weight on the deficient view: there is no room for thirty colours in it.
    views = [(oklab(candidates, blind), weight, blind) for blind, weight in ((False, 1), (True, 2))]

    def distance(color: str) -> Float[np.ndarray, " candidates"]:
        return np.min(
            [weight * np.linalg.norm(view - oklab([color], blind), axis=1) for view, weight, blind in views],
            axis=0,
        )

    chosen = list(TEN_COLORS)
    nearest = np.min([distance(color) for color in chosen], axis=0)
    while len(chosen) < n:
        chosen.append(candidates[int(nearest.argmax())])
        nearest = np.minimum(nearest, distance(chosen[-1]))
    return tuple(chosen)


def method_styles(labels: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and marker of each label. A method has its own in every figure, which goes to the first label that begins
    with its name; variants of it, and whatever else there is, get what differs most from all that are there."""
    colors = skill_colors(len(METHODS) + len(labels))
    palette = list(zip(colors, itertools.cycle(MARKERS), strict=False))
    own = dict(zip(METHODS, palette, strict=False))
    found = {label: own.pop(method_of(label)) for label in labels if method_of(label) in own}
    free = [look for look in palette[len(TEN_COLORS) :] if look not in found.values()]
    for label in labels:
        if label not in found:
            found[label] = free.pop(farthest([color for color, _ in free], [color for color, _ in found.values()]))
    return {label: found[label] for label in labels}


def farthest(colors: Sequence[str], others: Sequence[str]) -> int:
    """Which of some colours differs most from others, for everybody; the first where there are none."""
    if not others:
        return 0
    apart = [
        np.linalg.norm(oklab(colors, blind)[:, None] - oklab(others, blind), axis=-1).min(1) for blind in (False, True)
    ]
    return int(np.min(apart, axis=0).argmax())


def method_of(label: str) -> str:
    """The method that a label begins with, as it is typed: `becl` of "BeCL, 8 skills"."""
    name = label.lower().partition(",")[0].partition(" (")[0]
    return name if "+" in name else name.partition(" ")[0].replace("protorl", "proto")

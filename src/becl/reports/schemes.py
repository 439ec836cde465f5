"""Figures of a page that follow the reader's colour scheme: an SVG with colours for the dark beside its own.

What is grey, black or white is turned around, so that paper is dark and ink light. Other colours keep their hue, and
are made as light as they have to be to stand out on dark paper. Pixels inside an SVG stay as they are.
"""

import re

import numpy as np
from jaxtyping import Float

from becl.views.figures.colors import LAB_FROM_LMS, LMS_FROM_RGB, oklab

PAPER, INK = 0.21, 0.93  # Lightness of white and of black in the dark.
LIGHT_ENOUGH = 0.68  # Lightness of any other colour there, at least.
GREY = 0.03  # Distance from grey below which a colour is one.
INKED = re.compile(r"\b(fill|stroke): (#[0-9a-f]{6})\b")


def in_both_schemes(svg: str) -> str:
    """An SVG of matplotlib, whose text is black where nothing is said."""
    colors = sorted({"#000000", *(color for _, color in INKED.findall(svg))})
    svg = svg.replace("image-rendering:crisp-edges;image-rendering:pixelated", "")  # Photos shrink smoothly.
    svg = INKED.sub(lambda found: f"{found[1]}: var(--c{found[2][1:]})", svg)
    light, dark = (
        "".join(f"--c{name[1:]}:{shown};" for name, shown in zip(colors, looks, strict=True))
        for looks in (colors, map(in_the_dark, colors))
    )
    style = f"svg{{{light}fill:var(--c000000)}}@media (prefers-color-scheme: dark){{svg{{{dark}}}}}"
    return re.sub(r"<svg\b[^>]*>", lambda found: f"{found[0]}<style>{style}</style>", svg, count=1)


def in_the_dark(color: str) -> str:
    """What stands for a colour on dark paper."""
    lightness, *hue = oklab([color])[0]
    if np.hypot(*hue) < GREY:
        return hex_of(np.array([INK + (PAPER - INK) * lightness, 0.0, 0.0]))
    return hex_of(np.array([max(lightness, LIGHT_ENOUGH), *hue]))


def hex_of(lab: Float[np.ndarray, "3"]) -> str:
    """The nearest colour that a screen shows."""
    from matplotlib.colors import to_hex

    linear = np.clip(np.linalg.inv(LMS_FROM_RGB) @ (np.linalg.inv(LAB_FROM_LMS) @ lab) ** 3, 0, 1)
    red, green, blue = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055).tolist()
    return str(to_hex((red, green, blue)))

"""Draws docs/figures/idea.png and .svg: `python docs/figures/idea.py`.

Left: what the contrast pulls together and pushes apart. Right: the rewards of BeCL (Eq. 10) and of DIAYN when two
skills are told apart for certain and only move away from each other.
"""

from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from becl.views.figures.style import save

# Okabe and Ito's colours, told apart with any colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
SKILLS, STATES = 4, 7


def main(out: Path) -> None:
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    draw_contrast(left)
    draw_rewards(right)
    for path in save(figure, out):
        print(path)


def draw_contrast(axes: Axes) -> None:
    """Features on the unit circle, one colour per skill; the anchor is ringed."""
    rng = np.random.default_rng(3)
    centres = np.linspace(0.35, 0.35 + 2 * np.pi, SKILLS, endpoint=False)
    angles = centres[:, None] + rng.normal(0, 0.16, (SKILLS, STATES))
    points = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    circle = np.linspace(0, 2 * np.pi, 200)
    axes.plot(np.cos(circle), np.sin(circle), color="0.85", zorder=0)
    for skill, colour in enumerate(COLOURS):
        axes.scatter(*points[skill].T, s=42, color=colour, zorder=2)
    anchor = points[0, int(np.argmin(angles[0]))]
    positive = points[0, int(np.argmax(angles[0]))]
    axes.scatter(*anchor, s=180, facecolors="none", edgecolors="black", linewidths=1.6, zorder=3)
    arrow(axes, positive, anchor, "<->", "rad=0.35")
    for skill in (1, 2, 3):
        arrow(axes, anchor, points[skill].mean(0), "-", "rad=0")
    note = {"ha": "center", "va": "center", "fontsize": 9}
    axes.text(1.32, 0.38, "same skill:\npull together", **note)
    axes.text(0.1, -0.1, "other skills:\npush apart", **note, backgroundcolor="white")
    axes.set(xlim=(-1.25, 1.65), ylim=(-1.25, 1.25), aspect="equal", title="features of states, four skills")
    axes.axis("off")


def arrow(axes: Axes, start: np.ndarray, end: np.ndarray, style: str, curve: str) -> None:
    pull = style == "<->"
    look = {"arrowstyle": style, "connectionstyle": f"arc3,{curve}", "shrinkA": 8, "shrinkB": 8}
    look |= {"color": "black", "linestyle": "-"} if pull else {"color": "0.6", "linestyle": ":"}
    axes.annotate("", tuple(end), tuple(start), arrowprops=look)


def draw_rewards(axes: Axes) -> None:
    """Both as a part of the most they can be."""
    degrees = np.linspace(2, 180, 300)
    for temperature, style in ((1.0, ":"), (0.5, "-"), (0.1, "--")):
        reward = becl_reward(np.cos(np.radians(degrees)), temperature)
        axes.plot(degrees, reward, style, color=COLOURS[0], label=f"BeCL, κ = {temperature:g}")
    axes.plot(degrees, np.ones_like(degrees), color=COLOURS[1], label="DIAYN (part of log 2)")
    axes.set(
        xlabel="angle between the features of two skills, degrees",
        ylabel="reward",
        ylim=(0, 1.08),
        xticks=range(0, 181, 45),
        title="two skills that never share a state",
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")


def becl_reward(cosine: Float[np.ndarray, " n"], temperature: float) -> Float[np.ndarray, " n"]:
    """Eq. 10 for two skills with two states each: one positive like the anchor, two negatives at the cosine."""
    return 1 / (1 + 2 * np.exp((cosine - 1) / temperature))


if __name__ == "__main__":
    main(Path(__file__).with_suffix(""))

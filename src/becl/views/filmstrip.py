"""`becl filmstrip`: snapshots along an episode, one row per skill or task, or one per method of several runs."""

import contextlib
import io
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from becl.errors import UserError
from becl.options import FilmstripOptions
from becl.runs.metrics import run_labels
from becl.runs.writing import write_bytes
from becl.views.figures.style import MUTED, STYLE
from becl.views.poses import Look, Motion, Tuned, looks_at, motion_of, thinned
from becl.views.rendering import Choice, painter_of
from becl.views.seen import enlarged, seen_in
from becl.views.video import smaller

COLORS = 256  # Of the picture: a third of the bytes, and nobody sees it.


def looks_of(options: FilmstripOptions) -> list[Look | Tuned]:
    runs, skills = options.runs, options.skills
    if len(runs) > 1 and len(skills) not in (0, 1, len(runs)):
        raise UserError(f"--skills: {len(skills)} for {len(runs)} runs: one each, or one for all")
    wanted = [skills] * len(runs) if len(runs) == 1 or len(skills) < 2 else [(skill,) for skill in skills]
    return [
        look
        for run, some in zip(runs, wanted, strict=True)
        for look in looks_at(run, options.seed, options.snapshot, some)
    ]


def picture_path(options: FilmstripOptions) -> Path:
    out = options.out or options.runs[0] / "gallery" / "filmstrip.png"
    if is_folder(out):
        raise UserError(f"{out} is a folder; name a file for --out, such as {out / 'filmstrip.png'}")
    return out if out.suffix == ".png" else out.with_name(out.name + ".png")


def is_folder(path: Path) -> bool:
    """Says so where a name is too long, or may not be looked at."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


Labelled = tuple[str, list[np.ndarray], list[str]]
"""What a row is called, its pictures and when they were taken."""


def rows_of(looks: Sequence[Look | Tuned], choice: Choice, options: FilmstripOptions) -> list[Labelled]:
    if len(looks) == 1 and not isinstance(looks[0], Tuned):
        motion = motion_of(looks[0], options.frames, options.steps)
        labels = [f"skill {name}" for name in motion.names]
        return drawn(looks[0], motion, range(len(motion.names)), labels, choice, options.size)
    runs = {look.folder: {"method": look.method, "env": look.env} for look in looks}
    labels = dict(zip(runs, run_labels([*runs], [*runs.values()]), strict=True))
    rows = []
    for look in looks:
        label = labels[look.folder]
        if isinstance(look, Tuned):
            row = look.label if len(options.runs) == 1 else f"{label}\n{look.label}"
            rows += drawn(look, motion_of(look, options.frames, options.steps), [0], [row], choice, options.size)
            continue
        whole = motion_of(look, 10**9, options.steps)
        skill = liveliest(whole)
        row = f"{label}\nskill {look.names[skill]}"
        rows += drawn(look, thinned(whole, options.frames), [skill], [row], choice, options.size)
    return rows


def drawn(
    look: Look | Tuned, motion: Motion, skills: Sequence[int], labels: Sequence[str], choice: Choice, size: int
) -> list[Labelled]:
    """Rows of a motion, drawn twice as large and averaged: smooth edges without any help of the renderer. Below each,
    of an agent that learned from images, is what it saw."""
    times = [moment(motion, number) for number in range(motion.frames)]
    seen = seen_in(look, motion, skills, range(motion.frames))
    rows: list[Labelled] = []
    with contextlib.closing(painter_of(motion, choice.renderer, 2 * size)) as painter:
        for number, (skill, label) in enumerate(zip(skills, labels, strict=True)):
            rows.append((label, [smaller(painter.frame(skill, frame), size) for frame in range(motion.frames)], times))
            if seen is not None:
                rows.append(("as seen", [enlarged(picture, size) for picture in seen[number]], times))
    return rows


def moment(motion: Motion, number: int) -> str:
    """When a frame was: in seconds, or in steps where time is not known."""
    passed = number * motion.frame_seconds
    return f"{passed:.3g} s" if motion.timed else f"step {passed:.0f}"


def liveliest(motion: Motion) -> int:
    """The skill that moves most, joint by joint."""
    return int(np.abs(np.diff(motion.poses, axis=1)).mean((1, 2)).argmax())


def captions_of(looks: Sequence[Look | Tuned]) -> list[str]:
    """Which runs and seeds a strip is of, a line each."""
    return list(dict.fromkeys(look.caption for look in looks))


def strip(
    labels: Sequence[str],
    rows: Sequence[Sequence[np.ndarray]],
    times: Sequence[str],
    captions: Sequence[str] = (),
) -> np.ndarray:
    """Rows of pictures with their names on the left, the time below and what they are of under it, as one picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size, gap = rows[0][0].shape[0], max(2, rows[0][0].shape[0] // 64)
    font = max(9, size // 9)
    left = round(0.62 * font * max(len(line) for label in labels for line in label.split("\n"))) + font
    width = left + len(times) * (size + gap)
    below = round(1.2 * font) * len(captions)
    height = len(rows) * (size + gap) + 2 * font + below
    figure = Figure(figsize=(width / 100, height / 100), dpi=100, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    style = {"family": STYLE["font.family"], "size": 0.72 * font, "va": "center"}
    for row, label in enumerate(labels):
        middle = height - row * (size + gap) - size / 2
        figure.text((left - font / 2) / width, middle / height, label, ha="right", **style)
    for column, time in enumerate(times):
        middle = left + column * (size + gap) + size / 2
        figure.text(middle / width, (0.9 * font + below) / height, time, ha="center", color=MUTED, **style)
    for line, caption in enumerate(captions):
        middle = below - (line + 0.4) * 1.2 * font
        fitting: dict[str, Any] = style | {"size": 0.72 * min(font, width / (0.62 * len(caption) + 1))}
        figure.text(1 - font / 2 / width, middle / height, caption, ha="right", color=MUTED, **fitting)
    canvas.draw()
    sheet = np.asarray(canvas.buffer_rgba())[..., :3].copy()
    for row, pictures in enumerate(rows):
        for column, picture in enumerate(pictures):
            top, begin = row * (size + gap), left + column * (size + gap)
            sheet[top : top + size, begin : begin + size] = picture
    return sheet


def save_picture(picture: np.ndarray, path: Path) -> None:
    """Saves a PNG with few colours, whole or not at all."""
    from PIL import Image

    image = Image.fromarray(picture).quantize(COLORS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    image.save(buffer, "PNG", optimize=True)
    write_bytes(path, buffer.getvalue())

"""`becl video`: films of the skills of a run, or of tasks it was finetuned on, one each and one of all side by side.

Under --out:

    skill-<n>.mp4    one episode of the skill; of a finetuned run <task>-seed-<n>.mp4
    skills.mp4       all of them in a grid; of a finetuned run tasks.mp4
    *.gif            the same, smaller, for pages that play nothing else
"""

import contextlib
import math
import subprocess
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from becl.envs import maze
from becl.envs.external import is_external
from becl.errors import UserError
from becl.options import VideoOptions
from becl.runs.folder import check_writable
from becl.runs.progress import counted, progress
from becl.runs.writing import whole
from becl.views.poses import Look, Motion, Tuned, motion_of
from becl.views.recorded import draws_itself
from becl.views.rendering import Choice, Painter, choose_renderer, painter_of

SLOWEST, FASTEST = 1.0, 60.0  # Frames a second that every player shows.
STEP_RATE = 10.0  # Where there are no seconds, as in a maze.
GIF_RATE, GIF_WIDTH = 5.0, (160, 640)  # Frames a second at most; pixels of a skill, and of all.
LARGEST = 2048  # Pixels of a skill.


def check_picture(steps: int | None, frames: int, size: int) -> None:
    if steps is not None and steps < 1:
        raise UserError(f"--steps {steps}: at least 1 is needed")
    if frames < 2:
        raise UserError(f"--frames {frames}: at least 2 are needed")
    if not 16 <= size <= LARGEST or size % 2:
        raise UserError(f"--size {size}: an even number from 16 to {LARGEST} is needed")


class Shot(NamedTuple):
    """What is filmed: one skill of a motion."""

    name: str
    """Name of the film."""
    label: str
    """In the corner of its picture among others."""
    painter: Painter
    skill: int


def film(looks: Sequence[Look | Tuned], out: Path, options: VideoOptions) -> int:
    """Plays, draws and writes."""
    choice = choose_renderer(options.renderer)
    for look in looks:
        print(look.title + ("" if isinstance(look, Tuned) else f" · {counted(len(look.names), 'skill')}"))
    print(f"{drawn_by(choice, looks[0].env)} · {out}/", flush=True)
    motions = [motion_of(look, options.frames, options.steps) for look in looks]
    check_writable(out)
    began, shots = time.perf_counter(), []
    with contextlib.ExitStack() as stack, warnings.catch_warnings():
        for look, motion in zip(looks, motions, strict=True):
            painter = stack.enter_context(contextlib.closing(painter_of(motion, choice.renderer, options.size)))
            if isinstance(look, Tuned):
                shots.append(Shot(look.name, look.label, painter, 0))
            else:
                shots += [Shot(f"skill-{name}", str(name), painter, i) for i, name in enumerate(motion.names)]
        # JAX warns of a fork, but nothing runs between it and the start of ffmpeg.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        bar = stack.enter_context(progress(len(shots) * motions[0].frames, "frames"))
        together = "tasks" if isinstance(looks[0], Tuned) else "skills"
        paths = write_films(shots, together, motions[0], out, options.gif, bar)
    size = sum(path.stat().st_size for path in paths)
    print(f"{len(paths)} films, {size / 1e6:.1f} MB, {time.perf_counter() - began:.0f} s in {out}/")
    return 0


def drawn_by(choice: Choice, env: str) -> str:
    """What draws and, where it is not OpenGL, why."""
    if env in maze.names():
        return "drawn as a floor plan"
    if is_external(env) and draws_itself(env):
        return "drawn by the environment itself"
    return f"drawn by {choice.renderer}" + (f": {choice.why}" if choice.renderer == "rays" else "")


def write_films(
    shots: Sequence[Shot], together: str, motion: Motion, out: Path, gif: bool, bar: Any
) -> list[Path]:  # fmt: skip
    """All films at once, a frame of each at a time, so that none has to be kept; then their GIFs. All are as long as
    `motion`."""
    rate = frame_rate(motion)
    paths = [out / f"{name}.mp4" for name in [*(shot.name for shot in shots), together]]
    labels = [shot.label for shot in shots]
    with contextlib.ExitStack() as stack:
        films = [stack.enter_context(mp4(path, rate)) for path in paths]
        for number in range(motion.frames):
            pictures = [shot.painter.frame(shot.skill, number) for shot in shots]
            for film, picture in zip(films, [*pictures, tiled(pictures, labels)], strict=True):
                film.append_data(picture)
            bar.advance(len(pictures))
    return [*paths, *(write_gif(path, min(rate, GIF_RATE), GIF_WIDTH[path is paths[-1]]) for path in paths if gif)]


def frame_rate(motion: Motion) -> float:
    """Frames per second that show the robot at its own speed."""
    if not motion.timed:
        return STEP_RATE
    return min(max(1 / motion.frame_seconds, SLOWEST), FASTEST)


@contextlib.contextmanager
def mp4(path: Path, rate: float) -> Iterator[Any]:
    """A film that gets its name when it is whole."""
    import imageio

    with whole(path, path.suffix) as part:
        # Multiples of 2 are all that its coding needs.
        writer = imageio.get_writer(part, format="FFMPEG", fps=rate, codec="libx264", macro_block_size=2,
                                    output_params=["-threads", "1", "-movflags", "+faststart"])  # fmt: skip
        with contextlib.closing(writer):
            yield writer


def write_gif(film: Path, rate: float, width: int) -> Path:
    """A film as a GIF beside it, with the colours that it needs."""
    import imageio_ffmpeg

    path = film.with_suffix(".gif")
    colors = "split[a][b];[a]palettegen=max_colors=64[p];[b][p]paletteuse=dither=none"
    graph = f"fps={rate:g},scale='min({width},iw)':-2:flags=area,{colors}"
    with whole(path, path.suffix) as part:
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-y", "-i", film, "-vf", graph, part]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


def tiled(pictures: Sequence[np.ndarray], labels: Sequence[str]) -> np.ndarray:
    """Pictures of one size in a grid about as wide as high, each with its label."""
    columns = math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    height, width = pictures[0].shape[:2]
    grid = np.full((rows * height, columns * width, 3), 255, np.uint8)
    for place, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        top, left = place // columns * height, place % columns * width
        grid[top : top + height, left : left + width] = labelled(picture, label)
    return grid


def labelled(picture: np.ndarray, label: str) -> np.ndarray:
    """A picture with a few words in its corner."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(picture)
    size = max(9, image.width // 14)
    pen = ImageDraw.Draw(image)
    pen.text((size // 3, size // 5), label, fill="white", font=ImageFont.load_default(size), stroke_width=1,
             stroke_fill="black")  # fmt: skip
    return np.asarray(image)


def smaller(picture: np.ndarray, size: int) -> np.ndarray:
    """A picture at most so high, its pixels averaged."""
    from PIL import Image

    image = Image.fromarray(picture)
    return picture if image.height <= size else np.asarray(image.resize((size, size), Image.Resampling.BOX))

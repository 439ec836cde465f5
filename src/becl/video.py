"""`becl video`: films of the skills of a run, one each and one of all side by side.

Under --out:

    skill-<n>.mp4    one episode of the skill
    skills.mp4       all of them in a grid
    *.gif            the same, smaller, for pages that play nothing else
"""

import contextlib
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from becl.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from becl.poses import Look, Motion
    from becl.rendering import Choice, Painter

SLOWEST, FASTEST = 1.0, 60.0  # Frames a second that every player shows.
MAZE_RATE = 10.0  # A maze has no seconds.
GIF_RATE, GIF_WIDTH = 5.0, (160, 640)  # Frames a second at most; pixels of a skill, and of all.
LARGEST = 2048  # Pixels of a skill.


@dataclass(frozen=True)
class VideoCommand:
    """Film the skills of a pretrained run: an mp4 and a GIF of each, and one of all side by side."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of `becl pretrain`, finished or not."""
    out: Path | None = None
    """Folder for the films; RUN/gallery by default."""
    skills: tuple[int, ...] = ()
    """Numbers of skills to film; all by default, of continuous ones 16 fixed draws."""
    seed: int | None = None
    """Seed of the run; its first by default."""
    snapshot: int | None = None
    """Steps of the networks to look at; the last by default."""
    steps: int | None = None
    """How much of the episode to film; all by default."""
    frames: int = 250
    """At most; films run as fast as the robot whatever their number."""
    size: int = 256
    """Of a skill's picture, in pixels."""
    gif: bool = True
    """Also write GIFs."""
    renderer: Literal["auto", "egl", "osmesa", "rays"] = "auto"
    """What draws: OpenGL by EGL or OSMesa, or rays, which need neither; by default the first that works."""


def video_command(command: VideoCommand) -> int:
    from becl.evaluate_command import check_place
    from becl.poses import look_at

    check_picture(command.steps, command.frames, command.size)
    look = look_at(command.run, command.seed, command.snapshot, command.skills)
    out = command.out or command.run / "gallery"
    check_place(out)
    return film(look, out, command)


def check_picture(steps: int | None, frames: int, size: int) -> None:
    if steps is not None and steps < 1:
        raise UserError(f"--steps {steps}: at least 1 is needed")
    if frames < 2:
        raise UserError(f"--frames {frames}: at least 2 are needed")
    if not 16 <= size <= LARGEST or size % 2:
        raise UserError(f"--size {size}: an even number from 16 to {LARGEST} is needed")


def film(look: "Look", out: Path, command: VideoCommand) -> int:
    """Plays, draws and writes."""
    from becl.commands import check_writable
    from becl.poses import motion_of
    from becl.progress import progress
    from becl.rendering import choose_renderer, painter_of

    choice = choose_renderer(command.renderer)
    print(f"{look.title} · {len(look.names)} skills · {out}/\n{drawn_by(choice, look.made.env)}", flush=True)
    motion = motion_of(look, command.frames, command.steps)
    check_writable(out)
    began, painter = time.perf_counter(), painter_of(motion, choice.renderer, command.size)
    with (
        contextlib.closing(painter),
        progress(len(motion.names) * motion.frames, "frames") as shown,
        warnings.catch_warnings(),
    ):
        # JAX warns of a fork, but nothing runs between it and the start of ffmpeg.
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        paths = write_films(motion, painter, out, command.gif, shown)
    size = sum(path.stat().st_size for path in paths)
    print(f"{len(paths)} films, {size / 1e6:.1f} MB, {time.perf_counter() - began:.0f} s in {out}/")
    return 0


def drawn_by(choice: "Choice", env: str) -> str:
    """What draws and, where it is not OpenGL, why."""
    from becl.envs import maze

    if env in maze.names():
        return "drawn as a floor plan"
    return f"drawn by {choice.renderer}" + (f": {choice.why}" if choice.renderer == "rays" else "")


def write_films(motion: "Motion", painter: "Painter", out: Path, gif: bool, shown: Any) -> list[Path]:
    """All films at once, a frame of every skill at a time, so that none has to be kept; then their GIFs."""
    rate = frame_rate(motion)
    paths = [out / f"{name}.mp4" for name in [*(f"skill-{name}" for name in motion.names), "skills"]]
    with contextlib.ExitStack() as stack:
        films = [stack.enter_context(mp4(path, rate)) for path in paths]
        for number in range(motion.frames):
            pictures = [painter.frame(skill, number) for skill in range(len(motion.names))]
            for film, picture in zip(films, [*pictures, tiled(pictures, motion.names)], strict=True):
                film.append_data(picture)
            shown.advance(len(pictures))
    return [*paths, *(write_gif(path, min(rate, GIF_RATE), GIF_WIDTH[path is paths[-1]]) for path in paths if gif)]


def frame_rate(motion: "Motion") -> float:
    """As fast as the robot."""
    if motion.plan is not None:
        return MAZE_RATE
    return min(max(1 / motion.frame_seconds, SLOWEST), FASTEST)


@contextlib.contextmanager
def mp4(path: Path, rate: float) -> Iterator[Any]:
    """A film that gets its name when it is whole."""
    import imageio

    with whole(path) as part:
        # Multiples of 2 are all that its coding needs.
        writer = imageio.get_writer(part, format="FFMPEG", fps=rate, codec="libx264", macro_block_size=2,
                                    output_params=["-threads", "1", "-movflags", "+faststart"])  # fmt: skip
        with contextlib.closing(writer):
            yield writer


def write_gif(film: Path, rate: float, width: int) -> Path:
    """A film as a GIF beside it, with the colours that it needs."""
    import subprocess

    import imageio_ffmpeg

    path = film.with_suffix(".gif")
    colors = "split[a][b];[a]palettegen=max_colors=64[p];[b][p]paletteuse=dither=none"
    graph = f"fps={rate:g},scale='min({width},iw)':-2:flags=area,{colors}"
    with whole(path) as part:
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", "-y", "-i", film, "-vf", graph, part]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    return path


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place to write that gets its name in the end, and is gone where that fails."""
    part = path.with_name(f".{path.stem}.part{path.suffix}")
    try:
        yield part
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def tiled(pictures: Sequence["np.ndarray"], names: Sequence[int]) -> "np.ndarray":
    """Pictures of one size in a grid about as wide as high, each with its skill's number."""
    import numpy as np

    columns = math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    height, width = pictures[0].shape[:2]
    grid = np.full((rows * height, columns * width, 3), 255, np.uint8)
    for place, (picture, name) in enumerate(zip(pictures, names, strict=True)):
        top, left = place // columns * height, place % columns * width
        grid[top : top + height, left : left + width] = numbered(picture, name)
    return grid


def numbered(picture: "np.ndarray", name: int) -> "np.ndarray":
    """A picture with a number in its corner."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    image = Image.fromarray(picture)
    size = max(9, image.width // 14)
    pen = ImageDraw.Draw(image)
    pen.text((size // 3, size // 5), str(name), fill="white", font=ImageFont.load_default(size), stroke_width=1,
             stroke_fill="black")  # fmt: skip
    return np.asarray(image)


def smaller(picture: "np.ndarray", size: int) -> "np.ndarray":
    """A picture at most so high, its pixels averaged."""
    import numpy as np
    from PIL import Image

    image = Image.fromarray(picture)
    return picture if image.height <= size else np.asarray(image.resize((size, size), Image.Resampling.BOX))

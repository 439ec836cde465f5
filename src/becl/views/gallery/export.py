"""The skills of a run side by side in 3D, with a player and a table, as one HTML file to send on."""

import html
import time
from collections.abc import Sequence
from pathlib import Path

from becl.errors import UserError, printable
from becl.options import GalleryOptions
from becl.runs.progress import counted
from becl.runs.writing import write_text
from becl.views.filmstrip import is_folder
from becl.views.gallery.gate import open_gate
from becl.views.gallery.numbers import Numbers, label, numbers_of, table
from becl.views.gallery.scene import MOMENTS, angles_of, pace_of, set_camera, stage_of, unit_of
from becl.views.gallery.server import server_at
from becl.views.poses import Look, Motion, motion_of
from becl.views.seen import moments_seen

FITTING = """<script>
// viser asks the page's address for the first view's angle. Its answer here is the one that shows all, whatever the
// window's shape. (A phone's bars come and go: its whole height counts.)
(() => {
  const get = URLSearchParams.prototype.get, [aside, up] = [%.4f, %.4f];
  URLSearchParams.prototype.get = function (name) {
    const given = get.call(this, name);
    if (given !== null || name !== "initialCameraFov") return given;
    return String(2 * Math.atan(Math.max(up, (aside * Math.max(innerHeight, outerHeight)) / innerWidth)));
  };
})();
</script>"""


def page_path(out: Path) -> Path:
    if is_folder(out):
        raise UserError(f"{out} is a folder; name a file for --export, such as {out / 'page.html'}")
    return out if out.suffix in (".html", ".htm") else out.with_name(out.name + ".html")


def write_page(look: Look, path: Path, options: GalleryOptions) -> int:
    print(f"{look.title} · {counted(len(look.names), 'skill')}", flush=True)
    motion, numbers = motion_of(look, options.frames, options.steps), numbers_of(look)
    began = time.perf_counter()
    write_text(path, page_of(look, motion, numbers))
    size = path.stat().st_size / 1e6
    print(f"{path}: {size:.1f} MB, {motion.frames} frames, written in {time.perf_counter() - began:.1f} s")
    return 0


def page_of(look: Look, motion: Motion, numbers: Sequence[Numbers]) -> str:
    """The scene with all its frames and its player, and a table, in one HTML text."""
    labels = [label(name, one, unit_of(motion)) for name, one in zip(look.names, numbers, strict=True)]
    with server_at(open_gate(), "becl") as server:
        stage = stage_of(server.scene, motion, labels, moments_seen(look, motion, MOMENTS))
        set_camera(server, stage.camera)
        angles = angles_of(stage.camera, stage.corners)
        recording = server.get_scene_serializer()
        for frame in range(motion.frames):
            stage.show(frame)
            recording.insert_sleep(pace_of(motion))
        page = recording.as_html()
    replaced = {
        "<head>": "<head>" + FITTING % angles,
        "<title>": f"<title>{html.escape(look.title)} – ",
        "{darkMode:false}": "{darkMode:matchMedia('(prefers-color-scheme: dark)').matches}",
        "</body>": caption(look, motion, numbers) + "</body>",
    }
    for place, text in replaced.items():
        if place not in page:
            raise RuntimeError(f"this version of viser writes pages without {place}")
        page = page.replace(place, text, 1)
    return page


def caption(look: Look, motion: Motion, numbers: Sequence[Numbers]) -> str:
    """The run and the table of its skills, folded away in a corner."""
    head, rows = table(look, numbers, unit_of(motion))
    lines = ["".join(f"<th>{html.escape(text)}</th>" for text in head)]
    lines += ["".join(f"<td>{html.escape(text)}</td>" for text in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    style = "position:fixed;right:8px;top:8px;z-index:10;max-height:90vh;overflow:auto;padding:4px 8px;"
    style += "color-scheme:light dark;background:Canvas;color:CanvasText;font:13px sans-serif;border-radius:4px;"
    style += "max-width:calc(100vw - 32px)"
    cells = "<style>#skills td,#skills th{padding:1px 6px;text-align:right}</style>"
    title = html.escape(look.title)
    return printable(
        f'<details id="skills" style="{style}"><summary>{title}</summary>{cells}<table>{body}</table></details>'
    )

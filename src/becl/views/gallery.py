"""`becl gallery`: the skills of a run side by side in 3D, on a page of this machine or as one file to send on."""

import contextlib
import html
import io
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from becl.errors import UserError
from becl.options import GalleryOptions
from becl.runs.progress import counted
from becl.views.filmstrip import is_folder
from becl.views.gate import Gate, guarded, open_gate

if TYPE_CHECKING:
    from becl.views.gallery_numbers import Numbers
    from becl.views.poses import Look, Motion


def page_path(out: Path) -> Path:
    if is_folder(out):
        raise UserError(f"{out} is a folder; name a file for --export, such as {out / 'page.html'}")
    return out if out.suffix in (".html", ".htm") else out.with_name(out.name + ".html")


@contextlib.contextmanager
def server_at(gate: Gate, label: str) -> Iterator[Any]:
    """viser's server behind a gate, which it closes in the end."""
    import viser

    with contextlib.ExitStack() as stack:
        stack.callback(gate.listener.close)
        with guarded(gate), contextlib.redirect_stdout(io.StringIO()):  # It prints a box of its own.
            server = viser.ViserServer(gate.host, gate.port, label, verbose=False)
            stack.callback(stopped, server)
        server.request_share_url = lambda verbose=True: None  # A visitor's message would publish the page.
        server.gui.configure_theme(show_logo=False, show_share_button=False)
        server.gui.main_panel.dock_right()
        yield server


def stopped(server: Any) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        server.stop()


# --- A file -----------------------------------------------------------------------------------------------------------


def write_page(look: "Look", path: Path, options: GalleryOptions) -> int:
    from becl.runs.folder import write_text
    from becl.views.gallery_numbers import numbers_of
    from becl.views.poses import motion_of

    print(f"{look.title} · {counted(len(look.names), 'skill')}", flush=True)
    motion, numbers = motion_of(look, options.frames, options.steps), numbers_of(look)
    began = time.perf_counter()
    write_text(path, page_of(look, motion, numbers))
    size = path.stat().st_size / 1e6
    print(f"{path}: {size:.1f} MB, {motion.frames} frames, written in {time.perf_counter() - began:.1f} s")
    return 0


def page_of(look: "Look", motion: "Motion", numbers: Sequence["Numbers"]) -> str:
    """The scene with all its frames and its player, and a table, in one HTML text."""
    from becl.views.gallery_numbers import label
    from becl.views.gallery_scene import pace_of, set_camera, stage_of, unit_of

    labels = [label(name, one, unit_of(motion)) for name, one in zip(look.names, numbers, strict=True)]
    with server_at(open_gate(), "becl") as server:
        stage = stage_of(server.scene, motion, labels)
        set_camera(server, stage.camera)
        recording = server.get_scene_serializer()
        for frame in range(motion.frames):
            stage.show(frame)
            recording.insert_sleep(pace_of(motion))
        page = recording.as_html()
    return page.replace("<title>", f"<title>{html.escape(look.title)} – ", 1).replace(
        "</body>", caption(look, motion, numbers) + "</body>", 1
    )


def caption(look: "Look", motion: "Motion", numbers: Sequence["Numbers"]) -> str:
    """The run and the table of its skills, folded away in a corner."""
    from becl.views.gallery_numbers import table
    from becl.views.gallery_scene import unit_of

    head, rows = table(look, numbers, unit_of(motion))
    lines = ["".join(f"<th>{html.escape(text)}</th>" for text in head)]
    lines += ["".join(f"<td>{html.escape(text)}</td>" for text in row) for row in rows]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    style = "position:fixed;right:8px;top:8px;z-index:10;max-height:90vh;overflow:auto;padding:4px 8px;"
    style += "background:#ffffffd9;color:#222;font:13px sans-serif;border-radius:4px"
    cells = "<style>#skills td,#skills th{padding:1px 6px;text-align:right}</style>"
    return f'<details id="skills" style="{style}"><summary>{html.escape(look.title)}</summary>{cells}' + (
        f"<table>{body}</table></details>"
    )


# --- A page -----------------------------------------------------------------------------------------------------------


def serve(look: "Look", gate: Gate, options: GalleryOptions) -> int:
    """Serves the page until Ctrl-C."""
    import webbrowser

    from becl.views.gallery_page import Page

    print(f"{look.title} · {counted(len(look.names), 'skill')}: a moment ...", flush=True)
    with server_at(gate, "becl") as server, contextlib.ExitStack() as stack:
        page = Page(server, look, options.frames, options.steps)
        stack.callback(page.stop)
        with contextlib.suppress(KeyboardInterrupt):
            for line in filter(None, (gate.warning(), f"{gate.address} (Ctrl-C ends it)")):
                print(line, flush=True)
            if options.open:
                webbrowser.open(gate.address)
            page.play_forever()
    return 0

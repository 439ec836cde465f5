"""viser's server, which shows the skills of a run side by side in 3D in a browser on this machine."""

import contextlib
import io
from collections.abc import Iterator
from typing import Any

from becl.options import GalleryOptions
from becl.runs.progress import counted
from becl.signals import heard
from becl.views.gallery.gate import Gate, guarded
from becl.views.gallery.page import Page
from becl.views.poses import Look


@contextlib.contextmanager
def server_at(gate: Gate, label: str) -> Iterator[Any]:
    """viser's server behind a gate, which it closes in the end."""
    import viser

    with contextlib.ExitStack() as stack:
        stack.callback(gate.listener.close)
        with guarded(gate), contextlib.redirect_stdout(io.StringIO()):  # It prints a box of its own.
            server = viser.ViserServer(gate.host, gate.port, label, verbose=False)
            stack.callback(stop, server)
        server.request_share_url = lambda verbose=True: None  # A visitor's message would publish the page.
        server.gui.configure_theme(show_logo=False, show_share_button=False)
        server.gui.main_panel.dock_right()
        yield server


def stop(server: Any) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        server.stop()


def serve(look: Look, gate: Gate, options: GalleryOptions) -> int:
    """Serves the page until Ctrl-C."""
    import webbrowser

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
        heard()
    return 0

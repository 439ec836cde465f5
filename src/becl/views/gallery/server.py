"""viser's server, which shows the skills of a run side by side in 3D in a browser on this machine."""

import contextlib
import io
import socket
from collections.abc import Iterator
from typing import Any

from becl.errors import UserError
from becl.options import GalleryOptions
from becl.runs.progress import counted
from becl.views.gallery.page import Page
from becl.views.poses import Look

HOST = "127.0.0.1"


def free_port(wanted: int | None) -> int:
    """A port that nobody listens at."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((HOST, wanted or 0))
        except OSError as error:
            raise UserError(f"--port {wanted}: {error.strerror}; leave it out for a free one") from None
        return trial.getsockname()[1]


@contextlib.contextmanager
def server_at(port: int, label: str) -> Iterator[Any]:
    """viser's server, on this machine only."""
    import viser

    with contextlib.redirect_stdout(io.StringIO()):  # It prints a box of its own.
        server = viser.ViserServer(HOST, port, label, verbose=False)
    try:
        server.gui.configure_theme(show_logo=False, show_share_button=False)
        server.gui.main_panel.dock_right()
        yield server
    finally:
        with contextlib.redirect_stdout(io.StringIO()):
            server.stop()


def serve(look: Look, port: int, options: GalleryOptions) -> int:
    """Serves the page until Ctrl-C."""
    import webbrowser

    print(f"{look.title} · {counted(len(look.names), 'skill')}: a moment ...", flush=True)
    with server_at(port, "becl") as server:
        page = Page(server, look, options.frames, options.steps)
        address = f"http://{HOST}:{port}"
        print(f"{address} (Ctrl-C ends it)", flush=True)
        if options.open:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            page.play_forever()
    return 0

"""`becl gallery`: the skills of a run side by side in 3D."""

from becl.errors import UserError
from becl.options import GalleryOptions
from becl.runs.folder import check_writable, trust_folder
from becl.views.gallery.export import page_path, write_page
from becl.views.gallery.gate import open_gate
from becl.views.gallery.server import serve
from becl.views.poses import look_at
from becl.views.video import check_picture


def run(options: GalleryOptions) -> int:
    check_picture(options.steps, options.frames, size=16)
    if options.port is not None and not 0 < options.port < 2**16:
        raise UserError(f"--port {options.port}: ports are numbers from 1 to 65535")
    if options.trust:
        trust_folder(options.run)
    look = look_at(options.run, options.seed, options.snapshot, options.skills)
    if options.export is None:
        return serve(look, open_gate(options.host, options.port), options)
    path = page_path(options.export)
    check_writable(path.parent)
    return write_page(look, path, options)

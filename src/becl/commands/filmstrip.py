"""`becl filmstrip`: snapshots along an episode as one picture."""

from becl.errors import UserError
from becl.options import FilmstripOptions
from becl.runs.folder import check_writable, trust_folder
from becl.views.filmstrip import captions_of, looks_of, picture_path, rows_of, save_picture, strip
from becl.views.rendering import choose_renderer
from becl.views.video import check_picture, drawn_by


def run(options: FilmstripOptions) -> int:
    if not options.runs:
        raise UserError("no runs to draw: name folders of becl pretrain or becl finetune")
    check_picture(options.steps, options.frames, options.size)
    for run in options.runs if options.trust else ():
        trust_folder(run)
    looks = looks_of(options)
    out = picture_path(options)
    check_writable(out.parent)
    choice = choose_renderer(options.renderer)
    print(drawn_by(choice, looks[0].env), flush=True)
    rows = rows_of(looks, choice, options)
    labels, pictures, times = zip(*rows, strict=True)
    save_picture(strip(labels, pictures, times[0], captions_of(looks)), out)
    print(out)
    return 0

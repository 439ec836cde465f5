"""`becl video`: films of the skills of a run, or of the tasks it was finetuned on."""

from becl.options import VideoOptions
from becl.runs.folder import check_place, trust_folder
from becl.views.poses import looks_at
from becl.views.video import check_picture, film


def run(options: VideoOptions) -> int:
    check_picture(options.steps, options.frames, options.size)
    if options.trust:
        trust_folder(options.run)
    looks = looks_at(options.run, options.seed, options.snapshot, options.skills)
    out = options.out or options.run / "gallery"
    check_place(out)
    return film(looks, out, options)

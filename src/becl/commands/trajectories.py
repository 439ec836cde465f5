"""`becl trajectories`: where skills go, which states they cover, and how well their features are apart."""

from becl.errors import UserError
from becl.experiments.environments import position_of
from becl.options import TrajectoriesOptions
from becl.runs.folder import check_place, trust_folder
from becl.views.poses import look_at
from becl.views.trajectories import draw


def run(options: TrajectoriesOptions) -> int:
    if options.episodes < 1:
        raise UserError(f"--episodes {options.episodes}: at least 1 is needed")
    if options.trust:
        trust_folder(options.run)
    look = look_at(options.run, options.seed, options.snapshot, options.skills)
    out = options.out or options.run / "gallery"
    check_place(out)
    return draw(look, out, options.episodes, position_of(look.env, options.position))

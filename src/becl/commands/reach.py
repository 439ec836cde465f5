"""`becl reach`: goals without training, and a picture of the ways there."""

from becl.experiments.reach import reach
from becl.options import ReachOptions
from becl.views.reaching import draw


def run(options: ReachOptions) -> int:
    draw(reach(options))
    return 0

"""The picture of `becl reach`: the ways to every goal, of the first seed, as PNG and SVG beside the table."""

import numpy as np

from becl.envs import maze
from becl.experiments.reach import Reached
from becl.views.figures.skills import goal_paths
from becl.views.figures.style import save


def draw(reached: Reached) -> None:
    """Draws goals that name the same numbers of an observation as the first one."""
    request = reached.request
    named = ~np.isnan(request.goals)
    alike = [number for number, own in enumerate(named) if (own == named[0]).all()]
    pretraining, places = request.pretraining, np.flatnonzero(named[0])
    plan = maze.geometry(pretraining.env) if pretraining.env in maze.names() and len(places) == 2 else None
    figure = goal_paths(
        reached.obs[0][alike][..., places],
        request.goals[alike][:, places],
        [request.names[number] for number in alike],
        f"{request.folder.resolve().name}\n{pretraining.method}, seed {request.seeds[0]}, {request.snapshot:,} steps",
        plan,
    )
    for path in save(figure, request.out / f"reach-{request.snapshot}"):
        print(path)

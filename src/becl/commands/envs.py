"""`becl envs`: the environments that come with the package."""

from becl.envs import DOMAINS, maze
from becl.envs.registration import FIELD_STEPS, FIELDS
from becl.options import EnvsOptions
from becl.runs.folder import check_writable
from becl.terminal import console, table
from becl.views.figures.maze import maze_gallery
from becl.views.figures.style import save
from becl.views.maze_report import plan_text


def run(options: EnvsOptions) -> int:
    if options.out is not None:
        check_writable(options.out.parent)
    rows = [
        (f"{name}_{task}", purpose, domain.obs_dim, domain.action_dim, domain.episode_length)
        for name, domain in DOMAINS.items()
        for task, purpose in domain.tasks.items()
    ]
    columns = ("task", "asks to", "observation", "action", "steps per episode")
    console().print(table("robots in MuJoCo (URLB): becl.envs.make, gymnasium.make('becl/TASK-v0')", columns, rows))
    primal = ", ".join(f"{name} ({name}_{domain.primal})" for name, domain in DOMAINS.items())
    print(f"A robot's name alone means one of its tasks: {primal}.\n")
    rows = [(f"gym:becl/{name}-v0", about) for name, (about, _, _) in FIELDS.items()]
    console().print(table(f"robots of Gymnasium that go somewhere, and tasks for their skills, {FIELD_STEPS} steps: "
                          "becl pretrain, becl control", ("environment", "what it is"), rows))  # fmt: skip
    rows = []
    for name in maze.names():
        plan = maze.geometry(name)
        rows.append((name, len(plan.cells), int(plan.distance.max()), plan_text(plan)))
    console().print(table("2-D mazes: observation (x, y), action in [-1, 1]², 50 steps",
                          ("maze", "cells", "farthest cell", "plan (S: start)"), rows, lines=True))  # fmt: skip
    if options.out is not None:
        for path in save(maze_gallery(), options.out.with_suffix("")):
            print(path)
    return 0

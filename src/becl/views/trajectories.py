"""`becl trajectories`: where skills go, which states they cover, and how well their features are apart.

Up to three figures as PNG and SVG under --out:

    trajectories    the path of every episode in its skill's colour: x against time for what moves along a line, x and y
                    for what moves in a plane, on the floor plan of a maze
    coverage        how often each part of the grid of `becl evaluate` is visited, over its first two axes
    features        BeCL only: the features of states on the unit sphere, by skill
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from becl.envs import maze
from becl.envs.external import is_external
from becl.experiments.snapshots import load_snapshot
from becl.measure.coverage import grid_of
from becl.measure.skills import Episodes, rollout, sets_of, tasks_of
from becl.objectives.encoder import EncoderState, encode
from becl.runs.compiling import progress
from becl.runs.folder import check_writable
from becl.runs.progress import counted
from becl.views.figures.maze import Panel, panels
from becl.views.figures.skills import coverage_map, feature_sphere, skill_paths
from becl.views.figures.style import COLUMN_WIDTH, save
from becl.views.poses import Look

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STATES = 40  # Of an episode, evenly spaced, whose features are drawn.


def draw(look: Look, out: Path, episodes: int, position: Sequence[int] = ()) -> int:
    """Plays, draws and writes; `position` as in `rollout`."""
    print(f"{look.title} · {counted(len(look.names), 'skill')} × {counted(episodes, 'episode')} · {out}/", flush=True)
    learner, objective = load_snapshot(look.pretraining, look.path)
    with progress(len(look.names) * episodes * look.pretraining.run.env.episode_length, "steps") as bar:
        done = rollout(learner.actor, look.env, look.vectors, episodes, tasks=tasks_in_one_scene(look.env),
                       episode_length=look.pretraining.episode_length, advance=bar.advance,
                       vision=look.pretraining.run.vision, position=position)  # fmt: skip
    check_writable(out)
    if not done.place.shape[-1]:
        print(f"no trajectories: where {look.env} is, is not known (of MuJoCo models it is); name it with --position")
    for name, figure in figures_of(look, done, learner, objective):
        for path in save(figure, out / name):
            print(path)
    return 0


def tasks_in_one_scene(env: str) -> list[str]:
    """Where a task changes the scene, the first only."""
    return sets_of(tasks_of(env))[0]


def figures_of(look: Look, done: Episodes, learner: Any, objective: Any) -> Iterator[tuple[str, "Figure"]]:
    """All that can be drawn of this run."""
    env, title = look.env, f"{look.folder.resolve().name}\n{look.title}"
    if env in maze.names():
        panel = Panel("", title, done.place, maze.geometry(env), look.names)
        yield "trajectories", panels([panel], 1, width=COLUMN_WIDTH)
    elif done.place.shape[-1]:
        yield "trajectories", skill_paths(moving(done.place), done.step_seconds, look.names, title)
    if not is_external(env):
        grid = grid_of(env)
        coordinates = grid.coordinates(done.obs.reshape(-1, done.obs.shape[-1]))
        by_skill = coordinates.reshape(len(look.names), -1, coordinates.shape[-1])
        plan = maze.geometry(env) if env in maze.names() else None
        yield "coverage", coverage_map(by_skill[..., :2], grid.axes[:2], title, plan)
    found = features_of(look, done, learner, objective)
    if found is not None:
        yield "features", feature_sphere(found, look.names, title)


def moving(place: Float[np.ndarray, "*batch axes"]) -> Float[np.ndarray, "*batch moving"]:
    """The first two axes; the first alone where nothing moves along the second, as in robots that live in a plane."""
    flat = place[..., :2]
    return flat[..., :1] if flat.shape[-1] == 2 and not np.ptp(flat[..., 1]) else flat


def features_of(look: Look, done: Episodes, learner: Any, objective: Any) -> np.ndarray | None:
    """BeCL's features of some states [skills, episodes, states, feature]; None for other methods, and from images."""
    import jax.numpy as jnp

    run = look.pretraining.run
    if not isinstance(objective, EncoderState) or run.vision is not None:  # Of images no numbers are at hand.
        return None
    chosen = np.linspace(1, done.obs.shape[2] - 1, min(STATES, done.obs.shape[2] - 1)).round().astype(int)

    def seen(numbers: np.ndarray) -> Any:
        return run.seen_of(run.learner.view(learner, jnp.asarray(done.obs[:, :, numbers])))

    obs = seen(chosen)
    if getattr(run.objective, "state", "") == "both":  # Nearer at the beginning of an episode.
        obs = jnp.concatenate([seen(np.maximum(chosen - run.replay.nstep, 0)), obs], -1)
    return np.asarray(encode(objective, obs), np.float64)

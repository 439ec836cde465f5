"""`becl reach`: goals without any training. The skill is turned towards a goal's features at every step,

    z = (φ(g) − φ(s)) / ‖φ(g) − φ(s)‖,

by methods in whose features distances count steps (METRA and its family). Beside it, from the same starts, skills that
are held for the whole episode.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from becl.envs import maze
from becl.envs.external import is_external, make_external
from becl.errors import UserError
from becl.experiments.environments import check_here, choose_numbers, parts_of
from becl.experiments.evaluation import announce, seeds_of, table_text
from becl.experiments.pretraining import Pretraining, load_pretraining
from becl.experiments.snapshots import load_snapshot, snapshot_path
from becl.learning.offpolicy import OffPolicy
from becl.measure.skills import Episodes, Row, act, rollout, sets_of, skills_of, tasks_of
from becl.objectives import METHODS, Sum
from becl.objectives.protocol import LeadsToGoals
from becl.options import ReachOptions
from becl.runs.compiling import progress
from becl.runs.folder import check_place, choose_snapshot, trust_folder
from becl.runs.log import readable
from becl.runs.progress import counted
from becl.runs.writing import write_text
from becl.terminal import console, table

Goal = Float32[np.ndarray, " obs"]
"""An observation; what is no number in it stays as it is."""


class Journey(NamedTuple):
    """A command resolved and checked."""

    pretraining: Pretraining
    folder: Path
    snapshot: int
    seeds: list[int]
    goals: Float32[np.ndarray, "goals obs"]
    names: list[str]
    """Names of the goals, as they were given."""
    episodes: int
    steps: int | None
    within: float | None
    out: Path


class Reached(NamedTuple):
    """What was measured: rows of the table, and the states of the episodes."""

    rows: list[Row]
    obs: Float32[np.ndarray, "seeds goals episodes states obs"]
    request: Journey


class Turning(eqx.Module):
    """A policy of observations with a goal behind each, whose skill leads towards it."""

    learner: Any
    leader: Any
    """State of the objective that knows the way."""
    run: OffPolicy = eqx.field(static=True)
    objective: Any = eqx.field(static=True)

    def __call__(self, x: Float[Array, "*batch both"]) -> Float[Array, "*batch action"]:
        obs, goal = jnp.split(x, [self.run.env.obs_dim], -1)
        return self.run.learner.best(self.learner.actor, obs, self.skill(obs, goal))

    def skill(self, obs: Float[Array, "*batch obs"], goal: Float[Array, "*batch obs"]) -> Float[Array, "*batch skill"]:
        goal = jnp.where(jnp.isnan(goal), obs, goal)
        return self.objective.skill_towards(self.leader, self._seen(obs), self._seen(goal))

    def _seen(self, obs: Float[Array, "*batch obs"]) -> Float[Array, "*batch seen"]:
        """An observation as the objective sees it."""
        return self.run.seen_of(self.run.learner.view(self.learner, obs))


class Towards:
    """A policy that leads to a goal: `towards(obs)` is the action, one observation or a batch of them."""

    def __init__(self, turning: Turning, goal: Goal, env: str):
        self.goal, self._turning = goal, turning
        self._to_vector: Callable[[Any], np.ndarray] | None = None
        self._to_action: Callable[[np.ndarray], np.ndarray | np.integer] | None = None
        if is_external(env):
            batch = make_external(env, 1, 0)
            batch.close()
            self._to_vector, self._to_action = batch.layout.one, batch.to_action

    def __call__(self, obs: Any) -> np.ndarray | np.integer:
        if self._to_vector is not None and not isinstance(obs, np.ndarray):
            obs = self._to_vector(obs)
        obs = np.asarray(obs, np.float32)
        if obs.shape[-1:] != self.goal.shape:
            raise UserError(f"an observation of shape {obs.shape}: {len(self.goal)} numbers are needed, one row each")
        rows = obs.reshape(-1, len(self.goal))
        action = np.asarray(act(self._turning, rows, np.broadcast_to(self.goal, rows.shape)))
        action = action.reshape(*obs.shape[:-1], -1)
        return action if self._to_action is None else self._to_action(action)


# --- Before the work --------------------------------------------------------------------------------------------------


def resolve(options: ReachOptions) -> Journey:
    """Raises on what cannot be reached or measured; writes nothing."""
    if options.trust:
        trust_folder(options.run)
    pretraining = load_pretraining(options.run)
    check_leads(pretraining)
    if not options.goal:
        raise UserError("--goal: name at least one, such as 3.5,2")
    for option, value in (("--episodes", options.episodes), ("--steps", options.steps)):
        if value is not None and value < 1:
            raise UserError(f"{option} {value}: at least 1 is needed")
    if options.within is not None and not 0 < options.within < float("inf"):
        raise UserError(f"--within {options.within:g}: must be greater than 0 and finite")
    goals = np.stack([read_goal(text, pretraining) for text in options.goal])
    check_inside(pretraining.env, goals, options.goal)
    seeds = seeds_of(options.run, pretraining.seeds, options.seeds)
    snapshot = choose_snapshot(options.run, seeds, options.snapshot)
    out = options.out or options.run / "reach"
    check_place(out)
    check_here(pretraining.env, pretraining.run)
    episodes, steps, within = options.episodes, options.steps, options.within
    return Journey(pretraining, options.run, snapshot, seeds, goals, list(options.goal), episodes, steps, within, out)


def check_leads(pretraining: Pretraining) -> None:
    """Raises on methods whose features say nothing about the way to a goal, and on goals that are images."""
    if pretraining.run.vision is not None:
        raise UserError("a goal is an observation of numbers; this run sees images (--pixels)")
    if leading(pretraining.run.objective) is None:
        able = ", ".join(name for name, method in METHODS.items() if leading(method.objective) is not None)
        raise UserError(f"{pretraining.method} has no features that lead to a goal; {able} have")


def leading(objective: Any, state: Any = None) -> tuple[Any, Any] | None:
    """The objective, or the part of a sum, that knows the way to a goal, and its state."""
    if isinstance(objective, LeadsToGoals):
        return objective, state
    if not isinstance(objective, Sum):
        return None
    states = (None,) * len(objective.parts) if state is None else state.parts
    found = (leading(part, own) for part, own in zip(objective.parts, states, strict=True))
    return next((one for one in found if one is not None), None)


def read_goal(text: str, pretraining: Pretraining) -> Goal:
    """A goal from text: the numbers of an observation, or `x,y=3,2`: some of them by place or name."""
    names, equals, values = text.rpartition("=")
    try:
        numbers = np.array([float(word) for word in values.split(",")], np.float32)
    except ValueError:
        numbers = np.array([np.nan])
    if not np.isfinite(numbers).all():
        raise UserError(f"--goal {text}: expected numbers such as 3.5,2, or some by name or place, 0:2=3.5,2")
    if not equals:
        return to_goal(numbers, pretraining, f"--goal {text}")
    run = pretraining.run
    places = choose_numbers(names, parts_of(pretraining.env), run.env.obs_dim, "--goal")
    if len(places) != len(numbers):
        raise UserError(f"--goal {text}: {counted(len(numbers), 'value')} for {counted(len(places), 'number')}")
    if other := [place for place in places if run.objective_obs and place not in run.objective_obs]:
        seen = ", ".join(map(str, run.objective_obs))
        raise UserError(f"--goal {text}: the features of this run see numbers {seen} (--objective-obs), not {other[0]}")
    goal = np.full(run.env.obs_dim, np.nan, np.float32)
    goal[list(places)] = numbers
    return goal


def to_goal(numbers: Any, pretraining: Pretraining, said: str = "") -> Goal:
    """A goal from as many numbers as an observation has, or as the features of the run see of it; `said` is what an
    error begins with."""
    run = pretraining.run
    numbers = np.asarray(numbers, np.float32)
    said = said or f"a goal of shape {numbers.shape}"
    places = run.objective_obs if run.objective_obs and numbers.shape == (len(run.objective_obs),) else None
    if numbers.shape != (run.env.obs_dim,) and places is None:
        seen = f", the features see {len(run.objective_obs)} of them" if run.objective_obs else ""
        raise UserError(f"{said}: an observation of {pretraining.env} has {run.env.obs_dim} numbers{seen}")
    if np.isinf(numbers).any() or np.isnan(numbers).all():
        raise UserError(f"{said}: its numbers must be finite, or NaN where they stay as they are")
    goal = np.full(run.env.obs_dim, np.nan, np.float32)
    goal[list(places) if places is not None else slice(None)] = numbers
    return goal


def check_inside(env: str, goals: Float32[np.ndarray, "goals obs"], names: Sequence[str]) -> None:
    """Raises on places that a maze does not have."""
    if env not in maze.names():
        return
    plan = maze.geometry(env)
    for goal, name in zip(goals, names, strict=True):
        if np.isfinite(goal).all() and plan.locate(goal.astype(np.float64)) < 0:
            x_low, x_high, y_low, y_high = plan.bounds
            spans = f"x {x_low:g} to {x_high:g}, y {y_low:g} to {y_high:g}"
            raise UserError(
                f"--goal {name}: {env} has no such place; it lies within {spans} (a picture: becl envs --out)"
            )


# --- The work ---------------------------------------------------------------------------------------------------------


def towards(pretraining: Pretraining, folder: Path, seed: int, snapshot: int) -> Turning:
    """The policy of a seed that turns its skill towards goals."""
    learner, objective = load_snapshot(pretraining, snapshot_path(folder, seed, snapshot))
    found = leading(pretraining.run.objective, objective)
    assert found is not None
    return Turning(learner, found[1], pretraining.run, found[0])


def reach(options: ReachOptions) -> Reached:
    """Does what a command asks for: says it, plays, writes, shows."""
    request = resolve(options)
    goals, episodes = counted(len(request.goals), "goal"), counted(request.episodes, "episode")
    announce(request.pretraining, request.snapshot, request.out, goals, episodes)
    reached = play(request)
    request.out.mkdir(parents=True, exist_ok=True)
    write_text(request.out / f"reach-{request.snapshot}.csv", table_text(reached.rows))
    show(request, reached)
    return reached


def play(request: Journey) -> Reached:
    """Every goal from the same starts, and every skill held; seed after seed."""
    pretraining = request.pretraining
    policies = [towards(pretraining, request.folder, seed, request.snapshot) for seed in request.seeds]
    held = skills_of(pretraining.run.objective.skills)
    length = request.steps or pretraining.run.env.episode_length
    scene = sets_of(tasks_of(pretraining.env) or [""])[0]
    tasks = [task for task in scene if task]
    rows, states = [], []

    with progress((len(request.goals) + len(held)) * request.episodes * length * len(policies), "steps") as bar:

        def episodes(policy: Any, behind: np.ndarray) -> Episodes:
            return rollout(
                policy, pretraining.env, behind, request.episodes, tasks=tasks, episode_length=length,
                advance=bar.advance,
            )  # fmt: skip

        for seed, policy in zip(request.seeds, policies, strict=True):
            bar.note = f"seed {seed}"
            turned, still = episodes(policy, request.goals).obs, episodes(policy.learner.actor, held).obs
            states.append(turned)
            for goal, name, own in zip(request.goals, request.names, turned, strict=True):
                rows.append({"seed": seed, "goal": name, **row_of(goal, own, still, request.within)})
    return Reached(rows, np.stack(states), request)


def row_of(
    goal: Goal,
    turned: Float[np.ndarray, "episodes states obs"],
    held: Float[np.ndarray, "skills episodes states obs"],
    within: float | None,
) -> Row:
    """Distances to a goal, in the numbers that it names: means over episodes."""
    own, other = distances(goal, turned), distances(goal, held)
    closest, final = other.min(-1).mean(-1), other[..., -1].mean(-1)  # Of every skill.
    row: Row = {
        "start": float(own[:, 0].mean()),
        "closest": float(own.min(-1).mean()),
        "final": float(own[:, -1].mean()),
        "held_closest": float(closest.mean()),
        "held_final": float(final.mean()),
        "best_held_closest": float(closest.min()),
        "best_held_final": float(final.min()),
    }
    return row if within is None else row | {"reached": float((own.min(-1) <= within).mean())}


def distances(goal: Goal, obs: Float[np.ndarray, "*batch obs"]) -> Float[np.ndarray, "*batch"]:
    """Euclidean, in the numbers that the goal names."""
    named = ~np.isnan(goal)
    return np.linalg.norm(obs[..., named].astype(np.float64) - goal[named], axis=-1)


def show(request: Journey, reached: Reached) -> None:
    """The table, and what it says."""
    columns = ["seed", "goal", "start", "closest", "end", "any skill held", "best skill held"]
    names = ["start", "closest", "final", "held_closest", "best_held_closest"]
    columns += ["reached"] if request.within is not None else []
    lines = []
    for row in reached.rows:
        line = [str(row["seed"]), row["goal"], *(readable(row[name]) for name in names)]
        lines.append([*line, f"{row['reached']:.0%}"] if request.within is not None else line)
    console().print(table("distance to the goal; of skills that are held, the closest", columns, lines))
    print(f"table: {request.out}/reach-{request.snapshot}.csv")
    print(verdict(reached.rows))


def verdict(rows: Sequence[Row]) -> str:
    """Whether turning the skill comes nearer than holding one."""
    own, held, best, start = (
        float(np.mean([row[name] for row in rows]))
        for name in ("closest", "held_closest", "best_held_closest", "start")
    )
    said = f"closest on average: {readable(own)}, from {readable(start)}; skills that are held {readable(held)}"
    if own < best:
        return f"turning the skill comes nearer than holding any one of them ({said}, the best {readable(best)})"
    if own < held:
        return f"turning the skill comes nearer than holding one does on average ({said}), not than the best"
    return f"turning the skill comes no nearer than holding one does on average ({said})"

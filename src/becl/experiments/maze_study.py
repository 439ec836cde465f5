"""The paper's maze study: which runs it takes, and what is kept of each.

A study is a list of labelled runs (method, maze, number of skills, …), each trained with several seeds. It lives in a
folder of plain files:

    config.json              what was asked for; the folder takes no other configuration
    <label>/seed-<n>.csv     learning curve
    <label>/seed-<n>.json    what was measured at the end
    <label>/seed-<n>.npz     trajectories of every skill, and the MINE curve where asked for
    <label>/seed-<n>.safetensors    networks of policy, value and objective
    summary.csv, summary.json, figures as PNG and SVG

A seed counts as finished when its JSON is there, which is written last. Typing the same command again goes on with the
seeds that are missing.
"""

import contextlib
import dataclasses
import functools
import io
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from becl.envs import maze
from becl.errors import UserError, unknown
from becl.experiments.settings import (
    Given,
    Setting,
    change,
    check_least,
    check_once,
    check_positive,
    check_seeds,
    settings_of,
)
from becl.learning.onpolicy import OnPolicy
from becl.learning.ppo import PPO
from becl.nn.adam import Adam
from becl.nn.networks import Network
from becl.objectives import METHODS, MazeStudy, kinds_of
from becl.objectives.registry import STUDIED
from becl.options import MazeOptions
from becl.runs.arrays import named_arrays, place_arrays
from becl.runs.checkpoint import Checkpoints
from becl.runs.folder import read_config, to_csv, write_bytes, write_text
from becl.runs.progress import say
from becl.skills import OneHot
from becl.specs import check_numbers, from_dict, to_dict

CHECKPOINT_CYCLES = 100  # A few seconds.
CHUNK = 25  # Cycles between two reports of progress; also the resolution of learning curves.
REPEATS = 5  # Metrics are averaged over this many independent sets of trajectories.
PATHS = 20  # Trajectories a skill in a set, as in the paper's figures.
STUDIES = ("comparison", "estimates", "temperature", "skills")
TEMPERATURES = (1.0, 0.5, 0.1, 0.01)
SKILL_COUNTS = (10, 15, 20, 30)
DEMO_CYCLES = 800
PAPER_CYCLES = 2500
DEFAULT_METHODS = {
    "demo": ("becl", "diayn"),
    "comparison": ("becl", "diayn", "dads", "cic"),
    "estimates": ("becl", "diayn", "dads", "cic"),
    "temperature": ("becl",),
    "skills": ("becl", "diayn", "dads"),
}
EXAMPLE = "[METHOD:]OPTION=VALUE, for example becl:temperature=0.2"
WIDE = 5  # Inputs are whitened in mazes wider than this many cells, as the maze study does in the tree.


@dataclass(frozen=True)
class Study:
    """A resolved study."""

    kind: str
    runs: dict[str, OnPolicy]
    seeds: tuple[int, ...]
    cycles: int
    mine_iterations: int = 0

    def config(self) -> dict[str, Any]:
        """What must agree for two commands to share a folder. Seeds may be added later, so they are not part."""
        config: dict[str, Any] = {"study": self.kind, "cycles": self.cycles, "mine_iterations": self.mine_iterations}
        return config | {"runs": {label: to_dict(run) for label, run in self.runs.items()}}


def load_study(out: Path) -> Study:
    """The study that a folder holds, with all seeds that were ever asked for."""
    config = read_config(out)
    parts = (OnPolicy, PPO, maze.Maze, Network, Adam, OneHot)
    specs = (one for method in METHODS.values() for one in (method.objective, method.maze and method.maze.objective))
    kinds = [kind for one in specs for kind in kinds_of(one)]
    classes = {kind.__name__: kind for kind in (*parts, *kinds)}
    try:
        runs = {label: from_dict(run, classes) for label, run in config["runs"].items()}
        seeds = tuple(int(seed) for seed in json.loads((out / "seeds.json").read_text()))
        return Study(config["study"], runs, seeds, config["cycles"], config["mine_iterations"])
    except OSError as error:
        raise UserError(f"{out}: seeds.json: {error.strerror}") from None
    except UserError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        raise UserError(f"{out} holds no run that can be resumed") from None


def note_seeds(study: Study, out: Path) -> None:
    """Remembers which seeds were asked for, so that the study can be resumed without saying them again."""
    path = out / "seeds.json"
    known: list[int] = []
    with contextlib.suppress(OSError, ValueError, TypeError):
        known = [int(seed) for seed in json.loads(path.read_text())]
    write_text(path, json.dumps(sorted({*known, *study.seeds})) + "\n")


def maze_settings(method: str) -> MazeStudy:
    """A method's settings in the maze study, or what is wrong with its name."""
    if method not in STUDIED and method in METHODS:
        raise UserError(
            f"{method} is not part of the maze study: becl pretrain square_a --method {method} trains it there"
        )
    if method not in STUDIED:
        raise unknown("method", method, STUDIED)
    return STUDIED[method]


def make_run(method: str, maze_name: str, skills: int, settings: Given = ()) -> OnPolicy:
    """A method with the maze study's sizes, changed by settings `[METHOD:]PATH=VALUE`."""
    run = sized_run(method, maze_name, skills)
    for setting in settings_of(settings, EXAMPLE):
        run = apply_setting(run, method, setting)
    if "episode_length" in {field.name for field in dataclasses.fields(run.objective)}:  # type: ignore[arg-type]
        objective = dataclasses.replace(run.objective, episode_length=run.env.episode_length)  # type: ignore[type-var]
        run = dataclasses.replace(run, objective=objective)
    return run


def sized_run(method: str, maze_name: str, skills: int) -> OnPolicy:
    """A method with the maze study's sizes."""
    entry = maze_settings(method)
    if maze_name not in maze.names():
        raise unknown("maze", maze_name, maze.names())
    if skills < 2:
        raise UserError(f"--skills {skills}: at least 2 skills are needed to tell them apart")
    bounds = maze.geometry(maze_name).bounds
    wide = max(bounds[1] - bounds[0], bounds[3] - bounds[2]) > WIDE
    network = Network((128, 128), "uniform", normalize=wide)
    sizes = {
        "skills": OneHot(skills),
        "network": network,
        "optimizer": Adam(1e-3, 1e-3, corrected=False),
        "feature_dim": skills,
        "head": None,
    }
    objective: Any = entry.objective or METHODS[method].objective
    known = {field.name for field in dataclasses.fields(objective)}
    return OnPolicy(
        maze.Maze(maze_name, leak=entry.as_released),
        dataclasses.replace(objective, **{name: value for name, value in sizes.items() if name in known}),
        PPO(
            network=network,
            entropy_weight=entry.entropy_weight,
            concatenate=entry.as_released,
            optimizer=Adam(entry.learning_rate, 1e-3, corrected=False),
        ),
        # Two trajectories of each skill at least: one to compare the other with.
        episodes=max(50, 2 * skills),
        fit_epochs=entry.fit_epochs,
        balanced=not entry.as_released,
    )


def apply_setting(run: OnPolicy, method: str, setting: Setting) -> OnPolicy:
    """A run with one option changed that has no flag of its own; one of another method's is of no concern."""
    target, colon, path = setting.path.partition(":")
    own = setting._replace(path=path) if colon else setting
    if colon:
        maze_settings(target)
        if target != method:
            return run
    if own.path in ("env.name", "skills.dim", "objective.skills.dim"):
        raise UserError(f"--set {setting}: use {'--maze' if own.path == 'env.name' else '--skills'}")
    known = {field.name for part in (run, run.objective) for field in dataclasses.fields(part)}  # type: ignore
    if own.first not in known and not colon:
        others = [n for n, entry in STUDIED.items() if hasattr(entry.objective or METHODS[n].objective, own.first)]
        if others:
            example = f"name the method, for example {others[0]}:{setting}"
            raise UserError(f"--set {setting}: {method} has no {own.first}; {example}")
    return change(run, own)


def check(run: OnPolicy) -> None:
    """Refuses values that no run can use."""
    positive = {
        "temperature": getattr(run.objective, "temperature", 1.0),
        "stddev": getattr(run.objective, "stddev", 1.0),
        "feature_dim": getattr(run.objective, "feature_dim", 1),
        "neighbours": getattr(run.objective, "neighbours", 1),
        "env.episode_length": run.env.episode_length,
        "episodes": run.episodes,
        "fit_minibatches": run.fit_minibatches,
        "fit_epochs": run.fit_epochs,
        "learner.epochs": run.learner.epochs,
        "learner.minibatches": run.learner.minibatches,
        "learner.optimizer.learning_rate": run.learner.optimizer.learning_rate,
        "network.hidden": min(getattr(run.objective, "network", run.learner.network).hidden, default=1),
        "learner.network.hidden": min(run.learner.network.hidden, default=1),
    }
    check_positive(positive)
    transitions = run.episodes * run.env.episode_length
    for name in ("fit_minibatches", "learner.minibatches"):
        if positive[name] > transitions:
            raise UserError(f"{name} {positive[name]}: there are only {transitions} transitions in a collection")
    for name in ("discount", "gae_lambda"):
        if not 0 <= getattr(run.learner, name) <= 1:
            raise UserError(f"learner.{name} {getattr(run.learner, name):g}: must lie in [0, 1]")
    check_numbers(run)


def make_study(options: MazeOptions) -> Study:
    """The runs of one of the paper's maze figures, validated."""
    if options.study not in STUDIES:
        raise unknown("study", options.study, STUDIES)
    if options.demo and options.study != "comparison":
        raise UserError(f"--demo is a comparison: leave out --study {options.study}")
    methods = options.methods or DEFAULT_METHODS["demo" if options.demo else options.study]
    cycles = options.cycles if options.cycles is not None else DEMO_CYCLES if options.demo else PAPER_CYCLES
    check_least("--cycles", cycles)
    check_seeds(options.seeds)
    check_once("--methods", methods)
    for name in methods:
        maze_settings(name)
    check_temperature(options, methods)
    settings = list(settings_of(options.set, EXAMPLE))
    for setting in settings:
        target, colon, _ = setting.path.partition(":")
        if colon and target in STUDIED and target not in methods:
            raise UserError(f"--set {setting}: {target} is not among --methods {' '.join(methods)}")
    check_least("--mine-iterations", options.mine_iterations)
    check_least("--workers", options.workers)
    runs = study_runs(options, methods, settings)
    mine_iterations = options.mine_iterations if options.study == "estimates" else 0
    return Study(options.study, runs, tuple(options.seeds), cycles, mine_iterations)


def check_temperature(options: MazeOptions, methods: Sequence[str]) -> None:
    """Refuses a temperature that none of the methods can use."""
    if options.temperature is None:
        return
    if not 0 < options.temperature < float("inf"):
        raise UserError(f"--temperature {options.temperature:g}: must be greater than 0 and finite")
    if options.study == "temperature":
        raise UserError("--temperature: the temperature study has its own, 1, 0.5, 0.1 and 0.01")
    if not any(name.startswith("becl") for name in methods):
        raise UserError("--temperature is BeCL's: there is no BeCL among --methods")


def study_runs(options: MazeOptions, methods: Sequence[str], settings: Sequence[Setting]) -> dict[str, OnPolicy]:
    """The runs of a study by their labels."""
    maze_name = options.maze
    if maze_name is None:
        maze_name = "square_tree" if options.study == "skills" else "square_a"
    if options.temperature is not None:
        becl = (name for name in methods if name.startswith("becl"))
        settings = [*settings, *(Setting(f"{name}:temperature", options.temperature) for name in becl)]

    def run(method: str, skills: int | None = options.skills, extra: Sequence[Setting] = ()) -> OnPolicy:
        found = make_run(method, maze_name, 10 if skills is None else skills, [*settings, *extra])
        check(found)
        return found

    if options.study == "skills":
        counts = SKILL_COUNTS if options.skills is None else (options.skills,)
        return {f"{method}-{count}-skills": run(method, count) for method in methods for count in counts}
    if options.study == "temperature":
        return {
            f"{method}-temperature-{value:g}": run(method, extra=[Setting("temperature", value)])
            for method in methods
            for value in TEMPERATURES
        }
    return {method: run(method) for method in methods}


def seed_path(out: Path, label: str, seed: int, suffix: str) -> Path:
    return out / label / f"seed-{seed}.{suffix}"


def unfinished(study: Study, out: Path) -> list[tuple[str, int]]:
    """Runs still to do."""
    return [
        (label, seed)
        for label in study.runs
        for seed in study.seeds
        if not seed_path(out, label, seed, "json").exists()
    ]


def train_seeds(
    study: Study, label: str, seeds: Sequence[int], out: Path, report: Callable[[int], None] = lambda cycles: None
) -> None:
    """Trains some seeds of one run together and writes what is kept of each. `report` gets cycles done per seed."""
    import jax
    import jax.numpy as jnp

    run = study.runs[label]
    batched = len(seeds) > 1
    keys = jnp.stack([jax.random.key(seed) for seed in seeds]) if batched else jax.random.key(seeds[0])
    began = time.perf_counter()
    compiled = programs(run, batched)
    (out / label).mkdir(exist_ok=True)
    checkpoints = seed_checkpoints(study, label, seeds, out)
    state, curves, done, spent = restore(checkpoints, jax.eval_shape(compiled.init, keys), say)
    began -= spent
    if state is None:
        state = compiled.init(keys)
    elif done:
        report(done)
    first, compile_time = done, 0.0
    while done < study.cycles:
        chunk = min(CHUNK, study.cycles - done)
        chunk_began = time.perf_counter()
        state, metrics = compiled.advance(state, chunk)
        curves.append({name: np.asarray(value) for name, value in metrics.items()})
        if done == first:
            compile_time = time.perf_counter() - chunk_began
        done += chunk
        for name, value in curves[-1].items():
            if not np.all(np.isfinite(value)):
                raise FloatingPointError(f"{name} is no longer finite after {done} cycles")
        report(chunk)
        if done < study.cycles and done % CHECKPOINT_CYCLES == 0:
            save(checkpoints, state, curves, done, time.perf_counter() - began)
    seconds = time.perf_counter() - began
    for index, seed in enumerate(seeds):
        pick = (lambda x, index=index: x[index]) if batched else (lambda x: x)
        learning = [{name: float(pick(value)) for name, value in row.items()} for row in curves]
        final = jax.tree.map(pick, state)
        timing = {"seconds": seconds, "first_chunk_seconds": compile_time, "seeds_together": len(seeds)}
        _keep(study, label, seed, final, learning, timing, out)
    checkpoints.clear()


def seed_checkpoints(study: Study, label: str, seeds: Sequence[int], out: Path) -> Checkpoints:
    """Where seeds that are trained together are kept while they are."""
    identity = {"run": to_dict(study.runs[label]), "seeds": list(seeds), "cycles": study.cycles}
    name = f"seed-{seeds[0]}" if len(seeds) == 1 else f"seeds-{seeds[0]}-and-{len(seeds) - 1}"
    return Checkpoints(out / label / f"{name}.checkpoint", identity)


def save(checkpoints: Checkpoints, state: Any, curves: list[dict[str, np.ndarray]], done: int, spent: float) -> None:
    """A full disk is no reason to stop: there is the checkpoint before."""
    arrays = {f"state.{name}": np.array(array) for name, array in named_arrays(state).items()}
    arrays |= {f"curves.{name}": np.stack([row[name] for row in curves]) for name in curves[0]}
    try:
        checkpoints.save(done, arrays, {"seconds": spent, "columns": list(curves[0])}, None, [])
    except OSError as error:
        say(f"checkpoint after {done} cycles could not be written ({error.strerror}); training goes on")


def restore(checkpoints: Checkpoints, like: Any, say: Callable[[str], None]) -> tuple[Any, list, int, float]:
    """State, curves, cycles done and seconds spent; None and nothing where a run begins."""
    import jax

    size = sum(leaf.size * 8 for leaf in jax.tree.leaves(like))
    found = checkpoints.load(2 * size + 100_000_000, say)
    if found is None:
        return None, [], 0, 0.0
    groups: dict[str, dict[str, np.ndarray]] = {"state": {}, "curves": {}}
    for name, array in found.arrays.items():
        group, _, rest = name.partition(".")
        groups.setdefault(group, {})[rest] = array
    state = place_arrays(groups["state"], like, checkpoints.folder)
    columns = {name: groups["curves"][name] for name in found.about["columns"]}
    curves = [dict(zip(columns, map(np.asarray, row), strict=True)) for row in zip(*columns.values(), strict=True)]
    return state, curves, found.step, float(found.about["seconds"])


class Programs(NamedTuple):
    """The jitted parts of a run."""

    init: Callable
    advance: Callable
    paths: Callable


@functools.cache
def programs(run: OnPolicy, batched: bool) -> Programs:
    """Compiled once a process, so that further seeds of the same run start at once."""
    import jax
    import jax.numpy as jnp

    def advance(state, cycles: int):
        state, metrics = run.run(state, cycles)
        return state, jax.tree.map(jnp.mean, metrics)

    def over_seeds(state, cycles: int):
        return jax.vmap(lambda one: advance(one, cycles))(state) if batched else advance(state, cycles)

    return Programs(
        jax.jit(jax.vmap(run.init) if batched else run.init),
        jax.jit(over_seeds, static_argnums=1, donate_argnums=0),
        jax.jit(run.paths, static_argnums=2),
    )


def _keep(study, label, seed, state, learning, timing, out: Path) -> None:
    """Measures a trained run and writes its files, the JSON last."""
    import equinox as eqx
    import jax
    import safetensors.numpy

    from becl.nn.adam import without_optimizers

    run = study.runs[label]
    rows = [
        {"cycle": min((number + 1) * CHUNK, study.cycles), **{k: f"{v:.6g}" for k, v in row.items()}}
        for number, row in enumerate(learning)
    ]
    write_text(seed_path(out, label, seed, "csv"), to_csv(rows))
    measured, arrays = measure(run, state.learner, seed, study.mine_iterations)
    networks = {"learner": state.learner.networks, "objective": without_optimizers(state.objective)}
    weights = named_arrays(eqx.filter(networks, eqx.is_inexact_array))
    write_bytes(seed_path(out, label, seed, "safetensors"), safetensors.numpy.save(weights))
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    write_bytes(seed_path(out, label, seed, "npz"), buffer.getvalue())
    result = {
        "label": label,
        "seed": seed,
        "cycles": study.cycles,
        **measured,
        **timing,
        "device": str(jax.devices()[0].device_kind),
        "jax": jax.__version__,
        "python": platform.python_version(),
    }
    write_text(seed_path(out, label, seed, "json"), json.dumps(result, indent=1) + "\n")


def measure(run: OnPolicy, learner, seed: int, mine_iterations: int) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Metrics of a trained policy, and the arrays figures are drawn from."""
    import jax
    import jax.numpy as jnp

    from becl.measure.estimators import mine, particle_entropy, smooth
    from becl.measure.maze import maze_metrics

    plan = run.env.geometry
    # Evaluation never shares random numbers with training.
    key = jax.random.fold_in(jax.random.key(seed), 0xE7A1)
    draw = programs(run, batched=False).paths
    start = jnp.asarray(plan.figure_start, jnp.float32)
    sets = [np.asarray(draw(learner, jax.random.fold_in(key, i), PATHS, start)) for i in range(REPEATS)]
    repeats = [maze_metrics(paths, plan) for paths in sets]
    metrics = {name: float(np.mean([one[name] for one in repeats])) for name in repeats[0]}
    arrays = {"paths": sets[0]}

    # The paper's estimators look at whole trajectories from one start drawn at random.
    random_start = run.env.reset(jax.random.fold_in(key, REPEATS)).position
    few = np.asarray(draw(learner, jax.random.fold_in(key, REPEATS + 1), 10, random_start))
    metrics["particle_entropy"] = particle_entropy(trajectory_vectors(few))
    if mine_iterations:
        many = np.asarray(draw(learner, jax.random.fold_in(key, REPEATS + 2), 100, random_start))
        count = len(many)
        labels = np.repeat(np.arange(count), many.shape[1])
        curve = mine(
            trajectory_vectors(many), labels, count, jax.random.fold_in(key, REPEATS + 3), iterations=mine_iterations
        )
        arrays["mine"] = np.asarray(curve, np.float32)
        metrics["mine"] = float(smooth(np.asarray(curve), min(100, mine_iterations))[-1])
    return metrics, arrays


def trajectory_vectors(paths: np.ndarray) -> np.ndarray:
    """Each trajectory as its x-values followed by its y-values."""
    return np.swapaxes(paths, -1, -2).reshape(paths.shape[0] * paths.shape[1], -1)


def finished(study: Study, out: Path) -> dict[str, list[dict[str, Any]]]:
    """What was measured of every finished seed in the folder, by label; labels without any are left out."""

    def read(path: Path) -> dict[str, Any]:
        try:
            row = json.loads(path.read_text())
            if path.name != f"seed-{row['seed']}.json" or row["label"] != path.parent.name:
                raise ValueError("of another seed")
        except (KeyError, TypeError, ValueError, RecursionError):
            raise UserError(f"{path} is damaged; remove it to train this seed again") from None
        return row

    results = {
        label: sorted(map(read, (out / label).glob("seed-*.json")), key=lambda row: row["seed"]) for label in study.runs
    }
    return {label: rows for label, rows in results.items() if rows}


def summarize(results: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Mean and standard deviation over seeds of every number, by label."""
    skip = {"seed", "cycles", "seeds_together"}
    summary: dict[str, dict[str, Any]] = {}
    for label, rows in results.items():
        names = [n for n, v in rows[0].items() if isinstance(v, float) and n not in skip]
        values = {name: np.array([row[name] for row in rows if name in row]) for name in names}
        summary[label] = {"seeds": [row["seed"] for row in rows]} | {
            name: {"mean": float(v.mean()), "std": float(v.std(ddof=1)) if len(v) > 1 else None}
            for name, v in values.items()
        }
    return summary


def write_summary(study: Study, out: Path) -> dict[str, dict[str, Any]]:
    results = finished(study, out)
    summary = summarize(results)
    if results:
        names = list(dict.fromkeys(name for rows in results.values() for row in rows for name in row))
        rows = [{name: row.get(name, "") for name in names} for rows in results.values() for row in rows]
        write_text(out / "summary.csv", to_csv([{k: _short(v) for k, v in row.items()} for row in rows]))
        write_text(out / "summary.json", json.dumps(summary, indent=1) + "\n")
    return summary


def _short(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value

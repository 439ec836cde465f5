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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from becl.envs import maze
from becl.errors import UserError, unknown
from becl.learning.onpolicy import OnPolicy
from becl.learning.ppo import PPO
from becl.nn.adam import Adam
from becl.nn.networks import Network
from becl.objectives import METHODS, MazeStudy, kinds_of
from becl.runs.checkpoint import Checkpoints
from becl.runs.folder import named_arrays, place_arrays, read_config, to_csv, write_bytes, write_text
from becl.runs.progress import say
from becl.skills import OneHot
from becl.specs import check_numbers, from_dict, override, to_dict

CHECKPOINT_CYCLES = 100  # A few seconds.
CHUNK = 25  # Cycles between two reports of progress; also the resolution of learning curves.
REPEATS = 5  # Metrics are averaged over this many independent sets of trajectories.
PATHS = 20  # Trajectories a skill in a set, as in the paper's figures.
STUDIES = ("comparison", "estimates", "temperature", "skills")
TEMPERATURES = (1.0, 0.5, 0.1, 0.01)
SKILL_COUNTS = (10, 15, 20, 30)
STUDIED: dict[str, MazeStudy] = {name: method.maze for name, method in METHODS.items() if method.maze}
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


def make_run(method: str, maze_name: str, skills: int, settings: Iterable[str] = ()) -> OnPolicy:
    """A method with the maze study's sizes, changed by settings `[METHOD:]PATH=VALUE`."""
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
    objective = entry.objective or METHODS[method].objective
    known = {f.name for f in dataclasses.fields(objective)}  # type: ignore[arg-type]
    objective = dataclasses.replace(
        objective,  # type: ignore[type-var]
        **{name: value for name, value in sizes.items() if name in known},
    )
    run = OnPolicy(
        maze.Maze(maze_name, leak=entry.as_released),
        objective,
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
    for setting in settings:
        run = apply_setting(run, method, setting)
    if "episode_length" in known:
        run = dataclasses.replace(
            run,
            objective=dataclasses.replace(run.objective, episode_length=run.env.episode_length),  # type: ignore[type-var]
        )
    return run


def apply_setting(run: OnPolicy, method: str, setting: str) -> OnPolicy:
    """One `[METHOD:]PATH=VALUE`; a path into the objective may leave out `objective.`."""
    path, equals, text = setting.partition("=")
    target, colon, rest = path.partition(":")
    if not equals:
        raise UserError(f"--set {setting!r}: expected [METHOD:]OPTION=VALUE, for example becl:temperature=0.2")
    if colon:
        maze_settings(target)
        if target != method:
            return run
        path = rest
    first = path.partition(".")[0]
    if path in ("env.name", "skills.dim", "objective.skills.dim"):
        raise UserError(f"--set {setting}: use {'--maze' if path == 'env.name' else '--skills'}")
    if first in {f.name for f in dataclasses.fields(run)}:
        return override(run, path, text)
    options = {f.name for f in dataclasses.fields(run.objective)}  # type: ignore[arg-type]
    others = [name for name, made in STUDIED.items() if hasattr(made.objective or METHODS[name].objective, first)]
    if first not in options and others and not colon:
        raise UserError(f"--set {setting}: {method} has no {first}; name the method, for example {others[0]}:{setting}")
    return dataclasses.replace(run, objective=override(run.objective, path, text))


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
    for name, value in positive.items():
        if not 0 < value < float("inf"):
            raise UserError(f"{name} {value:g}: must be greater than 0 and finite")
    transitions = run.episodes * run.env.episode_length
    for name in ("fit_minibatches", "learner.minibatches"):
        if positive[name] > transitions:
            raise UserError(f"{name} {positive[name]}: there are only {transitions} transitions in a collection")
    for name in ("discount", "gae_lambda"):
        if not 0 <= getattr(run.learner, name) <= 1:
            raise UserError(f"learner.{name} {getattr(run.learner, name):g}: must lie in [0, 1]")
    check_numbers(run)


def make_study(
    kind: str,
    methods: Sequence[str],
    maze_name: str | None,
    skills: int | None,
    temperature: float | None,
    seeds: Sequence[int],
    cycles: int,
    settings: Sequence[str] = (),
    mine_iterations: int = 10_000,
) -> Study:
    """The runs of one of the paper's maze figures, validated."""
    if kind not in STUDIES:
        raise unknown("study", kind, STUDIES)
    if cycles < 1:
        raise UserError(f"--cycles {cycles}: at least 1 is needed")
    if not seeds:
        raise UserError("--seeds: at least one is needed")
    if repeated := sorted({seed for seed in seeds if list(seeds).count(seed) > 1}):
        raise UserError(f"--seeds: {', '.join(map(str, repeated))} given more than once")
    if repeated := sorted({name for name in methods if list(methods).count(name) > 1}):
        raise UserError(f"--methods: {', '.join(repeated)} given more than once")
    for name in methods:
        maze_settings(name)
    if temperature is not None:
        if not 0 < temperature < float("inf"):
            raise UserError(f"--temperature {temperature:g}: must be greater than 0 and finite")
        if kind == "temperature":
            raise UserError("--temperature: the temperature study has its own, 1, 0.5, 0.1 and 0.01")
        if not any(name.startswith("becl") for name in methods):
            raise UserError("--temperature is BeCL's: there is no BeCL among --methods")
    for setting in settings:
        if ":" in setting and (target := setting.partition(":")[0]) in STUDIED and target not in methods:
            raise UserError(f"--set {setting}: {target} is not among --methods {' '.join(methods)}")
    if mine_iterations < 1:
        raise UserError(f"--mine-iterations {mine_iterations}: at least 1 is needed")
    if maze_name is None:
        maze_name = "square_tree" if kind == "skills" else "square_a"
    settings = list(settings)
    if temperature is not None:
        settings += [f"{name}:temperature={temperature}" for name in methods if name.startswith("becl")]

    def run(method: str, count: int | None = None, extra: Sequence[str] = ()) -> OnPolicy:
        made = make_run(method, maze_name, 10 if count is None else count, [*settings, *extra])
        check(made)
        return made

    if kind == "skills":
        counts = SKILL_COUNTS if skills is None else (skills,)
        runs = {f"{method}-{count}-skills": run(method, count) for method in methods for count in counts}
    elif kind == "temperature":
        runs = {
            f"{method}-temperature-{value:g}": run(method, skills, [f"temperature={value}"])
            for method in methods
            for value in TEMPERATURES
        }
    else:
        runs = {method: run(method, skills) for method in methods}
    return Study(kind, runs, tuple(seeds), cycles, mine_iterations if kind == "estimates" else 0)


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

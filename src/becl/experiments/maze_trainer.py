"""Trains seeds of the maze study: one program for all that are trained together, a chunk of cycles at a time.

The loop is not that of a session (`becl.runs.session` says why), but its checkpoints and its clock are the same.
"""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from becl.errors import UserError
from becl.experiments.maze_results import keep
from becl.experiments.maze_study import Study
from becl.learning.onpolicy import OnPolicy
from becl.runs.arrays import named_arrays, place_arrays
from becl.runs.checkpoint import Checkpoints
from becl.runs.inside import inside
from becl.runs.progress import say
from becl.runs.recording import fitting, grouped
from becl.runs.session import Clock, checkpoint_due
from becl.specs import to_dict

CHECKPOINT_CYCLES = 100  # A few seconds.
CHUNK = 25  # Cycles between two reports of progress; also the resolution of learning curves.


class Programs(NamedTuple):
    """The jitted parts of a run."""

    init: Callable
    advance: Callable


@functools.cache
def programs(run: OnPolicy, batched: bool) -> Programs:
    """The programs of a run: compiled once per process, so that further seeds start at once."""

    def advance(state, cycles: int):
        state, metrics = run.run(state, cycles)
        return state, jax.tree.map(jnp.mean, metrics)

    def over_seeds(state, cycles: int):
        return jax.vmap(lambda one: advance(one, cycles))(state) if batched else advance(state, cycles)

    init = jax.jit(jax.vmap(run.init) if batched else run.init)
    return Programs(init, jax.jit(over_seeds, static_argnums=1, donate_argnums=0))


class MazeTrainer:
    """Seeds of one run of a study that are trained together, and how far they are."""

    def __init__(self, study: Study, label: str, seeds: Sequence[int], out: Path):
        self.study, self.label, self.seeds, self.out = study, label, seeds, out
        self._batched = len(seeds) > 1
        self._programs = programs(study.runs[label], self._batched)
        self._keys = jnp.stack([jax.random.key(seed) for seed in seeds]) if self._batched else jax.random.key(seeds[0])
        self._checkpoints = seed_checkpoints(study, label, seeds, out)
        self._compiling = 0.0
        """Seconds of the first chunk, which includes compiling."""
        self.curves: list[dict[str, np.ndarray]] = []
        """Metrics of every chunk."""
        self.done = 0
        """Cycles that are done."""
        self.clock = Clock()

    def begin(self) -> None:
        """Continues from the last checkpoint, or starts anew."""
        inside(self.out, self.label).mkdir(exist_ok=True)
        like = jax.eval_shape(self._programs.init, self._keys)
        size = sum(leaf.size * 8 for leaf in jax.tree.leaves(like))
        found = self._checkpoints.load(2 * size + 100_000_000, say)
        if found is None:
            self.state = self._programs.init(self._keys)
            return
        with fitting(self._checkpoints.folder):
            groups = grouped(found.arrays, ("state", "curves"))
            self.state = place_arrays(groups["state"], like, self._checkpoints.folder)
            columns = {name: groups["curves"][name] for name in found.about["columns"]}
            rows = zip(*columns.values(), strict=True)
            self.curves = [dict(zip(columns, map(np.asarray, row), strict=True)) for row in rows]
            self.done, self.clock = found.step, Clock(float(found.about["seconds"]))
            if not 0 < self.done <= self.study.cycles or len(self.curves) != -(-self.done // CHUNK):
                raise UserError(f"{self._checkpoints.folder}: {len(self.curves)} rows do not go with cycle {self.done}")

    def train(self, report: Callable[[int], None]) -> None:
        """Trains for the cycles that are left; `report` gets the number that were done."""
        last = self.study.cycles
        while self.done < last:
            chunk, clock, before = min(CHUNK, last - self.done), Clock(), self.done
            self.state, metrics = self._programs.advance(self.state, chunk)
            self.curves.append({name: np.asarray(value) for name, value in metrics.items()})
            self._compiling = self._compiling or clock.seconds
            self.done += chunk
            for name, value in self.curves[-1].items():
                if not np.all(np.isfinite(value)):
                    raise FloatingPointError(f"{name} is no longer finite after {self.done} cycles")
            report(chunk)
            if checkpoint_due(before, self.done, CHECKPOINT_CYCLES, last):
                self.save()

    def save(self) -> None:
        """Writes a checkpoint. A full disk is no reason to stop, because the previous checkpoint remains."""
        arrays = {f"state.{name}": np.array(array) for name, array in named_arrays(self.state).items()}
        columns = list(self.curves[0])
        arrays |= {f"curves.{name}": np.stack([row[name] for row in self.curves]) for name in columns}
        try:
            about = {"seconds": self.clock.seconds, "columns": columns}
            self._checkpoints.save(self.done, arrays, about, None, [])
        except OSError as error:
            say(f"checkpoint after {self.done} cycles could not be written ({error.strerror}); training continues")

    def finish(self) -> None:
        """Writes the files of every seed."""
        seconds = self.clock.seconds
        together = {"seeds_together": len(self.seeds)}
        timing = {"seconds": seconds, "first_chunk_seconds": self._compiling, **together}
        for index, seed in enumerate(self.seeds):
            pick = (lambda leaf, index=index: leaf[index]) if self._batched else (lambda leaf: leaf)
            curve = [
                {"cycle": min((number + 1) * CHUNK, self.study.cycles)} | {k: float(pick(v)) for k, v in row.items()}
                for number, row in enumerate(self.curves)
            ]
            keep(self.study, self.label, seed, jax.tree.map(pick, self.state), curve, timing, self.out)
        self._checkpoints.clear()


def train_seeds(
    study: Study, label: str, seeds: Sequence[int], out: Path, report: Callable[[int], None] = lambda cycles: None
) -> None:
    """Trains some seeds of one run together and writes the files of each. `report` gets the cycles done per seed."""
    trainer = MazeTrainer(study, label, seeds, out)
    trainer.begin()
    if trainer.done:
        report(trainer.done)
    trainer.train(report)
    trainer.finish()


def seed_checkpoints(study: Study, label: str, seeds: Sequence[int], out: Path) -> Checkpoints:
    """The checkpoints of seeds that are trained together."""
    identity = {"run": to_dict(study.runs[label]), "seeds": list(seeds), "cycles": study.cycles}
    name = f"seed-{seeds[0]}" if len(seeds) == 1 else f"seeds-{seeds[0]}-and-{len(seeds) - 1}"
    return Checkpoints(inside(out, label, f"{name}.checkpoint"), identity)

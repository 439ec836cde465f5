"""How fast a run will be: timed, or estimated where a few steps alone take minutes."""

import contextlib
import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np

from becl.envs.external import is_external
from becl.experiments.environments import make_envs
from becl.experiments.pretraining import Pretraining, seed_keys
from becl.learning.offpolicy import OffPolicy
from becl.learning.training import train
from becl.nn.precision import computing

SIDE = 1024  # Of the matrices whose product is timed.
SMALL = 1e-3  # Seconds that an update takes in which nothing is large.


def trial_of(run: OffPolicy) -> OffPolicy:
    """The same run with a small replay and few random steps, to be timed."""
    few = (run.needed + 2) * max(run.envs, run.steps_per_update)
    replay = dataclasses.replace(run.replay, capacity=max(8 * few, 1000))
    return dataclasses.replace(run, random_steps=few, replay=replay)


def time_loop(pretraining: Pretraining, patience: float = 20.0) -> float:
    """Environment steps per second of all seeds together, measured on this machine with a small replay."""
    run, trial = pretraining.run, trial_of(pretraining.run)
    updates, began = 0, time.perf_counter()
    since, step = began, 0
    count, seeds = run.envs * len(pretraining.seeds), pretraining.seeds
    with contextlib.closing(
        make_envs(pretraining.env, count, seeds, run.vision, pretraining.episode_length)
    ) as environments:
        for now in train(trial, environments, seed_keys(pretraining.seeds), 10**9):
            if now.metrics is None:
                continue
            updates += 1
            late = time.perf_counter() - began > patience
            if step and (late or time.perf_counter() - since > 2.0):
                jax.block_until_ready(now.metrics)
                steps = (now.step - step) * len(pretraining.seeds) * pretraining.unit
                return steps / (time.perf_counter() - since)
            if updates == 3 or (updates == 1 and late):
                # The first ones compile.
                jax.block_until_ready(now.metrics)
                since, step = time.perf_counter(), now.step
    raise AssertionError("the loop has no end")


def estimated_rate(pretraining: Pretraining) -> float:
    """Environment steps per second of all seeds together, from the arithmetic of one update and a short simulation.

    For CPUs, where compiling an update and a few of them take a minute or more. Seeds have the cores in turn.
    """
    run, unit = pretraining.run, pretraining.unit
    updates = run.update_repeats / run.steps_per_update
    learning = updates * (operations(run) / product_rate() + SMALL)
    return unit / (learning + unit * simulation_seconds(pretraining))


def operations(run: OffPolicy) -> float:
    """Floating-point operations of one update of one seed, as it is written: nothing is compiled for that."""
    one = trial_of(dataclasses.replace(run, envs=run.steps_per_update, update_repeats=1))
    state, _ = jax.eval_shape(one.init, jax.random.key(0))

    def learn(state, number):
        with computing(run.precision):
            return one.learn(state, number)

    written = jax.jit(learn).lower(state, jax.ShapeDtypeStruct((), jnp.int32))
    return (written.cost_analysis() or {}).get("flops", 0.0)


def product_rate() -> float:
    """Floating-point operations per second of this machine in products of matrices."""
    matrix = jnp.ones((SIDE, SIDE))
    product = jax.jit(jnp.matmul)
    product(matrix, matrix).block_until_ready()
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        product(matrix, matrix).block_until_ready()
        taken.append(time.perf_counter() - began)
    return 2 * SIDE**3 / min(taken)


def simulation_seconds(pretraining: Pretraining) -> float:
    """Seconds that a step of one environment takes here."""
    run, env = pretraining.run, pretraining.env
    count = 1 if is_external(env) else run.envs
    with contextlib.closing(make_envs(env, count, pretraining.seeds[:1])) as environments:
        environments.reset()
        actions = np.zeros((count, run.env.action_dim), np.float32)
        environments.step(actions)  # The first may compile.
        steps, began = 0, time.perf_counter()
        while steps < 100 and time.perf_counter() - began < 0.5:
            environments.step(actions)
            steps += 1
        return (time.perf_counter() - began) / (steps * count)

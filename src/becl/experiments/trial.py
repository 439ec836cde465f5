"""Times a few steps of a run, to estimate how long the whole run takes."""

import contextlib
import dataclasses
import time

import jax

from becl.experiments.environments import make_envs
from becl.experiments.pretraining import Pretraining, seed_keys
from becl.learning.offpolicy import OffPolicy
from becl.learning.training import train


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

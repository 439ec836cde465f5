"""Evaluation beside the training: policies play whole episodes in simulations of their own."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from becl.experiments.finetuning import Finetuning
from becl.experiments.lanes import begin_again
from becl.learning.choice import ChoosesByState
from becl.learning.offpolicy import RunState
from becl.learning.protocols import Restorable
from becl.learning.training import Diverged, environment_errors
from becl.runs.arrays import named_arrays, place_arrays


class Judge:
    """Evaluates policies in simulations of their own, in a thread beside the training.

    The score of a policy is its mean return over whole episodes without noise, one in each of its simulations. Policies
    run on the CPU, so that the device is left to the training. They run on the device once training is over, and
    whenever they see images, for which a CPU would take too long.
    """

    def __init__(self, finetuning: Finetuning, environments: Restorable, keys: jax.Array, device: Any = None):
        self._unit, self._environments, self._keys = finetuning.unit, environments, keys
        self._device = device or jax.devices(None if finetuning.run.vision else "cpu")[0]
        self._obs: np.ndarray | None = None
        self._thread = ThreadPoolExecutor(1)
        self._stopping = threading.Event()
        self._waiting: list[tuple[int, Any, Future]] = []
        skills, choice = finetuning.run.objective.skills, finetuning.run.choice
        self._by_state = isinstance(choice, ChoosesByState)
        self._act = jax.jit(jax.vmap(finetuning.run.judged))
        self._choose = jax.jit(
            jax.vmap(lambda rule, key, step: choice.best(rule, jax.random.fold_in(key, step), skills), (0, 0, None))
        )

    def submit(self, step: int, state: RunState) -> None:
        """Queues the policies of all lanes, as they are now, for evaluation."""
        skills = np.asarray(self._choose(state.skill, self._keys, np.int32(step)))
        # A copy, because the loop reuses the memory.
        policies = state.learner.actor, state.skill if self._by_state else ()
        policies = jax.tree.map(lambda leaf: np.array(leaf), policies)
        self._waiting.append((step, skills, self._thread.submit(self._evaluate, step, policies, skills)))

    @property
    def idle(self) -> bool:
        """Whether everything that was submitted is done."""
        return all(future.done() for _, _, future in self._waiting)

    def finished(self, wait: bool = False) -> Iterator[tuple[int, Any, Float[np.ndarray, "lanes episodes"]]]:
        """Steps, skills and returns of the evaluations that are done, in order."""
        while self._waiting and (wait or self._waiting[0][2].done()):
            step, skills, returns = self._waiting.pop(0)
            yield step, skills, returns.result()

    def get_state(self) -> dict[str, np.ndarray]:
        """The state of the simulations, once nothing is being evaluated any more."""
        assert not self._waiting
        return named_arrays({"obs": self._obs, "envs": self._environments.get_state()})

    def set_state(self, arrays: dict[str, np.ndarray], source: Path) -> None:
        like = {"obs": self._environments.reset(), "envs": self._environments.get_state()}
        state = place_arrays(arrays, like, source)
        self._obs = state["obs"]
        self._environments.set_state(state["envs"])

    def _evaluate(
        self, step: int, policies: Any, skills: Float[np.ndarray, "lanes skill"]
    ) -> Float[np.ndarray, "lanes episodes"]:
        lanes, episodes = len(skills), self._environments.num_envs // len(skills)
        given = np.broadcast_to(skills[:, None], (lanes, episodes, skills.shape[-1]))
        if self._obs is None:
            self._obs = self._environments.reset()
        total = np.zeros(lanes * episodes)
        over, together = np.zeros(lanes * episodes, bool), True
        (actors, rules), given = jax.device_put((policies, given), self._device)
        for _ in range(self._environments.spec.episode_length):
            if self._stopping.is_set():
                break
            action = np.asarray(
                self._act(actors, rules, self._obs.reshape(lanes, episodes, *self._obs.shape[1:]), given)
            )
            if not np.isfinite(action).all():
                raise Diverged(step // self._unit, np.flatnonzero(~np.isfinite(action).all((1, 2))))
            with environment_errors(step):
                outcome = self._environments.step(action.reshape(lanes * episodes, -1))
            total += np.where(over, 0.0, outcome.reward)
            over |= outcome.truncated
            self._obs = outcome.obs
            together = bool(outcome.truncated.all())
            if over.all():
                break
        if not together:  # Some are in the middle of another episode.
            self._obs = begin_again(self._environments)
        return total.reshape(lanes, episodes)

    def close(self) -> None:
        self._stopping.set()
        self._thread.shutdown(cancel_futures=True)
        self._environments.close()

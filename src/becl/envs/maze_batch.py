"""Many mazes behind the interface of the robots, for learners that step environments from outside."""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from becl.envs.maze import Maze, MazeState
from becl.envs.simulations import Step, shared_seeds


@functools.cache
def programs(maze: Maze, each: int) -> tuple[Callable, Callable]:
    """Begins episodes of `each` copies per key, and takes a step of all; compiled once per process, so that making
    many batches of a maze neither takes long nor memory."""

    def reset(keys, number):
        draw = jax.vmap(lambda key: maze.reset(jax.random.fold_in(key, number), each))
        return jax.tree.map(lambda x: x.reshape(len(keys) * each, *x.shape[2:]), draw(keys))

    def step(keys, number, state, action):
        draw = jax.vmap(lambda key: maze.noise(jax.random.fold_in(key, number), each))
        return maze.step(state, action, draw(keys).reshape(len(keys) * each, 2))

    return jax.jit(reset), jax.jit(step)


class MazeBatch:
    """`num_envs` copies of a maze that begin their episodes together. The mazes have no task: rewards are 0."""

    def __init__(self, maze: Maze, num_envs: int = 1, seed: int | Sequence[int] = 0):
        seeds = shared_seeds(seed, num_envs)
        self.maze, self.num_envs, self.spec = maze, num_envs, maze.spec
        self._each = num_envs // len(seeds)
        self._keys = jnp.stack([jax.random.key(one) for one in seeds])
        self._reset_all, self._step_all = programs(maze, self._each)

    def reset(self) -> Float32[np.ndarray, "n o"]:
        self._number = 0
        self._in_episode = 0
        self._state: MazeState = self._reset_all(self._keys, self._number)
        return np.asarray(self._state.position)

    def get_state(self) -> tuple[np.ndarray, MazeState]:
        """Counters and states, as plain arrays."""
        counters = np.array([self._number, self._in_episode])
        return counters, jax.tree.map(np.asarray, self._state)

    def set_state(self, state: tuple[np.ndarray, MazeState]) -> None:
        """Restores them; what follows is equal bit for bit."""
        self._number, self._in_episode = (int(count) for count in state[0])
        self._state = jax.tree.map(jnp.asarray, state[1])

    def close(self) -> None:
        """Does nothing: there is nothing to close."""

    def step(self, action: np.ndarray) -> Step:
        self._number += 1
        self._in_episode += 1
        self._state = self._step_all(self._keys, self._number, self._state, action)
        next_obs = np.asarray(self._state.position)
        over = self._in_episode >= self.spec.episode_length
        if over:
            self._number += 1
            self._in_episode = 0
            self._state = self._reset_all(self._keys, self._number)
        obs = np.asarray(self._state.position)
        return Step(obs, np.zeros(self.num_envs), np.full(self.num_envs, over), next_obs)

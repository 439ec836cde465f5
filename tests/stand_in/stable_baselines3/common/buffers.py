"""A replay with the methods that subclasses of Stable-Baselines3's override and call."""

from typing import NamedTuple

import numpy as np


class Tensor(np.ndarray):
    """An array that can be asked for itself as a tensor of torch can."""

    def cpu(self):
        return self

    def numpy(self):
        return np.asarray(self)


class ReplayBufferSamples(NamedTuple):
    observations: Tensor
    actions: Tensor
    next_observations: Tensor
    dones: Tensor
    rewards: Tensor
    discounts: Tensor | None = None


class ReplayBuffer:
    def __init__(self, buffer_size, observation_space, action_space, device="auto", n_envs=1):
        self.rows = []

    def add(self, obs, next_obs, action, reward, done):
        self.rows.append((obs, action, next_obs, [done], [reward]))

    def sample(self, batch_size, env=None):
        drawn = np.random.default_rng(len(self.rows)).integers(len(self.rows), size=batch_size)
        parts = zip(*(self.rows[row] for row in drawn), strict=True)
        return ReplayBufferSamples(*(self.to_torch(np.array(part, np.float32)) for part in parts))

    def to_torch(self, array, copy=True):
        return np.array(array).view(Tensor)

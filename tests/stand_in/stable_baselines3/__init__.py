"""What docs/intrinsic.md uses of Stable-Baselines3, where that is not installed: the same calls in the same order.

Nothing is learned. Actions are random, and "tensors" are NumPy arrays with the methods that the page calls.
"""

from stable_baselines3.common.buffers import ReplayBuffer


class SAC:
    """Acts, stores and draws batches as the real one does: one a step, once `learning_starts` steps are over."""

    def __init__(
        self, policy, env, *, replay_buffer_class=ReplayBuffer, learning_starts=100, batch_size=256, verbose=0
    ):
        assert policy == "MlpPolicy"
        self.env, self.learning_starts, self.batch_size = env, learning_starts, batch_size
        self.replay_buffer = replay_buffer_class(1_000_000, env.observation_space, env.action_space)
        self.rewards = []

    def learn(self, total_timesteps):
        space = self.env.action_space
        obs, _ = self.env.reset(seed=0)
        for step in range(total_timesteps):
            action = space.sample()
            next_obs, reward, terminated, truncated, _ = self.env.step(action)
            scaled = 2 * (action - space.low) / (space.high - space.low) - 1
            self.replay_buffer.add(obs, next_obs, scaled, reward, terminated)
            obs = self.env.reset()[0] if terminated or truncated else next_obs
            if step >= self.learning_starts:
                batch = self.replay_buffer.sample(self.batch_size, env=None)
                assert batch.rewards.shape == (self.batch_size, 1)
                self.rewards.append(float(batch.rewards.mean()))
        return self

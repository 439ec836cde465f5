"""What a method needs to know about an environment."""

from typing import NamedTuple


class EnvSpec(NamedTuple):
    obs_dim: int
    action_dim: int
    episode_length: int

"""What a method needs to know about an environment."""

from typing import NamedTuple


class EnvSpec(NamedTuple):
    obs_dim: int
    """Numbers of an observation; of images, features that an encoder makes of one."""
    action_dim: int
    """Numbers of an action; or choices, of which an action is one."""
    episode_length: int
    discrete: bool = False
    """Whether an action is one of several choices. Then it is a one-hot vector, and its index for the environment."""


class Images(NamedTuple):
    """Observations that are images: several frames in a row behind each other on the last axis, oldest first."""

    height: int
    width: int
    channels: int
    """Channels of a frame."""
    stack: int
    """Frames of an observation."""
    kind: str = "uint8"
    """Type of the numbers."""

    @property
    def frame(self) -> tuple[int, int, int]:
        """Shape of a frame."""
        return self.height, self.width, self.channels

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of an observation."""
        return self.height, self.width, self.channels * self.stack

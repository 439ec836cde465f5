"""What an agent saw that learned from images, to be shown beside the usual pictures."""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

from becl import envs
from becl.envs.frames import make_frames
from becl.learning.seeing import Vision
from becl.views.poses import Look, Motion, Tuned


class SeenMoments(NamedTuple):
    """What the agent saw at some moments of an episode of each skill."""

    pictures: UInt8[np.ndarray, "skills moments size size 3"]
    frames: Int[np.ndarray, " moments"]
    """Which frame of the motion each moment is."""

    def at(self, skill: int, frame: int) -> UInt8[np.ndarray, "size size 3"]:
        """The picture of the last moment before a frame, or of the frame itself."""
        return self.pictures[skill, np.searchsorted(self.frames, frame, "right") - 1]


def moments_seen(look: Look | Tuned, motion: Motion, most: int) -> SeenMoments | None:
    """At most so many moments of every skill, evenly spaced; None where there is nothing to draw."""
    frames = np.linspace(0, motion.frames - 1, min(most, motion.frames)).round().astype(int)
    pictures = seen_in(look, motion, range(len(motion.names)), frames.tolist())
    return None if pictures is None else SeenMoments(pictures, frames)


def vision_of(look: Look | Tuned) -> Vision | None:
    return look.finetuning.run.vision if isinstance(look, Tuned) else look.pretraining.run.vision


def seen_in(
    look: Look | Tuned, motion: Motion, skills: Sequence[int], frames: Sequence[int]
) -> UInt8[np.ndarray, "skills frames size size 3"] | None:
    """The newest frame that the policy got at some moments of an episode; None where it got numbers, or images of an
    environment that is not drawn here."""
    vision, name = vision_of(look), look.env.partition("_")[0]
    if vision is None or name not in envs.DOMAINS:
        return None
    poses = motion.poses[np.ix_(list(skills), list(frames))]
    with contextlib.closing(make_frames(envs.DOMAINS[name], vision.size, vision.drawing)) as drawer:
        drawn = np.asarray(drawer.draw(poses.reshape(-1, poses.shape[-1])))
    return drawn.reshape(len(skills), len(frames), *drawn.shape[1:])


def enlarged(picture: UInt8[np.ndarray, "h w 3"], size: int) -> UInt8[np.ndarray, "size size 3"]:
    """A picture in another size, its pixels as they are."""
    rows, columns = (np.arange(size) * side // size for side in picture.shape[:2])
    return picture[rows][:, columns]

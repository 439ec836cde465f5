"""Images in the replay: each frame is kept once, and observations are stacked of frames when they are sampled.

A step keeps the newest frame of its observation. The frames before it are those of the steps before it, as far as these
are of the same episode; where there are too few, the episode's first frame stands in for them, as it does for whoever
acts. What the next step keeps is the newest frame of where this one led to, but for an episode's last step: no step
begins with what it led to, so that these frames are kept apart, those of the latest episodes.
"""

from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Shaped

from becl.envs.spec import EnvSpec, Images

if TYPE_CHECKING:
    from becl.learning.replay import Experience

SHORT = 50
"""Steps of an episode. Where episodes are shorter than this on average, the frames that the oldest ended with are
forgotten before their steps are, and the frame before stands in."""


class Finals(eqx.Module):
    """The frames that episodes ended with."""

    frames: Shaped[Array, "*seeds slots envs height width channels"]
    ended: Int[Array, "*seeds envs"]
    """Episodes that have ended so far."""
    stack: int = eqx.field(static=True)
    """Frames of an observation."""


def init_finals(env: EnvSpec, images: Images, rows: int, envs: int) -> Finals:
    slots = rows // min(env.episode_length, SHORT) + 2
    return Finals(jnp.zeros((slots, envs, *images.frame), images.kind), jnp.zeros(envs, jnp.int32), images.stack)


def split_step(finals: Finals, step: "Experience") -> "tuple[Experience, Finals]":
    """A step as it is kept: its newest frame for `obs`, and for `next_obs` how many episodes had ended before."""
    slots, envs = finals.frames.shape[:2]
    channels = finals.frames.shape[-1]
    slot = jnp.where(step.last, finals.ended % slots, slots)  # Beyond the last one nothing is written.
    frames = finals.frames.at[slot, jnp.arange(envs)].set(step.next_obs[..., -channels:], mode="drop")
    kept = step._replace(obs=step.obs[..., -channels:], next_obs=finals.ended)
    return kept, Finals(frames, finals.ended + step.last, finals.stack)


def stacked(
    steps: "Experience", at: Int[Array, " batch"], column: Int[Array, " batch"], count: int
) -> list[Shaped[Array, "batch height width channels"]]:
    """The last so many frames up to each of some steps, oldest first."""
    rows = steps.last.shape[0]
    places = [at]
    for _ in range(count - 1):
        before = places[-1] - 1
        places.append(jnp.where(began_at(steps, places[-1], column), places[-1], before))
    return [steps.obs[place % rows, column] for place in reversed(places)]


def began_at(steps: "Experience", at: Int[Array, " batch"], column: Int[Array, " batch"]) -> Bool[Array, " batch"]:
    """Whether steps are the first of their episodes."""
    return (at == 0) | steps.last[(at - 1) % steps.last.shape[0], column]


def obs_at(
    steps: "Experience", finals: Finals, at: Int[Array, " batch"], column: Int[Array, " batch"]
) -> Shaped[Array, "batch height width stacked"]:
    """What was seen when steps were taken."""
    return jnp.concatenate(stacked(steps, at, column, finals.stack), -1)


def obs_after(
    steps: "Experience", finals: Finals, at: Int[Array, " batch"], column: Int[Array, " batch"]
) -> Shaped[Array, "batch height width stacked"]:
    """What steps led to; the next one must be there, unless they ended their episode."""
    rows, slots = steps.last.shape[0], len(finals.frames)
    number, last = steps.next_obs[at % rows, column], steps.last[at % rows, column]
    known = number >= finals.ended[column] - slots
    final = jnp.where(spread(known), finals.frames[number % slots, column], steps.obs[at % rows, column])
    newest = jnp.where(spread(last), final, steps.obs[(at + 1) % rows, column])
    before = stacked(steps, at, column, finals.stack - 1) if finals.stack > 1 else []
    return jnp.concatenate([*before, newest], -1)


def spread(flag: Bool[Array, " batch"]) -> Bool[Array, "batch 1 1 1"]:
    return flag[:, None, None, None]

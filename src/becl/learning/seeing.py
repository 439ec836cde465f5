"""Learning from images: an encoder in front of a learner, and who trains it.

The encoder h turns an image into features, and everything behind it is as with numbers: learner and objective see h(s)
for s. What trains h is the loss that is computed on its features anyway,

    objective:  h ← h − Adam(∇ loss of the fit),     through h(s), h(s') or both
    critic:     h ← h − Adam(∇ critic loss),         through h(s); h(s') has no gradient

each with an optimiser of its own, so that neither loss is drowned by the size of the other. `fit` and `update` of
objectives and learners return their loss among their metrics, and the gradient is that of the returned number by the
features it was given: no objective and no learner knows of images. The policy's loss never reaches the encoder.

Each sampled image is moved by a few pixels at random (`random_shift`), s and s' apart; acting moves nothing. As in
URLB there is no target encoder, and all fits of an update see batches of their own. What of an encoder is frozen looks
at each batch once (`look`), and what is trained sees what came of that (`see`) as often as there are losses.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray, Shaped, UInt8

from becl.envs.external import GymBatch
from becl.envs.frames import Frames, make_frames
from becl.envs.pictures import CameraEye, Pictures, ScreenEye
from becl.envs.spec import EnvSpec, Images
from becl.learning.ddpg import DDPG, Actor, DDPGState
from becl.learning.replay import Replay, ReplayState, Transitions
from becl.nn.adam import Adam, AdamState
from becl.nn.frozen import side_of
from becl.nn.pieg import PIEG, FusionNet
from becl.nn.precision import computing
from becl.nn.vision import CNN, COLORS, ConvNet, random_shift
from becl.objectives.protocol import Metrics
from becl.skills import SkillSpace

Trainers = Literal["both", "critic", "objective", "nobody", "released"]
Through = Literal["both", "obs", "next_obs"]
Fit = Callable[[Transitions], tuple[Float[Array, ""], Any]]
"""Fits an objective to transitions: the loss, and whatever else comes of it."""
Encoder = ConvNet | FusionNet
BLOCK = 256  # Images encoded at once where a batch is large.


@dataclass(frozen=True)
class Vision:
    """What is seen, and how one learns to see."""

    size: int = 84
    """Height and width of images, in pixels."""
    stack: int = 3
    """Frames of an observation."""
    repeat: int = 2
    """How often each action is taken; what is seen is where the last one led to."""
    drawing: Literal["rays", "mujoco"] = "rays"
    """What draws robots: rays in JAX, or MuJoCo's renderer, which needs OpenGL."""
    shift: int = 4
    """Pixels that sampled images are moved by at most."""
    trained_by: Trainers = "both"
    """Whose loss trains the encoder; `released`: whoever does in the method's released code."""
    through: Through = "both"
    """Which state of a transition carries the objective's gradient."""
    encoder: CNN | PIEG = CNN()
    optimizer: Adam = Adam()
    """The encoder's, one for each loss that trains it."""

    @property
    def cached(self) -> bool:
        """Whether frames are kept as what a frozen network makes of them, which nothing changes afterwards."""
        return isinstance(self.encoder, PIEG) and self.encoder.statistics == "fixed" and self.shift == 0

    @property
    def images(self) -> Images:
        """Observations as they are kept."""
        if self.cached:
            assert isinstance(self.encoder, PIEG)
            side = side_of(self.size)
            return Images(side, side, self.encoder.channels, self.stack, "float16")
        return Images(self.size, self.size, COLORS, self.stack)

    @property
    def features(self) -> int:
        """Numbers that the encoder makes of an observation."""
        return self.encoder.features(self.size)

    @property
    def by_critic(self) -> bool:
        return self.trained_by in ("both", "critic")

    @property
    def by_objective(self) -> bool:
        return self.trained_by in ("both", "objective")


class Seer(eqx.Module):
    """A policy of images."""

    encoder: Encoder
    actor: Actor

    def __call__(
        self, obs: Shaped[Array, "*batch h w c"], skill: Float[Array, "*batch skill"]
    ) -> Float[Array, "*batch action"]:
        """The mean action."""
        return self.actor(jnp.concatenate([self.encoder(obs), skill], -1))


class SeeingState(NamedTuple):
    encoder: Encoder
    critic_opt: AdamState | tuple[()]
    """The encoder's optimiser for the critic's loss, where that trains it."""
    objective_opt: AdamState | tuple[()]
    inner: DDPGState
    """State of the learner behind the encoder."""

    @property
    def actor(self) -> Seer:
        return Seer(self.encoder, self.inner.actor)


@dataclass(frozen=True)
class Seeing:
    """A learner with an encoder in front."""

    learner: DDPG
    vision: Vision

    def init(self, key: PRNGKeyArray, env: EnvSpec, skills: SkillSpace) -> SeeingState:
        encoder_key, inner_key = jax.random.split(key)
        encoder = self.vision.encoder.init(encoder_key, self.vision.size, self.vision.stack)
        critic_opt, objective_opt = (
            self.vision.optimizer.init(encoder) if trains else ()
            for trains in (self.vision.by_critic, self.vision.by_objective)
        )
        return SeeingState(encoder, critic_opt, objective_opt, self.learner.init(inner_key, env, skills))

    def act(
        self,
        actor: Seer,
        obs: Shaped[Array, "envs h w c"],
        skill: Float[Array, "envs skill"],
        key: PRNGKeyArray,
        random: Bool[Array, ""],
    ) -> Float[Array, "envs action"]:
        return self.learner.act(actor.actor, actor.encoder(obs), skill, key, random)

    def best(
        self, actor: Seer, obs: Shaped[Array, "envs h w c"], skill: Float[Array, "envs skill"]
    ) -> Float[Array, "envs action"]:
        return actor(obs, skill)

    def view(self, state: SeeingState, obs: Shaped[Array, "*batch h w c"]) -> Float[Array, "*batch features"]:
        return state.encoder(obs)

    def begin(self, state: SeeingState) -> SeeingState:
        return state._replace(inner=self.learner.begin(state.inner))

    def end(self, state: SeeingState) -> SeeingState:
        return state._replace(inner=self.learner.end(state.inner))

    def shifted(self, batch: Transitions, key: PRNGKeyArray) -> Transitions:
        """A batch of images, each moved a little."""
        obs_key, next_key = jax.random.split(key)
        obs = random_shift(obs_key, batch.obs, self.vision.shift)
        return batch._replace(obs=obs, next_obs=random_shift(next_key, batch.next_obs, self.vision.shift))

    def looked(self, state: SeeingState, batch: Transitions) -> tuple[SeeingState, Transitions]:
        """A batch of images as what the frozen part of the encoder makes of it, to be learned from."""
        obs, encoder = state.encoder.look(batch.obs, learning=True)
        next_obs, encoder = encoder.look(batch.next_obs, learning=True)
        return state._replace(encoder=encoder), batch._replace(obs=obs, next_obs=next_obs)

    def fit(self, state: SeeingState, batch: Transitions, fit: Fit) -> tuple[SeeingState, Transitions, Any]:
        """Fits an objective to the features of a batch that was looked at and, where the objective trains it, moves the
        encoder too. Gives the features as well: those from before that step, as the released code uses them then."""
        vision = self.vision

        def loss_fn(encoder: Encoder) -> tuple[Float[Array, ""], tuple[Transitions, Any]]:
            obs, next_obs = encoder.see(batch.obs), encoder.see(batch.next_obs)
            given = batch._replace(
                obs=obs if vision.through != "next_obs" else jax.lax.stop_gradient(obs),
                next_obs=next_obs if vision.through != "obs" else jax.lax.stop_gradient(next_obs),
            )
            loss, found = fit(given)
            return loss, (given, found)

        if not vision.by_objective:
            _, (features, found) = loss_fn(state.encoder)
            return state, features, found
        assert isinstance(state.objective_opt, AdamState)
        grads, (features, found) = jax.grad(loss_fn, has_aux=True)(state.encoder)
        encoder, opt = vision.optimizer.update(state.encoder, grads, state.objective_opt)
        return state._replace(encoder=encoder, objective_opt=opt), features, found

    def handed_over(self, looked: Transitions, features: Transitions) -> Transitions:
        """A batch as `update` takes it: features of `fit`, but what that was given where the critic trains on it."""
        return features._replace(obs=looked.obs) if self.vision.by_critic else features

    def update(self, state: SeeingState, batch: Transitions, key: PRNGKeyArray) -> tuple[SeeingState, Metrics]:
        """The learner's update on features and, where the critic trains it, a step of the encoder down its loss."""
        if not self.vision.by_critic:
            inner, metrics = self.learner.update(state.inner, batch, key)
            return state._replace(inner=inner), metrics
        assert isinstance(state.critic_opt, AdamState)

        def loss_fn(encoder: Encoder) -> tuple[Float[Array, ""], tuple[DDPGState, Metrics]]:
            inner, metrics = self.learner.update(state.inner, batch._replace(obs=encoder.see(batch.obs)), key)
            return metrics["critic_loss"], (inner, metrics)

        grads, (inner, metrics) = jax.grad(loss_fn, has_aux=True)(state.encoder)
        encoder, opt = self.vision.optimizer.update(state.encoder, grads, state.critic_opt)
        return state._replace(encoder=encoder, critic_opt=opt, inner=inner), metrics

    def diagnose(self, state: SeeingState, batch: Transitions) -> Metrics:
        return self.learner.diagnose(state.inner, batch._replace(obs=self.view(state, batch.obs)))


class Viewed(NamedTuple):
    """A replay whose images are sampled as features."""

    replay: Replay
    encoder: Encoder

    def sample(self, state: ReplayState, key: PRNGKeyArray, batch: int) -> Transitions:
        images = self.replay.sample(state, key, batch)
        obs, next_obs = (jax.lax.map(self.encoder, part, batch_size=BLOCK) for part in (images.obs, images.next_obs))
        return images._replace(obs=obs, next_obs=next_obs)


class FrozenFrames:
    """Frames as what a frozen network makes of them."""

    def __init__(self, inner: Frames, look: Callable[[Any], Any]):
        self.inner, self.look, self.size = inner, look, inner.size

    def draw(self, qpos: np.ndarray) -> Any:
        return self.look(self.inner.draw(qpos))

    def close(self) -> None:
        self.inner.close()


def frozen_look(encoder: PIEG) -> Callable[[Any], Any]:
    """What a frozen network makes of images, to be kept."""

    def look(images: UInt8[Array, "n h w c"]) -> Float[Array, "n rows columns maps"]:
        with computing("auto"):
            most = float(jnp.finfo(jnp.float16).max)
            return jnp.clip(encoder.maps({}, images)[0], -most, most).astype(jnp.float16)

    return jax.jit(look)


def behind_camera(environments: Any, vision: Vision | None) -> Any:
    """Environments, or several kinds of them together, as images where there is a vision: robots are drawn, and others
    show images of their own."""
    if vision is None:
        return environments
    parts = getattr(environments, "parts", [environments])
    look = frozen_look(vision.encoder) if vision.cached and isinstance(vision.encoder, PIEG) else None
    if isinstance(parts[0], GymBatch):
        return Pictures(
            environments, ScreenEye(vision.size, look or (lambda frames: frames)), vision.images, vision.repeat
        )
    domain = getattr(parts[0].domain, "domain", parts[0].domain)  # It may be watched.
    frames = make_frames(domain, vision.size, vision.drawing)
    if look is not None:
        frames = FrozenFrames(frames, look)
    return Pictures(environments, CameraEye(parts, frames), vision.images, vision.repeat)

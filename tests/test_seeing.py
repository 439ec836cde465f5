"""Learning from images: who trains the encoder, and that all methods do with images what they do with numbers."""

import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_ddpg import naive_layers, naive_policy, naive_values
from test_vision import naive as naive_encoder

from becl import testing
from becl.envs.spec import EnvSpec
from becl.errors import UserError
from becl.learning.choice import Regress
from becl.learning.ddpg import DDPG
from becl.learning.offpolicy import OffPolicy, RunState
from becl.learning.replay import Replay, ReplayState, Transitions
from becl.learning.seeing import Seeing, Vision
from becl.learning.stacks import Finals
from becl.nn.adam import AdamState
from becl.nn.networks import Network
from becl.nn.vision import CNN
from becl.objectives import METHODS, Sum
from becl.objectives.diayn import DIAYN
from becl.objectives.extrinsic import Extrinsic
from becl.objectives.rnd import RND
from becl.objectives.total import fitted_loss
from becl.skills import NoSkill, OneHot

VISION = Vision(size=12, stack=2, shift=1, encoder=CNN(filters=4, layers=2))
SPEC = EnvSpec(VISION.features, action_dim=2, episode_length=7)
LEARNER = DDPG(hidden=16, feature_dim=5)
ENVS = 2


def make_run(objective: Any, **options: Any) -> OffPolicy:
    settings: dict[str, Any] = {"batch": 16, "random_steps": 8, "skill_interval": 4, "replay": Replay(100, nstep=1)}
    settings |= {"learner": LEARNER, "vision": VISION, "envs": ENVS} | options
    if objective.skills.dim and getattr(METHODS["aps"].objective, "skills", None) == objective.skills:
        settings["learner"] = dataclasses.replace(LEARNER, critic_dim=objective.skills.dim)
    return OffPolicy(SPEC, objective, **settings)


def filled(run: OffPolicy, state: RunState, seed: int = 0) -> RunState:
    """With a replay of episodes of noise; its frames are brighter the later they are."""
    random, steps = np.random.default_rng(seed), state.replay.steps
    rows = steps.last.shape[0]
    light = np.arange(rows).reshape(-1, 1, 1, 1, 1) % SPEC.episode_length * 20
    last = np.broadcast_to((np.arange(rows) % SPEC.episode_length == SPEC.episode_length - 1)[:, None], (rows, ENVS))
    skill = run.objective.skills.sample(jax.random.key(seed), rows * ENVS).reshape(steps.skill.shape)
    steps = steps._replace(
        obs=jnp.asarray(light + random.integers(0, 100, steps.obs.shape), jnp.uint8),
        action=jnp.asarray(random.uniform(-1, 1, steps.action.shape), jnp.float32),
        reward=jnp.asarray(random.normal(size=steps.reward.shape), jnp.float32),
        discount=jnp.ones((rows, ENVS)),
        next_obs=jnp.asarray(np.cumsum(last, 0) - last, jnp.int32),
        skill=skill,
        last=jnp.asarray(last),
    )
    finals = state.replay.finals
    assert isinstance(finals, Finals)
    ends = jnp.asarray(last.sum(0), jnp.int32)
    finals = dataclasses.replace(finals, frames=jnp.full_like(finals.frames, 200), ended=ends)
    return state._replace(replay=ReplayState(steps, jnp.array(rows, jnp.int32), finals))


def learned(run: OffPolicy, seed: int = 0) -> tuple[RunState, RunState, Any]:
    """The state of a run with a full replay, the state after a step's updates, and their metrics."""
    state, _ = jax.jit(run.init)(jax.random.key(seed))
    state = filled(run, state, seed)
    return state, *jax.jit(run.learn)(state, jnp.int32(20))


def moved(before: Any, after: Any) -> bool:
    """Whether any number differs."""
    pairs = zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    return any(bool((np.asarray(one) != np.asarray(other)).any()) for one, other in pairs)


def described(state: RunState) -> Any:
    return jax.tree.map(lambda x: (x.shape, x.dtype, getattr(x, "weak_type", False)), state)


SMALL = {name: testing.small(method.objective) for name, method in METHODS.items() if "-" not in name}
SMALL["becl+rnd"] = Sum(SMALL["becl"], SMALL["rnd"], names=["becl", "rnd"])


QUICK = ("becl", "cic", "icm")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in SMALL])
def test_every_method_learns_from_images_and_takes_the_encoder_along(name):
    fits = METHODS[name].fits_per_update if name in METHODS else 1
    run = make_run(SMALL[name], fits_per_update=fits)
    state, after, metrics = learned(run)
    assert moved(state.learner.encoder, after.learner.encoder)
    assert moved(state.learner.inner.actor, after.learner.inner.actor)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after.learner, after.objective, metrics)))
    assert described(state) == described(after)


# --- Who trains the encoder -------------------------------------------------------------------------------------------


def images(seed: int = 0, batch: int = 6, skills: Any = OneHot(3)) -> Transitions:
    random = np.random.default_rng(seed)
    obs, next_obs = (jnp.asarray(random.integers(0, 256, (batch, *VISION.images.shape)), jnp.uint8) for _ in range(2))
    return Transitions(
        obs=obs,
        action=jnp.asarray(random.uniform(-1, 1, (batch, 2)), jnp.float32),
        reward=jnp.asarray(random.normal(size=batch), jnp.float32),
        discount=jnp.full(batch, 0.9),
        next_obs=next_obs,
        skill=skills.sample(jax.random.key(seed), batch),
        trajectory=jnp.arange(batch),
        since=jnp.ones(batch, jnp.int32),
    )


def started(run: OffPolicy) -> tuple[Seeing, RunState]:
    agent = run.agent
    assert isinstance(agent, Seeing)
    return agent, jax.jit(run.init)(jax.random.key(0))[0]


def fitted(run: OffPolicy, state: RunState, batch: Transitions) -> Any:
    """A fit, as `OffPolicy.price_images` has it."""

    def fit(seen: Transitions) -> tuple[Any, Any]:
        after, metrics = run.objective.fit(state.objective, run.as_batch(seen), jax.random.key(1))
        return fitted_loss(run.objective, metrics), (after, metrics)

    agent: Any = run.agent
    return jax.jit(lambda learner: agent.fit(learner, batch, fit))(state.learner)


def slopes(opt: Any, place: tuple[int, ...], layer: int = 0) -> float:
    """Of a weight of the encoder: what its optimiser, which has made one step, has seen."""
    assert isinstance(opt, AdamState)
    return 10 * float(opt.mean.layers[layer].weight[place])  # Its mean is a tenth of the first gradient.


def nudged(encoder: Any, place: tuple[int, ...], by: float) -> Any:
    layers = [types.SimpleNamespace(weight=np.array(one.weight, float), bias=one.bias) for one in encoder.layers]
    layers[0].weight[place] += by
    return types.SimpleNamespace(layers=layers)


def encoded(encoder: Any, obs: Any) -> np.ndarray:
    return np.stack([naive_encoder(encoder, image) for image in np.asarray(obs)])


PLACES = [(0, 1), (17, 0), (30, 3), (53, 2)]
NO_SHIFT = dataclasses.replace(VISION, shift=0)


def test_the_objective_trains_the_encoder_down_its_loss():
    """By differences of the loss, written out in float64 from the images on."""
    run = make_run(DIAYN(OneHot(3), Network((8,))), vision=NO_SHIFT)
    _, state = started(run)
    batch = images()
    after, features, (objective, metrics) = fitted(run, state, batch)
    first, last = state.objective.classifier.layers

    def loss(encoder: Any) -> float:
        logits = naive_layers((first.weight, first.bias), (last.weight, last.bias), encoded(encoder, batch.next_obs))
        logits -= logits.max(1, keepdims=True)
        likelihood = logits - np.log(np.exp(logits).sum(1, keepdims=True))
        return float(-(likelihood * np.asarray(batch.skill)).sum(1).mean())

    old = state.learner.encoder
    assert float(metrics["loss"]) == pytest.approx(loss(nudged(old, PLACES[0], 0.0)), rel=1e-4)
    for place in PLACES:
        slope = (loss(nudged(old, place, 1e-4)) - loss(nudged(old, place, -1e-4))) / 2e-4
        assert slopes(after.objective_opt, place) == pytest.approx(slope, rel=1e-2, abs=1e-5)
    assert moved(state.learner.encoder, after.encoder)
    assert not moved(state.learner.critic_opt, after.critic_opt)
    assert moved(state.objective, objective)
    np.testing.assert_allclose(features.next_obs, old(batch.next_obs), atol=1e-6)  # From before the step.


def test_the_critic_trains_the_encoder_down_its_loss_and_the_policy_does_not():
    run = make_run(Extrinsic(NoSkill()), vision=NO_SHIFT, learner=dataclasses.replace(LEARNER, stddev=0.0))
    agent, state = started(run)
    batch = images(skills=NoSkill())
    old, inner = state.learner.encoder, state.learner.inner
    given = batch._replace(next_obs=old(batch.next_obs))
    after, metrics = jax.jit(agent.update)(state.learner, given, jax.random.key(1))
    there = encoded(old, batch.next_obs)
    action = np.clip(naive_policy(inner.actor, there), -1 + 1e-6, 1 - 1e-6)
    future = naive_values(inner.target, np.concatenate([there, action], 1)).min(0)
    goal = np.asarray(batch.reward) + 0.9 * future

    def loss(encoder: Any) -> float:
        x = np.concatenate([encoded(encoder, batch.obs), np.asarray(batch.action)], 1)
        return float(((naive_values(inner.critic, x) - goal) ** 2).mean(1).sum())

    assert float(metrics["critic_loss"]) == pytest.approx(loss(nudged(old, PLACES[0], 0.0)), rel=1e-4)
    for place in PLACES:
        slope = (loss(nudged(old, place, 1e-4)) - loss(nudged(old, place, -1e-4))) / 2e-4
        assert slopes(after.critic_opt, place) == pytest.approx(slope, rel=1e-2, abs=1e-5)
    assert not moved(state.learner.objective_opt, after.objective_opt)


@pytest.mark.parametrize(
    ("trained_by", "trains"),
    [("both", (True, True)), ("objective", (True, False)), ("critic", (False, True)), ("nobody", (False, False))],
)
def test_only_those_train_the_encoder_who_are_to(trained_by, trains):
    run = make_run(DIAYN(OneHot(3), Network((8,))), vision=dataclasses.replace(NO_SHIFT, trained_by=trained_by))
    agent, state = started(run)
    batch = images()
    first, features, _ = fitted(run, state, batch)
    handed = agent.handed_over(batch, features)
    updated, _ = jax.jit(agent.update)(first, handed, jax.random.key(0))
    steps = [(state.learner, first), (first, updated)]
    assert tuple(moved(before.encoder, after.encoder) for before, after in steps) == trains
    assert moved(state.learner.inner.critic, updated.inner.critic)
    # Optimisers that nobody uses take no memory.
    assert [opt != () for opt in (state.learner.objective_opt, state.learner.critic_opt)] == [*trains]
    assert handed.obs.dtype == (jnp.uint8 if trains[1] else jnp.float32)
    assert handed.next_obs.dtype == jnp.float32


@pytest.mark.parametrize(("through", "trains"), [("both", True), ("obs", True), ("next_obs", False)])
def test_the_gradient_goes_through_the_states_that_are_named(through, trains):
    """RND looks at s alone."""
    run = make_run(RND(feature_dim=4, network=Network((8,))), vision=dataclasses.replace(NO_SHIFT, through=through))
    _, state = started(run)
    after, *_ = fitted(run, state, images(skills=NoSkill()))
    assert moved(state.learner.encoder, after.encoder) == trains


def test_parts_of_a_sum_that_only_watch_do_not_train_the_encoder():
    diayn, rnd = DIAYN(OneHot(3), Network((8,))), RND(feature_dim=4, network=Network((8,)))
    after = []
    for objective in (diayn, Sum(diayn, rnd, weights=(1, 0)), Sum(diayn, rnd)):
        run = make_run(objective, vision=NO_SHIFT)
        _, state = started(run)
        after.append(fitted(run, state, images())[0].encoder)
    assert not moved(after[0], after[1])
    assert moved(after[0], after[2])


# --- What is seen -----------------------------------------------------------------------------------------------------


def test_policies_see_features_with_the_skill_behind_them():
    agent, state = started(make_run(DIAYN(OneHot(3), Network((8,)))))
    batch = images()
    seer = state.learner.actor
    features = encoded(state.learner.encoder, batch.obs)
    expected = naive_policy(state.learner.inner.actor, np.concatenate([features, np.asarray(batch.skill)], 1))
    np.testing.assert_allclose(seer(batch.obs, batch.skill), expected, atol=1e-5)
    np.testing.assert_allclose(agent.best(seer, batch.obs, batch.skill), expected, atol=1e-5)
    random = agent.act(seer, batch.obs, batch.skill, jax.random.key(0), jnp.array(True))
    assert np.abs(random - expected).mean() > 0.3


def test_both_images_of_a_transition_are_moved_each_in_its_own_way():
    agent, _ = started(make_run(Extrinsic(NoSkill())))
    batch = images(batch=64, skills=NoSkill())
    same = batch._replace(next_obs=batch.obs)
    shifted = agent.shifted(same, jax.random.key(0))
    assert 0.7 < np.mean([(a != b).any() for a, b in zip(shifted.obs, shifted.next_obs, strict=True)]) < 1
    assert moved(batch.obs, shifted.obs)


def test_skills_are_regressed_on_features():
    """APS regresses on what is sampled: features of images, too."""
    run = make_run(Extrinsic(OneHot(3)), choice=Regress(after=0, every=1, batch=600, network=Network((8,))))
    state, after, _ = learned(run)
    assert bool(after.skill.ready)
    assert not bool(state.skill.ready)
    assert np.isfinite(after.skill.skill).all()


def test_numbers_of_an_image_cannot_be_chosen():
    with pytest.raises(UserError, match="objective_obs: observations are images"):
        make_run(Extrinsic(NoSkill()), objective_obs=(0,))
    with pytest.raises(UserError, match=r"replay.capacity 6: too small"):
        make_run(Extrinsic(NoSkill()), replay=Replay(6, nstep=2))

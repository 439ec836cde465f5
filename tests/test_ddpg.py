"""The learner against formulas written out in NumPy, and on problems whose values are known."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from becl.envs.spec import EnvSpec
from becl.learning.ddpg import DDPG, choose, into_range, values
from becl.learning.replay import Transitions
from becl.nn.adam import Adam
from becl.skills import NoSkill, OneHot, SkillSpace, Sphere

ENV = EnvSpec(obs_dim=3, action_dim=2, episode_length=10)
SMALL = DDPG(hidden=16)


def transitions(seed=0, batch=8, skills: SkillSpace = OneHot(4), reward=None, discount=0.97) -> Transitions:
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return Transitions(
        obs=draw(batch, ENV.obs_dim),
        action=jnp.tanh(draw(batch, ENV.action_dim)),
        reward=draw(batch) if reward is None else jnp.full(batch, reward),
        discount=jnp.full(batch, discount),
        next_obs=draw(batch, ENV.obs_dim),
        skill=skills.sample(jax.random.key(seed), batch),
        trajectory=jnp.arange(batch),
        since=jnp.ones(batch, jnp.int32),
    )


def naive_trunk(trunk, x):
    out = x @ np.asarray(trunk.linear.weight, float) + np.asarray(trunk.linear.bias, float)
    mean = out.mean(-1, keepdims=True)
    variance = ((out - mean) ** 2).mean(-1, keepdims=True)
    return np.tanh((out - mean) / np.sqrt(variance + 1e-5) * np.asarray(trunk.gain) + np.asarray(trunk.shift))


def naive_layers(hidden, out, x, deeper=None):
    """Two layers or three, each a weight and a bias."""
    for weight, bias in (hidden, deeper) if deeper else (hidden,):
        x = np.maximum(x @ np.asarray(weight, float) + np.asarray(bias), 0)
    return x @ np.asarray(out[0], float) + np.asarray(out[1])


def naive_policy(actor, x):
    """The mean action."""
    hidden, out, deeper = ((layer.weight, layer.bias) if layer else None for layer in
                           (actor.hidden, actor.out, actor.deeper))  # fmt: skip
    return np.tanh(naive_layers(hidden, out, naive_trunk(actor.trunk, x), deeper))


def naive_values(critic, x):
    """On features of images, actions join behind the trunk."""
    last = -ENV.action_dim if critic.deeper else None
    features = naive_trunk(critic.trunk, x[:, :last])
    if critic.deeper:
        features = np.concatenate([features, x[:, last:]], 1)
    half = critic.hidden.bias.size // 2
    heads = []
    for i, columns in enumerate((slice(half), slice(half, None))):
        hidden = critic.hidden.weight[:, columns], critic.hidden.bias[columns]
        deeper = (critic.deeper.weight[i], critic.deeper.bias[i]) if critic.deeper else None
        heads.append(naive_layers(hidden, (critic.weight[i], critic.bias[i]), features, deeper)[:, 0])
    return np.stack(heads)


def count(tree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


def test_networks_are_urlbs():
    state = DDPG().init(jax.random.key(0), EnvSpec(24, 6, 1000), OneHot(16))
    assert count(state.actor) == 1_099_782
    assert count(state.critic) == 2_151_426
    weight = np.asarray(state.actor.hidden.weight, float)
    np.testing.assert_allclose(weight @ weight.T, np.eye(1024), atol=1e-4)
    heads = np.split(np.asarray(state.critic.hidden.weight, float), 2, axis=1)
    assert not np.allclose(heads[0], heads[1])
    for head in heads:
        np.testing.assert_allclose(head @ head.T, np.eye(1024), atol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, state.critic, state.target)


def test_networks_on_features_of_images_are_urlbs():
    """As its code for pixels has them, layer by layer."""
    spec, skills, width = EnvSpec(39_200, 6, 500), OneHot(16), 1024
    state = jax.eval_shape(lambda: DDPG(feature_dim=50).init(jax.random.key(0), spec, skills))
    trunk = (39_200 + 16) * 50 + 50 + 2 * 50
    second = width * width + width
    assert count(state.actor) == trunk + 50 * width + width + second + width * 6 + 6
    assert count(state.critic) == trunk + 2 * ((50 + 6) * width + width + second + width + 1)
    critic = DDPG(hidden=16, feature_dim=5).init(jax.random.key(0), ENV, skills).critic
    assert critic.deeper is not None
    for head in np.asarray(critic.deeper.weight, float):
        np.testing.assert_allclose(head @ head.T, np.eye(16), atol=1e-5)
    assert not np.allclose(*critic.deeper.weight)


@pytest.mark.parametrize("feature_dim", [0, 5])
def test_losses_are_the_equations(feature_dim):
    learner = DDPG(hidden=16, stddev=0.0, feature_dim=feature_dim)  # No noise: every number can be written down.
    state = learner.init(jax.random.key(0), ENV, OneHot(4))
    state = state._replace(target=learner.init(jax.random.key(5), ENV, OneHot(4)).critic)
    batch = transitions()
    new, metrics = learner.update(state, batch, jax.random.key(1))
    obs, next_obs, skill, action = (
        np.asarray(x, float) for x in (batch.obs, batch.next_obs, batch.skill, batch.action)
    )

    def policy(actor, s):
        return np.clip(naive_policy(actor, np.concatenate([s, skill], 1)), -1 + 1e-6, 1 - 1e-6)

    future = naive_values(state.target, np.concatenate([next_obs, skill, policy(state.actor, next_obs)], 1)).min(0)
    goal = np.asarray(batch.reward) + 0.97 * future
    q = naive_values(state.critic, np.concatenate([obs, skill, action], 1))
    np.testing.assert_allclose(metrics["critic_loss"], ((q - goal) ** 2).mean(1).sum(), rtol=1e-4)
    # The actor is judged by the critic after its step.
    judged = naive_values(new.critic, np.concatenate([obs, skill, policy(state.actor, obs)], 1)).min(0)
    np.testing.assert_allclose(metrics["actor_loss"], -judged.mean(), rtol=1e-4)
    old, step, moved = (np.asarray(c.trunk.linear.weight) for c in (state.target, new.critic, new.target))
    np.testing.assert_allclose(moved, 0.01 * step + 0.99 * old, atol=1e-6)


def test_first_step_of_adam_moves_every_weight_by_the_learning_rate_against_its_slope():
    learner = DDPG(hidden=16, stddev=0.0)
    state = learner.init(jax.random.key(0), ENV, NoSkill())
    batch = transitions(skills=NoSkill())
    new, _ = learner.update(state, batch, jax.random.key(1))
    x = np.concatenate([batch.obs, batch.action], 1)
    there = np.concatenate([batch.next_obs, np.asarray(state.actor(batch.next_obs))], 1)
    goal = np.asarray(batch.reward) + 0.97 * naive_values(state.target, there).min(0)

    def loss(bias):
        moved = eqx.tree_at(lambda critic: critic.bias, state.critic, bias)
        return ((naive_values(moved, x) - goal) ** 2).mean(1).sum()

    bias = np.zeros((2, 1))
    for head in (0, 1):
        shift = np.zeros((2, 1))
        shift[head] = 1e-4
        slope = (loss(bias + shift) - loss(bias - shift)) / 2e-4
        step = float(new.critic.bias[head, 0])
        np.testing.assert_allclose(step, -1e-4 * np.sign(slope), rtol=1e-3)


def test_clamping_keeps_the_value_and_lets_the_gradient_through():
    x = jnp.array([-3.0, -0.5, 2.0])
    np.testing.assert_allclose(into_range(x), [-1 + 1e-6, -0.5, 1 - 1e-6], atol=1e-7)
    np.testing.assert_array_equal(jax.grad(lambda x: into_range(x).sum())(x), np.ones(3))


def test_acting_noise_is_not_clipped_and_random_actions_fill_the_range():
    state = SMALL.init(jax.random.key(0), ENV, NoSkill())
    obs, skill = jnp.zeros((20_000, 3)), jnp.zeros((20_000, 0))
    mean = np.asarray(state.actor(obs[:1])[0])
    noisy = np.asarray(SMALL.act(state.actor, obs, skill, jax.random.key(1), jnp.array(False)))
    inside = np.abs(mean) < 0.3
    np.testing.assert_allclose(noisy.std(0)[inside], 0.2, rtol=0.03)
    assert np.abs(noisy - mean).max() > 0.5
    uniform = np.asarray(SMALL.act(state.actor, obs, skill, jax.random.key(1), jnp.array(True)))
    np.testing.assert_allclose(uniform.std(), 2 / np.sqrt(12), rtol=0.02)


def train(learner, batch_of, steps, skills=NoSkill()):
    state = learner.init(jax.random.key(0), ENV, skills)

    def step(state, key):
        batch_key, update_key = jax.random.split(key)
        return learner.update(state, batch_of(batch_key), update_key)

    return jax.jit(lambda s: jax.lax.scan(step, s, jax.random.split(jax.random.key(1), steps)))(state)


def test_choices_are_drawn_from_a_softmax_with_its_gradient():
    worth, sigma, count = jnp.array([0.3, -0.2, 0.1]), 0.4, 20_000
    keys = jax.random.split(jax.random.key(0), count)
    drawn = np.asarray(jax.vmap(lambda key: choose(worth, sigma, key))(keys))
    assert set(np.unique(drawn)) == {0.0, 1.0}
    odds = np.exp(np.array([0.3, -0.2, 0.1]) / sigma)
    share = odds / odds.sum()
    np.testing.assert_allclose(drawn.mean(0), share, atol=5 * np.sqrt(0.25 / count))

    payoff, key = np.array([1.0, 2.0, 4.0]), keys[7]
    found = jax.grad(lambda worth: choose(worth, sigma, key) @ jnp.asarray(payoff, jnp.float32))(worth)
    noisy = np.asarray(worth, float) / sigma + np.asarray(jax.random.gumbel(key, (3,)), float)
    soft = np.exp(noisy) / np.exp(noisy).sum()
    np.testing.assert_allclose(found, soft * (payoff - soft @ payoff) / sigma, rtol=1e-4)


def test_losses_of_choices_are_the_equations_with_the_choices_drawn():
    """As with numbers: y from the target policy's draw, and the policy's loss at another one."""
    env = ENV._replace(discrete=True)
    learner = DDPG(hidden=16, stddev=0.3)
    state = learner.init(jax.random.key(0), env, OneHot(4))
    batch = transitions()
    batch = batch._replace(action=jax.nn.one_hot(jnp.arange(8) % 2, 2))
    key = jax.random.key(5)
    _, metrics = learner.update(state, batch, key)

    def drawn(inputs, key):
        return np.eye(2)[np.argmax(naive_policy(state.actor, inputs) + 0.3 * np.asarray(gumbel(key, (8, 2))), -1)]

    gumbel = jax.random.gumbel
    target_key, _ = jax.random.split(key)
    here, there = (np.concatenate([obs, batch.skill], 1) for obs in (batch.obs, batch.next_obs))
    following = naive_values(state.target, np.concatenate([there, drawn(there, target_key)], 1)).min(0)
    goal = np.asarray(batch.reward) + 0.97 * following
    q = naive_values(state.critic, np.concatenate([here, batch.action], 1))
    np.testing.assert_allclose(metrics["goal"], goal.mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["critic_loss"], ((q - goal) ** 2).mean(1).sum(), rtol=1e-3)


def test_values_of_a_reward_that_never_changes():
    """Reward 1 and discount ½ are worth 2 everywhere."""
    learner = DDPG(hidden=32, target_rate=0.1, optimizer=Adam(1e-3))

    def batch_of(key):
        return transitions(batch=64, skills=NoSkill(), reward=1.0, discount=0.5)._replace(
            obs=jax.random.normal(key, (64, 3))
        )

    state, _ = train(learner, batch_of, 1500)
    batch = batch_of(jax.random.key(9))
    np.testing.assert_allclose(values(state.critic, batch.obs, batch.action, batch.skill), 2.0, atol=0.3)


def test_the_policy_finds_the_best_action():
    """Without a future, reward −‖a − a*‖²: the policy's action becomes a*."""
    best = jnp.array([0.5, -0.3])
    learner = DDPG(hidden=32, optimizer=Adam(1e-3))

    def batch_of(key):
        obs_key, action_key = jax.random.split(key)
        action = jax.random.uniform(action_key, (64, 2), minval=-1.0)
        reward = -jnp.square(action - best).sum(1)
        batch = transitions(batch=64, skills=NoSkill(), discount=0.0)
        return batch._replace(obs=jax.random.normal(obs_key, (64, 3)), action=action, reward=reward)

    state, _ = train(learner, batch_of, 3000)
    np.testing.assert_allclose(state.actor(batch_of(jax.random.key(9)).obs).mean(0), best, atol=0.1)


def test_successor_features_are_weighed_by_the_skill():
    learner = DDPG(hidden=16, critic_dim=10)
    state = learner.init(jax.random.key(0), ENV, Sphere(10))
    batch = transitions(skills=Sphere(10))
    x = jnp.concatenate([batch.obs, batch.skill], 1)
    expected = np.einsum("hbk,bk->hb", state.critic(jnp.concatenate([x, batch.action], 1)), batch.skill)
    np.testing.assert_allclose(values(state.critic, x, batch.action, batch.skill), expected, rtol=1e-5, atol=1e-6)
    new, metrics = learner.update(state, batch, jax.random.key(1))
    assert all(np.isfinite(value) for value in metrics.values())
    assert jax.tree.structure(new) == jax.tree.structure(state)


@pytest.mark.parametrize("skills", [NoSkill(), OneHot(4), Sphere(10)])
def test_seeds_trained_together_are_what_they_are_alone(skills):
    batch = transitions(skills=skills)

    def run(key):
        def update(state, number):
            return SMALL.update(state, batch, jax.random.fold_in(key, number))[0], None

        state, _ = jax.lax.scan(update, SMALL.init(key, ENV, skills), jnp.arange(3))
        return state.actor.out.weight

    keys = jax.random.split(jax.random.key(3), 3)
    together = jax.jit(jax.vmap(run))(keys)
    for i in range(3):
        np.testing.assert_allclose(together[i], jax.jit(run)(keys[i]), atol=2e-6)


def test_whitened_observations_are_the_formula_and_nothing_else_changes():
    """A learner that whitens is one that does not on observations whitened by hand; it has seen the batch after."""
    plain, whitening = SMALL, DDPG(hidden=16, normalize=True)
    key, batch = jax.random.key(3), transitions(batch=64)
    batch = batch._replace(obs=5 + 30 * batch.obs, next_obs=5 + 30 * batch.next_obs)
    state = whitening.init(jax.random.key(0), ENV, OneHot(4))
    state, _ = whitening.update(state, batch, key)  # From here on there is something to whiten with.
    number = 0.01 + 64
    mean = np.asarray(batch.obs, float).sum(0) / number
    squares = (0.01 + (np.asarray(batch.obs, float) ** 2).sum(0)) / number
    white = lambda obs: jnp.asarray(np.clip((obs - mean) / np.sqrt(squares - mean**2), -5, 5), jnp.float32)  # noqa: E731
    np.testing.assert_allclose(whitening.view(state, batch.obs), white(batch.obs), rtol=1e-3, atol=1e-4)
    bare = jax.tree.map(lambda x: x, state)
    strip = lambda actor: eqx.tree_at(lambda a: a.moments, actor, None)  # noqa: E731
    opt = bare.actor_opt._replace(mean=strip(bare.actor_opt.mean), square=strip(bare.actor_opt.square))
    bare = bare._replace(actor=strip(bare.actor), actor_opt=opt)
    after, metrics = whitening.update(state, batch, key)
    expected, wanted = plain.update(bare, batch._replace(obs=white(batch.obs), next_obs=white(batch.next_obs)), key)
    for name, value in wanted.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-3, atol=1e-4)
    for one, other in zip(jax.tree.leaves(strip(after.actor)), jax.tree.leaves(expected.actor), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    assert after.actor.moments is not None
    assert after.actor.moments.number == pytest.approx(2 * 64 + 0.01)
    skill = jnp.zeros((64, 4))
    np.testing.assert_allclose(
        whitening.best(state.actor, batch.obs, skill), plain.best(bare.actor, white(batch.obs), skill), atol=1e-3
    )

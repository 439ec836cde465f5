"""What of an observation the objective sees."""

import itertools

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
import pytest
from distinct import distinct_runs, marked

from becl.envs import DOMAINS, make
from becl.envs.spec import EnvSpec
from becl.errors import UserError
from becl.experiments.environments import choose_numbers, parts_of
from becl.experiments.pretraining import make_pretraining
from becl.learning.offpolicy import OffPolicy
from becl.learning.replay import Transitions
from becl.objectives import METHODS
from becl.options import PretrainOptions

SMALL = {"hidden": 8, "set": ("batch=16", "replay.capacity=400", "random_steps=40")}


@pytest.mark.parametrize("name", list(DOMAINS))
def test_parts_fill_an_observation(name):
    places = [(part.start, part.stop) for part in parts_of(name).values()]
    assert places[0][0] == 0
    assert all(one[1] == other[0] for one, other in itertools.pairwise(places))
    assert places[-1][1] == DOMAINS[name].obs_dim


def test_parts_are_where_they_say():
    """Against the simulation itself."""
    walker = make("walker", 3)
    obs = walker.reset()
    for _ in range(5):
        obs = walker.step(np.full((3, 6), 0.5, np.float32)).obs
    for number in range(3):
        data = walker.data(number)
        mujoco.mj_forward(walker.model, data)
        np.testing.assert_allclose(obs[number, parts_of("walker")["height"]], data.body("torso").xpos[2], rtol=1e-6)
        np.testing.assert_allclose(obs[number, parts_of("walker")["velocity"]], data.qvel, atol=1e-6)
    walker.close()
    jaco = make("jaco", 1)
    obs = jaco.reset()
    data = jaco.data(0)
    brick = next(i for i in range(jaco.model.njnt) if jaco.model.jnt_type[i] == 0)
    place = data.qpos[jaco.model.jnt_qposadr[brick] :][:3]
    np.testing.assert_allclose(obs[0, parts_of("jaco")["brick_position"]], place, atol=0.02)
    jaco.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0:2", (0, 1)),
        ("3", (3,)),
        ("7,0,3", (7, 0, 3)),
        ("height", (14,)),
        ("height, 0:2", (14, 0, 1)),
        ("22:", (22, 23)),
        (":2,1", (0, 1)),
    ],
)
def test_words_for_numbers(text, expected):
    assert choose_numbers(text, parts_of("walker"), 24) == expected


@pytest.mark.parametrize("text", ["", "heigth", "24", "0:25", "-1", "2:1", "1.5", "a:b", "x"])
def test_words_that_are_none(text):
    with pytest.raises(UserError):
        choose_numbers(text, parts_of("walker"), 24)


@pytest.mark.parametrize("method", marked(distinct_runs(METHODS, "walker")))
def test_the_objective_sees_these_numbers_and_no_others(method):
    """The reward of a batch does not change with the rest of the observation, and does with what is seen."""
    run = make_pretraining(PretrainOptions("walker", method, objective_obs="height,0:2", **SMALL)).run
    assert run.seen == EnvSpec(3, 6, 1000)
    state, _ = run.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    skill = np.asarray(run.objective.skills.sample(jax.random.key(1), 16))
    numbers = [rng.normal(size=(16, 24)), rng.uniform(-1, 1, (16, 6)), rng.normal(size=16), np.ones(16)]
    floats = [jnp.asarray(array, jnp.float32) for array in (*numbers, rng.normal(size=(16, 24)), skill)]
    batch = Transitions(*[*floats, jnp.arange(16) // 2, jnp.arange(16) % 5 + 1])

    def reward(obs, next_obs):
        changed = batch._replace(obs=obs, next_obs=next_obs)
        return np.asarray(
            run.objective.reward(state.objective, run.to_batch(state.learner, changed), jax.random.key(2))[1]
        )

    plain = reward(batch.obs, batch.next_obs)
    unseen = np.setdiff1d(np.arange(24), [14, 0, 1])
    np.testing.assert_array_equal(
        reward(batch.obs.at[:, unseen].add(1.0), batch.next_obs.at[:, unseen].add(1.0)), plain
    )
    if method != "ddpg":
        assert (reward(batch.obs.at[:8, 14].add(1.0), batch.next_obs.at[:8, 14].add(1.0)) != plain).any()


def test_everything_is_seen_by_default_and_policies_always_see_it():
    run = make_pretraining(PretrainOptions("walker", "becl", **SMALL)).run
    assert run.seen == run.env
    restricted = make_pretraining(PretrainOptions("walker", "becl", objective_obs="0:2", **SMALL)).run
    assert isinstance(restricted, OffPolicy)
    shapes = [jax.eval_shape(one.init, jax.random.key(0))[0].learner for one in (run, restricted)]
    assert jax.tree.map(np.shape, shapes[0]) == jax.tree.map(np.shape, shapes[1])


def test_what_does_not_fit_is_refused(tmp_path, monkeypatch, capsys):
    from becl.commands.cli import main

    monkeypatch.chdir(tmp_path)
    for words in (["--objective-obs", "0:99"], ["--objective-obs", "hight"], ["--set", "objective_obs=0"]):
        assert main(["pretrain", "walker", *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())

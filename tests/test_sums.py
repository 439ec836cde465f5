"""Sums of methods: each part as it is alone, the first to the bit; what a run, a folder and a report make of them."""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import becl
from becl import testing
from becl.commands.cli import main
from becl.errors import UserError
from becl.experiments.finetuning import resolve_choice
from becl.experiments.pretraining import load_pretraining, make_pretraining, spec_classes
from becl.learning.choice import Held
from becl.learning.offpolicy import Outcome
from becl.learning.programs import programs
from becl.objectives import find_method, name_of
from becl.objectives.apt import APT
from becl.objectives.becl_released import BeCLReleased
from becl.objectives.cic import CIC
from becl.objectives.diayn import DIAYN
from becl.objectives.protocol import chance_reward
from becl.objectives.rnd import RND
from becl.objectives.smm import SMM
from becl.objectives.total import Sum
from becl.options import PretrainOptions
from becl.reports.defaults import default_options
from becl.reports.labels import labels_of
from becl.reports.names import pretty_method, rank
from becl.reports.options import options_of
from becl.skills import OneHot
from becl.specs import from_dict, to_dict
from becl.testing import ENV, small

TINY = ("batch=16", "replay.capacity=400", "random_steps=40")
PAIRS = ("becl+rnd", "diayn+apt", "aps+proto+icm")
QUICK = (
    testing.options_survive_json,
    testing.state_keeps_its_shape,
    testing.no_array_stands_twice_in_a_state,
    testing.snapshots_can_be_read_again,
)


def tiny(method: str, *settings: str, objective=None, skills: int | None = 4) -> Any:
    options = PretrainOptions("square_a", method, (3,), 120, skills, envs=2, hidden=8, set=(*TINY, *settings))
    return make_pretraining(options, objective)


def learned(run, calls: int = 3):
    """The state of one seed after some learning from made-up experience."""
    parts = programs(run, 1)
    state, choice = parts.init(jax.random.key(3)[None])
    rng = np.random.default_rng(0)
    for number in range(calls + run.replay.nstep):
        obs = rng.normal(size=(2, 1, run.envs, run.env.obs_dim)).astype(np.float32)
        nothing = np.zeros((1, run.envs), np.float32)
        outcome = Outcome(obs[0], obs[1], nothing, nothing > 0, nothing > 0)
        skill = jax.nn.one_hot(jnp.arange(run.envs) + number, run.objective.skills.dim)[None]
        choice = choice._replace(skill=skill % 2)
        if number < run.replay.nstep:
            replay, rule = parts.store(state.replay, state.skill, choice, outcome)
            state = state._replace(replay=replay, skill=rule)
        else:
            state, _ = parts.store_and_learn(state, choice, outcome, np.int32(number))
    return jax.tree.map(np.asarray, state._replace(key=jax.random.key_data(state.key)))


def steps_of(opt) -> int:
    """Steps of an Adam optimiser of the first seed."""
    return round(float(np.log(opt.decay[0, 1]) / np.log(0.999)))


# --- What a sum rewards -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", testing.checks, ids=lambda check: check.__name__)
def test_a_sum_passes_what_its_parts_do(check):
    if check is testing.order_of_the_batch_does_not_matter:
        pytest.skip("the released formula of becl looks at the order of the batch")
    check(find_method("becl+rnd").objective)


@pytest.mark.parametrize("check", QUICK, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", PAIRS[1:])
def test_other_sums_keep_their_state(name, check):
    check(find_method(name).objective)


@pytest.mark.parametrize("name", PAIRS)
def test_a_sum_is_what_its_parts_reward_alone_times_their_weights(name):
    objective = small(find_method(name).objective)
    weights = (0.5, 2.0, 3.0)[: len(objective.parts)]
    objective, batch = dataclasses.replace(objective, weights=weights), testing.batch_for(objective)
    key = jax.random.key(5)
    state = objective.init(key, ENV)
    after, reward = jax.jit(objective.reward)(state, batch, key)
    expected, earned = np.zeros(120), []
    for part, before, own, weight in zip(objective.parts, state.parts, objective.keys(key), weights, strict=True):
        alone = np.asarray(part.reward(before, batch, own)[1], np.float64)
        expected += weight * alone
        earned.append(alone.mean())
    np.testing.assert_allclose(reward, expected, rtol=1e-3, atol=1e-3)
    _, metrics = objective.fit(after, batch, key)
    np.testing.assert_allclose([metrics[f"{name}_reward"] for name in objective.names], earned, rtol=1e-3, atol=1e-3)


def test_a_part_of_weight_0_only_watches_and_the_first_learns_to_the_bit_what_it_learns_alone():
    alone, watched = tiny("becl").run, tiny("becl+rnd", "weights=1,0").run
    assert watched == dataclasses.replace(alone, objective=watched.objective)  # The replay's options too.
    assert watched.replay.released_skill
    one, other = learned(alone), learned(watched)
    jax.tree.map(np.testing.assert_array_equal, one._replace(objective=()), other._replace(objective=()))
    jax.tree.map(np.testing.assert_array_equal, one.objective, other.objective.parts[0])
    contrast, novelty = other.objective.parts
    assert steps_of(contrast.opt) == 3 * steps_of(novelty.opt) > 0  # As often as each is fitted alone.
    assert other.objective.earned[0, 1] > 0


def test_parts_start_apart():
    objective = small(Sum(RND(), APT(), RND(feature_dim=512), names=("one", "between", "other")))
    one, _, other = objective.init(jax.random.key(0), ENV).parts
    assert not np.array_equal(one.predictor.layers[0].weight, other.predictor.layers[0].weight)
    alone = objective.parts[0].init(jax.random.key(0), ENV)
    np.testing.assert_array_equal(one.predictor.layers[0].weight, alone.predictor.layers[0].weight)


def test_the_chance_level_is_the_weighted_sum_where_all_parts_that_count_have_one():
    level: Any = chance_reward(BeCLReleased(), 1024)
    assert chance_reward(Sum(BeCLReleased(), DIAYN(), weights=(3, 1)), 1024) == pytest.approx(3 * level)
    assert chance_reward(Sum(BeCLReleased(), RND(), weights=(1, 0)), 1024) == level
    assert chance_reward(Sum(BeCLReleased(), RND()), 1024) is None


# --- What goes together -----------------------------------------------------------------------------------------------


def test_skills_come_from_the_parts_that_have_some():
    assert Sum(RND(), DIAYN(OneHot(5))).skills == OneHot(5)
    whole = dataclasses.replace(Sum(RND(), DIAYN()), skills=OneHot(7))
    assert (whole.skills, whole.parts[1].skills, whole.parts[0].skills.dim) == (OneHot(7), OneHot(7), 0)
    assert find_method("rnd+aps").objective.skills == find_method("aps").objective.skills
    assert find_method("rnd+aps").skill_interval == 5
    assert Sum(DIAYN(), CIC(), skills=OneHot(6)).parts[1].skills == OneHot(6)
    assert tiny("becl+smm", skills=6).run.objective.parts[1].skills == OneHot(6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sum(DIAYN(), SMM()), "diayn has skills OneHot(16) and smm has OneHot(4)"),
        (lambda: Sum(DIAYN(), CIC()), "parts of a sum share their skills"),
        (lambda: find_method("aps+becl"), "becl has skills of the kind OneHot, and cannot share Sphere(10)"),
        (lambda: tiny("becl+aps", skills=None), "becl has skills OneHot(16) and aps has Sphere(10)"),
        (lambda: tiny("becl+smm", skills=None), "share their skills, such as 16 of becl's with --skills 16"),
        (lambda: find_method("becl+rdn"), "unknown part of becl+rdn: 'rdn': did you mean 'rnd'?"),
        (lambda: find_method("becl+"), "unknown part of becl+: ''"),
        (lambda: find_method("rnd+rnd"), "rnd is given twice"),
        (Sum, "a sum of no methods"),
        (lambda: Sum(RND(), APT(), weights=(1,)), "weights=1: rnd+apt has 2 parts, so 2 numbers are needed"),
        (lambda: Sum(RND(), APT(), weights=(1, float("nan"))), "weights nan: must not be negative, and finite"),
        (lambda: Sum(RND(), APT(), weights=(1, float("inf"))), "weights inf: must not be negative, and finite"),
        (lambda: Sum(RND(), APT(), weights=(0, 0)), "must be greater than 0"),
        (lambda: Sum(RND(), APT(), fits=(1, 0)), "fits 0: must be greater than 0"),
        (lambda: tiny("becl+rnd", "weights=1"), "2 numbers are needed"),
        (lambda: tiny("becl+rnd", "weights="), "2 numbers are needed"),
        (lambda: tiny("becl+rnd", "temperature=0.2"), "did you mean 'becl.temperature'?"),
        (lambda: tiny("becl+rnd", "rnd.feature_dm=2"), "did you mean 'rnd.feature_dim'?"),
        (lambda: tiny("becl+rnd", "rnd.feature_dim=0"), "rnd.feature_dim 0: must be greater than 0"),
        (lambda: tiny("becl+rnd", "rnd.network.hidden=0"), "rnd.network.hidden 0"),
        (lambda: tiny("becl+rnd", "becl.optimizer.eps=-1"), "must not be negative"),
        (lambda: tiny("becl+apt", "apt.neighbours=17"), "fewer than the 17 neighbours of apt"),
        (lambda: tiny("becl+rnd", "becl.skills.dim=3"), "use --skills"),
        (lambda: tiny("becl+rnd", "parts=3"), "unknown option of becl+rnd"),
        (lambda: make_pretraining(PretrainOptions("square_a", "rnd+apt", skills=4)), "rnd+apt has no skills"),
    ],
)
def test_what_does_not_go_together_is_refused_with_one_line(make, message):
    with pytest.raises(UserError) as caught:
        make()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_command_line_refuses_with_code_2_and_writes_nothing(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["pretrain", "square_a", "--method", "becl+rdn", "--out", str(out)]) == 2
    assert main(["maze", "--methods", "becl+rnd", "--out", str(out)]) == 2
    assert "not part of the maze study" in capsys.readouterr().err
    assert not out.exists()


def test_options_of_parts_are_set_by_their_names():
    objective = tiny("becl+rnd", "becl.temperature=0.2", "objective.rnd.feature_dim=7", "weights=1,1e-3").run.objective
    assert (objective.parts[0].temperature, objective.parts[1].feature_dim) == (0.2, 7)
    assert objective.weights == (1.0, 0.001)
    assert objective.parts[1].network.hidden == (8, 8)  # By --hidden.


# --- As any other spec ------------------------------------------------------------------------------------------------


def test_a_run_can_be_kept_resumed_and_looked_at(tmp_path, capsys):
    out = tmp_path / "run"
    command = ["pretrain", "square_a", "--method", "becl+rnd", "--steps", "80", "--skills", "4", "--envs", "2"]
    command += ["--hidden", "8", "--log-every", "40", "--set", *TINY, "weights=1,0.5"]
    assert main([*command, "--out", str(out)]) == 0
    assert main(["resume", str(out)]) == 0
    made: Any = load_pretraining(out)
    assert made.run.objective.weights == (1.0, 0.5)
    assert made.config() == json.loads((out / "config.json").read_text())
    header = (out / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"objective_becl_loss", "objective_rnd_loss", "objective_becl_reward", "objective_rnd_reward"} <= {*header}
    assert main(["evaluate", str(out), "--episodes", "1"]) == 0
    assert resolve_choice(find_method("becl+rnd").finetune_skill, "becl+rnd", made) == (Held(), None)
    assert "becl+rnd" in capsys.readouterr().out


def test_from_python_a_sum_of_objectives_is_a_method():
    given = becl.Sum(BeCLReleased(temperature=0.2), RND(), weights=(1, 10))
    assert name_of(given) == "becl+rnd"
    objective = tiny("becl+rnd", objective=given).run.objective
    assert objective.names == ("becl", "rnd")
    assert objective.fits == (3, 1)
    assert objective.parts[0].temperature == 0.2
    assert name_of(Sum(DIAYN(), CIC(OneHot(16)))) == "diayn+cic"
    assert from_dict(json.loads(json.dumps(to_dict(objective))), spec_classes()) == objective


def test_reports_name_a_sum_and_what_its_defaults_are_not():
    def options(*settings: str):
        made = make_pretraining(PretrainOptions("walker", "becl+rnd", set=settings, hidden=64))
        return options_of({"method": "becl+rnd", "run": {}, "pretraining": json.loads(json.dumps(made.config()))})

    found = [options(), options("weights=1,0.1"), options("becl.temperature=0.2")]
    assert labels_of([("becl+rnd", one) for one in found], {}) == [
        "BeCL + RND",
        "BeCL + RND, weights = [1.0, 0.1]",
        "BeCL + RND, becl.temperature = 0.2",
    ]
    defaults = default_options("becl+rnd", {})
    assert {path: value for path, value in options().items() if path in defaults and defaults[path] != value} == {
        path: value for path, value in options().items() if "hidden" in path or path.endswith("head")
    }
    assert (pretty_method("becl-paper+rnd"), rank("becl+rnd")[0]) == ("BeCL-paper + RND", rank("becl")[0])

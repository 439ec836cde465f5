"""Finetuning from a pretrained folder to its scores: what is inherited, which skill acts, and what is refused."""

import contextlib
import csv
import dataclasses
import functools
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from run_folders import SEEDS, TINY, forget_sums, make_folder

from becl import envs
from becl.commands.cli import main
from becl.envs.simulations import Step
from becl.envs.spec import EnvSpec
from becl.errors import Failed
from becl.experiments import finetuner as finetune_file
from becl.experiments.finetuner import FINAL_SEED, finetune
from becl.experiments.finetuning import TRANSFERS, Finetuning, lane_keys, make_finetuning, resolve_choice
from becl.experiments.lanes import environments_of
from becl.experiments.policies import load_policy
from becl.experiments.pretraining import Pretraining, make_pretraining, seed_keys, spec_classes
from becl.experiments.snapshots import load_snapshot, save_snapshots, snapshot_path
from becl.experiments.transfer import held_skills, load_learners, prepared
from becl.learning.choice import BestFirst, Held, Regress
from becl.learning.controller import Controller
from becl.learning.ddpg import DDPG, Actor
from becl.learning.offpolicy import OffPolicy
from becl.learning.programs import programs
from becl.learning.replay import Replay
from becl.learning.training import train
from becl.nn.adam import Adam
from becl.nn.networks import Network
from becl.objectives import METHODS
from becl.objectives.diayn import DIAYN
from becl.objectives.extrinsic import Extrinsic
from becl.objectives.registry import FINETUNE_SKILLS
from becl.options import FinetuneOptions, PretrainOptions
from becl.runs import session as session_file
from becl.runs.arrays import named_arrays
from becl.runs.folder import open_folder, read_config
from becl.runs.progress import Progress
from becl.sharing import shared_command
from becl.skills import OneHot
from becl.specs import from_dict

TASKS = ("walker_stand", "walker_run")
LENGTH = 50  # Of the walker's episodes here: an evaluation is a whole episode.


pytestmark = pytest.mark.usefixtures("short_walker")
# The networks are fresh ones, all numbers changed a little.
pretrained = functools.partial(make_folder, hidden=16, moved=0.01)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """Where pretrained runs are, each in a folder of its method's name."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def becl(runs) -> Path:
    return pretrained(runs / "becl", steps=(60, 100))


@pytest.fixture(scope="module")
def diayn(runs) -> Path:
    return pretrained(runs / "diayn", "diayn")


@pytest.fixture(scope="module")
def aps(runs) -> Path:
    return pretrained(runs / "aps", "aps")


@pytest.fixture(scope="module")
def cic(runs) -> Path:
    return pretrained(runs / "cic", "cic")


def command(source: Path, *more: str) -> list[str]:
    return ["finetune", str(source), "--task", *TASKS, "--steps", "60", "--eval-every", "20",
            "--eval-episodes", "2", "--final-episodes", "3", *more]  # fmt: skip


def tiny(source: Path | None, tasks=TASKS, seeds=None, steps: int = 60, **options) -> Finetuning:
    return make_finetuning(
        FinetuneOptions(
            source,
            tasks,
            seeds=seeds,
            steps=steps,
            scratch=source is None,
            **{"eval_every": 20, "eval_episodes": 2, "final_episodes": 3, **options},
        )
    )


def opened(made: Finetuning, out: Path) -> Path:
    open_folder(made.config(), out)
    return out


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows(folder: Path, name: str = "scores.csv") -> list[dict[str, str]]:
    return list(csv.DictReader((folder / name).open()))


def arrays_of(path: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load(path.read_bytes())


def policies(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    return {path.parent.name: arrays_of(path) for path in sorted(folder.glob("*/policy.safetensors"))}


def begun(made: Finetuning) -> tuple[Any, Any]:
    """The state of all lanes before and after they have inherited."""
    state, _ = programs(made.run).init(lane_keys(made))
    loaded = load_learners(made) if made.snapshot is not None else None
    return state, prepared(made, state, loaded)


def lived(made: Finetuning) -> Any:
    """The state of all lanes after the steps, without any evaluation."""
    environments = environments_of(made.lanes, made.run.envs, envs.make)
    loaded = load_learners(made)
    with contextlib.closing(environments):
        *_, last = train(made.run, environments, lane_keys(made), made.steps, lambda new: prepared(made, new, loaded))
    return last.state


# --- What is inherited ------------------------------------------------------------------------------------------------

INHERITED = {
    "trunk": {"actor": "actor", "critic.trunk": "critic.trunk"},
    "critic": {"actor": "actor", "critic": "critic", "target": "critic"},
    "critic-released": {"actor": "actor", "critic": "critic"},
    "none": {},
}


def test_algorithm_2_keeps_the_whole_critic_and_takes_no_random_action(becl):
    made = tiny(becl, ("walker_stand",), (3,), transfer="paper")
    assert (made.transfer, made.run.warmup, made.skill) == ("critic", "policy", "random")
    usual = tiny(becl, ("walker_stand",), (3,), transfer="critic")
    assert made == dataclasses.replace(usual, run=dataclasses.replace(usual.run, warmup="policy"))


@pytest.mark.parametrize("transfer", TRANSFERS)
def test_what_is_inherited_and_what_begins_anew(transfer, becl):
    made = dataclasses.replace(tiny(becl), transfer=transfer)
    before, after = begun(made)
    fresh, got = named_arrays(before.learner), named_arrays(after.learner)
    snapshots = {seed: arrays_of(snapshot_path(becl, seed, 100)) for seed in SEEDS}
    for index, lane in enumerate(made.lanes):
        for name, array in got.items():
            place = [(to, source) for to, source in INHERITED[transfer].items() if f"{name}.".startswith(f"{to}.")]
            old = snapshots[lane.seed]
            if place:
                ((to, source),) = place
                np.testing.assert_array_equal(array[index], old[f"learner.{source}{name.removeprefix(to)}"])
                assert not np.array_equal(array[index], fresh[name][index])
            else:
                np.testing.assert_array_equal(array[index], fresh[name][index])
                assert f"learner.{name}" not in old or not np.array_equal(array[index], old[f"learner.{name}"])
    for opt in (after.learner.actor_opt, after.learner.critic_opt):
        np.testing.assert_array_equal(opt.decay, 1)
        assert not any(leaf.any() for leaf in jax.tree.leaves((opt.mean, opt.square)))
    in_step = all(map(np.array_equal, *map(jax.tree.leaves, (after.learner.critic, after.learner.target))))
    assert in_step == (transfer in ("critic", "none"))


def test_lanes_of_one_seed_begin_with_its_networks_and_fresh_ones_differ(becl):
    _, after = begun(tiny(becl, skill="each"))
    actor, head = np.asarray(after.learner.actor.out.weight), np.asarray(after.learner.critic.weight)
    lanes = tiny(becl, skill="each").lanes
    assert len(lanes) == 16
    for i, one in enumerate(lanes):
        for j, other in enumerate(lanes):
            assert np.array_equal(actor[i], actor[j]) == (one.seed == other.seed)
            assert np.array_equal(head[i], head[j]) == (i == j)


def test_an_earlier_snapshot_can_be_asked_for(becl):
    assert tiny(becl).snapshot == 100
    made = tiny(becl, snapshot=60, seeds=(5,))
    learner, _ = load_learners(made)
    assert isinstance(learner.actor, Actor)
    expected = arrays_of(snapshot_path(becl, 5, 60))["learner.actor.out.weight"]
    np.testing.assert_array_equal(learner.actor.out.weight[0], expected)
    assert not np.array_equal(expected, arrays_of(snapshot_path(becl, 5, 100))["learner.actor.out.weight"])


def test_without_steps_the_score_is_that_of_the_pretrained_policy(becl, tmp_path):
    out = tmp_path / "run"
    assert main([*command(becl, "--out", str(out)), "--steps", "0", "--skill", "fixed:2", "--eval-episodes", "3"]) == 0
    table = rows(out)
    assert [(row["task"], row["seed"], row["skill"], row["step"]) for row in table] == [
        (task, str(seed), "2", "0") for task in TASKS for seed in SEEDS
    ]
    made = make_pretraining(PretrainOptions("walker", "becl", SEEDS, 100, skills=4, envs=2, hidden=16, set=TINY))
    for row in table:
        learner, _ = load_snapshot(made, snapshot_path(becl, int(row["seed"]), 100))
        act, skill = jax.jit(lambda actor, x: actor(x)), np.tile(np.eye(4, dtype=np.float32)[2], (3, 1))
        environments = envs.make(row["task"], 3, int(row["seed"]) + 2**32)
        obs, returns = environments.reset(), np.zeros(3)
        for _ in range(LENGTH):
            step = environments.step(np.asarray(act(learner.actor, np.concatenate([obs, skill], 1))))
            returns += step.reward
            obs = step.obs
        environments.close()
        assert float(row["return"]) == pytest.approx(returns.mean(), rel=1e-4)
        assert float(row["stderr"]) == pytest.approx(returns.std(ddof=1) / 3**0.5, rel=1e-3)
    for name, policy in policies(out).items():
        old = arrays_of(snapshot_path(becl, int(name[-1]), 100))
        actor = [name for name in old if name.startswith("learner.actor.")]
        assert sorted(actor) == sorted(name for name in policy if name.startswith("learner.actor."))
        for part in actor:
            np.testing.assert_array_equal(policy[part], old[part])
        np.testing.assert_array_equal(policy["skill"], [0, 0, 1, 0])


# --- A task whose answer is known -------------------------------------------------------------------------------------

PEAK = EnvSpec(obs_dim=2, action_dim=3, episode_length=10)


class Peak:
    """Pays up to 1 a step where all actions are near the number in the task's name."""

    def __init__(self, task: str, num_envs: int, seeds):
        del seeds
        self.goal, self.num_envs, self.spec = float(task), num_envs, PEAK
        self.actions: list[np.ndarray] = []

    def reset(self) -> np.ndarray:
        self.time = 0
        return self._observe()

    def _observe(self) -> np.ndarray:
        return np.full((self.num_envs, 2), self.time / 10, np.float32)

    def close(self) -> None: ...

    def get_state(self) -> np.ndarray:
        return np.array(self.time)

    def set_state(self, state: np.ndarray) -> None:
        self.time = int(state)

    def step(self, action: np.ndarray) -> Step:
        self.actions.append(action.copy())
        self.time += 1
        next_obs, end = self._observe(), self.time == 10
        if end:
            self.time = 0
        reward = np.exp(-np.square((action - self.goal) / 0.3).sum(1))
        return Step(self._observe(), reward.astype(float), np.full(self.num_envs, end), next_obs)


def acting(actor: Actor, actions) -> Actor:
    """An actor whose skill k acts `actions[k]`, whatever it sees: the trunk has a unit for each skill."""
    width = len(actor.hidden.bias)
    numbers = np.arange(len(actions))
    trunk = jnp.zeros(actor.trunk.linear.weight.shape).at[PEAK.obs_dim + numbers, numbers].set(10.0)
    # LayerNorm makes √(width − 1) of the unit that is on, and the others negative.
    loud = np.arctanh(actions)[:, None] / np.tanh((width - 1) ** 0.5)
    out = jnp.zeros(actor.out.weight.shape).at[numbers].set(loud)
    where = lambda actor: (actor.trunk.linear.weight, actor.hidden.weight, actor.out.weight)  # noqa: E731
    return eqx.tree_at(where, actor, (trunk, jnp.eye(width), out))


ACTIONS = (-0.75, -0.25, 0.25, 0.65)
PROBE = OffPolicy(
    PEAK,
    DIAYN(OneHot(4), Network((8,))),
    DDPG(hidden=16, stddev=0.1, optimizer=Adam(1e-3)),
    Replay(capacity=1200),
    envs=4,
    batch=32,
    random_steps=80,
)


@pytest.fixture(scope="module")
def probe(runs) -> tuple[Pretraining, Path]:
    """A run of one seed, whose four skills act four numbers."""
    out = runs / "probe"
    made = Pretraining("probe", "diayn", (0,), 100, PROBE)
    open_folder(made.config(), out)
    state, _ = programs(PROBE).init(seed_keys(made.seeds))
    actor = acting(jax.tree.map(lambda leaf: leaf[0], state.learner.actor), ACTIONS)
    actor = jax.tree.map(lambda leaf: leaf[None], actor)
    save_snapshots(made, out, state._replace(learner=state.learner._replace(actor=actor)), 100)
    return made, out


def on_probe(probe, tasks, skill: str, steps: int, choice, **options) -> Finetuning:
    made, source = probe
    run = dataclasses.replace(PROBE, objective=Extrinsic(OneHot(4)), choice=choice, **options)
    return Finetuning("probe", "diayn", tasks, (0,), steps, skill, "trunk", run, 100, made, str(source),
                      eval_every=steps, eval_episodes=1, final_episodes=1)  # fmt: skip


def returns_of(out: Path, step: int) -> list[float]:
    return [float(row["return"]) for row in rows(out) if row["step"] == str(step)]


def test_a_good_skill_is_ahead_of_scratch_and_gets_better(probe, tmp_path):
    """Skill 3 acts 0.65 where 0.8 pays; from scratch the peak is a needle in a haystack of three dimensions."""
    made = on_probe(probe, ("0.8",), "fixed:3", 1200, Held(), skill_interval=None)
    assert finetune(made, opened(made, tmp_path / "skill"), make=Peak)
    (before,), (after,) = (returns_of(tmp_path / "skill", step) for step in (0, 1200))
    assert before == pytest.approx(10 * np.exp(-3 * (0.15 / 0.3) ** 2), rel=0.01)
    scratch = dataclasses.replace(made, transfer="none", snapshot=None, pretraining=None, source=None)
    assert finetune(scratch, opened(scratch, tmp_path / "scratch"), make=Peak)
    (without,) = returns_of(tmp_path / "scratch", 1200)
    assert after > before + 1
    assert without < 0.5 * after


@pytest.fixture
def sweep(probe) -> Finetuning:
    """A task for every skill, which asks for what that skill does. Nothing is learned."""
    tasks = tuple(map(str, ACTIONS))
    return on_probe(probe, tasks, "best-first", 160, BestFirst(steps=80), skill_interval=1, warmup="policy",
                    random_steps=160)  # fmt: skip


def test_the_best_skill_of_a_sweep_is_found(sweep, tmp_path):
    assert finetune(sweep, opened(sweep, tmp_path / "run"), make=Peak)
    last = [row for row in rows(tmp_path / "run") if row["step"] == "160"]
    assert [(row["task"], row["skill"]) for row in last] == list(zip(sweep.tasks, "0123", strict=True))
    chosen = policies(tmp_path / "run")
    for number, task in enumerate(sweep.tasks):
        np.testing.assert_array_equal(chosen[f"{task}-seed-0"]["skill"], np.eye(4)[number])


def test_a_sweep_is_of_the_policys_own_actions_and_what_it_finds_is_kept(sweep):
    environments: Any = environments_of(sweep.lanes, 4, Peak)
    loaded = load_learners(sweep)
    *_, last = train(sweep.run, environments, lane_keys(sweep), 160, lambda new: prepared(sweep, new, loaded))
    skills = np.asarray(last.state.replay.steps.skill[:, :39]).argmax(-1)
    for number, part in enumerate(environments.parts):
        # Four environments, four skills: each has one for the 20 steps that count and one more.
        np.testing.assert_array_equal(skills[number, :21], np.tile(np.arange(4), (21, 1)))
        np.testing.assert_array_equal(skills[number, 21:], number)
        mean = np.array(part.actions)[:20].mean((0, 2))
        np.testing.assert_allclose(mean, ACTIONS, atol=0.06)  # Noise of 0.1 in 60 numbers.


# --- Which skill ------------------------------------------------------------------------------------------------------


def test_a_random_skill_is_one_a_seed_for_all_tasks(becl):
    made = dataclasses.replace(tiny(becl, skill="random"), seeds=tuple(range(40)))
    skills = held_skills(made).reshape(2, 40, 4)
    np.testing.assert_array_equal(skills[0], skills[1])
    np.testing.assert_array_equal(skills.sum(-1), 1)
    # 40 draws from four: to miss one has a chance of 4 · 0.75^40.
    assert set(skills[0].argmax(-1)) == {0, 1, 2, 3}
    # Whoever is beside it, a seed has its own.
    other = dataclasses.replace(made, seeds=(7,), tasks=("walker_flip",))
    np.testing.assert_array_equal(held_skills(other)[0], skills[0, 7])


def test_a_held_skill_is_the_only_one_that_acts(becl):
    state = lived(tiny(becl, ("walker_stand",), (3,), skill="fixed:1"))
    stored = np.asarray(state.replay.steps.skill[0, :29])
    np.testing.assert_array_equal(stored, np.broadcast_to(np.eye(4)[1], stored.shape))


def test_a_constant_skill_is_in_the_middle_of_the_cube(cic):
    made = tiny(cic)
    np.testing.assert_array_equal(held_skills(made), np.full((4, 64), 0.5))
    assert isinstance(made.run.choice, Held)


def test_each_skill_has_a_lane_and_acts_in_it(becl, tmp_path):
    made = tiny(becl, ("walker_stand",), (5,), skill="each")
    state = lived(made)
    assert [lane.skill for lane in made.lanes] == [0, 1, 2, 3]
    stored = np.asarray(state.replay.steps.skill[:, :29])
    np.testing.assert_array_equal(stored, np.broadcast_to(np.eye(4)[:, None, None], stored.shape))
    for name, steps in (("each", ["--skill", "each"]), ("alone", ["--skill", "fixed:2"])):
        words = command(becl, "--task", "walker_stand", "--seeds", "5,", "--steps", "0", *steps)
        assert main([*words, "--out", str(tmp_path / name)]) == 0
    table, (alone,) = rows(tmp_path / "each"), rows(tmp_path / "alone")
    assert [row["skill"] for row in table] == ["0", "1", "2", "3"]
    assert float(table[2]["return"]) == pytest.approx(float(alone["return"]), rel=1e-4)
    assert len({row["return"] for row in table}) == 4
    assert sorted(policies(tmp_path / "each")) == [f"walker_stand-seed-5-skill-{k}" for k in range(4)]


def test_resampled_skills_change_in_a_run(diayn):
    made = tiny(diayn, ("walker_stand",), (3,), set=["skill_interval=4", "random_steps=59"])
    assert made.skill == "resampled"
    skills = np.asarray(lived(made).replay.steps.skill[0, :29]).argmax(-1)
    changed = (np.diff(skills, axis=0) != 0).any(-1)
    assert set(skills.ravel()) == {0, 1, 2, 3}
    assert not np.any(changed[[i for i in range(28) if (i + 1) % 4]])


REGRESSING = ["choice.after=24", "choice.batch=32"]


def test_features_for_the_regression_are_pretrained_only_if_asked_for(aps):
    fresh, asked = (tiny(aps, ("walker_stand",), (5,), set=[*REGRESSING, f"choice.features={features}"])
                    for features in ("fresh", "pretrained"))  # fmt: skip
    assert tiny(aps).run.choice == Regress(network=Network((16, 16)))
    assert fresh.run.learner.critic_dim == 10  # type: ignore[attr-defined]
    assert fresh.run.skill_interval == 5
    state, without = begun(fresh)
    inherited = arrays_of(snapshot_path(aps, 5, 100))
    after = prepared(asked, state, load_learners(asked))
    for name, array in named_arrays(after.skill.features).items():
        np.testing.assert_array_equal(array[0], inherited[f"objective.features.{name}"])
    jax.tree.map(np.testing.assert_array_equal, without.skill, state.skill)
    np.testing.assert_array_equal(after.skill.skill, state.skill.skill)
    for name, array in named_arrays(without.skill.features).items():
        assert not np.array_equal(array[0], inherited[f"objective.features.{name}"])


# --- Every method -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_skill_it_finetunes_with(method):
    made = make_pretraining(PretrainOptions("walker", method))
    choice, interval = resolve_choice(METHODS[method].finetune_skill, method, made)
    space = made.run.objective.skills

    def draw(key):
        state = choice.init(key, EnvSpec(2, 1, 10), space)
        return choice.draw(state, key, space, 3, jnp.int32(0))

    if not isinstance(choice, Regress):
        assert jax.eval_shape(draw, jax.random.key(0)).shape == (3, space.dim)
    assert interval in (None, made.run.skill_interval, *([1] if METHODS[method].finetune_skill == "selector" else []))
    assert METHODS[method].transfer in TRANSFERS
    assert METHODS[method].finetune_skill in FINETUNE_SKILLS


KINDS = [("none", "ddpg", 0), ("random", "becl", 60), ("resampled", "diayn", 0), ("regress", "aps", 60),
         ("constant", "cic", 0), ("selector", "amped-contrast", 0)]  # fmt: skip


@pytest.mark.parametrize(("kind", "method", "steps"), KINDS)
def test_one_method_of_each_kind_is_finetuned(kind, method, steps, runs, tmp_path):
    """Those that nothing but the width of their input tells from others need not learn."""
    assert METHODS[method].finetune_skill == kind
    source = runs / method if (runs / method).exists() else pretrained(runs / method, method)
    out = tmp_path / "run"
    words = ["finetune", str(source), "--task", "walker_stand", "--seeds", "5,", "--steps", str(steps),
             "--eval-every", "60", "--eval-episodes", "1", "--out", str(out)]  # fmt: skip
    if kind == "regress":
        words += ["--set", *REGRESSING]
    assert main(words) == 0
    config = json.loads((out / "config.json").read_text())
    assert (config["skill"], config["method"], config["snapshot"]) == (kind, method, 100)
    table = rows(out)
    assert [int(row["step"]) for row in table] == sorted({0, steps})
    assert all(np.isfinite(float(row["return"])) for row in table)
    assert {row["stderr"] for row in table} == {""}  # Of one episode.
    assert all(bool(row["skill"]) == (kind == "random") for row in table)
    (policy,) = policies(out).values()
    assert all(np.isfinite(array).all() for array in policy.values())
    old = arrays_of(snapshot_path(source, 5, 100))
    assert np.array_equal(policy["learner.actor.out.weight"], old["learner.actor.out.weight"]) == (steps == 0)
    if kind == "constant":
        np.testing.assert_array_equal(policy["skill"], 0.5)
    if kind == "regress":
        assert np.linalg.norm(policy["skill"]) == pytest.approx(1, abs=1e-5)


def test_a_controller_judges_the_skills_of_a_run(becl, tmp_path):
    made = tiny(becl, ("walker_stand",), (3,), 100_000, skill="meta")
    controller = made.run.learner
    assert isinstance(controller, Controller)
    assert made.run.env == EnvSpec(24, 4, 1)
    # One update for two environment steps, as everywhere, and as many steps in which nothing is learned.
    assert made.run.updates * 2 == made.run.envs * controller.interval
    assert made.run.random_steps * controller.interval == 50
    # An episode here is one stretch, so it is that of one of the skills.
    each = tiny(becl, ("walker_stand",), (3,), 0, skill="each", eval_episodes=1)
    one = tiny(becl, ("walker_stand",), (3,), 0, skill="meta", eval_episodes=1)
    for name, other in (("each", each), ("one", one)):
        assert finetune(other, opened(other, tmp_path / name))
    alone = [float(row["return"]) for row in rows(tmp_path / "each")]
    (found,) = rows(tmp_path / "one")
    assert (found["skill"], found["step"]) == ("", "0")
    assert min(abs(float(found["return"]) - value) / value for value in alone) < 1e-4


def test_from_scratch_there_is_nothing_but_the_task(tmp_path):
    out = tmp_path / "run"
    words = ["finetune", "--scratch", "--task", "walker_stand", "--hidden", "16", "--envs", "2", "--steps", "0",
             "--eval-episodes", "1", "--out", str(out), "--set", *TINY]  # fmt: skip
    assert main(words) == 0
    config = json.loads((out / "config.json").read_text())
    assert {name: config[name] for name in ("method", "snapshot", "source", "pretraining", "transfer", "skill")} == {
        "method": "ddpg", "snapshot": None, "source": None, "pretraining": None, "transfer": "none", "skill": "none"
    }  # fmt: skip
    assert config["run"]["learner"]["hidden"] == 16
    assert [row["skill"] for row in rows(out)] == [""]
    assert list(policies(out)) == ["walker_stand-seed-0"]


# --- The command and its folder ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(becl, tmp_path_factory) -> Path:
    """Two tasks and two seeds together."""
    out = tmp_path_factory.mktemp("finished") / "run"
    assert main(command(becl, "--out", str(out))) == 0
    return out


def test_a_run_leaves_plain_files(finished, becl):
    names = set(files(finished))
    lanes = [f"{task}-seed-{seed}" for task in TASKS for seed in SEEDS]
    events = {name for name in names if name.startswith("tensorboard")}
    expected = {"config.json", "metrics.csv", "scores.csv", "final.csv", "result.json", "SHA256SUMS"}
    expected |= {f"{lane}/{name}" for lane in lanes for name in ("policy.safetensors", "SHA256SUMS")}
    assert names - events == expected
    assert sorted(Path(name).parent.name for name in events) == sorted(lanes)
    result = json.loads((finished / "result.json").read_text())
    assert result["steps"] == 60
    assert result["command"] == shared_command(f"becl {' '.join(command(becl))} --out {finished}")
    assert {"becl", "device", "jax", "python", "machine", "seconds", "steps_per_second"} <= result.keys()
    others = [path for path in finished.rglob("*") if path.is_file() and path.name != "SHA256SUMS"]
    newest = max(path.stat().st_mtime_ns for path in others)
    assert (finished / "result.json").stat().st_mtime_ns == newest


def test_scores_have_a_row_an_evaluation_and_lane(finished, becl):
    text = (finished / "scores.csv").read_text()
    assert text.startswith("task,seed,skill,step,return,stderr\n")
    skills = dict(zip(SEEDS, held_skills(tiny(becl)).argmax(-1), strict=False))
    assert [(row["step"], row["task"], row["seed"], row["skill"]) for row in rows(finished)] == [
        (str(step), task, str(seed), str(skills[seed])) for step in (0, 20, 40, 60) for task in TASKS for seed in SEEDS
    ]
    number = r"\d+(\.\d+)?(e-\d+)?"
    assert all(re.fullmatch(rf"\w+,\d,\d,\d+,{number},{number}", line) for line in text.splitlines()[1:])


def test_final_scores_have_a_row_a_lane_over_as_many_episodes_as_asked_for(finished, becl):
    text = (finished / "final.csv").read_text()
    assert text.startswith("task,seed,skill,step,return,stderr,episodes\n")
    skills = dict(zip(SEEDS, held_skills(tiny(becl)).argmax(-1), strict=False))
    assert [
        (row["task"], row["seed"], row["skill"], row["step"], row["episodes"]) for row in rows(finished, "final.csv")
    ] == [(task, str(seed), str(skills[seed]), "60", "3") for task in TASKS for seed in SEEDS]


def test_final_scores_are_means_over_starts_that_depend_on_the_seed_alone(becl, diayn, tmp_path):
    """By hand: the policies kept in the end, in simulations of the same numbers."""
    for method, source in (("becl", becl), ("diayn", diayn)):
        made = tiny(source, ("walker_stand",), (5,), 0, skill="fixed:1", eval_episodes=1, final_episodes=4)
        out = opened(made, tmp_path / method)
        assert finetune(made, out)
        actor, skill = load_policy(made, out, made.lanes[0])
        assert isinstance(actor, Actor)
        with contextlib.closing(envs.make("walker_stand", 4, [5 + FINAL_SEED])) as simulations:
            obs, total = simulations.reset(), np.zeros(4)
            for _ in range(LENGTH):
                seen = jnp.asarray(np.concatenate([obs, np.tile(skill, (4, 1))], 1))
                step = simulations.step(np.asarray(actor(seen)))
                obs, total = step.obs, total + step.reward
        (row,) = rows(out, "final.csv")
        assert float(row["return"]) == pytest.approx(total.mean(), rel=1e-3)
        assert float(row["stderr"]) == pytest.approx(total.std(ddof=1) / 2, rel=1e-3)


def test_a_run_stopped_in_its_final_evaluation_goes_on_there(becl, tmp_path, monkeypatch):
    made = tiny(becl, seeds=(3,))
    whole, parted = (opened(made, tmp_path / name) for name in ("whole", "parted"))
    assert finetune(made, whole)
    with monkeypatch.context() as patched:
        patched.setattr(finetune_file, "final_scores", lambda *args: None)  # As after Ctrl-C.
        assert not finetune(made, parted)
    assert not (parted / "result.json").exists()
    assert finetune(made, parted)
    for name in ("scores.csv", "final.csv"):
        assert (parted / name).read_bytes() == (whole / name).read_bytes()


def test_final_evaluation_stops_when_asked_to(becl):
    made = tiny(becl, ("walker_stand",), (3,), 0)
    keys = lane_keys(made)
    state, _ = programs(made.run).init(keys)
    state = prepared(made, state, load_learners(made))
    with contextlib.closing(environments_of(made.lanes, 3, finetune_file.make_envs)) as simulations:
        assert finetune_file.final_scores(made, state, simulations, keys, lambda: True) is None


def test_metrics_tell_lanes_apart(finished):
    table = rows(finished, "metrics.csv")
    assert [(row["step"], row["task"], row["seed"]) for row in table] == [
        (step, task, str(seed)) for step in ("40", "60") for task in TASKS for seed in SEEDS
    ]
    for row in table:
        assert all(np.isfinite(float(row[name])) for name in row if name not in ("task", "return"))
        assert row["reward"] == row["extrinsic"]


def test_a_configuration_can_be_read_back(finished, becl):
    made = tiny(becl)
    assert json.loads((finished / "config.json").read_text())["source"] == os.path.relpath(becl, finished)
    config = read_config(finished)
    assert config == json.loads(json.dumps(made.config()))
    fields = ["command", "env", "method", "tasks", "seeds", "steps", "skill", "transfer", "run", "snapshot",
              "pretraining", "source", "eval_every", "eval_episodes", "final_episodes"]  # fmt: skip
    assert list(config) == fields
    assert (config["command"], config["source"], config["snapshot"]) == ("finetune", str(becl), 100)
    kinds = spec_classes() | {kind.__name__: kind for kind in (Finetuning, Held, Extrinsic)}
    del config["command"]
    assert from_dict({"spec": "Finetuning", **config}, kinds) == made


def test_the_same_command_again_changes_nothing(finished, becl, capsys):
    before = files(finished)
    assert main(command(becl, "--out", str(finished))) == 0
    assert "already finished" in capsys.readouterr().out
    assert files(finished) == before


def test_another_configuration_is_refused(finished, becl, capsys):
    before = files(finished)
    assert main(command(becl, "--out", str(finished), "--skill", "fixed:1")) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "another configuration" in error
    assert "skill" in error
    assert files(finished) == before


def test_a_dry_run_tells_and_writes_nothing(becl, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(command(becl, "--dry-run", "--skill", "each")) == 0
    text = capsys.readouterr().out
    config, end = json.JSONDecoder().raw_decode(text)
    assert config == json.loads(json.dumps(tiny(becl, skill="each").config()))
    assert text[end:].splitlines()[1] == "16 lanes: 2 tasks × 2 seeds × 4 skills"
    assert "memory: replay" in text[end:]
    assert not list(tmp_path.iterdir())


# --- Lanes ------------------------------------------------------------------------------------------------------------


def assert_same(one: dict[str, dict[str, np.ndarray]], other: dict[str, dict[str, np.ndarray]]) -> None:
    """Policies to the bit."""
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_the_same_command_gives_the_same_numbers(finished, becl, tmp_path):
    assert main(command(becl, "--out", str(tmp_path / "again"))) == 0
    assert (tmp_path / "again" / "scores.csv").read_text() == (finished / "scores.csv").read_text()
    assert_same(policies(tmp_path / "again"), policies(finished))
    lanes = list(policies(finished).values())
    assert not np.array_equal(lanes[0]["learner.actor.out.weight"], lanes[1]["learner.actor.out.weight"])


def test_evaluation_does_not_disturb_training(finished, becl, tmp_path):
    out = tmp_path / "run"
    assert main([*command(becl, "--out", str(out)), "--eval-every", "35", "--eval-episodes", "3"]) == 0
    assert [row["step"] for row in rows(out)[::4]] == ["0", "35", "60"]
    assert_same(policies(out), policies(finished))


def test_a_lane_is_what_it_would_be_alone(finished, becl, tmp_path):
    """But for the order of sums: 30 updates of networks of width 16 leave a difference below 1e-4."""
    made = tiny(becl, ("walker_run",), (5,))
    assert finetune(made, opened(made, tmp_path / "alone"))
    (alone,), together = policies(tmp_path / "alone").values(), policies(finished)
    for name, array in alone.items():
        np.testing.assert_allclose(array, together["walker_run-seed-5"][name], atol=1e-4)
    assert not np.allclose(alone["learner.critic.weight"], together["walker_stand-seed-5"]["learner.critic.weight"])
    lane = [row for row in rows(finished) if (row["task"], row["seed"]) == ("walker_run", "5")]
    for one, other in zip(rows(tmp_path / "alone"), lane, strict=True):
        assert one["step"] == other["step"]
        assert float(one["return"]) == pytest.approx(float(other["return"]), rel=1e-2)


def test_evaluations_may_be_closer_than_steps_of_the_loop(probe, tmp_path):
    made = on_probe(probe, ("0.8",), "fixed:3", 100, Held(), skill_interval=None)
    made = dataclasses.replace(made, eval_every=3)
    assert finetune(made, opened(made, tmp_path / "run"), make=Peak)
    assert [int(row["step"]) for row in rows(tmp_path / "run")] == [*range(0, 100, 3), 100]


# --- Before its time --------------------------------------------------------------------------------------------------


class Pressing(Progress):
    """Presses Ctrl-C as soon as there are scores."""

    def __init__(self, out: Path):
        super().__init__(1000, "steps", lambda line: None, 1e9)
        self.out, self.pressed = out, False

    def advance(self, amount: int, seeds: int = 1) -> None:
        super().advance(amount, seeds)
        if (self.out / "scores.csv").exists() and not self.pressed:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)
        time.sleep(0.1)  # The evaluation is beside the training.


def test_an_interrupted_command_keeps_its_scores_and_begins_again(finished, becl, tmp_path, monkeypatch, capsys):
    out = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(session_file, "progress", lambda *_: contextlib.nullcontext(Pressing(out)))
        assert main(command(becl, "--out", str(out))) == 130
    assert "the same command" in capsys.readouterr().out
    assert not (out / "result.json").exists()
    assert not policies(out)
    table, whole = rows(out), rows(finished)
    assert len(table) in (4, 8, 12)
    assert table == whole[: len(table)]
    assert main(command(becl, "--out", str(out))) == 0
    assert rows(out) == whole
    assert_same(policies(out), policies(finished))


def poisoned(source: Path, out: Path) -> Path:
    """A copy of a run in which the policy of one seed is not a number."""
    shutil.copytree(source, out)
    forget_sums(out)
    path = snapshot_path(out, 5, 100)
    arrays = arrays_of(path)
    arrays["learner.actor.out.bias"] = np.full_like(arrays["learner.actor.out.bias"], np.nan)
    path.write_bytes(safetensors.numpy.save(arrays))
    return out


@pytest.mark.parametrize("steps", ["0", "60"])
def test_a_policy_that_is_not_a_number_is_exit_1(steps, becl, tmp_path, capsys):
    source = poisoned(becl, tmp_path / "source")
    words = [*command(source), "--steps", steps, "--out", str(tmp_path / "run")]
    assert main(words) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert error.startswith("becl: failed: walker_stand-seed-5, walker_run-seed-5: an action is not a number after ")
    assert "--precision float32" in error
    assert not (tmp_path / "run" / "result.json").exists()


class Broken(Peak):
    """Pays more than can be squared."""

    def step(self, action: np.ndarray) -> Step:
        return super().step(action)._replace(reward=np.full(self.num_envs, 1e38))


def test_a_run_that_learns_nonsense_stops_and_says_so(probe, tmp_path):
    made = on_probe(probe, ("0.8",), "fixed:3", 1200, Held(), skill_interval=None)
    with pytest.raises(Failed) as failed:
        finetune(made, opened(made, tmp_path / "run"), make=Broken)
    # The first update is made before the step that begins at 80.
    expected = "0.8-seed-0: an action is not a number after 84 steps; try --precision float32 or --set learner."
    assert str(failed.value).startswith(expected)
    assert not (tmp_path / "run" / "result.json").exists()


# --- What is refused --------------------------------------------------------------------------------------------------

BAD = [
    (["{becl}", "--task", "quadruped_run"], "unknown task of walker 'quadruped_run'", "walker_run"),
    (["{becl}", "--task", "walker_rum"], "unknown task of walker 'walker_rum'", "did you mean 'walker_run'"),
    (["{becl}", "--task", "walker_run", "walker_run"], "--task walker_run walker_run", "more than once"),
    (["{becl}", "--skill", "fixed:4"], "--skill fixed:4", "becl has skills 0 to 3"),
    (["{becl}", "--skill", "fixed:-1"], "--skill fixed:-1", "0 to 3"),
    (["{becl}", "--skill", "fixed:x"], "--skill fixed:x", "0 to 3"),
    (["{becl}", "--skill", "fixed"], "unknown skill choice 'fixed'", "fixed:K"),
    (["{becl}", "--skill", "random:2"], "unknown skill choice 'random:2'", "random"),
    (["{becl}", "--skill", "bestfirst"], "unknown skill choice 'bestfirst'", "did you mean 'best-first'"),
    (["{becl}", "--skill", "regress"], "--skill regress", "aps has"),
    (["{becl}", "--skill", "constant"], "--skill constant", "cic"),
    (["{becl}", "--skill", "none"], "--skill none", "becl has skills"),
    (["{aps}", "--skill", "fixed:1"], "--skill fixed:1", "continuous"),
    (["{aps}", "--skill", "each"], "--skill each", "use random or best-first"),
    (["{ddpg}", "--skill", "random"], "--skill random", "ddpg has no skills"),
    (["{ddpg}", "--skill", "each"], "--skill each", "ddpg has no skills"),
    (["{becl}", "--snapshot", "70"], "--snapshot 70", "60, 100"),
    (["{becl}", "--seeds", "3,4"], "seed 4", "3, 5"),
    (["{becl}", "--seeds", "3,3"], "--seeds", "3 given more than once"),
    (["{becl}", "--seeds", "x"], "--seeds 'x'", "expected"),
    (["{becl}", "--steps", "20"], "--steps 20", "more than the 20"),
    (["{becl}", "--steps", "-1"], "--steps -1", "0, or more"),
    (["{becl}", "--skill", "meta", "--steps", "50"], "--steps 50", "more than the 50"),
    (["{becl}", "--hidden", "8"], "--hidden", "--scratch"),
    (["{becl}", "--envs", "0"], "--envs 0", "at least 1"),
    (["{becl}", "--eval-every", "0"], "--eval-every 0", "at least 1"),
    (["{becl}", "--eval-episodes", "0"], "--eval-episodes 0", "at least 1"),
    (["{becl}", "--final-episodes", "9"], "--final-episodes 9", "at least the 10 of each point of the curve"),
    (["{becl}", "--set", "reward_normalise=std"], "reward_normalise std", "the task's own reward"),
    (["{becl}", "--set", "reward_scale=0"], "reward_scale 0", "must be greater than 0"),
    (["{becl}", "--set", "reward_scale=-1"], "reward_scale -1", "must be greater than 0"),
    (["{becl}", "--set", "reward_scale=nan"], "reward_scale nan", "must be greater than 0"),
    (["{becl}", "--transfer", "all"], "all", "critic-released"),
    (["{becl}", "--set", "batch=0"], "batch 0", "greater than 0"),
    (["{becl}", "--set", "env.episode_length=9"], "env.episode_length=9", "as long as in pretraining"),
    (["{becl}", "--set", "temperature=1"], "'temperature'", "allowed"),
    (["{becl}", "--scratch"], "name the folder of a pretrained run, or --scratch", "not both"),
    ([], "name the folder of a pretrained run", "--scratch"),
    (["{maze}"], "square_a is a maze", "no tasks"),
    (["{empty}"], "holds no run", "config.json"),
    (["{becl}/seed-3"], "holds no run", "config.json"),
    (["{unfinished}"], "no snapshot", "3, 5"),
    (["--scratch"], "--task all", "name the tasks"),
    (["--scratch", "--task", "walker_rum"], "unknown task 'walker_rum'", "did you mean 'walker_run'"),
    (["--scratch", "--task", "walker_run", "jaco_reach_top_left"], "--task walker_run", "one domain"),
    (["--scratch", "--task", "walker_run", "--skill", "random"], "--skill random", "ddpg has no skills"),
    (["--scratch", "--task", "walker_run", "--skill", "regress"], "--skill regress", "ddpg has no skills"),
    (["--scratch", "--task", "walker_run", "--snapshot", "100"], "--scratch", "leave out"),
    (["--scratch", "--task", "walker_run", "--transfer", "trunk"], "--scratch", "leave out"),
    (["--scratch", "--task", "walker_run", "--hidden", "0"], "--hidden 0", "at least 1"),
]  # fmt: skip


@pytest.fixture(scope="module")
def places(becl, aps, runs) -> dict[str, Path]:
    maze, unfinished = runs / "maze", runs / "unfinished"
    for out, env in ((maze, "square_a"), (unfinished, "walker")):
        open_folder(make_pretraining(PretrainOptions(env, "becl", SEEDS)).config(), out)
    (runs / "empty").mkdir()
    ddpg = runs / "ddpg" if (runs / "ddpg").exists() else pretrained(runs / "ddpg", "ddpg")
    return {"becl": becl, "aps": aps, "ddpg": ddpg, "maze": maze, "unfinished": unfinished, "empty": runs / "empty"}


@pytest.mark.parametrize(("args", "wrong", "allowed"), BAD)
def test_bad_input_is_one_line_exit_2_and_nothing_written(args, wrong, allowed, places, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["finetune", *(word.format(**places) for word in args)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert wrong in error
    assert allowed in error
    assert not list(tmp_path.iterdir())


def test_tasks_have_episodes_as_long_as_pretraining_had(becl, tmp_path):
    planned = make_pretraining(PretrainOptions("walker", "becl", set=["env.episode_length=30"]))
    options = FinetuneOptions(Path("planned"), TASKS, steps=5000)
    for made, expected in (
        (make_finetuning(options, planned), 30),
        (make_finetuning(dataclasses.replace(options, skill="meta", set=("learner.interval=10",)), planned), 30),
        (tiny(None, set=["env.episode_length=20"], steps=5000), 20),
        (tiny(becl), None),
    ):
        assert made.episode_length == expected
    surroundings = finetune_file.Finetuner(made, tmp_path)._surroundings
    scratch = finetune_file.Finetuner(tiny(None, set=["env.episode_length=20"], steps=5000), tmp_path)
    for found, length in ((surroundings(1), LENGTH), (scratch._surroundings(1), 20)):
        with contextlib.closing(found):
            assert found.spec.episode_length == length


def test_a_folder_of_finetuning_is_no_pretrained_run(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["finetune", str(finished)]) == 2
    assert "holds no pretraining run" in capsys.readouterr().err
    assert not os.listdir(tmp_path)

"""Puts one deliberate bug after another into a copy of this project, and looks whether the quick tests find it.

    python -m benchmarks.mutants                    all of them
    python -m benchmarks.mutants replay --jobs 2    those with this word in their name, two at a time

A bug is a text that occurs once under src/ and what to write in its place, so that modules may move. Only the tests
that should fail are run. Exit code 1 where a bug is not found, or its text or its tests are not there any more.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("src", "tests", "docs", "examples", "benchmarks", "results", "Makefile", "README.md", "pyproject.toml")
FOUND, NO_TESTS = 1, 5  # Exit codes of pytest.
LONGEST = 1800  # Seconds for the tests of one bug: one that makes them hang is found as well.


class Mutant(NamedTuple):
    name: str
    before: str
    after: str
    tests: str
    """Files in tests/."""
    chosen: str = ""
    """Which of their tests, as for pytest's -k."""


MUTANTS = (
    # Formulas of objectives.
    Mutant("BeCL: sign of the reward", "jax.nn.sigmoid(positive - negatives)", "jax.nn.sigmoid(negatives - positive)",
           "test_objectives.py", "becl"),
    Mutant("BeCL: temperature forgotten", "jnp.exp(fine_product(anchors, features.T) / temperature)",
           "jnp.exp(fine_product(anchors, features.T))", "test_objectives.py", "becl"),
    Mutant("BeCL: number of negatives", "2 * (self.skills.dim - 1) / number", "2 * self.skills.dim / number",
           "test_objectives.py", "becl"),
    Mutant("BeCL: gradient written out, pull", "-pull, 0.0)) * g", "pull, 0.0)) * g",
           "test_objectives.py", "equations"),
    Mutant("DIAYN: prior of the skill", "batch.skill) + jnp.log(self.skills.dim)\n",
           "batch.skill) - jnp.log(self.skills.dim)\n", "test_objectives.py", "diayn"),
    Mutant("DADS: variance", "/ (2 * stddev**2)", "/ (2 * stddev)", "test_objectives.py", "dads or gaussian"),
    Mutant("CIC: positive in the denominator", "jnp.exp(1 / temperature) if self_term", "jnp.exp(0.0) if self_term",
           "test_objectives.py", "cic"),
    Mutant("APS: regression against the reward", "unit(reward @ features)", "unit(-reward @ features)",
           "test_objectives_urlb.py test_choice.py", "aps or regress"),
    Mutant("particles: neighbours instead of the farthest", "-jax.lax.top_k(-squares, k)[0]",
           "jax.lax.top_k(squares, k)[0]", "test_objectives.py test_objectives_urlb.py", "nearest or particle or apt"),
    Mutant("RND: scale of the error", "error = distillation_error(state.predictor, state.target, batch.obs)\n",
           "error = distillation_error(state.predictor, state.target, batch.obs) ** 2\n",
           "test_objectives_urlb.py", "rnd"),
    Mutant("METRA: multiplier moved the wrong way", "return loss + dual * fixed(spare)",
           "return loss - dual * fixed(spare)", "test_temporal.py", "multiplier"),
    Mutant("METRA: constraint counts where it is met", "jnp.minimum(spec.slack, bound", "jnp.maximum(spec.slack, bound",
           "test_temporal.py", "metra"),
    Mutant("CSF: one other skill for all of them", "penalty * jax.nn.logsumexp(move @ others.T, -1)",
           "penalty * (move @ others.T).max(-1)", "test_temporal.py", "csf"),
    Mutant("sums: weights of the rewards", "[weight * reward for weight, (_, reward)",
           "[reward for weight, (_, reward)", "test_sums.py test_amped.py", "weights or targets"),
    # Learning.
    Mutant("replay: discount of n steps", "discount * self.gamma * at(steps.discount, here)",
           "discount * at(steps.discount, here)", "test_replay.py"),
    Mutant("replay: windows across a time limit", "broken |= going & ended & (state.steps.discount[place] > 0)",
           "broken |= False", "test_replay.py"),
    Mutant("replay: an end for good never looked at", "broken |= going & ended & (state.steps.discount[place] > 0)",
           "broken |= ended", "test_early_ends.py test_replay.py"),
    Mutant("replay: next observation one step early", "end = jnp.where(going, here, end)",
           "end = jnp.where(going & (i + 1 < self.nstep), here, end)", "test_replay.py"),
    Mutant("replay: rows overwritten", "row, finals = state.written % state.steps.last.shape[0], ",
           "row, finals = jnp.minimum(state.written, state.steps.last.shape[0] - 1), ", "test_replay.py"),
    Mutant("replay: stack across an episode's start",
           "jnp.where(began_at(steps, places[-1], column), places[-1], before)", "before", "test_stacks.py"),
    Mutant("loop: skill interval", "before.since + 1 >= self.skill_interval", "before.since >= self.skill_interval",
           "test_offpolicy.py", "stored"),
    Mutant("loop: fits per update", "for number, fit_key in enumerate(fit_keys):\n            last",
           "for number, fit_key in enumerate(fit_keys[:1]):\n            last", "test_offpolicy.py", "fits"),
    Mutant("images: encoder trained by an objective that should not", 'return self.trained_by in ("both", "objective")',
           'return self.trained_by != "nobody"', "test_seeing.py", "only_those"),
    Mutant("images: gradient through the other state", 'obs=obs if vision.through != "next_obs" else',
           'obs=obs if vision.through != "obs" else', "test_seeing.py", "through"),
    Mutant("conflicting gradients: projection", "product / jnp.maximum(other, TINY)",
           "product / jnp.maximum(own, TINY)", "test_amped.py", "gradients or right_angles"),
    Mutant("selector: values instead of their target", "state.target(batch.next_obs).max(-1)",
           "state.values(batch.next_obs).max(-1)", "test_amped.py", "selector"),
    Mutant("DDPG: target update rate", "rate * new + (1 - rate) * old", "rate * old + (1 - rate) * new",
           "test_ddpg.py test_networks.py"),
    Mutant("DDPG: the smaller of two values", "target_key), batch.skill).min(0)", "target_key), batch.skill).max(0)",
           "test_ddpg.py", "losses"),
    Mutant("PPO: moments' square", "jnp.maximum(moments.squares / moments.number - jnp.square(mean), 0.01)",
           "jnp.maximum(moments.squares / moments.number, 0.01)", "test_ppo.py test_networks.py"),
    # Transfer and evaluation.
    Mutant("transfer: whole critic for its trunk",
           "eqx.tree_at(lambda critic: critic.trunk, fresh.critic, pretrained.critic.trunk)", "pretrained.critic",
           "test_finetune.py", "inherited"),
    Mutant("transfer: target not in step", 'pretrained.critic) if transfer == "critic" else fresh.target',
           'fresh.critic) if transfer == "critic" else fresh.target', "test_finetune.py", "inherited"),
    Mutant("evaluation: final episodes counted", "for _, _, returns in rounds], 1)[",
           "for _, _, returns in rounds], 1)[:, 1:][", "test_finetune.py", "final"),
    Mutant("reach: away from the goal", "skill_towards(self.leader, self._seen(obs), self._seen(goal))",
           "skill_towards(self.leader, self._seen(goal), self._seen(obs))", "test_reach.py", "points or corridor"),
    # Runs.
    Mutant("checkpoint: checksum of arrays not looked at",
           'if digest(data) != entry["sha256"]:', "if not data:",
           "test_checkpoint.py", "byte or whole"),
    Mutant("checkpoint: an older one never removed", "[step for step in self.steps() if step <= newest][-KEPT:]",
           "[step for step in self.steps() if step <= newest]", "test_checkpoint.py"),
    Mutant("resume: returns so far forgotten", 'self._returns[:] = arrays["returns"]',
           'self._returns[:] = 0 * arrays["returns"]', "test_resume.py", "goes_on"),
    Mutant("CSV: the header again and again", "header=not self._columns)", "header=True)",
           "test_pretrain.py test_resume.py"),
    Mutant("log: mean of metrics", "np.asarray(value) / self._count for", "np.asarray(value) for", "test_pretrain.py"),
    # Numbers about runs.
    Mutant("stats: resamples of the wrong task", "rng.integers(end[task] - n, end[task], (number, n), np.int32)",
           "rng.integers(0, end[task], (number, n), np.int32)", "test_stats.py"),
    Mutant("stats: bounds of the interval", "[(1 - level) / 2, (1 + level) / 2], axis=0", "[1 - level, level], axis=0",
           "test_stats.py"),
    Mutant("report: verdict", "return self.difference.low > 0 if", "return self.difference.high > 0 if",
           "test_report.py", "help or harm or scratch or verdict"),
    # Environments.
    Mutant("maze: corners", "jnp.where(jnp.stack([x_first, ~x_first], -1), after, before)",
           "jnp.where(jnp.stack([x_first, ~x_first], -1), before, before)", "test_maze.py"),
    Mutant("maze: start near walls", "0.5 - START_MARGIN * (not is_open)", "0.5 - START_MARGIN * is_open",
           "test_maze.py"),
    Mutant("robots: tolerance of a reward", "np.exp(np.log(value_at_margin) * distance**2)",
           "np.exp(np.log(value_at_margin) * distance)", "test_envs.py", "tolerance or golden"),
    Mutant("walker: weight of standing", "(3 * standing + (1 + view.upright) / 2) / 4",
           "(2 * standing + (1 + view.upright)) / 4", "test_envs.py", "walker"),
    # At the edge.
    Mutant("seeds: the last of a range", "seeds: Sequence[int] = range(low, high)",
           "seeds: Sequence[int] = range(low, high + 1)", "test_cli.py test_sweep.py test_pretrain.py", "seeds"),
    Mutant("seeds: below 0 let through", "if not seeds or min(seeds) < 0:", "if not seeds:",
           "test_bad_input.py", "seeds"),
    Mutant("bad input: environments that do not go with updates",
           "if self.envs % self.steps_per_update and self.steps_per_update % self.envs:", "if False:",
           "test_offpolicy.py test_pretrain.py test_bad_input.py", "envs or refused or schedule"),
    Mutant("skill: layer norm", "np.float32(1e-5))[..., None]", "np.float32(1e-1))[..., None]", "test_api.py",
           "TestSkill"),
    Mutant("export: the skill's half of the weights", "skill.astype(np.float64) @ weight[observed:]",
           "skill.astype(np.float64) @ weight[: len(skill)]", "test_export.py", "acts_like"),
    # Sweeps.
    Mutant("time limit: jobs that will not finish", "else needs <= self.left", "else True", "test_sweep_limit.py",
           "finish or checkpoint"),
    Mutant("time limit: what is done already counted again", "(job.work - trained(job, self._out))", "job.work",
           "test_sweep_limit.py", "checkpoint"),
    # Signals, output and sharing.
    Mutant("signals: raised again while one cleans up",
           "if not _importing(frame) and not _on_its_way(sys.exception()):", "if not _importing(frame):",
           "test_signals.py", "cleaning"),
    Mutant("signals: lost where nobody looks", "if pressed and not seen:", "if False:", "test_signals.py", "loops"),
    Mutant("output: every loss ends the program", 'if self.loss == "ends" and self.error is not None:',
           "if self.error is not None:", "test_output.py", "drops or bar"),
    Mutant("sharing: where the source lies",
           'os.path.relpath(os.path.realpath(config["source"]), os.path.realpath(out))',
           'os.path.realpath(config["source"])', "test_sharing.py", "source"),
    Mutant("sharing: formulas in tables", """return f"'{value}\"""", "return value", "test_sharing.py", "formula"),
)  # fmt: skip


def home_of(text: str) -> Path:
    """The one file under src/ with this text."""
    homes = [path for path in sorted((ROOT / "src").rglob("*.py")) if text in path.read_text()]
    if len(homes) != 1 or homes[0].read_text().count(text) != 1:
        raise LookupError(f"{len(homes)} files have {text!r}")
    return homes[0].relative_to(ROOT)


def copy_of(place: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place / name)
    return place


def try_out(mutant: Mutant) -> tuple[bool, str]:
    """Whether the tests find it, and what to say."""
    try:
        home = home_of(mutant.before)
    except LookupError as error:
        return False, f"not tried: {error}"
    with tempfile.TemporaryDirectory(prefix="becl-mutant-") as folder:
        place = copy_of(Path(folder))
        text = (place / home).read_text()
        (place / home).write_text(text.replace(mutant.before, mutant.after))
        command = [sys.executable, "-m", "pytest", "-n", "0", "-x", "-q", "-m", "not slow and not pages"]
        command += [f"tests/{name}" for name in mutant.tests.split()]
        command += ["-k", mutant.chosen] if mutant.chosen else []
        command += ["--basetemp", str(place / "temporary")]
        environment = os.environ | {"PYTHONPATH": str(place / "src"), "JAX_PLATFORMS": "cpu"}
        try:
            done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=LONGEST)
        except subprocess.TimeoutExpired:
            return True, "found: the tests hang"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    if done.returncode == FOUND and failed:
        return True, "found by " + failed[0].split(" ", 1)[1].partition(" - ")[0].removeprefix("tests/")
    if done.returncode == NO_TESTS:
        return False, f"not tried: no test of {mutant.tests} is called {mutant.chosen}"
    if done.returncode == 0:
        return False, f"NOT FOUND by {mutant.tests}"
    return False, f"not tried: pytest ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-1000:]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="", help="only bugs with this in their name")
    parser.add_argument("--jobs", type=int, default=1, help="bugs at the same time")
    options = parser.parse_args()
    chosen = [mutant for mutant in MUTANTS if options.word.lower() in mutant.name.lower()]
    with ThreadPoolExecutor(options.jobs) as threads:
        verdicts = []
        for mutant, (found, said) in zip(chosen, threads.map(try_out, chosen), strict=True):
            verdicts.append(found)
            print(f"{mutant.name}: {said}", flush=True)
    print(f"{sum(verdicts)} of {len(verdicts)} found")
    return 0 if verdicts and all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())

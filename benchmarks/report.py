"""How long a report of many runs takes, with folders made up for it.

    python -m benchmarks.report                      10 methods × 12 tasks × 10 seeds, a folder each
    python -m benchmarks.report --seeds 3 --keep DIR  fewer, and the folders and the page are kept

Returns rise towards the means of the paper's table with noise of its size. They are no results.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from becl.commands.report import run as report
from becl.experiments.pretraining import make_pretraining
from becl.measure import published
from becl.options import PretrainOptions, ReportOptions

METHODS = ("ddpg", "icm", "disagreement", "rnd", "apt", "proto", "smm", "diayn", "aps", "cic", "becl")
STEPS, EVERY = 100_000, 10_000


def finetuning(method: str, task: str, seeds: list[int], **changes: Any) -> dict[str, Any]:
    """The configuration that a folder of `becl finetune` holds."""
    domain = task.partition("_")[0]
    pretraining = json.loads(
        json.dumps(make_pretraining(PretrainOptions(domain, method, seeds=tuple(range(10)))).config())
    )
    scratch = method == "ddpg"
    skills = pretraining["run"]["objective"]["skills"]["spec"]
    return {
        "command": "finetune",
        "env": domain,
        "method": method,
        "tasks": [task],
        "seeds": seeds,
        "steps": STEPS,
        "snapshot": None if scratch else 2_000_000,
        "skill": "none" if skills == "NoSkill" else "random",
        "transfer": "none" if scratch else "trunk",
        "eval_every": EVERY,
        "eval_episodes": 10,
        "run": pretraining["run"],
        "pretraining": None if scratch else pretraining,
        "source": None if scratch else f"runs/pretrain-{domain}-{method}",
    } | changes


def write_folder(folder: Path, config: dict[str, Any], returns: np.ndarray, steps: np.ndarray) -> None:
    """One task: returns [seeds, evaluations]."""
    folder.mkdir(parents=True)
    (task,) = config["tasks"]
    lines = ["task,seed,skill,step,return,stderr"]
    for seed, values in zip(config["seeds"], returns, strict=True):
        lines += [f"{task},{seed},,{step},{value:.6g},5.0" for step, value in zip(steps, values, strict=True)]
    command = f"becl finetune {config['source'] or config['env']} --task {task} --method {config['method']}"
    result = {
        "steps": config["steps"],
        "seconds": 1234.5,
        "device": "made up",
        "jax": "0.0",
        "python": "3",
        "becl": "0.0",
        "command": command,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "scores.csv").write_text("\n".join(lines) + "\n")
    (folder / "result.json").write_text(json.dumps(result))


def rising(mean: float, error: float, seeds: int, rng: np.random.Generator) -> np.ndarray:
    """Curves [seeds, evaluations] that end around a mean with the spread of its standard error."""
    ends = rng.normal(mean, error * np.sqrt(seeds), (seeds, 1)).clip(1)
    rise = 1 - 0.9 * np.exp(-np.linspace(0, 5, STEPS // EVERY + 1))
    return ends * rise * rng.normal(1, 0.02, (seeds, len(rise)))


def make_runs(where: Path, methods: tuple[str, ...], seeds: int) -> int:
    """A folder a method, task and seed; returns how many."""
    rng = np.random.default_rng(0)
    steps = np.arange(0, STEPS + 1, EVERY)
    printed = published.table("becl-2023")
    count = 0
    for method in methods:
        for task, row in printed[method].items():
            for seed, curve in enumerate(rising(row.value, row.error or 10.0, seeds, rng)):
                write_folder(where / f"{method}-{task}-{seed}", finetuning(method, task, [seed]), curve[None], steps)
                count += 1
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--resamples", type=int, default=ReportOptions.resamples)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        where = options.keep or Path(temporary)
        count = make_runs(where / "runs", METHODS[-options.methods :], options.seeds)
        began = time.perf_counter()
        report(ReportOptions((where / "runs",), where / "report", options.resamples))
        spent = time.perf_counter() - began
        size = (where / "report" / "index.html").stat().st_size
        print(f"{count:,} runs: {spent:.1f} s, page of {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

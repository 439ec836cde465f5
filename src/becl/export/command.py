"""`becl export`: the policy of one skill as a file that others can load without this package."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from becl.errors import Failed


@dataclass(frozen=True)
class ExportCommand:
    """Write the policy of one skill as a file that others can load without this package."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder of `becl pretrain` or `becl finetune`."""
    out: Path
    """File to write; .npz, .safetensors or .onnx."""
    skill: str | None = None
    """Its number; for continuous skills numbers separated by commas, or which of the draws of `becl evaluate`. A
    finetuned policy has its own."""
    seed: int | None = None
    """The run's first by default."""
    snapshot: int | None = None
    """Steps of pretraining; the last by default."""
    task: str | None = None
    """Of a finetuned run with several."""
    format: Literal["npz", "safetensors", "onnx"] | None = None
    """That of the file's name by default."""
    force: bool = False
    """Replace the file where there is one."""


def export_command(command: ExportCommand) -> int:
    from becl.export.write import export_policy  # It imports JAX, which takes seconds.

    try:
        policy, difference = export_policy(
            command.run, command.out, command.skill, command.seed, command.snapshot, command.task, command.format,
            command.force,
        )  # fmt: skip
    except Failed as error:
        print(f"becl: failed: {error}", file=sys.stderr)
        return 1
    about = policy.about
    what = [about["method"], about["task"] or about["env"], f"seed {about['seed']}", f"{about['step']:,} steps"]
    what += [f"skill {about['skill']}"] if about["skill"] != "" else ["a continuous skill"] if len(policy.skill) else []
    print(f"{', '.join(what)} → {command.out} ({command.out.stat().st_size / 1e6:.1f} MB)")
    print(
        f"observation ({about['observation_dim']}) → action ({about['action_dim']}) in [-1, 1]; read again, its "
        f"actions differ from the run's by at most {difference:.1g}"
    )
    return 0

"""`becl export`: the policy of one skill as a file that others can load without this package."""

import sys

from becl.errors import Failed
from becl.export.write import export_policy
from becl.options import ExportOptions


def run(options: ExportOptions) -> int:
    try:
        policy, difference = export_policy(
            options.run, options.out, options.skill, options.seed, options.snapshot, options.task, options.format,
            options.force,
        )  # fmt: skip
    except Failed as error:
        print(f"becl: failed: {error}", file=sys.stderr)
        return 1
    about = policy.about
    what = [about["method"], about["task"] or about["env"], f"seed {about['seed']}", f"{about['step']:,} steps"]
    what += [f"skill {about['skill']}"] if about["skill"] != "" else ["a continuous skill"] if len(policy.skill) else []
    print(f"{', '.join(what)} → {options.out} ({options.out.stat().st_size / 1e6:.1f} MB)")
    print(
        f"observation ({about['observation_dim']}) → action ({about['action_dim']}) in [-1, 1]; read again, its "
        f"actions differ from the run's by at most {difference:.1g}"
    )
    return 0

"""`becl methods`: the methods, and every option of one."""

import json

from becl.experiments.maze_study import make_run
from becl.experiments.pretraining import make_pretraining
from becl.objectives import METHODS, Method, find_method
from becl.options import MethodsOptions, PretrainOptions
from becl.specs import to_dict
from becl.terminal import console, table


def run(options: MethodsOptions) -> int:
    chosen = {name: find_method(name) for name in options.name}
    if not options.name:
        rows = [
            (name, method.kind, skill_text(method), method.summary, "yes" if method.maze else "")
            for name, method in METHODS.items()
        ]
        console().print(table("methods", ("name", "kind", "skills", "rewards", "in becl maze"), rows))
    for name, method in chosen.items():
        print(f"{name} ({method.kind}): {method.summary}")
        print("pretraining (becl pretrain; change with --set OPTION=VALUE):")
        print(json.dumps(to_dict(make_pretraining(PretrainOptions("walker", name)).run), indent=1))
        if method.maze:
            print(f"in the maze study (becl maze; change with --set {name}:OPTION=VALUE):")
            print(json.dumps(to_dict(make_run(name, "square_a", 10)), indent=1))
    return 0


def skill_text(method: Method) -> str:
    """A method's skill space and when a skill is drawn, in a few words."""
    space = method.objective.skills
    if not space.dim:
        return "none"
    when = "episode" if method.skill_interval is None else f"{method.skill_interval} steps"
    return f"{type(space).__name__}({space.dim}), each {when}"

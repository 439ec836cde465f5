"""The `becl` program. Starts quickly: a command's own modules are imported when it is called."""

import sys
from collections.abc import Sequence
from typing import TypeVar

from becl.errors import UserError, unknown

Options = TypeVar("Options")

HELP = {
    "maze": "learn skills in a 2-D maze and draw them (the paper's maze study)",
    "pretrain": "learn skills on robots without a reward: any method, seeds together",
    "finetune": "let pretrained skills learn tasks, and score them",
    "evaluate": "look at what pretrained skills do: returns, coverage, how well they are told apart",
    "gallery": "look at all skills side by side in 3D, in a browser or as one file to send on",
    "video": "film the skills: an mp4 and a GIF of each, and one of all side by side",
    "filmstrip": "snapshots along an episode as one picture: a row a skill, or a row a method",
    "trajectories": "draw where skills go, which states they cover and, for BeCL, their features",
    "sweep": "a whole grid of runs in stages, on one machine or a Ray cluster",
    "report": "tables, intervals and figures of finetuned runs, as one page",
    "resume": "go on with a run that was stopped",
    "export": "write the policy of a skill to a file that needs no becl: npz, safetensors or onnx",
    "plot": "draw learning curves of pretraining runs",
    "envs": "show the environments",
    "methods": "show the methods and their options",
    "theory": "check the paper's theorems numerically",
    "doctor": "what works on this machine, and what to install for the rest",
}

WITHOUT_METHODS = ("envs", "theory", "doctor")
PLUGIN = "--plugin FILE_OR_MODULE, also more than once: methods of your own (docs/own-method.md)."


def usage() -> str:
    commands = "\n".join(f"  {name:<14}{text}" for name, text in HELP.items())
    return (
        "becl: skills without a reward, by behavior contrastive learning\n\n"
        f"usage: becl COMMAND [options]\n\n{commands}\n\n"
        "becl COMMAND --help shows a command's options; becl --version the version.\n"
        "becl COMMAND --plugin FILE_OR_MODULE adds methods of your own to any command (docs/own-method.md)."
    )


def main(args: Sequence[str] | None = None) -> int:
    """The `becl` program with these words, or those it was started with; gives its exit code."""
    try:
        return begin(sys.argv[1:] if args is None else args)
    except UserError as error:
        print(f"becl: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.filename is None:
            raise
        print(f"becl: {' '.join(str(error.filename).splitlines())}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("becl: stopped", file=sys.stderr)
        return 130


def begin(args: Sequence[str]) -> int:
    """Does what the words say, plug-ins first."""
    from becl.commands import plugins

    args, words = plugins.split_words(args)
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if args else 2
    if args[0] in ("-V", "--version"):
        from becl.runs.provenance import own_version

        print(f"becl {own_version() or '(not installed)'}")
        return 0
    if args[0] not in HELP:
        raise unknown("command", args[0], HELP)
    if not {"-h", "--help"} & set(args):
        if args[0] not in WITHOUT_METHODS:
            plugins.load_installed()
        words = plugins.load_all(words)
    from becl.commands.all import run

    return run(args[0], args[1:], words)


def parse_options(options: type[Options], name: str, args: Sequence[str]) -> Options:
    """Options of a command from its words, tyro's report of a mistake folded into one line."""
    import contextlib
    import dataclasses
    import io

    import tyro

    from becl.experiments.options import Refused

    known = ["--" + field.name.replace("_", "-") for field in dataclasses.fields(options)]  # type: ignore[arg-type]
    for word in args:
        option = word.partition("=")[0].replace("_", "-")
        negated = option.replace("--no-", "--", 1)
        if option.startswith("--") and option not in (*known, "--help") and negated not in known:
            raise unknown(f"option of becl {name}", option, [*known, "--plugin"])
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            found = tyro.cli(
                options, prog=f"becl {name}", args=list(args), description=f"{options.__doc__}\n\n{PLUGIN}"
            )
    except Refused as refused:
        raise UserError(str(refused)) from None
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UserError(f"becl {name}: {one_line(errors.getvalue())}") from None
    for field in dataclasses.fields(options):  # type: ignore[arg-type]
        if field.name == "seeds":  # Checked as they are parsed.
            continue
        value = getattr(found, field.name)
        if any(isinstance(one, int) and abs(one) >= 2**31 for one in (value if isinstance(value, tuple) else [value])):
            raise UserError(f"--{field.name.replace('_', '-')} {value}: must be below 2^31")
    return found


def one_line(report: str) -> str:
    """What a boxed report says before its rulers and its pointer to the help text."""
    lines = []
    for line in report.splitlines():
        text = line.strip("│╭╮╰╯ ")
        if set(text) <= set("─ "):
            break
        if not line.startswith(("╭", "╰")) and set(text) != {"-"}:
            lines.append(text)
    return " ".join(lines)

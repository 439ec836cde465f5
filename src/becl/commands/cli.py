"""The `becl` program: finds the command, loads plug-ins, reads the options.

Starts quickly. A command's own modules, which may load JAX or MuJoCo, are imported once its options are read.
"""

import importlib
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

from becl import plugins
from becl.errors import UserError, printable, unknown
from becl.invocation import COMMAND, own_version
from becl.runs.sums import gathering_unlisted, tell_unlisted
from becl.signals import STOPPED, answered, heard
from becl.terminal import Loss, Output, streams

HELP = {
    "maze": "learn skills in a 2-D maze and draw them (the paper's study)",
    "pretrain": "learn skills without a reward: any environment, method, seeds",
    "finetune": "let pretrained skills learn tasks, and score them",
    "control": "put frozen skills to use: learn which of them acts when",
    "evaluate": "measure what skills do: returns, coverage, distinctness",
    "reach": "lead to goals without training (METRA and its family)",
    "gallery": "look at all skills side by side in 3D, in a browser or a file",
    "video": "film the skills: an mp4 and a GIF of each, and of all together",
    "filmstrip": "draw an episode as one picture: a row per skill or method",
    "trajectories": "draw where skills go and which states they cover",
    "sweep": "train and compare a grid of runs, here or on a Ray cluster",
    "report": "compare finetuned runs: tables, intervals, figures on one page",
    "resume": "continue a run that was stopped",
    "export": "write a skill's policy as npz, safetensors or ONNX",
    "plot": "draw learning curves of pretraining runs",
    "encoder-weights": "make the file of frozen weights for --encoder pieg",
    "envs": "show the environments",
    "methods": "show the methods and their options",
    "theory": "check the paper's theorems numerically",
    "doctor": "check what works on this machine, and how to mend the rest",
    "completion": "print the script that completes words in bash, zsh or fish",
}

WITHOUT_METHODS = ("encoder-weights", "envs", "theory", "doctor")
TRAINING = ("maze", "pretrain", "finetune", "control", "sweep", "resume")
"""Commands that go on, and succeed, where nobody listens."""
SHOWING = ("envs", "methods", "doctor", "completion")
"""Commands that have nothing to do where nobody listens; with --dry-run others have neither."""


def usage() -> str:
    commands = "\n".join(f"  {name:<16}{text}" for name, text in HELP.items())
    return (
        "becl: skills without a reward, by behavior contrastive learning\n\n"
        f"usage: becl COMMAND [options]\n\n{commands}\n\n"
        "becl COMMAND --help shows the options of a command, with examples.\n"
        "becl COMMAND --plugin PLUGIN adds methods of your own (docs/own-method.md).\n"
        "becl --version shows the version."
    )


def main(args: Sequence[str] | None = None) -> int:
    """The `becl` program with these words, or those it was started with; gives its exit code."""
    if args is None:
        return program(lambda: begin(sys.argv[1:]))
    return guarded(lambda: begin(args))


def execute(name: str, options: Any, words: Sequence[str]) -> int:
    """A command with its options, as if these words had been typed; gives its exit code."""
    return guarded(lambda: run(name, options, words))


def program(work: Callable[[], int]) -> int:
    """The exit code of this process, which has its signals and its output for itself."""
    with streams() as out:
        out.loss = "ends"
        try:
            with answered():
                try:
                    code = guarded(work)
                except SystemExit as ended:  # As after --help.
                    code = int(ended.code or 0)
                if heard():
                    code = stopped()
                out.flush()
        except KeyboardInterrupt:
            code = stopped()
        except SystemExit:
            code = out.code
        if out.code == 1:
            assert out.error is not None
            print(f"becl: cannot write what was to be shown: {out.error.strerror}", file=sys.stderr)
        sys.stderr.flush()
        return code or out.code


def guarded(work: Callable[[], int]) -> int:
    """The exit code of some work; its errors become one line."""
    try:
        return work()
    except UserError as error:
        print(f"becl: {' '.join(str(error).splitlines())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return stopped()
    except Exception as error:
        if heard():  # It came of a signal: compiled code tells of all that happens in it in its own way.
            return stopped()
        if not isinstance(error, OSError) or error.filename is None:
            raise
        print(f"becl: {printable(' '.join(str(error.filename).splitlines()))}: {error.strerror}", file=sys.stderr)
        return 2


def stopped() -> int:
    heard()
    print("becl: stopped", file=sys.stderr)
    return STOPPED


def begin(args: Sequence[str]) -> int:
    """Does what the words say, plug-ins first."""
    if isinstance(args, str) or not isinstance(args, Sequence) or any(not isinstance(word, str) for word in args):
        raise UserError(f"expected words, such as ['pretrain', 'walker'], not {args!r}")
    if bad := [word for word in args if printable(word) != word]:
        raise UserError(f"{bad[0]!r} has control characters")
    args, words = split_words(args)
    if not args or args[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if args else 2
    if args[0] in ("-V", "--version"):
        print(f"becl {own_version() or '(not installed)'}")
        return 0
    if args[0] not in HELP:
        raise unknown("command", args[0], HELP)
    if not {"-h", "--help"} & set(args):
        if args[0] not in WITHOUT_METHODS:
            plugins.load_installed()
        words = plugins.load_all(words)
    from becl.commands.parse import parse_options
    from becl.options import OPTIONS

    name, *rest = args
    if {"-h", "--help"} & set(rest):
        from becl.commands.help import print_help

        print_help(OPTIONS[name], name)
        return 0
    options = parse_options(OPTIONS[name], name, rest)
    return run(name, options, [name, *rest, *(f"--plugin={word}" for word in words)])


def run(name: str, options: Any, words: Sequence[str]) -> int:
    """Does a command; its own modules, which may load JAX or MuJoCo, are imported here."""
    COMMAND.set(shlex.join(["becl", *words]))
    if isinstance(sys.stdout, Output):
        sys.stdout.loss = loss_of(name, options)
    module = importlib.import_module(f"becl.commands.{name.replace('-', '_')}")
    if heard():  # It waited for the import.
        raise KeyboardInterrupt
    with gathering_unlisted() as unlisted:  # An error is one line, and no other beside it.
        code = module.run(options)
    if code == 0:
        tell_unlisted(unlisted)
    return code


def loss_of(name: str, options: Any) -> Loss:
    """What follows where nobody takes what a command prints."""
    if name in SHOWING or getattr(options, "dry_run", False):
        return "ends"
    return "ignored" if name in TRAINING else "counts"


def split_words(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments without --plugin, and the words given with it."""
    rest, words, given = [], [], iter(args)
    for arg in given:
        option, equals, value = arg.partition("=")
        if option != "--plugin":
            rest.append(arg)
        else:
            words.append(value if equals else next(given, ""))
            if not words[-1] or words[-1].startswith("--"):
                raise UserError("--plugin: name a file (metra.py) or a module")
    return rest, words

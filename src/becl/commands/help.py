"""The help of a command: what it does, its options in groups, examples.

All of it stands with the options: the docstring of their class, the text below each field, the groups they begin.
"""

import ast
import inspect
import re
import shutil
import textwrap
from typing import NamedTuple

from becl.options.fields import CommandOption, options_of

SHARED = {
    "--plugin PLUGIN": "Add methods of your own, from a file or a module; may be repeated (docs/own-method.md).",
    "-h, --help": "Show this help and do nothing else.",
}
"""What every command takes besides its own options."""
NARROWEST, WIDEST = 40, 110
"""Columns: text is not wrapped to less, and is hard to read in longer lines."""
INDENT = 22
"""Columns of an option's name, before its text."""
MOST_CHOICES = 60
"""Letters of all choices beside an option; where there are more, its text names them."""


class About(NamedTuple):
    """What the docstring of a command's options says."""

    text: str
    examples: str
    """Commands, each below a comment that says what it does."""


def print_help(kind: type, command: str) -> None:
    columns = shutil.get_terminal_size().columns
    print(help_text(kind, command, max(NARROWEST, min(columns, WIDEST))))


def help_text(kind: type, command: str, width: int) -> str:
    """The help of a command in lines of at most so many columns, where its words allow it."""
    options, texts, about = options_of(kind), field_texts(kind), about_of(kind)
    groups: dict[str, list[str]] = {}
    for option in options.values():
        group = groups.setdefault("Arguments" if option.positional else option.group, [])
        group.append(entry(written(option), with_default(texts[option.name], option), width))
    groups["Any command"] = [entry(name, text, width) for name, text in SHARED.items()]
    groups["Examples"] = [textwrap.indent(about.examples, "  ")]
    parts = [f"usage: {usage(command, options)}", *(wrapped(part, width) for part in about.text.split("\n\n"))]
    return "\n\n".join([*parts, *(f"{title}:\n" + "\n".join(lines) for title, lines in groups.items())])


def usage(command: str, options: dict[str, CommandOption]) -> str:
    """How a command is written, in one line."""
    needed = [written(option) for option in options.values() if option.positional or option.required]
    return " ".join(["becl", command, *needed, "[options]"])


def written(option: CommandOption) -> str:
    """An option as it is typed."""
    choices = "{" + ",".join(option.choices) + "}"
    name = choices if option.choices and len(choices) <= MOST_CHOICES else option.value.name
    if option.positional:
        name = name if not option.several else f"{name} ..."
        return name if option.required else f"[{name}]"
    if option.switch:
        return option.word if not option.default else f"{option.word}, --no-{option.word[2:]}"
    return f"{option.word} {name} ..." if option.several else f"{option.word} {name}"


def with_default(text: str, option: CommandOption) -> str:
    """The text of an option with its default after the first sentence, where the text itself does not say it."""
    default = option.default
    if option.required or default is None or default is False or default == ():
        return text
    if option.value.read is not None:
        said = option.value.text(default)
    elif isinstance(default, bool):
        said = "yes"
    elif isinstance(default, tuple):
        said = " ".join(map(str, default))
    else:
        said = f"{default:,}" if isinstance(default, int) else str(default)
    return re.sub(r"\.(?= [A-Z\"]|$)", f" (default: {said}).", text, count=1)


def entry(name: str, text: str, width: int) -> str:
    """An option and its text: beside it, or below where its name is long."""
    lines = wrapped(text, width - INDENT).split("\n")
    if len(name) + 4 > INDENT:
        return "\n".join([f"  {name}", *(" " * INDENT + line for line in lines)])
    return "\n".join([f"  {name}".ljust(INDENT) + lines[0], *(" " * INDENT + line for line in lines[1:])])


def wrapped(text: str, width: int) -> str:
    """Text in lines, broken neither at hyphens nor within what stands between backticks or is a short default."""
    kept = re.sub(r"`[^`]*`|\(default: [^)]{1,16}\)", lambda part: part[0].replace(" ", "\0"), " ".join(text.split()))
    lines = textwrap.wrap(kept, width, break_on_hyphens=False, break_long_words=False)
    return "\n".join(lines).replace("\0", " ")


def about_of(kind: type) -> About:
    """A command's text and its examples."""
    text, _, examples = (inspect.getdoc(kind) or "").partition("\n\nExamples:\n")
    return About(text, textwrap.dedent(examples))


def field_texts(kind: type) -> dict[str, str]:
    """The text below each field of a class, on one line."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for above, below in zip(tree.body, tree.body[1:], strict=False):
        match above, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = " ".join(text.split())
    return texts

"""The help of a command: tyro draws it from the fields of its options and the text below each of them.

The text says the default where the field's own value would not tell it (None, nothing, a switch).
"""

import ast
import dataclasses
import inspect
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from becl.commands.parse import bare, is_list, is_positional, metadata

PLUGIN = "--plugin FILE_OR_MODULE adds methods of your own and may be repeated (docs/own-method.md)."

VALUES = {
    "checkpoint_every": "STEPS",
    "eval_every": "STEPS",
    "export": "FILE",
    "hidden": "WIDTH",
    "json": "FILE",
    "log_every": "STEPS",
    "markdown": "FILE",
    "methods": "METHOD",
    "name": "METHOD",
    "ray_address": "HOST:PORT",
    "runs": "RUN",
    "size": "PIXELS",
    "snapshot": "STEPS",
    "steps": "STEPS",
    "wandb": "PROJECT",
}
"""What the value of an option is called where neither its type nor its own name says it."""


def print_help(kind: type, command: str) -> None:
    hints = typing.get_type_hints(kind, include_extras=True)
    texts = field_texts(kind)
    fields = [shown(field, hints[field.name], texts[field.name]) for field in dataclasses.fields(kind)]
    tyro.cli(
        dataclasses.make_dataclass("Shown", fields),
        prog=f"becl {command}",
        args=["--help"],
        description=f"{inspect.getdoc(kind)}\n\n{PLUGIN}",
    )


def shown(field: dataclasses.Field[Any], hint: Any, text: str) -> tuple[str, Any, Any]:
    """A field as tyro is to show it."""
    value = metavar(field.name, hint)
    if field.default is None and is_positional(hint):
        value = f"[{value}]"
    about = tyro.conf.arg(metavar=value, help=text, help_behavior_hint=default_text(field.default))
    return field.name, Annotated[hint, about], dataclasses.field(default=field.default)


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


def metavar(name: str, hint: Any) -> str | None:
    """What stands for an option's value in its help; None for a switch, which takes none."""
    readers = [one for one in metadata(hint) if isinstance(one, PrimitiveConstructorSpec)]
    if readers:
        return readers[0].metavar
    plain = bare(hint)
    kinds = [one for one in typing.get_args(plain) or (plain,) if one not in (type(None), ...)]
    if kinds == [bool]:
        return None
    choices = [one for one in [plain, *kinds] if typing.get_origin(one) is Literal]
    if choices:
        return "{" + ",".join(typing.get_args(choices[0])) + "}"
    by_type = {int: "N", float: "NUMBER", Path: "PATH"}.get(kinds[0], name.upper())
    value = VALUES.get(name, name.upper() if name in ("env", "run", "file") else by_type)
    return f"[{value} ...]" if is_list(hint) else value


def default_text(default: Any) -> str:
    """A default as the help shows it behind the text; nothing where the text says it."""
    if default is dataclasses.MISSING or default is None or isinstance(default, bool) or default == ():
        return ""
    if isinstance(default, tuple):
        return f"(default: {len(default) if default == (0,) else ' '.join(map(str, default))})"
    return f"(default: {default:,})" if isinstance(default, int) else f"(default: {default})"

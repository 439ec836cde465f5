"""The words of a command line as the options of a command; every mistake is one line that names the option as typed."""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from tyro.conf import Positional
from tyro.constructors import PrimitiveConstructorSpec

from becl.errors import UserError, unknown
from becl.specs import parse

Options = TypeVar("Options")


def parse_options(kind: type[Options], command: str, words: Sequence[str]) -> Options:
    """A command's options from its words."""
    hints = typing.get_type_hints(kind, include_extras=True)
    given, rest = sort_words(kind, hints, command, words)
    place_rest(hints, command, given, rest)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        no_default = field.default is dataclasses.MISSING
        if no_default and is_list(hints[field.name]):
            given.setdefault(field.name, [])
        if no_default and field.name not in given:
            what = field.name.upper() if is_positional(hints[field.name]) else option_of(field.name)
            raise UserError(f"becl {command}: {what} is missing; becl {command} --help shows what it is")
    return kind(**{name: to_value(option_of(name), some, hints[name]) for name, some in given.items()})


def sort_words(
    kind: type, hints: dict[str, Any], command: str, words: Sequence[str]
) -> tuple[dict[str, list[str]], list[str]]:
    """The words of every option by its name, and those before the first option."""
    given: dict[str, list[str]] = {}
    rest: list[str] = []
    into = rest
    for word in words:
        if not word.startswith("--") or word == "--":
            into.append(word)
            continue
        option, equals, value = word.partition("=")
        name, switched = name_of(kind, hints, command, option)
        several = is_list(hints[name])
        into = given.setdefault(name, [])
        if reader_of(hints[name]) is None or not several:  # The last one counts, but settings add up.
            rest += [] if several else into[1:]
            into.clear()
        if bare(hints[name]) is bool:
            if equals:
                raise UserError(f"{word}: a switch takes no value; {option} or --no-{option[2:]}")
            into.append(switched)
            into = rest
        elif equals:
            into.append(value)
            into = into if several else rest
    return given, rest


def name_of(kind: type, hints: dict[str, Any], command: str, option: str) -> tuple[str, str]:
    """The field that an option sets and, of a switch, to what."""
    name = option.removeprefix("--").replace("-", "_")
    if name in hints and not is_positional(hints[name]):
        return name, "true"
    if name.startswith("no_") and bare(hints.get(name[3:])) is bool:
        return name[3:], "false"
    known = [option_of(field.name) for field in dataclasses.fields(kind) if not is_positional(hints[field.name])]
    raise unknown(f"option of becl {command}", option.replace("_", "-"), [*known, "--plugin"])


def place_rest(hints: dict[str, Any], command: str, given: dict[str, list[str]], rest: list[str]) -> None:
    """Moves words to the positional arguments, also those that follow an option with one value."""
    for name, some in given.items():
        if not is_list(hints[name]):
            rest += some[1:]
            del some[1:]
    for name in (name for name, hint in hints.items() if is_positional(hint)):
        taken = len(rest) if is_list(hints[name]) else 1
        if rest:
            given[name] = rest[:taken]
        del rest[:taken]
    if rest:
        raise UserError(f"becl {command}: {rest[0]!r} is one word too many; becl {command} --help shows its options")


def to_value(option: str, words: list[str], hint: Any) -> Any:
    """The words behind an option as a value of its type."""
    reader = reader_of(hint)
    if not words and not is_list(hint):
        raise UserError(f"{option}: a value is missing")
    if reader is not None:
        return reader.instance_from_str(words)
    if is_list(hint):
        (item, _) = typing.get_args(bare(hint))
        return tuple(parse(option, word, item) for word in words)
    kinds = [kind for kind in typing.get_args(bare(hint)) if kind is not type(None)]
    if type(None) not in typing.get_args(bare(hint)):
        return parse(option, words[0], bare(hint))
    return None if words[0] == "None" else parse(option, words[0], kinds[0])  # "none" may be a value.


def is_positional(hint: Any) -> bool:
    return Positional in metadata(hint)


def is_list(hint: Any) -> bool:
    """Whether an option takes any number of words."""
    reader = reader_of(hint)
    return reader.nargs == "*" if reader is not None else typing.get_origin(bare(hint)) is tuple


def reader_of(hint: Any) -> PrimitiveConstructorSpec[Any] | None:
    """What makes a value of an option's words, where its type alone does not."""
    return next((one for one in metadata(hint) if isinstance(one, PrimitiveConstructorSpec)), None)


def metadata(hint: Any) -> tuple[Any, ...]:
    return hint.__metadata__ if typing.get_origin(hint) is Annotated else ()


def bare(hint: Any) -> Any:
    """A type without what tyro is told of it."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def option_of(name: str) -> str:
    return "--" + name.replace("_", "-")

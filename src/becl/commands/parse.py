"""The words of a command line as the options of a command; every mistake is one line that names the option as typed."""

import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from becl.errors import UserError, unknown
from becl.options.fields import CommandOption, options_of
from becl.specs import parse

Options = TypeVar("Options")


def parse_options(kind: type[Options], command: str, words: Sequence[str]) -> Options:
    """A command's options from its words."""
    options = options_of(kind)
    given, rest = sort_words(options, command, words)
    place_rest(options, command, given, rest)
    for option in options.values():
        if option.required and option.several:
            given.setdefault(option.name, [])
        if option.required and option.name not in given:
            what = option.name.upper() if option.positional else option.word
            raise UserError(f"becl {command}: {what} is missing; becl {command} --help shows what it is")
    return kind(**{name: to_value(options[name], some) for name, some in given.items()})


def sort_words(
    options: dict[str, CommandOption], command: str, words: Sequence[str]
) -> tuple[dict[str, list[str]], list[str]]:
    """The words of every option by its name, and those before the first option."""
    given: dict[str, list[str]] = {}
    rest: list[str] = []
    into = rest
    for word in words:
        if not word.startswith("--") or word == "--":
            into.append(word)
            continue
        typed, equals, value = word.partition("=")
        option, switched = option_named(options, command, typed)
        into = given.setdefault(option.name, [])
        if option.value.read is None or not option.several:  # The last one counts, but settings add up.
            rest += [] if option.several else into[1:]
            into.clear()
        if option.switch:
            if equals:
                raise UserError(f"{word}: a switch takes no value; {typed} or --no-{typed[2:]}")
            into.append(switched)
            into = rest
        elif equals:
            into.append(value)
            into = into if option.several else rest
    return given, rest


def option_named(options: dict[str, CommandOption], command: str, typed: str) -> tuple[CommandOption, str]:
    """The option that a word sets and, of a switch, to what."""
    known = {option.word: (option, "true") for option in options.values() if not option.positional}
    off = {f"--no-{word[2:]}": (option, "false") for word, (option, _) in known.items() if option.switch}
    word = typed.replace("_", "-")
    if word not in known | off:
        raise unknown(f"option of becl {command}", word, [*known, "--plugin", "--help"])
    return (known | off)[word]


def place_rest(options: dict[str, CommandOption], command: str, given: dict[str, list[str]], rest: list[str]) -> None:
    """Moves words to the positional arguments, also those that follow an option with one value."""
    for name, some in given.items():
        if not options[name].several:
            rest += some[1:]
            del some[1:]
    for option in (option for option in options.values() if option.positional):
        taken = len(rest) if option.several else 1
        if rest:
            given[option.name] = rest[:taken]
        del rest[:taken]
    if rest:
        raise UserError(f"becl {command}: {rest[0]!r} is one word too many; becl {command} --help shows its options")


def to_value(option: CommandOption, words: list[str]) -> Any:
    """The words behind an option as a value of its type."""
    if not words and not option.several:
        raise UserError(f"{option.word}: a value is missing")
    if option.value.read is not None:
        return option.value.read(words if option.several else words[0])
    parts = typing.get_args(option.kind)
    if option.several:
        return tuple(parse(option.word, word, parts[0]) for word in words)
    if type(None) not in parts:
        return parse(option.word, words[0], option.kind)
    kind = next(part for part in parts if part is not type(None))
    return None if words[0] == "None" else parse(option.word, words[0], kind)  # "none" may be a value.

"""Specs as data: to JSON, compared, and changed by a dotted path."""

import collections.abc
import dataclasses
import numbers
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from becl.errors import UserError, unknown

Spec = TypeVar("Spec")
KINDS = {int: "a whole number", float: "a number", str: "text", Path: "a path"}


def added(default: Any) -> Any:
    """An option that older folders do not have: left out of JSON where it has its default, so that they still fit."""
    return dataclasses.field(default=default, metadata={"added": True})


def former(default: Any, *values: Any) -> Any:
    """An option with values that only older folders have: they are read, and cannot be asked for any more."""
    return dataclasses.field(default=default, metadata={"former": values})


def to_dict(spec: Any) -> Any:
    """A spec as plain JSON values; each dataclass names its class."""
    if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        values = ((f, getattr(spec, f.name)) for f in dataclasses.fields(spec))
        fields = {f.name: to_dict(v) for f, v in values if not ("added" in f.metadata and v == f.default)}
        return {"spec": type(spec).__name__, **fields}
    if isinstance(spec, tuple | list):
        return [to_dict(item) for item in without_defaults(spec)]
    if isinstance(spec, dict):
        return {key: to_dict(value) for key, value in spec.items()}
    return spec


def without_defaults(items: Any) -> Any:
    """A named tuple's values up to the last that is not its default, for the same reason; other items as they are."""
    values, defaults = list(items), list(getattr(items, "_field_defaults", {}).values())
    while defaults and values[-1] == defaults[-1]:
        values.pop()
        defaults.pop()
    return values


def is_specs(value: Any) -> typing.TypeGuard[tuple[Any, ...]]:
    """Whether it is one spec after another."""
    return isinstance(value, tuple) and bool(value) and all(map(dataclasses.is_dataclass, value))


def upgraded(data: Any) -> Any:
    """JSON values of an earlier version as they are written today, so that its folders still open."""
    if isinstance(data, list):
        return [upgraded(item) for item in data]
    if not isinstance(data, dict):
        return data
    data = {key: upgraded(value) for key, value in data.items()}
    if data.get("spec") == "BeCL" and data.get("denominator") == "all":  # The released formula has a file of its own.
        gone = ("denominator", "hard_negatives")
        return {key: value for key, value in data.items() if key not in gone} | {"spec": "BeCLReleased"}
    if data.get("spec") == "Vision":  # Frames always had three colours.
        return {key: value for key, value in data.items() if key != "channels"}
    return data


def from_dict(data: Any, classes: Mapping[str, type], hint: Any = Any, path: str = "") -> Any:
    """The spec that `to_dict` made these JSON values of; refuses what is not of the annotated types, by its path."""
    if isinstance(data, dict) and "spec" in data:
        return _spec_of(data, classes, hint, path)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _either(data, classes, args, path)
    if origin is Literal:
        if not any(data == one and type(data) is type(one) for one in args):
            raise unknown(f"value of {path}", str(data), map(str, args))
        return data
    if origin in (tuple, collections.abc.Sequence) or hint is tuple or hasattr(hint, "_fields"):
        return _items(data, classes, hint, path)
    scalar = {int: int, float: (int, float), bool: bool, str: str, types.NoneType: types.NoneType}.get(hint)
    if scalar is not None and (not isinstance(data, scalar) or (isinstance(data, bool) and hint is not bool)):
        raise _wrong(path, data, KINDS.get(hint, {bool: "true or false"}.get(hint, "null")))
    if hint is int and isinstance(data, int) and not -(2**31) < data < 2**31:
        raise UserError(f"{path} {data}: must be below 2^31")
    if dataclasses.is_dataclass(hint) or getattr(hint, "_is_protocol", False):
        raise _wrong(path, data, f"a {getattr(hint, '__name__', hint)}")
    return (
        tuple(from_dict(item, classes, Any, f"{path}[{n}]") for n, item in enumerate(data))
        if isinstance(data, list)
        else data
    )


def _spec_of(data: dict[str, Any], classes: Mapping[str, type], hint: Any, path: str) -> Any:
    """The spec of a class that JSON values name."""
    above = f"{path}." if path else ""
    if not isinstance(data["spec"], str) or data["spec"] not in classes:
        raise unknown(f"spec {path}".rstrip(), str(data["spec"]), classes)
    kind = classes[data["spec"]]
    if not _suits(kind, hint):
        raise _wrong(path, data["spec"], f"a {getattr(hint, '__name__', hint)}")
    hints, fields = typing.get_type_hints(kind), {field.name: field for field in dataclasses.fields(kind)}
    if other := sorted(data.keys() - fields.keys() - {"spec"}):
        raise unknown(f"option of {data['spec']}", f"{above}{other[0]}", [f"{above}{name}" for name in sorted(fields)])
    values = {
        name: data[name]
        if data[name] in field.metadata.get("former", ())
        else from_dict(data[name], classes, hints[name], above + name)
        for name, field in fields.items()
        if name in data
    }
    for name, field in fields.items():
        if name not in data and field.default is field.default_factory is dataclasses.MISSING:
            raise UserError(f"{above}{name} is missing")
    return kind(**values)


def _suits(kind: type, hint: Any) -> bool:
    """Whether a class of specs can stand where a hint is."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_suits(kind, one) for one in typing.get_args(hint))
    if getattr(hint, "_is_protocol", False):
        wanted = {name for name in {**vars(hint), **vars(hint).get("__annotations__", {})} if not name.startswith("_")}
        return all(hasattr(kind, name) or name in {f.name for f in dataclasses.fields(kind)} for name in wanted)
    return hint is Any or (isinstance(hint, type) and issubclass(kind, hint))


def _either(data: Any, classes: Mapping[str, type], hints: Sequence[Any], path: str) -> Any:
    """A value of one of several types; where it is of none, what is said of the first."""
    said: list[UserError] = []
    for hint in hints:
        try:
            return from_dict(data, classes, hint, path)
        except UserError as error:
            said.append(error)
    raise said[0]


def _items(data: Any, classes: Mapping[str, type], hint: Any, path: str) -> Any:
    """A tuple, or a named one, of a list of values."""
    if not isinstance(data, list):
        raise _wrong(path, data, "a list")
    named = getattr(hint, "_fields", None)
    if named is not None:
        least = len(named) - len(hint._field_defaults)  # Those with a default are left out where they have it.
        if not least <= len(data) <= len(named):
            raise UserError(f"{path}: expected {least} values ({', '.join(named[:least])}), not {len(data)}")
        hints, pairs = typing.get_type_hints(hint), zip(named, data, strict=False)
        return hint(*(from_dict(one, classes, hints[name], f"{path}.{name}") for name, one in pairs))
    args = typing.get_args(hint) or (Any, ...)
    each = [args[0]] * len(data) if len(args) == 1 or args[-1] is ... else list(args)
    if len(each) != len(data):
        raise UserError(f"{path}: expected {len(each)} values, not {len(data)}")
    return tuple(
        from_dict(one, classes, kind, f"{path}[{n}]") for n, (one, kind) in enumerate(zip(data, each, strict=True))
    )


def _wrong(path: str, data: Any, wanted: str) -> UserError:
    said = f"{data!r:.60}" if isinstance(data, str | int | float | None) else f"a {type(data).__name__}"
    return UserError(f"{path}: expected {wanted}, not {said}")


def difference(one: Any, other: Any, path: str = "") -> str | None:
    """The first place where two JSON values differ, as `path: one, other`; None where they are equal."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            here = f"{path}.{key}" if path else key
            if key not in one or key not in other:
                return f"{here}: {'present' if key in one else 'absent'}, {'present' if key in other else 'absent'}"
            if found := difference(one[key], other[key], here):
                return found
        return None
    return None if one == other else f"{path}: {one}, {other}"


def check_numbers(spec: Any, path: str = "") -> None:
    """Raises on negative numbers, NaN and infinity, which no option allows."""
    for field in dataclasses.fields(spec):
        value, here = getattr(spec, field.name), path + field.name
        if dataclasses.is_dataclass(value):
            check_numbers(value, here + ".")
        for inner in value if is_specs(value) else ():
            check_numbers(inner, here + ".")
        for one in value if isinstance(value, tuple) else (value,):
            unbounded = one == float("inf") and here.endswith("clip")  # No clipping.
            if isinstance(one, int | float) and not 0 <= one < float("inf") and not unbounded:
                raise UserError(f"{here} {one:g}: must not be negative, and finite")


def override(spec: Spec, path: str, value: Any, above: str = "") -> Spec:
    """The spec with the option at a dotted path changed to a value, or to what a text stands for.

    `above` is the path of the spec itself, for messages.
    """
    name, _, rest = path.partition(".")
    names = [field.name for field in dataclasses.fields(spec)]  # type: ignore[arg-type]
    here = f"{above}{name}"
    if name not in names:
        raise unknown(f"option of {type(spec).__name__}", here, [f"{above}{known}" for known in names])
    before = getattr(spec, name)
    if dataclasses.is_dataclass(before):
        if not rest:
            inner = ", ".join(f"{here}.{field.name}" for field in dataclasses.fields(before))
            raise UserError(f"option {here!r} is a group: choose one of {inner}")
        return dataclasses.replace(spec, **{name: override(before, rest, value, f"{here}.")})  # type: ignore[type-var]
    if rest:
        raise UserError(f"option {here!r} of {type(spec).__name__} has no part {rest!r}")
    hint = typing.get_type_hints(type(spec))[name]
    return dataclasses.replace(spec, **{name: parse(here, value, hint)})  # type: ignore[type-var]


def parse(path: str, value: Any, hint: Any) -> Any:
    """A value of an annotated type, from text or checked as it is."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    text = value if isinstance(value, str) else None
    if origin is Literal:
        if value not in args:
            raise unknown(f"value of {path}", str(value), args)
        return value
    if origin in (typing.Union, types.UnionType):
        if type(None) in args and (value is None or (text is not None and text.lower() == "none")):
            return None
        kinds = [arg for arg in args if arg is not type(None)]
        return parse(path, value, next((kind for kind in kinds if is_of(value, kind)), kinds[0]))
    if origin is collections.abc.Mapping and isinstance(value, Mapping):
        return value
    if origin in (tuple, collections.abc.Sequence):
        if not isinstance(value, str | tuple | list):
            raise UserError(f"{path}={to_text(value)}: expected a list")
        items = value if text is None else [item for item in text.split(",") if item]
        return tuple(parse(path, item, args[0]) for item in items)
    if hint is bool:
        if to_text(value).lower() not in ("true", "false"):
            raise UserError(f"{path}={to_text(value)}: expected true or false")
        return to_text(value).lower() == "true"
    if text is None and not fits(value, hint):
        raise UserError(f"{path}={to_text(value)}: expected {KINDS.get(hint, hint)}")
    try:
        number = whole(value) if hint is int and text is not None else hint(value)
    except (TypeError, ValueError):
        raise UserError(f"{path}={text}: expected {KINDS.get(hint, hint)}") from None
    if hint is int and abs(number) >= 2**31:
        raise UserError(f"{path}={to_text(value)}: must be below 2^31")
    return number


def whole(text: str) -> int:
    """A whole number from text, which may be written as 2e6."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)


def is_of(value: Any, hint: Any) -> bool:
    """Whether a value looks like one of an annotated type, whatever is in it."""
    origin = typing.get_origin(hint)
    if origin is Literal:
        return value in typing.get_args(hint)
    return isinstance(value, tuple | list if origin in (tuple, collections.abc.Sequence) else origin or hint)


def fits(value: Any, kind: type) -> bool:
    """Whether a value that is no text is one of a kind: whole numbers are numbers, truth values are not."""
    wider = {int: numbers.Integral, float: numbers.Real}.get(kind, kind)
    return isinstance(value, wider) and not isinstance(value, bool)


def to_text(value: Any) -> str:
    """A value as `PATH=VALUE` has it, nothing of it lost."""
    if isinstance(value, tuple | list):
        return ",".join(map(to_text, value))
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return str(value).lower() if isinstance(value, bool) else str(value)

"""From typed Python fields to an OpenAPI schema, and from an object of the API back to typed values.

A custom resource is a frozen dataclass whose fields are made with `described`: its text becomes what `kubectl explain`
shows, its default and bounds become the schema's. So there is one source of what is accepted, and the operator reads
objects through the very types that the API server checked them against.
"""

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from typing import Any, Literal, NewType, TypeVar

Quantity = NewType("Quantity", str)
"""An amount as Kubernetes writes it: 500m, 2, 1.5Gi. In YAML a bare number is welcome too."""

QUANTITY_PATTERN = r"^([0-9]+|[0-9]*\.[0-9]+)(m|k|Ki|M|Mi|G|Gi|T|Ti)?$"
_KEY = "moe.dev/field"

T = TypeVar("T")


@dataclass(frozen=True)
class Rule:
    """A rule in CEL over `self` (and `oldSelf`). message: names the field, what is wrong and the remedy."""

    rule: str
    message: str


@dataclass(frozen=True)
class Described:
    """What the schema says of a field beside its type. minimum, maximum: of a number, or of each number of a list."""

    text: str
    minimum: float | None = None
    maximum: float | None = None
    pattern: str | None = None
    longest: int | None = None
    most: int | None = None
    rules: tuple[Rule, ...] = ()
    list_key: str | None = None


def described(text: str, *, default: object = MISSING, **facts: Any) -> Any:
    """Declares a field: its text for people, its default (none: required), and the facts of `Described`.

    A default of None makes it optional.
    """
    metadata = {_KEY: Described(text, **facts)}
    if default is MISSING:
        return dataclasses.field(metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def immutable(what: str, remedy: str) -> Rule:
    """The rule that a value stays as it was made."""
    return Rule("self == oldSelf", f"{what} can't be changed; {remedy}")


def json_name(name: str) -> str:
    """`per_pod` as the API writes it: perPod."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def schema_of(kind: type) -> dict[str, Any]:
    """The OpenAPI schema of a dataclass; its docstring is the description, `RULES` of the class its rules."""
    hints = typing.get_type_hints(kind)
    properties, required = {}, []
    for each in dataclasses.fields(kind):
        name = json_name(each.name)
        properties[name] = _field_schema(each, hints[each.name])
        if each.default is MISSING:
            required.append(name)
    found: dict[str, Any] = {"type": "object", "description": _one_line(kind.__doc__ or "")}
    if required:
        found["required"] = required
    found["properties"] = properties
    return _with_rules(found, getattr(kind, "RULES", ()))


def read(kind: type[T], raw: Mapping[str, Any]) -> T:
    """An object of the API as its type. Fields that are absent get their defaults, as the API server gives them.

    Raises KeyError naming a required field that is absent: an object that the API server would not have taken.
    """
    hints = typing.get_type_hints(kind)
    values = {}
    for each in dataclasses.fields(kind):  # type: ignore[arg-type]
        name = json_name(each.name)
        if raw.get(name) is not None:
            values[each.name] = _value(hints[each.name], raw[name])
        elif each.default is MISSING:
            raise KeyError(f"{kind.__name__}.{name}")
    return kind(**values)


def write(value: Any) -> Any:
    """A typed value as the API takes it; fields that are None are left out."""
    if dataclasses.is_dataclass(value):
        pairs = ((json_name(each.name), getattr(value, each.name)) for each in dataclasses.fields(value))
        return {name: write(each) for name, each in pairs if each is not None}
    if isinstance(value, tuple):
        return [write(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


def _field_schema(each: "dataclasses.Field[Any]", hint: Any) -> dict[str, Any]:
    facts: Described = each.metadata[_KEY]
    found = {**_type_schema(_bare(hint), facts), "description": facts.text}
    if each.default is not MISSING and each.default is not None:
        found["default"] = write(each.default)  # in full, as rules are held against it before it is defaulted itself
    return _with_rules(found, facts.rules)


def _type_schema(hint: Any, facts: Described) -> dict[str, Any]:
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return schema_of(typing.cast(type, hint))
    if hint is Quantity:
        return {"x-kubernetes-int-or-string": True, "pattern": facts.pattern or QUANTITY_PATTERN, "maxLength": 20}
    if origin is Literal:
        return {"type": "string", "enum": list(typing.get_args(hint))}
    if origin is tuple:
        item = _type_schema(typing.get_args(hint)[0], dataclasses.replace(facts, most=None, rules=(), list_key=None))
        return _list_schema(item, facts)
    if origin is dict:
        texts = {"type": "string", "maxLength": facts.longest or 253}
        return {"type": "object", "additionalProperties": texts, **_given(maxProperties=facts.most)}
    if hint is bool:
        return {"type": "boolean"}
    if hint is int or hint is float:
        bounds = _given(minimum=facts.minimum, maximum=facts.maximum)
        return {"type": "integer", "format": "int32", **bounds} if hint is int else {"type": "number", **bounds}
    return {"type": "string", **_given(pattern=facts.pattern, maxLength=facts.longest)}


def _list_schema(item: dict[str, Any], facts: Described) -> dict[str, Any]:
    found = {"type": "array", "items": item, **_given(maxItems=facts.most)}
    if facts.list_key:
        found |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [facts.list_key]}
    return found


def _value(hint: Any, raw: Any) -> Any:
    hint = _bare(hint)
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint):
        return read(typing.cast("type[Any]", hint), raw)
    if origin is tuple:
        return tuple(_value(typing.get_args(hint)[0], each) for each in raw)
    if hint is Quantity:
        return Quantity(str(raw))
    return float(raw) if hint is float else raw


def _bare(hint: Any) -> Any:
    """The type within `T | None`."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):  # Literal | None is the latter
        return next(each for each in typing.get_args(hint) if each is not type(None))
    return hint


def _given(**values: object) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _with_rules(schema: dict[str, Any], rules: tuple[Rule, ...]) -> dict[str, Any]:
    """The schema with rules beside those that it has already, its type's."""
    if rules:
        found = [{"rule": each.rule, "message": each.message} for each in rules]
        schema["x-kubernetes-validations"] = [*schema.get("x-kubernetes-validations", ()), *found]
    return schema


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()

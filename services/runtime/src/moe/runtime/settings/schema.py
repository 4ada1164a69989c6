"""What settings a dataclass declares: their names, types, bounds and help."""

import dataclasses
import enum
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

_MARK = "moe.runtime.setting"
_SIMPLE = (str, int, float, bool, Path)

Number = int | float


@dataclass(frozen=True)
class Declaration:
    """What `setting` was told. unit: of the value, in a word. minimum, maximum: both allowed themselves."""

    help: str
    unit: str = ""
    minimum: Number | None = None
    maximum: Number | None = None
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class ValueType:
    """element: str, int, float, bool, Path or an enum. many: a tuple of them. optional: None when it is not given."""

    element: type
    many: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Setting:
    """One value to be found. path: group names, then the field's. default: MISSING when it has to be given."""

    path: tuple[str, ...]
    group: str
    type: ValueType
    declaration: Declaration
    default: object

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.path[-1].replace("_", "-")

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"MOE_{self.group}_{self.path[-1]}".upper()

    @property
    def key(self) -> str:
        """Its dotted name in the file."""
        return ".".join(self.path)

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is dataclasses.MISSING


def setting(
    default: object = dataclasses.MISSING,
    *,
    help: str,  # noqa: A002 - the word that every command-line library uses
    unit: str = "",
    minimum: Number | None = None,
    maximum: Number | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """A field of a settings dataclass. help: what it does and why its default is what it is.

    default: an immutable value; without one the setting has to be given.
    """
    declaration = Declaration(help, unit, minimum, maximum, tuple(choices))
    return dataclasses.field(default=default, metadata={_MARK: declaration})


def settings_of(cls: type, program_group: str) -> tuple[Setting, ...]:
    """All settings of a dataclass and its groups, in order. Raises TypeError for one that can't be carried out."""
    found = tuple(_walk(cls, (), program_group))
    for name in ("flag", "variable", "key"):
        names = [getattr(each, name) for each in found]
        twice = {each for each in names if names.count(each) > 1}
        if twice:
            raise TypeError(f"{cls.__name__} declares {sorted(twice)} twice; {name} names have to be unique")
    return found


def _walk(cls: type, path: tuple[str, ...], program_group: str) -> Iterator[Setting]:
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        here = (*path, field.name)
        if dataclasses.is_dataclass(hints[field.name]):
            yield from _walk(hints[field.name], here, program_group)
            continue
        if _MARK not in field.metadata:
            raise TypeError(f"{cls.__name__}.{field.name} is not declared by setting(...)")
        value_type, choices = _value_type(hints[field.name], f"{cls.__name__}.{field.name}")
        declaration: Declaration = field.metadata[_MARK]
        declaration = dataclasses.replace(declaration, choices=declaration.choices or choices)
        if declaration.choices and value_type.element in (int, float, bool, Path):
            raise TypeError(f"{cls.__name__}.{field.name}: choices are for text")
        yield Setting(here, path[-1] if path else program_group, value_type, declaration, field.default)


def _value_type(hint: Any, where: str) -> tuple[ValueType, tuple[str, ...]]:
    """The type and, for an enum or a Literal, the choices it implies."""
    hint, optional = _without_none(hint)
    many = typing.get_origin(hint) is tuple
    if many:
        hint = typing.get_args(hint)[0]
    if typing.get_origin(hint) is Literal:
        return ValueType(str, many, optional), tuple(map(str, typing.get_args(hint)))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return ValueType(hint, many, optional), tuple(str(member.value) for member in hint)
    if hint not in _SIMPLE:
        raise TypeError(f"{where} has type {hint}; a setting is str, int, float, bool, Path, Literal, enum or a tuple")
    return ValueType(hint, many, optional), ()


def _without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) not in (types.UnionType, typing.Union):
        return hint, False
    others = [each for each in typing.get_args(hint) if each is not types.NoneType]
    return others[0] if len(others) == 1 else hint, True

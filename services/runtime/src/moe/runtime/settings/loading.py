"""Finds every setting's value: default < file < environment < flag."""

import dataclasses
import difflib
import os
import re
import tomllib
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from moe.runtime.errors import StartupError
from moe.runtime.settings.help import help_text
from moe.runtime.settings.schema import Setting, settings_of
from moe.runtime.settings.values import from_text, from_toml

T = TypeVar("T")
Values = dict[str, object]

_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_.*)?|PORT(_\d+_(TCP|UDP)(_.*)?)?)$")


def load(
    cls: type[T], argv: Sequence[str], *, prog: str, description: str, environ: Mapping[str, str] = os.environ
) -> T:
    """The settings of a program. prog: as in `moe.expert`; its last word is the group of fields outside groups.

    argv: without the program's name. `--help` prints the help and raises SystemExit(0).
    Raises StartupError for anything unknown, missing or out of bounds.
    """
    group = re.split(r"[.\s/-]+", prog)[-1]
    declared = settings_of(cls, group)
    if "-h" in argv or "--help" in argv:
        print(help_text(declared, prog=prog, description=description))
        raise SystemExit(0)
    flags, config = _from_argv(declared, argv)
    config = config or environ.get(f"MOE_{group}_CONFIG".upper())
    values: Values = {each.key: each.default for each in declared if not each.required}
    values |= _from_file(declared, Path(config)) if config else {}
    values |= _from_environment(declared, group, environ)
    values |= flags
    _require(declared, values)
    return typing.cast(T, _build(cls, (), values))


def _from_argv(declared: Sequence[Setting], argv: Sequence[str]) -> tuple[Values, str | None]:
    """The values given as flags, and the path given as --config."""
    by_flag = {each.flag: each for each in declared}
    negated = {"--no-" + flag[2:]: each for flag, each in by_flag.items() if each.type.element is bool}
    values: Values = {}
    config = None
    words = iter(argv)
    for word in words:
        flag, equals, text = word.partition("=")
        if flag == "--config":
            config = text if equals else _next_value(words, flag)
        elif flag in negated and not equals:
            values[negated[flag].key] = False
        elif flag in by_flag and by_flag[flag].type.element is bool and not equals:
            values[by_flag[flag].key] = True
        elif flag in by_flag:
            value = text if equals else _next_value(words, flag)
            values[by_flag[flag].key] = from_text(by_flag[flag], value, flag)
        else:
            _refuse_unknown("argument", word, flag, [*by_flag, *negated, "--config", "--help"])
    return values, config


def _next_value(words: Iterator[str], flag: str) -> str:
    value = next(words, None)
    if value is None or value.startswith("--"):
        raise StartupError(f"{flag}: needs a value")
    return value


def _from_environment(declared: Sequence[Setting], group: str, environ: Mapping[str, str]) -> Values:
    """The values given as variables. Of a group that this program has, every variable must be known to it."""
    by_variable = {each.variable: each for each in declared}
    prefixes = tuple({f"MOE_{name}_".upper() for name in (group, *(each.group for each in declared))})
    values: Values = {}
    for name, text in environ.items():
        if name in by_variable:
            values[by_variable[name].key] = from_text(by_variable[name], text, name)
        elif name.startswith(prefixes) and not name.endswith("_CONFIG") and not _SERVICE_LINK.match(name):
            _refuse_unknown("environment variable", name, name, by_variable)
    return values


def _from_file(declared: Sequence[Setting], path: Path) -> Values:
    """The values in a TOML file: groups are tables."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise StartupError(f"--config {path}: {error}") from error
    by_key = {each.key: each for each in declared}
    values: Values = {}
    for key, raw in _leaves(document, (), by_key):
        if key not in by_key:
            _refuse_unknown(f"key in {path}:", key, key, by_key)
        values[key] = from_toml(by_key[key], raw, f"{path}: {key} =")
    return values


def _leaves(table: Mapping[str, Any], path: tuple[str, ...], known: Iterable[str]) -> Iterator[tuple[str, object]]:
    """Dotted keys and values; a table is gone into."""
    for name, value in table.items():
        key = ".".join((*path, name))
        if isinstance(value, dict) and key not in known:
            if not value and not any(each.startswith(key + ".") for each in known):
                yield key, value
            yield from _leaves(value, (*path, name), known)
        else:
            yield key, value


def _refuse_unknown(what: str, shown: str, name: str, known: Iterable[str]) -> NoReturn:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    advice = f"; did you mean {near[0]}?" if near else "; --help lists what there is"
    raise StartupError(f"unknown {what} {shown}{advice}")


def _require(declared: Sequence[Setting], values: Values) -> None:
    missing = [each for each in declared if each.key not in values]
    if missing:
        names = ", ".join(f"{each.flag} (or {each.variable})" for each in missing)
        raise StartupError(f"missing {names}; --help says what each is")


def _build(cls: type, path: tuple[str, ...], values: Values) -> object:
    hints = typing.get_type_hints(cls)
    arguments = {}
    for field in dataclasses.fields(cls):
        here = (*path, field.name)
        is_group = dataclasses.is_dataclass(hints[field.name])
        arguments[field.name] = _build(hints[field.name], here, values) if is_group else values[".".join(here)]
    return cls(**arguments)

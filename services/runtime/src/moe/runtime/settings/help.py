"""The text that `--help` prints: every setting with its group, type, default, bounds, unit and reason."""

import enum
import inspect
import shutil
import textwrap
from collections.abc import Sequence
from itertools import groupby

from moe.runtime.settings.schema import Setting

_PLACEHOLDERS = {"str": "TEXT", "int": "N", "float": "X", "Path": "PATH", "bool": ""}
_INDENT = " " * 6
_WIDEST = 110


def help_text(declared: Sequence[Setting], *, prog: str, description: str) -> str:
    """The help of a program, wrapped to the terminal's width."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    required = " ".join(f"{each.flag} {_placeholder(each)}" for each in declared if each.required)
    lines = _wrap(f"usage: {prog} {required} [options]", "", width)
    lines += ["", *_wrap(description, "", width)]
    for group, members in groupby(declared, key=lambda each: each.group):
        lines += ["", f"{group}:"]
        for member in members:
            lines += _entry(member, width)
    lines += [
        "",
        "also:",
        "  --config PATH",
        *_wrap(_CONFIG_HELP, _INDENT, width),
        "  --help",
        f"{_INDENT}Prints this.",
    ]
    return "\n".join(lines)


_CONFIG_HELP = (
    "A TOML file with these settings, a group as a table; environment variables override it, flags override both."
)


def _entry(setting: Setting, width: int) -> list[str]:
    head = f"  {setting.flag}{_negation(setting)} {_placeholder(setting)}".rstrip()
    facts = [*_bounds(setting), _default(setting), setting.variable]
    text = f"{inspect.cleandoc(setting.declaration.help)} [{'; '.join(facts)}]"
    return [head, *_wrap(text, _INDENT, width)]


def _negation(setting: Setting) -> str:
    return f", --no-{setting.flag[2:]}" if setting.type.element is bool else ""


def _placeholder(setting: Setting) -> str:
    choices = setting.declaration.choices
    one = "|".join(choices) if choices else _PLACEHOLDERS[setting.type.element.__name__]
    return f"{one},..." if setting.type.many else one


def _bounds(setting: Setting) -> list[str]:
    """Unit and bounds, such as `seconds, 0 to 60`."""
    declaration = setting.declaration
    least, most = declaration.minimum, declaration.maximum
    if least is not None and most is not None:
        span = f"{least} to {most}"
    elif least is not None:
        span = f"at least {least}"
    else:
        span = f"at most {most}" if most is not None else ""
    both = ", ".join(part for part in (declaration.unit, span) if part)
    return [both] if both else []


def _default(setting: Setting) -> str:
    if setting.required:
        return "required"
    value = setting.default
    if isinstance(value, enum.Enum):
        value = value.value
    if isinstance(value, tuple):
        value = ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        value = "on" if value else "off"
    return f"default {'none' if value is None else value}"


def _wrap(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False)

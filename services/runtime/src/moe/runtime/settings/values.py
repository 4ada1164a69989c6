"""From a text or a TOML value to the value of a setting, or an error that names where it came from."""

import enum
import math
from pathlib import Path

from moe.runtime.errors import StartupError
from moe.runtime.settings.schema import Setting

_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")
_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}


def from_text(setting: Setting, text: str, source: str) -> object:
    """The value written as text, a list by commas. source: the flag or variable, named in errors."""
    try:
        if setting.type.many:
            pieces = [piece.strip() for piece in text.split(",")] if text.strip() else []
            value: object = tuple(_element_from_text(setting, piece) for piece in pieces)
        else:
            value = _element_from_text(setting, text)
    except ValueError:
        raise _unfit(setting, source, text) from None
    return _checked(setting, value, source, text)


def from_toml(setting: Setting, raw: object, source: str) -> object:
    """The value as TOML has it: typed, a list as an array."""
    shown = str(raw)
    try:
        if setting.type.many:
            if not isinstance(raw, list):
                raise ValueError
            value: object = tuple(_element_from_toml(setting, each) for each in raw)
        else:
            value = _element_from_toml(setting, raw)
    except ValueError:
        raise _unfit(setting, source, shown) from None
    return _checked(setting, value, source, shown)


def _element_from_text(setting: Setting, text: str) -> object:
    element = setting.type.element
    if element is bool:
        return _truth(text)
    if element is Path and not text:
        raise ValueError
    return _chosen(setting, text) if setting.declaration.choices else element(text)


def _element_from_toml(setting: Setting, raw: object) -> object:
    element = setting.type.element
    if setting.declaration.choices:
        return _chosen(setting, raw)
    if element is float and type(raw) is int:
        return float(raw)
    if element is Path and isinstance(raw, str) and raw:
        return Path(raw)
    if type(raw) is not element:
        raise ValueError
    return raw


def _chosen(setting: Setting, raw: object) -> object:
    if str(raw) not in setting.declaration.choices:
        raise ValueError
    element = setting.type.element
    if not issubclass(element, enum.Enum):
        return str(raw)
    return next(member for member in element if str(member.value) == str(raw))


def _truth(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError


def _checked(setting: Setting, value: object, source: str, shown: str) -> object:
    """The value when it lies within the declared bounds."""
    least, most = setting.declaration.minimum, setting.declaration.maximum
    for each in value if isinstance(value, tuple) else (value,):
        if isinstance(each, float) and not math.isfinite(each):
            raise StartupError(f"{source} {shown}: want a finite number")
        if isinstance(each, int | float) and least is not None and each < least:
            raise StartupError(f"{source} {shown}: want at least {_with_unit(least, setting)}")
        if isinstance(each, int | float) and most is not None and each > most:
            raise StartupError(f"{source} {shown}: want at most {_with_unit(most, setting)}")
    return value


def _with_unit(number: float, setting: Setting) -> str:
    return f"{number} {setting.declaration.unit}".rstrip()


def _unfit(setting: Setting, source: str, shown: str) -> StartupError:
    return StartupError(f"{source} {shown or repr(shown)}: want {wanted(setting)}")


def wanted(setting: Setting) -> str:
    """In words, what a setting takes."""
    if setting.declaration.choices:
        one = "one of " + ", ".join(setting.declaration.choices)
    else:
        one = _WANTED[setting.type.element]
    return f"a list, each {one}" if setting.type.many else one

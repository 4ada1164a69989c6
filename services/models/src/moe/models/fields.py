"""Reading JSON that a stranger wrote: one field at a time, with its type, its bounds and its name in every complaint.

It raises FieldError only; callers add the file's name. Unknown fields are complaints too, so that nothing is silently
ignored.
"""

import json
import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import NoReturn

MAX_COUNT = 1 << 27
MAX_NUMBER = 1e30
MAX_TEXT = 1 << 20
MAX_PATH = 512


class FieldError(ValueError):
    """A field is missing, of the wrong type or out of bounds; the message starts with the field's name."""


def parse_json(raw: bytes, limit: int) -> object:
    """Bytes as JSON; duplicate names, NaN, bottomless nesting and numbers of absurd length are FieldErrors."""
    if len(raw) > limit:
        raise FieldError(f"{len(raw)} bytes are too many, at most {limit} are read")
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except FieldError:
        raise
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise FieldError(f"is not readable JSON: {error}") from error


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise FieldError(f"{twice[:80]!r} occurs twice")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise FieldError(f"{text} is no JSON number")


class Fields:
    """A JSON object whose fields are taken one by one; `path` is where it lies, for messages."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, dict):
            raise FieldError(f"{path or 'content'}: is not a JSON object")
        self._values: dict[str, object] = value
        self._path = path
        self._taken: set[str] = set()

    def items(self) -> Iterable[tuple[str, object]]:
        """All fields; they count as taken."""
        self._taken.update(self._values)
        return list(self._values.items())

    def text(self, name: str, *, pattern: str | None = None, maximum: int = MAX_TEXT) -> str:
        """A string of at most `maximum` characters that matches the whole pattern, if one is given."""
        value = self._take(name)
        if not isinstance(value, str):
            raise self._error(name, f"must be a string, is {_shown(value)}")
        if len(value) > maximum:
            raise self._error(name, f"has {len(value)} characters, at most {maximum} are allowed")
        if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
            raise self._error(name, "holds half a surrogate pair")
        if pattern is not None and re.fullmatch(pattern, value) is None:
            raise self._error(name, f"is {_shown(value)}, which does not match {pattern}")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """A string out of `choices`."""
        value = self.text(name)
        if value not in choices:
            raise self._error(name, f"is {_shown(value)}; understood are {', '.join(choices)}")
        return value

    def count(self, name: str, minimum: int, maximum: int) -> int:
        """A whole number within the bounds, which are included."""
        value = self._take(name)
        if type(value) is not int or not minimum <= value <= maximum:
            raise self._error(name, f"must be a whole number from {minimum} to {maximum}, is {_shown(value)}")
        return value

    def number_or_none(self, name: str) -> float | None:
        """A finite number, or null."""
        value = self._take(name)
        if value is None:
            return None
        # Not math.isfinite: whole numbers of any length arrive here, and it fails on those beyond float's range.
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) <= MAX_NUMBER:
            raise self._error(name, f"must be a finite number or null, is {_shown(value)}")
        return float(value)

    def is_null(self, name: str) -> bool:
        """Whether a field is there and null; it then counts as taken."""
        if name in self._values and self._values[name] is None:
            self._take(name)
            return True
        return False

    def flag(self, name: str) -> bool:
        """True or false."""
        value = self._take(name)
        if not isinstance(value, bool):
            raise self._error(name, f"must be true or false, is {_shown(value)}")
        return value

    def group(self, name: str) -> "Fields":
        """An object within this one."""
        return Fields(self._take(name), self._where(name))

    def items_of(self, name: str, length: int) -> list[object]:
        """A list of exactly `length` items."""
        value = self._take(name)
        if not isinstance(value, list) or len(value) != length:
            raise self._error(name, f"must be a list of {length} items, is {_shown(value)}")
        return value

    def done(self) -> None:
        """Raises FieldError when there are fields that nobody took."""
        unknown = next((name for name in self._values if name not in self._taken), None)
        if unknown is not None:
            raise FieldError(f"{self._where(unknown[:80])}: is not a known field")

    def _take(self, name: str) -> object:
        if name not in self._values:
            raise self._error(name, "is missing")
        self._taken.add(name)
        return self._values[name]

    def _where(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def _error(self, name: str, complaint: str) -> FieldError:
        return FieldError(f"{self._where(name)}: {complaint}")


def relative_path(field: str, path: str) -> str:
    """A path with `/` that stays below its root and names nothing hidden. Raises FieldError."""
    parts = path.split("/")
    plain = all(re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", part) for part in parts)
    if not plain or len(path) > MAX_PATH or PurePosixPath(path).is_absolute():
        raise FieldError(f"{field}: {path[:200]!r} is not a plain relative path within the package")
    return path


def sha256_text(fields: Fields, name: str) -> str:
    """A sha256 in lower-case hexadecimal."""
    return fields.text(name, pattern=r"[0-9a-f]{64}")


def _shown(value: object) -> str:
    try:
        text = repr(value) if not isinstance(value, (dict, list)) else f"a {type(value).__name__}"
    except ValueError:
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else text[:77] + "..."

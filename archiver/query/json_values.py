"""Values of a result's JSON as Python values again, by their types in DuckDB.

So that the console shows them as `archiver query` does: JSON has bytes, times and large numbers as text.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Final

TYPE_MAX: Final = 20_000
"""Characters of a type that is read."""
DEPTH_MAX: Final = 50
# The last quote is optional, so nothing is searched twice.
_TOKEN = re.compile(r"""\"(?:[^"]|"")*+"?|'(?:[^']|'')*+'?|[(),\[\]]|[^\s"'(),\[\]]++""")
NUMBERS: Final = frozenset(
    f"{sign}{size}INT" for sign in ("", "U") for size in ("TINY", "SMALL", "BIG", "HUGE")
) | {"INTEGER", "UINTEGER", "FLOAT", "DOUBLE", "DECIMAL"}
_UNQUOTED: Final = NUMBERS | {"DATE", "TIME", "BOOLEAN"}


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of DuckDB."""

    name: str
    """STRUCT, MAP, LIST (an array too), or the first word of another type."""
    fields: tuple[tuple[str, Kind], ...] = ()
    """Those of a struct; of a map `key` and `value`, and of a list `element`."""


@dataclass(frozen=True, slots=True)
class _Plain:
    """A value that is shown without quotes."""

    text: str

    def __str__(self) -> str:
        return self.text


def kind_of(text: str) -> Kind | None:
    """The type that DuckDB writes so; None if it is long, deep or not known."""
    if len(text) > TYPE_MAX:
        return None
    left = _TOKEN.findall(text)[::-1]
    try:
        kind = _kind(left, 0)
    except (IndexError, ValueError):
        return None
    return None if left else kind


def _kind(left: list[str], depth: int) -> Kind:
    """The type at the end of the reversed tokens, which are removed."""
    if depth > DEPTH_MAX:
        raise ValueError("deep")
    name, fields = left.pop(), list[tuple[str, Kind]]()
    if name in ("STRUCT", "MAP"):
        separator = _expected(left, "(")
        while separator != ")":
            field = _unquoted(left.pop()) if name == "STRUCT" else ("value" if fields else "key")
            fields.append((field, _kind(left, depth + 1)))
            separator = _expected(left, ",)")
    else:
        _skip_rest(left)
    kind = Kind(name, tuple(fields))
    while left and left[-1] == "[":
        depth += 1
        if depth > DEPTH_MAX:
            raise ValueError("deep")
        while left.pop() != "]":
            pass
        kind = Kind("LIST", (("element", kind),))
    return kind


def _skip_rest(left: list[str]) -> None:
    """Remove further words, such as WITH TIME ZONE, and what is in brackets, such as (18,3)."""
    opened = 0
    while left and (opened or left[-1] not in (",", ")", "[")):
        word = left.pop()
        opened += (word == "(") - (word == ")")


def _expected(left: list[str], words: str) -> str:
    word = left.pop()
    if word not in words:
        raise ValueError(word)
    return word


def _unquoted(word: str) -> str:
    return word[1:-1].replace('""', '"') if word.startswith('"') else word


def restored(value: object, kind: Kind) -> object:
    """The value of a type, from JSON; raises `ValueError` if it is none."""
    match value:
        case dict():
            if kind.name == "MAP":
                (_, of_key), (_, of_value) = kind.fields
                return {restored(key, of_key): restored(item, of_value) for key, item in value.items()}
            fields = dict(kind.fields)
            if kind.name != "STRUCT" or fields.keys() != value.keys():
                raise ValueError("another struct")
            return {name: restored(item, fields[name]) for name, item in value.items()}
        case list():
            if kind.name != "LIST":
                raise ValueError("no list")
            return [restored(item, kind.fields[0][1]) for item in value]
        case str():
            return _of_text(value, kind.name)
    return value


def _of_text(text: str, name: str) -> object:
    if name in ("BLOB", "BIT"):
        return base64.b64decode(text, validate=True)
    if name.startswith("TIMESTAMP"):
        return _Plain(text.replace("T", " ").replace("Z", "+00:00"))
    if name in _UNQUOTED:
        return _Plain(text)
    return text

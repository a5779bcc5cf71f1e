"""Checks that the defaults of a schema are of the types of their fields.

No column is ever filled with a default, but a reader of the schema elsewhere fails on such a one. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.redaction import excerpt

Json = Any

_VALUES_MAX: Final = 100_000
"""Most values to look at in the defaults of a schema: a union of unions could be tried for ever."""
_DEPTH_MAX: Final = 100


@dataclass(frozen=True)
class Default:
    """A field's default."""

    path: str
    type: Json
    """In normal form."""
    value: Json


def refused(where: str, path: str, why: str) -> ConfigInvalid:
    """An error that names the schema and the path inside it."""
    at = f"field {excerpt(path, 200)}" if path else "the schema"
    return ConfigInvalid(f"{where}: {at} {why}")


def check_defaults(defaults: Sequence[Default], definitions: Mapping[str, Json], where: str) -> None:
    """Refuse a default of another type. Raises `ConfigInvalid`."""
    judge = _Judge(definitions)
    for one in defaults:
        if not judge.fits(one.type, one.value, 0):
            raise refused(
                where,
                one.path,
                f"has the default {excerpt(json.dumps(one.value), 80)}, which is no {_text(one.type)}; "
                "correct the default or remove it",
            )


def _text(kind: Json) -> str:
    """A type for people."""
    if isinstance(kind, list):
        return f"[{', '.join(_text(one) for one in kind)}]"
    return kind if isinstance(kind, str) else str(kind.get("name", kind["type"]))


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(bits: int) -> Callable[[Json], bool]:
    def judge(value: Json) -> bool:
        whole = _is_number(value) and value == value // 1
        return bool(whole and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1))

    return judge


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


_FITS: Final[Mapping[str, Callable[[Json], bool]]] = {
    "null": lambda value: value is None,
    "boolean": lambda value: isinstance(value, bool),
    "int": _is_whole(32),
    "long": _is_whole(64),
    "float": _is_number,
    "double": _is_number,
    "bytes": _is_text,
    "string": _is_text,
    "enum": _is_text,
    "fixed": _is_text,
}


class _Judge:
    """Says whether values are of types, for at most `_VALUES_MAX` values."""

    def __init__(self, definitions: Mapping[str, Json]) -> None:
        self._definitions = definitions
        self._left = _VALUES_MAX

    def fits(self, kind: Json, value: Json, depth: int) -> bool:
        """Whether a value is of a type in normal form; in doubt, yes."""
        self._left -= 1
        if self._left < 0 or depth > _DEPTH_MAX:
            return True
        if isinstance(kind, list):
            # Libraries differ on whether it must be the first branch.
            return any(self.fits(one, value, depth + 1) for one in kind)
        name = kind if isinstance(kind, str) else kind["type"]
        if name in self._definitions:
            kind = self._definitions[name]
            name = kind["type"]
        if name == "array":
            return isinstance(value, list) and all(self.fits(kind["items"], one, depth + 1) for one in value)
        if name == "map":
            return isinstance(value, dict) and all(
                self.fits(kind["values"], one, depth + 1) for one in value.values()
            )
        if name == "record":
            # A field that is left out has a default of its own.
            return isinstance(value, dict) and all(
                self.fits(one["type"], value[one["name"]], depth + 1)
                for one in kind["fields"]
                if one["name"] in value
            )
        return _FITS[name](value)

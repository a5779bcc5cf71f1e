"""Reads and parses a schema that is JSON text: within a size, strictly, with the reason in plain words."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final, NoReturn

from archiver.runtime.errors import ConfigInvalid
from archiver.runtime.redaction import excerpt

TEXT_MAX: Final = 4 * 2**20
"""Bytes of one schema's text."""


def read_schema(path: Path, where: str) -> bytes:
    """The text of a schema's file. Raises `ConfigInvalid`."""
    try:
        with path.open("rb") as file:
            # One byte more than allowed shows that the file is too large.
            return file.read(TEXT_MAX + 1)
    except OSError as error:
        raise ConfigInvalid(f"{where} cannot be read: {error.strerror or error}") from error


def check_name(name: str, message: str | None, where: str) -> None:
    """Refuse a schema that is not the configured one."""
    if message not in (None, name):
        raise ConfigInvalid(f"{where} is the schema of {name!r}, not of {message!r}; correct `message`")


def parsed_schema(text: bytes, where: str, what: str) -> Any:
    """The JSON of a schema. `what` is its kind for people, as in `an Avro schema`. Raises `ConfigInvalid`."""
    if len(text) > TEXT_MAX:
        raise ConfigInvalid(f"{where} has {len(text):,} bytes, more than {TEXT_MAX:,}; use a smaller schema")
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    # Deep JSON exceeds Python's recursion limit.
    except (ValueError, RecursionError) as error:
        raise ConfigInvalid(f"{where} is not {what} in JSON: {error}") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"an object has {excerpt(twice, 80)!r} twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")

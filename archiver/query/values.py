"""Values of a query's result as JSON, as a line of CSV, and as text for people.

JSON and CSV lose nothing. The text for people escapes control characters and changes of direction, and shows
bytes as text where they are printable.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal

from archiver.runtime.text import printable_text

# --- JSON
# Beyond this number, readers of JSON that use doubles lose digits.
EXACT_MAX = 2**53


def faithful(value: object) -> object:
    """Convert a value for `json.dumps`."""
    # `bool` before `int`, because it is a subclass.
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if -EXACT_MAX <= value <= EXACT_MAX else str(value)
    if isinstance(value, float):
        return (
            value
            if math.isfinite(value)
            # JSON has no such numbers; Protobuf's JSON form writes these texts.
            else {math.inf: "Infinity", -math.inf: "-Infinity"}.get(value, "NaN")
        )
    if isinstance(value, Decimal) and value.is_finite() and value.as_tuple().exponent == 0:
        return faithful(int(value))  # DuckDB's sum of integers is such a decimal
    if isinstance(value, Decimal | uuid.UUID):
        return str(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(bytes(value)).decode("ascii")
    if isinstance(value, dt.datetime):
        return _moment(value)
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, dt.timedelta):
        # ISO 8601.
        return f"PT{value.total_seconds():f}S"
    if isinstance(value, Mapping):
        return {_key(name): faithful(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [faithful(item) for item in value]
    return str(value)


def _key(name: object) -> str:
    """Key of a map as text, formatted as in JSON."""
    if isinstance(name, bool):
        return "true" if name else "false"
    return str(faithful(name))


def _moment(value: dt.datetime) -> str:
    if value.tzinfo is None:
        return value.isoformat()
    # In UTC, so that the output does not depend on the zone of the machine.
    return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")


# --- CSV
def csv_line(values: Iterable[object]) -> str:
    """One line of CSV by RFC 4180, but ended by a line feed alone, as psql and DuckDB do.

    NULL is empty and an empty text is `""`. A nested value is JSON, bytes are base64.
    """
    return ",".join(map(_csv_field, values)) + "\n"


def _csv_field(value: object) -> str:
    if value is None:
        return ""
    shown = faithful(value)
    if isinstance(shown, bool | dict | list):
        text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    else:
        text = str(shown)
    # Some readers drop blanks around a field without quotes.
    if text and text == text.strip() and not any(one in text for one in ',"\r\n'):
        return text
    return '"' + text.replace('"', '""') + '"'


# --- Text for people
NULL = "NULL"
_BREAKS = "\n\r\t"
INDENT = "  "


def readable(value: object) -> str:
    """A value on one line, but for the line breaks of a text. A nested value has the form
    `{name: "text", count: 1, key: b"printable bytes", other: base64:/w==}`.
    """
    return printable_text(value) if isinstance(value, str) else _inner(value)


def readable_lines(value: object, width: int) -> list[str]:
    """A value on lines; a nested value that is longer than `width` is indented."""
    if isinstance(value, str):
        return printable_text(value).split("\n")
    return list(_indented("", value, width))


def _indented(lead: str, value: object, width: int, indent: str = "") -> Iterator[str]:
    """Lines of a value after `lead`, such as the name of its field."""
    text = f"{indent}{lead}{_inner(value)}"
    if len(text) <= width or not isinstance(value, Mapping | list | tuple) or not value:
        yield text
        return
    if isinstance(value, Mapping):
        opening, closing = "{}"
        items = [(f"{_name(name)}: ", item) for name, item in value.items()]
    else:
        opening, closing = "[]"
        items = [("", item) for item in value]
    yield f"{indent}{lead}{opening}"
    for name, item in items:
        yield from _indented(name, item, width, indent + INDENT)
    yield f"{indent}{closing}"


def _inner(value: object) -> str:
    """A value as it appears inside of others, where a text has quotes."""
    if value is None:
        return NULL
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return _bytes_text(bytes(value))
    if isinstance(value, dt.datetime):
        return (value if value.tzinfo is None else value.astimezone(dt.UTC)).isoformat(" ")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_name(name)}: {_inner(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_inner, value)) + "]"
    if isinstance(value, bool):
        return _key(value)
    return printable_text(str(faithful(value)), kept="")


def _name(name: object) -> str:
    """Name of a field, or key of a map."""
    if isinstance(name, str) and name.isascii() and name.isidentifier():
        return name
    return _inner(name)


def _quoted(text: str) -> str:
    # JSON escapes control characters, but neither changes of direction nor line separators.
    return printable_text(json.dumps(text, ensure_ascii=False), kept="")


def _bytes_text(data: bytes) -> str:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = None
    if text is not None and text.translate(dict.fromkeys(map(ord, _BREAKS))).isprintable():
        return f"b{_quoted(text)}"
    return f"base64:{base64.b64encode(data).decode('ascii')}"


# --- Layout for people
_EDGES = 3
"""Columns of a terminal that a cell of a table needs in addition to its text."""


def vertical_block(number: int, names: Sequence[str], row: Sequence[object], width: int) -> str:
    """A row as lines of `name | value`; every further line of a value begins with blanks and `|`.

    So no text can pass for another column or row.
    """
    from rich.cells import cell_len

    labels = [printable_text(name, kept="") for name in names]
    wide = max(map(cell_len, labels), default=0)
    lines = [f"-[ row {number:,} ]".ljust(wide + 1, "-")]
    for label, value in zip(labels, row, strict=True):
        first, *others = readable_lines(value, width - wide - _EDGES)
        lines.append(f"{label}{' ' * (wide - cell_len(label))} | {first}")
        lines += [f"{' ' * wide} | {line}" for line in others]
    return "\n".join(lines) + "\n"


def table_width(names: Sequence[str], cells: Sequence[Sequence[str]]) -> int:
    """Columns of a terminal that a table needs if no cell is folded."""
    from rich.cells import cell_len

    columns = zip(map(printable_text, names), *cells, strict=True)
    widths = (max(cell_len(line) for cell in column for line in cell.split("\n")) for column in columns)
    return sum(width + _EDGES for width in widths) + 1

"""The text form of a record, for people at a terminal, and when a command uses it. Pure.

A record begins at the left edge; all that comes from its bytes is indented, so that no value can imitate the
begin of a record. Invisible characters, terminal controls and direction changes are escaped.
"""

from __future__ import annotations

import base64
import enum
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from archiver.cli.options import Output
from archiver.runtime.errors import InvalidInput
from archiver.runtime.rfc3339 import format_time
from archiver.runtime.text import counted, printable_text

if TYPE_CHECKING:
    from archiver.stream.records import StreamRecord

SHOWN_CHARS_MAX = 1_000
"""Characters of a key, value or header that are shown: about half of a terminal."""
SHOWN_LINES_MAX = 20
"""Lines of them, for the same reason."""
SHOWN_BYTES_MAX = 750
"""Bytes that are shown in base64, which makes as many characters of them."""
HEADERS_MAX = 20
NAME_CHARS_MAX = 100
"""Characters of a header's name."""
_LABEL_CHARS = len("header (base64)")
_INDENT = " " * (2 + _LABEL_CHARS + 1)
_SEE_ALL = "--full shows all"


class RecordForm(enum.Enum):
    """How records are printed."""

    TEXT = "text"
    """`record_text`."""
    JSON_BASE64 = "json, bytes as base64"
    JSON_TEXT = "json, bytes as text"


def record_form(output: Output | None, text: bool, in_base64: bool, terminal: bool) -> RecordForm:
    """The form by the options `--output`, `--text` and `--base64`; `terminal` is whether standard output is a
    terminal with UTF-8. Raises `InvalidInput` for options that contradict each other.
    """
    if text and in_base64:
        raise InvalidInput("--text and --base64 exclude each other; leave one of them out")
    if output is Output.TEXT and (text or in_base64):
        raise InvalidInput(
            f"{'--text' if text else '--base64'} is for JSON lines, which --output text does not print; "
            "leave one of them out"
        )
    if text:
        return RecordForm.JSON_TEXT
    if output is Output.TEXT or (output is None and not in_base64 and terminal):
        return RecordForm.TEXT
    return RecordForm.JSON_BASE64


def record_text(record: StreamRecord, decoded: Mapping[str, object] | None = None, full: bool = False) -> str:
    """The lines of a record, without the last line end. `decoded` is that of `archiver.stream.decode`; long
    parts are cut, with a mark, unless `full`.
    """
    place = printable_text(f"{record.topic}:{record.partition}:{record.offset}", kept="")
    # As in JSON lines, so that it can be copied into --from.
    time = "no timestamp" if record.timestamp_us is None else format_time(record.timestamp_us)
    lines = [f"{place}  {time}"]
    decoded = decoded or {}
    # A key is mostly absent, so its absence takes no line.
    if record.key is not None:
        lines += _side("key", record.key, decoded.get("key"), full)
    headers = record.headers if full else record.headers[:HEADERS_MAX]
    for name, content in headers:
        lines += _part("header", content, full, f"{_cut_name(name, full)}: ")
    if len(headers) < len(record.headers):
        more = counted(len(record.headers) - len(headers), "more header")
        lines.append(f"  ({more}; {_SEE_ALL})")
    lines += _side("value", record.value, decoded.get("value"), full)
    return "\n".join(lines)


def is_base64(content: bytes | None) -> bool:
    """Whether `record_text` shows the bytes as base64, because they are no text."""
    try:
        (content or b"").decode("utf-8")
    except UnicodeDecodeError:
        return True
    return False


def _side(name: str, content: bytes | None, decoded: object, full: bool) -> Iterator[str]:
    """The lines of a key or a value: decoded if it could be, else as its bytes."""
    if isinstance(decoded, Mapping):
        document = json.dumps(decoded, ensure_ascii=False)
        yield from _text(f"{name} (decoded)", document, full)
        # A message may have a field of this name; then both are shown.
        if list(decoded) != ["error"]:
            return
    yield from _part(name, content, full)


def _part(name: str, content: bytes | None, full: bool, prefix: str = "") -> Iterator[str]:
    """The lines of some bytes, after `prefix`. The label says the form, because a text could say it too."""
    if content is None:
        yield _labelled(f"{name} (null)", prefix.removesuffix(": "))
        return
    if not content:
        yield _labelled(f"{name} (empty)", prefix.removesuffix(": "))
        return
    if not is_base64(content):
        yield from _text(name, content.decode("utf-8"), full, prefix)
        return
    shown = content if full else content[:SHOWN_BYTES_MAX]
    yield _labelled(f"{name} (base64)", prefix + base64.b64encode(shown).decode("ascii"))
    if len(shown) < len(content):
        yield f"  (cut: {len(shown):,} of {len(content):,} bytes; {_SEE_ALL})"


def _text(label: str, text: str, full: bool, prefix: str = "") -> Iterator[str]:
    shown = text if full else "\n".join(text[:SHOWN_CHARS_MAX].split("\n")[:SHOWN_LINES_MAX])
    yield _labelled(label, prefix + printable_text(shown).replace("\n", f"\n{_INDENT}"))
    if len(shown) < len(text):
        yield f"  (cut: {len(shown):,} of {len(text):,} characters; {_SEE_ALL})"


def _labelled(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_CHARS}} {text}" if text else f"  {label}"


def _cut_name(name: str, full: bool) -> str:
    cut = len(name) > NAME_CHARS_MAX and not full
    return printable_text(name[:NAME_CHARS_MAX] + "…" if cut else name, kept="")

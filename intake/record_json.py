"""The JSON form of a record: input of `produce`, output of `consume`.

The form is `{"topic", "partition", "offset", "timestamp", "key", "value", "headers"}`; `consume` adds
`ingest_timestamp`, `batch_start` and `from`. Bytes are base64, or UTF-8 text on request; null is null. Times
are RFC 3339 in UTC with six decimals. In the input, `topic` and `value` are required (null is a tombstone), a
missing `key` or `timestamp` is null, and missing headers are none. A partition may be written as 3.0; a time
may have any RFC 3339 form (`archiver.runtime.rfc3339`).
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Literal

from archiver.runtime.errors import InvalidInput
from archiver.runtime.redaction import excerpt
from archiver.runtime.rfc3339 import format_time, parse_time
from intake.records import Record

INPUT_FIELDS = ("topic", "partition", "timestamp", "key", "value", "headers")

SEQUENCE_ADVICE = (
    "is given by the producer of the run (--idempotent); leave it out. What an earlier process sent is "
    "sent again, with its numbers, by a "
    "program: Writer.resume_producer"
)


class NotARecord(InvalidInput):
    """The line has another form than a record; it may be a bare value."""


@dataclass(frozen=True, slots=True)
class Input:
    """One input record."""

    topic: str
    partition: int | None
    """None: the key decides."""
    record: Record
    where: str
    """Its place in the input, for messages: `line 3`, `row 3`, `record 3`."""


def parse_record_json(line: str, where: str, topic: str | None, text: bool) -> Input:
    """Parse one line. `topic` comes from `--topic`: it applies where the line has none, and must not
    contradict the line.

    Raises `InvalidInput`, of a line in another form `NotARecord`; the message begins with `where`.
    """
    try:
        # The hook refuses repeated fields; without it the last one would win silently.
        document = json.loads(line, object_pairs_hook=_fields_once)
    except json.JSONDecodeError as error:
        # Leave out the parser's own line number, which is always 1: `where` has the line.
        raise NotARecord(
            f"{where}: this is no JSON: {error.msg[:1].lower()}{error.msg[1:]}, at column {error.colno}"
        ) from error
    except ValueError as error:
        raise InvalidInput(f"{where}: this is no JSON: {error}") from error
    # The parser is recursive, and a line of brackets fits the size limit.
    except RecursionError as error:
        raise InvalidInput(f"{where}: this JSON is nested too deeply for a record") from error
    if not isinstance(document, dict):
        raise NotARecord(f"{where}: a record is a JSON object, this is {_json_type(document)}")
    # A line from `consume` has an offset; ignoring it would promise to keep it.
    if "offset" in document:
        raise InvalidInput(
            f"{where}: the field 'offset' is given by the intake log; leave it out (only a mirrored "
            "topic brings its own)"
        )
    # Numbers are assigned when a record is queued, so a line cannot bring one.
    if "sequence" in document:
        raise InvalidInput(f"{where}: the field 'sequence' {SEQUENCE_ADVICE}")
    # Refused, because a misspelt optional field would be ignored silently.
    unknown = [name for name in document if name not in INPUT_FIELDS]
    if unknown:
        raise NotARecord(
            f"{where}: unknown field {excerpt(unknown[0])!r}; the fields are {', '.join(INPUT_FIELDS)}"
        )
    if "value" not in document:
        raise InvalidInput(f"{where}: the field 'value' is missing; null makes a tombstone")
    return Input(
        topic=resolve_topic(document.get("topic"), topic, where),
        partition=_partition(document.get("partition"), where),
        record=Record(
            key=_bytes(document.get("key"), "key", where, text),
            value=_bytes(document["value"], "value", where, text),
            headers=_headers(document.get("headers"), where, text),
            timestamp_us=_timestamp(document.get("timestamp"), where),
        ),
        where=where,
    )


def resolve_topic(found: object, given: str | None, where: str) -> str:
    """The topic from the record's field and the one given for the whole input; raises `InvalidInput`."""
    if found is None:
        if given is None:
            raise InvalidInput(
                f"{where}: the field 'topic' is missing; add it, or name a topic for all records with --topic"
            )
        return given
    if not isinstance(found, str):
        raise InvalidInput(f"{where}: 'topic' is {_json_type(found)}; it must be text")
    # A contradiction is refused: either choice could send the record to the wrong topic.
    if given is not None and found != given:
        raise InvalidInput(
            f"{where}: 'topic' is {excerpt(found)!r}, but the input as a whole is for {given!r}; leave "
            "one of them out"
        )
    return found


def record_json(
    *,
    topic: str,
    partition: int,
    offset: int,
    timestamp_us: int | None,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes | None], ...],
    ingest_us: int,
    batch_start: int | None,
    source: Literal["archive", "intake"],
    text: bool = False,
) -> str:
    """One line for `consume`, without the line end. Raises `InvalidInput` if `text` is set and the bytes are
    not UTF-8.
    """
    where = f"{topic}:{partition}:{offset}"
    document = {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp": None if timestamp_us is None else format_time(timestamp_us),
        "key": _shown(key, "key", where, text),
        "value": _shown(value, "value", where, text),
        "headers": [
            [name, _shown(content, f"header {excerpt(name)!r}", where, text)] for name, content in headers
        ],
        "ingest_timestamp": format_time(ingest_us),
        "batch_start": batch_start,
        "from": source,
    }
    # Text stays readable; the line has no line breaks, because JSON escapes them.
    return json.dumps(document, ensure_ascii=False)


def _fields_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields: dict[str, object] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"the field {excerpt(name)!r} is there twice")
        fields[name] = value
    return fields


def whole_number(found: object) -> int | None:
    """A whole number as JSON may write it, also as 3.0 or with an exponent; None for anything else."""
    if isinstance(found, float) and found.is_integer():  # neither an infinity nor NaN
        return int(found)
    # `true` is an int in Python and no number in JSON.
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _json_type(found: object) -> str:
    names = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "a truth value",
        int: "a number",
        float: "a number",
        type(None): "null",
    }
    return names.get(type(found), type(found).__name__)


def _partition(found: object, where: str) -> int | None:
    if found is None:
        return None
    number = whole_number(found)
    if number is None:
        raise InvalidInput(
            f"{where}: 'partition' is {_json_type(found)}; it must be a whole number or left out"
        )
    return number


def _bytes(found: object, what: str, where: str, text: bool) -> bytes | None:
    if found is None:
        return None
    if not isinstance(found, str):
        raise InvalidInput(
            f"{where}: {what!r} is {_json_type(found)}; it must be {'text' if text else 'base64 text'} "
            "or null"
        )
    try:
        if text:
            return found.encode("utf-8")
        # Without `validate`, foreign characters would be dropped silently.
        decoded = base64.b64decode(found, validate=True)
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{where}: {what!r} cannot be written as UTF-8: {error.reason}") from error
    except (binascii.Error, ValueError) as error:
        raise InvalidInput(
            f"{where}: {what!r} is no base64 ({error}); plain text is asked for by --text, or "
            "?text=true over HTTP"
        ) from error
    return decoded


def _headers(found: object, where: str, text: bool) -> tuple[tuple[str, bytes | None], ...]:
    if found is None:
        return ()
    if not isinstance(found, list):
        raise InvalidInput(
            f"{where}: 'headers' is {_json_type(found)}; it must be a list of [name, value] pairs"
        )
    headers: list[tuple[str, bytes | None]] = []
    for position, pair in enumerate(found):
        if not isinstance(pair, list) or len(pair) != 2:
            raise InvalidInput(f"{where}: header {position} is not a pair [name, value]")
        name, value = pair
        if not isinstance(name, str):
            raise InvalidInput(
                f"{where}: the name of header {position} is {_json_type(name)}; it must be text"
            )
        headers.append((name, _bytes(value, f"header {excerpt(name)}", where, text)))
    return tuple(headers)


def _timestamp(found: object, where: str) -> int | None:
    if found is None:
        return None
    if not isinstance(found, str):
        raise InvalidInput(
            f"{where}: 'timestamp' is {_json_type(found)}; it must be text like "
            "2026-01-02T03:04:05.678901Z or null"
        )
    try:
        return parse_time(found)
    except ValueError as error:
        raise InvalidInput(f"{where}: 'timestamp': {error}") from error


def _shown(content: bytes | None, what: str, where: str, text: bool) -> str | None:
    if content is None:
        return None
    if not text:
        return base64.b64encode(content).decode("ascii")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{where}: the {what} is no UTF-8 text; leave --text out to see it as base64"
        ) from error

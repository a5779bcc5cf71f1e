"""Readers for the input formats of `produce`: record JSON lines, Parquet, and length-prefixed values.

Readers are lazy and yield records in input order. An error (`InvalidInput`) names the line, row or record,
and comes after all records before it. The writer checks topic, partition and record size. Unknown or
ambiguous input is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from archiver.proto import produce_pb2 as pb
from archiver.runtime.errors import InvalidInput, RecordRefused
from archiver.runtime.redaction import excerpt
from intake.parquet_batches import batches_from
from intake.record_json import INPUT_FIELDS, SEQUENCE_ADVICE, Input, parse_record_json, resolve_topic
from intake.records import HEADER_COST_BYTES, Record, validate

InputFormat = Literal["jsonl", "parquet", "delimited"]


@dataclass(slots=True)
class InputPosition:
    """The read position in an input. A reader starts there and moves it past each record before it yields the
    record. At the end it is the end of the input.
    """

    position: int = 0
    """In bytes; in rows of Parquet."""
    number: int = 0
    """Lines (JSON), rows or records before it."""


def _is_headers(found: pa.DataType) -> bool:
    if not (pa.types.is_list(found) or pa.types.is_large_list(found)) or not pa.types.is_struct(
        found.value_type
    ):
        return False
    fields = {field.name: field.type for field in found.value_type}
    if sorted(fields) != ["key", "value"]:
        return False
    names_fit = pa.types.is_string(fields["key"]) or pa.types.is_large_string(fields["key"])
    return names_fit and (pa.types.is_binary(fields["value"]) or pa.types.is_large_binary(fields["value"]))


_VARINT_BYTES_MAX = 5
_NO_LIMIT = 2**63
_FRAME_BYTES = 64 * 1024
"""Bytes of a message in addition to the record: tags, lengths, topic. A header's framing is smaller than its
cost in the record."""
_PARQUET_TYPES: dict[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "topic": (
        "string",
        lambda found: (
            pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_dictionary(found)
        ),
    ),
    "partition": ("an integer", pa.types.is_integer),
    "timestamp": (
        "a timestamp with a time zone",
        lambda found: pa.types.is_timestamp(found) and found.tz is not None,
    ),
    "key": ("binary", lambda found: pa.types.is_binary(found) or pa.types.is_large_binary(found)),
    "value": ("binary", lambda found: pa.types.is_binary(found) or pa.types.is_large_binary(found)),
    "headers": ("a list of struct<key: string, value: binary>", _is_headers),
}


def read_inputs(
    source: BinaryIO,
    form: InputFormat,
    topic: str | None,
    text: bool,
    record_bytes_max: int,
    place: InputPosition | None = None,
) -> Iterator[Input]:
    """The records of `source` in the given format; `source` must be seekable for Parquet.

    `topic` is that of `--topic`, `text` that of `--text` (only for JSON lines). `record_bytes_max` bounds the
    memory for a single record. `place` (default: the beginning) is the position of `source`; a Parquet reader
    seeks to it.
    """
    place = place or InputPosition()
    if form == "jsonl":
        return read_jsonl(source, topic, text, record_bytes_max, place)
    if text:
        raise InvalidInput(f"--text is for JSON lines; the values of {form} input are bytes already")
    if form == "parquet":
        return read_parquet(source, topic, record_bytes_max, place)
    if topic is None:
        raise InvalidInput("delimited input holds values alone; name their topic with --topic")
    return read_delimited(source, topic, record_bytes_max, place)


def read_jsonl(
    source: BinaryIO, topic: str | None, text: bool, record_bytes_max: int, place: InputPosition
) -> Iterator[Input]:
    """Record JSON, one per line; empty lines are skipped, but counted."""
    line_bytes_max = (
        64 * 1024 + 8 * record_bytes_max
    )  # base64 or escapes of the largest record, and its field names
    while line := source.readline(line_bytes_max + 1):
        place.number += 1
        place.position += len(line)
        where = f"line {place.number}"
        if len(line) > line_bytes_max:
            raise InvalidInput(
                f"{where}: longer than {line_bytes_max} bytes, which is more than the largest record can take"
            )
        try:
            # Only the first line may begin with a byte order mark.
            decoded = line.decode("utf-8-sig" if place.number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{where}: this is no UTF-8 text (byte {error.start})") from error
        if decoded.strip():
            yield _checked(parse_record_json(decoded, where, topic, text))


def read_parquet(
    source: BinaryIO, topic: str | None, record_bytes_max: int, place: InputPosition
) -> Iterator[Input]:
    """Rows of a Parquet file named like the JSON fields; headers are a list of struct<key, value>."""
    try:
        file = pq.ParquetFile(source)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(f"the input is no Parquet file: {error}") from error
    _check_columns(file.schema_arrow)
    try:
        for batch in batches_from(source, file, place.position, record_bytes_max):
            for row in _rows(batch):
                item = _checked(_input_of(row, f"row {place.position}", topic))
                place.position += 1
                place.number = place.position
                yield item
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput(f"row {place.position}: the Parquet file cannot be read on: {error}") from error


def read_delimited(
    source: BinaryIO, topic: str, record_bytes_max: int, place: InputPosition | None = None
) -> Iterator[Input]:
    """Values with a varint length prefix (as Protobuf's delimited streams), without key, headers and time."""
    place = place or InputPosition()
    while True:
        where = f"record {place.number} (byte {place.position})"
        length, length_bytes = _read_varint(source, where)
        if length is None:
            return
        if length > record_bytes_max:
            raise InvalidInput(
                f"{where}: a length of {length} bytes is more than intake.record_bytes_max = "
                f"{record_bytes_max}"
            )
        value = _read_all(source, length)
        if len(value) < length:
            raise InvalidInput(f"{where}: the input ends after {len(value)} of {length} bytes")
        place.number += 1
        place.position += length_bytes + length
        yield Input(topic, None, Record(key=None, value=value), where)


def read_messages(source: BinaryIO, topic: str, record_bytes_max: int) -> Iterator[Input]:
    """`ProduceRecord` messages (archiver/proto/produce.proto) with a varint length prefix."""
    for framed in read_delimited(source, topic, record_bytes_max + _FRAME_BYTES):
        assert framed.record.value is not None, "delimited input has no nulls"
        yield _checked(
            _input_of_message(framed.record.value, framed.where, topic, record_bytes_max // HEADER_COST_BYTES)
        )


def _input_of_message(data: bytes, where: str, topic: str, headers_max: int) -> Input:
    try:
        message = pb.ProduceRecord.FromString(data)
    except DecodeError as error:
        raise InvalidInput(f"{where}: this is no archiver.v1.ProduceRecord: {error}") from error
    if len(message.headers) > headers_max:
        raise RecordRefused(
            f"{where}: {len(message.headers)} headers are more than any record can have; a header "
            f"counts {HEADER_COST_BYTES} bytes"
        )
    if any(len(UnknownFieldSet(part)) for part in (message, *message.headers)):
        raise InvalidInput(
            f"{where}: this holds fields that archiver.v1.ProduceRecord does not have; is it another "
            "message type?"
        )
    headers = tuple(
        (header.name, header.value if header.HasField("value") else None) for header in message.headers
    )
    record = Record(
        key=message.key if message.HasField("key") else None,
        value=message.value if message.HasField("value") else None,
        headers=headers,
        timestamp_us=message.timestamp_us if message.HasField("timestamp_us") else None,
    )
    found = message.topic if message.HasField("topic") else None
    return Input(
        resolve_topic(found, topic, where),
        message.partition if message.HasField("partition") else None,
        record,
        where,
    )


def _checked(item: Input) -> Input:
    try:
        validate(item.record, _NO_LIMIT)
    except RecordRefused as error:
        raise RecordRefused(f"{item.where}: {error}") from error
    return item


def _check_columns(schema: pa.Schema) -> None:
    for field in schema:
        if field.name == "offset":
            raise InvalidInput(
                "column 'offset' is given by the intake log; leave it out (only a mirrored topic "
                "brings its own)"
            )
        if field.name == "sequence":
            raise InvalidInput(f"column 'sequence' {SEQUENCE_ADVICE}")
        if field.name not in _PARQUET_TYPES:
            raise InvalidInput(
                f"unknown column {excerpt(field.name)!r}; the columns are {', '.join(INPUT_FIELDS)}"
            )
        if schema.names.count(field.name) > 1:
            raise InvalidInput(f"column {field.name!r} is there twice")
        type_name, fits = _PARQUET_TYPES[field.name]
        if not fits(field.type):
            raise InvalidInput(
                f"column {field.name!r} is of type {excerpt(str(field.type))}; it must be {type_name}"
            )
    if "value" not in schema.names:
        raise InvalidInput("column 'value' is missing; it may be null in every row, but it must be there")


def _rows(batch: pa.RecordBatch) -> Iterator[dict[str, object]]:
    columns: dict[str, list[object]] = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if name == "timestamp":
            column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        columns[name] = column.to_pylist()
    for number in range(batch.num_rows):
        yield {name: column[number] for name, column in columns.items()}


def _input_of(row: dict[str, object], where: str, topic: str | None) -> Input:
    headers: list[tuple[object, object]] = []
    pairs = row.get("headers")
    for position, pair in enumerate(pairs if isinstance(pairs, list) else []):
        if not isinstance(pair, dict):
            raise InvalidInput(f"{where}: header {position} is null; a header is a pair of name and value")
        headers.append((pair["key"], pair["value"]))
    record = Record(row.get("key"), row["value"], tuple(headers), row.get("timestamp"))  # type: ignore[arg-type]  # checked by `validate`
    return Input(resolve_topic(row.get("topic"), topic, where), row.get("partition"), record, where)  # type: ignore[arg-type]


def _read_varint(source: BinaryIO, where: str) -> tuple[int | None, int]:
    """A length and its number of bytes; None at the end of the input."""
    length = 0
    for count in range(_VARINT_BYTES_MAX):
        byte = source.read(1)
        if not byte:
            if count == 0:
                return None, 0
            raise InvalidInput(f"{where}: the input ends inside a length")
        length |= (byte[0] & 0x7F) << (7 * count)
        if byte[0] < 0x80:
            return length, count + 1
    raise InvalidInput(
        f"{where}: a length takes more than {_VARINT_BYTES_MAX} bytes; is this really delimited input?"
    )


def _read_all(source: BinaryIO, length: int) -> bytes:
    """`length` bytes, or fewer at the end of the input. A pipe may return less than requested per read."""
    pieces: list[bytes] = []
    missing = length
    while missing and (piece := source.read(missing)):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)

"""Readers for the input formats of `produce`: record JSON lines, Parquet, and length-prefixed values.

Readers are lazy and yield records in input order. An error (`InvalidInput`) names the line, row or record,
and comes after all records before it. The writer checks topic, partition and record size. Unknown or
ambiguous input is refused. A Parquet row group is decoded only after its page headers bound
the memory for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from archiver.proto import produce_pb2 as pb
from archiver.runtime.errors import InvalidInput, RecordRefused
from archiver.runtime.redaction import excerpt
from intake.parquet_footer import read_unverified_metadata
from intake.parquet_pages import Pages, read_pages
from intake.record_json import INPUT_FIELDS, SEQUENCE_ADVICE, Input, parse_record_json, resolve_topic
from intake.records import HEADER_COST_BYTES, Record, validate

# --- Parquet with bounded memory

PAGES_BYTES_MAX: Final = 256 << 20
"""Sum over the columns of a row group, of the largest page and the dictionary. More if two of the largest
records need it."""
_DICTIONARY_VALUES_MAX: Final = 4 << 20
_PAGE_VALUES_MAX: Final = 16 << 20
_ROWS_PER_BATCH: Final = 8192
_BATCH_BYTES: Final = 16 << 20
_HEADERS_BYTES_MAX: Final = 64 << 20
"""Header values that repeat are decoded at once up to this size per row group."""
_HEADER_OBJECT_BYTES: Final = 256
"""Memory of a header in Python in addition to its bytes."""
_STREAM_BYTES: Final = 1 << 20
"""A column is read in pieces of this size."""
_NUMBER_BYTES: Final = 8
_VALUE_BYTES_MAX: Final = 64 << 20
"""Bound for a dictionary value, because the reader copies dictionary values without a size check. More if
records may be larger."""

Counts = npt.NDArray[np.int64]


def batches_from(
    source: BinaryIO, file: pq.ParquetFile, row: int, record_bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """The rows from `row` on; `file` is the content of `source`.

    Raises `InvalidInput` for a row group that is too large, after the row groups before it. Raises
    `RecordRefused` for a row above `record_bytes_max`, after the rows before it; not every such row is found
    here.
    """
    passed = 0
    for number in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(number).num_rows
        before, passed = passed, passed + rows
        if passed <= row:
            continue
        # Per row group, so that the rows before a bad one are still read.
        found = _judged(source, file, number, record_bytes_max)
        # These would be copied to every row; read as dictionaries they stay references.
        by_reference = [path for path, pages in found.items() if _is_repeated(path) and _is_large(pages)]
        reader = pq.ParquetFile(
            source, metadata=file.metadata, read_dictionary=by_reference, buffer_size=_STREAM_BYTES
        )
        at = before
        for batch in reader.iter_batches(batch_size=_batch_rows(found), row_groups=[number]):
            # A reader that continues skips the rows that were ingested before.
            rest = batch.slice(min(max(0, row - at), batch.num_rows))
            at += batch.num_rows
            yield from _portions(rest, at - rest.num_rows, record_bytes_max)


def _judged(
    source: BinaryIO, file: pq.ParquetFile, number: int, record_bytes_max: int
) -> Mapping[str, Pages]:
    """The pages of each column of a row group, after the check that they may be read."""
    group, limit = file.metadata.row_group(number), max(PAGES_BYTES_MAX, 2 * record_bytes_max)
    found: dict[str, Pages] = {}
    total = 0
    for index in range(group.num_columns):
        column = group.column(index)
        where, repeated = (
            f"row group {number}, column {column.path_in_schema}",
            _is_repeated(column.path_in_schema),
        )
        try:
            pages = found[column.path_in_schema] = read_pages(source, column, limit)
        except InvalidInput as error:
            raise InvalidInput(f"{where}: {error}; the file is damaged") from error
        if column.physical_type == "BYTE_ARRAY":
            _check_texts(pages, repeated, max(record_bytes_max, _VALUE_BYTES_MAX), where)
        # A page of nulls or equal values is tiny on disk and large once decoded.
        if max(pages.page_values, column.num_values if repeated else 0) > _PAGE_VALUES_MAX:
            raise InvalidInput(
                f"{where}: more than {_PAGE_VALUES_MAX} values in one page, or headers in one row "
                "group; write smaller ones"
            )
        # A column read as a dictionary accumulates the values of all its pages, and one row may have all
        # headers of the row group.
        collected = repeated or pa.types.is_dictionary(
            file.schema_arrow.field(column.path_in_schema.partition(".")[0]).type
        )
        total += pages.dictionary_bytes + max(pages.page_bytes, pages.plain_bytes if collected else 0)
        if total > limit:
            raise InvalidInput(
                f"{where}: its pages are too large to be read ({total} bytes decompressed, at most {limit}); "
                "write the file with smaller pages, or smaller row groups, and large values without a "
                "dictionary"
            )
    return found


def _check_texts(pages: Pages, repeated: bool, value_bytes_max: int, where: str) -> None:
    """Refuse strings whose decoded size cannot be bounded."""
    # With `DELTA_BYTE_ARRAY` a few bytes may stand for long values that share a prefix.
    if not pages.foreseeable:
        raise InvalidInput(
            f"{where}: the decoded size of its encoding is not known in advance; write it "
            "plainly or by dictionary"
        )
    if pages.dictionary_values > _DICTIONARY_VALUES_MAX:
        raise InvalidInput(
            f"{where}: a dictionary of {pages.dictionary_values} values, at most "
            f"{_DICTIONARY_VALUES_MAX} can be read"
        )
    # Each reference may copy a value of this size.
    if pages.indexed_values and pages.longest_bytes > value_bytes_max:
        raise InvalidInput(
            f"{where}: a value of {pages.longest_bytes} bytes in its dictionary is larger than any "
            f"record, {value_bytes_max} at most"
        )
    if repeated and _is_large(pages) and pages.plain_bytes > _HEADERS_BYTES_MAX:
        raise InvalidInput(
            f"{where}: too many headers, some by dictionary and some not; write smaller row groups"
        )


def _is_repeated(path: str) -> bool:
    # Only headers are nested, and their paths have dots.
    return "." in path


def _is_large(pages: Pages) -> bool:
    """Whether dictionary values may take too much memory when they are all copied to their rows."""
    return pages.indexed_values * pages.longest_bytes > _HEADERS_BYTES_MAX


def _batch_rows(found: Mapping[str, Pages]) -> int:
    """A number of rows that takes at most `_BATCH_BYTES`, plus one page at each end."""
    row_bytes = 1.0
    for path, pages in found.items():
        if not _is_repeated(path):
            row_bytes += max(_NUMBER_BYTES, pages.densest, pages.longest_bytes if pages.indexed_values else 0)
    # At least one row: a single record may be larger than a batch should be.
    return min(_ROWS_PER_BATCH, max(1, int(_BATCH_BYTES / row_bytes)))


def _portions(batch: pa.RecordBatch, row: int, record_bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batch, whose first row is `row`, in parts of about `_BATCH_BYTES` as Python objects, up to the
    first record that is too large.
    """
    names = batch.schema.names
    # The usual batch is small enough as Python objects, too.
    if "headers" not in names and batch.nbytes <= _BATCH_BYTES:
        yield batch
        return
    counts = raw = np.zeros(batch.num_rows, np.int64)
    if "headers" in names:
        counts, raw = _headers(batch.column("headers"))
    for name in {"key", "value"}.intersection(names):
        raw = raw + _lengths(batch.column(name))
    weights = raw + counts * HEADER_COST_BYTES
    # The rows before the first one that is too large are still yielded.
    over = np.flatnonzero(weights > record_bytes_max)
    refused = int(over[0]) if len(over) else batch.num_rows
    # Headers become tuples and strings, which need far more than their bytes.
    costs = raw + counts * _HEADER_OBJECT_BYTES
    if "topic" in names:
        costs = costs + _lengths(batch.column("topic"))
    reached = np.cumsum(costs[:refused])
    first = 0
    while first < refused:
        room = _BATCH_BYTES + (int(reached[first - 1]) if first else 0)
        end = max(first + 1, int(np.searchsorted(reached, room, side="right")))
        yield batch.slice(first, end - first)
        first = end
    if len(over):
        raise RecordRefused(
            f"row {row + refused}: the record has {weights[refused]} bytes (each header counts "
            f"{HEADER_COST_BYTES} more), "
            f"more than intake.record_bytes_max = {record_bytes_max}; make it smaller or raise the limit"
        )


def _headers(column: Any) -> tuple[Counts, Counts]:
    """Per row: the number of headers, and the bytes of their names and values."""
    counts = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    values = column.flatten()
    reached = np.concatenate(
        [
            [0],
            np.cumsum(_lengths(pc.struct_field(values, "key")) + _lengths(pc.struct_field(values, "value"))),
        ]
    )
    ends = np.cumsum(counts)
    return counts, reached[ends] - reached[ends - counts]


def _lengths(column: Any) -> Counts:
    """Bytes of each value; zero for null."""
    if pa.types.is_dictionary(column.type):
        found: Any = pc.binary_length(column.dictionary).take(column.indices)
    else:
        found = pc.binary_length(column)
    lengths: Counts = found.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


# --- formats

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


# Five bytes hold 35 bits, more than the length of any record needs.
_VARINT_BYTES_MAX = 5
# Sizes are checked by the writer, which knows the limit.
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
    # Room for base64 or escapes of the largest record, and for its field names.
    line_bytes_max = 64 * 1024 + 8 * record_bytes_max
    # One byte more than allowed, so that a longer line is noticed without reading all of it.
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


def read_lines(
    source: BinaryIO,
    topic: str,
    record_bytes_max: int,
    place: InputPosition,
    cut_off: Callable[[], bool] = lambda: False,
) -> Iterator[Input]:
    """Values in UTF-8, one per line without its line feed; empty lines are skipped, but counted.

    A last line needs no line feed. It is dropped if `cut_off` then says that the input was ended before its
    end, because it may be half a value.
    """
    # Room for the line feed, and one byte more, so that a longer line is noticed without reading all of it.
    while line := source.readline(record_bytes_max + 2):
        place.number += 1
        place.position += len(line)
        where = f"line {place.number}"
        value = line.removesuffix(b"\n")
        if len(value) > record_bytes_max:
            raise InvalidInput(f"{where}: longer than intake.record_bytes_max = {record_bytes_max} bytes")
        if not line.endswith(b"\n") and cut_off():
            return
        try:
            value.decode("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{where}: this is no UTF-8 text (byte {error.start})") from error
        if value:
            yield Input(topic, None, Record(key=None, value=value), where)


def read_parquet(
    source: BinaryIO, topic: str | None, record_bytes_max: int, place: InputPosition
) -> Iterator[Input]:
    """Rows of a Parquet file named like the JSON fields; headers are a list of struct<key, value>."""
    try:
        file = pq.ParquetFile(source, metadata=read_unverified_metadata(source))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidInput(f"the input is no Parquet file that can be read: {error}") from error
    _check_columns(file.schema_arrow)
    try:
        for batch in batches_from(source, file, place.position, record_bytes_max):
            for row in _rows(batch):
                item = _checked(_input_of(row, f"row {place.position}", topic))
                # Before the record is yielded: the consumer reads the position with it.
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
        # The input ends between two records.
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
    # Checked before Python objects are made of them.
    if len(message.headers) > headers_max:
        raise RecordRefused(
            f"{where}: {len(message.headers)} headers are more than any record can have; a header "
            f"counts {HEADER_COST_BYTES} bytes"
        )
    # Protobuf reads foreign messages without an error, and would drop what it does not know.
    if any(len(UnknownFieldSet(part)) for part in (message, *message.headers)):
        raise InvalidInput(
            f"{where}: this holds fields that archiver.v1.ProduceRecord does not have; is it another "
            "message type?"
        )
    headers = tuple(
        (header.name, header.value if header.HasField("value") else None) for header in message.headers
    )
    record = Record(
        # Presence distinguishes null from empty bytes.
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
            # Raises `ArrowInvalid` if nanoseconds would be lost.
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
        # The high bit says that another byte follows.
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

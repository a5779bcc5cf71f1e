"""Which records and batches are valid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from archiver.runtime.errors import RecordRefused
from intake.records import (
    HEADERS,
    RECORD_SCHEMA,
    TIMESTAMP,
    TIMESTAMP_MAX_US,
    TIMESTAMP_MIN_US,
    Record,
    normalise_batch,
    validate,
    weight_of,
)

LIMIT = 1000


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (Record("k", b"v"), "key is of type str"),  # type: ignore[arg-type]
        (Record(b"k", 5), "value is of type int"),  # type: ignore[arg-type]
        (Record(b"k", bytearray(b"v")), "value is of type bytearray"),  # type: ignore[arg-type]
        (Record(None, None, [("a", b"")]), "headers are of type list"),  # type: ignore[arg-type]
        (Record(None, None, (("a",),)), "header 0 is not a pair"),  # type: ignore[arg-type]
        (Record(None, None, (("a", b""), (b"b", b""))), "name of header 1 is of type bytes"),  # type: ignore[arg-type]
        (Record(None, None, (("a", "b"),)), "value of header 'a' is of type str"),  # type: ignore[arg-type]
        (Record(None, None, (("\ud800", b""),)), "cannot be written as UTF-8"),
        (Record(None, None, (), 1.5), "timestamp is of type float"),  # type: ignore[arg-type]
        (Record(None, None, (), True), "timestamp is of type bool"),
        (Record(None, None, (), TIMESTAMP_MAX_US + 1), "outside the years 1 to 9999"),
        (Record(None, None, (), TIMESTAMP_MIN_US - 1), "outside the years 1 to 9999"),
        (Record(b"k" * 500, b"v" * 501), "1001 bytes, more than intake.record_bytes_max = 1000"),
        (Record(None, None, (("ä" * 300, b"v" * 401),)), "1001 bytes"),
        (
            Record(None, b"v" * 9, (("", None),) * 62),
            (
                "has 9 bytes and 62 headers, which count 16 additional bytes each, together 1001 bytes, more "
                "than intake.record_bytes_max = 1000"
            ),
        ),
    ],
)
def test_a_record_that_breaks_a_rule_is_refused(record: Record, why: str) -> None:
    with pytest.raises(RecordRefused, match=why):
        validate(record, LIMIT)


def test_raw_bytes_count_utf8_of_header_names() -> None:
    assert (
        validate(Record(b"kk", b"vvv", (("ä", b"1"), ("b", None)), TIMESTAMP_MIN_US), LIMIT)
        == 2 + 3 + 2 + 1 + 1
    )
    assert validate(Record(None, None), LIMIT) == 0
    assert validate(Record(b"", b"v" * LIMIT), LIMIT) == LIMIT


def test_headers_weigh_16_bytes_each_and_count_nothing_in_raw_bytes() -> None:
    record = Record(None, b"v" * 8, (("", None),) * 62)
    assert validate(record, LIMIT) == 8
    assert weight_of(record, 8) == LIMIT
    assert weight_of(Record(b"k", None), 1) == 1


def column(kind: pa.DataType, *values: Any) -> pa.Array[Any]:
    return pa.array(values, kind)


VALUE = column(pa.binary(), b"v", None)
LOOSE_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"key": VALUE}, "no column 'value'"),
        ({"value": VALUE, "kye": VALUE}, "column 'kye'; the columns are key, value"),
        ({"value": column(pa.string(), "a", "b")}, "'value' is of type string"),
        ({"value": VALUE, "key": column(pa.int64(), 1, 2)}, "'key' is of type int64"),
        (
            {"value": VALUE, "headers": column(pa.map_(pa.string(), pa.binary()), [], [])},
            "'headers' is of type map",
        ),
        ({"value": VALUE, "headers": column(LOOSE_HEADERS, [None], [])}, "null header"),
        (
            {"value": VALUE, "headers": column(LOOSE_HEADERS, [{"key": None, "value": b""}], [])},
            "without a name",
        ),
        ({"value": VALUE, "event_timestamp": column(pa.timestamp("us"), 1, 2)}, "with a time zone"),
        (
            {"value": VALUE, "event_timestamp": column(pa.timestamp("ns", "UTC"), 1, 2)},
            "does not fit microseconds",
        ),
        ({"value": VALUE, "event_timestamp": column(TIMESTAMP, 1, TIMESTAMP_MAX_US + 1)}, "years 1 to 9999"),
        ({"value": VALUE, "partition": column(pa.string(), "1", "2")}, "'partition' is of type string"),
        ({"value": column(pa.binary(), b"v", b"v" * 1001)}, "row 1: the record has 1001 bytes, more"),
        (
            {
                "value": VALUE,
                "headers": column(
                    LOOSE_HEADERS, [{"key": "", "value": None}] * 62, [{"key": "", "value": None}] * 63
                ),
            },
            (
                "row 1: the record has 0 bytes and 63 headers, which count 16 additional bytes each, together "
                "1008 bytes"
            ),
        ),
    ],
)
def test_a_batch_that_breaks_a_rule_is_refused(columns: dict[str, pa.Array[Any]], why: str) -> None:
    with pytest.raises(RecordRefused, match=why):
        normalise_batch(pa.RecordBatch.from_pydict(columns), LIMIT)


def test_a_header_name_that_is_no_utf8_is_refused() -> None:
    names = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32).tobytes()), pa.py_buffer(b"\xff")]
    )
    pairs = pa.StructArray.from_arrays([names, pa.array([b""], pa.binary())], names=["key", "value"])
    headers: Any = pa.ListArray
    batch = pa.RecordBatch.from_pydict(
        {
            "value": column(pa.binary(), b"v"),
            "headers": headers.from_arrays(pa.array([0, 1], pa.int32()), pairs),
        }
    )
    with pytest.raises(RecordRefused, match=r"headers.*UTF8"):
        normalise_batch(batch, LIMIT)


def test_a_batch_is_brought_to_the_schema() -> None:
    batch = pa.RecordBatch.from_pydict(
        {
            "partition": column(pa.uint8(), 1, None, 2, 0),
            "value": column(pa.large_binary(), b"cut off", b"v", None, b""),
            "headers": column(
                LOOSE_HEADERS, [], [{"key": "a", "value": None}, {"key": "a", "value": b"xy"}], None, []
            ),
            "event_timestamp": column(pa.timestamp("s", "Europe/Berlin"), 9, 1, None, 3),
        }
    ).slice(1)
    normal = normalise_batch(batch, LIMIT)
    assert normal.columns.schema == RECORD_SCHEMA
    assert normal.columns.column("headers").type == HEADERS
    assert normal.columns.column("key").null_count == 3
    assert [row["headers"] for row in normal.columns.to_pylist()] == [
        [{"key": "a", "value": None}, {"key": "a", "value": b"xy"}],
        [],
        [],
    ]
    assert normal.columns.column("event_timestamp").cast(pa.int64()).to_pylist() == [
        1_000_000,
        None,
        3_000_000,
    ]
    assert normal.raw_bytes.tolist() == [1 + 1 + 3, 0, 0]
    assert normal.weights.tolist() == [1 + 1 + 3 + 2 * 16, 0, 0]
    assert normal.partitions.to_pylist() == [None, 2, 0]


def test_a_batch_of_values_alone_and_an_empty_batch_pass() -> None:
    normal = normalise_batch(pa.RecordBatch.from_pydict({"value": VALUE}), LIMIT)
    assert (normal.raw_bytes.tolist(), normal.weights.tolist()) == ([1, 0], [1, 0])
    assert (
        normalise_batch(pa.RecordBatch.from_pylist([], schema=RECORD_SCHEMA), LIMIT).raw_bytes.tolist() == []
    )

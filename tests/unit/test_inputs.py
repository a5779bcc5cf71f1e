"""The three formats that `produce` reads, and the input that it refuses."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.runtime.errors import InvalidInput, RecordRefused
from intake.inputs import InputFormat, read_inputs
from intake.record_json import Input
from intake.records import HEADERS, TIMESTAMP, Record

LIMIT = 1000


def read(data: bytes, form: InputFormat, topic: str | None = None, text: bool = False) -> list[Input]:
    return list(read_inputs(io.BytesIO(data), form, topic, text, LIMIT))


def test_json_lines_skip_empty_lines_but_count_them() -> None:
    data = b'\xef\xbb\xbf{"topic": "t", "value": "YQ=="}\r\n\n  \n{"topic": "u", "value": null}'
    assert [(item.topic, item.record.value, item.where) for item in read(data, "jsonl")] == [
        ("t", b"a", "line 1"),
        ("u", None, "line 4"),
    ]


def test_lines_before_a_bad_one_are_read() -> None:
    items = read_inputs(io.BytesIO(b'{"value": null}\n{"value": 1}\n'), "jsonl", "t", False, LIMIT)
    assert next(items).where == "line 1"
    with pytest.raises(InvalidInput, match=r"^line 2: 'value' is a number"):
        next(items)


def test_a_line_that_is_no_text_or_has_no_end() -> None:
    with pytest.raises(InvalidInput, match=r"^line 1: this is no UTF-8 text"):
        read(b'{"value": "\xff"}', "jsonl", "t")
    with pytest.raises(InvalidInput, match=r"^line 1: longer than"):
        read(b'"' + b"x" * (64 * 1024 + 8 * LIMIT), "jsonl", "t")


def test_a_largest_record_fits_a_line() -> None:
    line = b'{"value": "' + b"\\u0001" * LIMIT + b'"}'
    assert read(line, "jsonl", "t", text=True)[0].record.value == b"\x01" * LIMIT


def test_delimited_values() -> None:
    data = b"\x00" + b"\x01a" + b"\x80\x01" + b"b" * 128
    assert [(i.topic, i.partition, i.record) for i in read(data, "delimited", "t")] == [
        ("t", None, Record(None, value)) for value in (b"", b"a", b"b" * 128)
    ]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\x01a\x05ab", r"record 1 \(byte 2\): the input ends after 2 of 5 bytes"),
        (b"\x01a\x80", r"record 1 \(byte 2\): the input ends inside a length"),
        (b"\xff\xff\xff\xff\xff\x01", r"record 0 \(byte 0\): a length takes more than 5 bytes"),
        (b"\xe9\x07", "a length of 1001 bytes is more than intake.record_bytes_max = 1000"),
    ],
)
def test_bad_delimited_input_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        read(data, "delimited", "t")


def test_delimited_input_reads_a_pipe_that_gives_little() -> None:
    class Dripping(io.BytesIO):
        def read(self, size: int | None = -1, /) -> bytes:
            return super().read(min(size or 0, 2))

    assert [i.record.value for i in read_inputs(Dripping(b"\x05hello"), "delimited", "t", False, LIMIT)] == [
        b"hello"
    ]


def test_options_that_do_not_go_together() -> None:
    with pytest.raises(InvalidInput, match="name their topic with --topic"):
        read(b"", "delimited")
    with pytest.raises(InvalidInput, match="--text is for JSON lines"):
        read(b"", "parquet", text=True)


def parquet(columns: dict[str, Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


VALUES = pa.array([b"v", None], pa.binary())


def test_parquet_rows() -> None:
    data = parquet(
        {
            "value": VALUES,
            "topic": pa.array(["t", "u"]).dictionary_encode(),
            "partition": pa.array([None, 3], pa.int16()),
            "key": pa.array([None, b""], pa.large_binary()),
            "headers": pa.array([[{"key": "a", "value": None}, {"key": "a", "value": b"x"}], None], HEADERS),
            "timestamp": pa.array([5, None], TIMESTAMP),
        }
    )
    assert read(data, "parquet") == [
        Input("t", None, Record(None, b"v", (("a", None), ("a", b"x")), 5), "row 0"),
        Input("u", 3, Record(b"", None, (), None), "row 1"),
    ]
    assert [item.topic for item in read(parquet({"value": VALUES}), "parquet", "w")] == ["w", "w"]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"key": VALUES}, "column 'value' is missing"),
        ({"value": VALUES, "sequence": [1, 2]}, "column 'sequence' is given by the producer of the run"),
        ({"value": VALUES, "offset": [1, 2]}, "column 'offset' is given by the intake log"),
        ({"value": VALUES, "from": ["a", "b"]}, "unknown column 'from'"),
        ({"value": ["a", "b"]}, "column 'value' is of type string; it must be binary"),
        ({"value": VALUES, "key": [1, 2]}, "column 'key' is of type int64; it must be binary"),
        (
            {"value": VALUES, "timestamp": pa.array([1, 2], pa.timestamp("us"))},
            "must be a timestamp with a time zone",
        ),
        ({"value": VALUES, "headers": pa.array([["a"], []])}, "must be a list of struct"),
        ({"value": VALUES, "partition": ["0", "1"]}, "must be an integer"),
        ({"value": VALUES, "topic": pa.array(["t", None])}, "row 1: the field 'topic' is missing"),
    ],
)
def test_bad_parquet_input_is_refused(columns: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        read(parquet(columns), "parquet")


def test_parquet_rows_keep_the_rules_of_records() -> None:
    headers = pa.array(
        [[{"key": None, "value": b""}]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    with pytest.raises(RecordRefused, match="row 0: the name of header 0 is of type NoneType"):
        read(parquet({"value": VALUES[:1], "headers": headers}), "parquet", "t")
    late = pa.array([2**62], TIMESTAMP)
    with pytest.raises(RecordRefused, match=r"row 0: the timestamp .* outside the years"):
        read(parquet({"value": VALUES[:1], "timestamp": late}), "parquet", "t")


def test_a_file_that_is_no_parquet_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no Parquet file"):
        read(b"hello", "parquet", "t")
    damaged = bytearray(parquet({"value": pa.array([b"v" * 100])}))
    with pytest.raises(InvalidInput, match="no Parquet file"):
        read(bytes(damaged[:-20]), "parquet", "t")

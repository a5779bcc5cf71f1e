"""The records digest does not depend on how records are cut, and changes with any record."""

from __future__ import annotations

import struct
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.stream.records import STREAM_SCHEMA
from intake.read.digest import RecordsDigest

_BYTES = st.one_of(st.none(), st.binary(max_size=5))
_ROW = st.fixed_dictionaries(
    {
        "key": _BYTES,
        "value": _BYTES,
        "headers": st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": _BYTES}), max_size=3),
        "event_timestamp": st.one_of(st.none(), st.integers(-(10**15), 10**15)),
        "ingest_timestamp": st.integers(0, 10**15),
        "batch_start": st.one_of(st.none(), st.integers(0, 100)),
    }
)
Row = dict[str, object]


def batch_of(rows: list[Row], base: int = 7) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"offset": base + number, **row} for number, row in enumerate(rows)], schema=STREAM_SCHEMA
    )


def digest_of(rows: list[Row], cuts: list[int], base: int = 7) -> bytes:
    digest = RecordsDigest()
    whole = batch_of(rows, base)
    places = [0, *sorted(cut for cut in cuts if cut <= len(rows)), len(rows)]
    for start, end in pairwise(places):
        digest.update(whole.slice(start, end - start))
    return digest.digest()


@settings(max_examples=150, deadline=None)
@given(st.lists(_ROW, min_size=1, max_size=12), st.lists(st.integers(0, 12), max_size=4))
def test_cuts_do_not_matter(rows: list[Row], cuts: list[int]) -> None:
    assert digest_of(rows, cuts) == digest_of(rows, [])


PLAIN: Row = {
    "key": b"k",
    "value": b"v",
    "headers": [{"key": "h", "value": b"x"}],
    "event_timestamp": 1,
    "ingest_timestamp": 2,
    "batch_start": 3,
}


def test_every_part_matters() -> None:
    others: list[Row] = [
        {**PLAIN, "key": None},
        {**PLAIN, "key": b""},
        {**PLAIN, "value": None},
        {**PLAIN, "value": b"w"},
        {**PLAIN, "key": b"", "value": b"kv"},
        {**PLAIN, "headers": []},
        {**PLAIN, "headers": [{"key": "h", "value": None}]},
        {**PLAIN, "headers": [{"key": "hx", "value": b""}]},
        {**PLAIN, "headers": [{"key": "h", "value": b"x"}] * 2},
        {**PLAIN, "event_timestamp": 2},
        {**PLAIN, "event_timestamp": 0},
        {**PLAIN, "event_timestamp": None},
        {**PLAIN, "ingest_timestamp": 1},
        {**PLAIN, "batch_start": 1},
        {**PLAIN, "batch_start": 0},
        {**PLAIN, "batch_start": None},
    ]
    digests = {digest_of([row], []) for row in [PLAIN, *others]} | {digest_of([PLAIN], [], base=8)}
    assert len(digests) == len(others) + 2


def test_header_borders_between_records_matter() -> None:
    one, none = {**PLAIN, "headers": [{"key": "h", "value": b"x"}]}, {**PLAIN, "headers": []}
    assert digest_of([one, none], []) != digest_of([none, one], [])


def test_bytes_behind_a_null_do_not_matter() -> None:
    clean = batch_of([{**PLAIN, "value": None}, PLAIN])
    values = pa.Array.from_buffers(
        pa.binary(),
        2,
        [
            pa.py_buffer(b"\x02"),
            pa.py_buffer(np.array([0, 7, 8], np.int32).tobytes()),
            pa.py_buffer(b"garbagev"),
        ],
    )
    dirty = clean.set_column(clean.schema.get_field_index("value"), STREAM_SCHEMA.field("value"), values)
    assert dirty.to_pylist() == clean.to_pylist()
    digests = []
    for batch in (clean, dirty):
        digest = RecordsDigest()
        digest.update(batch)
        digests.append(digest.digest())
    assert digests[0] == digests[1]


def test_the_format_is_frozen() -> None:
    # A change of this value changes the stored format: archives have the digest in their footers.
    assert digest_of([PLAIN, {**PLAIN, "key": None, "headers": []}], []).hex() == FROZEN


FROZEN = "56c27cef549959cea4572a1229c340f24e1b5f0cf97ba2f437a44532d567a0b7"


def naive(rows: list[Any], base: int) -> bytes:
    """The format as the docstring describes it, one row at a time."""

    def binaries(values: list[bytes | None]) -> list[bytes]:
        return [
            bytes(value is not None for value in values),
            b"".join(struct.pack("<q", len(value or b"")) for value in values),
            b"".join(value or b"" for value in values),
        ]

    def optional(values: list[int | None]) -> list[bytes]:
        return [
            bytes(value is not None for value in values),
            b"".join(struct.pack("<q", value or 0) for value in values),
        ]

    pairs = [pair for row in rows for pair in row["headers"]]
    names = [pair["key"].encode() for pair in pairs]
    parts = [
        b"".join(struct.pack("<q", base + number) for number in range(len(rows))),
        *binaries([row["key"] for row in rows]),
        *binaries([row["value"] for row in rows]),
        b"".join(struct.pack("<q", len(row["headers"])) for row in rows),
        *binaries(list(names))[1:],
        *binaries([pair["value"] for pair in pairs]),
        *optional([row["event_timestamp"] for row in rows]),
        b"".join(struct.pack("<q", row["ingest_timestamp"]) for row in rows),
        *optional([row["batch_start"] for row in rows]),
    ]
    return sha256(b"archiver.records.1" + b"".join(sha256(part).digest() for part in parts)).digest()


@settings(max_examples=100, deadline=None)
@given(st.lists(_ROW, max_size=8))
def test_a_naive_reading_of_the_format_agrees(rows: list[Row]) -> None:
    assert digest_of(rows, [], base=3) == naive(rows, 3)

"""The records digest does not depend on the division into batches, and changes with any record."""

from __future__ import annotations

import struct
from hashlib import sha256
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.stream.records import STREAM_SCHEMA
from intake.read.digest import DIGEST_VERSIONS, RecordsDigest

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


every_version = pytest.mark.parametrize("version", DIGEST_VERSIONS)


def digest_of(version: int, rows: list[Row], cuts: list[int], base: int = 7) -> bytes:
    digest = RecordsDigest(version)
    whole = batch_of(rows, base)
    places = [0, *sorted(cut for cut in cuts if cut <= len(rows)), len(rows)]
    for start, end in pairwise(places):
        digest.update(whole.slice(start, end - start))
        # Asking changes nothing, also where a run is still open.
        digest.digest()
    return digest.digest()


@every_version
@settings(max_examples=150, deadline=None)
@given(st.lists(_ROW, min_size=1, max_size=12), st.lists(st.integers(0, 12), max_size=4))
def test_the_division_does_not_matter(version: int, rows: list[Row], cuts: list[int]) -> None:
    assert digest_of(version, rows, cuts) == digest_of(version, rows, [])


def test_the_newest_version_is_the_default() -> None:
    newest, default = RecordsDigest(DIGEST_VERSIONS[-1]), RecordsDigest()
    assert newest.digest() == default.digest()
    assert len({RecordsDigest(version).digest() for version in DIGEST_VERSIONS}) == len(DIGEST_VERSIONS)


PLAIN: Row = {
    "key": b"k",
    "value": b"v",
    "headers": [{"key": "h", "value": b"x"}],
    "event_timestamp": 1,
    "ingest_timestamp": 2,
    "batch_start": 3,
}


@every_version
def test_every_part_matters(version: int) -> None:
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
    # Alone, and between records whose run it interrupts or continues.
    for before, after in (([], []), ([PLAIN, PLAIN], [PLAIN]), ([others[0]], [others[-1]])):
        digests = {digest_of(version, [*before, row, *after], []) for row in [PLAIN, *others]}
        digests.add(digest_of(version, [*before, PLAIN, *after], [], base=8))
        assert len(digests) == len(others) + 2


@every_version
def test_the_order_and_number_of_records_matter(version: int) -> None:
    one, none = {**PLAIN, "headers": [{"key": "h", "value": b"x"}]}, {**PLAIN, "headers": []}
    late, null = {**PLAIN, "ingest_timestamp": 3}, {**PLAIN, "batch_start": None, "event_timestamp": None}
    orders: list[list[Row]] = [
        [one, none],
        [none, one],
        [one, late],
        [late, one],
        [one, null],
        [null, one],
        [one, one],
        [one],
        [],
    ]
    assert len({digest_of(version, rows, []) for rows in orders}) == len(orders)


@every_version
def test_a_gap_matters(version: int) -> None:
    whole = batch_of([PLAIN] * 4)
    found = set()
    for kept in ([0, 1, 2], [0, 1, 3], [0, 2, 3], [1, 2, 3]):
        digest = RecordsDigest(version)
        digest.update(whole.take(pa.array(kept)))
        found.add(digest.digest())
    assert len(found) == 4


@every_version
def test_bytes_behind_a_null_do_not_matter(version: int) -> None:
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
        digest = RecordsDigest(version)
        digest.update(batch)
        digests.append(digest.digest())
    assert digests[0] == digests[1]


@every_version
def test_the_format_is_frozen(version: int) -> None:
    # A change of this value changes the stored format: archives have the digest in their footers.
    assert digest_of(version, [PLAIN, {**PLAIN, "key": None, "headers": []}], []).hex() == FROZEN[version]


FROZEN = {
    1: "56c27cef549959cea4572a1229c340f24e1b5f0cf97ba2f437a44532d567a0b7",
    2: "6ffb22e6642c06a7d43e7324417f60e1c6da2b660c5e38bc8bd976c9652661b2",
}


def naive_1(rows: list[Any], base: int) -> bytes:
    """Version 1 as the docstring describes it, one row at a time."""

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


def naive_2(rows: list[Any], base: int) -> bytes:
    """Version 2 as the docstring describes it, one row at a time."""

    def runs(numbers: list[int]) -> bytes:
        return b"".join(struct.pack("<qq", number, len(list(same))) for number, same in groupby(numbers))

    def binaries(values: list[bytes | None]) -> list[bytes]:
        lengths = [-1 if value is None else len(value) for value in values]
        return [
            b"".join(struct.pack("<i", length) for length in lengths),
            b"".join(value or b"" for value in values),
        ]

    pairs = [pair for row in rows for pair in row["headers"]]
    events, starts = ([row[name] for row in rows] for name in ("event_timestamp", "batch_start"))
    parts = [
        runs([base] * len(rows)),
        *binaries([row["key"] for row in rows]),
        *binaries([row["value"] for row in rows]),
        runs([len(row["headers"]) for row in rows]),
        *binaries([pair["key"].encode() for pair in pairs]),
        *binaries([pair["value"] for pair in pairs]),
        runs([int(value is not None) for value in events]),
        b"".join(struct.pack("<q", value or 0) for value in events),
        runs([row["ingest_timestamp"] for row in rows]),
        runs([int(value is not None) for value in starts]),
        runs([value or 0 for value in starts]),
    ]
    return blake3(b"archiver.records.2" + b"".join(blake3(part).digest() for part in parts)).digest()


NAIVE = {1: naive_1, 2: naive_2}


@every_version
@settings(max_examples=100, deadline=None)
@given(st.lists(_ROW, max_size=8))
def test_a_naive_reading_of_the_format_agrees(version: int, rows: list[Row]) -> None:
    assert digest_of(version, rows, [], base=3) == NAIVE[version](rows, 3)

"""Where the records of batches are, found in chains and one by one, and names of headers of every length."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from intake.batches import record_fields
from intake.batches.decoding import BatchRefused, Measured, decode, measure, read_header
from intake.records import normalise_batch
from tests.support.kafka.record_batches import RawRecord, batch_bytes, records_bytes

MAX = 1 << 24


def _found(parts: Sequence[Sequence[bytes]], counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """The places of the records of some batches: by chains, and one by one."""
    joined = [b"".join(one) for one in parts]
    data = b"".join([*joined, record_fields.PADDING])
    words = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))
    text = record_fields.Text(data, np.frombuffer(data, np.uint8), words, pa.py_buffer(data))
    limits = np.cumsum([len(one) for one in joined])
    firsts, number = np.concatenate(([0], limits[:-1])), np.array(counts)
    rows = np.cumsum(number) - number
    one_by_one = np.full(sum(counts), limits[-1])
    for first, count, row in zip(firsts.tolist(), counts, rows.tolist(), strict=True):
        found = record_fields._follow_records(data, first, count)
        one_by_one[row : row + len(found)] = found
    return record_fields.find_records(text, firsts, number, rows).tolist(), one_by_one.tolist()


@pytest.mark.parametrize("chain_records", record_fields._CHAIN_RECORDS)
@pytest.mark.parametrize("seed", range(12))
def test_records_are_found_by_chains_as_one_by_one(
    seed: int, chain_records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_fields, "_RECORDS_OF_STEP", 1)
    monkeypatch.setattr(record_fields, "_CHAIN_RECORDS", (chain_records, chain_records))
    alone: list[int] = []
    follow = record_fields._follow_records

    def counted(data: bytes, position: int, count: int) -> Any:
        alone.append(count)
        return follow(data, position, count)

    rng = random.Random(seed)
    # Values that look like records, long ones, ones of a size, and ones of any size.
    decoy = b"".join(records_bytes([RawRecord(b"decoy") for _ in range(200)]))
    kinds: Sequence[Callable[[], bytes]] = (
        lambda: decoy[rng.randrange(1000) :][: rng.randrange(2000)],
        lambda: rng.randbytes(rng.choice([10, 9000])),
        lambda: bytes(100),
        lambda: rng.randbytes(rng.randrange(300)),
        lambda: b"\xff" * rng.randrange(100),
    )
    parts, counts = [], []
    for _ in range(8):
        kind, count = rng.choice(kinds), rng.choice([1, 63, 64, 65, 129, 500])
        records = records_bytes(
            [RawRecord(None, kind(), (), rng.choice([0, place, 1 << 40])) for place in range(count)]
        )
        if rng.random() < 0.3:
            at = rng.randrange(count)
            broken = bytearray(records[at])
            broken[rng.randrange(min(6, len(broken)))] ^= 1 << rng.randrange(8)
            records[at] = bytes(broken)
        if rng.random() < 0.2:
            # The first half of its records has wrong offsets, as after a compaction.
            records[: count // 2] = records[count // 2 :][: count // 2]
        parts.append(records)
        counts.append(len(records))
    by_chains, one_by_one = _found(parts, counts)
    # Behind a wrong length the places have no meaning, and the caller refuses the batch.
    ends = np.cumsum([sum(map(len, one)) for one in parts]).tolist()
    row = 0
    for count, end in zip(counts, ends, strict=True):
        mine, theirs = by_chains[row : row + count], one_by_one[row : row + count]
        right = next((at for at in range(count) if theirs[at] >= end), count)
        assert mine[:right] == theirs[:right]
        row += count
    # Batches with right lengths need no loop.
    monkeypatch.setattr(record_fields, "_follow_records", counted)
    plain = [records_bytes([RawRecord(None, rng.randbytes(rng.randrange(300))) for _ in range(500)])] * 20
    _found(plain, [500] * 20)
    # The comparison followed each once.
    assert sum(alone) - 20 * 500 < 20 * 500 // 2


def test_many_records_are_followed_in_longer_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    follow = record_fields._follow_chains

    def noted(*given: Any) -> Any:
        used.append(given[5])
        return follow(*given)

    monkeypatch.setattr(record_fields, "_follow_chains", noted)
    for batches in (5, 20, 40):
        parts = [records_bytes([RawRecord(None, b"v") for _ in range(500)])] * batches
        by_chains, one_by_one = _found(parts, [500] * batches)
        assert by_chains == one_by_one
    assert used == [64, 128]


@pytest.mark.parametrize(
    "name", ["trace", "größe", "n" * 32, "n" * 40, "", "é", "n" * 30 + "é", "n" * 35 + "é"]
)
def test_header_names_are_utf8_at_every_length(name: str) -> None:
    batches = []
    for before in range(10):
        record = RawRecord(b"k" * before, b"\xff" * 3, ((name, b"\xff\x80"), ("plain", None)))
        # No UTF-8: the second byte does not follow the first one.
        parts = [one.replace("é".encode(), b"\xc3(") for one in records_bytes([record] * 200)]
        batches.append(batch_bytes(parts))
    headed = [(read_header(data), data) for data in batches]
    measured, decoded = (work(headed, uncompressed_max=MAX) for work in (measure, decode))
    for sizes, columns in zip(measured, decoded, strict=True):
        if "é" in name:
            assert isinstance(sizes, BatchRefused) and isinstance(columns, BatchRefused)
            assert str(sizes) == str(columns) and "UTF-8" in str(sizes)
        else:
            assert isinstance(sizes, Measured) and isinstance(columns, pa.RecordBatch)
            headers = columns.column("headers").to_pylist()
            assert headers[7] == [{"key": name, "value": b"\xff\x80"}, {"key": "plain", "value": None}]
            assert sizes.raw_bytes == int(normalise_batch(columns, MAX).raw_bytes.sum())

"""Archives with one bit flipped: a reader gets the records that were sent or an error. It never gets other
records or another exception.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.objects.local import LocalObjectStore
from archiver.refine.task import RefineOptions
from archiver.runtime.errors import ArchiverError, Corrupted
from archiver.runtime.ids import TopicId
from archiver.schema.evolution.state import TopicSchema
from archiver.stream import rebuild
from archiver.stream.records import StreamRecord
from archiver.stream.seal import UNSEALED, check_seal, seal
from archiver.stream.stream import RecordStream
from intake.read.digest import RecordsDigest
from intake.segments import Segments
from tests.support import amount
from tests.support.builders.refining import CLUSTER, DAY, NOW, refine
from tests.support.intake.intake_files import Intake, Row
from tests.support.schema.orders import order, order_schema, raw_schema

SHARE = float(os.environ.get("ARCHIVER_FLIP_SHARE", "0.04"))
"""The share of bits that is flipped, other bits each day; 1 takes a minute or two."""
KINDS: list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]] = [
    (order(1, lines=2), b"key", (("a", b"1"), ("a", None))),
    (None, None, ()),
    (b"\xff not an order", b"", (("é", b""),)),
    (order(2), b"key", ()),
]


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "data")


@pytest.fixture
def intake(store: LocalObjectStore) -> Intake:
    return Intake(store)


def rows(count: int) -> list[Row]:
    return [Row(NOW + n % 5, *KINDS[n % 4], event_us=-n, batch=n % 3) for n in range(count)]


def one_archive(intake: Intake, schema: TopicSchema | None = None, count: int = 12) -> tuple[TopicId, str]:
    topic = intake.topic("orders")
    intake.file({(topic, 0): rows(count)})
    (result,) = refine(
        intake,
        intake.plans(topic),
        schema=schema or order_schema(),
        options=RefineOptions(decode_rows=5, row_group_rows=5),
    )
    assert result.error is None, result.why
    return topic, result.files[0].archive.key


def stream(store: LocalObjectStore, intake: Intake, schema: TopicSchema | None = None) -> RecordStream:
    return RecordStream(
        store,
        intake.backlog,
        lambda _topic, _version: schema or order_schema(),
        cluster_id=CLUSTER,
        batch_rows=4,
    )


def turned(store: LocalObjectStore, key: str, places: range, share: float) -> Iterator[str]:
    """Flip one bit after the other and restore it; yields which one is flipped."""
    path = store.root / key
    chance, whole = random.Random(amount.DAY), path.read_bytes()
    for place in places:
        for bit in range(8):
            if chance.random() < share:
                path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
                yield f"bit {bit} of byte {place}"
    path.write_bytes(whole)


def footer_start(store: LocalObjectStore, key: str) -> int:
    data = (store.root / key).read_bytes()
    return len(data) - 8 - int.from_bytes(data[-8:-4], "little")


def test_a_bit_of_the_footer(store: LocalObjectStore, intake: Intake) -> None:
    topic, key = one_archive(intake)
    size = store.info(key).size  # type: ignore[union-attr]
    for what in turned(store, key, range(footer_start(store, key), size), SHARE):
        # The footer is checked as a whole before it is used: no flipped bit goes unseen, not even one that
        # changes no record.
        with pytest.raises(Corrupted, match="restore it"):
            pytest.fail(f"{what} gave {list(stream(store, intake).read(topic, 0))}")


@pytest.mark.parametrize("start", [0, 7])
@pytest.mark.parametrize("verified_whole", [True, False])
def test_a_bit_of_the_pages(
    store: LocalObjectStore, intake: Intake, monkeypatch: pytest.MonkeyPatch, start: int, verified_whole: bool
) -> None:
    topic, key = one_archive(intake)
    monkeypatch.setattr(rebuild, "VERIFY_BYTES_MAX", 1 << 24 if verified_whole else 0)
    sent = list(stream(store, intake).read(topic, 0, start))
    refused = 0
    for what in turned(store, key, range(4, footer_start(store, key)), SHARE / 10):
        try:
            found = list(stream(store, intake).read(topic, 0, start))
        except ArchiverError:
            refused += 1
        else:
            assert found == sent, what
    assert refused > 10


def altered(
    store: LocalObjectStore, key: str, change: pa.Table | None = None, footer: dict[str, str] | None = None
) -> None:
    """Write the archive again with other rows or footer keys, and a seal that matches them."""
    path = store.root / key
    table = change if change is not None else pq.read_table(path, partitioning=None)
    texts = {name.decode(): text.decode() for name, text in (pq.read_metadata(path).metadata or {}).items()}
    path.unlink()
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table, row_group_size=5)
        writer.add_key_value_metadata({**texts, **(footer or {}), "archiver.footer_sha256": UNSEALED})
    with path.open("r+b") as file:
        seal(file)


def other_value(store: LocalObjectStore, key: str, row: int) -> pa.Table:
    """The archive's rows, with another customer in one of them: a whole file, of the right offsets, with a
    wrong record."""
    table = pq.read_table(store.root / key, partitioning=None)
    cells: list[Any] = table["value"].to_pylist()
    cells[row]["id"] += 1
    return table.set_column(
        table.schema.get_field_index("value"),
        table.schema.field("value"),
        pa.array(cells, table["value"].type),
    )


@pytest.mark.parametrize(("start", "limit"), [(0, None), (0, 1), (5, None), (11, 1)])
def test_another_record_is_noticed_before_anything_is_given(
    store: LocalObjectStore, intake: Intake, start: int, limit: int | None
) -> None:
    topic, key = one_archive(intake)
    altered(store, key, other_value(store, key, 3))
    with pytest.raises(Corrupted, match=f"{key}: the digest of its records"):
        next(stream(store, intake).read(topic, 0, start, limit))


def test_another_record_in_a_large_archive_is_noticed_before_its_end(
    store: LocalObjectStore, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, key = one_archive(intake)
    altered(store, key, other_value(store, key, 3))
    monkeypatch.setattr(rebuild, "VERIFY_BYTES_MAX", 0)
    given: list[StreamRecord] = []
    reader = stream(store, intake)
    with pytest.raises(Corrupted, match=f"{key}: the digest of its records"):
        given.extend(reader.read(topic, 0))
    assert 0 < len(given) < 12
    assert len(list(reader.read(topic, 0, 1))) == 11  # it is read in part, so its digest is unknown


def test_an_archive_is_verified_once(
    store: LocalObjectStore, intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, _ = one_archive(intake)
    compared: list[bytes] = []
    real = RecordsDigest.digest

    def counted(self: RecordsDigest) -> bytes:
        compared.append(real(self))
        return compared[-1]

    monkeypatch.setattr(RecordsDigest, "digest", counted)
    reader = stream(store, intake)
    everything = list(reader.read(topic, 0))
    assert len(compared) == 1
    assert list(reader.read(topic, 0)) == everything
    assert list(reader.read(topic, 0, 5, 2)) == everything[5:7]
    assert len(compared) == 1
    list(stream(store, intake).read(topic, 0))
    assert len(compared) == 2


@pytest.mark.parametrize("limit", [0, 1 << 24])
def test_columns_have_to_be_those_of_the_topics_schema(
    store: LocalObjectStore, intake: Intake, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(rebuild, "VERIFY_BYTES_MAX", limit)
    topic, key = one_archive(intake, raw_schema())
    whole = (store.root / key).read_bytes()
    table = pq.read_table(store.root / key, partitioning=None)
    key_field, others = table.schema.field(0), list(table.schema)[1:]
    changed = [
        key_field.with_name("kex"),
        key_field.with_metadata({"PARQUET:field_id": "99"}),
        pa.field(
            "key",
            pa.struct([key_field.type.field(0).with_metadata({"PARQUET:field_id": "98"})]),
            metadata=key_field.metadata,
        ),
        pa.field(
            "key", pa.struct([key_field.type.field(0).with_nullable(False)]), metadata=key_field.metadata
        ),
        pa.field(
            "key", pa.struct([key_field.type.field(0).with_type(pa.string())]), metadata=key_field.metadata
        ),
    ]
    for field in changed:
        columns = [pa.array([{"__raw__": b""}] * table.num_rows, field.type), *table.columns[1:]]
        altered(store, key, pa.Table.from_arrays(columns, schema=pa.schema([field, *others])))
        with pytest.raises(Corrupted, match=f"{key}: its columns"):
            next(stream(store, intake, raw_schema()).read(topic, 0))
        (store.root / key).write_bytes(whole)
    altered(store, key, table.select(["value", "key", "headers", "kafka"]))
    with pytest.raises(Corrupted, match=f"{key}: its columns .their order"):
        next(stream(store, intake, raw_schema()).read(topic, 0))


@pytest.mark.parametrize("text", ["", "zz", "00" * 32, "00" * 2**20])
def test_a_digest_that_is_none_or_another(store: LocalObjectStore, intake: Intake, text: str) -> None:
    topic, key = one_archive(intake)
    altered(store, key, footer={"archiver.records_digest": text})
    with pytest.raises(Corrupted, match="digest") as refused:
        next(stream(store, intake).read(topic, 0))
    assert len(str(refused.value)) < 1000


def test_an_archive_without_a_seal(store: LocalObjectStore, intake: Intake) -> None:
    topic, key = one_archive(intake)
    path = store.root / key
    pq.write_table(pq.read_table(path, partitioning=None).replace_schema_metadata(None), path)
    with pytest.raises(Corrupted, match="no checksum"):
        next(stream(store, intake).read(topic, 0))
    for data in (b"", b"PAR1", b"PAR1" * 3, b"\xff" * 40 + b"PAR1"):
        path.write_bytes(data)
        with pytest.raises(Corrupted):
            check_seal(pa.BufferReader(data), key)


def test_an_object_with_an_altered_footer_is_not_adopted(store: LocalObjectStore, intake: Intake) -> None:
    topic, key = one_archive(intake)
    size = store.info(key).size  # type: ignore[union-attr]
    plans, options = intake.plans(topic), RefineOptions(zstd_level=9)
    assert refine(intake, plans, schema=order_schema(), options=options)[0].error is None
    for what in turned(store, key, range(footer_start(store, key), size), SHARE / 50):
        (result,) = refine(intake, plans, schema=order_schema(), options=options)
        assert (result.error, result.files) == ("conflict", ()), what


def test_the_digest_of_an_archive_depends_on_the_log_alone(store: LocalObjectStore, intake: Intake) -> None:
    # Three days, accept times that step back, ticks; three intake files, so that plans are cut between them
    # and inside of them.
    topic = intake.topic("orders")
    times = [0, 5, 3, DAY - 1, 7, DAY + 2, 1, DAY + 1, 2 * DAY, 4, 2 * DAY + 9, 8]
    for first in range(0, 12, 4):
        part = [Row(NOW + times[n], *KINDS[n % 4], event_us=-n, batch=n % 3) for n in range(first, first + 4)]
        intake.file({(topic, 0): part}, row_group_bytes=1 if first else 1 << 20)
        intake.tick(NOW + first)
    (whole,) = intake.plans(topic)
    digests: dict[tuple[int, int], set[bytes]] = {}
    days = [
        (one.archive.base, one.archive.end) for one in refine(intake, [whole], schema=order_schema())[0].files
    ]
    assert len(days) == 3
    cuts = [[(0, 12)], days, [days[0], (days[0][1], 12)]]
    for epoch, (ranges, options, schema) in enumerate(
        [
            (cuts[0], RefineOptions(), order_schema()),
            (cuts[0], RefineOptions(decode_rows=2, row_group_rows=3), order_schema()),
            (cuts[0], RefineOptions(decode_bytes=1, buffer_bytes=1), raw_schema()),
            (cuts[1], RefineOptions(), order_schema()),
            (cuts[2], RefineOptions(decode_rows=1), raw_schema()),
        ],
        start=2,
    ):
        plans = [
            replace(
                whole,
                base=base,
                end=end,
                rows=end - base,
                epoch=epoch,
                segments=_inside(whole.segments, base, end),
            )
            for base, end in ranges
        ]
        for plan in plans:
            for result in refine(intake, [plan], schema=schema, options=options):
                assert result.error is None, result.why
                for one in result.files:
                    digests.setdefault((one.archive.base, one.archive.end), set()).add(
                        one.archive.records_digest
                    )
    assert sorted(digests) == sorted(days)
    assert [len(found) for found in digests.values()] == [1] * len(days)
    assert len(set.union(*digests.values())) == len(days)


def _inside(segments: Segments, base: int, end: int) -> Segments:
    return segments.where((segments.ends > base) & (segments.bases < end))

"""Records read back from archives and intake on a real local store: the same as were sent, in order, without
a seam.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.ledger.archive_visibility import ArchiveVisibility
from archiver.objects.local import LocalObjectStore
from archiver.objects.location import StorePlace
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.plan import Plan
from archiver.refine.task import RefineOptions, RefineTopic, TaskDescriptor
from archiver.runtime.errors import Corrupted, InvalidInput, NotFound
from archiver.runtime.ids import TopicId
from archiver.schema.evolution.state import TopicSchema
from archiver.stream.records import STREAM_SCHEMA, StreamRecord
from archiver.stream.seal import UNSEALED, seal
from archiver.stream.stream import RecordStream
from intake.read.digest import RecordsDigest
from tests.support.builders.refining import identify
from tests.support.intake.intake_files import Intake, Row
from tests.support.schema.orders import order, order_schema, raw_schema

NOW = 20_000 * 86_400_000_000
CLUSTER = "c" * 32


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    identify(tmp_path / "data", CLUSTER)
    return LocalObjectStore(tmp_path / "data")


@pytest.fixture
def intake(store: LocalObjectStore) -> Intake:
    return Intake(store)


def archive(
    store: LocalObjectStore, plans: list[Plan], schema: TopicSchema, row_group_rows: int = 1_000_000
) -> list[str]:
    topics = {plan.topic_id: RefineTopic(plan.topic_id, plan.topic, schema, "day") for plan in plans}
    options = RefineOptions(row_group_rows=row_group_rows, decode_rows=row_group_rows)
    keys: list[str] = []
    for result in run_bundle(
        TaskDescriptor(CLUSTER, StorePlace(f"file://{store.root}"), 1, topics, tuple(plans), options)
    ):
        assert result.error is None, result.why
        keys += [file.archive.key for file in result.files]
    return sorted(keys)


def stream(
    store: LocalObjectStore,
    intake: Intake,
    schema: TopicSchema,
    killed: frozenset[str] = frozenset(),
    batch_rows: int = 7,
) -> RecordStream:
    return RecordStream(
        store,
        intake.backlog,
        lambda _topic, _version: schema,
        cluster_id=CLUSTER,
        given_up=lambda *_: ArchiveVisibility(spare=killed),
        batch_rows=batch_rows,
    )


def rows_of(seed: int, count: int) -> list[Row]:
    """Orders with nulls, empties, odd bytes and headers; accept times that step back."""
    chance = random.Random(seed)
    rows: list[Row] = []
    for number in range(count):
        value = chance.choice(
            [order(number, lines=number % 3), None, b"", b"\xff not an order", order(number) + order(number)]
        )
        key = chance.choice([None, b"", b"key-%d" % (number % 5)])
        headers: tuple[tuple[str, bytes | None], ...] = chance.choice(
            [(), (("a", b"1"), ("a", None)), (("é", b""),)]
        )
        rows.append(
            Row(
                NOW + chance.randrange(1000),
                value,
                key,
                headers,
                event_us=chance.randrange(-5, 5),
                batch=min(number, 2),
            )
        )
    return rows


def fill(intake: Intake, topic: TopicId, files: int, rows: int) -> list[Row]:
    sent: list[Row] = []
    for number in range(files):
        part = rows_of(number, rows)
        intake.file({(topic, 0): part})
        sent += part
        intake.tick(NOW + 100 * number)
    return sent


def content(record: StreamRecord) -> tuple[object, ...]:
    return (
        record.offset,
        record.timestamp_us,
        record.key,
        record.value,
        record.headers,
        record.ingest_us,
        record.batch_start,
    )


@pytest.mark.parametrize("schema", [order_schema, raw_schema], ids=["orders", "raw"])
@pytest.mark.parametrize("archived", [0, 1, 3, 4], ids=["intake only", "first file", "most", "all"])
def test_same_records_wherever_they_are(
    store: LocalObjectStore, intake: Intake, schema: Callable[[], TopicSchema], archived: int
) -> None:
    topic = intake.topic("orders")
    sent = fill(intake, topic, files=4, rows=25)
    before = [content(record) for record in stream(store, intake, schema()).read(topic, 0)]
    plans = intake.plans(topic, max_bytes=1)[:archived]
    assert len(plans) == archived
    archive(store, plans, schema(), row_group_rows=10)
    found = list(stream(store, intake, schema()).read(topic, 0))
    assert [content(record) for record in found] == before
    assert [record.source for record in found] == ["archive"] * (25 * archived) + ["intake"] * (
        100 - 25 * archived
    )
    assert [(record.key, record.value, record.headers, record.timestamp_us) for record in found] == [
        (row.key, row.value, row.headers, row.event_us) for row in sent
    ]
    assert [record.offset for record in found] == list(range(100))
    assert [record.ingest_us for record in found] == sorted(record.ingest_us for record in found)


def test_start_and_limit(store: LocalObjectStore, intake: Intake) -> None:
    topic = intake.topic("orders")
    fill(intake, topic, files=4, rows=25)
    archive(store, intake.plans(topic, max_bytes=1)[:2], order_schema(), row_group_rows=10)
    reader = stream(store, intake, order_schema())
    everything = [content(record) for record in reader.read(topic, 0)]
    for start in (0, 1, 9, 10, 24, 25, 49, 50, 60, 99, 100):
        for limit in (None, 0, 1, 26, 1000):
            expected = everything[start:] if limit is None else everything[start : start + limit]
            assert [content(record) for record in reader.read(topic, 0, start, limit)] == expected


def test_intake_fills_a_hole_between_archives(store: LocalObjectStore, intake: Intake) -> None:
    topic = intake.topic("orders")
    fill(intake, topic, files=3, rows=10)
    plans = intake.plans(topic, max_bytes=1)
    archive(store, [plans[0], plans[2]], order_schema())
    found = list(stream(store, intake, order_schema()).read(topic, 0))
    assert [record.offset for record in found] == list(range(30))
    assert [record.source for record in found] == ["archive"] * 10 + ["intake"] * 10 + ["archive"] * 10


def test_overlapping_archives_yield_nothing_twice(store: LocalObjectStore, intake: Intake) -> None:
    topic = intake.topic("orders")
    fill(intake, topic, files=3, rows=10)
    archive(store, intake.plans(topic, max_bytes=1), order_schema())
    archive(store, intake.plans(topic, epoch=2, start=5), order_schema())
    found = list(stream(store, intake, order_schema()).read(topic, 0))
    assert [record.offset for record in found] == list(range(30))


def test_killed_archives_are_not_read(store: LocalObjectStore, intake: Intake) -> None:
    topic = intake.topic("orders")
    fill(intake, topic, files=1, rows=10)
    keys = archive(store, intake.plans(topic), order_schema())
    found = list(stream(store, intake, order_schema(), killed=frozenset(keys)).read(topic, 0))
    assert {record.source for record in found} == {"intake"}


def test_batches_say_the_same_as_records(store: LocalObjectStore, intake: Intake) -> None:
    topic = intake.topic("orders")
    fill(intake, topic, files=2, rows=25)
    archive(store, intake.plans(topic, max_bytes=1)[:1], order_schema())
    reader = stream(store, intake, order_schema())
    batches = list(reader.read_batches(topic, 0))
    assert all(batch.records.schema == STREAM_SCHEMA and batch.records.num_rows <= 25 for batch in batches)
    assert [record for batch in batches for record in batch] == list(reader.read(topic, 0))


def test_bad_questions(store: LocalObjectStore, intake: Intake) -> None:
    topic = intake.topic("orders")
    fill(intake, topic, files=1, rows=10)
    reader = stream(store, intake, order_schema())
    with pytest.raises(InvalidInput, match="offset -1 is negative"):
        reader.read(topic, 0, -1)
    with pytest.raises(InvalidInput, match="its next record gets offset 10"):
        reader.read(topic, 0, 11)
    with pytest.raises(InvalidInput, match="limit of -2"):
        reader.read(topic, 0, 0, -2)
    with pytest.raises(NotFound, match="has no partition 1"):
        reader.read(topic, 1)
    with pytest.raises(NotFound, match="no topic with id"):
        reader.read(TopicId("f" * 32), 0)
    assert list(reader.read(topic, 0, 10)) == []


def rewrite(
    store: LocalObjectStore,
    key: str,
    change: Callable[[pa.Table], pa.Table],
    footer: dict[bytes, bytes] | None = None,
) -> None:
    """Replace an archive by an altered one, as a person with write access can."""
    path = store.root / key
    table = pq.read_table(path, partitioning=None)
    metadata = {**(pq.read_metadata(path).metadata or {}), **(footer or {})}
    altered = change(table)
    path.unlink()
    with pq.ParquetWriter(path, altered.schema, store_schema=False) as writer:
        writer.write_table(altered)
        texts = {
            name.decode(): text.decode() for name, text in metadata.items() if name.startswith(b"archiver.")
        }
        writer.add_key_value_metadata({**texts, "archiver.footer_sha256": UNSEALED})
    with path.open("r+b") as file:
        seal(file)


def one_archive(store: LocalObjectStore, intake: Intake) -> tuple[TopicId, str]:
    topic = intake.topic("orders")
    fill(intake, topic, files=1, rows=20)
    (key,) = archive(store, intake.plans(topic), order_schema())
    return topic, key


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cluster_id", b"d" * 32),
        ("topic_id", b"e" * 32),
        ("partition", b"1"),
        ("base", b"1"),
        ("end", b"21"),
        ("gaps", b"?"),
        ("schema", b"x"),
    ],
)
def test_footer_of_something_else(store: LocalObjectStore, intake: Intake, name: str, text: bytes) -> None:
    topic, key = one_archive(store, intake)
    rewrite(store, key, lambda table: table, {b"archiver." + name.encode(): text})
    with pytest.raises(Corrupted, match=name):
        list(stream(store, intake, order_schema()).read(topic, 0))


@pytest.mark.parametrize(
    ("kept", "why"),
    [
        (list(range(1, 20)), "offsets 0 to 0 are missing"),
        ([*range(5), *range(9, 20)], "offsets 5 to 8 are missing"),
        (list(range(18)), "offsets 18 to 19 are missing"),
        ([*range(5), 4, *range(5, 20)], "not in order"),
        ([1, 0, *range(2, 20)], "not in order"),
    ],
    ids=["first", "middle", "last", "twice", "swapped"],
)
def test_archive_that_lacks_records(
    store: LocalObjectStore, intake: Intake, kept: list[int], why: str
) -> None:
    topic, key = one_archive(store, intake)
    rewrite(store, key, lambda table: table.take(kept))
    with pytest.raises(Corrupted, match=why):
        list(stream(store, intake, order_schema(), batch_rows=100).read(topic, 0))
    with pytest.raises(Corrupted):
        list(stream(store, intake, order_schema(), batch_rows=2).read(topic, 0))


def test_gaps_of_the_footer_are_passed_over(store: LocalObjectStore, intake: Intake) -> None:
    topic, key = one_archive(store, intake)
    kept, digest = [*range(1, 5), *range(9, 20)], RecordsDigest()
    for batch in stream(store, intake, order_schema(), batch_rows=100).read_batches(topic, 0):
        digest.update(batch.records.take(pa.array(kept)))
    footer = {
        b"archiver.gaps": b"[[0, 1], [5, 9]]",
        b"archiver.records_digest": digest.digest().hex().encode(),
    }
    rewrite(store, key, lambda table: table.take(kept), footer)
    found = [record.offset for record in stream(store, intake, order_schema()).read(topic, 0)]
    assert found == [*range(1, 5), *range(9, 20)]
    assert [record.offset for record in stream(store, intake, order_schema()).read(topic, 0, 6)] == list(
        range(9, 20)
    )


def test_archive_without_a_column(store: LocalObjectStore, intake: Intake) -> None:
    topic, key = one_archive(store, intake)
    rewrite(store, key, lambda table: table.drop_columns(["kafka"]))
    with pytest.raises(Corrupted, match=r"its columns \(kafka\)"):
        list(stream(store, intake, order_schema()).read(topic, 0))


def test_schema_that_the_ledger_does_not_know(store: LocalObjectStore, intake: Intake) -> None:
    topic, _ = one_archive(store, intake)

    def lost(_topic: TopicId, version: int) -> TopicSchema:
        raise NotFound(f"no schema version {version}")

    with pytest.raises(NotFound, match="no schema version 1"):
        list(RecordStream(store, intake.backlog, lost, cluster_id=CLUSTER).read(topic, 0))


def test_truncated_archive(store: LocalObjectStore, intake: Intake) -> None:
    topic, key = one_archive(store, intake)
    data = (store.root / key).read_bytes()
    (store.root / key).write_bytes(data[: len(data) // 2])
    with pytest.raises(Corrupted, match="cut off"):
        list(stream(store, intake, order_schema()).read(topic, 0))


def test_altered_page(store: LocalObjectStore, intake: Intake) -> None:
    topic, key = one_archive(store, intake)
    data = bytearray((store.root / key).read_bytes())
    column = pq.read_metadata(store.root / key).row_group(0).column(0)
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    (store.root / key).write_bytes(bytes(data))
    with pytest.raises(Corrupted):
        list(stream(store, intake, order_schema()).read(topic, 0))


def test_intake_file_that_is_gone(store: LocalObjectStore, intake: Intake) -> None:
    topic = intake.topic("orders")
    fill(intake, topic, files=3, rows=10)
    store.delete(intake.keys[1])
    reader = stream(store, intake, order_schema()).read(topic, 0)
    assert [next(reader).offset for _ in range(10)] == list(range(10))
    with pytest.raises(Corrupted, match="gone"):
        next(reader)

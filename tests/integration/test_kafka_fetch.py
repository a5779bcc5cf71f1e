"""What Kafka consumers fetch from a real deployment: every record, byte for byte, wherever it is stored."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from archiver.kafka import fetch, record_batch
from archiver.kafka.fetch import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    FetchLimits,
    FetchReader,
    OffsetOutOfRange,
)
from archiver.kafka.log_view import PLENTY, Bounds, LogView
from archiver.ledger.fold import LedgerFold
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Corrupted, InvalidInput, NotFound, RetryLater
from archiver.stream import event_times, rebuild
from archiver.stream.event_times import EventTimes
from intake.read import reader as intake_reader
from intake.records import HEADERS
from tests.support.builders.compacting import DAY_S, at_noon, compact, compacted, send_small
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import WAIT_S, Driver
from tests.support.builders.retention import keep
from tests.support.intake.transactions import Transactional
from tests.support.kafka.fetching import Client, batches_of, expected, fetch_reader, log_view, records_of
from tests.support.schema.orders import order

CLICKS = ("clicks", 0)
MILLISECOND = 1_000
"""In microseconds."""


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


@pytest.fixture
def driver(deployment: Deployment) -> Iterator[Driver]:
    with Driver(deployment) as made:
        made.application.intake.writer().close()  # declares the topics
        yield made


@pytest.fixture
def reader(driver: Driver) -> Iterator[FetchReader]:
    made = fetch_reader(driver)
    yield made
    made.close()


def send_batches(
    driver: Driver, topic: str, sizes: list[int], partition: int = 0, times_us: list[int] | None = None
) -> None:
    """One batch of a producer for each size, with nulls, empty values, headers and odd bytes."""
    chance = random.Random(sum(sizes))
    number = 0
    with driver.application.intake.writer() as writer:
        pending = []
        for size in sizes:
            values = [
                chance.choice([order(one), None, b"", b"\xff no order"]) if topic == "orders" else b"%d" % one
                for one in range(number, number + size)
            ]
            columns: dict[str, Any] = {
                "key": pa.array(
                    [chance.choice([None, b"", b"k%d" % one]) for one in range(size)], pa.binary()
                ),
                "value": pa.array(values, pa.binary()),
                "headers": pa.array(
                    [chance.choice([[], [("a", b"1"), ("a", None)], [("é", b"")]]) for _ in range(size)],
                    HEADERS,
                ),
            }
            if times_us is not None:
                times = times_us[number : number + size]
                columns["event_timestamp"] = pa.array(times, pa.timestamp("us", tz="UTC"))
            pending.append(writer.send_batch(topic, pa.table(columns), partition))
            number += size
        writer.flush()
    assert all((one.result(WAIT_S).offsets >= 0).all() for one in pending)


def client(driver: Driver, reader: FetchReader, topic: str = "clicks", **options: Any) -> Client:
    return Client(reader, driver.topic_id(topic), **options)


@pytest.mark.parametrize("topic", ["orders", "clicks"])
def test_the_same_records_from_every_offset(driver: Driver, topic: str) -> None:
    send_batches(driver, topic, [1, 1, 7, 1, 20, 3])
    driver.archive()
    send_batches(driver, topic, [5, 1, 1, 1, 9])
    everything = expected(driver, topic)
    assert [one[0] for one in everything] == list(range(50))
    reader = fetch_reader(driver, FetchLimits(chunk_bytes=200))
    for start in range(51):
        for max_bytes in (1, 300, 2**20):
            one = client(driver, reader, topic, position=start, max_bytes=max_bytes)
            assert one.to_end() == everything[start:]
            cold = fetch_reader(driver, FetchLimits(cache_bytes=0, intake_bytes=0, chunk_bytes=200))
            other = client(driver, cold, topic, position=start, max_bytes=max_bytes)
            other.fetch()
            assert other.seen == everything[start : start + len(other.seen)]
            assert other.seen or start == 50
            cold.close()
    reader.close()


def test_a_fetch_inside_a_batch_gives_the_whole_batch(driver: Driver, reader: FetchReader) -> None:
    send_batches(driver, "clicks", [10, 10])
    for archived in (False, True):
        if archived:
            driver.archive()
        for offset in range(10, 20):
            with_nothing_kept = fetch_reader(driver, FetchLimits(cache_bytes=0))
            for one in (reader, with_nothing_kept):
                (batch,) = batches_of(one.read(driver.topic_id("clicks"), 0, offset, 1, committed=True))
                assert (batch.base_offset, batch.next_offset - 1) == (10, 19)
                assert [record[0] for record in records_of(batch)] == list(range(10, 20))
            with_nothing_kept.close()


def test_batches_of_one_answer_do_not_overlap(driver: Driver) -> None:
    """Producers' batches of one record share a batch, and reads from other places cut chunks at other records. A
    client skips only records before the offset that it asked for."""
    send_batches(driver, "clicks", [1] * 60)
    limits = FetchLimits(chunk_bytes=400)
    for start in range(1, 30):
        reader = fetch_reader(driver, limits)
        for offset in (start, 0):
            fetched = reader.read(driver.topic_id("clicks"), 0, offset, 2**20, committed=True)
            batches = batches_of(fetched)
            assert batches[0].base_offset <= offset
            follows = [batch.next_offset for batch in batches[:-1]]
            assert [batch.base_offset for batch in batches[1:]] == follows, (start, offset)
            one = client(driver, reader, position=offset)
            assert one.to_end() == expected(driver, "clicks")[offset:]
        reader.close()


def test_a_batch_over_the_limit_is_given_alone(driver: Driver, reader: FetchReader) -> None:
    send_batches(driver, "clicks", [200, 200])
    fetched = reader.read(driver.topic_id("clicks"), 0, 0, 1, committed=True)
    assert (len(fetched.batches), fetched.next_offset) == (1, 200)
    assert fetched.size > 1
    whole = reader.read(driver.topic_id("clicks"), 0, 0, 2**20, committed=True)
    assert (len(whole.batches), whole.next_offset) == (2, 400)
    one_less = reader.read(driver.topic_id("clicks"), 0, 0, whole.size - 1, committed=True)
    assert len(one_less.batches) == 1


def test_out_of_range_says_the_true_range(driver: Driver, reader: FetchReader) -> None:
    send_batches(driver, "clicks", [5])
    topic_id = driver.topic_id("clicks")
    assert reader.read(topic_id, 0, 5, 100, committed=True).batches == ()
    for offset in (-1, 6, 2**62):
        with pytest.raises(OffsetOutOfRange, match="the offsets are 0 to 5") as raised:
            reader.read(topic_id, 0, offset, 100, committed=True)
        assert (raised.value.log_start, raised.value.end) == (0, 5)
    with pytest.raises(NotFound, match="no partition 2"):
        reader.read(topic_id, 2, 0, 100, committed=True)


def test_a_reader_deep_inside_a_batch_that_is_given_in_parts(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_HELD_BYTES_MAX", 10_000)
    send_batches(driver, "clicks", [rebuild.BATCH_ROWS + 4_000])
    driver.archive()
    reader = fetch_reader(driver, FetchLimits(chunk_bytes=10_000))
    start = rebuild.BATCH_ROWS + 1_000
    one = client(driver, reader, position=start, max_bytes=1)
    one.to_end()
    assert [record[0] for record in one.seen] == list(range(start, start + 3_000))
    reader.close()


def test_a_chunk_without_the_offset_ends_with_the_time_of_the_fetch(
    driver: Driver, reader: FetchReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_batches(driver, "clicks", [5])
    before = fetch._Chunk(0, 3, (), "archive")
    monkeypatch.setattr(reader, "_chunk", lambda _key, _at: (before, False))
    with pytest.raises(RetryLater, match="offset 3 was not reached"):
        reader.read(driver.topic_id("clicks"), 0, 3, 100, committed=True, read_s=0.0)


def test_an_offset_that_another_daemon_stored_is_in_range(driver: Driver, deployment: Deployment) -> None:
    clock, reads = ManualClock(), 0

    def read_on() -> None:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise RetryLater("the store does not answer")
        driver.application.backlog()

    application = driver.application
    # No interval lets a read pass: an earlier read may lack what the other daemon stored since.
    log = LogView(lambda: application.sequencer.view, read_on, application.ledger, clock)
    reader = fetch_reader(driver, log=log)
    topic_id = driver.topic_id("clicks")
    with Driver(deployment) as other:
        send_batches(other, "clicks", [5])
    with pytest.raises(RetryLater, match="the store does not answer"):
        reader.read(topic_id, 0, 5, 100, committed=True)
    assert reader.read(topic_id, 0, 5, 100, committed=True).bounds.high_watermark == 5
    clock.advance(1.0)
    # Partitions of one request share a read of the log.
    asked_s = clock.monotonic_s()
    clock.advance(0.001)
    for _ in range(3):
        with pytest.raises(OffsetOutOfRange):
            reader.read(topic_id, 0, 6, 100, committed=True, asked_s=asked_s)
    assert reads == 3
    reader.close()


def test_bounds_never_read_the_control_log(driver: Driver) -> None:
    reads: list[str] = []

    def ledger() -> LedgerFold:
        reads.append("ledger")
        return driver.application.ledger()

    log = LogView(lambda: driver.application.sequencer.view, lambda: None, ledger, ManualClock())
    with pytest.raises(RetryLater, match="was not read yet"):
        log.bounds(driver.topic_id("clicks"), 0)
    assert reads == []
    log.ledger()
    assert log.bounds(driver.topic_id("clicks"), 0) == Bounds(0, 0, 0)
    assert reads == ["ledger"]


# --- what is decoded


class Decoded:
    """Counts the rows that are rebuilt from archives, and the row groups of intake that are decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        self.groups: list[tuple[str, int]] = []
        rebuilt, group = rebuild.archive_records, intake_reader._row_group

        def counted_rows(key: str, codec: Any, batch: pa.RecordBatch) -> pa.RecordBatch:
            self.rows += batch.num_rows
            return rebuilt(key, codec, batch)

        def counted_group(file: Any, source: Any, parquet: Any, number: int, columns: Any) -> pa.RecordBatch:
            self.groups.append((file.key, number))
            return group(file, source, parquet, number, columns)

        monkeypatch.setattr(rebuild, "archive_records", counted_rows)
        monkeypatch.setattr(intake_reader, "_row_group", counted_group)


def test_a_sequential_reader_decodes_nothing_twice(
    driver: Driver, reader: FetchReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        send_batches(driver, "clicks", [50] * 10)
        driver.archive()
    send_batches(driver, "clicks", [50] * 10)
    decoded = Decoded(monkeypatch)
    first = client(driver, reader, max_bytes=2_000)
    everything = first.to_end()
    assert len(everything) == 2000
    assert first.fetches > 20
    assert decoded.rows == 1500
    assert len(decoded.groups) == len(set(decoded.groups))
    groups = list(decoded.groups)
    # Others share what is kept.
    for start in (0, 777, 1600):
        assert client(driver, reader, position=start, max_bytes=2_000).to_end() == everything[start:]
    assert (decoded.rows, decoded.groups) == (1500, groups)
    assert everything == expected(driver, "clicks")


def test_without_a_cache_a_chunk_that_is_given_in_parts_is_decoded_once(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_batches(driver, "clicks", [50] * 20)
    driver.archive()
    reader = fetch_reader(driver, FetchLimits(cache_bytes=0, chunk_bytes=20_000))
    decoded = Decoded(monkeypatch)
    one = client(driver, reader, max_bytes=2_000)
    while one.position < 500:
        one.fetch()
    assert one.fetches >= 5
    assert decoded.rows == 1000
    reader.close()


def test_both_isolation_levels_share_what_is_stable(
    driver: Driver, reader: FetchReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_batches(driver, "clicks", [50] * 4)
    driver.archive()
    open_producer(driver, "x").send({CLICKS: values(2)})
    decoded = Decoded(monkeypatch)
    everything = client(driver, reader).to_end()
    other = client(driver, reader, committed=False).to_end()
    assert other[:-2] == everything
    assert [record[0] for record in other[-2:]] == [200, 201]
    assert (decoded.rows, len(decoded.groups)) == (200, 1)


def test_a_used_stream_follows_the_newest_view_of_the_log(driver: Driver, reader: FetchReader) -> None:
    one = client(driver, reader)
    for number in range(3):
        driver.send("clicks", [b"%d" % number], 0)
        assert one.fetch() == 1
    (stream,) = reader._streams
    # Only the files of its last read, or every intake file would stay in memory.
    assert len(stream._intake._files) == 1


def test_partitions_share_the_row_groups_of_an_intake_file(
    driver: Driver, reader: FetchReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    with driver.application.intake.writer() as writer:
        for partition in (0, 1):
            writer.send_batch("clicks", pa.table({"value": [b"a", b"b"]}), partition)
        writer.flush()
    decoded = Decoded(monkeypatch)
    assert [len(client(driver, reader, partition=one).to_end()) for one in (0, 1)] == [2, 2]
    assert len(decoded.groups) == 1


def test_a_reader_far_behind_does_not_displace_what_tail_readers_share(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_TAIL_OFFSETS", 100)
    for _ in range(2):
        send_batches(driver, "clicks", [100] * 20)
        driver.archive()
    send_batches(driver, "clicks", [50])
    reader = fetch_reader(driver, FetchLimits(cache_bytes=20_000, intake_bytes=0, chunk_bytes=2_000))
    assert len(client(driver, reader, position=4000).to_end()) == 50
    behind = client(driver, reader, max_bytes=2_000)
    while behind.position < 3800:
        behind.fetch()
    decoded = Decoded(monkeypatch)
    assert len(client(driver, reader, position=4000).to_end()) == 50
    assert (decoded.rows, decoded.groups) == (0, [])
    reader.close()


def test_a_fetch_of_many_small_files_returns_what_it_has_in_time(
    driver: Driver, reader: FetchReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(40):
        driver.send("clicks", [b"%d" % number], 0)
    decoded = Decoded(monkeypatch)
    topic_id = driver.topic_id("clicks")
    fetched = reader.read(topic_id, 0, 0, 2**20, committed=True, read_s=0.0)
    assert 0 < fetched.next_offset <= len(decoded.groups) <= fetch._PULLS_MAX + 1
    one = client(driver, reader)
    one.fetch()
    assert (one.position, len(decoded.groups)) == (40, 40)


def test_nothing_is_kept_beyond_the_bounds(driver: Driver) -> None:
    send_batches(driver, "clicks", [50] * 40)
    limits = FetchLimits(cache_bytes=8_000, intake_bytes=10, cursors_max=3, chunk_bytes=1_000)
    reader = fetch_reader(driver, limits)
    everything = client(driver, reader).to_end()
    for start in (0, 300, 900, 1500, 60, 700):
        one = client(driver, reader, position=start, max_bytes=1)
        one.fetch()
        assert one.seen == everything[start : (start // 50 + 1) * 50]
    assert sum(reader._cache._bytes) <= 8_000
    assert len(reader._cursors) <= 3
    assert reader._reader._bytes <= 10
    reader.close()
    assert len(reader._cursors) == 0


# --- what changes in between


def test_archives_and_compaction_under_an_open_cursor(tmp_path: Path) -> None:
    with Driver(compacted(tmp_path / "d")) as driver:
        at_noon(driver)
        send_small(driver, 4, each=10)
        reader = fetch_reader(driver, FetchLimits(cache_bytes=0, chunk_bytes=1))
        before = expected(driver, "orders")
        one = client(driver, reader, "orders", max_bytes=1)
        for _ in range(5):
            one.fetch()
        driver.clock.ahead_s += DAY_S
        assert compact(driver).merged == 1
        found = sorted(driver.deployment.data.glob("archive/*/data/**/*.parquet"))
        assert len(found) == 5
        for path in found:
            # As at the end of the deletion delay: only the merged archive is left.
            if not path.name.startswith(f"{0:020d}-{40:020d}-"):
                path.unlink()
        assert one.to_end() == before
        reader.close()


def test_intake_that_was_archived_and_deleted_is_read_from_archives(driver: Driver) -> None:
    for number in range(3):
        driver.send("clicks", [b"%d" % number], 0)
    reader = fetch_reader(driver, FetchLimits(cache_bytes=0, intake_bytes=0, chunk_bytes=1))
    one = client(driver, reader, max_bytes=1)
    one.fetch()
    before = expected(driver, "clicks")
    driver.archive()
    for path in driver.deployment.data.glob("intake/**/*.parquet"):
        path.unlink()
    assert one.to_end() == before
    reader.close()


def test_lost_records_are_an_error_after_those_before_them(driver: Driver) -> None:
    for number in range(3):
        driver.send("clicks", [b"%d" % number], 0)
    lost = sorted(driver.deployment.data.glob("intake/**/*.parquet"))[1]
    lost.unlink()
    reader = fetch_reader(driver)
    one = client(driver, reader)
    assert one.fetch() == 1
    for _ in range(2):
        with pytest.raises(Corrupted, match="restore it"):
            one.fetch()
    assert [record[3] for record in client(driver, reader, position=2).to_end()] == [b"2"]
    assert (one.position, reader._jobs) == (1, {})
    reader.close()


def test_a_deleted_topic_is_not_served(driver: Driver, reader: FetchReader) -> None:
    send_batches(driver, "kept", [5])
    topic_id = driver.topic_id("kept")
    assert reader.read(topic_id, 0, 0, 100, committed=True).batches
    driver.application.sequencer.delete_topic(topic_id)
    with pytest.raises(NotFound, match="was deleted"):
        reader.read(topic_id, 0, 0, 100, committed=True)
    assert (sum(reader._cache._bytes), len(reader._cursors)) == (0, 0)


def test_retention_moves_the_start(deployment: Deployment) -> None:
    keep(deployment, "2h")
    with Driver(deployment) as driver:
        send_batches(driver, "clicks", [10])
        driver.archive()
        reader = fetch_reader(driver)
        topic_id = driver.topic_id("clicks")
        assert client(driver, reader).to_end()
        driver.clock.ahead_s = 2.2 * 3600
        send_batches(driver, "clicks", [10])
        driver.archive()
        driver.clock.ahead_s = 2.5 * 3600
        driver.application.maintenance.cleaning(driver.reported.append, dry_run=False).run(dry_run=False)
        assert driver.application.ledger().topic(topic_id).start(0) == 10
        with pytest.raises(OffsetOutOfRange, match="the offsets are 10 to 20"):
            reader.read(topic_id, 0, 0, 100, committed=True)
        assert reader.list_offset(topic_id, 0, EARLIEST, committed=True) == (10, -1)
        assert reader.list_offset(topic_id, 0, 0, committed=True)[0] == 10
        assert [record[0] for record in client(driver, reader, position=10).to_end()] == [*range(10, 20)]
        reader.close()


# --- transactions


def open_producer(driver: Driver, name: str) -> Transactional:
    return Transactional(driver.application, driver.clock, name)


def values(count: int) -> list[bytes | None]:
    return [b"v%d" % number for number in range(count)]


@pytest.mark.parametrize("archived", [False, True])
def test_isolation_levels(driver: Driver, archived: bool) -> None:
    committing, aborting, opened = (open_producer(driver, name) for name in ("a", "b", "c"))
    committing.send({CLICKS: values(3)})  # 0-2
    aborting.send({CLICKS: values(2)})  # 3-4
    driver.send("clicks", values(2), 0)  # 5-6
    committing.commit()
    aborting.abort()
    opened.send({CLICKS: values(1)})  # 7
    driver.send("clicks", values(2), 0)  # 8-9
    if archived:
        driver.archive()
    reader = fetch_reader(driver)
    one, other = client(driver, reader), client(driver, reader, committed=False)
    assert [record[0] for record in one.to_end()] == [0, 1, 2, 5, 6]
    assert [record[0] for record in other.to_end()] == [0, 1, 2, 5, 6, 7, 8, 9]
    assert (one.position, other.position) == (7, 10)
    topic_id = driver.topic_id("clicks")
    assert reader.list_offset(topic_id, 0, LATEST, committed=True) == (7, -1)
    assert reader.list_offset(topic_id, 0, LATEST, committed=False) == (10, -1)
    opened.abort()
    assert [record[0] for record in one.to_end()] == [0, 1, 2, 5, 6, 8, 9]
    assert one.seen == expected(driver, "clicks")
    assert [record[0] for record in client(driver, reader).to_end()] == [0, 1, 2, 5, 6, 8, 9]
    assert [record[0] for record in client(driver, reader, committed=False).to_end()][-2:] == [8, 9]
    # From each offset, also from those inside of what was aborted.
    for start in range(11):
        behind = client(driver, reader, position=start, max_bytes=1)
        assert behind.to_end() == [record for record in one.seen if record[0] >= start]
        assert behind.position == 10
    reader.close()


@pytest.mark.parametrize("archived", [False, True])
def test_a_position_gets_past_aborted_records_at_the_end(driver: Driver, archived: bool) -> None:
    driver.send("clicks", values(2), 0)
    aborting = open_producer(driver, "x")
    aborting.send({CLICKS: values(3)})
    reader = fetch_reader(driver)
    topic_id = driver.topic_id("clicks")
    one = client(driver, reader)
    one.to_end()
    assert (one.position, reader.read(topic_id, 0, 2, 100, committed=True).batches) == (2, ())
    aborting.abort()
    if archived:
        driver.archive()
    assert reader._log.available(topic_id, 0, 2, committed=True) == 1
    (batch,) = batches_of(reader.read(topic_id, 0, 2, 1, committed=True))
    assert (batch.base_offset, batch.next_offset, batch.is_control_batch) == (2, 5, True)
    assert one.fetch() == 0
    assert (one.position, one.fetch()) == (5, 0)
    assert reader._log.available(topic_id, 0, 5, committed=True) == 0
    # From inside of them, and of everything that has only such offsets.
    (batch,) = batches_of(reader.read(topic_id, 0, 4, 1, committed=False))
    assert (batch.base_offset, batch.next_offset) == (4, 5)
    driver.send("clicks", values(1), 0)
    assert (one.fetch(), one.position) == (1, 6)
    reader.close()


def test_a_filler_of_offsets_without_records_is_a_control_batch_of_one_marker() -> None:
    for base, last in ((0, 0), (7, 70), (5, 5 + 2**31 - 1), (0, 2**40)):
        filler = record_batch.filler(base, last)
        assert filler.last_offset == min(last, base + 2**31 - 1)
        (batch,) = batches_of(fetch.Fetched((filler.data,), Bounds(0, 0, 0), 0, "gap"))
        assert (batch.base_offset, batch.next_offset, batch.producer_id) == (base, filler.last_offset + 1, -1)
        assert (batch.is_control_batch, batch.is_transactional) == (True, True)
        ((offset, _, key, value, headers),) = records_of(batch)
        assert (offset, key, value, headers) == (filler.last_offset, b"\0\0\0\1", b"\0" * 6, ())


# --- waiting for more


def test_available_without_reading(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    log = log_view(driver)
    topic_id = driver.topic_id("clicks")
    assert log.available(topic_id, 0, 0, committed=True) == 0
    driver.send("clicks", [b"12345"] * 3, 0)
    decoded = Decoded(monkeypatch)
    assert log.available(topic_id, 0, 0, committed=True) == 15
    assert log.available(topic_id, 0, 3, committed=True) == 0
    opened = open_producer(driver, "x")
    opened.send({CLICKS: [b"1234567"]})
    assert log.available(topic_id, 0, 3, committed=True) == 0
    assert log.available(topic_id, 0, 3, committed=False) == 7
    for _ in range(257):
        opened.send({CLICKS: [b"1"]})
    assert log.available(topic_id, 0, 0, committed=False) == PLENTY
    assert log.available(topic_id, 0, 0, committed=True) == PLENTY
    assert decoded.groups == []
    with pytest.raises(NotFound):
        log.available(topic_id, 7, 0, committed=True)


def test_own_appends_are_announced_and_those_of_others_after_a_refresh(
    driver: Driver, deployment: Deployment
) -> None:
    log = log_view(driver)
    calls: list[int] = []
    driver.application.sequencer.on_advance(lambda: calls.append(log.generation))
    before = log.generation
    driver.send("clicks", [b"a"], 0)
    assert log.generation == before + 1
    assert calls == [before + 1]
    assert not log.refresh()
    with Driver(deployment) as other:
        other.send("clicks", [b"b"], 0)
    assert log.generation == before + 1
    assert log.refresh()
    assert calls[-1] == log.generation == before + 2


def test_the_log_is_not_read_more_often_than_the_interval(driver: Driver) -> None:
    reads: list[str] = []
    clock = ManualClock()
    sequencer = driver.application.sequencer

    def ledger() -> LedgerFold:
        reads.append("ledger")
        return LedgerFold()

    log = LogView(
        lambda: sequencer.view,
        lambda: reads.append("log"),
        ledger,
        clock,
        refresh_interval_s=0.1,
        ledger_interval_s=1.0,
    )
    for _ in range(10):
        log.refresh()
        log.ledger()
        clock.advance(0.04)
    assert reads.count("log") == 4
    assert reads.count("ledger") == 1
    log.refresh(since_s=clock.monotonic_s())
    log.refresh(since_s=clock.monotonic_s())
    clock.advance(1.0)
    log.ledger()
    assert (reads.count("log"), reads.count("ledger")) == (6, 2)


# --- offsets by time


def test_offsets_by_time_across_archives_and_intake(driver: Driver, reader: FetchReader) -> None:
    chance = random.Random(7)
    base_us = 1_700_000_000_000_000
    topic_id = driver.topic_id("clicks")
    times: list[int] = []
    for number in range(6):
        # Event times go back and forth, and have microseconds.
        part = [base_us + chance.randrange(20 * number, 20 * number + 60) * 997 for _ in range(10)]
        send_batches(driver, "clicks", [4, 6], times_us=part)
        times += part
        if number in (0, 1, 3):
            driver.archive()
    milliseconds = [one // 1000 for one in times]
    for asked in range(min(milliseconds) - 2, max(milliseconds) + 3):
        found = next(((place, one) for place, one in enumerate(milliseconds) if one >= asked), (-1, -1))
        assert reader.list_offset(topic_id, 0, asked, committed=True) == found
    newest = max(times)
    assert reader.list_offset(topic_id, 0, MAX_TIMESTAMP, committed=True) == (
        times.index(newest),
        newest // 1000,
    )
    assert reader.list_offset(topic_id, 1, MAX_TIMESTAMP, committed=True) == (-1, -1)
    assert reader.list_offset(topic_id, 1, 0, committed=True) == (-1, -1)
    assert reader.list_offset(topic_id, 0, EARLIEST, committed=True) == (0, -1)
    assert reader.list_offset(topic_id, 0, LATEST, committed=True) == (60, -1)
    with pytest.raises(InvalidInput, match="is no time"):
        reader.list_offset(topic_id, 0, -9, committed=True)


def test_a_search_by_time_reads_each_bound_once_and_decodes_one_part(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = driver.topic_id("clicks")
    for number in range(6):
        send_batches(driver, "clicks", [10], times_us=[1000 * MILLISECOND * (number + 1)] * 10)
        if number < 4:
            driver.archive()
    reader = fetch_reader(driver)
    footers: list[str] = []
    bounds = event_times._parts_of

    def counted(found: Any, metadata: Any) -> Any:
        footers.append(found.key)
        return bounds(found, metadata)

    monkeypatch.setattr(event_times, "_parts_of", counted)
    decoded = Decoded(monkeypatch)
    assert reader.list_offset(topic_id, 0, 3000, committed=True) == (20, 3000)
    assert (len(footers), decoded.rows) == (3, 10)
    assert reader.list_offset(topic_id, 0, 5500, committed=True) == (50, 6000)
    assert (len(footers), decoded.rows) == (4, 10)
    assert reader.list_offset(topic_id, 0, 9999, committed=True) == (-1, -1)
    # The column of event times of each segment, and the records of one.
    assert (len(footers), decoded.rows, len(decoded.groups)) == (4, 10, 3)
    reader.close()


def test_a_search_reads_a_bounded_number_of_files_and_a_repeated_one_goes_on(driver: Driver) -> None:
    for number in range(5):
        send_batches(driver, "clicks", [2], times_us=[1000 * MILLISECOND * (number + 1)] * 2)
        driver.archive()
    times = EventTimes(driver.application.objects, driver.application.cluster.cluster_id, reads_max=2)
    place = (driver.application.stream(), driver.topic_id("clicks"), 0, 0, 10)
    for _ in range(2):
        with pytest.raises(RetryLater, match="search again"):
            times.first_at(*place, 5000 * MILLISECOND)
    found = times.first_at(*place, 5000 * MILLISECOND)
    assert found is not None
    assert (found.offset, found.time_us) == (8, 5000 * MILLISECOND)


def test_records_of_open_and_aborted_transactions_have_no_time_for_committed_readers(driver: Driver) -> None:
    driver.send("clicks", values(2), 0)
    aborting, opened = open_producer(driver, "a"), open_producer(driver, "b")
    driver.clock.ahead_s = 100.0
    aborting.send({CLICKS: values(1)})
    aborting.abort()
    opened.send({CLICKS: values(1)})
    reader = fetch_reader(driver)
    topic_id, soon_ms = driver.topic_id("clicks"), driver.clock.now_us() // 1000 - 50_000
    assert reader.list_offset(topic_id, 0, soon_ms, committed=True) == (-1, -1)
    assert reader.list_offset(topic_id, 0, MAX_TIMESTAMP, committed=True)[0] < 2
    assert reader.list_offset(topic_id, 0, soon_ms, committed=False)[0] == 3
    assert reader.list_offset(topic_id, 0, MAX_TIMESTAMP, committed=False)[0] == 3
    reader.close()


# --- several at once


def test_many_readers_while_records_are_written_and_archived(driver: Driver) -> None:
    rounds, each = 12, 75
    log = log_view(driver)
    reader = fetch_reader(driver, FetchLimits(cache_bytes=30_000, cursors_max=4, chunk_bytes=500), log)
    total = rounds * each
    errors: list[BaseException] = []
    clients = [
        client(driver, reader, position=start, max_bytes=limit, committed=committed)
        for start, limit, committed in [(0, 1, True), (0, 900, True), (0, 2**20, False), (0, 900, False)]
    ]

    def follow(one: Client) -> None:
        try:
            while one.position < total:
                one.fetch()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    threads = [threading.Thread(target=follow, args=(one,)) for one in clients]
    for thread in threads:
        thread.start()
    aborting = open_producer(driver, "x")
    for number in range(rounds):
        send_batches(driver, "clicks", [1, 3, 16, 15])
        aborting.send({CLICKS: values(5)})
        send_batches(driver, "clicks", [1, 3, 16, 15])
        aborting.abort()
        if number % 4 == 3:
            driver.archive()
    for thread in threads:
        thread.join(WAIT_S)
    assert not errors, errors
    assert not any(thread.is_alive() for thread in threads)
    everything = expected(driver, "clicks")
    assert len(everything) == total - 5 * rounds
    assert all(one.seen == everything for one in clients if one.committed)
    for one in clients:
        # The others may have seen records before these were aborted.
        assert {record[0] for record in one.seen} >= {record[0] for record in everything}
        assert len({record[0] for record in one.seen}) == len(one.seen)
    assert reader._jobs == {}
    reader.close()


def test_readers_at_one_place_decode_once(
    driver: Driver, reader: FetchReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_batches(driver, "clicks", [100] * 10)
    driver.archive()
    decoded = Decoded(monkeypatch)
    clients = [client(driver, reader, position=number * 5) for number in range(6)]
    threads = [threading.Thread(target=one.to_end) for one in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    everything = expected(driver, "clicks")
    assert [one.seen for one in clients] == [everything[one.seen[0][0] :] for one in clients]
    # Each by itself would decode all of it. On a busy machine some begin before the batches of others are kept.
    assert decoded.rows < len(clients) * 1000

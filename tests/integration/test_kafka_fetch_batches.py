"""Consumers get the record batches that producers sent: byte for byte but for their place, among records that
are decoded and encoded."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from archiver.kafka.fetch import FetchLimits
from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import SystemIds
from intake.batches.decoding import Measured, measure, read_header
from intake.producers import Stamp
from intake.read.reader import IntakeReader
from intake.sources.kafka.batch import Cursor, MirrorPiece
from intake.sources.kafka.fetched import remove_producer
from intake.sources.kafka.upstream import Polled, UpstreamBatch
from intake.write.accept_clock import AcceptClock
from intake.write.flush import FlushWriter
from intake.write.received import MeasuredBatch
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.kafka.fetching import Client, batches_of, expected, fetch_reader
from tests.support.kafka.record_batches import CODECS, RawRecord, batch_bytes, records_bytes, with_checksum

TYPE = ("message.timestamp.type", "LogAppendTime")


def append_time(_: object) -> tuple[tuple[str, str], ...]:
    return (TYPE,)


def client_time(_: object) -> tuple[tuple[str, str], ...]:
    return ()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    with Driver(Deployment(tmp_path / "d")) as made:
        made.application.intake.writer().close()  # declares the topics
        yield made


def wire_batch(number: int, count: int, codec: str = "none", flags: int = 0) -> bytes:
    records = [
        RawRecord(b"k%d" % number, b"%d %d" % (number, row), (("h", None),) * (row % 2), row)
        for row in range(count)
    ]
    return batch_bytes(records_bytes(records), codec=codec, flags=flags)


def send(
    driver: Driver, batches: Sequence[bytes], stamps: Sequence[Stamp | None] | None = None, partition: int = 0
) -> list[int]:
    """Store batches in one intake file; the offsets of their first records."""
    topic = driver.application.topic("clicks")
    with driver.application.intake.writer() as writer:
        pending = []
        for data, stamp in zip(batches, stamps or [None] * len(batches), strict=True):
            header = read_header(data)
            (sizes,) = measure([(header, data)], uncompressed_max=1 << 24)
            assert isinstance(sizes, Measured)
            batch = MeasuredBatch(topic, partition, data, header.count, sizes, stamp)
            pending.append(writer.send_encoded(batch, lambda: None))
        writer.flush()
    outcomes = [one.outcome() for one in pending]
    assert {verdict.outcome for _, verdict in outcomes} == {"ok"}
    return [offset for offset, _ in outcomes]


def without_place(data: bytes) -> bytes:
    """All but base offset and leader epoch."""
    return data[8:12] + data[16:]


def test_batches_are_given_as_they_were_sent(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = [wire_batch(number, 1 + number % 4, CODECS[number % len(CODECS)]) for number in range(12)]
    offsets = send(driver, sent)
    reader = fetch_reader(driver)
    with monkeypatch.context() as patched:
        patched.setattr(IntakeReader, "row_groups", None)  # nothing is decoded
        fetched = reader.read(driver.topic_id("clicks"), 0, 0, 2**30, committed=True)
    assert [without_place(one) for one in fetched.batches] == [without_place(one) for one in sent]
    assert [one.base_offset for one in batches_of(fetched)] == offsets
    assert [int.from_bytes(one[12:16], "big") for one in fetched.batches] == [0] * 12
    assert fetched.source == "intake"
    reader.close()


@pytest.mark.parametrize("seed", range(3))
def test_every_offset_gives_the_same_records(seed: int, driver: Driver) -> None:
    """Rows, batches, aborted transactions, an archived beginning, and a change of the timestamp type."""
    rng = random.Random(seed)
    app = driver.application
    number = 0
    for turn in range(7):
        batches = [
            wire_batch(number + place, rng.choice([1, 1, 3, 10]), rng.choice(CODECS)) for place in range(4)
        ]
        number += 4
        send(driver, batches)
        driver.send("clicks", [b"row %d" % row for row in range(rng.choice([0, 1, 4]))], 0)
        producer_id, epoch = app.sequencer.open_producer(f"t{turn}", 60_000_000)
        stamp = Stamp(producer_id, epoch, 0, transactional=True)
        send(driver, [wire_batch(number, 2, flags=0x10)], [stamp])
        assert app.sequencer.end_transaction(producer_id, epoch, commit=rng.random() < 0.4) is None
        if turn == 2:
            driver.archive()
        if turn in (3, 5):
            app.sequencer.configure_topic(
                driver.topic_id("clicks"), append_time if turn == 3 else client_time
            )
    everything = expected(driver, "clicks")
    end = everything[-1][0] + 1
    for chunk_bytes in (1, 300, 2**20):
        reader = fetch_reader(driver, FetchLimits(chunk_bytes=chunk_bytes, read_s=3600))
        for start in rng.sample(range(end), 12):
            for max_bytes in (1, 400, 2**30):
                client = Client(reader, driver.topic_id("clicks"), position=start, max_bytes=max_bytes)
                assert client.to_end() == [one for one in everything if one[0] >= start]
        reader.close()


def test_a_damaged_batch_is_never_given(driver: Driver) -> None:
    send(driver, [wire_batch(0, 3), wire_batch(1, 3)])
    (segment,) = driver.application.backlog().segments((driver.topic_id("clicks"), 0), 0, 1)
    path = driver.deployment.data / segment.file.key
    data = bytearray(path.read_bytes())
    data[4 + len(wire_batch(0, 3)) + 70] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    reader = fetch_reader(driver)
    with pytest.raises(Corrupted, match="its bytes changed on the way"):
        reader.read(driver.topic_id("clicks"), 0, 0, 2**30, committed=True)
    reader.close()


def test_what_is_archived_and_gone_from_intake_is_read_from_there(driver: Driver) -> None:
    send(driver, [wire_batch(number, 3) for number in range(4)])
    before = expected(driver, "clicks")
    reader = fetch_reader(driver)
    one: Any = Client(reader, driver.topic_id("clicks"), max_bytes=1)
    one.fetch()
    driver.archive()
    for path in (driver.deployment.data / "intake").rglob("*.parquet"):
        path.unlink()
    assert one.to_end() == before
    reader.close()


def upstream_batch(base: int, number: int, count: int) -> UpstreamBatch:
    """Of a transaction in the cluster that is mirrored."""
    data = wire_batch(number, count, "zstd", flags=0x10)
    data = data[:43] + struct.pack(">qhi", 77, 3, 9) + data[57:]
    data = struct.pack(">q", base) + with_checksum(data)[8:]
    header = read_header(data)
    (sizes,) = measure([(header, data)], uncompressed_max=1 << 24)
    assert isinstance(sizes, Measured)
    view = memoryview(bytearray(data))
    remove_producer(header, view)
    return UpstreamBatch(("mirrored", 0), header, view, sizes)


@pytest.mark.parametrize("committed", [True, False])
def test_mirrored_batches_have_their_gaps_and_no_producer(driver: Driver, committed: bool) -> None:
    application = driver.application
    sequencer = application.sequencer
    topic = sequencer.declare_topic("mirrored", 1, mirrored=True)
    cursor = Cursor(("mirrored", 0), topic, b"i" * 16, 0, 0, 0)
    given = [upstream_batch(5, 0, 3), upstream_batch(8, 1, 2), upstream_batch(20, 2, 4)]
    piece = MirrorPiece(sequencer.entry_bytes_max, 10**6)
    assert piece.add(Polled(batches=given), {cursor.place: cursor}, driver.clock.now_us()) == []
    clock = AcceptClock(driver.clock, 10.0, 10.0)
    writer = FlushWriter(application.objects, sequencer, 1 << 20, driver.clock, SystemIds(), clock)
    assert writer.publish_moving(piece.items, piece.moves(sequencer.fold.next_index)) is None
    client = Client(fetch_reader(driver), driver.topic_id("mirrored"), committed=committed)
    seen = client.to_end()
    assert [one[0] for one in seen] == [5, 6, 7, 8, 9, 20, 21, 22, 23]
    assert seen == expected(driver, "mirrored")
    fetched = client.reader.read(client.topic_id, 0, 6, 2**30, committed=committed)
    batches = batches_of(fetched)
    assert [one.base_offset for one in batches] == [5, 8, 20]
    assert {(one.producer_id, one.is_transactional) for one in batches} == {(-1, False)}
    starts = [one.batch_start for one in application.stream().read(client.topic_id, 0)]
    assert starts == [None] * 9, "it is not known where the batches of producers began"

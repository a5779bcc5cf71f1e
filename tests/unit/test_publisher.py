"""The publisher: it starts no thread, its entries fit the bound, and each file states the length of the log."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from archiver.objects.paths import intake_key, parse_intake_key
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.clock import ManualClock
from archiver.runtime.ids import TopicId
from intake.format import LOG_INDEX_KEY, PlacedSegment
from intake.log.entries import file_entry
from intake.producers import EPOCH_MAX, SEQUENCE_COUNT, Stamp
from intake.write.encode import ENTRY_BYTES, SEGMENT_BYTES, STAMP_BYTES, TOPIC_BYTES
from tests.support.intake.intake_rig import IntakeRig
from tests.support.intake.publishing import Publishing
from tests.support.objects.faulty_objects import ObjectFault


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def rig(tmp_path: Path, clock: ManualClock) -> Iterator[IntakeRig]:
    rig = IntakeRig(tmp_path, clock=clock)
    rig.topic("t", 2)
    yield rig
    rig.close()


@pytest.mark.parametrize("segments", [1, 2, 500])
@pytest.mark.parametrize("topics", [1, 7])
@pytest.mark.parametrize("stamped", [True, False])
def test_the_largest_entry_is_not_larger_than_it_is_reckoned(
    segments: int, topics: int, stamped: bool
) -> None:
    top = (1 << 32) - 1
    stamp = (
        Stamp((1 << 63) - 1, EPOCH_MAX, SEQUENCE_COUNT - 1, transactional=True, covered=SEQUENCE_COUNT - 1)
        if stamped
        else None
    )
    largest = [
        PlacedSegment(
            *(TopicId(f"{topic:032x}"), top, top, top, top, (1 << 64) - 1, (1 << 63) - 1, stamp),
            log_append_time=True,
        )
        for topic in range(topics)
        for _ in range(segments)
    ]
    file = file_entry(intake_key(9_999_999_999_999_000, "7" + "Z" * 25), (1 << 64) - 1, b"d" * 32, largest)
    size = len(pb.IntakeEntry(format=2, id=b"i" * 16, file=file).SerializeToString())
    assert size <= ENTRY_BYTES + topics * (
        TOPIC_BYTES + segments * (SEGMENT_BYTES + (STAMP_BYTES if stamped else 0))
    )


def test_it_works_in_the_thread_that_calls_it(rig: IntakeRig, clock: ManualClock) -> None:
    publishing = Publishing(rig, clock, 1)
    before = threading.active_count()
    one = publishing.session(*publishing.sequencer.open_producer("", 1))
    sent = [publishing.send("t", number % 2, b"%d" % number, one) for number in range(4)] + [
        publishing.send("t", 0, b"plain")
    ]
    publishing.publish()
    assert [pending.result(0).offset for pending in sent] == [0, 0, 1, 1, 2]
    assert threading.active_count() == before


def test_each_file_says_how_far_the_log_was_read_before_it_was_stored(
    rig: IntakeRig, clock: ManualClock
) -> None:
    publishing = Publishing(rig, clock, 1)
    indexes = []
    for number in range(3):
        indexes.append(publishing.sequencer.fold.next_index)
        publishing.send("t", 0, b"%d" % number)
        publishing.publish()
        clock.advance(1)
    found = [pq.read_metadata(rig.objects.open_input(key)).metadata or {} for key in rig.intake_keys()]
    assert [int(one[LOG_INDEX_KEY.encode()]) for one in found] == indexes == [1, 2, 3]


def test_a_clock_that_is_set_back_makes_no_older_files(rig: IntakeRig, clock: ManualClock) -> None:
    publishing = Publishing(rig, clock, 1)
    start_us = clock.now_us()
    for step_us in (0, -3_600_000_000, 1_000_000):
        clock.set_wall(start_us + step_us)
        publishing.send("t", 0, b"%d" % step_us)
        publishing.publish()
    publishing.sequencer.raise_barrier(start_us // 1000 + 60_000)
    publishing.send("t", 0, b"behind the barrier by its clock")
    publishing.publish()
    written = [
        parsed.written_ms - start_us // 1000
        for key in rig.intake_keys()
        if (parsed := parse_intake_key(key)) is not None
    ]
    assert written == [0, 0, 1_000, 60_000]
    accepted = [row["accept_timestamp"] for row in rig.stored("t", 0)]
    assert accepted == sorted(accepted)
    assert len(accepted) == 4


def test_ingest_times_do_not_go_back_when_a_writer_starts_with_its_clock_set_back(
    rig: IntakeRig, clock: ManualClock
) -> None:
    for step_us in (0, -3_600_000_000, 2_000_000, -60_000_000):
        clock.set_wall(clock.now_us() + step_us)
        writer = Publishing(rig, clock, abs(step_us))
        writer.send("t", 0, b"%d" % step_us)
        writer.publish()
    fold = rig.reread()
    segments = fold.segments((fold.topics_by_name["t"].topic_id, 0))
    ingested = [segment.ingest_max_us for segment in segments]
    assert len(ingested) == 4
    assert ingested == sorted(ingested)
    assert [segment.accept_max_us for segment in segments] != ingested, (
        "the accept times say what the clock said"
    )


def test_a_clock_that_runs_ahead_while_records_wait_fails_them(rig: IntakeRig, clock: ManualClock) -> None:
    publishing = Publishing(rig, clock, 1)
    waiting = publishing.send("t", 0, b"v")
    clock.set_wall(clock.now_us() + 3_600_000_000)
    publishing.publish()
    assert waiting.result(0).outcome == "failed"
    assert "ahead of its reference" in (waiting.result(0).error or "")
    assert rig.intake_keys() == []


@pytest.mark.parametrize("stated", [True, False])
def test_an_upload_that_fails_proves_nothing_about_an_earlier_attempt(
    rig: IntakeRig, clock: ManualClock, stated: bool
) -> None:
    publishing = Publishing(rig, clock, 1)
    one = publishing.session(*publishing.sequencer.open_producer("", 1))
    rig.objects.fail("create", ObjectFault.REFUSED, "intake/")
    pending = publishing.send("t", 0, b"v", one, 0 if stated else None)
    publishing.publish()
    reported = pending.result(0)
    assert (reported.outcome, reported.offset) == ("unknown" if stated else "failed", None)
    assert ("an earlier attempt" in (reported.error or "")) is stated

"""The intake writer on a real log and a real store: its acknowledgements are true."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.config.groups import LogSettings
from archiver.runtime import failpoints
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Halt, NotFound, RecordRefused, RetryLater
from intake.records import HEADERS, RECORD_SCHEMA, TIMESTAMP, Record
from intake.write.acknowledgements import Acknowledgement, PendingBatch, PendingRecord
from intake.write.partitioner import partition_for
from tests.support.intake.intake_rig import WAIT_S, IntakeRig
from tests.support.log.faulty_log import AppendFault
from tests.support.objects.faulty_objects import ObjectFault


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[IntakeRig]:
    rig = IntakeRig(tmp_path)
    yield rig
    failpoints.arm("")
    rig.close()


def record(value: bytes | None, key: bytes | None = None) -> Record:
    return Record(key, value)


def batch_of(values: list[bytes], keys: list[bytes | None] | None = None) -> pa.RecordBatch:
    columns = {"value": pa.array(values, pa.binary())}
    if keys is not None:
        columns["key"] = pa.array(keys, pa.binary())
    return pa.RecordBatch.from_pydict(columns)


def test_a_record_comes_back_as_it_was_sent(rig: IntakeRig) -> None:
    rig.topic("t", 1)
    sent = [
        Record(b"", None, (("a", None), ("a", b""), ("ä", b"\xff")), 5),
        Record(None, b"", (), -1),
        Record(b"\x00", b"\xff" * 1000, (), None),
    ]
    with rig.writer() as writer:
        before_us = rig.clock.now_us()
        pending = [writer.send("t", one) for one in sent]
        assert [p.result(WAIT_S) for p in pending] == [
            Acknowledgement("t", 0, offset, "ok") for offset in range(3)
        ]
    stored = rig.stored("t", 0)
    assert [(row["key"], row["value"]) for row in stored] == [(one.key, one.value) for one in sent]
    assert [tuple((h["key"], h["value"]) for h in row["headers"]) for row in stored] == [
        one.headers for one in sent
    ]
    times = [round(row["event_timestamp"].timestamp() * 1e6) for row in stored]
    assert times[:2] == [5, -1]
    assert stored[2]["event_timestamp"] == stored[2]["accept_timestamp"]
    assert before_us <= times[2] <= rig.clock.now_us()


def test_keys_decide_the_partition_and_an_explicit_one_overrules_them(rig: IntakeRig) -> None:
    rig.topic("t", 8)
    with rig.writer() as writer:
        by_key = writer.send("t", record(b"v", b"foobar")).result(WAIT_S)
        given = writer.send("t", record(b"v", b"foobar"), 7).result(WAIT_S)
    assert by_key.partition == partition_for(b"foobar", 8)
    assert (given.partition, given.offset) == (7, 0)


def test_what_cannot_be_sent_is_refused_and_the_rest_goes_on(rig: IntakeRig) -> None:
    rig.topic("t", 2)
    with rig.writer(record_bytes_max=100) as writer:
        with pytest.raises(NotFound, match="no topic u;"):
            writer.send("u", record(b"v"))
        with pytest.raises(NotFound, match="topic t has no partition 2"):
            writer.send("t", record(b"v"), 2)
        with pytest.raises(NotFound, match="topic t has no partition -1"):
            writer.send_batch("t", batch_of([b"v"]), -1)
        with pytest.raises(NotFound, match="topic t has no partition 5"):
            writer.send_batch(
                "t", pa.RecordBatch.from_pydict({"value": pa.array([b"v"] * 2), "partition": [1, 5]})
            )
        with pytest.raises(RecordRefused, match="101 bytes"):
            writer.send("t", record(b"v" * 101))
        with pytest.raises(RecordRefused, match="row 1"):
            writer.send_batch("t", batch_of([b"v", b"v" * 101]))
        assert writer.send("t", record(b"v"), 0).result(WAIT_S).offset == 0
    assert [rig.values("t", 0), rig.values("t", 1)] == [[b"v"], []]


def test_a_topic_of_another_process_is_found(rig: IntakeRig, tmp_path: Path) -> None:
    with rig.writer() as writer:
        other = IntakeRig(tmp_path)
        other.topic("late", 1)
        other.close()
        assert writer.send("late", record(b"v")).result(WAIT_S).outcome == "ok"


def test_one_file_holds_many_topics_in_order(rig: IntakeRig) -> None:
    for name in ("b", "a"):
        rig.topic(name, 3)
    with rig.writer(delay_max=60, row_group_bytes=4096) as writer:
        for number in range(60):
            writer.send("ab"[number % 2], record(b"%04d" % number * 30), number % 3)
        writer.flush()
    (key,) = rig.intake_keys()
    parquet = pq.ParquetFile(rig.objects.open_input(key))
    rows = parquet.read(["topic", "partition", "value"]).to_pylist()
    assert rows == sorted(rows, key=lambda row: (row["topic"], row["partition"], row["value"]))
    assert parquet.metadata.num_row_groups == 2  # closed at the first segment border past 4 KiB
    assert [len(rig.values(name, partition)) for name in "ab" for partition in range(3)] == [10] * 6


def test_a_batch_is_partitioned_and_acknowledged_row_by_row(rig: IntakeRig) -> None:
    rig.topic("t", 5)
    keys: list[bytes | None] = [
        None if number % 7 == 0 else b"key-%d" % (number % 40) for number in range(2000)
    ]
    values = [b"%06d" % number for number in range(2000)]
    with rig.writer() as writer:
        acknowledged = writer.send_batch("t", batch_of(values, keys)).result(WAIT_S)
    assert (len(acknowledged), acknowledged.outcome) == (2000, "ok")
    stored = {partition: rig.values("t", partition) for partition in range(5)}
    for key, value, one in zip(keys, values, acknowledged, strict=True):
        assert one.offset is not None
        assert stored[one.partition][one.offset] == value
        assert key is None or one.partition == partition_for(key, 5)
    assert all(held == sorted(held, key=lambda value: value or b"") for held in stored.values())


def test_a_large_batch_is_cut_into_flushes(rig: IntakeRig) -> None:
    rig.topic("t", 3)
    values = [b"%06d" % number * 20 for number in range(3000)]
    with rig.writer(delay_max_bytes=50_000, queue_bytes_max=120_000, record_bytes_max=1000) as writer:
        acknowledged = writer.send_batch(
            "t", pa.Table.from_batches([batch_of(values[:1000]), batch_of(values[1000:])])
        ).result(WAIT_S)
    assert acknowledged.outcome == "ok"
    assert len(rig.intake_keys()) >= 7
    held = [rig.values("t", partition) for partition in range(3)]
    assert [held[one.partition][one.offset or 0] for one in acknowledged] == values
    assert sum(map(len, held)) == 3000


def test_batch_numbers_point_to_the_first_record_of_the_producers_batch(rig: IntakeRig) -> None:
    rig.topic("t", 2)
    with rig.writer(delay_max=60) as writer:
        writer.send("t", record(b"alone"), 0)
        both = pa.RecordBatch.from_pydict({"value": pa.array([b"v"] * 6), "partition": [0, 1, 0, 1, 1, 0]})
        writer.send_batch("t", both)
        writer.send("t", record(b"alone"), 1)
        writer.send("t", record(b"alone"), 1)
        writer.send_batch("t", both)
        writer.flush()
    assert [row["batch"] for row in rig.stored("t", 0)] == [0, 0, 1, 2, 0, 1, 2]
    assert [row["batch"] for row in rig.stored("t", 1)] == [0, 1, 2, 0, 0, 0, 1, 2]


def test_a_batch_with_all_columns_and_an_empty_one(rig: IntakeRig) -> None:
    rig.topic("t", 2)
    batch = pa.RecordBatch.from_pydict(
        {
            "value": pa.array([b"a", None], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": None}], []], HEADERS),
            "event_timestamp": pa.array([7, None], TIMESTAMP),
            "partition": pa.array([1, None]),
            "key": pa.array([None, b"foobar"], pa.binary()),
        }
    )
    with rig.writer() as writer:
        acknowledged = writer.send_batch("t", batch).result(WAIT_S)
        assert len(writer.send_batch("t", batch.slice(0, 0)).result(WAIT_S)) == 0
        assert len(writer.send_batch("t", pa.Table.from_batches([], schema=batch.schema)).result(WAIT_S)) == 0
    assert acknowledged.partitions.tolist() == [1, partition_for(b"foobar", 2)]
    rows = rig.stored("t", 1)
    assert rows[0]["headers"] == [{"key": "h", "value": None}]


def test_many_senders_at_once(rig: IntakeRig) -> None:
    for name in ("t", "u"):
        rig.topic(name, 3)
    acknowledged: dict[int, list[tuple[bytes, Acknowledgement]]] = {}

    def send(sender: int) -> None:
        waiting: list[tuple[list[bytes], PendingRecord | PendingBatch]] = []
        for number in range(150):
            value = b"%d-%04d" % (sender, number)
            topic = "tu"[number % 2]
            if number % 10 == 0:
                two = [value + b"a", value + b"b"]
                waiting.append((two, writer.send_batch(topic, batch_of(two), number % 3)))
            else:
                waiting.append(([value], writer.send(topic, record(value), number % 3)))
        mine: list[tuple[bytes, Acknowledgement]] = []
        for values, pending in waiting:
            results = pending.result(WAIT_S)
            mine.extend(
                zip(values, [results] if isinstance(results, Acknowledgement) else results, strict=True)
            )
        acknowledged[sender] = mine

    with rig.writer(delay_max=0.003) as writer:
        threads = [threading.Thread(target=send, args=(sender,)) for sender in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
    stored = {(topic, partition): rig.values(topic, partition) for topic in "tu" for partition in range(3)}
    assert sum(map(len, stored.values())) == 6 * 165
    for mine in acknowledged.values():
        last: dict[tuple[str, int], int] = {}
        for value, one in mine:
            assert one.outcome == "ok"
            assert one.offset is not None
            tp = (one.topic, one.partition)
            assert stored[tp][one.offset] == value
            assert one.offset > last.get(tp, -1)  # the order of one sender is kept
            last[tp] = one.offset
    for topic, partition in stored:
        accepts = [row["accept_timestamp"] for row in rig.stored(topic, partition)]
        assert accepts == sorted(accepts)


def test_an_upload_that_fails_is_acknowledged_as_failed(rig: IntakeRig) -> None:
    rig.topic("t", 1)
    with rig.writer() as writer:
        rig.objects.fail("create", ObjectFault.REFUSED, "intake/")
        failed = writer.send("t", record(b"lost")).result(WAIT_S)
        rig.objects.fail("create", ObjectFault.HALTED, "intake/")
        batch = writer.send_batch("t", batch_of([b"x", b"y"])).result(WAIT_S)
        ok = writer.send("t", record(b"kept")).result(WAIT_S)
    assert (failed.outcome, failed.offset) == ("failed", None)
    assert "refused by the test" in (failed.error or "")
    assert [(one.outcome, one.offset) for one in batch] == [("failed", None)] * 2
    assert (ok.outcome, ok.offset) == ("ok", 0)
    assert rig.values("t", 0) == [b"kept"]


def test_an_upload_whose_reply_is_lost_is_settled(rig: IntakeRig) -> None:
    rig.topic("t", 1)
    with rig.writer() as writer:
        rig.objects.fail("create", ObjectFault.REPLY_LOST, "intake/")
        assert writer.send("t", record(b"kept")).result(WAIT_S).offset == 0
    assert rig.values("t", 0) == [b"kept"]
    assert len(rig.intake_keys()) == 1


def test_an_append_that_is_refused_is_acknowledged_as_failed(rig: IntakeRig) -> None:
    rig.topic("t", 1)
    with rig.writer() as writer:
        rig.log.script(AppendFault.REFUSED)
        assert writer.send("t", record(b"lost")).result(WAIT_S).outcome == "failed"
        assert writer.send("t", record(b"kept")).result(WAIT_S).offset == 0
    assert rig.values("t", 0) == [b"kept"]
    assert len(rig.intake_keys()) == 2  # no entry names the first


@pytest.mark.parametrize("fault", [AppendFault.REPLY_LOST, AppendFault.LATE, AppendFault.DROPPED])
def test_an_append_of_unknown_outcome_is_settled(rig: IntakeRig, fault: AppendFault) -> None:
    rig.topic("t", 1)
    with rig.writer() as writer:
        rig.log.script(fault)
        assert writer.send("t", record(b"one")).result(WAIT_S).offset == 0
        assert writer.send("t", record(b"two")).result(WAIT_S).offset == 1
    assert rig.values("t", 0) == [b"one", b"two"]
    tries = [entry for entry in rig.log.appends if entry[0] == 1]
    assert len(tries) == 2
    assert tries[0] == tries[1]


def test_an_append_that_stays_unknown_is_acknowledged_as_unknown_and_holds_back_the_next(
    rig: IntakeRig,
) -> None:
    rig.topic("t", 1)
    with rig.writer() as writer:
        rig.log.script(AppendFault.DROPPED, AppendFault.DROPPED, AppendFault.REPLY_LOST)
        unknown = writer.send("t", record(b"one")).result(WAIT_S)
        rig.log.script(*[AppendFault.DROPPED] * 3)
        held_back = writer.send("t", record(b"two")).result(WAIT_S)
        ok = writer.send("t", record(b"three")).result(WAIT_S)
    assert (unknown.outcome, unknown.offset) == ("unknown", None)
    assert (held_back.outcome, held_back.offset) == ("failed", None)
    assert ok.offset == 1
    assert rig.values("t", 0) == [b"one", b"three"]


@pytest.mark.parametrize(
    ("point", "outcome", "files", "stored"),
    [
        ("writer.upload.before", "failed", 0, []),
        ("writer.upload.after", "failed", 1, []),
        ("writer.append.after", "unknown", 1, [b"one"]),
    ],
)
@pytest.mark.parametrize("action", ["error", "unknown"])
def test_failpoints(
    rig: IntakeRig, point: str, action: str, outcome: str, files: int, stored: list[bytes]
) -> None:
    rig.topic("t", 1)
    failpoints.arm(f"{point}={action}")
    with rig.writer() as writer:
        assert writer.send("t", record(b"one")).result(WAIT_S).outcome == outcome
        assert len(rig.intake_keys()) == files
        assert writer.send("t", record(b"two")).result(WAIT_S).offset == len(stored)
    assert rig.values("t", 0) == [*stored, b"two"]


def test_an_entry_that_would_be_too_large_is_split_between_partitions(tmp_path: Path) -> None:
    rig = IntakeRig(tmp_path, LogSettings(entry_bytes_max=16 * 1024))
    rig.topic("t", 1000)
    partitions = list(range(1000)) * 2
    batch = pa.RecordBatch.from_pydict(
        {"value": pa.array([b"%d" % n for n in range(2000)]), "partition": partitions}
    )
    with rig.writer(delay_max=60) as writer:
        pending = writer.send_batch("t", batch)
        writer.flush()
        acknowledged = pending.result(WAIT_S)
        rig.objects.fail("create", ObjectFault.REFUSED, "intake/", skip=1)
        again = writer.send_batch("t", batch)
        writer.flush()
        partly = again.result(WAIT_S)
    assert acknowledged.offsets.tolist() == [0] * 1000 + [1] * 1000
    assert max(len(data) for _, data in rig.log.appends) <= 16 * 1024
    assert len(rig.intake_keys()) >= 7
    # Each part is stored or not by itself, and the acknowledgements say which.
    assert partly.outcome == "failed"
    fold = rig.reread()
    topic_id = fold.topics_by_name["t"].topic_id
    ends = {partition: fold.next_offset((topic_id, partition)) for partition in range(1000)}
    assert {one.partition: one.outcome for one in partly} == {
        partition: "ok" if end == 4 else "failed" for partition, end in ends.items()
    }
    assert {"ok", "failed"} == {one.outcome for one in partly}
    rig.close()


def test_a_full_queue_makes_senders_wait_and_then_says_so(rig: IntakeRig) -> None:
    rig.topic("t", 1)
    release = threading.Event()
    create = rig.objects.create

    def slow(key: str, data: bytes) -> None:
        release.wait(WAIT_S)
        create(key, data)

    rig.objects.create = slow  # type: ignore[method-assign]
    writer = rig.writer(
        queue_bytes_max=10_000, delay_max_bytes=5_000, record_bytes_max=5_000, close_timeout=0.2
    )
    pending = [writer.send("t", record(b"x" * 2000)) for _ in range(4)]
    with pytest.raises(RetryLater, match="the intake queue is full"):
        writer.send("t", record(b"x" * 2000))
    with pytest.raises(RetryLater, match="the intake queue is full"):
        writer.send_batch("t", batch_of([b"x" * 2000]))
    with pytest.raises(RetryLater, match="has not finished"):
        writer.flush()
    release.set()
    assert [p.result(WAIT_S).offset for p in pending] == [0, 1, 2, 3]
    assert writer.send("t", record(b"y")).result(WAIT_S).offset == 4
    writer.close()


def test_headers_without_bytes_take_room_in_the_queue_and_are_stored(rig: IntakeRig) -> None:
    rig.topic("t", 1)
    release = threading.Event()
    create = rig.objects.create

    def slow(key: str, data: bytes) -> None:
        release.wait(WAIT_S)
        create(key, data)

    rig.objects.create = slow  # type: ignore[method-assign]
    writer = rig.writer(
        queue_bytes_max=10_000, delay_max_bytes=5_000, record_bytes_max=5_000, close_timeout=0.2
    )
    with pytest.raises(RecordRefused, match="313 headers, which count 16 additional bytes each"):
        writer.send("t", Record(None, None, (("", None),) * 313))
    heavy = Record(None, None, (("", None),) * 300)
    pending = [writer.send("t", heavy) for _ in range(2)]
    with pytest.raises(RetryLater, match="the intake queue is full"):
        writer.send("t", heavy)
    with pytest.raises(RetryLater, match="the intake queue is full"):
        writer.send_batch(
            "t",
            pa.RecordBatch.from_pylist(
                [{"headers": [{"key": "", "value": None}] * 300}], schema=RECORD_SCHEMA
            ),
        )
    release.set()
    assert [p.result(WAIT_S).offset for p in pending] == [0, 1]
    assert writer.send("t", heavy).result(WAIT_S).offset == 2
    writer.close()
    assert [len(row["headers"]) for row in rig.stored("t", 0)] == [300] * 3
    state = rig.sequencer.refresh()
    segments = state.segments((state.topics_by_name["t"].topic_id, 0))
    assert sum(segment.raw_bytes for segment in segments) == 0, "raw bytes stay what they are"


def test_a_batch_that_finds_no_more_room_halfway_says_so_row_by_row(rig: IntakeRig) -> None:
    rig.topic("t", 1)
    release = threading.Event()
    create = rig.objects.create

    def slow(key: str, data: bytes) -> None:
        release.wait(WAIT_S)
        create(key, data)

    rig.objects.create = slow  # type: ignore[method-assign]
    writer = rig.writer(
        queue_bytes_max=10_000, delay_max_bytes=4_000, record_bytes_max=4_000, close_timeout=0.2
    )
    pending = writer.send_batch("t", batch_of([b"x" * 2000] * 20))
    release.set()
    acknowledged = pending.result(WAIT_S)
    outcomes = [one.outcome for one in acknowledged]
    kept = outcomes.count("ok")
    assert 0 < kept < 20
    assert outcomes == ["ok"] * kept + ["failed"] * (20 - kept)
    writer.close()
    assert len(rig.values("t", 0)) == kept


def test_closing_drains(rig: IntakeRig) -> None:
    rig.topic("t", 1)
    writer = rig.writer(delay_max=3600)
    pending = [writer.send("t", record(b"%d" % number)) for number in range(100)]
    writer.close()
    assert [p.result(0).offset for p in pending] == list(range(100))
    writer.close()
    with pytest.raises(Halt, match="the writer is closed"):
        writer.send("t", record(b"late"))


def test_closing_does_not_wait_for_ever(rig: IntakeRig) -> None:
    rig.topic("t", 1)
    release, begun = threading.Event(), threading.Event()
    create = rig.objects.create

    def stuck(key: str, data: bytes) -> None:
        begun.set()
        release.wait(WAIT_S)
        create(key, data)

    rig.objects.create = stuck  # type: ignore[method-assign]
    writer = rig.writer(delay_max=0, close_timeout=0.3)
    in_work = writer.send("t", record(b"in work"))
    assert begun.wait(WAIT_S)
    waiting = writer.send("t", record(b"waiting"))
    with pytest.raises(RetryLater, match="1 sent items failed, 1 are unknown"):
        writer.close()
    assert (in_work.result(0).outcome, waiting.result(0).outcome) == ("unknown", "failed")
    release.set()
    writer._thread.join(WAIT_S)
    writer.close()
    assert in_work.result(0).outcome == "unknown"  # an acknowledgement never changes
    assert rig.values("t", 0) == [b"in work"]


def test_a_clock_that_runs_ahead_is_refused(tmp_path: Path) -> None:
    clock = ManualClock()
    rig = IntakeRig(tmp_path, clock=clock)
    rig.topic("t", 1)
    with rig.writer(delay_max=0) as writer:
        start_us = clock.now_us()
        clock.set_wall(start_us + 60_000_000)
        with pytest.raises(RetryLater, match=r"60\.0 s ahead of its reference"):
            writer.send("t", record(b"v"))
        with pytest.raises(RetryLater, match=r"60\.0 s ahead of its reference"):
            writer.send_batch("t", batch_of([b"v"]))
        assert rig.log.tail() == 1
        rig.sequencer.tick(start_us + 55_000_000)  # the log itself has seen that time
        assert writer.send("t", record(b"v")).result(WAIT_S).offset == 0
        clock.set_wall(start_us + 3600_000_000)
        with pytest.raises(RetryLater, match=r"ahead of its reference"):
            writer.send("t", record(b"v"))
        clock.advance(60)  # it was wrong before and is right now, since it advanced evenly
        assert writer.send("t", record(b"w")).result(WAIT_S).offset == 1
        assert writer.metrics().clock_refusals == 3
    rig.close()

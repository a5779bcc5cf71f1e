"""Real Kafka clients read from the listener: what they get is what was produced."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PurePartition
from kio.schema.errors import ErrorCode

from archiver.app.application import Application
from archiver.config.settings import load_settings
from archiver.kafka import consume
from archiver.kafka.protocol import ApiKey
from archiver.kafka.service import THREADS
from intake.records import Record
from intake.write.producer import Producer as TransactionalProducer
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.kafka.wire import WireClient
from tests.support.process.processes import until

pytestmark = pytest.mark.timeout(120)

TOPICS = [{"name": name, "partitions": 2} for name in ("orders", "open", "aborted", "late")]
RECORDS = [
    Record(
        (None, b"", b"\x00key")[number % 3],
        (None, b"", b"v" * (number % 700))[number % 3],
        ((), (("a", b"1"), ("a", None)), (("ü", b""),))[number % 4 % 3],
        1_700_000_000_000_000 + number * 1000 * (1 if number % 2 else -1),
    )
    for number in range(3000)
]


@pytest.fixture(scope="module")
def open_listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with listening(configured(tmp_path_factory.mktemp("kafka"), TOPICS)) as found:
        for number, record in enumerate(RECORDS):
            found.writer.send("orders", record, 0)
            if number % 500 == 0:
                # Several files, so that fetches cross their borders.
                found.writer.flush()
        found.writer.flush()
        yield found


Got = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int, int]
"""Key, value, headers, time in milliseconds, offset."""

EXPECTED: list[Got] = [
    (one.key, one.value, one.headers, (one.timestamp_us or 0) // 1000, offset)
    for offset, one in enumerate(RECORDS)
]


def _librdkafka(
    found: Listening, topic: str, partition: int, start: int, count: int, **options: Any
) -> list[Got]:
    consumer = Consumer(
        {
            "bootstrap.servers": found.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            "auto.offset.reset": "error",
            **options,
        }
    )
    consumer.assign([TopicPartition(topic, partition, start)])
    got: list[Got] = []
    try:
        while len(got) < count:
            message = consumer.poll(20)
            assert message is not None, f"nothing after {len(got)} records"
            assert message.error() is None, message.error()
            headers: Any = message.headers() or ()
            offset = message.offset()
            assert offset is not None
            got.append((message.key(), message.value(), tuple(headers), message.timestamp()[1], offset))
    finally:
        consumer.close()
    return got


@pytest.mark.parametrize("start", [0, 1, 1499, 2999])
@pytest.mark.parametrize("bytes_max", [1, 10_000, 50_000_000])
def test_librdkafka(open_listener: Listening, start: int, bytes_max: int) -> None:
    options = {"fetch.message.max.bytes": bytes_max, "fetch.max.bytes": max(bytes_max, 1000)}
    # librdkafka asks for at least as much as its largest message.
    options |= {"message.max.bytes": max(bytes_max, 1000), "receive.message.max.bytes": 100_000_000}
    end = min(3000, start + 1000)
    got = _librdkafka(open_listener, "orders", 0, start, end - start, **options)
    assert got == EXPECTED[start:end]


def test_aiokafka(open_listener: Listening) -> None:
    async def run() -> list[Got]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=open_listener.bootstrap, max_partition_fetch_bytes=20_000
        )
        await consumer.start()
        try:
            place = AioPartition("orders", 0)
            consumer.assign([place])
            await consumer.seek_to_beginning(place)
            got: list[Got] = []
            while len(got) < 3000:
                async with asyncio.timeout(20):
                    one = await consumer.getone()
                got.append((one.key, one.value, tuple(one.headers), one.timestamp, one.offset))
            return got
        finally:
            await consumer.stop()

    assert asyncio.run(run()) == EXPECTED


def test_kafka_python(open_listener: Listening) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=open_listener.bootstrap,
        consumer_timeout_ms=20_000,
        max_partition_fetch_bytes=20_000,
    )
    place = PurePartition("orders", 0)
    consumer.assign([place])
    consumer.seek(place, 7)
    got: list[Got] = []
    for one in consumer:
        got.append((one.key, one.value, tuple(one.headers), one.timestamp, one.offset))
        if len(got) == 2993:
            break
    consumer.close()
    assert got == EXPECTED[7:]


# --- offsets


def test_offsets_and_times(open_listener: Listening) -> None:
    consumer = Consumer({"bootstrap.servers": open_listener.bootstrap, "group.id": "unused"})
    try:
        assert consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=20) == (0, 3000)
        assert consumer.get_watermark_offsets(TopicPartition("orders", 1), timeout=20) == (0, 0)
        times = [1_700_000_000_000 + 101, 1_700_000_000_000 + 2999, 1_700_000_000_000 + 3000, 0]
        found = [
            consumer.offsets_for_times([TopicPartition("orders", 0, time_ms)], timeout=20)[0].offset
            for time_ms in times
        ]
    finally:
        consumer.close()
    # Odd records have later and later times, even ones earlier and earlier: the first at or after it counts.
    assert found == [101, 2999, -1, 0]


@pytest.mark.parametrize("version", range(1, 9))
def test_every_version_of_list_offsets(open_listener: Listening, version: int) -> None:
    def ask(time_ms: int) -> tuple[int, int]:
        part = {"partition_index": 0, "timestamp": time_ms, "current_leader_epoch": -1}
        body = {
            "replica_id": -1,
            "isolation_level": 1,
            "topics": [{"name": "orders", "partitions": [part]}],
            "timeout": 1000,
        }
        answer = client.ask(ApiKey.LIST_OFFSETS, version, body)
        (found,) = answer.topics[0].partitions
        assert found.error_code is ErrorCode.none
        return found.offset, found.timestamp

    with WireClient(open_listener.address) as client:
        assert ask(-2) == (0, -1)
        assert ask(-1) == (3000, -1)
        # The newest time, whose record is not the last one in general; here it is.
        assert ask(-3) == (2999, 1_700_000_000_000 + 2999)
        assert ask(1_700_000_000_000) == (0, 1_700_000_000_000)


# --- single requests


def _fetch(
    client: WireClient,
    places: dict[tuple[str, int], int],
    *,
    version: int = 12,
    **fields: int,
) -> Any:
    return client.ask(ApiKey.FETCH, version, _fetch_body(places, **fields))


def _fetch_body(
    places: dict[tuple[str, int], int],
    max_wait: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 10**7,
    isolation: int = 0,
    session_id: int = 0,
) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), offset in places.items():
        topics.setdefault(topic, []).append(
            {
                "partition": partition,
                "current_leader_epoch": -1,
                "fetch_offset": offset,
                "log_start_offset": -1,
                "partition_max_bytes": 10**6,
            }
        )
    return {
        "replica_id": -1,
        "max_wait": max_wait,
        "min_bytes": min_bytes,
        "max_bytes": max_bytes,
        "isolation_level": isolation,
        "session_id": session_id,
        "topics": [{"topic": name, "partitions": found} for name, found in topics.items()],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def _parts(answer: Any) -> dict[tuple[str, int], Any]:
    return {(topic.topic, one.partition_index): one for topic in answer.responses for one in topic.partitions}


@pytest.mark.parametrize("version", range(4, 13))
def test_every_version_of_fetch(open_listener: Listening, version: int) -> None:
    with WireClient(open_listener.address) as client:
        found = _parts(_fetch(client, {("orders", 0): 2990}, version=version))["orders", 0]
    assert (found.error_code, found.high_watermark, found.last_stable_offset) == (ErrorCode.none, 3000, 3000)
    assert found.records


def test_errors_of_a_partition_stay_with_it(open_listener: Listening) -> None:
    with WireClient(open_listener.address) as client:
        found = _parts(
            _fetch(
                client,
                {("orders", 0): 3001, ("orders", 1): 0, ("orders", 2): 0, ("nothing", 0): 0},
                max_wait=60_000,
            )
        )
    assert {place: one.error_code for place, one in found.items()} == {
        ("orders", 0): ErrorCode.offset_out_of_range,
        ("orders", 1): ErrorCode.none,
        ("orders", 2): ErrorCode.unknown_topic_or_partition,
        ("nothing", 0): ErrorCode.unknown_topic_or_partition,
    }
    # The true range.
    assert (found["orders", 0].log_start_offset, found["orders", 0].high_watermark) == (0, 3000)


def test_an_unknown_session_is_refused(open_listener: Listening) -> None:
    with WireClient(open_listener.address) as client:
        answer = _fetch(client, {("orders", 0): 0}, session_id=5)
    assert answer.error_code is ErrorCode.fetch_session_id_not_found


def test_a_fetch_waits_for_records(open_listener: Listening) -> None:
    with WireClient(open_listener.address) as client, WireClient(open_listener.address) as other:
        answers: list[Any] = []
        waiting = threading.Thread(
            target=lambda: answers.append(_fetch(client, {("open", 1): 0}, max_wait=60_000, min_bytes=1))
        )
        waiting.start()
        # Another connection is served in the time; then the record ends the wait.
        assert _parts(_fetch(other, {("open", 1): 0}))["open", 1].records == b""
        open_listener.writer.send("open", Record(None, b"late"), 1)
        waiting.join(30)
        found = _parts(answers[0])["open", 1]
    assert (found.error_code, found.high_watermark) == (ErrorCode.none, 1)
    assert b"late" in found.records


def test_a_fetch_for_many_bytes_ends_with_its_time(open_listener: Listening) -> None:
    with WireClient(open_listener.address) as client:
        found = _parts(_fetch(client, {("orders", 0): 2999}, max_wait=50, min_bytes=10**8))
    assert found["orders", 0].records


def test_the_limit_of_an_answer_holds_over_partitions(open_listener: Listening) -> None:
    with WireClient(open_listener.address) as client:
        whole = _parts(_fetch(client, {("orders", 0): 0}))["orders", 0].records
        found = _parts(_fetch(client, {("orders", 0): 0, ("open", 0): 0}, max_bytes=1))
    # One whole batch even above the limit, or the client could never go on.
    assert 0 < len(found["orders", 0].records) < len(whole)
    assert found["open", 0].records == b""


def _offset_codes(client: WireClient, partitions: list[int]) -> list[ErrorCode]:
    return [one.error_code for one in _ends(client, "orders", partitions)]


def _ends(client: WireClient, name: str, partitions: list[int]) -> list[Any]:
    """Answers of ListOffsets for the ends of partitions."""
    body = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {"partition_index": one, "timestamp": -1, "current_leader_epoch": -1}
                    for one in partitions
                ],
            }
        ],
        "timeout": 1000,
    }
    (topic,) = client.ask(ApiKey.LIST_OFFSETS, 8, body).topics
    return list(topic.partitions)


def test_a_request_for_many_partitions_ends_in_time(
    open_listener: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_listener.writer.send("late", Record(None, b"late"), 0)
    open_listener.writer.flush()
    with WireClient(open_listener.address) as client:
        with monkeypatch.context() as patch:
            patch.setattr(consume, "FETCH_READ_S", 0.0)
            # The first has no record, so the second is read as well.
            found = _parts(_fetch(client, {("late", 1): 0, ("late", 0): 0, ("orders", 0): 2999}))
        assert found["late", 0].records
        one = found["orders", 0]
        assert (one.error_code, one.high_watermark, one.records) == (ErrorCode.none, 3000, b"")
        assert _parts(_fetch(client, {("orders", 0): 2999}))["orders", 0].records
        monkeypatch.setattr(consume, "LIST_S", 0.0)
        assert _offset_codes(client, [0, 1]) == [ErrorCode.kafka_storage_error] * 2


def test_an_unexpected_fault_stays_with_its_partition(
    open_listener: Listening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = open_listener.service._data._reader
    read, list_offset = reader.read, reader.list_offset

    def faulty(method: Any) -> Any:
        def call(topic_id: Any, partition: int, *rest: Any, **options: Any) -> Any:
            if partition == 1:
                raise ValueError("a fault")
            return method(topic_id, partition, *rest, **options)

        return call

    monkeypatch.setattr(reader, "read", faulty(read))
    monkeypatch.setattr(reader, "list_offset", faulty(list_offset))
    with WireClient(open_listener.address) as client:
        found = _parts(_fetch(client, {("orders", 1): 0, ("orders", 0): 2999}))
        assert found["orders", 1].error_code is ErrorCode.kafka_storage_error
        assert found["orders", 0].records
        assert _offset_codes(client, [1, 0]) == [ErrorCode.kafka_storage_error, ErrorCode.none]
    assert caplog.text.count("ValueError: a fault") == 2


# --- several daemons


def test_a_consumer_moves_to_a_daemon_that_has_not_read_its_records(tmp_path: Path) -> None:
    path = configured(tmp_path, TOPICS)
    with (
        listening(path) as found,
        WireClient(found.address) as client,
        closing(Application(load_settings(path, {}), {}, lasting=True)) as other,
    ):
        assert _parts(_fetch(client, {("late", 0): 0}))["late", 0].high_watermark == 0
        with other.intake.writer() as writer:
            writer.send("late", Record(None, b"late"), 0)
        one = _parts(_fetch(client, {("late", 0): 1}))["late", 0]
        assert (one.error_code, one.high_watermark) == (ErrorCode.none, 1)
        # Without a wait: the offset is beyond the end after a read of the log as well.
        one = _parts(_fetch(client, {("late", 0): 2}, max_wait=60_000))["late", 0]
        assert one.error_code is ErrorCode.offset_out_of_range


def test_the_end_includes_what_another_daemon_has_just_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = configured(tmp_path, TOPICS)
    with (
        listening(path) as found,
        WireClient(found.address) as client,
        closing(Application(load_settings(path, {}), {}, lasting=True)) as other,
        other.intake.writer() as writer,
    ):
        # As if every read of the log below were within the interval between two reads.
        monkeypatch.setattr(found.service._log, "_refresh_interval_s", 3600)
        for expected in range(3):
            assert [one.offset for one in _ends(client, "late", [0])] == [expected]
            writer.send("late", Record(None, b"late"), 0).result(30)


def test_readers_do_not_delay_the_watch_of_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, read = threading.Event(), threading.Event()
    with listening(configured(tmp_path, TOPICS)) as found:
        service = found.service
        monkeypatch.setattr(service._log, "_read_on", read.set)
        try:
            for _ in range(THREADS):
                service._data._fetch_threads.submit(free.wait)
            assert service.server.loop is not None
            waiting = service._data._consume.watch.grown(service._log.generation)
            asyncio.run_coroutine_threadsafe(waiting, service.server.loop)
            assert read.wait(30)
        finally:
            free.set()


def test_the_control_log_is_read_before_the_port_opens(tmp_path: Path) -> None:
    with listening(configured(tmp_path, TOPICS)) as found:
        topic = found.application.topic("late")
        assert found.service._data._log_start(topic, 0) == 0


# --- transactions


def test_isolation(open_listener: Listening) -> None:
    writer = open_listener.writer
    producer = TransactionalProducer.open(writer, "tx")
    writer.send("open", Record(None, b"before"), 0)
    writer.flush()
    producer.begin()
    producer.send("open", Record(None, b"inside"), 0)
    writer.flush()
    writer.send("open", Record(None, b"after"), 0)
    writer.flush()
    with WireClient(open_listener.address) as client:
        seen = _parts(_fetch(client, {("open", 0): 0}, isolation=0))["open", 0]
        stable = _parts(_fetch(client, {("open", 0): 0}, isolation=1))["open", 0]
        assert (stable.high_watermark, stable.last_stable_offset) == (3, 1)
        assert [b"inside" in one.records for one in (seen, stable)] == [True, False]
        assert stable.aborted_transactions == ()
        producer.commit()
        stable = _parts(_fetch(client, {("open", 0): 0}, isolation=1))["open", 0]
    assert stable.last_stable_offset == 3
    assert b"inside" in stable.records


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_consumer_passes_over_aborted_records(open_listener: Listening, isolation: str) -> None:
    writer = open_listener.writer
    producer = TransactionalProducer.open(writer, f"aborted {isolation}")
    partition = ("read_committed", "read_uncommitted").index(isolation)
    writer.send("aborted", Record(None, b"first"), partition)
    writer.flush()
    producer.begin()
    for number in range(20):
        producer.send("aborted", Record(None, b"gone %d" % number), partition)
    producer.abort()
    # The gap is the end of the partition: the consumer must reach it without a record.
    consumer = Consumer(
        {
            "bootstrap.servers": open_listener.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition("aborted", partition, 0)])
    try:
        message = consumer.poll(20)
        assert message is not None
        assert message.value() == b"first"
        end = consumer.poll(20)
        assert end is not None
        error = end.error()
        assert error is not None
        assert error.name() == "_PARTITION_EOF"
        assert end.offset() == 21
    finally:
        consumer.close()
    writer.send("aborted", Record(None, b"last"), partition)
    writer.flush()
    got = _librdkafka(open_listener, "aborted", partition, 0, 2)
    assert [one[1] for one in got] == [b"first", b"last"]


def test_answers_of_all_consumers_share_their_memory(open_listener: Listening) -> None:
    server = open_listener.service.server
    all_of_it = 2**40
    with WireClient(open_listener.address) as client:
        whole = _fetch(client, {("orders", 0): 0}, max_bytes=10**6)
        server.answers.correct(0, all_of_it)
        try:
            one = _fetch(client, {("orders", 0): 0}, max_bytes=10**6)
        finally:
            server.answers.correct(all_of_it, 0)
        again = _fetch(client, {("orders", 0): 0}, max_bytes=10**6)
    sizes = [len(_parts(found)["orders", 0].records) for found in (whole, one, again)]
    # One batch without memory; it holds none afterwards.
    assert sizes[0] == sizes[2] > sizes[1] > 0
    until("the connection has ended", lambda: server.counts.connections == 0)
    assert server.answers.held == 0


def _offset_behind(records: bytes) -> int:
    """The offset behind the last batch."""
    at = offset = 0
    while at < len(records):
        base, size = struct.unpack_from(">qi", records, at)
        offset = base + struct.unpack_from(">i", records, at + 23)[0] + 1
        at += 12 + size
    return int(offset)


def test_clients_that_never_read_leave_memory_to_others(tmp_path: Path) -> None:
    kafka = {"requests_bytes_max": 2**20, "request_bytes_max": 2**16, "fetch_bytes_max": 2**18}
    path = configured(tmp_path, [{"name": "large", "partitions": 1}], kafka=kafka)
    with listening(path) as found, contextlib.ExitStack() as opened:
        answers = found.service.server.answers
        for number in range(64):
            found.writer.send("large", Record(None, number.to_bytes(2, "big") + bytes(16_000)), 0)
        found.writer.flush()
        silent = [opened.enter_context(WireClient(found.address)) for _ in range(12)]
        for client in silent:
            for _ in range(50):
                client.send(ApiKey.FETCH, 4, _fetch_body({("large", 0): 0}))
        # More than the kernel keeps for them; from here on they hold what they have.
        until("they hold answers", lambda: answers.held > 2**19)
        reader = opened.enter_context(WireClient(found.address))
        for _ in range(20):
            offset = 0
            while offset < 64:
                records = _parts(_fetch(reader, {("large", 0): offset}))["large", 0].records
                assert records
                offset = _offset_behind(records)
        assert answers.held > 2**19
    until("all memory is given back", lambda: answers.held == 0)

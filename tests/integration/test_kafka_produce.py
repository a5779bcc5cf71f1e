"""Real Kafka clients produce to the listener; what is stored is compared byte for byte."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaProducer
from kio.schema.errors import ErrorCode

from archiver.kafka.produce import AHEAD_ANSWERS, GATHER_MAX_S, ProducerIds
from archiver.kafka.protocol import ApiKey
from archiver.runtime.clock import ManualClock, SystemClock
from archiver.runtime.errors import RetryLater
from archiver.stream.records import StreamRecord
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.kafka.wire import WireClient

pytestmark = pytest.mark.timeout(120)

TOPICS = [{"name": "orders", "partitions": 3}, {"name": "clicks", "partitions": 1}]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]

Sent = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...], int]
"""Key, value, headers and time in milliseconds."""


@pytest.fixture(scope="module")
def open_listener(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with listening(configured(tmp_path_factory.mktemp("kafka"), TOPICS)) as found:
        yield found


def _records(count: int, seed: int) -> list[Sent]:
    chance = random.Random(seed)
    contents = (None, b"", b"\x00\xff", chance.randbytes(300))
    headers = ((), (("a", b"1"),), (("a", None), ("a", b""), ("ü", chance.randbytes(20))))
    return [
        (
            chance.choice(contents),
            chance.choice(contents),
            chance.choice(headers),
            1_700_000_000_000 + chance.randrange(-(10**9), 10**9),
        )
        for _ in range(count)
    ]


def _as_sent(records: Sequence[StreamRecord]) -> list[Sent]:
    return [(one.key, one.value, one.headers, (one.timestamp_us or 0) // 1000) for one in records]


def _by_librdkafka(
    bootstrap: str, records: Sequence[Sent], partition: int, options: Mapping[str, Any]
) -> list[int]:
    producer = Producer({"bootstrap.servers": bootstrap, **options})
    offsets: list[int] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    for key, value, headers, time_ms in records:
        producer.produce(
            "orders", value, key, partition, on_delivery=delivered, timestamp=time_ms, headers=list(headers)
        )
    assert producer.flush(30) == 0
    return offsets


@pytest.mark.parametrize("idempotent", [False, True])
@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka(open_listener: Listening, codec: str, idempotent: bool) -> None:
    records = _records(500, seed=CODECS.index(codec))
    before = len(open_listener.stored("orders")[1])
    options = {"compression.type": codec, "enable.idempotence": idempotent, "linger.ms": 5}
    offsets = _by_librdkafka(open_listener.bootstrap, records, 1, options)
    stored = open_listener.stored("orders")[1]
    assert offsets == list(range(before, before + 500))
    assert _as_sent(stored[before:]) == records


@pytest.mark.parametrize("codec", CODECS)
def test_aiokafka(open_listener: Listening, codec: str) -> None:
    # The client refuses a record without key and value.
    records = [one for one in _records(300, seed=7) if one[0] is not None or one[1] is not None]
    before = len(open_listener.stored("orders")[2])

    async def run() -> list[int]:
        producer = AIOKafkaProducer(
            bootstrap_servers=open_listener.bootstrap,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=True,
            linger_ms=5,
        )
        await producer.start()
        try:
            sent = [
                await producer.send(
                    "orders", value, key, partition=2, timestamp_ms=time_ms, headers=list(headers)
                )
                for key, value, headers, time_ms in records
            ]
            return [(await one).offset for one in sent]
        finally:
            await producer.stop()

    assert asyncio.run(run()) == list(range(before, before + len(records)))
    assert _as_sent(open_listener.stored("orders")[2][before:]) == records


# Its snappy needs a library that has no wheel for every platform; the other two clients use snappy.
@pytest.mark.parametrize("codec", ["none", "gzip", "lz4", "zstd"])
def test_kafka_python(open_listener: Listening, codec: str) -> None:
    # The client refuses a record without key and value, and a header without a value.
    records = [
        (key, value, tuple(header for header in headers if header[1] is not None), time_ms)
        for key, value, headers, time_ms in _records(300, seed=8)
        if key is not None or value is not None
    ]
    before = len(open_listener.stored("clicks")[0])
    producer = KafkaProducer(
        bootstrap_servers=open_listener.bootstrap,
        compression_type=None if codec == "none" else codec,
        linger_ms=5,
    )
    sent = [
        producer.send("clicks", value, key, list(headers), 0, time_ms)
        for key, value, headers, time_ms in records
    ]
    producer.flush(30)
    offsets = [one.get(30).offset for one in sent]
    producer.close()
    assert offsets == list(range(before, before + len(records)))
    assert _as_sent(open_listener.stored("clicks")[0][before:]) == records


def test_keys_go_to_the_partitions_of_kafka(open_listener: Listening) -> None:
    """librdkafka with murmur2 and the HTTP producer place a key alike."""
    from intake.write.partitioner import partition_for

    places: dict[bytes | None, int | None] = {}

    def delivered(_: Any, message: Any) -> None:
        places[message.key()] = message.partition()

    producer = Producer({"bootstrap.servers": open_listener.bootstrap, "partitioner": "murmur2_random"})
    for number in range(200):
        producer.produce("orders", b"x", b"key-%d" % number, on_delivery=delivered)
    assert producer.flush(30) == 0
    assert places == {key: partition_for(key or b"", 3) for key in places}
    assert len(places) == 200


def test_records_without_an_acknowledgement_are_stored(open_listener: Listening) -> None:
    before = len(open_listener.stored("clicks")[0])
    producer = Producer({"bootstrap.servers": open_listener.bootstrap, "acks": 0})
    for number in range(100):
        producer.produce("clicks", b"%d" % number)
    assert producer.flush(30) == 0
    # The same connection: its next answer comes after the records were queued.
    producer.list_topics(timeout=10)
    open_listener.writer.flush()
    stored = open_listener.stored("clicks")[0][before:]
    assert [one.value for one in stored] == [b"%d" % number for number in range(100)]


# --- single requests


def _batch(
    values: Sequence[bytes],
    *,
    producer: tuple[int, int, int] = (-1, -1, -1),
    time_ms: int = 1_700_000_000_000,
) -> bytes:
    """A record batch by aiokafka's builder; `producer` is id, epoch and first sequence number."""
    builder = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=0,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        batch_size=10**7,
    )
    for offset, value in enumerate(values):
        assert builder.append(offset, time_ms, None, value, []) is not None
    return bytes(builder.build())


def _produce(
    client: WireClient,
    partitions: Mapping[tuple[str, int], bytes | None],
    *,
    acks: int = -1,
    timeout: int = 20_000,
) -> dict[tuple[str, int], Any]:
    """One request; the answers by topic and partition."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), records in partitions.items():
        topics.setdefault(topic, []).append({"index": partition, "records": records})
    body = {
        "acks": acks,
        "timeout": timeout,
        "topic_data": [{"name": name, "partition_data": found} for name, found in topics.items()],
    }
    answer = client.ask(ApiKey.PRODUCE, 9, body)
    return {(topic.name, one.index): one for topic in answer.responses for one in topic.partition_responses}


def test_errors_of_a_partition_stay_with_it(open_listener: Listening) -> None:
    before = len(open_listener.stored("orders")[0])
    good, bad = _batch([b"good"]), bytearray(_batch([b"bad"]))
    bad[-3] ^= 1
    with WireClient(open_listener.address) as client:
        answers = _produce(
            client,
            {
                ("orders", 0): good,
                ("orders", 1): bytes(bad),
                ("orders", 3): good,
                ("orders", 2): None,
                ("nothing", 0): good,
                ("clicks", 0): _batch([b"x" * 2_000_000]),
            },
        )
    codes = {place: one.error_code for place, one in answers.items()}
    assert codes == {
        ("orders", 0): ErrorCode.none,
        ("orders", 1): ErrorCode.corrupt_message,
        ("orders", 3): ErrorCode.unknown_topic_or_partition,
        ("orders", 2): ErrorCode.invalid_record,
        ("nothing", 0): ErrorCode.unknown_topic_or_partition,
        ("clicks", 0): ErrorCode.message_too_large,
    }
    assert answers["orders", 0].base_offset == before
    # Bufstream answered 0, which is an offset.
    assert {one.base_offset for place, one in answers.items() if codes[place] is not ErrorCode.none} == {-1}


def test_a_partition_twice_in_a_request_is_refused(open_listener: Listening) -> None:
    with WireClient(open_listener.address) as client:
        part = {"index": 0, "records": _batch([b"twice"])}
        body = {
            "acks": -1,
            "timeout": 20_000,
            "topic_data": [{"name": "clicks", "partition_data": [part, part]}],
        }
        answer = client.ask(ApiKey.PRODUCE, 9, body)
    assert {one.error_code for one in answer.responses[0].partition_responses} == {ErrorCode.invalid_request}


@pytest.mark.parametrize("version", range(3, 12))
def test_every_version(open_listener: Listening, version: int) -> None:
    before = len(open_listener.stored("clicks")[0])
    body = {
        "acks": 1,
        "timeout": 20_000,
        "topic_data": [
            {"name": "clicks", "partition_data": [{"index": 0, "records": _batch([b"v%d" % version])}]}
        ],
    }
    with WireClient(open_listener.address) as client:
        answer = client.ask(ApiKey.PRODUCE, version, body)
    (part,) = answer.responses[0].partition_responses
    assert (part.error_code, part.base_offset) == (ErrorCode.none, before)


@pytest.mark.parametrize("acks", [2, -2])
def test_other_acks_are_refused(open_listener: Listening, acks: int) -> None:
    with WireClient(open_listener.address) as client:
        answers = _produce(client, {("clicks", 0): _batch([b"x"])}, acks=acks)
    assert answers["clicks", 0].error_code is ErrorCode.invalid_required_acks


def test_an_idempotent_batch_is_stored_once(open_listener: Listening) -> None:
    writer = open_listener.writer
    producer, epoch = writer.sequencer.open_producer("", 60_000_000)
    place = ("orders", 0)
    with WireClient(open_listener.address) as client:

        def send(values: Sequence[bytes], sequence: int, epoch: int = epoch) -> tuple[ErrorCode, int]:
            answer = _produce(client, {place: _batch(values, producer=(producer, epoch, sequence))})[place]
            return answer.error_code, answer.base_offset

        # The first batch of a producer must have the number 0 (KAFKA-15591).
        assert send([b"late"], 3) == (ErrorCode.not_enough_replicas, -1)
        code, first = send([b"a", b"b"], 0)
        assert code is ErrorCode.none
        assert send([b"c"], 2) == (ErrorCode.none, first + 2)
        assert send([b"a", b"b"], 0) == (ErrorCode.none, first)
        assert send([b"c"], 2) == (ErrorCode.none, first + 2)
        # The batch before it may be on its way to another daemon, but not for ever.
        for _ in range(AHEAD_ANSWERS):
            assert send([b"e"], 4) == (ErrorCode.not_enough_replicas, -1)
        assert send([b"e"], 4) == (ErrorCode.out_of_order_sequence_number, -1)
        assert send([b"d"], 3) == (ErrorCode.none, first + 3)
    values = [one.value for one in open_listener.stored("orders")[0][first:]]
    assert values == [b"a", b"b", b"c", b"d"]


def test_a_first_batch_that_wraps_is_refused_as_a_whole(open_listener: Listening) -> None:
    before = len(open_listener.stored("orders")[0])
    producer, epoch = open_listener.writer.sequencer.open_producer("", 60_000_000)
    batch = _batch([b"%d" % number for number in range(10)], producer=(producer, epoch, 2**31 - 5))
    with WireClient(open_listener.address) as client:
        for _ in range(2):
            answer = _produce(client, {("orders", 0): batch})["orders", 0]
            assert answer.error_code is ErrorCode.out_of_order_sequence_number
    assert len(open_listener.stored("orders")[0]) == before


def test_an_unknown_producer(open_listener: Listening) -> None:
    with WireClient(open_listener.address) as client:
        answers = _produce(client, {("clicks", 0): _batch([b"x"], producer=(10**9, 0, 0))})
    assert answers["clicks", 0].error_code is ErrorCode.unknown_producer_id
    # Java repeats a batch for ever if it does not learn where the log starts.
    assert answers["clicks", 0].log_start_offset == 0


def _new_id(client: WireClient) -> int:
    asked = {"transactional_id": None, "transaction_timeout": 0}
    found = client.ask(ApiKey.INIT_PRODUCER_ID, 1, asked).producer_id
    assert isinstance(found, int)
    return found


def test_producer_ids_without_a_batch_leave_nothing_in_the_log(open_listener: Listening) -> None:
    sequencer, asked = open_listener.writer.sequencer, {"transactional_id": None, "transaction_timeout": 0}
    with WireClient(open_listener.address) as client, WireClient(open_listener.address) as other:
        first = client.ask(ApiKey.INIT_PRODUCER_ID, 1, asked)
        known, entries = len(sequencer.refresh().producers), sequencer.fold.next_index
        ids = [one.ask(ApiKey.INIT_PRODUCER_ID, 1, asked) for _ in range(200) for one in (client, other)]
        found = {one.producer_id for one in (first, *ids)}
        assert len(found) == 401
        assert {one.producer_epoch for one in ids} == {0}
        assert len(sequencer.refresh().producers) == known
        assert sequencer.fold.next_index == entries
        for number, producer_id in enumerate((min(found), max(found)), 1):
            for sequence in (0, 1):
                batch = _batch([b"x"], producer=(producer_id, 0, sequence))
                assert _produce(client, {("orders", 1): batch})["orders", 1].error_code is ErrorCode.none
            assert len(sequencer.fold.producers) == known + number


def test_a_batch_that_overtakes_the_first_one_of_a_new_producer(open_listener: Listening) -> None:
    """After `UNKNOWN_PRODUCER_ID` its client would send both under the next epoch, and store one twice."""
    sequencer = open_listener.writer.sequencer
    with WireClient(open_listener.address) as client:

        def send(sequence: int, epoch: int = 0) -> ErrorCode:
            batch = _batch([b"x"], producer=(producer_id, epoch, sequence))
            return ErrorCode(_produce(client, {("clicks", 0): batch})["clicks", 0].error_code)

        producer_id = _new_id(client)
        assert send(1) is ErrorCode.not_enough_replicas
        assert send(0) is ErrorCode.none
        assert send(1) is ErrorCode.none
        # As after `intake.producer_idle_max`: the client is to raise its epoch at once.
        later_us = SystemClock().now_us() + 1
        assert sequencer.forget_producers(later_us, 1000, later_us) > 0
        assert send(2) is ErrorCode.unknown_producer_id
        assert send(0, epoch=1) is ErrorCode.none
        # Later ids must have an opener that is known.
        producer_id = _new_id(client)
        for _ in range(AHEAD_ANSWERS):
            assert send(1) is ErrorCode.not_enough_replicas
        assert send(1) is ErrorCode.unknown_producer_id


def test_a_new_producer_waits_while_the_log_knows_too_many(
    open_listener: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_listener.writer
    with WireClient(open_listener.address) as client:

        def send(producer_id: int, sequence: int) -> ErrorCode:
            batch = _batch([b"x"], producer=(producer_id, 0, sequence))
            return ErrorCode(_produce(client, {("clicks", 0): batch})["clicks", 0].error_code)

        known, new = _new_id(client), _new_id(client)
        assert send(known, 0) is ErrorCode.none
        few = writer.settings.model_copy(update={"producers_max": len(writer.sequencer.fold.producers) // 2})
        monkeypatch.setattr(writer, "_settings", few)
        assert send(new, 0) is ErrorCode.not_enough_replicas
        assert send(known, 1) is ErrorCode.none
        plain = _produce(client, {("clicks", 0): _batch([b"x"])})
        assert plain["clicks", 0].error_code is ErrorCode.none
        monkeypatch.undo()
        assert send(new, 0) is ErrorCode.none


def test_ids_of_an_old_entry_are_not_assigned(open_listener: Listening) -> None:
    writer = open_listener.writer

    async def two_ids(threads: ThreadPoolExecutor) -> tuple[int, int]:
        assigned = ProducerIds(threads, clock, 60.0)
        one = await assigned._next(writer)
        clock.advance(61.0)
        return one, await assigned._next(writer)

    clock = ManualClock(SystemClock().now_us())
    entries = writer.sequencer.refresh().next_index
    with ThreadPoolExecutor(1) as threads:
        one, other = asyncio.run(two_ids(threads))
    assert abs(one - other) > 1
    assert writer.sequencer.refresh().next_index == entries + 2


def test_clients_that_ask_for_a_producer_id_and_leave_append_one_entry(
    open_listener: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_listener.writer
    sequencer, assign = writer.sequencer, writer.sequencer.assign_producer_ids
    begun, finish = threading.Semaphore(0), threading.Event()

    def slowly() -> range:
        begun.release()
        assert finish.wait(30)
        return assign()

    async def ask(threads: ThreadPoolExecutor) -> int:
        assigned = ProducerIds(threads, SystemClock(), 3600.0)
        for _ in range(3):
            leaving = asyncio.create_task(assigned._next(writer))
            # The second one waits for the same ids.
            await asyncio.to_thread(begun.acquire, timeout=0.1)
            leaving.cancel()
            await asyncio.wait((leaving,))
        staying = asyncio.create_task(assigned._next(writer))
        await asyncio.sleep(0)
        finish.set()
        return await staying

    monkeypatch.setattr(sequencer, "assign_producer_ids", slowly)
    entries = sequencer.refresh().next_index
    with ThreadPoolExecutor(4) as threads:
        assert asyncio.run(ask(threads)) > 0
    assert sequencer.refresh().next_index == entries + 1


def test_batches_of_a_connection_keep_their_order(open_listener: Listening) -> None:
    producer, epoch = open_listener.writer.sequencer.open_producer("", 60_000_000)
    before = len(open_listener.stored("clicks")[0])
    with WireClient(open_listener.address) as client:
        for number in range(50):
            records = _batch([b"%d" % number], producer=(producer, epoch, number))
            data = {"name": "clicks", "partition_data": [{"index": 0, "records": records}]}
            client.send(ApiKey.PRODUCE, 9, {"acks": -1, "timeout": 20_000, "topic_data": [data]})
        for _ in range(50):
            client.receive()
    stored = open_listener.stored("clicks")[0][before:]
    assert [one.value for one in stored] == [b"%d" % number for number in range(50)]
    # Each request is a batch of its own, also where several share a segment.
    assert [one.batch_start for one in stored] == [one.offset for one in stored]


def test_a_record_without_a_time_gets_its_accept_time(open_listener: Listening) -> None:
    with WireClient(open_listener.address) as client:
        answers = _produce(client, {("orders", 0): _batch([b"x"], time_ms=-1)})
    offset = answers["orders", 0].base_offset
    (record,) = open_listener.stored("orders")[0][offset:]
    assert record.timestamp_us == record.ingest_us
    # Consumers get it as well, while the record is in intake.
    with closing(Consumer({"bootstrap.servers": open_listener.bootstrap, "group.id": "times"})) as consumer:
        consumer.assign([TopicPartition("orders", 0, offset)])
        (message,) = consumer.consume(1, 20)
    assert message.timestamp()[1] * 1000 == record.timestamp_us // 1000 * 1000


def test_a_request_that_takes_too_long_is_answered_as_unknown(tmp_path: Path) -> None:
    path = configured(tmp_path, TOPICS, intake={"delay_max": "5s"})
    with listening(path) as found, WireClient(found.address) as client:
        # Long enough that the batch is queued in the writer first.
        answers = _produce(client, {("clicks", 0): _batch([b"x"])}, timeout=1000)
        assert answers["clicks", 0].error_code is ErrorCode.request_timed_out
        found.writer.flush()
        # Unknown is not failed: the record was stored.
        assert [one.value for one in found.stored("clicks")[0]] == [b"x"]


def test_a_full_queue_delays_the_answer(tmp_path: Path) -> None:
    path = configured(
        tmp_path,
        TOPICS,
        intake={"queue_bytes_max": 100_000, "delay_max_bytes": 50_000, "record_bytes_max": 50_000},
    )
    with listening(path) as found, WireClient(found.address) as client:
        for number in range(40):
            data = {
                "name": "clicks",
                "partition_data": [{"index": 0, "records": _batch([b"%d" % number * 20_000])}],
            }
            client.send(ApiKey.PRODUCE, 9, {"acks": -1, "timeout": 20_000, "topic_data": [data]})
        for _ in range(40):
            client.receive()
        assert found.writer.metrics().producer_waits > 0
        assert [one.value for one in found.stored("clicks")[0]] == [
            b"%d" % number * 20_000 for number in range(40)
        ]


def test_a_closed_intake_sends_clients_elsewhere(tmp_path: Path) -> None:
    with listening(configured(tmp_path, TOPICS)) as found, WireClient(found.address) as client:
        found.service.close_intake()
        answers = _produce(client, {("clicks", 0): _batch([b"x"])})
        assert answers["clicks", 0].error_code is ErrorCode.not_leader_or_follower
        assert found.stored("clicks")[0] == []


def test_records_in_work_at_a_stop_are_answered(tmp_path: Path) -> None:
    path = configured(tmp_path, TOPICS, intake={"delay_max": "60s"})
    answers: list[Any] = []
    with listening(path) as found:
        client = WireClient(found.address)
        sending = threading.Thread(
            target=lambda: answers.append(_produce(client, {("clicks", 0): _batch([b"x"])}))
        )
        sending.start()
        while found.writer.metrics().records_accepted == 0:
            sending.join(0.01)
    sending.join(20)
    client.socket.close()
    assert answers[0]["clicks", 0].error_code is ErrorCode.none


def test_a_store_that_fails_is_an_unknown_outcome_for_idempotent_producers(
    open_listener: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    from intake.write import flush

    def away(*_: object) -> None:
        raise RetryLater("the store is away")

    producer, epoch = open_listener.writer.sequencer.open_producer("", 60_000_000)
    place = ("orders", 0)
    with WireClient(open_listener.address) as client:
        with monkeypatch.context() as patched:
            patched.setattr(flush, "create_once", away)
            plain = _produce(client, {place: _batch([b"plain"])})[place]
            numbered = _produce(client, {place: _batch([b"numbered"], producer=(producer, epoch, 0))})[place]
        assert plain.error_code is ErrorCode.not_enough_replicas
        assert numbered.error_code is ErrorCode.request_timed_out
        again = _produce(client, {place: _batch([b"numbered"], producer=(producer, epoch, 0))})[place]
    assert again.error_code is ErrorCode.none
    values = [one.value for one in open_listener.stored("orders")[0]]
    assert values.count(b"numbered") == 1
    assert b"plain" not in values


def test_a_request_whose_time_ends_in_the_queue_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, free = threading.Event(), threading.Event()
    with listening(configured(tmp_path, TOPICS)) as found:
        send = found.writer.send_encoded

        def held(*arguments: Any) -> Any:
            begun.set()
            assert free.wait(60)
            return send(*arguments)

        monkeypatch.setattr(found.writer, "send_encoded", held)
        answers: list[Any] = []
        with WireClient(found.address) as first, WireClient(found.address) as second:
            sending = threading.Thread(
                target=lambda: answers.append(_produce(first, {("clicks", 0): _batch([b"first"])}))
            )
            sending.start()
            assert begun.wait(30)
            late = _produce(second, {("clicks", 0): _batch([b"late"])}, timeout=50)
            free.set()
            sending.join()
            # A retry of the client: it alone is stored.
            again = _produce(second, {("clicks", 0): _batch([b"again"])})
        codes = [one["clicks", 0].error_code for one in (answers[0], late, again)]
        assert codes == [ErrorCode.none, ErrorCode.not_enough_replicas, ErrorCode.none]
        assert [one.value for one in found.stored("clicks")[0]] == [b"first", b"again"]


def test_a_request_whose_time_ends_while_it_waits_for_others_is_not_stored(tmp_path: Path) -> None:
    path = configured(tmp_path, TOPICS, intake={"delay_max": "1s"})
    with listening(path) as found, WireClient(found.address) as client:
        late = _produce(client, {("clicks", 0): _batch([b"late"])}, timeout=1)
        # Until the thread that checks batches has found nothing. It goes on.
        time.sleep(2 * GATHER_MAX_S)
        again = _produce(client, {("clicks", 0): _batch([b"again"])})
        assert [one["clicks", 0].error_code for one in (late, again)] == [
            ErrorCode.not_enough_replicas,
            ErrorCode.none,
        ]
        assert [one.value for one in found.stored("clicks")[0]] == [b"again"]

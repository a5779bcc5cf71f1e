"""Topics with `message.timestamp.type=LogAppendTime`: producers and consumers get the same time and type, from
intake, archives and merged archives.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from archiver.app.application import Application
from archiver.config.settings import load_settings
from archiver.kafka.protocol import ApiKey
from archiver.kafka.service import KafkaService
from intake.log.state import APPEND_TIME_CHANGES_MAX
from intake.producers import Stamp
from intake.records import Record
from intake.write.encode import record_columns
from intake.write.queue import ReceivedBatch
from intake.write.writer import IntakeWriter
from tests.integration.test_kafka_produce import _batch, _produce
from tests.support.builders.compacting import (
    DAY_S,
    archives_of_table,
    at_noon,
    compact,
    compacted,
    rows_of_table,
)
from tests.support.builders.driver import WAIT_S, Driver
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.kafka.wire import WireClient
from tests.support.schema.orders import order

pytestmark = pytest.mark.timeout(240)

TYPE = "message.timestamp.type"
CREATED_MS = 1_700_000_000_000
"""What producers state."""
TOPICS = [
    {"name": "orders", "partitions": 2},
    {"pattern": "shop.*", "partitions": 1},
]

Seen = tuple[int, int, int]
"""Offset, type and time in milliseconds."""


def set_type(bootstrap: str, topic: str, value: str) -> None:
    entry = ConfigEntry(TYPE, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    (done,) = admin.incremental_alter_configs([resource]).values()
    done.result(20)


def produced(bootstrap: str, topic: str, values: list[bytes], **options: Any) -> list[Seen]:
    """What delivery reports say of records of several batches."""
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 3, "linger.ms": 5, **options})
    reported: list[Seen] = []

    def delivered(error: Any, message: Any) -> None:
        assert error is None, error
        reported.append((message.offset(), *message.timestamp()))

    for number, value in enumerate(values):
        producer.produce(topic, value, partition=0, timestamp=CREATED_MS + number, on_delivery=delivered)
    assert producer.flush(30) == 0
    assert len(reported) == len(values)
    return reported


def consumed(bootstrap: str, topic: str, count: int, start: int = 0) -> list[Seen]:
    """What a consumer gets."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, 0, start)])
    got: list[Seen] = []
    try:
        while len(got) < count:
            message = consumer.poll(20)
            assert message is not None, f"nothing after {len(got)} records"
            assert message.error() is None, message.error()
            offset = message.offset()
            assert offset is not None
            got.append((offset, *message.timestamp()))
        return got
    finally:
        consumer.close()


def offset_at(bootstrap: str, topic: str, time_ms: int) -> int:
    """What ListOffsets answers to a consumer."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, time_ms)], timeout=20)
        return found.offset
    finally:
        consumer.close()


def check_offsets(bootstrap: str, topic: str, seen: list[Seen]) -> None:
    """ListOffsets by time and of the newest time agree with what consumers see."""
    for _, _, time_ms in seen:
        for asked in (time_ms, time_ms + 1):
            later = [offset for offset, _, one in seen if one >= asked]
            assert offset_at(bootstrap, topic, asked) == (later[0] if later else -1)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    newest_time: Any = OffsetSpec
    (newest,) = admin.list_offsets({TopicPartition(topic, 0): newest_time.max_timestamp()}).values()
    found = newest.result(20)
    assert found.timestamp == max(one for _, _, one in seen)
    assert (found.offset, found.timestamp) in [(offset, one) for offset, _, one in seen]


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listening]:
    with listening(configured(tmp_path, TOPICS)) as found:
        yield found


@pytest.mark.parametrize("idempotent", [False, True])
def test_each_record_keeps_its_type_when_the_config_changes(tmp_path: Path, idempotent: bool) -> None:
    path, options = configured(tmp_path, TOPICS), {"enable.idempotence": idempotent}
    values = [b"%d" % number for number in range(8)]
    with listening(path) as found:
        at = found.bootstrap
        created = produced(at, "orders", values, **options)
        assert {(kind, time) for _, kind, time in created} == {
            (TIMESTAMP_CREATE_TIME, CREATED_MS + number) for number in range(8)
        }
        set_type(at, "orders", "LogAppendTime")
        appended = produced(at, "orders", values, **options)
        assert {kind for _, kind, _ in appended} == {TIMESTAMP_LOG_APPEND_TIME}
        assert min(time for _, _, time in appended) > CREATED_MS + 10**9
        # Records of every producer get it, not only those of Kafka clients.
        found.writer.send("orders", Record(None, b"x", (), CREATED_MS * 1000), 0).result(WAIT_S)
        set_type(at, "orders", "CreateTime")
        later = produced(at, "orders", values, **options)
        seen = consumed(at, "orders", 25)
        assert sorted(created) == seen[:8]
        assert sorted(appended) == seen[8:16]
        assert seen[16][1] == TIMESTAMP_LOG_APPEND_TIME
        assert seen[16][2] > CREATED_MS + 10**9
        assert sorted(later) == seen[17:]
        assert consumed(at, "orders", 5, start=13) == seen[13:18]
        check_offsets(at, "orders", seen[8:17])
    # Another process has the types from the log.
    with listening(path) as again:
        assert consumed(again.bootstrap, "orders", 25) == seen
        stored = again.stored("orders")[0]
        assert [(one.timestamp_us or 0) // 1000 for one in stored] == [time for _, _, time in seen]
        assert all(one.timestamp_us == one.ingest_us for one in stored[8:17])


def test_a_topic_can_be_created_with_it(listener: Listening) -> None:
    admin = AdminClient({"bootstrap.servers": listener.bootstrap})
    topic = NewTopic("shop.a", num_partitions=1, config={TYPE: "LogAppendTime"})
    (made,) = admin.create_topics([topic]).values()
    made.result(20)
    (found,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, "shop.a")]).values()
    assert found.result(20)[TYPE].value == "LogAppendTime"
    reported = produced(listener.bootstrap, "shop.a", [b"1", b"2"])
    assert {kind for _, kind, _ in reported} == {TIMESTAMP_LOG_APPEND_TIME}
    assert consumed(listener.bootstrap, "shop.a", 2) == sorted(reported)


def test_a_repeated_batch_is_answered_with_the_time_of_the_original(listener: Listening) -> None:
    set_type(listener.bootstrap, "orders", "LogAppendTime")
    with WireClient(listener.address) as client:
        opened = client.ask(ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None, "transaction_timeout": 0})
        batches = [
            _batch([b"a", b"b"], producer=(opened.producer_id, 0, 0)),
            _batch([b"c"], producer=(opened.producer_id, 0, 2)),
            _batch([b"d"]),
        ]
        first = [_produce(client, {("orders", 0): one})["orders", 0] for one in batches]
        set_type(listener.bootstrap, "orders", "CreateTime")
        again = [_produce(client, {("orders", 0): one})["orders", 0] for one in batches[:2]]
        plain = _produce(client, {("orders", 0): _batch([b"e"], producer=(opened.producer_id, 0, 3))})
    assert [one.error_code for one in (*first, *again)] == [0] * 5
    stored = [(one.timestamp_us or 0) // 1000 for one in listener.stored("orders")[0]]
    answers = [round(one.log_append_time.timestamp() * 1000) for one in first]
    assert answers == [stored[0], stored[2], stored[3]]
    assert [(one.base_offset, one.log_append_time) for one in again] == [
        (one.base_offset, one.log_append_time) for one in first[:2]
    ]
    assert plain["orders", 0].log_append_time is None


def test_batches_of_one_flush_have_their_own_times(tmp_path: Path) -> None:
    """A producer sends them ahead, and may repeat each of them alone."""
    path = configured(tmp_path, TOPICS, intake={"delay_max": "1m"})
    with listening(path) as found:
        topic = found.application.intake.configure_topic(
            found.application.topic("orders"), lambda _: {TYPE: "LogAppendTime"}
        )
        producer, epoch = found.writer.sequencer.open_producer("", 1)

        def sent(numbers: list[int]) -> list[int]:
            pending = []
            for number in numbers:
                batch = ReceivedBatch(topic, 0, rows(number), Stamp(producer, epoch, 2 * number))
                pending.append(found.writer.send_received(batch, lambda: None))
            found.writer.flush()
            return [one.append_us() for one in pending]

        times = sent([0, 1, 2, 3])
        assert len(set(times)) == 4
        stored = found.stored("orders")[0]
        assert [one.timestamp_us for one in stored] == [time for time in times for _ in range(2)]
        assert [sent([number]) for number in (0, 3, 1)] == [[times[0]], [times[3]], [times[1]]]
        # Now a flush joins them.
        topic = found.application.intake.configure_topic(topic, lambda _: {TYPE: "CreateTime"})
        assert sent([0, 1, 2, 3]) == times
        assert len(found.stored("orders")[0]) == 8


def rows(number: int) -> pa.RecordBatch:
    """Two records of a client."""
    return record_columns([Record(None, b"%d" % number, (), CREATED_MS * 1000)] * 2)


def _given(configs: dict[str, str], before: Mapping[str, str]) -> dict[str, str]:
    return {**before, **configs}


def test_it_cannot_be_changed_without_end(listener: Listening) -> None:
    """Each change that has records takes room in every checkpoint."""
    intake = listener.application.intake
    for number in range(APPEND_TIME_CHANGES_MAX):
        value = {TYPE: "CreateTime" if number % 2 else "LogAppendTime"}
        intake.configure_topic(listener.application.topic("orders"), partial(_given, value))
        listener.writer.send("orders", Record(None, b"x", (), CREATED_MS * 1000), 1).result(WAIT_S)
    with pytest.raises(KafkaException, match="create another topic") as raised:
        set_type(listener.bootstrap, "orders", "LogAppendTime")
    assert raised.value.args[0].code() == KafkaError.INVALID_CONFIG
    set_type(listener.bootstrap, "orders", "CreateTime")


def test_a_topic_can_leave_append_times_also_at_the_limit(listener: Listening) -> None:
    """Daemons learn of a change at different times, so that a change of the config can take several."""
    set_type(listener.bootstrap, "orders", "LogAppendTime")
    fold = listener.writer.sequencer.fold
    held = fold.partition((listener.application.topic("orders").topic_id, 1))
    held.append_time_changes[:] = [0] * (APPEND_TIME_CHANGES_MAX + 1)
    set_type(listener.bootstrap, "orders", "CreateTime")


@contextmanager
def served(driver: Driver, writer: IntakeWriter) -> Iterator[str]:
    """A listener over the driver's application; its address."""
    settings = driver.application.settings.kafka
    assert settings is not None
    service = KafkaService(settings, driver.application, writer, 1.0, settings.connections_max)
    try:
        service.start()
        yield "{}:{}".format(*(service.server.address or ()))
    finally:
        service.close_intake()
        service.stop(5)


def test_archives_keep_times_and_types(tmp_path: Path) -> None:
    deployment = compacted(tmp_path / "d")
    document = deployment.document()
    document["kafka"] = {"listen": "127.0.0.1:0"}
    deployment.write(document)
    with Driver(deployment) as driver:
        at_noon(driver)
        writer = driver.application.intake.writer()
        reported: list[Seen] = []
        with served(driver, writer) as at:
            for kind in ("CreateTime", "LogAppendTime", "LogAppendTime", "CreateTime"):
                set_type(at, "orders", kind)
                reported += sorted(produced(at, "orders", [order(number) for number in range(7)]))
                assert driver.archive().exit_code == 0
            assert {kind for _, kind, _ in reported[7:21]} == {TIMESTAMP_LOG_APPEND_TIME}
            assert len(archives_of_table(deployment)) == 4
            assert consumed(at, "orders", 28) == reported
            check_offsets(at, "orders", reported[7:21])
        driver.clock.ahead_s += DAY_S
        assert compact(driver).archives == 4
        assert len(archives_of_table(deployment)) == 1
        # As at the end of the deletion delay.
        for path in [
            *deployment.data.glob("archive/*/data/**/*.parquet"),
            *deployment.data.glob("intake/**/*"),
        ]:
            if path.is_file() and not path.name.startswith(f"{0:020d}-{28:020d}-"):
                path.unlink()
        with served(driver, writer) as at:
            assert consumed(at, "orders", 28) == reported
            check_offsets(at, "orders", reported[7:21])
        writer.close()
        times = [row["kafka"]["event_timestamp"].timestamp() for row in rows_of_table(deployment)]
        assert [int(time * 1000) for time in times] == [time for _, _, time in reported]
    # Without what the first process knows.
    with Driver(deployment) as driver, served(driver, driver.application.intake.writer()) as at:
        assert consumed(at, "orders", 28) == reported


def test_a_mirrored_topic_refuses_it(tmp_path: Path) -> None:
    application = Application(load_settings(configured(tmp_path, TOPICS), {}), {})
    try:
        application.intake.writer().close()
        application.sequencer.declare_topic("mirror", 1, mirrored=True)
        with pytest.raises(Exception, match="the times of its source"):
            application.intake.configure_topic(application.topic("mirror"), lambda _: {TYPE: "LogAppendTime"})
    finally:
        application.close()

"""Kafka clients behind one set of operations, so that every check is written once.

The Python clients run in this process. Those of Java and Go are programs that answer one line of JSON for each
operation.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ has no __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import OffsetAndMetadata as PureOffset
from kafka import TopicPartition as PurePartition
from kafka.admin import ConfigResource as PureConfigResource
from kafka.admin import ConfigResourceType as PureConfigResourceType
from kafka.admin import NewTopic as PureNewTopic

from archiver.spark.java import require_java
from tests.support.kafka import kafka_server
from tests.support.servers.maven import ROOT, compiled, jars

T = TypeVar("T")

PATIENCE_S: Final = 8.0
"""Most seconds that one operation waits for the listener."""
FOLDER: Final = Path(__file__).parent
JAVA_RELEASE: Final = kafka_server.PACKAGES[0].rsplit(":", 1)[1]
PACKAGES: Final = tuple(f"org.apache.kafka:{name}:{JAVA_RELEASE}" for name in ("kafka-tools", "kafka_2.13"))


class Sent(NamedTuple):
    """One record as a producer sends it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    time_ms: int = 1_700_000_000_000


class Got(NamedTuple):
    """One record as a consumer gets it."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    time_ms: int
    offset: int


class Producing(NamedTuple):
    """How records are produced."""

    codec: str = "none"
    idempotent: bool = False
    transactional_id: str = ""
    commit: bool = True
    group: str = ""
    """The transaction commits an offset of this group as well."""
    source: str = ""
    """The topic of that offset, which is in partition 0."""
    source_offset: int = 0


PLAINLY: Final = Producing()
BY_SERVER: Final = "read in a group with `group.protocol=consumer`"
"""A feature that some clients lack."""


class Client:
    """Operations of one client on one listener. Each raises if the client reports an error."""

    name: str
    release: str
    lacks: ClassVar[Mapping[str, str]] = {}
    """Features that the client itself does not offer, with the reason."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def partitions(self, topic: str) -> int:
        """The number of partitions in Metadata."""
        raise NotImplementedError

    def produce(
        self, topic: str, partition: int, records: Sequence[Sent], how: Producing = PLAINLY
    ) -> list[int]:
        """Send records in order; their offsets."""
        raise NotImplementedError

    def fetch(
        self, topic: str, partition: int, start: int, count: int, *, read_committed: bool = False
    ) -> list[Got]:
        """The records from an offset on."""
        raise NotImplementedError

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """First offset and end."""
        raise NotImplementedError

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int:
        """The first offset of a record that is not older."""
        raise NotImplementedError

    def group(self, topic: str, group: str, count: int, *, by_server: bool = False) -> int:
        """Read as a member of a group, commit, and give the committed offset of partition 0.

        `by_server`: the daemon assigns the partitions (`group.protocol=consumer`)."""
        raise NotImplementedError

    def create_topic(self, topic: str, partitions: int) -> None:
        """Create a topic."""
        raise NotImplementedError

    def add_partitions(self, topic: str, partitions: int) -> None:
        """Raise the number of partitions to this total."""
        raise NotImplementedError

    def delete_topic(self, topic: str) -> None:
        """Delete a topic."""
        raise NotImplementedError

    def config(self, topic: str) -> Mapping[str, str | None]:
        """The configs of a topic."""
        raise NotImplementedError

    def set_config(self, topic: str, key: str, value: str) -> None:
        """Set one config of a topic, and no other."""
        raise NotImplementedError

    def close(self) -> None:
        """End what the client runs."""


class Librdkafka(Client):
    """librdkafka, through confluent-kafka."""

    name = "librdkafka"
    release = f"confluent-kafka {version('confluent-kafka')}"

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._admin = AdminClient(self._options())
        self._reported = ""

    def _options(self, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": self.bootstrap, "log_level": 0, "error_cb": self._report} | more

    def _report(self, error: Any) -> None:
        self._reported = str(error)

    def _consumer(self, **more: Any) -> Consumer:
        options = {"group.id": "unused", "enable.auto.commit": False, "check.crcs": True} | more
        return Consumer(self._options(**options))

    def partitions(self, topic: str) -> int:
        found = self._admin.list_topics(topic, PATIENCE_S).topics[topic]
        if found.error is not None:
            raise RuntimeError(str(found.error))
        return len(found.partitions)

    def produce(
        self, topic: str, partition: int, records: Sequence[Sent], how: Producing = PLAINLY
    ) -> list[int]:
        options: dict[str, Any] = {
            "compression.type": how.codec,
            "enable.idempotence": how.idempotent or bool(how.transactional_id),
            "linger.ms": 5,
            "message.timeout.ms": round(PATIENCE_S * 1000),
        }
        if how.transactional_id:
            options |= {"transactional.id": how.transactional_id, "transaction.timeout.ms": 10_000}
        producer = Producer(self._options(**options))
        if how.transactional_id:
            producer.init_transactions(PATIENCE_S)
            producer.begin_transaction()
        offsets: list[int] = []
        failures: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            (failures if error is not None else offsets).append(
                error if error is not None else message.offset()
            )

        for key, value, headers, time_ms in records:
            producer.produce(
                topic, value, key, partition, on_delivery=delivered, timestamp=time_ms, headers=list(headers)
            )
        producer.flush(PATIENCE_S)
        if how.group:
            metadata = self._consumer(**{"group.id": how.group}).consumer_group_metadata()
            offset = TopicPartition(how.source, 0, how.source_offset)
            producer.send_offsets_to_transaction([offset], metadata, PATIENCE_S)
        if how.transactional_id:
            end = producer.commit_transaction if how.commit else producer.abort_transaction
            end(PATIENCE_S)
        if failures:
            raise RuntimeError(str(failures[0]))
        return offsets

    def fetch(
        self, topic: str, partition: int, start: int, count: int, *, read_committed: bool = False
    ) -> list[Got]:
        level = "read_committed" if read_committed else "read_uncommitted"
        consumer = self._consumer(**{"auto.offset.reset": "error", "isolation.level": level})
        consumer.assign([TopicPartition(topic, partition, start)])
        try:
            return self._poll(consumer, count)
        finally:
            consumer.close()

    def _poll(self, consumer: Consumer, count: int) -> list[Got]:
        got: list[Got] = []
        until_s = time.monotonic() + PATIENCE_S
        while len(got) < count:
            message = consumer.poll(max(0.0, until_s - time.monotonic()))
            if message is None:
                raise RuntimeError(self._reported or f"{len(got)} of {count} records in time")
            if (error := message.error()) is not None:
                raise RuntimeError(str(error))
            headers: Any = message.headers() or ()
            offset = message.offset()
            assert offset is not None
            got.append(Got(message.key(), message.value(), tuple(headers), message.timestamp()[1], offset))
        return got

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            found = consumer.get_watermark_offsets(TopicPartition(topic, partition), PATIENCE_S, cached=False)
            return int(found[0]), int(found[1])
        finally:
            consumer.close()

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int:
        consumer = self._consumer()
        try:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, partition, time_ms)], PATIENCE_S)
            if found.error is not None:
                raise RuntimeError(str(found.error))
            return int(found.offset)
        finally:
            consumer.close()

    def group(self, topic: str, group: str, count: int, *, by_server: bool = False) -> int:
        protocol = "consumer" if by_server else "classic"
        options = {"group.id": group, "auto.offset.reset": "earliest", "group.protocol": protocol}
        consumer = self._consumer(**options)
        consumer.subscribe([topic])
        try:
            self._poll(consumer, count)
            consumer.commit(asynchronous=False)
            (found,) = consumer.committed([TopicPartition(topic, 0)], PATIENCE_S)
            return int(found.offset)
        finally:
            consumer.close()

    @staticmethod
    def _done(futures: Mapping[Any, Future[Any]]) -> Any:
        (one,) = futures.values()
        return one.result(PATIENCE_S)

    def create_topic(self, topic: str, partitions: int) -> None:
        self._done(self._admin.create_topics([NewTopic(topic, partitions)], request_timeout=PATIENCE_S))

    def add_partitions(self, topic: str, partitions: int) -> None:
        self._done(
            self._admin.create_partitions([NewPartitions(topic, partitions)], request_timeout=PATIENCE_S)
        )

    def delete_topic(self, topic: str) -> None:
        self._done(self._admin.delete_topics([topic], request_timeout=PATIENCE_S))

    def config(self, topic: str) -> Mapping[str, str | None]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        found = self._done(self._admin.describe_configs([resource], request_timeout=PATIENCE_S))
        return {name: entry.value for name, entry in found.items()}

    def set_config(self, topic: str, key: str, value: str) -> None:
        entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        self._done(self._admin.incremental_alter_configs([resource], request_timeout=PATIENCE_S))


class Aiokafka(Client):
    """aiokafka: an event loop for each operation."""

    name = "aiokafka"
    release = version("aiokafka")
    lacks: ClassVar = {
        "change one config of a topic": "has no incremental change of configs",
        BY_SERVER: "has no `group.protocol=consumer`",
    }

    @staticmethod
    def _run(work: Coroutine[Any, Any, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(PATIENCE_S):
                return await work

        return asyncio.run(bounded())

    def partitions(self, topic: str) -> int:
        async def work() -> int:
            consumer = AIOKafkaConsumer(topic, bootstrap_servers=self.bootstrap)
            await consumer.start()
            try:
                return len(consumer.partitions_for_topic(topic) or ())
            finally:
                await consumer.stop()

        return self._run(work())

    def produce(
        self, topic: str, partition: int, records: Sequence[Sent], how: Producing = PLAINLY
    ) -> list[int]:
        async def work() -> list[int]:
            producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap,
                compression_type=None if how.codec == "none" else how.codec,
                enable_idempotence=how.idempotent or bool(how.transactional_id),
                transactional_id=how.transactional_id or None,
                linger_ms=5,
            )
            try:
                await producer.start()
                if how.transactional_id:
                    await producer.begin_transaction()
                sent = [
                    await producer.send(
                        topic, value, key, partition=partition, timestamp_ms=time_ms, headers=list(headers)
                    )
                    for key, value, headers, time_ms in records
                ]
                offsets = [(await one).offset for one in sent]
                if how.group:
                    place = AioPartition(how.source, 0)
                    await producer.send_offsets_to_transaction({place: how.source_offset}, how.group)
                if how.transactional_id:
                    await (producer.commit_transaction() if how.commit else producer.abort_transaction())
                return offsets
            finally:
                await producer.stop()

        return self._run(work())

    async def _collect(self, consumer: Any, count: int) -> list[Got]:
        got: list[Got] = []
        while len(got) < count:
            one = await consumer.getone()
            got.append(Got(one.key, one.value, tuple(one.headers), one.timestamp, one.offset))
        return got

    def fetch(
        self, topic: str, partition: int, start: int, count: int, *, read_committed: bool = False
    ) -> list[Got]:
        async def work() -> list[Got]:
            level = "read_committed" if read_committed else "read_uncommitted"
            consumer = AIOKafkaConsumer(
                bootstrap_servers=self.bootstrap, isolation_level=level, auto_offset_reset="none"
            )
            await consumer.start()
            try:
                consumer.assign([AioPartition(topic, partition)])
                consumer.seek(AioPartition(topic, partition), start)
                return await self._collect(consumer, count)
            finally:
                await consumer.stop()

        return self._run(work())

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        async def work() -> tuple[int, int]:
            consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap)
            await consumer.start()
            try:
                place = AioPartition(topic, partition)
                first, end = await consumer.beginning_offsets([place]), await consumer.end_offsets([place])
                return int(first[place]), int(end[place])
            finally:
                await consumer.stop()

        return self._run(work())

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int:
        async def work() -> int:
            consumer = AIOKafkaConsumer(bootstrap_servers=self.bootstrap)
            await consumer.start()
            try:
                found = await consumer.offsets_for_times({(place := AioPartition(topic, partition)): time_ms})
                return -1 if found[place] is None else int(found[place].offset)
            finally:
                await consumer.stop()

        return self._run(work())

    def group(self, topic: str, group: str, count: int, *, by_server: bool = False) -> int:
        assert not by_server

        async def work() -> int:
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=self.bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
            try:
                await consumer.start()
                await self._collect(consumer, count)
                await consumer.commit()
                return int(await consumer.committed(AioPartition(topic, 0)) or -1)
            finally:
                await consumer.stop()

        return self._run(work())

    def _administer(self, operation: str, *arguments: Any) -> Any:
        async def work() -> Any:
            admin = AIOKafkaAdminClient(
                bootstrap_servers=self.bootstrap, request_timeout_ms=round(PATIENCE_S * 500)
            )
            try:
                await admin.start()
                return await getattr(admin, operation)(*arguments)
            finally:
                await admin.close()

        return self._run(work())

    @staticmethod
    def _check(answer: Any) -> None:
        errors: Any = getattr(answer, "topic_errors", None) or getattr(answer, "topic_error_codes", ())
        for one in errors:
            if one[1] != 0:
                raise RuntimeError(f"error {one[1]}: {one[2] if len(one) > 2 else ''}")

    def create_topic(self, topic: str, partitions: int) -> None:
        self._check(self._administer("create_topics", [AioNewTopic(topic, partitions, 1)]))

    def add_partitions(self, topic: str, partitions: int) -> None:
        self._check(self._administer("create_partitions", {topic: AioNewPartitions(partitions)}))

    def delete_topic(self, topic: str) -> None:
        self._check(self._administer("delete_topics", [topic]))

    def config(self, topic: str) -> Mapping[str, str | None]:
        answers = self._administer(
            "describe_configs", [AioConfigResource(AioConfigResourceType.TOPIC, topic)]
        )
        found: dict[str, str | None] = {}
        for answer in answers:
            for resource in answer.resources:
                if resource[0] != 0:
                    raise RuntimeError(f"error {resource[0]}: {resource[1]}")
                found |= {entry[0]: entry[1] for entry in resource[4]}
        return found


class KafkaPython(Client):
    """kafka-python."""

    name = "kafka-python"
    release = version("kafka-python")
    lacks: ClassVar = {
        "produce with snappy": "needs python-snappy, which is not installed here",
        "produce a header without a value": "refuses a header whose value is null",
        BY_SERVER: "has no `group.protocol=consumer`",
    }

    def _consumer(self, **more: Any) -> KafkaConsumer:
        options = {"consumer_timeout_ms": round(PATIENCE_S * 1000), "enable_auto_commit": False} | more
        return KafkaConsumer(bootstrap_servers=self.bootstrap, **options)

    def partitions(self, topic: str) -> int:
        consumer = self._consumer()
        try:
            return len(consumer.partitions_for_topic(topic) or ())
        finally:
            consumer.close()

    def produce(
        self, topic: str, partition: int, records: Sequence[Sent], how: Producing = PLAINLY
    ) -> list[int]:
        more: dict[str, Any] = {}
        if how.transactional_id:
            more = {"transactional_id": how.transactional_id}
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap,
            compression_type=None if how.codec == "none" else how.codec,
            enable_idempotence=how.idempotent or bool(how.transactional_id),
            linger_ms=5,
            max_block_ms=round(PATIENCE_S * 1000),
            **more,
        )
        try:
            if how.transactional_id:
                producer.init_transactions()
                producer.begin_transaction()
            sent = [
                producer.send(topic, value, key, list(headers), partition, time_ms)
                for key, value, headers, time_ms in records
            ]
            producer.flush(PATIENCE_S)
            offsets = [one.get(PATIENCE_S).offset for one in sent]
            if how.group:
                committed = PureOffset(how.source_offset, "", -1)
                producer.send_offsets_to_transaction({PurePartition(how.source, 0): committed}, how.group)
            if how.transactional_id:
                (producer.commit_transaction if how.commit else producer.abort_transaction)()
            return offsets
        finally:
            producer.close(timeout=1)

    def _collect(self, consumer: KafkaConsumer, count: int) -> list[Got]:
        got: list[Got] = []
        for one in consumer:
            got.append(Got(one.key, one.value, tuple(one.headers), one.timestamp, one.offset))
            if len(got) == count:
                return got
        raise RuntimeError(f"{len(got)} of {count} records in time")

    def fetch(
        self, topic: str, partition: int, start: int, count: int, *, read_committed: bool = False
    ) -> list[Got]:
        level = "read_committed" if read_committed else "read_uncommitted"
        consumer = self._consumer(isolation_level=level)
        try:
            consumer.assign([PurePartition(topic, partition)])
            consumer.seek(PurePartition(topic, partition), start)
            return self._collect(consumer, count)
        finally:
            consumer.close()

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            place = PurePartition(topic, partition)
            first, end = consumer.beginning_offsets([place]), consumer.end_offsets([place])
            return int(first[place]), int(end[place])
        finally:
            consumer.close()

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int:
        consumer = self._consumer()
        try:
            found = consumer.offsets_for_times({(place := PurePartition(topic, partition)): time_ms})
            return -1 if found[place] is None else int(found[place].offset)
        finally:
            consumer.close()

    def group(self, topic: str, group: str, count: int, *, by_server: bool = False) -> int:
        assert not by_server
        consumer = self._consumer(group_id=group, auto_offset_reset="earliest")
        try:
            consumer.subscribe([topic])
            self._collect(consumer, count)
            consumer.commit()
            return int(consumer.committed(PurePartition(topic, 0)) or -1)
        finally:
            consumer.close(autocommit=False)

    def _administer(self, operation: str, *arguments: Any, **more: Any) -> Any:
        admin = KafkaAdminClient(bootstrap_servers=self.bootstrap, request_timeout_ms=round(PATIENCE_S * 500))
        try:
            return getattr(admin, operation)(*arguments, **more)
        finally:
            admin.close()

    def create_topic(self, topic: str, partitions: int) -> None:
        self._administer("create_topics", [PureNewTopic(topic, partitions, -1)])

    def add_partitions(self, topic: str, partitions: int) -> None:
        self._administer("create_partitions", {topic: partitions})

    def delete_topic(self, topic: str) -> None:
        self._administer("delete_topics", [topic])

    def config(self, topic: str) -> Mapping[str, str | None]:
        found = self._administer(
            "describe_configs",
            [PureConfigResource(PureConfigResourceType.TOPIC, topic)],
            config_filter="all",
        )
        values = found["topic"][topic]
        return {name: one["value"] if isinstance(one, dict) else one for name, one in values.items()}

    def set_config(self, topic: str, key: str, value: str) -> None:
        self._administer(
            "alter_configs",
            [PureConfigResource(PureConfigResourceType.TOPIC, topic, configs={key: value})],
            incremental=True,
        )


class ProgramClient(Client):
    """A client in a program of its own, which is started for the first operation."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._process: subprocess.Popen[str] | None = None

    def command(self) -> list[str]:
        """The program and its arguments; it is built if need be."""
        raise NotImplementedError

    def _ask(self, operation: str, **fields: Any) -> Any:
        if self._process is None:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(
            json.dumps({"operation": operation, "bootstrap": self.bootstrap} | fields) + "\n"
        )
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the program ended without an answer")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]

    def partitions(self, topic: str) -> int:
        return int(self._ask("partitions", topic=topic, partition=0))

    def produce(
        self, topic: str, partition: int, records: Sequence[Sent], how: Producing = PLAINLY
    ) -> list[int]:
        written = [
            {
                "key": _written(one.key),
                "value": _written(one.value),
                "headers": [{"name": name, "value": _written(value)} for name, value in one.headers],
                "time_ms": one.time_ms,
            }
            for one in records
        ]
        offsets: list[int] = self._ask(
            "produce", topic=topic, partition=partition, records=written, **how._asdict()
        )
        return offsets

    def fetch(
        self, topic: str, partition: int, start: int, count: int, *, read_committed: bool = False
    ) -> list[Got]:
        found = self._ask(
            "fetch",
            topic=topic,
            partition=partition,
            start=start,
            count=count,
            read_committed=read_committed,
        )
        return [
            Got(
                _read(one["key"]),
                _read(one["value"]),
                tuple((pair["name"], _read(pair["value"])) for pair in one["headers"] or ()),
                one["time_ms"],
                one["offset"],
            )
            for one in found
        ]

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        first, end = self._ask("bounds", topic=topic, partition=partition)
        return first, end

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int:
        return int(self._ask("offset_at", topic=topic, partition=partition, time_ms=time_ms))

    def group(self, topic: str, group: str, count: int, *, by_server: bool = False) -> int:
        return int(self._ask("group", topic=topic, group=group, count=count, by_server=by_server))

    def create_topic(self, topic: str, partitions: int) -> None:
        self._ask("create_topic", topic=topic, partitions=partitions)

    def add_partitions(self, topic: str, partitions: int) -> None:
        self._ask("add_partitions", topic=topic, partitions=partitions)

    def delete_topic(self, topic: str) -> None:
        self._ask("delete_topic", topic=topic)

    def config(self, topic: str) -> Mapping[str, str | None]:
        found: Mapping[str, str | None] = self._ask("config", topic=topic)
        return found

    def set_config(self, topic: str, key: str, value: str) -> None:
        self._ask("set_config", topic=topic, key=key, value=value)

    def close(self) -> None:
        if self._process is not None:
            # The program ends with its input.
            self._process.communicate(timeout=30)


def _written(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _read(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def java_command(*arguments: str) -> list[str]:
    """A command that runs a class of Kafka's packages, without its log."""
    path = os.pathsep.join(map(str, jars(*PACKAGES, transitive=True)))
    java = [str(require_java(os.environ).executable), "-Xmx256m", "-XX:TieredStopAtLevel=1"]
    return [*java, "-Dlog4j2.level=OFF", "-cp", path, *arguments]


class Java(ProgramClient):
    """Kafka's own client."""

    name = "Java"
    release = f"kafka-clients {JAVA_RELEASE}"

    def command(self) -> list[str]:
        needed = jars(*PACKAGES, transitive=True)
        classes = compiled(f"compatibility/{JAVA_RELEASE}", FOLDER / "java", needed)
        command = java_command("CompatibilityClient")
        place = command.index("-cp") + 1
        command[place] = os.pathsep.join((str(classes), command[place]))
        return command


GO_BUILD_TIMEOUT_S: Final = 590


def _go_release(module: str) -> str:
    found = re.search(rf"{re.escape(module)} v(\S+)", (FOLDER / "go" / "go.mod").read_text())
    assert found is not None
    return found[1]


class FranzGo(ProgramClient):
    """franz-go."""

    name = "franz-go"
    release = _go_release("github.com/twmb/franz-go")

    def command(self) -> list[str]:
        program = ROOT / ".cache" / "compatibility" / "go-clients"
        go = shutil.which("go")
        assert go is not None
        subprocess.run(
            [go, "build", "-o", str(program), "."],
            cwd=FOLDER / "go",
            check=True,
            timeout=GO_BUILD_TIMEOUT_S,
            capture_output=True,
        )
        return [str(program), self.name]


class Sarama(FranzGo):
    """Sarama."""

    lacks: ClassVar = {BY_SERVER: "has no `group.protocol=consumer`"}
    name = "Sarama"
    release = _go_release("github.com/IBM/sarama")


PYTHON_CLIENTS: Final[tuple[type[Client], ...]] = (Librdkafka, Aiokafka, KafkaPython)
CLIENTS: Final[tuple[type[Client], ...]] = (Librdkafka, Java, FranzGo, Sarama, Aiokafka, KafkaPython)

"""A log, an object store, processes that mirror a real Kafka broker into it, and the way to compare both
sides without asking the mirror.

What the broker has is read by a plain consumer of its own, from the beginning to the end, committed records
only; what is here is read from the log and the intake files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import NewPartitions as _NewPartitions  # type: ignore[attr-defined]  # its __init__ has no __all__
from confluent_kafka.admin import NewTopic as _NewTopic  # type: ignore[attr-defined]
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]

from archiver.config.groups import IntakeSettings, LogSettings
from archiver.config.kafka import KafkaSourceSettings
from archiver.log.store import Log
from archiver.objects.store import ObjectStore
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ArchiverError
from archiver.runtime.ids import SystemIds
from intake.log.backlog import Backlog
from intake.log.checkpoint import CheckpointStore
from intake.log.checkpointer import Checkpointer
from intake.log.sequencer import Sequencer
from intake.read.reader import IntakeReader
from intake.sources.kafka.batch_client import connect_source
from intake.sources.kafka.mirror import Mirror
from intake.sources.kafka.upstream import Upstream
from intake.sources.kafka.upstream_changes import MirrorState
from intake.write.accept_clock import AcceptClock
from intake.write.flush import FlushWriter
from tests.support.log.faulty_log import FaultyLog
from tests.support.log.memory_log import MemoryLog
from tests.support.objects.faulty_objects import FaultyObjectStore
from tests.support.objects.memory_store import MemoryObjectStore

PATIENCE_S = 60.0
_NAMES = count(1)
_OFFSETS: Any = _OffsetSpec  # without types


class Mirrored(NamedTuple):
    """One record, on either side."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int


class Site:
    """What the mirroring processes share."""

    def __init__(self, brokers: str, log: Log | None = None, objects: ObjectStore | None = None) -> None:
        self.brokers = brokers
        self.clock = SystemClock()
        self.log = FaultyLog(log or MemoryLog("intake", 512 * 1024))
        self.objects = FaultyObjectStore(objects or MemoryObjectStore())

    def process(self, topics: str, **chosen: Any) -> Mirroring:
        """Another process; `chosen` are settings of source, intake and log by their names, `from_` for
        `from`."""
        return Mirroring(self, topics, chosen)

    def backlog(self) -> Backlog:
        """The log as a process reads it that has just started."""
        return Sequencer(
            self.log, SystemIds(), self.clock, LogSettings(), CheckpointStore(self.objects)
        ).backlog()

    def records(self, topic: str, partition: int = 0) -> list[Mirrored]:
        """What is here of a partition, in order of offset; what lies between must be gaps, without a hole."""
        backlog, reader, found = self.backlog(), IntakeReader(self.objects), list[Mirrored]()
        tp = (backlog.topics_by_name[topic].topic_id, partition)
        spans = list(backlog.gaps(tp, 0, backlog.next_offset(tp)))
        for segment in backlog.segments(tp):
            spans.append((segment.base, segment.end))
            for _, batch in reader.read(segment.file, [segment]):
                rows = batch.to_pylist()
                found += [_row(segment.base + number, row) for number, row in enumerate(rows)]
        reached = 0
        for low, high in sorted(spans):
            assert low == reached, f"{topic}:{partition} has a hole or a double at {min(low, reached)}"
            reached = high
        assert reached == backlog.next_offset(tp)
        return found

    def gaps(self, topic: str, partition: int = 0) -> list[tuple[int, int]]:
        """The offsets of a partition without a record."""
        backlog = self.backlog()
        tp = (backlog.topics_by_name[topic].topic_id, partition)
        return backlog.gaps(tp, 0, backlog.next_offset(tp))

    def position(self, topic: str, partition: int = 0) -> int:
        """Up to where the log has a partition."""
        backlog = self.backlog()
        begun = backlog.fold.positions.source(f"kafka:{backlog.topics_by_name[topic].topic_id}").begun
        return begun[str(partition)].end


def _row(offset: int, row: Mapping[str, Any]) -> Mirrored:
    headers = tuple((one["key"], one["value"]) for one in row["headers"])
    return Mirrored(
        offset, row["key"], row["value"], headers, round(row["event_timestamp"].timestamp() * 1000)
    )


class Mirroring:
    """One process that mirrors."""

    def __init__(self, site: Site, topics: str, chosen: dict[str, Any]) -> None:
        quick = {"append_attempts_max": 2, "append_backoff": 0.001, **_of(LogSettings, chosen)}
        intake = IntakeSettings.model_validate({"delay_max": 0.05, **_of(IntakeSettings, chosen)})
        source = {
            "brokers": site.brokers,
            "topics": topics,
            "discover_interval": 0.3,
            **_of(KafkaSourceSettings, chosen),
        }
        if "from_" in chosen:
            source["from"] = chosen["from_"]
        self.settings = KafkaSourceSettings.model_validate(source)
        log_settings = LogSettings.model_validate(quick)
        checkpoints = CheckpointStore(site.objects)
        self.sequencer = Sequencer(site.log, SystemIds(), site.clock, log_settings, checkpoints)
        self.checkpointer = Checkpointer(site.log, checkpoints, self.sequencer, log_settings)
        accept_clock = AcceptClock(site.clock, intake.clock_skew_max, intake.clock_settle)
        publisher = FlushWriter(
            site.objects, self.sequencer, intake.row_group_bytes, site.clock, SystemIds(), accept_clock
        )
        connect: Callable[[], Upstream] = chosen.get("connect") or (
            lambda: connect_source(self.settings, site.clock)
        )
        self.mirror = Mirror(
            self.settings, intake, self.sequencer, publisher, accept_clock, site.clock, connect
        )

    @property
    def state(self) -> MirrorState:
        """What it says of itself."""
        return self.mirror.state

    @property
    def kinds(self) -> list[tuple[str, str]]:
        """Where its findings are, and of what kind."""
        return [(one.where, one.kind) for one in self.state.findings]

    def step(self) -> None:
        """What its thread does."""
        try:
            self.mirror.step()
        except ArchiverError as error:
            self.mirror.give_up(str(error))
            time.sleep(0.05)

    def until(self, holds: Callable[[], object], what: str = "") -> None:
        """Step until it holds."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"{what} did not come: {self.state}"
            self.step()

    def until_level(self, site: Site, *topics: str) -> None:
        """Step until everything committed that the broker has of these topics is here."""
        wanted = {
            (topic, partition): ends
            for topic in topics
            for partition, ends in committed_ends(site.brokers, topic).items()
        }

        def is_level() -> bool:
            known = self.sequencer.fold.topics_by_name
            return all(
                topic in known and _end(self.sequencer, known[topic].topic_id, partition) >= end
                for (topic, partition), end in wanted.items()
            )

        self.until(is_level, f"level with {topics}")

    def close(self) -> None:
        """Disconnect from the broker."""
        self.mirror.close()


def _end(sequencer: Sequencer, topic_id: str, partition: int) -> int:
    known = sequencer.fold.positions.source(f"kafka:{topic_id}").begun.get(str(partition))
    return -1 if known is None else known.end


def _of(group: type[Any], chosen: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in chosen.items() if name in group.model_fields}


# the broker's side


@contextmanager
def reader_of(brokers: str, **more: str) -> Iterator[Consumer]:
    """A plain consumer."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "nobody",
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
            "enable.partition.eof": "true",
            "auto.offset.reset": "earliest",
            # Half a second otherwise, which the broker waits for more before it says that this is the end.
            "fetch.wait.max.ms": 20,
            **more,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def upstream_records(brokers: str, topic: str, partition: int = 0, **more: str) -> list[Mirrored]:
    """Every committed record that the broker has of a partition, to its end."""
    return _read_to_end(brokers, topic, partition, **more)[0]


def committed_ends(brokers: str, topic: str) -> dict[int, int]:
    """Where each partition ends for who reads committed records."""
    with reader_of(brokers) as consumer:
        partitions = sorted(consumer.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions)
    return {partition: _read_to_end(brokers, topic, partition)[1] for partition in partitions}


def _read_to_end(brokers: str, topic: str, partition: int, **more: str) -> tuple[list[Mirrored], int]:
    found: list[Mirrored] = []
    with reader_of(brokers, **more) as consumer:
        # A consumer that does not know the leader yet looks for it once a second.
        consumer.list_topics(topic, timeout=PATIENCE_S)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert time.monotonic() < deadline, f"{topic}:{partition} cannot be read to its end"
            for message in consumer.consume(1000, 0.05):
                error = message.error()
                if error is not None and error.code() == KafkaError._PARTITION_EOF:
                    return found, message.offset() or 0
                assert error is None, error.str()
                headers: Any = tuple(message.headers() or [])
                offset: Any = message.offset()
                found.append(
                    Mirrored(offset, message.key(), message.value(), headers, message.timestamp()[1])
                )


class Cluster:
    """What tests do to the broker."""

    def __init__(self, brokers: str, **more: str) -> None:
        self.brokers = brokers
        self.more = {name.replace("_", "."): value for name, value in more.items()}
        self.admin = AdminClient({"bootstrap.servers": brokers, **self.more})

    def create(self, topic: str, partitions: int = 1, **config: Any) -> str:
        """A topic that is there when this returns."""
        named = {name.replace("_", "."): value for name, value in config.items()}
        wanted = _NewTopic(topic, partitions, 1, config=named)
        try:
            self.admin.create_topics([wanted])[topic].result(PATIENCE_S / 2)
        except TimeoutError:  # a broker that has just started may lose a question
            try:
                self.admin.create_topics([wanted])[topic].result(PATIENCE_S / 2)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        self._until_there(topic, partitions)
        return topic

    def delete(self, topic: str) -> None:
        """Gone when this returns."""
        for future in self.admin.delete_topics([topic]).values():
            future.result(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while topic in self.admin.list_topics(timeout=PATIENCE_S).topics:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def grow(self, topic: str, partitions: int) -> None:
        """More partitions."""
        for future in self.admin.create_partitions([_NewPartitions(topic, partitions)]).values():
            future.result(PATIENCE_S)
        self._until_there(topic, partitions)

    def delete_records(self, topic: str, partition: int, before: int) -> None:
        """As retention does."""
        for future in self.admin.delete_records([TopicPartition(topic, partition, before)]).values():
            future.result(PATIENCE_S)

    def send(self, topic: str, records: Sequence[Mapping[str, Any]], **more: str) -> None:
        """Records as `Producer.produce` takes them; acknowledged when this returns."""
        producer = Producer({"bootstrap.servers": self.brokers, "acks": "all", **self.more, **more})
        failed: list[str] = []
        for record in records:
            producer.produce(
                topic,
                on_delivery=lambda error, _: failed.append(error.str()) if error else None,
                **{"partition": 0, **record},
            )
            producer.poll(0)
        assert producer.flush(PATIENCE_S) == 0
        assert not failed, failed[0]

    def transact(
        self, topic: str, records: Sequence[Mapping[str, Any]], *, commit: bool, name: str | None = None
    ) -> None:
        """The same in a transaction that is ended, one way or the other."""
        self.end(self.transaction(topic, records, name), topic, commit=commit)

    def end(self, producer: Producer, topic: str, *, commit: bool) -> None:
        """End the transaction that `producer` has in `topic`; readers of committed records are past it when
        this returns, so no earlier transaction may be open in its partitions.
        """
        before = self._ends(topic, IsolationLevel.READ_UNCOMMITTED)
        touched = {
            partition
            for partition, end in self._ends(topic, IsolationLevel.READ_COMMITTED).items()
            if end < before[partition]
        }
        assert touched, f"no transaction is open in {topic}"
        if commit:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.abort_transaction(PATIENCE_S)
        # The broker answers once its coordinator knows the outcome, and writes the markers after that.
        deadline = time.monotonic() + PATIENCE_S
        while any(
            self._ends(topic, IsolationLevel.READ_COMMITTED)[partition] <= before[partition]
            for partition in touched
        ):
            assert time.monotonic() < deadline, f"a transaction in {topic} has no marker"
            time.sleep(0.02)

    def _ends(self, topic: str, isolation: IsolationLevel) -> dict[int, int]:
        partitions = self.admin.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions
        asked = {TopicPartition(topic, partition): _OFFSETS.latest() for partition in partitions}
        answers = self.admin.list_offsets(asked, isolation_level=isolation, request_timeout=PATIENCE_S)
        return {place.partition: future.result(PATIENCE_S).offset for place, future in answers.items()}

    def transaction(
        self, topic: str, records: Sequence[Mapping[str, Any]], name: str | None = None
    ) -> Producer:
        """The same, and left open; every record is in the broker's log."""
        producer = Producer(
            {"bootstrap.servers": self.brokers, **self.more, "transactional.id": name or f"t-{next(_NAMES)}"}
        )
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        for record in records:
            producer.produce(topic, **{"partition": 0, **record})
        assert producer.flush(PATIENCE_S) == 0
        return producer

    def _until_there(self, topic: str, partitions: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (
            len(getattr(self.admin.list_topics(timeout=PATIENCE_S).topics.get(topic), "partitions", ()))
            < partitions
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def numbered(first: int, rows: int, partition: int = 0) -> list[dict[str, Any]]:
    """Records unlike any others, of every shape: with and without keys, values, headers."""
    found: list[dict[str, Any]] = []
    for number in range(first, first + rows):
        record: dict[str, Any] = {"partition": partition, "value": f"{partition}/{number}".encode()}
        if number % 3:
            record["key"] = f"k{number}".encode()
        if number % 5 == 0:
            record["headers"] = [("a", b"1"), ("a", None), ("", b""), ("ü", f"{number}".encode())]
        if number % 7 == 0:
            record["value"] = None if number % 2 else b""
        found.append(record)
    return found


def data_folder(root: Path, topic: str, partition: int) -> Path:
    """Where a broker keeps a partition."""
    return root / f"{topic}-{partition}"

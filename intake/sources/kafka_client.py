"""A Kafka cluster through confluent-kafka: the only file that knows that library.

Promises: no position but those it is given (no group, nothing committed, no reset), committed records only, nothing of a partition behind
an error of it (the library itself goes on behind a batch that it cannot read), memory bounded by `queue_bytes_max`, and an answer or
`RetryLater` within `request_timeout`. What the client logs goes to our log; secrets never do.
"""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]  # its __init__ has no __all__

from archiver.clock import Clock
from archiver.errors import RetryLater
from archiver.redaction import redacted
from intake.sources.upstream import Bounds, Place, Polled, Stopped, Trouble, UpstreamTopic

PER_QUESTION = 500
"""Partitions that one question is about, so that an answer is bounded."""
FETCH_BYTES_MAX = 50 * 2**20
"""What one answer of a broker may hold, as compressed as it is stored; less if less may be fetched ahead at all."""
FETCH_PARTITION_BYTES = 2**20
PORTION_RECORDS = 500
"""Messages that are taken at once: few enough that each is still in the processor's cache when its fields are asked for."""
POLL_BYTES_MAX = 4 * 2**20
"""A poll takes no further portion when it has so many bytes of values."""
_NO_ID = bytes(16)
_TROUBLES: dict[int, Trouble] = {
    KafkaError._AUTO_OFFSET_RESET: "out_of_range",  # noqa: SLF001 - the library's public names of local errors begin so
    KafkaError.OFFSET_OUT_OF_RANGE: "out_of_range",
    KafkaError._LOG_TRUNCATION: "truncated",  # noqa: SLF001 - named in the text of the first only
    KafkaError._BAD_MSG: "damaged",  # noqa: SLF001
    KafkaError.UNKNOWN_TOPIC_OR_PART: "away",
    KafkaError._UNKNOWN_TOPIC: "away",  # noqa: SLF001
    KafkaError._UNKNOWN_PARTITION: "away",  # noqa: SLF001
    KafkaError.UNKNOWN_TOPIC_ID: "away",
    KafkaError.INCONSISTENT_TOPIC_ID: "away",
}
_TRUNCATION = KafkaError(KafkaError._LOG_TRUNCATION).str()  # noqa: SLF001
_END = KafkaError._PARTITION_EOF  # noqa: SLF001
_SPECS: Any = _OffsetSpec  # its methods are without types
_HEADERS: Any = Message.headers  # the methods themselves: without types, and for `map`
_ERROR: Any = Message.error
_TOPIC: Any = Message.topic
_PARTITION: Any = Message.partition
_OFFSET: Any = Message.offset
_TIMESTAMP: Any = Message.timestamp
_KEY: Any = Message.key
_VALUE: Any = Message.value
_log = logging.getLogger(__name__)
Key = TypeVar("Key", str, Place)


class ClientSettings(Protocol):
    """What the client needs of a source's settings; durations in seconds, sizes in bytes."""

    @property
    def name(self) -> str:
        """Of the source."""

    @property
    def brokers(self) -> str:
        """HOST:PORT, separated by commas."""

    @property
    def request_timeout(self) -> float:
        """How long an answer may take."""

    @property
    def queue_bytes_max(self) -> int:
        """What may be fetched ahead."""

    def client(self) -> dict[str, str]:
        """Further properties, secrets among them."""


class KafkaClient:
    """One consumer and one administrative client on the same cluster."""

    def __init__(self, settings: ClientSettings, clock: Clock) -> None:
        self._clock = clock
        self._timeout_s = settings.request_timeout
        self._broken: set[Place] = set()
        self._leaderless: set[Place] = set()
        common = common_properties(f"stream-archiver-{settings.name}", settings.brokers, settings.client())
        consumer = {
            "group.id": f"stream-archiver-{settings.name}",  # the library wants one; nothing joins it, nothing is committed to it
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "enable.partition.eof": "true",
            "check.crcs": "true",
            "allow.auto.create.topics": "false",
            "queued.max.messages.kbytes": str(max(1024, settings.queue_bytes_max // 1024)),
            "queued.min.messages": "100000",
            "fetch.max.bytes": str(max(FETCH_PARTITION_BYTES, min(FETCH_BYTES_MAX, settings.queue_bytes_max))),
            "max.partition.fetch.bytes": str(FETCH_PARTITION_BYTES),
        }
        try:
            self._consumer = Consumer(common | consumer)
            self._admin = AdminClient(common)
        except (KafkaException, ValueError) as error:
            raise unmade(error) from None

    def topics(self) -> list[str]:
        try:
            # Not the consumer: it compares epochs when it first hears who leads a partition, so it must not have heard before it reads.
            return list(self._admin.list_topics(timeout=self._timeout_s).topics)
        except KafkaException as error:
            raise later("the cluster does not say which topics it has", error) from error

    def describe(self, names: Collection[str]) -> dict[str, UpstreamTopic | None]:
        answers = _Answers[str](self._timeout_s)
        for some in _portions(sorted(names)):
            asked = self._admin.describe_topics(TopicCollection(list(some)), request_timeout=self._timeout_s)
            for name, future in asked.items():
                answers.hear(name, future, f"the cluster does not describe topic {name}")
        found: dict[str, UpstreamTopic | None] = dict.fromkeys(answers.unanswered())
        for name, answer in answers.found.items():
            if not answer.is_internal:
                found[name] = UpstreamTopic(name, id_bytes(answer.topic_id), len(answer.partitions))
            self._leaderless = {place for place in self._leaderless if place[0] != name}
            self._leaderless |= {(name, one.id) for one in answer.partitions if one.leader is None or one.leader.id < 0}
        return found

    def bounds(self, places: Collection[Place]) -> dict[Place, Bounds]:
        low, high = self._offsets(places, _SPECS.earliest()), self._offsets(places, _SPECS.latest())
        return {place: Bounds(low[place], high[place]) for place in places if place in low and place in high}

    def offsets_since(self, places: Collection[Place], since_ms: int) -> dict[Place, int]:
        return self._offsets(places, _SPECS.for_timestamp(since_ms))

    def _offsets(self, places: Collection[Place], spec: Any) -> dict[Place, int]:
        answers = _Answers[Place](self._timeout_s)
        # One without a leader would hold the answer about all others up until the time is over.
        for some in _portions(sorted(place for place in places if place not in self._leaderless)):
            asked = self._admin.list_offsets(
                {TopicPartition(*place): spec for place in some},
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=self._timeout_s,
            )
            for partition, future in asked.items():
                place = partition.topic, partition.partition
                answers.hear(place, future, f"the cluster does not tell offsets of {partition.topic}:{partition.partition}")
        answers.unanswered()
        return {place: answer.offset for place, answer in answers.found.items()}

    def read(self, positions: Mapping[Place, tuple[int, int | None]]) -> None:
        wanted = [
            TopicPartition(*place, offset) if epoch is None else TopicPartition(*place, offset, leader_epoch=epoch)
            for place, (offset, epoch) in positions.items()
        ]
        self._broken.difference_update(positions)
        try:
            self._consumer.incremental_assign(wanted)
        except KafkaException as error:
            raise later("partitions cannot be read", error) from error

    def stop_reading(self, places: Sequence[Place]) -> None:
        try:
            self._consumer.incremental_unassign([TopicPartition(*place) for place in places])
        except KafkaException as error:
            raise later("partitions cannot be let go of", error) from error

    def poll(self, records_max: int, timeout_s: float) -> Polled:
        self._admin.poll(0)  # what it logs waits for this, without a bound
        polled, last = Polled(), dict[Place, Any]()
        left, size, until_s = records_max, 0, self._clock.monotonic_s() + timeout_s
        while left > 0:
            portion = min(left, PORTION_RECORDS)
            try:
                messages = self._consumer.consume(portion, max(0.0, until_s - self._clock.monotonic_s()))
            except KafkaException as error:
                raise later("nothing can be read", error) from error
            left -= len(messages)
            polled.more = len(messages) == portion
            if self._broken or any(map(_ERROR, messages)):  # no error is false
                messages = _sound(messages, polled, self._broken)
            if messages:
                size += _fill(polled, messages, last)
            if not polled.more or size >= POLL_BYTES_MAX:
                break
        polled.epochs = {place: epoch for place, message in last.items() if (epoch := message.leader_epoch()) is not None and epoch >= 0}
        return polled

    def known_ends(self, places: Collection[Place]) -> dict[Place, int]:
        found: dict[Place, int] = {}
        for place in places:
            try:
                _, high = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            except KafkaException:
                continue
            if high >= 0:
                found[place] = high
        return found

    def close(self) -> None:
        self._consumer.close()


def _fill(polled: Polled, messages: list[Any], last: dict[Place, Any]) -> int:
    """Add records, and note the last one of each partition; bytes of their values. One pass per field, and `map` over a method of the
    library is the cheapest of loops: what is done for every record is all here.
    """
    topics, partitions, values = list(map(_TOPIC, messages)), list(map(_PARTITION, messages)), list(map(_VALUE, messages))
    polled.topics += topics
    polled.partitions += partitions
    polled.offsets += map(_OFFSET, messages)
    polled.timestamps_ms += [time_ms for _, time_ms in map(_TIMESTAMP, messages)]
    polled.keys += map(_KEY, messages)
    polled.values += values
    _add_headers(polled, messages)
    # A leader does not change within a fetch, so any record of the end of it will do for the epoch.
    if topics.count(topics[0]) == len(topics):  # takes half of what it takes to make a pair of each
        last |= {(topics[0], partition): message for partition, message in dict(zip(partitions, messages, strict=True)).items()}
    else:
        last |= zip(zip(topics, partitions, strict=True), messages, strict=True)
    return sum([len(value) for value in values if value is not None])


def _add_headers(polled: Polled, messages: list[Any]) -> None:
    """Of each record; those whose headers have names that are no text have none, and are `broken`."""
    rest = iter(messages)
    while True:
        try:
            # Beside its error the library gives a list with a hole, which must never be looked at. The error is raised at once only where
            # the method is called from C, as by `map`. No message is asked twice: then the list comes without the error.
            polled.headers.extend(map(_HEADERS, rest))
            return
        except (UnicodeError, SystemError):
            polled.broken[len(polled.headers)] = "has a header whose name is not UTF-8"
            polled.headers.append(None)


def _sound(messages: list[Any], polled: Polled, broken: set[Place]) -> list[Any]:
    """The records, without those of a partition behind an error of it; `broken`: such partitions, from here on."""
    records: list[Any] = []
    for message in messages:
        place = message.topic(), message.partition()
        if place in broken:
            continue
        if message.error() is None:
            records.append(message)
        elif _hear(message, polled):
            broken.add(place)
    return records


class _Answers(Generic[Key]):
    """What became of many questions of one kind."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.found: dict[Key, Any] = {}
        """What is not there is left out."""
        self._failed: dict[Key, RetryLater] = {}

    def hear(self, key: Key, future: concurrent.futures.Future[Any], what: str) -> None:
        """Wait for one of them."""
        try:
            self.found[key] = future.result(self._timeout_s + 5)
        except concurrent.futures.TimeoutError:
            self._failed[key] = RetryLater(f"{what} within {self._timeout_s:g} s")
        except KafkaException as error:
            if _TROUBLES.get(error.args[0].code()) != "away":
                self._failed[key] = later(what, error)

    def unanswered(self) -> list[Key]:
        """What was not answered, unless that is everything: then `RetryLater`."""
        if self._failed and not self.found:
            raise next(iter(self._failed.values()))
        for error in self._failed.values():
            _log.warning("kafka: %s", error)
        return list(self._failed)


def _hear(message: Any, polled: Polled) -> bool:
    """Something that is no record; whether it stops its partition."""
    error, place = message.error(), (message.topic(), message.partition())
    if error.code() == _END:
        polled.ends[place] = message.offset()
    elif place[0] is None or place[1] is None or place[1] < 0:
        _log.warning("kafka: %s", redacted(error.str()))
    else:
        polled.stopped.append(Stopped(place, _trouble_of(error), redacted(error.str())))
        return True
    return False


def _trouble_of(error: KafkaError) -> Trouble:
    """Without a reset the library gives one code for every position that it cannot go on from, and the reason in the text."""
    if _TRUNCATION in error.str():
        return "truncated"
    return _TROUBLES.get(error.code(), "other")


def _heard(error: KafkaError) -> None:
    _log.warning("kafka: %s", redacted(error.str()))


def common_properties(client_id: str, brokers: str, given: Mapping[str, str]) -> dict[str, Any]:
    """What every client is told; `given` are properties of the configuration, secrets revealed."""
    return {
        "client.id": client_id,
        "socket.keepalive.enable": "true",
        **given,
        "bootstrap.servers": brokers,
        "logger": _log,
        "error_cb": _heard,
    }


def unmade(error: Exception) -> RetryLater:
    """The library takes no such properties."""
    return RetryLater(f"the Kafka client cannot be made of these properties: {redacted(str(error))}")


def later(what: str, error: KafkaException) -> RetryLater:
    """An error of the library as one of ours."""
    reason = error.args[0]
    return RetryLater(f"{what}: {redacted(reason.str() if isinstance(reason, KafkaError) else str(error))}")


def id_bytes(topic_id: Any) -> bytes:
    """The id of a topic; empty if its cluster gives none."""
    most, least = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    found = b"".join((bits % 2**64).to_bytes(8, "big") for bits in (most, least))
    return b"" if found == _NO_ID else found


def _portions(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[start : start + PER_QUESTION] for start in range(0, len(items), PER_QUESTION))

"""Adapter of a Kafka source to confluent-kafka: it describes the cluster, and reads records one by one where
batches cannot be read (`batch_client.py`).

It reads only from given positions (no group, no commits, no reset) and only committed records. After an error
of a partition it delivers nothing more of it, although the library itself continues after a batch that it
cannot read. Memory is bounded by `queue_bytes_max`. Every reply arrives within `request_timeout`, else
`RetryLater`. Numbers of the library pass through `known` and its siblings, its log lines through
`client_log.py`. Secrets are never logged.
"""

from __future__ import annotations

import concurrent.futures
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AclOperation, AdminClient  # type: ignore[attr-defined]  # its __init__ has no __all__
from confluent_kafka.admin import OffsetSpec as _OffsetSpec  # type: ignore[attr-defined]

from archiver.config.kafka import KafkaSourceSettings
from archiver.runtime.clock import Clock
from archiver.runtime.errors import RetryLater
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.runtime.text import counted
from intake.sources.kafka.client_log import ClientListener, ClientLog
from intake.sources.kafka.upstream import Bounds, Place, Polled, Stopped, Trouble, UpstreamTopic

OFFSET_MAX = 2**63 - 1
NO_RECORD = -1
"""Definite reply to "the first offset since a time": the partition has no such record."""


def known(number: Any) -> int | None:
    """An offset, partition, broker id, leader epoch or size; None for a sentinel or an invalid value."""
    # Sentinels of the library such as -1001 are negative numbers of the same type.
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= OFFSET_MAX:
        return None
    return number


def known_since(offset: Any) -> int | None:
    """The first offset since a time: an offset or `NO_RECORD`; None if it is neither."""
    return NO_RECORD if offset == NO_RECORD else known(offset)


def known_bounds(low: Any, high: Any) -> Bounds | None:
    """The bounds of a partition; None if either end is unknown or the two contradict each other.

    An empty partition has equal ends: 0 if it is new, a higher offset if all records were deleted.
    """
    first, end = known(low), known(high)
    # A contradiction is no reply: the request is repeated, and nothing is concluded from it.
    return None if first is None or end is None or first > end else Bounds(first, end)


def known_size(text: Any) -> int | None:
    """A number from a topic's configuration, which Kafka sends as text; None if missing."""
    try:
        return known(int(text))
    except (TypeError, ValueError):
        return None


PER_QUESTION = 500
"""Partitions per request, so that a reply is bounded."""
FETCH_BYTES_MAX = 50 * 2**20
"""Largest fetch reply of a broker, in stored (compressed) bytes; limited further by `queue_bytes_max`."""
FETCH_PARTITION_BYTES = 2**20
PORTION_RECORDS = 500
"""Messages to consume at once: few enough to be in the CPU cache when their fields are read."""
POLL_BYTES_MAX = 4 * 2**20
"""A poll consumes no further portion above this number of value bytes."""
# All zeros mean that the broker has no topic ids (before Kafka 2.8).
_NO_ID = bytes(16)
_NO_TIME_MS = -1
assert TIMESTAMP_NOT_AVAILABLE == 0, "`_fill` tests whether the kind of a timestamp is true"
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
# The local error for a bad position names the truncation only in its text.
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
Key = TypeVar("Key", str, Place)


class KafkaClient:
    """One administrative client and, where batches cannot be read, one consumer on the same cluster."""

    def __init__(self, settings: KafkaSourceSettings, clock: Clock, log: ClientLog | None = None) -> None:
        """`log` belongs to the source and outlives this connection, so a reconnect does not repeat every
        line.
        """
        self._clock = clock
        self._log = log or ClientLog(f"source {settings.name}", clock)
        self._callbacks, of_admin = self._log.callbacks(), self._log.callbacks()
        self._timeout_s = settings.request_timeout
        self._broken: set[Place] = set()
        self._leaderless: set[Place] = set()
        common = common_properties(f"stream-archiver-{settings.name}", settings.brokers, settings.client())
        self._properties = common | {
            # Required by the library; no group is joined and nothing is committed.
            "group.id": f"stream-archiver-{settings.name}",
            "enable.auto.commit": "false",
            "enable.auto.offset.store": "false",
            # A reset would skip records silently.
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            # The end shows that no committed record is below it, even if only markers follow.
            "enable.partition.eof": "true",
            # Off by default in the library.
            "check.crcs": "true",
            "allow.auto.create.topics": "false",
            "queued.max.messages.kbytes": str(max(1024, settings.queue_bytes_max // 1024)),
            "queued.min.messages": "100000",
            "fetch.max.bytes": str(
                max(FETCH_PARTITION_BYTES, min(FETCH_BYTES_MAX, settings.queue_bytes_max))
            ),
            "max.partition.fetch.bytes": str(FETCH_PARTITION_BYTES),
        }
        try:
            self._admin = AdminClient(common | of_admin.properties())
        except (KafkaException, ValueError) as error:
            raise unmade(error) from None
        self._consumer: Consumer | None = None
        # Only the admin client is polled by the listener: polling the consumer would take its records. The
        # mirror polls that several times a second.
        self._listener = ClientListener(settings.name, [of_admin.poll_of(self._admin)])

    def topics(self) -> list[str]:
        try:
            # Not through the consumer: it compares leader epochs only when it first learns the leader of a
            # partition, which must not happen before it reads.
            found = list(self._admin.list_topics(timeout=self._timeout_s).topics)
        except KafkaException as error:
            raise later("the cluster does not list its topics", error) from error
        self._log.answered()
        return found

    def describe(self, names: Collection[str]) -> dict[str, UpstreamTopic | None]:
        answers = _Answers[str](self._timeout_s, self._log)
        # All requests of a portion are sent together, and the replies are collected after that.
        for some in _portions(sorted(names)):
            asked = self._admin.describe_topics(TopicCollection(list(some)), request_timeout=self._timeout_s)
            for name, future in asked.items():
                answers.collect(name, future, f"the cluster does not describe topic {name}")
        found: dict[str, UpstreamTopic | None] = dict.fromkeys(answers.unanswered())
        for name, answer in answers.found.items():
            if not answer.is_internal and answer.partitions:
                found[name] = UpstreamTopic(name, id_bytes(answer.topic_id), len(answer.partitions))
            elif not answer.is_internal:
                found[name] = None  # a topic without partitions is not loaded yet
            # The newest description replaces what was known of the topic.
            self._leaderless = {place for place in self._leaderless if place[0] != name}
            self._leaderless |= {(name, one.id) for one in answer.partitions if is_leaderless(one)}
        return found

    def unreadable(self, names: Collection[str]) -> list[str] | None:
        """The topics, of the first `PER_QUESTION`, that the configured user may describe and not read.

        None if the cluster does not report the rights.
        """
        answers = _Answers[str](self._timeout_s, self._log)
        asked = self._admin.describe_topics(
            TopicCollection(sorted(names)[:PER_QUESTION]),
            request_timeout=self._timeout_s,
            include_authorized_operations=True,
        )
        for name, future in asked.items():
            answers.collect(name, future, f"the cluster does not describe topic {name}")
        answers.unanswered()
        operations_of = {name: answer.authorized_operations for name, answer in answers.found.items()}
        # Without the operations of every topic nothing can be concluded.
        if not all(operations_of.values()):
            return None
        return sorted(
            name
            for name, operations in operations_of.items()
            if not {AclOperation.READ, AclOperation.ALL} & set(operations)
        )

    def bounds(self, places: Collection[Place]) -> dict[Place, Bounds]:
        low, high = self._offsets(places, _SPECS.earliest()), self._offsets(places, _SPECS.latest())
        found = {place: known_bounds(low.get(place), high.get(place)) for place in places}
        return {place: bounds for place, bounds in found.items() if bounds is not None}

    def offsets_since(self, places: Collection[Place], since_ms: int) -> dict[Place, int]:
        found = self._offsets(places, _SPECS.for_timestamp(since_ms))
        return {place: offset for place, given in found.items() if (offset := known_since(given)) is not None}

    def _offsets(self, places: Collection[Place], spec: Any) -> dict[Place, Any]:
        """Offsets as the library returns them, sentinels included; pass them through `known`."""
        answers = _Answers[Place](self._timeout_s, self._log)
        # A partition without a leader would delay the reply about all others until the timeout.
        for some in _portions(sorted(place for place in places if place not in self._leaderless)):
            asked = self._admin.list_offsets(
                {TopicPartition(*place): spec for place in some},
                # The end of a partition includes open transactions: a position never lies beyond it.
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=self._timeout_s,
            )
            for partition, future in asked.items():
                place = partition.topic, partition.partition
                answers.collect(
                    place,
                    future,
                    f"the cluster does not report offsets of {partition.topic}:{partition.partition}",
                )
        answers.unanswered()
        return {place: answer.offset for place, answer in answers.found.items()}

    def read(self, positions: Mapping[Place, tuple[int, int | None]]) -> None:
        assignment = [
            TopicPartition(*place, offset)
            if epoch is None
            else TopicPartition(*place, offset, leader_epoch=epoch)
            for place, (offset, epoch) in positions.items()
        ]
        # A new assignment starts afresh, so the filter of earlier errors ends.
        self._broken.difference_update(positions)
        try:
            self._reader().incremental_assign(assignment)
        except KafkaException as error:
            raise later("partitions cannot be read", error) from error

    def stop_reading(self, places: Sequence[Place]) -> None:
        try:
            self._reader().incremental_unassign([TopicPartition(*place) for place in places])
        except KafkaException as error:
            raise later("partitions cannot be unassigned", error) from error

    def poll(self, records_max: int, timeout_s: float) -> Polled:
        polled, last, reader = Polled(), dict[Place, Any](), self._reader()
        left, size, until_s = records_max, 0, self._clock.monotonic_s() + timeout_s
        while left > 0:
            portion = min(left, PORTION_RECORDS)
            try:
                messages = reader.consume(portion, max(0.0, until_s - self._clock.monotonic_s()))
            except KafkaException as error:
                raise later("nothing can be read", error) from error
            # Lines of the library that arrive later happened after this call.
            self._callbacks.polled()
            left -= len(messages)
            polled.more = len(messages) == portion
            # The usual poll has no error and skips the pass per message.
            if self._broken or any(map(_ERROR, messages)):
                messages = _sound(messages, polled, self._broken, self._log)
            if messages:
                size += _fill(polled, messages, last)
            # Bounded in bytes, too: records may be large.
            if not polled.more or size >= POLL_BYTES_MAX:
                break
        polled.epochs = {
            place: epoch
            for place, message in last.items()
            if (epoch := known(message.leader_epoch())) is not None
        }
        return polled

    def known_ends(self, places: Collection[Place]) -> dict[Place, int]:
        found: dict[Place, int] = {}
        for place in places:
            try:
                _, high = self._reader().get_watermark_offsets(TopicPartition(*place), cached=True)
            # Left out: the numbers are for display only.
            except KafkaException:
                continue
            if (end := known(high)) is not None:
                found[place] = end
        return found

    def close(self) -> None:
        # The listener first, so that its thread does not use this connection any more.
        self._listener.close()
        if self._consumer is not None:
            self._consumer.close()

    def _reader(self) -> Consumer:
        """The consumer, made when it is first needed: usually batches are read without it."""
        if self._consumer is None:
            try:
                self._consumer = Consumer(self._properties | self._callbacks.properties())
            except (KafkaException, ValueError) as error:
                raise unmade(error) from None
        return self._consumer


def _fill(polled: Polled, messages: list[Any], last: dict[Place, Any]) -> int:
    """Add records and note the last one of each partition; returns the bytes of their values.

    This is all work per record. It makes one pass per field, and `map` over a method of the library is the
    cheapest loop.
    """
    topics, partitions, values = (
        list(map(_TOPIC, messages)),
        list(map(_PARTITION, messages)),
        list(map(_VALUE, messages)),
    )
    polled.topics += topics
    polled.partitions += partitions
    polled.offsets += map(_OFFSET, messages)
    # Check the kind: a record of the oldest formats has kind 0 and any number as its time.
    polled.timestamps_ms += [time_ms if kind else _NO_TIME_MS for kind, time_ms in map(_TIMESTAMP, messages)]
    polled.keys += map(_KEY, messages)
    polled.values += values
    _add_headers(polled, messages)
    # A leader does not change within a fetch, so the last record has the right epoch.
    if topics.count(topics[0]) == len(topics):  # half the time of building a pair per record
        last |= {
            (topics[0], partition): message
            for partition, message in dict(zip(partitions, messages, strict=True)).items()
        }
    else:
        last |= zip(zip(topics, partitions, strict=True), messages, strict=True)
    return sum([len(value) for value in values if value is not None])


def _add_headers(polled: Polled, messages: list[Any]) -> None:
    """Add the headers of each record. A record with a header name that is not UTF-8 gets None and is
    `broken`.
    """
    rest = iter(messages)
    while True:
        try:
            # With its error the library returns a list with a NULL item, which must never be accessed. The
            # error is raised at once only if C code such as `map` calls the method. No message may be asked
            # twice: the second call returns the list without the error.
            polled.headers.extend(map(_HEADERS, rest))
            return
        except (UnicodeError, SystemError):
            polled.broken[len(polled.headers)] = "has a header whose name is not UTF-8"
            polled.headers.append(None)


def _sound(
    messages: list[Any], polled: Polled, broken: set[Place], log: ClientLog | None = None
) -> list[Any]:
    """The records, without those after an error of their partition; adds these partitions to `broken`."""
    records: list[Any] = []
    for message in messages:
        place = message.topic(), message.partition()
        # After an error the library continues behind the batch that it could not read.
        if place in broken:
            continue
        if message.error() is None:
            records.append(message)
        elif _handle_event(message, polled, log):
            broken.add(place)
    return records


class _Answers(Generic[Key]):
    """The replies to several requests of one kind."""

    def __init__(self, timeout_s: float, log: ClientLog | None = None) -> None:
        self._timeout_s = timeout_s
        self._log = log
        self.found: dict[Key, Any] = {}
        """Replies by key; missing topics and partitions are left out."""
        self._failed: dict[Key, RetryLater] = {}

    def collect(self, key: Key, future: concurrent.futures.Future[Any], what: str) -> None:
        """Wait for one reply."""
        try:
            # The library ends each request by its own time-out; the additional seconds are for its threads.
            self.found[key] = future.result(self._timeout_s + 5)
        except concurrent.futures.TimeoutError:
            self._failed[key] = RetryLater(f"{what} within {self._timeout_s:g} s")
        except KafkaException as error:
            # A missing topic is a reply: it is left out.
            if _TROUBLES.get(error.args[0].code()) != "away":
                self._failed[key] = later(what, error)

    def unanswered(self) -> list[Key]:
        """The keys without a reply. Raises `RetryLater` if there was no reply at all."""
        # Without any reply the cluster is away; with some, the others are asked for again later.
        if self._failed and not self.found:
            raise next(iter(self._failed.values()))
        if self._failed and self._log is not None:
            self._log.say(
                logging.WARNING,
                f"{counted(len(self._failed), 'request')} without a reply: "
                f"{next(iter(self._failed.values()))}",
            )
        return list(self._failed)


def _handle_event(message: Any, polled: Polled, log: ClientLog | None) -> bool:
    """Handle a message that is no record; whether it stops its partition."""
    error, place = message.error(), (message.topic(), message.partition())
    if error.code() == _END:
        if (end := known(message.offset())) is not None:
            polled.ends[place] = end
    # An error of the whole client and not of one partition.
    elif place[0] is None or known(place[1]) is None:
        if log is not None:
            log.say(logging.WARNING, error.str())
    else:
        polled.stopped.append(Stopped(place, _trouble_of(error), excerpt(error.str(), MESSAGE_MAX)))
        return True
    return False


def _trouble_of(error: KafkaError) -> Trouble:
    """Classify an error. Without a reset policy the library has one code for all bad positions; the reason is
    in the text.
    """
    if _TRUNCATION in error.str():
        return "truncated"
    return _TROUBLES.get(error.code(), "other")


def common_properties(client_id: str, brokers: str, given: Mapping[str, str]) -> dict[str, Any]:
    """The properties of every client; `given` are those of the configuration, with secrets in plaintext."""
    return {
        "client.id": client_id,
        "socket.keepalive.enable": "true",
        **given,
        "bootstrap.servers": brokers,
    }


def is_leaderless(partition: Any) -> bool:
    """Whether a described partition has no leader now."""
    return partition.leader is None or known(partition.leader.id) is None


def unmade(error: Exception) -> RetryLater:
    """The error for properties that the library rejects."""
    return RetryLater(f"the Kafka client rejects these properties: {excerpt(str(error), MESSAGE_MAX)}")


def later(what: str, error: KafkaException) -> RetryLater:
    """Map an error of the library to `RetryLater`."""
    reason = error.args[0]
    return RetryLater(
        f"{what}: {excerpt(reason.str() if isinstance(reason, KafkaError) else str(error), MESSAGE_MAX)}"
    )


def id_bytes(topic_id: Any) -> bytes:
    """The id of a topic; empty if its cluster has no topic ids."""
    most, least = topic_id.get_most_significant_bits(), topic_id.get_least_significant_bits()
    # The library gives two signed numbers.
    found = b"".join((bits % 2**64).to_bytes(8, "big") for bits in (most, least))
    return b"" if found == _NO_ID else found


def _portions(items: Sequence[Any]) -> Iterable[Sequence[Any]]:
    return (items[start : start + PER_QUESTION] for start in range(0, len(items), PER_QUESTION))

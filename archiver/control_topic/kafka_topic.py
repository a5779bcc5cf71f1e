"""Adapter of the control topic to confluent-kafka, and the check of the topic that uses it.

`send` returns only when all in-sync replicas acknowledged every record. Every wait ends by `delivery_timeout`
or a request to stop, and a closed connection sends nothing more. The idempotent producer avoids repetitions
within a connection; the publisher handles those across connections. Secrets are never logged.
"""

from __future__ import annotations

import concurrent.futures
import logging
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection

# Its `__init__` has no `__all__`.
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource  # type: ignore[attr-defined]

from archiver.config.events import ControlTopicSettings
from archiver.control_topic.waves import BYTES_MAX, EVENTS_MAX, TopicRecord
from archiver.runtime.check_result import Checked, CheckResult, CheckStatus
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Halt, OutcomeUnknown, RetryLater
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from archiver.runtime.text import counted
from intake.sources.kafka.client import common_properties, id_bytes, is_leaderless, known_size, later, unmade
from intake.sources.kafka.client_log import ClientCallbacks, ClientListener, ClientLog

# --- The check
BATCH_OVERHEAD_BYTES = 4096
"""Bytes of a batch in addition to an event: key, headers, and the broker's own overhead."""


def check_control_topic(kafka: ControlTopicSettings, event_bytes_max: int, clock: Clock) -> Checked:
    """`event_bytes_max` is `events.bytes_max`."""
    return Checked(kafka.topic, "kafka", tuple(_findings(kafka, event_bytes_max, clock)))


def _findings(kafka: ControlTopicSettings, event_bytes_max: int, clock: Clock) -> Iterator[CheckResult]:
    """The results in the order of the requests."""
    try:
        # Silent, because each connection error would be logged in addition to the result.
        client = KafkaTopic(kafka, clock, silent=True)
    except ArchiverError as error:
        yield CheckResult("reachable", CheckStatus.WRONG, str(error))
        return
    # Names the result to which an error belongs.
    asked = "reachable"
    try:
        yield CheckResult(
            asked, CheckStatus.FINE, f"it answers, and has {counted(client.brokers(), 'broker')}"
        )
        asked = f"topic {kafka.topic}"
        seen = client.seen()
        yield _topic(asked, seen)
        yield _rights(seen)
        asked = "limits"
        yield _limits(client.limits(), seen, event_bytes_max)
    # The cluster answered, and something has to be changed; every other error may be temporary.
    except Halt as error:
        yield CheckResult(asked, CheckStatus.WRONG, str(error))
    except ArchiverError as error:
        yield CheckResult(
            asked, CheckStatus.UNKNOWN, f"{error} ({client.last_error})" if client.last_error else str(error)
        )
    finally:
        client.close()


def _topic(asked: str, seen: TopicSeen) -> CheckResult:
    if not seen.replicas:
        return CheckResult(
            asked,
            CheckStatus.UNKNOWN,
            "the cluster describes it without any partition; it may not have loaded the topic yet",
        )
    there = f"it is there, with {counted(len(seen.replicas), 'partition')}"
    if seen.leaderless:
        numbers = ", ".join(map(str, seen.leaderless))
        return CheckResult(
            asked,
            CheckStatus.UNKNOWN,
            f"{there}; without a leader at the moment, so not writable: {numbers}",
        )
    if min(seen.replicas) == 1:
        return CheckResult(
            asked,
            CheckStatus.NOTE,
            f"{there}, some with one replica: their records are lost with one broker",
        )
    return CheckResult(
        asked, CheckStatus.FINE, f"{there} of {counted(min(seen.replicas), 'replica')} or more"
    )


def _rights(seen: TopicSeen) -> CheckResult:
    if seen.may_write is None:
        return CheckResult(
            "rights",
            CheckStatus.NOTE,
            "the cluster does not report the permissions of the user of events.kafka",
        )
    if not seen.may_write:
        return CheckResult(
            "rights",
            CheckStatus.WRONG,
            "the user of events.kafka may describe the topic and not write to it; grant it that right",
        )
    return CheckResult("rights", CheckStatus.FINE, "the user of events.kafka may write to it")


def _limits(limits: TopicLimits | None, seen: TopicSeen, event_bytes_max: int) -> CheckResult:
    if limits is None:
        message = (
            "the user of events.kafka may not read the topic's configuration (DescribeConfigs), or "
            "the cluster does not report it, so its "
            "limits are not compared with ours"
        )
        return CheckResult("limits", CheckStatus.NOTE, message)
    # With `acks=all` a broker refuses a record that too few replicas can confirm.
    if seen.replicas and limits.replicas_min > min(seen.replicas):
        message = (
            f"min.insync.replicas is {limits.replicas_min}, and there are partitions with "
            f"{counted(min(seen.replicas), 'replica')}"
        )
        return CheckResult("limits", CheckStatus.WRONG, f"{message}: those acknowledge nothing")
    # The broker compares the whole batch with its limit, not the event alone.
    if limits.bytes_max < event_bytes_max + BATCH_OVERHEAD_BYTES:
        message = (
            f"max.message.bytes is {limits.bytes_max}, too little for an event of events.bytes_max "
            f"({event_bytes_max})"
        )
        return CheckResult(
            "limits",
            CheckStatus.WRONG,
            f"{message} and its headers: raise the one to "
            f"{event_bytes_max + BATCH_OVERHEAD_BYTES}, or lower the other",
        )
    return CheckResult("limits", CheckStatus.FINE, "it accepts the largest event")


# --- The adapter
RECORD_BYTES_MAX = 1_000_000_000
"""Largest record that the library allows; the brokers' own limit applies."""
POLL_S = 0.1
"""Interval for checking a request to stop."""
CONNECTION_ERRORS_MAX = 16
"""Newest connection errors of the client to keep."""
_STATE = re.compile(r" \(after \d++ms in state [^()]*+\)$")
# A logger of its own, so that disabling it silences nothing else.
_SILENT = logging.getLogger(f"{__name__}.silent")
_SILENT.disabled = True
# The public names of the client's own errors begin with an underscore.
_NOT_THERE = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)  # noqa: SLF001
_NOT_OURS = (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
_AUTH_FAILED = (KafkaError._AUTHENTICATION, KafkaError._SSL)  # noqa: SLF001
_TOO_LARGE = (KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE)
_TIMED_OUT = (KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT)  # noqa: SLF001


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class TopicSeen:
    """The cluster's description of the topic."""

    replicas: tuple[int, ...]
    """Number of replicas of each partition."""
    leaderless: tuple[int, ...]
    """Partitions without a leader, which are not writable now."""
    may_write: bool | None
    """Whether the user has write permission; None if the cluster does not report it."""


@dataclass(frozen=True, slots=True)
class TopicLimits:
    """Limits in the topic's configuration."""

    bytes_max: int
    """Largest batch of records: `max.message.bytes`."""
    replicas_min: int
    """Replicas that must be in sync: `min.insync.replicas`."""


class KafkaTopic:
    """A producer and an administrative client; see `archiver.control_topic.waves.Destination`."""

    def __init__(
        self,
        settings: ControlTopicSettings,
        clock: Clock,
        log: ClientLog | None = None,
        *,
        silent: bool = False,
    ) -> None:
        """`log` outlives this connection. With `silent`, connection errors are only in `last_error` and not
        logged.
        """
        self._topic = settings.topic
        self._timeout_s = settings.request_timeout
        self._patience_s = settings.delivery_timeout
        self._clock = clock
        self._errors: deque[KafkaError] = deque(maxlen=CONNECTION_ERRORS_MAX)
        common = common_properties("stream-archiver-events", settings.brokers, settings.client())
        log = (
            ClientLog("control topic", clock, _SILENT)
            if silent
            else log or ClientLog(f"control topic {settings.topic}", clock)
        )
        self._log, of_producer, of_admin = log, log.callbacks(), log.callbacks()
        milliseconds = round(settings.delivery_timeout * 1000)
        producer = {
            # The broker drops a repetition of the client within one connection.
            "enable.idempotence": "true",
            "acks": "all",
            "message.timeout.ms": str(milliseconds),
            "request.timeout.ms": str(milliseconds),
            # A wave is sent as one; waiting for more records would only delay it.
            "queue.buffering.max.ms": "0",
            "queue.buffering.max.messages": str(EVENTS_MAX),
            "queue.buffering.max.kbytes": str((RECORD_BYTES_MAX + BYTES_MAX) // 1024),
            # The client's own limit must not be below that of the brokers.
            "message.max.bytes": str(RECORD_BYTES_MAX),
            # As the Java client: the events of one table are in one partition, whichever client sends them.
            "partitioner": "murmur2_random",
        }
        try:
            self._producer: Any = Producer(common | producer | self._error_properties(of_producer))
            self._admin = AdminClient(common | self._error_properties(of_admin))
        except (KafkaException, ValueError) as error:
            raise unmade(error) from None
        # Only one thread may poll the producer: a poll runs the callbacks of records that were sent.
        self._sending = threading.Lock()
        poll_producer = of_producer.poll_of(self._producer)

        def poll_idle_producer() -> None:
            # While records are sent, the sending thread polls and counts acknowledgements.
            if self._sending.acquire(blocking=False):
                try:
                    poll_producer()
                finally:
                    self._sending.release()

        self._listener = ClientListener("control-topic", [of_admin.poll_of(self._admin), poll_idle_producer])

    def _error_properties(self, callbacks: ClientCallbacks) -> dict[str, Any]:
        """Client properties that report connection errors to this object and to the log."""
        return {**callbacks.properties(), "error_cb": partial(_collect_error, self._errors, callbacks.error)}

    def topic_id(self, stopping: Callable[[], bool]) -> bytes:
        return id_bytes(self._described(stopping).topic_id)

    def brokers(self) -> int:
        """Number of brokers in the cluster. Raises as `topic_id`."""
        self._begin()
        found = self._admin.describe_cluster(request_timeout=self._timeout_s)
        return len(
            self._answer(found, f"the cluster of the control topic {self._topic} does not answer").nodes
        )

    def seen(self) -> TopicSeen:
        """The topic and the user's permissions. Raises as `topic_id`."""
        found = self._described(_never, include_authorized_operations=True)
        may = found.authorized_operations
        return TopicSeen(
            tuple(len(one.replicas) for one in found.partitions),
            tuple(one.id for one in found.partitions if is_leaderless(one)),
            AclOperation.WRITE in may if may else None,
        )

    def limits(self) -> TopicLimits | None:
        """The topic's limits; None if its configuration is not readable for the user or not reported. Raises
        as `topic_id`.
        """
        self._begin()
        resource = ConfigResource(ConfigResource.Type.TOPIC, self._topic)
        asked = self._admin.describe_configs([resource], request_timeout=self._timeout_s)[resource]
        try:
            found = self._answer(
                asked, f"the cluster does not report the configuration of the control topic {self._topic}"
            )
        except _NotAllowed:
            return None
        values = {name: entry.value for name, entry in found.items()}
        bytes_max, replicas_min = (
            known_size(values.get("max.message.bytes")),
            known_size(values.get("min.insync.replicas")),
        )
        # Not every Kafka-compatible server has them.
        if bytes_max is None or replicas_min is None:
            return None
        return TopicLimits(bytes_max, replicas_min)

    def _described(self, stopping: Callable[[], bool], **more: bool) -> Any:
        self._begin()
        asked = self._admin.describe_topics(
            TopicCollection([self._topic]), request_timeout=self._timeout_s, **more
        )[self._topic]
        return self._answer(asked, f"the cluster does not describe the control topic {self._topic}", stopping)

    def _begin(self) -> None:
        """Poll before each request: the client queues its log events without a bound until a poll."""
        self._admin.poll(0)
        # Only errors of this request may explain its failure.
        self._errors.clear()

    def _answer(
        self, asked: concurrent.futures.Future[Any], what: str, stopping: Callable[[], bool] = _never
    ) -> Any:
        """Wait for the reply to a request; `what` is the message if there is none."""
        # The client ends a request by its timeout; this bound is for one that it does not end.
        until_s = self._clock.monotonic_s() + self._timeout_s + 5
        while not concurrent.futures.wait([asked], POLL_S).done:
            if stopping():
                raise RetryLater(f"the daemon is about to stop; so far {what}")
            if self._clock.monotonic_s() > until_s:
                raise RetryLater(f"{what} within {self._timeout_s:g} s")
        try:
            found = asked.result()
            self._log.answered()
            return found
        except KafkaException as error:
            code = error.args[0].code()
            if code in _NOT_THERE:
                raise Halt(
                    f"the cluster has no topic {self._topic}; create it, or correct events.kafka.topic"
                ) from error
            if code in _NOT_OURS:
                raise _NotAllowed(
                    f"the user of events.kafka may not describe the topic {self._topic}; grant it that right"
                ) from error
            # Delivers connection errors, which are more precise than the error of the request.
            self._admin.poll(0)
            refused = next((one for one in list(self._errors) if one.code() in _AUTH_FAILED), None)
            if refused is not None:
                raise Halt(
                    f"{what}, because it refuses the connection: {_why(refused)}; "
                    "correct events.kafka.properties"
                ) from error
            raise later(what, error) from error

    @property
    def last_error(self) -> str:
        """The newest connection error since the last request; empty if there is none."""
        return _why(self._errors[-1]) if self._errors else ""

    def send(self, records: Sequence[TopicRecord], stopping: Callable[[], bool]) -> None:
        with self._sending:
            self._send(records, stopping)

    def _send(self, records: Sequence[TopicRecord], stopping: Callable[[], bool]) -> None:
        failed: list[ArchiverError] = []
        waiting = len(records)

        def delivered(what: str, error: KafkaError | None, _: object) -> None:
            nonlocal waiting
            # Called by `poll`, so in the sending thread.
            waiting -= 1
            if error is not None:
                failed.append(self._record_error(error, what))

        for record in records:
            self._produce(record, partial(delivered, record.what))
        # The library reports every record within its timeout; this bound is for one that does not.
        until_s = self._clock.monotonic_s() + self._patience_s + 5
        # Ends at the first error: the publisher closes the connection and begins again at the position.
        while waiting and not failed:
            self._producer.poll(POLL_S)
            if waiting and stopping():
                raise OutcomeUnknown(
                    "the daemon is about to stop; what was not acknowledged is published again"
                )
            if waiting and self._clock.monotonic_s() > until_s:
                raise OutcomeUnknown(
                    f"{counted(waiting, 'event was', 'events were')} not acknowledged within "
                    f"{self._patience_s:g} s and are sent again"
                )
        if failed:
            # An error that a retry cannot fix is reported first.
            raise next((error for error in failed if isinstance(error, Halt)), failed[0])

    def _produce(self, record: TopicRecord, on_delivery: Callable[[Any, Any], None]) -> None:
        try:
            self._producer.produce(
                self._topic, record.value, record.key, headers=list(record.headers), on_delivery=on_delivery
            )
        except BufferError:
            raise RetryLater("the Kafka client's queue is full") from None
        except KafkaException as error:
            raise self._record_error(error.args[0], record.what) from error

    def _record_error(self, error: KafkaError, what: str) -> ArchiverError:
        """Map an error of one record to the error tree."""
        code, words = error.code(), excerpt(error.str(), MESSAGE_MAX)
        if code in _TOO_LARGE:
            return Halt(
                f"the control topic {self._topic} refuses {what} as too large; raise max.message.bytes "
                "of the topic (or message.max.bytes "
                "of its brokers). No later event is published until then"
            )
        if code in _NOT_OURS:
            return Halt(
                f"the user of events.kafka may not write to the topic {self._topic}: {words}; grant it "
                "that right"
            )
        # The record may still have been written, or be on its way.
        if code in _TIMED_OUT:
            return OutcomeUnknown(
                f"{what} was not acknowledged within {self._patience_s:g} s: {words}; it is published again"
            )
        return RetryLater(f"{what} was not accepted by the control topic {self._topic}: {words}")

    def close(self) -> None:
        self._listener.close()
        # Not `flush`: a record that is sent later could come after those of the next connection.
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        # Runs the callbacks of purged records, so that the client frees them.
        self._producer.poll(0)


class _NotAllowed(Halt):
    """The user has no permission for the request."""


def _collect_error(errors: deque[KafkaError], log: Callable[[KafkaError], None], error: KafkaError) -> None:
    # It says nothing that the errors of the single brokers do not.
    if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001
        errors.append(error)
    log(error)


def _why(error: KafkaError) -> str:
    """The text without broker and milliseconds, so that a lasting error always reads the same."""
    return _STATE.sub("", excerpt(error.str().partition(": ")[2] or error.str(), MESSAGE_MAX))

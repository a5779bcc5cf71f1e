"""Reads record batches of partitions from the leaders of a Kafka cluster.

One thread uses it, and it waits in `poll` only: connections are opened, and leaders asked for, in threads of
their own. A broker has one request on the way. While its response is worked on, the next one is already
requested, until `queue_bytes_max` is waiting. A partition is read in order. After trouble it delivers what
was before, then the trouble, and nothing more.
"""

from __future__ import annotations

import logging
import selectors
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v3.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kio.schema.offset_for_leader_epoch.v3.response import OffsetForLeaderEpochResponse
from kio.static.primitive import i32

from archiver.config.kafka import KafkaSourceSettings
from archiver.runtime.clock import Clock
from archiver.runtime.ids import IdSource
from intake.arrow_arrays import ArrowArray, Int64Array, concat_batches
from intake.batches.decoding import BatchHeader, BatchRefused, decode_with_gaps, measure
from intake.records import RECORD_SCHEMA, TIMESTAMP, TIMESTAMP_MAX_US
from intake.sources.kafka.client_log import ClientLog
from intake.sources.kafka.fetched import (
    BadResponse,
    Result,
    Wish,
    committed,
    fetch_request,
    read_response,
    remove_producer,
)
from intake.sources.kafka.leaders import Job, Leaders, ask_leaders
from intake.sources.kafka.single_records import SingleRecord, read_records
from intake.sources.kafka.upstream import Place, Polled, Stopped, Trouble, UpstreamBatch, UpstreamRows
from intake.sources.kafka.wire import (
    FETCH,
    FETCH_VERSION,
    Access,
    Connecting,
    Connection,
    NotSpoken,
    WireError,
    bootstrap_addresses,
    error_of,
    name_of,
)

FETCH_BYTES_MAX = 50 * 2**20
"""Largest response of a broker, in stored (compressed) bytes; limited further by `queue_bytes_max`."""
FETCH_PARTITION_BYTES = 2**20
FETCH_WAIT_MS = 500
PAUSE_PER_PARTITION_S = 1e-5
"""After a response of few bytes: a request and its response take 5 µs of CPU for each of their partitions, so
many of them with few records each must not be asked for all the time."""
UNCOMPRESSED_QUEUES = 2
"""Largest batch after decompression, as a multiple of `queue_bytes_max`: it bounds the memory of readers."""
POLL_BYTES_MAX = 4 * 2**20
"""A poll delivers no further batch above this number of bytes of records."""
AGAIN_FIRST_S, AGAIN_MAX_S = 0.1, 10.0
"""Pauses after a failed connection, or a broker that is not the leader: doubled each time."""
STALE_PAUSE_S = 3.0
"""An answer with an older leader epoch is believed once the pauses are as long."""
_LEADER_MOVED = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.leader_not_available,
        ErrorCode.not_leader_or_follower,
        ErrorCode.replica_not_available,
        ErrorCode.kafka_storage_error,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.offset_not_available,
        ErrorCode.broker_not_available,
        ErrorCode.unknown_topic_id,
        ErrorCode.inconsistent_topic_id,
        ErrorCode.listener_not_found,
    }
)
"""Errors after which the leader is asked for again."""
FETCH_BYTES_MIN = 2**16
"""A request asks for half as much after a response that came too slowly, and for at least this."""
AWAY_S = 1.0
"""After a longer time without reading, the buffers of a connection may be full."""
_JOB_TIMEOUTS = 2
_DROPPED_MAX = 8
"""Threads that were given up and have not ended; at this number no further one is started."""
_TICK_S = 0.01
"""While a thread works for it, a wait ends after this time."""


@dataclass(slots=True, eq=False)
class _Part:
    """A partition that is read."""

    place: Place
    offset: int
    """From which the next fetch reads."""
    wished: int
    """No record before it is delivered."""
    epoch: int | None
    """Leader epoch of the record before `offset`."""
    leader: int | None = None
    leader_epoch: int = -1
    is_checked: bool = False
    """The leader has the records before `offset`, as far as `epoch` shows."""
    not_before_s: float = 0.0
    pause_s: float = AGAIN_FIRST_S
    waiting: deque[tuple[BatchHeader, memoryview]] = field(default_factory=deque)
    singles: Iterator[SingleRecord] | None = None
    """The records of the first waiting batch, if it is read record by record."""
    bytes_waiting: int = 0
    end: int | None = None
    """Its end, if that was reached and not reported."""
    reported_end: int = -1
    high: int | None = None
    stable: int = 0
    """Where the records end that consumers of committed records get, as the last response says."""
    trouble: Stopped | None = None

    def pass_over(self, header: BatchHeader, data: memoryview) -> None:
        """The first waiting batch is delivered."""
        self.waiting.popleft()
        self.bytes_waiting -= len(data)
        self.wished = max(self.wished, header.base_offset + header.last_offset_delta + 1)

    def put_off(self, now_s: float) -> None:
        """Wait before the next attempt."""
        self.not_before_s = now_s + self.pause_s
        self.pause_s = min(AGAIN_MAX_S, 2 * self.pause_s)


@dataclass(slots=True, eq=False)
class _Broker:
    """A broker that leads partitions."""

    address: tuple[str, int]
    connection: Connection | None = None
    opening: Job[Connection] | None = None
    checking: Job[tuple[Connection, Any]] | None = None
    """A thread has the connection, to ask for the ends of epochs."""
    not_before_s: float = 0.0
    pause_s: float = AGAIN_FIRST_S
    fetch_at_s: float = 0.0
    """No fetch before."""
    bytes_max: int = FETCH_BYTES_MAX
    fetched: list[tuple[_Part, int]] = field(default_factory=list)
    """The partitions of the request on the way, and their offsets."""


class Fetcher:
    """Reads partitions."""

    def __init__(
        self, settings: KafkaSourceSettings, access: Access, clock: Clock, ids: IdSource, log: ClientLog
    ) -> None:
        self._name = settings.name
        self._connecting = Connecting(access, clock, ids)
        self._clock = clock
        self._log = log
        self._timeout_s = settings.request_timeout
        self._queue_bytes_max = settings.queue_bytes_max
        self._uncompressed_max = UNCOMPRESSED_QUEUES * settings.queue_bytes_max
        self._bootstrap = bootstrap_addresses(settings.brokers)
        self._parts: dict[Place, _Part] = {}
        self._brokers: dict[int, _Broker] = {}
        self._asker: Connection | None = None
        self._asking: Job[Leaders] | None = None
        self._ask_at_s = 0.0
        self._ask_pause_s = AGAIN_FIRST_S
        self._must_ask = False
        self._ask_turn = 0
        self._dropped: list[Job[Any]] = []
        self._polled_s = clock.monotonic_s()

    # --- what is read

    def read(self, positions: Mapping[Place, tuple[int, int | None]]) -> None:
        """Read these partitions from that offset, with the leader epoch of the record before it."""
        for place, (offset, epoch) in positions.items():
            self._parts[place] = _Part(place, offset, offset, epoch)
        self._must_ask = bool(self._parts)
        self._ask_at_s = 0.0

    def stop_reading(self, places: Sequence[Place]) -> None:
        """Stop; what waits is dropped."""
        for place in places:
            self._parts.pop(place, None)

    def positions(self) -> dict[Place, tuple[int, int | None]]:
        """Where the next record of each partition is, for another reader."""
        return {
            # The epoch is of the record before `offset`.
            place: (part.wished, part.epoch if part.wished == part.offset else None)
            for place, part in self._parts.items()
        }

    def known_ends(self, places: Collection[Place]) -> dict[Place, int]:
        """The last known end offsets."""
        found: dict[Place, int] = {}
        for place in places:
            part = self._parts.get(place)
            if part is not None and part.high is not None:
                found[place] = part.high
        return found

    def close(self) -> None:
        """Close all connections, without waiting."""
        for broker in self._brokers.values():
            self._disconnect(broker)
        if self._asking is not None:
            self._asking.drop()
        if self._asker is not None:
            self._asker.close()
        self._brokers.clear()
        self._parts.clear()
        self._asker = self._asking = None

    def poll(self, records_max: int, timeout_s: float) -> Polled:
        """As `Upstream.poll`. Raises `NotSpoken` if the cluster cannot be read here."""
        now_s = self._clock.monotonic_s()
        until_s = now_s + timeout_s
        for broker in self._brokers.values():
            if broker.connection is not None and now_s - self._polled_s > AWAY_S:
                broker.connection.leave_out(now_s - self._polled_s)
        while True:
            self._work()
            polled = self._deliver(records_max)
            self._polled_s = self._clock.monotonic_s()
            left_s = until_s - self._polled_s
            has_records = polled.batches or polled.rows or polled.offsets
            if has_records or polled.ends or polled.stopped or left_s <= 0:
                return polled
            self._wait(left_s)

    def _wait(self, left_s: float) -> None:
        busy = self._asking is not None or any(
            one.opening is not None or one.checking is not None for one in self._brokers.values()
        )
        with selectors.DefaultSelector() as selector:
            for broker in self._brokers.values():
                if broker.connection is not None and broker.connection.waits_since_s is not None:
                    selector.register(broker.connection, selectors.EVENT_READ)
            idle = not selector.get_map()
            selector.select(min(left_s, _TICK_S) if busy or (idle and self._parts) else left_s)

    # --- brokers

    def _work(self) -> None:
        """Take what has come, and request what is needed."""
        now_s = self._clock.monotonic_s()
        self._take_leaders(now_s)
        for broker in list(self._brokers.values()):
            self._take_connection(broker, now_s)
            self._take_check(broker, now_s)
            self._take_response(broker, now_s)
        led: dict[int, list[_Part]] = {}
        for part in self._parts.values():
            if part.trouble is None and part.not_before_s <= now_s:
                if part.leader is None:
                    self._must_ask = True
                else:
                    led.setdefault(part.leader, []).append(part)
        self._ask_leaders(now_s)
        room = self._queue_bytes_max - sum(part.bytes_waiting for part in self._parts.values())
        for number, parts in led.items():
            if number not in self._brokers:
                self._must_ask = True
            elif self._brokers[number].checking is None:
                self._request(self._brokers[number], parts, now_s, room)

    def _ask_leaders(self, now_s: float) -> None:
        if not self._must_ask or self._asking is not None or now_s < self._ask_at_s or not self._parts:
            return
        if not self._may_start():
            return
        self._must_ask = False
        names = sorted({place[0] for place in self._parts})
        asker, self._asker = self._asker, None
        addresses = list(dict.fromkeys([*self._bootstrap, *(one.address for one in self._brokers.values())]))
        # After a failure another one is first, because the first one may take all the time.
        turn = self._ask_turn % len(addresses)
        addresses = addresses[turn:] + addresses[:turn]
        self._asking = Job(
            f"mirror-leaders-{self._name}",
            lambda: ask_leaders(self._connecting, asker, addresses, names, self._timeout_s),
            lambda found: found.connection.close(),
            now_s + _JOB_TIMEOUTS * self._timeout_s,
        )

    def _may_start(self) -> bool:
        """Whether few enough threads that were given up are left."""
        self._dropped = [job for job in self._dropped if not job.done]
        return len(self._dropped) < _DROPPED_MAX

    def _drop(self, job: Job[Any] | None) -> None:
        if job is not None:
            job.drop()
            self._dropped.append(job)

    def _take_leaders(self, now_s: float) -> None:
        job = self._asking
        if job is None or not (job.done or job.is_late(now_s)):
            return
        self._asking = None
        self._ask_at_s = now_s + self._ask_pause_s
        self._ask_pause_s = min(AGAIN_MAX_S, 2 * self._ask_pause_s)
        if job.error is not None or job.result is None:
            self._drop(job)
            self._failed(job.error or WireError("no broker is connected in time"))
            self._must_ask = True
            self._ask_turn += 1
            return
        found = job.result
        self._asker = found.connection
        self._ask_pause_s = AGAIN_FIRST_S
        for number, address in found.brokers.items():
            known = self._brokers.get(number)
            if known is None or known.address != address:
                if known is not None:
                    self._disconnect(known)
                self._brokers[number] = _Broker(address)
        for number in self._brokers.keys() - found.brokers.keys():
            self._disconnect(self._brokers.pop(number))
        for part in self._parts.values():
            topic_error = found.errors.get(part.place[0])
            if topic_error is None:
                self._must_ask = True  # it was not asked for
            elif part.place in found.leaders:
                self._follow(part, *found.leaders[part.place], now_s)
            elif topic_error is ErrorCode.unknown_topic_or_partition:
                self._stop(part, "away", "the cluster does not have the topic")
            elif topic_error in (
                ErrorCode.topic_authorization_failed,
                ErrorCode.invalid_topic_exception,
            ):
                self._stop(part, "other", f"the cluster does not describe it: {topic_error.name}")
            else:
                part.leader = None
                part.put_off(now_s)

    def _follow(self, part: _Part, leader: int, epoch: int, now_s: float) -> None:
        # An older answer says nothing new, unless it lasts: the topic may be another one.
        if 0 <= epoch < part.leader_epoch and part.pause_s < STALE_PAUSE_S:
            part.put_off(now_s)
            return
        if (leader, epoch) != (part.leader, part.leader_epoch):
            # A new leader may lack what was read from another one.
            part.is_checked = False
        elif part.leader is not None and part.pause_s > AGAIN_FIRST_S:
            part.put_off(now_s)
        part.leader, part.leader_epoch = leader, epoch

    def _failed(self, error: Exception | None) -> None:
        if isinstance(error, NotSpoken):
            raise error
        if isinstance(error, WireError):
            self._log.say(logging.WARNING, str(error))
        elif error is not None:
            self._log.say(logging.WARNING, f"unexpected error: {type(error).__name__}: {error}")

    def _disconnect(self, broker: _Broker) -> None:
        if broker.connection is not None:
            broker.connection.close()
        self._drop(broker.opening)
        self._drop(broker.checking)
        broker.connection = broker.opening = broker.checking = None
        broker.fetched = []

    def _lost(self, broker: _Broker, error: Exception | None, now_s: float) -> None:
        """The connection failed."""
        self._disconnect(broker)
        broker.not_before_s = now_s + broker.pause_s
        broker.pause_s = min(AGAIN_MAX_S, 2 * broker.pause_s)
        # Another broker may lead its partitions by now.
        self._must_ask = True
        self._failed(error)

    def _take_connection(self, broker: _Broker, now_s: float) -> None:
        job = broker.opening
        if job is None:
            return
        if job.done:
            broker.opening, broker.connection = None, job.result
            if job.result is None:
                self._lost(broker, job.error, now_s)
        elif job.is_late(now_s):
            self._lost(broker, WireError(f"broker {name_of(broker.address)} is not connected in time"), now_s)

    def _request(self, broker: _Broker, parts: list[_Part], now_s: float, room: int) -> None:
        """Send the next request to a broker, if it has none."""
        connection = broker.connection
        if connection is None:
            if broker.opening is None and now_s >= broker.not_before_s and self._may_start():
                broker.opening = Job(
                    f"mirror-connect-{self._name}",
                    lambda: Connection(self._connecting, broker.address, self._timeout_s),
                    lambda made: made.close(),
                    now_s + _JOB_TIMEOUTS * self._timeout_s,
                )
            return
        if connection.waits_since_s is not None:
            return
        if connection.expires_s is not None and now_s >= connection.expires_s:
            self._disconnect(broker)
            return
        unchecked = [part for part in parts if not part.is_checked]
        if not connection.knows_epochs:
            for part in unchecked:
                part.is_checked = True
        elif proofs := [part for part in unchecked if part.epoch is not None]:
            self._check(broker, proofs, now_s)
            return
        for part in unchecked:
            part.is_checked = True
        if room <= 0 or now_s < broker.fetch_at_s:
            return
        wishes = [Wish(part.place, part.leader_epoch, part.offset) for part in parts]
        bytes_max = min(broker.bytes_max, max(FETCH_PARTITION_BYTES, self._queue_bytes_max))
        body = fetch_request(wishes, FETCH_WAIT_MS, bytes_max, min(bytes_max, FETCH_PARTITION_BYTES))
        try:
            connection.send(FETCH, FETCH_VERSION, body, now_s)
        except WireError as error:
            self._lost(broker, error, now_s)
            return
        broker.fetched = [(part, part.offset) for part in parts]

    # --- leader epochs

    def _check(self, broker: _Broker, parts: list[_Part], now_s: float) -> None:
        """Ask the leader where the epochs of the last records end. The connection is lent to the thread."""
        connection, broker.connection = broker.connection, None
        assert connection is not None, "the caller has it"
        broker.fetched = [(part, part.offset) for part in parts]
        request = _epochs_request(parts)

        def ask() -> tuple[Connection, Any]:
            try:
                return connection, connection.ask(request, OffsetForLeaderEpochResponse, self._timeout_s)
            except BaseException:
                connection.close()
                raise

        late_s = now_s + _JOB_TIMEOUTS * self._timeout_s
        broker.checking = Job(f"mirror-epochs-{self._name}", ask, lambda made: made[0].close(), late_s)

    def _take_check(self, broker: _Broker, now_s: float) -> None:
        job = broker.checking
        if job is None or not job.done:
            return
        broker.checking = None
        if job.result is None:
            self._lost(broker, job.error, now_s)
            return
        broker.connection, response = job.result
        ends = {(topic.topic, one.partition): one for topic in response.topics for one in topic.partitions}
        for part, offset in broker.fetched:
            one = ends.get(part.place)
            if self._parts.get(part.place) is not part or part.offset != offset or part.is_checked:
                continue
            if one is None or one.error_code:
                code = ErrorCode.unknown_server_error if one is None else error_of(one.error_code)
                self._failed_part(part, code, now_s)
            elif one.end_offset < 0 or one.leader_epoch < 0 or one.end_offset < part.offset:
                self._stop(
                    part,
                    "truncated",
                    f"log truncation detected at offset {part.offset}: the cluster has leader epoch "
                    f"{part.epoch} up to offset {one.end_offset}",
                )
            else:
                part.is_checked = True
        broker.fetched = []

    # --- responses

    def _take_response(self, broker: _Broker, now_s: float) -> None:
        connection = broker.connection
        if connection is None or connection.waits_since_s is None:
            return
        took_s = now_s - connection.waits_since_s
        try:
            data = connection.receive()
            if data is None:
                if connection.is_late(now_s, self._timeout_s + FETCH_WAIT_MS / 1000):
                    most = min(broker.bytes_max, FETCH_PARTITION_BYTES * len(broker.fetched))
                    broker.bytes_max = max(FETCH_BYTES_MIN, most // 2)
                    raise WireError(f"broker {name_of(broker.address)} does not respond in time")
                return
            error, results = read_response(data)
        except BadResponse as bad:
            self._lost(broker, WireError(f"a fetch response cannot be read: {bad}"), now_s)
            return
        except WireError as lost:
            self._lost(broker, lost, now_s)
            return
        broker.pause_s = AGAIN_FIRST_S
        # Only a response that fills its request shows that more would come as quickly.
        if took_s < self._timeout_s / 2 and len(data) > broker.bytes_max // 2:
            broker.bytes_max = min(FETCH_BYTES_MAX, 2 * broker.bytes_max)
        asked = {part.place: (part, offset) for part, offset in broker.fetched}
        broker.fetched = []
        if error:
            self._lost(broker, WireError(f"a fetch is refused with error {error}"), now_s)
            return
        if len(data) < FETCH_PARTITION_BYTES:
            broker.fetch_at_s = now_s + PAUSE_PER_PARTITION_S * len(results)
        self._log.answered()
        for result in results:
            part, offset = asked.get(result.place, (None, 0))
            # It may have been stopped, or begun elsewhere, since the request.
            if part is not None and self._parts.get(result.place) is part and part.offset == offset:
                self._take_result(part, result, now_s)

    def _take_result(self, part: _Part, result: Result, now_s: float) -> None:
        if result.error:
            self._failed_part(part, error_of(result.error), now_s)
            return
        part.pause_s = AGAIN_FIRST_S
        part.high = result.high
        if len(result.records):
            found = committed(result.records, part.offset, result.aborted)
            if found.is_old and not found.batches and found.end == part.offset:
                raise NotSpoken("the cluster has records in a format of Kafka before 0.11")
            # Served in turn: a broker fills its response in the order of the request.
            self._parts[part.place] = self._parts.pop(part.place)
            size = sum(len(data) for _, data in found.batches)
            # A view keeps all of the response, also what is not delivered of it.
            whole = 2 * size >= len(result.records)
            part.waiting.extend(found.batches if whole else [_copied(*one) for one in found.batches])
            part.bytes_waiting += size
            if found.damage is not None:
                self._stop(part, "damaged", found.damage)
            elif found.end == part.offset:
                self._stop(part, "other", "the cluster delivers no whole batch")
            if found.end > part.offset:
                part.epoch = found.leader_epoch if found.leader_epoch >= 0 else None
            part.offset = found.end
        part.stable = result.last_stable if result.last_stable >= 0 else result.high
        if part.trouble is None and part.offset >= part.stable and part.offset != part.reported_end:
            part.end = part.offset

    def _failed_part(self, part: _Part, code: ErrorCode, now_s: float) -> None:
        if code is ErrorCode.offset_out_of_range:
            self._stop(part, "out_of_range", f"offset {part.offset} is out of range")
        elif code in _LEADER_MOVED:
            part.put_off(now_s)
            self._must_ask = True
        elif code is ErrorCode.corrupt_message:
            self._stop(part, "damaged", "the cluster reports a corrupt message")
        else:
            self._stop(part, "other", f"the cluster does not deliver it: {code.name}")

    def _stop(self, part: _Part, trouble: Trouble, why: str) -> None:
        if part.trouble is None:
            part.trouble = Stopped(part.place, trouble, why)

    # --- delivery

    def _deliver(self, records_max: int) -> Polled:
        polled = Polled()
        self._deliver_batches(polled, records_max)
        self._deliver_rows(polled, records_max - len(polled.batches))
        left = records_max - len(polled.batches) - sum(len(one.offsets) for one in polled.rows)
        for part in list(self._parts.values()):
            if part.singles is not None and left > 0 and part.place not in polled.epochs:
                left -= self._deliver_singles(polled, part, left)
            polled.more |= bool(part.waiting) or part.offset < part.stable
            if not part.waiting:
                # Each may be a segment of its own in the entry, as a record may be.
                if part.end is not None and left > 0:
                    polled.ends[part.place] = part.reported_end = part.end
                    part.end = None
                    left -= 1
                polled.more |= part.end is not None
                if part.trouble is not None and part.end is None:
                    polled.stopped.append(part.trouble)
                    del self._parts[part.place]
        polled.epochs = {place: epoch for place, epoch in polled.epochs.items() if epoch >= 0}
        return polled

    def _deliver_batches(self, polled: Polled, batches_max: int) -> None:
        """Deliver batches that can be stored as they came."""
        chosen: list[tuple[_Part, BatchHeader, memoryview]] = []
        size = 0
        for part in self._parts.values():
            for header, data in part.waiting:
                if part.singles is not None or not _is_regular(header, part.wished):
                    break
                if len(chosen) >= batches_max or size >= POLL_BYTES_MAX:
                    break
                chosen.append((part, header, data))
                size += len(data)
        measured = [(header, data) for _, header, data in chosen]
        results = measure(measured, uncompressed_max=self._uncompressed_max, total_max=POLL_BYTES_MAX)
        for (part, header, data), sizes in zip(chosen, results, strict=False):
            # Of a batch with a record without a time, readers need the accept time.
            if isinstance(sizes, BatchRefused) or sizes.untimed:
                part.singles = part.singles or self._singles(header, data)
            elif part.singles is None:
                part.pass_over(header, data)
                remove_producer(header, data)
                polled.batches.append(UpstreamBatch(part.place, header, data, sizes))
                polled.epochs[part.place] = header.leader_epoch

    def _deliver_rows(self, polled: Polled, records_max: int) -> None:
        """Deliver batches that begin with one that cannot be stored as it came, decoded."""
        chosen: list[tuple[_Part, BatchHeader, memoryview]] = []
        count = size = 0
        for part in self._parts.values():
            if part.singles is not None or part.place in polled.epochs or not part.waiting:
                continue
            first, first_data = part.waiting[0]
            if _is_regular(first, part.wished):
                continue
            # Its records have to be delivered in parts, or one of them has to be named.
            if first.count > records_max or not _has_good_time(first):
                part.singles = self._singles(first, first_data)
                continue
            for header, data in part.waiting:
                if count + header.count > records_max or size >= POLL_BYTES_MAX or not _has_good_time(header):
                    break
                chosen.append((part, header, data))
                count += header.count
                size += len(data)
        found: dict[Place, list[tuple[Int64Array, pa.RecordBatch]]] = {}
        results = decode_with_gaps(
            [(header, data) for _, header, data in chosen],
            uncompressed_max=self._uncompressed_max,
            total_max=POLL_BYTES_MAX,
        )
        for (part, header, data), result in zip(chosen, results, strict=False):
            if isinstance(result, BatchRefused):
                part.singles = part.singles or self._singles(header, data)
            elif part.singles is None:
                found.setdefault(part.place, []).append(_rows_from(part.wished, header, *result))
                part.pass_over(header, data)
                polled.epochs[part.place] = header.leader_epoch
        for place, pieces in found.items():
            offsets = np.concatenate([one for one, _ in pieces])
            polled.rows.append(UpstreamRows(place, offsets, concat_batches([one for _, one in pieces])))

    def _singles(self, header: BatchHeader, data: memoryview) -> Iterator[SingleRecord]:
        return read_records(header, data, self._uncompressed_max)

    def _deliver_singles(self, polled: Polled, part: _Part, records_max: int) -> int:
        """Deliver records of the first waiting batch; how many."""
        header, data = part.waiting[0]
        singles = part.singles
        assert singles is not None, "the caller has seen it"
        count = size = 0
        try:
            while count < records_max and size < POLL_BYTES_MAX:
                one = next(singles, None)
                if one is None:
                    part.singles = None
                    part.pass_over(header, data)
                    break
                if one.offset < part.wished:
                    continue
                polled.add(part.place, one)
                part.wished = one.offset + 1
                count += 1
                size += len(one.value or b"")
        except BatchRefused as refused:
            what = f"the batch at offset {header.base_offset}"
            if refused.code == "message_too_large":
                self._stop(
                    part,
                    "other",
                    f"the records of {what} have more than {self._uncompressed_max} bytes after "
                    "decompression; raise the source's queue_bytes_max to half of what they have",
                )
            else:
                self._stop(part, "damaged", f"{what}: {refused}")
            part.waiting.clear()
            part.bytes_waiting = 0
            part.singles = None
            part.end = None
        if count:
            polled.epochs[part.place] = header.leader_epoch
        return count


def _copied(header: BatchHeader, data: memoryview) -> tuple[BatchHeader, memoryview]:
    return header, memoryview(bytearray(data))


def _is_regular(header: BatchHeader, wished: int) -> bool:
    """Whether the batch can be stored as it came, by its header."""
    return (
        header.base_offset >= wished
        and header.last_offset_delta == header.count - 1
        # Readers take the times of the records.
        and not header.log_append_time
    )


def _has_good_time(header: BatchHeader) -> bool:
    return not header.log_append_time or 0 <= header.max_timestamp_ms <= TIMESTAMP_MAX_US // 1000


def _rows_from(
    wished: int, header: BatchHeader, columns: pa.RecordBatch, deltas: Int64Array
) -> tuple[Int64Array, pa.RecordBatch]:
    """The records of a batch from an offset on, with the broker's time if it has set one."""
    offsets = header.base_offset + deltas
    if header.log_append_time:
        times: ArrowArray = pa.array(np.full(len(offsets), header.max_timestamp_ms * 1000, np.int64))
        columns = pa.RecordBatch.from_arrays(
            [*columns.columns[:3], times.view(TIMESTAMP)], schema=RECORD_SCHEMA
        )
    first = int(np.searchsorted(offsets, wished))
    return offsets[first:], columns.slice(first)


def _epochs_request(parts: Sequence[_Part]) -> OffsetForLeaderEpochRequest:
    topics: dict[str, list[Any]] = {}
    for part in parts:
        assert part.epoch is not None, "only partitions with an epoch are checked"
        topics.setdefault(part.place[0], []).append(
            OffsetForLeaderPartition(
                partition=i32(part.place[1]),
                current_leader_epoch=i32(part.leader_epoch),
                leader_epoch=i32(part.epoch),
            )
        )
    named: Any = topics
    return OffsetForLeaderEpochRequest(
        replica_id=-1,  # type: ignore[arg-type]  # a consumer
        topics=tuple(
            OffsetForLeaderTopic(topic=topic, partitions=tuple(those)) for topic, those in named.items()
        ),
    )

"""Fetch and ListOffsets: requests of Kafka consumers, which wait for records without a thread.

A fetch that waits is woken when the intake log grows, by this daemon or by another one. Reading and decoding
happen in a few threads of their own, so that a consumer that is far behind takes none that others need.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from archiver.kafka.fetch import EARLIEST, Fetched, FetchReader, OffsetOutOfRange
from archiver.kafka.large import sized
from archiver.kafka.listener import AnswerMemory, Body, Session
from archiver.kafka.log_view import LogView
from archiver.kafka.metadata import LEADER_EPOCH
from archiver.kafka.protocol import KafkaRequest
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Corrupted, InvalidInput, NotFound
from archiver.runtime.logging import LogLimit
from archiver.runtime.redaction import excerpt
from archiver.status.kafka_port import ListenerCounts
from intake.log.fold import TopicState

_log = logging.getLogger(__name__)

REFRESH_S: Final = 0.1
"""Interval at which the log is read for entries of other daemons while a fetch waits."""
_EARLIEST_LOCAL: Final = -4
"""The first offset on a broker's own disk (KIP-405); here the first offset."""
_READ_COMMITTED: Final = 1

FETCH_READ_S: Final = 5.0
"""After this time a fetch reads no further partition: thousands of small archives may each take a while."""
LIST_S: Final = 20.0
"""After this time ListOffsets searches no further partition; the client asks for the others again."""

Allows = Callable[[str, str], bool]
"""Whether a principal may do something with a topic."""


@dataclass(slots=True)
class _Part:
    """One partition of a fetch."""

    topic: str
    number: int
    offset: int
    bytes_max: int
    state: TopicState | None
    code: ErrorCode = ErrorCode.none
    found: Fetched | None = None
    log_start: int = -1
    high_watermark: int = -1


class LogWatch:
    """Wakes waiting fetches when the intake log grows. Only `advanced` may be called outside the listener's
    loop.
    """

    def __init__(self, log: LogView, threads: Executor) -> None:
        """`threads` must not be those that read records, or fetches that wait would be woken late."""
        self._log = log
        self._threads = threads
        self._waiting = 0
        self._grown = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def advanced(self) -> None:
        """The log has a further entry. Called by the thread that appends or reads it, so it must not
        block.
        """
        loop = self._loop
        if loop is not None and self._waiting:
            # The loop may have ended since; then nothing waits.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        self._grown.set()
        # A new event for those that wait from now on.
        self._grown = asyncio.Event()

    async def grown(self, seen: int) -> None:
        """Return when the log is longer than `seen` entries."""
        self._loop = asyncio.get_running_loop()
        self._waiting += 1
        try:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._run())
            # After the count above, so that an entry of this moment wakes this wait.
            while self._log.generation == seen:
                await self._grown.wait()
        finally:
            self._waiting -= 1

    async def _run(self) -> None:
        """Read the entries of other daemons as long as a fetch waits."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            await asyncio.sleep(REFRESH_S)
            # Failures are not counted here: the next fetch or produce request meets them itself.
            with contextlib.suppress(ArchiverError):
                await loop.run_in_executor(self._threads, self._log.refresh)


class ConsumeHandler:
    """Answers Fetch and ListOffsets."""

    def __init__(
        self,
        reader: FetchReader,
        log: LogView,
        topics: Callable[[], Mapping[str, TopicState]],
        may_read: Allows,
        may_see: Allows,
        threads: Executor,
        watch_threads: Executor,
        clock: Clock,
        answers: AnswerMemory,
        *,
        bytes_max: int,
        wait_max_s: float,
        counts: ListenerCounts,
    ) -> None:
        """`threads` read records, `watch_threads` the log while fetches wait. `bytes_max` and `wait_max_s`
        bound what a client asks for. `answers` bounds the bytes of all answers; the listener gives them back.
        """
        self._reader = reader
        self._log = log
        self._topics = topics
        self._may_read = may_read
        self._may_see = may_see
        self._threads = threads
        self._clock = clock
        self._answers = answers
        self._bytes_max = bytes_max
        self._wait_max_s = wait_max_s
        self._counts = counts
        self._log_limit = LogLimit(_log)
        self._defects_limit = LogLimit(_log)
        self._stopping = asyncio.Event()
        self.watch = LogWatch(log, watch_threads)

    def stop(self) -> None:
        """Answer waiting fetches now, and further ones without a wait. Call it in the listener's loop."""
        self._stopping.set()

    async def fetch(self, session: Session, request: KafkaRequest) -> Body:
        """Read records, and wait for them if there are too few."""
        body = request.body
        if getattr(body, "session_id", 0) != 0:
            # This listener opens no sessions, so the id is of another broker.
            return _no_session()
        committed = body.isolation_level == _READ_COMMITTED
        asked_s = self._clock.monotonic_s()
        parts = await sized(self._threads, request.elements, self._parts, session, body)
        loop = asyncio.get_running_loop()
        if await sized(self._threads, len(parts), lambda: any(map(self._beyond_end, parts))):
            # Another daemon may have stored the records below these offsets. If the log cannot be read, the
            # read of these partitions meets that error again and names it.
            with contextlib.suppress(ArchiverError):
                await loop.run_in_executor(self._threads, lambda: self._log.refresh(since_s=asked_s))
        await self._wait_for(parts, body, committed)
        bytes_max = max(0, min(body.max_bytes, self._bytes_max))
        if any(part.code is ErrorCode.none for part in parts):
            # After the wait for records: consumers that wait for new ones need no memory.
            granted = session.answer_bytes = self._answers.take(bytes_max)
            await loop.run_in_executor(self._threads, self._read, session, parts, granted, committed, asked_s)
            size = sum(part.found.size for part in parts if part.found is not None)
            session.answer_bytes = size
            self._answers.correct(granted, size)
        for part in parts:
            if part.found is not None and part.found.source is not None:
                self._counts.fetch("cache" if part.found.cached else part.found.source)
        return await sized(self._threads, len(parts), _fetched, parts, committed)

    def _parts(self, session: Session, body: Any) -> list[_Part]:
        topics = self._topics()
        parts = []
        seen: set[tuple[str, int]] = set()
        for topic in body.topics:
            allowed = self._may_read(session.principal, topic.topic)
            state = topics.get(topic.topic)
            for one in topic.partitions:
                # Each partition once: a small request could otherwise repeat one many thousand times.
                if (topic.topic, one.partition) in seen:
                    continue
                seen.add((topic.topic, one.partition))
                part = _Part(topic.topic, one.partition, one.fetch_offset, one.partition_max_bytes, state)
                if not allowed:
                    part.code = ErrorCode.topic_authorization_failed
                elif state is None or not 0 <= one.partition < state.partitions:
                    part.code = ErrorCode.unknown_topic_or_partition
                elif getattr(one, "current_leader_epoch", -1) > LEADER_EPOCH:
                    part.code = ErrorCode.unknown_leader_epoch
                parts.append(part)
        return parts

    def _beyond_end(self, part: _Part) -> bool:
        """Whether the offset is beyond the end that this daemon knows."""
        if part.code is not ErrorCode.none or part.state is None:
            return False
        try:
            return part.offset > self._log.bounds(part.state.topic_id, part.number).high_watermark
        except ArchiverError:
            # Reading meets the same error and names it.
            return False

    async def _wait_for(self, parts: Sequence[_Part], body: Any, committed: bool) -> None:
        """Wait until there are `min_bytes`, an error, or the client's time is over."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + min(max(0, body.max_wait) / 1000, self._wait_max_s)
        while True:
            seen = self._log.generation
            bytes_min = max(1, body.min_bytes) if body.max_wait > 0 else 0
            if await sized(self._threads, len(parts), self._enough, parts, bytes_min, committed):
                return
            if loop.time() >= until_s or self._stopping.is_set():
                return
            grown = asyncio.create_task(self.watch.grown(seen))
            stopping = asyncio.create_task(self._stopping.wait())
            try:
                await asyncio.wait(
                    (grown, stopping),
                    timeout=max(0.0, until_s - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                grown.cancel()
                stopping.cancel()

    def _enough(self, parts: Sequence[_Part], bytes_min: int, committed: bool) -> bool:
        """Whether an answer now would have something to say."""
        available = 0
        for part in parts:
            if part.code is not ErrorCode.none or part.state is None:
                return True
            try:
                topic_id = part.state.topic_id
                bounds = self._log.bounds(topic_id, part.number)
                if not bounds.log_start <= part.offset <= bounds.high_watermark:
                    return True
                available += self._log.available(topic_id, part.number, part.offset, committed=committed)
            except ArchiverError:
                # Reading meets the same error and names it.
                return True
        return available >= bytes_min

    def _read(
        self, session: Session, parts: Sequence[_Part], bytes_max: int, committed: bool, asked_s: float
    ) -> None:
        """Read the partitions in the order of the request, in a thread."""
        until_s = self._clock.monotonic_s() + FETCH_READ_S
        left, empty, failed = bytes_max, True, False
        for part in parts:
            if part.code is not ErrorCode.none or part.state is None:
                continue
            topic_id = part.state.topic_id
            try:
                # At least one partition is read, or the client could never go on.
                late = self._clock.monotonic_s() >= until_s and (failed or not empty)
                if late or (left <= 0 and not empty):
                    # Only its bounds: the client asks for its records in the next request.
                    bounds = self._log.bounds(topic_id, part.number)
                else:
                    room = max(0, min(part.bytes_max, left))
                    part.found = self._reader.read(
                        topic_id, part.number, part.offset, room, committed=committed, asked_s=asked_s
                    )
                    bounds = part.found.bounds
                    left -= part.found.size
                    empty = empty and not part.found.batches
                part.log_start, part.high_watermark = bounds.log_start, bounds.high_watermark
            except OffsetOutOfRange as error:
                part.code = ErrorCode.offset_out_of_range
                part.log_start, part.high_watermark = error.log_start, error.end
            # A fault of one partition must not close the connection, which others share.
            except Exception as error:  # noqa: BLE001
                failed = True
                what = f"read {part.topic} partition {part.number} from offset {part.offset}"
                part.code = self._failure(session, what, error)

    async def offsets(self, session: Session, request: KafkaRequest) -> Body:
        """Answer ListOffsets."""
        body = request.body
        committed = getattr(body, "isolation_level", 0) == _READ_COMMITTED
        asked_s = self._clock.monotonic_s()
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, self._list, session, body, committed, asked_s)
        return {"topics": found}

    def _list(self, session: Session, body: Any, committed: bool, asked_s: float) -> list[dict[str, Any]]:
        with contextlib.suppress(ArchiverError):
            # The end must include what other daemons acknowledged before the request, so an earlier read is
            # not enough. If the log cannot be read, the known end counts.
            self._log.refresh(since_s=asked_s)
        until_s = self._clock.monotonic_s() + LIST_S
        topics = self._topics()
        found = []
        seen: set[tuple[str, int]] = set()
        for topic in body.topics:
            allowed = self._may_see(session.principal, topic.name)
            state = topics.get(topic.name)
            partitions = []
            for one in topic.partitions:
                number = one.partition_index
                answer: dict[str, Any] = {"partition_index": number, "error_code": 0}
                repeated = (topic.name, number) in seen
                seen.add((topic.name, number))
                if not allowed:
                    answer["error_code"] = int(ErrorCode.topic_authorization_failed)
                elif repeated:
                    # As Kafka does; a search by time can read a file.
                    answer["error_code"] = int(ErrorCode.invalid_request)
                elif state is None or not 0 <= number < state.partitions:
                    answer["error_code"] = int(ErrorCode.unknown_topic_or_partition)
                elif self._clock.monotonic_s() >= until_s:
                    answer["error_code"] = int(ErrorCode.kafka_storage_error)
                else:
                    answer |= self._at(session, state, number, one.timestamp, committed)
                partitions.append(answer)
            found.append({"name": topic.name, "partitions": partitions})
        return found

    def _at(
        self, session: Session, topic: TopicState, partition: int, time_ms: int, committed: bool
    ) -> dict[str, Any]:
        if time_ms == _EARLIEST_LOCAL:
            time_ms = EARLIEST
        try:
            offset, found_ms = self._reader.list_offset(
                topic.topic_id, partition, time_ms, committed=committed
            )
        except Exception as error:  # noqa: BLE001
            what = f"find the offset of time {time_ms} in {topic.name} partition {partition}"
            return {"error_code": int(self._failure(session, what, error))}
        return {"offset": offset, "timestamp": found_ms, "leader_epoch": LEADER_EPOCH if offset >= 0 else -1}

    def _failure(self, session: Session, what: str, error: Exception) -> ErrorCode:
        """Log what cannot be done with a partition; the error for the client."""
        now_s = self._clock.monotonic_s()
        if not isinstance(error, ArchiverError):
            text = "Kafka client %s cannot %s: an unexpected error"
            self._defects_limit.log(now_s, logging.ERROR, text, session.peer, what, exc_info=error)
            return ErrorCode.kafka_storage_error
        why = excerpt(str(error))
        text = "Kafka client %s cannot %s: %s"
        self._log_limit.log(now_s, logging.WARNING, text, session.peer, what, why)
        if isinstance(error, NotFound):
            return ErrorCode.unknown_topic_or_partition
        if isinstance(error, Corrupted):
            # Clients report it instead of trying for ever.
            return ErrorCode.corrupt_message
        if isinstance(error, InvalidInput):
            return ErrorCode.invalid_request
        # The store or the log does not answer now: clients try again.
        return ErrorCode.kafka_storage_error


def _no_session() -> Body:
    return {"error_code": int(ErrorCode.fetch_session_id_not_found), "session_id": 0, "responses": []}


def _fetched(parts: Sequence[_Part], committed: bool) -> Body:
    topics: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        found = part.found
        topics.setdefault(part.topic, []).append(
            {
                "partition_index": part.number,
                "error_code": int(part.code),
                "high_watermark": part.high_watermark,
                "last_stable_offset": -1 if found is None else found.bounds.last_stable_offset,
                "log_start_offset": part.log_start,
                # Aborted records are left out here, so no client has to.
                "aborted_transactions": [] if committed else None,
                "preferred_read_replica": -1,
                "records": b"" if found is None else list(found.batches),
            }
        )
    return {
        "error_code": 0,
        "session_id": 0,
        "responses": [{"topic": name, "partitions": found} for name, found in topics.items()],
    }

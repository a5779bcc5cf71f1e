"""Produce: record batches of Kafka clients on their way into the intake writer.

One thread reads the batches of all connections together, because numpy reads many batches in the time of one.
It queues those of a topic in the order in which their requests came. It waits for room in the writer's queue,
so a full queue delays the answers. A request whose time ends before its turn is not stored. A partition's
error stays with that partition.

Every outcome of the writer becomes the error code that makes a client do the right thing: `failed` records
may be sent again (NOT_ENOUGH_REPLICAS). So may records of unknown outcome (REQUEST_TIMED_OUT); an idempotent
producer stores them once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pyarrow as pa
from kio.schema.errors import ErrorCode

from archiver.kafka.listener import Body, Session
from archiver.kafka.protocol import KafkaRequest
from archiver.runtime.clock import Clock
from archiver.runtime.errors import (
    ArchiverError,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    RecordRefused,
    RetryLater,
)
from archiver.runtime.ids import TopicPartition
from archiver.runtime.logging import LogLimit
from archiver.runtime.redaction import excerpt
from archiver.status.kafka_port import ListenerCounts
from intake.batches.decoding import BatchHeader, BatchRefused, Measured, decode, measure, read_header
from intake.log.fold import TopicState
from intake.producers import Producers, Refusal, Stamp, begins_alone
from intake.write.acknowledgements import NO_OFFSET, FlushOutcome, PendingReceived
from intake.write.queue import ReceivedBatch
from intake.write.received import MeasuredBatch
from intake.write.validation import RowsRefused
from intake.write.writer import IntakeWriter

_log = logging.getLogger(__name__)

TOGETHER_BYTES: Final = 32 * 1024 * 1024
"""Bytes of requests that are decoded together."""
GATHER_SHARE: Final = 0.2
GATHER_MAX_S: Final = 0.05
"""For so much of `intake.delay_max`, and at most so long, a batch waits for others before it is checked."""
GATHERED_BYTES: Final = 4 * 1024 * 1024
"""Bytes of waiting batches for which the thread waits no longer. More at once take no less CPU for each."""
DECODED_BYTES_MAX: Final = 64 * 10**6
"""Bytes of decompressed records that wait for the writer's queue, plus one batch. Compression can make a
thousand times of `TOGETHER_BYTES`."""
RECORD_ERRORS_MAX: Final = 100
"""Invalid records of one batch that a response names."""
AHEAD_ANSWERS: Final = 5
"""How often a batch that is ahead of earlier ones gets a retriable error. A client sends it again when it
knows the outcome of the earlier ones, so once is enough. After more attempts they are really missing."""
AHEAD_REMEMBERED: Final = 10_000
"""Batches whose answers are counted for that."""
TIMEOUT_MAX_S: Final = 600.0
"""Longest wait for an outcome, also if the client allows more."""
THROTTLE_S: Final = 0.01
"""How old the fill of the queue may be that decides whether clients should wait."""
_NO_TIME: Final = -1

_ERRORS: Final[Mapping[Refusal, ErrorCode]] = {
    "fenced": ErrorCode.invalid_producer_epoch,
    "unknown_producer": ErrorCode.unknown_producer_id,
    "out_of_order": ErrorCode.out_of_order_sequence_number,
    # The records are in the log, and their offsets are not remembered. Kafka clients count it as success.
    "forgotten": ErrorCode.duplicate_sequence_number,
    "wrong_kind": ErrorCode.invalid_txn_state,
    "deleted": ErrorCode.unknown_topic_or_partition,
    "mirrored": ErrorCode.invalid_topic_exception,
    # Nothing is stored, and the same batch may be sent again.
    "barrier": ErrorCode.not_enough_replicas,
    "position": ErrorCode.not_enough_replicas,
}

_OUT_OF_TURN: Final = frozenset({ErrorCode.out_of_order_sequence_number, ErrorCode.unknown_producer_id})
"""After these a client may raise its epoch, and send batches of unknown outcome again under it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of one partition's batch."""

    code: ErrorCode
    why: str | None = None
    """For people; None if the code says enough."""
    base_offset: int = NO_OFFSET
    append_time_ms: int = _NO_TIME
    """The append time of the records, if it replaced the times that the client gave them."""
    records: Mapping[int, str] = field(default_factory=dict)
    """Invalid records, each with the reason."""


@dataclass(slots=True)
class _Batch:
    """One partition of a request on its way."""

    topic: TopicState
    partition: int
    data: memoryview
    transactional_id: str | None = None
    """Of its request."""
    header: BatchHeader | None = None
    answer: Answer | None = None
    pending: PendingReceived | None = None


@dataclass(slots=True, eq=False)
class _Job:
    """The batches of one request that are decoded and queued."""

    writer: IntakeWriter
    batches: list[_Batch]
    size: int
    on_done: Callable[[], None]
    """Called once, from any thread, when every batch has its answer or its outcome."""
    left: int = 1
    """Outcomes that are missing, and one for the queueing itself. Changed under the writer's lock."""

    def one_less(self) -> None:
        """Count one outcome; the caller holds the writer's lock."""
        self.left -= 1
        if self.left == 0:
            self.on_done()


class _NotAccepted(Exception):
    """A batch that its producer must not send, or not now; raised before its records are read."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


_Result = TypeVar("_Result", Measured, pa.RecordBatch)


class BatchQueue:
    """Decodes batches and queues them in the writer, in one thread. Close it."""

    def __init__(self, uncompressed_bytes_max: int, clock: Clock, delay_max_s: float) -> None:
        """`delay_max_s`: of the writers. Batches wait for others for a part of it: many together take less
        CPU each.
        """
        self._uncompressed_bytes_max = uncompressed_bytes_max
        self._clock = clock
        self._gather_s = min(GATHER_MAX_S, GATHER_SHARE * delay_max_s)
        self._log_limit = LogLimit(_log)
        self._changed = threading.Condition()
        self._waiting: OrderedDict[_Job, None] = OrderedDict()
        """In the order of the requests."""
        self._waiting_bytes = 0
        self._came_s = 0.0
        """When the first of the waiting batches came."""
        self._since_s = 0.0
        """The same of those in work."""
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="kafka-produce", daemon=True)
        self._thread.start()

    def put(self, job: _Job) -> None:
        """Hand over a job. The listener's budget bounds the bytes that wait here: a job waits only as long as
        its request is in work.
        """
        with self._changed:
            if not self._waiting:
                self._came_s = self._clock.monotonic_s()
            self._waiting[job] = None
            self._waiting_bytes += job.size
            # Not for each job: to wake the thread takes longer than to put the job here.
            if len(self._waiting) == 1 or self._waiting_bytes >= GATHERED_BYTES:
                self._changed.notify()

    def drop(self, job: _Job) -> bool:
        """Remove a job that is not begun, so it is certainly not stored; False if it is begun or done."""
        with self._changed:
            if job not in self._waiting:
                return False
            del self._waiting[job]
            self._waiting_bytes -= job.size
            return True

    def close(self) -> None:
        """Finish the jobs that were handed over, then end; does not wait for it."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _next(self) -> list[_Job]:
        """The next jobs; none at the end."""
        jobs: list[_Job] = []
        size = 0
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                self._changed.wait_for(
                    lambda: self._closed or not self._waiting or self._waiting_bytes >= GATHERED_BYTES,
                    self._gather_s,
                )
                # All of them may have been dropped.
                if self._waiting or self._closed:
                    break
            self._since_s = self._came_s
            while self._waiting and size < TOGETHER_BYTES:
                job, _ = self._waiting.popitem(last=False)
                jobs.append(job)
                size += job.size
                self._waiting_bytes -= job.size
        return jobs

    def _run(self) -> None:
        while jobs := self._next():
            try:
                self._decode_and_queue(jobs)
            except Exception:  # noqa: BLE001
                # The thread serves all connections, so it must survive a defect.
                self._log_limit.log(
                    self._clock.monotonic_s(),
                    logging.ERROR,
                    "unexpected error in %d Produce requests",
                    len(jobs),
                    exc_info=True,
                )
                for job in jobs:
                    self._fail(job)

    def _decode_and_queue(self, jobs: Sequence[_Job]) -> None:
        as_they_came: dict[str, bool] = {}
        encoded: list[tuple[_Job, _Batch]] = []
        found: list[tuple[_Job, _Batch]] = []
        for job in jobs:
            for batch in job.batches:
                try:
                    batch.header = read_header(batch.data)
                    _check(batch.header)
                    _check_transaction(batch.header, batch.transactional_id, job.writer)
                    _check_room(batch.header, job.writer)
                except BatchRefused as error:
                    batch.answer = _refused(error)
                    continue
                except _NotAccepted as error:
                    batch.answer = Answer(error.code, str(error))
                    continue
                # Once for each topic, so that the batches of a partition keep their order.
                topic = batch.topic.name
                if topic not in as_they_came:
                    as_they_came[topic] = job.writer.stores_encoded(topic)
                (encoded if as_they_came[topic] else found).append((job, batch))
        self._in_portions(encoded, measure, self._measured)
        self._in_portions(found, decode, self._decoded)
        for job in jobs:
            for batch in job.batches:
                # The writer's queue may keep the job for long, and bounds only the decoded records.
                batch.data = memoryview(b"")
            with job.writer.lock:
                job.one_less()

    def _in_portions(
        self,
        found: Sequence[tuple[_Job, _Batch]],
        work: Callable[..., list[_Result | BatchRefused]],
        received: Callable[[_Batch, _Result | BatchRefused], ReceivedBatch | MeasuredBatch | BatchRefused],
    ) -> None:
        """Read and queue the batches. A bounded number of bytes is decompressed at once, so that earlier
        requests need not wait for all later ones.
        """
        headed = [(batch.header, batch.data) for _, batch in found if batch.header is not None]
        done = 0
        while done < len(headed):
            results = work(
                headed[done:], uncompressed_max=self._uncompressed_bytes_max, total_max=DECODED_BYTES_MAX
            )
            portion = found[done : done + len(results)]
            self._queue(
                portion, [received(batch, one) for (_, batch), one in zip(portion, results, strict=True)]
            )
            done += len(results)

    def _measured(
        self, batch: _Batch, sizes: Measured | BatchRefused
    ) -> MeasuredBatch | ReceivedBatch | BatchRefused:
        if isinstance(sizes, BatchRefused):
            return sizes
        assert batch.header is not None, "it was read before"
        if sizes.untimed:
            headed = [(batch.header, batch.data)]
            (columns,) = decode(headed, uncompressed_max=self._uncompressed_bytes_max)
            return self._decoded(batch, columns)
        # A small part of a request is copied, because all of the request would stay in memory with it.
        whole = len(batch.data) * 2 >= memoryview(batch.data.obj).nbytes
        data = batch.data if whole else bytes(batch.data)
        return MeasuredBatch(
            batch.topic, batch.partition, data, batch.header.count, sizes, _stamp(batch.header)
        )

    @staticmethod
    def _decoded(batch: _Batch, columns: pa.RecordBatch | BatchRefused) -> ReceivedBatch | BatchRefused:
        if isinstance(columns, BatchRefused):
            return columns
        assert batch.header is not None, "it was read before"
        return ReceivedBatch(batch.topic, batch.partition, columns, _stamp(batch.header))

    def _queue(
        self,
        found: Sequence[tuple[_Job, _Batch]],
        received: Sequence[ReceivedBatch | MeasuredBatch | BatchRefused],
    ) -> None:
        """Hand the batches to their writers, in their order."""
        for (job, batch), one in zip(found, received, strict=True):
            if isinstance(one, BatchRefused):
                batch.answer = _refused(one)
                continue
            with job.writer.lock:
                # Before it is queued: its outcome may come before the writer returns.
                job.left += 1
            waited_s = self._clock.monotonic_s() - self._since_s
            try:
                if isinstance(one, MeasuredBatch):
                    batch.pending = job.writer.send_encoded(one, job.one_less, waited_s)
                else:
                    batch.pending = job.writer.send_received(one, job.one_less, waited_s)
            except Exception as error:  # noqa: BLE001 - one batch must not fail the others
                batch.answer = self._not_queued(error)
                with job.writer.lock:
                    job.left -= 1

    def _not_queued(self, error: Exception) -> Answer:
        """The answer for a batch that certainly is not stored."""
        if isinstance(error, RowsRefused):
            return Answer(ErrorCode.invalid_record, str(error), records=error.rows)
        if isinstance(error, RecordRefused):
            return Answer(ErrorCode.message_too_large, str(error))
        if isinstance(error, NotFound):
            return Answer(ErrorCode.unknown_topic_or_partition, str(error))
        if isinstance(error, InvalidInput):
            return Answer(ErrorCode.invalid_record, str(error))
        if isinstance(error, RetryLater):
            return Answer(ErrorCode.not_enough_replicas, str(error))
        if isinstance(error, ArchiverError):
            # The writer is closed: another daemon may accept the batch.
            return Answer(ErrorCode.not_leader_or_follower, str(error))
        self._log_limit.log(
            self._clock.monotonic_s(),
            logging.ERROR,
            "a batch of a Kafka client could not be queued",
            exc_info=error,
        )
        return Answer(ErrorCode.unknown_server_error, "the daemon's log has the error")

    def _fail(self, job: _Job) -> None:
        """After a defect: what is not queued is certainly not stored."""
        for batch in job.batches:
            if batch.pending is None and batch.answer is None:
                batch.answer = Answer(ErrorCode.unknown_server_error, "the daemon's log has the error")
        job.on_done()


class _Outcomes:
    """Wakes the requests of an event loop whose jobs are done: all that are done at a time by one call,
    because each call from another thread writes to a socket.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._done: list[asyncio.Future[None]] = []
        """Of the jobs that are done, while the loop is called."""

    def put(self, loop: asyncio.AbstractEventLoop, waiting: asyncio.Future[None]) -> None:
        """A job is done; from any thread."""
        with self._lock:
            # A port that was opened again has another loop, and the old one is not called any more.
            if self._loop is not loop:
                self._loop, self._done = loop, []
            self._done.append(waiting)
            first = len(self._done) == 1
        if first:
            # Without a loop the port is closed, and no client waits for this answer.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        with self._lock:
            done, self._done = self._done, []
        for waiting in done:
            _set(waiting)


def _set(waiting: asyncio.Future[None]) -> None:
    # It may be set by the end of its time, or cancelled.
    if not waiting.done():
        waiting.set_result(None)


class ProduceHandler:
    """Answers Produce requests."""

    def __init__(
        self,
        writer: Callable[[], IntakeWriter | None],
        allows: Callable[[str, str], bool],
        allows_id: Callable[[str, str], bool],
        batches: BatchQueue,
        log_start: Callable[[TopicState, int], int],
        batch_bytes_max: Callable[[str], int],
        counts: ListenerCounts,
    ) -> None:
        """`writer` is None while intake is closed. `allows` says whether a principal may write to a topic,
        `allows_id` whether it may use a transactional id, and `batch_bytes_max` the largest batch of a
        topic, as sent.
        """
        self._counts = counts
        self._writer = writer
        self._allows = allows
        self._allows_id = allows_id
        self._batches = batches
        self._log_start = log_start
        self._batch_bytes_max = batch_bytes_max
        self._outcomes = _Outcomes()
        self._throttle_ms, self._throttle_s = 0, float("-inf")
        """What was determined last, and when."""
        self._ahead: OrderedDict[tuple[TopicPartition, Stamp], int] = OrderedDict()
        """How often a batch came ahead, the last one at the end."""

    async def __call__(self, session: Session, request: KafkaRequest) -> Body | None:
        """Store the batches and answer with their offsets; no answer for `acks=0`."""
        body = request.body
        writer = self._writer()
        answers: dict[tuple[str, int], Answer] = {}
        batches: dict[tuple[str, int], _Batch] = {}
        for topic in body.topic_data:
            for part in topic.partition_data:
                place = (topic.name, part.index)
                if place in answers or batches.pop(place, None) is not None:
                    # One answer could not speak for two batches, so none of them is stored.
                    answers[place] = Answer(
                        ErrorCode.invalid_request, "the partition stands twice in the request"
                    )
                    continue
                found = self._batch(writer, session, body, topic.name, part)
                if isinstance(found, Answer):
                    answers[place] = found
                else:
                    batches[place] = found
        if batches and writer is not None:
            # No answer, so no time limit of the client applies.
            limit_s = TIMEOUT_MAX_S if body.acks == 0 else min(max(body.timeout, 0) / 1000, TIMEOUT_MAX_S)
            job = await self._store(writer, list(batches.values()), limit_s)
            # The thread that sets the outcomes holds it while it sets them. None is missing at the end.
            with writer.lock if job.left else contextlib.nullcontext():
                outcomes = {place: _outcome(batch) for place, batch in batches.items()}
            producers = writer.sequencer.fold.producers
            for place, batch in batches.items():
                answers[place] = answer = self._in_turn(producers, batch, outcomes[place])
                if answer.code is ErrorCode.none and batch.header is not None:
                    self._counts.produced(batch.header.count)
        if body.acks == 0:
            # No answer carries these errors, so only the metrics show them.
            errors = Counter(
                one.code.name.upper() for one in answers.values() if one.code is not ErrorCode.none
            )
            self._counts.failed("Produce", errors)
            return None
        return self._body(request, answers, batches, writer)

    async def _store(self, writer: IntakeWriter, batches: list[_Batch], limit_s: float) -> _Job:
        """Queue the batches and wait for their outcomes. Those that were not begun in time get their
        answer.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        size = sum(len(batch.data) for batch in batches)
        job = _Job(writer, batches, size, lambda: self._outcomes.put(loop, done))
        # Before the first wait, so that the requests of a connection are queued in their order.
        self._batches.put(job)
        # Batches without an outcome by then are reported as unknown, unless the job is dropped.
        limit = loop.call_later(limit_s, _set, done)
        try:
            await done
        finally:
            limit.cancel()
            # Also if the client is gone: the listener counts the bytes of the request as free from here on.
            if job.left and self._batches.drop(job):
                for batch in batches:
                    batch.answer = Answer(ErrorCode.not_enough_replicas, "its time ended in the queue")
        return job

    def _in_turn(self, producers: Producers, batch: _Batch, answer: Answer) -> Answer:
        """The answer, or a retriable one if the batch is ahead of earlier ones that may still arrive.

        A client that has several batches on their way to two daemons then keeps its epoch. With another epoch
        it would send the earlier ones again as new, although they may be stored (decision 0084).
        """
        if answer.code not in _OUT_OF_TURN or batch.header is None:
            return answer
        stamp, tp = _stamp(batch.header), (batch.topic.topic_id, batch.partition)
        if stamp is None or not producers.is_ahead(tp, stamp):
            return answer
        times = self._ahead.pop((tp, stamp), 0) + 1
        self._ahead[tp, stamp] = times
        if len(self._ahead) > AHEAD_REMEMBERED:
            self._ahead.popitem(last=False)
        if times > AHEAD_ANSWERS:
            return answer
        return Answer(ErrorCode.not_enough_replicas, f"earlier batches are missing: {answer.why}")

    def _batch(
        self, writer: IntakeWriter | None, session: Session, body: Any, name: str, part: Any
    ) -> _Batch | Answer:
        """The batch of one partition, or why it is not accepted."""
        if not self._allows(session.principal, name):
            return Answer(ErrorCode.topic_authorization_failed)
        if body.acks not in (-1, 0, 1):
            return Answer(ErrorCode.invalid_required_acks)
        transactional_id = body.transactional_id
        if transactional_id is not None and not self._allows_id(session.principal, transactional_id):
            return Answer(ErrorCode.transactional_id_authorization_failed)
        if writer is None:
            # Retriable: the daemon starts or stops, and Metadata names another one.
            return Answer(ErrorCode.not_leader_or_follower, "intake is not open on this daemon")
        topic = writer.sequencer.fold.topics_by_name.get(name)
        if topic is None or not 0 <= part.index < topic.partitions:
            return Answer(ErrorCode.unknown_topic_or_partition)
        if topic.mirrored:
            return Answer(
                ErrorCode.invalid_topic_exception, "the topic is mirrored: only its source writes to it"
            )
        if part.records is None or len(part.records) == 0:
            return Answer(ErrorCode.invalid_record, "the request has no record batch for the partition")
        if len(part.records) > (most := self._batch_bytes_max(name)):
            why = f"the batch has {len(part.records)} bytes, more than max.message.bytes = {most}"
            return Answer(ErrorCode.message_too_large, why)
        return _Batch(topic, part.index, part.records, transactional_id)

    def _body(
        self,
        request: KafkaRequest,
        answers: Mapping[tuple[str, int], Answer],
        batches: Mapping[tuple[str, int], _Batch],
        writer: IntakeWriter | None,
    ) -> Body:
        topics = []
        for topic in request.body.topic_data:
            partitions = []
            for part in topic.partition_data:
                place = (topic.name, part.index)
                answer, batch = answers[place], batches.get(place)
                partitions.append(
                    {
                        "index": part.index,
                        "error_code": int(answer.code),
                        "base_offset": answer.base_offset,
                        "log_append_time": answer.append_time_ms,
                        # Also with UNKNOWN_PRODUCER_ID: without it a Java client repeats the batch for ever.
                        "log_start_offset": -1 if batch is None else self._log_start(batch.topic, part.index),
                        "record_errors": [
                            {"batch_index": row, "batch_index_error_message": excerpt(why)}
                            for row, why in list(answer.records.items())[:RECORD_ERRORS_MAX]
                        ],
                        "error_message": None if answer.why is None else excerpt(answer.why),
                    }
                )
            topics.append({"name": topic.name, "partition_responses": partitions})
        return {"responses": topics, "throttle_time": self._throttled_ms(writer)}

    def _throttled_ms(self, writer: IntakeWriter | None) -> int:
        """How long a client should wait before its next request: one flush, while the queue is nearly
        full.
        """
        if writer is None:
            return 0
        now_s = asyncio.get_running_loop().time()
        if now_s - self._throttle_s >= THROTTLE_S:
            load = writer.metrics()
            full = load.queue_bytes > 0.75 * load.queue_bytes_max
            self._throttle_ms = round(1000 * min(1.0, writer.settings.delay_max)) if full else 0
            self._throttle_s = now_s
        return self._throttle_ms


class ProducerIds:
    """Answers InitProducerId without a transactional id. An id takes no state until its first batch is
    stored, so ids need no limit.

    The log must know the opener of an id when its first batches come (`Producers.is_ahead`). So ids are not
    assigned for longer than `age_max_s` after their entry, nor after the log has forgotten it.
    """

    def __init__(self, threads: Executor, clock: Clock, age_max_s: float) -> None:
        self._threads = threads
        self._clock = clock
        self._age_max_us = round(age_max_s * 1e6)
        self._log_limit = LogLimit(_log)
        self._left: Iterator[int] = iter(())
        self._lock = asyncio.Lock()
        self._assigning: asyncio.Future[None] | None = None

    async def __call__(self, session: Session, writer: IntakeWriter | None, *, allowed: bool) -> Body:
        """A new producer id; `allowed`: the principal may write somewhere."""
        if not allowed:
            return _no_producer(ErrorCode.cluster_authorization_failed)
        if writer is None:
            return _no_producer(ErrorCode.coordinator_not_available)
        try:
            producer_id = await self._next(writer)
        except ArchiverError as error:
            now_s = self._clock.monotonic_s()
            text = "Kafka client %s gets no producer id now: %s"
            self._log_limit.log(now_s, logging.WARNING, text, session.peer, error)
            # After an entry of unknown outcome its ids are never assigned.
            if isinstance(error, RetryLater | OutcomeUnknown):
                return _no_producer(ErrorCode.coordinator_load_in_progress)
            return _no_producer(ErrorCode.coordinator_not_available)
        return {"error_code": 0, "producer_id": producer_id, "producer_epoch": 0}

    async def _next(self, writer: IntakeWriter) -> int:
        # Without the lock, each request that waits for new ids would append an entry.
        async with self._lock:
            if (found := next(self._left, None)) is not None and self._is_fresh(writer, found):
                return found
            if self._assigning is None or self._assigning.done():
                loop = asyncio.get_running_loop()
                # In a thread: it appends to the log.
                self._assigning = loop.run_in_executor(self._threads, self._assign, writer)
            # A client that leaves ends its request, and the next one gets the ids. Otherwise each client that
            # asks and leaves would append an entry.
            await asyncio.shield(self._assigning)
            return next(self._left)

    def _is_fresh(self, writer: IntakeWriter, producer_id: int) -> bool:
        opener = writer.sequencer.fold.producers.opener(producer_id)
        return opener is not None and self._clock.now_us() - opener.last_used_us <= self._age_max_us

    def _assign(self, writer: IntakeWriter) -> None:
        self._left = iter(writer.sequencer.assign_producer_ids())


def _no_producer(code: ErrorCode) -> Body:
    return {"error_code": int(code), "producer_id": -1, "producer_epoch": -1}


def _check(header: BatchHeader) -> None:
    """Refuse what a producer must not send; raises `_NotAccepted`."""
    if header.control:
        raise _NotAccepted(ErrorCode.invalid_record, "control batches are written by brokers only")
    if header.producer_id >= 0 and (header.producer_epoch < 0 or header.base_sequence < 0):
        raise _NotAccepted(ErrorCode.invalid_record, "a producer id without an epoch and a sequence number")
    if header.transactional and header.producer_id < 0:
        raise _NotAccepted(ErrorCode.invalid_record, "a transactional batch without a producer id")


def _check_transaction(header: BatchHeader, transactional_id: str | None, writer: IntakeWriter) -> None:
    """Refuse a transactional batch of another transactional id than the one that the client may use; raises
    `_NotAccepted`.
    """
    if not header.transactional:
        return
    if transactional_id is None:
        code = ErrorCode.transactional_id_authorization_failed
        raise _NotAccepted(code, "a transactional batch in a request without a transactional id")
    # One that is not known here yet is judged by the log, with its id and epoch.
    known = writer.sequencer.fold.producers.get(header.producer_id)
    if known is not None and known.transactional_id != transactional_id:
        code = ErrorCode.invalid_producer_id_mapping
        raise _NotAccepted(code, "the producer belongs to another transactional id")


def _check_room(header: BatchHeader, writer: IntakeWriter) -> None:
    """Refuse the first batch of another producer while the log knows twice as many as it should; raises
    `_NotAccepted`.

    Those that were used a short time ago are not forgotten, so a client that takes a new id for each batch
    would use up the memory of every process.
    """
    producers, most = writer.sequencer.fold.producers, 2 * writer.settings.producers_max
    stamp = _stamp(header)
    if stamp is None or len(producers) < most or producers.get(stamp.producer_id) is not None:
        return
    if begins_alone(stamp):
        raise _NotAccepted(
            ErrorCode.not_enough_replicas,
            f"the log knows {len(producers):,} producers, twice intake.producers_max: send the batch again "
            "when some of them are forgotten",
        )


def _stamp(header: BatchHeader) -> Stamp | None:
    if header.producer_id < 0:
        return None
    return Stamp(header.producer_id, header.producer_epoch, header.base_sequence, header.transactional)


def _refused(error: BatchRefused) -> Answer:
    records = {} if error.record is None else {error.record: str(error)}
    return Answer(ErrorCode[error.code], str(error), records=records)


def _outcome(batch: _Batch) -> Answer:
    """The answer as far as it is known now. The caller holds the writer's lock."""
    if batch.answer is not None:
        return batch.answer
    if batch.pending is None or not batch.pending.done():
        # It may be stored: a client with sequence numbers repeats it without harm.
        return Answer(ErrorCode.request_timed_out, "not acknowledged in time; it may be stored")
    offset, worst = batch.pending.outcome()
    if worst.outcome != "ok":
        return _failure(worst)
    append_us = batch.pending.append_us()
    # Consumers get the same milliseconds, because `encode` rounds down as well.
    return Answer(ErrorCode.none, None, offset, append_us // 1000 if append_us else _NO_TIME)


def _failure(verdict: FlushOutcome) -> Answer:
    if verdict.refusal == "out_of_order" and verdict.outcome == "unknown":
        # A part of the batch is in the log: the client must repeat it, which stores the rest.
        return Answer(ErrorCode.request_timed_out, verdict.error)
    if verdict.refusal is not None:
        return Answer(_ERRORS[verdict.refusal], verdict.error)
    if verdict.outcome == "unknown":
        return Answer(ErrorCode.request_timed_out, verdict.error)
    return Answer(ErrorCode.not_enough_replicas, verdict.error)

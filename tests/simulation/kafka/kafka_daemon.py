"""A simulated daemon with a Kafka port: the product's handlers, writer and reader behind simulated connections.

Sockets, threads and the parsing of requests are left out; the handlers' coroutines, the queue of batches, the
writer and the reader of records are the product's. One piece of blocking work runs at a time. While it waits
for the log or the store, the event loop goes on, as in a real daemon.
"""

from __future__ import annotations

import asyncio
import random
from asyncio import events
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from archiver.kafka.consume import ConsumeHandler
from archiver.kafka.fetch import FetchLimits, FetchReader
from archiver.kafka.listener import AnswerMemory, Body
from archiver.kafka.log_view import LogView
from archiver.kafka.produce import BatchQueue, ProduceHandler, ProducerIds
from archiver.kafka.protocol import ApiKey
from archiver.ledger.fold import LedgerFold
from archiver.runtime.errors import ArchiverError
from archiver.schema.evolution.state import TopicSchema
from archiver.status.kafka_port import ListenerCounts
from archiver.stream.stream import RecordStream
from intake.log.backlog import Backlog
from intake.log.fold import TopicState
from intake.read.reader import IntakeReader
from intake.write.writer import IntakeWriter
from tests.simulation.kafka.coordination import Coordinating, Coordination
from tests.simulation.kafka.stepped_loop import SteppedLoop, SteppedThreads
from tests.simulation.kafka.wire import Brokers, Connection, DaemonPort, Reply
from tests.simulation.schedule import Process, Violation
from tests.simulation.station import INTAKE, Station, World

CLUSTER_ID = "00000000-0000-4000-8000-000000000000"
BATCH_BYTES_MAX = 1 << 20
_ANSWERS_BYTES = 1 << 26
_ID_AGE_MAX_S = 3.0
_IDLE_US = 500_000
"""How often an idle daemon checks whether the run is over."""


class _SteppedWriter(IntakeWriter):
    """The writer, whose flushes the process runs."""

    def _run(self) -> None:
        """The thread ends at once."""

    @property
    def due_in_s(self) -> float | None:
        """Time until a flush is due; None while nothing is queued."""
        with self._queue.changed:
            return 0.0 if self._queue._is_due() else self._queue._due_in_s()

    def write_due(self) -> None:
        """Do the flush that is due."""
        self._write(self._queue.take())


class _SteppedBatches(BatchQueue):
    """The queue of batches, which the process decodes."""

    def _run(self) -> None:
        """The thread ends at once."""

    @property
    def waits(self) -> bool:
        """Whether there is a job."""
        return bool(self._waiting)

    def decode(self) -> None:
        """Do the jobs that the thread would do next."""
        self._decode_and_queue(self._next())


def _allow(_principal: str, _topic: str) -> bool:
    return True


def _no_schema(_topic_id: str, _version: int) -> TopicSchema:
    raise AssertionError("there are no archives in this simulation")


@dataclass(frozen=True)
class Setup:
    """What all daemons of a run share."""

    limits: FetchLimits
    coordinating: Coordinating | None = None
    """None: without consumer groups."""


class Daemon:
    """Serves Kafka clients until the run is over."""

    def __init__(
        self,
        name: str,
        world: World,
        choices: random.Random,
        brokers: Brokers,
        is_over: Callable[[], bool],
        setup: Setup,
    ) -> None:
        self.name = name
        self._world = world
        self._random = choices
        self._brokers = brokers
        self._is_over = is_over
        self._setup = setup

    def live(self, process: Process) -> None:
        station = Station(self._world, process)
        loop = SteppedLoop(station.clock)
        try:
            served = _Served(station, loop, self._random, self._setup)
            try:
                self._brokers.enter(self.name, served.port)
                served.run(self._is_over)
            finally:
                served.close()
        finally:
            loop.close()


class _Served:
    """The product of one daemon process."""

    def __init__(self, station: Station, loop: SteppedLoop, choices: random.Random, setup: Setup) -> None:
        self._process = station.process
        self._random = choices
        self._loop = loop
        self._tasks: dict[asyncio.Task[None], Connection] = {}
        self._trouble: BaseException | None = None
        sequencer = station.sequencer
        self._writer = _SteppedWriter(station.objects, sequencer, INTAKE, station.clock, station.ids)
        self._batches = _SteppedBatches(BATCH_BYTES_MAX, station.clock, 0.0)
        self._requests, self._fetches, self._watching = (
            SteppedThreads(4),
            SteppedThreads(4),
            SteppedThreads(1),
        )
        ledger = LedgerFold()
        log = LogView(lambda: sequencer.view, sequencer.refresh, lambda: ledger, station.clock)
        log.ledger()

        def stream_of(
            backlog: Backlog, _ledger: LedgerFold, reader: IntakeReader, verified: set[str]
        ) -> RecordStream:
            return RecordStream(
                station.objects, backlog, _no_schema, cluster_id=CLUSTER_ID, reader=reader, verified=verified
            )

        def log_start(topic: TopicState, partition: int) -> int:
            try:
                return log.bounds(topic.topic_id, partition).log_start
            except ArchiverError:
                return -1

        self._reader = FetchReader(log, station.objects, stream_of, CLUSTER_ID, station.clock, setup.limits)
        self._answers = AnswerMemory(_ANSWERS_BYTES)
        counts = ListenerCounts()
        self._consume = ConsumeHandler(
            self._reader,
            log,
            lambda: sequencer.fold.topics_by_name,
            _allow,
            _allow,
            self._fetches,
            self._watching,
            station.clock,
            self._answers,
            bytes_max=1 << 22,
            wait_max_s=30.0,
            counts=counts,
        )
        sequencer.on_advance(self._consume.watch.advanced)
        self._produce = ProduceHandler(
            lambda: self._writer, _allow, _allow, self._batches, log_start, lambda _: BATCH_BYTES_MAX, counts
        )
        self._producer_ids = ProducerIds(self._requests, station.clock, _ID_AGE_MAX_S)
        self._coordination = (
            None
            if setup.coordinating is None
            else Coordination(station, loop, log, setup.coordinating, self._requests, choices)
        )
        self.port = DaemonPort(self._process, lambda: sequencer.fold.topics_by_name)
        self._process.between = self._go_on

    def run(self, is_over: Callable[[], bool]) -> None:
        """Serve until the run is over."""
        while True:
            self._go_on()
            work = self._work()
            if work:
                self._random.choice(work)()
            elif is_over():
                return
            else:
                self._process.wait(self._rest_us())

    def close(self) -> None:
        """The process is gone, and its memory with it."""
        self._process.between = None
        self.port.close()

    def _work(self) -> list[Callable[[], None]]:
        """What threads would do now."""
        work: list[Callable[[], None]] = []
        if self._batches.waits:
            work.append(self._batches.decode)
        if self._writer.due_in_s == 0.0:
            work.append(self._writer.write_due)
        pools = [self._requests, self._fetches, self._watching]
        if self._coordination is not None:
            pools += self._coordination.threads
            if self._coordination.belief.due_in_us == 0:
                work.append(self._coordination.belief.renew)
        for threads in pools:
            work += [partial(threads.run_one, place) for place in range(threads.ready)]
        return work

    def _rest_us(self) -> int:
        """Until something is due by itself."""
        times = [one for one in (self._loop.due_in_s(), self._writer.due_in_s) if one is not None]
        due_us = [round(one * 1e6) + 1 for one in times]
        if self._coordination is not None:
            due_us.append(self._coordination.belief.due_in_us)
        return min([_IDLE_US, *due_us])

    def _go_on(self) -> None:
        """What the event loop does now."""
        if events._get_running_loop() is not None:
            raise Violation(
                "the listener's loop never waits", f"{self._process.name} took a step inside of it"
            )
        while self.port.inbox:
            reply = self.port.inbox.popleft()
            # Before its first step, as a connection creates the tasks of its requests in their order.
            task = self._loop.create_task(self._answer(reply))
            self._tasks[task] = reply.connection
            task.add_done_callback(lambda one: self._tasks.pop(one, None))
        while self.port.left:
            connection = self.port.left.popleft()
            connection.session.ended.set()
            for task in [one for one, of in self._tasks.items() if of is connection]:
                task.cancel()
        self._loop.pump()
        if self._trouble is not None:
            raise self._trouble
        if self._coordination is not None:
            self._coordination.check()

    async def _answer(self, reply: Reply) -> None:
        session = reply.connection.session
        try:
            body = await self._handle(reply)
        except Exception as error:  # noqa: BLE001 - the run ends with it
            self._trouble = error
        except Violation as error:
            self._trouble = error
        else:
            reply.connection.answer(reply, body)
        finally:
            self._answers.correct(session.answer_bytes, 0)
            session.answer_bytes = 0

    async def _handle(self, reply: Reply) -> Body | None:
        session, request = reply.connection.session, reply.request
        match request.api:
            case ApiKey.PRODUCE:
                return await self._produce(session, request)
            case ApiKey.FETCH:
                return await self._consume.fetch(session, request)
            case ApiKey.LIST_OFFSETS:
                return await self._consume.offsets(session, request)
            case ApiKey.INIT_PRODUCER_ID if request.body.transactional_id is None:
                return await self._producer_ids(session, self._writer, allowed=True)
        assert self._coordination is not None, f"{request.api.name} is sent by no client here"
        return await self._coordination.answer(reply)

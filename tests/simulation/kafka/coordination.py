"""The coordinator of a simulated daemon: the product's, with its claims, its requests and its queue of commits.

What it believes of the live daemons comes from `registrations`. Its threads are stepped by the daemon.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.kafka.acl import Authorizer
from archiver.kafka.coordinator import GroupCoordinator
from archiver.kafka.group_offsets import OffsetRequests
from archiver.kafka.groups import GroupRequests
from archiver.kafka.listener import Body, Handlers
from archiver.kafka.log_view import LogView
from archiver.kafka.offset_queue import OffsetQueue
from archiver.kafka.protocol import ApiKey
from archiver.kafka.slot_claims import SlotClaims
from archiver.kafka.topic_regexes import TopicRegexes
from archiver.kafka.transactions import TransactionRequests
from archiver.runtime.errors import ArchiverError
from archiver.status.kafka_port import GroupCounts
from intake.log.client_transactions import ClientTransactions
from intake.log.committed_offsets import CommittedOffsets, OffsetBounds
from intake.log.consumer_groups import ConsumerGroups
from intake.log.state import TopicState
from tests.simulation.kafka.group_watch import GroupWatch
from tests.simulation.kafka.registrations import Belief, Registrations
from tests.simulation.kafka.stepped_loop import SteppedLoop, SteppedThreads
from tests.simulation.kafka.wire import Reply
from tests.simulation.station import Station

_TIMEOUT_MAX_S = 900.0


@dataclass(frozen=True)
class Coordinating:
    """What the coordinators of a run share."""

    settings: KafkaListenerSettings
    registrations: Registrations
    watch: GroupWatch


class Coordination:
    """One daemon process as a coordinator."""

    def __init__(
        self,
        station: Station,
        loop: SteppedLoop,
        log: LogView,
        shared: Coordinating,
        requests: SteppedThreads,
        choices: random.Random,
    ) -> None:
        """`requests` are the threads of requests that read the log; those of commits are its own."""
        sequencer, settings = station.sequencer, shared.settings
        self._watch = shared.watch
        self.belief = Belief(shared.registrations, station.process, choices)
        self.threads = SteppedThreads(1), SteppedThreads(1)
        """Of commits and claims, and of transactions."""
        offset_threads, transaction_threads = self.threads

        def groups() -> ConsumerGroups:
            return sequencer.fold.consumer_groups

        def topics() -> Mapping[str, TopicState]:
            return sequencer.fold.topics_by_name

        async def read_topics() -> None:
            with suppress(ArchiverError):
                await loop.run_in_executor(requests, log.refresh)

        bounds = OffsetBounds(settings.group_offsets_bytes_max, round(settings.offsets_refresh * 1e6))
        offsets = CommittedOffsets(sequencer, station.clock, bounds)
        self._queue = OffsetQueue(offsets, offset_threads)
        counts, allowing = GroupCounts(), Authorizer((), authenticates=False)
        self.coordinator = GroupCoordinator(
            settings,
            lambda on_lost: SlotClaims(
                offsets, groups, lambda: self.belief.live, lambda: self.belief.own, offset_threads, on_lost
            ),
            self._queue,
            groups,
            topics,
            TopicRegexes(topics, lambda _, names: list(names), requests),
            lambda since_s: log.refresh(since_s=since_s),
            requests,
            station.clock,
            station.ids,
            counts,
        )
        loop.call_soon(self.coordinator.watch)
        transactions = TransactionRequests(
            self.coordinator,
            ClientTransactions(sequencer, station.clock),
            lambda: sequencer.fold,
            read_topics,
            allowing,
            transaction_threads,
            _TIMEOUT_MAX_S,
        )
        offset_requests = OffsetRequests(
            self.coordinator,
            self._queue,
            groups,
            topics,
            read_topics,
            allowing,
            requests,
            settings.offset_metadata_bytes_max,
            counts,
        )
        members = GroupRequests(self.coordinator, settings, allowing)
        self._handlers: Handlers = {**transactions.handlers, **members.handlers, **offset_requests.handlers}

    async def answer(self, reply: Reply) -> Body | None:
        """Answer a request of a member, or of a client with a transactional id."""
        session, request = reply.connection.session, reply.request
        body = await self._handlers[request.api](session, request)
        if request.api is ApiKey.JOIN_GROUP and body is not None and body["error_code"] == 0:
            self._watch.joined(request.body.group_id, body["leader"], body["generation_id"])
        return body

    def check(self) -> None:
        """Raise what ended a task that must not end."""
        for task in (self.coordinator._task, self._queue._task):
            if task is not None and task.done() and not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]

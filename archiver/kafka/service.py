"""The Kafka listener of a daemon: its port, its handlers, and its entry in the list of live daemons."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from archiver.app.application import Application
from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.kafka.acl import Authorizer, Resource
from archiver.kafka.authentication import Admission
from archiver.kafka.consumer_group_requests import ConsumerGroupRequests
from archiver.kafka.coordinator import GroupCoordinator
from archiver.kafka.data_requests import DataRequests
from archiver.kafka.group_offsets import OffsetRequests
from archiver.kafka.groups import GroupRequests
from archiver.kafka.handover import Workers
from archiver.kafka.listener import Body, Handlers, KafkaServer, Session, pause_max_s
from archiver.kafka.log_view import Bounds
from archiver.kafka.membership import Membership
from archiver.kafka.metadata import MetadataHandler
from archiver.kafka.offset_queue import OffsetQueue
from archiver.kafka.produce import ProducerIds
from archiver.kafka.protocol import ApiKey, KafkaRequest
from archiver.kafka.shown_members import CoordinatedGroups
from archiver.kafka.slot_claims import SlotClaims
from archiver.kafka.topic_configs import TopicConfigs
from archiver.kafka.topic_regexes import TopicRegexes
from archiver.kafka.topics import TopicRequests, Topics
from archiver.kafka.transaction_views import TransactionViews
from archiver.kafka.transactions import TransactionRequests
from archiver.log.brokers import Broker
from archiver.runtime.errors import ArchiverError, OutcomeUnknown, RetryLater
from archiver.runtime.ids import TopicId
from archiver.runtime.redaction import excerpt
from archiver.status.kafka_port import GroupCounts, KafkaPort, ListenerCounts, LiveBroker
from intake.log.client_transactions import ClientTransactions
from intake.log.committed_offsets import CommittedOffsets, OffsetBounds
from intake.log.consumer_groups import ConsumerGroups
from intake.log.fold import IntakeFold, TopicState
from intake.log.sequencer import Sequencer
from intake.write.writer import IntakeWriter

THREADS: Final = 4
"""Threads for requests that append to the log or read a store."""
TOPIC_THREADS: Final = 2
"""Threads for requests that create, change or describe topics."""


class KafkaService:
    """Serves Kafka clients from `start` to `stop`. One object per process."""

    def __init__(
        self,
        settings: KafkaListenerSettings,
        application: Application,
        writer: IntakeWriter,
        retry_max_s: float,
        connections_max: int,
        workers: Workers | None = None,
    ) -> None:
        """With `workers`, they serve the connections of clients, and this answers what they relay."""
        self._settings = settings
        self._application = application
        self._threads = ThreadPoolExecutor(THREADS, "kafka-request")
        self._admission = Admission(settings, application.ids)
        intake, clock = application.configured.intake, application.clock
        # Half of the time for which the log knows their entry.
        self._producer_ids = ProducerIds(self._threads, clock, intake.producer_idle_max / 2)
        sequencer = writer.sequencer

        def topics() -> Mapping[str, TopicState]:
            return sequencer.fold.topics_by_name

        self._authorizer = Authorizer(settings.acls, authenticates=settings.authenticates)
        # Threads of their own: a request for many topics may take a minute.
        self._topic_threads = ThreadPoolExecutor(TOPIC_THREADS, "kafka-topics")
        self._topics = self._topic_requests()
        counts = ListenerCounts()
        self.server = KafkaServer(
            self._handle,
            settings,
            retry_max_s,
            connections_max,
            pause_max_s(intake),
            self._admission.session,
            counts,
            workers,
        )
        self._data = DataRequests(
            settings, application, writer, self._authorizer, self.server.answers, counts
        )
        self._log = self._data.log
        self._metadata = MetadataHandler(
            application.cluster.cluster_id,
            topics,
            self._brokers,
            lambda principal, name: self._authorizer.allows(principal, "describe", Resource.TOPIC, name),
            self._read_on,
            self.server.large_threads,
            self._topics.auto_create if settings.auto_create_topics else None,
        )
        # One thread: claims and commits are appended in their order.
        self._offset_threads = ThreadPoolExecutor(1, "kafka-offsets")
        self._membership = self._own_membership()
        self._group_counts = GroupCounts()
        self._coordinator, self._offsets, of_groups = self._group_requests(sequencer)
        self.groups = CoordinatedGroups(
            self._coordinator,
            self._membership,
            lambda: self.server.loop,
            lambda: sequencer.fold.topics_by_id,
        )
        """For readers in other threads."""
        # One thread: what ends transactions keeps the order of its arrival.
        self._transaction_threads = ThreadPoolExecutor(1, "kafka-transactions")
        self._handlers = {**self._of_topics(), **of_groups, **self._of_transactions(writer)}

    @property
    def state(self) -> KafkaPort:
        """What status and metrics show."""
        address = self._address()
        self._coordinator.show()
        return KafkaPort(
            listen=self._settings.listen,
            address=None if address is None else _joined(*address),
            closed_because=self.server.closed_because,
            # A registration outlives its port for a moment, and nothing renews it.
            registered=self._membership.registered and address is not None,
            unregistered_because=self._membership.trouble,
            live=[LiveBroker(one.node_id, one.host, one.port, one.rack) for one in self._membership.live],
            counts=self.server.counts,
            groups=self._group_counts,
        )

    def _own_membership(self) -> Membership:
        settings = self._settings
        return Membership(
            self._application.logs.brokers(settings.broker_timeout),
            self._address,
            settings.rack or "",
            settings.broker_timeout,
        )

    def _topic_requests(self) -> TopicRequests:
        parts = self._application, self._settings, self._authorizer
        return TopicRequests(
            Topics(*parts, self._bounds), TopicConfigs(*parts, self._node_ids), self._topic_threads
        )

    def _group_requests(self, sequencer: Sequencer) -> tuple[GroupCoordinator, OffsetRequests, Handlers]:
        settings, clock = self._settings, self._application.clock

        def topics() -> Mapping[str, TopicState]:
            return sequencer.fold.topics_by_name

        def groups() -> ConsumerGroups:
            return sequencer.fold.consumer_groups

        offsets = CommittedOffsets(
            sequencer,
            clock,
            OffsetBounds(settings.group_offsets_bytes_max, round(settings.offsets_refresh * 1e6)),
        )
        queue = OffsetQueue(offsets, self._offset_threads)
        coordinator = GroupCoordinator(
            settings,
            lambda on_lost: SlotClaims(
                offsets,
                groups,
                lambda: self._membership.live,
                lambda: self._membership.own,
                self._offset_threads,
                on_lost,
            ),
            queue,
            groups,
            topics,
            TopicRegexes(
                topics,
                lambda principal, names: self._authorizer.allowed_names(
                    principal, "describe", Resource.TOPIC, names
                ),
                self._threads,
            ),
            lambda since_s: self._log.refresh(since_s=since_s),
            self._threads,
            clock,
            self._application.ids,
            self._group_counts,
        )
        requests = OffsetRequests(
            coordinator,
            queue,
            groups,
            topics,
            self._read_on,
            self._authorizer,
            self.server.large_threads,
            settings.offset_metadata_bytes_max,
            self._group_counts,
        )
        members = GroupRequests(coordinator, settings, self._authorizer)
        consumers = ConsumerGroupRequests(
            coordinator, settings, self._authorizer, lambda: sequencer.fold.topics_by_id
        )
        return coordinator, requests, {**members.handlers, **consumers.handlers, **requests.handlers}

    def reset_offsets(self, group: str, topic_id: TopicId, offsets: Mapping[int, int]) -> None:
        """Commit offsets for a group without members. Any thread but the listener's may call it.

        Raises as `OffsetRequests.reset`; `RetryLater` if the port is not open.
        """
        loop = self.server.loop
        if loop is None or self._data.writer is None:
            raise RetryLater("the Kafka port is not open now; try again")
        work = asyncio.run_coroutine_threadsafe(self._offsets.reset(group, topic_id, offsets), loop)
        try:
            work.result(self._settings.request_timeout)
        except TimeoutError as error:
            work.cancel()
            raise OutcomeUnknown(
                f"the reset of consumer group {excerpt(group)} took longer than kafka.request_timeout; see "
                "`archiver groups describe`, or reset it again"
            ) from error

    def _of_topics(self) -> Handlers:
        return {
            **self._data.handlers,
            ApiKey.METADATA: self._metadata,
            ApiKey.DESCRIBE_CLUSTER: self._metadata.cluster,
            **self._topics.handlers,
        }

    def _of_transactions(self, writer: IntakeWriter) -> Handlers:
        sequencer, clock = writer.sequencer, self._application.clock

        def fold() -> IntakeFold:
            return sequencer.fold

        requests = TransactionRequests(
            self._coordinator,
            ClientTransactions(sequencer, clock),
            fold,
            self._read_on,
            self._authorizer,
            self._transaction_threads,
            writer.settings.transaction_timeout_max,
        )
        views = TransactionViews(
            fold,
            self._read_on,
            self._coordinator.claims,
            self._authorizer,
            self.server.large_threads,
            clock,
        )
        return {**requests.handlers, **views.handlers}

    def start(self) -> None:
        """Read the control log, then open the port. Never raises for a port that is taken."""
        # Here, because the listener's loop must not read it. After a failure, the first fetch reads it.
        with contextlib.suppress(ArchiverError):
            self._log.ledger()
        self.server.on_open = self._coordinator.watch
        self.server.start()
        self._membership.start()

    def close_intake(self) -> None:
        """Refuse further records, so that clients go to another daemon, and answer waiting consumers."""
        self._membership.leave()
        answer_waiting = self._data.close_intake()
        if (loop := self.server.loop) is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(answer_waiting)
                loop.call_soon_threadsafe(self._coordinator.stop)

    def stop(self, grace_s: float) -> None:
        """Answer what is in work and close, within `grace_s`."""
        self.server.stop(grace_s)
        self._data.stop()
        self._admission.stop()
        for threads in (
            self._threads,
            self._topic_threads,
            self._offset_threads,
            self._transaction_threads,
        ):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _handle(self, session: Session, request: KafkaRequest) -> Body | None:
        if self._admission.answers(session, request):
            return await self._admission(session, request)
        if request.api is ApiKey.INIT_PRODUCER_ID and request.body.transactional_id is None:
            allowed = self._authorizer.allows_idempotent_write(session.principal)
            return await self._producer_ids(session, self._data.writer, allowed=allowed)
        return await self._handlers[request.api](session, request)

    def _bounds(self, topic_id: TopicId, partition: int) -> Bounds:
        """As `LogView.bounds`, in a thread that may read the control log."""
        self._log.ledger()
        return self._log.bounds(topic_id, partition)

    async def _read_on(self) -> None:
        # Without an answer the topics that are known stand.
        with contextlib.suppress(ArchiverError):
            await asyncio.get_running_loop().run_in_executor(self._threads, self._log.refresh)

    def _node_ids(self) -> list[int]:
        return [one.node_id for one in self._membership.live]

    def _brokers(self, session: Session) -> tuple[Sequence[Broker], Broker | None]:
        return self._membership.live, self._membership.leader_for(session.client_id)

    def _address(self) -> tuple[str, int] | None:
        bound = self.server.address
        return None if bound is None else self._settings.address_for_clients(bound[1])


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

"""The Kafka listener of a daemon: its port, its handlers, and its entry in the list of live daemons."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from archiver.app.application import Application
from archiver.config.kafka_listener import KafkaListenerSettings, Operation
from archiver.kafka.acl import Authorizer, Resource, principal_of_certificate
from archiver.kafka.authentication import BEFORE, Authenticator
from archiver.kafka.consume import ConsumeHandler
from archiver.kafka.consumer_group_requests import ConsumerGroupRequests
from archiver.kafka.coordinator import GroupCoordinator
from archiver.kafka.fetch import FetchLimits, FetchReader
from archiver.kafka.group_offsets import OffsetRequests
from archiver.kafka.groups import GroupRequests
from archiver.kafka.listener import Body, Handlers, KafkaServer, Session
from archiver.kafka.log_view import Bounds, LogView
from archiver.kafka.membership import Membership
from archiver.kafka.metadata import MetadataHandler, api_versions
from archiver.kafka.offset_queue import OffsetQueue
from archiver.kafka.produce import BatchQueue, ProduceHandler, ProducerIds
from archiver.kafka.protocol import ApiKey, KafkaRequest
from archiver.kafka.slot_claims import SlotClaims
from archiver.kafka.topic_configs import TopicConfigs, batch_bytes_max
from archiver.kafka.topic_regexes import TopicRegexes
from archiver.kafka.topics import TopicRequests, Topics
from archiver.kafka.transaction_views import TransactionViews
from archiver.kafka.transactions import TransactionRequests
from archiver.kafka.users import UsersFile
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
    ) -> None:
        self._settings = settings
        self._application = application
        self._writer: IntakeWriter | None = writer
        self._threads = ThreadPoolExecutor(THREADS, "kafka-request")
        self._authentication: ThreadPoolExecutor | None = None
        self._authenticator = self._authenticator_of_users()
        intake, clock = application.configured.intake, application.clock
        self._batches = BatchQueue(settings.uncompressed_bytes_max, clock, intake.delay_max)
        # Half of the time for which the log knows their entry.
        self._producer_ids = ProducerIds(self._threads, clock, intake.producer_idle_max / 2)
        sequencer = writer.sequencer

        def topics() -> Mapping[str, TopicState]:
            return sequencer.fold.topics_by_name

        self._authorizer = Authorizer(settings.acls, authenticates=settings.authenticates)
        self._log = LogView(
            lambda: sequencer.view, sequencer.refresh, application.ledger_reader(), application.clock
        )
        # Threads of their own: a request for many topics may take a minute.
        self._topic_threads = ThreadPoolExecutor(TOPIC_THREADS, "kafka-topics")
        self._topics = self._topic_requests()
        counts = ListenerCounts()
        self.server = self._new_server(retry_max_s, connections_max, counts)
        self._metadata = MetadataHandler(
            application.cluster.cluster_id,
            topics,
            self._brokers,
            self._may("describe"),
            self._read_on,
            self.server.large_threads,
            self._topics.auto_create if settings.auto_create_topics else None,
        )
        self._reader = self._fetch_reader()
        # Threads of their own: consumers that are far behind must not take those that producers need.
        self._fetch_threads = ThreadPoolExecutor(THREADS, "kafka-fetch")
        # A thread of its own: consumers that keep up must not wait for those that read archives.
        self._watch_threads = ThreadPoolExecutor(1, "kafka-log-watch")
        self._consume = ConsumeHandler(
            self._reader,
            self._log,
            topics,
            self._may("read"),
            self._may("describe"),
            self._fetch_threads,
            self._watch_threads,
            application.clock,
            self.server.answers,
            bytes_max=settings.fetch_bytes_max,
            wait_max_s=settings.request_timeout,
            counts=counts,
        )
        sequencer.on_advance(self._consume.watch.advanced)
        self._produce = ProduceHandler(
            lambda: self._writer,
            self._may("write"),
            self._may("write", Resource.TRANSACTIONAL_ID),
            self._batches,
            self._log_start,
            lambda name: batch_bytes_max(topics().get(name)),
            counts,
        )
        # One thread: claims and commits are appended in their order.
        self._offset_threads = ThreadPoolExecutor(1, "kafka-offsets")
        self._membership = self._own_membership()
        self._group_counts = GroupCounts()
        self._coordinator, self._offsets, of_groups = self._group_requests(sequencer)
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

    def _authenticator_of_users(self) -> Authenticator | None:
        sasl, file, ids = self._settings.sasl, self._settings.users_file, self._application.ids
        if sasl is None or file is None:
            return None
        # One thread: clients that are not authenticated yet must not take the processors with PLAIN.
        self._authentication = ThreadPoolExecutor(1, "kafka-authentication")
        return Authenticator(sasl.mechanisms, UsersFile(file, ids).current, self._authentication, ids)

    def _own_membership(self) -> Membership:
        settings = self._settings
        return Membership(
            self._application.logs.brokers(settings.broker_timeout),
            self._address,
            settings.rack or "",
            settings.broker_timeout,
        )

    def _new_server(self, retry_max_s: float, connections_max: int, counts: ListenerCounts) -> KafkaServer:
        return KafkaServer(
            self._handle,
            self._settings,
            retry_max_s,
            connections_max,
            # A client may repeat a batch for a quarter of it, and the writer has another eighth.
            self._application.configured.intake.producer_idle_min / 8,
            self._session,
            counts,
        )

    def _fetch_reader(self) -> FetchReader:
        application = self._application
        return FetchReader(
            self._log,
            application.objects,
            application.stream_of,
            application.cluster.cluster_id,
            application.clock,
            FetchLimits(cache_bytes=self._settings.fetch_cache_bytes),
        )

    def _may(self, operation: Operation, resource: Resource = Resource.TOPIC) -> Callable[[str, str], bool]:
        """Whether a principal may do that with the resource of a name."""
        allows = self._authorizer.allows
        return lambda principal, name: allows(principal, operation, resource, name)

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
        if loop is None or self._writer is None:
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
            ApiKey.PRODUCE: self._produce,
            ApiKey.FETCH: self._consume.fetch,
            ApiKey.LIST_OFFSETS: self._consume.offsets,
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
        self._writer = None
        if (loop := self.server.loop) is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(self._consume.stop)
                loop.call_soon_threadsafe(self._coordinator.stop)

    def stop(self, grace_s: float) -> None:
        """Answer what is in work and close, within `grace_s`."""
        self.server.stop(grace_s)
        self._batches.close()
        self._fetch_threads.shutdown(wait=True, cancel_futures=True)
        self._reader.close()
        for threads in (
            self._threads,
            self._watch_threads,
            self._topic_threads,
            self._offset_threads,
            self._transaction_threads,
            self._authentication,
        ):
            if threads is not None:
                threads.shutdown(wait=False, cancel_futures=True)

    def _session(self, peer: str, tls: ssl.SSLObject | None) -> Session:
        if self._settings.sasl is not None:
            return Session(peer, authenticated=False)
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        if certificate is None:
            return Session(peer)
        return Session(peer, principal_of_certificate(certificate))

    async def _handle(self, session: Session, request: KafkaRequest) -> Body | None:
        if not session.authenticated and request.api not in BEFORE:
            session.closing = f"{request.api.name} before the authentication"
            return None
        match request.api:
            case ApiKey.SASL_HANDSHAKE if self._authenticator is not None:
                return await self._authenticator.handshake(session, request)
            case ApiKey.SASL_AUTHENTICATE if self._authenticator is not None:
                return await self._authenticator.authenticate(session, request)
            case ApiKey.SASL_HANDSHAKE | ApiKey.SASL_AUTHENTICATE:
                session.closing = "kafka.sasl is not configured, and the client authenticates"
                return None
            case ApiKey.INIT_PRODUCER_ID if request.body.transactional_id is None:
                allowed = self._authorizer.allows_idempotent_write(session.principal)
                return await self._producer_ids(session, self._writer, allowed=allowed)
            case ApiKey.API_VERSIONS:
                return api_versions(request)
        return await self._handlers[request.api](session, request)

    def _bounds(self, topic_id: TopicId, partition: int) -> Bounds:
        """As `LogView.bounds`, in a thread that may read the control log."""
        self._log.ledger()
        return self._log.bounds(topic_id, partition)

    def _log_start(self, topic: TopicState, partition: int) -> int:
        try:
            return self._log.log_start(topic.topic_id, partition)
        except ArchiverError:
            # Deleted in the meantime, or the control log does not answer: the batch is stored all the same.
            return -1

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

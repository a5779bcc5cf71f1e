"""The requests with records, Produce, Fetch and ListOffsets: what they need, from the start to the stop.

Any process can answer them, because the logs decide. The daemon and its workers have this in common.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from archiver.app.application import Application
from archiver.config.kafka_listener import KafkaListenerSettings, Operation
from archiver.kafka.acl import Authorizer, Resource
from archiver.kafka.consume import ConsumeHandler
from archiver.kafka.fetch import FetchLimits, FetchReader
from archiver.kafka.listener import AnswerMemory, Handlers
from archiver.kafka.log_view import LogView
from archiver.kafka.produce import BatchQueue, ProduceHandler
from archiver.kafka.protocol import ApiKey
from archiver.kafka.topic_configs import batch_bytes_max
from archiver.runtime.errors import ArchiverError
from archiver.status.kafka_port import ListenerCounts
from intake.log.fold import TopicState
from intake.write.writer import IntakeWriter

FETCH_THREADS: Final = 4
"""Threads that read the records of Fetch."""


class DataRequests:
    """Answers the requests with records. One object per process."""

    def __init__(
        self,
        settings: KafkaListenerSettings,
        application: Application,
        writer: IntakeWriter,
        authorizer: Authorizer,
        answers: AnswerMemory,
        counts: ListenerCounts,
    ) -> None:
        """`answers` and `counts` are those of the listener."""
        self._writer: IntakeWriter | None = writer
        clock, sequencer = application.clock, writer.sequencer

        def topics() -> Mapping[str, TopicState]:
            return sequencer.fold.topics_by_name

        def may(operation: Operation, resource: Resource = Resource.TOPIC) -> Callable[[str, str], bool]:
            return lambda principal, name: authorizer.allows(principal, operation, resource, name)

        self.log = LogView(lambda: sequencer.view, sequencer.refresh, application.ledger_reader(), clock)
        """Both logs, as far as they were read."""
        self._batches = BatchQueue(
            settings.uncompressed_bytes_max, clock, application.configured.intake.delay_max
        )
        self._reader = FetchReader(
            self.log,
            application.objects,
            application.stream_of,
            application.cluster.cluster_id,
            clock,
            FetchLimits(cache_bytes=settings.fetch_cache_bytes),
        )
        # Threads of their own: consumers that are far behind must not take those that producers need.
        self._fetch_threads = ThreadPoolExecutor(FETCH_THREADS, "kafka-fetch")
        # A thread of its own: consumers that keep up must not wait for those that read archives.
        self._watch_threads = ThreadPoolExecutor(1, "kafka-log-watch")
        self._consume = ConsumeHandler(
            self._reader,
            self.log,
            topics,
            may("read"),
            may("describe"),
            self._fetch_threads,
            self._watch_threads,
            clock,
            answers,
            bytes_max=settings.fetch_bytes_max,
            wait_max_s=settings.request_timeout,
            counts=counts,
        )
        sequencer.on_advance(self._consume.watch.advanced)
        produce = ProduceHandler(
            lambda: self._writer,
            may("write"),
            may("write", Resource.TRANSACTIONAL_ID),
            self._batches,
            self._log_start,
            lambda name: batch_bytes_max(topics().get(name)),
            counts,
        )
        self.handlers: Handlers = {
            ApiKey.PRODUCE: produce,
            ApiKey.FETCH: self._consume.fetch,
            ApiKey.LIST_OFFSETS: self._consume.offsets,
        }

    @property
    def writer(self) -> IntakeWriter | None:
        """The writer until `close_intake`."""
        return self._writer

    def close_intake(self) -> Callable[[], None]:
        """Refuse further records. What is returned answers waiting consumers; the listener's loop calls
        it.
        """
        self._writer = None
        return self._consume.stop

    def stop(self) -> None:
        """Release what is held, after the listener has stopped."""
        self._batches.close()
        self._fetch_threads.shutdown(wait=True, cancel_futures=True)
        self._reader.close()
        self._watch_threads.shutdown(wait=False, cancel_futures=True)

    def _log_start(self, topic: TopicState, partition: int) -> int:
        try:
            return self.log.log_start(topic.topic_id, partition)
        except ArchiverError:
            # Deleted in the meantime, or the control log does not answer: the batch is stored all the same.
            return -1

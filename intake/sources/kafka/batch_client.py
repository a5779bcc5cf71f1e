"""The connection of a Kafka source that reads record batches as they are.

librdkafka describes the cluster. It also reads the records where batches cannot be read here: with properties
of its own such as GSSAPI, from brokers before Kafka 2.3, and records in the formats before Kafka 0.11.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from archiver.config.kafka import KafkaSourceSettings
from archiver.runtime.clock import Clock
from archiver.runtime.ids import SystemIds
from intake.sources.kafka.client import KafkaClient
from intake.sources.kafka.client_log import ClientLog
from intake.sources.kafka.fetcher import Fetcher
from intake.sources.kafka.upstream import Bounds, Place, Polled, Upstream, UpstreamTopic
from intake.sources.kafka.wire import NotSpoken, access_of, obstacle

_ONE_BY_ONE: Final = "records are read one by one, which takes more CPU"


def connect_source(settings: KafkaSourceSettings, clock: Clock, log: ClientLog | None = None) -> Upstream:
    """A connection. `log` belongs to the source, as for `KafkaClient`. Raises `RetryLater`."""
    log = log or ClientLog(f"source {settings.name}", clock)
    access = access_of(settings)
    cluster = KafkaClient(settings, clock, log)
    if access is None:
        log.once(logging.WARNING, f"{_ONE_BY_ONE}, because {obstacle(settings)}")
        return cluster
    return BatchClient(cluster, Fetcher(settings, access, clock, SystemIds(), log), log)


class BatchClient:
    """An `Upstream`."""

    def __init__(self, cluster: KafkaClient, fetcher: Fetcher, log: ClientLog) -> None:
        self._cluster = cluster
        self._log = log
        self._fetcher: Fetcher | None = fetcher

    def topics(self) -> list[str]:
        return self._cluster.topics()

    def describe(self, names: Collection[str]) -> dict[str, UpstreamTopic | None]:
        return self._cluster.describe(names)

    def bounds(self, places: Collection[Place]) -> dict[Place, Bounds]:
        return self._cluster.bounds(places)

    def offsets_since(self, places: Collection[Place], since_ms: int) -> dict[Place, int]:
        return self._cluster.offsets_since(places, since_ms)

    def read(self, positions: Mapping[Place, tuple[int, int | None]]) -> None:
        (self._fetcher or self._cluster).read(positions)

    def stop_reading(self, places: Sequence[Place]) -> None:
        (self._fetcher or self._cluster).stop_reading(places)

    def poll(self, records_max: int, timeout_s: float) -> Polled:
        if self._fetcher is None:
            return self._cluster.poll(records_max, timeout_s)
        try:
            return self._fetcher.poll(records_max, timeout_s)
        except NotSpoken as error:
            self._log.say(logging.WARNING, f"{_ONE_BY_ONE}, because {error}")
            # What was not delivered is read again.
            fetcher, self._fetcher = self._fetcher, None
            positions = fetcher.positions()
            fetcher.close()
            self._cluster.read(positions)
            return Polled()

    def known_ends(self, places: Collection[Place]) -> dict[Place, int]:
        return (self._fetcher or self._cluster).known_ends(places)

    def close(self) -> None:
        if self._fetcher is not None:
            self._fetcher.close()
        self._cluster.close()

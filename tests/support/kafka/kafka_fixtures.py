"""Fixtures of tests on a broker. A test file takes the ones that it needs by their names: `server =
kafka_fixtures.server`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka.kafka_server import KafkaServer
from tests.support.kafka.mirroring import Cluster


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    """One for a module's tests."""
    with KafkaServer(tmp_path_factory.mktemp("kafka")) as running:
        yield running


@pytest.fixture
def cluster(server: KafkaServer) -> Cluster:
    """What tests do to it."""
    return Cluster(server.brokers)

"""Not every server that speaks Kafka's protocol states the limits of a topic. Then nothing is compared, and
the check reports that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from archiver.config.events import ControlTopicSettings
from archiver.control_topic import kafka_topic
from archiver.control_topic.kafka_topic import KafkaTopic, check_control_topic
from archiver.runtime.check_result import CheckStatus
from archiver.runtime.clock import SystemClock

BYTES_MAX = 1_000_000


def client_of(limits: dict[str, str]) -> type[KafkaTopic]:
    """A client that sends no request and returns these limits."""

    class Answered(KafkaTopic):
        def _answer(self, asked: Any, what: str, stopping: Any = None) -> Any:
            del asked, stopping
            if "configuration" in what:
                return {name: SimpleNamespace(value=value) for name, value in limits.items()}
            if "does not describe" in what:
                one = SimpleNamespace(id=0, leader=SimpleNamespace(id=1), replicas=[1, 2])
                return SimpleNamespace(topic_id=None, authorized_operations=None, partitions=[one])
            return SimpleNamespace(nodes=[1])

    return Answered


@pytest.fixture
def settings() -> ControlTopicSettings:
    return ControlTopicSettings(brokers="127.0.0.1:9", topic="control", request_timeout=1)


@pytest.mark.parametrize(
    ("limits", "verdict"),
    [
        ({"max.message.bytes": "2000000", "min.insync.replicas": "1"}, CheckStatus.FINE),
        ({"max.message.bytes": "2000000", "min.insync.replicas": "3"}, CheckStatus.WRONG),
        ({"max.message.bytes": "1000", "min.insync.replicas": "1"}, CheckStatus.WRONG),
        ({"max.message.bytes": "2000000"}, CheckStatus.NOTE),
        ({"min.insync.replicas": "1"}, CheckStatus.NOTE),
        ({}, CheckStatus.NOTE),
    ],
)
def test_limits(
    settings: ControlTopicSettings,
    limits: dict[str, str],
    verdict: CheckStatus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_topic, "KafkaTopic", client_of(limits))
    found = check_control_topic(settings, BYTES_MAX, SystemClock())
    (reported,) = (one for one in found.findings if one.check == "limits")
    assert reported.verdict is verdict, reported

"""The settings of the control topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from archiver.config.settings import ControlTopicSettings, load_settings
from archiver.runtime.errors import ConfigInvalid

TOPIC: dict[str, Any] = {"brokers": "kafka-1:9093", "topic": "archiver-control"}


def load(tmp_path: Path, kafka: dict[str, Any], **environ: str) -> ControlTopicSettings:
    document = {
        "cluster": "demo",
        "data": {"uri": str(tmp_path / "data")},
        "metadata": {"sqlite": {"path": str(tmp_path / "m.db")}},
        "events": {"kafka": kafka},
    }
    path = tmp_path / "archiver.yaml"
    path.write_text(yaml.safe_dump(document))
    found = load_settings(path, environ).events.kafka
    assert found is not None
    return found


def test_a_topic_needs_no_more_than_where_and_which(tmp_path: Path) -> None:
    found = load(tmp_path, TOPIC)
    assert (found.topic, found.beginning, found.interval, found.client()) == (
        "archiver-control",
        "earliest",
        1.0,
        {},
    )


def test_the_secret_of_the_publisher_is_read_and_never_shown(tmp_path: Path) -> None:
    given = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN", "sasl.password": {"env": "P"}}
    found = load(tmp_path, TOPIC | {"properties": given}, P="hush-hush")
    assert found.client()["sasl.password"] == "hush-hush"
    assert "hush-hush" not in repr(found) and "hush-hush" not in found.model_dump_json()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"properties": {"sasl.password": "hush"}}, "never the secret itself"),
        ({"properties": {"acks": "1"}}, "acks: is set by the publisher"),
        ({"properties": {"enable.idempotence": False}}, "set by the publisher"),
        ({"properties": {"transactional.id": "x"}}, "set by the publisher"),
        ({"properties": {"message.timeout.ms": 0}}, "set by the publisher"),
        ({"brokers": "u:hush@b:9092"}, "credentials"),
        ({"topic": "no topic"}, "not a topic name"),
        ({"from": "2026-01-02T03:04:05Z"}, "earliest"),
        ({"interval": 0}, "interval"),
        ({"delivery_timeout": "10m"}, "delivery_timeout"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_a_control_topic_cannot_hold(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigInvalid, match=why) as refused:
        load(tmp_path, TOPIC | change, P="hush")
    assert "hush" not in str(refused.value)

"""The settings of a Kafka source, and which of them are consistent with the topics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from archiver.config.settings import Settings, load_settings
from archiver.runtime.errors import ConfigInvalid

SOURCE: dict[str, Any] = {"brokers": "b:9092", "topics": "shop[.].*"}


def load(
    tmp_path: Path,
    source: dict[str, Any] | list[dict[str, Any]],
    topics: list[dict[str, Any]] | None = None,
    **environ: str,
) -> Settings:
    sources = [{"kafka": one} for one in (source if isinstance(source, list) else [source])]
    path = tmp_path / "archiver.yaml"
    document = {
        "cluster": "demo",
        "data": {"uri": str(tmp_path / "data")},
        "metadata": {"sqlite": {"path": str(tmp_path / "m.db")}},
        "sources": sources,
        "topics": topics or [],
    }
    path.write_text(yaml.safe_dump(document))
    return load_settings(path, environ)


def test_secrets_are_read_and_never_shown(tmp_path: Path) -> None:
    properties = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "u",
        "sasl.password": {"env": "P"},
        "ssl.endpoint.identification.algorithm": "https",
        "socket.nagle.disable": True,
    }
    settings = load(tmp_path, {**SOURCE, "properties": properties}, P="hush-hush")
    kafka = settings.sources[0].kafka
    assert kafka is not None
    assert kafka.client() == {**properties, "sasl.password": "hush-hush", "socket.nagle.disable": "true"}
    assert "hush-hush" not in repr(settings) and "hush-hush" not in settings.model_dump_json()


def test_the_address_of_tokens_is_no_secret(tmp_path: Path) -> None:
    url = {
        "security.protocol": "SASL_SSL",
        "sasl.oauthbearer.token.endpoint.url": "https://login.example/token",
    }
    kafka = load(tmp_path, {**SOURCE, "properties": url}).sources[0].kafka
    assert kafka is not None and kafka.client() == url


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (
            {"properties": {"sasl.password": "plain", "security.protocol": "SASL_SSL"}},
            "never the secret itself",
        ),
        (
            {"properties": {"sasl.oauthbearer.assertion.private.key.passphrase": "hush"}},
            "never the secret itself",
        ),
        ({"properties": {"fetch.max.bytes": 1}}, "set by the source"),
        ({"properties": {"auto.offset.reset": "earliest"}}, "set by the source"),
        ({"properties": {"isolation.level": "read_uncommitted"}}, "set by the source"),
        ({"properties": {"a": [1]}}, "must be text"),
        ({"brokers": "u:hush@b:9092"}, "credentials"),
        ({"topics": "["}, "not a regular expression"),
        ({"from": "yesterday"}, "neither earliest nor latest"),
        ({"lost": {"orders": 5}}, "TOPIC:PARTITION"),
        ({"lost": {"orders:0": -5}}, "no offset|is not an offset"),
        ({"isolation": "read_uncommitted"}, "read_committed"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigInvalid, match=why) as refused:
        load(tmp_path, {**SOURCE, **change})
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ({"name": "shop.a", "partitions": 4}, "write partitions: 0"),
        ({"name": "other", "partitions": 0}, "no Kafka source mirrors"),
        (
            {
                "name": "shop.a",
                "partitions": 0,
                "value": {"descriptor_set": "x", "message": "a.B", "validate": "reject"},
            },
            "must be none",
        ),
    ],
)
def test_topics_and_sources_fit(tmp_path: Path, topic: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigInvalid, match=why):
        load(tmp_path, SOURCE, [topic])


def test_sources_do_not_overlap(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="name of sources"):
        load(tmp_path, [SOURCE, SOURCE])
    with pytest.raises(ConfigInvalid, match="exclude each other"):
        load(tmp_path, [SOURCE, {**SOURCE, "name": "b"}], [{"name": "shop.a", "partitions": 0}])


def test_names_and_times(tmp_path: Path) -> None:
    kafka = (
        load(tmp_path, {**SOURCE, "from": "2026-01-02T03:04:05+01:00"}, [{"name": "shop.a", "partitions": 0}])
        .sources[0]
        .kafka
    )
    assert kafka is not None
    assert kafka.since_ms == 1_767_319_445_000
    assert [kafka.matches(name) for name in ("shop.a", "xshop.a", "shopa", "__shop.a")] == [
        True,
        False,
        False,
        False,
    ]

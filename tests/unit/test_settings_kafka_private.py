"""Which certificates a Kafka client trusts and what it sends unencrypted: one rule, for sources and the
control topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from archiver.config.settings import load_settings
from archiver.runtime.errors import ConfigInvalid

PASSWORD = {"sasl.mechanisms": "PLAIN", "sasl.password": {"env": "P"}}
OPEN = {"security.protocol": "SASL_PLAINTEXT", **PASSWORD}
LOOPBACK = ["127.0.0.1:9092", "localhost:9092, 127.0.0.2:1", "[::1]:9092", "localhost"]
pytestmark = pytest.mark.parametrize("place", ["source", "control topic"])


def load(
    tmp_path: Path, place: str, properties: dict[str, Any], brokers: str = "kafka-1:9093", **environ: str
) -> dict[str, str]:
    """The client properties that such a configuration gives."""
    kafka = {"brokers": brokers, "properties": properties}
    document: dict[str, Any] = {
        "cluster": "demo",
        "data": {"uri": str(tmp_path / "data")},
        "metadata": {"sqlite": {"path": str(tmp_path / "m.db")}},
    }
    if place == "source":
        document["sources"] = [{"kafka": {**kafka, "topics": "shop[.].*"}}]
    else:
        document["events"] = {"kafka": {**kafka, "topic": "archiver-control"}}
    path = tmp_path / "archiver.yaml"
    path.write_text(yaml.safe_dump(document))
    settings = load_settings(path, {"P": "hush", **environ})
    found = settings.sources[0].kafka if place == "source" else settings.events.kafka
    assert found is not None
    return found.client()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("enable.ssl.certificate.verification", False),
        ("enable.ssl.certificate.verification", "FALSE"),
        ("enable.ssl.certificate.verification", 0),
        ("enable.ssl.certificate.verification", ""),
        ("enable.ssl.certificate.verification", {"env": "NO"}),
        ("ssl.endpoint.identification.algorithm", "none"),
        ("ssl.endpoint.identification.algorithm", ""),
    ],
)
def test_no_property_makes_a_client_trust_any_server(
    tmp_path: Path, place: str, key: str, value: Any
) -> None:
    with pytest.raises(ConfigInvalid, match=f"{key} would turn off verification of the cluster; remove it"):
        load(tmp_path, place, {"security.protocol": "SASL_SSL", key: value}, NO="false")


@pytest.mark.parametrize(
    ("key", "value"),
    [("enable.ssl.certificate.verification", True), ("ssl.endpoint.identification.algorithm", "https")],
)
def test_what_is_so_anyway_may_be_written(tmp_path: Path, place: str, key: str, value: Any) -> None:
    assert load(tmp_path, place, {"security.protocol": "SSL", key: value})[key] == str(value).lower()


def test_a_client_secret_does_not_travel_in_the_clear(tmp_path: Path, place: str) -> None:
    key = "sasl.oauthbearer.token.endpoint.url"
    oidc = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
    }
    for url in ("http://idp.example.com/token", "HTTP://10.0.0.7:8080/token"):
        with pytest.raises(ConfigInvalid, match=f"{key} would send a secret unprotected to .*; use https"):
            load(tmp_path, place, {**oidc, key: url})
    for url in ("https://idp.example.com/token", "http://127.0.0.1:8080/token", "http://[::1]/token"):
        assert load(tmp_path, place, {**oidc, key: url})[key] == url


@pytest.mark.parametrize(
    "key",
    [
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.password",
        "enable.ssl.certificate.verification",
    ],
)
@pytest.mark.parametrize(
    "protocol", [{}, {"security.protocol": "PLAINTEXT"}, {"security.protocol": "sasl_plaintext"}]
)
def test_tls_that_would_be_left_out_is_refused(
    tmp_path: Path, place: str, protocol: dict[str, str], key: str
) -> None:
    spoken = protocol.get("security.protocol", "plaintext").lower()
    with pytest.raises(
        ConfigInvalid, match=f"{key} is given, but security.protocol is {spoken}; set it to SSL, or SASL_SSL"
    ) as refused:
        load(tmp_path, place, {**protocol, key: {"env": "P"}}, brokers="127.0.0.1:9092")
    assert "hush" not in str(refused.value)
    for protected in ("SSL", "sasl_ssl"):
        assert (
            load(tmp_path, place, {"security.protocol": protected, "ssl.ca.location": "ca.pem"})[
                "ssl.ca.location"
            ]
            == "ca.pem"
        )


@pytest.mark.parametrize("protocol", [{}, {"security.protocol": "plaintext"}, {"security.protocol": "SSL"}])
def test_a_password_that_no_one_would_ask_for_is_refused(
    tmp_path: Path, place: str, protocol: dict[str, str]
) -> None:
    with pytest.raises(
        ConfigInvalid, match=r"sasl\.mechanisms is given, but security\.protocol is .*; set it to SASL_SSL"
    ):
        load(tmp_path, place, {**protocol, **PASSWORD})


def test_a_protocol_that_is_none_is_refused(tmp_path: Path, place: str) -> None:
    for protocol in ("TLS", "", {"env": "P"}):
        with pytest.raises(
            ConfigInvalid, match="none of PLAINTEXT, SASL_PLAINTEXT, SASL_SSL, SSL"
        ) as refused:
            load(tmp_path, place, {"security.protocol": protocol})
        assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("properties", "brokers", "host"),
    [
        (OPEN, "kafka-1:9093", "kafka-1"),
        (OPEN, "127.0.0.1:1,kafka-2:1", "kafka-2"),
        (OPEN, "[fe80::1]:9092", "fe80::1"),
        (OPEN, "127.0.0.1:1, ::1:9092", "::1:9092"),
        (OPEN, "127.0.0.1:1:kafka-2", "127.0.0.1:1:kafka-2"),
        ({"sasl.mechanism": "oauthbearer", "security.protocol": "sasl_plaintext"}, "kafka-1:9093", "kafka-1"),
        ({**OPEN, "sasl.mechanisms": {"env": "HOW"}}, "kafka-1:9093", "kafka-1"),
        ({**OPEN, "sasl.mechanisms": "SCRAM-SHA-512", "sasl.mechanism": "PLAIN"}, "kafka-1:9093", "kafka-1"),
    ],
)
def test_no_secret_is_sent_unprotected_to_another_machine(
    tmp_path: Path, place: str, properties: dict[str, Any], brokers: str, host: str
) -> None:
    reported = f"would send a secret unprotected to {host}; set security.protocol to SASL_SSL"
    with pytest.raises(ConfigInvalid, match=reported) as refused:
        load(tmp_path, place, properties, brokers, HOW="PLAIN")
    assert "hush" not in str(refused.value)
    assert load(tmp_path, place, {**properties, "security.protocol": "SASL_SSL"}, brokers, HOW="PLAIN")


@pytest.mark.parametrize("brokers", LOOPBACK)
def test_a_password_may_go_unprotected_within_this_machine(tmp_path: Path, place: str, brokers: str) -> None:
    assert load(tmp_path, place, OPEN, brokers)["sasl.password"] == "hush"


def test_a_secret_that_is_never_sent_needs_no_protection(tmp_path: Path, place: str) -> None:
    assert load(tmp_path, place, {**OPEN, "sasl.mechanisms": "SCRAM-SHA-512"})["sasl.password"] == "hush"

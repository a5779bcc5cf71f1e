"""A Kafka cluster over TLS: whoever signed its certificate must be believed, and the name must be its own; nothing switches that off."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from archiver.errors import ArchiverError
from archiver.settings_kafka import KafkaSourceSettings
from intake.sources.kafka_client import KafkaClient
from tests.support.etcd_certificates import Certificates, make_certificates
from tests.support.kafka_server import KafkaServer, admin


def secured(folder: Path, made: Certificates) -> KafkaServer:
    """A broker that speaks TLS with that certificate."""
    store = folder / "store.pem"
    store.write_bytes(made.server_key.read_bytes() + made.server.read_bytes())
    settings: dict[str, object] = {
        "ssl.keystore.type": "PEM", "ssl.keystore.location": store, "ssl.truststore.type": "PEM", "ssl.truststore.location": made.authority,
        "ssl.endpoint.identification.algorithm": "",
    }  # fmt: skip
    return KafkaServer(folder / "server", settings, "SSL")


def topics(server: KafkaServer, **properties: str) -> list[str]:
    """As a source sees them; raises what it would meet."""
    given = {"security.protocol": "SSL", **{name.replace("_", "."): value for name, value in properties.items()}}
    client = KafkaClient(KafkaSourceSettings(brokers=server.brokers, topics=".*", properties=given, request_timeout=5))
    try:
        return client.topics()
    finally:
        client.close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_cluster_is_believed_by_its_authority_and_its_name_alone(tmp_path: Path) -> None:
    made, other = make_certificates(tmp_path / "ours"), make_certificates(tmp_path / "other")
    with secured(tmp_path, made) as server:
        trusting = {"ssl_ca_location": str(made.authority)}
        assert topics(server, **trusting) == []
        for untrusting in ({}, {"ssl_ca_location": str(other.authority)}):
            with pytest.raises(ArchiverError):
                topics(server, **untrusting)
        with pytest.raises(ArchiverError):
            topics(server, security_protocol="PLAINTEXT")
        assert admin(server, security_protocol="SSL", **trusting).list_topics(timeout=30).brokers, "it is there all the time"
    (tmp_path / "elsewhere").mkdir()
    made = make_certificates(tmp_path / "elsewhere" / "tls", host="127.0.0.2")
    with secured(tmp_path / "elsewhere", made) as server:
        trusting = {"ssl_ca_location": str(made.authority)}
        with pytest.raises(ArchiverError):
            topics(server, **trusting)
        unnamed = {**trusting, "ssl_endpoint_identification_algorithm": "none"}
        assert admin(server, security_protocol="SSL", **unnamed).list_topics(timeout=30).brokers, "only its name is wrong"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("enable.ssl.certificate.verification", False),
        ("enable.ssl.certificate.verification", "FALSE"),
        ("enable.ssl.certificate.verification", 0),
        ("enable.ssl.certificate.verification", ""),
        ("ssl.endpoint.identification.algorithm", "none"),
        ("ssl.endpoint.identification.algorithm", ""),
    ],
)
def test_no_property_makes_a_client_believe_anybody(key: str, value: Any) -> None:
    given = {"security.protocol": "SASL_SSL", key: value}
    with pytest.raises(ValidationError, match=f"{key} would let anybody be the cluster; take it out"):
        KafkaSourceSettings.model_validate({"brokers": "b:1", "topics": "x", "properties": given})


@pytest.mark.parametrize(
    ("key", "value"), [("enable.ssl.certificate.verification", True), ("ssl.endpoint.identification.algorithm", "https")]
)
def test_what_is_so_anyway_may_be_written(key: str, value: Any) -> None:
    given = {"security.protocol": "SSL", key: value}
    assert KafkaSourceSettings.model_validate({"brokers": "b:1", "topics": "x", "properties": given}).client()[key] == str(value).lower()

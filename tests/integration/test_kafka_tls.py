"""A Kafka cluster over TLS, for a source and for the control topic.

The signer of its certificate must be trusted, and the name must be its own. With a password the same
connection also authenticates the client.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ has no __all__
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from pydantic import SecretStr

from archiver.config.events import ControlTopicSettings
from archiver.config.kafka import KafkaSourceSettings
from archiver.control_topic.kafka_topic import KafkaTopic
from archiver.control_topic.waves import TopicRecord
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ArchiverError
from intake.sources.kafka.batch_client import connect_source
from intake.sources.kafka.single_records import read_records
from intake.sources.kafka.upstream import Upstream
from tests.support.kafka.kafka_server import KafkaServer, admin
from tests.support.kafka.mirroring import Cluster
from tests.support.log.etcd_certificates import Certificates, make_certificates
from tests.support.process.processes import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
TOPIC = "control"
PASSWORD = "hush-of-the-broker"
LOGINS = {
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_ssl.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="admin" password="admin" user_admin="admin" user_archiver="{PASSWORD}";',
}
RECORD = TopicRecord(b"a table", b"an event", (("archiver.id", b"1"),), "an event")
PATIENCE_S = 120.0
REFUSED_S = 2.0
"""The library asks again and again until this time is over."""
Given = dict[str, str | SecretStr]


def secured(folder: Path, made: Certificates, protocol: str = "SSL", **more: object) -> KafkaServer:
    """A broker that speaks TLS with that certificate."""
    store = folder / "store.pem"
    store.write_bytes(made.server_key.read_bytes() + made.server.read_bytes())
    settings: dict[str, object] = {
        "ssl.keystore.type": "PEM", "ssl.keystore.location": store, "ssl.truststore.type": "PEM", "ssl.truststore.location": made.authority,
        "ssl.endpoint.identification.algorithm": "",
    }  # fmt: skip
    return KafkaServer(folder / "server", settings | more, protocol)


def source(server: KafkaServer, given: Given, within_s: float = PATIENCE_S) -> Upstream:
    return connect_source(
        KafkaSourceSettings(brokers=server.brokers, topics=".*", properties=given, request_timeout=within_s),
        SystemClock(),
    )


def control_topic(server: KafkaServer, given: Given, within_s: float = PATIENCE_S) -> KafkaTopic:
    settings = ControlTopicSettings(
        brokers=server.brokers,
        topic=TOPIC,
        properties=given,
        request_timeout=within_s,
        delivery_timeout=PATIENCE_S,
    )
    return KafkaTopic(settings, SystemClock())


def topics(server: KafkaServer, given: Given, within_s: float = PATIENCE_S) -> list[str]:
    """The topics as a source sees them; raises the error that it would meet."""
    client = source(server, given, within_s)
    try:
        return client.topics()
    finally:
        client.close()


def described(server: KafkaServer, given: Given, within_s: float = PATIENCE_S) -> list[str]:
    """The control topic, if it is visible; raises the error that the publisher would meet."""
    client = control_topic(server, given, within_s)
    try:
        return [TOPIC] if client.topic_id(lambda: False) else []
    finally:
        client.close()


def nobody_believes(server: KafkaServer, given: Given) -> None:
    def refused(ask: Callable[[KafkaServer, Given, float], list[str]]) -> str:
        with pytest.raises(ArchiverError) as told:
            ask(server, given, REFUSED_S)
        return str(told.value)

    with ThreadPoolExecutor() as both:
        assert not [told for told in both.map(refused, (topics, described)) if "hush" in told]


def test_a_cluster_is_believed_by_its_authority_and_its_name_alone(tmp_path: Path) -> None:
    made, other = make_certificates(tmp_path / "ours"), make_certificates(tmp_path / "other")
    with secured(tmp_path, made) as server:
        trusting: Given = {"security.protocol": "SSL", "ssl.ca.location": str(made.authority)}
        cluster = Cluster(server.brokers, security_protocol="SSL", ssl_ca_location=str(made.authority))
        cluster.create(TOPIC)
        assert TOPIC in topics(server, trusting)
        assert described(server, trusting) == [TOPIC]
        for untrusting in ({}, {"ssl.ca.location": str(other.authority)}):
            nobody_believes(server, {"security.protocol": "SSL", **untrusting})
        nobody_believes(server, {})
        assert cluster.admin.list_topics(timeout=30).brokers, "it is there all the time"
    (tmp_path / "elsewhere").mkdir()
    made = make_certificates(tmp_path / "elsewhere" / "tls", host="127.0.0.2")
    with secured(tmp_path / "elsewhere", made) as server:
        authority = str(made.authority)
        nobody_believes(server, {"security.protocol": "SSL", "ssl.ca.location": authority})
        unnamed = {"ssl_ca_location": authority, "ssl_endpoint_identification_algorithm": "none"}
        assert admin(server, security_protocol="SSL", **unnamed).list_topics(timeout=30).brokers, (
            "only its name is wrong"
        )


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_by_scram_reads_batches(tmp_path: Path, mechanism: str) -> None:
    """And one that is wrong reads nothing."""
    listener = f"listener.name.sasl_plaintext.{mechanism.lower()}.sasl.jaas.config"
    logins = {name.replace("sasl_ssl", "sasl_plaintext"): value for name, value in LOGINS.items()}
    logins |= {
        "sasl.enabled.mechanisms": f"PLAIN,{mechanism}",
        listener: "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    }
    with KafkaServer(tmp_path / "server", logins, "SASL_PLAINTEXT") as server:
        plain = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "PLAIN"}
        cluster = Cluster(server.brokers, **plain, **{"sasl.username": "archiver", "sasl.password": PASSWORD})
        cluster.create(TOPIC)
        cluster.send(TOPIC, [{"value": b"v"}])
        kind = getattr(ScramMechanism, mechanism.replace("-", "_"))
        user = UserScramCredentialUpsertion("m=i,r", ScramCredentialInfo(kind, 4096), b"of-scram")
        for future in cluster.admin.alter_user_scram_credentials([user]).values():
            future.result(PATIENCE_S)
        given: Given = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanisms": mechanism,
            "sasl.username": "m=i,r",
            "sasl.password": SecretStr("of-scram"),
        }
        mirror = source(server, given)
        wrong = source(server, given | {"sasl.password": SecretStr("of-another")})
        try:
            mirror.read({(TOPIC, 0): (0, None)})
            (batch,) = until("the record is there", lambda: mirror.poll(10, 0.5).batches)
            assert batch.header.count == 1
            wrong.read({(TOPIC, 0): (0, None)})
            assert not wrong.poll(10, REFUSED_S).batches
        finally:
            mirror.close()
            wrong.close()


def test_a_password_goes_over_tls_and_records_come_and_go(tmp_path: Path) -> None:
    made, other = make_certificates(tmp_path / "ours"), make_certificates(tmp_path / "other")
    given: Given = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "archiver",
        "sasl.password": SecretStr(PASSWORD),
        "ssl.ca.location": str(made.authority),
    }
    with secured(tmp_path, made, "SASL_SSL", **LOGINS) as server:
        as_text = {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value
            for name, value in given.items()
        }
        Cluster(server.brokers, **as_text).create(TOPIC)
        publisher = control_topic(server, given)
        try:
            publisher.send([RECORD], lambda: False)
        finally:
            publisher.close()
        mirror = source(server, given)
        try:
            mirror.read({(TOPIC, 0): (0, None)})
            (batch,) = until("the record is there", lambda: mirror.poll(10, 0.5).batches)
            (found,) = read_records(batch.header, memoryview(batch.data), 2**20)
            assert found.value == RECORD.value
        finally:
            mirror.close()
        nobody_believes(server, given | {"sasl.password": SecretStr("hush-of-somebody-else")})
        nobody_believes(server, given | {"ssl.ca.location": str(other.authority)})
        without = {name: value for name, value in given.items() if not name.startswith("sasl.")}
        nobody_believes(server, without | {"security.protocol": "SSL"})

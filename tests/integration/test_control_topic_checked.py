"""Does `config check --connect` report, on a real broker with users and rights, whether the control topic
would accept our events?
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ has no __all__
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from archiver.runtime.clock import SystemClock
from tests.support.builders.deployment import Deployment, Done
from tests.support.kafka.kafka_server import KafkaServer
from tests.support.kafka.mirroring import Cluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PASSWORDS = {"admin": "hush-admin", "writer": "hush-writer", "reader": "hush-reader", "nobody": "hush-nobody"}
SECURED = {
    "sasl.enabled.mechanisms": "PLAIN",
    "sasl.mechanism.inter.broker.protocol": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'username="admin" password="hush-admin" '
    + " ".join(f'user_{name}="{word}"' for name, word in PASSWORDS.items())
    + ";",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:admin;User:ANONYMOUS",  # the controller's listener has no users
}
CLOCK = SystemClock()
Found = dict[str, tuple[str, str]]


def login(user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    with KafkaServer(tmp_path_factory.mktemp("kafka"), SECURED, listener="SASL_PLAINTEXT") as running:
        yield running


@pytest.fixture
def cluster(secured: KafkaServer) -> Cluster:
    return Cluster(secured.brokers, **login("admin", PASSWORDS["admin"]))


@pytest.fixture
def topic(secured: KafkaServer) -> str:
    return secured.new_name("control")


def deployed(
    folder: Path, brokers: str, topic: str, user: str = "", password: str = "", **chosen: Any
) -> Deployment:
    kafka: dict[str, Any] = {"brokers": brokers, "topic": topic, "request_timeout": "3s"}
    if user:
        folder.mkdir(exist_ok=True)
        (folder / "password").write_text(f"{password or PASSWORDS[user]}\n")
        kafka["properties"] = {**login(user, ""), "sasl.password": {"file": "password"}}
    return Deployment(folder, overrides={"events": {"kafka": kafka, **chosen}})


def asked(deployment: Deployment) -> tuple[int, Found]:
    """The exit code and the findings: (verdict, words) by what was checked."""
    done = deployment.cli("config", "check", "--connect", "--output", "json")
    document = done.json()["control_topic"]
    assert document["type"] == "kafka"
    no_secret(done)
    assert done.err == ""
    return done.code, {item["check"]: (item["verdict"], item["told"]) for item in document["findings"]}


def no_secret(done: Done) -> None:
    assert "hush" not in done.out + done.err


def allow(cluster: Cluster, topic: str, user: str, operation: AclOperation) -> None:
    rule = AclBinding(
        ResourceType.TOPIC,
        topic,
        ResourcePatternType.LITERAL,
        f"User:{user}",
        "*",
        operation,
        AclPermissionType.ALLOW,
    )
    for future in cluster.admin.create_acls([rule]).values():
        future.result(30)


def test_a_topic_that_is_fine(secured: KafkaServer, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    cluster.create(topic, 3)
    deployment = deployed(tmp_path / "d", secured.brokers, topic, "admin")
    code, found = asked(deployment)
    assert code == 0
    assert found == {
        "reachable": ("fine", "it answers, and has 1 broker"),
        f"topic {topic}": (
            "note",
            "it is there, with 3 partitions, some with one replica: their records are lost with one broker",
        ),
        "rights": ("fine", "the user of events.kafka may write to it"),
        "limits": ("fine", "it accepts the largest event"),
    }
    shown = deployment.cli("config", "check", "--connect")
    no_secret(shown)
    assert f"control topic {topic} (kafka): fine\n  fine   reachable: it answers" in shown.out
    assert [*deployment.cli("config", "check", "--output", "json").json()] == [
        "config",
        "cluster",
        "topics",
    ], "connects nowhere unasked"


def test_rights_are_reported_as_far_as_the_cluster_states_them(
    secured: KafkaServer, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create(topic, 1)
    allow(cluster, topic, "writer", AclOperation.WRITE)
    allow(cluster, topic, "reader", AclOperation.READ)
    code, found = asked(deployed(tmp_path / "w", secured.brokers, topic, "writer"))
    assert (code, found["rights"][0], found["limits"][0]) == (0, "fine", "note")
    assert "DescribeConfigs" in found["limits"][1]
    code, found = asked(deployed(tmp_path / "r", secured.brokers, topic, "reader"))
    assert (code, found["rights"]) == (
        1,
        ("wrong", "the user of events.kafka may describe the topic and not write to it; grant it that right"),
    )
    code, found = asked(deployed(tmp_path / "n", secured.brokers, topic, "nobody"))
    assert (code, [*found]) == (1, ["reachable", f"topic {topic}"])
    assert found[f"topic {topic}"] == (
        "wrong",
        f"the user of events.kafka may not describe the topic {topic}; grant it that right",
    )


def test_a_topic_that_is_missing(secured: KafkaServer, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    code, found = asked(deployed(tmp_path / "d", secured.brokers, topic, "admin"))
    assert (code, found["reachable"][0]) == (1, "fine")
    assert found[f"topic {topic}"] == (
        "wrong",
        f"the cluster has no topic {topic}; create it, or correct events.kafka.topic",
    )
    assert topic not in cluster.admin.list_topics(timeout=30).topics


def source_found(folder: Path, brokers: str, user: str, topics: str) -> tuple[int, Found]:
    """The exit code and the findings on a source that mirrors `topics`."""
    folder.mkdir()
    (folder / "password").write_text(f"{PASSWORDS[user]}\n")
    properties = {**login(user, ""), "sasl.password": {"file": "password"}}
    kafka = {
        "name": "upstream",
        "brokers": brokers,
        "topics": topics,
        "request_timeout": "5s",
        "properties": properties,
    }
    done = Deployment(folder, overrides={"sources": [{"kafka": kafka}]}).cli(
        "config", "check", "--connect", "--output", "json"
    )
    no_secret(done)
    (found,) = done.json()["sources"]
    assert (found["name"], found["type"]) == ("upstream", "kafka")
    return done.code, {item["check"]: (item["verdict"], item["told"]) for item in found["findings"]}


def test_topics_of_a_source(secured: KafkaServer, cluster: Cluster, topic: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        cluster.create(f"{topic}-{name}", 3)
        allow(cluster, f"{topic}-{name}", "writer", AclOperation.DESCRIBE)
    allow(cluster, f"{topic}-a", "reader", AclOperation.READ)
    code, found = source_found(tmp_path / "admin", secured.brokers, "admin", f"{topic}-.*")
    assert (code, found["reachable"][0]) == (0, "fine")
    assert found["topics"] == ("fine", "2 topics match, with 6 partitions")
    assert found["rights"] == ("fine", "our user may read them")
    code, found = source_found(tmp_path / "reader", secured.brokers, "reader", f"{topic}-.*")
    assert (code, found["topics"]) == (0, ("fine", "1 topic matches, with 3 partitions"))
    code, found = source_found(tmp_path / "writer", secured.brokers, "writer", f"{topic}-a")
    assert (code, found["rights"][0]) == (1, "wrong")
    assert f"describe and not read {topic}-a" in found["rights"][1]
    code, found = source_found(tmp_path / "none", secured.brokers, "admin", f"{topic}-none")
    assert (code, found["topics"][0]) == (0, "note")


def test_limits_that_events_do_not_fit(
    secured: KafkaServer, cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    cluster.create(topic, 1, max_message_bytes=300_000)
    code, found = asked(deployed(tmp_path / "a", secured.brokers, topic, "admin"))
    assert (code, found["limits"][0]) == (1, "wrong")
    assert "max.message.bytes is 300000, too little" in found["limits"][1]
    assert "raise the one to 1004096" in found["limits"][1]
    assert asked(deployed(tmp_path / "b", secured.brokers, topic, "admin", bytes_max=295_904))[0] == 0
    strict = cluster.create(f"{topic}-strict", 1, min_insync_replicas=2)
    code, found = asked(deployed(tmp_path / "c", secured.brokers, strict, "admin"))
    assert (code, found["limits"][0]) == (1, "wrong")
    assert found["limits"][1].startswith("min.insync.replicas is 2")


def test_a_wrong_password(secured: KafkaServer, topic: str, tmp_path: Path) -> None:
    code, found = asked(deployed(tmp_path / "d", secured.brokers, topic, "writer", "hush-hush"))
    assert (code, [*found]) == (1, ["reachable"])
    verdict, reported = found["reachable"]
    assert verdict == "wrong"
    assert "because it refuses the connection: SASL authentication error: Authentication failed: " in reported
    assert reported.endswith("; correct events.kafka.properties")
    assert "after" not in reported, "a lasting error has the same text each time"


@pytest.mark.parametrize("how", ["refuses", "is silent"])
def test_a_broker_that_is_away_is_not_waited_for_without_end(how: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        brokers = f"127.0.0.1:{listener.getsockname()[1]}"
        if how == "refuses":
            listener.close()
        deployment = deployed(tmp_path / "d", brokers, "control")
        before_s = CLOCK.monotonic_s()
        code, found = asked(deployment)
        assert CLOCK.monotonic_s() - before_s < 100
    assert (code, [*found]) == (2, ["reachable"])
    verdict, reported = found["reachable"]
    assert verdict == "untold"
    assert reported.startswith("the cluster of the control topic control does not answer")
    assert ("Connection refused)" in reported) == (how == "refuses")

"""Real admin clients create, describe, change and delete topics through the listener."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType
from kafka.admin import NewTopic as PythonTopic
from kio.schema.errors import ErrorCode

from archiver.app.application import Application
from archiver.kafka.protocol import ApiKey
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.kafka.wire import WireClient
from tests.support.schema.orders import DESCRIPTOR_SET

pytestmark = pytest.mark.timeout(120)

TOPICS = [
    {"name": "orders", "partitions": 3, "archive": {"idle_max": "7s"}},
    {
        "pattern": "shop.*",
        "partitions": 2,
        "retention": "30d",
        "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.{topic}"},
    },
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    root = tmp_path_factory.mktemp("kafka")
    (root / "shop.binpb").write_bytes(DESCRIPTOR_SET)
    catalogs = [{"name": "local", "type": "sql", "uri": f"sqlite:///{root}/catalog.db"}]
    with listening(configured(root, TOPICS, catalogs=catalogs, kafka={"auto_create_topics": True})) as found:
        yield found


@pytest.fixture
def admin(served: Listening) -> AdminClient:
    return AdminClient({"bootstrap.servers": served.bootstrap})


def _code(future: Any) -> str | None:
    """The name of the error of an answer; None without one."""
    try:
        future.result(30)
    except KafkaException as error:
        return str(error.args[0].name())
    return None


def _values(admin: AdminClient, topic: str) -> dict[str, Any]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    return dict(admin.describe_configs([resource])[resource].result(30))


def _alter(admin: AdminClient, topic: str, *entries: ConfigEntry) -> str | None:
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=list(entries))
    return _code(admin.incremental_alter_configs([resource])[resource])


def _set(name: str, value: str) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)


def test_librdkafka_creates_changes_and_deletes_topics(served: Listening, admin: AdminClient) -> None:
    asked = [
        NewTopic("shop.one", config={"retention.ms": "86400000"}),
        NewTopic("shop.two", 5, 3),
        NewTopic("orders", 1),
        NewTopic("shop.bad", 1, config={"compression.type": "zstd"}),
    ]
    assert {name: _code(future) for name, future in admin.create_topics(asked).items()} == {
        "shop.one": None,
        "shop.two": None,
        "orders": "TOPIC_ALREADY_EXISTS",
        "shop.bad": "INVALID_CONFIG",
    }
    listed = admin.list_topics(timeout=30).topics
    assert [len(listed[name].partitions) for name in ("shop.one", "shop.two")] == [2, 5]

    values = _values(admin, "shop.one")
    assert (values["retention.ms"].value, values["archive.table"].value) == ("86400000", "shop.shop_one")
    assert values["archive.table"].is_read_only
    assert not values["retention.ms"].is_default
    assert (
        _alter(admin, "shop.one", _set("archive.idle_max", "5s"), _set("cleanup.policy", "compact")) is None
    )
    settings = served.application.settings.topic("shop.one")
    assert settings is not None
    assert (settings.archive.idle_max, settings.retention) == (5, 86400)
    assert _values(admin, "shop.one")["cleanup.policy"].value == "compact"
    assert _alter(admin, "orders", _set("archive.idle_max", "5s")) == "INVALID_CONFIG"

    (grown,) = admin.create_partitions([NewPartitions("shop.one", 4)]).values()
    assert _code(grown) is None
    assert served.application.topic("shop.one").partitions == 4
    gone = admin.delete_topics(["shop.two", "nix", "orders"], operation_timeout=10)
    assert {name: _code(future) for name, future in gone.items()} == {
        "shop.two": None,
        "nix": "UNKNOWN_TOPIC_OR_PART",
        "orders": "POLICY_VIOLATION",
    }
    assert "shop.two" not in admin.list_topics(timeout=30).topics


def test_a_producer_creates_a_topic_and_its_records_are_stored(served: Listening) -> None:
    producer = Producer({"bootstrap.servers": served.bootstrap, "allow.auto.create.topics": True})
    errors: list[Any] = []
    producer.produce("shop.auto", b"value", on_delivery=lambda error, _: errors.append(error))
    producer.flush(60)
    assert errors == [None]
    assert served.application.topic("shop.auto").partitions == 2
    found = [record.value for records in served.stored("shop.auto").values() for record in records]
    assert found == [b"value"]


def test_a_batch_over_max_message_bytes_is_refused(served: Listening, admin: AdminClient) -> None:
    admin.create_topics([NewTopic("shop.small", 1, config={"max.message.bytes": "1000"})])[
        "shop.small"
    ].result(30)
    producer = Producer({"bootstrap.servers": served.bootstrap})
    outcomes: list[Any] = []
    for size in (100, 2000):
        producer.produce("shop.small", b"x" * size, on_delivery=lambda error, _: outcomes.append(error))
        producer.flush(60)
    assert [None if one is None else one.name() for one in outcomes] == [None, "MSG_SIZE_TOO_LARGE"]


def test_the_python_client_creates_describes_and_deletes(served: Listening) -> None:
    admin = KafkaAdminClient(bootstrap_servers=served.bootstrap)
    try:
        admin.create_topics([PythonTopic("shop.py", num_partitions=3, replication_factor=1)])
        assert served.application.topic("shop.py").partitions == 3
        described = admin.describe_configs(
            [PythonResource(ConfigResourceType.TOPIC, "shop.py")], config_filter="all"
        )
        assert "archive.table" in str(described)
        admin.delete_topics(["shop.py"])
        assert "shop.py" not in served.application.backlog().topics_by_name
    finally:
        admin.close()


def test_a_topic_of_another_daemon_is_found_at_once(tmp_path: Path) -> None:
    with listening(configured(tmp_path, [{"name": "a", "partitions": 1}])) as served:
        with Application(served.application.configured, {}) as other:
            other.sequencer.declare_topic("elsewhere", 3)
        admin = AdminClient({"bootstrap.servers": served.bootstrap})
        assert len(admin.list_topics("elsewhere", timeout=30).topics["elsewhere"].partitions) == 3


def test_an_id_is_unknown_to_those_who_may_not_see_the_topic(tmp_path: Path) -> None:
    rules = [{"principal": "User:ANONYMOUS", "operations": ["describe"], "topics": ["seen"]}]
    topics = [{"name": name, "partitions": 1} for name in ("seen", "hidden")]
    path = configured(tmp_path, topics, kafka={"acls": rules})
    with listening(path) as served, WireClient(served.address) as client:
        ids = [uuid.UUID(served.application.topic(name).topic_id) for name in ("seen", "hidden")]
        body = {
            "topics": [{"topic_id": one, "name": None} for one in (*ids, uuid.UUID(int=7))],
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        found = client.ask(ApiKey.METADATA, 12, body).topics
        assert [(one.name, one.error_code) for one in found] == [
            ("seen", ErrorCode.none),
            (None, ErrorCode.unknown_topic_id),
            (None, ErrorCode.unknown_topic_id),
        ]

"""Topics and their configs over Kafka's requests, against a real deployment and without sockets."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.index import load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader
from pyiceberg.catalog import load_catalog

from archiver.config.kafka_listener import KafkaAclSettings, KafkaListenerSettings
from archiver.kafka.acl import Authorizer
from archiver.kafka.log_view import Bounds
from archiver.kafka.protocol import VERSIONS, ApiKey, KafkaRequest, write_response
from archiver.kafka.topic_configs import TopicConfigs, batch_bytes_max
from archiver.kafka.topics import Topics
from archiver.runtime.errors import OutcomeUnknown, RetryLater
from archiver.runtime.ids import TopicId
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.kafka.fetching import log_view

ALICE, MALLORY = "User:alice", "User:mallory"


def written(api: ApiKey, body: Any) -> Any:
    """The response, which every version must be able to state."""
    low, high = VERSIONS[api]
    for version in range(low, high + 1):
        data = b"".join(write_response(KafkaRequest(api, version, 1, "", SimpleNamespace()), body))
        schema: Any = load_response_schema(api, version)
        header, at = entity_reader(schema.__header_schema__)(data, 4)
        assert header.correlation_id == 1
        _, end = entity_reader(schema)(data, 4 + at)
        assert 4 + at + end == len(data)
    return body


class Ground:
    """One daemon's application and its handlers. Alice may do everything with topics of `shop.`."""

    def __init__(self, tmp_path: Path) -> None:
        self.deployment = Deployment(tmp_path / "d")
        document = self.deployment.document()
        document["topics"][0]["archive"]["idle_max"] = "7s"
        document["topics"] += [
            {
                "pattern": "shop.*",
                "partitions": 3,
                "retention": "30d",
                "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.{topic}"},
            }
        ]
        document["sources"] = [{"kafka": {"name": "main", "brokers": "localhost:1", "topics": "mirror[.].*"}}]
        self.deployment.write(document)
        self.driver = Driver(self.deployment)
        self.application = self.driver.application
        self.application.intake.writer().close()
        rules = [
            {"principal": ALICE, "operations": ["all"], "topics": ["*"], "cluster": True},
            {"principal": "User:bob", "operations": ["create"], "topics": ["shop.*"]},
        ]
        authorizer = Authorizer([KafkaAclSettings.model_validate(one) for one in rules], authenticates=True)
        settings = KafkaListenerSettings.model_validate({"listen": "127.0.0.1:0", "default_partitions": 2})
        self._parts = self.application, settings, authorizer
        self.topics = self.with_bounds(lambda *_: Bounds(5, 9, 9))
        self.automatic = Topics(
            self.application,
            settings.model_copy(update={"auto_create_topics": True}),
            authorizer,
            lambda *_: Bounds(5, 9, 9),
        )
        self.configs = TopicConfigs(self.application, settings, authorizer, lambda: (1,))

    def with_bounds(self, bounds: Callable[[TopicId, int], Bounds]) -> Topics:
        """The handler over these ends of partitions."""
        return Topics(*self._parts, bounds)

    def create(self, *topics: Any, principal: str = ALICE, timeout: int = 30_000, **more: Any) -> Any:
        """The answers of CreateTopics by name."""
        body = SimpleNamespace(topics=topics, timeout=timeout, validate_only=False, **more)
        answer = written(ApiKey.CREATE_TOPICS, self.topics.create(principal, body))
        return {one["name"]: one for one in answer["topics"]}

    def describe(self, name: str, *keys: str, kind: int = 2, principal: str = ALICE) -> Any:
        """The configs of one resource, or its error."""
        resource = SimpleNamespace(resource_type=kind, resource_name=name, configuration_keys=list(keys))
        body = SimpleNamespace(resources=[resource], include_synonyms=False)
        (found,) = written(ApiKey.DESCRIBE_CONFIGS, self.configs.describe(principal, body))["results"]
        if found["error_code"]:
            return ErrorCode(found["error_code"])
        return {
            one["name"]: (one["value"], one["config_source"], one["read_only"]) for one in found["configs"]
        }

    def alter(self, name: str, *ops: tuple[str, int, str | None], principal: str = ALICE, **more: Any) -> Any:
        """The error and the message of IncrementalAlterConfigs for one topic."""
        configs = [SimpleNamespace(name=key, config_operation=op, value=value) for key, op, value in ops]
        resource = SimpleNamespace(
            resource_type=more.pop("kind", 2), resource_name=name, configs=configs
        )  # fmt: skip
        body = SimpleNamespace(resources=[resource], validate_only=more.pop("validate_only", False))
        answer = written(ApiKey.INCREMENTAL_ALTER_CONFIGS, self.configs.alter(principal, body))
        (found,) = answer["responses"]
        return ErrorCode(found["error_code"]), found["error_message"]

    def stored(self, name: str) -> dict[str, str]:
        """The configs in the log."""
        return dict(self.application.topic(name).configs)


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.driver.close()


def topic(name: str, partitions: int = -1, replicas: int = -1, **configs: str | None) -> Any:
    stated = [SimpleNamespace(name=key.replace("__", "."), value=value) for key, value in configs.items()]
    return SimpleNamespace(
        name=name, num_partitions=partitions, replication_factor=replicas, assignments=[], configs=stated
    )


def codes(found: Any) -> dict[str, ErrorCode]:
    return {name: ErrorCode(one["error_code"]) for name, one in found.items()}


# --- CreateTopics


def test_a_created_topic_has_a_table_after_the_next_round(ground: Ground) -> None:
    found = ground.create(topic("shop.a", retention__ms="86400000"), topic("plain", 5, 3))
    assert codes(found) == {"shop.a": ErrorCode.none, "plain": ErrorCode.none}
    state = ground.application.topic("shop.a")
    assert found["shop.a"]["topic_id"] == uuid.UUID(state.topic_id)
    # The template's number; the stated one; never more than one replica.
    assert [(one["num_partitions"], one["replication_factor"]) for one in found.values()] == [(3, 1), (5, 1)]
    values = {one["name"]: one["value"] for one in found["shop.a"]["configs"]}
    assert values["retention.ms"] == "86400000"
    assert values["archive.table"] == "shop.shop_a"
    ground.driver.send("shop.a", [b"x"], 0)
    ground.driver.archive()
    assert ground.driver.watermarks("shop.a") == {0: 1}
    assert ground.application.table("shop.a") is not None
    assert codes(ground.create(topic("other"))) == {"other": ErrorCode.none}
    assert ground.application.topic("other").partitions == 2, "kafka.default_partitions"


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (topic("orders"), ErrorCode.topic_already_exists),
        (topic(""), ErrorCode.invalid_topic_exception),
        (topic(".."), ErrorCode.invalid_topic_exception),
        (topic("a b"), ErrorCode.invalid_topic_exception),
        (topic("n" * 250), ErrorCode.invalid_topic_exception),
        (topic("__consumer_offsets"), ErrorCode.invalid_request),
        (topic("mirror.a"), ErrorCode.policy_violation),
        (topic("t", 0), ErrorCode.invalid_partitions),
        (topic("t", 100_001), ErrorCode.invalid_partitions),
        (topic("t", 1, 0), ErrorCode.invalid_replication_factor),
        (topic("t", 1, -2), ErrorCode.invalid_replication_factor),
        (topic("t", retention__ms="1"), ErrorCode.invalid_config),
        (topic("t", retention__ms=None), ErrorCode.invalid_config),
        (topic("t", compression__type="zstd"), ErrorCode.invalid_config),
        (topic("t", archive__table="shop.orders"), ErrorCode.invalid_config),
        (topic("t", nix="1"), ErrorCode.invalid_config),
    ],
)
def test_what_cannot_be_created_is_refused_and_leaves_nothing(
    ground: Ground, asked: Any, code: ErrorCode
) -> None:
    tail = ground.application.intake_log.tail()
    (found,) = ground.create(asked).values()
    assert ErrorCode(found["error_code"]) is code
    assert len(found["error_message"] or "") < 500
    assert ground.application.intake_log.tail() == tail


def test_an_error_of_one_topic_stays_with_it(ground: Ground) -> None:
    assigned = topic("assigned")
    assigned.assignments = [SimpleNamespace(partition_index=0, broker_ids=(1,))]
    twice = topic("t", 1)
    twice.configs = [SimpleNamespace(name="retention.ms", value="-1")] * 2
    body = SimpleNamespace(
        topics=[topic("dup"), topic("fine"), topic("dup"), assigned, twice],
        timeout=30_000,
        validate_only=False,
    )
    answers = written(ApiKey.CREATE_TOPICS, ground.topics.create(ALICE, body))["topics"]
    assert [(one["name"], ErrorCode(one["error_code"])) for one in answers] == [
        ("dup", ErrorCode.invalid_request),
        ("fine", ErrorCode.none),
        ("dup", ErrorCode.invalid_request),
        ("assigned", ErrorCode.invalid_replica_assignment),
        ("t", ErrorCode.invalid_config),
    ]
    assert "fine" in ground.application.backlog().topics_by_name


def test_a_check_alone_creates_nothing_and_says_the_same(ground: Ground) -> None:
    tail = ground.application.intake_log.tail()
    body = SimpleNamespace(
        topics=[topic("shop.a", segment__bytes="52428800"), topic("orders")],
        timeout=60_000,
        validate_only=True,
    )
    found = {one["name"]: one for one in ground.topics.create(ALICE, body)["topics"]}
    assert codes(found) == {"shop.a": ErrorCode.none, "orders": ErrorCode.topic_already_exists}
    assert found["shop.a"]["num_partitions"] == 3
    assert ground.application.intake_log.tail() == tail


def test_two_topics_of_one_table_are_refused_without_the_other_name(ground: Ground) -> None:
    assert codes(ground.create(topic("shop.a-b"))) == {"shop.a-b": ErrorCode.none}
    (found,) = ground.create(topic("shop.a_b")).values()
    assert ErrorCode(found["error_code"]) is ErrorCode.policy_violation
    assert "shop.a-b" not in found["error_message"]


def test_a_name_whose_table_is_kept_is_refused_and_one_without_a_table_is_not(ground: Ground) -> None:
    ground.create(topic("shop.a"), topic("plain"))
    ground.driver.send("shop.a", [b"x"], 0)
    ground.driver.archive()
    body = SimpleNamespace(topic_names=["shop.a", "plain"], timeout=60_000)
    assert [one["error_code"] for one in ground.topics.delete(ALICE, body)["responses"]] == [0, 0]
    # The second name would have the same table in a catalog without case.
    assert codes(ground.create(topic("shop.a"), topic("shop.A"), topic("plain"))) == {
        "shop.a": ErrorCode.policy_violation,
        "shop.A": ErrorCode.none,
        "plain": ErrorCode.none,
    }
    body = SimpleNamespace(topic_names=["shop.A"], timeout=60_000)
    assert [one["error_code"] for one in ground.topics.delete(ALICE, body)["responses"]] == [0]
    catalog = load_catalog(
        "local", type="sql", uri=f"sqlite:///{ground.deployment.root}/catalog.db?timeout=60"
    )
    catalog.drop_table("shop.shop_a")
    assert codes(ground.create(topic("shop.a"))) == {"shop.a": ErrorCode.none}
    ground.driver.send("shop.a", [b"y"], 0)
    assert ground.driver.archive().of("shop.a").why is None


def test_time_that_is_over_stops_before_the_next_topic(ground: Ground) -> None:
    clock = ground.driver.clock
    real = ground.application.intake.create_topic

    def slow(*arguments: Any) -> Any:
        clock.ahead_s += 10
        return real(*arguments)

    ground.application.intake.create_topic = slow  # type: ignore[method-assign,assignment]
    assert codes(ground.create(topic("a"), topic("b"), timeout=5000)) == {
        "a": ErrorCode.none,
        "b": ErrorCode.request_timed_out,
    }


def test_rights_decide_before_anything_is_said(ground: Ground) -> None:
    assert codes(ground.create(topic("orders"), topic("new"), principal=MALLORY)) == {
        "orders": ErrorCode.topic_authorization_failed,
        "new": ErrorCode.topic_authorization_failed,
    }
    found = ground.create(topic("shop.b"), topic("other"), principal="User:bob")
    assert codes(found) == {"shop.b": ErrorCode.none, "other": ErrorCode.topic_authorization_failed}
    # He may create it, but not read its configs.
    assert found["shop.b"]["configs"] is None
    assert found["shop.b"]["topic_config_error_code"] == ErrorCode.topic_authorization_failed.value
    for name in ("orders", "nix"):
        assert ground.describe(name, principal=MALLORY) is ErrorCode.topic_authorization_failed
        assert ground.alter(name, principal=MALLORY)[0] is ErrorCode.topic_authorization_failed
        body = SimpleNamespace(topic_names=[name], timeout=60_000)
        (gone,) = ground.topics.delete(MALLORY, body)["responses"]
        assert gone["error_code"] == ErrorCode.topic_authorization_failed.value


# --- auto-creation


def test_a_topic_is_created_at_its_first_use_if_the_setting_says_so(ground: Ground) -> None:
    assert ground.topics.auto_create(ALICE, "shop.a") is ErrorCode.unknown_topic_or_partition
    assert ground.automatic.auto_create(MALLORY, "shop.a") is ErrorCode.topic_authorization_failed
    assert ground.automatic.auto_create(ALICE, "shop.a") is ErrorCode.none
    assert ground.automatic.auto_create(ALICE, "shop.a") is ErrorCode.none
    assert ground.application.topic("shop.a").partitions == 3
    assert ground.automatic.auto_create(ALICE, "a b") is ErrorCode.invalid_topic_exception
    assert ground.automatic.auto_create(ALICE, "mirror.a") is ErrorCode.policy_violation


# --- DeleteTopics


def test_topics_are_deleted_by_name_and_by_id(ground: Ground) -> None:
    ground.create(topic("a"), topic("b"), topic("c"))
    ids = {name: uuid.UUID(ground.application.topic(name).topic_id) for name in "abc"}
    ground.application.sequencer.declare_topic("mirror.a", 1, mirrored=True)
    body = SimpleNamespace(topic_names=["a", "orders", "nix", "mirror.a"], timeout=60_000)
    found = ground.topics.delete(ALICE, body)["responses"]
    written(ApiKey.DELETE_TOPICS, {"throttle_time": 0, "responses": found})
    assert [(one["name"], ErrorCode(one["error_code"])) for one in found] == [
        ("a", ErrorCode.none),
        ("orders", ErrorCode.policy_violation),
        ("nix", ErrorCode.unknown_topic_or_partition),
        ("mirror.a", ErrorCode.policy_violation),
    ]
    assert "name: orders" in found[1]["error_message"], "the entry to take out"
    asked = [
        SimpleNamespace(name=None, topic_id=ids["b"]),
        SimpleNamespace(name="c", topic_id=None),
        SimpleNamespace(name=None, topic_id=uuid.UUID(int=7)),
        SimpleNamespace(name=None, topic_id=ids["a"]),
    ]
    found = ground.topics.delete(ALICE, SimpleNamespace(topics=asked, timeout=60_000))["responses"]
    assert [(one["name"], one["topic_id"], ErrorCode(one["error_code"])) for one in found] == [
        ("b", ids["b"], ErrorCode.none),
        ("c", ids["c"], ErrorCode.none),
        (None, uuid.UUID(int=7), ErrorCode.unknown_topic_id),
        (None, ids["a"], ErrorCode.unknown_topic_id),
    ]
    assert not {"a", "b", "c"} & set(ground.application.backlog().topics_by_name)


# --- CreatePartitions


def test_partitions_are_added_to_any_topic(ground: Ground) -> None:
    ground.create(topic("shop.a"))

    def add(name: str, count: int, *, validate_only: bool = False, assignments: Any = None) -> ErrorCode:
        asked = SimpleNamespace(name=name, count=count, assignments=assignments)
        body = SimpleNamespace(topics=[asked], timeout=60_000, validate_only=validate_only)
        answer = written(ApiKey.CREATE_PARTITIONS, ground.topics.add_partitions(ALICE, body))
        return ErrorCode(answer["results"][0]["error_code"])

    assert add("shop.a", 5, validate_only=True) is ErrorCode.none
    assert ground.application.topic("shop.a").partitions == 3
    assert add("shop.a", 5) is ErrorCode.none
    assert add("orders", 4) is ErrorCode.none
    assert ground.application.topic("shop.a").partitions == 5
    settings = ground.application.settings.topic("shop.a")
    assert settings is not None
    assert settings.partitions == 5
    assert add("shop.a", 5) is ErrorCode.invalid_partitions
    assert add("shop.a", 4) is ErrorCode.invalid_partitions
    assert add("shop.a", 100_001) is ErrorCode.invalid_partitions
    assert add("shop.a", 6, assignments=[SimpleNamespace(broker_ids=(1,))]) is (
        ErrorCode.invalid_replica_assignment
    )
    assert add("nix", 6) is ErrorCode.unknown_topic_or_partition
    ground.driver.send("shop.a", [b"x"], 4)
    ground.driver.archive()
    assert ground.driver.watermarks("shop.a") == {4: 1}


# --- configs


def test_configs_come_back_with_their_source(ground: Ground) -> None:
    ground.create(topic("shop.a"))
    before = ground.describe("shop.a")
    assert before["retention.ms"] == (str(30 * 86_400_000), 4, False)
    assert before["archive.idle_max"] == ("30s", 5, False)
    assert before["archive.table"] == ("shop.shop_a", 4, True)
    assert ground.alter("shop.a", ("archive.idle_max", 0, "5s"), ("cleanup.policy", 2, "compact")) == (
        ErrorCode.none,
        None,
    )
    assert ground.describe("shop.a", "archive.idle_max", "cleanup.policy", "nix") == {
        "archive.idle_max": ("5s", 1, False),
        "cleanup.policy": ("delete,compact", 1, False),
    }
    settings = ground.application.settings.topic("shop.a")
    assert settings is not None
    assert settings.archive.idle_max == 5
    assert ground.alter("shop.a", ("cleanup.policy", 3, "delete"), ("archive.idle_max", 1, None))[0] is (
        ErrorCode.none
    )
    assert ground.stored("shop.a") == {"cleanup.policy": "compact"}
    # What the file states is read-only, and has the source of the file.
    assert ground.describe("orders", "archive.idle_max") == {"archive.idle_max": ("7s", 4, True)}
    assert ground.describe("nix") is ErrorCode.unknown_topic_or_partition
    assert ground.describe("orders", kind=32) is ErrorCode.invalid_request


def test_what_cannot_be_set_is_refused_with_the_reason(ground: Ground) -> None:
    ground.create(topic("shop.a"))
    tail = ground.application.intake_log.tail()
    for name, change, why in (
        ("orders", ("archive.idle_max", 0, "9s"), "topics.orders.archive.idle_max"),
        ("shop.a", ("archive.table", 0, "shop.b"), "only the configuration file"),
        ("shop.a", ("retention.ms", 0, "5"), "less than an hour"),
        ("shop.a", ("retention.ms", 0, None), "no value"),
        ("shop.a", ("retention.ms", 2, "5"), "no list"),
        ("shop.a", ("cleanup.policy", 9, "delete"), "unknown"),
        ("shop.a", ("cleanup.policy", 3, "delete"), "is not delete"),
        ("shop.a", ("n" * 5000, 0, "1"), "no topic config"),
    ):
        code, text = ground.alter(name, change)
        assert code is ErrorCode.invalid_config
        assert why in text
        assert len(text) < 500
    assert ground.alter("shop.a", ("retention.ms", 0, "-1"), ("retention.ms", 0, "-1"))[0] is (
        ErrorCode.invalid_request
    )
    assert ground.alter("nix")[0] is ErrorCode.unknown_topic_or_partition
    assert ground.alter("1", kind=4)[0] is ErrorCode.policy_violation
    assert ground.alter("shop.a", ("retention.ms", 0, "-1"), validate_only=True)[0] is ErrorCode.none
    # A tool that writes back what it has read changes nothing.
    assert ground.alter("orders", ("archive.idle_max", 0, "7s"))[0] is ErrorCode.none
    assert ground.application.intake_log.tail() == tail


def test_alter_configs_replaces_all_of_them(ground: Ground) -> None:
    ground.create(topic("shop.a", retention__ms="-1", segment__ms="1000"))

    def replace(**configs: str | None) -> ErrorCode:
        stated = [SimpleNamespace(name=key.replace("__", "."), value=value) for key, value in configs.items()]
        resource = SimpleNamespace(resource_type=2, resource_name="shop.a", configs=stated)
        body = SimpleNamespace(resources=[resource], validate_only=False)
        (found,) = written(ApiKey.ALTER_CONFIGS, ground.configs.replace(ALICE, body))["responses"]
        return ErrorCode(found["error_code"])

    assert replace(retention__ms="86400000", archive__table="shop.shop_a") is ErrorCode.none
    assert ground.stored("shop.a") == {"retention.ms": "86400000"}
    assert replace(retention__ms=None) is ErrorCode.invalid_config
    assert replace() is ErrorCode.none
    assert ground.stored("shop.a") == {}


def test_the_largest_batch_is_a_config(ground: Ground) -> None:
    ground.create(topic("a", max__message__bytes="1000"), topic("b"))
    topics = ground.application.backlog().topics_by_name
    assert [batch_bytes_max(topics.get(name)) for name in ("a", "b", "nix")] == [1000, 1_048_588, 1_048_588]


def test_a_daemon_describes_itself(ground: Ground) -> None:
    found = ground.describe("1", "num.partitions", "auto.create.topics.enable", kind=4)
    assert found == {
        "num.partitions": ("2", 4, True),
        "auto.create.topics.enable": ("false", 5, True),
    }
    assert ground.describe("", kind=4) == {}
    assert ground.describe("9", kind=4) is ErrorCode.invalid_request
    assert ground.describe("1", kind=4, principal=MALLORY) is ErrorCode.cluster_authorization_failed


# --- DeleteRecords


def removed(
    topics: Topics, name: str, *parts: tuple[int, int], principal: str = ALICE, timeout: int = 60_000
) -> list[tuple[ErrorCode, int]]:
    """The error and the low watermark of each partition."""
    stated = [SimpleNamespace(partition_index=number, offset=offset) for number, offset in parts]
    body = SimpleNamespace(topics=[SimpleNamespace(name=name, partitions=stated)], timeout=timeout)
    (answer,) = written(ApiKey.DELETE_RECORDS, topics.delete_records(principal, body))["topics"]
    assert [one["partition_index"] for one in answer["partitions"]] == [number for number, _ in parts]
    return [(ErrorCode(one["error_code"]), one["low_watermark"]) for one in answer["partitions"]]


def test_records_are_deleted_per_partition(ground: Ground) -> None:
    for partition in (0, 1):
        ground.driver.send("orders", [b"value"] * 9, partition)
    view = log_view(ground.driver)
    view.ledger()
    topics = ground.with_bounds(view.bounds)
    out_of_range, unknown = ErrorCode.offset_out_of_range, ErrorCode.unknown_topic_or_partition
    # An error of one partition leaves the others alone. Of two for one partition, the greater offset counts.
    parts = ((0, 5), (1, 10), (9, 5), (-1, 5), (2, 1), (0, 3), (1, -2))
    assert removed(topics, "orders", *parts) == [
        *((ErrorCode.none, 5), (out_of_range, -1), (unknown, -1), (unknown, -1)),
        *((out_of_range, -1), (ErrorCode.none, 5), (out_of_range, -1)),
    ]
    tail = ground.application.intake_log.tail()
    assert removed(topics, "orders", (0, 5), (0, 0), (2, 0), (2, -1)) == [
        *((ErrorCode.none, 5), (ErrorCode.none, 5), (ErrorCode.none, 0), (ErrorCode.none, 0)),
    ]
    refused = [(ErrorCode.topic_authorization_failed, -1)]
    assert removed(topics, "orders", (0, 6), principal=MALLORY) == refused
    assert removed(topics, "nix", (0, 6), principal=MALLORY) == refused
    assert removed(topics, "nix", (0, 5)) == [(unknown, -1)]
    assert removed(topics, "orders", (0, 6), timeout=0) == [(ErrorCode.request_timed_out, -1)]
    assert ground.application.intake_log.tail() == tail
    # -1 is the end.
    assert removed(topics, "orders", (0, -1), (1, -1)) == [(ErrorCode.none, 9), (ErrorCode.none, 9)]


def test_a_mirrored_topic_and_an_unknown_outcome_when_records_are_deleted(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    ground.application.sequencer.declare_topic("mirror.a", 1, mirrored=True)
    assert removed(ground.topics, "mirror.a", (0, 6), (0, 5)) == [(ErrorCode.policy_violation, -1)] * 2
    # What is gone already is no request to delete.
    assert removed(ground.topics, "mirror.a", (0, 5)) == [(ErrorCode.none, 5)]

    def unknown(*_: Any) -> Any:
        raise OutcomeUnknown("it may be in the log")

    monkeypatch.setattr(ground.application.sequencer, "delete_records", unknown)
    assert removed(ground.topics, "orders", (0, 6)) == [(ErrorCode.request_timed_out, -1)]


# --- a log that does not answer


def test_a_log_that_does_not_answer_is_an_error_of_each_topic(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        raise RetryLater("the metadata store does not answer")

    monkeypatch.setattr(ground.application, "backlog", failing)
    assert codes(ground.create(topic("shop.a"))) == {"shop.a": ErrorCode.not_controller}
    assert ground.describe("orders") is ErrorCode.not_controller
    assert ground.describe("1", "broker.id", kind=4) == {"broker.id": ("1", 5, True)}
    assert ground.alter("orders", ("retention.ms", 0, "-1"))[0] is ErrorCode.not_controller
    body = SimpleNamespace(topic_names=["orders"], timeout=60_000)
    (found,) = ground.topics.delete(ALICE, body)["responses"]
    assert ErrorCode(found["error_code"]) is ErrorCode.not_controller
    part = SimpleNamespace(partition_index=0, offset=0)
    body = SimpleNamespace(topics=[SimpleNamespace(name="orders", partitions=[part])], timeout=60_000)
    ((found,),) = (one["partitions"] for one in ground.topics.delete_records(ALICE, body)["topics"])
    assert ErrorCode(found["error_code"]) is ErrorCode.not_controller
    assert ground.automatic.auto_create(ALICE, "shop.a") is ErrorCode.not_controller


def test_an_unknown_outcome_is_a_time_out(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: Any) -> Any:
        raise OutcomeUnknown("it may be in the log")

    monkeypatch.setattr(ground.application.sequencer, "create_topic", unknown)
    assert codes(ground.create(topic("shop.a"))) == {"shop.a": ErrorCode.request_timed_out}

"""How a running daemon applies a changed configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from archiver.config.settings import Settings, load_settings
from archiver.daemon.reload import APPLIED, Refused, plan_reload
from archiver.runtime.errors import ConfigInvalid

CANARY = "canary-0815"


def base() -> dict[str, Any]:
    return {
        "cluster": "test",
        "data": {"uri": "data"},
        "metadata": {"sqlite": {"path": "metadata.db"}},
        "catalogs": [
            {"name": "local", "type": "sql", "uri": "sqlite:///catalog.db", "password": {"env": "SECRET"}}
        ],
        "sources": [{"files": {"glob": "in/*.jsonl", "topic": "read", "format": "jsonl"}}],
        "topics": [
            {
                "name": "a",
                "partitions": 2,
                "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.a"},
            },
            {"name": "a.b", "partitions": 1},
            {"name": "read", "partitions": 1},
        ],
    }


def settings(tmp_path: Path, document: dict[str, Any], secret: str = "old") -> Settings:
    path = tmp_path / "archiver.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return load_settings(path, {"SECRET": secret})


def changes(
    tmp_path: Path, document: dict[str, Any], secret: str = "old"
) -> tuple[list[str], list[str], Settings]:
    plan = plan_reload(settings(tmp_path, base()), settings(tmp_path, document, secret))
    return [str(item) for item in plan.applied], [str(item) for item in plan.refused], plan.settings


def test_nothing_changes_without_a_change(tmp_path: Path) -> None:
    before = settings(tmp_path, base())
    applied, refused, after = changes(tmp_path, base())
    assert (applied, refused) == ([], [])
    assert after == before


def test_what_can_be_applied_is_named_with_its_old_and_new_value(tmp_path: Path) -> None:
    document = base()
    document["archive"] = {"tick": "3s", "max_bytes": "1MiB"}
    document["cleanup"] = {"grace": "90s"}
    document["daemon"] = {"audit_interval": "2h", "shutdown_grace": "10s"}
    document["topics"][0]["archive"]["idle_max"] = "5s"
    document["topics"][0]["schema_change"] = "refuse"
    document["topics"][1]["retention"] = "forever"
    applied, refused, after = changes(tmp_path, document)
    assert sorted(applied) == [
        "archive.max_bytes: 134217728 -> 1048576",
        "archive.tick: 10s -> 3s",
        "cleanup.grace: 1h -> 90s",
        "daemon.audit_interval: 1h -> 2h",
        "daemon.shutdown_grace: 1m -> 10s",
        "topics.a.archive.idle_max: (not set) -> 5s",
        "topics.a.schema_change: evolve -> refuse",
    ]
    assert refused == []
    assert after == settings(tmp_path, document)


def test_what_needs_a_restart_keeps_its_value_and_is_named_without_it(tmp_path: Path) -> None:
    document = base()
    document["intake"] = {"delay_max": "7ms"}
    document["daemon"] = {"cycles_kept": 7}
    document["spark"] = {"conf": {"spark.hadoop.password": CANARY}}
    document["roles"] = ["intake"]
    document["archive"] = {"tick": "3s"}
    applied, refused, after = changes(tmp_path, document, secret=CANARY)
    assert applied == ["archive.tick: 10s -> 3s"]
    assert [text.partition(":")[0] for text in refused] == [
        "roles",
        "catalogs.local.password",
        "spark.conf.spark.hadoop.password",
        "daemon.cycles_kept",
        "intake.delay_max",
    ]
    assert CANARY not in str((applied, refused))
    before = settings(tmp_path, base())
    assert after == before.model_copy(update={"archive": after.archive})


def test_topics_come_and_go(tmp_path: Path) -> None:
    document = base()
    document["topics"] = [*document["topics"][:1], document["topics"][2], {"name": "new", "partitions": 3}]
    applied, refused, after = changes(tmp_path, document)
    assert applied == ["topics.new: (absent) -> a new topic", "topics.a.b: a topic -> (absent)"]
    assert refused == []
    assert [topic.name for topic in after.topics] == ["a", "read", "new"]


def test_a_topic_gets_more_partitions(tmp_path: Path) -> None:
    document = base()
    document["topics"][0] |= {"partitions": 4}
    applied, refused, after = changes(tmp_path, document)
    assert (applied, refused) == (["topics.a.partitions: 2 -> 4"], [])
    assert after.topics[0].partitions == 4


def test_a_topic_never_loses_partitions(tmp_path: Path) -> None:
    document = base()
    document["topics"][0] |= {"partitions": 1}
    document["topics"][0]["archive"]["idle_max"] = "5s"
    applied, refused, after = changes(tmp_path, document)
    assert applied == ["topics.a.archive.idle_max: (not set) -> 5s"], "the rest of the topic is applied"
    assert refused == [
        "topics.a.partitions: the topic has 2, and their number is never lowered; set `partitions: 2`"
    ]
    assert after.topics[0].partitions == 2


def with_partitions(tmp_path: Path, partitions: int) -> Settings:
    """The settings with that number of partitions of topic a; 0 needs no source that mirrors it."""
    made = settings(tmp_path, base())
    first, *others = made.topics
    return made.model_copy(update={"topics": (first.model_copy(update={"partitions": partitions}), *others)})


@pytest.mark.parametrize(
    ("in_force", "in_log", "in_file", "after", "why"),
    [
        pytest.param(4, 6, 6, 6, None, id="the file agrees with the log"),
        pytest.param(6, 4, 4, 4, None, id="the file agrees with the log, the settings were ahead"),
        pytest.param(4, 6, 8, 8, None, id="more than both"),
        pytest.param(4, 6, 4, 4, None, id="a key that did not change"),
        pytest.param(
            4, 6, 5, 4, "the topic has 6, and their number is never lowered", id="fewer than the log"
        ),
        pytest.param(6, 6, 4, 6, "the topic has 6, and their number is never lowered", id="fewer than both"),
        pytest.param(0, 0, 3, 0, "the topic is mirrored, which cannot change", id="a mirror stays one"),
        pytest.param(
            3, 3, 0, 3, "the topic has 3, and their number is never lowered", id="not made a mirror"
        ),
        pytest.param(0, 3, 3, 3, None, id="not a mirror by the log"),
        pytest.param(3, 0, 0, 0, None, id="a mirror by the log"),
    ],
)
def test_the_log_decides_about_partitions(
    tmp_path: Path, in_force: int, in_log: int, in_file: int, after: int, why: str | None
) -> None:
    plan = plan_reload(with_partitions(tmp_path, in_force), with_partitions(tmp_path, in_file), {"a": in_log})
    expected = [] if why is None else [f"topics.a.partitions: {why}; set `partitions: {in_log}`"]
    assert [str(item) for item in plan.refused] == expected
    assert plan.settings.topics[0].partitions == after
    assert [item.key for item in plan.applied] == (["topics.a.partitions"] if in_force != after else [])


def test_a_new_catalog_needs_a_restart_and_so_does_what_refers_to_it(tmp_path: Path) -> None:
    document = base()
    document["catalogs"].append({"name": "other", "type": "sql", "uri": "sqlite:///other.db"})
    document["topics"][0]["archive"]["catalog"] = "other"
    document["topics"].append(
        {"name": "c", "partitions": 1, "archive": {"kind": "iceberg", "catalog": "other", "table": "shop.c"}}
    )
    applied, refused, after = changes(tmp_path, document)
    assert applied == []
    assert [text.partition(":")[0] for text in refused] == [
        "catalogs.other.name",
        "catalogs.other.type",
        "catalogs.other.request_timeout",
        "catalogs.other.location",
        "catalogs.other.locations",
        "catalogs.other.metadata_bytes_max",
        "catalogs.other.allow_http",
        "catalogs.other.allow_insecure",
        "catalogs.other.uri",
        "topics.a.archive",
        "topics.c",
    ]
    assert after == settings(tmp_path, base())


def test_a_topic_that_a_source_reads_into_stays_until_the_restart(tmp_path: Path) -> None:
    document = base()
    document["sources"] = []
    document["topics"] = document["topics"][:2]
    applied, refused, after = changes(tmp_path, document)
    assert applied == []
    assert refused[-1] == "topics.read: a source reads into it: it needs a restart"
    assert {topic.name for topic in after.topics} == {"a", "a.b", "read"}


def test_what_would_contradict_itself_is_refused_as_a_whole(tmp_path: Path) -> None:
    document = base()
    document["catalogs"].append({"name": "other", "type": "sql", "uri": "sqlite:///other.db"})
    document["topics"][0]["archive"]["catalog"] = "other"
    document["topics"].append(
        {"name": "c", "partitions": 1, "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.a"}}
    )
    with pytest.raises(
        ConfigInvalid, match=r"shop\.a in catalog local would belong to the topics a and c.*restart"
    ):
        changes(tmp_path, document)


def test_every_key_that_is_applied_exists(tmp_path: Path) -> None:
    found = settings(tmp_path, base())
    for key in APPLIED:
        at: Any = found
        for name in key.split("."):
            at = getattr(at, name)


def test_the_document_of_a_reload(tmp_path: Path) -> None:
    document = base()
    document["archive"] = {"tick": "3s"}
    document["log"] = {"append_attempts_max": 3}
    plan = plan_reload(settings(tmp_path, base()), settings(tmp_path, document))
    assert plan.refused == (Refused("log.append_attempts_max", "it needs a restart"),)
    assert plan.to_json() == {
        "applied": [{"key": "archive.tick", "old": "10s", "new": "3s"}],
        "refused": [{"key": "log.append_attempts_max", "why": "it needs a restart"}],
    }


@pytest.mark.parametrize("change", ["added", "changed", "removed"])
def test_the_kafka_listener_changes_by_a_restart_only(tmp_path: Path, change: str) -> None:
    without, one, other = (
        {**base(), **more}
        for more in (
            {},
            {"kafka": {"listen": "127.0.0.1:9092"}},
            {"kafka": {"listen": "127.0.0.1:9093", "rack": "a"}},
        )
    )
    old, new = {"added": (without, one), "changed": (one, other), "removed": (one, without)}[change]
    before = settings(tmp_path, old)
    plan = plan_reload(before, settings(tmp_path, new))
    assert (plan.applied, plan.settings) == ((), before)
    assert Refused("kafka.listen", "it needs a restart") in plan.refused
    assert all(item.key.partition(".")[0] == "kafka" for item in plan.refused)

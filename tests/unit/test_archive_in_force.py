"""The archive settings in force for a topic, and where each is from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from archiver.app.reading import archive_in_force
from archiver.config.topics import TRIGGERS, ArchiveSettings
from archiver.config.types import parse_duration, parse_size
from tests.unit.test_topic_templates import load

TABLE = {"kind": "iceberg", "catalog": "local", "table": "shop.orders"}


def by_name(found: list[dict[str, Any]]) -> dict[str, tuple[str, str]]:
    return {one["name"]: (one["text"], one["from"]) for one in found}


def test_a_value_is_from_the_topic_the_group_or_the_default(tmp_path: Path) -> None:
    topic = {"name": "orders", "partitions": 1, "archive": {**TABLE, "idle_max": 0, "min_bytes": -1}}
    group = {"idle_max": "1m", "tick": "90s", "max_bytes": "64MiB", "zstd_level": 3}
    settings = load(tmp_path, topic, archive=group)
    found = by_name(archive_in_force(settings, settings.topics[0]))
    assert list(found) == list(ArchiveSettings.model_fields)
    assert found["idle_max"] == ("0s", "topic"), "0 is a value"
    assert found["min_bytes"] == ("-1", "topic")
    assert found["max_bytes"] == ("64MiB", "archive")
    assert found["tick"] == ("90s", "archive")
    assert found["zstd_level"] == ("3", "archive")
    assert found["complete_delay_max"] == ("5m", "default")
    assert found["reads_max"] == ("0", "default"), "that of a folder"


def test_a_value_can_be_from_a_template(tmp_path: Path) -> None:
    template = {"pattern": "click.*", "archive": {**TABLE, "table": "shop.{topic}", "idle_max": "5s"}}
    settings = load(tmp_path, template)
    topic = settings.templates[0].settings_of("click.a", 2)
    found = by_name(archive_in_force(settings, topic))
    assert found["idle_max"] == ("5s", "template")
    assert {found[name][1] for name in TRIGGERS if name != "idle_max"} == {"default"}


def test_a_topic_without_archives_has_none(tmp_path: Path) -> None:
    settings = load(tmp_path, {"name": "kept", "partitions": 1, "archive": {"kind": "none"}})
    assert archive_in_force(settings, settings.topics[0]) == []


def test_texts_are_those_that_the_file_takes(tmp_path: Path) -> None:
    settings = load(tmp_path, {"name": "orders", "partitions": 1, "archive": TABLE})
    for one in archive_in_force(settings, settings.topics[0]):
        if isinstance(one["value"], float):
            assert parse_duration(one["text"]) == one["value"]
        elif "bytes" in one["name"]:
            assert parse_size(one["text"]) == one["value"]
        else:
            assert one["text"] == str(one["value"])

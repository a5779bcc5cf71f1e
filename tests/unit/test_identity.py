"""Is this the table that the topic belongs to?"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from archiver.catalog.identity import check_identity, ensure_table, load_table
from archiver.catalog.tables import Identifier, TableView, parse_identifier
from archiver.objects.paths import Granularity
from archiver.runtime import failpoints
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import ConfigInvalid, RetryLater, TopicHalted
from archiver.runtime.ids import SeededIds, TopicId
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.catalog.tables import IDENTIFIER, schema_json, target_in

TARGET = target_in(Path("/data"))


def catalog() -> MemoryTables:
    return MemoryTables(SeededIds(3), ManualClock())


def test_created_once_and_found_again() -> None:
    tables = catalog()
    assert load_table(tables, TARGET, None) is None
    first = ensure_table(tables, TARGET, None, schema_json())
    assert ensure_table(tables, TARGET, None, schema_json()) == first
    assert load_table(tables, TARGET, first.uuid) == first


def test_a_table_that_another_writer_made_at_the_same_moment_is_taken() -> None:
    class Racing(MemoryTables):
        def create(
            self,
            identifier: Identifier,
            location: str,
            schema_json: str,
            granularity: Granularity,
            properties: Mapping[str, str],
        ) -> TableView:
            super().create(identifier, location, schema_json, granularity, properties)
            return super().create(identifier, location, schema_json, granularity, properties)

    tables = Racing(SeededIds(3), ManualClock())
    assert ensure_table(tables, TARGET, None, schema_json()) == tables.load(IDENTIFIER)


def test_a_known_table_that_is_gone_halts_and_is_never_made_again() -> None:
    tables = catalog()
    view = ensure_table(tables, TARGET, None, schema_json())
    tables.rename(IDENTIFIER, ("demo", "other"))
    with pytest.raises(TopicHalted, match="dropped or renamed"):
        ensure_table(tables, TARGET, view.uuid, schema_json())
    assert tables.load(IDENTIFIER) is None
    tables.rename(("demo", "other"), IDENTIFIER)
    assert ensure_table(tables, TARGET, view.uuid, schema_json()) == view


def test_a_recreated_table_halts() -> None:
    tables = catalog()
    old = ensure_table(tables, TARGET, None, schema_json())
    tables.drop(IDENTIFIER)
    ensure_table(tables, TARGET, None, schema_json())
    with pytest.raises(TopicHalted, match="recreated"):
        load_table(tables, TARGET, old.uuid)


def test_another_topics_or_clusters_table_halts() -> None:
    tables = catalog()
    ensure_table(tables, TARGET, None, schema_json())
    with pytest.raises(TopicHalted, match="recreated topic needs a new table"):
        load_table(tables, replace(TARGET, topic_id=TopicId("ef" * 16)), None)
    with pytest.raises(TopicHalted, match="belongs to cluster"):
        load_table(tables, replace(TARGET, cluster_id="ef" * 16), None)


def test_a_strangers_table_halts() -> None:
    tables = catalog()
    tables.create(IDENTIFIER, TARGET.location, schema_json(), "day", {})
    with pytest.raises(TopicHalted, match="not made by the archiver"):
        ensure_table(tables, TARGET, None, schema_json())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 3}, "format version 3"),
        ({"granularity": "hour"}, "partitioned by hour"),
        ({"granularity": None}, "something else"),
        ({"location": "file:///elsewhere"}, "must lie at"),
        ({"schema_json": '{"fields":[]}'}, "kafka"),
    ],
)
def test_a_table_that_this_version_cannot_write_halts(change: dict[str, object], message: str) -> None:
    view = ensure_table(catalog(), TARGET, None, schema_json())
    check_identity(view, TARGET, view.uuid)
    with pytest.raises(TopicHalted, match=message):
        check_identity(replace(view, **change), TARGET, view.uuid)  # type: ignore[arg-type]
    with pytest.raises(TopicHalted, match="uuid"):
        check_identity(view, TARGET, uuid.UUID(int=1))


def test_failpoints_around_the_creation() -> None:
    tables = catalog()
    try:
        failpoints.arm("table.create.before=error")
        with pytest.raises(RetryLater):
            ensure_table(tables, TARGET, None, schema_json())
        assert tables.load(IDENTIFIER) is None
        failpoints.arm("table.create.after=error")
        with pytest.raises(RetryLater):
            ensure_table(tables, TARGET, None, schema_json())
    finally:
        failpoints.arm("")
    assert tables.load(IDENTIFIER) == ensure_table(tables, TARGET, None, schema_json())


@pytest.mark.parametrize(
    "name", ["flights", "../../evil.t", "a..b", "a.b/c", ".a", "a.", "a.b c", "", "a.-b"]
)
def test_names_that_could_leave_the_warehouse_are_refused(name: str) -> None:
    with pytest.raises(ConfigInvalid, match=r"namespace\.table"):
        parse_identifier(name)


def test_names() -> None:
    assert parse_identifier("demo.flights_2-x") == ("demo", "flights_2-x")
    assert parse_identifier("a.b.c") == ("a", "b", "c")

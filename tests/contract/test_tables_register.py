"""Does a catalog register a table with the field ids that its files have?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.restore import Plan, RestoredFile, TableRestore
from archiver.catalog.swap_retry import CommitLimits
from archiver.catalog.table_layout import REBUILT, table_properties
from archiver.catalog.tables import Prepared, SwapOutcome, Swapped, TableView
from archiver.runtime.errors import KeyExists, RetryLater, TopicHalted
from archiver.schema.evolution.field_history import ids_of
from tests.support.catalog.foreign_hands import compact, iceberg_tables, view_of
from tests.support.catalog.table_catalogs import client
from tests.support.catalog.tables import (
    CLUSTER_ID,
    IDENTIFIER,
    TOPIC_ID,
    Bench,
    FaultyTables,
    SwapFault,
    schema_json,
    target_in,
)


def registered(tables: IcebergTables, folder: Path) -> TableView:
    properties = table_properties(CLUSTER_ID, TOPIC_ID, "flights", {REBUILT: "bucket"})
    return tables.register(IDENTIFIER, target_in(folder).location, schema_json(), 40, "day", properties)


def test_the_ids_are_kept_and_never_given_again(iceberg: IcebergTables, tmp_path: Path) -> None:
    view = registered(iceberg, tmp_path)
    assert (
        set(ids_of(json.loads(view.schema_json)))
        == set(ids_of(json.loads(schema_json())))
        == {10, 11, 20, 21, 22, 23, 24}
    )
    assert (view.last_column_id, view.schema_id, view.spec_id, view.granularity, view.format_version) == (
        40,
        0,
        0,
        "day",
        2,
    )
    assert (view.snapshot_id, view.sequence_number, view.snapshots) == (None, 0, ())
    assert view.location == target_in(tmp_path).location
    assert view.properties[REBUILT] == "bucket"
    found = iceberg.load(IDENTIFIER)
    assert found is not None
    assert (found.uuid, found.schema_json) == (view.uuid, view.schema_json)


def test_a_name_is_taken_once(iceberg: IcebergTables, tmp_path: Path) -> None:
    view = registered(iceberg, tmp_path)
    with pytest.raises(KeyExists):
        registered(iceberg, tmp_path)
    found = iceberg.load(IDENTIFIER)
    assert found is not None
    assert found.uuid == view.uuid


def plan_of(bench: Bench, tables: IcebergTables, folder: Path, count: int) -> Plan:
    """Real archives of one row each, written with the ids of `schema_json`."""
    probe = registered(tables, folder)
    files = [RestoredFile(bench.archive(probe, 1, 0, at, at + 1)[1], 0, at + 1) for at in range(count)]
    catalog = client(folder)
    catalog.drop_table(IDENTIFIER)
    catalog.close()
    return Plan(schema_json(), 0, "lost", files, {}, {0: count, 1: 0})


def restore(bench: Bench, tables: Any, files_max: int) -> TableRestore:
    return TableRestore(
        tables,
        lambda: None,
        3,
        CommitLimits(attempts_max=4, backoff_s=0.01),
        bench.ids,
        bench.clock,
        files_max,
    )


def check_rows(folder: Path, count: int) -> None:
    catalog = client(folder)
    table = catalog.load_table(IDENTIFIER)
    rows = table.scan().to_arrow().to_pylist()
    assert sorted(row["kafka"]["offset"] for row in rows) == list(range(count))
    assert {row["value"]["text"] for row in rows} == {f"row {at}" for at in range(count)}
    assert len(list(table.scan(row_filter="kafka.offset >= 3").plan_files())) == count - 3
    catalog.close()


def test_files_are_read_under_their_own_ids(iceberg: IcebergTables, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    plan = plan_of(bench, iceberg, tmp_path, 5)
    view = restore(bench, iceberg, 2).run(bench.target, plan)
    assert len(view.snapshots) == 3
    check_rows(tmp_path, 5)
    assert restore(bench, iceberg, 2).run(bench.target, plan).sequence_number == view.sequence_number, (
        "once more changes nothing"
    )


@pytest.mark.parametrize("fault", list(SwapFault))
def test_with_any_answer_of_the_catalog_each_file_is_in_once(
    iceberg: IcebergTables, tmp_path: Path, fault: SwapFault
) -> None:
    bench = Bench(tmp_path)
    plan = plan_of(bench, iceberg, tmp_path, 5)

    class Faulty(FaultyTables):
        register = iceberg.register

    faulty = Faulty(iceberg, SwapFault.NONE, fault, fault)
    restore(bench, faulty, 2).run(bench.target, plan)
    assert all(outcome is not SwapOutcome.APPLIED for outcome in faulty.deliver()), (
        "what was late is refused: its base is gone"
    )
    check_rows(tmp_path, 5)


def test_files_that_were_compacted_before_the_lost_reply_was_looked_into_are_not_added_again(
    tmp_path: Path,
) -> None:
    """The commit is applied, its paths are gone: an external compaction rewrote them at once."""
    bench = Bench(tmp_path)
    iceberg = iceberg_tables(tmp_path, 7)
    begun = registered(iceberg, tmp_path)
    files = [RestoredFile(bench.archive(begun, 1, 0, at, at + 1)[1], 0, at + 1) for at in range(2)]
    plan = Plan(schema_json(), 0, begun.properties[REBUILT], files, {}, {0: 2, 1: 0})

    class Compacted(FaultyTables):
        register = iceberg.register

        def swap(self, prepared: Prepared) -> Swapped:
            swapped = super().swap(prepared)
            if self.swaps == 1:
                compact(iceberg, bench, 0, 0, 2)
            return swapped

    with pytest.raises(RetryLater, match="another writer changed"):
        restore(bench, Compacted(iceberg, SwapFault.REPLY_LOST), 2).run(bench.target, plan)
    with pytest.raises(TopicHalted, match="drop it"):
        restore(bench, iceberg, 2).run(bench.target, plan)
    assert sum(item.record_count for item in iceberg.live_files(view_of(iceberg))) == 2
    iceberg.close()


def test_a_table_of_another_plan_is_left_alone(iceberg: IcebergTables, tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    plan = plan_of(bench, iceberg, tmp_path, 1)
    view = registered(iceberg, tmp_path)
    with pytest.raises(TopicHalted, match="drop it without purging"):
        restore(bench, iceberg, 2).run(bench.target, plan)
    found = iceberg.load(IDENTIFIER)
    assert found is not None
    assert found.metadata_location == view.metadata_location

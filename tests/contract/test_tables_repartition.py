"""One suite for every `Tables` whose partition spec changes: the pyiceberg adapter on SQLite and on the real
REST catalog, and the twin."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.table_layout import PARTITION_BY, stream_fields
from archiver.catalog.tables import Evolved, SpecView, SwapOutcome, Tables, TableView
from archiver.events.types import DataFile
from archiver.objects.paths import Granularity, archive_key
from archiver.runtime.errors import Halt
from tests.support.catalog.table_catalogs import client, loaded, made
from tests.support.catalog.tables import IDENTIFIER, TOPIC_ID, data_file

DAY, HOUR, MONTH = 20_000, 480_000, 657


@pytest.fixture
def view(tables: Tables, tmp_path: Path) -> TableView:
    """A table by day."""
    return made(tables, tmp_path)


def archive(view: TableView, granularity: Granularity, value: int, base: int, spec_id: int) -> DataFile:
    key = archive_key(TOPIC_ID, 0, granularity, value, base, base + 10, 1)
    root = view.location.removesuffix(f"archive/{TOPIC_ID}")
    return data_file(
        f"{root}{key}", stream_fields(view.schema_json), 0, base, base + 10, day=value, spec_id=spec_id
    )


def append(tables: Tables, *files: DataFile, merge: bool = False) -> TableView:
    prepared = tables.prepare(loaded(tables), files, lambda *_: {}, {"archiver.commit-id": "c"}, merge, ())
    assert tables.swap(prepared).outcome is SwapOutcome.APPLIED
    return loaded(tables)


def filed(tables: Tables) -> dict[int | None, tuple[int, tuple[object, ...]]]:
    """First offset → spec and partition, of every live file."""
    return {item.offset_min: (item.spec_id, item.partition) for item in tables.live_files(loaded(tables))}


def test_another_spec_becomes_the_default_and_what_is_there_stays(tables: Tables, view: TableView) -> None:
    append(tables, archive(view, "day", DAY, 0, 0))
    assert tables.repartition(view, "hour") == Evolved(SwapOutcome.APPLIED)
    after = loaded(tables)
    assert (after.granularity, after.spec_id, after.uuid) == ("hour", 1, view.uuid)
    assert after.specs == (SpecView(0, "day", 1000), SpecView(1, "hour", 1001))
    assert after.properties[PARTITION_BY] == "hour"
    assert filed(tables) == {0: (0, (DAY,))}


def test_files_of_several_specs_in_one_snapshot_keep_each_its_own(tables: Tables, view: TableView) -> None:
    for granularity in ("hour", "month"):
        assert tables.repartition(loaded(tables), granularity).outcome is SwapOutcome.APPLIED
    view = loaded(tables)
    append(
        tables,
        archive(view, "day", DAY, 0, 0),
        archive(view, "hour", HOUR, 10, 1),
        archive(view, "month", MONTH, 20, 2),
    )
    wanted = {0: (0, (DAY,)), 10: (1, (HOUR,)), 20: (2, (MONTH,))}
    assert filed(tables) == wanted
    view = append(
        tables, archive(view, "hour", HOUR, 30, 1), archive(view, "month", MONTH, 40, 2), merge=True
    )
    assert filed(tables) == wanted | {30: (1, (HOUR,)), 40: (2, (MONTH,))}
    if isinstance(tables, IcebergTables):
        (newest,) = [item.summary for item in view.snapshots if item.snapshot_id == view.snapshot_id]
        assert (newest["added-data-files"], newest["total-data-files"]) == ("2", "5")


def test_the_name_decides_where_its_id_is_not_right(tables: Tables, view: TableView) -> None:
    """An archive written while the catalog was unavailable names the spec that its writer had."""
    assert tables.repartition(view, "hour").outcome is SwapOutcome.APPLIED
    append(tables, archive(view, "hour", HOUR, 0, 0), archive(view, "day", DAY, 10, 7))
    assert filed(tables) == {0: (1, (HOUR,)), 10: (0, (DAY,))}
    with pytest.raises(Halt, match="by month; the table has no such spec"):
        tables.prepare(loaded(tables), [archive(view, "month", MONTH, 20, 0)], lambda *_: {}, {}, False, ())


def test_a_spec_that_the_table_had_is_used_again(tables: Tables, view: TableView) -> None:
    for granularity in ("hour", "day", "hour"):
        assert tables.repartition(loaded(tables), granularity).outcome is SwapOutcome.APPLIED
    after = loaded(tables)
    assert (after.spec_id, len(after.specs), after.properties[PARTITION_BY]) == (1, 2, "hour")


def test_a_view_that_is_not_the_newest_is_refused(tables: Tables, view: TableView) -> None:
    assert tables.repartition(view, "hour").outcome is SwapOutcome.APPLIED
    refused = tables.repartition(view, "month")
    assert refused.outcome is SwapOutcome.CONFLICT and refused.why
    assert loaded(tables).granularity == "hour"


def test_a_commit_prepared_before_the_spec_changed_still_lands(tables: Tables, view: TableView) -> None:
    """A late leader offers what it wrote by day: its base stands, and its files keep their spec."""
    late = tables.prepare(view, [archive(view, "day", DAY, 0, 0)], lambda *_: {}, {}, False, ())
    assert tables.repartition(view, "hour").outcome is SwapOutcome.APPLIED
    assert tables.swap(late).outcome is SwapOutcome.APPLIED
    assert filed(tables) == {0: (0, (DAY,))}
    assert loaded(tables).granularity == "hour"


def test_another_reader_knows_both_specs(iceberg: IcebergTables, tmp_path: Path) -> None:
    tables, view = iceberg, made(iceberg, tmp_path)
    assert tables.repartition(view, "hour").outcome is SwapOutcome.APPLIED
    append(tables, archive(view, "day", DAY, 0, 0), archive(view, "hour", HOUR, 10, 1))
    other = client(tmp_path)
    table = other.load_table(IDENTIFIER)
    assert {name: [field.name for field in spec.fields] for name, spec in table.specs().items()} == {
        0: ["ingest_day"],
        1: ["ingest_hour"],
    }
    planned = {
        task.file.file_path.rpartition("/")[2][:20]: task.file.spec_id for task in table.scan().plan_files()
    }
    other.close()
    assert planned == {f"{0:020}": 0, f"{10:020}": 1}

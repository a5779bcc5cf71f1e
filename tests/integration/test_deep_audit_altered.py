"""The deep audit compares rows of external files with the archives: altered, equal, or nothing left to
compare with.

Parquet files and the workers' code are real, and run in the process of the test.
`test_foreign_spark_forgeries.py` does the same with Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import descriptor_pb2

from archiver.events.types import DataFile
from archiver.objects import paths
from archiver.refine.task import WrittenFile
from archiver.schema.evolution.state import TopicSchema, decide
from archiver.schema.protobuf.descriptors import Source
from reconcile.audit.rows import Compared
from reconcile.snapshot.observer import Observer
from reconcile.snapshot.topic_views import HiddenRows
from tests.integration.test_deep_audit_doubts import deep, whys
from tests.support.builders.audited import TABLE, World, verdicts
from tests.support.schema.orders import DESCRIPTOR_SET, order, order_schema
from tests.support.spark.here_rows import HereRows

Rows = list[dict[str, Any]]
Change = Callable[[Rows], Rows]


@pytest.fixture
def world(tmp_path: Path) -> World:
    found = World(tmp_path / "data")
    found.mine.schemas[1] = order_schema().to_entry(bytes.fromhex(found.topic))
    return found


def rewritten(
    world: World, files: list[WrittenFile], change: Change, *, name: str = "theirs", ids: bool = True
) -> DataFile:
    """Another program's file with the rows of archives, changed, in no order. Without `ids` its columns have
    names alone."""
    tables = [pq.read_table(world.store.root / file.archive.key, partitioning=None) for file in files]
    schema = tables[0].schema.remove_metadata()
    rows = change([row for table in tables for row in table.to_pylist()])[::-1]
    table = pa.Table.from_pylist(rows, schema=schema if ids else _without_ids(schema))
    path = world.store.root / f"{paths.data_prefix(world.topic)}{name}.parquet"
    pq.write_table(table, path, row_group_size=7)
    first = files[0].data_file
    size = path.stat().st_size
    return replace(
        first, path=f"file://{path}", record_count=len(rows), file_size=size, lower_bounds={}, upper_bounds={}
    )


def _without_ids(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, _plain(field.type)) for field in schema])


def _plain(kind: Any) -> Any:
    """A type without the field ids of its children."""
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    inside = [kind.field(number) for number in range(kind.num_fields)]
    return (
        pa.struct([pa.field(field.name, _plain(field.type)) for field in inside])
        if pa.types.is_struct(kind)
        else kind
    )


def second_version(world: World) -> None:
    """The ledger records one more schema version, with one more field."""
    files = descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTOR_SET)
    message = next(one for one in files.file[0].message_type if one.name == "Order")
    message.field.add(name="note", number=9, type=descriptor_pb2.FieldDescriptorProto.TYPE_STRING, label=1)
    first: TopicSchema = order_schema()
    second = decide("orders", (first,), None, Source("shop.Order", files.SerializeToString())).schema
    assert second.version == 2
    world.mine.schemas[second.version] = second.to_entry(bytes.fromhex(world.topic))


def swap(world: World, files: list[WrittenFile], *added: DataFile, operation: str = "overwrite") -> int:
    """Replace archives by files; the snapshot's id."""
    world.tables.replace_files(TABLE, [file.data_file.path for file in files], list(added), operation)
    snapshot_id = world.view().snapshot_id
    assert snapshot_id is not None
    return snapshot_id


def at(offset: int, change: Callable[[dict[str, Any]], None]) -> Change:
    """Change the row of partition 0 with that offset."""

    def changed(rows: Rows) -> Rows:
        (row,) = [row for row in rows if (row["kafka"]["partition"], row["kafka"]["offset"]) == (0, offset)]
        change(row)
        return rows

    return changed


def later(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda row: row["kafka"].update({name: row["kafka"][name].replace(microsecond=5)})


FORGERIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "value from its fields": lambda row: row["value"].update(id=999_999),
    "value as raw bytes": lambda row: row.update(value={**dict.fromkeys(row["value"]), "__raw__": b"forged"}),
    "value as raw bytes and its fields": lambda row: row["value"].update(__raw__=b"forged"),
    "value null": lambda row: row.update(value=None),
    "key": lambda row: row.update(key={"__raw__": b"another key"}),
    "key null": lambda row: row.update(key=None),
    "headers": lambda row: row.update(headers=[{"key": "trace", "value": b"1"}]),
    "event time": lambda row: row["kafka"].update(event_timestamp=None),
    "ingest time": later("ingest_timestamp"),
    "batch start": lambda row: row["kafka"].update(batch_start=1),
}


@pytest.mark.parametrize("name", sorted(FORGERIES))
def test_one_altered_row_is_invalid_with_its_offset_and_the_snapshot(world: World, name: str) -> None:
    files = world.archived()
    # The last of the rewritten rows, so that a later ingest time does not go back.
    snapshot_id = swap(world, files[:3], rewritten(world, files[:3], at(29, FORGERIES[name])))
    document = deep(world)
    found = document["partitions"][0]
    assert verdicts(document) == ["invalid", "valid"], whys(document)
    assert found["altered"] == [[29, 30]]
    assert (found["missing"], found["doubled"], found["removed"]) == ([], [], [])
    assert f"offsets 29 were altered by snapshot {snapshot_id}" in found["why"]
    assert document["partitions"][1]["altered"] == []


def test_a_compaction_that_keeps_every_byte_is_valid_by_comparison(world: World) -> None:
    files = world.archived()
    swap(world, files, rewritten(world, files, lambda rows: rows), operation="replace")
    reader = HereRows(world.store)
    document = deep(world, reader)
    assert (verdicts(document), whys(document)) == (["valid", "valid"], [None, None])
    assert len(reader.compared_with) == 6, "each archive once"
    assert [item["altered"] for item in document["partitions"]] == [[], []]


def test_columns_without_ids_are_found_by_name(world: World) -> None:
    files = world.archived()
    swap(world, files, rewritten(world, files, at(3, FORGERIES["key"]), ids=False))
    document = deep(world)
    assert (verdicts(document), document["partitions"][0]["altered"]) == (["invalid", "valid"], [[3, 4]])


def decoyed(world: World, made: DataFile, files: list[WrittenFile], name: str) -> DataFile:
    """The file with a second column. The column with the field id has the honest rows; a column without an id
    has the name."""
    path = Path(made.path.removeprefix("file://"))
    table = pq.read_table(path, partitioning=None)
    place = table.schema.get_field_index(name)
    (file,) = files
    honest = pq.read_table(world.store.root / file.archive.key, partitioning=None).column(name).to_pylist()
    field = table.schema.field(place)
    table = table.set_column(place, field.with_name(f"other_{name}"), table.column(place))
    table = table.add_column(
        place, pa.field(name, _plain(field.type)), pa.array(honest[::-1], _plain(field.type))
    )
    pq.write_table(table, path)
    return replace(made, file_size=path.stat().st_size)


def test_an_honest_column_without_an_id_does_not_hide_an_altered_one(world: World) -> None:
    """Queries find columns by their field ids, so the audit must not compare the column that only has the
    name."""
    files = world.archived()
    swap(
        world,
        files[:1],
        decoyed(world, rewritten(world, files[:1], at(3, FORGERIES["key"])), files[:1], "key"),
    )
    document = deep(world)
    assert (verdicts(document), document["partitions"][0]["altered"]) == (["invalid", "valid"], [[3, 4]])


def test_coordinates_that_are_not_the_ones_of_queries_are_unknown(world: World) -> None:
    """Queries return a row twice here; by the column name alone every row is in its place."""
    files = world.archived()
    swap(
        world,
        files[:1],
        decoyed(
            world,
            rewritten(world, files[:1], at(3, lambda row: row["kafka"].update(offset=4))),
            files[:1],
            "kafka",
        ),
    )
    document = deep(world)
    assert verdicts(document) == ["unknown", "unknown"], "nothing is known of where the rows of that file are"
    assert "the column kafka is not the one with field id" in whys(document)[0]


def test_bounds_of_a_file_that_cannot_be_read_clear_no_partition(world: World) -> None:
    """The writer of the file wrote its bounds in the table, too. Its rows may be of the partition in
    question."""
    files = world.archived()
    made = decoyed(world, rewritten(world, files[:1], at(3, FORGERIES["key"])), files[:1], "kafka")
    other = next(file.data_file for file in files if file.archive.partition == 1)
    swap(
        world,
        [],
        replace(made, lower_bounds=other.lower_bounds, upper_bounds=other.upper_bounds),
        operation="append",
    )
    assert deep(world, None, ("orders", frozenset({0})))["verdict"] == "unknown"


@pytest.mark.parametrize(("older", "verdict"), [(1, "invalid"), (0, "valid")])
def test_a_delete_file_hides_nothing_of_a_newer_file(
    world: World, monkeypatch: pytest.MonkeyPatch, older: int, verdict: str
) -> None:
    """Engines show such a row, so the audit must not count it as removed."""
    files = world.archived()
    forged = rewritten(world, files[1:2], lambda rows: at(12, FORGERIES["key"])(rows)[2:3])
    swap(world, [], forged, operation="append")
    sequence_number = world.view().sequence_number - older
    path = world.store.root / f"{paths.data_prefix(world.topic)}deletes.parquet"
    pq.write_table(pa.table({"file_path": [forged.path], "pos": pa.array([0], pa.int64())}), path)
    hidden = HiddenRows(f"file://{path}", path.stat().st_size, True, 5, sequence_number)
    real = Observer.table

    def with_deletes(observer: Observer, *args: Any) -> Any:
        seen: Any = real(observer, *args)
        return replace(seen, table=replace(seen.table, hidden=(hidden,)))

    monkeypatch.setattr(Observer, "table", with_deletes)
    found = deep(world)["partitions"][0]
    assert (found["verdict"], found["doubled"]) == (verdict, [[12, 13]] if older else [])


def test_columns_of_their_own_and_wider_types_do_not_count(world: World) -> None:
    files = world.archived()
    made = rewritten(world, files, lambda rows: rows)
    path = Path(made.path.removeprefix("file://"))
    table = pq.read_table(path, partitioning=None)
    kafka: Any = table.column("kafka").combine_chunks()
    fields = [kafka.type.field(number) for number in range(kafka.type.num_fields)]
    wide = [field.with_type(pa.int64()) if field.name == "partition" else field for field in fields]
    children = [child.cast(field.type) for child, field in zip(kafka.flatten(), wide, strict=True)]
    place = table.schema.get_field_index("kafka")
    table = table.set_column(
        place,
        table.schema.field("kafka").with_type(pa.struct(wide)),
        pa.StructArray.from_arrays(children, fields=wide),
    )
    own = pa.field("mine", pa.string(), metadata={b"PARQUET:field_id": b"4711"})
    table = table.append_column(own, pa.array(["noted"] * table.num_rows))
    pq.write_table(table, path)
    swap(world, files, replace(made, file_size=path.stat().st_size))
    document = deep(world)
    assert (verdicts(document), whys(document)) == (["valid", "valid"], [None, None])


def test_a_row_that_moves_to_another_partition_is_missing_there_and_wrong_here(world: World) -> None:
    files = world.archived()
    swap(world, files, rewritten(world, files, at(7, lambda row: row["kafka"].update(partition=1))))
    document = deep(world)
    assert verdicts(document) == ["invalid", "invalid"]
    assert document["partitions"][0]["missing"] == [[7, 8]]
    assert document["partitions"][1]["doubled"] == [[7, 8]]


def test_a_forged_row_next_to_the_real_one_is_doubled_and_altered(world: World) -> None:
    files = world.archived()
    forged = rewritten(world, files[1:2], lambda rows: at(12, FORGERIES["key"])(rows)[2:3])
    swap(world, [], forged, operation="append")
    found = deep(world)["partitions"][0]
    assert (found["verdict"], found["doubled"], found["altered"]) == ("invalid", [[12, 13]], [[12, 13]])


def test_two_forged_ranges_of_two_snapshots_name_both(world: World) -> None:
    files = world.archived()
    first = swap(world, files[:1], rewritten(world, files[:1], at(2, FORGERIES["headers"]), name="one"))
    second = swap(world, files[1:2], rewritten(world, files[1:2], at(15, FORGERIES["key"]), name="two"))
    found = deep(world)["partitions"][0]
    assert (found["verdict"], found["altered"]) == ("invalid", [[2, 3], [15, 16]])
    assert f"offsets 2 were altered by snapshot {first}" in found["why"]
    assert f"offsets 15 were altered by snapshot {second}" in found["why"]


def test_rows_without_an_archive_left_are_unknown_and_the_others_are_compared(world: World) -> None:
    files = world.archived()
    snapshot_id = swap(world, files, rewritten(world, files, lambda rows: rows))
    world.store.delete(files[1].archive.key)
    document = deep(world)
    assert verdicts(document) == ["unknown", "valid"]
    assert whys(document) == [
        (
            f"offsets 10 to 19 were rewritten by snapshot {snapshot_id}: no archive is left to compare "
            "them with"
        ),
        None,
    ]


def test_no_archive_left_at_all(world: World) -> None:
    files = world.archived()
    swap(world, files, rewritten(world, files, at(3, FORGERIES["key"])))
    for file in files:
        world.store.delete(file.archive.key)
    document = deep(world)
    assert verdicts(document) == ["unknown", "unknown"]
    assert "offsets 0 to 29 were rewritten by snapshot" in whys(document)[0]


def test_an_altered_archive_proves_nothing_of_other_rows(world: World) -> None:
    """The forger changed the archive, too. Its digest shows that, and it is not compared with."""
    files = world.archived()
    swap(world, files[:3], rewritten(world, files[:3], at(14, FORGERIES["key"])))
    path = world.store.root / files[1].archive.key
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 1
    path.write_bytes(bytes(content))
    document = deep(world)
    assert verdicts(document) == ["unknown", "valid"]
    assert "offsets 10 to 19 were rewritten by snapshot" in whys(document)[0]
    assert files[1].archive.key in whys(document)[0]


def test_what_retention_has_passed_is_not_compared(world: World) -> None:
    files = world.archived()
    swap(world, files[:3], rewritten(world, files[:3], at(3, FORGERIES["key"])))
    world.mine.starts[0] = 10
    world.store.delete(files[0].archive.key)
    document = deep(world)
    assert (verdicts(document), whys(document)) == (["valid", "valid"], [None, None])


def test_only_the_partitions_that_were_asked_for_are_compared(world: World) -> None:
    files = world.archived()
    swap(world, files, rewritten(world, files, at(3, FORGERIES["key"])))
    reader = HereRows(world.store)
    assert deep(world, reader, ("orders", frozenset({1})))["verdict"] == "valid"
    assert {"partition=00001" in uri for uri in reader.compared_with} == {True}


def test_a_reader_that_cannot_compare_leaves_it_unknown(world: World) -> None:
    class Blind(HereRows):
        def comparison(self, *args: Any, **others: Any) -> Compared:
            del args, others
            return Compared(trouble="spark could not read it")

    files = world.archived()
    swap(world, files, rewritten(world, files, lambda rows: rows))
    document = deep(world, Blind(world.store))
    assert verdicts(document) == ["unknown", "unknown"]
    assert "could not be compared: spark could not read it" in whys(document)[0]


# the fast audit and its document


def test_the_fast_audit_says_whose_rows_it_did_not_compare(world: World) -> None:
    files = world.archived()
    snapshot_id = swap(world, files[:3], rewritten(world, files[:3], at(3, FORGERIES["key"])))
    document = world.audit()
    assert verdicts(document) == ["valid", "valid"], (
        "each offset is there once, which is what the fast audit proves"
    )
    text = (
        f"rows were rewritten by snapshot {snapshot_id}; their offsets were read, `archiver audit "
        "--deep` compares their content"
    )
    assert whys(document) == [text, None]
    assert [item["altered"] for item in document["partitions"]] == [[], []]


# several versions of the schema


def test_a_row_that_another_version_decoded_is_not_called_altered(world: World) -> None:
    """A replay may have made an archive again with more columns, while the table has the row as first
    decoded."""
    files = world.archived()
    second_version(world)
    swap(
        world,
        files[:3],
        rewritten(
            world,
            files[:3],
            at(4, lambda row: row.update(value={**dict.fromkeys(row["value"]), "__raw__": order(4)})),
        ),
    )
    found = deep(world)["partitions"][0]
    assert (found["verdict"], found["altered"]) == ("unknown", [])
    assert "another schema version decoded them, or they were altered" in found["why"]


def test_statistics_of_the_altered_file_hide_no_row(world: World) -> None:
    """The writer of the rows wrote the statistics too: row groups that they exclude are still compared."""
    files = world.archived()
    second_version(world)
    made = rewritten(world, files[2:3], at(29, FORGERIES["key"]))
    path = Path(made.path.removeprefix("file://"))
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    footer = content[start:]
    for offset in range(20, 30):
        footer = footer.replace(
            b"\x08" + offset.to_bytes(8, "little"), b"\x08" + (offset + 1000).to_bytes(8, "little")
        )
    assert footer != content[start:]
    path.write_bytes(content[:start] + footer)
    swap(world, files[2:3], made)
    found = deep(world)["partitions"][0]
    assert (found["verdict"], found["altered"]) == ("invalid", [[29, 30]]), found["why"]


@pytest.mark.parametrize("name", sorted(FORGERIES))
def test_an_altered_row_is_altered_under_every_version(world: World, name: str) -> None:
    files = world.archived()
    second_version(world)
    swap(world, files[:3], rewritten(world, files[:3], at(29, FORGERIES[name])))
    found = deep(world)["partitions"][0]
    assert (found["verdict"], found["altered"]) == ("invalid", [[29, 30]]), found["why"]

"""What the deep audit could not read is unknown, never invalid; and it reads only what was asked for."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from archiver.catalog.iceberg import local_io
from archiver.config.settings import TopicSettings
from archiver.runtime.errors import RetryLater
from archiver.schema.evolution.state import TopicSchema
from intake.log.backlog import Backlog
from reconcile.audit.deep import RowProof
from reconcile.audit.report import Audit, Scope
from reconcile.audit.rows import FileRows, RowFile
from tests.support.builders.audited import CLUSTER, TABLE, Document, World, verdicts
from tests.support.schema.orders import order_schema
from tests.support.spark.here_rows import HereRows


@pytest.fixture
def world(tmp_path: Path) -> World:
    found = World(tmp_path / "data")
    found.mine.schemas[1] = order_schema().to_entry(bytes.fromhex(found.topic))
    return found


def deep(world: World, reader: HereRows | None = None, scope: Scope | None = None) -> Document:
    archive = {
        "kind": world.kind,
        **({"catalog": "local", "table": "shop.orders"} if world.kind == "iceberg" else {}),
    }
    settings = [TopicSettings.model_validate({"name": "orders", "partitions": 2, "archive": archive})]
    rows = RowProof(world.store, CLUSTER, reader or HereRows(world.store), lambda _: None)
    check = Audit(world.store, CLUSTER, lambda _name: world.tables, settings, world.clock, rows)
    found: Document = json.loads(
        json.dumps(check.run(lambda: world.ledger, lambda: Backlog(world.intake.fold), scope))
    )
    return found


def whys(document: Document) -> list[Any]:
    return [item["why"] for item in document["partitions"]]


def test_a_sound_topic_is_read_once_and_compared_with_intake(world: World) -> None:
    world.archived()
    reader = HereRows(world.store)
    document = deep(world, reader)
    assert (verdicts(document), whys(document)) == (["valid", "valid"], [None, None])
    assert [item["proof"] for item in document["partitions"]] == ["rows", "rows"]
    assert len(reader.asked) == len(set(reader.asked)) == 6
    assert sorted(reader.compared) == sorted(reader.asked)


def test_a_deep_audit_reads_table_metadata_from_the_store_again(world: World) -> None:
    world.archived()
    key = ("http://store", "s3://bucket/m.avro")
    local_io.SHARED.put(key, b"as it was")
    world.audit()
    assert local_io.SHARED.get(key) == b"as it was"
    deep(world)
    assert local_io.SHARED.get(key) is None


def test_only_the_partitions_that_were_asked_for_are_read(world: World) -> None:
    world.archived()
    reader = HereRows(world.store)
    document = deep(world, reader, ("orders", frozenset({1})))
    assert [(item["partition"], item["verdict"], item["rows"]) for item in document["partitions"]] == [
        (1, "valid", 30)
    ]
    assert len(reader.asked) == 3
    assert all("partition=00001" in uri for uri in reader.asked)


def test_intake_that_is_gone_is_not_compared(world: World) -> None:
    world.archived()
    min((world.store.root / "intake").rglob("*.parquet")).unlink()
    reader = HereRows(world.store)
    assert deep(world, reader)["verdict"] == "valid"
    assert len(reader.compared) == 4


def test_a_file_that_goes_while_it_is_read(world: World) -> None:
    files = world.archived()
    document = deep(world, HereRows(world.store, lambda: world.store.delete(files[1].archive.key)))
    assert verdicts(document) == ["unknown", "valid"]
    assert "disappeared while it was read; audit again" in document["partitions"][0]["why"]
    document = deep(world)
    assert (verdicts(document), document["partitions"][0]["missing"]) == (["invalid", "valid"], [[10, 20]])


def test_a_reader_that_is_away(world: World) -> None:
    world.archived()

    def away() -> None:
        raise RetryLater("no java")

    document = deep(world, HereRows(world.store, away))
    assert verdicts(document) == ["unknown", "unknown"]
    assert whys(document) == ["the rows could not be read: no java"] * 2


def test_columns_that_the_ledger_does_not_know(world: World) -> None:
    world.archived()
    world.mine.schemas.clear()
    document = deep(world)
    assert verdicts(document) == ["unknown", "unknown"]
    assert "the ledger has no schema version 1" in document["partitions"][0]["why"]


class Short(HereRows):
    """Returns fewer rows of one archive than there are."""

    def archives(self, files: Sequence[RowFile], schema: TopicSchema) -> list[FileRows]:
        found = super().archives(files, schema)
        return [replace(found[0], rows=0, stretches={}, digest=None), *found[1:]]


def test_a_file_that_only_spark_cannot_read_is_unknown(world: World) -> None:
    world.archived()
    document = deep(world, Short(world.store))
    assert verdicts(document) == ["unknown", "valid"]
    assert "although a second read succeeded" in document["partitions"][0]["why"]


def test_archives_without_a_table(world: World) -> None:
    world.kind = "parquet"
    world.refine()
    world.record(30, 20)
    document = deep(world)
    assert (verdicts(document), [item["rows"] for item in document["partitions"]]) == (
        ["valid", "valid"],
        [30, 20],
    )


@pytest.mark.parametrize(("keep", "verdict"), [(slice(None), "valid"), (slice(0, -4), "invalid")])
def test_files_of_another_writer_in_any_order(world: World, keep: slice, verdict: str) -> None:
    from tests.integration.test_audit import compacted

    files = world.archived()
    world.tables.replace_files(
        TABLE, [file.data_file.path for file in files], [compacted(world, files, keep)]
    )
    document = deep(world)
    assert verdicts(document) == [verdict, "valid"]
    assert document["partitions"][0]["missing"] == ([] if verdict == "valid" else [[0, 4]])


def test_times_that_another_writers_files_move(world: World) -> None:
    files = world.archived()
    path = world.store.root / files[1].archive.key
    rows = pq.ParquetFile(path).read()
    taken = rows.to_pylist()
    taken[0]["kafka"]["ingest_timestamp"], taken[9]["kafka"]["ingest_timestamp"] = (
        taken[9]["kafka"]["ingest_timestamp"].replace(microsecond=7),
        taken[0]["kafka"]["ingest_timestamp"].replace(microsecond=1),
    )
    other = path.with_name("other.parquet")
    pq.write_table(rows.from_pylist(taken, schema=rows.schema.remove_metadata()), other)
    reported = replace(files[1].data_file, path=f"file://{other}", file_size=other.stat().st_size)
    world.tables.replace_files(TABLE, [files[1].data_file.path], [reported])
    document = deep(world)
    assert verdicts(document) == ["invalid", "valid"]
    assert (
        "files of another writer: the ingest time goes back at offset 1" in document["partitions"][0]["why"]
    )

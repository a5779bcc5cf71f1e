"""Checks the project's manifest reader against pyiceberg, and that it refuses what it cannot read."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyiceberg.table import Table

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.catalog.table_layout import stream_fields
from archiver.runtime.errors import Corrupted
from reconcile.snapshot import manifests
from reconcile.snapshot.manifests import records, snapshot_files
from tests.support.builders.deployment import Deployment
from tests.support.builders.driver import Driver
from tests.support.catalog.foreign_hands import compact, expire_all_but_current, iceberg_tables, view_of
from tests.support.catalog.foreign_rows import hide
from tests.support.catalog.tables import Bench
from tests.support.schema.orders import order_schema

SCHEMA = {
    "type": "record",
    "name": "entry",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "text", "type": ["null", "string"]},
        {
            "name": "bounds",
            "type": {
                "type": "array",
                "logicalType": "map",
                "items": {
                    "type": "record",
                    "name": "k1_v2",
                    "fields": [{"name": "key", "type": "int"}, {"name": "value", "type": "bytes"}],
                },
            },
        },
    ],
}
ROWS: list[dict[str, Any]] = [
    {"number": number, "text": "x" * number, "bounds": [{"key": 1, "value": b"\x01"}]} for number in range(40)
]


def container(codec: str) -> bytes:
    out = io.BytesIO()
    fastavro.writer(out, SCHEMA, ROWS, codec=codec, sync_interval=200)
    return out.getvalue()


def read(path: str) -> bytes:
    return Path(path.removeprefix("file://")).read_bytes()


def test_what_unpacks_to_more_than_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound holds for each block and for compressed metadata. No more than the bound is ever unpacked."""
    whole, unpacked = container("deflate"), json.dumps({"snapshots": []}).encode()
    monkeypatch.setattr(manifests, "UNPACKED_BYTES_MAX", 100)
    with pytest.raises(
        Corrupted, match=r"x cannot be read as an Avro file: it has more than 100 bytes without compression"
    ):
        list(records(whole, "x"))
    zeros = gzip.compress(unpacked + b" " * 2**20)
    with pytest.raises(
        Corrupted, match=r"x does not tell where snapshot 7 is: .* unpack to more than 100 bytes"
    ):
        snapshot_files(lambda _: zeros, "x", 7, stream_fields(order_schema().iceberg_json))
    with pytest.raises(Corrupted, match="cut off"):
        snapshot_files(lambda _: zeros[:40], "x", 7, stream_fields(order_schema().iceberg_json))


@pytest.mark.parametrize("text", [b"[" * 200_000, b'{"a":' * 200_000])
def test_metadata_that_nests_without_end_is_refused(text: bytes) -> None:
    with pytest.raises(Corrupted, match="does not tell where snapshot 7 is"):
        snapshot_files(lambda _: text, "x", 7, stream_fields(order_schema().iceberg_json))


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_another_librarys_container_files(codec: str) -> None:
    assert list(records(container(codec), "x")) == [{**row, "bounds": {1: b"\x01"}} for row in ROWS]


def test_a_codec_that_is_not_known() -> None:
    data = container("null").replace(b"\x08null", b"\x08nope")
    with pytest.raises(
        Corrupted, match="x cannot be read as an Avro file: its compression 'nope' is not supported"
    ):
        list(records(data, "x"))


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_file_cut_anywhere_is_refused_or_ends_at_a_block(codec: str) -> None:
    data, whole = container(codec), [row["number"] for row in ROWS]
    lengths = set()
    for end in range(0, len(data), 11):
        try:
            found = [row["number"] for row in records(data[:end], "x")]
        except Corrupted:
            continue
        assert found == whole[: len(found)]
        lengths.add(len(found))
    assert len(ROWS) not in lengths


def test_a_bit_flipped_anywhere_raises_nothing_but_corrupted() -> None:
    data = bytearray(container("deflate"))
    for place in range(0, len(data), 3):
        data[place] ^= 0x10
        try:
            list(records(bytes(data), "x"))
        except Corrupted:
            pass
        data[place] ^= 0x10


def test_the_same_files_as_the_library_sees(tmp_path: Path) -> None:
    """Appends, a merge of manifests, an external compaction and an expiry. After each step both readers agree
    in every field."""
    bench, tables = Bench(tmp_path), iceberg_tables(tmp_path, 3)
    leader = bench.leader()
    agree(tables)
    for number in range(6):
        bench.write(
            leader, bench.table(tables), (0, 10 * number, 10 * number + 10), (1, 5 * number, 5 * number + 5)
        )
        bench.commit(tables, leader, merge_every=3)
        agree(tables)
    compact(tables, bench, 0, 0, 60)
    agree(tables)
    expire_all_but_current(tables)
    agree(tables)
    tables.close()


def agree(tables: IcebergTables) -> None:
    try:
        view = view_of(tables)
    except AssertionError:  # no table yet
        return
    found = snapshot_files(read, view.metadata_location, view.snapshot_id, stream_fields(view.schema_json))
    assert sorted(found.data, key=lambda one: one.path) == sorted(
        tables.live_files(view), key=lambda one: one.path
    )
    assert found.deletes == ()


def test_delete_files_with_the_snapshot_that_added_them(tmp_path: Path) -> None:
    topics = [
        {
            "name": "clicks",
            "partitions": 1,
            "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.clicks"},
        }
    ]
    deployment = Deployment(tmp_path / "d", overrides={"topics": topics})
    with Driver(deployment) as driver:
        driver.send("clicks", [b"%d" % number for number in range(10)], 0)
        driver.archive()
        snapshot_id = hide(deployment, lambda offset: offset in (2, 3), "shop.clicks")
        view = driver.application.table("clicks")
        assert view is not None
        found = snapshot_files(
            read, view.metadata_location, view.snapshot_id, stream_fields(view.schema_json)
        )
        assert list(found.data) == driver.application.live_files("local", view)
        assert [(one.kind, one.format, one.snapshot_id, one.sequence_number) for one in found.deletes] == [
            ("positions", "PARQUET", snapshot_id, view.sequence_number)
        ]
        assert found.data[0].has_deletes


def test_metadata_that_lacks_the_snapshot(tmp_path: Path) -> None:
    bench, tables = Bench(tmp_path), iceberg_tables(tmp_path, 3)
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 10))
    bench.commit(tables, leader)
    view = view_of(tables)
    assert isinstance(view.handle, Table)
    fields = stream_fields(view.schema_json)
    with pytest.raises(Corrupted, match="does not tell where snapshot 7 is"):
        snapshot_files(read, view.metadata_location, 7, fields)
    lists = json.loads(read(view.metadata_location))["snapshots"][0]["manifest-list"]
    path = Path(lists.removeprefix("file://"))
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    with pytest.raises(Corrupted, match="cannot be read as an Avro file"):
        snapshot_files(read, view.metadata_location, view.snapshot_id, fields)
    tables.close()

"""What a Spark worker reads of files, called here without Spark: external files, and their position deletes."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.objects.cluster import ensure_cluster
from archiver.objects.local import LocalObjectStore
from archiver.objects.location import StorePlace
from archiver.objects.s3.store import S3ObjectStore
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import NotFound
from archiver.runtime.ids import SystemIds
from reconcile.audit.rows import RowFile
from reconcile.audit.spark.stored import StoredFiles, Worker, opened
from reconcile.audit.spark.summary import packed, positions_summary, unpacked
from tests.support.objects.s3_server import S3Server
from tests.support.objects.s3_store import place

KAFKA = pa.struct(
    [("partition", pa.int32()), ("offset", pa.int64()), ("ingest_timestamp", pa.timestamp("us", "UTC"))]
)


class Bucket:
    """A cluster's bucket with external files."""

    def __init__(self, server: S3Server) -> None:
        self.place = place(server)
        cluster = ensure_cluster(S3ObjectStore(self.place), "test", SystemIds(), SystemClock())
        self.store = S3ObjectStore(self.place, cluster.cluster_id)
        self.files = StoredFiles(self.place, cluster.cluster_id)

    def put(self, key: str, table: pa.Table, hidden: tuple[tuple[int, int], ...] = ()) -> RowFile:
        data = io.BytesIO()
        pq.write_table(table, data)
        self.store.create(key, data.getvalue())
        return RowFile(self.store.uri(key), len(data.getvalue()), hidden=hidden)


@pytest.fixture
def bucket(request: pytest.FixtureRequest) -> Bucket:
    return Bucket(request.getfixturevalue("s3_server"))


def rows(partition: int, offsets: range) -> pa.Table:
    cells = [
        {"partition": partition, "offset": offset, "ingest_timestamp": 1_000_000 + offset}
        for offset in offsets
    ]
    return pa.table({"other": pa.array(list(offsets)), "kafka": pa.array(cells, KAFKA)})


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "link to a fifo"])
def test_a_data_file_that_is_no_regular_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    """A FIFO would keep the worker of the audit for ever."""
    path = tmp_path / "part.parquet"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(tmp_path / "fifo")
        path.symlink_to(tmp_path / "fifo")
    target = tmp_path / "fifo" if kind == "fifo" else path
    objects = LocalObjectStore(tmp_path / "data")
    with pytest.raises(NotFound, match="not a regular file"):
        opened(objects, RowFile(f"file://{target}", 100))
    path.rename(tmp_path / "away")
    path.write_bytes(b"PAR1")
    assert opened(objects, RowFile(f"file://{path}", 100)).size() == 4


def run(work: Worker, *files: RowFile) -> Iterator[pa.RecordBatch]:
    """Run the worker on one task with these files."""
    task = packed(list(files)).column(0)
    return work([pa.RecordBatch.from_arrays([task], names=["task"])])


def results(work: Worker, *files: RowFile) -> list[Any]:
    return [unpacked(cell.as_py()) for batch in run(work, *files) for cell in batch.column("result")]


def test_coordinates_of_other_peoples_files(bucket: Bucket) -> None:
    files = [
        bucket.put("archive/a.parquet", rows(0, range(5)), hidden=((1, 3),)),
        bucket.put("archive/b.parquet", rows(1, range(7, 9))),
    ]
    found = [row for batch in run(bucket.files.coordinates(), *files) for row in batch.to_pylist()]
    assert [(row["partition"], row["offset"], row["hidden"]) for row in found] == [
        *((0, 0, False), (0, 1, True), (0, 2, True), (0, 3, False), (0, 4, False)),
        *((1, 7, False), (1, 8, False)),
    ]
    assert [row["time"] for row in found] == [1_000_000 + row["offset"] for row in found]
    assert results(bucket.files.counts(), *files) == [{files[0].uri: 5}, {files[1].uri: 2}]


def test_a_file_is_found_however_its_scheme_is_spelled(bucket: Bucket) -> None:
    file = bucket.put("archive/a.parquet", rows(0, range(5)))
    hadoop = RowFile(file.uri.replace("s3://", "s3a://"), file.size)
    assert results(bucket.files.counts(), hadoop) == [{hadoop.uri: 5}]
    with pytest.raises(NotFound, match="outside of"):
        results(bucket.files.counts(), RowFile("s3://another-bucket/archive/a.parquet", 1))


def test_positions_that_delete_files_hide(bucket: Bucket) -> None:
    file = bucket.put(
        "archive/deletes.parquet",
        pa.table({"file_path": ["x", "x", "y"], "pos": pa.array([3, 4, 0], pa.int64())}),
    )
    work = bucket.files.positions()
    found = [row for batch in run(work, replace(file, origin=7)) for row in batch.to_pylist()]
    assert [(row["file_path"], row["pos"], row["origin"]) for row in found] == [
        ("x", 3, 7),
        ("x", 4, 7),
        ("y", 0, 7),
    ]
    batches = [batch for number in (7, 9) for batch in run(work, replace(file, origin=number))]
    ordered = pa.Table.from_batches(batches).sort_by(
        [(name, "ascending") for name in ("file_path", "origin", "pos")]
    )
    (packed,) = positions_summary(ordered.to_batches(max_chunksize=3))
    runs = unpacked(packed.column(0)[0].as_py())
    assert runs == {("x", 7): [(3, 5)], ("x", 9): [(3, 5)], ("y", 7): [(0, 1)], ("y", 9): [(0, 1)]}


@pytest.mark.parametrize("spelled", ["file://{}", "file:{}", "file:////{}"])
def test_files_of_a_local_folder_and_next_to_it(tmp_path: Path, spelled: str) -> None:
    cluster = ensure_cluster(LocalObjectStore(tmp_path / "data"), "test", SystemIds(), SystemClock())
    files = StoredFiles(StorePlace(f"file://{tmp_path}/data"), cluster.cluster_id)
    found = []
    for number, where in enumerate(("data/archive/a b%20.parquet", "database/x.parquet")):
        path = tmp_path / where
        path.parent.mkdir(exist_ok=True)
        pq.write_table(rows(number, range(3 + number)), path)
        file = RowFile(spelled.format(path), path.stat().st_size, hidden=((0, 1),))
        found += [row for batch in run(files.coordinates(), file) for row in batch.to_pylist()]
        assert results(files.counts(), file) == [{file.uri: 3 + number}]
    assert [(row["partition"], row["offset"], row["hidden"]) for row in found] == [
        *((0, 0, True), (0, 1, False), (0, 2, False)),
        *((1, 0, True), (1, 1, False), (1, 2, False), (1, 3, False)),
    ]
    with pytest.raises(NotFound, match="outside of"):
        results(files.counts(), RowFile("s3://a-bucket/archive/a.parquet", 1))

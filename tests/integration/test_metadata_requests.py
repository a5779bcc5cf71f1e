"""Table metadata in a bucket is read once, not with every commit, reconciliation, cleanup and audit."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.catalog.iceberg import local_io
from archiver.catalog.iceberg.local_io import DurableFileIO, MetadataCache
from archiver.runtime.clock import ManualClock
from tests.support.builders.driver import Driver
from tests.support.builders.eager_hour import MetadataRequests, commit, in_bucket, upkeep
from tests.support.objects.s3_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, S3Server

COMMITS = 5
A_COMMIT_MAX = 20
FEW = 3
"""Upper bound of upkeep requests for each commit since the last upkeep. Without a cache, upkeep reads all
that each retained snapshot names."""


@pytest.mark.turns(3, 1)  # the measurement of requests asks the same on another day
def test_commits_and_upkeep_read_only_what_is_new(s3_server: S3Server, tmp_path: Path) -> None:
    with (
        MetadataRequests(s3_server) as proxy,
        Driver(in_bucket(tmp_path / "d", s3_server, proxy.uri)) as driver,
    ):
        commit(driver, 2)
        for _ in range(2):
            proxy.taken()
            commit(driver, COMMITS)
            commits = proxy.taken()
            upkeep(driver)
            after = proxy.taken()
            for method in ("HEAD", "GET"):
                assert commits[method] + after[method] <= A_COMMIT_MAX * COMMITS, (commits, after)
                assert after[method] <= FEW * COMMITS, (commits, after)
        upkeep(driver)
        assert proxy.taken()["GET"] == 0, "everything is known"


def test_what_is_written_deleted_or_old_is_read_again(
    s3_server: S3Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = ManualClock()
    monkeypatch.setattr(local_io, "SHARED", MetadataCache(clock))
    keys = {"s3.access-key-id": ACCESS_KEY_ID, "s3.secret-access-key": SECRET_ACCESS_KEY, "s3.region": REGION}
    bucket = s3_server.new_bucket()
    with MetadataRequests(s3_server) as proxy:
        files = DurableFileIO({"s3.endpoint": proxy.uri, "s3.force-virtual-addressing": "false", **keys})
        other = DurableFileIO({"s3.endpoint": s3_server.uri, "s3.force-virtual-addressing": "false", **keys})
        where = f"s3://{bucket}/metadata/00001.metadata.json"

        def write(content: bytes, by: DurableFileIO) -> None:
            with by.new_output(where).create(overwrite=True) as stream:
                stream.write(content)

        def read() -> bytes:
            file = files.new_input(where)
            assert (file.exists(), len(file)) == (True, 3)
            with file.open() as stream:
                return bytes(stream.read())

        write(b"one", files)
        assert read() == b"one"
        proxy.taken()
        assert read() == b"one"
        assert not proxy.taken(), "neither HEAD nor GET"
        write(b"two", files)
        assert read() == b"two"
        write(b"new", other)  # Another process overwrites the file; in practice only a restore does so.
        assert read() == b"two"
        clock.advance(local_io.AGE_MAX_S + 1)
        assert read() == b"new"
        files.delete(where)
        assert not files.new_input(where).exists()

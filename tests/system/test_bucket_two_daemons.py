"""What a team installs, judged from outside: objects in a bucket, logs in etcd, tables in a REST catalog, two
daemons and four writers; leaders of daemons and of etcd are killed."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.harness.judging import judge
from tests.harness.loading import load
from tests.support.log.bucket_run import STORE_FAULTS, BucketRun, BucketScene, bucket_run
from tests.support.log.etcd_run import DAEMON_KILLED, MEMBER_KILLED

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.timeout(900), pytest.mark.turns(4, 2)]

SEED = 8
SECONDS = 25.0


def test_nothing_is_lost_or_doubled_in_a_bucket(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    with bucket_run(folder, SEED, SECONDS, print) as run:
        run.run()
        reported = judge(load(folder))
        assert reported.verdict == "valid", (reported.to_json(), run.reported())
        counts = reported.counts
        assert {DAEMON_KILLED, MEMBER_KILLED, *STORE_FAULTS} <= set(counts["faults"])
        assert counts["outcomes"]["ok"] > 200
        assert counts["table_rows"] > 200
        assert counts["unsettled"] == 0
        assert run.seen.leaders[0] != run.seen.leaders[-1], "another daemon leads after the first was killed"
        assert run.seen.stopped == [0, 0]
        assert isinstance(run.scene, BucketScene)
        leases = ["etcd.checkpoint.lease", "etcd.leader.lease"]  # free, and kept for the next holder
        assert sorted(path.name for path in Path(run.scene.state).iterdir()) == sorted(
            ["etcd.admin-token", "etcd.charts", "etcd.control.tail", "etcd.intake.tail", *leases]
        )
        assert not (run.scene.disk / "data").exists(), "nothing of it lies in a folder"
        assert not list(run.scene.disk.glob("*.db*")), "nothing of SQLite's is there"
        _spoil(run)


def _spoil(run: BucketRun) -> None:
    """The judge reads the bucket itself: it sees what is wrong there. Only tables are read again."""
    assert isinstance(run.scene, BucketScene) and run.scene.bucket is not None
    bucket = run.scene.bucket
    client = bucket.client()
    listed = client.list_objects_v2(Bucket=bucket.name, Prefix="harness/archive/")["Contents"]
    key = max((one for one in listed if "/data/" in one["Key"]), key=lambda one: int(one["Size"]))["Key"]
    whole: bytes = client.get_object(Bucket=bucket.name, Key=key)["Body"].read()
    rows = pq.read_table(io.BytesIO(whole), partitioning=None)
    for changed, verdict, why in (
        (
            pa.concat_tables([rows.slice(0, 1), rows.slice(0, 1), rows.slice(2)]),
            "invalid",
            "twice in the table",
        ),
        (rows.slice(1), "unknown", "its manifest says"),
        (None, "unknown", "NoSuchKey"),
        (whole, "valid", ""),
    ):
        if changed is None:
            client.delete_object(Bucket=bucket.name, Key=key)
        else:
            client.put_object(
                Bucket=bucket.name, Key=key, Body=changed if isinstance(changed, bytes) else _parquet(changed)
            )
        run.read_tables_again()
        reported = judge(load(run.scene.folder)).to_json()
        assert reported["verdict"] == verdict, reported
        assert why in json.dumps(reported)
    client.close()


def _parquet(rows: pa.Table) -> bytes:
    stream = io.BytesIO()
    pq.write_table(rows, stream)
    return stream.getvalue()

"""Makes the golden deployment of this version. Run once per stored format, never again: `python -m tests.compat.make_golden v2`.

It holds records that are archived and committed, archives that are in the ledger and in no table (the archiver was killed there), and
records that are in intake only; from version 2 on also committed, aborted and repeated batches of producers, checkpoints and shelves, and
a log that was trimmed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path

from archiver import Writer, failpoints
from archiver.settings import SparkSettings
from archiver.spark_session import SparkSessions
from tests.support.deployment import Deployment, jsonl, sample_records
from tests.support.golden import GOLDEN, golden_place

KEPT_OUT = (".spool", "metadata.db.lease", "metadata.db.checkpoint", "tmp")


def main(version: str) -> None:
    """Make it; refuses to replace one."""
    target = GOLDEN / version
    if target.exists():
        raise SystemExit(f"{target} exists; a golden deployment is never made again")
    sessions = SparkSessions(SparkSettings(master="local[2]", driver_memory="1g"))
    sessions.session()
    with golden_place(version) as folder:
        make(folder)
        shutil.copytree(folder, target, ignore=shutil.ignore_patterns(*KEPT_OUT))
    sessions.close()


def make(folder: Path) -> None:
    """The history of the deployment."""
    deployment = Deployment(folder, failpoints_asked=True, overrides={"log": {"append_backoff": "5ms", "checkpoint_entries": 5}})
    records = sample_records(120)
    acknowledged = deployment.produce(records[:60])
    gaps = transactions(deployment)
    assert deployment.cli("archive", "--all").code == 0
    acknowledged += deployment.produce(records[60:80]) + deployment.produce(records[80:100])
    killed = deployment.run("archive", "--all", armed="complete.append.after=kill")
    assert killed.code == -signal.SIGKILL, killed.err
    acknowledged += deployment.produce(records[100:])
    gaps += transactions(deployment)
    deployment.failpoints_asked = False
    deployment.write(deployment.document())
    (folder / "sent.jsonl").write_text(jsonl(records))
    (folder / "acknowledged.jsonl").write_text("".join(json.dumps(item) + "\n" for item in acknowledged))
    (folder / "gaps.jsonl").write_text("".join(json.dumps(item) + "\n" for item in gaps))


def transactions(deployment: Deployment) -> list[tuple[str, int, int]]:
    """A committed and an aborted transaction, and a batch that came twice; topic, partition and offset of what was aborted."""
    os.environ[failpoints.VARIABLE] = ""
    with Writer(deployment.config) as writer:
        producer = writer.producer("golden")
        with producer.transaction():
            kept = [producer.send("clicks", b"committed", partition=partition) for partition in (0, 1)]
        producer.begin()
        aborted = [producer.send("clicks", b"aborted", partition=partition) for partition in (0, 0, 1)]
        writer.flush()
        producer.abort()
        plain = writer.producer()
        first = plain.send("files", b"once", partition=0, sequence=0).result(30)
        again = plain.send("files", b"once", partition=0, sequence=0).result(30)
        assert (first.outcome, first.offset) == ("ok", again.offset)
        assert all(one.result(30).outcome == "ok" for one in kept)
        told = [one.result(30) for one in aborted]
    del os.environ[failpoints.VARIABLE]
    return [(one.topic, one.partition, one.offset) for one in told if one.offset is not None]


if __name__ == "__main__":
    main(sys.argv[1])

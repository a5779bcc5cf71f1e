"""Makes the golden deployment of this version. Run once per stored format, never again: `python -m tests.compat.make_golden v1`.

It holds records that are archived and committed, archives that are in the ledger and in no table (the archiver was killed there), and
records that are in intake only.
"""

from __future__ import annotations

import json
import shutil
import signal
import sys
from pathlib import Path

from archiver.settings import SparkSettings
from archiver.spark_session import SparkSessions
from tests.support.deployment import Deployment, jsonl, sample_records
from tests.support.golden import GOLDEN, golden_place

KEPT_OUT = (".spool", "metadata.db.lease", "tmp")


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
    deployment = Deployment(folder, failpoints_asked=True)
    records = sample_records(120)
    acknowledged = deployment.produce(records[:60])
    assert deployment.cli("archive", "--all").code == 0
    acknowledged += deployment.produce(records[60:100])
    killed = deployment.run("archive", "--all", armed="complete.append.after=kill")
    assert killed.code == -signal.SIGKILL, killed.err
    acknowledged += deployment.produce(records[100:])
    deployment.failpoints_asked = False
    deployment.write(deployment.document())
    (folder / "sent.jsonl").write_text(jsonl(records))
    (folder / "acknowledged.jsonl").write_text("".join(json.dumps(item) + "\n" for item in acknowledged))


if __name__ == "__main__":
    main(sys.argv[1])

"""The processes that a real session starts hold no secret of this process in their environment or on their
command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]

CANARIES = {
    "ARCHIVER_ADMIN_TOKEN": "canary-admin",
    "DATABASE": "canary-without-a-name",
    "KAFKA_PASSWORD": "canary-kafka",
    "SPARK_REFERENCED": "canary-referenced",
    "AWS_SECRET_ACCESS_KEY": "canary-aws",
}

PROGRAM = """
import json, os
from pathlib import Path
import pyarrow as pa
import psutil
from pydantic import SecretStr
from archiver.runtime.redaction import hide
from archiver.config.settings import SparkSettings
from archiver.spark.session import SparkSessions

hide([os.environ["SPARK_REFERENCED"]])
settings = SparkSettings(
    master="local[1]",
    driver_memory="600m",
    pass_environment=["PASSED_ON"],
    conf={"spark.archiver.canary": SecretStr("canary-property")},
)
session = SparkSessions(settings, os.environ).session()

def read(batches):
    for batch in batches:
        pids = [os.getpid(), os.getppid()]
        texts = [Path(f"/proc/{pid}/{name}").read_bytes() for pid in pids for name in ("environ", "cmdline")]
        yield pa.RecordBatch.from_pydict({"text": [text.decode() for text in texts]})

rows = [row["text"] for row in session.range(1).mapInArrow(read, "text string").collect()]
machine, = [one for one in psutil.Process().children(recursive=True) if one.name() == "java"]
texts = [Path(f"/proc/{machine.pid}/{name}").read_text() for name in ("environ", "cmdline")]
print(json.dumps({"worker": rows, "jvm": texts, "property": session.conf.get("spark.archiver.canary")}))
"""


def test_spark_and_its_workers_hold_no_secret_of_this_process(tmp_path: Path) -> None:
    environ = {**os.environ, **CANARIES, "PASSED_ON": "as-asked", "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        env=environ,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["property"] == "canary-property", "the session itself has the property"
    texts = [*found["worker"], *found["jvm"]]
    assert len(texts) == 6
    assert all("PASSED_ON=as-asked" in text for text in (texts[0], texts[2], texts[4])), (
        "these are their environments"
    )
    assert [
        canary for canary in (*CANARIES.values(), "canary-property") if any(canary in text for text in texts)
    ] == []

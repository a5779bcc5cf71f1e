"""What a deep audit reads per second, beside what refinement writes per second from the same records on the same session.

`python -m bench.deep_audit [--rows N] [--output FILE]` (Java needed). Records are orders of about 140 bytes, in four partitions.
Each step is measured once, after a small round of the same kind has warmed the session up; the ratio is what can be compared between
machines.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

from archiver.assemble import Application
from archiver.settings import load_settings
from tests.support.deployment import Deployment
from tests.support.orders import order

BATCH_ROWS = 20_000
WARM_ROWS = 2_000
PARTITIONS = 4


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measured(Path(folder), asked.rows)
    text = json.dumps(found, indent=2)
    print(text)
    if asked.output is not None:
        asked.output.write_text(text + "\n", encoding="utf-8")


def measured(folder: Path, rows: int) -> dict[str, Any]:
    """One deployment, from sending to auditing."""
    topic = {
        "name": "orders",
        "partitions": PARTITIONS,
        "value": {"descriptor_set": "shop.binpb", "message": "shop.Order"},
        "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.orders"},
    }
    deployment = Deployment(folder / "d", overrides={"topics": [topic]})
    with Application(load_settings(deployment.config, {}), os.environ) as application:
        send(application, WARM_ROWS)
        application.archiving(_nothing).run(None, everything=True)
        application.audit(None, deep=True)
        send(application, rows)
        refine_s = timed(lambda: application.archiving(_nothing).run(None, everything=True))
        fast_s = timed(lambda: application.audit(None))
        documents: list[dict[str, Any]] = []
        deep_s = timed(lambda: documents.append(application.audit(None, deep=True)))
        for file in (deployment.data / "intake").rglob("*.parquet"):
            file.unlink()
        alone_s = timed(lambda: documents.append(application.audit(None, deep=True)))
    assert all(document["verdict"] == "valid" for document in documents), documents
    whole = rows + WARM_ROWS
    return {
        "rows": rows,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "refine_rows_per_s": round(rows / refine_s),
        "fast_audit_s": round(fast_s, 2),
        "deep_rows_per_s": round(whole / alone_s),
        "deep_with_intake_rows_per_s": round(whole / deep_s),
        "deep_to_refine": round(whole / alone_s / (rows / refine_s), 2),
        "deep_with_intake_to_refine": round(whole / deep_s / (rows / refine_s), 2),
    }


def send(application: Application, rows: int) -> None:
    """Records in batches, of all partitions."""
    with application.writer() as writer:
        for number, first in enumerate(range(0, rows, BATCH_ROWS)):
            numbers = range(first, min(rows, first + BATCH_ROWS))
            values = pa.array([order(one, f"customer {one % 977}", lines=8) for one in numbers], pa.binary())
            writer.send_batch("orders", pa.RecordBatch.from_pydict({"value": values}), number % PARTITIONS)
        writer.flush()


def timed(work: Any) -> float:
    """Seconds that it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _nothing(_: str) -> None:
    pass


if __name__ == "__main__":
    main()

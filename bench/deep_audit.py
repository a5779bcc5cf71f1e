"""Measures the read rate of a deep audit, compared with the write rate of refining the same records
in the same session.

Records are orders of about 140 bytes, in four partitions. A small round warms the session up.
Rounds of equal size follow: send, refine, and audit the whole table while its intake still exists.
Then the intake is removed, and the whole table is audited as many times again. The ratio to
refinement is comparable between machines. Java is required.

The last audits also report CPU time per row by process, from the kernel. The work of one worker on
the same archives is profiled in this process; the profiler itself costs some time. `read` is
pyarrow's reader. `rebuild` encodes the producers' bytes again (`encode` is the share of ptars).
`digest` is the comparison value, and `look` all other work.

    python -m bench.deep_audit [--quick] [--rows 1000000] [--rounds 3] [--output
    bench/results/deep_audit.json]
"""

from __future__ import annotations

import argparse
import cProfile
import os
import platform
import pstats
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from archiver.app.application import Application
from archiver.config.settings import load_settings
from archiver.objects.paths import ARCHIVE_PREFIX, parse_archive_key
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema
from bench.outcome import tell
from bench.processes import cpu_seconds
from reconcile.audit.rows import RowFile
from reconcile.audit.spark.stored import archive_rows
from tests.support.builders.deployment import Deployment
from tests.support.schema.orders import order

BATCH_ROWS = 20_000
WARM_ROWS = 2_000
PARTITIONS = 4


@dataclass(frozen=True)
class Sizes:
    """Amount of work to measure."""

    rows: int
    """Rows per round."""
    rounds: int


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a few rows: a smoke test, the figures mean little"
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows per round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    sizes = Sizes(1_000, 2) if options.quick else Sizes(options.rows, options.rounds)
    with tempfile.TemporaryDirectory(prefix="bench-deep-audit-") as folder:
        found = measured(Path(folder), sizes)
    tell(found, options.output)


def measured(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Run one deployment from sending to auditing and return the result document."""
    topic = {
        "name": "orders",
        "partitions": PARTITIONS,
        "value": {"descriptor_set": "shop.binpb", "message": "shop.Order"},
        "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.orders"},
    }
    deployment = Deployment(folder / "d", overrides={"topics": [topic]})
    refine, fast, deep, alone = Rates(), Rates(), Rates(), Rates()
    with Application(load_settings(deployment.config, {}), os.environ) as application:
        send(application, WARM_ROWS)
        application.archiving.round(_nothing).run(None, everything=True)
        audited(application, WARM_ROWS)
        whole = WARM_ROWS
        for _ in range(sizes.rounds):
            send(application, sizes.rows)
            whole += sizes.rows
            refine.add(sizes.rows, lambda: application.archiving.round(_nothing).run(None, everything=True))
            fast.add(whole, lambda: application.maintenance.audit(None))
            deep.add(whole, lambda whole=whole: audited(application, whole))
        for file in (deployment.data / "intake").rglob("*.parquet"):
            file.unlink()
        before = cpu_seconds(os.getpid())
        for _ in range(sizes.rounds):
            alone.add(whole, lambda: audited(application, whole))
        taken = {part: seconds - before.get(part, 0.0) for part, seconds in cpu_seconds(os.getpid()).items()}
        steps = [worker_steps(application, deployment.data, whole) for _ in range(sizes.rounds)]
    return {
        "what": "rows a deep audit reads per second, beside those that refinement writes "
        "on the same session; "
        "rounds of both in turns",
        "rows_per_round": sizes.rows,
        "rounds": sizes.rounds,
        "refine_rows_per_s": refine.spread(),
        "fast_audit_s": fast.seconds(),
        "deep_with_intake_rows_per_s": deep.spread(),
        "deep_rows_per_s": alone.spread(),
        "deep_with_intake_to_refine": deep.to(refine),
        "deep_to_refine": alone.to(refine),
        "deep_cpu_us_per_row": {
            part: round(1e6 * seconds / (whole * sizes.rounds), 3) for part, seconds in taken.items()
        },
        "worker_cpu_us_per_row": {step: _spread([one[step] for one in steps], 3) for step in steps[0]},
        "load": round(os.getloadavg()[0], 1),
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {
            "python": platform.python_version(),
            "pyspark": version("pyspark"),
            "pyarrow": version("pyarrow"),
        },
    }


class Rates:
    """Durations and rows of a repeated step."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._seconds: list[float] = []

    def add(self, rows: int, work: Callable[[], object]) -> None:
        """Run the step once and record it."""
        began = time.perf_counter()
        work()
        self._seconds.append(time.perf_counter() - began)
        self._rows.append(rows)

    def rates(self) -> list[float]:
        """Return the rows per second of each run."""
        return [rows / seconds for rows, seconds in zip(self._rows, self._seconds, strict=True)]

    def spread(self) -> dict[str, float]:
        """Return the spread of the rates."""
        return _spread(self.rates(), 0)

    def seconds(self) -> dict[str, float]:
        """Return the spread of the durations."""
        return _spread(self._seconds, 3)

    def to(self, other: Rates) -> dict[str, float]:
        """Return the spread of the ratios to the other's rate in the same round."""
        return _spread([one / two for one, two in zip(self.rates(), other.rates(), strict=True)], 2)


def _spread(values: Sequence[float], digits: int) -> dict[str, float]:
    return {
        "min": round(min(values), digits),
        "median": round(statistics.median(values), digits),
        "max": round(max(values), digits),
    }


def worker_steps(application: Application, data: Path, rows: int) -> dict[str, float]:
    """Return by step the CPU microseconds per row that a worker spends on all archives."""
    (topic,) = application.ledger().topics.values()
    schema = TopicSchema.from_entry(topic.schemas[topic.schema_version])
    paths = sorted((data / ARCHIVE_PREFIX).rglob("*.parquet"))
    files = [
        RowFile(f"file://{path}", path.stat().st_size, parse_archive_key(str(path.relative_to(data))))
        for path in paths
    ]
    profile = cProfile.Profile(time.process_time)
    profile.enable()
    codec = RecordCodec(schema)
    found = [archive_rows(application.objects, file, codec) for file in files]
    profile.disable()
    assert sum(one.rows for one in found) == rows
    assert all(one.trouble is None for one in found)
    whole: dict[str, float] = defaultdict(float)
    for (path, _, name), (_, _, own, together, _) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        step = _STEPS.get((Path(path).name, name))
        if step is not None:
            whole[step] = max(whole[step], together)
        if "'record_batch_to_array'" in name:
            whole["encode"] += own
        whole["all"] += own
    whole["look"] = whole["all"] - whole["read"] - whole["rebuild"] - whole["digest"]
    return {step: 1e6 * seconds / rows for step, seconds in whole.items()}


_STEPS = {
    ("stored.py", "_rows"): "read",
    ("codec.py", "rebuild"): "rebuild",
    ("digest.py", "update"): "digest",
}
"""Steps by file and function name; time in called functions is included."""


def audited(application: Application, rows: int) -> None:
    """Run one deep audit; it must be valid and find all rows."""
    document = application.maintenance.audit(None, deep=True)
    assert document["verdict"] == "valid", document
    assert sum(item["rows"] for item in document["partitions"]) == rows, document


def send(application: Application, rows: int) -> None:
    """Send records in batches to all partitions."""
    with application.intake.writer() as writer:
        for number, first in enumerate(range(0, rows, BATCH_ROWS)):
            numbers = range(first, min(rows, first + BATCH_ROWS))
            values = pa.array([order(one, f"customer {one % 977}", lines=8) for one in numbers], pa.binary())
            writer.send_batch("orders", pa.RecordBatch.from_pydict({"value": values}), number % PARTITIONS)
        writer.flush()


def _nothing(_: str) -> None:
    pass


if __name__ == "__main__":
    main()

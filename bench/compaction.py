"""Measures what merging a past day's small archives costs, and how much faster queries become.

The table has thousands of small archives of nested orders, all of one day. DuckDB and Spark query
the files of its newest snapshot, before and after the merge. `archiver clean` runs two days later,
by a clock that is set ahead. Afterwards the audit must be valid, and both engines must return the
same results. Each query is timed several times in alternation; the first run is not counted.

    python -m bench.compaction [--quick] [--records 2000000] [--archives 4000] [--output
    bench/results/compaction.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import duckdb
import yaml
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from archiver.app.application import Application
from archiver.catalog.tables import parse_identifier
from archiver.config.settings import load_settings
from archiver.runtime.clock import SystemClock
from archiver.spark.session import SparkSessions
from bench.deployment import write_configuration
from bench.intake_files import bytes_of, send
from bench.outcome import tell
from bench.shapes import SHAPES

PARTITIONS = 4
REPEATED = 5
SAMPLE_ROWS = 10_000
"""Sample that gives the mean bytes of a record."""
COMPACT_BYTES = 128 * 2**20
DAY_S = 86_400.0

Answer = tuple[int, float, int]
"""Rows, sum of totals, rows with offsets between two bounds."""


class AheadClock(SystemClock):
    """The system clock plus an offset."""

    def __init__(self) -> None:
        # Noon of tomorrow, so that records sent within hours are of one day.
        self.ahead_s = DAY_S + DAY_S / 2 - time.time() % DAY_S

    def now_us(self) -> int:
        """Return microseconds since 1970."""
        return super().now_us() + round(self.ahead_s * 1e6)

    def monotonic_s(self) -> float:
        """Return monotonic seconds; they advance with the offset too."""
        return super().monotonic_s() + self.ahead_s


def by_duckdb(paths: Sequence[str]) -> Answer:
    """Run two scans, one column of all rows and a range of offsets, and return their results."""
    with duckdb.connect() as connection:
        connection.execute(
            "SELECT count(*), sum(value.total) FROM read_parquet(?, hive_partitioning=false)", [list(paths)]
        )
        rows, total = connection.fetchone() or (0, 0.0)
        connection.execute(
            "SELECT count(*) FROM read_parquet(?, hive_partitioning=false) WHERE kafka.offset BETWEEN "
            "1000 AND 1999",
            [list(paths)],
        )
        (between,) = connection.fetchone() or (0,)
    return rows, round(total, 2), between


def by_spark(session: SparkSession) -> Callable[[Sequence[str]], Answer]:
    """Return a function that runs the same scans with Spark's own Parquet reader."""

    def ask(paths: Sequence[str]) -> Answer:
        frame = session.read.parquet(*paths)
        rows, total = frame.agg(sql.count(sql.lit(1)), sql.sum("value.total")).collect()[0]
        between = frame.where("kafka.offset BETWEEN 1000 AND 1999").count()
        return rows, round(total, 2), between

    return ask


def seconds_of(asked: Callable[[Sequence[str]], Answer], paths: Sequence[str]) -> tuple[list[float], Answer]:
    """Return the wall seconds of each repetition after the first, and the query results."""
    found: list[float] = []
    answer = asked(paths)
    for _ in range(REPEATED):
        began = time.monotonic()
        answer = asked(paths)
        found.append(round(time.monotonic() - began, 3))
    return found, answer


def named(application: Application) -> list[tuple[str, int]]:
    """Return path and size of every file of the newest snapshot."""
    settings = application.settings.topics[0].archive
    tables = application.tables(settings.catalog or "")
    view = tables.load(parse_identifier(settings.table or ""))
    assert view is not None
    return sorted((file.path.removeprefix("file://"), file.file_size) for file in tables.live_files(view))


def _silent(_line: str) -> None:
    pass


def cpu_s() -> float:
    """Return the CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def measure(records: int, archives: int, folder: Path) -> dict[str, Any]:
    """The result document."""
    config = write_configuration(folder / "site", SHAPES["nested"], PARTITIONS)
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    each = max(1, records * bytes_of(SHAPES["nested"].make(SAMPLE_ROWS, 0)) // SAMPLE_ROWS // archives)
    # Archives are cut between segments, so each intake file has one small segment of each partition.
    document |= {
        "cleanup": {"compact_bytes": COMPACT_BYTES},
        "intake": {"delay_max_bytes": each * PARTITIONS},
        "archive": {"max_bytes": each},
    }
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    settings = load_settings(config, os.environ)
    clock = AheadClock()
    with Application(settings, os.environ, clock) as application:
        with application.intake.writer() as writer:
            raw_bytes = send(writer, records, SHAPES["nested"].make)
        archived = application.archiving.round(_silent).run(None, everything=True)
        assert archived.exit_code == 0, archived
        before = named(application)
        print(f"{records:,} records in {len(before):,} archives", file=sys.stderr, flush=True)
        sessions = SparkSessions(settings.spark, os.environ)
        spark = by_spark(sessions.session())
        many = [path for path, _ in before]
        timed = {"duckdb": [seconds_of(by_duckdb, many)], "spark": [seconds_of(spark, many)]}
        clock.ahead_s += 2 * DAY_S
        began, used = time.monotonic(), cpu_s()
        report = application.maintenance.cleaning(_silent).run()
        seconds, used = time.monotonic() - began, cpu_s() - used
        assert (report.error, report.findings) == (None, []), report.to_json()
        after = named(application)
        few = [path for path, _ in after]
        timed["duckdb"].append(seconds_of(by_duckdb, few))
        timed["spark"].append(seconds_of(spark, few))
        sessions.close()
        audit = application.maintenance.audit(None)
        assert audit["verdict"] == "valid", audit
    for name, ((_, was), (_, now)) in timed.items():
        assert was == now == (records, *was[1:]), (name, was, now)
    return {
        "what": "small archives of a day that is over are merged",
        "shape": "nested",
        "records": records,
        "raw_bytes": raw_bytes,
        "before": {"archives": len(before), "bytes": sum(size for _, size in before)},
        "after": {"archives": len(after), "bytes": sum(size for _, size in after)},
        "seconds": round(seconds, 1),
        "cpu_seconds": round(used, 1),
        "records_per_cpu_second": round(records / used),
        "queries": {
            name: {
                "before_seconds": was,
                "after_seconds": now,
                "faster": round(statistics.median(was) / statistics.median(now), 1),
            }
            for name, ((was, _), (now, _)) in timed.items()
        },
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {
            "python": platform.python_version(),
            "pyarrow": version("pyarrow"),
            "duckdb": version("duckdb"),
            "pyspark": version("pyspark"),
        },
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--archives", type=int, default=4000)
    parser.add_argument("--quick", action="store_true", help="twenty thousand records: a smoke test")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    records, archives = (20_000, 40) if options.quick else (options.records, options.archives)
    with tempfile.TemporaryDirectory(prefix="archiver-bench-") as folder:
        tell(measure(records, archives, Path(folder)), options.output)


if __name__ == "__main__":
    main()

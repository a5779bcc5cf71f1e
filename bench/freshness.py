"""Measures the time from a batch's acknowledgement until queries find all of it, and the CPU use of
an idle daemon.

A real `archiver serve` runs with a local folder, SQLite, and a table on a SQL catalog. Another
process sends Protobuf orders of 130 bytes with keys to 8 partitions through the library. It sends
batches at an even pace, each at its scheduled time. A reader loads the table by pyiceberg with a
pause of a quarter of a second and reads the manifests of each new snapshot. A batch is visible when
the bounds of `kafka.offset` in the snapshot's files reach its last offset in every partition. Times
are taken after the reader has read them. So they are too long by up to its poll interval
(`poll_s`), never too short. At the end the table must have as many records as were sent.

- `profiles`: three profiles of settings. `defaults` has the default settings, `eager` the settings
  of docs/operations/freshness.md. `upkeep` is `eager` with reconciling and cleaning each minute and
  an audit every 20 s; `cycles` counts their successful runs. Batches before the first snapshot,
  while Spark starts, and within `warm_up_s` after it are left out. Sending continues until all
  measured batches are visible. `oldest_s` is the age of the oldest batch in each snapshot; its
  slope over time shows whether archiving keeps up.
- `idle`: CPU of a daemon without traffic, with 1,000 topics and a table each, and with one.

A run replaces the requested parts of the result file and keeps the other parts.

    python -m bench.freshness [--parts eager upkeep defaults idle] [--seconds 300] [--rate 20000]
    [--idle-topics 1000] [--idle-seconds 60]
                              [--quick] [--output FILE]
"""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType

from bench import deployment
from bench.daemons import Cores, Sampler, Site, said
from bench.log import percentile
from bench.outcome import reported_before, tell
from bench.steady import Batch, Sender, send_batches
from tests.harness.flatness import theil_sen
from tests.support.process.scrapes import series

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/operations/freshness.md"
PARTITIONS = 8
BATCHES_PER_S = 10
POLL_S = 0.25
PATIENCE_S = 600.0
TARGET_P99_S = 15.0
TARGET_IDLE_CORES = 0.05
TABLE = "bench.orders"
JOBS = ("tick", "reconcile", "cleanup", "audit")
UPKEEP: dict[str, dict[str, str]] = {
    "cleanup": {"interval": "1m", "grace": "1m"},
    "daemon": {"audit_interval": "20s"},
}
"""The shortest intervals that the settings allow."""


@dataclass(frozen=True)
class Sizes:
    """Amount of work to measure."""

    seconds: float
    rate: int
    warm_up_s: float
    idle_topics: int
    idle_s: float
    idle_settled_s: float = 15.0
    """Seconds between the jobs of the start and the measurement; 0: wait for neither."""

    @property
    def reported(self) -> dict[str, float]:
        """Settings that all profiles of a result share."""
        return {"rate": self.rate, "seconds": self.seconds, "warm_up_s": self.warm_up_s}


def eager_archive() -> dict[str, Any]:
    """Return the group `archive` of the documentation page."""
    block = PAGE.read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
    return dict(yaml.safe_load(block)["archive"])


@dataclass
class Seen:
    """A snapshot, the time when it was seen, and the end offset of each partition in it."""

    at_s: float
    snapshot_id: int
    ends: dict[int, int]
    records: int


class Reader(Sampler):
    """Polls a table and records its snapshots."""

    def __init__(self, catalog: Catalog, identifier: str, poll_s: float) -> None:
        super().__init__("reader", poll_s)
        self._catalog, self._identifier = catalog, identifier
        self._known: set[str] = set()
        """Paths of manifests and data files that were seen."""
        self.seen: list[Seen] = [Seen(0.0, 0, {}, 0)]
        self.gaps_s: list[float] = []
        """Seconds between the ends of two polls."""
        self.error: Exception | None = None

    def until(self, ends: Mapping[int, int]) -> None:
        """Wait until the table has reached these end offsets."""
        until_s = time.monotonic() + PATIENCE_S
        while not reaches(self.seen[-1].ends, ends):
            assert self.error is None, self.error
            assert time.monotonic() < until_s, (
                f"{ends} is not visible within {PATIENCE_S:g} s, {self.seen[-1]} is"
            )
            time.sleep(self._every_s)

    def _run(self) -> None:
        self._before_s = time.monotonic()
        try:
            super()._run()
        except Exception as error:  # noqa: BLE001 - `until` raises it
            self.error = error

    def _look(self) -> None:
        self._read()
        now_s = time.monotonic()
        self.gaps_s.append(now_s - self._before_s)
        self._before_s = now_s

    def _read(self) -> None:
        try:
            table = self._catalog.load_table(self._identifier)
        except NoSuchTableError:
            return
        snapshot = table.current_snapshot()
        if snapshot is None or snapshot.snapshot_id == self.seen[-1].snapshot_id:
            return
        ends = dict(self.seen[-1].ends)
        fields = [table.schema().find_field(f"kafka.{name}").field_id for name in ("partition", "offset")]
        for file in self._new_files(table):
            partition, last = bound(file, IntegerType(), fields[0]), bound(file, LongType(), fields[1])
            ends[partition] = max(ends.get(partition, 0), last + 1)
        records = int(said(snapshot, "total-records"))
        self.seen.append(Seen(time.monotonic(), snapshot.snapshot_id, ends, records))

    def _new_files(self, table: Table) -> Iterable[DataFile]:
        """Yield the data files of the current snapshot that no earlier poll has seen."""
        snapshot = table.current_snapshot()
        assert snapshot is not None
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in self._known:
                continue
            self._known.add(manifest.manifest_path)
            for entry in manifest.fetch_manifest_entry(table.io):
                if entry.data_file.file_path not in self._known:
                    self._known.add(entry.data_file.file_path)
                    yield entry.data_file


def bound(file: DataFile, kind: Any, field_id: int) -> int:
    """Return the upper bound of a column in a file."""
    return int(from_bytes(kind, dict(file.upper_bounds or {})[field_id]))


def reaches(ends: Mapping[int, int], wanted: Mapping[int, int]) -> bool:
    """Return whether every partition has reached its required end offset."""
    return all(ends.get(partition, 0) >= end for partition, end in wanted.items())


@dataclass
class Delays:
    """Seconds from acknowledgement to visibility."""

    of_batch: list[float] = field(default_factory=list)
    oldest: list[tuple[float, float]] = field(default_factory=list)
    """By snapshot: when it was seen, and the longest delay of its batches."""


def delays(batches: Sequence[Batch], seen: Sequence[Seen]) -> Delays:
    """Return the delays of batches, all of which must be visible in the last snapshot of `seen`."""
    found = Delays()
    longest: dict[int, float] = {}
    for batch in batches:
        place = bisect_left(seen, True, key=lambda one: reaches(one.ends, batch.ends))
        waited_s = max(0.0, seen[place].at_s - batch.acknowledged_s)
        found.of_batch.append(waited_s)
        longest[place] = max(longest.get(place, 0.0), waited_s)
    found.oldest = [(seen[place].at_s, waited_s) for place, waited_s in sorted(longest.items())]
    return found


def profile(folder: Path, groups: Mapping[str, Any], sizes: Sizes) -> dict[str, Any]:
    """Measure one daemon under the steady load."""
    with (
        Site(folder, [deployment.topic("orders", PARTITIONS)], groups) as daemon,
        Reader(daemon.catalog(), TABLE, POLL_S) as reader,
        Sender(send_batches, daemon.deployment.config, "orders", sizes.rate, BATCHES_PER_S) as sender,
    ):
        reader.until({0: 1})
        time.sleep(sizes.warm_up_s)
        with Cores(daemon) as cores:
            began_s = time.monotonic()
            time.sleep(sizes.seconds)
            ended_s = time.monotonic()
        # Acknowledged records are in the log; the sender continues until the reader sees them.
        reader.until(logged(daemon))
        batches = sender.end()
        reader.until(batches[-1].ends)
        metrics = daemon.metrics()
        daemon.stop()
    measured = [batch for batch in batches if began_s <= batch.acknowledged_s < ended_s]
    found = delays(measured, reader.seen)
    whole = found.oldest[1:]  # the first one has batches from before the measurement
    assert reader.seen[-1].records == sizes.rate // BATCHES_PER_S * len(batches), (
        "the table does not have as many records as were sent"
    )
    p99_s = percentile(found.of_batch, 99)
    return {
        "archive": dict(groups.get("archive", {})),
        "batches": len(measured),
        "records": len(measured) * (sizes.rate // BATCHES_PER_S),
        "sent_late_s_max": round(max(batch.acknowledged_s - batch.due_s for batch in measured), 2),
        "visible_s": {
            "p50": round(percentile(found.of_batch, 50), 2),
            "p99": round(p99_s, 2),
            "max": round(max(found.of_batch), 2),
        },
        "snapshots": len(found.oldest),
        "oldest_s": [round(waited_s, 2) for _, waited_s in found.oldest],
        "oldest_slope_s_per_minute": round(60 * theil_sen(whole), 3) if len(whole) > 2 else None,
        "poll_s": {"p50": round(percentile(reader.gaps_s, 50), 3), "max": round(max(reader.gaps_s), 3)},
        "cores": cores.reported(),
        "cycles": {
            job: int(metrics.get(series("archiver_cycles_total", job=job, outcome="fine"), 0)) for job in JOBS
        },
        "p99_below_wanted": p99_s < TARGET_P99_S,
    }


def logged(daemon: Site) -> dict[int, int]:
    """Return the end offset of each partition, as reported by `archiver topics`."""
    done = daemon.deployment.run("topics", "describe", "orders", "--output", "json")
    assert done.code == 0, done.err
    return {item["partition"]: item["next"] for item in done.json()["partitions"]}


def idle(folder: Path, topics: int, sizes: Sizes) -> dict[str, Any]:
    """Return the CPU use of a daemon without traffic, with a table for each topic."""
    names = [f"idle-{number:04}" for number in range(topics)]
    with Site(folder, [deployment.topic(name, 1) for name in names], {}) as daemon:
        daemon.until_tables("bench", topics)
        if sizes.idle_settled_s:
            daemon.until("the jobs of the start are over", lambda: settled(daemon))
        time.sleep(sizes.idle_settled_s)
        with Cores(daemon) as cores:
            time.sleep(sizes.idle_s)
        daemon.stop()
    return {"topics": topics, "seconds": sizes.idle_s, "cores": cores.reported()}


def settled(daemon: Site) -> bool:
    """Return whether the first round, audit and cleaning have ended. They run at the start, and
    then every hour or less often.
    """
    time.sleep(1.0)
    metrics = daemon.metrics()
    return all(
        metrics.get(series("archiver_cycles_total", job=job, outcome="fine"), 0)
        for job in ("tick", "audit", "cleanup")
    )


def idles(root: Path, sizes: Sizes) -> dict[str, Any]:
    """Measure the idle daemon with many topics and with one."""
    many, one = (idle(root / f"idle-{topics}", topics, sizes) for topics in (sizes.idle_topics, 1))
    return {
        "many": many,
        "one": one,
        "wanted_cores": TARGET_IDLE_CORES,
        "reached": many["cores"]["all"] < TARGET_IDLE_CORES,
    }


def measure(sizes: Sizes, parts: Sequence[str], root: Path, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result document; parts that were not requested are copied from `known`."""
    eager = {"archive": eager_archive()}
    groups: dict[str, dict[str, Any]] = {"defaults": {}, "eager": eager, "upkeep": {**eager, **UPKEEP}}
    load = (
        os.getloadavg()[0]
        if set(parts) == set(PARTS)
        else max(os.getloadavg()[0], known.get("machine", {}).get("load_before", 0.0))
    )
    return {
        "what": "seconds from the acknowledgement of a batch until a reader of the table sees all of it, and "
        "the CPU of an idle daemon",
        **sizes.reported,
        "batches_per_s": BATCHES_PER_S,
        "partitions": PARTITIONS,
        "profiles": {
            **known.get("profiles", {}),
            **{name: profile(root / name, group, sizes) for name, group in groups.items() if name in parts},
        },
        "idle": idles(root, sizes) if "idle" in parts else known.get("idle"),
        "wanted_p99_s": TARGET_P99_S,
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "cores": os.cpu_count(),
            "load_before": load,
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("pyarrow", "pyiceberg", "pyspark")},
        },
    }


PARTS = ("eager", "upkeep", "defaults", "idle")
QUICK = Sizes(8.0, 200, 0.0, 3, 2.0, 0.0)


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--idle-topics", type=int, default=1000)
    parser.add_argument("--idle-seconds", type=float, default=60.0)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--quick", action="store_true", help="few records and topics, only the eager settings: a smoke test"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    sizes = Sizes(options.seconds, options.rate, 15.0, options.idle_topics, options.idle_seconds)
    sizes, parts = (QUICK, ("eager", "idle")) if options.quick else (sizes, options.parts)
    known = reported_before(options.output, ("profiles", "idle", "machine", *sizes.reported))
    if {name: known[name] for name in sizes.reported if name in known} not in ({}, sizes.reported):
        parser.error(
            f"{options.output} was measured with other sizes; measure all parts again, into another file"
        )
    with tempfile.TemporaryDirectory(prefix="bench-freshness-") as folder:
        tell(measure(sizes, parts, Path(folder), known), options.output)


if __name__ == "__main__":
    main()

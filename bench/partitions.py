"""Measures whether archiving keeps up with many partitions, and what 2,000 partitions cost compared
with 8.

- `many`: a real `archiver serve` with default settings, a local folder, SQLite, and a SQL catalog.
  It has 1,000 topics with 4 partitions and a table each. Another process sends one Protobuf order
  of 130 bytes a second to each partition through the library, one by one. The daemon's metrics are
  read every 15 s, as by Prometheus. They give the duration of round steps between two polls and the
  age of the oldest record in no table. Memory is sampled per process every 5 s. At the end the
  tables' snapshots must have as many records as were sent. No commit id may be in two snapshots of
  a table.
- `requests`: the same for fewer topics with the data in a bucket. A proxy in front of s3proxy
  counts requests, as in bench/requests.py. Counted are requests by kind, and per GiB of raw bytes,
  from the first record until all are in their tables.
- `one_topic`: the same records in one topic with 8 and with 2,000 partitions. Both are refined in
  turns on the same warm Spark session, from planning to stored archives. A ratio is of the same
  repetition. `archive_ms` is the CPU time of each additional archive. For comparison pyarrow and
  ptars alone, in one process, write as many files of consecutive rows with the options of archives.
- `one_topic_large`: the same with ten times the records, so that archives are as large as in
  production.

A run replaces the requested parts of the result file and keeps the other parts.

    python -m bench.partitions [--parts one_topic one_topic_large many requests] [--seconds 600] [--topics
    1000] [--records 2000000]
                               [--repetitions 3] [--request-topics 100] [--request-seconds 300] [--quick]
                               [--output FILE]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from archiver.config.settings import SparkSettings
from archiver.runtime.metric_names import ROUND_STEPS
from archiver.spark.session import SparkSessions
from bench import deployment
from bench.bare import refine_into_many
from bench.daemons import Cores, Memory, Site, said
from bench.limit import CORES, Refinement
from bench.outcome import reported_before, tell
from bench.processes import own_cpu_seconds
from bench.requests import GIB, KINDS, CountingProxy
from bench.shapes import SHAPES
from bench.steady import Sender, send_singly
from bench.writer import spread
from tests.support.objects.s3_server import PACKAGE, S3Server, data_group
from tests.support.process.scrapes import Series, series

PARTITIONS = 4
FEW, WIDE = 8, 2000
LARGER = 10
"""Factor of records for archives as large as in production."""
LOOK_S, MEMORY_S = 15.0, 5.0
TARGET_PLAN_S = 1.0
TARGET_RATIO = 2.2
TARGET_RATIO_LARGE = 1.5


@dataclass(frozen=True)
class Sizes:
    """Amount of work to measure."""

    topics: int
    seconds: float
    request_topics: int
    request_seconds: float
    records: int
    repetitions: int
    wide: int = WIDE
    groups: Mapping[str, Any] = field(default_factory=dict)
    """Configuration groups that override the defaults."""


@dataclass
class Looked:
    """One sample of the metrics."""

    at_s: float
    rounds: float
    steps: dict[str, float]
    oldest_s: float
    waiting: float
    """Records that are in no table."""


def names(count: int) -> list[str]:
    """Return topic names."""
    return [f"many-{number:04}" for number in range(count)]


def site(folder: Path, topics: Sequence[str], groups: Mapping[str, Any]) -> Site:
    """Return a daemon for these topics."""
    return Site(folder, [deployment.topic(name, PARTITIONS) for name in topics], groups)


def looked(metrics: Mapping[Series, float], at_s: float) -> Looked:
    """Return a sample from the metrics page."""
    return Looked(
        at_s,
        metrics[series("archiver_archive_rounds_total")],
        {step: metrics[series("archiver_archive_seconds_total", step=step)] for step in ROUND_STEPS},
        max(_committed(metrics, "archiver_lag_seconds"), default=0.0),
        _waiting(metrics),
    )


def _waiting(metrics: Mapping[Series, float]) -> float:
    """Return the number of records that are in no table."""
    return sum(_committed(metrics, "archiver_lag_records"))


def _committed(metrics: Mapping[Series, float], name: str) -> list[float]:
    """Return the lag of each topic's table."""
    return [
        value for (one, labels), value in metrics.items() if one == name and ("stage", "committed") in labels
    ]


def many(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Measure one daemon with many topics."""
    topics = names(sizes.topics)
    with site(folder, topics, sizes.groups) as daemon:
        began_s = time.monotonic()
        daemon.until_tables("bench", len(topics))
        made_s = time.monotonic() - began_s
        looks: list[Looked] = []
        with (
            Memory(daemon, MEMORY_S) as memory,
            Sender(send_singly, daemon.deployment.config, topics, PARTITIONS) as sender,
            Cores(daemon) as cores,
        ):
            began_s = time.monotonic()
            while (at_s := time.monotonic() - began_s) < sizes.seconds:
                looks.append(looked(daemon.metrics(), at_s))
                time.sleep(min(LOOK_S, max(0.0, began_s + sizes.seconds - time.monotonic())))
            looks.append(looked(daemon.metrics(), time.monotonic() - began_s))
            sent = sender.end()
        ended_s = time.monotonic()
        records = int(sent["records"])
        daemon.until("all records are in their tables", lambda: _in_tables(daemon, topics) == records)
        rest_s = time.monotonic() - ended_s
        after = looked(daemon.metrics(), time.monotonic() - began_s)
        commits = _commits(daemon, topics)
        daemon.stop()
    rounds = [
        {
            "at_s": round(one.at_s),
            "rounds": round(one.rounds - earlier.rounds),
            **{
                step: round(
                    (one.steps[step] - earlier.steps[step]) / max(1.0, one.rounds - earlier.rounds), 6
                )
                for step in ROUND_STEPS
            },
        }
        for earlier, one in zip(looks, [*looks[1:], after], strict=True)
        if one.rounds > earlier.rounds
    ]
    return {
        "topics": len(topics),
        "partitions": PARTITIONS,
        "sent": {name: round(value, 2) for name, value in sent.items()},
        "tables_made_s": round(made_s, 1),
        "oldest_s": [(round(one.at_s), round(one.oldest_s, 1)) for one in looks],
        "waiting_records": [(round(one.at_s), round(one.waiting)) for one in looks],
        "in_tables_after_the_end_s": round(rest_s, 1),
        "round_steps_s": rounds,
        "plan_s_max": max(one["plan"] for one in rounds),
        "commits": commits,
        "cores": cores.reported(),
        "memory": memory.reported(),
        "planning_below_wanted": max(one["plan"] for one in rounds) < TARGET_PLAN_S,
    }


def _in_tables(daemon: Site, topics: Sequence[str]) -> int:
    """Return the rows of all tables, by their snapshots; -1 while records are waiting."""
    time.sleep(1.0)
    if _waiting(daemon.metrics()):
        return -1
    catalog, rows = daemon.catalog(), 0
    for topic in topics:
        snapshot = catalog.load_table(f"bench.{topic}").current_snapshot()
        rows += 0 if snapshot is None else int(said(snapshot, "total-records"))
    return rows


def _commits(daemon: Site, topics: Sequence[str]) -> dict[str, Any]:
    """Return counts of snapshots and commits of the tables."""
    catalog, counts, twice = daemon.catalog(), [], 0
    for topic in topics:
        ids = [
            said(snapshot, "archiver.commit-id")
            for snapshot in catalog.load_table(f"bench.{topic}").metadata.snapshots
        ]
        counts.append(len(ids))
        twice += len(ids) - len(set(ids))
    metrics = daemon.metrics()
    count, total_s = (metrics[series(f"archiver_commit_seconds_{one}")] for one in ("count", "sum"))
    return {
        "of_a_table": {"min": min(counts), "max": max(counts)},
        "rounds": round(metrics[series("archiver_archive_rounds_total")]),
        "twice_in_a_round": twice,
        "count": round(count),
        "seconds_each": round(total_s / count, 4),
    }


def requests(folder: Path, sizes: Sizes, server: S3Server, proxy: CountingProxy) -> dict[str, Any]:
    """Measure the requests of a daemon with the data in a bucket."""
    data = data_group(folder, server.new_bucket(), proxy.uri, "bench")
    topics = names(sizes.request_topics)
    with site(folder, topics, {**sizes.groups, "data": data}) as daemon:
        daemon.until_tables("bench", len(topics))
        with Sender(send_singly, daemon.deployment.config, topics, PARTITIONS) as sender:
            proxy.taken()
            time.sleep(sizes.request_seconds)
            records = int(sender.end()["records"])
        daemon.until("all records are archived", lambda: _archived(daemon, records))
        taken = proxy.taken()
        raw_bytes = _total(daemon, "archiver_archive_raw_bytes_total")
        daemon.stop()
    return {
        "topics": len(topics),
        "records": records,
        "raw_bytes": raw_bytes,
        **taken,
        "per_gib": {one: round(taken[one] * GIB / raw_bytes) for one in (*KINDS, "requests")},
    }


def requests_counted(root: Path, sizes: Sizes) -> dict[str, Any]:
    """Measure the requests with a new object store server."""
    with S3Server(root / "s3") as server, CountingProxy(server) as proxy:
        return requests(root / "requests", sizes, server, proxy)


def _archived(daemon: Site, records: int) -> bool:
    time.sleep(1.0)
    return _waiting(daemon.metrics()) == 0 and _total(daemon, "archiver_archive_records_total") == records


def _total(daemon: Site, name: str) -> int:
    return round(sum(value for (one, _), value in daemon.metrics().items() if one == name))


def one_topic(
    folder: Path, records: int, repetitions: int, wide: int, ratio_max: float = TARGET_RATIO
) -> dict[str, Any]:
    """Refine the same records in few partitions and in many."""
    sessions = SparkSessions(SparkSettings(master=f"local[{CORES}]"), os.environ)
    spent: dict[int, list[tuple[float, float]]] = {FEW: [], wide: []}
    alone: dict[int, list[float]] = {FEW: [], wide: []}
    try:
        runs = {
            count: Refinement(SHAPES["nested"], records, folder / str(count), sessions, count)
            for count in spent
        }
        for repetition in range(-1, repetitions):
            for count, run in runs.items():
                before, began = own_cpu_seconds(), time.perf_counter()
                run.on_spark()
                taken = own_cpu_seconds() - before, time.perf_counter() - began
                run.clear()
                libraries = _by_libraries(runs[FEW].paths, folder / "libraries", records // count)
                if repetition >= 0:  # the first run warms up
                    spent[count].append(taken)
                    alone[count].append(libraries)
    finally:
        sessions.close()
    ratios = [
        [one[at] / other[at] for one, other in zip(spent[wide], spent[FEW], strict=True)] for at in (0, 1)
    ]
    further_s = [one[0] - other[0] for one, other in zip(spent[wide], spent[FEW], strict=True)]
    further_alone_s = [one - other for one, other in zip(alone[wide], alone[FEW], strict=True)]
    return {
        "records": records,
        "partitions": list(spent),
        "repetitions": repetitions,
        **{
            f"records_per_core_second_{count}": spread([records / cpu for cpu, _ in taken])
            for count, taken in spent.items()
        },
        "slower_by_cpu": spread(ratios[0]),
        "slower_by_the_clock": spread(ratios[1]),
        "archive_ms": spread([1000 * seconds / (wide - FEW) for seconds in further_s]),
        "libraries_slower_by_cpu": spread(
            [one / other for one, other in zip(alone[wide], alone[FEW], strict=True)]
        ),
        "libraries_file_ms": spread([1000 * seconds / (wide - FEW) for seconds in further_alone_s]),
        "stored_bytes": {str(count): run.stored_bytes for count, run in runs.items()},
        "wanted_ratio": ratio_max,
        "reached": spread(ratios[1])["median"] <= ratio_max,
    }


def _by_libraries(paths: list[str], folder: Path, rows: int) -> float:
    """Return the CPU seconds of pyarrow and ptars alone, with one file per `rows` rows."""
    folder.mkdir()
    began_s = time.process_time()
    refine_into_many(SHAPES["nested"].handler(), paths, folder, rows)
    spent_s = time.process_time() - began_s
    shutil.rmtree(folder)
    return spent_s


def measure(sizes: Sizes, parts: Sequence[str], root: Path, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result document; parts that were not requested are copied from `known`."""
    found = dict(known)
    work: dict[str, Callable[[], dict[str, Any]]] = {
        "one_topic": lambda: one_topic(root / "one", sizes.records, sizes.repetitions, sizes.wide),
        "one_topic_large": lambda: one_topic(
            root / "large", LARGER * sizes.records, sizes.repetitions, sizes.wide, TARGET_RATIO_LARGE
        ),
        "many": lambda: many(root / "many", sizes),
        "requests": lambda: requests_counted(root, sizes),
    }
    for part in parts:
        load = os.getloadavg()[0]
        found[part] = work[part]() | {"load_before": round(load, 1)}
    return {
        "what": "many topics and partitions at a record a second each, and one topic with 2,000 partitions "
        "beside 8",
        **found,
        "wanted_plan_s": TARGET_PLAN_S,
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {
            "python": platform.python_version(),
            "s3proxy": PACKAGE.split(":")[2],
            **{name: version(name) for name in ("pyarrow", "pyiceberg", "pyspark")},
        },
    }


PARTS = ("one_topic", "one_topic_large", "many", "requests")
QUICK = Sizes(
    topics=3,
    seconds=6.0,
    request_topics=2,
    request_seconds=4.0,
    records=20_000,
    repetitions=1,
    wide=100,
    groups={
        "archive": {"tick": "1s", "start_delay_max": "500ms", "complete_delay_max": "2s", "idle_max": "1s"}
    },
)


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--request-topics", type=int, default=100)
    parser.add_argument("--request-seconds", type=float, default=300.0)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--quick", action="store_true", help="small sizes and short delays: a smoke test")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if options.records % WIDE or options.records % FEW:
        parser.error(f"--records must be a multiple of {FEW} and of {WIDE}")
    sizes = Sizes(
        options.topics,
        options.seconds,
        options.request_topics,
        options.request_seconds,
        options.records,
        options.repetitions,
    )
    with tempfile.TemporaryDirectory(prefix="bench-partitions-") as folder:
        known = reported_before(options.output, PARTS)
        tell(measure(QUICK if options.quick else sizes, options.parts, Path(folder), known), options.output)


if __name__ == "__main__":
    main()

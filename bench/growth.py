"""Measures whether costs grow with the age of a deployment: each figure at several ages, and the
last by the first.

*Tables* (bench/growth_table.py) get archives of 1 or of 200 partitions with each commit. The first
tests many commits (10,000). The second tests many archives in the ledger and entries in manifests
(a million). A window is the 100 commits from an age on. Measured per commit:

- requests to the file system, and bytes read and written in the metadata folder;
- wall and CPU time of the commit, of its ledger entries, of the round's check of the table
  before it, and of planning.

Rare work (merging manifests) may fall outside a window, so `between` has the means from one window
to the next. Each window also reports:

- retained state (snapshots, manifests, the metadata file, the ledger's checkpoint);
- the time in which a new process reads both logs;
- the fast audit of the whole table, in manifest entries per second.

Machine speed varies from minute to minute. So in each later window every commit to the old table is
followed by one to a young table. The young table is then between its own first and second hundred
commits. Times are compared with those of the young table.

Commits follow each other without pauses. The committer sees snapshots with ages as if `--cadence`
seconds were between them. The default is 10 s, the fastest commit interval of a daemon with default
settings. Without this it would retain every snapshot of the run, because it keeps young ones.

*The intake log* is filled with up to 100,000 entries of 20 segments over 400 partitions, without
archiving. Measured is how long a new process takes to read it, to inspect every partition, and to
plan a round. Each measurement is taken at its most expensive point, just before a checkpoint is
due.

Tables and log are measured at the same time, each in its own process. After `--minutes` the tables
start no commit except those of a last window. So a curve may end early; the result says where. A
run keeps the parts of the file that were not requested.

    python -m bench.growth [--quick] [--parts tables intake] [--tables 1:10000 200:5000] [--entries 100000]
    [--minutes 600]
                           [--output bench/results/growth.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from archiver.config.groups import LogSettings
from bench.growth_looks import looked
from bench.growth_table import CADENCE_S, Costs, Table, Template, new_table, template
from bench.outcome import reported_before, tell
from tests.support.log.log_filling import PARTITIONS, SEGMENTS, LongLog, entries

AGES = (100, 300, 1000, 3000, 10_000, 30_000, 100_000)
"""Commits of a table, or entries of a log. The requested last age follows those below it."""
WINDOW = 100
CLOSELY = 7
"""One of so many rounds of a window checks the table and plans; the others do not need it. The cost of
planning depends on the paths that the epoch has used. The number does not divide the rounds of an epoch, so
that the number of paths varies."""
ENTRIES_MIN = 1000
"""The intake log begins with entries that declare the topic and open producers."""
STEP = 2500
"""Entries added to the intake log at a time."""
TARGET = {"bytes": 1.2, "requests": 1.2, "p50": 1.5}
"""Largest allowed ratio of a later window to the first."""
TARGET_ENTRIES_PER_S = 5000
"""Fast audit of the oldest table, per CPU second: it has one thread and shares the cores with other work."""


@dataclass(frozen=True)
class Sizes:
    """Amount of work to measure."""

    tables: Mapping[int, int]
    """Age of the last window, by number of partitions."""
    first: int
    """Age of the first window."""
    window: int
    entries: int
    cadence_s: float
    seconds: float


def ages(first: int, last: int) -> list[int]:
    """Return the ages at which the measurements are taken."""
    return sorted({first, *(age for age in AGES if first < age < last), last})


def run(partitions: int, sizes: Sizes) -> dict[str, Any]:
    """Measure one table from its first commit to the last window."""
    made, ends_s = template(), time.monotonic() + sizes.seconds
    windows: dict[int, Any] = {}
    with new_table(partitions, made, sizes.cadence_s, whole=True) as table:
        done, between = 0, Costs()
        for start in ages(sizes.first, sizes.tables[partitions]):
            while done < start and (done < sizes.first or time.monotonic() < ends_s):
                table.commit([between])
                done += 1
            inside, young = _window(table, between, made, sizes, alone=not windows)
            found = {
                "window": inside.figures(),
                "young": young.figures(),
                "between": between.figures(),
                "then": table.standing(),
            }
            found["restart"] = looked("restart", table.folder, partitions)
            found["audit"] = looked("audit", table.folder, partitions)
            print(f"{partitions} partitions, {done} commits: {found}", file=sys.stderr, flush=True)
            windows[done] = found
            early = done < start
            done += sizes.window
            between = Costs()
            if early:
                break
    return {
        "partitions": partitions,
        "windows": windows,
        "growth": growth(windows),
        "curves": curves(windows, TABLE_CURVES),
    }


def _window(
    table: Table, between: Costs, made: Template, sizes: Sizes, *, alone: bool
) -> tuple[Costs, Costs]:
    """Measure a window of commits. Each is followed by one to a young table, unless the table
    itself is young (`alone`).
    """
    inside, young = Costs(), Costs()
    if alone:
        for number in range(sizes.window):
            table.commit([inside, between], closely=number % CLOSELY == 0)
        return inside, inside
    with new_table(table.partitions, made, sizes.cadence_s, whole=True) as alongside:
        for _ in range(sizes.first):
            alongside.commit([])
        for number in range(sizes.window):
            table.commit([inside, between], closely=number % CLOSELY == 0)
            alongside.commit([young], closely=number % CLOSELY == 0)
    return inside, young


def growth(windows: Mapping[int, Any]) -> dict[str, Any]:
    """Return the factor by which each figure grew, in the worst of the later windows, and whether
    targets are met.

    Sizes are compared with the first window, times with the young table measured at the same time.
    """
    first = next(iter(windows.values()))["window"]
    later = list(windows.values())[1:] or list(
        windows.values()
    )  # the time may have ended at the first window
    costs = [one[kind] for one in later for kind in ("window", "between")]
    times = {
        "bytes": max(_bytes(one) for one in costs) / _bytes(first),
        "requests": max(one["requests"] for one in costs) / first["requests"],
    }
    for name in ("p50", "cpu_p50", "ledger_cpu_p50", "look_cpu_p50", "plan_cpu_p50"):
        times[name] = max(one["window"][f"{name}_ms"] / one["young"][f"{name}_ms"] for one in later)
    shown: dict[str, Any] = {name: round(value, 3) for name, value in times.items()}
    audited = later[-1]["audit"]["entries_per_cpu_s"]
    return shown | {
        "reached": all(times[name] <= limit for name, limit in TARGET.items()),
        "audit_entries_per_cpu_s": audited,
        "audit_reached": audited >= TARGET_ENTRIES_PER_S,
    }


def _bytes(figures: Mapping[str, float]) -> float:
    return figures["bytes_read"] + figures["bytes_written"]


def _by_young(name: str) -> Callable[[Any], float]:
    return lambda one: one["window"][name] / one["young"][name]


TABLE_CURVES: dict[str, Callable[[Any], float]] = {
    "archives": lambda one: one["then"]["archives"],
    "commit_cpu_by_young": _by_young("cpu_p50_ms"),
    "commit_by_young": _by_young("p50_ms"),
    "ledger_cpu_by_young": _by_young("ledger_cpu_p50_ms"),
    "look_cpu_by_young": _by_young("look_cpu_p50_ms"),
    "plan_cpu_by_young": _by_young("plan_cpu_p50_ms"),
    "commit_cpu_ms": lambda one: one["window"]["cpu_p50_ms"],
    "plan_cpu_ms": lambda one: one["window"]["plan_cpu_p50_ms"],
    "bytes_per_commit": lambda one: _bytes(one["window"]),
    "bytes_per_commit_between": lambda one: _bytes(one["between"]),
    "requests_per_commit": lambda one: one["window"]["requests"],
    "metadata_file_bytes": lambda one: one["then"]["metadata_file_bytes"],
    "manifests": lambda one: one["then"]["manifests"],
    "manifest_bytes_per_entry": lambda one: one["then"]["manifest_bytes"] / one["then"]["manifest_entries"],
    "checkpoint_bytes": lambda one: one["then"]["checkpoint_bytes"],
    "metadata_store_bytes": lambda one: one["then"]["metadata_store_bytes"],
    "restart_cpu_s": lambda one: one["restart"]["ledger_cpu_s"] + one["restart"]["intake_cpu_s"],
    "restart_mib": lambda one: one["restart"]["peak_mib"],
    "audit_s": lambda one: one["audit"]["s"],
    "audit_entries_per_s": lambda one: one["audit"]["entries_per_s"],
    "audit_entries_per_cpu_s": lambda one: one["audit"]["entries_per_cpu_s"],
    "audit_mib": lambda one: one["audit"]["peak_mib"],
}
INTAKE_CURVES: dict[str, Callable[[Any], float]] = {
    "restart_cpu_s": lambda one: one["restart_cpu_s"],
    "restart_mib": lambda one: one["peak_mib"],
    "first_look_cpu_s": lambda one: one["first_look_cpu_s"],
    "look_cpu_s": lambda one: one["look_cpu_s"],
    "plan_cpu_s": lambda one: one["plan_cpu_s"],
    "plan_us_per_segment": lambda one: 1e6 * one["plan_cpu_s"] / one["plan_segments"],
    "metadata_store_bytes": lambda one: one["metadata_store_bytes"],
}


def curves(points: Mapping[int, Any], named: Mapping[str, Callable[[Any], float]]) -> dict[str, Any]:
    """Return each figure at each age, and the ratio of the last to the first and to the one about a
    tenth as old.
    """
    first, last_age = min(points), max(points)
    decade = min(points, key=lambda age: abs(age - last_age / 10))
    found = {}
    for name, of in named.items():
        values = {age: of(point) for age, point in points.items()}
        last = values[last_age]
        found[name] = {
            "points": {age: round(value, 4) for age, value in values.items()},
            "last_by_first": round(last / values[first], 3) if values[first] else None,
            "last_by_a_tenth": round(last / values[decade], 3) if values[decade] else None,
        }
    return found


def intake(sizes: Sizes) -> dict[str, Any]:
    """Measure a log that grows while nothing is archived."""
    settings, points = LogSettings(), dict[int, Any]()
    with tempfile.TemporaryDirectory(prefix="bench-growth-") as name:
        made, living, filled = entries(seed=7), LongLog(Path(name), settings), 0
        for age in ages(ENTRIES_MIN, sizes.entries):
            # Logs longer than a checkpoint interval end just before the next checkpoint.
            wanted = (
                age
                if age < settings.checkpoint_entries
                else age // settings.checkpoint_entries * settings.checkpoint_entries - 1
            )
            while filled < wanted:
                step = min(STEP, wanted - filled)
                living.fill(made, step)
                filled += step
                living.sequencer.refresh()
                living.checkpointer.run_if_due()
            points[filled] = looked("behind", Path(name), PARTITIONS)
            print(f"{filled} entries: {points[filled]}", file=sys.stderr, flush=True)
        living.close()
    return {
        "segments_per_entry": SEGMENTS,
        "partitions": PARTITIONS,
        "points": points,
        "curves": curves(points, INTAKE_CURVES),
    }


PARTS = ("tables", "intake")


def measure(sizes: Sizes, parts: Sequence[str], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result document; parts that were not requested are copied from `known`."""
    found = {part: known[part] for part in PARTS if part in known}
    with ProcessPoolExecutor(len(sizes.tables) + 1, get_context("spawn")) as pool:
        log = pool.submit(intake, sizes) if "intake" in parts else None
        tables = (
            [pool.submit(run, partitions, sizes) for partitions in sizes.tables] if "tables" in parts else []
        )
        if tables:
            found["tables"] = [one.result() for one in tables]
        if log is not None:
            found["intake"] = log.result()
    return {
        "what": "what a round, a restart and an audit cost at several ages of a table, and a restart and a "
        "round behind a long intake log",
        "cadence_s": sizes.cadence_s,
        "window_commits": sizes.window,
        "wanted": TARGET | {"audit_entries_per_cpu_s": TARGET_ENTRIES_PER_S},
        **found,
        "load": max(
            round(os.getloadavg()[0], 1), 0.0 if set(parts) == set(PARTS) else known.get("load", 0.0)
        ),
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {
            "python": platform.python_version(),
            "pyiceberg": version("pyiceberg"),
            "sqlite": sqlite3.sqlite_version,
        },
    }


def _tables(texts: Sequence[str]) -> dict[int, int]:
    return {int(partitions): int(commits) for partitions, commits in (text.split(":") for text in texts)}


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few commits: a smoke test, the figures mean little"
    )
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument(
        "--tables",
        nargs="+",
        default=["1:10000", "200:5000"],
        help="partitions:commits; the last window begins at that commit",
    )
    parser.add_argument("--entries", type=int, default=AGES[-1], help="entries of the intake log")
    parser.add_argument(
        "--minutes", type=float, default=600, help="minutes after which the tables start their last window"
    )
    parser.add_argument(
        "--cadence",
        type=float,
        default=CADENCE_S,
        help="seconds between commits, by the ages of the snapshots",
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    sizes = Sizes(
        _tables(options.tables), AGES[0], WINDOW, options.entries, options.cadence, 60 * options.minutes
    )
    if options.quick:
        sizes = Sizes({1: 27, 3: 27}, 5, 3, 1100, options.cadence, sizes.seconds)
    tell(measure(sizes, options.parts, reported_before(options.output, (*PARTS, "load"))), options.output)


if __name__ == "__main__":
    main()

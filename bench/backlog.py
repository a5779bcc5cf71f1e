"""Measures what a backlog of archives that wait for one commit costs: fold memory, commit CPU time,
and manifest read time.

The backlogs have 200 and 2,000 archives (`archive.pending_files_max` by default). Each goes into a
new table on a SQL catalog in SQLite, with metadata on a local disk. Each measurement is repeated to
show a spread. Measured:

- bytes that the fold of the ledger keeps for each pending archive, before and after its column
  description is decoded;
- CPU time of the commit;
- CPU time to read the new manifests, by pyiceberg's compiled reader (fast audit) and by the
  project's own reader (deep audit).

    python -m bench.backlog [--quick] [--output bench/results/backlog.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from archiver.catalog.table_layout import stream_fields
from archiver.ledger.leader import Leader
from archiver.ledger.views import TopicLedger
from bench.growth_table import IDENTIFIER, Costs, Table, new_table, template
from bench.outcome import tell
from reconcile.snapshot.manifests import snapshot_files

FILES = (200, 2000)
ROUNDS = 5


def spread(values: Sequence[float], digits: int) -> dict[str, float]:
    """Return minimum, median and maximum, rounded to `digits`."""
    return {
        name: round(of(values), digits)
        for name, of in (("min", min), ("median", statistics.median), ("max", max))
    }


def cpu_s(work: Callable[[], object]) -> float:
    """Return the CPU seconds of all threads of this process during `work`."""
    began = time.process_time()
    work()
    return time.process_time() - began


def kept_bytes(reader: Leader, files: int) -> tuple[float, float]:
    """Return the bytes that the fold of a new reader keeps per pending archive, before and after
    decoding its description.
    """
    tracemalloc.start()
    try:
        reader.refresh()
        folded, _ = tracemalloc.get_traced_memory()
        (topic,) = (one for one in reader.fold.topics.values() if one.pending)
        described = _described(topic)
        looked, _ = tracemalloc.get_traced_memory()
        assert described == files
    finally:
        tracemalloc.stop()
    return folded / files, looked / files


def _described(topic: TopicLedger) -> int:
    return sum(item.data_file is not None for item in topic.pending)


def one_round(table: Table, files: int) -> dict[str, float]:
    """Write `files` archives, commit them, read the table's manifests, and return the costs."""
    written, costs = table.write(), Costs()
    folded, looked = kept_bytes(table.reader(), files)
    table.commit([costs], written)
    view = table.tables.load(IDENTIFIER)
    assert view is not None
    fields = stream_fields(view.schema_json)

    def read(path: str) -> bytes:
        return Path(path.removeprefix("file://")).read_bytes()

    # Not counted: the first use of each reader fills its caches.
    assert len(list(table.tables.live_files(view))) == files
    assert len(snapshot_files(read, view.metadata_location, view.snapshot_id, fields).data) == files
    library = cpu_s(lambda: list(table.tables.live_files(view)))
    ours = cpu_s(lambda: snapshot_files(read, view.metadata_location, view.snapshot_id, fields))
    (commit,) = costs.commit_cpu_s
    return {
        "folded_bytes": folded,
        "described_bytes": looked,
        "commit_cpu_s": commit,
        "library_cpu_s": library,
        "ours_cpu_s": ours,
    }


def run(files: int, rounds: int) -> dict[str, Any]:
    """Measure `rounds` backlogs of `files` archives each and return the figures of the case."""
    made = template()
    found: list[dict[str, float]] = []
    for _ in range(rounds):
        with new_table(files, made) as table:
            found.append(one_round(table, files))
        print(f"{files} archives: {found[-1]}", file=sys.stderr, flush=True)
    document: dict[str, Any] = {
        "files": files,
        "columns_with_bounds": len(made.file.data_file.lower_bounds or {}),
    }
    for name in found[0]:
        document[name] = spread([one[name] for one in found], 0 if name.endswith("bytes") else 3)
    document["ours_by_library"] = spread([one["ours_cpu_s"] / one["library_cpu_s"] for one in found], 2)
    return document


def measure(files: Sequence[int], rounds: int) -> dict[str, Any]:
    """The result document."""
    return {
        "what": "archives that wait for one commit: bytes each in the fold, CPU seconds of the commit and of "
        "reading its manifests",
        "rounds": rounds,
        "cases": [run(one, rounds) for one in files],
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "pyiceberg": version("pyiceberg")},
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few archives: a smoke test, the figures mean little"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    document = measure((3, 12), 2) if options.quick else measure(FILES, ROUNDS)
    tell(document, options.output)


if __name__ == "__main__":
    main()

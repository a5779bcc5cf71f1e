"""Measures stored bytes and object counts, which docs/operations/capacity.md uses for sizing. It
measures no times.

- `intake`: one flush of records of 146 bytes (*Intake writer* in docs/performance.md). Partitions
  and records per partition vary. Reported are the bytes of the file and of its intake log entry,
  and the number of created objects.
- `ledger`: rounds on one table, each with one archive of every partition (made by
  bench/growth_table.py). Reported are the bytes of control log entries per round, by entry type.
  Each archive has bounds of 12 columns.

    python -m bench.capacity [--quick] [--output bench/results/capacity.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from archiver.config.groups import IntakeSettings
from archiver.proto import control_log_pb2
from bench.growth_table import Table, Template, new_table, template
from bench.intake import raw_bytes_of, rig, send_and_wait, spread_over
from bench.outcome import tell
from bench.writer import make_records

SEGMENTS = (1, 20, 100, 1000)
RECORDS = (1, 10, 100)
"""Per segment."""
ARCHIVES = (1, 10, 100)
"""Per round."""
ROUNDS = 20
BATCH = 1000
"""Entries per read."""


def flush_of(segments: int, records: int) -> dict[str, Any]:
    """Return file and entry bytes of one flush. The log entry that declares the topic is not
    counted.
    """
    made = make_records(segments * records)
    with rig(segments, IntakeSettings()) as it:
        send_and_wait(it.writer, spread_over(made, segments))
        declared, *entries = [size for _, _, size in it.log.spans]
        files = [size for _, _, size in it.objects.spans]
    assert declared > 0
    return {
        "segments": segments,
        "records_per_segment": records,
        "raw_bytes": raw_bytes_of(made),
        "files": len(files),
        "file_bytes": sum(files),
        "entry_bytes": sum(entries),
        "entry_bytes_per_segment": round(sum(entries) / segments, 1),
        "file_by_raw": round(sum(files) / raw_bytes_of(made), 3),
    }


def sizes_of(table: Table, first: int) -> Counter[str]:
    """Return the bytes of control log entries from index `first` on, by entry type."""
    found: Counter[str] = Counter()
    log = table.control()
    while entries := log.read(first)[:BATCH]:
        for entry in entries:
            found[str(control_log_pb2.ControlEntry.FromString(entry.data).WhichOneof("body"))] += len(
                entry.data
            )
        first += len(entries)
    return found


def rounds_of(archives: int, rounds: int, made: Template) -> dict[str, Any]:
    """Return entries and bytes per round. The first round is not counted, because it also writes
    the event schemas once.
    """
    with new_table(archives, made) as table:
        table.commit([])
        first = table.control().tail()
        for _ in range(rounds):
            table.commit([])
        entries, by_body = table.control().tail() - first, sizes_of(table, first)
    total = sum(by_body.values())
    return {
        "archives": archives,
        "rounds": rounds,
        "entries_per_round": entries / rounds,
        "bytes_per_round": round(total / rounds),
        "bytes_per_archive": round(total / rounds / archives),
        "bytes_by_body": {body: round(size / rounds) for body, size in sorted(by_body.items())},
    }


def measure(
    segments: Sequence[int], records: Sequence[int], archives: Sequence[int], rounds: int
) -> dict[str, Any]:
    """The result document."""
    made = template()
    ledger = [rounds_of(one, rounds, made) for one in archives]
    least, most = ledger[0], ledger[-1]
    each = (most["bytes_per_round"] - least["bytes_per_round"]) / (most["archives"] - least["archives"])
    return {
        "what": "bytes and objects of a flush and of a round",
        "intake": {f"{one}x{many}": flush_of(one, many) for one in segments for many in records},
        "ledger": {
            "bounds_of_columns": len(made.file.data_file.lower_bounds or {}),
            "cases": {str(case["archives"]): case for case in ledger},
            "bytes_each_further_archive": round(each),
            "bytes_each_round": round(least["bytes_per_round"] - each),
        },
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "pyarrow": version("pyarrow")},
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes: a smoke test")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    document = (
        measure((1, 20), (10,), (1, 3), 2) if options.quick else measure(SEGMENTS, RECORDS, ARCHIVES, ROUNDS)
    )
    tell(document, options.output)
    print(f"{len(document['intake'])} flushes, {len(document['ledger']['cases'])} tables", file=sys.stderr)


if __name__ == "__main__":
    main()

"""Measures how long a new process takes to start on, audit or plan a deployment that
bench/growth.py has filled.

    python -m bench.growth_looks {restart,audit,behind} FOLDER PARTITIONS

prints one JSON document: wall times, CPU times, peak memory, and memory after the imports.

- `restart`: read both logs, each from its newest checkpoint, until a round could begin;
- `audit`: the fast audit, as the command does it;
- `behind`: read the intake log, inspect every partition twice, and plan one round of the backlog.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from archiver.catalog.iceberg.adapter import IcebergTables
from archiver.config.groups import LogSettings
from archiver.config.settings import ArchiveSettings
from archiver.ledger.fold import LedgerFold
from archiver.objects.local import LocalObjectStore
from archiver.refine.planner import RoundLimits, choose_plans, has_work
from archiver.refine.prepare_topic import TopicWork
from archiver.runtime.clock import SystemClock
from archiver.runtime.ids import SystemIds
from archiver.schema.evolution.state import decide
from archiver.schema.protobuf.descriptors import Source
from bench.growth_table import (
    MEMORY_BYTES,
    TOPIC,
    Stopwatch,
    catalog_properties,
    new_leader,
    new_sequencer,
    open_logs,
    topic_settings,
)
from bench.intake_files import CLUSTER
from bench.orders import descriptor_set
from intake.log.backlog import Backlog
from reconcile.audit.report import Audit
from tests.support.log.log_filling import LongLog, peak_bytes

REPOSITORY = Path(__file__).resolve().parents[1]
TIMEOUT_S = 1800
_MIB = 2**20


def looked(what: str, folder: Path, partitions: int) -> dict[str, Any]:
    """Run one of these measurements in a new process and return its document."""
    command = [sys.executable, "-m", "bench.growth_looks", what, str(folder), str(partitions)]
    done = subprocess.run(
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def restart(folder: Path, _: int) -> dict[str, Any]:
    """Read both logs of a table's deployment, each from its newest checkpoint."""
    logs, objects, clock = open_logs(folder), LocalObjectStore(folder / "data"), SystemClock()
    ledger, intake = Stopwatch(), Stopwatch()
    with ledger:
        leader = new_leader(logs.log("control"), objects, clock)
        leader.refresh()
    with intake:
        sequencer = new_sequencer(logs.log("intake"), objects, clock)
        sequencer.refresh()
    return {
        "entries": leader.fold.next_index,
        "entries_read": leader.fold.next_index - leader.checkpoint_index,
        "ledger_s": round(ledger.wall_s, 3),
        "ledger_cpu_s": round(ledger.cpu_s, 3),
        "intake_cpu_s": round(intake.cpu_s, 3),
    }


def audit(folder: Path, partitions: int) -> dict[str, Any]:
    """Audit the whole table by its manifests."""
    logs, objects, clock = open_logs(folder), LocalObjectStore(folder / "data"), SystemClock()
    tables = IcebergTables("bench", catalog_properties(folder), SystemIds())
    leader = new_leader(logs.log("control"), objects, clock)
    sequencer = new_sequencer(logs.log("intake"), objects, clock)

    def ledger() -> LedgerFold:
        leader.refresh()
        return leader.fold

    watch = Stopwatch()
    with watch:
        document: Any = Audit(objects, CLUSTER, lambda _: tables, [topic_settings(partitions)], clock).run(
            ledger, sequencer.backlog
        )
    assert document["verdict"] == "valid", document
    (topic,) = leader.fold.topics.values()
    rows, files = sum(one["rows"] for one in document["partitions"]), topic.totals.files
    assert rows == sum(topic.watermarks.values())
    return {
        "entries": files,
        "s": round(watch.wall_s, 3),
        "cpu_s": round(watch.cpu_s, 3),
        "entries_per_s": round(files / watch.wall_s),
        "entries_per_cpu_s": round(files / watch.cpu_s),
    }


def behind(folder: Path, partitions: int) -> dict[str, Any]:
    """Read a long intake log of which nothing is archived, inspect its partitions, and plan one
    round.
    """
    start, planning, first, again = Stopwatch(), Stopwatch(), Stopwatch(), Stopwatch()
    with start:
        opened = LongLog(folder, LogSettings())
        opened.sequencer.refresh()
        intake = opened.sequencer.backlog()
    state = intake.topics_by_name[TOPIC]
    schema = decide(TOPIC, (), None, Source("bench.Order", descriptor_set())).schema
    work = TopicWork(topic_settings(partitions), ArchiveSettings(), state, schema, "day", None)
    with first:
        _summaries(intake, work)
    with again:
        _summaries(intake, work)
    with planning:
        limits = RoundLimits(MEMORY_BYTES, ArchiveSettings().round_bytes_max)
        planned = choose_plans([work], intake, LedgerFold(), 1, SystemClock().now_us(), limits, frozenset())
    assert not planned.halted
    assert planned.plans
    found = {
        "entries": intake.next_index,
        "entries_read": opened.read_entries,
        "restart_s": round(start.wall_s, 3),
        "restart_cpu_s": round(start.cpu_s, 3),
        "first_look_cpu_s": round(first.cpu_s, 4),
        "look_cpu_s": round(again.cpu_s, 4),
        "plan_s": round(planning.wall_s, 3),
        "plan_cpu_s": round(planning.cpu_s, 3),
        "plans": len(planned.plans),
        "plan_segments": planned.segments,
        "plan_bytes": planned.raw_bytes,
        "metadata_store_bytes": opened.metadata_bytes(),
    }
    opened.close()
    return found


def _summaries(intake: Backlog, work: TopicWork) -> None:
    """Check every partition for work, as a tick does."""
    for partition in range(work.state.partitions):
        intake.summary((work.state.topic_id, partition), 0)
    assert has_work(work.state, work.archive, intake, LedgerFold(), SystemClock().now_us())


def main(arguments: Sequence[str]) -> None:
    """Run the measurement and print its document."""
    what, folder, partitions = arguments
    imported = peak_bytes()
    found = {"restart": restart, "audit": audit, "behind": behind}[what](Path(folder), int(partitions))
    print(
        json.dumps(found | {"peak_mib": round(peak_bytes() / _MIB), "imported_mib": round(imported / _MIB)})
    )


if __name__ == "__main__":
    main(sys.argv[1:])

"""Resolves a deployment after a fault, and has it judged: by the product's own audit, and from outside by the
harness.

Work goes on without the failpoint until nothing is to be done; then a second run must find nothing to do
either. The judge reads the ledgers of the senders and what the public reader gives. It also reads the tables'
files, by other code than the product's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from archiver import Reader
from reconcile.vacuum.report import CleanReport
from tests.fault.sweep.deeds import Daemon, archive
from tests.fault.sweep.playground import Ground
from tests.fault.sweep.scenes import HOUR_S, Scene
from tests.fault.sweep.sent_records import rebuilt_order
from tests.harness.history import Row
from tests.harness.judging import judge
from tests.harness.ledger_file import LedgerFile
from tests.harness.loading import FORMAT, SUPERVISOR, ledger_names, load, read_ledger
from tests.harness.payload import digest
from tests.harness.places import LocalTables
from tests.harness.reading import table_rows

TABLED = {"orders": rebuilt_order, "clicks": None}
ORPHANS_H, GRACE_H = 96.0, 1.2
"""Beyond the age of an unreferenced object, and beyond the deletion delay."""
RUNS_MAX = 6
"""Of the vacuum, until it finds nothing."""


def settle(ground: Ground, scene: Scene, fault: str) -> None:
    """Go on to the end, check again, and judge."""
    with ground.daemon() as daemon:
        scene.again(ground, daemon)
        ground.send("after", places=scene.places, by=daemon)
        _archive_all(daemon)
        _reconciled(daemon, fix=True)
        scene.rest(ground)
    with ground.daemon(ORPHANS_H) as daemon:
        _clean(daemon)
        daemon.clock.ahead_s += GRACE_H * HOUR_S
        ground.send(
            "later", places=scene.places, by=daemon
        )  # what may be on its way to a table is not deleted before the table moves on
        _archive_all(daemon)
        last = _clean_all(daemon)
        _nothing_to_do(daemon)
        _complete(daemon.audit())
        scene.check(daemon)
    _no_litter(ground, last.needed)
    _judge(ground, scene, fault)


def _archive_all(daemon: Daemon) -> None:
    left = archive(daemon)
    assert left is None, left


def _clean(daemon: Daemon) -> CleanReport:
    report = daemon.application.maintenance.cleaning(daemon.reported.append).run()
    assert (report.findings, report.error) == ([], None), report.to_json()
    return report


def _reconciled(daemon: Daemon, *, fix: bool) -> None:
    report = daemon.application.maintenance.reconciling(daemon.reported.append, dry_run=not fix).run(
        "everything" if fix else "nothing"
    )
    assert (report.left, report.error, report.unread) == ([], None, {}), report


def _clean_all(daemon: Daemon) -> CleanReport:
    """Clean until a run marks nothing and deletes nothing, and nothing waits for the next one: that run."""
    for _ in range(RUNS_MAX):
        report = _clean(daemon)
        if not (report.condemned or report.deleted or report.waiting or report.starts):
            return report
        daemon.clock.ahead_s += GRACE_H * HOUR_S
    raise AssertionError(f"after {RUNS_MAX} runs there is still something to clean: {report.to_json()}")


def _nothing_to_do(daemon: Daemon) -> None:
    """A second run finds no round and no difference."""
    assert daemon.archive().rounds == 0
    _reconciled(daemon, fix=False)


def _complete(document: Mapping[str, Any]) -> None:
    """The audit says valid, and everything that was ever sent to an archived topic is archived, or was too
    old."""
    assert document["verdict"] == "valid", document
    for item in document["partitions"]:
        if item["topic"] != "kept":
            gaps = sum(high - low for low, high in item["gaps"])
            assert (
                item["watermark"] == item["stable"] == item["next"] == item["start"] + item["rows"] + gaps
            ), item
            assert item["pending"] == [], item


def _no_litter(ground: Ground, needed: int) -> None:
    """No staging files of any process, and of intake what is `needed`: by a topic that is never archived, or
    a snapshot to go back to.

    To be called once no process works any more: the checkpoint thread of a daemon may have a staging file at
    any time.
    """
    data = ground.deployment.data
    left = [path for path in (data / ".spool").rglob("*") if path.is_file()]
    assert not left, left
    there = [path for path in (data / "intake").rglob("*") if path.is_file()]
    assert len(there) == needed, (needed, there)


def _judge(ground: Ground, scene: Scene, fault: str) -> None:
    with LedgerFile(ground.history, SUPERVISOR, 0.0) as run:
        topics = {
            one["name"]: {"partitions": one["partitions"], "table": one["archive"].get("table")}
            for one in yaml.safe_load(ground.deployment.config.read_text(encoding="utf-8"))["topics"]
        }
        run.write("run", format=FORMAT, seed=0, topics=topics, faults=[fault], rounds=1)
        run.write("fault", kind=fault, what="reached")
        lines: dict[str, int] = {}
        for name in ledger_names(ground.history):
            known = read_ledger(ground.history, name)
            whole = bool(known.events) and known.events[-1]["event"] == "end"
            run.write("process", ledger=name, code=0 if whole else -9, killed=not whole)
            lines[name] = len(known.events)
        run.write("settled")
        _read_back(ground, run, topics)
        run.write("sealed", lines=lines)
        run.write("end")
    judgement = judge(scene.judged(load(ground.history)))
    assert judgement.verdict == "valid", judgement.to_json()


def _read_back(ground: Ground, run: LedgerFile, topics: Mapping[str, Any]) -> None:
    with Reader(ground.deployment.config) as reader:
        for topic in topics:
            rows = [
                Row(
                    one.partition,
                    one.offset,
                    digest(one.key, one.value, one.headers, one.timestamp_us or 0),
                    one.ingest_us,
                    one.batch_start,
                )
                for one in reader.read(topic)
            ]
            _note(ground.history, run, "consume", topic, rows, {})
    for topic, value_of in TABLED.items():
        rows, watermarks = table_rows(
            LocalTables(ground.root / "catalog.db"), topics[topic]["table"], value_of
        )
        _note(ground.history, run, "table", topic, rows, watermarks)


def _note(
    history: Path, run: LedgerFile, what: str, topic: str, rows: list[Row], watermarks: dict[int, int]
) -> None:
    text = "".join(
        json.dumps([row.partition, row.offset, row.digest, row.ingest_us, row.batch_start]) + "\n"
        for row in rows
    )
    (history / f"{what}-{topic}.jsonl").write_text(text, encoding="utf-8")
    run.write("read", what=what, topic=topic, rows=len(rows), watermarks=watermarks, error=None)

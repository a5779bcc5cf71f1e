"""Does docs/operations/upgrade.md name the formats that the code reads and writes, and the versions that are
tried?"""

from __future__ import annotations

import re
from pathlib import Path

from archiver.catalog import evidence, external_changes
from archiver.catalog.table_layout import FORMAT_VERSION, LAYOUT_VERSION_VALUE
from archiver.control_topic import publisher
from archiver.ledger import checkpoint as ledger_checkpoint
from archiver.ledger import checkpoint as ledger_state
from archiver.ledger.entries import FORMATS
from archiver.log import sqlite
from archiver.log.etcd import log_store
from archiver.objects import cluster
from archiver.stream import archives
from intake import format as intake_format
from intake.log import checkpoint, history_file
from intake.log.entries import ENTRY_FORMATS
from tests.support.builders.golden import GOLDEN

PAGE = Path(__file__).parents[2] / "docs/operations/upgrade.md"


def numbers(formats: tuple[int, ...]) -> str:
    return ", ".join(str(one) for one in formats)


READ = {
    "`cluster.json`, `topic.json`": str(cluster.FORMAT),
    "metadata database (SQLite's `user_version`)": str(sqlite.FORMAT),
    "logs in etcd (`/format`)": log_store.FORMAT.decode(),
    "entry of the intake log": numbers(ENTRY_FORMATS),
    "entry of the control log (ledger)": numbers(FORMATS),
    "entry of the log `published`": str(publisher.FORMAT),
    "checkpoint of the intake log: object": str(checkpoint.FORMAT),
    "checkpoint of the intake log: the state in it": numbers(checkpoint.STATE_FORMATS),
    "checkpoint of the ledger: object": str(ledger_checkpoint.OBJECT_FORMAT),
    "checkpoint of the ledger: the state in it": numbers(ledger_state.FORMATS),
    "shelf": str(history_file.FORMAT),
    "intake file (`archiver.intake_format`)": ", ".join(intake_format.FORMATS),
    "archive (`archiver.version`)": ", ".join(archives.FOOTER_VERSIONS),
    "table: Iceberg's format version": str(FORMAT_VERSION),
    "table: `archiver.format-version`": LAYOUT_VERSION_VALUE,
    "table: `archiver.watermarks`": str(evidence.VERSION),
    "table: `archiver.expired-changes`": str(external_changes.VERSION),
}
"""What is stored, and the numbers that this version reads."""


def test_the_table_of_formats_is_what_the_code_says() -> None:
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
    ]
    found = {row[0]: row[1] for row in rows if len(row) == 3 and re.fullmatch(r"[0-9, ]+", row[1])}
    assert found == READ


def test_every_golden_version_is_named() -> None:
    (line,) = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "golden_deployment/" in line]
    assert set(re.findall(r"`(v[0-9]+)`", line)) == {path.name for path in GOLDEN.iterdir()}


def test_the_messages_on_the_page_are_those_of_this_version() -> None:
    page = PAGE.read_text(encoding="utf-8")
    newest = ENTRY_FORMATS[-1]
    assert (
        f"has the format {newest + 1}, this version knows {newest}; upgrade before reading this log" in page
    )
    assert f"has format {FORMATS[-1] + 1}; this version knows up to {FORMATS[-1]}" in page

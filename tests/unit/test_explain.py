"""What is said of one record follows only from the facts read about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from archiver.publish.progress import HeldBack
from archiver.runtime.errors import InvalidInput
from archiver.status.explain import (
    ArchiveSight,
    Facts,
    FileSight,
    IntakeSight,
    SnapshotSight,
    TableSight,
    document_of,
    explain,
    lines_of,
)
from archiver.status.tracing import parse_place
from intake.log.aborted import Aborted

INTAKE = IntakeSight(
    log_index=7,
    shelf=None,
    key="intake/f",
    row_group=0,
    row=3,
    gone=False,
    condemned_us=None,
    damage=None,
    accept_us=1_000_000,
    ingest_us=2_000_000,
)
ARCHIVE = ArchiveSight("archive/a", 0, 10, 1, 5_000_000, False, None, None)
FILE = FileSight("file:///d/archive/a", 1, 42, None)
TABLE = TableSight("shop.orders", "local", 42, (FILE,), SnapshotSight(42, 6_000_000, "append"), None, None)
HELD = HeldBack("mine", 3, 1, 1_000_000, 9_000_000, 4)
COMMITTED = Facts(
    topic="orders",
    topic_id="a" * 32,
    partition=0,
    offset=5,
    kind="iceberg",
    next=20,
    stable=20,
    watermark=10,
    written=10,
    intake=INTAKE,
    archive=ARCHIVE,
    table=TABLE,
)
EMPTY = replace(TABLE, files=())
WAITING = replace(COMMITTED, offset=15, archive=None, table=EMPTY, reason="not due yet")
PENDING = replace(
    COMMITTED,
    offset=15,
    written=20,
    table=EMPTY,
    archive=replace(ARCHIVE, base=10, end=20, pending=True, control_index=9),
)


CASES: list[tuple[Facts, str, int, str]] = [
    (COMMITTED, "committed", 0, "has it once"),
    (replace(COMMITTED, intake=replace(INTAKE, gone=True)), "committed", 0, "has it once"),
    (replace(COMMITTED, offset=15), "committed", 0, "records it in the ledger"),
    (replace(COMMITTED, halted="its table was renamed"), "committed", 0, "its table was renamed"),
    (replace(COMMITTED, table=replace(TABLE, files=(FILE, FILE))), "doubled", 1, "2 times"),
    (replace(COMMITTED, table=replace(TABLE, files=(replace(FILE, rows=2),))), "doubled", 1, "2 times"),
    (replace(COMMITTED, archive=replace(ARCHIVE, damage="a bit")), "damaged", 1, "a bit"),
    (replace(COMMITTED, table=EMPTY), "missing", 1, "no live file"),
    (
        replace(COMMITTED, table=replace(EMPTY, removed=SnapshotSight(9, 1, "overwrite"))),
        "removed",
        0,
        "snapshot 9 (overwrite)",
    ),
    (
        replace(COMMITTED, table=replace(EMPTY, suspects=(9,))),
        "removed",
        0,
        "snapshot 9, which has expired; `archiver audit` says",
    ),
    (
        replace(COMMITTED, table=replace(EMPTY, suspects=(9, 8))),
        "removed",
        0,
        "one of the snapshots 9, 8, of which some or all have",
    ),
    (replace(COMMITTED, table=replace(TABLE, suspects=(9,))), "committed", 0, "has it once"),
    (replace(COMMITTED, table=replace(TABLE, visible=0)), "removed", 0, "a delete file"),
    (replace(COMMITTED, table=replace(TABLE, visible=1)), "committed", 0, "has it once"),
    (
        replace(COMMITTED, table=replace(EMPTY, files=(FileSight("f", None, 1, "no rights"),))),
        "unknown",
        2,
        "no rights",
    ),
    (
        replace(COMMITTED, table=replace(EMPTY, files=(FileSight("f", None, 1, "it is gone", gone=True),))),
        "damaged",
        1,
        "f, which is gone",
    ),
    (
        replace(COMMITTED, table=replace(EMPTY, undeletable="equality deletes")),
        "unknown",
        2,
        "equality deletes",
    ),
    (replace(COMMITTED, table=None, no_table="the catalog is away"), "unknown", 2, "the catalog is away"),
    (replace(COMMITTED, table=None, kind="unconfigured"), "unknown", 2, "names no table"),
    (replace(COMMITTED, table=None, kind="parquet"), "archived", 0, "no table"),
    (replace(COMMITTED, table=None, kind="parquet", archive=None), "missing", 1, "no archive holds it"),
    (
        replace(COMMITTED, table=None, kind="parquet", archive=replace(ARCHIVE, damage="a bit")),
        "damaged",
        1,
        "a bit",
    ),
    (WAITING, "waiting", 0, "not due yet"),
    (replace(WAITING, table=None, no_table="no such table"), "waiting", 0, "not due yet"),
    (replace(WAITING, intake=replace(INTAKE, gone=True)), "missing", 1, "intake/f is gone"),
    (replace(WAITING, intake=replace(INTAKE, damage="a bit")), "damaged", 1, "a bit"),
    (replace(WAITING, intake=None), "missing", 1, "no intake file"),
    (replace(WAITING, intake=None, unread="a shelf is gone"), "unknown", 2, "a shelf is gone"),
    (PENDING, "pending", 0, "the next round commits it"),
    (replace(PENDING, halted="rolled back"), "pending", 0, "rolled back"),
    (replace(PENDING, archive=replace(ARCHIVE, stored_us=None)), "damaged", 1, "is gone"),
    (replace(PENDING, archive=None), "unknown", 2, "try again"),
    (
        replace(WAITING, stable=12, transaction=HELD),
        "behind_transaction",
        0,
        "after offset 12, where transaction mine",
    ),
    (
        replace(WAITING, stable=12, transaction=HELD, own=True),
        "in_transaction",
        0,
        "it times out at 1970-01-01 00:00:09 UTC",
    ),
    (
        replace(WAITING, stable=12, transaction=HELD, intake=replace(INTAKE, gone=True)),
        "missing",
        1,
        "is gone",
    ),
    (replace(WAITING, stable=12), "unknown", 2, "try again"),
    (replace(WAITING, gap=True, intake=None), "aborted", 0, "not known any more"),
    (
        replace(WAITING, gap=True, aborted=Aborted("mine", 3, 1, 0, 8, 0, "too long")),
        "aborted",
        0,
        "mine of producer 3 (epoch 1); too long",
    ),
    (replace(COMMITTED, gap=True), "damaged", 1, "has a row of it"),
    (replace(WAITING, offset=20), "beyond_end", 3, "has 20 offsets, 0 to 19"),
    (replace(WAITING, offset=0, next=0, stable=0), "beyond_end", 3, "no offset yet"),
]


@pytest.mark.parametrize(("facts", "state", "code", "words"), CASES)
def test_what_is_said(facts: Facts, state: str, code: int, words: str) -> None:
    found = explain(facts)
    assert (found.state, found.exit_code) == (state, code)
    assert words in found.why
    document: dict[str, Any] = document_of(found)
    assert (document["state"], document["why"], document["offset"]) == (state, found.why, facts.offset)
    text = "\n".join(lines_of(found))
    assert found.why in text
    for sight in (facts.intake, facts.archive):
        assert sight is None or sight.key in text


def test_what_became_of_the_intake_file_does_not_contradict_the_answer() -> None:
    gone = replace(INTAKE, gone=True)
    lost = "\n".join(lines_of(explain(replace(WAITING, intake=gone))))
    assert "restore that file from a copy" in lost
    assert "no longer required" not in lost
    assert "gone before the ledger counted it as committed" in lost
    assert "; deleted, no longer required" in "\n".join(lines_of(explain(replace(COMMITTED, intake=gone))))


def test_a_document_always_has_the_same_names() -> None:
    assert {
        tuple(document_of(explain(facts)))
        for facts in (COMMITTED, WAITING, PENDING, replace(WAITING, offset=20, intake=None))
    } == {tuple(document_of(explain(COMMITTED)))}


def test_a_place() -> None:
    assert parse_place("a.b-c_d:12:9223372036854775807") == ("a.b-c_d", 12, 2**63 - 1)
    for text in (
        "",
        ":0:0",
        "a::0",
        "a:0:",
        "a:0",
        "a:-1:0",
        "a:0:1.5",
        "a:0:٣",
        "a:123456:0",
        "a:0:" + "9" * 30,
    ):
        with pytest.raises(InvalidInput):
            parse_place(text)

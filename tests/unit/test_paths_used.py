"""When a path needs a new epoch before it can be planned (protocol rule P2)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from archiver.ledger.archives import ArchiveFile
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import KilledFile, TopicLedger
from archiver.objects.paths import archive_key
from archiver.refine.plan import Plan
from archiver.refine.planner import paths_used
from intake.segments import Segments
from tests.support.builders.segments import segment
from tests.support.intake.intake_entries import topic_id_of

ONE = topic_id_of(1)
EPOCH = 7


def plan_of(base: int, end: int, partition: int = 0, epoch: int = EPOCH) -> Plan:
    return Plan(
        ONE, "one", partition, base, end, epoch, Segments.of([segment(base, end - base)]), end - base, 1
    )


def key_of(base: int, end: int, partition: int = 0, epoch: int = EPOCH) -> str:
    return archive_key(ONE, partition, "day", 20_000, base, end, epoch)


@pytest.mark.parametrize(
    ("key", "plan", "expected"),
    [
        (key_of(0, 5), plan_of(0, 5), True),
        (key_of(0, 5), plan_of(4, 9), True),
        (
            key_of(5, 9),
            plan_of(0, 5),
            True,
        ),  # It is planned again from the start after a rollback. A later cut can meet an existing key.
        (key_of(0, 5), plan_of(5, 9), False),
        (key_of(0, 5, partition=1), plan_of(0, 5), False),
        (key_of(0, 5, epoch=EPOCH - 1), plan_of(0, 5), False),
        ("no/archive.parquet", plan_of(0, 5), False),
        ("", plan_of(0, 5), False),
    ],
)
@pytest.mark.parametrize("where", ["epoch_keys", "killed"])
def test_path_used(where: str, key: str, plan: Plan, expected: bool) -> None:
    fold = LedgerFold()
    ledger = fold.topics.setdefault(ONE, TopicLedger(ONE))
    if where == "killed":
        ledger.killed[key] = KilledFile(
            ArchiveFile(key, 1, b"", b"", 0, 0, 5, EPOCH, 1, 5, 5, 0, 0), "because", 3
        )
    else:
        ledger.epoch_keys.add(key)
    assert paths_used(fold, [plan]) is expected
    assert paths_used(fold, [plan_of(7, 9, partition=5), plan]) is expected


def test_gaps_alone_have_no_path() -> None:
    fold = LedgerFold()
    fold.topics.setdefault(ONE, TopicLedger(ONE)).epoch_keys.add(key_of(0, 5))
    assert paths_used(fold, [plan_of(0, 5)])
    assert not paths_used(fold, [replace(plan_of(0, 5), segments=Segments.of(()), rows=0, gaps=((0, 5),))])


def test_no_path_is_used_in_an_empty_ledger() -> None:
    assert not paths_used(LedgerFold(), [plan_of(0, 5)])

"""Which archives readers use: none that is marked for deletion, and a killed one only where no other has its
records."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from archiver.ledger.archive_visibility import ArchiveVisibility
from archiver.ledger.archives import ArchiveFile, OldArchive, Replaced, Rewrite
from archiver.ledger.views import KilledFile, TopicLedger
from tests.support.catalog.tables import TOPIC_ID


@dataclass(frozen=True)
class Found:
    base: int
    end: int
    epoch: int = 1

    @property
    def key(self) -> str:
        return f"{self.base}-{self.end}-{self.epoch}"


def archive(found: Found) -> ArchiveFile:
    return ArchiveFile(found.key, 0, b"", b"", found.base, found.end, 10, 1, 1, 10, 10, 0, 0)


def ledger_of(*killed: Found, watermark: int = 20) -> TopicLedger:
    made = TopicLedger(TOPIC_ID, watermarks={0: watermark})
    made.killed.update((one.key, KilledFile(archive(one), "why", 1)) for one in killed)
    return made


def test_a_killed_archive_is_read_where_no_one_else_has_its_records() -> None:
    killed, other = Found(0, 10, 2), Found(10, 20)
    assert ArchiveVisibility.of(ledger_of(killed), 0).kept([killed, other]) == [other, killed]
    assert ArchiveVisibility.of(ledger_of(killed), 0).kept([killed, Found(0, 12), other]) == [
        Found(0, 12),
        other,
    ]
    assert ArchiveVisibility.of(ledger_of(killed), 0).kept([killed, Found(0, 9), other]) == [
        Found(0, 9),
        other,
        killed,
    ], "offset 9 is nowhere else"


def test_of_killed_archives_with_the_same_records_one_is_read() -> None:
    older, newer = Found(0, 10, 2), Found(0, 10, 3)
    assert ArchiveVisibility.of(ledger_of(older, newer), 0).kept([older, newer]) == [newer]


def test_what_intake_has_or_is_not_needed_is_no_reason_to_read_a_killed_one() -> None:
    killed = Found(10, 20)
    ledger = ledger_of(killed, watermark=10)
    assert ArchiveVisibility.of(ledger, 0).kept([killed]) == [], "from the watermark on intake has everything"
    ledger.watermarks[0] = 20
    assert ArchiveVisibility.of(ledger, 0).kept([killed]) == [killed]
    ledger.passed.add(0, 10, 15)
    assert ArchiveVisibility.of(ledger, 0).kept([killed]) == [killed]
    ledger.starts[0] = 15
    assert ArchiveVisibility.of(ledger, 0).kept([killed]) == [killed]
    ledger.passed.add(0, 15, 20)
    assert ArchiveVisibility.of(ledger, 0).kept([killed]) == []


def test_what_is_marked_for_deletion_or_was_made_again_is_never_read() -> None:
    condemned, old, new, given_up = Found(0, 10), Found(10, 20), Found(10, 20, 2), Found(0, 10, 3)
    ledger = ledger_of(given_up)
    ledger.rewrites.replaced[old.key] = Replaced(new.key, 1)
    assert ArchiveVisibility.of(ledger, 0, {condemned.key, given_up.key}).kept(
        [condemned, old, new, given_up]
    ) == [new]
    rewrite = Rewrite((OldArchive(old.key, 1),), archive(new), uuid.UUID(int=1), 1, 1)
    ledger.rewrites.replaced.clear()
    ledger.rewrites.abandoned[new.key] = (rewrite, "why")
    assert ArchiveVisibility.of(ledger, 0, {condemned.key, given_up.key}).kept(
        [condemned, old, new, given_up]
    ) == [old]


def test_nothing_is_given_up_unless_it_is_said() -> None:
    assert ArchiveVisibility().kept([Found(0, 10), Found(0, 5)]) == [Found(0, 10), Found(0, 5)]

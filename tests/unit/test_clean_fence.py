"""Rule D2: an archive is deleted only when no request in flight can add it to the table."""

from __future__ import annotations

import pytest

from archiver.ledger.views import CondemnedObject
from archiver.objects.paths import archive_key, metadata_prefix
from archiver.runtime.ids import TopicId
from intake.log.fold import TopicState
from reconcile.vacuum.tables import Swept
from tests.support.catalog.tables import TOPIC_ID

ARCHIVE = archive_key(TOPIC_ID, 0, "day", 20_000, 0, 10, 1)
MANIFEST = f"{metadata_prefix(TOPIC_ID)}x-m0.avro"


def swept(*, has_table: bool = True, fenced_at: int = 0, sequence_number: int = 9) -> Swept:
    topic = TopicState(TopicId(TOPIC_ID), "orders", 1, 0)
    return Swept(topic, has_table, 1, sequence_number, fenced_at, again={ARCHIVE: 7, MANIFEST: 7})


def condemned(sequence_number: int) -> dict[str, CondemnedObject]:
    return {key: CondemnedObject(1, 100, "why", sequence_number) for key in (ARCHIVE, MANIFEST)}


@pytest.mark.parametrize(
    ("condemned_at", "fenced_at", "needed"),
    [(5, 0, True), (5, 4, True), (5, 5, True), (5, 6, False), (0, 1, False)],
    ids=["none of this epoch", "an older one", "the one that was there", "a younger one", "the first commit"],
)
def test_d2_a_fence_is_younger_than_the_mark(condemned_at: int, fenced_at: int, needed: bool) -> None:
    assert swept(fenced_at=fenced_at).needs_fence(condemned(condemned_at), [ARCHIVE]) is needed


def test_d2_archives_without_a_table_and_metadata_need_no_fence() -> None:
    assert not swept(has_table=False).needs_fence(condemned(5), [ARCHIVE])
    assert not swept().needs_fence(condemned(5), [MANIFEST])


def test_d2_metadata_waits_until_the_table_has_moved() -> None:
    assert swept(sequence_number=5).due(condemned(5), 100) == [ARCHIVE]
    assert swept(sequence_number=6).due(condemned(5), 100) == [ARCHIVE, MANIFEST]


def test_what_another_leader_deleted_since_the_look_is_not_due() -> None:
    """A new leader reads the marked objects again when it takes over, but it inspected the table before."""
    assert swept(sequence_number=6).due({MANIFEST: condemned(5)[MANIFEST]}, 100) == [MANIFEST]
    assert swept().due({}, 100) == []

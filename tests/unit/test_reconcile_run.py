"""What the reconciler reports of its repairs when the second collection differs from the first."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import TopicLedger
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import RetryLater
from archiver.runtime.exit_codes import FINE, UNKNOWN
from archiver.runtime.ids import TopicId
from intake.log.backlog import Backlog
from reconcile.repair.repairer import Repairer
from reconcile.repair.run import ATTEMPTS_MAX, ReconcileReport, ReconcileRun
from reconcile.snapshot.collector import CollectedViews, SnapshotCollector, ledger_mark
from reconcile.snapshot.topic_snapshot import PendingArchive, TableSnapshot, TopicSnapshot
from reconcile.snapshot.topic_views import FileView, PartitionView, TableState, TopicView

PENDING = PendingArchive("archive/waiting.parquet", 0, 0, 5, 100, 100)
TOPIC_ID = TopicId("ab" * 16)
VIEW = TopicView(
    "orders", TOPIC_ID, "iceberg", (PartitionView(0, 0, 5, 5, 0, ((0, 5),)),), None, None, None, 1
)
WITH_A_FILE = replace(
    VIEW, table=TableState("shop.orders", 1, {0: 0}, files=(FileView("file:///gone.parquet", 1, 9, None),))
)
WAITING = TopicSnapshot(
    view=VIEW,
    topic_id=TOPIC_ID,
    table_name="shop.orders",
    granularity="day",
    known_uuid=None,
    archived=False,
    table=None,
    pending=(PENDING,),
    archives={},
    unreferenced=(),
    busy=False,
    idle_s=None,
    holder=None,
)
NOTHING_WAITS = replace(
    WAITING, view=replace(VIEW, partitions=(PartitionView(0, 0, 0, 0, 0, ()),)), pending=()
)


class _Looks:
    """Returns the given views, one for each collection."""

    def __init__(self, *seen: CollectedViews | RetryLater) -> None:
        self._seen = list(seen)

    def collect(self, *_: object) -> CollectedViews:
        seen = self._seen.pop(0)
        if isinstance(seen, RetryLater):
            raise seen
        return seen


class _Repairs:
    def settle(self, topic: str) -> None:
        """Writes nothing that a later collection would show."""


def run_with(*seen: CollectedViews | RetryLater) -> ReconcileReport:
    run = ReconcileRun(
        cast(SnapshotCollector, _Looks(*seen)),
        cast(Repairer, _Repairs()),
        LedgerFold,
        lambda: cast(Backlog, None),
        ManualClock(1),
    )
    return run.run("safe")


class _Ledgers:
    """A ledger that grows by one entry at each read, with the next of `topics` each time."""

    def __init__(self, *topics: TopicLedger) -> None:
        self._topics = list(topics)
        self.next_index = 100

    def __call__(self) -> LedgerFold:
        self.next_index += 1
        fold = LedgerFold()
        fold.next_index = self.next_index
        fold.topics[TOPIC_ID] = self._topics.pop(0) if len(self._topics) > 1 else self._topics[0]
        return fold


def of_moving(looks: int, *ledgers: TopicLedger, sights: Sequence[TopicSnapshot]) -> ReconcileReport:
    """A run whose ledger grows during every attempt. Each read returns the next of `ledgers`."""
    seen = [CollectedViews(topics=[sight]) for sight in sights]
    assert len(seen) == looks
    run = ReconcileRun(
        cast(SnapshotCollector, _Looks(*seen)),
        cast(Repairer, _Repairs()),
        _Ledgers(*ledgers),
        lambda: cast(Backlog, None),
        ManualClock(1),
    )
    return run.run("nothing")


DOUBTED = replace(
    WAITING,
    pending=(),
    table=TableSnapshot(
        "shop.orders",
        uuid.UUID(int=1),
        "c" * 32,
        TOPIC_ID,
        2,
        "day",
        3,
        contradiction="the metadata store is an older copy than the table",
    ),
)


def test_a_ledger_that_never_holds_still_is_no_finding_and_a_later_try() -> None:
    report = of_moving(ATTEMPTS_MAX, TopicLedger(TOPIC_ID, written_us=7), sights=[DOUBTED] * ATTEMPTS_MAX)
    assert report.findings == []
    assert report.unread.keys() == {"orders"}
    assert "the next run compares again" in report.unread["orders"]
    assert report.exit_code == UNKNOWN, "it is not known, and nothing is wrong"


def test_a_topic_that_holds_still_is_compared_while_others_move_on() -> None:
    still = TopicLedger(TOPIC_ID, written_us=7)
    report = of_moving(
        ATTEMPTS_MAX, still, sights=[replace(DOUBTED, ledger_mark=ledger_mark(still))] * ATTEMPTS_MAX
    )
    assert [item.id for item, _ in report.findings] == ["evidence-doubted"]
    assert report.unread == {}


def test_what_one_view_shows_every_time_is_reported_though_the_ledger_moves() -> None:
    gone = (
        replace(DOUBTED, table=replace(DOUBTED.table, contradiction=None), view=WITH_A_FILE)
        if DOUBTED.table
        else DOUBTED
    )
    there = replace(gone, view=VIEW)
    report = of_moving(ATTEMPTS_MAX, TopicLedger(TOPIC_ID, written_us=7), sights=[gone] * ATTEMPTS_MAX)
    assert [item.id for item, _ in report.findings] == ["dangling-reference"]
    once = of_moving(
        ATTEMPTS_MAX,
        TopicLedger(TOPIC_ID, written_us=7),
        sights=[*[replace(DOUBTED, view=there.view)] * (ATTEMPTS_MAX - 1), gone],
    )
    assert once.findings == [], "seen in the last attempt alone"


def test_a_finding_of_an_attempt_is_forgotten_when_a_later_one_holds_still() -> None:
    seen = [
        CollectedViews(topics=[DOUBTED]),
        CollectedViews(topics=[replace(DOUBTED, table=None, known_uuid=None)]),
    ]
    run = ReconcileRun(
        cast(SnapshotCollector, _Looks(*seen)),
        cast(Repairer, _Repairs()),
        _Ledgers(TopicLedger(TOPIC_ID)),
        lambda: cast(Backlog, None),
        ManualClock(1),
    )
    report = run.run("nothing")
    assert (report.findings, report.unread) == ([], {})


def test_what_is_gone_after_the_repair_is_fixed() -> None:
    report = run_with(CollectedViews(topics=[WAITING]), CollectedViews(topics=[NOTHING_WAITS]))
    assert [(item.id, fixed) for item, fixed in report.findings] == [("missing-in-catalog", True)]
    assert report.exit_code == FINE


def test_what_could_not_be_looked_at_again_is_not_fixed() -> None:
    """The catalog became unavailable after the repair. The absent finding therefore proves nothing."""
    report = run_with(
        CollectedViews(topics=[WAITING]), CollectedViews(topics=[], unread={"orders": "the catalog is away"})
    )
    assert [(item.id, fixed) for item, fixed in report.findings] == [("missing-in-catalog", False)]


def test_findings_are_reported_also_if_the_second_look_fails() -> None:
    report = run_with(CollectedViews(topics=[WAITING]), RetryLater("the store is away"))
    assert [(item.id, fixed) for item, fixed in report.findings] == [("missing-in-catalog", False)]
    assert report.exit_code == UNKNOWN and str(report.error) == "the store is away"

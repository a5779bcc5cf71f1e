"""What a run of the reconciler says of what it repaired, where the second look does not see what the first one saw."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from archiver.clock import ManualClock
from archiver.errors import RetryLater
from archiver.exits import FINE, UNTOLD
from archiver.ids import TopicId
from archiver.ledger.fold import LedgerFold
from intake.backlog import Backlog
from reconcile.look import Looker, Seen
from reconcile.reconcile_run import ReconcileReport, ReconcileRun, RunParts
from reconcile.repair import Repairer
from reconcile.sights import PendingSight, TopicSight
from reconcile.views import PartitionView, TopicView

PENDING = PendingSight("archive/waiting.parquet", 0, 0, 5, 100, 100)
TOPIC_ID = TopicId("ab" * 16)
VIEW = TopicView("orders", TOPIC_ID, "iceberg", (PartitionView(0, 0, 5, 5, 0, ((0, 5),)),), None, None, None, 1)
WAITING = TopicSight(
    view=VIEW,
    topic_id=TOPIC_ID,
    table_name="shop.orders",
    granularity="day",
    known_uuid=None,
    archived=False,
    table=None,
    pending=(PENDING,),
    archives={},
    strays=(),
    busy=False,
    idle_s=None,
    holder=None,
)
NOTHING_WAITS = replace(WAITING, view=replace(VIEW, partitions=(PartitionView(0, 0, 0, 0, 0, ()),)), pending=())


class _Looks:
    """What each look sees, one after the other."""

    def __init__(self, *seen: Seen | RetryLater) -> None:
        self._seen = list(seen)

    def look(self, *_: object) -> Seen:
        seen = self._seen.pop(0)
        if isinstance(seen, RetryLater):
            raise seen
        return seen


class _Repairs:
    def settle(self, topic: str) -> None:
        """Nothing is written that the looks would show."""


def run_with(*seen: Seen | RetryLater) -> ReconcileReport:
    parts = RunParts(cast(Looker, _Looks(*seen)), cast(Repairer, _Repairs()), LedgerFold, lambda: cast(Backlog, None), ManualClock(1))
    return ReconcileRun(parts).run("safe")


def test_what_is_gone_after_the_repair_is_fixed() -> None:
    report = run_with(Seen(topics=[WAITING]), Seen(topics=[NOTHING_WAITS]))
    assert [(item.id, fixed) for item, fixed in report.findings] == [("missing-in-catalog", True)]
    assert report.exit_code == FINE


def test_what_could_not_be_looked_at_again_is_not_fixed() -> None:
    """The catalog went away between repair and look: that the finding is not there says nothing."""
    report = run_with(Seen(topics=[WAITING]), Seen(topics=[], unread={"orders": "the catalog is away"}))
    assert [(item.id, fixed) for item, fixed in report.findings] == [("missing-in-catalog", False)]


def test_findings_are_told_also_if_the_second_look_fails() -> None:
    report = run_with(Seen(topics=[WAITING]), RetryLater("the store is away"))
    assert [(item.id, fixed) for item, fixed in report.findings] == [("missing-in-catalog", False)]
    assert report.exit_code == UNTOLD and str(report.error) == "the store is away"

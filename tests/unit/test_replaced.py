"""Which archives that a replay replaced can be deleted: none that a snapshot names, in any spelling."""

from __future__ import annotations

import uuid
from typing import cast

import pytest

from archiver.catalog.tables import SnapshotView, Tables, TableView
from archiver.config.settings import TopicSettings
from archiver.ledger.archives import Replaced
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import CondemnedObject
from archiver.objects.paths import archive_key
from archiver.runtime.ids import TopicId
from intake.log.backlog import Backlog
from intake.log.fold import TopicState
from reconcile.snapshot.retention_floor import RetentionFloor
from reconcile.vacuum.clean import ReplacedArchives

TOPIC_ID = TopicId("ab" * 16)
UUID = uuid.UUID(int=7)
OLD, NEW = (
    archive_key(TOPIC_ID, 0, "day", 20_000, 0, 10, 1),
    archive_key(TOPIC_ID, 0, "day", 20_000, 0, 10, 2),
)
SETTINGS = TopicSettings.model_validate(
    {
        "name": "orders",
        "partitions": 1,
        "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.orders"},
    }
)


class _Tables:
    """A table whose retained snapshots name one path."""

    def __init__(self, path: str) -> None:
        self._path = path

    def load(self, identifier: tuple[str, ...]) -> TableView:
        snapshot = SnapshotView(1, None, 9, 0, "append", {})
        return TableView(identifier, UUID, "", "", "{}", 0, 2, 0, "day", 1, 9, {}, (snapshot,))

    def retained_paths(self, view: TableView, names: set[str]) -> frozenset[str]:
        return frozenset({self._path} if self._path.rpartition("/")[2] in names else ())


class _Backlog:
    topics_by_id = {TOPIC_ID: TopicState(TOPIC_ID, "orders", 1, 0)}  # noqa: RUF012


def due(path: str, exchanged_at: int = 5, *, condemned: bool = False) -> list[str]:
    ledger = LedgerFold()
    if condemned:
        ledger.condemned[OLD] = CondemnedObject(1, 0, "a stray", 9)
    topic = ledger.topic(TOPIC_ID)
    ledger.topics[TOPIC_ID] = topic
    topic.table_uuid = UUID
    topic.rewrites.replaced[OLD] = Replaced(NEW, exchanged_at)
    lines = {TOPIC_ID: RetentionFloor(TOPIC_ID, "orders", (10,), (10,))}
    tables = cast(Tables, _Tables(path))
    return ReplacedArchives(lambda _: tables, [SETTINGS]).keys(cast(Backlog, _Backlog()), ledger, lines)


def test_what_no_retained_snapshot_names_may_go() -> None:
    assert due(f"s3://bucket/{NEW}") == [OLD]


@pytest.mark.parametrize(
    "root", ["s3://bucket/", "s3a://bucket//", "https://bucket.s3.example/", "file:/data/./"]
)
def test_d1_what_a_retained_snapshot_names_stays_however_it_is_spelled(root: str) -> None:
    assert due(root + OLD) == []
    assert due(root + OLD.replace("=", "%3D")) == []


def test_what_was_marked_before_the_ledger_heard_of_the_exchange_goes_all_the_same() -> None:
    """The ledger recorded the exchange so late that an earlier snapshot is still retained. No later commit is
    certain to come (seed 41566 of the rig)."""
    assert due(f"s3://bucket/{NEW}", exchanged_at=10) == []
    assert due(f"s3://bucket/{NEW}", exchanged_at=10, condemned=True) == [OLD]
    assert due(f"s3://bucket/{OLD}", exchanged_at=10, condemned=True) == []

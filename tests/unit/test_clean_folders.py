"""Rules D1 and D2 between the inspection of a table's folder and the deletion: the catalog fails, or a
request is executed late."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import pytest

from archiver.config.settings import TopicSettings
from archiver.ledger.fold import LedgerFold
from archiver.objects.paths import archive_key
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import SeededIds
from intake.log.backlog import Backlog
from intake.log.fold import TopicState
from reconcile.snapshot.retention_floor import Lines
from reconcile.snapshot.unreferenced_objects import Unneeded
from reconcile.vacuum.tables import Swept, TableFolders
from tests.support.builders.cleaning import Vacuumed
from tests.support.catalog.memory_tables import MemoryTables
from tests.support.catalog.tables import CLUSTER_ID, IDENTIFIER, TOPIC_ID, Bench
from tests.support.objects.memory_store import MemoryObjectStore


class _Reported(TableFolders):
    """An inspection that finds what the test sets, and a catalog that fails where the test says."""

    def __init__(self, vacuumed: Vacuumed) -> None:
        super().__init__(
            vacuumed.objects,
            CLUSTER_ID,
            vacuumed.leader(),
            _no_tables,
            _no_tables,
            [settings("orders")],
            SeededIds(3),
        )
        self.again: dict[str, int] = {}
        self.fresh: list[Unneeded] = []
        self.held = 0
        self.failing: set[str] = set()
        self.landed: set[str] = set()
        """What a request in flight adds to the table before the fence."""
        self.revived: list[str] = []
        """Killed archives that an inspection finds in the table."""

    def sweep(self, topic: TopicState, ledger: LedgerFold, lines: Lines, old_us: int, limit: int) -> Swept:
        del lines, old_us, limit
        return Swept(topic, True, ledger.epoch, 5, 0, list(self.fresh), self.held, 0, dict(self.again))

    def retire(self, topic: TopicState, intake: Backlog) -> None:
        self._work("retire")

    def fence(self, topic: TopicState, intake: Backlog) -> None:
        self._work("fence")

    def forget(self, topic: TopicState, intake: Backlog) -> None:
        self._work("forget")

    def settle(self, topic: TopicState, intake: Backlog) -> None:
        self._work("settle")

    def unnamed(self, topic: TopicState, ledger: LedgerFold, keys: Iterable[str]) -> list[str]:
        self._work("look again")
        return [key for key in keys if key not in self.landed]

    def _work(self, what: str) -> None:
        if what in self.failing:
            raise RetryLater(f"the catalog is away ({what})")


def _no_tables(_: object) -> NoReturn:
    raise AssertionError("no table is asked for")


def settings(name: str) -> TopicSettings:
    return TopicSettings.model_validate(
        {
            "name": name,
            "partitions": 1,
            "archive": {"kind": "iceberg", "catalog": "local", "table": "shop.orders"},
        }
    )


class _Deployment:
    """One topic with an archive that nothing names."""

    def __init__(self) -> None:
        self.vacuumed = Vacuumed()
        self.topic_id = self.vacuumed.topic("orders")
        self.key = archive_key(self.topic_id, 0, "day", 20_000, 0, 10, 0)
        self.vacuumed.objects.create(self.key, b"records")
        self.folders = self.vacuumed.folders = _Reported(self.vacuumed)

    def condemned(self) -> None:
        """Mark the archive for deletion, more than a deletion delay ago."""
        leader = self.vacuumed.leader()
        leader.take_over()
        leader.append(pb.Condemned(keys=[self.key], why="it is killed"))
        self.vacuumed.later()
        self.folders.again = {self.key: 7}

    @property
    def is_there(self) -> bool:
        return self.vacuumed.objects.info(self.key) is not None


@pytest.fixture
def deployment() -> _Deployment:
    return _Deployment()


def test_d2_a_marked_archive_goes_after_a_fence(deployment: _Deployment) -> None:
    deployment.condemned()
    assert deployment.vacuumed.clean().deleted == [deployment.key]
    assert not deployment.is_there


def test_a_run_that_may_not_delete_all_of_a_folder_says_so(deployment: _Deployment) -> None:
    deployment.condemned()
    other = archive_key(deployment.topic_id, 0, "day", 20_000, 10, 20, 0)
    deployment.vacuumed.objects.create(other, b"records")
    leader = deployment.vacuumed.leader()
    leader.take_over()
    leader.append(pb.Condemned(keys=[other], why="it is killed"))
    deployment.vacuumed.later()
    deployment.folders.again[other] = 7
    deployment.vacuumed.deletes_max = 1
    report = deployment.vacuumed.clean()
    assert (report.deleted, report.cut, report.more) == ([deployment.key], True, True)
    del deployment.folders.again[deployment.key]
    report = deployment.vacuumed.clean()
    assert (report.deleted, report.cut, report.more) == ([other], False, False)


@pytest.mark.parametrize("failing", [{"fence"}, {"fence", "forget"}, {"forget"}, {"look again"}])
def test_d2_nothing_goes_without_its_fence_also_if_the_topic_was_reported_already(
    deployment: _Deployment, failing: set[str]
) -> None:
    deployment.condemned()
    deployment.folders.held, deployment.folders.failing = 1, failing
    report = deployment.vacuumed.clean()
    assert report.deleted == [] and deployment.is_there
    assert [reported["topic"] for reported in report.topics] == ["orders"] and report.doubted


def test_d1_what_lands_between_the_look_and_the_fence_stays(deployment: _Deployment) -> None:
    """A request that was in flight during the inspection adds the archive. The fence stops only later
    requests."""
    deployment.condemned()
    deployment.folders.landed = {deployment.key}
    assert deployment.vacuumed.clean().deleted == []
    assert deployment.is_there


def test_nothing_is_marked_for_deletion_of_a_table_that_the_ledger_could_not_record(
    deployment: _Deployment,
) -> None:
    """The sequence number stored with the mark would be too low. An older fence would then pass for a later
    one."""
    deployment.condemned()
    other = archive_key(deployment.topic_id, 0, "day", 20_000, 10, 20, 0)
    deployment.folders.fresh = [Unneeded(other, 7, "stray")]
    deployment.folders.failing = {"fence", "settle"}
    assert deployment.vacuumed.clean().condemned == []


def test_d1_what_a_table_names_by_now_is_reported(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    tables = MemoryTables(SeededIds(7), bench.clock)
    leader = bench.leader()
    bench.write(leader, bench.table(tables), (0, 0, 5), (0, 5, 9))
    bench.commit(tables, leader)
    kept, gone = sorted(
        name
        for name in (archive_key(TOPIC_ID, 0, "day", 20_000, base, end, 1) for base, end in ((0, 5), (9, 12)))
    )
    known = TopicSettings.model_validate(
        {
            "name": "flights",
            "partitions": 2,
            "archive": {"kind": "iceberg", "catalog": "local", "table": ".".join(IDENTIFIER)},
        }
    )
    objects = _At(bench)
    folders = TableFolders(
        objects,
        CLUSTER_ID,
        leader,
        lambda _: tables,
        lambda one: bench.committer(one, leader),
        [known],
        bench.ids,
    )
    topic = TopicState(TOPIC_ID, "flights", 2, 0)
    assert folders.unnamed(topic, leader.fold, [kept, gone]) == [gone]


class _At(MemoryObjectStore):
    """A store whose keys are files below the bench's folder."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.clock)
        self._folder = bench.folder

    def uri(self, key: str) -> str:
        return f"file://{self._folder}/{key}"

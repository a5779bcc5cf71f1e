"""The vacuum runs due rounds of archiving between its steps. After a round it reads again what the round may
have changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

import pytest

from archiver.config.settings import TopicSettings
from archiver.ledger.fold import LedgerFold
from archiver.ledger.leader import Leader
from archiver.objects.paths import archive_key
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Deposed
from archiver.runtime.ids import SeededIds
from intake.log.backlog import Backlog
from intake.log.fold import TopicState
from reconcile.snapshot.retention_floor import Lines
from reconcile.snapshot.unreferenced_objects import Kind, Unneeded
from reconcile.vacuum.tables import Swept, TableFolders
from tests.support.builders.cleaning import Run, Vacuumed
from tests.support.builders.waiting_rounds import WaitingRounds
from tests.support.catalog.tables import CLUSTER_ID

FILES = 4


class _Deleting:
    """A store in which a round becomes due at each deletion."""

    def __init__(self, store: Any, rounds: WaitingRounds) -> None:
        self._store = store
        self._rounds = rounds

    def delete(self, key: str) -> None:
        self._store.delete(key)
        self._rounds.order.append("delete")
        self._rounds.ask()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _Folders(TableFolders):
    """Folders whose inspection finds what the test sets. A round becomes due during each inspection."""

    def __init__(self, vacuumed: Vacuumed, leader: Leader, names: tuple[str, ...]) -> None:
        super().__init__(
            vacuumed.objects, CLUSTER_ID, leader, _no_tables, _no_tables, map(_settings, names), SeededIds(3)
        )
        self.rounds = WaitingRounds(leader, vacuumed)
        self.fresh: list[Unneeded] = []
        self.used_by_a_round = False

    def sweep(self, topic: TopicState, ledger: LedgerFold, lines: Lines, old_us: int, limit: int) -> Swept:
        del lines, old_us, limit
        self.rounds.order.append(f"look at {topic.name}")
        swept = Swept(topic, True, ledger.epoch, 5, 5, list(self.fresh))
        if self.rounds.order.count("round") < 2:
            self.rounds.ask(self._use if self.used_by_a_round else lambda: None)
        return swept

    def settle(self, topic: TopicState, intake: Backlog) -> None:
        self.rounds.order.append(f"settle {topic.name}")

    def _use(self) -> None:
        self.fresh = []


def _no_tables(_: object) -> NoReturn:
    raise AssertionError("no table is asked for")


def _settings(name: str) -> TopicSettings:
    return TopicSettings.model_validate(
        {
            "name": name,
            "partitions": 1,
            "archive": {"kind": "iceberg", "catalog": "local", "table": f"shop.{name}"},
        }
    )


@pytest.fixture
def vacuumed() -> Vacuumed:
    return Vacuumed()


@pytest.fixture
def leader(vacuumed: Vacuumed) -> Iterator[Leader]:
    leader = vacuumed.leader("daemon")
    yield leader
    assert leader.epoch == 1, "a round and a cleaning of one daemon share an epoch"


def test_a_due_round_runs_between_two_deletions(vacuumed: Vacuumed, leader: Leader) -> None:
    rounds = WaitingRounds(leader, vacuumed)
    vacuumed.topic("a")
    vacuumed.lines["a", 0] = FILES
    keys = [vacuumed.file(Run("a")) for _ in range(FILES)]
    vacuumed.later()
    assert rounds.cleaning(vacuumed).run().condemned == keys
    vacuumed.later()
    vacuumed.objects = _Deleting(vacuumed.objects, rounds)  # type: ignore[assignment]
    report = rounds.cleaning(vacuumed).run()
    rounds.join()
    assert (report.deleted, report.waiting) == (keys, 0)
    assert rounds.order == ["delete", "round"] * FILES
    assert vacuumed.ledger().condemned == {}


def test_a_due_round_runs_between_two_tables(vacuumed: Vacuumed, leader: Leader) -> None:
    for name in ("a", "b"):
        vacuumed.topic(name)
    folders = vacuumed.folders = _Folders(vacuumed, leader, ("a", "b"))
    folders.rounds.cleaning(vacuumed).run()
    folders.rounds.join()
    assert folders.rounds.order == ["look at a", "round", "look at b", "round"]


@pytest.mark.parametrize(
    ("used", "condemned"), [(True, 0), (False, 1)], ids=["reused by the round", "not reused"]
)
def test_an_archive_that_a_round_may_have_reused_is_looked_at_again(
    vacuumed: Vacuumed, leader: Leader, used: bool, condemned: int
) -> None:
    key = archive_key(vacuumed.topic("a"), 0, "day", 20_000, 0, 10, 1)
    folders = vacuumed.folders = _Folders(vacuumed, leader, ("a",))
    folders.fresh, folders.used_by_a_round = [Unneeded(key, 7, "stray")], used
    report = folders.rounds.cleaning(vacuumed).run()
    folders.rounds.join()
    assert folders.rounds.order.count("look at a") == 2
    assert report.condemned == [key] * condemned
    assert list(vacuumed.ledger().condemned) == [key] * condemned


@pytest.mark.parametrize("kind", ["metadata", "foreign", "retired"])
def test_what_no_round_can_reuse_needs_no_second_look(vacuumed: Vacuumed, leader: Leader, kind: Kind) -> None:
    vacuumed.topic("a")
    folders = vacuumed.folders = _Folders(vacuumed, leader, ("a",))
    folders.fresh = [Unneeded("table/object", 7, kind)]
    report = folders.rounds.cleaning(vacuumed).run()
    folders.rounds.join()
    assert folders.rounds.order == ["look at a", "round", "settle a"]
    assert report.condemned == ["table/object"]


def test_a_leader_that_was_deposed_during_a_round_deletes_nothing_more(
    vacuumed: Vacuumed, leader: Leader
) -> None:
    rounds = WaitingRounds(leader, vacuumed)
    vacuumed.topic("a")
    vacuumed.lines["a", 0] = FILES
    keys = [vacuumed.file(Run("a")) for _ in range(FILES)]
    vacuumed.later()
    rounds.cleaning(vacuumed).run()
    vacuumed.later()
    store = vacuumed.objects

    class Deposing(_Deleting):
        def delete(self, key: str) -> None:
            store.delete(key)
            rounds.ask(vacuumed.leader("successor").take_over)

    vacuumed.objects = Deposing(store, rounds)  # type: ignore[assignment]
    with pytest.raises(Deposed):
        rounds.cleaning(vacuumed).run()
    rounds.join()
    assert [key for key in keys if store.info(key) is not None] == keys[1:]
    assert list(vacuumed.ledger().condemned) == keys, (
        "the successor deletes them, and the one that is gone is no error"
    )
    assert (
        pb.ControlEntry.FromString(vacuumed.control_log.read(0)[-1].data).WhichOneof("body")
        == "epoch_started"
    )

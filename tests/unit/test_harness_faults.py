"""Do the outside harness's faults and its memory of earlier lives of a worker work as documented? Without a
run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from archiver.log.store import Appended
from archiver.runtime.errors import OutcomeUnknown, RetryLater
from tests.harness.delivery import Item
from tests.harness.fault_plan import ERROR, LOST, REPLY_LOST, SLOW, WEATHER, Spell
from tests.harness.ledger_file import LedgerFile
from tests.harness.numbered import Left, left_behind
from tests.harness.scene import Beginning
from tests.harness.weather import StormyLog, StormyStore, Weather
from tests.support.log.memory_log import MemoryLog
from tests.support.objects.memory_store import MemoryObjectStore


class Now:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.s = 0.0
        self.reported: list[tuple[str, str]] = []

    def weather(self, *spells: Spell) -> Weather:
        return Weather(
            spells, random.Random(1), lambda: self.s, lambda kind, call: self.reported.append((kind, call))
        )


@pytest.mark.parametrize(
    ("kind", "error", "there"),
    [(ERROR, RetryLater, False), (LOST, OutcomeUnknown, False), (REPLY_LOST, OutcomeUnknown, True)],
)
def test_a_spell_spoils_a_create(kind: str, error: type[Exception], there: bool) -> None:
    now, objects = Now(), MemoryObjectStore()
    store = StormyStore(objects, now.weather(Spell(1.0, 2.0, kind, 1.0)))
    store.create("before", b"b")
    now.s = 1.5
    with pytest.raises(error):
        store.create("key", b"k")
    assert (objects.info("key") is not None) == there
    now.s = 2.0
    store.create("after", b"a")
    assert now.reported == [(kind, "objects.create")]


def test_looking_changes_nothing_so_its_reply_cannot_be_unknown() -> None:
    now, objects = Now(), MemoryObjectStore()
    objects.create("key", b"k")
    store = StormyStore(objects, now.weather(Spell(0.0, 9.0, REPLY_LOST, 1.0), Spell(0.0, 9.0, LOST, 1.0)))
    assert store.read("key") == b"k"
    with pytest.raises(RetryLater):
        StormyStore(objects, now.weather(Spell(0.0, 9.0, ERROR, 1.0))).read("key")


@pytest.mark.parametrize("kind", WEATHER)
def test_a_spell_without_a_poll_is_owed_once(kind: str) -> None:
    now = Now()
    weather = now.weather(Spell(1.0, 2.0, kind, 0.0, slow_s=0.0))
    now.s = 5.0
    assert [weather.strike("call", WEATHER) for _ in range(3)] == [kind, None, None]
    assert now.weather(Spell(1.0, 2.0, kind, 1.0)).strike("call", WEATHER) is None, (
        "it was over when this life began"
    )


@pytest.mark.parametrize(("kind", "entries"), [(REPLY_LOST, 1), (LOST, 0)])
def test_appends_of_unknown_outcome(kind: str, entries: int) -> None:
    now, log = Now(), MemoryLog("intake", 100_000)
    stormy = StormyLog(log, now.weather(Spell(0.0, 1.0, kind, 1.0)), random.Random(3))
    assert stormy.append(0, b"entry") is Appended.UNKNOWN
    assert log.tail() == entries
    now.s = 2.0
    assert stormy.append(0, b"entry") is Appended.OK, (
        "the same entry again settles it, whether it arrived or not"
    )
    assert log.tail() == 1


def test_a_refused_append() -> None:
    now, log = Now(), MemoryLog("intake", 100_000)
    with pytest.raises(RetryLater):
        StormyLog(log, now.weather(Spell(0.0, 1.0, ERROR, 1.0)), random.Random(3)).append(0, b"entry")
    assert log.tail() == 0


def test_slow_calls_are_reported_and_done() -> None:
    now, log = Now(), MemoryLog("intake", 100_000)
    assert (
        StormyLog(log, now.weather(Spell(0.0, 1.0, SLOW, 1.0, slow_s=0.0)), random.Random(3)).append(
            0, b"entry"
        )
        is Appended.OK
    )
    assert now.reported == [(SLOW, "intake.append")]


def test_nothing_is_bad_before_the_beginning(tmp_path: Path) -> None:
    beginning = Beginning(tmp_path / "beginning")
    assert beginning.elapsed_s() == -1
    Beginning(tmp_path / "beginning").say()
    assert 0 <= beginning.elapsed_s() < 60


# What earlier lives of a worker left


def sent(*records: tuple[int, int | None], attempt: int = 1) -> dict[str, Any]:
    return {
        "event": "send",
        "attempt": attempt,
        "records": [[number, "alpha", 0, sequence, "digest"] for number, sequence in records],
    }


def answered(*records: tuple[int, str, int | None], attempt: int = 1) -> dict[str, Any]:
    return {
        "event": "ack",
        "attempt": attempt,
        "records": [[number, outcome, 0, None, sequence, None] for number, outcome, sequence in records],
    }


def left(*events: dict[str, Any]) -> Left:
    found = Left()
    for event in ({"event": "producer", "producer": [4, 0]}, *events):
        found = found.after(event)
    return found


def test_stated_records_without_an_ok_are_sent_again() -> None:
    found = left(sent((0, 0), (1, 1), (2, 2)), answered((0, "ok", 0), (1, "unknown", 1)))
    assert found.stated == {1: (Item(1, "alpha", 0, 1), 1), 2: (Item(2, "alpha", 0, 2), 1)}
    assert (found.following, found.counted) == ({("alpha", 0): 3}, {})


def test_records_the_producer_counted_are_not_sent_again_unless_it_states_the_number() -> None:
    found = left(
        sent((0, None), (1, None), (2, None), (3, None)),
        answered((0, "ok", 5), (1, "unknown", 6), (2, "failed", 7)),
    )
    assert set(found.stated) == {1}
    assert set(found.counted) == {2, 3}
    assert found.following == {("alpha", 0): 6}
    again = (
        found.after(sent((1, 6), attempt=2))
        .after(answered((1, "failed", 6), attempt=2))
        .after(sent((1, None), attempt=3))
    )
    assert (set(again.stated), set(again.counted)) == (set(), {1, 2, 3}), (
        "a failed number may belong to another record by now"
    )


def test_another_producer_begins_again() -> None:
    found = left(sent((0, 0)), {"event": "producer", "producer": [4, 0]})
    assert found.stated, "this one was resumed"
    assert found.after({"event": "producer", "producer": [9, 0]}) == Left((9, 0))


def test_all_earlier_lives_of_the_worker_count(tmp_path: Path) -> None:
    for worker, life, number in (("w1", 0, 0), ("w1", 2, 1), ("w1", 10, 2), ("w2", 0, 3)):
        with LedgerFile(tmp_path, f"worker-{worker}-{life}", 0.0) as ledger:
            ledger.write("producer", sender=f"{worker}.0-idempotent", producer=[4, 0])
            ledger.write(
                "send",
                sender=f"{worker}.0-idempotent",
                attempt=1,
                records=[[number, "alpha", 0, number, "digest"]],
            )
    found = left_behind(tmp_path, "w1", "w1.0-idempotent")
    assert set(found.stated) == {0, 1, 2}

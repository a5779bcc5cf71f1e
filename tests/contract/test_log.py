"""Does every log keep the promises of the Protocol (design 4, rules L1 and L2)?"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from archiver.log.append_retry import append_until_known
from archiver.log.etcd.log_store import EtcdLogStore
from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Appended, Entry, Log
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import Halt, InvalidInput, OutcomeUnknown, RetryLater, Trimmed
from tests.support.log.etcd_server import Etcd
from tests.support.log.etcd_stores import etcd_store
from tests.support.log.faulty_log import AppendFault, FaultyLog
from tests.support.log.memory_log import MemoryLogStore

ENTRY_BYTES_MAX = 1000
REPOSITORY = Path(__file__).parents[2]

Stores = SqliteLogStore | MemoryLogStore | EtcdLogStore


def sqlite_store(path: Path, busy_timeout_s: float = 30.0) -> SqliteLogStore:
    return SqliteLogStore(path, busy_timeout_s, ENTRY_BYTES_MAX)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture(params=["sqlite", "memory", "etcd"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stores]:
    made: Stores
    if request.param == "sqlite":
        made = sqlite_store(tmp_path / "metadata.db")
    elif request.param == "memory":
        made = MemoryLogStore(ENTRY_BYTES_MAX)
    else:
        made = etcd_store(
            [request.getfixturevalue("etcd").address],
            tmp_path,
            prefix=f"/{tmp_path.name}",
            entry_bytes_max=ENTRY_BYTES_MAX,
        )
    yield made
    made.close()


@pytest.fixture
def log(store: Stores) -> Log:
    return store.log("intake")


def fill(log: Log, count: int) -> list[bytes]:
    entries = [f"entry {number}".encode() for number in range(count)]
    for index, data in enumerate(entries):
        assert log.append(index, data) is Appended.OK
    return entries


def test_a_new_log_is_empty(log: Log) -> None:
    assert (log.floor(), log.tail(), log.read(0)) == (0, 0, [])


def test_entries_come_back_in_order(log: Log) -> None:
    entries = fill(log, 5)
    assert log.read(0) == [Entry(index, data) for index, data in enumerate(entries)]
    assert log.read(3) == [Entry(3, entries[3]), Entry(4, entries[4])]
    assert (log.floor(), log.tail(), log.read(5)) == (0, 5, [])


def test_any_bytes_come_back(log: Log) -> None:
    entries = [b"\x00\xff'\"", b"\x00", bytes(range(256)), b""]
    for index, data in enumerate(entries):
        log.append(index, data)
    assert [entry.data for entry in log.read(0)] == entries


def test_two_logs_of_a_store_are_apart(store: Stores) -> None:
    intake, control = store.log("intake"), store.log("control")
    intake.append(0, b"one")
    control.append(0, b"two")
    control.append(1, b"three")
    control.trim(1)
    assert (intake.floor(), intake.tail(), control.floor(), control.tail()) == (0, 1, 1, 2)
    assert intake.read(0) == [Entry(0, b"one")]


def test_the_same_log_opened_twice_is_one(store: Stores) -> None:
    store.log("intake").append(0, b"one")
    assert store.log("intake").append(0, b"other") is Appended.TAKEN


def test_read_stops_at_its_limit(log: Log) -> None:
    entries = fill(log, 7)
    assert [entry.data for entry in log.read(1, limit=3)] == entries[1:4]
    assert [entry.data for entry in log.read(5, limit=3)] == entries[5:]
    for start, limit in ((0, 0), (0, -1), (-1, 5)):
        with pytest.raises(InvalidInput):
            log.read(start, limit)


def test_reading_beyond_the_tail_says_that_the_log_is_old(log: Log) -> None:
    fill(log, 2)
    with pytest.raises(Halt, match="ends at 2 but its reader is at 3"):
        log.read(3)


def test_the_same_bytes_at_the_same_index_are_ok_again(log: Log) -> None:
    entries = fill(log, 3)
    assert [log.append(index, data) for index, data in enumerate(entries)] == [Appended.OK] * 3
    assert log.tail() == 3


def test_other_bytes_at_an_occupied_index_are_refused(log: Log) -> None:
    entries = fill(log, 3)
    assert log.append(1, b"other") is Appended.TAKEN
    assert log.append(1, entries[1] + b"!") is Appended.TAKEN
    assert [entry.data for entry in log.read(0)] == entries


def test_a_hole_is_refused(log: Log) -> None:
    fill(log, 2)
    with pytest.raises(Halt, match="hole"):
        log.append(3, b"far")
    assert log.tail() == 2


def test_the_tail_of_a_wholly_trimmed_log_takes_an_entry(log: Log) -> None:
    fill(log, 3)
    log.trim(3)
    assert (log.floor(), log.tail(), log.read(3)) == (3, 3, [])
    with pytest.raises(Halt, match="hole"):
        log.append(4, b"far")
    assert log.append(3, b"next") is Appended.OK
    assert log.read(3) == [Entry(3, b"next")]


def test_a_writer_that_slept_across_a_trim_cannot_append_below_the_floor(log: Log) -> None:
    """Rule L1: key 1 is absent, and still not free."""
    entries = fill(log, 3)
    log.trim(2)
    for index, data in ((0, b"other"), (1, b"other"), (1, entries[1])):
        with pytest.raises(Trimmed):
            log.append(index, data)
    with pytest.raises(Trimmed):
        log.read(1)
    assert log.read(2) == [Entry(2, entries[2])]
    assert log.append(2, entries[2]) is Appended.OK


def test_trim_keeps_within_its_bounds(log: Log) -> None:
    entries = fill(log, 4)
    log.trim(3)
    log.trim(1)
    log.trim(-5)
    assert (log.floor(), log.tail()) == (3, 4)
    with pytest.raises(InvalidInput, match="nothing was trimmed"):
        log.trim(5)
    assert log.read(3) == [Entry(3, entries[3])]


def test_an_entry_may_be_as_large_as_the_limit_and_no_larger(log: Log) -> None:
    assert log.append(0, b"x" * ENTRY_BYTES_MAX) is Appended.OK
    with pytest.raises(InvalidInput, match=f"{ENTRY_BYTES_MAX + 1} bytes.*entry_bytes_max"):
        log.append(1, b"x" * (ENTRY_BYTES_MAX + 1))
    assert log.tail() == 1


def test_a_negative_index_is_refused(log: Log) -> None:
    with pytest.raises(InvalidInput):
        log.append(-1, b"x")


def test_threads_that_race_for_the_tail_make_a_dense_log(log: Log) -> None:
    threads, each = 6, 25
    won: dict[int, list[tuple[int, bytes]]] = {}
    begin = threading.Barrier(threads)

    def race(worker: int) -> None:
        won[worker] = []
        begin.wait()
        for number in range(each):
            data = f"{worker}-{number}".encode()
            index = log.tail()
            while (outcome := log.append(index, data)) is Appended.TAKEN:
                index = log.tail()
            assert outcome is Appended.OK
            won[worker].append((index, data))

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(race, range(threads)))
    acknowledged = sorted(pair for pairs in won.values() for pair in pairs)
    assert acknowledged == [(entry.index, entry.data) for entry in log.read(0, limit=10_000)]
    assert [index for index, _ in acknowledged] == list(range(threads * each))
    assert all(pairs == sorted(pairs) for pairs in won.values())


def test_of_all_who_want_one_index_one_gets_it(log: Log) -> None:
    threads = 8
    begin = threading.Barrier(threads)

    def want(worker: int) -> Appended:
        begin.wait()
        return log.append(0, f"from {worker}".encode())

    with ThreadPoolExecutor(threads) as pool:
        outcomes = list(pool.map(want, range(threads)))
    assert sorted(outcome.name for outcome in outcomes) == ["OK"] + ["TAKEN"] * (threads - 1)
    assert log.read(0)[0].data == f"from {outcomes.index(Appended.OK)}".encode()


# Resolving an unknown outcome (rule L2)

DROPPED, REPLY_LOST, LATE, REFUSED = (
    AppendFault.DROPPED,
    AppendFault.REPLY_LOST,
    AppendFault.LATE,
    AppendFault.REFUSED,
)


def settle(
    log: Log, index: int, data: bytes, attempts_max: int = 5, clock: ManualClock | None = None
) -> Appended:
    return append_until_known(log, index, data, attempts_max, 0.05, clock or ManualClock())


@pytest.mark.parametrize(
    "script", [(), (DROPPED,), (REPLY_LOST,), (LATE,), (DROPPED, REPLY_LOST), (LATE, DROPPED, REFUSED, LATE)]
)
def test_an_unknown_append_ends_with_one_entry(log: Log, script: tuple[AppendFault, ...]) -> None:
    entries = fill(log, 2)
    faulty = FaultyLog(log, script)
    assert settle(faulty, 2, b"mine") is Appended.OK
    assert [entry.data for entry in log.read(0)] == [*entries, b"mine"]
    assert set(faulty.appends) == {(2, b"mine")}


def test_an_unknown_append_whose_index_another_took_is_taken(log: Log) -> None:
    faulty = FaultyLog(log, [DROPPED])

    class Slow(ManualClock):
        def sleep(self, seconds: float) -> None:
            log.append(0, b"theirs")

    assert settle(faulty, 0, b"mine", clock=Slow()) is Appended.TAKEN
    assert log.read(0) == [Entry(0, b"theirs")]


def test_a_late_append_that_lost_its_index_changes_nothing(log: Log) -> None:
    faulty = FaultyLog(log, [LATE])
    assert faulty.append(0, b"late") is Appended.UNKNOWN
    log.append(0, b"theirs")
    assert faulty.append(0, b"late") is Appended.TAKEN
    assert log.read(0) == [Entry(0, b"theirs")]


def test_an_outcome_that_stays_unknown_is_said_to_be_so_after_bounded_waiting(log: Log) -> None:
    clock = ManualClock()
    faulty = FaultyLog(log, [DROPPED] * 20)
    with pytest.raises(OutcomeUnknown, match="after 9 attempts"):
        settle(faulty, 0, b"mine", attempts_max=9, clock=clock)
    assert len(faulty.appends) == 9
    assert clock.monotonic_s() == pytest.approx(0.05 * (1 + 2 + 4 + 8 + 16 + 32 + 32 + 32))


def test_refused_at_the_first_try_is_certainly_not_appended(log: Log) -> None:
    faulty = FaultyLog(log, [REFUSED])
    with pytest.raises(RetryLater):
        settle(faulty, 0, b"mine")
    assert (len(faulty.appends), log.tail()) == (1, 0)


def test_refused_after_an_unknown_try_is_still_unknown(log: Log) -> None:
    faulty = FaultyLog(log, [REPLY_LOST, REFUSED, REFUSED])
    with pytest.raises(OutcomeUnknown):
        settle(faulty, 0, b"mine", attempts_max=3)
    assert log.read(0) == [Entry(0, b"mine")]


def test_trimmed_after_an_unknown_try_is_not_called_a_failure(log: Log) -> None:
    fill(log, 1)
    faulty = FaultyLog(log, [REPLY_LOST])

    class Slow(ManualClock):
        def sleep(self, seconds: float) -> None:
            log.trim(2)

    with pytest.raises(OutcomeUnknown, match="may have been appended"):
        settle(faulty, 1, b"mine", clock=Slow())


def test_what_the_first_try_refuses_for_good_passes_through(log: Log) -> None:
    fill(log, 2)
    log.trim(1)
    for index, error in ((0, Trimmed), (3, Halt)):
        with pytest.raises(error):
            settle(log, index, b"mine")
    with pytest.raises(InvalidInput):
        settle(log, 2, b"x" * (ENTRY_BYTES_MAX + 1))

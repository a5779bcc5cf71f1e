"""Registrations in SQLite beyond the Protocol: the database of other versions, and the clock of the machine."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from archiver.log import brokers
from archiver.log.brokers import SqliteBrokers
from archiver.log.open import SqliteMetadata
from archiver.log.sqlite import SqliteLogStore, tails
from archiver.log.store import Appended
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import SystemIds

TIMEOUT_S = 10.0


def registry(store: SqliteLogStore, clock: ManualClock) -> SqliteBrokers:
    return SqliteBrokers(store, TIMEOUT_S, clock, SystemIds())


def sqlite_store(path: Path, busy_timeout_s: float = 30.0) -> SqliteLogStore:
    return SqliteLogStore(path, busy_timeout_s, 1000)


def tables(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as connection:
        return {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}


def test_an_older_database_is_read_as_it_is_and_extended_by_a_registration(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = sqlite_store(path)
    log = store.log("intake")
    log.append(0, b"entry")
    older = tables(path)
    one = registry(store, ManualClock())
    assert one.live() == [] and one.heartbeat() is None
    one.release()
    assert tables(path) == older == {"logs", "log_intake"}
    one.register("host", 9092, "")
    assert tables(path) == {*older, "brokers"}
    store.close()


def test_the_format_stays_so_that_an_older_version_opens_the_database(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = sqlite_store(path)
    store.log("intake").append(0, b"entry")
    with closing(sqlite3.connect(path)) as connection:
        before = [
            connection.execute(f"pragma {name}").fetchone() for name in ("application_id", "user_version")
        ]
    registry(store, ManualClock()).register("host", 9092, "")
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        after = [
            connection.execute(f"pragma {name}").fetchone() for name in ("application_id", "user_version")
        ]
    assert after == before == [(0x61726368,), (1,)]
    # An older version has this part of the code alone.
    assert tails(path, 1.0) == {"intake": 1}
    again = sqlite_store(path)
    assert again.log("intake").append(1, b"more") is Appended.OK
    again.close()


def test_a_wall_clock_that_is_set_ends_no_registration(tmp_path: Path) -> None:
    clock = ManualClock()
    store = sqlite_store(tmp_path / "metadata.db")
    one = registry(store, clock)
    broker = one.register("host", 9092, "")
    for now_us in (0, 2**52):
        clock.set_wall(now_us)
        assert registry(store, clock).live() == [broker]
    store.close()


@pytest.mark.parametrize("later_s", [-TIMEOUT_S - 1, 1.0])
def test_a_registration_of_an_earlier_boot_is_not_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, later_s: float
) -> None:
    """The monotonic clock starts again, so a time of the earlier boot may be behind it or ahead of it."""
    clock = ManualClock()
    clock.advance(100)
    store = sqlite_store(tmp_path / "metadata.db")
    registry(store, clock).register("host", 9092, "")
    rebooted = ManualClock()
    rebooted.advance(100 + later_s)
    (tmp_path / "boot_id").write_text("another\n")
    monkeypatch.setattr(brokers, "BOOT_ID", tmp_path / "boot_id")
    after = registry(store, rebooted)
    assert after.live() == []
    assert after.register("host", 9092, "").node_id == 1
    store.close()


def test_without_a_boot_id_a_time_far_ahead_is_not_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "BOOT_ID", tmp_path / "absent")
    clock, rebooted = ManualClock(), ManualClock()
    clock.advance(10 * TIMEOUT_S)
    store = sqlite_store(tmp_path / "metadata.db")
    broker = registry(store, clock).register("host", 9092, "")
    assert registry(store, clock).live() == [broker]
    assert registry(store, rebooted).live() == []
    store.close()


def test_a_registration_ends_exactly_by_its_own_time_limit(tmp_path: Path) -> None:
    clock = ManualClock()
    store = SqliteMetadata(tmp_path / "metadata.db", 30.0, 1000, clock, SystemIds())
    short, long = store.brokers(TIMEOUT_S), store.brokers(60.0)
    first, second = short.register("host", 1, ""), long.register("host", 2, "")
    clock.advance(TIMEOUT_S)
    assert short.live() == [first, second]
    clock.advance(0.001)
    assert short.live() == long.live() == [second]
    store.close()


def test_a_locked_database_delays_a_heartbeat_for_a_bounded_time(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "metadata.db", busy_timeout_s=0.05)
    one = registry(store, ManualClock())
    broker = one.register("host", 9092, "")
    with closing(sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        with pytest.raises(RetryLater, match="locked by another process"):
            one.heartbeat()
        assert one.live() == [broker], "readers do not wait"
        other.execute("rollback")
    assert one.heartbeat() == broker
    store.close()


def test_a_release_that_is_not_stored_ends_by_the_time_limit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    store = sqlite_store(tmp_path / "metadata.db", busy_timeout_s=0.05)
    one = registry(store, clock)
    one.register("host", 9092, "")
    with closing(sqlite3.connect(tmp_path / "metadata.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        one.release()
        other.execute("rollback")
    assert "ends by its time limit" in caplog.text
    assert one.heartbeat() is None
    assert len(one.live()) == 1
    clock.advance(TIMEOUT_S + 1)
    assert one.live() == []
    store.close()

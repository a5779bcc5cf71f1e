"""Properties of the log in SQLite beyond the Protocol, because it lives in a file that processes share."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Appended, Entry, Log
from archiver.runtime.errors import Corrupted, Halt, InvalidInput, RetryLater

ENTRY_BYTES_MAX = 1000
REPOSITORY = Path(__file__).parents[2]


def sqlite_store(path: Path, busy_timeout_s: float = 30.0) -> SqliteLogStore:
    return SqliteLogStore(path, busy_timeout_s, ENTRY_BYTES_MAX)


def fill(log: Log, count: int) -> list[bytes]:
    entries = [f"entry {number}".encode() for number in range(count)]
    for index, data in enumerate(entries):
        assert log.append(index, data) is Appended.OK
    return entries


def test_entries_outlive_the_store(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "metadata.db"
    first = sqlite_store(path)
    entries = fill(first.log("intake"), 3)
    first.log("intake").trim(1)
    first.close()
    with pytest.raises(Halt, match="closed"):
        first.log("intake")
    second = sqlite_store(path)
    log = second.log("intake")
    assert (log.floor(), log.tail(), [entry.data for entry in log.read(1)]) == (1, 3, entries[1:])
    second.close()


def test_writes_through_to_the_disk(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "metadata.db")
    store.log("intake")
    assert (
        store.transact("begin", lambda connection: connection.execute("pragma synchronous").fetchone()[0])
        == 2
    )
    assert (
        store.transact("begin", lambda connection: connection.execute("pragma journal_mode").fetchone()[0])
        == "wal"
    )
    store.close()


def test_closed_handles_are_opened_again(tmp_path: Path) -> None:
    store = sqlite_store(tmp_path / "metadata.db")
    log = store.log("intake")
    log.append(0, b"one")
    log.close()
    assert log.read(0) == [Entry(0, b"one")]
    store.close()


def test_two_processes_race_for_the_tail(tmp_path: Path) -> None:
    """Both start on a file that does not exist."""
    path, each = tmp_path / "metadata.db", 400
    command = [sys.executable, "-m", "tests.support.log.appender", str(path)]
    running = [
        subprocess.Popen(
            [*command, owner, str(each), "1"], cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for owner in ("a", "b")
    ]
    results = [process.communicate(timeout=110) for process in running]
    assert [process.returncode for process in running] == [0, 0], results
    acknowledged = [[line.split() for line in out.decode().splitlines()] for out, _ in results]
    store = SqliteLogStore(path, 5.0, 512 * 1024)
    found = [(str(entry.index), entry.data.split(b":")[0].decode()) for entry in store.log("intake").read(0)]
    store.close()
    assert sorted(found) == sorted((index, name) for pairs in acknowledged for index, name in pairs)
    assert [int(index) for index, _ in found] == list(range(2 * each))
    for owner in ("a", "b"):
        assert [name for _, name in found if name.startswith(owner)] == [
            f"{owner}-{number}" for number in range(each)
        ]


def test_locked_past_the_time_out_means_not_appended(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = sqlite_store(path, busy_timeout_s=0.1)
    log = store.log("intake")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("begin immediate")
    with pytest.raises(RetryLater, match="locked by another process"):
        log.append(0, b"one")
    assert log.read(0) == []
    other.execute("rollback")
    other.close()
    assert log.append(0, b"one") is Appended.OK
    store.close()


def foreign_version(path: Path) -> None:
    sqlite_store(path).close()
    with sqlite3.connect(path) as connection:
        connection.execute("pragma user_version = 99")
    connection.close()


def foreign_database(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("create table iceberg_tables (name text)")
    connection.close()


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (foreign_version, "has format 99, this version reads format 1"),
        (foreign_database, "database of another program"),
        (lambda path: path.write_bytes(b"cluster: demo\n" * 100), "is not a database"),
        (lambda path: path.mkdir(), "cannot be opened"),
    ],
)
def test_refuses_a_file_that_is_not_its_own(
    tmp_path: Path, prepare: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "metadata.db"
    prepare(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(Halt, match=message):
        sqlite_store(path)
    assert (path.read_bytes() if path.is_file() else None) == before
    assert not list(tmp_path.glob("*-wal"))


def test_refuses_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Halt, match="cannot create the folder"):
        sqlite_store(tmp_path / "file" / "below" / "metadata.db")


def test_acknowledges_nothing_in_a_file_that_was_removed_or_replaced(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = sqlite_store(path)
    log = store.log("intake")
    log.append(0, b"one")
    path.rename(tmp_path / "moved.db")
    with pytest.raises(Halt, match="cannot be used"):
        log.append(1, b"two")
    store.close()


def test_a_lost_entry_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    store = sqlite_store(path)
    log = store.log("intake")
    fill(log, 4)
    with sqlite3.connect(path) as connection:
        connection.execute("delete from log_intake where idx = 2")
    connection.close()
    with pytest.raises(Corrupted, match="no entry 2"):
        log.read(1)
    with pytest.raises(Corrupted, match="no entry 2"):
        log.append(2, b"new")
    store.close()


def test_refuses_to_go_on_in_a_forked_process(tmp_path: Path) -> None:
    """The fork runs in a process of its own, because the test's own process has threads."""
    program = f"""
import os
from pathlib import Path
from archiver.runtime.errors import Halt
from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Appended
store = SqliteLogStore(Path({str(tmp_path / "metadata.db")!r}), 5.0, 1000)
log = store.log("intake")
child = os.fork()
if child == 0:
    refused = 0
    try:
        log.append(0, b"child")
    except Halt:
        refused += 1
    try:
        SqliteLogStore(store.path, 5.0, 1000)
    except Halt:
        refused += 1
    del log, store
    os._exit(10 + refused)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 12
assert log.append(0, b"parent") is Appended.OK
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("name", ["", "Intake", "a-b", "1a", "x; drop table logs", "a" * 41])
def test_refuses_log_names_that_are_no_words(tmp_path: Path, name: str) -> None:
    store = sqlite_store(tmp_path / "metadata.db")
    with pytest.raises(InvalidInput, match="log name"):
        store.log(name)
    store.close()

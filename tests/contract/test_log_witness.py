"""The tail marker next to the metadata database, which holds how far a log once reached."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Appended
from archiver.log.tail_marker import TailMarker
from archiver.runtime.errors import Halt


def log_of(path: Path, entries: int = 0) -> SqliteLogStore:
    store = SqliteLogStore(path, 5, 1000)
    log = store.log("intake")
    for number in range(log.tail(), log.tail() + entries):
        assert log.append(number, b"entry %d" % number) is Appended.OK
    return store


def test_a_copy_that_lost_one_entry_takes_none(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    log_of(path, 3).close()
    shutil.copy(path, tmp_path / "copy.db")
    log_of(path, 1).close()
    assert (tmp_path / "metadata.db.intake.tail").read_text() == f"{4:020} {4:020}\n"
    path.unlink()
    shutil.copy(tmp_path / "copy.db", path)
    store = log_of(path)
    log = store.log("intake")
    with pytest.raises(
        Halt,
        match=r"ends at entry 3, but .*metadata\.db\.intake\.tail says that it once had 4.*put the newest "
        r"one in place",
    ):
        log.append(3, b"another")
    assert log.tail() == 3
    assert len(log.read(0)) == 3  # a read-only process continues
    assert store.log("control").append(0, b"of another log") is Appended.OK
    store.close()


@pytest.mark.parametrize(
    "text",
    [b"", b"\0" * 42, b"4 4\n", b"9" * 20 + b"\n", b"%020d %020d\n" % (299, 200), b"%020d %020d" % (9, 9)],
)
def test_a_garbled_note_says_nothing(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "metadata.db"
    log_of(path, 2).close()
    (tmp_path / "metadata.db.intake.tail").write_bytes(text)
    log_of(path, 1).close()
    assert (tmp_path / "metadata.db.intake.tail").read_bytes()[:42] == b"%020d %020d\n" % (3, 3)


def test_it_never_goes_back_and_outlives_trimming(tmp_path: Path) -> None:
    store = log_of(tmp_path / "metadata.db", 5)
    log = store.log("intake")
    log.trim(5)
    assert log.append(4 + 1, b"behind the floor") is Appended.OK
    slow = TailMarker(tmp_path / "metadata.db.intake.tail")
    slow.note(2)  # written by a process that was paused between its commit and its marker
    slow.close()
    assert (tmp_path / "metadata.db.intake.tail").read_text() == f"{6:020} {6:020}\n"
    store.close()


def test_a_folder_that_cannot_be_written_does_not_stop_the_log(tmp_path: Path) -> None:
    (tmp_path / "metadata.db.intake.tail").mkdir()
    log_of(tmp_path / "metadata.db", 2).close()

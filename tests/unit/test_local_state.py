"""The local state of a daemon: kept over a restart, and never a reason to stop."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from archiver.daemon.local_state import FIRST_SAVE_S, SAVE_S, LocalState, charts_path
from archiver.runtime.clock import ManualClock
from archiver.runtime.local_file import NotUsable, read_local_file, replace_local_file
from archiver.status.history import LagHistory
from archiver.status.journal import Journal
from tests.support.builders.standings import of, partition, topic

CLUSTER = "c" * 32


class Kept:
    """A history with the state that keeps it, on a clock that only a test moves."""

    def __init__(self, folder: Path, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock()
        self.history = LagHistory(3600.0, 10)
        self.metadata = folder / "metadata.db"
        self.state = LocalState(self.metadata, self.history, Journal(5), self.clock)

    @property
    def path(self) -> Path:
        return charts_path(self.metadata)

    def sample(self, seconds: float = 5.0) -> None:
        self.history.add(of(topic(partition(0, 1, seconds))), self.clock.monotonic_s())

    def seconds(self) -> list[float]:
        return [one.seconds for one in self.history.samples("orders") if one.seconds is not None]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_samples_are_kept_and_written_at_most_every_minute(tmp_path: Path) -> None:
    one = Kept(tmp_path)
    one.state.load(CLUSTER)
    one.state.run()
    one.clock.advance(FIRST_SAVE_S)
    one.state.run()
    assert not one.path.exists(), "there is no sample yet"
    one.clock.advance(SAVE_S)
    one.sample(7.0)
    one.state.run()
    assert one.path.stat().st_mode & 0o777 == 0o600
    written = one.path.stat().st_mtime_ns, one.path.stat().st_ino
    one.clock.advance(SAVE_S - 1)
    one.state.run()
    assert (one.path.stat().st_mtime_ns, one.path.stat().st_ino) == written
    one.sample(9.0)
    one.state.save()
    following = Kept(tmp_path, one.clock)
    following.state.load(CLUSTER)
    assert following.seconds() == [7, 9]
    assert [path.name for path in tmp_path.iterdir()] == ["metadata.db.charts"], "no draft is left"


def test_nothing_is_written_before_the_old_file_was_read(tmp_path: Path) -> None:
    one = Kept(tmp_path)
    one.sample()
    one.state.save()
    assert not one.path.exists()


@pytest.mark.parametrize("content", [b"", b"garbage\n\xff", b"{}\n"])
def test_a_damaged_file_is_one_line_of_the_log_and_written_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    one = Kept(tmp_path)
    one.path.write_bytes(content)
    one.state.load(CLUSTER)
    (line,) = warnings(caplog)
    assert line.startswith(f"{one.path} is ignored, and will be written again: ")
    one.sample(3.0)
    one.state.save()
    following = Kept(tmp_path, one.clock)
    following.state.load(CLUSTER)
    assert following.seconds() == [3]
    assert len(warnings(caplog)) == 1


def test_the_charts_of_another_cluster_are_not_continued(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = Kept(tmp_path)
    one.state.load(CLUSTER)
    one.sample()
    one.state.save()
    other = Kept(tmp_path, one.clock)
    other.state.load("d" * 32)
    assert other.seconds() == []
    assert "it is of another cluster" in warnings(caplog)[0]


@pytest.mark.parametrize("kind", ["pipe", "link", "folder", "open to all"])
def test_what_is_no_file_of_ours_is_not_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    one = Kept(tmp_path)
    if kind == "pipe":
        os.mkfifo(one.path)
    elif kind == "link":
        (tmp_path / "elsewhere").write_bytes(b"x")
        one.path.symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        one.path.mkdir()
    else:
        one.path.write_bytes(b"x")
        one.path.chmod(0o666)
    one.state.load(CLUSTER)
    one.sample()
    one.state.save()
    one.state.save()
    # A folder cannot be replaced; the line about that comes once.
    assert len(warnings(caplog)) == (2 if kind == "folder" else 1)
    assert one.path.is_file() == (kind != "folder")
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".new")]


def test_a_folder_that_cannot_be_written_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "state"
    one = Kept(folder)
    one.state.load(CLUSTER)
    one.sample()
    for _ in range(3):
        one.clock.advance(SAVE_S)
        one.state.run()
    (line,) = warnings(caplog)
    assert line == f"{one.path} cannot be written, and it is tried again: No such file or directory"
    folder.mkdir()
    one.state.save()
    assert one.path.exists()


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    replace_local_file(path, b"old", 0o600)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        replace_local_file(path, b"new", 0o600)
    assert [one.name for one in tmp_path.iterdir()] == ["a"]
    assert read_local_file(path, 3) == b"old"
    with pytest.raises(NotUsable, match="more than 2 bytes"):
        read_local_file(path, 2)
    assert read_local_file(tmp_path / "absent", 2) is None

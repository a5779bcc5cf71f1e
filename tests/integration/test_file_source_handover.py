"""Files that appear, are ingested and are removed, under names that are used again; and the warnings about
files that stay.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from intake.log.source_positions import Begun
from intake.sources.files import ingest, source
from intake.sources.files.ingest import OpenedFile, SeenFolders
from tests.support.intake.file_sources import TOPIC, Inbox, file_of, numbered
from tests.support.log.faulty_log import AppendFault


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Names of the folder's files in the warnings since the last call."""
    found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    caplog.clear()
    return sorted(text.partition("/in/")[2] for text in found)


def test_a_job_that_tidies_up_after_itself(tmp_path: Path) -> None:
    """One file, always of the same name in a folder of its own, is removed each time it is ingested."""
    inbox = Inbox(tmp_path)
    taker = inbox.process(text=True)
    for number in range(4):
        path = inbox.put("export.jsonl", file_of([f"{number}".encode()], "jsonl"))
        assert taker.look().finished == 1
        assert taker.state.files == number + 1
        path.unlink()
        assert taker.look().finished == 0, "the folder is the one in which it was"
    assert inbox.values() == [b"0", b"1", b"2", b"3"]


def test_a_folder_of_its_own_for_each_job(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    taker = inbox.process("jsonl", "**", text=True)
    for number in range(2):
        path = inbox.put("job/export.jsonl", file_of([f"{number}".encode()], "jsonl"))
        assert taker.look(2).finished == 1
        path.unlink()
        path.parent.rmdir()
        assert taker.look().finished == 0
    assert inbox.values() == [b"0", b"1"]


def test_a_file_that_another_process_took_in_and_this_one_saw(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    path = inbox.put("a", file_of([b"x"], "jsonl"))
    assert inbox.process(text=True).look().finished == 1
    taker = inbox.process(text=True)
    assert taker.look(2).finished == 1
    path.unlink()
    assert taker.look().finished == 0


def test_a_file_system_that_is_not_mounted_forgets_nothing(tmp_path: Path) -> None:
    """An empty folder replaces the one with the files. When the files are back, none is ingested again."""
    inbox = Inbox(tmp_path)
    inbox.put("a", file_of([b"x"], "jsonl"))
    taker = inbox.process(text=True)
    assert taker.look(2).finished == 1
    away = inbox.folder.rename(tmp_path / "unmounted")
    inbox.folder.mkdir()
    assert taker.look(2).finished == 1
    inbox.folder.rmdir()
    away.rename(inbox.folder)
    assert taker.look(2).finished == 1
    assert inbox.values() == [b"x"]


def test_after_a_restart_an_empty_folder_proves_nothing_until_something_lies_in_it(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    path = inbox.put("a", file_of([b"x"], "jsonl"))
    assert inbox.process(text=True).look(2).finished == 1
    path.unlink()
    taker = inbox.process(text=True)
    assert taker.look(2).finished == 1
    (inbox.folder / ".keep").touch()
    assert taker.look(2).finished == 0


def test_a_mount_point_that_goes_with_its_file_system_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is on another device than the folder above its own, and both its folder and the device
    vanish."""
    known = SeenFolders()
    path = tmp_path / "media" / "stick" / "a"
    path.parent.mkdir(parents=True)
    path.touch()
    stat, fstat = os.stat, os.fstat
    stick = path.parent.stat().st_ino

    def on_another_device(found: os.stat_result) -> os.stat_result:
        return os.stat_result((*found[:2], found.st_dev + (found.st_ino in (stick, inode)), *found[3:]))

    inode = path.stat().st_ino
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda *given, **more: on_another_device(stat(*given, **more)))
        patch.setattr(os, "fstat", lambda *given: on_another_device(fstat(*given)))
        known.saw(str(path))
        path.unlink()
        assert known.prove_gone(str(path)), "its own folder is the same"
    path.parent.rmdir()
    assert not known.prove_gone(str(path))


def test_what_is_remembered_of_folders_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ingest, "FOLDERS_MAX", 3)
    known = SeenFolders()
    for number in range(20):
        path = tmp_path / f"{number}" / "a"
        path.parent.mkdir()
        path.touch()
        known.saw(str(path))
    assert len(known._known) == 3


@pytest.mark.parametrize("comes_again", [False, True])
def test_a_file_that_was_forgotten_between_opening_and_reading(
    comes_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The opened file no longer has the name, though the log is known to its tail. Its records are ingested
    already and must not come in twice."""
    inbox = Inbox(tmp_path)
    path = inbox.put("a", file_of([b"x"], "jsonl"))
    inbox.put("b", file_of([b"y"], "jsonl"))
    sleeper, other = inbox.process(text=True), inbox.process(text=True)

    class OpenedLate(OpenedFile):
        """Sleeps when it has the file open."""

        def __init__(self, name: str) -> None:
            super().__init__(name)
            monkeypatch.setattr(ingest, "OpenedFile", OpenedFile)
            assert other.look().finished == 2
            path.unlink()
            assert other.look().finished == 1
            if comes_again:
                inbox.put("a", file_of([b"again"], "jsonl"))
            sleeper.sequencer.refresh()  # as the writer of the same process does

    monkeypatch.setattr(ingest, "OpenedFile", OpenedLate)
    assert sleeper.look(2).trouble is None
    assert inbox.values() == [b"x", b"y", *([b"again"] if comes_again else [])]


def test_a_file_that_changes_before_anything_of_it_is_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was read may be of neither file, so none of it is ingested. All of the file is ingested once it no
    longer changes."""
    inbox = Inbox(tmp_path)
    path = inbox.put("a", file_of(numbered("a", 3), "jsonl"))

    class OpenedBefore(OpenedFile):
        """Another program writes to the file when it is open."""

        def __init__(self, name: str) -> None:
            super().__init__(name)
            path.write_bytes(file_of(numbered("b", 5), "jsonl"))

    taker = inbox.process(text=True)
    with monkeypatch.context() as patch:
        patch.setattr(ingest, "OpenedFile", OpenedBefore)
        (problem,) = taker.look().problems
        assert problem.why == ingest.CHANGING
        assert inbox.log.tail() <= 1, "the topic, and nothing else"
    assert taker.look(2).finished == 1
    assert inbox.values() == numbered("b", 5)


@pytest.mark.parametrize(("retry_s", "opened"), [(600.0, 1), (0.0, 4)])
def test_a_file_that_failed_is_opened_again_after_a_while(
    retry_s: float,
    opened: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox = Inbox(tmp_path)
    inbox.put("a", b"no record")
    names: list[str] = []

    class OpenedCounted(OpenedFile):
        """Records the name of each file that is opened."""

        def __init__(self, name: str) -> None:
            super().__init__(name)
            names.append(name)

    monkeypatch.setattr(ingest, "OpenedFile", OpenedCounted)
    monkeypatch.setattr(source, "RETRY_S", retry_s)
    state = inbox.process(text=True).look(4)
    assert (len(names), state.failed, len(state.problems), state.waiting) == (opened, 1, 1, 0)
    assert len(warned(caplog)) == 1, "however often it is tried"


def test_files_that_another_finished_are_not_counted(tmp_path: Path) -> None:
    """The other process ingests two of three files while this one has listed all three."""
    inbox = Inbox(tmp_path)
    for name in "abc":
        inbox.put(name, file_of([name.encode()], "jsonl"))
    taker, other = inbox.process(text=True), inbox.process(text=True)
    create = inbox.objects.create

    def create_late(key: str, data: bytes) -> None:
        inbox.objects.create = create  # type: ignore[method-assign]
        assert other.look().files == 3
        create(key, data)

    inbox.objects.create = create_late  # type: ignore[method-assign]
    state = taker.look()
    assert (state.files, state.records, state.finished, state.waiting) == (0, 0, 3, 0)
    inbox.put("d", file_of([b"d"], "jsonl"))
    assert (taker.look().files, taker.state.finished) == (1, 4)
    assert inbox.values() == [b"a", b"b", b"c", b"d"]


def test_each_problem_is_logged_once_and_again_when_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = Inbox(tmp_path)
    inbox.put("bad", b"no record")
    taker = inbox.process(text=True)
    (inbox.folder / "link").symlink_to("bad")
    os.mkfifo(inbox.folder / "pipe")
    state = taker.look()
    reported = warned(caplog)
    assert reported == sorted(
        f"{problem.path.partition('/in/')[2]}: {problem.why}" for problem in state.problems
    )
    assert [line.partition(":")[0] for line in reported] == ["bad", "link", "pipe"]
    assert "a symbolic link is not followed" in reported[1]
    assert "remove it from the folder" in reported[2]
    taker.look(3)
    assert warned(caplog) == []
    (inbox.folder / "link").unlink()
    os.mkfifo(inbox.folder / "link")
    taker.look(2)
    (changed,) = warned(caplog)
    assert changed.startswith("link: this is no regular file")
    (inbox.folder / "pipe").unlink()
    taker.look(2)
    os.mkfifo(inbox.folder / "pipe")
    taker.look(2)
    assert [line.partition(":")[0] for line in warned(caplog)] == ["pipe"], "it was fixed, and is there again"


def test_a_begun_file_that_is_gone_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox(tmp_path)
    path = inbox.put("a", file_of(numbered("a", 20), "jsonl"))
    inbox.log.script(AppendFault.NONE, AppendFault.NONE, AppendFault.REFUSED)
    taker = inbox.process(text=True, delay_max_bytes=300)
    taker.look()
    assert isinstance(inbox.fold().positions.get(f"files:{TOPIC}", str(path)), Begun)
    kept = path.rename(tmp_path / "a")
    caplog.clear()
    assert taker.look(3).gone == 1
    (reported,) = warned(caplog)
    assert reported.startswith("a: the file is partly ingested and does not exist any more; restore it")
    kept.rename(path)
    assert (taker.look().gone, taker.state.finished) == (0, 1)
    assert inbox.values() == numbered("a", 20)

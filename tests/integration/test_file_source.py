"""Files that a source ingests by itself: each record once and in order, for any content of the folder and any
failure on the way.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from archiver.log.sqlite import SqliteLogStore
from archiver.objects.local import LocalObjectStore
from archiver.runtime.errors import RetryLater
from intake.log.source_positions import Begun, Finished
from intake.sources.files.ingest import CHANGED as CHANGED_SINCE
from tests.support.intake.file_sources import (
    FORMATS,
    STOP_S,
    TOPIC,
    Inbox,
    Taker,
    file_of,
    numbered,
    until_finished,
)
from tests.support.log.faulty_log import AppendFault
from tests.support.objects.faulty_objects import ObjectFault
from tests.support.process.privileges import file_modes_hold

SMALL = 300
"""Bytes of a piece: three or four of the small records, counted with the overhead of a row."""


def options(form: str) -> dict[str, Any]:
    return {"form": form, "text": form == "jsonl", "delay_max_bytes": SMALL}


@pytest.mark.parametrize("form", FORMATS)
def test_files_are_taken_in_once_in_order(form: str, tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    for name in ("b", "a", "c"):
        inbox.put(name, file_of(numbered(name, 11), form))
    taker = inbox.process(**options(form))
    state = taker.look()
    assert inbox.values() == [*numbered("a", 11), *numbered("b", 11), *numbered("c", 11)]
    assert (state.finished, state.files, state.records, state.failed, state.waiting) == (3, 3, 33, 0, 0)
    assert state.bytes == sum(len(value or b"") for value in inbox.values())
    entries = inbox.log.tail()
    assert entries > 9, "in several pieces"
    assert inbox.process(**options(form)).look(2).waiting == 0
    assert inbox.log.tail() == entries
    inbox.put("a2", file_of(numbered("new", 2), form))
    taker.look()
    assert inbox.values()[33:] == numbered("new", 2)


@pytest.mark.parametrize(
    "fault", [AppendFault.DROPPED, AppendFault.REPLY_LOST, AppendFault.LATE, AppendFault.REFUSED]
)
@pytest.mark.parametrize("form", FORMATS)
def test_a_process_goes_on_where_another_stopped(form: str, fault: AppendFault, tmp_path: Path) -> None:
    """The first process meets the fault at every attempt of its fourth entry, and never runs again."""
    inbox = Inbox(tmp_path)
    inbox.put("a", file_of(numbered("a", 20), form))
    inbox.log.script(*[AppendFault.NONE] * 3, *[fault] * (1 if fault is AppendFault.REFUSED else 2))
    broken = inbox.process(**options(form))
    assert broken.look().trouble is not None
    known = inbox.fold().positions.get(f"files:{TOPIC}", f"{inbox.folder}/a")
    assert isinstance(known, Begun)
    after = inbox.process(**options(form))
    assert after.look().finished == 1
    assert inbox.values() == numbered("a", 20)
    assert broken.look().trouble is None, "the one that was slow finds out, and does no harm"
    assert inbox.values() == numbered("a", 20)


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_process_goes_on_after_an_unknown_outcome(form: str, tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.put("a", file_of(numbered("a", 20), form))
    inbox.log.script(AppendFault.NONE, AppendFault.NONE, AppendFault.LATE, AppendFault.DROPPED)
    taker = inbox.process(**options(form))
    assert "nothing" not in (taker.look().trouble or "")
    assert taker.look(2).trouble is None
    assert inbox.values() == numbered("a", 20)


def test_two_processes_on_one_folder(tmp_path: Path) -> None:
    """Two threads race for every piece, on a real log and a real store."""
    logs = SqliteLogStore(tmp_path / "metadata.db", 30, 512 * 1024)
    inbox = Inbox(tmp_path, logs.log("intake"), LocalObjectStore(tmp_path / "data"))
    for number in range(12):
        inbox.put(f"{number:02}", file_of(numbered(f"f{number}", 15), "jsonl"))
    takers = [inbox.process(**options("jsonl"), append_attempts_max=10) for _ in range(2)]
    for taker in takers:
        taker.sources.start()
    until_finished(takers, 12, lambda: time.sleep(0.02))
    assert all(taker.sources.stop(STOP_S) for taker in takers)
    values = inbox.values()
    assert sorted(values) == sorted(value for number in range(12) for value in numbered(f"f{number}", 15))  # type: ignore[type-var]
    for number in range(12):
        assert [value for value in values if value and value.startswith(f"f{number} ".encode())] == numbered(
            f"f{number}", 15
        )
    logs.close()


def test_a_bad_record_stops_its_file_and_no_other(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    lines = [json.dumps({"value": value.decode()}) for value in numbered("a", 9)]
    bad = inbox.put("a", "\n".join([*lines[:7], '{"value": 7}', *lines[7:]]).encode())
    inbox.put("b", file_of(numbered("b", 2), "jsonl"))
    inbox.put("c", b'{"topic": "another", "value": null}\n')
    taker = inbox.process(**options("jsonl"))
    state = taker.look(3)
    assert inbox.values() == [*numbered("a", 7), *numbered("b", 2)]
    assert (state.finished, state.failed, state.waiting) == (1, 2, 0)
    first, second = state.problems
    assert first.path == str(bad)
    assert first.why.startswith(
        "line 8: 'value' is a number; it must be text or null. Everything before byte "
    )
    assert first.why.endswith("a partly ingested file must not change")
    assert second.why == (
        "line 1: 'topic' is 'another', but the input as a whole is for 't'; leave one of them out. "
        "Nothing of the file is ingested: fix it, and it is retried"
    )
    # Another process, which has no line numbers of the first one, comes to the same result.
    assert inbox.process(**options("jsonl")).look().problems == state.problems
    # Nothing of c was ingested, so it may be fixed; a was begun, so its rest needs another name.
    inbox.put("c", b'{"value": "c"}\n')
    inbox.put("a", ("\n".join([*lines[:7], *lines[7:]])).encode())
    state = taker.look()
    assert [(one.path, one.why) for one in state.problems] == [
        (str(bad), CHANGED_SINCE.format(where=f"byte {len(chr(10).join(lines[:7])) + 1}"))
    ]
    bad.unlink()
    inbox.put("rest", ("\n".join(lines[7:])).encode())
    state = taker.look()
    assert (state.failed, state.gone, state.finished) == (0, 1, 3)
    assert inbox.values() == [*numbered("a", 7), *numbered("b", 2), b"c", *numbered("a", 9)[7:]]


@pytest.mark.parametrize(
    ("form", "data", "values", "why"),
    [
        (
            "delimited",
            file_of([b"x", b"y"], "delimited") + b"\x05ab",
            [b"x", b"y"],
            "record 2 (byte 4): the input ends after 2 of 5 bytes",
        ),
        ("parquet", b"PAR1 no PAR1", [], "the input is no Parquet file"),
        ("jsonl", b'{"value": "x"}\n\xff\n', [b"x"], "line 2: this is no UTF-8 text"),
        ("jsonl", b'{"value": "x", "key": 5}\n', [], "line 1: 'key' is a number; it must be text or null"),
        (
            "jsonl",
            b'{"value": "x", "partition": 4}\n',
            [],
            "line 1: topic t has no partition 4; it has 1, numbered from 0",
        ),
        (
            "jsonl",
            b'{"value": "' + b"x" * 2000 + b'"}\n',
            [],
            "line 1: the record has 2000 bytes, more than intake.record_bytes_max = 1000",
        ),
    ],
)
def test_what_cannot_be_read_says_where(
    form: str, data: bytes, values: list[bytes], why: str, tmp_path: Path
) -> None:
    inbox = Inbox(tmp_path)
    inbox.put("a", data)
    (problem,) = inbox.process(form, text=form == "jsonl", record_bytes_max=1000).look().problems
    assert problem.why.startswith(why)
    assert inbox.values() == values


@pytest.mark.parametrize("form", FORMATS)
def test_empty_files_are_finished_at_once(form: str, tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.put("a", file_of([], form))
    if form == "jsonl":
        inbox.put("b", b"\n  \n")
    state = inbox.process(form).look()
    assert (state.finished, state.failed) == (2 if form == "jsonl" else 1, 0)
    assert inbox.values() == []
    assert list(inbox.objects.list("intake/")) == []


def test_a_last_line_without_its_end_counts(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.put("a", b'{"value": "x"}\n{"value": "y"}')
    assert inbox.process(text=True).look().finished == 1
    assert inbox.values() == [b"x", b"y"]


def test_a_file_that_changes_is_not_read_on(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    begun, finished = (
        inbox.put("a", file_of(numbered("a", 20), "jsonl")),
        inbox.put("b", file_of(numbered("b", 2), "jsonl")),
    )
    inbox.log.script(*[AppendFault.NONE] * 3, AppendFault.REFUSED)
    inbox.process(**options("jsonl")).look()
    taken = inbox.values()
    assert 0 < len(taken) < 20
    with begun.open("ab") as file:
        file.write(b'{"value": "more"}\n')
    taker = inbox.process(**options("jsonl"))
    state = taker.look()
    assert "the file has changed since a part of it was ingested" in state.problems[0].why
    assert inbox.values() == [*taken, *numbered("b", 2)]
    with finished.open("ab") as file:
        file.write(b'{"value": "more"}\n')
    state = taker.look()
    assert [problem.path for problem in state.problems] == [str(begun), str(finished)]
    assert "has changed since it was ingested, and is not ingested again" in state.problems[1].why
    assert inbox.values() == [*taken, *numbered("b", 2)]
    assert inbox.process(**options("jsonl")).look().problems == state.problems, (
        "a restart forgets nothing of it"
    )


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    """What was read before is ingested, what was read after is not."""
    inbox = Inbox(tmp_path)
    path = inbox.put("a", file_of(numbered("a", 20), "jsonl"))
    taker = inbox.process(**options("jsonl"))
    append, appends = inbox.log.append, 0

    def append_and_change(index: int, data: bytes) -> object:
        nonlocal appends
        appends += 1
        if appends == 3:
            os.utime(path, ns=(1, 1))
        return append(index, data)

    inbox.log.append = append_and_change  # type: ignore[method-assign,assignment]
    state = taker.look()
    assert state.problems[0].why.startswith("the file has changed since a part of it was ingested")
    assert 0 < len(inbox.values()) < 20
    assert inbox.values() == numbered("a", 20)[: len(inbox.values())]


def test_what_is_passed_over_and_what_is_reported(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    (inbox.folder / ".hidden").write_bytes(b"{}")
    for name in ("a.tmp", "a.part", "a~", "a.partial"):
        (inbox.folder / name).write_bytes(b"{}")
    (inbox.folder / "deep" / ".under").mkdir(parents=True)
    (inbox.folder / "deep" / ".under" / "x").write_bytes(b"{}")
    inbox.put("deep/er/a", file_of([b"deep"], "jsonl"))
    (tmp_path / "elsewhere").write_bytes(file_of([b"linked"], "jsonl"))
    (inbox.folder / "link").symlink_to(tmp_path / "elsewhere")
    (inbox.folder / "loop").symlink_to(inbox.folder)
    os.mkfifo(inbox.folder / "pipe")
    listening = socket.socket(socket.AF_UNIX)
    with contextlib.chdir(inbox.folder):
        listening.bind("socket")  # by a short name: a socket's path has a bound of its own
    Path(os.fsdecode(os.fsencode(inbox.folder) + b"/\xff")).write_bytes(b"{}")
    state = inbox.process("jsonl", "**", text=True).look()
    listening.close()
    assert inbox.values() == [b"deep"]
    assert (state.finished, state.waiting) == (1, 0)
    reported = {
        problem.path.rpartition("/")[2]: problem.why.split(";")[0].split(":")[0] for problem in state.problems
    }
    link, special = (
        "a symbolic link is not followed",
        "this is no regular file but a pipe, a socket or a device",
    )
    assert reported == {
        "link": link,
        "loop": link,
        "pipe": special,
        "socket": special,
        "\\udcff": "the name is not valid UTF-8",
    }


def test_a_pipe_that_takes_the_name_of_a_file_does_not_stop_the_thread(tmp_path: Path) -> None:
    from archiver.runtime.errors import RecordRefused
    from intake.sources.files.ingest import OpenedFile

    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RecordRefused, match="no regular file"):
        OpenedFile(str(tmp_path / "pipe"))
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with pytest.raises(RecordRefused, match="the file cannot be opened"):
        OpenedFile(str(tmp_path / "link"))


def test_what_must_not_be_read_is_reported_until_it_may(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    path = inbox.put("a", file_of([b"x"], "jsonl"))
    closed = inbox.folder / "closed"
    closed.mkdir(mode=0)
    path.chmod(0)
    taker = inbox.process("jsonl", "**", text=True)
    with file_modes_hold():
        state = taker.look()
    assert [problem.why.split(";")[0] for problem in state.problems] == [
        "the file cannot be opened (Permission denied)",
        "the folder cannot be read: Permission denied",
    ]
    path.chmod(0o600)
    closed.chmod(0o700)
    state = taker.look()
    assert (state.failed, state.finished) == (0, 1)


def test_a_folder_that_comes_later_and_goes_again(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    taker = inbox.process("jsonl", "later/*", text=True)
    state = taker.look()
    assert (state.folder_found, state.trouble, state.failed) == (False, None, 0)
    inbox.put("later/a", file_of([b"x"], "jsonl"))
    assert (taker.look().folder_found, taker.state.finished) == (True, 1)


def test_a_file_rests_before_it_is_taken_in(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    path = inbox.put("a", file_of([b"x"], "jsonl"))
    taker = inbox.process(text=True, settle=0.4)
    assert (taker.look().finished, taker.state.waiting) == (0, 1)
    os.utime(path, ns=(0, time.time_ns() + 10**15))  # written with a clock that is far ahead
    began_s = time.monotonic()
    while not taker.look().finished:
        time.sleep(0.05)
        assert time.monotonic() - began_s < 60
    assert time.monotonic() - began_s >= 0.4


def test_a_file_that_vanishes_and_one_that_is_moved_while_it_is_read(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    path = inbox.put("a", file_of(numbered("a", 12), "jsonl"))
    taker = inbox.process(**options("jsonl"))
    create, calls = inbox.objects.create, 0

    def create_and_remove(key: str, data: bytes) -> None:
        nonlocal calls
        calls += 1
        path.unlink(missing_ok=True)
        create(key, data)

    inbox.objects.create = create_and_remove  # type: ignore[method-assign]
    state = taker.look()
    assert calls > 2
    assert (state.finished, state.failed) == (1, 0), "what was opened is read to its end"
    assert inbox.values() == numbered("a", 12)


def test_a_finished_file_that_is_gone_is_forgotten_and_may_come_again(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    path, other = inbox.put("a", file_of([b"first"], "jsonl")), inbox.put("b", file_of([b"b"], "jsonl"))
    taker = inbox.process(text=True)
    assert taker.look(2).finished == 2
    path.unlink()
    assert taker.look().finished == 1
    inbox.put("a", file_of([b"second"], "jsonl"))
    assert taker.look().finished == 2
    assert inbox.values() == [b"first", b"b", b"second"]
    path.unlink()
    other.unlink()
    taker = inbox.process(text=True)
    assert taker.look().finished == 2, "an empty folder may be one that is not mounted"
    inbox.folder.rmdir()
    (inbox.folder.parent / "another").touch()
    assert taker.look().finished == 0


def test_many_files_are_forgotten_in_entries_that_fit(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    paths = [inbox.put(f"{number:03}{'x' * 180}", b"") for number in range(120)]
    taker = inbox.process(entry_bytes_max=16 * 1024)
    assert taker.look().finished == 120
    for path in paths[1:]:
        path.unlink()
    before = inbox.log.tail()
    assert taker.look().finished == 1
    assert 2 < inbox.log.tail() - before < 10


def test_with_too_many_failed_files_nothing_more_is_taken_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("intake.sources.files.source.FAILED_MAX", 2)
    inbox = Inbox(tmp_path)
    for name in "abc":
        inbox.put(name, b"no record")
    taker = inbox.process()
    assert (
        taker.look(2).trouble
        == f"3 files of {inbox.folder}/* cannot be ingested; repair or remove them first"
    )
    inbox.put("d", b"")
    assert (taker.look().finished, taker.state.failed, len(taker.state.problems)) == (0, 3, 3)
    (inbox.folder / "a").unlink()
    (inbox.folder / "b").unlink()
    assert (taker.look().finished, taker.state.failed, taker.state.trouble) == (1, 1, None)


def test_what_was_read_before_a_file_was_forgotten_does_not_count(tmp_path: Path) -> None:
    """One process sleeps with a piece in memory while another finishes the file. The file is then removed and
    forgotten."""
    inbox = Inbox(tmp_path)
    path = inbox.put("a", file_of([b"x"], "jsonl"))
    inbox.put("b", file_of([b"y"], "jsonl"))
    sleeper, other = inbox.process(text=True), inbox.process(text=True)
    create = inbox.objects.create

    def create_late(key: str, data: bytes) -> None:
        inbox.objects.create = create  # type: ignore[method-assign]
        assert other.look().finished == 2
        path.unlink()
        assert other.look().finished == 1
        create(key, data)

    inbox.objects.create = create_late  # type: ignore[method-assign]
    assert sleeper.look(2).trouble is None
    assert inbox.values() == [b"x", b"y"]


def test_restarts_from_checkpoints_of_a_trimmed_log(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    for number in range(6):
        inbox.put(f"{number}", file_of(numbered(f"{number}", 8), "jsonl"))
        taker = inbox.process(**options("jsonl"), checkpoint_entries=2)
        inbox.log.script(*[AppendFault.NONE] * 2, AppendFault.DROPPED, AppendFault.DROPPED)
        taker.look(3)
        taker.checkpointer.run()
    assert inbox.log.floor() > 0
    known = inbox.fold().positions.source(f"files:{TOPIC}")
    assert sorted(known.finished) == [f"{inbox.folder}/{number}" for number in range(6)]
    assert inbox.values() == [value for number in range(6) for value in numbered(f"{number}", 8)]
    assert inbox.process(**options("jsonl"), checkpoint_entries=2).look().records == 0


def test_a_barrier_refuses_a_piece_as_a_whole(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.put("a", file_of(numbered("a", 8), "jsonl"))
    taker, cleaner = inbox.process(**options("jsonl")), inbox.process()
    append, appends = inbox.log.append, 0

    def append_behind_a_barrier(index: int, data: bytes) -> object:
        nonlocal appends
        appends += 1
        if appends == 3:
            cleaner.sequencer.raise_barrier(inbox.clock.now_us() // 1000 + 1000)
        return append(index, data)

    inbox.log.append = append_behind_a_barrier  # type: ignore[method-assign,assignment]
    assert taker.look().finished == 0
    assert 0 < len(inbox.values()) < 8
    taker.look()
    assert inbox.values() == numbered("a", 8)


def test_a_deleted_topic_takes_nothing_and_no_position_moves(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.put("a", file_of(numbered("a", 8), "jsonl"))
    taker, other = inbox.process(**options("jsonl")), inbox.process()
    append, appends = inbox.log.append, 0

    def append_behind_the_deletion(index: int, data: bytes) -> object:
        nonlocal appends
        appends += 1
        if appends == 3:
            other.sequencer.refresh()
            other.sequencer.delete_topic(other.sequencer.fold.topics_by_name[TOPIC].topic_id)
        return append(index, data)

    inbox.log.append = append_behind_the_deletion  # type: ignore[method-assign,assignment]
    taker.look()
    known = inbox.fold().positions.get(f"files:{TOPIC}", f"{inbox.folder}/a")
    assert isinstance(known, Begun)
    assert "topic t was deleted" in (taker.look().trouble or "")
    assert inbox.fold().positions.get(f"files:{TOPIC}", f"{inbox.folder}/a") == known


def test_many_partitions_are_more_pieces(tmp_path: Path) -> None:
    """An entry of the smallest size that the settings allow holds some 200 segments."""
    inbox = Inbox(tmp_path)
    lines = [json.dumps({"value": str(number), "partition": number % 700}) for number in range(1400)]
    inbox.put("a", "\n".join(lines).encode())
    assert inbox.process(text=True, partitions=700, entry_bytes_max=16 * 1024).look().finished == 1
    assert [inbox.values(number) for number in (0, 1, 699)] == [
        [b"0", b"700"],
        [b"1", b"701"],
        [b"699", b"1399"],
    ]


def test_two_patterns_of_one_topic_and_one_file_for_two_topics(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.put("a.x", file_of([b"x"], "jsonl"))
    inbox.put("a.y", file_of([b"y"], "jsonl"))
    sources = [
        {"glob": f"{inbox.folder}/{name}", "topic": topic}
        for name, topic in (("*.x", TOPIC), ("a.*", TOPIC), ("*.y", "u"))
    ]
    taker = inbox.process(text=True, sources=sources)
    taker.look(2)
    assert sorted(inbox.values(), key=str) == [b"x", b"y"]
    assert inbox.values(topic="u") == [b"y"]
    assert [state.finished for state in taker.sources.state()] == [2, 2, 1]


def test_the_thread_goes_on_when_what_it_needs_comes_back(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.put("a", file_of(numbered("a", 30), "jsonl"))
    asked: list[int] = []

    def prepare() -> None:
        asked.append(1)
        if len(asked) < 3:
            raise RetryLater("the log is older than the data")

    taker = inbox.process(**options("jsonl"), prepare=prepare)
    assert taker.look().trouble == "the log is older than the data"
    inbox.objects.fail("create", ObjectFault.REFUSED, times=5)
    taker.sources.start()
    until_finished([taker], 1, lambda: time.sleep(0.02))
    assert taker.sources.stop(STOP_S)
    assert (len(asked), taker.state.trouble, taker.state.records) == (3, None, 30)
    assert inbox.values() == numbered("a", 30)


def test_it_stops_between_two_pieces(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path)
    inbox.put("a", file_of(numbered("a", 20), "jsonl"))
    taker: Taker = inbox.process(**options("jsonl"))
    create = inbox.objects.create

    def create_and_stop(key: str, data: bytes) -> None:
        create(key, data)
        assert taker.sources.stop(0)

    inbox.objects.create = create_and_stop  # type: ignore[method-assign]
    taker.look()
    taken = inbox.values()
    assert 0 < len(taken) < 20
    inbox.objects.create = create  # type: ignore[method-assign]
    inbox.process(**options("jsonl")).look()
    assert inbox.values() == numbered("a", 20)
    known = inbox.fold().positions.get(f"files:{TOPIC}", f"{inbox.folder}/a")
    assert isinstance(known, Finished)

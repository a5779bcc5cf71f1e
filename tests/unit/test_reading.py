"""Intake files that are read ahead give the same row groups and errors as without it, within bounds."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archiver.refine import prefetch
from archiver.refine.prefetch import Part, ReadAhead
from archiver.runtime.errors import Corrupted
from intake.read.reader import IntakeReader
from intake.segments import FileRef
from tests.support.process.processes import until

PATIENCE_S = 120.0
Reported = list[tuple[int, int | str]]
"""(file, row group or error text), in order of arrival."""


@dataclass
class Files:
    """A reader whose row groups contain their own number."""

    broken: frozenset[tuple[int, int]] = frozenset()
    rows: int = 4
    opened: list[int] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)
    when_opened: Callable[[int], object] = lambda _: None

    def begun_behind(self, index: int, count: int) -> bool:
        return len([one for one in self.opened if one > index]) == count

    def row_groups(self, file: FileRef, wanted: Sequence[int]) -> Iterator[tuple[int, pa.RecordBatch]]:
        self.opened.append(file.log_index)
        self.threads.add(threading.get_ident())
        self.when_opened(file.log_index)
        for row_group in wanted:
            if (file.log_index, row_group) in self.broken:
                raise Corrupted(f"{file.log_index}:{row_group} is broken")
            yield row_group, pa.record_batch({"place": pa.array(np.full(self.rows, row_group))})


def parts_of(index: int, row_groups: Sequence[int]) -> list[Part]:
    file = FileRef(index, f"intake/{index}", 1, b"")
    return [Part(file, row_group, ((0, 0, 0, 1),), 1, 1, 1) for row_group in row_groups]


def ahead_of(files: Files, files_max: int, needed: Callable[[int, int], bool] = lambda *_: True) -> ReadAhead:
    def still(parts: Sequence[Part]) -> list[Part]:
        return [part for part in parts if needed(part.file.log_index, part.row_group)]

    return ReadAhead(cast("IntakeReader", files), files_max, still)


def reported(
    ahead: ReadAhead, files: Sequence[Sequence[int]], needed: Callable[[int, int], bool]
) -> Reported:
    """Read all files as a task does: only what is still needed, continuing after an error."""
    found: Reported = []
    for parts in ahead.through(
        [parts_of(index, row_groups) for index, row_groups in enumerate(files) if row_groups]
    ):
        index = parts[0].file.log_index
        wanted = [part.row_group for part in parts if needed(index, part.row_group)]
        while wanted:
            taken = 0
            try:
                for records in ahead.row_groups(parts[0].file, wanted):
                    assert records.column("place")[0].as_py() == wanted[taken]
                    found.append((index, wanted[taken]))
                    taken += 1
                break
            except Corrupted as error:
                found.append((index, str(error)))
            wanted = wanted[taken + 1 :]
    ahead.close()
    return found


@given(
    st.lists(st.lists(st.integers(0, 5), unique=True, max_size=4).map(sorted), max_size=8),
    st.frozensets(st.tuples(st.integers(0, 7), st.integers(0, 5)), max_size=12),
    st.frozensets(st.tuples(st.integers(0, 7), st.integers(0, 5)), max_size=12),
    st.integers(1, 4),
)
def test_it_gives_what_reading_in_turn_gives(
    files: list[list[int]],
    broken: frozenset[tuple[int, int]],
    not_needed: frozenset[tuple[int, int]],
    files_max: int,
) -> None:
    def needed(index: int, row_group: int) -> bool:
        return (index, row_group) not in not_needed

    in_turn = reported(ahead_of(Files(broken), 0), files, needed)
    assert reported(ahead_of(Files(broken), files_max), files, needed) == in_turn, (
        "what is needed changed behind it"
    )
    assert reported(ahead_of(Files(broken), files_max, needed), files, needed) == in_turn
    assert [place for place in in_turn if isinstance(place[1], int)] == [
        (index, row_group)
        for index, row_groups in enumerate(files)
        for row_group in row_groups
        if needed(index, row_group) and (index, row_group) not in broken
    ]


def test_the_next_files_are_read_while_one_is_worked_on() -> None:
    files = Files()
    begun = [threading.Event() for _ in range(6)]
    files.when_opened = lambda index: begun[index].set()
    ahead = ahead_of(files, 2)
    for parts in ahead.through([parts_of(index, [0]) for index in range(6)]):
        index = parts[0].file.log_index
        if index:  # The size is known only after a first read.
            for behind in begun[index + 1 : index + 3]:
                assert behind.wait(PATIENCE_S), "it is not read although its turn comes next"
            assert not any(one.is_set() for one in begun[index + 3 :]), "more were begun than are allowed"
        list(ahead.row_groups(parts[0].file, [0]))
    ahead.close()
    assert sorted(files.opened) == list(range(6)), "each once"


def test_without_it_every_file_is_read_in_its_turn_by_the_caller() -> None:
    files = Files()
    assert reported(ahead_of(files, 0), [[0], [0, 1], [2]], lambda *_: True) == [
        (0, 0),
        (1, 0),
        (1, 1),
        (2, 2),
    ]
    assert files.threads == {threading.get_ident()}
    assert files.opened == [0, 1, 2]


@pytest.mark.parametrize(("fit", "expected"), [(0, 0), (1, 1), (2, 2), (3, 3)])
def test_no_more_is_read_ahead_than_there_is_room_for(
    fit: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The room is counted in the largest row group so far, two in each file. It limits how many files are
    read ahead."""
    files = Files(rows=1000)
    size = 2 * 8 * 1000
    monkeypatch.setattr(prefetch, "AHEAD_BYTES", fit * size + size // 2)
    ahead = ahead_of(files, 4)
    for parts in ahead.through([parts_of(index, [0, 1]) for index in range(8)]):
        index = parts[0].file.log_index
        wanted = min(expected, 7 - index) if index else 0  # The size is known only after a first read.
        until("they are begun", partial(files.begun_behind, index, wanted), PATIENCE_S)
        time.sleep(0.005)  # A further file would be opened in this time.
        assert files.begun_behind(index, wanted)
        list(ahead.row_groups(parts[0].file, [0, 1]))
    ahead.close()
    assert sorted(files.opened) == list(range(8))


def test_what_is_not_needed_is_not_read() -> None:
    files = Files()
    ahead = ahead_of(files, 4, lambda index, _: index in (0, 1, 299))
    for parts in ahead.through([parts_of(index, [0]) for index in range(300)]):
        if parts[0].file.log_index in (0, 1, 299):
            assert len(list(ahead.row_groups(parts[0].file, [0]))) == 1
    ahead.close()
    assert files.opened == [0, 1, 299]


def test_what_is_not_needed_any_more_is_not_waited_for() -> None:
    """A plan can be given up after reading for it has begun."""
    files, gate = Files(), threading.Event()
    files.when_opened = lambda index: index in (0, 299) or gate.wait(PATIENCE_S)
    ahead = ahead_of(files, 1)
    for parts in ahead.through([parts_of(index, [0]) for index in range(300)]):
        if parts[0].file.log_index == 299:
            gate.set()
        if parts[0].file.log_index in (0, 299):
            assert len(list(ahead.row_groups(parts[0].file, [0]))) == 1
    ahead.close()
    assert ahead._ahead == {}
    assert len(files.opened) <= 4, "what was only queued is not read"


def test_what_is_wanted_counts_before_anything_so_large_was_read() -> None:
    files = Files(rows=1)
    ahead = ahead_of(files, 4)
    large = [replace(part, raw_bytes=prefetch.AHEAD_BYTES) for part in parts_of(2, [0])]
    for parts in ahead.through([parts_of(0, [0]), parts_of(1, [0]), large]):
        time.sleep(0.01)
        assert 2 not in files.opened, "it is read in its turn"
        list(ahead.row_groups(parts[0].file, [0]))
    ahead.close()
    assert files.opened == [0, 1, 2]


@pytest.mark.parametrize("asked", [[0, 1], [0]])
def test_an_error_holds_nothing_of_what_was_read(asked: list[int]) -> None:
    """The error is raised, or its row group is no longer needed."""
    files, held = Files(frozenset({(2, 1)}), rows=100_000), list[weakref.ref[Any]]()
    ahead = ahead_of(files, 2)
    gc.disable()
    try:
        for parts in ahead.through([parts_of(index, [0, 1]) for index in range(3)]):
            try:
                for records in ahead.row_groups(parts[0].file, asked):
                    held.append(weakref.ref(records))
            except Corrupted:
                assert parts[0].file.log_index == 2
            del records
        ahead.close()
        assert [one() for one in held] == [None] * (2 * len(asked) + 1)
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [MemoryError("none left"), pa.ArrowMemoryError("malloc of size 1 failed")])
def test_what_memory_was_short_for_is_read_when_its_turn_comes(error: Exception) -> None:
    files, own = Files(), threading.get_ident()

    def short(_: int) -> None:
        if threading.get_ident() != own:
            raise error

    files.when_opened = short
    assert reported(ahead_of(files, 2), [[0], [1], [2]], lambda *_: True) == [(0, 0), (1, 1), (2, 2)]
    assert len(files.opened) > 3, "else nothing was read ahead"


def test_a_machine_without_a_thread_to_spare_reads_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    files = Files()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        assert reported(ahead_of(files, 2), [[0], [1], [2], [3]], lambda *_: True) == [
            (0, 0),
            (1, 1),
            (2, 2),
            (3, 3),
        ]
    assert files.threads == {threading.get_ident()}


def test_who_stops_waits_for_what_is_being_read() -> None:
    files: Any = Files()
    files.when_opened = lambda index: time.sleep(0.1 if index else 0)
    ahead = ahead_of(files, 2)
    for parts in ahead.through([parts_of(index, [0]) for index in range(5)]):
        list(ahead.row_groups(parts[0].file, [0]))
        if parts[0].file.log_index == 1:
            break
    ahead.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("intake-read")]

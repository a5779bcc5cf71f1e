"""History files: trimmed entries are found again, one partition at a time, and damage is always detected."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from archiver.objects.local import LocalObjectStore
from archiver.objects.paths import history_key
from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import TopicPartition
from intake.log import history_file
from intake.log.backlog import Backlog
from intake.log.checkpoint import HistoryRef
from intake.log.fold import IntakeFold
from intake.log.history import History
from tests.support.intake.intake_entries import Run, declared, named, topic_id_of
from tests.support.intake.intake_history import RandomHistory
from tests.support.objects.faulty_objects import FaultyObjectStore

A, B = topic_id_of(1), topic_id_of(2)


class Rig:
    """A fold that is cut on request, and one that never is."""

    def __init__(self, root: Path, cache_bytes: int = 1 << 30) -> None:
        self.objects = FaultyObjectStore(LocalObjectStore(root))
        self.whole, self.fold = IntakeFold(), IntakeFold()
        self.refs: tuple[HistoryRef, ...] = ()
        self.newest: tuple[HistoryRef, ...] = ()
        self.history = History(self.objects, lambda: self.newest, cache_bytes, rows_bytes=cache_bytes)
        self.backlog = Backlog(self.fold, self.history)

    def apply(self, *entries: bytes) -> None:
        for entry in entries:
            self.whole.apply(self.whole.next_index, entry)
            self.fold.apply(self.fold.next_index, entry)

    def cut(self) -> HistoryRef:
        content = history_file.decided(self.fold)
        data = history_file.encode(content)
        ref = history_file.ref_of(self.refs[-1].end if self.refs else 0, self.fold.next_index, data)
        self.objects.create(self.key(ref), data)
        self.refs = self.newest = (*self.refs, ref)
        self.history.learn(self.refs)
        self.fold.release_history({tp: part.end for tp, part in content.items()})
        return ref

    def key(self, ref: HistoryRef) -> str:
        return history_key(ref.start, ref.end)

    def check(self, tp: TopicPartition, start: int, bytes_max: int | None = None) -> None:
        """The view gives the same as a fold that was never cut."""
        bare = Backlog(self.whole)
        assert self.backlog.segments(tp, start, bytes_max) == bare.segments(tp, start, bytes_max)
        assert self.backlog.summary(tp, start) == bare.summary(tp, start)
        for end in (start, start + 3, self.whole.next_offset(tp)):
            assert (
                self.backlog.gaps(tp, start, end)
                == bare.gaps(tp, start, end)
                == self.whole.gaps(tp, start, end)
            )
        assert self.backlog.next_offset(tp) == bare.next_offset(tp)
        assert self.backlog.stable_offset(tp) == bare.stable_offset(tp)
        assert self.backlog.blocking(tp) == bare.blocking(tp)


def plain(rig: Rig, files: int = 60, partitions: int = 7) -> None:
    chance = random.Random(5)
    rig.apply(declared(1, "a", partitions), declared(2, "b", partitions))
    for number in range(files):
        runs = [
            Run(A if place < partitions else B, place % partitions, chance.randrange(1, 9))
            for place in range(2 * partitions)
        ]
        rig.apply(named(f"f{number:04}", chance.sample(runs[:partitions], 3) + runs[partitions:]))
        if number % 20 == 19:
            rig.cut()


@settings(max_examples=60, deadline=None)
# The first history file that is read has nothing of the range.
@example(seed=1930165, spans=[17, 10], bytes_max=0, cache_bytes=0)
@given(
    st.integers(0, 2**32),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(0, 5_000),
    st.sampled_from([0, 1 << 30]),
)
def test_the_view_is_that_of_a_fold_that_was_never_cut(
    tmp_path_factory: pytest.TempPathFactory, seed: int, spans: list[int], bytes_max: int, cache_bytes: int
) -> None:
    rig, history = Rig(tmp_path_factory.mktemp("shelves"), cache_bytes), RandomHistory(random.Random(seed))
    for span in spans:
        entries = history.grow(span)
        rig.apply(*entries[rig.fold.next_index :])
        rig.cut()
    rig.apply(*history.grow(10)[rig.fold.next_index :])
    chance = random.Random(seed)
    for tp in rig.whole.state().partitions:
        for start in {
            0,
            chance.randrange(20),
            rig.whole.stable_offset(tp),
            chance.randrange(rig.whole.next_offset(tp) + 1),
        }:
            rig.check(tp, start)
            rig.check(tp, start, bytes_max)


def test_one_partition_is_read_without_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "ROW_GROUP_ROWS", 16)
    rig = Rig(tmp_path)
    plain(rig, files=200)
    rig.check((B, 6), 0)
    rig.history = History(rig.objects, lambda: rig.newest)
    rig.history.learn(rig.refs)
    rig.backlog = Backlog(rig.fold, rig.history)
    groups: list[int] = []
    wrapped: Any = pq.ParquetFile.read_row_groups

    def counted(self: object, row_groups: list[int], *rest: object, **more: object) -> object:
        groups.extend(row_groups)
        return wrapped(self, row_groups, *rest, **more)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counted)
    ref = rig.refs[-1]
    opened = history_file.read_index(
        ref,
        rig.objects.read(rig.key(ref))[
            -int.from_bytes(rig.objects.read(rig.key(ref))[-8:-4], "little") - 8 :
        ],
    )
    assert opened.metadata.num_row_groups > 10
    rig.check((B, 6), opened.partitions[B, 6].start)
    assert 0 < len(set(groups)) <= 3, groups


def test_a_summary_reads_rows_only_where_it_begins(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    plain(rig, files=200)
    rig.objects.calls.clear()
    before = rig.backlog.summary((A, 1), 0)
    assert before.rows == rig.whole.next_offset((A, 1))
    assert not [call for call in rig.objects.calls if call[0] == "open_input"]
    rig.backlog.summary((A, 1), 1)
    # The rows and the names of one history file.
    assert len([call for call in rig.objects.calls if call[0] == "open_input"]) == 2


def test_a_summary_that_was_asked_for_before_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path)
    plain(rig, files=200)
    monkeypatch.setattr("intake.log.history.PARTS_MAX", 3)
    wanted = {start: Backlog(rig.whole).summary((A, 1), start) for start in range(1, 9)}
    for start in (1, 2, 3, 1, 2, 3, 4, 1, 5, 6, 7, 8, 2):
        assert rig.backlog.summary((A, 1), start) == wanted[start]
    assert len(rig.history._parts) == 3
    rig.objects.calls.clear()
    assert [rig.backlog.summary((A, 1), start) for start in (7, 8, 2)] == [
        wanted[start] for start in (7, 8, 2)
    ]
    assert not rig.objects.calls


def test_a_look_far_ahead_opens_few_shelves(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    plain(rig, files=640)
    assert len(rig.refs) == 32
    rig.objects.calls.clear()
    rig.check((A, 1), rig.whole.next_offset((A, 1)) - 1)
    assert len({key for operation, key in rig.objects.calls if operation == "info"}) <= 7


def test_bytes_max_ends_the_reading(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    plain(rig, files=640)
    rig.objects.calls.clear()
    assert len(rig.backlog.segments((B, 1), 0, 100)) == 10
    assert len({key for operation, key in rig.objects.calls if operation == "open_input"}) == 1


def test_the_cache_is_bounded(tmp_path: Path) -> None:
    rig = Rig(tmp_path, cache_bytes=100_000)
    plain(rig, files=640)
    for partition in range(7):
        rig.check((A, partition), 0)
    assert sum(opened.cost_bytes for opened in rig.history._cache.values()) <= 100_000
    assert rig.history._cache


def test_partitions_of_one_row_group_are_read_once(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    plain(rig, files=20)
    rig.check((A, 0), 0)
    rig.objects.calls.clear()
    for tp in rig.whole.state().partitions:
        rig.check(tp, 0)
        rig.check(tp, 1)
    assert not [call for call in rig.objects.calls if call[0] == "open_input"]


def test_row_groups_that_are_kept_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_file, "ROW_GROUP_ROWS", 16)
    rig = Rig(tmp_path)
    rig.history = History(rig.objects, lambda: rig.newest, rows_bytes=5000)
    rig.backlog = Backlog(rig.fold, rig.history)
    plain(rig, files=200)
    for tp in rig.whole.state().partitions:
        rig.check(tp, 0)
        assert 0 < sum(group.nbytes for group in rig.history._groups.values()) <= 5000
    rig.history.learn(rig.refs[:1])
    assert {ref for ref, _ in rig.history._groups} <= {rig.refs[0]}
    assert rig.history._groups_bytes == sum(group.nbytes for group in rig.history._groups.values())


def test_rows_that_were_damaged_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(tmp_path)
    plain(rig, files=20)

    def wrong(*args: Any) -> history_file.Rows:
        rows = history_file.read_group(*args)
        rows[0, 5] += 1
        return rows

    with monkeypatch.context() as patched:
        patched.setattr("intake.log.history.read_group", wrong)
        with pytest.raises(Corrupted, match="are not those that were written"):
            rig.backlog.segments((A, 0))
    rig.check((A, 0), 0)


@pytest.mark.parametrize("seed", range(8))
def test_an_altered_bit_is_noticed_by_every_read(tmp_path: Path, seed: int) -> None:
    rig = Rig(tmp_path)
    plain(rig, files=20, partitions=3)
    (ref,) = rig.refs
    data = rig.objects.read(rig.key(ref))
    content = history_file.decode(ref, data)
    tps = list(content)
    chance = random.Random(seed)
    noticed = 0
    for _ in range(60):
        altered = bytearray(data)
        altered[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        with pytest.raises(Corrupted):
            history_file.decode(ref, bytes(altered))
        rig.objects.delete(rig.key(ref))
        rig.objects.create(rig.key(ref), bytes(altered))
        history_refs = History(rig.objects, lambda: rig.newest)
        history_refs.learn(rig.refs)
        backlog = Backlog(rig.fold, history_refs)
        for tp in tps:
            try:
                found = backlog.segments(tp)
            except Corrupted:
                noticed += 1
            else:
                assert found == content[tp].segments
    assert noticed > 60


@pytest.mark.parametrize("what", ["shorter", "longer", "gone", "another"])
def test_another_object_is_refused(tmp_path: Path, what: str) -> None:
    rig = Rig(tmp_path)
    plain(rig, files=40)
    ref, other = rig.refs
    data = rig.objects.read(rig.key(ref))
    rig.objects.delete(rig.key(ref))
    if what != "gone":
        replaced = {
            "shorter": data[:-20],
            "longer": data + b"x",
            "another": rig.objects.read(rig.key(other)),
        }[what]
        rig.objects.create(rig.key(ref), replaced)
    with pytest.raises(Corrupted, match="restore it from a copy"):
        Backlog(rig.fold, rig.history).segments((A, 0))


def test_a_list_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    """Another process stored the same span as one file, and deleted the two history files that this process
    knows."""
    rig = Rig(tmp_path)
    plain(rig, files=40)
    data = history_file.encode(history_file.decided(rig.whole))
    newer = history_file.ref_of(0, rig.whole.next_index, data)
    rig.objects.create(rig.key(newer), data)
    rig.newest = (newer,)
    for ref in rig.refs:
        rig.objects.delete(rig.key(ref))
    for partition in range(7):
        rig.check((A, partition), 3)
    assert rig.history.refs == (newer,)


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    plain(rig, files=19)
    content = history_file.decided(rig.fold)
    data = history_file.encode(content)
    ref = history_file.ref_of(0, rig.fold.next_index, data)
    assert history_file.encode(history_file.decode(ref, data)) == data
    with pytest.raises(Corrupted, match="do not match the checkpoint"):
        history_file.decode(replace(ref, sha256=b"x" * 32), data)


def test_a_shelf_of_nothing(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.cut()
    rig.apply(declared(1, "a", 1))
    rig.cut()
    rig.check((A, 0), 0)

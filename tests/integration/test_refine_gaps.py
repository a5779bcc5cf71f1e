"""Refinement and reading of ranges with gaps, on real intake files: every committed record once, at its
offset, in the right file.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.ledger.archives import ArchiveFile
from archiver.objects.local import LocalObjectStore
from archiver.refine.archive_file import footer_values
from archiver.refine.plan import Plan
from archiver.refine.task import RefineOptions
from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import TopicId
from archiver.stream.stream import RecordStream
from tests.support.builders.refining import CLUSTER, DAY, NOW, kafka, refine, table_of
from tests.support.intake.intake_files import Intake, Opened, Row
from tests.support.schema.orders import raw_schema

MANY_SEEDS = 12


@dataclass
class History:
    """A topic of one partition into which several producers write at once; `kept` has the records that were
    not aborted, by offset."""

    intake: Intake
    random: random.Random
    topic: TopicId = field(init=False)
    kept: dict[int, bytes] = field(default_factory=dict)
    still_open: dict[int, bytes] = field(default_factory=dict)
    at: int = 0

    def __post_init__(self) -> None:
        self.topic = self.intake.topic("orders")
        self._producers: dict[str, Opened] = {name: self.intake.producer(name) for name in "abc"}
        self._pending: dict[str, dict[int, bytes]] = {name: {} for name in "abc"}
        self.now = NOW

    def step(self) -> None:
        name = self.random.choice(["", "", "a", "b", "c"])
        self.now += self.random.choice([1, 1000, DAY // 7])
        if name and self._pending[name] and self.random.random() < 0.5:
            self.end(name, commit=self.random.random() < 0.5)
            return
        rows = [
            Row(self.now + self.random.randrange(50), b"%d" % (self.at + number))
            for number in range(self.random.randint(1, 6))
        ]
        self.intake.file({(self.topic, 0): rows}, producer=self._producers[name] if name else None)
        for row in rows:
            assert row.value is not None
            (self._pending[name] if name else self.kept)[self.at] = row.value
            self.at += 1

    def end(self, name: str, *, commit: bool) -> None:
        self.intake.end(self._producers[name], commit=commit)
        if commit:
            self.kept.update(self._pending[name])
        self._pending[name] = {}

    def finish(self) -> None:
        for name, pending in self._pending.items():
            if pending:
                self.end(name, commit=self.random.random() < 0.5)

    @property
    def uncommitted(self) -> dict[int, bytes]:
        return {offset: value for pending in self._pending.values() for offset, value in pending.items()}


def stream(intake: Intake, passed: tuple[tuple[int, int], ...] = ()) -> RecordStream:
    return RecordStream(
        intake.objects,
        intake.backlog,
        lambda _topic, _version: raw_schema(),
        cluster_id=CLUSTER,
        passed=lambda *_: passed,
        batch_rows=7,
    )


def read(
    intake: Intake, topic: TopicId, start: int = 0, limit: int | None = None, *, uncommitted: bool = False
) -> dict[int, bytes | None]:
    found = stream(intake).read(topic, 0, start, limit, uncommitted=uncommitted)
    return {record.offset: record.value for record in found}


def check_files(objects: LocalObjectStore, plan: Plan, files: list[ArchiveFile]) -> None:
    """Files follow each other over the whole plan, and each names the gaps of its range."""
    assert [files[0].base, *(one.end for one in files)] == [*(one.base for one in files), plan.end]
    assert files[0].base == plan.base
    assert [gap for one in files for gap in one.gaps] == list(plan.gaps)
    for one in files:
        assert all(one.base <= low < high <= one.end for low, high in one.gaps)
        assert one.rows == one.end - one.base - sum(high - low for low, high in one.gaps)
        reported = footer_values(pq.read_metadata(objects.root / one.key))
        assert (reported["base"], reported["end"], reported["gaps"]) == (
            str(one.base),
            str(one.end),
            str([list(gap) for gap in one.gaps]),
        )


@pytest.mark.parametrize("seed", range(MANY_SEEDS))
def test_random_histories(seed: int, tmp_path: Path) -> None:
    objects = LocalObjectStore(tmp_path)
    history = History(Intake(objects), random.Random(seed))
    intake, topic = history.intake, history.topic
    archived = 0
    options = RefineOptions(
        decode_rows=history.random.choice([1, 3, 1000]), buffer_bytes=history.random.choice([200, 10**6])
    )
    for _ in range(6):
        for _ in range(8):
            history.step()
        stable = intake.fold.stable_offset((topic, 0))
        committed = {offset: value for offset, value in sorted(history.kept.items()) if offset < stable}
        plans = intake.plans(topic, start=archived, max_bytes=history.random.choice([1, 10, 1000]))
        plans = plans[: history.random.randint(0, len(plans))]
        for plan, result in zip(plans, refine(intake, plans, options=options), strict=True):
            archived = plan.end
            if plan.gap_only:
                assert result.files == ()
                continue
            check_files(objects, plan, [one.archive for one in result.files])
            table = table_of(intake, result)
            assert kafka(table, "offset") == [
                offset for offset in committed if plan.base <= offset < plan.end
            ]
            times = kafka(table, "ingest_timestamp")
            assert times == sorted(times)
        assert read(intake, topic) == committed
        everything = committed | {
            o: v for o, v in (history.kept | history.uncommitted).items() if o >= stable
        }
        assert read(intake, topic, uncommitted=True) == dict(sorted(everything.items()))
        for _ in range(5):
            start, limit = history.random.randint(0, history.at), history.random.choice([None, 1, 4])
            expected = [offset for offset in committed if offset >= start][:limit]
            assert list(read(intake, topic, start, limit)) == expected, (start, limit)
    history.finish()
    assert read(intake, topic) == dict(sorted(history.kept.items()))


def test_records_are_the_same_from_archives_as_from_intake(tmp_path: Path) -> None:
    """Ingest times in particular: aborted records lie between, and their times count too."""
    history = History(Intake(LocalObjectStore(tmp_path)), random.Random(5))
    for _ in range(60):
        history.step()
    history.finish()
    before = list(stream(history.intake).read(history.topic, 0))
    refine(history.intake, history.intake.plans(history.topic, max_bytes=30))
    after = list(stream(history.intake).read(history.topic, 0))
    assert {record.source for record in before} == {"intake"}
    assert {record.source for record in after} == {"archive"}
    places = ("offset", "ingest_us", "value", "key", "batch_start", "timestamp_us")
    assert [[getattr(record, name) for name in places] for record in after] == [
        [getattr(r, name) for name in places] for r in before
    ]


def test_a_day_that_begins_behind_a_gap(tmp_path: Path) -> None:
    """The gap belongs to the file before it; the leading one to the first, the trailing one to the last."""
    objects = LocalObjectStore(tmp_path)
    intake = Intake(objects)
    topic = intake.topic("orders")
    producer = intake.producer("p")

    def aborted(count: int, at: int) -> None:
        intake.file({(topic, 0): [Row(at, b"gone")] * count}, producer=producer)
        intake.end(producer, commit=False)

    aborted(2, NOW)
    intake.file({(topic, 0): [Row(NOW, b"a"), Row(NOW, b"b")]})
    aborted(3, NOW)
    aborted(1, NOW + DAY)
    intake.file({(topic, 0): [Row(NOW + DAY, b"c")]})
    aborted(4, NOW + DAY)
    (plan,) = intake.plans(topic)
    (result,) = refine(intake, [plan])
    files = [one.archive for one in result.files]
    assert [(one.base, one.end, one.gaps) for one in files] == [(0, 8, ((0, 2), (4, 8))), (8, 13, ((9, 13),))]
    check_files(objects, plan, files)
    assert kafka(table_of(intake, result), "offset") == [2, 3, 8]


def test_where_the_ledger_knows_of_nothing_but_gaps_intake_is_not_asked(tmp_path: Path) -> None:
    objects = LocalObjectStore(tmp_path)
    intake = Intake(objects)
    topic = intake.topic("orders")
    producer = intake.producer("p")
    for commit in (True, False, True):
        intake.file({(topic, 0): [Row(NOW, b"v")] * 3}, producer=producer)
        intake.end(producer, commit=commit)
    plans = intake.plans(topic, max_bytes=1)
    assert [(plan.base, plan.end) for plan in plans] == [(0, 6), (6, 9)]
    state = intake.fold.partition((topic, 0))
    state.gaps = []
    with pytest.raises(Corrupted, match="offsets 3 to"):
        list(stream(intake).read(topic, 0))
    assert [record.offset for record in stream(intake, ((3, 6),)).read(topic, 0)] == [0, 1, 2, 6, 7, 8]
    assert [record.offset for record in stream(intake, ((3, 6),)).read(topic, 0, 4)] == [6, 7, 8]


def test_an_altered_archive_with_a_row_in_its_gap_is_seen(tmp_path: Path) -> None:
    """This holds also if the requested part lies inside of the gap."""
    objects = LocalObjectStore(tmp_path)
    intake = Intake(objects)
    topic = intake.topic("orders")
    producer = intake.producer("p")
    intake.file({(topic, 0): [Row(NOW, b"a")] * 2})
    intake.file({(topic, 0): [Row(NOW, b"gone")] * 3}, producer=producer)
    intake.end(producer, commit=False)
    intake.file({(topic, 0): [Row(NOW, b"b")]})
    (plan,) = intake.plans(topic)
    (result,) = refine(intake, [plan])
    (archive,) = [one.archive for one in result.files]
    assert list(read(intake, topic, 2, 1)) == [5]
    path = objects.root / archive.key
    footer = pq.read_metadata(path).metadata
    table = pq.read_table(path, partitioning=None)
    doubled = pa.concat_tables([table, table.slice(1, 1)])
    path.chmod(0o644)
    pq.write_table(doubled.replace_schema_metadata(footer), path)
    with pytest.raises(Corrupted):
        list(read(intake, topic, 2))

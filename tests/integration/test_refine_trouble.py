"""A refinement task on a real local store, without Spark: retries, damage, and which plans it affects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.objects.local import LocalObjectStore
from archiver.objects.paths import archive_key
from archiver.refine import plan_writer
from archiver.refine.demultiplexer import run_bundle
from archiver.refine.plan import Plan
from archiver.refine.plan_writer import Piece, copied
from archiver.refine.task import RefineOptions
from archiver.runtime import failpoints
from intake.read.digest import RecordsDigest
from intake.segments import BASE, END, FIRST_ROW, LOG_INDEX, Numbers, Segments
from tests.support.builders.refining import DAY, NOW, identify, refine, task_of
from tests.support.intake.intake_files import Intake, Row
from tests.support.schema.orders import order, order_schema, raw_schema


@pytest.fixture
def store(tmp_path: Path) -> LocalObjectStore:
    return LocalObjectStore(tmp_path / "data")


@pytest.fixture
def intake(store: LocalObjectStore) -> Intake:
    return Intake(store)


def test_a_second_run_adopts_the_files_of_the_first(intake: Intake) -> None:
    topic = intake.topic("orders")
    intake.file({(topic, 0): [Row(NOW, order(1)), Row(NOW + DAY, order(2))]})
    first = refine(intake, intake.plans(topic), schema=order_schema())
    objects: Any = intake.objects
    before = {info.key: info.modified_us for info in objects.list("archive/")}
    assert refine(intake, intake.plans(topic), schema=order_schema()) == first
    # Encoded otherwise (another library, another level): the existing file is used with its own size and
    # digest.
    assert (
        refine(
            intake,
            intake.plans(topic),
            schema=order_schema(),
            options=RefineOptions(zstd_level=9, row_group_rows=1),
        )
        == first
    )
    assert {info.key: info.modified_us for info in objects.list("archive/")} == before


def test_a_file_of_an_older_schema_is_adopted_as_what_it_is(intake: Intake) -> None:
    topic = intake.topic("orders")
    intake.file({(topic, 0): [Row(NOW, order(1))]})
    (first,) = refine(intake, intake.plans(topic), schema=raw_schema())
    (second,) = refine(intake, intake.plans(topic), schema=replace(order_schema(), version=2))
    assert first.files[0].archive == second.files[0].archive
    assert second.files[0].archive.schema_version == 1


@pytest.mark.parametrize("theirs", ["records", "cluster", "version", "not parquet"])
def test_another_archive_under_our_key_is_a_conflict(
    intake: Intake, store: LocalObjectStore, tmp_path: Path, theirs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = intake.topic("raw")
    intake.file({(topic, 0): [Row(NOW, b"ours"), Row(NOW + DAY, b"more")]})
    key = archive_key(topic, 0, "day", 20_000, 0, 1, 1)
    other = Intake(LocalObjectStore(tmp_path / "other"))
    other_topic = other.topic("raw")
    other.file({(other_topic, 0): [Row(NOW, b"theirs" if theirs == "records" else b"ours")]})
    task = task_of(other, other.plans(other_topic))
    if theirs == "cluster":
        identify(tmp_path / "other", "d" * 32)
    with monkeypatch.context() as patch:
        if theirs == "version":
            # The same records, as an earlier version of the program stores them.
            patch.setattr(plan_writer, "RecordsDigest", partial(RecordsDigest, 1))
        (result,) = run_bundle(replace(task, cluster_id="d" * 32) if theirs == "cluster" else task)
    data = b"x" * 100 if theirs == "not parquet" else other.objects.read(result.files[0].archive.key)
    store.create(key, data)
    (found,) = refine(intake, intake.plans(topic))
    assert (found.error, found.files) == ("conflict", ())
    assert found.why is not None and key in found.why
    assert theirs != "version" or "archiver.version '1', ours is '2'" in found.why
    assert store.read(key) == data
    assert [info.key for info in store.list("archive/")] == [key], "nothing is stored behind it"


def test_nothing_is_stored_behind_a_conflict_that_comes_up_when_memory_is_short(
    intake: Intake, store: LocalObjectStore
) -> None:
    topic = intake.topic("raw")
    for times in ([NOW], [NOW + DAY], [NOW + 2 * DAY, NOW + 3 * DAY]):
        intake.file({(topic, 0): [Row(time) for time in times]})
    key = archive_key(topic, 0, "day", 20_000, 0, 1, 1)
    store.create(key, b"x" * 100)
    (found,) = refine(intake, intake.plans(topic), options=RefineOptions(buffer_bytes=1, decode_rows=2))
    assert (found.error, found.files) == ("conflict", ())
    assert [info.key for info in store.list("archive/")] == [key]


def test_a_missing_intake_file_fails_only_the_plans_that_need_it(
    intake: Intake, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = intake.topic("raw", 3)
    intake.file({(topic, 0): [Row(NOW)], (topic, 1): [Row(NOW)]})
    lost = intake.file({(topic, 1): [Row(NOW)], (topic, 2): [Row(NOW)]}, row_group_bytes=1)
    store.delete(lost)
    opened: list[str] = []
    real = LocalObjectStore.open_input

    def counted(self: LocalObjectStore, key: str) -> Any:
        opened.append(key)
        return real(self, key)

    monkeypatch.setattr(LocalObjectStore, "open_input", counted)
    results = refine(intake, [plan for p in range(3) for plan in intake.plans(topic, p)])
    assert [result.error for result in results] == [None, "missing", "missing"]
    assert results[1].why is not None and lost in results[1].why
    assert opened.count(lost) == 1, "not once for each of its row groups"
    assert not list(store.spool_dir().glob("archive-*"))


def test_a_damaged_row_group_fails_only_the_plans_that_need_it(
    intake: Intake, store: LocalObjectStore
) -> None:
    topic = intake.topic("raw", 3)
    rng = np.random.default_rng(1)
    key = intake.file(
        {(topic, p): [Row(NOW, rng.bytes(400)) for _ in range(50)] for p in range(3)}, row_group_bytes=1
    )
    path = store.root / key
    data = bytearray(path.read_bytes())
    column = pq.read_metadata(path).row_group(1).column(3)
    data[column.data_page_offset + column.total_compressed_size - 10] ^= 0xFF
    path.write_bytes(data)
    results = refine(intake, [plan for p in range(3) for plan in intake.plans(topic, p)])
    assert [result.error for result in results] == [None, "corrupted", None]
    assert results[1].why is not None and key in results[1].why


@pytest.mark.parametrize("damage", ["short", "long", "footer"])
def test_a_damaged_file_fails_its_plans(intake: Intake, store: LocalObjectStore, damage: str) -> None:
    topic = intake.topic("raw", 2)
    key = intake.file({(topic, 0): [Row(NOW)]})
    intake.file({(topic, 1): [Row(NOW)]})
    data = (store.root / key).read_bytes()
    altered = {
        "short": data[:-20],
        "long": data + b"x",
        "footer": data[:-30] + bytes([data[-30] ^ 1]) + data[-29:],
    }[damage]
    (store.root / key).write_bytes(altered)
    results = refine(intake, intake.plans(topic, 0) + intake.plans(topic, 1))
    assert [result.error for result in results] == ["corrupted", None]


def _of(plan: Plan, numbers: Numbers) -> Plan:
    return replace(plan, segments=Segments(numbers, plan.segments.files))


def _with_a_hole(plan: Plan) -> Plan:
    return _of(plan, plan.segments.numbers[[0, 2]])


def _one_twice(plan: Plan) -> Plan:
    return _of(plan, plan.segments.numbers[[0, 1, 1, 2]])


def _against_the_log(plan: Plan) -> Plan:
    """Offsets follow each other, but the log has the records of the later ones before those of the earlier
    ones."""
    numbers = plan.segments.numbers.copy()
    numbers[:, [BASE, END]] = numbers[::-1, [BASE, END]]
    return _of(plan, numbers[::-1].copy())


def _two_in_one_place(plan: Plan) -> Plan:
    numbers = plan.segments.numbers.copy()
    numbers[1, LOG_INDEX] = numbers[0, LOG_INDEX]
    return _of(plan, numbers)


def _one_begins_in_another(plan: Plan) -> Plan:
    numbers = _two_in_one_place(plan).segments.numbers.copy()
    numbers[1, FIRST_ROW] += 2
    return _of(plan, numbers)


def _gap_among_records(plan: Plan) -> Plan:
    return replace(plan, gaps=((1, 2),), rows=plan.rows - 1)


@pytest.mark.parametrize(
    "damaged",
    [
        _with_a_hole,
        _one_twice,
        _against_the_log,
        _two_in_one_place,
        _one_begins_in_another,
        _gap_among_records,
    ],
)
def test_a_plan_that_is_no_chain_in_the_log_is_refused(
    intake: Intake, store: LocalObjectStore, damaged: Callable[[Plan], Plan]
) -> None:
    topic = intake.topic("raw", 2)
    for number in range(3):
        intake.file({(topic, p): [Row(NOW + number)] * 3 for p in (0, 1)})
    (one,), (other,) = intake.plans(topic, 0), intake.plans(topic, 1)
    refused, whole = refine(intake, [damaged(one), other])
    assert (refused.error, refused.files, whole.error) == ("corrupted", (), None)
    assert refused.why is not None and "raw partition 0" in refused.why
    assert [info.key for info in store.list("archive/")] == [whole.files[0].archive.key]
    assert not list(store.spool_dir().glob("archive-*"))


def test_a_plan_whose_segments_do_not_reach_its_end_stores_nothing_of_the_rest(
    intake: Intake, store: LocalObjectStore
) -> None:
    topic = intake.topic("raw")
    intake.file({(topic, 0): [Row(NOW)] * 3})
    (plan,) = intake.plans(topic)
    (found,) = refine(intake, [replace(plan, end=5)])
    assert (found.error, list(store.list("archive/"))) == ("failed", [])
    assert found.why is not None and "the plan ends at offset 5" in found.why


def test_missing_memory_for_what_is_kept_of_a_row_group_is_to_be_tried_again(
    intake: Intake, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records that were not kept are not skipped: the next ones, a day later, are others."""
    topic = intake.topic("raw", 3)
    for number in range(4):
        intake.file({(topic, p): [Row(NOW + number * DAY, b"%d" % number)] * 3 for p in range(3)})
    calls: list[int] = []

    def failing(pieces: Sequence[Piece]) -> Piece:
        calls.append(len(pieces))
        if len(calls) == 2:
            raise pa.ArrowMemoryError("no memory left")
        return copied(pieces)

    monkeypatch.setattr("archiver.refine.demultiplexer.copied", failing)
    one, other = refine(intake, [*intake.plans(topic, 0), *intake.plans(topic, 1)])
    assert (one.error, other.error, list(store.list("archive/"))) == ("retry", "retry", [])
    monkeypatch.undo()
    again = refine(intake, [*intake.plans(topic, 0), *intake.plans(topic, 1)])
    assert [[file.archive.base for file in result.files] for result in again] == [[0, 3, 6, 9]] * 2


def test_a_segment_beyond_its_row_group_fails_only_its_plans(intake: Intake) -> None:
    topic = intake.topic("raw", 3)
    key = intake.file({(topic, p): [Row(NOW)] * 3 for p in range(3)})
    plans = [plan for p in range(3) for plan in intake.plans(topic, p)]
    beyond = plans[1].segments.numbers.copy()
    beyond[0, FIRST_ROW] = 7
    results = refine(intake, [plans[0], _of(plans[1], beyond), plans[2]])
    assert [result.error for result in results] == [None, "corrupted", None]
    assert results[1].why is not None and key in results[1].why and "9 rows" in results[1].why


def test_a_topic_that_cannot_be_read_does_not_stop_the_others(intake: Intake) -> None:
    first, second = intake.topic("broken"), intake.topic("whole")
    intake.file({(first, 0): [Row(NOW)], (second, 0): [Row(NOW)]})
    plans = intake.plans(first) + intake.plans(second)
    task = task_of(intake, plans)
    broken = replace(task.topics[first], schema=replace(raw_schema(), iceberg_json="{}"))
    results = {
        result.topic_id: result for result in run_bundle(replace(task, topics={**task.topics, first: broken}))
    }
    assert (results[first].error, results[second].error) == ("failed", None)


@pytest.mark.parametrize(
    ("armed", "error", "stored"),
    [
        ("archive.upload.before=error", "retry", 0),
        ("archive.upload.after=error", "retry", 1),
        ("archive.upload.before=unknown", "retry", 0),
        ("archive.upload.after=unknown", None, 1),
    ],
)
def test_trouble_around_the_upload(
    intake: Intake, store: LocalObjectStore, armed: str, error: str | None, stored: int
) -> None:
    topic = intake.topic("raw")
    intake.file({(topic, 0): [Row(NOW)]})
    failpoints.arm(armed)
    try:
        (result,) = refine(intake, intake.plans(topic))
    finally:
        failpoints.arm("")
    assert result.error == error
    assert len(list(store.list("archive/"))) == stored
    assert not list(store.spool_dir().glob("archive-*"))
    (again,) = refine(intake, intake.plans(topic))
    assert again.error is None
    assert len(list(store.list("archive/"))) == 1


def test_a_full_disk_is_to_be_tried_again(
    intake: Intake, store: LocalObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = intake.topic("raw")
    intake.file({(topic, 0): [Row(NOW)]})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    (result,) = refine(intake, intake.plans(topic))
    assert result.error == "retry"
    assert result.why is not None and "No space left" in result.why
    assert not list(store.spool_dir().glob("archive-*"))


@pytest.mark.parametrize("left", ["nothing", "an empty folder", "another cluster's"])
def test_a_data_folder_that_is_gone_is_not_begun_again(
    left: str, intake: Intake, store: LocalObjectStore, tmp_path: Path
) -> None:
    """The worker opens the store itself, and has read nothing of it before."""
    topic = intake.topic("raw")
    intake.file({(topic, 0): [Row(NOW)]})
    task = task_of(intake, intake.plans(topic))
    store.root.rename(tmp_path / "away")
    if left == "an empty folder":
        store.root.mkdir()
    elif left != "nothing":
        identify(store.root, "d" * 32)
    (result,) = run_bundle(task)
    assert (result.error, result.files) == ("retry", ())
    assert result.why is not None and str(store.root) in result.why
    assert store.root.exists() == (left != "nothing")
    assert [path.name for path in store.root.rglob("*")] == (
        ["cluster.json"] if left == "another cluster's" else []
    )
    if left != "nothing":
        store.root.rename(tmp_path / "other")
    (tmp_path / "away").rename(store.root)
    (result,) = run_bundle(task)
    assert result.error is None

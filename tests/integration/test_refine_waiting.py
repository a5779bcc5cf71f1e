"""Records that wait for decoding in a refinement task: how much of what was read is kept for them, and when
it is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from archiver.objects.local import LocalObjectStore
from archiver.refine.plan_writer import Kept, Piece, PlanWriter
from archiver.refine.plan_writer import copied as copied_pieces
from archiver.refine.task import RefineOptions
from tests.support.builders.refining import NOW, kafka, refine, table_of
from tests.support.intake.intake_files import Intake, Row
from tests.support.schema.orders import rows_of


@pytest.fixture
def intake(tmp_path: Path) -> Intake:
    return Intake(LocalObjectStore(tmp_path / "data"))


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each copy that a writer made of records waiting for decoding."""
    found: list[int] = []

    def counted(waiting: Sequence[Piece]) -> Piece:
        made = copied_pieces(waiting)
        assert made[0].others.get_total_buffer_size() < made[0].nbytes + 1000, "it points into no row group"
        found.append(made[2])
        return made

    monkeypatch.setattr("archiver.refine.plan_writer.copied", counted)
    return found


def test_row_groups_that_small_segments_keep_alive_are_freed(intake: Intake, copied: list[int]) -> None:
    """Only the needed rows are copied; and a record is not copied each time."""
    topic = intake.topic("raw", 2)
    for index in range(60):
        intake.file(
            {
                (topic, 0): [Row(NOW + index, b"%d" % index + b"y" * 200)],
                (topic, 1): [Row(NOW, b"x" * 1000)] * 10,
            }
        )
    often = RefineOptions(buffer_bytes=40_000, decode_bytes=5000)
    small, large = refine(intake, intake.plans(topic, 0) + intake.plans(topic, 1), options=often)
    assert [row["__raw__"] for row in rows_of(table_of(intake, small)["value"])] == [
        b"%d" % index + b"y" * 200 for index in range(60)
    ]
    assert kafka(table_of(intake, large), "offset") == list(range(600))
    assert len(copied) > 50, (
        "a row group has 10 KB, a quarter of what may be held, and the large partition is done with it "
        "at once"
    )
    assert max(copied) > 10, "now and then what was copied is put together"
    assert sum(copied) < 60 * 4


def test_of_a_row_group_only_what_is_wanted_is_kept(
    intake: Intake, copied: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = intake.topic("raw", 3)
    for index in range(300):
        intake.file(
            {
                (topic, p): [Row(NOW + index, b"%d" % index)] if p == 1 else [Row(NOW, b"x" * 500)] * 10
                for p in range(3)
            }
        )
    pinned: list[int] = []
    real = PlanWriter.add

    def add(self: PlanWriter, place: int, records: Kept, first: int, rows: int) -> bool:
        pinned.append(records.others.get_total_buffer_size())
        return real(self, place, records, first, rows)

    monkeypatch.setattr(PlanWriter, "add", add)
    (result,) = refine(intake, intake.plans(topic, 1), options=RefineOptions(buffer_bytes=1_000_000))
    assert max(pinned) < 1000
    assert [row["__raw__"] for row in rows_of(table_of(intake, result)["value"])] == [
        b"%d" % index for index in range(300)
    ]
    assert copied == [256, 44], (
        "put together to be decoded; the row groups have 3 MB, of which a quarter of one may be kept"
    )


def test_row_groups_of_which_everything_waits_are_not_copied(intake: Intake, copied: list[int]) -> None:
    topic = intake.topic("raw", 2)
    for _ in range(20):
        intake.file({(topic, p): [Row(NOW, b"x" * 1000)] * 5 for p in (0, 1)})
    refine(
        intake, intake.plans(topic, 0) + intake.plans(topic, 1), options=RefineOptions(buffer_bytes=400_000)
    )
    assert copied == [], "200 KB, more than a quarter of what may be held"


def test_what_waits_is_copied_before_that_could_take_too_much(intake: Intake, copied: list[int]) -> None:
    """During the copy the records exist twice, with all row groups of which nothing is copied yet."""
    topic = intake.topic("raw", 2)
    for _ in range(20):
        intake.file({(topic, p): [Row(NOW, b"x" * 1000)] * 4 for p in (0, 1)})
    refine(
        intake, intake.plans(topic, 0) + intake.plans(topic, 1), options=RefineOptions(buffer_bytes=200_000)
    )
    assert len(copied) >= 2, "160 KB wait, and the row groups that they lie in are as large"


def test_many_tiny_pieces_are_put_together(intake: Intake, copied: list[int]) -> None:
    """The pieces themselves take more memory than what they hold."""
    topic = intake.topic("raw")
    for _ in range(200):
        intake.file({(topic, 0): [Row(NOW)]})
    (result,) = refine(intake, intake.plans(topic), options=RefineOptions(buffer_bytes=40_000))
    assert kafka(table_of(intake, result), "offset") == list(range(200))
    assert 3 <= len(copied) <= 8

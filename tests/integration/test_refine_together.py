"""Small plans of a task are decoded together; their archives are the same as those of plans alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from archiver.objects.local import LocalObjectStore
from archiver.refine.plan import Plan
from archiver.refine.plan_writer import PlanWriter
from archiver.refine.task import PlanResult, RefineOptions
from archiver.schema.codec import RecordCodec
from tests.support.builders.refining import DAY, NOW, kafka, refine, table_of
from tests.support.intake.intake_files import Intake, Row
from tests.support.schema.orders import order, order_schema, rows_of

ALONE = RefineOptions(decode_rows=1)
"""No plan is small enough to be decoded with others."""


@pytest.fixture
def intake(tmp_path: Path) -> Intake:
    return Intake(LocalObjectStore(tmp_path / "data"))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records of each call of the codec."""
    return _counting(monkeypatch, lambda rows: None)


def _counting(monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None]) -> list[int]:
    found: list[int] = []
    real = RecordCodec.encode_columns

    def counted(self: RecordCodec, keys: Any, values: Any) -> Any:
        before(len(values))
        found.append(len(values))
        return real(self, keys, values)

    monkeypatch.setattr(RecordCodec, "encode_columns", counted)
    return found


def _mixed(intake: Intake) -> list[Plan]:
    """Plans of three partitions: null keys, tombstones, headers, values that cannot be decoded, a change of
    the day, and a first segment that begins before the plan."""
    topic = intake.topic("orders", 3)
    for index in range(3):
        intake.file(
            {
                (topic, 0): [Row(NOW + index, order(index * 10 + at), b"a%d" % at) for at in range(4)],
                (topic, 1): [
                    Row(NOW + index * DAY, order(100 + index, "bob", 3), None, (("trace", b"%d" % index),)),
                    Row(NOW + index * DAY, b"\xff\xff", b"bad"),
                    Row(NOW + index * DAY, None, b"gone"),
                ],
                (topic, 2): [Row(NOW, order(200 + index * 2)), Row(NOW, order(201 + index * 2, lines=0))],
            }
        )
    plans = [plan for partition in range(3) for plan in intake.plans(topic, partition)]
    return [*plans[:2], replace(plans[2], base=1, rows=plans[2].rows - 1)]


def _alone(intake: Intake, plans: list[Plan]) -> list[PlanResult]:
    return refine(
        intake, [replace(plan, epoch=plan.epoch + 1) for plan in plans], schema=order_schema(), options=ALONE
    )


def test_plans_decoded_together_give_the_archives_of_plans_alone(intake: Intake, encoded: list[int]) -> None:
    plans = _mixed(intake)
    together = refine(intake, plans, schema=order_schema())
    assert encoded == [27], "one call for the records of all plans, and of their segments"
    alone = _alone(intake, plans)
    assert len(encoded) > 20
    for one, other in zip(together, alone, strict=True):
        assert table_of(intake, one) == table_of(intake, other)
        assert len(one.files) == len(other.files)
        for file, expected in zip(one.files, other.files, strict=True):
            assert file.archive.records_digest == expected.archive.records_digest
            assert file.decode_errors == expected.decode_errors
            assert replace(file.archive, key="", size=0, sha256=b"", epoch=0) == replace(
                expected.archive, key="", size=0, sha256=b"", epoch=0
            )
            assert file.data_file.lower_bounds == expected.data_file.lower_bounds
            assert file.data_file.upper_bounds == expected.data_file.upper_bounds
            assert file.data_file.null_value_counts == expected.data_file.null_value_counts
    first, second, third = together
    assert [row["id"] for row in rows_of(table_of(intake, first)["value"])] == [
        0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23,
    ]  # fmt: skip
    assert [len(one.files) for one in together] == [1, 3, 1]
    assert [dict(file.decode_errors) for file in second.files] == [{("value", "malformed"): 1}] * 3
    assert kafka(table_of(intake, third), "offset") == [1, 2, 3, 4, 5]
    assert [row["id"] for row in rows_of(table_of(intake, third)["value"])] == [201, 202, 203, 204, 205]


def test_plans_of_two_topics_are_decoded_apart(intake: Intake, encoded: list[int]) -> None:
    one, other = intake.topic("one", 2), intake.topic("other", 2)
    intake.file({(topic, p): [Row(NOW, order(p))] * 3 for topic in (one, other) for p in (0, 1)})
    refine(
        intake,
        [plan for topic in (one, other) for p in (0, 1) for plan in intake.plans(topic, p)],
        schema=order_schema(),
    )
    assert encoded == [6, 6]


def test_large_plans_are_decoded_alone_and_small_ones_in_groups(intake: Intake, encoded: list[int]) -> None:
    topic = intake.topic("orders", 6)
    intake.file({(topic, p): [Row(NOW, order(p))] * (11 if p == 0 else 10) for p in range(6)})
    refine(
        intake,
        [plan for p in range(6) for plan in intake.plans(topic, p)],
        schema=order_schema(),
        options=RefineOptions(decode_rows=40),
    )
    assert encoded == [11, 40, 10], "small is a quarter of what is decoded at a time"


def test_an_error_of_decoding_together_is_that_of_one_plan(
    intake: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(rows: int) -> None:
        if rows > 4:
            raise ValueError("too many")

    plans = _mixed(intake)
    _counting(monkeypatch, failing)
    results = refine(intake, plans, schema=order_schema())
    assert [result.error for result in results] == ["failed", None, "failed"], "12, 3 a day, and 6 records"
    assert [len(result.files) for result in results] == [0, 3, 0]


def test_a_plan_with_missing_records_fails_alone(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = _mixed(intake)
    real = PlanWriter.add

    def add(self: PlanWriter, place: int, records: Any, first: int, rows: int) -> bool:
        return real(self, place, records, first, rows - (self.plan.partition == 1))

    monkeypatch.setattr(PlanWriter, "add", add)
    first, second, third = refine(intake, plans, schema=order_schema())
    assert second.error == "corrupted"
    assert [first.error, third.error] == [None, None]
    assert [row["id"] for row in rows_of(table_of(intake, third)["value"])] == [201, 202, 203, 204, 205]


def test_columns_that_would_be_too_large_together_are_decoded_alone(
    intake: Intake, encoded: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = _mixed(intake)
    monkeypatch.setattr(
        "archiver.schema.codec.portions", lambda rows, bounds: [(at, at + 1) for at in range(rows)]
    )
    together = refine(intake, plans, schema=order_schema())
    assert encoded == [1] * (12 + 9 + 5)
    assert [result.error for result in together] == [None] * 3

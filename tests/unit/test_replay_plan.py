"""Which files a replay leaves unchanged."""

from __future__ import annotations

from dataclasses import replace

import pytest

from archiver.objects.paths import ArchiveKey
from archiver.rewrite.replay import ReplayTarget, is_requested, refusal
from archiver.rewrite.replay_report import SKIPPED_MAX, ReplayReport, TopicReplay
from archiver.rewrite.undecoded import DoubtedFile, error_fields
from archiver.runtime.errors import Corrupted, RetryLater, TopicHalted
from archiver.runtime.exit_codes import FINE, UNKNOWN, WRONG
from tests.support.schema.orders import order_schema, raw_schema

OURS = DoubtedFile("file:///a", "a", 9, ArchiveKey("0a" * 16, 3, "day", 20_000, 0, 5, 1))
TARGET = ReplayTarget(0, "day")


@pytest.mark.parametrize(
    ("file", "target", "why"),
    [
        (OURS, TARGET, None),
        (replace(OURS, archive=None), TARGET, "another engine"),
        (replace(OURS, has_deletes=True), TARGET, "delete files"),
        (replace(OURS, spec_id=1), TARGET, "partition spec"),
        (OURS, ReplayTarget(0, "hour"), "partition spec"),
    ],
)
def test_refusals(file: DoubtedFile, target: ReplayTarget, why: str | None) -> None:
    found = refusal(file, target)
    assert (found is None) == (why is None)
    assert why is None or why in str(found)


@pytest.mark.parametrize(
    ("partitions", "ours", "foreign"), [(None, True, True), ({3}, True, True), ({2}, False, True)]
)
def test_partitions_asked_for(partitions: set[int] | None, ours: bool, foreign: bool) -> None:
    target = replace(TARGET, partitions=partitions)
    assert (is_requested(OURS, target), is_requested(replace(OURS, archive=None), target)) == (ours, foreign)


def test_sides_with_a_schema_have_a_column_of_errors() -> None:
    assert list(error_fields(order_schema().iceberg_json)) == ["value"]
    assert error_fields(raw_schema().iceberg_json) == {}


def test_the_worst_topic_gives_the_exit_code() -> None:
    fine, later, wrong = TopicReplay("a"), TopicReplay("b"), TopicReplay("c")
    later.failed(RetryLater("away"))
    wrong.failed(TopicHalted("c", "rolled back"))
    assert [
        ReplayReport(False, 1, topics).exit_code for topics in ([fine], [fine, later], [later, wrong])
    ] == [FINE, UNKNOWN, WRONG]
    assert (wrong.why, later.state) == ("rolled back", "deferred")
    other = TopicReplay("d")
    other.failed(Corrupted("gone"))
    assert other.state == "halted"


def test_the_list_of_skipped_files_is_bounded() -> None:
    found = TopicReplay("a")
    for number in range(SKIPPED_MAX + 5):
        found.skip(str(number), "why")
    assert len(found.skipped) == SKIPPED_MAX

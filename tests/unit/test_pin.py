"""Which intake file is the oldest required one: every reason, and the partition that is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import TopicId
from archiver.runtime.logging import METRICS
from reconcile.snapshot.oldest_required import OldestRequired, metrics_of, oldest_required
from reconcile.snapshot.retention_floor import RetentionFloor
from tests.support.builders.cleaning import NOW_US, Run, Vacuumed, stamps, tp_of
from tests.support.intake.unread_history import UnreadHistory


def pin_of(vacuumed: Vacuumed, **changes: Mapping[str, object]) -> OldestRequired | None:
    """The oldest required file, with the retention floors of the test's vacuum and these fields of a topic's
    floor changed."""
    intake = vacuumed.backlog()
    lines: dict[TopicId, RetentionFloor] = {}
    for topic_id, line in vacuumed.topic_lines(intake, vacuumed.ledger()).items():
        lines[topic_id] = replace(line, **changes.get(line.topic, {}))  # type: ignore[arg-type]
    return oldest_required(intake, lines)


def two() -> tuple[Vacuumed, list[str]]:
    vacuumed = Vacuumed()
    vacuumed.topic("a", 2)
    vacuumed.topic("b")
    return vacuumed, [vacuumed.file(Run("b"), Run("a", 1)), vacuumed.file(Run("a"))]


def test_nothing_is_pinned_where_nothing_is_needed() -> None:
    vacuumed, _ = two()
    vacuumed.lines = {("a", 0): 1, ("a", 1): 1, ("b", 0): 1}
    assert pin_of(vacuumed) is None
    assert pin_of(Vacuumed()) is None


def test_the_oldest_file_and_one_of_the_partitions_that_need_it_are_named() -> None:
    vacuumed, keys = two()
    pin = pin_of(vacuumed)
    assert pin == OldestRequired("a", 1, keys[0], NOW_US + 1_000_000, "not archived yet")
    assert pin.age_s(NOW_US + 61_000_000) == 60
    assert pin.age_s(0) == 0
    vacuumed.lines = {("a", 1): 1}
    pin = pin_of(vacuumed)
    assert pin is not None
    assert (pin.topic, pin.partition, pin.key) == ("b", 0, keys[0])
    vacuumed.lines = {("a", 1): 1, ("b", 0): 1}
    pin = pin_of(vacuumed)
    assert pin is not None
    assert (pin.topic, pin.partition, pin.key) == ("a", 0, keys[1])
    assert pin.to_json(NOW_US) == {
        "topic": "a",
        "partition": 0,
        "key": keys[1],
        "written_at": "2027-01-15T08:00:02.000000Z",
        "age_seconds": 0,
        "why": "not archived yet",
    }
    assert (
        str(pin)
        == f"{keys[1]}, written 2027-01-15 08:00:02 UTC, is needed by a partition 0: not archived yet"
    )


def test_an_open_transaction_is_named() -> None:
    vacuumed = Vacuumed()
    vacuumed.topic("a")
    producer = vacuumed.sequencer.open_producer("billing", 10**12)
    vacuumed.file(*(Run("a", stamp=stamp) for stamp in stamps(producer, 0, 1, transactional=True)))
    vacuumed.file(Run("a"))
    pin = pin_of(vacuumed)
    assert pin is not None
    assert (
        pin.why
        == "transaction billing is open since 2027-01-15 08:00:01 UTC; nothing behind its beginning is "
        "archived"
    )
    assert vacuumed.sequencer.end_transaction(*producer, commit=True) is None
    pin = pin_of(vacuumed)
    assert pin is not None
    assert pin.why == "not archived yet"


def test_a_record_before_the_open_transaction_is_only_not_archived() -> None:
    vacuumed = Vacuumed()
    vacuumed.topic("a")
    producer = vacuumed.sequencer.open_producer("billing", 10**12)
    vacuumed.file(Run("a"))
    vacuumed.file(*(Run("a", stamp=stamp) for stamp in stamps(producer, 0, 1, transactional=True)))
    pin = pin_of(vacuumed)
    assert pin is not None
    assert pin.why == "not archived yet"


def test_a_retained_snapshot_a_doubt_and_a_topic_that_keeps_everything_are_distinguished() -> None:
    vacuumed, _ = two()
    vacuumed.lines = {("b", 0): 1}

    def why(**fields: object) -> str:
        pin = pin_of(vacuumed, a=fields)
        assert pin is not None
        return pin.why

    assert why(watermarks=(1, 1)).startswith(
        "archived, but a retained snapshot of its table ends at offset 0;"
    )
    assert "(archive.snapshots_max, archive.snapshots_age)" in why(watermarks=(1, 1))
    assert max(len(sentence.split()) for sentence in why(watermarks=(1, 1)).split(". ")) <= 25
    assert (
        why(why="the topic has archive kind none")
        == "nothing of it is deleted: the topic has archive kind none"
    )
    assert why(why="rolled back", doubted=True) == "nothing is deleted on doubt: rolled back"


def test_the_metric_names_the_partition() -> None:
    pin = OldestRequired("a.b", 3, "k", NOW_US, "not archived yet")
    found = metrics_of(pin, NOW_US + 5_000_000)
    names = ("archiver_intake_oldest_required_age_seconds", "archiver_intake_pinned_age_seconds")
    assert found == {f'{name}{{topic="a.b",partition="3"}}': 5.0 for name in names}
    assert metrics_of(None, NOW_US) == dict.fromkeys(names, 0.0)
    assert all(name.partition("{")[0] in METRICS for name in found)


def test_partitions_that_cannot_be_looked_up_are_passed_over() -> None:
    vacuumed, keys = two()
    intake = vacuumed.backlog()
    lines = vacuumed.topic_lines(intake, vacuumed.ledger())
    history = UnreadHistory(
        {tp_of(vacuumed, name, number): Corrupted("damaged") for name, number in (("a", 1), ("b", 0))}
    )
    pin = oldest_required(history.release_history(intake.fold), lines)
    assert pin is not None
    assert (pin.topic, pin.partition, pin.key) == ("a", 0, keys[1])
    history.errors[tp_of(vacuumed, "a", 0)] = Corrupted("damaged")
    assert oldest_required(history.release_history(vacuumed.backlog().fold), lines) is None

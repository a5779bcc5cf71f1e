"""The vacuum's order of effects, and the consequences of a failed step: barrier, tail, CONDEMNED, deletion
delay, delete, DELETED."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pydantic import ValidationError

from archiver.config.groups import CleanupSettings
from archiver.ledger.fold import LedgerFold
from archiver.proto import control_log_pb2 as pb
from archiver.proto import intake_log_pb2 as ipb
from archiver.runtime import failpoints
from archiver.runtime.errors import Corrupted, Deposed, Halt, LeaseHeld, OutcomeUnknown, RetryLater
from archiver.runtime.ids import TopicId
from intake.format import INTAKE_SCHEMA, SegmentRows, write_intake_file
from intake.log.backlog import Backlog
from reconcile.snapshot.oldest_required import oldest_required
from reconcile.vacuum.clean import needed_files
from reconcile.vacuum.report import CleanReport
from tests.support.builders.cleaning import GRACE_S, Run, Vacuumed, stamps, tp_of
from tests.support.intake.unread_history import UnreadHistory
from tests.support.log.memory_log import MemoryLease
from tests.support.objects.faulty_objects import ObjectFault

POINTS = [name for name in failpoints.NAMES if name.startswith(("condemn.", "intake.delete.", "deleted."))]


@pytest.fixture(autouse=True)
def disarmed() -> Iterator[None]:
    yield
    failpoints.arm("")


def archived(count: int = 3, **fields: object) -> tuple[Vacuumed, list[str]]:
    """This many files of one record each, all archived except the last, all older than the deletion delay."""
    vacuumed = Vacuumed(lines={("a", 0): count - 1}, **fields)  # type: ignore[arg-type]
    vacuumed.topic("a")
    keys = [vacuumed.file(Run("a")) for _ in range(count)]
    vacuumed.later()
    return vacuumed, keys


def said(vacuumed: Vacuumed) -> list[str]:
    """The kinds of the entries in the control log."""
    return [
        pb.ControlEntry.FromString(entry.data).WhichOneof("body") or ""
        for entry in vacuumed.control_log.read(0)
    ]


def barriers(vacuumed: Vacuumed) -> int:
    return sum(
        ipb.IntakeEntry.FromString(entry.data).WhichOneof("body") == "barrier"
        for entry in vacuumed.intake_log.read(0)
    )


def test_archived_files_are_marked_and_go_after_the_grace() -> None:
    vacuumed, keys = archived()
    report = vacuumed.clean()
    assert (report.condemned, report.deleted, report.waiting, report.needed) == (keys[:2], [], 2, 1)
    assert vacuumed.keys() == keys
    vacuumed.clock.advance(GRACE_S - 1)
    assert vacuumed.clean().deleted == []
    vacuumed.clock.advance(2)
    report = vacuumed.clean()
    assert (report.condemned, report.deleted, report.waiting) == ([], keys[:2], 0)
    assert vacuumed.keys() == keys[2:]
    assert said(vacuumed) == ["epoch_started", "condemned", "epoch_started", "deleted"]
    assert vacuumed.ledger().condemned == {}


def test_a_run_with_nothing_to_do_writes_nothing() -> None:
    vacuumed, _ = archived(1)
    before = vacuumed.tails()
    report = vacuumed.clean()
    assert (report.condemned, report.needed, report.barrier_ms) == ([], 1, None)
    assert vacuumed.tails() == before


def test_young_files_with_any_content_stay() -> None:
    vacuumed, keys = archived()
    vacuumed.lines["a", 0] = 9
    young = [vacuumed.upload(), vacuumed.file(Run("a"))]
    report = vacuumed.clean()
    assert (report.condemned, report.young) == (keys, 2)
    vacuumed.later()
    vacuumed.clean()
    assert vacuumed.keys() == young


def test_a_dry_run_writes_nothing_and_needs_no_lease() -> None:
    vacuumed, keys = archived()
    vacuumed.clean()
    vacuumed.later()
    stray = vacuumed.upload()
    vacuumed.later()
    before, held = vacuumed.tails(), MemoryLease("x:1", vacuumed.place)
    held.acquire()
    report = vacuumed.clean(dry_run=True)
    assert (report.deleted, report.condemned, report.waiting, report.barrier_ms) == (
        keys[:2],
        [stray],
        0,
        None,
    )
    assert vacuumed.tails() == before
    assert vacuumed.keys() == [*keys, stray]


def test_a_held_lease_names_its_holder_and_nothing_is_written() -> None:
    vacuumed, keys = archived()
    before = vacuumed.tails()
    MemoryLease("x:1", vacuumed.place).acquire()
    with pytest.raises(LeaseHeld, match="x:1"):
        vacuumed.clean()
    assert (vacuumed.tails(), vacuumed.keys()) == (before, keys)


def test_a_run_marks_and_deletes_no_more_than_the_limit_oldest_first() -> None:
    vacuumed, keys = archived(6, deletes_max=2)
    report = vacuumed.clean()
    assert (report.condemned, report.over, report.more) == (keys[:2], 3, True)
    vacuumed.clean()
    vacuumed.later()
    report = vacuumed.clean()
    assert (report.deleted, report.condemned, report.waiting) == (keys[:2], keys[4:5], 3)
    assert (report.over, report.cut, report.more) == (0, True, True), "two more could have gone"
    report = vacuumed.clean()
    assert (report.deleted, report.cut, report.more) == (keys[2:4], False, False)


def test_what_needs_more_than_one_entry_is_split() -> None:
    vacuumed, keys = archived(400, entry_bytes_max=16 * 1024)
    assert vacuumed.clean().condemned == keys[:-1]
    assert said(vacuumed).count("condemned") > 1
    assert list(vacuumed.ledger().condemned) == keys[:-1]
    vacuumed.later()
    assert vacuumed.clean().deleted == keys[:-1]
    assert said(vacuumed).count("deleted") > 1
    assert vacuumed.ledger().condemned == {}


@pytest.mark.parametrize("wrong", [{"grace": 59.9}, {"grace": "59s"}, {"grace": 0}, {"deletes_max": 0}])
def test_no_configuration_goes_below_the_floors(wrong: dict[str, object]) -> None:
    assert CleanupSettings.model_validate({"grace": "60s", "deletes_max": 1}).grace == 60
    with pytest.raises(ValidationError):
        CleanupSettings.model_validate(wrong)


# unreferenced files and the barrier


def test_an_unreferenced_file_of_a_killed_writer_goes() -> None:
    vacuumed, keys = archived(1)
    stray = vacuumed.upload()
    vacuumed.later()
    assert vacuumed.clean().condemned == [stray]
    vacuumed.later()
    assert vacuumed.clean().deleted == [stray]
    assert vacuumed.keys() == keys


def test_a_writer_paused_across_the_barrier_is_failed_and_its_file_goes() -> None:
    vacuumed, keys = archived(1)
    paused, key = vacuumed.new_sequencer(), vacuumed.upload()
    paused.refresh()
    vacuumed.later()
    assert vacuumed.clean().condemned == [key]
    landed = vacuumed.name(key, Run("a", rows=2), by=paused)
    assert [(one.refusal, one.runs, one.segment) for one in landed] == [("barrier", (), None)]
    vacuumed.later()
    assert vacuumed.clean().deleted == [key]
    assert vacuumed.keys() == keys
    intake = vacuumed.backlog()
    assert intake.next_offset(tp_of(vacuumed, "a")) == 1, "the refused records got no offsets"


def test_an_append_that_comes_before_the_barrier_saves_its_file() -> None:
    """The vacuum has listed and inspected the files. The suspended writer appends before the barrier, so its
    file is needed."""
    vacuumed, keys = archived(1)
    key = vacuumed.upload()
    vacuumed.later()
    run = vacuumed.cleaning()
    raised = run.sequencer.raise_barrier

    def wakes(written_before_ms: int) -> None:
        vacuumed.name(key, Run("a"))
        raised(written_before_ms)

    run.sequencer.raise_barrier = wakes  # type: ignore[method-assign]
    report = run.run()
    assert (report.condemned, report.needed) == ([], 2)
    vacuumed.later()
    vacuumed.clean()
    assert vacuumed.keys() == [*keys, key]


def test_the_barrier_stands_just_behind_the_newest_file_that_goes() -> None:
    vacuumed, keys = archived()
    stray = vacuumed.upload()
    stray_ms = vacuumed.clock.now_us() // 1000
    vacuumed.clock.advance(10 * 86_400)
    assert vacuumed.clean().barrier_ms == stray_ms + 1
    assert vacuumed.backlog().fold.barrier_ms == stray_ms + 1
    assert vacuumed.keys() == [*keys, stray]


def test_a_clock_that_is_ahead_does_not_stop_the_writers() -> None:
    vacuumed, _ = archived()
    now_us = vacuumed.clock.now_us()
    vacuumed.clock.set_wall(now_us + 86_400_000_000)
    vacuumed.clean()
    vacuumed.clock.set_wall(now_us)
    (landed,) = vacuumed.name(vacuumed.upload(), Run("a"))
    assert landed.refusal is None


def test_no_barrier_is_put_where_a_later_one_stands() -> None:
    vacuumed, _ = archived()
    vacuumed.clean()
    assert barriers(vacuumed) == 1
    vacuumed.lines["a", 0] = 3
    vacuumed.later()
    vacuumed.clean()
    assert barriers(vacuumed) == 2
    vacuumed.later()
    vacuumed.clean()
    assert barriers(vacuumed) == 2


def test_a_repetition_holds_nothing() -> None:
    vacuumed, keys = archived(1)
    producer = vacuumed.sequencer.open_producer("", 1000)
    (stamp,) = stamps(producer, 0, 1)
    original, repeated = vacuumed.file(Run("a", stamp=stamp)), vacuumed.file(Run("a", stamp=stamp))
    vacuumed.later()
    assert vacuumed.clean().condemned == [repeated]
    assert vacuumed.keys() == [*keys, original, repeated]


def test_a_stuck_low_volume_topic_with_only_aborted_records_pins_nothing() -> None:
    vacuumed = Vacuumed()
    vacuumed.topic("quiet")
    producer = vacuumed.sequencer.open_producer("tx", 10**15)
    key = vacuumed.file(*(Run("quiet", stamp=stamp) for stamp in stamps(producer, 0, 2, transactional=True)))
    vacuumed.later()
    report = vacuumed.clean()
    assert (report.condemned, report.pin is not None and report.pin.topic) == ([], "quiet")
    assert vacuumed.sequencer.end_transaction(*producer, commit=False) is None
    report = vacuumed.clean()
    assert (report.condemned, report.pin) == ([key], None)
    vacuumed.later()
    assert vacuumed.clean().deleted == [key]
    assert vacuumed.backlog().gaps(tp_of(vacuumed, "quiet"), 0, 2) == [(0, 2)]


# doubts and findings


def test_nothing_is_deleted_while_it_is_doubted_that_it_may_go() -> None:
    vacuumed, keys = archived()
    vacuumed.clean()
    vacuumed.later()
    vacuumed.why["a"], vacuumed.doubted = "catalog local cannot be reached", {"a"}
    report = vacuumed.clean()
    assert (report.deleted, report.waiting, report.doubted, report.findings) == ([], 2, True, [])
    assert report.topics == [{"topic": "a", "why": "catalog local cannot be reached", "doubted": True}]
    vacuumed.why.clear()
    vacuumed.doubted = set()
    assert vacuumed.clean().deleted == keys[:2]


def test_a_marked_file_that_is_needed_again_stops_everything_with_a_finding() -> None:
    vacuumed, keys = archived()
    vacuumed.clean()
    vacuumed.later()
    vacuumed.lines["a", 0] = 1
    before = vacuumed.tails()
    report = vacuumed.clean()
    assert (report.deleted, report.condemned) == ([], [])
    assert len(report.findings) == 1
    assert f"{keys[1]} is marked for deletion, but a partition 0 needs it" in report.findings[0]
    assert (vacuumed.tails(), vacuumed.keys()) == (before, keys)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_log_that_is_shorter_than_its_writers_knew_deletes_nothing(dry_run: bool) -> None:
    """The file need not be unreferenced: a lost entry may have named it."""
    vacuumed, keys = archived(1)
    vacuumed.upload(_intake_file(log_index=vacuumed.intake_log.tail()))
    vacuumed.later()
    assert len(vacuumed.clean(dry_run=True).condemned) == 1, "a writer that was killed before its append"
    vacuumed.upload(_intake_file(log_index=vacuumed.intake_log.tail() + 1))
    vacuumed.later()
    before = vacuumed.tails()
    with pytest.raises(Halt, match="put the newest one in place"):
        vacuumed.clean(dry_run=dry_run)
    assert vacuumed.tails() == before
    assert len(vacuumed.keys()) == len(keys) + 2


def _intake_file(log_index: int) -> bytes:
    row = {
        "topic": "a",
        "partition": 0,
        "headers": [],
        "event_timestamp": 0,
        "accept_timestamp": 0,
        "batch": 0,
    }
    rows = pa.Table.from_pylist([row], schema=INTAKE_SCHEMA)
    return write_intake_file(rows, [SegmentRows(TopicId("0" * 32), 0, 1, 0, 0)], 1 << 20, log_index).data


# superseded objects


def test_superseded_checkpoints_go_the_same_way() -> None:
    vacuumed, _ = archived(1)
    old, newer = (
        "checkpoint/intake/v1/00000000000000000005.bin",
        "checkpoint/intake/v1/00000000000000000009.bin",
    )
    for key in (old, newer):
        vacuumed.objects.create(key, b"state")
    vacuumed.superseded = [old, newer]
    assert vacuumed.clean().condemned == [old, newer]
    vacuumed.superseded = [old]
    vacuumed.later()
    assert vacuumed.clean().deleted == [old], "the other one is in use again, so it stays"
    assert vacuumed.keys("checkpoint/") == [newer]


# failures


@pytest.mark.parametrize("fault", [ObjectFault.LOST, ObjectFault.REPLY_LOST, ObjectFault.REFUSED])
def test_a_deletion_of_unknown_outcome_is_repeated(fault: ObjectFault) -> None:
    vacuumed, keys = archived(5)
    vacuumed.clean()
    vacuumed.later()
    vacuumed.objects.fail("delete", fault, skip=2)
    report = vacuumed.clean()
    assert report.deleted == keys[:2]
    assert isinstance(report.error, RetryLater if fault is ObjectFault.REFUSED else OutcomeUnknown)
    assert list(vacuumed.ledger().condemned) == keys[2:4]
    report = vacuumed.clean()
    assert (report.deleted, report.error, report.waiting) == (keys[2:4], None, 0)
    assert vacuumed.keys() == keys[4:]


def test_a_zombie_is_deposed_and_deletes_nothing() -> None:
    vacuumed, keys = archived()
    vacuumed.clean()
    vacuumed.later()
    zombie = vacuumed.leader("z")
    zombie.take_over()
    successor = vacuumed.leader("s")
    run = vacuumed.cleaning(zombie)
    looked = run.lines

    def slept(intake: Backlog, ledger: LedgerFold):  # type: ignore[no-untyped-def]
        lines = looked(intake, ledger)
        successor.take_over()
        return lines

    run.lines = slept
    with pytest.raises(Deposed):
        run.run()
    assert vacuumed.keys() == keys


@pytest.mark.parametrize("action", ["error", "unknown"])
@pytest.mark.parametrize("name", POINTS)
def test_a_run_that_stops_at_any_step_is_finished_by_the_next(name: str, action: str) -> None:
    vacuumed, keys = archived(4)
    if not name.startswith("condemn."):
        vacuumed.clean()
        vacuumed.later()
    failpoints.arm(f"{name}={action}")
    try:
        report: CleanReport | None = vacuumed.clean()
    except (RetryLater, OutcomeUnknown):
        report = None
    failpoints.arm("")
    assert report is None or report.error is not None
    for _ in range(2):
        assert vacuumed.clean().findings == []
        vacuumed.later()
    vacuumed.clean()
    assert vacuumed.keys() == keys[3:]
    assert vacuumed.ledger().condemned == {}
    intake = vacuumed.backlog()
    lines = vacuumed.topic_lines(intake, vacuumed.ledger())
    assert set(needed_files(intake, lines).sure) == set(keys[3:])
    assert oldest_required(intake, lines) is not None


@pytest.mark.parametrize("readable", [0, 1], ids=["from the start", "only before the barrier"])
def test_a_shelf_that_cannot_be_read_keeps_every_file_of_every_topic(readable: int) -> None:
    vacuumed, keys = archived()
    vacuumed.topic("b")
    vacuumed.clean()
    vacuumed.file(Run("b"))
    stray = vacuumed.upload()
    vacuumed.later()
    vacuumed.superseded = ["checkpoint/old", "shelf/old"]
    reported = vacuumed.control_log.tail()
    run, looks = vacuumed.cleaning(), 0
    whole = run.intake

    def intake() -> Backlog:
        nonlocal looks
        looks += 1
        if looks <= readable:
            return whole()
        return UnreadHistory({tp_of(vacuumed, "b"): Corrupted("shelf is damaged")}).release_history(
            whole().fold
        )

    run.intake = intake
    report = run.run()
    assert report.doubted
    assert [(topic["topic"], topic["doubted"]) for topic in report.topics] == [("b", True)]
    assert "shelf is damaged" in str(report.topics[0]["why"])
    assert (report.condemned, report.findings) == ([], [])
    if readable:
        assert report.deleted == keys[:2], "the history file was intact when they were found unneeded"
        return
    assert (report.deleted, report.barrier_ms, vacuumed.control_log.tail()) == ([], None, reported)
    assert set(vacuumed.keys()) >= {*keys, stray}
    again = vacuumed.clean()
    assert (again.deleted, again.condemned) == (keys[:2], [stray, "checkpoint/old", "shelf/old"])

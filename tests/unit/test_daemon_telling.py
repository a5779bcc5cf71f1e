"""The line and the outcome that each job reports."""

from __future__ import annotations

import pytest

from archiver.config.settings import Settings
from archiver.daemon.operations import (
    Tick,
    summarize_archiving,
    summarize_audit,
    summarize_cleaning,
    summarize_replay,
)
from archiver.publish.report import ArchiveReport, CommitTry, TopicReport
from archiver.refine.triggers import PollState
from archiver.rewrite.compact import TopicCompaction
from archiver.rewrite.replay_report import ReplayReport, TopicReplay
from archiver.runtime.errors import Halt, LeaseHeld, RetryLater
from reconcile.vacuum.report import CleanReport


def archived() -> ArchiveReport:
    report = ArchiveReport(epoch=3, rounds=1)
    report.topics["orders"] = TopicReport(
        "orders", "archived", archives=2, rows=1200, stored_bytes=1_500_000, waiting=7
    )
    report.topics["clicks"] = TopicReport(
        "clicks", "archived", archives=1, rows=34, stored_bytes=1000, gaps=5
    )
    return report


def test_a_round_that_archived() -> None:
    report = archived()
    reported = summarize_archiving(report, list(report.topics.values()))
    assert reported.line == (
        "1,234 records of 2 topics archived in 3 files (1.501 MB), 5 offsets of aborted transactions "
        "skipped, 7 records wait"
    )
    assert (reported.outcome, reported.idle) == ("fine", False)
    assert reported.document["rounds"] == 1


def test_a_round_that_had_nothing_to_do() -> None:
    reported = summarize_archiving(ArchiveReport(epoch=3), [TopicReport("orders")])
    assert (reported.line, reported.outcome, reported.idle) == ("nothing was due", "fine", True)


def test_a_round_that_only_settled() -> None:
    report = ArchiveReport(rounds=1, topics={"orders": TopicReport("orders")})
    reported = summarize_archiving(report, list(report.topics.values()))
    assert (reported.line, reported.idle) == ("pending archives are resolved", False)


def test_topics_in_trouble_are_named_and_count() -> None:
    report = archived()
    stuck = [TopicReport(f"t{number}", "halted", why="the table is gone") for number in range(5)]
    late = TopicReport("late", "deferred", why="the catalog is down")
    reported = summarize_archiving(report, [*report.topics.values(), *stuck, late])
    assert reported.outcome == "wrong"
    assert (
        "; halted: t0 (the table is gone), t1 (the table is gone), t2 (the table is gone), 2 more; "
        "deferred: late (the" in reported.line
    )
    assert len(reported.document["topics"]) == 8
    assert summarize_archiving(report, [late]).outcome == "untold"


def settings() -> Settings:
    topics = [
        {"name": name, "partitions": 1, "archive": {"kind": "parquet"}} for name in ("orders", "clicks")
    ]
    metadata = {"sqlite": {"path": "metadata.db"}}
    return Settings.model_validate(
        {
            "cluster": "c",
            "data": {"uri": "data"},
            "metadata": metadata,
            "archive": {"tick": "10s"},
            "topics": topics,
        }
    )


def test_commits_that_outgrow_the_tick_are_said() -> None:
    def after(*seconds: float) -> list[str]:
        report = ArchiveReport(rounds=1)
        for took_s in seconds:
            report.committing(CommitTry("orders", took_s, 1, "committed"))
        tick = Tick(lambda _: report, settings)
        tick.run()
        return tick.notes()

    assert after() == after(4.0, 6.0) == []
    (reported,) = after(4.0, 6.0, 7.5)
    assert reported.startswith(
        "the commits of the last round took 18 s, longer than archive.tick = 10 s: no table gets the "
        "next one sooner"
    )


def test_who_does_not_lead_any_more_says_nothing_of_commits() -> None:
    report = ArchiveReport(rounds=1)
    report.committing(CommitTry("orders", 17.0, 1, "committed"))

    def archive(_: PollState) -> ArchiveReport:
        if tick.notes():
            raise LeaseHeld("b:1")
        return report

    tick = Tick(archive, settings)
    tick.run()
    assert len(tick.notes()) == 1
    with pytest.raises(LeaseHeld):
        tick.run()
    assert tick.notes() == []


def test_what_an_operator_should_know_of_topics_that_go_on() -> None:
    """Each round reports the note until a round of that topic has none. The note is not a failure."""
    note = "archiving goes on with the last known schema"
    noted = ArchiveReport(
        rounds=1, topics={"orders": TopicReport("orders", "archived", archives=1, rows=3, notes=[note, note])}
    )
    tick = Tick(lambda _: noted, settings)
    reported = tick.run()
    assert reported.outcome == "fine"
    assert reported.line.endswith(f"; orders: {note}")
    assert tick.note(ArchiveReport(topics={"clicks": TopicReport("clicks")})).line == f"orders: {note}", (
        "orders was not looked at"
    )
    assert tick.notes() == [f"topic orders: {note}"]
    assert tick.stuck() == {}
    assert tick.note(ArchiveReport(topics={"orders": TopicReport("orders")})).line == "nothing was due"
    assert tick.notes() == []


def test_the_vacuum() -> None:
    report = CleanReport(dry_run=False, checked_us=0, deleted=["a"], condemned=["b", "c"], waiting=2)
    reported = summarize_cleaning(report)
    assert (reported.line, reported.outcome) == (
        "1 object deleted, 2 marked for deletion, 2 marked and still there",
        "fine",
    )
    for error, outcome in ((RetryLater("later"), "untold"), (Halt("never"), "wrong")):
        report.error = error
        assert summarize_cleaning(report).outcome == outcome
        assert summarize_cleaning(report).line.endswith(f"; not finished: {error}")
    report.findings = ["a condemned file is needed"]
    assert summarize_cleaning(report).outcome == "wrong"


def test_the_audit() -> None:
    good = {"topic": "a", "partition": 0, "verdict": "valid", "why": "", "rows": 5}
    bad = {"topic": "a", "partition": 1, "verdict": "invalid", "why": "2 offsets are missing", "rows": 3}
    reported = summarize_audit({"verdict": "valid", "partitions": [good]})
    assert (reported.line, reported.outcome) == ("valid: 1 partition, 5 rows", "fine")
    reported = summarize_audit({"verdict": "invalid", "partitions": [good, bad]})
    assert (reported.line, reported.outcome) == (
        "invalid: 2 partitions, 8 rows; a:1 is invalid: 2 offsets are missing",
        "wrong",
    )
    assert summarize_audit({"verdict": "unknown", "partitions": []}).outcome == "untold"


def test_a_topic_rests_between_two_looks() -> None:
    looks = PollState()
    assert looks.due("a", 0, 10.0)
    looks.polled("a", 0)
    assert not looks.due("a", 9_999_999, 10.0)
    assert looks.due("a", 10_000_000, 10.0)
    assert looks.due("a", -1, 10.0), "a clock that was set back stops nothing"
    looks.ended("a", "archived")
    assert looks.due("a", 1, 10.0), "it may have more"


def test_a_topic_is_whole_until_it_is_in_trouble() -> None:
    looks = PollState()
    for state, whole in (("idle", True), ("halted", False), ("archived", True), ("deferred", False)):
        looks.ended("a", state)
        assert looks.was_ready("a") == whole


def test_a_replay() -> None:
    fine, later, wrong = (
        TopicReplay("a", "replayed", archives=2, decoded=5),
        TopicReplay("b"),
        TopicReplay("c"),
    )
    reported = summarize_replay(ReplayReport(False, 1, [fine]))
    assert (reported.outcome, reported.line) == ("fine", "2 archives rewritten, 5 keys and values decoded")
    later.failed(RetryLater("the catalog is away"))
    assert summarize_replay(ReplayReport(False, 1, [fine, later])).outcome == "untold"
    wrong.failed(Halt("rolled back"))
    reported = summarize_replay(ReplayReport(False, 1, [fine, later, wrong]))
    assert (reported.outcome, reported.line.endswith("; b: the catalog is away; c: rolled back")) == (
        "wrong",
        True,
    )


def test_a_topic_that_could_not_be_compacted_is_no_success() -> None:
    compacted = [TopicCompaction("a", merged=2, archives=9), TopicCompaction("b", why="the catalog is away")]
    reported = summarize_cleaning(CleanReport(False, 0, compacted=compacted))
    assert reported.outcome == "untold"
    assert "a: 9 archives merged into 2; b is not compacted: the catalog is away" in reported.line
    assert summarize_cleaning(CleanReport(False, 0, compacted=compacted[:1])).outcome == "fine"

"""What an archiving run reports of partitions that open transactions hold back."""

from __future__ import annotations

from archiver.publish.progress import HeldBack
from archiver.publish.report import ArchiveReport, TopicReport

S = 1_000_000


def held(name: str, since_s: int, waiting: int) -> HeldBack:
    return HeldBack(name, 7, 2, since_s * S, (since_s + 60) * S, waiting)


def test_the_oldest_transaction_is_named() -> None:
    report = TopicReport("orders")
    report.hold({3: held("young", 90, 5), 1: held("old", 40, 1000)}, 100 * S)
    assert report.why == (
        "held back in 2 partitions: 1,005 offsets wait for open transactions, the oldest of them old "
        "(producer 7, epoch 2, open for 60 s)"
    )
    assert [(item["partition"], item["transactional_id"], item["waiting"]) for item in report.held] == [
        (1, "old", 1000),
        (3, "young", 5),
    ]
    assert report.state == "idle"


def test_next_to_a_reason_of_its_own() -> None:
    report = TopicReport("orders", why="not due yet")
    report.hold({0: held("t", 40, 1)}, 100 * S)
    assert str(report.why).startswith("not due yet; held back in 1 partition: 1 offset waits")


def test_something_wrong_comes_first() -> None:
    for state in ("halted", "deferred"):
        report = TopicReport("orders", state=state, why="the disk is full")
        report.hold({0: held("t", 40, 1)}, 100 * S)
        assert (report.why, len(report.held)) == ("the disk is full", 1), "the document has both"


def test_nothing_is_held() -> None:
    report = ArchiveReport()
    report.of("orders").hold({}, 100 * S)
    assert (report.of("orders").why, report.of("orders").held) == (None, [])

"""Sending an input: one acknowledgement for each record, in input order, under all outcomes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from archiver.runtime.errors import (
    Halt,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    ProducerFenced,
    RecordRefused,
    RetryLater,
    TransactionFailed,
)
from intake.produce_stream import (
    MARKER_ATTEMPTS_MAX,
    EndedTransaction,
    Sending,
    Sent,
    WholeInput,
    until_resolved,
)
from intake.record_json import Input
from intake.records import Record
from intake.write.acknowledgements import OK, FlushOutcome, PendingRecord


class StubWriter:
    """Accepts records and settles them when the test calls `settle`. On close, the rest gets `at_close`."""

    def __init__(self, at_close: FlushOutcome | None = OK, close_error: Exception | None = None) -> None:
        self.sent: list[PendingRecord] = []
        self.errors: dict[int, Exception] = {}
        self.closed = 0
        self._at_close = at_close
        self._close_error = close_error
        self._calls = 0
        self._changed = threading.Condition()

    def send(self, topic: str, record: Record, partition: int | None) -> PendingRecord:
        number, self._calls = self._calls, self._calls + 1
        if number in self.errors:
            raise self.errors[number]
        assert not self.closed
        pending = PendingRecord(topic, partition or 0, self._changed)
        self.sent.append(pending)
        return pending

    def settle(self, number: int, verdict: FlushOutcome = OK) -> None:
        with self._changed:
            self.sent[number].set_outcome(number, verdict)
            self._changed.notify_all()

    def close(self) -> None:
        self.closed += 1
        for number, pending in enumerate(self.sent):
            if self._at_close is not None and not pending.done():
                self.settle(number, self._at_close)
        if self._close_error is not None:
            raise self._close_error


def inputs(count: int) -> list[Input]:
    return [Input("t", number % 2, Record(None, b"v"), f"line {number + 1}") for number in range(count)]


def send(writer: StubWriter, items: Any, timeout_s: float = 0.01, **more: Any) -> list[Sent]:
    reported: list[Sent] = []
    stub: Any = writer
    try:
        Sending(stub, reported.append, timeout_s, **more).run(items)
    except BaseException as error:
        error.add_note(repr(reported))
        error.reported = reported  # type: ignore[attr-defined]
        raise
    return reported


def reported_by(error: BaseException) -> list[Sent]:
    found: list[Sent] = error.reported  # type: ignore[attr-defined]
    return found


def test_acknowledged_in_input_order_though_settled_in_another() -> None:
    writer = StubWriter()

    def items() -> Iterator[Input]:
        yield from inputs(4)
        for number in (3, 1, 2):
            writer.settle(number)

    reported = send(writer, items())
    assert [(sent.offset, sent.outcome) for sent in reported] == [(0, "ok"), (1, "ok"), (2, "ok"), (3, "ok")]
    assert writer.closed == 1


def test_acknowledged_as_soon_as_possible_but_never_out_of_order() -> None:
    writer = StubWriter()
    reported: list[Sent] = []
    seen: list[int] = []

    def items() -> Iterator[Input]:
        for number, item in enumerate(inputs(5)):
            if number == 2:
                writer.settle(1)
            if number == 3:
                writer.settle(0)
                until(lambda: len(reported) == 2)
            seen.append(len(reported))
            yield item

    stub: Any = writer
    Sending(stub, reported.append, 1).run(items())
    assert seen == [0, 0, 0, 2, 2], "reported while the input waits, the second not before the first"
    assert [sent.offset for sent in reported] == [0, 1, 2, 3, 4]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_error_of_the_reporter_ends_the_run() -> None:
    writer = StubWriter()

    def tell(_: Sent) -> None:
        raise BrokenPipeError

    stub: Any = writer
    with pytest.raises(BrokenPipeError):
        Sending(stub, tell, 1).run(inputs(50))
    assert writer.closed == 1


def test_outcomes_as_lines() -> None:
    writer = StubWriter(at_close=None)

    def items() -> Iterator[Input]:
        yield from inputs(3)
        writer.settle(0)
        writer.settle(1, FlushOutcome("failed", "no room"))
        writer.settle(2, FlushOutcome("unknown", "who knows"))

    assert [sent.to_json() for sent in send(writer, items())] == [
        {"topic": "t", "partition": 0, "offset": 0},
        {"topic": "t", "partition": 1, "offset": None, "outcome": "failed", "error": "no room"},
        {"topic": "t", "partition": 0, "offset": None, "outcome": "unknown", "error": "who knows"},
    ]


@pytest.mark.parametrize(
    "error", [NotFound("no such topic"), RecordRefused("too large"), InvalidInput("wrong")]
)
def test_a_refused_record_stops_no_other(error: Exception) -> None:
    writer = StubWriter()
    writer.errors[1] = error
    reported = send(writer, inputs(3))
    assert [(sent.outcome, sent.refused) for sent in reported] == [
        ("ok", False),
        ("failed", True),
        ("ok", False),
    ]
    assert reported[1].error == f"line 2: {error}"
    assert [sent.offset for sent in reported] == [0, None, 1]


def test_no_room_ends_the_run_and_says_where() -> None:
    writer = StubWriter()
    writer.errors[2] = RetryLater("the queue is full")
    with pytest.raises(
        RetryLater, match=r"stopped at line 3, which was not sent, nor any record after it: the queue is full"
    ) as caught:
        send(writer, inputs(9))
    reported = reported_by(caught.value)
    assert [(sent.outcome, sent.refused) for sent in reported] == [
        ("ok", False),
        ("ok", False),
        ("failed", False),
    ]
    assert writer.closed == 1


@pytest.mark.parametrize("error", [InvalidInput("line 3: nonsense"), KeyboardInterrupt()])
def test_an_input_that_breaks_off_is_drained(error: BaseException) -> None:
    writer = StubWriter()

    def items() -> Iterator[Input]:
        yield from inputs(2)
        raise error

    with pytest.raises(type(error)) as caught:
        send(writer, items())
    assert [sent.offset for sent in reported_by(caught.value)] == [0, 1]
    assert writer.closed == 1


def test_a_writer_that_does_not_finish() -> None:
    writer = StubWriter(
        at_close=FlushOutcome("unknown", "closed too late"), close_error=RetryLater("not finished")
    )
    with pytest.raises(RetryLater, match="not finished") as caught:
        send(writer, inputs(2))
    assert [(sent.offset, sent.outcome, sent.error) for sent in reported_by(caught.value)] == [
        (None, "unknown", "closed too late")
    ] * 2


def test_what_is_not_resolved_is_unknown() -> None:
    reported = send(StubWriter(at_close=None), inputs(2))
    assert [(sent.offset, sent.outcome) for sent in reported] == [(None, "unknown")] * 2
    assert all(sent.error is not None and "not acknowledged" in sent.error for sent in reported)


def test_what_is_under_way_is_bounded() -> None:
    writer = StubWriter()
    longest = 0

    def items() -> Iterator[Input]:
        nonlocal longest
        for number, item in enumerate(inputs(20)):
            longest = max(longest, sum(not pending.done() for pending in writer.sent))
            if number >= 5:
                threading.Timer(0.01, writer.settle, [number - 5]).start()
            yield item

    reported = send(writer, items(), timeout_s=10, outstanding_max=5)
    assert longest <= 6
    assert [sent.offset for sent in reported] == list(range(20))


def test_an_empty_input() -> None:
    writer = StubWriter()
    assert send(writer, []) == []
    assert writer.closed == 1


def test_the_first_error_of_the_reporter_is_not_swallowed() -> None:
    writer = StubWriter()

    def tell(_: Sent) -> None:
        raise BrokenPipeError

    stub: Any = writer
    run: Callable[[Sequence[Input]], None] = Sending(stub, tell, 1).run
    with pytest.raises(BrokenPipeError):
        run(inputs(3))
    assert writer.closed == 1


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        (None, None),
        (NotFound("no such topic"), "line 2 was refused: no such topic"),
        (RetryLater("no room"), "stopped at line 2, which was not sent, nor any record after it: no room"),
        (Halt("fenced"), "line 2 was not sent: fenced"),
    ],
)
def test_the_end_says_why_not_the_whole_input_was_handed_over(
    error: Exception | None, broken: str | None
) -> None:
    writer = StubWriter()
    if error is not None:
        writer.errors[1] = error
    reported: list[Sent] = []
    ends: list[tuple[str | None, int]] = []
    stub: Any = writer
    run = Sending(stub, reported.append, 1).run
    if isinstance(error, RetryLater | Halt):
        with pytest.raises(type(error)):
            run(inputs(3), lambda why: ends.append((why, writer.closed)))
    else:
        run(inputs(3), lambda why: ends.append((why, writer.closed)))
    assert ends == [(broken, 0)], "once, before the writer is closed"
    assert writer.closed == 1
    assert [sent.outcome for sent in reported][1] == ("ok" if error is None else "failed")


def test_an_end_that_fails_still_closes_and_reports() -> None:
    writer = StubWriter()
    reported: list[Sent] = []
    stub: Any = writer

    def fail(_: str | None) -> None:
        raise Halt("fenced")

    with pytest.raises(Halt, match="fenced"):
        Sending(stub, reported.append, 1).run(inputs(2), fail)
    assert (writer.closed, [sent.offset for sent in reported]) == (1, [0, 1])


def test_records_go_through_the_producer() -> None:
    writer, producer = StubWriter(), StubWriter()
    reported: list[Sent] = []
    stub: Any = writer
    through: Any = producer
    Sending(stub, reported.append, 0.01, through=through).run(inputs(2))
    assert (len(writer.sent), len(producer.sent), writer.closed, producer.closed) == (0, 2, 1, 0)


@pytest.mark.parametrize("failures", [0, 1, 2])
@pytest.mark.parametrize("error", [RetryLater("later"), OutcomeUnknown("who knows")])
def test_a_transaction_is_ended_again_until_it_is_settled(failures: int, error: Exception) -> None:
    calls: list[int] = []

    def end() -> None:
        calls.append(1)
        if len(calls) <= failures:
            raise error

    until_resolved(end)
    assert len(calls) == failures + 1


def test_a_transaction_is_not_ended_for_ever() -> None:
    calls: list[int] = []

    def end() -> None:
        calls.append(1)
        raise OutcomeUnknown("who knows")

    with pytest.raises(OutcomeUnknown):
        until_resolved(end)
    assert len(calls) == MARKER_ATTEMPTS_MAX


@pytest.mark.parametrize("order", [(0, 1, 1), (1, 0, 1), (0, 0, 1)])
def test_what_became_unknown_is_not_taken_for_undecided_later(order: tuple[int, ...]) -> None:
    errors = iter([(OutcomeUnknown("who knows"), RetryLater("no answer"))[kind] for kind in order])

    def end() -> None:
        raise next(errors)

    with pytest.raises(OutcomeUnknown):
        until_resolved(end)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (InvalidInput("line 3: no JSON"), "line 3: no JSON"),
        (KeyboardInterrupt(), "interrupted"),
        (BrokenPipeError(), "interrupted"),
    ],
)
def test_the_end_says_why_the_input_broke_off(error: BaseException, why: str) -> None:
    def items() -> Iterator[Input]:
        yield from inputs(2)
        raise error

    ends: list[str | None] = []
    stub: Any = StubWriter()
    with pytest.raises(type(error)):
        Sending(stub, lambda _: None, 1).run(items(), ends.append)
    assert ends == [why]


def test_the_first_reason_counts() -> None:
    writer = StubWriter()
    writer.errors |= {1: NotFound("no such topic"), 2: RecordRefused("too large")}
    ends: list[str | None] = []
    stub: Any = writer
    Sending(stub, lambda _: None, 1).run(inputs(4), ends.append)
    assert ends == ["line 2 was refused: no such topic"]


class StubProducer:
    """Ends a transaction with the errors of the test, one for each call, and then without an error."""

    transactional_id = "x"

    def __init__(self, commits: Sequence[BaseException] = (), aborts: Sequence[BaseException] = ()) -> None:
        self._errors = {"commit": list(commits), "abort": list(aborts)}
        self.ends: list[str] = []

    def commit(self) -> None:
        self._end("commit")

    def abort(self) -> None:
        self._end("abort")

    def _end(self, what: str) -> None:
        if self._errors[what]:
            raise self._errors[what].pop(0)
        self.ends.append(what)


def ended(producer: StubProducer, broken: str | None) -> EndedTransaction | None:
    """How `WholeInput` reports a transaction of that producer."""
    whole = WholeInput.__new__(WholeInput)
    stub: Any = producer
    whole.producer, whole.ended = stub, None
    try:
        whole.end(broken)
    except (OutcomeUnknown, ProducerFenced, KeyboardInterrupt):
        pass
    return whole.ended


UNKNOWN = OutcomeUnknown("who knows")
LATER = RetryLater("no answer")


@pytest.mark.parametrize(
    ("commits", "broken", "outcome", "error", "ends"),
    [
        ([], None, "committed", None, ["commit"]),
        ([UNKNOWN, LATER], None, "committed", None, ["commit"]),
        ([], "stopped by SIGTERM", "aborted", "stopped by SIGTERM", ["abort"]),
        ([TransactionFailed("a record failed")], None, "aborted", "a record failed", ["abort"]),
        ([LATER] * MARKER_ATTEMPTS_MAX, None, "aborted", "no answer", ["abort"]),
        ([ProducerFenced("fenced")], None, "aborted", "fenced", []),
        ([UNKNOWN] * MARKER_ATTEMPTS_MAX, None, "unknown", "who knows", []),
        ([UNKNOWN, LATER, LATER], None, "unknown", "who knows", []),
        ([KeyboardInterrupt()], None, "unknown", "interrupted", []),
    ],
)
def test_a_transaction_is_reported_as_what_it_is(
    commits: list[BaseException], broken: str | None, outcome: str, error: str | None, ends: list[str]
) -> None:
    producer = StubProducer(commits)
    found = ended(producer, broken)
    assert found is not None
    assert found.to_json() == {"transaction": "x", "outcome": outcome, "error": error}
    assert producer.ends == ends


def test_an_abort_that_fails_is_left_to_the_time_out() -> None:
    found = ended(StubProducer(aborts=[LATER] * MARKER_ATTEMPTS_MAX), "line 2 was refused: too large")
    assert found == EndedTransaction(
        "x", "aborted", "line 2 was refused: too large (its time-out will abort it: no answer)"
    )

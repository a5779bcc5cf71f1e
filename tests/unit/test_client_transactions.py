"""Transactions for the coordinator of a transactional id: other daemons that come first, and lost replies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from archiver.config.groups import LogSettings
from archiver.log.store import Appended
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import OutcomeUnknown, RetryLater
from archiver.runtime.ids import SeededIds, TopicId
from intake.log.client_transactions import ClientTransactions, ProducerEpoch
from intake.log.committed_offsets import CommittedOffsets, OffsetBounds
from intake.log.consumer_groups import GROUP_SLOTS
from intake.log.sequencer import Sequencer
from tests.support.log.faulty_log import AppendFault, FaultyLog
from tests.support.log.memory_log import MemoryLogStore

SETTINGS = LogSettings(append_attempts_max=2)
TIMEOUT_US = 60_000_000


class OvertakenLog(FaultyLog):
    """Before the next append, another process appends something."""

    first: Callable[[], object] | None = None

    def append(self, index: int, data: bytes) -> Appended:
        if (first := self.first) is not None:
            self.first = None
            first()
        return super().append(index, data)


class Daemon:
    def __init__(self, log: FaultyLog, seed: int) -> None:
        self.log = log
        clock = ManualClock(1_700_000_000_000_000)
        self.sequencer = Sequencer(log, SeededIds(seed), clock, SETTINGS)
        self.transactions = ClientTransactions(self.sequencer, clock)
        self._offsets = CommittedOffsets(self.sequencer, clock, OffsetBounds(2**30, 1))
        self.topic_id: TopicId = self.sequencer.declare_topic("t", 1).topic_id
        self.claim = 0

    def claim_all(self) -> None:
        self.claim = self._offsets.claim_slots(range(GROUP_SLOTS), 1)

    def open(self, resumed: ProducerEpoch | None = None) -> ProducerEpoch | str:
        return self.transactions.open("id", TIMEOUT_US, self.claim, resumed)

    def opened(self) -> ProducerEpoch:
        found = self.open()
        assert isinstance(found, ProducerEpoch)
        return found

    def send(self, producer: ProducerEpoch, sequence: int) -> None:
        """A batch of one record."""
        batch = pb.ProducerBatch(
            producer_id=producer.producer_id, epoch=producer.epoch, sequence=sequence, transactional=True
        )
        segment = pb.Segment(rows=1, raw_bytes=1, accept_max_us=1, producer=batch)
        topic = pb.TopicSegments(topic_id=bytes.fromhex(self.topic_id), segments=[segment])
        file = pb.IntakeFile(key=f"f{sequence}", size=1, footer_sha256=b"d" * 32, topics=[topic])
        self.sequencer.append_made(lambda _: pb.IntakeEntry(file=file))

    def end(self, producer: ProducerEpoch, *, commit: bool = True) -> str | None:
        return self.transactions.end("id", producer, self.claim, commit=commit)

    def stable(self) -> int:
        return self.sequencer.refresh().stable_offset((self.topic_id, 0))

    def records(self) -> int:
        """Committed ones."""
        return sum(one.rows for one in self.sequencer.refresh().segments((self.topic_id, 0)))


@pytest.fixture
def log() -> OvertakenLog:
    return OvertakenLog(MemoryLogStore(SETTINGS.entry_bytes_max).log("intake"))


@pytest.fixture
def daemons(log: OvertakenLog) -> tuple[Daemon, Daemon]:
    one, other = Daemon(log, 1), Daemon(log, 2)
    one.claim_all()
    return one, other


@pytest.mark.parametrize("commit", [True, False])
def test_a_late_end_leaves_the_next_transaction_open(
    log: OvertakenLog, daemons: tuple[Daemon, Daemon], *, commit: bool
) -> None:
    paused, other = daemons
    producer = paused.opened()
    paused.send(producer, 0)

    def go_on() -> None:
        # The client got no answer, ends the transaction at the other daemon, and begins the next one.
        other.claim_all()
        assert other.end(producer) is None
        other.send(producer, 1)

    log.first = go_on
    assert paused.end(producer, commit=commit) == "stale_claim"
    assert paused.stable() == 1
    assert other.end(producer, commit=False) is None
    assert other.records() == 1


def test_an_end_that_another_daemon_overtook_is_judged_again(
    log: OvertakenLog, daemons: tuple[Daemon, Daemon]
) -> None:
    one, other = daemons
    producer = one.opened()
    one.send(producer, 0)
    log.first = lambda: other.sequencer.end_overdue(2_000_000_000_000_000)
    assert one.end(producer) == "fenced"
    assert one.records() == 0


def test_an_overtaken_producer_does_not_go_on(log: OvertakenLog, daemons: tuple[Daemon, Daemon]) -> None:
    one, other = daemons
    first = one.opened()
    log.first = lambda: other.sequencer.open_producer("id", TIMEOUT_US)
    assert one.open(first) == "fenced"
    # A new instance fences the older one, however many there are.
    assert one.open() == ProducerEpoch(first.producer_id, first.epoch + 2)


def test_nothing_is_appended_under_an_old_claim(daemons: tuple[Daemon, Daemon]) -> None:
    one, other = daemons
    producer = one.opened()
    one.send(producer, 0)
    other.claim_all()
    tail = one.log.tail()
    assert one.end(producer) == one.open() == one.open(producer) == "stale_claim"
    assert one.log.tail() == tail


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("fault", [AppendFault.REPLY_LOST, AppendFault.DROPPED, AppendFault.LATE])
def test_an_end_of_unknown_outcome_is_repeated_anywhere(
    log: OvertakenLog, daemons: tuple[Daemon, Daemon], fault: AppendFault, *, commit: bool
) -> None:
    for ending in daemons:
        one = daemons[0]
        one.claim_all()
        producer = one.opened()
        before = one.records()
        one.send(producer, 0)
        log.script(fault, fault)
        with pytest.raises((OutcomeUnknown, RetryLater)):
            one.end(producer, commit=commit)
        log.heal()
        if ending is not one:
            ending.claim_all()
        assert ending.end(producer, commit=commit) is None
        # The next transaction is not ended by the marker of the first one.
        ending.send(producer, 1)
        one.sequencer.resolve()
        assert ending.records() - before == (1 if commit else 0) + 1
        assert ending.stable() == ending.sequencer.fold.next_offset((one.topic_id, 0)) - 1
        assert ending.end(producer, commit=False) is None
        assert ending.records() - before == (1 if commit else 0)


def test_an_end_that_contradicts_the_last_one_is_refused(daemons: tuple[Daemon, Daemon]) -> None:
    one, _ = daemons
    producer = one.opened()
    # Without a transaction in this epoch there is nothing to contradict.
    assert one.end(producer, commit=False) is one.end(producer) is None
    for number, commit in enumerate((True, False)):
        one.transactions.note_begun(producer)
        one.send(producer, number)
        assert one.end(producer, commit=commit) is None
        # A repetition, and the other way: its client would take lost records for committed ones.
        assert one.end(producer, commit=commit) is None
        assert one.end(producer, commit=not commit) == "ended"
        # The client begins another transaction, which gets no records.
        tail = one.log.tail()
        one.transactions.note_begun(producer)
        for _ in range(2):
            assert one.end(producer, commit=not commit) is None
        assert one.log.tail() == tail
    assert one.records() == 1
    # The next epoch has no last transaction.
    assert one.end(one.opened()) is None


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_of_which_another_daemon_may_know_the_begin(
    daemons: tuple[Daemon, Daemon], *, committed: bool
) -> None:
    one, other = daemons
    producer = one.opened()
    one.send(producer, 0)
    assert one.end(producer, commit=committed) is None
    one.transactions.note_begun(producer)
    other.claim_all()
    assert other.end(producer, commit=committed) is None
    # A commit must not be confirmed if its records may have been aborted.
    assert other.end(producer, commit=not committed) == (None if committed else "ended")


def test_a_late_end_of_the_last_transaction_is_no_commit_of_the_next(daemons: tuple[Daemon, Daemon]) -> None:
    """As after a wake-up of the first daemon, if another client makes it claim the id again."""
    one, other = daemons
    producer = one.opened()
    one.send(producer, 0)
    other.claim_all()
    assert other.end(producer, commit=False) is None
    other.transactions.note_begun(producer)
    other.send(producer, 1)
    one.claim_all()
    assert one.end(producer, commit=False) is None
    # Its records are aborted, and the client learns it.
    assert one.end(producer) == "ended"
    other.claim_all()
    assert other.end(producer) == "ended"
    assert other.records() == 0


def test_a_producer_that_goes_on_twice_has_one_epoch(
    log: OvertakenLog, daemons: tuple[Daemon, Daemon]
) -> None:
    one, other = daemons
    first = one.opened()
    second = ProducerEpoch(first.producer_id, first.epoch + 1)
    # Without a known answer, here and at another daemon.
    log.script(AppendFault.REPLY_LOST, AppendFault.REPLY_LOST)
    with pytest.raises((OutcomeUnknown, RetryLater)):
        one.open(first)
    log.heal()
    assert one.open(first) == second
    other.claim_all()
    tail = one.log.tail()
    assert other.open(first) == second
    assert one.log.tail() == tail
    third = other.open(second)
    assert third == ProducerEpoch(first.producer_id, first.epoch + 2)
    # Only the last step is repeated, and nothing of an epoch that another instance got.
    assert other.open(first) == "fenced"
    assert other.open(second) == third
    assert other.open() == ProducerEpoch(first.producer_id, first.epoch + 3)
    assert other.open(second) == other.open(ProducerEpoch(first.producer_id, first.epoch + 2)) == "fenced"
    assert other.open(ProducerEpoch(first.producer_id + 1, first.epoch)) == "fenced"


def test_a_fenced_producer_does_not_go_on(daemons: tuple[Daemon, Daemon]) -> None:
    one, _ = daemons
    first = one.opened()
    second = one.open(first)
    assert isinstance(second, ProducerEpoch)
    one.send(second, 0)
    one.sequencer.end_overdue(2_000_000_000_000_000)
    assert one.open(second) == one.open(first) == "fenced"


def test_an_abort_by_an_administrator_spares_the_next_producer(
    log: OvertakenLog, daemons: tuple[Daemon, Daemon]
) -> None:
    one, other = daemons
    first = one.opened()
    one.send(first, 0)
    place = (one.topic_id, 0)

    def reopen() -> None:
        other.claim_all()
        other.send(other.opened(), 0)

    log.first = reopen
    assert one.transactions.abort(first, [place]) == "fenced"
    second = ProducerEpoch(first.producer_id, first.epoch + 1)
    assert one.stable() == 1
    assert one.transactions.abort(second, [(one.topic_id, 1)]) == "elsewhere"
    assert one.transactions.abort(second, [place]) is None
    assert one.stable() == 2
    # Its producer must not commit what it sends later without the rest.
    assert other.end(second) == "fenced"

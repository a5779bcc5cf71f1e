"""Opens producers and ends transactions for the coordinator of their transactional id, and aborts
transactions for administrators.

Every condition is checked on the log up to the entry's own index: the appender gives up if another entry
comes first. So the coordinator's claim is still the newest one, and the transaction is the one that was
judged. An entry of a daemon that was replaced in the meantime is never appended. No field of the entry has to
state the claim.

The result of a repeated request follows from the log. A transaction that is not open any more was ended by
the client of this epoch, or by a higher epoch, and the fold knows how. Without an open transaction, an end of
the other kind is that of a transaction without records, or of one that a late request has ended. It counts
if the client has begun another transaction since. AddPartitionsToTxn says so, and only this process knows it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.clock import Clock
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import TopicPartition
from intake.log.appender import RACES_PER_ATTEMPT
from intake.log.fold import IntakeFold
from intake.log.sequencer import Sequencer
from intake.producers import Producer

BEGUN_REMEMBERED: Final = 100_000
"""Producers of which this process knows that they have begun a transaction."""
TRANSACTIONAL_ID_BYTES_MAX: Final = 1024
"""Each id is stored in the log, and in checkpoints until it is idle."""

ProducerRefusal = Literal["stale_claim", "unknown", "fenced", "elsewhere", "ended"]
"""`stale_claim`: another daemon, or a later claim, coordinates the transactional id. `unknown`: it has no
producer of that id. `fenced`: the epoch is not the producer's. `elsewhere`: the open transaction has no
record in the stated partitions (only of `ClientTransactions.abort`). `ended`: the last transaction ended the
other way."""


@dataclass(frozen=True, slots=True)
class ProducerEpoch:
    """A producer id and an epoch, as a client states them."""

    producer_id: int
    epoch: int


def judge_producer(
    fold: IntakeFold, transactional_id: str, stated: ProducerEpoch
) -> Producer | ProducerRefusal:
    """The producer of a transactional id, or why what a client states is not its producer."""
    known = fold.producers.named(transactional_id)
    if known is None or known.producer_id != stated.producer_id:
        return "unknown"
    return known if known.epoch == stated.epoch else "fenced"


class ClientTransactions:
    """Appends for the transactional ids that this daemon coordinates. Thread-safe."""

    def __init__(self, sequencer: Sequencer, clock: Clock) -> None:
        self._sequencer = sequencer
        self._clock = clock
        self._begun: OrderedDict[ProducerEpoch, int] = OrderedDict()
        """How far the log was read when the client began a transaction; the last one at the end."""

    def note_begun(self, stated: ProducerEpoch) -> None:
        """The client of the producer begins a transaction, or adds to it."""
        self._begun.pop(stated, None)
        self._begun[stated] = self._sequencer.fold.next_index
        if len(self._begun) > BEGUN_REMEMBERED:
            self._begun.popitem(last=False)

    def open(
        self, transactional_id: str, timeout_us: int, claim: int, resumed: ProducerEpoch | None
    ) -> ProducerEpoch | ProducerRefusal:
        """Open the producer: the earlier epoch is fenced, and its open transaction aborted.

        `resumed`: the client goes on with that producer, which must be the present one (KIP-360). After an
        earlier attempt, its epoch is returned. Without a known producer the client gets a new one. Raises
        `RetryLater` and `OutcomeUnknown`: then call it again.
        """
        found: ProducerEpoch | None = None

        def repeated(fold: IntakeFold) -> ProducerEpoch | None:
            """The producer of an earlier attempt."""
            known = fold.producers.named(transactional_id)
            if resumed is None or known is None or not known.resumed:
                return None
            present = ProducerEpoch(known.producer_id, known.epoch)
            return present if replace(resumed, epoch=resumed.epoch + 1) == present else None

        def refusal(fold: IntakeFold) -> ProducerRefusal | None:
            if not fold.consumer_groups.is_current(transactional_id, claim):
                return "stale_claim"
            known = fold.producers.named(transactional_id)
            if resumed is None or known is None:
                return None
            present = ProducerEpoch(known.producer_id, known.epoch)
            return None if resumed == present or repeated(fold) is not None else "fenced"

        def make(fold: IntakeFold) -> pb.IntakeEntry | None:
            nonlocal found
            found = repeated(fold)
            if found is not None:
                return None
            opened = pb.ProducerOpened(
                transactional_id=transactional_id,
                transaction_timeout_us=timeout_us,
                time_us=self._clock.now_us(),
                # Without a known producer it begins, and goes on with no epoch.
                resumed=resumed is not None and fold.producers.named(transactional_id) is not None,
            )
            return pb.IntakeEntry(producer=opened)

        refused, producer = self._append(refusal, make, step="producer.append")
        if refused is not None:
            return refused
        if found is not None:
            return found
        assert producer is not None, "the fold names every producer that is opened"
        return ProducerEpoch(*producer)

    def end(
        self, transactional_id: str, stated: ProducerEpoch, claim: int, *, commit: bool
    ) -> ProducerRefusal | None:
        """Commit or abort the open transaction; nothing is appended without one. Then it must be the end that
        the last one had, or that of a transaction without records.

        Raises `RetryLater` and `OutcomeUnknown`: then call it again, here or at another daemon.
        """

        def refusal(fold: IntakeFold) -> ProducerRefusal | None:
            if not fold.consumer_groups.is_current(transactional_id, claim):
                return "stale_claim"
            found = judge_producer(fold, transactional_id, stated)
            if not isinstance(found, Producer):
                return found
            if fold.transactions.get(stated.producer_id) is None and self._is_contrary(
                found, claim, commit=commit
            ):
                return "ended"
            return None

        return self._append_end(refusal, stated, commit=commit, by_client=True)

    def _is_contrary(self, producer: Producer, claim: int, *, commit: bool) -> bool:
        """Whether an end without an open transaction contradicts the end of the last one."""
        last = producer.last_end
        if last is None or last.commit == commit:
            return False
        stated = ProducerEpoch(producer.producer_id, producer.epoch)
        if self._begun.get(stated, 0) > last.index:
            return False
        # Another daemon may know of a transaction without records, if this one claimed the id later. A wrong
        # answer to an abort would do no harm then. A wrong answer to a commit would lose records.
        return commit or claim <= last.index

    def abort(self, stated: ProducerEpoch, partitions: Iterable[TopicPartition]) -> ProducerRefusal | None:
        """Abort the open transaction of a producer if it has records in one of the partitions.

        Its producer is fenced: it does not know of the abort, and would commit the rest by itself. Without an
        open transaction nothing is appended. Needs no claim, as the end of an overdue transaction. Raises
        `RetryLater` and `OutcomeUnknown`: then call it again.
        """
        places = frozenset(partitions)

        def refusal(fold: IntakeFold) -> ProducerRefusal | None:
            producer = fold.producers.get(stated.producer_id)
            if producer is None or not producer.transactional_id:
                return "unknown"
            transaction = fold.transactions.get(stated.producer_id)
            if transaction is None:
                # An earlier attempt has raised the epoch.
                return None if stated.epoch <= producer.epoch else "fenced"
            if transaction.epoch != stated.epoch:
                return "fenced"
            return "elsewhere" if places.isdisjoint(transaction.ranges) else None

        return self._append_end(refusal, stated, fence=True)

    def _append_end(
        self,
        refusal: Callable[[IntakeFold], ProducerRefusal | None],
        stated: ProducerEpoch,
        *,
        commit: bool = False,
        by_client: bool = False,
        fence: bool = False,
    ) -> ProducerRefusal | None:
        """Append the end of the open transaction if nothing refuses it; nothing is appended without one."""

        def make(fold: IntakeFold) -> pb.IntakeEntry | None:
            if fold.transactions.get(stated.producer_id) is None:
                return None
            ended = pb.TransactionEnded(
                producer_id=stated.producer_id,
                epoch=stated.epoch,
                commit=commit,
                by_client=by_client,
                fence=fence,
                time_us=self._clock.now_us(),
            )
            return pb.IntakeEntry(transaction=ended)

        refused, _ = self._append(refusal, make, step="transaction.append")
        return refused

    def _append(
        self,
        refusal: Callable[[IntakeFold], ProducerRefusal | None],
        make: Callable[[IntakeFold], pb.IntakeEntry | None],
        *,
        step: str,
    ) -> tuple[ProducerRefusal | None, tuple[int, int] | None]:
        """Append an entry if nothing refuses it at its index; why not, and the opened producer."""
        for _ in range(RACES_PER_ATTEMPT):
            if (result := self._attempt(refusal, make, step)) is not None:
                return result
        raise RetryLater("other processes change the transactional id all the time; try again")

    def _attempt(
        self,
        refusal: Callable[[IntakeFold], ProducerRefusal | None],
        make: Callable[[IntakeFold], pb.IntakeEntry | None],
        step: str,
    ) -> tuple[ProducerRefusal | None, tuple[int, int] | None] | None:
        """As `_append`; None if an entry of another process came first and changed the decision."""
        refused: ProducerRefusal | None = None
        overtaken = False

        def judged(fold: IntakeFold) -> pb.IntakeEntry | None:
            nonlocal refused
            refused = refusal(fold)
            return None if refused is not None else make(fold)

        def holds(fold: IntakeFold) -> bool:
            nonlocal overtaken
            overtaken = refusal(fold) is not None or make(fold) is None
            return not overtaken

        applied = self._sequencer.append_made(judged, holds, step=step)
        if overtaken:
            return None
        return refused, None if applied is None else applied.producer

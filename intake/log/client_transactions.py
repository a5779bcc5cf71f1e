"""Opens producers and ends transactions for the coordinator of their transactional id, and aborts
transactions for administrators.

Every condition is checked on the log up to the entry's own index: the appender gives up if another entry
comes first. So the coordinator's claim is still the newest one, and the transaction is the one that was
judged. An entry of a daemon that was replaced in the meantime is never appended. No field of the entry has to
state the claim.

The result of a repeated request follows from the log. A transaction that is not open any more was ended by an
earlier attempt, because only the client of this epoch, or a higher epoch, ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Literal

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.clock import Clock
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import TopicPartition
from intake.log.appender import RACES_PER_ATTEMPT
from intake.log.fold import IntakeFold
from intake.log.sequencer import Sequencer
from intake.producers import Producer

TRANSACTIONAL_ID_BYTES_MAX: Final = 1024
"""Each id is stored in the log, and in checkpoints until it is idle."""

ProducerRefusal = Literal["stale_claim", "unknown", "fenced", "elsewhere"]
"""`stale_claim`: another daemon, or a later claim, coordinates the transactional id. `unknown`: it has no
producer of that id. `fenced`: the epoch is not the producer's. `elsewhere`: the open transaction has no
record in the stated partitions (only of `ClientTransactions.abort`)."""


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

    def open(
        self, transactional_id: str, timeout_us: int, claim: int, resumed: ProducerEpoch | None
    ) -> ProducerEpoch | ProducerRefusal:
        """Open the producer: the earlier epoch is fenced, and its open transaction aborted.

        `resumed`: the client goes on with that producer, which must be the present one (KIP-360). Without a
        known producer it gets a new one. Raises `RetryLater` and `OutcomeUnknown`: then call it again.
        """

        def refusal(fold: IntakeFold) -> ProducerRefusal | None:
            if not fold.consumer_groups.is_current(transactional_id, claim):
                return "stale_claim"
            known = fold.producers.named(transactional_id)
            if resumed is None or known is None:
                return None
            present = ProducerEpoch(known.producer_id, known.epoch)
            return None if resumed == present else "fenced"

        def make(_: IntakeFold) -> pb.IntakeEntry:
            opened = pb.ProducerOpened(
                transactional_id=transactional_id,
                transaction_timeout_us=timeout_us,
                time_us=self._clock.now_us(),
            )
            return pb.IntakeEntry(producer=opened)

        refused, producer = self._append(refusal, make)
        if refused is not None:
            return refused
        assert producer is not None, "the fold names every producer that is opened"
        return ProducerEpoch(*producer)

    def end(
        self, transactional_id: str, stated: ProducerEpoch, claim: int, *, commit: bool
    ) -> ProducerRefusal | None:
        """Commit or abort the open transaction; nothing is appended without one.

        Raises `RetryLater` and `OutcomeUnknown`: then call it again, here or at another daemon.
        """

        def refusal(fold: IntakeFold) -> ProducerRefusal | None:
            if not fold.consumer_groups.is_current(transactional_id, claim):
                return "stale_claim"
            found = judge_producer(fold, transactional_id, stated)
            return None if isinstance(found, Producer) else found

        def make(fold: IntakeFold) -> pb.IntakeEntry | None:
            if fold.transactions.get(stated.producer_id) is None:
                return None
            ended = pb.TransactionEnded(
                producer_id=stated.producer_id,
                epoch=stated.epoch,
                commit=commit,
                time_us=self._clock.now_us(),
            )
            return pb.IntakeEntry(transaction=ended)

        refused, _ = self._append(refusal, make)
        return refused

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

        def make(fold: IntakeFold) -> pb.IntakeEntry | None:
            if fold.transactions.get(stated.producer_id) is None:
                return None
            ended = pb.TransactionEnded(
                producer_id=stated.producer_id,
                epoch=stated.epoch,
                commit=False,
                fence=True,
                time_us=self._clock.now_us(),
            )
            return pb.IntakeEntry(transaction=ended)

        refused, _ = self._append(refusal, make)
        return refused

    def _append(
        self,
        refusal: Callable[[IntakeFold], ProducerRefusal | None],
        make: Callable[[IntakeFold], pb.IntakeEntry | None],
    ) -> tuple[ProducerRefusal | None, tuple[int, int] | None]:
        """Append an entry if nothing refuses it at its index; why not, and the opened producer."""
        for _ in range(RACES_PER_ATTEMPT):
            if (result := self._attempt(refusal, make)) is not None:
                return result
        raise RetryLater("other processes change the transactional id all the time; try again")

    def _attempt(
        self,
        refusal: Callable[[IntakeFold], ProducerRefusal | None],
        make: Callable[[IntakeFold], pb.IntakeEntry | None],
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

        applied = self._sequencer.append_made(judged, holds)
        if overtaken:
            return None
        return refused, None if applied is None else applied.producer

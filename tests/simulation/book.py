"""Who sent what, and which answers they got: what the world is compared with in the end.

Knows nothing of logs and folds. Promises that an answer, once given, is never forgotten: a second one that
differs is a violation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from archiver.runtime.ids import TopicPartition
from intake.write.acknowledgements import Acknowledgement
from tests.simulation.schedule import Violation

_UNEXPECTED = re.compile(r"\b[A-Z]\w*(?:Error|Exception): ")
"""The writer answers for every exception; one that is not ours is a mistake in the code."""


@dataclass(eq=False)
class Transaction:
    """Records that come together or not at all."""

    name: str
    fate: Literal["open", "committed", "aborted", "unknown"] = "open"
    """`open` in the end: no client has asked for a commit, so nothing of it may be seen."""
    records: list[Sent] = field(default_factory=list)


@dataclass(eq=False)
class Sent:
    """One record. Its value is unlike any other's."""

    value: bytes
    tp: TopicPartition
    stream: str
    """Records of a stream and partition keep their order."""
    place: int
    """In its stream and partition."""
    transaction: Transaction | None = None
    offset: int | None = None
    """What was acknowledged."""
    is_there: bool = False
    """A client was answered that it is in the log, though not where."""
    open_attempts: int = 0
    """Attempts of unknown outcome."""


class Book:
    """Everything that was sent."""

    def __init__(self) -> None:
        self.sent: dict[bytes, Sent] = {}
        self.transactions: list[Transaction] = []
        self.answers: dict[str, int] = {"ok": 0, "failed": 0, "unknown": 0}
        self._places: dict[tuple[str, TopicPartition], int] = {}

    def record(self, stream: str, tp: TopicPartition, transaction: Transaction | None = None) -> Sent:
        """A record that is going to be sent."""
        place = self._places.get((stream, tp), 0)
        self._places[stream, tp] = place + 1
        sent = Sent(f"{len(self.sent)} {stream} {tp[1]} {place}".encode(), tp, stream, place, transaction)
        self.sent[sent.value] = sent
        if transaction is not None:
            transaction.records.append(sent)
        return sent

    def begin(self, name: str) -> Transaction:
        """A transaction that is going to be written."""
        transaction = Transaction(f"{len(self.transactions)} {name}")
        self.transactions.append(transaction)
        return transaction

    def answer(self, sent: Sent, acknowledgement: Acknowledgement) -> None:
        """The answer that the sender got to one attempt."""
        outcome, offset = acknowledgement.outcome, acknowledgement.offset
        self.answers[outcome] += 1
        if _UNEXPECTED.search(acknowledgement.error or ""):
            raise Violation("nothing breaks", f"{sent.value!r} was answered {acknowledgement.error}")
        if (offset is None) == (outcome == "ok"):
            raise Violation(
                "an offset comes with ok and only then", f"{sent.value!r} is {outcome} at {offset}"
            )
        if acknowledgement.partition != sent.tp[1]:
            raise Violation(
                "a record goes where it was sent",
                f"{sent.value!r} went to partition {acknowledgement.partition}",
            )
        if outcome == "ok":
            if sent.offset not in (None, offset):
                raise Violation(
                    "a repetition has the offsets of the first",
                    f"{sent.value!r} is at {sent.offset} and then at {offset}",
                )
            sent.offset = offset
        if outcome != "unknown":
            sent.open_attempts -= 1

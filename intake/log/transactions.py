"""Open transactions: their producers, start times and offsets.

Pure; part of the intake fold. A transaction begins with the first batch of a transactional producer after a
marker, or with its first offsets of a consumer group. `intake.log.consumer_groups` has these. It ends with
the next marker of the producer's epoch, or when the producer is opened again. Offset ranges per partition are
ascending. An overdue transaction is ended by a log entry (`Sequencer.end_overdue`); nothing here compares a
deadline with a clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from archiver.runtime.ids import TopicPartition


@dataclass(slots=True)
class OpenTransaction:
    """A transaction without an end marker."""

    producer_id: int
    epoch: int
    transactional_id: str
    started_us: int
    """Accept time of its first batch, or the time of its first offsets."""
    deadline_us: int
    """From this time on it may be aborted."""
    ranges: dict[TopicPartition, list[tuple[int, int]]] = field(default_factory=dict)
    """Its records: offsets [from, to) per topic partition, ascending; adjacent ranges are merged."""

    def first_offset(self, tp: TopicPartition) -> int | None:
        """Its first offset in that partition; None if it has written nothing there."""
        ranges = self.ranges.get(tp)
        return ranges[0][0] if ranges else None


class Transactions:
    """The open transactions of all producers; a producer has at most one."""

    def __init__(self) -> None:
        self._open: dict[int, OpenTransaction] = {}

    def __iter__(self) -> Iterator[OpenTransaction]:
        return iter(list(self._open.values()))  # a copy: another thread may read while one begins or ends

    def __len__(self) -> int:
        return len(self._open)

    @property
    def busy(self) -> frozenset[int]:
        """Ids of the producers that have one."""
        return frozenset(self._open)

    def get(self, producer_id: int) -> OpenTransaction | None:
        """The producer's open transaction."""
        return self._open.get(producer_id)

    def add(self, transaction: OpenTransaction) -> None:
        """Add a transaction: a new one, or one from a checkpoint."""
        self._open[transaction.producer_id] = transaction

    def wrote(self, transaction: OpenTransaction, tp: TopicPartition, base: int, end: int) -> None:
        """The transaction holds offsets [base, end), the newest of that partition."""
        # Consecutive batches of one producer usually join to one range, which keeps checkpoints small.
        extend(transaction.ranges.setdefault(tp, []), base, end)

    def close(self, producer_id: int) -> OpenTransaction | None:
        """Remove the producer's transaction."""
        # One operation on the dictionary, so another thread sees the transaction either open or ended.
        return self._open.pop(producer_id, None)


def extend(ranges: list[tuple[int, int]], base: int, end: int) -> None:
    """Add [base, end) after the last range; merge the two if they are adjacent."""
    if ranges and ranges[-1][1] == base:
        ranges[-1] = (ranges[-1][0], end)
    else:
        ranges.append((base, end))

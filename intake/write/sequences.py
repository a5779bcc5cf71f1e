"""Sequence numbers and transaction state of one idempotent producer in this process.

Pure; the caller holds the lock of the writer's queue, so numbers are assigned in the order in which records
leave the queue. A number is never assigned to a record while another record with it is, or may get, in the
log:

- After a certain failure the next number goes back to the lowest that failed. Numbered records that are still
  queued then belong to an older *generation*: they no longer follow, and fail at once without being written.
  If one were written, it could meet a newer record with its number and be treated as a repetition. So no two
  queued records share a number, and a process that continues after a crash can state all of them.
- After an unknown outcome nothing is guessed. The sender sends those records again and states their numbers.
  Until all of them are resolved, nothing else of that producer is written to that partition.

The log cannot check whether a record with a stated number is the one that had it. So a record that *failed*
must be sent again without its number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from archiver.runtime.errors import InvalidInput, ProducerFenced, TransactionFailed
from archiver.runtime.ids import TopicId, TopicPartition
from archiver.runtime.text import counted
from intake.producers import SEQUENCE_COUNT, Stamp, after
from intake.write.acknowledgements import NO_OFFSET, NO_SEQUENCE, FlushOutcome
from intake.write.queue import BatchItem, RecordItem, SessionItem

_NOT_BEFORE = (
    "an earlier record of the producer for that partition failed, and this one must not come before it; "
    "send both again"
)

Span = tuple[int, int]
"""The first sequence number and the count."""
NextSequence = Callable[[TopicPartition], "int | None"]
"""The number that the log expects next from the producer in a partition; None if it is fenced or
forgotten."""


class ProducerSession:
    """State of one producer id and epoch in this process."""

    def __init__(
        self, producer_id: int, epoch: int, transactional_id: str, log_expects: NextSequence
    ) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.transactional_id = transactional_id
        self.phase: Literal["none", "open", "ending"] = "none"
        """Of its transaction."""
        self.written = False
        """Some record of the transaction may be in the log."""
        self.trouble: FlushOutcome | None = None
        """Why the transaction cannot be committed."""
        self.outstanding = 0
        """Items without an acknowledgement."""
        self.fenced: str | None = None
        """The message that reported the fencing."""
        self._log_expects = log_expects
        self.generation = 0
        """Of the numbers assigned now."""
        self._stated_outstanding = 0
        self._next: dict[TopicPartition, int] = {}
        self._since: dict[TopicPartition, int] = {}
        """The generation that began when the partition's numbers went back."""
        self._queued: dict[int, SessionItem] = {}
        """By `id()`: items that were numbered here and are still queued."""
        self._behind: set[TopicPartition] = set()
        """Partitions whose numbers went back: their queued items must fail."""
        self._failing = False
        self._unknown: dict[TopicPartition, list[Span]] = {}
        """The numbers of unknown outcome, per partition."""

    def reset(self) -> None:
        """The transaction has ended and all its records are resolved: take the next numbers from the log."""
        self.phase = "none"
        self.written = False
        self.trouble = None
        # An aborted transaction may have lost numbers, so the log says where they continue.
        self._next.clear()
        self._since.clear()
        self._unknown.clear()

    # --- as the writer sees it

    def stamp(self, tp: TopicPartition, stated: int | None) -> Stamp:
        """Number one record. Raises `ProducerFenced`, `TransactionFailed`, or `InvalidInput` outside of a
        transaction.
        """
        self._check_open()
        sequence = self._next_of(tp) if stated is None else stated
        # The counter advances when the record is queued and not when it is stored, so a burst needs no wait.
        self._given(tp, after(sequence, 1))
        self._count(1, stated is not None)
        return Stamp(self.producer_id, self.epoch, sequence, bool(self.transactional_id))

    def stamp_rows(
        self, topic_id: TopicId, partitions: npt.NDArray[np.int32], stated: npt.NDArray[np.int32] | None
    ) -> tuple[Stamp, npt.NDArray[np.int32]]:
        """Number some rows, each in its partition. Raises as `stamp`."""
        self._check_open()
        order, found, starts, counts = _grouped(partitions)
        if stated is None:
            tps = [(topic_id, partition) for partition in found]
            firsts = np.array([self._next_of(tp) for tp in tps], np.int64)
            sequences = np.empty(len(partitions), np.int32)
            places = np.arange(len(partitions), dtype=np.int64) - np.repeat(starts, counts)
            # Rows keep their order within each partition.
            sequences[order] = (np.repeat(firsts, counts) + places) % SEQUENCE_COUNT
            for tp, first, count in zip(tps, firsts.tolist(), counts, strict=True):
                self._given(tp, after(first, count))
        else:
            sequences = stated
            for partition, start, count in zip(found, starts, counts, strict=True):
                # A retry may state several runs of numbers.
                for span in _spans(sequences[order[start : start + count]]):
                    self._given((topic_id, partition), after(*span))
        self._count(1, stated is not None)
        return Stamp(self.producer_id, self.epoch, int(sequences[0]), bool(self.transactional_id)), sequences

    def in_log(
        self, topic_id: TopicId, partitions: npt.NDArray[np.int32], sequences: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.bool_]:
        """Which rows the log has passed with their numbers, so that it stores none of them again. All rows of
        a fenced producer count as such.
        """
        # Without a known number the producer is fenced: the log stores none of its records.
        passed = np.ones(len(partitions), bool)
        for partition in np.unique(partitions).tolist():
            expected = self._log_expects((topic_id, partition))
            if expected is not None:
                rows = partitions == partition
                behind = (expected - sequences[rows].astype(np.int64)) % SEQUENCE_COUNT
                # On a circle of numbers, the nearer half before `expected` counts as passed.
                passed[rows] = (behind > 0) & (behind <= SEQUENCE_COUNT // 2)
        return passed

    def given_up(
        self, topic_id: TopicId, partitions: npt.NDArray[np.int32], sequences: npt.NDArray[np.int32]
    ) -> None:
        """Rows with these numbers are certainly not in the log and are not sent again: nothing waits for
        them.
        """
        for partition, sequence in zip(partitions.tolist(), sequences.tolist(), strict=True):
            tp = (topic_id, partition)
            # A number that was given up cannot be resolved by a retry any more.
            left = _without(self._unknown.pop(tp, []), (sequence, 1))
            if left:
                self._unknown[tp] = left
            # While items are on their way, the counter here is ahead of the log.
            elif not self.outstanding:
                self._next.pop(tp, None)  # take the next number from the log

    def queued(self, item: SessionItem) -> None:
        """The item that was numbered last is in the queue."""
        # An item with stated numbers follows no other one, so a failure before it does not concern it.
        if not item.stated:
            self._queued[id(item)] = item

    def left_out(self) -> None:
        """Rows of a batch were not queued, so its transaction lacks them."""
        self._in_trouble(
            FlushOutcome("failed", "some rows of a batch were not queued, because the queue was full")
        )

    def held_back(self, item: SessionItem) -> str | None:
        """Why the item must not be written now. It leaves the queue in any case."""
        self._queued.pop(id(item), None)
        # A retry must pass, because it resolves what the others wait for. The rest of the test is a fast
        # path.
        if item.stated or (not self._unknown and item.generation == self.generation):
            return None
        for tp in _partitions(item):
            where = f"of producer {self.producer_id} for partition {tp[1]} of topic {item.topic.name}"
            # Its number was given back after a failure and may be assigned to a newer record.
            if item.generation < self._since.get(tp, 0):
                return _NOT_BEFORE
            if tp in self._unknown:
                return (
                    f"earlier records {where} are of unknown outcome; send those again with their sequence "
                    "numbers, then this one without"
                )
        return None

    def record_acknowledged(self, item: RecordItem, verdict: FlushOutcome) -> None:
        """Apply the outcome of a record."""
        self._count(-1, item.stated)
        assert item.stamp is not None, "this session numbered it"
        self._apply_outcome(item, item.pending.partition, (item.stamp.sequence, 1), verdict)
        self._fail_what_follows()

    def batch_acknowledged(
        self, item: BatchItem, verdict_of: npt.NDArray[np.int32], verdicts: list[FlushOutcome]
    ) -> None:
        """Apply the outcome of a piece of a batch."""
        self._count(-1, item.stated)
        assert item.sequences is not None, "it came from here"
        # The usual case, without work per partition.
        if not item.stated and all(verdict.outcome == "ok" for verdict in verdicts):
            self.written = True
            return
        # One number for partition and outcome, so that one sort groups by both.
        order, kinds, starts, counts = _grouped(item.partitions.astype(np.int64) * len(verdicts) + verdict_of)
        for kind, start, count in zip(kinds, starts, counts, strict=True):
            partition, number = divmod(kind, len(verdicts))
            for span in _spans(item.sequences[order[start : start + count]]):
                self._apply_outcome(item, partition, span, verdicts[number])
        self._fail_what_follows()

    def _fail_what_follows(self) -> None:
        """Fail the items queued after a failure. A batch fails as a whole, and with it the items after its
        other partitions.
        """
        if self._failing:
            # A nested call: the loop of the outer one handles it.
            return
        self._failing = True
        while self._behind:
            # The calls below may find further partitions that went back.
            behind, self._behind = self._behind, set()
            for item in [item for item in self._queued.values() if not behind.isdisjoint(_partitions(item))]:
                del self._queued[id(item)]
                verdict = FlushOutcome("failed", _NOT_BEFORE)
                if isinstance(item, RecordItem):
                    item.pending.set_outcome(NO_OFFSET, verdict)
                    self.record_acknowledged(item, verdict)
                else:
                    none = np.zeros(item.rows, np.int32)
                    item.pending.set_outcome(
                        item.first_row, np.full(item.rows, NO_OFFSET, np.int64), none, [verdict]
                    )
                    self.batch_acknowledged(item, none, [verdict])
        self._failing = False

    def _count(self, more: int, stated: bool) -> None:
        self.outstanding += more
        self._stated_outstanding += more if stated else 0

    def _check_open(self) -> None:
        if self.fenced is not None:
            raise ProducerFenced(self.fenced)
        if not self.transactional_id:
            return
        if self.phase == "none":
            raise InvalidInput(
                f"producer {self.transactional_id!r} sends in transactions only; begin one first"
            )
        if self.phase == "ending":
            raise InvalidInput(
                f"the transaction of {self.transactional_id!r} is being ended; begin another one after that"
            )
        if self.trouble is not None:
            raise TransactionFailed(self.why())

    def why(self) -> str:
        """Why the transaction cannot be committed, and what to do."""
        error = "" if self.trouble is None else self.trouble.error
        return f"the transaction of {self.transactional_id!r} cannot be committed, abort it: {error}"

    # --- numbers

    def _next_of(self, tp: TopicPartition) -> int:
        known = self._next.get(tp)
        # 0 for a fenced producer: its batch is refused in any case.
        return (self._log_expects(tp) or 0) if known is None else known

    def _given(self, tp: TopicPartition, end: int) -> None:
        """Numbers below `end` are taken; a record that is sent again does not move the counter back."""
        before = self._next_of(tp)
        self._next[tp] = end if _is_ahead(end, before) else before

    def _apply_outcome(self, item: SessionItem, partition: int, span: Span, verdict: FlushOutcome) -> None:
        """Apply the outcome of records with those numbers."""
        tp = (item.topic.topic_id, partition)
        # A record of unknown outcome may be in the log, so the transaction needs a marker.
        self.written = self.written or verdict.outcome != "failed"
        if verdict.refusal == "fenced":
            self.fenced = verdict.error
        if verdict.outcome != "ok":
            self._in_trouble(verdict)
        # A `forgotten` batch is in the log; sending it again would give no more information.
        if verdict.outcome == "unknown" and verdict.refusal != "forgotten":
            # A retry that stays unknown must not count twice.
            self._unknown[tp] = _with(_without(self._unknown.get(tp, []), span), span)
        elif item.stated and tp in self._unknown:
            self._unknown[tp] = _without(self._unknown[tp], span)
            if not self._unknown[tp]:
                del self._unknown[tp]
        # A failure of an older generation has moved the numbers back already.
        if verdict.outcome == "failed" and not item.stated and item.generation >= self._since.get(tp, 0):
            self._go_back(tp, span[0], verdict)

    def _go_back(self, tp: TopicPartition, free: int, verdict: FlushOutcome) -> None:
        """The records from number `free` on are certainly not in the log, and queued records after them will
        not be.
        """
        if verdict.refusal == "out_of_order" and tp not in self._unknown and not self._stated_outstanding:
            # Stated numbers before it were never stored, so the log expects a lower one. Continue from there.
            free = self._log_expects(tp) or 0
        self._next[tp] = free
        self.generation += 1
        # Items numbered before this generation are refused in this partition.
        self._since[tp] = self.generation
        self._behind.add(tp)

    def _in_trouble(self, verdict: FlushOutcome) -> None:
        if self.transactional_id and self.trouble is None:
            self.trouble = verdict


def stated_sequences(
    sequence: int | Sequence[int] | npt.NDArray[np.int32], partitions: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """The stated sequence numbers per row, `NO_SEQUENCE` for a row without one; raises `InvalidInput`."""
    # One number for the first row: the others follow it, which is only defined within one partition.
    if isinstance(sequence, int):
        if len(np.unique(partitions)) > 1:
            raise InvalidInput(
                "the rows go to several partitions, and sequence numbers count per partition; state "
                "one for each row"
            )
        return (
            (check_sequence(sequence) + np.arange(len(partitions), dtype=np.int64)) % SEQUENCE_COUNT
        ).astype(np.int32)
    numbers = np.asarray(sequence)
    if numbers.shape != partitions.shape or not np.issubdtype(numbers.dtype, np.integer):
        raise InvalidInput(
            f"{len(numbers)} sequence numbers were stated for {counted(len(partitions), 'row')}; one "
            "whole number per row is needed"
        )
    numbered = numbers[numbers != NO_SEQUENCE]
    for number in (numbered.min(), numbered.max()) if len(numbered) else ():
        check_sequence(int(number))
    return numbers.astype(np.int32)


def check_sequence(sequence: int) -> int:
    """Return the number if it is valid; raises `InvalidInput`."""
    if not 0 <= sequence < SEQUENCE_COUNT:
        raise InvalidInput(f"{sequence} is not a sequence number; they go from 0 to {SEQUENCE_COUNT - 1}")
    return sequence


def _is_ahead(sequence: int, other: int) -> bool:
    """Whether it comes after the other, on the circle of numbers."""
    return 0 < (sequence - other) % SEQUENCE_COUNT <= SEQUENCE_COUNT // 2


def _partitions(item: SessionItem) -> Sequence[TopicPartition]:
    """The partitions of its records."""
    partitions = (
        [item.pending.partition] if isinstance(item, RecordItem) else np.unique(item.partitions).tolist()
    )
    return [(item.topic.topic_id, partition) for partition in partitions]


def _grouped(keys: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int64], list[int], list[int], list[int]]:
    """An order in which equal keys are adjacent and keep theirs; then each key, its first place in that
    order, and its count.
    """
    # Stable, because the order within a key is the order of sending.
    order = np.argsort(keys, kind="stable")
    found, starts, counts = np.unique(keys[order], return_index=True, return_counts=True)
    return order, found.tolist(), starts.tolist(), counts.tolist()


def _spans(sequences: npt.NDArray[np.int32]) -> list[Span]:
    """Runs of consecutive numbers, in the given order."""
    numbers = sequences.astype(np.int64)
    # Numbers wrap to 0, so a run may continue from the largest number to 0.
    begins = np.concatenate(([0], np.flatnonzero(numbers[1:] != (numbers[:-1] + 1) % SEQUENCE_COUNT) + 1))
    counts = np.diff(np.append(begins, len(numbers)))
    return list(zip(numbers[begins].tolist(), counts.tolist(), strict=True))


def _with(spans: list[Span], added: Span) -> list[Span]:
    """The spans and another, which has none of their numbers."""
    if spans and after(*spans[-1]) == added[0]:
        spans[-1] = (spans[-1][0], spans[-1][1] + added[1])
    else:
        spans.append(added)
    return spans


def _without(spans: Sequence[Span], taken: Span) -> list[Span]:
    """The spans without the numbers of another."""
    left: list[Span] = []
    for first, count in spans:
        # Relative to `first` on the circle of numbers; negative if it lies before.
        begin = (taken[0] - first + SEQUENCE_COUNT // 2) % SEQUENCE_COUNT - SEQUENCE_COUNT // 2
        end = begin + taken[1]
        if begin >= count or end <= 0:
            left.append((first, count))
            continue
        if begin > 0:
            left.append((first, begin))
        if end < count:
            left.append((after(first, end), count - end))
    return left

"""Idempotent producers: which of their batches are in the log, and at which offsets.

Pure; part of the intake fold, so every reader of the log gets the same result. The rules are Kafka's: a
producer has an id and an epoch, and numbers its records per topic partition from 0 in each epoch. The last
five batches of a producer and partition are remembered; a repeated batch gets the original offsets. Unlike in
Kafka, a repetition may be divided in other places than the original. So it is found by its range of sequence
numbers.

A batch may have more numbers than records, because validation sends some records to a DLQ topic. It then
states how many numbers it covers. It counts, and is repeated, as a whole only: which of its numbers have
records is not known here.

Only the log raises the epoch of a transactional id. A producer without one raises its epoch by itself, for
one partition at a time (KIP-360): the first batch of a higher epoch has the number 0. Such a batch also
counts if the producer is forgotten, because its client gives up the earlier numbers by the epoch. The first
batch of an id from `UNOPENED_IDS` on counts as well, so that an id alone needs no state.

A refused batch changes nothing. No clock is read: a log entry says when producers are forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from archiver.runtime.ids import TopicPartition

SEQUENCE_COUNT = 1 << 31
"""Sequence numbers go from 0 to one less, then wrap to 0."""
EPOCH_MAX = 32_767
"""A signed 16-bit number; a producer that has used it gets a new id."""
UNOPENED_IDS = 1 << 62
"""From here on, ids of producers without an entry of their own: the log knows them from their first batch on.
Smaller ids are indexes of entries."""
IDS_PER_OPENING = 1 << 20
"""Ids that a process assigns per entry."""
_INDEXES = 1 << 32
"""Entries whose ids differ in any case. Producers of an entry so far back are forgotten."""
_IDS_OF_INDEX = 1 << 30
"""Ids from which the entry at an index takes its own."""
BATCHES_REMEMBERED = 5
"""Per producer and partition, as in Kafka."""

Refusal = Literal[
    "fenced",
    "unknown_producer",
    "out_of_order",
    "forgotten",
    "wrong_kind",
    "barrier",
    "deleted",
    "position",
    "mirrored",
]
"""Why a segment or a marker does not count.

`fenced`: of an older epoch than its producer's in that partition. `unknown_producer`: its producer was never
opened, or is forgotten (as a whole, or what it had in that partition), and the batch does not begin a raised
epoch. `out_of_order`: its sequence numbers do not follow. `forgotten`: it repeats a batch in the log whose
offsets are no longer remembered. `wrong_kind`: a transactional batch of a producer without transactions, or
the reverse. `barrier`: its file may have been deleted. `deleted`: its topic was deleted.
`position`: an item of a source is not at the entry's start position (`intake.log.source_positions`).
`mirrored`: it states no offset, but its topic has the offsets of an upstream."""

Run = tuple[int, int]
"""Offset of the first record, and the number of consecutive records."""


@dataclass(frozen=True, slots=True)
class Stamp:
    """Producer, epoch and sequence number of a batch."""

    producer_id: int
    epoch: int
    sequence: int
    """Of the first record."""
    transactional: bool = False
    covered: int = 0
    """Sequence numbers of the batch, if it has more of them than records; 0: as many."""


@dataclass(frozen=True, slots=True)
class KnownBatch:
    """A batch in the log."""

    sequence: int
    rows: int
    base: int
    """Offset of its first record."""
    epoch: int = 0
    covered: int = 0
    """As in its stamp."""
    append_us: int = 0
    """The append time, which replaced the event times of its records; 0: they kept their own."""

    @property
    def numbers(self) -> int:
        """How many sequence numbers it has."""
        return self.covered or self.rows


@dataclass(frozen=True, slots=True)
class LastEnd:
    """How the client of a producer ended its last transaction."""

    index: int
    """Of the entry."""
    commit: bool


@dataclass(slots=True)
class Producer:
    """State of a producer in the log."""

    producer_id: int
    epoch: int
    """As the log opened it, or of its first batch. Without a transactional id, it is the lowest epoch of any
    partition."""
    transactional_id: str
    """Empty: none."""
    transaction_timeout_us: int
    last_used_us: int
    batches: dict[TopicPartition, deque[KnownBatch]] = field(default_factory=dict)
    """Of the newest epoch in that partition; the newest last."""
    resumed: bool = False
    """The client of the epoch before goes on with this one."""
    last_end: LastEnd | None = None
    """In this epoch; None also if it was not ended by its client as such."""

    @property
    def newest_epoch(self) -> int:
        """The highest epoch in any partition."""
        # A copy: another thread may read while a batch is appended.
        return max([self.epoch, *(known[-1].epoch for known in list(self.batches.values()))])


@dataclass(frozen=True, slots=True)
class Repeated:
    """A batch that is in the log already."""

    runs: tuple[Run, ...]


def after(sequence: int, rows: int) -> int:
    """The sequence number that follows `rows` records from `sequence` on."""
    return (sequence + rows) % SEQUENCE_COUNT


def ids_of_opening(index: int, random_bytes: bytes) -> range:
    """The ids that a process may assign after it has opened a producer with the entry at `index`.

    Entries of one log share no id. After an older log was restored, another entry may be at that index while
    clients go on with ids of the lost one. With equal ids the log would take batches of one client for
    repetitions of another's, and acknowledge what it does not store. The random bytes make that improbable.
    """
    place = int.from_bytes(random_bytes, "big") % (_IDS_OF_INDEX - IDS_PER_OPENING + 1)
    first = UNOPENED_IDS + index % _INDEXES * _IDS_OF_INDEX + place
    return range(first, first + IDS_PER_OPENING)


class Producers:
    """All producers that are not forgotten."""

    def __init__(self) -> None:
        self._by_id: dict[int, Producer] = {}
        self._by_name: dict[str, Producer] = {}
        self._newest_index = 0

    def __iter__(self) -> Iterator[Producer]:
        return iter(list(self._by_id.values()))  # a copy: another thread may read while one is opened

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, producer_id: int) -> Producer | None:
        """The producer of that id; None if it was never opened or is forgotten."""
        return self._by_id.get(producer_id)

    def named(self, transactional_id: str) -> Producer | None:
        """The producer of that transactional id."""
        return self._by_name.get(transactional_id)

    def open(
        self,
        index: int,
        transactional_id: str,
        transaction_timeout_us: int,
        time_us: int,
        *,
        resumed: bool = False,
    ) -> Producer:
        """The producer that the entry at `index` opens: a new one, or the known one with its next epoch."""
        known = self._by_name.get(transactional_id) if transactional_id else None
        # Without a next epoch `fence` forgets the producer, and the id starts again with a new one.
        if known is not None and self.fence(known):
            known.transaction_timeout_us = transaction_timeout_us
            known.last_used_us = max(known.last_used_us, time_us)
            known.resumed = resumed
            return known
        # The index of its entry is unique in the log, so it serves as the producer's id.
        producer = Producer(index, 0, transactional_id, transaction_timeout_us, time_us)
        self.add(producer)
        return producer

    def add(self, producer: Producer) -> None:
        """Add a producer from a checkpoint."""
        self._by_id[producer.producer_id] = producer
        if producer.producer_id < UNOPENED_IDS:
            self._newest_index = max(self._newest_index, producer.producer_id)
        if producer.transactional_id:
            self._by_name[producer.transactional_id] = producer

    def fence(self, producer: Producer) -> bool:
        """Move the producer to its next epoch; batches of the present one are refused from here on.

        Without a next epoch the producer is forgotten, and the result is False.
        """
        if producer.epoch == EPOCH_MAX:
            self._remove(producer)
            return False
        producer.epoch += 1
        # Sequence numbers start at 0 in each epoch, so batches of the earlier epoch say nothing any more.
        producer.batches.clear()
        producer.resumed, producer.last_end = False, None
        return True

    def forgetting_time(
        self, idle_since_us: int, known_max: int, busy: frozenset[int], used_since_us: int
    ) -> int | None:
        """The time for `forget`, so that at most `known_max` producers stay; None if it would forget none.

        It is `idle_since_us`, or later if too many producers were used since, but at most `used_since_us`.
        More than `known_max` stay if they were used since then, or are in `busy`. Producers with equal times
        stay or go together.
        """
        times = [one.last_used_us for one in self._by_id.values() if one.producer_id not in busy]
        excess = min(len(self._by_id) - known_max, len(times))
        if excess > 0:
            # Behind the last of the excess, because `forget` keeps a producer that was used at its time.
            idle_since_us = max(idle_since_us, sorted(times)[excess - 1] + 1)
        idle_since_us = min(idle_since_us, used_since_us)
        return idle_since_us if any(time_us < idle_since_us for time_us in times) else None

    def forget(self, idle_since_us: int, busy: frozenset[int]) -> None:
        """Forget the producers last used before that, except those in `busy`."""
        for producer in [
            one
            for one in self._by_id.values()
            if one.last_used_us < idle_since_us and one.producer_id not in busy
        ]:
            self._remove(producer)

    def forget_partitions(self, tps: Iterable[TopicPartition]) -> None:
        """Forget all batches in these partitions, because their topic was deleted."""
        gone = frozenset(tps)
        for producer in self._by_id.values():
            # By its own partitions: most producers write to few, and a topic may have 100,000.
            for tp in [known for known in producer.batches if known in gone]:
                del producer.batches[tp]

    def _remove(self, producer: Producer) -> None:
        del self._by_id[producer.producer_id]
        if producer.transactional_id:
            del self._by_name[producer.transactional_id]

    def next_sequence(self, tp: TopicPartition, producer_id: int, epoch: int) -> int | None:
        """The sequence number that the producer's next new batch of that epoch must have in that partition.
        None if no batch of that epoch counts there.
        """
        producer = self._by_id.get(producer_id)
        if producer is None:
            return None
        known = producer.batches.get(tp)
        newest = known[-1] if known else None
        present = producer.epoch if newest is None else newest.epoch
        if epoch == present:
            return 0 if newest is None else after(newest.sequence, newest.numbers)
        # The first batch of a higher epoch, which only a producer without a transactional id may choose.
        return 0 if present < epoch <= EPOCH_MAX and not producer.transactional_id else None

    def opener(self, producer_id: int) -> Producer | None:
        """The producer whose entry gave an id from `UNOPENED_IDS` on; None if it is forgotten.

        It was last used before any producer of its ids, so it is forgotten first.
        """
        if producer_id < UNOPENED_IDS:
            return None
        place = (producer_id - UNOPENED_IDS) // _IDS_OF_INDEX
        # Of all indexes with these ids, the newest one: producers of the others are forgotten for long.
        return self._by_id.get(self._newest_index - (self._newest_index - place) % _INDEXES)

    def is_ahead(self, tp: TopicPartition, stamp: Stamp) -> bool:
        """Whether a batch that does not count may do so later: its number is at or beyond the expected one,
        so earlier batches may still arrive. Not if its producer is forgotten.
        """
        if stamp.producer_id not in self._by_id:
            # A forgotten producer has no opener either, so this one is new.
            return stamp.sequence > 0 and self.opener(stamp.producer_id) is not None
        expected = self.next_sequence(tp, stamp.producer_id, stamp.epoch)
        if expected is None:
            return False
        return (stamp.sequence - expected) % SEQUENCE_COUNT < SEQUENCE_COUNT // 2

    def known_end(self, tp: TopicPartition, producer_id: int, epoch: int) -> int | None:
        """The number behind the newest batch of that epoch in that partition; None if none is known."""
        producer = self._by_id.get(producer_id)
        known = None if producer is None else producer.batches.get(tp)
        if not known or known[-1].epoch != epoch:
            return None
        return after(known[-1].sequence, known[-1].numbers)

    def judge(self, tp: TopicPartition, stamp: Stamp, rows: int) -> Repeated | Refusal | None:
        """None if the batch may be appended; else where it is already, or why it does not count.

        Where one of the two states how many numbers it covers, a repetition may have more or fewer records
        than the original.
        """
        producer = self._by_id.get(stamp.producer_id)
        if stamp.epoch > EPOCH_MAX:
            return "unknown_producer"
        if producer is None:
            return None if begins_alone(stamp) else "unknown_producer"
        known = producer.batches.get(tp)
        epoch = known[-1].epoch if known else producer.epoch
        if stamp.epoch < epoch:
            # Without a batch in the partition, it could be a late repetition of one that is forgotten.
            return "fenced" if known or producer.transactional_id else "unknown_producer"
        raised = stamp.epoch > epoch
        # Such an epoch was never assigned, or the producer was forgotten since.
        if raised and (producer.transactional_id or stamp.transactional):
            return "unknown_producer"
        # A plain batch of a transactional producer would be visible before its marker.
        if stamp.transactional != bool(producer.transactional_id):
            return "wrong_kind"
        if raised or not known:
            # Without a known batch of the epoch, a number above 0 means that earlier batches are missing.
            return None if stamp.sequence == 0 else "out_of_order"
        newest = known[-1]
        numbers = stamp.covered or rows
        # How far the batch begins before the next expected number, on the circle of numbers.
        behind = (after(newest.sequence, newest.numbers) - stamp.sequence) % SEQUENCE_COUNT
        if behind == 0:
            return None
        # On the circle of numbers, more than half a turn behind means ahead.
        if behind > SEQUENCE_COUNT // 2 or numbers > behind:
            # It leaves a gap, or overlaps the end of the known records.
            return "out_of_order"
        runs = _runs(known, stamp.sequence, numbers)
        return "forgotten" if runs is None else Repeated(runs)

    def appended(
        self, tp: TopicPartition, stamp: Stamp, rows: int, base: int, time_us: int, append_us: int = 0
    ) -> None:
        """Record a judged batch that is in the log from offset `base` on; `append_us` as in `KnownBatch`."""
        producer = self._by_id.get(stamp.producer_id)
        if producer is None:
            # Of an earlier epoch the log has forgotten what is in other partitions.
            producer = Producer(stamp.producer_id, stamp.epoch, "", 0, time_us)
            self.add(producer)
        known = producer.batches.get(tp)
        batch = KnownBatch(stamp.sequence, rows, base, stamp.epoch, stamp.covered, append_us)
        if known and known[-1].epoch == stamp.epoch:
            known.append(batch)
        else:
            # A new object, complete from the start: another thread may be reading the one of an older epoch.
            # The bound is part of the fold: every reader must remember the same batches.
            producer.batches[tp] = deque([batch], maxlen=BATCHES_REMEMBERED)
        # Accept times come from the clocks of several writers, so they may go back.
        producer.last_used_us = max(producer.last_used_us, time_us)

    def append_times(self, tp: TopicPartition, producer_id: int, runs: Sequence[Run]) -> tuple[Run, ...]:
        """The append times of the records of a repetition, as in `KnownBatch`, each with their number. Empty
        if no record has one.
        """
        found: list[Run] = []
        for base, rows in runs:
            for one in self._by_id[producer_id].batches[tp]:
                shared = min(base + rows, one.base + one.rows) - max(base, one.base)
                if shared > 0:
                    found.append((one.append_us, shared))
        return tuple(found) if any(time_us for time_us, _ in found) else ()


def begins_alone(stamp: Stamp) -> bool:
    """Whether the batch counts although its producer is not known: the first of a raised epoch, or of an id
    that has no entry.
    """
    # A client whose producer is forgotten raises its epoch, and asks for no other id. Without a raised epoch,
    # a batch of an opened producer could be a late repetition of the first one.
    new = stamp.epoch > 0 or stamp.producer_id >= UNOPENED_IDS
    return new and stamp.sequence == 0 and not stamp.transactional


def _runs(known: deque[KnownBatch], sequence: int, numbers: int) -> tuple[Run, ...] | None:
    """Offsets of the records with these sequence numbers; None if not all of them are remembered."""
    runs: list[Run] = []
    # Oldest first, as the numbers ascend: each batch covers the next part of the repetition.
    for batch in known:
        if numbers == 0:
            break
        inside = (sequence - batch.sequence) % SEQUENCE_COUNT
        # Outside of this batch; the modulo makes a number before its begin very large.
        if inside >= batch.numbers:
            continue
        taken = min(numbers, batch.numbers - inside)
        if not batch.covered:
            runs.append((batch.base + inside, taken))
        # The log does not know which of its numbers have records.
        elif taken < batch.numbers:
            return None
        elif batch.rows:
            runs.append((batch.base, batch.rows))
        sequence, numbers = after(sequence, taken), numbers - taken
    return tuple(runs) if numbers == 0 else None

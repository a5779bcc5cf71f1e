"""The fold of the intake log: from entries to topics, offsets, producers, transactions and backlog.

Pure and deterministic: the same entries give the same state. An entry that is rejected with an error changes
nothing. A segment that does not count (a repetition, a fenced producer) changes nothing either, and the other
segments of the entry do. Never reads a file or a clock.

Ingest time. A record's ingest time is the running maximum of accept times over its partition, and never
before the newest tick earlier in the log. `SegmentRef.floor_us` carries that maximum to the beginning of each
segment. So the ingest time of a record is max(`floor_us`, accept times of the segment up to and with that
record).

Deletion. From its entry on, a deleted topic has no partition, no segment and no gap. Its id is kept for good,
and later segments of it are refused one by one. A transaction with records in it is aborted as a whole and
its producer fenced, because the rest could only be committed in part.

Growth. From its entry on, a topic has more partitions, which begin at offset 0. Keys hash to other partitions
from there on; the records of earlier entries stay where they are. The number of partitions never decreases.

Deleted records. No reader gets the records of a partition below the greatest offset that an entry states for
it. Nothing else follows from it here: they keep their offsets and segments, so every offset is archived once.

Mirrored topics. Each of their segments states the offset that an upstream assigned to its first record. The
segment must lie within the position move of its own partition in the same entry. The records of a segment are
consecutive. Offsets without a record (aborted transactions, transaction markers, compacted records) lie
between segments and are gaps. An entry whose offsets do not continue the partition does not count, so a
repeated or late entry changes nothing.

Consumer groups. Commits and removals of their offsets are judged one by one
(`intake.log.consumer_groups`). An entry whose commits are all void changes nothing.

Transactions. One entry ends a transaction for its records and for its offsets of consumer groups. A marker
takes no offset. Aborted records keep their offsets, as gaps. Nothing at or beyond the first offset of an
open transaction is stable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from archiver.objects.paths import parse_intake_key
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt, NotFound
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.consumer_groups import CommitRefusal, ConsumerGroups
from intake.log.entries import parse_entry, stated_configs
from intake.log.source_positions import Positions, contradiction
from intake.log.state import DeletedTopic, FoldState, Gap, PartitionState, TopicState, merged
from intake.log.transactions import OpenTransaction, Transactions
from intake.producers import SEQUENCE_COUNT, LastEnd, Producer, Producers, Refusal, Repeated, Run, Stamp
from intake.segments import LARGEST, LARGEST_BYTES, FileRef, SegmentRef, Segments

__all__ = [
    "IDS_REMEMBERED",
    "NOTHING",
    "Applied",
    "DeletedTopic",
    "FoldState",
    "IntakeFold",
    "Landed",
    "TopicState",
]

# Stored in log entries and checkpoints, so it must not change.
_SOURCE_PREFIX = "kafka:"
IDS_REMEMBERED = 65_536
"""Number of entry ids kept, so that an entry of unknown outcome is found after the log was trimmed past
it."""


@dataclass(frozen=True, slots=True)
class Landed:
    """The result of one segment of an entry."""

    tp: TopicPartition
    rows: int
    runs: tuple[Run, ...]
    """Offsets of its records, in their order; for a repetition those of the originals, which may be more or
    fewer where numbers were covered. Empty if it was refused."""
    segment: SegmentRef | None
    """The segment added to the backlog; None for a repetition, for a refused one, and without records."""
    refusal: Refusal | None = None
    append_times: tuple[tuple[int, int], ...] = ()
    """For a repetition: the append times of the originals along `runs`, each with the number of its records;
    0 stands for none. Empty if no record has one."""


@dataclass(frozen=True, slots=True)
class Applied:
    """The result of an entry."""

    landed: tuple[Landed, ...] = ()
    """For a file: its segments, in the order of the entry."""
    refusal: Refusal | None = None
    """Why a marker, offsets of a transaction, or a repeated deletion of a topic changed nothing; why a file
    with positions does not count."""
    producer: tuple[int, int] | None = None
    """For an opened producer: its id and epoch."""
    claim: int = 0
    """For claimed slots of consumer groups: the number of the claim."""
    commits: tuple[CommitRefusal | None, ...] = ()
    """For commits, pending commits or removals of offsets, in the order of the entry: None for each that
    counts."""


NOTHING = Applied()


class IntakeFold:
    """State of the intake log up to `next_index`.

    One thread applies entries; other threads may read at the same time.
    """

    def __init__(self) -> None:
        self._next_index = 0
        self._cluster_id: str | None = None
        self._tick_us = 0
        self._newest_us = 0
        self._newest_key = ""
        self._barrier_ms = 0
        self._by_name: dict[str, TopicState] = {}
        self._by_id: dict[TopicId, TopicState] = {}
        self._deleted: dict[TopicId, DeletedTopic] = {}
        self._partitions: dict[TopicPartition, PartitionState] = {}
        self._producers = Producers()
        self._transactions = Transactions()
        self._positions = Positions()
        self._groups = ConsumerGroups()
        # Bounded, because every checkpoint stores all of these ids.
        self._ids: deque[bytes] = deque(maxlen=IDS_REMEMBERED)

    @property
    def next_index(self) -> int:
        """Index of the entry that `apply` expects."""
        return self._next_index

    @property
    def cluster_id(self) -> str | None:
        """The cluster whose data folder this log belongs to (32 hex digits); None before the entry that binds
        it.
        """
        return self._cluster_id

    @property
    def tick_us(self) -> int:
        """The newest tick: nothing later in the log has an ingest time before it. 0 before the first."""
        return self._tick_us

    @property
    def newest_us(self) -> int:
        """The newest time in the log, accept time or tick; 0 if there is none."""
        return self._newest_us

    @property
    def newest_key(self) -> str:
        """The greatest key of an intake file in the log; empty before the first."""
        return self._newest_key

    @property
    def barrier_ms(self) -> int:
        """An entry does not count if its file was written before this; 0 before the first barrier."""
        return self._barrier_ms

    @property
    def topics_by_name(self) -> Mapping[str, TopicState]:
        """Every topic, in order of declaration."""
        # The fold replaces this dictionary and never changes it, so a reader may iterate while entries are
        # applied.
        return MappingProxyType(self._by_name)

    @property
    def topics_by_id(self) -> Mapping[TopicId, TopicState]:
        """Every topic, in order of declaration."""
        return MappingProxyType(self._by_id)

    @property
    def deleted_topics(self) -> Mapping[TopicId, DeletedTopic]:
        """Every topic that was deleted, in order of deletion."""
        return MappingProxyType(self._deleted)

    def deleted_named(self, name: str) -> DeletedTopic | None:
        """The last deleted topic of that name; None without one, or if another topic has the name now."""
        if name in self._by_name:
            return None
        return next((topic for topic in reversed(list(self._deleted.values())) if topic.name == name), None)

    @property
    def producers(self) -> Producers:
        """The idempotent producers that are not forgotten; only the fold changes them."""
        return self._producers

    @property
    def transactions(self) -> Transactions:
        """The open transactions; only the fold changes them."""
        return self._transactions

    @property
    def positions(self) -> Positions:
        """Positions of sources; only the fold changes them."""
        return self._positions

    @property
    def consumer_groups(self) -> ConsumerGroups:
        """Consumer groups with their committed offsets, and claims of slots; only the fold changes them."""
        return self._groups

    def next_offset(self, tp: TopicPartition) -> int:
        """The offset of the partition's next record; `NotFound` if there is no such partition."""
        return self.partition(tp).next_offset

    def stable_offset(self, tp: TopicPartition) -> int:
        """Records at or beyond it are not archived: the first offset of the oldest open transaction, else the
        partition's end.
        """
        # Read the end before the transactions. A transaction that begins in between lies at or beyond this
        # end.
        stable = self.partition(tp).next_offset
        for transaction in self._transactions:
            first = transaction.first_offset(tp)
            if first is not None and first < stable:
                stable = first
        return stable

    def blocking(self, tp: TopicPartition) -> OpenTransaction | None:
        """The open transaction that determines the partition's stable offset; None if there is none."""
        stable = self.stable_offset(tp)
        return next((one for one in self._transactions if one.first_offset(tp) == stable), None)

    def segments(self, tp: TopicPartition, start: int = 0) -> Segments:
        """The segments in memory that reach beyond offset `start`, in offset order, without those of aborted
        transactions.

        Segments below the partition's `history_end` are in history files (`intake.log.backlog`). `NotFound`
        if there is no such partition.
        """
        return self.partition(tp).from_offset(start)

    def gaps(self, tp: TopicPartition, start: int, end: int) -> list[Gap]:
        """The offsets in [start, end) without a record, as far as they are in memory; merged, ascending."""
        return merged(self.partition(tp).gaps, start, end)

    def partition(self, tp: TopicPartition) -> PartitionState:
        """The state of a partition, which only the fold changes; `NotFound` if there is none."""
        held = self._partitions.get(tp)
        if held is None:
            topic = self._by_id.get(tp[0])
            if topic is None:
                gone = self._deleted.get(tp[0])
                what = (
                    f"there is no topic with the id {tp[0]}"
                    if gone is None
                    else f"topic {gone.name} (id {tp[0]}) was deleted"
                )
                raise NotFound(what)
            raise NotFound(
                f"topic {topic.name} has no partition {tp[1]}; it has {topic.partitions}, numbered from 0"
            )
        return held

    def entry_id(self, index: int) -> bytes | None:
        """The id of the entry at `index`; None if it is no longer remembered or not applied yet."""
        # The newest id is that of entry `next_index - 1`.
        place = index - (self._next_index - len(self._ids))
        return self._ids[place] if 0 <= place < len(self._ids) else None

    def apply(self, index: int, data: bytes) -> Applied:
        """Apply the entry at `index`.

        Raises `Halt` for an entry of an unknown format or out of order, `Corrupted` for one that contradicts
        itself or the log before it.
        """
        # A skipped or repeated entry would give this process other offsets than every other reader.
        if index != self._next_index:
            raise Halt(
                f"intake log: entry {index} was offered to a fold that expects entry {self._next_index}"
            )
        entry = parse_entry(index, data)
        body = entry.WhichOneof("body")
        applied = NOTHING
        if body == "file":
            # Check all of it before anything changes: an entry that raises must leave the state as it was.
            self._check_file(index, entry.file)
            applied = self._place(index, entry.file)
        elif body in ("topic", "grown", "configured", "records_deleted"):
            self._change_topics(index, entry)
        elif body == "cluster":
            self._bind(index, entry.cluster)
        elif body == "producer":
            applied = self._open_producer(index, entry.producer)
        elif body == "transaction":
            applied = self._end_transaction(index, entry.transaction)
        elif body == "barrier":
            # Clocks of processes differ, so a later barrier may state an earlier time. The latest time holds.
            self._barrier_ms = max(self._barrier_ms, entry.barrier.written_before_ms)
        elif body == "forgotten":
            # A producer with an open transaction stays, or no marker could end that transaction any more.
            self._producers.forget(entry.forgotten.idle_since_us, self._transactions.busy)
        elif body == "deleted":
            applied = self._delete(index, entry.deleted)
        elif body == "source_forgotten":
            self._positions.forget(index, entry.source_forgotten)
        elif body in ("slots_claimed", "offsets_committed", "offsets_removed", "offsets_pending"):
            applied = self._change_groups(index, entry)
        else:
            # A later tick may state an earlier time. Ingest times never decrease, so the maximum holds.
            self._tick_us = max(self._tick_us, entry.tick.time_us)
            self._newest_us = max(self._newest_us, self._tick_us)
        self._ids.append(entry.id)
        self._next_index = index + 1
        return applied

    def _bind(self, index: int, bound: pb.ClusterBound) -> None:
        cluster_id = bound.cluster_id.hex()
        if len(bound.cluster_id) != 16:
            raise Corrupted(
                f"intake log: entry {index} names a cluster id of {len(bound.cluster_id)} bytes; it "
                "must have 16: restore the log"
            )
        # Two processes may bind the log at the same time; with equal ids the second entry has no effect.
        if self._cluster_id not in (None, cluster_id):
            raise Corrupted(
                f"intake log: entry {index} names cluster {cluster_id}, an earlier one "
                f"{self._cluster_id}; restore the log"
            )
        self._cluster_id = cluster_id

    def _change_topics(self, index: int, entry: pb.IntakeEntry) -> None:
        if entry.HasField("topic"):
            self._declare(index, entry.topic)
        elif entry.HasField("grown"):
            self._grow(index, entry.grown)
        elif entry.HasField("configured"):
            self._configure(index, entry.configured)
        else:
            self._delete_records(index, entry.records_deleted)

    def _change_groups(self, index: int, entry: pb.IntakeEntry) -> Applied:
        if entry.HasField("slots_claimed"):
            return Applied(claim=self._groups.claimed(index, entry.slots_claimed))
        if entry.HasField("offsets_removed"):
            return Applied(commits=self._groups.removed(index, entry.offsets_removed))
        if entry.HasField("offsets_pending"):
            return self._hold_offsets(index, entry.offsets_pending)
        committed = entry.offsets_committed
        return Applied(commits=self._groups.committed(index, committed, self._tick_us, self._partitions_of))

    def _declare(self, index: int, declared: pb.TopicDeclared) -> None:
        if len(declared.topic_id) != 16 or not declared.name or declared.partitions == 0:
            raise Corrupted(
                f"intake log: entry {index} declares a topic without a name, a 16-byte id or "
                "partitions; restore the log"
            )
        topic_id = TopicId(declared.topic_id.hex())
        configs = stated_configs(index, declared.configs)
        if declared.name in self._by_name or topic_id in self._by_id or topic_id in self._deleted:
            return  # another process declared it first; the second entry has no effect
        topic = TopicState(
            topic_id, declared.name, declared.partitions, declared.created_us, declared.mirrored, configs
        )
        for number in range(declared.partitions):
            self._partitions[topic_id, number] = PartitionState()
        # Replace the dictionaries instead of changing them: another thread may be iterating over them.
        self._by_id = {**self._by_id, topic_id: topic}
        self._by_name = {**self._by_name, topic.name: topic}

    def _configure(self, index: int, configured: pb.TopicConfigured) -> None:
        topic_id = TopicId(configured.topic_id.hex())
        topic, configs = self._by_id.get(topic_id), stated_configs(index, configured.configs)
        if topic is None and topic_id not in self._deleted:
            raise Corrupted(
                f"intake log: entry {index} has configs of {topic_id}, which is no topic; restore the log"
            )
        # A late entry for a deleted topic has no effect, as late segments have none.
        if topic is not None:
            self._replace(replace(topic, configs=configs))

    def _replace(self, topic: TopicState) -> None:
        """Put another state in the place of a topic's; the order of declaration stays."""
        # New dictionaries: another thread may be iterating over the old ones.
        self._by_id = {**self._by_id, topic.topic_id: topic}
        self._by_name = {**self._by_name, topic.name: topic}

    def _grow(self, index: int, grown: pb.TopicGrown) -> None:
        topic_id = TopicId(grown.topic_id.hex())
        topic = self._by_id.get(topic_id)
        # A late entry for a deleted topic is no contradiction: it has no effect, as late segments have none.
        if topic is None and topic_id in self._deleted:
            return
        if topic is None:
            raise Corrupted(
                f"intake log: entry {index} adds partitions to a topic {topic_id} that was never declared; "
                "restore the log"
            )
        if topic.mirrored == grown.own_offsets:
            raise Corrupted(
                f"intake log: entry {index} adds partitions to topic {topic.name} as if it were "
                f"{'not ' if topic.mirrored else ''}mirrored; restore the log"
            )
        if grown.partitions <= topic.partitions:
            return  # another process added as many or more first; the number never decreases
        for number in range(topic.partitions, grown.partitions):
            self._partitions[topic_id, number] = PartitionState()
        # The partitions exist before the topic shows them.
        self._replace(replace(topic, partitions=grown.partitions))

    def _delete(self, index: int, deleted: pb.TopicDeleted) -> Applied:
        topic_id = TopicId(deleted.topic_id.hex())
        topic = self._by_id.get(topic_id)
        if topic is None:
            if topic_id not in self._deleted:
                raise Corrupted(
                    f"intake log: entry {index} deletes a topic {topic_id} that was never declared; "
                    "restore the log"
                )
            return Applied(refusal="deleted")
        tps = [(topic_id, number) for number in range(topic.partitions)]
        # Records in this topic can no longer be committed. A transaction becomes visible as a whole or not at
        # all, so abort all of it.
        for transaction in [one for one in self._transactions if any(tp in one.ranges for tp in tps)]:
            self._close(transaction.producer_id, commit=False)
            producer = self._producers.get(transaction.producer_id)
            # Without the fence its later batches would begin a new transaction that lacks the aborted
            # records.
            assert producer is not None, "a producer with an open transaction is not forgotten"
            self._producers.fence(producer)
        self._producers.forget_partitions(tps)
        self._groups.forget_topic(index, topic_id)
        # Replace the dictionaries, `_deleted` first, so that readers find the topic in one of them.
        gone = DeletedTopic(topic_id, topic.name, topic.partitions, topic.created_us, deleted.time_us)
        self._deleted = {**self._deleted, topic_id: gone}
        self._by_name = {name: one for name, one in self._by_name.items() if one is not topic}
        self._by_id = {known: one for known, one in self._by_id.items() if one is not topic}
        # Last, because a reader that still finds the topic must also find its partitions.
        for tp in tps:
            del self._partitions[tp]
        return NOTHING

    def _partitions_of(self, topic_id: TopicId) -> int:
        topic = self._by_id.get(topic_id)
        return 0 if topic is None else topic.partitions

    def _delete_records(self, index: int, deleted: pb.RecordsDeleted) -> None:
        topic_id = TopicId(deleted.topic_id.hex())
        # A late entry for a deleted topic has no effect, as late segments have none.
        if topic_id in self._deleted:
            return
        found = [(self._partitions.get((topic_id, one.partition)), one.below) for one in deleted.partitions]
        # All of them before the first: an entry that raises must leave the state as it was.
        if any(held is None or below > held.next_offset for held, below in found):
            raise Corrupted(
                f"intake log: entry {index} deletes records of {topic_id} that never were; restore the log"
            )
        for held, below in found:
            assert held is not None, "checked above"
            held.deleted_below = max(held.deleted_below, below)

    # files

    def _check_file(self, index: int, file: pb.IntakeFile) -> None:
        """Raise `Corrupted` unless every segment is valid; changes nothing."""
        if wrong := contradiction(file):
            raise Corrupted(f"intake log: entry {index} ({file.key}) {wrong}; restore the log")
        # An entry that only moves positions, such as for an empty file, has no intake file.
        if (file.topics or not file.positions) and (not file.key or len(file.footer_sha256) != 32):
            raise Corrupted(
                f"intake log: entry {index} names a file without a key or digest; restore the log"
            )
        for group in file.topics:
            topic_id = TopicId(group.topic_id.hex())
            # Records of a deleted topic are not a contradiction: `_place` refuses their segments one by one.
            topic = self._by_id.get(topic_id) or self._deleted.get(topic_id)
            if topic is None:
                raise Corrupted(
                    f"intake log: entry {index} ({file.key}) holds records of a topic "
                    f"{group.topic_id.hex()} that was never declared"
                )
            for segment in group.segments:
                covered = segment.producer.covered
                if segment.partition >= topic.partitions or (segment.rows == 0 and not covered):
                    raise Corrupted(
                        f"intake log: entry {index} ({file.key}) has a segment of {segment.rows} rows "
                        f"for partition {segment.partition} "
                        f"of topic {topic.name}, which has {topic.partitions} partitions"
                    )
                # Half of the circle of numbers tells what is behind from what is ahead.
                if covered and not segment.rows < covered < SEQUENCE_COUNT // 2:
                    raise Corrupted(
                        f"intake log: entry {index} ({file.key}) has a segment of {segment.rows} rows that "
                        f"covers {covered} sequence numbers; restore the log"
                    )
                # Sums over millions of segments must fit 64 bits.
                if segment.raw_bytes > LARGEST_BYTES:
                    raise Corrupted(
                        f"intake log: entry {index} ({file.key}) states a segment of "
                        f"{segment.raw_bytes} bytes; restore the log"
                    )
        if wrong := contradicts_topics(file, self._by_id):
            raise Corrupted(f"intake log: entry {index} ({file.key}) {wrong}; restore the log")

    def _place(self, index: int, file: pb.IntakeFile) -> Applied:
        ref = FileRef(index, file.key, file.size, file.footer_sha256)
        refusal = self._refusal(file)
        landed: list[Landed] = []
        for group in file.topics:
            topic_id = TopicId(group.topic_id.hex())
            mirrored = topic_id in self._by_id and self._by_id[topic_id].mirrored
            for segment in group.segments:
                tp = (topic_id, segment.partition)
                if topic_id in self._deleted:
                    landed.append(Landed(tp, segment.rows, (), None, "deleted"))
                elif refusal is not None:
                    landed.append(Landed(tp, segment.rows, (), None, refusal))
                # Only the source of a mirrored topic has the offsets of its upstream; other writers must not
                # add records.
                elif mirrored and not segment.HasField("offset"):
                    landed.append(Landed(tp, segment.rows, (), None, "mirrored"))
                elif segment.HasField("producer"):
                    landed.append(self._place_batch(ref, tp, segment))
                else:
                    landed.append(self._place_segment(ref, tp, segment))
        # Also for a refused entry: its file was stored, and the key shows how far files of this log reach.
        self._newest_key = max(self._newest_key, file.key)
        # Positions move in the same step in which the records count. So an item is never read twice or
        # skipped.
        if refusal is None:
            self._positions.move(index, file.positions)
        return Applied(tuple(landed), refusal if file.positions else None)

    def _refusal(self, file: pb.IntakeFile) -> Refusal | None:
        """Why nothing of the entry counts; None if its segments are judged one by one."""
        # An entry without a file cannot name a deleted one, so no barrier applies to it.
        if file.key and self._is_behind_barrier(file.key):
            return "barrier"
        if not file.positions:
            return None
        if any(TopicId(group.topic_id.hex()) in self._deleted for group in file.topics):
            return "deleted"  # the whole entry: the position must not move past records that do not count
        follows = self._positions.follow(file.positions) and follow_offsets(file, self._partitions)
        return None if follows else "position"

    def _is_behind_barrier(self, key: str) -> bool:
        if not self._barrier_ms:
            return False
        parsed = parse_intake_key(key)
        # A key without a time counts as old, because its file may be deleted already.
        return parsed is None or parsed.written_ms < self._barrier_ms

    def _place_batch(self, ref: FileRef, tp: TopicPartition, segment: pb.Segment) -> Landed:
        """Append a producer's batch, unless it is a repetition or does not count."""
        stated = segment.producer
        stamp = Stamp(stated.producer_id, stated.epoch, stated.sequence, stated.transactional, stated.covered)
        verdict = self._producers.judge(tp, stamp, segment.rows)
        if isinstance(verdict, Repeated):
            append_times = self._producers.append_times(tp, stamp.producer_id, verdict.runs)
            return Landed(tp, segment.rows, verdict.runs, None, append_times=append_times)
        if verdict is not None:
            return Landed(tp, segment.rows, (), None, verdict)
        base = self._partitions[tp].next_offset
        if stamp.transactional and segment.rows:
            # Register before the partition grows; otherwise another thread could see these offsets as stable.
            transaction = self._transaction(stamp.producer_id, segment.accept_max_us)
            self._transactions.wrote(transaction, tp, base, base + segment.rows)
        accept_us = segment.accept_max_us
        append_us = accept_us if segment.log_append_time else 0
        self._producers.appended(tp, stamp, segment.rows, base, accept_us, append_us)
        if not segment.rows:
            return Landed(tp, 0, (), None)
        return self._place_segment(ref, tp, segment)

    def _transaction(self, producer_id: int, time_us: int) -> OpenTransaction:
        """The producer's open transaction, which begins now if there is none."""
        transaction = self._transactions.get(producer_id)
        if transaction is None:
            producer = self._producers.get(producer_id)
            assert producer is not None, "the producer was judged before"
            time_us = max(time_us, self._tick_us)  # a clock that is behind must not shorten the time-out
            deadline_us = time_us + producer.transaction_timeout_us
            transaction = OpenTransaction(
                producer_id, producer.epoch, producer.transactional_id, time_us, deadline_us
            )
            self._transactions.add(transaction)
        return transaction

    def _place_segment(self, ref: FileRef, tp: TopicPartition, segment: pb.Segment) -> Landed:
        held = self._partitions[tp]
        if segment.HasField("offset"):
            held.pass_over(segment.offset)
        rows, base, accept_max_us = segment.rows, held.next_offset, segment.accept_max_us
        # Ingest times continue from the maximum of the partition and never before the newest tick.
        floor_us = max(self._tick_us, held.ingest_max_us)
        # Positional arguments: this runs for every segment, and keywords take a third longer.
        placed = SegmentRef(
            ref, segment.row_group, segment.first_row, rows, base, segment.raw_bytes, accept_max_us, floor_us
        )
        held.append(placed, log_append_time=segment.log_append_time)
        self._newest_us = max(self._newest_us, accept_max_us)
        return Landed(tp, rows, ((base, rows),), placed)

    # producers and transactions

    def _open_producer(self, index: int, opened: pb.ProducerOpened) -> Applied:
        known = self._producers.named(opened.transactional_id)
        if known is not None:
            # The earlier incarnation is fenced by the new epoch and cannot end its transaction any more.
            self._close(known.producer_id, commit=False)
        producer = self._producers.open(
            index,
            opened.transactional_id,
            opened.transaction_timeout_us,
            opened.time_us,
            resumed=opened.resumed,
        )
        return Applied(producer=(producer.producer_id, producer.epoch))

    def _hold_offsets(self, index: int, pending: pb.OffsetsPending) -> Applied:
        commit, topics = pending.commit, self._groups.stated(index, pending, self._tick_us)
        if not self._groups.is_current(commit.group, commit.claim):
            return Applied(commits=("stale_claim",))
        producer = self._transactional(pending.producer_id, pending.epoch)
        if not isinstance(producer, Producer):
            return Applied(refusal=producer)
        # A transaction begins also if no partition exists any more, so that its end is found.
        self._transaction(producer.producer_id, pending.time_us)
        self._groups.hold(index, producer.producer_id, commit.group, topics, self._partitions_of)
        producer.last_used_us = max(producer.last_used_us, pending.time_us)
        return Applied(commits=(None,))

    def _transactional(self, producer_id: int, epoch: int) -> Producer | Refusal:
        """The producer with a transactional id that has this epoch, or why there is none."""
        producer = self._producers.get(producer_id)
        # The log has never assigned a higher epoch than the known one.
        if producer is None or epoch > producer.epoch:
            return "unknown_producer"
        if epoch < producer.epoch:
            return "fenced"
        return producer if producer.transactional_id else "wrong_kind"

    def _end_transaction(self, index: int, ended: pb.TransactionEnded) -> Applied:
        producer = self._transactional(ended.producer_id, ended.epoch)
        if not isinstance(producer, Producer):
            return Applied(refusal=producer)
        self._close(producer.producer_id, commit=ended.commit)
        producer.last_used_us = max(producer.last_used_us, ended.time_us)
        producer.last_end = LastEnd(index, ended.commit) if ended.by_client else None
        # Set for an overdue transaction: a late commit of this epoch must not end the next transaction.
        if ended.fence:
            self._producers.fence(producer)
        return NOTHING

    def _close(self, producer_id: int, *, commit: bool) -> None:
        """End the producer's open transaction, if it has one; aborted records become gaps."""
        transaction = self._transactions.get(producer_id)
        if transaction is None:
            return
        if not commit:
            for tp, ranges in transaction.ranges.items():
                self._partitions[tp].abort(ranges)
        self._groups.end(producer_id, commit=commit)
        # Close last; otherwise another thread could see aborted records below the stable offset, or records
        # of a committed transaction without its offsets.
        self._transactions.close(producer_id)

    # checkpoints

    def release_history(self, history_end: Mapping[TopicPartition, int]) -> None:
        """Drop the segments and gaps below these offsets. A checkpoint at or before `next_index` has them in
        history files.
        """
        for tp, offset in history_end.items():
            held = self._partitions.get(tp)
            # A checkpoint that is older than the known one changes nothing.
            if held is not None and offset > held.history_end:  # None: the topic was deleted since
                held.forget_below(offset)

    def restore(self, state: FoldState) -> None:
        """Take over the state of a checkpoint; only allowed before the first `apply`."""
        assert self._next_index == 0, "a fold is restored before it applies anything"
        self._next_index = state.next_index
        self._cluster_id = state.cluster_id
        self._tick_us = state.tick_us
        self._newest_us = state.newest_us
        self._newest_key = state.newest_key
        self._barrier_ms = state.barrier_ms
        # No other thread reads this fold yet, so its dictionaries may change in place.
        for topic in state.topics:
            self._by_id[topic.topic_id] = topic
            self._by_name[topic.name] = topic
        self._deleted.update({topic.topic_id: topic for topic in state.deleted})
        self._partitions.update(state.partitions)
        for source in state.sources:
            self._positions.add(source)
        self._groups.restore(state.slot_claims, state.consumer_groups, state.pending_offsets)
        for producer in state.producers:
            self._producers.add(producer)
        for transaction in state.transactions:
            self._transactions.add(transaction)
        self._ids.extend(state.ids)

    def state(self) -> FoldState:
        """The whole state, for a checkpoint. Not a copy: it is valid until the next entry is applied."""
        return FoldState(
            next_index=self._next_index,
            cluster_id=self._cluster_id,
            tick_us=self._tick_us,
            newest_us=self._newest_us,
            newest_key=self._newest_key,
            barrier_ms=self._barrier_ms,
            topics=tuple(self._by_id.values()),
            deleted=tuple(self._deleted.values()),
            partitions=self._partitions,
            producers=tuple(self._producers),
            transactions=tuple(self._transactions),
            sources=tuple(self._positions),
            slot_claims=self._groups.claims,
            consumer_groups=tuple(self._groups),
            pending_offsets=self._groups.all_pending,
            ids=self._ids,
        )


def mirror_source(topic_id: TopicId) -> str:
    """The log's name for the upstream of a mirrored topic. Its items are the partition numbers."""
    return f"{_SOURCE_PREFIX}{topic_id}"


def contradicts_topics(file: pb.IntakeFile, topics: Mapping[TopicId, TopicState]) -> str | None:
    """Why the offsets that an entry states are impossible in any state; None if they are possible."""
    for group in file.topics:
        stated = [segment for segment in group.segments if segment.HasField("offset")]
        topic = topics.get(TopicId(group.topic_id.hex()))
        if not stated or topic is None:  # None: it was deleted
            continue
        if not topic.mirrored:
            return f"states offsets for topic {topic.name}, which is not mirrored"
        if not file.positions:
            return f"states offsets for topic {topic.name} without the positions they belong to"
        reached: dict[int, int] = {}
        for segment in stated:
            if segment.partition >= topic.partitions:
                return (
                    f"has records of partition {segment.partition} of topic {topic.name}, which has "
                    f"{topic.partitions}"
                )
            # Segments are in file order, so the offsets of one partition only rise.
            if segment.offset < reached.get(segment.partition, 0):
                return (
                    f"states offset {segment.offset} of topic {topic.name} partition {segment.partition} "
                    "behind a later one"
                )
            reached[segment.partition] = segment.offset + segment.rows
            # Offsets are held as signed 64-bit integers.
            if reached[segment.partition] > LARGEST:
                return (
                    f"states offset {segment.offset} of topic {topic.name}, which is larger than there can "
                    "be one"
                )
    return None


def follow_offsets(file: pb.IntakeFile, partitions: Mapping[TopicPartition, PartitionState]) -> bool:
    """Whether every stated offset is at or beyond the end of its partition, and inside the range that the
    entry moves that partition over. If two processes mirror into one topic, one of them wins.
    """
    spans = {(move.source, move.item): (move.base, move.end) for move in file.positions}
    for group in file.topics:
        topic_id = TopicId(group.topic_id.hex())
        for segment in group.segments:
            if not segment.HasField("offset"):
                continue
            # Without a move of this partition the span is empty, and no segment fits it.
            base, end = spans.get((mirror_source(topic_id), str(segment.partition)), (0, 0))
            if (
                not max(base, partitions[topic_id, segment.partition].next_offset)
                <= segment.offset
                <= end - segment.rows
            ):
                return False
    return True

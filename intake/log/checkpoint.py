"""Checkpoints of the intake log: the state of the fold before one entry, as bytes in an object store.

Frozen format 1: the magic, the SHA-256 of all that follows, an `IntakeState` message. Its field `format` is
higher where the state has content that a reader of format 1 would misread; that reader then stops. The same
state gives the same bytes, and a single wrong bit is detected. Only `CheckpointStore` and `superseded` touch
the object store.

Everything below the stable offsets is in history files and not here. So the size depends on the number of
partitions, producers and remembered ids, and on open transactions, but not on the archiving lag.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from archiver.log.checkpoints import KEPT, Checkpoints, seal, unseal
from archiver.log.store import Log
from archiver.objects.paths import HISTORY_PREFIX, history_key, parse_history_key
from archiver.objects.store import ObjectStore
from archiver.proto import intake_state_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.consumer_groups import (
    ConsumerGroup,
    PendingOffsets,
    SlotClaim,
    TopicOffsets,
    columns,
    leader_epochs_stated,
    metadata_stated,
)
from intake.log.entries import parse_entry
from intake.log.fold import DeletedTopic, FoldState, IntakeFold, TopicState
from intake.log.source_positions import MARK_BYTES, Begun, Finished, SourceState
from intake.log.state import PartitionState, merged
from intake.log.transactions import OpenTransaction
from intake.producers import BATCHES_REMEMBERED, KnownBatch, LastEnd, Producer
from intake.segments import FileRef, HeldSegments, SegmentRef

FORMAT = 1
"""Of the object; part of its key as well."""
# Format 4 also added configs of topics, committed offsets of consumer groups, and deletions of records.
STATE_FORMATS = (1, 2, 3, 4, 5, 6)
"""Of the state: 2 added deleted topics and positions of sources, 3 mirrored topics, 4 epochs that producers
raised themselves, and batches with more sequence numbers than records, 5 append times, 6 pending offsets, and
how producers came to their epoch and ended their last transaction."""
MAGIC = b"archiver.state.1"


@dataclass(frozen=True, slots=True)
class HistoryRef:
    """Reference of a checkpoint to one history file."""

    start: int
    end: int
    """The file covers entries [start, end) of the log."""
    size: int
    """Bytes."""
    sha256: bytes
    footer_sha256: bytes

    def __hash__(self) -> int:
        # Caches are keyed by refs, and planning looks them up thousands of times. The digest alone is enough.
        return hash(self.sha256)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The state before the entry at `state.next_index`, and the history files with the rest."""

    state: FoldState
    history: tuple[HistoryRef, ...]
    """In order and without a gap; the last one ends at the checkpoint."""

    @property
    def index(self) -> int:
        """The first entry that is not in it."""
        return self.state.next_index

    @property
    def last_id(self) -> bytes | None:
        """The id of the last entry in it."""
        ids = list(self.state.ids)
        return ids[-1] if ids else None

    def fold(self) -> IntakeFold:
        """A fold that continues from here. Call it once: the fold takes over the state."""
        fold = IntakeFold()
        fold.restore(self.state)
        return fold


def encode(checkpoint: Checkpoint) -> bytes:
    """The object of a checkpoint."""
    # Deterministic, so that two processes that make the same checkpoint write the same bytes.
    return seal(MAGIC, _state_message(checkpoint).SerializeToString(deterministic=True))


def decode(data: bytes, where: str) -> Checkpoint:
    """The inverse of `encode`. Raises `Corrupted` with `where` if a bit is wrong, `Halt` if a newer version
    wrote it.
    """
    payload = unseal(MAGIC, data, where)
    try:
        message = pb.IntakeState.FromString(payload)
    except DecodeError as error:
        raise Corrupted(f"checkpoint {where} is not the state of an intake fold") from error
    # A newer state may mean something else by the same fields, so a reader stops instead of guessing.
    if message.format not in STATE_FORMATS:
        raise Halt(
            f"checkpoint {where} has the format {message.format}, this version knows "
            f"{STATE_FORMATS[-1]}; upgrade before reading this log"
        )
    return _checkpoint(message)


def same(one: FoldState, other: FoldState) -> bool:
    """Whether two states are equal; adjacent gaps may be merged or not."""
    if _scalars(one) != _scalars(other) or one.partitions.keys() != other.partitions.keys():
        return False
    if {source.name: source for source in one.sources} != {source.name: source for source in other.sources}:
        return False
    for tp, state in one.partitions.items():
        twin = other.partitions[tp]
        if (state.next_offset, state.ingest_max_us, state.history_end, state.deleted_below) != (
            twin.next_offset,
            twin.ingest_max_us,
            twin.history_end,
            twin.deleted_below,
        ):
            return False
        if state.append_time_changes != twin.append_time_changes:
            return False
        # Adjacent gaps may be separate elements in one fold and joined in the other.
        if state.segments != twin.segments or _gaps(state) != _gaps(twin):
            return False
    return True


def _scalars(state: FoldState) -> tuple[object, ...]:
    return (
        *(
            state.next_index,
            state.cluster_id,
            state.tick_us,
            state.newest_us,
            state.newest_key,
            state.barrier_ms,
        ),
        *(
            list(state.topics),
            list(state.deleted),
            list(state.producers),
            list(state.transactions),
            list(state.slot_claims),
            list(state.consumer_groups),
            list(state.pending_offsets),
            list(state.ids),
        ),
    )


def _gaps(state: PartitionState) -> list[tuple[int, int]]:
    return merged(state.gaps, 0, state.next_offset)


# --- state to message


def _state_message(checkpoint: Checkpoint) -> pb.IntakeState:
    state = checkpoint.state
    # Many segments share a file, and many batches a topic. So both are listed once and referenced by place.
    files = _files_of(state.partitions)
    places = {file.log_index: place for place, file in enumerate(files)}
    topic_places = {topic.topic_id: place for place, topic in enumerate(state.topics)}
    return pb.IntakeState(
        format=_state_format(state),
        next_index=state.next_index,
        # Empty before the entry that binds the log to a cluster.
        cluster_id=bytes.fromhex(state.cluster_id or ""),
        tick_us=state.tick_us,
        newest_us=state.newest_us,
        newest_key=state.newest_key,
        barrier_ms=state.barrier_ms,
        topics=[
            pb.Topic(
                topic_id=bytes.fromhex(topic.topic_id),
                name=topic.name,
                created_us=topic.created_us,
                partitions=[
                    _partition_message(state.partitions[topic.topic_id, number], places)
                    for number in range(topic.partitions)
                ],
                mirrored=topic.mirrored,
                configs=[pb.Config(name=name, value=value) for name, value in topic.configs],
            )
            for topic in state.topics
        ]
        + [_deleted_message(topic) for topic in state.deleted],
        files=[
            pb.File(log_index=file.log_index, key=file.key, size=file.size, footer_sha256=file.footer_sha256)
            for file in files
        ],
        producers=[_producer_message(producer, topic_places) for producer in state.producers],
        transactions=[_transaction_message(transaction, topic_places) for transaction in state.transactions],
        ids=state.ids,
        # The stored format has its own name for history files.
        shelves=[
            pb.Shelf(
                start=ref.start,
                end=ref.end,
                size=ref.size,
                sha256=ref.sha256,
                footer_sha256=ref.footer_sha256,
            )
            for ref in checkpoint.history
        ],
        sources=[source_message(source) for source in sorted(state.sources, key=lambda source: source.name)],
        slot_claims=[
            pb.SlotClaim(slot=claim.slot, claim=claim.number, node_id=claim.node_id, time_us=claim.time_us)
            for claim in state.slot_claims
        ],
        consumer_groups=[group_message(group, topic_places) for group in state.consumer_groups],
        pending_offsets=[
            pb.PendingOffsets(
                producer_id=held.producer_id,
                log_index=held.index,
                offsets=group_message(ConsumerGroup(held.group, 0, held.topics), topic_places),
            )
            for held in state.pending_offsets
        ],
    )


def _state_format(state: FoldState) -> int:
    """The oldest format that can express the state, so that older versions can read it."""
    # An earlier version would forget these offsets at the end of the transaction, and answer a repeated
    # request of the client as if it were another one.
    if state.pending_offsets or any(producer.resumed or producer.last_end for producer in state.producers):
        return 6
    # An earlier version would forget which records have the append time.
    if any(held.append_time_changes for held in state.partitions.values()):
        return 5
    # An earlier version would archive and delete by other settings, lose committed offsets, or give records
    # that are deleted.
    if (
        state.slot_claims
        or state.consumer_groups
        or any(topic.configs for topic in state.topics)
        or any(partition.deleted_below for partition in state.partitions.values())
    ):
        return 4
    # A reader of an earlier format would ignore these fields and assign other offsets.
    if any(
        producer.newest_epoch > (producer.epoch if producer.transactional_id else 0)
        for producer in state.producers
    ) or any(
        batch.covered
        for producer in state.producers
        for batches in producer.batches.values()
        for batch in batches
    ):
        return 4
    if any(topic.mirrored for topic in state.topics):
        return 3
    return 2 if state.deleted or state.sources else 1


def _deleted_message(topic: DeletedTopic) -> pb.Topic:
    deleted = pb.Deleted(time_us=topic.deleted_us, partitions=topic.partitions)
    return pb.Topic(
        topic_id=bytes.fromhex(topic.topic_id), name=topic.name, created_us=topic.created_us, deleted=deleted
    )


def _files_of(partitions: Mapping[TopicPartition, PartitionState]) -> list[FileRef]:
    """The files of all segments in memory, in log order."""
    # The log index identifies a file: an entry names at most one.
    found = {file.log_index: file for state in partitions.values() for file in state.segments.files}
    return [found[index] for index in sorted(found)]


def _partition_message(state: PartitionState, places: Mapping[int, int]) -> pb.Partition:
    return pb.Partition(
        next_offset=state.next_offset,
        ingest_max_us=state.ingest_max_us,
        # The stored format has its own name for this offset.
        shelved_to=state.history_end,
        segments=[
            pb.Segment(
                file=places[segment.file.log_index],
                row_group=segment.row_group,
                first_row=segment.first_row,
                rows=segment.rows,
                base=segment.base,
                raw_bytes=segment.raw_bytes,
                accept_max_us=segment.accept_max_us,
                floor_us=segment.floor_us,
            )
            for segment in state.segments
        ],
        gaps=[pb.Range(base=base, end=end) for base, end in _gaps(state)],
        append_time_changes=state.append_time_changes,
        deleted_below=state.deleted_below,
    )


def _producer_message(producer: Producer, topics: Mapping[TopicId, int]) -> pb.Producer:
    return pb.Producer(
        producer_id=producer.producer_id,
        epoch=producer.epoch,
        transactional_id=producer.transactional_id,
        transaction_timeout_us=producer.transaction_timeout_us,
        last_used_us=producer.last_used_us,
        resumed=producer.resumed,
        ended_at=0 if producer.last_end is None else producer.last_end.index,
        committed=producer.last_end is not None and producer.last_end.commit,
        batches=[
            pb.Batches(
                topic=topics[topic_id],
                partition=partition,
                sequences=[batch.sequence for batch in batches],
                rows=[batch.rows for batch in batches],
                bases=[batch.base for batch in batches],
                # All of one partition have the same epoch.
                epoch=batches[-1].epoch if batches[-1].epoch != producer.epoch else 0,
                covered=[batch.covered for batch in batches]
                if any(batch.covered for batch in batches)
                else (),
                append_us=[batch.append_us for batch in batches]
                if any(batch.append_us for batch in batches)
                else (),
            )
            # The batches are in the order of the first batch per partition, which follows from the log.
            for (topic_id, partition), batches in producer.batches.items()
        ],
    )


def _transaction_message(transaction: OpenTransaction, topics: Mapping[TopicId, int]) -> pb.Transaction:
    return pb.Transaction(
        producer_id=transaction.producer_id,
        epoch=transaction.epoch,
        transactional_id=transaction.transactional_id,
        started_us=transaction.started_us,
        deadline_us=transaction.deadline_us,
        ranges=[
            pb.Ranges(
                topic=topics[topic_id],
                partition=partition,
                ranges=[pb.Range(base=base, end=end) for base, end in ranges],
            )
            for (topic_id, partition), ranges in transaction.ranges.items()
        ],
    )


# --- message to state


def _checkpoint(message: pb.IntakeState) -> Checkpoint:
    topic_ids = [TopicId(topic.topic_id.hex()) for topic in message.topics]
    files = [FileRef(file.log_index, file.key, file.size, file.footer_sha256) for file in message.files]
    state = FoldState(
        next_index=message.next_index,
        cluster_id=message.cluster_id.hex() or None,
        tick_us=message.tick_us,
        newest_us=message.newest_us,
        newest_key=message.newest_key,
        barrier_ms=message.barrier_ms,
        topics=tuple(
            TopicState(
                topic_id,
                topic.name,
                len(topic.partitions),
                topic.created_us,
                topic.mirrored,
                tuple((one.name, one.value) for one in topic.configs),
            )
            for topic_id, topic in zip(topic_ids, message.topics, strict=True)
            # Deleted topics are in the same list, because batches and ranges refer to a place in it.
            if not topic.HasField("deleted")
        ),
        deleted=tuple(
            DeletedTopic(
                topic_id, topic.name, topic.deleted.partitions, topic.created_us, topic.deleted.time_us
            )
            for topic_id, topic in zip(topic_ids, message.topics, strict=True)
            if topic.HasField("deleted")
        ),
        partitions={
            (topic_id, number): _partition(partition, files)
            for topic_id, topic in zip(topic_ids, message.topics, strict=True)
            for number, partition in enumerate(topic.partitions)
        },
        producers=tuple(_producer(producer, topic_ids) for producer in message.producers),
        transactions=tuple(_transaction(transaction, topic_ids) for transaction in message.transactions),
        sources=tuple(source_state(source) for source in message.sources),
        slot_claims=tuple(
            SlotClaim(claim.slot, claim.claim, claim.node_id, claim.time_us) for claim in message.slot_claims
        ),
        consumer_groups=tuple(group_state(group, topic_ids) for group in message.consumer_groups),
        pending_offsets=tuple(_pending(held, topic_ids) for held in message.pending_offsets),
        ids=tuple(message.ids),
    )
    history = tuple(
        HistoryRef(ref.start, ref.end, ref.size, ref.sha256, ref.footer_sha256) for ref in message.shelves
    )
    return Checkpoint(state, history)


def _partition(message: pb.Partition, files: Sequence[FileRef]) -> PartitionState:
    segments = HeldSegments.of(
        SegmentRef(
            file=files[segment.file],
            row_group=segment.row_group,
            first_row=segment.first_row,
            rows=segment.rows,
            base=segment.base,
            raw_bytes=segment.raw_bytes,
            accept_max_us=segment.accept_max_us,
            floor_us=segment.floor_us,
        )
        for segment in message.segments
    )
    gaps = [(gap.base, gap.end) for gap in message.gaps]
    return PartitionState(
        message.next_offset,
        message.ingest_max_us,
        message.shelved_to,
        segments,
        gaps,
        list(message.append_time_changes),
        message.deleted_below,
    )


def _producer(message: pb.Producer, topic_ids: Sequence[TopicId]) -> Producer:
    producer = Producer(
        message.producer_id,
        message.epoch,
        message.transactional_id,
        message.transaction_timeout_us,
        message.last_used_us,
        resumed=message.resumed,
        last_end=LastEnd(message.ended_at, message.committed) if message.ended_at else None,
    )
    for item in message.batches:
        epoch = item.epoch or message.epoch
        covered = item.covered or [0] * len(item.rows)
        append_us = item.append_us or [0] * len(item.rows)
        batches = (
            KnownBatch(sequence, rows, base, epoch, numbers, time_us)
            for sequence, rows, base, numbers, time_us in zip(
                item.sequences, item.rows, item.bases, covered, append_us, strict=True
            )
        )
        # The same bound as in a live fold, or the two would differ after the next batch.
        producer.batches[topic_ids[item.topic], item.partition] = deque(batches, BATCHES_REMEMBERED)
    return producer


def _transaction(message: pb.Transaction, topic_ids: Sequence[TopicId]) -> OpenTransaction:
    ranges = {
        (topic_ids[item.topic], item.partition): [(one.base, one.end) for one in item.ranges]
        for item in message.ranges
    }
    return OpenTransaction(
        message.producer_id,
        message.epoch,
        message.transactional_id,
        message.started_us,
        message.deadline_us,
        ranges,
    )


def group_message(group: ConsumerGroup, topics: Mapping[TopicId, int]) -> pb.ConsumerGroup:
    """One consumer group."""
    newest_us = max(max(offsets.times_us) for offsets in group.topics.values())
    return pb.ConsumerGroup(
        group=group.group,
        active_us=group.active_us,
        newest_us=newest_us,
        topics=[
            pb.GroupTopic(
                topic=topics[topic_id],
                partitions=offsets.partitions,
                offsets=offsets.offsets,
                leader_epochs=leader_epochs_stated(offsets.leader_epochs),
                ages_us=_ages_stated(newest_us, offsets.times_us),
                metadata=metadata_stated(offsets.partitions, offsets.metadata),
            )
            for topic_id, offsets in group.topics.items()
        ],
    )


def _ages_stated(newest_us: int, times_us: array[int]) -> list[int]:
    # One commit usually has all partitions, so one number is enough.
    if times_us.count(times_us[0]) == len(times_us):
        return [newest_us - times_us[0]]
    return [newest_us - time_us for time_us in times_us]


def group_state(message: pb.ConsumerGroup, topic_ids: Sequence[TopicId]) -> ConsumerGroup:
    """The inverse of `group_message`."""
    newest_us, topics = message.newest_us, dict[TopicId, TopicOffsets]()
    for item in message.topics:
        times_us = array("q", [newest_us - age_us for age_us in item.ages_us])
        if len(times_us) == 1:
            times_us *= len(item.partitions)
        topics[topic_ids[item.topic]] = columns(
            item.partitions, item.offsets, item.leader_epochs, times_us, item.metadata
        )
    return ConsumerGroup(message.group, message.active_us, topics)


def _pending(message: pb.PendingOffsets, topic_ids: Sequence[TopicId]) -> PendingOffsets:
    offsets = group_state(message.offsets, topic_ids)
    return PendingOffsets(offsets.group, message.producer_id, message.log_index, offsets.topics)


def source_message(source: SourceState) -> pb.Source:
    """One source, with the names of its finished items prefix-compressed."""
    begun = [
        pb.BegunItem(item=item, end=one.end, count=one.count, identity=one.identity)
        for item, one in sorted(source.begun.items())
    ]
    # Sorted, so that neighbours share long prefixes, and the bytes do not depend on the order in memory.
    items = sorted(source.finished)
    # Without this compression, folders with many files would make every checkpoint large.
    shared = [_shared(one, other) for one, other in zip(["", *items], items, strict=False)]
    finished = [source.finished[item] for item in items]
    return pb.Source(
        name=source.name,
        forgotten_below=source.forgotten_below,
        begun=begun,
        shared=shared,
        rests=[item[count:] for item, count in zip(items, shared, strict=True)],
        # One field for all marks: a repeated field would add two bytes to each.
        marks=b"".join(one.mark for one in finished),
        log_indexes=[one.log_index for one in finished],
    )


def source_state(message: pb.Source) -> SourceState:
    """The inverse of `source_message`."""
    state = SourceState(message.name, message.forgotten_below)
    for begun in message.begun:
        state.begun[begun.item] = Begun(begun.end, begun.count, begun.identity)
    # Each name is a prefix of the one before it and a rest.
    item, marks = "", message.marks
    for place, (shared, rest, log_index) in enumerate(
        zip(message.shared, message.rests, message.log_indexes, strict=True)
    ):
        item = item[:shared] + rest
        state.finished[item] = Finished(marks[MARK_BYTES * place : MARK_BYTES * (place + 1)], log_index)
    return state


def _shared(one: str, other: str) -> int:
    """Length of the common prefix."""
    # Binary search with slices: comparing character by character in Python is slower.
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


# --- objects


class CheckpointStore(Checkpoints[Checkpoint]):
    """The checkpoints of the intake log in an object store. Stateless; safe to use from several threads."""

    def __init__(self, objects: ObjectStore) -> None:
        # The id of the entry before a checkpoint shows that the checkpoint belongs to this log.
        super().__init__(objects, "intake", FORMAT, decode, lambda index, data: parse_entry(index, data).id)

    def newest_history(self, log: Log) -> tuple[HistoryRef, ...]:
        """The history files of the newest checkpoint."""
        newest = self.start(log)
        return () if newest is None else newest.history


def superseded(objects: ObjectStore) -> list[str]:
    """Keys of the checkpoints older than the last two, and of history files that neither of those names;
    ascending.

    Empty if there are fewer than two. Objects newer than the newest checkpoint may belong to an unfinished
    one and are left out. A process that slept may still use an older list, so delete the keys only after a
    delay.
    """
    store = CheckpointStore(objects)
    # The older of the last two is the fallback for a damaged newest one, so both keep their objects.
    kept = store.last()
    if len(kept) < KEPT:
        return []
    named = {history_key(ref.start, ref.end) for checkpoint in kept for ref in checkpoint.history}
    if any(objects.info(key) is None for key in sorted(named)):
        return []  # the newer history is incomplete, so the older one may still be required
    keys = store.older_than(kept[-1].index)
    # A listing, because a crash may have left history files that no checkpoint names.
    for info in objects.list(HISTORY_PREFIX):
        span = parse_history_key(info.key)
        if span is not None and span[1] <= kept[0].index and info.key not in named:
            keys.append(info.key)
    return sorted(keys)

"""A checkpoint of the ledger: the state of its fold before one log entry, as bytes, and its storage.

Frozen format 1: the magic, the SHA-256 of all following bytes, a `LedgerState` message. A fold that continues
from a checkpoint equals the fold from the start, so every field of the fold must be stored here. The size
depends on the partitions and the work in progress, not on the number of archives.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from archiver.ledger.archives import ArchiveFile, OldArchive, Replaced, Rewrite
from archiver.ledger.entries import has_avro, has_json
from archiver.ledger.fold import LedgerFold
from archiver.ledger.views import (
    CondemnedObject,
    KilledFile,
    PendingFile,
    RoundView,
    TopicLedger,
    Totals,
    WrittenEvent,
)
from archiver.log.checkpoints import KEPT, Checkpoints, seal, unseal
from archiver.log.store import Log
from archiver.objects.store import ObjectStore
from archiver.proto import control_log_pb2
from archiver.proto import ledger_state_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt
from archiver.runtime.ids import TopicId

FORMATS = (1, 2, 3, 4)
"""Message formats that this version reads; it writes the oldest that suffices."""


# --- Fold to message, and back


def state_of(fold: LedgerFold) -> pb.LedgerState:
    """The state of the fold."""
    # Sorted, because equal states must give equal bytes: checkpoints are compared as stored.
    texts = sorted(fold.texts)
    places = {fold.texts[digest]: place for place, digest in enumerate(texts)}
    # Many pending files share the event of their entry, so each event is stored once.
    events = {
        item.event.index: item.event
        for topic in fold.topics.values()
        for item in topic.pending
        if item.event is not None
    }
    event_places = {index: place for place, index in enumerate(sorted(events))}
    return pb.LedgerState(
        format=_format_of(fold),
        next_index=fold.next_index,
        last_id=fold.last_id,
        epoch=fold.epoch,
        owner=fold.owner,
        applied=fold.applied,
        void=fold.void,
        refused=fold.refused,
        texts=[fold.texts[digest] for digest in texts],
        events=[
            pb.Event(index=index, text=places[event.text], datum=event.datum, files=event.files)
            for index, event in sorted(events.items())
        ],
        rounds=[_round_message(item) for item in fold.rounds],
        topics=[_topic_message(topic, event_places) for topic in fold.topics.values()],
        condemned=[
            pb.Condemned(
                key=key,
                index=one.index,
                time_us=one.time_us,
                why=one.why,
                sequence_number=one.sequence_number,
            )
            for key, one in fold.condemned.items()
        ],
    )


def _format_of(fold: LedgerFold) -> int:
    """The oldest message format that can hold the state."""
    schemas = [one for topic in fold.topics.values() for one in topic.schemas.values()]
    # A reader of an older format would find a Protobuf message without a descriptor.
    if any(map(has_json, schemas)):
        return 4
    if any(map(has_avro, schemas)):
        return 3
    rewrites = [topic.rewrites for topic in fold.topics.values()]
    open_ones = [
        item
        for one in rewrites
        for item in (*one.under_way.values(), *(item for item, _ in one.abandoned.values()))
    ]
    # A reader of format 1 knows one old archive of a rewrite, and would treat the others as in use.
    return 2 if any(len(item.olds) > 1 for item in open_ones) else 1


def restored(message: pb.LedgerState) -> LedgerFold:
    """A fold that continues from `message`. Raises `Corrupted` if it is inconsistent."""
    try:
        return _restored(message)
    # A place that does not exist, or an id of a wrong length. The seal is intact, so the writer was wrong.
    except (LookupError, ValueError) as error:
        raise Corrupted(
            f"the state of the control log before entry {message.next_index} contradicts itself: {error}"
        ) from error


def _restored(message: pb.LedgerState) -> LedgerFold:
    fold = LedgerFold()
    fold.next_index, fold.last_id = message.next_index, message.last_id
    fold.epoch, fold.owner = message.epoch, message.owner
    fold.applied, fold.void, fold.refused = message.applied, message.void, message.refused
    for text in message.texts:
        fold.keep_text(text)
    events = [
        WrittenEvent(one.index, message.texts[one.text], one.datum, one.files) for one in message.events
    ]
    fold.rounds.extend(_round(one) for one in message.rounds)
    for one in message.topics:
        topic = _topic(one, events)
        fold.topics[topic.topic_id] = topic
    for gone in message.condemned:
        fold.condemned[gone.key] = CondemnedObject(gone.index, gone.time_us, gone.why, gone.sequence_number)
    return fold


# --- Rounds


def _round_message(item: RoundView) -> pb.Round:
    return pb.Round(
        commit_id=item.commit_id,
        epoch=item.epoch,
        index=item.index,
        started_us=item.started_us,
        state=item.state,
        files=item.files,
        rows=item.rows,
        committed=item.committed,
        killed=item.killed,
        settled_us=item.settled_us,
        topics=[bytes.fromhex(topic_id) for topic_id in sorted(item.topics)],
        moved=[
            pb.Round.Moved(
                topic_id=bytes.fromhex(topic_id),
                partitions=[
                    pb.Round.Newest(partition=number, ingest_max_us=time_us)
                    for number, time_us in newest.items()
                ],
            )
            for topic_id, newest in item.moved.items()
        ],
    )


def _round(message: pb.Round) -> RoundView:
    return RoundView(
        commit_id=message.commit_id,
        epoch=message.epoch,
        index=message.index,
        started_us=message.started_us,
        state=message.state,
        files=message.files,
        rows=message.rows,
        committed=message.committed,
        killed=message.killed,
        settled_us=message.settled_us if message.HasField("settled_us") else None,
        topics={TopicId(topic_id.hex()) for topic_id in message.topics},
        moved={
            TopicId(one.topic_id.hex()): {item.partition: item.ingest_max_us for item in one.partitions}
            for one in message.moved
        },
    )


# --- Topics


def _topic_message(topic: TopicLedger, event_places: Mapping[int, int]) -> pb.Topic:
    rewrites, totals = topic.rewrites, topic.totals
    return pb.Topic(
        topic_id=bytes.fromhex(topic.topic_id),
        schemas=[topic.schemas[version] for version in sorted(topic.schemas)],
        table_uuid=_uuid_bytes(topic.table_uuid),
        snapshot_id=topic.snapshot_id,
        sequence_number=topic.sequence_number,
        watermarks=_offsets(topic.watermarks),
        starts=_offsets(topic.starts),
        ages=topic.ages.to_proto(),
        past=topic.past.to_proto(),
        covered=topic.covered.to_proto(),
        passed=topic.passed.to_proto(),
        written_us=topic.written_us,
        written_version=topic.written_version,
        committed_us=topic.committed_us,
        valid_through_us=topic.valid_through_us,
        total_files=totals.files,
        total_rows=totals.rows,
        total_raw_bytes=totals.raw_bytes,
        total_stored_bytes=totals.stored_bytes,
        pending=[_pending_message(item, event_places) for item in topic.pending],
        killed=[
            pb.Killed(archive=item.archive.to_proto(), why=item.why, index=item.index)
            for item in topic.killed.values()
        ],
        under_way=[_rewrite_message(item) for item in rewrites.under_way.values()],
        replaced=[
            pb.Replaced(old_key=key, by=item.by, sequence_number=item.sequence_number)
            for key, item in rewrites.replaced.items()
        ],
        abandoned=[_rewrite_message(item, why) for item, why in rewrites.abandoned.values()],
        epoch_keys=sorted(topic.epoch_keys),
    )


def _topic(message: pb.Topic, events: list[WrittenEvent]) -> TopicLedger:
    topic = TopicLedger(
        TopicId(message.topic_id.hex()),
        schemas={one.version: _copy(one) for one in message.schemas},
        table_uuid=_uuid(message.table_uuid),
        snapshot_id=message.snapshot_id if message.HasField("snapshot_id") else None,
        sequence_number=message.sequence_number,
        watermarks={item.partition: item.offset for item in message.watermarks},
        starts={item.partition: item.offset for item in message.starts},
        written_us=message.written_us,
        written_version=message.written_version,
        committed_us=message.committed_us,
        valid_through_us=message.valid_through_us,
        totals=Totals(
            message.total_files, message.total_rows, message.total_raw_bytes, message.total_stored_bytes
        ),
        epoch_keys=set(message.epoch_keys),
    )
    topic.ages.restore(message.ages)
    topic.past.restore(message.past)
    topic.covered.restore(message.covered)
    topic.passed.restore(message.passed)
    for item in message.pending:
        topic.add_pending(_pending(item, events))
    for gone in message.killed:
        topic.killed[gone.archive.key] = KilledFile(
            ArchiveFile.from_proto(gone.archive), gone.why, gone.index
        )
    for made in message.under_way:
        topic.rewrites.under_way[made.archive.key] = _rewrite(made)
    for old in message.replaced:
        topic.rewrites.replaced[old.old_key] = Replaced(old.by, old.sequence_number)
    for made in message.abandoned:
        topic.rewrites.abandoned[made.archive.key] = (_rewrite(made), made.why)
    return topic


def _pending_message(item: PendingFile, event_places: Mapping[int, int]) -> pb.Pending:
    return pb.Pending(
        archive=item.archive.to_proto(),
        commit_id=item.commit_id,
        table_uuid=_uuid_bytes(item.table_uuid),
        last_sequence_number=item.last_sequence_number,
        index=item.index,
        # An optional field: place 0 is a valid event.
        event=None if item.event is None else event_places[item.event.index],
        position=item.position,
    )


def _pending(message: pb.Pending, events: list[WrittenEvent]) -> PendingFile:
    return PendingFile(
        ArchiveFile.from_proto(message.archive),
        message.commit_id,
        _uuid(message.table_uuid),
        message.last_sequence_number,
        message.index,
        events[message.event] if message.HasField("event") else None,
        message.position,
    )


def _rewrite_message(item: Rewrite, why: str = "") -> pb.Rewrite:
    return pb.Rewrite(
        old_key=item.olds[0].key,
        old_size=item.olds[0].size,
        archive=item.archive.to_proto(),
        table_uuid=item.table_uuid.bytes,
        last_sequence_number=item.last_sequence_number,
        index=item.index,
        why=why,
        more=[control_log_pb2.FilesRewritten.OldFile(key=old.key, size=old.size) for old in item.olds[1:]],
    )


def _rewrite(message: pb.Rewrite) -> Rewrite:
    return Rewrite(
        (
            OldArchive(message.old_key, message.old_size),
            *(OldArchive(more.key, more.size) for more in message.more),
        ),
        ArchiveFile.from_proto(message.archive),
        uuid.UUID(bytes=message.table_uuid),
        message.last_sequence_number,
        message.index,
    )


def _copy(entry: control_log_pb2.SchemaChanged) -> control_log_pb2.SchemaChanged:
    """A copy of the entry."""
    # A part of a message keeps the whole message in memory, here the whole checkpoint.
    return control_log_pb2.SchemaChanged.FromString(entry.SerializeToString())


def _offsets(offsets: Mapping[int, int]) -> Iterable[control_log_pb2.PartitionOffset]:
    return [
        control_log_pb2.PartitionOffset(partition=number, offset=offset)
        for number, offset in sorted(offsets.items())
    ]


def _uuid_bytes(value: uuid.UUID | None) -> bytes:
    return b"" if value is None else value.bytes


def _uuid(data: bytes) -> uuid.UUID | None:
    return uuid.UUID(bytes=data) if data else None


# --- The stored object


OBJECT_FORMAT = 1
"""The format of the object; part of its key as well."""
MAGIC = b"archiver.ledger1"


@dataclass(frozen=True, slots=True)
class LedgerCheckpoint:
    """The state before the entry at `index`. A user may continue with its fold; the object is then no longer
    a checkpoint.
    """

    fold: LedgerFold

    @property
    def index(self) -> int:
        """The first entry that it does not contain."""
        return self.fold.next_index

    @property
    def last_id(self) -> bytes | None:
        """The id of the last entry that it contains."""
        return self.fold.last_id or None


def encode(fold: LedgerFold) -> bytes:
    """The object of a checkpoint: the current state of the fold."""
    # Deterministic, so that two processes that make the same checkpoint write the same bytes.
    return seal(MAGIC, state_of(fold).SerializeToString(deterministic=True))


def decode(data: bytes, where: str) -> LedgerCheckpoint:
    """The inverse of `encode`. Raises `Corrupted` if a bit is wrong or the state is inconsistent, `Halt` if a
    newer version wrote it.
    """
    try:
        message = pb.LedgerState.FromString(unseal(MAGIC, data, where))
    except DecodeError as error:
        raise Corrupted(f"checkpoint {where} is not the state of the ledger") from error
    if message.format not in FORMATS:
        raise Halt(
            f"checkpoint {where} has the format {message.format}, this version knows up to "
            f"{FORMATS[-1]}; upgrade before reading this log"
        )
    return LedgerCheckpoint(restored(message))


class LedgerCheckpoints(Checkpoints[LedgerCheckpoint]):
    """The checkpoints of the control log in an object store. Stateless; safe for several threads."""

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(
            objects,
            "control",
            OBJECT_FORMAT,
            decode,
            lambda _, data: control_log_pb2.ControlEntry.FromString(data).id,
        )

    def superseded(self, log: Log) -> list[str]:
        """Keys of checkpoints that are older than the last two intact ones, and from which the log is no
        longer readable. Empty if there are not two.
        """
        # While a trim is delayed, a new reader still finds all checkpoints that match the log.
        # The floor never decreases, so a returned key is never needed again.
        floor = log.floor()
        kept = self.last()
        return self.older_than(min(kept[-1].index, floor)) if len(kept) == KEPT else []

"""Converts between control-topic events and ledger entries.

Content that is too large for one entry, or for one event on a broker, is split. Each part is valid by itself,
because a leader may die between any two.

The ledger stores an event as the hash of its Avro schema text, and the datum. `event_bytes` returns exactly
the bytes of the codec. An entry never names a text that is not in the log before it.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from archiver.config.events import EventSettings
from archiver.events import codec
from archiver.events.types import DataFile, Event, PartitionField
from archiver.ledger.archives import ArchiveFile
from archiver.ledger.leader import Body, Leader
from archiver.proto import control_log_pb2 as pb
from archiver.runtime import failpoints
from archiver.runtime.errors import Corrupted, Halt, InvalidInput
from archiver.runtime.ids import TopicId

TEXT_BYTES_MAX = 64 * 1024
"""Limit of a schema text, exclusive: the event's length field has 16 bits."""

EVENTS = EventSettings()
"""Default event settings."""

Written = tuple[ArchiveFile, DataFile | None]
"""An archive and its description for the table; None for a range of gaps."""

Item = TypeVar("Item")


def intern(leader: Leader, text: bytes, what: str) -> bytes:
    """The SHA-256 of `text` in the ledger; appends SCHEMA_TEXT first if it is new.

    `what` names table or event in the error: `Halt` if the text is longer than 64 KiB.
    """
    if len(text) >= TEXT_BYTES_MAX:
        raise Halt(
            f"the event schema of {what} has {len(text)} bytes, more than {TEXT_BYTES_MAX - 1}; "
            "partition the table by fewer fields"
        )
    # The text is most of the bytes of an event and nearly always the same, so it is stored once.
    digest = hashlib.sha256(text).digest()
    # Appended first: a reader must have the text before an entry that names it.
    if digest not in leader.fold.texts:
        failpoints.reach("text.append.before")
        body = pb.SchemaText(sha256=digest, text=text)
        # Checked here, because this error names the setting to raise.
        leader.check_size(body, f"the event schema of {what}")
        leader.append(body)
        failpoints.reach("text.append.after")
    return digest


def event_message(
    leader: Leader,
    event: Event,
    partition_fields: Sequence[PartitionField],
    what: str,
    *,
    table_uuid: bool = EVENTS.table_uuid,
) -> pb.Event:
    """The stored form of `event`; its schema text is in the log when this returns. `table_uuid` is
    `events.table_uuid`.
    """
    try:
        text, datum = codec.split(codec.encode(event, partition_fields, table_uuid=table_uuid))
    except InvalidInput as error:
        raise Halt(f"{what}: its control event cannot be written: {error}") from error
    return pb.Event(text_sha256=intern(leader, text, what), datum=datum)


def event_bytes(texts: Mapping[bytes, bytes], message: pb.Event) -> bytes:
    """The event's bytes on the wire; `texts` are those of the ledger by SHA-256. Raises `Corrupted` if the
    event's text is not among them.
    """
    text = texts.get(message.text_sha256)
    if text is None:
        raise Corrupted(f"the ledger holds no schema text {message.text_sha256.hex()}")
    return codec.join(text, message.datum)


def append_files_written(
    leader: Leader,
    written: Sequence[Written],
    make_event: Callable[[Sequence[DataFile]], Event] | None,
    partition_fields: Sequence[PartitionField],
    *,
    commit_id: bytes,
    topic_id: TopicId,
    table_uuid: uuid.UUID | None,
    last_sequence_number: int,
    what: str,
    events: EventSettings = EVENTS,
) -> list[int]:
    """Append DATA_WRITTEN for the files, in order, as one entry or as many as the limits of entries and
    events require; returns their indexes.

    `make_event` builds the event of a part from its data files; None for a topic without a table. Each entry
    is a separate commit point: if a later one fails, the earlier files are still pending. Raises the errors
    of `Leader.append`; `Halt` if one file alone is too large.
    """

    def message(part: Sequence[Written]) -> pb.FilesWritten:
        body = pb.FilesWritten(
            commit_id=commit_id,
            topic_id=bytes.fromhex(topic_id),
            table_uuid=b"" if table_uuid is None else table_uuid.bytes,
            last_sequence_number=last_sequence_number,
            files=[archive.to_proto() for archive, _ in part],
        )
        if make_event is not None:
            event = make_event([data_file for _, data_file in part if data_file is not None])
            body.event.CopyFrom(
                event_message(leader, event, partition_fields, what, table_uuid=events.table_uuid)
            )
        return body

    if not written:
        return []
    return append_in_parts(
        leader,
        written,
        lambda part, _: message(part),
        lambda item: f"{what}: archive {item[0].key}",
        event_bytes_max=events.bytes_max,
    )


def append_table_committed(leader: Leader, whole: pb.TableCommitted) -> list[int]:
    """Append COMMIT_TO_TABLE as one entry, or as many as `entry_bytes_max` requires; returns their indexes.

    A successor that finds only some of the entries resolves the rest from the table (rule T1). Raises the
    errors of `Leader.append`.
    """
    ledger = leader.fold.topic(TopicId(whole.topic_id.hex()))
    # A topic may have thousands of partitions. The fold keeps those that an entry does not name (rule T4).
    moved = [item for item in whole.watermarks if item.offset != ledger.watermark(item.partition)]
    # Watermarks come before keys: a committed file stops being pending only when the watermark is beyond it.
    # So no plan can start below the table's contents after any of the entries (rule P1).
    items: list[pb.PartitionOffset | str | pb.TableCommitted.Killed] = [
        *moved,
        *whole.committed,
        *whole.killed,
    ]
    # Only the last part has the sequence number and the event. Files without an entry are still pending.
    bare = pb.TableCommitted()
    bare.CopyFrom(whole)
    for name in ("watermarks", "committed", "killed"):
        bare.ClearField(name)

    def message(
        part: Sequence[pb.PartitionOffset | str | pb.TableCommitted.Killed], last: bool
    ) -> pb.TableCommitted:
        body = pb.TableCommitted(
            commit_id=whole.commit_id, topic_id=whole.topic_id, table_uuid=whole.table_uuid, more=True
        )
        if last:
            body.CopyFrom(bare)
        body.watermarks.extend(item for item in part if isinstance(item, pb.PartitionOffset))
        body.committed.extend(item for item in part if isinstance(item, str))
        body.killed.extend(item for item in part if isinstance(item, pb.TableCommitted.Killed))
        return body

    return append_in_parts(leader, items, message, lambda item: f"the outcome of {item}")


def append_in_parts(
    leader: Leader,
    items: Sequence[Item],
    message: Callable[[Sequence[Item], bool], Body],
    what: Callable[[Item], str],
    *,
    event_bytes_max: int = EVENTS.bytes_max,
) -> list[int]:
    """Append entries with `items`, in order; bisection keeps their number small. Returns their indexes.

    `message` builds the body of a part; its second argument is whether the part is the last. There is one
    entry even without items. Raises the errors of `Leader.append`; `Halt` with `what` of the item if one
    alone is too large for an entry, or its event for a broker.
    """
    indexes: list[int] = []
    # `size` only shrinks: where items proved large, the following parts start small.
    at, size = 0, max(1, len(items))
    while True:
        last = at + size >= len(items)
        body = message(items[at : at + size], last)
        event_size = _event_size(leader.fold.texts, body)
        # Cannot be split further, so the limit must be raised.
        if size == 1 or not items:
            name = what(items[at]) if items else "an entry without items"
            leader.check_size(body, name)
            if event_size > event_bytes_max:
                raise Halt(
                    f"{name} needs a control event of {event_size} bytes, more than events.bytes_max "
                    f"({event_bytes_max}); raise that setting, and the message limit of the broker if "
                    "events are published"
                )
        if leader.entry_size(body) > leader.entry_bytes_max or event_size > event_bytes_max:
            # Halves of what remains: the last part may be shorter than `size`.
            size = max(1, min(size, len(items) - at) // 2)
            continue
        indexes.append(leader.append(body))
        if last:
            return indexes
        at += size


def _event_size(texts: Mapping[bytes, bytes], body: Body) -> int:
    """Bytes of the event in `body` on the wire; 0 without one. Its schema text counts: a reader gets it with
    each event.
    """
    event = getattr(body, "event", None)
    if not isinstance(event, pb.Event) or not event.datum:
        return 0
    return len(event_bytes(texts, event))

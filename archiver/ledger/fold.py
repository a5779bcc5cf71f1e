"""The fold of the control log: from entries to the planned, written, committed and killed archives.

Pure: equal entries give equal states. Enforces four rules. L3: an entry of an older epoch after a newer EPOCH
is void. T2: the next leader inherits pending files. T4: COMMIT_TO_TABLE sets the watermark, also downwards,
and a partition that it does not name keeps its own. P2: a key is used once, and a killed or marked one never
again.

A request of a valid entry that the rules forbid is not an error of the log. Examples are a key used twice, a
file of another epoch, and an archive without a table that does not continue the chain. The file is refused
and counted, and its range is planned again.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import deque
from collections.abc import Container

from archiver.ledger.archives import ArchiveFile, OldArchive, Replaced, Rewrite
from archiver.ledger.entries import counts, parse_entry
from archiver.ledger.views import (
    CondemnedObject,
    KilledFile,
    PendingFile,
    RoundView,
    TopicLedger,
    WrittenEvent,
)
from archiver.objects.paths import parse_archive_key, topic_id_of
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt
from archiver.runtime.ids import TopicId


class LedgerFold:
    """The state of the control log up to `next_index`."""

    def __init__(self, rounds_max: int = 100) -> None:
        self.next_index = 0
        """The entry that must be applied next."""
        self.last_id = b""
        """The id of the entry before it; empty before the first."""
        self.epoch = 0
        """The epoch of the newest leader; 0 before the first."""
        self.owner = ""
        """The newest leader as host:pid."""
        self.applied = 0
        """Entries that were not void."""
        self.void = 0
        """Entries of deposed leaders."""
        self.refused = 0
        """Files that the rules refused."""
        self.texts: dict[bytes, bytes] = {}
        """Interned Avro schema texts by SHA-256."""
        self.rounds: deque[RoundView] = deque(maxlen=rounds_max)
        """The newest rounds, oldest first."""
        self.topics: dict[TopicId, TopicLedger] = {}
        """Topics with entries in the ledger."""
        self.condemned: dict[str, CondemnedObject] = {}
        """Objects marked for deletion whose deletion is not recorded yet, by key in log order. A file with
        such a key is refused."""

    def topic(self, topic_id: TopicId) -> TopicLedger:
        """The topic's state; an empty one if the ledger has no entries of it."""
        # The empty one is not stored: only entries may change the state, or equal logs would give different
        # states.
        return self.topics.get(topic_id) or TopicLedger(topic_id)

    def apply(self, index: int, data: bytes) -> None:
        """Apply the entry at `index`.

        Raises `Halt` for a format or kind that this version does not know, or for an index that is not the
        next; `Corrupted` for bytes that are not an entry. The state is then unchanged.
        """
        if index != self.next_index:
            raise Halt(
                f"control log entry {index} was handed to a fold that needs entry {self.next_index} next"
            )
        # Both may raise, and both come before the first change, so the state stays as it was.
        entry = parse_entry(index, data)
        valid = counts(index, entry, self.epoch)
        if valid and entry.HasField("epoch_started"):
            self._start_epoch(entry)
        elif valid:
            self._apply_body(index, entry)
        # A void entry advances the index too. It has an index like every other.
        self.next_index, self.last_id = index + 1, entry.id
        self.applied += valid
        self.void += not valid

    def become(self, other: LedgerFold) -> None:
        """Continue as another fold, which must no longer be used; holders of this fold see that state."""
        # In place, because many components hold a reference to this fold.
        self.__dict__.update(other.__dict__)

    def keep_text(self, text: bytes) -> None:
        """Intern a schema text under its SHA-256."""
        self.texts[hashlib.sha256(text).digest()] = text

    def _start_epoch(self, entry: pb.ControlEntry) -> None:
        self.epoch, self.owner = entry.epoch, entry.owner
        for round_ in self.rounds:
            # The round of a deposed leader never ends. Its archives stay pending (rule T2), the round does
            # not.
            if round_.state != "settled":
                round_.state = "abandoned"
                round_.moved.clear()
        for topic in self.topics.values():
            # Keys contain the epoch, so those of older epochs cannot be planned again.
            topic.epoch_keys.clear()

    def _apply_body(self, index: int, entry: pb.ControlEntry) -> None:
        match entry.WhichOneof("body"):
            case "schema_changed":
                self._topic(index, entry.schema_changed.topic_id).schemas[entry.schema_changed.version] = (
                    entry.schema_changed
                )
            case "schema_text":
                self._intern(index, entry.schema_text)
            case "round_started":
                self.rounds.append(
                    RoundView(entry.round_started.commit_id, entry.epoch, index, entry.time_us)
                )
            case "files_written":
                refused = self.refused
                self._files_written(index, entry.epoch, entry.files_written)
                topic = self._topic(index, entry.files_written.topic_id)
                topic.written_us = entry.time_us
                topic.wrote(item.schema_version for item in entry.files_written.files)
                if not entry.files_written.HasField("event") and self.refused - refused < len(
                    entry.files_written.files
                ):
                    # Without a table, DATA_WRITTEN is the commit, if at least one file was accepted.
                    topic.committed_us = entry.time_us
            case "round_written":
                # A large DATA_COMPLETE is split. Only its last part ends the stage.
                if not entry.round_written.more:
                    self._set_round(entry.round_written.commit_id, "written", None)
            case "table_committed":
                self._table_committed(index, entry.time_us, entry.table_committed)
            case "round_settled":
                self._set_round(entry.round_settled.commit_id, "settled", entry.time_us)
            case "condemned" | "deleted" | "files_rewritten" | "rewrite_settled" | "start_moved":
                self._of_objects(index, entry)

    def _of_objects(self, index: int, entry: pb.ControlEntry) -> None:
        """Apply entries about committed archives, and about objects that are no longer needed."""
        if entry.HasField("files_rewritten"):
            message = entry.files_rewritten
            topic = self._topic(index, message.topic_id)
            topic.wrote(item.archive.schema_version for item in message.files)
            self.refused += _apply_rewritten(index, entry.epoch, topic, self.condemned, message)
        elif entry.HasField("rewrite_settled"):
            _apply_settled(self._topic(index, entry.rewrite_settled.topic_id), entry.rewrite_settled)
        elif entry.HasField("start_moved"):
            self._start_moved(index, entry.start_moved)
        else:
            self._deletion(index, entry)

    def _start_moved(self, index: int, message: pb.StartMoved) -> None:
        """Rule C1: starts only rise, and never above the archived offsets."""
        topic = self._topic(index, message.topic_id)
        for item in message.starts:
            # A start above the watermark would expire records that are not archived yet.
            start = min(item.offset, topic.watermark(item.partition))
            if start > topic.start(item.partition):
                topic.starts[item.partition] = start
                # Retention only asks for times above the start, so the memory stays bounded.
                topic.ages.forget(item.partition, start)

    def _deletion(self, index: int, entry: pb.ControlEntry) -> None:
        for key in entry.condemned.keys:
            topic = self._owner_of(key)
            sequence_number = 0 if topic is None else topic.sequence_number
            # The first mark counts: the deletion delay runs from there, also if the mark is repeated.
            self.condemned.setdefault(
                key, CondemnedObject(index, entry.time_us, entry.condemned.why, sequence_number)
            )
            self._use_up(key)
        for key in entry.deleted.keys:
            self.condemned.pop(key, None)
            topic = self._owner_of(key)
            if topic is not None:
                topic.forget_object(key)
                self._use_up(key)

    def _owner_of(self, key: str) -> TopicLedger | None:
        """The topic whose table folder contains the object."""
        topic_id = topic_id_of(key)
        return None if topic_id is None else self.topics.get(TopicId(topic_id))

    def _use_up(self, key: str) -> None:
        """Rule P2: a key of this epoch that was marked for deletion is never used again."""
        # Also after the deletion is recorded, when `condemned` no longer has it. Keys of older epochs need
        # no note, because no plan can produce them.
        archive = parse_archive_key(key)
        if archive is not None and archive.epoch == self.epoch and archive.topic_id in self.topics:
            self.topics[TopicId(archive.topic_id)].epoch_keys.add(key)

    def _topic(self, index: int, topic_id: bytes) -> TopicLedger:
        if len(topic_id) != 16:
            raise Corrupted(
                f"control log entry {index}: a topic id has {len(topic_id)} bytes; it must have 16"
            )
        name = TopicId(topic_id.hex())
        return self.topics.setdefault(name, TopicLedger(name))

    def round(self, commit_id: bytes) -> RoundView | None:
        """The round with that commit id, or None if it is not among the newest."""
        return next((item for item in reversed(self.rounds) if item.commit_id == commit_id), None)

    def _set_round(self, commit_id: bytes, state: str, settled_us: int | None) -> None:
        round_ = self.round(commit_id)
        if round_ is not None:
            round_.state, round_.settled_us = state, settled_us
            # Only a round in progress needs its newest ingest times.
            if state == "settled":
                round_.moved.clear()

    def _intern(self, index: int, message: pb.SchemaText) -> None:
        # Later entries name the text by its hash alone, so a wrong one would spoil their events.
        if hashlib.sha256(message.text).digest() != message.sha256:
            raise Corrupted(f"control log entry {index}: the schema text does not match its SHA-256")
        self.keep_text(message.text)

    # DATA_WRITTEN

    def _files_written(self, index: int, epoch: int, message: pb.FilesWritten) -> None:
        archives = [ArchiveFile.from_proto(item) for item in message.files]
        event = self._written_event(index, message, archives)
        topic = self._topic(index, message.topic_id)
        if event is not None and message.table_uuid:
            topic.set_table(_uuid(index, message.table_uuid))
        position = 0
        round_ = self.round(message.commit_id)
        for archive in archives:
            # The event lists data files only, so a range of gaps takes no position.
            mine, position = (-1, position) if archive.gap_only else (position, position + 1)
            if event is None:
                taken = self._archived(index, epoch, topic, archive)
            else:
                # Without a uuid the writer saw no table, and the token proves nothing (rule T3).
                token = topic.table_uuid if message.table_uuid else None
                pending = PendingFile(
                    archive, message.commit_id, token, message.last_sequence_number, index, event, mine
                )
                taken = self._pend(epoch, topic, pending)
            self.refused += not taken
            if not archive.gap_only:
                # Also for a refused file: its times are a property of the intake log, not of the archive.
                topic.ages.add(archive.partition, archive.end, archive.ingest_max_us)
            # The round may be missing: only the newest ones are kept.
            if round_ is not None and taken:
                round_.files += 1
                round_.rows += archive.rows
                round_.topics.add(topic.topic_id)
                moved = round_.moved.setdefault(topic.topic_id, {})
                moved[archive.partition] = max(moved.get(archive.partition, 0), archive.ingest_max_us)

    def _written_event(
        self, index: int, message: pb.FilesWritten, archives: list[ArchiveFile]
    ) -> WrittenEvent | None:
        if not message.HasField("event"):
            return None
        text = self.texts.get(message.event.text_sha256)
        if text is None:
            raise Corrupted(
                f"control log entry {index} uses schema text {message.event.text_sha256.hex()}, which "
                "was never recorded"
            )
        return WrittenEvent(index, text, message.event.datum, sum(not item.gap_only for item in archives))

    def _fresh(self, epoch: int, topic: TopicLedger, archive: ArchiveFile) -> bool:
        """Rule P2: the key is of this epoch, unused and not marked for deletion. Ranges of gaps have no
        key.
        """
        # A key of another epoch could be one that a deposed leader still writes.
        return archive.gap_only or (
            archive.epoch == epoch and not topic.knows(archive.key) and archive.key not in self.condemned
        )

    def _pend(self, epoch: int, topic: TopicLedger, pending: PendingFile) -> bool:
        archive = pending.archive
        if not self._fresh(epoch, topic, archive):
            return False
        topic.add_pending(pending)
        if archive.key:
            topic.epoch_keys.add(archive.key)
        return True

    def _archived(self, index: int, epoch: int, topic: TopicLedger, archive: ArchiveFile) -> bool:
        """Without a table DATA_WRITTEN is the commit: the chain continues exactly at the watermark."""
        if not self._fresh(epoch, topic, archive):
            return False
        if archive.key:
            topic.epoch_keys.add(archive.key)
        if archive.base != topic.watermark(archive.partition):
            if archive.key:
                why = f"starts at {archive.base}, not at the watermark {topic.watermark(archive.partition)}"
                # Killed, not dropped: its object exists, and cleaning must find it.
                topic.killed[archive.key] = KilledFile(archive, why, index)
            return False
        topic.watermarks[archive.partition] = archive.end
        _count(topic, archive)
        return True

    # COMMIT_TO_TABLE

    def _table_committed(self, index: int, time_us: int, message: pb.TableCommitted) -> None:
        topic = self._topic(index, message.topic_id)
        # A record of a rollback alone does not count as progress of the table.
        if message.committed or any(
            item.offset > topic.watermark(item.partition) for item in message.watermarks
        ):
            topic.committed_us = time_us
        if message.table_uuid:
            topic.set_table(_uuid(index, message.table_uuid))
        for key in message.committed:
            # The object may be deleted by now, so readers must not be sent to it.
            if key in self.condemned:
                self.refused += 1
                continue
            archive = _take(topic, key)
            if archive is not None:
                _count(topic, archive)
        for killed in message.killed:
            archive = _take(topic, killed.key)
            if archive is not None:
                topic.killed[killed.key] = KilledFile(archive, killed.why, index)
        for item in message.watermarks:
            if item.offset < topic.watermark(item.partition):
                # Rule T4: after a rollback the offsets above are planned again, and must not count as
                # archived.
                topic.covered.cut(item.partition, item.offset)
                topic.passed.cut(item.partition, item.offset)
            topic.past.moves(item.partition, topic.watermark(item.partition), item.offset)
            topic.watermarks[item.partition] = item.offset
        # Only the last part moves the sequence number. After fewer parts a successor compares with the table
        # (rule T1).
        if not message.more:
            topic.past.moved(message.sequence_number)
            topic.snapshot_id = message.snapshot_id or None
            topic.sequence_number = message.sequence_number
            # 0 means no statement, and the older one still holds.
            topic.valid_through_us = message.valid_through_us or topic.valid_through_us
            _settle_gaps(topic)
        round_ = self.round(message.commit_id)
        if round_ is not None:
            round_.committed += len(message.committed)
            round_.killed += len(message.killed)
            round_.topics.add(topic.topic_id)


def _uuid(index: int, data: bytes) -> uuid.UUID:
    if len(data) != 16:
        raise Corrupted(f"control log entry {index}: a table uuid has {len(data)} bytes; it must have 16")
    return uuid.UUID(bytes=data)


def _take(topic: TopicLedger, key: str) -> ArchiveFile | None:
    """Remove a file from the pending or the killed files, and return it."""
    pending = topic.pending_file(key)
    if pending is not None:
        topic.drop_pending(pending)
        return pending.archive
    # A killed file that the table contains anyway counts as committed: a late request was applied.
    killed = topic.killed.pop(key, None)
    return None if killed is None else killed.archive


def _count(topic: TopicLedger, archive: ArchiveFile) -> None:
    topic.covered.add(archive.partition, archive.base, archive.end)
    if archive.gap_only:
        topic.passed.add(archive.partition, archive.base, archive.end)
    topic.totals.add(archive)


def _settle_gaps(topic: TopicLedger) -> None:
    """Resolve ranges of gaps. They have no key, so no entry can name them."""
    at = dict(topic.watermarks)
    # A copy, so the loop may drop from the original. `at` follows the chain of pending archives.
    for pending in topic.pending:
        archive = pending.archive
        here = at.get(archive.partition, 0)
        if not archive.gap_only:
            at[archive.partition] = max(here, archive.end)
        elif archive.end <= here:
            _count(topic, archive)
            topic.drop_pending(pending)
        # It continues the chain, and stays pending until the watermark passes it.
        elif archive.base == here:
            at[archive.partition] = archive.end
        else:
            topic.drop_pending(pending)


def _apply_rewritten(
    index: int, epoch: int, topic: TopicLedger, condemned: Container[str], message: pb.FilesRewritten
) -> int:
    """Apply FILES_REWRITTEN. Returns the number of files that rule P2 refuses."""
    if len(message.table_uuid) != 16:
        raise Corrupted(
            f"control log entry {index}: a table uuid has {len(message.table_uuid)} bytes; it must have 16"
        )
    refused = 0
    for item in message.files:
        archive = ArchiveFile.from_proto(item.archive)
        olds = (
            OldArchive(item.old_key, item.old_size),
            *(OldArchive(more.key, more.size) for more in item.more),
        )
        # An old archive that is marked may be deleted before the table has the new one.
        doomed = archive.key in condemned or any(old.key in condemned for old in olds)
        if not archive.key or archive.epoch != epoch or topic.knows(archive.key) or doomed:
            refused += 1
            continue
        table_uuid = uuid.UUID(bytes=message.table_uuid)
        rewrite = Rewrite(olds, archive, table_uuid, message.last_sequence_number, index)
        topic.rewrites.under_way[archive.key] = rewrite
        # From now on, no other plan of this epoch may use the key (rule P2).
        topic.epoch_keys.add(archive.key)
    return refused


def _apply_settled(topic: TopicLedger, message: pb.RewriteSettled) -> None:
    """Apply REWRITE_SETTLED. Unknown keys are ignored."""
    rewrites = topic.rewrites
    for key in message.replaced:
        # An abandoned rewrite may be in the table anyway: a late request was applied.
        rewrite = rewrites.under_way.pop(key, None) or rewrites.abandoned.pop(key, (None, ""))[0]
        if rewrite is not None:
            rewrites.replaced.update(
                (old.key, Replaced(key, message.sequence_number)) for old in rewrite.olds
            )
            topic.totals.files = max(0, topic.totals.files + 1 - len(rewrite.olds))
            topic.totals.stored_bytes += rewrite.archive.size - sum(old.size for old in rewrite.olds)
    for item in message.abandoned:
        rewrite = rewrites.under_way.pop(item.key, None)
        if rewrite is not None:
            rewrites.abandoned[item.key] = (rewrite, item.why)

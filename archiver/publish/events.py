"""Appends the control-topic events of a round to the ledger.

Owns the order of the five events of a round and what each states. Decides nothing: it turns values into
entries. Each method returns when its entries are durable (protocol rules L1 to L3 are the leader's).
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from archiver.catalog.commit import CommitOutcome
from archiver.catalog.table_layout import PARTITION_NAMES, PARTITION_TYPES
from archiver.catalog.tables import shown
from archiver.config.events import EventSettings
from archiver.events.types import (
    CommitComplete,
    CommitToTable,
    DataComplete,
    DataFile,
    DataWritten,
    Event,
    PartitionField,
    Payload,
    StartCommit,
    TableReference,
    TopicPartitionOffset,
)
from archiver.ledger.bridge import (
    EVENTS,
    Written,
    append_files_written,
    append_in_parts,
    append_table_committed,
    event_message,
)
from archiver.ledger.leader import Leader
from archiver.proto import control_log_pb2 as pb
from archiver.refine.prepare_topic import TopicWork
from archiver.runtime import failpoints
from archiver.runtime.clock import Clock
from archiver.runtime.ids import IdSource, new_uuid


class RoundEvents:
    """Appends the entries of rounds."""

    def __init__(
        self, cluster: str, leader: Leader, clock: Clock, ids: IdSource, events: EventSettings = EVENTS
    ) -> None:
        self._group_id = f"archiver-{cluster}"
        self._leader = leader
        self._clock = clock
        self._ids = ids
        self._events = events

    def round_started(self) -> bytes:
        """START_COMMIT; returns the round's commit id (16 bytes)."""
        failpoints.reach("round.start.before")
        commit_id = new_uuid(self._ids)
        self._leader.append(
            pb.RoundStarted(commit_id=commit_id.bytes, event=self._message(StartCommit(commit_id)))
        )
        failpoints.reach("round.start.after")
        return commit_id.bytes

    def files_written(self, commit_id: bytes, work: TopicWork, files: Sequence[Written]) -> None:
        """DATA_WRITTEN: from here on the archives exist, and a later leader inherits them (rules T2, T3)."""
        failpoints.reach("written.append.before")
        table = work.table
        append_files_written(
            self._leader,
            files,
            None if table is None else lambda data_files: self._written_event(commit_id, work, data_files),
            (
                PartitionField(
                    work.spec.field_id, PARTITION_NAMES[work.granularity], PARTITION_TYPES[work.granularity]
                ),
            ),
            commit_id=commit_id,
            topic_id=work.state.topic_id,
            table_uuid=None if table is None else table.uuid,
            # Rule T3: with this a later leader can prove that a file was never in the table.
            last_sequence_number=self._leader.fold.topic(work.state.topic_id).sequence_number,
            what=work.name if table is None else shown(table.identifier),
            events=self._events,
        )
        failpoints.reach("written.append.after")

    def _written_event(self, commit_id: bytes, work: TopicWork, data_files: Sequence[DataFile]) -> Event:
        return self._event(DataWritten(_uuid(commit_id), _reference(work), tuple(data_files)))

    def round_written(self, commit_id: bytes, works: Sequence[TopicWork]) -> None:
        """DATA_COMPLETE: the offset and ingest time reached, for each partition that has new or pending
        archives of the round.

        Split into several complete events where one would be too large for an entry.
        """
        failpoints.reach("complete.append.before")
        reached = [position for work in works for position in self._reached(commit_id, work)]
        append_in_parts(
            self._leader,
            reached,
            lambda part, last: pb.RoundWritten(
                commit_id=commit_id,
                event=self._message(DataComplete(_uuid(commit_id), tuple(part))),
                more=not last,
            ),
            lambda position: f"what partition {position.partition} of topic {position.topic} has reached",
            event_bytes_max=self._events.bytes_max,
        )
        failpoints.reach("complete.append.after")

    def _reached(self, commit_id: bytes, work: TopicWork) -> list[TopicPartitionOffset]:
        fold = self._leader.fold
        round_, ledger = fold.round(commit_id), fold.topic(work.state.topic_id)
        newest = {} if round_ is None else dict(round_.moved.get(work.state.topic_id, {}))
        # Archives of earlier rounds count as well, because this round commits them.
        for pending in ledger.pending:
            partition = pending.archive.partition
            newest[partition] = max(newest.get(partition, 0), pending.archive.ingest_max_us)
        return [
            # A range of gaps has no time.
            TopicPartitionOffset(work.name, partition, ledger.planned_to(partition), newest_us or None)
            for partition, newest_us in sorted(newest.items())
        ]

    def table_committed(self, commit_id: bytes | None, work: TopicWork, outcome: CommitOutcome) -> None:
        """COMMIT_TO_TABLE. Without a commit id it only records what a new leader found in the table (rules
        T1, T4).

        Split into several entries where one would be too large; the event is in the last.
        """
        failpoints.reach("committed.append.before")
        event = None
        if commit_id is not None:
            payload = CommitToTable(
                _uuid(commit_id), _reference(work), outcome.snapshot_id, outcome.valid_through_us or None
            )
            event = self._message(
                payload, shown(work.table.identifier) if work.table is not None else work.name
            )
        # An id of zeros stands for no round.
        append_table_committed(
            self._leader, outcome.to_proto(_uuid(commit_id or bytes(16)), work.state.topic_id, event)
        )
        failpoints.reach("committed.append.after")

    def round_settled(self, commit_id: bytes, works: Sequence[TopicWork]) -> None:
        """COMMIT_COMPLETE: the round is over. States the time below which all of its tables are complete, if
        it is known.
        """
        failpoints.reach("settled.append.before")
        known = [
            self._leader.fold.topic(work.state.topic_id).valid_through_us
            for work in works
            if work.table is not None
        ]
        # One table without a known time leaves that of the round unknown.
        through_us = min(known) if known and all(known) else None
        self._leader.append(
            pb.RoundSettled(
                commit_id=commit_id, event=self._message(CommitComplete(_uuid(commit_id), through_us))
            )
        )
        failpoints.reach("settled.append.after")

    def _event(self, payload: Payload) -> Event:
        return Event(new_uuid(self._ids), self._clock.now_us(), self._group_id, payload)

    def _message(self, payload: Payload, what: str = "a round") -> pb.Event:
        return event_message(self._leader, self._event(payload), (), what, table_uuid=self._events.table_uuid)


def _uuid(commit_id: bytes) -> uuid.UUID:
    return uuid.UUID(bytes=commit_id)


def _reference(work: TopicWork) -> TableReference:
    assert work.table is not None, "only topics with a table have a table reference"
    *namespace, name = work.table.identifier
    return TableReference(work.table.catalog, tuple(namespace), name, work.table.uuid)

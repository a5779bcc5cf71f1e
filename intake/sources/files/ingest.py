"""Ingest one file in pieces. Each piece and the position after it are in the same log entry.

The log's state of the file is read before the file is opened. The file's identity is compared before the
first piece is sent. Before each piece the file is checked for changes. An entry of unknown outcome ends the
work, and the next run continues from the log. This module therefore keeps no state that could be wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from archiver.runtime import failpoints
from archiver.runtime.errors import OutcomeUnknown, RetryLater
from intake.inputs import InputPosition
from intake.log.fold import TopicState
from intake.log.sequencer import Sequencer
from intake.log.source_positions import Begun, Finished, Move
from intake.producers import Refusal
from intake.records import raw_bytes_of, weight_of
from intake.sources.files.opened_file import OpenedFile
from intake.sources.files.pieces import Cutting, Piece, PieceReader
from intake.sources.files.seen_folders import SeenFolders
from intake.write.accept_clock import AcceptClock
from intake.write.acknowledgements import PendingBatch
from intake.write.encode import record_columns
from intake.write.flush import FlushWriter
from intake.write.queue import ROW_COST_BYTES, BatchItem
from intake.write.validation import Admitted, Judge, admit_all

CHANGED = (
    "the file has changed since a part of it was ingested, so it is not read on: everything before "
    "{where} is ingested; put the rest, and "
    "nothing but the rest, into a file of another name and remove this one"
)
CHANGING = (
    "the file changed while it was read, and nothing of it is ingested: it is retried when it no longer "
    "changes"
)


class Failed(Exception):
    """The file cannot be ingested further without an operator. The text has the reason and the action."""


@dataclass(frozen=True, slots=True)
class IngestContext:
    """The components that ingesting a file needs."""

    sequencer: Sequencer
    publisher: FlushWriter
    accept_clock: AcceptClock
    stopping: threading.Event
    seen_folders: SeenFolders
    judge: Judge | None = None
    """Decides about records that do not decode; without it, records are not decoded."""


def ingest_file(
    path: str,
    source: str,
    topic: TopicState,
    cutting: Cutting,
    context: IngestContext,
    took: Callable[[int, int], None],
) -> bool:
    """Ingest the rest of the file. True if this call finished it.

    False if another process finished it or is working on it, or if this process stops. `took` is called with
    the number of ingested records and their raw bytes.

    Raises `Failed`; errors of log and store pass through. After `OutcomeUnknown` call the sequencer's
    `settle` first.
    """
    seen = context.sequencer.fold.next_index
    known = context.sequencer.fold.positions.get(source, path)
    if isinstance(known, Finished):
        return False
    with OpenedFile(path) as file:
        _check_identity(file, known, cutting)
        context.seen_folders.saw(path)
        if known is None:
            known = Begun(0, 0, file.identity)
        reader = PieceReader(file.stream, cutting, InputPosition(known.end, known.count))
        while not context.stopping.is_set():
            seen = _seen_again(file, context.sequencer, seen)
            piece = _next_piece(reader, file, cutting)
            admitted = _admitted(piece, topic, cutting, context)
            if piece.records or piece.done:
                move = Move(source, path, piece.base, piece.end, piece.done, file.identity, seen, piece.count)
                if _send(admitted, move, context) is not None:
                    return False  # another process was faster; the next call reads the log again
                took(len(piece.records), sum(piece.raw_bytes))
            if piece.broken is not None:
                raise Failed(_broken(piece, cutting))
            if piece.done:
                return True
    return False


def _check_identity(file: OpenedFile, known: Begun | None, cutting: Cutting) -> None:
    if known is not None and known.identity != file.identity:
        raise Failed(CHANGED.format(where=_where(known.end, cutting)))


def _seen_again(file: OpenedFile, sequencer: Sequencer, seen: int) -> int:
    """The log index known when the file last had its name. The log is read before the name is checked."""
    now = sequencer.fold.next_index
    return now if file.has_its_name() else seen


def _next_piece(reader: PieceReader, file: OpenedFile, cutting: Cutting) -> Piece:
    """The next piece. Raises `Failed` if the file changed, because the piece may then mix two states."""
    try:
        piece = reader.next()
        unchanged = file.is_unchanged()
    except OSError as error:
        raise RetryLater(f"{file.path} cannot be read on: {error.strerror}") from error
    if not unchanged:
        raise Failed(CHANGED.format(where=_where(piece.base, cutting)) if piece.base else CHANGING)
    return piece


def _admitted(piece: Piece, topic: TopicState, cutting: Cutting, context: IngestContext) -> list[Admitted]:
    """The validated records of the piece. The piece is cut before a refused record, which later ones must not
    overtake.
    """
    given = [
        Admitted(topic.name, partition, record)
        for record, partition in zip(piece.records, piece.partitions, strict=True)
    ]
    if context.judge is None:
        return given

    def partitions_of(name: str) -> int:
        return _topic(name, context).partitions

    admitted = admit_all(context.judge, given, 0.0, partitions_of)
    for row, one in enumerate(admitted):
        if one.refused is not None:
            piece.cut(row, f"{_record(piece.ends[row + 1][1], cutting)}: {one.refused}")
            return admitted[:row]
    return admitted


def _topic(name: str, context: IngestContext) -> TopicState:
    state = context.sequencer.fold.topics_by_name.get(name)
    if state is None:
        raise RetryLater(
            f"there is a record for topic {name}, which does not exist; create it, and the file is retried"
        )
    return state


def _send(admitted: Sequence[Admitted], move: Move, context: IngestContext) -> Refusal | None:
    """Append the records of a piece. Returns the refusal, or None on success."""
    if admitted:
        accept_us = context.accept_clock.accept_us(context.sequencer.fold.newest_us)
        names = dict.fromkeys(one.topic for one in admitted)
        items = [
            _item([one for one in admitted if one.topic == name], _topic(name, context), accept_us)
            for name in names
        ]
        return context.publisher.publish_moving(items, [move])
    failpoints.reach("source.finish.before")
    refusal = context.sequencer.append_moves([move])
    try:
        failpoints.reach("source.finish.after")
    except RetryLater as error:
        raise OutcomeUnknown(f"{move.item} is finished in the log, and then: {error}") from error
    return refusal


def _item(admitted: Sequence[Admitted], topic: TopicState, accept_us: int) -> BatchItem:
    partitions = np.array([one.partition for one in admitted], np.int32)
    raw_bytes = [raw_bytes_of(one.record) for one in admitted]
    cost = sum(
        weight_of(one.record, raw) + ROW_COST_BYTES for one, raw in zip(admitted, raw_bytes, strict=True)
    )
    return BatchItem(
        topic=topic,
        columns=record_columns([one.record for one in admitted]),
        row_bytes=np.array(raw_bytes, np.int64),
        partitions=partitions,
        raw_bytes=sum(raw_bytes),
        cost=cost,
        accept_us=accept_us,
        first_row=0,
        pending=PendingBatch(topic.name, partitions, threading.Condition()),
    )


def _record(count: int, cutting: Cutting) -> str:
    """The name of a record in messages, given the number of lines, rows or records up to its end."""
    return (
        f"line {count}"
        if cutting.form == "jsonl"
        else f"{'row' if cutting.form == 'parquet' else 'record'} {count - 1}"
    )


def _broken(piece: Piece, cutting: Cutting) -> str:
    if piece.end == 0:
        return f"{piece.broken}. Nothing of the file is ingested: fix it, and it is retried"
    return (
        f"{piece.broken}. Everything before {_where(piece.end, cutting)} is ingested; put the fixed rest "
        "into a file of another name and "
        "remove this one: a partly ingested file must not change"
    )


def _where(position: int, cutting: Cutting) -> str:
    return f"row {position}" if cutting.form == "parquet" else f"byte {position}"

"""Takes one file in: piece by piece, each with the position behind it in the same entry.

Owns the order of steps. What the log knows of the file is read before the file is looked at; the identity of
the file is compared before the first piece is sent, and that it did not change meanwhile before each piece;
an entry of unknown outcome ends the work, and whoever comes next asks the log where to go on. So nothing is
remembered here that could be wrong.
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
from intake.sources.files.seen_folders import Homes
from intake.write.accept_clock import AcceptClock
from intake.write.acknowledgements import PendingBatch
from intake.write.encode import record_columns
from intake.write.flush import FlushWriter
from intake.write.queue import ROW_COST_BYTES, BatchItem
from intake.write.validation import Admitted, Judge, admit_all

CHANGED = (
    "the file has changed since a part of it was taken in, so it is not read on: what stood before "
    "{where} is in; put the rest, and "
    "nothing but the rest, into a file of another name and remove this one"
)
CHANGING = (
    "the file changed while it was read, and nothing of it is taken in: it is tried again when it is at rest"
)


class Failed(Exception):
    """The file cannot be taken in (any further) until somebody acts; says why and what to do."""


@dataclass(frozen=True, slots=True)
class Ways:
    """What taking a file in needs of the process."""

    sequencer: Sequencer
    publisher: FlushWriter
    accept_clock: AcceptClock
    stopping: threading.Event
    homes: Homes
    judge: Judge | None = None
    """Decides about records that do not decode; without one, nothing is looked at."""


def take_in(
    path: str, source: str, topic: TopicState, cutting: Cutting, ways: Ways, took: Callable[[int, int], None]
) -> bool:
    """Take in what is missing of the file; whether this call finished it. False: somebody else did, or has it
    in work, or this process is to stop.

    `took` is told of records and their raw bytes that are in.

    Raises `Failed`, and what log and store raise; after `OutcomeUnknown` settle the sequencer first.
    """
    seen = ways.sequencer.fold.next_index
    known = ways.sequencer.fold.positions.get(source, path)
    if isinstance(known, Finished):
        return False
    with OpenedFile(path) as file:
        _check_identity(file, known, cutting)
        ways.homes.saw(path)
        if known is None:
            known = Begun(0, 0, file.identity)
        reader = PieceReader(file.stream, cutting, InputPosition(known.end, known.count))
        while not ways.stopping.is_set():
            seen = _seen_again(file, ways.sequencer, seen)
            piece = _next_piece(reader, file, cutting)
            admitted = _admitted(piece, topic, cutting, ways)
            if piece.records or piece.done:
                move = Move(source, path, piece.base, piece.end, piece.done, file.identity, seen, piece.count)
                if _send(admitted, move, ways) is not None:
                    return False  # what the log says now is looked at the next time
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
    """How many entries were known when the file last had its name: the name is looked at after the log."""
    now = sequencer.fold.next_index
    return now if file.has_its_name() else seen


def _next_piece(reader: PieceReader, file: OpenedFile, cutting: Cutting) -> Piece:
    """Raises `Failed` if the file changed, and what was read may be of neither file."""
    try:
        piece = reader.next()
        unchanged = file.is_unchanged()
    except OSError as error:
        raise RetryLater(f"{file.path} cannot be read on: {error.strerror}") from error
    if not unchanged:
        raise Failed(CHANGED.format(where=_where(piece.base, cutting)) if piece.base else CHANGING)
    return piece


def _admitted(piece: Piece, topic: TopicState, cutting: Cutting, ways: Ways) -> list[Admitted]:
    """The records of the piece as judged. It is cut before one that is refused: what stands behind that must
    not overtake it.
    """
    given = [
        Admitted(topic.name, partition, record)
        for record, partition in zip(piece.records, piece.partitions, strict=True)
    ]
    if ways.judge is None:
        return given

    def partitions_of(name: str) -> int:
        return _topic(name, ways).partitions

    admitted = admit_all(ways.judge, given, 0.0, partitions_of)
    for row, one in enumerate(admitted):
        if one.refused is not None:
            piece.cut(row, f"{_record(piece.ends[row + 1][1], cutting)}: {one.refused}")
            return admitted[:row]
    return admitted


def _topic(name: str, ways: Ways) -> TopicState:
    state = ways.sequencer.fold.topics_by_name.get(name)
    if state is None:
        raise RetryLater(
            f"there is a record for topic {name}, which is not there; create it, and the file is tried again"
        )
    return state


def _send(admitted: Sequence[Admitted], move: Move, ways: Ways) -> Refusal | None:
    """Publish the records of a piece; why it does not count, None if it does."""
    if admitted:
        accept_us = ways.accept_clock.accept_us(ways.sequencer.fold.newest_us)
        names = dict.fromkeys(one.topic for one in admitted)
        items = [
            _item([one for one in admitted if one.topic == name], _topic(name, ways), accept_us)
            for name in names
        ]
        return ways.publisher.publish_moving(items, [move])
    failpoints.reach("source.finish.before")
    refusal = ways.sequencer.append_moves([move])
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
    """What the reader calls a record, given the lines, rows or records up to its end."""
    return (
        f"line {count}"
        if cutting.form == "jsonl"
        else f"{'row' if cutting.form == 'parquet' else 'record'} {count - 1}"
    )


def _broken(piece: Piece, cutting: Cutting) -> str:
    if piece.end == 0:
        return f"{piece.broken}. Nothing of the file is taken in: mend it, and it is tried again"
    return (
        f"{piece.broken}. What stands before {_where(piece.end, cutting)} is in; put the rest, mended, "
        "into a file of another name and "
        "remove this one: a file that was begun must not change"
    )


def _where(position: int, cutting: Cutting) -> str:
    return f"row {position}" if cutting.form == "parquet" else f"byte {position}"

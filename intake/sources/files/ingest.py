"""Ingest one file in pieces: open it, cut its records into pieces, and send each with its position.

Each piece and the position after it are in the same log entry. The log's state of the file is read before the
file is opened. The file's identity is compared before the first piece is sent. Before each piece the file is
checked for changes. An entry of unknown outcome ends the work, and the next run continues from the log. This
module therefore keeps no state that could be wrong.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import numpy as np

from archiver.runtime import failpoints
from archiver.runtime.errors import InvalidInput, NotFound, OutcomeUnknown, RecordRefused, RetryLater
from intake.inputs import InputFormat, InputPosition, read_inputs
from intake.log.fold import TopicState
from intake.log.sequencer import Sequencer
from intake.log.source_positions import MARK_BYTES, Begun, Finished, Move
from intake.producers import Refusal
from intake.record_json import Input
from intake.records import Record, raw_bytes_of, validate, weight_of
from intake.write.accept_clock import AcceptClock
from intake.write.acknowledgements import PendingBatch
from intake.write.encode import record_columns
from intake.write.flush import FlushWriter
from intake.write.queue import ROW_COST_BYTES, BatchItem
from intake.write.validation import Admitted, Judge, admit_all

# --- folders, to prove that a file was removed

FOLDERS_MAX = 10_000
"""Folders to remember; the one seen longest ago is dropped first."""

_Identity = tuple[int, int, int]


class SeenFolders:
    """The seen folders of one process. One thread uses it."""

    def __init__(self) -> None:
        self._known: dict[str, _Identity] = {}

    def saw(self, path: str) -> None:
        """Remember the folder of a seen file, and the folders above it on the same file system."""
        for folder in _above(path):
            try:
                with _opened(folder) as descriptor:
                    found = os.fstat(descriptor)
                    # Relative to the open folder, so a concurrent mount or unmount cannot mix two folders.
                    file = os.stat(os.path.relpath(path, folder), dir_fd=descriptor, follow_symlinks=False)
                    identity = _folder_identity(descriptor, found)
            except OSError:
                return
            if file.st_dev != found.st_dev:
                # A mount point is in between, so a missing file would prove nothing.
                return
            # Moved to the end, so that the folders seen longest ago are dropped first.
            self._known.pop(folder, None)
            self._known[folder] = identity
        while len(self._known) > FOLDERS_MAX:
            del self._known[next(iter(self._known))]

    def prove_gone(self, path: str) -> bool:
        """Whether the file was certainly removed; False if it exists or this is unknown."""
        for folder in _above(path):
            try:
                with _opened(folder) as descriptor:
                    if _is_there(os.path.relpath(path, folder), descriptor):
                        return False
                    with os.scandir(descriptor) as entries:
                        # The folder has other content, so its file system is mounted and the file is really
                        # missing.
                        if next(entries, None) is not None:
                            return True
                    # An empty folder proves nothing, unless it is the same one in which a file was seen.
                    return self._known.get(folder) == _folder_identity(descriptor, os.fstat(descriptor))
            # The folder is gone as well: the nearest existing one above decides.
            except (FileNotFoundError, NotADirectoryError):
                continue
            # Unknown, so the file counts as present.
            except OSError:
                return False
        return False


def _above(path: str) -> Iterator[str]:
    """The folders above, nearest first, without the root."""
    for folder in Path(path).parents:
        if folder != folder.parent:
            yield str(folder)


@contextmanager
def _opened(folder: str) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _folder_identity(descriptor: int, found: os.stat_result) -> _Identity:
    """Device and inode of the folder, and the id of its file system, because device numbers are reused."""
    return found.st_dev, found.st_ino, os.statvfs(descriptor).f_fsid


def _is_there(name: str, descriptor: int) -> bool:
    try:
        os.stat(name, dir_fd=descriptor, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


# --- pieces

_TEXT = ", or `text: true` of the source"


@dataclass(slots=True)
class Piece:
    """Consecutive records of a file."""

    base: int
    """Start position: bytes, or rows of Parquet."""
    end: int
    count: int
    """Lines, rows or records of the file before `end`."""
    records: list[Record] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    raw_bytes: list[int] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    """`end` and `count` before each record, and after the last."""
    cost: int = 0
    """Queue capacity that its records need."""
    done: bool = False
    """The file ends here."""
    broken: str | None = None
    """Reason why the file cannot be read further."""

    def cut(self, records: int, why: str) -> None:
        """End after that many records, because the next one cannot be ingested."""
        # The position must end exactly before the refused record, so that it is read again.
        self.end, self.count = self.ends[records]
        for each in (self.records, self.partitions, self.raw_bytes):
            del each[records:]
        self.done, self.broken = False, why


@dataclass(frozen=True, slots=True)
class Cutting:
    """How a source's files are read and cut."""

    form: InputFormat
    topic: str
    text: bool
    record_bytes_max: int
    piece_bytes_max: int
    """Largest size of the records with `ROW_COST_BYTES` each; a larger record is a piece of its own."""
    partitions_max: int
    """Largest number of partitions in a piece, so that its entry fits."""
    place: Callable[[Input, int], int]
    """Returns the partition of a record, given its raw bytes; raises `InvalidInput`."""


@dataclass(frozen=True, slots=True)
class _Next:
    """A record that was read, and its end position."""

    record: Record
    partition: int
    raw_bytes: int
    cost: int
    end: int
    count: int


class PieceReader:
    """Reads a file from `start` on; the stream is at its beginning."""

    def __init__(self, stream: BinaryIO, cutting: Cutting, start: InputPosition) -> None:
        # The Parquet reader begins at the footer and finds the row by itself.
        if cutting.form != "parquet":
            stream.seek(start.position)
        self._cutting = cutting
        self._place = start
        self._inputs = read_inputs(
            stream, cutting.form, cutting.topic, cutting.text, cutting.record_bytes_max, start
        )
        self._end, self._count = start.position, start.number
        self._held: _Next | None = None

    def next(self) -> Piece:
        """The next piece; a piece that is `done` or `broken` is the last. Raises `OSError` of the disk."""
        piece = Piece(self._end, self._end, self._count, ends=[(self._end, self._count)])
        partitions: set[int] = set()
        while True:
            try:
                found = self._held or self._read()
            except InvalidInput as error:
                # The records before it are ingested; the reader has stopped inside the file.
                piece.broken = f"{error}{_TEXT if '--text' in str(error) else ''}"
                break
            if found is None:
                piece.done = True
                # The end of the file may lie behind the last record, after empty lines.
                piece.end, piece.count = self._place.position, self._place.number
                break
            partitions.add(found.partition)
            too_large = (
                piece.cost + found.cost > self._cutting.piece_bytes_max
                or len(partitions) > self._cutting.partitions_max
            )
            # A piece has at least one record, even if that alone is larger.
            if piece.records and too_large:
                # Read already, so it begins the next piece.
                self._held = found
                break
            self._held = None
            piece.records.append(found.record)
            piece.partitions.append(found.partition)
            piece.raw_bytes.append(found.raw_bytes)
            piece.ends.append((found.end, found.count))
            piece.cost += found.cost
            piece.end, piece.count = found.end, found.count
        self._end, self._count = piece.end, piece.count
        return piece

    def _read(self) -> _Next | None:
        item = next(self._inputs, None)
        if item is None:
            return None
        try:
            raw_bytes = validate(item.record, self._cutting.record_bytes_max)
            partition = self._cutting.place(item, raw_bytes)
        except InvalidInput as error:
            raise type(error)(f"{item.where}: {error}") from error
        cost = weight_of(item.record, raw_bytes) + ROW_COST_BYTES
        return _Next(item.record, partition, raw_bytes, cost, self._place.position, self._place.number)


# --- open files

HEAD_BYTES = 4096
"""Bytes at the beginning of a file that are part of its identity."""
_HEAD_DIGEST_BYTES = 12
_SHAPE = struct.Struct(">Qq")
_BUFFER_BYTES = 1 << 20


class OpenedFile:
    """An open file; close it, or use it as a context manager."""

    def __init__(self, path: str) -> None:
        """Raises `NotFound` if the file is gone, `RecordRefused` if it is unreadable or no regular file."""
        self.path = path
        try:
            # O_NONBLOCK: opening a pipe must not wait for its writer. O_NOFOLLOW: a link would give the file
            # two names.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError as error:
            raise NotFound(f"{path} has vanished") from error
        except OSError as error:
            raise RecordRefused(
                f"the file cannot be opened ({error.strerror}); give this process the right to read it"
            ) from error
        try:
            # From the descriptor and not by the path, which may name another file by now.
            self._began = os.fstat(descriptor)
            if not stat.S_ISREG(self._began.st_mode):
                raise RecordRefused(
                    "this is no regular file; remove it from the folder, or narrow the pattern"
                )
            # `pread` leaves the position at the beginning.
            self.identity = _identity(self._began, os.pread(descriptor, HEAD_BYTES, 0))
            """The file's identity in the log, in addition to its name."""
        except BaseException:
            os.close(descriptor)
            raise
        self.stream: BinaryIO = os.fdopen(descriptor, "rb", _BUFFER_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; closing twice is no error."""
        self.stream.close()

    @property
    def size(self) -> int:
        """Size in bytes at open."""
        return self._began.st_size

    def is_unchanged(self) -> bool:
        """Whether size and modification time are still those at open."""
        now = os.fstat(self.stream.fileno())
        return _shape(now) == _shape(self._began)

    def has_its_name(self) -> bool:
        """Whether the path still names this file."""
        try:
            # `lstat`: a link with this name is another file.
            return os.path.samestat(os.lstat(self.path), self._began)
        except OSError:
            return False


def mark_of(found: os.stat_result) -> bytes:
    """The beginning of a file's identity: a digest of its size and modification time."""
    # In front of the identity, because only these bytes of a finished file are kept.
    return hashlib.blake2b(_shape(found), digest_size=MARK_BYTES).digest()


def _shape(found: os.stat_result) -> bytes:
    return _SHAPE.pack(found.st_size, found.st_mtime_ns)


def _identity(found: os.stat_result, head: bytes) -> bytes:
    return mark_of(found) + _shape(found) + hashlib.blake2b(head, digest_size=_HEAD_DIGEST_BYTES).digest()


# --- ingesting

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
    `resolve` first.
    """
    # Before the position is read: if the file is forgotten in between, the entry must not count.
    seen = context.sequencer.fold.next_index
    known = context.sequencer.fold.positions.get(source, path)
    if isinstance(known, Finished):
        return False
    with OpenedFile(path) as file:
        # Before anything is read: a changed file must not continue at a position in the old content.
        _check_identity(file, known, cutting)
        context.seen_folders.saw(path)
        if known is None:
            known = Begun(0, 0, file.identity)
        reader = PieceReader(file.stream, cutting, InputPosition(known.end, known.count))
        # Between pieces the position is in the log, so the work may stop here at any time.
        while not context.stopping.is_set():
            seen = _seen_again(file, context.sequencer, seen)
            piece = _next_piece(reader, file, cutting)
            admitted = _admitted(piece, topic, cutting, context)
            if piece.records or piece.done:
                move = Move(source, path, piece.base, piece.end, piece.done, file.identity, seen, piece.count)
                if _send(admitted, move, context) is not None:
                    # Another process was faster; the next call reads the log again.
                    return False
                # Only for entries that count, so the numbers of several processes add up.
                took(len(piece.records), sum(piece.raw_bytes))
            # After the records before the bad one are ingested.
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
    # Checked after the read: only then is the piece known to be of one state of the file.
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

    # No wait for a schema: the next poll tries the file again.
    admitted = admit_all(context.judge, given, 0.0, partitions_of)
    for row, one in enumerate(admitted):
        # Later records must not overtake a refused one, so the piece ends before it.
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
        # In the order of first appearance; a DLQ topic may be among them.
        names = dict.fromkeys(one.topic for one in admitted)
        items = [
            _item([one for one in admitted if one.topic == name], _topic(name, context), accept_us)
            for name in names
        ]
        return context.publisher.publish_moving(items, [move])
    # A piece without records only moves the position, for example of an empty file.
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
        # No thread waits for this acknowledgement: the position in the log is the result.
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

"""Cut a file into pieces that are ingested whole: consecutive records up to a bound of bytes and partitions.

The pieces of a file, in order, are exactly its records. A piece ends after a record. A record that cannot be
ingested ends the piece before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import BinaryIO

from archiver.runtime.errors import InvalidInput
from intake.inputs import InputFormat, InputPosition, read_inputs
from intake.record_json import Input
from intake.records import Record, validate, weight_of
from intake.write.queue import ROW_COST_BYTES

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
                piece.broken = f"{error}{_TEXT if '--text' in str(error) else ''}"
                break
            if found is None:
                piece.done = True
                piece.end, piece.count = self._place.position, self._place.number
                break
            partitions.add(found.partition)
            too_large = (
                piece.cost + found.cost > self._cutting.piece_bytes_max
                or len(partitions) > self._cutting.partitions_max
            )
            if piece.records and too_large:
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

"""Cuts a file into pieces that are taken in whole: records in their order, up to a bound of bytes and
partitions.

Owns where a piece ends. Promises that the pieces of a file, one after the other, are its records, each once;
that a piece ends behind a record, in front of which nothing is left out; and that a record which cannot be
taken in ends the piece before it.
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
    """Where it begins: bytes, or rows of Parquet."""
    end: int
    count: int
    """Lines, rows or records of the file before `end`."""
    records: list[Record] = field(default_factory=list)
    partitions: list[int] = field(default_factory=list)
    raw_bytes: list[int] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    """What `end` and `count` are in front of each record, and behind the last."""
    cost: int = 0
    """What its records take of a queue's room."""
    done: bool = False
    """The file ends here."""
    broken: str | None = None
    """Why the file cannot be read on behind it."""

    def cut(self, records: int, why: str) -> None:
        """End behind so many records, because the next one cannot be taken in."""
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
    """Of the records with `ROW_COST_BYTES` each; a larger record is a piece by itself."""
    partitions_max: int
    """In one piece, so that its entry fits."""
    place: Callable[[Input, int], int]
    """The partition of a record with so many raw bytes; raises `InvalidInput`."""


@dataclass(frozen=True, slots=True)
class _Next:
    """A record that was read, and where it ends."""

    record: Record
    partition: int
    raw_bytes: int
    cost: int
    end: int
    count: int


class PieceReader:
    """Reads a file on from where `start` is; the stream is at its beginning."""

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
        """The next piece. Behind one that is `done` or `broken` there is none. Raises `OSError` if the disk
        does.
        """
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

"""Judges loops that read, process and write: with each entry, what a group wrote and what it has committed.

A record of the output states its source, a record of the input. Which records a marker makes visible is followed
here from the entries, and read from the files without the product's reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.ids import TopicPartition
from intake.log.fold import Applied
from tests.simulation.files import Files
from tests.simulation.ground import Ground
from tests.simulation.kafka.group_watch import GroupWatch
from tests.simulation.schedule import Violation


@dataclass(frozen=True)
class Source:
    """The record from which a loop made a record of its output."""

    group: str
    tp: TopicPartition
    offset: int
    value: bytes
    """As the loop read it."""


@dataclass(frozen=True)
class _Written:
    """A record of the output in the log."""

    tp: TopicPartition
    offset: int
    value: bytes
    source: Source


class LoopWatch:
    """Follows all loops of a run. Raises `Violation`."""

    def __init__(self, ground: Ground, files: Files, groups: GroupWatch) -> None:
        self._ground = ground
        self._files = files
        self._groups = groups
        self._loops: dict[str, dict[TopicPartition, int]] = {}
        """The committed offsets of each group."""
        self._sources: dict[bytes, Source] = {}
        """By the value of the record that was made from it."""
        self._open: dict[int, list[_Written]] = {}
        """What open transactions have written, by producer id."""

    def enter(self, group: str) -> None:
        """Watch the loop of a group."""
        self._loops[group] = {}

    def made(self, value: bytes, source: Source) -> None:
        """A loop is going to write a record."""
        self._sources[value] = source

    # --- The log

    def applied(self, index: int, entry: pb.IntakeEntry, applied: Applied) -> None:
        """An entry has come into the log."""
        body = entry.WhichOneof("body")
        ended: list[_Written] = []
        is_commit = False
        if body == "file":
            self._writes(entry, applied)
        elif body == "producer" and applied.producer is not None:
            self._open.pop(applied.producer[0], None)
        elif body == "transaction" and applied.refusal is None:
            ended, is_commit = self._open.pop(entry.transaction.producer_id, []), entry.transaction.commit
            if not is_commit:
                ended = []
        for group, committed in self._loops.items():
            for tp in self._groups.inputs(group):
                before, now = committed.get(tp, 0), self._committed(group, tp)
                committed[tp] = now
                own = [one for one in ended if (one.source.group, one.source.tp) == (group, tp)]
                if own or before != now:
                    where = f"entry {index}, {body}: {group} goes on from {before} to {now} of {tp}"
                    self._judge_entry(where, own, tp, range(before, now), is_commit=is_commit)

    def _writes(self, entry: pb.IntakeEntry, applied: Applied) -> None:
        """A file has records of open transactions."""
        segments = [segment for group in entry.file.topics for segment in group.segments]
        for landed, stated in zip(applied.landed, segments, strict=True):
            if landed.segment is None or not stated.producer.transactional:
                continue
            held = self._open.setdefault(stated.producer.producer_id, [])
            for row, (value, _) in enumerate(self._files.rows(landed.segment)):
                source = self._sources.get(value)
                if source is not None:
                    held.append(_Written(landed.tp, landed.segment.base + row, value, source))

    def _committed(self, group: str, tp: TopicPartition) -> int:
        held = self._ground.fold.consumer_groups.get(group)
        found = None if held is None else held.offset(*tp)
        return 0 if found is None else found.offset

    def _judge_entry(
        self, where: str, written: Sequence[_Written], tp: TopicPartition, span: range, *, is_commit: bool
    ) -> None:
        """What one entry makes visible of a partition of the input, and the offsets that it commits."""
        if span and not is_commit:
            raise Violation("offsets of a loop come with its output", where)
        for one in written:
            if one.source.offset >= max(span.stop, span.start):
                raise Violation("output of a loop comes with its offsets", f"{where}, with {one}")
        records = self._records(tp, span)
        done: set[int] = set()
        newest: dict[TopicPartition, int] = {}
        for one in written:
            source = one.source
            if source.offset < span.start or source.offset in done:
                raise Violation("a loop writes no record twice", f"{where}, with {one}")
            if records.get(source.offset) != source.value:
                raise Violation("a loop reads what is committed", f"{where}, with {one}")
            if source.offset < newest.get(one.tp, -1):
                raise Violation("a loop keeps the order of records", f"{where}, with {one}")
            newest[one.tp] = source.offset
            done.add(source.offset)
        missing = sorted(records.keys() - done)
        if missing:
            raise Violation("a loop skips no record", f"{where}, without {missing}")
        self._ground.met["loop markers"] += 1
        self._ground.met["loop records"] += len(written)
        self._ground.met["loop markers without records"] += not written

    def _records(self, tp: TopicPartition, span: range) -> dict[int, bytes]:
        """The records of the input at these offsets, of which every transaction has ended."""
        found: dict[int, bytes] = {}
        for segment in self._ground.fold.segments(tp, span.start) if span else ():
            if segment.base >= span.stop:
                break
            for row, (value, _) in enumerate(self._files.rows(segment)):
                if segment.base + row in span:
                    found[segment.base + row] = value
        return found

"""Where a table's watermarks stood before: what a rollback to a retained snapshot would need from intake
(protocol rule D3).

Pure; part of the ledger's fold. Each COMMIT_TO_TABLE says a sequence number of the table and moves
watermarks; kept is what each of them replaced. `lowest` answers for any sequence number with an offset that
is never above the watermark of any snapshot from that one on, and equal to the lowest of them where the
ledger saw every commit. Memory is bounded: of a long past the oldest moves are merged, which can only lower
an answer.

Why the ledger and not the ranges in the snapshots' summaries: those are cut to a count where a commit moves
many partitions, and then say nothing of any of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from archiver.proto import control_log_pb2
from archiver.proto import ledger_state_pb2 as pb

OFFSETS_MAX = 65_536
"""Offsets that are kept per topic, about 6 MB; 163 commits of 400 partitions each."""


class WatermarkHistory:
    """The watermarks that later ones replaced, of one table."""

    def __init__(self, offsets_max: int = OFFSETS_MAX) -> None:
        self._offsets_max = offsets_max
        self._moves: deque[tuple[int, dict[int, int]]] = deque()
        """(sequence number of the table, partition → the lowest offset that its watermark had before)."""
        self._open: dict[int, int] = {}
        """Moves of entries that another one of the same commit must follow."""
        self._offsets = 0
        self.exact_since = 0
        """From this sequence number on, nothing that was told is merged: the answer for it never gets
        lower."""

    def moves(self, partition: int, before: int, to: int) -> None:
        """An entry moves the partition's watermark; `moved` says at which sequence number."""
        if before != to:
            self._open[partition] = min(before, self._open.get(partition, before))

    def moved(self, sequence_number: int) -> None:
        """Everything since the last call was seen at that sequence number of the table."""
        if not self._open:
            return
        self._moves.append((sequence_number, self._open))
        self._offsets += len(self._open)
        self._open = {}
        while self._offsets > self._offsets_max and len(self._moves) > 1:
            self._merge_oldest()

    def lowest(self, partition: int, watermark: int, since_sequence: int) -> int:
        """The lowest watermark the partition had at that sequence number or after it; it has `watermark` now.

        A move that was not told to its end counts as newer than everything.
        """
        lowest = min(watermark, self._open.get(partition, watermark))
        for sequence_number, offsets in self._moves:
            if sequence_number > since_sequence:
                lowest = min(lowest, offsets.get(partition, lowest))
        return lowest

    def told_around(self, sequence_number: int) -> tuple[int, int | None]:
        """The last sequence number at or before that one at which a move was told (0 if at none), and the
        first one after it.
        """
        told = [number for number, _ in self._moves]
        before = max((number for number in told if number <= sequence_number), default=0)
        return before, min((number for number in told if number > sequence_number), default=None)

    def _merge_oldest(self) -> None:
        """Two moves become one at the later sequence number, which counts for everything before it."""
        (_, earlier), (sequence_number, later) = self._moves.popleft(), self._moves.popleft()
        self.exact_since = sequence_number
        merged = dict(later)
        for partition, offset in earlier.items():
            merged[partition] = min(offset, merged.get(partition, offset))
        self._offsets += len(merged) - len(earlier) - len(later)
        self._moves.appendleft((sequence_number, merged))

    def to_proto(self) -> pb.Past:
        """The stored form."""
        moves = [_move(sequence_number, offsets) for sequence_number, offsets in self._moves]
        return pb.Past(moves=moves, open=_move(0, self._open), exact_since=self.exact_since)

    def restore(self, message: pb.Past) -> None:
        """Take over what `to_proto` gave; nothing must be known yet."""
        for move in message.moves:
            self._moves.append((move.sequence_number, {item.partition: item.offset for item in move.offsets}))
        self._open = {item.partition: item.offset for item in message.open.offsets}
        self._offsets = sum(len(offsets) for _, offsets in self._moves)
        self.exact_since = message.exact_since


def _move(sequence_number: int, offsets: Mapping[int, int]) -> pb.Past.Move:
    stored = [
        control_log_pb2.PartitionOffset(partition=number, offset=offset)
        for number, offset in sorted(offsets.items())
    ]
    return pb.Past.Move(sequence_number=sequence_number, offsets=stored)

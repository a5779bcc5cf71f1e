"""Earlier watermarks of a table: what a rollback to a retained snapshot would need from intake (protocol rule
D3).

Pure; part of the ledger's fold. Each COMMIT_TO_TABLE has a sequence number of the table and moves watermarks;
the history keeps the replaced ones. `lowest` returns, for any sequence number, an offset that is never above
the watermark of any snapshot from that number on. It equals the lowest of them if the ledger saw every
commit. Memory is bounded: the oldest moves of a long history are merged, which can only lower a result.

The ranges in the snapshots' summaries cannot serve instead: they are truncated when a commit moves many
partitions, and then say nothing about any of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from archiver.proto import control_log_pb2
from archiver.proto import ledger_state_pb2 as pb

OFFSETS_MAX = 65_536
"""Most offsets per topic, about 6 MB; 163 commits of 400 partitions each."""


class WatermarkHistory:
    """The replaced watermarks of one table."""

    def __init__(self, offsets_max: int = OFFSETS_MAX) -> None:
        self._offsets_max = offsets_max
        self._moves: deque[tuple[int, dict[int, int]]] = deque()
        """(sequence number of the table, partition → the lowest offset of its watermark before)."""
        self._open: dict[int, int] = {}
        """Moves of entries that another entry of the same commit must follow."""
        self._offsets = 0
        self.exact_since = 0
        """From this sequence number on no moves are merged, so the result for it never decreases."""

    def moves(self, partition: int, before: int, to: int) -> None:
        """Record that an entry moves the partition's watermark; `moved` sets the sequence number."""
        if before != to:
            self._open[partition] = min(before, self._open.get(partition, before))

    def moved(self, sequence_number: int) -> None:
        """Assign that sequence number of the table to all moves since the last call."""
        if not self._open:
            return
        self._moves.append((sequence_number, self._open))
        self._offsets += len(self._open)
        self._open = {}
        while self._offsets > self._offsets_max and len(self._moves) > 1:
            self._merge_oldest()

    def lowest(self, partition: int, watermark: int, since_sequence: int) -> int:
        """The lowest watermark of the partition at that sequence number or later; its current one is
        `watermark`.

        An unfinished move counts as newer than every sequence number.
        """
        lowest = min(watermark, self._open.get(partition, watermark))
        for sequence_number, offsets in self._moves:
            if sequence_number > since_sequence:
                lowest = min(lowest, offsets.get(partition, lowest))
        return lowest

    def moves_around(self, sequence_number: int) -> tuple[int, int | None]:
        """The last sequence number at or before that one with a move (0 if none), and the first one
        after it.
        """
        numbers = [number for number, _ in self._moves]
        before = max((number for number in numbers if number <= sequence_number), default=0)
        return before, min((number for number in numbers if number > sequence_number), default=None)

    def _merge_oldest(self) -> None:
        """Merge two moves at the later sequence number, which counts for everything before it."""
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
        """Restore the result of `to_proto` into an empty history."""
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

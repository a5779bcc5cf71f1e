"""Positions of sources: the part of the intake fold that makes re-reading after a crash exactly-once.

A *source* provides records that can be read again (`files:orders`). An *item* is a part of it that is read in
order: a file by its absolute path, a partition of an upstream topic by its number. An entry with records of
an item states the range that they cover. It counts only if all of these hold, else nothing of it counts:

- the item's position is the begin of that range (0 for a new item), and the item is not finished;
- its identity is the one it was begun with;
- the reader listed the source after the newest entry that forgot finished items of it.

Pure: the same entries give the same state. Positions only advance, in the entry that names the records. So a
repeated or late entry, or a second reader of the same item, changes nothing. A finished item is kept by its
name, 4 bytes of its identity and the entry that finished it. Only `forget` removes it; an unfinished item is
never removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from archiver.proto import intake_log_pb2 as pb

MARK_BYTES = 4
"""Bytes of an item's identity that are kept once it is finished."""


@dataclass(frozen=True, slots=True)
class Move:
    """One item of a source advances; the source defines the unit of positions."""

    source: str
    item: str
    base: int
    """The present position of the item."""
    end: int
    """The new position."""
    done: bool
    """The item is finished: no item of that name is read again."""
    identity: bytes
    """Identity of the content behind the name; must not change while it is ingested."""
    seen: int
    """Number of log entries that were read when the item was listed."""
    count: int
    """Lines or records of the item before `end`, for messages."""


@dataclass(frozen=True, slots=True)
class Begun:
    """An item that is ingested in part."""

    end: int
    count: int
    identity: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """An item that is ingested completely."""

    mark: bytes
    """The first `MARK_BYTES` of its identity, padded with zeros."""
    log_index: int
    """The entry that finished it."""


@dataclass(slots=True)
class SourceState:
    """State of one source. Only the fold changes it; other threads may read at the same time."""

    name: str
    forgotten_below: int = 0
    """One past the newest entry that forgot an item; a listing older than that must be repeated. 0: no such
    entry."""
    begun: dict[str, Begun] = field(default_factory=dict)
    finished: dict[str, Finished] = field(default_factory=dict)


class Positions:
    """The positions of all sources."""

    def __init__(self) -> None:
        self._sources: dict[str, SourceState] = {}

    def __iter__(self) -> Iterator[SourceState]:
        return iter(list(self._sources.values()))  # a copy: the fold may add a source during the iteration

    def source(self, name: str) -> SourceState:
        """State of that source; empty if it is unknown."""
        return self._sources.get(name) or SourceState(name)

    def get(self, source: str, item: str) -> Begun | Finished | None:
        """Position of the item; None if nothing of it was ingested."""
        known = self._sources.get(source)
        # In this order: `move` adds to `finished` before it removes from `begun`.
        return None if known is None else known.begun.get(item) or known.finished.get(item)

    def add(self, source: SourceState) -> None:
        """Add a source from a checkpoint."""
        self._sources[source.name] = source

    def follow(self, moves: Iterable[pb.SourcePosition]) -> bool:
        """Whether every move starts at the present position of its item."""
        return all(self._follows(move) for move in moves)

    def _follows(self, move: pb.SourcePosition) -> bool:
        # The item may have been finished and forgotten after this listing; it would be read a second time.
        if move.seen < self.source(move.source).forgotten_below:
            return False
        known = self.get(move.source, move.item)
        if isinstance(known, Finished):
            return False
        if known is None:
            # A later start would skip the beginning of the item.
            return move.base == 0
        # Another identity means that the content behind the name has changed since it was begun.
        return move.base == known.end and move.identity == known.identity

    def move(self, index: int, moves: Iterable[pb.SourcePosition]) -> None:
        """Apply the moves of the entry at `index`, which were checked with `follow`."""
        for move in moves:
            known = self._sources.setdefault(move.source, SourceState(move.source))
            if move.done:
                # Before `begun` loses it: a reader in another thread must find the item in one of the two.
                known.finished[move.item] = Finished(
                    move.identity[:MARK_BYTES].ljust(MARK_BYTES, b"\0"), index
                )
                known.begun.pop(move.item, None)
            else:
                known.begun[move.item] = Begun(move.end, move.count, move.identity)

    def forget(self, index: int, forgotten: pb.SourceForgotten) -> None:
        """Forget finished items, except those finished after the requester listed the source."""
        known = self._sources.get(forgotten.source)
        if known is None:
            return
        for item in forgotten.items:
            finished = known.finished.get(item)
            # A file that was finished after the listing may be a new one under the same name.
            if finished is not None and finished.log_index < forgotten.seen:
                known.forgotten_below = index + 1  # first: a reader that misses the item must see this too
                del known.finished[item]


def contradiction(file: pb.IntakeFile) -> str | None:
    """Why the positions of an entry are impossible in any state; None if they are possible, or if it has
    none.
    """
    moves = file.positions
    for move in moves:
        if not move.source or not move.item or move.end < move.base:
            return f"moves {move.item!r} of {move.source!r} from {move.base} to {move.end}"
    # Both moves would be compared with the same position, and the second would overwrite the first.
    if len({(move.source, move.item) for move in moves}) < len(moves):
        return "moves an item twice"
    # The fold may refuse such a batch by itself, and the position would move past its records.
    if moves and any(segment.HasField("producer") for group in file.topics for segment in group.segments):
        return "has a producer's batch, which may not count, and positions of sources"
    return None

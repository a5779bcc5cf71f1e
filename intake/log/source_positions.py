"""How far sources were taken in: the part of the intake fold that makes "exactly once" of what is read again
after a crash.

A *source* is whoever has records that can be read again (`files:orders`), an *item* a part of it that is read
in one order (a file, by its absolute path; a partition of an upstream topic, by its number). An entry that
brings records of an item says from where to where they reach. It counts only if all of these hold, else
nothing of it counts:

- the item was taken in up to just there (0: nothing of it was), and is not finished;
- its identity is that with which it was begun;
- whoever read it had looked at the source after the newest entry that forgot finished items of it.

Pure: the same entries give the same state. Positions only ever go on, in the entry that names the records, so
whoever repeats an entry, slept before it, or works beside another on the same item changes nothing. A
finished item is kept by its name, 4 bytes of its identity and the entry that finished it; nothing but
`forget` ever takes it out, and nothing takes out an item that is not finished.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from archiver.proto import intake_log_pb2 as pb

MARK_BYTES = 4
"""The first bytes of an item's identity: what is kept of it when the item is finished."""


@dataclass(frozen=True, slots=True)
class Move:
    """One item of a source goes on; the unit of its positions is the source's own."""

    source: str
    item: str
    base: int
    """From here: where the state must stand."""
    end: int
    """To here."""
    done: bool
    """It is finished: nothing of that name is taken in again."""
    identity: bytes
    """Of what is behind the name; must not change while it is taken in."""
    seen: int
    """Entries of the log that were known when the item was looked at."""
    count: int
    """Lines or records of the item before `end`, for messages."""


@dataclass(frozen=True, slots=True)
class Begun:
    """An item of which a part was taken in."""

    end: int
    count: int
    identity: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """An item that was taken in to its end."""

    mark: bytes
    """The first `MARK_BYTES` of its identity; zeros follow if that is shorter."""
    log_index: int
    """The entry that finished it."""


@dataclass(slots=True)
class SourceState:
    """What is known of one source. Only the fold changes it; others may look while it does."""

    name: str
    forgotten_below: int = 0
    """Behind the newest entry that forgot something: who looked before that must look again. 0: none did."""
    begun: dict[str, Begun] = field(default_factory=dict)
    finished: dict[str, Finished] = field(default_factory=dict)


class Positions:
    """Every source that was ever taken in from."""

    def __init__(self) -> None:
        self._sources: dict[str, SourceState] = {}

    def __iter__(self) -> Iterator[SourceState]:
        return iter(list(self._sources.values()))  # a copy: another thread may read meanwhile

    def source(self, name: str) -> SourceState:
        """What is known of that source; an empty one if it was never heard of."""
        return self._sources.get(name) or SourceState(name)

    def get(self, source: str, item: str) -> Begun | Finished | None:
        """Where the item stands; None if nothing of it was taken in."""
        known = self._sources.get(source)
        # In this order: an item is known as finished before it is not known as begun any more.
        return None if known is None else known.begun.get(item) or known.finished.get(item)

    def add(self, source: SourceState) -> None:
        """Take in a source as it is (from a checkpoint)."""
        self._sources[source.name] = source

    def follow(self, moves: Iterable[pb.SourcePosition]) -> bool:
        """Whether every one of them goes on from where its item stands."""
        return all(self._follows(move) for move in moves)

    def _follows(self, move: pb.SourcePosition) -> bool:
        if move.seen < self.source(move.source).forgotten_below:
            return False
        known = self.get(move.source, move.item)
        if isinstance(known, Finished):
            return False
        if known is None:
            return move.base == 0
        return move.base == known.end and move.identity == known.identity

    def move(self, index: int, moves: Iterable[pb.SourcePosition]) -> None:
        """Go on: the entry at `index` brought these, and they follow."""
        for move in moves:
            known = self._sources.setdefault(move.source, SourceState(move.source))
            if move.done:
                known.finished[move.item] = Finished(
                    move.identity[:MARK_BYTES].ljust(MARK_BYTES, b"\0"), index
                )
                known.begun.pop(move.item, None)
            else:
                known.begun[move.item] = Begun(move.end, move.count, move.identity)

    def forget(self, index: int, forgotten: pb.SourceForgotten) -> None:
        """Forget finished items, but for those that were finished after whoever asks for it had looked."""
        known = self._sources.get(forgotten.source)
        if known is None:
            return
        for item in forgotten.items:
            finished = known.finished.get(item)
            if finished is not None and finished.log_index < forgotten.seen:
                known.forgotten_below = index + 1  # first: whoever sees it gone sees that as well
                del known.finished[item]


def contradiction(file: pb.IntakeFile) -> str | None:
    """What makes the positions of an entry impossible, whatever the state is; None if nothing does, or if it
    has none.
    """
    moves = file.positions
    for move in moves:
        if not move.source or not move.item or move.end < move.base:
            return f"moves {move.item!r} of {move.source!r} from {move.base} to {move.end}"
    if len({(move.source, move.item) for move in moves}) < len(moves):
        return "moves an item twice"
    if moves and any(segment.HasField("producer") for group in file.topics for segment in group.segments):
        return "has a producer's batch, which may count or not, beside positions of sources"
    return None

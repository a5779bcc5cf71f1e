"""Where mirrored partitions begin: worked out once, and put into the log before anything is read.

Promises that `from` is followed for what is there at a source's first look and never again: what comes later
begins at its first record, so that nothing is missed between its making and its finding. A start that is in
the log is never worked out again, whatever `from` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from intake.log.fold import TopicState, mirror_source
from intake.log.sequencer import Sequencer
from intake.log.source_positions import Move, Positions
from intake.sources.kafka.batch import POSITION_BYTES
from intake.sources.kafka.upstream import Place, Upstream


@dataclass(frozen=True, slots=True)
class _Followed:
    """The note in the log that a source's `from` was followed."""

    item: str

    def move(self, source: str, seen: int) -> Move:
        """The position that says so; it stands still."""
        return Move(source_note(source), self.item, 0, 0, False, b"", seen, 0)


FOLLOWED = _Followed("from")


def source_note(source: str) -> str:
    """What the log calls a Kafka source by the name it is configured under; its mirrored topics have names of
    their own.
    """
    return f"kafka-source:{source}"


def has_begun(positions: Positions, source: str) -> bool:
    """Whether the `from` of the source was followed."""
    return FOLLOWED.item in positions.source(source_note(source)).begun


def begin(
    fresh: Mapping[Place, tuple[TopicState, bytes]],
    upstream: Upstream,
    sequencer: Sequencer,
    beginning: str,
    since_ms: int | None,
) -> None:
    """Put down where these partitions begin, of topics of ours with those identities. Where another process
    was faster, its word counts.

    Partitions of which the cluster does not tell (yet), and those beside one where another was faster, are
    left for the next look.
    """
    starts = _starts(fresh, upstream, beginning, since_ms)
    places = sorted(starts)
    per_entry = max(1, sequencer.entry_bytes_max // (2 * POSITION_BYTES))
    for first in range(0, len(places), per_entry):
        seen = sequencer.fold.next_index
        moves = [
            Move(
                mirror_source(fresh[place][0].topic_id),
                str(place[1]),
                0,
                starts[place],
                False,
                fresh[place][1],
                seen,
                0,
            )
            for place in places[first : first + per_entry]
        ]
        sequencer.append_moves(moves, is_needed=partial(_is_unbegun, sequencer, moves))


def _is_unbegun(sequencer: Sequencer, moves: Sequence[Move]) -> bool:
    """A partition that another process began at 0 stands where one does that nobody began, so the log itself
    would take both beginnings.
    """
    return all(sequencer.fold.positions.get(move.source, move.item) is None for move in moves)


def _starts(
    fresh: Mapping[Place, object], upstream: Upstream, beginning: str, since_ms: int | None
) -> dict[Place, int]:
    bounds = upstream.bounds(list(fresh))
    if beginning == "earliest":
        return {place: one.low for place, one in bounds.items()}
    if beginning == "latest" or since_ms is None:
        return {place: one.high for place, one in bounds.items()}
    since = upstream.offsets_since(list(bounds), since_ms)
    # A partition without this answer waits: to begin it at its end would pass over records that are new
    # enough.
    return {
        place: since[place] if since[place] >= 0 else one.high
        for place, one in bounds.items()
        if place in since
    }

"""Start offsets of mirrored partitions: determined once, and stored in the log before anything is read.

`from` applies only to partitions of a source's first inspection. Later partitions begin at their first
record, so nothing is missed between their creation and their discovery. A start in the log is never
determined again, even if `from` changes.
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
    """The note in the log that a source's `from` was applied."""

    item: str

    def move(self, source: str, seen: int) -> Move:
        """The position that stores the note; it does not move."""
        return Move(source_note(source), self.item, 0, 0, False, b"", seen, 0)


FOLLOWED = _Followed("from")


def source_note(source: str) -> str:
    """The log's name of a configured Kafka source; its mirrored topics have their own names."""
    return f"kafka-source:{source}"


def has_begun(positions: Positions, source: str) -> bool:
    """Whether the `from` of the source was applied."""
    return FOLLOWED.item in positions.source(source_note(source)).begun


def begin(
    fresh: Mapping[Place, tuple[TopicState, bytes]],
    upstream: Upstream,
    sequencer: Sequencer,
    beginning: str,
    since_ms: int | None,
) -> None:
    """Store the start offsets of these partitions, for our topics with those identities.

    If another process was faster, its offsets apply. Partitions that the cluster does not report yet, and
    those in one entry with a lost race, are left for the next inspection.
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
    """Whether no partition has a position yet. The log alone cannot reject a second start after one at 0,
    because both positions are 0.
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
    # A partition without a reply waits: starting it at its end would skip records that are new enough.
    return {
        place: since[place] if since[place] >= 0 else one.high
        for place, one in bounds.items()
        if place in since
    }

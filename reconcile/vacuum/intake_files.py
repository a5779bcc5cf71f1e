"""Selects the intake files that are no longer needed. Pure.

A file is *needed* if one of its segments ends above the retention floor of its partition
(`retention_floor.py`). Segments are those in the intake log, archived or not, decided or not, but not those
of aborted transactions and repetitions. So a file is not needed in two cases. All its records are archived
below every floor, aborted, or repetitions. Or no log entry names it, because its writer died between upload
and append.

Why the order barrier, tail, mark is correct: need follows from the log and the floors. Floors only rise. The
log only grows, and only an entry that names a file for the first time can make it needed again. After the
barrier, entries for files written before it are void, and the log is read to its tail after the barrier. A
file that is then not needed, and was written before the barrier, is never needed again by any reader of this
log. The condition is stable, so a late deletion does no harm.

The contents of a damaged or missing history file are unknown, including its files and other partitions. If a
single partition needs such a file, all intake files are kept, and so are older checkpoints and history files,
which may have the same contents. Once all partitions are archived beyond that file, it is not needed, and
deletion continues.

The barrier is directly after the newest file to be deleted. Otherwise a clock that runs ahead could put it
into the future, and every writer would be refused until then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from archiver.objects.paths import parse_intake_key
from archiver.runtime.errors import Halt, InvalidInput
from archiver.runtime.ids import TopicPartition
from intake.log.backlog import Backlog
from intake.segments import FileRef
from reconcile.snapshot.retention_floor import Lines

WINDOW_BYTES = 256 * 2**20
"""Raw bytes of the records whose segments are read at a time; a backlog may have millions of segments."""


@dataclass(frozen=True, slots=True)
class Needed:
    """The keys of intake files that may be read again."""

    sure: dict[str, TopicPartition]
    """Files needed by a partition with a known floor: one such partition each."""
    doubted: frozenset[str]
    """Files kept because the floor is unknown or the whole topic is kept."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Topics whose needs are unknown because a history file is damaged or missing, and why. All keys are then
    needed."""

    def __contains__(self, key: str) -> bool:
        return bool(self.unread) or key in self.sure or key in self.doubted


def needed_files(intake: Backlog, lines: Lines) -> Needed:
    """Files with a segment above its floor; all files of a topic without floors (it is younger than they
    are).

    An unreadable history file makes its topic doubtful; it is not an error.
    """
    sure: dict[str, TopicPartition] = {}
    doubted: set[str] = set()
    unread: dict[str, str] = {}
    for topic in intake.topics_by_id.values():
        line = lines.get(topic.topic_id)
        known = line is not None and line.why is None and line.exact
        for partition in range(topic.partitions):
            tp = (topic.topic_id, partition)
            try:
                for file in _files(intake, tp, 0 if line is None else line.offsets[partition]):
                    if known:
                        sure[file.key] = tp
                    else:
                        doubted.add(file.key)
            except (Halt, InvalidInput) as error:
                unread.setdefault(topic.name, f"partition {partition}: {error}")
    return Needed(sure, frozenset(doubted), unread)


def _files(intake: Backlog, tp: TopicPartition, start: int) -> Iterator[FileRef]:
    """The files of the segments that end above `start`."""
    while segments := intake.segments(tp, start, WINDOW_BYTES):
        yield from (segment.file for segment in segments)
        start = segments[-1].end


@dataclass(frozen=True, slots=True)
class Choice:
    """The files that a run may mark for deletion, and the number of others."""

    condemn: tuple[str, ...]
    """Oldest first."""
    barrier_ms: int | None
    """Every selected file was written before it; None if there is none."""
    needed: int
    """Files that stay because they may be read again."""
    young: int
    """Files that stay because they are too young."""
    over: int
    """Files that stay because of the limit of a run."""
    strange: int
    """Objects below `intake/` that are not intake files; they are never changed."""


def choose(
    stored: Iterable[str], needed: Needed, condemned: Collection[str], before_ms: int, limit: int
) -> Choice:
    """Classify the keys below `intake/`, except those already marked (`condemned`).

    Only files written before `before_ms` may be deleted, the `limit` oldest of them.
    """
    found: list[tuple[int, str]] = []
    kept = young = strange = 0
    for key in stored:
        parsed = parse_intake_key(key)
        if key in condemned:
            continue
        if parsed is None:
            strange += 1
        elif key in needed:
            kept += 1
        elif parsed.written_ms >= before_ms:
            young += 1
        else:
            found.append((parsed.written_ms, key))
    chosen = sorted(found)[: max(0, limit)]
    barrier_ms = chosen[-1][0] + 1 if chosen else None
    return Choice(tuple(key for _, key in chosen), barrier_ms, kept, young, len(found) - len(chosen), strange)

"""Which intake files nobody needs any more: the decision alone.

Pure. A file is *needed* if some segment of it ends beyond the line of its partition (`lines.py`). Segments
are what the intake log holds: archived or not, decided or not; those of aborted transactions and repetitions
are none. So a file is not needed if all of its records are archived below every line, or aborted, or
repetitions, and also if no entry names it: the stray of a writer that died between its upload and its append.

Why the order barrier, tail, condemn is right. Whether a file is needed follows from the log and the lines.
The lines only rise. The log only grows, and can make a file needed again in one way: an entry that names it
for the first time. After the barrier no entry counts whose file was written before it, and the log is read to
its tail *behind* the barrier. So what is not needed then, and was written before the barrier, is never needed
again, by nobody who reads this log, however late: the condition is stable, and whoever deletes late does no
harm.

What a shelf holds that is damaged or gone, nobody knows: which files, and of which other partitions besides.
So if a single partition needs something of it, every file may be meant, and all are kept; so are older
checkpoints and shelves, which may hold the same. Once all are archived beyond that shelf, nobody looks into
it, and files go again.

The barrier is put no further than behind the newest file that is to go. A clock that runs ahead could
otherwise put it into the future, and every writer would be refused until then.
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
"""Raw bytes of the records whose segments are looked at together; a backlog may have millions."""


@dataclass(frozen=True, slots=True)
class Needed:
    """The keys of intake files that somebody may read again."""

    sure: dict[str, TopicPartition]
    """Some partition, of which it is known how far it is archived, needs them: one such partition for
    each."""
    doubted: frozenset[str]
    """Kept because that is not known, or because all of the topic is kept."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Names of topics of which nobody can tell what they need, because a shelf is damaged or gone, and why.
    Then all keys are needed."""

    def __contains__(self, key: str) -> bool:
        return bool(self.unread) or key in self.sure or key in self.doubted


def needed_files(intake: Backlog, lines: Lines) -> Needed:
    """The files of which some segment ends beyond its line; all of them where a topic has no lines (it is
    younger than they are).

    A shelf that cannot be read is a doubt about its topic, never an error.
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
    """The files of the segments that reach beyond `start`."""
    while segments := intake.segments(tp, start, WINDOW_BYTES):
        yield from (segment.file for segment in segments)
        start = segments[-1].end


@dataclass(frozen=True, slots=True)
class Choice:
    """What a run may condemn, and what stays."""

    condemn: tuple[str, ...]
    """Oldest first."""
    barrier_ms: int | None
    """Every file to condemn was written before; None if there is none."""
    needed: int
    """Files that stay because somebody may read them."""
    young: int
    """Files that stay because they are too young to tell."""
    over: int
    """Files that stay because a run condemns no more."""
    strange: int
    """Objects below `intake/` that are no intake files; they are never touched."""


def choose(
    stored: Iterable[str], needed: Needed, condemned: Collection[str], before_ms: int, limit: int
) -> Choice:
    """Judge the keys below `intake/`, except the `condemned`: those are on their way.

    Only files written before `before_ms` may go, the `limit` oldest of them.
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

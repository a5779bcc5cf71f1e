"""Is the metadata store the newest one, or a copy that somebody put back?

A log that lost entries would give the same offsets to other records. What was made from a longer log proves
that it was longer:

- a checkpoint beyond the log's end, or of entries that this log does not have, of either log;
- an archive beyond the stable offset of its partition (for that never goes back), or of a topic that the log
  does not know;
- an archive of a later epoch than the control log has had: each epoch is begun there before anything is made
  in it;
- an intake file whose writer had read the log further than it reaches (its footer says how far). The files
  that came last into the store are looked at, of the hours around the newest that the log names and around
  the present, within bounds;
- the witness of the metadata store itself, which refuses to append below it (`archiver/log/sqlite.py`);
- anything in the data folder of a log that is empty.

A table says no more than its archives. Not proof is an intake file that no entry names, whose writer had read
no further than the log reaches: a writer was killed between upload and append, or is between the two now.

What cannot be told: the witness was put back together with the copy, and since the copy was made nobody
stored anything that knew of the entries that were lost. So it is if the last writer stored a single file and
nobody read the log after it, or if only topics, producers, markers and ticks were lost. If the files of the
lost entries are gone as well, or were written by clocks that disagree by more than a day, nobody can see them
either.

Lists and reads a bounded number of objects, before it reads the log to its tail: so what others do meanwhile
is never taken for a loss. Changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import nlargest
from itertools import islice

from archiver.ledger.checkpoint import LedgerCheckpoints
from archiver.log.checkpoints import C, Checkpoints
from archiver.log.store import Log
from archiver.objects.paths import (
    ARCHIVE_PREFIX,
    CHECKPOINT_PREFIX,
    INTAKE_PREFIX,
    intake_hours_prefixes,
    parse_archive_key,
    parse_intake_key,
)
from archiver.objects.store import ObjectInfo, ObjectStore
from archiver.proto import control_log_pb2
from archiver.runtime.errors import Corrupted, Halt, NotFound, Trimmed
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.checkpoint_store import CheckpointStore
from intake.log.fold import IntakeFold
from intake.read.reader import log_index_of

_HOUR_US = 3_600_000_000
_HOURS_MAX = 24
"""So many hours before and behind the newest file that the log names, and before the present, are listed, and
some beside them."""
_FILES_MAX = 64
"""So many files are looked into."""


def check_log_is_newest(
    objects: ObjectStore, log: Log, control: Log, read: Callable[[], IntakeFold], now_us: int
) -> None:
    """Raise `Halt`, naming the repair, if the data folder holds what these logs cannot have led to. `read`
    reads `log`, the intake log, to its tail.
    """
    before = read()
    checkpoints, of_ledger = CheckpointStore(objects).indexes(), LedgerCheckpoints(objects).indexes()
    archives, newest = _archives(objects)
    farthest = _farthest_file(objects, before.newest_key, now_us) if before.next_index else None
    fold = read()
    if fold.next_index == 0:
        _check_folder_is_empty(objects)
    _check_checkpoints(CheckpointStore(objects), log, fold.next_index, checkpoints)
    _check_checkpoints(LedgerCheckpoints(objects), control, control.tail(), of_ledger)
    if farthest is not None and farthest[0] > fold.next_index:
        where = objects.uri(farthest[1])
        raise Halt(
            f"{where} was written when the intake log had {farthest[0]} entries, but it ends at "
            f"{fold.next_index}; {_REPAIR}"
        )
    for tp, (end, key) in archives.items():
        _check_archive(objects, fold, tp, end, key)
    _check_epoch(objects, control, *newest)


def _check_folder_is_empty(objects: ObjectStore) -> None:
    prefixes = (INTAKE_PREFIX, ARCHIVE_PREFIX, CHECKPOINT_PREFIX)
    stray = next((info.key for prefix in prefixes for info in objects.list(prefix)), None)
    if stray is not None:
        raise Halt(f"the metadata store is empty, but the data folder holds {objects.uri(stray)}; {_REPAIR}")


def _check_checkpoints(store: Checkpoints[C], log: Log, tail: int, indexes: list[int]) -> None:
    """None may be beyond the log's end, and the newest one that is whole must be of this log."""
    if indexes and indexes[-1] > tail:
        where = store.objects.uri(store.key(indexes[-1]))
        raise Halt(
            f"{where} was made when the {log.name} log had {indexes[-1]} entries, but it ends at "
            f"{tail}; {_REPAIR}"
        )
    for index in reversed(indexes):
        try:
            if not store.is_of(store.load(index), log):
                raise Halt(
                    f"{store.objects.uri(store.key(index))} was made of entries that the {log.name} "
                    f"log does not have; {_REPAIR}"
                )
        except (Corrupted, NotFound, Trimmed):
            continue
        return


def _archives(objects: ObjectStore) -> tuple[dict[TopicPartition, tuple[int, str]], tuple[int, str]]:
    """How far the archives of each partition reach, and the one that reaches farthest; the newest epoch of
    all, and one of it.
    """
    found: dict[TopicPartition, tuple[int, str]] = {}
    newest = (0, "")
    for info in objects.list(ARCHIVE_PREFIX):
        archive = parse_archive_key(info.key)
        if archive is not None:
            tp = (TopicId(archive.topic_id), archive.partition)
            found[tp] = max(found.get(tp, (0, "")), (archive.end, info.key))
            newest = max(newest, (archive.epoch, info.key))
    return found, newest


def _check_epoch(objects: ObjectStore, control: Log, epoch: int, key: str) -> None:
    """The control log's last entry has its newest epoch: whoever appends has read the one that deposed him
    (rule L1).
    """
    last = control.read(max(control.tail() - 1, control.floor()))
    had = control_log_pb2.ControlEntry.FromString(last[-1].data).epoch if last else 0
    if epoch > had:
        raise Halt(
            f"{objects.uri(key)} was made in epoch {epoch}, but the control log has only come to epoch "
            f"{had}; {_REPAIR}"
        )


def _check_archive(objects: ObjectStore, fold: IntakeFold, tp: TopicPartition, end: int, key: str) -> None:
    topic = fold.topics_by_id.get(tp[0])
    if tp[0] in fold.deleted_topics:
        return  # its archives stay
    if topic is None or tp[1] >= topic.partitions:
        raise Halt(f"{objects.uri(key)} is of a topic partition that the intake log does not know; {_REPAIR}")
    stable = fold.stable_offset(tp)
    if end > stable:
        raise Halt(
            f"{objects.uri(key)} reaches to offset {end} of topic {topic.name}, but by the intake log "
            f"nothing from {stable} on was to be "
            f"archived yet; {_REPAIR}"
        )


def _farthest_file(objects: ObjectStore, newest_key: str, now_us: int) -> tuple[int, str] | None:
    """Of the intake files that are looked into, the one whose writer had read farthest, and how far.

    A writer whose clock is behind makes keys that sort before the newest one of the log, so the store's own
    times decide which came last.
    """
    last = nlargest(
        _FILES_MAX, _recent_files(objects, newest_key, now_us), key=lambda info: (info.modified_us, info.key)
    )
    return max(
        ((index, info.key) for info in last if (index := log_index_of(objects, info.key)) is not None),
        default=None,
    )


def _recent_files(objects: ObjectStore, newest_key: str, now_us: int) -> Iterator[ObjectInfo]:
    """Intake files of the hours around `newest_key` and around the present; without one, the first there
    are.
    """
    newest = parse_intake_key(newest_key)
    if newest is None:
        yield from islice(objects.list(INTAKE_PREFIX), _FILES_MAX)
        return
    first = max(0, newest.written_ms * 1000 // _HOUR_US - _HOURS_MAX)
    last = max(first + _HOURS_MAX, now_us // _HOUR_US) + 1
    hours = range(first, last + 1)
    chosen = list(hours) if len(hours) <= 3 * _HOURS_MAX else [*hours[: 2 * _HOURS_MAX], *hours[-_HOURS_MAX:]]
    for prefix in intake_hours_prefixes(chosen):
        yield from objects.list(prefix)


_REPAIR = (
    "the metadata store is older than the data (a restored copy, or another deployment's): put the "
    "newest one in place. "
    "Nothing is sequenced or archived until then, because offsets would be given twice"
)

"""Checks whether the metadata store is the newest one, or a restored older copy.

A log that lost entries would give the same offsets to other records. Objects that were made from a longer log
prove that it was longer:

- a checkpoint of either log beyond its end, or of entries that this log does not have;
- an archive beyond the stable offset of its partition (which never decreases), or of a topic that the log
  does not have;
- an archive of a later epoch than the control log has had: an epoch begins there before anything is made in
  it;
- an intake file whose writer had read the log further than it reaches now (the footer says how far). The
  files that were stored last are read, from the hours around the newest file that the log names and around
  the present, within bounds;
- the tail marker of the metadata store itself, which refuses to append below it (`archiver/log/sqlite.py`);
- any object in the data folder, if the log is empty.

A table proves no more than its archives. An unnamed intake file whose writer had read no further than the log
reaches proves nothing: the writer was killed between upload and append, or is between the two now.

Some losses cannot be detected. The tail marker was restored together with the copy, and since the copy was
made no object was stored that depends on the lost entries. That is so if the last writer stored a single file
and no process read the log after it. It is so if only topics, producers, markers and ticks were lost. It is
also so if the files of the lost entries are gone, or were written by clocks that differ by more than a day.

Lists and reads a bounded number of objects before it reads the log to its tail, so concurrent writes are
never mistaken for a loss. Changes nothing.
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
from intake.log.checkpoint import CheckpointStore
from intake.log.fold import IntakeFold
from intake.read.reader import log_index_of

_HOUR_US = 3_600_000_000
_HOURS_MAX = 24
"""This many hours before and after the newest file that the log names, and before the present, are listed,
and a few around them."""
_FILES_MAX = 64
"""At most this many files are read."""


def check_log_is_newest(
    objects: ObjectStore, log: Log, control: Log, read: Callable[[], IntakeFold], now_us: int
) -> None:
    """Raise `Halt`, naming the repair, if the data folder has objects that cannot come from these logs.
    `read` reads `log`, the intake log, to its tail.
    """
    before = read()
    # Objects are listed before the logs are read to their tails, so none can seem too new.
    checkpoints, of_ledger = CheckpointStore(objects).indexes(), LedgerCheckpoints(objects).indexes()
    archives, newest = _archives(objects)
    # With an empty log every object is proof, so no file need be read.
    farthest = _farthest_file(objects, before.newest_key, now_us) if before.next_index else None
    # Read again after the listing: what other processes wrote in between is in the log now.
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
    found = next((info.key for prefix in prefixes for info in objects.list(prefix)), None)
    if found is not None:
        raise Halt(f"the metadata store is empty, but the data folder holds {objects.uri(found)}; {_REPAIR}")


def _check_checkpoints(store: Checkpoints[C], log: Log, tail: int, indexes: list[int]) -> None:
    """No checkpoint may be beyond the log's end, and the newest complete one must be of this log."""
    if indexes and indexes[-1] > tail:
        where = store.objects.uri(store.key(indexes[-1]))
        raise Halt(
            f"{where} was made when the {log.name} log had {indexes[-1]} entries, but it ends at "
            f"{tail}; {_REPAIR}"
        )
    # The newest readable checkpoint decides: it includes what the older ones have.
    for index in reversed(indexes):
        try:
            if not store.is_of(store.load(index), log):
                raise Halt(
                    f"{store.objects.uri(store.key(index))} was made of entries that the {log.name} "
                    f"log does not have; {_REPAIR}"
                )
        # A damaged checkpoint proves nothing; the one before it may.
        except (Corrupted, NotFound, Trimmed):
            continue
        return


def _archives(objects: ObjectStore) -> tuple[dict[TopicPartition, tuple[int, str]], tuple[int, str]]:
    """Per partition the archive with the highest end offset; and the newest epoch of all archives, with one
    archive of it.
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
    """The control log's last entry has its newest epoch: who appends has read the one that deposed the
    earlier leader (rule L1).
    """
    # The floor, because the last entry may have been trimmed.
    last = control.read(max(control.tail() - 1, control.floor()))
    had = control_log_pb2.ControlEntry.FromString(last[-1].data).epoch if last else 0
    if epoch > had:
        raise Halt(
            f"{objects.uri(key)} was made in epoch {epoch}, but the control log has only come to epoch "
            f"{had}; {_REPAIR}"
        )


def _check_archive(objects: ObjectStore, fold: IntakeFold, tp: TopicPartition, end: int, key: str) -> None:
    topic = fold.topics_by_id.get(tp[0])
    # The archives of a deleted topic stay.
    if tp[0] in fold.deleted_topics:
        return
    # The number of partitions never decreases, so the log has lost the entry that added them.
    if topic is None or tp[1] >= topic.partitions:
        raise Halt(f"{objects.uri(key)} is of a topic partition that the intake log does not know; {_REPAIR}")
    # It never decreases, so an archive beyond it was made from a longer log.
    stable = fold.stable_offset(tp)
    if end > stable:
        raise Halt(
            f"{objects.uri(key)} reaches to offset {end} of topic {topic.name}, but by the intake log "
            f"nothing from {stable} on was to be "
            f"archived yet; {_REPAIR}"
        )


def _farthest_file(objects: ObjectStore, newest_key: str, now_us: int) -> tuple[int, str] | None:
    """Of the files that are read: the one whose writer had read the log furthest, and how far.

    A writer whose clock is behind makes keys that sort before the newest key of the log. So the store's
    modification times decide which files came last.
    """
    # Only some are opened: how far the writer had read is in the footer, one request each.
    last = nlargest(
        _FILES_MAX, _recent_files(objects, newest_key, now_us), key=lambda info: (info.modified_us, info.key)
    )
    return max(
        ((index, info.key) for info in last if (index := log_index_of(objects, info.key)) is not None),
        default=None,
    )


def _recent_files(objects: ObjectStore, newest_key: str, now_us: int) -> Iterator[ObjectInfo]:
    """Intake files of the hours around `newest_key` and around the present; without a key, the first files
    there are.
    """
    newest = parse_intake_key(newest_key)
    if newest is None:
        yield from islice(objects.list(INTAKE_PREFIX), _FILES_MAX)
        return
    first = max(0, newest.written_ms * 1000 // _HOUR_US - _HOURS_MAX)
    last = max(first + _HOURS_MAX, now_us // _HOUR_US) + 1
    hours = range(first, last + 1)
    # After a long pause, only the hours around both times are listed.
    chosen = list(hours) if len(hours) <= 3 * _HOURS_MAX else [*hours[: 2 * _HOURS_MAX], *hours[-_HOURS_MAX:]]
    for prefix in intake_hours_prefixes(chosen):
        yield from objects.list(prefix)


_REPAIR = (
    "the metadata store is older than the data (a restored copy, or another deployment's): put the "
    "newest one in place. "
    "Nothing is sequenced or archived until then, because offsets would be given twice"
)

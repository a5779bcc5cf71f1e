"""Where checkpoints are kept: finding the newest one that is whole, and naming those that nobody needs.

Only reads. Promises to pass over a damaged checkpoint, with a warning, as long as an older one can take its place, and to stop with the
repair where none can.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from archiver.errors import Corrupted, Halt, NotFound, Trimmed
from archiver.log.store import Log
from archiver.objects.paths import SHELF_PREFIX, checkpoint_key, checkpoint_prefix, parse_checkpoint_key, parse_shelf_key, shelf_key
from archiver.objects.store import ObjectStore
from intake.checkpoint import FORMAT, Checkpoint, ShelfRef, decode
from intake.entry_format import parse_entry

KEPT = 2
"""The log is never trimmed beyond the older one of so many checkpoints that are whole."""
_LOOKS_MAX = 3
"""How often the list is read anew when a checkpoint vanishes under the reader."""

_log = logging.getLogger(__name__)


class CheckpointStore:
    """The checkpoints of the intake log in an object store. Holds no state; safe to use from several threads."""

    def __init__(self, objects: ObjectStore, log_name: str = "intake") -> None:
        self.objects = objects
        self._log_name = log_name

    def key(self, index: int) -> str:
        """The key of the checkpoint before the entry at `index`."""
        return checkpoint_key(self._log_name, FORMAT, index)

    def indexes(self) -> list[int]:
        """Of every checkpoint of this format, ascending."""
        keys = (parse_checkpoint_key(info.key) for info in self.objects.list(checkpoint_prefix(self._log_name)))
        return sorted(key.index for key in keys if key is not None and key.fold_format == FORMAT)

    def load(self, index: int) -> Checkpoint:
        """One checkpoint; raises `NotFound`, `Corrupted`, or `Halt` if a newer version wrote it."""
        key = self.key(index)
        checkpoint = decode(self.objects.read(key), self.objects.uri(key))
        if checkpoint.index != index:
            raise Corrupted(f"checkpoint {self.objects.uri(key)} is that of index {checkpoint.index}")
        return checkpoint

    def start(self, log: Log) -> Checkpoint | None:
        """The newest checkpoint that is whole and from which the log can be read on; None if it is to be read from its beginning.

        Raises `Halt`, naming the repair, if the log does not begin at 0 and no checkpoint leads to where it begins.
        """
        for _ in range(_LOOKS_MAX):
            indexes = self.indexes()  # before the log is looked at: what is found is not ahead of it then
            floor, tail = log.floor(), log.tail()
            try:
                found = self._newest_whole(log, [index for index in indexes if floor <= index <= tail])
            except (NotFound, Trimmed):
                continue  # somebody made another one, and trimmed, or tidied up
            if found is not None or floor == 0:
                return found
            if log.floor() == floor:
                where = self.objects.uri(self.key(floor)).rpartition("/")[0]
                raise Halt(
                    f"the intake log begins at entry {floor} and ends at {tail}, and no checkpoint of it in {where} leads there "
                    f"({len(indexes)} exist, the newest is of entry {max(indexes, default='none')}): bring the checkpoint of an entry "
                    f"from {floor} to {tail} back from a copy of the data folder; if the metadata store is an older copy or another "
                    "deployment's, put the newest one in place"
                )
        raise Halt(f"the intake log was trimmed {_LOOKS_MAX} times while its checkpoints were looked for; try again")

    def _newest_whole(self, log: Log, indexes: Sequence[int]) -> Checkpoint | None:
        for index in reversed(indexes):
            try:
                found = self.load(index)
            except Corrupted as error:
                _log.warning("%s; an older one takes its place", error)
                continue
            if is_of_log(found, log):
                return found
            _log.warning("checkpoint %s is of another log than this one; it does not count", self.objects.uri(self.key(index)))
        return None

    def newest_shelves(self, log: Log) -> tuple[ShelfRef, ...]:
        """The shelves of the newest checkpoint."""
        newest = self.start(log)
        return () if newest is None else newest.shelves

    def last(self) -> list[Checkpoint]:
        """The newest checkpoints that are whole, at most `KEPT`, the newest first."""
        found: list[Checkpoint] = []
        for index in reversed(self.indexes()):
            try:
                found.append(self.load(index))
            except (Corrupted, NotFound) as error:
                _log.warning("%s; it does not count", error)
            if len(found) == KEPT:
                break
        return found


def is_of_log(checkpoint: Checkpoint, log: Log) -> bool:
    """Whether the log holds the entry that the checkpoint took in last (rule L1: ids are unlike each other).

    True if that entry was trimmed. Raises `Trimmed` if it is trimmed right now.
    """
    index, last = checkpoint.index - 1, list(checkpoint.state.ids)[-1:]
    if index < log.floor() or not last:
        return True
    entries = log.read(index, 1)
    return bool(entries) and parse_entry(index, entries[0].data).id == last[0]


def superseded(objects: ObjectStore) -> list[str]:
    """Keys of the checkpoints older than the last two, and of the shelves that neither of those names; ascending.

    Nothing if there are not two. What is newer than the newest checkpoint may be in the making and is left out. A process that slept may
    still hold an older list, so delete them after a grace.
    """
    store = CheckpointStore(objects)
    kept = store.last()
    if len(kept) < KEPT:
        return []
    named = {shelf_key(shelf.start, shelf.end) for checkpoint in kept for shelf in checkpoint.shelves}
    if any(objects.info(key) is None for key in sorted(named)):
        return []  # what takes their place is not whole itself
    keys = [store.key(index) for index in store.indexes() if index < kept[-1].index]
    for info in objects.list(SHELF_PREFIX):
        span = parse_shelf_key(info.key)
        if span is not None and span[1] <= kept[0].index and info.key not in named:
            keys.append(info.key)
    return sorted(keys)

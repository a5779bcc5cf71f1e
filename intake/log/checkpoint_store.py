"""Where checkpoints of the intake log are kept, with the shelves that they name."""

from __future__ import annotations

from archiver.log.checkpoints import KEPT, Checkpoints
from archiver.log.store import Log
from archiver.objects.paths import HISTORY_PREFIX, history_key, parse_history_key
from archiver.objects.store import ObjectStore
from intake.log.checkpoint import FORMAT, Checkpoint, HistoryRef, decode
from intake.log.entries import parse_entry


class CheckpointStore(Checkpoints[Checkpoint]):
    """The checkpoints of the intake log in an object store. Holds no state; safe to use from several
    threads.
    """

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(objects, "intake", FORMAT, decode, lambda index, data: parse_entry(index, data).id)

    def newest_history(self, log: Log) -> tuple[HistoryRef, ...]:
        """The shelves of the newest checkpoint."""
        newest = self.start(log)
        return () if newest is None else newest.history


def superseded(objects: ObjectStore) -> list[str]:
    """Keys of the checkpoints older than the last two, and of the shelves that neither of those names;
    ascending.

    Nothing if there are not two. What is newer than the newest checkpoint may be in the making and is left
    out. A process that slept may still hold an older list, so delete them after a grace.
    """
    store = CheckpointStore(objects)
    kept = store.last()
    if len(kept) < KEPT:
        return []
    named = {history_key(ref.start, ref.end) for checkpoint in kept for ref in checkpoint.history}
    if any(objects.info(key) is None for key in sorted(named)):
        return []  # what takes their place is not whole itself
    keys = store.older_than(kept[-1].index)
    for info in objects.list(HISTORY_PREFIX):
        span = parse_history_key(info.key)
        if span is not None and span[1] <= kept[0].index and info.key not in named:
            keys.append(info.key)
    return sorted(keys)

"""Stores checkpoints of the intake log, and finds superseded checkpoints and history files."""

from __future__ import annotations

from archiver.log.checkpoints import KEPT, Checkpoints
from archiver.log.store import Log
from archiver.objects.paths import HISTORY_PREFIX, history_key, parse_history_key
from archiver.objects.store import ObjectStore
from intake.log.checkpoint import FORMAT, Checkpoint, HistoryRef, decode
from intake.log.entries import parse_entry


class CheckpointStore(Checkpoints[Checkpoint]):
    """The checkpoints of the intake log in an object store. Stateless; safe to use from several threads."""

    def __init__(self, objects: ObjectStore) -> None:
        super().__init__(objects, "intake", FORMAT, decode, lambda index, data: parse_entry(index, data).id)

    def newest_history(self, log: Log) -> tuple[HistoryRef, ...]:
        """The history files of the newest checkpoint."""
        newest = self.start(log)
        return () if newest is None else newest.history


def superseded(objects: ObjectStore) -> list[str]:
    """Keys of the checkpoints older than the last two, and of history files that neither of those names;
    ascending.

    Empty if there are fewer than two. Objects newer than the newest checkpoint may belong to an unfinished
    one and are left out. A process that slept may still use an older list, so delete the keys only after a
    delay.
    """
    store = CheckpointStore(objects)
    kept = store.last()
    if len(kept) < KEPT:
        return []
    named = {history_key(ref.start, ref.end) for checkpoint in kept for ref in checkpoint.history}
    if any(objects.info(key) is None for key in sorted(named)):
        return []  # the newer history is incomplete, so the older one may still be required
    keys = store.older_than(kept[-1].index)
    for info in objects.list(HISTORY_PREFIX):
        span = parse_history_key(info.key)
        if span is not None and span[1] <= kept[0].index and info.key not in named:
            keys.append(info.key)
    return sorted(keys)

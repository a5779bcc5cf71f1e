"""Idempotent create for objects whose bytes follow from their key: succeeds if identical content exists."""

from __future__ import annotations

from archiver.objects.store import ObjectStore
from archiver.runtime.errors import KeyExists, NotFound, OutcomeUnknown
from archiver.runtime.text import counted


def create_once(store: ObjectStore, key: str, data: bytes, attempts_max: int = 3) -> bool:
    """Ensure that `key` holds `data`. True if this call created it, False if identical bytes existed.

    Raises `KeyExists` if other bytes exist. An unknown outcome is resolved by creating again, at most
    `attempts_max` times in all; a late first request can only store the same bytes. Then raises
    `OutcomeUnknown`. `RetryLater` passes through if no outcome was unknown.
    """
    last: OutcomeUnknown | None = None
    for _ in range(max(1, attempts_max)):
        try:
            store.create(key, data)
        except OutcomeUnknown as error:
            last = error
            continue
        except KeyExists as error:
            try:
                same = _holds(store, key, data)
            except NotFound:
                # Deleted between the create and the read.
                continue
            if not same:
                raise KeyExists(key) from error
            return False
        else:
            return True
    raise OutcomeUnknown(
        f"object {key}: still unknown whether it is stored after {counted(max(1, attempts_max), 'attempt')}"
    ) from last


def _holds(store: ObjectStore, key: str, data: bytes) -> bool:
    info = store.info(key)
    if info is None:
        raise NotFound(f"there is no object {key}")
    return info.size == len(data) and store.read(key) == data

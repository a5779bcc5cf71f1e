"""Does the store really keep what everything else stands on? Asked at the start, before anything is stored.

A server that ignores `If-None-Match` replaces an object where it should refuse, and every guarantee is gone
without an error. So an object of one fixed key, with fixed bytes, is created twice: the second create must be
refused, in one request and in parts. From then on the object is there, and a start costs one request, which
must be refused. Where the condition is ignored the same bytes are written again, which harms nobody. The
object stays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

from archiver.objects.paths import probe_key
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import ConfigInvalid, KeyExists, NotFound

PROBE: Final = b"stream-archiver asks with this object whether the store refuses to replace an object\n"


@runtime_checkable
class CreatesInParts(ObjectStore, Protocol):
    """A store on a server, which has another way to create large objects."""

    def create_in_parts(self, key: str, data: bytes) -> None:
        """As `create`, however small the data."""


def check_guarantees(store: ObjectStore) -> None:
    """Raise `ConfigInvalid` unless a second create is refused, and what was created can be read and is
    listed; also what the store raises.

    One request where it was asked before, eight where it was not. Nothing is asked of a local folder, where
    the kernel's `link` keeps it.
    """
    if not isinstance(store, CreatesInParts):
        return
    key = probe_key()
    if _created(lambda: store.create(key, PROBE)):
        check_new_object(store, key)


def check_new_object(store: ObjectStore, key: str) -> None:
    """As `check_guarantees`, with the object that was just created under `key` with the bytes `PROBE`."""
    where = store.uri(key)
    if _created(lambda: store.create(key, PROBE)):
        raise ConfigInvalid(
            f"the store replaced {where} although it was asked not to (If-None-Match: *): two writers "
            "could destroy each other's data; use "
            "a server that keeps conditional writes, and no proxy that strips their headers"
        )
    if isinstance(store, CreatesInParts) and _created(lambda: store.create_in_parts(key, PROBE)):
        raise ConfigInvalid(
            f"the store replaced {where} by an upload in parts although it was asked not to "
            "(If-None-Match: * of CompleteMultipartUpload); "
            "use a server that keeps that condition"
        )
    try:
        found = store.read(key)
    except NotFound as error:
        raise ConfigInvalid(
            f"{where} was stored and cannot be read: the store shows new objects late; use one that does not"
        ) from error
    if found != PROBE:
        raise ConfigInvalid(f"{where} holds other bytes than were stored; something on the way changes them")
    if key not in {info.key for info in store.list(key)}:
        raise ConfigInvalid(
            f"{where} was stored and is not listed: the store lists new objects late; use one that does not"
        )


def _created(create: Callable[[], None]) -> bool:
    try:
        create()
    except KeyExists:
        return False
    return True

"""Check at the start that the store supports conditional create, read-after-write and consistent listing.

A server that ignores `If-None-Match` replaces an object where it should refuse, and every guarantee is lost
without an error. The check creates an object with a fixed key and fixed bytes twice. The second create must
be refused, in one request and in parts. Afterwards the object exists, and each start costs one request, which
must be refused. A store that ignores the condition writes the same bytes again, which is harmless. The object
is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, runtime_checkable

from archiver.objects.paths import probe_key
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import ConfigInvalid, KeyExists, NotFound

# Fixed bytes: a store that ignores the condition writes them again, which changes nothing.
PROBE: Final = b"stream-archiver asks with this object whether the store refuses to replace an object\n"


@runtime_checkable
class CreatesInParts(ObjectStore, Protocol):
    """A store that creates large objects in parts."""

    def create_in_parts(self, key: str, data: bytes) -> None:
        """As `create`, in parts for data of any size."""


def check_conditional_put(store: ObjectStore) -> None:
    """Raise `ConfigInvalid` unless a second create is refused and the created object is readable and listed.

    Errors of the store pass through. Takes one request if the object exists, else eight. A local folder is
    not checked: the kernel's `link` guarantees the condition.
    """
    if not isinstance(store, CreatesInParts):
        return
    key = probe_key()
    # Refused already: the store supports the condition, and one request per start suffices.
    if _created(lambda: store.create(key, PROBE)):
        check_new_object(store, key)


def check_new_object(store: ObjectStore, key: str) -> None:
    """As `check_conditional_put`, with an object just created under `key` with the bytes `PROBE`."""
    where = store.uri(key)
    # The key exists now, so a create that succeeds has replaced the object.
    if _created(lambda: store.create(key, PROBE)):
        raise ConfigInvalid(
            f"the store replaced {where} despite If-None-Match: *: two writers "
            "could destroy each other's data; use "
            "a server that supports conditional writes, and no proxy that strips their headers"
        )
    # Some servers support the condition for a single PUT only.
    if isinstance(store, CreatesInParts) and _created(lambda: store.create_in_parts(key, PROBE)):
        raise ConfigInvalid(
            f"the store replaced {where} by an upload in parts despite "
            "If-None-Match: * of CompleteMultipartUpload; "
            "use a server that supports that condition"
        )
    try:
        found = store.read(key)
    except NotFound as error:
        raise ConfigInvalid(
            f"{where} was stored and cannot be read: the store shows new objects late; use one that does not"
        ) from error
    # A proxy may compress or rewrite bodies.
    if found != PROBE:
        raise ConfigInvalid(f"{where} holds other bytes than were stored; something on the way changes them")
    # The listing by which orphaned objects are found must show each object once it exists.
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

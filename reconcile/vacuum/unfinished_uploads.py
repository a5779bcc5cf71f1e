"""Uploads in parts that nobody will complete: a process was killed, or its last answer was lost. No listing
of objects shows them, and what they hold is paid for.

One is stale when it is as old as an orphan must be (`cleanup.orphan_age`, at least a day), by the store's own
time of its begin; an upload of ours is under way for minutes. Nothing in it is an object, so nobody is asked
and nothing is condemned: should its owner still be there, it starts over. Stores that know no such uploads
have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from archiver.objects.store import ObjectStore
from reconcile.snapshot.topic_snapshot import UnreferencedObject


@runtime_checkable
class KnowsUploads(Protocol):
    """A store with uploads in parts. What names one is the store's own."""

    def open_uploads(self) -> Iterator[tuple[str, Any]]:
        """Those that have not ended, by key; each with `begun_us`."""

    def abort_upload(self, upload: Any) -> None:
        """Give back what it holds; one that is gone is no error."""


def stale_uploads(
    objects: ObjectStore, now_us: int, age_s: float, count_max: int, *, abort: bool
) -> list[str]:
    """The keys of stale uploads, at most `count_max` of them, which with `abort` are aborted. Raises as the
    store does.
    """
    if not isinstance(objects, KnowsUploads):
        return []
    begun_before_us = now_us - round(age_s * 1e6)
    stale = list(
        islice(
            ((key, one) for key, one in objects.open_uploads() if one.begun_us < begun_before_us), count_max
        )
    )
    for _, one in stale if abort else ():
        objects.abort_upload(one)
    return [key for key, _ in stale]


def stray_uploads(
    objects: ObjectStore, now_us: int, age_s: float, count_max: int
) -> list[UnreferencedObject]:
    """The same as the reconciler tells them; the store does not say how much they hold."""
    why = "an upload in parts that was begun long ago and never came to its end"
    return [
        UnreferencedObject(key, 0, why)
        for key in stale_uploads(objects, now_us, age_s, count_max, abort=False)
    ]

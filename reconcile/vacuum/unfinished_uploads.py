"""Stale multipart uploads: their process was killed, or its last answer was lost. Object listings do not show
them, but their storage costs money.

An upload is stale after `cleanup.orphan_age` (at least a day), by the store's own start time; the archiver's
uploads take minutes. It contains no object, so nothing is marked first: if its owner still exists, it starts
again. Stores without such uploads have none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Protocol, runtime_checkable

from archiver.objects.store import ObjectStore
from reconcile.snapshot.topic_snapshot import UnreferencedObject


@runtime_checkable
class KnowsUploads(Protocol):
    """A store with multipart uploads. Each has the store's own identifier."""

    def open_uploads(self) -> Iterator[tuple[str, Any]]:
        """Unfinished uploads by key, each with `begun_us`."""

    def abort_upload(self, upload: Any) -> None:
        """Abort an upload and free its storage; a missing one is no error."""


def stale_uploads(
    objects: ObjectStore, now_us: int, age_s: float, count_max: int, *, abort: bool
) -> list[str]:
    """The keys of stale uploads, at most `count_max`; with `abort` they are aborted. Raises like the
    store.
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
    """The stale uploads for the reconciler; the store does not report their size."""
    why = "a multipart upload that was started long ago and never completed"
    return [
        UnreferencedObject(key, 0, why)
        for key in stale_uploads(objects, now_us, age_s, count_max, abort=False)
    ]

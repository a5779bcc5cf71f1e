"""Archives on their way into the store while their task goes on with the next.

To store an archive is to wait: for a disk to have synced it, for a bucket to answer. A task of hundreds of
small archives would wait as often (decision 0060). Promises that at most `most` uploads run at a time, and
that none does any more once it is closed; each runs once, and has the outcome of `publish`, its error
included. Must never drop an upload that was begun: only its answer tells whether the key is taken.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

from archiver.objects.store import ObjectStore
from archiver.refine.archive_file import Conflict, SpooledArchive, StoredArchive, store_archive


class Upload(Future[StoredArchive | Conflict]):
    """One of them."""

    def __init__(self) -> None:
        super().__init__()
        self._claim = threading.Lock()

    def run(self, objects: ObjectStore, key: str, spooled: SpooledArchive) -> None:
        """Store it as `publish` does, unless somebody does already."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            self.set_result(store_archive(objects, key, spooled))
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it, and waits until it is there
            self.set_exception(error)


class Uploads:
    """Stores archives in threads of its own, or at once in the caller's if `most` is 0. To be used in a
    `with`, by one thread.
    """

    def __init__(self, objects: ObjectStore, most: int) -> None:
        self._objects = objects
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="archive-upload") if most else None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all that was begun; the store's own settings bound that."""
        if self._pool is not None:
            self._pool.shutdown()

    def begin(self, key: str, spooled: SpooledArchive) -> Upload:
        """Store it under the key, which may be over when this returns."""
        upload = Upload()
        if self._pool is not None:
            try:
                self._pool.submit(upload.run, self._objects, key, spooled)
            except RuntimeError:
                # No thread can be had now. It was queued before that was found out, so another thread may be
                # at it already.
                pass
            else:
                return upload
        upload.run(self._objects, key, spooled)
        return upload

"""Archives on their way into the store while their task goes on with the next.

To store an archive is to wait: for a disk to have synced it, for a bucket to answer. A task of hundreds of small archives would wait as
often (decision 0060). Promises that at most `most` uploads run at a time, and that none does any more once it is closed; each has the
outcome of `publish`, its error included. Must never drop an upload that was begun: only its answer tells whether the key is taken.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self, TypeAlias

from archiver.errors import RetryLater
from archiver.jobs.archive_file import Conflict, SpooledArchive, StoredArchive, publish
from archiver.objects.store import ObjectStore

Upload: TypeAlias = "Future[StoredArchive | Conflict]"


class Uploads:
    """Stores archives in threads of its own, or at once in the caller's if `most` is 0. To be used in a `with`, by one thread."""

    def __init__(self, objects: ObjectStore, most: int) -> None:
        self._objects = objects
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="archive-upload") if most else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Wait for all that was begun; the store's own settings bound that."""
        if self._pool is not None:
            self._pool.shutdown()

    def begin(self, key: str, spooled: SpooledArchive) -> Upload:
        """Store it under the key as `publish` does, which may be over when this returns. Raises `RetryLater` if no thread can be had."""
        if self._pool is not None:
            try:
                return self._pool.submit(publish, self._objects, key, spooled)
            except RuntimeError as error:
                # A thread that is there already may store it nevertheless: so it must not be stored here too.
                raise RetryLater(f"{key} may or may not be stored ({error}); the next run tries again") from error
        done: Upload = Future()
        try:
            done.set_result(publish(self._objects, key, spooled))
        except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it, as from a thread
            done.set_exception(error)
        return done

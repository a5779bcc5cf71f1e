"""Fetches files of a bucket for one query, since DuckDB would download its extension for buckets.

The copies are in the store's spool folder and are removed with the process. At most `FETCHED_MAX` bytes are
fetched, and only from the prefix of the deployment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from archiver.catalog.tables import LiveFile
from archiver.config.types import format_size
from archiver.objects.path_normalization import key_of
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import Halt, NotFound

FETCHED_MAX: Final = 1024**3
"""Bytes of the files of one query."""
_CHUNK_BYTES: Final = 8 * 1024 * 1024


class FetchedFiles:
    """Local copies of files; each file is fetched once."""

    def __init__(self, objects: ObjectStore, bytes_max: int = FETCHED_MAX) -> None:
        self._objects = objects
        self._left = bytes_max
        self._bytes_max = bytes_max
        self._paths: dict[str, str] = {}

    def paths(self, files: Sequence[LiveFile]) -> list[str]:
        """Paths of the copies. Raises `Halt` for files that are too large together or outside the prefix, and
        what the store raises.
        """
        new = [file for file in files if file.path not in self._paths]
        self._left -= sum(file.file_size for file in new)
        if self._left < 0:
            most = format_size(self._bytes_max)
            raise Halt(f"its files exceed {most}, the limit of a query over a bucket; use Spark or Trino")
        for file in new:
            self._paths[file.path] = self._fetched(file)
        return [self._paths[file.path] for file in files]

    def _fetched(self, file: LiveFile) -> str:
        key = key_of(self._objects, file.path)
        if key is None:
            raise Halt(f"{file.path} is outside of data.uri; use Spark or Trino")
        target = self._objects.spool_dir() / f"query-{len(self._paths)}"
        try:
            with self._objects.open_input(key) as source, target.open("wb") as copy:
                while data := source.read(_CHUNK_BYTES):
                    copy.write(data)
        except (NotFound, OSError) as error:
            raise Halt(f"{file.path} cannot be fetched: {error}") from error
        return str(target)

"""Files of a bucket, fetched for one query: DuckDB reads local files only, because its extension for buckets
comes from the network.

Owns the copies, which lie in the store's folder for files on their way and go with the process. Promises that
no more than `FETCHED_MAX` is fetched, and nothing from outside of the deployment's own prefix.
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
"""Bytes of one query's files."""
_CHUNK_BYTES: Final = 8 * 1024 * 1024


class FetchedFiles:
    """Local copies, each made once."""

    def __init__(self, objects: ObjectStore, bytes_max: int = FETCHED_MAX) -> None:
        self._objects = objects
        self._left = bytes_max
        self._bytes_max = bytes_max
        self._paths: dict[str, str] = {}

    def paths(self, files: Sequence[LiveFile]) -> list[str]:
        """Where the copies of these files are. Raises `Halt` if they are too large together, or lie
        elsewhere; and as the store does.
        """
        new = [file for file in files if file.path not in self._paths]
        self._left -= sum(file.file_size for file in new)
        if self._left < 0:
            most = format_size(self._bytes_max)
            raise Halt(
                f"its files have more than the {most} that are fetched from a bucket for a query; ask "
                "Spark or Trino"
            )
        for file in new:
            self._paths[file.path] = self._fetched(file)
        return [self._paths[file.path] for file in files]

    def _fetched(self, file: LiveFile) -> str:
        key = key_of(self._objects, file.path)
        if key is None:
            raise Halt(f"{file.path} lies outside of data.uri; ask Spark or Trino")
        target = self._objects.spool_dir() / f"query-{len(self._paths)}"
        try:
            with self._objects.open_input(key) as source, target.open("wb") as copy:
                while data := source.read(_CHUNK_BYTES):
                    copy.write(data)
        except (NotFound, OSError) as error:
            raise Halt(f"{file.path} cannot be fetched: {error}") from error
        return str(target)

"""Bounds on what a catalog can make this process request, read and write: bytes, time and places. Pure except
for resolving links of local paths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from archiver.objects.path_normalization import local_path

CONFIGURATION_BYTES_MAX: Final = 1024 * 1024
"""Of the answer to `GET /v1/config`. Catalogs in use answer with less than 10 KB."""
VALUE_BYTES_MIN: Final = 16
"""The bound in bytes allows one JSON value for each so many. Two bytes of JSON can become an error of 850
bytes."""
_BUCKETS: Final = {
    **dict.fromkeys(("s3", "s3a", "s3n"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("abfs", "abfss", "wasb", "wasbs"), "abfs"),
}
"""Schemes of object stores, and the one spelling in which they are compared."""
_CHANGES_A_PATH: Final = re.compile(r"[?#\x00-\x1f\x7f]")
"""pyiceberg cuts a URI at `?` and `#`, and drops tabs and line ends. Without this rule, another path is
opened than the one compared."""
_ROOTED_URI: Final = re.compile(r"file:/(?:/{2,}|(?!/))")
"""`file:/x` and `file:///x`. pyiceberg opens `file:x` and `file://x` below the working directory."""


class TablePlaces:
    """Where metadata files, manifest lists and manifests may lie. Paths elsewhere are neither read nor
    written.
    """

    def __init__(self, prefixes: Iterable[str], *, any_bucket: bool = False) -> None:
        """`prefixes`: folders (`file:` URIs or absolute paths) and prefixes of buckets. `any_bucket`: whether
        every bucket is allowed.
        """
        self._stated = tuple(prefixes)
        self._folders = tuple(
            os.path.realpath(path) for prefix in self._stated if (path := _local(prefix)) is not None
        )
        self._buckets = tuple(
            found.rstrip("/") for prefix in self._stated if (found := _in_bucket(prefix)) is not None
        )
        self._any_bucket = any_bucket

    def refusal(self, location: str) -> str | None:
        """Why nothing at `location` may be opened; None if it may."""
        if _CHANGES_A_PATH.search(location) is not None:
            return "it has a character that no path of table metadata needs (?, #, or a control character)"
        path = _local(location)
        if path is not None:
            # Links are followed before the comparison, or a link inside a folder could lead out of it.
            found = os.path.realpath(path)
            within = any(
                found == folder or found.startswith(f"{folder.rstrip('/')}/") for folder in self._folders
            )
        else:
            key = _in_bucket(location)
            if key is None:
                return "it is neither a local path nor an object of a bucket"
            # Object keys are not normalised here, but a server or proxy may do it.
            if {".", ".."} & set(key.split("/")):
                return "it has a . or .. component, which servers may follow out of the folder"
            # The slash keeps `bucket/data` from matching `bucket/data2`.
            within = self._any_bucket or any(key.startswith(f"{prefix}/") for prefix in self._buckets)
        if within:
            return None
        return (
            "tables of this catalog may lie in "
            f"{', '.join(self._stated) or 'no folder'}{' and in buckets' if self._any_bucket else ''}"
        )


class JsonValues:
    """Counts the values of a JSON document before it is parsed, from bytes that come in parts."""

    def __init__(self, bytes_max: int) -> None:
        self.values_max = bytes_max // VALUE_BYTES_MIN
        self._found = 0

    def too_many(self, part: bytes) -> bool:
        """Whether the document has more values than allowed with this part."""
        # Punctuation inside of strings counts as well, so the count is an upper bound that needs no parser.
        self._found += part.count(b",") + part.count(b"[") + part.count(b"{")
        return self._found > self.values_max


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """The bounds of one catalog. The defaults are those of the group `catalogs` of the configuration; without
    places all are allowed.
    """

    request_timeout_s: float = 30.0
    """For one request to a REST catalog, answer included."""
    bytes_max: int = 64 * 1024 * 1024
    """Of one answer of a REST catalog, and of one metadata file, manifest list or manifest, decompressed."""
    allow_http: bool = False
    """Whether a store that the catalog names may be used over `http://` on another machine."""
    places: TablePlaces | None = None


def _local(location: str) -> str | None:
    """The local path of a `file:` URI or an absolute path; None for anything else."""
    if location.startswith("/"):
        return location
    return local_path(location) if _ROOTED_URI.match(location) is not None else None


def _in_bucket(location: str) -> str | None:
    """`scheme://bucket/key` in the spelling that is compared; None if it names no bucket."""
    scheme, separator, rest = location.partition("://")
    # `s3a://` and `s3://` name the same object, so both are compared in one spelling.
    known = _BUCKETS.get(scheme)
    if not separator or known is None or not urlsplit(location).netloc:
        return None
    return f"{known}://{rest}"

"""Open the object store of a URI: a local folder (`file://`) or a bucket (`s3://`)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from archiver.objects.key_rules import RESERVED
from archiver.objects.local import LocalObjectStore
from archiver.objects.location import StorePlace
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import ConfigInvalid


def open_store(place: StorePlace, cluster_id: str | None = None) -> ObjectStore:
    """Open the store of that location. Connects to nothing and creates nothing; Spark executors call it too.

    Raises `ConfigInvalid` for anything but `file:///absolute/path` (percent-encoded where needed) and
    `s3://bucket/prefix`.

    With a cluster id the store serves only that cluster's data. While the location has no cluster or another
    one, writes, deletes and reports of a missing object raise `RetryLater`. Omit the id only to find out
    which cluster the location belongs to.
    """
    uri = place.uri
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise ConfigInvalid(f"data.uri {uri!r} is no URI: {error}") from error
    # Accepted elsewhere, but then a table would have URIs of two spellings.
    if parts.scheme in ("s3a", "s3n"):
        raise ConfigInvalid(f"data.uri {uri!r}: {parts.scheme}:// is Hadoop's spelling; write s3://")
    if parts.scheme == "s3":
        # Imported late: boto3 takes 0.1 s to import, which a local folder does not need.
        from archiver.objects.s3.store import S3ObjectStore

        return S3ObjectStore(place, cluster_id)
    if parts.scheme != "file":
        raise ConfigInvalid(
            f"data.uri {uri!r} must be of the form file:///path/to/data or s3://bucket/prefix"
        )
    # `file://data/x` names the host "data"; the path would silently be `/x`.
    if parts.netloc not in ("", "localhost"):
        raise ConfigInvalid(
            f"data.uri {uri!r} names the host {parts.netloc!r}; an absolute path needs three slashes: "
            "file:///path/to/data"
        )
    if parts.query or parts.fragment:
        raise ConfigInvalid(f"data.uri {uri!r} has a query or fragment; a path with ? or # cannot be used")
    return LocalObjectStore(_checked_path(uri, parts.path), cluster_id)


def spool_folder(uri: str) -> Path | None:
    """The folder of unfinished files of a `file:` store; None for a bucket, whose spool is not next to its
    data.
    """
    parts = urlsplit(uri)
    return _checked_path(uri, parts.path) / RESERVED if parts.scheme == "file" else None


def _checked_path(uri: str, encoded: str) -> Path:
    try:
        path = unquote(encoded, errors="strict")
    except UnicodeDecodeError as error:
        raise ConfigInvalid(f"data.uri {uri!r} is not UTF-8 once its percent signs are decoded") from error
    if not path.startswith("/"):
        raise ConfigInvalid(f"data.uri {uri!r} must be an absolute path: file:///path/to/data")
    # The same folder would have several URIs, and table metadata contains them.
    if ".." in path.split("/"):
        raise ConfigInvalid(f"data.uri {uri!r} has a '..' in its path; name the folder itself")
    # Object URIs go into table metadata undecoded, and these characters would end the path there.
    if any(character in "?#" or ord(character) < 32 or ord(character) == 127 for character in path):
        raise ConfigInvalid(
            f"data.uri {uri!r}: a path with ?, # or control characters cannot be used by table readers"
        )
    folder = Path("/" + path.strip("/"))
    if folder == Path("/"):
        raise ConfigInvalid(f"data.uri {uri!r} is the root of the file system; name a folder of its own")
    return folder

"""From where the objects are to a store: a local folder (`file://`) or a bucket (`s3://`)."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from archiver.objects.key_rules import RESERVED
from archiver.objects.local import LocalObjectStore
from archiver.objects.location import StorePlace
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import ConfigInvalid


def open_store(place: StorePlace, cluster_id: str | None = None) -> ObjectStore:
    """The store of that place; raises `ConfigInvalid` for anything but `file:///absolute/path`
    (percent-encoded where needed) and `s3://bucket/prefix`.

    With the id of a cluster it serves that cluster's data only: while another one, or none, is in its place,
    it raises `RetryLater` instead of making or deleting anything, and instead of telling that an object is
    not there. Without one, for the first look alone.

    Nothing is created, touched or connected to: also called on Spark executors.
    """
    uri = place.uri
    try:
        parts = urlsplit(uri)
    except ValueError as error:
        raise ConfigInvalid(f"data.uri {uri!r} is no URI: {error}") from error
    if parts.scheme in ("s3a", "s3n"):
        raise ConfigInvalid(f"data.uri {uri!r}: {parts.scheme}:// is Hadoop's spelling; write s3://")
    if parts.scheme == "s3":
        # Imported only here: boto3 takes a tenth of a second that nobody with a local folder should wait for.
        from archiver.objects.s3.store import S3ObjectStore

        return S3ObjectStore(place, cluster_id)
    if parts.scheme != "file":
        raise ConfigInvalid(
            f"data.uri {uri!r} must be of the form file:///path/to/data or s3://bucket/prefix"
        )
    if parts.netloc not in ("", "localhost"):
        raise ConfigInvalid(
            f"data.uri {uri!r} names the host {parts.netloc!r}; an absolute path needs three slashes: "
            "file:///path/to/data"
        )
    if parts.query or parts.fragment:
        raise ConfigInvalid(f"data.uri {uri!r} has a query or fragment; a path with ? or # cannot be used")
    return LocalObjectStore(_checked_path(uri, parts.path), cluster_id)


def spool_folder(uri: str) -> Path | None:
    """Where processes keep files on their way into the store of that URI, if that is a local folder: nothing
    of a bucket lies beside it.
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

"""Is this object what that path in a table's metadata means? However either is spelled.

Pure. Engines write `s3://`, `s3a://` and `s3n://`, host style and path style, `file:/x` and `file:///x`,
doubled slashes and percent signs for one and the same object, and a vacuum that takes two spellings for two
objects deletes live files. So nothing of a path is understood here but its end: what follows the folder of
the table, which bears the topic's id (128 bits) and so lies nowhere else. Promises that two spellings of one
object compare equal. Where two objects compare equal that are not the same, one of them stays that might have
gone.
"""

from __future__ import annotations

import hashlib
from urllib.parse import unquote

from archiver.objects.store import ObjectStore
from archiver.runtime.errors import InvalidInput
from archiver.runtime.redaction import excerpt

_ROUNDS_MAX = 100
"""Times that a path may have been percent-encoded over."""
_BUCKET_SCHEMES = ("s3", "s3a", "s3n")
_FILE = "file:"


def tail(path: str, folder: str) -> str | None:
    """What of `path` lies below the last folder `folder` in it, spelled in one way; None if it does not lie
    below one.

    `folder` is a key without a slash at the end (`archive/{topic_id}`). Percent signs are decoded until none
    is left to decode, empty and `.` components left out, `..` followed.
    """
    if "%" not in path and "\\" not in path and "/." not in path:  # nearly all of them
        _, found, rest = f"/{path}".rpartition(f"/{folder}/")
        if found and rest and "//" not in rest and not rest.endswith("/"):
            return rest
    components: list[str] = []
    for component in _decoded(path).replace("\\", "/").split("/"):
        if component == "..":
            del components[-1:]
        elif component not in ("", "."):
            components.append(component)
    wanted = folder.split("/")
    for at in range(len(components) - len(wanted) - 1, -1, -1):
        if components[at : at + len(wanted)] == wanted:
            return "/".join(components[at + len(wanted) :])
    return None


def key_of(objects: ObjectStore, path: str) -> str | None:
    """The object's key behind a path in a table's metadata; None if it lies outside of the store. For reading
    only, as `key_below`.
    """
    return key_below(path, objects.uri("k").removesuffix("k"))


def key_below(path: str, root: str) -> str | None:
    """The key of an object of the store whose objects' URIs are `root` and a key, however engines spell the
    scheme; None for anything else.

    For reading only: what is to be deleted is compared by `tail`, which knows every spelling.
    """
    below, spelled = _spelled(root), _spelled(path)
    return spelled[len(below) :] if spelled.startswith(below) and ".." not in spelled else None


def local_path(uri: str) -> str | None:
    """The path on this machine that a `file:` URI names; None for any other."""
    spelled = _spelled(uri)
    return spelled.removeprefix(_FILE) if spelled.startswith(_FILE) else None


def _spelled(uri: str) -> str:
    """One spelling of a URI: engines write `file:/x`, `file:///x`, `s3://` and `s3a://` for the same
    object.
    """
    if uri.startswith(_FILE):
        return f"{_FILE}/{uri.removeprefix(_FILE).lstrip('/')}"
    scheme, separator, rest = uri.partition("://")
    return f"s3://{rest}" if separator and scheme in _BUCKET_SCHEMES else uri


def _decoded(path: str) -> str:
    for _ in range(_ROUNDS_MAX):
        decoded = unquote(path, errors="surrogateescape")
        if decoded == path:
            return path
        path = decoded
    raise InvalidInput(f"path {excerpt(path, 80)!r} is percent-encoded more than {_ROUNDS_MAX} times")


class NamedFiles:
    """The files below one table's folder that something names: a set of paths that takes about 70 bytes of
    memory for each of them.

    Kept are 64 bits of a digest. Should two files ever share them, one passes for named that is not: it
    stays, and nothing is lost.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._digests: set[int] = set()

    def add(self, path: str) -> None:
        """Take in a path as metadata spells it; one that lies elsewhere is passed over."""
        found = tail(path, self._folder)
        if found is not None:
            self._digests.add(_digest(found))

    def __contains__(self, key: object) -> bool:
        """Whether the object of that key was named; one that lies elsewhere counts as named."""
        found = tail(str(key), self._folder)
        return found is None or _digest(found) in self._digests


def _digest(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest())

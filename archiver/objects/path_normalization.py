"""Compare paths in table metadata with object keys, independent of their spelling.

Engines write one object as `s3://`, `s3a://` or `s3n://`, host style or path style, `file:/x` or `file:///x`,
with doubled slashes or percent signs. A vacuum that takes two spellings for two objects deletes live files.
Only the end of a path is therefore compared: the part after the table's folder, whose name contains the
topic's 128-bit id. Two spellings of one object always compare equal. If two different objects compare equal,
a deletable object is kept, which is safe.
"""

from __future__ import annotations

import hashlib
from urllib.parse import unquote

from archiver.objects.store import ObjectStore
from archiver.runtime.errors import InvalidInput
from archiver.runtime.redaction import excerpt

_ROUNDS_MAX = 100
"""Largest number of nested percent-encodings of a path."""
_BUCKET_SCHEMES = ("s3", "s3a", "s3n")
_FILE = "file:"


def tail(path: str, folder: str) -> str | None:
    """The normalized rest of `path` below the last `folder` in it; None if it is not below one.

    `folder` is a key without a trailing slash (`archive/{topic_id}`). Percent signs are decoded until none
    remain, empty and `.` components are dropped, and `..` is resolved.
    """
    if "%" not in path and "\\" not in path and "/." not in path:  # fast path: nearly all paths
        _, found, rest = f"/{path}".rpartition(f"/{folder}/")
        if found and rest and "//" not in rest and not rest.endswith("/"):
            return rest
    components: list[str] = []
    # A backslash separates components on some engines. Treated as one everywhere, which at worst keeps an
    # object.
    for component in _decoded(path).replace("\\", "/").split("/"):
        if component == "..":
            del components[-1:]
        elif component not in ("", "."):
            components.append(component)
    folder_parts = folder.split("/")
    # From the end: the last occurrence, as in the fast path. `- 1`: something must follow the folder.
    for at in range(len(components) - len(folder_parts) - 1, -1, -1):
        if components[at : at + len(folder_parts)] == folder_parts:
            return "/".join(components[at + len(folder_parts) :])
    return None


def key_of(objects: ObjectStore, path: str) -> str | None:
    """The object key of a path in table metadata; None if it is outside the store. For reading only, as
    `key_below`.
    """
    return key_below(path, objects.uri("k").removesuffix("k"))


def key_below(path: str, root: str) -> str | None:
    """The object key of `path` in the store with root URI `root`, for every spelling of the scheme; None
    otherwise.

    For reading only. Deletions compare by `tail`, which knows every spelling.
    """
    below, spelled = _spelled(root), _spelled(path)
    return spelled[len(below) :] if spelled.startswith(below) and ".." not in spelled else None


def local_path(uri: str) -> str | None:
    """The local path of a `file:` URI; None for any other URI."""
    spelled = _spelled(uri)
    return spelled.removeprefix(_FILE) if spelled.startswith(_FILE) else None


def _spelled(uri: str) -> str:
    """A URI in one spelling: engines write `file:/x`, `file:///x`, `s3://` and `s3a://` for the same
    object.
    """
    if uri.startswith(_FILE):
        return f"{_FILE}/{uri.removeprefix(_FILE).lstrip('/')}"
    scheme, separator, rest = uri.partition("://")
    return f"s3://{rest}" if separator and scheme in _BUCKET_SCHEMES else uri


def _decoded(path: str) -> str:
    # Some engines encode a path that is already encoded. Bounded, because each round may be long.
    for _ in range(_ROUNDS_MAX):
        decoded = unquote(path, errors="surrogateescape")
        if decoded == path:
            return path
        path = decoded
    # An undecoded rest could hide a referenced file, so the vacuum must stop here.
    raise InvalidInput(f"path {excerpt(path, 80)!r} is percent-encoded more than {_ROUNDS_MAX} times")


class NamedFiles:
    """A set of referenced files below one table's folder, at about 70 bytes of memory per file.

    It stores 64 bits of a digest per path. After a collision an unreferenced file counts as referenced and is
    kept, so nothing is lost.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._digests: set[int] = set()

    def add(self, path: str) -> None:
        """Add a path as metadata spells it; a path outside the folder is ignored."""
        found = tail(path, self._folder)
        if found is not None:
            self._digests.add(_digest(found))

    def __contains__(self, key: object) -> bool:
        """Whether that object is referenced; a key outside the folder counts as referenced."""
        found = tail(str(key), self._folder)
        # Unknown means referenced: a wrong answer keeps an object and never deletes one.
        return found is None or _digest(found) in self._digests


def _digest(text: str) -> int:
    # A 64-bit number takes far less memory than the path of about 150 characters.
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest())

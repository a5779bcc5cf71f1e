"""Whether the places of a deployment exist and admit this user, checked before anything is opened in them.

A folder that is absent may be one that is not mounted yet. Whoever made it anew would begin a second
deployment below the mount point, so a daemon makes only what is certainly missing because nothing was ever
there: the last part of the data folder's path and the metadata database, and each only while the other shows
no earlier deployment. A place that exists and does not admit this user is `NotPermitted` on such a first
start. With an earlier deployment it is waited for: below a mount point there may be a folder of root. Changes
nothing.
"""

from __future__ import annotations

import errno
import getpass
import os
from pathlib import Path

from archiver.config.metadata import MetadataSettings
from archiver.objects.cluster import read_cluster
from archiver.objects.local import LocalObjectStore
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import NotPermitted, RetryLater

WITNESSES = (".intake.tail", ".control.tail")
"""Files that tell how far a log once reached, behind the name of what they lie beside."""

_DENIED = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))


def check_data_place(store: ObjectStore, metadata: Path) -> None:
    """Raise `RetryLater` while the data folder is absent and must not be made; `metadata` is a file that
    earlier runs have left, if any.
    """
    if not isinstance(store, LocalObjectStore):
        return
    for path in (store.root, metadata):
        _check_may_search(path)
    known = metadata.exists()
    if store.root.is_dir():
        _check_may_write(store.root, "data.uri", known)
        return
    if known:
        raise RetryLater(
            f"the data folder {store.root} does not exist, but the metadata store {metadata} does: "
            "mount it, or bring it back"
        )
    if not store.root.parent.is_dir():
        raise RetryLater(
            f"the data folder {store.root} does not exist, nor does {store.root.parent}: mount it, or "
            "make that folder"
        )
    _check_may_write(store.root.parent, "data.uri", known)


def earlier_trace(metadata: MetadataSettings) -> Path:
    """A file of this machine that an earlier run of the deployment has left, if there was one."""
    beside = metadata.local_path
    return beside if metadata.sqlite is not None else beside.with_name(beside.name + WITNESSES[0])


def check_database_rights(path: Path) -> None:
    """Raise `NotPermitted` if this user may not write the metadata database, or its folder, where SQLite
    keeps its log.
    """
    for place in (path.parent, path):
        if not os.access(place, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            why = (
                f"the user {_user()} may not write {place} (metadata.sqlite.path); give it that right "
                "(chown, chmod)"
            )
            raise NotPermitted(f"{why}, or run as the daemon's user")


def check_state_folder_place(folder: Path) -> None:
    """As `check_state_folder`, and makes nothing."""
    if folder.is_dir():
        _check_may_write(folder, "metadata.etcd.state", known=False)
    elif folder.parent.is_dir():
        _check_may_write(folder.parent, "metadata.etcd.state", known=False)
    else:
        raise RetryLater(f"neither the folder {folder} (metadata.etcd.state) nor {folder.parent} exists")


def check_state_folder(folder: Path) -> None:
    """Make the folder in which a machine keeps its own where the metadata are in etcd; raise `RetryLater`
    while it cannot be made.
    """
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        if error.errno in _DENIED and folder.parent.is_dir():
            _check_may_write(folder.parent, "metadata.etcd.state", known=False)
        raise RetryLater(
            f"the folder {folder} (metadata.etcd.state) can neither be found nor made: {error.strerror}"
        ) from error


def check_metadata_place(metadata: Path, store: ObjectStore) -> None:
    """Raise `RetryLater` while the metadata database is absent and must not be made; also what reading the
    data folder raises.
    """
    _check_may_search(metadata)
    if not metadata.parent.is_dir():
        raise RetryLater(
            f"the folder {metadata.parent} of the metadata store does not exist: mount it, or make it"
        )
    if metadata.exists():
        return
    witness = next(
        (path for suffix in WITNESSES if (path := metadata.with_name(metadata.name + suffix)).exists()), None
    )
    if witness is not None:
        raise RetryLater(
            f"the metadata store {metadata} does not exist, but {witness} says that it did: bring it back"
        )
    if read_cluster(store) is not None:
        raise RetryLater(
            f"the metadata store {metadata} does not exist, but the data folder has an identity: mount "
            "it, or bring it back"
        )
    _check_may_write(metadata.parent, "metadata.sqlite.path", known=False)


def _check_may_write(folder: Path, setting: str, known: bool) -> None:
    """Raise if this user may not write in that folder: `RetryLater` where an earlier deployment is `known`,
    else `NotPermitted`.
    """
    if os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return
    why = (
        f"the user {_user()} may not write in the folder {folder} ({setting}); give it that right (chown, "
        "chmod), or set another folder"
    )
    raise RetryLater(why) if known else NotPermitted(why)


def _check_may_search(path: Path) -> None:
    """Raise `RetryLater` where this user cannot find out whether there is such a path: an earlier deployment
    may be there.
    """
    try:
        path.exists()
    except PermissionError as error:
        why = (
            f"the user {_user()} may not search the folders above {path}; give it that right (chown, "
            "chmod), or set another folder"
        )
        raise RetryLater(why) from error


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container's user needs no name.
        return str(os.getuid())

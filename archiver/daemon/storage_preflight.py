"""Checks before the start: do the folders of a deployment exist, and may this user write there?

An absent folder may be one that is not mounted yet. Creating it would start a second deployment below the
mount point. So a daemon creates only the last part of the data folder's path and the metadata database. It
creates each only while the other shows no earlier deployment. Missing rights are `NotPermitted` on such a
first start. With an earlier deployment they are `RetryLater`, because an unmounted mount point may be a
folder of root.
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

TAIL_MARKERS = (".intake.tail", ".control.tail")
"""Suffixes of the tail markers, which record how far a log reached."""

_DENIED = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))


def check_data_place(store: ObjectStore, metadata: Path) -> None:
    """Raise `RetryLater` while the data folder is absent and must not be created.

    `metadata` is the file that exists if there were earlier runs.
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
            "create that folder"
        )
    _check_may_write(store.root.parent, "data.uri", known)


def earlier_trace(metadata: MetadataSettings) -> Path:
    """File that exists on this machine if the deployment ran before."""
    marker = metadata.local_path
    return marker if metadata.sqlite is not None else marker.with_name(marker.name + TAIL_MARKERS[0])


def check_database_rights(path: Path) -> None:
    """Raise `NotPermitted` if this user may not write the metadata database or its folder.

    SQLite writes its write-ahead log into that folder.
    """
    for place in (path.parent, path):
        if not os.access(place, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
            why = (
                f"the user {_user()} may not write {place} (metadata.sqlite.path); give it that right "
                "(chown, chmod)"
            )
            raise NotPermitted(f"{why}, or run as the daemon's user")


def check_state_folder_place(folder: Path) -> None:
    """As `check_state_folder`, but creates nothing."""
    if folder.is_dir():
        _check_may_write(folder, "metadata.etcd.state", known=False)
    elif folder.parent.is_dir():
        _check_may_write(folder.parent, "metadata.etcd.state", known=False)
    else:
        raise RetryLater(f"neither the folder {folder} (metadata.etcd.state) nor {folder.parent} exists")


def check_state_folder(folder: Path) -> None:
    """Create the local state folder of a deployment with etcd; raise `RetryLater` while that fails."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        if error.errno in _DENIED and folder.parent.is_dir():
            _check_may_write(folder.parent, "metadata.etcd.state", known=False)
        raise RetryLater(
            f"the folder {folder} (metadata.etcd.state) can neither be found nor created: {error.strerror}"
        ) from error


def check_metadata_place(metadata: Path, store: ObjectStore) -> None:
    """Raise `RetryLater` while the metadata database is absent and must not be created.

    Also raises what reading the data folder raises.
    """
    _check_may_search(metadata)
    if not metadata.parent.is_dir():
        raise RetryLater(
            f"the folder {metadata.parent} of the metadata store does not exist: mount it, or create it"
        )
    if metadata.exists():
        return
    marker = next(
        (path for suffix in TAIL_MARKERS if (path := metadata.with_name(metadata.name + suffix)).exists()),
        None,
    )
    if marker is not None:
        raise RetryLater(
            f"the metadata store {metadata} does not exist, but {marker} says that it did: bring it back"
        )
    if read_cluster(store) is not None:
        raise RetryLater(
            f"the metadata store {metadata} does not exist, but the data folder has an identity: mount "
            "it, or bring it back"
        )
    _check_may_write(metadata.parent, "metadata.sqlite.path", known=False)


def _check_may_write(folder: Path, setting: str, known: bool) -> None:
    """Raise if this user may not write there: `RetryLater` if an earlier deployment is `known`, else
    `NotPermitted`.
    """
    if os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        return
    why = (
        f"the user {_user()} may not write in the folder {folder} ({setting}); give it that right (chown, "
        "chmod), or set another folder"
    )
    raise RetryLater(why) if known else NotPermitted(why)


def _check_may_search(path: Path) -> None:
    """Raise `RetryLater` if this user cannot see whether the path exists: an earlier deployment may be
    there.
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
    except (KeyError, OSError):  # a user in a container may have no name
        return str(os.getuid())

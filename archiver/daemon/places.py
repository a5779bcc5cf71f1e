"""Whether the places of a deployment are there, looked at before anything is opened in them.

A folder that is absent may be one that is not mounted yet. Whoever made it anew would begin a second deployment below the mount point, so
a daemon makes only what is certainly missing because nothing was ever there: the last part of the data folder's path and the metadata
database, and each only while the other tells of no earlier deployment. Changes nothing.
"""

from __future__ import annotations

from pathlib import Path

from archiver.errors import RetryLater
from archiver.objects.cluster import read_cluster
from archiver.objects.local import LocalObjectStore
from archiver.objects.store import ObjectStore

WITNESSES = (".intake.tail", ".control.tail")
"""Files that tell how far a log once reached, behind the name of what they lie beside."""


def check_data_place(store: ObjectStore, metadata: Path) -> None:
    """Raise `RetryLater` while the data folder is absent and must not be made; `metadata` is a file that earlier runs have left, if any."""
    if not isinstance(store, LocalObjectStore) or store.root.is_dir():
        return
    if metadata.exists():
        raise RetryLater(f"the data folder {store.root} does not exist, but the metadata store {metadata} does: mount it, or bring it back")
    if not store.root.parent.is_dir():
        raise RetryLater(f"the data folder {store.root} does not exist, nor does {store.root.parent}: mount it, or make that folder")


def check_state_folder(folder: Path) -> None:
    """Make the folder in which a machine keeps its own where the metadata are in etcd; raise `RetryLater` while it cannot be made."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise RetryLater(f"the folder {folder} (metadata.etcd.state) can neither be found nor made: {error.strerror}") from error


def check_metadata_place(metadata: Path, store: ObjectStore) -> None:
    """Raise `RetryLater` while the metadata database is absent and must not be made; also what reading the data folder raises."""
    if not metadata.parent.is_dir():
        raise RetryLater(f"the folder {metadata.parent} of the metadata store does not exist: mount it, or make it")
    if metadata.exists():
        return
    witness = next((path for suffix in WITNESSES if (path := metadata.with_name(metadata.name + suffix)).exists()), None)
    if witness is not None:
        raise RetryLater(f"the metadata store {metadata} does not exist, but {witness} says that it did: bring it back")
    if read_cluster(store) is not None:
        raise RetryLater(f"the metadata store {metadata} does not exist, but the data folder has an identity: mount it, or bring it back")

"""Checks of data folder, bucket and metadata store, before a start and for the command that checks them.

An absent folder may be one that is not mounted yet. Creating it would start a second deployment below the
mount point. So a daemon creates only the last part of the data folder's path and the metadata database. It
creates each only while the other shows no earlier deployment.
"""

from __future__ import annotations

import errno
import getpass
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from archiver.config.metadata import EtcdSettings, MetadataSettings, SqliteSettings
from archiver.config.settings import Settings
from archiver.log.sqlite import tails
from archiver.objects.cluster import read_cluster
from archiver.objects.conditional_put_check import PROBE, check_new_object
from archiver.objects.local import LocalObjectStore
from archiver.objects.location import StorePlace
from archiver.objects.open import open_store
from archiver.objects.paths import probe_key, store_probe_key
from archiver.objects.store import ObjectStore
from archiver.runtime.check_result import Checked, CheckResult, CheckStatus
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, NotPermitted, OutcomeUnknown, RetryLater
from archiver.runtime.ids import IdSource
from archiver.runtime.text import counted

# A command waits for the answer, so a store that is away must not be retried for minutes.
TRIES_MAX = 2
LOGS = ("intake", "control")


# --- Results for the command
def check_data(settings: Settings, ids: IdSource, *, probe: bool) -> Checked:
    """Check the data folder or bucket."""
    place = checked_place(settings)
    return Checked(
        settings.data.uri, "s3" if place.is_s3 else "folder", tuple(_of_data(settings, place, ids, probe))
    )


def check_metadata(settings: Settings, clock: Clock, *, probe: bool) -> Checked:
    """Check the SQLite database or the etcd cluster."""
    sqlite, etcd = settings.metadata.sqlite, settings.metadata.etcd
    if sqlite is not None:
        return Checked(str(sqlite.path), "sqlite", tuple(_of_sqlite(settings, sqlite)))
    assert etcd is not None, "settings demand a metadata store"
    return Checked(", ".join(etcd.addresses), "etcd", tuple(_of_etcd(etcd, clock, probe)))


def checked_place(settings: Settings) -> StorePlace:
    """The place of the objects, with few attempts for each request."""
    place = StorePlace.of(settings.data)
    return replace(place, s3=replace(place.s3, attempts_max=min(TRIES_MAX, place.s3.attempts_max)))


def _verdict(error: ArchiverError) -> CheckStatus:
    # An absent store proves nothing about the configuration.
    return CheckStatus.UNKNOWN if isinstance(error, RetryLater | OutcomeUnknown) else CheckStatus.WRONG


def _of_data(settings: Settings, place: StorePlace, ids: IdSource, probe: bool) -> Iterator[CheckResult]:
    # The name of the check in progress: the handler below uses it for an error of any step.
    check = "reachable"
    try:
        store = open_store(place)
        check_data_place(store, earlier_trace(settings.metadata))
        if isinstance(store, LocalObjectStore) and not store.root.is_dir():
            yield CheckResult(
                check, CheckStatus.NOTE, f"{store.root} does not exist yet; the first start creates it"
            )
            return
        next(store.list(probe_key()), None)
        yield CheckResult(check, CheckStatus.FINE, "objects can be listed and read")
        check = "cluster"
        identity = read_cluster(store)
    except ArchiverError as error:
        yield CheckResult(check, _verdict(error), str(error))
        return
    if identity is None:
        yield CheckResult(
            check, CheckStatus.NOTE, "it belongs to no cluster yet; the first start writes cluster.json"
        )
    # A probe would write into the folder of another cluster, so it ends here.
    elif identity.name != settings.cluster:
        why = (
            f"it belongs to cluster {identity.name!r}; correct `cluster`, or give this cluster a "
            "`data.uri` of its own"
        )
        yield CheckResult(check, CheckStatus.WRONG, why)
        return
    else:
        yield CheckResult(check, CheckStatus.FINE, f"it belongs to cluster {identity.name}")
    if probe:
        # A random key, so that two checks at once do not see each other's object.
        yield from _probed(store, store_probe_key(f"Archiver_Probe_{ids.random_bytes(8).hex()}"))


def _probed(store: ObjectStore, key: str) -> Iterator[CheckResult]:
    """Create, create again, delete; deletes also after an error."""
    check = "conditional create"
    try:
        store.create(key, PROBE)
        # Some stores ignore the condition of a create and overwrite, which would lose data.
        check_new_object(store, key)
        created = CheckResult(
            check, CheckStatus.FINE, "an object was created, and a second one under its key was refused"
        )
    except ArchiverError as error:
        created = CheckResult(check, _verdict(error), str(error))
    # A create that seemed to fail may have stored the object, so it is deleted after any error.
    finally:
        removal = _removed(store, key)
    # After the removal: a generator that is not read to its end must leave no object.
    yield created
    yield removal


def _removed(store: ObjectStore, key: str) -> CheckResult:
    try:
        store.delete(key)
        # A versioned or locked bucket may answer a delete and keep the object.
        if store.info(key) is None:
            return CheckResult("removal", CheckStatus.FINE, "the object was deleted")
        why = "it is still there after its deletion"
    except ArchiverError as error:
        why = str(error)
    return CheckResult(
        "removal", CheckStatus.WRONG, f"{store.uri(key)} may still be there: {why}; delete it by hand"
    )


def _of_sqlite(settings: Settings, sqlite: SqliteSettings) -> Iterator[CheckResult]:
    try:
        check_metadata_place(sqlite.path, open_store(checked_place(settings)))
        if not sqlite.path.exists():
            yield CheckResult(
                "reachable", CheckStatus.NOTE, f"{sqlite.path} does not exist yet; the first start creates it"
            )
            return
        found = tails(sqlite.path, sqlite.busy_timeout)
        yield CheckResult("reachable", CheckStatus.FINE, f"it can be read, {_lengths(found)}")
        # After reading: a database that can be read may still be read-only.
        check_database_rights(sqlite.path)
    except ArchiverError as error:
        yield CheckResult("reachable", _verdict(error), str(error))


def _of_etcd(etcd: EtcdSettings, clock: Clock, probe: bool) -> Iterator[CheckResult]:
    # The client of etcd is imported only where it is configured.
    from archiver.log.metadata_check import EtcdCheck

    check = "state folder"
    try:
        check_state_folder_place(etcd.state)
        yield CheckResult(check, CheckStatus.FINE, f"{etcd.state} can be used")
        check = "reachable"
        with EtcdCheck(etcd, clock) as connection:
            found = connection.tails(LOGS)
            if found is None:
                yield CheckResult(
                    check,
                    CheckStatus.NOTE,
                    f"it answers, and has nothing below {etcd.prefix} yet; the first start writes there",
                )
            else:
                yield CheckResult(check, CheckStatus.FINE, f"it answers, {_lengths(found)}")
            if probe:
                check = "write"
                connection.check_write(LOGS)
                yield CheckResult(check, CheckStatus.FINE, "it would take a write; nothing was written")
    except ArchiverError as error:
        yield CheckResult(check, _verdict(error), str(error))


def _lengths(found: Mapping[str, int]) -> str:
    lengths = [f"{counted(found[log], 'entry', 'entries')} in the {log} log" for log in LOGS if log in found]
    return f"with {' and '.join(lengths)} so far" if lengths else "without any log yet"


# --- Errors for the start of the daemon
TAIL_MARKERS = (".intake.tail", ".control.tail")
"""Suffixes of the tail markers, which record how far a log reached."""

# Read-only mounts count as missing rights: the remedy is the same.
_DENIED = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))


def check_data_place(store: ObjectStore, metadata: Path) -> None:
    """Raise `RetryLater` while the data folder is absent and must not be created.

    `metadata` is the file that exists if there were earlier runs.
    """
    # A bucket is never created, and it cannot be an unmounted folder.
    if not isinstance(store, LocalObjectStore):
        return
    for path in (store.root, metadata):
        _check_may_search(path)
    known = metadata.exists()
    if store.root.is_dir():
        _check_may_write(store.root, "data.uri", known)
        return
    # Creating the folder would begin a second, empty deployment with the old log.
    if known:
        raise RetryLater(
            f"the data folder {store.root} does not exist, but the metadata store {metadata} does: "
            "mount it, or bring it back"
        )
    # Only the last part of the path is created: a missing parent is probably a missing mount.
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
    """Raise `NotPermitted` if this user may not write the metadata database or its folder."""
    # The folder too, because SQLite creates its write-ahead log there.
    for place in (path.parent, path):
        if not may_write(place):
            why = (
                f"the user {current_user()} may not write {place} (metadata.sqlite.path); give it that right "
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
        # Gives the error with the name of the user and the remedy, if that is the reason.
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
    # A new database would give offsets and epochs a second time.
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
    if may_write(folder):
        return
    why = (
        f"the user {current_user()} may not write in the folder {folder} ({setting}); give it that right "
        "(chown, chmod), or set another folder"
    )
    # An unmounted mount point may be a folder of root, so with an earlier deployment the start waits.
    raise RetryLater(why) if known else NotPermitted(why)


def _check_may_search(path: Path) -> None:
    """Raise `RetryLater` if this user cannot see whether the path exists: an earlier deployment may be
    there.
    """
    try:
        # `exists` returns False for absent paths, but raises if a folder above may not be searched.
        path.exists()
    except PermissionError as error:
        why = (
            f"the user {current_user()} may not search the folders above {path}; give it that right (chown, "
            "chmod), or set another folder"
        )
        raise RetryLater(why) from error


def may_write(path: Path) -> bool:
    """Whether this user may write the file, or create files in the folder."""
    mode = os.W_OK | os.X_OK if path.is_dir() else os.W_OK
    # By the effective user where the system can: a service may run under another real user.
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)


def current_user() -> str:
    """Name of the user of this process, or the number."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user in a container may have no name
        return str(os.getuid())

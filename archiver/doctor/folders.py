"""Checks of local folders: rights, owner and free space. They create and change nothing in the folders of a
deployment.
"""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from archiver.config.settings import Settings
from archiver.daemon.storage_preflight import (
    TAIL_MARKERS,
    check_data_place,
    check_state_folder_place,
    current_user,
    earlier_trace,
    may_write,
)
from archiver.doctor.report import Finding, combined, not_applicable, ok, problem, warning
from archiver.objects.local import LocalObjectStore
from archiver.objects.location import StorePlace
from archiver.objects.open import open_store, spool_folder
from archiver.runtime.errors import ArchiverError
from archiver.runtime.text import human_bytes

FREE_PROBLEM_BYTES = 100 * 2**20
"""With less free space a daemon soon stops: SQLite refuses appends, and uploads fail."""
FREE_WARNING_BYTES = 2 * 2**30
"""Intake files, archives and scratch files of a few rounds take that much."""
FILES_SHOWN = 3
SUFFIXES = ("", "-wal", "-shm", *TAIL_MARKERS, ".lease", ".leader.lease", ".checkpoint", ".admin-token")
"""Of the files of a metadata store. One that a command of root made can stop a daemon of another user."""


# --- Rights
def data_trouble(settings: Settings) -> Finding | None:
    """Why this user cannot use the data folder; None for a bucket, and if nothing is wrong."""
    closed = _closed_folder(settings)
    if closed is not None:
        # Both are one problem with one remedy if the logs are to be in the same folder.
        shared = in_closed_folder(settings)
        setting = f"data.uri, {_metadata_setting(settings)}" if shared else "data.uri"
        return _not_writable([_place(closed)], setting)
    try:
        # The same conditions as at the start of the daemon.
        check_data_place(open_store(StorePlace.of(settings.data)), earlier_trace(settings.metadata))
    except ArchiverError as error:
        return problem(str(error), "mount or create the folder, correct its rights, or correct `data.uri`")
    return None


def _closed_folder(settings: Settings) -> Path | None:
    """The folder in which the objects are or the data folder would be created, if this user may not write
    there.
    """
    store = open_store(StorePlace.of(settings.data))
    if not isinstance(store, LocalObjectStore):
        return None
    try:
        folder = store.root if store.root.is_dir() else store.root.parent
        # With an earlier deployment, an absent data folder is a missing mount.
        missing = folder != store.root and earlier_trace(settings.metadata).exists()
        return folder if not missing and folder.is_dir() and not may_write(folder) else None
    except PermissionError:
        # A folder above may not be searched, which the start reports as well.
        return None


def in_closed_folder(settings: Settings) -> bool:
    """Whether the check of the data folder has the reason why this user cannot write the metadata store."""
    closed = _closed_folder(settings)
    return closed is not None and closed == settings.metadata.local_path.parent.absolute()


def _metadata_setting(settings: Settings) -> str:
    return "metadata.sqlite.path" if settings.metadata.sqlite is not None else "metadata.etcd.state"


def data_folder(settings: Settings) -> Finding:
    """Rights in the data folder and in its spool folder, and their owner."""
    store = open_store(StorePlace.of(settings.data))
    if not isinstance(store, LocalObjectStore):
        return not_applicable("the objects are in a bucket")
    trouble = data_trouble(settings)
    if trouble is not None:
        return trouble
    if not store.root.is_dir():
        return ok(f"{store.root} does not exist yet; the first start creates it")
    spool = spool_folder(settings.data.uri)
    inside = [_place(spool)] if spool is not None and spool.exists() else []
    return judge_places(_place(store.root), inside, "data.uri", os.geteuid())


def metadata_trouble(settings: Settings) -> Finding | None:
    """Why this user cannot use the local folder of the metadata store; None if nothing is wrong."""
    sqlite, etcd = settings.metadata.sqlite, settings.metadata.etcd
    if etcd is not None:
        try:
            check_state_folder_place(etcd.state)
        except ArchiverError as error:
            return problem(
                str(error), "mount or create the folder, correct its rights, or set `metadata.etcd.state`"
            )
        return None
    assert sqlite is not None, "settings demand a metadata store"
    if sqlite.path.parent.is_dir():
        return None
    return problem(
        f"the folder {sqlite.path.parent} of the metadata store does not exist",
        "mount it, create it, or correct `metadata.sqlite.path`",
    )


def metadata_folder(settings: Settings) -> Finding:
    """Rights in the folder of the metadata store and in its files, and their owner."""
    trouble = metadata_trouble(settings)
    if trouble is not None:
        return trouble
    path = settings.metadata.local_path
    if not path.parent.is_dir():
        return ok(f"{path.parent} does not exist yet; the first start creates it")
    if in_closed_folder(settings):
        return not_applicable("the check `data folder` has the reason")
    files = [path.with_name(path.name + suffix) for suffix in SUFFIXES]
    return judge_places(
        _place(path.parent),
        [_place(file) for file in files if file.exists()],
        _metadata_setting(settings),
        os.geteuid(),
    )


def scratch_folder() -> Finding:
    """Rights in the folder of Spark's scratch files and of uploads."""
    remedy = "set TMPDIR to a folder with room that this user may write"
    try:
        # It tries each candidate by a file that it removes.
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        return problem(f"there is no folder for scratch files: {error}", remedy)
    if not may_write(folder):
        return problem(f"the user {current_user()} may not write in {folder}", remedy)
    return ok(f"{folder} can be written (TMPDIR)")


@dataclass(frozen=True, slots=True)
class Place:
    """A folder or file, and what this user may do with it."""

    path: Path
    owner: int
    owner_name: str
    writable: bool


def judge_places(folder: Place, inside: Sequence[Place], setting: str, user: int) -> Finding:
    """Compare rights and owners of a folder and of what the daemon made inside; `user` is this user's id."""
    owner = (*inside, folder)[0]
    closed = [place for place in (folder, *inside) if not place.writable]
    if closed:
        return _not_writable(closed, setting, owner)
    # The folder itself may belong to another user, for example with rights of a group.
    others = [place for place in inside if place.owner != owner.owner]
    if others:
        return warning(
            f"{owner.path} belongs to {owner.owner_name}, but {_shown(others)} to {others[0].owner_name}; a "
            "daemon of one user may not be able to write files of another",
            f"give the files to one user (chown {owner.owner_name}), and run commands as that user",
        )
    if user == 0 and owner.owner != 0:
        return warning(
            f"{owner.path} belongs to {owner.owner_name}, and root may write everywhere, so the rights of "
            "the daemon were not checked",
            f"run `sudo -u {owner.owner_name} archiver doctor`",
        )
    return ok(f"{folder.path} can be written, owner {owner.owner_name}")


def _not_writable(closed: Sequence[Place], setting: str, owner: Place | None = None) -> Finding:
    user = (owner or closed[0]).owner_name
    return problem(
        f"the user {current_user()} may not write {_shown(closed)} ({setting})",
        f"run this as the user {user}, or give this user the right (chown, chmod)",
    )


def _place(path: Path) -> Place:
    owner = path.stat().st_uid
    return Place(path, owner, _user_name(owner), may_write(path))


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # a user in a container may have no name
        return str(uid)


def _shown(places: Sequence[Place]) -> str:
    more = len(places) - FILES_SHOWN
    names = ", ".join(str(place.path) for place in places[:FILES_SHOWN])
    return f"{names} and {more} more" if more > 0 else names


# --- Free space
@dataclass(frozen=True, slots=True)
class Disk:
    """A file system and the folders that use it."""

    free_bytes: int
    total_bytes: int
    uses: tuple[str, ...]


def disk(settings: Settings | None, catalog_files: Iterable[Path] = ()) -> Finding:
    """Free space of the file systems of all local folders; without settings, of the scratch folder."""
    folders: dict[str, Path] = {}
    if settings is not None:
        store = open_store(StorePlace.of(settings.data))
        if isinstance(store, LocalObjectStore):
            folders["data"] = store.root
        folders["metadata"] = settings.metadata.local_path.parent
        folders |= {f"catalog {file.name}": file.parent for file in catalog_files}
    folders["scratch files"] = Path(tempfile.gettempdir())
    return judge_disks(_disks(folders))


def judge_disks(disks: Iterable[Disk]) -> Finding:
    """Compare the free space of each with the bounds."""
    findings = [_judge_disk(one) for one in disks]
    return combined(findings) if findings else not_applicable("the file systems report no size")


def _judge_disk(one: Disk) -> Finding:
    found = f"{human_bytes(one.free_bytes)} of {human_bytes(one.total_bytes)} free for {', '.join(one.uses)}"
    remedy = f"make room for {', '.join(one.uses)}, or use a larger disk"
    if one.free_bytes < FREE_PROBLEM_BYTES:
        return problem(found, remedy)
    return warning(found, remedy) if one.free_bytes < FREE_WARNING_BYTES else ok(found)


def _disks(folders: Mapping[str, Path]) -> list[Disk]:
    by_device: dict[int, Disk] = {}
    for use, folder in folders.items():
        there = next((path for path in (folder, *folder.parents) if path.is_dir()), None)
        if there is None:
            continue
        found, device = os.statvfs(there), there.stat().st_dev
        # Some file systems report no blocks at all; then nothing is known.
        if not found.f_blocks:
            continue
        uses = by_device[device].uses if device in by_device else ()
        by_device[device] = Disk(
            found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, (*uses, use)
        )
    return list(by_device.values())

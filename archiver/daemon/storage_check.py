"""`archiver config check --connect`: checks whether data store and metadata store can be used.

Only reads, without a probe. A probe creates one object, creates it again (which must be refused) and deletes
it. No log is ever written. Each request to a bucket is tried at most `TRIES_MAX` times: an unavailable one is
reported within two minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from archiver.config.metadata import EtcdSettings, SqliteSettings
from archiver.config.settings import Settings
from archiver.daemon.storage_preflight import (
    check_data_place,
    check_database_rights,
    check_metadata_place,
    check_state_folder_place,
    earlier_trace,
)
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
from archiver.runtime.errors import ArchiverError, OutcomeUnknown, RetryLater
from archiver.runtime.ids import IdSource
from archiver.runtime.text import counted

TRIES_MAX = 2
LOGS = ("intake", "control")


def check_data(settings: Settings, ids: IdSource, *, probe: bool) -> Checked:
    """Check the data folder or bucket."""
    place = _place(settings)
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


def _place(settings: Settings) -> StorePlace:
    place = StorePlace.of(settings.data)
    return replace(place, s3=replace(place.s3, attempts_max=min(TRIES_MAX, place.s3.attempts_max)))


def _verdict(error: ArchiverError) -> CheckStatus:
    return CheckStatus.UNKNOWN if isinstance(error, RetryLater | OutcomeUnknown) else CheckStatus.WRONG


def _of_data(settings: Settings, place: StorePlace, ids: IdSource, probe: bool) -> Iterator[CheckResult]:
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
        yield from _probed(store, store_probe_key(f"Archiver_Probe_{ids.random_bytes(8).hex()}"))


def _probed(store: ObjectStore, key: str) -> Iterator[CheckResult]:
    """Create, create again, delete; deletes also after an error."""
    check = "conditional create"
    try:
        store.create(key, PROBE)
        check_new_object(store, key)
        created = CheckResult(
            check, CheckStatus.FINE, "an object was created, and a second one under its key was refused"
        )
    except ArchiverError as error:
        created = CheckResult(check, _verdict(error), str(error))
    finally:
        removal = _removed(store, key)
    yield created
    yield removal


def _removed(store: ObjectStore, key: str) -> CheckResult:
    try:
        store.delete(key)
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
        check_metadata_place(sqlite.path, open_store(_place(settings)))
        if not sqlite.path.exists():
            yield CheckResult(
                "reachable", CheckStatus.NOTE, f"{sqlite.path} does not exist yet; the first start creates it"
            )
            return
        found = tails(sqlite.path, sqlite.busy_timeout)
        yield CheckResult("reachable", CheckStatus.FINE, f"it can be read, {_lengths(found)}")
        check_database_rights(sqlite.path)
    except ArchiverError as error:
        yield CheckResult("reachable", _verdict(error), str(error))


def _of_etcd(etcd: EtcdSettings, clock: Clock, probe: bool) -> Iterator[CheckResult]:
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

"""The adapter to pyiceberg: the only place that talks to an Iceberg catalog.

Uses pyiceberg to write manifests and takes the updates and requirements from the snapshot producer's private `_commit`, then sends them
through `catalog.commit_table` itself, once. pyiceberg's own commit is not used: on a conflict that may hide our success it deletes
manifests and sends the same files again. Deletes nothing, ever; manifests of attempts that came to nothing are strays for the vacuum.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import AssertTableUUID, RemoveSnapshotsUpdate, SetPropertiesUpdate, TableRequirement, TableUpdate
from pyiceberg.table.update.snapshot import _FastAppendFiles, _MergeAppendFiles

from archiver.catalog.iceberg_io import IMPLEMENTATION
from archiver.catalog.iceberg_values import data_file_of, fields_of, live_file_of, parse_schema, partition_spec, sort_order, view_of
from archiver.catalog.layout import stream_fields
from archiver.catalog.tables import Identifier, LiveFile, NewProperties, Prepared, SwapOutcome, Swapped, TableView, shown
from archiver.errors import ArchiverError, ConfigInvalid, Halt, KeyExists, OutcomeUnknown, RetryLater
from archiver.events.types import DataFile
from archiver.ids import IdSource, new_uuid
from archiver.objects.paths import Granularity

SQLITE_TIMEOUT_S = 60
"""How long a catalog on SQLite waits for a lock unless the uri says otherwise; pyiceberg's own 5 s leave stray metadata behind."""

_MERGE_MANIFESTS_MIN = 2

_Request = tuple[Table, tuple[TableRequirement, ...], tuple[TableUpdate, ...]]


class IcebergTables:
    """One Iceberg catalog behind the `Tables` Protocol."""

    def __init__(self, name: str, properties: Mapping[str, str], ids: IdSource) -> None:
        """`properties` are pyiceberg's (`type`, `uri`, `warehouse`, …); nothing is connected before the first call."""
        self._name = name
        self._ids = ids
        self._properties = _prepared_properties(name, properties)
        self._opened: Catalog | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Release connections; a later call connects again."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def load(self, identifier: Identifier) -> TableView | None:
        """As the Protocol says."""
        catalog = self._catalog()
        try:
            return view_of(identifier, catalog.load_table(identifier))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except (FileNotFoundError, ValidationError) as error:
            raise Halt(
                f"table {shown(identifier)}: its metadata cannot be read ({error}); restore the file or register the table anew"
            ) from error
        except ArchiverError:
            raise
        # Whatever a catalog's driver raises on a read has changed nothing.
        except Exception as error:
            raise RetryLater(f"table {shown(identifier)} cannot be loaded from catalog {self._name}: {error}") from error

    def create(
        self, identifier: Identifier, location: str, schema_json: str, granularity: Granularity, properties: Mapping[str, str]
    ) -> TableView:
        """As the Protocol says."""
        fields = stream_fields(schema_json)
        schema = parse_schema(schema_json)
        catalog = self._catalog()
        try:
            catalog.create_namespace_if_not_exists(identifier[:-1])
            table = catalog.create_table(
                identifier, schema, location, partition_spec(fields, granularity), sort_order(fields), dict(properties)
            )
        except TableAlreadyExistsError as error:
            raise KeyExists(f"{shown(identifier)} of catalog {self._name}") from error
        # A create whose reply is lost may have happened; whoever asks again finds the table.
        except Exception as error:
            raise OutcomeUnknown(f"table {shown(identifier)} may or may not have been created in catalog {self._name}: {error}") from error
        view = view_of(identifier, table)
        if view.location.rstrip("/") != location.rstrip("/"):
            raise Halt(f"catalog {self._name} put table {shown(identifier)} at {view.location}, it must lie at {location}; drop it there")
        return view

    def prepare(
        self,
        view: TableView,
        files: Sequence[DataFile],
        properties: NewProperties,
        summary: Mapping[str, str],
        merge: bool,
        expire: Sequence[int],
    ) -> Prepared:
        """As the Protocol says."""
        table = _table(view)
        added = [data_file_of(item, view.spec_id) for item in files]
        try:
            producer = _producer(table, summary, merge, self._ids)
            for item in added:
                producer.append_data_file(item)
            updates, requirements = producer._commit()  # noqa: SLF001 - decision 0004
        except OSError as error:
            raise RetryLater(f"table {shown(view.identifier)}: manifests cannot be written: {error}") from error
        changed = dict(properties(producer.snapshot_id, view.sequence_number + 1))
        more: list[TableUpdate] = [SetPropertiesUpdate(updates=changed)]
        if expire:
            more.append(RemoveSnapshotsUpdate(snapshot_ids=list(expire)))
        request: _Request = (table, (AssertTableUUID(uuid=view.uuid), *requirements), (*updates, *more))
        return Prepared(view.identifier, producer.snapshot_id, view.snapshot_id, view.sequence_number, request)

    def swap(self, prepared: Prepared) -> Swapped:
        """As the Protocol says. The base's sequence number is asserted by the new snapshot's own, which catalogs refuse if it is stale."""
        assert isinstance(prepared.handle, tuple)
        request: _Request = prepared.handle
        try:
            self._catalog().commit_table(*request)
        except (CommitFailedException, NoSuchTableError) as error:
            return Swapped(SwapOutcome.CONFLICT, prepared.snapshot_id, str(error))
        except CommitStateUnknownException as error:
            return Swapped(SwapOutcome.UNKNOWN, prepared.snapshot_id, str(error))
        except ValueError as error:
            outcome = SwapOutcome.CONFLICT if _refused_by_metadata(error) else SwapOutcome.UNKNOWN
            return Swapped(outcome, prepared.snapshot_id, str(error))
        # A lost connection, a locked database, a full disk: it may have been applied, only the table can tell (rule C6).
        except Exception as error:  # noqa: BLE001
            return Swapped(SwapOutcome.UNKNOWN, prepared.snapshot_id, f"{type(error).__name__}: {error}")
        return Swapped(SwapOutcome.APPLIED, prepared.snapshot_id)

    def live_files(self, view: TableView) -> Iterator[LiveFile]:
        """As the Protocol says."""
        table = _table(view)
        snapshot = table.metadata.current_snapshot()
        if snapshot is None:
            return
        fields = fields_of(view)
        manifests = _manifests(table, snapshot)
        has_deletes = any(item.content == ManifestContent.DELETES for item in manifests)
        for manifest in manifests:
            if manifest.content != ManifestContent.DATA:
                continue
            for entry in _entries(table, manifest):
                if entry.status != ManifestEntryStatus.DELETED:
                    yield live_file_of(entry, fields, manifest.partition_spec_id, has_deletes)

    def data_paths(self, view: TableView, since_sequence: int) -> frozenset[str]:
        """As the Protocol says."""
        table = _table(view)
        found: set[str] = set()
        for item in view.lineage():
            if item.sequence_number > since_sequence:
                found |= _added_by(table, _snapshot(table, item.snapshot_id))
        current = table.metadata.current_snapshot()
        for manifest in () if current is None else _manifests(table, current):
            if manifest.content != ManifestContent.DATA or manifest.sequence_number <= since_sequence:
                continue
            for entry in _entries(table, manifest):
                if entry.status != ManifestEntryStatus.DELETED and (entry.sequence_number or 0) > since_sequence:
                    found.add(entry.data_file.file_path)
        return frozenset(found)

    def _catalog(self) -> Catalog:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _open(self) -> Catalog:
        properties: dict[str, Any] = dict(self._properties)
        try:
            try:
                return load_catalog(self._name, **properties)
            except ValueError as error:
                raise ConfigInvalid(f"catalog {self._name} cannot be used: {error}") from error
            except Exception:  # noqa: BLE001
                # Two processes that create the catalog's own tables at the same moment: the second attempt finds them.
                return load_catalog(self._name, **properties)
        except ArchiverError:
            raise
        # Opening changes nothing that matters, whatever the driver says.
        except Exception as error:
            raise RetryLater(f"catalog {self._name} cannot be reached: {error}") from error


def _prepared_properties(name: str, properties: Mapping[str, str]) -> dict[str, str]:
    """SQLite: the file's folder is made, the path absolute, the lock timeout long; local metadata is synchronised to disk."""
    prepared = dict(properties)
    uri = prepared.get("uri", "")
    if not uri.startswith("sqlite"):
        return prepared
    parts = urlsplit(uri)
    file = parts.path.removeprefix("/")
    if not file:
        raise ConfigInvalid(f"catalog {name}: uri {uri!r} names no file; write sqlite:///folder/catalog.db")
    path = Path(file).absolute()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigInvalid(f"catalog {name}: folder {path.parent} cannot be made: {error}") from error
    query = parts.query if "timeout=" in parts.query else "&".join(filter(None, (parts.query, f"timeout={SQLITE_TIMEOUT_S}")))
    prepared["uri"] = f"{parts.scheme}:///{path}?{query}"
    prepared.setdefault("py-io-impl", IMPLEMENTATION)
    return prepared


def _table(view: TableView) -> Table:
    assert isinstance(view.handle, Table)
    return view.handle


def _producer(table: Table, summary: Mapping[str, str], merge: bool, ids: IdSource) -> _FastAppendFiles:
    producer = _appender(table, summary, merge)
    producer.commit_uuid = new_uuid(ids)
    producer._snapshot_id = _new_snapshot_id(table, ids)  # noqa: SLF001 - the library draws it from the global generator
    return producer


def _new_snapshot_id(table: Table, ids: IdSource) -> int:
    """A positive 63-bit number that no retained snapshot has."""
    taken = {item.snapshot_id for item in table.metadata.snapshots}
    while True:
        number = int.from_bytes(ids.random_bytes(8), "big") >> 1
        if number > 0 and number not in taken:
            return number


def _appender(table: Table, summary: Mapping[str, str], merge: bool) -> _FastAppendFiles:
    update = Transaction(table, autocommit=False).update_snapshot(snapshot_properties=dict(summary))
    if not merge:
        return update.fast_append()
    producer: _MergeAppendFiles = update.merge_append()
    # The table properties that steer this are left alone, because other engines obey them as well.
    producer._merge_enabled = True  # noqa: SLF001
    producer._min_count_to_merge = _MERGE_MANIFESTS_MIN  # noqa: SLF001
    return producer


def _refused_by_metadata(error: ValueError) -> bool:
    """Pyiceberg checks the update against the metadata before anything is written: a stale sequence number, or a snapshot that somebody
    else expired meanwhile, was certainly not applied.
    """
    text = str(error)
    return "sequence number" in text or ("Snapshot with snapshot id" in text and "does not exist" in text)


def _snapshot(table: Table, snapshot_id: int) -> Snapshot:
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return snapshot


def _manifests(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    try:
        return list(snapshot.manifests(table.io))
    except FileNotFoundError as error:
        raise Halt(f"snapshot {snapshot.snapshot_id} of table {shown(table.name())}: its manifest list is gone: {error}") from error
    except OSError as error:
        raise RetryLater(f"snapshot {snapshot.snapshot_id} of table {shown(table.name())} cannot be read: {error}") from error


def _entries(table: Table, manifest: ManifestFile) -> list[Any]:
    try:
        return list(manifest.fetch_manifest_entry(table.io, discard_deleted=False))
    except FileNotFoundError as error:
        raise Halt(f"table {shown(table.name())}: manifest {manifest.manifest_path} is gone: {error}") from error
    except OSError as error:
        raise RetryLater(f"table {shown(table.name())}: manifest {manifest.manifest_path} cannot be read: {error}") from error


def _added_by(table: Table, snapshot: Snapshot) -> set[str]:
    """Data files that this snapshot added; they stand in manifests that it wrote itself."""
    return {
        entry.data_file.file_path
        for manifest in _manifests(table, snapshot)
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in _entries(table, manifest)
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    }

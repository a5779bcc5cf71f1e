"""The adapter to pyiceberg: the only place that talks to an Iceberg catalog.

pyiceberg writes the manifests. The adapter itself sends each request through `catalog.commit_table`, once
(decision 0004). Never deletes anything. Manifests of failed attempts stay unreferenced until the vacuum
removes them.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from pydantic import ValidationError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.exceptions import ValidationError as MetadataInvalid
from pyiceberg.expressions import And, EqualTo
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFile as DataFileOfTable
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus, ManifestFile
from pyiceberg.serializers import ToOutputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV2
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSpecUpdate,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import _SnapshotProducer

from archiver.catalog.iceberg.guard import guarded_table, open_catalog
from archiver.catalog.iceberg.guarded_io import GuardedFileIO
from archiver.catalog.iceberg.outcomes import (
    is_no,
    metadata_lost,
    outcome_of,
    reading,
    said,
    tells_of_table,
    unauthorized,
    unreached,
    writing,
)
from archiver.catalog.iceberg.producers import append_producer, exchange_producer, removal_producer
from archiver.catalog.iceberg.properties import prepared_properties
from archiver.catalog.iceberg.remote_limits import RemoteLimits
from archiver.catalog.iceberg.values import (
    adds_order,
    data_file_of,
    fields_of,
    live_file_of,
    parse_schema,
    partition_spec,
    sort_order,
    unlisted_orders,
    view_of,
)
from archiver.catalog.table_layout import (
    PARTITION_BY,
    PARTITION_FIELD_ID,
    newest_spec,
    spec_id_of,
    stream_fields,
)
from archiver.catalog.tables import (
    Evolved,
    Identifier,
    LiveFile,
    NewProperties,
    Prepared,
    SwapOutcome,
    Swapped,
    TableView,
    shown,
)
from archiver.events.types import DataFile
from archiver.objects.paths import Granularity
from archiver.runtime.errors import (
    ArchiverError,
    CatalogAway,
    ConfigInvalid,
    Halt,
    KeyExists,
    OutcomeUnknown,
    RetryLater,
)
from archiver.runtime.ids import IdSource, new_uuid

# --- The first metadata of a rebuilt table


def _first_metadata(
    location: str,
    schema_json: str,
    last_column_id: int,
    granularity: Granularity,
    properties: Mapping[str, str],
    table_uuid: uuid.UUID,
) -> TableMetadataV2:
    """The metadata of a table without snapshots; raises `Halt` for a schema without the stream's columns."""
    fields = stream_fields(schema_json)
    # The computed schema may have the id of a lost table. The new metadata lists one schema only.
    schema = parse_schema(schema_json).model_copy(update={"schema_id": 0})
    spec, order = partition_spec(fields, granularity), sort_order(fields)
    # `format-version` is a field of the metadata, here given by its class. As a property it is reserved.
    kept = {name: value for name, value in properties.items() if name != "format-version"}
    return TableMetadataV2(
        location=location,
        schemas=[schema],
        # Ids of columns that a lost table dropped must not be given again: its files still have them.
        last_column_id=max(last_column_id, schema.highest_field_id),
        current_schema_id=schema.schema_id,
        partition_specs=[spec],
        default_spec_id=spec.spec_id,
        last_partition_id=PARTITION_FIELD_ID,
        # With order 0 listed, engines may rewrite files without a sort order (see `unlisted_orders`).
        sort_orders=[UNSORTED_SORT_ORDER, order],
        default_sort_order_id=order.order_id,
        properties=kept,
        table_uuid=table_uuid,
    )


# --- The adapter


_DAMAGED = (ValueError, KeyError, EOFError, RecursionError, MetadataInvalid)
"""What pyiceberg raises for a metadata file that is none, or was cut."""
_Request = tuple[Table, tuple[TableRequirement, ...], tuple[TableUpdate, ...]]


class IcebergTables:
    """One Iceberg catalog behind the `Tables` Protocol."""

    def __init__(
        self,
        name: str,
        properties: Mapping[str, str],
        ids: IdSource,
        limits: RemoteLimits = RemoteLimits(),  # noqa: B008 - frozen
        *,
        places: bool = False,
    ) -> None:
        """`properties` are pyiceberg's (`type`, `uri`, `warehouse`, …); nothing is connected before the first
        call.

        `limits` bound what the catalog can make us request, read and write. `places`: the catalog chooses
        where a new table lies, and ignores the location in a create request.
        """
        self._places = places
        self._name = name
        self._ids = ids
        self._rest = properties.get("type") == "rest"
        self._properties = prepared_properties(name, properties, limits)
        # Opened lazily: opening asks a REST catalog for its configuration, which may fail at start.
        self._opened: Catalog | None = None
        self._adds_orders = True
        """Off once a commit that adds a sort order did not succeed: the catalog may not support that, and no
        commit may depend on it."""
        self._lock = threading.Lock()

    def close(self) -> None:
        """Release connections; a later call connects again."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
                self._opened = None

    def connected(self) -> Catalog:
        """The catalog as pyiceberg has it, for the other files of this adapter. Raises `CatalogAway`,
        `ConfigInvalid` or `Halt`.
        """
        return self._catalog()

    def load(self, identifier: Identifier) -> TableView | None:
        """As the Protocol says."""
        catalog = self._catalog()
        why = f"table {shown(identifier)} cannot be loaded from catalog {self._name}"
        try:
            return self._view(identifier, catalog.load_table(identifier))
        except (NoSuchTableError, NoSuchNamespaceError) as error:
            # The catalog has the table and not its file. Creating it again would give it a second uuid.
            if self._rest and metadata_lost(error):
                raise _unreadable(identifier, error) from error
            # A web server at a wrong address says 404 as well. That must not halt the topic or create a
            # table.
            if self._rest and not tells_of_table(error):
                raise RetryLater(
                    f"{why}: it answers as no catalog does ({said(error)}); is its uri right?"
                ) from error
            return None
        except FileNotFoundError as error:
            raise _unreadable(identifier, error) from error
        except ArchiverError:
            raise
        # A read changes nothing, so any error of a catalog's driver is a reason to try again.
        except Exception as error:
            # A catalog that reads the metadata file itself got text that is none, or was cut.
            if not self._rest and isinstance(error, _DAMAGED):
                raise _unreadable(identifier, error) from error
            self._check_known(error)
            if self._rest and unreached(error):
                # One table or the whole catalog: only a new request for the configuration can say which.
                self._reopen(catalog)
            raise RetryLater(f"{why}: {said(error)}") from error

    def create(
        self,
        identifier: Identifier,
        location: str,
        schema_json: str,
        granularity: Granularity,
        properties: Mapping[str, str],
    ) -> TableView:
        """As the Protocol says."""
        fields = stream_fields(schema_json)
        schema = parse_schema(schema_json)
        catalog = self._catalog()
        try:
            catalog.create_namespace_if_not_exists(identifier[:-1])
        except ArchiverError:
            raise
        # An unknown outcome needs no `OutcomeUnknown` here: an empty namespace does no harm.
        except Exception as error:
            self._check_known(error)
            raise RetryLater(
                f"namespace {shown(identifier[:-1])} cannot be made in catalog {self._name}: {said(error)}"
            ) from error
        spec, order = partition_spec(fields, granularity), sort_order(fields)
        try:
            table = catalog.create_table(
                identifier, schema, None if self._places else location, spec, order, dict(properties)
            )
        except TableAlreadyExistsError as error:
            raise KeyExists(f"{shown(identifier)} of catalog {self._name}") from error
        except ArchiverError:
            raise
        # A create whose reply is lost may have happened. The next call finds the table.
        except Exception as error:
            self._check_known(error)
            if is_no(error):
                raise RetryLater(
                    f"table {shown(identifier)} was not created in catalog {self._name}: {said(error)}"
                ) from error
            raise OutcomeUnknown(
                f"table {shown(identifier)} may or may not have been created in catalog {self._name}: "
                f"{said(error)}"
            ) from error
        view = self._view(identifier, table)
        if not self._places and view.location.rstrip("/") != location.rstrip("/"):
            # Only the setting `location: catalog` permits another place.
            raise Halt(
                f"catalog {self._name} put table {shown(identifier)} at {view.location}, it must lie "
                f"at {location}; drop it there"
            )
        return view

    def register(
        self,
        identifier: Identifier,
        location: str,
        schema_json: str,
        last_column_id: int,
        granularity: Granularity,
        properties: Mapping[str, str],
    ) -> TableView:
        """As `archiver.catalog.restore.Registers` says."""
        catalog = self._catalog()
        try:
            table_uuid = new_uuid(self._ids)
            metadata = _first_metadata(
                location, schema_json, last_column_id, granularity, properties, table_uuid
            )
            catalog.create_namespace_if_not_exists(identifier[:-1])
            # The uuid makes the name unique, so a second attempt never overwrites the file of the first.
            where = f"{location}/metadata/00000-{table_uuid}.metadata.json"
            output = load_file_io(dict(catalog.properties), where).new_output(where)
            ToOutputFile.table_metadata(metadata, output)
            table = catalog.register_table(identifier, where)
        except TableAlreadyExistsError as error:
            raise KeyExists(f"{shown(identifier)} of catalog {self._name}") from error
        except NotImplementedError as error:
            raise Halt(
                f"catalog {self._name} takes no table that is there already ({said(error)}); restore "
                "it from a backup"
            ) from error
        except ArchiverError:
            raise
        # As for a create: the next call finds the table.
        except Exception as error:
            raise OutcomeUnknown(
                f"table {shown(identifier)} may or may not have been registered in catalog "
                f"{self._name}: {said(error)}"
            ) from error
        return self._view(identifier, table)

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
        # A pending archive may have been written before the partition spec changed.
        added = [_of_its_spec(view, item) for item in files]
        # The id is drawn by us, because pyiceberg draws it from the global random generator.
        producer = append_producer(table, summary, self._ids, _new_snapshot_id(table, self._ids), merge=merge)
        return _prepared(
            view,
            producer,
            added,
            (),
            properties,
            expire,
            unlisted_orders(table.metadata) if self._adds_orders else (),
        )

    def prepare_exchange(
        self, view: TableView, removed: Collection[str], added: Sequence[DataFile], summary: Mapping[str, str]
    ) -> Prepared:
        """As the Protocol says."""
        table = _table(view)
        # Only the current spec: pyiceberg writes the added files of an overwrite under the default spec.
        files, entries = (
            [data_file_of(item, view.spec_id) for item in added],
            _entries_at(view, set(removed)),
        )
        return _prepared(
            view,
            exchange_producer(table, summary, self._ids, _new_snapshot_id(table, self._ids)),
            files,
            entries,
        )

    def prepare_removal(
        self,
        view: TableView,
        paths: Collection[str],
        properties: NewProperties,
        summary: Mapping[str, str],
        expire: Sequence[int],
    ) -> Prepared:
        """As the Protocol says."""
        table = _table(view)
        removed = _entries_at(view, set(paths))
        producer = removal_producer(table, summary, self._ids, _new_snapshot_id(table, self._ids))
        return _prepared(view, producer, (), removed, properties, expire)

    def swap(self, prepared: Prepared) -> Swapped:
        """As the Protocol says."""
        assert isinstance(prepared.handle, tuple)
        # No requirement names the base's sequence number (rule C5). The new snapshot's own number asserts it,
        # because catalogs refuse a stale one.
        outcome, why = self._send(prepared.handle)
        if outcome is not SwapOutcome.APPLIED and adds_order(prepared.handle[2]):
            # Also if it is unknown: a catalog may answer 500 to a kind of update that it does not know.
            self._adds_orders = False
        return Swapped(outcome, prepared.snapshot_id, why)

    def evolve(self, view: TableView, schema_json: str) -> Evolved:
        """As the Protocol says. A schema that the table had before is made current again."""
        # Called for its check: raises `Halt` if the stream's own columns are missing.
        stream_fields(schema_json)
        table = _table(view)
        known = table.metadata.schemas
        schema = parse_schema(schema_json).model_copy(
            update={"schema_id": max(one.schema_id for one in known) + 1}
        )
        # Catalogs keep equal schemas only once, so an earlier one is made current by its id.
        same = next((one.schema_id for one in known if one == schema), None)
        updates: tuple[TableUpdate, ...] = (
            AddSchemaUpdate(schema_=schema),
            # In the REST specification, -1 means the schema that was added last.
            SetCurrentSchemaUpdate(schema_id=-1),
        )
        if same is not None:
            updates = (SetCurrentSchemaUpdate(schema_id=same),)
        requirements: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=view.uuid),
            AssertCurrentSchemaId(current_schema_id=view.schema_id),
            AssertLastAssignedFieldId(last_assigned_field_id=view.last_column_id),
        )
        return Evolved(*self._send((table, requirements, updates)))

    def repartition(self, view: TableView, granularity: Granularity) -> Evolved:
        """As the Protocol says. A spec that the table had before is made the default again: its field keeps
        its id.
        """
        fields, table = fields_of(view), _table(view)
        metadata = table.metadata
        last = metadata.last_partition_id
        # A spec that the table had before is used again, so its partition field keeps its id.
        known = newest_spec(view, granularity)
        updates: tuple[TableUpdate, ...] = (SetPropertiesUpdate(updates={PARTITION_BY: granularity}),)
        if known is not None:
            updates = (SetDefaultSpecUpdate(spec_id=known.spec_id), *updates)
        else:
            spec_id, field_id = (
                max(one.spec_id for one in view.specs) + 1,
                # Partition field ids start at 1000. A table without any field has no last id.
                max(last or 0, PARTITION_FIELD_ID - 1) + 1,
            )
            spec = partition_spec(fields, granularity, spec_id, field_id)
            # -1 means the spec that was added last.
            updates = (AddPartitionSpecUpdate(spec=spec), SetDefaultSpecUpdate(spec_id=-1), *updates)
        requirements: tuple[TableRequirement, ...] = (
            AssertTableUUID(uuid=view.uuid),
            AssertDefaultSpecId(default_spec_id=view.spec_id),
            AssertLastAssignedPartitionId(last_assigned_partition_id=last),
        )
        return Evolved(*self._send((table, requirements, updates)))

    def _send(self, request: _Request) -> tuple[SwapOutcome, str]:
        """Send a request once; returns its outcome, and the catalog's message."""
        try:
            catalog = self._catalog()
        except ArchiverError as error:
            # The catalog could not be opened, so the request was not sent.
            return SwapOutcome.CONFLICT, str(error)
        try:
            catalog.commit_table(*request)
        # A lost connection, a locked database, a full disk: it may have been applied. Only the table shows it
        # (rule C6).
        except Exception as error:  # noqa: BLE001
            return outcome_of(error), f"{type(error).__name__}: {said(error)}"
        return SwapOutcome.APPLIED, ""

    def live_files(
        self, view: TableView, snapshot_id: int | None = None, nulls_of: Collection[int] = ()
    ) -> Iterator[LiveFile]:
        """As the Protocol says."""
        table = _table(view)
        snapshot = table.metadata.current_snapshot() if snapshot_id is None else _snapshot(table, snapshot_id)
        # A table without a commit, or one whose current snapshot was removed.
        if snapshot is None:
            return
        fields = fields_of(view)
        manifests = _manifests(table, snapshot)
        # Of the whole snapshot: manifests do not list which data files a delete file concerns.
        has_deletes = any(item.content == ManifestContent.DELETES for item in manifests)
        for manifest in manifests:
            if manifest.content != ManifestContent.DATA:
                continue
            # Entries are materialised per manifest, so that a damaged one fails before any of its files is
            # yielded.
            live = [
                entry for entry in _entries(table, manifest) if entry.status != ManifestEntryStatus.DELETED
            ]
            with reading(f"table {shown(table.name())}: manifest {manifest.manifest_path}"):
                found = [
                    live_file_of(entry, fields, manifest.partition_spec_id, has_deletes, nulls_of)
                    for entry in live
                ]
            yield from found

    def retained_paths(self, view: TableView, names: Collection[str]) -> frozenset[str]:
        """As the Protocol says."""
        table = _table(view)
        manifests = {
            item.manifest_path: item
            # Consecutive snapshots share most manifests, so they are joined by path before any is read.
            for snapshot in table.metadata.snapshots
            for item in _manifests(table, snapshot)
        }
        data = (item for item in manifests.values() if item.content == ManifestContent.DATA)
        entries = (
            entry
            for item in data
            for entry in _entries(table, item)
            if entry.status != ManifestEntryStatus.DELETED
        )
        paths = (entry.data_file.file_path for entry in entries)
        return frozenset(path for path in paths if path.rpartition("/")[2] in names)

    def named_paths(self, view: TableView) -> Iterator[str]:
        """As the Protocol says."""
        table = _table(view)
        metadata = table.metadata
        yield view.metadata_location
        yield from (item.metadata_file for item in metadata.metadata_log)
        yield from (item.statistics_path for item in (*metadata.statistics, *metadata.partition_statistics))
        # Each manifest once, however many snapshots share it.
        read: set[str] = set()
        for snapshot in metadata.snapshots:
            yield snapshot.manifest_list
            for manifest in _manifests(table, snapshot):
                if manifest.manifest_path in read:
                    continue
                read.add(manifest.manifest_path)
                yield manifest.manifest_path
                for entry in _entries(table, manifest):
                    if entry.status != ManifestEntryStatus.DELETED:
                        yield entry.data_file.file_path

    def count_rows(self, view: TableView, partition: int, offset: int) -> int:
        """As the Protocol says."""
        # pyiceberg's published types do not accept plain values.
        equal: Any = EqualTo
        here = And(equal("kafka.partition", partition), equal("kafka.offset", offset))
        with reading(f"table {shown(view.identifier)}: a data file or delete file"):
            try:
                return (
                    _table(view)
                    .scan(row_filter=here, selected_fields=("kafka.partition", "kafka.offset"))
                    .to_arrow()
                    .num_rows
                )
            # pyiceberg raises it for what it does not support, for example equality deletes.
            except ValueError as error:
                raise Halt(
                    f"table {shown(view.identifier)} cannot be read with its delete files applied: "
                    f"{said(error)}"
                ) from error

    def data_paths(self, view: TableView, since_sequence: int) -> frozenset[str]:
        """As the Protocol says."""
        table = _table(view)
        found: set[str] = set()
        for item in view.lineage():
            if item.sequence_number > since_sequence:
                found |= _added_by(table, _snapshot(table, item.snapshot_id))
        current = table.metadata.current_snapshot()
        # Snapshots of the lineage may have expired. Their files are still live, with the sequence number of
        # that commit.
        for manifest in () if current is None else _manifests(table, current):
            # A manifest has no entry newer than itself, so older ones need not be read.
            if manifest.content != ManifestContent.DATA or manifest.sequence_number <= since_sequence:
                continue
            for entry in _entries(table, manifest):
                if (
                    entry.status != ManifestEntryStatus.DELETED
                    and (entry.sequence_number or 0) > since_sequence
                ):
                    found.add(entry.data_file.file_path)
        return frozenset(found)

    def aside_paths(self, view: TableView, since_sequence: int) -> frozenset[str]:
        """As the Protocol says."""
        table = _table(view)
        newer = (item for item in view.aside() if item.sequence_number > since_sequence)
        return frozenset().union(*(_added_by(table, _snapshot(table, item.snapshot_id)) for item in newer))

    def _view(self, identifier: Identifier, table: Table) -> TableView:
        with reading(f"table {shown(identifier)}: its metadata"):
            return replace(view_of(identifier, guarded_table(table)), placed_by_catalog=self._places)

    def _catalog(self) -> Catalog:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _reopen(self, gone: Catalog) -> None:
        """Make the next call open the catalog again, and so ask a REST catalog for its configuration."""
        with self._lock:
            # Another thread may have reopened it already. Its connection must stay.
            if self._opened is gone:
                self._opened = None

    def _check_known(self, error: Exception) -> None:
        """Raise `Halt` if a REST catalog rejects our identity, also with a new token."""
        if self._rest and unauthorized(error):
            from archiver.catalog.iceberg.auth import advice

            raise Halt(
                f"catalog {self._name} refuses us ({said(error)}): {advice(self._properties)}"
            ) from error

    def _open(self) -> Catalog:
        try:
            try:
                return open_catalog(self._name, self._properties)
            # The answer is not a catalog's, for example the page of a proxy. That may change by itself.
            # `ValidationError` is a `ValueError`, so this clause comes first.
            except ValidationError as error:
                raise CatalogAway(
                    f"catalog {self._name} cannot be reached: what answers there is no catalog: {said(error)}"
                ) from error
            except ValueError as error:
                raise ConfigInvalid(f"catalog {self._name} cannot be used: {said(error)}") from error
            except Exception:
                # Opening a REST catalog creates nothing, and a silent server would cost two time-outs.
                if self._rest:
                    raise
                # Two processes may create the catalog's own tables at the same moment. The second attempt
                # finds them.
                return open_catalog(self._name, self._properties)
        except ArchiverError:
            raise
        # Opening changes no table, so any error of the driver is a reason to try again.
        except Exception as error:
            self._check_known(error)
            raise CatalogAway(f"catalog {self._name} cannot be reached: {said(error)}") from error


def _unreadable(identifier: Identifier, error: Exception) -> Halt:
    return Halt(
        f"table {shown(identifier)}: its metadata cannot be read ({said(error)}); restore the file or "
        "register the table again"
    )


def _of_its_spec(view: TableView, item: DataFile) -> DataFileOfTable:
    spec_id = spec_id_of(view, item)
    return data_file_of(replace(item, spec_id=spec_id), spec_id)


def _table(view: TableView) -> Table:
    assert isinstance(view.handle, Table)
    return view.handle


def _other_updates(properties: Mapping[str, str], expire: Sequence[int]) -> list[TableUpdate]:
    """What the same commit changes in addition to the snapshot."""
    more: list[TableUpdate] = [SetPropertiesUpdate(updates=dict(properties))]
    if expire:
        more.append(RemoveSnapshotsUpdate(snapshot_ids=list(expire)))
    return more


def _prepared(
    view: TableView,
    producer: _SnapshotProducer[Any],
    added: Iterable[DataFileOfTable],
    removed: Iterable[DataFileOfTable],
    properties: NewProperties | None = None,
    expire: Sequence[int] = (),
    also: Sequence[TableUpdate] = (),
) -> Prepared:
    """Write the manifests of a snapshot on top of `view`; without `properties` those of the table stay as
    they are.
    """
    with writing(f"a manifest of table {shown(view.identifier)}"):
        for item in removed:
            producer.delete_data_file(item)
        for item in added:
            producer.append_data_file(item)
        # The private method returns the request without sending it. The public commit would retry by itself.
        updates, requirements = producer._commit()  # noqa: SLF001 - decision 0004
    # One request has the snapshot and the properties, so evidence and files become visible together (rule
    # C5).
    more = (
        []
        if properties is None
        else _other_updates(properties(producer.snapshot_id, view.sequence_number + 1), expire)
    )
    table = _table(view)
    if also:
        # pyiceberg's catalogs do not notice that another writer added the same order, and other libraries
        # refuse a table with two.
        requirements = (
            *requirements,
            AssertDefaultSortOrderId(default_sort_order_id=table.metadata.default_sort_order_id),
        )
    # A table that was dropped and created again has the same base "none". Only the uuid differs (rule C5).
    request: _Request = (table, (AssertTableUUID(uuid=view.uuid), *requirements), (*updates, *more, *also))
    return Prepared(view.identifier, producer.snapshot_id, view.snapshot_id, view.sequence_number, request)


def _new_snapshot_id(table: Table, ids: IdSource) -> int:
    """A positive 63-bit number that no retained snapshot has."""
    taken = {item.snapshot_id for item in table.metadata.snapshots}
    while True:
        # Shifted, because snapshot ids are signed 64-bit numbers and readers expect positive ones.
        number = int.from_bytes(ids.random_bytes(8), "big") >> 1
        if number > 0 and number not in taken:
            return number


def _snapshot(table: Table, snapshot_id: int) -> Snapshot:
    snapshot = table.metadata.snapshot_by_id(snapshot_id)
    assert snapshot is not None
    return snapshot


def _manifests(table: Table, snapshot: Snapshot) -> list[ManifestFile]:
    with reading(
        f"table {shown(table.name())}: the manifest list {snapshot.manifest_list} of snapshot "
        f"{snapshot.snapshot_id}"
    ):
        return list(snapshot.manifests(table.io))


def _entries(table: Table, manifest: ManifestFile) -> list[Any]:
    access: Any = table.io
    if isinstance(access, GuardedFileIO):
        # The manifest list states the length. Another length means that the file was cut or replaced.
        access = access.expecting(manifest.manifest_path, manifest.manifest_length)
    with reading(f"table {shown(table.name())}: manifest {manifest.manifest_path}"):
        return list(manifest.fetch_manifest_entry(access, discard_deleted=False))


def _entries_at(view: TableView, paths: Set[str]) -> list[Any]:
    """The data files of the current snapshot that have these paths; `RetryLater` unless each is listed
    once.
    """
    table = _table(view)
    snapshot = table.metadata.current_snapshot()
    found = [
        entry.data_file
        for manifest in ([] if snapshot is None else _manifests(table, snapshot))
        if manifest.content == ManifestContent.DATA
        for entry in _entries(table, manifest)
        if entry.status != ManifestEntryStatus.DELETED and entry.data_file.file_path in paths
    ]
    # A path that another writer compacted away may not be replaced: its rows are in another file now.
    if len(found) != len(paths):
        gone = min(paths - {item.file_path for item in found}, default="one of the files")
        raise RetryLater(
            f"table {shown(view.identifier)}: {gone} is not in its current snapshot, or stands there twice"
        )
    return found


def _added_by(table: Table, snapshot: Snapshot) -> set[str]:
    """Paths of the data files that this snapshot added. They are in manifests that it wrote itself."""
    return {
        entry.data_file.file_path
        for manifest in _manifests(table, snapshot)
        # Entries of older manifests were added by older snapshots, so those manifests need not be read.
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id
        for entry in _entries(table, manifest)
        # A merged manifest of this snapshot also holds entries that older snapshots added.
        if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
    }

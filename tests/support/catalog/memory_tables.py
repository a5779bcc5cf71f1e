"""A catalog in memory: the twin of the pyiceberg adapter, with the same promises except durability. For tests
and simulation.

Also lets a test act as another writer or an operator: compact, append, roll back, expire, drop and rename.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from archiver.catalog.table_layout import (
    FORMAT_VERSION,
    PARTITION_BY,
    PARTITION_FIELD_ID,
    bound_number,
    spec_id_of,
    stream_fields,
)
from archiver.catalog.tables import (
    Evolved,
    Identifier,
    LiveFile,
    NewProperties,
    Prepared,
    SnapshotView,
    SpecView,
    SwapOutcome,
    Swapped,
    TableView,
    shown,
)
from archiver.events.types import DataFile
from archiver.objects.paths import Granularity
from archiver.runtime.clock import Clock
from archiver.runtime.errors import KeyExists, NotFound, RetryLater
from archiver.runtime.ids import IdSource, new_uuid
from archiver.schema.evolution.field_history import ids_of


@dataclass(frozen=True, slots=True)
class _File:
    data_file: DataFile
    snapshot_id: int
    sequence_number: int


@dataclass(frozen=True, slots=True)
class _Snapshot:
    view: SnapshotView
    files: tuple[_File, ...]


@dataclass(frozen=True, slots=True)
class _State:
    uuid: uuid.UUID
    location: str
    specs: tuple[Granularity, ...]
    """By id."""
    properties: Mapping[str, str]
    last_column_id: int
    schemas: tuple[str, ...]
    """Every schema, without its id, by id."""
    schema_id: int = 0
    spec_id: int = 0
    """Of the default spec."""
    version: int = 0
    current: int | None = None
    last_sequence: int = 0
    snapshots: Mapping[int, _Snapshot] = field(default_factory=dict)

    def files(self) -> tuple[_File, ...]:
        return () if self.current is None else self.snapshots[self.current].files


@dataclass(frozen=True, slots=True)
class _Request:
    uuid: uuid.UUID
    snapshot: _Snapshot
    properties: Mapping[str, str]
    expire: tuple[int, ...]


class MemoryTables:
    """Tables that live as long as this object. Safe to use from several threads."""

    def __init__(self, ids: IdSource, clock: Clock) -> None:
        self._ids = ids
        self._clock = clock
        self._tables: dict[Identifier, _State] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Nothing to release."""

    def load(self, identifier: Identifier) -> TableView | None:
        """As the Protocol says."""
        with self._lock:
            state = self._tables.get(identifier)
        return None if state is None else _view(identifier, state)

    def create(
        self,
        identifier: Identifier,
        location: str,
        schema_json: str,
        granularity: Granularity,
        properties: Mapping[str, str],
    ) -> TableView:
        """As the Protocol says; keeps the field ids it is given."""
        stream_fields(schema_json)
        kept = {key: value for key, value in properties.items() if key != "format-version"}
        last_column_id = max(ids_of(json.loads(schema_json)))
        state = _State(
            new_uuid(self._ids), location.rstrip("/"), (granularity,), kept, last_column_id, (schema_json,)
        )
        with self._lock:
            if identifier in self._tables:
                raise KeyExists(shown(identifier))
            self._tables[identifier] = state
        return _view(identifier, state)

    def prepare(
        self,
        view: TableView,
        files: Sequence[DataFile],
        properties: NewProperties,
        summary: Mapping[str, str],
        merge: bool,
        expire: Sequence[int],
    ) -> Prepared:
        """As the Protocol says; there are no manifests to merge."""
        del merge
        state = _state(view)
        filed = [replace(item, spec_id=spec_id_of(view, item)) for item in files]
        snapshot_id, sequence = self._snapshot_id(), view.sequence_number + 1
        added = tuple(_File(item, snapshot_id, sequence) for item in filed)
        snapshot = self._snapshot(state, snapshot_id, sequence, "append", summary, (*state.files(), *added))
        request = _Request(view.uuid, snapshot, properties(snapshot_id, sequence), tuple(expire))
        return Prepared(view.identifier, snapshot_id, view.snapshot_id, view.sequence_number, request)

    def prepare_exchange(
        self, view: TableView, removed: Collection[str], added: Sequence[DataFile], summary: Mapping[str, str]
    ) -> Prepared:
        """As the Protocol says."""
        state = _state(view)
        gone = set(removed) - {item.data_file.path for item in state.files()}
        if gone:
            raise RetryLater(f"table {shown(view.identifier)}: {min(gone)} is not in its current snapshot")
        snapshot_id, sequence = self._snapshot_id(), view.sequence_number + 1
        kept = tuple(item for item in state.files() if item.data_file.path not in removed)
        brought = tuple(_File(item, snapshot_id, sequence) for item in added)
        snapshot = self._snapshot(state, snapshot_id, sequence, "replace", summary, (*kept, *brought))
        return Prepared(
            view.identifier,
            snapshot_id,
            view.snapshot_id,
            view.sequence_number,
            _Request(view.uuid, snapshot, {}, ()),
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
        state = _state(view)
        gone = set(paths) - {item.data_file.path for item in state.files()}
        if gone:
            raise RetryLater(f"table {shown(view.identifier)}: {min(gone)} is not in its current snapshot")
        snapshot_id, sequence = self._snapshot_id(), view.sequence_number + 1
        kept = tuple(item for item in state.files() if item.data_file.path not in paths)
        snapshot = self._snapshot(state, snapshot_id, sequence, "delete", summary, kept)
        request = _Request(view.uuid, snapshot, properties(snapshot_id, sequence), tuple(expire))
        return Prepared(view.identifier, snapshot_id, view.snapshot_id, view.sequence_number, request)

    def swap(self, prepared: Prepared) -> Swapped:
        """As the Protocol says; never unknown."""
        request = prepared.handle
        assert isinstance(request, _Request)
        with self._lock:
            state = self._tables.get(prepared.identifier)
            why = "no such table" if state is None else _refusal(state, request)
            if state is None or why is not None:
                return Swapped(SwapOutcome.CONFLICT, prepared.snapshot_id, why or "")
            self._tables[prepared.identifier] = _applied(state, request)
        return Swapped(SwapOutcome.APPLIED, prepared.snapshot_id)

    def evolve(self, view: TableView, schema_json: str) -> Evolved:
        """As the Protocol says; keeps the field ids it is given, and is never unknown."""
        stream_fields(schema_json)
        required = (view.uuid, view.schema_id, view.last_column_id)
        with self._lock:
            state = self._tables.get(view.identifier)
            if state is None or (state.uuid, state.schema_id, state.last_column_id) != required:
                return Evolved(
                    SwapOutcome.CONFLICT,
                    "no such table" if state is None else f"the table is not {required} any more",
                )
            self._tables[view.identifier] = _with_schema(state, schema_json)
        return Evolved(SwapOutcome.APPLIED)

    def repartition(self, view: TableView, granularity: Granularity) -> Evolved:
        """As the Protocol says; never unknown."""
        with self._lock:
            state = self._tables.get(view.identifier)
            if state is None or (state.uuid, state.spec_id, len(state.specs)) != (
                view.uuid,
                view.spec_id,
                len(view.specs),
            ):
                return Evolved(
                    SwapOutcome.CONFLICT,
                    "no such table" if state is None else f"its spec is not {view.spec_id} any more",
                )
            left = {**state.properties, PARTITION_BY: granularity}
            self._tables[view.identifier] = replace(_with_spec(state, granularity), properties=left)
        return Evolved(SwapOutcome.APPLIED)

    def live_files(
        self, view: TableView, snapshot_id: int | None = None, nulls_of: Collection[int] = ()
    ) -> Iterator[LiveFile]:
        """As the Protocol says."""
        fields = stream_fields(view.schema_json)
        state = _state(view)
        for item in state.files() if snapshot_id is None else state.snapshots[snapshot_id].files:
            file = item.data_file
            yield LiveFile(
                path=file.path,
                record_count=file.record_count,
                file_size=file.file_size,
                spec_id=file.spec_id,
                partition=file.partition,
                offset_min=bound_number(file.lower_bounds, fields.offset),
                offset_max=bound_number(file.upper_bounds, fields.offset),
                partition_min=bound_number(file.lower_bounds, fields.partition),
                partition_max=bound_number(file.upper_bounds, fields.partition),
                snapshot_id=item.snapshot_id,
                sequence_number=item.sequence_number,
                null_counts=tuple(
                    (key, count) for key, count in (file.null_value_counts or {}).items() if key in nulls_of
                ),
            )

    def retained_paths(self, view: TableView, names: Collection[str]) -> frozenset[str]:
        """As the Protocol says."""
        paths = (
            item.data_file.path for snapshot in _state(view).snapshots.values() for item in snapshot.files
        )
        return frozenset(path for path in paths if path.rpartition("/")[2] in names)

    def named_paths(self, view: TableView) -> Iterator[str]:
        """As the Protocol says; the twin has no files but those of data."""
        for snapshot in _state(view).snapshots.values():
            yield from (item.data_file.path for item in snapshot.files)

    def count_rows(self, view: TableView, partition: int, offset: int) -> int:
        """As the Protocol says, by the files' bounds: the twin knows no rows."""
        return sum(
            (file.partition_min, file.partition_max) == (partition, partition)
            and (file.offset_min or 0) <= offset <= (-1 if file.offset_max is None else file.offset_max)
            for file in self.live_files(view)
        )

    def data_paths(self, view: TableView, since_sequence: int) -> frozenset[str]:
        """As the Protocol says."""
        state = _state(view)
        found = {item.data_file.path for item in state.files() if item.sequence_number > since_sequence}
        for snapshot in view.lineage():
            if snapshot.sequence_number > since_sequence:
                files = state.snapshots[snapshot.snapshot_id].files
                found |= {item.data_file.path for item in files if item.snapshot_id == snapshot.snapshot_id}
        return frozenset(found)

    def aside_paths(self, view: TableView, since_sequence: int) -> frozenset[str]:
        """As the Protocol says."""
        snapshots = _state(view).snapshots
        newer = (item.snapshot_id for item in view.aside() if item.sequence_number > since_sequence)
        return frozenset(
            item.data_file.path
            for number in newer
            for item in snapshots[number].files
            if item.snapshot_id == number
        )

    # Actions of other writers and operators

    def replace_files(
        self,
        identifier: Identifier,
        remove: Sequence[str],
        add: Sequence[DataFile],
        operation: str = "replace",
    ) -> int:
        """Another writer's commit: compaction (`replace`), `append`, `delete` or `overwrite`; returns its
        snapshot's id.
        """
        with self._lock:
            state = self._known(identifier)
            snapshot_id, sequence = self._snapshot_id(), state.last_sequence + 1
            kept = tuple(item for item in state.files() if item.data_file.path not in remove)
            files = (*kept, *(_File(item, snapshot_id, sequence) for item in add))
            gone = sum(item.data_file.record_count for item in state.files() if item.data_file.path in remove)
            counts = {
                "added-records": str(sum(item.record_count for item in add)),
                "deleted-records": str(gone),
            }
            snapshot = self._snapshot(state, snapshot_id, sequence, operation, counts, files)
            self._tables[identifier] = _applied(state, _Request(state.uuid, snapshot, {}, ()))
        return snapshot_id

    def set_schema(self, identifier: Identifier, schema_json: str) -> None:
        """Another writer's change of the schema."""
        with self._lock:
            self._tables[identifier] = _with_schema(self._known(identifier), schema_json)

    def roll_back(self, identifier: Identifier, snapshot_id: int) -> None:
        """Make an older snapshot the current one; properties stay as they are."""
        with self._lock:
            state = self._known(identifier)
            self._tables[identifier] = replace(state, current=snapshot_id, version=state.version + 1)

    def commit_to_branch(self, identifier: Identifier) -> int:
        """A commit that changes no file, to a branch that begins at the current snapshot; returns its
        snapshot's id.
        """
        with self._lock:
            state = self._known(identifier)
            snapshot_id, sequence = self._snapshot_id(), state.last_sequence + 1
            snapshot = self._snapshot(state, snapshot_id, sequence, "append", {}, state.files())
            self._tables[identifier] = replace(
                _applied(state, _Request(state.uuid, snapshot, {}, ())), current=state.current
            )
        return snapshot_id

    def expire(self, identifier: Identifier, gone: Collection[int]) -> None:
        """Forget some snapshots, as an expirer that cares for metadata only."""
        with self._lock:
            state = self._known(identifier)
            self._tables[identifier] = replace(_without(state, tuple(gone)), version=state.version + 1)

    def drop(self, identifier: Identifier) -> None:
        """Forget the table."""
        with self._lock:
            del self._tables[identifier]

    def rename(self, identifier: Identifier, to: Identifier) -> None:
        """Give the table another name."""
        with self._lock:
            self._tables[to] = self._tables.pop(identifier)

    def _known(self, identifier: Identifier) -> _State:
        state = self._tables.get(identifier)
        if state is None:
            raise NotFound(f"there is no table {shown(identifier)}")
        return state

    def _snapshot_id(self) -> int:
        return int.from_bytes(self._ids.random_bytes(8), "big") >> 1

    def _snapshot(
        self,
        state: _State,
        snapshot_id: int,
        sequence: int,
        operation: str,
        summary: Mapping[str, str],
        files: tuple[_File, ...],
    ) -> _Snapshot:
        view = SnapshotView(
            snapshot_id, state.current, sequence, self._clock.now_us() // 1000, operation, dict(summary)
        )
        return _Snapshot(view, files)


def _state(view: TableView) -> _State:
    assert isinstance(view.handle, _State)
    return view.handle


def _view(identifier: Identifier, state: _State) -> TableView:
    return TableView(
        identifier=identifier,
        uuid=state.uuid,
        location=state.location,
        metadata_location=f"{state.location}/metadata/{state.version:05}",
        schema_json=_numbered(state.schemas[state.schema_id], state.schema_id),
        schema_id=state.schema_id,
        last_column_id=state.last_column_id,
        format_version=FORMAT_VERSION,
        spec_id=state.spec_id,
        granularity=state.specs[state.spec_id],
        snapshot_id=state.current,
        sequence_number=state.last_sequence,
        properties=dict(state.properties),
        snapshots=tuple(item.view for item in state.snapshots.values()),
        schemas=len(state.schemas),
        specs=tuple(
            SpecView(number, granularity, PARTITION_FIELD_ID + number)
            for number, granularity in enumerate(state.specs)
        ),
        handle=state,
    )


def _with_schema(state: _State, schema_json: str) -> _State:
    """The table with another current schema; one that it had before is not kept twice."""
    text = _numbered(schema_json, 0)
    known = [_numbered(one, 0) for one in state.schemas]
    schemas = state.schemas if text in known else (*state.schemas, schema_json)
    highest = max(state.last_column_id, *ids_of(json.loads(schema_json)))
    number = known.index(text) if text in known else len(known)
    return replace(
        state, schemas=schemas, schema_id=number, last_column_id=highest, version=state.version + 1
    )


def _with_spec(state: _State, granularity: Granularity) -> _State:
    """The table with another default spec; one that it had before is not kept twice."""
    specs = state.specs if granularity in state.specs else (*state.specs, granularity)
    return replace(state, specs=specs, spec_id=specs.index(granularity), version=state.version + 1)


def _numbered(schema_json: str, schema_id: int) -> str:
    return json.dumps({**json.loads(schema_json), "schema-id": schema_id}, separators=(",", ":"))


def _refusal(state: _State, request: _Request) -> str | None:
    """Rule C5: uuid, base snapshot, and that the base's sequence number is still the last (not asked without
    a parent, as in pyiceberg).
    """
    parent = request.snapshot.view.parent_id
    if state.uuid != request.uuid:
        return f"table uuid is {state.uuid}, {request.uuid} was asserted"
    if state.current != parent:
        return f"the current snapshot is {state.current}, {parent} was asserted"
    if parent is not None and request.snapshot.view.sequence_number <= state.last_sequence:
        return (
            f"sequence number {request.snapshot.view.sequence_number} is not above the last, "
            f"{state.last_sequence}"
        )
    missing = [snapshot_id for snapshot_id in request.expire if snapshot_id not in state.snapshots]
    return f"snapshot {missing[0]} is gone already" if missing else None


def _applied(state: _State, request: _Request) -> _State:
    view = request.snapshot.view
    grown = replace(
        state,
        current=view.snapshot_id,
        last_sequence=view.sequence_number,
        snapshots={**state.snapshots, view.snapshot_id: request.snapshot},
        properties={**state.properties, **request.properties},
        version=state.version + 1,
    )
    return _without(grown, request.expire)


def _without(state: _State, gone: Sequence[int]) -> _State:
    """The table without some snapshots; their children become parentless, as pyiceberg leaves them."""
    kept: dict[int, _Snapshot] = {}
    for snapshot_id, snapshot in state.snapshots.items():
        if snapshot_id in gone:
            continue
        orphaned = snapshot.view.parent_id in gone
        kept[snapshot_id] = (
            replace(snapshot, view=replace(snapshot.view, parent_id=None)) if orphaned else snapshot
        )
    return replace(state, snapshots=kept)

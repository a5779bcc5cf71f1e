"""The `Tables` Protocol: requests to a table catalog, and views of its tables. Independent of any SDK.

A view is an immutable copy of the metadata, and each decision rests on one view. An adapter never deletes
anything. It reports each swap as applied, conflict or unknown, and never retries by itself.
"""

from __future__ import annotations

import enum
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from archiver.events.types import DataFile
from archiver.objects.paths import Granularity
from archiver.runtime.errors import ConfigInvalid

Identifier = tuple[str, ...]
"""Namespace levels and the table's name, outermost first; the catalog's name is not part of it."""

NewProperties = Callable[[int, int], Mapping[str, str]]
"""(id, sequence number) of the new snapshot → table properties that the same commit sets."""

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,127}")


def parse_identifier(text: str) -> Identifier:
    """`namespace.table` as an identifier.

    Raises `ConfigInvalid` if a part is not made of letters, digits, `_` and `-`.
    """
    # Catalogs build paths from names, so `../x` would leave the warehouse.
    parts = tuple(text.split("."))
    if len(parts) < 2 or not all(_PART.fullmatch(part) for part in parts):
        raise ConfigInvalid(
            f"table {text!r}: a table is named namespace.table, with letters, digits, _ and - in each part"
        )
    return parts


def shown(identifier: Identifier) -> str:
    """The identifier as text, its parts joined by dots."""
    return ".".join(identifier)


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """One retained snapshot."""

    snapshot_id: int
    parent_id: int | None
    """None for the first, and for one whose parent was expired by some catalogs."""
    sequence_number: int
    timestamp_ms: int
    operation: str
    """append, replace, overwrite or delete; empty if the snapshot does not say."""
    summary: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SpecView:
    """One partition spec that a table has or had: files keep the one they were written for."""

    spec_id: int
    granularity: Granularity | None
    """None if it is not one of ours."""
    field_id: int
    """Of its one partition field; 0 if it is not one of ours."""


@dataclass(frozen=True, slots=True)
class TableView:
    """A table's metadata at one moment."""

    identifier: Identifier
    uuid: uuid.UUID
    location: str
    metadata_location: str
    schema_json: str
    """Iceberg's JSON form of the current schema, with the field ids in force."""
    schema_id: int
    format_version: int
    spec_id: int
    """Of the default partition spec."""
    granularity: Granularity | None
    """Of the default partition spec; None if it is not one of ours."""
    snapshot_id: int | None
    """The current snapshot; None if there is none."""
    sequence_number: int
    """The table's last sequence number, which may be newer than the current snapshot's (after a rollback)."""
    properties: Mapping[str, str]
    snapshots: tuple[SnapshotView, ...]
    """All retained ones, in the metadata's order."""
    pinned: frozenset[int] = frozenset()
    """Snapshots that a branch or tag other than main points to."""
    last_column_id: int = 0
    """The highest field id that the table ever assigned, also to columns that were dropped."""
    schemas: int = 1
    """Number of schemas in the metadata. 1: the columns never changed, and every file has their names."""
    specs: tuple[SpecView, ...] = ()
    """All partition specs in the metadata."""
    placed_by_catalog: bool = False
    """The configuration lets the catalog place tables, so any `location` is valid."""
    handle: object = field(default=None, repr=False, compare=False)
    """The adapter's own."""

    def lineage(self) -> tuple[SnapshotView, ...]:
        """The current snapshot and its retained ancestors, newest first."""
        # Removed from the map once found, so that damaged metadata with a cycle of parents ends the loop.
        known = {item.snapshot_id: item for item in self.snapshots}
        found: list[SnapshotView] = []
        at = self.snapshot_id
        while at is not None and at in known:
            snapshot = known.pop(at)
            found.append(snapshot)
            at = snapshot.parent_id
        return tuple(found)

    def ancestors(self) -> frozenset[int]:
        """Ids of the lineage, and of the expired parent of its oldest snapshot, if the metadata still names
        it.
        """
        return frozenset(
            number
            for item in self.lineage()
            for number in (item.snapshot_id, item.parent_id)
            if number is not None
        )

    def aside(self) -> tuple[SnapshotView, ...]:
        """Retained snapshots outside of the lineage: of branches, rolled back, staged, or behind the place
        where expiry cut it.
        """
        lineage = {item.snapshot_id for item in self.lineage()}
        return tuple(item for item in self.snapshots if item.snapshot_id not in lineage)

    def history(self) -> tuple[SnapshotView, ...]:
        """The lineage, then retained snapshots from before the place where expiry cut it, newest first.

        For explanations only: nothing shows whether a snapshot before the cut is an ancestor or was rolled
        back.
        """
        lineage = self.lineage()
        # Without a current snapshot there is no cut to compare with.
        if not lineage:
            return ()
        oldest = lineage[-1].sequence_number
        behind = [item for item in self.snapshots if item.sequence_number < oldest]
        return (*lineage, *sorted(behind, key=lambda item: -item.sequence_number))


@dataclass(frozen=True, slots=True)
class LiveFile:
    """One data file of the current snapshot, as far as its bounds show."""

    path: str
    record_count: int
    file_size: int
    """Bytes, as stated in the table metadata."""
    spec_id: int
    partition: tuple[object, ...]
    """The partition tuple; for our own spec one integer (days, hours or months since 1970)."""
    offset_min: int | None
    """Of kafka.offset; None where the file carries no bounds."""
    offset_max: int | None
    """Inclusive."""
    partition_min: int | None
    """Of kafka.partition; equal to `partition_max` in every file of ours."""
    partition_max: int | None
    snapshot_id: int
    """That added it."""
    sequence_number: int
    has_deletes: bool = False
    """The snapshot holds delete files: rows of this one may be gone."""
    null_counts: tuple[tuple[int, int], ...] = ()
    """(field id, number of nulls) of the requested columns, as far as the manifest states it."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A commit whose manifests are written, but which was not sent to the catalog."""

    identifier: Identifier
    snapshot_id: int
    """The snapshot the table gets if the swap is applied."""
    base_snapshot_id: int | None
    """The current snapshot that the swap asserts (rule C5)."""
    base_sequence_number: int
    """The last sequence number that the swap asserts, together with the table's uuid."""
    handle: object = field(default=None, repr=False, compare=False)
    """The adapter's own."""


class SwapOutcome(enum.Enum):
    """The outcome of a swap."""

    APPLIED = "applied"
    """The catalog points to our snapshot, or did."""
    CONFLICT = "conflict"
    """The catalog refuses. An earlier attempt of ours may be the reason: load the table before the next
    one."""
    UNKNOWN = "unknown"
    """It may be applied, now or later, as long as the base it asserted stands (rule C6)."""


@dataclass(frozen=True, slots=True)
class Swapped:
    """The answer to a swap."""

    outcome: SwapOutcome
    snapshot_id: int
    why: str = ""
    """The catalog's reason, for messages; empty if applied."""


@dataclass(frozen=True, slots=True)
class Evolved:
    """The answer to a change of a table's schema or partition spec."""

    outcome: SwapOutcome
    why: str = ""
    """The catalog's reason, for messages; empty if applied."""


class Tables(Protocol):
    """One catalog. Safe to use from several threads."""

    def load(self, identifier: Identifier) -> TableView | None:
        """The table as it is now, None if there is none. `RetryLater` if the catalog cannot be reached,
        `Halt` if the answer is not valid.
        """

    def create(
        self,
        identifier: Identifier,
        location: str,
        schema_json: str,
        granularity: Granularity,
        properties: Mapping[str, str],
    ) -> TableView:
        """Create the table (and its namespace), partitioned and sorted as `table_layout.py` defines, and load
        it. If the configuration lets the catalog place tables, `location` is not used.

        The catalog may assign other field ids: read `schema_json` of the result. Raises `KeyExists` if a
        table of that name exists, and `OutcomeUnknown` if the reply was lost. Raises `Halt` if the catalog
        put it elsewhere than `location`, and `RetryLater` if nothing happened.
        """

    def prepare(
        self,
        view: TableView,
        files: Sequence[DataFile],
        properties: NewProperties,
        summary: Mapping[str, str],
        merge: bool,
        expire: Sequence[int],
    ) -> Prepared:
        """Write manifests for a snapshot on top of `view` that adds `files` (none is allowed) and sets table
        `properties`.

        `properties` is called once the snapshot's id and sequence number are known. `summary` is added to the
        snapshot's own. `merge` merges manifests. `expire` are snapshots that the same commit expires. Nothing
        is visible before `swap`. Raises `RetryLater` if a manifest could not be written, `Halt` if a file
        fits none of the table's partition specs.
        """

    def swap(self, prepared: Prepared) -> Swapped:
        """Ask the catalog once to point to the prepared snapshot. Never raises for a response of the catalog
        or a missing one.
        """

    def evolve(self, view: TableView, schema_json: str) -> Evolved:
        """Ask the catalog once to make this the table's current schema (its schema id is the catalog's to
        choose). Nothing is deleted.

        The catalog refuses if the table is not the view's any more: another uuid, current schema or last
        column id. It may assign other field ids: load the table and compare. Never raises for a response of
        the catalog or a missing one; `Halt` if the stream's own columns are not in the schema.
        """

    def repartition(self, view: TableView, granularity: Granularity) -> Evolved:
        """Ask the catalog once to partition by this from now on, and to note so under
        `table_layout.PARTITION_BY`. Files keep their specs.

        The catalog refuses if the table is not the view's any more: another uuid, default spec or last
        partition field id. Never raises for a response of the catalog or a missing one; `Halt` if the
        stream's own columns are not in the schema.
        """

    def prepare_exchange(
        self, view: TableView, removed: Collection[str], added: Sequence[DataFile], summary: Mapping[str, str]
    ) -> Prepared:
        """Write manifests for a snapshot of operation `replace` on top of `view`: the files `added` replace
        those at the paths `removed`.

        Both sets must have the same rows. Table properties stay as they are. Nothing is visible before
        `swap`. Raises as `prepare`, and `RetryLater` if a path is not live.
        """

    def prepare_removal(
        self,
        view: TableView,
        paths: Collection[str],
        properties: NewProperties,
        summary: Mapping[str, str],
        expire: Sequence[int],
    ) -> Prepared:
        """Write manifests for a snapshot of operation `delete` on top of `view`, without the files at
        `paths`.

        It sets table `properties` and expires the snapshots `expire` as `prepare` does. The objects stay.
        Raises as `prepare`, and `RetryLater` if a path is not live.
        """

    def live_files(
        self, view: TableView, snapshot_id: int | None = None, nulls_of: Collection[int] = ()
    ) -> Iterator[LiveFile]:
        """The data files of the view's current snapshot, or of another one it retains. `RetryLater` if
        manifests cannot be read.

        `nulls_of` are field ids whose `null_counts` are required.
        """

    def retained_paths(self, view: TableView, names: Collection[str]) -> frozenset[str]:
        """Paths whose last segment is in `names` and that some retained snapshot holds; raises as
        `live_files`.
        """

    def named_paths(self, view: TableView) -> Iterator[str]:
        """Every file that the view's metadata or a retained snapshot needs, some of them more than once.

        These are data and delete files, manifests, manifest lists, statistics, and the current and former
        metadata files. Raises as `live_files`; after an error the paths so far prove nothing.
        """

    def count_rows(self, view: TableView, partition: int, offset: int) -> int:
        """Rows with these coordinates in the current snapshot, as a reader sees them: with delete files
        applied.

        `Halt` if the adapter cannot apply the table's kind of delete files, `RetryLater` if the table cannot
        be read.
        """

    def data_paths(self, view: TableView, since_sequence: int) -> frozenset[str]:
        """Paths of data files that the lineage gained after the sequence number `since_sequence`.

        A retained snapshot with a higher number added the file. Or the file is live, and its data sequence
        number is higher.
        """

    def aside_paths(self, view: TableView, since_sequence: int) -> frozenset[str]:
        """Paths of data files that retained snapshots outside of the lineage added, as far as their sequence
        numbers are above `since_sequence`.
        """

    def close(self) -> None:
        """Release connections."""

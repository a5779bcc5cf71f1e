"""Producers of snapshots by pyiceberg: append, replace and delete. Only for `adapter.py`.

Owns the rule that selects manifests to merge (decision 0032). The table properties for pyiceberg's own merge
are left unchanged, because other engines obey them as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _FastAppendFiles, _ManifestMergeManager, _OverwriteFiles

from archiver.runtime.ids import IdSource, new_uuid

# --- Which manifests are merged


SMALL_BYTES = 64 * 1024
"""Manifests below are merged at every merge."""

LARGE_BYTES = 2 * 1024 * 1024
"""Manifests from this size on are left as they are."""

TOGETHER_MIN = 25
"""From this number on, manifests between the two sizes are merged with each other."""

TARGET_BYTES = 8 * 1024 * 1024
"""Of one merged manifest: Iceberg's default."""

GROWN_GROUPS_MAX = 2
"""Most merged manifests of grown ones in one commit. Bounds the bytes that a commit writes."""


@dataclass(frozen=True, slots=True)
class ManifestSize:
    """A manifest of data files as the manifest list describes it."""

    length: int
    """Bytes."""
    spec_id: int
    """Manifests of different partition specs cannot be merged."""


def groups(manifests: Sequence[ManifestSize]) -> list[list[int]]:
    """Positions in `manifests` (the newest first) that become one manifest each; each at most in one group,
    and none alone.
    """
    found: list[list[int]] = []
    # A manifest has one partition spec, so only those of the same spec can be joined.
    for spec_id in sorted({item.spec_id for item in manifests}):
        mine = [position for position, item in enumerate(manifests) if item.spec_id == spec_id]
        small = [position for position in mine if manifests[position].length < SMALL_BYTES]
        middle = [position for position in mine if SMALL_BYTES <= manifests[position].length < LARGE_BYTES]
        chosen = [_within_target(manifests, small)]
        # A grown manifest is rewritten only with many others, so an entry is written a bounded number of
        # times.
        if len(middle) >= TOGETHER_MIN:
            # The oldest first, so that neighbours in time stay together.
            rest = middle[::-1]
            for _ in range(GROWN_GROUPS_MAX):
                taken = _within_target(manifests, rest)
                chosen.append(taken[::-1])
                rest = rest[len(taken) :]
        found += [group for group in chosen if len(group) > 1]
    return found


def _within_target(manifests: Sequence[ManifestSize], positions: Sequence[int]) -> list[int]:
    """As many of `positions`, from the first, as fit into one manifest."""
    taken: list[int] = []
    total = 0
    for position in positions:
        total += manifests[position].length
        if total > TARGET_BYTES:
            break
        taken.append(position)
    return taken


# --- The producers


class Append(_FastAppendFiles):
    """Adds data files, each under its own partition spec; pyiceberg's manifests of added files all have the
    default one.
    """

    _of_other_specs: tuple[ManifestFile, ...] = ()

    def _manifests(self) -> list[ManifestFile]:
        added, default = self._added_data_files, self._transaction.table_metadata.default_spec_id
        others = sorted({item.spec_id for item in added} - {default})
        if not others:
            return super()._manifests()
        self._of_other_specs = tuple(self._added_manifest(spec_id) for spec_id in others)
        try:
            self._added_data_files = [item for item in added if item.spec_id == default]
            return super()._manifests()
        finally:
            # Restored, because the summary counts all added files.
            self._added_data_files = added

    def _added_manifest(self, spec_id: int) -> ManifestFile:
        with self.new_manifest_writer(self.spec(spec_id)) as writer:
            for item in self._added_data_files:
                if item.spec_id == spec_id:
                    entry = ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._snapshot_id,
                        # None: readers inherit it from the manifest list once the commit is applied.
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=item,
                    )
                    writer.add(entry)
        return writer.to_manifest_file()

    def _existing_manifests(self) -> list[ManifestFile]:
        return [*self._of_other_specs, *super()._existing_manifests()]


class MergingAppend(Append):
    """Adds data files, and writes manifests that belong together as one."""

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        data = [item for item in manifests if item.content == ManifestContent.DATA]
        rest = [item for item in manifests if item.content != ManifestContent.DATA]
        # Its bounds are not used: only its writer of merged manifests is.
        manager = _ManifestMergeManager(0, 0, merge_enabled=True, snapshot_producer=self)
        placed: dict[int, ManifestFile] = dict(enumerate(data))
        for group in groups([ManifestSize(item.manifest_length, item.partition_spec_id) for item in data]):
            merged = manager._create_manifest(  # noqa: SLF001
                data[group[0]].partition_spec_id, [data[position] for position in group]
            )
            for position in group:
                del placed[position]
            # At the place of its newest member, so that the list stays newest first.
            placed[group[0]] = merged
        return [placed[position] for position in sorted(placed)] + rest


class _Unchanged(Transaction):
    """A transaction to which nothing is ever staged: its metadata is the table's."""

    @property
    def table_metadata(self) -> TableMetadata:
        # pyiceberg copies all of it at each access, a dozen times for one snapshot. The copies were two
        # thirds of the cost of a commit (decision 0032).
        return self._table.metadata


def append_producer(
    table: Table, summary: Mapping[str, str], ids: IdSource, snapshot_id: int, *, merge: bool
) -> _FastAppendFiles:
    """The producer of the next snapshot on top of `table`, which gets that id."""
    transaction = _Unchanged(table, autocommit=False)
    kind = MergingAppend if merge else Append
    producer = kind(
        Operation.APPEND, transaction, table.io, commit_uuid=new_uuid(ids), snapshot_properties=dict(summary)
    )
    producer._snapshot_id = snapshot_id  # noqa: SLF001 - the library draws it from the global generator
    return producer


class ExchangeFiles(_OverwriteFiles):
    """Removes data files and adds others in one snapshot."""

    def _summary(self, snapshot_properties: Any = None) -> Summary:
        # pyiceberg has no summary for `replace`, so its overwrite counts, and the operation is set here. The
        # name matters: incremental readers skip `replace`, but read an `overwrite` as removed and added rows.
        counted = super()._summary({} if snapshot_properties is None else snapshot_properties)
        return Summary(Operation.REPLACE, **counted.additional_properties)


class RemoveFiles(_OverwriteFiles):
    """Removes whole data files. pyiceberg's own delete has a predicate over rows and may rewrite files."""

    def _summary(self, snapshot_properties: Any = None) -> Summary:
        counted = super()._summary({} if snapshot_properties is None else snapshot_properties)
        return Summary(Operation.DELETE, **counted.additional_properties)


def exchange_producer(
    table: Table, summary: Mapping[str, str], ids: IdSource, snapshot_id: int
) -> ExchangeFiles:
    """The producer of a snapshot of operation `replace` on top of `table`, which gets that id."""
    producer = ExchangeFiles(
        Operation.OVERWRITE,
        Transaction(table, autocommit=False),
        table.io,
        # It is in the names of manifests, so two attempts never write the same file.
        commit_uuid=new_uuid(ids),
        snapshot_properties=dict(summary),
    )
    producer._snapshot_id = snapshot_id  # noqa: SLF001 - as above
    return producer


def removal_producer(
    table: Table, summary: Mapping[str, str], ids: IdSource, snapshot_id: int
) -> RemoveFiles:
    """The producer of a snapshot of operation `delete` on top of `table`, which gets that id."""
    producer = RemoveFiles(
        Operation.OVERWRITE,
        Transaction(table, autocommit=False),
        table.io,
        commit_uuid=new_uuid(ids),
        snapshot_properties=dict(summary),
    )
    producer._snapshot_id = snapshot_id  # noqa: SLF001 - as above
    return producer

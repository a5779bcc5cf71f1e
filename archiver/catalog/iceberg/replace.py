"""Snapshots of operation `replace` and `delete` by pyiceberg: data files give way to others with the same
rows, or to none. Only for `adapter.py`.

pyiceberg writes such manifests for its overwrite. Its summaries do not support `replace`, so the numbers are
those of an overwrite under the right name. The name matters: incremental readers skip `replace`, and take an
`overwrite` for removed and added rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles

from archiver.runtime.ids import IdSource, new_uuid


class ExchangeFiles(_OverwriteFiles):
    """Removes data files and adds others in one snapshot."""

    def _summary(self, snapshot_properties: Any = None) -> Summary:
        counted = super()._summary({} if snapshot_properties is None else snapshot_properties)
        return Summary(Operation.REPLACE, **counted.additional_properties)


class RemoveFiles(_OverwriteFiles):
    """Removes whole data files. Not pyiceberg's own delete: that one takes a predicate over rows, and may
    rewrite files.
    """

    def _summary(self, snapshot_properties: Any = None) -> Summary:
        counted = super()._summary({} if snapshot_properties is None else snapshot_properties)
        return Summary(Operation.DELETE, **counted.additional_properties)


def exchange_producer(
    table: Table, summary: Mapping[str, str], ids: IdSource, snapshot_id: int
) -> ExchangeFiles:
    """The producer of the next snapshot on top of `table`, which gets that id."""
    transaction = Transaction(table, autocommit=False)
    producer = ExchangeFiles(
        Operation.OVERWRITE,
        transaction,
        table.io,
        commit_uuid=new_uuid(ids),
        snapshot_properties=dict(summary),
    )
    producer._snapshot_id = snapshot_id  # noqa: SLF001 - the library draws it from the global generator
    return producer


def removal_producer(
    table: Table, summary: Mapping[str, str], ids: IdSource, snapshot_id: int
) -> RemoveFiles:
    """As `exchange_producer`."""
    transaction = Transaction(table, autocommit=False)
    producer = RemoveFiles(
        Operation.OVERWRITE,
        transaction,
        table.io,
        commit_uuid=new_uuid(ids),
        snapshot_properties=dict(summary),
    )
    producer._snapshot_id = snapshot_id  # noqa: SLF001 - as above
    return producer

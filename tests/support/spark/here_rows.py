"""Rows for the deep audit, read in the process of the test: the workers' own code, without Spark around it.

For what cannot be provoked with Spark in reasonable time: a file that goes while it is read, a reader that is
away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import pyarrow as pa

from archiver.objects.store import ObjectStore
from archiver.schema.codec import RecordCodec
from archiver.schema.evolution.state import TopicSchema
from reconcile.audit.rows import Compared, ExternalRows, FileRows, IntakeRange, RowFile
from reconcile.audit.spark.comparison import (
    ColumnPrints,
    RecordPrints,
    merged_comparison,
    printed_rows,
    summary_of,
)
from reconcile.audit.spark.reader import digests
from reconcile.audit.spark.stored import archive_rows, external_rows, position_rows, row_count
from reconcile.audit.spark.summary import merged_external, positions_summary, sorted_summary, unpacked
from reconcile.snapshot.offset_coverage import Range

ROWS = 7
"""Read at a time, so that small archives have several batches."""


class HereRows:
    """The `RowReader`; `meanwhile` happens before each reading of archives."""

    def __init__(self, objects: ObjectStore, in_between: Callable[[], object] = lambda: None) -> None:
        self._objects = objects
        self._in_between = in_between
        self.asked: list[str] = []
        """Uris of the archives that were to be read."""
        self.compared: list[str] = []
        """Uris of those whose intake was."""
        self.compared_with: list[str] = []
        """Uris of the archives that rows of other writers were compared with."""

    def positions(self, files: Sequence[RowFile]) -> Mapping[tuple[str, int], tuple[Range, ...]]:
        batches = [batch for file in files for batch in position_rows(self._objects, file)]
        if not batches:
            return {}
        order: list[tuple[str, Literal["ascending", "descending"]]] = [
            (name, "ascending") for name in ("file_path", "origin", "pos")
        ]
        rows = pa.Table.from_batches(batches).sort_by(order)
        (packed,) = positions_summary(rows.to_batches(max_chunksize=ROWS))
        return {place: tuple(runs) for place, runs in unpacked(packed.column(0)[0].as_py()).items()}

    def archives(self, files: Sequence[RowFile], schema: TopicSchema) -> list[FileRows]:
        self._in_between()
        self.asked += [file.uri for file in files]
        return [archive_rows(self._objects, file, RecordCodec(schema), ROWS) for file in files]

    def external(self, files: Sequence[RowFile]) -> ExternalRows:
        try:
            batches = [batch for file in files for batch in external_rows(self._objects, file)]
        except ValueError as error:  # as Spark's reader reports a job that failed
            return ExternalRows(trouble=str(error))
        rows = pa.Table.from_batches(batches).sort_by([("partition", "ascending"), ("offset", "ascending")])
        parts = [
            unpacked(packed.column(0)[0].as_py())
            for packed in sorted_summary(rows.to_batches(max_chunksize=ROWS))
        ]
        return merged_external(parts, {file.uri: row_count(self._objects, file) for file in files})

    def comparison(
        self,
        files: Sequence[RowFile],
        archives: Sequence[RowFile],
        versions: Sequence[TopicSchema],
        *,
        records: bool,
    ) -> Compared:
        self.compared_with += [file.uri for file in archives]
        prints = RecordPrints(versions) if records else ColumnPrints(versions[-1])
        batches = [
            batch for file in (*files, *archives) for batch in printed_rows(self._objects, file, prints)
        ]
        order: list[tuple[str, Literal["ascending", "descending"]]] = [
            (name, "ascending") for name in ("partition", "offset", "origin")
        ]
        rows = pa.Table.from_batches(batches).sort_by(order)
        parts = summary_of(records=records)(rows.to_batches(max_chunksize=ROWS))
        return merged_comparison(unpacked(packed.column(0)[0].as_py()) for packed in parts)

    def intake_digests(self, ranges: Sequence[IntakeRange]) -> Mapping[str, bytes]:
        self.compared += [one.uri for one in ranges]
        return digests(self._objects, ranges)

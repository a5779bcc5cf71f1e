"""Several archives that follow each other made into one, under the schema version they have.

Promises that the new archive holds the same rows in the same order: columns are copied as they stand, nothing
is decoded again, and the records rebuilt from each old archive, and from the finished new one, are compared
with the digests in their footers before anything is stored. Holds a batch of one old archive and a row group
of the new one. Must never touch an old object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from archiver.objects.paths import ArchiveKey
from archiver.objects.store import ObjectStore
from archiver.refine.archive_file import ArchiveWriter, Conflict
from archiver.refine.rows import TopicRows
from archiver.refine.task import RefineOptions, WrittenFile
from archiver.rewrite.verified_write import ArchiveLocation, Sums, close_full, footer_of, store, unlike
from archiver.runtime.errors import Corrupted
from archiver.stream.archives import FoundArchive, FoundFooter, read_footer
from archiver.stream.rebuild import Layout, whole_archive
from intake.log.state import merged

_GAP_BYTES = 24
"""Of a gap in an entry, at most: two numbers of ten bytes with what stands before them."""


@dataclass(frozen=True, slots=True)
class Small:
    """An archive in a table that may be merged with its neighbours."""

    path: str
    """As the table names it."""
    key: str
    size: int
    """Bytes."""
    archive: ArchiveKey
    """What its key says."""

    @property
    def found(self) -> FoundArchive:
        """For readers."""
        return FoundArchive.of(self.key, self.size, self.archive)


@dataclass(frozen=True, slots=True)
class Piece:
    """One of several that become one."""

    small: Small
    footer: FoundFooter

    @property
    def entry_bytes(self) -> int:
        """At most so much of a ledger entry: its key and size, and its gaps, which the new archive has as
        well.
        """
        return len(self.small.key) + 24 + _GAP_BYTES * len(self.footer.gaps)


class Damaged(Corrupted):
    """One of the old archives is not what it says."""

    def __init__(self, place: int, why: str) -> None:
        super().__init__(why)
        self.place = place
        """Which of them."""


def pieces(
    objects: ObjectStore,
    run: Sequence[Small],
    cluster_id: str,
    entry_bytes_max: int,
    skip: Callable[[str, str], None],
) -> Iterator[list[Piece]]:
    """A run of archives that follow each other, cut where the schema version changes, and before an entry of
    the ledger that names them would be too large. What stands alone then is among it. An archive whose footer
    is not what its name says is left out: `skip` is told why.
    """
    together: list[Piece] = []
    size = 0
    for small in run:
        try:
            piece = Piece(small, read_footer(objects, small.found, cluster_id))
        except Corrupted as error:
            skip(small.key, str(error))
            yield together
            together, size = [], 0
            continue
        other = together and together[-1].footer.schema_version != piece.footer.schema_version
        if other or size + piece.entry_bytes > entry_bytes_max:
            yield together
            together, size = [], 0
        together.append(piece)
        size += piece.entry_bytes
    yield together


def merge(
    objects: ObjectStore,
    together: Sequence[Piece],
    rows: TopicRows,
    cluster_id: str,
    options: RefineOptions,
    epoch: int,
) -> WrittenFile | Conflict:
    """Make one archive of several, which are of `rows`' schema version and follow each other, and store it
    under a key of `epoch`.

    A `Conflict`, with nothing stored, if its records are not those of the old ones, or if another object
    stands under the key. Raises `Damaged` if an old archive is not what it says, `RetryLater` if there is no
    room or the store is away.
    """
    first, last = together[0].small.archive, together[-1].small.archive
    gaps = tuple(merged((gap for piece in together for gap in piece.footer.gaps), first.base, last.end))
    place = ArchiveLocation(replace(first, end=last.end, epoch=epoch), gaps, cluster_id)
    layout = Layout(rows.columns.schema, rows.codec)
    writer = ArchiveWriter(objects.spool_dir(), rows.columns, rows.encodings, options.zstd_level)
    try:
        sums = Sums()
        for number, piece in enumerate(together):
            try:
                for batch, records in whole_archive(
                    objects, piece.small.found, cluster_id, lambda _topic, _version: layout
                ):
                    sums.add(records)
                    writer.append(_laid_out(batch, rows.columns.schema))
                    close_full(writer, options)
            except Corrupted as error:
                raise Damaged(number, str(error)) from error
        spooled = writer.finish(footer_of(place, rows, sums.digest.digest()))
        why = unlike(place, spooled, lambda _topic, _version: layout)
        if why is not None:
            writer.discard()
            return Conflict(f"merged they would not give their records back: {why}")
    except BaseException:
        writer.discard()
        raise
    return store(objects, place, rows, spooled, sums, {})


def _laid_out(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows under the names that are written: pyarrow gives the values of a map the map's own name when it
    reads them.
    """
    columns = [
        column if column.type.equals(field.type) else column.cast(field.type)
        for column, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)

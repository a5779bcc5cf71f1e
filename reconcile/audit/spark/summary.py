"""Summarizes the rows of files: batches of rows in, a few numbers per file out.

It uses neither Spark nor an object store (`stored.py` reads). Memory is limited to one batch for any file
size, and the rows of a file are processed in file order.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from archiver.objects.paths import partition_value_of
from archiver.runtime.errors import ArchiverError, passing
from archiver.schema.codec import RecordCodec
from archiver.stream.rebuild import archive_records
from intake.read.digest import RecordsDigest
from reconcile.audit.rows import ExternalRows, FileRows, RowFile, Stretch
from reconcile.snapshot.offset_coverage import Range

Numbers = npt.NDArray[np.int64]
Batches = Iterable[pa.RecordBatch]

RESULT = "result binary"
_RESULT_SCHEMA = pa.schema([pa.field("result", pa.binary())])


def pack(value: object) -> bytes:
    """The bytes that travel through Spark."""
    # Both ends run the same version of this package and trust each other.
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def packed(value: object) -> pa.RecordBatch:
    """One result as a row of `RESULT`."""
    return pa.RecordBatch.from_arrays([pa.array([pack(value)], pa.binary())], schema=_RESULT_SCHEMA)


def unpacked(data: bytes) -> Any:
    """The inverse of `pack`."""
    return pickle.loads(data)  # noqa: S301 - made by our own workers


class ArchiveRows:
    """Summarizes one archive."""

    def __init__(self, file: RowFile, codec: RecordCodec) -> None:
        self._file = file
        self._codec = codec
        self._found = FileRows(file.uri)
        assert file.digest_version is not None, "an archive has a digest"
        self._digest = RecordsDigest(file.digest_version)
        self._last: tuple[int, int] | None = None
        self._at = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the next rows, with all columns."""
        positions = np.arange(self._at, self._at + batch.num_rows)
        self._at += batch.num_rows
        self._found.rows += batch.num_rows
        partitions, offsets, times = coordinates(batch.column("kafka"))
        # Without all coordinates, the positions and offsets of this batch do not match.
        if len(offsets) != batch.num_rows:
            self._found.trouble = (
                self._found.trouble or "it has rows without an offset, a partition or an ingest time"
            )
            return
        self._check_order(offsets, times)
        hidden = hidden_rows(positions, self._file.hidden)
        if hidden is not None:
            # Hidden rows are in the file, but not in the table.
            add_removed(self._found.removed, partitions[hidden], offsets[hidden])
            kept = ~hidden
            add_stretches(self._found.stretches, partitions[kept], offsets[kept], times[kept])
        else:
            add_stretches(self._found.stretches, partitions, offsets, times)
        # The digest is over all rows, hidden or not, as in the footer.
        if self._found.trouble is None:
            self._rebuild(batch)

    def finish(self) -> FileRows:
        """Return the summary after all rows were added."""
        if self._found.trouble is None:
            self._found.digest = self._digest.digest()
        return self._found

    def _check_order(self, offsets: Numbers, times: Numbers) -> None:
        """Check the order of offsets and times, and the period of the times."""
        found, key = self._found, self._file.key
        if self._last is not None:
            # The last row of the previous batch, so that the step between two batches is checked.
            offsets, times = np.append(self._last[0], offsets), np.append(self._last[1], times)
        steps, advances = np.diff(offsets), np.diff(times)
        wrong = np.flatnonzero(steps <= 0)
        if found.disorder is None and len(wrong):
            found.disorder = (int(offsets[wrong[0] + 1]), int(offsets[wrong[0]]))
        # Where offsets are in disorder, a decreasing time is a consequence.
        back = np.flatnonzero((advances < 0) & (steps > 0))
        if found.backwards is None and len(back):
            found.backwards = (int(offsets[back[0] + 1]), int(times[back[0] + 1]), int(times[back[0]]))
        if len(offsets):
            self._last = (int(offsets[-1]), int(times[-1]))
        if key is not None and found.misplaced is None and len(times):
            # If the earliest and latest time are in the period, all are.
            for place in (int(times.argmin()), int(times.argmax())):
                if partition_value_of(int(times[place]), key.granularity) != key.partition_value:
                    found.misplaced = int(offsets[place])

    def _rebuild(self, batch: pa.RecordBatch) -> None:
        try:
            self._digest.update(archive_records(self._file.uri, self._codec, batch))
        except (ArchiverError, pa.ArrowException, ValueError) as error:
            self._found.trouble = f"its records cannot be rebuilt: {error}"
            if passing(error, self._file.uri) is not None:
                # Count them as unread: a temporary error says nothing about the file.
                self._found.rows -= batch.num_rows


def coordinates(kafka: Any) -> tuple[Numbers, Numbers, Numbers]:
    """Partition, offset and ingest time of the rows that have all three."""
    found = [pc.struct_field(kafka, name) for name in ("partition", "offset", "ingest_timestamp")]
    if any(one.null_count for one in found):
        whole = pc.and_(pc.and_(found[0].is_valid(), found[1].is_valid()), found[2].is_valid())
        found = [one.filter(whole) for one in found]
    partitions, offsets, times = (one.cast(pa.int64()).to_numpy(zero_copy_only=False) for one in found)
    return partitions, offsets, times


def hidden_rows(positions: Numbers, hidden: Sequence[Range]) -> npt.NDArray[np.bool_] | None:
    """A mask of the hidden rows; None if there are none."""
    if not hidden or not len(positions):
        return None
    lows, highs = (np.array(side, np.int64) for side in zip(*hidden, strict=True))
    # The last range that begins at or before each position.
    place = np.searchsorted(lows, positions, side="right") - 1
    found: npt.NDArray[np.bool_] = (place >= 0) & (positions < highs[place])
    return found if found.any() else None


def add_stretches(
    stretches: dict[int, list[Stretch]], partitions: Numbers, offsets: Numbers, times: Numbers
) -> None:
    """Add rows in their order. Rows that continue the last stretch of a partition extend it."""
    for partition in np.unique(partitions).tolist():
        mine = partitions == partition
        numbers, moments = offsets[mine], times[mine]
        edges = [0, *(np.flatnonzero(np.diff(numbers) != 1) + 1).tolist(), len(numbers)]
        known = stretches.setdefault(int(partition), [])
        for begin, end in pairwise(edges):
            low, high = int(numbers[begin]), int(numbers[end - 1]) + 1
            # Only an exact continuation: a repeated offset begins a new stretch, so it counts twice.
            if known and known[-1].high == low:
                known[-1] = Stretch(known[-1].low, high, known[-1].low_us, int(moments[end - 1]))
            else:
                known.append(Stretch(low, high, int(moments[begin]), int(moments[end - 1])))


def add_removed(removed: dict[int, list[Range]], partitions: Numbers, offsets: Numbers) -> None:
    """Add offsets of hidden rows."""
    found: dict[int, list[Stretch]] = {}
    # The times are not needed; the offsets stand in for them.
    add_stretches(found, partitions, offsets, offsets)
    for partition, stretches in found.items():
        removed.setdefault(partition, []).extend((one.low, one.high) for one in stretches)


def unhidden(file: RowFile, batches: Batches) -> Iterator[pa.RecordBatch]:
    """The `EXTERNAL` rows of a file of another writer (column `kafka`): coordinates, and whether delete files
    hide them.

    Raises ValueError for a row without an ingest time.
    """
    at = 0
    for batch in batches:
        kafka = batch.column("kafka")
        whole = pc.and_(
            *(pc.struct_field(kafka, name).is_valid() for name in ("partition", "offset"))
        ).to_numpy(zero_copy_only=False)
        # Positions in the file, counted over all rows, with or without coordinates.
        positions = at + np.flatnonzero(whole)
        at += batch.num_rows
        hidden = hidden_rows(positions, file.hidden)
        partitions, offsets, times = coordinates(kafka.filter(pa.array(whole)))
        if len(offsets) != len(positions):
            raise ValueError(f"{file.uri} has rows without an ingest time")
        flags = np.zeros(len(offsets), np.bool_) if hidden is None else hidden
        yield pa.RecordBatch.from_arrays(
            [pa.array(one) for one in (partitions, offsets, times, flags)], names=list(_EXTERNAL)
        )


_EXTERNAL = ("partition", "offset", "time", "hidden")
EXTERNAL = "partition long, offset long, time long, hidden boolean"


def sorted_summary(batches: Batches) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow`: from `EXTERNAL` rows sorted by partition and offset to one
    `ExternalRows`.
    """
    found = ExternalRows()
    last: dict[int, tuple[int, int]] = {}
    for batch in batches:
        partitions, offsets, times = (
            batch.column(name).to_numpy(zero_copy_only=False) for name in _EXTERNAL[:3]
        )
        hidden = batch.column("hidden").to_numpy(zero_copy_only=False)
        add_removed(found.removed, partitions[hidden], offsets[hidden])
        kept = ~hidden
        add_stretches(found.stretches, partitions[kept], offsets[kept], times[kept])
        for partition in np.unique(partitions).tolist():
            mine = partitions == partition
            numbers, moments = offsets[mine], times[mine]
            # A block may span several batches.
            if partition in last:
                numbers, moments = (
                    np.append(last[partition][0], numbers),
                    np.append(last[partition][1], moments),
                )
            # Rows of the same offset are duplicates; the order of their times is undefined.
            back = np.flatnonzero((np.diff(moments) < 0) & (np.diff(numbers) > 0))
            if partition not in found.backwards and len(back):
                found.backwards[partition] = (
                    int(numbers[back[0] + 1]),
                    int(moments[back[0] + 1]),
                    int(moments[back[0]]),
                )
            last[partition] = (int(numbers[-1]), int(moments[-1]))
    yield packed(found)


def positions_summary(batches: Batches) -> Iterator[pa.RecordBatch]:
    """The function for `mapInArrow`: from rows of position-delete files, sorted by `file_path`, `origin` and
    `pos`, to a mapping from path and origin to runs.
    """
    found: dict[tuple[str, int], list[Range]] = {}
    for batch in batches:
        paths, origins = batch.column("file_path"), batch.column("origin")
        for path, origin in _both(paths, origins):
            mine = pc.and_(pc.equal(paths, path), pc.equal(origins, origin))
            places = batch.column("pos").filter(mine).to_numpy(zero_copy_only=False)
            known = found.setdefault((str(path), origin.as_py()), [])
            for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
                low, high = int(run[0]), int(run[-1]) + 1
                # Several delete files may hide the same position.
                if known and known[-1][1] >= low:
                    known[-1] = (known[-1][0], max(high, known[-1][1]))
                else:
                    known.append((low, high))
    yield packed(found)


def _both(paths: Any, origins: Any) -> Iterator[tuple[Any, Any]]:
    """Each path with each of its origins."""
    for path in paths.unique():
        for origin in origins.filter(pc.equal(paths, path)).unique():
            yield path, origin


def merged_external(parts: Iterable[ExternalRows], counts: Mapping[str, int]) -> ExternalRows:
    """The merged results of several workers."""
    whole = ExternalRows(counts=dict(counts))
    for part in parts:
        for partition, stretches in part.stretches.items():
            whole.stretches.setdefault(partition, []).extend(stretches)
        for partition, removed in part.removed.items():
            whole.removed.setdefault(partition, []).extend(removed)
        for partition, back in part.backwards.items():
            # The lowest offset, so that the result does not depend on the order of the parts.
            whole.backwards[partition] = min(back, whole.backwards.get(partition, back))
    return whole

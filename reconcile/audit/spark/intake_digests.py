"""What runs in a Spark worker: the digests of records as they stand in intake files.

Owns the order in which intake is read: each file once, for all archives of the task. Promises a digest only
of a range whose every record was read; a range that cannot be read in full has none, because intake below the
watermark may go at any time. Must never raise for what is in a file or missing in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from archiver.objects.location import StorePlace
from archiver.objects.open import open_store
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import ArchiverError
from archiver.stream.rebuild import from_segment
from intake.read.digest import RecordsDigest
from intake.read.reader import IntakeReader
from intake.segments import FileRef, SegmentRef
from reconcile.audit.rows import IntakeRange
from reconcile.audit.spark.summary import packed, unpacked
from reconcile.snapshot.offset_coverage import total


@dataclass(slots=True)
class _Range:
    wanted: IntakeRange
    digest: RecordsDigest = field(default_factory=RecordsDigest)
    rows: int = 0
    lost: bool = False


def digest_batches(
    place: StorePlace, cluster_id: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: rows with a column `task` in, one mapping of digests per task out."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        objects = open_store(place, cluster_id)
        for batch in batches:
            for cell in batch.column("task"):
                yield packed(digests(objects, unpacked(cell.as_py())))

    return work


def digests(objects: ObjectStore, ranges: Sequence[IntakeRange]) -> dict[str, bytes]:
    """The digest of each range that can be read in full, by the archive's uri."""
    works = [_Range(wanted) for wanted in ranges]
    files: dict[int, tuple[FileRef, dict[tuple[int, int], tuple[SegmentRef, list[_Range]]]]] = {}
    for work in works:
        for segment in work.wanted.segments:
            _, needed = files.setdefault(segment.file.log_index, (segment.file, {}))
            needed.setdefault((segment.row_group, segment.first_row), (segment, []))[1].append(work)
    reader = IntakeReader(objects)
    for index in sorted(files):
        file, needed = files[index]
        left = set(needed)
        try:
            for segment, records in reader.read(file, [segment for segment, _ in needed.values()]):
                place = (segment.row_group, segment.first_row)
                for work in needed[place][1]:
                    _feed(work, segment, records)
                left.discard(place)
        except (ArchiverError, OSError, pa.ArrowException):
            for place in left:
                for work in needed[place][1]:
                    work.lost = True
    return {
        work.wanted.uri: work.digest.digest()
        for work in works
        if not work.lost and work.rows == _due(work.wanted)
    }


def _due(wanted: IntakeRange) -> int:
    return wanted.end - wanted.base - total(wanted.gaps)


def _feed(work: _Range, segment: SegmentRef, records: pa.RecordBatch) -> None:
    """The part of a segment that is in the range; the log's order is the order of offsets."""
    rows = from_segment(segment, records)
    low, high = max(work.wanted.base, segment.base), min(work.wanted.end, segment.end)
    if low < high:
        work.digest.update(rows.slice(low - segment.base, high - low))
        work.rows += high - low

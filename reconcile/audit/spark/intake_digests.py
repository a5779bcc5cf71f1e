"""Runs in a Spark worker: computes digests of records in intake files.

Each intake file is read once for all archives of the task. A range has a digest only if all its records were
read; otherwise it has none, because intake below the watermark may be deleted at any time. Bad or missing
files never raise an error.
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
    intake: IntakeRange
    digest: RecordsDigest = field(default_factory=RecordsDigest)
    rows: int = 0
    lost: bool = False


def digest_batches(
    place: StorePlace, cluster_id: str
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: from rows with a column `task` to one mapping of digests per task."""

    def work(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        objects = open_store(place, cluster_id)
        for batch in batches:
            for cell in batch.column("task"):
                yield packed(digests(objects, unpacked(cell.as_py())))

    return work


def digests(objects: ObjectStore, ranges: Sequence[IntakeRange]) -> dict[str, bytes]:
    """The digest of each completely readable range, by the archive's uri."""
    works = [_Range(one) for one in ranges]
    files: dict[int, tuple[FileRef, dict[tuple[int, int], tuple[SegmentRef, list[_Range]]]]] = {}
    for work in works:
        for segment in work.intake.segments:
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
        work.intake.uri: work.digest.digest()
        for work in works
        if not work.lost and work.rows == _due(work.intake)
    }


def _due(intake: IntakeRange) -> int:
    return intake.end - intake.base - total(intake.gaps)


def _feed(work: _Range, segment: SegmentRef, records: pa.RecordBatch) -> None:
    """Add the part of a segment in the range; the order of the log is the order of offsets."""
    rows = from_segment(segment, records)
    low, high = max(work.intake.base, segment.base), min(work.intake.end, segment.end)
    if low < high:
        work.digest.update(rows.slice(low - segment.base, high - low))
        work.rows += high - low

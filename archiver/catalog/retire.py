"""Which data files of a table lie wholly below retention's starts. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from archiver.catalog.table_layout import StreamFields
from archiver.catalog.tables import LiveFile
from archiver.objects.paths import parse_archive_key


def below_start(files: Iterable[LiveFile], starts: Mapping[int, int], fields: StreamFields) -> Iterator[str]:
    """Paths of the files of which every row has an offset below its partition's start.

    Files that other writers compacted count as well, if their bounds show it. In a file that mixes
    partitions, every partition between the bounds must have a start above the file's last offset. A file that
    reaches beyond a start stays. So does a file with rows that may lack coordinates (rows of other writers).
    """
    for file in files:
        low, high, last = file.partition_min, file.partition_max, file.offset_max
        if low is None or high is None or last is None or not low <= high <= low + len(starts):
            continue
        if all(last < starts.get(partition, 0) for partition in range(low, high + 1)) and _all_placed(
            file, fields
        ):
            yield file.path


def _all_placed(file: LiveFile, fields: StreamFields) -> bool:
    """Whether each row has a partition and an offset. Our archives do; for other files the metadata must show
    it.
    """
    place = file.path.rfind("archive/")
    if place >= 0 and parse_archive_key(file.path[place:]) is not None:
        return True
    nulls = dict(file.null_counts)
    return nulls.get(fields.partition) == 0 and nulls.get(fields.offset) == 0

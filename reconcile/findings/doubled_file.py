"""doubled-file: two files of the table hold the very same offsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.offset_coverage import Range
from reconcile.snapshot.offset_ranges import shown
from reconcile.snapshot.topic_snapshot import TopicSnapshot
from reconcile.snapshot.topic_views import FileView

ID = "doubled-file"


def same_range(sight: TopicSnapshot) -> dict[tuple[int, Range], list[FileView]]:
    """Files of ours by partition and range, those that are not alone."""
    found: defaultdict[tuple[int, Range], list[FileView]] = defaultdict(list)
    for file in () if sight.view.table is None else sight.view.table.files:
        if file.key is not None:
            found[file.key.partition, (file.key.base, file.key.end)].append(file)
    return {place: files for place, files in found.items() if len(files) > 1}


def find(sight: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per range. Reported only: taking a file out of somebody's table is for its owner to decide."""
    del judged
    for (partition, held), files in sorted(same_range(sight).items(), key=lambda item: item[0]):
        names = " and ".join(sorted(file.path.rpartition("/")[2] for file in files))
        yield Finding(
            ID,
            "error",
            sight.topic,
            partition,
            f"offsets {shown([held])} are in the table {len(files)} times: {names}",
            "take one of the two out with the engine that added it (it was not the archiver: each path "
            "is offered once), for example by "
            "rolling back its snapshot; then run `archiver audit`. Nothing is removed by itself",
        )

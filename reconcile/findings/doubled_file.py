"""doubled-file: two files of the table hold exactly the same offsets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from reconcile.audit.rules import PartitionFinding
from reconcile.findings.finding import Finding
from reconcile.snapshot.offset_coverage import Range, shown
from reconcile.snapshot.topic_snapshot import TopicSnapshot
from reconcile.snapshot.topic_views import FileView

ID = "doubled-file"


def same_range(snapshot: TopicSnapshot) -> dict[tuple[int, Range], list[FileView]]:
    """The archiver's files by partition and range, if several have the same range."""
    found: defaultdict[tuple[int, Range], list[FileView]] = defaultdict(list)
    for file in () if snapshot.view.table is None else snapshot.view.table.files:
        if file.key is not None:
            # By the range in the name: such files hold the same offsets.
            found[file.key.partition, (file.key.base, file.key.end)].append(file)
    return {place: files for place, files in found.items() if len(files) > 1}


def find(snapshot: TopicSnapshot, judged: Sequence[PartitionFinding]) -> Iterator[Finding]:
    """One per range."""
    del judged
    for (partition, held), files in sorted(same_range(snapshot).items(), key=lambda item: item[0]):
        names = " and ".join(sorted(file.path.rpartition("/")[2] for file in files))
        # Never repaired: other snapshots, branches or engines may refer to either of the files.
        yield Finding(
            ID,
            "error",
            snapshot.topic,
            partition,
            f"offsets {shown([held])} are in the table {len(files)} times: {names}",
            "remove one of the two with the engine that added it, for example by rolling back its snapshot "
            "(the archiver adds each path only once); then run `archiver audit`. The archiver removes "
            "nothing here",
        )

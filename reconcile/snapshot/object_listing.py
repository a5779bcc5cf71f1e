"""Compares the data folder with the logs: objects that the logs do not explain, and objects that are missing.

Three checks: archives of topics, partitions or offsets that the intake log lacks; intake files with records
of topics that it lacks; missing intake files. Each shows that log and folder do not belong together, so the
log alone proves nothing to the audit. Must never write.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.ledger.views import TopicLedger
from archiver.objects import paths
from archiver.objects.store import ObjectStore
from archiver.runtime.errors import ArchiverError
from archiver.runtime.ids import TopicId
from intake.parquet_footer import read_unverified_metadata
from intake.segments import FileRef, SegmentRef
from reconcile.snapshot.offset_coverage import Range, merge, subtract
from reconcile.snapshot.topic_views import Lost

INFO_MAX = 256
"""Most objects that are requested one by one. For more, a listing is cheaper."""
UNNAMED_READ_MAX = 1000
"""Most intake files without a log entry that are opened. There are few unless the log is lost."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The archive of a topic partition with the highest end."""

    end: int
    """Exclusive."""
    key: str


@dataclass(frozen=True)
class ArchiveFolders:
    """Everything below `archive/`, by topic id."""

    topics: Mapping[TopicId, Mapping[int, Reach]] = field(default_factory=dict)
    """Every topic id with an object, and its partitions with archives."""
    example: str | None = None
    """The key of any object; None if there is none."""


def archive_folders(objects: ObjectStore) -> ArchiveFolders:
    """One listing of `archive/`."""
    topics: dict[TopicId, dict[int, Reach]] = {}
    example: str | None = None
    for info in objects.list(paths.ARCHIVE_PREFIX):
        # Any object proves that the folder was used before.
        example = example or info.key
        topic_id = TopicId(info.key.removeprefix(paths.ARCHIVE_PREFIX).partition("/")[0])
        partitions = topics.setdefault(topic_id, {})
        key = paths.parse_archive_key(info.key)
        if key is not None and (key.partition not in partitions or partitions[key.partition].end < key.end):
            partitions[key.partition] = Reach(key.end, info.key)
    return ArchiveFolders(topics, example)


def topic_name(objects: ObjectStore, topic_id: TopicId) -> str | None:
    """The name in the folder's `topic.json`; None if there is none."""
    try:
        document = json.loads(objects.read(paths.topic_key(topic_id)))
    # The name is only for the report, so a damaged document is no error.
    except (ArchiverError, ValueError, RecursionError):
        return None
    name = document.get("topic") if isinstance(document, dict) else None
    return name if isinstance(name, str) and name else None


@dataclass(frozen=True)
class UnnamedIntake:
    """Intake files without a log entry. They alone are no fault: a killed writer leaves one."""

    topics: Mapping[str, str] = field(default_factory=dict)
    """Topics with records in such files, each with the key of one file."""
    unread: str | None = None
    """Why not every file could be read."""


def unnamed_intake(objects: ObjectStore, named: Collection[str], topics: Collection[str]) -> UnnamedIntake:
    """The `topics` with records in intake files that are not in `named`."""
    found: dict[str, str] = {}
    unread: str | None = None
    opened = 0
    for info in objects.list(paths.INTAKE_PREFIX):
        if info.key in named:
            continue
        # One file per topic is proof enough; the others need not be opened.
        if len(found) == len(topics):
            break
        if opened == UNNAMED_READ_MAX:
            unread = f"intake/ holds more than {UNNAMED_READ_MAX} files that the intake log does not name"
            break
        opened += 1
        try:
            # One column is enough, so most of the file is not fetched.
            with objects.open_input(info.key) as source:
                parquet = pq.ParquetFile(source, metadata=read_unverified_metadata(source))
                names = set(parquet.read(columns=["topic"]).column("topic").unique().to_pylist())
        except (ArchiverError, pa.ArrowException, OSError) as error:
            # The other files may still prove that a topic is not new.
            unread = unread or f"{info.key}, which the intake log does not name, cannot be read ({error})"
            continue
        found.update({name: info.key for name in topics if name in names and name not in found})
    return UnnamedIntake(found, unread)


def first_key(objects: ObjectStore, prefix: str) -> str | None:
    """The key of any object below the prefix; None if there is none."""
    return next((info.key for info in objects.list(prefix)), None)


def harmed_intake(objects: ObjectStore, needed: Iterable[FileRef]) -> dict[str, str]:
    """Faults of the needed intake files, by key: gone, or of another size than the log records."""
    files = {file.key: file for file in needed}
    sizes: dict[str, int] = {}
    if len(files) <= INFO_MAX:
        for key in files:
            info = objects.info(key)
            if info is not None:
                sizes[key] = info.size
    else:
        sizes = {info.key: info.size for info in objects.list(paths.INTAKE_PREFIX) if info.key in files}
    harmed: dict[str, str] = {}
    # Only sizes are compared: the fast audit cannot afford to read every file.
    for key, file in files.items():
        size = sizes.get(key)
        if size is None:
            harmed[key] = f"intake file {key} is gone"
        elif size != file.size:
            harmed[key] = f"intake file {key} has {size} bytes, the intake log says {file.size}"
    return harmed


def lost_offsets(
    objects: ObjectStore,
    ledger: TopicLedger,
    partition: int,
    backlog: Iterable[SegmentRef],
    stable: int,
    harmed: Mapping[str, str],
) -> tuple[Lost, ...]:
    """The offsets of the backlog that only harmed intake files hold.

    An archive that waits for its commit holds its offsets, as long as its object is there.
    """
    # Records beyond the stable offset may still be aborted, so they do not count as lost.
    hit = [segment for segment in backlog if segment.file.key in harmed and segment.base < stable]
    if not hit:
        return ()
    held: list[Range] = [(0, ledger.watermark(partition))]
    for item in ledger.pending:
        archive = item.archive
        if archive.partition == partition:
            # A gap-only archive has no object and holds its offsets by its ledger entry.
            info = None if archive.gap_only else objects.info(archive.key)
            if archive.gap_only or (info is not None and info.size == archive.size):
                held.append((archive.base, archive.end))
    lost: list[Lost] = []
    for segment in hit:
        rest = subtract(merge([(segment.base, min(segment.end, stable))]), merge(held))
        lost.extend(Lost(low, high, harmed[segment.file.key]) for low, high in rest)
    return tuple(lost)

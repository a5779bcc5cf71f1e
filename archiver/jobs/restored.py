"""Is the metadata store the newest one, or a copy that somebody put back?

Archives are made from the log alone, so an archive beyond the log's end, or of a topic the log does not know, proves that the log has lost
entries. Sequencing on would give the same offsets to other records. Looks at one listing; changes nothing.
"""

from __future__ import annotations

from archiver.errors import Halt
from archiver.ids import TopicId
from archiver.objects.paths import ARCHIVE_PREFIX, INTAKE_PREFIX, parse_archive_key
from archiver.objects.store import ObjectStore
from intake.fold import IntakeFold


def check_log_is_newest(objects: ObjectStore, fold: IntakeFold) -> None:
    """Raise `Halt`, naming the repair, if the data folder holds what this log cannot have led to."""
    if fold.next_index == 0:
        stray = next((info.key for prefix in (INTAKE_PREFIX, ARCHIVE_PREFIX) for info in objects.list(prefix)), None)
        if stray is not None:
            raise Halt(f"the metadata store is empty, but the data folder holds {objects.uri(stray)}; {_REPAIR}")
    for info in objects.list(ARCHIVE_PREFIX):
        archive = parse_archive_key(info.key)
        if archive is None:
            continue
        topic_id = TopicId(archive.topic_id)
        topic = fold.topics_by_id.get(topic_id)
        if topic is None or archive.partition >= topic.partitions:
            raise Halt(f"{objects.uri(info.key)} is of a topic partition that the intake log does not know; {_REPAIR}")
        ends_at = fold.next_offset((topic_id, archive.partition))
        if archive.end > ends_at:
            raise Halt(
                f"{objects.uri(info.key)} reaches to offset {archive.end} of topic {topic.name}, but the intake log ends at {ends_at}; "
                f"{_REPAIR}"
            )


_REPAIR = (
    "the metadata store is older than the data (a restored copy, or another deployment's): put the newest one in place. "
    "Nothing is sequenced or archived until then, because offsets would be given twice"
)

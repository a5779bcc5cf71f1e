"""Finds the oldest required intake file: which partition needs it, and why.

The oldest file is the first one in log order. If several partitions need it, one of them is reported. Files
in a damaged or missing history file cannot be found; then it is the oldest of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from archiver.objects.paths import parse_intake_key
from archiver.runtime.errors import Halt, InvalidInput
from archiver.runtime.ids import TopicPartition
from archiver.runtime.rfc3339 import format_time, parse_time
from archiver.runtime.text import moment
from intake.log.backlog import Backlog
from intake.segments import SegmentRef
from reconcile.snapshot.retention_floor import Lines, RetentionFloor


@dataclass(frozen=True, slots=True)
class OldestRequired:
    """The oldest required intake file, and the partition that needs it."""

    topic: str
    partition: int
    key: str
    """The key of the intake file."""
    written_us: int
    """When it was written, by its writer's clock."""
    why: str

    def age_s(self, now_us: int) -> float:
        """Seconds since it was written; not below 0."""
        return max(0, now_us - self.written_us) / 1e6

    def to_json(self, now_us: int) -> dict[str, object]:
        """The JSON of `status` and `clean`."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "key": self.key,
            "written_at": format_time(self.written_us),
            "age_seconds": self.age_s(now_us),
            "why": self.why,
        }

    def __str__(self) -> str:
        return oldest_required_text(self.to_json(self.written_us))


def oldest_required_text(oldest: Mapping[str, object]) -> str:
    """One line for people, from the document of `OldestRequired.to_json`."""
    written = moment(parse_time(str(oldest["written_at"])))
    return (
        f"{oldest['key']}, written {written}, is needed by {oldest['topic']} partition "
        f"{oldest['partition']}: {oldest['why']}"
    )


_METRICS = ("archiver_intake_oldest_required_age_seconds", "archiver_intake_pinned_age_seconds")
"""Name of the metric, and its alias for one release."""


def metrics_of(oldest: OldestRequired | None, now_us: int) -> dict[str, float]:
    """A sample with labels (a topic's name needs no escaping), for `archiver.runtime.logging.METRICS`."""
    # Without labels if no file is required, so that the metric exists with the value 0.
    labels = "" if oldest is None else f'{{topic="{oldest.topic}",partition="{oldest.partition}"}}'
    age_s = 0.0 if oldest is None else oldest.age_s(now_us)
    return {f"{name}{labels}": age_s for name in _METRICS}


def oldest_required(intake: Backlog, lines: Lines) -> OldestRequired | None:
    """The oldest required intake file; None if none is required.

    Topics without a floor are skipped, and so are partitions whose first needed segment cannot be found
    (`needed_files` names them).
    """
    best: tuple[int, str, int] | None = None
    held: tuple[RetentionFloor, SegmentRef] | None = None
    for line in lines.values():
        for partition, offset in enumerate(line.offsets):
            first = _first(intake, (line.topic_id, partition), offset)
            # Log order, then name and partition, so that equal views give the same answer.
            place = None if first is None else (first.file.log_index, line.topic, partition)
            if first is not None and place is not None and (best is None or place < best):
                best, held = place, (line, first)
    if best is None or held is None:
        return None
    line, segment = held
    parsed = parse_intake_key(segment.file.key)
    written_us = 0 if parsed is None else parsed.written_ms * 1000
    return OldestRequired(
        line.topic, best[2], segment.file.key, written_us, _why(intake, line, best[2], segment)
    )


def _first(intake: Backlog, tp: TopicPartition, offset: int) -> SegmentRef | None:
    """The first segment that reaches beyond `offset`; None if there is none, or it is unknown."""
    try:
        # One byte is enough for the first segment.
        found = intake.segments(tp, offset, bytes_max=1)
    # `needed_files` reports the damaged history file.
    except (Halt, InvalidInput):
        return None
    return found[0] if found else None


def _why(intake: Backlog, line: RetentionFloor, partition: int, segment: SegmentRef) -> str:
    tp = (line.topic_id, partition)
    if line.doubted:
        return f"nothing is deleted on doubt: {line.why}"
    if line.why is not None:
        return f"nothing of it is deleted: {line.why}"
    # The ledger has it as archived, so only an old snapshot of the table can need it.
    if segment.end <= line.watermarks[partition]:
        return (
            f"archived, but a retained snapshot of its table ends at offset {line.offsets[partition]}; "
            "a rollback to it would need the file. The file goes when that snapshot has expired "
            "(archive.snapshots_max, archive.snapshots_age). A snapshot that a branch or tag names, or that "
            "a rollback left behind, stays until an operator expires it. So does what other writers added "
            "or removed after it"
        )
    blocking = intake.blocking(tp)
    if blocking is not None and segment.end > intake.stable_offset(tp):
        name = blocking.transactional_id or str(blocking.producer_id)
        return (
            f"transaction {name} is open since {moment(blocking.started_us)}; nothing behind its beginning "
            "is archived"
        )
    return "not archived yet"

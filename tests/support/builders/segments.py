"""Segments made up for tests of pure planning."""

from __future__ import annotations

from collections.abc import Sequence

from archiver.refine.plan import Plan
from archiver.runtime.ids import TopicId
from intake.segments import FileRef, SegmentRef, Segments

TOPIC = TopicId("a" * 32)


def file_ref(log_index: int) -> FileRef:
    """An intake file of that place in the log; there is no object behind it."""
    return FileRef(log_index=log_index, key=f"intake/{log_index}", size=1, footer_sha256=b"f" * 32)


def segment(
    base: int,
    rows: int,
    *,
    raw_bytes: int = 100,
    log_index: int = 0,
    row_group: int = 0,
    first_row: int = 0,
    accept_us: int = 0,
) -> SegmentRef:
    """A segment of `rows` records from offset `base` on."""
    return SegmentRef(
        file=file_ref(log_index),
        row_group=row_group,
        first_row=first_row,
        rows=rows,
        base=base,
        raw_bytes=raw_bytes,
        accept_max_us=accept_us,
        floor_us=0,
    )


def plan_of(segments: Sequence[SegmentRef], *, topic: str = "orders", partition: int = 0) -> Plan:
    """A plan for exactly these segments."""
    return Plan(
        topic_id=TOPIC,
        topic=topic,
        partition=partition,
        base=segments[0].base,
        end=segments[-1].end,
        epoch=1,
        segments=Segments.of(segments),
        rows=sum(one.rows for one in segments),
        raw_bytes=sum(one.raw_bytes for one in segments),
    )

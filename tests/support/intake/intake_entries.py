"""Entries of the intake log, built by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.ids import TopicId


@dataclass(frozen=True)
class Run:
    """A segment as an entry states it."""

    topic_id: TopicId
    partition: int
    rows: int = 1
    raw_bytes: int = 10
    accept_max_us: int = 1_000


def topic_id_of(number: int) -> TopicId:
    """The same topic for the same number."""
    return TopicId(f"{number:032x}")


def declared(number: int, name: str, partitions: int) -> bytes:
    """A topic."""
    topic = pb.TopicDeclared(
        topic_id=bytes.fromhex(topic_id_of(number)), name=name, partitions=partitions, created_us=number
    )
    return pb.IntakeEntry(format=1, id=b"i" * 16, topic=topic).SerializeToString()


def named(key: str, runs: Sequence[Run]) -> bytes:
    """An intake file."""
    topics: list[pb.TopicSegments] = []
    for run in runs:
        if not topics or topics[-1].topic_id.hex() != run.topic_id:
            topics.append(pb.TopicSegments(topic_id=bytes.fromhex(run.topic_id)))
        topics[-1].segments.add(
            partition=run.partition, rows=run.rows, raw_bytes=run.raw_bytes, accept_max_us=run.accept_max_us
        )
    file = pb.IntakeFile(key=key, size=100, footer_sha256=b"d" * 32, topics=topics)
    return pb.IntakeEntry(format=1, id=b"i" * 16, file=file).SerializeToString()


def ticked(time_us: int) -> bytes:
    """A tick."""
    return pb.IntakeEntry(format=1, id=b"i" * 16, tick=pb.Tick(time_us=time_us)).SerializeToString()

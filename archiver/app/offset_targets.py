"""Offsets of a topic that a command names by a target: the start, the end, an offset, or a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from archiver.app.application import Application
from archiver.runtime.errors import InvalidInput, no_partition
from archiver.runtime.redaction import excerpt
from archiver.runtime.rfc3339 import parse_time
from archiver.stream.event_times import EventTimes
from intake.log.fold import TopicState
from intake.segments import LARGEST


@dataclass(frozen=True, slots=True)
class Target:
    """A place in every partition."""

    kind: Literal["earliest", "latest", "offset", "time"]
    value: int = 0
    """The offset, or the time in microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class TargetOffset:
    """The target in one partition."""

    partition: int
    start: int
    end: int
    offset: int
    """From `start` to `end`, both included."""


def parse_target(text: str, option: str) -> Target:
    """`earliest`, `latest`, an offset, or a time as in RFC 3339; raises `InvalidInput` that names the
    option.
    """
    if text == "earliest":
        return Target("earliest")
    if text == "latest":
        return Target("latest")
    if text.isascii() and text.isdecimal() and len(text) <= len(str(LARGEST)) and int(text) <= LARGEST:
        return Target("offset", int(text))
    try:
        return Target("time", parse_time(text))
    except ValueError as error:
        raise InvalidInput(
            f"{option} {excerpt(text, 80)} is no target; it is earliest, latest, an offset, or a time such "
            "as 2026-11-27T12:00:00Z"
        ) from error


def target_offsets(
    app: Application, topic: TopicState, partitions: frozenset[int] | None, target: Target
) -> list[TargetOffset]:
    """The target in each of the partitions, in their order; None: all.

    Raises `NotFound` for a partition that the topic does not have. Only a time needs files; raises then as
    `EventTimes.first_at`.
    """
    # The ledger before the intake log: otherwise archives may seem to reach beyond the log.
    ledger, backlog = app.ledger(), app.backlog()
    times = EventTimes(app.objects, app.cluster.cluster_id)
    stream = app.stream_of(backlog, ledger)
    found = []
    for partition in _present(topic, partitions):
        place = (topic.topic_id, partition)
        end = backlog.next_offset(place)
        start = min(end, backlog.log_start(place, ledger.topic(topic.topic_id).start(partition)))
        if target.kind == "earliest":
            offset = start
        elif target.kind == "latest":
            offset = end
        elif target.kind == "offset":
            # As Kafka's tool does: an offset outside of the partition would start a consumer elsewhere.
            offset = min(max(target.value, start), end)
        else:
            # Records of open transactions count, or a group could never read them.
            first = times.first_at(stream, *place, start, end, target.value, uncommitted=True)
            offset = end if first is None else first.offset
        found.append(TargetOffset(partition, start, end, offset))
    return found


def _present(topic: TopicState, partitions: frozenset[int] | None) -> Sequence[int]:
    if partitions is None:
        return range(topic.partitions)
    beyond = [one for one in sorted(partitions) if one >= topic.partitions]
    if beyond:
        raise no_partition(topic.name, beyond[0], topic.partitions)
    return sorted(partitions)

"""Offsets of a topic that a command names by a target: the start, the end, an offset, a time, or the last
records.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from archiver.app.application import Application
from archiver.config.types import parse_duration
from archiver.runtime.errors import InvalidInput, no_partition
from archiver.runtime.redaction import excerpt
from archiver.runtime.rfc3339 import parse_time
from archiver.stream.event_times import EventTimes
from intake.log.fold import TopicState
from intake.segments import LARGEST

READS_MAX = 1_000_000
"""Footers and intake files that the search for a time may read. A command has no second search that could go
on from there, so it reads far more than one request of a Kafka client."""
_LATEST = re.compile(r"latest-([0-9]+)")
# With a unit: `-10` would be a negative offset.
_AGO = re.compile(r"-([0-9.]+[a-z]+)")
_INCOMPLETE_TIME = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ]([0-9]{2}:[0-9]{2})(:[0-9]{2})?(?:\.[0-9]+)?)?"
    r" ?([Zz]|[+-][0-9]{2}:[0-9]{2})?"
)
"""A date with or without a time of the day and a zone, as people write it."""
KAFKA_LATEST = "latest or end (after the last record)"
"""What `latest` means in Kafka's tools, and in the commands."""


@dataclass(frozen=True, slots=True)
class Target:
    """A place in every partition."""

    kind: Literal["earliest", "latest", "offset", "time", "last"]
    value: int = 0
    """The offset, the time in microseconds since 1970, or the number of the last records."""


@dataclass(frozen=True, slots=True)
class TargetOffset:
    """The target in one partition."""

    partition: int
    start: int
    end: int
    offset: int
    """From `start` to `end`, both included."""


def parse_target(text: str, option: str, now_us: int, latest: str = KAFKA_LATEST) -> Target:
    """A place in the words of all commands and of Kafka's tools: `earliest`, `latest` or `end`,
    `latest-N`, an offset, a time as in RFC 3339, or a duration before `now_us` such as `-10m`.

    Raises `InvalidInput` that names the option and these forms; `latest` says there what `latest` and `end`
    mean.
    """
    if text == "earliest":
        return Target("earliest")
    if text in ("latest", "end"):
        return Target("latest")
    if (offset := _number(text)) is not None:
        return Target("offset", offset)
    if (last := _LATEST.fullmatch(text)) and (count := _number(last[1])) is not None:
        return Target("last", count) if count else Target("latest")
    try:
        if ago := _AGO.fullmatch(text):
            # Bounded: the largest duration is longer than the years that a time can have.
            return Target("time", max(now_us - round(parse_duration(ago[1]) * 1e6), -LARGEST))
        return Target("time", parse_time(text))
    except ValueError as error:
        shown = f"{option} {excerpt(text, 80)}"
        if (complete := _completed(text)) is not None:
            raise InvalidInput(
                f"{shown} is no complete time: it needs seconds and a time zone (Z for UTC), such as "
                f"{complete}"
            ) from error
        raise InvalidInput(
            f"{shown} is not accepted; give earliest, {latest}, latest-N (the last N records of each "
            "partition), an offset, a time such as 2026-11-27T12:00:00Z, or a duration such as -10m (that "
            "long ago)"
        ) from error


def _completed(text: str) -> str | None:
    """The time with what `text` lacks for RFC 3339; None if it is no date or has another error."""
    found = _INCOMPLETE_TIME.fullmatch(text[:80])
    if found is None:
        return None
    complete = f"{found[1]}T{found[2] or '00:00'}{found[3] or ':00'}{found[4] or 'Z'}"
    try:
        parse_time(complete)
    except ValueError:
        return None
    return complete


def _number(text: str) -> int | None:
    """A whole number up to `LARGEST` in ASCII digits; None for other text."""
    # The length first, because a long number takes long to parse.
    if not (text.isascii() and text.isdecimal()) or len(text) > len(str(LARGEST)):
        return None
    return int(text) if int(text) <= LARGEST else None


def read_starts(
    app: Application, topic: TopicState, partitions: Iterable[int], target: Target, *, uncommitted: bool
) -> Mapping[int, int]:
    """The offset at which a reader of each partition starts. An offset as target is returned unchecked.

    The end is behind the stable records; with `uncommitted` behind all records. It is also the start if no
    record has the time of the target or a later one. Raises `NotFound` for a partition that the topic does
    not have; otherwise as `EventTimes.first_at` and `RecordStream.start_of_last`.
    """
    # Nothing to search for, so neither log is read.
    if target.kind == "offset":
        return dict.fromkeys(partitions, target.value)
    # The ledger before the intake log: otherwise archives may seem to reach beyond the log.
    ledger, backlog = app.ledger(), app.backlog()
    stream = app.stream_of(backlog, ledger)
    times = EventTimes(app.objects, app.cluster.cluster_id, reads_max=READS_MAX)
    found = {}
    for partition in partitions:
        place = (topic.topic_id, partition)
        first = stream.first_offset(*place)
        end = max(first, backlog.next_offset(place) if uncommitted else backlog.stable_offset(place))
        if target.kind == "last":
            found[partition] = stream.start_of_last(*place, target.value, uncommitted=uncommitted)
        elif target.kind == "time":
            record = times.first_at(stream, *place, first, end, target.value, uncommitted=uncommitted)
            found[partition] = end if record is None else record.offset
        else:
            found[partition] = first if target.kind == "earliest" else end
    return found


def target_offsets(
    app: Application, topic: TopicState, partitions: frozenset[int] | None, target: Target
) -> list[TargetOffset]:
    """The target in each of the partitions, in their order; None: all.

    Raises `NotFound` for a partition that the topic does not have. Only a time and the last records need
    files; raises then as `EventTimes.first_at` and `RecordStream.start_of_last`.
    """
    # The ledger before the intake log: otherwise archives may seem to reach beyond the log.
    ledger, backlog = app.ledger(), app.backlog()
    times = EventTimes(app.objects, app.cluster.cluster_id, reads_max=READS_MAX)
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
        elif target.kind == "last":
            # As for a time below.
            last = stream.start_of_last(*place, target.value, uncommitted=True)
            offset = min(max(last, start), end)
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

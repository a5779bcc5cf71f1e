"""What it means when an upstream is not what a mirror has read so far: typed findings, and what may be done.

Pure. Promises that nothing is ever passed over in silence: a partition is read on only where every record
that it had is in, was never committed, or was given up by somebody in writing (`lost`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from intake.log.source_positions import Begun
from intake.sources.kafka.upstream import Bounds, UpstreamTopic

NO_ID = b"no id"
WITHOUT_ID: Final = (
    "is described without the id that it has, so it is not known which topic it is; it is asked again"
)
FindingKind = Literal[
    "recreated", "gone", "truncated", "behind", "diverged", "unstorable", "unreadable", "refused"
]
"""`recreated`: the topic is another one of the same name. `gone`: it is not there any more. `truncated`:
records were deleted before they were read. `behind`: the partition ends before what was read, so the upstream
lost records that are here. `diverged`: what was read is not what the upstream has at those offsets any more.
`unstorable`: a record breaks a rule of ours. `unreadable`: the cluster refuses to give it. `refused`: our
topic of that name cannot be a mirror."""


@dataclass(frozen=True, slots=True)
class MirrorFinding:
    """Why a topic, or one partition of it, is not read on."""

    kind: FindingKind
    topic: str
    partition: int | None
    """None: all of them."""
    why: str
    """And what to do; an excerpt, because it may repeat what a cluster says."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", excerpt(self.why, MESSAGE_MAX))

    @property
    def where(self) -> str:
        """For people."""
        return self.topic if self.partition is None else f"{self.topic}:{self.partition}"


@dataclass(frozen=True, slots=True)
class GoOn:
    """The partition is read from there on; what lies between its position and there is lost, and was given
    up.
    """

    offset: int


def judge_topic(name: str, found: UpstreamTopic | None, begun: Mapping[int, Begun]) -> MirrorFinding | None:
    """Is it the topic that was begun? `begun`: its partitions of which something was taken in."""
    if found is None:
        why = (
            "is not in the cluster any more; what was taken in stays. If it was deleted for good, take it "
            "out of the source's topics"
        )
        return MirrorFinding("gone", name, None, why)
    if all(fits(one.identity, found) for one in begun.values()):
        return None
    if not found.topic_id:
        # Its topic has an id, so an answer without one (of a broker that is older, or has not loaded the
        # topic) proves nothing.
        return MirrorFinding("unreadable", name, None, WITHOUT_ID)
    why = (
        "was deleted and made anew in the cluster, so its offsets mean other records; nothing of the "
        "new one is mirrored into the old one. "
        "To mirror the new one: take the topic's entry out of topics, `archiver topics delete` it "
        "here, then `archiver topics create` it "
        "with a table of another name"
    )
    return MirrorFinding("recreated", name, None, why)


def judge_partition(
    name: str, partition: int, position: int, bounds: Bounds, given_up: int | None
) -> GoOn | MirrorFinding:
    """May the partition be read on at `position`? `given_up`: up to where somebody has written that its
    records are lost.
    """
    if position > bounds.high:
        why = (
            f"ends at offset {bounds.high} in the cluster, and was taken in up to {position}: the "
            "cluster has lost records that are here, "
            "and gives their offsets to others. Nothing is read on, because it would mix the two; "
            "delete the topic here and mirror it anew"
        )
        return MirrorFinding("behind", name, partition, why)
    if position >= bounds.low:
        return GoOn(position)
    if given_up is not None and bounds.low <= given_up <= bounds.high:
        return GoOn(
            bounds.low
        )  # not further: what the cluster still has is taken in, whatever else was given up
    why = (
        f"begins at offset {bounds.low} in the cluster, and was taken in up to {position} only: what "
        "lies between was deleted there before "
        f'it was read. To go on without it, set the source\'s lost: {{"{name}:{partition}": {bounds.low}}}'
    )
    return MirrorFinding("truncated", name, partition, why)


def identity_of(topic: UpstreamTopic) -> bytes:
    """What the log keeps of which topic it is. A cluster that gives no ids tells two of one name apart only
    by their offsets.
    """
    return topic.topic_id or NO_ID


def fits(identity: bytes, topic: UpstreamTopic) -> bool:
    """Whether it may be the topic that was begun under that identity. One that had no id may have got one
    since (Kafka 2.8).
    """
    return identity in (NO_ID, identity_of(topic))

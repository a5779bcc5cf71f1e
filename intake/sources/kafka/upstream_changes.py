"""Decide what to do when a cluster differs from what a mirror has read (pure).

No record is skipped silently. A partition is read on only if each of its earlier records was ingested, was
never committed, or was declared lost in the configuration (`lost`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from intake.log.source_positions import Begun
from intake.sources.kafka.upstream import Bounds, UpstreamTopic


@dataclass(frozen=True, slots=True)
class MirrorState:
    """The recent state of one source."""

    name: str
    topics: int = 0
    """Topics mirrored now."""
    partitions: int = 0
    """Partitions read now."""
    behind: int | None = None
    """Offsets in the cluster that are not ingested, for the partitions that are read; None before the first
    inspection."""
    looked_us: int | None = None
    """Time of the last inspection of the cluster; None before the first."""
    findings: tuple[MirrorFinding, ...] = ()
    """The first findings, by topic and partition."""
    stopped: int = 0
    """Number of topics and partitions that are not read on."""
    trouble: str | None = None
    """Reason why nothing is ingested now; None if only single topics have problems."""
    records: int = 0
    """Records ingested since the start of this process."""
    bytes: int = 0
    """Raw bytes of those records."""


NO_ID = b"no id"
WITHOUT_ID: Final = (
    "is described without its topic id, so it is not known which topic it is; it is asked again"
)
FindingKind = Literal[
    "recreated", "gone", "truncated", "behind", "diverged", "unstorable", "unreadable", "refused"
]
"""`recreated`: the topic is another one of the same name. `gone`: it no longer exists. `truncated`: records
were deleted before they were read. `behind`: the partition ends before the position, so the cluster lost
records that are ingested. `diverged`: the cluster now has other records at offsets that were read.
`unstorable`: a record breaks a rule of the archiver. `unreadable`: the cluster does not deliver it.
`refused`: our topic of that name cannot be a mirror."""


@dataclass(frozen=True, slots=True)
class MirrorFinding:
    """The reason why a topic or one of its partitions is not read on."""

    kind: FindingKind
    topic: str
    partition: int | None
    """None for all partitions."""
    why: str
    """The reason and the action for an operator; an excerpt, because it may quote the cluster."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", excerpt(self.why, MESSAGE_MAX))

    @property
    def where(self) -> str:
        """The name in messages."""
        return self.topic if self.partition is None else f"{self.topic}:{self.partition}"


@dataclass(frozen=True, slots=True)
class GoOn:
    """Read the partition from that offset. Records between its position and there were declared lost."""

    offset: int


def judge_topic(name: str, found: UpstreamTopic | None, begun: Mapping[int, Begun]) -> MirrorFinding | None:
    """The finding if `found` is not the topic of the positions `begun`; None if it is."""
    # Only a definite reply: a topic that is not described is handled before this.
    if found is None:
        why = (
            "is not in the cluster any more; the ingested records stay. If it was deleted permanently, "
            "remove it from the source's topics"
        )
        return MirrorFinding("gone", name, None, why)
    # The identity is stored per partition, because partitions may have begun at different times.
    if all(fits(one.identity, found) for one in begun.values()):
        return None
    if not found.topic_id:
        # The positions have a topic id. A reply without one (of an older broker, or one that has not loaded
        # the topic) proves nothing.
        return MirrorFinding("unreadable", name, None, WITHOUT_ID)
    why = (
        "was deleted and recreated in the cluster, so its offsets mean other records; nothing of the "
        "new one is mirrored into the old one. "
        "To mirror the new one: remove the topic's entry from topics, `archiver topics delete` it "
        "here, then `archiver topics create` it "
        "with a table of another name"
    )
    return MirrorFinding("recreated", name, None, why)


def judge_partition(
    name: str, partition: int, position: int, bounds: Bounds, given_up: int | None
) -> GoOn | MirrorFinding:
    """Whether the partition may be read on at `position`. `given_up` is the end of its records declared
    lost.
    """
    # Equal is the normal end. A position never passes the end of the partition it was read from.
    if position > bounds.high:
        why = (
            f"ends at offset {bounds.high} in the cluster, and was ingested up to {position}: the "
            "cluster has lost records that are here, "
            "and assigns their offsets to others. The partition is not read on, "
            "because it would mix the two; "
            "delete the topic here and mirror it again"
        )
        return MirrorFinding("behind", name, partition, why)
    if position >= bounds.low:
        return GoOn(position)
    # An old declaration must not cover a later loss, so it has to fit the present bounds.
    if given_up is not None and bounds.low <= given_up <= bounds.high:
        # Not `given_up`: records that the cluster still has are ingested.
        return GoOn(bounds.low)
    why = (
        f"begins at offset {bounds.low} in the cluster, and was ingested up to {position} only: the records "
        "between were deleted there before "
        "they were read. To continue without them, set the source's lost: "
        f'{{"{name}:{partition}": {bounds.low}}}'
    )
    return MirrorFinding("truncated", name, partition, why)


def identity_of(topic: UpstreamTopic) -> bytes:
    """The topic's identity in the log. Without topic ids, two topics of one name differ only by their
    offsets.
    """
    return topic.topic_id or NO_ID


def fits(identity: bytes, topic: UpstreamTopic) -> bool:
    """Whether the topic may have that identity. A topic without an id may have got one by an upgrade (Kafka
    2.8).
    """
    # A position without an id fits any topic of the name, which cannot be helped on such clusters.
    return identity in (NO_ID, identity_of(topic))

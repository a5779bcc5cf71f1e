"""Members of a group of the consumer protocol (KIP-848), and what they state in their requests.

Members of the classic protocol can be in such a group too. A JoinGroup of theirs says what a first heartbeat
says, and what they own (`beat_of_join`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kio.schema.errors import ErrorCode

from archiver.kafka.embedded_protocol import existing, read_subscription
from archiver.kafka.group import CONSUMER, NEVER, Join, Protocols, protocols_memory, text_memory
from archiver.kafka.topic_configs import Refused
from archiver.runtime.ids import TopicPartition
from intake.log.state import TopicState

LEAVE: Final = -1
"""Epoch of a heartbeat with which a member leaves."""
LEAVE_STATIC: Final = -2
"""Epoch of a heartbeat with which a static member leaves for a while; it keeps its partitions."""
MEMBER_BYTES: Final = 1500
"""Memory of a member without its texts."""
TEXT_BYTES: Final = 60
"""Memory of a text without its characters."""

Visible = Callable[[str, Iterable[str]], frozenset[str]]
"""Those of the names of topics that a principal may see."""

NO_PARTITIONS: Final[frozenset[TopicPartition]] = frozenset()
NO_NAMES: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class TopicRegex:
    """A subscription to all topics whose names match."""

    principal: str
    """Who subscribes: topics that it may not see never match."""
    pattern: str
    """In RE2's syntax, of the whole name."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member subscribes to."""

    names: frozenset[str] = NO_NAMES
    regex: TopicRegex | None = None
    size: int = field(init=False, compare=False)
    """Estimated bytes of memory. Counted once: small requests need it, and there may be very many names."""

    def __post_init__(self) -> None:
        texts = self.names if self.regex is None else (*self.names, self.regex.pattern, self.regex.principal)
        # Clients name topics that do not exist, in any characters.
        size = sum(TEXT_BYTES + (len(one) if one.isascii() else text_memory(one)) for one in texts)
        object.__setattr__(self, "size", size)


@dataclass(frozen=True, slots=True)
class ClassicPart:
    """What only members of the classic protocol have."""

    protocols: Protocols
    session_timeout_s: float
    version: int
    """Of its metadata; its assignment has the same."""
    principal: str
    """Who sent its last JoinGroup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A ConsumerGroupHeartbeat request, or a JoinGroup. Fields that are None have not changed."""

    member_id: str
    epoch: int
    """Of the member: 0 to join, `LEAVE` or `LEAVE_STATIC` to leave."""
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_s: float | None = None
    names: frozenset[str] | None = None
    regex: TopicRegex | None = None
    """With an empty pattern, none any more."""
    assignor: str | None = None
    owned: frozenset[TopicPartition] | None = None
    """What the member has not given up."""
    classic: ClassicPart | None = None
    """Of a JoinGroup."""

    @property
    def subscribes(self) -> bool:
        """Whether it has what a first heartbeat has."""
        return self.rebalance_timeout_s is not None and (self.names is not None or self.regex is not None)

    @property
    def is_full(self) -> bool:
        """Whether the member repeats everything; the answer then has its assignment."""
        return self.epoch == 0 or self.is_repeated

    @property
    def is_repeated(self) -> bool:
        """Whether it is full and not the first one: clients send that after an error."""
        return self.epoch != 0 and self.subscribes and self.owned is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Beaten:
    """The answer to a `Beat`."""

    member_id: str
    epoch: int
    assignment: frozenset[TopicPartition] | None = None
    """None if the member has it already."""


@dataclass(slots=True, eq=False)
class ProtocolMember:
    """A member of a group."""

    member_id: str
    instance_id: str | None
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    rebalance_timeout_s: float = 0.0
    subscription: Subscription = field(default_factory=Subscription)
    assignor: str | None = None
    classic: ClassicPart | None = None
    """Of a member of the classic protocol."""
    epoch: int = 0
    """The generation, for a member of the classic protocol."""
    previous_epoch: int = 0
    """Accepted too: the answer with the newer one may be lost."""
    assigned: frozenset[TopicPartition] = NO_PARTITIONS
    """What it may read."""
    revoking: frozenset[TopicPartition] = NO_PARTITIONS
    """What it must give up, and has not."""
    unconfirmed: frozenset[TopicPartition] = NO_PARTITIONS
    """Parts of both that it was given and has never reported."""
    denied: frozenset[TopicPartition] = NO_PARTITIONS
    """Parts of `revoking` that a full heartbeat did not report, although they may be on their way to it."""
    target: frozenset[TopicPartition] = NO_PARTITIONS
    """What it has when the group is stable."""
    is_waiting: bool = False
    """Parts of its target are not free yet."""
    has_left: bool = False
    """A static member that may return; it keeps its partitions until its session ends."""
    deadline_s: float = NEVER
    """When its session ends."""
    rebalance_due_s: float = NEVER
    """When it is removed unless it has given up `revoking`; in the classic protocol, unless it has sent the
    JoinGroup or the SyncGroup that is expected of it."""

    @property
    def size(self) -> int:
        """Estimated bytes of memory, without its partitions."""
        texts = (self.member_id, self.instance_id, self.client_id, self.client_host, self.rack_id)
        classic = 0 if self.classic is None else protocols_memory(self.classic.protocols)
        return MEMBER_BYTES + sum(text_memory(one or "") for one in texts) + self.subscription.size + classic


def beat_of_join(join: Join, topics: Mapping[str, TopicState], visible: Visible) -> Beat:
    """What a JoinGroup says. Raises `Refused` if it is not of a consumer, or cannot be read."""
    if join.protocol_type != CONSUMER or not join.protocols:
        raise Refused(ErrorCode.inconsistent_group_protocol)
    try:
        # Clients state the same for each assignor.
        stated = read_subscription(join.protocols[0][1])
    except ValueError as error:
        raise Refused(ErrorCode.inconsistent_group_protocol, str(error)) from error
    return Beat(
        member_id=join.member_id,
        epoch=0,
        instance_id=join.instance_id,
        rack_id=stated.rack_id,
        client_id=join.client_id,
        client_host=join.client_host,
        rebalance_timeout_s=join.rebalance_timeout_s,
        names=visible(join.principal, stated.topics),
        # None any more, if it was one of the consumer protocol.
        regex=TopicRegex("", ""),
        owned=existing(stated.owned, topics),
        classic=ClassicPart(join.protocols, join.session_timeout_s, stated.version, join.principal),
    )

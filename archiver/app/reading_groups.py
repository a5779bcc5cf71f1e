"""Documents of the read API about consumer groups: their lag, committed offsets, members and coordinator.

What a reader may not describe is left out before anything is computed: it is counted, and never named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Literal

from archiver.app.group_coordinator import coordinator_among, coordinator_document, live_daemons
from archiver.runtime.errors import ArchiverError, NotFound
from archiver.runtime.redaction import excerpt
from archiver.runtime.rfc3339 import format_time
from archiver.status.group_lag import GroupLag, GroupLags, group_document, partition_document
from intake.log.consumer_groups import ConsumerGroup

if TYPE_CHECKING:
    from archiver.app.application import Application
    from archiver.log.brokers import Broker
    from archiver.runtime.ids import TopicId
    from archiver.status.group_members import GroupMembers, ShownGroup, ShownMember
    from intake.log.backlog import Backlog

May = Callable[[Literal["topic", "group"], str], bool]
"""Whether the reader may describe it."""

LIST_PARTITIONS_MAX: Final = 20_000
"""Partitions of all groups of a list together; a group with more is alone in its list."""
PARTITIONS_MAX: Final = 5_000
"""Partitions of a group that are shown; its sums are of all."""
TOPICS_MAX: Final = 20
"""Topics of a group that a list names, and topics of a member."""
NUMBERS_MAX: Final = 500
"""Partitions of a topic that are shown of a member."""
TEXT_MAX: Final = 500
"""Characters of the metadata of an offset."""


def list_groups(
    app: Application, members: GroupMembers | None, may: May, after: str | None, limit: int
) -> dict[str, Any]:
    """Groups by their ids, at most `limit`, from the first id beyond `after`."""
    view = _View(app, may)
    here = [] if members is None else members.names()
    names = _names(view, here)
    found: list[dict[str, Any]] = []
    room, following = LIST_PARTITIONS_MAX, None
    for name in names:
        if (after is not None and name <= after) or not may("group", name):
            continue
        group, hidden = view.group(name)
        size = 0 if group is None else sum(len(one.partitions) for one in group.topics.values())
        if found and (len(found) >= limit or size > room):
            following = found[-1]["group"]
            break
        room -= size
        found.append(_summary(view.lag(name, group), hidden))
    shown = [one["group"] for one in found]
    states, trouble = _states(members, shown)
    live, unlisted = _live(app)
    own = None if members is None else members.node_id
    for one in found:
        coordinator = coordinator_among(live, one["group"])
        state = states.get(one["group"])
        one |= {
            "coordinator": None if coordinator is None else f"{coordinator.host}:{coordinator.port}",
            "here": coordinator is not None and coordinator.node_id == own,
            "state": None if state is None else state[0],
            "members": None if state is None else state[1],
        }
    closed = None
    # Groups of a listener that was removed are still listed. Only an empty list needs the reason.
    if not found and after is None and app.settings.kafka is None:
        closed = "this daemon has no Kafka listener (`kafka.listen`), so no client can join a group here"
    return {
        "as_of": format_time(view.now_us),
        "groups": found,
        "next": following,
        "trouble": trouble or unlisted or closed,
    }


def one_group(app: Application, members: GroupMembers | None, may: May, name: str) -> dict[str, Any]:
    """A group with its partitions and members. The caller has checked that the reader may describe it."""
    # Members name the same topics, each of them many.
    may = cache(may)
    view = _View(app, may)
    live, trouble = _live(app)
    coordinator = coordinator_document(app, live, name)
    own = None if members is None else members.node_id
    here = own is not None and coordinator["node_id"] == own
    shown: ShownGroup | None = None
    try:
        shown = None if members is None else members.shown(name)
    # The offsets are known although the listener does not answer.
    except ArchiverError as error:
        trouble = excerpt(str(error))
    # Before the offsets: a transaction that ends in between must not be in neither.
    held = view.groups.pending(name)
    pending = [
        {"topic": topic, "partition": number}
        for topic_id, numbers in held.items()
        if (topic := view.topic(topic_id)) is not None
        for number in sorted(numbers)
    ]
    group, hidden = view.group(name)
    if group is None and not hidden and not held and shown is None:
        raise NotFound(f"there is no consumer group {excerpt(name)} with committed offsets or members here")
    lag = view.lag(name, group)
    return {
        "as_of": format_time(view.now_us),
        **_summary(lag, hidden),
        "topics": lag.topics[:PARTITIONS_MAX],
        "coordinator": {**coordinator, "here": here},
        "membership": None if shown is None else _membership(shown, may),
        "partitions": [
            {
                **partition_document(one),
                "metadata": excerpt(one.committed.metadata, TEXT_MAX),
                "committed_at": format_time(one.committed.time_us),
            }
            for one in lag.partitions[:PARTITIONS_MAX]
        ],
        "partitions_left": max(0, len(lag.partitions) - PARTITIONS_MAX),
        "pending": pending[:PARTITIONS_MAX],
        "trouble": trouble,
    }


class _View:
    """The groups by one state of both logs, as far as a reader may see them."""

    def __init__(self, app: Application, may: May) -> None:
        # The ledger before the intake log: otherwise archives may seem to reach beyond the log.
        ledger = app.ledger()
        backlog: Backlog = app.backlog()
        self.now_us = app.clock.now_us()
        self.groups = backlog.fold.consumer_groups
        self._topics = backlog.topics_by_id
        self._lags = GroupLags(backlog, ledger, self.now_us)
        self._may = cache(may)

    def topic(self, topic_id: TopicId) -> str | None:
        """Name of a topic that the reader may describe."""
        topic = self._topics.get(topic_id)
        return None if topic is None or not self._may("topic", topic.name) else topic.name

    def group(self, name: str) -> tuple[ConsumerGroup | None, int]:
        """The group with the topics that the reader may describe, and how many others it has. None without
        any of the former.
        """
        stored = self.groups.get(name)
        if stored is None:
            return None, 0
        visible = {one: offsets for one, offsets in stored.topics.items() if self.topic(one) is not None}
        # A topic that was deleted in between is not hidden.
        hidden = sum(one in self._topics for one in stored.topics.keys() - visible.keys())
        return (replace(stored, topics=visible) if visible else None), hidden

    def lag(self, name: str, group: ConsumerGroup | None) -> GroupLag:
        return GroupLag(name, ()) if group is None else self._lags.of(group)


def _names(view: _View, here: Sequence[str]) -> list[str]:
    """Ids of all groups, in order."""
    pending = (one.group for one in view.groups.all_pending)
    return sorted({*(one.group for one in view.groups), *pending, *here})


def _summary(lag: GroupLag, hidden: int) -> dict[str, Any]:
    document: dict[str, Any] = group_document(lag)
    if not lag.partitions:
        # Of nothing, 0 would say that the group has read everything.
        document |= {"lag_records": None, "lag_seconds": None, "commit_age_seconds": None}
    return {
        **document,
        "topics": lag.topics[:TOPICS_MAX],
        "topic_count": len(lag.topics),
        "topics_hidden": hidden,
    }


def _states(
    members: GroupMembers | None, names: Sequence[str]
) -> tuple[Mapping[str, tuple[str, int]], str | None]:
    try:
        return ({} if members is None else members.states(names)), None
    # Offsets and lag are known although the listener does not answer.
    except ArchiverError as error:
        return {}, excerpt(str(error))


def _live(app: Application) -> tuple[Sequence[Broker], str | None]:
    try:
        return live_daemons(app), None
    except ArchiverError as error:
        return (), excerpt(f"the daemons that coordinate groups are not known: {error}")


# --- Members
def _membership(shown: ShownGroup, may: May) -> dict[str, Any]:
    return {
        "state": shown.state,
        "protocol": shown.protocol,
        "assignor": shown.assignor,
        "generation": shown.generation,
        "rejoining": shown.rejoining,
        "members": [_member(one, may) for one in shown.members],
        "members_left": shown.members_left,
    }


def _member(member: ShownMember, may: May) -> dict[str, Any]:
    subscribed = (
        None if member.subscribed is None else [one for one in member.subscribed if may("topic", one)]
    )
    assigned = None if member.assigned is None else [one for one in member.assigned if may("topic", one)]
    hidden = {*(member.subscribed or ()), *(member.assigned or ())} - {*(subscribed or ()), *(assigned or ())}
    return {
        "member_id": member.member_id,
        "instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "subscribed": None if subscribed is None else subscribed[:TOPICS_MAX],
        "subscribed_count": None if subscribed is None else len(subscribed),
        # It may be the name of a topic, so it is shown if all that it may match are.
        "pattern": None if hidden else member.pattern,
        "assigned": None if assigned is None else list(_assigned(member.assigned or {}, assigned)),
        "assigned_count": sum(len((member.assigned or {})[one]) for one in assigned or ()),
        "topics_hidden": len(hidden),
    }


def _assigned(numbers: Mapping[str, Sequence[int]], topics: Sequence[str]) -> Iterator[dict[str, Any]]:
    for topic in topics[:TOPICS_MAX]:
        yield {"topic": topic, "partitions": list(numbers[topic][:NUMBERS_MAX])}

"""Offsets of consumer groups, and claims to coordinate groups: a part of the intake fold.

Groups are spread over a fixed number of slots by their ids. The daemon with the newest claim of a slot
coordinates its groups. A commit or removal counts only under that claim, so a daemon that was replaced
changes nothing, however late its entries arrive. Claims are numbered by the log, so their numbers only rise.

Pending offsets belong to an open transaction. They count from the entry that commits it, and vanish with
the entry that aborts it. Of the commits of a partition, plain or of a transaction, the one in the latest
entry stays, as in Kafka. So a commit drops the pending offsets of earlier entries for its partitions.

Pure: the same entries give the same state. Offsets of a deleted topic vanish with it, and a group without
offsets is forgotten.

One thread applies entries, and others may read. So a group is a value that is replaced as a whole: a reader
sees either all offsets of a commit or none. Pending offsets are dropped after the group was replaced. So a
reader that finds none, and then reads the group, has not missed them.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import lt
from typing import Final, Literal, NamedTuple

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import TopicId

# Claims in the log refer to slots, and groups to slots by this number. So neither may change.
GROUP_SLOTS: Final = 64
"""Slots over which groups are spread."""
GROUP_ID_BYTES_MAX: Final = 1024
"""Longest group id, as UTF-8."""
METADATA_BYTES_MAX: Final = 32_767
"""Longest metadata of an offset, as UTF-8. Longer texts do not fit Kafka's protocol."""
NO_LEADER_EPOCH: Final = -1
"""Of an offset whose consumer did not state the epoch of the last record that it read."""
# Rounded up from a measurement with tracemalloc. They are in no stored format.
GROUP_BYTES: Final = 400
"""Memory of a group without its id and its offsets."""
GROUP_TOPIC_BYTES: Final = 550
"""Memory of a topic of a group without its offsets."""
OFFSET_BYTES: Final = 24
"""Memory of one committed offset without metadata."""
METADATA_BYTES: Final = 100
"""Memory of an offset's metadata without its text."""

PENDING_ENTRIES_MAX: Final = 10_000
"""Most entries with pending offsets of one group, each of which is visited by every commit of the group."""

_Decided = Mapping[TopicId, Mapping[int, int]]
"""Partitions, with the index of an entry that commits or removes their offsets."""
CommitRefusal = Literal["stale_claim"]
"""Why a commit or removal does not count. `stale_claim`: it was made under another claim than the present one
of the group's slot."""


def slot_of(group: str) -> int:
    """The slot of a group; the same in every process and version."""
    return zlib.crc32(group.encode()) % GROUP_SLOTS


def metadata_bytes(texts: Iterable[str]) -> int:
    """Estimated memory of the metadata of offsets."""
    return sum(METADATA_BYTES + 4 * len(text) for text in texts)


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """The newest claim of a slot."""

    slot: int
    number: int
    """Greater than that of every earlier claim."""
    node_id: int
    """Of the daemon that made it."""
    time_us: int


class CommittedOffset(NamedTuple):
    """What a group committed for one partition."""

    offset: int
    """Of the next record to read."""
    leader_epoch: int
    """`NO_LEADER_EPOCH` if the consumer stated none."""
    metadata: str
    time_us: int
    """When it was committed. An unchanged offset that is committed again may keep an earlier time
    (`intake.log.committed_offsets`)."""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Committed offsets of one topic: columns of equal length. Never changed, only replaced."""

    # Arrays: an object for each offset would take ten times the memory.
    partitions: array[int]
    """Ascending."""
    offsets: array[int]
    leader_epochs: array[int]
    times_us: array[int]
    metadata: Mapping[int, str]
    """By partition; only those that are not empty."""

    def __iter__(self) -> Iterator[tuple[int, CommittedOffset]]:
        for place, partition in enumerate(self.partitions):
            yield partition, self._row(place)

    def get(self, partition: int) -> CommittedOffset | None:
        """The offset of that partition; None without one."""
        place = bisect_left(self.partitions, partition)
        if place == len(self.partitions) or self.partitions[place] != partition:
            return None
        return self._row(place)

    def _row(self, place: int) -> CommittedOffset:
        return CommittedOffset(
            self.offsets[place],
            self.leader_epochs[place],
            self.metadata.get(self.partitions[place], ""),
            self.times_us[place],
        )

    @property
    def size(self) -> int:
        """Estimated bytes of memory."""
        texts = metadata_bytes(self.metadata.values()) if self.metadata else 0
        return GROUP_TOPIC_BYTES + OFFSET_BYTES * len(self.partitions) + texts

    def places_of(self, partitions: array[int]) -> Sequence[int] | None:
        """Where these partitions (ascending) are in the columns; None if one is not."""
        known = self.partitions
        # A group usually has all partitions of a topic, so a partition is its own place.
        if known[-1] == len(known) - 1:
            return partitions if partitions[-1] < len(known) else None
        places = [bisect_left(known, partition) for partition in partitions]
        if places[-1] == len(known) or array("I", map(known.__getitem__, places)) != partitions:
            return None
        return places

    def replaced_by(self, newer: TopicOffsets) -> TopicOffsets:
        """These offsets with the newer ones in their places."""
        places = self.places_of(newer.partitions)
        if places is None:
            return self._joined(newer)
        if len(places) == len(self.partitions):
            return newer
        offsets, epochs, times_us = self.offsets[:], self.leader_epochs[:], self.times_us[:]
        for place, offset, epoch, time_us in zip(
            places, newer.offsets, newer.leader_epochs, newer.times_us, strict=True
        ):
            offsets[place], epochs[place], times_us[place] = offset, epoch, time_us
        return TopicOffsets(self.partitions, offsets, epochs, times_us, self._metadata_with(newer))

    def _joined(self, newer: TopicOffsets) -> TopicOffsets:
        """As `replaced_by`, for any partitions."""
        rows = dict(zip(self.partitions, self._columns(), strict=True))
        rows.update(zip(newer.partitions, newer._columns(), strict=True))
        partitions = sorted(rows)
        offsets, epochs, times_us = zip(*(rows[partition] for partition in partitions), strict=True)
        return TopicOffsets(
            array("I", partitions),
            array("q", offsets),
            array("i", epochs),
            array("q", times_us),
            self._metadata_with(newer),
        )

    def _columns(self) -> Iterator[tuple[int, int, int]]:
        return zip(self.offsets, self.leader_epochs, self.times_us, strict=True)

    def _metadata_with(self, newer: TopicOffsets) -> Mapping[int, str]:
        if not self.metadata:
            return newer.metadata
        # A commit without metadata removes that of the commit before it.
        replaced = set(newer.partitions)
        kept = {number: text for number, text in self.metadata.items() if number not in replaced}
        return {**kept, **newer.metadata}

    def where(self, keep: Sequence[bool]) -> TopicOffsets | None:
        """The offsets whose place is true in `keep`; None without any."""
        if all(keep):
            return self
        partitions = array("I", compress(self.partitions, keep))
        if not partitions:
            return None
        return TopicOffsets(
            partitions,
            array("q", compress(self.offsets, keep)),
            array("i", compress(self.leader_epochs, keep)),
            array("q", compress(self.times_us, keep)),
            {number: self.metadata[number] for number in partitions if number in self.metadata},
        )


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A group with committed offsets. Never changed, only replaced."""

    group: str
    active_us: int
    """Every offset counts as committed at this time at least: the group was in use."""
    topics: Mapping[TopicId, TopicOffsets]
    """At least one, in the order of their first commit."""
    size: int = field(init=False, compare=False)
    """Estimated bytes of memory."""

    def __post_init__(self) -> None:
        size = GROUP_BYTES + len(self.group) + sum(topic.size for topic in self.topics.values())
        object.__setattr__(self, "size", size)

    def offset(self, topic_id: TopicId, partition: int) -> CommittedOffset | None:
        """The committed offset of a partition; None without one."""
        topic = self.topics.get(topic_id)
        return None if topic is None else topic.get(partition)

    @property
    def newest_us(self) -> int:
        """When the group committed, or was known to be in use, the last time."""
        return max(self.active_us, *(max(topic.times_us) for topic in self.topics.values()))


@dataclass(frozen=True, slots=True)
class PendingOffsets:
    """What one entry commits for a group in an open transaction. Never changed, only replaced."""

    group: str
    producer_id: int
    """Of the transaction."""
    index: int
    """Of the entry."""
    topics: Mapping[TopicId, TopicOffsets]
    """At least one."""
    size: int = field(init=False, compare=False)
    """Estimated bytes of memory."""

    def __post_init__(self) -> None:
        size = GROUP_BYTES + len(self.group) + sum(topic.size for topic in self.topics.values())
        object.__setattr__(self, "size", size)

    def after(self, decided: _Decided) -> PendingOffsets | None:
        """The offsets of partitions that no later entry has decided; None if there are none."""
        if decided.keys().isdisjoint(self.topics):
            return self
        left: dict[TopicId, TopicOffsets] = {}
        for topic_id, offsets in self.topics.items():
            newest = decided.get(topic_id, {})
            kept = offsets.where([newest.get(number, -1) < self.index for number in offsets.partitions])
            if kept is not None:
                left[topic_id] = kept
        return PendingOffsets(self.group, self.producer_id, self.index, left) if left else None


class ConsumerGroups:
    """All groups with committed or pending offsets, and the newest claim of each slot. Only the fold changes
    them.

    Iteration gives the groups with committed offsets.
    """

    def __init__(self) -> None:
        self._claims: dict[int, SlotClaim] = {}
        self._groups: dict[str, ConsumerGroup] = {}
        # By group, in the order of their entries. The transactions are found by their producers.
        self._pending: dict[str, tuple[PendingOffsets, ...]] = {}
        self._groups_of: dict[int, set[str]] = {}
        self._size = 0

    def __iter__(self) -> Iterator[ConsumerGroup]:
        return iter(list(self._groups.values()))  # a copy: the fold may add a group during the iteration

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def size(self) -> int:
        """Estimated bytes of memory of all groups, with their pending offsets."""
        return self._size

    @property
    def claims(self) -> list[SlotClaim]:
        """The newest claim of each slot that was claimed, by slot."""
        return [self._claims[slot] for slot in sorted(self._claims)]

    def claim(self, slot: int) -> SlotClaim | None:
        """The newest claim of the slot; None if there was none."""
        return self._claims.get(slot)

    def get(self, group: str) -> ConsumerGroup | None:
        """The group; None if it has no committed offset."""
        return self._groups.get(group)

    def pending(self, group: str) -> Mapping[TopicId, frozenset[int]]:
        """Partitions for which an open transaction may still commit an offset.

        Read this before the committed offsets: an offset that is read first may be older than a transaction
        that was committed in between.
        """
        found: dict[TopicId, set[int]] = {}
        for held in self._pending.get(group, ()):
            for topic_id, offsets in held.topics.items():
                found.setdefault(topic_id, set()).update(offsets.partitions)
        return {topic_id: frozenset(partitions) for topic_id, partitions in found.items()}

    def pending_entries(self, group: str) -> int:
        """How many entries have pending offsets of the group."""
        return len(self._pending.get(group, ()))

    @property
    def all_pending(self) -> list[PendingOffsets]:
        """The pending offsets of all groups, in the order of their entries."""
        # A copy: another thread may apply an entry while this one reads.
        every = list(self._pending.values())
        return sorted((one for held in every for one in held), key=lambda one: one.index)

    def is_current(self, group: str, claim: int) -> bool:
        """Whether a commit of the group under that claim counts."""
        held = self._claims.get(slot_of(group))
        return held is not None and held.number == claim

    # Called by the fold alone.

    def restore(
        self,
        claims: Sequence[SlotClaim],
        groups: Sequence[ConsumerGroup],
        pending: Sequence[PendingOffsets],
    ) -> None:
        """Take over the state of a checkpoint."""
        self._claims.update({claim.slot: claim for claim in claims})
        for group in groups:
            self._put(group)
        for held in pending:
            self._put_pending(held.group, (*self._pending.get(held.group, ()), held))

    def claimed(self, index: int, entry: pb.GroupSlotsClaimed) -> int:
        """Apply the claim of the entry at `index`; returns its number."""
        slots = list(entry.slots)
        if not slots or slots != sorted(set(slots)) or slots[-1] >= GROUP_SLOTS:
            raise Corrupted(f"intake log: entry {index} claims impossible slots; restore the log")
        number = index + 1  # 0 is no claim
        for slot in slots:
            self._claims[slot] = SlotClaim(slot, number, entry.node_id, entry.time_us)
        return number

    def committed(
        self,
        index: int,
        entry: pb.OffsetsCommitted,
        tick_us: int,
        partitions_of: Callable[[TopicId], int],
    ) -> tuple[CommitRefusal | None, ...]:
        """Apply the commits of the entry at `index`; None for each that counts, or why it does not.

        `partitions_of` is 0 for a topic that does not exist.
        """
        # As for transactions: a clock that is behind must not let offsets expire early.
        time_us = max(entry.time_us, tick_us)
        # All of it is checked before anything changes.
        _check_groups(index, [commit.group for commit in entry.commits])
        topic_ids = _topic_ids(index, entry.topic_ids)
        stated = [_stated_topics(index, topic_ids, commit, time_us) for commit in entry.commits]
        return tuple(
            self._commit(index, commit, topics, time_us, partitions_of)
            for commit, topics in zip(entry.commits, stated, strict=True)
        )

    def _commit(
        self,
        index: int,
        commit: pb.GroupCommit,
        topics: Sequence[tuple[TopicId, TopicOffsets]],
        time_us: int,
        partitions_of: Callable[[TopicId], int],
    ) -> CommitRefusal | None:
        if not self.is_current(commit.group, commit.claim):
            return "stale_claim"
        held = self._groups.get(commit.group)
        if not topics:
            if held is not None:
                self._put(ConsumerGroup(held.group, max(held.active_us, time_us), held.topics))
            return None
        existing = _existing(topics, partitions_of)
        self._put_committed(commit.group, existing.items())
        if commit.group in self._pending:
            self._supersede(commit.group, _decided(index, existing))
        return None

    def _put_committed(self, group: str, committed: Iterable[tuple[TopicId, TopicOffsets]]) -> None:
        """Give a group these offsets in the places of its own. Of two for a partition, the last one stays."""
        held = self._groups.get(group)
        offsets = {} if held is None else dict(held.topics)
        for topic_id, newer in committed:
            known = offsets.get(topic_id)
            offsets[topic_id] = newer if known is None else known.replaced_by(newer)
        if offsets:
            self._put(ConsumerGroup(group, 0 if held is None else held.active_us, offsets))

    def stated(
        self, index: int, entry: pb.OffsetsPending, tick_us: int
    ) -> Sequence[tuple[TopicId, TopicOffsets]]:
        """The offsets in the entry at `index`, checked; nothing changes."""
        _check_groups(index, [entry.commit.group])
        if not entry.commit.topics:
            raise Corrupted(f"intake log: entry {index} has no offsets of a transaction; restore the log")
        # They keep this time when they are committed, as in Kafka.
        time_us = max(entry.time_us, tick_us)
        return _stated_topics(index, _topic_ids(index, entry.topic_ids), entry.commit, time_us)

    def hold(
        self,
        index: int,
        producer_id: int,
        group: str,
        topics: Sequence[tuple[TopicId, TopicOffsets]],
        partitions_of: Callable[[TopicId], int],
    ) -> None:
        """Keep the offsets of the entry at `index` until the end of the producer's transaction."""
        existing = _existing(topics, partitions_of)
        if not existing:
            return
        decided = _decided(index, existing)
        kept = [
            left
            for one in self._pending.get(group, ())
            # Those of other transactions stay: this transaction may be aborted.
            if (left := one.after(decided) if one.producer_id == producer_id else one) is not None
        ]
        self._put_pending(group, (*kept, PendingOffsets(group, producer_id, index, existing)))

    def end(self, producer_id: int, *, commit: bool) -> None:
        """Apply the pending offsets of the producer's transaction, or drop them."""
        # In an order that a checkpoint does not change: it decides about the order of new groups.
        for group in sorted(self._groups_of.get(producer_id, ())):
            mine = [one for one in self._pending[group] if one.producer_id == producer_id]
            left = [one for one in self._pending[group] if one.producer_id != producer_id]
            if commit:
                # No claim is compared: they counted when they were held, and a later claim does not end a
                # transaction.
                self._put_committed(group, (item for one in mine for item in one.topics.items()))
                decided: dict[TopicId, dict[int, int]] = {}
                for one in mine:
                    for topic_id, partitions in _decided(one.index, one.topics).items():
                        decided.setdefault(topic_id, {}).update(partitions)
                left = [kept for one in left if (kept := one.after(decided)) is not None]
            self._put_pending(group, left)

    def removed(self, index: int, entry: pb.OffsetsRemoved) -> tuple[CommitRefusal | None, ...]:
        """Apply the removals of the entry at `index`; None for each that counts, or why it does not."""
        _check_groups(index, [removal.group for removal in entry.removals])
        topic_ids = _topic_ids(index, entry.topic_ids)
        stated = [
            {_topic(index, topic_ids, topic.topic): frozenset(topic.partitions) for topic in removal.topics}
            for removal in entry.removals
        ]
        if any(len(one) < len(removal.topics) for one, removal in zip(stated, entry.removals, strict=True)):
            raise Corrupted(f"intake log: entry {index} removes offsets of a topic twice; restore the log")
        return tuple(
            self._remove(index, removal, topics)
            for removal, topics in zip(entry.removals, stated, strict=True)
        )

    def _remove(
        self, index: int, removal: pb.GroupRemoval, topics: Mapping[TopicId, frozenset[int]]
    ) -> CommitRefusal | None:
        if not self.is_current(removal.group, removal.claim):
            return "stale_claim"
        before_us = removal.committed_before_us
        if before_us:
            # An open transaction may still need them: its consumer goes on from there if it is aborted.
            self._remove_committed(removal.group, topics, before_us, self.pending(removal.group))
        else:
            self._remove_committed(removal.group, topics, 0, {})
            gone = topics or self.pending(removal.group)
            self._supersede(removal.group, {one: dict.fromkeys(gone[one], index) for one in gone})
        return None

    def _remove_committed(
        self,
        group: str,
        topics: Mapping[TopicId, frozenset[int]],
        before_us: int,
        kept: Mapping[TopicId, frozenset[int]],
    ) -> None:
        held = self._groups.get(group)
        # A group that was in use since then keeps all of its offsets.
        if held is None or (before_us and held.active_us >= before_us):
            return
        offsets = dict(held.topics)
        for topic_id in topics or held.topics:
            known = held.topics.get(topic_id)
            if known is None:
                continue
            named, stay = topics.get(topic_id), kept.get(topic_id, frozenset())
            left = known.where(
                [
                    (named is not None and number not in named)
                    or bool(before_us and time_us >= before_us)
                    or number in stay
                    for number, time_us in zip(known.partitions, known.times_us, strict=True)
                ]
            )
            if left is None:
                del offsets[topic_id]
            else:
                offsets[topic_id] = left
        self._put(ConsumerGroup(held.group, held.active_us, offsets))

    def forget_topic(self, index: int, topic_id: TopicId) -> None:
        """The entry at `index` deletes the topic."""
        for held in list(self._groups.values()):
            if topic_id in held.topics:
                left = {known: offsets for known, offsets in held.topics.items() if known != topic_id}
                self._put(ConsumerGroup(held.group, held.active_us, left))
        for group in list(self._pending):
            gone = self.pending(group).get(topic_id, ())
            self._supersede(group, {topic_id: dict.fromkeys(gone, index)})

    def _put(self, group: ConsumerGroup) -> None:
        """Put a group in the place of its former state; one without offsets is forgotten."""
        before = self._groups.get(group.group)
        if before is not None:
            self._size -= before.size
        if group.topics:
            self._size += group.size
            self._groups[group.group] = group
        elif before is not None:
            del self._groups[group.group]

    def _supersede(self, group: str, decided: _Decided) -> None:
        """Drop the pending offsets of a group that cannot count any more."""
        left = [kept for one in self._pending.get(group, ()) if (kept := one.after(decided)) is not None]
        self._put_pending(group, left)

    def _put_pending(self, group: str, held: Sequence[PendingOffsets]) -> None:
        before = self._pending.get(group, ())
        self._size += sum(one.size for one in held) - sum(one.size for one in before)
        producers = {one.producer_id for one in held}
        for producer_id in {one.producer_id for one in before} - producers:
            groups = self._groups_of[producer_id]
            groups.remove(group)
            if not groups:
                del self._groups_of[producer_id]
        for producer_id in producers:
            self._groups_of.setdefault(producer_id, set()).add(group)
        if held:
            self._pending[group] = tuple(held)
        else:
            self._pending.pop(group, None)


def _decided(index: int, offsets: Mapping[TopicId, TopicOffsets]) -> dict[TopicId, dict[int, int]]:
    return {topic_id: dict.fromkeys(one.partitions, index) for topic_id, one in offsets.items()}


def _existing(
    topics: Sequence[tuple[TopicId, TopicOffsets]], partitions_of: Callable[[TopicId], int]
) -> dict[TopicId, TopicOffsets]:
    """The offsets of partitions that exist. Of two for a partition, the last one stays."""
    found: dict[TopicId, TopicOffsets] = {}
    for topic_id, stated in topics:
        count = partitions_of(topic_id)
        # The topic was deleted since: its offsets would have vanished with it.
        newer = (
            stated
            if stated.partitions[-1] < count
            else stated.where([number < count for number in stated.partitions])
        )
        if newer is not None:
            known = found.get(topic_id)
            found[topic_id] = newer if known is None else known.replaced_by(newer)
    return found


# --- columns of messages


def leader_epochs_stated(leader_epochs: array[int]) -> list[int]:
    """The column of leader epochs, as messages state it: usually all are the same."""
    first = leader_epochs[0]
    if leader_epochs.count(first) < len(leader_epochs):
        return [epoch + 1 for epoch in leader_epochs]
    return [] if first == NO_LEADER_EPOCH else [first + 1]


def metadata_stated(partitions: array[int], metadata: Mapping[int, str]) -> list[str]:
    """The column of metadata, as messages state it: usually there is none."""
    return [metadata.get(partition, "") for partition in partitions] if metadata else []


def columns(
    partitions: Sequence[int],
    offsets: Sequence[int],
    leader_epochs: Sequence[int],
    times_us: array[int],
    metadata: Sequence[str],
) -> TopicOffsets:
    """Offsets from the columns of a message. Raises `ValueError` or `OverflowError` for impossible ones."""
    numbers, count = array("I", partitions), len(partitions)
    if len(leader_epochs) == count > 1:
        epochs = array("i", [epoch - 1 for epoch in leader_epochs])
    elif len(leader_epochs) < 2:
        epochs = array("i", [leader_epochs[0] - 1 if leader_epochs else NO_LEADER_EPOCH]) * count
    else:
        raise ValueError("leader epochs")
    found = TopicOffsets(
        numbers,
        array("q", offsets),
        epochs,
        times_us,
        {number: text for number, text in zip(numbers, metadata, strict=True) if text} if metadata else {},
    )
    # Places are found by bisection, so the order is part of the format.
    if (
        not count
        or not len(found.offsets) == len(times_us) == count
        or not all(map(lt, numbers, numbers[1:]))
    ):
        raise ValueError("columns")
    if found.metadata and any(
        len(text) > METADATA_BYTES_MAX or len(text.encode()) > METADATA_BYTES_MAX
        for text in found.metadata.values()
    ):
        raise ValueError("metadata")
    return found


def _stated_topics(
    index: int, topic_ids: Sequence[TopicId], commit: pb.GroupCommit, time_us: int
) -> list[tuple[TopicId, TopicOffsets]]:
    return [
        (_topic(index, topic_ids, topic.topic), _stated(index, topic, time_us)) for topic in commit.topics
    ]


def _stated(index: int, topic: pb.TopicOffsets, time_us: int) -> TopicOffsets:
    try:
        times_us = array("q", [time_us]) * len(topic.partitions)
        return columns(topic.partitions, topic.offsets, topic.leader_epochs, times_us, topic.metadata)
    except (ValueError, OverflowError) as error:
        raise Corrupted(
            f"intake log: entry {index} states impossible offsets of a group ({error}); restore the log"
        ) from error


def _topic_ids(index: int, stated: Sequence[bytes]) -> list[TopicId]:
    if any(len(topic_id) != 16 for topic_id in stated) or len(set(stated)) < len(stated):
        raise Corrupted(f"intake log: entry {index} states impossible ids of topics; restore the log")
    return [TopicId(topic_id.hex()) for topic_id in stated]


def _topic(index: int, topic_ids: Sequence[TopicId], place: int) -> TopicId:
    if place >= len(topic_ids):
        raise Corrupted(
            f"intake log: entry {index} refers to topic {place} of {len(topic_ids)}; restore the log"
        )
    return topic_ids[place]


def _check_groups(index: int, groups: Sequence[str]) -> None:
    if any(len(group.encode()) > GROUP_ID_BYTES_MAX for group in groups):
        raise Corrupted(f"intake log: entry {index} states a group id of impossible length; restore the log")

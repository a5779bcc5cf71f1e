"""Appends the claims, commits, pending commits and removals of consumer groups to the intake log.

What counts is decided by the fold (`intake.log.consumer_groups`). This module builds entries that fit
their bound, and reports the outcome of each commit. Many commits of one flush share an entry. A pending
commit has an entry for itself, because the fold judges its producer as well.

An unchanged offset is left out: usually most partitions of an idle consumer. That is safe because only the
daemon with the present claim of a slot commits for its groups. So between the read of the log, which comes
first, and the append, only this process can change them, and it appends nothing in between. An offset whose
stored time is older than `OffsetBounds.refresh_us` is stored again, so that its age stays true within that
bound.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import ne
from typing import Final, Generic, Literal, TypeVar

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.clock import Clock
from archiver.runtime.errors import InvalidInput, OutcomeUnknown, RetryLater
from archiver.runtime.ids import TopicId
from intake.log.client_transactions import ProducerEpoch, judge_producer
from intake.log.consumer_groups import (
    GROUP_ID_BYTES_MAX,
    GROUP_SLOTS,
    METADATA_BYTES_MAX,
    NO_LEADER_EPOCH,
    PENDING_ENTRIES_MAX,
    ConsumerGroup,
    ConsumerGroups,
    TopicOffsets,
    leader_epochs_stated,
    metadata_bytes,
    metadata_stated,
)
from intake.log.fold import IntakeFold
from intake.log.sequencer import Sequencer
from intake.log.transactions import OpenTransaction
from intake.producers import Producer
from intake.segments import LARGEST

CommitOutcome = Literal["ok", "stale_claim", "full", "too_large", "not_appended", "unknown"]
"""Of a commit or removal.

`ok`: it counts. `stale_claim`: another daemon, or a later claim, has the group's slot, and nothing changed.
`full`: the group or a partition is new, or metadata is longer, and the memory for committed offsets is used
up. `too_large`: it does not fit an entry. `not_appended`: the metadata store did not accept it in time; it
may be sent again. `unknown`: it may or may not be in the log. It may be sent again, and must not be reported
as failed."""

HoldOutcome = CommitOutcome | Literal["unknown_producer", "fenced"]
"""Of a pending commit. `unknown_producer`: the transactional id has no producer of that id. `fenced`: the
epoch is not the producer's. `full`: the memory for committed offsets is used up, or open transactions have
too many commits of the group."""

_ENTRY_BYTES: Final = 80
"""Upper bound of an entry without its commits and topic ids."""
_NESTED_BYTES: Final = 6
"""Upper bound of the tag and length of a nested message."""
_TOPIC_ID_BYTES: Final = 18
"""A topic id with its tag and length."""
_INT32_MAX: Final = 2**31 - 1

_Message = TypeVar("_Message", pb.GroupCommit, pb.GroupRemoval)


@dataclass(frozen=True, slots=True)
class TopicCommit:
    """Offsets that a consumer commits for one topic: columns of equal length, in any order.

    Raises `InvalidInput` for values that cannot be stored.
    """

    topic_id: TopicId
    partitions: Sequence[int]
    """If one occurs twice, the later row counts."""
    offsets: Sequence[int]
    """Of the next record to read."""
    leader_epochs: Sequence[int] = ()
    """`NO_LEADER_EPOCH` for none; empty if the consumer stated none at all."""
    metadata: Sequence[str] = ()
    """Empty if the consumer stated none at all."""

    def __post_init__(self) -> None:
        count, epochs, texts = len(self.partitions), self.leader_epochs, self.metadata
        if (
            not count
            or len(self.offsets) != count
            or len(epochs) not in (0, count)
            or len(texts) not in (0, count)
        ):
            raise InvalidInput(f"a commit for topic {self.topic_id} has columns of different lengths")
        if min(self.partitions) < 0 or max(self.partitions) > _INT32_MAX:
            raise InvalidInput(f"a commit for topic {self.topic_id} has an impossible partition")
        if min(self.offsets) < 0 or max(self.offsets) > LARGEST:
            raise InvalidInput(f"a commit for topic {self.topic_id} has an impossible offset")
        if epochs and (min(epochs) < NO_LEADER_EPOCH or max(epochs) >= _INT32_MAX):
            raise InvalidInput(f"a commit for topic {self.topic_id} has an impossible leader epoch")
        if any(text and not _fits(text, METADATA_BYTES_MAX) for text in texts):
            raise InvalidInput(
                f"a commit for topic {self.topic_id} has metadata over {METADATA_BYTES_MAX} bytes"
            )


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of one group. Raises `InvalidInput` for a group id that cannot be stored."""

    group: str
    claim: int
    """Of the group's slot, under which the caller coordinates the group."""
    topics: Sequence[TopicCommit] = ()
    """Empty: the group is in use, so all of its offsets count as committed now. A coordinator sends that when
    a group becomes empty: the offsets then expire from that time on."""

    def __post_init__(self) -> None:
        _check_group(self.group)


@dataclass(frozen=True, slots=True)
class PendingCommit:
    """A commit that counts once the transaction of a producer is committed."""

    commit: Commit
    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Removal:
    """Offsets of one group that are deleted, or have expired."""

    group: str
    claim: int
    """As in `Commit`."""
    partitions: Mapping[TopicId, Sequence[int]] | None = None
    """None: all of the group."""
    committed_before_us: int = 0
    """Offsets committed at or after this stay; 0: none stays."""

    def __post_init__(self) -> None:
        _check_group(self.group)
        # In an entry, a list without a partition stands for all of them.
        if self.partitions is not None and not all(self.partitions.values()):
            raise InvalidInput(f"a removal for group {self.group!r} names a topic without a partition")
        if self.partitions is not None and not self.partitions:
            raise InvalidInput(f"a removal for group {self.group!r} names no partition")


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """Limits of committed offsets, from the settings."""

    memory_bytes_max: int
    """Estimated memory of the offsets of all groups. Beyond it no group, no partition and no pending offset
    is added."""
    refresh_us: int
    """An unchanged offset is stored again if it was stored longer ago."""


@dataclass(slots=True)
class _Entry(Generic[_Message]):
    """The commits or removals of one entry, while they are collected."""

    bytes_max: int
    messages: list[_Message] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Of the messages, in the list that the caller gave."""
    groups: set[str] = field(default_factory=set)
    topics: dict[TopicId, int] = field(default_factory=dict)
    """Places of topic ids in the entry."""
    size: int = _ENTRY_BYTES

    def place_of(self, topic_id: TopicId) -> int:
        return self.topics.setdefault(topic_id, len(self.topics))

    def add(self, place: int, build: _Build[_Message]) -> bool:
        """Add a message; False if it does not fit, and nothing was added."""
        known = len(self.topics)
        message = build(self)
        size = message.ByteSize() + _NESTED_BYTES + _TOPIC_ID_BYTES * (len(self.topics) - known)
        if self.size + size > self.bytes_max:
            self.topics = dict(list(self.topics.items())[:known])
            return False
        self.size += size
        self.groups.add(message.group)
        self.messages.append(message)
        self.places.append(place)
        return True

    def topic_ids(self) -> list[bytes]:
        return [bytes.fromhex(topic_id) for topic_id in self.topics]


_Build = Callable[[_Entry[_Message]], _Message]
_Judge = Callable[[int, ConsumerGroups, _Entry[_Message]], CommitOutcome | _Build[_Message]]


class CommittedOffsets:
    """Claims slots, and commits and removes offsets. Thread-safe.

    The commits of one group must arrive in their order: the last one stays.
    """

    def __init__(self, sequencer: Sequencer, clock: Clock, bounds: OffsetBounds) -> None:
        self._sequencer = sequencer
        self._clock = clock
        self._bounds = bounds

    def claim_slots(self, slots: Sequence[int], node_id: int) -> int:
        """Claim slots for the daemon `node_id`; returns the number of the claim, the same for all of them.

        From here on nothing counts that was made under an earlier claim of these slots. Raises
        `OutcomeUnknown` if the entry may or may not be in the log: then claim again. Raises `InvalidInput`
        for impossible slots.
        """
        # An entry with them would stop every reader of the log.
        if not slots or not all(0 <= slot < GROUP_SLOTS for slot in slots):
            raise InvalidInput(f"slots of consumer groups are 0 to {GROUP_SLOTS - 1}")
        claimed = pb.GroupSlotsClaimed(
            slots=sorted(set(slots)), node_id=node_id, time_us=self._clock.now_us()
        )
        applied = self._sequencer.append_made(
            lambda _: pb.IntakeEntry(slots_claimed=claimed), step="slots_claimed.append"
        )
        assert applied is not None, "the entry is always made"
        return applied.claim

    def read(self) -> ConsumerGroups:
        """The groups and claims as of the present tail of the log.

        Only this read shows whether a claim is still the newest one. Without it a daemon that was replaced
        would answer with old offsets.
        """
        return self._sequencer.refresh().consumer_groups

    def resolve(self) -> None:
        """Wait until an entry of unknown outcome is in the log, or never will be.

        Raises `RetryLater` or `OutcomeUnknown` if that is not known yet.
        """
        self._sequencer.append_made(lambda _: None)

    def commit(self, commits: Sequence[Commit]) -> list[CommitOutcome]:
        """Commit offsets; returns the outcome of each commit, in their order."""
        time_us = self._clock.now_us()
        rows = [_rows(commit, time_us) for commit in commits]

        def judge(
            place: int, groups: ConsumerGroups, entry: _Entry[pb.GroupCommit]
        ) -> CommitOutcome | _Build[pb.GroupCommit]:
            commit = commits[place]
            # With an earlier commit of the group in this entry, the fold does not show what is unchanged.
            return self._judge(commit, rows[place], groups, time_us, alone=commit.group not in entry.groups)

        def wrap(entry: _Entry[pb.GroupCommit]) -> pb.IntakeEntry:
            body = pb.OffsetsCommitted(topic_ids=entry.topic_ids(), time_us=time_us)
            body.commits.extend(entry.messages)
            return pb.IntakeEntry(offsets_committed=body)

        return self._append_all(len(commits), judge, wrap, step="offsets_committed.append")

    def hold(self, pending: Sequence[PendingCommit]) -> list[HoldOutcome]:
        """Store commits that count from the end of their transactions on; returns their outcomes, in their
        order.

        A producer without an open transaction begins one. A commit without offsets changes nothing.
        """
        outcomes: list[HoldOutcome] = ["not_appended"] * len(pending)
        for place, one in enumerate(pending):
            outcomes[place] = self._hold(one)
            # As for commits: the others would only wait for the same metadata store.
            if outcomes[place] in ("unknown", "not_appended"):
                break
        return outcomes

    def _hold(self, pending: PendingCommit) -> HoldOutcome:
        commit, time_us = pending.commit, self._clock.now_us()
        rows = _rows(commit, time_us)
        outcome: HoldOutcome = "ok"
        transaction: OpenTransaction | None = None

        def make(fold: IntakeFold) -> pb.IntakeEntry | None:
            nonlocal outcome, transaction
            outcome = self._judge_pending(pending, fold)
            transaction = fold.transactions.get(pending.producer_id)
            entry = _Entry[pb.GroupCommit](self._sequencer.entry_bytes_max)
            if outcome != "ok" or not rows:
                return None
            if not entry.add(0, lambda entry: _commit_message(commit, rows, entry)):
                outcome = "too_large"
                return None
            body = pb.OffsetsPending(
                topic_ids=entry.topic_ids(),
                time_us=time_us,
                producer_id=pending.producer_id,
                epoch=pending.epoch,
                commit=entry.messages[0],
            )
            return pb.IntakeEntry(offsets_pending=body)

        def holds(fold: IntakeFold) -> bool:
            # Behind the end of the transaction, the offsets would belong to the next one.
            return transaction is None or fold.transactions.get(pending.producer_id) is transaction

        try:
            applied = self._sequencer.append_made(make, holds, step="offsets_pending.append")
        except OutcomeUnknown:
            return "unknown"
        except RetryLater:
            return "not_appended"
        if applied is None:
            return outcome
        if applied.refusal is not None:
            return "fenced" if applied.refusal == "fenced" else "unknown_producer"
        return (applied.commits[0] or "ok") if applied.commits else "not_appended"

    def _judge_pending(self, pending: PendingCommit, fold: IntakeFold) -> HoldOutcome:
        groups, commit = fold.consumer_groups, pending.commit
        if not groups.is_current(commit.group, commit.claim):
            return "stale_claim"
        stated = ProducerEpoch(pending.producer_id, pending.epoch)
        producer = judge_producer(fold, pending.transactional_id, stated)
        if not isinstance(producer, Producer):
            return "fenced" if producer == "fenced" else "unknown_producer"
        # Also for partitions that the group has: both offsets are kept until the transaction ends.
        full = groups.size >= self._bounds.memory_bytes_max
        return "full" if full or groups.pending_entries(commit.group) >= PENDING_ENTRIES_MAX else "ok"

    def remove(self, removals: Sequence[Removal]) -> list[CommitOutcome]:
        """Remove offsets of groups; returns the outcome of each removal, in their order.

        A removal of what is not there is `ok`.
        """

        def judge(
            place: int, groups: ConsumerGroups, _: _Entry[pb.GroupRemoval]
        ) -> CommitOutcome | _Build[pb.GroupRemoval]:
            removal = removals[place]
            if not groups.is_current(removal.group, removal.claim):
                return "stale_claim"
            if groups.get(removal.group) is None and not groups.pending(removal.group):
                return "ok"
            return lambda entry: _removal_message(removal, entry)

        def wrap(entry: _Entry[pb.GroupRemoval]) -> pb.IntakeEntry:
            body = pb.OffsetsRemoved(topic_ids=entry.topic_ids())
            body.removals.extend(entry.messages)
            return pb.IntakeEntry(offsets_removed=body)

        return self._append_all(len(removals), judge, wrap, step="offsets_removed.append")

    def _judge(
        self,
        commit: Commit,
        rows: Mapping[TopicId, TopicOffsets],
        groups: ConsumerGroups,
        time_us: int,
        *,
        alone: bool,
    ) -> CommitOutcome | _Build[pb.GroupCommit]:
        """The outcome of a commit for which nothing is appended, or how its message is built."""
        if not groups.is_current(commit.group, commit.claim):
            return "stale_claim"
        held = groups.get(commit.group)
        if not commit.topics:
            return "ok" if held is None and alone else lambda entry: _commit_message(commit, {}, entry)
        if groups.size >= self._bounds.memory_bytes_max and _grows(held, rows):
            return "full"
        # An offset that is left out would not supersede the pending ones of earlier entries.
        if alone and held is not None and not groups.pending(commit.group):
            fresh_us = time_us - self._bounds.refresh_us
            rows = {
                topic_id: changed
                for topic_id, stated in rows.items()
                if (changed := _changed(held, topic_id, stated, fresh_us)) is not None
            }
            if not rows:
                return "ok"
        return lambda entry: _commit_message(commit, rows, entry)

    def _append_all(
        self,
        count: int,
        judge: _Judge[_Message],
        wrap: Callable[[_Entry[_Message]], pb.IntakeEntry],
        *,
        step: str,
    ) -> list[CommitOutcome]:
        """Append as few entries as hold all messages."""
        # What is not appended for any reason keeps this outcome.
        outcomes: list[CommitOutcome] = ["not_appended"] * count
        waiting = deque(range(count))
        while waiting and self._append_one(waiting, judge, wrap, outcomes, step):
            pass
        return outcomes

    def _append_one(
        self,
        waiting: deque[int],
        judge: _Judge[_Message],
        wrap: Callable[[_Entry[_Message]], pb.IntakeEntry],
        outcomes: list[CommitOutcome],
        step: str,
    ) -> bool:
        """Append one entry with as many messages as fit; False if no more can be appended."""
        entry = _Entry[_Message](self._sequencer.entry_bytes_max)

        def make(fold: IntakeFold) -> pb.IntakeEntry | None:
            while waiting:
                judged = judge(waiting[0], fold.consumer_groups, entry)
                if isinstance(judged, str):
                    outcomes[waiting[0]] = judged
                elif not entry.add(waiting[0], judged):
                    if entry.messages:
                        break  # it is the first of the next entry
                    outcomes[waiting[0]] = "too_large"
                waiting.popleft()
            return wrap(entry) if entry.messages else None

        try:
            applied = self._sequencer.append_made(make, step=step)
        except OutcomeUnknown:
            for place in entry.places:
                outcomes[place] = "unknown"
            return False
        except RetryLater:
            return False
        if applied is not None:
            for place, refusal in zip(entry.places, applied.commits, strict=True):
                outcomes[place] = "ok" if refusal is None else refusal
        return True


def _check_group(group: str) -> None:
    if not _fits(group, GROUP_ID_BYTES_MAX):
        raise InvalidInput(f"a group id has more than {GROUP_ID_BYTES_MAX} bytes")


def _fits(text: str, bytes_max: int) -> bool:
    # Surrogates have no UTF-8, so they could not be stored.
    try:
        return len(text) <= bytes_max and len(text.encode()) <= bytes_max
    except UnicodeEncodeError:
        return False


def _rows(commit: Commit, time_us: int) -> dict[TopicId, TopicOffsets]:
    """The rows of a commit, in ascending order of the partitions."""
    found: dict[TopicId, TopicOffsets] = {}
    for topic in commit.topics:
        # The last row of a partition counts.
        last = dict(zip(topic.partitions, range(len(topic.partitions)), strict=True))
        numbers = sorted(last)
        places = [last[number] for number in numbers]
        rows = TopicOffsets(
            array("I", numbers),
            array("q", map(topic.offsets.__getitem__, places)),
            array("i", map(topic.leader_epochs.__getitem__, places))
            if topic.leader_epochs
            else array("i", [NO_LEADER_EPOCH]) * len(numbers),
            array("q", [time_us]) * len(numbers),
            {number: topic.metadata[last[number]] for number in numbers if topic.metadata[last[number]]}
            if topic.metadata
            else {},
        )
        before = found.get(topic.topic_id)
        found[topic.topic_id] = rows if before is None else before.replaced_by(rows)
    return found


def _changed(
    held: ConsumerGroup, topic_id: TopicId, rows: TopicOffsets, fresh_us: int
) -> TopicOffsets | None:
    """The rows that differ from what the group has, or were stored before `fresh_us`; None without any."""
    known = held.topics.get(topic_id)
    if known is None:
        return rows
    places = known.places_of(rows.partitions)
    if places is None:
        return rows  # with new partitions, which are few: the old ones are not worth a comparison
    differs = list(map(ne, rows.offsets, map(known.offsets.__getitem__, places)))
    if all(differs):
        return rows
    old = held.active_us < fresh_us
    return rows.where(
        [
            differ
            or rows.leader_epochs[row] != known.leader_epochs[place]
            or (old and known.times_us[place] < fresh_us)
            or rows.metadata.get(partition) != known.metadata.get(partition)
            for row, (differ, place, partition) in enumerate(
                zip(differs, places, rows.partitions, strict=True)
            )
        ]
    )


def _grows(held: ConsumerGroup | None, rows: Mapping[TopicId, TopicOffsets]) -> bool:
    """Whether the rows need more memory than the group has now."""
    if held is None:
        return True
    return any(
        (known := held.topics.get(topic_id)) is None
        or known.places_of(stated.partitions) is None
        or metadata_bytes(stated.metadata.values())
        > metadata_bytes(known.metadata[number] for number in stated.metadata if number in known.metadata)
        for topic_id, stated in rows.items()
    )


def _commit_message(
    commit: Commit, rows: Mapping[TopicId, TopicOffsets], entry: _Entry[pb.GroupCommit]
) -> pb.GroupCommit:
    return pb.GroupCommit(
        group=commit.group,
        claim=commit.claim,
        topics=[
            pb.TopicOffsets(
                topic=entry.place_of(topic_id),
                partitions=stated.partitions,
                offsets=stated.offsets,
                leader_epochs=leader_epochs_stated(stated.leader_epochs),
                metadata=metadata_stated(stated.partitions, stated.metadata),
            )
            for topic_id, stated in rows.items()
        ],
    )


def _removal_message(removal: Removal, entry: _Entry[pb.GroupRemoval]) -> pb.GroupRemoval:
    return pb.GroupRemoval(
        group=removal.group,
        claim=removal.claim,
        topics=[
            pb.TopicPartitions(topic=entry.place_of(topic_id), partitions=sorted(set(partitions)))
            for topic_id, partitions in (removal.partitions or {}).items()
        ],
        committed_before_us=removal.committed_before_us,
    )

"""Offsets that transactions commit, in the fold: judged against Kafka's rule on plain dictionaries."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.proto import intake_log_pb2 as pb
from archiver.proto import intake_state_pb2
from archiver.runtime.errors import Corrupted, Halt
from archiver.runtime.ids import TopicId
from intake.log.checkpoint import MAGIC, Checkpoint, decode, encode, same
from intake.log.consumer_groups import (
    GROUP_ID_BYTES_MAX,
    GROUP_SLOTS,
    CommittedOffset,
    ConsumerGroup,
    ConsumerGroups,
    PendingOffsets,
    slot_of,
)
from intake.log.entries import parse_entry
from intake.log.fold import Applied, IntakeFold
from tests.support.intake.group_entries import (
    claimed,
    commit,
    committed,
    ended,
    entry,
    held,
    opened,
    removed,
)
from tests.support.intake.intake_entries import declared, ticked, topic_id_of

GROUPS = ("readers", "writers")
NAMES = ("a", "b", "c")
PARTITIONS = 3
ALL = range(GROUP_SLOTS)

Key = tuple[str, TopicId, int]
"""Group, topic and partition."""


def state_of(groups: ConsumerGroups) -> tuple[dict[Key, CommittedOffset], set[Key]]:
    """Committed offsets, and partitions with pending ones."""
    stored = {
        (group.group, topic_id, partition): offset
        for group in groups
        for topic_id, topic in group.topics.items()
        for partition, offset in topic
    }
    waiting = {
        (group, topic_id, partition)
        for group in GROUPS
        for topic_id, partitions in groups.pending(group).items()
        for partition in partitions
    }
    return stored, waiting


# --- a model


@dataclass
class Kafka:
    """Every offset keeps the index of its entry. A transaction's offset counts unless one of a later entry does."""

    partitions: dict[TopicId, int] = field(default_factory=dict)
    claims: dict[int, int] = field(default_factory=dict)
    producers: dict[int, int] = field(default_factory=dict)
    """Epochs."""
    names: dict[str, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    committed: dict[Key, CommittedOffset] = field(default_factory=dict)
    decided: dict[Key, int] = field(default_factory=dict)
    """Index of the newest entry whose commit or removal of that partition counts."""
    pending: dict[int, dict[Key, tuple[int, CommittedOffset]]] = field(default_factory=dict)
    tick_us: int = 0

    def apply(self, index: int, data: bytes) -> Applied:
        parsed = parse_entry(index, data)
        body = parsed.WhichOneof("body")
        commits: list[str | None] = []
        if body == "topic":
            self.partitions[TopicId(parsed.topic.topic_id.hex())] = parsed.topic.partitions
        elif body == "deleted":
            return self._delete(TopicId(parsed.deleted.topic_id.hex()))
        elif body == "tick":
            self.tick_us = max(self.tick_us, parsed.tick.time_us)
        elif body == "slots_claimed":
            self.claims.update(dict.fromkeys(parsed.slots_claimed.slots, index + 1))
            return Applied(claim=index + 1)
        elif body == "producer":
            return self._open(index, parsed.producer.transactional_id)
        elif body == "transaction":
            return self._end(parsed.transaction)
        elif body == "offsets_pending":
            return self._hold(index, parsed.offsets_pending)
        elif body == "offsets_committed":
            commits = [
                self._commit(index, parsed.offsets_committed, one) for one in parsed.offsets_committed.commits
            ]
        else:
            commits = [
                self._remove(index, parsed.offsets_removed, one) for one in parsed.offsets_removed.removals
            ]
        return Applied(commits=tuple(commits))  # type: ignore[arg-type]

    def waiting(self) -> set[Key]:
        return {
            key
            for mine in self.pending.values()
            for key, (index, _) in mine.items()
            if index > self.decided.get(key, -1)
        }

    def _delete(self, topic_id: TopicId) -> Applied:
        if self.partitions.pop(topic_id, None) is None:
            return Applied(refusal="deleted")
        self.committed = {key: one for key, one in self.committed.items() if key[1] != topic_id}
        for mine in self.pending.values():
            for key in [key for key in mine if key[1] == topic_id]:
                del mine[key]
        return Applied()

    def _open(self, index: int, name: str) -> Applied:
        producer_id = self.names.setdefault(name, index)
        self._close(producer_id, commit=False)
        self.producers[producer_id] = self.producers.get(producer_id, -1) + 1
        return Applied(producer=(producer_id, self.producers[producer_id]))

    def _judged(self, producer_id: int, epoch: int) -> Applied | None:
        present = self.producers.get(producer_id)
        if present is None or epoch > present:
            return Applied(refusal="unknown_producer")
        return Applied(refusal="fenced") if epoch < present else None

    def _end(self, marker: pb.TransactionEnded) -> Applied:
        if refused := self._judged(marker.producer_id, marker.epoch):
            return refused
        self._close(marker.producer_id, commit=marker.commit)
        self.producers[marker.producer_id] += marker.fence
        return Applied()

    def _close(self, producer_id: int, *, commit: bool) -> None:
        self.open.discard(producer_id)
        for key, (index, offset) in self.pending.pop(producer_id, {}).items():
            if commit and index > self.decided.get(key, -1):
                self.committed[key], self.decided[key] = offset, index

    def _rows(
        self, body: pb.OffsetsPending | pb.OffsetsCommitted, one: pb.GroupCommit
    ) -> list[tuple[Key, CommittedOffset]]:
        time_us = max(body.time_us, self.tick_us)
        rows = []
        for topic in one.topics:
            topic_id = TopicId(body.topic_ids[topic.topic].hex())
            rows += [
                ((one.group, topic_id, partition), CommittedOffset(offset, -1, "", time_us))
                for partition, offset in zip(topic.partitions, topic.offsets, strict=True)
                if partition < self.partitions.get(topic_id, 0)
            ]
        return rows

    def _hold(self, index: int, body: pb.OffsetsPending) -> Applied:
        if self.claims.get(slot_of(body.commit.group)) != body.commit.claim:
            return Applied(commits=("stale_claim",))
        if refused := self._judged(body.producer_id, body.epoch):
            return refused
        self.open.add(body.producer_id)
        for key, offset in self._rows(body, body.commit):
            self.pending.setdefault(body.producer_id, {})[key] = (index, offset)
        return Applied(commits=(None,))

    def _commit(self, index: int, body: pb.OffsetsCommitted, one: pb.GroupCommit) -> str | None:
        if self.claims.get(slot_of(one.group)) != one.claim:
            return "stale_claim"
        for key, offset in self._rows(body, one):
            self.committed[key], self.decided[key] = offset, index
        return None

    def _remove(self, index: int, body: pb.OffsetsRemoved, one: pb.GroupRemoval) -> str | None:
        if self.claims.get(slot_of(one.group)) != one.claim:
            return "stale_claim"
        named = {
            (TopicId(body.topic_ids[topic.topic].hex()), partition)
            for topic in one.topics
            for partition in topic.partitions
        }
        waiting, before_us = self.waiting(), one.committed_before_us
        for key in {*self.committed, *waiting}:
            if key[0] != one.group or (one.topics and key[1:] not in named):
                continue
            if not before_us:
                self.committed.pop(key, None)
                self.decided[key] = index
            elif key not in waiting and self.committed[key].time_us < before_us:
                del self.committed[key]
        return None


@dataclass
class RandomTransactions:
    """Entries made without asking a fold: of stale claims, fenced epochs, and topics that are gone."""

    chance: random.Random
    index: int = 0
    now_us: int = 100_000_000
    topics: int = 0
    claims: list[int] = field(default_factory=list)
    producers: dict[str, tuple[int, int]] = field(default_factory=dict)

    def next(self) -> bytes:
        data = self._entry()
        self.index += 1
        self.now_us += self.chance.choice((0, 1, 1_000_000))
        return data

    def _entry(self) -> bytes:
        chance, roll = self.chance, self.chance.random()
        if self.topics == 0 or (roll < 0.03 and self.topics < 3):
            self.topics += 1
            return declared(self.topics, f"topic-{self.topics}", PARTITIONS)
        if not self.claims or roll < 0.07:
            self.claims = [*self.claims[-1:], self.index + 1]
            return claimed(*ALL)
        name = chance.choice(NAMES)
        if roll < 0.13 or name not in self.producers:
            producer_id, epoch = self.producers.get(name, (self.index, -1))
            self.producers[name] = (producer_id, epoch + 1)
            return opened(name, self.now_us)
        producer = self.producers[name]
        if roll < 0.15:
            gone = topic_id_of(chance.randrange(1, self.topics + 1))
            return entry(deleted=pb.TopicDeleted(topic_id=bytes.fromhex(gone), time_us=self.now_us))
        if roll < 0.2:
            return ticked(self.now_us + chance.randrange(-5_000_000, 5_000_000))
        if roll < 0.4:
            fence = chance.random() < 0.1
            if fence:
                self.producers[name] = (producer[0], producer[1] + 1)
            return ended(
                self._perhaps_wrong(producer), commit=not fence and chance.random() < 0.7, fence=fence
            )
        claim = self.claims[-1] if chance.random() < 0.9 else self.claims[0]
        topic = chance.randrange(1, self.topics + 1)
        if roll < 0.5:
            before_us = chance.choice((0, 0, self.now_us - 3_000_000, self.now_us))
            removal = pb.GroupRemoval(group=chance.choice(GROUPS), claim=claim, committed_before_us=before_us)
            if chance.random() < 0.6:
                removal.topics.add(topic=0, partitions=self._some())
            return removed(removal, topics=(topic,))
        made = pb.GroupCommit(group=chance.choice(GROUPS), claim=claim)
        numbers = self._some()
        made.topics.add(partitions=numbers, offsets=[chance.randrange(1000) for _ in numbers])
        if roll < 0.65:
            return committed(self.now_us, made, topics=(topic,))
        return held(self._perhaps_wrong(producer), made, self.now_us, topics=(topic,))

    def _some(self) -> list[int]:
        return sorted(self.chance.sample(range(PARTITIONS + 1), self.chance.randint(1, PARTITIONS + 1)))

    def _perhaps_wrong(self, producer: tuple[int, int]) -> tuple[int, int]:
        wrong = self.chance.choice((0,) * 12 + (-1, 1))
        return producer[0], max(0, producer[1] + wrong)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 120))
def test_the_fold_agrees_with_the_model_through_a_checkpoint_at_every_index(seed: int, steps: int) -> None:
    made, fold, restored, model = RandomTransactions(random.Random(seed)), IntakeFold(), IntakeFold(), Kafka()
    for index in range(steps):
        data = made.next()
        expected = model.apply(index, data)
        assert fold.apply(index, data) == restored.apply(index, data) == expected
        assert state_of(fold.consumer_groups) == (model.committed, model.waiting())
        assert {one.producer_id for one in fold.transactions} == model.open
        groups = fold.consumer_groups
        sized: list[ConsumerGroup | PendingOffsets] = [*groups, *groups.all_pending]
        assert groups.size == sum(one.size for one in sized)
        stored = encode(Checkpoint(fold.state(), ()))
        assert encode(Checkpoint(restored.state(), ())) == stored
        checkpoint = decode(stored, "here")
        assert same(checkpoint.state, fold.state())
        restored = checkpoint.fold()


def test_the_entries_of_the_model_hold_what_matters() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        made, fold, model = RandomTransactions(random.Random(seed)), IntakeFold(), Kafka()
        for index in range(120):
            data = made.next()
            before, mine = model.waiting(), {key for one in model.pending.values() for key in one}
            applied = fold.apply(index, data)
            body = str(parse_entry(index, data).WhichOneof("body"))
            model.apply(index, data)
            seen[f"{body} drops pending"] += len(model.waiting()) < len(before)
            seen["superseded"] += bool(mine - before)
            seen.update(f"{body} {one}" for one in applied.commits)
            seen[f"{body} {applied.refusal}"] += 1
            several = Counter(key for one in model.pending.values() for key in one)
            seen["of two transactions"] += bool(several) and max(several.values()) > 1
    for what in (
        "transaction drops pending",
        "producer drops pending",
        "deleted drops pending",
        "offsets_committed drops pending",
        "offsets_removed drops pending",
        "superseded",
        "of two transactions",
        "offsets_pending None",
        "offsets_pending stale_claim",
        "offsets_pending fenced",
        "offsets_pending unknown_producer",
    ):
        assert seen[what] > 20, what


# --- single rules

PRODUCER = (2, 0)
OTHER = (3, 0)
START = (declared(1, "t", 4), claimed(*ALL), opened("a"), opened("b"))


def folded(*entries: bytes) -> tuple[IntakeFold, list[Applied]]:
    fold = IntakeFold()
    return fold, [fold.apply(index, data) for index, data in enumerate((*START, *entries))]


def offsets(fold: IntakeFold, group: str = "g") -> dict[int, int]:
    found = fold.consumer_groups.get(group)
    return {} if found is None else {number: row.offset for number, row in found.topics[topic_id_of(1)]}


def pending(fold: IntakeFold) -> set[int]:
    return set(fold.consumer_groups.pending("g").get(topic_id_of(1), ()))


def test_pending_offsets_count_with_the_marker_that_commits_them() -> None:
    fold, _ = folded(committed(5, commit("g", 2, p0=1)), held(PRODUCER, commit("g", 2, p0=7, p1=8), 9))
    assert (offsets(fold), pending(fold)) == ({0: 1}, {0, 1})
    (transaction,) = fold.transactions
    assert (transaction.transactional_id, transaction.ranges) == ("a", {})
    assert transaction.deadline_us == 60_000_009
    fold.apply(6, ended(PRODUCER, commit=True))
    assert (offsets(fold), pending(fold)) == ({0: 7, 1: 8}, set())
    group = fold.consumer_groups.get("g")
    assert group is not None
    assert group.newest_us == 9, "the time is that of the commit"


@pytest.mark.parametrize(
    "end",
    [
        ended(PRODUCER, commit=False),
        ended(PRODUCER, commit=False, fence=True),
        opened("a"),
        entry(deleted=pb.TopicDeleted(topic_id=bytes.fromhex(topic_id_of(1)), time_us=1)),
    ],
    ids=["abort", "timeout", "opened again", "topic deleted"],
)
def test_what_ends_a_transaction_otherwise_drops_its_offsets(end: bytes) -> None:
    fold, _ = folded(held(PRODUCER, commit("g", 2, p0=7)), end)
    for epoch in (0, 1):
        fold.apply(fold.next_index, ended((2, epoch), commit=True))
    assert (offsets(fold), pending(fold)) == ({}, set())
    assert fold.consumer_groups.size == len(fold.transactions) == 0


def test_a_deleted_topic_leaves_the_other_offsets_of_the_transaction() -> None:
    fold, _ = folded(
        declared(2, "u", 1),
        held(PRODUCER, commit("g", 2, p0=7)),
        held(PRODUCER, commit("g", 2, p0=3), topics=(2,)),
        entry(deleted=pb.TopicDeleted(topic_id=bytes.fromhex(topic_id_of(2)), time_us=1)),
        ended(PRODUCER, commit=True),
    )
    assert offsets(fold) == {0: 7}
    assert list(state_of(fold.consumer_groups)[0]) == [("g", topic_id_of(1), 0)]


def test_a_later_claim_refuses_new_offsets_and_leaves_those_that_are_held() -> None:
    fold, applied = folded(
        held(PRODUCER, commit("g", 2, p0=7)),
        claimed(*ALL, node_id=2),
        held(PRODUCER, commit("g", 2, p0=8, p1=8)),
        ended(PRODUCER, commit=True),
    )
    assert [one.commits for one in applied[4:7]] == [(None,), (), ("stale_claim",)]
    assert offsets(fold) == {0: 7}


def test_of_two_commits_of_a_partition_the_one_in_the_later_entry_stays() -> None:
    fold, _ = folded(
        held(PRODUCER, commit("g", 2, p0=10, p1=10)),
        held(OTHER, commit("g", 2, p0=20)),
        committed(9, commit("g", 2, p1=30)),
        ended(OTHER, commit=True),
        ended(PRODUCER, commit=True),
    )
    assert offsets(fold) == {0: 20, 1: 30}
    fold, _ = folded(
        held(PRODUCER, commit("g", 2, p0=10)),
        held(OTHER, commit("g", 2, p0=20)),
        ended(PRODUCER, commit=True),
    )
    assert (offsets(fold), pending(fold)) == ({0: 10}, {0})
    fold.apply(fold.next_index, ended(OTHER, commit=True))
    assert offsets(fold) == {0: 20}


def test_offsets_with_pending_ones_do_not_expire() -> None:
    expired = removed(pb.GroupRemoval(group="g", claim=2, committed_before_us=100))
    fold, _ = folded(committed(5, commit("g", 2, p0=1, p1=1)), held(PRODUCER, commit("g", 2, p0=7)), expired)
    assert (offsets(fold), pending(fold)) == ({0: 1}, {0})
    fold.apply(fold.next_index, ended(PRODUCER, commit=False))
    assert offsets(fold) == {0: 1}
    fold.apply(fold.next_index, expired)
    assert offsets(fold) == {}


@pytest.mark.parametrize("topics", [[], [pb.TopicPartitions(partitions=[0])]])
def test_deleted_offsets_do_not_come_back_with_the_transaction(topics: list[pb.TopicPartitions]) -> None:
    fold, applied = folded(
        committed(5, commit("g", 2, p0=1)),
        held(PRODUCER, commit("g", 2, p0=7)),
        removed(pb.GroupRemoval(group="g", claim=2, topics=topics)),
        ended(PRODUCER, commit=True),
    )
    assert applied[6].commits == (None,)
    assert (offsets(fold), pending(fold)) == ({}, set())


def test_a_reader_that_finds_nothing_pending_reads_what_was_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fold, _ = folded(held(PRODUCER, commit("g", 2, p0=7)))
    seen: list[tuple[dict[int, int], set[int], int]] = []
    for name in ("_put", "_put_pending"):
        changing: Callable[..., None] = getattr(ConsumerGroups, name)

        def changed(
            groups: ConsumerGroups, *values: object, changing: Callable[..., None] = changing
        ) -> None:
            changing(groups, *values)
            seen.append((offsets(fold), pending(fold), len(fold.transactions)))

        monkeypatch.setattr(ConsumerGroups, name, changed)
    fold.apply(fold.next_index, ended(PRODUCER, commit=True))
    assert seen == [({0: 7}, {0}, 1), ({0: 7}, set(), 1)]


def test_a_producer_with_pending_offsets_is_not_forgotten() -> None:
    fold, _ = folded(
        held(PRODUCER, commit("g", 2, p0=7)),
        entry(forgotten=pb.ProducersForgotten(idle_since_us=10**9)),
        ended(PRODUCER, commit=True),
    )
    assert offsets(fold) == {0: 7}


@pytest.mark.parametrize(
    "data",
    [
        held(PRODUCER, commit("g", 2)),
        held(PRODUCER, commit("g" * (GROUP_ID_BYTES_MAX + 1), 2, p0=1)),
        held(PRODUCER, commit("g", 2, topic=1, p0=1)),
        held(PRODUCER, commit("g", 2, p0=2**63)),
    ],
)
def test_entries_that_no_writer_makes_are_damage(data: bytes) -> None:
    fold, _ = folded(held(PRODUCER, commit("g", 2, p0=1)))
    with pytest.raises(Corrupted, match="restore the log"):
        fold.apply(fold.next_index, data)
    assert (pending(fold), fold.next_index) == ({0}, 5)


def test_a_producer_without_a_transactional_id_holds_nothing() -> None:
    fold, applied = folded(opened(""), held((4, 0), commit("g", 2, p0=1)))
    assert applied[-1] == Applied(refusal="wrong_kind")
    assert (pending(fold), len(fold.transactions)) == (set(), 0)


def test_only_pending_offsets_need_the_newer_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    def format_of(fold: IntakeFold) -> int:
        stored = encode(Checkpoint(fold.state(), ()))
        return intake_state_pb2.IntakeState.FromString(stored[len(MAGIC) + 32 :]).format

    data = held(PRODUCER, commit("g", 2, p0=7))
    fold, _ = folded(committed(5, commit("g", 2, p0=1)), data)
    stored = encode(Checkpoint(fold.state(), ()))
    assert format_of(fold) == 6
    fold.apply(fold.next_index, ended(PRODUCER, commit=True))
    assert format_of(fold) == 4
    monkeypatch.setattr("intake.log.entries.ENTRY_FORMATS", (1, 2, 3, 4, 5, 6))
    monkeypatch.setattr("intake.log.checkpoint.STATE_FORMATS", (1, 2, 3, 4, 5))
    with pytest.raises(Halt, match=r"format 7.*upgrade"):
        parse_entry(0, data)
    with pytest.raises(Halt, match=r"format 6.*upgrade"):
        decode(stored, "here")


def test_pending_offsets_are_read_while_an_entry_is_applied() -> None:
    groups = ConsumerGroups()

    class Held(tuple[PendingOffsets, ...]):
        """While it is read, another thread adds a group."""

        __slots__ = ()

        def __iter__(self) -> Iterator[PendingOffsets]:
            groups._pending["late"] = ()
            return super().__iter__()

    groups._pending.update({name: Held() for name in GROUPS})
    assert groups.all_pending == []

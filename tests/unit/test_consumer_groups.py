"""Consumer groups in the fold: judged against a plain dictionary, through any number of checkpoints."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.errors import Corrupted, Halt
from archiver.runtime.ids import TopicId
from intake.log.checkpoint import Checkpoint, decode, encode, same
from intake.log.consumer_groups import (
    GROUP_ID_BYTES_MAX,
    GROUP_SLOTS,
    METADATA_BYTES_MAX,
    CommittedOffset,
    ConsumerGroups,
    slot_of,
)
from intake.log.entries import parse_entry
from intake.log.fold import Applied, IntakeFold
from tests.support.intake.group_entries import claimed, commit, committed, entry, removed
from tests.support.intake.intake_entries import declared, ticked, topic_id_of

GROUPS = ("orders", "orders-2", "", "käse")
PARTITIONS = 6

Offsets = dict[tuple[str, TopicId, int], CommittedOffset]


def folded(*entries: bytes) -> tuple[IntakeFold, list[Applied]]:
    fold = IntakeFold()
    return fold, [fold.apply(index, data) for index, data in enumerate(entries)]


def offsets_of(groups: ConsumerGroups) -> Offsets:
    return {
        (group.group, topic_id, partition): offset
        for group in groups
        for topic_id, topic in group.topics.items()
        for partition, offset in topic
    }


# --- an oracle


@dataclass
class Oracle:
    """What the entries mean, without columns, bisection or shared values."""

    claims: dict[int, int] = field(default_factory=dict)
    offsets: Offsets = field(default_factory=dict)
    active_us: dict[str, int] = field(default_factory=dict)
    partitions: dict[TopicId, int] = field(default_factory=dict)
    tick_us: int = 0

    def apply(self, index: int, data: bytes) -> list[str | None]:
        parsed = parse_entry(index, data)
        if parsed.HasField("topic"):
            self.partitions[TopicId(parsed.topic.topic_id.hex())] = parsed.topic.partitions
        elif parsed.HasField("tick"):
            self.tick_us = max(self.tick_us, parsed.tick.time_us)
        elif parsed.HasField("deleted"):
            gone = TopicId(parsed.deleted.topic_id.hex())
            self.partitions.pop(gone, None)
            self._keep(lambda key, _: key[1] != gone)
        elif parsed.HasField("slots_claimed"):
            self.claims.update(dict.fromkeys(parsed.slots_claimed.slots, index + 1))
        elif parsed.HasField("offsets_committed"):
            return [self._commit(parsed.offsets_committed, one) for one in parsed.offsets_committed.commits]
        else:
            return [self._remove(parsed.offsets_removed, one) for one in parsed.offsets_removed.removals]
        return []

    def _keep(self, holds: Any) -> None:
        self.offsets = {key: offset for key, offset in self.offsets.items() if holds(key, offset)}
        left = {group for group, _, _ in self.offsets}
        self.active_us = {group: time_us for group, time_us in self.active_us.items() if group in left}

    def _commit(self, body: pb.OffsetsCommitted, one: pb.GroupCommit) -> str | None:
        if self.claims.get(slot_of(one.group)) != one.claim:
            return "stale_claim"
        time_us = max(body.time_us, self.tick_us)
        if not one.topics and any(group == one.group for group, _, _ in self.offsets):
            self.active_us[one.group] = max(time_us, self.active_us.get(one.group, 0))
        for topic in one.topics:
            topic_id = TopicId(body.topic_ids[topic.topic].hex())
            for place, partition in enumerate(topic.partitions):
                epochs, texts = topic.leader_epochs, topic.metadata
                epoch = (epochs[place if len(epochs) > 1 else 0] if epochs else 0) - 1
                if partition < self.partitions.get(topic_id, 0):
                    text = texts[place] if texts else ""
                    self.offsets[one.group, topic_id, partition] = CommittedOffset(
                        topic.offsets[place], epoch, text, time_us
                    )
        return None

    def _remove(self, body: pb.OffsetsRemoved, one: pb.GroupRemoval) -> str | None:
        if self.claims.get(slot_of(one.group)) != one.claim:
            return "stale_claim"
        named = {
            (TopicId(body.topic_ids[topic.topic].hex()), partition)
            for topic in one.topics
            for partition in topic.partitions
        }
        active_us = self.active_us.get(one.group, 0)
        self._keep(
            lambda key, offset: (
                key[0] != one.group
                or bool(one.topics and key[1:] not in named)
                or bool(one.committed_before_us and max(offset.time_us, active_us) >= one.committed_before_us)
            )
        )
        return None


@dataclass
class RandomGroups:
    """Entries about groups, made without asking a fold: claims that are stale, partitions that do not
    exist, removals of what was committed since."""

    chance: random.Random
    index: int = 0
    now_us: int = 100_000_000
    topics: int = 0
    claims: list[int] = field(default_factory=lambda: [0])

    def next(self) -> bytes:
        data = self._entry()
        self.index += 1
        self.now_us += self.chance.choice((0, 1, 1_000_000, 50_000_000))
        return data

    def _entry(self) -> bytes:
        roll = self.chance.random()
        if self.topics == 0 or (roll < 0.05 and self.topics < 4):
            self.topics += 1
            return declared(self.topics, f"topic-{self.topics}", PARTITIONS)
        if roll < 0.08:
            gone = topic_id_of(self.chance.randrange(1, self.topics + 1))
            return entry(deleted=pb.TopicDeleted(topic_id=bytes.fromhex(gone), time_us=self.now_us))
        if roll < 0.15:
            return ticked(self.now_us + self.chance.randrange(-5_000_000, 5_000_000))
        if roll < 0.3 or len(self.claims) == 1:
            self.claims = [*self.claims[-1:], self.index + 1]
            some = self.chance.random() < 0.3
            return claimed(*([slot_of(self.chance.choice(GROUPS))] if some else range(GROUP_SLOTS)))
        topics = tuple(self.chance.sample(range(1, self.topics + 1), self.chance.randint(1, self.topics)))
        if roll < 0.45:
            return removed(*(self._removal(topics) for _ in range(self.chance.randint(1, 3))), topics=topics)
        commits = (self._commit(topics) for _ in range(self.chance.randint(1, 4)))
        return committed(self.now_us - self.chance.choice((0, 0, 9_000_000)), *commits, topics=topics)

    def _claim(self) -> int:
        return self.claims[-1] if self.chance.random() < 0.9 else self.chance.choice(self.claims)

    def _partitions(self) -> list[int]:
        count = self.chance.randint(1, PARTITIONS + 1)
        return sorted(self.chance.sample(range(PARTITIONS + 1), count))

    def _commit(self, topics: tuple[int, ...]) -> pb.GroupCommit:
        made = pb.GroupCommit(group=self.chance.choice(GROUPS), claim=self._claim())
        for place in range(len(topics)):
            if self.chance.random() < 0.5:
                continue
            numbers = self._partitions()
            epochs = self.chance.choice(([], [1], [self.chance.randrange(4) for _ in numbers]))
            texts = [self.chance.choice(("", "", "a note", "ß")) for _ in numbers]
            made.topics.add(
                topic=place,
                partitions=numbers,
                offsets=[self.chance.choice((0, 5, 300, 2**63 - 1)) for _ in numbers],
                leader_epochs=epochs,
                metadata=self.chance.choice(([], texts)),
            )
        return made

    def _removal(self, topics: tuple[int, ...]) -> pb.GroupRemoval:
        before_us = self.chance.choice((0, self.now_us - 20_000_000, self.now_us))
        made = pb.GroupRemoval(
            group=self.chance.choice(GROUPS), claim=self._claim(), committed_before_us=max(0, before_us)
        )
        for place in range(len(topics)):
            if self.chance.random() < 0.4:
                made.topics.add(topic=place, partitions=self._partitions())
        return made


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 100), st.lists(st.integers(1, 100), max_size=3))
def test_the_fold_agrees_with_the_oracle_through_any_checkpoints(
    seed: int, steps: int, cuts: list[int]
) -> None:
    made, fold, oracle = RandomGroups(random.Random(seed)), IntakeFold(), Oracle()
    for index in range(steps):
        data = made.next()
        assert list(fold.apply(index, data).commits) == oracle.apply(index, data)
        groups = fold.consumer_groups
        assert offsets_of(groups) == oracle.offsets
        assert {group.group: group.active_us for group in groups if group.active_us} == oracle.active_us
        assert {claim.slot: claim.number for claim in groups.claims} == oracle.claims
        assert groups.size == sum(group.size for group in groups)
        if index in cuts:
            stored = encode(Checkpoint(fold.state(), ()))
            checkpoint = decode(stored, "here")
            assert same(checkpoint.state, fold.state())
            assert encode(checkpoint) == stored
            fold = checkpoint.fold()


def test_the_entries_of_the_oracle_hold_what_matters() -> None:
    seen: Counter[str] = Counter()
    for seed in range(60):
        made, fold = RandomGroups(random.Random(seed)), IntakeFold()
        for index in range(100):
            before = len(offsets_of(fold.consumer_groups))
            data = made.next()
            applied = fold.apply(index, data)
            after = offsets_of(fold.consumer_groups)
            body = str(parse_entry(index, data).WhichOneof("body"))
            seen[f"{body} shrinks"] += len(after) < before
            seen.update(f"{body} {one}" for one in applied.commits)
            seen["metadata"] += any(one.metadata for one in after.values())
            seen["epochs"] += len({one.leader_epoch for one in after.values()}) > 1
            seen["in use"] += any(group.active_us for group in fold.consumer_groups)
    for what in (
        "deleted shrinks",
        "offsets_removed shrinks",
        "offsets_removed None",
        "offsets_removed stale_claim",
        "offsets_committed None",
        "offsets_committed stale_claim",
        "metadata",
        "epochs",
        "in use",
    ):
        assert seen[what] > 20, what


# --- single rules


def test_a_commit_under_an_earlier_claim_is_void_and_the_others_of_the_entry_count() -> None:
    other = next(group for group in map(str, range(100)) if slot_of(group) != slot_of("orders"))
    fold, applied = folded(
        declared(1, "t", 4),
        claimed(*range(GROUP_SLOTS), node_id=1),
        committed(10, commit("orders", 2, p0=5)),
        claimed(slot_of("orders"), node_id=2),
        committed(11, commit("orders", 2, p0=6, p1=1), commit(other, 2, p2=8)),
        committed(12, commit("orders", 4, p1=7)),
        removed(pb.GroupRemoval(group="orders", claim=2), pb.GroupRemoval(group=other, claim=2)),
        committed(13, commit("orders", 9, p0=1)),
    )
    assert [one.claim for one in applied] == [0, 2, 0, 4, 0, 0, 0, 0]
    assert [one.commits for one in applied[4:]] == [
        ("stale_claim", None),
        (None,),
        ("stale_claim", None),
        ("stale_claim",),
    ]
    assert {(key[0], key[2]): one.offset for key, one in offsets_of(fold.consumer_groups).items()} == {
        ("orders", 0): 5,
        ("orders", 1): 7,
    }
    claim = fold.consumer_groups.claim(slot_of("orders"))
    assert claim is not None
    assert (claim.number, claim.node_id) == (4, 2)
    assert fold.consumer_groups.is_current("orders", 4)
    assert not fold.consumer_groups.is_current("orders", 2)


def test_offsets_expire_only_if_nothing_was_committed_since() -> None:
    topic = topic_id_of(1)
    start = (
        declared(1, "t", 4),
        claimed(*range(GROUP_SLOTS)),
        committed(10, commit("g", 2, p0=1, p1=1)),
        committed(20, commit("g", 2, p1=2)),
    )
    expired = removed(pb.GroupRemoval(group="g", claim=2, committed_before_us=20))
    fold, _ = folded(*start, expired)
    assert list(offsets_of(fold.consumer_groups)) == [("g", topic, 1)], "the newer offset stays"
    fold, _ = folded(*start, committed(21, commit("g", 2)), expired)
    assert len(offsets_of(fold.consumer_groups)) == 2, "the group was in use since"
    fold, _ = folded(*start, removed(pb.GroupRemoval(group="g", claim=2, committed_before_us=21)))
    assert fold.consumer_groups.get("g") is None
    assert fold.consumer_groups.size == len(fold.consumer_groups) == 0


def test_a_clock_that_is_behind_does_not_let_offsets_expire_early() -> None:
    fold, _ = folded(
        declared(1, "t", 4), claimed(*range(GROUP_SLOTS)), ticked(1000), committed(10, commit("g", 2, p0=1))
    )
    group = fold.consumer_groups.get("g")
    assert group is not None
    assert group.newest_us == 1000


def test_a_reader_keeps_the_group_as_it_was() -> None:
    fold, _ = folded(
        declared(1, "t", 4), claimed(*range(GROUP_SLOTS)), committed(10, commit("g", 2, p0=1, p2=3))
    )
    before = fold.consumer_groups.get("g")
    fold.apply(3, committed(11, commit("g", 2, p0=2, p2=4)))
    fold.apply(4, committed(12, commit("g", 2, p2=5)))
    between = fold.consumer_groups.get("g")
    fold.apply(5, committed(13, commit("g", 2, p0=6)))
    fold.apply(6, committed(14, commit("g", 2, p1=9)))
    fold.apply(7, entry(deleted=pb.TopicDeleted(topic_id=bytes.fromhex(topic_id_of(1)), time_us=1)))
    assert before is not None
    assert [(partition, one.offset) for partition, one in before.topics[topic_id_of(1)]] == [(0, 1), (2, 3)]
    assert between is not None
    assert [one.offset for _, one in between.topics[topic_id_of(1)]] == [2, 5]
    assert fold.consumer_groups.get("g") is None


def test_slots_of_groups_never_change() -> None:
    """Claims in the log refer to them."""
    assert [slot_of(group) for group in ("", "orders", "käse", "connect-cluster")] == [0, 46, 55, 39]


@pytest.mark.parametrize(
    "data",
    [
        claimed(),
        claimed(GROUP_SLOTS),
        entry(slots_claimed=pb.GroupSlotsClaimed(slots=[2, 1])),
        committed(1, commit("g", 2, topic=1, p0=1)),
        committed(1, commit("g", 2, p1=1, p0=1)),
        committed(1, commit("g" * (GROUP_ID_BYTES_MAX + 1), 2, p0=1)),
        committed(1, commit("g", 2, p0=2**63)),
        committed(1, commit("g", 2, p0=1), topics=(1, 1)),
        committed(1, pb.GroupCommit(group="g", claim=2, topics=[pb.TopicOffsets()])),
        committed(
            1, pb.GroupCommit(group="g", claim=2, topics=[pb.TopicOffsets(partitions=[1, 2], offsets=[1])])
        ),
        committed(
            1,
            pb.GroupCommit(
                group="g",
                claim=2,
                topics=[pb.TopicOffsets(partitions=[1, 2, 3], offsets=[1, 1, 1], leader_epochs=[1, 1])],
            ),
        ),
        committed(
            1,
            pb.GroupCommit(
                group="g",
                claim=2,
                topics=[
                    pb.TopicOffsets(partitions=[1], offsets=[1], metadata=["m" * (METADATA_BYTES_MAX + 1)])
                ],
            ),
        ),
        committed(
            1,
            pb.GroupCommit(
                group="g", claim=2, topics=[pb.TopicOffsets(partitions=[1], offsets=[1], metadata=["a", "b"])]
            ),
        ),
        removed(pb.GroupRemoval(group="g", claim=2, topics=[pb.TopicPartitions(topic=1)])),
        removed(
            pb.GroupRemoval(
                group="g",
                claim=2,
                topics=[
                    pb.TopicPartitions(topic=0, partitions=[0]),
                    pb.TopicPartitions(topic=0, partitions=[1]),
                ],
            )
        ),
        removed(pb.GroupRemoval(group="g" * (GROUP_ID_BYTES_MAX + 1), claim=2)),
    ],
)
def test_entries_that_no_writer_makes_are_damage(data: bytes) -> None:
    fold, _ = folded(declared(1, "t", 4), claimed(*range(GROUP_SLOTS)), committed(10, commit("g", 2, p0=1)))
    before = offsets_of(fold.consumer_groups)
    with pytest.raises(Corrupted, match="restore the log"):
        fold.apply(3, data)
    assert offsets_of(fold.consumer_groups) == before
    assert fold.next_index == 3


def test_an_older_version_says_that_it_must_be_upgraded(monkeypatch: pytest.MonkeyPatch) -> None:
    fold, _ = folded(declared(1, "t", 4), claimed(0))
    stored = encode(Checkpoint(fold.state(), ()))
    monkeypatch.setattr("intake.log.entries.ENTRY_FORMATS", (1, 2, 3, 4))
    monkeypatch.setattr("intake.log.checkpoint.STATE_FORMATS", (1, 2, 3))
    for data in (claimed(0), committed(1, commit("g", 1, p0=1)), removed(pb.GroupRemoval(group="g"))):
        with pytest.raises(Halt, match=r"format 5.*upgrade"):
            parse_entry(0, data)
    with pytest.raises(Halt, match=r"format 4.*upgrade"):
        decode(stored, "here")

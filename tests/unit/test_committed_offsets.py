"""Commits of consumer groups through the sequencer: outcomes, lost replies, replaced daemons, and bounds."""

from __future__ import annotations

import random
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archiver.config.groups import LogSettings
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import InvalidInput, OutcomeUnknown, RetryLater
from archiver.runtime.ids import SeededIds, TopicId
from intake.log.committed_offsets import (
    Commit,
    CommitOutcome,
    CommittedOffsets,
    HoldOutcome,
    OffsetBounds,
    PendingCommit,
    Removal,
    TopicCommit,
)
from intake.log.consumer_groups import GROUP_SLOTS, CommittedOffset
from intake.log.entries import parse_entry
from intake.log.sequencer import Sequencer
from tests.support.log.faulty_log import AppendFault, FaultyLog
from tests.support.log.memory_log import MemoryLogStore

SETTINGS = LogSettings(append_attempts_max=2, entry_bytes_max=16 * 1024)
REFRESH_US = 3_600_000_000
TIMEOUT_US = 60_000_000
BOUNDS = OffsetBounds(memory_bytes_max=2**30, refresh_us=REFRESH_US)
UNSETTLED = (AppendFault.REPLY_LOST, AppendFault.DROPPED)


@dataclass
class Daemon:
    """One process on the log, with the newest claim of all slots."""

    offsets: CommittedOffsets
    sequencer: Sequencer
    clock: ManualClock
    topic_id: TopicId
    claim: int = 0

    def claim_all(self) -> None:
        self.claim = self.offsets.claim_slots(range(GROUP_SLOTS), 1)

    def committing(self, group: str, rows: Mapping[int, int], **more: object) -> Commit:
        topic = TopicCommit(self.topic_id, list(rows), list(rows.values()), **more)  # type: ignore[arg-type]
        return Commit(group, self.claim, (topic,))

    def commit(self, group: str, rows: Mapping[int, int], **more: object) -> CommitOutcome:
        (outcome,) = self.offsets.commit([self.committing(group, rows, **more)])
        return outcome

    def hold(
        self, group: str, rows: Mapping[int, int], producer: tuple[int, int], **more: object
    ) -> HoldOutcome:
        commit = self.committing(group, rows, **more)
        (outcome,) = self.offsets.hold([PendingCommit(commit, "id", *producer)])
        return outcome

    def open(self, name: str = "id") -> tuple[int, int]:
        return self.sequencer.open_producer(name, TIMEOUT_US)

    def end(self, producer: tuple[int, int], *, commit: bool = True) -> None:
        assert self.sequencer.end_transaction(*producer, commit=commit) is None

    def pending(self, group: str) -> set[int]:
        return set(self.offsets.read().pending(group).get(self.topic_id, ()))

    def read(self, group: str) -> dict[int, int]:
        found = self.offsets.read().get(group)
        return {} if found is None else {one: row.offset for one, row in found.topics[self.topic_id]}


class Deployment:
    """One log and any number of daemons that append to it."""

    def __init__(self, bounds: OffsetBounds = BOUNDS) -> None:
        self.log = FaultyLog(MemoryLogStore(SETTINGS.entry_bytes_max).log("intake"))
        self._bounds = bounds
        self._seed = 0

    def daemon(self, *, claims: bool = True) -> Daemon:
        self._seed += 1
        clock = ManualClock(1_700_000_000_000_000)
        sequencer = Sequencer(self.log, SeededIds(self._seed), clock, SETTINGS)
        topic_id = sequencer.declare_topic("t", 1000).topic_id
        made = Daemon(CommittedOffsets(sequencer, clock, self._bounds), sequencer, clock, topic_id)
        if claims:
            made.claim_all()
        return made

    def entries(self) -> list[bytes]:
        return [entry.data for entry in self.log.read(0, self.log.tail())]


def test_a_committed_offset_is_in_every_reader() -> None:
    deployment = Deployment()
    one = deployment.daemon()
    assert one.commit("g", {3: 7, 1: 5}, leader_epochs=[2, -1], metadata=["note", ""]) == "ok"
    assert one.commit("g", {1: 6}) == "ok"
    other = deployment.daemon(claims=False)
    found = other.offsets.read().get("g")
    assert found is not None
    now_us = one.clock.now_us()
    assert found.offset(one.topic_id, 3) == CommittedOffset(7, 2, "note", now_us)
    assert found.offset(one.topic_id, 1) == CommittedOffset(6, -1, "", now_us)
    assert found.offset(one.topic_id, 2) is None
    assert found.offset(TopicId("0" * 32), 2) is None
    claim = other.offsets.read().claim(5)
    assert claim is not None
    assert claim.number == one.claim


def test_the_later_row_of_a_partition_and_the_later_commit_of_a_group_stay() -> None:
    deployment = Deployment()
    one = deployment.daemon()
    assert one.commit("g", {0: 5}) == "ok"
    twice = Commit(
        "g",
        one.claim,
        (TopicCommit(one.topic_id, [2, 2, 1], [1, 9, 4]), TopicCommit(one.topic_id, [1], [8])),
    )
    # The last commit states what is stored already, but not what the commit before it in the entry states.
    outcomes = one.offsets.commit([twice, one.committing("g", {0: 6}), one.committing("g", {0: 5})])
    assert outcomes == ["ok", "ok", "ok"]
    assert one.read("g") == {0: 5, 1: 8, 2: 9}


def test_an_unchanged_offset_is_not_stored_again_until_it_is_old() -> None:
    deployment = Deployment()
    one = deployment.daemon()
    assert one.commit("g", {0: 1, 1: 1, 2: 1}) == "ok"
    tail = deployment.log.tail()
    assert one.commit("g", {0: 1, 2: 1}) == "ok"
    assert deployment.log.tail() == tail
    assert one.commit("g", {0: 1, 1: 2, 2: 1}) == "ok"
    (stated,) = parse_entry(0, deployment.entries()[-1]).offsets_committed.commits[0].topics
    assert list(stated.partitions) == [1]
    # Other metadata is a change.
    assert one.commit("g", {0: 1}, metadata=["x"]) == "ok"
    assert one.commit("g", {0: 1}, metadata=["x"], leader_epochs=[3]) == "ok"
    assert deployment.log.tail() == tail + 3
    one.clock.advance(REFRESH_US / 1e6 + 1)
    assert one.commit("g", {2: 1}) == "ok"
    assert deployment.log.tail() == tail + 4
    found = one.offsets.read().get("g")
    assert found is not None
    assert found.newest_us == one.clock.now_us()


def test_a_daemon_that_was_replaced_commits_and_removes_nothing() -> None:
    deployment = Deployment()
    one, two = deployment.daemon(), deployment.daemon(claims=False)
    assert one.commit("g", {0: 5}) == "ok"
    two.claim_all()
    assert two.commit("g", {0: 9}) == "ok"
    # It has not read the claim yet, and the offset is the one that it knows as stored.
    assert one.commit("g", {0: 5}) == "stale_claim"
    assert one.commit("g", {0: 6}) == "stale_claim"
    assert one.offsets.remove([Removal("g", one.claim)]) == ["stale_claim"]
    assert two.read("g") == one.read("g") == {0: 9}


def test_a_claim_between_the_read_and_the_append_voids_the_commit() -> None:
    deployment = Deployment()
    one, two = deployment.daemon(), deployment.daemon(claims=False)
    # The first append loses the race against the claim, which is appended before it arrives.
    append = deployment.log.append

    def claim_first(index: int, data: bytes) -> object:
        deployment.log.append = append  # type: ignore[method-assign]
        two.claim_all()
        return append(index, data)

    deployment.log.append = claim_first  # type: ignore[method-assign, assignment]
    assert one.commit("g", {0: 5}) == "stale_claim"
    assert two.read("g") == {}


@pytest.mark.parametrize("fault", UNSETTLED)
def test_an_unknown_outcome_is_not_a_failure_and_never_overtakes_a_later_commit(fault: AppendFault) -> None:
    deployment = Deployment()
    one = deployment.daemon()
    assert one.commit("g", {0: 5}) == "ok"
    deployment.log.script(*[fault] * SETTINGS.append_attempts_max)
    many = [one.committing(f"g{number}", dict.fromkeys(range(1000), 2**40)) for number in range(5)]
    outcomes = one.offsets.commit([one.committing("g", {0: 6}), *many])
    assert outcomes == sorted(outcomes, reverse=True), "those of the first entry, then the others"
    assert set(outcomes) == {"unknown", "not_appended"}
    # It states what is stored, as far as this process knows. The entry of unknown outcome comes first.
    assert one.commit("g", {0: 5}) == "ok"
    assert one.read("g") == {0: 5}
    # Any later append would bring an entry that was still waiting.
    assert one.commit("other", {0: 1}) == "ok"
    assert one.read("g") == {0: 5}
    assert deployment.daemon(claims=False).read("g") == {0: 5}


def test_a_metadata_store_that_does_not_answer_makes_nothing_fail() -> None:
    deployment = Deployment()
    one = deployment.daemon()
    deployment.log.script(*[AppendFault.DROPPED] * 100)
    assert one.commit("g", {0: 5}) == "unknown"
    assert one.commit("g", {0: 6}) == "not_appended", "the earlier entry comes first"
    with pytest.raises(OutcomeUnknown):
        deployment.daemon(claims=False).claim_all()
    deployment.log.heal()
    assert one.commit("g", {0: 6}) == "ok"
    deployment.log.script(*[AppendFault.REFUSED] * 100)
    assert one.commit("g", {0: 7}) == "not_appended"
    assert one.offsets.remove([Removal("g", one.claim)]) == ["not_appended"]
    deployment.log.heal()
    assert one.read("g") == {0: 6}


def test_many_commits_share_entries_within_their_bound() -> None:
    deployment = Deployment()
    one = deployment.daemon()
    tail = deployment.log.tail()
    rows = dict.fromkeys(range(100), 2**33)
    assert set(one.offsets.commit([one.committing(f"group-{n}", rows) for n in range(200)])) == {"ok"}
    added = deployment.entries()[tail:]
    assert all(len(data) <= SETTINGS.entry_bytes_max for data in added)
    size = sum(map(len, added))
    assert len(added) == -(-size // SETTINGS.entry_bytes_max), "no entry is used in vain"
    # The topic's id is once in each entry, and a row takes 7 bytes.
    assert size < 200 * (100 * 7 + 30) + len(added) * 100
    assert len(one.offsets.read()) == 200
    texts = ["m" * 300] * 100
    assert one.offsets.commit(
        [
            one.committing("large", rows, metadata=texts),
            one.committing("small", {0: 1}),
        ]
    ) == ["too_large", "ok"]
    assert one.read("large") == {}
    assert one.offsets.remove([Removal(f"group-{n}", one.claim) for n in range(200)]) == ["ok"] * 200
    assert [group.group for group in one.offsets.read()] == ["small"]


def test_the_memory_of_all_groups_has_a_bound() -> None:
    deployment = Deployment(OffsetBounds(memory_bytes_max=10_000, refresh_us=REFRESH_US))
    one = deployment.daemon()
    assert one.commit("noted", {0: 1, 1: 1}, metadata=["a note", ""]) == "ok"
    outcomes = [one.commit(f"g{number}", {0: 1}) for number in range(30)]
    accepted = outcomes.index("full")
    assert 3 < accepted < 20
    assert set(outcomes[accepted:]) == {"full"}
    assert one.commit("g0", {0: 2}) == "ok"
    assert one.commit("g0", {0: 3}, metadata=["a note"]) == "full"
    assert one.commit("g0", {1: 2}) == "full"
    # Some consumers state metadata with every commit; it takes the place of what it replaces.
    assert one.commit("noted", {0: 2, 1: 2}, metadata=["a text", ""]) == "ok"
    assert one.commit("noted", {0: 3}, metadata=["a longer text"]) == "full"
    assert one.commit("noted", {1: 3}, metadata=["a text"]) == "full"
    assert one.read("noted") == {0: 2, 1: 2}
    assert one.offsets.remove([Removal("g1", one.claim)]) == ["ok"]
    assert one.commit("g0", {1: 2}) == "ok"


@pytest.mark.parametrize("slots", [[], [-1], [0, GROUP_SLOTS]])
def test_impossible_slots_are_not_claimed(slots: list[int]) -> None:
    """The entry would stop every reader of the log."""
    deployment = Deployment()
    one = deployment.daemon()
    tail = deployment.log.tail()
    with pytest.raises(InvalidInput, match="0 to 63"):
        one.offsets.claim_slots(slots, 1)
    assert deployment.log.tail() == tail


def test_removals_name_partitions_or_a_time() -> None:
    deployment = Deployment()
    one = deployment.daemon()
    assert one.commit("g", {0: 1, 1: 1, 2: 1}) == "ok"
    one.clock.advance(100)
    assert one.commit("g", {1: 2}) == "ok"
    before_us = one.clock.now_us()
    assert one.offsets.remove([Removal("g", one.claim, {one.topic_id: [1, 2]}, before_us)]) == ["ok"]
    assert one.read("g") == {0: 1, 1: 2}
    # A group that was in use keeps its offsets.
    one.clock.advance(100)
    assert one.offsets.commit([Commit("g", one.claim)]) == ["ok"]
    assert one.offsets.remove([Removal("g", one.claim, None, one.clock.now_us())]) == ["ok"]
    assert one.read("g") == {0: 1, 1: 2}
    assert one.offsets.remove([Removal("g", one.claim, {one.topic_id: [0]})]) == ["ok"]
    assert one.offsets.remove([Removal("g", one.claim, None, one.clock.now_us() + 1)]) == ["ok"]
    tail = deployment.log.tail()
    assert one.offsets.remove([Removal("g", one.claim)]) == ["ok"]
    assert one.offsets.commit([Commit("g", one.claim)]) == ["ok"]
    assert deployment.log.tail() == tail, "nothing is there"


def test_what_cannot_be_stored_is_refused_where_it_is_made() -> None:
    topic = TopicId("1" * 32)
    for partitions, offsets, epochs, texts in (
        ([], [], (), ()),
        ([1], [], (), ()),
        ([-1], [1], (), ()),
        ([2**31], [1], (), ()),
        ([1], [-1], (), ()),
        ([1], [2**63], (), ()),
        ([1], [1], [-2], ()),
        ([1], [1], [2**31 - 1], ()),
        ([1, 2], [1, 2], [1], ()),
        ([1, 2], [1, 2], (), ["a"]),
        ([1], [1], (), ["ß" * 20_000]),
        ([1], [1], (), ["\ud800"]),
    ):
        with pytest.raises(InvalidInput):
            TopicCommit(topic, partitions, offsets, epochs, texts)
    for group in ("g" * 1025, "\ud800"):
        with pytest.raises(InvalidInput):
            Commit(group, 1)
        with pytest.raises(InvalidInput):
            Removal(group, 1)
    nothing: list[dict[TopicId, list[int]]] = [{}, {topic: []}]
    for named in nothing:
        with pytest.raises(InvalidInput, match="names"):
            Removal("g", 1, named)


# --- commits in transactions


def test_a_pending_commit_counts_from_the_end_of_its_transaction_on() -> None:
    deployment = Deployment()
    one, other = deployment.daemon(), deployment.daemon(claims=False)
    producer = one.open()
    assert one.hold("g", {3: 7, 1: 5}, producer, metadata=["note", ""], leader_epochs=[2, -1]) == "ok"
    assert (other.read("g"), other.pending("g")) == ({}, {1, 3})
    # The coordinator of the transactional id may be another daemon.
    other.end(producer)
    found = one.offsets.read().get("g")
    assert found is not None
    assert found.offset(one.topic_id, 3) == CommittedOffset(7, 2, "note", one.clock.now_us())
    assert (one.read("g"), one.pending("g")) == ({1: 5, 3: 7}, set())


def test_a_pending_commit_of_an_old_claim_or_another_producer_is_not_appended() -> None:
    deployment = Deployment()
    one, two = deployment.daemon(), deployment.daemon(claims=False)
    old = one.open()
    new, other = one.open(), one.open("other")
    tail = deployment.log.tail()
    assert one.hold("g", {0: 1}, old) == one.hold("g", {0: 1}, (new[0], new[1] + 1)) == "fenced"
    assert one.hold("g", {0: 1}, other) == one.hold("g", {0: 1}, (tail, 0)) == "unknown_producer"
    nothing = PendingCommit(Commit("g", one.claim), "id", *new)
    assert one.offsets.hold([nothing]) == ["ok"]
    assert deployment.log.tail() == tail
    two.claim_all()
    tail = deployment.log.tail()
    assert one.hold("g", {0: 1}, new) == one.offsets.hold([nothing])[0] == "stale_claim"
    assert (deployment.log.tail(), one.pending("g")) == (tail, set())


@pytest.mark.parametrize("outcome", ["stale_claim", "fenced"])
def test_what_comes_between_the_read_and_the_append_voids_a_pending_commit(outcome: str) -> None:
    deployment = Deployment()
    one, two = deployment.daemon(), deployment.daemon(claims=False)
    producer = one.open()
    append = deployment.log.append

    def come_first(index: int, data: bytes) -> object:
        deployment.log.append = append  # type: ignore[method-assign]
        if outcome == "fenced":
            two.open()
        else:
            two.claim_all()
        return append(index, data)

    deployment.log.append = come_first  # type: ignore[method-assign, assignment]
    assert one.hold("g", {0: 5}, producer) == outcome
    assert one.pending("g") == two.pending("g") == set()
    assert not len(two.sequencer.fold.transactions), "it begins none"


@pytest.mark.parametrize("commit", [True, False])
def test_a_pending_commit_does_not_follow_the_end_of_its_transaction(*, commit: bool) -> None:
    deployment = Deployment()
    one, two = deployment.daemon(), deployment.daemon(claims=False)
    producer = one.open()
    assert one.hold("g", {0: 5}, producer) == "ok"
    append = deployment.log.append

    def end_first(index: int, data: bytes) -> object:
        deployment.log.append = append  # type: ignore[method-assign]
        # The client got no answer, and gave the transaction up.
        two.end(producer, commit=commit)
        return append(index, data)

    deployment.log.append = end_first  # type: ignore[method-assign, assignment]
    assert one.hold("g", {1: 6}, producer) == "not_appended"
    assert (one.read("g"), one.pending("g")) == ({0: 5} if commit else {}, set())
    assert not len(one.sequencer.fold.transactions)


def test_a_pending_commit_may_follow_the_beginning_of_its_transaction() -> None:
    deployment = Deployment()
    one, two = deployment.daemon(), deployment.daemon(claims=False)
    producer = one.open()
    append = deployment.log.append

    def begin_first(index: int, data: bytes) -> object:
        deployment.log.append = append  # type: ignore[method-assign]
        two.claim = one.claim
        assert two.hold("other", {0: 5}, producer) == "ok"
        return append(index, data)

    deployment.log.append = begin_first  # type: ignore[method-assign, assignment]
    assert one.hold("g", {1: 6}, producer) == "ok"
    one.end(producer)
    assert (one.read("g"), one.read("other")) == ({1: 6}, {0: 5})


@pytest.mark.parametrize("fault", UNSETTLED)
def test_a_pending_commit_of_unknown_outcome_is_not_a_failure(fault: AppendFault) -> None:
    deployment = Deployment()
    one = deployment.daemon()
    producer = one.open()
    deployment.log.script(*[fault] * SETTINGS.append_attempts_max)
    pending = [PendingCommit(one.committing(group, {0: 6}), "id", *producer) for group in ("g", "h")]
    assert one.offsets.hold(pending) == ["unknown", "not_appended"]
    assert one.offsets.hold(pending) == ["ok", "ok"]
    one.end(producer)
    # A late arrival of the first attempt would be behind the marker.
    assert one.commit("other", {0: 1}) == "ok"
    assert (one.read("g"), one.pending("g"), one.read("h")) == ({0: 6}, set(), {0: 6})
    assert not len(one.sequencer.fold.transactions)


def test_pending_commits_have_bounds() -> None:
    deployment = Deployment(OffsetBounds(memory_bytes_max=4_000, refresh_us=REFRESH_US))
    one = deployment.daemon()
    producer = one.open()
    rows = dict.fromkeys(range(100), 2**33)
    assert one.hold("g", rows, producer, metadata=["m" * 300] * 100) == "too_large"
    assert one.commit("g", {0: 1}) == "ok"
    outcomes = [one.hold("g", {number: 2}, producer) for number in range(10)]
    accepted = outcomes.index("full")
    assert 0 < accepted < 10
    assert set(outcomes[accepted:]) == {"full"}
    assert one.commit("h", {0: 1}) == "full", "they count as memory of the groups"
    one.end(producer, commit=False)
    assert one.hold("g", {0: 2}, producer) == "ok"


def test_a_group_has_a_bounded_number_of_pending_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("intake.log.committed_offsets.PENDING_ENTRIES_MAX", 2)
    one = Deployment().daemon()
    producer = one.open()
    outcomes = [one.hold("g", {number: 2}, producer) for number in (0, 0, 1, 1, 2)]
    # The second one replaced the first.
    assert outcomes == ["ok", "ok", "ok", "full", "full"]
    assert one.hold("h", {0: 2}, producer) == "ok"
    assert one.commit("g", {0: 1, 1: 1}) == "ok"
    assert one.hold("g", {2: 2}, producer) == "ok"


def test_an_unchanged_offset_is_stored_again_over_a_pending_one() -> None:
    deployment = Deployment()
    one = deployment.daemon()
    producer = one.open()
    assert one.commit("g", {0: 5}) == "ok"
    assert one.hold("g", {0: 9}, producer) == "ok"
    assert one.commit("g", {0: 5}) == "ok"
    one.end(producer)
    assert one.read("g") == {0: 5}


def test_a_group_with_pending_offsets_alone_is_removed() -> None:
    deployment = Deployment()
    one = deployment.daemon()
    producer = one.open()
    assert one.hold("g", {0: 9}, producer) == "ok"
    assert one.offsets.remove([Removal("g", one.claim)]) == ["ok"]
    one.end(producer)
    assert (one.read("g"), one.pending("g")) == ({}, set())


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_no_acknowledged_commit_is_lost_or_undone(seed: int) -> None:
    """Daemons replace each other, replies get lost, entries arrive late. Offsets of each daemon's group rise
    under every claim, so a stored one that is lower than an acknowledged one was undone."""
    chance = random.Random(seed)
    deployment = Deployment()
    daemons = [deployment.daemon(claims=False) for _ in range(3)]
    acknowledged: dict[str, int] = {}
    sent = 0
    for _ in range(40):
        daemon = chance.choice(daemons)
        if chance.random() < 0.3:
            deployment.log.script(*(chance.choice(list(AppendFault)) for _ in range(chance.randint(1, 6))))
        if chance.random() < 0.2:
            with suppress(OutcomeUnknown, RetryLater):
                daemon.claim_all()
            continue
        groups = chance.sample("abc", chance.randint(1, 3))
        sent += 1
        outcomes = daemon.offsets.commit([daemon.committing(group, {0: sent}) for group in groups])
        for group, outcome in zip(groups, outcomes, strict=True):
            if outcome == "ok":
                acknowledged[group] = sent
        if chance.random() < 0.3:
            deployment.log.heal()
            for group, offset in acknowledged.items():
                assert chance.choice(daemons).read(group)[0] >= offset
    deployment.log.heal()
    reader = deployment.daemon(claims=False)
    assert all(reader.read(group)[0] >= offset for group, offset in acknowledged.items())


def test_threads_that_commit_and_read_at_once_see_whole_commits() -> None:
    deployment = Deployment()
    one = deployment.daemon()
    assert one.commit("g", dict.fromkeys(range(50), 0)) == "ok"
    stop, seen = threading.Event(), set[int]()

    def read() -> None:
        while not stop.is_set():
            found = one.sequencer.fold.consumer_groups.get("g")
            assert found is not None
            seen.add(len(set(found.topics[one.topic_id].offsets)))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for offset in range(1, 200):
            assert one.commit("g", dict.fromkeys(range(50), offset)) == "ok"
    finally:
        stop.set()
        reader.join()
    assert seen == {1}

"""Judges consumer groups while a run goes on: each entry of the log, and each answer that a member gets.

Claims and offsets are followed here from the entries, also offsets that wait for the end of their transaction. A consumer writes into the metadata of an offset in which
generation and by which member it was committed, so that the log shows whether an old one still counts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.consumer_groups import slot_of
from intake.log.fold import Applied
from tests.simulation.ground import Ground
from tests.simulation.kafka.group_requests import NO_OFFSET, Offset
from tests.simulation.kafka.pending_model import PendingModel, Waiting
from tests.simulation.schedule import Violation

_NONE: Final = Offset(NO_OFFSET, "")
_BEGIN: Final = Offset(0, "")


@dataclass(frozen=True)
class Author:
    """Who committed an offset. It is the offset's metadata."""

    leader: str
    generation: int
    """With `leader` it is unlike that of every other generation, also of other coordinators."""
    member_id: str
    number: int = 0
    """Of the commit; 0 if the consumer does not number them."""
    rewinds: bool = False
    """The consumer goes back on purpose."""

    def text(self) -> str:
        """As metadata."""
        return f"{self.leader}|{self.generation}|{self.member_id}|{self.number}|{int(self.rewinds)}"

    @staticmethod
    def of(text: str) -> Author:
        """From metadata."""
        leader, generation, member_id, number, rewinds = text.split("|")
        return Author(leader, int(generation), member_id, int(number), rewinds == "1")


Offsets = Mapping[TopicPartition, Offset]


@dataclass(frozen=True)
class _State:
    """What the log has of a group, from a length of the log on."""

    length: int
    offsets: Offsets
    """The committed ones."""
    pending: frozenset[TopicPartition] = frozenset()
    """Partitions with an offset of an open transaction."""

    def shows(self, found: Offsets, unstable: Collection[TopicPartition] = ()) -> bool:
        """Whether a fetch is answered so in this state."""
        return (
            all(self.offsets.get(tp, _NONE) == one for tp, one in found.items())
            and self.pending.isdisjoint(found)
            and self.pending.issuperset(unstable)
        )


@dataclass
class _Watched:
    """One group."""

    inputs: Collection[str] | None
    """The topics that it reads; None: all of them."""
    states: list[_State] = field(default_factory=lambda: [_State(0, {})])
    since_us: dict[TopicPartition, int] = field(default_factory=dict)
    """When each was committed the last time."""
    serials: dict[tuple[str, int], int] = field(default_factory=dict)
    """Generations (leader and number) in the order of their first answer."""
    begun: dict[TopicPartition, tuple[int, str]] = field(default_factory=dict)
    """The newest generation, and its member, that fetched the offset of a partition or committed it."""
    owners: dict[tuple[str, int, TopicPartition], str] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    """Metadata of numbered commits that were refused."""
    processed: dict[TopicPartition, set[int]] = field(default_factory=dict)


class GroupWatch:
    """Follows all groups of a run. Raises `Violation`."""

    def __init__(
        self, ground: Ground, now_us: Callable[[], int], retention_us: int, kept_us: int | None
    ) -> None:
        """`now_us` is the true time. Offsets expire `retention_us` after the time that the log has of them.
        `kept_us`: they stay for at least so long after their last commit or mark; None: clocks are wrong, so
        they may expire earlier.
        """
        self._now_us = now_us
        self._retention_us = retention_us
        self._ground = ground
        self._kept_us = kept_us
        self._claims: dict[int, int] = {}
        self._groups: dict[str, _Watched] = {}
        self._pending = PendingModel()

    def enter(self, group: str, inputs: Collection[str] | None = None) -> None:
        """Watch a group that reads these topics, or all of them."""
        self._groups[group] = _Watched(inputs)

    # --- The log

    def applied(self, index: int, entry: pb.IntakeEntry, applied: Applied) -> None:
        """An entry has come into the log."""
        body = entry.WhichOneof("body")
        if body == "slots_claimed":
            self._claims.update(dict.fromkeys(entry.slots_claimed.slots, index + 1))
        for one, refusal in zip(entry.offsets_committed.commits, applied.commits, strict=False):
            self._check_claim(index, one.group, one.claim, refusal)
            if refusal is None and one.group in self._groups:
                self._counts(index, one, entry.offsets_committed)
        for gone, refusal in zip(entry.offsets_removed.removals, applied.commits, strict=False):
            self._check_claim(index, gone.group, gone.claim, refusal)
            if refusal is None and gone.group in self._groups:
                self._removes(index, gone)
        if body == "offsets_pending":
            self._holds(index, entry.offsets_pending, applied)
        elif body == "producer" and applied.producer is not None:
            self._pending.end(applied.producer[0], commit=False)
        elif body == "transaction" and applied.refusal is None:
            ended = entry.transaction
            self._commits(index, self._pending.end(ended.producer_id, commit=ended.commit))
        for group, watched in self._groups.items():
            self._compare(f"entry {index}, {body}: {group}", group, watched, index + 1)

    def _compare(self, where: str, group: str, watched: _Watched, length: int) -> None:
        """The fold must have what was followed here."""
        present, expected = self._present(group), watched.states[-1].offsets
        if present != expected:
            raise Violation("only commits change offsets", f"{where} has {present}, not {expected}")
        held = self._ground.fold.consumer_groups.pending(group)
        pending = frozenset((topic_id, number) for topic_id, numbers in held.items() for number in numbers)
        if pending != self._pending.partitions(group):
            raise Violation(
                "offsets are pending while their transaction is open",
                f"{where} has {set(pending)}, not {set(self._pending.partitions(group))}",
            )
        if pending != watched.states[-1].pending:
            watched.states.append(_State(length, present, pending))

    def _check_claim(self, index: int, group: str, claim: int, refusal: str | None) -> None:
        newest = self._claims.get(slot_of(group))
        if (newest != claim) != (refusal is not None):
            raise Violation(
                "only the newest claim counts",
                f"entry {index}: {group} under claim {claim} is {refusal}, {newest} is the newest",
            )
        self._ground.met[f"group commit refused: {refusal}" if refusal else "group commit counts"] += 1

    def _counts(self, index: int, commit: pb.GroupCommit, entry: pb.OffsetsCommitted) -> None:
        """A commit changes the offsets of its group."""
        watched = self._groups[commit.group]
        if not commit.topics:
            self._ground.met["group marked as in use"] += 1
            watched.since_us.update(dict.fromkeys(watched.since_us, entry.time_us))
            return
        stated = _stated(commit, entry.topic_ids)
        self._pending.committed(index, commit.group, stated)
        watched.since_us.update(dict.fromkeys(stated, entry.time_us))
        self._change(index, commit.group, stated)

    def _holds(self, index: int, entry: pb.OffsetsPending, applied: Applied) -> None:
        """Offsets of a group wait for the end of a transaction."""
        commit = entry.commit
        if applied.refusal is not None:
            return
        refusal = applied.commits[0]
        self._check_claim(index, commit.group, commit.claim, refusal)
        self._ground.met[f"group offsets not held: {refusal}" if refusal else "group offsets held"] += 1
        if refusal is not None or commit.group not in self._groups:
            return
        stated = _stated(commit, entry.topic_ids)
        watched = self._groups[commit.group]
        for tp, new in stated.items():
            where = f"entry {index}: {commit.group} of {tp} holds {new}"
            self._judge_direction(where, watched.states[-1].offsets.get(tp), new)
            self._judge_author(where, watched, tp, new)
        self._pending.hold(
            entry.producer_id,
            [Waiting(commit.group, tp, new, index, entry.time_us) for tp, new in stated.items()],
        )

    def _commits(self, index: int, waiting: Sequence[Waiting]) -> None:
        """A marker commits offsets."""
        for group in dict.fromkeys(one.group for one in waiting):
            mine = [one for one in waiting if one.group == group]
            self._ground.met["group offsets committed by a marker"] += 1
            self._groups[group].since_us.update({one.tp: one.time_us for one in mine})
            self._change(index, group, {one.tp: one.offset for one in mine})

    def _change(self, index: int, group: str, offsets: Offsets) -> None:
        """The entry at `index` commits these offsets of the group."""
        watched = self._groups[group]
        before = watched.states[-1].offsets
        for tp, new in offsets.items():
            self._judge_changed(f"entry {index}: {group} of {tp}", watched, tp, before.get(tp), new)
        watched.states.append(_State(index + 1, {**before, **offsets}, self._pending.partitions(group)))

    def _removes(self, index: int, removal: pb.GroupRemoval) -> None:
        """Offsets of a group expire."""
        watched, present = self._groups[removal.group], self._present(removal.group)
        # The entry may be late, and its daemon may have another retention in mind.
        decided_us = min(removal.committed_before_us + self._retention_us, self._now_us())
        state = watched.states[-1]
        for tp in state.offsets.keys() - present.keys():
            self._ground.met["group offset expired"] += 1
            used_us = watched.since_us[tp]
            if self._kept_us is not None and decided_us - used_us < self._kept_us:
                raise Violation(
                    "offsets do not expire early",
                    f"entry {index}: {removal.group} loses that of {tp}, {decided_us - used_us} µs after its last commit",
                )
            watched.begun.pop(tp, None)
        watched.states.append(_State(index + 1, present, state.pending))

    def _judge_changed(
        self, where: str, watched: _Watched, tp: TopicPartition, old: Offset | None, new: Offset
    ) -> None:
        where = f"{where} from {old} to {new}"
        self._judge_direction(where, old, new)
        if new.offset > self._ground.fold.next_offset(tp):
            raise Violation("nothing beyond the end is committed", where)
        watched.begun[tp] = self._judge_author(where, watched, tp, new), Author.of(new.metadata).member_id

    def _judge_direction(self, where: str, old: Offset | None, new: Offset) -> None:
        """Whether an offset may follow another one."""
        if old is None or new.offset >= old.offset:
            return
        author, before = Author.of(new.metadata), Author.of(old.metadata)
        own = (before.leader, before.generation, before.member_id) == (
            author.leader,
            author.generation,
            author.member_id,
        )
        if not own and not author.rewinds:
            raise Violation("a committed offset never goes back", where)
        self._ground.met["group offset goes back on purpose"] += 1

    @staticmethod
    def _judge_author(where: str, watched: _Watched, tp: TopicPartition, new: Offset) -> int:
        """Whether the author of an offset may commit it now; the place of its generation."""
        if new.metadata in watched.refused:
            raise Violation("a commit that was refused never counts", where)
        author = Author.of(new.metadata)
        # Every member got its generation from an answer.
        serial = watched.serials[author.leader, author.generation]
        newest = watched.begun.get(tp)
        if newest is not None and (
            serial < newest[0] or (serial == newest[0] and author.member_id != newest[1])
        ):
            raise Violation(
                "a generation that was replaced commits nothing", f"{where}, generation {serial} of {newest}"
            )
        return serial

    def _present(self, group: str) -> Offsets:
        held = self._ground.fold.consumer_groups.get(group)
        if held is None:
            return {}
        return {
            (topic_id, number): Offset(one.offset, one.metadata)
            for topic_id, topic in held.topics.items()
            for number, one in topic
        }

    # --- The answers of coordinators

    def joined(self, group: str, leader: str, generation: int) -> None:
        """A daemon answers a member with this generation."""
        serials = self._groups[group].serials
        serials.setdefault((leader, generation), len(serials))

    def assigned(self, group: str, author: Author, owner: str, tps: Sequence[TopicPartition]) -> None:
        """A member has its partitions; `owner` is its instance id, or its member id."""
        owners = self._groups[group].owners
        for tp in tps:
            found = owners.setdefault((author.leader, author.generation, tp), owner)
            if found != owner:
                raise Violation(
                    "a partition has one owner in a generation",
                    f"{group} in generation {author.generation} of {author.leader}: {tp} of {found} and {owner}",
                )

    def fetched(
        self,
        group: str,
        author: Author,
        sent: int,
        found: Offsets,
        unstable: Collection[TopicPartition],
        *,
        own: bool,
    ) -> None:
        """A member got the offsets of its partitions; the log had `sent` entries when it asked. `unstable`:
        it must wait for those. `own`: from the daemon that it has joined. Every other coordinator answers as
        well, as in Kafka.
        """
        watched = self._groups[group]
        if not any(state.shows(found, unstable) for state in self._states(watched, sent)):
            raise Violation(
                "a fetch sees every commit before it",
                f"{group}: {found} was answered, unstable {unstable}, of {self._states(watched, sent)}",
            )
        if unstable:
            self._ground.met["group offsets unstable"] += 1
            return
        serial = watched.serials[author.leader, author.generation]
        for tp in found:
            if own and watched.begun.get(tp, (-1, ""))[0] <= serial:
                watched.begun[tp] = serial, author.member_id
        self._ground.met["group offsets fetched"] += 1

    def committed(self, group: str, sent: int, offsets: Offsets) -> None:
        """A commit was acknowledged."""
        watched = self._groups[group]
        states = [state.offsets for state in self._states(watched, sent)]
        if not any(all(state.get(tp) == one for tp, one in offsets.items()) for state in states):
            raise Violation("a commit that was acknowledged counts", f"{group}: {offsets}")
        self._ground.met["group commits"] += 1

    def refused(self, group: str, offsets: Offsets) -> None:
        """A commit was refused, and nothing of it may count."""
        watched = self._groups[group]
        numbered = {one.metadata for one in offsets.values() if Author.of(one.metadata).number}
        counted = [
            one for state in watched.states for one in state.offsets.values() if one.metadata in numbered
        ]
        if counted:
            raise Violation("a commit that was refused never counts", f"{group}: {counted}")
        watched.refused |= numbered

    @staticmethod
    def _states(watched: _Watched, sent: int) -> list[_State]:
        """The states of a group from a length of the log until now."""
        last = max(place for place, state in enumerate(watched.states) if state.length <= sent)
        return watched.states[last:]

    # --- The records

    def processed(self, group: str, tp: TopicPartition, offsets: Sequence[int]) -> None:
        """A member has processed these records."""
        self._groups[group].processed.setdefault(tp, set()).update(offsets)

    def is_read(self, group: str) -> bool:
        """Whether the group has committed the end of every partition; ends the work of its members."""
        state, fold = self._groups[group].states[-1].offsets, self._ground.fold
        return all(state.get(tp, _BEGIN).offset >= fold.next_offset(tp) for tp in self.inputs(group))

    def inputs(self, group: str) -> list[TopicPartition]:
        """The partitions that a group reads."""
        topics, names = self._ground.fold.topics_by_id, self._groups[group].inputs
        return [tp for tp in self._ground.partitions() if names is None or topics[tp[0]].name in names]

    def judge(self, held: Mapping[TopicPartition, Mapping[int, bytes]]) -> dict[str, int]:
        """In the end: every record below a committed offset was processed by the group."""
        count = 0
        for group, watched in self._groups.items():
            for tp, records in held.items():
                # A request that was late may have brought records behind it.
                end = max(state.offsets.get(tp, _BEGIN).offset for state in watched.states)
                behind = {offset for offset in records if offset < end}
                missed = behind - watched.processed.get(tp, set())
                if missed:
                    raise Violation(
                        "a group processes every record", f"{group} missed {sorted(missed)} of {tp}"
                    )
                count += len(behind)
        return {"group records": count}


def _stated(commit: pb.GroupCommit, topic_ids: Sequence[bytes]) -> dict[TopicPartition, Offset]:
    """The offsets that an entry states."""
    return {
        (TopicId(topic_ids[topic.topic].hex()), number): Offset(offset, metadata)
        for topic in commit.topics
        for number, offset, metadata in zip(topic.partitions, topic.offsets, topic.metadata, strict=True)
    }

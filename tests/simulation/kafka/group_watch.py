"""Judges consumer groups while a run goes on: each entry of the log, and each answer that a member gets.

Claims and offsets are followed here from the entries. A consumer writes into the metadata of an offset in which
generation and by which member it was committed, so that the log shows whether an old one still counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.consumer_groups import slot_of
from intake.log.fold import Applied
from tests.simulation.ground import Ground
from tests.simulation.kafka.group_requests import NO_OFFSET, Offset
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


@dataclass
class _Watched:
    """One group."""

    states: list[tuple[int, Offsets]] = field(default_factory=lambda: [(0, {})])
    """Its committed offsets from each length of the log on."""
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

    def __init__(self, ground: Ground, retention_us: int, kept_us: int | None) -> None:
        """Offsets expire `retention_us` after the time that the log has of them. `kept_us`: they stay for at
        least so long after their last commit or mark; None: clocks are wrong, so they may expire earlier.
        """
        self._retention_us = retention_us
        self._ground = ground
        self._kept_us = kept_us
        self._claims: dict[int, int] = {}
        self._groups: dict[str, _Watched] = {}

    def enter(self, group: str) -> None:
        """Watch a group."""
        self._groups[group] = _Watched()

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
        for group, watched in self._groups.items():
            present = self._present(group)
            if watched.states[-1][1] != present:
                raise Violation(
                    "only commits change offsets",
                    f"entry {index}, {body}: {group} has {present}, not {watched.states[-1][1]}",
                )

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
        before = watched.states[-1][1]
        stated = {
            (TopicId(entry.topic_ids[topic.topic].hex()), number): Offset(offset, metadata)
            for topic in commit.topics
            for number, offset, metadata in zip(topic.partitions, topic.offsets, topic.metadata, strict=True)
        }
        for tp, new in stated.items():
            watched.since_us[tp] = entry.time_us
            if new.metadata in watched.refused:
                raise Violation(
                    "a commit that was refused never counts", f"entry {index}: {commit.group} of {tp}: {new}"
                )
            self._judge_changed(f"entry {index}: {commit.group} of {tp}", watched, tp, before.get(tp), new)
        watched.states.append((index + 1, {**before, **stated}))

    def _removes(self, index: int, removal: pb.GroupRemoval) -> None:
        """Offsets of a group expire."""
        watched, present = self._groups[removal.group], self._present(removal.group)
        decided_us = removal.committed_before_us + self._retention_us
        for tp in watched.states[-1][1].keys() - present.keys():
            self._ground.met["group offset expired"] += 1
            used_us = watched.since_us[tp]
            if self._kept_us is not None and decided_us - used_us < self._kept_us:
                raise Violation(
                    "offsets do not expire early",
                    f"entry {index}: {removal.group} loses that of {tp}, {decided_us - used_us} µs after its last commit",
                )
            watched.begun.pop(tp, None)
        watched.states.append((index + 1, present))

    def _judge_changed(
        self, where: str, watched: _Watched, tp: TopicPartition, old: Offset | None, new: Offset
    ) -> None:
        where = f"{where} from {old} to {new}"
        author = Author.of(new.metadata)
        serial = watched.serials.get((author.leader, author.generation))
        if serial is None:
            raise Violation("a generation is answered before it commits", where)
        newest = watched.begun.get(tp)
        if newest is not None and (
            serial < newest[0] or (serial == newest[0] and author.member_id != newest[1])
        ):
            raise Violation(
                "a generation that was replaced commits nothing", f"{where}, generation {serial} of {newest}"
            )
        watched.begun[tp] = serial, author.member_id
        if old is not None and new.offset < old.offset:
            before = Author.of(old.metadata)
            own = (before.leader, before.generation, before.member_id) == (
                author.leader,
                author.generation,
                author.member_id,
            )
            if not own and not author.rewinds:
                raise Violation("a committed offset never goes back", where)
            self._ground.met["group offset goes back on purpose"] += 1
        if new.offset > self._ground.fold.next_offset(tp):
            raise Violation("nothing beyond the end is committed", where)

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

    def fetched(self, group: str, author: Author, sent: int, found: Offsets, *, own: bool) -> None:
        """A member got the offsets of its partitions; the log had `sent` entries when it asked. `own`: from
        the daemon that it has joined. Every other coordinator answers as well, as in Kafka.
        """
        watched = self._groups[group]
        if not any(self._shows(state, found) for state in self._states(watched, sent)):
            raise Violation(
                "a fetch sees every commit before it",
                f"{group}: {found} was answered, of {self._states(watched, sent)}",
            )
        serial = watched.serials[author.leader, author.generation]
        for tp in found:
            if own and watched.begun.get(tp, (-1, ""))[0] <= serial:
                watched.begun[tp] = serial, author.member_id
        self._ground.met["group offsets fetched"] += 1

    def committed(self, group: str, sent: int, offsets: Offsets) -> None:
        """A commit was acknowledged."""
        watched = self._groups[group]
        if not any(self._shows(state, offsets) for state in self._states(watched, sent)):
            raise Violation("a commit that was acknowledged counts", f"{group}: {offsets}")
        self._ground.met["group commits"] += 1

    def refused(self, group: str, offsets: Offsets) -> None:
        """A commit was refused, and nothing of it may count."""
        watched = self._groups[group]
        numbered = {one.metadata for one in offsets.values() if Author.of(one.metadata).number}
        counted = [one for _, state in watched.states for one in state.values() if one.metadata in numbered]
        if counted:
            raise Violation("a commit that was refused never counts", f"{group}: {counted}")
        watched.refused |= numbered

    def _states(self, watched: _Watched, sent: int) -> list[Offsets]:
        """The states of a group from a length of the log until now."""
        last = max(place for place, (length, _) in enumerate(watched.states) if length <= sent)
        return [state for _, state in watched.states[last:]]

    @staticmethod
    def _shows(state: Offsets, found: Offsets) -> bool:
        return all(state.get(tp, _NONE) == one for tp, one in found.items())

    # --- The records

    def processed(self, group: str, tp: TopicPartition, offsets: Sequence[int]) -> None:
        """A member has processed these records."""
        self._groups[group].processed.setdefault(tp, set()).update(offsets)

    def is_read(self, group: str) -> bool:
        """Whether the group has committed the end of every partition; ends the work of its members."""
        state, fold = self._groups[group].states[-1][1], self._ground.fold
        return all(state.get(tp, _BEGIN).offset >= fold.next_offset(tp) for tp in self._ground.partitions())

    def judge(self, held: Mapping[TopicPartition, Mapping[int, bytes]]) -> dict[str, int]:
        """In the end: every record below a committed offset was processed by the group."""
        count = 0
        for group, watched in self._groups.items():
            for tp, records in held.items():
                # A request that was late may have brought records behind it.
                end = max(state.get(tp, _BEGIN).offset for _, state in watched.states)
                behind = {offset for offset in records if offset < end}
                missed = behind - watched.processed.get(tp, set())
                if missed:
                    raise Violation(
                        "a group processes every record", f"{group} missed {sorted(missed)} of {tp}"
                    )
                count += len(behind)
        return {"group records": count}

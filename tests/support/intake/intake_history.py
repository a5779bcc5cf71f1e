"""Random histories of the intake log, by one seed: topics that come and go, plain segments, producers that
repeat, wrap, raise their epochs and cover numbers without records, transactions, ticks, barriers, positions of sources,
consumer groups, and their offsets in transactions.

Entries are made without asking a fold, so that many of them do not count: repetitions, gaps, fenced epochs,
files behind a barrier.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import groupby

from archiver.objects.paths import intake_key
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.ids import TopicId
from intake.log.consumer_groups import GROUP_SLOTS
from intake.producers import SEQUENCE_COUNT
from tests.support.intake.intake_entries import topic_id_of

TOPICS = 4
PARTITIONS = 3


@dataclass
class _Sender:
    """A producer as its own process remembers it; it may be wrong about all of it."""

    producer_id: int
    epoch: int
    transactional_id: str
    sequences: dict[tuple[TopicId, int], int] = field(default_factory=dict)
    raised: dict[tuple[TopicId, int], int] = field(default_factory=dict)
    """By how much it raised its epoch itself."""
    sent: list[tuple[tuple[TopicId, int], int, int, int]] = field(default_factory=list)


@dataclass
class RandomHistory:
    """Makes one entry after the other; the index of each is its place in `entries`."""

    chance: random.Random
    entries: list[bytes] = field(default_factory=list)
    now_us: int = 1_767_323_045_000_000
    _topics: int = 0
    _names: dict[int, str] = field(default_factory=dict)
    _deleted: set[int] = field(default_factory=set)
    _senders: list[_Sender] = field(default_factory=list)
    _claims: list[int] = field(default_factory=list)
    """The newest claim of all slots of consumer groups, and the one before."""
    _positions: dict[tuple[str, str], int] = field(default_factory=dict)

    def grow(self, steps: int) -> list[bytes]:
        """`steps` more entries; all there are."""
        if not self.entries:
            self._add(cluster=pb.ClusterBound(cluster_id=b"c" * 16))
            self._declare()
        for _ in range(steps):
            self.now_us += self.chance.randrange(0, 300_000_000)
            self._step()
        return self.entries

    def _step(self) -> None:
        roll = self.chance.random()
        if roll < 0.03 and self._topics < TOPICS:
            self._declare()
        elif roll < 0.04:
            self._delete()
        elif roll < 0.1:
            self._add(tick=pb.Tick(time_us=self.now_us + self.chance.randrange(-1_000_000, 1_000_000)))
        elif roll < 0.13:
            self._add(
                barrier=pb.Barrier(
                    written_before_ms=self.now_us // 1000 - self.chance.choice((0, 1_000, 100_000))
                )
            )
        elif roll < 0.16:
            self._add(
                forgotten=pb.ProducersForgotten(
                    idle_since_us=self.now_us - self.chance.randrange(0, 20_000_000_000)
                )
            )
        elif roll < 0.22:
            self._move()
        elif roll < 0.29:
            self._group()
        elif roll < 0.33:
            self._open()
        elif roll < 0.46 and self._senders:
            self._end(self.chance.choice(self._senders))
        else:
            self._file()

    def _declare(self) -> None:
        number = (
            self._topics + 1 if self._topics == 0 or self.chance.random() < 0.8 else self._topics
        )  # else declared twice
        if number > self._topics:
            free = sorted(
                {self._names[gone] for gone in self._deleted}
                - {self._names[n] for n in self._names if n not in self._deleted}
            )
            self._names[number] = free[0] if free and self.chance.random() < 0.5 else f"topic-{number}"
        self._topics = number
        topic_id = bytes.fromhex(topic_id_of(number))
        self._add(
            topic=pb.TopicDeclared(
                topic_id=topic_id, name=self._names[number], partitions=PARTITIONS, created_us=self.now_us
            )
        )

    def _delete(self) -> None:
        """One of several, perhaps for the second time."""
        number = self.chance.randrange(1, self._topics + 1)
        if number in self._deleted or self._topics - len(self._deleted) > 1:
            self._deleted.add(number)
            self._add(
                deleted=pb.TopicDeleted(topic_id=bytes.fromhex(topic_id_of(number)), time_us=self.now_us)
            )

    def _group(self) -> None:
        """Claim the slots of all groups, commit under the newest claim or the one before, or remove."""
        group, claim = self.chance.choice("xyz"), self.chance.choice([*self._claims, 0])
        topic_id = bytes.fromhex(topic_id_of(self.chance.randrange(1, self._topics + 1)))
        offsets = pb.TopicOffsets(
            partitions=[0, self.chance.randrange(1, PARTITIONS)], offsets=[self._topics, 7]
        )
        roll = self.chance.random()
        transactional = [sender for sender in self._senders if sender.transactional_id]
        if transactional and self._claims and roll < 0.3:
            sender = self.chance.choice(transactional)
            self._add(
                offsets_pending=pb.OffsetsPending(
                    topic_ids=[topic_id],
                    time_us=self.now_us,
                    producer_id=sender.producer_id,
                    epoch=sender.epoch,
                    commit=pb.GroupCommit(group=group, claim=claim, topics=[offsets]),
                )
            )
        elif roll < 0.5 or not self._claims:
            self._claims = [len(self.entries) + 1, *self._claims[:1]]
            self._add(slots_claimed=pb.GroupSlotsClaimed(slots=range(GROUP_SLOTS), node_id=1))
        elif roll < 0.9:
            commit = pb.GroupCommit(group=group, claim=claim, topics=[offsets])
            self._add(
                offsets_committed=pb.OffsetsCommitted(
                    topic_ids=[topic_id], time_us=self.now_us, commits=[commit]
                )
            )
        else:
            removal = pb.GroupRemoval(group=group, claim=claim)
            self._add(offsets_removed=pb.OffsetsRemoved(removals=[removal]))

    def _open(self) -> None:
        name = self.chance.choice(("", "", "a", "b"))
        index = len(self.entries)
        self._add(
            producer=pb.ProducerOpened(
                transactional_id=name,
                transaction_timeout_us=60_000_000,
                time_us=self.now_us,
                resumed=bool(name) and self.chance.random() < 0.5,
            )
        )
        known = next((one for one in self._senders if name and one.transactional_id == name), None)
        if known is None:
            self._senders.append(_Sender(index, 0, name))
        elif self.chance.random() < 0.7:
            known.epoch, known.sequences = known.epoch + 1, {}

    def _end(self, sender: _Sender) -> None:
        fence = self.chance.random() < 0.2
        commit = not fence and self.chance.random() < 0.5
        self._add(
            transaction=pb.TransactionEnded(
                producer_id=sender.producer_id,
                epoch=sender.epoch,
                commit=commit,
                fence=fence,
                by_client=self.chance.random() < 0.7,
                time_us=self.now_us,
            )
        )
        if fence and self.chance.random() < 0.5:
            sender.epoch, sender.sequences = sender.epoch + 1, {}

    def _file(self) -> None:
        key = intake_key(self.now_us - self.chance.choice((0, 0, 0, 600_000_000)), f"{len(self.entries):026}")
        segments: list[tuple[TopicId, pb.Segment]] = []
        for _ in range(self.chance.randrange(1, 6)):
            topic_id = topic_id_of(self.chance.randrange(1, self._topics + 1))
            segment = pb.Segment(
                partition=self.chance.randrange(PARTITIONS),
                row_group=self.chance.randrange(3),
                first_row=self.chance.randrange(100),
                rows=self.chance.randrange(1, 5),
                raw_bytes=self.chance.randrange(0, 1_000),
                accept_max_us=self.now_us - self.chance.randrange(0, 2_000_000),
            )
            if self._senders and self.chance.random() < 0.7:
                segment.producer.CopyFrom(self._batch(self.chance.choice(self._senders), topic_id, segment))
            segments.append((topic_id, segment))
        segments.sort(key=lambda item: item[0])
        groups = groupby(segments, key=lambda item: item[0])
        topics = [
            pb.TopicSegments(topic_id=bytes.fromhex(topic_id), segments=[one for _, one in group])
            for topic_id, group in groups
        ]
        size = self.chance.randrange(1, 1 << 30)
        self._add(
            file=pb.IntakeFile(key=key, size=size, footer_sha256=self.chance.randbytes(32), topics=topics)
        )

    def _batch(self, sender: _Sender, topic_id: TopicId, segment: pb.Segment) -> pb.ProducerBatch:
        tp = (topic_id, segment.partition)
        if self.chance.random() < 0.1 and not sender.transactional_id:
            sender.raised[tp] = sender.raised.get(tp, 0) + 1
            sender.sequences[tp] = 0
        sequence = sender.sequences.get(tp, 0)
        covered = 0
        roll = self.chance.random()
        if roll < 0.2 and sender.sent:
            tp, sequence, rows, numbers = self.chance.choice(sender.sent)
            if tp[0] == topic_id:
                segment.partition, segment.rows, covered = tp[1], rows, numbers
        elif roll < 0.25:
            sequence = self.chance.randrange(SEQUENCE_COUNT)
        elif roll < 0.28:
            segment.rows = max(1, SEQUENCE_COUNT - 1 - sequence)  # the next one wraps
            sender.sequences[tp] = (sequence + segment.rows) % SEQUENCE_COUNT
        else:
            if self.chance.random() < 0.15:
                covered = segment.rows + self.chance.randrange(1, 4)
                segment.rows = self.chance.choice((0, segment.rows))
            sender.sequences[tp] = (sequence + (covered or segment.rows)) % SEQUENCE_COUNT
            sender.sent = [*sender.sent[-10:], (tp, sequence, segment.rows, covered)]
        transactional = bool(sender.transactional_id) != (self.chance.random() < 0.03)
        epoch = sender.epoch + sender.raised.get(tp, 0)
        return pb.ProducerBatch(
            producer_id=sender.producer_id,
            epoch=epoch,
            sequence=sequence,
            transactional=transactional,
            covered=covered,
        )

    def _move(self) -> None:
        """Some items of sources go on, or do not; finished ones are forgotten."""
        source, names = self.chance.choice("xy"), [f"/in/{number}" for number in range(6)]
        if self.chance.random() < 0.3:
            items = self.chance.sample(names, 3)
            self._add(source_forgotten=pb.SourceForgotten(source=source, items=items, seen=self._seen()))
            return
        moves: list[pb.SourcePosition] = []
        for item in self.chance.sample(names, self.chance.choice((1, 1, 2))):
            base = self._positions.get((source, item), 0) if self.chance.random() < 0.8 else 0
            end, done = base + self.chance.randrange(50), self.chance.random() < 0.4
            identity = self.chance.choice((b"same", b"same", b"same", b"another"))
            self._positions[source, item] = 0 if done else end
            moves.append(
                pb.SourcePosition(
                    source=source,
                    item=item,
                    base=base,
                    end=end,
                    done=done,
                    identity=identity,
                    seen=self._seen(),
                    count=end,
                )
            )
        if self.chance.random() < 0.2:
            self._add(file=pb.IntakeFile(positions=moves))
            return
        key = intake_key(self.now_us - self.chance.choice((0, 0, 0, 600_000_000)), f"{len(self.entries):026}")
        segment = pb.Segment(
            partition=self.chance.randrange(PARTITIONS),
            rows=self.chance.randrange(1, 5),
            accept_max_us=self.now_us,
        )
        topic_id = bytes.fromhex(topic_id_of(self.chance.randrange(1, self._topics + 1)))
        topics = [pb.TopicSegments(topic_id=topic_id, segments=[segment])]
        self._add(
            file=pb.IntakeFile(key=key, size=1, footer_sha256=b"d" * 32, topics=topics, positions=moves)
        )

    def _seen(self) -> int:
        return max(0, len(self.entries) - self.chance.choice((0, 0, 0, 5, 20)))

    def _add(self, **body: object) -> None:
        entry = pb.IntakeEntry(
            format=5,
            id=len(self.entries).to_bytes(8, "big") + self.chance.randbytes(8),
            **body,  # type: ignore[arg-type]
        )
        self.entries.append(entry.SerializeToString(deterministic=True))

"""The one appender to the intake log of a process: gives topics their identity and records their offsets.

Owns the process's fold of the log and an entry whose outcome is not known yet. Promises: entries go in one at a time; whoever is told of a
success finds the entry in the log for good; after an unknown outcome nothing else is appended until that entry is settled (protocol rule
L2); when somebody else was faster, the log is read to its tail first (rule L3). Must never append at an index it has not read up to.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Protocol

from archiver import failpoints
from archiver.clock import Clock
from archiver.errors import ConfigInvalid, InvalidInput, OutcomeUnknown, RetryLater
from archiver.ids import IdSource, new_entry_id, new_topic_id
from archiver.log.settle import append_settled
from archiver.log.store import Appended, Log
from archiver.proto import intake_log_pb2 as pb
from intake.fold import NOTHING, Applied, IntakeFold, Landed, TopicState, format_of
from intake.format import PlacedSegment
from intake.producers import Refusal, Stamp
from intake.transactions import OpenTransaction

TOPIC_NAME_BYTES_MAX = 249
PARTITIONS_MAX = 100_000
"""Partition numbers have five digits in object keys."""
RACES_PER_ATTEMPT = 10
"""A lost race means that somebody else got on, so it may happen this many times as often as a failure."""

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")
_READ_ENTRIES = 1000


class AppendSettings(Protocol):
    """What the sequencer needs of the `log` settings."""

    @property
    def entry_bytes_max(self) -> int:
        """Bytes of the largest entry."""

    @property
    def append_attempts_max(self) -> int:
        """How often an append of unknown outcome is tried."""

    @property
    def append_backoff(self) -> float:
        """Seconds before the second attempt."""


class Sequencer:
    """Appends to the intake log and folds it. Thread-safe."""

    def __init__(self, log: Log, ids: IdSource, clock: Clock, settings: AppendSettings) -> None:
        self._log = log
        self._ids = ids
        self._clock = clock
        self._settings = settings
        self._fold = IntakeFold()
        self._lock = threading.Lock()
        self._unsettled: tuple[int, bytes] | None = None

    @property
    def fold(self) -> IntakeFold:
        """The state as of the last entry this process has read; only the sequencer applies to it."""
        return self._fold

    @property
    def entry_bytes_max(self) -> int:
        """Bytes of the largest entry the log takes."""
        return self._settings.entry_bytes_max

    def refresh(self) -> IntakeFold:
        """Read the log up to the tail it has now; returns the fold."""
        with self._lock:
            self._read_on()
        return self._fold

    def bind_cluster(self, cluster_id: str) -> None:
        """Make the log say which cluster's data folder it belongs to; nothing happens if it does already.

        Raises `ConfigInvalid` if it belongs to another.
        """
        with self._lock:
            self._read_on()
            if self._fold.cluster_id is None:
                self._append(pb.IntakeEntry(cluster=pb.ClusterBound(cluster_id=bytes.fromhex(cluster_id))))
        check_cluster(self._fold, cluster_id)

    def declare_topic(self, name: str, partitions: int) -> TopicState:
        """The topic of that name, created if nobody has done so yet.

        Raises `InvalidInput` for a bad name or number of partitions, `ConfigInvalid` if the topic exists with another number.
        """
        check_topic_name(name)
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidInput(f"topic {name} cannot have {partitions} partitions; the number is between 1 and {PARTITIONS_MAX}")
        with self._lock:
            self._read_on()
            if name not in self._fold.topics_by_name:
                failpoints.reach("topic.append.before")
                topic_id = bytes.fromhex(new_topic_id(self._ids))
                declared = pb.TopicDeclared(topic_id=topic_id, name=name, partitions=partitions, created_us=self._clock.now_us())
                self._append(pb.IntakeEntry(topic=declared))
                failpoints.reach("topic.append.after")
            topic = self._fold.topics_by_name[name]
        if topic.partitions != partitions:
            raise ConfigInvalid(
                f"topic {name} exists with {topic.partitions} partitions, the configuration says {partitions}; "
                "the number of a topic's partitions cannot be changed"
            )
        return topic

    def append_file(self, key: str, size: int, footer_sha256: bytes, segments: Sequence[PlacedSegment]) -> tuple[Landed, ...]:
        """Name an uploaded intake file in the log. Returns what became of its segments, in order: from here on the records of those that
        landed exist, at the offsets that stand there.

        Raises `OutcomeUnknown` if the entry may or may not be there; after any other error of ours it certainly is not.
        """
        file = file_entry(key, size, footer_sha256, segments)
        with self._lock:
            return self._append(pb.IntakeEntry(file=file)).landed

    def open_producer(self, transactional_id: str, transaction_timeout_us: int) -> tuple[int, int]:
        """Open a producer; returns its id and its epoch.

        With a transactional id (else ""), whoever had it before is fenced, and what that one left open is aborted. Raises
        `OutcomeUnknown` if the entry may or may not be there: then open it again, an unused producer is forgotten in time.
        """
        opened = pb.ProducerOpened(
            transactional_id=transactional_id, transaction_timeout_us=transaction_timeout_us, time_us=self._clock.now_us()
        )
        with self._lock:
            self._read_on()
            producer = self._append(pb.IntakeEntry(producer=opened)).producer
        assert producer is not None, "the fold names every producer that is opened"
        return producer

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool) -> Refusal | None:
        """Commit or abort the producer's open transaction; None, or why the marker touched nothing.

        Raises `OutcomeUnknown` if the marker may or may not be there.
        """
        ended = pb.TransactionEnded(producer_id=producer_id, epoch=epoch, commit=commit, time_us=self._clock.now_us())
        with self._lock:
            self._read_on()
            return self._append(pb.IntakeEntry(transaction=ended)).refusal

    def end_overdue(self, now_us: int) -> list[OpenTransaction]:
        """Abort the transactions whose time is over, and fence their producers; returns those that were."""
        with self._lock:
            self._read_on()
            overdue = [one for one in self._fold.transactions if one.deadline_us <= now_us]
            for transaction in overdue:
                self._end_overdue(transaction, now_us)
        return overdue

    def _end_overdue(self, transaction: OpenTransaction, now_us: int) -> None:
        """Nothing is appended if somebody else ended it meanwhile: the producer may have begun its next one."""
        ended = pb.TransactionEnded(producer_id=transaction.producer_id, epoch=transaction.epoch, commit=False, fence=True, time_us=now_us)
        self._append(
            pb.IntakeEntry(transaction=ended),
            wanted=lambda: any(
                (one.producer_id, one.started_us) == (transaction.producer_id, transaction.started_us) for one in self._fold.transactions
            ),
        )

    def forget_producers(self, idle_since_us: int) -> int:
        """Forget the producers last heard of before that; returns how many. Nothing is appended if there are none."""
        with self._lock:
            self._read_on()
            before = len(self._fold.producers)
            busy = self._fold.transactions.busy
            if any(one.last_used_us < idle_since_us and one.producer_id not in busy for one in self._fold.producers):
                self._append(pb.IntakeEntry(forgotten=pb.ProducersForgotten(idle_since_us=idle_since_us)))
            return before - len(self._fold.producers)

    def raise_barrier(self, written_before_ms: int) -> None:
        """Promise that no file written before that comes into the log any more; nothing is appended if a later barrier stands."""
        with self._lock:
            self._read_on()
            if written_before_ms > self._fold.barrier_ms:
                self._append(pb.IntakeEntry(barrier=pb.Barrier(written_before_ms=written_before_ms)))

    def tick(self, now_us: int) -> int:
        """Promise that nothing later in the log has an ingest time before `now_us`; returns the newest tick, which may be later."""
        with self._lock:
            self._read_on()
            if now_us > self._fold.tick_us:
                failpoints.reach("tick.append.before")
                self._append(pb.IntakeEntry(tick=pb.Tick(time_us=now_us)))
                failpoints.reach("tick.append.after")
            return self._fold.tick_us

    def _append(self, entry: pb.IntakeEntry, wanted: Callable[[], bool] = lambda: True) -> Applied:
        """Put the entry at the tail; what it brought about. Given up, without an error, as soon as the state says it is not `wanted`."""
        entry.format = format_of(entry)
        entry.id = new_entry_id(self._ids)
        data = entry.SerializeToString(deterministic=True)
        if len(data) > self._settings.entry_bytes_max:
            raise InvalidInput(f"an entry of {len(data)} bytes is larger than log.entry_bytes_max = {self._settings.entry_bytes_max}")
        for race in range(self._settings.append_attempts_max * RACES_PER_ATTEMPT):
            self._settle_earlier()
            if race:
                self._clock.sleep(self._jitter_s(race))
                self._read_on()
            if not wanted():
                return NOTHING
            index = self._fold.next_index
            try:
                outcome = self._settle(index, data)
            except OutcomeUnknown:
                self._unsettled = (index, data)
                raise
            if outcome is Appended.OK:
                return self._fold.apply(index, data)
            self._read_on()
        raise RetryLater(
            f"log {self._log.name}: others were faster {self._settings.append_attempts_max * RACES_PER_ATTEMPT} times; nothing was appended"
        )

    def _settle_earlier(self) -> None:
        """Find out about an entry of unknown outcome before anything else is appended."""
        if self._unsettled is not None and self._fold.next_index > self._unsettled[0]:
            self._unsettled = None
        if self._unsettled is None:
            return
        index, data = self._unsettled
        try:
            outcome = self._settle(index, data)
        except OutcomeUnknown as error:
            raise RetryLater(f"an earlier entry of the intake log is not settled yet, so nothing is appended after it ({error})") from error
        self._unsettled = None
        if outcome is Appended.OK:
            self._fold.apply(index, data)
        else:
            self._read_on()

    def _settle(self, index: int, data: bytes) -> Appended:
        return append_settled(self._log, index, data, self._settings.append_attempts_max, self._settings.append_backoff, self._clock)

    def _jitter_s(self, race: int) -> float:
        """A random wait, so that two appenders do not keep step; grows a little while races are lost."""
        share = int.from_bytes(self._ids.random_bytes(2), "big") / 65536
        return self._settings.append_backoff * share * min(1.0, race / 10)

    def _read_on(self) -> None:
        tail = self._log.tail()
        while self._fold.next_index < tail:
            entries = self._log.read(self._fold.next_index, _READ_ENTRIES)
            if not entries:
                return  # the tail moved back: a restored backup; the next append says so
            for entry in entries:
                self._fold.apply(entry.index, entry.data)


def check_cluster(fold: IntakeFold, cluster_id: str) -> None:
    """Raise `ConfigInvalid` if the log belongs to another cluster's data folder."""
    if fold.cluster_id not in (None, cluster_id):
        raise ConfigInvalid(
            f"the metadata store belongs to the data folder of cluster id {fold.cluster_id}, but data.uri has {cluster_id}; "
            "correct metadata or data.uri: the two are only of use together"
        )


def check_topic_name(name: str) -> None:
    """Kafka's rule for topic names; raises `InvalidInput`."""
    if not _TOPIC_NAME.fullmatch(name) or len(name) > TOPIC_NAME_BYTES_MAX or name in (".", ".."):
        raise InvalidInput(
            f"{name!r} is no topic name; a name has 1 to {TOPIC_NAME_BYTES_MAX} letters, digits, dots, underscores or hyphens "
            "and is neither '.' nor '..'"
        )


def file_entry(key: str, size: int, footer_sha256: bytes, segments: Sequence[PlacedSegment]) -> pb.IntakeFile:
    """The body of the entry that names an intake file; segments of one topic stand together."""
    topics = [
        pb.TopicSegments(
            topic_id=bytes.fromhex(topic_id),
            segments=[
                pb.Segment(
                    partition=segment.partition,
                    row_group=segment.row_group,
                    first_row=segment.first_row,
                    rows=segment.rows,
                    raw_bytes=segment.raw_bytes,
                    accept_max_us=segment.accept_max_us,
                    producer=batch_entry(segment.stamp),
                )
                for segment in group
            ],
        )
        for topic_id, group in groupby(segments, key=lambda segment: segment.topic_id)
    ]
    return pb.IntakeFile(key=key, size=size, footer_sha256=footer_sha256, topics=topics)


def batch_entry(stamp: Stamp | None) -> pb.ProducerBatch | None:
    """Whose batch a segment is, as the entry says it."""
    if stamp is None:
        return None
    return pb.ProducerBatch(producer_id=stamp.producer_id, epoch=stamp.epoch, sequence=stamp.sequence, transactional=stamp.transactional)

"""The operations on the intake log of a process: declares topics and appends files, markers and ticks.

Owns the process's fold of the log. Each operation reads the log to its tail, decides whether its entry is
still needed, and hands it to the appender (`intake.log.appender`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from archiver.config.groups import LogSettings
from archiver.log.store import Log
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.clock import Clock
from archiver.runtime.errors import (
    ConfigInvalid,
    InvalidInput,
    NotFound,
    OutcomeUnknown,
    RetryLater,
    no_topic,
)
from archiver.runtime.ids import IdSource, TopicId, new_topic_id
from archiver.runtime.text import counted
from intake.format import PlacedSegment
from intake.log.appender import RACES_PER_ATTEMPT, Appender
from intake.log.backlog import Backlog
from intake.log.checkpoint import Checkpoint, CheckpointStore
from intake.log.entries import config_entries, file_entry
from intake.log.fold import Applied, IntakeFold, Landed, TopicState, contradicts_topics
from intake.log.folded_log import FoldedLog
from intake.log.source_positions import Move
from intake.log.state import Configs
from intake.log.transactions import OpenTransaction
from intake.producers import Refusal, ids_of_opening

TOPIC_NAME_BYTES_MAX = 249
"""Kafka's limit."""
PARTITIONS_MAX = 100_000
"""Partition numbers have five digits in object keys."""
DELETIONS_PER_ENTRY = 500
"""Partitions in one entry that deletes records: less than the 16 KiB that every log accepts."""

_TOPIC_NAME = re.compile(r"[A-Za-z0-9._-]+")

# Keyed by whether the caller expects a mirrored topic.
_OTHER_KIND = {
    True: "topic {name} exists and is not mirrored: its offsets are its own; mirror into a topic of another "
    "name, or delete this one",
    False: "topic {name} is mirrored: only its Kafka source writes to it; give it partitions: 0",
}


def _check_partitions(name: str, partitions: int) -> None:
    """Raise `InvalidInput` for a number of partitions that no topic can have."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidInput(
            f"topic {name} cannot have {counted(partitions, 'partition')}; the number is between 1 "
            f"and {PARTITIONS_MAX}"
        )


@dataclass(slots=True)
class _Marker:
    """A transaction marker whose outcome was unknown."""

    index: int
    data: bytes
    applied: Applied | None = None
    """Its result, once it is known to be in the log."""


class Sequencer:
    """Appends to the intake log and folds it. Thread-safe. Without `checkpoints` the log is read from its
    beginning.
    """

    def __init__(
        self,
        log: Log,
        ids: IdSource,
        clock: Clock,
        settings: LogSettings,
        checkpoints: CheckpointStore | None = None,
    ) -> None:
        self._ids = ids
        self._clock = clock
        self._settings = settings
        self._read = FoldedLog(log, checkpoints, settings, self._applied)
        self._appender = Appender(log, self._read, ids, clock, settings)
        self._lock = threading.Lock()
        # By producer id and epoch.
        self._markers: dict[tuple[int, int], _Marker] = {}
        self._on_advance: tuple[Callable[[], None], ...] = ()

    @property
    def fold(self) -> IntakeFold:
        """The state as of the last entry read; only the sequencer applies entries to it."""
        return self._read.fold

    _fold = fold

    @property
    def view(self) -> Backlog:
        """The readers' view as of the last entry read; the log is not read."""
        return self._read.backlog

    def on_advance(self, call: Callable[[], None]) -> None:
        """Call `call` after every entry that this process appends or reads.

        It is called in the thread of the append, before other threads can append, so it must not block and
        must not raise.
        """
        self._on_advance = (*self._on_advance, call)

    @property
    def entry_bytes_max(self) -> int:
        """Bytes of the largest entry that the log accepts."""
        return self._settings.entry_bytes_max

    def refresh(self) -> IntakeFold:
        """Read the log up to its present tail; returns the fold."""
        with self._lock:
            self._read.read_on()
            return self._fold

    def backlog(self) -> Backlog:
        """Read the log up to its present tail; returns the readers' view of it, history files included."""
        with self._lock:
            self._read.read_on()
            return self._read.backlog

    def resolve(self) -> None:
        """Resolve an entry of unknown outcome, if there is one, and read the log up to its tail.

        Raises `RetryLater` if the entry cannot be resolved yet.
        """
        with self._lock:
            self._appender.resolve_earlier()
            self._read.read_on()

    @property
    def checkpoint_due(self) -> bool:
        """Whether enough was read since the newest checkpoint that this process knows."""
        return self._read.checkpoint_due

    @property
    def checkpoint_index(self) -> int:
        """Index of the newest checkpoint that this process knows; 0 for none."""
        return self._read.checkpoint_index

    def learn(self, checkpoint: Checkpoint, read_to: int) -> None:
        """Use a new checkpoint: drop what its history files hold. Nothing below entry `read_to` is due any
        more.
        """
        with self._lock:
            # The checkpoint may come from a process that has read further than this one.
            if checkpoint.index > self._fold.next_index:
                self._read.read_on()
            self._read.learn(checkpoint, read_to)

    def bind_cluster(self, cluster_id: str) -> None:
        """Append the cluster id of the data folder, unless the log has it already.

        Raises `ConfigInvalid` if the log belongs to another cluster.
        """
        with self._lock:
            self._read.read_on()
            if self._fold.cluster_id is None:
                self._appender.append(
                    pb.IntakeEntry(cluster=pb.ClusterBound(cluster_id=bytes.fromhex(cluster_id)))
                )
        # Check the value in the log: another process may have bound it first.
        check_cluster(self._fold, cluster_id)

    def declare_topic(
        self, name: str, partitions: int, *, again: bool = False, mirrored: bool = False
    ) -> TopicState:
        """The topic of that name; it is created if it does not exist, and grows if it has fewer partitions.

        A topic with more partitions is returned as it is, because the number never decreases. `mirrored`: a
        topic with the offsets of an upstream. With 0 partitions its source declares it, and `RetryLater` is
        raised until then.

        The name of a deleted topic is declared only with `again`: a daemon with an old configuration must not
        undo a deletion. Raises `InvalidInput` for a bad name or number of partitions, `ConfigInvalid` if the
        topic was deleted, or if one is mirrored and the other is not.
        """
        check_topic_name(name)
        # The configuration of a mirrored topic says 0, because its upstream decides the number.
        if partitions == 0:
            return self._declared_elsewhere(name)
        _check_partitions(name, partitions)
        with self._lock:
            self._read.read_on()
            # Only after reading to the tail: another process may have declared or deleted the topic.
            if self._is_declarable(name, again=again):
                topic_id = bytes.fromhex(new_topic_id(self._ids))
                declared = pb.TopicDeclared(
                    topic_id=topic_id,
                    name=name,
                    partitions=partitions,
                    created_us=self._clock.now_us(),
                    mirrored=mirrored,
                )
                self._appender.append(
                    pb.IntakeEntry(topic=declared),
                    is_needed=lambda: self._is_declarable(name, again=again),
                    step="topic.append",
                )
            topic = self._fold.topics_by_name.get(name)
            # A topic of the other kind does not grow; the check below refuses it.
            if topic is not None and topic.mirrored == mirrored:
                self._grow(topic, partitions)
                topic = self._fold.topics_by_name.get(name)
            if topic is None:
                raise ConfigInvalid(
                    f"topic {name} was deleted, and only `archiver topics create {name}` makes "
                    "a new one of that name; "
                    "remove it from the configuration, or create it"
                )
        if topic.mirrored != mirrored:
            raise ConfigInvalid(_OTHER_KIND[mirrored].format(name=name))
        return topic

    def grow_topic(self, name: str, partitions: int) -> TopicState:
        """Give an existing topic that many partitions; returns it. Nothing is appended if it has as many.

        It may have more at the end, if another process adds more at the same time. Raises `NotFound` for an
        unknown or deleted topic, and `InvalidInput` for fewer partitions than it has, for more than there can
        be, and for a mirrored topic. Raises `OutcomeUnknown` if the entry may or may not be in the log: then
        call it again.
        """
        _check_partitions(name, partitions)
        with self._lock:
            self._read.read_on()
            topic = self._fold.topics_by_name.get(name)
            if topic is None:
                raise no_topic(name, self._fold.topics_by_name)
            if topic.mirrored:
                raise InvalidInput(
                    f"topic {name} is mirrored: it has the partitions of its topic in Kafka; add them there"
                )
            if partitions < topic.partitions:
                raise InvalidInput(
                    f"topic {name} has {counted(topic.partitions, 'partition')}, and their number is never "
                    f"lowered; give it at least {topic.partitions}"
                )
            self._grow(topic, partitions)
            # By id: another process may have deleted it, and created another one of the name.
            grown = self._fold.topics_by_id.get(topic.topic_id)
            if grown is None:
                raise NotFound(f"topic {name} was deleted while its partitions were added")
            return grown

    def create_topic(self, name: str, partitions: int, configs: Configs = ()) -> TopicState | None:
        """Create a topic, also under the name of a deleted one; None if there is a topic of that name.

        Raises as `declare_topic`, and `OutcomeUnknown` if the entry may or may not be in the log.
        """
        check_topic_name(name)
        _check_partitions(name, partitions)
        topic_id = new_topic_id(self._ids)
        declared = pb.TopicDeclared(
            topic_id=bytes.fromhex(topic_id),
            name=name,
            partitions=partitions,
            created_us=self._clock.now_us(),
            configs=config_entries(configs),
        )
        with self._lock:
            self._read.read_on()
            if self._is_declarable(name, again=True):
                self._appender.append(
                    pb.IntakeEntry(topic=declared),
                    is_needed=lambda: self._is_declarable(name, again=True),
                    step="topic.append",
                )
            # Of two processes that create it at the same time, one has created it.
            return self._fold.topics_by_id.get(topic_id)

    def configure_topic(self, topic_id: TopicId, change: Callable[[Configs], Configs]) -> TopicState:
        """Give a topic other configs; returns it. Nothing is appended if `change` changes nothing.

        `change` makes the new configs from the present ones. It is called again if another process changes
        them at the same time. Raises `NotFound` for an unknown or deleted topic, what `change` raises, and
        `OutcomeUnknown` if the entry may or may not be in the log: then call it again.
        """
        with self._lock:
            self._read.read_on()
            for _ in range(RACES_PER_ATTEMPT):
                topic = self._fold.topics_by_id.get(topic_id)
                if topic is None:
                    raise NotFound(f"there is no topic with the id {topic_id}")
                before, configs = topic.configs, change(topic.configs)
                if configs == before:
                    return topic
                self._append_configs(topic_id, before, configs)
                known = self._fold.topics_by_id.get(topic_id)
                if known is not None and known.configs == configs:
                    return known
        raise RetryLater("the configs of the topic are changed by other processes all the time; try again")

    def _append_configs(self, topic_id: TopicId, before: Configs, configs: Configs) -> None:
        """Append other configs, unless they are no longer those of `before`; the lock is held."""
        body = pb.TopicConfigured(topic_id=bytes.fromhex(topic_id), configs=config_entries(configs))

        def is_needed() -> bool:
            known = self._fold.topics_by_id.get(topic_id)
            return known is not None and known.configs == before

        self._appender.append(pb.IntakeEntry(configured=body), is_needed, step="topic_configured.append")

    def _declared_elsewhere(self, name: str) -> TopicState:
        """A mirrored topic. Only its source can declare it, because only the source knows the upstream's
        number of partitions.
        """
        with self._lock:
            self._read.read_on()
        topic = self._fold.topics_by_name.get(name)
        if topic is None:
            raise RetryLater(
                f"topic {name} is not mirrored yet; its Kafka source declares it when it has found it"
            )
        if not topic.mirrored:
            raise ConfigInvalid(_OTHER_KIND[True].format(name=name))
        return topic

    def _grow(self, topic: TopicState, partitions: int) -> None:
        """Give a topic more partitions, if it has fewer; the lock is held."""

        def is_smaller() -> bool:
            # By id: a topic that was created again under the name must not get the partitions of this one.
            known = self._fold.topics_by_id.get(topic.topic_id)
            return known is not None and known.partitions < partitions

        if is_smaller():
            grown = pb.TopicGrown(
                topic_id=bytes.fromhex(topic.topic_id), partitions=partitions, own_offsets=not topic.mirrored
            )
            self._appender.append(pb.IntakeEntry(grown=grown), is_smaller, step="topic_grown.append")

    def _is_declarable(self, name: str, *, again: bool) -> bool:
        return name not in self._fold.topics_by_name and (again or self._fold.deleted_named(name) is None)

    def delete_topic(self, topic_id: TopicId) -> None:
        """Delete a topic: from the entry on, nothing of its id counts. Nothing is appended if it is deleted
        already.

        Raises `NotFound` if there never was such a topic. Raises `OutcomeUnknown` if the entry may or may not
        be in the log: then call it again.
        """
        deleted = pb.TopicDeleted(topic_id=bytes.fromhex(topic_id), time_us=self._clock.now_us())
        with self._lock:
            self._read.read_on()
            if topic_id not in self._fold.topics_by_id and topic_id not in self._fold.deleted_topics:
                raise NotFound(f"there is no topic with the id {topic_id}")
            if topic_id in self._fold.topics_by_id:
                self._appender.append(
                    pb.IntakeEntry(deleted=deleted),
                    is_needed=lambda: topic_id in self._fold.topics_by_id,
                    step="topic_deleted.append",
                )

    def delete_records(self, topic_id: TopicId, below: Mapping[int, int]) -> None:
        """Delete the records of partitions below these offsets: no reader gets them any more. Nothing is
        appended where it is so already.

        Raises `NotFound` for an unknown or deleted topic or partition, and `InvalidInput` for an offset
        beyond the end of its partition; nothing is appended then. Raises `OutcomeUnknown` if an entry may or
        may not be in the log: then call it again.
        """
        with self._lock:
            self._read.read_on()
            for partition, offset in below.items():
                end = self._fold.next_offset((topic_id, partition))
                if not 0 <= offset <= end:
                    raise InvalidInput(f"partition {partition} has the offsets below {end}, not {offset}")
            # In parts, because an entry has a largest size.
            while due := self._undeleted(topic_id, below):
                part = dict(islice(due.items(), DELETIONS_PER_ENTRY))
                parts = [pb.DeletedBelow(partition=number, below=offset) for number, offset in part.items()]
                deleted = pb.RecordsDeleted(topic_id=bytes.fromhex(topic_id), partitions=parts)
                self._appender.append(
                    pb.IntakeEntry(records_deleted=deleted),
                    # Not if other processes deleted as much.
                    is_needed=partial(self._undeleted, topic_id, part),
                )

    def _undeleted(self, topic_id: TopicId, below: Mapping[int, int]) -> dict[int, int]:
        """Those of the offsets below which records are left, ascending by partition; none of a topic that was
        deleted in between.
        """
        if topic_id not in self._fold.topics_by_id:
            return {}
        return {
            partition: offset
            for partition, offset in sorted(below.items())
            if offset > self._fold.partition((topic_id, partition)).deleted_below
        }

    def append_file(
        self, key: str, size: int, footer_sha256: bytes, segments: Sequence[PlacedSegment]
    ) -> tuple[Landed, ...]:
        """Append the entry that names an uploaded intake file; returns the result of each segment, in order.
        From here on the landed records exist, at the returned offsets.

        Raises `OutcomeUnknown` if the entry may or may not be in the log; after any other `ArchiverError` it
        certainly is not.
        """
        # No read of the log first: the fold decides about each segment when the entry is applied.
        file = file_entry(key, size, footer_sha256, segments)
        with self._lock:
            return self._appender.append(pb.IntakeEntry(file=file)).landed

    def append_moves(
        self,
        moves: Sequence[Move],
        key: str = "",
        size: int = 0,
        footer_sha256: bytes = b"",
        segments: Sequence[PlacedSegment] = (),
        is_needed: Callable[[], bool] = lambda: True,
    ) -> Refusal | None:
        """Append an entry that moves positions of a source, and names the uploaded file with the records.

        Without segments there is no file. Returns None, or why the entry does not count. Gives up without an
        error as soon as `is_needed` is false. Raises as `append_file`, and `InvalidInput` for an entry that
        no reader of the log would accept; it is never appended.
        """
        file = file_entry(key, size, footer_sha256, segments, moves)

        def check_needed() -> bool:
            # Checked after every read of the log, because the topics may change until the append. A
            # contradiction in the log would stop every reader.
            if wrong := contradicts_topics(file, self._fold.topics_by_id):
                raise InvalidInput(f"nothing was appended, because the entry {wrong}")
            return is_needed()

        with self._lock:
            return self._appender.append(pb.IntakeEntry(file=file), is_needed=check_needed).refusal

    def forget_items(self, source: str, items: Sequence[str], seen: int) -> None:
        """Forget finished items that were missing when `seen` log entries were known; see
        `intake.log.source_positions`.
        """
        forgotten = pb.SourceForgotten(source=source, items=items, seen=seen)
        with self._lock:
            self._appender.append(pb.IntakeEntry(source_forgotten=forgotten))

    def open_producer(self, transactional_id: str, transaction_timeout_us: int) -> tuple[int, int]:
        """Open a producer; returns its id and its epoch.

        With a transactional id (else ""), the earlier epoch is fenced and its open transaction aborted.
        Raises `OutcomeUnknown` if the entry may or may not be in the log: then open it again; an unused
        producer is forgotten later.
        """
        opened = pb.ProducerOpened(
            transactional_id=transactional_id,
            transaction_timeout_us=transaction_timeout_us,
            time_us=self._clock.now_us(),
        )
        with self._lock:
            self._read.read_on()
            # The producer id is the index of this entry, so it is only known after the append.
            producer = self._appender.append(pb.IntakeEntry(producer=opened)).producer
        assert producer is not None, "the fold names every producer that is opened"
        return producer

    def assign_producer_ids(self) -> range:
        """Ids for producers without a transactional id, which the log knows from their first batch on.

        One entry for all of them, so a client that asks for ids without end adds nothing to the log. Raises
        as `open_producer`.
        """
        index, _ = self.open_producer("", 0)
        return ids_of_opening(index, self._ids.random_bytes(8))

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool) -> Refusal | None:
        """Commit or abort the producer's open transaction; None, or why the marker changed nothing.

        Raises `OutcomeUnknown` if the marker may or may not be in the log. The same call again resolves it:
        if that marker is in the log, its result is returned, even if the producer has moved on; else another
        marker is appended.
        """
        ended = pb.TransactionEnded(
            producer_id=producer_id, epoch=epoch, commit=commit, time_us=self._clock.now_us()
        )
        with self._lock:
            # The earlier call may have succeeded. Its marker is resolved first, so that the caller gets the
            # true result.
            earlier = self._markers.get((producer_id, epoch))
            if earlier is not None:
                self._resolve_marker()
            self._read.read_on()
            if (
                earlier is not None
                and earlier.applied is None
                # None: the id is no longer kept, so the marker may be in the log.
                and self._appender.is_there(earlier.index, earlier.data) is not False
            ):
                raise OutcomeUnknown(
                    "the log was trimmed before this process read the result of the transaction's "
                    f"marker; open producer {producer_id} "
                    "again and check what is committed"
                )
            self._markers.pop((producer_id, epoch), None)
            if earlier is not None and earlier.applied is not None:
                return earlier.applied.refusal
            try:
                return self._appender.append(pb.IntakeEntry(transaction=ended)).refusal
            except OutcomeUnknown:
                assert self._appender.last_unknown is not None, "an entry of unknown outcome is kept"
                # Kept until its result is read, which may happen in any later read of the log.
                self._markers[producer_id, epoch] = _Marker(*self._appender.last_unknown)
                raise

    def _applied(self, index: int, data: bytes, applied: Applied) -> None:
        """Called for every entry read or appended: keep the result of a marker of unknown outcome."""
        for call in self._on_advance:
            call()
        for marker in self._markers.values():
            # The whole entry is compared: another process may have appended at this index.
            if (marker.index, marker.data) == (index, data):
                marker.applied = applied

    def _resolve_marker(self) -> None:
        try:
            self._appender.resolve_earlier()
        except RetryLater as error:
            raise OutcomeUnknown(
                f"the end of the transaction is still of unknown outcome: {error}"
            ) from error

    def end_overdue(self, now_us: int) -> list[OpenTransaction]:
        """Abort the transactions whose time is over, fence their producers, and return the transactions."""
        with self._lock:
            self._read.read_on()
            overdue = [one for one in self._fold.transactions if one.deadline_us <= now_us]
            for transaction in overdue:
                self._end_overdue(transaction, now_us)
        return overdue

    def _end_overdue(self, transaction: OpenTransaction, now_us: int) -> None:
        """Append nothing if the transaction has ended already: the producer may have begun its next one."""
        ended = pb.TransactionEnded(
            producer_id=transaction.producer_id,
            epoch=transaction.epoch,
            commit=False,
            fence=True,
            time_us=now_us,
        )
        self._appender.append(
            pb.IntakeEntry(transaction=ended),
            is_needed=lambda: any(
                # The start time distinguishes this transaction from a later one of the same producer.
                (one.producer_id, one.started_us) == (transaction.producer_id, transaction.started_us)
                for one in self._fold.transactions
            ),
        )

    def forget_producers(self, idle_since_us: int, known_max: int, used_since_us: int) -> int:
        """Forget the producers last used before that, and the least recently used of more than `known_max`,
        but none used since `used_since_us`; returns their number.

        The barrier comes first. It excludes files with batches that clients sent while a forgotten producer
        was in use (decision 0085). Nothing is appended if there are no such producers.
        """
        with self._lock:
            self._read.read_on()
            producers, busy = self._fold.producers, self._fold.transactions.busy
            before = len(producers)
            time_us = producers.forgetting_time(idle_since_us, known_max, busy, used_since_us)
            # An entry that forgets no producer would only make the log longer.
            if time_us is not None:
                kept_us = max(0, self._clock.now_us() - used_since_us)
                self._raise_barrier((time_us + kept_us // 2) // 1000)
                self._appender.append(pb.IntakeEntry(forgotten=pb.ProducersForgotten(idle_since_us=time_us)))
            return before - len(self._fold.producers)

    def raise_barrier(self, written_before_ms: int) -> None:
        """Exclude files written before that time from the log from now on. Nothing is appended if a later
        barrier exists.
        """
        with self._lock:
            self._read.read_on()
            self._raise_barrier(written_before_ms)

    def _raise_barrier(self, written_before_ms: int) -> None:
        # The newest barrier holds, so an earlier time would change nothing.
        if written_before_ms > self._fold.barrier_ms:
            self._appender.append(pb.IntakeEntry(barrier=pb.Barrier(written_before_ms=written_before_ms)))

    def append_made(
        self,
        make: Callable[[IntakeFold], pb.IntakeEntry | None],
        holds: Callable[[IntakeFold], bool] = lambda _: True,
        *,
        step: str = "",
    ) -> Applied | None:
        """Read the log to its tail, and append what `make` makes of the fold, if anything.

        An earlier entry of unknown outcome is resolved first. Gives up without an error if `holds` is false
        for the fold at the entry's index. `step` is that of `Appender.append`. Raises as `append_file`, and
        what `make` raises.
        """
        with self._lock:
            self._appender.resolve_earlier()
            self._read.read_on()
            entry = make(self._fold)
            return (
                None if entry is None else self._appender.append(entry, lambda: holds(self._fold), step=step)
            )

    def tick(self, now_us: int) -> int:
        """Guarantee that no later entry has an ingest time before `now_us`; returns the newest tick, which
        may be later.
        """
        with self._lock:
            self._read.read_on()
            # A clock that stepped back must not lengthen the log with ticks that change nothing.
            if now_us > self._fold.tick_us:
                self._appender.append(pb.IntakeEntry(tick=pb.Tick(time_us=now_us)), step="tick.append")
            return self._fold.tick_us


def check_cluster(fold: IntakeFold, cluster_id: str) -> None:
    """Raise `ConfigInvalid` if the log belongs to another cluster's data folder."""
    if fold.cluster_id not in (None, cluster_id):
        raise ConfigInvalid(
            f"the metadata store belongs to the data folder of cluster id {fold.cluster_id}, but "
            f"data.uri has {cluster_id}; "
            "correct metadata or data.uri: the two belong together"
        )


def check_topic_name(name: str) -> None:
    """Apply Kafka's rule for topic names; raises `InvalidInput`."""
    # Kafka excludes '.' and '..' because its brokers use topic names as folder names.
    if not _TOPIC_NAME.fullmatch(name) or len(name) > TOPIC_NAME_BYTES_MAX or name in (".", ".."):
        raise InvalidInput(
            f"{name!r} is not a topic name; a name has 1 to {TOPIC_NAME_BYTES_MAX} letters, digits, dots, "
            "underscores or hyphens "
            "and is neither '.' nor '..'"
        )

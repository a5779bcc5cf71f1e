"""The true state: the shared log and object store, every entry there ever was, and the invariants that are
cheap enough to check at once.

Nothing here is trimmed or crashes, so it is what the processes are judged by. Must never be read by an actor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from archiver.log.store import Appended
from archiver.objects.paths import CHECKPOINT_PREFIX, HISTORY_PREFIX
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.clock import Clock
from archiver.runtime.ids import TopicId, TopicPartition
from intake.log.fold import Applied, IntakeFold
from tests.simulation.schedule import Violation
from tests.support.log.memory_log import MemoryLog
from tests.support.objects.memory_store import MemoryObjectStore

DOOMED = "doomed"
"""A topic that is deleted now and then, and declared again; its own records are not judged."""


class WatchedLog(MemoryLog):
    """The intake log; the ground checks every entry that comes in."""

    def __init__(self, entry_bytes_max: int, look: Callable[[int, bytes], None]) -> None:
        super().__init__("intake", entry_bytes_max)
        self._look = look

    def append(self, index: int, data: bytes) -> Appended:
        """As the log in memory."""
        tail = self.tail()
        outcome = super().append(index, data)
        if self.tail() > tail:
            self._look(index, data)
        return outcome


class Ground:
    """The world below the processes."""

    def __init__(self, clock: Clock, entry_bytes_max: int) -> None:
        self.log = WatchedLog(entry_bytes_max, self._look)
        self.control = MemoryLog("control", entry_bytes_max)
        self.objects = MemoryObjectStore(clock)
        self.entries: list[bytes] = []
        """Every entry of the intake log there ever was; the place is its index."""
        self.fold = IntakeFold()
        """Of all entries, without checkpoints."""
        self.watermarks: dict[TopicPartition, int] = {}
        """Everything below is archived, and is not read here again."""
        self.strikes: Callable[[], bool] = lambda: False
        """Whether a bit goes wrong now in what the log was moved to."""
        self.watchers: list[Callable[[int, pb.IntakeEntry, Applied], None]] = []
        """Called with every entry and its result, once it is applied."""
        self._rotten = False
        self.met: Counter[str] = Counter()
        """What happened how often: a run in which nothing happens proves nothing."""
        self._stable: dict[TopicPartition, int] = {}
        self._tick_us = 0
        self._epochs: dict[int, int] = {}
        self._barrier_ms = 0
        self._gone: set[TopicId] = set()

    def create(self, key: str, data: bytes) -> None:
        """The store's create."""
        if key.startswith((CHECKPOINT_PREFIX, HISTORY_PREFIX)) and self.strikes():
            self.met["stored damaged"] += 1
            data = _damaged(data)
        self.objects.create(key, data)

    def delete(self, key: str) -> None:
        """The store's delete; the object must not be needed any more."""
        if key in self.named_keys():
            raise Violation("no file that is needed goes", f"{key} was deleted, and the log names it")
        if self.objects.info(key) is not None:
            self.met[f"deleted {key.partition('/')[0]}"] += 1
        self.objects.delete(key)

    def trim(self, below: int) -> None:
        """The log's trim."""
        self.met["trimmed"] += below > self.log.floor()
        self.log.trim(below)
        newest = [info.key for info in self.objects.list(CHECKPOINT_PREFIX)][-1:]
        if newest and not self._rotten and self.strikes():
            self._rotten = True
            self.met["damaged after the trim"] += 1
            data = self.objects.read(newest[0])
            self.objects.delete(newest[0])
            self.objects.create(newest[0], _damaged(data))

    def _look(self, index: int, data: bytes) -> None:
        if index != len(self.entries):
            raise Violation(
                "the log is dense", f"an entry came in at {index}, the log ended at {len(self.entries)}"
            )
        self.entries.append(data)
        self._check(index, pb.IntakeEntry.FromString(data), self.fold.apply(index, data))

    def named_keys(self) -> set[str]:
        """Keys of the intake files in which there are records that count and are not archived."""
        tps = [
            (topic.topic_id, number)
            for topic in self.fold.topics_by_id.values()
            for number in range(topic.partitions)
        ]
        return {
            segment.file.key for tp in tps for segment in self.fold.segments(tp, self.watermarks.get(tp, 0))
        }

    def partitions(self) -> list[TopicPartition]:
        """Every topic partition, in order of declaration, but for those of the doomed topic."""
        topics = [topic for topic in self.fold.topics_by_id.values() if topic.name != DOOMED]
        return [(topic.topic_id, number) for topic in topics for number in range(topic.partitions)]

    def _check(self, index: int, entry: pb.IntakeEntry, applied: Applied) -> None:
        self._count(entry, applied)
        self._check_files(index, entry, applied)
        self._check_epochs(index, entry, applied)
        self._check_gone(index, entry, applied)
        for watcher in self.watchers:
            watcher(index, entry, applied)
        self._tick_us = max(self._tick_us, entry.tick.time_us)
        self._barrier_ms = max(self._barrier_ms, entry.barrier.written_before_ms)
        for tp in self.partitions():
            stable = self.fold.stable_offset(tp)
            if stable < self._stable.get(tp, 0):
                raise Violation(
                    "the stable offset never goes back",
                    f"of {tp} from {self._stable[tp]} to {stable} at entry {index}",
                )
            self._stable[tp] = stable

    def _check_gone(self, index: int, entry: pb.IntakeEntry, applied: Applied) -> None:
        """Nothing lands in a topic that was deleted, and no reader sees it."""
        if entry.WhichOneof("body") == "deleted":
            self._gone.add(TopicId(entry.deleted.topic_id.hex()))
        late = [
            landed.tp
            for landed in applied.landed
            if landed.segment is not None and landed.tp[0] in self._gone
        ]
        if late or self._gone & self.fold.topics_by_id.keys():
            raise Violation("a deleted topic takes nothing", f"entry {index} brings records to {late}")

    def _count(self, entry: pb.IntakeEntry, applied: Applied) -> None:
        body = entry.WhichOneof("body")
        if body == "transaction":
            ended = entry.transaction
            body = "timed out" if ended.fence else "committed" if ended.commit else "aborted"
        self.met[f"{body}{' refused: ' + applied.refusal if applied.refusal else ''}"] += 1
        segments = [segment for group in entry.file.topics for segment in group.segments]
        for landed, segment in zip(applied.landed, segments, strict=True):
            if landed.segment is not None and segment.producer.epoch and not segment.producer.transactional:
                self.met["segment of a raised epoch"] += 1
            if landed.refusal is not None:
                self.met[f"segment refused: {landed.refusal}"] += 1
            elif landed.segment is None:
                self.met["segment repeated"] += 1
                self.met["segment repeated in several runs"] += len(landed.runs) > 1

    def _check_files(self, index: int, entry: pb.IntakeEntry, applied: Applied) -> None:
        segments = [landed.segment for landed in applied.landed if landed.segment is not None]
        if segments and self.objects.info(entry.file.key) is None:
            raise Violation(
                "a named file exists", f"entry {index} names {entry.file.key}, which is not there"
            )
        for segment in segments:
            if segment.floor_us < self._tick_us:
                raise Violation(
                    "ticks hold",
                    f"entry {index} has records from {segment.floor_us} on, after a tick at {self._tick_us}",
                )
            written_ms = int(entry.file.key.rpartition("/")[2].partition("-")[0])
            if written_ms < self._barrier_ms:
                raise Violation(
                    "barriers hold",
                    f"entry {index} brings a file of {written_ms}, after a barrier at {self._barrier_ms}",
                )

    def _check_epochs(self, index: int, entry: pb.IntakeEntry, applied: Applied) -> None:
        """Nothing of an old epoch counts once a newer one was opened, or the epoch was closed by a
        time-out."""
        if applied.producer is not None:
            self._epochs[applied.producer[0]] = applied.producer[1]
        ended = entry.transaction
        if entry.WhichOneof("body") == "transaction" and applied.refusal is None:
            if ended.epoch < self._epochs[ended.producer_id]:
                raise Violation(
                    "an old epoch touches nothing",
                    f"entry {index} ends a transaction with epoch {ended.epoch}",
                )
            if ended.fence:
                self._epochs[ended.producer_id] = ended.epoch + 1
        pending = entry.offsets_pending
        is_held = entry.WhichOneof("body") == "offsets_pending" and applied.commits == (None,)
        if is_held and pending.epoch < self._epochs[pending.producer_id]:
            raise Violation(
                "an old epoch touches nothing", f"entry {index} holds offsets of epoch {pending.epoch}"
            )
        stamps = [segment.producer for group in entry.file.topics for segment in group.segments]
        for landed, stamp in zip(applied.landed, stamps, strict=True):
            if (
                landed.segment is not None
                and stamp.ByteSize()
                and stamp.epoch < self._epochs.get(stamp.producer_id, 0)
            ):
                raise Violation(
                    "an old epoch touches nothing", f"entry {index} has records of epoch {stamp.epoch}"
                )


def _damaged(data: bytes) -> bytes:
    """One bit is wrong."""
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]

"""One intake log and its object store, shared by processes that are played by objects: each with a sequencer
and a checkpointer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from archiver.config.groups import LogSettings
from archiver.log.lease import Lease
from archiver.log.store import Log
from archiver.objects.local import LocalObjectStore
from archiver.runtime.clock import ManualClock
from archiver.runtime.ids import SeededIds, TopicId
from intake.format import PlacedSegment
from intake.log.backlog import Backlog
from intake.log.checkpoint import CheckpointStore
from intake.log.checkpointer import Checkpointer
from intake.log.fold import IntakeFold, Landed
from intake.log.sequencer import Sequencer
from intake.producers import Stamp
from tests.support.log.faulty_log import FaultyLog
from tests.support.log.memory_log import MemoryLogStore
from tests.support.objects.faulty_objects import FaultyObjectStore

NOW_US = 1_767_323_045_000_000
SPAN = 10


class Played:
    """A process."""

    def __init__(self, scene: Scene, entries: int, lease: Lease | None = None) -> None:
        self.scene = scene
        scene.seed += 1
        settings = LogSettings(append_attempts_max=3, checkpoint_entries=entries)
        store = CheckpointStore(scene.objects)
        self.sequencer = Sequencer(scene.log, SeededIds(scene.seed), scene.clock, settings, store)
        self.checkpointer = Checkpointer(scene.log, store, self.sequencer, settings, lease)

    def append(
        self, topic_id: TopicId, rows: int = 1, partition: int = 0, stamp: Stamp | None = None, key: str = ""
    ) -> Landed:
        """One file with one segment."""
        number = self.scene.files = self.scene.files + 1
        segment = PlacedSegment(topic_id, partition, 0, 0, rows, 10 * rows, NOW_US + number, stamp)
        key = key or f"intake/2026-01-02/03/{NOW_US // 1000 + number:013}-{number:026}.parquet"
        return self.sequencer.append_file(key, 100 + number, number.to_bytes(32, "big"), [segment])[0]

    def fill(self, topic_id: TopicId, files: int, partitions: int = 2) -> None:
        """Many files."""
        for number in range(files):
            self.append(topic_id, 1 + number % 3, number % partitions)


class Scene:
    """What processes share. `kept` is a log that has the same entries and is never trimmed."""

    def __init__(self, root: Path, log: Log | None = None) -> None:
        self.seed = 0
        self.files = 0
        self.log = FaultyLog(log or MemoryLogStore(512 * 1024).log("intake"))
        self.objects = FaultyObjectStore(LocalObjectStore(root / "data"))
        self.clock = ManualClock(NOW_US)
        self.store = CheckpointStore(self.objects)
        self._kept: list[bytes] = []

    def process(self, entries: int = SPAN, lease: Lease | None = None) -> Played:
        """A new one."""
        return Played(self, entries, lease)

    def keep(self) -> None:
        """Note the entries there are, before something trims them."""
        for entry in self.log.read(max(len(self._kept), self.log.floor()), 1_000_000):
            assert entry.index == len(self._kept), "an entry was trimmed before it was noted"
            self._kept.append(entry.data)

    def whole(self) -> IntakeFold:
        """The fold of every entry that was noted."""
        fold = IntakeFold()
        for index, data in enumerate(self._kept):
            fold.apply(index, data)
        return fold

    def check(self, backlog: Backlog) -> None:
        """A view has everything, of every partition, that the untrimmed log has."""
        self.keep()
        whole = self.whole()
        bare = Backlog(whole)
        assert backlog.next_index == whole.next_index
        assert list(backlog.fold.producers) == list(whole.producers)
        assert list(backlog.fold.transactions) == list(whole.transactions)
        for tp in whole.state().partitions:
            assert backlog.segments(tp) == bare.segments(tp)
            assert backlog.gaps(tp, 0, 1 << 40) == bare.gaps(tp, 0, 1 << 40)
            assert backlog.summary(tp, 0) == bare.summary(tp, 0)

    def rewrite(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Alter a stored object."""
        data = self.objects.read(key)
        self.objects.delete(key)
        self.objects.create(key, change(data))


def flipped(data: bytes) -> bytes:
    """One wrong bit in the middle."""
    altered = bytearray(data)
    altered[len(data) // 2] ^= 4
    return bytes(altered)

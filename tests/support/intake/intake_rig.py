"""A writer on a real SQLite log and a real local store, and functions that read what it did from the log
alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from archiver.config.groups import IntakeSettings, LogSettings
from archiver.log.sqlite import SqliteLogStore
from archiver.objects.local import LocalObjectStore
from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.ids import SystemIds
from intake.log.fold import IntakeFold, TopicState
from intake.log.sequencer import Sequencer
from intake.read.reader import IntakeReader
from intake.write.writer import IntakeWriter
from tests.support.log.faulty_log import FaultyLog
from tests.support.objects.faulty_objects import FaultyObjectStore

WAIT_S = 30.0
Stored = dict[str, Any]


class IntakeRig:
    """One process's intake below `root`; several may stand on the same root."""

    def __init__(
        self, root: Path, log_settings: LogSettings | None = None, clock: Clock | None = None
    ) -> None:
        self.log_settings = log_settings or LogSettings(append_attempts_max=3, append_backoff=0.001)
        self.clock = clock or SystemClock()
        self._logs = SqliteLogStore(root / "metadata.db", 30, self.log_settings.entry_bytes_max)
        self.log = FaultyLog(self._logs.log("intake"))
        self.objects = FaultyObjectStore(LocalObjectStore(root / "data"))
        self.sequencer = Sequencer(self.log, SystemIds(), self.clock, self.log_settings)

    def topic(self, name: str, partitions: int) -> TopicState:
        """Declare a topic."""
        return self.sequencer.declare_topic(name, partitions)

    def writer(self, **settings: object) -> IntakeWriter:
        """A writer that flushes soon, unless the settings say otherwise."""
        chosen = IntakeSettings.model_validate({"delay_max": 0.01, "close_timeout": WAIT_S, **settings})
        return IntakeWriter(self.objects, self.sequencer, chosen, self.clock, SystemIds())

    def reread(self) -> IntakeFold:
        """The log, folded from its beginning."""
        return Sequencer(self.log, SystemIds(), self.clock, self.log_settings).refresh()

    def stored(self, topic: str, partition: int) -> list[Stored]:
        """Every record of a partition in offset order, as the log and the files have it."""
        return list(self._rows(topic, partition))

    def _rows(self, topic: str, partition: int) -> Iterator[Stored]:
        fold = self.reread()
        expected = 0
        for segment in fold.segments((fold.topics_by_name[topic].topic_id, partition)):
            for _, batch in IntakeReader(self.objects).read(segment.file, [segment]):
                assert segment.base == expected
                rows: list[Stored] = batch.to_pylist()
                for row in rows:
                    yield {**row, "offset": expected}
                    expected += 1

    def values(self, topic: str, partition: int) -> list[bytes | None]:
        """Their values; the place in the list is the offset."""
        return [row["value"] for row in self.stored(topic, partition)]

    def intake_keys(self) -> list[str]:
        """Keys of all intake files, named by the log or not."""
        return [info.key for info in self.objects.list("intake/")]

    def close(self) -> None:
        """Close the log."""
        self._logs.close()

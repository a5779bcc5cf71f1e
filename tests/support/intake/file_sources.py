"""A folder of files, a log, an object store, and processes that ingest the files; the log is read without
asking them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.config.daemon import FileSourceSettings
from archiver.config.groups import IntakeSettings, LogSettings
from archiver.log.store import Log
from archiver.objects.store import ObjectStore
from archiver.runtime.clock import Clock, SystemClock
from archiver.runtime.ids import SeededIds
from intake.log.backlog import Backlog
from intake.log.checkpoint import CheckpointStore
from intake.log.checkpointer import Checkpointer
from intake.log.fold import IntakeFold
from intake.log.sequencer import Sequencer
from intake.read.reader import IntakeReader
from intake.sources.files.pump import FileSources
from intake.sources.files.source import FilesState
from tests.support.log.faulty_log import FaultyLog
from tests.support.log.memory_log import MemoryLog
from tests.support.objects.faulty_objects import FaultyObjectStore
from tests.support.objects.memory_store import MemoryObjectStore

TOPIC = "t"
FORMATS = ("jsonl", "delimited", "parquet")
STOP_S = 30.0
_SEEDS = count(10**6, 1000)
"""Of the processes that live here; others on the same log have smaller ones, their ids."""


class Inbox:
    """What the processes share."""

    def __init__(
        self,
        root: Path,
        log: Log | None = None,
        objects: ObjectStore | None = None,
        first_seed: int | None = None,
    ) -> None:
        self.folder = root / "in"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.clock: Clock = SystemClock()
        self.log = FaultyLog(log or MemoryLog("intake", 512 * 1024))
        self.objects = FaultyObjectStore(objects or MemoryObjectStore())
        self._processes = next(_SEEDS) if first_seed is None else first_seed

    def put(self, name: str, data: bytes) -> Path:
        """A file, under its name at once."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_name(f".{path.name}")
        made.write_bytes(data)
        return made.rename(path)

    def process(self, form: str = "jsonl", glob: str = "*", **chosen: Any) -> Taker:
        """Another process; `chosen` are settings of source, intake and log by their names, and
        `partitions`."""
        self._processes += 1
        return Taker(self, form, glob, self._processes, chosen)

    def backlog(self) -> Backlog:
        """The log as a process reads it that has just started."""
        return Sequencer(
            self.log, SeededIds(0), self.clock, LogSettings(), CheckpointStore(self.objects)
        ).backlog()

    def fold(self) -> IntakeFold:
        """The same without history files."""
        return self.backlog().fold

    def values(self, partition: int = 0, topic: str = TOPIC) -> list[bytes | None]:
        """The values of a partition, in order of offset, which must be dense."""
        backlog = self.backlog()
        reader = IntakeReader(self.objects)
        found: list[bytes | None] = []
        for segment in backlog.segments((backlog.fold.topics_by_name[topic].topic_id, partition)):
            assert segment.base == len(found)
            for _, batch in reader.read(segment.file, [segment]):
                found.extend(batch.column("value").to_pylist())
        return found


class Taker:
    """One process: its sequencer and its sources."""

    def __init__(self, inbox: Inbox, form: str, glob: str, seed: int, chosen: dict[str, Any]) -> None:
        log_settings = LogSettings.model_validate(
            {"append_attempts_max": 2, "append_backoff": 0.001, **_of(LogSettings, chosen)}
        )
        intake = IntakeSettings.model_validate(_of(IntakeSettings, chosen))
        source = {
            "glob": f"{inbox.folder}/{glob}",
            "topic": TOPIC,
            "format": form,
            "settle": 0,
            **_of(FileSourceSettings, chosen),
        }
        self.settings = [
            FileSourceSettings.model_validate(source | more) for more in chosen.get("sources", [{}])
        ]
        partitions = chosen.get("partitions", 1)
        objects = inbox.objects
        checkpoints = CheckpointStore(objects)
        self.sequencer = Sequencer(inbox.log, SeededIds(seed), inbox.clock, log_settings, checkpoints)
        self.checkpointer = Checkpointer(inbox.log, checkpoints, self.sequencer, log_settings)
        self.sources = FileSources(
            self.settings,
            {one.topic: partitions for one in self.settings},
            intake,
            self.sequencer,
            objects,
            inbox.clock,
            SeededIds(seed + 1000),
            chosen.get("interval_s", 0.01),
            chosen.get("prepare", lambda: None),
        )

    def look(self, times: int = 1) -> FilesState:
        """Poll so many times; what the first source says then."""
        for _ in range(times):
            self.sources.poll()
        return self.state

    @property
    def state(self) -> FilesState:
        """Of the first source."""
        return self.sources.state()[0]


def _of(group: type[Any], chosen: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in chosen.items() if name in group.model_fields}


def file_of(values: Sequence[bytes], form: str) -> bytes:
    """A file with those values."""
    if form == "jsonl":
        return b"".join(json.dumps({"value": value.decode("latin-1")}).encode() + b"\n" for value in values)
    if form == "delimited":
        return b"".join(varint(len(value)) + value for value in values)
    sink = io.BytesIO()
    pq.write_table(pa.table({"value": pa.array(values, pa.binary())}), sink, row_group_size=3)
    return sink.getvalue()


def varint(number: int) -> bytes:
    """As Protobuf writes it."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])


def numbered(name: str, rows: int) -> list[bytes]:
    """Values unlike any others."""
    return [f"{name} {number}".encode() for number in range(rows)]


def until_finished(takers: Sequence[Taker], files: int, wait: Callable[[], object]) -> None:
    """Wait until the log has that many finished files."""
    for _ in range(3000):
        if max(taker.state.finished for taker in takers) >= files:
            return
        wait()
    raise AssertionError(f"not finished: {[taker.state for taker in takers]}")

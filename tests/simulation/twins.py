"""What a simulated process sees of the world: clock, log and object store, each operation a step at which
anything may happen.

A request that changes something is on its way from the moment the process asks: the process may die before
the answer, and the request may still arrive. Promises that reads see the present state (the stores are
linearizable) and that an object or an entry is applied whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa

from archiver.log.store import Appended, Entry, Log
from archiver.objects.store import ObjectInfo
from archiver.runtime.errors import ArchiverError, OutcomeUnknown, RetryLater
from tests.simulation.faults import Fate
from tests.simulation.schedule import Process
from tests.support.objects.memory_store import MemoryObjectStore

_T = TypeVar("_T")


class SimulatedClock:
    """A process's clocks: the wall clock may be wrong, the other is not."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def now_us(self) -> int:
        return self._process.schedule.now_us + self._process.skew_us

    def monotonic_s(self) -> float:
        return (self._process.schedule.now_us - self._process.started_us) / 1e6

    def sleep(self, seconds: float) -> None:
        self._process.sleep(round(seconds * 1e6))


class Requests:
    """How a process's requests fare."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def look(self, what: str, apply: Callable[[], _T]) -> _T:
        """A request that changes nothing."""
        self._process.step(what)
        schedule = self._process.schedule
        if schedule.fate(self._process) is Fate.REFUSED or self._process.cut_until_us > schedule.now_us:
            schedule.note(self._process.name, "refused")
            raise RetryLater(f"{what} was refused by the simulation")
        return apply()

    def change(self, what: str, apply: Callable[[], _T]) -> _T:
        """A request that changes something."""
        process, schedule = self._process, self._process.schedule
        process.sent = apply
        process.step(what)
        fate = schedule.fate(process)
        if fate is not Fate.FINE:
            schedule.note(process.name, fate.value)
        process.sent = None
        if fate is Fate.REFUSED:
            raise RetryLater(f"{what} was refused by the simulation")
        if fate is Fate.LATE:
            schedule.send_late(what, apply)
        if fate in (Fate.LATE, Fate.DROPPED):
            raise OutcomeUnknown(f"nobody answered {what}")
        if fate is Fate.TWICE:
            schedule.send_late(f"again {what}", apply)
        try:
            result = apply()
        except ArchiverError as error:
            if fate is Fate.REPLY_LOST:
                raise OutcomeUnknown(f"the answer to {what} was lost") from error
            raise
        process.step("is answered")
        if fate is Fate.REPLY_LOST:
            raise OutcomeUnknown(f"the answer to {what} was lost")
        return result


class SimulatedLog:
    """A shared log as one process sees it; see `archiver.log.store.Log`."""

    def __init__(self, log: Log, process: Process, trim: Callable[[int], None] | None = None) -> None:
        self.name: str = log.name
        self._log = log
        self._trim = trim or log.trim
        self._process = process
        self._requests = Requests(process)

    def append(self, index: int, data: bytes) -> Appended:
        entry = blake2b(data, digest_size=6).hexdigest()
        try:
            outcome = self._requests.change(
                f"appends {entry} at {index} of {self.name}", lambda: self._log.append(index, data)
            )
        except OutcomeUnknown:
            if self._process.schedule.random.random() < 0.5:
                raise
            return Appended.UNKNOWN
        self._process.schedule.note(self._process.name, outcome.value)
        return outcome

    def read(self, start: int, limit: int = 1000) -> list[Entry]:
        return self._requests.look(f"reads from {start}", lambda: self._log.read(start, limit))

    def tail(self) -> int:
        return self._requests.look("asks for the tail", self._log.tail)

    def floor(self) -> int:
        return self._requests.look("asks for the floor", self._log.floor)

    def trim(self, below: int) -> None:
        self._requests.change(f"trims below {below}", lambda: self._trim(below))

    def close(self) -> None:
        """Nothing to release."""


class Stock(Protocol):
    """The shared object store, and who watches what changes in it."""

    @property
    def objects(self) -> MemoryObjectStore:
        """What is there."""

    def create(self, key: str, data: bytes) -> None:
        """The store's create."""

    def delete(self, key: str) -> None:
        """The store's delete."""


class SimulatedObjects:
    """The shared object store as one process sees it; see `archiver.objects.store.ObjectStore`."""

    def __init__(self, ground: Stock, process: Process) -> None:
        self._ground = ground
        self._objects = ground.objects
        self._requests = Requests(process)

    def uri(self, key: str) -> str:
        return self._objects.uri(key)

    def spool_dir(self) -> Path:
        return self._objects.spool_dir()

    def create(self, key: str, data: bytes) -> None:
        self._requests.change(f"creates {key}", lambda: self._ground.create(key, data))

    def create_from_file(self, key: str, path: Path) -> None:
        data = path.read_bytes()
        path.unlink()
        self.create(key, data)

    def read(self, key: str) -> bytes:
        return self._requests.look(f"reads {key}", lambda: self._objects.read(key))

    def read_range(self, key: str, start: int, length: int) -> bytes:
        return self._requests.look(
            f"reads {key} from {start}", lambda: self._objects.read_range(key, start, length)
        )

    def open_input(self, key: str) -> pa.NativeFile:
        return self._requests.look(f"opens {key}", lambda: self._objects.open_input(key))

    def info(self, key: str) -> ObjectInfo | None:
        return self._requests.look(f"looks at {key}", lambda: self._objects.info(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._requests.look(f"lists {prefix}", lambda: self._objects.list(prefix))

    def delete(self, key: str) -> None:
        self._requests.change(f"deletes {key}", lambda: self._ground.delete(key))

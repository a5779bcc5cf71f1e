"""Times of schema versions, from a control log that may be trimmed at any moment."""

from __future__ import annotations

from archiver.app.reading_schema import SchemaTimes
from archiver.log.store import Entry
from archiver.proto import control_log_pb2 as pb
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import Trimmed
from tests.support.schema.orders import order_schema


class Trimming:
    """A control log, as far as reading it."""

    name = "control"

    def __init__(self, entries: list[pb.ControlEntry], floor: int = 0) -> None:
        self.entries = entries
        self.at = floor
        self.read_from: list[int] = []

    def floor(self) -> int:
        return self.at

    def tail(self) -> int:
        return len(self.entries)

    def read(self, start: int, limit: int = 1000) -> list[Entry]:
        self.read_from.append(start)
        if start < self.at:
            raise Trimmed(f"entry {start}")
        found = self.entries[start : start + limit]
        return [Entry(start + place, one.SerializeToString()) for place, one in enumerate(found)]


def body(topic: int, version: int) -> pb.SchemaChanged:
    made = order_schema().to_entry(bytes([topic] * 16))
    made.version = version
    return made


def entry(time_us: int, changed: pb.SchemaChanged | None = None) -> pb.ControlEntry:
    made = pb.ControlEntry(format=2, id=bytes(16), epoch=1, time_us=time_us)
    if changed is None:
        made.epoch_started.SetInParent()
    else:
        made.schema_changed.CopyFrom(changed)
    return made


def test_a_version_has_the_time_of_its_first_entry() -> None:
    log = Trimming([entry(1), entry(2, body(1, 1)), entry(3, body(2, 1)), entry(4, body(1, 1))])
    times = SchemaTimes(SystemClock())
    times.read(log)  # type: ignore[arg-type]
    assert [times.time_us(body(*one)) for one in ((1, 1), (2, 1), (1, 2))] == [2, 3, None]
    log.entries.append(entry(5, body(1, 2)))
    times.read(log)  # type: ignore[arg-type]
    assert times.time_us(body(1, 2)) == 5
    assert log.read_from == [0, 4]


def test_a_version_from_before_the_floor_has_none() -> None:
    log = Trimming([entry(1, body(1, 1)), entry(2, body(1, 2))], floor=1)
    times = SchemaTimes(SystemClock())
    times.read(log)  # type: ignore[arg-type]
    assert [times.time_us(body(1, version)) for version in (1, 2)] == [None, 2]


def test_a_log_that_is_trimmed_midway_is_read_on_later() -> None:
    log = Trimming([entry(1, body(1, 1)), entry(2, body(1, 2))])
    log.floor = lambda: 0  # type: ignore[method-assign]
    log.at = 1
    times = SchemaTimes(SystemClock())
    times.read(log)  # type: ignore[arg-type]
    assert times.time_us(body(1, 2)) is None
    log.floor = lambda: 1  # type: ignore[method-assign]
    times.read(log)  # type: ignore[arg-type]
    assert times.time_us(body(1, 2)) == 2

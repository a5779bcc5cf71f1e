"""Measures what many partitions cost the intake writer, how large its files are, and the parts of
acknowledgement time.

- `partitions`: the same records spread over 10, 100, 1,000 and 10,000 partitions, one flush each.
  They go through `send_batch` into a local folder with SQLite as the log. Time is from the call to
  the acknowledgement. Numbers of partitions alternate; a ratio is within one repetition.
- `file_bytes`: stored bytes of intake files by raw bytes (keys, values, headers), for 400 segments
  of 10 records of 165 bytes. One payload has only random bytes, which do not compress; the other
  repeats half of its bytes.
- `acknowledgement`: one sender that waits for each acknowledgement before it sends again. *Before
  the upload* is the batching delay (`delay_max`) and encoding, *upload* the object store's create,
  *append* the log's append. *rest* is all other time: entry, fold, waking the sender. The bare cost
  of as many bytes is measured for comparison. It is a new file with fsync of file and folder, and a
  line of a growing file with fdatasync. Both alternate.

    python -m bench.intake [--quick] [--output bench/results/intake.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from archiver.config.groups import IntakeSettings, LogSettings
from archiver.log.sqlite import SqliteLogStore
from archiver.objects.local import LocalObjectStore
from archiver.runtime.clock import SystemClock
from archiver.runtime.ids import SystemIds
from bench.log import percentile
from bench.outcome import tell
from bench.writer import make_records, spread
from intake.log.sequencer import Sequencer
from intake.records import RECORD_SCHEMA, Record, normalise_batch
from intake.write.writer import IntakeWriter

PARTITIONS = (10, 100, 1000, 10_000)
TARGET_FALL = 2.0
"""Largest allowed slowdown from 10 to 1,000 partitions."""
TARGET_FILE_RATIO = 1.1
SEGMENTS, SEGMENT_RECORDS, RECORD_BYTES = 400, 10, 165
_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Sizes:
    """Amount of work to measure."""

    records: tuple[int, ...]
    """Records per flush."""
    flushes: int
    sends: int
    repetitions: int


FULL = Sizes(records=(100_000, 10_000), flushes=4, sends=200, repetitions=5)
QUICK = Sizes(records=(10_000,), flushes=1, sends=20, repetitions=1)


class TimedObjects:
    """A local store that records the times of creates."""

    def __init__(self, root: Path) -> None:
        self._inner = LocalObjectStore(root)
        self.spans: list[tuple[float, float, int]] = []
        """Start, end and bytes."""

    def create(self, key: str, data: bytes) -> None:
        """Create the object and record the time."""
        start = time.perf_counter()
        self._inner.create(key, data)
        self.spans.append((start, time.perf_counter(), len(data)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class TimedLog:
    """A log that records the times of appends."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.spans: list[tuple[float, float, int]] = []

    def append(self, index: int, data: bytes) -> Any:
        """Append the entry and record the time."""
        start = time.perf_counter()
        outcome = self._inner.append(index, data)
        self.spans.append((start, time.perf_counter(), len(data)))
        return outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@dataclass
class Rig:
    """A writer on a local folder."""

    writer: IntakeWriter
    objects: TimedObjects
    log: TimedLog


@contextmanager
def rig(partitions: int, settings: IntakeSettings) -> Iterator[Rig]:
    """Yield a writer for the topic `orders` in a new folder, which is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="bench-intake-"))
    try:
        logs = SqliteLogStore(folder / "metadata.db", 30, LogSettings().entry_bytes_max)
        log = TimedLog(logs.log("intake"))
        sequencer = Sequencer(log, SystemIds(), SystemClock(), LogSettings())
        sequencer.declare_topic("orders", partitions)
        objects = TimedObjects(folder / "data")
        with IntakeWriter(objects, sequencer, settings, SystemClock(), SystemIds()) as writer:
            yield Rig(writer, objects, log)
        logs.close()
    finally:
        shutil.rmtree(folder)


def spread_over(records: pa.RecordBatch, partitions: int) -> pa.RecordBatch:
    """Return the records with a partition column; all partitions occur, in random order."""
    numbers = np.random.default_rng(partitions).permutation(np.arange(records.num_rows) % partitions)
    return pa.RecordBatch.from_arrays(
        [*records.columns, pa.array(numbers, pa.int32())], names=[*records.schema.names, "partition"]
    )


def raw_bytes_of(records: pa.RecordBatch) -> int:
    """Return the bytes of keys, values and headers."""
    return int(normalise_batch(records, 1 << 30).raw_bytes.sum())


def send_and_wait(writer: IntakeWriter, batch: pa.RecordBatch) -> None:
    """Send a batch; all records must be acknowledged."""
    pending = writer.send_batch("orders", batch)
    writer.flush()
    acknowledged = pending.result(_TIMEOUT_S)
    assert acknowledged.outcome == "ok", acknowledged


def time_flushes(records: pa.RecordBatch, partitions: int, flushes: int) -> tuple[float, float, int]:
    """Return wall and CPU seconds of `flushes` flushes, and the number of files per flush."""
    batch = spread_over(records, partitions)
    with rig(partitions, IntakeSettings()) as it:
        send_and_wait(it.writer, batch)  # the first run warms up
        files = len(it.objects.spans)
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(flushes):
            send_and_wait(it.writer, batch)
        spent = time.perf_counter() - wall, time.process_time() - cpu
        assert len(it.objects.spans) == files * (flushes + 1)
    return *spent, files


def measure_partitions(sizes: Sizes) -> list[dict[str, Any]]:
    """Measure every flush size with every number of partitions."""
    found = []
    for count in sizes.records:
        records = make_records(count)
        raw_mb = raw_bytes_of(records) / 1e6
        runs: dict[int, list[tuple[float, float, int]]] = {partitions: [] for partitions in PARTITIONS}
        for _ in range(sizes.repetitions):
            for partitions in PARTITIONS:
                runs[partitions].append(time_flushes(records, partitions, sizes.flushes))
        for partitions, spans in runs.items():
            first = runs[PARTITIONS[0]]
            found.append(
                {
                    "records_per_flush": count,
                    "raw_mb_per_flush": round(raw_mb, 2),
                    "partitions": partitions,
                    "files_per_flush": spans[0][2],
                    "flushes": sizes.flushes * sizes.repetitions,
                    "mb_per_second": spread([raw_mb * sizes.flushes / wall for wall, _, _ in spans]),
                    "mb_per_cpu_second": spread([raw_mb * sizes.flushes / cpu for _, cpu, _ in spans]),
                    "falls_by": spread(
                        [wall / least[0] for (wall, _, _), least in zip(spans, first, strict=True)]
                    ),
                    "falls_by_in_cpu": spread(
                        [cpu / least[1] for (_, cpu, _), least in zip(spans, first, strict=True)]
                    ),
                }
            )
    return found


def random_records() -> pa.RecordBatch:
    """Return records of random bytes."""
    random = np.random.default_rng(4)
    count, key_bytes = SEGMENTS * SEGMENT_RECORDS, 12
    keys = pa.array([random.bytes(key_bytes) for _ in range(count)], pa.binary())
    values = pa.array([random.bytes(RECORD_BYTES - key_bytes) for _ in range(count)], pa.binary())
    headers = pa.array([[]] * count, RECORD_SCHEMA.field("headers").type)
    times = pa.array(1_700_000_000_000_000 + random.integers(0, 10**9, count)).cast(
        RECORD_SCHEMA.field("event_timestamp").type
    )
    return pa.RecordBatch.from_arrays([keys, values, headers, times], schema=RECORD_SCHEMA)


def measure_file_bytes() -> dict[str, Any]:
    """Return the ratio of stored to raw bytes of each payload."""
    found: dict[str, Any] = {
        "segments": SEGMENTS,
        "records_per_segment": SEGMENT_RECORDS,
        "wanted_below": TARGET_FILE_RATIO,
    }
    for name, records in (
        ("random", random_records()),
        ("half_repeating", make_records(SEGMENTS * SEGMENT_RECORDS)),
    ):
        with rig(SEGMENTS, IntakeSettings()) as it:
            send_and_wait(it.writer, spread_over(records, SEGMENTS))
            stored = sum(size for _, _, size in it.objects.spans)
            found[name] = {
                "raw_bytes": raw_bytes_of(records),
                "stored_bytes": stored,
                "files": len(it.objects.spans),
                "ratio": round(stored / raw_bytes_of(records), 4),
            }
    found["reached"] = found["random"]["ratio"] < TARGET_FILE_RATIO
    return found


@dataclass
class Spans:
    """Seconds per acknowledgement, and its parts."""

    total: list[float] = field(default_factory=list)
    before_upload: list[float] = field(default_factory=list)
    upload: list[float] = field(default_factory=list)
    append: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)


def bare_write(
    folder: Path, number: int, file_bytes: int, entry_bytes: int, noise: bytes, journal: int
) -> float:
    """Return the seconds of storing as many bytes durably without the product's code."""
    start = time.perf_counter()
    with (folder / f"{number}").open("xb", buffering=0) as file:
        file.write(noise[:file_bytes])
        os.fsync(file.fileno())
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(descriptor)
    os.close(descriptor)
    os.write(journal, noise[:entry_bytes])
    os.fdatasync(journal)
    return time.perf_counter() - start


def time_acknowledgements(send: Callable[[IntakeWriter, int], Any], sends: int, delay_max: float) -> Spans:
    """Measure one sender that waits for each acknowledgement."""
    found = Spans()
    bare_folder = Path(tempfile.mkdtemp(prefix="bench-intake-bare-"))
    journal = os.open(bare_folder / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    noise = os.urandom(1 << 20)
    try:
        with rig(20, IntakeSettings(delay_max=delay_max)) as it:
            for number in range(-3, sends):
                start = time.perf_counter()
                acknowledged = send(it.writer, number).result(_TIMEOUT_S)
                end = time.perf_counter()
                assert acknowledged.outcome == "ok", acknowledged
                (upload_start, upload_end, file_bytes), (append_start, append_end, entry_bytes) = (
                    it.objects.spans[-1],
                    it.log.spans[-1],
                )
                assert start < upload_start < upload_end < append_start < append_end < end, (
                    "one flush per acknowledgement"
                )
                bare = bare_write(bare_folder, number, file_bytes, entry_bytes, noise, journal)
                if number >= 0:  # the first runs warm up
                    found.total.append(end - start)
                    found.before_upload.append(upload_start - start)
                    found.upload.append(upload_end - upload_start)
                    found.append.append(append_end - append_start)
                    found.bare.append(bare)
    finally:
        os.close(journal)
        shutil.rmtree(bare_folder)
    return found


def measure_acknowledgements(sizes: Sizes) -> list[dict[str, Any]]:
    """Measure a single record and a batch of 1,000, each with no batching delay and with 5 ms."""
    batch = spread_over(make_records(1000), 20)

    def send_one(writer: IntakeWriter, number: int) -> Any:
        return writer.send("orders", Record(b"order-%06d" % number, b"x" * 150))

    def send_batch(writer: IntakeWriter, _: int) -> Any:
        return writer.send_batch("orders", batch)

    cases = [
        (what, rows, delay) for what, rows in ((send_one, 1), (send_batch, 1000)) for delay in (0.0, 0.005)
    ]
    runs: list[list[Spans]] = [[] for _ in cases]
    for _ in range(sizes.repetitions):
        for number, (send, _, delay_max) in enumerate(cases):
            runs[number].append(time_acknowledgements(send, sizes.sends, delay_max))
    return [
        {
            "records": rows,
            "delay_max_ms": round(1e3 * delay_max, 3),
            "sends": sum(len(one.total) for one in found),
            "p50_ms": spread([1e3 * percentile(one.total, 50) for one in found]),
            "p99_ms": spread([1e3 * percentile(one.total, 99) for one in found]),
            "bare_p50_ms": spread([1e3 * percentile(one.bare, 50) for one in found]),
            "bare_p99_ms": spread([1e3 * percentile(one.bare, 99) for one in found]),
            "share_before_upload": spread([sum(one.before_upload) / sum(one.total) for one in found]),
            "share_upload": spread([sum(one.upload) / sum(one.total) for one in found]),
            "share_append": spread([sum(one.append) / sum(one.total) for one in found]),
            "share_rest": spread(
                [
                    1 - (sum(one.before_upload) + sum(one.upload) + sum(one.append)) / sum(one.total)
                    for one in found
                ]
            ),
            "ratio_bare_to_ours": spread(
                [statistics.median(one.bare) / statistics.median(one.total) for one in found]
            ),
        }
        for (_, rows, delay_max), found in zip(cases, runs, strict=True)
    ]


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few seconds: a smoke test, the figures mean little"
    )
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    document = {
        "what": "the intake writer: partitions per flush, bytes per file, time to an acknowledgement",
        "wanted_fall_below": TARGET_FALL,
        "repetitions": sizes.repetitions,
        "partitions": measure_partitions(sizes),
        "file_bytes": measure_file_bytes(),
        "acknowledgement": measure_acknowledgements(sizes),
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "pyarrow": pa.__version__, "numpy": np.__version__},
    }
    tell(document, options.output)


if __name__ == "__main__":
    main()

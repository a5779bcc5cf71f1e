"""Measures the append rate of the log in SQLite, compared with bare synced writes, and how several
writers share it.

Entries are what a flush of 20 segments over 400 partitions appends. The contenders run in
alternating blocks on one disk:

- `log`: `append` of the log, index by index;
- `frames`: the least that SQLite must write, with one write and one fdatasync per append. The bytes
  are those of the WAL frames of the same appends (a page and 24 bytes each, counted beforehand).
  The file's blocks exist already and are reused, like those of a WAL. There is no checkpointing and
  no handling of locks, index or free space, so this is a hard limit;
- `frames_growing`: the same bytes appended to a file that grows;
- `entry_growing`: only the entry's own bytes, appended to a file that grows.

A ratio is the time of the bare writes by the time of the log, in the same repetition. 1 would be as
fast as the bare writes. The log is measured once it reuses its WAL: its first WAL grows, and the
file of `frames` does not.

Then 1, 8 and 64 processes append to one log, each with its own connection and fold. They append
like a writer after each upload, without pauses. 8 and 64 processes also run at the pace of the
default `intake.delay_max`, one append every 0.2 s each. Every process folds all appended entries.
Afterwards the log must hold exactly the acknowledged entries.

    python -m bench.log [--quick] [--output bench/results/log.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

from archiver.config.groups import LogSettings
from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Appended, Log
from archiver.objects.paths import intake_key
from archiver.proto import intake_log_pb2 as pb
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import SystemIds, TopicId, new_ulid
from bench.outcome import tell
from bench.writer import spread
from intake.format import PlacedSegment
from intake.log.entries import file_entry
from intake.log.sequencer import Sequencer

SEGMENTS = 20
PARTITIONS = 400
TARGET_RATIO = 0.6
BUSY_TIMEOUT_S = 30.0
BLOCK = 50
"""Appends of one contender before the turn of the next."""
WARM_UP_APPENDS = 1000
"""Enough to write `FRAMES_BEFORE_REUSE` frames."""
FRAMES_BEFORE_REUSE = 1000
"""SQLite checkpoints at this many frames and then reuses its WAL."""
_FRAME_BYTES = 4096 + 24
_PROCESS_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Sizes:
    """Amount of work to measure."""

    appends: int
    repetitions: int
    writers: tuple[tuple[int, float], ...]
    """Writers, and the seconds between the appends of a writer; 0: without pauses."""
    seconds: float
    """Duration of the writers' appends."""
    writer_repetitions: int


FULL = Sizes(
    appends=2000,
    repetitions=7,
    writers=((1, 0), (8, 0), (64, 0), (8, 0.2), (64, 0.2)),
    seconds=4.0,
    writer_repetitions=5,
)
QUICK = Sizes(
    appends=200, repetitions=2, writers=((1, 0), (3, 0), (3, 0.1)), seconds=0.5, writer_repetitions=1
)


def placed_segments(topic_id: TopicId, chance: random.Random) -> list[PlacedSegment]:
    """Return the placed segments of a file with `SEGMENTS` segments."""
    accept_us = time.time_ns() // 1000
    placed, first_row = [], 0
    for partition in sorted(chance.sample(range(PARTITIONS), SEGMENTS)):
        rows = chance.randint(1, 40)
        placed.append(
            PlacedSegment(topic_id, partition, 0, first_row, rows, rows * chance.randint(100, 200), accept_us)
        )
        first_row += rows
    return placed


def new_key() -> str:
    """Return the key of an intake file written now."""
    now_us = time.time_ns() // 1000
    return intake_key(now_us, new_ulid(SystemIds(), now_us))


def make_entries(count: int) -> list[bytes]:
    """Return entries as the sequencer makes them."""
    chance = random.Random(count)
    topic_id = TopicId(chance.randbytes(16).hex())
    entries = []
    for _ in range(count):
        file = file_entry(new_key(), 200_000, chance.randbytes(32), placed_segments(topic_id, chance))
        entries.append(
            pb.IntakeEntry(format=1, id=chance.randbytes(16), file=file).SerializeToString(deterministic=True)
        )
    return entries


def count_frames(entries: list[bytes], folder: Path) -> list[int]:
    """Return the number of WAL frames that each append writes."""
    store = SqliteLogStore(folder / "counted.db", BUSY_TIMEOUT_S, LogSettings().entry_bytes_max)
    log = store.log("intake")
    # Without checkpoints the WAL only grows, so its size gives the number of frames.
    store.transact("begin", lambda connection: connection.execute("pragma wal_autocheckpoint = 0").fetchall())
    wal = folder / "counted.db-wal"
    sizes = [wal.stat().st_size]
    for index, data in enumerate(entries):
        assert log.append(index, data) is Appended.OK
        sizes.append(wal.stat().st_size)
    store.close()
    frames = [(after - before) // _FRAME_BYTES for before, after in pairwise(sizes)]
    assert all(count >= 1 for count in frames), (
        "an append without a frame: SQLite's WAL differs from what this measurement assumes"
    )
    return frames


class RawWrites:
    """One write and one fdatasync per append; after `reuse_at` bytes it continues at the beginning
    of the file.
    """

    def __init__(self, path: Path, sizes: list[int], reuse_at: int | None) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._noise = os.urandom(max(sizes))
        self._sizes = sizes
        self._reuse_at = reuse_at
        self._place = 0
        if reuse_at is not None:
            os.pwrite(self._descriptor, bytes(reuse_at + max(sizes)), 0)
            os.fsync(self._descriptor)

    def __call__(self, number: int) -> None:
        size = self._sizes[number]
        os.pwrite(self._descriptor, self._noise[:size], self._place)
        os.fdatasync(self._descriptor)
        self._place += size
        if self._reuse_at is not None and self._place >= self._reuse_at:
            self._place = 0

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


class LogAppends:
    """Appends to the log in SQLite."""

    def __init__(self, path: Path, entries: list[bytes]) -> None:
        self._store = SqliteLogStore(path, BUSY_TIMEOUT_S, LogSettings().entry_bytes_max)
        self.log: Log = self._store.log("intake")
        self._entries = entries

    def __call__(self, number: int) -> None:
        assert self.log.append(number, self._entries[number]) is Appended.OK

    def close(self) -> None:
        """Close the database."""
        self._store.close()


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Yield a folder on the disk of temporary files, which is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="bench-log-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def time_appends(entries: list[bytes], frames: list[int]) -> dict[str, list[float]]:
    """Return the seconds of each append by contender, in alternating blocks. The log's first WAL,
    which grows, is not counted.
    """
    frame_bytes = [count * _FRAME_BYTES for count in frames]
    assert sum(frames[:WARM_UP_APPENDS]) > FRAMES_BEFORE_REUSE, "the WAL is not yet reused"
    with temporary_folder() as folder:
        ours = LogAppends(folder / "metadata.db", entries)
        contenders: dict[str, LogAppends | RawWrites] = {
            "log": ours,
            "frames": RawWrites(folder / "frames", frame_bytes, FRAMES_BEFORE_REUSE * _FRAME_BYTES),
            "frames_growing": RawWrites(folder / "frames-growing", frame_bytes, None),
            "entry_growing": RawWrites(folder / "entry-growing", [len(data) for data in entries], None),
        }
        names = list(contenders)
        seconds: dict[str, list[float]] = {name: [] for name in names}
        for number in range(WARM_UP_APPENDS):
            ours(number)
        for block, first in enumerate(range(WARM_UP_APPENDS, len(entries), BLOCK)):
            turn = block % len(names)
            for name in (*names[turn:], *names[:turn]):
                contender = contenders[name]
                for number in range(first, min(first + BLOCK, len(entries))):
                    start = time.perf_counter()
                    contender(number)
                    seconds[name].append(time.perf_counter() - start)
        assert [entry.data for entry in ours.log.read(0, len(entries) + 1)] == entries
        for contender in contenders.values():
            contender.close()
    return seconds


def measure_appends(sizes: Sizes) -> dict[str, Any]:
    """Compare one writer with the bare writes."""
    entries = make_entries(WARM_UP_APPENDS + sizes.appends)
    with temporary_folder() as folder:
        frames = count_frames(entries, folder)
    runs = [time_appends(entries, frames) for _ in range(sizes.repetitions + 1)][1:]  # the first run warms up
    found: dict[str, Any] = {
        "appends": sizes.appends,
        "repetitions": sizes.repetitions,
        "entry_bytes": round(statistics.mean(len(data) for data in entries)),
        "wal_bytes_per_append": round(statistics.mean(frames) * _FRAME_BYTES),
        "wanted_ratio": TARGET_RATIO,
    }
    for name in runs[0]:
        found[name] = {
            "appends_per_second": spread([sizes.appends / sum(run[name]) for run in runs]),
            "p50_ms": spread([1e3 * percentile(run[name], 50) for run in runs]),
            "p99_ms": spread([1e3 * percentile(run[name], 99) for run in runs]),
        }
        if name != "log":
            found[name]["ratio"] = spread([sum(run[name]) / sum(run["log"]) for run in runs])
    found["reached"] = found["frames"]["ratio"]["median"] >= TARGET_RATIO
    return found


def percentile(values: list[float], percent: float) -> float:
    """Return the value at that percentile of the sorted values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


@dataclass(frozen=True)
class WriterResult:
    """Result of one writer process."""

    keys: list[str]
    """Keys of the acknowledged files."""
    seconds: list[float]
    """Seconds of each append."""
    refused: int
    """Appends that failed because of faster writers or a locked database."""


def run_writer(
    path: Path, number: int, ready: Barrier, stop: Event, pace_s: float, seconds: float
) -> WriterResult:
    """Append at the given pace until the time is over."""
    store = SqliteLogStore(path, BUSY_TIMEOUT_S, LogSettings().entry_bytes_max)
    sequencer = Sequencer(store.log("intake"), SystemIds(), SystemClock(), LogSettings())
    topic_id = sequencer.declare_topic("orders", PARTITIONS).topic_id
    chance = random.Random(number)
    done = WriterResult([], [], 0)
    refused = 0
    ready.wait(_PROCESS_TIMEOUT_S)
    end = time.monotonic() + seconds
    time.sleep(pace_s * chance.random())
    while time.monotonic() < end and not stop.is_set():
        key, segments, digest = new_key(), placed_segments(topic_id, chance), chance.randbytes(32)
        start = time.perf_counter()
        try:
            sequencer.append_file(key, 200_000, digest, segments)
        except RetryLater:
            refused += 1
            continue
        took = time.perf_counter() - start
        done.seconds.append(took)
        done.keys.append(key)
        time.sleep(max(0.0, pace_s - took))
    store.close()
    return WriterResult(done.keys, done.seconds, refused)


def _writer_main(
    path: Path, number: int, ready: Barrier, stop: Event, pace_s: float, seconds: float, results: Any
) -> None:
    results.put(run_writer(path, number, ready, stop, pace_s, seconds))


def run_writers(writers: int, pace_s: float, seconds: float) -> tuple[list[WriterResult], float]:
    """Run `writers` processes on one new log and check the log. Return their results and the wall
    seconds.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(["archiver.log.sqlite", "bench.writer", "intake.log.sequencer"])
    with temporary_folder() as folder:
        path = folder / "metadata.db"
        store = SqliteLogStore(path, BUSY_TIMEOUT_S, LogSettings().entry_bytes_max)
        Sequencer(store.log("intake"), SystemIds(), SystemClock(), LogSettings()).declare_topic(
            "orders", PARTITIONS
        )
        ready, stop, results = context.Barrier(writers + 1), context.Event(), context.Queue()
        processes = [
            context.Process(
                target=_writer_main, args=(path, number, ready, stop, pace_s, seconds, results), daemon=True
            )
            for number in range(writers)
        ]
        try:
            for process in processes:
                process.start()
            ready.wait(_PROCESS_TIMEOUT_S)
            start = time.perf_counter()
            found = [results.get(timeout=_PROCESS_TIMEOUT_S) for _ in processes]
            took = time.perf_counter() - start
        finally:
            stop.set()
            for process in processes:
                process.join(10)
        check_log(store.log("intake"), found)
        store.close()
    return found, took


def check_log(log: Log, results: list[WriterResult]) -> None:
    """Check that the log holds exactly the acknowledged files, each once."""
    keys = []
    for first in range(0, log.tail(), 1000):
        for entry in log.read(first):
            body = pb.IntakeEntry.FromString(entry.data)
            if body.WhichOneof("body") == "file":
                keys.append(body.file.key)
    assert sorted(keys) == sorted(key for result in results for key in result.keys), (
        "the log differs from what was acknowledged"
    )


def measure_writers(sizes: Sizes) -> list[dict[str, Any]]:
    """Run the cases in turn, repeatedly, and return their figures."""
    runs: dict[tuple[int, float], list[tuple[list[WriterResult], float]]] = {
        case: [] for case in sizes.writers
    }
    for _ in range(sizes.writer_repetitions):
        for writers, pace_s in sizes.writers:
            runs[writers, pace_s].append(run_writers(writers, pace_s, sizes.seconds))
    rates = {
        case: [sum(len(one.keys) for one in results) / took for results, took in found]
        for case, found in runs.items()
    }
    alone = rates[sizes.writers[0]]
    return [
        {
            "writers": case[0],
            "an_append_every_s": case[1],
            "seconds": sizes.seconds,
            "repetitions": sizes.writer_repetitions,
            "appends": sum(len(one.keys) for results, _ in found for one in results),
            "refused": sum(one.refused for results, _ in found for one in results),
            "appends_per_second": spread(rates[case]),
            "ratio_to_first": spread([rate / first for rate, first in zip(rates[case], alone, strict=True)]),
            "p50_ms": spread([1e3 * percentile(times_of(results), 50) for results, _ in found]),
            "p99_ms": spread([1e3 * percentile(times_of(results), 99) for results, _ in found]),
            "max_ms": spread([1e3 * max(times_of(results)) for results, _ in found]),
            "least_share_of_even": spread([min(shares_of(results)) for results, _ in found]),
            "largest_share_of_even": spread([max(shares_of(results)) for results, _ in found]),
        }
        for case, found in runs.items()
    ]


def times_of(results: list[WriterResult]) -> list[float]:
    """Return the seconds of every append of every writer."""
    return [seconds for one in results for seconds in one.seconds]


def shares_of(results: list[WriterResult]) -> list[float]:
    """Return each writer's appends by the mean of all writers; 1 everywhere is perfectly fair."""
    mean = statistics.mean(len(one.keys) for one in results)
    return [len(one.keys) / mean for one in results]


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
        "what": "appends to the log in SQLite against bare synced writes, and by several writers at once",
        "segments_per_entry": SEGMENTS,
        "partitions": PARTITIONS,
        "append": measure_appends(sizes),
        "several_writers": measure_writers(sizes),
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {"python": platform.python_version(), "sqlite": sqlite3.sqlite_version},
    }
    tell(document, options.output)


if __name__ == "__main__":
    main()

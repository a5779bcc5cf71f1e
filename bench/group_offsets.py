"""Measures what committed offsets of many consumer groups cost: CPU, bytes of entries, memory, and
checkpoints.

10,000 groups have 100 partitions each, all of one topic. In a round every group commits once, in
flushes of `FLUSH` commits; a consumer's default is a round every 5 s. The load of a deployment
follows: `core_share` is the CPU of a round by these 5 s, `bytes_per_s` the entries of a round by
them.

Ways to commit: `whole` is one consumer for all partitions of a group, and every offset has
advanced. `members` are ten consumers of a group with every tenth partition each. With `idle`
consumers no offset has advanced. `committer` is the CPU of `CommittedOffsets.commit` on a log in
SQLite. `follower` is that of a process that reads the log and applies its entries, as every daemon
does.

Memory is the growth of the resident size of a process that loads a checkpoint with all offsets.
`checkpoint` is the CPU to make a checkpoint from the previous one, as a daemon does each
`log.checkpoint_bytes`. Its steps are: load, apply the entries, encode, store, read back and
compare. Repetitions are interleaved.

    python -m bench.group_offsets [--quick] [--output bench/results/group_offsets.json]
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from archiver.config.groups import LogSettings
from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.log.sqlite import SqliteLogStore
from archiver.objects.local import LocalObjectStore
from archiver.runtime.clock import SystemClock
from archiver.runtime.ids import SystemIds
from bench.outcome import tell
from bench.writer import spread
from intake.log.checkpoint import Checkpoint, CheckpointStore, decode, encode
from intake.log.checkpointer import Checkpointer
from intake.log.committed_offsets import Commit, CommittedOffsets, OffsetBounds, TopicCommit
from intake.log.consumer_groups import GROUP_SLOTS
from intake.log.fold import IntakeFold
from intake.log.sequencer import Sequencer

WAYS = ("whole", "members", "idle")
MEMBERS = 10
FLUSH = 100
EVERY_S = 5.0
START = 1 << 33
"""Offsets of five bytes, like those of a partition with more than 8 billion records."""


class Load:
    """Groups that commit round after round to a log in SQLite."""

    def __init__(self, folder: Path, groups: int, partitions: int) -> None:
        settings = LogSettings()
        self._names = [f"orders-consumers-{number:05}" for number in range(groups)]
        self._partitions = range(partitions)
        self._logs = SqliteLogStore(folder / "metadata.db", 30, settings.entry_bytes_max)
        self.log = self._logs.log("intake")
        self.store = CheckpointStore(LocalObjectStore(folder / "data"))
        self.sequencer = Sequencer(self.log, SystemIds(), SystemClock(), settings, self.store)
        self.checkpointer = Checkpointer(self.log, self.store, self.sequencer, settings)
        self._topic_id = self.sequencer.declare_topic("orders", partitions).topic_id
        bounds = OffsetBounds(
            KafkaListenerSettings(listen="127.0.0.1:0").group_offsets_bytes_max, 3600 * 10**6
        )
        self.offsets = CommittedOffsets(self.sequencer, SystemClock(), bounds)
        self._claim = self.offsets.claim_slots(range(GROUP_SLOTS), 1)
        self._advanced = 0

    def flushes(self, way: str) -> Iterator[list[Commit]]:
        """Yield the commits of a round, a flush at a time."""
        if way != "idle":
            self._advanced += 1
        steps = MEMBERS if way == "members" else 1
        made: list[Commit] = []
        for name in self._names:
            for first in range(steps):
                numbers = list(self._partitions[first::steps])
                offsets = [START + 997 * number + self._advanced for number in numbers]
                topic = TopicCommit(self._topic_id, numbers, offsets, [0] * len(numbers))
                made.append(Commit(name, self._claim, (topic,)))
                if len(made) == FLUSH:
                    yield made
                    made = []
        if made:
            yield made

    def round(self, way: str) -> float:
        """Return the CPU seconds of the commits of a round."""
        spent_s = 0.0
        for commits in self.flushes(way):
            began_s = time.process_time()
            outcomes = self.offsets.commit(commits)
            spent_s += time.process_time() - began_s
            assert set(outcomes) == {"ok"}, outcomes
        return spent_s

    def close(self) -> None:
        """Close the log."""
        self._logs.close()


def followed(load: Load, fold: IntakeFold) -> tuple[float, int, int]:
    """Apply new entries to another fold; return CPU seconds, and the count and bytes of the
    entries.
    """
    spent_s, count, size = 0.0, 0, 0
    while entries := load.log.read(fold.next_index):
        began_s = time.process_time()
        for entry in entries:
            fold.apply(entry.index, entry.data)
        spent_s += time.process_time() - began_s
        count += len(entries)
        size += sum(len(entry.data) for entry in entries)
    return spent_s, count, size


def resident() -> int:
    """Return the resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def memory_of(path: Path) -> int:
    """Return the bytes that a fold from that checkpoint adds; must run in a new process."""
    gc.collect()
    before = resident()
    fold = decode(path.read_bytes(), str(path)).fold()
    gc.collect()
    taken = resident() - before
    assert len(fold.consumer_groups) > 0
    return taken


def ways(load: Load, fold: IntakeFold, rows: int, repetitions: int) -> dict[str, Any]:
    """Return the costs of rounds by way."""
    found: dict[str, dict[str, list[float]]] = {way: {} for way in WAYS}
    for repetition in range(repetitions + 1):
        for way in WAYS:
            committer_s = load.round(way)
            follower_s, entries, size = followed(load, fold)
            if not repetition:  # the first run warms up
                continue
            for name, value in (
                ("committer_us_per_offset", committer_s / rows * 1e6),
                ("committer_core_share", committer_s / EVERY_S),
                ("follower_us_per_offset", follower_s / rows * 1e6),
                ("follower_core_share", follower_s / EVERY_S),
                ("entries_per_s", entries / EVERY_S),
                ("bytes_per_s", size / EVERY_S),
                ("bytes_per_offset", size / rows),
            ):
                found[way].setdefault(name, []).append(value)
    return {way: {name: spread(values) for name, values in one.items()} for way, one in found.items()}


def checkpoints(load: Load, folder: Path, repetitions: int, per_s: float) -> dict[str, Any]:
    """Return size and cost of checkpoints; `per_s` is the bytes of entries per second."""
    seconds: dict[str, list[float]] = {"encode_s": [], "decode_s": [], "make_s": [], "core_share": []}
    size = 0
    every_bytes = LogSettings().checkpoint_bytes
    for repetition in range(repetitions + 1):
        while not load.sequencer.checkpoint_due:
            load.round("whole")
        began_s = time.process_time()
        (_,) = load.checkpointer.run()
        took_s = time.process_time() - began_s
        newest = load.store.start(load.log)
        assert newest is not None
        load.sequencer.learn(newest, newest.index)
        if not repetition:
            continue  # the first one has no previous checkpoint
        seconds["make_s"].append(took_s)
        seconds["core_share"].append(took_s / (every_bytes / per_s))
        began_s = time.process_time()
        data = encode(Checkpoint(load.sequencer.refresh().state(), ()))
        seconds["encode_s"].append(time.process_time() - began_s)
        began_s = time.process_time()
        decode(data, "here")
        seconds["decode_s"].append(time.process_time() - began_s)
        size = len(data)
        (folder / "state.bin").write_bytes(data)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        taken = pool.apply(memory_of, (folder / "state.bin",))
    return {
        "checkpoint_bytes": size,
        "checkpoint_every_s": round(every_bytes / per_s, 1),
        "memory_bytes": taken,
        "memory_estimated_bytes": load.sequencer.fold.consumer_groups.size,
    } | {name: spread(values) for name, values in seconds.items()}


def measure(groups: int, partitions: int, repetitions: int) -> dict[str, Any]:
    """The result document."""
    rows = groups * partitions
    with tempfile.TemporaryDirectory(prefix="bench-group-offsets-") as name:
        load, fold = Load(Path(name), groups, partitions), IntakeFold()
        try:
            load.round("whole")
            followed(load, fold)
            costs = ways(load, fold, rows, repetitions)
        finally:
            load.close()
    with tempfile.TemporaryDirectory(prefix="bench-group-offsets-") as name:
        load = Load(Path(name), groups, partitions)
        try:
            kept = checkpoints(load, Path(name), repetitions, costs["whole"]["bytes_per_s"]["median"])
        finally:
            load.close()
    return {
        "what": "costs of consumer groups that commit their offsets every 5 s",
        "groups": groups,
        "partitions": partitions,
        "commits_per_flush": FLUSH,
        "every_s": EVERY_S,
        "repetitions": repetitions,
        "ways": costs,
        "kept": kept,
        "versions": {"python": platform.python_version(), "protobuf": version("protobuf")},
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smallest size: a smoke test")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    tell(measure(2000, 20, 1) if options.quick else measure(10_000, 100, 3), options.output)


if __name__ == "__main__":
    main()

"""Measures intake workers: the CPU of a daemon with 1, 2 and 4 of them, and whether records are stored once.

The daemons run at the same time on the same cores, each with its own log and folder. One client
program (librdkafka) produces the same records to each in turns, and reads each of them once. The CPU
of the daemon and of its workers is counted, and divided between them. At the end every record is read
and compared with what was acknowledged.

A second part measures what limits the number of workers. Every process reads every entry of the log:
the CPU to read the log of these loads from its beginning is divided by its entries. `bench.log`
measures how many entries a second many processes can append.

    python -m bench.workers [--quick] [--batches 1000] [--repetitions 3] [--output bench/results/workers.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import confluent_kafka
import psutil
import yaml
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from archiver.app.application import Application
from archiver.config.settings import load_settings
from bench.kafka import BATCH_BYTES, BATCH_RECORDS, RECORD_BYTES, TIMEOUT_S, Case, fetch, produce, records
from bench.outcome import tell
from bench.writer import spread
from intake.log.sequencer import Sequencer
from tests.support.process.processes import until

COUNTS = (1, 2, 4)
MANY = 32
"""Workers for which the cost is calculated."""
DELAY_MAX_S = 0.2
"""The default of `intake.delay_max`."""
LOADS = Case(100, 10, "none"), Case(100, 10, "lz4")
IDLE_S = 5.0
CONFIG = "archiver.yaml"


@dataclass(frozen=True)
class Running:
    """One daemon."""

    workers: int
    process: psutil.Process
    address: str

    def cpu_s(self) -> dict[int, float]:
        """CPU seconds of the daemon and of each worker, by process id."""
        found = {}
        for one in (self.process, *self.process.children()):
            times = one.cpu_times()
            found[one.pid] = times.user + times.system
        return found


@contextmanager
def daemon(folder: Path, workers: int) -> Iterator[Running]:
    """Run `archiver serve` for intake until the context ends."""
    (folder / "meta").mkdir(parents=True)
    (folder / "data").mkdir()
    topics = [{"name": one.topic, "partitions": one.partitions} for one in LOADS]
    document = {
        "cluster": "bench",
        "data": {"uri": "data"},
        "metadata": {"sqlite": {"path": "meta/log.db"}},
        "http": {"listen": "127.0.0.1:0"},
        "kafka": {"listen": "127.0.0.1:0"},
        "intake": {"workers": workers, "delay_max": f"{DELAY_MAX_S:g}s"},
        "topics": topics,
    }
    config, log = folder / CONFIG, folder / "daemon.log"
    config.write_text(yaml.safe_dump(document), encoding="utf-8")
    command = [sys.executable, "-m", "archiver", "serve", "--roles", "intake", "--config", str(config)]
    with log.open("wb") as stream, subprocess.Popen(command, stderr=stream) as process:
        try:

            def opened() -> str | None:
                text = log.read_text(encoding="utf-8")
                assert process.poll() is None, text
                _, found, rest = text.partition('"serving Kafka clients on ')
                return rest.partition('"')[0] if found else None

            def all_serve() -> bool:
                return workers == 1 or log.read_text(encoding="utf-8").count(" serves") == workers

            address = until("the Kafka port is open", opened)
            until("every worker serves", all_serve)
            yield Running(workers, psutil.Process(process.pid), address)
        finally:
            process.terminate()
            assert process.wait(TIMEOUT_S) == 0, log.read_text(encoding="utf-8")


def spent(before: dict[int, float], after: dict[int, float], own: int) -> tuple[float, float]:
    """CPU seconds of the daemon, and of its workers together."""
    taken = {pid: after[pid] - before[pid] for pid in before}
    return taken.pop(own), sum(taken.values())


def measure_load(
    at: Running, case: Case, batches: int, earlier: int, values: list[bytes]
) -> dict[str, float]:
    """Produce after so many `earlier` runs, and fetch what was produced; CPU seconds by part, elapsed
    seconds, p99 of an acknowledgement in ms.
    """
    own = at.process.pid
    before = at.cpu_s()
    made = produce(at.address, own, case, batches, values)
    between = at.cpu_s()
    # Each process has a cache of its own, so each run reads what no run has read.
    first = earlier * batches // case.partitions * BATCH_RECORDS
    fetch(at.address, own, case, batches * BATCH_RECORDS, first)
    after = at.cpu_s()
    (daemon_s, workers_s), (daemon_fetch_s, workers_fetch_s) = (
        spent(before, between, own),
        spent(between, after, own),
    )
    latencies = sorted(made.latencies_s)
    return {
        "produce_s": daemon_s + workers_s,
        "produce_daemon_s": daemon_s,
        "fetch_s": daemon_fetch_s + workers_fetch_s,
        "fetch_daemon_s": daemon_fetch_s,
        "wall_s": made.wall_s,
        "p99_ms": 1000 * latencies[int(0.99 * (len(latencies) - 1))],
    }


def verify(at: Running, case: Case, rounds: int, batches: int, values: list[bytes]) -> int:
    """Read a whole topic and compare it with all that was acknowledged; the number of records."""
    digests = {sha256(value).digest(): number for number, value in enumerate(values)}
    consumer = Consumer(
        {
            "bootstrap.servers": at.address,
            "group.id": "verify",
            "enable.auto.commit": "false",
            "auto.offset.reset": "error",
        }
    )
    expected = rounds * batches * BATCH_RECORDS
    next_offset: Counter[int] = Counter()
    found: Counter[int] = Counter()
    try:
        consumer.assign([TopicPartition(case.topic, number, 0) for number in range(case.partitions)])
        deadline_s = time.monotonic() + TIMEOUT_S
        while found.total() < expected:
            assert time.monotonic() < deadline_s, f"{found.total()} of {expected} records of {case.topic}"
            for message in consumer.consume(10_000, 0.2):
                assert message.error() is None, message.error()
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None
                assert value is not None
                # No gap, no repetition.
                assert offset == next_offset[partition], (partition, offset, next_offset[partition])
                next_offset[partition] += 1
                found[digests[sha256(value).digest()]] += 1
    finally:
        consumer.close()
    # On connections of its own: on one with a waiting Fetch each request would wait for it.
    latest = {TopicPartition(case.topic, number): OffsetSpec.latest() for number in range(case.partitions)}
    admin = AdminClient({"bootstrap.servers": at.address})
    ends = sum(one.result(TIMEOUT_S).offset for one in admin.list_offsets(latest).values())
    assert ends == expected, f"{ends} instead of {expected} records are in the log"
    assert set(found.values()) == {rounds * batches}, "a record is there more or less often than it was sent"
    return expected


def follow_ms(config: Path) -> float:
    """CPU milliseconds of a process to read one entry of a daemon's log into its state."""
    with Application(load_settings(config, {}), {}) as application:
        log, settings = application.intake_log, application.settings.log
        # Another one than that of the application, which has read the log when it was opened.
        reader = Sequencer(log, application.ids, application.clock, settings)
        began_s = time.process_time()
        reader.refresh()
        took_s = time.process_time() - began_s
        entries = application.intake_log.tail() - application.intake_log.floor()
    assert entries > 0, "the loads are in the log"
    return 1000 * took_s / entries


def idle_cores(at: Running) -> float:
    """The cores that a worker without clients takes."""
    before = at.cpu_s()
    time.sleep(IDLE_S)
    after = at.cpu_s()
    return median((after[pid] - before[pid]) / IDLE_S for pid in before if pid != at.process.pid)


def measure(batches: int, repetitions: int, counts: tuple[int, ...]) -> dict[str, Any]:
    """The result document."""
    values = records()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="bench-workers-") as folder, ExitStack() as stack:
        running = [stack.enter_context(daemon(Path(folder) / str(count), count)) for count in counts]
        for case in LOADS:
            runs: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
            for repetition in range(-1, repetitions):
                for at in running if repetition % 2 else reversed(running):
                    run = measure_load(at, case, batches, repetition + 1, values)
                    if repetition >= 0:
                        runs[at.workers].append(run)
            found[case.topic] = {
                "workers": {
                    str(at.workers): {
                        **figures(runs[at.workers], runs[counts[0]], batches),
                        "records_verified": verify(at, case, repetitions + 1, batches, values),
                    }
                    for at in running
                }
            }
            print(case.topic, found[case.topic], file=sys.stderr, flush=True)
        folder_of_most = Path(folder) / str(counts[-1])
        follow = [follow_ms(folder_of_most / CONFIG) for _ in range(repetitions)]
        limits = calculated(follow, [idle_cores(running[-1]) for _ in range(repetitions)])
    return {
        "what": "CPU of a daemon and its intake workers for the same records, by number of workers",
        "record_bytes": RECORD_BYTES,
        "batch_records": BATCH_RECORDS,
        "batches": batches,
        "repetitions": repetitions,
        "cases": found,
        "limits": limits,
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {
            "python": platform.python_version(),
            "pyarrow": version("pyarrow"),
            "librdkafka": confluent_kafka.libversion()[0],
        },
    }


def figures(runs: list[dict[str, float]], ones: list[dict[str, float]], batches: int) -> dict[str, Any]:
    """The figures of one number of workers; `ones` are the runs without workers in the same rounds."""
    megabytes = batches * BATCH_BYTES / 1e6
    return {
        "produce_mb_per_core_second": spread([megabytes / run["produce_s"] for run in runs]),
        "produce_mb_per_wall_second": spread([megabytes / run["wall_s"] for run in runs]),
        "produce_cpu_ratio": spread(
            [run["produce_s"] / one["produce_s"] for run, one in zip(runs, ones, strict=True)]
        ),
        "fetch_cpu_ratio": spread(
            [run["fetch_s"] / one["fetch_s"] for run, one in zip(runs, ones, strict=True)]
        ),
        "produce_share_of_daemon": spread([run["produce_daemon_s"] / run["produce_s"] for run in runs]),
        "fetch_share_of_daemon": spread([run["fetch_daemon_s"] / run["fetch_s"] for run in runs]),
        "p99_ms": spread([run["p99_ms"] for run in runs]),
    }


def calculated(follow: list[float], idle: list[float]) -> dict[str, Any]:
    """What limits the number of workers, and the cost of `MANY` of them."""
    # Each worker that always has records appends once in the longest delay.
    entries = MANY / DELAY_MAX_S
    return {
        "follow_ms": spread(follow),
        "idle_cores": spread(idle),
        "workers": MANY,
        "entries_per_second": entries,
        # Every worker and the daemon read each entry.
        "cores_to_follow": round((MANY + 1) * entries * median(follow) / 1000, 2),
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=1000, help="batches per run")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="1 and 2 workers, once: a smoke test")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    batches, repetitions, counts = (
        (100, 1, (1, 3)) if options.quick else (options.batches, options.repetitions, COUNTS)
    )
    tell(measure(batches, repetitions, counts), options.output)


if __name__ == "__main__":
    main()

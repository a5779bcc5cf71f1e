"""Measures what the Kafka protocol costs a server: this listener and Apache Kafka's broker.

Both servers run at the same time on the same cores. One client program (librdkafka) produces the
same records to both in turns: 139 bytes a record, batches of 500 records, `acks=all`, local disk.
Only the server process is counted, user and system time. A case is a number of partitions, of
connections, and a compression; each case has its own topic. A bounded number of batches is in
flight. The latency of a batch is the time from its last record to its delivery report. The broker
has one replica and does not sync its files (its default). This listener syncs each file and entry
before it acknowledges. Afterwards one consumer reads each topic from its beginning; here all
records come from intake files. `bench.fetch` measures fetches from archives.

    python -m bench.kafka [--quick] [--batches 1000] [--repetitions 5] [--output bench/results/kafka.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import confluent_kafka
import numpy as np
import psutil
from confluent_kafka import Consumer, Producer, TopicPartition

from archiver.daemon.limits import collect_less_often
from bench.outcome import tell
from bench.writer import spread
from tests.support.kafka.kafka_server import PACKAGES, KafkaServer
from tests.support.kafka.listening import configured, listening
from tests.support.kafka.mirroring import Cluster

RECORD_BYTES = 139
BATCH_RECORDS = 500
BATCH_BYTES = RECORD_BYTES * BATCH_RECORDS
IN_FLIGHT = 64
"""Unacknowledged batches over all connections; with more connections, one each."""
TARGET = 0.6
"""Share of Kafka's bytes per core-second, for produce and for fetch."""
WARM_ROUNDS = 4
TIMEOUT_S = 120
JAVA = ("-Xms512m", "-Xmx512m", "-XX:+UseG1GC")
"""The options of a usual broker start, with a heap that fits this machine."""
SERVERS = ("archiver", "kafka")


@dataclass(frozen=True)
class Case:
    """One kind of load."""

    partitions: int
    connections: int
    codec: str

    @property
    def topic(self) -> str:
        """Name of the topic that the case writes to."""
        return f"p{self.partitions}-c{self.connections}-{self.codec}"


def cases(quick: bool) -> list[Case]:
    """Return all loads, or two if `quick`."""
    shapes = [(1, 1), (100, 10)] if quick else [(1, 1), (10, 10), (100, 10), (1000, 10), (100, 200)]
    codecs = ("lz4",) if quick else ("none", "lz4")
    return [Case(*shape, codec) for shape in shapes for codec in codecs]


def records() -> list[bytes]:
    """Return the values of one batch. Half of their bytes repeat, so that they can be compressed."""
    random = np.random.default_rng(5)
    values = []
    for number in range(BATCH_RECORDS):
        text = b"customer=%05d;state=shipped;currency=EUR;warehouse=%03d;" % (number % 2000, number % 300)
        values.append(text + random.bytes((RECORD_BYTES - len(text)) // 2).hex().encode())
    return [value.ljust(RECORD_BYTES, b".") for value in values]


def serve(folder: Path, topics: Sequence[Case]) -> None:
    """Run the listener in this process until standard input ends; prints its address."""
    declared = [{"name": case.topic, "partitions": case.partitions} for case in topics]
    with listening(configured(folder, declared, intake={"delay_max": "200ms"})) as found:
        collect_less_often()
        print(found.bootstrap, flush=True)
        sys.stdin.read()


@contextmanager
def archiver(folder: Path, quick: bool) -> Iterator[tuple[str, int]]:
    """Run the listener in its own process; yield its address and process id."""
    command = [sys.executable, "-m", "bench.kafka", "--serve", str(folder)]
    with subprocess.Popen(
        [*command, *(["--quick"] if quick else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address, "the listener did not start"
            yield address, process.pid
        finally:
            process.stdin.close()
            process.wait(TIMEOUT_S)


def cpu_seconds(pid: int) -> float:
    """Return the user and system seconds of one process with all its threads."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


@dataclass
class Produced:
    """Result of one run of a case."""

    cpu_s: float
    wall_s: float
    latencies_s: list[float]
    """Per batch."""


def produce(brokers: str, pid: int, case: Case, batches: int, values: Sequence[bytes]) -> Produced:
    """Send the batches over the connections of the case, and wait for every acknowledgement."""
    settings: dict[str, Any] = {
        "bootstrap.servers": brokers,
        "acks": "all",
        "compression.type": case.codec,
        "batch.num.messages": BATCH_RECORDS,
        # Large enough that only the number of records limits a batch.
        "batch.size": 2 * BATCH_BYTES,
        "linger.ms": 1000,
        "queue.buffering.max.messages": 1_000_000,
    }
    producers = [Producer(settings) for _ in range(case.connections)]
    for producer in producers:
        producer.list_topics(case.topic, TIMEOUT_S)
    latencies: list[float] = []
    waiting = [0] * len(producers)

    def reported(at: int, sent_s: float) -> Any:
        def report(error: Any, _message: Any) -> None:
            assert error is None, error
            latencies.append(time.perf_counter() - sent_s)
            waiting[at] -= 1

        return report

    each = max(1, IN_FLIGHT // len(producers))
    cpu, began_s = cpu_seconds(pid), time.perf_counter()
    for number in range(batches):
        at = number % len(producers)
        producer, partition = producers[at], number % case.partitions
        while waiting[at] >= each:
            producer.poll(0.1)
        waiting[at] += 1
        for value in values[:-1]:
            producer.produce(case.topic, value, partition=partition)
        report = reported(at, time.perf_counter())
        producer.produce(case.topic, values[-1], partition=partition, on_delivery=report)
        producer.poll(0)
    for producer in producers:
        assert producer.flush(TIMEOUT_S) == 0
    found = Produced(cpu_seconds(pid) - cpu, time.perf_counter() - began_s, latencies)
    assert len(latencies) == batches
    return found


def fetch(brokers: str, pid: int, case: Case, count: int, first: int = 0) -> float:
    """Return the CPU seconds of the server while one consumer reads `count` records, from this offset of each
    partition on.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "bench",
            "enable.auto.commit": "false",
            "auto.offset.reset": "error",
            "queued.max.messages.kbytes": 64 * 1024,
        }
    )
    try:
        cpu, deadline_s = cpu_seconds(pid), time.monotonic() + TIMEOUT_S
        consumer.assign([TopicPartition(case.topic, number, first) for number in range(case.partitions)])
        found = 0
        while found < count:
            assert time.monotonic() < deadline_s, f"{found} of {count} records of {case.topic}"
            messages = consumer.consume(10_000, 0.1)
            assert all(message.error() is None for message in messages)
            found += len(messages)
        return cpu_seconds(pid) - cpu
    finally:
        consumer.close()


def summary(runs: dict[str, list[Produced]], fetched: dict[str, list[float]], batches: int) -> dict[str, Any]:
    """Return the figures of one case. Ratios compare this listener with Kafka in the same round."""
    megabytes, count = batches * BATCH_BYTES / 1e6, batches * BATCH_RECORDS
    servers = {
        name: {
            "produce_mb_per_core_second": spread([megabytes / run.cpu_s for run in runs[name]]),
            "produce_mb_per_wall_second": spread([megabytes / run.wall_s for run in runs[name]]),
            "acknowledgement_ms": {
                f"p{share}": round(
                    1000
                    * float(np.percentile(np.concatenate([run.latencies_s for run in runs[name]]), share)),
                    1,
                )
                for share in (50, 99)
            },
            "fetch_records_per_core_second": spread([count / cpu_s for cpu_s in fetched[name]]),
        }
        for name in SERVERS
    }
    pairs = zip(runs["kafka"], runs["archiver"], strict=True)
    reads = zip(fetched["kafka"], fetched["archiver"], strict=True)
    return {
        **servers,
        "produce_ratio": spread([kafka.cpu_s / ours.cpu_s for kafka, ours in pairs]),
        "fetch_ratio": spread([kafka / ours for kafka, ours in reads]),
    }


def measure(batches: int, repetitions: int, quick: bool) -> dict[str, Any]:
    """The result document."""
    values, loads = records(), cases(quick)
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="bench-kafka-") as folder,
        KafkaServer(Path(folder) / "kafka", java=JAVA) as server,
        archiver(Path(folder) / "archiver", quick) as (address, pid),
    ):
        cluster = Cluster(server.brokers)
        targets = {"archiver": (address, pid), "kafka": (server.brokers, server.pid)}
        for case in loads:
            cluster.create(case.topic, case.partitions)
            runs: dict[str, list[Produced]] = {name: [] for name in SERVERS}
            fetched: dict[str, list[float]] = {name: [] for name in SERVERS}
            # The first rounds warm up. The first case has more of them, because Java compiles.
            warm = 1 if found or quick else WARM_ROUNDS
            for repetition in range(-warm, repetitions):
                for name in SERVERS if repetition % 2 else reversed(SERVERS):
                    run = produce(*targets[name], case, batches, values)
                    if repetition >= 0:
                        runs[name].append(run)
            for repetition in range(-warm, repetitions):
                for name in SERVERS if repetition % 2 else reversed(SERVERS):
                    cpu_s = fetch(*targets[name], case, batches * BATCH_RECORDS)
                    if repetition >= 0:
                        fetched[name].append(cpu_s)
            found[case.topic] = summary(runs, fetched, batches)
            ratios = {key: found[case.topic][key]["median"] for key in ("produce_ratio", "fetch_ratio")}
            print(case.topic, ratios, file=sys.stderr, flush=True)
    produce_ratio, fetch_ratio = (
        min(one[f"{what}_ratio"]["median"] for one in found.values()) for what in ("produce", "fetch")
    )
    return {
        "what": "MB produced and records fetched per CPU second of the server process, this listener and "
        "Apache Kafka's broker, in the same run",
        "record_bytes": RECORD_BYTES,
        "batch_records": BATCH_RECORDS,
        "batches": batches,
        "repetitions": repetitions,
        "cases": found,
        "lowest_produce_ratio": produce_ratio,
        "lowest_fetch_ratio": fetch_ratio,
        "wanted_produce_ratio": TARGET,
        "wanted_fetch_ratio": TARGET,
        "reached": min(produce_ratio, fetch_ratio) >= TARGET,
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
        "versions": {
            "python": platform.python_version(),
            "pyarrow": version("pyarrow"),
            "kafka": PACKAGES[0].rpartition(":")[2],
            "librdkafka": confluent_kafka.libversion()[0],
        },
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=1000, help="batches per run")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two cases, once: a smoke test")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, cases(options.quick))
        return
    batches, repetitions = (500, 1) if options.quick else (options.batches, options.repetitions)
    tell(measure(batches, repetitions, options.quick), options.output)


if __name__ == "__main__":
    main()

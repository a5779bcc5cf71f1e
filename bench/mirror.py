"""Measures how fast the mirror ingests a Kafka topic, compared with a bare consumer that only
collects the fields.

The broker is real, has one node on loopback, and a topic of 4 partitions. Records have about 150
raw bytes, with a header on every fourth. This process runs on one core and the broker on the
others.

- The *bare* consumer uses librdkafka. It reads every record with `consume` and puts topic,
  partition, offset, timestamp, key, value and headers into lists.
- The *mirror* does the daemon's whole work. It reads the same records, stores them as synced intake
  files in a local folder, and appends them to a log in SQLite.

For the mirror, Python's garbage collector is configured as in a daemon; for the bare consumer it
has its defaults. Rounds alternate. A ratio compares both within one round. It is of records per CPU
second of the process (including librdkafka's threads) and per wall second.

    python -m bench.mirror [--records 400000] [--repetitions 5] [--quick] [--output bench/results/mirror.json]
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from archiver.config.groups import LogSettings
from archiver.daemon.limits import collect_less_often
from archiver.log.sqlite import SqliteLogStore
from archiver.objects.local import LocalObjectStore
from bench.outcome import tell
from tests.support.kafka.kafka_server import KafkaServer
from tests.support.kafka.mirroring import Cluster, Site

PARTITIONS = 4
TOPIC = "bench"
TARGET_RATIO = 0.7
TARGET_RECORD_US = 0.4
"""CPU time of a record."""
POLL_RECORDS = 10_000


def fill(brokers: str, count: int) -> None:
    """Produce the records."""
    producer = Producer(
        {"bootstrap.servers": brokers, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000}
    )
    for number in range(count):
        value = b"%016x" % (
            number * 0x9E3779B97F4A7C15 % 2**64
        ) * 4 + b"customer=%05d;state=shipped;currency=EUR;warehouse=%03d" % (
            number % 2000,
            number % 300,
        )
        headers: Any = {"headers": [("trace", b"0123456789abcdef")]} if number % 4 == 0 else {}
        producer.produce(
            TOPIC, value, b"order-%06d" % number, partition=number // 500 % PARTITIONS, **headers
        )
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def timed(run: Callable[[], object]) -> tuple[float, float]:
    """Return CPU and wall seconds of `run`."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return time.process_time() - cpu, time.perf_counter() - wall


def bare(brokers: str, count: int) -> tuple[float, float]:
    """Return CPU and wall seconds of a consumer that only collects the fields."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers,
            "group.id": "bench",
            "enable.auto.commit": "false",
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "check.crcs": "true",
            "queued.min.messages": "100000",
            "queued.max.messages.kbytes": str(32 * 1024),
        }
    )

    def run() -> None:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        found = 0
        while found < count:
            messages = consumer.consume(POLL_RECORDS, 0.1)
            assert all(message.error() is None for message in messages)
            fields = (
                [message.topic() for message in messages],
                [message.partition() for message in messages],
                [message.offset() for message in messages],
                [message.timestamp() for message in messages],
                [message.key() for message in messages],
                [message.value() for message in messages],
                [message.headers() for message in messages],
            )
            found += len(fields[0])

    spent = timed(run)
    consumer.close()
    return spent


def mirrored(brokers: str, count: int, folder: Path) -> tuple[float, float]:
    """Return CPU and wall seconds of the mirror."""
    logs = SqliteLogStore(folder / "metadata.db", 30, LogSettings().entry_bytes_max)
    site = Site(brokers, logs.log("intake"), LocalObjectStore(folder / "data"))
    process = site.process(TOPIC, delay_max=0.2)
    plain = gc.get_threshold()
    collect_less_often()  # as a daemon does

    def run() -> None:
        while process.state.records < count:
            process.step()

    spent = timed(run)
    gc.set_threshold(*plain)
    assert (process.kinds, process.state.records) == ([], count)
    process.close()
    assert sum(len(site.gaps(TOPIC, partition)) for partition in range(PARTITIONS)) == 0
    logs.close()
    return spent


def spread(numbers: list[float]) -> dict[str, float]:
    """Return minimum, median and maximum."""
    return {
        "min": round(min(numbers), 3),
        "median": round(statistics.median(numbers), 3),
        "max": round(max(numbers), 3),
    }


def measure(count: int, repetitions: int) -> dict[str, Any]:
    """The result document."""
    cores = sorted(os.sched_getaffinity(0))
    found: dict[str, list[tuple[float, float]]] = {"bare": [], "mirror": []}
    root = Path(tempfile.mkdtemp(prefix="bench-mirror-"))
    try:
        os.sched_setaffinity(0, set(cores[1:] or cores))  # the broker inherits this affinity
        with KafkaServer(root / "kafka") as server:
            cluster = Cluster(server.brokers)
            cluster.create(TOPIC, PARTITIONS)
            fill(server.brokers, count)
            del cluster
            os.sched_setaffinity(0, {cores[0]})
            for repetition in range(repetitions + 1):
                alone = bare(server.brokers, count)
                ours = mirrored(server.brokers, count, root / f"site-{repetition}")
                shutil.rmtree(root / f"site-{repetition}")
                if repetition:  # the first run warms up
                    found["bare"].append(alone)
                    found["mirror"].append(ours)
    finally:
        os.sched_setaffinity(0, set(cores))
        shutil.rmtree(root)
    ratios = [
        [alone[at] / ours[at] for alone, ours in zip(found["bare"], found["mirror"], strict=True)]
        for at in (0, 1)
    ]
    record_us = spread([1e6 * cpu / count for cpu, _ in found["mirror"]])
    return {
        "what": "records of a Kafka topic taken in by the mirror, beside a bare consumer that only collects "
        "the fields, on the same core",
        "records": count,
        "partitions": PARTITIONS,
        "repetitions": repetitions,
        **{
            f"{name}_records_per_core_second": spread([count / cpu for cpu, _ in spent])
            for name, spent in found.items()
        },
        **{
            f"{name}_records_per_wall_second": spread([count / wall for _, wall in spent])
            for name, spent in found.items()
        },
        "ratio_of_core_seconds": spread(ratios[0]),
        "ratio_of_wall_seconds": spread(ratios[1]),
        "mirror_us_per_record": record_us,
        "wanted_ratio": TARGET_RATIO,
        "wanted_us_per_record": TARGET_RECORD_US,
        "reached": statistics.median(ratios[1]) >= TARGET_RATIO and record_us["median"] <= TARGET_RECORD_US,
        "versions": {
            "python": platform.python_version(),
            "pyarrow": pa.__version__,
            "confluent-kafka": confluent_kafka.__version__,
            "librdkafka": confluent_kafka.libversion()[0],
        },
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="few records, once: a smoke test")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    document = measure(20_000, 1) if options.quick else measure(options.records, options.repetitions)
    tell(document, options.output)


if __name__ == "__main__":
    main()

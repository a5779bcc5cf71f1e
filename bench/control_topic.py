"""Measures how fast control events are published, compared with a bare producer of the same library
and bytes.

The broker is real, has one node on loopback, and a topic of 4 partitions. This process runs on one
core and the broker on the others. The ledger is in SQLite. Its rounds have one table or twenty,
each with the five kinds of events.

- The *publisher* does the daemon's whole work (docs/operations/control-topic.md). It reads the
  ledger and sends events in waves; each wave is acknowledged before the next. It stores its
  position with a sync.
- The *bare* producer is idempotent too and waits for the same acknowledgements. It gets all events
  at once and is flushed.

Rounds of both alternate, each in its own topic. A ratio compares both within one round. It is of
events per CPU second of the process (including librdkafka's threads) and per wall second. `waves`
is how often the publisher waits for the broker.

    python -m bench.control_topic [--events 4000] [--repetitions 7] [--quick] [--output
    bench/results/control_topic.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import Producer

from archiver.config.groups import LogSettings
from archiver.control_topic.kafka_topic import KafkaTopic
from archiver.control_topic.waves import TopicRecord, record_of, waves
from archiver.ledger.event_reader import LedgerEvent
from archiver.log.sqlite import SqliteLogStore
from archiver.log.store import Log
from archiver.runtime.clock import SystemClock
from bench.mirror import spread, timed
from bench.outcome import tell
from tests.support.kafka.control_topic import (
    CLUSTER,
    LedgerWriter,
    Rig,
    check_is_ledger,
    events_of,
    seen_in,
    settings_of,
)
from tests.support.kafka.kafka_server import KafkaServer
from tests.support.kafka.mirroring import Cluster
from tests.support.objects.memory_store import MemoryObjectStore

PARTITIONS = 4
TABLES = (1, 20)
"""Tables per round."""
CLOCK = SystemClock()


def logs_in(file: Path) -> SqliteLogStore:
    """Open a metadata store in SQLite."""
    return SqliteLogStore(file, 30, LogSettings().entry_bytes_max)


def fill(log: Log, tables: int, events_min: int) -> None:
    """Append whole rounds until the log has at least `events_min` events."""
    writer, events = LedgerWriter(log), 0
    while events < events_min:
        writer.round(*range(1, tables + 1))
        events += 2 * tables + 3


def published(brokers: str, topic: str, control: Log, folder: Path) -> tuple[float, float]:
    """Return the CPU and wall seconds of the publisher."""
    settings = settings_of(brokers=brokers, topic=topic)
    with closing(logs_in(folder / f"{topic}.db")) as logs:
        rig = Rig(control, logs.log("published"), MemoryObjectStore(), CLOCK)
        with closing(rig.publisher(lambda: KafkaTopic(settings, CLOCK), topic=topic)) as publisher:
            spent = timed(publisher.run)
        assert publisher.state.events
    return spent


def bare(brokers: str, topic: str, records: Sequence[TopicRecord]) -> tuple[float, float]:
    """Return the CPU and wall seconds of a producer that only sends."""
    producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True, "acks": "all"})
    assert topic in producer.list_topics(topic, timeout=30).topics
    failed: list[str] = []

    def run() -> None:
        for record in records:
            producer.produce(
                topic,
                record.value,
                record.key,
                headers=list(record.headers),
                on_delivery=lambda error, _: failed.append(error.str()) if error else None,
            )
            producer.poll(0)
        assert producer.flush(60) == 0

    spent = timed(run)
    assert not failed, failed[0]
    return spent


def compared(
    brokers: str, cluster: Cluster, folder: Path, control: Log, tables: int, repetitions: int
) -> dict[str, Any]:
    """Compare publisher and producer for a ledger whose rounds have `tables` tables."""
    events: list[LedgerEvent] = events_of(control)
    records = [record_of(CLUSTER, event) for event in events]
    found: dict[str, list[tuple[float, float]]] = {"publisher": [], "bare": []}
    for repetition in range(repetitions + 1):
        ours, theirs = (
            cluster.create(f"{who}-{tables}-{repetition}", PARTITIONS) for who in ("ours", "theirs")
        )
        spent = {
            "publisher": published(brokers, ours, control, folder),
            "bare": bare(brokers, theirs, records),
        }
        if repetition:  # the first run warms up
            for who, one in spent.items():
                found[who].append(one)
        else:
            assert check_is_ledger(seen_in(brokers, ours, PARTITIONS), events) == 0
    ratios = [
        [theirs[at] / ours[at] for ours, theirs in zip(found["publisher"], found["bare"], strict=True)]
        for at in (0, 1)
    ]
    return {
        "tables_of_a_round": tables,
        "events": len(events),
        "bytes_of_an_event": round(sum(len(event.data) for event in events) / len(events)),
        "waves": sum(1 for _ in waves(events)),
        **{
            f"{who}_events_per_core_second": spread([len(events) / cpu for cpu, _ in spent])
            for who, spent in found.items()
        },
        **{
            f"{who}_events_per_wall_second": spread([len(events) / wall for _, wall in spent])
            for who, spent in found.items()
        },
        "ratio_of_core_seconds": spread(ratios[0]),
        "ratio_of_wall_seconds": spread(ratios[1]),
    }


def measure(count: int, repetitions: int) -> dict[str, Any]:
    """The result document."""
    cores = sorted(os.sched_getaffinity(0))
    root = Path(tempfile.mkdtemp(prefix="bench-control-topic-"))
    try:
        os.sched_setaffinity(0, set(cores[1:] or cores))  # the broker inherits this affinity
        with KafkaServer(root / "kafka") as server:
            cluster = Cluster(server.brokers)
            os.sched_setaffinity(0, {cores[0]})
            cases = []
            for tables in TABLES:
                with closing(logs_in(root / f"ledger-{tables}.db")) as logs:
                    fill(logs.log("control"), tables, count)
                    cases.append(
                        compared(server.brokers, cluster, root, logs.log("control"), tables, repetitions)
                    )
    finally:
        os.sched_setaffinity(0, set(cores))
        shutil.rmtree(root)
    return {
        "what": "control events published from the ledger, beside a bare producer that is "
        "given the same bytes "
        "at once, on the same core",
        "partitions": PARTITIONS,
        "repetitions": repetitions,
        "cases": cases,
        "load": round(os.getloadavg()[0], 1),
        "versions": {
            "python": platform.python_version(),
            "confluent-kafka": confluent_kafka.__version__,
            "librdkafka": confluent_kafka.libversion()[0],
        },
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=4_000)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="few events, once: a smoke test")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    document = measure(60, 1) if options.quick else measure(options.events, options.repetitions)
    tell(document, options.output)


if __name__ == "__main__":
    main()

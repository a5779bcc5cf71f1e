"""Measures stored bytes per received byte, compared with a Kafka broker's segments, and the GETs
for intake files.

For each message of bench/cost_messages.py:

- bytes: the writer stores the records in a local folder, and the code behind `archiver archive`
  archives them into a table. A real producer sends the same records to a real broker with
  `compression.type=zstd`, in batches of at most 16 KiB and 1 MiB. Received bytes are those of keys
  and values. Segments are the broker's `.log` files, without their indexes;
- `archive_cpu_s_per_gib`: CPU seconds of all processes per GiB received, from the log to the
  commit, on a warm session;
- `intake_reads`: GETs for one full intake file of 288 partitions, summed over all tasks, by the
  number of tasks that share its partitions. A proxy in front of s3proxy counts them.

bench/cost_model.py derives monthly costs from the results.

    python -m bench.cost [--quick] [--bytes 256MiB] [--repetitions 3] [--output bench/results/cost.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer
from pydantic import TypeAdapter

from archiver.app.application import Application
from archiver.config.groups import IntakeSettings, LogSettings
from archiver.config.settings import load_settings
from archiver.config.types import Size
from archiver.objects.cluster import ensure_cluster
from archiver.objects.location import S3Options, StorePlace
from archiver.objects.s3.store import S3ObjectStore
from archiver.runtime.clock import SystemClock
from archiver.runtime.ids import SystemIds
from bench.cost_messages import MESSAGES
from bench.deployment import write_configuration
from bench.intake_files import CHUNK_ROWS, FILES_MIN, KEY_BYTES, bytes_of, send
from bench.outcome import tell
from bench.processes import own_cpu_seconds
from bench.requests import GIB
from bench.shapes import Shape
from bench.writer import spread
from intake.log.sequencer import Sequencer
from intake.read.reader import IntakeReader
from intake.records import RECORD_SCHEMA
from intake.segments import SegmentRef
from intake.write.writer import IntakeWriter
from tests.support.kafka import kafka_server
from tests.support.kafka.kafka_server import KafkaServer
from tests.support.kafka.mirroring import Cluster
from tests.support.log.memory_log import MemoryLogStore
from tests.support.objects.s3_faults import S3Faults
from tests.support.objects.s3_server import ACCESS_KEY_ID, PACKAGE, REGION, SECRET_ACCESS_KEY, S3Server

PARTITIONS = 4
SAMPLE_ROWS = 10_000
"""Sample that gives the mean bytes of a record."""
BATCHES: Mapping[str, Mapping[str, Any]] = {
    "16KiB": {"batch.size": 16 * 1024, "linger.ms": 5},
    "1MiB": {
        "batch.size": 2**20,
        "linger.ms": 100,
        "batch.num.messages": 1_000_000,
        "message.max.bytes": 2 * 2**20,
    },
}
"""The defaults of Kafka's own producer, and the settings of Bufstream's published benchmark."""
PRODUCE_TIMEOUT_S = 300
FILE_PARTITIONS = 288
"""Partitions of the topic in the published benchmark."""
FILE_BYTES = (15_000_000, 60_000_000)
TASKS = (1, 4, 16, 72, 288)
TASKS_READ = 12
"""At most so many of the tasks that share a file are run; they are alike."""


def records_of(shape: Shape, size: int) -> int:
    """Return how many records have about `size` bytes of keys and values."""
    sample = bytes_of(shape.make(SAMPLE_ROWS, 0)) + KEY_BYTES * SAMPLE_ROWS
    return max(FILES_MIN, size * SAMPLE_ROWS // sample)


def folder_bytes(folder: Path, pattern: str) -> int:
    """Return the bytes of the folder's files that match the pattern."""
    return sum(path.stat().st_size for path in folder.glob(pattern) if path.is_file())


def archived(folder: Path, shape: Shape, records: int, repetitions: int) -> dict[str, Any]:
    """Return stored bytes and CPU time of archiving. The first run warms the session up and gives
    the byte counts.
    """
    application = Application(
        load_settings(write_configuration(folder, shape, PARTITIONS), os.environ), os.environ
    )
    found: dict[str, Any] = {}
    cpu: list[float] = []
    try:
        for _ in range(repetitions + 1):
            with application.intake.writer() as writer:
                send(writer, records, shape.make)
            before = own_cpu_seconds()
            (topic,) = application.archiving.round(lambda _: None).run(everything=True).topics.values()
            cpu.append((own_cpu_seconds() - before) * GIB / topic.raw_bytes)
            assert topic.rows == records, topic
            found = found or {
                "raw_bytes": topic.raw_bytes,
                "intake_bytes": folder_bytes(folder / "data" / "intake", "**/*.parquet"),
                "archive_bytes": topic.stored_bytes,
                "archives": topic.archives,
                "metadata_bytes_of_first_commit": folder_bytes(folder / "data" / "archive", "*/metadata/*"),
            }
    finally:
        application.close()
    return {**found, "archive_cpu_s_per_gib": spread(cpu[1:])}


def batches(shape: Shape, records: int) -> Iterator[tuple[int, list[Any]]]:
    """Yield the values that `send` makes, with the number of the first."""
    step = max(1, min(CHUNK_ROWS, records // FILES_MIN))
    for first in range(0, records, step):
        yield first, shape.make(min(step, records - first), first).to_pylist()


def produced(
    server: KafkaServer, shape: Shape, records: int, properties: Mapping[str, Any]
) -> tuple[int, int]:
    """Return the bytes of keys and values, and of the broker's segments once all records are
    acknowledged.
    """
    topic = Cluster(server.brokers).create(server.new_name(), PARTITIONS)
    settings = {
        "bootstrap.servers": server.brokers,
        "acks": "all",
        "compression.type": "zstd",
        "partitioner": "murmur2",
        **properties,
    }
    producer = Producer(
        {**settings, "queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 2**20}
    )
    failed: list[str] = []
    raw = 0

    def reported(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(str(error))

    for first, values in batches(shape, records):
        for number, value in enumerate(values, first):
            producer.produce(
                topic,
                value,
                b"%012d" % number,
                timestamp=1_700_000_000_000 + number // 20,
                on_delivery=reported,
            )
            raw += KEY_BYTES + len(value)
        assert producer.flush(PRODUCE_TIMEOUT_S) == 0, "the broker has not acknowledged all records"
    assert not failed, failed[0]
    return raw, folder_bytes(server.data, f"{topic}-*/*.log")


def stored(folder: Path, server: KafkaServer, name: str, size: int, repetitions: int) -> dict[str, Any]:
    """Return the stored bytes of one message, here and in Kafka, and their ratios to the received
    bytes.
    """
    shape = MESSAGES[name]
    records = records_of(shape, size)
    found = archived(folder, shape, records, repetitions)
    shutil.rmtree(folder)
    raw = found["raw_bytes"]
    segments: dict[str, int] = {}
    for batch, properties in BATCHES.items():
        sent, segments[batch] = produced(server, shape, records, properties)
        assert sent == raw, (sent, raw)
    by_raw = {"intake": found["intake_bytes"] / raw, "archive": found["archive_bytes"] / raw}
    by_raw |= {f"kafka_{batch}": held / raw for batch, held in segments.items()}
    return {
        "records": records,
        "raw_bytes_per_record": round(raw / records, 1),
        **found,
        "kafka_segment_bytes": segments,
        "by_raw": {what: round(ratio, 4) for what, ratio in by_raw.items()},
        "archive_by_kafka": {
            batch: round(found["archive_bytes"] / held, 3) for batch, held in segments.items()
        },
    }


def one_batch(shape: Shape, rows: int) -> pa.RecordBatch:
    """Return a batch of records without headers."""
    keys = pa.array([b"%012d" % number for number in range(rows)], pa.binary())
    headers = pa.array([[]] * rows, RECORD_SCHEMA.field("headers").type)
    times = pa.array(1_700_000_000_000_000 + np.arange(rows) * 50).cast(
        RECORD_SCHEMA.field("event_timestamp").type
    )
    return pa.RecordBatch.from_arrays([keys, shape.make(rows, 0), headers, times], schema=RECORD_SCHEMA)


def intake_reads(server: S3Server, proxy: S3Faults, shape: Shape, size: int) -> dict[str, Any]:
    """Return size and GETs of one intake file of `size` raw bytes."""
    uri = f"s3://{server.new_bucket()}/bench"
    keys = {"access_key_id": ACCESS_KEY_ID, "secret_access_key": SECRET_ACCESS_KEY}
    place = StorePlace(
        uri, S3Options(endpoint=proxy.uri, region=REGION, path_style=True, part_bytes=size, **keys)
    )
    cluster = ensure_cluster(S3ObjectStore(place), "bench", SystemIds(), SystemClock()).cluster_id
    objects = S3ObjectStore(place, cluster)
    settings = LogSettings()
    sequencer = Sequencer(
        MemoryLogStore(settings.entry_bytes_max).log("intake"), SystemIds(), SystemClock(), settings
    )
    topic_id = sequencer.declare_topic("orders", FILE_PARTITIONS).topic_id
    roomy = IntakeSettings(delay_max=60.0, delay_max_bytes=2 * size, queue_bytes_max=8 * size)
    with IntakeWriter(objects, sequencer, roomy, SystemClock(), SystemIds()) as writer:
        writer.send_batch("orders", one_batch(shape, records_of(shape, size)))
        writer.flush()
    segments = [list(sequencer.fold.segments((topic_id, partition))) for partition in range(FILE_PARTITIONS)]
    (file,) = {segment.file for of_partition in segments for segment in of_partition}
    found = {str(tasks): gets(proxy, objects, segments, tasks) for tasks in TASKS}
    return {
        "file_bytes": file.size,
        "row_groups": 1 + max(one.row_group for of_partition in segments for one in of_partition),
        "gets": found,
    }


def gets(
    proxy: S3Faults, objects: S3ObjectStore, segments: Sequence[Sequence[SegmentRef]], tasks: int
) -> float:
    """Return the GETs of all tasks together. Each task has an equal share of adjacent partitions."""
    share = len(segments) // tasks
    chosen = sorted({round(number) for number in np.linspace(0, tasks - 1, min(tasks, TASKS_READ))})
    proxy.counts()  # resets its list of requests
    for task in chosen:
        wanted = [
            segment
            for of_partition in segments[task * share : (task + 1) * share]
            for segment in of_partition
        ]
        rows = sum(records.num_rows for _, records in IntakeReader(objects).read(wanted[0].file, wanted))
        assert rows == sum(segment.rows for segment in wanted)
    return round(proxy.counts()["get"] * tasks / len(chosen), 1)


def measure(
    names: Sequence[str], size: int, file_bytes: Sequence[int], repetitions: int, folder: Path
) -> dict[str, Any]:
    """The result document."""
    with KafkaServer(folder / "kafka") as broker:
        messages = {name: stored(folder / name, broker, name, size, repetitions) for name in names}
    with S3Server(folder / "s3") as server, S3Faults(server) as proxy:
        for name, found in messages.items():
            found["intake_reads"] = {
                str(each): intake_reads(server, proxy, MESSAGES[name], each) for each in file_bytes
            }
            print(
                f"{name}: {found['by_raw']}, {found['archive_cpu_s_per_gib']}, {found['intake_reads']}",
                file=sys.stderr,
                flush=True,
            )
    return {
        "what": "bytes stored for bytes received, here and in a Kafka broker's segments "
        "with zstd; GETs for an "
        "intake file shared by tasks",
        "partitions": PARTITIONS,
        "partitions_of_file": FILE_PARTITIONS,
        "repetitions": repetitions,
        "messages": messages,
        "batches": {batch: dict(properties) for batch, properties in BATCHES.items()},
        "load_average": os.getloadavg(),
        "machine": {"cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        "versions": {
            "python": platform.python_version(),
            **{
                name: version(name)
                for name in ("pyarrow", "ptars", "pyspark", "pyiceberg", "confluent-kafka", "boto3")
            },
            "packages": [kafka_server.PACKAGES[0], PACKAGE],
        },
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bytes", default="256MiB", help="bytes of keys and values, for each message")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one message and few records: a smoke test")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    size: int = TypeAdapter(Size).validate_python("1MiB" if options.quick else options.bytes)
    names, files, repetitions = list(MESSAGES), FILE_BYTES, options.repetitions
    if options.quick:
        names, files, repetitions = names[:1], FILE_BYTES[:1], 1
    folder = Path(tempfile.mkdtemp(prefix="bench-cost-"))
    try:
        document = measure(names, size, files, repetitions, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    tell(document, options.output)


if __name__ == "__main__":
    main()

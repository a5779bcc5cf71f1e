"""How fast refinement on Spark is, from intake files to stored archives, against the bare libraries.

Ours: plans, bundles and a warm session on local[2]; demultiplexed into one archive per partition, ingest times, digests, statistics and
bounds, the byte-exact check, fsync and conditional create included. Baseline: two processes of plain pyarrow and ptars that read the same
intake files (half each), decode, encode again and compare, and write one synced Parquet file each at the same zstd level; once with
pyarrow's default encodings and once with ours (`tuned`). Repetitions are interleaved. The ratio is baseline seconds / our seconds: 1 is as
fast as the bare libraries. CPU seconds of all processes stand beside it, because wall time on a shared machine says little.

    python -m bench.refine [--records 2000000] [--repetitions 5] [--output bench/results/refine.json]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2

from archiver.clock import SystemClock
from archiver.ids import SystemIds, TopicId
from archiver.jobs.bundle import bundle
from archiver.jobs.plan import Plan, plan_partition
from archiver.jobs.refine_spark import SparkRefiner
from archiver.jobs.refined import RefineJob, RefineOptions, RefineTopic
from archiver.log.memory import MemoryLogStore
from archiver.objects.local import LocalObjectStore
from archiver.objects.paths import cluster_key
from archiver.objects.place import StorePlace
from archiver.schema.descriptors import Source
from archiver.schema.state import TopicSchema, decide
from archiver.settings_groups import IntakeSettings, LogSettings, SparkSettings
from archiver.spark_session import SparkSessions
from intake.records import RECORD_SCHEMA
from intake.sequencer import Sequencer
from intake.writer import IntakeWriter

PARTITIONS = 16
CORES = 2
CLUSTER = "c" * 32
WANTED_RATIO = 0.7
ZSTD_LEVEL = 1
_F = descriptor_pb2.FieldDescriptorProto
_DECODE_ROWS = 65_536


def order_file() -> descriptor_pb2.FileDescriptorProto:
    """An order with lines, tags and a state."""
    file = descriptor_pb2.FileDescriptorProto(name="bench.proto", package="bench", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("STATE_UNKNOWN", "STATE_NEW", "STATE_PAID", "STATE_SHIPPED")):
        state.value.add(name=name, number=number)
    line = file.message_type.add(name="Line")
    _field(line, "sku", 1, _F.TYPE_STRING)
    _field(line, "quantity", 2, _F.TYPE_INT32)
    _field(line, "price_cents", 3, _F.TYPE_INT64)
    order = file.message_type.add(name="Order")
    _field(order, "id", 1, _F.TYPE_INT64)
    _field(order, "customer", 2, _F.TYPE_STRING)
    _field(order, "state", 3, _F.TYPE_ENUM, ".bench.State")
    _field(order, "created", 4, _F.TYPE_MESSAGE, ".google.protobuf.Timestamp")
    _field(order, "lines", 5, _F.TYPE_MESSAGE, ".bench.Line", repeated=True)
    entry = order.nested_type.add(name="TagsEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    _field(entry, "key", 1, _F.TYPE_STRING)
    _field(entry, "value", 2, _F.TYPE_STRING)
    _field(order, "tags", 6, _F.TYPE_MESSAGE, ".bench.Order.TagsEntry", repeated=True)
    _field(order, "total", 7, _F.TYPE_DOUBLE)
    _field(order, "gift", 8, _F.TYPE_BOOL)
    return file


def _field(message: Any, name: str, number: int, kind: Any, type_name: str | None = None, repeated: bool = False) -> None:
    label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
    message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)


def descriptor_set() -> bytes:
    """The order and what it imports."""
    imported = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(imported)
    return descriptor_pb2.FileDescriptorSet(file=[imported, order_file()]).SerializeToString()


def handler() -> Any:
    """Plain ptars for the order."""
    import ptars

    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptor_set()).file:
        pool.Add(file)
    message = pool.FindMessageTypeByName("bench.Order")
    config = ptars.PtarsConfig(timestamp_unit="us")
    return ptars.HandlerPool([message.file], config=config).get_for_message(message)


def make_values(count: int, seed: int) -> pa.Array[Any]:
    """Serialized orders of about 150 bytes."""
    random = np.random.default_rng(seed)
    lines = random.integers(1, 5, count)
    tags = random.integers(0, 3, count)
    schema = handler().schema()
    columns: dict[str, Any] = {
        "id": pa.array(random.integers(1, 1 << 40, count)),
        "customer": pa.array([f"customer-{n:06}" for n in random.integers(0, 200_000, count).tolist()]),
        "state": pa.array(random.integers(0, 4, count).astype(np.int32)),
        "created": pa.array(1_700_000_000_000_000 + np.cumsum(random.integers(0, 2000, count)), pa.timestamp("us", tz="UTC")),
        "lines": _lists(schema.field("lines").type, lines, _line_columns(random, int(lines.sum()))),
        "tags": _map(schema.field("tags").type, tags, random),
        "total": pa.array(np.round(random.uniform(1, 900, count), 2)),
        "gift": pa.array(random.random(count) < 0.1),
    }
    arrays = [columns[field.name].cast(field.type) for field in schema]
    values: pa.Array[Any] = handler().record_batch_to_array(pa.RecordBatch.from_arrays(arrays, schema=schema)).cast(pa.binary())
    return values


def _line_columns(random: Any, count: int) -> dict[str, pa.Array[Any]]:
    return {
        "sku": pa.array([f"sku-{n:05}" for n in random.integers(0, 20_000, count).tolist()]),
        "quantity": pa.array(random.integers(1, 9, count).astype(np.int32)),
        "price_cents": pa.array(random.integers(99, 99_999, count)),
    }


def _lists(kind: Any, lengths: Any, children: dict[str, pa.Array[Any]]) -> pa.Array[Any]:
    offsets: Any = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    fields = list(kind.value_type)
    items = pa.StructArray.from_arrays([children[field.name].cast(field.type) for field in fields], fields=fields)
    found: pa.Array[Any] = pa.ListArray.from_arrays(offsets, items, type=kind)
    return found


def _map(kind: Any, lengths: Any, random: Any) -> pa.Array[Any]:
    offsets: Any = pa.array(np.concatenate(([0], np.cumsum(lengths))).astype(np.int32))
    names = ("channel", "campaign")
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    keys: Any = pa.array([names[n] for n in within.tolist()])
    items = pa.array([f"value-{n:03}" for n in random.integers(0, 500, len(within)).tolist()])
    found: pa.Array[Any] = pa.MapArray.from_arrays(offsets, keys, items, type=kind)
    return found


def fill_intake(
    count: int, folder: Path, make: Callable[[int, int], pa.Array[Any]] = make_values
) -> tuple[Sequencer, LocalObjectStore, TopicId, int]:
    """Send the records through the writer of the product; returns also the raw bytes. `make`: values from a count and a seed."""
    objects = LocalObjectStore(folder / "data")
    identity = {"format": 1, "cluster_id": CLUSTER, "name": "bench"}
    objects.create(cluster_key(), json.dumps(identity).encode())
    settings = LogSettings()
    sequencer = Sequencer(MemoryLogStore(settings.entry_bytes_max).log("intake"), SystemIds(), SystemClock(), settings)
    topic = sequencer.declare_topic("orders", PARTITIONS)
    raw_bytes = 0
    with IntakeWriter(objects, sequencer, IntakeSettings(), SystemClock(), SystemIds()) as writer:
        for first in range(0, count, 200_000):
            rows = min(200_000, count - first)
            values = make(rows, first)
            keys = pa.array([b"%012d" % number for number in range(first, first + rows)], pa.binary())
            headers = pa.array([[]] * rows, RECORD_SCHEMA.field("headers").type)
            times = pa.array(1_700_000_000_000_000 + np.arange(first, first + rows) * 50).cast(RECORD_SCHEMA.field("event_timestamp").type)
            writer.send_batch("orders", pa.RecordBatch.from_arrays([keys, values, headers, times], schema=RECORD_SCHEMA))
            raw_bytes += values.get_total_buffer_size() + 12 * rows
        writer.flush()
    return sequencer, objects, topic.topic_id, raw_bytes


def plans_of(sequencer: Sequencer, topic_id: TopicId, epoch: int) -> list[Plan]:
    """Everything there is, cut as the product cuts by default."""
    fold = sequencer.fold
    found: list[Plan] = []
    for partition in range(PARTITIONS):
        tp = (topic_id, partition)
        found += plan_partition(tp, "orders", fold.segments(tp), 0, fold.stable_offset(tp), epoch, 128 * 2**20)
    return found


class Ours:
    """Refinement as `archiver archive` runs it."""

    def __init__(self, sequencer: Sequencer, objects: LocalObjectStore, topic_id: TopicId, sessions: SparkSessions) -> None:
        self._sequencer, self._objects, self._topic_id = sequencer, objects, topic_id
        self._schema: TopicSchema = decide("orders", (), None, Source("bench.Order", descriptor_set())).schema
        self._refiner = SparkRefiner(sessions.session)
        self._epoch = 0
        self.stored_bytes = 0

    def run(self) -> float:
        """Seconds from planning to the last result."""
        self._epoch += 1
        start = time.perf_counter()
        plans = plans_of(self._sequencer, self._topic_id, self._epoch)
        bundles = bundle(plans, CORES, SparkSettings().task_bytes, 64)
        topics = {self._topic_id: RefineTopic(self._topic_id, "orders", self._schema, "day")}
        job = RefineJob(
            CLUSTER, StorePlace(f"file://{self._objects.root}"), self._epoch, topics, bundles, RefineOptions(zstd_level=ZSTD_LEVEL)
        )
        results = self._refiner.refine(job)
        seconds = time.perf_counter() - start
        assert all(result.error is None for result in results), results
        files = [file for result in results for file in result.files]
        assert sum(file.archive.rows for file in files) == sum(plan.rows for plan in plans)
        self.stored_bytes = sum(file.archive.size for file in files)
        for file in files:
            self._objects.delete(file.archive.key)
        return seconds


def baseline_half(paths: list[str], target: str, options: dict[str, Any]) -> int:
    """What one process of the baseline does; returns the size of its file."""
    messages = handler()
    writer: pq.ParquetWriter | None = None
    pending: list[pa.RecordBatch] = []
    for path in paths:
        table = pq.read_table(path, columns=["key", "value", "headers", "event_timestamp", "accept_timestamp"], use_threads=False)
        for batch in table.combine_chunks().to_batches(max_chunksize=_DECODE_ROWS):
            values = batch.column("value")
            decoded = messages.array_to_record_batch(values)
            again = messages.record_batch_to_array(decoded)
            assert pc.all(pc.equal(again.cast(pa.binary()), values)).as_py()
            pending.append(_joined(batch.drop_columns(["value"]), decoded))
        if sum(one.num_rows for one in pending) >= 1_000_000:
            writer = _write(writer, pending, target, options)
    writer = _write(writer, pending, target, options)
    writer.close()
    descriptor = os.open(target, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return Path(target).stat().st_size


def _joined(left: pa.RecordBatch, right: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*left.columns, *right.columns], names=[*left.schema.names, *right.schema.names])


def _write(writer: pq.ParquetWriter | None, pending: list[pa.RecordBatch], target: str, options: dict[str, Any]) -> pq.ParquetWriter:
    table = pa.Table.from_batches(pending)
    pending.clear()
    if writer is None:
        writer = pq.ParquetWriter(target, table.schema, compression="zstd", compression_level=ZSTD_LEVEL, **options)
    writer.write_table(table, row_group_size=max(1, table.num_rows))
    return writer


TUNED: dict[str, Any] = {
    "use_dictionary": [
        "key",
        "customer",
        "lines.list.element.sku",
        "tags.key_value.key",
        "tags.key_value.value",
        "headers.list.element.key",
    ],
    "column_encoding": dict.fromkeys(
        ("event_timestamp", "accept_timestamp", "id", "state", "created", "lines.list.element.quantity", "lines.list.element.price_cents"),
        "DELTA_BINARY_PACKED",
    ),
    "write_statistics": ["key", "event_timestamp", "accept_timestamp", "id", "customer", "state", "created", "total", "gift"],
    "store_schema": False,
}


class Baseline:
    """pyarrow and ptars alone in two processes that live on."""

    def __init__(self, objects: LocalObjectStore, folder: Path, options: dict[str, Any], pool: ProcessPoolExecutor) -> None:
        paths = [str(objects.root / info.key) for info in objects.list("intake/")]
        self._halves = [paths[number::CORES] for number in range(CORES)]
        self._folder, self._options, self._pool = folder, options, pool
        self.stored_bytes = 0

    def run(self) -> float:
        """Seconds from handing out the work to the last file."""
        targets = [str(self._folder / f"baseline-{number}.parquet") for number in range(CORES)]
        start = time.perf_counter()
        sizes = list(self._pool.map(baseline_half, self._halves, targets, [self._options] * CORES))
        seconds = time.perf_counter() - start
        self.stored_bytes = sum(sizes)
        for target in targets:
            Path(target).unlink()
        return seconds


def cpu_seconds() -> float:
    """CPU time of this process and everything it started: the JVM, its Python workers, the baseline's processes."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def measure(records: int, repetitions: int, folder: Path) -> dict[str, Any]:
    """Run everything and return the document."""
    sequencer, objects, topic_id, raw_bytes = fill_intake(records, folder)
    print(f"intake: {records:,} records, {raw_bytes / records:.0f} raw bytes each, {len(list(objects.list('intake/')))} files")
    sessions = SparkSessions(SparkSettings(master=f"local[{CORES}]"), os.environ)
    with ProcessPoolExecutor(CORES, mp_context=get_context("spawn")) as pool:
        contenders: dict[str, Any] = {
            "ours": Ours(sequencer, objects, topic_id, sessions),
            "baseline": Baseline(objects, folder, {}, pool),
            "tuned": Baseline(objects, folder, TUNED, pool),
        }
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        cpu: dict[str, list[float]] = {name: [] for name in contenders}
        for repetition in range(-1, repetitions):
            for name, contender in contenders.items():
                before = cpu_seconds()
                took = contender.run()
                spent = cpu_seconds() - before
                label = "warm-up" if repetition < 0 else str(repetition + 1)
                print(f"{label:>8} {name:>9}: {took:.2f} s, {spent:.2f} CPU s, {records / took:,.0f} records/s", flush=True)
                if repetition >= 0:
                    seconds[name].append(round(took, 3))
                    cpu[name].append(round(spent, 3))
    sessions.close()
    return {
        "what": "refinement from intake files to stored archives, local[2], against pyarrow and ptars alone in two processes",
        "records": records,
        "raw_bytes": raw_bytes,
        "partitions": PARTITIONS,
        "repetitions": repetitions,
        "seconds": seconds,
        "stored_bytes": {name: contender.stored_bytes for name, contender in contenders.items()},
        "ratio": _ratio(seconds["baseline"], seconds["ours"]),
        "ratio_to_tuned": _ratio(seconds["tuned"], seconds["ours"]),
        "cpu_seconds": cpu,
        "cpu_ratio": _ratio(cpu["baseline"], cpu["ours"]),
        "cpu_ratio_to_tuned": _ratio(cpu["tuned"], cpu["ours"]),
        "wanted_ratio": WANTED_RATIO,
        "load_average": os.getloadavg(),
        "machine": {"cpus": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        "versions": {"python": platform.python_version(), **{name: version(name) for name in ("pyarrow", "ptars", "protobuf", "pyspark")}},
    }


def _ratio(theirs: list[float], ours: list[float]) -> dict[str, float]:
    each = [a / b for a, b in zip(theirs, ours, strict=True)]
    return {
        "of_medians": round(statistics.median(theirs) / statistics.median(ours), 3),
        "lowest": round(min(each), 3),
        "highest": round(max(each), 3),
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, default=Path("bench/results/refine.json"))
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-refine-"))
    try:
        document = measure(arguments.records, arguments.repetitions, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"CPU ratio {document['cpu_ratio']}, to the tuned baseline {document['cpu_ratio_to_tuned']}")
    print(f"ratio {document['ratio']} (wanted: at least {WANTED_RATIO}), to the tuned baseline {document['ratio_to_tuned']}")


if __name__ == "__main__":
    main()

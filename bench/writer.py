"""Measures the rate of the intake writer's vectorised batch path, per core, into local files.

Measured are CPU seconds of the whole process (all threads) and wall seconds. The time is from the
first `send_batch` to the last acknowledgement, fsync included. Records have about 150 raw bytes
with distinct 12-byte keys, a header on every fourth record and 16 partitions. For comparison
pyarrow alone writes the same rows, unsorted and without offsets, as zstd-1 Parquet into a synced
local file. Both use the same row-group size. Repetitions are interleaved; a ratio is of the CPU
seconds in the same repetition.

    python -m bench.writer [--records 1000000] [--repetitions 5] [--output bench/results/writer.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from archiver.config.groups import IntakeSettings, LogSettings
from archiver.log.sqlite import SqliteLogStore
from archiver.objects.local import LocalObjectStore
from archiver.runtime.clock import SystemClock
from archiver.runtime.ids import SystemIds
from bench.outcome import tell
from intake.log.sequencer import Sequencer
from intake.records import RECORD_SCHEMA, normalise_batch
from intake.write.writer import IntakeWriter

PARTITIONS = 16
TARGET_MB_PER_CORE_SECOND = 150


def make_records(count: int, seed: int = 7) -> pa.RecordBatch:
    """Return records that compress about as well as orders: half of each value repeats, half does
    not.
    """
    random = np.random.default_rng(seed)
    keys = pa.array(
        [b"order-%06x" % number for number in random.integers(0, 1 << 24, count).tolist()], pa.binary()
    )
    noise = random.bytes(count * 64)
    fixed = [
        b"customer=%05d;state=shipped;currency=EUR;warehouse=%03d;note=none" % (n, n % 300)
        for n in range(2000)
    ]
    values = pa.array(
        [noise[64 * n : 64 * n + 64] + fixed[n * 7919 % 2000] for n in range(count)], pa.binary()
    )
    headers = [[{"key": "trace", "value": b"0123456789abcdef"}] if n % 4 == 0 else [] for n in range(count)]
    times = pa.array(1_700_000_000_000_000 + np.arange(count) * 50, pa.int64()).cast(
        RECORD_SCHEMA.field("event_timestamp").type
    )
    arrays = [keys, values, pa.array(headers, RECORD_SCHEMA.field("headers").type), times]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def run_writer(records: pa.RecordBatch, folder: Path) -> tuple[float, float]:
    """Return CPU and wall seconds of one run of the writer."""
    logs = SqliteLogStore(folder / "metadata.db", 30, LogSettings().entry_bytes_max)
    sequencer = Sequencer(logs.log("intake"), SystemIds(), SystemClock(), LogSettings())
    sequencer.declare_topic("orders", PARTITIONS)
    with IntakeWriter(
        LocalObjectStore(folder / "data"), sequencer, IntakeSettings(), SystemClock(), SystemIds()
    ) as writer:
        wall, cpu = time.perf_counter(), time.process_time()
        acknowledged = writer.send_batch("orders", records).result(60)
        spent = time.process_time() - cpu, time.perf_counter() - wall
    assert acknowledged.outcome == "ok", acknowledged.verdicts
    logs.close()
    return spent


def run_plain(records: pa.RecordBatch, folder: Path) -> tuple[float, float]:
    """Return CPU and wall seconds of pyarrow alone."""
    rows_per_group = max(
        1,
        records.num_rows
        * IntakeSettings().row_group_bytes
        // int(normalise_batch(records, 1 << 30).raw_bytes.sum()),
    )
    wall, cpu = time.perf_counter(), time.process_time()
    with (folder / "plain.parquet").open("wb") as file:
        pq.write_table(
            pa.Table.from_batches([records]),
            file,
            row_group_size=rows_per_group,
            compression="zstd",
            compression_level=1,
            use_dictionary=False,
            write_statistics=False,
        )
        file.flush()
        os.fsync(file.fileno())
    return time.process_time() - cpu, time.perf_counter() - wall


def spread(numbers: list[float]) -> dict[str, float]:
    """Return minimum, median and maximum."""
    return {
        "min": round(min(numbers), 3),
        "median": round(statistics.median(numbers), 3),
        "max": round(max(numbers), 3),
    }


def measure(count: int, repetitions: int) -> dict[str, Any]:
    """The result document."""
    records = make_records(count)
    raw_mb = int(normalise_batch(records, 1 << 30).raw_bytes.sum()) / 1e6
    writer_cpu, writer_wall, plain_cpu = [], [], []
    for repetition in range(repetitions + 1):
        folder = Path(tempfile.mkdtemp(prefix="bench-writer-"))
        try:
            cpu, wall = run_writer(records, folder)
            alone, _ = run_plain(records, folder)
        finally:
            shutil.rmtree(folder)
        if repetition:  # the first run warms up
            writer_cpu.append(raw_mb / cpu)
            writer_wall.append(raw_mb / wall)
            plain_cpu.append(raw_mb / alone)
    return {
        "what": "vectorised intake writer, raw record bytes in MB per CPU second, into local files",
        "records": count,
        "bytes_per_record": round(raw_mb * 1e6 / count, 1),
        "partitions": PARTITIONS,
        "repetitions": repetitions,
        "writer_mb_per_core_second": spread(writer_cpu),
        "writer_mb_per_wall_second": spread(writer_wall),
        "plain_pyarrow_mb_per_core_second": spread(plain_cpu),
        "ratio_writer_to_plain": spread(
            [ours / alone for ours, alone in zip(writer_cpu, plain_cpu, strict=True)]
        ),
        "wanted_mb_per_core_second": TARGET_MB_PER_CORE_SECOND,
        "reached": statistics.median(writer_cpu) >= TARGET_MB_PER_CORE_SECOND,
        "versions": {"python": platform.python_version(), "pyarrow": pa.__version__, "numpy": np.__version__},
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    tell(measure(options.records, options.repetitions), options.output)


if __name__ == "__main__":
    main()

"""Measures how fast Kafka record batches are checked, become Arrow columns, and are made of columns.

Records of 139 bytes are in batches of 500, in this process. Checking is what Produce does before it
stores a batch. It and decoding include the header and its checksum. Decoding is compared with
aiokafka's reader, whose records are put into the same columns. aiokafka reads lz4 and zstd only with
a further library, so its figures are those of uncompressed batches. Repetitions are interleaved.
Figures are microseconds of CPU per record, ratios are of one repetition (2: aiokafka takes twice the
time).

    python -m bench.record_batch [--repetitions 5] [--output record_batch.json]
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from aiokafka.record.memory_records import MemoryRecords

from archiver.kafka.record_batch import encode
from archiver.stream.records import STREAM_SCHEMA
from bench.outcome import tell
from bench.writer import spread
from intake.batches import decoding
from intake.batches.decoding import decode, read_header
from intake.records import RECORD_SCHEMA
from tests.support.kafka.record_batches import RawRecord, batch_bytes, records_bytes

RECORDS = 500
CODECS = ("none", "lz4", "zstd")
COUNTS = (1, 16, 512)
HEADERS = (("traceparent", b"00-4bf92f3577b34da6a3ce929d0e0e4736-01"), ("type", b"order"))


def make_batches(codec: str, headers: bool) -> list[bytes]:
    """Return sixteen batches; half of each value is compressible."""
    generator = random.Random(0)
    return [
        batch_bytes(
            records_bytes(
                [
                    RawRecord(
                        generator.randbytes(16),
                        generator.randbytes(60) + b"compressible" * 5,
                        HEADERS if headers else (),
                        place // 3,
                    )
                    for place in range(RECORDS)
                ]
            ),
            codec=codec,
        )
        for _ in range(16)
    ]


def ours(batches: list[bytes]) -> list[Any]:
    """Decode header, checksum and columns."""
    return decode([(read_header(data), data) for data in batches], uncompressed_max=1 << 26)


def checked(batches: list[bytes]) -> list[Any]:
    """Check header, checksum and records."""
    return decoding.measure([(read_header(data), data) for data in batches], uncompressed_max=1 << 26)


def theirs(batches: list[bytes]) -> list[pa.RecordBatch]:
    """Decode the same with aiokafka."""
    results = []
    for data in batches:
        batch = MemoryRecords(data).next_batch()
        assert batch is not None
        assert batch.validate_crc()
        keys, values, headers, times = [], [], [], []
        for record in batch:
            keys.append(record.key)
            values.append(record.value)
            headers.append([{"key": name, "value": value} for name, value in record.headers])
            times.append(record.timestamp * 1000)
        columns = [
            pa.array(column, field.type)
            for column, field in zip((keys, values, headers, times), RECORD_SCHEMA, strict=True)
        ]
        results.append(pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA))
    return results


def stream_batch(batches: list[bytes]) -> pa.RecordBatch:
    """Return the records of batches in the schema that consumers get."""
    (records,) = pa.Table.from_batches(ours(batches)).combine_chunks().to_batches()
    key, value, headers, times = records.columns
    offsets = np.arange(records.num_rows)
    starts = pa.array(offsets // RECORDS * RECORDS)
    return pa.RecordBatch.from_arrays(
        [pa.array(offsets), times, times, starts, key, value, headers], schema=STREAM_SCHEMA
    )


def cpu_us(work: Callable[[], object], records: int) -> float:
    """Return the CPU microseconds per record; small inputs are repeated."""
    times = max(1, 20_000 // records)
    start = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - start) / times / records * 1e6


def measure(repetitions: int) -> dict[str, Any]:
    """The result document."""
    figures: dict[str, list[float]] = {}
    for repetition in range(repetitions + 1):
        for headers in (False, True):
            suffix = "_headers" if headers else ""
            plain = make_batches("none", headers)
            assert [result.equals(other) for result, other in zip(ours(plain), theirs(plain), strict=True)]
            reference = cpu_us(lambda plain=plain: theirs(plain), 16 * RECORDS)  # type: ignore[misc]
            found = {f"aiokafka{suffix}": reference}
            for codec in CODECS:
                sample = make_batches(codec, headers)
                for count in COUNTS:
                    batches = (sample * 32)[:count]
                    name = f"decode_{codec}_{count}{suffix}"
                    found[name] = cpu_us(lambda batches=batches: ours(batches), count * RECORDS)  # type: ignore[misc]
                    found[f"check_{codec}_{count}{suffix}"] = cpu_us(
                        lambda batches=batches: checked(batches),
                        count * RECORDS,  # type: ignore[misc]
                    )
                    if codec == "none":
                        found[f"ratio_{count}{suffix}"] = reference / found[name]
            rows = stream_batch(plain)
            found[f"encode{suffix}"] = cpu_us(lambda rows=rows: encode(rows), rows.num_rows)  # type: ignore[misc]
            if repetition:  # the first run warms up
                for name, figure in found.items():
                    figures.setdefault(name, []).append(figure)
    return {
        "what": "Kafka record batches, microseconds of CPU per record",
        "records_per_batch": RECORDS,
        "repetitions": repetitions,
        "us_per_record": {name: spread(numbers) for name, numbers in figures.items() if "ratio" not in name},
        "ratio_aiokafka_to_ours": {
            name.removeprefix("ratio_"): spread(numbers)
            for name, numbers in figures.items()
            if "ratio" in name
        },
        "versions": {name: version(name) for name in ("aiokafka", "pyarrow", "numpy")}
        | {"python": platform.python_version()},
        "machine": {"system": f"{platform.system()} {platform.machine()}", "cores": os.cpu_count()},
    }


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    tell(measure(options.repetitions), options.output)


if __name__ == "__main__":
    main()

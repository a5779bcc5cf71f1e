"""What is in an archive, read without the product's reader: the judge does not borrow it.

Owns the form of the light stand-ins (see `light_archives`) and the reading of real Parquet. Must never guess:
an object that is neither is an error of the rig.
"""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Row = tuple[int, int, bytes, int]
"""Partition, offset, value and ingest time of one record of the table."""

Sent = tuple[bytes, int]
"""Value and accept time of one record of intake."""

FieldIds = tuple[int, int, int]
"""Of `kafka.partition`, `kafka.offset` and `kafka.ingest_timestamp` in a file."""

Light = tuple[dict[str, str], FieldIds, list[Row]]
"""Footer keys, field ids and rows of a light archive."""

LIGHT_ARCHIVE = b"LIGHTARC"
LIGHT_INTAKE = b"LIGHTINT"


def light_archive(pairs: dict[str, str], ids: FieldIds, rows: Sequence[Row]) -> bytes:
    """The bytes of a light archive."""
    return LIGHT_ARCHIVE + marshal.dumps((pairs, ids, list(rows)))


def read_light(data: bytes) -> Light:
    """The inverse."""
    found: Light = marshal.loads(data[len(LIGHT_ARCHIVE) :])
    return found


def archive_rows(data: bytes) -> tuple[Row, ...]:
    """The rows of an archive, light or real, in file order."""
    if data.startswith(LIGHT_ARCHIVE):
        return tuple(read_light(data)[2])
    table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    kafka: list[Any] = table.column("kafka").to_pylist()
    values: list[Any] = table.column("value").to_pylist()
    return tuple(
        (
            place["partition"],
            place["offset"],
            value["__raw__"],
            round(place["ingest_timestamp"].timestamp() * 1e6),
        )
        for place, value in zip(kafka, values, strict=True)
    )


def light_intake(rows: Sequence[Sent]) -> bytes:
    """The bytes of a light intake file: one row group."""
    return LIGHT_INTAKE + marshal.dumps(list(rows))


def light_intake_rows(data: bytes) -> list[Sent]:
    """The rows of a light intake file."""
    rows: list[Sent] = marshal.loads(data[len(LIGHT_INTAKE) :])
    return rows

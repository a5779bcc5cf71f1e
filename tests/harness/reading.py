"""Reading back: the topics by the product's command, the tables by other code.

Tables are read from where the catalog points to: metadata JSON, manifest list and manifests (Avro), data
files (Parquet), each with a library for that format and nothing else. Neither the product's readers nor an
Iceberg library is used.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.harness.history import Row
from tests.harness.payload import digest
from tests.harness.places import Tables, Unreadable

ValueOf = Callable[[Any], bytes | None]
_START = datetime(1970, 1, 1, tzinfo=UTC)
_DELETED = 2
"""Status of a manifest's entry whose file is no longer part of the table."""
_DATA = 0
"""Content of a file or manifest that holds rows, not deletions."""


def consumed_rows(output: Path) -> Iterator[Row]:
    """The rows in the output of `archiver consume`."""
    with output.open("rb") as lines:
        for line in lines:
            record = json.loads(line)
            headers = [(name, _bytes(value)) for name, value in record["headers"]]
            yield Row(
                partition=record["partition"],
                offset=record["offset"],
                digest=digest(
                    _bytes(record["key"]), _bytes(record["value"]), headers, _time_us(record["timestamp"])
                ),
                ingest_us=_time_us(record["ingest_timestamp"]),
                batch_start=record["batch_start"],
            )


def table_rows(
    tables: Tables, identifier: str, value_of: ValueOf | None = None
) -> tuple[list[Row], dict[int, int]]:
    """Rows and watermarks of a table, both empty if there is none. Raises `Unreadable`, `OSError`, or the
    error of a format's library.

    `value_of` makes the bytes of a message from its column; without it they are those of `__raw__`, as where
    there is no schema.
    """
    location = tables.metadata_location(identifier)
    if location is None:
        return [], {}
    with tables.opened(location) as file:
        metadata = json.load(file)
    evidence = metadata.get("properties", {}).get("archiver.watermarks")
    watermarks = {} if evidence is None else dict(enumerate(json.loads(evidence)["offsets"]))
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", ())}
    current = snapshots.get(metadata.get("current-snapshot-id"))
    if current is None:
        return [], watermarks
    rows: list[Row] = []
    for data_file in _data_files(tables, current["manifest-list"]):
        rows += _file_rows(tables, data_file, value_of or _raw)
    return sorted(rows, key=lambda row: (row.partition, row.offset)), watermarks


def _data_files(tables: Tables, manifest_list: str) -> Iterator[Any]:
    """What manifests say of each file of the table."""
    for manifest in _avro(tables, manifest_list):
        if manifest["content"] != _DATA:
            raise Unreadable(f"{manifest_list} names deletions, and nobody asked for any")
        for entry in _avro(tables, manifest["manifest_path"]):
            if entry["status"] == _DELETED:
                continue
            file = entry["data_file"]
            if file["content"] != _DATA or file["file_format"].upper() != "PARQUET":
                raise Unreadable(f"{file['file_path']} is not a Parquet file of rows")
            yield file


def _avro(tables: Tables, location: str) -> list[Any]:
    with tables.opened(location) as file:
        return list(fastavro.reader(file))


def _file_rows(tables: Tables, data_file: Any, value_of: ValueOf) -> list[Row]:
    location = data_file["file_path"]
    with tables.opened(location) as opened, pq.ParquetFile(opened) as file:
        table = file.read()
    if len(table) != data_file["record_count"]:
        raise Unreadable(
            f"{location} has {len(table)} rows, and its manifest says {data_file['record_count']}"
        )
    places: pa.StructArray = table.column("kafka").combine_chunks()  # type: ignore[assignment]
    columns = {
        name: places.field(name)
        for name in ("partition", "offset", "event_timestamp", "ingest_timestamp", "batch_start")
    }
    event_us: list[Any] = pc.cast(columns["event_timestamp"], pa.int64()).to_pylist()
    ingest_us: list[Any] = pc.cast(columns["ingest_timestamp"], pa.int64()).to_pylist()
    rows = []
    for number, (key, value, headers) in enumerate(
        zip(
            table.column("key").to_pylist(),
            table.column("value").to_pylist(),
            table.column("headers").to_pylist(),
            strict=True,
        )
    ):
        known = digest(_raw(key), value_of(value), _pairs(headers), event_us[number])
        rows.append(
            Row(
                partition=columns["partition"][number].as_py(),
                offset=columns["offset"][number].as_py(),
                digest=known,
                ingest_us=ingest_us[number],
                batch_start=columns["batch_start"][number].as_py(),
            )
        )
    return rows


def _raw(struct: Any) -> bytes | None:
    """A topic without a schema has its bytes in `__raw__`."""
    if struct is None:
        return None
    raw: bytes = struct["__raw__"]
    return raw


def _pairs(headers: Any) -> Sequence[tuple[str, bytes | None]]:
    return [(header["key"], header["value"]) for header in headers or ()]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _time_us(text: str) -> int:
    return (datetime.fromisoformat(text) - _START) // timedelta(microseconds=1)

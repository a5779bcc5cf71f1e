"""Reading back: the topics by the product's command, the tables by other code.

Tables are read from the catalog's database on: metadata JSON, manifest list and manifests (Avro), data files (Parquet), each with a library
for that format and nothing else. Neither the product's readers nor an Iceberg library has a part in it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.harness.history import Row
from tests.harness.payload import digest

ValueOf = Callable[[Any], bytes | None]
_START = datetime(1970, 1, 1, tzinfo=UTC)
_DELETED = 2
"""Status of a manifest's entry whose file is no longer part of the table."""
_DATA = 0
"""Content of a file or manifest that holds rows, not deletions."""


class Unreadable(Exception):
    """A table is not what its own metadata says; the text says where."""


def consumed_rows(output: Path) -> Iterator[Row]:
    """The rows in the output of `archiver consume`."""
    with output.open("rb") as lines:
        for line in lines:
            record = json.loads(line)
            headers = [(name, _bytes(value)) for name, value in record["headers"]]
            yield Row(
                partition=record["partition"],
                offset=record["offset"],
                digest=digest(_bytes(record["key"]), _bytes(record["value"]), headers, _time_us(record["timestamp"])),
                ingest_us=_time_us(record["ingest_timestamp"]),
                batch_start=record["batch_start"],
            )


def table_rows(catalog: Path, identifier: str, value_of: ValueOf | None = None) -> tuple[list[Row], dict[int, int]]:
    """Rows and watermarks of a table, both empty if there is none. Raises `Unreadable`, `OSError`, or the error of a format's library.

    `value_of` makes the bytes of a message from its column; without it they are those of `__raw__`, as where there is no schema.
    """
    metadata = _metadata(catalog, identifier)
    if metadata is None:
        return [], {}
    evidence = metadata.get("properties", {}).get("archiver.watermarks")
    watermarks = {} if evidence is None else dict(enumerate(json.loads(evidence)["offsets"]))
    snapshots = {snapshot["snapshot-id"]: snapshot for snapshot in metadata.get("snapshots", ())}
    current = snapshots.get(metadata.get("current-snapshot-id"))
    if current is None:
        return [], watermarks
    rows: list[Row] = []
    for path in _data_files(current["manifest-list"]):
        rows += _file_rows(path, value_of or _raw)
    return sorted(rows, key=lambda row: (row.partition, row.offset)), watermarks


def _metadata(catalog: Path, identifier: str) -> Any:
    if not catalog.exists():
        return None
    namespace, _, name = identifier.rpartition(".")
    with contextlib.closing(sqlite3.connect(f"file:{catalog}?mode=ro", uri=True, timeout=60)) as connection:
        try:
            found = connection.execute(
                "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?", (namespace, name)
            ).fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return None
            raise
    return None if found is None else json.loads(_path(found[0]).read_bytes())


def _data_files(manifest_list: str) -> Iterator[Path]:
    for manifest in _avro(manifest_list):
        if manifest["content"] != _DATA:
            raise Unreadable(f"{manifest_list} names deletions, and nobody asked for any")
        for entry in _avro(manifest["manifest_path"]):
            if entry["status"] == _DELETED:
                continue
            file = entry["data_file"]
            if file["content"] != _DATA or file["file_format"].upper() != "PARQUET":
                raise Unreadable(f"{file['file_path']} is not a Parquet file of rows")
            path = _path(file["file_path"])
            if pq.read_metadata(path).num_rows != file["record_count"]:
                raise Unreadable(f"{path} does not have the {file['record_count']} rows its manifest says")
            yield path


def _avro(location: str) -> list[Any]:
    with _path(location).open("rb") as file:
        return list(fastavro.reader(file))


def _file_rows(path: Path, value_of: ValueOf) -> list[Row]:
    with pq.ParquetFile(path) as file:
        table = file.read()
    places: pa.StructArray = table.column("kafka").combine_chunks()  # type: ignore[assignment]
    columns = {name: places.field(name) for name in ("partition", "offset", "event_timestamp", "ingest_timestamp", "batch_start")}
    event_us: list[Any] = pc.cast(columns["event_timestamp"], pa.int64()).to_pylist()
    ingest_us: list[Any] = pc.cast(columns["ingest_timestamp"], pa.int64()).to_pylist()
    rows = []
    for number, (key, value, headers) in enumerate(
        zip(table.column("key").to_pylist(), table.column("value").to_pylist(), table.column("headers").to_pylist(), strict=True)
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


def _path(location: str) -> Path:
    return Path(unquote(urlsplit(location).path))

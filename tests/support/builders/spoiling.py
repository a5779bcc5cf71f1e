"""Ways to spoil what an archiver has stored, for tests of the checks that must find it.

Made with pyarrow and pyiceberg, and with none of the project's code: an archive is read, changed and written
again, its footer is sealed again by the rule that docs/data-layout.md gives; the table's manifests are made to
agree. So checksums alone do not show the change, unless a test asks for that.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from blake3 import blake3
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _OverwriteFiles
from pyiceberg.types import LongType

Rows = list[dict[str, Any]]
_SEAL = b"archiver.footer_sha256\x18\x40"


def rewritten(path: Path, change: Callable[[Rows], Rows], to: Path | None = None, **footer: str) -> int:
    """Write the rows of an archive again, changed, and its footer with some keys changed; returns the new
    size."""
    file = pq.ParquetFile(path)
    table = file.read().replace_schema_metadata(None)
    keys = {
        name.decode(): text.decode()
        for name, text in (file.metadata.metadata or {}).items()
        if name.startswith(b"archiver.")
    }
    file.close()
    keys |= {f"archiver.{name}": text for name, text in footer.items()}
    target = path if to is None else to
    target.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(
        target, table.schema, compression="zstd", store_schema=False, write_page_checksum=True
    ) as writer:
        writer.write_table(pa.Table.from_pylist(change(table.to_pylist()), schema=table.schema))
        writer.add_key_value_metadata({**keys, "archiver.footer_sha256": "0" * 64})
    _seal(target)
    return target.stat().st_size


def _seal(path: Path) -> None:
    data = bytearray(path.read_bytes())
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    place = data.index(_SEAL, start) + len(_SEAL)
    data[place : place + 64] = hashlib.sha256(data[start:]).hexdigest().encode()
    path.write_bytes(data)


def records_digest(rows: Rows, values: list[bytes | None]) -> str:
    """The digest of an archive's records by the rule that `intake.read.digest` states, from its rows and the
    values they mean; in hex."""
    kafka = [row["kafka"] for row in rows]
    headers = [header for row in rows for header in row["headers"]]
    events = [None if one["event_timestamp"] is None else _us(one["event_timestamp"]) for one in kafka]
    starts = [one["batch_start"] for one in kafka]
    parts = [
        _runs(one["offset"] - number for number, one in enumerate(kafka)),
        *_texts([None if row["key"] is None else row["key"]["__raw__"] for row in rows]),
        *_texts(values),
        _runs(len(row["headers"]) for row in rows),
        *_texts([header["key"].encode() for header in headers]),
        *_texts([header["value"] for header in headers]),
        _runs(int(one is not None) for one in events),
        struct.pack(f"<{len(events)}q", *(one or 0 for one in events)),
        _runs(_us(one["ingest_timestamp"]) for one in kafka),
        _runs(int(one is not None) for one in starts),
        _runs(one or 0 for one in starts),
    ]
    return blake3(b"archiver.records.2" + b"".join(blake3(part).digest() for part in parts)).hexdigest()


def _runs(numbers: Iterable[int]) -> bytes:
    return b"".join(struct.pack("<qq", number, len(list(same))) for number, same in groupby(numbers))


def _texts(values: Sequence[bytes | None]) -> list[bytes]:
    lengths = [-1 if value is None else len(value) for value in values]
    return [struct.pack(f"<{len(lengths)}i", *lengths), b"".join(value or b"" for value in values)]


def _us(moment: dt.datetime) -> int:
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1)


def flip_in_page(path: Path, column: str) -> None:
    """Turn one bit inside a page of that column."""
    metadata = pq.read_metadata(path)
    group = metadata.row_group(0)
    chunk = next(
        group.column(number)
        for number in range(group.num_columns)
        if group.column(number).path_in_schema == column
    )
    first = chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
    _flip(path, first + chunk.total_compressed_size - 1)


def flip_in_footer(path: Path) -> None:
    """Turn one bit inside the footer."""
    size = path.stat().st_size
    _flip(path, size - 8 - int.from_bytes(path.read_bytes()[-8:-4], "little") // 2)


def _flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


class _Replace(_OverwriteFiles):
    """What compaction commits."""

    def _summary(self, snapshot_properties: dict[str, str] | None = None) -> Summary:
        summary = super()._summary(snapshot_properties or {})
        return Summary(operation=Operation.REPLACE, **summary.additional_properties)


class Hands:
    """Collects changes of which files a table has, and commits them as one snapshot of operation
    `replace`."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._out: list[DataFile] = []
        self._in: list[DataFile] = []

    def files(self) -> list[DataFile]:
        """What the current snapshot has."""
        return [task.file for task in self._table.scan().plan_files()]

    def out(self, file: DataFile) -> None:
        """Take a file out of the table."""
        self._out.append(file)

    def double(self, file: DataFile) -> None:
        """Put a file into the table that is there."""
        self._in.append(file)

    def reported(self, file: DataFile, path: Path, **changes: Any) -> None:
        """Make the table say of a file what its object now is; `offsets` sets the bounds of the offset
        column."""
        self._out.append(file)
        self.add(file, path, **changes)

    def add(
        self, like: DataFile, path: Path, *, offsets: tuple[int, int] | None = None, **changes: Any
    ) -> None:
        """Put one more file into the table, described as `like` but for the changes."""
        values = {name: getattr(like, name) for name in _FIELDS}
        values |= {"file_path": f"file://{path}", "file_size_in_bytes": path.stat().st_size, **changes}
        if offsets is not None:
            number = self._table.schema().find_field("kafka.offset").field_id
            for name, bound in zip(("lower_bounds", "upper_bounds"), offsets, strict=True):
                values[name] = {**values[name], number: to_bytes(LongType(), bound)}
        made = DataFile.from_args(**values)
        made.spec_id = like.spec_id
        self._in.append(made)

    def commit(self) -> None:
        """One snapshot with all of it."""
        producer: Any = _Replace(
            Operation.OVERWRITE, Transaction(self._table, autocommit=True), self._table.io
        )
        for file in self._out:
            producer.delete_data_file(file)
        for file in self._in:
            producer.append_data_file(file)
        producer.commit()


_FIELDS = (
    *(
        "content",
        "file_path",
        "file_format",
        "partition",
        "record_count",
        "file_size_in_bytes",
        "column_sizes",
        "value_counts",
    ),
    *(
        "null_value_counts",
        "nan_value_counts",
        "lower_bounds",
        "upper_bounds",
        "key_metadata",
        "split_offsets",
        "equality_ids",
    ),
    "sort_order_id",
)


def path_of(file: DataFile) -> Path:
    """The object behind a file of a table."""
    return Path(str(file.file_path).removeprefix("file://"))


def bound(table: Table, file: DataFile, column: str, which: str = "lower_bounds") -> int:
    """A bound of an integer column."""
    bounds: Mapping[int, bytes] = getattr(file, which)
    return int.from_bytes(bounds[table.schema().find_field(column).field_id], "little", signed=True)

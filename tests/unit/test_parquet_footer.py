"""Footers that would end the process are refused, and what passes can be described by pyarrow."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.objects.local import LocalObjectStore
from archiver.objects.paths import ArchiveKey
from archiver.rewrite.undecoded import DoubtedFile, undecoded_rows
from archiver.runtime.errors import Corrupted, InvalidInput
from intake.inputs import InputPosition, read_parquet
from intake.log import history_file
from intake.log.history_file import PartitionHistory
from intake.parquet_footer import FOOTER_BYTES_MAX, check_footer_columns, read_unverified_metadata
from intake.segments import NONE
from reconcile.audit.rows import RowFile
from reconcile.audit.spark.comparison import ColumnPrints, printed_rows
from reconcile.audit.spark.stored import external_rows, position_rows, row_count
from reconcile.snapshot.object_listing import unnamed_intake
from tests.support.schema.orders import order_schema

_TAIL = 8
_TWO_NUMBERS, _ONE_NUMBER = 0x26, 0x16
"""Head of a list of one or two 64-bit numbers in Thrift's compact protocol."""
ALTERATIONS: list[tuple[bytes, bytes]] = [
    # The metadata of a column begins with its type: a 64-bit number becomes a truth value.
    (rb"\x1c\x15\x04", b"\x1c\x15\x00"),
    # The codec follows the path. There is no codec 9.
    (rb"value\x15\x02", b"value\x15\x12"),
    # The largest value of the statistics loses one byte of 8.
    (rb"(?s)\x28\x08.(.{7})", b"\x28\x07\\1"),
]
"""Parts of a footer, each with what replaces it."""


def written() -> bytes:
    headers = pa.array(
        [[("n", b"x")], [], None], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    table = pa.table(
        {"value": [b"a", None, b"c"], "time": pa.array([1, 2, None], pa.int64()), "headers": headers}
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=2)
    return sink.getvalue()


def footer_of(data: bytes) -> bytes:
    return data[-int.from_bytes(data[-_TAIL:-4], "little") - _TAIL :]


def shortened(data: bytes) -> Iterator[bytes]:
    """The file with one histogram of levels shortened, each in turn; and other bytes, where it is none."""
    start = len(data) - len(footer_of(data))
    for at in range(start, len(data) - _TAIL):
        if data[at] == _TWO_NUMBERS:
            changed = bytearray(data)
            changed[at] = _ONE_NUMBER
            del changed[at + 1]
            length = int.from_bytes(changed[-_TAIL:-4], "little") - 1
            changed[-_TAIL:-4] = length.to_bytes(4, "little")
            yield bytes(changed)


def refusals(data: bytes) -> list[str]:
    found: list[str] = []
    for changed in shortened(data):
        try:
            check_footer_columns(footer_of(changed))
        except InvalidInput as error:
            found.append(str(error))
    return found


def test_a_footer_of_pyarrow_passes() -> None:
    check_footer_columns(footer_of(written()))


def test_a_histogram_that_contradicts_the_schema_is_refused() -> None:
    found = refusals(written())
    assert any("row group 0, column 0: a histogram has 1 levels, not 2" in one for one in found), found
    assert any("row group 1, column 1: a histogram has 1 levels, not 2" in one for one in found), found


def altered(data: bytes) -> list[bytes]:
    """The file with another type, codec or length of an extreme."""
    footer = footer_of(data)[:-_TAIL]
    found: list[bytes] = []
    for pattern, by in ALTERATIONS:
        changed, count = re.subn(pattern, by, footer)
        assert count, pattern
        found.append(data[: -len(footer) - _TAIL] + changed + len(changed).to_bytes(4, "little") + b"PAR1")
    return found


def describe(metadata: pq.FileMetaData) -> None:
    """All that the readers of this project ask of a footer."""
    for group in range(metadata.num_row_groups):
        for place in range(metadata.row_group(group).num_columns):
            column = metadata.row_group(group).column(place)
            found = column.statistics, column.compression, column.physical_type, column.path_in_schema
            if found[0] is not None and found[0].has_min_max:
                assert found[0].min is not None and found[0].max is not None


def ends_the_process(data: bytes) -> bool:
    child = os.fork()
    if not child:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            describe(pq.read_metadata(io.BytesIO(data)))
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_pyarrow_ends_the_process_without_the_check() -> None:
    """As long as this holds, the check is needed."""
    assert not ends_the_process(written())
    assert any(ends_the_process(changed) for changed in shortened(written()))
    assert all(ends_the_process(changed) for changed in altered(written()))


def test_what_would_end_the_process_is_refused() -> None:
    for changed, why in zip(
        altered(written()), ("type 0, the schema 2", "unknown codec 9", "has 7 bytes, not 8"), strict=True
    ):
        with pytest.raises(pa.ArrowInvalid, match=why):
            read_unverified_metadata(io.BytesIO(changed))


def test_every_reader_of_other_files_refuses_them(tmp_path: Path) -> None:
    """Without the check, the first and the last one end the process."""
    objects = LocalObjectStore(tmp_path)
    rows = pa.table(
        {
            "kafka": [{"partition": 0, "offset": offset, "ingest_timestamp": 0} for offset in range(3)],
            "value": [{"__err__": error} for error in ("a", "b", None)],
        }
    )
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    data = sink.getvalue()
    key = "tables/other.parquet"
    # Every type of a column becomes another one.
    start = len(data) - len(footer_of(data))
    objects.create(key, data[:start] + data[start:].replace(b"\x1c\x15\x04", b"\x1c\x15\x00"))
    other = RowFile(objects.uri(key), 1)
    archive = replace(other, key=ArchiveKey("0a" * 16, 0, "day", 1, 0, 3, 1), offsets=((0, 3),))
    for read in (
        lambda: undecoded_rows(objects, DoubtedFile(key, key, 1, None)),
        lambda: external_rows(objects, other),
        lambda: position_rows(objects, other),
        lambda: iter([row_count(objects, other)]),
        lambda: printed_rows(objects, archive, ColumnPrints(order_schema())),
    ):
        with pytest.raises((pa.ArrowInvalid, Corrupted), match="has the type 0, the schema 2"):
            list(read())
    objects.create("intake/unnamed.parquet", objects.read(key))
    assert "has the type 0" in str(unnamed_intake(objects, (), ("t",)).unread)


def test_a_footer_above_the_limit_is_not_read() -> None:
    data = written()
    claimed = FOOTER_BYTES_MAX + 1
    with pytest.raises(pa.ArrowInvalid, match="does not end in a Parquet footer"):
        read_unverified_metadata(io.BytesIO(data[:-_TAIL] + claimed.to_bytes(4, "little") + b"PAR1"))
    sparse = SparseFile(2 * claimed, claimed.to_bytes(4, "little") + b"PAR1")
    with pytest.raises(pa.ArrowInvalid, match=f"has {claimed + _TAIL} bytes, more than"):
        read_unverified_metadata(sparse)
    assert sparse.read_bytes < 1 << 20


class SparseFile(io.BytesIO):
    """A file of zeros with an end, which counts what is read."""

    def __init__(self, size: int, end: bytes) -> None:
        super().__init__()
        self._size, self._end, self._at = size, end, 0
        self.read_bytes = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (self._size if whence == io.SEEK_END else 0)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        assert size is not None
        size = min(size, self._size - self._at)
        self._at += size
        self.read_bytes += size
        found = bytes(size)
        return found[: -len(self._end)] + self._end if self._at == self._size else found


def test_a_file_of_a_sender_with_such_a_footer_is_refused() -> None:
    found: list[str] = []
    for changed in shortened(written()):
        with pytest.raises(InvalidInput) as error:
            list(read_parquet(io.BytesIO(changed), "t", 1 << 20, InputPosition()))
        found.append(str(error.value))
    assert any("no Parquet file that can be read: row group 0, column 0: a histogram" in one for one in found)


def test_a_history_file_with_such_a_footer_is_damaged() -> None:
    data = history_file.encode({("a" * 32, 0): PartitionHistory(0, 3, NONE, [(0, 3)])})  # type: ignore[dict-item]
    found: list[str] = []
    for changed in shortened(data):
        try:
            history_file.content_of(history_file.ref_of(0, 1, changed), changed)
        # As the checkpointer does with a file that no checkpoint names.
        except (Corrupted, ValueError, LookupError, TypeError) as error:
            found.append(str(error))
    assert any("a histogram has" in one for one in found), found


def test_what_passes_can_be_described() -> None:
    """Wrong bits in every byte of a footer: pyarrow describes all columns, or reports an error."""
    data = written()
    footer = footer_of(data)
    passed = 0
    for at in range(len(footer) - _TAIL):
        # Bit 0 makes most kinds, signs and counts wrong; the others take turns.
        for bit in (0, 1 + at % 7):
            changed = bytearray(footer)
            changed[at] ^= 1 << bit
            try:
                check_footer_columns(bytes(changed))
                metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + bytes(changed)))
            except (InvalidInput, OSError, pa.ArrowException, ValueError):
                continue
            passed += 1
            with contextlib.suppress(ValueError, OverflowError, pa.ArrowException):
                describe(metadata)
    assert passed > 100


def test_a_footer_of_endless_depth_or_length_is_refused() -> None:
    # Structs in structs, deeper than those of any footer.
    with pytest.raises(InvalidInput, match="nested too deeply"):
        check_footer_columns(b"\x1c" * 1000 + bytes(_TAIL))
    # A list of 2**40 structs, of which none is there.
    with pytest.raises(InvalidInput, match="does not end"):
        check_footer_columns(b"\x29\xfc" + b"\x80" * 5 + b"\x01" + bytes(_TAIL))

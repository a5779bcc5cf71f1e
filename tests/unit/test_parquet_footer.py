"""Footers that would end the process are refused, and what passes can be described by pyarrow."""

from __future__ import annotations

import faulthandler
import io
import os
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver.runtime.errors import Corrupted, InvalidInput
from intake.inputs import InputPosition, read_parquet
from intake.log import history_file
from intake.log.history_file import PartitionHistory
from intake.parquet_footer import check_footer_columns
from intake.segments import NONE

_TAIL = 8
_TWO_NUMBERS, _ONE_NUMBER = 0x26, 0x16
"""Head of a list of one or two 64-bit numbers in Thrift's compact protocol."""


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


def ends_the_process(data: bytes) -> bool:
    child = os.fork()
    if not child:
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        try:
            metadata = pq.read_metadata(io.BytesIO(data))
            for column in range(metadata.num_columns):
                metadata.row_group(0).column(column)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


def test_pyarrow_ends_the_process_without_the_check() -> None:
    """As long as this holds, the check is needed."""
    assert not ends_the_process(written())
    assert any(ends_the_process(changed) for changed in shortened(written()))


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
            for group in range(metadata.num_row_groups):
                for column in range(metadata.row_group(group).num_columns):
                    metadata.row_group(group).column(column)
    assert passed > 100


def test_a_footer_of_endless_depth_or_length_is_refused() -> None:
    # Structs in structs, deeper than those of any footer.
    with pytest.raises(InvalidInput, match="nested too deeply"):
        check_footer_columns(b"\x1c" * 1000 + bytes(_TAIL))
    # A list of 2**40 structs, of which none is there.
    with pytest.raises(InvalidInput, match="does not end"):
        check_footer_columns(b"\x29\xfc" + b"\x80" * 5 + b"\x01" + bytes(_TAIL))

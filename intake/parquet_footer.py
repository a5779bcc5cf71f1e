"""Checks a Parquet footer before pyarrow describes its columns.

pyarrow ends the process (`std::terminate`) when it describes a column whose entry contradicts the schema, for
`RowGroupMetaData.column` and `ColumnChunkMetaData.statistics` translate no C++ exception. One wrong bit is
enough. So a footer that no digest covers is checked here first, by the rules of Arrow's
`ColumnChunkMetaData`, `SizeStatistics` and `Statistics`.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.runtime.errors import InvalidInput
from intake.format import FOOTER_TAIL_BYTES, MAGIC, footer_length
from intake.thrift_compact import I32, STRUCT, Compact, Fields, Text

FOOTER_BYTES_MAX: Final = 64 << 20
"""Of a file of another writer. The check takes time and pyarrow memory by the footer's length."""

_SCHEMA: Final = 2
_ROW_GROUPS: Final = 4
_TYPE, _TYPE_LENGTH, _REPETITION, _CHILDREN = 1, 2, 3, 5
"""Fields of an element of the schema."""
_BYTE_ARRAY, _FIXED = 6, 7
_VALUE_BYTES: Final[Mapping[int, int]] = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}
"""Of the types whose values have one length, which the type states."""
_OPTIONAL, _REPEATED = 1, 2
_EXTREMES: Final = (1, 2, 5, 6)
"""Fields of the statistics with the smallest and the largest value, each in an old and a new form."""
_CODECS: Final = range(8)
"""Numbers of `CompressionCodec` in `parquet.thrift`."""
_COLUMNS_MAX: Final = 100_000
_TAIL_READ_BYTES: Final = 64 << 10
"""Read at once, so that most footers take one request to the store."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of the schema."""

    physical_type: int
    value_bytes: int
    """Of every value; 0 if their lengths differ."""
    definition_max: int
    repetition_max: int


def read_unverified_metadata(source: BinaryIO | pa.NativeFile) -> pq.FileMetaData:
    """The metadata of a file whose footer no digest covers. The position of `source` is 0 afterwards.

    Pass it to `ParquetFile`, which then does not read the footer again. Raises `ArrowInvalid` for a footer
    that pyarrow cannot read, or that would end the process.
    """
    size = source.seek(0, io.SEEK_END)
    start = source.seek(max(0, size - _TAIL_READ_BYTES))
    tail = bytes(source.read(size - start))
    length = footer_length(tail[-FOOTER_TAIL_BYTES:])
    if length is None or length > size:
        raise pa.ArrowInvalid("it does not end in a Parquet footer")
    if length > FOOTER_BYTES_MAX:
        raise pa.ArrowInvalid(f"its Parquet footer has {length} bytes, more than {FOOTER_BYTES_MAX}")
    if length > len(tail):
        source.seek(size - length)
        tail = bytes(source.read(length))
    source.seek(0)
    footer = tail[-length:]
    try:
        check_footer_columns(footer)
    except InvalidInput as error:
        raise pa.ArrowInvalid(str(error)) from error
    return pq.read_metadata(pa.BufferReader(footer_only(footer)))


def footer_only(footer: bytes) -> bytes:
    """A file of a magic and a footer: enough to parse the metadata without reading the object again."""
    return MAGIC + footer


def check_footer_columns(footer: bytes) -> None:
    """Raise `InvalidInput` unless pyarrow can describe every column; `footer` is with its length and magic.

    A footer that pyarrow cannot read at all may pass: pyarrow reports that itself.
    """
    compact = Compact(footer[:-FOOTER_TAIL_BYTES], "the footer", number_bits=64, lists=True)
    leaves: list[_Leaf] | None = None
    try:
        for field, kind in compact.fields():
            if field == _SCHEMA:
                leaves = _leaves(compact, kind)
            elif field == _ROW_GROUPS:
                if leaves is None:
                    raise InvalidInput("the footer has row groups before its schema")
                _check_groups(compact, kind, leaves)
            else:
                compact.value(kind)
    except IndexError as error:
        raise InvalidInput("the footer does not end") from error


def _leaves(compact: Compact, kind: int) -> list[_Leaf]:
    """The columns of the schema, which is a tree in the order of its elements."""
    leaves: list[_Leaf] = []
    # Children that are left, and levels, of every open group; the root has neither level.
    groups: list[list[int]] = []
    for number in range(compact.list_of(kind, STRUCT)):
        element = _element(compact)
        children, repetition = element.get(_CHILDREN, 0), element.get(_REPETITION, 0)
        if number and not groups:
            raise InvalidInput("the schema in the footer has elements behind its end")
        _, definition_max, repetition_max = groups[-1] if groups else (0, 0, 0)
        if groups:
            groups[-1][0] -= 1
            definition_max += repetition in (_OPTIONAL, _REPEATED)
            repetition_max += repetition == _REPEATED
        if children > 0 or not number:
            groups.append([children, definition_max, repetition_max])
        else:
            physical_type = element.get(_TYPE, -1)
            value_bytes = _VALUE_BYTES.get(physical_type, 0)
            if physical_type == _FIXED:
                value_bytes = element.get(_TYPE_LENGTH, 0)
            leaves.append(_Leaf(physical_type, value_bytes, definition_max, repetition_max))
        while groups and groups[-1][0] == 0:
            groups.pop()
    if len(leaves) > _COLUMNS_MAX:
        raise InvalidInput(f"the footer has {len(leaves)} columns, more than {_COLUMNS_MAX}")
    return leaves


def _element(compact: Compact) -> dict[int, int]:
    """Type, its length, repetition and children of an element of the schema, as far as they are given."""
    found: dict[int, int] = {}
    for field, kind in compact.fields():
        value = compact.value(kind)
        if field not in (_TYPE, _TYPE_LENGTH, _REPETITION, _CHILDREN):
            continue
        # A reader in C++ skips a field of another kind.
        if kind != I32 or not isinstance(value, int):
            raise InvalidInput(f"field {field} of an element of the schema has the kind {kind}")
        found[field] = value
    return found


def _check_groups(compact: Compact, kind: int, leaves: list[_Leaf]) -> None:
    for group in range(compact.list_of(kind, STRUCT)):
        for field, inner in compact.fields():
            if field != 1:
                compact.value(inner)
                continue
            count = compact.list_of(inner, STRUCT)
            if count != len(leaves):
                raise InvalidInput(f"row group {group} has {count} columns, the schema {len(leaves)}")
            for number, leaf in enumerate(leaves):
                _check_column(compact.struct(), leaf, f"row group {group}, column {number}")


def _check_column(column: Fields, leaf: _Leaf, where: str) -> None:
    # 8 and 9: keys of an encrypted column.
    if 8 in column or 9 in column:
        raise InvalidInput(f"{where}: encrypted columns cannot be read")
    described = column.get(3)
    if not isinstance(described, dict):
        raise InvalidInput(f"{where}: it has no metadata")
    # Arrow has no name for another codec.
    if described.get(4) not in _CODECS:
        raise InvalidInput(f"{where}: it has the unknown codec {described.get(4)}")
    # Arrow reads the extremes by this type, into values of the schema's.
    if described.get(1) != leaf.physical_type:
        raise InvalidInput(f"{where}: it has the type {described.get(1)}, the schema {leaf.physical_type}")
    _check_extremes(described.get(12), leaf, where)
    _check_sizes(described.get(16), leaf, where)


def _check_extremes(statistics: object, leaf: _Leaf, where: str) -> None:
    if not isinstance(statistics, dict):
        return
    for field in _EXTREMES:
        value = statistics.get(field)
        if isinstance(value, Text) and value.length < leaf.value_bytes:
            raise InvalidInput(
                f"{where}: a value in its statistics has {value.length} bytes, not {leaf.value_bytes}"
            )


def _check_sizes(sizes: object, leaf: _Leaf, where: str) -> None:
    if not isinstance(sizes, dict):
        return
    if 1 in sizes and leaf.physical_type != _BYTE_ARRAY:
        raise InvalidInput(f"{where}: it is not of byte arrays and has the size of such")
    for field, most in ((2, leaf.repetition_max), (3, leaf.definition_max)):
        # The number of elements stands for a list.
        if field in sizes and sizes[field] not in (0, most + 1):
            raise InvalidInput(f"{where}: a histogram has {sizes[field]} levels, not {most + 1}")

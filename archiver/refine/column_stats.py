"""Column statistics of a Parquet file in the form of Iceberg's manifests, read from the footer.

Pure, except for reading footer values. Owns the translation of Parquet statistics to Iceberg bounds:
single-value binary form, strings and bytes truncated to 16 (Iceberg's default). A lower bound is never above
and an upper bound never below a value of the file. A bound that the footer does not prove is left out.

A footer proves nothing about floating-point columns. Parquet's minimum and maximum ignore NaN, and a footer
does not say whether there was one. DuckDB and Spark order NaN above every number and would skip row groups
with matching rows. So archives carry no Parquet statistics for these columns: `FloatCounts` counts the values
while the file is written.

Columns are named by the field ids of the schema that the file was written with, and the footer must have
exactly these columns. A file that was found in the store, maybe of an older schema, is described by its own
columns.
"""

from __future__ import annotations

import decimal
import math
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from archiver.runtime.errors import Corrupted
from archiver.schema.arrow import pc

TRUNCATE_LENGTH = 16
"""Characters of a string, bytes of a binary: Iceberg's default `truncate(16)`."""

_FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One physical column of a Parquet file."""

    path: str
    """As in the Parquet schema: `headers.list.element.key`."""
    field_id: int
    type: pa.DataType
    repeated: bool
    """Inside a list or a map."""
    place: tuple[int, ...] = ()
    """Position of the top-level column, then of the field at each level of structs; empty inside a list or a
    map."""

    @property
    def floating(self) -> bool:
        """Whether a value can be NaN."""
        return pa.types.is_floating(self.type)


@dataclass(frozen=True, slots=True)
class FileStatistics:
    """Per field id, summed over the row groups; `lower` and `upper` only where they are sure."""

    column_sizes: dict[int, int]
    value_counts: dict[int, int]
    null_value_counts: dict[int, int]
    lower_bounds: dict[int, bytes]
    upper_bounds: dict[int, bytes]
    split_offsets: tuple[int, ...]
    record_count: int
    nan_value_counts: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of files of one schema. Made once for many files: walking a schema takes as long as writing
    a small column.
    """

    schema: pa.Schema
    leaves: tuple[Leaf, ...]
    bounded: frozenset[int]
    """Field ids of the leaves that have bounds in the table's metadata. They also have statistics in the
    file, unless they are inside a list or a map."""
    measured: tuple[Leaf, ...]
    """The leaves whose minimum and maximum are kept, in the file or in the table's metadata."""
    forms: tuple[str | None, ...]
    """For each leaf: None without bounds from the footer, `<i` or `<q` for a number that is stored as it is,
    else `other`."""

    @classmethod
    def of(cls, schema: pa.Schema, bounded: Set[int] | None = None) -> Columns:
        """The columns of a schema; without `bounded`, all of them are bounded. Raises `Corrupted` as
        `leaves`.
        """
        found = tuple(leaves(schema))
        kept = frozenset(leaf.field_id for leaf in found) if bounded is None else frozenset(bounded)
        measured = tuple(leaf for leaf in found if leaf.field_id in kept and not leaf.repeated)
        forms = tuple(_form(leaf.type) if leaf in measured and not leaf.floating else None for leaf in found)
        return cls(schema, found, kept, measured, forms)


def _form(kind: pa.DataType) -> str:
    """See `Columns.forms`."""
    if pa.types.is_int32(kind) or pa.types.is_date32(kind):
        return "<i"
    if pa.types.is_int64(kind) or pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return "<q"
    return "other"


def leaves(schema: pa.Schema) -> list[Leaf]:
    """The physical columns of a schema with field ids, in file order; raises `Corrupted` if one has no field
    id.
    """
    return [
        leaf
        for index, column in enumerate(schema)
        for leaf in _leaves_of(column, "", (index,), repeated=False)
    ]


def _leaves_of(
    column: pa.Field[Any], parent: str, place: tuple[int, ...], *, repeated: bool, name: str | None = None
) -> Iterator[Leaf]:
    path = f"{parent}{column.name if name is None else name}"
    kind: Any = column.type
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _leaves_of(kind.field(index), f"{path}.", (*place, index), repeated=repeated)
    # Parquet's names of the children, which may differ from Arrow's.
    elif pa.types.is_map(kind):
        yield from _leaves_of(kind.key_field, f"{path}.key_value.", place, repeated=True, name="key")
        yield from _leaves_of(kind.item_field, f"{path}.key_value.", place, repeated=True, name="value")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves_of(kind.value_field, f"{path}.list.", place, repeated=True, name="element")
    else:
        metadata = column.metadata or {}
        if _FIELD_ID not in metadata:
            raise Corrupted(f"column {path} has no field id; the file was not written by this archiver")
        # No place inside a list or map: its values are not one per row.
        yield Leaf(path, int(metadata[_FIELD_ID]), kind, repeated, () if repeated else place)


def describe(
    metadata: pq.FileMetaData, columns: Columns, floats: Mapping[int, FloatColumn]
) -> FileStatistics:
    """Statistics of a file from its footer; `columns` are of the schema that it was written with. Raises
    `Corrupted` if the footer has other columns.

    `floats`: what the writer counted of floating-point columns, by field id; empty for a file that was found
    in the store.
    """
    # Columns are matched by position, so a different count would mix up their statistics.
    if len(columns.leaves) != metadata.num_columns:
        raise Corrupted(f"a footer lists {metadata.num_columns} columns, its schema {len(columns.leaves)}")
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    found = FileStatistics(
        {}, {}, {}, {}, {}, tuple(sorted(_group_start(group) for group in groups)), metadata.num_rows
    )
    for position, (leaf, form) in enumerate(zip(columns.leaves, columns.forms, strict=True)):
        counted = floats.get(leaf.field_id)
        # The footer has no statistics for a column that was counted.
        chunks = [_chunk(group.column(position), leaf, form, counted is None) for group in groups]
        size, values, nulls, low, high, sure = chunks[0] if len(chunks) == 1 else _joined(chunks)
        found.column_sizes[leaf.field_id] = size
        found.value_counts[leaf.field_id] = values
        if counted is not None:
            _add_counted(found, leaf, counted)
            continue
        if nulls is not None:
            found.null_value_counts[leaf.field_id] = nulls
        if form is not None and sure and low is not None:
            _add_bounds(found, leaf, form, low, high)
    return found


class _Chunk(NamedTuple):
    """What a footer says of a column in one row group, or in all."""

    size: int
    values: int
    nulls: int | None
    """None: unknown."""
    low: Any = None
    """None: there is no value, or nothing is known."""
    high: Any = None
    sure: bool = False
    """Whether `low` and `high` hold for all values."""


def _chunk(chunk: Any, leaf: Leaf, form: str | None, has_statistics: bool) -> _Chunk:
    """Read one column chunk. Called for every column of every archive, so it asks for each value once."""
    if chunk.path_in_schema != leaf.path:
        raise Corrupted(f"a footer has the column {chunk.path_in_schema} where its schema has {leaf.path}")
    size, values = chunk.total_compressed_size, chunk.num_values
    statistics = chunk.statistics if has_statistics else None
    if statistics is None:
        return _Chunk(size, values, None)
    nulls = statistics.null_count if statistics.has_null_count else None
    # A row group of nulls has no extremes and moves none.
    if form is None or nulls == values:
        return _Chunk(size, values, nulls, sure=True)
    # The group's values may be too long, or not comparable.
    if not statistics.has_min_max:
        return _Chunk(size, values, nulls)
    low, high = statistics.min_raw, statistics.max_raw
    if form == "other":
        low, high = _comparable(leaf.type, low), _comparable(leaf.type, high)
    return _Chunk(size, values, nulls, low, high, True)


def _joined(chunks: Sequence[_Chunk]) -> _Chunk:
    """The same for all row groups: one without statistics leaves the whole column unknown."""
    nulls = [chunk.nulls for chunk in chunks if chunk.nulls is not None]
    filled = [chunk for chunk in chunks if chunk.low is not None]
    return _Chunk(
        sum(chunk.size for chunk in chunks),
        sum(chunk.values for chunk in chunks),
        sum(nulls) if len(nulls) == len(chunks) else None,
        min((chunk.low for chunk in filled), default=None),
        max((chunk.high for chunk in filled), default=None),
        all(chunk.sure for chunk in chunks),
    )


def _add_counted(found: FileStatistics, leaf: Leaf, counted: FloatColumn) -> None:
    found.null_value_counts[leaf.field_id] = counted.null_count
    # With a NaN count Iceberg skips a file of NaN alone for `> 100`. Spark orders NaN above every number and
    # would miss its rows.
    if counted.nan_count < found.value_counts[leaf.field_id]:
        found.nan_value_counts[leaf.field_id] = counted.nan_count
    if counted.low is not None and counted.high is not None:
        form = "<f" if pa.types.is_float32(leaf.type) else "<d"
        found.lower_bounds[leaf.field_id] = struct.pack(form, counted.low)
        found.upper_bounds[leaf.field_id] = struct.pack(form, counted.high)


def _group_start(group: Any) -> int:
    """Where a row group begins: at its first column's first page, which is the dictionary if there is one."""
    column = group.column(0)
    data = int(column.data_page_offset)
    return min(data, int(column.dictionary_page_offset)) if column.has_dictionary_page else data


def _add_bounds(found: FileStatistics, leaf: Leaf, form: str, low: Any, high: Any) -> None:
    """Add the bounds of a column with these extremes."""
    if form != "other":
        found.lower_bounds[leaf.field_id] = struct.pack(form, low)
        found.upper_bounds[leaf.field_id] = struct.pack(form, high)
        return
    # Truncated towards the outside: a bound may be too wide, never too narrow.
    lower = single_value(leaf.type, truncate_down(low))
    if lower is not None:
        found.lower_bounds[leaf.field_id] = lower
    highest = truncate_up(high)
    # Without a representable upper bound the column keeps its lower bound alone.
    upper = None if highest is None else single_value(leaf.type, highest)
    if upper is not None:
        found.upper_bounds[leaf.field_id] = upper


def _comparable(kind: pa.DataType, raw: Any) -> Any:
    """A raw statistic as a value whose order is the column's."""
    # Parquet stores decimals big-endian in two's complement, whose byte order is not numeric.
    if pa.types.is_decimal(kind) and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        # Parquet compares UTF-8 bytes without sign, Python code points: the same order.
        return raw.decode("utf-8") if isinstance(raw, bytes) else str(raw)
    return raw


def truncate_down(value: Any) -> Any:
    """The value, or for strings and bytes a prefix of it, which is not above it."""
    return value[:TRUNCATE_LENGTH] if isinstance(value, str | bytes) else value


def truncate_up(value: Any) -> Any | None:
    """The value, or for strings and bytes the smallest value of at most 16 units that is not below it; None
    if there is none.
    """
    if isinstance(value, str) and len(value) > TRUNCATE_LENGTH:
        return _string_above(value[:TRUNCATE_LENGTH])
    if isinstance(value, bytes) and len(value) > TRUNCATE_LENGTH:
        # 0xff cannot be incremented, so the byte before is.
        kept = value[:TRUNCATE_LENGTH].rstrip(b"\xff")
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    return value


def _string_above(prefix: str) -> str | None:
    """The smallest string above every string with this prefix, without surrogates: they are no characters."""
    for end in range(len(prefix), 0, -1):
        following = ord(prefix[end - 1]) + 1
        # Surrogates cannot be encoded as UTF-8; the next character is U+E000.
        if 0xD800 <= following <= 0xDFFF:
            following = 0xE000
        if following <= 0x10FFFF:
            return prefix[: end - 1] + chr(following)
    return None


def single_value(kind: pa.DataType, value: Any) -> bytes | None:
    """Iceberg's single-value binary form of a bound; None for types that have no bounds here."""
    if pa.types.is_boolean(kind):
        return b"\x01" if value else b"\x00"
    if pa.types.is_int32(kind) or pa.types.is_date32(kind):
        return struct.pack("<i", value)
    if pa.types.is_int64(kind) or pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return struct.pack("<q", value)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return str(value).encode("utf-8")
    if pa.types.is_decimal(kind):
        unscaled = int(value.scaleb(kind.scale)) if isinstance(value, decimal.Decimal) else int(value)
        # Iceberg: big-endian two's complement in the fewest bytes; the sign needs one bit.
        size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
        return unscaled.to_bytes(size, "big", signed=True)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return bytes(value)
    return None


@dataclass(frozen=True, slots=True)
class FloatColumn:
    """One column of one file."""

    null_count: int
    """Rows without a value, those whose enclosing message is null included."""
    nan_count: int
    low: float | None
    """Smallest value, with zero as -0.0; None if the column has a NaN or no value at all."""
    high: float | None
    """Largest value, with zero as +0.0; None as for `low`."""


class FloatCounts:
    """Counts the columns at these places, one row group after another. Not thread-safe."""

    def __init__(self, places: Iterable[tuple[int, tuple[int, ...]]]) -> None:
        """`places`: field id and position of each column: the top-level column, then the field at each level
        of structs.
        """
        self._places = tuple(places)
        self._found: dict[int, FloatColumn] = {}

    def add(self, table: pa.Table) -> None:
        """Count the rows of one row group."""
        for field_id, place in self._places:
            column: Any = table.column(place[0])
            # This kernel applies the validity of every level, unlike `StructArray.field`.
            found = _counted(pc.struct_field(column, place[1:]) if len(place) > 1 else column)
            before = self._found.get(field_id)
            self._found[field_id] = found if before is None else _both(before, found)

    def columns(self) -> dict[int, FloatColumn]:
        """The counts by field id."""
        return dict(self._found)


def _counted(values: Any) -> FloatColumn:
    # One NaN makes the sum NaN, and so may infinities: only then they are counted.
    total = pc.sum(values).as_py()
    nans = 0 if total is None or not math.isnan(total) else pc.sum(pc.is_nan(values)).as_py() or 0
    extremes = pc.min_max(values)
    low, high = extremes["min"].as_py(), extremes["max"].as_py()
    # A bound would be wrong: engines order NaN above every number, `min_max` ignores it.
    if nans or low is None:
        return FloatColumn(values.null_count, nans, None, None)
    # Iceberg orders -0.0 before +0.0, and a minimum of equal zeros may be either.
    return FloatColumn(values.null_count, 0, low or -0.0, high or 0.0)


def _both(one: FloatColumn, other: FloatColumn) -> FloatColumn:
    nulls, nans = one.null_count + other.null_count, one.nan_count + other.nan_count
    lows = [column.low for column in (one, other) if column.low is not None]
    highs = [column.high for column in (one, other) if column.high is not None]
    # A NaN in any row group makes the bounds of the whole file unsure.
    if nans or not lows:
        return FloatColumn(nulls, nans, None, None)
    return FloatColumn(nulls, 0, min(lows), max(highs))

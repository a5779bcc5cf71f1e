"""Chooses the Parquet encoding of each column of an archive, from the rows at the beginning and end of its
first row group, and the columns that are not compressed.

Pure. A dictionary where values repeat, deltas for numbers and times, DELTA_BYTE_ARRAY where neighbours share
a prefix, else plain or DELTA_LENGTH_BYTE_ARRAY. Columns that compression does not make smaller are stored
without it. The choice never changes what is read back, only size and time. A choice that fits later rows less
costs some of both.

Small archives of a topic that are made in the same task share a choice, so their bytes depend on what was
made before them. Archives of the same records must not be compared by their bytes.

Measured in `bench/limit.py` and `bench/partitions.py`; `docs/performance-notes.md` has what was tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from archiver.refine.column_stats import Leaf
from archiver.schema.arrow import arrow

DICTIONARY_BYTES_MAX = 1024 * 1024
"""The writer gives up a dictionary that grows beyond this; one that is expected to is not begun."""
SAMPLE_ROWS = 1024
"""Rows sampled at the beginning of the first batch and at the end of the last one. They are consecutive,
because deltas are taken between neighbours."""
ROWS_MIN = 4096
"""Below this number of rows, sampling costs more than a better encoding saves."""
ALONE_ROWS, ALONE_BYTES = 16_384, 8 * 1024 * 1024
"""A first row group of this many rows, or bytes in memory, is sampled by itself: sampling is then a twentieth
of the work."""
_NEIGHBOURS = 128
"""This many texts of a sample are compared with the one before."""
_REPEATED = 8
"""Numbers that occur this often on average are worth a dictionary, if it needs fewer bits than deltas."""
_REPEATED_TEXTS = 4
"""Texts that occur this often on average are worth a dictionary."""
_REPEATED_HERE = 2
"""Texts that occur this often within each sample are worth one as well: the values may differ from place to
place, and the writer gives up a dictionary that grows."""
_SHARED_MIN = 4.0
"""Average prefix in bytes that a value must share with the one before, for DELTA_BYTE_ARRAY to pay."""
_SHARED_MAX = 256
"""At most this many bytes of a prefix are compared."""
_MINIBLOCK = 32
"""Deltas that share a bit width in DELTA_BINARY_PACKED."""
_PROBED = 512
"""Values of each sample that are compressed to see whether compression makes a column smaller."""
_PRESENT = 0.9
"""Share of the sampled rows that must have a value, for the trial to be made."""
_DENSE = 0.97
"""Deltas that keep this share of their bytes are not compressed."""
_NAMES = ("key.__raw__",)
"""Binary columns that are treated as texts: keys name things. Other binary columns are messages or parts of
them."""


@dataclass(frozen=True, slots=True)
class Encodings:
    """As `pyarrow.parquet.ParquetWriter` takes them: columns with a dictionary, and the encodings of all
    others.
    """

    dictionary: list[str]
    others: dict[str, str]
    uncompressed: frozenset[str] = frozenset()
    """Columns that compression does not make smaller."""


class SharedEncodings:
    """The choice for the small archives of one topic that a task writes. Most topics have the same kind of
    rows in all partitions, and sampling takes milliseconds. Not thread-safe.
    """

    def __init__(self) -> None:
        self._sampled = False
        self._found: Encodings | None = None

    def of(
        self, leaves: Sequence[Leaf], batches: Sequence[pa.RecordBatch], nbytes: int | None = None
    ) -> Encodings:
        """As `chosen`, or the choice made before for another small archive of these columns. A choice that
        was made without a sample is replaced once there are rows enough for one. `nbytes`: of the batches in
        memory, if it is known; computing it takes as long as writing a column.
        """
        rows = sum(batch.num_rows for batch in batches)
        size = sum(batch.nbytes for batch in batches) if nbytes is None else nbytes
        if rows >= ALONE_ROWS or size >= ALONE_BYTES:
            return chosen(leaves, batches)
        if self._found is None or (rows >= ROWS_MIN and not self._sampled):
            self._sampled, self._found = rows >= ROWS_MIN, chosen(leaves, batches)
        return self._found


def chosen(leaves: Sequence[Leaf], batches: Sequence[pa.RecordBatch]) -> Encodings:
    """The encodings of an archive with these columns and this first row group; by the types alone if it has
    few rows.
    """
    rows = sum(batch.num_rows for batch in batches)
    samples = _samples(batches) if rows >= ROWS_MIN else []
    times = rows / max(1, sum(sample.num_rows for sample in samples))
    values = [[found for column in sample.columns for found in _leaf_values(column)] for sample in samples]
    dictionary: list[str] = []
    others: dict[str, str] = {}
    for place, leaf in enumerate(leaves):
        encoding = _encoding(leaf, [one[place] for one in values if len(one[place])], times)
        if encoding is None:
            dictionary.append(leaf.path)
        else:
            others[leaf.path] = encoding
    # A smaller row group takes less time than the trial.
    dense = _dense(leaves, others, values) if samples and rows >= ALONE_ROWS else frozenset()
    return Encodings(dictionary, others, dense)


def _dense(
    leaves: Sequence[Leaf], others: Mapping[str, str], values: Sequence[Sequence[pa.Array[Any]]]
) -> frozenset[str]:
    """Columns whose deltas compression does not make smaller: it is tried with a part of the samples."""
    tried: dict[str, pa.Array[Any]] = {}
    for place, leaf in enumerate(leaves):
        parts = [one[place] for one in values]
        # Where values are missing, the levels that say so may become smaller.
        if others.get(leaf.path) == "DELTA_BINARY_PACKED" and min(map(len, parts)) >= _PRESENT * SAMPLE_ROWS:
            tried[leaf.path] = arrow.concat_arrays([part.slice(0, _PROBED) for part in parts])
    if not tried:
        return frozenset()
    # Names with dots would be paths of structs.
    table = arrow.table({str(number): column for number, column in enumerate(tried.values())})
    found: list[pq.FileMetaData] = []
    with pq.ParquetWriter(
        pa.BufferOutputStream(),
        table.schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        column_encoding=dict.fromkeys(table.column_names, "DELTA_BINARY_PACKED"),
        write_statistics=False,
        metadata_collector=found,
    ) as writer:
        writer.write_table(table)
    group = found[0].row_group(0)
    columns: list[Any] = [group.column(position) for position in range(len(tried))]
    return frozenset(
        path
        for path, column in zip(tried, columns, strict=True)
        # A byte for each value: what is smaller takes little time to compress.
        if column.total_uncompressed_size >= table.num_rows
        and column.total_compressed_size >= _DENSE * column.total_uncompressed_size
    )


def _samples(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Copies of the first rows and of the last ones, without an offset into the batch; none if all batches
    are short.
    """
    long = [batch for batch in batches if batch.num_rows >= SAMPLE_ROWS]
    # Neighbours are what is measured, so a sample must not be put together from short batches.
    if not long:
        return []
    # With a single batch the second sample comes after the first, so that no row is in both.
    last = long[-1].slice(SAMPLE_ROWS) if len(long) == 1 else long[-1]
    start = max(0, last.num_rows - SAMPLE_ROWS)
    return [
        long[0].take(arrow.array(np.arange(SAMPLE_ROWS))),
        last.take(arrow.array(np.arange(start, last.num_rows))),
    ]


def _leaf_values(array: pa.Array[Any]) -> Iterator[pa.Array[Any]]:
    """The physical columns under a column, in the order of `leaves`, without their nulls."""
    found: Any = array
    if pa.types.is_struct(found.type):
        for place in range(found.type.num_fields):
            yield from _leaf_values(found.field(place))
    elif pa.types.is_map(found.type):
        yield from _leaf_values(found.keys)
        yield from _leaf_values(found.items)
    elif pa.types.is_list(found.type) or pa.types.is_large_list(found.type):
        yield from _leaf_values(found.values)
    else:
        yield found.drop_null()


def _encoding(leaf: Leaf, samples: list[pa.Array[Any]], times: float) -> str | None:
    """Parquet's name of the encoding; None: a dictionary. The row group is `times` as long as the samples."""
    kind = leaf.type
    if (
        pa.types.is_int32(kind)
        or pa.types.is_int64(kind)
        or pa.types.is_timestamp(kind)
        or pa.types.is_date32(kind)
    ):
        return _of_numbers([_numbers(one) for one in samples])
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or leaf.path in _NAMES:
        return _of_texts([one.cast(pa.binary()) for one in samples], times)
    return (
        "DELTA_LENGTH_BYTE_ARRAY" if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) else "PLAIN"
    )


def _of_numbers(samples: list[npt.NDArray[np.int64]]) -> str | None:
    if not samples:
        return "DELTA_BINARY_PACKED"
    together = np.sort(np.concatenate(samples))  # faster than numpy.unique
    distinct = 1 + int(np.count_nonzero(together[1:] != together[:-1]))
    # Values that seldom repeat would fill the dictionary.
    if distinct * _REPEATED > len(together):
        return "DELTA_BINARY_PACKED"
    # A dictionary index needs the bits of `distinct - 1`; the smaller of the two wins.
    return None if (distinct - 1).bit_length() < _delta_bits(samples) else "DELTA_BINARY_PACKED"


def _delta_bits(samples: list[npt.NDArray[np.int64]]) -> float:
    """Bits per value in DELTA_BINARY_PACKED: the width of the largest delta of a block above its smallest."""
    widths: list[float] = []
    for numbers in samples:
        deltas = np.diff(numbers)
        # A block is packed at one bit width; the incomplete last block is left out.
        blocks = deltas[: len(deltas) // _MINIBLOCK * _MINIBLOCK].reshape(-1, _MINIBLOCK)
        # Float, because the difference of two 64-bit deltas can overflow.
        spans = blocks.max(axis=1).astype(np.float64) - blocks.min(axis=1)
        widths += np.ceil(np.log2(spans + 1)).tolist()
    return sum(widths) / len(widths) if widths else 0.0


def _numbers(array: pa.Array[Any]) -> npt.NDArray[np.int64]:
    # Arrow casts date32 to int32 only.
    plain = array.cast(pa.int32()) if pa.types.is_date32(array.type) else array
    found: npt.NDArray[np.int64] = plain.cast(pa.int64()).to_numpy(zero_copy_only=False)
    return found


def _of_texts(samples: list[pa.Array[Any]], times: float) -> str | None:
    if not samples:
        return None
    count = sum(map(len, samples))
    different = [one.unique() for one in samples]
    if sum(map(len, different)) * _REPEATED_HERE <= count:
        return None
    distinct = _distinct(samples, different)
    size = sum(one.get_total_buffer_size() for one in samples) / count
    # The dictionary is of the whole row group, and the sample shows only a part of it.
    if distinct * _REPEATED_TEXTS <= count * times and distinct * size <= DICTIONARY_BYTES_MAX:
        return None
    shared = np.concatenate([_shared(sample.slice(0, _NEIGHBOURS)) for sample in samples])
    return "DELTA_BYTE_ARRAY" if len(shared) and shared.mean() >= _SHARED_MIN else "PLAIN"


def _distinct(samples: list[pa.Array[Any]], different: list[pa.Array[Any]]) -> float:
    """Estimate of the distinct values of the column, from those that two samples share (capture and
    recapture): a thousand rows do not show five thousand.

    `different`: the distinct values of each sample.
    """
    if len(samples) == 1 or min(map(len, samples)) < _NEIGHBOURS:
        # Two halves of one sample stand for two samples.
        longest = max(samples, key=len)
        different = [longest.slice(0, len(longest) // 2).unique(), longest.slice(len(longest) // 2).unique()]
    one, other = different
    both = len(one) + len(other) - len(arrow.concat_arrays([one, other]).unique())
    # No common value: the column may have any number of values.
    return len(one) * len(other) / both if both else math.inf


def _shared(texts: pa.Array[Any]) -> npt.NDArray[np.int64]:
    """For each binary value but the first: the length of the prefix that it shares with the one before,
    counted up to `_SHARED_MAX`.
    """
    plain: Any = texts.take(arrow.array(np.arange(len(texts))))  # without an offset
    _, offsets, data = plain.buffers()
    ends = np.frombuffer(offsets, np.int32, len(plain) + 1)
    # One zero byte where all texts are empty, so that indexing below works.
    held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    longest = int(np.diff(ends).max(initial=0))
    places = ends[:-1, None] + np.arange(min(longest, _SHARED_MAX))
    there = places < ends[1:, None]
    # Places beyond a text read some other byte; `there` excludes them.
    values = held[np.minimum(places, len(held) - 1)]
    alike = (values[1:] == values[:-1]) & there[1:] & there[:-1]
    shared: npt.NDArray[np.int64] = np.logical_and.accumulate(alike, axis=1).sum(axis=1)
    return shared

"""Which Parquet encoding each column of an archive gets, chosen from the rows that its first row group begins
and ends with.

Pure. A dictionary where values repeat, deltas for numbers and times, shared beginnings where neighbours begin
alike, else plain or lengths apart. A choice never concerns what is read back, only bytes and time; one that
fits the later rows less costs some of both. Small archives of a topic that are made in the same task share a
choice, so their bytes depend on what was made before them: nobody may compare archives of the same records by
their bytes.

Measured in `bench/limit.py` and `bench/partitions.py`; decisions 0047 and 0057 have what was tried.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.refine.column_stats import Leaf
from archiver.schema.arrow import arrow

DICTIONARY_BYTES_MAX = 1024 * 1024
"""A dictionary that grows beyond this is given up by the writer; one that is expected to is not begun."""
SAMPLE_ROWS = 1024
"""Looked at, at the beginning of the first batch of rows and at the end of the last one: neighbours, because
deltas are of these."""
ROWS_MIN = 4096
"""In fewer rows there is less to win than the look costs."""
ALONE_ROWS, ALONE_BYTES = 16_384, 8 * 1024 * 1024
"""A first row group of so many rows, or of so many bytes in memory, is looked at by itself: there the look is
a twentieth of the work."""
_NEIGHBOURS = 128
"""So many texts of a sample are compared with the one before."""
_REPEATED = 8
"""Numbers that are there so many times each, at the mean, are worth a dictionary if it needs fewer bits than
deltas do."""
_REPEATED_TEXTS = 4
"""Texts that are there so many times each, at the mean, are worth one."""
_REPEATED_HERE = 2
"""So are those that are so often in each sample: which ones may change from place to place, and the writer
gives up what grows."""
_SHARED_MIN = 4.0
"""Bytes that a value must have in common with the one before, at the mean, to be worth a look at each."""
_SHARED_MAX = 256
"""No more of them are compared."""
_MINIBLOCK = 32
"""Deltas that share a width in DELTA_BINARY_PACKED."""
_NAMES = ("key.__raw__",)
"""Binary columns that are chosen for like texts: keys name things. Other binary columns are messages or parts
of them."""


@dataclass(frozen=True, slots=True)
class Encodings:
    """As `pyarrow.parquet.ParquetWriter` takes them: columns with a dictionary, and the encodings of all
    others.
    """

    dictionary: list[str]
    others: dict[str, str]


class SharedEncodings:
    """Of the small archives of one topic that a task writes: most topics have the same kind of rows in all
    partitions, and a look takes milliseconds. Not safe for several threads.
    """

    def __init__(self) -> None:
        self._looked = False
        self._found: Encodings | None = None

    def of(self, leaves: Sequence[Leaf], batches: Sequence[pa.RecordBatch]) -> Encodings:
        """As `chosen`, or what was chosen before for another small one of these columns; not if nothing was
        looked at there and is here.
        """
        rows = sum(batch.num_rows for batch in batches)
        if rows >= ALONE_ROWS or sum(batch.nbytes for batch in batches) >= ALONE_BYTES:
            return chosen(leaves, batches)
        if self._found is None or (rows >= ROWS_MIN and not self._looked):
            self._looked, self._found = rows >= ROWS_MIN, chosen(leaves, batches)
        return self._found


def chosen(leaves: Sequence[Leaf], batches: Sequence[pa.RecordBatch]) -> Encodings:
    """For an archive of these columns and its first row group; by the types alone if that has few rows."""
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
    return Encodings(dictionary, others)


def _samples(batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """The first rows and the last ones, copied, so that no offset is left in them; none if all batches are
    short.
    """
    long = [batch for batch in batches if batch.num_rows >= SAMPLE_ROWS]
    if not long:
        return []
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
    """Parquet's name of it; None: a dictionary. The row group is `times` as long as the samples."""
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
    together = np.sort(np.concatenate(samples))  # quicker than to ask numpy for the unique ones
    distinct = 1 + int(np.count_nonzero(together[1:] != together[:-1]))
    if distinct * _REPEATED > len(together):
        return "DELTA_BINARY_PACKED"
    return None if (distinct - 1).bit_length() < _delta_bits(samples) else "DELTA_BINARY_PACKED"


def _delta_bits(samples: list[npt.NDArray[np.int64]]) -> float:
    """Bits of a value as DELTA_BINARY_PACKED has it: the width of the largest delta of its block above the
    smallest one.
    """
    widths: list[float] = []
    for numbers in samples:
        deltas = np.diff(numbers)
        blocks = deltas[: len(deltas) // _MINIBLOCK * _MINIBLOCK].reshape(-1, _MINIBLOCK)
        spans = blocks.max(axis=1).astype(np.float64) - blocks.min(axis=1)
        widths += np.ceil(np.log2(spans + 1)).tolist()
    return sum(widths) / len(widths) if widths else 0.0


def _numbers(array: pa.Array[Any]) -> npt.NDArray[np.int64]:
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
    if distinct * _REPEATED_TEXTS <= count * times and distinct * size <= DICTIONARY_BYTES_MAX:
        return None
    shared = np.concatenate([_shared(sample.slice(0, _NEIGHBOURS)) for sample in samples])
    return "DELTA_BYTE_ARRAY" if len(shared) and shared.mean() >= _SHARED_MIN else "PLAIN"


def _distinct(samples: list[pa.Array[Any]], different: list[pa.Array[Any]]) -> float:
    """How many different values the column has, reckoned from those that two samples share: a thousand rows
    do not show five thousand.

    `different`: those of each sample.
    """
    if len(samples) == 1 or min(map(len, samples)) < _NEIGHBOURS:
        longest = max(samples, key=len)
        different = [longest.slice(0, len(longest) // 2).unique(), longest.slice(len(longest) // 2).unique()]
    one, other = different
    both = len(one) + len(other) - len(arrow.concat_arrays([one, other]).unique())
    return len(one) * len(other) / both if both else math.inf


def _shared(texts: pa.Array[Any]) -> npt.NDArray[np.int64]:
    """How many bytes each of some binary values, but for the first, begins with like the one before it;
    counted to `_SHARED_MAX`.
    """
    plain: Any = texts.take(arrow.array(np.arange(len(texts))))  # without an offset
    _, offsets, data = plain.buffers()
    ends = np.frombuffer(offsets, np.int32, len(plain) + 1)
    held = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(1, np.uint8)
    longest = int(np.diff(ends).max(initial=0))
    places = ends[:-1, None] + np.arange(min(longest, _SHARED_MAX))
    there = places < ends[1:, None]
    values = held[np.minimum(places, len(held) - 1)]
    alike = (values[1:] == values[:-1]) & there[1:] & there[:-1]
    shared: npt.NDArray[np.int64] = np.logical_and.accumulate(alike, axis=1).sum(axis=1)
    return shared

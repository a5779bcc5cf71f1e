"""Arrow arrays as numpy: lengths, offsets and bytes without a Python object per row.

Pure. Respects slices (an array's own offset) and ignores the bytes of null rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Int64Array: TypeAlias = npt.NDArray[np.int64]
ArrowArray: TypeAlias = Any
"""A `pyarrow.Array`. Its published types lack half of its methods, so checking against them would reject
correct code."""

_arrow: Any = pa


def concat_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """One batch with the rows of all, in order; they share one schema."""
    return batches[0] if len(batches) == 1 else copied_batches(batches)


def copied_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """The same in new memory, so that the memory of the inputs can be freed."""
    joined: pa.RecordBatch = _arrow.concat_batches(list(batches))
    return joined


def list_array(offsets: npt.NDArray[np.int32], elements: ArrowArray, list_type: pa.DataType) -> ArrowArray:
    """A list array without nulls."""
    return _arrow.ListArray.from_arrays(_arrow.array(offsets), elements, type=list_type)


def binary_layout(array: ArrowArray) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Offsets (one more than rows) and data of a binary or string array."""
    _, offsets_buffer, data_buffer = array.buffers()
    # Arrow may leave out the buffers of an empty array.
    if len(array) == 0 or offsets_buffer is None:
        return np.zeros(1, np.int32), np.zeros(0, np.uint8)
    # A slice shares the buffers of its parent: only its part of the offsets belongs to it.
    offsets = np.frombuffer(offsets_buffer, np.int32)[array.offset : array.offset + len(array) + 1]
    data = np.zeros(0, np.uint8) if data_buffer is None else np.frombuffer(data_buffer, np.uint8)
    return offsets, data


def valid_rows(array: ArrowArray) -> npt.NDArray[np.bool_]:
    """True where the row is not null."""
    if array.null_count == 0:
        return np.ones(len(array), np.bool_)
    valid: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return valid


def binary_lengths(array: ArrowArray) -> Int64Array:
    """Bytes of each row of a binary or string array; a null counts zero."""
    offsets, _ = binary_layout(array)
    lengths = np.diff(offsets).astype(np.int64)
    if array.null_count:
        # Arrow allows bytes behind a null.
        lengths[~valid_rows(array)] = 0
    return lengths


def list_lengths(array: ArrowArray) -> Int64Array:
    """Elements of each row of a list array without nulls."""
    import pyarrow.compute as pc  # loads slowly, and `status` reads no records

    lengths: Int64Array = pc.list_value_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths


def header_lengths(headers: ArrowArray) -> Int64Array:
    """Bytes of the header names and values of each row."""
    pairs = headers.flatten()
    if len(pairs) == 0:
        return np.zeros(len(headers), np.int64)
    names, values = pairs.flatten()
    sums = np.concatenate(([0], np.cumsum(binary_lengths(names) + binary_lengths(values))))
    ends = np.cumsum(list_lengths(headers))
    starts = np.concatenate(([0], ends[:-1]))
    result: Int64Array = sums[ends] - sums[starts]
    return result

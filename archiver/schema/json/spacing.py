"""Documents without the white space between their parts, whole batches at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.schema.arrow import Array, arrow
from archiver.schema.protobuf.decoded_size import data_of, lengths_of
from archiver.schema.protobuf.values import Bools

_QUOTE, _BACKSLASH = 34, 92
_SPACES: Final = np.zeros(256, np.bool_)
_SPACES[list(b" \t\n\r")] = True
_SIGNS: Final = np.zeros(256, np.bool_)
_SIGNS[list(b"{}[]:,")] = True


def without_spaces(payloads: Array) -> tuple[Array, Bools]:
    """Documents (no nulls) without white space outside of their texts, and where that is certain to keep
    their meaning.

    It is not certain where a text has a backslash, and where white space separates what is no bracket, colon
    or comma: `1 2` would become another number.
    """
    data = data_of(payloads)
    bounds = np.concatenate(([0], np.cumsum(lengths_of(payloads))))
    quotes = data == _QUOTE
    # Quotes up to each byte, of which only the last bit counts: an odd number is inside a text.
    inside = np.cumsum(quotes, dtype=np.uint8)
    certain = np.diff(np.searchsorted(np.flatnonzero(quotes), bounds)) % 2 == 0
    if not certain.all():
        # A row with a text that does not end must not turn the next row inside out.
        before = np.concatenate((np.zeros(1, np.uint8), inside))[bounds[:-1]]
        inside -= np.repeat(before, np.diff(bounds))
    keep = ~_SPACES[data]
    keep |= (inside & 1).view(np.bool_)
    spaces = np.flatnonzero(~keep)
    left = bounds - np.searchsorted(spaces, bounds)
    suspects = np.flatnonzero(data == _BACKSLASH)
    if len(spaces):
        breaks = np.flatnonzero(np.diff(spaces) > 1)
        first, last = spaces[np.concatenate(([0], breaks + 1))], spaces[np.concatenate((breaks, [-1]))]
        # White space at an end of all documents separates nothing.
        inner = (first > 0) & (last < len(data) - 1)
        first, last = first[inner], last[inner]
        parts = ~(_SIGNS[data[first - 1]] | _SIGNS[data[last + 1]])
        suspects = np.concatenate((suspects, first[parts]))
    certain[np.searchsorted(bounds[1:], suspects, side="right")] = False
    return _binary(data[keep], left), certain


def _binary(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> Array:
    buffers = [None, arrow.py_buffer(offsets.astype(np.int32)), arrow.py_buffer(data)]
    return arrow.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)

"""Dates and moments to and from their one written form, whole columns at a time.

The form of a moment is `2026-11-28T14:00:00Z`, with three or six more digits where they are not zero. Arrow's
own conversions take ten times as long, and refuse a column for one text that is no date.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.schema.arrow import Array, arrow
from archiver.schema.protobuf.decoded_size import data_of, lengths_of

_Ints = npt.NDArray[np.int64]
_DAY_US: Final = 86_400_000_000
_SHAPE: Final = b"0000-00-00T00:00:00.000000"
_LENGTHS: Final = (20, 24, 27)
"""Of a moment without, with three and with six digits behind the seconds."""
_MONTH_ENDS: Final = np.array([0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)


def read_dates(texts: Array) -> Array:
    """Days since 1970 of texts, as date32; null for other texts."""
    found, right = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.bool_)
    rows, chars = _of_length(texts, 10)
    found[rows], right[rows] = _days(chars)
    return arrow.array(found.astype(np.int32), mask=~right).cast(pa.date32())


def read_moments(texts: Array, kind: Any) -> Array:
    """Microseconds since 1970 of texts in the written form; null for other texts."""
    found, right = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.bool_)
    for length in _LENGTHS:
        rows, chars = _of_length(texts, length)
        if len(rows):
            found[rows], right[rows] = _moments(chars)
    return arrow.array(found, mask=~right).cast(kind)


def _of_length(texts: Array, length: int) -> tuple[_Ints, npt.NDArray[np.uint8]]:
    """The rows of that length, and their bytes, a column for each place."""
    lengths = lengths_of(texts)
    valid = lengths == length
    if texts.null_count:
        valid &= texts.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(valid)
    # Nulls span no bytes once they are empty texts.
    data = data_of(texts)
    if len(rows) == len(texts):
        return rows, data.reshape(len(rows), length).T
    starts = np.cumsum(lengths) - lengths
    return rows, data[starts[rows] + np.arange(length)[:, None]]


def _number(chars: npt.NDArray[np.uint8], start: int, end: int) -> _Ints:
    found = np.zeros(chars.shape[1], np.int64)
    for place in range(start, end):
        found *= 10
        found += chars[place] - np.uint8(48)
    return found


def _shaped(chars: npt.NDArray[np.uint8], shape: bytes) -> npt.NDArray[np.bool_]:
    """Whether texts have digits and signs where the shape has them."""
    right = np.ones(chars.shape[1], np.bool_)
    for place, sign in enumerate(shape):
        if sign == ord("0"):
            right &= (chars[place] - np.uint8(48)) < 10
        else:
            right &= chars[place] == sign
    return right


def _days(chars: npt.NDArray[np.uint8]) -> tuple[_Ints, npt.NDArray[np.bool_]]:
    right = _shaped(chars[:10], _SHAPE[:10])
    year, month, day = _number(chars, 0, 4), _number(chars, 5, 7), _number(chars, 8, 10)
    right &= (year >= 1) & (month >= 1) & (month <= 12) & (day >= 1)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    last = _MONTH_ENDS[np.clip(month, 0, 12)] - ((month == 2) & ~leap)
    right &= day <= last
    # Years from March on, so that the day of a leap year comes last.
    year -= month <= 2
    month = (month + 9) % 12
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 719_469
    return days, right


def _moments(chars: npt.NDArray[np.uint8]) -> tuple[_Ints, npt.NDArray[np.bool_]]:
    length = len(chars)
    shape = _SHAPE[: length - 1] if length > _LENGTHS[0] else _SHAPE[:19]
    right = _shaped(chars, shape + b"Z")
    days, valid = _days(chars)
    hour, minute, second = (_number(chars, start, start + 2) for start in (11, 14, 17))
    right &= valid & (hour < 24) & (minute < 60) & (second < 60)
    us = ((days * 24 + hour) * 60 + minute) * 60 + second
    us *= 1_000_000
    if length > _LENGTHS[0]:
        us += _number(chars, 20, length - 1) * 10 ** (27 - length)
    return us, right


def written_moments(us: _Ints) -> Array:
    """The texts of moments (no nulls) in the years 1 to 9999, as a binary array."""
    days, rest = np.divmod(us, _DAY_US)
    seconds, fraction = np.divmod(rest, 1_000_000)
    chars = np.empty((len(us), _LENGTHS[2]), np.uint8)
    chars[:] = np.frombuffer(_SHAPE + b"Z", np.uint8)
    # The inverse of `_days`: 400 years have 146,097 days.
    days = days + 719_468
    era, day = np.divmod(days, 146_097)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5 - 1
    month = np.where(month < 10, month + 3, month - 9)
    year += era * 400 + (month <= 2)
    hour, seconds = np.divmod(seconds, 3600)
    minute, second = np.divmod(seconds, 60)
    for number, start, width in (
        (year, 0, 4),
        (month, 5, 2),
        (day, 8, 2),
        (hour, 11, 2),
        (minute, 14, 2),
        (second, 17, 2),
    ):
        _write(chars, number, start, width)
    lengths = np.full(len(us), _LENGTHS[0], np.int32)
    if fraction.any():
        _write(chars, fraction, 20, 6)
        lengths[fraction != 0] = _LENGTHS[1]
        lengths[fraction % 1000 != 0] = _LENGTHS[2]
    for length in _LENGTHS[:2]:
        chars[lengths == length, length - 1] = ord("Z")
    offsets = np.zeros(len(us) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = chars[np.arange(_LENGTHS[2]) < lengths[:, None]]
    return arrow.Array.from_buffers(
        pa.binary(), len(us), [None, arrow.py_buffer(offsets), arrow.py_buffer(data)]
    )


def _write(chars: npt.NDArray[np.uint8], number: _Ints, start: int, width: int) -> None:
    for place in range(start + width - 1, start - 1, -1):
        number, digit = np.divmod(number, 10)
        chars[:, place] = digit + 48

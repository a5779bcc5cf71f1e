"""Where the fields of Kafka's records are: varints, records and headers, many at once in numpy.

Pure. Nothing is trusted: no length leads outside the data, and the work is linear in the bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from intake.arrow_arrays import ArrowArray

Ints: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Mask: TypeAlias = npt.NDArray[np.bool_]

_U = np.uint64

PADDING = bytes(16)
"""After the last record, so that eight bytes can be read at every place."""


@dataclass(frozen=True, slots=True)
class Text:
    """The records of the batches of a group, one after the other, and padding."""

    data: bytes
    bytes_: npt.NDArray[np.uint8]
    words: Words
    """The eight bytes from each place on, little endian."""
    buffer: pa.Buffer


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """An unsigned varint of at most five bytes and the place after it; a longer one gives 2**35."""
    value = 0
    for shift in range(0, 35, 7):
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
    return 1 << 35, position


_STOPS = _U(0x8080808080808080)
_LOW_7 = _U(0x7F7F7F7F7F7F7F7F)
_ONE = _U(1)
_GAPS = tuple(
    (_U(low), _U(high), _U(shift))
    for low, high, shift in (
        (0x007F007F007F007F, 0x3F803F803F803F80, 1),
        (0x00003FFF00003FFF, 0x0FFFC0000FFFC000, 2),
        (0x000000000FFFFFFF, 0x00FFFFFFF0000000, 4),
    )
)
"""Between groups of 7, 14 and 28 bits of a varint: bits that stay, and bits that move by so many places."""

_LOCKSTEP_ROWS = 128
"""From so many rows with headers, numpy follows lengths faster than a loop in Python."""
_CHAIN_RECORDS = (64, 128)
"""Records of a batch that are followed one after the other, in step with other chains of them. The longer
chains need fewer guesses where they begin, and enough records to be in step with."""
_RECORDS_OF_STEP = 50
"""A step over all chains takes the time in which a loop in Python follows so many records."""
_STEPS_OF_RECORD = 4
"""Most steps of chains for one record, together with those behind the end of a chain. Each takes 8 bytes."""
_SLACK_RECORDS, _SLACK_BYTES = (2, 8), 32
"""How far from the mean of the batch the begin of a chain is searched: near it first."""
_GUESSES_MAX = 8
_VARINT_BYTES_MAX = 10
_RECORD_BYTES_MIN = 7


def _long_varints(text: Text, positions: Ints) -> tuple[Words, npt.NDArray[np.uint8], Mask]:
    """Unsigned varints at these places: value, size, and whether it has more than eight bytes.

    A place beyond the data gives any value.
    """
    word = text.words[np.minimum(positions, len(text.words) - 1)]
    stops = ~word & _STOPS
    # The lowest stop bit and all bits below it; without a stop bit, all bits.
    kept = stops ^ (stops - _ONE)
    value = word & kept & _LOW_7
    for low, high, shift in _GAPS:
        value = (value & low) | ((value >> shift) & high)
    size: npt.NDArray[np.uint8] = np.bitwise_count(kept) >> np.uint8(3)
    long: Mask = stops == 0
    return value, size, long


def _zigzag_decoded(value: Words) -> Ints:
    return (value >> _ONE).view(np.int64) ^ -(value & _ONE).view(np.int64)


def _short_varints() -> npt.NDArray[np.int16]:
    pairs = np.arange(1 << 16)
    first, second = pairs & 0xFF, pairs >> 8
    two = first > 127
    value = np.where(two, first & 0x7F | second << 7, first)
    decoded = (value >> 1) ^ -(value & 1)
    return np.where(two & (second > 127), 0, decoded << 2 | 1 + two).astype(np.int16)


_SHORT = _short_varints()
"""By two bytes, little endian: the zigzag varint that begins there, times 4, plus its size; 0 if longer."""

_ONE_BYTE: Ints = (_SHORT[:128] >> 2).astype(np.int64)
"""The zigzag varints of one byte."""


def _varints(text: Text, positions: Ints) -> tuple[Ints, Ints, Ints]:
    """Zigzag varints at these places: value, size, and the places in the result of those that have more than
    two bytes. The value of these is 0, and the size as well.
    """
    # Nearly all varints are short, and a table is five times as fast as `_long_varints`.
    first_byte = text.bytes_.take(positions, mode="clip")
    if int(first_byte.max(initial=0)) < 128:
        # A field of which all have one byte, for example keys that are null.
        return _ONE_BYTE.take(first_byte), np.ones(len(positions), np.int64), _NONE
    first = first_byte.astype(np.uint16)
    second = text.bytes_.take(positions + 1, mode="clip").astype(np.uint16)
    found = _SHORT.take(first | second << np.uint16(8))
    size = (found & 3).astype(np.int64)
    longer = _NONE if size.all() else np.flatnonzero(size == 0)
    return (found >> 2).astype(np.int64), size, longer


_NONE: Ints = np.zeros(0, np.int64)


def _next_records() -> Ints:
    pairs = np.arange(1 << 16)
    first, second = pairs & 0xFF, pairs >> 8
    two = 2 + ((first & 0x7F | second << 7) >> 1)
    return np.where(first < 128, 1 + (first >> 1), np.where(second < 128, two, 0))


_STEPS = _next_records()
"""By the first two bytes of a record, little endian: its size with its length; 0 if the length is longer."""


class FieldReader:
    """Reads the next field of every record of a portion at once."""

    def __init__(self, text: Text, positions: Ints) -> None:
        self._text = text
        self.positions = positions
        self.bad: Mask = np.zeros(len(positions), np.bool_)

    def int32(self) -> Ints:
        """A varint of at most five bytes.

        They have room for 35 bits. More than 31 are a length beyond the batch, which the caller refuses.
        """
        value, size, longer = _varints(self._text, self.positions)
        if len(longer):
            long_value, long_size, _ = _long_varints(self._text, self.positions[longer])
            value[longer], size[longer] = _zigzag_decoded(long_value), long_size
            self.bad[longer] |= long_size > 5
        self.positions = self.positions + size
        return value

    def int64(self) -> Ints:
        """A varint of at most ten bytes."""
        value, size, longer = _varints(self._text, self.positions)
        if len(longer):
            at = self.positions[longer]
            long_value, long_size, long = _long_varints(self._text, at)
            if long.any():
                rows = np.flatnonzero(long)
                rest = self._text.words[np.minimum(at[rows] + 8, len(self._text.words) - 1)]
                ninth, tenth = rest & _U(0xFF), (rest >> _U(8)) & _U(0xFF)
                two = ninth > 127
                long_value[rows] |= (ninth & _U(0x7F)) << _U(56)
                long_value[rows[two]] |= tenth[two] << _U(63)
                long_size[rows] += 1 + two.astype(np.uint8)
                # The tenth byte has room for one bit.
                self.bad[longer[rows]] |= two & (tenth > 1)
            value[longer], size[longer] = _zigzag_decoded(long_value), long_size
        self.positions = self.positions + size
        return value

    def blob(self) -> tuple[Ints, Ints]:
        """Places and lengths of bytes, -1 for null."""
        lengths = self.int32()
        self.bad |= lengths < -1
        places = self.positions
        self.positions = places + np.maximum(lengths, 0)
        return places, lengths


def encoded_varints(values: Ints) -> tuple[Words, Ints]:
    """The bytes of zigzag varints, little endian, and their sizes; values have at most 55 bits."""
    value = ((values << 1) ^ (values >> 63)).view(np.uint64)
    for low, high, shift in reversed(_GAPS):
        value = (value & low) | ((value & high) << shift)
    # The top bit of each byte that is not zero, then of all bytes before the last of them.
    more = ((value + _LOW_7) & _STOPS) >> _U(8)
    for bits in (8, 16, 32):
        more |= more >> _U(bits)
    return value | more, np.bitwise_count(more).astype(np.int64) + 1


def find_records(text: Text, firsts: Ints, counts: Ints, rows: Ints) -> Ints:
    """The place of each record, if the lengths that records declare are right.

    The first record of a batch is at `firsts` in the text and at `rows` in the result. The caller must verify
    that each record ends where the next one, or the next batch, begins.
    """
    end = len(text.data) - len(PADDING)
    places = np.full(int(counts.sum()), end, np.int64)
    alone: Iterable[int] = range(len(counts))
    short, long = _CHAIN_RECORDS
    if len(places) >= _RECORDS_OF_STEP * min(short, int(counts.max(initial=1))):
        chain = long if len(places) >= 2 * _RECORDS_OF_STEP * long else short
        alone = _follow_chains(text, firsts, np.append(firsts[1:], end), counts, rows, chain, places)
    for batch in alone:
        row = int(rows[batch])
        found = _follow_records(text.data, int(firsts[batch]), int(counts[batch]))
        places[row : row + len(found)] = found
    return places


def _follow_chains(
    text: Text, firsts: Ints, ends: Ints, counts: Ints, rows: Ints, chain_records: int, places: Ints
) -> Sequence[int]:
    """Set the places of records, following chains of records of all batches in step. Returns the batches for
    which that failed; their places have any value.

    Only the first chain of a batch begins at a place that is known. That of the others is a guess, which is
    right if the chain before ends there.
    """
    failed: list[int] = []
    begins: list[int] = []
    batch_of: list[int] = []
    lengths: list[int] = []
    bounds = zip(firsts.tolist(), ends.tolist(), counts.tolist(), strict=True)
    for batch, (first, end, count) in enumerate(bounds):
        if not (found := _guess_chains(text.data, first, end, count, chain_records)):
            failed.append(batch)
            continue
        begins += found
        batch_of += [batch] * len(found)
        lengths += [chain_records] * (len(found) - 1)
        lengths.append(count - chain_records * (len(found) - 1))
    steps, chains = max(lengths, default=0), len(begins)
    # Few long batches among many short ones.
    if steps * chains > _STEPS_OF_RECORD * len(places):
        return range(len(counts))
    # The two bytes from each place on: an array with a stride of one byte, which copies nothing.
    pairs = np.ndarray((len(text.data) - 1,), "<u2", text.data, 0, (1,))
    at = np.empty((steps + 1, chains), np.int64)
    at[0] = begins
    for number in range(steps):
        np.add(at[number], _STEPS.take(pairs[at[number]]), out=at[number + 1])
        np.minimum(at[number + 1], len(pairs) - 1, out=at[number + 1])
    length, of = np.array(lengths, np.int64), np.array(batch_of, np.int64)
    chain = np.arange(chains)
    reached = at[length, chain]
    # A record whose length the table lacks stops its chain.
    wrong = reached == at[length - 1, chain]
    inner = np.flatnonzero(of[1:] == of[:-1])
    wrong[inner] |= reached[inner] != at[0, inner + 1]
    numbers = np.arange(steps)
    there = numbers < length[:, None]
    row = rows[of] + chain_records * (chain - np.searchsorted(of, of))
    places[(row[:, None] + numbers)[there]] = at[:steps].T[there]
    return [*failed, *np.unique(of[wrong]).tolist()] if wrong.any() else failed


def _guess_chains(data: bytes, first: int, end: int, count: int, chain_records: int) -> list[int]:
    """Where each chain of records of a batch may begin: there is the number of its first record in the batch.
    No places if records lead out of the data.
    """
    found = [first]
    at = first
    for number in range(chain_records, count, chain_records):
        mean = (end - at) / (count - number + chain_records)
        guess = at + int(mean * chain_records)
        # No record is shorter, so that the bytes before the number are of this batch.
        lowest = at + _RECORD_BYTES_MIN * chain_records
        for records in _SLACK_RECORDS:
            slack = _SLACK_BYTES + int(records * mean)
            low, high = max(lowest, guess - slack), min(end, guess + slack)
            if (place := _guess_record(data, _offset_delta(number), low, high)) is not None:
                break
        else:
            steps = _follow_records(data, at, chain_records + 1)
            if len(steps) <= chain_records:
                return []
            place = steps[-1]
        found.append(place)
        at = place
    return found


def _guess_record(data: bytes, offset_delta: bytes, low: int, high: int) -> int | None:
    """Where a record begins whose offset delta may be at a place in that range; None if there is none."""
    for _ in range(_GUESSES_MAX):
        place = data.find(offset_delta, low, high)
        if place < 0:
            return None
        low = place + 1
        # Before it: the length, a byte of attributes, which is 0, and the timestamp delta.
        begin = place - 1
        if data[begin] > 127:
            continue
        while data[begin - 1] > 127 and place - begin < _VARINT_BYTES_MAX:
            begin -= 1
        if data[begin - 1] == 0 and data[begin - 2] < 128:
            return begin - 3 if data[begin - 3] > 127 else begin - 2
    return None


@lru_cache(1024)
def _offset_delta(number: int) -> bytes:
    words, sizes = encoded_varints(np.array([number]))
    return int(words[0]).to_bytes(8, "little")[: int(sizes[0])]


def _follow_records(data: bytes, position: int, count: int) -> array[int]:
    """Places of up to `count` records in a row; fewer if they lead out of the data."""
    places = array("q")
    add = places.append
    # A test for the end in each step would take a tenth of the time.
    with suppress(IndexError):
        for _ in range(count):
            length = data[position]
            add(position)
            if length < 128:
                position += 1 + (length >> 1)
            elif (second := data[position + 1]) < 128:
                position += 2 + ((length - 128 | second << 7) >> 1)
            else:
                length, position = read_varint(data, position)
                position += length >> 1
    return places


def find_headers(text: Text, places: Ints, ends: Ints, counts: Ints) -> tuple[npt.NDArray[np.int32], Mask]:
    """Place and length of the name and of the value of each header, and which records have bad headers.

    A value of length -1 is null. Each record gets `counts` rows of the result; those of a bad record have any
    content that is inside the data.
    """
    firsts = np.cumsum(counts) - counts
    spans = np.zeros((int(counts.sum()), 4), np.int32)
    bad = np.zeros(len(counts), np.bool_)
    rows = np.flatnonzero(counts)
    positions = places[rows]
    done = 0
    # The i-th header of all records at once, while many records have one.
    while len(rows) >= _LOCKSTEP_ROWS:
        reader = FieldReader(text, positions)
        names, name_lengths = reader.blob()
        values, value_lengths = reader.blob()
        positions = reader.positions
        done += 1
        last = counts[rows] == done
        wrong = (
            reader.bad | (name_lengths < 0) | (positions > ends[rows]) | (last & (positions != ends[rows]))
        )
        bad[rows[wrong]] = True
        right = ~wrong
        found = np.stack((names, name_lengths, values, value_lengths), axis=1)
        spans[firsts[rows[right]] + done - 1] = found[right]
        going = right & ~last
        rows, positions = rows[going], positions[going]
    for row, position, limit in zip(rows.tolist(), positions.tolist(), ends[rows].tolist(), strict=True):
        rest = _follow_headers(text.data, position, limit, int(counts[row]) - done)
        if rest is None:
            bad[row] = True
        else:
            first = int(firsts[row]) + done
            spans[first : first + len(rest) // 4] = np.frombuffer(rest, np.int32).reshape(-1, 4)
    return spans, bad


def _follow_headers(data: bytes, position: int, end: int, count: int) -> array[int] | None:
    """`count` headers that fill the bytes up to `end`; None if they do not."""
    headers = array("i")
    add = headers.extend
    for _ in range(count):
        # Before they are decoded, negative lengths are odd, and 1 stands for -1.
        name_size = data[position]
        name = position + 1
        if name_size > 127:
            name_size, name = read_varint(data, position)
        position = name + (name_size >> 1)
        if name_size & 1 or position >= end:
            return None
        value_size = data[position]
        value = position + 1
        if value_size > 127:
            value_size, value = read_varint(data, position)
        if value_size == 1:
            position = value
            value_size = -1
        elif value_size & 1:
            return None
        else:
            value_size >>= 1
            position = value + value_size
        if position > end:
            return None
        add((name, name_size >> 1, value, value_size))
    return headers if position == end else None


def binary_column(text: Text, places: Ints, lengths: Ints, null: Mask, data_type: pa.DataType) -> ArrowArray:
    """A binary or string column of the bytes at these places."""
    # An array over the whole text, whose elements 0, 2, 4, … are the column and whose others are never read.
    # `take` then copies the elements natively; Arrow has no other way to make a column of scattered bytes.
    starts = np.where(null, 0, places)
    offsets = np.empty(2 * len(places) + 1, np.int32)
    offsets[:-1:2] = starts
    offsets[1::2] = starts + lengths
    # Arrow compares the first with the last offset.
    offsets[-1] = len(text.data)
    scattered: ArrowArray = pa.Array.from_buffers(
        data_type, 2 * len(places), [None, pa.py_buffer(offsets.data), text.buffer]
    )
    chosen = np.arange(0, 2 * len(places), 2)
    return scattered.take(pa.array(chosen, mask=null if null.any() else None))


_ASCII_WORDS_MAX = 4
_LOW_BYTES: Words = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
"""So many low bytes of a word."""


def _is_ascii(text: Text, places: Ints, lengths: Ints) -> Mask:
    """Which of the bytes there are ASCII. False for those that are longer than 32 bytes."""
    found: Mask = lengths <= 8 * _ASCII_WORDS_MAX
    for at in range(0, min(int(lengths.max(initial=0)), 8 * _ASCII_WORDS_MAX), 8):
        word = text.words[np.minimum(places + at, len(text.words) - 1)]
        found &= word & _STOPS & _LOW_BYTES[np.clip(lengths - at, 0, 8)] == 0
    return found


def names_not_utf8(text: Text, places: Ints, lengths: Ints) -> Ints:
    """Which header names are not UTF-8."""
    # Nearly all are ASCII, which needs no copy of them.
    other = np.flatnonzero(~_is_ascii(text, places, lengths))
    if not len(other):
        return other
    names = binary_column(text, places[other], lengths[other], np.zeros(len(other), np.bool_), pa.string())
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        bad = [not _is_utf8(name) for name in names.cast(pa.binary()).to_pylist()]
        return other[np.array(bad, np.bool_)]
    return other[:0]


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True

"""Reads many datums of one schema at once: the same value of every row in one step of numpy and Arrow.

Each row has a position in the common bytes, and a step moves all of them. Rows in which a step fails, or that
need the complete engine, are marked and go on harmlessly; their columns are then worth nothing. No byte is
read beyond the buffer, and no count is believed beyond the bytes of its row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.schema.arrow import Array, arrow, pc
from archiver.schema.avro.complete_engine import DAY_US, DAYS_MAX, DAYS_MIN, US_MAX, US_MIN
from archiver.schema.avro.datum import least_bytes
from archiver.schema.avro.model import Kind, Node
from archiver.schema.avro.pairing import WHOLE, Plan
from archiver.schema.protobuf.values import Bools

Ints: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_VARINT_MAX: Final = 10
PADDING: Final = 16
"""Bytes behind the data: a number that begins before the end is read without a check of its place."""
_FEW: Final = 16
"""Fewer rows than this in a step over array items go to the complete engine, which is then cheaper."""
_STEPS_MAX: Final = 20_000
"""Most steps over the items of one array; longer ones go to the complete engine."""
_DECIMAL_BYTES: Final = 16


@dataclass
class Batch:
    """The bytes of the rows, and what became of them."""

    data: Bytes
    ends: Ints
    """Per row, where its datum ends."""
    doubtful: Bools
    """Rows for the complete engine."""


class Lockstep:
    """Reads the values of a plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    def decode(self, payloads: Array) -> tuple[Array, Bools]:
        """Columns, and which rows the complete engine has to decode."""
        offsets = np.frombuffer(payloads.buffers()[1], np.int32, len(payloads) + 1, payloads.offset * 4)
        ends: Ints = offsets.astype(np.int64)
        buffer = payloads.buffers()[2]
        size = int(ends[-1] - ends[0])
        data = np.zeros(size + PADDING, np.uint8)
        if size:
            data[:size] = np.frombuffer(buffer, np.uint8, size, int(ends[0]))
        ends -= ends[0]
        batch = Batch(data, ends[1:], np.zeros(len(payloads), np.bool_))
        rows = np.arange(len(payloads), dtype=np.int64)
        columns, at = _read(batch, self._plan, rows, ends[:-1].copy())
        # Bytes behind the datum.
        batch.doubtful |= at != batch.ends
        return columns, batch.doubtful


def _failed(batch: Batch, rows: Ints, at: Ints, bad: Bools) -> Ints:
    """Mark rows, and put them at their end."""
    if not bad.any():
        return at
    marked = rows[bad]
    batch.doubtful[marked] = True
    at = at.copy()
    at[bad] = batch.ends[marked]
    return at


# --- Steps
def _varints(batch: Batch, rows: Ints, at: Ints) -> tuple[Ints, Ints]:
    """A zigzag number of each row."""
    data = batch.data
    first = data[at]
    value = (first & 0x7F).astype(np.uint64)
    after = at + 1
    todo = np.flatnonzero(first >= 0x80)
    shift = 7
    bad: Bools | None = None
    while len(todo):
        # At most nine bytes behind a place in the data, so within the padding.
        byte = data[after[todo]]
        if shift == 7 * (_VARINT_MAX - 1):
            # The tenth byte holds the last bit, and is the last one.
            bad = np.zeros(len(at), np.bool_)
            bad[todo[byte > 1]] = True
            byte = (byte & 1).astype(np.uint8)
        value[todo] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[todo] += 1
        todo = todo[byte >= 0x80]
        shift += 7
    number = (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64)
    beyond = after > batch.ends[rows]
    if bad is not None:
        beyond |= bad
    if beyond.any():
        number[beyond] = 0
        after = _failed(batch, rows, after, beyond)
    return number, after


def _indexes(batch: Batch, rows: Ints, at: Ints, count: int) -> tuple[Ints, Ints]:
    """The number of a symbol or a branch in each row."""
    index, at = _varints(batch, rows, at)
    bad = (index < 0) | (index >= count)
    if bad.any():
        index[bad] = 0
        at = _failed(batch, rows, at, bad)
    return index, at


def _sizes(batch: Batch, rows: Ints, at: Ints) -> tuple[Ints, Ints]:
    """The length of a text in each row, and where it begins."""
    size, at = _varints(batch, rows, at)
    bad = (size < 0) | (size > batch.ends[rows] - at)
    if bad.any():
        size[bad] = 0
        at = _failed(batch, rows, at, bad)
    return size, at


def _fixed(batch: Batch, rows: Ints, at: Ints, size: int) -> tuple[Ints, Ints]:
    """Where a value of so many bytes begins in each row, and the position behind it."""
    bad = batch.ends[rows] - at < size
    if bad.any():
        # Any place will do whose bytes are there: the row is decoded again.
        start = at.copy()
        start[bad] = 0
        at = _failed(batch, rows, at, bad)
        return start, np.where(bad, at, at + size)
    return at, at + size


def _matrix(batch: Batch, starts: Ints, size: int) -> Bytes:
    """The bytes of values of one size, a row each."""
    if size > len(batch.data):
        return np.zeros((len(starts), size), np.uint8)
    found: Bytes = batch.data[np.minimum(starts, len(batch.data) - size)[:, None] + np.arange(size)]
    return found


def _slices(batch: Batch, starts: Ints, sizes: Ints) -> Array:
    """The bytes of each row as a binary array; the places ascend."""
    count = len(starts)
    # Values and the gaps between them are an array over the data without a copy; every other is a value.
    bounds = np.empty(2 * count + 1, np.int64)
    bounds[:-1:2], bounds[1::2] = starts, starts + sizes
    bounds[-1] = bounds[-2] if count else 0
    if count and (np.diff(bounds) < 0).any():
        # Failed rows stand at their ends, and no longer ascend.
        bounds = np.maximum.accumulate(bounds)
    array = arrow.Array.from_buffers(
        pa.binary(), 2 * count, [None, arrow.py_buffer(bounds.astype(np.int32)), arrow.py_buffer(batch.data)]
    )
    return array.take(arrow.array(np.arange(0, 2 * count, 2, dtype=np.int64)))


def _texts(batch: Batch, rows: Ints, raw: Array) -> Array:
    """Bytes as text; a row whose bytes are not UTF-8 is doubtful."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        bad = np.zeros(len(raw), np.bool_)
        bad[_not_utf8(raw, 0)] = True
        batch.doubtful[rows[bad]] = True
        return pc.if_else(arrow.array(bad), arrow.scalar(b"", pa.binary()), raw).cast(pa.string())


def _not_utf8(raw: Array, first: int) -> list[int]:
    """The places of values that are not UTF-8, by halving."""
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid:
        if len(raw) == 1:
            return [first]
        half = len(raw) // 2
        return [*_not_utf8(raw.slice(0, half), first), *_not_utf8(raw.slice(half), first + half)]
    return []


# --- Values
def _read(batch: Batch, plan: Plan, rows: Ints, at: Ints) -> tuple[Any, Ints]:
    """The column of a plan, a value for each row, and the positions behind them."""
    node = plan.node
    if plan.type is None:
        return arrow.nulls(len(rows)), _skip(batch, node, rows, at)
    if plan.wrapped:
        return _read_wrapped(batch, plan, rows, at)
    if node.kind is Kind.UNION:
        return _read_union(batch, plan, rows, at)
    if node.is_empty:
        present = node.kind is Kind.RECORD
        return arrow.repeat(arrow.scalar(True if present else None, pa.bool_()), len(rows)), at
    if node.kind is Kind.RECORD:
        return _read_record(batch, plan, rows, at)
    if node.item is not None:
        return _read_items(batch, plan, rows, at)
    if node.kind is Kind.ENCODED:
        batch.doubtful[rows] = True
        return arrow.repeat(arrow.scalar(b"", pa.binary()), len(rows)), batch.ends[rows]
    return _read_scalar(batch, plan, rows, at)


def _struct(kind: Any, children: Mapping[int, Array], count: int, nulls: Array | None = None) -> Array:
    """A struct of these children by place; the others are null."""
    fields = list(kind)
    columns = [
        children[place] if place in children else arrow.nulls(count, one.type)
        for place, one in enumerate(fields)
    ]
    return arrow.StructArray.from_arrays(columns, fields=fields, mask=nulls)


def _read_record(batch: Batch, plan: Plan, rows: Ints, at: Ints) -> tuple[Array, Ints]:
    children: dict[int, Array] = {}
    for part, place in zip(plan.parts, plan.places, strict=True):
        column, at = _read(batch, part, rows, at)
        if place is not None:
            children[place] = column
    return _struct(plan.type, children, len(rows)), at


def _read_wrapped(batch: Batch, plan: Plan, rows: Ints, at: Ints) -> tuple[Array, Ints]:
    column, at = _read(batch, plan.parts[0], rows, at)
    place = plan.places[0]
    assert place is not None
    return _struct(plan.type, {place: column}, len(rows)), at


def _read_union(batch: Batch, plan: Plan, rows: Ints, at: Ints) -> tuple[Array, Ints]:
    index, at = _indexes(batch, rows, at, len(plan.parts))
    count = len(rows)
    found: dict[int, Array] = {}
    whole: list[tuple[Ints, Array]] = []
    there = np.zeros(count, np.bool_)
    for number, (part, place) in enumerate(zip(plan.parts, plan.places, strict=True)):
        chosen = np.flatnonzero(index == number)
        if not len(chosen):
            continue
        if len(chosen) == count:
            column, at = _read(batch, part, rows, at)
        else:
            column, behind = _read(batch, part, rows[chosen], at[chosen])
            at[chosen] = behind
        if place is None:
            continue
        there[chosen] = True
        if place == WHOLE:
            whole.append((chosen, column))
        else:
            found[place] = _spread(column, chosen, count)
    if WHOLE not in plan.places:
        return _struct(plan.type, found, count, arrow.array(~there)), at
    return _gathered(plan.type, whole, count), at


def _spread(column: Array, places: Ints, count: int) -> Array:
    """The values at these places of a column that is null elsewhere."""
    if len(places) == count:
        return column
    source = np.zeros(count, np.int64)
    nulls = np.ones(count, np.bool_)
    source[places] = np.arange(len(places))
    nulls[places] = False
    return column.take(arrow.array(source, mask=nulls))


def _gathered(kind: Any, parts: list[tuple[Ints, Array]], count: int) -> Array:
    """One column of the values of several branches, null elsewhere."""
    if not parts:
        return arrow.nulls(count, kind)
    if len(parts) == 1:
        return _spread(parts[0][1], parts[0][0], count)
    places = np.concatenate([one for one, _ in parts])
    order = np.argsort(places, kind="stable")
    column = arrow.concat_arrays([one for _, one in parts]).take(arrow.array(order))
    return _spread(column, places[order], count)


# --- Arrays and maps
def _items(batch: Batch, node: Node, rows: Ints, at: Ints) -> tuple[Ints, Ints, Ints]:
    """Where each item begins and in which of `rows` (as places) it is, row by row, and the positions behind
    the arrays.
    """
    item = node.item
    assert item is not None
    least = least_bytes(item) + (1 if node.kind is Kind.MAP else 0)
    starts: list[Ints] = []
    owners: list[Ints] = []
    at = at.copy()
    todo = np.arange(len(rows), dtype=np.int64)
    steps = 0
    while len(todo):
        count, behind = _varints(batch, rows[todo], at[todo])
        negative = np.flatnonzero(count < 0)
        if len(negative):
            # A block with its size, which no encoder of columns writes.
            _, behind[negative] = _sizes_of_blocks(batch, rows[todo[negative]], behind[negative])
            count[negative] = -count[negative]
        # Items without bytes are left to the complete engine, which counts them.
        room = batch.ends[rows[todo]] - behind
        bad = (count < 0) | (count * max(least, 1) > room) | ((count > 0) & (least == 0))
        bad |= count > room
        if bad.any():
            behind = _failed(batch, rows[todo], behind, bad)
            count[bad] = 0
        at[todo] = behind
        left, remaining = todo, count
        while True:
            # Rows that failed would go on failing, as often as their count says.
            more = (remaining > 0) & ~batch.doubtful[rows[left]]
            if not more.all():
                left, remaining = left[more], remaining[more]
            if not len(left):
                break
            steps += 1
            # So few rows, or so many steps, cost less one by one.
            if (len(left) < _FEW and int(remaining.max()) > _FEW) or steps > _STEPS_MAX:
                batch.doubtful[rows[left]] = True
                at[left] = batch.ends[rows[left]]
                count[np.isin(todo, left)] = 0
                break
            starts.append(at[left])
            owners.append(left)
            position = at[left]
            if node.kind is Kind.MAP:
                size, position = _sizes(batch, rows[left], position)
                position = position + size
            at[left] = _skip(batch, item, rows[left], position)
            remaining = remaining - 1
        todo = todo[(count != 0) & ~batch.doubtful[rows[todo]]]
    if not starts:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), at
    start, owner = np.concatenate(starts), np.concatenate(owners)
    order = np.argsort(owner, kind="stable")
    return start[order], owner[order], at


def _sizes_of_blocks(batch: Batch, rows: Ints, at: Ints) -> tuple[Ints, Ints]:
    size, at = _varints(batch, rows, at)
    bad = (size < 0) | (size > batch.ends[rows] - at)
    return size, _failed(batch, rows, at, bad)


def _read_items(batch: Batch, plan: Plan, rows: Ints, at: Ints) -> tuple[Array, Ints]:
    node = plan.node
    starts, owners, behind = _items(batch, node, rows, at)
    counts = np.bincount(owners, minlength=len(rows))
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    inside = rows[owners]
    if node.kind is Kind.MAP:
        sizes, places = _sizes(batch, inside, starts)
        keys = _texts(batch, inside, _slices(batch, places, sizes))
        _without_twins(batch, inside, owners, keys)
        starts = places + sizes
    values, _ = _read(batch, plan.parts[0], inside, starts)
    buffers = [None, arrow.py_buffer(offsets)]
    if node.kind is Kind.MAP:
        if plan.parts[0].type is None:
            values = arrow.nulls(len(values), plan.type.item_type)
        entries = arrow.StructArray.from_arrays(
            [keys, values], fields=[plan.type.key_field, plan.type.item_field]
        )
        return arrow.Array.from_buffers(plan.type, len(rows), buffers, children=[entries]), behind
    if plan.parts[0].type is None:
        values = arrow.nulls(len(values), plan.type.value_type)
    return arrow.Array.from_buffers(plan.type, len(rows), buffers, children=[values]), behind


def _without_twins(batch: Batch, rows: Ints, owners: Ints, keys: Array) -> None:
    """Rows with a key twice in a map are doubtful: a column has each key once."""
    if len(owners) < 2 or not (owners[1:] == owners[:-1]).any():
        return
    codes = keys.dictionary_encode()
    both = owners * len(codes.dictionary) + codes.indices.to_numpy()
    order = np.argsort(both, kind="stable")
    same = both[order[1:]] == both[order[:-1]]
    if same.any():
        batch.doubtful[rows[order[1:][same]]] = True


def _skip(batch: Batch, node: Node, rows: Ints, at: Ints) -> Ints:
    """The positions behind a value of each row."""
    kind = node.kind
    if kind in (Kind.INT, Kind.LONG, Kind.ENUM):
        return _skip_number(batch, node, rows, at)
    if kind in (Kind.STRING, Kind.BYTES):
        sizes, at = _sizes(batch, rows, at)
        return at + sizes
    if kind is Kind.NULL:
        return at
    if kind is Kind.UNION:
        index, at = _indexes(batch, rows, at, len(node.branches))
        for number, branch in enumerate(node.branches):
            chosen = np.flatnonzero(index == number)
            if len(chosen):
                at[chosen] = _skip(batch, branch, rows[chosen], at[chosen])
        return at
    if kind is Kind.RECORD:
        for one in node.fields:
            at = _skip(batch, one.type, rows, at)
        return at
    if node.item is not None:
        return _items(batch, node, rows, at)[2]
    if kind is Kind.ENCODED:
        batch.doubtful[rows] = True
        return batch.ends[rows]
    if kind is Kind.BOOLEAN:
        return _read_boolean(batch, rows, at)[1]
    size = node.size if kind is Kind.FIXED else 4 if kind is Kind.FLOAT else 8
    return _fixed(batch, rows, at, size)[1]


def _skip_number(batch: Batch, node: Node, rows: Ints, at: Ints) -> Ints:
    if node.kind is Kind.ENUM:
        return _indexes(batch, rows, at, len(node.symbols))[1]
    number, at = _varints(batch, rows, at)
    return at if node.kind is Kind.LONG else _failed(batch, rows, at, _not_int(number))


def _not_int(number: Ints) -> Bools:
    return (number < -(2**31)) | (number >= 2**31)


# --- Values that hold no others
def _read_boolean(batch: Batch, rows: Ints, at: Ints) -> tuple[Bytes, Ints]:
    start, at = _fixed(batch, rows, at, 1)
    value = batch.data[start]
    bad = value > 1
    return value, _failed(batch, rows, at, bad)


def _read_scalar(batch: Batch, plan: Plan, rows: Ints, at: Ints) -> tuple[Array, Ints]:
    node, column = plan.node, plan.type
    kind = node.kind
    if kind in (Kind.INT, Kind.LONG):
        number, at = _varints(batch, rows, at)
        if kind is Kind.INT:
            bad = _not_int(number)
            if bad.any():
                number[bad] = 0
                at = _failed(batch, rows, at, bad)
        return _numbers(batch, node, column, rows, number), at
    if kind in (Kind.STRING, Kind.BYTES):
        sizes, at = _sizes(batch, rows, at)
        if node.logical == "decimal":
            return _decimals(batch, node, column, rows, at, sizes), at + sizes
        raw = _slices(batch, at, sizes)
        # A text that stays bytes must be a text all the same.
        if kind is Kind.STRING or pa.types.is_string(column):
            text = _texts(batch, rows, raw)
            return (text if pa.types.is_string(column) else text.cast(pa.binary())), at + sizes
        return raw, at + sizes
    if kind is Kind.BOOLEAN:
        flags, at = _read_boolean(batch, rows, at)
        return arrow.array(flags != 0), at
    if kind is Kind.ENUM:
        index, at = _indexes(batch, rows, at, len(node.symbols))
        symbols = arrow.array(list(node.symbols), pa.string())
        return symbols.take(arrow.array(index)), at
    if kind is Kind.FIXED:
        return _read_fixed(batch, node, column, rows, at)
    form = np.dtype("<f4" if kind is Kind.FLOAT else "<f8")
    start, at = _fixed(batch, rows, at, form.itemsize)
    return arrow.array(_matrix(batch, start, form.itemsize).view(form).reshape(-1)).cast(column), at


def _numbers(batch: Batch, node: Node, column: Any, rows: Ints, number: Ints) -> Array:
    """The column of int or long values."""
    logical = node.logical
    if logical:
        micros = number
        low, high, factor, divisor = _ranges(logical)
        bad = (number < low) | (number > high)
        if bad.any():
            batch.doubtful[rows[bad]] = True
            micros = np.where(bad, 0, number)
        if factor != 1:
            micros = micros * factor
        if divisor != 1:
            micros = micros // divisor
        if logical == "date":
            return arrow.array(micros.astype(np.int32)).cast(pa.date32())
        return arrow.array(micros).cast(column)
    if pa.types.is_floating(column):
        # By way of 64 bits, as Python does.
        return arrow.array(number.astype(np.float64).astype(column.to_pandas_dtype()))
    return arrow.array(number.astype(np.int32) if column == pa.int32() else number)


def _ranges(logical: str) -> tuple[int, int, int, int]:
    """Lowest and highest number of a logical type, and what it is multiplied with and divided by."""
    if logical == "date":
        return DAYS_MIN, DAYS_MAX, 1, 1
    if logical == "time-millis":
        return 0, DAY_US // 1000 - 1, 1000, 1
    if logical == "time-micros":
        return 0, DAY_US - 1, 1, 1
    if logical.endswith("millis"):
        return US_MIN // 1000, US_MAX // 1000, 1000, 1
    if logical.endswith("micros"):
        return US_MIN, US_MAX, 1, 1
    # 64 bits of nanoseconds end within the years 1 to 9999.
    return -(2**63), 2**63 - 1, 1, 1000


_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_DASHES: Final = (8, 13, 18, 23)
UUID_DIGITS: Final = np.array([place for place in range(36) if place not in _DASHES])
"""Where the 32 digits of a UUID stand in its text."""


def _read_fixed(batch: Batch, node: Node, column: Any, rows: Ints, at: Ints) -> tuple[Array, Ints]:
    start, behind = _fixed(batch, rows, at, node.size)
    if node.logical == "decimal":
        sizes = np.full(len(rows), node.size, np.int64)
        return _decimals(batch, node, column, rows, start, sizes), behind
    if node.logical == "uuid":
        found = _matrix(batch, start, node.size)
        text = np.full((len(rows), 36), ord("-"), np.uint8)
        digits = np.stack((_HEX[found >> 4], _HEX[found & 15]), axis=2).reshape(len(rows), 32)
        text[:, UUID_DIGITS] = digits
        offsets = np.arange(len(rows) + 1, dtype=np.int32) * 36
        buffers = [None, arrow.py_buffer(offsets), arrow.py_buffer(text.reshape(-1))]
        return arrow.Array.from_buffers(pa.string(), len(rows), buffers), behind
    if node.logical == "duration":
        parts = _matrix(batch, start, node.size).view(np.dtype("<u4")).reshape(len(rows), 3)
        children = {place: arrow.array(parts[:, place].astype(np.int64)) for place in range(3)}
        return _struct(column, children, len(rows)), behind
    ordered = start if len(start) < 2 or (start[1:] >= start[:-1]).all() else np.maximum.accumulate(start)
    sizes = np.where(behind == start + node.size, node.size, 0)
    return _slices(batch, ordered, sizes), behind


def _decimals(batch: Batch, node: Node, column: Any, rows: Ints, starts: Ints, sizes: Ints) -> Array:
    """Big-endian numbers as decimals. Longer ones than a column holds are left to the complete engine."""
    long = sizes > _DECIMAL_BYTES
    if long.any():
        batch.doubtful[rows[long]] = True
        sizes = np.where(long, 0, sizes)
    # Byte k of the value, counted from the lowest; beyond its size the sign goes on.
    places = np.arange(_DECIMAL_BYTES)
    there = places < sizes[:, None]
    source = np.clip((starts + sizes - 1)[:, None] - places, 0, len(batch.data) - 1)
    found = batch.data[source]
    negative = (sizes > 0) & (batch.data[np.clip(starts, 0, len(batch.data) - 1)] >= 0x80)
    value = np.where(there, found, np.where(negative, 0xFF, 0)[:, None].astype(np.uint8)).astype(np.uint8)
    halves = np.ascontiguousarray(value).view(np.dtype("<i8")).reshape(-1, 2)
    bad = _too_wide(halves, node.precision)
    if bad.any():
        batch.doubtful[rows[bad]] = True
        halves = np.where(bad[:, None], 0, halves)
    buffer = arrow.py_buffer(np.ascontiguousarray(halves))
    return arrow.Array.from_buffers(column, len(rows), [None, buffer])


def _too_wide(halves: Ints, precision: int) -> Bools:
    """Which numbers of 128 bits (low and high half) have more digits."""
    limit = 10**precision
    top, bottom = limit >> 64, limit & (2**64 - 1)
    low, high = halves[:, 0].view(np.uint64), halves[:, 1]
    above = (high > top) | ((high == top) & (low >= np.uint64(bottom)))
    # At or below -limit.
    negated = -limit
    top, bottom = negated >> 64, negated & (2**64 - 1)
    below = (high < top) | ((high == top) & (low <= np.uint64(bottom)))
    found: Bools = above | below
    return found

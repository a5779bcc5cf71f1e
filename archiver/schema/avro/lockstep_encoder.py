"""Writes many rows as datums of one schema at once, the counterpart of `lockstep`.

Each value becomes a piece: a binary array with the bytes of every row. The pieces of a row are joined by
Arrow. Lists join the bytes of their items by new offsets over the same data, without a copy. Arrays and maps
are written as one block, as Avro's libraries write them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from archiver.schema.arrow import Array, arrow, pc
from archiver.schema.avro.complete_engine import null_index, shortest
from archiver.schema.avro.lockstep import UUID_DIGITS, Bytes, Ints
from archiver.schema.avro.model import Kind, Node
from archiver.schema.avro.pairing import WHOLE, Plan

_DECIMAL_BYTES: Final = 16
_LONG_MAX: Final = 2**63 - 1
_NANOS_US: Final = _LONG_MAX // 1000


def encode_rows(plan: Plan, columns: Array) -> Array:
    """The datums of the rows of a struct. Raises `pa.ArrowInvalid` for values that the schema does
    not have.
    """
    return _joined(_write(plan, columns), len(columns))


def _joined(pieces: Sequence[Array], count: int) -> Array:
    if not pieces:
        return arrow.repeat(arrow.scalar(b"", pa.binary()), count)
    if len(pieces) == 1:
        return pieces[0]
    return pc.binary_join_element_wise(*pieces, arrow.scalar(b"", pa.binary()))


def _constant(data: bytes, count: int) -> list[Array]:
    return [arrow.repeat(arrow.scalar(data, pa.binary()), count)] if data else []


def _binary(offsets: npt.NDArray[Any], data: Bytes) -> Array:
    buffers = [None, arrow.py_buffer(offsets.astype(np.int32)), arrow.py_buffer(np.ascontiguousarray(data))]
    return arrow.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def _even(matrix: npt.NDArray[Any]) -> Array:
    """Values of one size, a row of the matrix each."""
    rows, size = matrix.shape
    return _binary(np.arange(rows + 1, dtype=np.int64) * size, matrix.reshape(-1))


def _varints(number: Ints) -> Array:
    """Zigzag varints."""
    rest = ((number << 1) ^ (number >> 63)).view(np.uint64)
    count = len(rest)
    most = int(rest.max(initial=0))
    if most < 0x80:
        return _binary(np.arange(count + 1), rest.astype(np.uint8))
    sizes = np.ones(count, np.int64)
    bits = 7
    while most >> bits:
        sizes += rest >= np.uint64(1 << bits)
        bits += 7
        if bits >= 64:
            break
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    data = np.empty(int(offsets[-1]), np.uint8)
    starts = offsets[:-1]
    data[starts] = (rest & np.uint64(0x7F)).astype(np.uint8) | ((sizes > 1) << 7).astype(np.uint8)
    todo = np.flatnonzero(sizes > 1)
    place = 1
    while len(todo):
        byte = ((rest[todo] >> np.uint64(7 * place)) & np.uint64(0x7F)).astype(np.uint8)
        more = sizes[todo] > place + 1
        data[starts[todo] + place] = byte | (more << 7).astype(np.uint8)
        todo = todo[more]
        place += 1
    return _binary(offsets, data)


def _write(plan: Plan, column: Array) -> list[Array]:
    """The pieces of a column, none of which has nulls."""
    node, count = plan.node, len(column)
    if not count:
        return []
    if plan.type is None:
        return _constant(shortest(node), count)
    if plan.wrapped:
        return _write(plan.parts[0], _child(column, plan.places[0]))
    if node.kind is Kind.UNION:
        return _write_union(plan, column)
    if node.is_empty:
        return []
    if column.null_count:
        raise pa.ArrowInvalid(f"a value of the type {node.text} is null")
    if node.kind is Kind.RECORD:
        pieces: list[Array] = []
        for part, place in zip(plan.parts, plan.places, strict=True):
            pieces += _write(part, arrow.nulls(count) if place is None else _child(column, place))
        return pieces
    if node.item is not None:
        return _write_items(plan, column)
    return _write_scalar(node, column)


def _child(column: Array, place: int | None) -> Array:
    """A child of a struct; the nulls of the struct are its nulls too."""
    # `field` gives the child without the struct's nulls, and at its offset.
    return pc.struct_field(column, [place]) if column.null_count else column.field(place)


def _write_union(plan: Plan, column: Array) -> list[Array]:
    count = len(column)
    branch = np.full(count, -1, np.int64)
    values: dict[int, Array] = {}
    for number, place in enumerate(plan.places):
        if place is None:
            continue
        values[number] = column if place == WHOLE else _child(column, place)
        if place == WHOLE and not column.null_count and branch.max(initial=-1) < 0:
            branch[:] = number
            break
        there = values[number].is_valid().to_numpy(zero_copy_only=False)
        branch[there & (branch < 0)] = number
    left = branch < 0
    if left.any():
        try:
            branch[left] = null_index(plan)
        except ValueError as error:
            raise pa.ArrowInvalid(str(error)) from error
    pieces = [_varints(branch)]
    used = np.unique(branch).tolist()
    if len(used) == 1:
        number = used[0]
        return pieces + _write(plan.parts[number], values.get(number, arrow.nulls(count)))
    # The bytes of every branch, at the rows of that branch.
    source = np.zeros(count, np.int64)
    parts: list[Array] = []
    first = 0
    for number in used:
        rows = np.flatnonzero(branch == number)
        known = number in values
        chosen = values[number].take(arrow.array(rows)) if known else arrow.nulls(len(rows))
        parts.append(_joined(_write(plan.parts[number], chosen), len(rows)))
        source[rows] = first + np.arange(len(rows))
        first += len(rows)
    return [*pieces, arrow.concat_arrays(parts).take(arrow.array(source))]


def _write_items(plan: Plan, column: Array) -> list[Array]:
    count = len(column)
    offsets = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    pieces: list[Array] = []
    if plan.node.kind is Kind.MAP:
        pieces = _text(column.keys.slice(first, last - first).cast(pa.binary()))
        items = column.items.slice(first, last - first)
    else:
        items = column.values.slice(first, last - first)
    data = _joined(pieces + _write(plan.parts[0], items), last - first)
    bounds, raw = _parts(data)
    sizes = np.diff(offsets)
    # Every list's bytes are those of its items, one behind the other.
    body = _binary(bounds[offsets - first], raw)
    some = sizes > 0
    if not some.any():
        return _constant(b"\x00", count)
    if some.all():
        return [_varints(sizes), body, *_constant(b"\x00", count)]
    tails = np.concatenate(([0], np.cumsum(some)))
    return [_varints(sizes), body, _binary(tails, np.zeros(int(tails[-1]), np.uint8))]


def _parts(data: Array) -> tuple[Ints, Bytes]:
    """Offsets and bytes of a binary array without nulls."""
    if len(data) == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    buffers = data.buffers()
    offsets = np.frombuffer(buffers[1], np.int32, len(data) + 1, data.offset * 4).astype(np.int64)
    raw = np.zeros(0, np.uint8) if buffers[2] is None else np.frombuffer(buffers[2], np.uint8)
    return offsets, raw


def _text(data: Array) -> list[Array]:
    """Length and bytes."""
    return [_varints(pc.binary_length(data).to_numpy(zero_copy_only=False).astype(np.int64)), data]


def _write_scalar(node: Node, column: Array) -> list[Array]:
    kind, logical = node.kind, node.logical
    if kind in (Kind.INT, Kind.LONG):
        return [_varints(_numbers(node, column))]
    if logical == "decimal":
        return _decimals(node, column)
    if kind in (Kind.STRING, Kind.BYTES):
        return _text(column.cast(pa.binary()))
    if kind is Kind.BOOLEAN:
        # Arrow packs booleans as bits.
        return [_even(column.cast(pa.uint8()).to_numpy(zero_copy_only=False).reshape(-1, 1))]
    if kind is Kind.ENUM:
        number = pc.index_in(column, value_set=arrow.array(list(node.symbols), pa.string()))
        if number.null_count:
            raise pa.ArrowInvalid(f"a value is no symbol of the enum {node.name}")
        return [_varints(number.to_numpy(zero_copy_only=False).astype(np.int64))]
    if kind is Kind.FIXED:
        return _fixed(node, column)
    if kind is Kind.ENCODED:
        return [column]
    kind_of = np.dtype("<f4") if kind is Kind.FLOAT else np.dtype("<f8")
    # A float column of doubles holds floats, and they come back as they were.
    number = column.to_numpy(zero_copy_only=False).astype(kind_of)
    return [_even(np.ascontiguousarray(number).view(np.uint8).reshape(-1, kind_of.itemsize))]


def _numbers(node: Node, column: Array) -> Ints:
    """The int or long values of a column."""
    logical = node.logical
    if pa.types.is_floating(column.type):
        number = column.to_numpy(zero_copy_only=False).astype(np.float64)
        # Beyond 64 bits the bytes differ from the record's in any case.
        inside = np.nan_to_num(np.clip(number, -(2.0**63), 2.0**63), nan=0.0)
        high = inside >= 2.0**63
        return np.where(high, _LONG_MAX, np.where(high, 0.0, inside).astype(np.int64))
    if logical == "date":
        column = column.cast(pa.int32())
    found: Ints = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
    if logical.endswith("millis"):
        return found // 1000
    if logical.endswith("nanos"):
        # The first and last microsecond of 64 bits of nanoseconds are not whole.
        whole = np.clip(found, -_NANOS_US, _NANOS_US) * 1000
        return np.where(found < -_NANOS_US, -_LONG_MAX - 1, np.where(found > _NANOS_US, _LONG_MAX, whole))
    return found


def _fixed(node: Node, column: Array) -> list[Array]:
    if node.logical == "uuid":
        if len(column) and (
            pc.min(pc.binary_length(column)).as_py(),
            pc.max(pc.binary_length(column)).as_py(),
        ) != (36, 36):
            raise pa.ArrowInvalid("a UUID has not 36 characters")
        offsets, raw = _parts(column.cast(pa.binary()))
        text = raw[int(offsets[0]) : int(offsets[-1])].reshape(-1, 36)[:, UUID_DIGITS]
        digits = np.where(text >= ord("a"), text - (ord("a") - 10), text - ord("0")).astype(np.uint8)
        return [_even((digits[:, ::2] << 4) | digits[:, 1::2])]
    if node.logical == "duration":
        parts = [column.field(place).to_numpy(zero_copy_only=False) for place in range(3)]
        number = np.stack(parts, axis=1).astype(np.dtype("<u4"))
        return [_even(np.ascontiguousarray(number).view(np.uint8).reshape(-1, node.size))]
    if len(column) and not pc.all(pc.equal(pc.binary_length(column), node.size)).as_py():
        raise pa.ArrowInvalid(f"a fixed of {node.size} bytes has another size")
    return [column]


def _decimals(node: Node, column: Array) -> list[Array]:
    """Big-endian numbers: of a fixed size, or in the fewest bytes."""
    count = len(column)
    halves = np.frombuffer(
        column.buffers()[1], np.uint8, count * _DECIMAL_BYTES, column.offset * _DECIMAL_BYTES
    )
    little = halves.reshape(count, _DECIMAL_BYTES)
    big = little[:, ::-1]
    sign = np.where(big[:, :1] >= 0x80, 0xFF, 0).astype(np.uint8)
    if node.kind is Kind.FIXED:
        if node.size <= _DECIMAL_BYTES:
            if (big[:, : _DECIMAL_BYTES - node.size] != sign).any():
                raise pa.ArrowInvalid(f"a decimal does not fit into {node.size} bytes")
            return [_even(np.ascontiguousarray(big[:, _DECIMAL_BYTES - node.size :]))]
        front = np.broadcast_to(sign, (count, node.size - _DECIMAL_BYTES))
        return [_even(np.ascontiguousarray(np.concatenate((front, big), axis=1)))]
    # Leading bytes that only repeat the sign are left out, as long as the next one begins with its bit.
    same = big[:, :-1] == sign
    goes_on = (big[:, 1:] >= 0x80) == (sign >= 0x80)
    spare = np.logical_and.accumulate(same & goes_on, axis=1).sum(axis=1)
    sizes = _DECIMAL_BYTES - spare
    kept = np.arange(_DECIMAL_BYTES) >= spare[:, None]
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    return [_varints(sizes.astype(np.int64)), _binary(offsets, np.ascontiguousarray(big)[kept])]

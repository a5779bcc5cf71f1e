"""The size of an Avro datum after decoding, bounded from its bytes before decoding.

A few bytes of a datum may become a list element of a hundred columns. The unit and the limits are those of
`archiver.schema.protobuf.decoded_size`: a value is one place in a column or one list element.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from archiver.schema.arrow import Array
from archiver.schema.avro.datum import (
    Malformed,
    TooMany,
    Walk,
    least_bytes,
    normal_of,
    read_block,
    read_index,
    read_size,
)
from archiver.schema.avro.model import Kind, Node, Schema
from archiver.schema.avro.pairing import Plan
from archiver.schema.protobuf.decoded_size import BATCH_VALUES_MAX, VALUES_MAX, Counts, lengths_of

_NAME_BYTES: Final = 16
"""Enums are columns of text: each part of a name of this size counts as one more value."""


class AvroMeter:
    """Counts the values of datums of one writer's schema."""

    def __init__(self, writer: Schema, plan: Plan) -> None:
        self.message = writer.name
        self._definitions = writer.definitions
        self._plan = plan
        self._slots = _slots(plan.type) + _symbols(plan.node)
        self._rate = _rate(plan)

    def values(self, payload: bytes, limit: int = VALUES_MAX) -> int:
        """The values of a payload; beyond `limit` the count stops, at a number above it."""
        if self._slots + len(payload) * self._rate <= limit:
            return self._slots
        walk = Walk(self._definitions, limit)
        try:
            walk.add(self._slots)
            _count(self._plan, payload, 0, walk)
        except TooMany:
            return limit + 1
        except Malformed:
            # The engines stop there too.
            return walk.count
        return walk.count

    def beyond(self, payloads: Array, limit: int = VALUES_MAX) -> list[int]:
        """The rows of a binary array (no nulls) that have more values."""
        suspects = np.flatnonzero(self._slots + lengths_of(payloads) * self._rate > limit)
        return [row for row in suspects.tolist() if self.values(payloads[row].as_py(), limit) > limit]

    def bounds(self, payloads: Array, limit: int = BATCH_VALUES_MAX) -> Counts | None:
        """For each row a number that its values do not exceed; None if all rows together are within the
        limit.
        """
        lengths = lengths_of(payloads)
        if len(lengths) * self._slots + int(lengths.sum()) * self._rate <= limit:
            return None
        # A row beyond `VALUES_MAX` is not decoded.
        found: Counts = np.minimum(self._slots + np.ceil(lengths * self._rate), VALUES_MAX).astype(np.int64)
        return found


def _slots(column: Any) -> int:
    """Places in columns that a value takes, without the items of its lists."""
    if pa.types.is_struct(column):
        return 1 + sum(_slots(column.field(place).type) for place in range(column.num_fields))
    return 2 if pa.types.is_decimal(column) else 1


def _symbols(node: Node) -> int:
    """More for enums with long names, outside of lists."""
    if node.kind is Kind.ENUM:
        return max(len(symbol) for symbol in node.symbols) // _NAME_BYTES
    return sum(_symbols(one) for one in (*node.branches, *(each.type for each in node.fields)))


def _weight(plan: Plan) -> int:
    """The values of one item of an array or a map, with its key."""
    item = plan.parts[0] if plan.parts else Plan(plan.node.item or plan.node)
    columns = _nodes(item.node) if item.type is None else max(_slots(item.type), _nodes(item.node))
    return 1 + columns + _symbols(item.node) + (1 if plan.node.kind is Kind.MAP else 0)


def _nodes(node: Node) -> int:
    """The types of a value without those of its items: what a reader passes."""
    return 1 + sum(_nodes(one) for one in (*node.branches, *(each.type for each in node.fields)))


def _rate(plan: Plan) -> float:
    """The most values that one byte adds."""
    parts = [_rate(part) for part in plan.parts]
    node = plan.node
    if plan.type is None:
        # Read over: each byte is at most one value that takes bytes, and those around it.
        return float(_nodes_deep(node))
    if node.item is not None and not plan.wrapped:
        least = least_bytes(node.item) + (1 if node.kind is Kind.MAP else 0)
        parts.append(_weight(plan) / max(1, least))
    # A record beyond the depth is read over, and each of its bytes is a value.
    return max(parts, default=1.0 if node.kind is Kind.ENCODED else 0.0)


def _nodes_deep(node: Node) -> int:
    return (
        _nodes(node)
        + (0 if node.item is None else _nodes_deep(node.item))
        + sum(_nodes_deep(each.type) for each in node.fields if each.type.item is not None)
    )


def _count(plan: Plan, data: bytes, at: int, walk: Walk) -> int:
    """Count the items of a value, and return its end."""
    node = plan.node
    if plan.type is None or not plan.parts:
        return walk.skip(normal_of(node) if not node.name else node.name, data, at)
    if plan.wrapped:
        return _count(plan.parts[0], data, at, walk)
    if node.kind is Kind.UNION:
        index, at = read_index(data, at, len(plan.parts), "branch")
        return _count(plan.parts[index], data, at, walk)
    if node.kind is Kind.RECORD:
        for part in plan.parts:
            at = _count(part, data, at, walk)
        return at
    weight = _weight(plan)
    while True:
        count, at = read_block(data, at)
        if count == 0:
            return at
        walk.add(count * weight)
        for _ in range(count):
            if node.kind is Kind.MAP:
                size, at = read_size(data, at)
                at += size
            at = _count(plan.parts[0], data, at, walk)

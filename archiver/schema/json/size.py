"""The size of a JSON document after decoding, bounded from its bytes before decoding.

Three bytes of a document, `{},`, may become a list element of a hundred columns. The unit and the limits are
those of `archiver.schema.protobuf.decoded_size`: a value is one place in a column or one list element.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from archiver.schema.arrow import Array, pc
from archiver.schema.json.complete_engine import Wrong, parsed
from archiver.schema.json.model import Kind, Node, Schema
from archiver.schema.protobuf.decoded_size import BATCH_VALUES_MAX, VALUES_MAX, Counts, lengths_of


class JsonMeter:
    """Counts the values of documents of one schema."""

    def __init__(self, schema: Schema) -> None:
        self._node = schema.node
        self._slots = _slots(schema.node)
        self._weight = max(_weights(schema.node), default=0)
        """The most values of an object in a list or a map."""
        # An item takes two bytes with its comma, and an object three.
        self._rate = max(1.0, (1 + self._weight) / 3)

    def beyond(self, payloads: Array, limit: int = VALUES_MAX) -> list[int]:
        """The rows of a binary array (no nulls) that have more values."""
        suspects = np.flatnonzero(self._slots + lengths_of(payloads) * self._rate > limit)
        return [row for row in suspects.tolist() if self._values(payloads[row].as_py(), limit) > limit]

    def bounds(self, payloads: Array, limit: int = BATCH_VALUES_MAX) -> Counts | None:
        """For each row a number that its values do not exceed; None if all rows together are within the
        limit.
        """
        lengths = lengths_of(payloads)
        if len(lengths) * self._slots + int(lengths.sum()) * self._rate <= limit:
            return None
        objects = pc.fill_null(pc.count_substring(payloads, "{"), 0).to_numpy()
        found: Counts = (self._slots + objects.astype(np.int64) * self._weight + lengths).astype(np.int64)
        # A row beyond `VALUES_MAX` is not decoded.
        return np.minimum(found, VALUES_MAX) if int(found.sum()) > limit else None

    def _values(self, payload: bytes, limit: int) -> int:
        """The values of a payload, or a number that they do not exceed."""
        most = self._slots + payload.count(b"{") * self._weight + payload.count(b",") + payload.count(b"[")
        if most <= limit:
            return most
        try:
            return self._slots + _count(self._node, parsed(payload))
        except Wrong:
            # The engines refuse it too.
            return 0


def _slots(node: Node) -> int:
    """Places in columns that a value takes, without the items of its lists."""
    if node.kind is Kind.OBJECT:
        return 2 + sum(_slots(one) for _, one in node.fields)
    return 2 if node.column.startswith("decimal") else 1


def _weights(node: Node) -> list[int]:
    if node.item is not None:
        return [_slots(node.item), *_weights(node.item)]
    return [weight for _, one in node.fields for weight in _weights(one)]


def _count(node: Node, value: Any) -> int:
    """The items of lists and maps inside a value, with their columns."""
    if node.item is not None and isinstance(value, dict | list):
        items = list(value.values()) if isinstance(value, dict) else value
        each = 1 + _slots(node.item) + (1 if node.kind is Kind.MAP else 0)
        return len(items) * each + sum(_count(node.item, one) for one in items)
    if node.kind is Kind.OBJECT and isinstance(value, dict):
        return sum(_count(one, value[name]) for name, one in node.fields if name in value)
    return 0

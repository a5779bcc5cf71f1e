"""Defines the three message shapes that `bench.limit` measures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from archiver.schema.protobuf.descriptors import Source
from bench import orders, schema_messages


@dataclass(frozen=True)
class Shape:
    """A message, its handler and its values."""

    source: Source
    handler: Callable[[], Any]
    """Returns its ptars handler."""
    make: Callable[[int, int], pa.Array[Any]]
    """Returns serialized values for a count and a seed."""


def _flat(name: str) -> Shape:
    return Shape(
        Source(f"bench.{name}", schema_messages.descriptor_set(schema_messages.file_of())),
        lambda: schema_messages.handler(f"bench.{name}"),
        lambda count, seed: schema_messages.make_values(f"bench.{name}", count, seed),
    )


SHAPES = {
    "narrow": _flat("narrow"),
    "wide": _flat("flat"),
    "nested": Shape(Source("bench.Order", orders.descriptor_set()), orders.handler, orders.make_values),
}
"""8 columns, 40 columns, and orders with lines and a map."""

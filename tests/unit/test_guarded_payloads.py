"""Payloads that could overflow the fast engine's stack, and only these, pass Protobuf's own parser first."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from archiver.schema.evolution.state import arrow_schema, decide
from archiver.schema.protobuf.complete_engine import ProtobufEngine
from archiver.schema.protobuf.descriptors import source_tree
from archiver.schema.protobuf.ptars_engine import GUARDED_BYTES, PtarsEngine
from archiver.schema.protobuf.tree import ERR, PREFIX, RAW
from tests.support.schema.protos import message_class, order_file, source

ORDER = source(order_file(), "Order")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of the payloads that the parser received."""
    lengths: list[int] = []
    refusal = ProtobufEngine.refusal

    def noting(self: ProtobufEngine, payload: bytes) -> str | None:
        lengths.append(len(payload))
        return refusal(self, payload)

    monkeypatch.setattr(ProtobufEngine, "refusal", noting)
    return lengths


def sized(length: int) -> bytes:
    """An order of this many bytes."""
    make = message_class(ORDER)
    for text in range(max(0, length - 8), length):
        found = make(customer="x" * text).SerializeToString()
        if len(found) == length:
            return bytes(found)
    raise AssertionError(length)


@pytest.mark.parametrize("before", [0, 2])
@pytest.mark.parametrize(
    "lengths",
    [
        [10, GUARDED_BYTES, 20],
        [GUARDED_BYTES + 1],
        [10, GUARDED_BYTES + 1, GUARDED_BYTES, 20, 3 * GUARDED_BYTES],
        [],
    ],
)
def test_the_long_ones_are_parsed(parsed: list[int], lengths: list[int], before: int) -> None:
    side = arrow_schema(decide("t", (), None, ORDER).schema).field("value").type
    message: Any = pa.struct([child for child in side if child.name not in (RAW, PREFIX, ERR)])
    engine = PtarsEngine(source_tree(ORDER), message)
    payloads: Any = pa.array(
        [sized(2 * GUARDED_BYTES)] * before + [sized(length) for length in lengths], pa.binary()
    ).slice(before)
    decoded = engine.decode(payloads)
    assert parsed == [length for length in lengths if length > GUARDED_BYTES]
    assert decoded.columns.null_count == 0
    assert not decoded.errors

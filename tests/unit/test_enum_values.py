"""Enum numbers become names and convert back: for enums from 0 on, for enums with holes, and for unknown
numbers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from archiver.schema.protobuf.tree import EnumTree, FieldTree, Kind
from archiver.schema.protobuf.values import to_column, to_wire

COUNTING = EnumTree(((0, "NONE"), (1, "FIRST"), (2, "SECOND")))
ENUMS = {
    "counts up": COUNTING,
    "one value": EnumTree(((0, "NONE"),)),
    "a hole": EnumTree(((0, "NONE"), (2, "SECOND"), (3, "THIRD"))),
    "from 1 on": EnumTree(((1, "FIRST"), (2, "SECOND"))),
    "negative": EnumTree(((-1, "BELOW"), (0, "NONE"), (1, "FIRST"))),
}
NUMBERS: list[list[int | None]] = [
    [],
    [None, None],
    [0, 1, 2, 1, 0],
    [0, None, 2],
    [0, 3, 1],  # the first number after the last one
    [-1, 0],
    [2**31 - 1, -(2**31), None, 1],
]


@pytest.mark.parametrize("enum", ENUMS.values(), ids=list(ENUMS))
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("before", [0, 2])
def test_names_and_numbers(enum: EnumTree, numbers: list[int | None], before: int) -> None:
    tree = FieldTree(1, "it", Kind.ENUM, enum=enum)
    known = dict(enum.names)
    wire: Any = pa.array([2**30, None][:before] + numbers, pa.int32()).slice(before)
    column = to_column(tree, wire, pa.string())
    assert column.type == pa.string()
    assert column.to_pylist() == [None if one is None else known.get(one, str(one)) for one in numbers]
    shifted: Any = pa.array(["no name", None][:before] + column.to_pylist(), pa.string()).slice(before)
    again = to_wire(tree, shifted, pa.int32())
    assert again.type == pa.int32()
    assert again.to_pylist() == numbers


def test_a_text_that_is_no_value_is_refused() -> None:
    tree = FieldTree(1, "it", Kind.ENUM, enum=COUNTING)
    column: Any = pa.array(["FIRST", "first"])
    with pytest.raises(pa.ArrowInvalid):
        to_wire(tree, column, pa.int32())

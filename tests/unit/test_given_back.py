"""Which messages the columns reproduce is stated for each message, also where all are compared at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from archiver.schema.protobuf.engine import Decoded
from archiver.schema.side_reader import decode_exactly


@dataclass
class Echo:
    """An engine that encodes to given bytes, independent of the decoded ones."""

    gives: list[bytes]
    bad: tuple[int, ...] = ()

    @property
    def message_type(self) -> pa.StructType:
        return pa.struct([pa.field("row", pa.int64())])

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        rows: Any = pa.array(np.arange(len(payloads)))
        mask: Any = pa.array([row in self.bad for row in range(len(payloads))], pa.bool_())
        columns: Any = pa.StructArray.from_arrays([rows], fields=list(self.message_type), mask=mask)
        return Decoded(columns, dict.fromkeys(self.bad, "bad"))

    revise = decode

    def encode(self, columns: pa.StructArray) -> pa.BinaryArray:
        rows: Any = columns.field(0)
        found: pa.BinaryArray = pa.array([self.gives[row] for row in rows.to_pylist()], pa.binary())
        return found


@pytest.mark.parametrize(
    ("messages", "gives", "bad", "whole"),
    [
        ([b"one", b"", b"three"], [b"one", b"", b"three"], (), [True, True, True]),
        ([b"one", b"", b"three"], [b"one", b"", b"thref"], (), [True, True, False]),
        ([b"one", b"", b"three"], [b"One", b"", b"three"], (), [False, True, True]),
        ([b"ab", b"c", b"d"], [b"a", b"bc", b"d"], (), [False, False, True]),  # the same bytes, other cuts
        ([b"ab", b"", b"c"], [b"", b"ab", b"c"], (), [False, False, True]),
        ([b"\x00\x00", b"\x00"], [b"\x00", b"\x00\x00"], (), [False, False]),
        ([b"one", b"two", b"one"], [b"one", b"two", b"one"], (1,), [True, False, True]),
        ([b"one", b"two", b"one"], [b"one", b"two", b"two"], (0,), [False, True, False]),
        ([], [], (), []),
    ],
)
@pytest.mark.parametrize("before", [0, 3])
def test_each_message_is_reported(
    messages: list[bytes], gives: list[bytes], bad: tuple[int, ...], whole: list[bool], before: int
) -> None:
    sliced: Any = pa.array([b"other"] * before + messages, pa.binary()).slice(before)
    _, found, errors = decode_exactly(Echo(gives, bad), sliced)
    assert found.tolist() == whole
    assert found.flags.writeable, "the caller changes it"
    assert sorted(errors) == list(bad)

"""The interface between record codec and Protobuf library: payloads to columns and back.

`Engine` has two implementations: `ptars_engine` (fast) and `complete_engine` (slow, complete, the reference
for doubtful records). `tests/contract/test_engines.py` tests both.

The column form of a message is exactly that of a Parquet file: enums as names (unknown numbers as decimal
text), 64-bit unsigned as decimals, timestamps in microseconds, maps without duplicate keys.
`__unrecognized__` of a message holds the wire bytes of fields that the schema does not know, and is null
without any. `decode` of a fast engine may leave it null; `revise` fills it. A field that does not fit its
column (text that is not UTF-8, a timestamp outside the years 1 to 9999) makes the payload undecodable: a
column never holds another value than was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from archiver.schema.protobuf.values import Bools


@dataclass(frozen=True)
class Decoded:
    """The result of decoding a batch of payloads."""

    columns: pa.StructArray
    """One row per payload, of the engine's `message_type`; null where the payload could not be decoded."""
    errors: Mapping[int, str]
    """Row to reason, for exactly the null rows."""
    settled: Bools | None = None
    """Rows for which `revise` would give the same, whether or not they encode to the payload; None: all."""


def decoded_singly(
    payloads: pa.BinaryArray,
    message_type: pa.StructType,
    decoded: Callable[[bytes], tuple[object, str | None]],
) -> Decoded:
    """What an engine makes that decodes one payload at a time. `decoded` returns a row, or None and why."""
    rows: list[object] = []
    errors: dict[int, str] = {}
    values: Any = payloads
    for row, payload in enumerate(values.to_pylist()):
        value, why = decoded(payload)
        rows.append(value)
        if why is not None:
            errors[row] = why
    columns: Any = pa.array(rows, message_type)
    return Decoded(columns, errors)


class Engine(Protocol):
    """Decodes and encodes messages of one type. Not safe for use by several threads at once."""

    @property
    def message_type(self) -> pa.StructType:
        """The struct of the message's fields in column form, with field ids: fields by number, then
        `__unrecognized__`.
        """
        ...

    def decode(self, payloads: pa.BinaryArray) -> Decoded:
        """Decode payloads (no nulls; sliced arrays are fine). Never raises for what a payload holds."""
        ...

    def revise(self, payloads: pa.BinaryArray) -> Decoded:
        """Decode payloads (no nulls) that the columns of `decode` do not encode to, and find unknown fields.

        Slower than `decode`, and complete: `__unrecognized__` of every message level is filled. Never raises
        for what a payload holds.
        """
        ...

    def encode(self, columns: pa.StructArray) -> pa.BinaryArray:
        """Encode rows of `message_type` (no null rows) in canonical order: by field number, packed as
        declared, maps in column order.

        `__unrecognized__` of each message is appended to its fields. Raises pyarrow.ArrowInvalid for columns
        that no decode has made.
        """
        ...

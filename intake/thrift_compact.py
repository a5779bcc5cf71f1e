"""Reads Thrift's compact protocol, as far as Parquet files use it.

The work is linear in the bytes. Strings are skipped; of a list only the number of elements is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from archiver.runtime.errors import InvalidInput

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
"""Kinds of a value."""
_DEPTH_MAX: Final = 16

Fields = dict[int, object]
"""A struct: its fields by their numbers."""


@dataclass(frozen=True, slots=True)
class Text:
    """A string that was skipped. No number, so that it cannot pass for one."""

    length: int
    """In bytes."""


class Compact:
    """A place in the bytes. `IndexError` where the data ends."""

    def __init__(self, data: bytes, what: str, *, number_bits: int = 32, lists: bool = False) -> None:
        """`what` names the data in errors. A reader that truncates a number would see another value, so
        numbers of more bits are refused. Without `lists`, so are lists.
        """
        self._data = data
        self._what = what
        self._number_max = 2 ** (number_bits - 1) - 1
        self._lists = lists
        self.at = 0

    def fields(self) -> Iterator[tuple[int, int]]:
        """Number and kind of each field of a struct. Read its value before the next."""
        field = 0
        while byte := self._byte():
            step, kind = byte >> 4, byte & 0x0F
            # A step of 0 means that the field number follows in full.
            field = field + step if step else self._zigzag()
            yield field, kind

    def struct(self, depth: int = 0) -> Fields:
        """The fields of a struct."""
        # Crafted bytes could nest until the stack overflows.
        if depth > _DEPTH_MAX:
            raise InvalidInput(f"{self._what} is nested too deeply")
        return {field: self.value(kind, depth) for field, kind in self.fields()}

    def list_of(self, kind: int, element: int) -> int:
        """The number of elements of a list of such elements, which follow; `kind` is that of the field."""
        if kind != LIST:
            raise InvalidInput(f"{self._what} has a field of kind {kind} where a list belongs")
        count, found = self._list_head()
        if count and found != element:
            raise InvalidInput(f"{self._what} has a list of kind {found} where one of kind {element} belongs")
        return count

    def value(self, kind: int, depth: int = 0) -> object:
        """A value of that kind: of a list its number of elements, of a string a `Text`, and None for what is
        skipped otherwise.
        """
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind in (I16, I32, I64):
            return self._zigzag()
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind in (BYTE, DOUBLE):
            self._pass(1 if kind == BYTE else 8)
        elif kind == BINARY:
            length = self._varint()
            self._pass(length)
            return Text(length)
        elif kind in (LIST, SET) and self._lists:
            return self._skipped_list(depth + 1)
        else:
            raise InvalidInput(f"{self._what} has a field of a kind that it cannot have")
        return None

    def _skipped_list(self, depth: int) -> int:
        # Also here: lists can nest without structs.
        if depth > _DEPTH_MAX:
            raise InvalidInput(f"{self._what} is nested too deeply")
        count, kind = self._list_head()
        # Parquet has no lists of others. Readers in C++ ignore the type that is stated.
        if count and kind not in (I32, I64, BINARY, STRUCT):
            raise InvalidInput(f"{self._what} has a list of a kind that it cannot have")
        for _ in range(count):
            self.value(kind, depth)
        return count

    def _list_head(self) -> tuple[int, int]:
        byte = self._byte()
        count = byte >> 4
        return (self._varint() if count == 15 else count), byte & 0x0F

    def _byte(self) -> int:
        self.at += 1
        return self._data[self.at - 1]

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found
            # No number has more than 64 bits.
            if shift > 63:
                raise InvalidInput(f"{self._what} has a number without an end")

    def _zigzag(self) -> int:
        found = self._varint()
        number = (found >> 1) ^ -(found & 1)
        if not -self._number_max - 1 <= number <= self._number_max:
            raise InvalidInput(f"{self._what} has a number that does not fit")
        return number

    def _pass(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise IndexError

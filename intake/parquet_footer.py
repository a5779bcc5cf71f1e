"""Checks a Parquet footer before pyarrow describes its columns.

pyarrow ends the process (`std::terminate`) when it describes a column whose entry contradicts the schema, for
`RowGroupMetaData.column` translates no C++ exception. One wrong bit is enough. So a footer that no digest
covers is checked here first, by the rules of Arrow's `ColumnChunkMetaData` and `SizeStatistics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from archiver.runtime.errors import InvalidInput
from intake.thrift_compact import I32, STRUCT, Compact, Fields

_SCHEMA: Final = 2
_ROW_GROUPS: Final = 4
_TYPE, _REPETITION, _CHILDREN = 1, 3, 5
"""Fields of an element of the schema."""
_BYTE_ARRAY: Final = 6
_OPTIONAL, _REPEATED = 1, 2
_COLUMNS_MAX: Final = 100_000
_TAIL_BYTES: Final = 8
"""Length of the footer, and the magic."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of the schema."""

    physical_type: int
    definition_max: int
    repetition_max: int


def check_footer_columns(footer: bytes) -> None:
    """Raise `InvalidInput` unless pyarrow can describe every column; `footer` is with its length and magic.

    A footer that pyarrow cannot read at all may pass: pyarrow reports that itself.
    """
    compact = Compact(footer[:-_TAIL_BYTES], "the footer", number_bits=64, lists=True)
    leaves: list[_Leaf] | None = None
    try:
        for field, kind in compact.fields():
            if field == _SCHEMA:
                leaves = _leaves(compact, kind)
            elif field == _ROW_GROUPS:
                if leaves is None:
                    raise InvalidInput("the footer has row groups before its schema")
                _check_groups(compact, kind, leaves)
            else:
                compact.value(kind)
    except IndexError as error:
        raise InvalidInput("the footer does not end") from error


def _leaves(compact: Compact, kind: int) -> list[_Leaf]:
    """The columns of the schema, which is a tree in the order of its elements."""
    leaves: list[_Leaf] = []
    # Children that are left, and levels, of every open group; the root has neither level.
    groups: list[list[int]] = []
    for number in range(compact.list_of(kind, STRUCT)):
        element = _element(compact)
        children, repetition = element.get(_CHILDREN, 0), element.get(_REPETITION, 0)
        if number and not groups:
            raise InvalidInput("the schema in the footer has elements behind its end")
        _, definition_max, repetition_max = groups[-1] if groups else (0, 0, 0)
        if groups:
            groups[-1][0] -= 1
            definition_max += repetition in (_OPTIONAL, _REPEATED)
            repetition_max += repetition == _REPEATED
        if children > 0 or not number:
            groups.append([children, definition_max, repetition_max])
        else:
            leaves.append(_Leaf(element.get(_TYPE, -1), definition_max, repetition_max))
        while groups and groups[-1][0] == 0:
            groups.pop()
    if len(leaves) > _COLUMNS_MAX:
        raise InvalidInput(f"the footer has {len(leaves)} columns, more than {_COLUMNS_MAX}")
    return leaves


def _element(compact: Compact) -> dict[int, int]:
    """Type, repetition and number of children of an element of the schema, as far as they are given."""
    found: dict[int, int] = {}
    for field, kind in compact.fields():
        value = compact.value(kind)
        if field not in (_TYPE, _REPETITION, _CHILDREN):
            continue
        # A reader in C++ skips a field of another kind.
        if kind != I32 or not isinstance(value, int):
            raise InvalidInput(f"field {field} of an element of the schema has the kind {kind}")
        found[field] = value
    return found


def _check_groups(compact: Compact, kind: int, leaves: list[_Leaf]) -> None:
    for group in range(compact.list_of(kind, STRUCT)):
        for field, inner in compact.fields():
            if field != 1:
                compact.value(inner)
                continue
            count = compact.list_of(inner, STRUCT)
            if count != len(leaves):
                raise InvalidInput(f"row group {group} has {count} columns, the schema {len(leaves)}")
            for number, leaf in enumerate(leaves):
                _check_column(compact.struct(), leaf, f"row group {group}, column {number}")


def _check_column(column: Fields, leaf: _Leaf, where: str) -> None:
    # 8 and 9: keys of an encrypted column.
    if 8 in column or 9 in column:
        raise InvalidInput(f"{where}: encrypted columns cannot be read")
    described = column.get(3)
    sizes = described.get(16) if isinstance(described, dict) else None
    if not isinstance(sizes, dict):
        return
    if 1 in sizes and leaf.physical_type != _BYTE_ARRAY:
        raise InvalidInput(f"{where}: it is not of byte arrays and has the size of such")
    for field, most in ((2, leaf.repetition_max), (3, leaf.definition_max)):
        # The number of elements stands for a list.
        if field in sizes and sizes[field] not in (0, most + 1):
            raise InvalidInput(f"{where}: a histogram has {sizes[field]} levels, not {most + 1}")

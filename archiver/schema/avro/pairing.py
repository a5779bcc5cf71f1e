"""How a record of one Avro schema fills the columns of another: Avro's schema resolution, decided once.

`pair` walks the writer's schema next to the reader's and the Arrow type of the columns. Its result, a `Plan`,
says for each value of the writer where it goes; both engines follow it. A value that has no column, or whose
type does not fit the column, is read over, and its record does not encode to its bytes again. A column that
the writer's schema does not have is null: declared defaults are not filled in. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from archiver.schema.avro.model import Field, Kind, Node, Schema

WHOLE: Final = -1
"""The place of a union's branch whose values are the column itself."""


@dataclass(frozen=True)
class Plan:
    """What happens to the values of one type of the writer's schema."""

    node: Node
    """The type in the writer's schema."""
    type: Any = None
    """The Arrow type of the column; None: the value is read over."""
    parts: tuple[Plan, ...] = ()
    """Of a record its fields, of a union its branches, of an array or a map its item."""
    places: tuple[int | None, ...] = ()
    """For each part of a record or a union the index of its child in the struct; WHOLE, or None without."""
    wrapped: bool = False
    """The type is no union, and the column is the struct of a union's branches; `parts` is the type alone."""


def pair_schemas(writer: Schema, reader: Schema, columns: pa.StructType) -> Plan:
    """The plan of the top level; `columns` are those of the reader's schema."""
    plan = _pair(_topped(writer.node), _topped(reader.node), columns)
    if plan.type is not None:
        return plan
    return Plan(_topped(writer.node), columns, (_dropped(writer.node),), (None,))


def _topped(node: Node) -> Node:
    """The record of the top level: a schema of another type is the only field of one."""
    if node.kind is Kind.RECORD and node.fields:
        return node
    return Node(Kind.RECORD, fields=(Field("value", (), node),))


def _dropped(node: Node) -> Plan:
    return Plan(node)


def _pair(writer: Node, reader: Node, column: Any) -> Plan:
    """The plan of a type; `column` is the column of the reader's type."""
    core = reader.core
    if writer.kind is Kind.UNION:
        parts, places = _branches(writer, core, column)
        # A union of which nothing arrives would be a column of nulls, like one that is read over.
        if all(one is None for one in places) and any(one.kind is not Kind.NULL for one in writer.branches):
            return _dropped(writer)
        return Plan(writer, column, parts, places)
    plan, place = _into(writer, core, column)
    if place in (WHOLE, None):
        return plan
    return Plan(writer, column, (plan,), (place,), wrapped=True)


def _branches(writer: Node, core: Node, column: Any) -> tuple[tuple[Plan, ...], tuple[int | None, ...]]:
    """The plans of a union's branches and their places. No two branches share a place: a value could then
    not be encoded as the branch that it came from.
    """
    found = [_into(one, core, column) for one in writer.branches]
    names = [one.branch for one in (core.values if core.kind is Kind.UNION else (core,))]
    taken: set[int] = set()
    # Branches whose type is that of their place come first.
    for same in (True, False):
        for index, (branch, (_, place)) in enumerate(zip(writer.branches, found, strict=True)):
            if place is None or same is not (names[max(place, 0)] == branch.branch):
                continue
            if place in taken:
                found[index] = _dropped(branch), None
            taken.add(place)
    return tuple(plan for plan, _ in found), tuple(place for _, place in found)


def _into(branch: Node, core: Node, column: Any) -> tuple[Plan, int | None]:
    """The plan of a type that is no union, and its place in the column of the reader's type."""
    if branch.kind is Kind.NULL and core.kind is not Kind.NULL:
        return _dropped(branch), None
    if core.kind is not Kind.UNION:
        plan = _single(branch, core, column)
        return plan, None if plan.type is None else WHOLE
    branches = core.values
    # A branch of the same name first, as Avro does; then one to which the type can be promoted.
    order = sorted(range(len(branches)), key=lambda place: branches[place].branch != branch.branch)
    for place in order:
        plan = _single(branch, branches[place], column.field(place).type)
        if plan.type is not None:
            return plan, place
    return _dropped(branch), None


def _single(writer: Node, reader: Node, column: Any) -> Plan:
    """The plan of two types of which none is a union."""
    if writer.is_empty or reader.is_empty:
        fits = writer.is_empty and reader.is_empty
    elif writer.kind is Kind.RECORD and reader.kind is Kind.RECORD:
        return _record(writer, reader, column)
    elif writer.item is not None and writer.kind is reader.kind:
        assert reader.item is not None
        inner = column.value_type if writer.kind is Kind.ARRAY else column.item_type
        item = _pair(writer.item, reader.item, inner)
        if item.type is None and writer.item.kind is not Kind.NULL:
            return _dropped(writer)
        return Plan(writer, column, (item,), (WHOLE,))
    else:
        fits = _fits(writer, reader, column)
    return Plan(writer, column) if fits else _dropped(writer)


def _record(writer: Node, reader: Node, column: Any) -> Plan:
    places = {one.name: place for place, one in enumerate(reader.fields)}
    names = {one.name for one in writer.fields}
    # An alias names a former field, if the writer has no field of the present name.
    for place, one in enumerate(reader.fields):
        if one.name not in names:
            for alias in one.aliases:
                if alias in names and alias not in places:
                    places[alias] = place
                    break
    parts: list[Plan] = []
    found: list[int | None] = []
    for one in writer.fields:
        at = places.get(one.name)
        plan = (
            _dropped(one.type)
            if at is None
            else _pair(one.type, reader.fields[at].type, column.field(at).type)
        )
        parts.append(plan)
        found.append(None if plan.type is None else at)
    return Plan(writer, column, tuple(parts), tuple(found))


_TEXT: Final = "text"
_BYTES: Final = "bytes"
_FAMILIES: Final[Mapping[str, str]] = {
    "": "",
    "date": "date",
    "time-millis": "time",
    "time-micros": "time",
    **{f"timestamp-{unit}": "timestamp" for unit in ("millis", "micros", "nanos")},
    **{f"local-timestamp-{unit}": "local" for unit in ("millis", "micros", "nanos")},
    "decimal": "decimal",
    "duration": "duration",
    # Both are text in the column.
    "uuid": "uuid",
}
_NUMBERS: Final[Mapping[Kind, tuple[pa.DataType, ...]]] = {
    Kind.INT: (pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    Kind.LONG: (pa.int64(), pa.float32(), pa.float64()),
    Kind.FLOAT: (pa.float32(), pa.float64()),
    Kind.DOUBLE: (pa.float64(),),
}
"""The columns that hold a number of each type: Avro's promotions."""


def _fits(writer: Node, reader: Node, column: Any) -> bool:
    """Whether values of the writer's type are values of the reader's column."""
    mine, theirs = _FAMILIES[writer.logical], _FAMILIES[reader.logical]
    if mine == theirs == "decimal":
        return bool(writer.scale == column.scale and writer.precision <= column.precision)
    if {mine, theirs} <= {"", "uuid"} and mine != theirs:
        # A UUID as text is a string; as a fixed it is none.
        mine = "" if writer.kind is Kind.STRING else mine
        theirs = "" if reader.kind is Kind.STRING else theirs
    if mine != theirs:
        return False
    if mine:
        return True
    if writer.kind in _NUMBERS:
        return reader.kind in _NUMBERS and column in _NUMBERS[writer.kind]
    if {writer.kind, reader.kind} <= {Kind.STRING, Kind.BYTES}:
        return True
    if {writer.kind, reader.kind} <= {Kind.FIXED, Kind.BYTES}:
        return True
    return writer.kind is reader.kind and (writer.kind is not Kind.ENCODED or writer.name == reader.name)

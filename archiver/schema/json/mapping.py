"""From the nodes of a JSON Schema to columns, as the state machine of schemas compares them.

A property is identified by its name (`FieldTree.identity`), with `~1` for a slash. Its column's name has
underscores for characters that queries would have to quote. Pure.
"""

from __future__ import annotations

import re
from typing import Final

from archiver.schema.json.model import Kind, Node, Schema
from archiver.schema.protobuf.tree import FieldTree, MessageTree, Shape
from archiver.schema.protobuf.tree import Kind as ColumnKind

VALUE: Final = "value"
"""The column of a schema that is no object."""
COLUMN_NAME_MAX: Final = 255
_OTHER: Final = re.compile(r"[^A-Za-z0-9_]")


def json_tree(schema: Schema) -> MessageTree:
    """The columns of a schema."""
    if schema.node.kind is Kind.OBJECT:
        return _object(schema.node, schema.name)
    # Without `__unrecognized__`, since the value itself is all there is.
    return MessageTree((_field(VALUE, schema.node),), schema.name, closed=True)


def column_name(name: str) -> str:
    """The name that a property's column asks for."""
    found = _OTHER.sub("_", name)[:COLUMN_NAME_MAX]
    return f"_{found}" if not found or found[0].isdigit() else found


def step_of(name: str) -> str:
    """A property in a path of properties."""
    # A slash divides such a path.
    return name.replace("~", "~0").replace("/", "~1") or "~2"


def _object(node: Node, name: str) -> MessageTree:
    return MessageTree(tuple(_field(one, inner) for one, inner in node.fields), name)


def _field(name: str, node: Node) -> FieldTree:
    shapes: list[Shape] = []
    inner = node
    while inner.item is not None:
        shapes.append(Shape.REPEATED if inner.kind is Kind.ARRAY else Shape.MAP)
        inner = inner.item
    message = _object(inner, name) if inner.kind is Kind.OBJECT else None
    return FieldTree(
        0,
        column_name(name),
        ColumnKind.STATED if message is None else ColumnKind.MESSAGE,
        shape=shapes[0] if shapes else Shape.SINGLE,
        inner=tuple(shapes[1:]),
        message=message,
        key=FieldTree(1, "key", ColumnKind.STRING) if shapes[:1] == [Shape.MAP] else None,
        identity=step_of(name),
        column=inner.column,
        text=node.text,
        # Text and a string have one column type, and rows of the two mean different things.
        form=inner.kind.value if inner.kind in (Kind.OBJECT, Kind.TEXT) else "",
    )

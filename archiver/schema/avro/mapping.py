"""From Avro types to columns: the rules of docs/schema-mapping-avro.md.

`avro_tree` makes the tree of columns that the state machine of schemas compares. Columns stand in the order
of the fields. A field is identified by its name (`FieldTree.identity`). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from archiver.schema.avro.model import Kind, Node, Schema
from archiver.schema.protobuf.tree import FieldTree, MessageTree, Shape
from archiver.schema.protobuf.tree import Kind as ColumnKind

VALUE: Final = "value"
"""The column of a schema that is no record."""
DURATION: Final = ("months", "days", "millis")
"""The columns of a duration."""

_COLUMNS: Final[Mapping[Kind, str]] = {
    Kind.NULL: "boolean",
    Kind.RECORD: "boolean",
    Kind.BOOLEAN: "boolean",
    Kind.INT: "int",
    Kind.LONG: "long",
    Kind.FLOAT: "float",
    Kind.DOUBLE: "double",
    Kind.BYTES: "binary",
    Kind.STRING: "string",
    Kind.FIXED: "binary",
    Kind.ENUM: "string",
    Kind.ENCODED: "binary",
}
"""Types without a column type of their own. A record is here only without fields: true says that
it is there."""


def avro_tree(schema: Schema, steps: Mapping[str, str] | None = None) -> MessageTree:
    """The columns of a schema. `steps`: what identifies a field, by its dotted path, where it is not its
    name.
    """
    node = schema.node
    if node.kind is Kind.RECORD and node.fields:
        tree = _record(node)
    else:
        tree = MessageTree((_field(VALUE, node),), schema.name, closed=True)
    return _identified(tree, steps, "") if steps else tree


def _identified(tree: MessageTree, steps: Mapping[str, str], above: str) -> MessageTree:
    fields: list[FieldTree] = []
    for one in tree.fields:
        path = f"{above}{one.name}"
        message = None if one.message is None else _identified(one.message, steps, f"{path}.")
        fields.append(replace(one, identity=steps.get(path, one.identity), message=message))
    return replace(tree, fields=tuple(fields))


def followed_steps(tree: MessageTree, former: MessageTree, above: str = "") -> dict[str, str]:
    """`steps` of a tree that follows another one: a field goes on as the field of its name, or else as the
    one that an alias names.
    """
    before = {one.name: one for one in former.fields}
    names = {one.name for one in tree.fields}
    heirs: dict[str, FieldTree] = {}
    taken: set[str] = set()
    for one in tree.fields:
        # A name that is in use again is no former name.
        called = [one.name] if one.name in before else [name for name in one.aliases if name not in names]
        found = next(
            (before[name] for name in called if name in before and before[name].step not in taken), None
        )
        if found is not None:
            heirs[one.name] = found
            taken.add(found.step)
    steps: dict[str, str] = {}
    for one in tree.fields:
        path, heir = f"{above}{one.name}", heirs.get(one.name)
        step = one.identity if heir is None else heir.step
        while heir is None and step in taken:
            # A new field of a name that identifies another one, which was renamed.
            step += "~"
        taken.add(step)
        if step != one.identity:
            steps[path] = step
        if heir is not None and heir.message is not None and one.message is not None:
            steps.update(followed_steps(one.message, heir.message, f"{path}."))
    return steps


def branch_names(branches: Sequence[Node]) -> list[str]:
    """The names of the columns of a union's branches: the type's name, for types of two namespaces the full
    name with underscores.
    """
    short = [one.branch.rpartition(".")[2] for one in branches]
    return [
        name if short.count(name) == 1 else one.branch.replace(".", "_")
        for name, one in zip(short, branches, strict=True)
    ]


def _record(node: Node) -> MessageTree:
    fields = tuple(replace(_field(one.name, one.type), aliases=one.aliases) for one in node.fields)
    return MessageTree(fields, node.name, closed=True)


def _field(name: str, node: Node, identity: str = "") -> FieldTree:
    shapes: list[Shape] = []
    inner = node.core
    while inner.item is not None:
        shapes.append(Shape.REPEATED if inner.kind is Kind.ARRAY else Shape.MAP)
        inner = inner.item.core
    message = _message(inner)
    return FieldTree(
        0,
        name,
        ColumnKind.STATED if message is None else ColumnKind.MESSAGE,
        shape=shapes[0] if shapes else Shape.SINGLE,
        inner=tuple(shapes[1:]),
        message=message,
        key=FieldTree(1, "key", ColumnKind.STRING) if shapes[:1] == [Shape.MAP] else None,
        identity=identity or name,
        column="" if message is not None else column_of(inner),
        text=node.text,
        form=_form(inner, message),
    )


def _form(node: Node, message: MessageTree | None) -> str:
    """What keeps values of one Iceberg type in columns of their own."""
    if message is not None:
        return node.logical or node.kind.value
    # A column of times has microseconds for both units. No plain number may join it.
    return "time" if node.logical.startswith("time-") else ""


def _message(node: Node) -> MessageTree | None:
    """The columns inside a type; None for a single column."""
    if node.kind is Kind.RECORD and node.fields:
        return _record(node)
    if node.kind is Kind.UNION:
        names = branch_names(node.values)
        # Identified by the full name, so that a second type of the same short name does not move the first.
        fields = (_field(name, one, one.branch) for name, one in zip(names, node.values, strict=True))
        return MessageTree(tuple(fields), node.text, closed=True)
    if node.logical == "duration":
        number = Node(Kind.LONG)
        return MessageTree(tuple(_field(name, number) for name in DURATION), "duration", closed=True)
    return None


def column_of(node: Node) -> str:
    """The Iceberg type of a type that is a single column."""
    logical = node.logical
    if logical == "decimal":
        return f"decimal({node.precision}, {node.scale})"
    if logical == "date":
        return "date"
    # Spark refuses a table that has a column of Iceberg's type time.
    if logical.startswith("time-"):
        return "long"
    if logical.startswith("timestamp-"):
        return "timestamptz"
    if logical.startswith("local-timestamp-"):
        return "timestamp"
    return "string" if logical == "uuid" else _COLUMNS[node.kind]

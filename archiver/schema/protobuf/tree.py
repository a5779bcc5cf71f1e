"""The archiver's own tree of a Protobuf message: only the parts of a descriptor that become columns.

`descriptors` builds a tree from a descriptor. Two trees are equal exactly if they give the same columns and
the same bytes. Comments, options, file names, the names of nested message types and default values are not in
the tree. Fields are in number order, which is the column order. The tree does not depend on Protobuf's
library, and determines the wire form (`wire`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

RAW, PREFIX, ERR, UNRECOGNIZED = "__raw__", "__prefix__", "__err__", "__unrecognized__"
"""The columns next to the fields of a message: the original bytes, registry envelope, decode error,
unknown fields."""

RESERVED_NAMES = (RAW, PREFIX, ERR, UNRECOGNIZED)
"""Taken at every level: a field of such a name gets another column name."""

COLUMNS_MAX = 4000
"""Most fields of one message, all levels together: messages that contain one another grow
exponentially. So many fields with names of 20 letters make a SCHEMA entry of 494 KB, and the log takes
entries of 512 KiB."""

RECORDED_COLUMNS_MAX = 5000
"""The same for a schema that is recorded already: what earlier versions accepted must stay readable."""

DEPTH_MAX = 50
"""Most levels of messages. Protobuf itself stops reading at 100."""

LIBRARY_LEVELS_MAX = 63
"""Most levels as Arrow counts them between libraries, which stops at 64. A message is one level, a list of
messages two, a map three, and the field inside is one more. Parquet stops at 100, and three of its levels are
two or three of these."""

RECURSION_DEPTH = 2
"""How often a message type may be inside itself as columns, unless a setting says otherwise."""

RECURSION_DEPTH_MAX = 10
"""The most that a setting may ask for: the columns of a message that holds itself twice double with each
level."""

JsonForm = Literal["struct", "value", "list"]
"""Which of google.protobuf.Struct, Value and ListValue a column holds as JSON text."""


class Kind(Enum):
    """The type of one field, by its Protobuf name. The wire form follows from it."""

    DOUBLE = "double"
    FLOAT = "float"
    INT32 = "int32"
    INT64 = "int64"
    UINT32 = "uint32"
    UINT64 = "uint64"
    SINT32 = "sint32"
    SINT64 = "sint64"
    FIXED32 = "fixed32"
    FIXED64 = "fixed64"
    SFIXED32 = "sfixed32"
    SFIXED64 = "sfixed64"
    BOOL = "bool"
    STRING = "string"
    BYTES = "bytes"
    ENUM = "enum"
    TIMESTAMP = "timestamp"
    MESSAGE = "message"
    ENCODED = "encoded"
    """A message beyond the recursion depth: its encoded bytes, as they are on the wire. Not parsed."""
    STATED = "stated"
    """A type of another format, whose column type and text the field states."""


class Shape(Enum):
    """How often a field occurs."""

    SINGLE = "single"
    REPEATED = "repeated"
    MAP = "map"


# A wrapper is no kind of its own: callers check `wrapped` in addition.
LENGTH_DELIMITED = frozenset({Kind.STRING, Kind.BYTES, Kind.TIMESTAMP, Kind.MESSAGE, Kind.ENCODED})
"""Kinds that cannot be packed."""


@dataclass(frozen=True)
class EnumTree:
    """The values of an enum: number to name. Of several names of one number the first declared counts."""

    names: tuple[tuple[int, str], ...]
    """In the order of the numbers."""


@dataclass(frozen=True)
class FieldTree:
    """One field of a message."""

    number: int
    name: str
    """In a source tree the Protobuf name (of an extension the full name, dots as underscores), in a column
    tree the column's. Names are not on the wire."""
    kind: Kind
    shape: Shape = Shape.SINGLE
    presence: bool = False
    """Absent and default differ: proto3 `optional`, proto2, members of a oneof, messages."""
    packed: bool = False
    """Of a repeated number: the encoder writes one block."""
    # By number and not by name, because renaming a oneof changes no bytes.
    oneof: int | None = None
    """Smallest field number of the oneof it shares with others; None without one."""
    enum: EnumTree | None = None
    message: MessageTree | None = None
    key: FieldTree | None = None
    """Of a map: the entry's key (number 1). `kind`, `enum` and `message` describe the entry's value (number
    2)."""
    delimited: bool = False
    """Of a message: on the wire it is between a start and an end tag (a proto2 group, an edition's
    DELIMITED), not after a length."""
    wrapped: bool = False
    """A wrapper (google.protobuf.Int32Value …): on the wire a message with this scalar in field 1, without
    presence there."""
    json: JsonForm | None = None
    """A column of JSON text (kind STRING): on the wire an encoded message of that form."""
    above: int | None = None
    """Of ENCODED: how many levels up the message of this type is; 1 is the message that holds the field."""
    unknown: bool = False
    """Not in the schema: a number found in records, added to collect the bytes of `__unrecognized__`. It has
    no column."""
    inner: tuple[Shape, ...] = ()
    """Of a list or a map that directly holds others (not in Protobuf): their shapes, from the outside. `kind`
    and `message` describe the innermost item."""
    identity: str = ""
    """What identifies a field without a number (Avro, JSON): its name, or in Avro a former one."""
    column: str = ""
    """Of STATED: Iceberg's name of the column's type."""
    text: str = ""
    """Of a field without a number: its type for people."""
    aliases: tuple[str, ...] = ()
    """Of a field without a number: its former names, as its schema states them."""
    form: str = ""
    """Of a message without field numbers: record, union or duration; of a number that is a time of day:
    time. A field of another form gets another column."""

    @property
    def step(self) -> str:
        """The field in a path of fields, as in `columns.field_ids`."""
        return self.identity or str(self.number)

    @property
    def below(self) -> str:
        """What leads from the field's path to the fields inside; in such a path 2 is a map's value."""
        maps = (self.shape, *self.inner).count(Shape.MAP)
        return "/" + "2/" * maps

    @property
    def named(self) -> str:
        """The field for people, with its number if it has one."""
        return self.name if self.identity else f"{self.name} = {self.number}"


@dataclass(frozen=True)
class MessageTree:
    """A message: its fields in the order of their numbers."""

    fields: tuple[FieldTree, ...]
    # Not compared, because renaming a nested type changes no column.
    full_name: str = field(compare=False)
    """For messages to people only."""
    left_out: tuple[FieldTree, ...] = ()
    """Groups beyond the recursion depth (ENCODED and delimited). They have no column, since their bytes have
    no end of their own: they are in `__unrecognized__` with their tags. Only the complete engine checks
    them."""
    closed: bool = False
    """Records cannot have other fields (Avro), so there is no `__unrecognized__`."""

    def by_number(self) -> Mapping[int, FieldTree]:
        """The fields by number."""
        return {one.number: one for one in self.fields}

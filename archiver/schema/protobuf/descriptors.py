"""Reads and checks descriptor sets, and turns a message into the tree of its columns.

A `Source` is the name of a message with its descriptor set. It parses, links, has its message and maps to
columns. Its bytes hold only the files that the message needs, without comments. Equal content gives equal
bytes. Nothing is registered in the process-wide descriptor pool, where two topics could clash.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from archiver.runtime.errors import ConfigInvalid
from archiver.schema.protobuf.column_names import named_tree
from archiver.schema.protobuf.tree import (
    COLUMNS_MAX,
    DEPTH_MAX,
    LIBRARY_LEVELS_MAX,
    RECORDED_COLUMNS_MAX,
    RECURSION_DEPTH,
    EnumTree,
    FieldTree,
    JsonForm,
    Kind,
    MessageTree,
    Shape,
)

BUILD = (
    "build it with: python -m grpc_tools.protoc -I. --include_imports --descriptor_set_out=NAME.binpb "
    "NAME.proto"
)
"""The remedy for a file that is not a descriptor set."""

IMPORTS_DEEP_MAX = 200
"""Most files that import one another in a chain."""

_NAMES_SHOWN = 5

File: TypeAlias = descriptor_pb2.FileDescriptorProto
Message: TypeAlias = descriptor_pb2.DescriptorProto
Field: TypeAlias = descriptor_pb2.FieldDescriptorProto
Files: TypeAlias = Mapping[str, File]
"""The files of a set by name."""


# --- The files of a set: parse, select, check, link
def parse_files(data: bytes, where: str) -> Files:
    """The files of a serialized set by name. Raises ConfigInvalid if `data` is no set, is empty, or has two
    different files of one name.
    """
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(data)
    except DecodeError as error:
        raise ConfigInvalid(f"{where} is not a FileDescriptorSet: {error}; {BUILD}") from error
    # Random bytes can parse as a set of unknown fields, which has no named files.
    if not files.file or not all(one.name for one in files.file):
        raise ConfigInvalid(f"{where} is not a FileDescriptorSet: it names no files; {BUILD}")
    result: dict[str, File] = {}
    for one in files.file:
        # Equal copies of a file do no harm: sets that were concatenated have them.
        if result.setdefault(one.name, one) != one:
            raise ConfigInvalid(
                f"{where} holds two different files {one.name}; build it again from one source tree"
            )
    return result


def needed_files(files: Files, message: str, where: str) -> bytes:
    """The set cut down to the files that `message` needs, each after its imports, without source text. Raises
    ConfigInvalid.
    """
    order = _ordered(files, message, where)
    _check_names(files, order, where)
    result = descriptor_pb2.FileDescriptorSet()
    for name in order:
        one = result.file.add()
        one.CopyFrom(files[name])
        # Comments and line numbers would make equal schemas differ.
        one.ClearField("source_code_info")
    # The bytes are recorded in the ledger and compared, so equal content must give equal bytes.
    return result.SerializeToString(deterministic=True)


def linked(files: Files, message: str, where: str) -> Descriptor:
    """The linked descriptor of `message`, in a pool of its own. Raises ConfigInvalid, naming file, message
    and field.
    """
    order = _ordered(files, message, where)
    _check_names(files, order, where)
    # The default pool is shared by the process: two topics may define one name differently.
    pool = descriptor_pool.DescriptorPool()
    for name in order:
        try:
            pool.AddSerializedFile(files[name].SerializeToString())
        except (TypeError, KeyError, ValueError) as error:
            for full, one in _messages(files[name]):
                # The library has a limit near this one, and its error does not name the file.
                if len(one.field) > COLUMNS_MAX:
                    here = f"{name}, message {full}, field {one.field[COLUMNS_MAX].name}"
                    raise ConfigInvalid(
                        f"{where}: {here}: has more than {COLUMNS_MAX} fields; choose a smaller message"
                    ) from error
            raise ConfigInvalid(
                f"{where}: {name} does not link: {error}; build it again with protoc"
            ) from error
    return pool.FindMessageTypeByName(message)


def _ordered(files: Files, message: str, where: str) -> list[str]:
    """The names of the needed files, each after its imports.

    A file that extends a message which `message` can contain is needed too, and may bring further messages.
    """
    order: dict[str, None] = {}
    _visit(files, _home(files, message, where), order, (), where)
    # A file that declares an extension may be imported by none of the files that the message needs.
    extending = [one for one in files.values() if any(_extensions(one))]
    # An added file may bring further messages that other files extend, so repeat until none is added.
    while True:
        inside = _contained([files[name] for name in order], message)
        more = [
            one.name
            for one in extending
            if one.name not in order and any(ext.extendee in inside for ext in _extensions(one))
        ]
        if not more:
            return list(order)
        # Sorted, so that the order of files in the set does not change the result.
        for name in sorted(more):
            _visit(files, name, order, (), where)


def _visit(files: Files, name: str, order: dict[str, None], above: tuple[str, ...], where: str) -> None:
    if name in order:
        return
    # Checked before the depth limit, so that a cycle is reported as one.
    if name in above:
        raise ConfigInvalid(
            f"{where}: {name} imports itself through {' -> '.join((*above[above.index(name) :], name))}"
        )
    if name not in files:
        raise ConfigInvalid(
            f"{where}: {above[-1]} imports {name}, which is not in the set; build it with protoc "
            "--include_imports"
        )
    if len(above) >= IMPORTS_DEEP_MAX:
        raise ConfigInvalid(
            f"{where}: {above[0]} reaches {name} through more than {IMPORTS_DEEP_MAX} imports; flatten them"
        )
    for dependency in files[name].dependency:
        _visit(files, dependency, order, (*above, name), where)
    # Added after its imports: the pool links a file only when they are there.
    order[name] = None


def _home(files: Files, message: str, where: str) -> str:
    """The file that declares `message`."""
    homes: dict[str, list[str]] = {}
    for one in files.values():
        for name, declared in _messages(one):
            # The compiler generates entries of maps; a topic cannot name one as its message.
            if not declared.options.map_entry:
                homes.setdefault(name, []).append(one.name)
    if message in homes:
        if len(homes[message]) > 1:
            raise ConfigInvalid(
                f"{where}: message {message} is defined in {' and in '.join(homes[message])}; keep one "
                "of them"
            )
        return homes[message][0]
    near = (
        difflib.get_close_matches(message, homes, n=_NAMES_SHOWN, cutoff=0.5) or sorted(homes)[:_NAMES_SHOWN]
    )
    hint = f"did you mean {', '.join(near)}?" if near else "it declares no message"
    raise ConfigInvalid(f"{where} has no message {message!r}; {hint}")


def _messages(file: File) -> Iterator[tuple[str, Message]]:
    """All messages of a file with their full names, nested ones after the outer."""
    yield from _below(file.package, file.message_type)


def _below(scope: str, messages: Sequence[Message]) -> Iterator[tuple[str, Message]]:
    for one in messages:
        full = f"{scope}.{one.name}" if scope else one.name
        yield full, one
        yield from _below(full, one.nested_type)


def _extensions(file: File) -> Iterator[Field]:
    """All extensions that a file declares, at the top and inside messages."""
    yield from file.extension
    for _, message in _messages(file):
        yield from message.extension


def _contained(files: Sequence[File], message: str) -> set[str]:
    """The message types that `message` can contain, itself among them; with a leading dot, as fields name
    them.
    """
    fields: dict[str, list[Field]] = {}
    for file in files:
        for name, declared in _messages(file):
            fields.setdefault(f".{name}", []).extend(declared.field)
        for extension in _extensions(file):
            # An extension is a field of the extended message, in another file.
            fields.setdefault(extension.extendee, []).append(extension)
    inside: set[str] = set()
    # A list instead of recursion: messages may contain one another.
    waiting = [f".{message}"]
    while waiting:
        name = waiting.pop()
        if name not in inside:
            inside.add(name)
            waiting.extend(one.type_name for one in fields.get(name, ()) if one.type_name)
    return inside


def _check_names(files: Files, order: Sequence[str], where: str) -> None:
    """Every name is defined once, every type is there, and no two extensions of a message share a number."""
    homes: dict[str, str] = {}
    for file in (files[name] for name in order):
        for full in _declared(file):
            if full in homes:
                raise ConfigInvalid(
                    f"{where}: {full} is defined in {homes[full]} and in {file.name}; keep one of them"
                )
            homes[full] = file.name
    taken: dict[tuple[str, int], str] = {}
    for file in (files[name] for name in order):
        for owner, message in _messages(file):
            for field in message.field:
                _take(taken, f".{owner}", field, f"field {field.name} ({file.name})", where)
                _check_type(files, homes, file, field, f"message {owner}, field {field.name}", where)
    for file in (files[name] for name in order):
        for extension in _extensions(file):
            _take(taken, extension.extendee, extension, f"extension {extension.name} ({file.name})", where)
            _check_type(
                files,
                homes,
                file,
                extension,
                f"extension {extension.name} of {extension.extendee[1:]}",
                where,
            )


def _take(taken: dict[tuple[str, int], str], owner: str, field: Field, ours: str, where: str) -> None:
    """Remember the owner of a number of a message; no other may have it."""
    other = taken.setdefault((owner, field.number), ours)
    if other != ours:
        raise ConfigInvalid(
            f"{where}: message {owner[1:]} has two fields of number {field.number}: {other} and {ours}"
        )


def _declared(file: File) -> Iterator[str]:
    """The full names of a file's messages, enums and extensions."""
    scopes = [(file.package, file.enum_type, file.extension)]
    for full, message in _messages(file):
        yield full
        scopes.append((full, message.enum_type, message.extension))
    for scope, enums, extensions in scopes:
        for name in (*(one.name for one in enums), *(one.name for one in extensions)):
            yield f"{scope}.{name}" if scope else name


def _check_type(
    files: Files, homes: Mapping[str, str], file: File, field: Field, what: str, where: str
) -> None:
    """The type of a field is defined in a needed file."""
    name = field.type_name
    # A name without the leading dot is relative, and the library resolves it.
    if not name.startswith(".") or name[1:] in homes:
        return
    # The type may be in a file of the set that is not imported: that error names the file.
    for other in files.values():
        if name[1:] in _declared(other):
            raise ConfigInvalid(
                f"{where}: {file.name}, {what}: its type {name[1:]} stands in {other.name}, which "
                f"{file.name} does not import"
            )
    raise ConfigInvalid(
        f"{where}: {file.name}, {what}: its type {name[1:]} is not in the set; build it again with "
        "protoc --include_imports"
    )


# --- Well-known types that become a single column
_PACKAGE = "google.protobuf."

_WRAPPED: Mapping[str, int] = {
    "DoubleValue": FieldDescriptor.TYPE_DOUBLE,
    "FloatValue": FieldDescriptor.TYPE_FLOAT,
    "Int64Value": FieldDescriptor.TYPE_INT64,
    "UInt64Value": FieldDescriptor.TYPE_UINT64,
    "Int32Value": FieldDescriptor.TYPE_INT32,
    "UInt32Value": FieldDescriptor.TYPE_UINT32,
    "BoolValue": FieldDescriptor.TYPE_BOOL,
    "StringValue": FieldDescriptor.TYPE_STRING,
    "BytesValue": FieldDescriptor.TYPE_BYTES,
}

_FORMS: Mapping[str, JsonForm] = {"Struct": "struct", "Value": "value", "ListValue": "list"}

_VALUE: Mapping[int, int] = {
    1: FieldDescriptor.TYPE_ENUM,
    2: FieldDescriptor.TYPE_DOUBLE,
    3: FieldDescriptor.TYPE_STRING,
    4: FieldDescriptor.TYPE_BOOL,
    5: FieldDescriptor.TYPE_MESSAGE,
    6: FieldDescriptor.TYPE_MESSAGE,
}


def is_timestamp(descriptor: Descriptor) -> bool:
    """Whether it is google.protobuf.Timestamp."""
    # A set may declare another message of this name. Only the well-known fields make it a timestamp.
    return _short(descriptor) == "Timestamp" and _types(descriptor) == {
        1: FieldDescriptor.TYPE_INT64,
        2: FieldDescriptor.TYPE_INT32,
    }


def wrapped_scalar(descriptor: Descriptor) -> int | None:
    """The scalar type inside google.protobuf.Int32Value and the like; None for another message."""
    scalar = _WRAPPED.get(_short(descriptor))
    # With presence inside, an empty wrapper and a wrapped default would be two values of one column.
    if scalar is None or _types(descriptor) != {1: scalar} or descriptor.fields[0].has_presence:
        return None
    return scalar


def json_form(descriptor: Descriptor) -> JsonForm | None:
    """Which of Struct, Value and ListValue it is; None for another message. Checks all three, because they
    contain one another.
    """
    form = _FORMS.get(_short(descriptor))
    if form is None:
        return None
    value = descriptor if form == "value" else _inner(descriptor, "fields" if form == "struct" else "values")
    if value is None or _short(value) != "Value" or _types(value) != _VALUE:
        return None
    # The six alternatives must exclude one another, because JSON holds one value.
    if len(value.oneofs) != 1 or len(value.oneofs[0].fields) != len(_VALUE):
        return None
    struct, listed = value.fields_by_number[5].message_type, value.fields_by_number[6].message_type
    if _short(struct) != "Struct" or _short(listed) != "ListValue":
        return None
    # Both containers must hold Value again, because the conversion is recursive.
    return form if _short(_inner(struct, "fields")) == _short(_inner(listed, "values")) == "Value" else None


def _inner(descriptor: Descriptor | None, name: str) -> Descriptor | None:
    """The Value inside a Struct or a ListValue that has only the field it should have."""
    if descriptor is None or [(one.number, one.is_repeated) for one in descriptor.fields] != [(1, True)]:
        return None
    entry = descriptor.fields[0].message_type
    if entry is None:
        return None
    if name == "values":
        return entry
    if not entry.GetOptions().map_entry or entry.fields_by_number[1].type != FieldDescriptor.TYPE_STRING:
        return None
    return entry.fields_by_number[2].message_type


def _short(descriptor: Descriptor | None) -> str:
    """The name of a message of Google's package; empty for another one."""
    full = descriptor.full_name if descriptor is not None else ""
    return full.removeprefix(_PACKAGE) if full.startswith(_PACKAGE) else ""


def _types(descriptor: Descriptor) -> Mapping[int, int]:
    """The types of the fields by number; 0 for a repeated one, which none of the shapes above has."""
    return {one.number: 0 if one.is_repeated else one.type for one in descriptor.fields}


# --- The tree of a message
def build_tree(
    descriptor: Descriptor,
    recursion_depth: int = RECURSION_DEPTH,
    columns_max: int = COLUMNS_MAX,
    levels_max: int | None = LIBRARY_LEVELS_MAX,
) -> MessageTree:
    """The tree of a message type, with Protobuf's names (of an extension the full name, dots as underscores).

    A message type stands inside itself at most `recursion_depth` times (0 to 10); where it would stand once
    more, the field is ENCODED. Raises ConfigInvalid, naming file, message and field, for a message set, and
    for a message over one of the limits. These are DEPTH_MAX, `columns_max` fields at all levels together,
    and `levels_max` levels as the libraries count them (None: not counted).
    """
    return _Builder(descriptor, recursion_depth, columns_max, levels_max).message(descriptor, "", ())


_SCALARS: Mapping[int, Kind] = {
    FieldDescriptor.TYPE_DOUBLE: Kind.DOUBLE,
    FieldDescriptor.TYPE_FLOAT: Kind.FLOAT,
    FieldDescriptor.TYPE_INT32: Kind.INT32,
    FieldDescriptor.TYPE_INT64: Kind.INT64,
    FieldDescriptor.TYPE_UINT32: Kind.UINT32,
    FieldDescriptor.TYPE_UINT64: Kind.UINT64,
    FieldDescriptor.TYPE_SINT32: Kind.SINT32,
    FieldDescriptor.TYPE_SINT64: Kind.SINT64,
    FieldDescriptor.TYPE_FIXED32: Kind.FIXED32,
    FieldDescriptor.TYPE_FIXED64: Kind.FIXED64,
    FieldDescriptor.TYPE_SFIXED32: Kind.SFIXED32,
    FieldDescriptor.TYPE_SFIXED64: Kind.SFIXED64,
    FieldDescriptor.TYPE_BOOL: Kind.BOOL,
    FieldDescriptor.TYPE_STRING: Kind.STRING,
    FieldDescriptor.TYPE_BYTES: Kind.BYTES,
    FieldDescriptor.TYPE_ENUM: Kind.ENUM,
}

# Levels of Arrow types, as LIBRARY_LEVELS_MAX counts them.
_LIST_LEVELS, _MAP_LEVELS = 2, 3


class _Builder:
    """Walks one message type, and counts fields, so that a wide one is refused before it fills memory."""

    def __init__(
        self, root: Descriptor, recursion_depth: int, columns_max: int, levels_max: int | None
    ) -> None:
        self._root = root
        self._columns_max = columns_max
        self._levels_max = levels_max
        self._level = 0
        """Of the message that is being walked, as the libraries count."""
        self._depth = recursion_depth
        self._count = 0
        self._oneofs: dict[str, int | None] = {}
        """By full name, the number that stands for a oneof; None for one with a single member."""

    def message(self, descriptor: Descriptor, path: str, above: tuple[str, ...]) -> MessageTree:
        """The tree of `descriptor`, met at `path` (dotted names) inside the messages `above`."""
        # Also bounds the recursion of this walk.
        if len(above) >= DEPTH_MAX:
            raise self._refused(
                path,
                f"has more than {DEPTH_MAX} levels of messages; choose a flatter message or a smaller "
                "recursion_depth",
            )
        # A message set has its own wire format of groups, which the engines do not read.
        if descriptor.GetOptions().message_set_wire_format:
            raise self._refused(
                path,
                f"the message set {descriptor.full_name} is not mapped; archive the topic without a "
                "schema, or use a message without it",
            )
        fields = self._fields(descriptor, path, (*above, descriptor.full_name))
        # A group has no length, so its bytes alone are no message: they get no column.
        left_out = tuple(one for one in fields if one.kind is Kind.ENCODED and one.delimited)
        return MessageTree(
            tuple(one for one in fields if one not in left_out), descriptor.full_name, left_out
        )

    def _fields(self, descriptor: Descriptor, path: str, above: tuple[str, ...]) -> list[FieldTree]:
        """The fields and extensions of a message by number; `above` ends with the message itself."""
        named = [(one, one.name) for one in descriptor.fields]
        if descriptor.is_extendable:
            # Extensions of two packages may have one short name, so a column gets the full name.
            named += [
                (one, one.full_name.replace(".", "_"))
                for one in descriptor.file.pool.FindAllExtensions(descriptor)
            ]
        # The number decides the order of columns. Declaration order may change without a change of meaning.
        named.sort(key=lambda pair: pair[0].number)
        return [self._leveled(one, name, f"{path}.{name}".lstrip("."), above) for one, name in named]

    def _leveled(
        self, descriptor: FieldDescriptor, name: str, path: str, above: tuple[str, ...]
    ) -> FieldTree:
        """The field, with what is inside it so many levels deeper."""
        entry = descriptor.message_type
        is_map = entry is not None and entry.GetOptions().map_entry
        levels = _MAP_LEVELS if is_map else _LIST_LEVELS if descriptor.is_repeated else 1
        self._level += levels
        found = self._field(descriptor, name, path, above)
        # A Timestamp and a wrapper are one column, but messages in the wire form that the libraries exchange.
        deepest = self._level + (1 if found.kind is Kind.TIMESTAMP or found.wrapped else 0)
        if self._levels_max is not None and deepest > self._levels_max:
            raise self._refused(
                path,
                f"is {deepest} levels deep as Arrow counts them (a message is 1, a list 2, a map 3), "
                f"at most {self._levels_max} work; "
                "choose a flatter message, or a smaller recursion_depth if it holds itself",
            )
        self._level -= levels
        return found

    def _field(self, descriptor: FieldDescriptor, name: str, path: str, above: tuple[str, ...]) -> FieldTree:
        self._count += 1
        # Checked while counting: recursive messages grow exponentially and would fill memory first.
        if self._count > self._columns_max:
            raise self._refused(
                path,
                f"has more than {self._columns_max} fields at all levels together; choose a smaller "
                "message or recursion_depth",
            )
        entry = descriptor.message_type
        if entry is not None and entry.GetOptions().map_entry:
            # A map counts as two fields, itself and its key. What is inside its value counts in addition.
            key = self._field(entry.fields_by_number[1], "key", f"{path}.key", above)
            value = self._item(entry.fields_by_number[2], path, above)
            return replace(
                value, number=descriptor.number, name=name, shape=Shape.MAP, key=FieldTree(1, "key", key.kind)
            )
        item = replace(self._item(descriptor, path, above), number=descriptor.number, name=name)
        if descriptor.is_repeated:
            return replace(item, shape=Shape.REPEATED, packed=descriptor.is_packed)
        return replace(item, presence=descriptor.has_presence, oneof=self._oneof(descriptor))

    def _oneof(self, descriptor: FieldDescriptor) -> int | None:
        # The hidden oneof of a proto3 `optional` field has a single member, and counts as none.
        oneof = descriptor.containing_oneof
        if oneof is None:
            return None
        if oneof.full_name not in self._oneofs:
            # The smallest number stands for the oneof, because its name is not on the wire.
            numbers = [one.number for one in oneof.fields]
            self._oneofs[oneof.full_name] = min(numbers) if len(numbers) > 1 else None
        return self._oneofs[oneof.full_name]

    def _item(self, descriptor: FieldDescriptor, path: str, above: tuple[str, ...]) -> FieldTree:
        """What one value of a field is; shape, presence and name are the caller's."""
        scalar = _SCALARS.get(descriptor.type)
        if scalar is not None:
            return FieldTree(0, "", scalar, enum=_enum(descriptor.enum_type) if scalar is Kind.ENUM else None)
        message = descriptor.message_type
        if message is None:
            raise self._refused(path, f"Protobuf type {descriptor.type} is not mapped")
        item = FieldTree(0, "", Kind.MESSAGE, delimited=descriptor.type == FieldDescriptor.TYPE_GROUP)
        form, wrapped = json_form(message), wrapped_scalar(message)
        # Well-known types come before the recursion check: they never become struct columns.
        if is_timestamp(message):
            return replace(item, kind=Kind.TIMESTAMP)
        if form is not None:
            return _json(item, form)
        if wrapped is not None:
            return replace(item, kind=_SCALARS[wrapped], wrapped=True)
        if above.count(message.full_name) > self._depth:
            # The nearest occurrence has the same type, which the complete engine needs to check the bytes.
            nearest = above[::-1].index(message.full_name) + 1
            return replace(item, kind=Kind.ENCODED, above=nearest)
        return replace(item, message=self.message(message, path, above))

    def _refused(self, path: str, why: str) -> ConfigInvalid:
        where = f", field {path}" if path else ""
        return ConfigInvalid(f"{self._root.file.name}, message {self._root.full_name}{where}: {why}")


def _json(item: FieldTree, form: JsonForm) -> FieldTree:
    return replace(item, kind=Kind.STRING, json=form)


def _enum(descriptor: EnumDescriptor | None) -> EnumTree:
    assert descriptor is not None
    names: dict[int, str] = {}
    for value in descriptor.values:
        # With allow_alias several names share a number: the first declared one counts.
        names.setdefault(value.number, value.name)
    return EnumTree(tuple(sorted(names.items())))


# --- Sources: a message with its descriptor set
SchemaFormat = Literal["protobuf", "avro", "json"]


@dataclass(frozen=True)
class Envelope:
    """The registry ids under which a topic's records may be enveloped (magic byte, schema id, message
    indexes).
    """

    ids: tuple[tuple[int, tuple[int, ...]], ...]
    """Schema id, and the message indexes under which that id's schema holds the topic's message; in the order
    of the ids."""
    indexed: bool = True
    """Whether message indexes follow the id, as in Protobuf."""
    bare: bool = True
    """Whether a payload may have no envelope. An Avro payload must have one, since its own bytes may begin
    like one."""

    @staticmethod
    def plain(ids: Iterable[int], *, bare: bool) -> Envelope:
        """Envelopes without message indexes."""
        return Envelope(tuple((number, ()) for number in sorted(ids)), indexed=False, bare=bare)


@dataclass(frozen=True)
class Source:
    """Where the columns of a key or a value come from."""

    message: str
    """Full name, as in `shop.Order`."""
    descriptor_set: bytes
    """A serialized google.protobuf.FileDescriptorSet with every file the message needs. Of Avro the document
    of `archiver.schema.avro.source`, the newest schema and those of all ids; of JSON that of
    `archiver.schema.json.source`."""
    recursion_depth: int = RECURSION_DEPTH
    """How often a message type may stand inside itself as columns; 0 to 10."""
    columns: tuple[tuple[str, str], ...] = ()
    """Renamed columns: dotted path of Protobuf field names, and the column's name. In the order of the
    paths."""
    envelope: Envelope | None = None
    """The ids of a registry's envelopes; None: the payloads have none."""
    format: SchemaFormat = "protobuf"


def load_source(
    path: Path, message: str, recursion_depth: int = RECURSION_DEPTH, columns: Iterable[tuple[str, str]] = ()
) -> Source:
    """Read a descriptor set from `path` and find `message` in it. Raises ConfigInvalid: the file cannot be
    read, or as `make_source`.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigInvalid(
            f"descriptor set {path} cannot be read: {error.strerror or error}; {BUILD}"
        ) from error
    return make_source(data, message, f"descriptor set {path}", recursion_depth, columns)


def make_source(
    descriptor_set: bytes,
    message: str,
    where: str = "descriptor set",
    recursion_depth: int = RECURSION_DEPTH,
    columns: Iterable[tuple[str, str]] = (),
    envelope: Envelope | None = None,
) -> Source:
    """A Source of a message in a serialized descriptor set, which may hold more than is needed. `where` opens
    the messages of errors.

    Raises ConfigInvalid, naming file, message and field:

    - The data is no descriptor set, or an empty one.
    - An import is missing, a file imports itself, or two files define one name.
    - The message or a type is not in the set (similar names are listed), or extensions clash.
    - The message is too wide or too deep (also as the libraries count), or a message set.
    - A renamed column does not exist, or its new name is not valid.
    """
    data = needed_files(parse_files(descriptor_set, where), message, where)
    # Sorted, because equal settings in another order must give an equal source.
    source = Source(message, data, recursion_depth, tuple(sorted(columns)), envelope)
    tree = _tree(source, where, COLUMNS_MAX, LIBRARY_LEVELS_MAX)
    # Called for its errors only. The names are applied when columns are made.
    named_tree(tree, source.columns, where)
    return source


def source_tree(source: Source, where: str = "descriptor set") -> MessageTree:
    """The tree of the source's message, with its Protobuf names. `where` opens the messages of errors.

    Raises ConfigInvalid as `make_source` does, but lets a message be as wide and as deep as recorded ones may
    be.
    """
    # Earlier versions had other limits. What they recorded must stay readable.
    return _tree(source, where, RECORDED_COLUMNS_MAX, None)


def _tree(source: Source, where: str, columns_max: int, levels_max: int | None) -> MessageTree:
    descriptor = linked(parse_files(source.descriptor_set, where), source.message, where)
    try:
        return build_tree(descriptor, source.recursion_depth, columns_max, levels_max)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{where}: {error}") from error

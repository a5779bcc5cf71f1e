"""Protobuf schemas and messages made at run time: by hand for examples, by a seeded generator for everything
else."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor
from google.protobuf.message_factory import GetMessageClass

from archiver.schema.protobuf.descriptors import Source

F = descriptor_pb2.FieldDescriptorProto
Features = descriptor_pb2.FeatureSet

SCALARS: tuple[Any, ...] = tuple(
    kind for kind in range(1, 19) if kind not in (F.TYPE_GROUP, F.TYPE_MESSAGE, F.TYPE_ENUM)
)
MAP_KEYS: tuple[Any, ...] = tuple(
    kind for kind in SCALARS if kind not in (F.TYPE_DOUBLE, F.TYPE_FLOAT, F.TYPE_BYTES)
)
TIMESTAMP = ".google.protobuf.Timestamp"


def file_of(
    name: str = "shop.proto", package: str = "shop", syntax: str = "proto3"
) -> descriptor_pb2.FileDescriptorProto:
    """An empty file that imports Timestamp."""
    return descriptor_pb2.FileDescriptorProto(
        name=name, package=package, syntax=syntax, dependency=["google/protobuf/timestamp.proto"]
    )


def field(
    message: descriptor_pb2.DescriptorProto,
    name: str,
    number: int,
    kind: Any,
    *,
    type_name: str = "",
    repeated: bool = False,
    optional: bool = False,
    packed: bool | None = None,
    oneof: int | None = None,
) -> descriptor_pb2.FieldDescriptorProto:
    """Add a field. `optional` is proto3's; call it after every real oneof of the message is declared."""
    one = message.field.add(name=name, number=number)
    if type_name:
        one.type_name = type_name
    one.type = kind
    one.label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
    if packed is not None:
        one.options.packed = packed
    if oneof is not None:
        one.oneof_index = oneof
    if optional:
        one.proto3_optional = True
        one.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    return one


def edition_file(edition: Any = descriptor_pb2.EDITION_2023) -> descriptor_pb2.FileDescriptorProto:
    """The same as `file_of` in an edition."""
    file = file_of(syntax="editions")
    file.edition = edition
    return file


def group_field(
    message: descriptor_pb2.DescriptorProto, scope: str, name: str, number: int, repeated: bool = False
) -> None:
    """Add a proto2 group to the message of full name `scope`: `name` with one field, `x`."""
    inner = message.nested_type.add(name=name.capitalize())
    field(inner, "x", 1, F.TYPE_INT32)
    field(message, name, number, F.TYPE_GROUP, type_name=f".{scope}.{inner.name}", repeated=repeated)


def extension(
    home: Any, extendee: str, name: str, number: int, kind: Any, type_name: str = "", repeated: bool = False
) -> None:
    """Add an extension to a file or a message."""
    label = F.LABEL_REPEATED if repeated else F.LABEL_OPTIONAL
    one = home.extension.add(name=name, number=number, extendee=extendee, label=label)
    one.type = kind
    if type_name:
        one.type_name = type_name


def map_entry(name: str) -> str:
    """The name of the message that Protobuf makes for the entries of a map field."""
    return "".join(part.capitalize() for part in name.split("_")) + "Entry"


def map_field(
    message: descriptor_pb2.DescriptorProto,
    scope: str,
    name: str,
    number: int,
    key: int,
    value: int,
    type_name: str = "",
) -> descriptor_pb2.FieldDescriptorProto:
    """Add a map field to the message of full name `scope`."""
    entry = message.nested_type.add(name=map_entry(name))
    entry.options.map_entry = True
    field(entry, "key", 1, key)
    field(entry, "value", 2, value, type_name=type_name)
    return field(message, name, number, F.TYPE_MESSAGE, type_name=f".{scope}.{entry.name}", repeated=True)


def descriptor_set(*files: descriptor_pb2.FileDescriptorProto, timestamp: bool = True) -> bytes:
    """A serialized FileDescriptorSet of the files, with Timestamp and the other files of Google's that they
    import."""
    result = descriptor_pb2.FileDescriptorSet()
    if timestamp:
        timestamp_pb2.DESCRIPTOR.CopyToProto(result.file.add())
    imported = {name for one in files for name in one.dependency} - {one.name for one in files}
    for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, wrappers_pb2):
        if module.DESCRIPTOR.name in imported:
            module.DESCRIPTOR.CopyToProto(result.file.add())
    result.file.extend(files)
    return result.SerializeToString()


def source(file: descriptor_pb2.FileDescriptorProto, message: str) -> Source:
    """A Source of the message (short name) in the file."""
    return Source(f"{file.package}.{message}", descriptor_set(file))


def descriptor_of(one: Source) -> Descriptor:
    """The user's own linked descriptor: what a producer has."""
    files = descriptor_pb2.FileDescriptorSet.FromString(one.descriptor_set)
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.AddSerializedFile(file.SerializeToString())
    return pool.FindMessageTypeByName(one.message)


def message_class(one: Source) -> Any:
    """The Python class a producer would use."""
    return GetMessageClass(descriptor_of(one))


def order_file() -> descriptor_pb2.FileDescriptorProto:
    """`shop.Order`: an ordinary nested message, every shape once."""
    file = file_of()
    status = file.enum_type.add(name="Status")
    for number, name in enumerate(("STATUS_UNSPECIFIED", "NEW", "PAID", "SHIPPED")):
        status.value.add(name=name, number=number)
    line = file.message_type.add(name="Line")
    field(line, "sku", 1, F.TYPE_STRING)
    field(line, "quantity", 2, F.TYPE_UINT32)
    field(line, "price", 3, F.TYPE_DOUBLE)
    address = file.message_type.add(name="Address")
    field(address, "city", 1, F.TYPE_STRING)
    field(address, "zip", 2, F.TYPE_STRING)
    order = file.message_type.add(name="Order")
    order.oneof_decl.add(name="payment")
    field(order, "id", 1, F.TYPE_UINT64)
    field(order, "customer", 2, F.TYPE_STRING)
    field(order, "status", 3, F.TYPE_ENUM, type_name=".shop.Status")
    field(order, "created_at", 4, F.TYPE_MESSAGE, type_name=TIMESTAMP)
    field(order, "address", 5, F.TYPE_MESSAGE, type_name=".shop.Address")
    field(order, "lines", 6, F.TYPE_MESSAGE, type_name=".shop.Line", repeated=True)
    map_field(order, "shop.Order", "labels", 7, F.TYPE_STRING, F.TYPE_STRING)
    field(order, "card", 8, F.TYPE_STRING, oneof=0)
    field(order, "invoice", 9, F.TYPE_INT32, oneof=0)
    field(order, "scores", 10, F.TYPE_SINT32, repeated=True)
    field(order, "note", 11, F.TYPE_STRING, optional=True)
    field(order, "payload", 12, F.TYPE_BYTES)
    return file


def all_kinds_file() -> descriptor_pb2.FileDescriptorProto:
    """`shop.AllKinds`: every scalar kind, single, optional, repeated and as a map's value; an enum,
    Timestamps, a nested message."""
    file = file_of()
    file.enum_type.add(name="Colour").value.add(name="RED", number=0)
    inner = file.message_type.add(name="Inner")
    field(inner, "x", 1, F.TYPE_INT32)
    message = file.message_type.add(name="AllKinds")
    for kind in (*SCALARS, F.TYPE_ENUM, F.TYPE_MESSAGE):
        type_name = ".shop.Colour" if kind == F.TYPE_ENUM else ".shop.Inner" if kind == F.TYPE_MESSAGE else ""
        field(message, f"single_{kind}", kind, kind, type_name=type_name)
        field(message, f"repeated_{kind}", 40 + kind, kind, type_name=type_name, repeated=True)
        map_field(message, "shop.AllKinds", f"mapped_{kind}", 60 + kind, F.TYPE_STRING, kind, type_name)
        if kind in MAP_KEYS:
            map_field(message, "shop.AllKinds", f"keyed_{kind}", 80 + kind, kind, F.TYPE_BOOL)
    field(message, "at", 100, F.TYPE_MESSAGE, type_name=TIMESTAMP)
    field(message, "ats", 101, F.TYPE_MESSAGE, type_name=TIMESTAMP, repeated=True)
    map_field(message, "shop.AllKinds", "at_by_name", 102, F.TYPE_STRING, F.TYPE_MESSAGE, TIMESTAMP)
    for kind in SCALARS:
        field(message, f"optional_{kind}", 20 + kind, kind, optional=True)
    return file


def well_known_file() -> descriptor_pb2.FileDescriptorProto:
    """`shop.WellKnown`: every well-known type."""
    file = file_of()
    names = ("any", "duration", "empty", "field_mask", "struct", "wrappers")
    file.dependency.extend(f"google/protobuf/{name}.proto" for name in names)
    message = file.message_type.add(name="WellKnown")
    types = {
        "at": "Timestamp",
        "wait": "Duration",
        "any": "Any",
        "mask": "FieldMask",
        "nothing": "Empty",
        "a_double": "DoubleValue",
        "a_float": "FloatValue",
        "an_int64": "Int64Value",
        "a_uint64": "UInt64Value",
        "an_int32": "Int32Value",
        "a_uint32": "UInt32Value",
        "a_bool": "BoolValue",
        "a_string": "StringValue",
        "a_bytes": "BytesValue",
        "object": "Struct",
        "anything": "Value",
        "array": "ListValue",
    }
    for number, (name, kind) in enumerate(types.items(), 1):
        field(message, name, number, F.TYPE_MESSAGE, type_name=f".google.protobuf.{kind}")
    field(message, "doubles", 20, F.TYPE_MESSAGE, type_name=".google.protobuf.DoubleValue", repeated=True)
    field(message, "anythings", 21, F.TYPE_MESSAGE, type_name=".google.protobuf.Value", repeated=True)
    map_field(
        message,
        "shop.WellKnown",
        "bool_by_name",
        22,
        F.TYPE_STRING,
        F.TYPE_MESSAGE,
        ".google.protobuf.BoolValue",
    )
    map_field(
        message, "shop.WellKnown", "object_by_id", 23, F.TYPE_INT32, F.TYPE_MESSAGE, ".google.protobuf.Struct"
    )
    return file


def orders(count: int, seed: int) -> list[bytes]:
    """Serialized orders of about 150 bytes."""
    make, rng = message_class(source(order_file(), "Order")), random.Random(seed)
    result = []
    for number in range(count):
        order = make(
            id=number,
            customer=f"customer-{rng.randrange(5000)}",
            status=rng.randrange(4),
            scores=[rng.randrange(-50, 50) for _ in range(3)],
        )
        order.created_at.seconds, order.created_at.nanos = (
            1_767_000_000 + number,
            rng.randrange(1_000_000) * 1000,
        )
        order.address.city, order.address.zip = (
            rng.choice(("Paris", "Lyon", "Nice")),
            f"{rng.randrange(100_000):05}",
        )
        for _ in range(2):
            order.lines.add(
                sku=f"sku-{rng.randrange(1000)}",
                quantity=rng.randrange(1, 9),
                price=rng.randrange(10_000) / 100,
            )
        order.labels["channel"] = rng.choice(("web", "shop"))
        if number % 2:
            order.card = f"{rng.randrange(10**12):012}"
        else:
            order.invoice = rng.randrange(10**6)
        result.append(order.SerializeToString())
    return result


def random_file(rng: random.Random) -> descriptor_pb2.FileDescriptorProto:
    """A random file `r.proto` with the message `r.M0` that contains the others; no recursion, no empty
    messages."""
    syntax = rng.choice(("proto2", "proto3"))
    file = file_of("r.proto", "r", syntax)
    for number in range(2):
        enum = file.enum_type.add(name=f"E{number}")
        values = [0, *rng.sample(range(-5, 300), rng.randrange(0, 4))]
        for value in dict.fromkeys(values):
            enum.value.add(name=f"E{number}_{'N' if value < 0 else 'P'}{abs(value)}", number=value)
    count = rng.randrange(1, 5)
    for level in range(count):
        message = file.message_type.add(name=f"M{level}")
        below = [f".r.M{number}" for number in range(level + 1, count)]
        _random_fields(rng, message, f"r.M{level}", below, syntax)
    return file


def _random_fields(
    rng: random.Random, message: descriptor_pb2.DescriptorProto, scope: str, below: Sequence[str], syntax: str
) -> None:
    numbers = rng.sample([*range(1, 20), 100, 2047, 2048, 100_000, 536_870_911], rng.randrange(1, 9))
    if rng.random() < 0.4:
        message.oneof_decl.add(name="choice")
    members = 0
    for number in numbers:
        kind, type_name = _random_type(rng, below)
        name, shape = f"field_{number}", rng.random()
        if message.oneof_decl and members < 3 and shape < 0.4:
            members += 1
            field(message, name, number, kind, type_name=type_name, oneof=0)
        elif shape < 0.6:
            packable = kind not in (F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE)
            packed = rng.choice((None, True, False)) if packable else None
            field(message, name, number, kind, type_name=type_name, repeated=True, packed=packed)
        elif shape < 0.75:
            map_field(message, scope, name, number, rng.choice(MAP_KEYS), kind, type_name)
        else:
            field(message, name, number, kind, type_name=type_name)
    if message.oneof_decl and not members:
        field(message, "only", 20, F.TYPE_INT32, oneof=0)
    if syntax == "proto3":
        field(message, "maybe", 21, rng.choice(SCALARS), optional=True)


def _random_type(rng: random.Random, below: Sequence[str]) -> tuple[int, str]:
    dice = rng.random()
    if dice < 0.1:
        return F.TYPE_MESSAGE, TIMESTAMP
    if dice < 0.25:
        return F.TYPE_ENUM, f".r.E{rng.randrange(2)}"
    if dice < 0.45 and below:
        return F.TYPE_MESSAGE, rng.choice(below)
    return rng.choice(SCALARS), ""


_EDGES: dict[str, Sequence[Any]] = {
    "int32": (0, 1, -1, 2**31 - 1, -(2**31)),
    "int64": (0, 1, -1, 2**63 - 1, -(2**63)),
    "uint32": (0, 1, 2**32 - 1),
    "uint64": (0, 1, 2**63, 2**64 - 1),
    "float": (0.0, -0.0, 1.5, float("inf"), float("nan"), 1e-45),
    "double": (0.0, -0.0, 0.1, -float("inf"), float("nan"), 5e-324),
    "bool": (False, True),
    "string": ("", "a", "żółw\U0001f422", "\x00", "x" * 200),
    "bytes": (b"", b"\x00", b"\xff\xfe", b"y" * 200),
}
_EDGE_OF: dict[int, str] = {
    F.TYPE_DOUBLE: "double",
    F.TYPE_FLOAT: "float",
    F.TYPE_INT64: "int64",
    F.TYPE_UINT64: "uint64",
    F.TYPE_INT32: "int32",
    F.TYPE_FIXED64: "uint64",
    F.TYPE_FIXED32: "uint32",
    F.TYPE_BOOL: "bool",
    F.TYPE_STRING: "string",
    F.TYPE_BYTES: "bytes",
    F.TYPE_UINT32: "uint32",
    F.TYPE_SFIXED32: "int32",
    F.TYPE_SFIXED64: "int64",
    F.TYPE_SINT32: "int32",
    F.TYPE_SINT64: "int64",
}


def random_value(rng: random.Random, one: Any) -> Any:
    """A value of a scalar or enum field, often an edge."""
    if one.type == F.TYPE_ENUM:
        open_enum = not one.enum_type.is_closed
        return rng.choice(
            [*(value.number for value in one.enum_type.values), *((77, -7, 2**31 - 1) if open_enum else ())]
        )
    return rng.choice(_EDGES[_EDGE_OF[one.type]])


def fill(rng: random.Random, message: Any) -> None:
    """Set about half of the fields of a message (of any descriptor) at random."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        message.seconds = rng.choice((0, 1, -1, 1_767_000_000, 253_402_300_799, -62_135_596_800))
        message.nanos = rng.choice((0, 1000, 999_999_000, 123_456_789))
        return
    for one in message.DESCRIPTOR.fields:
        if rng.random() < 0.5:
            _fill_field(rng, message, one)


def _fill_field(rng: random.Random, message: Any, one: Any) -> None:
    is_message = one.type == F.TYPE_MESSAGE
    if is_message and one.message_type.GetOptions().map_entry:
        key, value = one.message_type.fields_by_number[1], one.message_type.fields_by_number[2]
        target = getattr(message, one.name)
        for _ in range(rng.randrange(4)):
            if value.type == F.TYPE_MESSAGE:
                fill(rng, target[random_value(rng, key)])
            else:
                target[random_value(rng, key)] = random_value(rng, value)
    elif one.is_repeated:
        target = getattr(message, one.name)
        for _ in range(rng.randrange(4)):
            if is_message:
                fill(rng, target.add())
            else:
                target.append(random_value(rng, one))
    elif is_message:
        child = getattr(message, one.name)
        child.SetInParent()
        fill(rng, child)
    else:
        setattr(message, one.name, random_value(rng, one))


def mutated(rng: random.Random, payload: bytes) -> bytes:
    """The payload with a small injury: cut, flipped, repeated, extended, or random from the start."""
    data = bytearray(payload)
    dice = rng.randrange(6)
    if dice == 0:
        return bytes(data[: rng.randrange(len(data) + 1)])
    if dice == 1 and data:
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        return bytes(data)
    if dice == 2:
        return payload + payload
    if dice == 3:
        return payload + rng.choice(
            (
                b"\x98\x3f\x01",
                b"\x0b\x0c",
                b"\x0b",
                b"\x0c",
                b"\x07",
                b"\x00\x00",
                b"\x80",
                b"\x12" + b"\xff" * 9 + b"\x01",
            )
        )
    if dice == 4 and data:
        at = rng.randrange(len(data))
        return bytes(data[:at] + data[at + 1 :])
    return rng.randbytes(rng.randrange(1, 40))


def payloads(rng: random.Random, make: Any, count: int, bad: float = 0.3) -> list[bytes | None]:
    """Random messages of a class, some injured, some null."""
    result: list[bytes | None] = []
    for _ in range(count):
        message = make()
        fill(rng, message)
        payload = message.SerializeToString()
        dice = rng.random()
        result.append(mutated(rng, payload) if dice < bad else None if dice > 0.96 else payload)
    return result

"""Random Protobuf schemas over everything the mapping covers, and random messages of them, as a producer
would write them.

Seeded: the same `random.Random` gives the same schema. Descriptors are built without `protoc`, which refuses
some names that other compilers let through; every schema that Protobuf's own library links is possible.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)

from archiver.schema.protobuf.descriptors import Envelope, Source
from tests.support.schema.protos import MAP_KEYS, SCALARS, F, message_class, random_value

Features = descriptor_pb2.FeatureSet

_FILES = [
    module.DESCRIPTOR
    for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
]
_HOMES = {message.full_name: file for file in _FILES for message in file.message_types_by_name.values()}
WELL_KNOWN: tuple[str, ...] = tuple(sorted(_HOMES))
OFTEN = ("google.protobuf.Timestamp", "google.protobuf.Struct")
"""Well-known types that come more often than others: there is more to them."""

ODD_NAMES = (
    *("__raw__", "__RAW__", "__prefix__", "__Prefix__", "__err__", "__unrecognized__", "__Unrecognized__"),
    *(
        "select",
        "order",
        "table",
        "group",
        "user",
        "Value",
        "value",
        "VALUE",
        "value_v2",
        "Value_v2",
        "key",
        "Key",
        "element",
    ),
    *("f1", "M0", "a" * 100, "_", "__", "x_1", "X_1", "x_1_v3", "r_ext_0"),
)
NUMBERS = (*range(1, 24), 100, 2047, 2048, 18_999, 20_000, 100_000, 536_870_911)
EXTENSION_NUMBERS = (*range(40, 50), 300_000, 536_870_910)
MESSAGES_MAX, FIELDS_MAX, ENUMS = 4, 11, 3
FILL_DEPTH_MAX = 9
"""Below this many levels messages are filled; deeper ones are for the mutations."""


@dataclass(frozen=True)
class Made:
    """A random schema."""

    source: Source
    file: descriptor_pb2.FileDescriptorProto
    make: Any
    """The producer's class of the message."""


def random_schema(rng: random.Random) -> Made:
    """A schema of the file `r.proto`, with the message `r.M0`; now and then with a well-known type itself."""
    file = _Maker(rng).file()
    files = descriptor_pb2.FileDescriptorSet()
    for name in file.dependency:
        known = next(one for one in _FILES if one.name == name)
        known.CopyToProto(files.file.add())
    files.file.append(file)
    envelope = None
    if rng.random() < 0.25:
        indexes = rng.choice(((0,), (0,), (1,), (2, 0), (300,)))
        envelope = Envelope(
            tuple((number, indexes) for number in sorted(rng.sample((1, 7, 258, 2**31), rng.randrange(1, 3))))
        )
    message, renamed = "r.M0", _renamed(rng, file)
    if file.dependency and rng.random() < 0.1:
        message, renamed = (
            rng.choice([name for name in WELL_KNOWN if _HOMES[name].name in file.dependency]),
            (),
        )
    source = Source(message, files.SerializeToString(), rng.choice((0, 1, 2, 2)), renamed, envelope)
    return Made(source, file, message_class(source))


def _renamed(rng: random.Random, file: descriptor_pb2.FileDescriptorProto) -> tuple[tuple[str, str], ...]:
    """Configured names for some fields of the outermost message."""
    fields = [one.name for one in file.message_type[0].field if not one.type_name]
    if rng.random() < 0.7 or not fields:
        return ()
    names = rng.sample(("renamed", "Amount_EUR", "order"), min(len(fields), rng.randrange(1, 3)))
    return tuple(sorted(zip(rng.sample(fields, len(names)), names, strict=True)))


class _Maker:
    """Builds one file."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._syntax = rng.choice(("proto2", "proto3", "editions", "editions"))
        self._file = descriptor_pb2.FileDescriptorProto(name="r.proto", package="r", syntax=self._syntax)
        if self._syntax == "editions":
            self._file.edition = rng.choice((descriptor_pb2.EDITION_2023, descriptor_pb2.EDITION_2024))
            self._features(self._file.options.features, 0.3)
        self._recursive = rng.random() < 0.35
        self._closed: dict[str, bool] = {}

    def file(self) -> descriptor_pb2.FileDescriptorProto:
        """The file."""
        for number in range(ENUMS):
            self._enum(f"E{number}", zero_first=number == 0)
        count = self._rng.randrange(1, MESSAGES_MAX + 1)
        for level in range(count):
            self._message(level, count)
        if self._rng.random() < 0.3:
            self._file.message_type.add(name="Nothing")
        self._extensions()
        for message in self._file.message_type:
            for one in message.field:
                one.json_name = f"j{one.number}"  # made from odd names they would clash
        return self._file

    def _features(self, features: Any, share: float, of_field: bool = False) -> None:
        """Set some of the features that change the wire."""
        rng = self._rng
        if rng.random() < share:
            features.repeated_field_encoding = rng.choice((Features.PACKED, Features.EXPANDED))
        if rng.random() < share:
            features.utf8_validation = rng.choice((Features.VERIFY, Features.NONE))
        if rng.random() < share:
            features.message_encoding = rng.choice((Features.LENGTH_PREFIXED, Features.DELIMITED))
        if not of_field and rng.random() < share:
            features.field_presence = rng.choice((Features.EXPLICIT, Features.IMPLICIT))

    def _enum(self, name: str, zero_first: bool) -> None:
        rng = self._rng
        enum = self._file.enum_type.add(name=name)
        closed = self._syntax == "proto2" or (self._syntax == "editions" and rng.random() < 0.5)
        if self._syntax == "editions":
            enum.options.features.enum_type = Features.CLOSED if closed else Features.OPEN
        self._closed[name] = closed
        first = rng.choice((0, 3, -2)) if closed and not zero_first else 0
        numbers = [first, *rng.sample((-(2**31), -5, -1, 1, 2, 5, 77, 2**31 - 1), rng.randrange(4))]
        for place, number in enumerate(dict.fromkeys(numbers)):
            enum.value.add(name=f"{name}_{place}", number=number)
        if rng.random() < 0.4:
            enum.options.allow_alias = True
            enum.value.add(name=f"{name}_again", number=first)

    def _message(self, level: int, count: int) -> None:
        rng, message = self._rng, self._file.message_type.add(name=f"M{level}")
        others = [f".r.M{number}" for number in range(0 if self._recursive else level + 1, count)]
        numbers = rng.sample(NUMBERS, rng.randrange(0 if level else 4, FIELDS_MAX))
        names = rng.sample([*ODD_NAMES, *(f"field_{number}" for number in range(30))], len(numbers))
        if len(numbers) > 2 and rng.random() < 0.5:
            message.oneof_decl.add(name="choice")
            for number, name in zip(numbers[:3], names[:3], strict=True):
                self._single(message, name, number, others, oneof=True)
            numbers, names = numbers[3:], names[3:]
        for number, name in zip(numbers, names, strict=True):
            dice = rng.random()
            if dice < 0.25:
                self._repeated(message.field.add(name=name, number=number), others)
            elif dice < 0.48:
                self._map(message, name, number, others)
            else:
                self._single(message, name, number, others)
        if self._syntax != "proto3" and rng.random() < 0.6:
            message.extension_range.add(start=40, end=50)
            message.extension_range.add(start=300_000, end=300_001)
            message.extension_range.add(start=536_870_910, end=536_870_911)

    def _typed(self, field: Any, others: Sequence[str], in_map: bool = False) -> None:
        """Give the field a type."""
        rng = self._rng
        dice = rng.random()
        if dice < 0.2:
            name = rng.choice((*WELL_KNOWN, *OFTEN))
            self._import(_HOMES[name].name)
            field.type, field.type_name = F.TYPE_MESSAGE, f".{name}"
        elif dice < 0.32:
            field.type, field.type_name = F.TYPE_ENUM, f".r.E{0 if in_map else rng.randrange(ENUMS)}"
        elif dice < 0.55 and others:
            group = self._syntax == "proto2" and not in_map and rng.random() < 0.3
            field.type, field.type_name = F.TYPE_GROUP if group else F.TYPE_MESSAGE, rng.choice(others)
        else:
            field.type = rng.choice(SCALARS)
        if self._syntax == "editions" and not in_map:
            self._features_of(field)

    def _features_of(self, field: Any) -> None:
        """Features that the field may have. A closed enum cannot be without presence, nor can a message."""
        self._features(field.options.features, 0.15, of_field=True)
        if (
            field.label == F.LABEL_REPEATED
            or field.HasField("oneof_index")
            or field.extendee
            or field.type == F.TYPE_MESSAGE
        ):
            return
        explicit = field.type == F.TYPE_ENUM and self._closed[field.type_name[3:]]
        if explicit or self._rng.random() < 0.3:
            choices = (
                (Features.EXPLICIT, Features.LEGACY_REQUIRED)
                if explicit
                else (Features.EXPLICIT, Features.IMPLICIT)
            )
            field.options.features.field_presence = self._rng.choice(choices)

    def _single(
        self, message: Any, name: str, number: int, others: Sequence[str], oneof: bool = False
    ) -> None:
        field = message.field.add(name=name, number=number, label=F.LABEL_OPTIONAL)
        if oneof:
            field.oneof_index = 0
        self._typed(field, others)
        if oneof:
            return
        if self._syntax == "proto2" and self._rng.random() < 0.15:
            field.label = F.LABEL_REQUIRED
        elif self._syntax == "proto2" and field.type == F.TYPE_INT32:
            field.default_value = "42"
        elif self._syntax == "proto3" and self._rng.random() < 0.3:
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_hidden_{number}")

    def _repeated(self, field: Any, others: Sequence[str]) -> None:
        field.label = F.LABEL_REPEATED
        self._typed(field, others)
        packable = field.type not in (F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE, F.TYPE_GROUP)
        if packable and self._syntax != "editions" and self._rng.random() < 0.6:
            field.options.packed = self._rng.random() < 0.5

    def _map(self, message: Any, name: str, number: int, others: Sequence[str]) -> None:
        entry = message.nested_type.add(name=f"Entry{number}")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=F.LABEL_OPTIONAL, type=self._rng.choice(MAP_KEYS))
        self._typed(entry.field.add(name="value", number=2, label=F.LABEL_OPTIONAL), others, in_map=True)
        type_name = f".r.{message.name}.{entry.name}"
        message.field.add(
            name=name, number=number, label=F.LABEL_REPEATED, type=F.TYPE_MESSAGE, type_name=type_name
        )

    def _extensions(self) -> None:
        rng = self._rng
        open_messages = [message for message in self._file.message_type if message.extension_range]
        used: set[tuple[str, int]] = set()
        for place in range(rng.randrange(5) if open_messages else 0):
            target, number = rng.choice(open_messages), rng.choice(EXTENSION_NUMBERS)
            if (target.name, number) in used:
                continue
            used.add((target.name, number))
            home = rng.choice((self._file, rng.choice(self._file.message_type)))
            field = home.extension.add(
                name=f"ext_{place}", number=number, label=F.LABEL_OPTIONAL, extendee=f".r.{target.name}"
            )
            others = [
                f".r.{message.name}"
                for message in self._file.message_type
                if self._recursive or message.name > target.name
            ]
            if rng.random() < 0.3:
                self._repeated(field, others)
            else:
                self._typed(field, others)

    def _import(self, name: str) -> None:
        if name not in self._file.dependency:
            self._file.dependency.append(name)


def fields_of(descriptor: Any) -> list[Any]:
    """The fields of a message with its extensions, by number."""
    extensions = descriptor.file.pool.FindAllExtensions(descriptor) if descriptor.is_extendable else []
    return sorted([*descriptor.fields, *extensions], key=lambda one: one.number)


def fill(rng: random.Random, message: Any, depth: int = 0) -> None:
    """Set about half of the fields of a message (of any descriptor) at random; fewer, the deeper it
    stands."""
    name = message.DESCRIPTOR.full_name
    if name == "google.protobuf.Timestamp":
        message.seconds = rng.choice((0, 1, -1, 1_767_000_000, 253_402_300_799, -62_135_596_800))
        message.nanos = rng.choice(
            (0, 1000, 999_999_000, 123_456_789) if rng.random() < 0.3 else (0, 1000, 5_000_000)
        )
        return
    if name == "google.protobuf.Any":
        message.type_url = rng.choice(("", "type.googleapis.com/r.M0"))
        message.value = rng.choice((b"", b"\x08\x01", b"\xff"))
        return
    share = 0.5 if depth < 3 else 0.25
    for one in fields_of(message.DESCRIPTOR):
        is_message = one.message_type is not None and not one.message_type.GetOptions().map_entry
        if rng.random() < (share if (depth < FILL_DEPTH_MAX and is_message) or not is_message else 0.0):
            _fill_field(rng, message, one, depth + 1)


def _fill_field(rng: random.Random, message: Any, one: Any, depth: int) -> None:
    if one.is_repeated:
        target = message.Extensions[one] if one.is_extension else getattr(message, one.name)
        entry = one.message_type
        for _ in range(rng.randrange(4)):
            if entry is not None and entry.GetOptions().map_entry:
                key, value = random_value(rng, entry.fields_by_number[1]), entry.fields_by_number[2]
                if value.message_type is None:
                    target[key] = random_value(rng, value)
                elif depth < FILL_DEPTH_MAX:
                    fill(rng, target[key], depth)
            elif entry is not None:
                fill(rng, target.add(), depth)
            else:
                target.append(random_value(rng, one))
    elif one.message_type is not None:
        child = message.Extensions[one] if one.is_extension else getattr(message, one.name)
        child.SetInParent()
        fill(rng, child, depth)
    elif one.is_extension:
        message.Extensions[one] = random_value(rng, one)
    else:
        setattr(message, one.name, random_value(rng, one))

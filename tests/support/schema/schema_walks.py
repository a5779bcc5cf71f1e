"""Schemas that change at random: a seeded walk in which each message type is one change away from the last.

The root message keeps its name; the messages inside it, enums and everything in them change. The types do not
hold themselves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from google.protobuf import descriptor_pb2

from archiver.schema.protobuf.descriptors import Source
from tests.support.schema.protos import (
    MAP_KEYS,
    SCALARS,
    TIMESTAMP,
    F,
    descriptor_set,
    file_of,
    map_entry,
    map_field,
)
from tests.support.schema.protos import field as add_field

PACKAGE = "walk"
ROOT = "Root"
LEVELS = (("Root",), ("Mid", "Other"), ("Leaf", "Twig"))
"""A message holds only messages of the levels below."""
WORDS = (
    "price",
    "amount",
    "city",
    "note",
    "code",
    "Price",
    "items",
    "state",
    "sku",
    "Note",
    "__raw__",
    "price_v2",
)
FIELDS_MAX = 8
NUMBER_MAX = 24

_WIDER = {
    F.TYPE_INT32: F.TYPE_INT64,
    F.TYPE_SINT32: F.TYPE_SINT64,
    F.TYPE_SFIXED32: F.TYPE_SFIXED64,
    F.TYPE_FLOAT: F.TYPE_DOUBLE,
}
_NARROWER = {wide: narrow for narrow, wide in _WIDER.items()}


@dataclass(frozen=True)
class Kind:
    """What stands in a field."""

    scalar: int | None = None
    """A Protobuf scalar, or None for one of the next two."""
    enum: str | None = None
    message: str | None = None
    """A message of ours, or Timestamp's full name with a dot before it."""


@dataclass(frozen=True)
class Field:
    """One field of a message."""

    name: str
    number: int
    kind: Kind
    shape: str = "single"
    """single, optional, repeated, unpacked, map or oneof."""
    key: int | None = None


@dataclass
class Model:
    """Everything in the file."""

    messages: dict[str, list[Field]] = field(default_factory=dict)
    gone: dict[str, list[Field]] = field(default_factory=dict)
    """Fields that were removed, or had another type before."""
    enums: dict[str, dict[int, str]] = field(default_factory=dict)

    def copy(self) -> Model:
        """Another one with the same content."""
        messages, gone = (
            {name: list(fields) for name, fields in one.items()} for one in (self.messages, self.gone)
        )
        return Model(messages, gone, {name: dict(values) for name, values in self.enums.items()})

    @property
    def repeats_an_entry(self) -> bool:
        """Whether a message has maps like `note` and `Note`: Protobuf derives the same name for both entries."""
        for fields in self.messages.values():
            entries = [map_entry(one.name) for one in fields if one.shape == "map"]
            if len(set(entries)) < len(entries):
                return True
        return False

    def file(self) -> descriptor_pb2.FileDescriptorProto:
        """The file as Protobuf has it."""
        file = file_of("walk.proto", PACKAGE)
        for name, values in self.enums.items():
            enum = file.enum_type.add(name=name)
            for number, value in sorted(values.items()):
                enum.value.add(name=value, number=number)
        for name, fields in self.messages.items():
            _render(file.message_type.add(name=name), fields)
        return file


def walk(seed: int, changes: int) -> Iterator[Source]:
    """A first schema and as many that follow it, each of them one change away from the one before; message
    `walk.Root`."""
    for file in walk_files(seed, changes):
        yield Source(f"{PACKAGE}.{ROOT}", descriptor_set(file))


def walk_files(seed: int, changes: int) -> Iterator[descriptor_pb2.FileDescriptorProto]:
    """The same as files without what they import."""
    rng = random.Random(seed)
    model = _first(rng)
    while model.repeats_an_entry:
        model = _first(rng)
    yield model.file()
    done = 0
    while done < changes:
        changed = model.copy()
        name = rng.choice(_in_use(changed))
        rng.choice(_CHANGES)(rng, changed, name)
        if changed.file() != model.file() and not changed.repeats_an_entry:
            model, done = changed, done + 1
            yield model.file()


def _first(rng: random.Random) -> Model:
    model = Model(
        enums={name: {0: f"{name.upper()}_NONE", 1: f"{name.upper()}_ONE"} for name in ("Color", "Size")}
    )
    for level in LEVELS:
        for name in level:
            model.messages[name], model.gone[name] = [], []
    for name in model.messages:
        for _ in range(3):
            _add(rng, model, name)
    for name in LEVELS[1]:
        _put(
            model,
            ROOT,
            Field(
                name.lower(),
                _free_number(rng, model, ROOT),
                Kind(message=name),
                rng.choice(("single", "repeated")),
            ),
        )
    return model


def _in_use(model: Model) -> list[str]:
    """Messages that the root reaches."""
    found, left = [ROOT], [ROOT]
    while left:
        for one in model.messages[left.pop()]:
            inner = one.kind.message
            if inner is not None and inner != TIMESTAMP and inner not in found:
                found.append(inner)
                left.append(inner)
    return found


def _kind(rng: random.Random, name: str) -> Kind:
    below = [
        inner
        for level in LEVELS[1 + next(at for at, level in enumerate(LEVELS) if name in level) :]
        for inner in level
    ]
    dice = rng.random()
    if dice < 0.25 and below:
        return Kind(message=rng.choice(below))
    if dice < 0.35:
        return Kind(message=TIMESTAMP)
    if dice < 0.45:
        return Kind(enum=rng.choice(("Color", "Size")))
    return Kind(scalar=rng.choice(SCALARS))


def _shaped(rng: random.Random, one: Field) -> Field:
    shape = rng.choice(("single", "single", "optional", "repeated", "unpacked", "map", "oneof"))
    return replace(one, shape=shape, key=rng.choice(MAP_KEYS) if shape == "map" else None)


def _free_number(rng: random.Random, model: Model, name: str) -> int:
    used = {one.number for one in model.messages[name]}
    return rng.choice([number for number in range(1, NUMBER_MAX + 1) if number not in used])


def _put(model: Model, name: str, one: Field) -> None:
    """Add or replace by number; a name that is taken gets a number behind it."""
    others = [other for other in model.messages[name] if other.number != one.number]
    taken = {other.name for other in others}
    model.gone[name] += [
        other for other in model.messages[name] if other.number == one.number and other != one
    ]
    while one.name in taken:
        one = replace(one, name=f"{one.name.strip('_')}{one.number}")
    model.messages[name] = sorted([*others, one], key=lambda other: other.number)


def _picked(rng: random.Random, model: Model, name: str) -> Field | None:
    return rng.choice(model.messages[name]) if model.messages[name] else None


def _add(rng: random.Random, model: Model, name: str) -> None:
    if len(model.messages[name]) < FIELDS_MAX:
        one = Field(rng.choice(WORDS), _free_number(rng, model, name), _kind(rng, name))
        _put(model, name, _shaped(rng, one))


def _remove(rng: random.Random, model: Model, name: str) -> None:
    if len(model.messages[name]) > 1:
        one = rng.choice(model.messages[name])
        model.messages[name].remove(one)
        model.gone[name].append(one)


def _add_again(rng: random.Random, model: Model, name: str) -> None:
    used = {one.number for one in model.messages[name]}
    gone = [one for one in model.gone[name] if one.number not in used]
    if gone:
        one = rng.choice(gone)
        _put(model, name, one if rng.random() < 0.6 else replace(one, kind=_kind(rng, name)))


def _rename(rng: random.Random, model: Model, name: str) -> None:
    one = _picked(rng, model, name)
    if one is not None:
        _put(
            model, name, replace(one, name=rng.choice((*WORDS, *(other.name for other in model.gone[name]))))
        )


def _swap_names(rng: random.Random, model: Model, name: str) -> None:
    if len(model.messages[name]) > 1:
        a, b = rng.sample(model.messages[name], 2)
        others = [one for one in model.messages[name] if one not in (a, b)]
        model.messages[name] = sorted(
            [*others, replace(a, name=b.name), replace(b, name=a.name)], key=lambda one: one.number
        )


def _move(rng: random.Random, model: Model, name: str) -> None:
    one = _picked(rng, model, name)
    if one is not None:
        number = _free_number(rng, model, name)
        model.messages[name].remove(one)
        model.gone[name].append(one)
        _put(model, name, replace(one, number=number))


def _retype(kinds: dict[Any, Any]) -> Callable[[random.Random, Model, str], None]:
    def change(rng: random.Random, model: Model, name: str) -> None:
        fitting = [one for one in model.messages[name] if one.kind.scalar in kinds]
        if fitting:
            one = rng.choice(fitting)
            _put(model, name, replace(one, kind=Kind(scalar=kinds[one.kind.scalar])))

    return change


def _other_type(rng: random.Random, model: Model, name: str) -> None:
    one = _picked(rng, model, name)
    if one is not None:
        _put(model, name, replace(one, kind=_kind(rng, name)))


def _former_type(rng: random.Random, model: Model, name: str) -> None:
    one = _picked(rng, model, name)
    former = [other for other in model.gone[name] if one is not None and other.number == one.number]
    if one is not None and former:
        _put(model, name, replace(rng.choice(former), name=one.name))


def _other_shape(rng: random.Random, model: Model, name: str) -> None:
    one = _picked(rng, model, name)
    if one is not None:
        _put(model, name, _shaped(rng, one))


def _grow_enum(rng: random.Random, model: Model, name: str) -> None:
    del name
    enum = rng.choice(sorted(model.enums))
    values = model.enums[enum]
    if rng.random() < 0.7 or len(values) < 3:
        number = max(values) + 1
        values[number] = f"{enum.upper()}_{number}"
    else:
        number = rng.choice([one for one in values if one])
        values[number] = f"{values[number]}_X"


def _swap_message(rng: random.Random, model: Model, name: str) -> None:
    inner = [one for one in model.messages[name] if one.kind.message in (*LEVELS[1], *LEVELS[2])]
    if inner:
        one = rng.choice(inner)
        level = next(level for level in LEVELS if one.kind.message in level)
        _put(
            model,
            name,
            replace(one, kind=Kind(message=next(other for other in level if other != one.kind.message))),
        )


_CHANGES: tuple[Callable[[random.Random, Model, str], None], ...] = (
    _add,
    _add,
    _remove,
    _add_again,
    _rename,
    _swap_names,
    _move,
    _retype(_WIDER),
    _retype(_NARROWER),
    _other_type,
    _former_type,
    _other_shape,
    _grow_enum,
    _swap_message,
)


def _render(message: descriptor_pb2.DescriptorProto, fields: list[Field]) -> None:
    if any(one.shape == "oneof" for one in fields):
        message.oneof_decl.add(name="choice")
    for one in fields:
        kind: Any = one.kind.scalar or (F.TYPE_ENUM if one.kind.enum else F.TYPE_MESSAGE)
        named = one.kind.enum or one.kind.message
        type_name = "" if named is None else named if named.startswith(".") else f".{PACKAGE}.{named}"
        packable = kind not in (F.TYPE_STRING, F.TYPE_BYTES, F.TYPE_MESSAGE)
        if one.shape == "map":
            assert one.key is not None
            map_field(message, f"{PACKAGE}.{message.name}", one.name, one.number, one.key, kind, type_name)
        elif one.shape in ("repeated", "unpacked"):
            packed = False if one.shape == "unpacked" and packable else None
            add_field(message, one.name, one.number, kind, type_name=type_name, repeated=True, packed=packed)
        elif one.shape == "oneof":
            add_field(message, one.name, one.number, kind, type_name=type_name, oneof=0)
        else:
            optional = one.shape == "optional" and kind != F.TYPE_MESSAGE
            add_field(message, one.name, one.number, kind, type_name=type_name, optional=optional)

"""A registry subject as a schema source: its newest schema with all references, and the ids of all its
versions.

This module parses serialized schemas, maps references to files, chooses the topic's message, and finds the
schema id and message indexes of its records. `Fetch` is the interface of all schema sources. The ids are
complete as of a moment after the call began: no earlier accepted record can have another id. The number,
depth and bytes of references are bounded, and so is the total time.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from archiver.config.settings import ConfluentSettings, SchemaSettings
from archiver.registry.avro_subjects import AVRO, AvroSubjects
from archiver.registry.client import PROTOBUF, Reference, Registered, RegistryClient
from archiver.registry.compile import ProtoCompiler, builtin_descriptors
from archiver.registry.json_subjects import JSON, JsonSubjects
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ConfigInvalid, NotFound
from archiver.runtime.redaction import excerpt
from archiver.schema.evolution.state import SourceSchema
from archiver.schema.protobuf.descriptors import Envelope, Source, make_source


@dataclass(frozen=True)
class Fetched:
    """The newest schema of a topic's keys or values."""

    source: Source
    note: str | None = None
    """A note for operators, for example that the registry is down and the last known schema is in use."""
    complete: bool = True
    """Whether `source.envelope` has every id of an accepted record. If not, a record with an unknown id waits
    and is no error."""
    newest_id: int | None = None
    """The registry's id of the newest schema, for writers of envelopes; `source.envelope` has its indexes.
    None if unknown."""


class Fetch(Protocol):
    """Fetches schemas from the configured source."""

    def __call__(self, settings: SchemaSettings, known: SourceSchema | None) -> Fetched:
        """The newest schema; `known` is the schema in the ledger.

        Raises `ConfigInvalid` if the configured source is wrong, missing or refused. Raises `RetryLater` if
        the source is unavailable and the topic must wait.
        """
        ...


# --- Serialized schemas: base64 of a FileDescriptorProto
ELEMENTS_MAX = 100_000
"""Messages, fields and enum values that one serialized schema may declare. Each can take 100 bytes of memory
for 2 bytes of the schema."""
_DEPTH_MAX = 64
# Possessive quantifiers: a long text that does not match must not cause backtracking.
_BASE64 = re.compile(rb"[A-Za-z0-9+/\s]++={0,2}+\s*+")
"""Matches no `.proto` text with a declaration: each has a semicolon or a brace."""
_LENGTH_DELIMITED = 2

File = descriptor_pb2.FileDescriptorProto


def is_serialized(text: bytes) -> bool:
    """Whether a registered schema is base64 and not the text of a `.proto` file."""
    return _BASE64.fullmatch(text) is not None


def parse_serialized(text: bytes, name: str, where: str) -> File:
    """Parse a text for which `is_serialized` holds, under the import name `name`.

    Raises `ConfigInvalid`; its message begins with `where`.
    """
    try:
        # Encoders may break the text into lines.
        data = base64.b64decode(b"".join(text.split()), validate=True)
        # Before the parser, which allocates far more memory than the schema has bytes.
        _check(data, File.DESCRIPTOR)
        file = File.FromString(data)
    except (binascii.Error, DecodeError, ValueError) as error:
        raise ConfigInvalid(
            f"{where} is neither the text of a .proto file nor base64 of a FileDescriptorProto: {error}"
        ) from error
    # The name inside is the producer's. Other schemas import the file by the name of their reference.
    file.name = name
    file.ClearField("source_code_info")
    return file


def complete_set(files: Mapping[str, File], root: str, where: str) -> bytes:
    """The descriptor set of `root` with all its imports, from `files` and the built-in files. Raises
    `ConfigInvalid`.
    """
    result = descriptor_pb2.FileDescriptorSet()
    seen = {root}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        # A reference takes precedence over the built-in file of the same name.
        file = files.get(name) or builtin_descriptors()[name]
        result.file.add().CopyFrom(file)
        for imported in file.dependency:
            if imported not in files and imported not in builtin_descriptors():
                raise ConfigInvalid(
                    f"{where}: {name} imports {excerpt(imported)!r}, for which there is no reference; "
                    "register the schema again with one"
                )
            if imported not in seen:
                seen.add(imported)
                waiting.append(imported)
    return result.SerializeToString()


def _check(data: bytes, top: Descriptor) -> None:
    """Raise `ValueError` if a serialized message has too many messages, too deep nesting, or a string that is
    not UTF-8.
    """
    found = 0
    waiting: list[tuple[Descriptor, int, int, int]] = [(top, 0, len(data), 0)]
    while waiting:
        descriptor, at, end, depth = waiting.pop()
        while at < end:
            tag, at = _varint(data, at, end)
            wire = tag & 7
            if wire == _LENGTH_DELIMITED:
                length, at = _varint(data, at, end)
                if length > end - at:
                    raise ValueError("it is cut off")
                field = descriptor.fields_by_number.get(tag >> 3)
                if field is not None and field.type == FieldDescriptor.TYPE_STRING:
                    # The Protobuf library accepts other bytes in a string, and then returns bytes for a name.
                    data[at : at + length].decode("utf-8")
                if field is not None and field.message_type is not None:
                    found += 1
                    if found > ELEMENTS_MAX:
                        raise ValueError(f"it declares more than {ELEMENTS_MAX:,} elements")
                    if depth >= _DEPTH_MAX:
                        raise ValueError(f"it is nested deeper than {_DEPTH_MAX} levels")
                    # A list instead of recursion, because the data decides the depth.
                    waiting.append((field.message_type, at, at + length, depth + 1))
                at += length
            else:
                at = _passed(data, wire, at, end)


def _passed(data: bytes, wire: int, at: int, end: int) -> int:
    """The position after a value that is not length-delimited."""
    if wire == 0:
        return _varint(data, at, end)[1]
    size = {1: 8, 5: 4}.get(wire)
    # Groups, which no descriptor has, or a wire type that does not exist.
    if size is None:
        raise ValueError(f"it has a field of wire type {wire}")
    return at + size


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("it is cut off")


# --- Subjects and their references
_INDEXES_CACHED_MAX = 100_000
_PLAIN = re.compile(r"[^A-Za-z0-9._-]")

Indexes = tuple[int, ...]


class SubjectSource:
    """Fetches subjects as schema sources."""

    def __init__(
        self, settings: ConfluentSettings, client: RegistryClient, compiler: ProtoCompiler, clock: Clock
    ) -> None:
        self._settings = settings
        self._client = client
        self._avro = AvroSubjects(settings, client)
        self._json = JsonSubjects(settings, client)
        self._compiler = compiler
        self._clock = clock
        self._lock = threading.Lock()
        self._indexes: OrderedDict[tuple[int, bytes, str], Indexes] = OrderedDict()
        """By schema id, digest of the text and message. The digest is needed because a reinstalled registry
        reuses ids."""

    def fetch(self, settings: SchemaSettings, known: SourceSchema | None) -> tuple[Source, int]:
        """The newest schema of `settings.subject`, and its id.

        `known` is the schema in the ledger. Its ids stay valid even if their versions have been hard-deleted.
        Raises `RetryLater` if the registry is not reached in time, `ConfigInvalid` for every fault of the
        registry or the schemas.
        """
        subject = settings.subject or ""
        until_s = self._clock.monotonic_s() + self._settings.fetch_timeout
        try:
            newest = self._client.latest(subject, until_s)
            numbers = self._client.versions(subject, until_s)
            # The highest version is soft-deleted, or new. If it has changed, the subject's cache is invalid.
            if numbers and numbers[-1] != newest.version:
                # It may have been hard-deleted since.
                with contextlib.suppress(NotFound):
                    self._client.refresh(subject, numbers[-1], until_s)
        except NotFound as error:
            raise ConfigInvalid(
                f"{error}; register a schema under the subject {subject}, or correct `subject`"
            ) from error
        if newest.kind == AVRO:
            return self._avro.source(settings, known, newest, numbers, until_s), newest.id
        if newest.kind == JSON:
            return self._json.source(settings, known, newest, numbers, until_s), newest.id
        if newest.kind != PROTOBUF:
            raise ConfigInvalid(
                f"{newest.label} is of the type {excerpt(newest.kind, 40)}; only PROTOBUF, AVRO and JSON can "
                "be archived with a schema"
            )
        data = self._compiled(newest, until_s)
        home = _root_file(data, _root_name(newest))
        message = _message(home, settings.message, known, newest)
        indexes = message_indexes(home, message)
        if not indexes:
            raise ConfigInvalid(
                f"{newest.label} does not declare the message {message} itself, so no envelope can name it"
            )
        ids: dict[int, Indexes] = {}
        is_known = known is not None and (known.message, known.format) == (message, "protobuf")
        if is_known and known is not None and known.envelope is not None:
            # Records of a version that was deleted for good may still arrive, so the ledger's ids stay.
            ids.update(known.envelope.ids)
        ids[newest.id] = indexes
        for number in numbers:
            self._add(ids, subject, number, message, until_s)
        envelope = Envelope(tuple(sorted(ids.items())))
        # A later schema may lack a renamed field, about which `decide` decides.
        columns = tuple(settings.columns.items()) if known is None else ()
        return make_source(
            data, message, newest.label, settings.recursion_depth, columns, envelope
        ), newest.id

    def _add(self, ids: dict[int, Indexes], subject: str, number: int, message: str, until_s: float) -> None:
        """Add the id of one version with its message indexes; empty indexes if it lacks the message."""
        try:
            found = self._client.version(subject, number, until_s)
        except NotFound:
            # The version was hard-deleted between two requests.
            return
        # Ids of the ledger need no compilation.
        if found.id not in ids:
            ids[found.id] = self._found_indexes(found, message, until_s)

    def _found_indexes(self, found: Registered, message: str, until_s: float) -> Indexes:
        key = found.id, hashlib.sha256(found.text).digest(), message
        with self._lock:
            if key in self._indexes:
                return self._indexes[key]
        # Not under the lock, because it can take seconds. Two threads may compile the same version.
        indexes = self._compiled_indexes(found, message, until_s)
        with self._lock:
            self._indexes[key] = indexes
            # The oldest entry goes first; it can be computed again.
            if len(self._indexes) > _INDEXES_CACHED_MAX:
                self._indexes.popitem(last=False)
        return indexes

    def _compiled_indexes(self, found: Registered, message: str, until_s: float) -> Indexes:
        # Empty indexes: the id is known, and a record with it is a decode error.
        if found.kind != PROTOBUF:
            return ()
        try:
            data = self._compiled(found, until_s)
        except ConfigInvalid:
            # A version that does not compile halts the topic, unless an operator has withdrawn it.
            if self._client.is_deleted(found, until_s):
                return ()
            raise
        return message_indexes(_root_file(data, _root_name(found)), message)

    def _compiled(self, registered: Registered, until_s: float) -> bytes:
        """The descriptor set of a version with all its references."""
        root = _root_name(registered)
        texts = _Closure(self._client, self._settings, until_s).of(registered, root)
        described = {
            name: parse_serialized(
                text, name, registered.label if name == root else f"{registered.label}: its reference {name}"
            )
            for name, text in texts.items()
            if is_serialized(text)
        }
        # Nothing is left to compile, so the compiler need not be installed.
        if len(described) == len(texts):
            return complete_set(described, root, registered.label)
        left = {name: text for name, text in texts.items() if name not in described}
        return self._compiler.texts([left], [root], registered.label, described)


class _Closure:
    """The texts of one schema and of all its references."""

    def __init__(self, client: RegistryClient, settings: ConfluentSettings, until_s: float) -> None:
        self._client = client
        self._settings = settings
        self._until_s = until_s
        self._texts: dict[str, bytes] = {}
        self._owners: dict[str, Reference] = {}
        self._count = 0
        self._bytes = 0

    def of(self, registered: Registered, root: str) -> dict[str, bytes]:
        """By import name. Raises `ConfigInvalid`, `RetryLater`."""
        self._keep(root, registered.text, registered)
        self._follow(registered, (registered,))
        return self._texts

    def _follow(self, registered: Registered, above: tuple[Registered, ...]) -> None:
        """Follow references depth first, each of them once."""
        if registered.references and len(above) > self._settings.depth_max:
            raise ConfigInvalid(
                f"{above[0].label} refers to schemas more than {self._settings.depth_max} deep "
                "(schema_registry.confluent.depth_max)"
            )
        for reference in registered.references:
            name = _import_name(reference, registered)
            owner = self._owners.get(name)
            # Checked along the path only: two branches may refer to the same schema.
            passed = [
                one for one in above if (one.subject, one.version) == (reference.subject, reference.version)
            ]
            if passed:
                circle = " -> ".join(one.label for one in (*above[above.index(passed[0]) :], passed[0]))
                raise ConfigInvalid(f"{above[0].label} refers to itself in a circle: {circle}")
            if owner is not None and (owner.subject, owner.version) == (reference.subject, reference.version):
                continue
            found = self._found(reference, registered)
            # Different versions with equal text are the same file.
            if owner is not None and self._texts[name] != found.text:
                raise ConfigInvalid(
                    f"{above[0].label} imports {name} twice, as version {owner.version} of subject "
                    f"{owner.subject} and as {found.label}, "
                    "which differ; refer to one of them everywhere"
                )
            self._owners[name] = reference
            self._keep(name, found.text, above[0])
            self._follow(found, (*above, found))

    def _found(self, reference: Reference, referring: Registered) -> Registered:
        # Counted before the request, so that references bound the number of requests.
        self._count += 1
        if self._count > self._settings.references_max:
            raise ConfigInvalid(
                f"{referring.label} and what it refers to have more than "
                f"{self._settings.references_max} references "
                "(schema_registry.confluent.references_max)"
            )
        try:
            found = self._client.version(reference.subject, reference.version, self._until_s)
        except NotFound as error:
            raise ConfigInvalid(
                f"{referring.label} refers to version {reference.version} of subject "
                f"{reference.subject}, which is not there: {error}"
            ) from error
        if found.kind != PROTOBUF:
            raise ConfigInvalid(
                f"{referring.label} refers to {found.label}, which is of the type "
                f"{excerpt(found.kind, 40)} and not PROTOBUF"
            )
        return found

    def _keep(self, name: str, text: bytes, top: Registered) -> None:
        self._bytes += len(text)
        if self._bytes > self._settings.schema_bytes_max:
            raise ConfigInvalid(
                f"{top.label} and what it refers to are larger than "
                f"{self._settings.schema_bytes_max:,} bytes "
                "(schema_registry.confluent.schema_bytes_max)"
            )
        self._texts[name] = text


def _import_name(reference: Reference, referring: Registered) -> str:
    """The name of a reference, checked to be a relative path below a folder."""
    name = reference.name
    # The compiler gets each text as a file of this name, which must stay inside its folder.
    parts = name.split("/")
    if (
        not name.isprintable()
        or {"", ".", ".."} & set(parts)
        # The longest file name of common file systems.
        or any(len(part.encode()) > 255 for part in parts)
        or "\\" in name
    ):
        raise ConfigInvalid(
            f"{referring.label} has a reference with the name {excerpt(name, 80)!r}, which is not a file "
            "name to import"
        )
    if name == _root_name(referring):
        raise ConfigInvalid(
            f"{referring.label} has a reference with the name {name!r}, which is reserved for the "
            "schema itself; "
            "rename the import"
        )
    return name


def _root_name(registered: Registered) -> str:
    """The file name of a subject's own schema: stable per subject, in a folder name that imports do not
    use.
    """
    # Shortened to fit a file name. One schema has one root, so names need not differ between subjects.
    return f"__subject__/{_PLAIN.sub('_', registered.subject)[:100]}.proto"


def _root_file(descriptor_set: bytes, name: str) -> descriptor_pb2.FileDescriptorProto:
    files = descriptor_pb2.FileDescriptorSet.FromString(descriptor_set).file
    return next(file for file in files if file.name == name)


def _message(
    home: descriptor_pb2.FileDescriptorProto,
    configured: str | None,
    known: SourceSchema | None,
    newest: Registered,
) -> str:
    """The topic's message: the configured one, else the known one, else the first of the schema."""
    if configured is not None:
        if not message_indexes(home, configured):
            names = ", ".join(_full(home, one.name) for one in home.message_type[:5]) or "none"
            raise ConfigInvalid(
                f"{newest.label} does not declare the message {configured!r} itself; "
                f"its messages are: {names}"
            )
        return configured
    # A topic keeps its message even if another one becomes the first.
    if known is not None and message_indexes(home, known.message):
        return known.message
    if not home.message_type:
        raise ConfigInvalid(f"{newest.label} declares no message")
    return _full(home, home.message_type[0].name)


def message_indexes(file: descriptor_pb2.FileDescriptorProto, message: str) -> Indexes:
    """The indexes of a message in its file, as in envelopes: its number at each nesting level, from 0; empty
    if absent.
    """
    prefix = f"{file.package}." if file.package else ""
    if not message.startswith(prefix):
        return ()
    level = list(file.message_type)
    indexes: list[int] = []
    for name in message.removeprefix(prefix).split("."):
        names = [one.name for one in level]
        if name not in names:
            return ()
        indexes.append(names.index(name))
        # Serializers for Java count messages of the text, which has no messages for map entries.
        level = [one for one in level[indexes[-1]].nested_type if not one.options.map_entry]
    return tuple(indexes)


def _full(file: descriptor_pb2.FileDescriptorProto, name: str) -> str:
    return f"{file.package}.{name}" if file.package else name

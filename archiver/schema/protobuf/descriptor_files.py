"""The files of a descriptor set: those that a message needs, their consistency, and the linked descriptor.

The errors name file, message and field; Protobuf's library names only the first of them. The result of
`needed_files` holds every file that a message needs, each after its imports: those that its own file imports,
and those that extend a message it can contain. It is the same for the same content, regardless of other files
in the set. The process-wide descriptor pool is never changed.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from archiver.runtime.errors import ConfigInvalid
from archiver.schema.protobuf.tree import COLUMNS_MAX

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


def parse_files(data: bytes, where: str) -> Files:
    """The files of a serialized set by name. Raises ConfigInvalid for what is no set, an empty one, and two
    files of one name.
    """
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(data)
    except DecodeError as error:
        raise ConfigInvalid(f"{where} is not a FileDescriptorSet: {error}; {BUILD}") from error
    if not files.file or not all(one.name for one in files.file):
        raise ConfigInvalid(f"{where} is not a FileDescriptorSet: it names no files; {BUILD}")
    result: dict[str, File] = {}
    for one in files.file:
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
        one.ClearField("source_code_info")
    return result.SerializeToString(deterministic=True)


def linked(files: Files, message: str, where: str) -> Descriptor:
    """The linked descriptor of `message`, in a pool of its own. Raises ConfigInvalid, naming file, message
    and field.
    """
    order = _ordered(files, message, where)
    _check_names(files, order, where)
    pool = descriptor_pool.DescriptorPool()
    for name in order:
        try:
            pool.AddSerializedFile(files[name].SerializeToString())
        except (TypeError, KeyError, ValueError) as error:
            for full, one in _messages(files[name]):
                if (
                    len(one.field) > COLUMNS_MAX
                ):  # the library has a limit near this one, and its error does not name the file
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
    extending = [one for one in files.values() if any(_extensions(one))]
    while True:
        inside = _contained([files[name] for name in order], message)
        more = [
            one.name
            for one in extending
            if one.name not in order and any(ext.extendee in inside for ext in _extensions(one))
        ]
        if not more:
            return list(order)
        for name in sorted(more):
            _visit(files, name, order, (), where)


def _visit(files: Files, name: str, order: dict[str, None], above: tuple[str, ...], where: str) -> None:
    if name in order:
        return
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
    order[name] = None


def _home(files: Files, message: str, where: str) -> str:
    """The file that declares `message`."""
    homes: dict[str, list[str]] = {}
    for one in files.values():
        for name, declared in _messages(one):
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
            fields.setdefault(extension.extendee, []).append(extension)
    inside: set[str] = set()
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
    if (
        not name.startswith(".") or name[1:] in homes
    ):  # without the dot it is relative, and the library looks for it
        return
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

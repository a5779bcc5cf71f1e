"""Descriptor sets: files made by `protoc --include_imports --descriptor_set_out`, read and checked.

Owns: `Source`, the name of a message with the descriptor set that explains it, and its way from a file on disk.
Promises: a Source that was loaded parses, links, has its message and maps to columns; its bytes hold only the files that the message
needs, without comments, and are the same for the same content.
Must never: register anything in the process-wide descriptor pool, where two topics could clash.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError

from archiver.errors import ConfigInvalid
from archiver.schema.tree import MessageTree, build_tree

_NAMES_SHOWN = 5

_BUILD = "build it with: python -m grpc_tools.protoc -I. --include_imports --descriptor_set_out=NAME.binpb NAME.proto"


@dataclass(frozen=True)
class Source:
    """Where the columns of a key or a value come from."""

    message: str
    """Full name, as in `shop.Order`."""
    descriptor_set: bytes
    """A serialized google.protobuf.FileDescriptorSet with every file the message needs."""


def load_source(path: Path, message: str) -> Source:
    """Read a descriptor set from `path` and find `message` in it.

    Raises ConfigInvalid: the file cannot be read or is no descriptor set, an import is missing, the message is not in it (names near it
    are listed), or this version does not map one of its fields.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigInvalid(f"descriptor set {path} cannot be read: {error.strerror or error}; {_BUILD}") from error
    where = f"descriptor set {path}"
    source = Source(message, _needed(_parse(data, where), message, where))
    source_tree(source, where)
    return source


def source_tree(source: Source, where: str = "descriptor set") -> MessageTree:
    """The tree of the source's message. `where` opens the messages of errors. Raises ConfigInvalid as `load_source` does."""
    descriptor = _link(_parse(source.descriptor_set, where), source.message, where)
    try:
        return build_tree(descriptor)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{where}: {error}") from error


def _parse(data: bytes, where: str) -> dict[str, descriptor_pb2.FileDescriptorProto]:
    """The files of a set by name."""
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(data)
    except DecodeError as error:
        raise ConfigInvalid(f"{where} is not a FileDescriptorSet: {error}; {_BUILD}") from error
    if not files.file or not all(one.name for one in files.file):
        raise ConfigInvalid(f"{where} is not a FileDescriptorSet: it names no files; {_BUILD}")
    return {one.name: one for one in files.file}


def _needed(files: dict[str, descriptor_pb2.FileDescriptorProto], message: str, where: str) -> bytes:
    """The set cut down to the files that `message` needs, each after its imports, without source text."""
    home = _home(files, message, where)
    order: list[str] = []
    _visit(files, home, order, (), where)
    result = descriptor_pb2.FileDescriptorSet()
    for name in order:
        one = result.file.add()
        one.CopyFrom(files[name])
        one.ClearField("source_code_info")
    return result.SerializeToString(deterministic=True)


def _visit(files: dict[str, descriptor_pb2.FileDescriptorProto], name: str, order: list[str], above: tuple[str, ...], where: str) -> None:
    if name in order:
        return
    if name in above:
        raise ConfigInvalid(f"{where}: {name} imports itself through {' -> '.join(above)}")
    if name not in files:
        raise ConfigInvalid(f"{where}: {above[-1]} imports {name}, which is not in the set; build it with protoc --include_imports")
    for dependency in files[name].dependency:
        _visit(files, dependency, order, (*above, name), where)
    order.append(name)


def _home(files: dict[str, descriptor_pb2.FileDescriptorProto], message: str, where: str) -> str:
    """The file that declares `message`."""
    names: dict[str, str] = {}
    for one in files.values():
        for declared in one.message_type:
            _declared(one.name, one.package, declared, names)
    if message in names:
        return names[message]
    near = difflib.get_close_matches(message, names, n=_NAMES_SHOWN, cutoff=0.5) or sorted(names)[:_NAMES_SHOWN]
    hint = f"did you mean {', '.join(near)}?" if near else "it declares no message"
    raise ConfigInvalid(f"{where} has no message {message!r}; {hint}")


def _declared(file: str, scope: str, declared: descriptor_pb2.DescriptorProto, names: dict[str, str]) -> None:
    full = f"{scope}.{declared.name}" if scope else declared.name
    if declared.options.map_entry:
        return
    names[full] = file
    for nested in declared.nested_type:
        _declared(file, full, nested, names)


def _link(files: dict[str, descriptor_pb2.FileDescriptorProto], message: str, where: str) -> Descriptor:
    """The linked descriptor of `message`, in a pool of its own."""
    home = _home(files, message, where)
    order: list[str] = []
    _visit(files, home, order, (), where)
    pool = descriptor_pool.DescriptorPool()
    try:
        for name in order:
            pool.AddSerializedFile(files[name].SerializeToString())
        return pool.FindMessageTypeByName(message)
    except (TypeError, KeyError, ValueError) as error:
        raise ConfigInvalid(f"{where} does not link: {error}; build it again with protoc") from error

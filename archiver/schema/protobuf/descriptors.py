"""Descriptor sets: files made by `protoc --include_imports --descriptor_set_out`, read and checked.

A `Source` is the name of a message with its descriptor set, read from a file or from bytes. It parses, links,
has its message and maps to columns. Its bytes hold only the files that the message needs, without comments,
and are the same for the same content. Nothing is registered in the process-wide descriptor pool, where two
topics could clash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from archiver.runtime.errors import ConfigInvalid
from archiver.schema.protobuf.column_names import wanted_names
from archiver.schema.protobuf.descriptor_files import BUILD, linked, needed_files, parse_files
from archiver.schema.protobuf.tree import (
    COLUMNS_MAX,
    LIBRARY_LEVELS_MAX,
    RECORDED_COLUMNS_MAX,
    RECURSION_DEPTH,
    MessageTree,
)
from archiver.schema.protobuf.tree_build import build_tree


@dataclass(frozen=True)
class Envelope:
    """The registry ids under which a topic's records may be enveloped (magic byte, schema id, message
    indexes).
    """

    ids: tuple[tuple[int, tuple[int, ...]], ...]
    """Schema id, and the message indexes under which that id's schema holds the topic's message; in the order
    of the ids."""


@dataclass(frozen=True)
class Source:
    """Where the columns of a key or a value come from."""

    message: str
    """Full name, as in `shop.Order`."""
    descriptor_set: bytes
    """A serialized google.protobuf.FileDescriptorSet with every file the message needs."""
    recursion_depth: int = RECURSION_DEPTH
    """How often a message type may stand inside itself as columns; 0 to 10."""
    columns: tuple[tuple[str, str], ...] = ()
    """Renamed columns: dotted path of Protobuf field names, and the column's name. In the order of the
    paths."""
    envelope: Envelope | None = None
    """The ids of a registry's envelopes; None: the payloads have none."""


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

    Raises ConfigInvalid, naming file, message and field: it is no descriptor set, or an empty one; an import
    is missing or a file imports itself; two files define one name; a type, or the message itself, is not in
    it (names near it are listed); extensions clash; the message is too wide or too deep (also as the
    libraries count), or a message set; a renamed column does not exist or has no good name.
    """
    data = needed_files(parse_files(descriptor_set, where), message, where)
    source = Source(message, data, recursion_depth, tuple(sorted(columns)), envelope)
    tree = _tree(source, where, COLUMNS_MAX, LIBRARY_LEVELS_MAX)
    try:
        wanted_names(tree, source.columns)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{where}: {error}") from error
    return source


def source_tree(source: Source, where: str = "descriptor set") -> MessageTree:
    """The tree of the source's message, with its Protobuf names. `where` opens the messages of errors.

    Raises ConfigInvalid as `make_source` does, but lets a message be as wide and as deep as recorded ones may
    be.
    """
    return _tree(source, where, RECORDED_COLUMNS_MAX, None)


def _tree(source: Source, where: str, columns_max: int, levels_max: int | None) -> MessageTree:
    descriptor = linked(parse_files(source.descriptor_set, where), source.message, where)
    try:
        return build_tree(descriptor, source.recursion_depth, columns_max, levels_max)
    except ConfigInvalid as error:
        raise ConfigInvalid(f"{where}: {error}") from error

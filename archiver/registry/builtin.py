"""The `.proto` files that schema registries know without a reference: their texts, and their descriptors.

Promises that a file of the same name from a registry or a folder takes precedence: callers look here last.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from google.protobuf import descriptor_pb2

FOLDER = Path(__file__).with_name("builtin_protos")
DESCRIPTORS = FOLDER / "builtin.binpb"
"""The files of the folder as a descriptor set, without what they import; `scripts/generate_proto.py` writes
it."""

_WELL_KNOWN = (
    "any",
    "api",
    "descriptor",
    "duration",
    "empty",
    "field_mask",
    "source_context",
    "struct",
    "timestamp",
    "type",
    "wrappers",
)
"""The `google/protobuf` files, whose descriptors Protobuf's library holds."""


@cache
def builtin_texts() -> Mapping[str, bytes]:
    """By import name: the text. The compiler has the `google/protobuf` files itself."""
    return MappingProxyType(
        {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in sorted(FOLDER.rglob("*.proto"))}
    )


@cache
def builtin_descriptors() -> Mapping[str, descriptor_pb2.FileDescriptorProto]:
    """By import name: the descriptor, the `google/protobuf` files included. The values must not be
    changed.
    """
    found = {
        file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file
    }
    for name in _WELL_KNOWN:
        module = importlib.import_module(f"google.protobuf.{name}_pb2")
        file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        found[file.name] = file
    return MappingProxyType(found)

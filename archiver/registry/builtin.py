"""The built-in `.proto` files of schema registries: texts and descriptors.

A file of the same name from a registry or a folder has precedence, so callers search here last.
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
"""The folder's files as a descriptor set, without their imports; written by `scripts/generate_proto.py`."""

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
"""The `google/protobuf` files, whose descriptors are in the Protobuf library."""


@cache
def builtin_texts() -> Mapping[str, bytes]:
    """Texts by import name. The compiler has the `google/protobuf` files itself."""
    return MappingProxyType(
        {path.relative_to(FOLDER).as_posix(): path.read_bytes() for path in sorted(FOLDER.rglob("*.proto"))}
    )


@cache
def builtin_descriptors() -> Mapping[str, descriptor_pb2.FileDescriptorProto]:
    """Descriptors by import name, including the `google/protobuf` files. Do not change the values."""
    found = {
        file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(DESCRIPTORS.read_bytes()).file
    }
    for name in _WELL_KNOWN:
        module = importlib.import_module(f"google.protobuf.{name}_pb2")
        file = descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        found[file.name] = file
    return MappingProxyType(found)

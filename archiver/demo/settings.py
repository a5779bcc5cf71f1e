"""Makes the demo's folder: configuration, descriptor set, and removal of an earlier demo.

A file that no demo made must never be removed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from archiver.demo import flights_pb2
from archiver.demo.flights import TOPICS
from archiver.runtime.errors import InvalidInput

MARKER = "this-is-a-demo.txt"
CONFIGURATION = "archiver.yaml"
DESCRIPTORS = "flights.binpb"
# A folder belongs to a demo only if it has the marker and nothing but these names.
_OURS = frozenset({MARKER, CONFIGURATION, DESCRIPTORS, "data", "metadata", "catalog"})
_MARKER_TEXT = (
    "Made by `archiver demo`. Running it again with this folder removes everything in it and starts over.\n"
)

CATALOG = "local"
NAMESPACE = "nyc"


def prepare(directory: Path) -> Path:
    """Make `directory` an empty demo folder with a configuration; returns the path of that file.

    Raises `InvalidInput` if it holds anything the demo did not make.
    """
    # The configuration has absolute paths, so that its commands run from any folder.
    directory = directory.resolve()
    _clear(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # The marker is the first file: without it an interrupted demo could not be removed by the next run.
        (directory / MARKER).write_text(_MARKER_TEXT, encoding="utf-8")
        for folder in ("data", "metadata", "catalog"):
            (directory / folder).mkdir()
        (directory / DESCRIPTORS).write_bytes(descriptor_set())
        (directory / CONFIGURATION).write_text(configuration(directory), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"the demo cannot write into {directory}: {error}; choose another folder with --dir"
        ) from error
    return directory / CONFIGURATION


def table_name(topic: str) -> str:
    """The table of a demo topic, with its namespace."""
    return f"{NAMESPACE}.{topic}"


def catalog_path(directory: Path) -> Path:
    """The database of the demo's catalog."""
    return directory / "catalog" / "catalog.db"


def descriptor_set() -> bytes:
    """`flights.proto` and what it imports, as a serialised FileDescriptorSet."""
    found = FileDescriptorSet()
    # Imports come before the files that need them.
    for descriptor in (timestamp_pb2.DESCRIPTOR, flights_pb2.DESCRIPTOR):
        file = FileDescriptorProto()
        descriptor.CopyToProto(file)
        found.file.append(file)
    return found.SerializeToString(deterministic=True)


def configuration(directory: Path) -> str:
    """The text of `archiver.yaml`: everything on this machine, nothing tuned for the demo."""
    document = {
        "cluster": "demo",
        "data": {"uri": (directory / "data").as_uri()},
        "metadata": {"sqlite": {"path": str(directory / "metadata" / "metadata.db")}},
        "catalogs": [
            # SQLite waits 60 s for a lock: the demo's commits and an operator's queries share the file.
            {"name": CATALOG, "type": "sql", "uri": f"sqlite:///{catalog_path(directory)}?timeout=60"}
        ],
        "topics": [
            {
                "name": topic.name,
                "partitions": topic.partitions,
                "retention": "forever",
                "value": {"descriptor_set": DESCRIPTORS, "message": topic.message},
                "archive": {
                    "kind": "iceberg",
                    "catalog": CATALOG,
                    "table": table_name(topic.name),
                    "partition_by": ["day"],
                },
            }
            for topic in TOPICS
        ],
    }
    return "# The demo's configuration: a working example to copy from.\n" + yaml.safe_dump(
        document, sort_keys=False, width=120
    )


def _clear(directory: Path) -> None:
    """Remove an earlier demo; leave a missing or empty folder as it is; refuse anything else."""
    if directory.exists() and not directory.is_dir():
        raise InvalidInput(f"{directory} is a file; choose a folder with --dir")
    present = sorted(entry.name for entry in directory.iterdir()) if directory.exists() else []
    if not present:
        return
    unknown = [name for name in present if name not in _OURS]
    if MARKER not in present or unknown:
        named = ", ".join((unknown or present)[:3])
        raise InvalidInput(
            f"{directory} is not empty and not a demo's folder (it holds {named}); choose another with "
            "--dir, or empty it yourself"
        )
    # The marker is removed last, so that an interrupted removal can be repeated.
    for name in sorted(present, key=lambda entry: entry == MARKER):
        path = directory / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()

"""Writes a deployment's configuration for the messages of the benches: topics, settings and message
descriptors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.shapes import Shape

SCHEMA_FILE = "message.binpb"
"""Beside the configuration."""
CATALOG, NAMESPACE = "local", "bench"


def topic(name: str, partitions: int, message: str = "bench.Order") -> dict[str, Any]:
    """One with a table of its name."""
    return {
        "name": name,
        "partitions": partitions,
        "value": {"descriptor_set": SCHEMA_FILE, "message": message},
        "archive": {"kind": "iceberg", "catalog": CATALOG, "table": f"{NAMESPACE}.{name}"},
    }


def document(
    catalog_uri: str, topics: Sequence[Mapping[str, Any]], groups: Mapping[str, Any]
) -> dict[str, Any]:
    """All in the folder of the configuration, tables on a SQL catalog; `groups` are those that are not as
    they are by default.
    """
    return {
        "cluster": "bench",
        "data": {"uri": "data"},
        "metadata": {"sqlite": {"path": "metadata.db"}},
        "catalogs": [{"name": CATALOG, "type": "sql", "uri": catalog_uri}],
        **groups,
        "topics": list(topics),
    }


def write(folder: Path, descriptor_set: bytes, configuration: Mapping[str, Any]) -> Path:
    """Both into the folder; the configuration's file."""
    (folder / SCHEMA_FILE).write_bytes(descriptor_set)
    path = folder / "archiver.yaml"
    path.write_text(yaml.safe_dump(dict(configuration)), encoding="utf-8")
    return path


def write_configuration(folder: Path, shape: Shape, partitions: int) -> Path:
    """A folder for one topic `orders` of a shape; the configuration's file."""
    folder.mkdir()
    spark = {"spark": {"master": f"local[{os.cpu_count() or 1}]"}}
    topics = [topic("orders", partitions, shape.source.message)]
    return write(
        folder, shape.source.descriptor_set, document(f"sqlite:///{folder}/catalog.db", topics, spark)
    )

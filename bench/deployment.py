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
"""In the folder of the configuration."""
CATALOG, NAMESPACE = "local", "bench"


def topic(name: str, partitions: int, message: str = "bench.Order") -> dict[str, Any]:
    """Return the settings of a topic with a table of its name."""
    return {
        "name": name,
        "partitions": partitions,
        "value": {"descriptor_set": SCHEMA_FILE, "message": message},
        "archive": {"kind": "iceberg", "catalog": CATALOG, "table": f"{NAMESPACE}.{name}"},
    }


def document(
    catalog_uri: str, topics: Sequence[Mapping[str, Any]], groups: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a configuration with all files in its folder and tables on a SQL catalog. `groups`
    override default settings.
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
    """Write descriptors and configuration into the folder; return the configuration's path."""
    (folder / SCHEMA_FILE).write_bytes(descriptor_set)
    path = folder / "archiver.yaml"
    path.write_text(yaml.safe_dump(dict(configuration)), encoding="utf-8")
    return path


def write_configuration(folder: Path, shape: Shape, partitions: int) -> Path:
    """Create a folder for one topic `orders` of a shape; return the configuration's path."""
    folder.mkdir()
    spark = {"spark": {"master": f"local[{os.cpu_count() or 1}]"}}
    topics = [topic("orders", partitions, shape.source.message)]
    return write(
        folder, shape.source.descriptor_set, document(f"sqlite:///{folder}/catalog.db", topics, spark)
    )

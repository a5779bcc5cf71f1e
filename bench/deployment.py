"""A deployment with one topic of a shape, and its table on a SQL catalog, all in one folder."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from bench.shapes import Shape


def write_configuration(folder: Path, shape: Shape, partitions: int) -> Path:
    """Make the folder, and in it what a user would write for the topic `orders`; the configuration's file."""
    folder.mkdir()
    (folder / "message.binpb").write_bytes(shape.source.descriptor_set)
    topic = {
        "name": "orders",
        "partitions": partitions,
        "value": {"descriptor_set": "message.binpb", "message": shape.source.message},
        "archive": {"kind": "iceberg", "catalog": "local", "table": "bench.orders"},
    }
    document = {
        "cluster": "bench",
        "data": {"uri": "data"},
        "metadata": {"sqlite": {"path": "metadata.db"}},
        "catalogs": [{"name": "local", "type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}],
        "spark": {"master": f"local[{os.cpu_count() or 1}]"},
        "topics": [topic],
    }
    path = folder / "archiver.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path

"""A program of its own: decodes records of many empty list elements and prints by how many MiB the process
grew, and what came of them.

`python -m tests.support.schema.decode_memory FOLDER refine|consume KIND`. Kinds: `one` is a single record
beyond the bound of one record. `many` are records within that bound which together exceed the bound. `odd` is
one within the bound that only the complete engine reads whole.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from google.protobuf import descriptor_pb2

from archiver.objects.local import LocalObjectStore
from archiver.schema.evolution.state import decide
from archiver.schema.protobuf.descriptors import Source
from archiver.stream.decode import Decoder
from tests.support.builders.refine_memory import peak_mib
from tests.support.builders.refining import NOW, refine
from tests.support.intake.intake_files import Intake, Row

FIELDS = 40
ITEM = b"\x1a\x00"
"""An empty list element of so many columns."""
ENTRY = b"\x22\x02\x08\x01"
"""A map entry; twice with one key it is for the complete engine."""
KINDS: dict[str, list[bytes]] = {
    "one": [ITEM * 500_000],
    "many": [ITEM * 80_000] * 30,
    "odd": [ITEM * 95_000 + ENTRY * 2],
    "small": [b""],
}
_F = descriptor_pb2.FieldDescriptorProto


def wide_source() -> Source:
    """A message whose list elements have many columns."""
    file = descriptor_pb2.FileDescriptorProto(name="wide.proto", package="shop", syntax="proto3")
    item = file.message_type.add(name="Item")
    for number in range(1, FIELDS + 1):
        item.field.add(name=f"f{number}", number=number, type=_F.TYPE_INT64, label=_F.LABEL_OPTIONAL)
    wide = file.message_type.add(name="Wide")
    wide.field.add(
        name="items", number=3, type=_F.TYPE_MESSAGE, type_name=".shop.Item", label=_F.LABEL_REPEATED
    )
    entry = wide.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    for number, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=number, type=_F.TYPE_INT64, label=_F.LABEL_OPTIONAL)
    wide.field.add(
        name="counts",
        number=4,
        type=_F.TYPE_MESSAGE,
        type_name=".shop.Wide.CountsEntry",
        label=_F.LABEL_REPEATED,
    )
    return Source("shop.Wide", descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def run(folder: Path, job: str, values: list[bytes]) -> list[str | None]:
    """The error of each record, null for one that was decoded."""
    if job == "consume":
        decoder = Decoder(None, wide_source())
        found = [decoder.decode(None, value)["value"] for value in values]
        return [one.get("error") if isinstance(one, dict) else None for one in found]
    intake = Intake(LocalObjectStore(folder))
    topic = intake.topic("orders", 1)
    intake.file({(topic, 0): [Row(NOW, value) for value in values]})
    (result,) = refine(
        intake, intake.plans(topic, 0), schema=decide("orders", (), None, wide_source()).schema, ahead=False
    )
    assert result.error is None, result.why
    with pq.ParquetFile(folder / result.files[0].archive.key) as file:
        rows: Any = file.read(columns=["value.__err__"]).column("value").to_pylist()
    return [row["__err__"] for row in rows]


def main(folder: str, job: str, kind: str) -> None:
    """What the libraries need once is no part of the answer."""
    run(Path(folder) / "small", job, KINDS["small"])
    before = peak_mib()
    errors = run(Path(folder) / kind, job, KINDS[kind])
    print(json.dumps({"mib": peak_mib() - before, "errors": errors}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Change events as Debezium sends them, in Avro, Protobuf and JSON, by the schemas of docs/debezium.md."""

from __future__ import annotations

import base64
import io
import json
import tempfile
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import fastavro
from google.protobuf.json_format import ParseDict
from grpc_tools import protoc

from archiver.registry import builtin_protos
from archiver.schema.protobuf.descriptors import Source
from intake.records import Record
from tests.support.pages import ROOT, blocks
from tests.support.schema.protos import message_class
from tests.support.schema.registry_server import RegistryServer

PAGE: Final = ROOT / "docs" / "debezium.md"
TOPIC: Final = "shopdb.public.orders"
TABLE: Final = "shop.order_changes"
KEY_ID, VALUE_ID = 41, 42
PLACED_US: Final = 1_772_445_600_123_456
"""2026-03-02T10:00:00.123456."""
_INCLUDED: Final = (
    Path(protoc.__file__).parent / "_proto",
    Path(next(iter(builtin_protos.__path__))),
)


def titled(title: str, page: Path = PAGE) -> str:
    """The text of a block of a page."""
    (found,) = (block.text for block in blocks(page) if block.title == title)
    return found


def queries(engine: str, page: Path = PAGE) -> dict[str, str]:
    """A page's queries for an engine, by title."""
    return {block.title or "": block.text for block in blocks(page) if block.options[:1] == (engine,)}


def avro_schema(text: str) -> Any:
    """A schema as another library reads it."""
    return fastavro.parse_schema(json.loads(text))


def avro_envelope(number: int, schema: Any, value: Any) -> bytes:
    """A datum with the envelope of Confluent's registry, by another library."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return b"\0" + number.to_bytes(4, "big") + out.getvalue()


def proto_class(text: str, message: str) -> Any:
    """A class of one `.proto` file, compiled with what registries include."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "one.proto"), Path(folder, "one.binpb")
        source.write_text(text, encoding="utf-8")
        included = [f"-I{one}" for one in (folder, *_INCLUDED)]
        arguments = ["protoc", *included, "--include_imports", f"--descriptor_set_out={target}", str(source)]
        assert protoc.main(arguments) == 0
        return message_class(Source(message, target.read_bytes()))


def proto_envelope(number: int, make: Any, value: Mapping[str, Any]) -> bytes:
    """A message with the envelope of Confluent's registry: its id, and that it is the first of its file."""
    message = ParseDict(json.loads(json.dumps(value, default=str)), make(), ignore_unknown_fields=True)
    data: bytes = message.SerializeToString(deterministic=True)
    return b"\0" + number.to_bytes(4, "big") + b"\0" + data


def row(number: int, customer: str, total: str | None, status: str, **more: Any) -> dict[str, Any]:
    """A row of the database."""
    return {
        "id": number,
        "customer": customer,
        "total": None if total is None else Decimal(total),
        "weight": {"scale": 3, "value": b"\x04\xd2"},
        "status": status,
        "placed_at": PLACED_US + number,
        "paid_at": None,
        "due": None,
        "reference": "6f1c6b3e-7d0c-4f83-9d8e-0c2f6f2f1a10",
        "details": None,
        "tags": None,
        **more,
    }


def event(number: int, op: str, before: Any, after: Any) -> dict[str, Any]:
    """A change event."""
    source = {
        "version": "3.3.1.Final",
        "connector": "postgresql",
        "name": "shopdb",
        "ts_ms": 1_772_445_600_000 + number,
        "snapshot": "first" if op == "r" else "false",
        "db": "shop",
        "sequence": f'["{number}","{number}"]',
        "ts_us": None,
        "ts_ns": None,
        "schema": "public",
        "table": "orders",
        "txId": 700 + number,
        "lsn": 24_000_000 + number,
        "xmin": None,
    }
    block = {"id": f"{700 + number}:{number}", "total_order": 1, "data_collection_order": 1}
    return {
        "before": before,
        "after": after,
        "source": source,
        "transaction": None if op == "r" else block,
        "op": op,
        "ts_ms": 1_772_445_600_100 + number,
        "ts_us": None,
        "ts_ns": None,
    }


PAID: Final = {
    "paid_at": "2026-03-02T10:05:00.5Z",
    "due": 20_530,
    "details": '{"gift": "yes"}',
    "tags": ["a", None, "b"],
}
_ANN = row(1, "Ann", "12.50", "new")
_BEN = row(2, "Ben", None, "new")
_EVE = row(4, "Eve", "-0.01", "new")
CHANGES: Final[Sequence[tuple[int, dict[str, Any] | None]]] = (
    (1, event(1, "r", None, _ANN)),
    (2, event(2, "c", None, _BEN)),
    (3, event(3, "c", None, row(3, "Cem", "99999999.99", "new"))),
    (4, event(4, "c", None, _EVE)),
    (1, event(5, "u", _ANN, row(1, "Ann", "13.75", "paid", **PAID))),
    (2, event(6, "d", _BEN, None)),
    (2, None),
    (4, event(7, "d", _EVE, None)),
    (4, None),
    (4, event(8, "c", None, row(4, "Eva", "1.00", "sent"))),
    (5, None),
)
"""Primary key and event, in order; None is a tombstone. The last one's delete was never seen."""
CURRENT: Final = [
    [1, "Ann", "13.75", "paid"],
    [3, "Cem", "99999999.99", "new"],
    [4, "Eva", "1.00", "sent"],
]
"""The rows of the database after them: id, customer, total, status."""
DELETED: Final = [[2, "Ben", 706], [4, "Eve", 707]]
"""Id, customer and transaction."""
TYPES: Final = [["2026-03-02T10:00:00.123457", "2026-03-02T10:05:00.500000Z", "2026-03-18", "yes"]]
"""Order 1 after its update: when it was placed and paid, the day when it is due, and a field of its details."""


def partition_of(number: int) -> int:
    """The partition of a primary key."""
    return number % 2


def avro_records() -> list[tuple[int, Record]]:
    """The events in Avro, each with its partition."""
    key_schema = avro_schema(titled("orders-key.avsc"))
    schema = avro_schema(titled("orders-value.avsc"))
    return [
        (
            partition_of(number),
            Record(
                avro_envelope(KEY_ID, key_schema, {"id": number}),
                None if change is None else avro_envelope(VALUE_ID, schema, change),
            ),
        )
        for number, change in CHANGES
    ]


def proto_records() -> list[tuple[int, Record]]:
    """The same events in Protobuf."""
    key = proto_class(titled("orders-key.proto"), f"{TOPIC}.Key")
    value = proto_class(titled("orders-value.proto"), f"{TOPIC}.Envelope")
    return [
        (
            partition_of(number),
            Record(
                proto_envelope(KEY_ID, key, {"id": number}),
                None if change is None else proto_envelope(VALUE_ID, value, without_nulls(change)),
            ),
        )
        for number, change in CHANGES
    ]


def json_records() -> list[tuple[int, Record]]:
    """The same events as Kafka Connect's JsonConverter writes them without schemas."""
    return [
        (
            partition_of(number),
            Record(json_bytes({"id": number}), None if change is None else json_bytes(change)),
        )
        for number, change in CHANGES
    ]


def json_bytes(value: Any) -> bytes:
    """A document as that converter writes it: compact, every field of the schema, null as `null`."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, default=_json_text)
    return text.encode()


def _json_text(value: Any) -> str:
    """Bytes in base64; a decimal as Debezium sends it as text."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def without_nulls(value: Any) -> Any:
    """What Protobuf can say: no null in a list."""
    if isinstance(value, list):
        return [one for one in value if one is not None]
    if not isinstance(value, dict):
        return value
    return {
        name: without_nulls(one)
        for name, one in value.items()
        if one is not None and not isinstance(one, bytes)
    }


def register(server: RegistryServer, ending: str, kind: str) -> None:
    """Have the page's schemas of keys and values as subjects."""
    server.add(f"{TOPIC}-key", 1, KEY_ID, titled(f"orders-key.{ending}"), kind=kind)
    server.add(f"{TOPIC}-value", 1, VALUE_ID, titled(f"orders-value.{ending}"), kind=kind)

"""Right requests of every API and version with values by chance, for tests of what the listener refuses."""

from __future__ import annotations

import random
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin

from kio.index import load_request_schema

from archiver.kafka.protocol import ApiKey
from tests.support.kafka.record_batches import CODECS, RawRecord, batch_bytes, records_bytes
from tests.support.kafka.wire import request_bytes

BATCHES = [
    batch_bytes(records_bytes([RawRecord(b"key", b"value", (("name", b"x"),))] * 3), codec=codec)
    for codec in CODECS
]


def _value(chance: random.Random, declared: Any, kind: str) -> Any:
    """A plausible value of a field."""
    if get_origin(declared) in (UnionType, Union):
        if chance.random() < 0.1:
            return None
        (declared,) = (one for one in get_args(declared) if one is not type(None))
    if get_origin(declared) is tuple:
        element = get_args(declared)[0]
        return [_value(chance, element, kind) for _ in range(chance.choice((0, 1, 1, 2)))]
    if is_dataclass(declared):
        return _body(chance, declared)
    match kind:
        case "string":
            return chance.choice(("orders", "absent", "", "PLAIN", "ü" * 40))
        case "bytes":
            return chance.randbytes(chance.randrange(30))
        case "records":
            return chance.choice(BATCHES)
        case "uuid":
            return None
        case "bool":
            return chance.random() < 0.5
        case "float64":
            return 0.5
    return chance.choice((0, 0, 0, 1, -1, 2, 100))


def _body(chance: random.Random, schema: Any) -> dict[str, Any]:
    found = {}
    for field in fields(schema):
        if field.metadata.get("tag") is not None and field.default is not MISSING:
            continue
        found[field.name] = _value(chance, field.type, field.metadata.get("kafka_type", ""))
    return found | {name: 0 for name in ("max_wait", "session_id") if name in found}


def right_request(chance: random.Random, api: ApiKey, version: int) -> bytes:
    """A right request, without its size. A fetch does not wait."""
    body = _body(chance, load_request_schema(api, version))
    return request_bytes(api, version, chance.randrange(1 << 20), body)[4:]

"""Requests and responses of the Kafka protocol, judged by the reader and the writer of kio."""

from __future__ import annotations

import io
import random
import struct
import uuid
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import IntEnum
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Union, get_args, get_origin

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from archiver.kafka import protocol
from archiver.kafka.protocol import VERSIONS, ApiKey, KafkaRequest, read_request, write_response
from intake import kafka_messages
from intake.kafka_messages import PIECE_BYTES_MIN, Malformed, ManyElements

EVERY_VERSION = [(api, version) for api, (low, high) in VERSIONS.items() for version in range(low, high + 1)]


def plain(value: Any) -> Any:
    """A value of kio, or of this project, with names and numbers only."""
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, SimpleNamespace):
        return {name: plain(one) for name, one in vars(value).items()}
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    if isinstance(value, timedelta):
        return round(value.total_seconds() * 1000)
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    if isinstance(value, memoryview | bytes):
        return bytes(value)
    if isinstance(value, IntEnum):
        return int(value)
    if isinstance(value, uuid.UUID) and value.int == 0:
        return None
    return value


def made(schema: Any, chance: random.Random) -> dict[str, Any]:
    """A message with a random value for each field."""
    return {field.name: _value(field, chance) for field in fields(schema)}


def _value(field: Any, chance: random.Random) -> Any:
    kind, declared = field.metadata.get("kafka_type", ""), field.type
    nullable = get_origin(declared) in (UnionType, Union) and "tag" not in field.metadata
    if get_origin(declared) in (UnionType, Union):
        (declared,) = (one for one in get_args(declared) if one is not NoneType)
    if nullable and kind != "datetime_i64" and chance.random() < 0.3:
        return None
    if get_origin(declared) is tuple:
        element = get_args(declared)[0]
        count = chance.choice((0, 1, 3))
        return [
            made(element, chance) if is_dataclass(element) else _scalar(kind, chance) for _ in range(count)
        ]
    return made(declared, chance) if is_dataclass(declared) else _scalar(kind, chance)


def _scalar(kind: str, chance: random.Random) -> Any:
    match kind:
        case "bool":
            return chance.random() < 0.5
        case "string":
            return "".join(chance.choice("aé漢-") for _ in range(chance.choice((0, 1, 130))))
        case "bytes" | "records":
            return chance.randbytes(chance.choice((0, 1, 200)))
        case "uuid":
            return uuid.UUID(int=chance.getrandbits(128))
        case "error_code":
            return int(chance.choice(list(ErrorCode)))
        case "datetime_i64":
            return chance.randrange(0, 4_000_000_000_000)
        case "timedelta_i32" | "timedelta_i64":
            return chance.randrange(0, 2**31)
    bits = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "uint16": 16}[kind]
    low = 0 if kind == "uint16" else -(2 ** (bits - 1))
    return chance.randrange(low, low + 2**bits)


def read_by_kio(schema: Any, data: bytes) -> Any:
    value, size = entity_reader(schema)(data, 0)
    assert size == len(data)
    return plain(value)


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_a_response_is_what_kio_reads(api: ApiKey, version: int) -> None:
    schema: Any = load_response_schema(api, version)
    for seed in range(20):
        body = made(schema, random.Random(seed))
        request = KafkaRequest(api, version, seed, "", SimpleNamespace())
        data = b"".join(write_response(request, body))
        assert struct.unpack(">i", data[:4]) == (len(data) - 4,)
        header, size = entity_reader(schema.__header_schema__)(data, 4)
        assert header.correlation_id == seed
        assert read_by_kio(schema, data[4 + size :]) == plain(body)


def _request(api: ApiKey, version: int, seed: int) -> tuple[dict[str, Any], bytes]:
    """A random request as bytes, without its size. kio reads what is written here as it was made."""
    schema: Any = load_request_schema(api, version)
    body = made(schema, random.Random(seed))
    content = kafka_messages.Output()
    kafka_messages.codec(schema)[1](content, body)
    assert read_by_kio(schema, bytes(content)) == plain(body)
    header = schema.__header_schema__(
        request_api_key=api, request_api_version=version, correlation_id=seed, client_id="me"
    )
    out = io.BytesIO()
    entity_writer(schema.__header_schema__)(out, header)
    return body, out.getvalue() + content


@pytest.mark.parametrize(("api", "version"), EVERY_VERSION)
def test_a_request_is_read_as_it_was_made(api: ApiKey, version: int) -> None:
    for seed in range(20):
        body, data = _request(api, version, seed)
        request = read_request(memoryview(data))
        assert (request.api, request.version, request.correlation_id) == (api, version, seed)
        assert request.client_id == "me"
        assert plain(request.body) == plain(body)


def _truncated_and_altered() -> Iterator[bytes]:
    for api, version in EVERY_VERSION:
        _, data = _request(api, version, 5)
        yield from (data[:end] for end in range(len(data)))
        for place in range(8, len(data)):
            for value in (0x00, 0x7F, 0x80, 0xFF):
                yield data[:place] + bytes([value]) + data[place + 1 :]


def test_altered_requests_are_read_or_malformed() -> None:
    malformed = 0
    for data in _truncated_and_altered():
        try:
            read_request(memoryview(data))
        except Malformed:
            malformed += 1
    assert malformed > 1000


HUGE = [
    # Produce 9 with 2**28 topics, Metadata 1 with 2**31 - 1, Metadata 12 with 5 varint bytes.
    (ApiKey.PRODUCE, 9, b"\x00\xff\xff\x00\x00\x00\x00\xfe\xff\xff\x7f" + bytes(100)),
    (ApiKey.METADATA, 1, struct.pack(">i", 2**31 - 1) + bytes(100)),
    (ApiKey.METADATA, 12, b"\xff\xff\xff\xff\x0f" + bytes(100)),
    (ApiKey.FETCH, 4, struct.pack(">iiiibi", -1, 0, 0, 0, 0, 2**30) + bytes(100)),
]


@pytest.mark.parametrize(("api", "version", "content"), HUGE)
def test_an_array_longer_than_the_request_is_malformed(api: ApiKey, version: int, content: bytes) -> None:
    schema: Any = load_request_schema(api, version)
    tags = b"\x00" if schema.__flexible__ else b""
    data = struct.pack(">hhih", api, version, 1, -1) + tags + content
    with pytest.raises(Malformed, match="elements where"):
        read_request(memoryview(data))


def test_elements_are_read_up_to_the_number_of_the_caller() -> None:
    content = struct.pack(">i", 3) + 3 * struct.pack(">h1s", 1, b"a")
    data = memoryview(struct.pack(">hhih", ApiKey.METADATA, 1, 1, -1) + content)
    with pytest.raises(ManyElements):
        read_request(data, 2)
    assert read_request(data, 3).elements == 3


def test_many_tagged_fields_are_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is skipped, which takes as long as an element."""
    monkeypatch.setattr(protocol, "ELEMENTS_MAX", 100)
    fields = b"".join(bytes([tag, 0]) for tag in range(101))
    # Metadata 9 has a flexible header; its tagged fields are unknown, and stand before the body.
    data = struct.pack(">hhih", ApiKey.METADATA, 9, 1, -1) + b"\x65" + fields + b"\x00" + bytes(8)
    with pytest.raises(Malformed, match="more than 100 elements"):
        read_request(memoryview(data))


def test_a_produce_request_has_fewer_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LOOP_ELEMENTS_MAX", 1000)
    topics = struct.pack(">i", 1001) + 1001 * struct.pack(">h1si", 1, b"a", 0)
    data = struct.pack(">hhihhhi", ApiKey.PRODUCE, 3, 1, -1, -1, 1, 0) + topics
    with pytest.raises(Malformed, match="more than 1000 elements"):
        read_request(memoryview(data))


def test_many_small_elements_are_malformed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "ELEMENTS_MAX", 1000)
    topics = struct.pack(">i", 1001) + 1001 * struct.pack(">h1s", 1, b"a")
    data = struct.pack(">hhih", ApiKey.METADATA, 1, 1, -1) + topics
    with pytest.raises(Malformed, match="more than 1000 elements"):
        read_request(memoryview(data))


@pytest.mark.parametrize(
    ("key", "version", "why"),
    [
        (999, 0, "API key 999"),
        (0, 2, "version 2 of PRODUCE"),
        (1, 99, "version 99 of FETCH"),
        (-1, 0, "API key -1"),
    ],
)
def test_unknown_apis_and_versions_are_malformed(key: int, version: int, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        read_request(memoryview(struct.pack(">hhih", key, version, 1, -1)))


def test_api_versions_of_an_unknown_version_is_answered_in_version_0() -> None:
    request = read_request(memoryview(struct.pack(">hhi", ApiKey.API_VERSIONS, 77, 9) + b"anything"))
    assert not request.known
    (data,) = write_response(
        request, {"error_code": 35, "api_keys": [{"api_key": 0, "min_version": 3, "max_version": 11}]}
    )
    # Size, correlation id, error code, one element.
    assert data == struct.pack(">iihihhh", 16, 9, 35, 1, 0, 3, 11)


def test_bytes_after_a_request_are_ignored() -> None:
    # librdkafka's Metadata 12 for all topics: the null array takes four bytes instead of one.
    data = bytes.fromhex("0003000c00000003000772646b61666b61000000000000010000".replace(" ", ""))
    request = read_request(memoryview(data))
    assert request.body.topics is None
    assert request.client_id == "rdkafka"


def test_a_field_that_must_be_stated_is_missed() -> None:
    request = KafkaRequest(ApiKey.PRODUCE, 9, 1, "", SimpleNamespace())
    with pytest.raises(KeyError, match="needs responses"):
        write_response(request, {})


@pytest.mark.parametrize("version", [4, 11, 12])
def test_large_record_batches_are_pieces_of_their_own(version: int) -> None:
    request = KafkaRequest(ApiKey.FETCH, version, 7, "", SimpleNamespace())
    large = [bytes([number]) * PIECE_BYTES_MIN for number in range(3)]
    sets: list[Any] = [[], [large[0]], [b"small", large[1], b"", b"tiny"], [large[2], large[0]], [b"last"]]

    def body(form: Callable[[Any], Any]) -> dict[str, Any]:
        partitions = [
            {
                "partition_index": number,
                "error_code": 0,
                "high_watermark": 5,
                "last_stable_offset": 5,
                "log_start_offset": 0,
                "aborted_transactions": None,
                "preferred_read_replica": -1,
                "records": form(batches),
            }
            for number, batches in enumerate(sets)
        ]
        return {"error_code": 0, "session_id": 0, "responses": [{"topic": "t", "partitions": partitions}]}

    pieces = write_response(request, body(lambda batches: batches))
    (whole,) = write_response(request, body(b"".join))
    assert b"".join(pieces) == whole
    assert len(whole) == 4 + int.from_bytes(whole[:4], "big")
    # Not copied.
    assert [one for one in pieces if any(one is batch for batch in large)] == [*large, large[0]]

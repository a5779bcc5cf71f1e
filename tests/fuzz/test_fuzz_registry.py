"""Fuzz target: for every answer of a schema registry a fetch gives a schema or a typed error, within bounds
of bytes and of time."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import example, given
from hypothesis import strategies as st

from archiver.config.settings import ConfluentSettings, SchemaRegistrySettings, SchemaSettings
from archiver.registry.client import RegistryClient
from archiver.registry.fetch import SchemaFetcher
from archiver.registry.subjects import complete_set, is_serialized, parse_serialized
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ConfigInvalid, NotFound, RetryLater
from archiver.schema.protobuf.descriptors import make_source
from tests.support.fuzzing import fuzzing
from tests.support.schema.registry_server import RegistryServer, answer

TYPED = (ConfigInvalid, NotFound, RetryLater)
MESSAGE_MAX = 20_000
SALE = "CgdzLnByb3RvEgNsYWIiKgoEU2FsZRIOCgJpZBgBIAEoA1ICaWQSEgoEbm90ZRgCIAEoCVIEbm90ZWIGcHJvdG8z"
DATA = base64.standard_b64decode(SALE)

NUMBERS = st.one_of(
    st.integers(),
    st.integers(10**20, 10**30),
    st.floats(),
    st.booleans(),
    st.sampled_from([0, 1, 2**31, 2**32]),
)
TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["PROTOBUF", "AVRO", "\ud800", "../a", "/", "", "a\x00b", SALE, "syntax=1;"]),
)
JSON = st.recursive(
    st.none() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
REFERENCE = st.fixed_dictionaries({"name": TEXTS | JSON, "subject": TEXTS | JSON, "version": NUMBERS | JSON})
VERSION = st.fixed_dictionaries(
    {},
    optional={
        "subject": JSON,
        "version": st.just(1) | JSON,
        "id": st.just(7) | JSON,
        "schemaType": st.just("PROTOBUF") | JSON,
        "schema": st.just(SALE) | TEXTS | JSON,
        "references": st.lists(REFERENCE, max_size=3) | JSON,
    },
)


def said(ask: Callable[[], object]) -> str:
    """The message of a typed error; empty if there was none. Another error fails the target."""
    try:
        ask()
    except TYPED as error:
        return str(error)
    return ""


class Registry:
    """A registry whose next answers a test decides."""

    def __init__(self, server: RegistryServer) -> None:
        self.server = server
        self.raw: bytes | None = None
        self.documents: dict[str, Any] = {}
        server.odd = self.act

    def act(self, handler: BaseHTTPRequestHandler) -> bool:
        handler.close_connection = True
        if self.raw is not None:
            handler.wfile.write(self.raw)
        else:
            path = handler.path
            kind = (
                "latest"
                if path.endswith("latest")
                else "versions"
                if path.endswith("versions?deleted=true")
                else "version"
            )
            document = self.documents[kind]
            answer(handler, 200, document if isinstance(document, bytes) else json.dumps(document).encode())
        return True

    def settings(self) -> ConfluentSettings:
        return ConfluentSettings(
            url=self.server.url,
            attempts_max=1,
            backoff=0.001,
            down_pause=0.0,
            timeout=5.0,
            answer_bytes_max=64 * 1024,
            references_max=5,
        )

    def judge(self) -> None:
        """Ask as archiving does, and each question by itself."""
        client = RegistryClient(self.settings(), SystemClock())
        fetch = SchemaFetcher(
            SchemaRegistrySettings(confluent=self.settings(), when_down="wait"), SystemClock()
        )
        until_s = time.monotonic() + 60
        for ask in (
            lambda: client.latest("a", until_s),
            lambda: client.versions("a", until_s),
            lambda: client.version("a", 1, until_s),
            lambda: fetch(SchemaSettings(subject="a"), None),
        ):
            assert len(said(ask)) < MESSAGE_MAX


@pytest.fixture(scope="module")
def registry() -> Iterator[Registry]:
    with RegistryServer() as server:
        yield Registry(server)


def response(status: str, headers: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 " + status.encode("latin-1", "replace") + b"\r\n" + headers + b"\r\n" + body


HEADERS = st.lists(
    st.one_of(
        st.binary(max_size=30),
        st.sampled_from(
            [b"Content-Length: -1", b"Content-Length: 99999999999999999999", b"Content-Length: x", b"Transfer-Encoding: chunked",
             b"Location: //other/", b"Location: http://[", b"Location: \xff", b"Content-Type: text/html", b"a: " + b"x" * 70_000,
             b"Connection: keep-alive"]
        ),
    ),
    max_size=3,
).map(lambda lines: b"".join(line + b"\r\n" for line in lines))  # fmt: skip
BODIES = st.one_of(
    st.binary(max_size=100), JSON.map(lambda value: json.dumps(value).encode()), st.just(b"z" * 200_000)
)


@given(
    raw=st.one_of(
        st.binary(max_size=200),
        st.builds(
            response,
            st.sampled_from(["200 OK", "404 x", "302 x", "500 x", "999", "x", "200"]),
            HEADERS,
            BODIES,
        ),
    )
)
@fuzzing(0.5)
@example(raw=response("200 OK", b"Transfer-Encoding: chunked\r\n", b"ffffffffffffffffffffff\r\n"))
@example(raw=response("200 OK", b"Transfer-Encoding: chunked\r\n", b"-1\r\nabc"))
@example(raw=response("302 x", b"Location: http://[::1\r\n", b""))
@example(raw=response("302 x", b"Location: http://a:99999999/\r\n", b""))
@example(raw=response("302 x", b"Location: /a b\xff\r\n", b""))
@example(raw=b"HTTP/1.1 100 Continue\r\n\r\n" * 50)
@example(raw=b"x: y\r\n" * 500)
@example(raw=b"")
def test_any_bytes_for_an_answer(registry: Registry, raw: bytes) -> None:
    registry.raw = raw
    registry.judge()


DEPTHS = [*range(sys.getrecursionlimit() - 120, sys.getrecursionlimit() + 5, 25), 100_000]


@given(latest=VERSION | JSON, versions=st.lists(NUMBERS, max_size=4) | JSON, version=VERSION | JSON)
@fuzzing(0.5)
@example(latest={"version": 1, "id": 7, "schemaType": "PROTOBUF", "schema": SALE}, versions=[1], version={})
def test_any_json_for_an_answer(registry: Registry, latest: Any, versions: Any, version: Any) -> None:
    registry.raw = None
    registry.documents = {"latest": latest, "versions": versions, "version": version}
    registry.judge()


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("key", ["version", "id", "references", "schema", "message", None])
def test_deep_json_is_refused(registry: Registry, depth: int, key: str | None) -> None:
    deep = b"[" * depth + b"]" * depth
    if key == "references":
        deep = b'[{"name":"a","subject":"b","version":' + deep + b"}]"
    body = (
        deep
        if key is None
        else b'{"version":1,"id":7,"schemaType":"PROTOBUF","schema":"x","%s":%s}' % (key.encode(), deep)
    )
    registry.raw = None
    registry.documents = {"latest": body, "versions": body, "version": body}
    registry.judge()


@pytest.mark.parametrize(
    "number", [b"9" * 5000, b"1e999", b"-1e999", b"NaN", b"1" + b"0" * 60_000, b"0.1e-9999"]
)
def test_huge_numbers_are_refused(registry: Registry, number: bytes) -> None:
    body = b'{"version":%s,"id":%s,"schemaType":"PROTOBUF","schema":"x"}' % (number, number)
    registry.raw = None
    registry.documents = {"latest": body, "versions": b"[" + number + b"]", "version": body}
    registry.judge()


def serialized(data: bytes) -> None:
    """What becomes of bytes that a registry holds as a serialized schema."""
    text = base64.standard_b64encode(data)
    if not is_serialized(text):
        return

    def read() -> None:
        file = parse_serialized(text, "a.proto", "here")
        whole = complete_set({"a.proto": file}, "a.proto", "here")
        for message in file.message_type:
            make_source(whole, f"{file.package}.{message.name}".strip("."), "here")

    assert len(said(read)) < MESSAGE_MAX


NAMES = st.sampled_from(["a", "A", "b", "", "a.b", ".lab.A", ".A", "1", "é", "__raw__", "x" * 300]) | st.text(
    max_size=8
)
_IDENTIFIERS = st.sampled_from([".lab.A", ".lab.B", "A", ".google.type.Date", ".google.protobuf.Any", ""])
FIELDS = st.builds(
    lambda name, number, kind, label, type_name, oneof: descriptor_pb2.FieldDescriptorProto(
        name=name, number=number, type=kind, label=label, type_name=type_name, oneof_index=oneof
    ),
    st.sampled_from(["a", "b", "c"]) | NAMES,
    st.integers(1, 5) | st.integers(-(2**31), 2**31 - 1),
    st.sampled_from(descriptor_pb2.FieldDescriptorProto.Type.values()),
    st.sampled_from(descriptor_pb2.FieldDescriptorProto.Label.values()),
    _IDENTIFIERS,
    st.none() | st.none() | st.integers(-2, 3),
)
MESSAGES = st.builds(
    lambda name, fields, oneofs, entry: descriptor_pb2.DescriptorProto(
        name=name,
        field=fields,
        oneof_decl=[descriptor_pb2.OneofDescriptorProto(name=one) for one in oneofs],
        options=descriptor_pb2.MessageOptions(map_entry=True) if entry else None,
    ),
    st.sampled_from(["A", "B"]) | NAMES,
    st.lists(FIELDS, max_size=4),
    st.lists(NAMES, max_size=1),
    st.sampled_from([False, False, False, True]),
)
FILES = st.builds(
    lambda package, syntax, imports, messages, public: descriptor_pb2.FileDescriptorProto(
        name="s.proto",
        package=package,
        syntax=syntax,
        dependency=imports,
        message_type=messages,
        public_dependency=public,
    ),
    st.sampled_from(["lab", "", "lab"]) | NAMES,
    st.sampled_from(["proto2", "proto3", "editions", "", "x"]),
    st.lists(
        st.sampled_from(["google/type/date.proto", "google/protobuf/any.proto", "a.proto", "missing.proto"]),
        max_size=2,
    ),
    st.lists(MESSAGES, max_size=3),
    st.just([]) | st.lists(st.integers(-1, 3), max_size=1),
)


@given(file=FILES)
@fuzzing()
def test_any_descriptor_as_a_serialized_schema(file: descriptor_pb2.FileDescriptorProto) -> None:
    serialized(file.SerializeToString())


@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(DATA)), st.integers(0, 4), st.binary(max_size=4)), min_size=1, max_size=4
    )
)
@fuzzing()
def test_any_bytes_as_a_serialized_schema(edits: list[tuple[int, int, bytes]]) -> None:
    data = DATA
    for at, length, inserted in edits:
        data = data[:at] + inserted + data[at + length :]
    serialized(data)

"""Requests of the Kafka protocol as bytes, for tests that need a client of their own."""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Mapping
from typing import Any, Self

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from archiver.kafka.protocol import ApiKey
from intake.kafka_messages import Output, codec


def request_bytes(
    api: ApiKey, version: int, correlation_id: int, body: Mapping[str, Any], client_id: str = "test"
) -> bytes:
    """One request with its size."""
    schema: Any = load_request_schema(api, version)
    header = io.BytesIO()
    entity_writer(schema.__header_schema__)(
        header,
        schema.__header_schema__(
            request_api_key=api,
            request_api_version=version,
            correlation_id=correlation_id,
            client_id=client_id,
        ),
    )
    content = Output()
    codec(schema)[1](content, body)
    data = header.getvalue() + content
    return struct.pack(">i", len(data)) + data


class WireClient:
    """One connection; sends requests and reads responses. Use it as a context manager."""

    def __init__(self, address: tuple[str, int], timeout_s: float = 30.0) -> None:
        self.socket = socket.create_connection(address, timeout_s)
        self._sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, api: ApiKey, version: int, body: Mapping[str, Any]) -> int:
        """Send a request; its correlation id."""
        self._sent += 1
        self.socket.sendall(request_bytes(api, version, self._sent, body))
        return self._sent

    def receive(self) -> bytes:
        """The next response without its size; raises `ConnectionError` at the end of the connection."""
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            more = self.socket.recv(count - len(found))
            if not more:
                raise ConnectionError("the listener closed the connection")
            found += more
        return found

    def ask(self, api: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """Send a request and read its response, by kio."""
        sent = self.send(api, version, body)
        schema: Any = load_response_schema(api, version)
        data = self.receive()
        header, size = entity_reader(schema.__header_schema__)(data, 0)
        assert header.correlation_id == sent
        response, _ = entity_reader(schema)(data, size)
        return response

    def closed(self) -> bool:
        """Wait until the listener closes the connection; False if it sends something."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

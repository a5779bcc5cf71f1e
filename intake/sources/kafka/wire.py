"""Connections to the brokers of a Kafka cluster: TCP, TLS, SASL, and requests in Kafka's protocol.

Only requests for fetching are here. Their versions are fixed and exist since Kafka 2.3. Opening a connection
blocks, at most for `timeout_s` and for the resolution of its name, which has no bound. After that nothing
blocks but the sending of a request.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import io
import socket
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
from kio.schema.sasl_authenticate.v1.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse
from kio.serial import entity_writer

from archiver.config.kafka import KafkaSourceSettings
from archiver.runtime.clock import Clock
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import IdSource
from archiver.runtime.redaction import MESSAGE_MAX, excerpt
from intake.kafka_messages import Cursor, Malformed, codec

FETCH, FETCH_VERSION = 1, 11
OFFSET_FOR_EPOCH = 23
_REQUIRED = {FETCH: FETCH_VERSION, 3: 7, 17: 1, 36: 1}
"""The version of each API that must exist; the last two with SASL only."""
_OFFSET_FOR_EPOCH_VERSION = 3
RESPONSE_BYTES_MAX = 100_000_000
"""As librdkafka's `receive.message.max.bytes`."""
_SMALL_BYTES_MAX = 64 * 2**20
"""Of a response that no record is in: metadata of 100,000 partitions has a tenth of it."""
_ELEMENTS_MAX = 2_000_000
"""Most array elements of a response: metadata of 100,000 partitions with three replicas has half of them."""
RATE_MIN = 16 * 2**10
"""Bytes of a response for a second: a slower one is given up."""
_PORT = 9092
_SESSION_PART = 0.8
"""A connection is opened again after this part of its SASL session's life."""
_NONCE_BYTES = 18
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_MECHANISMS = ("PLAIN", *_HASHES)
_ITERATIONS_MIN, _ITERATIONS_MAX = 4096, 1_000_000
_UNDERSTOOD = frozenset(
    {
        *("security.protocol", "sasl.mechanisms", "sasl.mechanism", "sasl.username", "sasl.password"),
        *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"),
        *("ssl.endpoint.identification.algorithm", "enable.ssl.certificate.verification"),
        *("client.id", "socket.keepalive.enable"),
        # Pauses between attempts to connect: librdkafka, which still describes topics, keeps to them, and the
        # fetcher has its own, from 0.1 to 10 s.
        *("reconnect.backoff.ms", "reconnect.backoff.max.ms"),
        # They concern the lines of librdkafka alone.
        *("debug", "log_level", "log.connection.close"),
    }
)
_KEY_PAIR = frozenset({"ssl.certificate.location", "ssl.key.location"})
_HEADER = struct.Struct(">ihhi")
_SIZE = struct.Struct(">i")


class WireError(RetryLater):
    """A broker cannot be used now."""


class NotSpoken(WireError):
    """A broker lacks a version of an API, or has records in a format that is not read here."""


@dataclass(frozen=True, slots=True, repr=False)
class Access:
    """How brokers are connected. It has no `repr`, because it has a secret."""

    client_id: str
    tls: ssl.SSLContext | None
    mechanism: str | None
    """Of SASL; None: no authentication."""
    username: str
    password: str


@dataclass(frozen=True, slots=True, repr=False)
class Connecting:
    """What every connection of a source needs."""

    access: Access
    clock: Clock
    ids: IdSource


def access_of(settings: KafkaSourceSettings) -> Access | None:
    """How the brokers of a source are connected; None if `obstacle` names a reason against it.

    Raises `RetryLater` if a file that it names cannot be used.
    """
    given = settings.client()
    protocol = given.get("security.protocol", "plaintext").lower()
    if obstacle(settings) is not None:
        return None
    return Access(
        given.get("client.id", f"stream-archiver-{settings.name}"),
        _tls(given) if protocol.endswith("ssl") else None,
        _mechanism(given),
        given.get("sasl.username", ""),
        given.get("sasl.password", ""),
    )


def obstacle(settings: KafkaSourceSettings) -> str | None:
    """Why the properties of a source do not let it read batches, and what to change; None if they let it."""
    given = settings.client()
    unknown = sorted(given.keys() - _UNDERSTOOD)
    if unknown:
        several = len(unknown) > 1
        return (
            f"only librdkafka knows {', '.join(unknown)}; remove {'them' if several else 'it'} from "
            "the source's properties to read batches"
        )
    if len(_KEY_PAIR & given.keys()) == 1:
        return f"of {' and '.join(sorted(_KEY_PAIR))} only one is set; set both to read batches"
    mechanism = _mechanism(given)
    if mechanism is not None and mechanism not in _MECHANISMS:
        return (
            f"only librdkafka knows the SASL mechanism {mechanism}; use one of {', '.join(_MECHANISMS)} to "
            "read batches"
        )
    return None


def _mechanism(given: Mapping[str, str]) -> str | None:
    if not given.get("security.protocol", "plaintext").lower().startswith("sasl_"):
        return None
    # The default of librdkafka.
    return given.get("sasl.mechanisms", given.get("sasl.mechanism", "GSSAPI"))


def _tls(given: Mapping[str, str]) -> ssl.SSLContext:
    authority = given.get("ssl.ca.location", "probe")
    try:
        if authority == "probe":
            context = ssl.create_default_context()
        elif Path(authority).is_dir():
            context = ssl.create_default_context(capath=authority)
        else:
            context = ssl.create_default_context(cafile=authority)
        # librdkafka does not ask for it, and existing certificates may lack what it requires.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if "ssl.certificate.location" in given:
            context.load_cert_chain(
                given["ssl.certificate.location"],
                given["ssl.key.location"],
                # Never ask at a terminal.
                given.get("ssl.key.password", ""),
            )
    except (OSError, ValueError) as error:
        raise RetryLater(f"the files of TLS cannot be used: {excerpt(str(error), MESSAGE_MAX)}") from None
    return context


def error_of(code: int) -> ErrorCode:
    """The error with Kafka's number."""
    try:
        return ErrorCode(code)
    except ValueError:
        return ErrorCode.unknown_server_error


def name_of(address: tuple[str, int]) -> str:
    """An address in messages."""
    return f"{address[0]}:{address[1]}"


def bootstrap_addresses(brokers: str) -> list[tuple[str, int]]:
    """The addresses in HOST:PORT,HOST:PORT."""
    found: list[tuple[str, int]] = []
    for one in brokers.split(","):
        host, _, port = one.strip().rpartition(":")
        if not port.isdigit() or port == one.strip():
            host, port = one.strip(), str(_PORT)
        found.append((host.strip("[]"), int(port)))
    return found


class Connection:
    """A connection to one broker, with at most one request on the way."""

    def __init__(self, given: Connecting, address: tuple[str, int], timeout_s: float) -> None:
        """Connect and authenticate; raises `WireError`."""
        access = given.access
        self._clock = given.clock
        self.address = address
        self.waits_since_s: float | None = None
        """When the request on the way was sent, by the clock; None: there is none."""
        self.expires_s: float | None = None
        """When its SASL session should be renewed."""
        self._client_id = access.client_id.encode()
        self._timeout_s = timeout_s
        self._until_s = self._clock.monotonic_s() + timeout_s
        self._sent = 0
        self._moved_s = 0.0
        """When the last bytes came, or the request on the way was sent."""
        self._filled = 0
        self._data = memoryview(bytearray(_SIZE.size))
        self._has_size = False
        try:
            self._socket = self._connect()
        # A name that is no host name is a `UnicodeError`.
        except (OSError, UnicodeError) as error:
            raise self._error(error) from None
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if access.tls is not None:
                self._socket.settimeout(self._left_s())
                self._socket = access.tls.wrap_socket(self._socket, server_hostname=address[0])
            self.knows_epochs = self._check_versions(access)
            if access.mechanism is not None:
                self._authenticate(access, access.mechanism, given.ids)
        except BaseException as error:
            self._socket.close()
            if isinstance(error, OSError):
                raise self._error(error) from None
            raise
        self._socket.setblocking(False)

    def _connect(self) -> socket.socket:
        """Try each of its addresses, in an equal part of the time that is left."""
        found = socket.getaddrinfo(*self.address, type=socket.SOCK_STREAM)
        error: OSError = TimeoutError("its name has no address")
        for number, (family, kind, protocol, _, target) in enumerate(found):
            made = socket.socket(family, kind, protocol)
            try:
                made.settimeout(self._left_s() / (len(found) - number))
                made.connect(target)
                return made
            except OSError as failed:
                error = failed
                made.close()
        raise error

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close it; a response on the way is lost."""
        self._socket.close()

    def ask(self, request: Any, response: Any, timeout_s: float) -> SimpleNamespace:
        """Send a small request and wait for its response. Raises `WireError`."""
        self._until_s = self._clock.monotonic_s() + timeout_s
        try:
            return self._ask(request, response)
        except OSError as error:
            raise self._error(error) from None
        finally:
            self._socket.setblocking(False)

    def send(self, api: int, version: int, body: bytes, now_s: float) -> None:
        """Send a request. Raises `WireError`."""
        self._until_s = self._clock.monotonic_s() + self._timeout_s
        self._send(api, version, body)
        self.waits_since_s = self._moved_s = now_s

    def _send(self, api: int, version: int, body: bytes) -> None:
        self._sent += 1
        head = _HEADER.pack(len(body) + _HEADER.size - 4 + 2 + len(self._client_id), api, version, self._sent)
        name = struct.pack(">h", len(self._client_id)) + self._client_id
        left = memoryview(b"".join((head, name, body)))
        try:
            while left:
                self._socket.settimeout(self._left_s())
                left = left[self._socket.send(left) :]
            self._socket.setblocking(False)
        except OSError as error:
            raise self._error(error) from None

    def is_late(self, now_s: float, silence_max_s: float) -> bool:
        """Whether the response on the way is given up: nothing came for so long, or less than `RATE_MIN`."""
        if self.waits_since_s is None:
            return False
        took_s = now_s - self.waits_since_s
        return now_s - self._moved_s > silence_max_s or took_s > silence_max_s + self._filled / RATE_MIN

    def leave_out(self, seconds: float) -> None:
        """Do not count a time without reading as slowness: the broker could only fill the buffers."""
        # Silence counts: what came in that time is in the buffers.
        if self.waits_since_s is not None:
            self.waits_since_s += seconds

    def receive(self, size_max: int = RESPONSE_BYTES_MAX, *, waits: bool = False) -> memoryview | None:
        """The response, without its header, if all of it is here. Raises `WireError`."""
        try:
            while True:
                if waits:
                    # For each: a timeout of the socket begins again with every byte.
                    self._socket.settimeout(self._left_s())
                count = self._socket.recv_into(self._data[self._filled :])
                if count == 0:
                    raise self._error("it closed the connection")
                self._filled += count
                self._moved_s = self._clock.monotonic_s()
                if self._filled < len(self._data):
                    continue
                if self._has_size:
                    return self._complete()
                (size,) = _SIZE.unpack(self._data)
                if not _SIZE.size <= size <= size_max:
                    raise self._error(f"its response has {size} bytes; at most {size_max} are read")
                # Not a `bytearray`, which is filled with zeros first.
                self._data, self._filled, self._has_size = np.empty(size, np.uint8).data, 0, True
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as error:
            raise self._error(error) from None

    def _complete(self) -> memoryview:
        data, self._data = self._data, memoryview(bytearray(_SIZE.size))
        self._filled, self._has_size = 0, False
        self.waits_since_s = None
        (correlation_id,) = _SIZE.unpack_from(data)
        if correlation_id != self._sent:
            raise self._error(f"it responds to request {correlation_id} instead of {self._sent}")
        return data[_SIZE.size :]

    def _ask(self, request: Any, response: Any) -> SimpleNamespace:
        body = io.BytesIO()
        entity_writer(type(request))(body, request)
        self._send(int(request.__api_key__), int(request.__version__), body.getvalue())
        while (data := self.receive(_SMALL_BYTES_MAX, waits=True)) is None:
            pass
        try:
            found: SimpleNamespace = codec(response)[0](Cursor(data, _ELEMENTS_MAX, _ELEMENTS_MAX))
        except Malformed as error:
            raise self._error(f"its response cannot be read: {error}") from None
        return found

    def _left_s(self) -> float:
        left_s = self._until_s - self._clock.monotonic_s()
        if left_s <= 0:
            raise TimeoutError("it does not respond in time")
        return left_s

    def _error(self, why: object) -> WireError:
        return WireError(f"broker {name_of(self.address)}: {excerpt(str(why), MESSAGE_MAX)}")

    # --- the first requests of a connection

    def _check_versions(self, access: Access) -> bool:
        """Whether the broker compares leader epochs; raises `NotSpoken` if it is too old."""
        found = self._ask(ApiVersionsRequest(), ApiVersionsResponse)
        versions = {int(one.api_key): range(one.min_version, one.max_version + 1) for one in found.api_keys}
        for api, version in _REQUIRED.items():
            is_login = api in (17, 36)
            if version not in versions.get(api, ()) and (access.mechanism is not None or not is_login):
                raise NotSpoken(f"the broker does not have version {version} of API {api}")
        return _OFFSET_FOR_EPOCH_VERSION in versions.get(OFFSET_FOR_EPOCH, ())

    def _authenticate(self, access: Access, mechanism: str, ids: IdSource) -> None:
        handshake = self._ask(SaslHandshakeRequest(mechanism=mechanism), SaslHandshakeResponse)
        if handshake.error_code:
            raise self._error(f"it does not accept the SASL mechanism {mechanism}")
        if mechanism == "PLAIN":
            self._prove(f"\0{access.username}\0{access.password}".encode())
            return
        nonce = ids.random_bytes(_NONCE_BYTES).hex()
        scram = ScramClient(_HASHES[mechanism], access.username, access.password, nonce)
        challenge = self._prove(scram.first())
        try:
            proof = scram.final(challenge)
            scram.verify(self._prove(proof))
        except ValueError as error:
            raise self._error(error) from None

    def _prove(self, message: bytes) -> bytes:
        found = self._ask(SaslAuthenticateRequest(auth_bytes=message), SaslAuthenticateResponse)
        if found.error_code:
            why = found.error_message or error_of(found.error_code).name
            raise self._error(f"it refuses the login: {why}")
        life_s = found.session_lifetime / 1000
        if life_s > 0:
            self.expires_s = self._clock.monotonic_s() + _SESSION_PART * life_s
        return bytes(found.auth_bytes)


class ScramClient:
    """The client side of one login by SCRAM (RFC 5802). `final` and `verify` raise `ValueError`."""

    def __init__(self, hash_name: str, username: str, password: str, nonce: str) -> None:
        self._hash = hash_name
        self._password = password.encode()
        self._nonce = nonce
        self._bare = f"n={username.replace('=', '=3D').replace(',', '=2C')},r={nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        """The first message."""
        return f"n,,{self._bare}".encode()

    def final(self, challenge: bytes) -> bytes:
        """The message with the proof, for the server's first message."""
        fields = _fields(challenge)
        nonce, iterations = fields.get("r", ""), int(fields.get("i", "0"))
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise ValueError("its SCRAM nonce does not continue ours")
        # Few would make the password easy to guess, and many would take all time.
        if not _ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX:
            raise ValueError(f"it wants {iterations} SCRAM iterations")
        salt = base64.b64decode(fields.get("s", ""), validate=True)
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        client_key = hmac.digest(salted, b"Client Key", self._hash)
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{challenge.decode()},{without_proof}".encode()
        signature = hmac.digest(hashlib.new(self._hash, client_key).digest(), signed, self._hash)
        proof = bytes(one ^ other for one, other in zip(client_key, signature, strict=True))
        self._server_signature = hmac.digest(
            hmac.digest(salted, b"Server Key", self._hash), signed, self._hash
        )
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, answer: bytes) -> None:
        """Check that the server knows the password, too."""
        shown = base64.b64decode(_fields(answer).get("v", ""), validate=True)
        if not hmac.compare_digest(shown, self._server_signature):
            raise ValueError("it does not prove that it knows the password")


def _fields(message: bytes) -> dict[str, str]:
    return {one[:1]: one[2:] for one in message.decode().split(",") if one[1:2] == "="}

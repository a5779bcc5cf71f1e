"""How brokers are connected: which properties are understood, addresses, and logins by SCRAM."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse

from archiver.config.kafka import KafkaSourceSettings
from archiver.kafka.sasl import SCRAM_HASHES, derive_credentials
from archiver.runtime.clock import ManualClock, SystemClock
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import SystemIds
from intake.sources.kafka.batch_client import connect_source
from intake.sources.kafka.client_log import REPEAT_S, ClientLog
from intake.sources.kafka.wire import (
    FETCH,
    FETCH_VERSION,
    RATE_MIN,
    Connecting,
    Connection,
    ScramClient,
    WireError,
    access_of,
    bootstrap_addresses,
    obstacle,
)

PATIENCE_S = 120.0


def settings(properties: Mapping[str, Any]) -> KafkaSourceSettings:
    return KafkaSourceSettings.model_validate(
        {"brokers": "127.0.0.1:1", "topics": "a", "properties": properties}
    )


def test_without_properties_the_connection_is_plain() -> None:
    access = access_of(settings({}))
    assert access is not None
    assert (access.tls, access.mechanism, access.client_id) == (None, None, "stream-archiver-kafka")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        # The library's mechanism without a property.
        ({"security.protocol": "SASL_PLAINTEXT"}, "mechanism GSSAPI; use one of PLAIN, SCRAM-SHA-256"),
        ({"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "GSSAPI"}, "mechanism GSSAPI;"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER"}, "mechanism OAUTHBEARER;"),
        ({"client.rack": "a"}, "only librdkafka knows client.rack; remove it from the source's properties"),
        ({"broker.address.family": "v4"}, "knows broker.address.family; remove it"),
        (
            {"client.rack": "a", "broker.address.family": "v4"},
            "knows broker.address.family, client.rack; remove them",
        ),
        (
            {"security.protocol": "SSL", "ssl.key.location": "/k"},
            "ssl.key.location only one is set; set both",
        ),
        ({"security.protocol": "SSL", "ssl.cipher.suites": "x"}, "knows ssl.cipher.suites; remove it"),
    ],
)
def test_properties_with_another_meaning_are_left_to_the_library(given: dict[str, str], why: str) -> None:
    assert access_of(settings(given)) is None
    found = obstacle(settings(given))
    assert found is not None and why in found


def test_a_source_whose_properties_allow_no_batches_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    kafka = settings({"client.rack": "a"})
    clock = ManualClock()
    log = ClientLog(f"source {kafka.name}", clock)
    for _ in range(3):
        connect_source(kafka, clock, log).close()
        # Later than a repeated line of the client appears again.
        clock.advance(REPEAT_S + 1)
        log.answered()
    lines = [one.getMessage() for one in caplog.records if "one by one" in one.getMessage()]
    (line,) = lines
    assert line == (
        "source kafka: kafka client: records are read one by one, which takes more CPU, because only librdkafka "
        "knows client.rack; remove it from the source's properties to read batches"
    )
    connect_source(settings({}), clock).close()
    assert len([one for one in caplog.records if "one by one" in one.getMessage()]) == 1


def test_pauses_between_attempts_do_not_keep_batches_from_being_read() -> None:
    given = {"reconnect.backoff.ms": "50", "reconnect.backoff.max.ms": "200"}
    assert access_of(settings(given)) == access_of(settings({})) is not None


def test_properties_of_tls_and_of_a_login_are_understood() -> None:
    given = {
        "security.protocol": "sasl_ssl",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "ssl.endpoint.identification.algorithm": "https",
    }
    access = access_of(settings(given))
    assert access is not None and access.tls is not None
    assert access.tls.check_hostname and access.tls.verify_mode.name == "CERT_REQUIRED"
    assert (access.mechanism, access.username) == ("SCRAM-SHA-512", "u")


def test_a_file_that_is_not_there_is_said() -> None:
    with pytest.raises(RetryLater, match="TLS"):
        access_of(settings({"security.protocol": "SSL", "ssl.ca.location": "/no/such/file"}))


def test_addresses() -> None:
    assert bootstrap_addresses("a:1, b:22,c,[::1]:9") == [("a", 1), ("b", 22), ("c", 9092), ("::1", 9)]


def exchange(mechanism: str, nonce: str = "n" * 20, iterations: int = 4096) -> tuple[ScramClient, bytes]:
    client = ScramClient(SCRAM_HASHES[mechanism], "a=b,c", "pässword", "n" * 20)
    assert client.first() == b"n,,n=a=3Db=2Cc,r=" + b"n" * 20
    return client, f"r={nonce}more,s=c2FsdHNhbHQ=,i={iterations}".encode()


@pytest.mark.parametrize("mechanism", sorted(SCRAM_HASHES))
def test_a_server_that_does_not_know_the_password_is_refused(mechanism: str) -> None:
    name = SCRAM_HASHES[mechanism]
    client, challenge = exchange(mechanism)
    final = client.final(challenge).decode()
    known = derive_credentials(mechanism, "pässword".encode(), base64.b64decode("c2FsdHNhbHQ="), 4096)
    without, proof = final.rsplit(",p=", 1)
    signed = f"n=a=3Db=2Cc,r={'n' * 20},{challenge.decode()},{without}".encode()
    client_key = bytes(
        one ^ other
        for one, other in zip(
            base64.b64decode(proof), hmac.digest(known.stored_key, signed, name), strict=True
        )
    )
    assert hashlib.new(name, client_key).digest() == known.stored_key, "the proof is right"
    client.verify(b"v=" + base64.b64encode(hmac.digest(known.server_key, signed, name)))
    with pytest.raises(ValueError, match="prove"):
        client.verify(b"v=" + base64.b64encode(hmac.digest(b"other", signed, name)))
    with pytest.raises(ValueError, match="prove"):
        client.verify(b"e=unknown-user")


def test_a_challenge_of_another_exchange_is_refused() -> None:
    client, challenge = exchange("SCRAM-SHA-256", nonce="m" * 20)
    with pytest.raises(ValueError, match="nonce"):
        client.final(challenge)


@pytest.mark.parametrize("iterations", [1, 10**9])
def test_few_and_many_iterations_are_refused(iterations: int) -> None:
    client, challenge = exchange("SCRAM-SHA-256", iterations=iterations)
    with pytest.raises(ValueError, match="iterations"):
        client.final(challenge)


@contextmanager
def slow_server(first: bytes) -> Iterator[tuple[str, int]]:
    """It sends a byte now and then."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.sendall(first)
                    while not ended.wait(0.2):
                        connection.sendall(b"\0")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize(
    ("protocol", "first"),
    [
        ("plaintext", struct.pack(">i", 10_000)),
        # The header of a handshake message.
        ("ssl", b"\x16\x03\x03\x3f\xff\x02\x00\x3f\xfb"),
    ],
)
def test_a_server_that_sends_a_byte_at_a_time_is_given_up(protocol: str, first: bytes) -> None:
    access = access_of(settings({"security.protocol": protocol}))
    assert access is not None
    failed: list[Exception] = []

    def connect(address: tuple[str, int]) -> None:
        try:
            Connection(Connecting(access, SystemClock(), SystemIds()), address, 1.0)
        except WireError as error:
            failed.append(error)

    with slow_server(first) as address:
        thread = threading.Thread(target=connect, args=(address,), daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        assert failed, "it still waits"


@contextmanager
def partial_server(part: bytes) -> Iterator[tuple[str, int]]:
    """It responds to the first request, and with a part of a response to the second one."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    connection.recv(10_000)
                    keys = b"".join(struct.pack(">hhh", api, 0, 20) for api in (1, 3))
                    body = struct.pack(">ihi", 1, 0, 2) + keys
                    connection.sendall(struct.pack(">i", len(body)) + body)
                    connection.recv(10_000)
                    connection.sendall(part)
                    connection.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()
        thread.join(PATIENCE_S)


def test_a_response_is_late_after_a_silence_or_below_a_rate() -> None:
    clock = ManualClock()
    access = access_of(settings({}))
    assert access is not None
    with partial_server(struct.pack(">i", 10**7) + bytes(96 * RATE_MIN)) as address:
        made = Connection(Connecting(access, clock, SystemIds()), address, 200.0)
        made.send(FETCH, FETCH_VERSION, b"", 0.0)
        clock.sleep(100)
        deadline = time.monotonic() + PATIENCE_S
        while made.is_late(100.0, 4.1):
            assert made.receive() is None
            assert time.monotonic() < deadline
        assert not made.is_late(115.0, 20.0)
        assert made.is_late(117.0, 20.0), "the rate is too low"
        made.leave_out(10.0)
        assert not made.is_late(117.0, 20.0)
        assert made.is_late(121.0, 20.0), "it is silent"
        made.close()


@pytest.mark.parametrize("count", [2**31 - 1, -2, 10**6])
def test_an_array_that_the_response_has_no_room_for_is_refused(count: int) -> None:
    """kio's parser allocates what it states, and ends the process."""
    content = struct.pack(">ihi", 2, 0, count)
    access = access_of(settings({}))
    assert access is not None
    with partial_server(struct.pack(">i", len(content)) + content) as address:
        made = Connection(Connecting(access, SystemClock(), SystemIds()), address, PATIENCE_S)
        with pytest.raises(WireError, match="cannot be read"):
            made.ask(ApiVersionsRequest(), ApiVersionsResponse, PATIENCE_S)
        made.close()


@pytest.mark.parametrize("name", ["a" * 70 + ".example", "\udcff"])
def test_a_name_that_is_no_host_name_is_an_error_of_the_broker(name: str) -> None:
    access = access_of(settings({}))
    assert access is not None
    with pytest.raises(WireError):
        Connection(Connecting(access, SystemClock(), SystemIds()), (name, 9092), 1)

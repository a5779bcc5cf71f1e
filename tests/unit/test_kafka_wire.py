"""How brokers are connected: which properties are understood, addresses, and logins by SCRAM."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

import pytest

from archiver.config.kafka import KafkaSourceSettings
from archiver.kafka.sasl import SCRAM_HASHES, derive_credentials
from archiver.runtime.errors import RetryLater
from intake.sources.kafka.wire import ScramClient, access_of, bootstrap_addresses


def settings(properties: Mapping[str, Any]) -> KafkaSourceSettings:
    return KafkaSourceSettings.model_validate(
        {"brokers": "127.0.0.1:1", "topics": "a", "properties": properties}
    )


def test_without_properties_the_connection_is_plain() -> None:
    access = access_of(settings({}))
    assert access is not None
    assert (access.tls, access.mechanism, access.client_id) == (None, None, "stream-archiver-kafka")


@pytest.mark.parametrize(
    "given",
    [
        {"security.protocol": "SASL_PLAINTEXT"},  # the library's mechanism is GSSAPI
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanisms": "GSSAPI"},
        {"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER"},
        {"client.rack": "a"},
        {"broker.address.family": "v4"},
        {"security.protocol": "SSL", "ssl.key.location": "/k"},
        {"security.protocol": "SSL", "ssl.cipher.suites": "x"},
    ],
)
def test_properties_with_another_meaning_are_left_to_the_library(given: dict[str, str]) -> None:
    assert access_of(settings(given)) is None


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

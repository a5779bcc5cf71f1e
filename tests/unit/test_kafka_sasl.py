"""SASL: clients with the right password are authenticated, and every other message gets one and the same error."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
from collections.abc import Callable, Iterator

import pytest
from aiokafka.conn import ScramAuthenticator
from hypothesis import given
from hypothesis import strategies as st
from kafka.net.sasl.plain import SaslMechanismPlain
from kafka.net.sasl.scram import ScramClient

from archiver.kafka import sasl
from archiver.kafka.sasl import (
    ITERATIONS,
    ITERATIONS_MIN,
    MESSAGE_BYTES_MAX,
    NAME_BYTES_MAX,
    NONCE_MAX,
    SCRAM_HASHES,
    SaslExchange,
    ScramCredentials,
    Users,
    derive_credentials,
)
from archiver.runtime.errors import AuthenticationFailed, InvalidInput
from archiver.runtime.ids import SeededIds
from tests.support.fuzzing import fuzzing

PASSWORD = "pencil, and =paper ü"
NAMES = ("alice", "bob,the=builder", "søren")
SALT = b"sixteen bytes...", b"another sixteen."
DECOY_KEY = b"k" * 32
SCRAM = sorted(SCRAM_HASHES)


def credentials(password: str, iterations: int = ITERATIONS_MIN) -> dict[str, ScramCredentials]:
    return {
        mechanism: derive_credentials(mechanism, password.encode(), salt, iterations)
        for mechanism, salt in zip(SCRAM, SALT, strict=True)
    }


STORED = credentials(PASSWORD)
USERS = Users(dict.fromkeys(NAMES, STORED), DECOY_KEY)


def exchange(mechanism: str, users: Users = USERS, seed: int = 1) -> SaslExchange:
    return SaslExchange(mechanism, users, SeededIds(seed))


def refused(one: SaslExchange, message: bytes) -> None:
    with pytest.raises(AuthenticationFailed) as caught:
        one.step(message)
    assert str(caught.value) == str(AuthenticationFailed()), "the message is constant"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


class Client:
    """A SCRAM client that follows RFC 5802 and lets the test choose each part."""

    def __init__(self, mechanism: str, name: str, password: str = PASSWORD, header: str = "n,,") -> None:
        self.hash, self.password, self.header = SCRAM_HASHES[mechanism], password, header
        escaped = name.replace("=", "=3D").replace(",", "=2C")
        self.bare = f"n={escaped},r=abcdefghijkl"

    def first(self) -> bytes:
        return (self.header + self.bare).encode()

    def final(self, answer: bytes, extensions: str = "") -> bytes:
        server_first = answer.decode()
        parts = dict(part.split("=", 1) for part in server_first.split(","))
        binding = base64.b64encode(self.header.encode()).decode()
        without = f"c={binding},r={parts['r']}{extensions}"
        stored = derive_credentials(
            f"SCRAM-{self.hash[:3].upper()}-{self.hash[3:]}",
            self.password.encode(),
            base64.b64decode(parts["s"]),
            int(parts["i"]),
        )
        # The client key itself is not among the stored ones.
        salted = hashlib.pbkdf2_hmac(
            self.hash, self.password.encode(), base64.b64decode(parts["s"]), int(parts["i"])
        )
        key = hmac.digest(salted, b"Client Key", self.hash)
        signed = f"{self.bare},{server_first},{without}".encode()
        signature = hmac.digest(stored.stored_key, signed, self.hash)
        self.expected = b"v=" + base64.b64encode(hmac.digest(stored.server_key, signed, self.hash))
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{without},p={base64.b64encode(proof).decode()}".encode()


# --- Test vectors of the RFCs.
VECTORS = {
    # RFC 5802, section 5. The mechanism is not offered; its state machine is the same.
    "SCRAM-SHA-1": (
        "fyko+d2lbbFgONRv9qkxdawL",
        "3rfcNHYJY1ZVvWVs7j",
        "QSXCR+Q6sek8bf92",
        "v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
        "rmF9pqV8S7suAoZWja4dJRkFsKQ=",
    ),
    # RFC 7677, section 3.
    "SCRAM-SHA-256": (
        "rOprNGfwEbeRWgbNEkqO",
        "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0",
        "W22ZaJ0SNY7soEsUEjb6gQ==",
        "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
        "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ),
}


@pytest.mark.parametrize("mechanism", sorted(VECTORS))
def test_vectors_of_the_rfcs(mechanism: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client_nonce, server_nonce, salt, proof, verifier = VECTORS[mechanism]
    monkeypatch.setattr(sasl, "SCRAM_HASHES", {**SCRAM_HASHES, "SCRAM-SHA-1": "sha1"})
    stored = {
        name: derive_credentials(name, b"pencil", base64.b64decode(salt), 4096) for name in sasl.SCRAM_HASHES
    }
    # The nonce of the RFC is no base64, so it stands in for the encoded one.
    monkeypatch.setattr(base64, "b64encode", _encoder(server_nonce))
    one = SaslExchange(mechanism, Users({"user": stored}, DECOY_KEY), SeededIds(1))
    answer, principal = one.step(f"n,,n=user,r={client_nonce}".encode())
    assert (answer, principal) == (f"r={client_nonce}{server_nonce},s={salt},i=4096".encode(), None)
    final, principal = one.step(f"c=biws,r={client_nonce}{server_nonce},p={proof}".encode())
    assert (final, principal) == (f"v={verifier}".encode(), "User:user")


def _encoder(server_nonce: str) -> Callable[[bytes], bytes]:
    drawn = SeededIds(1).random_bytes(sasl._NONCE_BYTES)
    real = base64.b64encode
    return lambda data: server_nonce.encode() if data == drawn else real(data)


# --- Other implementations as judges.
class AiokafkaClient:
    def __init__(self, mechanism: str, name: str, password: str) -> None:
        self.one = ScramAuthenticator(
            loop=None, sasl_plain_password=password, sasl_plain_username=name, sasl_mechanism=mechanism
        )

    def first(self) -> bytes:
        return str(self.one.first_message()).encode()

    def final(self, answer: bytes) -> bytes:
        self.one.process_server_first_message(answer.decode())
        return str(self.one.final_message()).encode()

    def verify(self, answer: bytes) -> None:
        self.one.process_server_final_message(answer.decode())


class KafkaPythonClient:
    def __init__(self, mechanism: str, name: str, password: str) -> None:
        # It does not escape names, against the RFC.
        self.one = ScramClient(name.replace("=", "=3D").replace(",", "=2C"), password, mechanism)

    def first(self) -> bytes:
        return bytes(self.one.first_message())

    def final(self, answer: bytes) -> bytes:
        self.one.process_server_first_message(answer)
        return bytes(self.one.final_message())

    def verify(self, answer: bytes) -> None:
        self.one.process_server_final_message(answer)


OtherClient = type[AiokafkaClient] | type[KafkaPythonClient]


@pytest.mark.parametrize("implementation", [AiokafkaClient, KafkaPythonClient])
@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("name", NAMES)
def test_clients_of_others_authenticate_with_scram(
    implementation: OtherClient, mechanism: str, name: str
) -> None:
    client, one = implementation(mechanism, name, PASSWORD), exchange(mechanism)
    answer, principal = one.step(client.first())
    assert principal is None
    answer, principal = one.step(client.final(answer))
    assert principal == f"User:{name}"
    client.verify(answer)  # raises if we have not proved that we know the password
    refused(one, b"")


@pytest.mark.parametrize("implementation", [AiokafkaClient, KafkaPythonClient])
@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize(("name", "password"), [("alice", "Pencil"), ("mallory", PASSWORD)])
def test_clients_of_others_with_wrong_credentials_are_refused(
    implementation: OtherClient, mechanism: str, name: str, password: str
) -> None:
    client, one = implementation(mechanism, name, password), exchange(mechanism)
    refused(one, client.final(one.step(client.first())[0]))


def test_plain_of_kafka_python() -> None:
    for name in NAMES:
        client = SaslMechanismPlain(sasl_plain_username=name, sasl_plain_password=PASSWORD)
        assert exchange("PLAIN").step(client.auth_bytes()) == (b"", f"User:{name}")


# --- PLAIN.
def test_plain_without_and_with_the_identity() -> None:
    for identity in ("", "alice"):
        message = f"{identity}\0alice\0{PASSWORD}".encode()
        assert exchange("PLAIN").step(message) == (b"", "User:alice")


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\0\0",
        b"\0alice",
        b"\0alice\0",
        f"\0\0{PASSWORD}".encode(),
        f"\0alice\0{PASSWORD}\0".encode(),
        f"\0Alice\0{PASSWORD}".encode(),
        f"\0alice\0{PASSWORD} ".encode(),
        f"\0mallory\0{PASSWORD}".encode(),
        # No user acts for another one.
        f"bob\0alice\0{PASSWORD}".encode(),
        b"\0alice\0\xff\xfe",
        b"\0al\xffice\0" + PASSWORD.encode(),
        b"\0" + b"a" * (NAME_BYTES_MAX + 1) + b"\0x",
        b"\0alice\0" + b"x" * MESSAGE_BYTES_MAX,
    ],
)
def test_plain_that_is_refused(message: bytes) -> None:
    one = exchange("PLAIN")
    refused(one, message)
    # The right password comes too late: the exchange has ended.
    refused(one, f"\0alice\0{PASSWORD}".encode())


def test_an_unknown_user_costs_as_much_as_a_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    derived: list[tuple[str, int, int]] = []

    def counting(mechanism: str, password: bytes, salt: bytes, iterations: int) -> ScramCredentials:
        derived.append((mechanism, len(salt), iterations))
        return derive_credentials(mechanism, password, salt, iterations)

    monkeypatch.setattr(sasl, "derive_credentials", counting)
    for name in ("alice", "mallory"):
        refused(exchange("PLAIN"), f"\0{name}\0wrong".encode())
    assert derived == [("SCRAM-SHA-256", 16, ITERATIONS_MIN)] * 2


# --- SCRAM.
@pytest.mark.parametrize("mechanism", SCRAM)
@pytest.mark.parametrize("header", ["n,,", "y,,", "n,a=alice,", "y,a=alice,"])
def test_headers_that_clients_may_send(mechanism: str, header: str) -> None:
    client, one = Client(mechanism, "alice", header=header), exchange(mechanism)
    final, principal = one.step(client.final(one.step(client.first())[0]))
    assert (final, principal) == (client.expected, "User:alice")
    assert one.claimed_name == "alice"


@pytest.mark.parametrize(
    "message",
    [
        "",
        "n,,",
        "n,,n=alice",
        "n,,r=abc,n=alice",
        "n=alice,r=abc",
        # The binding of the channel is demanded, or is none that exists.
        "p=tls-unique,,n=alice,r=abc",
        "x,,n=alice,r=abc",
        ",,n=alice,r=abc",
        "N,,n=alice,r=abc",
        "n,a=bob,n=alice,r=abc",
        "n,b=alice,n=alice,r=abc",
        # An extension that must be understood.
        "n,,m=x,n=alice,r=abc",
        "n,,n=alice,r=abc,m=x",
        "n,,n=alice,r=abc,tokenauth=true",
        "n,,n=alice,r=abc,",
        "n,,n=alice,r=abc,x",
        "n,,n=alice,r=abc,x=",
        "n,,n=alice,r=abc,1=2",
        "n,,n=alice,r=abc,x=\0",
        "n,,n=alice,r=abc,r=def",
        "n,,n=alice,r=",
        "n,,n=alice,r=a b",
        "n,,n=alice,r=ä",
        "n,,n=alice,r=a\0",
        "n,,n=,r=abc",
        "n,,n=a=b,r=abc",
        "n,,n=a=2c,r=abc",
        "n,,n=a=,r=abc",
        "n,,n=al\0ice,r=abc",
        f"n,,n={'a' * (NAME_BYTES_MAX + 1)},r=abc",
        f"n,,n={'ü' * (NAME_BYTES_MAX // 2 + 1)},r=abc",
        f"n,,n=alice,r={'r' * (NONCE_MAX + 1)}",
        f"n,,n=alice,r=abc,x={'x' * MESSAGE_BYTES_MAX}",
    ],
)
def test_first_messages_that_are_refused(message: str) -> None:
    for mechanism in SCRAM:
        one = exchange(mechanism)
        refused(one, message.encode())
        refused(one, b"n,,n=alice,r=abc")


@pytest.mark.parametrize("mechanism", SCRAM)
def test_first_messages_that_are_not_utf8(mechanism: str) -> None:
    refused(exchange(mechanism), b"n,,n=al\xffice,r=abc")
    refused(exchange(mechanism), b"n,,n=alice,r=abc,x=\xc3")


@pytest.mark.parametrize("mechanism", SCRAM)
def test_longest_parts_and_unknown_extensions_are_accepted(mechanism: str) -> None:
    name = "n" * NAME_BYTES_MAX
    users = Users({name: STORED}, DECOY_KEY)
    client, one = Client(mechanism, name), exchange(mechanism, users)
    client.bare = f"n={name},r={'r' * NONCE_MAX},x=1,acme=a=b"
    final, principal = one.step(client.final(one.step(client.first())[0], extensions=",y=2"))
    assert (final, principal) == (client.expected, f"User:{name}")


@pytest.mark.parametrize("mechanism", SCRAM)
def test_final_messages_of_another_exchange_are_refused(mechanism: str) -> None:
    client = Client(mechanism, "alice")
    first, second = exchange(mechanism, seed=1), exchange(mechanism, seed=2)
    answer, other = first.step(client.first())[0], second.step(client.first())[0]
    assert answer != other, "our part of the nonce differs"
    final = client.final(answer)
    assert first.step(final)[1] == "User:alice"
    # The recorded message neither works in a new exchange nor a second time.
    refused(second, final)
    refused(first, final)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_the_header_must_be_the_one_of_the_first_message(mechanism: str) -> None:
    # Otherwise an attacker in the middle could remove the channel binding.
    client, one = Client(mechanism, "alice", header="y,,"), exchange(mechanism)
    answer = one.step(client.first())[0]
    client.header = "n,,"
    refused(one, client.final(answer))


@pytest.mark.parametrize("mechanism", SCRAM)
def test_proof_of_another_mechanism_or_user_is_refused(mechanism: str) -> None:
    (other,) = set(SCRAM) - {mechanism}
    client, one = Client(other, "alice"), exchange(mechanism)
    refused(one, client.final(one.step(client.first())[0]))
    users = Users({"alice": STORED, "bob": credentials("eraser")}, DECOY_KEY)
    client, one = Client(mechanism, "bob"), exchange(mechanism, users)
    refused(one, client.final(one.step(client.first())[0]))


def _altered(message: bytes) -> Iterator[bytes]:
    """The message truncated, and with each byte removed, doubled or changed."""
    for place in range(len(message)):
        yield message[:place]
        yield message[:place] + message[place + 1 :]
        yield message[: place + 1] + message[place:]
        for value in (0, message[place] ^ 1, message[place] ^ 0x80, 255, ord(","), ord("=")):
            if value != message[place]:
                yield message[:place] + bytes([value]) + message[place + 1 :]


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_final_message_that_is_altered_anywhere_is_refused(mechanism: str) -> None:
    client = Client(mechanism, "alice")
    final = client.final(exchange(mechanism).step(client.first())[0])
    for message in _altered(final):
        if message != final:
            one = exchange(mechanism)
            one.step(client.first())
            refused(one, message)


@pytest.mark.parametrize("mechanism", SCRAM)
def test_a_first_message_that_is_altered_anywhere_authenticates_no_client(mechanism: str) -> None:
    client = Client(mechanism, "alice")
    first = client.first()
    for message in _altered(first):
        one = exchange(mechanism)
        try:
            answer = one.step(message)[0]
        except AuthenticationFailed:
            continue
        # The client signs the message that it sent, and gets the answer to another one.
        if message != first:
            refused(one, client.final(answer))


@fuzzing()
@given(st.sampled_from(["PLAIN", *SCRAM]), st.lists(st.binary(max_size=200), min_size=1, max_size=3))
def test_any_bytes_are_refused(mechanism: str, messages: list[bytes]) -> None:
    one = exchange(mechanism)
    for message in messages:
        refused(one, message)


@fuzzing()
@given(
    st.sampled_from(SCRAM),
    st.lists(st.sampled_from([*"nyparcmsixv,=01", "2C", "3D", "n,,", "n=alice", "r=", "é"]), max_size=20),
)
def test_any_message_of_the_right_letters_is_answered_or_refused(mechanism: str, parts: list[str]) -> None:
    one = exchange(mechanism)
    try:
        answer, principal = one.step("".join(parts).encode())
    except AuthenticationFailed:
        return
    assert principal is None
    assert answer.startswith(b"r=")
    refused(one, "".join(parts).encode())


# --- Unknown users.
@pytest.mark.parametrize("mechanism", SCRAM)
def test_an_unknown_user_gets_an_answer_like_that_of_a_known_one(mechanism: str) -> None:
    def answer(name: str, users: Users, seed: int) -> dict[str, str]:
        text = exchange(mechanism, users, seed).step(Client(mechanism, name).first())[0].decode()
        return dict(part.split("=", 1) for part in text.split(","))

    known, unknown = answer("alice", USERS, 1), answer("mallory", USERS, 1)
    assert {key: len(value) for key, value in known.items()} == {k: len(v) for k, v in unknown.items()}
    assert known["i"] == unknown["i"]
    # The salt is stable, also in another process with other users, and differs between users.
    again = answer("mallory", Users({"bob": STORED}, DECOY_KEY), 2)
    assert (again["s"], again["i"]) == (unknown["s"], unknown["i"])
    assert again["r"] != unknown["r"]
    assert answer("mallory2", USERS, 1)["s"] != unknown["s"]
    assert answer("mallory", Users({"alice": STORED}, b"o" * 32), 1)["s"] != unknown["s"]


def test_decoys_have_only_iterations_and_salts_that_users_have() -> None:
    users = Users({"alice": credentials("a", 4096), "bob": credentials("b", 5000)}, DECOY_KEY)
    found = [users.find(f"user-{number}", SCRAM[0]) for number in range(50)]
    assert {one.iterations for one, _ in found} == {4096, 5000}
    assert not any(known for _, known in found)
    assert Users({}, DECOY_KEY).find("alice", SCRAM[0])[0].iterations == ITERATIONS


def test_proof_that_fits_a_decoy_is_refused() -> None:
    # Not possible without the key of the decoys; with it, the name is still unknown.
    class Known(Users):
        def _decoy(self, name: str, mechanism: str) -> ScramCredentials:
            return STORED[mechanism]

    users = Known({}, DECOY_KEY)
    for mechanism in SCRAM:
        client, one = Client(mechanism, "alice"), exchange(mechanism, users)
        refused(one, client.final(one.step(client.first())[0]))
    refused(exchange("PLAIN", users), f"\0alice\0{PASSWORD}".encode())


def test_nothing_shows_credentials(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    refused(exchange("PLAIN"), b"\0alice\0secret-\xff")
    stored = STORED[SCRAM[0]]
    for text in (repr(stored), repr(USERS), str(STORED), caplog.text):
        assert repr(stored.stored_key) not in text
        assert base64.b64encode(stored.stored_key).decode() not in text
        assert "secret-" not in text


@pytest.mark.parametrize("mechanism", ["", "plain", "GSSAPI", "SCRAM-SHA-1", "X" * 1000])
def test_mechanisms_that_do_not_exist(mechanism: str) -> None:
    with pytest.raises(InvalidInput, match="SCRAM-SHA-512") as caught:
        exchange(mechanism)
    assert len(str(caught.value)) < 200

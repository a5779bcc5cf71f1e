"""Security of the Kafka listener with real clients: who may connect, and what each principal can find out."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import ssl
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, KafkaProducer
from kio.schema.errors import ErrorCode

from archiver.kafka import authentication
from archiver.kafka.protocol import VERSIONS, ApiKey
from archiver.kafka.users import delete_user, set_user
from archiver.runtime.ids import SystemIds
from intake.records import Record
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.kafka.random_requests import right_request
from tests.support.kafka.wire import WireClient, request_bytes
from tests.support.log.etcd_certificates import Certificates, make_certificates
from tests.support.process.processes import until

pytestmark = pytest.mark.timeout(120)

TOPICS = [{"name": name, "partitions": 2} for name in ("open", "shown", "hidden")]
RULES = [
    {"principal": "User:alice", "operations": ["read", "write"], "topics": ["open"]},
    {"principal": "User:alice", "operations": ["describe"], "topics": ["shown"]},
    {"principal": "User:O=tests", "operations": ["all"], "topics": ["*"]},
    {"principal": "User:bob", "operations": ["all"], "topics": ["*"]},
]
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORDS = {"alice": "wonderland", "bob": "builder"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


@contextmanager
def _open(root: Path, certificates: Certificates | None = None, **more: Any) -> Iterator[Listening]:
    users = root / "users"
    for name, password in PASSWORDS.items():
        set_user(users, name, password, 4096, SystemIds())
    kafka: dict[str, Any] = {
        "sasl": {"mechanisms": list(MECHANISMS)},
        "users_file": str(users),
        "acls": RULES,
    }
    if certificates is not None:
        kafka["tls"] = {"cert_file": str(certificates.server), "key_file": str(certificates.server_key)}
    kafka |= more
    kafka = {name: value for name, value in kafka.items() if value is not None}
    with listening(configured(root / "deployment", TOPICS, kafka=kafka)) as found:
        yield found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    with _open(tmp_path_factory.mktemp("plain")) as found:
        yield found


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory, certificates: Certificates) -> Iterator[Listening]:
    with _open(tmp_path_factory.mktemp("encrypted"), certificates) as found:
        yield found


# --- Who may connect

Produce = Callable[[Listening, Mapping[str, Any]], None]
"""Stores a record in the topic `open`; raises if the client is refused."""


def _by_librdkafka(found: Listening, options: Mapping[str, Any]) -> None:
    names = {
        "security_protocol": "security.protocol",
        "sasl_mechanism": "sasl.mechanism",
        "sasl_plain_username": "sasl.username",
        "sasl_plain_password": "sasl.password",
        "ssl_cafile": "ssl.ca.location",
        "ssl_certfile": "ssl.certificate.location",
        "ssl_keyfile": "ssl.key.location",
    }
    errors: list[Any] = []
    producer = Producer(
        {
            "bootstrap.servers": found.bootstrap,
            "message.timeout.ms": 20_000,
            "log_level": 0,
            "error_cb": errors.append,
            **{names[name]: value for name, value in options.items()},
        }
    )
    delivered: list[Any] = []
    producer.produce("open", b"value", on_delivery=lambda error, _: delivered.append(error))
    until(
        "the record is stored or the client refused", lambda: producer.poll(0.05) >= 0 and errors + delivered
    )
    if errors:
        producer.purge()
        producer.flush(10)
        raise PermissionError(str(errors[0]))
    assert delivered == [None]


def _by_kafka_python(found: Listening, options: Mapping[str, Any]) -> None:
    producer = KafkaProducer(bootstrap_servers=found.bootstrap, **options)
    try:
        producer.send("open", b"value").get(20)
    finally:
        producer.close(timeout=5)


def _refused(produce: Produce, found: Listening, options: Mapping[str, Any]) -> None:
    if produce is _by_kafka_python:
        # It repeats a refused authentication for 30 s, and then leaves its sockets open.
        return
    with pytest.raises(PermissionError):
        produce(found, options)


def _options(user: str, password: str, mechanism: str, certificates: Certificates | None) -> dict[str, Any]:
    options = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
    if certificates is not None:
        options |= {"security_protocol": "SASL_SSL", "ssl_cafile": str(certificates.authority)}
    return options


@pytest.mark.parametrize("produce", [_by_librdkafka, _by_kafka_python])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("tls", [False, True])
def test_each_mechanism_with_and_without_tls(
    plain: Listening,
    encrypted: Listening,
    certificates: Certificates,
    produce: Produce,
    mechanism: str,
    tls: bool,
) -> None:
    found, made = (encrypted, certificates) if tls else (plain, None)
    produce(found, _options("alice", "wonderland", mechanism, made))
    _refused(produce, found, _options("alice", "wrong", mechanism, made))
    _refused(produce, found, _options("mallory", "wonderland", mechanism, made))


def test_a_client_without_credentials_or_without_tls_is_refused(
    plain: Listening, encrypted: Listening, certificates: Certificates
) -> None:
    _refused(_by_librdkafka, plain, {})
    _refused(_by_librdkafka, encrypted, _options("alice", "wonderland", "PLAIN", None))
    _refused(
        _by_librdkafka, encrypted, {"security_protocol": "SSL", "ssl_cafile": str(certificates.authority)}
    )


@pytest.mark.parametrize("produce", [_by_librdkafka, _by_kafka_python])
def test_the_subject_of_a_certificate_is_the_principal(
    tmp_path: Path, certificates: Certificates, produce: Produce
) -> None:
    tls = {
        "cert_file": str(certificates.server),
        "key_file": str(certificates.server_key),
        "client_ca_file": str(certificates.authority),
    }
    stranger = make_certificates(tmp_path / "stranger")
    options = {"security_protocol": "SSL", "ssl_cafile": str(certificates.authority)}

    def shown(made: Certificates) -> dict[str, Any]:
        return options | {"ssl_certfile": str(made.client), "ssl_keyfile": str(made.client_key)}

    with _open(tmp_path, None, tls=tls, sasl=None, users_file=None) as found:
        produce(found, shown(certificates))
        for refused in (options, shown(stranger)):
            _refused(produce, found, refused)
        assert sum(map(len, found.stored("open").values())) == 1


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_users_come_and_go_while_the_listener_serves(tmp_path: Path, mechanism: str) -> None:
    users = tmp_path / "users"
    rules = [{"principal": "User:carol", "operations": ["write"], "topics": ["open"]}]
    with _open(tmp_path, acls=rules) as found:
        _refused(_by_librdkafka, found, _options("carol", "first", mechanism, None))
        set_user(users, "carol", "first", 4096, SystemIds())
        _by_librdkafka(found, _options("carol", "first", mechanism, None))
        set_user(users, "carol", "second", 4096, SystemIds())
        _refused(_by_librdkafka, found, _options("carol", "first", mechanism, None))
        _by_librdkafka(found, _options("carol", "second", mechanism, None))
        delete_user(users, "carol", SystemIds())
        _refused(_by_librdkafka, found, _options("carol", "second", mechanism, None))


# --- The exchange on the wire


def _handshake(client: WireClient, mechanism: str = "PLAIN") -> int:
    return int(client.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": mechanism}).error_code)


def _authenticate(client: WireClient, data: bytes) -> Any:
    return client.ask(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": data})


def _logged_in(found: Listening, user: str) -> WireClient:
    client = WireClient(found.address)
    assert _handshake(client) == 0
    assert _authenticate(client, f"\0{user}\0{PASSWORDS[user]}".encode()).error_code is ErrorCode.none
    return client


def _metadata_body(*topics: str | uuid.UUID) -> dict[str, Any]:
    return {
        "topics": [
            {"topic_id": None, "name": one} if isinstance(one, str) else {"topic_id": one, "name": None}
            for one in topics
        ],
        "allow_auto_topic_creation": True,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


@pytest.mark.parametrize("api", [one for one in ApiKey if one not in authentication.BEFORE])
def test_requests_before_the_authentication_close_the_connection(plain: Listening, api: ApiKey) -> None:
    data = right_request(random.Random(1), api, VERSIONS[api][1])
    data = struct.pack(">i", len(data)) + data
    with WireClient(plain.address) as client:
        client.socket.sendall(data)
        assert client.closed()
    with WireClient(plain.address) as client:
        # Between the two steps of the authentication, and sent before their answers.
        client.send(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"})
        client.socket.sendall(data)
        client.receive()
        assert client.closed()


def test_a_large_request_before_the_authentication_is_not_read(plain: Listening) -> None:
    for size in (64 * 1024 + 1, 2**31 - 1):
        with WireClient(plain.address) as client:
            client.socket.sendall(struct.pack(">i", size))
            assert client.closed()


def test_a_handshake_of_version_0_is_offered_and_refused(plain: Listening) -> None:
    # librdkafka up to 2.0 gives up on SASL if version 0 is not offered, and then uses version 1.
    with WireClient(plain.address) as client:
        offered = client.ask(ApiKey.API_VERSIONS, 0, {}).api_keys
        sasl = next(one for one in offered if one.api_key == ApiKey.SASL_HANDSHAKE)
        assert (sasl.min_version, sasl.max_version) == (0, 1)
        refused = client.ask(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"})
        assert refused.error_code is ErrorCode.unsupported_version
        assert client.closed()


def test_a_second_handshake_ends_the_connection(plain: Listening) -> None:
    with WireClient(plain.address) as client:
        assert _handshake(client) == 0
        assert _handshake(client, "SCRAM-SHA-256") == ErrorCode.illegal_sasl_state
        assert client.closed()
    with WireClient(plain.address) as client:
        # Both before the first answer: neither may begin a second exchange.
        one = request_bytes(ApiKey.SASL_HANDSHAKE, 1, 1, {"mechanism": "PLAIN"})
        client.socket.sendall(one + one)
        assert struct.unpack_from(">ih", client.receive())[1] == 0
        with pytest.raises(OSError):
            # The second has no answer, or an error; then the connection ends.
            _until_the_end(client)
    with _logged_in(plain, "alice") as client:
        assert _handshake(client) == ErrorCode.illegal_sasl_state
        assert client.closed()


def _until_the_end(client: WireClient) -> None:
    while True:
        assert struct.unpack_from(">ih", client.receive())[1] == ErrorCode.illegal_sasl_state


def test_an_authentication_without_a_handshake_is_refused(plain: Listening) -> None:
    with WireClient(plain.address) as client:
        assert _authenticate(client, b"\0alice\0wonderland").error_code is ErrorCode.illegal_sasl_state
        assert client.closed()


def test_guesses_in_one_connection_cost_one_derivation(
    plain: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived: list[int] = []
    pbkdf2 = hashlib.pbkdf2_hmac

    def counted(*arguments: Any) -> bytes:
        derived.append(1)
        return pbkdf2(*arguments)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    with WireClient(plain.address) as client:
        assert _handshake(client) == 0
        guess = {"auth_bytes": b"\0alice\0guess"}
        client.socket.sendall(
            b"".join(request_bytes(ApiKey.SASL_AUTHENTICATE, 0, 1, guess) for _ in range(20))
        )
        client.receive()
        assert client.closed()
    assert len(derived) == 1


def _scram_start(client: WireClient, user: str) -> dict[str, str]:
    assert _handshake(client, "SCRAM-SHA-256") == 0
    answer = bytes(_authenticate(client, f"n,,n={user},r=nonce".encode()).auth_bytes).decode()
    return dict(part.split("=", 1) for part in answer.split(","))


def test_an_unknown_user_and_a_wrong_password_get_the_same_answers(plain: Listening) -> None:
    answers, salts = [], []
    for user in ("alice", "mallory", "mallory"):
        with WireClient(plain.address) as client:
            first = _scram_start(client, user)
            salts.append(first["s"])
            proof = base64.b64encode(hmac.digest(b"no", b"proof", "sha256")).decode()
            last = _authenticate(client, f"c=biws,r={first['r']},p={proof}".encode())
            answers.append(
                (first["i"], len(base64.b64decode(first["s"])), last.error_code, last.error_message)
            )
            assert client.closed()
        with WireClient(plain.address) as client:
            assert _handshake(client) == 0
            found = _authenticate(client, f"\0{user}\0wrong".encode())
            assert (found.error_code, found.error_message) == answers[-1][2:]
    assert len(set(answers)) == 1
    # The salt of an unknown user stays the same, as that of a known one.
    assert salts[1] == salts[2] != salts[0]


# --- What a principal can find out


def _produce_body(topic: str) -> dict[str, Any]:
    part = {"index": 0, "records": b"\x02" * 70}
    return {
        "transactional_id": None,
        "acks": 1,
        "timeout": 5000,
        "topic_data": [{"name": topic, "partition_data": [part]}],
    }


def _fetch_body(topic: str) -> dict[str, Any]:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    return {
        "replica_id": -1,
        "max_wait": 10_000,
        "min_bytes": 1,
        "max_bytes": 1000,
        "isolation_level": 0,
        "topics": [{"topic": topic, "partitions": [part]}],
    }


def _offsets_body(topic: str) -> dict[str, Any]:
    part = {"partition_index": 0, "timestamp": -1}
    return {"replica_id": -1, "topics": [{"name": topic, "partitions": [part]}]}


REQUESTS: list[tuple[ApiKey, int, Callable[[str], dict[str, Any]]]] = [
    (ApiKey.PRODUCE, 8, _produce_body),
    (ApiKey.FETCH, 4, _fetch_body),
    (ApiKey.LIST_OFFSETS, 1, _offsets_body),
    (ApiKey.METADATA, 9, _metadata_body),
]


@pytest.mark.parametrize(("api", "version", "body"), REQUESTS)
def test_a_denied_topic_is_answered_like_one_that_does_not_exist(
    plain: Listening, api: ApiKey, version: int, body: Callable[[str], dict[str, Any]]
) -> None:
    plain.writer.send("hidden", Record(None, b"secret"), 0)
    plain.writer.flush()
    with _logged_in(plain, "alice") as client:
        answers = []
        for name in ("hidden", "absent"):
            client.send(api, version, body(name))
            # The correlation id differs.
            answers.append(client.receive()[4:].replace(name.encode(), b"NAME"))
        assert answers[0] == answers[1]
        assert struct.pack(">h", ErrorCode.topic_authorization_failed) in answers[0]


@pytest.mark.parametrize("version", [10, 12])
def test_a_topic_id_does_not_reveal_a_name(plain: Listening, version: int) -> None:
    hidden = uuid.UUID(plain.application.topic("hidden").topic_id)
    shown = uuid.UUID(plain.application.topic("shown").topic_id)
    absent = uuid.UUID(int=hidden.int ^ 1)
    with _logged_in(plain, "alice") as client:
        answers = []
        for identity in (hidden, absent):
            client.send(
                ApiKey.METADATA,
                version,
                _metadata_body(identity),
            )
            answers.append(client.receive()[4:].replace(identity.bytes, b"I" * 16))
        assert answers[0] == answers[1]
        assert b"hidden" not in answers[0]
        seen = client.ask(
            ApiKey.METADATA,
            version,
            _metadata_body(shown),
        )
        assert [(one.name, one.error_code) for one in seen.topics] == [("shown", ErrorCode.none)]


def test_metadata_lists_what_a_principal_may_see(plain: Listening) -> None:
    for user, names in (("alice", {"open", "shown"}), ("bob", {"open", "shown", "hidden"})):
        options: dict[str, str | int | float | bool] = {
            "bootstrap.servers": plain.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
        }
        assert set(AdminClient(options).list_topics(timeout=20).topics) == names
        consumer = KafkaConsumer(
            bootstrap_servers=plain.bootstrap, **_options(user, PASSWORDS[user], "SCRAM-SHA-256", None)
        )
        assert consumer.topics() == names
        consumer.close()


def test_what_is_allowed_works_and_the_rest_is_denied(plain: Listening) -> None:
    denied = ErrorCode.topic_authorization_failed
    with _logged_in(plain, "alice") as client:

        def codes(api: ApiKey, version: int, body: dict[str, Any]) -> ErrorCode:
            answer = client.ask(api, version, body)
            topics = answer.responses if hasattr(answer, "responses") else answer.topics
            (topic,) = topics
            for name in ("partition_responses", "partitions"):
                if (parts := getattr(topic, name, None)) and not hasattr(topic, "error_code"):
                    return ErrorCode(parts[0].error_code)
            return ErrorCode(topic.error_code)

        # The batch is no batch: only an allowed principal gets that far.
        assert codes(ApiKey.PRODUCE, 8, _produce_body("open")) is ErrorCode.invalid_record
        assert codes(ApiKey.FETCH, 4, _fetch_body("open") | {"max_wait": 0}) is ErrorCode.none
        assert codes(ApiKey.LIST_OFFSETS, 1, _offsets_body("open")) is ErrorCode.none
        assert codes(ApiKey.METADATA, 9, _metadata_body("open")) is ErrorCode.none
        assert codes(ApiKey.PRODUCE, 8, _produce_body("shown")) is denied
        assert codes(ApiKey.FETCH, 4, _fetch_body("shown")) is denied
        assert codes(ApiKey.LIST_OFFSETS, 1, _offsets_body("shown")) is ErrorCode.none
        assert codes(ApiKey.METADATA, 9, _metadata_body("shown")) is ErrorCode.none


# --- Small requests with large answers


def test_repeated_names_are_answered_once(plain: Listening) -> None:
    with _logged_in(plain, "alice") as client:
        answer = client.ask(ApiKey.METADATA, 9, _metadata_body(*["open"] * 10_000))
        assert [one.name for one in answer.topics] == ["open"]
        part = {"partition_index": 0, "timestamp": 1}
        answer = client.ask(
            ApiKey.LIST_OFFSETS, 1, {"replica_id": -1, "topics": [{"name": "open", "partitions": [part] * 3}]}
        )
        codes = [one.error_code for one in answer.topics[0].partitions]
        assert codes == [ErrorCode.none, ErrorCode.invalid_request, ErrorCode.invalid_request]
        body = _fetch_body("open") | {"max_wait": 0}
        body["topics"] = body["topics"] * 10_000
        answer = client.ask(ApiKey.FETCH, 4, body)
        assert [len(one.partitions) for one in answer.responses] == [1]


def test_a_tls_handshake_has_the_time_of_the_authentication(
    tmp_path: Path, certificates: Certificates
) -> None:
    with _open(tmp_path, certificates, authentication_timeout="300ms") as found:
        with WireClient(found.address) as client:
            assert client.closed()
        context = ssl.create_default_context(cafile=str(certificates.authority))
        with WireClient(found.address) as client:
            client.socket = context.wrap_socket(client.socket, server_hostname="127.0.0.1")
            assert client.closed()

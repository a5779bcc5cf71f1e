"""A Kafka listener whose connections are served by workers: what they relay, with real clients and real logs. The workers
are threads here; `tests/system/test_intake_workers.py` has them as processes."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its __init__ has no __all__
    AdminClient,
    NewPartitions,
    NewTopic,
)
from kio.schema.errors import ErrorCode

from archiver.config.kafka_listener import KafkaListenerSettings
from archiver.kafka.protocol import VERSIONS, ApiKey
from archiver.kafka.users import set_user
from archiver.kafka.worker import READ_HERE
from archiver.runtime.ids import SystemIds
from tests.integration.test_kafka_produce import _batch, _produce
from tests.support.kafka.handing_over import WorkerInThread
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.kafka.random_requests import right_request
from tests.support.kafka.wire import WireClient, request_bytes
from tests.support.log.etcd_certificates import Certificates, make_certificates
from tests.support.process.processes import open_sockets, until

pytestmark = pytest.mark.timeout(120)

TOPICS = [{"name": name, "partitions": 2} for name in ("open", "hidden")]
PASSWORDS = {"alice": "wonderland", "bob": "builder"}
RULES = [
    {"principal": "User:alice", "operations": ["read", "write"], "topics": ["open"]},
    {"principal": "User:bob", "operations": ["all"], "topics": ["*"]},
    {"principal": "User:O=tests", "operations": ["describe"], "topics": ["hidden"]},
]
ALL_TOPICS = {
    "topics": None,
    "allow_auto_topic_creation": False,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}
RELAYED = sorted(set(ApiKey) - READ_HERE)


@contextlib.contextmanager
def _served(root: Path, **kafka: Any) -> Iterator[Listening]:
    with listening(configured(root, TOPICS, kafka=kafka), workers=2) as found:
        yield found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Listening]:
    with _served(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listening]:
    root = tmp_path_factory.mktemp("secured")
    for name, password in PASSWORDS.items():
        set_user(root / "users", name, password, 4096, SystemIds())
    with _served(root, sasl={"mechanisms": ["PLAIN"]}, users_file=str(root / "users"), acls=RULES) as found:
        yield found


def _workers(found: Listening) -> list[WorkerInThread]:
    assert found.workers is not None
    return found.workers.workers


def _topics(client: WireClient) -> set[str]:
    """What a client sees, by the daemon."""
    return {str(one.name) for one in client.ask(ApiKey.METADATA, 8, ALL_TOPICS).topics}


def _answered(found: Listening) -> dict[str, int]:
    """The requests that the daemon has answered."""
    return dict(found.service.server.counts.requests)


# --- Authentication and principals


def _authentication(user: str, password: str, correlation_id: int = 2) -> bytes:
    return request_bytes(
        ApiKey.SASL_AUTHENTICATE, 2, correlation_id, {"auth_bytes": f"\0{user}\0{password}".encode()}
    )


def _handshake(client: WireClient) -> None:
    assert client.ask(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "PLAIN"}).error_code is ErrorCode.none


def _logged_in(found: Listening, user: str) -> WireClient:
    client = WireClient(found.address)
    _handshake(client)
    client.socket.sendall(_authentication(user, PASSWORDS[user]))
    assert struct.unpack_from(">ibh", client.receive())[2] == 0
    return client


@pytest.mark.parametrize("api", RELAYED)
def test_nothing_is_relayed_before_the_authentication(secured: Listening, api: ApiKey) -> None:
    before = _answered(secured)
    data = right_request(random.Random(1), api, VERSIONS[api][1])
    data = struct.pack(">i", len(data)) + data
    with WireClient(secured.address) as client:
        client.socket.sendall(data)
        assert client.closed()
    # Behind a guess, and behind what would authenticate: both are sent before an answer.
    for password in ("a guess", PASSWORDS["bob"]):
        with WireClient(secured.address) as client:
            _handshake(client)
            client.socket.sendall(_authentication("bob", password) + data)
            client.receive()
            assert client.closed()
    assert _answered(secured) == before


def test_a_connection_keeps_its_principal(secured: Listening) -> None:
    with _logged_in(secured, "alice") as alice, _logged_in(secured, "bob") as bob:
        for _ in range(2):
            assert _topics(alice) == {"open"}
            assert _topics(bob) == {"open", "hidden"}
        # A second authentication is refused, and changes nothing for what comes with it.
        alice.socket.sendall(
            request_bytes(ApiKey.SASL_HANDSHAKE, 1, 7, {"mechanism": "PLAIN"})
            + _authentication("bob", PASSWORDS["bob"])
            + request_bytes(ApiKey.METADATA, 8, 9, ALL_TOPICS)
        )
        data = alice.receive()
        assert struct.unpack_from(">ih", data) == (7, ErrorCode.illegal_sasl_state)
        assert alice.closed()
        assert _topics(bob) == {"open", "hidden"}


def test_a_worker_denies_what_the_principal_may_not_do(secured: Listening) -> None:
    denied = ErrorCode.topic_authorization_failed
    for user, expected in (("alice", denied), ("bob", ErrorCode.none)):
        with _logged_in(secured, user) as client:
            for topic, code in (("open", ErrorCode.none), ("hidden", expected)):
                assert _produce(client, {(topic, 0): _batch([b"v"])})[topic, 0].error_code is code


def test_a_principal_cannot_be_put_into_a_request(secured: Listening) -> None:
    """What a client sends is one frame in the pair, for any content."""
    name = b"User:bob"
    inner = struct.pack(">i", len(name)) + name + request_bytes(ApiKey.METADATA, 8, 99, ALL_TOPICS)
    with _logged_in(secured, "alice") as client:
        client.socket.sendall(struct.pack(">i", len(inner)) + inner)
        assert client.closed()
    with _logged_in(secured, "alice") as client:
        assert _topics(client) == {"open"}
        head = struct.pack(">hhih", ApiKey.METADATA, 8, 5, -1)
        client.socket.sendall(struct.pack(">i", len(head) + len(inner)) + head + inner)
        assert client.closed()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("tls"))


def test_the_subject_of_a_certificate_reaches_the_daemon(tmp_path: Path, certificates: Certificates) -> None:
    tls = {
        "cert_file": str(certificates.server),
        "key_file": str(certificates.server_key),
        "client_ca_file": str(certificates.authority),
    }
    with _served(tmp_path, tls=tls, acls=RULES) as found:
        client = AdminClient(
            {
                "bootstrap.servers": found.bootstrap,
                "security.protocol": "SSL",
                "ssl.ca.location": str(certificates.authority),
                "ssl.certificate.location": str(certificates.client),
                "ssl.key.location": str(certificates.client_key),
            }
        )
        assert set(client.list_topics(timeout=30).topics) == {"hidden"}
        with WireClient(found.address) as plain:
            plain.send(ApiKey.METADATA, 8, ALL_TOPICS)
            assert plain.closed()


# --- Connections and their two ends


def test_an_end_in_the_daemon_ends_the_client_s_connection(served: Listening) -> None:
    """Its place in the daemon is free then, so the limit of connections would not hold."""
    with WireClient(served.address) as client:
        _topics(client)
        server = served.service.server
        until("it is counted", lambda: server.counts.connections == 1)
        (connection,) = server._connections
        assert server.loop is not None
        server.loop.call_soon_threadsafe(connection.end)
        assert client.closed()
    until("nothing is open", lambda: not any(one.kafka.counts.connections for one in _workers(served)))


def test_a_request_that_the_daemon_cannot_read_ends_its_connection_only(served: Listening) -> None:
    with WireClient(served.address) as client, WireClient(served.address) as other:
        _topics(other)
        # Of an unknown version, and then of no API.
        for head in (struct.pack(">hhih", ApiKey.METADATA, 999, 1, -1), struct.pack(">hhih", 999, 0, 1, -1)):
            with WireClient(served.address) as bad:
                bad.socket.sendall(struct.pack(">i", len(head)) + head)
                assert bad.closed()
        assert _topics(client) == _topics(other) == {"open", "hidden"}


def test_a_member_that_waits_in_the_daemon_ends_with_its_client(tmp_path: Path) -> None:
    joining = {
        "group_id": "g",
        "session_timeout": 30_000,
        "rebalance_timeout": 60_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }
    with _served(tmp_path, group_initial_rebalance_delay="60s") as found:
        with WireClient(found.address) as client:
            member = client.ask(ApiKey.JOIN_GROUP, 5, joining).member_id
            client.send(ApiKey.JOIN_GROUP, 5, joining | {"member_id": member})
            until("it waits", lambda: found.service.state.groups.members == 1)
        # Long before its group has waited for other members.
        until("its connection is closed", lambda: found.service.server.counts.connections == 0, patience_s=30)


def test_pipelined_requests_of_many_clients_share_little_memory(tmp_path: Path) -> None:
    names = [{"topic_id": None, "name": f"t{number:04}-" + "x" * 200} for number in range(200)]
    body = ALL_TOPICS | {"topics": names}
    with _served(tmp_path, request_bytes_max="1MiB", requests_bytes_max="1MiB") as found:
        faults: list[BaseException] = []

        def ask() -> None:
            try:
                with WireClient(found.address) as client:
                    sent = [client.send(ApiKey.METADATA, 10, body) for _ in range(20)]
                    assert [struct.unpack_from(">i", client.receive())[0] for _ in sent] == sent
            except BaseException as error:  # noqa: BLE001 - for the thread of the test
                faults.append(error)

        clients = [threading.Thread(target=ask) for _ in range(6)]
        for one in clients:
            one.start()
        for one in clients:
            one.join(60)
        assert not faults
        assert not any(one.is_alive() for one in clients)
        # A later client finds all of it free.
        with WireClient(found.address) as client:
            client.ask(ApiKey.METADATA, 10, body)


def test_clients_that_break_off_leave_no_descriptor(served: Listening) -> None:
    def broken_off(number: int) -> None:
        with WireClient(served.address) as client:
            if number % 3:
                for _ in range(number % 7):
                    client.send(ApiKey.METADATA, 8, ALL_TOPICS)
            if number % 2:
                client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def at_rest() -> bool:
        counts = [served.service.server.counts, *(one.kafka.counts for one in _workers(served))]
        return not any(one.connections for one in counts)

    broken_off(1)
    until("all have ended", at_rest)
    # Threads open files of the log when they are first needed, so only sockets count.
    before = len(open_sockets())
    for number in range(120):
        broken_off(number)
    until("all have ended", lambda: at_rest() and len(open_sockets()) <= before)
    with WireClient(served.address) as client:
        assert _topics(client) == {"open", "hidden"}
    until("each is counted once", lambda: [one.open for one in _workers(served)] == [0, 0])


def test_a_worker_accepts_as_many_connections_as_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("archiver.web.listener.Listener.connections_max", 1)
    with _served(tmp_path, connections_max=6) as found, contextlib.ExitStack() as stack:
        clients = [stack.enter_context(WireClient(found.address)) for _ in range(6)]
        for one in clients:
            assert _topics(one)
        with WireClient(found.address) as beyond:
            assert beyond.closed()


def test_a_worker_that_cannot_serve_says_so(tmp_path: Path, certificates: Certificates) -> None:
    """Without a port nothing else would show it, and connections would be handed to it for ever."""
    key = tmp_path / "key"
    tls = {"cert_file": str(certificates.server), "key_file": str(key)}
    key.write_bytes(certificates.server_key.read_bytes())
    with _served(tmp_path, tls=tls) as found:
        assert not any(one.kafka.ended for one in _workers(found))
        settings = found.application.settings.kafka
        assert isinstance(settings, KafkaListenerSettings)
        key.unlink()
        worker = WorkerInThread(found.application, 10)
        try:
            until("it has ended", lambda: worker.kafka.ended)
        finally:
            worker.close()


# --- What the daemon has changed is known in the workers


def _produced(found: Listening, topic: str, partition: int, clients: int = 4) -> list[Any]:
    """The errors of a record of each client, which asked for the topics before."""
    errors = []
    for _ in range(clients):
        with WireClient(found.address) as client:
            assert topic in _topics(client)
            errors.append(_produce(client, {(topic, partition): _batch([b"v"])})[topic, partition].error_code)
    return errors


def test_a_topic_that_was_just_created_takes_records_at_once(served: Listening) -> None:
    admin = AdminClient({"bootstrap.servers": served.bootstrap})
    for one in admin.create_topics([NewTopic("created", 1)]).values():
        one.result(30)
    assert _produced(served, "created", 0) == [ErrorCode.none] * 4
    for one in admin.create_partitions([NewPartitions("created", 3)]).values():
        one.result(30)
    assert _produced(served, "created", 2) == [ErrorCode.none] * 4
    assert {number: len(rows) for number, rows in served.stored("created").items()} == {0: 4, 1: 0, 2: 4}


def test_a_worker_knows_the_start_of_the_log_before_it_has_read_records(served: Listening) -> None:
    with WireClient(served.address) as client:
        answer = _produce(client, {("open", 0): _batch([b"v"])})["open", 0]
    assert (answer.error_code, answer.log_start_offset) == (ErrorCode.none, 0)


def test_a_listener_that_hangs_is_noticed(served: Listening) -> None:
    """Its worker then sends no counters, and the daemon replaces it."""
    kafka, release = _workers(served)[0].kafka, threading.Event()
    assert kafka.runs(20)
    loop = kafka._server.loop
    assert loop is not None
    loop.call_soon_threadsafe(release.wait, 60)
    try:
        assert not kafka.runs(0.2)
    finally:
        release.set()
    assert kafka.runs(20)

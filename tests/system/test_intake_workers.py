"""A daemon whose workers serve the connections of Kafka clients: workers and the daemon are killed, paused and stopped
under load, and no record is lost, doubled or reordered."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGSTOP
from typing import Any

import psutil
import pytest
import yaml
from confluent_kafka import KafkaError, Message, Producer

from archiver.config.settings import load_settings
from archiver.daemon import worker_pool
from archiver.daemon.worker_pool import WorkerPool
from archiver.kafka.protocol import ApiKey
from archiver.kafka.users import set_user
from archiver.runtime.clock import SystemClock
from archiver.runtime.ids import SystemIds
from tests.support.builders.deployment import Deployment, text
from tests.support.kafka.wire import WireClient
from tests.support.log.etcd_certificates import make_certificates
from tests.support.process.processes import alive, descendants, until
from tests.support.process.scrapes import scraped, series
from tests.support.process.serving import Served, quick
from tests.system.test_kafka_groups_served import Reader
from tests.system.test_kafka_groups_served import committed as committed_offsets
from tests.system.test_kafka_listener_served import (
    CLIENT,
    PARTITIONS,
    TOPIC,
    Sender,
    address,
    bootstrap,
    difference,
    started,
)
from tests.system.test_kafka_transactions_served import committed, opened, send

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="searches /proc for descendants"),
]

WORKERS = 2
PROGRAM = "archiver.daemon.intake_worker"
SERVES = "intake worker"


def configured(tmp_path: Path, intake: dict[str, Any] | None = None, **kafka: Any) -> Deployment:
    """A deployment whose daemon has workers."""
    deployment = Deployment(tmp_path / "d")
    document = quick(deployment.document())
    document["intake"] |= {"workers": WORKERS} | (intake or {})
    document["kafka"] = {"listen": "127.0.0.1:0", "broker_timeout": "4s", **kafka}
    deployment.write(document)
    return deployment


def serving(daemon: Served) -> set[int]:
    """The processes of the workers that have said that they serve, and that still run."""
    said = {line["worker_pid"] for line in daemon.logged(SERVES) if "worker_pid" in line}
    return said & {process[0] for process in alive({found for found, _ in descendants(daemon.pid)})}


def until_all_serve(daemon: Served) -> set[int]:
    """Wait for every worker; their processes."""
    daemon.until_ready()

    def holds() -> set[int] | None:
        assert daemon.running, daemon.log_text()
        # Notes them, so that none is left if the test fails.
        daemon.descendants()
        found = serving(daemon)
        return found if len(found) == WORKERS else None

    found: set[int] = until("all workers serve", holds)
    return found


def clients_of(worker: int) -> int:
    """Connections that a worker has."""
    try:
        found = psutil.Process(worker).net_connections("tcp")
    except psutil.NoSuchProcess:
        return 0
    return sum(one.status == psutil.CONN_ESTABLISHED for one in found)


def until_both_have_clients(daemon: Served) -> None:
    until("every worker has a client", lambda: all(map(clients_of, until_all_serve(daemon))))


@contextlib.contextmanager
def running(deployment: Deployment, tmp_path: Path, name: str = "scratch") -> Iterator[Served]:
    """A daemon whose workers all serve."""
    with started(deployment, tmp_path / name) as daemon:
        until_all_serve(daemon)
        yield daemon


class NamedSender(Sender):
    """As `Sender`, with a name in its values, so that several may send."""

    def __init__(self, servers: str, name: str, **options: Any) -> None:
        super().__init__(servers, name, **options)
        self.label = name

    def value(self, partition: int) -> bytes:
        return b"%s-%d-%d" % (self.label.encode(), partition, self.sent)


@contextlib.contextmanager
def senders(servers: str, count: int = 2, **options: Any) -> Iterator[list[NamedSender]]:
    """Producers that send; they are ended with the block."""
    found = [NamedSender(servers, f"s{number}", **options) for number in range(count)]
    for one in found:
        one.start()
    try:
        yield found
    finally:
        for one in found:
            one._stopping.set()


def check_all(deployment: Deployment, made: list[NamedSender]) -> None:
    """Each sender's values are stored exactly once, in its order, where they were acknowledged."""
    stored: dict[int, list[str]] = {number: [] for number in range(PARTITIONS)}
    for record in deployment.consume(TOPIC):
        assert record["offset"] == len(stored[record["partition"]])
        stored[record["partition"]].append(record["value"])
    for sender in made:
        assert len(sender.acknowledged) == PARTITIONS * sender.sent
        for partition, values in stored.items():
            expected = [
                text(b"%s-%d-%d" % (sender.label.encode(), partition, number))
                for number in range(sender.sent)
            ]
            wanted = set(expected)
            own = [value for value in values if value in wanted]
            assert own == expected, difference(own, expected)
        for value, (partition, offset) in sender.acknowledged.items():
            if offset >= 0:
                assert stored[partition][offset] == text(value)
    assert sum(map(len, stored.values())) == sum(PARTITIONS * one.sent for one in made)


# --- Records


def test_workers_that_are_killed_again_and_again_lose_and_double_nothing(tmp_path: Path) -> None:
    deployment = configured(tmp_path)
    with running(deployment, tmp_path) as daemon, senders(bootstrap(daemon), 3) as made:
        until_both_have_clients(daemon)
        for worker in until_all_serve(daemon):
            assert "/pandas/" not in Path(f"/proc/{worker}/maps").read_text(), (
                "half a second of CPU for nothing"
            )
        for turn in range(4):
            for one in made:
                one.until_more(60)
            workers = sorted(until_all_serve(daemon))
            # The last time all at once.
            for worker in workers if turn == 3 else [workers[turn % WORKERS]]:
                os.kill(worker, SIGKILL)
        for one in made:
            one.until_more(60)
            one.finish()
        until_all_serve(daemon)
        assert len(daemon.logged("ended with exit code -9")) == 3 + WORKERS
        assert daemon.stop() == 0
    check_all(deployment, made)


@pytest.mark.turns(2, first=1)
def test_transactions_are_whole_although_workers_are_killed_within_them(tmp_path: Path) -> None:
    deployment = configured(tmp_path)
    with running(deployment, tmp_path) as daemon:
        servers = bootstrap(daemon)
        producers = [opened(servers, f"id-{number}") for number in range(2)]
        kept: list[bytes] = []
        for turn, commit in enumerate([True, False, True, False]):
            for producer in producers:
                producer.begin_transaction()
            value = b"kept-%d" % turn if commit else b"gone"
            for producer in producers:
                send(producer, value)
            if turn >= 2:
                os.kill(min(until_all_serve(daemon)), SIGKILL)
            for producer in producers:
                if commit:
                    producer.commit_transaction(60)
                    kept += [value] * 5 * PARTITIONS
                else:
                    producer.abort_transaction(60)
        assert committed(servers, len(kept)) == sorted(kept)
        assert daemon.stop() == 0
    assert sorted(one["value"] for one in deployment.consume(TOPIC)) == sorted(map(str, map(text, kept)))


@pytest.mark.turns(2)
def test_a_group_reads_through_every_worker(tmp_path: Path) -> None:
    deployment = configured(tmp_path, group_initial_rebalance_delay="100ms", group_session_timeout_min="1s")
    with running(deployment, tmp_path) as daemon:
        servers = bootstrap(daemon)
        producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **CLIENT})
        sent = 0

        def more(count: int = 30) -> None:
            nonlocal sent
            for number in range(PARTITIONS):
                for _ in range(count):
                    producer.produce(TOPIC, b"v", partition=number)
            sent += count
            assert producer.flush(60) == 0

        readers = [Reader(servers, "g"), Reader(servers, "g")]

        def all_read() -> bool:
            return all(
                set().union(*(one.seen[number] for one in readers)) == set(range(sent))
                for number in range(PARTITIONS)
            )

        readers[0].start()
        more()
        until("the first member reads all", all_read)
        readers[1].start()

        def both_read() -> bool:
            more(1)
            return all(any(one.seen.values()) for one in readers)

        until("each member reads a partition", both_read)
        os.kill(min(until_all_serve(daemon)), SIGKILL)
        more()
        until("all is read", all_read)
        with WireClient(address(daemon)) as client:
            ends = dict.fromkeys(range(PARTITIONS), sent)
            until("all is committed", lambda: committed_offsets(client, "g") == ends)
        for one in readers:
            one.finish()
        assert daemon.stop() == 0


# --- The end of processes


def test_workers_end_with_a_daemon_that_is_killed(tmp_path: Path) -> None:
    deployment = configured(tmp_path)
    with running(deployment, tmp_path) as daemon:
        servers = bootstrap(daemon)
        with senders(servers) as made:
            until_both_have_clients(daemon)
            for one in made:
                one.until_more(60)
            # Waits for the end of the workers as well.
            daemon.kill()
            document = quick(deployment.document())
            document["intake"] |= {"workers": WORKERS}
            document["kafka"] = {"listen": servers, "broker_timeout": "4s"}
            deployment.write(document)
            with running(deployment, tmp_path, "again") as again:
                for one in made:
                    one.until_more(60)
                    one.finish()
                assert again.stop() == 0
    check_all(deployment, made)


def queued(daemon: Served) -> float:
    return scraped(daemon.get("/metrics").body)[series("archiver_intake_queue_bytes")]


GROUPS = [
    pytest.param(False, marks=pytest.mark.turns(2)),
    pytest.param(True, marks=pytest.mark.turns(2, first=1)),
]


def ask_to_stop(daemon: Served, group: bool) -> int:
    """SIGTERM, or a Ctrl-C that every process gets; the exit code. No process is left."""
    if not group:
        return daemon.stop()
    daemon.command.look()
    daemon.command.signal(SIGINT, group=True)
    for process, line in descendants(daemon.pid):
        if PROGRAM in line:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process[0], SIGINT)
    code = daemon.command.wait()
    until("no process is left", lambda: not alive(daemon.command.seen))
    return code


def imports(daemon: Served) -> bool:
    """Whether a worker has begun to import its modules; its program has not begun then."""
    daemon.descendants()
    workers = [process[0] for process, line in descendants(daemon.pid) if PROGRAM in line]
    try:
        return any("pydantic_core" in Path(f"/proc/{one}/maps").read_text("utf-8") for one in workers)
    except OSError:
        return False


@pytest.mark.parametrize("group", GROUPS)
def test_a_stop_while_workers_start_ends_them(tmp_path: Path, group: bool) -> None:
    deployment = configured(tmp_path)
    with started(deployment, tmp_path / "scratch") as daemon:
        until("a worker is being started", lambda: imports(daemon))
        if group:
            # The terminal's signal goes to the group; a worker may not know yet what it means.
            daemon.command.signal(SIGINT, group=True)
            assert daemon.command.wait() == 0
            until("no process is left", lambda: not alive(daemon.command.seen))
        else:
            assert daemon.stop() == 0
        assert "Traceback" not in daemon.log_text()
        assert not daemon.logged("killed")


@pytest.mark.parametrize("group", GROUPS)
def test_what_was_accepted_is_answered_at_a_stop(tmp_path: Path, group: bool) -> None:
    """By SIGTERM, and by Ctrl-C, which a terminal sends to the workers too."""
    deployment = configured(tmp_path, {"delay_max": "4s"})
    with running(deployment, tmp_path) as daemon:
        outcomes: list[tuple[KafkaError | None, bytes | None]] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            outcomes.append((error, message.value()))

        options = {"bootstrap.servers": bootstrap(daemon), "message.send.max.retries": 0, **CLIENT}
        options |= {"request.timeout.ms": 30_000, "socket.timeout.ms": 30_000}
        producers = [Producer(options) for _ in range(4)]
        for number, one in enumerate(producers):
            one.produce(TOPIC, b"%d" % number, partition=0, on_delivery=delivered)
            one.poll(0)
        until("the records wait in the workers", lambda: queued(daemon) > 0 or outcomes)
        assert ask_to_stop(daemon, group) == 0
        for one in producers:
            one.flush(30)
        assert "Traceback" not in daemon.log_text()
        assert not daemon.logged("killed")
    answered = [value for error, value in outcomes if error is None]
    assert len(outcomes) == 4
    stored = [record["value"] for record in deployment.consume(TOPIC)]
    assert sorted(stored) == sorted(str(text(value)) for value in answered)
    assert answered, outcomes


def test_workers_that_cannot_serve_or_are_paused_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool is here, so that its patience is short; its workers are the real processes."""
    monkeypatch.setattr(worker_pool, "SILENT_S", 3.0)
    made = make_certificates(tmp_path / "tls")
    key = made.server_key.read_bytes()
    tls = {"cert_file": str(made.server), "key_file": str(made.server_key)}
    deployment = configured(tmp_path, tls=tls)
    # Makes the deployment.
    assert deployment.run("topics", "list").code == 0
    settings = load_settings(deployment.config, {})
    made.server_key.unlink()
    pool = WorkerPool(settings, deployment.environ(), SystemClock())
    pool.start(0.0)
    try:
        until("they are started again", lambda: pool.shown.restarts >= 1)
        assert pool.shown.serving == 0
        made.server_key.write_bytes(key)
        until("all serve", lambda: pool.shown.serving == WORKERS)
        before = pool.shown.restarts
        paused = pool._workers[0].process
        os.kill(paused.pid, SIGSTOP)
        until("it is replaced", lambda: pool.shown.restarts > before and pool.shown.serving == WORKERS)
        assert paused.returncode == -SIGKILL
    finally:
        pool.begin_to_stop()
        pool.wait(30)
    assert not pool._workers


# --- Settings, numbers and limits


def test_settings_reach_every_worker_and_numbers_survive_it(tmp_path: Path) -> None:
    deployment = configured(tmp_path)
    with running(deployment, tmp_path) as daemon:
        producers = [Producer({"bootstrap.servers": bootstrap(daemon), **CLIENT}) for _ in range(4)]

        def produce(count: int, topic: str = TOPIC) -> None:
            for one in producers:
                for _ in range(count):
                    one.produce(topic, b"v", partition=0)
                assert one.flush(30) == 0

        def metric(name: str) -> float:
            return scraped(daemon.get("/metrics").body)[series(name)]

        def records() -> tuple[float, float, int]:
            # What `archiver status` shows of a daemon that it reaches.
            shown = daemon.request(
                "GET", "/v1/admin/status", headers={"Authorization": f"Bearer {daemon.token}"}
            ).json()["daemon"]["kafka"]
            assert shown["workers"]["configured"] == WORKERS
            return (
                metric("archiver_kafka_produced_records_total"),
                metric("archiver_intake_records_ok_total"),
                shown["produced_records"],
            )

        produce(25)
        until_both_have_clients(daemon)
        document = yaml.safe_load(deployment.config.read_text(encoding="utf-8"))
        document["topics"].append({"name": "added", "partitions": 1})
        deployment.write(document)
        daemon.signal(SIGHUP)
        daemon.until_logged("reloaded topics.added")
        produce(1, "added")
        until("all are counted", lambda: records() == (104, 104, 104))
        os.kill(min(until_all_serve(daemon)), SIGKILL)
        until("it is replaced", lambda: metric("archiver_intake_worker_restarts_total") == 1)
        assert records() == (104, 104, 104)
        until_all_serve(daemon)
        # One that starts later has the new settings as well.
        produce(4, "added")
        until("all are counted", lambda: records() == (120, 120, 120))
        assert metric("archiver_intake_workers") == WORKERS
        assert daemon.stop() == 0
    assert len(deployment.consume("added")) == 20


def asked(at: tuple[str, int]) -> WireClient | None:
    """A connection that is served; None if it was closed."""
    client = WireClient(at)
    try:
        client.ask(ApiKey.API_VERSIONS, 0, {})
    except OSError:
        client.socket.close()
        return None
    return client


def test_the_limit_of_connections_is_exact(tmp_path: Path) -> None:
    """Also while a worker is missing: the others take what the daemon has places for."""
    deployment = configured(tmp_path, connections_max=6)
    with running(deployment, tmp_path) as daemon, contextlib.ExitStack() as held:
        place = address(daemon)

        def one_more() -> bool:
            client = asked(place)
            if client is not None:
                held.enter_context(client)
            return client is not None

        assert [one_more() for _ in range(8)] == [True] * 6 + [False] * 2
        workers = until_all_serve(daemon)
        assert sorted(map(clients_of, workers)) == [3, 3]
        paused = min(workers)
        os.kill(paused, SIGKILL)
        # Its three places are free as soon as the daemon has noticed, and the other worker takes them.
        found: list[bool] = []

        def three() -> bool:
            found.append(one_more())
            return found.count(True) == 3

        until("the places are taken again", three)
        assert not one_more()
        assert daemon.stop() == 0


# --- Security


def test_clients_are_authenticated_by_workers_and_authorized_by_both(tmp_path: Path) -> None:
    certificates = make_certificates(tmp_path / "tls")
    users = tmp_path / "users"
    for name in ("alice", "bob"):
        set_user(users, name, name * 2, 4096, SystemIds())
    deployment = configured(
        tmp_path,
        tls={"cert_file": str(certificates.server), "key_file": str(certificates.server_key)},
        sasl={"mechanisms": ["SCRAM-SHA-512"]},
        users_file=str(users),
        acls=[
            {"principal": "User:alice", "operations": ["read", "write", "describe"], "topics": [TOPIC]},
            {"principal": "User:bob", "operations": ["all"], "topics": ["kept"]},
        ],
    )

    def client(user: str, password: str) -> Producer:
        return Producer(
            {
                "bootstrap.servers": bootstrap(daemon),
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(certificates.authority),
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": user,
                "sasl.password": password,
                "log_level": 0,
                **CLIENT,
            }
        )

    def produced(producer: Producer, topic: str) -> bool:
        errors: list[KafkaError | None] = []
        producer.produce(topic, b"v", partition=0, on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(30) == 0
        return errors == [None]

    made: list[Producer] = []
    with running(deployment, tmp_path) as daemon:
        for _ in range(2):
            for user, topic in (("alice", TOPIC), ("bob", "kept")):
                producer = client(user, user * 2)
                made.append(producer)
                # By the daemon, for a principal that the worker found.
                assert set(producer.list_topics(timeout=30).topics) == {topic}
                # By the worker.
                assert produced(producer, topic)
        until_both_have_clients(daemon)
        producer = client("alice", "wrong")
        until("it is refused", lambda: producer.poll(0.1) >= 0 and daemon.logged("is disconnected"))
        assert daemon.stop() == 0
    assert len(deployment.consume(TOPIC)) == 2


def test_workers_store_the_records_of_http(tmp_path: Path) -> None:
    """Requests are spread over workers. If one is killed, a request that it had is of unknown outcome."""
    deployment = configured(tmp_path)
    with running(deployment, tmp_path) as daemon:
        outcomes: dict[str, int] = {}

        def send(number: int) -> int:
            value = str(text(str(number).encode()))
            body = json.dumps({"value": value}).encode()
            reply = daemon.post(f"/v1/topics/{TOPIC}/records", body)
            outcomes[value] = reply.status
            return reply.status

        for number in range(20):
            assert send(number) == 200
        name = series("archiver_intake_records_ok_total")
        until("all are counted", lambda: scraped(daemon.get("/metrics").body)[name] == 20)
        os.kill(until_all_serve(daemon).pop(), SIGKILL)
        for number in range(20, 60):
            assert send(number) in (200, 500)
        until_all_serve(daemon)
        assert send(60) == 200
        assert daemon.stop() == 0
    found = [one["value"] for one in deployment.consume(TOPIC)]
    assert len(found) == len(set(found)), "a record is stored once"
    acknowledged = {value for value, status in outcomes.items() if status == 200}
    assert acknowledged <= set(found) <= set(outcomes)

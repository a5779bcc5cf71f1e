"""Daemons that serve Kafka clients and are stopped, killed or paused: an idempotent producer's records are stored
exactly once and in order, whichever daemon acknowledged them."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from signal import SIGCONT
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from kio.schema.errors import ErrorCode

from archiver.kafka.protocol import ApiKey
from tests.support.builders.deployment import Deployment, text
from tests.support.kafka.wire import WireClient
from tests.support.process.processes import PATIENCE_S, until
from tests.support.process.serving import Served, quick
from tests.support.servers.lossy_proxy import LossyProxy

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="searches /proc for descendants"),
]

TOPIC = "clicks"
PARTITIONS = 2
WAITING_MAX = 1_000
"""Records of a sender without an answer. Without a bound a slow machine would get more than it stores in time."""
PAUSE_S = 0.01
"""Between two records of a partition."""
BROKER_TIMEOUT_S = 4
SERVING = "serving Kafka clients on "
CLIENT: dict[str, Any] = {
    # A client must notice a daemon that does not answer within the time of a test.
    "socket.timeout.ms": 3000,
    "request.timeout.ms": 2000,
    "topic.metadata.refresh.interval.ms": 500,
    "reconnect.backoff.max.ms": 300,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 200,
}


def configure(deployment: Deployment, listen: str = "127.0.0.1:0", **kafka: Any) -> None:
    """Write the configuration, which a daemon reads at its start."""
    document = quick(deployment.document())
    document["kafka"] = {"listen": listen, "broker_timeout": f"{BROKER_TIMEOUT_S}s", **kafka}
    deployment.write(document)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "d")
    configure(made)
    return made


def started(deployment: Deployment, scratch: Path) -> Served:
    return Served(deployment, "--roles", "intake", scratch=scratch)


def bootstrap(daemon: Served) -> str:
    """The address for Kafka clients, as the log has it."""
    daemon.until_logged(SERVING)
    message: str = daemon.logged(SERVING)[-1]["message"]
    return message.removeprefix(SERVING)


def address(daemon: Served) -> tuple[str, int]:
    """Where a daemon serves Kafka clients."""
    host, _, port = bootstrap(daemon).rpartition(":")
    return host, int(port)


def coordinator(daemon: Served, key: str, key_type: int = 0) -> tuple[str, int] | None:
    """Where a daemon sends the members of a group, or with type 1 the producer of a transactional id."""
    with WireClient(address(daemon)) as client:
        found = client.ask(ApiKey.FIND_COORDINATOR, 3, {"key": key, "key_type": key_type})
    return None if found.error_code is not ErrorCode.none else (found.host, found.port)


@contextlib.contextmanager
def two(deployment: Deployment, tmp_path: Path) -> Iterator[tuple[Served, Served]]:
    """Two daemons on one deployment, ready for clients."""
    with started(deployment, tmp_path / "one") as one, started(deployment, tmp_path / "two") as other:
        for daemon in (one, other):
            daemon.until_ready()
        both = {bootstrap(one), bootstrap(other)}
        until("each knows both", lambda: live(bootstrap(one)) == live(bootstrap(other)) == both)
        yield one, other


def metadata(address: str, client_id: str = "probe") -> Any:
    """What one daemon tells a client. `list_topics` asks the daemon that it is connected to."""
    client = Producer({"bootstrap.servers": address, "client.id": client_id, **CLIENT})
    return client.list_topics(TOPIC, timeout=20)


def live(address: str) -> set[str]:
    return {f"{one.host}:{one.port}" for one in metadata(address).brokers.values()}


def leader(address: str, client_id: str) -> str:
    """The address of the daemon that this client is sent to."""
    found = metadata(address, client_id)
    one = found.brokers[found.topics[TOPIC].partitions[0].leader]
    return f"{one.host}:{one.port}"


class Sender(threading.Thread):
    """One idempotent producer that sends numbered values to every partition until `finish`."""

    def __init__(self, servers: str, client_id: str = "sender", **options: Any) -> None:
        super().__init__(daemon=True)
        self._producer = Producer(
            {
                "bootstrap.servers": servers,
                "client.id": client_id,
                "enable.idempotence": True,
                "linger.ms": 2,
                "batch.num.messages": 20,
                # Longer than a restart takes on a busy machine.
                "delivery.timeout.ms": 270_000,
                **CLIENT,
                **options,
            }
        )
        self._stopping = threading.Event()
        self.sent = 0
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        """Partition and offset of each acknowledged value."""
        self.failed: list[tuple[bytes, KafkaError]] = []
        self.left = -1

    def value(self, partition: int) -> bytes:
        """The next value of a partition."""
        return b"%d-%d" % (partition, self.sent)

    def run(self) -> None:
        while not self._stopping.is_set():
            if len(self._producer) < WAITING_MAX:
                for partition in range(PARTITIONS):
                    value = self.value(partition)
                    self._producer.produce(TOPIC, value, partition=partition, on_delivery=self._delivered)
                self.sent += 1
            self._producer.poll(0)
            self._stopping.wait(PAUSE_S)
        self.left = self._producer.flush(PATIENCE_S)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        value = message.value()
        assert isinstance(value, bytes)
        if error is not None:
            self.failed.append((value, error))
            return
        place = message.partition(), message.offset()
        assert place[0] is not None and place[1] is not None
        self.acknowledged[value] = place[0], place[1]

    def until_more(self, count: int = 200) -> None:
        """Wait for further acknowledgements."""
        enough = len(self.acknowledged) + count

        def holds() -> bool:
            assert self.is_alive() and not self.failed, self.failed[:3]
            return len(self.acknowledged) >= enough

        until("more records are acknowledged", holds)

    def finish(self) -> None:
        """Send no more; every record is acknowledged afterwards."""
        self._stopping.set()
        self.join(PATIENCE_S + 10)
        assert not self.is_alive()
        assert (self.left, self.failed) == (0, [])


def check(deployment: Deployment, sender: Sender) -> None:
    """Every value is stored exactly once, where it was acknowledged, in the order in which it was sent."""
    stored: dict[int, list[tuple[int, str]]] = {number: [] for number in range(PARTITIONS)}
    for record in deployment.consume(TOPIC):
        stored[record["partition"]].append((record["offset"], record["value"]))
    assert len(sender.acknowledged) == PARTITIONS * sender.sent
    for partition, rows in stored.items():
        expected = [text(b"%d-%d" % (partition, number)) for number in range(sender.sent)]
        values = [value for _, value in rows]
        assert values == expected, difference(values, expected)
        assert [offset for offset, _ in rows] == list(range(sender.sent))
    # librdkafka reports -1 for a batch that was stored earlier than its retry, if the offset is not known.
    for value, (partition, offset) in sender.acknowledged.items():
        if offset >= 0:
            assert stored[partition][offset] == (offset, text(value))


def difference(values: list[str], expected: list[str | None]) -> str:
    """What is wrong, for the message of a failed assertion."""
    counted = Counter(values)
    doubled = [value for value, times in counted.items() if times > 1]
    lost = [value for value in expected if value not in counted]
    return f"doubled: {doubled[:5]} ({len(doubled)}), lost: {lost[:5]} ({len(lost)})"


def test_a_taken_port_opens_later_and_records_come_back_byte_for_byte(
    deployment: Deployment, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as parts:
        holder = parts.enter_context(socket.create_server(("127.0.0.1", 0)))
        servers = f"127.0.0.1:{holder.getsockname()[1]}"
        configure(deployment, servers)
        daemon = parts.enter_context(started(deployment, tmp_path / "scratch"))
        daemon.until_ready()
        daemon.until_logged("kafka.listen")
        assert daemon.post("/v1/topics/kept/records", b'{"value": "AAAA"}\n').status == 200
        assert not daemon.logged(SERVING)
        holder.close()
        assert bootstrap(daemon) == servers
        until("the daemon is in its own list", lambda: live(servers) == {servers})
        producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **CLIENT})
        sent: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
            (b"key", b"\x00\xff" * 300, [("trace", b"1"), ("trace", None), ("", b"")]),
            (None, b"", []),
            (b"", None, [("\u00fc", b"\x80")]),
            *((b"k%d" % number, b"v" * number, []) for number in range(500)),
        ]
        for number, (key, value, headers) in enumerate(sent):
            producer.produce(TOPIC, value, key, 0, headers=[*headers], timestamp=1_700_000_000_000 + number)
        assert producer.flush(60) == 0
        consumer = Consumer(
            {"bootstrap.servers": servers, "group.id": "unused", "enable.auto.commit": False, **CLIENT}
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        got: list[Any] = []
        while len(got) < len(sent):
            message = consumer.poll(30)
            assert message is not None and message.error() is None, (message, len(got))
            got.append((message.key(), message.value(), list(message.headers() or ())))
        consumer.close()
        assert got == sent
        assert daemon.stop() == 0
    rows = deployment.consume(TOPIC)
    assert [(row["key"], row["value"], row["headers"]) for row in rows] == [
        (text(key), text(value), [[name, text(data)] for name, data in headers])
        for key, value, headers in sent
    ]
    assert [row["offset"] for row in rows] == list(range(len(sent)))
    assert rows[7]["timestamp"].startswith("2023-11-14T22:13:20.007")


def roles_of(daemons: tuple[Served, Served]) -> tuple[Served, Served]:
    """The daemon that the sender is sent to, and the other one."""
    first = leader(bootstrap(daemons[0]), "sender")
    return daemons if bootstrap(daemons[0]) == first else daemons[::-1]


def test_a_producer_goes_on_when_its_daemon_stops(deployment: Deployment, tmp_path: Path) -> None:
    # Its registration does not expire in this test.
    configure(deployment, broker_timeout="300s")
    with two(deployment, tmp_path) as daemons:
        ended, other = roles_of(daemons)
        sender = Sender(",".join(map(bootstrap, daemons)))
        sender.start()
        sender.until_more()
        assert ended.stop() == 0
        # The other daemon reads the list a moment later.
        until("it leaves the list", lambda: live(bootstrap(other)) == {bootstrap(other)}, patience_s=90)
        sender.until_more()
        sender.finish()
        assert other.stop() == 0
    check(deployment, sender)


def test_a_producer_goes_on_when_its_daemon_is_paused_and_killed(
    deployment: Deployment, tmp_path: Path
) -> None:
    with two(deployment, tmp_path) as daemons:
        first, other = roles_of(daemons)
        both = {bootstrap(first), bootstrap(other)}
        sender = Sender(",".join(both))
        sender.start()
        sender.until_more()
        first.pause()
        try:
            until("only one daemon is left", lambda: live(bootstrap(other)) == {bootstrap(other)})
            sender.until_more()
        finally:
            # It now processes the requests that the client has repeated at the other one.
            first.signal(SIGCONT)
        until("the paused daemon is back", lambda: live(bootstrap(other)) == both)
        sender.until_more()
        first.kill()
        until("only one daemon is left", lambda: live(bootstrap(other)) == {bootstrap(other)})
        sender.until_more()
        sender.finish()
        assert other.stop() == 0
    check(deployment, sender)


def test_lost_answers_store_nothing_twice(deployment: Deployment, tmp_path: Path) -> None:
    with contextlib.closing(LossyProxy()) as proxy:
        configure(deployment, advertised="{}:{}".format(*proxy.address))
        with started(deployment, tmp_path / "scratch") as daemon:
            host, _, port = bootstrap(daemon).rpartition(":")
            proxy.upstream = (host, int(port))
            daemon.until_ready()
            sender = Sender("{}:{}".format(*proxy.address))
            sender.start()
            sender.until_more()
            for _ in range(5):
                proxy.lose_one()
                sender.until_more(50)
            sender.finish()
            assert daemon.stop() == 0
    check(deployment, sender)

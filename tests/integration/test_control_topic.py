"""The control topic on a real broker: without repetitions it equals the ledger, in ledger order for each
table.

This holds through failures of the broker, the topic and the publishing process. Iceberg's own classes read
the events.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]  # its __init__ has no __all__

from archiver.control_topic.kafka_topic import KafkaTopic
from archiver.control_topic.publisher import EventPublisher
from archiver.control_topic.waves import TopicRecord
from archiver.runtime.clock import SystemClock
from archiver.runtime.errors import ArchiverError, Halt, OutcomeUnknown, RetryLater
from tests.support.events.event_judge import CURRENT, judge
from tests.support.kafka import kafka_fixtures
from tests.support.kafka.control_topic import (
    LedgerWriter,
    Rig,
    check_is_ledger,
    events_of,
    raw_stream,
    seen_in,
    settings_of,
)
from tests.support.kafka.kafka_server import KafkaServer
from tests.support.kafka.mirroring import Cluster
from tests.support.kafka.publisher_process import rig_in
from tests.support.log.memory_log import MemoryLogStore
from tests.support.objects.memory_store import MemoryObjectStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
PARTITIONS = 3
CLOCK = SystemClock()
server, cluster = kafka_fixtures.server, kafka_fixtures.cluster


@pytest.fixture
def topic(server: KafkaServer) -> str:
    return server.new_name("control")


@pytest.fixture
def rig() -> Rig:
    logs = MemoryLogStore(1 << 20)
    return Rig(logs.log("control"), logs.log("published"), MemoryObjectStore(), CLOCK)


def publisher(rig: Rig, server: KafkaServer, topic: str, **chosen: str) -> EventPublisher:
    given: dict[str, Any] = {"brokers": server.brokers, "topic": topic, "request_timeout": "5s", **chosen}
    settings = settings_of(**given)
    return rig.publisher(lambda: KafkaTopic(settings, CLOCK), **given)


def until_published(one: EventPublisher, patience_s: float = 270.0) -> list[ArchiverError]:
    """Run as the daemon does, again after each error; returns the errors."""
    errors: list[ArchiverError] = []
    deadline_s = CLOCK.monotonic_s() + patience_s
    while True:
        try:
            one.run()
            return errors
        except ArchiverError as error:
            errors.append(error)
            assert CLOCK.monotonic_s() < deadline_s, errors
            CLOCK.sleep(0.2)


def until_begun(one: EventPublisher, begun: Callable[[], bool]) -> ArchiverError:
    """Run again until an attempt has begun what the test stops; its error.

    A broker that was just started may not answer within the short limits of a test.
    """
    while True:
        with pytest.raises((RetryLater, OutcomeUnknown)) as caught:
            one.run()
        if begun():
            return caught.value
        CLOCK.sleep(0.2)


def test_the_topic_is_the_ledger_and_java_reads_it(
    tmp_path: Path, server: KafkaServer, cluster: Cluster, topic: str, rig: Rig
) -> None:
    cluster.create(topic, PARTITIONS)
    old = LedgerWriter(rig.control, "old:1", 1)
    for _ in range(5):
        old.round(*range(1, 9))
    abandoned = old.begin()
    old.write(abandoned, 1)
    ledger = LedgerWriter(rig.control, "new:1", 2)
    stale = rig.control.read(rig.control.tail() - 2, 1)[0].data
    # void: an entry of the leader before
    rig.control.append(rig.control.tail(), stale.replace(b"old:1", b"old:2"))
    ledger.leader.refresh()
    for _ in range(5):
        ledger.round(2, 1)
    one = publisher(rig, server, topic)
    assert one.run() == len(events_of(rig.control))
    ledger.round(3)
    assert one.run() == 5
    one.close()
    seen = seen_in(server.brokers, topic, PARTITIONS)
    assert check_is_ledger(seen, events_of(rig.control)) == 0
    assert len({record.partition for record in seen}) > 1
    verdicts = judge(CURRENT).read_stream(raw_stream(tmp_path, seen))
    assert verdicts.errors == []
    assert len(verdicts.events) == len(seen)


def test_killed_between_acknowledgement_and_position(
    tmp_path: Path, server: KafkaServer, cluster: Cluster, topic: str
) -> None:
    cluster.create(topic, PARTITIONS)
    rig = rig_in(tmp_path)
    ledger = LedgerWriter(rig.control)
    for _ in range(12):
        ledger.round(1, 2)
    codes = []
    for moves in (2, 3, 2, 1, 0):  # the first process writes its first position before all others
        command = [
            sys.executable,
            "-m",
            "tests.support.kafka.publisher_process",
            str(tmp_path),
            server.brokers,
            topic,
            str(moves),
        ]
        codes.append(subprocess.run(command, timeout=100, check=False, stdout=subprocess.DEVNULL).returncode)
        ledger.round(2)
    assert codes == [-signal.SIGKILL] * 4 + [0]
    publisher(rig, server, topic).run()
    repeated = check_is_ledger(seen_in(server.brokers, topic, PARTITIONS), events_of(rig.control))
    assert repeated >= 4


@pytest.mark.turns(2)
def test_a_broker_that_is_away_at_the_start_dies_and_stands_still(tmp_path: Path) -> None:
    logs = MemoryLogStore(1 << 20)
    rig = Rig(logs.log("control"), logs.log("published"), MemoryObjectStore(), CLOCK)
    ledger = LedgerWriter(rig.control)
    topic = "control"
    with KafkaServer(tmp_path / "kafka") as server:
        Cluster(server.brokers).create(topic, PARTITIONS)
        server.kill()
        one = publisher(rig, server, topic, request_timeout="1s", delivery_timeout="2s")
        ledger.round(1, 2)
        with pytest.raises(RetryLater):
            one.run()
        one.update_state("away")
        assert one.state.lag == rig.control.tail()
        server.start()
        until_published(one)
        one.update_state(None)
        assert one.state.lag == 0

        server.kill()  # with a connection that was in use
        ledger.round(2, 1)
        with pytest.raises((RetryLater, OutcomeUnknown)):
            one.run()
        server.start()
        until_published(one)

        process = server._process
        assert process is not None
        real = KafkaTopic.send

        stopped: list[int] = []

        def send(self: KafkaTopic, records: Sequence[TopicRecord], stopping: Callable[[], bool]) -> None:
            os.kill(process.pid, signal.SIGSTOP)
            stopped.append(process.pid)
            real(self, records, stopping)

        ledger.round(1)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(KafkaTopic, "send", send)
            error = until_begun(one, lambda: bool(stopped))
        assert isinstance(error, OutcomeUnknown)
        assert "not acknowledged within 2 s" in str(error)
        with pytest.raises(RetryLater):
            one.run()
        os.kill(process.pid, signal.SIGCONT)
        until_published(one)
        one.close()
        check_is_ledger(seen_in(server.brokers, topic, PARTITIONS), events_of(rig.control))


@pytest.mark.turns(2)
def test_a_broker_that_dies_again_and_again_while_there_is_much(tmp_path: Path) -> None:
    logs = MemoryLogStore(1 << 20)
    rig = Rig(logs.log("control"), logs.log("published"), MemoryObjectStore(), CLOCK)
    ledger = LedgerWriter(rig.control)
    for _ in range(150):
        ledger.round(1, 2, 3)
    with KafkaServer(tmp_path / "kafka") as server:
        Cluster(server.brokers).create("control", PARTITIONS)
        one = publisher(rig, server, "control", request_timeout="1s", delivery_timeout="2s")
        kills = 0
        real = KafkaTopic.send

        def send(self: KafkaTopic, records: Sequence[TopicRecord], stopping: Callable[[], bool]) -> None:
            nonlocal kills
            real(self, records, stopping)
            if one.state.events > 200 * (kills + 1) and kills < 2:
                kills += 1
                server.kill()

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(KafkaTopic, "send", send)
            for expected in (1, 2):
                until_begun(one, lambda least=expected: kills == least)  # type: ignore[misc]
                server.start()
            until_published(one)
        one.close()
        check_is_ledger(seen_in(server.brokers, "control", PARTITIONS), events_of(rig.control))


def test_an_event_above_the_topics_limit_waits_for_a_higher_one(
    server: KafkaServer, cluster: Cluster, topic: str, rig: Rig
) -> None:
    cluster.create(topic, 1, max_message_bytes=100_000)
    ledger = LedgerWriter(rig.control)
    ledger.round(1)
    ledger.round(2, padding=200_000)
    ledger.round(1)
    one = publisher(rig, server, topic)
    for _ in range(2):
        with pytest.raises(
            Halt,
            match=r"refuses entry \d+ of the control log \(DATA_WRITTEN, 20\d{4} bytes\) as too large; raise "
            r"max.message.bytes",
        ):
            one.run()
    before = seen_in(server.brokers, topic, 1)
    assert len(before) == 6  # the first round, and the START_COMMIT of the second
    entry = ConfigEntry("max.message.bytes", "1000000", incremental_operation=AlterConfigOpType.SET)
    for future in cluster.admin.incremental_alter_configs(
        [ConfigResource("topic", topic, incremental_configs=[entry])]
    ).values():
        future.result(30)
    until_published(one)
    one.close()
    assert check_is_ledger(seen_in(server.brokers, topic, 1), events_of(rig.control)) == 0


def test_a_topic_that_is_not_there_and_one_that_is_made_again(
    server: KafkaServer, cluster: Cluster, topic: str, rig: Rig
) -> None:
    ledger = LedgerWriter(rig.control)
    ledger.round(1)
    one = publisher(rig, server, topic)
    with pytest.raises(Halt, match=f"the cluster has no topic {topic}; create it"):
        one.run()
    cluster.create(topic, 1)
    until_published(one)
    cluster.delete(topic)
    ledger.round(2)
    with pytest.raises(ArchiverError):
        publisher(rig, server, topic, request_timeout="2s", delivery_timeout="2s").run()
    cluster.create(topic, 1)
    until_published(one)
    ledger.round(1)
    until_published(one)
    one.close()
    assert check_is_ledger(seen_in(server.brokers, topic, 1), events_of(rig.control)) == 0

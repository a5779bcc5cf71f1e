"""Read-process-write loops of Kafka clients, whose daemons and whose own processes are killed: the output has each
record of the input once and in order, and the committed offsets agree with it at every time."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from signal import SIGCONT, SIGKILL
from typing import Self

import pytest
from confluent_kafka import Producer
from kio.schema.errors import ErrorCode

from archiver.kafka.protocol import ApiKey
from archiver.runtime.clock import SystemClock
from archiver.spark.java import require_java
from tests.support.builders.deployment import Deployment, text
from tests.support.kafka import kafka_server
from tests.support.process.processes import Command, until
from tests.support.process.serving import AUDITS_EVERY_S
from tests.support.servers.maven import ROOT, compiled, jars, spark_jars
from tests.system.test_kafka_listener_served import (
    CLIENT,
    PARTITIONS,
    TOPIC,
    address,
    bootstrap,
    configure,
    coordinator,
    live,
    started,
    two,
)
from tests.system.test_kafka_transactions_served import Ending

pytestmark = [
    pytest.mark.turns(2),
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="searches /proc for descendants"),
]

OUTPUT = "output"
GROUP = "copy"
EACH = 200
"""Records that each partition gets at a time."""
TOGETHER = EACH * PARTITIONS
SOME = 50
PATIENCE_S = 150.0


def librdkafka() -> list[str]:
    return [sys.executable, "-m", "tests.support.kafka.exactly_once_process"]


def java() -> list[str]:
    release = kafka_server.PACKAGES[0].rsplit(":", 1)[1]
    needed = [*jars(f"org.apache.kafka:kafka-clients:{release}"), *spark_jars("slf4j-api")]
    sources = ROOT / "tests" / "compat" / "exactly_once"
    path = os.pathsep.join(map(str, (compiled(f"exactly-once/{release}", sources, needed), *needed)))
    run = [str(require_java(os.environ).executable), "-Xmx128m", "-XX:TieredStopAtLevel=1", "-cp", path]
    return [*run, "ExactlyOnce"]


class Loops:
    """The processes of one client, each with a transactional id of its own."""

    def __init__(self, deployment: Deployment, program: list[str], servers: str, scratch: Path) -> None:
        self._deployment = deployment
        self._program = program
        self._servers = servers
        self._scratch = scratch
        self._all: list[Command] = []
        self._running: list[Command] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._running:
            one.__exit__()

    def start(self, servers: str | None = None) -> None:
        """Start them, also after a kill: with the same transactional ids."""
        for name in ("copy-0", "copy-1"):
            arguments = (servers or self._servers, GROUP, name, TOPIC, OUTPUT)
            one = Command(self._deployment, *arguments, scratch=self._scratch, program=self._program)
            self._all.append(one)
            self._running.append(one)

    def kill(self) -> None:
        for one in self._running:
            one.signal(SIGKILL)
            one.end()
        self._running.clear()

    def stop(self) -> None:
        for one in self._running:
            assert one.end() == 0, "".join(one.err)
        self._running.clear()

    def copied(self) -> int:
        """The records of all transactions that are known to be committed."""
        lines = [line for one in self._all for line in list(one.out)]
        return sum(int(line.split()[1]) for line in lines if line.startswith("committed "))

    def until_copied(self, count: int) -> None:
        """Wait for a number of records; more may be copied, because answers can be lost."""

        def holds() -> bool:
            assert all(one._process.poll() is None for one in self._running), self._running[0].err
            return self.copied() >= count

        until(f"{count} records are copied", holds, PATIENCE_S)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = Deployment(tmp_path / "d")
    made.overrides["topics"] = [
        {"name": name, "partitions": PARTITIONS, "archive": {"kind": "parquet"}} for name in (TOPIC, OUTPUT)
    ]
    configure(made, group_initial_rebalance_delay="100ms", group_session_timeout_min="1s")
    return made


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def is_copied(deployment: Deployment, count: int) -> bool:
    """Whether the output has that many records, and all are committed."""
    return copied(deployment) == (count, count)


def feed(servers: str, part: int) -> None:
    """Send the next `EACH` records of each partition."""
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, **CLIENT})
    for number in range(part * EACH, (part + 1) * EACH):
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, b"%d-%d" % (partition, number), partition=partition)
    assert producer.flush(60) == 0


def copied(deployment: Deployment) -> tuple[int, int]:
    """Compare the output with the committed offsets, as the log has them; their numbers of records.

    Committed output is not visible while an earlier transaction of its partition is open.
    """
    # Reading all the time would take the processor from the daemons.
    SystemClock().sleep(AUDITS_EVERY_S)
    values: dict[int, list[str | None]] = {number: [] for number in range(PARTITIONS)}
    for record in deployment.consume(OUTPUT):
        values[record["partition"]].append(record["value"])
    # Behind the output: it is never ahead of them.
    done = deployment.cli("groups", "describe", GROUP, "--output", "json")
    offsets = {row["partition"]: int(row["committed"]) for row in json.loads(done.out)["partitions"]}
    for partition, found in values.items():
        expected = [text(b"%d-%d" % (partition, number)) for number in range(len(found))]
        assert found == expected, "the output is not the beginning of the input"
        assert len(found) <= offsets.get(partition, 0)
    return sum(map(len, values.values())), sum(offsets.values())


@pytest.mark.parametrize("client", [java, librdkafka], ids=lambda client: client.__name__)
def test_loops_are_exactly_once_when_daemons_and_loops_are_killed(
    client: Callable[[], list[str]], deployment: Deployment, tmp_path: Path, stack: ExitStack
) -> None:
    first = stack.enter_context(two(deployment, tmp_path))
    servers = ",".join(bootstrap(one) for one in first)
    feed(servers, 0)
    loops = stack.enter_context(Loops(deployment, client(), servers, tmp_path / "loops"))
    loops.start()
    loops.until_copied(SOME)
    place = coordinator(first[0], GROUP)
    killed = next(one for one in first if address(one) == place)
    (left,) = (one for one in first if one is not killed)
    killed.kill()
    until("all is copied", lambda: is_copied(deployment, TOGETHER), PATIENCE_S)
    third = stack.enter_context(started(deployment, tmp_path / "three"))
    both = {bootstrap(left), bootstrap(third)}
    until("each knows both", lambda: live(bootstrap(third)) == live(bootstrap(left)) == both)
    before = loops.copied()
    # Clients learn of the new one before the old one ends.
    feed(bootstrap(third), 1)
    loops.until_copied(before + SOME)
    left.kill()
    until("all is copied", lambda: is_copied(deployment, 2 * TOGETHER), PATIENCE_S)
    before = loops.copied()
    feed(bootstrap(third), 2)
    loops.until_copied(before + SOME)
    loops.kill()

    # What is open now is aborted after its timeout, or by the next process.
    def agree() -> bool:
        output, committed = copied(deployment)
        return 2 * TOGETHER < output == committed

    until("output and offsets agree", agree, PATIENCE_S)
    loops.start(bootstrap(third))
    until("all is copied", lambda: is_copied(deployment, 3 * TOGETHER), PATIENCE_S)
    loops.stop()
    assert copied(deployment) == (3 * TOGETHER, 3 * TOGETHER)


class Committing(Ending):
    """A producer whose requests are sent by hand. Its group has the same name, so one daemon has both."""

    name = "id"

    def commit(self, offset: int) -> ErrorCode:
        self.send_commit(offset)
        return self.code()

    def send_commit(self, offset: int) -> None:
        part = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": 0,
            "committed_metadata": None,
        }
        body = {
            "transactional_id": self.name,
            "group_id": self.name,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "topics": [{"name": TOPIC, "partitions": [part]}],
        }
        self.send(ApiKey.TXN_OFFSET_COMMIT, 2, body)

    def code(self) -> ErrorCode:
        """The error of the only partition: the last number of the answer."""
        return ErrorCode(int.from_bytes(self.receive()[-2:], "big", signed=True))

    def end(self) -> bool:
        stated = {"producer_id": self.producer_id, "producer_epoch": self.epoch, "committed": True}
        found = self.ask(ApiKey.END_TXN, 3, {"transactional_id": self.name, **stated})
        return found.error_code is ErrorCode.none

    def committed(self) -> int | None:
        """The offset; None if this daemon does not coordinate the group."""
        body = {"group_id": self.name, "topics": None, "require_stable": True}
        parts = [one for topic in self.ask(ApiKey.OFFSET_FETCH, 7, body).topics for one in topic.partitions]
        assert all(one.error_code is ErrorCode.none for one in parts)
        return int(parts[0].committed_offset) if parts else None


def test_offsets_that_waited_at_a_paused_coordinator_are_in_no_transaction(
    deployment: Deployment, tmp_path: Path, stack: ExitStack
) -> None:
    daemons = stack.enter_context(two(deployment, tmp_path))
    place = coordinator(daemons[0], Committing.name)
    paused = next(one for one in daemons if address(one) == place)
    (other,) = (one for one in daemons if one is not paused)
    stale = stack.enter_context(Committing(address(paused)))
    assert stale.open(Committing.name)
    until("the slot is claimed", lambda: stale.commit(3) is ErrorCode.none)
    paused.pause()
    stale.send_commit(5)
    # The client goes on elsewhere.
    client = stack.enter_context(Committing(address(other)))
    client.producer_id, client.epoch = stale.producer_id, stale.epoch
    until("the other daemon has the group", lambda: client.commit(7) is ErrorCode.none)
    until("the first transaction is committed", client.end)
    assert client.commit(8) is ErrorCode.none
    paused.signal(SIGCONT)
    assert stale.code() is ErrorCode.not_coordinator
    # It may coordinate the group again.
    until("the next transaction is committed", lambda: client.end() or stale.end())
    assert until("the offset is known", lambda: client.committed() or stale.committed()) == 8

"""Command line tools: each is run as a user runs it, and what it prints or stores is compared."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from confluent_kafka import Producer

from tests.compatibility.checks import COUNT, READ
from tests.compatibility.compared_clients import JAVA_RELEASE, java_command
from tests.support.kafka.listening import Listening

TIMEOUT_S: Final = 40
TOPIC: Final = "tools"
"""A topic with a partition for each tool that writes."""
MADE: Final = "made-by-tools"
LINES: Final = "".join(f"key {number}\tvalue {number}\n" for number in range(50))
NOT_RUN: Final = "not run here"
_TOOLS: Final = "org.apache.kafka.tools"
_COOPERATIVE: Final = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"


class Scene(NamedTuple):
    """The listener, and a folder for files."""

    listener: Listening
    folder: Path

    def java(self, name: str, *arguments: str, given: str = "") -> str:
        """Run a tool of Kafka; what it printed."""
        return _run(java_command(name, *arguments), given)

    def admin(self, name: str, *arguments: str) -> str:
        """Run a tool of Kafka that takes `--bootstrap-server`."""
        return self.java(name, "--bootstrap-server", self.listener.bootstrap, *arguments)

    def kcat(self, *arguments: str, given: str = "") -> str:
        """Run kcat; what it printed."""
        program = shutil.which("kcat")
        assert program is not None
        return _run([program, "-b", self.listener.bootstrap, *arguments], given)

    def stored(self, topic: str) -> list[tuple[bytes | None, bytes | None]]:
        """Keys and values of the committed records, read without a Kafka client."""
        return [(one.key, one.value) for found in self.listener.stored(topic).values() for one in found]


def _run(command: Sequence[str], given: str) -> str:
    done = subprocess.run(
        command,
        input=given,
        capture_output=True,
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )
    if done.returncode != 0:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if not line.startswith("SLF4J")]
        raise RuntimeError("\n".join(lines).strip() or f"exit code {done.returncode}")
    return done.stdout


def _sent() -> list[tuple[bytes | None, bytes | None]]:
    return [(f"key {number}".encode(), f"value {number}".encode()) for number in range(50)]


def _console_producer(scene: Scene) -> None:
    topic = f"{TOPIC}-console"
    scene.java(
        f"{_TOOLS}.ConsoleProducer",
        "--bootstrap-server",
        scene.listener.bootstrap,
        "--topic",
        topic,
        "--reader-property",
        "parse.key=true",
        given=LINES,
    )
    assert sorted(scene.stored(topic)) == sorted(_sent())


def _console_consumer(scene: Scene) -> None:
    printed = scene.admin(
        f"{_TOOLS}.consumer.ConsoleConsumer",
        *("--topic", READ, "--partition", "0", "--offset", "earliest"),
        *("--max-messages", str(COUNT), "--timeout-ms", "10000"),
        *("--formatter-property", "print.offset=true", "--formatter-property", "print.value=false"),
    )
    assert [int(number) for number in re.findall(r"Offset:(\d+)", printed)] == list(range(COUNT))


def _producer_performance(scene: Scene) -> None:
    topic = f"{TOPIC}-performance"
    scene.java(
        f"{_TOOLS}.ProducerPerformance",
        *("--topic", topic, "--num-records", "2000", "--record-size", "100", "--throughput", "-1"),
        *("--command-property", f"bootstrap.servers={scene.listener.bootstrap}"),
    )
    assert len(scene.stored(topic)) == 2000


def _verifiable_producer(scene: Scene) -> None:
    topic = f"{TOPIC}-verifiable"
    printed = scene.java(
        f"{_TOOLS}.VerifiableProducer",
        *("--bootstrap-server", scene.listener.bootstrap),
        *("--topic", topic, "--max-messages", "200", "--acks", "-1"),
    )
    assert printed.count("producer_send_success") == 200
    assert sorted(int(value or b"") for _, value in scene.stored(topic)) == list(range(200))


def _verifiable_consumer(scene: Scene) -> None:
    printed = scene.java(
        f"{_TOOLS}.VerifiableConsumer",
        *("--bootstrap-server", scene.listener.bootstrap),
        *("--topic", READ, "--group-id", "verifiable", "--max-messages", str(COUNT)),
        *("--reset-policy", "earliest"),
    )
    if '"offsets_committed"' not in printed:
        raise RuntimeError("it commits no offsets")


def _consumer_performance(scene: Scene) -> None:
    scene.admin(
        f"{_TOOLS}.ConsumerPerformance",
        *("--topic", READ, "--num-records", str(COUNT), "--timeout", "8000"),
    )


def _topics(scene: Scene) -> None:
    command = f"{_TOOLS}.TopicCommand"
    scene.admin(command, "--create", "--topic", MADE, "--partitions", "2")
    assert MADE in scene.admin(command, "--list").split()
    scene.admin(command, "--alter", "--topic", MADE, "--partitions", "3")
    assert "PartitionCount: 3" in scene.admin(command, "--describe", "--topic", MADE)
    scene.admin(command, "--delete", "--topic", MADE)
    assert MADE not in scene.listener.writer.sequencer.fold.topics_by_name


def _configs(scene: Scene) -> None:
    entity = ("--entity-type", "topics", "--entity-name", TOPIC)
    command = "org.apache.kafka.tools.ConfigCommand"
    try:
        scene.admin(command, *entity, "--describe")
    except RuntimeError as error:
        if "ClassNotFound" not in str(error):
            raise
        command = "kafka.admin.ConfigCommand"
    scene.admin(command, *entity, "--alter", "--add-config", "retention.ms=86400000")
    assert "retention.ms=86400000" in scene.admin(command, *entity, "--describe")


def _get_offsets(scene: Scene) -> None:
    assert f"{READ}:0:{COUNT}" in scene.admin(f"{_TOOLS}.GetOffsetShell", "--topic", READ)


def _api_versions(scene: Scene) -> None:
    assert "Produce(0): 3 to 11" in scene.admin(f"{_TOOLS}.BrokerApiVersionsCommand")


def _cluster(scene: Scene) -> None:
    printed = scene.java(
        f"{_TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", scene.listener.bootstrap
    )
    assert scene.listener.application.cluster.cluster_id in printed


def _console_group(scene: Scene) -> None:
    for more in ((), ("--consumer-property", "partition.assignment.strategy=" + _COOPERATIVE)):
        printed = scene.admin(
            f"{_TOOLS}.consumer.ConsoleConsumer",
            *("--topic", READ, "--group", f"console{len(more)}", "--from-beginning", *more),
            *("--max-messages", str(COUNT), "--timeout-ms", "20000"),
            *("--formatter-property", "print.offset=true", "--formatter-property", "print.value=false"),
        )
        assert [int(number) for number in re.findall(r"Offset:(\d+)", printed)] == list(range(COUNT))


def _consumer_groups(scene: Scene) -> None:
    def ask(*arguments: str) -> str:
        return scene.admin(f"{_TOOLS}.consumer.group.ConsumerGroupCommand", *arguments)

    group, place = "by-tools", ("--topic", f"{READ}:0")
    reset = ask("--reset-offsets", "--group", group, *place, "--to-offset", "7", "--execute")
    assert re.search(rf"{group}\s+{READ}\s+0\s+7\b", reset), reset
    assert group in ask("--list").split()
    described = ask("--describe", "--group", group)
    assert re.search(rf"{READ}\s+0\s+7\s+{COUNT}\s+{COUNT - 7}\b", described), described
    assert re.search(r"Empty\s+0\b", ask("--describe", "--group", group, "--state"))
    assert "Successful" in ask("--delete-offsets", "--group", group, *place)
    ask("--reset-offsets", "--group", group, *place, "--to-latest", "--execute")
    assert "was successful" in ask("--delete", "--group", group)
    assert group not in ask("--list").split()


def _transactions(scene: Scene) -> None:
    scene.admin(f"{_TOOLS}.TransactionsCommand", "list")


def _abort(scene: Scene) -> None:
    topic = f"{TOPIC}-abort"
    producer = Producer({"bootstrap.servers": scene.listener.bootstrap, "transactional.id": "by-tools"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"gone", partition=0)
    producer.flush(TIMEOUT_S)
    command, place = f"{_TOOLS}.TransactionsCommand", ("--topic", topic, "--partition", "0")
    assert re.search(r"\s0\s*$", scene.admin(command, "describe-producers", *place))
    scene.admin(command, "abort", *place, "--start-offset", "0")
    assert not len(scene.listener.writer.sequencer.refresh().transactions)


def _kcat_list(scene: Scene) -> None:
    assert f'topic "{READ}" with 1 partitions' in scene.kcat("-L", "-t", READ)


def _kcat_produce(scene: Scene) -> None:
    topic = f"{TOPIC}-kcat"
    scene.kcat(
        "-P", "-t", topic, "-p", "0", "-K", "\t", "-z", "zstd", "-X", "enable.idempotence=true", given=LINES
    )
    assert scene.stored(topic) == _sent()


def _kcat_consume(scene: Scene) -> None:
    printed = scene.kcat(
        "-C", "-t", READ, "-p", "0", "-o", "beginning", "-c", str(COUNT), "-e", "-q", "-f", "%o %S\n"
    )
    assert [int(line.split()[0]) for line in printed.splitlines()] == list(range(COUNT))


TOOLS: Final[dict[str, Callable[[Scene], None]]] = {
    "`kafka-console-producer`": _console_producer,
    "`kafka-console-consumer`, one partition": _console_consumer,
    "`kafka-producer-perf-test`": _producer_performance,
    "`kafka-consumer-perf-test`": _consumer_performance,
    "`kafka-verifiable-producer`": _verifiable_producer,
    "`kafka-verifiable-consumer`": _verifiable_consumer,
    "`kafka-topics`: create, list, alter, describe, delete": _topics,
    "`kafka-configs` of a topic: alter, describe": _configs,
    "`kafka-get-offsets`": _get_offsets,
    "`kafka-broker-api-versions`": _api_versions,
    "`kafka-cluster cluster-id`": _cluster,
    "`kafka-console-consumer` in a group, eager and cooperative": _console_group,
    "`kafka-consumer-groups`: list, describe, reset and delete offsets, delete": _consumer_groups,
    "`kafka-transactions list`": _transactions,
    "`kafka-transactions`: describe-producers, abort": _abort,
    "`kcat -L`": _kcat_list,
    "`kcat -P`, idempotent, zstd": _kcat_produce,
    "`kcat -C`": _kcat_consume,
}
TOPICS: Final = (
    TOPIC,
    *(f"{TOPIC}-{what}" for what in ("console", "performance", "verifiable", "abort", "kcat")),
)


def release_of_kcat() -> str:
    """The version of kcat on this machine."""
    program = shutil.which("kcat")
    if program is None:
        return NOT_RUN
    found = re.search(r"Version (\S+)", _run([program, "-V"], ""))
    return "unknown" if found is None else found[1]


def run(listener: Listening, folder: Path) -> dict[str, str]:
    """By tool: empty if it works, else the reason."""
    scene, found = Scene(listener, folder), {}
    for name, check in TOOLS.items():
        if "kcat" in name and shutil.which("kcat") is None:
            found[name] = NOT_RUN
            continue
        try:
            check(scene)
            found[name] = ""
        except subprocess.TimeoutExpired:
            found[name] = f"no result in {TIMEOUT_S} s"
        except (AssertionError, RuntimeError) as error:
            said = next((line for line in str(error).splitlines() if line.strip()), "what it shows differs")
            found[name] = said.strip().replace(listener.bootstrap, "the listener")[:200]
    return found


RELEASE: Final = JAVA_RELEASE

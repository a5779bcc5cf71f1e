"""Real processes, stopped in the middle: every acknowledgement stays true, nothing runs on, and the next run
goes on."""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import sys
import termios
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from archiver.cli.produce import Stop, stoppable
from tests.support.builders.deployment import Deployment, check_present, jsonl, sample_records
from tests.support.process.processes import Command, alive, until

pytestmark = [
    pytest.mark.timeout(180),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for descendants in /proc"),
]

FIRST, SECOND = 60, 20
ORPHANS_S = 60.0


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "d")


def acknowledged(command: Command) -> list[Any]:
    """The acknowledgements that were printed whole."""
    return [json.loads(line) for line in command.out if line.endswith("\n")]


def stored(deployment: Deployment) -> int:
    topics = deployment.cli("topics", "list", "--output", "json").json()["topics"]
    return sum(item["records"] for item in topics)


def unread(command: Command) -> int:
    """Bytes in its standard input that it has not read."""
    assert command._process.stdin is not None
    count = array.array("i", [0])
    fcntl.ioctl(command._process.stdin.fileno(), termios.FIONREAD, count)
    return count[0]


def check_settled(deployment: Deployment, rows: int) -> None:
    """Archive what is left: valid, and every record that should be is in a table or archive once."""
    done = deployment.cli("archive", "--all", "--output", "json")
    assert done.code == 0, (done.out, done.err)
    audit = deployment.cli("audit", "--output", "json")
    assert audit.code == 0, audit.out
    partitions = [item for item in audit.json()["partitions"] if item["topic"] != "kept"]
    assert all(item["watermark"] == item["next"] == item["rows"] for item in partitions), partitions
    assert sum(item["rows"] for item in partitions) == rows


# produce


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_producer_that_is_stopped_at_a_slow_pipe(
    number: signal.Signals, deployment: Deployment, tmp_path: Path
) -> None:
    sent = sample_records(FIRST + SECOND)
    with Command(deployment, "produce", "--output", "json", scratch=tmp_path / "scratch") as command:
        command.write(jsonl(sent[:FIRST]))
        until(
            "the first records are stored",
            lambda: (deployment.root / "metadata.db").exists() and stored(deployment) == FIRST,
        )
        command.write(jsonl(sent[FIRST:]))
        until("the first are acknowledged", lambda: len(command.out) >= FIRST)
        until("all are stored", lambda: stored(deployment) == FIRST + SECOND)
        command.signal(number)
        code = command.wait()
    reported = acknowledged(command)
    assert all(item["offset"] is not None for item in reported)
    assert FIRST <= len(reported) <= FIRST + SECOND == stored(deployment)
    check_present(deployment, sent, reported)
    if number == signal.SIGKILL:
        assert code == -number
    else:
        assert code == 130, "there might have been more to read"
        assert len(reported) == FIRST + SECOND, "what was read is acknowledged"
        said = (
            f"stopped by {number.name}: 80 records were read and acknowledged; the rest of the input was "
            "not read\n"
        )
        assert "".join(command.err) == said
        assert "Traceback" not in "".join(command.err)
    again = deployment.produce(sent[:6])
    check_present(deployment, [*sent[: len(reported)], *sent[:6]], [*reported, *again])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_producer_is_stopped_in_the_middle_of_a_flush(number: signal.Signals, tmp_path: Path) -> None:
    """The flush takes hours to come due, a record is half written, and standard input stays open."""
    deployment = Deployment(
        tmp_path / "d", overrides={"intake": {"delay_max": "1h", "delay_max_bytes": "1MB"}}
    )
    sent = sample_records(FIRST)
    with Command(deployment, "produce", "--output", "json", scratch=tmp_path / "scratch") as command:
        command.write(jsonl(sent) + '{"topic": "clicks", "val')
        until("it reads", lambda: (deployment.root / "metadata.db").exists() and not unread(command))
        command.signal(number)
        code = command.wait()
    reported = acknowledged(command)
    assert (code, len(reported)) == (130, FIRST), command.err
    assert f"stopped by {number.name}: 60 records were read and acknowledged" in "".join(command.err)
    assert stored(deployment) == FIRST
    check_present(deployment, sent, reported)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_producer_of_a_file_is_stopped_before_its_end(form: str, tmp_path: Path) -> None:
    """The queue is small and waits for an hour, so that the file cannot be read to its end."""
    small = dict.fromkeys(("delay_max_bytes", "queue_bytes_max", "record_bytes_max"), 4000)
    deployment = Deployment(tmp_path / "d", overrides={"intake": {"delay_max": "1h", **small}})
    path = deployment.root / "input"
    count = 20_000
    if form == "jsonl":
        path.write_text('{"topic": "kept", "value": "dmFsdWU="}\n' * count)
    else:
        pq.write_table(pa.table({"topic": ["kept"] * count, "value": [b"value"] * count}), path)
    with Command(
        deployment,
        "produce",
        "--input",
        str(path),
        "--format",
        form,
        "--output",
        "json",
        scratch=tmp_path / "scratch",
    ) as command:
        until("the first are acknowledged", lambda: len(command.out) > 0)
        command.signal(signal.SIGTERM)
        code = command.wait()
    reported = acknowledged(command)
    assert (code, command.err) == (
        130,
        [
            (
                f"stopped by SIGTERM: {len(reported):,} records were read and acknowledged; the rest of the "
                "input was not read\n"
            )
        ],
    )
    assert [item["offset"] for item in reported] == list(range(len(reported)))
    assert len(reported) == stored(deployment) < count


def test_an_input_that_was_at_its_end_is_not_cut(tmp_path: Path) -> None:
    """A signal between its last byte and its end changes nothing."""
    path = tmp_path / "input"
    path.write_text(jsonl(sample_records(FIRST)))
    stop = Stop()
    with path.open("rb") as source, closing(stop):
        stream, ends_itself = stoppable(source, stop)
        stop.ask(signal.SIGTERM)
        assert stream.read() == b""
        assert (ends_itself, stop.cut) == (True, True)
    stop = Stop()
    with path.open("rb") as source, closing(stop):
        stream, _ = stoppable(source, stop)
        assert len(stream.read(path.stat().st_size)) == path.stat().st_size
        stop.ask(signal.SIGTERM)
        assert stream.read() == b""
        assert not stop.cut


def test_a_stopped_transaction_is_aborted(deployment: Deployment, tmp_path: Path) -> None:
    sent = sample_records(FIRST)
    with Command(
        deployment, "produce", "--transactional-id", "x", "--output", "json", scratch=tmp_path / "scratch"
    ) as command:
        command.write(jsonl(sent))
        until("they are acknowledged", lambda: len(command.out) >= FIRST)
        command.signal(signal.SIGTERM)
        code = command.wait()
    assert code == 130
    assert "the transaction was aborted, none of its records counts: stopped by SIGTERM\n" in command.err
    assert len(command.out) == FIRST + 1
    assert json.loads(command.out[-1]) == {
        "transaction": "x",
        "outcome": "aborted",
        "error": "stopped by SIGTERM",
    }
    assert all(deployment.consume(topic) == [] for topic in ("orders", "clicks", "files", "kept"))
    assert len(deployment.produce(sent)) == FIRST


def test_two_producers_at_once(deployment: Deployment, tmp_path: Path) -> None:
    inputs = [sample_records(600), sample_records(600, first=1200)]
    commands = [
        Command(deployment, "produce", "--output", "json", scratch=tmp_path / "scratch") for _ in inputs
    ]
    with commands[0], commands[1]:
        for at in range(0, 600, 50):
            for command, records in zip(commands, inputs, strict=True):
                command.write(jsonl(records[at : at + 50]))
        assert [command.end() for command in commands] == [0, 0]
    both = [acknowledged(command) for command in commands]
    assert [len(reported) for reported in both] == [600, 600]
    check_present(deployment, [*inputs[0], *inputs[1]], [*both[0], *both[1]])
    assert stored(deployment) == 1200


# archive


@pytest.mark.spark
@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "starting"),
        (signal.SIGINT, "refining"),
        (signal.SIGTERM, "refining"),
        (signal.SIGKILL, "refining"),
    ],
)
def test_an_archiver_that_is_stopped(
    number: signal.Signals,
    moment: str,
    deployment: Deployment,
    tmp_path: Path,
    spark_session: SparkSession,
) -> None:
    sent = sample_records(600)
    reported = deployment.produce(sent)
    scratch = tmp_path / "scratch"
    with Command(deployment, "archive", "--all", scratch=scratch) as command:
        if moment == "starting":
            until("a JVM is there", lambda: any("java" in line for line in command.look()))
        else:
            until("refinement has begun", lambda: command.said("refining"))
            until(
                "a worker is there",
                lambda: any("pyspark" in line and "java" not in line.split()[0] for line in command.look()),
            )
        command.signal(number, group=number == signal.SIGINT)
        until(
            "it has ended",
            lambda: (
                command.look(),
                not alive({process for process in command.seen if process[0] == command.pid}),
            )[1],
        )
        code = command.wait()
        assert code == (130 if number == signal.SIGINT else -number), command.err
        until(f"nothing of {command.seen} runs any more", lambda: not alive(command.seen), ORPHANS_S)
    if number == signal.SIGINT:
        assert "interrupted" in "".join(command.err)
        assert "Traceback" not in "".join(command.err), command.err
        assert list(scratch.iterdir()) == [], "its scratch folder is gone"
    assert deployment.cli("status", "--output", "json").json()["leader"] is None
    check_present(deployment, sent, reported)
    check_settled(deployment, sum(record["topic"] != "kept" for record in sent))


@pytest.mark.spark
def test_two_archivers_at_once(deployment: Deployment, tmp_path: Path, spark_session: SparkSession) -> None:
    """The first is held in the middle of its work, so that the second certainly meets it."""
    sent = sample_records(120)
    reported = deployment.produce(sent)
    with Command(deployment, "archive", "--all", scratch=tmp_path / "scratch") as winner:
        until("refinement has begun", lambda: winner.said("refining"))
        winner.signal(signal.SIGSTOP)
        other = deployment.run("archive", "--all")
        assert other.code == 2, (other.out, other.err)
        assert f"{os.uname().nodename}:{winner.pid}" in other.err
        assert (
            deployment.cli("status", "--output", "json").json()["leader"]
            == f"{os.uname().nodename}:{winner.pid}"
        )
        winner.signal(signal.SIGCONT)
        assert winner.end() == 0, winner.err
    check_present(deployment, sent, reported)
    assert deployment.cli("ledger", "show", "--output", "json").json()["epoch"] == 1, (
        "the other appended nothing"
    )
    check_settled(deployment, sum(record["topic"] != "kept" for record in sent))

"""Records in and out through the command: every format, every field, every exit code."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archiver import Writer
from archiver.runtime.errors import OutcomeUnknown
from intake.write.producer import Producer
from tests.support.builders.archived import RECORD, SENT, archived, rows_of  # noqa: F401 - fixture
from tests.support.builders.deployment import Deployment, check_present, jsonl, text
from tests.support.schema.orders import order

SENT_FIELDS = RECORD[:2] + RECORD[3:7]

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    """A deployment without records."""
    return Deployment(tmp_path / "d")


# produce


def test_acknowledgements(deployment: Deployment) -> None:
    done = deployment.cli("produce", "--output", "json", stdin=jsonl(SENT))
    assert done.code == 0
    assert len(done.out.splitlines()) == len(SENT)
    for record, item in zip(SENT, done.lines(), strict=True):
        assert list(item) == ["topic", "partition", "offset"]
        assert item["topic"] == record["topic"]
    done = deployment.cli("produce", "--output", "json", stdin=jsonl([{"topic": "nowhere", "value": None}]))
    assert done.code == 3
    (item,) = done.lines()
    assert list(item) == ["topic", "partition", "offset", "outcome", "error"]
    assert (item["partition"], item["offset"], item["outcome"]) == (None, None, "failed")
    assert deployment.cli("produce", stdin="").code == 0, "no records is no error"


@pytest.mark.parametrize(("action", "code", "outcome"), [("error", 1, "failed"), ("unknown", 1, "failed")])
def test_failed_sends_exit_1(action: str, code: int, outcome: str, tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    done = deployment.cli(
        "produce", "--output", "json", stdin=jsonl(SENT[:3]), armed=f"writer.upload.before={action}"
    )
    assert done.code == code
    assert {item["outcome"] for item in done.lines()} == {outcome}


def test_unknown_sends_exit_2(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    done = deployment.cli(
        "produce", "--output", "json", stdin=jsonl(SENT[:3]), armed="writer.append.after=unknown"
    )
    assert done.code == 2
    assert [(item["offset"], item["outcome"]) for item in done.lines()] == [(None, "unknown")] * 3
    done = deployment.cli("produce", stdin=jsonl(SENT[:3]), armed="writer.append.after=unknown")
    assert done.code == 2
    assert "3 of unknown outcome" in done.out
    assert done.err.count("unknown:") == 3


def test_text_and_the_topic_of_all_records(deployment: Deployment) -> None:
    lines: list[dict[str, Any]] = [
        {"key": "clé", "value": "où", "headers": [["naïve", "ä"], ["none", None]], "partition": 1},
        {"topic": "clicks", "value": None},
    ]
    assert deployment.cli("produce", "--text", "--topic", "clicks", stdin=jsonl(lines)).code == 0
    first = rows_of(deployment, "clicks", "--text", "--partition", "1")[0]
    assert (first["key"], first["value"], first["headers"]) == ("clé", "où", [["naïve", "ä"], ["none", None]])
    assert rows_of(deployment, "clicks", "--partition", "1")[0]["value"] == text("où".encode())
    assert (
        deployment.cli("produce", "--topic", "orders", stdin=jsonl([{"topic": "clicks", "value": None}])).code
        == 3
    )
    assert deployment.cli("produce", stdin=jsonl([{"value": None}])).code == 3


def test_parquet_input(deployment: Deployment) -> None:
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    table = pa.table(
        {
            "topic": ["clicks", "files", "clicks"],
            "partition": pa.array([1, None, 0], pa.int32()),
            "timestamp": pa.array([1, None, 1_700_000_000_000_000], pa.timestamp("us", tz="UTC")),
            "key": pa.array([b"k", None, b""], pa.binary()),
            "value": pa.array([b"v", None, b""], pa.binary()),
            "headers": pa.array([[{"key": "h", "value": b"x"}], None, []], headers),
        }
    )
    path = deployment.root / "in.parquet"
    pq.write_table(table, path)
    done = deployment.cli("produce", "--format", "parquet", "--input", str(path), "--output", "json")
    assert done.code == 0, done.err
    assert [(item["topic"], item["partition"], item["offset"]) for item in done.lines()] == [
        ("clicks", 1, 0),
        ("files", 0, 0),
        ("clicks", 0, 0),
    ]
    zero, one = rows_of(deployment, "clicks")
    assert (zero["timestamp"], zero["key"], zero["value"], zero["headers"]) == (
        "2023-11-14T22:13:20.000000Z",
        "",
        "",
        [],
    )
    assert (one["timestamp"], one["key"], one["headers"]) == (
        "1970-01-01T00:00:00.000001Z",
        text(b"k"),
        [["h", text(b"x")]],
    )
    (file,) = rows_of(deployment, "files")
    assert (file["key"], file["value"], file["headers"]) == (None, None, [])
    assert file["timestamp"] <= file["ingest_timestamp"], "without one it is the time of sending"


def test_delimited_input(deployment: Deployment) -> None:
    values = [b"", b"a" * 200, order(7), bytes(range(256)) * 100]

    def varint(number: int) -> bytes:
        out = b""
        while number >= 0x80:
            out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
        return out + bytes([number])

    data = b"".join(varint(len(value)) + value for value in values)
    path = deployment.root / "in.bin"
    path.write_bytes(data)
    command = ["produce", "--format", "delimited", "--topic", "files"]
    assert deployment.cli(*command, "--input", str(path)).code == 0
    piped = subprocess.run(
        [sys.executable, "-m", "archiver", *command, "--input", "-"],
        input=data,
        env=deployment.environ(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert piped.returncode == 0, piped.stderr
    assert [item["value"] for item in rows_of(deployment, "files")] == [text(value) for value in values] * 2


@pytest.mark.spark
def test_what_consume_prints_produce_takes(archived: Deployment, tmp_path: Path) -> None:  # noqa: F811
    """Minus the fields that the log gives."""
    copy = Deployment(tmp_path / "copy")
    lines = [
        {name: item[name] for name in SENT_FIELDS}
        for topic in ("orders", "clicks", "files", "kept")
        for item in archived.consume(topic)
    ]
    path = copy.root / "records.jsonl"
    path.write_text(jsonl(lines))
    done = copy.cli("produce", "--input", str(path))
    assert done.code == 0, done.err
    for topic in ("orders", "clicks", "files", "kept"):
        mine, theirs = archived.consume(topic), copy.consume(topic)
        assert [{name: item[name] for name in RECORD[:7]} for item in mine] == [
            {name: item[name] for name in RECORD[:7]} for item in theirs
        ]


def test_an_input_as_one_transaction(deployment: Deployment) -> None:
    done = deployment.cli("produce", "--transactional-id", "x", "--output", "json", stdin=jsonl(SENT))
    assert done.code == 0, done.err
    assert len(done.lines()) == len(SENT) + 1
    assert done.lines()[-1] == {"transaction": "x", "outcome": "committed", "error": None}
    before = {topic: len(deployment.consume(topic)) for topic in ("orders", "clicks", "files", "kept")}
    assert sum(before.values()) == len(SENT)
    wrong = [*SENT[:5], {"topic": "nowhere", "value": None}, *SENT[5:7]]
    done = deployment.cli("produce", "--transactional-id", "x", "--output", "json", stdin=jsonl(wrong))
    assert done.code == 1
    why = "line 6 was refused: there is no topic nowhere"
    assert f"the transaction was aborted, none of its records counts: {why}" in done.err
    *reported, end = done.lines()
    assert [item["outcome"] if item["offset"] is None else "ok" for item in reported] == ["ok"] * 5 + [
        "failed"
    ] + ["ok"] * 2
    assert (end["transaction"], end["outcome"]) == ("x", "aborted")
    assert end["error"].startswith(why)
    done = deployment.cli("produce", "--transactional-id", "x", stdin=jsonl(wrong))
    assert (done.code, done.out) == (1, "0 stored, 7 sent and aborted, 1 refused\n")
    done = deployment.cli("produce", "--transactional-id", "x", stdin=jsonl(SENT[:3]) + "no record\n")
    assert (done.code, done.out) == (3, "0 stored, 3 sent and aborted\n")
    assert "none of its records counts: line 4: this is no JSON" in done.err
    assert {topic: len(deployment.consume(topic)) for topic in before} == before
    assert deployment.cli("produce", "--transactional-id", "", stdin="").code == 3
    done = deployment.cli("produce", "--transactional-id", "x" * 2000, stdin="")
    assert done.code == 3
    assert "has 2000" in done.err
    assert len(done.err) < 200
    done = deployment.cli("produce", "--transactional-id", "x", "--idempotent", stdin=jsonl(SENT))
    assert (done.code, done.out) == (0, f"{len(SENT)} stored and in the log\n")


def test_a_transaction_with_a_record_that_failed_is_aborted(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "d", failpoints_asked=True)
    done = deployment.cli(
        "produce",
        "--transactional-id",
        "x",
        "--output",
        "json",
        stdin=jsonl(SENT[:3]),
        armed="writer.upload.before=error",
    )
    assert done.code == 1
    assert "the transaction was aborted" in done.err
    assert done.lines()[-1]["outcome"] == "aborted"
    assert all(deployment.consume(topic) == [] for topic in ("orders", "clicks", "files", "kept"))


def test_a_commit_of_unknown_outcome_is_reported_as_such(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records are stored, but no answer to the marker ever comes back."""

    def commit(_: Producer) -> None:
        raise OutcomeUnknown("no answer")

    monkeypatch.setattr(Producer, "commit", commit)
    done = deployment.cli("produce", "--transactional-id", "x", "--output", "json", stdin=jsonl(SENT[:3]))
    assert (done.code, len(done.lines())) == (2, 4)
    assert done.lines()[-1] == {"transaction": "x", "outcome": "unknown", "error": "no answer"}
    done = deployment.cli("produce", "--transactional-id", "x", stdin=jsonl(SENT[:3]))
    assert (done.code, done.out) == (2, "3 sent; it is unknown whether they are committed\n")
    assert "no answer" in done.err


def test_a_run_with_a_producer_of_its_own(deployment: Deployment) -> None:
    done = deployment.cli("produce", "--idempotent", "--output", "json", stdin=jsonl(SENT))
    assert done.code == 0, done.err
    check_present(deployment, SENT, done.lines())


def test_large_records_by_default(deployment: Deployment) -> None:
    """10 MB pass, 50 MB are refused, and what stands around them is sent."""
    values = [b"a", b"x" * 10_000_000, b"y" * 50_000_000, b"b"]
    lines = [{"topic": "kept", "key": None, "value": text(value)} for value in values]
    done = deployment.cli("produce", "--output", "json", stdin=jsonl(lines))
    assert done.code == 3
    assert [(item["offset"], item.get("outcome")) for item in done.lines()] == [
        (0, None),
        (1, None),
        (None, "failed"),
        (2, None),
    ]
    assert "intake.record_bytes_max = 16777216" in done.lines()[2]["error"]
    assert [item["value"] for item in deployment.consume("kept")] == [
        lines[number]["value"] for number in (0, 1, 3)
    ]


# consume


def test_offsets_that_wait_for_a_transaction_are_said(deployment: Deployment) -> None:
    deployment.produce([{"topic": "kept", "value": text(b"before")}])
    assert deployment.cli("consume", "--topic", "kept").err == ""
    with Writer(deployment.config) as writer:
        producer = writer.producer("slow")
        producer.begin()
        producer.send("kept", b"within").result(30)
        deployment.produce([{"topic": "kept", "value": text(b"behind")}])
        reported = "2 offsets of topic kept wait for open transactions; --uncommitted shows them\n"
        done = deployment.cli("consume", "--topic", "kept")
        assert (done.code, len(done.lines()), done.err) == (0, 1, reported)
        assert deployment.cli("consume", "--topic", "kept", "--max", "1").err == "", (
            "it was not read that far"
        )
        done = deployment.cli("consume", "--topic", "kept", "--uncommitted")
        assert (len(done.lines()), done.err) == (3, "")
        producer.commit()
    done = deployment.cli("consume", "--topic", "kept")
    assert (len(done.lines()), done.err) == (3, "")


@pytest.mark.spark
def test_records_have_exactly_these_fields(archived: Deployment) -> None:  # noqa: F811
    for topic in ("orders", "clicks", "files", "kept"):
        for line in rows_of(archived, topic):
            assert list(line) == RECORD
            assert line["batch_start"] <= line["offset"]
    assert {line["from"] for line in rows_of(archived, "orders")} == {"archive", "intake"}
    assert {line["from"] for line in rows_of(archived, "kept")} == {"intake"}


@pytest.mark.spark
def test_consume_a_part(archived: Deployment) -> None:  # noqa: F811
    everything = rows_of(archived, "orders")
    for partition in range(3):
        mine = [line for line in everything if line["partition"] == partition]
        assert rows_of(archived, "orders", "--partition", str(partition)) == mine
        assert (
            rows_of(archived, "orders", "--partition", str(partition), "--from", "5", "--max", "7")
            == mine[5:12]
        )
        assert rows_of(archived, "orders", "--partition", str(partition), "--from", str(len(mine))) == []
    assert rows_of(archived, "orders", "--max", "3") == everything[:3]
    assert rows_of(archived, "orders", "--max", str(len(everything) + 9)) == everything
    assert rows_of(archived, "orders", "--max", "0") == []
    assert archived.cli("consume", "--topic", "orders", "--max", "-1").code == 3


@pytest.mark.spark
def test_consume_decoded(archived: Deployment) -> None:  # noqa: F811
    lines = rows_of(archived, "orders", "--decode")
    assert all(list(line) == [*RECORD, "decoded"] for line in lines)
    whole = [
        line["decoded"]["value"]
        for line in lines
        if line["value"] is not None and "error" not in line["decoded"]["value"]
    ]
    broken = [line["decoded"] for line in lines if line["value"] == text(b"\xff\xff not a message")]
    assert broken
    assert all(item["key"] is None and list(item["value"]) == ["error"] for item in broken)
    assert all(line["decoded"]["value"] is None for line in lines if line["value"] is None)
    assert {
        "id": "2",
        "customer": "ada",
        "lines": [{"sku": "sku-0", "quantity": 1}, {"sku": "sku-1", "quantity": 2}],
    } in whole
    assert [line["decoded"] for line in rows_of(archived, "clicks", "--decode", "--max", "1")] == [
        {"key": None, "value": None}
    ]
    assert archived.cli("consume", "--topic", "orders", "--text").code == 3, (
        "bytes that are no text are not shown as if they were"
    )


def test_consume_waits_for_more_until_it_is_interrupted(deployment: Deployment) -> None:
    deployment.produce(SENT)
    process = subprocess.Popen(
        [sys.executable, "-m", "archiver", "consume", "--topic", "kept", "--follow"],
        env=deployment.environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        before = [line for line in SENT if line["topic"] == "kept"]
        for record in before:
            assert json.loads(process.stdout.readline())["value"] == record["value"]
        deployment.produce([{"topic": "kept", "value": text(b"late")}])
        assert json.loads(process.stdout.readline())["value"] == text(b"late")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (130, "")
        assert "interrupted" in err
        assert "Traceback" not in err
    finally:
        process.kill()
        process.communicate()


@pytest.mark.spark
@pytest.mark.parametrize(
    ("arguments", "reader"),
    [
        (["consume", "--topic", "orders"], ["head", "-n", "1"]),
        (["consume", "--topic", "orders", "--max", "1"], ["true"]),
        (["audit", "--output", "json"], ["true"]),
    ],
)
def test_a_reader_that_goes_away_is_no_error(
    arguments: list[str],
    reader: list[str],
    archived: Deployment,  # noqa: F811
) -> None:
    """As in `archiver consume … | head`, whether the reader leaves in the middle or before the first line."""
    away = subprocess.Popen(reader, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    process = subprocess.Popen(
        [sys.executable, "-m", "archiver", *arguments],
        env=archived.environ(),
        stdout=away.stdin,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert away.stdin is not None
    away.stdin.close()
    _, err = process.communicate(timeout=60)
    away.wait(timeout=60)
    assert (process.returncode, err) == (0, "")

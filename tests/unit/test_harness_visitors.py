"""Do the harness's external senders write what they report, and never count silence as a response? Against
the product's own readers."""

from __future__ import annotations

import io
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from intake.inputs import read_inputs, read_messages
from intake.record_json import Input
from tests.harness.file_sender import FileSender, parquet_rows
from tests.harness.http_sender import (
    DELIMITED,
    JSON_LINES,
    HttpSender,
    Place,
    delimited,
    json_lines,
    read_answers,
    refusal,
)
from tests.harness.kafka_sender import Answers
from tests.harness.ledger_file import LedgerFile
from tests.harness.loading import load, read_ledger
from tests.harness.payload import digest, payload

COUNT = 200
SEED = 3
LIMIT = 2**20


def digests(inputs: list[Input]) -> list[str]:
    return [
        digest(item.record.key, item.record.value, item.record.headers, item.record.timestamp_us or 0)
        for item in inputs
    ]


@pytest.mark.parametrize("form", ["jsonl", "parquet", "protobuf"])
def test_the_product_reads_what_they_write(form: str) -> None:
    places = [Place(number, number % 3 if number % 2 else None) for number in range(COUNT)]
    contents = [payload(SEED, "v0", place.number) for place in places]
    if form == "jsonl":
        found = list(read_inputs(io.BytesIO(json_lines(places, contents)), "jsonl", "alpha", False, LIMIT))
    elif form == "parquet":
        found = list(
            read_inputs(io.BytesIO(parquet_rows(places, contents)), "parquet", "alpha", False, LIMIT)
        )
    else:
        found = list(read_messages(io.BytesIO(delimited(places, contents)), "alpha", LIMIT))
    assert digests(found) == [content.digest for content in contents]
    assert [item.partition for item in found] == [place.partition for place in places]


class Answered:
    """A record as librdkafka gives it to a delivery callback."""

    def __init__(self, offset: int | None, topic: str = "alpha") -> None:
        self._offset, self._topic = offset, topic

    def offset(self) -> int | None:
        return self._offset

    def partition(self) -> int:
        return 1

    def topic(self) -> str:
        return self._topic


def test_the_offset_of_an_error_is_what_the_daemon_said() -> None:
    """librdkafka counts up from the offset of the answer over the records of a batch."""
    answers = Answers(lambda _: "unknown")
    refused, purged = KafkaError(KafkaError.INVALID_PRODUCER_EPOCH), KafkaError(KafkaError._PURGE_QUEUE)
    given: list[tuple[KafkaError, int | None, str]] = [
        *((refused, None, "alpha"), (refused, 0, "alpha"), (refused, None, "beta"), (refused, 1, "alpha")),
        *((refused, 0, "beta"), (purged, None, "alpha"), (refused, 0, "alpha"), (refused, 1, "alpha")),
    ]
    for number, (error, offset, topic) in enumerate(given):
        message: Any = Answered(offset, topic)
        answers.take(number, error, message)
    assert [line[3] for line in answers.lines] == [None, None, None, None, None, None, 0, 1]
    assert answers.unknown
    message = Answered(5)
    answers.take(9, None, message)
    assert answers.lines[-1] == [9, "ok", 1, 5, None, None]


class Server(BaseHTTPRequestHandler):
    """A server that answers each request with the next of the class's answers."""

    answers: list[tuple[int, str, bytes] | None]
    asked: list[tuple[str, str, bytes]]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append((self.path, self.headers["Content-Type"], body))
        answer = self.answers.pop(0)
        if answer is None:
            self.close_connection = True
            return
        status, kind, content = answer
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.mark.parametrize(
    ("answer", "outcome", "new_order"),
    [
        ((200, JSON_LINES, b'{"topic":"alpha","partition":0,"offset":7}\n'), "ok", False),
        (
            (
                500,
                JSON_LINES,
                b'{"topic":"alpha","partition":0,"offset":null,"outcome":"unknown","error":"e"}\n',
            ),
            "unknown",
            True,
        ),
        (
            (
                503,
                JSON_LINES,
                b'{"topic":"alpha","partition":0,"offset":null,"outcome":"failed","error":"e"}\n',
            ),
            "failed",
            False,
        ),
        ((429, "application/json", b'{"error":{"type":"RetryLater","message":"no room"}}'), "failed", False),
        ((500, "application/json", b'{"error":{"type":"OutcomeUnknown","message":"?"}}'), "unknown", True),
        ((502, "text/html", b"<p>bad gateway"), "unknown", True),
        (None, None, True),
    ],
)
def test_what_an_answer_means(
    answer: tuple[int, str, bytes] | None, outcome: str | None, new_order: bool, tmp_path: Path
) -> None:
    handler = type("One", (Server,), {"answers": [answer, answer], "asked": []})
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        LedgerFile(tmp_path, "worker-v0-0", 0.0) as ledger,
    ):
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        host, port = server.server_address[:2]
        sender = HttpSender(ledger, SEED, "v0.0-http-json", "http-json", (str(host), port), {"alpha": 1}, 1)
        sender.burst()
        sender.burst()
        sender.close()
        server.shutdown()
        thread.join()
    attempts = load_attempts(tmp_path)
    assert [attempt.outcome for attempt in attempts] == [outcome, outcome]
    assert [attempt.offset for attempt in attempts] == [7 if outcome == "ok" else None] * 2
    assert (attempts[0].sender != attempts[1].sender) is new_order
    assert [asked[:2] for asked in handler.asked] == [("/v1/topics/alpha/records", JSON_LINES)] * 2  # type: ignore[attr-defined]


def test_no_listener_at_the_port_means_that_nothing_was_sent(tmp_path: Path) -> None:
    with socket.socket() as unused, LedgerFile(tmp_path, "worker-v0-0", 0.0) as ledger:
        unused.bind(("127.0.0.1", 0))
        sender = HttpSender(
            ledger, SEED, "v0.0-http-protobuf", "http-protobuf", unused.getsockname(), {"alpha": 1}, 5
        )
        sender.burst()
    assert {attempt.outcome for attempt in load_attempts(tmp_path)} == {"failed"}
    assert DELIMITED == "application/x-protobuf"


def test_half_an_answer_is_read_as_far_as_it_is_whole() -> None:
    line = b'{"topic":"alpha","partition":1,"offset":3}\n'
    assert read_answers(line + line[:20]) == [("ok", 1, 3, None)]
    assert read_answers(line + b'{"error":"later"}\n' + line) == [("ok", 1, 3, None)]
    assert refusal(b"") == ("unknown", "")


@pytest.mark.parametrize("kind", ["files-jsonl", "files-parquet"])
def test_a_dropped_file_is_in_the_ledger_before_it_has_its_name(kind: Any, tmp_path: Path) -> None:
    inbox = tmp_path / "inbox"
    inbox.mkdir()
    with LedgerFile(tmp_path, "worker-v0-0", 0.0) as ledger:
        sender = FileSender(ledger, SEED, f"v0.0-{kind}", kind, inbox, "alpha", 2, 30)
        sender.burst()
        sender.burst()
        sender.close()
    form = kind.removeprefix("files-")
    events = read_ledger(tmp_path, "worker-v0-0").events
    assert [event["event"] for event in events] == ["send", "dropped"] * 2
    files = sorted(inbox.iterdir())
    assert [file.name for file in files] == [event["file"] for event in events[::2]]
    for file, event in zip(files, events[::2], strict=True):
        with file.open("rb") as stream:
            inputs = list(read_inputs(stream, form, "alpha", False, LIMIT))
        assert digests(inputs) == [record[4] for record in event["records"]]
    assert not list(tmp_path.glob("*.draft"))


def load_attempts(folder: Path) -> list[Any]:
    """The attempts in the visitor's ledger, inside a run's ledger."""
    with LedgerFile(folder, "run", 0.0) as run:
        run.write(
            "run",
            format=1,
            seed=SEED,
            topics={"alpha": {"partitions": 1, "table": None}},
            faults=[],
            rounds=0,
        )
    return list(load(folder).attempts)

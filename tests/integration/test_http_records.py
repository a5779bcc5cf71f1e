"""Records over HTTP: the acknowledgements equal those of the command, and the same records are read back."""

from __future__ import annotations

import base64
import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from archiver.proto import produce_pb2 as pb
from intake.log.fold import IntakeFold
from intake.records import Record
from tests.support.builders.deployment import Deployment, jsonl
from tests.support.objects.faulty_objects import ObjectFault
from tests.support.process.processes import until
from tests.support.process.web import PATIENCE_S, Daemon, Reply

PROTOBUF = "application/x-protobuf"


@pytest.fixture(params=["here", "forwarded"])
def daemon(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that stores the records itself, and one with an intake worker."""
    with Daemon(Deployment(tmp_path / "d"), forwarded=request.param == "forwarded") as daemon:
        yield daemon


def some_records(count: int, seed: int) -> list[tuple[Record, int | None]]:
    """Null differs from empty, header names repeat, and bytes are arbitrary."""
    rng = random.Random(seed)

    def content() -> bytes | None:
        return rng.choice(
            [None, b"", rng.randbytes(rng.randrange(1, 40)), "grüße".encode(), b"\xff\x00\n\r{"]
        )

    return [
        (
            Record(
                key=content(),
                value=content(),
                headers=tuple(
                    (rng.choice(["a", "ä", "", "trace"]), content()) for _ in range(rng.randrange(4))
                ),
                timestamp_us=rng.choice([0, 1_700_000_000_123_456, -1, 253_402_300_799_999_999]),
            ),
            rng.choice([None, 0, 1]),
        )
        for _ in range(count)
    ]


def as_json(record: Record, partition: int | None) -> dict[str, Any]:
    from archiver.runtime.rfc3339 import format_time

    def shown(content: bytes | None) -> str | None:
        return None if content is None else base64.b64encode(content).decode()

    assert record.timestamp_us is not None
    return {
        "key": shown(record.key),
        "value": shown(record.value),
        "headers": [[name, shown(content)] for name, content in record.headers],
        "timestamp": format_time(record.timestamp_us),
        "partition": partition,
    }


def varint(number: int) -> bytes:
    """A length as Protobuf writes it."""
    low = number & 0x7F
    return bytes([low]) if number < 0x80 else bytes([low | 0x80]) + varint(number >> 7)


def framed(*messages: pb.ProduceRecord | bytes) -> bytes:
    """A delimited stream."""
    pieces = [message if isinstance(message, bytes) else message.SerializeToString() for message in messages]
    return b"".join(varint(len(piece)) + piece for piece in pieces)


def as_message(record: Record, partition: int | None, **more: Any) -> pb.ProduceRecord:
    headers = [pb.RecordHeader(name=name, value=content) for name, content in record.headers]
    return pb.ProduceRecord(
        key=record.key,
        value=record.value,
        headers=headers,
        timestamp_us=record.timestamp_us,
        partition=partition,
        **more,
    )


@pytest.mark.parametrize("form", ["json", "protobuf"])
def test_what_is_acknowledged_is_read_back_bit_for_bit(daemon: Daemon, form: str) -> None:
    sent = some_records(400, seed=5)
    if form == "json":
        reply = daemon.send("clicks", jsonl([as_json(*one) for one in sent]).encode())
    else:
        reply = daemon.send("clicks", framed(*(as_message(*one) for one in sent)), PROTOBUF)
    assert reply.status == 200, reply.body
    lines = reply.lines()
    assert len(lines) == len(sent)
    found = daemon.stored("clicks")
    assert len(found) == len(sent)
    for (record, partition), line in zip(sent, lines, strict=True):
        assert set(line) == {"topic", "partition", "offset"}
        got = found[line["partition"], line["offset"]]
        assert partition in (None, line["partition"])
        assert (got.key, got.value, tuple(got.headers), got.timestamp_us) == (
            record.key,
            record.value,
            record.headers,
            record.timestamp_us,
        )


def test_the_acknowledgements_are_the_commands_to_the_byte(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"key": base64.b64encode(f"k{n}".encode()).decode(), "value": None, "headers": []} for n in range(50)
    ]
    by_command = Deployment(tmp_path / "command").cli(
        "produce", "--topic", "orders", "--output", "json", stdin=jsonl(records)
    )
    with Daemon(Deployment(tmp_path / "daemon")) as daemon:
        reply = daemon.send("orders", jsonl(records).encode())
        assert reply.status == 200
        assert reply.body.decode() == by_command.out
        assert {line["partition"] for line in reply.lines()} == {0, 1, 2}, (
            "several partitions, so that order shows"
        )


def test_text_and_topics_that_agree(daemon: Daemon) -> None:
    reply = daemon.send(
        "files",
        '{"topic": "files", "key": "ä", "value": "ß", "headers": [["h", "ö"]]}\n\n'.encode(),
        query="?text=true",
    )
    assert reply.lines() == [{"topic": "files", "partition": 0, "offset": 0}]
    stored = daemon.stored("files")[0, 0]
    assert (stored.key, stored.value, stored.headers) == ("ä".encode(), "ß".encode(), (("h", "ö".encode()),))
    message = as_message(Record(None, b"x"), None, topic="files")
    assert (
        daemon.send("files", framed(message), "application/vnd.archiver.records+protobuf; v=1").status == 200
    )
    assert daemon.send("files", b"").lines() == []


GOOD = b'{"value": "YQ=="}\n'


@pytest.mark.parametrize(
    ("line", "reported"),
    [
        (b"{", "line 2: this is no JSON"),
        (b"[" * 200_000, "line 2: this JSON is nested too deeply"),
        (b'{"value": "YQ==", "headers": ' + b"[" * 200_000, "line 2: this JSON is nested too deeply"),
        (b'{"value": NaN}', "line 2: 'value' is a number"),
        (b'{"value": null, "partition": NaN}', "line 2: 'partition' is a number"),
        (b'{"value": null, "partition": 1' + b"0" * 5000 + b"}", "line 2: this is no JSON"),
        (b'{"value": null, "partition": 1.5}', "line 2: 'partition' is a number"),
        (b'{"value": null, "value": null}', "line 2: this is no JSON: the field 'value' is there twice"),
        (b'{"value": "YQ==", "x": 1}', "line 2: unknown field 'x'"),
        (b'{"value": "not base64"}', "line 2: 'value' is no base64"),
        (b'{"value": null, "offset": 3}', "line 2: the field 'offset' is given by the intake log"),
        (
            b'{"value": null, "topic": "orders"}',
            "line 2: 'topic' is 'orders', but the input as a whole is for 'clicks'",
        ),
        (b'{"value": null, "partition": 2}', "line 2: topic clicks has no partition 2"),
        (b'{"value": null, "partition": -1}', "line 2: topic clicks has no partition -1"),
        (b'{"value": null, "headers": [["\\ud800", null]]}', "line 2: the name of header 0"),
        (b'{"value": null, "timestamp": "9999-12-31T23:59:59.999999-01:00"}', "line 2: "),
        (b'{"value": "\xff"}', "line 2: this is no UTF-8 text"),
        (b'{"\\ud800": 1, "value": null}', "line 2: unknown field"),
        (b'{"' + b"x" * 100_000 + b'": 1}', "line 2: unknown field 'xxx"),
    ],
)
def test_a_bad_line_is_named_and_nothing_of_the_request_is_sent(
    daemon: Daemon, line: bytes, reported: str
) -> None:
    reply = daemon.send("clicks", GOOD + line + b"\n" + GOOD)
    assert reply.status == 400, reply.body[:500]
    assert reported in reply.error
    assert len(reply.body) < 5000
    assert daemon.stored("clicks") == {}


@pytest.mark.parametrize(
    ("tail", "reported"),
    [
        (b"\x05abc", "record 1 (byte 5): the input ends after 3 of 5 bytes"),
        (b"\x80", "record 1 (byte 5): the input ends inside a length"),
        (b"\xff" * 12, "record 1 (byte 5): a length takes more than 5 bytes"),
        (b"\xff\xff\xff\xff\x0f", "record 1 (byte 5): a length of 4294967295 bytes is more"),
        (
            framed(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
            "record 1 (byte 5): this is no archiver.v1.ProduceRecord",
        ),
        (
            framed(b"\x4a\x01a"),
            "record 1 (byte 5): this holds fields that archiver.v1.ProduceRecord does not have",
        ),
        (framed(b"\x1a\x03\x3a\x01a"), "record 1 (byte 5): this holds fields"),
        (framed(b"\x1a\x03\x0a\x01\xff"), "record 1 (byte 5): this is no archiver.v1.ProduceRecord"),
        (framed(pb.ProduceRecord(topic="orders")), "record 1 (byte 5): 'topic' is 'orders'"),
        (framed(pb.ProduceRecord(partition=7)), "record 1 (byte 5): topic clicks has no partition 7"),
        (framed(pb.ProduceRecord(timestamp_us=2**62)), "record 1 (byte 5): the timestamp"),
        (framed(b"\x1a\x00" * 1_100_000), "record 1 (byte 5): 1100000 headers are more"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_a_bad_message_is_named_and_nothing_of_the_request_is_sent(
    daemon: Daemon, tail: bytes, reported: str
) -> None:
    reply = daemon.send("clicks", framed(pb.ProduceRecord(value=b"ab")) + tail, PROTOBUF)
    assert reply.status == 400, reply.body
    assert reported in reply.error
    assert daemon.stored("clicks") == {}


def test_a_record_that_is_too_large_takes_nothing_with_it(tmp_path: Path) -> None:
    overrides = {
        "intake": {
            "delay_max": "20ms",
            "record_bytes_max": 100,
            "queue_bytes_max": 1000,
            "delay_max_bytes": 1000,
        }
    }
    with Daemon(Deployment(tmp_path / "d", overrides=overrides)) as daemon:
        reply = daemon.send("clicks", GOOD + json.dumps({"value": "x" * 101}).encode(), query="?text=1")
        assert (reply.status, "text=1 is not understood" in reply.error) == (400, True)
        reply = daemon.send(
            "clicks", b'{"value": "a"}\n' + json.dumps({"value": "x" * 101}).encode(), query="?text=true"
        )
        assert reply.status == 400
        assert "line 2: the record has 101 bytes, more than intake.record_bytes_max = 100" in reply.error
        reply = daemon.send("clicks", GOOD * 20)
        assert (reply.status, "more than intake.queue_bytes_max = 1000" in reply.error) == (400, True)
        assert daemon.stored("clicks") == {}
        assert daemon.send("clicks", GOOD * 15).status == 200


def test_failed_records_are_no_success(daemon: Daemon) -> None:
    daemon.objects.fail("create", ObjectFault.REFUSED, "intake/", times=100)
    reply = daemon.send("clicks", GOOD * 3)
    assert (reply.status, reply.headers["retry-after"]) == (503, "2")
    lines = reply.lines()
    assert [(line["offset"], line["outcome"]) for line in lines] == [(None, "failed")] * 3
    assert all(
        line["error"] and set(line) == {"topic", "partition", "offset", "outcome", "error"} for line in lines
    )
    daemon.objects.heal()
    assert daemon.stored("clicks") == {}
    assert daemon.send("clicks", GOOD).lines()[0]["offset"] == 0


def test_a_part_that_failed_is_reported_line_by_line(tmp_path: Path) -> None:
    overrides = {"intake": {"delay_max": "20ms", "delay_max_bytes": 100}}
    with Daemon(Deployment(tmp_path / "d", overrides=overrides)) as daemon:
        daemon.objects.fail("create", ObjectFault.REFUSED, "intake/", times=100, skip=1)
        values = ["x" * 60, "y" * 60, "z" * 60]
        reply = daemon.send(
            "files",
            b"".join(json.dumps({"value": value}).encode() + b"\n" for value in values),
            query="?text=true",
        )
        assert reply.status == 500
        assert [(line["offset"], line.get("outcome")) for line in reply.lines()] == [
            (0, None),
            (None, "failed"),
            (None, "failed"),
        ]
        daemon.objects.heal()
        assert [one.value for one in daemon.stored("files").values()] == [b"x" * 60]


def test_what_takes_too_long_is_of_unknown_outcome_and_never_failed(tmp_path: Path) -> None:
    with Daemon(
        Deployment(tmp_path / "d", overrides={"intake": {"delay_max": "1h"}}), request_timeout=1.5
    ) as daemon:
        reply = daemon.send("files", GOOD * 2)
        assert reply.status == 500
        assert [(line["offset"], line["outcome"]) for line in reply.lines()] == [(None, "unknown")] * 2
        assert "not acknowledged within http.request_timeout = 1.5 s" in reply.lines()[0]["error"]
        assert daemon.writer is not None
        daemon.writer.flush()
        assert len(daemon.stored("files")) == 2, "it was stored after all"


def test_a_lost_reply_of_the_store_is_settled_and_not_reported_as_failure(daemon: Daemon) -> None:
    daemon.objects.fail("create", ObjectFault.REPLY_LOST, "intake/")
    reply = daemon.send("files", GOOD)
    assert (reply.status, reply.lines()) == (200, [{"topic": "files", "partition": 0, "offset": 0}])
    assert len(daemon.stored("files")) == 1


def test_unknown_topics_block_no_one_while_the_log_does_not_answer(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, asked, replies = threading.Event(), threading.Event(), list[Reply]()
    assert daemon.send("clicks", b'{"value": null}').status == 200
    sequencer = daemon.application.sequencer
    refresh = sequencer.refresh

    def refresh_late() -> IntakeFold:
        asked.set()
        assert answers.wait(PATIENCE_S)
        return refresh()

    monkeypatch.setattr(sequencer, "refresh", refresh_late)
    senders = [
        threading.Thread(target=lambda: replies.append(daemon.send("nix", b'{"value": null}')))
        for _ in range(6)
    ]
    for sender in senders:
        sender.start()
    try:
        assert asked.wait(PATIENCE_S)
        until("all but one have their answer", lambda: len(replies) == 5)
        assert {(reply.status, reply.headers["retry-after"]) for reply in replies} == {(503, "2")}
        assert daemon.send("clicks", b'{"value": null}').status == 200
    finally:
        answers.set()
        for sender in senders:
            sender.join(PATIENCE_S)
    assert [reply.status for reply in replies] == [503] * 5 + [404]

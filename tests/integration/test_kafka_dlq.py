"""Batches of Kafka clients of which validation sends records to a DLQ topic, over a real deployment."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode

from archiver.kafka.protocol import ApiKey
from archiver.runtime import failpoints
from intake.producers import Stamp
from intake.records import RECORD_SCHEMA
from intake.write.acknowledgements import NO_OFFSET, PendingReceived
from intake.write.queue import ReceivedBatch
from tests.support.kafka.listening import Listening, configured, listening
from tests.support.kafka.wire import WireClient
from tests.support.schema.orders import DESCRIPTOR_SET, order

pytestmark = pytest.mark.timeout(120)

BAD = b"\xff"
WAIT_S = 120.0


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Listening]:
    schema = {"descriptor_set": "shop.binpb", "message": "shop.Order"}
    topics = [
        {"name": "lenient", "partitions": 2, "value": schema | {"validate": "dlq", "dlq": "dead"}},
        {"name": "strict", "partitions": 1, "value": schema | {"validate": "reject"}},
        {"name": "dead", "partitions": 1},
    ]
    path = configured(tmp_path, topics)
    (tmp_path / "shop.binpb").write_bytes(DESCRIPTOR_SET)
    with listening(path) as found:
        yield found


class Client:
    """An idempotent client whose requests are made by hand."""

    def __init__(self, opened: Listening) -> None:
        self._writer = opened.writer
        self.producer_id, _ = opened.writer.sequencer.open_producer("", 0)

    def queue(self, values: Sequence[bytes], sequence: int | None, topic: str = "lenient") -> PendingReceived:
        """Queue a batch; without a sequence number it is not idempotent."""
        columns = pa.RecordBatch.from_pylist(
            [{"key": None, "value": value, "headers": [], "event_timestamp": None} for value in values],
            schema=RECORD_SCHEMA,
        )
        state = self._writer.sequencer.fold.topics_by_name[topic]
        stamp = None if sequence is None else Stamp(self.producer_id, 0, sequence)
        done = threading.Event()
        pending = self._writer.send_received(ReceivedBatch(state, 0, columns, stamp), done.set)
        self._writer.flush()
        assert done.is_set()
        return pending

    def send(self, values: Sequence[bytes], sequence: int | None) -> tuple[int, str]:
        """As `queue`; base offset and outcome."""
        offset, verdict = self.queue(values, sequence).outcome()
        return offset, verdict.outcome


@contextmanager
def armed(text: str) -> Iterator[None]:
    """Failpoints that are armed inside."""
    failpoints.arm(text)
    try:
        yield
    finally:
        failpoints.arm("")


def values(opened: Listening, topic: str) -> list[bytes | None]:
    return [one.value for one in opened.stored(topic)[0]]


def test_the_records_of_a_batch_are_divided(opened: Listening) -> None:
    client = Client(opened)
    good = [order(number) for number in range(6)]
    assert client.send([BAD, good[0], BAD, good[1]], 0) == (0, "ok")
    assert client.send([good[2]], 4) == (2, "ok")
    assert client.send([BAD], 5) == (NO_OFFSET, "ok")
    assert client.send([good[3], good[4]], 6) == (3, "ok")
    assert values(opened, "lenient") == good[:5]
    dead = opened.stored("dead")[0]
    assert [one.value for one in dead] == [BAD] * 3
    assert {dict(one.headers)["archiver.dlq.topic"] for one in dead} == {b"lenient"}
    # The client missed the answers, and sends all of it again.
    assert client.send([BAD, good[0], BAD, good[1]], 0) == (0, "ok")
    assert client.send([BAD], 5) == (NO_OFFSET, "ok")
    assert client.send([good[3], good[4]], 6) == (3, "ok")
    assert client.send([good[5], BAD], 8) == (5, "ok")
    assert values(opened, "lenient") == good
    assert values(opened, "dead") == [BAD] * 4


def test_a_batch_without_numbers(opened: Listening) -> None:
    client = Client(opened)
    assert client.send([BAD, order(0)], None) == (0, "ok")
    assert client.send([BAD, BAD], None) == (NO_OFFSET, "ok")
    assert (values(opened, "lenient"), values(opened, "dead")) == ([order(0)], [BAD] * 3)


@pytest.mark.parametrize("lost", ["writer.append.before=error@1", "writer.append.after=error@1"])
def test_no_record_is_lost_by_a_failure(opened: Listening, lost: str) -> None:
    client = Client(opened)
    with armed(lost):
        assert client.send([order(0), BAD], 0)[1] != "ok"
    assert client.send([order(0), BAD], 0) == (0, "ok")
    assert client.send([BAD], 2) == (NO_OFFSET, "ok")
    assert (values(opened, "lenient"), values(opened, "dead")) == ([order(0)], [BAD] * 2)


@pytest.mark.parametrize("failing", range(1, 5))
def test_numbers_are_passed_only_after_the_dlq_records(opened: Listening, failing: int) -> None:
    """With entries so small that a batch takes two, one of the appends fails: the client repeats the batch, and
    no record is lost."""
    client = Client(opened)
    with (
        patch.object(type(opened.writer.sequencer), "entry_bytes_max", 1),
        armed(f"writer.append.before=error@{failing}"),
    ):
        first = client.send([order(0), BAD], 0), client.send([BAD], 2)
    assert {outcome for _, outcome in first} != {"ok"}
    assert client.send([order(0), BAD], 0) == (0, "ok")
    assert client.send([BAD], 2) == (NO_OFFSET, "ok")
    assert values(opened, "lenient") == [order(0)]
    # At least once: what was stored before the failure is stored again.
    assert set(values(opened, "dead")) == {BAD}
    assert 2 <= len(values(opened, "dead")) <= 4


def test_what_is_refused_is_refused_as_a_whole(opened: Listening) -> None:
    client = Client(opened)
    with pytest.raises(Exception, match="record 1: value: cannot be decoded") as error:
        client.queue([order(0), BAD], 0, "strict")
    assert list(getattr(error.value, "rows", ())) == [1]
    assert values(opened, "strict") == []


def test_a_real_client(opened: Listening) -> None:
    sent = [BAD if number % 3 == 1 else order(number) for number in range(60)]

    async def run() -> list[int]:
        # One record a batch, so that whole batches go to the DLQ topic.
        producer = AIOKafkaProducer(
            bootstrap_servers=opened.bootstrap, enable_idempotence=True, max_batch_size=1
        )
        await producer.start()
        try:
            waiting = [await producer.send("lenient", value, partition=0) for value in sent]
            return [(await one).offset for one in waiting]
        finally:
            await producer.stop()

    offsets = asyncio.run(run())
    assert values(opened, "lenient") == [value for value in sent if value != BAD]
    assert values(opened, "dead") == [BAD] * 20
    stored = [offset for offset, value in zip(offsets, sent, strict=True) if value != BAD]
    assert stored == list(range(40))


def test_the_answer_on_the_wire(opened: Listening) -> None:
    producer_id, _ = opened.writer.sequencer.open_producer("", 0)

    def sent(values: Sequence[bytes], sequence: int) -> tuple[ErrorCode, int]:
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=0, is_transactional=0, producer_id=producer_id, producer_epoch=0,
            base_sequence=sequence, batch_size=10**6,
        )  # fmt: skip
        for offset, value in enumerate(values):
            assert builder.append(offset, 1_700_000_000_000, None, value, []) is not None
        data = {"name": "lenient", "partition_data": [{"index": 0, "records": bytes(builder.build())}]}
        body = {"acks": -1, "timeout": 20_000, "topic_data": [data]}
        (part,) = client.ask(ApiKey.PRODUCE, 9, body).responses[0].partition_responses
        return part.error_code, part.base_offset

    with WireClient(opened.address) as client:
        assert sent([BAD, order(0), order(1)], 0) == (ErrorCode.none, 0)
        # No offset, as of a broker that does not know it.
        assert sent([BAD], 3) == (ErrorCode.none, -1)
        assert sent([order(2)], 4) == (ErrorCode.none, 2)

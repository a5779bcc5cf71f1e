"""`Writer.producer` and `Writer.resume_producer`: what a program sees of idempotent producers and
transactions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from archiver import Reader, Writer
from archiver.api import Producer
from archiver.runtime.errors import InvalidInput, NotFound, ProducerFenced
from tests.support.builders.deployment import Deployment

WAIT_S = 120.0


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(
        tmp_path / "d", overrides={"intake": {"delay_max": "10ms", "transaction_timeout_max": "2m"}}
    )


def values(deployment: Deployment, topic: str = "kept") -> list[bytes | None]:
    with Reader(deployment.config) as reader:
        return [record.value for record in reader.read(topic)]


def test_sent_again_it_is_there_once(deployment: Deployment) -> None:
    with Writer(deployment.config) as writer:
        producer = writer.producer()
        assert (producer.epoch, producer.transactional_id) == (0, None)
        one = producer.send("kept", b"a", partition=0)
        batch = producer.send_batch("kept", pa.table({"value": [b"b", b"c"]}), partition=0)
        assert (one.result(WAIT_S).offset, batch.result(WAIT_S).offsets.tolist()) == (0, [1, 2])
        assert one.sequence == 0
        assert batch.sequences is not None
        again = producer.send("kept", b"a", partition=0, sequence=one.sequence)
        batch_again = producer.send_batch(
            "kept", pa.table({"value": [b"b", b"c"]}), partition=0, sequence=batch.sequences
        )
        assert (again.result(WAIT_S).offset, batch_again.result(WAIT_S).offsets.tolist()) == (0, [1, 2])
        place = producer.producer_id, producer.epoch
    with Writer(deployment.config) as writer:
        resumed = writer.resume_producer(*place)
        assert resumed.send("kept", b"a", partition=0, sequence=0).result(WAIT_S).offset == 0
        assert resumed.send("kept", b"d", key=b"k").result(WAIT_S).offset == 3
        with pytest.raises(NotFound, match="no producer 12345"):
            writer.resume_producer(12345, 0)
    assert values(deployment) == [b"a", b"b", b"c", b"d"]


def test_a_refusal_is_reported_with_its_rule(deployment: Deployment) -> None:
    with Writer(deployment.config) as writer:
        producer = writer.producer()
        gap = producer.send("kept", b"x", partition=0, sequence=9).result(WAIT_S)
        assert (gap.outcome, gap.offset, gap.refusal) == ("failed", None, "out_of_order")
        table = pa.table({"value": [b"x", b"y"]})
        (first, second) = producer.send_batch("kept", table, partition=0, sequence=9).result(WAIT_S)
        assert first == second
        assert (first.outcome, first.offset, first.refusal) == ("failed", None, "out_of_order")
    assert values(deployment) == []


def test_a_transaction_is_seen_as_a_whole_or_not_at_all(deployment: Deployment) -> None:
    with Writer(deployment.config) as writer:
        producer = writer.producer("mover", transaction_timeout_s=120)
        assert producer.transactional_id == "mover"
        with producer.transaction() as same:
            assert same is producer
            producer.send("kept", b"a")
            producer.send("clicks", b"b", partition=1)
            writer.flush()
            assert (values(deployment), values(deployment, "clicks")) == ([], [])
        assert (values(deployment), values(deployment, "clicks")) == ([b"a"], [b"b"])
        with pytest.raises(ZeroDivisionError), producer.transaction():
            _fail(producer)
        producer.begin()
        producer.send("kept", b"d")
        producer.commit()
        producer.begin()
        producer.send("kept", b"e")
        producer.abort()
    assert (values(deployment), values(deployment, "clicks")) == ([b"a", b"d"], [b"b"])


def _fail(producer: Producer) -> None:
    producer.send("kept", b"c")
    raise ZeroDivisionError


def test_the_same_id_elsewhere_fences(deployment: Deployment) -> None:
    with Writer(deployment.config) as one, Writer(deployment.config) as two:
        old = one.producer("mover")
        old.begin()
        old.send("kept", b"old").result(WAIT_S)
        new = two.producer("mover")
        assert (new.producer_id, new.epoch) == (old.producer_id, 1)
        with new.transaction():
            new.send("kept", b"new")
        with pytest.raises(ProducerFenced):
            old.commit()
        with pytest.raises(ProducerFenced):
            old.begin()
        with pytest.raises(ProducerFenced):
            one.resume_producer(old.producer_id, 0)
    assert values(deployment) == [b"new"]


def test_what_is_wrong_is_refused(deployment: Deployment) -> None:
    with Writer(deployment.config) as writer:
        with pytest.raises(InvalidInput, match="transaction_timeout_max = 120 s"):
            writer.producer("mover", transaction_timeout_s=121)
        number: Any = 5
        with pytest.raises(InvalidInput, match="a transactional id is text; 5 is of type int"):
            writer.producer(number)
        with pytest.raises(InvalidInput, match=r"has 0$"):
            writer.producer("")
        with pytest.raises(InvalidInput, match=r"has 1026$") as long:
            writer.producer("é" * 513)
        assert len(str(long.value)) < 150
        producer = writer.producer("mover")
        wrong: list[Callable[[], object]] = [
            lambda: producer.send("kept", b"v"),
            lambda: producer.send_batch("kept", pa.table({"value": [b"v"]})),
            producer.commit,
            producer.abort,
        ]
        for call in wrong:
            with pytest.raises(InvalidInput, match="begin one first"):
                call()
        with pytest.raises(InvalidInput, match="no transactional id"):
            writer.producer().begin()

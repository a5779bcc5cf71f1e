"""How the adapter interprets responses and messages, without a broker."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import RetryLater
from intake.sources.kafka import client as kafka_client
from intake.sources.kafka.client import KafkaClient, _Answers, _sound
from intake.sources.kafka.client_log import ClientLog
from intake.sources.kafka.upstream import Place, Polled


class Said:
    """Stands for a message of the library."""

    def __init__(self, offset: int, error: int | None = None, topic: str = "t") -> None:
        self._offset, self._error, self._topic = offset, error, topic

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset

    def error(self) -> KafkaError | None:
        return None if self._error is None else KafkaError(self._error)


def test_nothing_of_a_partition_comes_behind_its_error() -> None:
    broken: set[Place] = set()
    polled = Polled()
    end, damaged = KafkaError._PARTITION_EOF, KafkaError._BAD_MSG
    said: list[Any] = [
        Said(3, topic="u"),
        Said(4),
        Said(5, damaged),
        Said(4, topic="u"),
        Said(10),
        Said(12, end),
        Said(5, end, "u"),
    ]
    assert [(one.topic(), one.offset()) for one in _sound(said, polled, broken)] == [
        ("u", 3),
        ("t", 4),
        ("u", 4),
    ]
    assert (polled.ends, [(one.place, one.trouble) for one in polled.stopped]) == (
        {("u", 0): 5},
        [(("t", 0), "damaged")],
    )
    later: list[Any] = [Said(13), Said(6, topic="u")]
    assert [one.topic() for one in _sound(later, Polled(), broken)] == ["u"], "neither in later polls"


def answered(value: object) -> Future[Any]:
    future: Future[Any] = Future()
    if isinstance(value, Exception):
        future.set_exception(value)
    else:
        future.set_result(value)
    return future


def test_one_question_without_an_answer_leaves_the_others() -> None:
    leaderless, away = (
        KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)),
        KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC)),
    )
    answers = _Answers[str](1.0)
    answers.collect("a", answered(leaderless), "a")
    answers.collect("b", answered(away), "b")
    with pytest.raises(RetryLater, match="a"):
        answers.unanswered()
    answers.collect("c", answered(7), "c")
    assert (answers.unanswered(), answers.found) == (["a"], {"c": 7})


class Fetched:
    """Fetched messages in place of a consumer. It also replaces the administrative client, which is only
    polled."""

    def __init__(self, *messages: Message[Any, Any]) -> None:
        self._left = list(messages)
        self.asked: list[tuple[int, float]] = []
        self.clock = ManualClock()

    def consume(self, records_max: int, timeout_s: float) -> list[Message[Any, Any]]:
        self.asked.append((records_max, round(timeout_s, 3)))
        self.clock.sleep(0.3)
        taken, self._left = self._left[:records_max], self._left[records_max:]
        return taken

    def poll(self, timeout_s: float) -> None:
        pass


def message(
    topic: str, partition: int, offset: int, value: bytes | None = b"v", epoch: int = 1, **more: Any
) -> Message[Any, Any]:
    given = {"key": b"k%d" % offset, "timestamp": (1, 100 + offset)} | more
    return Message(topic=topic, partition=partition, offset=offset, value=value, leader_epoch=epoch, **given)


def polled(fetched: Fetched, records_max: int = 100) -> Polled:
    client: Any = KafkaClient.__new__(KafkaClient)  # `__init__` would connect
    client._consumer = client._admin = fetched
    client._broken, client._clock = set(), fetched.clock
    client._log = ClientLog("source s", fetched.clock)
    client._callbacks = client._log.callbacks()
    found: Polled = client.poll(records_max, 0.5)
    return found


def test_a_poll_takes_portions_until_its_time_is_over_and_then_what_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_client, "PORTION_RECORDS", 2)
    headers = [("h", b"1")]
    fetched = Fetched(
        *(message("t", 0, offset, headers=headers if offset == 3 else None) for offset in range(5))
    )
    found = polled(fetched)
    assert fetched.asked == [(2, 0.5), (2, 0.2), (2, 0.0)]
    assert not found.more, "the last portion was not full"
    assert (found.topics, found.partitions, found.offsets) == (["t"] * 5, [0] * 5, [0, 1, 2, 3, 4])
    assert (found.timestamps_ms, found.keys) == (
        [100, 101, 102, 103, 104],
        [b"k0", b"k1", b"k2", b"k3", b"k4"],
    )
    assert (found.values, found.headers) == ([b"v"] * 5, [None, None, None, headers, None])
    fetched = Fetched(*(message("t", 0, offset) for offset in range(5)))
    found = polled(fetched, records_max=3)
    assert len(found.offsets) == 3 and fetched.asked == [(2, 0.5), (1, 0.2)], "never more than fit"
    assert found.more, "so the mirror is behind"
    assert not polled(Fetched()).more


def test_a_poll_takes_no_further_portion_of_large_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "PORTION_RECORDS", 2)
    monkeypatch.setattr(kafka_client, "POLL_BYTES_MAX", 20)
    found = polled(
        Fetched(
            *(
                message("t", 0, offset, value)
                for offset, value in enumerate([b"x" * 5, None, b"x" * 15, b"x", b"x"])
            )
        )
    )
    assert (found.offsets, found.more) == ([0, 1, 2, 3], True)


def test_an_epoch_is_that_of_the_last_record_of_each_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "PORTION_RECORDS", 5)
    found = polled(
        Fetched(
            *[
                message("t", 0, 0, epoch=1),
                message("u", 0, 0, epoch=2),
                message("t", 0, 1, epoch=3),
                message("t", 1, 0, epoch=4),
            ],
            message("u", 1, 0, epoch=4),
            *[message("t", 0, 2, epoch=6), message("t", 1, 1, epoch=-1), message("t", 2, 0, epoch=7)],
        )
    )
    assert found.epochs == {("t", 0): 6, ("u", 0): 2, ("u", 1): 4, ("t", 2): 7}, (
        "of the partition whose last record has none, none"
    )


def test_a_record_whose_headers_are_no_text_is_told_by_its_number_in_the_poll(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def headers(one: Message[Any, Any]) -> Any:
        if one.offset() in (1, 3):
            raise UnicodeError  # the library raises this; a real message cannot be made to raise it here
        return [("h", b"%d" % (one.offset() or 0))]

    monkeypatch.setattr(kafka_client, "PORTION_RECORDS", 2)
    monkeypatch.setattr(kafka_client, "_HEADERS", headers)
    found = polled(Fetched(*(message("t", 0, offset) for offset in range(5))))
    assert (sorted(found.broken), found.headers) == (
        [1, 3],
        [[("h", b"0")], None, [("h", b"2")], None, [("h", b"4")]],
    )


def test_a_record_without_a_timestamp_has_none_whatever_number_stands_there() -> None:
    """The oldest formats have no timestamp: the library gives type 0 (not available) with any number. Newer
    formats give -1."""
    given = [(0, 0), (0, 5), (0, -1), (1, -1), (1, 7), (2, 8), (1, 0)]
    found = polled(Fetched(*(message("t", 0, offset, timestamp=one) for offset, one in enumerate(given))))
    assert found.timestamps_ms == [-1, -1, -1, -1, 7, 8, 0]


def test_an_end_that_is_not_known_is_none() -> None:
    end = KafkaError(KafkaError._PARTITION_EOF)
    found = polled(Fetched(message("t", 0, -1001, error=end), message("t", 1, 0, error=end)))
    assert found.ends == {("t", 1): 0}


def test_errors_and_what_is_behind_them_are_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_client, "PORTION_RECORDS", 2)
    damaged, end = KafkaError(KafkaError._BAD_MSG), KafkaError(KafkaError._PARTITION_EOF)
    found = polled(
        Fetched(
            *[message("t", 0, 0), message("t", 0, 1, error=damaged), message("t", 0, 2), message("t", 1, 0)],
            *[message("t", 1, 1, error=end), message("t", 1, 1)],
        )
    )
    assert list(zip(found.partitions, found.offsets, strict=True)) == [(0, 0), (1, 0), (1, 1)]
    assert (found.ends, [one.place for one in found.stopped]) == ({("t", 1): 1}, [("t", 0)])

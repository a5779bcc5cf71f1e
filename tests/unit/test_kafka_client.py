"""What the adapter makes of answers and messages, without a broker."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from archiver.errors import RetryLater
from intake.sources.kafka_client import _Answers, _sound
from intake.sources.upstream import Place, Polled


class Said:
    """A message of the library, which has none that can be made."""

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
    said: list[Any] = [Said(3, topic="u"), Said(4), Said(5, damaged), Said(4, topic="u"), Said(10), Said(12, end), Said(5, end, "u")]
    assert [(one.topic(), one.offset()) for one in _sound(said, polled, broken)] == [("u", 3), ("t", 4), ("u", 4)]
    assert (polled.ends, [(one.place, one.trouble) for one in polled.stopped]) == ({("u", 0): 5}, [(("t", 0), "damaged")])
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
    leaderless, away = KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)), KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))
    answers = _Answers[str](1.0)
    answers.hear("a", answered(leaderless), "a")
    answers.hear("b", answered(away), "b")
    with pytest.raises(RetryLater, match="a"):
        answers.unanswered()
    answers.hear("c", answered(7), "c")
    assert (answers.unanswered(), answers.found) == (["a"], {"c": 7})

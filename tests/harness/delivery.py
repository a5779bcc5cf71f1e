"""Sending records with a note before and after: what is about to be sent, then what was answered.

Owns the order that makes a ledger worth something: the note that a record is sent is on disk before the
product sees the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from archiver.runtime.errors import ArchiverError, OutcomeUnknown
from tests.harness.history import Outcome, ProducerKey
from tests.harness.ledger_file import LedgerFile
from tests.harness.payload import Payload, payload

ANSWER_TIMEOUT_S = 40.0
"""Longer than the writer may take to give up; what is not answered then is of unknown outcome."""
_HEADERS = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]))


class Target(Protocol):
    """A writer, or a producer of one: both are sent to in the same way."""

    def send(self, topic: str, value: bytes | None, **named: Any) -> Any:
        """One record; its acknowledgement to come."""

    def send_batch(self, topic: str, batch: pa.Table, partition: int | None = None, **named: Any) -> Any:
        """Many records of one topic."""


@dataclass(frozen=True, slots=True)
class Item:
    """One record to be sent."""

    number: int
    topic: str
    partition: int | None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said about an item."""

    outcome: Outcome
    partition: int | None
    offset: int | None
    error: str | None
    sequence: int | None = None
    """The number that the producer gave it."""
    refusal: str | None = None
    """The rule of idempotent producers that it broke."""


class Desk:
    """Where one sender hands in its records."""

    def __init__(self, ledger: LedgerFile, seed: int, sender: str) -> None:
        self.sender = sender
        self._ledger = ledger
        self._seed = seed

    def note(self, event: str, **fields: Any) -> None:
        """A line of the sender's own."""
        self._ledger.write(event, sender=self.sender, **fields)

    def deliver(
        self,
        target: Target,
        items: Sequence[Item],
        *,
        attempt: int = 1,
        together: bool = False,
        producer: ProducerKey | None = None,
        transaction: str | None = None,
    ) -> list[Answer]:
        """Send the items, one by one or `together` as a batch (of one topic), and wait for each answer.

        The items' sequence numbers are passed on if they have one; else a producer counts by itself.
        """
        contents = [payload(self._seed, self.sender, item.number) for item in items]
        event: dict[str, Any] = {"event": "send", "sender": self.sender, "attempt": attempt}
        if producer is not None:
            event["producer"] = producer
        if transaction is not None:
            event["tx"] = transaction
        event["records"] = [
            [item.number, item.topic, item.partition, item.sequence, content.digest]
            for item, content in zip(items, contents, strict=True)
        ]
        self._ledger.write_all([event])
        send = self._together if together else self._one_by_one
        answers = send(target, items, contents)
        records = [
            [
                item.number,
                answer.outcome,
                answer.partition,
                answer.offset,
                answer.sequence,
                answer.error and answer.error[:200],
            ]
            for item, answer in zip(items, answers, strict=True)
        ]
        self._ledger.write_all(
            [{"event": "ack", "sender": self.sender, "attempt": attempt, "records": records}]
        )
        return answers

    @staticmethod
    def _one_by_one(target: Target, items: Sequence[Item], contents: Sequence[Payload]) -> list[Answer]:
        pending: list[Any] = []
        for item, content in zip(items, contents, strict=True):
            named: dict[str, Any] = {} if item.sequence is None else {"sequence": item.sequence}
            try:
                sent = target.send(
                    item.topic,
                    content.value,
                    key=content.key,
                    headers=content.headers,
                    timestamp_us=content.timestamp_us,
                    partition=item.partition,
                    **named,
                )
            except ArchiverError as error:
                sent = _raised(error, item)
            pending.append(sent)
        return [
            one if isinstance(one, Answer) else _answer(one, item)
            for one, item in zip(pending, items, strict=True)
        ]

    @staticmethod
    def _together(target: Target, items: Sequence[Item], contents: Sequence[Payload]) -> list[Answer]:
        partitions = {item.partition for item in items}
        columns: dict[str, Any] = {
            "key": pa.array([content.key for content in contents], pa.binary()),
            "value": pa.array([content.value for content in contents], pa.binary()),
            "headers": pa.array(
                [[{"key": key, "value": value} for key, value in content.headers] for content in contents],
                _HEADERS,
            ),
            "event_timestamp": pa.array(
                [content.timestamp_us for content in contents], pa.timestamp("us", tz="UTC")
            ),
        }
        only = items[0].partition if len(partitions) == 1 else None
        if only is None:
            columns["partition"] = pa.array([item.partition for item in items], pa.int32())
        named: dict[str, Any] = (
            {} if items[0].sequence is None else {"sequence": [item.sequence for item in items]}
        )
        try:
            pending = target.send_batch(items[0].topic, pa.table(columns), only, **named)
        except ArchiverError as error:
            return [_raised(error, item) for item in items]
        try:
            answers = list(pending.result(ANSWER_TIMEOUT_S))
        except ArchiverError as error:
            return [Answer("unknown", item.partition, None, f"no answer: {error}") for item in items]
        numbers = getattr(pending, "sequences", None)
        sequences = (
            [None] * len(answers)
            if numbers is None
            else [int(number) if number >= 0 else None for number in numbers]
        )
        return [_of(one, sequence) for one, sequence in zip(answers, sequences, strict=True)]


def _raised(error: ArchiverError, item: Item) -> Answer:
    """What a call that raised says: nothing was sent, unless it says that it does not know."""
    outcome: Outcome = "unknown" if isinstance(error, OutcomeUnknown) else "failed"
    return Answer(outcome, item.partition, None, f"{type(error).__name__}: {error}")


def _answer(pending: Any, item: Item) -> Answer:
    try:
        found = pending.result(ANSWER_TIMEOUT_S)
    except ArchiverError as error:
        return Answer("unknown", item.partition, None, f"no answer: {error}")
    return _of(found, getattr(pending, "sequence", None))


def _of(found: Any, sequence: int | None) -> Answer:
    return Answer(
        found.outcome, found.partition, found.offset, found.error, sequence, getattr(found, "refusal", None)
    )

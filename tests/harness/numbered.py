"""Workloads with producers that number their records, so that a record without an answer can be sent again
and is there once.

An *idempotent* sender either states the numbers itself, and then a record without an answer is sent again
even by the worker's next life; or it lets the producer count, and then only this life knows the numbers. A
*transactional* one sends in transactions, and commits, aborts, or waits until its transaction times out.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from archiver.runtime.errors import (
    ArchiverError,
    OutcomeUnknown,
    ProducerFenced,
    RetryLater,
    TransactionFailed,
)
from tests.harness.delivery import Answer, Desk, Item
from tests.harness.history import Outcome, ProducerKey
from tests.harness.loading import ledger_names, read_ledger
from tests.harness.scene import TRANSACTION_TIMEOUT_S
from tests.harness.senders import Choices

REPEATS_MAX = 60
"""Tries to get one burst acknowledged before its producer is given up."""
REPEAT_PAUSE_S = 0.15
OPENING_ATTEMPTS_MAX = 100
ENDING_ATTEMPTS_MAX = 10
REPEATED_SHARE = 0.15
"""Of bursts that are sent again although all is ok."""
SUCCESSOR_SHARE = 0.06
DAWDLING_SHARE = 0.03
"""Of transactions: another producer takes the transactional id over in the middle; it stays open for longer
than its time-out."""
_LASTING = ("fenced", "unknown_producer", "wrong_kind")
"""Refusals that no repetition changes."""
Place = tuple[str, int]


@dataclass
class Left:
    """What earlier lives of a sender left open."""

    producer: ProducerKey | None = None
    following: dict[Place, int] = field(default_factory=dict)
    """Per topic and partition, the number of the next record, as far as is known."""
    stated: dict[int, tuple[Item, int]] = field(default_factory=dict)
    """Records that are not ok and whose numbers were stated, by their own, with the last attempt."""
    counted: dict[int, str] = field(default_factory=dict)
    """Records that are not ok and that the producer counted by itself, with their topics: their numbers are
    unknown."""

    def after(self, event: dict[str, Any]) -> Left:
        """What is left after one more line of a ledger."""
        if event["event"] == "producer":
            key = (event["producer"][0], event["producer"][1])
            return self if key == self.producer else Left(key)
        if event["event"] == "send":
            for number, topic, partition, sequence, _ in event["records"]:
                if sequence is None:
                    self.counted[number] = topic
                    self.stated.pop(number, None)
                else:
                    self.counted.pop(number, None)
                    self.stated[number] = Item(number, topic, partition, sequence), event["attempt"]
                    self._follow(topic, partition, sequence)
        if event["event"] == "ack":
            for number, outcome, partition, _, sequence, _ in event["records"]:
                topic = self.counted.get(number)
                if outcome == "ok":
                    self.stated.pop(number, None)
                if topic is None or sequence is None or outcome == "failed":
                    continue
                del self.counted[number]  # Now the number is known.
                if outcome == "ok":
                    self._follow(topic, partition, sequence)
                else:
                    self.stated[number] = Item(number, topic, partition, sequence), event["attempt"]
        return self

    def _follow(self, topic: str, partition: int, sequence: int) -> None:
        self.following[topic, partition] = max(self.following.get((topic, partition), 0), sequence + 1)


def left_behind(folder: Path, worker: str, sender: str) -> Left:
    """What the ledgers of the worker's earlier lives say about the sender's newest producer."""
    left = Left()
    for name in ledger_names(folder):
        if name.startswith(f"worker-{worker}-"):
            for event in read_ledger(folder, name).events:
                if event.get("sender") == sender:
                    left = left.after(event)
    return left


class IdempotentSender:
    """Sends through a producer without transactions, each record until it is ok."""

    def __init__(self, desk: Desk, writer: Any, choices: Choices, left: Left) -> None:
        self._desk = desk
        self._writer = writer
        self._choices = choices
        self._left = left
        self._producer: Any = None
        self._following: dict[Place, int] = defaultdict(int)
        self._doubtful: set[Place] = set()
        """Where the number of the next record is not known here."""
        self._newest: list[Item] = []
        """The records that were sent last, with their numbers, and how often at most."""
        self._newest_attempt = 0

    def settle(self) -> None:
        left = self._left
        if left.producer is None:
            self._open()
            return
        producer_id, epoch = left.producer
        self._producer = opened(self._desk, lambda: self._writer.resume_producer(producer_id, epoch))
        self._following.update(left.following)
        self._doubtful = set(self._choices.places()) if left.counted else set()
        missing = sorted(left.stated.values(), key=lambda end: end[0].number)
        self._ensure([item for item, _ in missing], max((attempt for _, attempt in missing), default=0))

    def burst(self) -> None:
        rng = self._choices.rng
        together = rng.random() < 0.5
        if self._newest and rng.random() < REPEATED_SHARE:
            self._ensure(
                self._newest, self._newest_attempt, together
            )  # As after a reply that was lost on its way to here.
        items = self._choices.items(one_topic=together, partitioned=True)
        if rng.random() < 0.5 and not any((item.topic, item.partition) in self._doubtful for item in items):
            items = [self._numbered(item) for item in items]
        self._ensure(items, 0, together)

    def _open(self) -> None:
        self._producer = opened(self._desk, self._writer.producer)
        self._following.clear()
        self._doubtful.clear()
        self._newest.clear()

    def _numbered(self, item: Item) -> Item:
        assert item.partition is not None
        place = item.topic, item.partition
        self._following[place] += 1
        return replace(item, sequence=self._following[place] - 1)

    def _ensure(self, items: Sequence[Item], attempt: int, together: bool = False) -> None:
        """Send until all is ok; a producer that cannot get there is replaced, and its open ends stay open."""
        stated = any(item.sequence is not None for item in items)
        missing = list(items)
        done: list[Item] = []
        for _ in range(REPEATS_MAX):
            if not missing:
                self._newest, self._newest_attempt = done, attempt
                return
            attempt += 1
            turn = missing if stated else _unknown_first(missing)
            answers = dict(zip(turn, self._deliver(turn, attempt, together), strict=True))
            if any(
                answer.refusal in _LASTING or (answer.error or "").startswith("ProducerFenced")
                for answer in answers.values()
            ):
                break
            left = []
            for item in missing:
                answer = answers.get(item)
                if answer is None:
                    left.append(item)
                elif answer.outcome == "ok":
                    done.append(replace(item, partition=answer.partition, sequence=answer.sequence))
                elif answer.refusal != "forgotten":  # Forgotten: there, at an unknown offset.
                    unknown = answer.outcome == "unknown"
                    left.append(
                        item if stated else replace(item, sequence=answer.sequence if unknown else None)
                    )
            missing = left
            if missing:
                time.sleep(REPEAT_PAUSE_S)
                together = self._choices.rng.random() < 0.5
        if missing:
            self._desk.note(
                "given up", producer=_key(self._producer), records=[item.number for item in missing]
            )
            self._open()

    def _deliver(self, items: Sequence[Item], attempt: int, together: bool) -> list[Answer]:
        """One attempt for each; together means by topic."""
        groups = (
            [
                [item for item in items if item.topic == topic]
                for topic in {item.topic: None for item in items}
            ]
            if together
            else [items]
        )
        answers: dict[Item, Answer] = {}
        for group in groups:
            found = self._desk.deliver(
                self._producer, group, attempt=attempt, together=together, producer=_key(self._producer)
            )
            answers |= zip(group, found, strict=True)
        for item, answer in answers.items():
            if answer.outcome == "ok" and answer.sequence is not None and answer.partition is not None:
                place = item.topic, answer.partition
                self._following[place] = max(self._following[place], answer.sequence + 1)
                self._doubtful.discard(place)
        return [answers[item] for item in items]


def _unknown_first(missing: Sequence[Item]) -> list[Item]:
    """Records with a number may be there: they go first, and alone; then those that failed get new
    numbers."""
    return [item for item in missing if item.sequence is not None] or list(missing)


def _key(producer: Any) -> ProducerKey:
    return producer.producer_id, producer.epoch


def opened(desk: Desk, make: Callable[[], Any]) -> Any:
    """A producer; in bad weather that takes several tries. Noted in the ledger."""
    for _ in range(OPENING_ATTEMPTS_MAX):
        try:
            producer = make()
        except ArchiverError as error:
            last = error
            desk.note("opening", error=f"{type(error).__name__}: {error}")
            time.sleep(REPEAT_PAUSE_S)
            continue
        desk.note("producer", producer=_key(producer))
        return producer
    raise last


class TransactionalSender:
    """Sends in transactions. Its transactional id is its own, so a new life ends what the one before left
    open."""

    def __init__(self, desk: Desk, writer: Any, choices: Choices, life: int) -> None:
        self._desk = desk
        self._writer = writer
        self._choices = choices
        self._life = life
        self._count = 0
        self._producer: Any = None

    def settle(self) -> None:
        self._producer = self._open()

    def _open(self) -> Any:
        """The next epoch of this sender's transactional id."""
        name = f"harness-{self._desk.sender}"
        return opened(
            self._desk, lambda: self._writer.producer(name, transaction_timeout_s=TRANSACTION_TIMEOUT_S)
        )

    def burst(self) -> None:
        rng = self._choices.rng
        name = f"{self._desk.sender}/{self._life}/{self._count}"
        self._count += 1
        self._desk.note("tx", tx=name, step="begin")
        try:
            self._producer.begin()
        except ProducerFenced:  # Its time was over before it had written anything; it learns of that late.
            self.settle()
            self._producer.begin()
        going = True
        for _ in range(rng.randint(1, 3)):
            going = going and self._send(name)
        draw = rng.random()
        if going and draw < DAWDLING_SHARE:
            time.sleep(TRANSACTION_TIMEOUT_S * 1.5)
        elif going and draw < DAWDLING_SHARE + SUCCESSOR_SHARE:
            self._open()  # From here on the old one must not get anything done.
        if not self._end(name, "commit" if draw < (0.75 if going else 0.2) else "abort"):
            self.settle()

    def _send(self, name: str) -> bool:
        """Whether all was stored; else the transaction can only be aborted."""
        together = self._choices.rng.random() < 0.5
        items = self._choices.items(one_topic=together, partitioned=False)
        answers = self._desk.deliver(
            self._producer, items, together=together, producer=_key(self._producer), transaction=name
        )
        return all(answer.outcome == "ok" for answer in answers)

    def _end(self, name: str, step: str) -> bool:
        """Whether the transaction is ended, as far as its producer knows."""
        for _ in range(ENDING_ATTEMPTS_MAX):
            self._desk.note("tx", tx=name, step=step)
            outcome: Outcome = "ok"
            problem: ArchiverError | None = None
            try:
                (self._producer.commit if step == "commit" else self._producer.abort)()
            except ArchiverError as error:
                outcome, problem = "unknown" if isinstance(error, OutcomeUnknown) else "failed", error
            self._desk.note(
                "tx",
                tx=name,
                step=step,
                outcome=outcome,
                error=problem and f"{type(problem).__name__}: {problem}"[:200],
            )
            if problem is None:
                return True
            if isinstance(problem, TransactionFailed) and step == "commit":
                step = "abort"
            elif not isinstance(problem, OutcomeUnknown | RetryLater):
                return False
            time.sleep(REPEAT_PAUSE_S)
        return False

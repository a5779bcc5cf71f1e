"""One thread applies entries, another reads: no reader ever sees uncommitted records as stable."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from intake.log.backlog import Backlog
from intake.log.fold import IntakeFold
from tests.support.intake.intake_entries import Run, declared, topic_id_of
from tests.support.intake.transaction_entries import TransactionEntries

ROUNDS = 60
PRODUCERS = 30


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    """Switch threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_the_stable_offset_is_never_beyond_an_open_transaction() -> None:
    fold = IntakeFold()
    fold.apply(0, declared(1, "t", 1))
    tp = (topic_id_of(1), 0)
    backlog = Backlog(fold)
    producers = [TransactionEntries(fold, f"x{number}") for number in range(PRODUCERS)]
    producers[0].send(Run(tp[0], 0))
    producers[0].end(commit=True)
    reported: list[int] = []
    errors: list[str] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            try:
                reported.append(backlog.stable_offset(tp))
                backlog.blocking(tp)
                backlog.summary(tp, 0)
            except Exception as error:  # noqa: BLE001 - the test reports every failure of the reader
                errors.append(repr(error))

    reader = threading.Thread(target=read)
    reader.start()
    answers = 0
    try:
        for _ in range(ROUNDS):
            base = fold.next_offset(tp)
            reported.clear()
            for producer in producers:
                producer.send(Run(tp[0], 0))
            seen = list(reported)  # all transactions are still open here
            answers += len(seen)
            assert all(stable <= base for stable in seen)
            for number, producer in enumerate(producers):
                producer.end(commit=bool(number % 2))
    finally:
        stop.set()
        reader.join()
    assert errors == []
    assert answers > 0

"""Requests for topics that do not exist delay no other request, and a new topic is found."""

from __future__ import annotations

import threading

import pytest

from archiver.config.groups import LogSettings
from archiver.runtime.clock import ManualClock
from archiver.runtime.errors import RetryLater
from archiver.runtime.ids import SeededIds
from intake.log.checkpoint import CheckpointStore
from intake.log.sequencer import Sequencer
from intake.write.topic_lookup import LOOKUP_INTERVAL_S, TopicLookup
from tests.support.log.memory_log import MemoryLog
from tests.support.objects.memory_store import MemoryObjectStore

PATIENCE_S = 180.0


class CountedLog(MemoryLog):
    """Counts reads, and answers none while `gate` is closed."""

    def __init__(self) -> None:
        super().__init__("intake", 512 * 1024)
        self.reads = 0
        self.reading = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False

    def tail(self) -> int:
        self.reads += 1
        self.reading.set()
        assert self.gate.wait(PATIENCE_S)
        if self.broken:
            raise RetryLater("the database is locked")
        return super().tail()


class Ground:
    """A log, one process that looks topics up and another that declares them."""

    def __init__(self) -> None:
        self.log = CountedLog()
        self.clock = ManualClock(10**15)
        self.here, self.elsewhere = (
            Sequencer(
                self.log, SeededIds(seed), self.clock, LogSettings(), CheckpointStore(MemoryObjectStore())
            )
            for seed in (1, 2)
        )
        self.lookup = TopicLookup(self.here, self.clock)

    def knows(self, name: str) -> bool:
        self.lookup.refresh()
        return name in self.here.fold.topics_by_name


def test_the_log_is_read_at_most_once_in_a_while_and_what_is_new_is_found() -> None:
    ground = Ground()
    assert not ground.knows("new")
    ground.elsewhere.declare_topic("new", 1)
    before = ground.log.reads
    assert not any(ground.knows("new") for _ in range(50))
    assert ground.log.reads == before
    ground.clock.advance(LOOKUP_INTERVAL_S)
    assert ground.knows("new")


def test_one_waits_for_a_log_that_does_not_answer_and_the_others_do_not() -> None:
    ground = Ground()
    ground.log.gate.clear()
    ground.log.reading.clear()
    waiting = threading.Thread(target=ground.lookup.refresh)
    waiting.start()
    try:
        assert ground.log.reading.wait(PATIENCE_S)
        for _ in range(5):
            with pytest.raises(RetryLater, match="another thread is reading"):
                ground.lookup.refresh()
    finally:
        ground.log.gate.set()
        waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    assert not ground.knows("new")


def test_a_log_that_failed_is_not_asked_again_at_once_and_nothing_is_denied() -> None:
    ground = Ground()
    ground.log.broken = True
    with pytest.raises(RetryLater, match="the database is locked"):
        ground.lookup.refresh()
    before = ground.log.reads
    ground.log.broken = False
    with pytest.raises(RetryLater, match="for new topics: the database is locked"):
        ground.lookup.refresh()
    assert ground.log.reads == before
    ground.clock.advance(LOOKUP_INTERVAL_S)
    assert not ground.knows("new")

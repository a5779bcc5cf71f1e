"""Two processes make checkpoints of one log against the rules. Neither loses the index of unarchived records
or waits without an end."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from archiver.log.lease import FileLease
from archiver.runtime.errors import Corrupted, Halt
from archiver.runtime.ids import TopicId
from intake.log.checkpoint import superseded
from intake.log.checkpointer import LEASE_TRIES_MAX
from tests.support.log.checkpointing import SPAN, Played, Scene


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def spans(process: Played, *starts: int) -> None:
    """The spans of one run of a process, without trimming in between."""
    made = None
    for start in starts:
        entries = process.checkpointer._span_from(start)
        assert entries is not None
        made = process.checkpointer._make(made, entries)


def test_one_that_slept_past_the_vacuum_stores_nothing_that_names_what_is_gone(scene: Scene) -> None:
    slow, quick = scene.process(18), scene.process(10)
    topic_id: TopicId = slow.sequencer.declare_topic("t", 2).topic_id
    slow.fill(topic_id, 45)
    scene.keep()
    first, second = slow.checkpointer._span_from(0), slow.checkpointer._span_from(18)
    assert first is not None and second is not None
    # The history file and the checkpoint of 18 entries exist now. Here the process is suspended.
    begun = slow.checkpointer._make(None, first)
    spans(quick, 0, 10, 20)
    quick.checkpointer._trim()
    for key in superseded(scene.objects):
        scene.objects.delete(key)
    with pytest.raises((Halt, Corrupted), match="it is gone"):
        slow.checkpointer._make(begun, second)
    scene.check(scene.process(10).sequencer.backlog())


def test_nothing_is_superseded_by_what_is_not_whole(scene: Scene) -> None:
    process = scene.process()
    process.fill(process.sequencer.declare_topic("t", 2).topic_id, 4 * SPAN)
    process.checkpointer.run()
    assert superseded(scene.objects) != []
    newest = scene.store.last()[0]
    ref = newest.history[-1]
    scene.objects.delete(f"shelf/intake/{ref.start:020}-{ref.end:020}.parquet")
    assert superseded(scene.objects) == []


def test_a_stopped_lease_holder_blocks_others_only_for_a_time(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    process = scene.process(lease=FileLease(tmp_path / "lease", "one"))
    stopped = FileLease(tmp_path / "lease", "host:17")
    process.fill(process.sequencer.declare_topic("t", 2).topic_id, 2 * SPAN)
    scene.keep()
    stopped.acquire()
    with caplog.at_level(logging.WARNING):
        made = [process.checkpointer.run_if_due() for _ in range(LEASE_TRIES_MAX)]
    assert made == [False] * (LEASE_TRIES_MAX - 1) + [True]
    assert "host:17 makes no checkpoint" in caplog.text
    assert stopped.holder() == "host:17"
    stopped.release()
    scene.check(process.sequencer.backlog())

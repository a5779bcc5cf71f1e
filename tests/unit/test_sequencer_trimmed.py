"""A process that paused while others wrote checkpoints and trimmed appends nothing below the floor, and
reports no false outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.runtime.errors import OutcomeUnknown, RetryLater
from intake.producers import Stamp
from tests.support.log.checkpointing import SPAN, Played, Scene
from tests.support.objects.faulty_objects import ObjectFault


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def filled(scene: Scene, files: int) -> Played:
    process = scene.process()
    process.fill(process.sequencer.declare_topic("a", 2).topic_id, files)
    scene.keep()
    return process


def slept(scene: Scene) -> tuple[Played, Played]:
    """A process that read the log before all its entries were trimmed, and a current one."""
    sleeper = filled(scene, 3)
    awake = scene.process()
    awake.sequencer.refresh()
    awake.fill(awake.sequencer.fold.topics_by_name["a"].topic_id, 4 * SPAN)
    scene.keep()
    awake.checkpointer.run_if_due()
    assert scene.log.floor() > sleeper.sequencer.fold.next_index
    return sleeper, awake


def test_an_append_below_the_floor_fails_and_the_next_one_works(scene: Scene) -> None:
    sleeper, _ = slept(scene)
    topic_id = sleeper.sequencer.fold.topics_by_name["a"].topic_id
    tail = scene.log.tail()
    with pytest.raises(RetryLater, match="nothing was appended"):
        sleeper.append(topic_id)
    assert scene.log.tail() == tail
    expected = scene.process().sequencer.refresh().next_offset((topic_id, 0))
    assert sleeper.append(topic_id).runs == ((expected, 1),)
    scene.check(sleeper.sequencer.backlog())


def test_a_reader_goes_on_after_a_trim(scene: Scene) -> None:
    sleeper, _ = slept(scene)
    held = sleeper.sequencer.backlog()
    scene.check(held)
    topic_id = sleeper.sequencer.fold.topics_by_name["a"].topic_id
    assert sleeper.append(topic_id).runs
    assert sleeper.sequencer.declare_topic("b", 1).name == "b"


@pytest.mark.parametrize(
    ("landed", "remembered", "outcome"),
    [(True, True, OutcomeUnknown), (False, True, RetryLater), (True, False, OutcomeUnknown)],
)
def test_an_unsettled_entry_below_the_floor(
    scene: Scene,
    landed: bool,
    remembered: bool,
    outcome: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was sent and the response was lost. Before the outcome was resolved, the log was trimmed past it."""
    if not remembered:
        monkeypatch.setattr("intake.log.fold.IDS_REMEMBERED", 2)
    sleeper = filled(scene, 3)
    topic_id = sleeper.sequencer.fold.topics_by_name["a"].topic_id
    awake = scene.process()
    wrapped = scene.log.append
    once = [True]

    def append(index: int, data: bytes) -> object:
        if not once:
            return wrapped(index, data)
        once.clear()
        if landed:
            wrapped(index, data)
        awake.sequencer.refresh()
        awake.fill(topic_id, 4 * SPAN)
        scene.keep()
        awake.checkpointer.run_if_due()
        raise OutcomeUnknown("the reply was lost by the test")

    monkeypatch.setattr(scene.log, "append", append)
    with pytest.raises(outcome):
        sleeper.append(topic_id, rows=7)
    rows = [segment.rows for segment in scene.process().sequencer.backlog().segments((topic_id, 0))]
    assert rows.count(7) == landed
    assert (
        "is in the log" if landed and remembered else "is not in the log" if remembered else "is too old"
    ) in caplog.text
    sleeper.append(topic_id)
    scene.check(sleeper.sequencer.backlog())


def test_a_store_that_is_away_leaves_it_unknown(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the floor, while the checkpoint that could resolve it cannot be read. The outcome is never a
    failure."""
    sleeper, awake = slept(scene)
    topic_id = sleeper.sequencer.fold.topics_by_name["a"].topic_id
    wrapped = scene.log.append
    replies = iter([OutcomeUnknown("the reply was lost by the test")])

    def append(index: int, data: bytes) -> object:
        for error in replies:
            raise error
        return wrapped(index, data)

    monkeypatch.setattr(scene.log, "append", append)
    scene.objects.fail("list", ObjectFault.REFUSED)
    with pytest.raises(OutcomeUnknown):
        sleeper.append(topic_id, rows=7)
    sleeper.append(topic_id)
    assert 7 not in [segment.rows for segment in awake.sequencer.backlog().segments((topic_id, 0))]
    scene.check(sleeper.sequencer.backlog())


def test_an_entry_left_unsettled_is_settled_by_the_next_append(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeper = filled(scene, 3)
    topic_id = sleeper.sequencer.fold.topics_by_name["a"].topic_id
    wrapped = scene.log.append

    def lost(index: int, data: bytes) -> object:
        raise OutcomeUnknown("lost by the test")

    monkeypatch.setattr(scene.log, "append", lost)
    with pytest.raises(OutcomeUnknown):
        sleeper.append(topic_id, rows=7)
    monkeypatch.setattr(scene.log, "append", wrapped)
    awake = scene.process()
    awake.sequencer.refresh()
    awake.fill(topic_id, 4 * SPAN)
    scene.keep()
    awake.checkpointer.run_if_due()
    sleeper.append(topic_id)
    scene.check(sleeper.sequencer.backlog())
    assert 7 not in [segment.rows for segment in sleeper.sequencer.backlog().segments((topic_id, 0))]


def test_a_file_behind_a_barrier_is_refused_after_a_trim_too(scene: Scene) -> None:
    sleeper, awake = slept(scene)
    topic_id = sleeper.sequencer.fold.topics_by_name["a"].topic_id
    awake.sequencer.raise_barrier(1_900_000_000_000)
    awake.fill(topic_id, 3 * SPAN)
    scene.keep()
    awake.checkpointer.run_if_due()
    with pytest.raises(RetryLater):
        sleeper.append(topic_id)
    refused = sleeper.append(topic_id)
    assert (refused.refusal, refused.runs) == ("barrier", ())


@pytest.mark.parametrize("landed", [True, False])
def test_the_end_of_a_transaction_below_the_floor(
    scene: Scene, landed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it is in the log, its outcome can no longer be determined. If it is not, the caller is asked to
    retry."""
    sleeper = filled(scene, 3)
    topic_id = sleeper.sequencer.fold.topics_by_name["a"].topic_id
    producer_id, epoch = sleeper.sequencer.open_producer("bank", 60_000_000)
    sleeper.append(topic_id, stamp=Stamp(producer_id, epoch, 0, transactional=True))
    awake = scene.process()
    wrapped = scene.log.append
    once = [True]

    def append(index: int, data: bytes) -> object:
        if not once:
            return wrapped(index, data)
        once.clear()
        if landed:
            wrapped(index, data)
        awake.sequencer.refresh()
        awake.fill(topic_id, 4 * SPAN)
        scene.keep()
        awake.checkpointer.run_if_due()
        raise OutcomeUnknown("the reply was lost by the test")

    monkeypatch.setattr(scene.log, "append", append)
    if not landed:
        with pytest.raises(RetryLater, match="nothing was appended"):
            sleeper.sequencer.end_transaction(producer_id, epoch, commit=True)
        assert sleeper.sequencer.end_transaction(producer_id, epoch, commit=True) is None
        assert sleeper.sequencer.fold.stable_offset((topic_id, 0)) == sleeper.sequencer.fold.next_offset(
            (topic_id, 0)
        )
    else:
        for _ in range(3):
            with pytest.raises(OutcomeUnknown):
                sleeper.sequencer.end_transaction(producer_id, epoch, commit=True)
        assert sleeper.sequencer.open_producer("bank", 60_000_000) == (producer_id, epoch + 1)
    scene.check(sleeper.sequencer.backlog())

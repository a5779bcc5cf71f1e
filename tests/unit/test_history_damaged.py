"""A history file that cannot be opened is an error only for the partitions that have segments in it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from archiver.objects.paths import history_key
from archiver.runtime.errors import Corrupted
from archiver.runtime.ids import TopicPartition
from intake.log import history_file as history_format
from intake.log.checkpoint import HistoryRef
from intake.log.history import History
from tests.support.log.checkpointing import SPAN, Scene, flipped

Pristine = tuple[Scene, tuple[HistoryRef, ...], list[history_format.Content]]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Pristine:
    """Eight history files. Topics appear at different times, have no records for several files, and continue."""
    scene = Scene(tmp_path_factory.mktemp("shelves"))
    process = scene.process()
    plan = {"early": (0, 1), "now-and-then": (0, 3, 4, 7), "late": (5, 6, 7), "always": range(8)}
    for number in range(8):
        names = [name for name, spans in plan.items() if number in spans]
        for at in range(SPAN):
            name = names[at % len(names)]
            process.append(process.sequencer.declare_topic(name, 2).topic_id, 1 + at % 3, at // 4 % 2)
        process.sequencer.declare_topic(f"silent-{number}", 1)
        process.checkpointer.run_if_due()
    checkpoint = scene.store.last()[0]
    contents = [
        history_format.decode(ref, scene.objects.read(history_key(ref.start, ref.end)))
        for ref in checkpoint.history
    ]
    assert len(contents) >= 8
    return scene, checkpoint.history, contents


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_only_partitions_with_something_in_a_spoilt_shelf_are_concerned(
    pristine: Pristine, data: st.DataObject
) -> None:
    scene, refs, contents = pristine
    whole, hurt = History(scene.objects, lambda: refs), History(scene.objects, lambda: refs)
    whole.learn(refs)
    hurt.learn(refs)
    gone = data.draw(st.sets(st.integers(0, len(refs) - 1), max_size=4), label="gone")
    altered = data.draw(st.sets(st.integers(0, len(refs) - 1), max_size=2), label="altered") - gone
    keys = {number: history_key(refs[number].start, refs[number].end) for number in gone | altered}
    saved = {key: scene.objects.read(key) for key in keys.values()}
    tp: TopicPartition = data.draw(st.sampled_from(sorted(contents[-1])), label="partition")
    end = contents[-1][tp].end
    start = data.draw(st.integers(0, end), label="start")
    stop = data.draw(st.integers(start, end), label="stop") if tp in contents[-1] else end
    expected = (
        whole.segments(tp, start, end, None),
        whole.gaps(tp, start, stop),
        whole.summary(tp, start, end),
    )
    try:
        for number, key in keys.items():
            scene.objects.delete(key)
            if number in altered:
                scene.objects.create(key, flipped(saved[key])[:-9] + bytes(9))

        def concerned(to: int) -> bool:
            places = [contents[number][tp] for number in keys if tp in contents[number]]
            return any(max(place.start, start) < min(place.end, to) for place in places)

        for to, answer, look in (
            (end, expected[0], lambda: hurt.segments(tp, start, end, None)),
            (stop, expected[1], lambda: hurt.gaps(tp, start, stop)),
            (end, expected[2], lambda: hurt.summary(tp, start, end)),
        ):
            if concerned(to):
                with pytest.raises(Corrupted):
                    look()
            else:
                assert look() == answer
    finally:
        for key, bytes_ in saved.items():
            scene.objects.delete(key)
            scene.objects.create(key, bytes_)

"""Histories of paused writers, of cleaners that die or pause, and of archiving: no record that is needed
loses its file.

A paused cleaner holds a lease of its own, because correctness never depends on leases. It continues between
any two of its effects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from archiver.runtime import failpoints
from archiver.runtime.errors import Deposed, OutcomeUnknown, RetryLater
from intake.log.backlog import Backlog
from intake.log.sequencer import Sequencer
from tests.support.builders.cleaning import Run, Vacuumed
from tests.support.log.memory_log import LeasePlace
from tests.support.objects.faulty_objects import ObjectFault

Step = tuple[str, Any]
POINTS = [name for name in failpoints.NAMES if name.startswith(("condemn.", "intake.delete.", "deleted."))]
PAUSES = ["look", "barrier", "tail", "delete", "condemn"]


class History:
    """One log with two partitions. It remembers what was acknowledged."""

    def __init__(self) -> None:
        self.vacuumed = Vacuumed(deletes_max=3)
        self.vacuumed.topic("a", 2)
        self.records: dict[tuple[int, int], str] = {}
        """(partition, offset) → key, of the acknowledged records."""
        self.asleep: list[tuple[Sequencer, str, list[int]]] = []

    def play(self, step: Step) -> None:
        name, what = step
        getattr(self, name)(what)
        self.check()

    def check(self) -> None:
        stored = set(self.vacuumed.keys())
        lines = self.vacuumed.lines
        lost = {
            place: key
            for place, key in self.records.items()
            if place[1] >= lines.get(("a", place[0]), 0) and key not in stored
        }
        assert not lost, "records that are not archived lost their file"

    def send(self, partitions: list[int]) -> None:
        self.vacuumed.clock.advance(1)
        self._append(self.vacuumed.new_sequencer(), self.vacuumed.upload(), partitions)

    def fall_asleep(self, partitions: list[int]) -> None:
        """A writer stores its file and pauses before its append."""
        sequencer = self.vacuumed.new_sequencer()
        sequencer.refresh()
        self.vacuumed.clock.advance(1)
        self.asleep.append((sequencer, self.vacuumed.upload(), partitions))

    def wake(self, number: int) -> None:
        if self.asleep:
            self._append(*self.asleep.pop(number % len(self.asleep)))

    def _append(self, sequencer: Sequencer, key: str, partitions: list[int]) -> None:
        for landed in self.vacuumed.name(
            key, *(Run("a", partition) for partition in partitions), by=sequencer
        ):
            for offset, _ in landed.runs:
                self.records[landed.tp[1], offset] = key

    def archive(self, partition: int) -> None:
        """The retention floor rises by one record."""
        line = self.vacuumed.lines.get(("a", partition), 0)
        if (partition, line) in self.records:
            self.vacuumed.lines["a", partition] = line + 1

    def wait(self, seconds: int) -> None:
        self.vacuumed.clock.advance(seconds)

    def clean(self, failpoint: str | None) -> None:
        """A cleaner runs, or dies at a step."""
        if failpoint is not None:
            failpoints.arm(f"{failpoint}=error")
        try:
            report = self.vacuumed.clean()
        except RetryLater:
            assert failpoint is not None
        else:
            assert report.findings == []
        finally:
            failpoints.arm("")

    def unsure(self, number: int) -> None:
        """The response to a deletion is lost."""
        self.vacuumed.objects.fail("delete", (ObjectFault.LOST, ObjectFault.REPLY_LOST)[number % 2])
        try:
            assert self.vacuumed.clean().findings == []
        finally:
            self.vacuumed.objects.heal()

    def sleeping_clean(self, what: tuple[str, list[Step]]) -> None:
        """A cleaner that pauses at that step while other things happen."""
        pause, steps = what
        place, self.vacuumed.place = self.vacuumed.place, LeasePlace()
        run = self.vacuumed.cleaning(name="sleeper")
        self.vacuumed.place = place

        def before(call: Callable[..., Any], at: str, nth: int = 1) -> Callable[..., Any]:
            seen = 0

            def slept(*arguments: Any, **named: Any) -> Any:
                nonlocal seen
                seen += 1
                if at == pause and seen == nth:
                    for step in steps:
                        self.play(step)
                return call(*arguments, **named)

            return slept

        run.lines = before(run.lines, "look")
        run.intake = before(run.intake, "tail", nth=2)
        run.sequencer.raise_barrier = before(run.sequencer.raise_barrier, "barrier")  # type: ignore[method-assign]
        run._append_marks = before(run._append_marks, "condemn")  # type: ignore[method-assign]
        run.leader.check = before(run.leader.check, "delete", nth=1)  # type: ignore[method-assign]
        try:
            assert run.run().findings == []
        except (Deposed, OutcomeUnknown):
            pass

    def finish(self) -> None:
        """All paused writers continue. After a few runs, no unneeded file is left."""
        while self.asleep:
            self.play(("wake", 0))
        for _ in range(2 + 2 * len(self.vacuumed.keys())):
            self.vacuumed.later()
            self.play(("clean", None))
        lines = self.vacuumed.lines
        wanted = {
            key
            for (partition, offset), key in self.records.items()
            if offset >= lines.get(("a", partition), 0)
        }
        assert set(self.vacuumed.keys()) == wanted
        assert self.vacuumed.ledger().condemned == {}
        intake: Backlog = self.vacuumed.backlog()
        topic_id = intake.topics_by_name["a"].topic_id
        for partition in (0, 1):
            offsets = sorted(offset for place, offset in self.records if place == partition)
            assert offsets == list(range(intake.next_offset((topic_id, partition)))), (
                "what was refused got no offset"
            )


partitions = st.lists(st.integers(0, 1), min_size=1, max_size=2, unique=True)
simple: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("send"), partitions),
    st.tuples(st.just("fall_asleep"), partitions),
    st.tuples(st.just("wake"), st.integers(0, 5)),
    st.tuples(st.just("archive"), st.integers(0, 1)),
    st.tuples(st.just("wait"), st.sampled_from([1, 1800, 3601])),
    st.tuples(st.just("clean"), st.one_of(st.none(), st.sampled_from(POINTS))),
    st.tuples(st.just("unsure"), st.integers(0, 1)),
)
sleeping: st.SearchStrategy[Step] = st.tuples(
    st.just("sleeping_clean"), st.tuples(st.sampled_from(PAUSES), st.lists(simple, min_size=1, max_size=6))
)


@settings(max_examples=300, deadline=None)
@example(
    [
        ("fall_asleep", [0]),
        ("wait", 3601),
        ("sleeping_clean", ("barrier", [("wake", 0)])),
        ("wait", 3601),
        ("clean", None),
    ]
)
@example(
    [
        ("fall_asleep", [0]),
        ("wait", 3601),
        ("sleeping_clean", ("tail", [("wake", 0)])),
        ("wait", 3601),
        ("clean", None),
    ]
)
@given(st.lists(st.one_of(simple, simple, sleeping), max_size=25))
def test_no_record_that_is_needed_ever_loses_its_file(history: Sequence[Step]) -> None:
    played = History()
    try:
        for step in history:
            played.play(step)
        played.finish()
    finally:
        failpoints.arm("")


def test_a_cleaner_that_sleeps_before_it_deletes_and_wakes_after_its_successor() -> None:
    played = History()
    for step in [("send", [0]), ("archive", 0), ("wait", 3601), ("clean", None), ("wait", 3601)]:
        played.play(step)
    played.play(
        ("sleeping_clean", ("delete", [("send", [0, 1]), ("clean", None), ("wait", 3601), ("clean", None)]))
    )
    played.finish()
    assert len(played.vacuumed.keys()) == 1

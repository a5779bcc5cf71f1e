"""The simulation itself: it notices broken code, names what broke and how to see it again, and its parts do
what they say."""

from __future__ import annotations

import pytest

from archiver.log.store import Appended
from archiver.runtime.errors import Halt, OutcomeUnknown, RetryLater
from intake.log.fold import IntakeFold
from intake.producers import Producers
from intake.write.acknowledgements import Acknowledgement
from tests.simulation.__main__ import main
from tests.simulation.book import Book
from tests.simulation.faults import Profile
from tests.simulation.run import run
from tests.simulation.schedule import Process, Schedule, Trace, Violation
from tests.simulation.twins import SimulatedClock, SimulatedLog
from tests.support.log.memory_log import MemoryLog

TP = ("a" * 32, 0)


class Scripted:
    """An actor that does what a test says."""

    def __init__(self, name: str, *lives: object) -> None:
        self.name = name
        self.lives = list(lives)
        self.seen: list[object] = []

    def live(self, process: Process) -> None:
        life = self.lives.pop(0) if len(self.lives) > 1 else self.lives[0]
        assert callable(life)
        self.seen.append(life(process))


def played(
    profile: Profile, *actors: Scripted, seed: int = 1, faulty: int = 200, calm: int = 200
) -> Schedule:
    schedule = Schedule(seed, profile, Trace(keep=True))
    for actor in actors:
        schedule.add(actor)
    schedule.run(faulty, calm)
    return schedule


def test_broken_code_is_noticed_and_the_seed_shows_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Producers, "judge", lambda *_: None)
    assert main(["--rig", "intake", "--runs", "100"]) == 1
    said = capsys.readouterr().out
    seed = said.split("--seed ")[1].split()[0]
    assert f"seed {seed}, " in said
    assert "VIOLATION" in said
    assert main(["--rig", "intake", "--seed", seed, "--trace"]) == 1
    again = capsys.readouterr().out
    assert said.split("VIOLATION ")[1].splitlines()[0] in again
    assert len(again.splitlines()) > 100


def test_an_error_in_the_product_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(fold: IntakeFold, *_: object) -> None:
        raise KeyError("broken on purpose")

    monkeypatch.setattr(IntakeFold, "_place", broken)
    found = run(0).violation
    assert found is not None
    assert found.startswith("nothing breaks")
    assert "broken on purpose" in found


def test_nothing_played_is_no_success(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--runs", "0"]) == 1
    assert "0 schedules" in capsys.readouterr().out


def test_whoever_never_finishes_is_named() -> None:
    def wait(process: Process) -> None:
        while True:
            process.sleep(1000)

    with pytest.raises(Violation, match=r"nobody is stuck: sleeper"):
        played(Profile("calm"), Scripted("sleeper", wait))


def test_a_process_that_fails_is_followed_by_another() -> None:
    def fail(process: Process) -> None:
        raise RetryLater("not now")

    actor = Scripted("a", fail, fail, lambda process: process.name)
    played(Profile("calm"), actor)
    assert actor.seen == ["a#2"]


def test_a_crash_takes_the_memory_and_leaves_what_was_applied() -> None:
    log = MemoryLog("intake", 1 << 16)

    def append_all(process: Process) -> None:
        mine = SimulatedLog(log, process)
        for number in range(mine.tail(), 6):
            assert mine.append(number, bytes([number])) is Appended.OK

    actor = Scripted("a", append_all)
    schedule = played(Profile("crashes", crash=0.3), actor)
    assert [entry.data for entry in log.read(0)] == [bytes([number]) for number in range(6)]
    assert any(line.endswith(" crash") for line in schedule.trace.lines)


def test_a_dead_process_goes_no_step_further() -> None:
    steps: list[str] = []

    def walk(process: Process) -> None:
        for _ in range(10):
            try:
                process.step("walks")
            finally:
                steps.append(process.name)
            if process.schedule.current["a"] is process:
                steps.append("alive")

    played(Profile("crashes", crash=0.2), Scripted("a", walk))
    names = [name for name in steps if name != "alive"]
    assert len(set(names)) > 1, "it crashed at least once"
    assert names == sorted(names), "nobody runs after the process that followed it"


def test_a_lost_reply_was_applied_and_a_dropped_request_was_not() -> None:

    def append(process: Process) -> list[bool]:
        applied: list[bool] = []
        for _ in range(40):
            log = MemoryLog("intake", 1 << 16)
            try:
                known = SimulatedLog(log, process).append(0, b"x") is Appended.OK
            except OutcomeUnknown:
                known = False
            if not known:
                applied.append(log.tail() == 1)
        return applied

    lost, dropped = Scripted("a", append), Scripted("a", append)
    played(Profile("p", reply_lost=0.5), lost, faulty=1000)
    played(Profile("p", dropped=0.5), dropped, faulty=1000)
    assert [type(one) for one in lost.seen + dropped.seen] == [list, list]
    assert set(lost.seen[0]) == {True}  # type: ignore[call-overload]
    assert set(dropped.seen[0]) == {False}  # type: ignore[call-overload]


def test_a_late_request_lands_when_nobody_waits_any_more() -> None:
    log = MemoryLog("intake", 1 << 16)

    def append(process: Process) -> tuple[int, int]:
        try:
            SimulatedLog(log, process).append(0, b"x")
        except OutcomeUnknown:
            pass
        before = log.tail()
        process.sleep(60_000_000)
        return before, log.tail()

    actor = Scripted("a", append)
    played(Profile("late", late=1.0), actor)
    assert actor.seen == [(0, 1)]


def test_a_replaced_process_goes_on_beside_its_successor() -> None:
    def work(process: Process) -> str:
        for _ in range(20):
            process.step("works")
        return process.name

    actor = Scripted("a", work)
    played(Profile("pauses", replaced=0.1), actor)
    assert len(actor.seen) > 1


def test_clocks_are_stepped_and_right_again_when_faults_stop() -> None:
    def look(process: Process) -> tuple[int, int]:
        clock, skews = SimulatedClock(process), []
        for _ in range(150):
            process.step("looks")
            skews.append(abs(clock.now_us() - process.schedule.now_us))
        return max(skews), skews[-1]

    actor = Scripted("a", look)
    played(Profile("clocks", clock=0.2, clock_step_us=1_000_000), actor, faulty=100)
    (found,) = actor.seen
    assert isinstance(found, tuple)
    assert found[0] > 10_000
    assert found[1] == 0


def test_an_unexpected_halt_does_not_hide() -> None:
    def halt(process: Process) -> None:
        raise Halt("for good")

    with pytest.raises(Violation, match="nobody is stuck"):
        played(Profile("calm"), Scripted("a", halt))


def test_an_answer_has_an_offset_exactly_if_it_is_ok() -> None:
    book = Book()
    sent = book.record("s", TP)  # type: ignore[arg-type]
    for offset, outcome in ((0, "failed"), (0, "unknown"), (None, "ok")):
        with pytest.raises(Violation, match="an offset comes with ok and only then"):
            book.answer(sent, Acknowledgement("t", 0, offset, outcome))  # type: ignore[arg-type]
    book.answer(sent, Acknowledgement("t", 0, 3, "ok"))
    with pytest.raises(Violation, match="a repetition has the offsets of the first"):
        book.answer(sent, Acknowledgement("t", 0, 4, "ok"))

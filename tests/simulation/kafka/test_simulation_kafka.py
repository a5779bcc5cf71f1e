"""The Kafka listener under crash, pause, lost answers, errors and wrong clocks: a fixed share of the seeds."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from archiver.kafka import produce
from archiver.kafka.consume import ConsumeHandler
from tests.simulation.faults import PROFILES
from tests.simulation.kafka.kafka_run import run
from tests.simulation.kafka.stepped_loop import SteppedLoop, SteppedThreads
from tests.simulation.seeds import play
from tests.support.amount import WHOLE

SHARE = 30 if WHOLE else 9
"""Schedules per profile, of every kind in turn."""
ONCE_FAILED = (10,)
"""The fault that each seed found. 10: a history file with a wrong bit in its footer ended the process."""
SELDOM = (5_100, 5_200, 5_304)
"""Seeds with what happens seldom. 5,100: a member goes back on purpose and commits that. 5,200: a commit of unknown
outcome is answered, by none as a rule. 5,304: a late commit is refused, and one under a stale claim."""
MUST_HAPPEN = (
    "kafka none",
    "kafka acknowledged again",
    "kafka request_timed_out",
    "kafka not_enough_replicas",
    "kafka epoch raised",
    "kafka uncommitted records",
    "kafka ends",
    "segment repeated",
    "segment refused: out_of_order",
    "segment refused: unknown_producer",
    "committed",
    "aborted",
    "gaps",
    "trimmed",
    "timed out",
    "kafka transaction Fenced",
    "kafka transaction GaveUp",
    "kafka EndTxn producer_fenced",
    "kafka EndTxn not_coordinator",
    "kafka EndTxn coordinator_load_in_progress",
    "group rebalance_in_progress",
    "group unknown_member_id",
    "group illegal_generation",
    "group fenced_instance_id",
    "group not_coordinator",
    "group coordinator_load_in_progress",
    "group coordinator_not_available",
    "group request_timed_out",
    "group late commit unknown_member_id",
    "group late commit none",
    "group commit refused: stale_claim",
    "group offset goes back on purpose",
    "group marked as in use",
    "group offset expired",
    "group offsets held",
    "group offsets unstable",
    "group offsets committed by a marker",
    "kafka TxnOffsetCommit unknown_member_id",
    "kafka TxnOffsetCommit coordinator_load_in_progress",
    "loop committed",
    "loop aborted behind its offsets",
    "loop Fenced",
    "loop GaveUp",
    "loop markers without records",
    "loop in its former generation: illegal_generation",
    "loop in its former generation: unknown_member_id",
)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", range(len(PROFILES)), ids=[profile.name for profile in PROFILES])
def test_no_invariant_breaks(number: int) -> None:
    met = play(run, "kafka", range(number, SHARE * len(PROFILES), len(PROFILES)))
    assert met["records"] > SHARE * 10
    assert met["kafka records read"] > SHARE * 10
    assert met["group records"] > SHARE * 3
    assert met["loop records"] > SHARE


@pytest.mark.timeout(400)
def test_every_situation_comes_up() -> None:
    met = play(run, "kafka", range(5_000, 5_090))
    for seed in SELDOM:
        met += play(run, "kafka", range(seed, seed + 1))
    assert [what for what in MUST_HAPPEN if not met[what]] == []


@pytest.mark.parametrize("seed", ONCE_FAILED)
def test_a_seed_that_failed_once(seed: int) -> None:
    play(run, "kafka", range(seed, seed + 1))


def test_a_seed_is_a_run() -> None:
    first, again = run(8, keep_lines=True), run(8, keep_lines=True)
    assert again.lines == first.lines
    assert run(8 + len(PROFILES)).digest != first.digest


def test_a_wait_inside_of_the_event_loop_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listener's loop must never wait by itself."""
    parts = ConsumeHandler._parts

    def waiting(handler: ConsumeHandler, *request: Any) -> Any:
        handler._clock.sleep(0.001)
        return parts(handler, *request)

    monkeypatch.setattr(ConsumeHandler, "_parts", waiting)
    found = run(0).violation
    assert found is not None
    assert found.startswith("the listener's loop never waits")


def test_an_error_in_a_handler_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("broken on purpose")

    monkeypatch.setattr(produce, "_outcome", broken)
    found = run(0).violation
    assert found is not None
    assert "broken on purpose" in found


def test_a_loop_runs_timers_by_the_clock_it_is_given() -> None:
    now: list[float] = [0.0]
    ran: list[str] = []
    clock: Any = SimpleNamespace(monotonic_s=lambda: now[0])
    loop, threads = SteppedLoop(clock), SteppedThreads(1)
    try:
        loop.call_later(5.0, lambda: ran.append("timer"))

        async def work() -> None:
            ran.append(await loop.run_in_executor(threads, lambda: "thread"))

        task = loop.create_task(work())
        loop.pump()
        assert (ran, loop.due_in_s(), threads.ready) == ([], 5.0, 1)
        threads.run_one(0)
        loop.pump()
        assert task.done()
        now[0] = 5.0
        loop.pump()
        assert ran == ["thread", "timer"]
    finally:
        loop.close()


def test_a_loop_that_closes_ends_its_tasks() -> None:
    """The garbage collector would end them later, in some other test."""
    ended: list[str] = []
    clock: Any = SimpleNamespace(monotonic_s=lambda: 0.0)
    loop = SteppedLoop(clock)

    async def wait() -> None:
        other = asyncio.create_task(asyncio.sleep(5))
        try:
            await asyncio.sleep(10)
        finally:
            other.cancel()
            ended.append("by the loop")

    task = loop.create_task(wait())
    loop.pump()
    loop.close()
    assert ended == ["by the loop"]
    assert task.cancelled()

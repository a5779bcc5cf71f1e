"""A real REST catalog whose answers are lost, late or false, at every request of a round: the next round
resolves it, and nothing is harmed.

`tests/contract/test_catalog_answers.py` tests how each answer is interpreted; here is one of each kind. Every day every
fault meets the commit itself, and every other request meets half of the faults, the other half the next day.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from archiver.publish.report import ArchiveReport, CommitEnd, TopicReport
from tests.support.amount import DAY, WHOLE
from tests.support.catalog.rest_catalog import RestCatalog
from tests.support.catalog.rest_rounds import WIDER, RestRounds
from tests.support.servers.http_faults import Fault, Operation, Play

pytestmark = [pytest.mark.spark, pytest.mark.turns(2, 1)]  # needs Java

ENDS: dict[Fault, CommitEnd] = {
    Fault(Play.ANSWER_BEFORE, 404): "retry",
    Fault(Play.ANSWER_BEFORE, 409): "retry",
    Fault(Play.ANSWER_BEFORE, 503): "unknown",
    Fault(Play.ANSWER_AFTER, 409): "retry",
    Fault(Play.ANSWER_AFTER, 502): "unknown",
    Fault(Play.ANSWER_AFTER, 503): "unknown",
    Fault(Play.ANSWER_AFTER, 504): "unknown",
    Fault(Play.RESET_BEFORE): "unknown",
    Fault(Play.RESET_AFTER): "unknown",
    Fault(Play.SILENT_BEFORE): "unknown",
    Fault(Play.SILENT_AFTER): "unknown",
    Fault(Play.LATE): "unknown",
    Fault(Play.DRIP): "unknown",
    Fault(Play.GARBAGE_BEFORE): "unknown",
    Fault(Play.GARBAGE_AFTER): "unknown",
    Fault(Play.SLOW): "committed",
}
"""How a commit ends whose swap meets the fault."""


WAITED_FOR = (Play.SILENT_BEFORE, Play.SILENT_AFTER, Play.LATE, Play.DRIP)
"""Each costs the bound on a request, several times over."""


def today(fault: Fault) -> tuple[bool, bool]:
    """Whether the run meets the fault at the requests of a first commit, and whether at those of a later one."""
    begins = (list(ENDS).index(fault) + DAY) % 2 == 0
    return begins or WHOLE, not begins or WHOLE


def met(rounds: RestRounds, fault: Fault, operation: Operation, after: Operation | None = None) -> None:
    """A round that meets the fault does no harm, and the next one settles everything."""
    rounds.send()
    first, _ = faulty(rounds, fault, operation, after)
    assert not rounds.faults.unmet, f"no request was a {operation}"
    assert first.state != "halted", (operation, first.why)
    rounds.check_unharmed()
    settle(rounds)


def faulty(
    rounds: RestRounds, fault: Fault, operation: Operation, after: Operation | None = None
) -> tuple[TopicReport, ArchiveReport]:
    """A round with the fault."""
    if fault.play in WAITED_FOR:
        rounds.hurry()
    rounds.faults.arm(fault, operation, after)
    reported = rounds.archive()
    if fault.play in WAITED_FOR:
        rounds.hurry(again=False)
    return reported


def settle(rounds: RestRounds) -> None:
    report, _ = rounds.archive()
    assert report.state in ("archived", "idle"), report.why
    rounds.check_settled()


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=str(fault), marks=[pytest.mark.slow] if fault.play in WAITED_FOR else [])
        for fault in ENDS
    ],
)
def test_a_fault_at_any_request_is_settled_by_the_next_round(
    rest_catalog: RestCatalog,
    tmp_path: Path,
    fault: Fault,
) -> None:
    begins, goes_on = today(fault)
    with RestRounds(tmp_path / f"f{fault}", rest_catalog) as rounds:
        # Before there is a table: three requests lead to one, and each of them fails in a run of its own.
        rounds.send()
        for operation in ("config", "namespace", "create") if begins else ():
            if not rounds.faults.seen("create"):
                report, _ = faulty(rounds, fault, operation)
                assert report.state != "halted", (operation, report.why)
                rounds.check_unharmed()
        settle(rounds)

        if begins:
            met(rounds, fault, "load")
        # The commit itself.
        rounds.send()
        _, run = faulty(rounds, fault, "swap")
        assert [item.end for item in run.commits] == [ENDS[fault]]
        rounds.check_unharmed()
        settle(rounds)
        if goes_on:
            met(rounds, fault, "load", after="load")
            # It is there, and cannot be seen.
            met(rounds, fault, "load", after="swap")
            # A change of the columns.
            rounds.use(WIDER)
            met(rounds, fault, "evolve")
            assert "code" in rounds.columns()
        # What was on its way all the time comes when it means nothing any more.
        late = [
            status
            for operation, status in rounds.faults.deliver()
            if operation in ("create", "swap", "evolve")
        ]
        assert late == [409] * (1 + begins + goes_on if fault.play is Play.LATE else 0)
        rounds.check_settled()


def test_a_swap_that_lands_between_two_rounds_is_adopted(rest_catalog: RestCatalog, tmp_path: Path) -> None:
    with RestRounds(tmp_path / "between", rest_catalog) as rounds:
        rounds.send()
        settle(rounds)
        rounds.send()
        _, run = faulty(rounds, Fault(Play.LATE), "swap")
        assert [item.end for item in run.commits] == ["unknown"]
        before = rounds.rows()
        assert rounds.faults.deliver() == [("swap", 200)]
        assert len(rounds.rows()) == len(before) + 6
        swaps = rounds.faults.seen("swap")
        settle(rounds)
        assert rounds.faults.seen("swap") == swaps, "what is in the table is not offered again"
